// Collectives, chunk by chunk. Mirrors sums.py and costs.py.

import { h, picture, rect, text, rankColor, hatch, hatched, pressable, draggable, table, whole, amount, nice, explorable } from "../kit/kit.js";
import { MOST_RANKS, MOST_NUMBERS, LEAST, LONGEST } from "./figure.py";
import { FORMULAS } from "./sums.py";

const range = (from, to = null) => to === null ? [...Array(from).keys()]
  : Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const sorted = (values) => [...values].sort((a, b) => a - b);
const sizesOf = (n, size) => range(size).map((i) => Math.floor(n / size) + (i < n % size));

// List the steps; each is a list of [source, target, chunk, op].
export function schedule(collective, algorithm, size) {
  if (!FORMULAS[collective])
    throw Error(`no collective ${collective}: there are ${Object.keys(FORMULAS).join(", ")}`);
  if (!FORMULAS[collective][algorithm]) throw Error(`${collective} has no ${algorithm} here: `
    + `it has ${Object.keys(FORMULAS[collective]).join(", ")}`);
  whole("world_size", size, 1);
  const ranks = range(size), others = range(1, size), at = (r) => (r % size + size) % size;
  const hops = range(Math.ceil(Math.log2(size))).map((k) => 2 ** k);
  if (collective === "all_to_all") return algorithm === "pairwise"
    ? others.map((d) => ranks.map((s) => [s, at(s + d), s * size + at(s + d), "move"]))
    : hops.map((hop) => ranks.flatMap((s) => others.filter((d) => d & hop).map((d) => {
      const here = s + d % hop;
      return [at(here), at(here + hop), s * size + at(s + d), "move"];
    })));
  if (algorithm === "bruck") return hops.map((hop) => ranks.flatMap((r) =>
    range(Math.min(hop, size - hop)).map((i) => [r, at(r - hop), at(r + i), "copy"])));
  if (algorithm === "chain") return range(2 * size - 2).map((t) => range(size - 1)
    .filter((r) => t - r >= 0 && t - r < size).map((r) => [r, r + 1, t - r, "copy"]));
  const ring = (op, first) => range(size - 1).map((t) =>
    ranks.map((r) => [r, at(r + 1), at(r - t - first), op]));
  const all = (s, t, op) => ranks.map((c) => [s, t, c, op]);
  const treeUp = hops.map((hop) => ranks.filter((r) => r % (2 * hop) === hop)
    .flatMap((r) => all(r, r - hop, "reduce")));
  const up = others.map((r) => all(r, 0, "reduce"));
  const back = (steps) => steps.map((step) => step.map(([s, t, c]) => [t, s, c, "copy"]));
  const treeDown = back([...treeUp].reverse()), down = back(up);
  return {
    all_reduce: { ring: [...ring("reduce", 1), ...ring("copy", 0)],
      tree: [...treeUp, ...treeDown], naive: [...up, ...down] },
    broadcast: { tree: treeDown, naive: down },
    reduce_scatter: { ring: ring("reduce", 1), naive: [...up, ...others.map((r) => [[0, r, r, "copy"]])] },
    all_gather: { ring: ring("copy", 0), naive: [...others.map((r) => [[r, 0, r, "copy"]]), ...down] },
  }[collective][algorithm];
}

// For each rank, return a Map from chunk to the ranks whose numbers are in it.
function before(collective, size) {
  return range(size).map((rank) => {
    const chunks = collective === "all_gather" ? [rank]
      : collective === "broadcast" && rank ? [] : range(size);
    const first = collective === "all_to_all" ? rank * size : 0;
    return new Map(chunks.map((c) => [first + c, [rank]]));
  });
}

function apply(old, step) {
  const next = old.map((mine) => new Map(mine));
  for (const [source, target, chunk, op] of step) {
    const value = old[source].get(chunk);
    if (op === "move") next[source].delete(chunk);
    next[target].set(chunk, op === "reduce" ? sorted([...value, ...next[target].get(chunk)]) : value);
  }
  return next;
}

