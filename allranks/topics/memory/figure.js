// The mountain: what a training step holds in memory over its time. Mirrors sums.py.

import { h, picture, rect, text, rankColor, table, whole, amount, nice, FINE, draggable, explorable } from "../kit/kit.js";
import { CHUNKS, MOST, MOST_GB, PLACES, TABLES } from "./figure.py";
import { DEPTHS } from "./picture.py";
import { FLOPS, KINDS, LOGIT, MEMORY_RATE, MODELS } from "./sums.py";

const sum = (values) => values.reduce((a, b) => a + b, 0);
const range = (n) => [...Array(n).keys()];
const SIZES = ["family", "dim", "layers", "heads", "kv_heads", "hidden", "tokens", "words", "tied"];
const { family: FAMILIES, precision: PRECISIONS, optimizer: OPTIMIZERS, checkpointing: CHECKPOINTING } = TABLES;

// What a block keeps for backward, as [part, what, numbers per token, always float32].
function saved({ family, dim, heads, kv_heads, hidden }) {
  const kv = dim / heads * kv_heads, llama = family === "llama", [stats, inner] = llama ? [1, 4] : [2, 2];
  const scale = llama ? "the norm's scale" : "the norm's mean and scale";
  return [
    ["attention", "the layer's input", dim], ["attention", scale, stats, true],
    ["attention", "input of q, k and v", dim], ["attention", "queries, keys, values", dim + 2 * kv],
    ["attention", "a sum for each head", heads, true], ["attention", "output of attention", dim],
    ["mlp", "input of the second norm", dim], ["mlp", `${scale}, again`, stats, true],
    ["mlp", "input of the MLP", dim], ["mlp", `${inner} vectors inside the MLP`, inner * hidden],
  ];
}

// Bytes per token that a block keeps, and those in its own backward.
function kept(state, size) {
  const again = { none: [], attention: ["attention"], layer: ["attention", "mlp"] }[state.checkpointing];
  const sizes = saved(state).map(([part, , numbers, exact]) => [part, numbers * (exact ? 4 : size)]);
  const input = again.length ? sizes[0][1] : 0;
  const least = input + sum(sizes.filter(([part]) => !again.includes(part)).map(([, bytes]) => bytes));
  return [least, again.length > 1 ? sum(sizes.map(([, bytes]) => bytes)) : least];
}

// A GPT has keys and values for all heads, and an MLP of four times its width.
const settled = (state) => (state.family === "gpt" ? { ...state, kv_heads: state.heads, hidden: 4 * state.dim } : state);

function perParameter({ precision, optimizer }) {
  const [, weight, gradient, master, state] = PRECISIONS[precision], [, states, , block] = OPTIMIZERS[optimizer];
  return [weight, master, states * (block ? 1 + 4 / block : state), gradient];
}

// Numbers, bytes and seconds that follow from the state, as Sizes in sums.py has them.
function sizesOf(state) {
  const { dim, heads, kv_heads, layers, hidden, tokens, words, tied, batch_size, precision } = state;
  if (dim % heads || heads % kv_heads)
    throw Error(`heads is ${heads}: it must divide dim, ${dim}, and be a multiple of kv_heads, ${kv_heads}`);
  const llama = state.family === "llama", kv = dim / heads * kv_heads, N = batch_size * tokens, matrix = words * dim;
  const attention = llama ? 2 * dim * (dim + kv) : 4 * dim * dim;
  const matrices = attention + (llama ? 3 * dim * hidden : 8 * dim * dim);
  const size = PRECISIONS[precision][5], logits = LOGIT * words * N;
  const [first, most] = kept(state, size), vector = size * dim * N, rate = perParameter(state);
  const block = matrices + (llama ? 2 * dim : 13 * dim), own = tied ? 0 : matrix + (llama ? 0 : words);
  const s = { llama, N, matrix, block, vector, logits, rate, shared: tied ? matrix : 0,
    embedding: (llama ? 0 : tokens * dim) + (tied ? 0 : matrix), head: own + (llama ? 1 : 2) * dim,
    last: dim * (hidden + (llama ? 0 : 1)), inner: size * hidden * N, out: size * words * N, ups: llama ? 2 : 1,
    first: first * N, most: most * N, top: 2 * vector + 4 * N * (llama ? 1 : 2),
    inBlock: 2 * matrices * N / FLOPS, inAttention: 2 * N * (2 * dim + 2 * kv) * dim / FLOPS,
    inHead: 2 * matrix * N / FLOPS, inLoss: 3 * logits / MEMORY_RATE, moves: 2 * vector / MEMORY_RATE,
    update: (2 * (rate[0] + rate[1] + rate[2]) + rate[3]) / MEMORY_RATE };
  return { ...s, numParams: s.shared + s.embedding + layers * block + s.head };
}

