// The job's graph in layers, from sources at the left to sinks at the right.

import { linkTo } from "./addresses.js";
import { bytes, duration, h, percent, rate, s } from "./dom.js";

const LARGE = { width: 232, height: 120, gapX: 90, gapY: 26, compact: false };
const COMPACT = { width: 186, height: 58, gapX: 64, gapY: 16, compact: true };
const MARGIN = 20;

// Where each vertex is drawn. A layer with very many is folded into several columns.
export function layout(vertices) {
  const size = vertices.length > 10 ? COMPACT : LARGE;
  const byName = new Map(vertices.map((one) => [one.name, one]));
  const layerOf = new Map();
  const layer = (name) => {
    if (!layerOf.has(name)) {
      layerOf.set(name, 0);
      const inputs = byName.get(name)?.inputs ?? [];
      layerOf.set(name, inputs.length ? 1 + Math.max(...inputs.map(layer)) : 0);
    }
    return layerOf.get(name);
  };
  vertices.forEach((one) => layer(one.name));
  const layers = [];
  for (const one of vertices) (layers[layerOf.get(one.name)] ??= []).push(one);
  order(layers, vertices);
  const most = Math.max(6, Math.ceil(Math.sqrt(vertices.length) * 1.5));
  const places = new Map();
  let column = 0;
  let rows = 0;
  for (const members of layers) {
    const columns = Math.ceil(members.length / most);
    const tall = Math.ceil(members.length / columns);
    members.forEach((one, index) => {
      places.set(one.name, { column: column + Math.floor(index / tall), row: index % tall, of: tall });
    });
    rows = Math.max(rows, tall);
    column += columns;
  }
  const stepX = size.width + size.gapX;
  const stepY = size.height + size.gapY;
  for (const place of places.values()) {
    place.x = MARGIN + place.column * stepX;
    place.y = MARGIN + (place.row + (rows - place.of) / 2) * stepY;
  }
  return {
    size, places,
    width: 2 * MARGIN + column * stepX - size.gapX,
    height: 2 * MARGIN + rows * stepY - size.gapY,
  };
}

// Put each vertex near those it is connected to, in a few sweeps.
function order(layers, vertices) {
  const neighbours = new Map(vertices.map((one) => [one.name, new Set(one.inputs)]));
  for (const one of vertices) for (const input of one.inputs) neighbours.get(input)?.add(one.name);
  for (let sweep = 0; sweep < 6; sweep += 1) {
    const at = new Map();
    for (const layer of layers) layer.forEach((one, index) => at.set(one.name, (index + 0.5) / layer.length));
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      const wanted = new Map(layer.map((one) => {
        const near = [...neighbours.get(one.name)].filter((name) => at.has(name)).map((name) => at.get(name));
        return [one.name, near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : at.get(one.name)];
      }));
      layer.sort((one, other) => wanted.get(one.name) - wanted.get(other.name));
      layer.forEach((one, index) => at.set(one.name, (index + 0.5) / layer.length));
    }
  }
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function said(one, now) {
  const { live } = one;
  if (!live) return `${one.name}: ${bytes(one.stateBytes)} of state`;
  const parts = [`${one.name}: ${one.status.toLowerCase().replaceAll("_", " ")}`,
    `${rate(live.rateIn)} rows per second`, `busy ${percent(live.busy)}`,
    `held by a full channel ${percent(live.held)}`];
  if (live.batchMs) parts.push(`batches take ${duration(live.batchMs)}`);
  if (live.watermark !== null) parts.push(`watermark ${duration(Math.max(0, now - live.watermark))} behind`);
  return parts.join(", ");
}

