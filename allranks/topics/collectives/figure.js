// Collectives, chunk by chunk. Mirrors sums.py and costs.py.

import { h, picture, rect, text, rankColor, hatch, pressable, table, whole, amount, nice, explorable } from "../kit/kit.js";
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
  let mine;
  const compare = Object.keys(FORMULAS[collective]).map((way) => {
    const plan = messages(schedule(collective, way, size), sizes);
    const links = range(size).map(() => range(size).map(() => 0));
    for (const [source, target, , , bytes] of plan.flat()) links[source][target] += bytes;
    const time = sum(plan.map((one) => alpha + longest(one) / bandwidth));
    const waits = sum(plan.map((one) => waiting(one, size).length * (alpha + longest(one) / bandwidth)));
    const row = [way, plan.length, Math.max(...links.map(sum)), time, time && waits / (size * time)];
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
    messages: now, waiting: idle, chunk_bytes: sizes, links, seconds: time, chunks_passed: passed(collective, algorithm, size),
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
  { name: "step", label: "Steps done", kind: "step", show: (s, f) => f.num_steps > 0, max: (f) => f.num_steps },
];

const ROWS = 250, LANES = 104, LEGEND = 18; // px: what ranks hold; the race below it
const tint = (hue, deep) => `color-mix(in srgb, ${hue} ${deep}%, var(--x-ground))`;
const START = { "text-anchor": "start" };
let flown = ""; // the step that was drawn last: a chunk flies once

// Draw the way of a chunk from cell to cell; it passes behind the cells between them.
function road([x, y], [toX, toY], high, hue, paint, wide) {
  const dx = toX - x, dy = toY - y, far = Math.hypot(dx, dy), edge = (high / 2 + 1) / Math.abs(dy);
  const tip = Math.min(9, far * (1 - 2 * edge)), half = wide / 2 + 2.5;
  const at = (share) => [x + dx * share, y + dy * share], neck = at(1 - edge - tip / far);
  const side = (by) => [neck[0] - dy / far * by, neck[1] + dx / far * by];
  return [
    h("svg:path", { d: `M${at(edge)}L${neck}`, style: `fill: none; stroke: ${paint}; stroke-width: ${wide}` }),
    h("svg:path", { d: `M${at(1 - edge)}L${side(half)}L${side(-half)}z`, style: `fill: ${hue}` }),
  ];
}

// Draw a chunk that a rank holds. If it has just come `from` another rank, it flies in
// from there: a copy as a whole, a sum as the stripes that are new in it.
function box([x, y, width, height], id, who, words, from, looks) {
  const many = who.length > 1, foot = height < 30 ? 3 : 5;
  const band = (width - 4) / who.length; // a sum shows the hues of all its ranks
  const start = from && from.op !== "reduce" ? from.id : id;
  const origin = (rank) => {
    const [place, had] = from?.who.includes(rank) ? [from.id, from.who] : [id, from?.had ?? who];
    return had.length > 1 ? `band ${place} ${rank}` : place;
  };
  return [
    rect(x, y, width, height, { class: many ? "x-frame" : "x-box", "data-id": id, "data-from": start,
      style: `--hue: ${rankColor(who[0])}; fill: ${many ? "var(--x-ground)" : tint("var(--hue)", 22)}; ${looks.frame}` }),
    many && who.map((rank, i) => h("svg:rect", { x: x + 2 + i * band, y: y + height - foot - 2, width: band, height: foot,
      style: `fill: ${rankColor(rank)}`, "data-id": `band ${id} ${rank}`, "data-from": origin(rank) })),
    text(x + width / 2, y + height / 2 + (many ? 2.5 : 5), words, { class: looks.done ? "x-strong" : "",
      style: `font-size: ${looks.size}px`, "data-id": `word ${id} ${words}`, "data-from": `word ${start} ${words}` }),
  ];
}

// In all_to_all each rank has W places, and what arrives takes the places of what left.
function places(steps, size) {
  return steps.reduce((old, step) => {
    const next = old.map((mine) => new Map(mine)), free = old.map(() => []);
    for (const [source, , chunk] of step) {
      free[source].push(old[source].get(chunk));
      next[source].delete(chunk);
    }
    const order = free.map(sorted);
    for (const [, target, chunk] of step) next[target].set(chunk, order[target].shift());
    return next;
  }, range(size).map((rank) => new Map(range(size).map((i) => [rank * size + i, i]))));
}

// Draw what each rank (a row) holds of each chunk (a column), and the step that led there.
function holdings({ state, facts, narrow, width }, left, hatches) {
  const { collective, algorithm, world_size: size, step } = state, cross = collective === "all_to_all";
  const steps = schedule(collective, algorithm, size), now = step ? steps[step - 1] : [];
  const earlier = steps.slice(0, Math.max(0, step - 1)), last = earlier.reduce(apply, before(collective, size));
  const pitch = (ROWS - 22) / size, high = Math.min(46, pitch - Math.max(8, Math.min(20, pitch / 3)));
  const across = (width - left) / size, wide = across - (size > 5 || narrow ? 4 : 12);
  const spots = cross && [places(earlier, size), places(steps.slice(0, step), size)];
  const y = (rank) => 22 + (rank + 0.5) * pitch, x = (i) => left + i * across + wide / 2;
  const at = (rank, chunk, done) => [x(cross ? spots[done][rank].get(chunk) : chunk), y(rank)];
  const cell = ([x, y]) => [x - wide / 2, y - high / 2, wide, high];
  const digits = ([chunk, who]) => cross ? `${Math.floor(chunk / size)}→${chunk % size}`
    : String(sum(who.map((rank) => 10 ** rank)));
  const words = (one) => 7.3 * digits(one).length < wide - 4 || cross ? digits(one)
    : one[1].length > 1 ? `${one[1].length}/${size}` : `r${one[1][0]}`;
  const label = facts.held.map((row, rank) => `rank ${rank}: ${row.map((one) =>
    (cross ? "" : `chunk ${one[0]} `) + digits(one)).join(", ") || "nothing"}`).join("; ");
  const key = [collective, algorithm, size, step].join(), still = key === flown;
  flown = key;
  const arrived = new Map(still ? [] : now.map(([source, target, chunk, op]) => [`${target} ${chunk}`,
    { id: `${source} ${chunk}`, op, who: last[source].get(chunk), had: last[target].get(chunk) }]));
  const boxes = facts.held.flatMap((row, rank) => row.map((one) => {
    const [chunk, who, fresh] = one, id = `${rank} ${chunk}`;
    return [fresh, box(cell(at(rank, chunk, 1)), id, who, words(one), arrived.get(id),
      { frame: fresh ? "stroke: var(--x-ink); stroke-width: 2" : "", size: high < 30 || wide < 60 ? 12 : 15, done: who.length === size })];
  }));
  return h("svg:g", { role: "img", "aria-label": label },
    step && text(0, 13, narrow ? facts.messages[0][3] : `step ${step}: ${facts.messages[0][3]}`, { ...START, class: "x-small" }),
    cross ? text(left, 13, "the piece from→to", { ...START, class: "x-small x-soft" })
      : range(size).map((i) => text(x(i), 13, narrow || size > 6 ? i : `chunk ${i}`, { class: "x-small x-soft" })),
    now.map(([source, target, chunk], i) => {
      // Chunks of a step that share a column have their ways side by side.
      const apart = ([a, b]) => Math.max(a, b) <= Math.min(source, target) || Math.min(a, b) >= Math.max(source, target);
      const same = cross ? [i] : range(now.length).filter((other) => now[other][2] === chunk && (other === i || !apart(now[other])));
      const thick = cross ? 2 : Math.min(14, wide / (1.6 * same.length));
      const aside = (same.indexOf(i) - (same.length - 1) / 2) * 1.5 * thick;
      const [from, to] = [at(source, chunk, 0), at(target, chunk, 1)].map(([x, y]) => [x + aside, y]);
      return road(from, to, high, rankColor(source), cross ? rankColor(source) : hatches[source].paint, thick);
    }),
    range(size).map((rank) => [
      range(cross ? 0 : size).filter((i) => !facts.held[rank].some(([chunk, , fresh]) => chunk === i && !fresh))
        .map((i) => rect(...cell([x(i), y(rank)]), { class: "x-idle", style: "fill: var(--x-ground)" })),
      text(0, y(rank) + 5, narrow ? `r ${rank}` : `rank ${rank}`, START),
      facts.waiting.includes(rank) && [rect(left - 50, y(rank) - 9, 42, 18, { class: "x-wait" }),
        text(left - 29, y(rank) + 4, "waits", { class: "x-small" })],
    ]),
    [false, true].map((late) => boxes.filter(([fresh]) => fresh === late).map(([, parts]) => parts)));
}

// Draw all algorithms on one clock, each with a thin row per rank: dark while a message
// starts, hatched while its bytes travel, red while the rank waits. Pressing one shows it.
function race({ state, facts, before, set, width }, left, hatches) {
  const { collective, world_size: size } = state, alpha = state.alpha_us * 1e-6;
  const sizes = sizesOf(state.numbers, size).map((n) => 4 * n), top = ROWS + 14, floor = top + LANES;
  const most = Math.max(1e-9, before?.facts.seconds ?? 0, ...facts.compare.map((row) => row[3]));
  const until = Math.min(nice(most), nice(2 * most) / 2);
  const x = (seconds) => left + seconds * (width - left - 2) / until;
  const pitch = LANES / facts.compare.length, thick = Math.min(36, pitch - 7) / size;
  const block = (from, to, y) => `M${x(from)} ${y}H${x(to)}v${thick}H${x(from)}z`;
  let clock = 0;
  const lanes = facts.compare.map(([way, , , time], lane) => {
    const y = top + lane * pitch, mine = way === state.algorithm, starts = range(size).map(() => "");
    let waits = "", from = 0;
    messages(schedule(collective, way, size), sizes).forEach((step, number) => {
      const to = from + alpha + longest(step) / (state.gb_per_s * 1e9), idle = waiting(step, size);
      for (const rank of range(size))
        if (idle.includes(rank)) waits += block(from, to, y + rank * thick);
        else starts[rank] += block(from, from + alpha, y + rank * thick);
      from = to;
      if (mine && number === state.step - 1) clock = to;
    });
    const path = (d, fill) => d && h("svg:path", { d, style: `fill: ${fill}` });
    return pressable(h("svg:g", {},
      rect(0.5, y - 3, width - 1, size * thick + 6, { fill: "transparent", class: mine ? "x-frame" : "" }),
      h("svg:circle", { cx: 9, cy: y + 9, r: 4.5, class: "x-frame", style: mine ? "fill: var(--x-mark); stroke: var(--x-mark)" : "" }),
      text(19, y + 13, way, { ...START, class: mine ? "x-strong" : "" }),
      text(19, y + 27, amount(time, "s"), { ...START, class: mine ? "x-small x-strong" : "x-small" }),
      range(size).map((rank) => [[tint(rankColor(rank), 14), hatches[rank].paint].map((fill) => path(block(0, time, y + rank * thick), fill)), path(starts[rank], tint(rankColor(rank), 70))]),
      path(waits, tint("var(--x-red)", 60))), `way ${way}`, `${way}: ${amount(time, "s")}`,
    () => set(change({ algorithm: way }, state)), mine);
  });
  const ghost = before && h("svg:path", { class: "x-ghost", d: `M${x(before.facts.seconds)} ${top - 4}V${floor - 2}` });
  return [
    lanes, ghost,
    h("svg:path", { class: "x-frame", style: "stroke: var(--x-ink); stroke-width: 2", d: `M${x(clock)} ${top - 8}V${floor}`, "data-id": "clock" }),
    h("svg:path", { class: "x-frame", d: `M${left} ${floor}H${width - 2}` }),
    text(left, floor + 15, "0", { ...START, class: "x-small" }),
    text(width - 2, floor + 15, amount(until, "s"), { "text-anchor": "end", class: "x-small" }),
  ];
}

// Say below the race what its looks mean.
function legend(narrow, left, hatches) {
  const looks = [["starts a message", "start", tint(rankColor(0), 70)], ["its bytes travel", "bytes", hatches[0].paint],
    ["waits", "waits", tint("var(--x-red)", 60)]];
  let x = narrow ? 6 : left + 40;
  return looks.map(([long, short, fill]) => {
    const words = narrow ? short : long, from = x, y = ROWS + LANES + 19 + (narrow ? LEGEND : 0);
    x += 38 + 6.6 * words.length;
    return [h("svg:rect", { x: from, y, width: 14, height: 11, style: `fill: ${fill}` }), text(from + 19, y + 10, words, { ...START, class: "x-small" })];
  });
}

function draw(view) {
  const { state, facts, measured, width, narrow } = view, { collective, world_size: size } = state;
  const left = narrow ? 78 : 108, hatches = range(size).map((rank) => hatch(rankColor(rank)));
  const mb = (bytes) => amount(bytes, "B"), cross = collective === "all_to_all";
  const n = { all_gather: "what each rank has at the end", broadcast: "what rank 0 brings" }[collective]
    ?? "what each rank brings";
  const now = facts.fastest.map(([way, from]) => from > 0 ? `from ${mb(from)} ${way}` : way);
  return {
    picture: picture(width, ROWS + LANES + 34 + (narrow ? LEGEND : 0), "", hatches.map(({ pattern }) => pattern),
      holdings(view, left, hatches), legend(narrow, left, hatches), race(view, left, hatches)),
    below: [
      h("p", {}, cross ? "2→0 is the part of rank 2 for rank 0. "
        : "Rank 0 brings 1, rank 1 brings 10, rank 2 brings 100: the digits tell who is in a sum. ",
      "A thick frame: arrived in this step. Below, all algorithms start together; the upright line is the end of "
      + "this step. Press an algorithm to see its steps above. Dashed line: the time before your last change."),
      h("p", {}, `Time: ${facts.formula}; W = ${size}, n = ${mb(4 * state.numbers)} (${n})`
        + `${facts.formula.includes("k ") ? `, k = ${facts.chunks_passed}` : ""}, α = ${state.alpha_us} µs, `
        + `B = ${state.gb_per_s} GB/s: ${amount(facts.seconds, "s")}.`),
      table(`The algorithms at this size. The fastest as n grows: ${now.join(", ")}.`,
        ["algorithm", "steps", "busiest rank sends", "time", "of it, a rank waits"],
        facts.compare.map(([way, steps, bytes, time, waits]) => [way, steps, mb(bytes), amount(time, "s"), `${Math.floor(100 * waits + 0.5)} %`])),
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
  question: ({ state }) => `${state.collective} by ${state.algorithm} on ${state.world_size} rank${state.world_size > 1 ? "s" : ""}, a buffer of `
    + `${amount(4 * state.numbers, "B")}: how much does the busiest rank send in all?`,
  options: (view) => choices(view).map((bytes) => amount(bytes, "B")),
  answer: (view) => choices(view).indexOf(sends(view)),
  because: ({ facts }) => `Go through the ${facts.num_steps} steps and watch one rank.`,
};

export default explorable({
  name: "collectives", title: "Who sends what to whom, step by step",
  label: "A collective, step by step", fields, compute, draw, ask,
  sentence: "{world_size} ranks, {numbers} numbers; a message takes {alpha_us} µs to start; links of {gb_per_s} GB/s.",
});