const messages = (steps, sizes) => steps.map((step) => {
  const found = new Map();
  for (const [source, target, chunk, op] of step) {
    const key = `${source} ${target}`;
    if (!found.has(key)) found.set(key, [source, target, [], op, 0]);
    found.get(key)[2].push(chunk);
    found.get(key)[4] += sizes[chunk % sizes.length];
  }
  return [...found.values()];
});
const longest = (step) => Math.max(...step.map((message) => message[4]));
// Return the ranks that neither send nor receive in a step, and so wait for its end.
const waiting = (step, size) => range(size).filter((rank) =>
  !step.some(([source, target]) => source === rank || target === rank));

// Count the chunks of n / W that cannot travel at the same time.
const passed = (collective, way, size) =>
  sum(messages(schedule(collective, way, size), range(size).map(() => 1)).map(longest));

function fastest(collective, size, alpha, bandwidth) {
  const lines = Object.keys(FORMULAS[collective]).map((way) => {
    const steps = schedule(collective, way, size).length;
    return [steps * alpha, passed(collective, way, size) / size / bandwidth, way];
  });
  const least = (list, value) => list.reduce((a, b) => {
    const [x, y] = [value(a), value(b)];
    return y[0] < x[0] || (y[0] === x[0] && y[1] < x[1]) ? b : a;
  });
  let now = least(lines, (line) => line), from = 0;
  const found = [[now[2], from]];
  for (;;) {
    const later = lines.filter((line) => line[1] < now[1]);
    if (!later.length) return found;
    const meet = (line) => [(line[0] - now[0]) / (now[1] - line[1]), line[1]];
    const best = least(later, meet);
    from = meet(best)[0];
    now = best;
    found.push([now[2], from]);
  }
}

export function compute({ collective, algorithm, world_size, numbers, alpha_us, gb_per_s, step }) {
  const size = whole("world_size", world_size, 1);
  if (size > MOST_RANKS) throw Error(`${size} ranks do not fit here: at most ${MOST_RANKS}`);
  const steps = schedule(collective, algorithm, size);
  if (whole("numbers", numbers, 1) > MOST_NUMBERS)
    throw Error(`${numbers} numbers are too many: at most ${MOST_NUMBERS}`);
  if (alpha_us < 0) throw Error(`alpha_us must not be negative: ${alpha_us}`);
  if (gb_per_s <= 0) throw Error(`gb_per_s must be above 0, not ${gb_per_s}`);
  if (gb_per_s < LEAST) throw Error(`gb_per_s must be at least ${LEAST}`);
  if (alpha_us > LONGEST) throw Error(`alpha_us must be at most ${LONGEST}`);
  if (whole("step", step, 0) > steps.length)
    throw Error(`step is ${step}, but there are ${steps.length} steps`);
  const alpha = alpha_us * 1e-6, bandwidth = gb_per_s * 1e9;
  const sizes = sizesOf(numbers, size).map((n) => 4 * n);
  const held = steps.slice(0, step).reduce(apply, before(collective, size));
  const fresh = new Set(step ? steps[step - 1].map((t) => `${t[1]} ${t[2]}`) : []);
  const waits = [];
  let mine;
  const compare = Object.keys(FORMULAS[collective]).map((way) => {
    const plan = messages(schedule(collective, way, size), sizes);
    const links = range(size).map(() => range(size).map(() => 0));
    for (const [source, target, , , bytes] of plan.flat()) links[source][target] += bytes;
    const each = plan.map((one) => alpha + longest(one) / bandwidth), time = sum(each);
    waits.push(time && sum(plan.map((one, i) => waiting(one, size).length * each[i])) / (size * time));
    const row = [way, plan.length, Math.max(...links.map(sum)), time];
    if (way === algorithm) mine = { plan, links, row };
    return row;
  });
  const { plan, links, row: [, , busiest, time] } = mine, now = step ? plan[step - 1] : [];
  const idle = step ? waiting(now, size) : [];
  let summary = `${collective} by ${algorithm}, ${size} rank${size > 1 ? "s" : ""}, `
    + `${amount(4 * numbers, "B")}: ${steps.length} steps, ${amount(time, "s")}; `
    + `the busiest rank sends ${amount(busiest, "B")}. `;
  if (steps.length) summary += step ? `Step ${step}, ${now[0][3]}: ${now.map(([s, t]) => `${s} → ${t}`).join(", ")}, `
    + `${amount(longest(now), "B")} at most each${idle.length ? `; ${idle.length} of ${size} ranks wait` : ""}.` : "Before the first step.";
  else summary += "Nothing to do.";
  if (step === steps.length) summary += ` Done: each rank holds what ${collective} promises.`;
  return {
    num_steps: steps.length,
    held: held.map((one, rank) => sorted(one.keys())
      .map((chunk) => [chunk, one.get(chunk), fresh.has(`${rank} ${chunk}`)])),
    messages: now, waiting: idle, waits, sent: range(size).map((rank) => sum(plan.slice(0, step).flat().filter(([source]) => source === rank).map((one) => one[4]))), chunk_bytes: sizes, links, seconds: time, chunks_passed: passed(collective, algorithm, size),
    formula: FORMULAS[collective][algorithm], compare,
    fastest: fastest(collective, size, alpha, bandwidth), summary,
  };
}

