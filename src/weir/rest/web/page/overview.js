// The job at a glance.

import { linkTo } from "./addresses.js";
import { chart, window } from "./charts.js";
import { badge, bytes, card, cards, count, duration, h, moment, moments, panel, percent, rate, table } from "./dom.js";
import { driven } from "./jobs.js";

export const shareBar = (wide, one) => h("span", { class: "share", role: "img",
  "aria-label": `busy ${percent(one.busy)}, held by a full channel ${percent(one.held)}, rested ${percent(one.rested)}` },
wide(one.busy, { class: "busy" }), wide(one.held, { class: "held" }), wide(one.snapshot, { class: "snapshot" }));

export async function load({ figures, state }) {
  if (!state.live) return {};
  const [rates, story] = await Promise.all([figures("rates"), figures("story")]);
  return { rates, story };
}

export function checkpointCard(state) {
  const one = state.completed;
  if (!one) return card("Newest checkpoint", state.live ? "none yet" : "none", interval(state));
  const ended = one.triggered + one.durationMs;
  const late = state.live && state.live.intervalMs !== null && state.ended < 0
    && state.now - ended > Math.max(60_000, 5 * state.live.intervalMs);
  return card("Newest checkpoint", [`${duration(state.now - ended)} old `,
    late ? h("span", { class: "badge bad" }, "late") : null],
  [h("a", { href: linkTo("checkpoints", String(one.id)) }, `${one.isSavepoint ? "Savepoint" : "No."} ${one.id}`), ` took ${duration(one.durationMs)}; `,
    state.live ? `${count(state.completedCheckpoints)} completed, ${count(state.live.failedCheckpoints)} failed`
      : `${count(state.completedCheckpoints)} ${state.configured ? "completed" : "retained"}`]);
}

export function interval({ live }) {
  if (!live) return "";
  return live.intervalMs === null ? "periodic checkpoints are off" : `one every ${duration(live.intervalMs)}`;
}

// What of the job's records cannot be read, and who runs the job.
export const remarks = (state) => [
  state.damage.map((one) => h("p", { class: "why warn path" }, one)),
  state.driver ? driven(state.driver) : null,
];

export function render(state, { rates, story }, { wide, pointer }) {
  return [
    h("h1", {}, "Overview"),
    remarks(state),
    state.failure ? h("p", { class: "why warn" }, h("strong", {}, "Newest failure: "),
      state.failure.split("\n")[0].slice(0, 400), " ", h("a", { href: linkTo("exceptions") }, "More")) : null,
    state.savepoint ? h("p", { class: "why" }, "The job ended with the savepoint ", h("code", { class: "path" }, state.savepoint)) : null,
    cards(
      card("State", badge(state.status), `for ${duration(state.now - state.since)}`),
      card(state.ended < 0 ? "Uptime" : "From start to end", duration((state.ended < 0 ? state.now : state.ended) - state.started),
        ["since ", moment(state.started)]),
      state.live ? card("Restarts", count(state.live.restarts), `attempt ${state.attempt}`)
        : card("Attempt", count(state.attempt), "each start and each restart is one"),
      checkpointCard(state),
      state.live ? backlogCard(state) : null,
    ),
    state.live ? figures(state, rates, story, pointer) : null,
    state.vertices.length ? panel("Vertices", vertexTable(state, wide)) : null,
  ];
}

// What waits in channels, and in sources that say so.
function backlogCard({ vertices }) {
  const outputs = vertices.flatMap((one) => one.outputs);
  const segments = outputs.reduce((sum, one) => sum + one.segments, 0);
  const said = vertices.map((one) => one.live.pending).filter((one) => one !== null);
  const pending = said.reduce((sum, one) => sum + one, 0);
  return card("Backlog", segments ? `${count(segments)} segments` : pending ? `${count(pending)} records` : "none",
    [segments ? `${bytes(outputs.reduce((sum, one) => sum + one.bytes, 0))} wait in channels` : "nothing waits in channels",
      said.length ? `; ${count(pending)} records wait in sources` : ""]);
}

function figures(state, rates, story, pointer) {
  const base = { times: rates.times, now: state.now, span: window(rates.times, state.now) };
  return (
    h("div", { class: "two" },
      panel("Rows per second", chart({ ...base, title: "Rows in", values: rates.rowsIn,
        show: (value) => `${rate(value)}/s`, cursor: pointer("in") }),
      chart({ ...base, title: "Rows committed by sinks", values: rates.rowsCommitted,
        show: (value) => `${rate(value)}/s`, cursor: pointer("out") }),
      chart({ ...base, title: "Bytes waiting in channels", values: rates.backlog, show: bytes, kind: "held", cursor: pointer("backlog") })),
      panel("What happened last", story.moments.length ? moments(story.moments.slice(-14).reverse())
        : h("p", { class: "empty" }, "Nothing yet."),
      h("p", {}, h("a", { href: linkTo("timeline") }, "All of it, as a timeline")))));
}

export function vertexTable(state, wide, chosen) {
  return table({
    caption: state.live ? "Each vertex is one streaming query. Shares are of the last 30 seconds."
      : "Each vertex was one streaming query; this is what the newest checkpoint has of it.",
    rows: state.vertices, key: (one) => one.name,
    rowClass: (one) => (one.name === chosen ? "chosen" : null),
    columns: [
      { title: "Vertex", cell: (one) => h("a", { href: linkTo("graph", one.name) }, one.name) },
      ...(state.live ? liveColumns(state, wide) : [
        { title: "Chain", long: true, cell: (one) => one.chain.join(" → ") },
        { title: "State", num: true, cell: (one) => bytes(one.stateBytes) },
        { title: "Finished", cell: (one) => (one.status === "FINISHED" ? "yes" : "no") },
      ]),
    ],
  });
}

const liveColumns = (state, wide) => [
  { title: "State", cell: (one) => badge(one.status) },
  { title: "Now", cell: ({ live }) => (live.doing ? `${live.doing} for ${duration(live.doingFor)}` : "-") },
  { title: "Rows in", num: true, cell: ({ live }) => count(live.recordsIn) },
  { title: "Per second", num: true, cell: ({ live }) => rate(live.rateIn) },
  { title: "Committed", num: true, cell: ({ live }) => count(live.recordsCommitted) },
  { title: "Batch", num: true, cell: ({ live }) => (live.batches ? duration(live.batchMs) : "-") },
  { title: "Watermark behind", num: true,
    cell: ({ live }) => (live.watermark === null ? "-" : duration(Math.max(0, state.now - live.watermark))) },
  { title: "Busy", num: true, cell: ({ live }) => percent(live.busy) },
  { title: "Held", num: true, cell: ({ live }) => percent(live.held) },
  { title: "Rested", num: true, cell: ({ live }) => percent(live.rested) },
  { title: "Busy, held", cell: ({ live }) => shareBar(wide, live) },
];
