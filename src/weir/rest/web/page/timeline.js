// Batches, barriers, snapshots and commits of each vertex as bars over time.

import { linkTo } from "./addresses.js";
import { clock, duration, h, s } from "./dom.js";

const WIDTH = 1200;
const LEFT = 150;
const ROW = 46;
const TOP = 46;

export const KINDS = {
  batch: "batch", rested: "rested: nothing to read", held: "held by a full channel",
  snapshot: "held by its snapshot", starting: "starting or draining",
  wait: "waits for its batch to end", alignment: "waits for barriers",
  "catch-up": "reads up to the barrier", sync: "synchronous part", async: "asynchronous part",
  commit: "commit",
};

export const legend = () => h("ul", { class: "legend" }, Object.entries(KINDS).map(([kind, text]) =>
  h("li", {}, h("i", { class: `k-${kind}` }), text)));

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600].map((seconds) => seconds * 1000);

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function timeline(data, moments, chosen) {
  const { start, end } = data;
  const span = end - start;
  const x = (time) => LEFT + ((Math.max(start, Math.min(end, time)) - start) / span) * (WIDTH - LEFT - 10);
  const height = TOP + data.lanes.length * ROW + 6;
  const step = STEPS.find((one) => span / one <= 10) ?? STEPS.at(-1);
  const ticks = [];
  for (let time = Math.ceil(start / step) * step; time <= end; time += step) {
    ticks.push(s("line", { class: "tick", x1: x(time), x2: x(time), y1: 14, y2: height }),
      s("text", { class: "tick-text", x: x(time), y: 11, "text-anchor": "middle" }, clock(time)));
  }
  const bar = ([kind, from, to, number, failed], y, tall) => {
    const left = x(from);
    const long = Math.max(1, x(to) - left);
    const of = number < 0 ? "" : ["batch", "rested", "held", "starting", "drain"].includes(kind)
      ? ` ${number}` : ` of checkpoint ${number}`;
    return s("rect", {
      class: `k-${kind}${failed ? " failed" : ""}`, x: left.toFixed(1), y, width: long.toFixed(1), height: tall,
    }, s("title", {}, `${KINDS[kind] ?? kind}${of}: ${duration(to - from)}, ${clock(from)} to ${clock(to)}${failed ? ", failed" : ""}`));
  };
  const rows = data.lanes.map((lane, index) => {
    const y = TOP + index * ROW;
    return [
      s("a", { href: linkTo("graph", lane.vertex) },
        s("text", { x: 8, y: y + 20 }, cut(lane.vertex, 19), s("title", {}, lane.vertex))),
      s("rect", { class: "row-back", x: LEFT, y, width: WIDTH - LEFT - 10, height: 36 }),
      lane.query.map((one) => bar(one, y, 20)),
      lane.parts.map((one) => bar(one, y + 22, 13)),
    ];
  });
  const checkpoints = data.checkpoints.map((one) => {
    const [, from, to, number] = one;
    const left = x(from);
    const long = x(to) - left;
    return s("a", { href: linkTo("checkpoints", String(number)), "aria-label": `Checkpoint ${number}, ${duration(to - from)}` },
      bar(one, 20, 16),
      long > 22 ? s("text", { class: "num-text", x: left + 4, y: 32 }, String(number)) : null);
  });
  const marks = moments.filter((one) => one.kind === "failure").map((one) =>
    s("line", { class: "mark", x1: x(one.time), x2: x(one.time), y1: 14, y2: height },
      s("title", {}, `${clock(one.time)} ${one.text}`)));
  const point = chosen !== null && chosen > start && chosen < end
    ? s("line", { class: "mark", x1: x(chosen), x2: x(chosen), y1: 14, y2: height }) : null;
  return h("div", { class: "timeline", "data-key": "timeline", tabindex: "0", role: "group",
    "aria-label": `Bars from ${clock(start)} to ${clock(end)}; the longest ones are in the table below` },
  s("svg", { viewBox: `0 0 ${WIDTH} ${height}` }, ticks,
    s("text", { x: 8, y: 33 }, "checkpoints"), rows, checkpoints, marks, point));
}

// The longest bars that are no rest, longest first.
export function longest(data, many = 12) {
  return data.lanes.flatMap((lane) => [...lane.query, ...lane.parts]
    .filter(([kind]) => kind !== "rested")
    .map(([kind, from, to, number, failed]) => ({ vertex: lane.vertex, kind, from, to, number, failed })))
    .sort((one, other) => (other.to - other.from) - (one.to - one.from)).slice(0, many);
}
