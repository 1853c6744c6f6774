// The page: its views by address, figures once a second, and what the reader asks for.
//
// A driver has one job and all views of it. A history server has many jobs, and of each the views
// that are made of what its directory has.

import { address as named, linkTo } from "./addresses.js";
import { Refused, Unreachable, access, get, operate, send, token } from "./api.js";
import * as checkpoints from "./checkpoints.js";
import { h, show, tall, tone, wide } from "./dom.js";
import * as exceptions from "./exceptions.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import { configuration, coordinators, logs } from "./others.js";
import * as overview from "./overview.js";
import * as vertices from "./vertices.js";

const VIEWS = {
  overview: ["Overview", overview], graph: ["Graph", vertices], timeline: ["Timeline", history],
  checkpoints: ["Checkpoints", checkpoints], exceptions: ["Exceptions", exceptions], logs: ["Logs", logs],
  coordinators: ["Coordinators", coordinators], configuration: ["Configuration", configuration],
  jobs: ["Jobs", jobs],
};
// What no directory has, and why.
const UNKNOWN = {
  timeline: "What a task did, batch by batch, is known to the job's driver only, while it runs.",
  logs: "Logs are with the job's driver, and where it wrote them.",
};
const unknown = { load: async () => ({}), render: () => {
  const { view } = address();
  return [h("h1", {}, VIEWS[view][0]), h("p", { class: "empty" }, UNKNOWN[view])];
} };
// Of a job whose record cannot be read, nothing else is known.
const damaged = { render: (job) => [h("h1", {}, VIEWS[address().view][0]), overview.remarks(job)] };
const EVERY_MS = 1000;
const HIDDEN_MS = 10_000;
const LONGEST_WAIT_MS = 15_000;

const $ = (id) => document.getElementById(id);
const main = $("content");
let server = null;
let state = null;
let data = null;
let shown = "";
let shownPart = "";
let shownJob = "";
let failures = 0;
let lastSeen = 0;
let timer = null;
let loading = 0;
let tab = "";
const pointed = {};

// ---- addresses

function address() {
  const { job, view, part, query } = named();
  if (server?.history && !job) return { job, view: "jobs", part: "", query };
  return { job, view: VIEWS[view] && view !== "jobs" ? view : "overview", part, query };
}

const viewOf = (view) => (server?.history && UNKNOWN[view] ? unknown : VIEWS[view][1]);

// Who answers.
const who = () => (server?.history ? "history server" : "driver");

// Change the query of the address; null takes a parameter away.
function go(changes) {
  const { view, part, query } = address();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name); else query.set(name, value);
  }
  window.history.replaceState(null, "", linkTo(view, part, query));
  refresh();
}

// The views that there are: of the job, and in a history server the list of jobs.
function offered() {
  const { job } = address();
  const names = Object.keys(VIEWS).filter((name) => name !== "jobs");
  if (!server?.history) return names;
  return ["jobs", ...(job ? names.filter((name) => !UNKNOWN[name]) : [])];
}

