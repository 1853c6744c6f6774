// Checkpoints and savepoints: those in progress, the history, one in detail, and what a reader may ask for.

import { linkTo } from "./addresses.js";
import { badge, bytes, card, cards, count, duration, h, moment, panel, table } from "./dom.js";
import { checkpointCard, interval, remarks } from "./overview.js";
import { countedRows } from "./vertices.js";

export async function load({ get, figures, state, part }) {
  const base = `/jobs/${state.jobId}/checkpoints`;
  const ids = new Set(state.live?.running.map((one) => one.id));
  if (part) ids.add(Number(part));
  const [history, config, ...details] = await Promise.all([
    get(base), state.configured ? get(`${base}/config`) : null,
    ...[...ids].map((id) => figures(`checkpoints/${id}`).catch((error) => {
      if (error.status === 404 || error.status === 400) return { id, missing: error.message };
      throw error;
    })),
  ]);
  return { history, config, details };
}

const FOREVER = 2 ** 53;
const SHOWN = 12;

let everything = false;

export function render(state, { history, config, details }, tools) {
  const chosen = tools.part ? details.find((one) => one.id === Number(tools.part)) : null;
  const running = details.filter((one) => one !== chosen && one.status === "IN_PROGRESS");
  const savepoints = history.history.filter((one) => one.is_savepoint && one.external_path);
  return [
    h("h1", {}, "Checkpoints"),
    actions(state, tools),
    remarks(state),
    cards(checkpointCard(state), state.live ? liveCards(state, history) : null),
    history.latest_trigger_failure ? h("p", { class: "why warn" }, history.latest_trigger_failure) : null,
    chosen ? (chosen.missing ? h("p", { class: "why warn" }, chosen.missing) : detail(chosen, state.live, tools)) : null,
    running.map((one) => detail(one, state.live, tools)),
    panel("History", h("div", { class: "controls", hidden: history.history.length <= SHOWN },
      h("button", { "aria-pressed": String(everything), onclick: () => { everything = !everything; tools.redraw(); } },
        everything ? `Only the newest ${SHOWN}` : `All ${history.history.length}`)), table({
      caption: state.live ? "Newest first; sizes are of the whole state, and of what the checkpoint wrote itself"
        : "Those that the job retained or its driver still knew, newest first; sizes are of the whole state",
      rows: everything ? history.history : history.history.slice(0, SHOWN), key: (one) => one.id,
      empty: state.live ? "No checkpoint has been triggered yet." : "The job has no checkpoint that can be read.",
      rowClass: (one) => (one.id === Number(tools.part) ? "chosen" : null),
      columns: [
        { title: "Checkpoint", cell: (one) => h("a", { href: linkTo("checkpoints", String(one.id)) }, `${one.is_savepoint ? "Savepoint " : ""}${one.id}`) },
        { title: "Status", cell: (one) => [badge(one.status), one.discarded ? " subsumed" : ""] },
        { title: "Triggered", cell: (one) => moment(one.trigger_timestamp) },
        state.live && { title: "Acknowledged", num: true, cell: (one) => `${one.num_acknowledged_subtasks} of ${one.num_subtasks}` },
        { title: "Duration", num: true, cell: (one) => duration(one.end_to_end_duration) },
        { title: "Full size", num: true, cell: (one) => bytes(one.state_size) },
        state.live && { title: "Written", num: true, cell: (one) => bytes(one.checkpointed_size) },
        { title: "Path or failure", long: true, cell: (one) => one.failure_message ?? one.external_path ?? "" },
      ].filter(Boolean),
    })),
    config ? h("div", { class: "two" }, panel("Summary", summary(history.summary)), panel("Configuration", configuration(config))) : null,
    panel("Savepoints", table({
      caption: state.live ? "Taken since this driver started" : "With which the job ended", rows: savepoints, key: (one) => `savepoint ${one.id}`,
      empty: state.live ? "None was taken since this driver started."
        : "The job did not end with one; those that were taken meanwhile are not in its records.",
      columns: [
        { title: "Savepoint", cell: (one) => h("a", { href: linkTo("checkpoints", String(one.id)) }, String(one.id)) },
        { title: "Time", cell: (one) => moment(one.trigger_timestamp) },
        { title: "Size", num: true, cell: (one) => bytes(one.state_size) },
        { title: "Path", long: true, cell: (one) => h("code", { class: "path" }, one.external_path) },
      ],
    })),
  ];
}

const liveCards = ({ live }, history) => [
  card("In progress", count(history.counts.in_progress), history.waits_because ?? (live.intervalMs === null ? "" : interval({ live }))),
  card("Completed", count(history.counts.completed), `${count(history.counts.failed)} failed`),
  card("Restored from", live.restoredFrom ? "a snapshot" : "nothing", live.restoredFrom ? h("span", { class: "path" }, live.restoredFrom) : "the job started without state"),
];

function actions(state, { ask, mayChange }) {
  if (!state.live) return null;
  if (!mayChange) return h("p", { class: "soft" }, "Your token lets you look, not change the job.");
  if (state.ended >= 0 || ["FINISHED", "FAILED", "CANCELED", "SUSPENDED"].includes(state.status)) {
    return h("p", { class: "soft" }, "The job has ended: nothing can be triggered.");
  }
  const button = (name, text, kind) => h("button", { class: kind, id: `do-${name}`, onclick: () => ask(name) }, text);
  return h("div", { class: "controls", role: "group", "aria-label": "What you may ask for" },
    button("checkpoint", "Checkpoint now"), button("savepoint", "Savepoint"),
    button("stop", "Stop with savepoint", "danger"), button("drain", "Drain and stop", "danger"), button("cancel", "Cancel", "danger"));
}