// Lay out a step as [phase, name, start, end, bytes by kind, blocks].
function stepOf(state) {
  const s = sizesOf(state), { layers: L, checkpointing: again, loss_chunks: chunks, release } = state, spans = [];
  const always = [0, 1, 2].map((i) => s.numParams * s.rate[i]), gradient = PRECISIONS[state.precision][2];
  let now = 0;
  const add = (phase, name, took, gradients, activations, logits, temporary, blocks) => {
    spans.push([phase, name, now, now + took, [...always, gradients * s.rate[3], activations, logits, temporary], blocks]);
    now += took;
  };
  add("forward", "embedding", s.moves, 0, 0, 0, s.vector, 0);
  const inside = again === "layer" ? (s.llama ? 2 : 5) * s.vector + (s.ups + 1) * s.inner : 2 * s.vector;
  for (let i = 0; i < L; i++) add("forward", `block ${i}`, s.inBlock, 0, (i + 1) * s.first, 0, inside, i + 1);
  const held = L * s.first + s.top, update = release && !s.shared ? s.head * s.update : 0;
  if (chunks > 1) {
    const chunk = 3 * LOGIT * state.words * Math.ceil(s.N / chunks);
    add("loss", "head and loss", 3 * s.inHead + 2 * s.inLoss, s.matrix, held, 0, chunk + s.vector, L);
    add("backward", "head", s.moves + update, s.matrix, held, 0, s.vector, L);
  } else {
    add("forward", "head", s.inHead, 0, held, 0, s.out, L);
    add("loss", "loss", s.inLoss, 0, held, s.logits, s.logits, L);
    add("loss", "loss, backward", s.inLoss, 0, held, s.logits, 2 * s.logits, L);
    add("backward", "head", 2 * s.inHead + update, s.matrix, held, 0, s.out + s.vector, L);
  }
  const took = 2 * s.inBlock + (again === "attention" ? s.inAttention : 0) + (release ? s.block * s.update : 0);
  const ready = (done) => s.shared + (release ? 0 : s.head + done * s.block);
  for (let i = L - 1; i >= 0; i--) {
    const there = i * s.first + s.most, done = ready(L - 1 - i);
    if (again === "layer") add("again", `block ${i}`, s.inBlock, done, there, 0, s.vector, i + 1);
    add("backward", `block ${i}`, took, done + s.last, there, 0, s.vector + s.ups * s.inner, i + 1);
  }
  const all = s.embedding + s.shared, [, , temporary] = OPTIMIZERS[state.optimizer];
  add("backward", "embedding", s.moves + (release ? all * s.update : 0), ready(L) + s.embedding, 0, 0,
    s.vector + 2 * gradient * s.shared, 0);
  if (!release) add("step", OPTIMIZERS[state.optimizer][0], s.numParams * s.update, s.numParams, 0, 0,
    temporary * PRECISIONS[state.precision][4] * s.numParams, 0);
  return spans;
}

const total = ([, , , , held]) => sum(held);
function peakOf(spans) {
  const totals = spans.map(total);
  return totals.indexOf(Math.max(...totals));
}
const short = (number) => `${Math.floor(number * 100 + 0.5) / 100}`;
const counted = (n) => (n >= 1e9 ? `${short(n / 1e9)} billion` : `${short(n / 1e6)} million`);
const B = (bytes) => amount(bytes, "B");
const phaseOf = ([phase]) => (phase === "again" ? "backward" : phase);
const place = (span) => PLACES[phaseOf(span)] + (span[0] === "step" ? "" : span[0] === "loss" ? span[1].split("loss")[1]
  : `, ${span[1]}${span[0] === "again" ? " again" : ""}`);
