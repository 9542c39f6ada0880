// DataParallel's step, stage by stage. Mirrors sums.py.

import { h, picture, rect, text, rankColor, amount, table, whole, nice, FINE, hatched, draggable, explorable } from "../kit/kit.js";
import { BOUNDS, OPTIMIZERS } from "./figure.py";
import { STAGES, PARTS } from "./sums.py";

const upto = (number) => [...Array(number).keys()];
const sum = (values) => values.reduce((a, b) => a + b, 0);
const samples = (number) => `${number} sample${number === 1 ? "" : "s"}`;
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

function summary(state, facts) {
  const { shares, fullest } = facts, stage = STAGES[state.stage], { num_devices } = state, failed = failing(facts);
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
  if (state.stage === failed) says[stage] += " It does not fit: the step ends here.";
  if (failed !== null && state.stage > failed) says[stage] = `Not reached, because ${STAGES[failed]} ran out of memory.`;
  const idle = num_devices - shares.length;
  return `Shares of ${shares.join(", ")} samples`
    + (idle ? `; ${idle} of ${num_devices} devices without.` : ".")
    + ` Stage ${stage}: ${says[stage]} Device 0 ${failed === null ? "holds" : "would hold"} up to ${mb(fullest[0])} in a step`
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
    waits: STAGES.map((stage) => devices.map((i) => stage !== "start"
      && i >= (["loss", "step"].includes(stage) ? 1 : shares.length))),
    fullest: devices.map((i) => Math.max(...totals.map((row) => row[i]))),
    runs_out: devices.map((i) => {
      const stage = totals.findIndex((row) => row[i] > state.memory_mb);
      return stage < 0 ? null : stage;
    }),
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
  bounded("memory_mb", "memory of a device (MB)"),
  { name: "loss_inside", label: "loss inside of forward", kind: "flag" },
  { name: "stage", label: "stage", kind: "step", film: true, max: () => STAGES.length - 1, stop: failing,
    said: (s) => STAGES[s.stage] },
];

// The kinds of memory: a letter where the word does not fit, and a depth that differs
// from its neighbors'. W, S and G stay as they are in every figure about memory.
const LETTERS = "WSGIAOL", DEEP = [36, 26, 16, 4, 12, 28, 20];
const FILM = 46, ROWS = 236, ROOM = 22, WAITS = 62; // px: frames of the film, all bars, below device 0, at the right
const small = { class: "x-small" }, left = { ...small, "text-anchor": "start" }, right = { ...small, "text-anchor": "end" };
const OVER = "paint-order: stroke; stroke: var(--x-ground); stroke-width: 4px"; // words on a line
const wide = (words) => 6.9 * words.length + 4; // px of small letters, at most
const shade = (deep) => ({ style: `--deep: ${deep}%` });

// The first stage in which a device runs out of memory, or null: a step ends there.
function failing({ runs_out }) {
  const stages = runs_out.filter((stage) => stage !== null);
  return stages.length ? Math.min(...stages) : null;
}
const unreached = ({ state, facts, asking }) => !asking && failing(facts) !== null && state.stage > failing(facts);

// Where everything is: heights do not depend on the state, so that nothing moves.
function layout({ state, facts, before, width, narrow }) {
  const n = state.num_devices, edge = narrow ? 40 : 60, top = FILM + (narrow ? 30 : 46);
  const until = nice(Math.max(...facts.fullest, ...(before?.facts.fullest ?? []), 1), FINE);
  const pitch = Math.min(58, (ROWS - ROOM) / n), high = Math.min(34, pitch - 16);
  const y = (device) => top + device * pitch + (device ? ROOM : 0) + 15;
  return { edge, top, until, high, y, scale: (width - edge - (narrow ? 4 : WAITS)) / until, middle: (device) => y(device) + high / 2 };
}

// What a device holds of one kind, as [size, attributes, hue of what came from elsewhere].
// Parts have the ids of where they were, so that they fly from device to device.
function pieces({ state: { stage: at, loss_inside }, facts }, device, kind) {
  const size = facts.memory[at][device][kind], id = `${device} ${kind}`, stage = STAGES[at];
  if (stage === "scatter" && kind === 3) return [[size, { "data-id": id, "data-from": "host" }, "var(--x-soft)"]];
  if (stage === "replicate" && kind === 0 && device) return [[size, { "data-id": id, "data-from": "sent" }, rankColor(0)]];
  if (stage === "gather" && kind === 5 && !device && !loss_inside) {
    const come = facts.moves[at].map(([from, , bytes]) =>
      [bytes, { "data-id": `gathered ${from}`, "data-from": `${from} 5` }, rankColor(from)]);
    return [[size - sum(come.map(([bytes]) => bytes)), { "data-id": id }], ...come];
  }
  return [[size, { "data-id": id }]];
}