// After a change, keep the step if it still exists, and the algorithm if the collective
// has it.
const change = (patch, state) => {
  const next = { ...state, ...patch };
  const ways = Object.keys(FORMULAS[next.collective]);
  const algorithm = ways.includes(next.algorithm) ? next.algorithm : ways[0];
  const last = schedule(next.collective, algorithm, Math.min(next.world_size, MOST_RANKS + 1)).length;
  return { ...patch, algorithm, step: Math.min(state.step, last) };
};
const fields = [
  { name: "collective", label: "Collective", kind: "choice", knob: true,
    options: Object.keys(FORMULAS).map((name) => [name, name]), set: (collective, s) => change({ collective }, s) },
  { name: "algorithm", label: "Algorithm", kind: "choice",
    options: (s) => Object.keys(FORMULAS[s.collective]).map((way) =>
      [way, way === "naive" ? "naive: through rank 0" : way]), set: (algorithm, s) => change({ algorithm }, s) },
  { name: "world_size", label: "Ranks, W", kind: "whole", min: 1, max: MOST_RANKS, knob: true, range: [1, MOST_RANKS],
    set: (world_size, s) => change({ world_size }, s) },
  { name: "numbers", label: "float32 numbers in the whole buffer", kind: "whole", min: 1,
    range: [1, 1e9, true] },
  { name: "alpha_us", label: "α, µs per message", kind: "number", min: 0, range: [0, 1000] },
  { name: "gb_per_s", label: "B, GB/s per link", kind: "number", min: 0, range: [0.1, 1000, true] },
  { name: "step", label: "Steps done", kind: "step", film: true, show: (s, f) => f.num_steps > 0, max: (f) => f.num_steps },
];

const ROWS = 250, LANES = 104, LEGEND = 18; // px: what ranks hold; the race below it
const tint = (hue, deep) => `color-mix(in srgb, ${hue} ${deep}%, var(--x-ground))`;
const RED = "color-mix(in srgb, var(--x-red) calc(100% * var(--waiting-depth, 0.3)), var(--x-ground))", SMALL = { class: "x-small" };
const note = (x, y, words, look = "") => text(x, y, words, { "text-anchor": "start", class: `x-small ${look}` });
const fill = (d, paint) => d && h("svg:path", { d, style: `fill: ${paint}` });
let flown = ""; // the step that was drawn last: a chunk flies once

