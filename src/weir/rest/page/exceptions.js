// Failures: what, where, why, what came of it, and what happened before.

import { duration, h, moment, moments } from "./dom.js";

export const load = async ({ get }) => get("/weir/failures");

export const render = (state, data) => [
  h("h1", {}, "Exceptions"),
  data.failures.length ? failureList(data.failures)
    : h("p", { class: "empty" }, "Nothing has failed since the driver started."),
];

export const failureList = (failures) => failures.map((one) => {
  const [first, ...rest] = one.message.split("\n");
  return h("article", { class: "panel", "data-key": `failure ${one.time}` },
    h("h2", {}, moment(one.time), " ", one.vertex ? `Task ${one.vertex}` : "The job",
      `, attempt ${one.attempt}`),
    h("p", { class: "path" }, h("strong", {}, first)),
    rest.length ? h("pre", { tabindex: "0" }, rest.join("\n")) : null,
    h("p", {}, one.outcome || "The tasks are being stopped.", " ", one.recovered
      ? ["It ran again at ", moment(one.recovered), `, ${duration(one.recovered - one.time)} later.`] : null),
    one.trace ? h("details", {}, h("summary", {}, "Stack trace"), h("pre", { tabindex: "0" }, one.trace)) : null,
    h("details", {}, h("summary", {}, "The story before it"), moments(one.story)),
    h("p", {}, h("a", { href: `#/timeline?at=${one.time}` }, "See it in the timeline"), " · ",
      h("a", { href: one.vertex ? `#/logs?task=${encodeURIComponent(one.vertex)}` : "#/logs" }, "Logs")));
});