// Name a part by its word, else by its letter, else not.
function named(kind, x, width, y, high, plate) {
  const words = [PARTS[kind], LETTERS[kind]].find((one) => wide(one) < width);
  return words && high > 13 && [plate && rect(x + (width - wide(words)) / 2, y + high / 2 - 7, wide(words), 14, { class: "x-plate" }),
    text(x + width / 2, y + high / 2 + 4, words, small)];
}

// Draw what one device holds as a bar; the dashed frame is the most that it holds in the
// step. What has just come is hatched in the hue of where it comes from; the gradients that
// have been added up are striped in the hues of all.
function bar(device, view, { edge, scale, high, y: place }) {
  const { facts, before } = view, at = view.asking ? 0 : view.state.stage, y = place(device), ghost = before?.facts.fullest[device];
  const full = edge + view.state.memory_mb * scale, idle = view.narrow ? view.width - 26 : edge + facts.fullest[device] * scale + 32;
  const seen = { ...view, state: { ...view.state, stage: at } };
  const never = unreached(view);
  let x = edge;
  const parts = PARTS.map((_, kind) => pieces(seen, device, kind).map(([size, id, hue]) => {
    const start = x, width = size * scale, box = [start, y, width, high];
    x += width;
    if (!size) return null;
    const added = !never && STAGES[at] === "reduce" && kind === 2 && facts.shares.length > 1;
    const band = high / facts.shares.length;
    return [
      added ? facts.shares.map((_, from) => rect(start, y + from * band, width, band, { class: "x-box", rx: 0,
        style: `--hue: ${rankColor(from)}; --deep: 36%`, "data-id": `added ${from}`, "data-from": `${from} 2` }))
        : hue && !never ? hatched(...box, hue, { rx: 0, ...id }) : rect(...box, { class: "x-box", rx: 0, ...shade(DEEP[kind]), ...id }),
      named(kind, start, Math.min(x, full) - start, y, high, hue || added)]; // beyond are other words
  }));
  if (view.asking) return h("svg:g", { style: `--hue: ${rankColor(device)}` }, // what it will hold is the answer
    h("svg:text", { x: edge, y: y - 4, ...left }, h("svg:tspan.x-strong", {}, `device ${device}`),
      `: ${mb(facts.totals[0][device])}, then ${samples(facts.shares[device] ?? 0)}${view.narrow ? "" : ` and their ${view.state.loss_inside ? "loss" : "outputs"}`}: ?`),
    rect(edge, y, full - edge, high, { class: "x-frame", rx: 0 }), parts, coming(device, view, x, y, high, scale));
  return h("svg:g", { style: `--hue: ${never ? "var(--x-soft)" : rankColor(device)}` },
    // The weights that replicate sends leave from here.
    !device && STAGES[at] !== "replicate" && rect(edge, y, facts.memory[at][0][0] * scale, high, { fill: "none", "data-id": "sent" }),
    h("svg:text", { x: edge, y: y - 4, ...left },
      h("svg:tspan.x-strong", {}, `device ${device}`), `: ${mb(facts.totals[at][device])}`,
      device < facts.shares.length ? "" : ", no share",
      h("svg:tspan.x-answer", {}, `, at most ${mb(facts.fullest[device])}${view.narrow ? "" : " in the step"}`)),
    !never && facts.waits[at][device] && [rect(idle - 24, view.narrow ? y - 15 : y + high / 2 - 8, 48, view.narrow ? 14 : 16, { class: "x-wait" }),
      text(idle, view.narrow ? y - 4 : y + high / 2 + 4, "waits", small)],
    rect(edge, y, facts.fullest[device] * scale, high, { class: "x-idle x-answer", rx: 0, "data-id": `full ${device}` }),
    ghost > 0 && h("svg:path", { class: "x-ghost", d: `M${edge + ghost * scale} ${y}v${high}` }),
    h("svg:g", { opacity: never ? 0.7 : null }, parts),
    !never && x > full && rect(full, y, x - full, high, { class: "x-wrong", rx: 0, "data-id": `over ${device}` }),
    !never && x > full + wide("does not fit") && high > 13 && text((full + x) / 2, y + high / 2 + 4, "does not fit", { class: "x-small x-on-wrong" }));
}

// Draw what a question lets one know: that weights and inputs come, and forward's activations.
function coming(device, { facts, state }, x, y, high, scale) {
  if (device >= facts.shares.length) return null;
  const share = facts.shares[device], come = [device ? state.param_mb : 0, 0, 0, share * state.input_mb, share * state.activation_mb];
  return come.map((size, kind) => {
    const start = x, width = size * scale;
    x += width;
    return size > 0 && [rect(start, y, width, high, { class: "x-idle", rx: 0 }), named(kind, start, width, y, high)];
  });
}