// Draw the way of a chunk that passes other ranks: beside their cells, in the gap.
function detour(right, from, to, gap, hue, paint) {
  const tip = Math.min(7, gap - 3), d = `M${right} ${from}H${right + gap / 2}V${to}H${right + tip - 1}`;
  return [[tint(hue, 35), paint].map((stroke) => h("svg:path", { d, "stroke-width": gap / 3, "stroke-linejoin": "round", style: `fill: none; stroke: ${stroke}` })),
    fill(`M${right + 1} ${to}l${tip} -5v10z`, hue)];
}

// Draw the way of a chunk from cell to cell; it passes behind the cells between them.
function road(x, from, to, high, hue, paint, wide) {
  const down = Math.sign(to - from), start = from + down * high / 2, end = to - down * (high / 2 + 1);
  const neck = end - down * Math.min(9, Math.abs(end - start)), half = wide / 2;
  return [fill(`M${x - half} ${start}V${neck}h${wide}V${start}z`, paint), fill(`M${x} ${end}L${x - half - 3} ${neck}h${wide + 6}z`, hue)];
}

// Draw a chunk that a rank holds. If it has just come `from` another rank, it flies in
// from there: a copy as a whole, a sum as the stripes that are new in it.
function box([x, y, width, height], id, [, who, fresh], words, from, size) {
  const many = who.length > 1, foot = height / 8;
  const band = (width - 4) / who.length; // a sum shows the hues of all its ranks
  const start = from && from.op !== "reduce" ? from.id : id;
  const origin = (rank) => {
    const [place, had] = from?.who.includes(rank) ? [from.id, from.who] : [id, from?.had ?? who];
    return had.length > 1 ? `band ${place} ${rank}` : place;
  };
  return [
    rect(x, y, width, height, { class: many ? "x-frame" : "x-box", "data-id": id, "data-from": start,
      style: `--hue: ${rankColor(who[0])}; fill: ${many ? "var(--x-ground)" : tint("var(--hue)", 22)}${fresh ? "; stroke: var(--x-ink); stroke-width: 2" : ""}` }),
    many && who.map((rank, i) => h("svg:rect", { x: x + 2 + i * band, y: y + height - foot - 2, width: band, height: foot,
      style: `fill: ${rankColor(rank)}`, "data-id": `band ${id} ${rank}`, "data-from": origin(rank) })),
    text(x + width / 2, y + height / 2 + (many ? 2 : 5), words, { class: who.length === size ? "x-strong" : "",
      style: `font-size: ${height < 30 || width < 60 ? 12 : 15}px`, "data-id": `word ${id} ${words}`, "data-from": `word ${start} ${words}` }),
  ];
}