const capital = (words) => words[0].toUpperCase() + words.slice(1);

export function compute({ gpu_gb, moment, ...given }) {
  const state = settled(given);
  for (const [name, known] of Object.entries(TABLES))
    if (!Object.hasOwn(known, state[name]))
      throw Error(`${name} is ${state[name]}: there are ${Object.keys(known).join(", ")}`);
  for (const [name, most] of Object.entries(MOST))
    if (whole(name, given[name], 1) > most) throw Error(`${name} is ${given[name]}: at most ${most} fit here`);
  if (!(gpu_gb >= 1 && gpu_gb <= MOST_GB)) throw Error(`gpu_gb must be 1 to ${MOST_GB}`);
  whole("moment", moment, 0);
  const spans = stepOf(state), { numParams: n, N } = sizesOf(state), rate = perParameter(state), each = sum(rate);
  const peak = peakOf(spans), now = Math.min(moment, spans.length - 1), top = spans[peak];
  const over = Math.max(0, total(top) - 1e9 * gpu_gb), size = PRECISIONS[state.precision][5];
  return {
    num_params: n, per_parameter: rate, spans, peak, moment: now, over,
    longer: spans.at(-1)[3] / stepOf({ ...state, checkpointing: "none" }).at(-1)[3] - 1,
    saved: saved(state).map(([, what, numbers, exact]) => [what, N * numbers * (exact ? 4 : size)]),
    summary: `Training holds ${short(each)} bytes for each of ${counted(n)} parameters, ${B(n * each)}. `
      + `The peak, ${B(total(top))}, is ${place(top)}: `
      + `${over ? `${B(over)} too much for` : "it fits into"} ${B(1e9 * gpu_gb)}.`
      + (now === peak ? "" : ` ${capital(place(spans[now]))}: ${B(total(spans[now]))}.`),
  };
}

const count = (name, label, more = {}) => ({ name, label, kind: "whole", min: 1, max: MOST[name], ...more });
const chosen = (name, label, known, more = {}) => ({ name, label, kind: "choice",
  options: Object.entries(known).map(([key, one]) => [key, Array.isArray(one) ? one[0] : one]), ...more });
const modelOf = (state) => Object.keys(MODELS).find((name) => SIZES.every((one, i) => state[one] === MODELS[name][1][i])) ?? "";
// A change of the step leaves the reader at the same moment, or at the one most like it.
function stays(patch, state, facts) {
  try {
    const { spans } = compute({ ...state, ...patch }), [phase, name, a, b] = facts.spans[facts.moment];
    const share = (a + b) / 2 / facts.spans.at(-1)[3], like = spans.filter((span) => phaseOf(span) === phaseOf([phase]));
    const middle = ([, , from, to]) => (from + to) / 2 / spans.at(-1)[3];
    const [next] = [...like.length ? like : spans].sort((one, two) =>
      (two[0] === phase && two[1] === name) - (one[0] === phase && one[1] === name)
      || Math.abs(middle(one) - share) - Math.abs(middle(two) - share));
    return { ...patch, moment: spans.indexOf(next) };
  } catch {
    return patch; // the shell says why it is refused
  }
}
const staying = (field) => {
  const { name, set = (value) => ({ [name]: value }) } = field;
  return { ...field, set: (value, state, facts) => stays(set(value), state, facts) };
};