// Draw how much memory each device has, through all bars but no words; what passes it does
// not fit.
function limit({ state: { memory_mb, num_devices }, width }, { edge, top, until, scale, high, y }) {
  const words = `memory: ${mb(memory_mb)}`, x = edge + Math.min(memory_mb, until) * scale, floor = top + ROWS + 12;
  if (memory_mb > until) return text(width - 2, floor - 9, `${words} each →`, { ...right, class: "x-small x-strong" });
  return [h("svg:path", { d: `${upto(num_devices).map((i) => `M${x} ${y(i) - 2}v${high + 4}`).join("")}M${x} ${floor - 5}V${floor}`, style: "stroke: var(--x-ink); stroke-width: 2", "data-id": "limit" }),
    text(Math.max(edge + wide(words) / 2, Math.min(x, width - wide(words) / 2)), floor - 7, words, { class: "x-small x-strong", style: OVER })];
}

// Bracket what device 0 needs beyond any other.
function excess({ facts: { fullest: [first, second = first] }, width }, { edge, scale, high, y }) {
  if (first <= second) return null;
  const [from, to, at] = [edge + second * scale, edge + first * scale, y(0) + high + 5];
  const words = `${mb(first - second)} more than the others`, half = wide(words) / 2;
  return h("svg:g", { class: "x-answer" },
    h("svg:path", { class: "x-arrow", d: `M${from} ${at - 3}v6m0 -3H${to}m0 -3v6` }),
    text(Math.max(edge + half, Math.min((from + to) / 2, width - half)), at + 15, words, { class: "x-small x-strong", style: OVER }));
}

// Name what moves in this stage, or return "".
const CARRY = { scatter: "inputs", replicate: "weights", gather: "outputs", backward: "gradients of outputs", reduce: "gradients" };
function carried({ state: { stage }, facts }) {
  const sizes = facts.moves[stage].map((move) => move[2]), most = Math.max(...sizes);
  return sizes.length ? `${CARRY[STAGES[stage]]}, ${mb(most)} ${sizes.every((size) => size === most) ? "each" : "at most"}` : "";
}

// Draw what moves in this stage, each arrow as thick as its bytes, in the hue of its source.
function arrows({ state, facts }, { edge, middle, top }) {
  const most = Math.max(...facts.moves.flat().map((move) => move[2])), x = edge - 5;
  return facts.moves[state.stage].map(([from, to, size]) => {
    const host = from === "host", start = host ? top + 2 : middle(from), end = middle(to);
    const bow = 8 + (x - 12) * Math.abs(end - start) / ROWS, hue = host ? "var(--x-soft)" : rankColor(from);
    return h("svg:g", { style: `--hue: ${hue}` },
      h("svg:path", { class: "x-arrow", d: `M${x} ${start}C${x - bow} ${start} ${x - bow} ${end} ${x - 8} ${end}`,
        style: `stroke: ${hue}; stroke-width: ${1.5 + 5 * size / most}px`, "data-id": `move ${from} ${to}` }),
      h("svg:path", { d: `M${x + 2} ${end}l-11 -6v12z`, style: `fill: ${hue}` }));
  });
}

// The stages as a film: what every device holds at the end of each. The frame that is
// looked at can be pulled along, and each can be chosen. While a question is open, its
// frames say only which devices hold anything.
function film(view, { until }) {
  const { state, facts, set, width, narrow } = view, never = unreached(view), says = never ? "not reached" : carried(view);
  const line = STAGES[state.stage] + (says && `: ${says}`), failed = failing(facts);
  const at = state.stage, pitch = width / STAGES.length, wideness = pitch - (narrow ? 3 : 7);
  const each = (FILM - 8) / state.num_devices, place = (device) => 4 + device * each;
  const frame = (totals, k) => h("svg:g", { style: "cursor: pointer", onclick: () => set({ stage: k }) },
    rect(k * pitch + 1, 1, wideness, FILM - 2, { class: "x-frame", fill: "transparent", style: "pointer-events: all" }),
    k === failed && rect(k * pitch + 1, 1, wideness, FILM - 2, { class: "x-wrong x-answer", "pointer-events": "none" }),
    totals.map((total, device) => total > 0 && rect(k * pitch + 4, place(device), Math.max(1, (wideness - 6) * total / until),
      Math.max(1.5, each - 2), { class: "x-box x-answer", rx: 0, ...failed !== null && k > failed ? { opacity: 0.45, style: "--hue: var(--x-soft); --deep: 12%" }
        : { style: `--hue: ${rankColor(device)}; --deep: 60%` } })),
    totals.map((total, device) => total > 0 && rect(k * pitch + 4, place(device), wideness - 6, Math.max(1.5, each - 2), { class: "x-idle x-guess", rx: 0 })),
    !narrow && STAGES[k].replace("_", "_ ").split(" ").map((line, i) =>
      text(k * pitch + wideness / 2, FILM + 13 + 13 * i, line, { class: k === at ? "x-small x-strong" : "x-small" })));
  const half = 3.7 * line.length, middle = at * pitch + wideness / 2;
  return [facts.totals.map(frame),
    narrow && text(Math.max(half, Math.min(middle, width - half)), FILM + 14, line, { class: "x-small x-strong" }),
    draggable(h("svg:g", {}, rect(at * pitch + 1, 1, wideness, FILM - 2, { class: "x-chosen", fill: "transparent", "data-id": "frame" })),
      "stage", { label: "stage, in the film", now: at, low: 0, high: STAGES.length - 1, said: STAGES[at],
        move: (by, start) => Math.round(start + by / pitch), step: (by) => at + by, set: (stage) => set({ stage }) })];
}