// Draw what each rank (a row) holds of each chunk (a column), and the step that led there.
// In all_to_all, a column has the pieces whose way is equally far.
function holdings({ state, facts, narrow, width }, left, hatches) {
  const { collective, algorithm, world_size: size, step } = state, cross = collective === "all_to_all";
  const steps = schedule(collective, algorithm, size), now = step ? steps[step - 1] : [];
  const earlier = steps.slice(0, Math.max(0, step - 1)), last = earlier.reduce(apply, before(collective, size));
  const pitch = (ROWS - 22) / size, high = Math.min(46, pitch - Math.max(8, Math.min(20, pitch / 3)));
  const gap = size > 5 ? 6 : narrow ? 10 : 18, across = (width - left - 1) / size, wide = across - gap;
  const tight = across < (narrow ? 56 : 70), y = (rank) => 22 + (rank + 0.5) * pitch, x = (i) => left + i * across + wide / 2;
  const column = (chunk) => cross ? (size + chunk % size - Math.floor(chunk / size)) % size : chunk;
  const cell = (rank, i) => [x(i) - wide / 2, y(rank) - high / 2, wide, high];
  const most = Math.max(1, ...facts.compare.map((row) => row[2])); // the longest bar of what was sent
  const digits = ([chunk, who]) => cross ? `${Math.floor(chunk / size)}→${chunk % size}`
    : String(sum(who.map((rank) => 10 ** rank)));
  const words = (one) => 8 * size < wide || cross ? digits(one)
    : one[1].length > 1 ? `${one[1].length}/${size}` : `r${one[1][0]}`;
  const label = facts.held.map((row, rank) => `rank ${rank}: ${row.map((one) =>
    (cross ? "" : `chunk ${one[0]} `) + digits(one)).join(", ") || "nothing"}`).join("; ");
  const key = [collective, algorithm, size, step].join();
  const arrived = new Map(key === flown ? [] : now.map(([source, target, chunk, op]) => [`${target} ${chunk}`,
    { id: `${source} ${chunk}`, op, who: last[source].get(chunk), had: last[target].get(chunk) }]));
  flown = key;
  const boxes = facts.held.flatMap((row, rank) => row.map((one) => [one[2], box(cell(rank, column(one[0])),
    `${rank} ${one[0]}`, one, words(one), arrived.get(`${rank} ${one[0]}`), size)]));
  // Name a rank, whether it waits, and what it has sent: in one line where rows are low.
  const low = pitch < 40;
  const title = (rank, middle) => {
    const first = middle + (low ? 4 : -2), waits = facts.waiting.includes(rank), bytes = facts.sent[rank];
    const second = low ? [narrow ? 26 : 46, first] : [0, middle + 13], by = left - (narrow ? 42 : 54);
    return [note(0, first, narrow && low ? `r ${rank}` : `rank ${rank}`),
      waits && [rect(by, first - 13, narrow ? 40 : 44, 17, { class: "x-wait" }), note(by + (narrow ? 3 : 5), first, "waits")],
      !(low && waits) && [note(...second, narrow && low ? "?" : "sent ?", "x-soft x-guess"),
        note(...second, (narrow && low ? "" : "sent ") + amount(bytes, "B"), "x-soft x-answer")],
      !low && bytes > 0 && h("svg:g", { class: "x-answer" }, hatched(0, middle + 18, (left - 14) * bytes / most, 5, rankColor(rank), { rx: 0, "data-id": `sent ${rank}` }))];
  };
  return h("svg:g", { role: "img", "aria-label": label },
    step && note(0, 13, (narrow ? "" : `step ${step}: `) + now[0][3]),
    range(size).map((i) => text(x(i), 13, cross ? (i ? `+${i}` : "stays") : tight ? i : `chunk ${i}`, SMALL)),
    now.map((one, i) => {
      const [source, target, chunk] = one, [first, second] = sorted([source, target]);
      // Chunks that pass the same cells of a column have their ways side by side.
      const same = now.filter(([a, b, other]) => column(other) === column(chunk) && Math.max(a, b) > first && Math.min(a, b) < second);
      if (second - first > 1 && same.length === 1)
        return detour(x(column(chunk)) + wide / 2, y(source), y(target), gap, rankColor(source), hatches[source].paint);
      const wider = Math.min(14, wide / (1.6 * same.length));
      const aside = (same.indexOf(one) - (same.length - 1) / 2) * 1.5 * wider;
      return road(x(column(chunk)) + aside, y(source), y(target), high, rankColor(source), hatches[source].paint, wider);
    }),
    range(size).map((rank) => [
      range(size).filter((i) => !facts.held[rank].some(([chunk, , fresh]) => column(chunk) === i && !fresh))
        .map((i) => rect(...cell(rank, i), { class: "x-idle" })),
      title(rank, y(rank)),
    ]), boxes.sort((a, b) => a[0] - b[0]).map(([, parts]) => parts)); // what flies is on top
}

