// Configuration, logs and coordinators.

import { linkTo } from "./addresses.js";
import { clock, h, panel, table } from "./dom.js";

export const configuration = {
  load: async ({ get, state }) => (state.configured ? get(`/jobs/${state.jobId}/config`) : {}),
  render(state, data, { query, go }) {
    if (!state.configured) return [h("h1", {}, "Configuration"), h("p", { class: "empty" }, "It is not known: the job's driver left no archive.")];
    const wanted = (query.get("find") ?? "").toLowerCase();
    const rows = Object.entries(data["execution-config"]["user-config"]).sort()
      .filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(wanted));
    return [
      h("h1", {}, "Configuration"),
      h("div", { class: "controls" }, h("label", {}, "Find ", h("input", {
        type: "search", id: "find", value: wanted, oninput: (event) => go({ find: event.target.value }) }))),
      panel("In force", table({
        caption: "Every key with its value, defaults included; secrets are hidden", rows, key: ([name]) => name, empty: "No key or value has this text.",
        columns: [{ title: "Key", cell: ([name]) => h("code", {}, name) }, { title: "Value", long: true, cell: ([, value]) => value || "(not set)" }],
      })),
      h("p", { class: "soft" }, `Job ${state.name}, id ${state.jobId}, Weir ${state.version}`),
    ];
  },
};

export const logs = {
  load: async ({ figures, query }) => figures("logs", {
    source: query.get("source") ?? "driver", ...(query.get("task") ? { task: query.get("task") } : {}) }),
  render(state, data, { query, go }) {
    const source = query.get("source") ?? "driver";
    const task = query.get("task") ?? "";
    return [
      h("h1", {}, "Logs"),
      h("div", { class: "controls" },
        h("label", {}, "Log of ", h("select", { id: "source", onchange: (event) => go({ source: event.target.value }) },
          ["driver", "spark"].map((name) => h("option", { value: name, selected: name === source }, name === "driver" ? "the driver" : "Spark")))),
        h("label", {}, "Task ", h("select", { id: "task", onchange: (event) => go({ task: event.target.value }) },
          h("option", { value: "", selected: !task }, "all"),
          state.vertices.map((one) => h("option", { value: one.name, selected: one.name === task }, one.name))))),
      data.path ? h("p", { class: "soft path" }, "The newest 500 lines of ", h("code", {}, data.path))
        : h("p", { class: "soft" }, source === "spark" ? "Spark writes no log of its own here." : "The newest 500 lines."),
      h("div", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log, newest first", "data-key": `log ${source} ${task}` },
        data.lines.length ? [...data.lines].reverse().map((one) => h("p", { "data-key": `${one.number}:${one.time}`, class: one.level },
          `${one.time < 0 ? "" : clock(one.time)} ${one.level} ${one.logger}${one.task ? ` [${one.task}]` : ""} ${one.text}`))
          : h("p", { class: "empty" }, task ? `No line is of task ${task}.` : "Nothing was logged yet.")),
    ];
  },
};

export const coordinators = {
  load: async ({ figures }) => figures("coordinators"),
  render: (state, data, { send, mayChange }) => [
    h("h1", {}, "Coordinators"),
    data.coordinators.length ? data.coordinators.map((one) => h("section", { class: "panel", "data-key": one.operator },
      h("h2", {}, one.operator),
      h("p", {}, state.live ? "Runs in the driver for " : "It coordinates ", h("a", { href: linkTo("graph", one.vertex) }, `task ${one.vertex}`), state.live ? `, with ${one.parallelism} subtasks.` : "."),
      h("h3", {}, data.checkpoint === null ? "Its state: no checkpoint has completed yet" : `Its state in checkpoint ${data.checkpoint}`),
      h("pre", { tabindex: "0" }, one.state === null ? "none" : JSON.stringify(one.state, null, 2)),
      !state.live ? null : !mayChange ? h("p", { class: "soft" }, "Your token lets you look, not send to coordinators.") : h("form", { onsubmit: (event) => { event.preventDefault(); send(one.operator, event.target.elements.request.value); } },
        h("label", {}, `Request for ${one.operator}, as JSON (like weir send)`,
          h("textarea", { name: "request", spellcheck: "false", required: true }, "")),
        h("p", { class: "buttons" }, h("button", { class: "primary" }, "Send"),
          h("span", { class: "soft" }, "The answer comes once a completed checkpoint contains the change.")))))
      : h("p", { class: "empty" }, state.live ? "No operator of this job has a coordinator." : "The newest checkpoint has no state of a coordinator."),
  ],
};