// The kinds of memory in gray, in as many lines as the width needs.
function legend(width, top) {
  let x = 0, y = top;
  const parts = PARTS.map((name, kind) => {
    const room = 32 + 6.3 * name.length;
    if (x + room > width) [x, y] = [0, y + 20];
    const start = x;
    x += room;
    return [rect(start + 1, y, 18, 16, { class: "x-box", rx: 0, style: `--hue: var(--x-soft); --deep: ${DEEP[kind]}%` }),
      text(start + 10, y + 12, LETTERS[kind], small), text(start + 23, y + 12, name, left)];
  });
  return { parts, bottom: y + 24 };
}

function draw(view) {
  const { state, facts, measured, width, narrow } = view, at = state.stage, devices = upto(state.num_devices);
  const stage = STAGES[at], found = measured?.stages?.[stage], place = layout(view);
  const { edge, top, until, scale } = place, floor = top + ROWS + 12, key = legend(width, floor + 26);
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
  return {
    picture: picture(width, key.bottom, "",
      film(view, place),
      text(edge - 8, top + 6, "host", { ...right, class: "x-small" }),
      // The batch waits there until it is cut.
      (view.asking || at < 1) && [rect(edge - 34, top + 11, 26, 16, { class: "x-box", style: "--hue: var(--x-soft)", "data-id": "host" }), text(edge - 21, top + 23, state.batch_size, small)],
      devices.map((i) => bar(i, view, place)),
      limit(view, place),
      excess(view, place),
      !unreached(view) && arrows(view, place),
      !narrow && (unreached(view) || carried(view)) && text(width - 2, place.y(0) - 4,
        unreached(view) ? `not reached: ${STAGES[failing(facts)]} ran out of memory` : `arrows: ${carried(view)}`, right),
      h("svg:path", { class: "x-frame", d: `M${edge} ${floor - 4}v4H${edge + until * scale}v-4` }),
      [0, 0.5, 1].map((part, i) => text(edge + part * until * scale, floor + 15, part ? mb(part * until) : "0",
        { ...small, "text-anchor": ["start", "middle", "end"][i] })),
      key.parts),
    below: [
      h("p", {}, "Hatched: it has just come, from the device that has this hue. Striped: added up from all. Dashed: "
        + "the most that a device holds in the step; the dotted upright is that most before your last change. "
        + "An arrow is as thick as its bytes."),
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

const FITS = "None: it fits.";
const first = ({ facts }) => STAGES[failing(facts)] ?? FITS;
const guesses = (view) => [...STAGES, FITS].filter((one) => ["parallel_apply", "gather", "backward", first(view)].includes(one));
const ask = {
  question: ({ state }) => `${samples(state.batch_size)} on ${state.num_devices} device${state.num_devices > 1 ? "s" : ""} of ${mb(state.memory_mb)}: which stage runs out of memory first?`,
  options: guesses,
  answer: (view) => guesses(view).indexOf(first(view)),
  because: ({ state, facts: { fullest, totals, runs_out }, facts }) => {
    const stage = failing(facts), device = Math.max(0, runs_out.indexOf(stage)), [other] = fullest.slice(1);
    return `${stage === null ? `At most, device 0 needs ${mb(fullest[0])}` : `There, device ${device} needs ${mb(totals[stage][device])} of ${mb(state.memory_mb)}`}`
      + `${other === undefined ? "." : device ? `, device 0 ${mb(totals[stage][0])}.` : `, and device 1 never more than ${mb(other)}.`}`;
  },
  show: { stage: 0 }, // so that one walks through the step from its start
};

export default explorable({
  name: "data_parallel", title: "DataParallel: what each device holds",
  label: "A batch, a model and its devices", fields, compute, draw, ask,
  live: "Run torch's own on virtual GPUs",
  sentence: "{batch_size} samples on {num_devices} devices; {param_mb} MB of weights, and "
    + "{activation_mb} MB of activations per sample.",
});