// Draw all algorithms on one clock, each with a thin row per rank: dark while a message
// starts, hatched while its bytes travel, red while the rank waits. Pressing one shows it.
function race({ state, facts, before, set, width, narrow }, left, hatches) {
  const { collective, world_size: size } = state, alpha = state.alpha_us * 1e-6;
  const top = ROWS + 14, floor = top + LANES;
  const most = Math.max(1e-9, before?.facts.seconds ?? 0, ...facts.compare.map((row) => row[3]));
  const until = Math.min(nice(most), nice(2 * most) / 2);
  const x = (seconds) => left + seconds * (width - left - 2) / until;
  const pitch = LANES / facts.compare.length, thick = Math.min(36, pitch - 7) / size;
  const block = (from, to, y) => `M${x(from)} ${y}H${x(to)}v${thick}H${x(from)}z`;
  // Four hues of stripes side by side flicker, so a thin row is plain.
  const ways = (hue, { paint }) => (thick < 12 ? [tint(hue, 38)] : [tint(hue, 14), paint]), starting = (hue) => tint(hue, thick < 12 ? 85 : 60);
  const ends = [0]; // of the steps that are shown, in s
  const lanes = facts.compare.map(([way, , , time], lane) => {
    const y = top + lane * pitch, mine = way === state.algorithm, starts = range(size).map(() => "");
    let waits = "", from = 0;
    messages(schedule(collective, way, size), facts.chunk_bytes).forEach((step) => {
      const to = from + alpha + longest(step) / (state.gb_per_s * 1e9), idle = waiting(step, size);
      for (const rank of range(size))
        if (idle.includes(rank)) waits += block(from, to, y + rank * thick);
        else starts[rank] += block(from, from + alpha, y + rank * thick);
      from = to;
      if (mine) ends.push(to);
    });
    return pressable(h("svg:g", {},
      rect(0.5, y - 3, width - 1, size * thick + 6, { fill: "transparent", class: mine && "x-frame" }),
      h("svg:circle", { cx: 9, cy: y + 9, r: 4.5, class: "x-frame", style: mine && "fill: var(--x-ink)" }),
      note(19, y + 13, way, mine && "x-strong"), note(19, y + 27, amount(time, "s"), mine && "x-strong"),
      range(size).map((rank) => ways(rankColor(rank), hatches[rank]).map((paint) => fill(block(0, time, y + rank * thick), paint))),
      starts.map((d, rank) => fill(d, starting(rankColor(rank)))), fill(waits, RED)),
    `way ${way}`, `${way}: ${amount(time, "s")}`, () => set(change({ algorithm: way }, state)), mine);
  });
  const now = x(ends[state.step]), nearest = (time) => ends.reduce((best, end, i) =>
    (Math.abs(end - time) < Math.abs(ends[best] - time) ? i : best), 0);
  const line = (d, look) => h("svg:path", { class: "x-frame", d: `M${d}`, ...look });
  return [
    lanes, before && line(`${x(before.facts.seconds)} ${top - 4}V${floor - 2}`, { class: "x-ghost" }),
    line(`${left} ${floor}H${width - 2}`), note(left, floor + 19, "0"),
    line(`${now} ${top - 8}V${floor}`, { style: "stroke: var(--x-ink); stroke-width: 2; pointer-events: none", "data-id": "clock" }),
    ends.length > 1 && draggable(h("svg:g", {}, h("svg:circle.x-handle", { cx: now, cy: floor, r: 7, "data-id": "knob" }),
      h("svg:rect", { x: now - 22, y: floor - 20, width: 44, height: 44, fill: "transparent" })),
    "clock", { label: "Steps done, the line", now: state.step, low: 0, high: ends.length - 1, said: `${state.step} of ${ends.length - 1} steps`,
      move: (by, start) => nearest(ends[start] + by * until / (width - left - 2)), step: (by) => state.step + by, set: (step) => set({ step }) }),
    text(width - 2, floor + 19, amount(until, "s"), { ...SMALL, "text-anchor": "end" }),
    // What the looks mean.
    [[[starting("var(--x-soft)")], "starts a message"], [ways("var(--x-soft)", hatches[size]), "its bytes travel"], [[RED], "waits"]]
      .map(([paints, words], i) => {
        const [px, py] = narrow ? [6 + i * 130, floor + 27] : [left + 60 + i * 150, floor + 10];
        return [paints.map((paint) => fill(`M${px} ${py}h14v10h-14z`, paint)), note(px + 19, py + 9, words)];
      }),
  ];
}