const fields = [
  chosen("checkpointing", "Checkpoints around", CHECKPOINTING, { knob: true }),
  { label: `Loss in ${CHUNKS} chunks`, kind: "flag", knob: true, get: (s) => s.loss_chunks > 1,
    set: (on) => ({ loss_chunks: on ? CHUNKS : 1 }) },
  { label: "Model", kind: "choice", knob: true, get: modelOf,
    options: (state) => [...Object.entries(MODELS).map(([name, [label]]) => [name, label]),
      ...modelOf(state) ? [] : [["", "your own sizes"]]],
    set: (name) => (name ? Object.fromEntries(SIZES.map((one, i) => [one, MODELS[name][1][i]])) : {}) },
  chosen("precision", "Precision", PRECISIONS),
  count("batch_size", "Samples", { range: [1, 256, true] }),
  count("tokens", "Tokens of a sample", { range: [128, 32768, true] }),
  count("layers", "Layers", { range: [1, 128, true] }),
  count("words", "Words", { range: [256, 262144, true] }),
  { name: "gpu_gb", label: "The GPU's GB", kind: "number", min: 1, range: [8, 288, true] },
  chosen("optimizer", "Optimizer", OPTIMIZERS),
  { name: "release", label: "Step in backward, gradients freed at once", kind: "flag" },
  count("loss_chunks", "Chunks of the loss"),
  chosen("family", "Family", FAMILIES), count("dim", "Width"), count("heads", "Heads"),
  count("kv_heads", "Heads of keys and values", { show: (s) => s.family === "llama" }),
  count("hidden", "Width of the MLP", { show: (s) => s.family === "llama" }),
  { name: "tied", label: "Head and embedding share weights", kind: "flag" },
].map(staying).concat({ name: "moment", label: "Moment", kind: "step", film: true, late: true,
  max: (facts) => facts.spans.length - 1, said: (_, facts) => place(facts.spans[facts.moment]) });

const small = { class: "x-small" }, START = { "text-anchor": "start" }, END = { "text-anchor": "end" };
const PARTED = "; stroke: var(--x-ground)"; // thin lines between the layers
const hue = (kind) => `--hue: ${rankColor(0)}; --deep: ${DEPTHS[kind]}%`;
const path = (d, look, more) => h("svg:path", { d, class: look, ...more });
const about = ({ gpu_gb, moment, ...state }) => JSON.stringify(state);
const flags = new Map(); // where readers planted a flag: from a state to a share of the step

// Where the parts of the drawing are, in px: the plot, and beside or below it the readout.
function layout({ facts, before, state, width, narrow }) {
  const { spans, peak } = facts, across = narrow ? width - 2 : width - 214, top = 26, high = narrow ? 208 : 276;
  const near = (one, two, by) => one < by * two && two < by * one, most = total(spans[peak]), long = spans.at(-1)[3];
  // The step before the last change is shown as well, if it is of about this size.
  const old = before?.facts, past = old && near(total(old.spans[old.peak]), most, 6) && near(old.spans.at(-1)[3], long, 2) && old.spans;
  const end = Math.max(long, past ? past.at(-1)[3] : 0), tall = Math.max(most, past ? total(past[old.peak]) : 0);
  const room = 1e9 * state.gpu_gb, until = nice(1.04 * (room < 2.2 * tall ? Math.max(tall, room) : tall), FINE);
  return { across, top, floor: top + high, room, until, end, past, narrow, width,
    x: (time) => 1 + (across - 2) * time / end, y: (bytes) => top + high - high * bytes / until,
    foot: top + high + 56, side: across + 14 };
}

// The outline of an area: over each part of the step from one height to another.
function area(spans, at, low, high) {
  const there = spans.map(([, , a, b], i) => `${at.x(a)} ${at.y(high[i])}L${at.x(b)} ${at.y(high[i])}`);
  const back = spans.map(([, , a, b], i) => `${at.x(b)} ${at.y(low[i])}L${at.x(a)} ${at.y(low[i])}`).reverse();
  return `M${[...there, ...back].join("L")}Z`;
}
const stack = (spans, kinds) => spans.map(([, , , , held]) => sum(held.slice(0, kinds)));

// The mountain, layer on layer; what is above the GPU's memory is black on yellow.
function mountain({ facts: { spans, over } }, at) {
  const layer = (kind, least) => area(spans, at, ...[0, 1].map((more) => stack(spans, kind + more).map((one) => Math.max(one, least))));
  return [KINDS.map((_, kind) => path(layer(kind, 0), "x-box", { style: hue(kind) + PARTED })),
    path(area(spans, at, spans.map(() => 0), stack(spans, KINDS.length)), "", { fill: "none", style: `stroke: ${rankColor(0)}` }),
    over > 0 && KINDS.map((_, kind) => path(layer(kind, at.room), "x-wrong", { "stroke-width": 0.5 }))];
}

