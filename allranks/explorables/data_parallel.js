// DataParallel's step, stage by stage. Mirrors allranks/sums/data_parallel.py.

import { h, picture, rect, text, rankColor, amount, table, whole, explorable } from "./kit.js";

const BOUNDS = {
  batch_size: [1, 512], num_devices: [1, 8], param_mb: [1, 5000], input_mb: [0, 10],
  activation_mb: [0, 200], output_mb: [0, 100], stage: [0, 8],
};
const OPTIMIZERS = { SGD: 0, "SGD with momentum": 1, Adam: 2 };
const STAGES = ["start", "scatter", "replicate", "parallel_apply", "gather", "loss",
  "backward", "reduce", "step"];
const PARTS = ["weights", "optimizer state", "gradients", "inputs", "activations", "outputs",
  "log-probabilities"];
const upto = (number) => [...Array(number).keys()];
const sum = (values) => values.reduce((a, b) => a + b, 0);
const mb = (size) => amount(size * 1e6, "B");

// As torch.chunk: pieces of the rounded-up size, so there may be fewer than asked for.
function chunk(size, pieces) {
  const most = Math.ceil(size / pieces), cut = [];
  for (let left = size; left > 0; left -= most) cut.push(Math.min(most, left));
  return cut;
}

function held(state, at, device, cut) {
  const { param_mb, output_mb } = state, home = device === 0;
  const own = cut[device] ?? 0, running = at >= 3 && at <= 5;
  const mine = own * output_mb, everything = home ? state.batch_size * output_mb : 0;
  let outputs = 0, kept = 0;
  if (state.loss_inside) kept = running ? mine : 0;
  else {
    outputs = at === 3 ? mine : at >= 4 && at <= 7 ? everything : 0;
    kept = at === 5 ? everything : 0;
  }
  return [
    home || (own && at >= 2 && at <= 5) ? param_mb : 0,
    home ? OPTIMIZERS[state.optimizer] * param_mb : 0,
    own && (at === 6 || (home && at === 7)) ? param_mb : 0,
    at >= 1 && at <= 5 ? own * state.input_mb : 0,
    running ? own * state.activation_mb : 0,
    outputs,
    kept,
  ];
}

function moves(state, stage, cut) {
  const outputs = state.loss_inside ? 0 : state.output_mb;
  return cut.map((own, device) => ({
    scatter: ["host", device, own * state.input_mb],
    replicate: [0, device, state.param_mb],
    gather: [device, 0, own * outputs],
    backward: [0, device, own * outputs],
    reduce: [device, 0, state.param_mb],
  }[stage])).filter((move) => move && move[0] !== move[1] && move[2]);
}

function summary(state, { shares, fullest }) {
  const stage = STAGES[state.stage], { num_devices } = state;
  const says = {
    start: "Between steps, device 0 holds all there is.",
    scatter: "The batch comes from the host, a share for each device.",
    replicate: "Device 0 sends all weights to the others that have a share.",
    parallel_apply: "Each replica runs forward on its share.",
    gather: "All outputs come to device 0.",
    loss: "Device 0 computes the loss of the whole batch, alone.",
    backward: "Gradients of the outputs go out; each replica has gradients of all weights.",
    reduce: "Device 0 takes in all gradients and adds them up. No replica is left.",
    step: "The optimizer steps on device 0. The others are empty.",
  };
  if (state.loss_inside) {
    says.gather = "One number per replica comes to device 0.";
    says.loss = "The loss is the mean of the replicas' losses"
      + (new Set(shares).size === 1 ? "." : ": not that of the batch, shares differ.");
    says.backward = "Each replica has gradients of all weights.";
  }
  if (shares.length === 1)
    for (const name of ["replicate", "gather", "reduce"])
      says[name] = "One device does it all: nothing moves.";
  const idle = num_devices - shares.length;
  return `Shares of ${shares.join(", ")} samples`
    + (idle ? `; ${idle} of ${num_devices} devices without.` : ".")
    + ` Stage ${stage}: ${says[stage]} Device 0 holds up to ${mb(fullest[0])} in a step`
    + (fullest.length > 1 ? `, device 1 up to ${mb(fullest[1])}.` : ".");
}

export function compute(state) {
  for (const [name, [low, most]] of Object.entries(BOUNDS))
    if (whole(name, state[name], low) > most)
      throw Error(`${name} must be at most ${most}, not ${state[name]}`);
  if (!Object.hasOwn(OPTIMIZERS, state.optimizer))
    throw Error(`no optimizer ${state.optimizer}: there are ${Object.keys(OPTIMIZERS).join(", ")}`);
  const { num_devices, param_mb } = state, devices = upto(num_devices);
  const shares = chunk(state.batch_size, num_devices);
  const memory = STAGES.map((_, at) => devices.map((i) => held(state, at, i, shares)));
  const moved = STAGES.map((stage) => moves(state, stage, shares));
  const totals = memory.map((row) => row.map(sum));
  const between = moved.flat().filter(([source]) => source !== "host");
  const through = (end) => sum(between.filter((move) => move[end] === 0).map((move) => move[2]));
  const facts = {
    shares, memory, totals, moves: moved,
    fullest: devices.map((i) => Math.max(...totals.map((row) => row[i]))),
    sent_by_0: through(0),
    sent_to_0: through(1),
    ddp: 2 * (num_devices - 1) * param_mb / num_devices,
  };
  return { ...facts, summary: summary(state, facts) };
}

