// Who is who: a cluster in which a process is chosen. Mirrors sums.py.

import { h, picture, rect, text, rankColor, pressable, draggable, code, table, whole, explorable } from "../kit/kit.js";
import { HUES } from "../../base/svg.py";
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
  { name: "nnodes", label: "Nodes (--nnodes)", kind: "whole", min: 1, max: MOST, knob: true, range: [1, MOST], get: (s) => s.nodes.length,
    set: (n, s) => resized("nodes", s, ({ nodes }) =>
      Array.from({ length: few("nodes", n) }, (_, i) => nodes[i] ?? nodes.at(-1))) },
  { name: "gpus_per_node", label: "GPUs in each machine", kind: "whole", min: 1, max: MOST,
    knob: true, range: [1, MOST] },
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

// There are as many hues as ranks in a machine of eight; a rank beyond them is gray, so
// that no two have the same.
const hue = (rank) => (rank < HUES.length ? rankColor(rank) : "var(--x-soft)");
const upto = (n) => [...Array(n).keys()];
const BRACE = 24, PLATE = 20, GPU = 26, LINK = 18, GAP = 12, PAD = 8, TALL = 70; // px

// Arrange the machines in rows, as many in each as leaves their processes largest. What
// does not fit into low rows is left out: first the GPUs, then the braces, then the names.
function arrange({ nodes, gpus_per_node: columns, visible }, width, height) {
  const fit = (per) => {
    const rows = Math.ceil(nodes.length / per), row = height / rows;
    const named = row >= 52, deck = row >= 124, braces = row >= 80 ? BRACE : 0;
    const side = named ? 0 : 98, machine = (width - (per - 1) * GAP) / per, pad = named ? PAD : 2;
    const pitch = (machine - side - 2 * pad) / columns;
    const rest = row - braces - (named ? PLATE : 0) - (deck ? GPU + LINK : 0) - (named ? 10 : 2) - pad;
    return { per, row, named, deck, braces, side, machine, pad, pitch, car: Math.min(TALL, rest),
      link: LINK + Math.max(0, Math.min(LINK, rest - TALL)), words: pitch >= 66, score: Math.min(pitch / 60, row / (visible === null ? 112 : 190)) };
  };
  return upto(nodes.length).map((i) => fit(i + 1)).reduce((a, b) => (b.score > a.score ? b : a));
}

// Draw one machine: its processes in a train, and below them its GPUs.
function machine(i, view, plan) {
  const { state: { nodes, gpus_per_node, rank, visible }, facts, set } = view;
  const { per, row, named, deck, braces, side, pad, pitch, car, link } = plan, here = i === facts.node_rank;
  const left = (i % per) * (plan.machine + GAP), top = Math.floor(i / per) * row + braces, n = nodes[i];
  const carTop = top + pad, gpuTop = carTop + car + link, floor = deck ? gpuTop + GPU : carTop + car;
  const x = (column) => left + side + pad + column * pitch, wide = pitch - Math.min(6, pitch / 6), middle = (column) => x(column) + wide / 2;
  const first = sum(nodes.slice(0, i)), small = { class: "x-small" };
  const words = plan.words || wide > 7.8 * `rank ${facts.world_size - 1}`.length;
  const numbers = wide >= 8 * String(facts.world_size - 1).length + 5 && car > 11;
  // Where a box has room for numbers only, the name of its machine says whose they are.
  const whose = words || !numbers ? "" : car >= 36 && pitch >= 22 ? ": rank, local" : ": ranks";
  const title = `node ${i}${whose}`, tight = plan.machine - 6.7 * title.length < (plan.machine > 220 ? 150 : 20);
  const sought = asked(view).right, counted = i < facts.node_rank ? n : here ? facts.local_rank : 0;
  const cars = upto(n).map((local) => {
    const r = first + local, gpu = facts.visible[local], lost = gpu === undefined, chosen = r === rank;
    const digits = lost ? " x-on-wrong" : "", named = { class: `x-answer x-strong${digits}` };
    return pressable(h("svg:g", { "data-id": `rank${r}` },
      rect(x(local), carTop, wide, car, { rx: 5, class: "x-future" }),
      rect(x(local), carTop, wide, car, { rx: 5, class: `${lost ? "x-wrong" : "x-box"}${chosen ? " x-chosen" : ""}`,
        style: `--hue: ${hue(r)}` }),
      car >= 36 ? [
        (words || numbers) && text(middle(local), carTop + car / 2 - 2, words ? `rank ${r}` : r, named),
        r === sought && text(middle(local), carTop + car / 2 - 2, words ? "rank ?" : "?", { class: `x-guess x-strong${digits}` }),
        (words || (numbers && pitch >= 22)) && text(middle(local), carTop + car / 2 + 15, words ? (lost ? "no GPU" : `local ${local}`) : local, { class: digits.trim() }),
      ] : numbers && text(middle(local), carTop + car / 2 + 4.5, words ? `rank ${r}` : r, named)),
    `rank${r}`, `rank ${r} local ${local}, node ${i}, ${lost ? "no GPU" : `GPU ${gpu}`}`, () => set({ rank: r }), chosen);
  });
  const gpus = deck && upto(gpus_per_node).map((gpu) => {
    const local = facts.visible.indexOf(gpu), used = local >= 0 && local < n;
    const name = words ? (local < 0 ? "hidden" : `GPU ${gpu}${!used && pitch > 84 ? ", idle" : ""}`) : local < 0 ? "–" : gpu;
    return [
      rect(x(gpu), gpuTop, wide, GPU, { class: used ? "x-box" : "x-idle", style: `--hue: ${hue(first + local)}` }),
      used && h("svg:path", { d: `M${middle(local)} ${carTop + car}C${middle(local)} ${gpuTop} ${middle(gpu)} ${carTop + car} ${middle(gpu)} ${gpuTop}`, style: `stroke: ${hue(first + local)}; fill: none`, "stroke-width": 2 }),
      text(middle(gpu), gpuTop + 17, name, { class: used ? "" : "x-soft" }),
    ];
  });
  return [
    rect(left + side + 1, top, plan.machine - side - 2, floor + (named ? PLATE : pad) - top, { class: "x-frame", rx: 6 }),
    named ? text(left + PAD + 2, floor + 15, tight ? `node ${i}` : title, { "text-anchor": "start", class: here ? "x-small x-strong" : "x-small" })
      : [text(left, carTop + car / 2 + 4.5, `node ${i}`, { "text-anchor": "start", class: here ? "x-small x-strong" : "x-small" }),
        text(left + side - 3, carTop + car / 2 + 4.5, `${first} …`, { "text-anchor": "end", class: "x-small x-soft x-answer" })],
    named && plan.machine > 220 && text(left + plan.machine - PAD, floor + 15, `--nproc-per-node ${n}`, { "text-anchor": "end" }),
    !deck && upto(gpus_per_node - n).map((k) => rect(x(n + k), carTop, wide, car, { class: "x-idle", rx: 5 })),
    gpus, cars, more(i, view, plan, { x, carTop, wide }),
    braces > 0 && h("svg:g", { class: "x-answer" }, brace(i, view, counted, { x, wide, top })),
  ];
}