// Words on the mountain: each kind's where it is high enough, and what the peak is.
function labels({ facts }, at) {
  const { spans, over } = facts;
  const time = 0.62 * spans.at(-1)[3], { [4]: held } = under(spans, time), line = at.y(at.room);
  const names = KINDS.map((name, kind) => {
    const [low, high] = [0, 1].map((more) => at.y(sum(held.slice(0, kind + more))));
    const below = [low, Math.max(high, line)], above = [Math.min(low, line), high];
    const [a, b] = [below, above].sort((one, two) => (two[0] - two[1]) - (one[0] - one[1]))[0];
    return a - b > (kind < 3 ? 18 : 64) && text(at.x(time), (a + b) / 2 + 4, name,
      { class: a > line ? "x-small" : "x-small x-on-wrong", ...DEPTHS[kind] > 50 && a > line && { style: "fill: var(--x-ground)" } });
  });
  const { x, y, words, half, middle } = summit(facts, at);
  return [names, over > 0 && rect(middle - half, y - 27, 2 * half, 19, { class: "x-wrong" }),
    path(`M${x} ${y - 2}l-5 -7h10z`, "x-tip"), text(middle, y - 13, words, { class: over > 0 ? "x-on-wrong" : "x-strong" })];
}

// Where the peak is, and the words above it.
function summit({ spans, peak, over }, at) {
  const [, , a, b] = spans[peak], x = at.x((a + b) / 2), most = total(spans[peak]);
  const words = `peak ${B(most)}${over > 0 ? `, ${B(over)} too much` : ""}`, half = 8 + 3.8 * words.length;
  return { x, y: at.y(most), words, half, middle: Math.min(Math.max(x, half), at.across - half) };
}

// What is there before the step begins, and the flag that says where the peak will be.
function guessing({ state, facts: { spans }, set }, at) {
  const ground = spans.map(() => sum(spans[0][4].slice(0, 3))), now = flags.get(about(state)), share = now ?? 0.16, own = spans.at(-1)[3];
  const x = at.x(share * own), low = at.y(ground[0]), cloth = x + CLOTH < at.across ? x : x - CLOTH;
  return [range(3).map((kind) => path(area(spans, at, stack(spans, kind), stack(spans, kind + 1)), "x-box", { style: hue(kind) + PARTED })),
    text(at.across - 6, low - 8, at.narrow ? "weights, optimizer: always there" : "weights and the optimizer's state are always there", { ...END, class: "x-small x-soft" }),
    draggable(h("svg:g", {}, rect(x - 22, at.top, 44, at.floor - at.top, { fill: "transparent" }),
      path(`M${x} ${at.top + 4}V${at.floor}`, "", { style: "stroke: var(--x-mark); stroke-width: 2" }),
      rect(cloth, at.top + 4, CLOTH, 30, { class: "x-handle", rx: 2, "data-id": "flag" }),
      text(cloth + CLOTH / 2, at.top + 24, now === undefined ? "\u2194 drag me to the peak" : "\u2194 the peak will be here",
        { style: "fill: var(--x-ground)" })),
    "flag", { label: "your flag: where the peak will be", now: Math.round(100 * share), low: 0, high: 100,
      said: place(under(spans, share * own)), move: (by, start) => start + 100 * by / (at.x(own) - 1), step: (by) => 100 * share + 2 * by,
      set: (percent) => {
        flags.set(about(state), Math.min(100, Math.max(0, percent)) / 100);
        set({}); // nothing but the drawing changes
      } })];
}
const CLOTH = 172; // px: the flag has room for what it says
// The flag that was planted, as high as the mountain there, and beside the peak's words.
function planted(share, { facts }, at) {
  const { spans } = facts, x = at.x(share * spans.at(-1)[3]), top = summit(facts, at);
  const y = at.y(total(under(spans, share * spans.at(-1)[3]))) - 36, hidden = Math.abs(x - top.middle) < top.half + 34 && y < top.y + 6;
  return [path(`M${x} ${hidden ? top.y + 12 : y}V${at.floor}`, "", { style: "stroke: var(--x-mark); stroke-width: 2" }),
    path(`M${x} ${hidden ? top.y + 12 : y}l28 10l-28 10z`, "x-open", { "data-id": "flag" })];
}
const under = (spans, time) => spans.find(([, , , end]) => time < end) ?? spans.at(-1);

