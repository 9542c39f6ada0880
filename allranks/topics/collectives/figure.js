// Collectives, chunk by chunk. Mirrors sums.py and costs.py.

import { h, picture, rect, text, rankColor, table, whole, amount, nice, explorable } from "../kit/kit.js";
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
  let mine;
  const compare = Object.keys(FORMULAS[collective]).map((way) => {
    const plan = messages(schedule(collective, way, size), sizes);
    const links = range(size).map(() => range(size).map(() => 0));
    for (const [source, target, , , bytes] of plan.flat()) links[source][target] += bytes;
    const time = sum(plan.map((one) => alpha + longest(one) / bandwidth));
    const row = [way, plan.length, Math.max(...links.map(sum)), time];
    if (way === algorithm) mine = { plan, links, row };
    return row;
  });
  const { plan, links, row: [, , busiest, time] } = mine, now = step ? plan[step - 1] : [];
  let summary = `${collective} by ${algorithm}, ${size} rank${size > 1 ? "s" : ""}, `
    + `${amount(4 * numbers, "B")}: ${steps.length} steps, ${amount(time, "s")}; `
    + `the busiest rank sends ${amount(busiest, "B")}. `;
  if (steps.length) summary += step ? `Step ${step}, ${now[0][3]}: ${now.map(([s, t]) => `${s} → ${t}`).join(", ")}, `
    + `${amount(longest(now), "B")} at most each.` : "Before the first step.";
  else summary += "Nothing to do.";
  if (step === steps.length) summary += ` Done: each rank holds what ${collective} promises.`;
  return {
    num_steps: steps.length,
    held: held.map((one, rank) => sorted(one.keys())
      .map((chunk) => [chunk, one.get(chunk), fresh.has(`${rank} ${chunk}`)])),
    messages: now, chunk_bytes: sizes, links, seconds: time, chunks_passed: passed(collective, algorithm, size),
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
  { name: "algorithm", label: "Algorithm", kind: "choice", knob: true,
    options: (s) => Object.keys(FORMULAS[s.collective]).map((way) =>
      [way, way === "naive" ? "naive: through rank 0" : way]), set: (algorithm, s) => change({ algorithm }, s) },
  { name: "world_size", label: "Ranks, W", kind: "whole", min: 1, max: MOST_RANKS, knob: true, range: [1, MOST_RANKS],
    set: (world_size, s) => change({ world_size }, s) },
  { name: "numbers", label: "float32 numbers in the whole buffer", kind: "whole", min: 1,
    range: [1, 1e9, true] },
  { name: "alpha_us", label: "α, µs per message", kind: "number", min: 0, range: [0, 1000] },
  { name: "gb_per_s", label: "B, GB/s per link", kind: "number", min: 0, range: [0.1, 1000, true] },
  { name: "step", label: "Steps done", kind: "step", show: (s, f) => f.num_steps > 0, max: (f) => f.num_steps },
];

const ROWS = 284, COST = 74; // px: the ranks' part of the drawing, and that of the cost

// Draw an arrow at the left edge from one row to another, wider for a longer way.
function arrow([source, target], y, x) {
  const down = target > source ? 1 : -1, wide = 12 + (x - 22) * Math.abs(target - source) / MOST_RANKS;
  const from = y(source) + 5 * down, to = y(target) - 5 * down;
  return [
    h("svg:path", { class: "x-arrow", d: `M${x} ${from}C${x - wide} ${from} ${x - wide} ${to} ${x - 6} ${to}` }),
    h("svg:path", { class: "x-tip", d: `M${x} ${to}l-9 -4v8z` }),
  ];
}

// Draw a chunk that a rank holds. One that has just arrived comes from where it was.
function box(x, y, width, height, [chunk, who, fresh], words, rank, source) {
  const id = `${rank} ${chunk}`, from = source === undefined ? id : `${source} ${chunk}`;
  const parts = [rect(x, y, width, height, {
    class: (who.length > 1 ? "x-frame" : "x-box") + (fresh ? " x-chosen" : ""),
    style: `--hue: ${rankColor(who[0])}`, "data-id": id, "data-from": from,
  })];
  const band = (width - 4) / who.length; // a sum shows the colours of all its ranks
  if (who.length > 1) parts.push(who.map((rank, i) => h("svg:rect", {
    x: x + 2 + i * band, y: y + height - 6, width: band, height: 4, style: `fill: ${rankColor(rank)}`,
    "data-id": `band ${id} ${i}`, "data-from": `band ${from} ${i}`,
  })));
  return [...parts, text(x + width / 2, y + height / 2 + 3, words,
    { "data-id": `word ${id}`, "data-from": `word ${from}`, class: "x-small" })];
}

// Draw what the steps cost, to scale: of each, first α and then its bytes.
function cost(state, facts, before, width, top) {
  const alpha = state.alpha_us * 1e-6, bandwidth = state.gb_per_s * 1e9;
  const sizes = sizesOf(state.numbers, state.world_size).map((n) => 4 * n);
  const steps = messages(schedule(state.collective, state.algorithm, state.world_size), sizes);
  const until = nice(Math.max(facts.seconds, before?.facts.seconds ?? 0, 1e-9));
  const scale = (width - 4) / until;
  let x = 1;
  return [
    text(0, top, "what the steps take: α, then bytes", { "text-anchor": "start", class: "x-soft x-small" }),
    steps.map((step, i) => {
      const start = x, wait = alpha * scale, bytes = longest(step) / bandwidth * scale;
      x += wait + bytes;
      const now = i === state.step - 1;
      return [
        h("svg:rect", { x: start, y: top + 8, width: wait, height: 26, class: "x-wait", "data-id": `alpha${i}` }),
        h("svg:rect", { x: start + wait, y: top + 8, width: bytes, height: 26, "data-id": `bytes${i}`,
          class: now ? "x-box x-chosen" : "x-box", style: `--hue: ${rankColor(1)}; fill-opacity: ${i < state.step ? 1 : 0.3}` }),
      ];
    }),
    before && h("svg:path", { class: "x-ghost", d: `M${1 + before.facts.seconds * scale} ${top + 2}v38` }),
    h("svg:path", { class: "x-frame", d: `M1 ${top + 38}H${width - 3}` }),
    text(0, top + 54, "0", { "text-anchor": "start", class: "x-small" }),
    text(width - 2, top + 54, amount(until, "s"), { "text-anchor": "end", class: "x-small" }),
  ];
}

