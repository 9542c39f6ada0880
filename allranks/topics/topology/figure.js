// Who is who: a cluster in which a process is chosen. Mirrors sums.py.

import { h, picture, rect, text, rankColor, pressable, draggable, code, table, whole, explorable } from "../kit/kit.js";
import { MOST, NAMED } from "./figure.py";

const count = (number, thing) =>
  `${number} ${thing}${number === 1 ? "" : thing.endsWith("ss") ? "es" : "s"}`;
const sum = (values) => values.reduce((a, b) => a + b, 0);

function index(name, value, size, what) {
  whole(name, value, -(10 ** 9));
  if (value >= 0 && value < size) return value;
  const bound = size > 1 ? `0 to ${size - 1}` : size ? "0 only" : "none";
  throw Error(`${name} is ${value}, but the ${count(size, what)} `
    + `${size === 1 ? "has" : "have"} ${name} ${bound}`);
}

function cluster(nodes) {
  if (!nodes.length) throw Error("nodes must list processes by node: (8, 8), not []");
  return nodes.map((n, i) => whole(`nodes[${i}]`, n, 1));
}

function describe(nodes, gpus) {
  cluster(nodes);
  whole("gpus_per_node", gpus, 1);
  const most = Math.max(...nodes);
  if (most > gpus)
    throw Error(`node ${nodes.indexOf(most)} has ${count(gpus, "GPU")} for `
      + `${most} processes, but each process needs its own`);
  const idle = nodes.map((n) => gpus - n);
  const parts = nodes.length > 1 ? ` (${idle.join(" + ")})` : "";
  const tally = sum(idle)
    ? `${sum(idle)} of ${gpus * nodes.length} GPUs stay idle${parts}` : "no GPU stays idle";
  return `${count(sum(nodes), "rank")} on ${count(nodes.length, "node")}: ${tally}`;
}

export function coordinates(nodes, rank) {
  index("rank", rank, sum(cluster(nodes)), "process");
  let node = 0, first = 0;
  while (rank >= first + nodes[node]) first += nodes[node++];
  return { node_rank: node, local_rank: rank - first };
}

export function rankOf(nodes, node_rank, local_rank) {
  index("node_rank", node_rank, cluster(nodes).length, "node");
  index("local_rank", local_rank, nodes[node_rank], "process");
  return sum(nodes.slice(0, node_rank)) + local_rank;
}

export function visibleDevices(value, gpus) {
  if (value === null) return [...Array(gpus).keys()];
  const entries = value.split(","), found = [];
  if (entries.some((entry) => /^\s*(GPU|MIG)-/.test(entry)))
    throw Error("write indices such as 2,1: this figure knows no UUIDs and no MIG");
  for (const entry of entries) {
    const digits = /^\+?([0-9]+)/.exec(entry.trim()); // like C's strtoul
    if (!digits || Number(digits[1]) >= gpus) break;
    if (found.includes(Number(digits[1]))) return [];
    found.push(Number(digits[1]));
  }
  return found;
}

function commands(nodes) {
  if (nodes.length === 1) return [`torchrun --standalone --nproc-per-node ${nodes[0]} train.py`];
  const head = `torchrun --nnodes ${nodes.length} --rdzv-backend c10d --rdzv-id job1 `
    + "--rdzv-endpoint node0:29400 --nproc-per-node";
  return [...new Set(nodes.map((n) => `${head} ${n} train.py`))];
}

// Say what `describe` says, but about the visible GPUs only.
function tally(nodes, gpus, seen) {
  const idle = nodes.map((n) => Math.max(0, seen - n)), total = seen * nodes.length;
  const hidden = gpus * nodes.length - total;
  const words = sum(idle) ? `${sum(idle)} of ${total} visible GPUs stay idle`
    + (nodes.length > 1 ? ` (${idle.join(" + ")})` : "")
    : total ? "no visible GPU stays idle" : "no GPU is visible";
  return `${count(sum(nodes), "rank")} on ${count(nodes.length, "node")}: ${words}`
    + (hidden && total ? `, ${hidden} ${hidden === 1 ? "is" : "are"} hidden` : "");
}

function errors(ranks) {
  if (ranks.length < 2) return ranks.length ? ` Rank ${ranks[0]} finds no GPU: an error.` : "";
  const more = ranks.length > NAMED ? ` and ${ranks.length - NAMED} more` : "";
  return ` Ranks ${ranks.slice(0, NAMED).join(", ")}${more} find no GPU: an error.`;
}