// The step's phases below the plot, and in them the layers.
function phases({ facts: { spans } }, at) {
  const found = [];
  for (const span of spans) {
    const phase = phaseOf(span);
    if (found.at(-1)?.[0] !== phase) found.push([phase, span[2], span[3]]);
    else found.at(-1)[2] = span[3];
  }
  const y = at.floor + 4;
  return [found.map(([phase, a, b], i) => {
    const [from, wide] = [at.x(a), at.x(b) - at.x(a)], words = phase;
    return [rect(from, y, wide, 20, { class: "x-box", rx: 0, style: `--hue: var(--x-soft); --deep: ${i % 2 ? 26 : 12}%` }),
      6.2 * words.length < wide ? text(from + wide / 2, y + 14, words, small)
        : i === found.length - 1 && text(from - 4, y + 14, `${words} \u2192`, { ...END, ...small })];
  }), spans.map(([, , , end]) => path(`M${at.x(end)} ${y + 14}v6`, "x-frame", { "stroke-width": 0.5 }))];
}

// What a part of the step holds only for its moment.
function moments([phase, name]) {
  if (name === "head and loss") return "three times a chunk's logits";
  if (phase === "loss") return name === "loss" ? "as much as the logits again" : "twice the logits again";
  if (phase === "forward") return name === "head" ? "what the head computes" : "tensors inside the layer";
  return { backward: "gradients of activations", again: "what is computed again", step: "the optimizer's work" }[phase];
}

// What is held in a part of the step: its place in the plot, and beside or below the plot
// its bytes by kind. Beside it stands a core drilled there, as high as the mountain.
function readout({ facts: { spans }, asking }, at, i) {
  const span = spans[i], [, , a, b, held, blocks] = span, { narrow, side, width } = at;
  const shown = asking ? held.map((bytes, kind) => (kind < 3 ? bytes : 0)) : held, all = sum(shown), y = at.floor + (narrow ? 59 : 18);
  const blocksHeld = blocks ? `activations of ${blocks > 1 ? `blocks 0 to ${blocks - 1}` : "block 0"}` : "no block's activations";
  const notes = asking ? ["What does the step add?", ""] : [blocksHeld, held[6] ? `temporary: ${moments(span)}` : "nothing temporary"];
  const from = narrow ? 0 : side;
  return [
    !asking && rect(at.x(a), at.y(all), Math.max(1.5, at.x(b) - at.x(a)), at.floor - at.y(all), { rx: 0, style: "fill: none; stroke: var(--x-ink); stroke-width: 2", "data-id": "now" }),
    text(from, y, asking ? "Before the step" : capital(place(span).replace(/^(in|at)( the)? /, "")), { ...START, class: "x-strong" }),
    text(narrow ? width : side, narrow ? y : 14, `${B(all)} in all`, { ...narrow ? END : START, class: "x-strong" }),
    notes.map((words, n) => text(from, y + 17 + 15 * n, words, { ...START, class: "x-small x-soft" })),
    (narrow ? swatches : core)(shown, asking, at, y),
  ];
}
const bytesOf = (held, kind, asking) => (asking && kind > 2 ? "?" : held[kind] ? B(held[kind]) : "–");

function core(held, asking, at) {
  const { side, width } = at, wide = 26, edges = [0, ...KINDS.map((_, kind) => sum(held.slice(0, kind + 1)))].map(at.y);
  const top = edges.at(-1), line = Math.max(top, at.y(at.room));
  return [KINDS.map((name, kind) => {
    const [low, high] = [edges[kind], edges[kind + 1]], y = at.floor - 6 - (at.floor - at.top - 40) / 6 * kind;
    return [low > high && rect(side, high, wide, low - high, { class: "x-box", rx: 0, style: hue(kind) + PARTED }),
      low > high && path(`M${side + wide + 1} ${(low + high) / 2}h5L${side + wide + 14} ${y - 4}h5`, "x-frame"),
      text(side + wide + 22, y, name, { ...START, class: low > high ? "x-small" : "x-small x-soft" }),
      text(width, y, bytesOf(held, kind, asking), { ...END, class: "x-small" })];
  }),
  line > top && rect(side, top, wide, line - top, { class: "x-wrong", rx: 0 }),
  rect(side, top, wide, at.floor - top, { rx: 0, style: `fill: none; stroke: var(--x-ink); stroke-width: ${asking ? 1 : 2}` })];
}