const bounded = (name, label) =>
  ({ name, label, kind: "whole", min: BOUNDS[name][0], max: BOUNDS[name][1] });

const fields = [
  bounded("batch_size", "batch size (of all devices)"),
  bounded("num_devices", "devices"),
  bounded("param_mb", "parameters (MB)"),
  { name: "optimizer", label: "optimizer", kind: "choice",
    options: Object.keys(OPTIMIZERS).map((name) => [name, name]) },
  bounded("input_mb", "input of a sample (MB)"),
  bounded("activation_mb", "activations of a sample (MB)"),
  bounded("output_mb", "outputs of a sample (MB)"),
  { name: "loss_inside", label: "loss inside of forward", kind: "flag" },
  { name: "stage", label: "stage", kind: "step", max: () => STAGES.length - 1 },
];

// Draw what one device holds as a bar, each part marked with its letter; the dashed
// frame is the most that it holds during the step.
const LETTERS = "WSGIAOL", WIDTH = 308;
function bar(device, { state, facts }) {
  const y = device * 46, at = state.stage, scale = (WIDTH - 2) / Math.max(...facts.fullest);
  const move = (end) => sum(facts.moves[at].filter((m) => m[end] === device).map((m) => m[2]));
  const words = [[0, "sends"], [1, "gets"]]
    .filter(([end]) => move(end)).map(([end, verb]) => `${verb} ${mb(move(end))}`);
  let x = 1;
  const parts = facts.memory[at][device].map((size, i) => {
    const width = size * scale, left = x;
    x += width;
    if (!size) return null;
    const strong = `fill: color-mix(in srgb, var(--hue) ${6 + 4 * i}%, transparent)`;
    return [rect(left, y + 20, width, 18, { class: "x-box", style: strong, rx: 0 }),
      width > 14 && text(left + width / 2, y + 34, LETTERS[i], { class: "x-small" })];
  });
  return h("svg:g", { style: `--hue: ${rankColor(device)}` },
    text(1, y + 14, `device ${device}: ${mb(facts.totals[at][device])}`
      + (device < facts.shares.length ? "" : ", no share"), { "text-anchor": "start" }),
    text(WIDTH, y + 14, words.join(", "), { "text-anchor": "end", class: "x-small" }),
    rect(1, y + 20, facts.fullest[device] * scale, 18, { class: "x-idle", rx: 0 }),
    parts);
}

function draw(view) {
  const { state, facts, measured } = view, at = state.stage, devices = upto(state.num_devices);
  const stage = STAGES[at], found = measured?.stages?.[stage];
  const rows = PARTS.map((name, i) => [`${LETTERS[i]}: ${name}`,
    ...facts.memory[at].map((parts) => (parts[i] ? mb(parts[i]) : "–"))]);
  rows.push(["total", ...facts.totals[at].map(mb)]);
  if (found) rows.push(["on virtual GPUs", ...found.held.map((size, i) =>
    `${mb(size)}, ${size === facts.totals[at][i] ? "the same" : "differs"}`)]);
  const way = (end) => (end === "host" ? end : `device ${end}`);
  const seen = (i) => {
    const other = found.moved[i]?.[2] ?? 0;
    return `${mb(other)}, ${other === facts.moves[at][i][2] ? "the same" : "differs"}`;
  };
  return { picture: [
    h("p", {}, h("b", {}, `Stage ${at}: ${stage}. `),
      "Dashed: the most that a device holds in the step."),
    picture(WIDTH + 2, state.num_devices * 46,
      devices.map((i) => `device ${i} holds ${mb(facts.totals[at][i])}`).join(", "),
      devices.map((i) => bar(i, view))),
  ], below: [
    table(`Memory after ${stage}`, ["part", ...devices.map((i) => `device ${i}`)], rows),
    facts.moves[at].length > 0 && table(`What ${stage} moves`,
      ["from", "to", "size", ...(found ? ["on virtual GPUs"] : [])],
      facts.moves[at].map(([from, to, size], i) =>
        [way(from), way(to), mb(size), ...(found ? [seen(i)] : [])])),
    h("p", {}, `In a step device 0 sends ${mb(facts.sent_by_0)} to the others and gets `
      + `${mb(facts.sent_to_0)} from them. In DDP's ring, each device would send ${mb(facts.ddp)}.`),
  ] };
}

export default explorable({
  name: "data_parallel", title: "A step of DataParallel: what each device holds", label: "A batch, a model and its devices", fields, compute, draw,
  live: "Run torch's own on virtual GPUs",
});
