// Who is who: a cluster in which a process is chosen. Mirrors allranks/topology.py.

import { h, picture, rect, text, rankColor, pressable, code, table, whole, explorable } from "./kit.js";

const MOST = 16;
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
  const entries = value.split(",");
  if (value.startsWith("MIG-")) return entries.slice(0, 1);
  if (value.startsWith("GPU-")) throw Error(`'${value}' needs ${gpus} UUIDs, not 0`);
  const found = [];
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

export function compute({ nodes, gpus_per_node, rank, visible }) {
  const description = describe(nodes, gpus_per_node);
  for (const [name, value] of [["nodes", nodes.length], ["GPUs per node", gpus_per_node]])
    if (value > MOST) throw Error(`${value} ${name} do not fit here: at most ${MOST}`);
  const { node_rank, local_rank } = coordinates(nodes, rank);
  const gpus = visibleDevices(visible, gpus_per_node);
  const gpu = gpus[local_rank] ?? null, world_size = sum(nodes);
  const device = gpu === null
    ? `cuda:${local_rank}, which is not visible: an error`
    : `cuda:${local_rank}, which is GPU ${gpu} of the machine`;
  return {
    node_rank, local_rank, world_size, visible: gpus, gpu, description,
    commands: commands(nodes),
    environment: {
      RANK: rank, WORLD_SIZE: world_size, LOCAL_RANK: local_rank,
      LOCAL_WORLD_SIZE: nodes[node_rank], GROUP_RANK: node_rank,
      GROUP_WORLD_SIZE: nodes.length,
    },
    summary: `${description}. Rank ${rank} of ${world_size} is local rank ${local_rank} `
      + `on node ${node_rank}. It uses ${device}.`,
  };
}

// Another cluster keeps the chosen process if it still exists.
const resized = (nodes, state) => ({
  nodes,
  rank: Math.min(state.rank, sum(nodes) - 1),
  gpus_per_node: Math.max(state.gpus_per_node, ...nodes),
});
const few = (name, value) => {
  if (whole(name, value, 1) > MOST) throw Error(`${value} ${name} do not fit here: at most ${MOST}`);
  return value;
};

const fields = [
  { label: "Nodes (--nnodes)", kind: "whole", min: 1, max: MOST, get: (s) => s.nodes.length,
    set: (n, s) => resized(Array.from({ length: few("nodes", n) },
      (_, i) => s.nodes[i] ?? s.nodes.at(-1)), s) },
  { label: "Processes per node (--nproc-per-node)", kind: "text",
    get: (s) => new Set(s.nodes).size === 1 ? String(s.nodes[0]) : s.nodes.join(", "),
    set: (typed, s) => {
      const list = typed.split(",").map((part) => {
        if (!/^\s*\d+\s*$/.test(part))
          throw Error(`'${part.trim()}' is no number of processes: write 8, or 8, 8, 4 for nodes that differ`);
        return Number(part);
      });
      return resized(list.length === 1 ? s.nodes.map(() => few("processes", list[0])) : list, s);
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
  { name: "visible", label: "CUDA_VISIBLE_DEVICES", kind: "text", show: (s) => s.visible !== null },
];

// One node: its GPUs in rows of eight. A process sits on the GPU that it really gets.
function node(i, { state, facts, set }, y) {
  const { nodes, gpus_per_node, rank } = state, first = sum(nodes.slice(0, i));
  const columns = Math.min(gpus_per_node, 8), rows = Math.ceil(gpus_per_node / 8);
  const height = 26 + rows * 66, mine = i === facts.node_rank;
  const gpus = mine ? facts.visible : [...Array(gpus_per_node).keys()];
  const parts = [
    rect(1, y, columns * 58 + 13, height, { class: "x-frame" }),
    text(9, y + 18, `node ${i}`, { "text-anchor": "start" }),
  ];
  for (let gpu = 0; gpu < gpus_per_node; gpu++) {
    const x = 9 + (gpu % 8) * 58, top = y + 26 + Math.floor(gpu / 8) * 66;
    const local = gpus.indexOf(gpu), busy = local >= 0 && local < nodes[i];
    const name = `GPU ${gpu}`;
    if (!busy) {
      parts.push(rect(x, top, 54, 42, { class: "x-idle" }), text(x + 27, top + 26,
        mine && local < 0 ? "hidden" : "idle", { class: "x-small" }));
    } else {
      const r = first + local, chosen = r === rank;
      const box = rect(x, top, 54, 42, { class: chosen ? "x-box x-chosen" : "x-box",
        style: `--hue: ${rankColor(r)}` });
      parts.push(pressable(h("svg:g", {}, box, text(x + 27, top + 18, `rank ${r}`),
        text(x + 27, top + 34, `local ${local}`, { class: "x-small" })), `rank${r}`,
      `rank ${r} local ${local}, node ${i}, ${name}`, () => set({ rank: r }), chosen));
    }
    parts.push(text(x + 27, top + 56, name, { class: "x-small" }));
  }
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
