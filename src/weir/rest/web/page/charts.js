// Small charts over time. The picture has a sentence and a table beside it that say the same.

import { clock, h, s } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 90;

// One series. `times` are its moments, `show` writes a value with its unit; a value below 0 is a
// gap. `cursor` is what the reader points at, kept by the caller.
export function chart({ title, times, values, show, now, span, kind = "", top, cursor, key }) {
  const from = now - span;
  const known = values.filter((value) => value >= 0);
  const last = values.length ? values.at(-1) : -1;
  const highest = top ?? Math.max(...known, 0);
  const scale = highest > 0 ? highest : 1;
  const x = (time) => ((time - from) / span) * WIDTH;
  const y = (value) => HEIGHT - 4 - (value / scale) * (HEIGHT - 12);
  const runs = [];
  let run = [];
  times.forEach((time, index) => {
    const gap = index && time - times[index - 1] > 30_000;
    if (values[index] < 0 || time < from || gap) { if (run.length) runs.push(run); run = []; }
    if (values[index] >= 0 && time >= from) run.push([x(time), y(values[index])]);
  });
  if (run.length) runs.push(run);
  const points = (list) => list.map(([left, up]) => `${left.toFixed(1)},${up.toFixed(1)}`).join(" ");
  const at = cursor?.at ?? null;
  const nearest = at === null || !times.length ? -1
    : times.reduce((best, time, index) =>
      Math.abs(time - at) < Math.abs(times[best] - at) ? index : best, 0);
  const pointed = nearest >= 0 && values[nearest] >= 0;
  const said = known.length
    ? `${title}: now ${last < 0 ? "unknown" : show(last)}; lowest ${show(Math.min(...known))}, `
      + `highest ${show(Math.max(...known))} since ${clock(Math.max(from, times[0]))}.`
    : `${title}: no figures yet.`;
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    cursor?.set(from + ((event.clientX - box.left) / box.width) * span);
  };
  return h("figure", { "data-key": key ?? title },
    h("figcaption", {}, h("span", {}, title),
      h("strong", {}, pointed ? `${show(values[nearest])} at ${clock(times[nearest])}`
        : last < 0 ? "-" : show(last))),
    s("svg", {
      class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": said, onpointermove: point, onpointerleave: () => cursor?.set(null),
    },
      runs.map((list) => [
        s("polygon", {
          class: `area ${kind}`,
          points: `${list[0][0].toFixed(1)},${HEIGHT} ${points(list)} ${list.at(-1)[0].toFixed(1)},${HEIGHT}`,
        }),
        s("polyline", { class: `line ${kind}`, points: points(list) }),
      ]),
      pointed ? s("line", { class: "cursor", x1: x(times[nearest]), x2: x(times[nearest]), y1: 0, y2: HEIGHT }) : null),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, clock(from)),
      h("span", {}, known.length ? `top: ${show(highest)}` : "no figures yet"), h("span", {}, clock(now))),
    h("details", {}, h("summary", {}, "As a table"), minutes(title, times, values, show)));
}

// The last value of each of the newest minutes.
function minutes(title, times, values, show) {
  const rows = new Map();
  times.forEach((time, index) => rows.set(Math.floor(time / 60_000), [time, values[index]]));
  return h("table", {}, h("caption", {}, `${title}, the newest 15 minutes`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), h("th", { scope: "col" }, "Value"))),
    h("tbody", {}, [...rows.values()].slice(-15).reverse().map(([time, value]) =>
      h("tr", {}, h("th", { scope: "row" }, clock(time)), h("td", {}, value < 0 ? "-" : show(value))))));
}

// How a length of time is chosen for charts: at most an hour, at least ten minutes.
export function window(times, now) {
  const since = times.length ? now - times[0] : 0;
  return Math.min(3_600_000, Math.max(600_000, Math.ceil(since / 600_000) * 600_000));
}
