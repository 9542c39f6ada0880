// Pipeline schedules: who works when. Mirrors sums.py and schedules.py.

import { h, picture, rect, text, rankColor, table, whole, draggable, explorable } from "../kit/kit.js";
import { MOST, WORDS } from "./figure.py";
import { NAMES } from "./schedules.py";

const range = (n) => [...Array(n).keys()];
const perRank = (name, v) => name.startsWith("Interleaved") ? v : name === "ZBVZeroBubble" ? 2 : 1;

const stagesOf = (name, ranks, v) => range(ranks).map((r) =>
  name === "ZBVZeroBubble" ? [r, 2 * ranks - 1 - r] : range(v).map((i) => i * ranks + r));

function gpipe(ranks, count, r) {
  return ["F", "B"].flatMap((kind) => range(count).map((i) => [kind, i, r]));
}

function oneFOneB(ranks, count, r) {
  const warmUp = Math.min(ranks - r, count), order = range(warmUp).map((i) => ["F", i, r]);
  for (const i of range(count)) {
    order.push(["B", i, r]);
    if (i + warmUp < count) order.push(["F", i + warmUp, r]);
  }
  return order;
}

function interleaved(split, ranks, count, v, rank) {
  const rounds = Math.max(1, Math.floor(count / ranks));
  if (count % rounds)
    throw Error(`${split ? "Zero bubble" : "Interleaved 1F1B"} requires the number of microbatches `
      + `to be a multiple of the number of rounds (${rounds}), but got ${count}.`);
  const size = count / rounds, total = count * v;
  const hops = (split ? 1 : 2) * (ranks - 1 - rank);
  const warmUp = Math.min((v - 1) * size + hops, total);
  const pieces = (kind, turns) => {
    const done = turns.map(() => 0);
    return range(total).map((step) => {
      const local = Math.floor(step / size) % v;
      return [kind, done[local]++, turns[local] * ranks + rank];
    });
  };
  const forward = pieces("F", range(v));
  const backward = pieces(split ? "I" : "B", range(v).reverse());
  const weight = split ? backward.map(([, i, stage]) => ["W", i, stage]) : [];
  const order = forward.slice(0, warmUp);
  backward.forEach((work, step) => {
    order.push(...forward.slice(warmUp + step, warmUp + step + 1), work);
    if (split && step >= rank) order.push(weight.shift());
  });
  return [...order, ...weight];
}

function zbv(ranks, count, rank) {
  const down = rank, up = 2 * ranks - 1 - rank, total = Math.max(2 * ranks - 1, count);
  const order = [], done = {};
  const add = (times, ...works) => {
    for (; times > 0; times--) for (const [kind, stage] of works) {
      const i = done[kind + stage] = (done[kind + stage] ?? -1) + 1;
      if (i < count) order.push([kind, i, stage]);
    }
  };
  const started = (stage) => (done[`F${stage}`] ?? -1) + 1;
  add(2 * (ranks - rank) - 1, ["F", down]);
  add(rank, ["F", up], ["F", down]);
  add(ranks - rank, ["F", up], ["I", up], ["W", up]);
  while (started(up) < started(down) || started(down) < total) {
    if (started(down) < total) add(1, ["F", down]);
    add(1, ["I", down], ["W", down], ["F", up], ["I", up], ["W", up]);
  }
  add(rank, ["I", down], ["I", up]);
  add(ranks - rank, ["I", down], ["W", down]);
  add(rank, ["W", up]);
  add(rank, ["W", down]);
  return order;
}

function writeOrders(name, ranks, count, v) {
  if (!NAMES.includes(name)) throw Error(`no schedule ${name}: there are ${NAMES.join(", ")}`);
  if (name === "1F1B" && count < ranks)
    throw Error(`Number of microbatches (${count}) must be greater than or equal to the number `
      + `of stages (${ranks}).`);
  return range(ranks).map((r) => name === "GPipe" ? gpipe(ranks, count, r)
    : name === "1F1B" ? oneFOneB(ranks, count, r) : name === "ZBVZeroBubble"
      ? zbv(ranks, count, r) : interleaved(name === "InterleavedZeroBubble", ranks, count, v, r));
}