function navigation() {
  const { view } = address();
  show($("views"), offered().map((name) => h("li", {},
    h("a", { href: name === "jobs" ? "#/" : linkTo(name), "aria-current": name === view ? "page" : null }, VIEWS[name][0]))));
  const current = document.querySelector("nav a[aria-current]");
  if (current && current.hash !== tab) {
    tab = current.hash;
    current.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  document.title = `${VIEWS[view][0]}${state?.name ? ` · ${state.name}` : ""} · Weir`;
}

// ---- drawing

function redraw() {
  if (!state) return;
  const { view, part, query } = address();
  $("job-name").textContent = state.name ?? "Weir history";
  $("job-state").textContent = state.status ?? "";
  $("job-state").className = `badge ${tone(state.status)}`;
  $("foot").textContent = `${state.jobId ? `Job ${state.jobId} · ` : ""}Weir ${state.version}`;
  if (data === null || shown !== view) return;
  const pointer = (name) => ({ at: pointed[name] ?? null, set: (at) => { pointed[name] = at; redraw(); } });
  const drawn = state.status === "DAMAGED" ? damaged : viewOf(view);
  show(main, drawn.render(state, data, { part, query, go, redraw, wide, tall, pointer, ask, send: sendRequest, mayChange: access.mayChange }));
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++loading;
  try {
    server ??= await get("/weir/jobs");
    if (mine !== loading) return;
    const { job, view, part, query } = address();
    prepare(job, view, part);
    const figures = (path, asked = {}) => {
      const query = new URLSearchParams(job ? { ...asked, job } : asked).toString();
      return get(`/weir/${path}${query ? `?${query}` : ""}`);
    };
    const newest = await (view === "jobs" ? get("/weir/jobs") : figures("state"));
    const loaded = await viewOf(view).load({ get, figures, state: newest, part, query });
    if (mine !== loading) return;
    state = newest;
    data = loaded;
    reached();
    redraw();
  } catch (error) {
    if (mine !== loading) return;
    if (!(error instanceof Refused || error instanceof Unreachable)) console.error(error);
    missed(error);
  }
  navigation();
  if (mine === loading && !$("token-dialog").open) timer = setTimeout(refresh, wait());
}

// Show where the reader is before the figures of a new view are there.
function prepare(job, view, part) {
  if (shownJob !== job) state = null;
  if (shown !== view || shownPart !== part || shownJob !== job) {
    // A view that can show something before its own figures are there says so.
    const early = shown === view && state ? viewOf(view).early ?? null : null;
    [data, shown, shownPart, shownJob] = [early, view, part, job];
    if (data) redraw();
    else show(main, h("h1", {}, VIEWS[view][0]), h("p", { class: "loading" }, `Asking the ${who()} ...`));
  }
  navigation();
}

function wait() {
  if (failures) return Math.min(LONGEST_WAIT_MS, 1000 * 2 ** (failures - 1));
  return document.hidden ? HIDDEN_MS : EVERY_MS;
}

// ---- a server that does not answer

function banner(text, calm) {
  const box = $("banner");
  if (box.textContent !== text) box.textContent = text;
  box.className = calm ? "calm" : "";
  box.hidden = !text;
}

function reached() {
  failures = 0;
  lastSeen = Date.now();
  document.body.classList.remove("stale");
  banner("", true);
}

function missed(error) {
  if (error instanceof Refused && error.status === 401) {
    askForToken(Boolean(token.get()));
    return;
  }
  failures += 1;
  if (error instanceof Refused) {
    banner(`The ${who()} refused to answer: ${error.message}`, false);
    if (data === null) show(main, h("h1", {}, VIEWS[address().view][0]), h("p", { class: "empty" }, error.message));
    return;
  }
  document.body.classList.add("stale");
  const ended = state && state.ended >= 0 ? ` The job was ${state.status}.` : "";
  const since = lastSeen ? ` What you see is from ${new Date(lastSeen).toLocaleTimeString("en-GB")}.` : "";
  banner(`The ${who()} does not answer.${ended}${since} Trying again every ${Math.round(wait() / 1000)} s.`, Boolean(ended));
  if (data === null) {
    show(main, h("h1", {}, VIEWS[address().view][0]),
      h("p", { class: "empty" }, `The ${who()} does not answer. This page goes on by itself when it does.`));
  }
}

function askForToken(wrong) {
  const dialog = $("token-dialog");
  if (dialog.open) return;
  if (wrong) {
    token.forget();
    $("token-why").textContent = "The driver does not take this token. It wants what rest.authentication.token or the file of rest.authentication.token-file says.";
  }
  if (data === null) show(main, h("h1", {}, VIEWS[address().view][0]), h("p", { class: "empty" }, "The driver wants its token first."));
  dialog.showModal();
}

$("token-form").addEventListener("submit", () => {
  token.set($("token").value.trim());
  $("token").value = "";
});
$("token-dialog").addEventListener("close", () => refresh());

// ---- what the reader asks for

const ACTIONS = {
  checkpoint: { title: "Take a checkpoint now?", yes: "Take a checkpoint",
    text: "The job goes on meanwhile. Its sinks commit when the checkpoint is complete." },
  savepoint: { title: "Take a savepoint?", yes: "Take a savepoint", path: true,
    text: "The job goes on. The savepoint is yours: Weir never deletes it by itself." },
  stop: { title: "Stop the job?", yes: "Stop the job", path: true,
    text: "Its queries end between two batches, with a savepoint. Open windows and timers stay in it; weir run --from-savepoint goes on from there." },
  drain: { title: "Drain and stop the job?", yes: "Drain and stop", path: true,
    text: "Every window and timer fires, and the job finishes with a savepoint. It cannot be resumed." },
  cancel: { title: "Cancel the job?", yes: "Cancel the job",
    text: "Nothing more is committed and no savepoint is taken. Rows since the newest checkpoint are not committed." },
};

let asked = "";

function ask(name) {
  asked = name;
  const action = ACTIONS[name];
  $("question-title").textContent = action.title;
  $("question-text").textContent = action.text;
  $("question-yes").textContent = action.yes;
  $("question-field").hidden = !action.path;
  $("question-path").value = "";
  $("question").returnValue = "";
  $("question").showModal();
  $("question-no").focus();
}

$("question-no").addEventListener("click", () => $("question").close());
$("question-form").addEventListener("submit", () => act(asked, $("question-path").value.trim() || null));

async function act(name, path) {
  const job = `/jobs/${state.jobId}`;
  const said = ACTIONS[name].title.replace("?", "");
  const note = notice(`${said}: asked the driver ...`);
  try {
    if (name === "cancel") {
      await send("PATCH", `${job}?mode=cancel`);
      note.end("The job is being cancelled.", "good");
    } else if (name === "checkpoint") {
      const taken = await operate(`${job}/checkpoints`, {}, `${job}/checkpoints`);
      note.end(`Checkpoint ${taken.checkpointId} is complete.`, "good");
    } else {
      const [where, body] = name === "savepoint" ? [`${job}/savepoints`, { "target-directory": path }]
        : [`${job}/stop`, { targetDirectory: path, drain: name === "drain" }];
      const taken = await operate(where, body, `${job}/savepoints`);
      note.end(`Savepoint: ${taken.location}`, "good");
    }
  } catch (error) {
    note.end(`${said}: ${error.message}`, "bad");
  }
  refresh();
}

async function sendRequest(operator, text) {
  let request;
  try {
    request = JSON.parse(text);
    if (request === null || typeof request !== "object" || Array.isArray(request)) throw new Error("it is not an object");
  } catch (error) {
    notice(`The request is not a JSON object: ${error.message}`).end(`The request is not a JSON object: ${error.message}`, "bad");
    return;
  }
  const note = notice(`Sent to ${operator}; the answer comes with the next completed checkpoint ...`);
  const path = `/jobs/${state.jobId}/coordinators/${encodeURIComponent(operator)}`;
  try {
    const answer = await operate(path, { request }, path);
    note.end(`${operator} answered ${JSON.stringify(answer.answer)}, in checkpoint ${answer.checkpointId}.`, "good");
  } catch (error) {
    note.end(`${operator}: ${error.message}`, "bad");
  }
  refresh();
}

function notice(text) {
  const words = h("p", {}, text);
  const box = h("div", { class: "notice" }, words, h("button", { "aria-label": "Hide this message", onclick: () => box.remove() }, "×"));
  $("notices").append(box);
  return { end(said, kind) { words.textContent = said; box.className = `notice ${kind}`; } };
}

// ---- start

window.addEventListener("hashchange", async () => {
  const { job, view, part } = address();
  const moved = shown !== view || shownJob !== job;
  await refresh();
  if (moved) { main.focus(); scrollTo(0, 0); }
  if (view === "graph" && part) document.getElementById("vertex-title")?.focus();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
