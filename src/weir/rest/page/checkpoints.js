// Checkpoints and savepoints: those in progress, the history, one in detail, and what a reader may ask for.

import { badge, bytes, card, cards, count, duration, h, moment, panel, table } from "./dom.js";
import { checkpointCard } from "./overview.js";

export async function load({ get, state, part }) {
  const base = `/jobs/${state.jobId}/checkpoints`;
  const ids = new Set(state.running.map((one) => one.id));
  if (part) ids.add(Number(part));
  const [history, config, ...details] = await Promise.all([
    get(base), get(`${base}/config`),
    ...[...ids].map((id) => get(`/weir/checkpoints/${id}`).catch((error) => {
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
    cards(checkpointCard(state),
      card("In progress", count(history.counts.in_progress), history.waits_because ?? (state.intervalMs === null ? "" : `one every ${duration(state.intervalMs)}`)),
      card("Completed", count(history.counts.completed), `${count(history.counts.failed)} failed`),
      card("Restored from", state.restoredFrom ? "a snapshot" : "nothing", state.restoredFrom ? h("span", { class: "path" }, state.restoredFrom) : "the job started without state")),
    history.latest_trigger_failure ? h("p", { class: "why warn" }, history.latest_trigger_failure) : null,
    chosen ? (chosen.missing ? h("p", { class: "why warn" }, chosen.missing) : detail(chosen, tools)) : null,
    running.map((one) => detail(one, tools)),
    panel("History", h("div", { class: "controls", hidden: history.history.length <= SHOWN },
      h("button", { "aria-pressed": String(everything), onclick: () => { everything = !everything; tools.redraw(); } },
        everything ? `Only the newest ${SHOWN}` : `All ${history.history.length}`)), table({
      caption: "Newest first; sizes are of the whole state, and of what the checkpoint wrote itself",
      rows: everything ? history.history : history.history.slice(0, SHOWN), key: (one) => one.id, empty: "No checkpoint has been triggered yet.",
      rowClass: (one) => (one.id === Number(tools.part) ? "chosen" : null),
      columns: [
        { title: "Checkpoint", cell: (one) => h("a", { href: `#/checkpoints/${one.id}` }, `${one.is_savepoint ? "Savepoint " : ""}${one.id}`) },
        { title: "Status", cell: (one) => [badge(one.status), one.discarded ? " subsumed" : ""] },
        { title: "Triggered", cell: (one) => moment(one.trigger_timestamp) },
        { title: "Acknowledged", num: true, cell: (one) => `${one.num_acknowledged_subtasks} of ${one.num_subtasks}` },
        { title: "Duration", num: true, cell: (one) => duration(one.end_to_end_duration) },
        { title: "Full size", num: true, cell: (one) => bytes(one.state_size) },
        { title: "Written", num: true, cell: (one) => bytes(one.checkpointed_size) },
        { title: "Path or failure", long: true, cell: (one) => one.failure_message ?? one.external_path ?? "" },
      ],
    })),
    h("div", { class: "two" }, panel("Summary", summary(history.summary)), panel("Configuration", configuration(config))),
    panel("Savepoints", table({
      caption: "Taken since this driver started", rows: savepoints, key: (one) => `savepoint ${one.id}`,
      empty: "None was taken since this driver started.",
      columns: [
        { title: "Savepoint", cell: (one) => h("a", { href: `#/checkpoints/${one.id}` }, String(one.id)) },
        { title: "Time", cell: (one) => moment(one.trigger_timestamp) },
        { title: "Size", num: true, cell: (one) => bytes(one.state_size) },
        { title: "Path", long: true, cell: (one) => h("code", { class: "path" }, one.external_path) },
      ],
    })),
  ];
}

function actions(state, { ask, mayChange }) {
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

function detail(one, { wide }) {
  const longest = Math.max(1, one.durationMs);
  const own = (task) => Math.max(task.catchUpMs, task.syncMs, task.asyncMs, task.isRoot ? task.startDelayMs : 0);
  const slowest = one.tasks.reduce((most, task) => (own(task) > own(most) ? task : most), one.tasks[0]);
  return panel(`${one.isSavepoint ? "Savepoint" : "Checkpoint"} ${one.id}`,
    h("p", {}, badge(one.status), " triggered ", moment(one.triggered), `, ${one.status === "IN_PROGRESS" ? "running for" : "took"} ${duration(one.durationMs)}, `,
      `${bytes(one.stateBytes)} of state, ${bytes(one.checkpointedBytes)} written. `,
      h("a", { href: `#/timeline?from=${one.triggered - 2000}&to=${one.triggered + one.durationMs + 4000}` }, "See it in the timeline")),
    one.failure ? h("p", { class: "why warn" }, one.failure) : null,
    one.why ? h("p", { class: "why" }, one.why) : null,
    one.path ? h("p", { class: "path" }, h("span", { class: "soft" }, "Path: "), h("code", {}, one.path)) : null,
    table({
      caption: "Task by task; the time before a task's first barrier belongs to tasks upstream of it",
      rows: one.tasks, key: (task) => task.vertex,
      rowClass: (task) => (task === slowest && own(task) > 0 && one.status !== "IN_PROGRESS" ? "slowest" : null),
      columns: [
        { title: "Task", cell: (task) => h("a", { href: `#/graph/${encodeURIComponent(task.vertex)}` }, task.vertex) },
        { title: "Progress", cell: (task) => task.progress },
        { title: "Total", num: true, cell: (task) => duration(task.totalMs) },
        { title: "Start delay", num: true, cell: (task) => duration(task.startDelayMs) },
        { title: "Missing barriers", num: true, cell: (task) => duration(task.barriersMs) },
        { title: "Reading to barrier", num: true, cell: (task) => duration(task.catchUpMs) },
        { title: "Sync", num: true, cell: (task) => duration(task.syncMs) },
        { title: "Async", num: true, cell: (task) => duration(task.asyncMs) },
        { title: "Commit", num: true, cell: (task) => duration(task.commitMs) },
        { title: "Batch", num: true, cell: (task) => (task.batchMs ? duration(task.batchMs) : "-") },
        { title: "State", num: true, cell: (task) => bytes(task.stateBytes) },
        { title: "Written", num: true, cell: (task) => bytes(task.checkpointedBytes) },
        { title: "In flight", num: true, cell: (task) => (task.unaligned ? bytes(task.persistedBytes) : "-") },
        { title: "As a picture", cell: (task) => h("span", { class: "phases", role: "img", "aria-label": PHASES.map(([name, kind]) => `${kind} ${duration(task[name])}`).join(", ") },
          PHASES.map(([name, kind]) => wide(task[name] / longest, { class: !task.isRoot && name === "startDelayMs" ? "k-delay" : `k-${kind}` }))) },
      ],
    }));
}

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