export function compute({ nodes, gpus_per_node, rank, visible }) {
  let description = describe(nodes, gpus_per_node);
  for (const [name, value] of [["nodes", nodes.length], ["GPUs per node", gpus_per_node]])
    if (value > MOST) throw Error(`${value} ${name} do not fit here: at most ${MOST}`);
  const { node_rank, local_rank } = coordinates(nodes, rank);
  const gpus = visibleDevices(visible, gpus_per_node);
  if (visible !== null) description = tally(nodes, gpus_per_node, gpus.length);
  const gpu = gpus[local_rank] ?? null, world_size = sum(nodes);
  const without = nodes.flatMap((n) => [...Array(n).keys()])
    .flatMap((local, r) => local < gpus.length ? [] : [r]);
  const device = gpu === null
    ? `asks for cuda:${local_rank}, which is not visible: an error`
    : `uses cuda:${local_rank}, which is GPU ${gpu} of the machine`;
  return {
    node_rank, local_rank, world_size, visible: gpus, gpu, without_gpu: without, description,
    commands: commands(nodes),
    environment: {
      RANK: rank, WORLD_SIZE: world_size, LOCAL_RANK: local_rank,
      LOCAL_WORLD_SIZE: nodes[node_rank], GROUP_RANK: node_rank,
      GROUP_WORLD_SIZE: nodes.length,
    },
    summary: `${description}.${errors(without)} Rank ${rank} of ${world_size} is local rank ${local_rank} `
      + `on node ${node_rank}. It ${device}.`,
  };
}

// Keep the chosen process when the cluster changes, if it still exists. To type "12" is
// to type "1" first, so while one field is being edited, each number is applied to the
// state from before the edit.
let edit = {};
function resized(field, state, nodesOf) {
  const now = JSON.stringify(state);
  if (edit.field !== field || !edit.seen.includes(now)) edit = { field, base: state };
  const { base } = edit, nodes = nodesOf(base);
  const patch = { nodes, rank: Math.min(base.rank, sum(nodes) - 1),
    gpus_per_node: Math.max(base.gpus_per_node, ...nodes) };
  edit.seen = [now, JSON.stringify({ ...state, ...patch })]; // if refused, if accepted
  return patch;
}
const few = (name, value) => {
  if (whole(name, value, 1) > MOST) throw Error(`${value} ${name} do not fit here: at most ${MOST}`);
  return value;
};

const fields = [
  { label: "Nodes (--nnodes)", kind: "whole", min: 1, max: MOST, knob: true, range: [1, MOST], get: (s) => s.nodes.length,
    set: (n, s) => resized("nodes", s, ({ nodes }) =>
      Array.from({ length: few("nodes", n) }, (_, i) => nodes[i] ?? nodes.at(-1))) },
  { label: "Processes per node (--nproc-per-node)", kind: "text", knob: true,
    get: (s) => new Set(s.nodes).size === 1 ? String(s.nodes[0]) : s.nodes.join(", "),
    set: (typed, s) => {
      const list = typed.split(",").map((part) => {
        if (!/^\s*\d+\s*$/.test(part))
          throw Error(`'${part.trim()}' is no number of processes: write 8, or 8, 8, 4 for nodes that differ`);
        return Number(part);
      });
      return resized("processes", s, ({ nodes }) =>
        list.length === 1 ? nodes.map(() => few("processes", list[0])) : list);
    } },
  { name: "gpus_per_node", label: "GPUs in each machine", kind: "whole", min: 1, max: MOST,
    knob: true, range: [1, MOST] },
  { name: "rank", label: "rank", kind: "whole", min: 0 },
  { label: "node rank", kind: "whole", min: 0, get: (s, f) => f.node_rank,
    set: (n, s) => (index("node_rank", n, s.nodes.length, "node"),
    { rank: rankOf(s.nodes, n, Math.min(coordinates(s.nodes, s.rank).local_rank, s.nodes[n] - 1)) }) },
  { label: "local rank", kind: "whole", min: 0, get: (s, f) => f.local_rank,
    set: (n, s) => ({ rank: rankOf(s.nodes, coordinates(s.nodes, s.rank).node_rank, n) }) },
  { label: "CUDA_VISIBLE_DEVICES is set", kind: "flag", get: (s) => s.visible !== null,
    set: (on, s) => ({ visible: on ? [...Array(s.gpus_per_node).keys()].join(",") : null }) },
  { name: "visible", label: "CUDA_VISIBLE_DEVICES, on every node", kind: "text",
    show: (s) => s.visible !== null },
];

const HEIGHT = 264, LABEL = 56, FORMULA = 44;