// On a phone: two columns, each from the top of the mountain down.
const swatches = (held, asking, { width }, y) => range(KINDS.length).reverse().map((kind, n) => {
  const column = width / 2, left = n > 3 ? column : 0, low = y + 56 + 20 * (n % 4);
  return [rect(left, low - 12, 14, 14, { class: "x-box", rx: 2, style: hue(kind) }), text(left + 20, low, KINDS[kind], { ...START, ...small }),
    text(left ? width : column - 12, low, bytesOf(held, kind, asking), { ...END, ...small })];
});

// Round numbers of bytes, for lines across the plot.
const ticks = (at) => {
  const step = nice(at.until / 4);
  return range(6).map((i) => (i + 1) * step).filter((one) => one < at.until * 0.99);
};

// How high what is: the GPU's memory, and some bytes; no word where the peak's is.
function scale({ asking, facts }, at) {
  const far = at.room > at.until, y = far ? at.top - 6 : at.y(at.room);
  const words = `${far ? "↑ " : ""}${at.narrow ? "GPU:" : "the GPU's"} ${B(at.room)}`;
  const top = asking ? { x: 0, y: 0, half: 0, middle: 999 } : summit(facts, at), wide = 7 * words.length;
  const x = top.x > at.across / 2 ? 3 : at.across - wide - 6, clear = top.middle - top.half > 60;
  return [ticks(at).map((one) => Math.min(Math.abs(at.y(one) - y), clear ? 99 : Math.abs(at.y(one) + 12 - top.y)) > 18
    && plated(3, at.y(one) - 3, B(one), "x-small x-soft")),
  far || path(`M1 ${y}h${at.across - 2}`, "x-line"), plated(x, y - 5, words, "x-small x-strong")];
}
const plated = (x, y, words, look) => [rect(x - 1, y - 11, 6.4 * words.length + 4, 14, { class: "x-plate", opacity: 0.8 }),
  text(x + 1, y, words, { ...START, class: look })];

function draw(view) {
  const { state, facts, set, width, narrow, asking } = view, at = layout(view), { spans, moment } = facts;
  const mine = flags.get(about(state)), here = h("svg:g", { "pointer-events": "none" }, readout(view, at, moment));
  const knob = at.x((spans[moment][2] + spans[moment][3]) / 2), last = spans.length - 1;
  const near = (time) => spans.indexOf(under(spans, time));
  const stage = picture(width, at.floor + (narrow ? 186 : 54), "",
    ticks(at).map((one) => path(`M1 ${at.y(one)}h${at.across - 2}`, "x-idle", { opacity: 0.5 })), phases(view, at),
    !asking && [h("svg:g.x-sweep", {}, mountain(view, at)),
      at.past && path(area(at.past, at, at.past.map(() => 0), at.past.map(total)), "x-ghost"),
      mine !== undefined && planted(mine, view, at)],
    scale(view, at), asking ? guessing(view, at) : h("svg:g.x-sweep", {}, labels(view, at)), here,
    !asking && draggable(h("svg:g", {}, rect(knob - 22, at.floor + 2, 44, 44, { fill: "transparent" }),
      path(`M${knob} ${at.floor + 20}v8`, "", { style: "stroke: var(--x-mark); stroke-width: 2" }),
      h("svg:circle.x-handle", { cx: knob, cy: at.floor + 34, r: 7, "data-id": "knob" })),
    "moment", { label: "Moment, the knob below", now: moment, low: 0, high: last, said: place(spans[moment]),
      move: (by, start) => near((spans[start][2] + spans[start][3]) / 2 + by * at.end / (at.x(at.end) - 1)),
      step: (by) => moment + by, set: (moment) => set({ moment }) }));
  const svg = stage.firstChild, time = ({ clientX, clientY }) => {
    const { left, top } = svg.getBoundingClientRect(), x = clientX - left;
    return clientY - top < at.floor && x > 0 && x < at.across && !asking ? (x - 1) * at.end / (at.x(at.end) - 1) : null;
  };
  const show = (i) => here.replaceChildren(...h("svg:g", {}, readout(view, at, i)).childNodes);
  svg.addEventListener("pointermove", (event) => show(time(event) === null ? moment : near(time(event))));
  svg.addEventListener("pointerleave", () => show(moment));
  svg.addEventListener("click", (event) => time(event) !== null && set({ moment: near(time(event)) }));
  return { picture: stage, below: below(view) };
}