// Start each piece of work as soon as its rank and its input are ready.
function timetable(orders, times, last) {
  const done = {}, free = orders.map(() => 0), next = orders.map(() => 0);
  const rows = orders.map(() => []);
  const left = () => orders.some((order, r) => next[r] < order.length);
  while (left()) orders.forEach((order, rank) => {
    for (; next[rank] < order.length; next[rank]++) {
      const [kind, i, stage] = order[next[rank]];
      const need = kind === "F" ? stage ? ["F", i, stage - 1] : null
        : kind === "W" ? ["I", i, stage] : stage === last ? ["F", i, stage] : [kind, i, stage + 1];
      if (need && done[need] === undefined) return;
      const start = Math.max(free[rank], need ? done[need] : 0), end = start + times[kind];
      rows[rank].push([kind, i, stage, start, end]);
      done[[kind, i, stage]] = free[rank] = end;
    }
  });
  return rows;
}

function idleShare(name, ranks, count, v, [F, I, W]) {
  const even = count % ranks === 0, hops = ranks - 1;
  let idle, formula;
  if (["GPipe", "1F1B"].includes(name) || (name === "Interleaved1F1B" && even)) {
    idle = hops * (F + I + W);
    formula = "(R − 1) / (v M + R − 1)";
  } else if (name === "InterleavedZeroBubble" && W <= Math.min(F, I) && even) {
    idle = hops * (F + I - W);
    formula = "x / (v M (F + I + W) + x) with x = (R − 1)(F + I − W)";
  } else return null;
  return { formula, idle: idle / (v * count * (F + I + W) + idle) };
}

function peakHeld(row) {
  let now = 0;
  return Math.max(...row.map(([kind]) => now += { F: 1, B: -1, I: 0, W: -1 }[kind]));
}

const heldAt = (row, time) => row.filter((w) => w[0] === "F" && w[3] <= time).length
  - row.filter((w) => "BW".includes(w[0]) && w[4] <= time).length;

function say(row, time, rankOf, v) {
  const work = row.find((w) => time < w[4]);
  if (!work) return "done";
  const [kind, i, stage, start] = work;
  const where = v > 1 ? `, stage ${stage}` : "";
  if (start <= time) return `${WORDS[kind]} of micro-batch ${i}${where}`;
  return `idle, waits for ${kind === "F" ? "" : "the gradient of "}micro-batch ${i} `
    + `from rank ${rankOf[kind === "F" ? stage - 1 : stage + 1]}`;
}

const inUnits = (ticks, v) => String(Number((ticks / v).toFixed(2)));
const percent = (part, total) => 0 < part && 200 * part < total ? "under 1 %"
  : `${Math.floor((200 * part + total) / (2 * total))} %`;

// The schedule beside it, or null if torch refuses these numbers.
function beside({ against, ...state }) {
  if (!against) return null;
  if (!Object.hasOwn(shown, against))
    throw Error(`against is ${against}: there are ${Object.keys(shown).join(", ")}`);
  try {
    const { rows, ticks, peaks, length, work } = compute({ ...state, schedule: against, step: 0, against: "" });
    return { rows, ticks, peaks, end: Math.round(length * ticks), work: Math.round(work * ticks) };
  } catch {
    return null;
  }
}

