// The graph, and one vertex of it.

import { linkTo } from "./addresses.js";
import { chart, window } from "./charts.js";
import { badge, bytes, card, cards, count, duration, h, moment, panel, percent, rate, table } from "./dom.js";
import { failureList } from "./exceptions.js";
import { graph } from "./graph.js";
import { shareBar, vertexTable } from "./overview.js";

export async function load({ figures, state, part }) {
  if (!state.vertices.some((one) => one.name === part)) return {};
  const [detail, rates] = await Promise.all([
    figures(`vertices/${encodeURIComponent(part)}`), state.live ? figures("rates", { vertex: part }) : null]);
  return { detail, rates };
}

// What is drawn while the figures of another vertex are fetched.
export const early = {};

let zoom = null;

export function render(state, data, tools) {
  const chosen = tools.part;
  const one = state.vertices.find((vertex) => vertex.name === chosen);
  const zoomed = (factor) => () => {
    zoom = factor && Math.min(2, Math.max(0.3, (zoom ?? 1) * factor));
    tools.redraw();
  };
  return [
    h("h1", {}, "Graph"),
    h("div", { class: "controls" },
      h("span", { class: "soft" }, `${state.vertices.length} ${state.vertices.length === 1 ? "vertex" : "vertices"}, ${state.live ? "as weir plan cuts them" : "as the job last had them"}`),
      h("button", { onclick: zoomed(1 / 1.25), "aria-label": "Smaller" }, "−"),
      h("button", { onclick: zoomed(1.25), "aria-label": "Larger" }, "+"),
      h("button", { onclick: zoomed(null) }, "Fit")),
    graph(state, chosen, zoom, document.getElementById("content").clientWidth - 40),
    chosen ? (one ? vertex(state, one, data, tools) : h("p", { class: "why warn" }, `The job has no vertex ${chosen}.`))
      : h("p", { class: "soft" }, state.live ? "Choose a vertex for its chain, its state, its subtasks and its errors."
        : state.vertices.length ? "Choose a vertex for its chain and its state." : "No checkpoint can be read, which would name the vertices."),
    panel("Vertices", vertexTable(state, tools.wide, chosen)),
  ];
}

function vertex(state, one, { detail, rates }, { wide, tall, pointer }) {
  return h("section", { class: "panel", "data-key": `vertex ${one.name}`, "aria-labelledby": "vertex-title" },
    h("h2", { id: "vertex-title", tabindex: "-1" }, one.name, " ", badge(one.status)),
    h("p", {}, h("span", { class: "soft" }, "Chain: "), one.chain.join(" → ")),
    detail?.finding ? h("p", { class: "why warn" }, detail.finding) : null,
    cards(one.live ? liveCards(one.live, state.now, wide) : null,
      card("State", bytes(one.stateBytes), `in the newest checkpoint${one.live ? `; parallelism ${one.live.parallelism}` : ""}`)),
    one.inputs.length ? h("p", {}, h("span", { class: "soft" }, "Reads: "),
      one.inputs.map((name, index) => [index ? ", " : "", h("a", { href: linkTo("graph", name) }, name)])) : null,
    detail ? countedRows(detail.counted, "since the driver started") : null,
    one.outputs.length ? table({
      caption: one.live ? "In flight: what consumers have not read yet" : "In flight: what the checkpoint's barriers overtook", rows: one.outputs, key: (row) => row.consumer,
      columns: [
        { title: "Channel to", cell: (row) => row.consumer },
        { title: "Segments", num: true, cell: (row) => count(row.segments) },
        { title: "Bytes", num: true, cell: (row) => bytes(row.bytes) },
      ],
    }) : null,
    rates ? charts(rates, state.now, pointer) : null,
    detail ? [states(detail, tall), one.live ? [subtasks(detail), errors(detail)] : null] : h("p", { class: "loading" }, "Asking for more ..."));
}

const liveCards = (live, now, wide) => [
  card("Rows in", count(live.recordsIn), [`${rate(live.rateIn)} per second`, live.pending === null ? "" : `; ${count(live.pending)} wait in its sources`]),
  card("Committed", count(live.recordsCommitted), `${rate(live.rateCommitted)} per second`),
  card("Newest batch", live.batches ? duration(live.batchMs) : "-", `${count(live.batches)} batches since the driver started`),
  card("Watermark", live.watermark === null ? "none" : `${duration(Math.max(0, now - live.watermark))} behind`,
    [live.watermark === null ? "no event time" : moment(live.watermark), live.late ? `; ${count(live.late)} rows dropped as late` : ""]),
  card("Backpressure", `held ${percent(live.held)}`, [`busy ${percent(live.busy)}, rested ${percent(live.rested)} `, shareBar(wide, live)]),
];