const PHASES = [["startDelayMs", "wait"], ["barriersMs", "alignment"], ["catchUpMs", "catch-up"], ["syncMs", "sync"], ["asyncMs", "async"]];

function detail(one, live, { wide }) {
  const own = ({ live }) => (live ? Math.max(live.catchUpMs, live.syncMs, live.asyncMs, live.isRoot ? live.startDelayMs : 0) : 0);
  const slowest = one.tasks.reduce((most, task) => (own(task) > own(most) ? task : most), one.tasks[0]);
  return panel(`${one.isSavepoint ? "Savepoint" : "Checkpoint"} ${one.id}`,
    h("p", {}, badge(one.status), " triggered ", moment(one.triggered), `, ${one.status === "IN_PROGRESS" ? "running for" : "took"} ${duration(one.durationMs)}, `,
      `${bytes(one.stateBytes)} of state${one.checkpointedBytes === null ? "" : `, ${bytes(one.checkpointedBytes)} written`}. `,
      live ? h("a", { href: linkTo("timeline", "", { from: one.triggered - 2000, to: one.triggered + one.durationMs + 4000 }) }, "See it in the timeline") : null),
    one.failure ? h("p", { class: "why warn" }, one.failure) : null,
    one.why ? h("p", { class: "why" }, one.why) : null,
    one.path ? h("p", { class: "path" }, h("span", { class: "soft" }, "Path: "), h("code", {}, one.path)) : null,
    table({
      caption: live ? "Task by task; the time before a task's first barrier belongs to tasks upstream of it" : "Task by task",
      rows: one.tasks, key: (task) => task.vertex,
      rowClass: (task) => (task === slowest && own(task) > 0 && one.status !== "IN_PROGRESS" ? "slowest" : null),
      columns: [
        { title: "Task", cell: (task) => h("a", { href: linkTo("graph", task.vertex) }, task.vertex) },
        ...(live ? TIMES : []),
        { title: "State", num: true, cell: (task) => bytes(task.stateBytes) },
        ...(live ? [
          { title: "Written", num: true, rare: true, cell: (task) => bytes(task.live.checkpointedBytes) },
          { title: "In flight", num: true, rare: true, cell: (task) => (task.live.unaligned ? bytes(task.live.persistedBytes) : "-") },
          { title: "As a picture", cell: (task) => picture(task.live, Math.max(1, one.durationMs), wide) },
        ] : []),
      ],
    }),
    countedRows(one.tasks.flatMap((task) => (task.live ? task.live.counted : [])), "in its batches"));
}

const TIMES = [
  { title: "Progress", cell: ({ live }) => live.progress },
  { title: "Total", num: true, cell: ({ live }) => duration(live.totalMs) },
  { title: "Start delay", num: true, rare: true, cell: ({ live }) => duration(live.startDelayMs) },
  { title: "Missing barriers", num: true, rare: true, cell: ({ live }) => duration(live.barriersMs) },
  { title: "Reading to barrier", num: true, rare: true, cell: ({ live }) => duration(live.catchUpMs) },
  { title: "Sync", num: true, rare: true, cell: ({ live }) => duration(live.syncMs) },
  { title: "Async", num: true, rare: true, cell: ({ live }) => duration(live.asyncMs) },
  { title: "Commit", num: true, rare: true, cell: ({ live }) => duration(live.commitMs) },
  { title: "Batch", num: true, cell: ({ live }) => (live.batchMs ? duration(live.batchMs) : "-") },
];

const picture = (live, longest, wide) => h("span", { class: "phases", role: "img", "aria-label": PHASES.map(([name, kind]) => `${kind} ${duration(live[name])}`).join(", ") },
  PHASES.map(([name, kind]) => wide(live[name] / longest, { class: !live.isRoot && name === "startDelayMs" ? "k-delay" : `k-${kind}` })));

function summary(data) {
  const rows = [["Duration", data.end_to_end_duration, duration], ["Full size", data.state_size, bytes], ["Written", data.checkpointed_size, bytes]]
    .filter(([, figures]) => figures);
  const column = (title, name) => ({ title, num: true, cell: ([, figures, write]) => write(Number(figures[name])) });
  return table({
    caption: "Of the completed ones since this driver started", rows: data.end_to_end_duration?.max ? rows : [], key: ([name]) => name,
    empty: "No checkpoint has completed yet.",
    columns: [{ title: "Figure", cell: ([name]) => name }, column("Min", "min"), column("Average", "avg"), column("p50", "p50"),
      column("p90", "p90"), column("p99", "p99"), column("Max", "max")],
  });
}

function configuration(config) {
  const rows = [
    ["Interval", config.interval > FOREVER ? "periodic checkpoints are off" : duration(config.interval)],
    ["Timeout", duration(config.timeout)], ["Minimum pause", duration(config.min_pause)],
    ["At the same time", String(config.max_concurrent)],
    ["Unaligned", config.unaligned_checkpoints ? "yes" : "no"],
    ["Tolerable failures", String(config.tolerable_failed_checkpoints)],
    ["Kept after the end", config.externalization.enabled ? (config.externalization.delete_on_cancellation ? "yes, but not after a cancel" : "yes") : "no"],
  ];
  return table({ caption: "In force", rows, key: ([name]) => name, columns: [{ title: "Setting", cell: ([name]) => name }, { title: "Value", cell: ([, value]) => value }] });
}
