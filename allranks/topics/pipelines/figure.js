// Pipeline schedules: who works when. Mirrors sums.py and schedules.py.

import { h, picture, rect, text, rankColor, hatched, table, whole, draggable, explorable } from "../kit/kit.js";
import { MOST, SHOWN, WORDS } from "./figure.py";
import { DEPTH } from "./picture.py";
import { NAMES } from "./schedules.py";

const range = (n) => [...Array(n).keys()];
const perRank = (name, v) => name.startsWith("Interleaved") ? v : name === "ZBVZeroBubble" ? 2 : 1;

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
    throw Error(`${split ? "Zero bubble" : SHOWN.Interleaved1F1B} requires the number of microbatches `
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

// What a piece of work waits for, or null.
function needOf([kind, i, stage], last) {
  if (kind === "F") return stage ? ["F", i, stage - 1] : null;
  if (kind === "W") return ["I", i, stage];
  return stage === last ? ["F", i, stage] : [kind, i, stage + 1];
}

// Start each piece of work as soon as its rank and its input are ready.
function timetable(orders, times, last) {
  const done = {}, free = orders.map(() => 0), next = orders.map(() => 0);
  const rows = orders.map(() => []);
  const left = () => orders.some((order, r) => next[r] < order.length);
  while (left()) orders.forEach((order, rank) => {
    for (; next[rank] < order.length; next[rank]++) {
      const [kind, i, stage] = order[next[rank]], need = needOf(order[next[rank]], last);
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

// How the activations that a rank holds change, as [time, by] in the order of time.
const changes = (row) => row.flatMap(([kind, , , start, end]) =>
  kind === "I" ? [] : [kind === "F" ? [start, 1] : [end, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
const heldAt = (row, time) => changes(row).reduce((held, [at, by]) => held + (at <= time ? by : 0), 0);

function peakHeld(row) {
  let now = 0;
  return Math.max(...changes(row).map(([, by]) => now += by));
}

// The rank of each stage.
const ranksOf = (rows) => rows.reduce((ranks, row, rank) => {
  for (const work of row) ranks[work[2]] = rank;
  return ranks;
}, []);

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
  if (!Object.hasOwn(SHOWN, against))
    throw Error(`against is ${against}: there are ${Object.keys(SHOWN).join(", ")}`);
  try {
    const { rows, ticks, peaks, length, work } = compute({ ...state, schedule: against });
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
  const rankOf = ranksOf(rows), hops = rankOf.filter((r, s) => s && r !== rankOf[s - 1]).length;
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
    summary: `${SHOWN[schedule]} on ${num_ranks} rank${num_ranks > 1 ? "s" : ""}: a step takes `
      + `${inUnits(end, v)} units, of which each rank works ${inUnits(busy, v)}; `
      + `${percent(end - busy, end)} of the time is idle. At most, a rank holds the activations `
      + `of ${most} micro-batch${most === "1" ? "" : "es"}. At time ${inUnits(time, v)}, `
      + `${working} of ${num_ranks} rank${num_ranks > 1 ? "s" : ""} work${working === 1 ? "s" : ""}.`,
  };
}

const count = (name, label, more = {}) =>
  ({ name, label, kind: "whole", min: 1, max: MOST[name], ...more });

const fields = [
  { name: "schedule", label: "Schedule", kind: "choice", knob: true, options: Object.entries(SHOWN) },
  { name: "against", label: "Compare with", kind: "choice", knob: true,
    options: [["", "nothing"], ...Object.entries(SHOWN)] },
  count("num_microbatches", "Micro-batches", { knob: true, range: [1, MOST.num_microbatches] }),
  count("num_ranks", "Ranks", { range: [1, MOST.num_ranks] }),
  count("stages_per_rank", "Stages per rank", { show: (s) => s.schedule.startsWith("Inter") }),
  count("forward", "Forward takes", { range: [1, 9] }),
  count("input_gradient", "Input gradient takes", { range: [1, 9] }),
  count("weight_gradients", "Weight gradients take", { range: [1, 9] }),
  { name: "step", label: "Moment", kind: "step", film: true, max: (f) => f.moments.length - 1 },
];

const TOP = 35, LANES = 122, HIGH = TOP + LANES + 2; // px: heading and margin, lanes, both
const fine = { class: "x-small" }, starts = { "text-anchor": "start" }, ends = { "text-anchor": "end" }, THIN = 8; // px
// A thin piece has a hair for an edge: what bounds it is the line around its run.
const piece = (x, y, width, height, hue, kind, more = {}) => rect(x, y, width, height, { class: "x-box", rx: 2,
  "stroke-dasharray": kind === "W" ? "3 2" : null, style: `--hue: ${hue}; --deep: ${DEPTH[kind]}%`, ...more, ...width < THIN && { rx: 0, "stroke-width": 0.4, "stroke-dasharray": null } });
const outline = (hue, x, y, width, height) => rect(x, y, width, height, { class: "x-run", rx: 0, fill: "none", "pointer-events": "none", style: `stroke: ${hue}` });
const red = (x, y, width, height, more) => rect(x, y, width, height, { class: "x-wait", rx: 0, style: "stroke: none", ...more });
const bar = (x, y, width, more) => rect(x, y, width, 2, { rx: 0, style: "fill: var(--x-ink)", ...more });
const dot = (cx, cy) => h("svg:circle.x-dot", { cx, cy, r: 1.6, "pointer-events": "none", style: "fill: var(--x-ink)" });
const took = (length, idle) => `: ${inUnits(length, 1)} units, idle ${share(idle)}`;
const share = (part) => percent(Math.round(part * 1e6), 1e6).replaceAll(" ", "\u00a0");

// Say what stands on the pieces of each kind, on all alike: a letter and a number, or a
// number, or null, where the narrowest has no room for that.
const ROOM = 14; // px that a piece needs for a number
const STEP = 4; // of those without a number, every fourth micro-batch has a dot
function naming(rows, x) {
  const all = rows.flat(), digits = `${Math.max(...all.map((w) => w[1]))}`.length;
  return Object.fromEntries(all.map(([kind]) => kind).map((kind) => {
    const wide = Math.min(...all.filter((w) => w[0] === kind).map((w) => x(w[4]) - x(w[3])));
    return [kind, wide >= 7.2 * (1 + digits) + 1 ? 2 : wide >= Math.max(ROOM, 7.2 * digits + 1) ? 1 : 0];
  }));
}

// Return the pieces that have a dot: forward, until the first backward, and then backward.
// Side by side, the numbers of both would be read as one row.
function dotted(row, names) {
  const turn = row.findIndex(([kind]) => kind !== "F");
  return row.filter(([kind, i], n) => !names[kind] && i % STEP === 0 && kind !== "W" && (kind === "F" ? n < turn : n >= turn));
}

// Return those of them that the margin numbers, first come first served, so that none touch.
function numbered(pieces, x) {
  let edge = -Infinity;
  return pieces.filter(([, i, , start, end]) => {
    const middle = (x(start) + x(end)) / 2, half = 3.9 * `${i}`.length;
    if (middle - half < edge + 5) return false;
    edge = middle + half;
    return true;
  });
}

// Join pieces of a kind that follow one another: [kind, start, end].
const runs = (row) => row.reduce((all, [kind, , , start, end]) => {
  const last = all.at(-1);
  if (last?.[0] === kind && last[2] === start) last[2] = end;
  else all.push([kind, start, end]);
  return all;
}, []);

// Draw a schedule: for each rank a lane of work and waiting, and below it what the rank
// holds. Return it with `thread`, which draws what a piece of work waited for. `scale` is
// px per unit; `time` is the moment, in ticks.
function lanes({ rows, ticks, peaks, end }, { id, top, left, scale, width, most, time, narrow, tall }) {
  const x = (at) => left + at * scale / ticks, pitch = Math.min(tall / 3, tall / rows.length), home = ranksOf(rows), signs = naming(rows, x);
  const high = Math.round(pitch * 0.58), low = Math.floor(pitch * 0.3), spots = {}, side = Math.min(8, (pitch - high) / 2);
  const parts = rows.map((row, rank) => {
    const y = top + TOP + rank * pitch, hue = rankColor(rank), foot = y + high + low;
    let free = 0, held = 0;
    const waits = [...row, [, , , end]].map(([, , , start, stop], n) => {
      const from = free;
      free = stop;
      return (start - from) * scale > ticks / 2 && h("svg:g", {}, h("svg:title", {}, `rank ${rank}: ${say(row, from, home, ticks)}`),
        red(x(from), y + high * 0.33, x(start) - x(from), high * 0.34, { "data-id": `${id} idle ${rank} ${n}` }));
    });
    const works = row.map(([kind, i, stage, start, stop], n) => {
      const wide = x(stop) - x(start), middle = (x(start) + x(stop)) / 2, key = `${id} ${rank} ${kind} ${i} ${stage}`;
      spots[[kind, i, stage]] = { rank, x: middle, y, key };
      return h("svg:g.x-work", { "data-batch": i }, h("svg:title", {}, `${WORDS[kind]} of micro-batch ${i}, stage ${stage}`),
        piece(x(start), y, wide, high, hue, kind, { class: `x-box${start <= time && time < stop ? " x-chosen" : ""}`, "data-id": key }),
        stage >= rows.length && bar(x(start), y, wide, { "data-id": `bar ${key}` }));
    });
    const name = ([kind, i, stage]) => `t ${id} ${rank} ${kind} ${i} ${stage}`, middle = (w) => (x(w[3]) + x(w[4])) / 2;
    const dots = dotted(row, signs), names = row.filter(([kind]) => signs[kind]).map((w) =>
      text(middle(w), y + high / 2 + 4, (signs[w[0]] > 1 ? w[0] : "") + w[1], { ...fine, "data-id": name(w) }));
    names.push(dots.map((w) => dot(middle(w), y + high / 2)));
    if (rank === 0) names.push(numbered(dots, x).map((w) => [
      text(middle(w), y - 4, w[1], { "data-id": name(w) }), h("svg:path.x-frame", { d: `M${middle(w)} ${y - 3}v3` })]));
    const edges = runs(row).filter(([kind]) => row.some((w) => w[0] === kind && x(w[4]) - x(w[3]) < THIN))
      .map(([, from, to]) => outline(hue, x(from), y, x(to) - x(from), high));
    // A line leads from where a rank holds most to the number at the right.
    const stairs = changes(row).map(([at, by]) => [x(at), held += by]), top2 = foot - low * peaks[rank] / most / ticks;
    const peak = stairs.find(([, n]) => n === peaks[rank])[0], steps = stairs.map(([at, n]) => `H${at}V${foot - low * n / most / ticks}`);
    return [text(0, y + high / 2 + 4, narrow ? rank : `rank ${rank}`, starts), waits, works, edges, names, // over the edges of all pieces
      h("svg:path", { d: `M${left} ${foot}${steps.join("")}`, style: `fill: ${hue}; opacity: 0.55` }),
      h("svg:path", { class: "x-frame", d: `M${left} ${foot}H${x(end)}` }),
      h("svg:path", { class: "x-level", d: `M${peak} ${top2}H${width - 20}`, style: `stroke: ${hue}`, "stroke-dasharray": "1 3" }),
      text(width, foot - low / 2 + 4, inUnits(peaks[rank], ticks), ends)];
  });
  // What was sent lies hatched where it arrived; a dashed thread is of what has not been sent.
  const thread = (work, sent = work[3] <= time) => {
    const need = needOf(work, home.length - 1), to = spots[work.slice(0, 3)], from = spots[need];
    if (!from || from.rank === to.rank) return [];
    const [y1, y2, by] = from.rank < to.rank ? [from.y + high, to.y, -side] : [from.y, to.y + high, 0];
    return [h("svg:path.x-arrow", { d: `M${from.x} ${y1}L${to.x} ${y2}`, style: sent ? null : "stroke: var(--x-ink); stroke-dasharray: 4 3" }),
      // It is as small on its way, and two that meet in the room between two lanes both fit.
      sent && h("svg:g", { "data-id": `sent ${to.key}`, "data-from": from.key }, hatched(to.x - 4, y2 + by, 8, side, rankColor(from.rank), { rx: 1 }))];
  };
  return { parts, thread };
}

// Name what the marks mean, in one line or, on a phone, in up to three.
function legend(grids, y, width) {
  const soft = "var(--x-soft)", all = grids.flatMap(({ rows }) => rows.flat().flatMap(([kind, , stage]) => [kind, stage >= rows.length]));
  const marks = Object.entries(WORDS).map(([kind, words]) => [kind, words, (x, y) => piece(x, y, 14, 12, soft, kind)]);
  const way = (x, y, more) => h("svg:path.x-arrow", { d: `M${x} ${y + 10}L${x + 15} ${y + 2}`, ...more }), sends = grids[0].rows.length > 1 && "F";
  let x = 0;
  return [...marks, [true, "later stage", (x, y) => bar(x, y + 4, 14)], ["F", "waits", (x, y) => red(x, y + 4, 14, 5)],
    [sends, "arrived", (x, y) => [way(x - 1, y), hatched(x + 7, y + 1, 8, 8, soft, { rx: 1 })]],
    [sends, "not sent yet", (x, y) => way(x - 1, y, { style: "stroke: var(--x-ink)", "stroke-dasharray": "4 3" })],
    ["F", "held", (x, y) => h("svg:path", { d: `M${x} ${y + 12}v-6h7v-5h7v11z`, style: `fill: ${soft}` })],
  ].filter(([kind]) => all.includes(kind)).map(([, words, mark]) => {
    const wide = 30 + 7.4 * words.length, from = x + wide > width + 12 ? 0 : x;
    if (from < x) y += 18;
    x = from + wide;
    return [mark(from, y), text(from + 19, y + 11, words, starts)];
  });
}

function others(state) {
  const rows = NAMES.map((schedule) => {
    try {
      const { length, idle, peak, messages } = compute({ ...state, schedule });
      return [SHOWN[schedule], inUnits(length, 1), share(idle), inUnits(peak, 1), messages];
    } catch {
      return [SHOWN[schedule], "refused", "", "", ""];
    }
  });
  return table(`All five with these numbers, the interleaved ones with ${state.stages_per_rank} per rank`,
    ["schedule", "units per step", "idle", "micro-batches held", "messages"], rows);
}

function draw({ state, facts, before, set, measured, width, narrow }) {
  const { rows, ticks, moments, time, peaks, law, other } = facts, real = measured?.rows, M = state.num_microbatches, units = time / ticks;
  const grids = [{ rows, ticks, peaks, end: moments.at(-1), name: SHOWN[state.schedule], said: took(facts.length, facts.idle) }];
  if (real) grids.push({ ...grids[0], rows: real, end: Math.max(...real.flat().map((w) => w[4])), name: "Measured on live ranks", said: "" });
  else if (state.against) grids.push({ rows: [], peaks: [], ticks, end: 0, ...other, name: SHOWN[state.against],
    said: other ? took(other.end / other.ticks, 1 - other.work / other.end) : ": torch refuses these numbers" });
  const until = Math.max(before?.facts.length ?? 0, ...grids.map(({ end, ticks }) => end / ticks));
  const left = narrow ? 12 : 50, scale = (width - left - (narrow ? 28 : 46)) / until, x = (at) => left + at * scale;
  const most = Math.max(...grids.map(({ peaks, ticks }) => Math.max(...peaks) / ticks));
  // One schedule alone has the room of both.
  const tall = grids[1] ? LANES : 2 * HIGH - TOP - 2, below = TOP + tall + 2;
  const drawn = grids.map((grid, n) => lanes(grid, { id: "ab"[n], top: n * HIGH, left, scale, width, most, narrow, tall,
    time: units * grid.ticks }));
  const now = x(units), edge = x(facts.length) + 6, foot = 2 * HIGH + 4, way = h("svg:g"), end = before && x(before.facts.length);
  // The threads of the pieces of work that a test picks out of a rank's row.
  const threads = (pick, sent) => grids.flatMap(({ rows, ticks }, n) => rows.flatMap((row) => pick(row, units * ticks)).flatMap((work) => drawn[n].thread(work, sent)));
  const step = (at) => Math.max(0, moments.findLastIndex((t) => t / ticks <= at + 1e-9));
  const stage = picture(width, foot + (narrow ? 78 : 40), "",
    grids.map(({ name, said }, n) => h("svg:text", { x: 0, y: n * HIGH + 15 }, h("svg:tspan.x-strong", {}, name), said)),
    text(width, 14, narrow ? "held" : "micro-batches held, at most", ends), drawn.map(({ parts }) => parts),
    // Where the step ended before the last change, if it did elsewhere.
    before && Math.abs(end - x(facts.length)) > 1 && [h("svg:path.x-ghost", { d: `M${end} ${TOP - 4}V${below}` }),
      end - 40 > 7.2 * (grids[1] ? grids[1].name + grids[1].said : "").length && text(Math.min(end, width - 40), grids[1] ? HIGH + 13 : foot + 15, `before: ${inUnits(before.facts.length, 1)}`)],
    h("svg:path.x-frame", { d: `M${left} ${foot}H${x(until)}` }), legend(grids, foot + 24, width),
    text(Math.min(now + 11, width - 62), foot + 15, `time ${inUnits(time, ticks)}`, starts),
    h("svg:g", { "pointer-events": "none" },
      h("svg:path", { d: `M${now} ${TOP - 3}V${below}${grids[1] ? `m0 ${TOP - 3}` : ""}V${foot}`, "data-id": "line", stroke: "var(--x-ink)", "stroke-width": 2 }), threads((row, time) => row.filter((w) => time < w[4]).slice(0, 1)), way),
    draggable(h("svg:g", {}, h("svg:circle.x-handle", { cx: now, cy: foot, r: 7, "data-id": "knob" }),
      h("svg:rect", { x: now - 22, y: foot - 20, width: 44, height: 44, fill: "transparent" })),
    "moment", { label: "Moment, the line", now: moments.indexOf(time), low: 0, high: moments.length - 1, said: `time ${inUnits(time, ticks)}`,
      move: (by, start) => step(moments[start] / ticks + by / scale), step: (by) => moments.indexOf(time) + by, set: (step) => set({ step }) }),
    draggable(h("svg:g", {}, h("svg:title", {}, "Drag: more or fewer micro-batches"), rect(edge - 3, TOP + tall / 2 - 22, 6, 44, { class: "x-handle", "data-id": "edge" }),
      h("svg:rect", { x: edge - 14, y: TOP, width: 28, height: tall, fill: "transparent" })),
    "edge", { label: "Micro-batches, the right edge", now: M, low: 1, high: MOST.num_microbatches,
      move: (by, start) => start + Math.round(by / 24), step: (by) => M + by, set: (n) => set({ num_microbatches: n }) }));
  const svg = stage.firstChild;
  svg.addEventListener("click", (event) => {
    const { x, y } = svg.getBoundingClientRect(), high = event.clientY - y;
    if (high > TOP && high < foot && !event.target.closest(".x-drag")) set({ step: step((event.clientX - x - left) / scale) });
  });
  svg.addEventListener("pointerover", (event) => { // the way of a micro-batch through all stages
    const i = event.target.closest(".x-work")?.dataset.batch;
    way.replaceChildren(...threads((row) => row.filter((w) => w[1] == i), true));
  });
  return {
    picture: stage,
    below: [
      h("p", {}, "The number is the micro-batch; where there is no room for all, every fourth has a dot, and its number above rank 0. Press one, or drag the line: threads lead from what a rank waited for, "
        + "dashed ones from what it still waits for. Dotted: the end before your last change. The bar at the right edge adds micro-batches."),
      table(`At time ${inUnits(time, ticks)} of ${inUnits(moments.at(-1), ticks)}`,
        ["rank", "does", "stages' activations held", "at most"],
        rows.map((_, r) => [`rank\u00a0${r}`, facts.now[r], facts.held[r], peaks[r]])),
      h("p", {}, `Idle: ${share(facts.idle)}`, law ? ` = ${law.formula}, with R = ${state.num_ranks} ranks, `
        + `M = ${M} micro-batches and v = ${ticks} per rank.` : "."),
      others(state),
    ],
  };
}

// Ask for the idle share with twice the micro-batches, or with a number that torch takes.
function instead({ state, facts }) {
  const now = state.num_microbatches;
  for (const count of [2 * now, now >> 1, now + 1, now - 1]) try {
    return { count, ...compute({ ...state, num_microbatches: count }) };
  } catch { /* it does not fit, or torch refuses it */ }
  return { count: now, ...facts };
}
const idle = (facts) => Math.round(100 * facts.idle);
const guesses = (view) => [...new Set([idle(instead(view)), idle(view.facts), idle(view.facts) >> 1,
  idle(view.facts) + 20])].slice(0, 3).sort((a, b) => a - b);
const spell = ({ length, work }) => `${inUnits(length - work, 1)} of ${inUnits(length, 1)} units`;
const ask = {
  question: (view) => `Ranks wait ${idle(view.facts)} % of this step, red. How much is it with ${instead(view).count} micro-batches?`,
  options: (view) => guesses(view).map((part) => `${part} %`),
  answer: (view) => guesses(view).indexOf(idle(instead(view))),
  because: (view) => `With ${instead(view).count} they wait ${spell(instead(view))}; `
    + `with ${view.state.num_microbatches}, ${spell(view.facts)}.`,
  show: (view) => ({ num_microbatches: instead(view).count }),
};

export default explorable({
  name: "pipelines", title: "A pipeline: who works, who waits",
  label: "A pipeline's schedule", fields, compute, draw, ask,
  sentence: "{num_ranks} ranks, {num_microbatches} micro-batches; forward takes {forward}, "
    + "backward {input_gradient} for the inputs and {weight_gradients} for the weights.",
});