// Count the processes before the chosen one: those of the machines before its own, and
// on its own. The sum below has the same words.
function brace(i, { facts, width }, counted, { x, wide, top }) {
  const here = i === facts.node_rank, right = counted ? x(counted - 1) + wide : x(0), long = right - x(0) > 100;
  const words = here ? `${i ? "+ " : "0 before + "}${counted} local` : `${i ? "+ " : ""}${counted}${long ? " before" : ""}`;
  const half = 4 * words.length, least = here ? x(0) + half : 0;
  return [
    counted > 0 && h("svg:path", { class: "x-line", d: `M${x(0) + 1} ${top - 2}v-5H${right - 1}v5` }),
    (here || counted > 0) && text(Math.min(width - half, Math.max(least, (x(0) + right) / 2)), top - 11, words, { class: "x-strong" }),
  ];
}

// The end of a machine's train: one drags it, or presses the place of the next process.
function more(i, { state: { nodes, gpus_per_node }, facts: { node_rank, local_rank }, set }, { pitch, car, words }, { x, carTop, wide }) {
  const n = nodes[i], edge = x(n) - (pitch - wide) / 2, free = n < gpus_per_node, reach = Math.min(14, pitch / 3), grip = 6;
  const resize = (to) => {
    const all = nodes.map((old, at) => (at === i ? to : old));
    // The frame stays on its process, whose rank changes with those before it.
    set({ nodes: all, rank: rankOf(all, node_rank, Math.min(local_rank, all[node_rank] - 1)) });
  };
  const ghost = free && h("svg:g", { class: "x-next", onclick: () => resize(n + 1) },
    rect(x(n), carTop, wide, car, { class: "x-idle", rx: 5, style: "fill: transparent" }), // so that it can be pressed
    text(x(n) + wide / 2 + (words ? 7 : 0), carTop + car / 2 + 5, words ? (pitch > 78 ? "press: +1" : "+1") : car > 11 ? "+" : "", { class: "x-small" }));
  return draggable(h("svg:g", {},
    h("svg:rect", { x: edge - reach, y: carTop, width: reach + (free ? wide : reach), height: car, fill: "transparent" }), ghost,
    pitch > 40 && car > 30 && [-1, 1].map((side) => (side < 0 ? n > 1 : free) && h("svg:path", { class: "x-grip", d: `M${edge + side * 6} ${carTop + car / 2 - 5}l${side * 5} 5l${-side * 5} 5z` })),
    h("svg:rect", { x: edge - grip / 2, y: carTop + car * 0.2, width: grip, height: car * 0.6, rx: grip / 2, class: "x-knob" })),
  `edge${i}`, { label: `processes on node ${i}`, now: n, low: 1, high: gpus_per_node,
    said: count(n, "process"), move: (by, start) => Math.round(start + by / pitch),
    step: (by) => n + by, set: resize });
}