// How the peak changes with each remedy, and what a layer keeps.
function below({ state, facts }) {
  const { per_parameter: [weight, master, states, gradient], saved, longer } = facts;
  const ways = Object.keys(CHECKPOINTING).flatMap((checkpointing) => [1, CHUNKS].map((loss_chunks) => ({ checkpointing, loss_chunks })));
  return [
    h("p", {}, "Time goes from left to right, and each part of the step is as high as the most that it holds. Point at one to see what that is; "
      + "drag the knob below, or press Next, to stay there. Beside it, what is held in that moment, from the ground up. Dotted: before your last change. The lengths are for "
      + `${FLOPS / 1e12} TFLOP/s and ${MEMORY_RATE / 1e12} TB/s, about what an H100 reaches.`),
    h("p", {}, `Per parameter: ${weight} bytes for the weight, ${master} for a master weight, ${short(states)} for the optimizer, ${gradient} for the gradient; `
      + `${short(weight + master + states + gradient)} in all. `
      + `“Temporary” is what lives for a moment: gradients of activations, two more tensors of the logits' size (of a chunk's, with a loss in chunks), and in Adam's step the square roots of its second means${OPTIMIZERS[state.optimizer][2] ? "" : " (not here)"}. `
      + "CUDA's own hundreds of MB and the gaps in the allocator's memory come on top."),
    longer > 0 ? h("p", {}, `Checkpoints make the step ${short(100 * longer)} % longer.`) : null,
    table("The peak with each remedy", ["checkpoints around", "loss in chunks", "peak", "where"], ways.map((way) => {
      const spans = stepOf(settled({ ...state, ...way })), top = spans[peakOf(spans)];
      return [CHECKPOINTING[way.checkpointing], way.loss_chunks > 1 ? CHUNKS : "no", B(total(top)), place(top)];
    })),
    table("What each layer keeps for backward, without a checkpoint", ["what", "bytes"], saved.map(([what, bytes]) => [what, B(bytes)])),
    table("The parts of the step; of its blocks, the first", ["part", ...KINDS], facts.spans.filter(([, name]) => !/[1-9]\d*$/.test(name))
      .map((span) => [capital(place(span)), ...span[4].map((bytes) => (bytes ? B(bytes) : "–"))])),
  ];
}

const where = ({ facts: { spans, peak } }) => Object.keys(PLACES).indexOf(phaseOf(spans[peak]));
const ask = {
  apart: ["moment", "gpu_gb"],
  question: "When in the step is most memory held? Drag the flag there.",
  options: Object.values(PLACES),
  guess({ state, facts: { spans } }) {
    const share = flags.get(about(state));
    return share === undefined ? -1 : Object.keys(PLACES).indexOf(phaseOf(under(spans, share * spans.at(-1)[3])));
  },
  answer: where,
  because({ state, facts: { spans, peak } }) {
    const [phase, , , , held] = spans[peak], most = range(KINDS.length).sort((a, b) => held[b] - held[a]).slice(0, 2);
    return `Of its ${B(sum(held))}, ` + (phase === "loss" && state.loss_chunks === 1
      ? `${B(held[5] + held[6])} are three tensors of the logits' size.`
      : `${most.map((kind) => `${B(held[kind])} are ${KINDS[kind]}`).join(", ")}.`);
  },
};

export default explorable({
  name: "memory", title: "The peak of memory", label: "A training step's memory", fields, compute, draw, ask,
  sentence: "{batch_size} samples of {tokens} tokens, {layers} layers, {words} words, a GPU of {gpu_gb} GB.",
});