export function compute({ against = "", ...state }) {
  for (const [name, most] of Object.entries(MOST))
    if (whole(name, state[name], 1) > most)
      throw Error(`${name} is ${state[name]}: at most ${most} fit here`);
  whole("step", state.step, 0);
  const { schedule, num_ranks, num_microbatches: count } = state;
  const v = perRank(schedule, state.stages_per_rank);
  const times = [state.forward, state.input_gradient, state.weight_gradients], [F, I, W] = times;
  const orders = writeOrders(schedule, num_ranks, count, v);
  const rows = timetable(orders, { F, B: I + W, I, W }, v * num_ranks - 1);
  const end = Math.max(...rows.map((row) => row.at(-1)[4])), busy = count * v * (F + I + W);
  const span = Math.max(...rows.map((row) => row.at(-1)[4] - row[0][3]));
  const moments = [...new Set(rows.flat().flatMap((w) => [w[3], w[4]]))].sort((a, b) => a - b);
  const time = moments[Math.min(state.step, moments.length - 1)];
  const rankOf = [];
  stagesOf(schedule, num_ranks, v).forEach((found, r) => found.forEach((s) => { rankOf[s] = r; }));
  const hops = rankOf.filter((r, s) => s && r !== rankOf[s - 1]).length;
  const now = rows.map((row) => say(row, time, rankOf, v));
  const working = rows.flat().filter(([, , , start, end]) => start <= time && time < end).length;
  const peaks = rows.map(peakHeld), most = inUnits(Math.max(...peaks), v);
  return {
    torch: `Schedule${schedule}`, stages_per_rank: v, rows, ticks: v,
    length: end / v, work: busy / v, idle: (end - busy) / end, idle_within: (span - busy) / span,
    law: idleShare(schedule, num_ranks, count, v, times),
    peaks, peak: Math.max(...peaks) / v, messages: 2 * count * hops,
    moments, time, held: rows.map((row) => heldAt(row, time)), now,
    other: beside({ ...state, against }),
    summary: `${schedule} on ${num_ranks} rank${num_ranks > 1 ? "s" : ""}: a step takes `
      + `${inUnits(end, v)} units, of which each rank works ${inUnits(busy, v)}; `
      + `${percent(end - busy, end)} of the time is idle. At most, a rank holds the activations `
      + `of ${most} micro-batch${most === "1" ? "" : "es"}. At time ${inUnits(time, v)}, `
      + `${working} of ${num_ranks} rank${num_ranks > 1 ? "s" : ""} work${working === 1 ? "s" : ""}.`,
  };
}

const shown = { GPipe: "GPipe", "1F1B": "1F1B", Interleaved1F1B: "Interleaved 1F1B",
  InterleavedZeroBubble: "Interleaved zero bubble", ZBVZeroBubble: "ZBV (zero bubble, V)" };
const count = (name, label, more = {}) =>
  ({ name, label, kind: "whole", min: 1, max: MOST[name], ...more });

const fields = [
  { name: "schedule", label: "Schedule", kind: "choice", knob: true, options: Object.entries(shown) },
  { name: "against", label: "Compare with", kind: "choice", knob: true,
    options: [["", "nothing"], ...Object.entries(shown)] },
  count("num_microbatches", "Micro-batches", { knob: true, range: [1, MOST.num_microbatches] }),
  count("num_ranks", "Ranks", { range: [1, MOST.num_ranks] }),
  count("stages_per_rank", "Stages per rank", { show: (s) => s.schedule.startsWith("Inter") }),
  count("forward", "Forward takes", { range: [1, 9] }),
  count("input_gradient", "Input gradient takes", { range: [1, 9] }),
  count("weight_gradients", "Weight gradients take", { range: [1, 9] }),
  { name: "step", label: "Moment", kind: "step", max: (f) => f.moments.length - 1 },
];

const LEFT = 52, HELD = 46, HEAD = 20, ROWS = 160; // px

