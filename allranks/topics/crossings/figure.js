// How long an all_reduce takes. Mirrors sums.py and ../links/sums.py.

import { h, picture, rect, text, rankColor, table, whole, amount, range01, draggable, explorable } from "../kit/kit.js";
import { MOST_RANKS, SIZES, LATENCIES, SPEEDS } from "./figure.py";
import { LINKS as NAMED } from "../links/sums.py";

const BOUNDS = { alpha_us: LATENCIES, gb_per_s: SPEEDS }, LINKS = Object.values(NAMED);
const linkOf = (alpha, speed) => LINKS.find(([, a, b]) => a === alpha && b === speed)?.[0] ?? "";

// Return [name, steps, share of the bytes] of each algorithm.
function costs(size, halving) {
  const others = size - 1, hops = Math.ceil(Math.log2(size)), ring = 2 * others / size;
  return [["naive", 2 * others, 2 * others], ["tree", 2 * hops, 2 * hops], ["ring", 2 * others, ring],
    ...(halving && size === 2 ** hops ? [["halving", 2 * hops, ring]] : [])];
}
const seconds = ([, steps, share], n, alpha, bandwidth) => steps * alpha + share * n / bandwidth;
const best = (ways) => ways.reduce((a, b) => b[3] < a[3] ? b : a);

function summary(state, facts, [name, steps, , time]) {
  const share = Math.floor(100 * steps * state.alpha_us * 1e-6 / time + 0.5);
  let words = `${amount(state.num_bytes, "B")} over ${state.world_size} ranks, `
    + `${facts.link || "this link"}: ${name} takes ${amount(time, "s")}, ${share} % of it for its `
    + `${steps} steps. That is a bus bandwidth of ${amount(facts.bus, "B")}/s. `;
  words += facts.crossing ? `A ring is faster than a tree from ${amount(facts.crossing, "B")} on.`
    : "A ring is never slower than a tree here.";
  if (state.halving && facts.ways.length < 4) words += " Halving needs a power of two of ranks.";
  return words;
}

export function compute(state) {
  const { world_size: size, num_bytes: n } = state;
  if (whole("world_size", size, 2) > MOST_RANKS)
    throw Error(`world_size must be at most ${MOST_RANKS}, not ${size}`);
  if (whole("num_bytes", n, SIZES[0]) > SIZES[1])
    throw Error(`num_bytes must be at most ${SIZES[1]}, not ${n}`);
  for (const [name, [low, high]] of Object.entries(BOUNDS))
    if (!(low <= state[name] && state[name] <= high)) throw Error(`${name} must be ${low} to ${high}`);
  const alpha = state.alpha_us * 1e-6, bandwidth = state.gb_per_s * 1e9;
  const ways = costs(size, state.halving).map((way) => [...way, seconds(way, n, alpha, bandwidth)]);
  const fastest = best(ways), [, tree, ring] = ways;
  const facts = {
    ways, fastest: fastest[0], seconds: fastest[3],
    crossing: (ring[1] - tree[1]) * alpha * bandwidth / (tree[2] - ring[2]),
    balance: alpha * bandwidth,
    bus: 2 * (size - 1) / size * n / fastest[3],
    link: linkOf(state.alpha_us, state.gb_per_s),
  };
  return { ...facts, summary: summary(state, facts, fastest) };
}

const fields = [
  { name: "link", label: "Link", kind: "choice", knob: true, get: (s, f) => f.link,
    options: (s) => [...(linkOf(s.alpha_us, s.gb_per_s) ? [] : [["", "your own"]]), ...LINKS.map(([name]) => [name, name])],
    set: (name) => {
      const [, alpha_us, gb_per_s] = LINKS.find((one) => one[0] === name);
      return { alpha_us, gb_per_s };
    } },
  { name: "world_size", label: "Ranks, W", kind: "whole", min: 2, max: MOST_RANKS, knob: true, range: [2, MOST_RANKS, true] },
  { name: "halving", label: "allow halving and doubling", kind: "flag", knob: true },
  { name: "num_bytes", label: "bytes, n", kind: "whole", min: SIZES[0], max: SIZES[1], range: [...SIZES, true] },
  { name: "alpha_us", label: "α, µs per message", kind: "number", min: 0, range: [0, 5000] },
  { name: "gb_per_s", label: "B, GB/s per link", kind: "number", min: 0, range: [0.01, 1000, true] },
];