function charts(rates, now, pointer) {
  const base = { times: rates.times, now, span: window(rates.times, now) };
  return h("div", { class: "two" },
    chart({ ...base, title: "Rows in", values: rates.rate, show: (value) => `${rate(value)}/s`, cursor: pointer("v-in") }),
    chart({ ...base, title: "Share of time busy", values: rates.busy, show: percent, top: 1, cursor: pointer("v-busy") }),
    chart({ ...base, title: "Share of time held", values: rates.held, show: percent, top: 1, kind: "held", cursor: pointer("v-held") }),
    chart({ ...base, title: "Watermark behind the clock", values: rates.lagMs, show: duration, kind: "lag", cursor: pointer("v-lag") }));
}

function states(detail, tall) {
  return [
    h("h3", {}, "State by operator"),
    table({
      caption: detail.checkpoint === null ? "No checkpoint has completed" : `In checkpoint ${detail.checkpoint}`,
      rows: detail.state, key: (row) => row.operator, empty: "The newest checkpoint has no state files of this vertex.",
      columns: [
        { title: "Operator", cell: (row) => row.operator },
        { title: "Size", num: true, cell: (row) => bytes(row.bytes) },
        { title: "Files", num: true, cell: (row) => count(row.files) },
        { title: "By partition", cell: (row) => {
          const most = Math.max(1, ...row.partitions);
          return row.partitions.length ? h("div", { class: "bars", role: "img",
            "aria-label": `${row.partitions.length} partitions, the largest ${bytes(most)}` },
          row.partitions.map((size) => tall(size / most, {}))) : "-";
        } },
      ],
    }),
    detail.engineState.length ? table({
      caption: "Held by Spark's stateful operators now", rows: detail.engineState,
      columns: [
        { title: "Operator", cell: (row) => row.name },
        { title: "Rows", num: true, cell: (row) => count(row.rows) },
        { title: "Memory", num: true, cell: (row) => bytes(row.bytes) },
      ],
    }) : null,
    detail.lags.length ? table({
      caption: "Partitions that its sources have not read up", rows: detail.lags, key: (row) => `${row.topic} ${row.partition}`,
      columns: [
        { title: "Topic", cell: (row) => row.topic },
        { title: "Partition", num: true, cell: (row) => row.partition },
        { title: "Records", num: true, cell: (row) => count(row.records) },
      ],
    }) : null,
  ];
}

export function countedRows(rows, when) {
  return rows.length ? table({
    caption: `Rows dropped as late, set aside, or against a rule, ${when}`, rows,
    key: (row) => `${row.by}/${row.kind}/${row.rule}`,
    columns: [
      { title: "Step or operator", cell: (row) => row.by },
      { title: "Rows that", cell: (row) => ({ late: "came late", rejected: "were set aside", broken: `broke "${row.rule}"` })[row.kind] },
      { title: "Rows", num: true, cell: (row) => count(row.rows) },
    ],
  }) : null;
}

function subtasks(detail) {
  const sinks = Object.entries(detail.stagingMs);
  const slowest = Math.max(0, ...detail.subtasks.map((row) => row.durationMs));
  return [
    h("h3", {}, "The newest batch"),
    sinks.length ? table({
      caption: "How long each sink staged it, the computation of its rows included", rows: sinks, key: ([name]) => name,
      columns: [
        { title: "Sink", cell: ([name]) => name },
        { title: "Time", num: true, cell: ([, ms]) => duration(ms) },
      ],
    }) : null,
    table({
      caption: detail.stage === null ? "Subtasks" : `Subtasks of its longest part (Spark's stage ${detail.stage})`,
      rows: detail.subtasks, key: (row) => row.index, empty: "Spark knows no tasks of the newest batch.",
      rowClass: (row) => (row.durationMs === slowest && detail.finding.startsWith("Subtask") ? "slowest" : null),
      columns: [
        { title: "Subtask", cell: (row) => String(row.index) },
        { title: "Time", num: true, cell: (row) => duration(row.durationMs) },
        { title: "Rows read", num: true, cell: (row) => count(row.rows) },
        { title: "Bytes read", num: true, cell: (row) => bytes(row.bytes) },
        { title: "State", cell: (row) => row.status.toLowerCase() },
        { title: "Host", cell: (row) => row.host },
      ],
    }),
  ];
}

const errors = (detail) => [
  h("h3", {}, "Last errors"),
  detail.failures.length ? failureList(detail.failures, true) : h("p", { class: "empty" }, "None since the driver started."),
];