// The sum, whose result can be dragged from rank to rank.
function equation({ state: { rank, nodes }, facts, set, narrow }, y) {
  const before = rank - facts.local_rank, wide = 104, tip = (x, side) => h("svg:path", { class: "x-grip", d: `M${x} ${y - 5}l${side * 5} 5l${-side * 5} 5z` });
  const handle = draggable(h("svg:g", {},
    h("svg:rect", { x: 1, y: y - 15, width: wide - 2, height: 30, rx: 15, class: "x-pill" }),
    rank > 0 && tip(14, -1), rank < facts.world_size - 1 && tip(wide - 14, 1),
    text(wide / 2, y + 4.5, `rank ${rank}`, { class: "x-strong" })),
  "sum", { label: "the chosen rank", now: rank, low: 0, high: facts.world_size - 1,
    move: (by, start) => Math.round(start + by / Math.max(3, Math.min(24, 300 / sum(nodes)))),
    step: (by) => rank + by, set: (to) => set({ rank: to }) });
  const words = narrow || !before ? `= ${before} before + ${facts.local_rank} local`
    : `= ${before} before, on the nodes before node ${facts.node_rank}, + ${facts.local_rank} local`;
  const at = { "text-anchor": "start" };
  return [h("svg:g", { class: "x-answer" }, handle, text(wide + 10, y + 4.5, words, at)),
    text(1, y + 4.5, `rank ? = ? before + ${facts.local_rank} local`, { ...at, class: "x-guess" })];
}

// The command of the chosen process's node; its numbers are those of the drawing.
function command({ state: { nodes }, facts, narrow }) {
  const line = commands([nodes[facts.node_rank]])[0], mine = nodes.length > 1
    ? facts.commands.find((one) => one.includes(`--nproc-per-node ${nodes[facts.node_rank]} `)) : line;
  const flags = mine.split(/ (?=--)/).map((flag) => h("span", {}, flag.split(/(?<=--nnodes |--nproc-per-node )(\d+)/)
    .map((part, i) => (i % 2 ? h("b", {}, part) : part)))); // a line breaks between flags only
  const where = nodes.length === 1 ? "" : facts.commands.length > 1 ? `On node ${facts.node_rank} (others: their own number): ` : "On each node: ";
  return h("div", { style: `min-height: ${narrow ? 7.6 : 3.4}rem` },
    code(mine, "command", [where, ...flags.flatMap((flag, i) => (i ? [" ", flag] : [flag]))]));
}

function draw(view) {
  const { facts, state, width, narrow } = view, { nodes, rank } = state, high = narrow ? 320 : 200;
  const plan = arrange(state, width, high), others = facts.commands.length > 1;
  return {
    picture: [
      picture(width, high + 40, "", nodes.map((_, i) => machine(i, view, plan)), equation(view, high + 20)),
      !narrow && command(view),
    ],
    after: narrow && [command(view)],
    below: [
      h("p", {}, "Press a process to choose it; the braces count those before it. Drag the end of a train, or press the next place. Its GPU has its hue; from rank 8 on, all are gray. Dashed: a GPU without a process, or hidden from the job. "
        + "Yellow: a process that finds no GPU."),
      others && h("p", {}, "Each node gets the command with its own number of processes:"),
      others && facts.commands.map((line, i) => code(line, `command${i}`)),
      table(`What torchrun tells rank ${rank}`, ["variable", "value"],
        Object.entries(facts.environment)),
    ],
  };
}

// The question: the chosen process, among the ranks that one could take for its own.
const asked = ({ state: { rank: right }, facts: { node_rank: node, local_rank: local, world_size } }) => {
  const likely = [right, local, node, local + node, right + 1, right - 1, 0, 1, 2];
  const options = [...new Set(likely.filter((rank) => rank >= 0 && rank < world_size))].slice(0, 3);
  return { node, local, right, before: right - local, options: options.sort((a, b) => a - b) };
};
const ask = {
  question: (view) => `Which rank has the process on node ${asked(view).node} whose local rank is ${asked(view).local}?`,
  options: (view) => asked(view).options.map((rank) => `rank ${rank}`),
  answer: (view) => asked(view).options.indexOf(asked(view).right),
  because: (view) => {
    const { before, node, local } = asked(view);
    return node ? `${count(before, "process")} on the nodes before it + local rank ${local}.`
      : "No node comes before it, so its rank is its local rank.";
  },
};

export default explorable({
  name: "topology", title: "A cluster, and who is who in it",
  label: "A cluster and one of its processes", fields, compute, draw, ask,
  sentence: "Machines: {nnodes}, with {gpus_per_node} GPUs in each.",
  live: "Launch it with torchrun",
});