// Draw one schedule: a box for each piece of work, on ground that shows what is idle.
// `scale` is px per unit; what runs at `time`, in ticks, is framed.
function grid(rows, ticks, end, [name, rest], { y: top, scale: unit, peaks, most, time = null, id }) {
  const scale = unit / ticks, pitch = Math.min(38, (ROWS - HEAD) / rows.length), high = pitch - 4;
  const parts = [h("svg:text", { x: 0, y: top + 13, class: "x-small" }, name, h("svg:tspan.x-answer", {}, rest))];
  rows.forEach((row, rank) => {
    const y = top + HEAD + rank * pitch, hue = `--hue: ${rankColor(rank)}`;
    parts.push(text(0, y + high / 2 + 4, `rank ${rank}`, { "text-anchor": "start", class: "x-small" }),
      rect(LEFT, y, end * scale, high, { class: "x-wait x-answer", rx: 0, "data-id": `${id} idle ${rank}` }));
    for (const [kind, i, stage, start, stop] of row) {
      const x = LEFT + start * scale, width = (stop - start) * scale;
      const on = time !== null && start <= time && time < stop;
      const fill = { F: 14, W: 2 }[kind] ?? 40; // keeps 4.5:1 contrast, light and dark
      const words = width >= (i > 9 ? 26 : 19) ? kind + i : width >= (i > 9 ? 16 : 9) ? i : "";
      const key = `${id} ${rank} ${kind} ${i} ${stage}`;
      parts.push(h("svg:g", { class: "x-work" }, h("svg:title", {}, `${WORDS[kind]} of micro-batch ${i}, stage ${stage}`),
        rect(x, y, width, high, { class: on ? "x-box x-chosen" : "x-box", rx: 2, "data-id": key,
          style: `${hue}; fill: color-mix(in srgb, var(--hue) ${fill}%, var(--x-ground))`,
          "stroke-dasharray": kind === "W" && !on ? "3 2" : null }),
        stage >= rows.length && rect(x, y, width, 3, { style: "fill: var(--x-ink)", "data-id": `bar ${key}` }),
        words !== "" && high > 11 && text(x + width / 2, y + high / 2 + 4, words, { class: "x-tiny", "data-id": `t ${key}` })));
    }
    const far = LEFT + end * scale;
    parts.push(rect(most.x, y + 2, Math.max(1, peaks[rank] / ticks * most.each), high - 4,
      { class: "x-box", style: hue, "data-id": `${id} held ${rank}` }),
    far < most.x - 4 && h("svg:path", { class: "x-frame", d: `M${far} ${y}v${high}` }));
  });
  return parts;
}

// Write a part, in ticks, as a share of the total.
const share = (part, total) =>
  percent(Math.round(part), Math.round(total)).replaceAll(" ", "\u00a0");

function others(state) {
  const rows = NAMES.map((name) => {
    const label = name === state.schedule ? h("strong", {}, shown[name]) : shown[name];
    try {
      const { length, work, ticks, idle_within: within, peak, messages } =
        compute({ ...state, schedule: name, step: 0 });
      return [label, inUnits(length, 1), share((length - work) * ticks, length * ticks),
        share(within * work / (1 - within) * ticks, work / (1 - within) * ticks),
        inUnits(peak, 1), messages];
    } catch {
      return [label, "refused", "", "", "", ""];
    }
  });
  return table(`All five with these numbers, the interleaved ones with ${state.stages_per_rank} `
    + "per rank", ["schedule", "units per step", "idle", "idle within", "micro-batches held",
    "messages"], rows);
}

