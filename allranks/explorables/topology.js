// Who is who: a cluster in which a process is chosen. Mirrors allranks/sums/topology.py.

import { h, picture, rect, text, rankColor, pressable, code, table, whole, explorable } from "./kit.js";

const MOST = 16, NAMED = 4;
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
  { label: "Nodes (--nnodes)", kind: "whole", min: 1, max: MOST, get: (s) => s.nodes.length,
    set: (n, s) => resized("nodes", s, ({ nodes }) =>
      Array.from({ length: few("nodes", n) }, (_, i) => nodes[i] ?? nodes.at(-1))) },
  { label: "Processes per node (--nproc-per-node)", kind: "text",
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
  { name: "gpus_per_node", label: "GPUs in each machine", kind: "whole", min: 1, max: MOST },
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

// Draw one node, with its GPUs in rows of eight. A process is drawn on the GPU that it
// really gets; those that get none are in rows of their own.
function node(i, { state, facts, set }, y) {
  const { nodes, gpus_per_node, rank } = state, first = sum(nodes.slice(0, i));
  const columns = Math.min(gpus_per_node, 8), gpus = facts.visible;
  const rows = Math.ceil(gpus_per_node / 8), lost = Math.max(0, nodes[i] - gpus.length);
  const height = 26 + (rows + Math.ceil(lost / 8)) * 66;
  const parts = [
    rect(1, y, columns * 58 + 13, height, { class: "x-frame" }),
    text(9, y + 18, `node ${i}`, { "text-anchor": "start" }),
  ];
  const place = (at, row, local, name, empty) => {
    const x = 9 + (at % 8) * 58, top = y + 26 + (row + Math.floor(at / 8)) * 66;
    const r = first + local, chosen = r === rank;
    if (empty) parts.push(rect(x, top, 54, 42, { class: "x-idle" }),
      text(x + 27, top + 26, empty, { class: "x-small" }));
    else {
      const box = rect(x, top, 54, 42, { class: chosen ? "x-box x-chosen" : "x-box",
        style: `--hue: ${rankColor(r)}`, "stroke-dasharray": row ? "5 3" : null });
      parts.push(pressable(h("svg:g", {}, box, text(x + 27, top + 18, `rank ${r}`),
        text(x + 27, top + 34, `local ${local}`, { class: "x-small" })), `rank${r}`,
      `rank ${r} local ${local}, node ${i}, ${name}`, () => set({ rank: r }), chosen));
    }
    parts.push(text(x + 27, top + 56, name, { class: "x-small" }));
  };
  for (let gpu = 0; gpu < gpus_per_node; gpu++) {
    const local = gpus.indexOf(gpu);
    place(gpu, 0, local, `GPU ${gpu}`, local < 0 ? "hidden" : local >= nodes[i] && "idle");
  }
  for (let at = 0; at < lost; at++) place(at, rows, gpus.length + at, "no GPU");
  return { parts, height: height + 8, width: columns * 58 + 15 };
}

function draw(view) {
  const { facts, state } = view;
  let y = 1;
  const drawn = state.nodes.map((_, i) => {
    const one = node(i, view, y);
    y += one.height;
    return one;
  });
  const alike = facts.commands.length === 1 && state.nodes.length > 1;
  return [
    picture(drawn[0].width, y, "", drawn.map((one) => one.parts)),
    h("p", {}, alike ? "Type the same command on every node (node0 is the name of one of them):"
      : state.nodes.length > 1 ? "Each node gets the command with its own number of processes:"
        : "The command:"),
    facts.commands.map((line, i) => code(line, `command${i}`)),
    table(`What torchrun tells rank ${state.rank}`, ["variable", "value"],
      Object.entries(facts.environment)),
  ];
}

export default explorable({
  label: "A cluster and one of its processes", fields, compute, draw,
  live: "Launch it with torchrun",
});