// `zoom` of null: as large as fits into `room` pixels, but no smaller than can be read.
export function graph(state, chosen, zoom, room) {
  const { size, places, width, height } = layout(state.vertices);
  zoom ??= Math.max(0.65, Math.min(1, room / width));
  const edges = [];
  for (const one of state.vertices) {
    for (const output of one.outputs) {
      const from = places.get(one.name);
      const to = places.get(output.consumer);
      if (from && to) edges.push(edge(one, output, from, to, size, chosen));
    }
    for (const input of one.inputs) {
      const producer = state.vertices.find((other) => other.name === input);
      const known = producer?.outputs.some((output) => output.consumer === one.name);
      if (producer && !known) {
        const output = { consumer: one.name, segments: 0, bytes: 0 };
        edges.push(edge(producer, output, places.get(input), places.get(one.name), size, chosen));
      }
    }
  }
  return h("div", { class: "graph", "data-key": "graph", tabindex: "0", role: "group",
    "aria-label": "The graph of the job; the table below says the same" },
  s("svg", {
    width: Math.round(width * zoom), height: Math.round(height * zoom),
    viewBox: `0 0 ${Math.round(width)} ${Math.round(height)}`,
  }, edges.map((one) => one.line),
  state.vertices.map((one) => node(one, places.get(one.name), size, state.now, chosen === one.name)),
  edges.map((one) => one.text)));
}

function edge(producer, output, from, to, size, chosen) {
  const x1 = from.x + size.width;
  const y1 = from.y + size.height / 2;
  const x2 = to.x;
  const y2 = to.y + size.height / 2;
  const bend = Math.max(30, (x2 - x1) / 2);
  const full = producer.live?.doing === "held" && output.segments > 0;
  const near = !chosen ? "" : [producer.name, output.consumer].includes(chosen) ? "near" : "far";
  const text = output.segments
    ? s("text", { class: "edge-text", x: x2 - 8, y: y2 - 7, "text-anchor": "end" },
      size.compact ? `${output.segments}` : `${output.segments} waiting, ${bytes(output.bytes)}`)
    : null;
  return {
    line: s("path", {
      class: `edge ${full ? "full" : ""} ${near}`,
      d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 2} ${y2}`,
    }),
    text,
  };
}

// The sinks of a chain.
function sinks(chain) {
  const names = chain.filter((step) => step.startsWith("sink ")).map((step) => step.slice(5));
  return names.length ? cut(`to ${names.join(", ")}`, 34) : "";
}

// What is written into the box of a vertex, line by line.
function factsOf({ live, chain, stateBytes }, compact, now) {
  if (!live) {
    const state = `${bytes(stateBytes)} of state`;
    return compact ? [state] : [state, cut(chain[0] ?? "", 32), chain.length > 1 ? cut(`to ${chain.at(-1)}`, 32) : ""];
  }
  if (compact) return [`${rate(live.rateIn)} rows/s${live.batchMs ? `, ${duration(live.batchMs)}/batch` : ""}`];
  return [
    `${rate(live.rateIn)} rows/s${live.batchMs ? `, batch ${duration(live.batchMs)}` : ""}`,
    live.watermark === null ? "no watermark" : `watermark ${duration(Math.max(0, now - live.watermark))} behind`,
    live.held >= 0.005 ? `held ${percent(live.held)}, busy ${percent(live.busy)}` : `busy ${percent(live.busy)}`,
    sinks(chain),
  ];
}

function node(one, place, size, now, chosen) {
  const { x, y } = place;
  const bad = one.status === "FAILED";
  const facts = factsOf(one, size.compact, now);
  const inner = size.width - 24;
  let left = x + 12;
  const bar = (one.live ? ["busy", "held", "snapshot"] : []).map((kind) => {
    const share = one.live[kind];
    const long = Math.max(0, Math.min(1, share)) * inner;
    const rect = s("rect", { class: `bar-${kind}`, x: left, y: y + size.height - 12, width: long, height: 5 });
    left += long;
    return rect;
  });
  return s("a", {
    href: linkTo("graph", one.name), "aria-label": said(one, now),
    class: chosen ? "chosen" : null, "data-key": `vertex ${one.name}`,
  },
  s("title", {}, `${one.chain.join(" → ")}`),
  s("rect", { class: "box", x, y, width: size.width, height: size.height, rx: 8 }),
  s("text", { class: "name", x: x + 12, y: y + 22 }, cut(one.name, size.compact ? 20 : 26)),
  facts.map((fact, index) => s("text", {
    class: bad && !index ? "fact bad" : "fact", x: x + 12, y: y + 40 + index * 16,
  }, bad && !index ? "FAILED" : fact)),
  one.live ? s("rect", { class: "bar-back", x: x + 12, y: y + size.height - 12, width: inner, height: 5 }) : null,
  bar);
}