const LEFT = 54, RIGHT = 14, HIGH = 236, BAND = 20; // px
const DASHES = { naive: "2 3", tree: "8 4", ring: null, halving: "8 3 2 3" };
const HUES = { naive: 3, tree: 1, ring: 0, halving: 2 };
const POINTS = 90;

function draw({ state, facts, before, set, measured, width, narrow }) {
  const { num_bytes: n } = state, alpha = state.alpha_us * 1e-6, bandwidth = state.gb_per_s * 1e9;
  const map = range01({ kind: "whole", range: [...SIZES, true] }), wide = width - LEFT - RIGHT;
  const top = narrow ? 66 : 46;
  const x = (bytes) => LEFT + wide * map.place(bytes);
  const sizes = Array.from({ length: POINTS + 1 }, (_, i) => SIZES[0] * 1e7 ** (i / POINTS));
  const at = (bytes) => facts.ways.map((way) => [...way.slice(0, 3), seconds(way, bytes, alpha, bandwidth)]);
  // From the fastest at 1 kB to the slower of tree and ring at 10 GB, in powers of ten.
  const low = Math.floor(Math.log10(Math.max(1e-9, best(at(SIZES[0]))[3])));
  const high = Math.ceil(Math.log10(at(SIZES[1])[1][3]));
  const y = (time) => top + HIGH * (high - Math.log10(Math.max(time, 1e-12))) / (high - low);
  const inside = (time) => y(time) >= top - 1;
  const line = (way) => sizes.map((bytes) => [x(bytes), seconds(way, bytes, alpha, bandwidth)])
    .filter(([, time]) => inside(time)).map(([px, time]) => `${px.toFixed(1)} ${y(time).toFixed(1)}`).join("L");
  const style = (name) => `stroke: ${rankColor(HUES[name])}; fill: none; stroke-width: ${name === facts.fastest ? 4 : 2}`;
  const grid = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const small = { class: "x-small" };

  // Above: the algorithms with their times. At the bottom: which is the fastest where.
  const column = (width - 4) / (narrow ? 2 : facts.ways.length);
  const legend = facts.ways.map((way, i) => {
    const px = narrow ? i % 2 * column : i * column, py = narrow ? 14 + 22 * Math.floor(i / 2) : 16;
    const strong = way[0] === facts.fastest;
    return [
      h("svg:path", { d: `M${px} ${py - 4}h26`, style: style(way[0]), "stroke-dasharray": DASHES[way[0]] }),
      text(px + 32, py, way[0], { "text-anchor": "start", class: strong ? "x-strong" : "" }),
      text(px + 36 + 8 * way[0].length, py, amount(way[3], "s"), { "text-anchor": "start", class: "x-answer" + (strong ? " x-strong" : "") }),
    ];
  });
  const winners = [];
  for (const bytes of sizes) {
    const [name] = best(at(bytes));
    if (winners.at(-1)?.[0] !== name) winners.push([name, x(bytes), 0]);
    winners.at(-1)[2] = x(bytes);
  }
  const floor = top + HIGH;
  const band = winners.map(([name, from, to], i) => {
    const end = winners[i + 1]?.[1] ?? to, across = end - from;
    return [
      rect(from, floor + 4, Math.max(1, across - 1), BAND, { class: "x-box", style: `--hue: ${rankColor(HUES[name])}`, "data-id": `band ${name}` }),
      across > 7.5 * name.length + 60 ? text(from + across / 2, floor + 18, `${name} is fastest`, small)
        : across > 7.5 * name.length + 6 && text(from + across / 2, floor + 18, name, small),
    ];
  });
  const now = x(n), left = now > LEFT + wide / 2;
  const handle = draggable(
    h("svg:g", {},
      h("svg:rect", { x: now - 22, y: top, width: 44, height: HIGH, fill: "transparent" }),
      h("svg:path", { class: "x-frame", style: "stroke: var(--x-mark); stroke-width: 2", d: `M${now} ${top}V${floor}` }),
      h("svg:rect", { x: now - 5, y: top - 6, width: 10, height: 22, rx: 4, class: "x-handle" })),
    "size", { label: "bytes of the tensor", now: n, low: SIZES[0], high: SIZES[1], said: amount(n, "B"),
      move: (by, start) => map.value(map.place(start) + by / wide),
      step: (by) => map.value(map.place(n) + by / 70), set: (num_bytes) => set({ num_bytes }) });
  const dots = facts.ways.filter((way) => inside(way[3])).map((way) => h("svg:circle", {
    cx: now, cy: y(way[3]), r: way[0] === facts.fastest ? 6 : 4, class: "x-box", "data-id": `dot ${way[0]}`,
    style: `--hue: ${rankColor(HUES[way[0]])}; fill: ${rankColor(HUES[way[0]])}` }));
  const real = measured?.seconds, shown = real && inside(real) && y(real) < floor;
  return {
    picture: picture(width, floor + BAND + 42, "",
      legend,
      grid(low, high).map((k) => [
        h("svg:path", { class: "x-frame", d: `M${LEFT} ${y(10 ** k)}H${width - RIGHT}`, "stroke-opacity": 0.4 }),
        text(LEFT - 6, y(10 ** k) + 4, k > 3 ? `10${[..."⁴⁵⁶⁷⁸"][k - 4]} s` : amount(10 ** k * 1.0000001, "s"), { ...small, "text-anchor": "end" }),
      ]),
      grid(3, 10).filter((k) => !narrow || k % 3 === 0).map((k) =>
        text(x(10 ** k) + (k > 9 ? RIGHT : 0), floor + BAND + 19, amount(10 ** k, "B"), { ...small, "text-anchor": k > 9 ? "end" : "middle" })),
      text(LEFT + wide / 2, floor + BAND + 36, "bytes that each rank brings, n", { class: "x-small x-soft" }),
      facts.ways.map((way) => h("svg:path", { d: `M${line(way)}`, style: style(way[0]), "stroke-dasharray": DASHES[way[0]], "data-id": `line ${way[0]}` })),
      before && inside(before.facts.seconds) && h("svg:circle", { cx: x(before.state.num_bytes), cy: y(before.facts.seconds), r: 6, class: "x-ghost" }),
      band, handle, dots,
      shown && rect(now - 6, y(real) - 6, 12, 12, { class: "x-handle" }),
      text(now + (left ? -10 : 10), top + 10, amount(n, "B"), { class: "x-strong", "text-anchor": left ? "end" : "start" })),
    below: [
      h("p", {}, "Drag the upright line, or focus it and press the arrow keys. Both axes are logarithmic: where a "
        + "line is flat, an all_reduce pays for its steps, and where it climbs, for its bytes. A message on this "
        + `link pays as much for itself as for its bytes at α\u00a0B = ${amount(facts.balance, "B")}.`),
      table("The algorithms at this size", ["algorithm", "steps", "bytes that follow one another", "steps take", "bytes take", "time"],
        facts.ways.map(([name, steps, share, time]) => [name, steps, amount(share * n, "B"),
          amount(steps * alpha, "s"), amount(time - steps * alpha, "s"), amount(time, "s")])),
    ],
  };
}

