// Elements from functions, patched into the page in place: what the reader has focused, opened,
// typed or scrolled stays as it is when new figures come.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  node.$on = {};
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.$on[name.slice(2)] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : String(child));
  }
  for (const type of Object.keys(node.$on)) listen(node, type);
  return node;
}

// One listener for each type, which looks up what the newest rendering wants.
function listen(node, type) {
  node.$listens ??= new Set();
  if (node.$listens.has(type)) return;
  node.$listens.add(type);
  node.addEventListener(type, (event) => node.$on[type]?.(event));
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// An element whose width is a share of its parent's. Set by the DOM: the policy allows no style
// attributes.
export function wide(share, attributes, ...children) {
  const node = h("i", attributes, ...children);
  node.$width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  node.style.width = node.$width;
  return node;
}

export function tall(share, attributes) {
  const node = h("i", attributes);
  node.$height = `${Math.max(0, Math.min(1, share)) * 100}%`;
  node.style.height = node.$height;
  return node;
}

const KEPT = { DETAILS: ["open"], DIALOG: ["open"], INPUT: ["value"], TEXTAREA: ["value"] };

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName
    && (one.dataset?.key ?? "") === (other.dataset?.key ?? "");
}

// Make `old` look like `wanted`.
function patch(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  const kept = KEPT[old.nodeName] ?? [];
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "style" && !kept.includes(name)) {
      old.removeAttribute(name);
    }
  }
  for (const { name, value } of wanted.attributes) {
    if (name !== "style" && !kept.includes(name) && old.getAttribute(name) !== value) {
      old.setAttribute(name, value);
    }
  }
  if (wanted.$width && old.style.width !== wanted.$width) old.style.width = wanted.$width;
  if (wanted.$height && old.style.height !== wanted.$height) old.style.height = wanted.$height;
  old.$on = wanted.$on ?? {};
  for (const type of Object.keys(old.$on)) listen(old, type);
  patchChildren(old, [...wanted.childNodes]);
}

function patchChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let next = parent.firstChild;
  for (const child of wanted) {
    const key = child.dataset?.key;
    const known = key ? keyed.get(key) : next;
    if (known && same(known, child) && (key || !known.dataset?.key)) {
      if (known === next) next = next.nextSibling;
      else parent.insertBefore(known, next);
      patch(known, child);
    } else {
      parent.insertBefore(child, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

export function show(container, ...children) {
  const shell = fill(container.cloneNode(false), {}, children);
  patchChildren(container, [...shell.childNodes]);
}

// ---- words and numbers

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => whole.format(value);

export function rate(value) {
  if (value >= 100_000) return `${fine.format(value / 1000)} k`;
  return value >= 10 || value === 0 ? whole.format(value) : fine.format(value);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit && value < 100 ? fine.format(value) : whole.format(value)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || ms < 0) return "-";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${fine.format(ms / 1000)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(ms) {
  const date = new Date(ms);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function day(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

export const moment = (ms) => h("time", { datetime: new Date(ms).toISOString() },
  day(ms) === day(Date.now()) ? clock(ms) : `${day(ms)} ${clock(ms)}`);

export const percent = (share) => `${Math.round(share * 100)} %`;

const TONES = {
  RUNNING: "good", COMPLETED: "good", FINISHED: "good", FAILED: "bad", FAILING: "bad", DAMAGED: "bad",
  RESTARTING: "warn", CANCELED: "warn", CANCELLING: "warn", SUSPENDED: "warn",
  IN_PROGRESS: "info", INITIALIZING: "info", WAITING_FOR_FINAL_CHECKPOINT: "info",
};

export const tone = (status) => TONES[status] ?? "";

export const badge = (status) =>
  h("span", { class: `badge ${tone(status)}` }, status.replaceAll("_", " "));

// A table with a caption and headers. Columns: {title, cell(row), num, long, rare}; the first is
// the row's header. A narrow screen leaves out the zeros of columns that are rarely more.
export function table({ caption, columns, rows, key, rowClass, empty }) {
  if (!rows.length) return h("p", { class: "empty" }, empty ?? "Nothing yet.");
  // Roles are written out, since a narrow screen shows rows as cards, not as a table.
  return h("div", { class: "scroll" }, h("table", { class: "wide-table", role: "table" },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((one) =>
      h("th", { scope: "col", role: "columnheader", class: one.num ? "num" : null }, one.title)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", {
      "data-key": key?.(row), class: rowClass?.(row), role: "row",
    },
      columns.map((one, index) => tableCell(one, index, one.cell(row))))))));
}

function tableCell(column, index, content) {
  const nothing = content === "-" || (column.rare && ["0 ms", "0 B"].includes(content));
  return h(index ? "td" : "th", {
    scope: index ? null : "row",
    role: index ? "cell" : "rowheader",
    class: [column.num && "num", column.long && "long", nothing && "nothing"].filter(Boolean).join(" ") || null,
    "data-label": column.title,
  }, content);
}

export const card = (title, value, detail) => h("div", {},
  h("dt", {}, title), h("dd", {}, value, detail ? h("small", {}, detail) : null));

export const cards = (...children) => h("dl", { class: "cards" }, children);

export const panel = (title, ...children) =>
  h("section", { class: "panel", "data-key": `panel ${title}` }, h("h2", {}, title), children);

export const moments = (list) => h("ol", { class: "moments" }, list.map((one) =>
  h("li", { "data-key": String(one.number) }, moment(one.time),
    h("span", { class: one.kind }, one.text))));