function draw({ state, facts, before, measured, width, narrow }) {
  const { collective, world_size: size } = state, cross = collective === "all_to_all";
  const pitch = Math.min(66, (ROWS - 24) / size), high = Math.min(44, pitch - 6);
  const y = (rank) => 24 + rank * pitch + high / 2, left = narrow ? 40 : 70, first = left + 56;
  const across = (width - first - 2) / size, x = (i) => first + i * across;
  const digits = ([chunk, who]) => cross ? `${Math.floor(chunk / size)}→${chunk % size}`
    : String(sum(who.map((rank) => 10 ** rank)));
  const words = (one) => 7.3 * digits(one).length < across - 6 || cross ? digits(one)
    : one[1].length > 1 ? `${one[1].length}/${size}` : `r${one[1][0]}`;
  const label = facts.held.map((row, rank) => `rank ${rank}: ${row.map((one) =>
    (cross ? "" : `chunk ${one[0]} `) + digits(one)).join(", ") || "nothing"}`).join("; ");
  const mb = (bytes) => amount(bytes, "B");
  const n = { all_gather: "what each rank has at the end", broadcast: "what rank 0 brings" }[collective]
    ?? "what each rank brings";
  const now = facts.fastest.map(([way, from]) => from > 0 ? `from ${mb(from)} ${way}` : way);
  const sender = new Map(facts.messages.flatMap(([source, target, chunks]) =>
    chunks.map((chunk) => [`${target} ${chunk}`, source])));
  return {
    picture: picture(width, ROWS + COST, label,
      cross ? text(first, 14, "what each rank holds: from→to", { "text-anchor": "start", class: "x-small" })
        : [text(first - 8, 14, "chunk", { "text-anchor": "end", class: "x-small" }),
          range(size).map((i) => text(x(i) + across / 2, 14, i, { class: "x-small" }))],
      facts.messages.map((message) => arrow(message, y, left)),
      facts.held.map((row, rank) => [
        text(left + 4, y(rank) + 5, narrow ? `r ${rank}` : `rank ${rank}`, { "text-anchor": "start" }),
        range(cross ? 0 : size).filter((i) => !row.some(([chunk]) => chunk === i)).map((i) =>
          rect(x(i), y(rank) - high / 2, across - 4, high, { class: "x-idle" })),
        row.map((one, i) => box(x(cross ? i : one[0]), y(rank) - high / 2, across - 4, high, one, words(one),
          rank, one[2] ? sender.get(`${rank} ${one[0]}`) : undefined)),
      ]),
      cost(state, facts, before, width, ROWS + 8)),
    below: [
      h("p", {}, cross ? "2→0 is the part of rank 2 for rank 0. "
        : "Rank 0 brings 1, rank 1 brings 10, rank 2 brings 100: the digits tell who is in a sum. ",
      "A thick frame: arrived in this step. Dashed line: the time before your last change."),
      h("p", {}, `Time: ${facts.formula}; W = ${size}, n = ${mb(4 * state.numbers)} (${n})`
        + `${facts.formula.includes("k ") ? `, k = ${facts.chunks_passed}` : ""}, α = ${state.alpha_us} µs, `
        + `B = ${state.gb_per_s} GB/s: ${amount(facts.seconds, "s")}.`),
      table(`The algorithms at this size. The fastest as n grows: ${now.join(", ")}.`,
        ["algorithm", "steps", "busiest rank sends", "time"],
        facts.compare.map(([way, steps, bytes, time]) => [way, steps, mb(bytes), amount(time, "s")])),
      size > 1 && table("Bytes on each link, whole schedule" + (measured?.links ? "; (counted on live ranks)" : ""),
        ["from", ...range(size).map((rank) => `to ${rank}`)],
        facts.links.map((row, rank) => [`rank ${rank}`, ...row.map((bytes, i) =>
          !bytes && !measured?.links?.[rank][i] ? "–"
            : mb(bytes) + (measured?.links ? ` (${mb(measured.links[rank][i])})` : ""))])),
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
  question: ({ state }) => `${state.collective} by ${state.algorithm}: ${state.world_size} ranks with a buffer of `
    + `${amount(4 * state.numbers, "B")}. How much does the busiest rank send, all steps together?`,
  options: (view) => choices(view).map((bytes) => amount(bytes, "B")),
  answer: (view) => choices(view).indexOf(sends(view)),
  because: ({ facts }) => `There are ${facts.num_steps} steps; go through them and watch one rank.`,
};

export default explorable({
  name: "collectives", title: "Who sends what to whom, step by step",
  label: "A collective, step by step", fields, compute, draw, ask,
  sentence: "{world_size} ranks, {numbers} numbers, messages of {alpha_us} µs and {gb_per_s} GB/s.",
});