function draw(view) {
  const { state, facts, measured, width, narrow } = view, { collective, world_size: size } = state;
  const left = narrow ? 82 : 124, hatches = range(size + 1).map((rank) => hatch(rank < size ? rankColor(rank) : "var(--x-soft)")); // the last is anyone's
  const mb = (bytes) => amount(bytes, "B"), cross = collective === "all_to_all";
  const n = { all_gather: "what each rank has at the end", broadcast: "what rank 0 brings" };
  const real = measured?.links, best = facts.fastest.map(([way, from]) => from > 0 ? `from ${mb(from)} ${way}` : way);
  return {
    picture: picture(width, ROWS + LANES + 37 + (narrow ? LEGEND : 0), "", hatches.map(({ pattern }) => pattern),
      holdings(view, left, hatches), race(view, left, hatches)),
    below: [
      h("p", {}, cross ? "2→0 is the piece of rank 2 for rank 0; +1 is for the next rank. "
        : "Rank 0 brings 1, rank 1 brings 10, and so on: the digits tell who is in a sum. ",
      "Press an algorithm to see its steps. The upright line is now: drag it; dashed: before your last change."),
      h("p", {}, `Time: ${facts.formula}; W = ${size}, n = ${mb(4 * state.numbers)} (${n[collective] ?? "what each rank brings"})`
        + `${facts.formula.includes("k ") ? `, k = ${facts.chunks_passed}` : ""}, α = ${state.alpha_us} µs, `
        + `B = ${state.gb_per_s} GB/s: ${amount(facts.seconds, "s")}.`),
      table(`The algorithms at this size. The fastest as n grows: ${best.join(", ")}.`,
        ["algorithm", "steps", "busiest rank sends", "time", "ranks wait"],
        facts.compare.map(([way, steps, bytes, time], i) => [way, steps, mb(bytes), amount(time, "s"), `${Math.round(100 * facts.waits[i])} %`])),
      size > 1 && table(`Bytes on each link, whole schedule${real ? "; (counted on live ranks)" : ""}`,
        ["from", ...range(size).map((rank) => `to ${rank}`)],
        facts.links.map((row, rank) => [`rank ${rank}`, ...row.map((bytes, i) =>
          bytes || real?.[rank][i] ? mb(bytes) + (real ? ` (${mb(real[rank][i])})` : "") : "–")])),
    ],
  };
}

// What the busiest rank sends, among what one might think that it sends.
const sends = ({ state, facts }) => facts.compare.find(([way]) => way === state.algorithm)[2];
const choices = (view) => {
  const n = 4 * view.state.numbers, W = view.state.world_size;
  return sorted([...new Set([sends(view), n * (W - 1), n / W, n * 2])]);
};
const ask = {
  question: ({ state }) => `${state.collective} by ${state.algorithm} on ${state.world_size} rank${state.world_size > 1 ? "s" : ""}, a buffer of `
    + `${amount(4 * state.numbers, "B")}: how much does the busiest rank send in all?`,
  options: (view) => choices(view).map((bytes) => amount(bytes, "B")),
  answer: (view) => choices(view).indexOf(sends(view)),
  because: ({ facts }) => `Go through the ${facts.num_steps} steps and watch what a rank has sent.`,
};

export default explorable({
  name: "collectives", title: "Who sends what to whom, step by step",
  label: "A collective, step by step", fields, compute, draw, ask,
  sentence: "{world_size} ranks, {numbers} numbers; a message takes {alpha_us} µs to start; links of {gb_per_s} GB/s.",
});
