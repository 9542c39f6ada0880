// DataParallel's step, stage by stage. Mirrors sums.py.

import { h, picture, rect, text, rankColor, amount, table, whole, nice, draggable, explorable } from "../kit/kit.js";
import { BOUNDS, OPTIMIZERS } from "./figure.py";
import { STAGES, PARTS } from "./sums.py";

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

const bounded = (name, label, knob = false) => ({ name, label, kind: "whole", knob,
  min: BOUNDS[name][0], max: BOUNDS[name][1],
  range: [...BOUNDS[name], BOUNDS[name][0] > 0 && BOUNDS[name][1] > 100] });

const fields = [
  bounded("batch_size", "batch size (of all devices)", true),
  bounded("num_devices", "devices", true),
  bounded("param_mb", "parameters (MB)", true),
  { name: "optimizer", label: "optimizer", kind: "choice",
    options: Object.keys(OPTIMIZERS).map((name) => [name, name]) },
  bounded("input_mb", "input of a sample (MB)"),
  bounded("activation_mb", "activations of a sample (MB)"),
  bounded("output_mb", "outputs of a sample (MB)"),
  { name: "loss_inside", label: "loss inside of forward", kind: "flag" },
  { name: "stage", label: "stage", kind: "step", max: () => STAGES.length - 1,
    said: (s) => STAGES[s.stage] },
];

const LETTERS = "WSGIAOL", ROWS = 296, AXIS = 26, TOP = 24;

// Draw what one device holds as a bar, each part marked with its letter; the dashed
// frame is the most that it holds during the step.
function bar(device, { state, facts, before }, { left, scale, pitch }) {
  const at = state.stage, y = TOP + device * pitch + 18, high = Math.min(40, pitch - 24);
  let x = left;
  const parts = facts.memory[at][device].map((size, i) => {
    const width = size * scale, start = x;
    x += width;
    if (!size) return null;
    const strong = `fill: color-mix(in srgb, var(--hue) ${6 + 4 * i}%, transparent)`;
    return [rect(start, y, width, high, { class: "x-box", style: strong, rx: 0, "data-id": `${device} ${i}` }),
      width > 14 && text(start + width / 2, y + high / 2 + 4, LETTERS[i], { class: "x-small" })];
  });
  const ghost = before?.facts.fullest[device];
  return h("svg:g", { style: `--hue: ${rankColor(device)}` },
    text(left, y - 4, `device ${device}: ${mb(facts.totals[at][device])}`
      + (device < facts.shares.length ? "" : ", no share"), { "text-anchor": "start" }),
    rect(left, y, facts.fullest[device] * scale, high, { class: "x-idle x-answer", rx: 0, "data-id": `full ${device}` }),
    ghost > 0 && h("svg:path", { class: "x-ghost", d: `M${left + ghost * scale} ${y - 3}v${high + 6}` }),
    parts);
}

// Draw what moves in this stage, each arrow as thick as its bytes.
function arrows(moves, most, y, x) {
  return moves.map(([from, to, size]) => {
    const start = from === "host" ? TOP - 8 : y(from), end = y(to), wide = 10 + (x - 16) * Math.abs(end - start) / ROWS;
    const id = { "data-id": `move ${from} ${to}` };
    return [
      h("svg:path", { class: "x-arrow", d: `M${x} ${start}C${x - wide} ${start} ${x - wide} ${end} ${x - 6} ${end}`,
        style: `stroke-width: ${1 + 7 * size / most}px`, ...id }),
      h("svg:path", { class: "x-tip", d: `M${x + 2} ${end}l-11 -6v12z` }),
    ];
  });
}

