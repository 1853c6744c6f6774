// The jobs that a history server knows: how they stand, and which one to look at.

import { linkTo } from "./addresses.js";
import { badge, day, duration, h, moment, table } from "./dom.js";

const SHOWN = 100;

let everything = false;

export const load = async () => ({});

const driverLink = ({ host, address }) => (address
  ? h("a", { href: address, rel: "noopener noreferrer" }, `driver on ${host}`) : `driver on ${host}`);

// Where the job runs now, in a sentence.
export const driven = (driver) => h("p", { class: "why" },
  "It runs now, and only its driver can show what it does: ", driverLink(driver), ".");

export function render({ jobs }, _, { query, go, redraw }) {
  const wanted = (query.get("find") ?? "").toLowerCase();
  const found = jobs.filter((one) => `${one.name} ${one.id} ${one.status}`.toLowerCase().includes(wanted));
  const rows = everything ? found : found.slice(0, SHOWN);
  return [
    h("h1", {}, "Jobs"),
    h("div", { class: "controls" },
      h("label", {}, "Find ", h("input", { type: "search", id: "find", placeholder: "name, id or status", value: wanted, oninput: (event) => go({ find: event.target.value }) })),
      h("span", { class: "soft", role: "status" }, `${found.length} of ${jobs.length} ${jobs.length === 1 ? "job" : "jobs"}`),
      h("button", { hidden: found.length <= SHOWN, "aria-pressed": String(everything), onclick: () => { everything = !everything; redraw(); } },
        everything ? `Only the first ${SHOWN}` : `All ${found.length}`)),
    table({
      caption: "Damaged ones first, then the newest", rows, key: (one) => one.id,
      empty: jobs.length ? "No job has this name, id or status." : "No job has left a record in this directory.",
      columns: [
        { title: "Job", cell: (one) => h("span", {}, h("a", { href: linkTo("overview", "", {}, one.id) }, one.name), h("small", { class: "soft" }, ` ${one.id.slice(0, 6)}`)) },
        { title: "State", cell: (one) => h("span", {}, badge(one.status), one.driver ? [" ", driverLink(one.driver)] : null) },
        { title: "Started", cell: (one) => (one.started === null ? "-" : moment(one.started)) },
        { title: "Ended", cell: (one) => (one.started === null ? "-" : one.ended < 0 ? "runs" : moment(one.ended)) },
        { title: "Newest checkpoint", cell: (one) => (one.checkpoint === null ? "-" : h("span", {},
          h("a", { href: linkTo("checkpoints", String(one.checkpoint), {}, one.id), "aria-label": `Checkpoint ${one.checkpoint} of ${one.name}` }, `No. ${one.checkpoint}`),
          one.checkpointed === null ? "" : `, ${duration(Math.max(0, Date.now() - one.checkpointed))} old`)) },
        { title: "Problem", long: true, cell: (one) => one.problem },
      ],
    }),
  ];
}
