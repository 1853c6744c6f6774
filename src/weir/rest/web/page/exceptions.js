// Failures: what, where, why, what came of it, and what happened before.

import { linkTo } from "./addresses.js";
import { duration, h, moment, moments } from "./dom.js";

export const load = async ({ figures }) => figures("failures");

export const render = (state, data) => [
  h("h1", {}, "Exceptions"),
  data.failures.length ? failureList(data.failures, state.live)
    : h("p", { class: "empty" }, state.live ? "Nothing has failed since the driver started."
      : "The job's records name no failure: it did not fail for good."),
];

// `live`: whether the timeline and the logs are there.
export const failureList = (failures, live) => failures.map((one) => {
  const [first, ...rest] = one.message.split("\n");
  return h("article", { class: "panel", "data-key": `failure ${one.time}` },
    h("h2", {}, moment(one.time), " ", one.vertex ? `Task ${one.vertex}` : "The job",
      `, attempt ${one.attempt}`),
    h("p", { class: "path" }, h("strong", {}, first)),
    rest.length ? h("pre", { tabindex: "0" }, rest.join("\n")) : null,
    h("p", {}, one.outcome || "The tasks are being stopped.", " ", one.recovered
      ? ["It ran again at ", moment(one.recovered), `, ${duration(one.recovered - one.time)} later.`] : null),
    one.trace ? h("details", {}, h("summary", {}, "Stack trace"), h("pre", { tabindex: "0" }, one.trace)) : null,
    one.story.length ? h("details", {}, h("summary", {}, "The story before it"), moments(one.story)) : null,
    live ? h("p", {}, h("a", { href: linkTo("timeline", "", { at: one.time }) }, "See it in the timeline"), " · ",
      h("a", { href: linkTo("logs", "", one.vertex ? { task: one.vertex } : {}) }, "Logs")) : null);
});