function draw(view) {
  const { state, facts, before, set, measured, width, narrow } = view, at = state.stage;
  const devices = upto(state.num_devices);
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
  const left = narrow ? 44 : 72, until = nice(Math.max(...facts.fullest, ...(before?.facts.fullest ?? []), 1));
  const scale = (width - left - 4) / until, pitch = Math.min(68, (ROWS - TOP) / state.num_devices);
  const middle = (device) => TOP + device * pitch + 18 + Math.min(40, pitch - 24) / 2;
  const most = Math.max(...facts.moves.flat().map((move) => move[2]), 1);
  const [first, second] = [facts.fullest[0], facts.fullest[1] ?? facts.fullest[0]];
  const high = Math.min(40, pitch - 24), weights = left + state.param_mb * scale;
  const size = (value) => Math.min(5000, Math.max(1, Math.round(value)));
  return {
    picture: picture(width, ROWS + AXIS, "",
      text(left, 14, `stage ${at} of ${STAGES.length - 1}: ${stage}`, { "text-anchor": "start", class: "x-strong" }),
      first > second && h("svg:g", { class: "x-answer" },
        rect(left + second * scale, TOP + 18, (first - second) * scale, high, { class: "x-wait", rx: 0, "data-id": "excess" }),
        text(width - 4, TOP + 14, `device 0 alone: + ${mb(first - second)}`, { "text-anchor": "end", class: "x-small" })),
      devices.map((i) => bar(i, view, { left, scale, pitch })),
      arrows(facts.moves[at], most, middle, left - 6),
      draggable(h("svg:g", {},
        h("svg:rect", { x: weights - 22, y: TOP + 14, width: 44, height: 44, fill: "transparent" }),
        h("svg:rect", { x: weights - 4, y: TOP + 16, width: 8, height: high + 4, rx: 4, class: "x-handle" })),
      "weights", { label: "parameters (MB), the edge of the weights", now: state.param_mb, low: 1, high: 5000,
        said: mb(state.param_mb), move: (by, start) => size(start + by / scale),
        step: (by) => size(by > 0 ? Math.max(state.param_mb + 1, state.param_mb * 1.1 ** by)
          : Math.min(state.param_mb - 1, state.param_mb * 1.1 ** by)),
        set: (param_mb) => set({ param_mb }) }),
      h("svg:path", { class: "x-frame", d: `M${left} ${ROWS + 4}H${width - 4}` }),
      [0, 0.5, 1].map((part, i) => text(left + part * until * scale, ROWS + 20, part ? mb(part * until) : "0",
        { "text-anchor": ["start", "middle", "end"][i], class: "x-small" }))),
    below: [
      h("p", {}, "W: weights, S: optimizer state, G: gradients, I: inputs, A: activations, O: outputs, "
        + "L: log-probabilities. Dashed: the most that a device holds in the step. An arrow is as thick as its bytes. "
        + "Drag the edge of the weights."),
      table(`Memory after ${stage}`, ["part", ...devices.map((i) => `device ${i}`)], rows),
      facts.moves[at].length > 0 && table(`What ${stage} moves`,
        ["from", "to", "size", ...(found ? ["on virtual GPUs"] : [])],
        facts.moves[at].map(([from, to, size], i) =>
          [way(from), way(to), mb(size), ...(found ? [seen(i)] : [])])),
      h("p", {}, `In a step device 0 sends ${mb(facts.sent_by_0)} to the others and gets `
        + `${mb(facts.sent_to_0)} from them. In DDP's ring, each device would send ${mb(facts.ddp)}.`),
    ],
  };
}

const ask = {
  question: "The batch is shared out evenly. Which device runs out of memory first?",
  options: ["device 0", "device 1", "All fill up alike."],
  answer: ({ facts: { fullest: [first, second = first] } }) => (first > second ? 0 : first < second ? 1 : 2),
  because: ({ facts: { fullest } }) => `Device 0 holds up to ${mb(fullest[0])} in a step`
    + `${fullest.length > 1 ? `, device 1 up to ${mb(fullest[1])}` : ""}.`,
};

export default explorable({
  name: "data_parallel", title: "A step of DataParallel: what each device holds",
  label: "A batch, a model and its devices", fields, compute, draw, ask,
  live: "Run torch's own on virtual GPUs",
  sentence: "{batch_size} samples on {num_devices} devices; {param_mb} MB of weights, and "
    + "{activation_mb} MB of activations per sample.",
});
