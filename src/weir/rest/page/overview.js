// The job at a glance.

import { chart, window } from "./charts.js";
import { badge, bytes, card, cards, count, duration, h, moment, moments, panel, percent, rate, table } from "./dom.js";

export const shareBar = (wide, one) => h("span", { class: "share", role: "img",
  "aria-label": `busy ${percent(one.busy)}, held by a full channel ${percent(one.held)}, rested ${percent(one.rested)}` },
wide(one.busy, { class: "busy" }), wide(one.held, { class: "held" }), wide(one.snapshot, { class: "snapshot" }));

export async function load({ get }) {
  const [rates, story] = await Promise.all([get("/weir/rates"), get("/weir/story")]);
  return { rates, story };
}

export function checkpointCard(state) {
  const one = state.completed;
  if (!one) {
    return card("Newest checkpoint", "none yet", state.intervalMs === null
      ? "periodic checkpoints are off" : `one every ${duration(state.intervalMs)}`);
  }
  const ended = one.triggered + one.durationMs;
  const late = state.intervalMs !== null && state.ended < 0
    && state.now - ended > Math.max(60_000, 5 * state.intervalMs);
  return card("Newest checkpoint", [`${duration(state.now - ended)} old `,
    late ? h("span", { class: "badge bad" }, "late") : null],
  [h("a", { href: `#/checkpoints/${one.id}` }, `No. ${one.id}`), ` took ${duration(one.durationMs)}; `,
    `${count(state.completedCheckpoints)} completed, ${count(state.failedCheckpoints)} failed`]);
}

export function render(state, { rates, story }, { wide, pointer }) {
  const span = window(rates.times, state.now);
  const backlog = state.vertices.flatMap((one) => one.outputs);
  const waiting = backlog.reduce((sum, one) => sum + one.segments, 0);
  const base = { times: rates.times, now: state.now, span };
  return [
    h("h1", {}, "Overview"),
    state.failure ? h("p", { class: "why warn" }, h("strong", {}, "Newest failure: "),
      state.failure.split("\n")[0].slice(0, 400), " ", h("a", { href: "#/exceptions" }, "More")) : null,
    state.savepoint ? h("p", { class: "why" }, "The job ended with the savepoint ", h("code", { class: "path" }, state.savepoint)) : null,
    cards(
      card("State", badge(state.status), `for ${duration(state.now - state.since)}`),
      card("Uptime", duration((state.ended < 0 ? state.now : state.ended) - state.started),
        ["since ", moment(state.started)]),
      card("Restarts", count(state.restarts), `attempt ${state.attempt}`),
      checkpointCard(state),
      card("Backlog", waiting ? `${count(waiting)} segments` : "none",
        waiting ? `${bytes(backlog.reduce((sum, one) => sum + one.bytes, 0))} wait in channels` : "nothing waits in channels"),
    ),
    h("div", { class: "two" },
      panel("Rows per second", chart({ ...base, title: "Rows in", values: rates.rowsIn,
        show: (value) => `${rate(value)}/s`, cursor: pointer("in") }),
      chart({ ...base, title: "Rows committed by sinks", values: rates.rowsCommitted,
        show: (value) => `${rate(value)}/s`, cursor: pointer("out") }),
      chart({ ...base, title: "Bytes waiting in channels", values: rates.backlog, show: bytes, kind: "held", cursor: pointer("backlog") })),
      panel("What happened last", story.moments.length ? moments(story.moments.slice(-14).reverse())
        : h("p", { class: "empty" }, "Nothing yet."),
      h("p", {}, h("a", { href: "#/timeline" }, "All of it, as a timeline")))),
    panel("Vertices", vertexTable(state, wide)),
  ];
}

export function vertexTable(state, wide, chosen) {
  return table({
    caption: "Each vertex is one streaming query. Shares are of the last 30 seconds.",
    rows: state.vertices, key: (one) => one.name,
    rowClass: (one) => (one.name === chosen ? "chosen" : null),
    columns: [
      { title: "Vertex", cell: (one) => h("a", { href: `#/graph/${encodeURIComponent(one.name)}` }, one.name) },
      { title: "State", cell: (one) => badge(one.status) },
      { title: "Now", cell: (one) => (one.doing ? `${one.doing} for ${duration(one.doingFor)}` : "-") },
      { title: "Rows in", num: true, cell: (one) => count(one.recordsIn) },
      { title: "Per second", num: true, cell: (one) => rate(one.rateIn) },
      { title: "Committed", num: true, cell: (one) => count(one.recordsCommitted) },
      { title: "Batch", num: true, cell: (one) => (one.batches ? duration(one.batchMs) : "-") },
      { title: "Watermark behind", num: true,
        cell: (one) => (one.watermark === null ? "-" : duration(Math.max(0, state.now - one.watermark))) },
      { title: "Busy", num: true, cell: (one) => percent(one.busy) },
      { title: "Held", num: true, cell: (one) => percent(one.held) },
      { title: "Rested", num: true, cell: (one) => percent(one.rested) },
      { title: "Busy, held", cell: (one) => shareBar(wide, one) },
    ],
  });
}