function draw({ state, facts, before, set, measured, width }) {
  const { rows, ticks, moments, time, peaks, law, other } = facts, end = moments.at(-1);
  const split = state.schedule.endsWith("ZeroBubble"), real = measured?.rows;
  const last = (rows, ticks) => Math.max(...rows.map((row) => row.at(-1)[4])) / ticks;
  const second = real ? { rows: real, ticks, peaks, words: ["measured on live ranks, in the same units", ""] }
    : other?.rows && { ...other, words: [shown[state.against], `: ${share(other.end - other.work, other.end)} idle, red`] };
  const until = Math.max(facts.length, second ? last(second.rows, second.ticks) : 0, before?.facts.length ?? 0);
  const right = width - HELD, scale = (right - LEFT - 8) / until, x = (units) => LEFT + units * scale;
  const most = { x: right, each: (HELD - 2) / state.num_microbatches }, at = moments.indexOf(time);
  const bottom = 2 * ROWS + 12, step = (units) => Math.max(0, moments.findLastIndex((t) => t / ticks <= units + 1e-9));
  const box = picture(width, bottom + 26, "",
    text(width, 13, "memory", { "text-anchor": "end", class: "x-small x-soft" }),
    grid(rows, ticks, end, [shown[state.schedule], `: ${share(end - facts.work * ticks, end)} idle, red`],
      { y: 0, scale, peaks, most, time, id: "a" }),
    second ? grid(second.rows, second.ticks, Math.max(...second.rows.map((row) => row.at(-1)[4])), second.words,
      { y: ROWS + 8, scale, peaks: second.peaks, most, id: "b" })
      : text(0, ROWS + 24, state.against ? `${shown[state.against]}: torch refuses these numbers` : "",
        { "text-anchor": "start", class: "x-small" }),
    before && h("svg:path", { class: "x-ghost", d: `M${x(before.facts.length)} ${HEAD}V${ROWS}` }),
    h("svg:path", { class: "x-frame", d: `M${LEFT} ${bottom}H${right - 8}` }),
    [0, 0.5, 1].map((part, i) => text(x(part * until), bottom + 16, inUnits(part * until, 1),
      { "text-anchor": ["start", "middle", "end"][i], class: "x-small" })),
    draggable(h("svg:g", {},
      h("svg:path", { d: `M${x(time / ticks)} ${HEAD}V${ROWS}m0 ${8 + HEAD}V${bottom}`, stroke: "var(--x-ink)", "stroke-width": 2, "pointer-events": "none" }),
      h("svg:circle", { cx: x(time / ticks), cy: bottom, r: 7, class: "x-handle" }),
      h("svg:rect", { x: x(time / ticks) - 22, y: bottom - 20, width: 44, height: 44, fill: "transparent" })),
    "moment", { label: "Moment, the line", now: at, low: 0, high: moments.length - 1,
      said: `time ${inUnits(time, ticks)}`, move: (by, start) => step(moments[start] / ticks + by / scale),
      step: (by) => at + by, set: (step) => set({ step }) }));
  box.firstChild.addEventListener("click", (event) => {
    const side = box.firstChild.getBoundingClientRect(), drawn = width / side.width;
    const y = (event.clientY - side.top) * drawn;
    if (y > HEAD && y < bottom && !event.target.closest(".x-drag"))
      set({ step: step(((event.clientX - side.left) * drawn - LEFT) / scale) });
  });
  return {
    picture: box,
    below: [
      h("p", {}, `F, pale: forward. ${split ? "I, filled: input gradient. W, dashed: weight gradients"
        : "B, filled: backward"}.`
        + `${facts.stages_per_rank > 1 ? " Bar on top: not the rank's first stage." : ""}`
        + " The number is the micro-batch. Red: a rank is idle. Memory: the activations that a rank "
        + "holds at most. Drag the line to choose a moment. Dashed: the end before your last change."),
      table(`At time ${inUnits(time, ticks)} of ${inUnits(end, ticks)}`,
        ["rank", "does", "stages' activations held", "at most"],
        rows.map((_, r) => [h("span", {}, `rank\u00a0${r}`), facts.now[r], facts.held[r], peaks[r]])),
      h("p", {}, `Idle: ${share(end - facts.work * ticks, end)}`, law ? ` = ${law.formula}, with `
        + `R = ${state.num_ranks} ranks, M = ${state.num_microbatches} micro-batches, `
        + `v = ${ticks} per rank${law.formula[0] === "x" ? " and F, I, W as chosen" : ""}.`
        : ". (No short formula holds here.)"),
      others(state),
      h("p", {}, "Idle within: from a rank's own first work to its own last, of the rank that "
        + "takes longest. Held: activations of micro-batches through a rank's whole share."),
    ],
  };
}

// The idle share, among what one might think that it is.
const idle = ({ facts }) => Math.round(100 * facts.idle);
const guesses = (view) => [...new Set([idle(view), Math.round(idle(view) / 4),
  Math.min(95, idle(view) * 2 + 5), 15])].slice(0, 3).sort((a, b) => a - b);
const ask = {
  question: ({ state }) => `${shown[state.schedule]}, ${state.num_ranks} ranks, ${state.num_microbatches} micro-batches. `
    + "What share of the time is a rank idle?",
  options: (view) => guesses(view).map((part) => `${part} %`),
  answer: (view) => guesses(view).indexOf(idle(view)),
  because: "It is the red part of the picture.",
};

export default explorable({
  name: "pipelines", title: "A pipeline's schedule: who works when, and who waits",
  label: "A pipeline's schedule", fields, compute, draw, ask,
  sentence: "{num_ranks} ranks, {num_microbatches} micro-batches; forward takes {forward}, "
    + "backward {input_gradient} for the inputs and {weight_gradients} for the weights.",
});
