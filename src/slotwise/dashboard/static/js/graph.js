// The graph of a job's regions, laid out in layers: what a region reads is to the left of it.
import { h } from "./dom.js";
import { kindOf } from "./parts.js";
import { duration, words } from "./format.js";

const WIDTH = 208;
const HEIGHT = 66;
const ACROSS = 56;
const DOWN = 18;
const SWEEPS = 6;

/** Nodes with `inputs: [{id}]` → {nodes: [{…, x, y}], edges: [{from, to}], width, height}. Inputs that are no node of
 * the graph are left out. Edges that would go round in a circle do not hold it up. */
export function layout(given) {
  const nodes = given.map((node) => ({ ...node, layer: 0, order: 0 }));
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const reads = new Map(
    nodes.map((node) => [node.id, node.inputs.map((input) => byId.get(input.id)).filter((n) => n && n !== node)]),
  );
  // Longest way from a source; no way is longer than there are nodes.
  for (let round = 0, moved = true; moved && round < nodes.length; round += 1) {
    moved = false;
    for (const node of nodes) {
      const layer = Math.max(0, ...reads.get(node.id).map((input) => input.layer + 1));
      if (layer !== node.layer && layer < nodes.length) {
        node.layer = layer;
        moved = true;
      }
    }
  }
  const layers = [];
  for (const node of nodes) (layers[node.layer] ??= []).push(node);
  const filled = layers.filter(Boolean);
  filled.forEach((layer, index) => layer.forEach((node, order) => Object.assign(node, { layer: index, order })));
  const readers = new Map(nodes.map((node) => [node.id, []]));
  for (const node of nodes) reads.get(node.id).forEach((input) => readers.get(input.id).push(node));
  // Each node goes where its neighbours are, now from the left, now from the right: fewer edges cross.
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const neighbours = sweep % 2 ? readers : reads;
    for (const layer of sweep % 2 ? [...filled].reverse() : filled) {
      for (const node of layer) {
        const near = neighbours.get(node.id);
        node.weight = near.length ? near.reduce((sum, other) => sum + other.order, 0) / near.length : node.order;
      }
      layer.sort((a, b) => a.weight - b.weight || a.order - b.order);
      layer.forEach((node, order) => {
        node.order = order;
      });
    }
  }
  const tallest = Math.max(0, ...filled.map((layer) => layer.length));
  const height = tallest * (HEIGHT + DOWN) - DOWN;
  for (const layer of filled) {
    const top = (height - (layer.length * (HEIGHT + DOWN) - DOWN)) / 2;
    for (const node of layer) {
      node.x = node.layer * (WIDTH + ACROSS);
      node.y = top + node.order * (HEIGHT + DOWN);
    }
  }
  const edges = nodes.flatMap((node) => reads.get(node.id).map((from) => ({ from, to: node })));
  return { nodes, edges, width: filled.length * (WIDTH + ACROSS) - ACROSS, height };
}

/** The graph as SVG. `plan`: the nodes of GET /v1/jobs/:id/plan; `vertices`: what has become of them. */
export function graph(plan, vertices) {
  const { nodes, edges, width, height } = layout(plan);
  const state = new Map(vertices.map((vertex) => [vertex.id, vertex]));
  return h(
    "div",
    { class: "graph", tabindex: 0, role: "group", "aria-label": "Graph of regions; the table below says the same" },
    h(
      "svg",
      {
        viewBox: `-2 -2 ${width + 4} ${height + 4}`,
        width: width + 4,
        height: height + 4,
        role: "img",
        "aria-label": `${nodes.length} regions: ${nodes.map((node) => `${node.id} ${words(state.get(node.id)?.status)}`).join(", ")}`,
      },
      edges.map(({ from, to }) =>
        h("path", { key: `${from.id}→${to.id}`, class: `edge ${kindOf(state.get(from.id)?.status)}`, d: curve(from, to) }),
      ),
      nodes.map((node) => box(node, state.get(node.id))),
    ),
  );
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = Math.max(24, Math.abs(x2 - x1) / 2);
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}

function box(node, vertex) {
  const status = vertex?.status ?? "CREATED";
  const tries = vertex?.attempt > 1 ? ` · attempt ${vertex.attempt}` : "";
  const took = vertex?.duration >= 0 ? ` · ${duration(vertex.duration)}` : "";
  return h(
    "g",
    { key: node.id, class: `node ${kindOf(status)}`, transform: `translate(${node.x},${node.y})` },
    h("title", {}, [node.description ?? node.id, words(status), vertex?.reason].filter(Boolean).join(" – ")),
    h("rect", { width: WIDTH, height: HEIGHT, rx: 6 }),
    h("rect", { class: "stripe", width: 4, height: HEIGHT, rx: 2 }),
    h("text", { class: "node-name", x: 14, y: 21 }, short(node.id, 26)),
    h("text", { class: "node-state", x: 14, y: 39 }, `${words(status)}${took}`),
    h("text", { class: "node-more", x: 14, y: 55 }, `${vertex?.parallelism ?? node.parallelism} executors${tries}`),
  );
}

const short = (text, length) => (text.length > length ? `…${text.slice(1 - length)}` : text);