// Draw one node as a row: each GPU with the process that really gets it, and behind them
// the processes that get none. The edge of the last process can be dragged.
function node(i, { state, facts, set, width }, row, columns) {
  const { nodes, gpus_per_node, rank } = state, first = sum(nodes.slice(0, i)), gpus = facts.visible;
  const y = i * row, pitch = (width - LABEL - 4) / columns, wide = pitch - 4, high = Math.min(row - 6, 104);
  const names = row >= 60 && pitch >= 44, large = pitch >= 50 && high >= 36, box = high - (names ? 16 : 0);
  const before = i < facts.node_rank, here = i === facts.node_rank;
  const parts = [text(0, y + Math.min(30, row / 2 + 2), `node ${i}`, { "text-anchor": "start",
    class: here ? "x-strong" : "" })];
  const place = (at, local, name, empty) => {
    const x = LABEL + at * pitch, r = first + local, chosen = r === rank, middle = x + wide / 2;
    if (empty) parts.push(rect(x, y, wide, box, { class: "x-idle" }),
      large && text(middle, y + box / 2 + 4, empty, { class: "x-small x-soft" }));
    else {
      const counted = before || (here && local < facts.local_rank);
      const shape = rect(x, y, wide, box, { class: chosen ? "x-box x-chosen" : "x-box",
        style: `--hue: ${rankColor(r)}; fill-opacity: ${counted || chosen ? 1 : 0.35}`,
        "stroke-dasharray": at >= gpus_per_node ? "5 3" : null });
      const mark = { class: "x-answer", "data-id": `name${r}` };
      parts.push(pressable(h("svg:g", {}, shape,
        large ? [text(middle, y + box / 2 - 3, `rank ${r}`, mark),
          text(middle, y + box / 2 + 14, `local ${local}`, { class: "x-small" })]
          : wide >= 8 * String(r).length && text(middle, y + box / 2 + 4, r, { ...mark, class: "x-answer x-tiny" })),
      `rank${r}`, `rank ${r} local ${local}, node ${i}, ${name}`, () => set({ rank: r }), chosen));
    }
    if (names) parts.push(text(middle, y + high - 2, name, { class: "x-tiny" }));
  };
  for (let gpu = 0; gpu < gpus_per_node; gpu++) {
    const local = gpus.indexOf(gpu);
    place(gpu, local, `GPU ${gpu}`, local < 0 ? "hidden" : local >= nodes[i] && "idle");
  }
  const lost = Math.max(0, nodes[i] - gpus.length);
  for (let at = 0; at < lost; at++) place(gpus_per_node + at, gpus.length + at, "no GPU");
  if (state.visible !== null) return parts; // GPUs are in another order then
  const edge = LABEL + nodes[i] * pitch - 2;
  const resize = (n) => {
    const all = nodes.map((old, at) => (at === i ? n : old));
    set({ nodes: all, rank: Math.min(rank, sum(all) - 1) });
  };
  return [...parts, draggable(h("svg:g", {},
    h("svg:rect", { x: edge - 8, y, width: 44, height: Math.max(box, 12), fill: "transparent" }),
    h("svg:rect", { x: edge - 3, y: y + 2, width: 6, height: box - 4, rx: 3, class: "x-handle" })),
  `edge${i}`, { label: `processes on node ${i}`, now: nodes[i], low: 1, high: gpus_per_node,
    said: count(nodes[i], "process"), move: (by, start) => Math.round(start + by / pitch),
    step: (by) => nodes[i] + by, set: resize })];
}

function draw(view) {
  const { facts, state, width, narrow } = view, { nodes, rank } = state;
  const lost = Math.max(0, ...nodes.map((n) => n - facts.visible.length));
  const columns = Math.max(4, state.gpus_per_node + lost), row = Math.min(132, HEIGHT / nodes.length);
  const alike = facts.commands.length === 1 && nodes.length > 1;
  const first = rank - facts.local_rank;
  return {
    picture: picture(width, HEIGHT + FORMULA, "",
      nodes.map((_, i) => node(i, view, row, columns)),
      h("svg:g", { class: "x-answer" }, narrow
        ? [text(0, HEIGHT + 16, `rank ${rank} = ${first} + local rank ${facts.local_rank}`,
          { "text-anchor": "start", class: "x-strong" }),
        text(0, HEIGHT + 36, `${first}: processes on the nodes before`, { "text-anchor": "start", class: "x-small" })]
        : text(0, HEIGHT + 22, `rank ${rank} = ${first} (processes on the nodes before node ${facts.node_rank}) `
          + `+ ${facts.local_rank} (local rank)`, { "text-anchor": "start", class: "x-strong" }))),
    below: [
      h("p", {}, "Press a process to choose it; the filled ones are counted in its rank. Drag the edge "
        + "behind a node's processes to give it more or fewer. Dashed: a GPU without a process, hidden from the job, or missing."),
      h("p", {}, alike ? "Type the same command on every node (node0 is the name of one of them):"
        : nodes.length > 1 ? "Each node gets the command with its own number of processes:"
          : "The command:"),
      facts.commands.map((line, i) => code(line, `command${i}`)),
      table(`What torchrun tells rank ${rank}`, ["variable", "value"],
        Object.entries(facts.environment)),
    ],
  };
}

// The question: a process that is not on the first node, if there is another.
const asked = ({ state: { nodes } }) => {
  const node = Math.min(1, nodes.length - 1), local = nodes.length > 1 ? 0 : nodes[0] - 1;
  const right = rankOf(nodes, node, local);
  return { node, local, right, options: [...new Set([local, node, right])].sort((a, b) => a - b) };
};
const ask = {
  question: (view) => `Which rank has the process on node ${asked(view).node} whose local rank is ${asked(view).local}?`,
  options: (view) => asked(view).options.map((rank) => `rank ${rank}`),
  answer: (view) => asked(view).options.indexOf(asked(view).right),
  because: (view) => `${sum(view.state.nodes.slice(0, asked(view).node))} processes are on the nodes before it.`,
};

export default explorable({
  name: "topology", title: "A cluster, and who is who in it",
  label: "A cluster and one of its processes", fields, compute, draw, ask,
  live: "Launch it with torchrun",
});