// What it takes, among what one might think: its bytes once, or all ranks' bytes.
const times = ({ state, facts }) => {
  const once = state.num_bytes / (state.gb_per_s * 1e9), slower = Math.max(facts.ways[1][3], facts.ways[2][3]);
  const all = [once, facts.seconds, slower * 3, once * state.world_size].map((time) => [time, amount(time, "s")]);
  return [...new Map(all.map(([time, words]) => [words, time]))].sort((a, b) => a[1] - b[1]).map(([words]) => words);
};
const ask = {
  question: ({ state }) => `${state.world_size} ranks, links of ${state.gb_per_s} GB/s with α = ${state.alpha_us} µs. How long does an `
    + `all_reduce of ${amount(state.num_bytes, "B")} take, if it is done in the fastest way?`,
  options: (view) => times(view),
  answer: (view) => times(view).indexOf(amount(view.facts.seconds, "s")),
  because: ({ facts }) => {
    const [, steps, share] = facts.ways.find(([name]) => name === facts.fastest);
    return `${facts.fastest} takes ${steps} steps, and ${Number(share.toFixed(2))} times the tensor's bytes follow one another.`;
  },
};

export default explorable({
  name: "crossings", title: "How long does an all_reduce take?",
  label: "An all_reduce, by size, ranks and link", fields, compute, draw, ask,
  sentence: "{num_bytes} bytes over {world_size} ranks; a message costs {alpha_us} µs, and a link carries {gb_per_s} GB/s.",
});
