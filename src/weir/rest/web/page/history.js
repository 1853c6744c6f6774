// The timeline, and what happened meanwhile: for "why is this slow" and "what happened at 14:03".

import { linkTo } from "./addresses.js";
import { clock, duration, h, moments as list, panel, table } from "./dom.js";
import { KINDS, legend, longest, timeline } from "./timeline.js";

const SPANS = [[30_000, "30 seconds"], [60_000, "1 minute"], [300_000, "5 minutes"], [600_000, "10 minutes"], [1_800_000, "30 minutes"], [3_600_000, "1 hour"]];

// The window that the address says: from and to, or a time in the middle, or the newest minutes.
export function windowOf(query, now) {
  const from = Number(query.get("from"));
  const to = Number(query.get("to"));
  if (from && to > from) return { start: from, end: Math.min(to, from + 3_600_000), at: null, live: false };
  const span = Math.min(3_600_000, Math.max(1000, Number(query.get("span")) || 120_000));
  const at = Number(query.get("at"));
  if (at) return { start: at - span / 2, end: at + span / 2, at, live: false };
  return { start: now - span, end: now, at: null, live: true };
}

export async function load({ figures, query, state }) {
  const { start, end } = windowOf(query, state.now);
  const asked = { start: Math.round(start), end: Math.round(end) };
  const [data, story] = await Promise.all([figures("timeline", asked), figures("story", asked)]);
  return { data, story };
}

// Milliseconds of a time of day: the last time that the clock showed it.
export function lastTime(text, now) {
  const [hours, minutes, seconds = 0] = text.split(":").map(Number);
  const date = new Date(now);
  date.setHours(hours, minutes, seconds, 0);
  if (date.getTime() > now) date.setDate(date.getDate() - 1);
  return date.getTime();
}

export function render(state, { data, story }, { query, go }) {
  const { start, end, at, live } = windowOf(query, state.now);
  const span = end - start;
  const move = (center, length) => go({ at: String(Math.round(center)), span: String(Math.round(length)), from: null, to: null });
  const center = (start + end) / 2;
  const chosenSpan = SPANS.find(([length]) => Math.abs(length - span) < 500)?.[0] ?? "";
  return [
    h("h1", {}, "Timeline"),
    h("div", { class: "controls" },
      h("button", { onclick: () => move(center - span / 2, span), "aria-label": "Earlier" }, "←"),
      h("button", { onclick: () => move(center + span / 2, span), "aria-label": "Later", disabled: live }, "→"),
      h("button", { onclick: () => move(center, span / 2), "aria-label": "Closer" }, "+"),
      h("button", { onclick: () => move(center, Math.min(3_600_000, span * 2)), "aria-label": "Farther" }, "−"),
      h("button", { id: "now", class: live ? "primary" : null, "aria-pressed": String(live),
        onclick: () => go({ at: null, from: null, to: null, span: query.get("span") }) }, "Now"),
      h("label", {}, "Show ", h("select", { id: "span", onchange: (event) => go(live
        ? { span: event.target.value } : { at: String(Math.round(center)), span: event.target.value, from: null, to: null }) },
      chosenSpan === "" ? h("option", { value: "", selected: true }, duration(span)) : null,
      SPANS.map(([length, text]) => h("option", { value: String(length), selected: length === chosenSpan }, text)))),
      h("form", { class: "controls", onsubmit: (event) => {
        event.preventDefault();
        const text = event.target.elements.time.value;
        if (text) move(lastTime(text, state.now), Math.max(span, 120_000));
      } }, h("label", {}, "What happened at ", h("input", { type: "time", name: "time", step: "1", required: true })), h("button", {}, "Show"))),
    h("p", { class: "soft" }, `${clock(start)} to ${clock(end)}. The upper bar of a task shows what its query does, the lower one its part in checkpoints.`),
    data.completeFrom > start + 1000 ? h("p", { class: "why warn" }, `Bars of queries before ${clock(data.completeFrom)} are no longer kept.`) : null,
    legend(),
    timeline(data, story.moments, at),
    panel("What happened", story.moments.length ? list([...story.moments].reverse().slice(0, 200)) : h("p", { class: "empty" }, "Nothing happened in this time.")),
    panel("The longest bars", table({
      caption: "Without rest", rows: longest(data), key: (one) => `${one.vertex} ${one.kind} ${one.from}`, empty: "There are no bars.",
      columns: [
        { title: "Task", cell: (one) => h("a", { href: linkTo("graph", one.vertex) }, one.vertex) },
        { title: "What", cell: (one) => `${KINDS[one.kind] ?? one.kind}${one.failed ? " (failed)" : ""}` },
        { title: "Number", num: true, cell: (one) => (one.number < 0 ? "-" : String(one.number)) },
        { title: "From", cell: (one) => clock(one.from) },
        { title: "Length", num: true, cell: (one) => duration(one.to - one.from) },
      ],
    })),
  ];
}
