// How long an all_reduce takes. Mirrors sums.py and ../links/sums.py.

import { h, picture, rect, text, rankColor, hatched, pressable, table, whole, amount, range01, draggable, still, explorable } from "../kit/kit.js";
import { MOST_RANKS, SIZES, LATENCIES, SPEEDS, REAL } from "./figure.py";
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

// List the fastest algorithms for growing sizes, with the bytes they begin at: from each,
// go to the flatter line that it meets first.
function winners(ways, alpha, bandwidth) {
  const meets = ([, steps, share]) => ways.filter((way) => way[2] < share)
    .map((way) => [(way[1] - steps) * alpha * bandwidth / (share - way[2]), way]);
  let now = best(ways.map((way) => [...way.slice(0, 3), seconds(way, SIZES[0], alpha, bandwidth)])), from = SIZES[0];
  const found = [];
  while (now && from < SIZES[1]) {
    found.push([now[0], from]);
    [from, now] = meets(now).sort((a, b) => a[0] - b[0] || a[1][2] - b[1][2])[0] ?? [SIZES[1]];
  }
  return found;
}

// Return the bytes and seconds of the real machine, if it is like this one.
const published = (link, size) => link !== REAL[0] || size !== REAL[1] ? []
  : Object.entries(REAL[3]).map(([n, speed]) => [Number(n), 2 * (size - 1) / size * n / speed / 1e9]);

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
    balance: alpha * bandwidth, winners: winners(ways, alpha, bandwidth),
    bus: 2 * (size - 1) / size * n / fastest[3],
    link: linkOf(state.alpha_us, state.gb_per_s),
  };
  facts.published = published(facts.link, size);
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
  { name: "halving", label: "allow halving and doubling", kind: "flag" },
  { name: "num_bytes", label: "bytes, n", kind: "whole", min: SIZES[0], max: SIZES[1], range: [...SIZES, true] },
  { name: "alpha_us", label: "α, µs per message", kind: "number", min: 0, range: [0, 5000] },
  { name: "gb_per_s", label: "B, GB/s per link", kind: "number", min: 0, range: [0.01, 1000, true] },
];

const LEFT = 56, RIGHT = 62, BAND = 20, BARS = 60, ZERO = 62; // px: margins, heights of the strip and of all bars, where these begin
const POINTS = 90, DOTS = 8; // along a line; ranks in a pictogram
const DASHES = { naive: "2 3", tree: "9 4", halving: "9 3 2 3" };
const MOST = 5; // times the fastest's: the longest time that a small drawing or bar shows
const GREY = "var(--x-soft)", START = { "text-anchor": "start" };
const LINK = "fill: var(--x-mark); text-decoration: underline dotted"; // words that one can press
const range = (n) => [...Array(n).keys()];

// Place at most eight ranks, and list for each step who sends to whom.
function pattern(name, size) {
  const W = Math.min(size, DOTS), ranks = range(W), hops = range(Math.ceil(Math.log2(W))).map((k) => 2 ** k);
  const round = (rank, of) => [27 + 20 * Math.sin(2 * Math.PI * rank / of), 26 - 20 * Math.cos(2 * Math.PI * rank / of)];
  const level = (rank) => rank ? Math.log2(rank & -rank) : hops.length;
  const back = (steps) => [...steps, ...[...steps].reverse().map((step) => step.map(([s, t]) => [t, s]))];
  const circle = ranks.map((rank) => round(rank, W));
  return {
    naive: () => [ranks.map((rank) => rank ? round(rank - 1, W - 1) : [27, 26]), back(ranks.slice(1).map((rank) => [[rank, 0]]))],
    tree: () => [ranks.map((rank) => [5 + 44 * rank / (W - 1), 46 - 40 * level(rank) / hops.length]),
      back(hops.map((hop) => ranks.filter((rank) => rank % (2 * hop) === hop).map((rank) => [rank, rank - hop])))],
    ring: () => [circle, range(2 * W - 2).map(() => ranks.map((rank) => [rank, (rank + 1) % W]))],
    halving: () => [circle, back([...hops].reverse().map((hop) => ranks.map((rank) => [rank, rank ^ hop]).filter(([, to]) => to < W)))],
  }[name]();
}

// Draw the ranks of an algorithm and the links that it uses.
function pictogram(name, size, x) {
  const [spots, steps] = pattern(name, size);
  const links = new Set(steps.flat().map(([s, t]) => `M${spots[Math.min(s, t)]}L${spots[Math.max(s, t)]}`));
  return h("svg:g", { transform: `translate(${x} 0)`, "data-run": name },
    h("svg:path", { class: "x-arrow", d: [...links].join("") }),
    spots.map(([cx, cy], rank) => h("svg:circle", { cx, cy, r: 4.5, style: `fill: ${rankColor(rank)}` })));
}

// Let each algorithm do one all_reduce in its pictogram, all on one clock, once it is in
// sight and the hand that changes the figure rests.
function run(svg, { ways, seconds: least }, size) {
  const go = () => {
    if (!svg.isConnected || still()) return;
    for (const [name, , , time] of ways) {
      const place = svg.querySelector(`[data-run="${name}"]`), [spots, steps] = pattern(name, size);
      const duration = 2400 * Math.min(MOST, time / least) / steps.length; // ms of a step
      steps.forEach((step, i) => step.forEach(([s, t]) => {
        const [[cx, cy], [toX, toY]] = [spots[s], spots[t]];
        const dot = h("svg:circle", { cx, cy, r: 5, opacity: 0, style: `fill: var(--x-ground); stroke: ${rankColor(s)}; stroke-width: 2.5` });
        place.append(dot);
        dot.animate([{ opacity: 1 }, { opacity: 1, transform: `translate(${toX - cx}px, ${toY - cy}px)` }],
          { delay: i * duration, duration, easing: "ease-in-out" }).onfinish = () => dot.remove();
      }));
    }
  };
  const watcher = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    watcher.disconnect();
    setTimeout(go, 400);
  });
  watcher.observe(svg);
}

// Magnify what the upright line meets: a bar of time for each algorithm, from one zero. First
// what the steps cost, then the bytes on the link; what is much slower than the fastest is
// cut, with a gap. Before the answer, one step of each stands there, and their number.
function cost([name, steps, , time], i, high, { state, facts, width, asking }, y) {
  const longest = Math.min(MOST * facts.seconds, Math.max(...facts.ways.map((way) => way[3]))), across = width - ZERO - 72;
  const long = (seconds) => across * Math.min(1, seconds / longest), alpha = state.alpha_us * 1e-6, count = asking ? steps : 1;
  const part = long(steps * alpha / count), all = long(time / count), strong = name === facts.fastest && !asking ? "x-strong" : "", middle = y + high / 2 + 2;
  return h("svg:g", { [asking ? "data-step" : "data-cost"]: name }, text(0, middle, name, { ...START, class: strong }),
    rect(ZERO, y, part, high - 5, { rx: 0, style: `fill: ${GREY}` }), all > part && hatched(ZERO + part, y, all - part, high - 5, GREY, { rx: 0 }),
    !asking && time > 1.001 * longest && h("svg:path", { d: `M${ZERO + across - 16} ${y + high - 3}l6 ${-high - 1}`, style: "stroke: var(--x-ground); stroke-width: 4" }),
    text(ZERO + all + 7, middle, asking ? `× ${steps.toLocaleString("en")}${name === "halving" ? ", on average" : ""}` : amount(time, "s"), { ...START, class: strong }));
}

function magnified(view, { top, x }) {
  const { state, facts, width, narrow, asking } = view, { ways } = facts, y = top - 22 - BARS, high = BARS / ways.length;
  const cut = !asking && Math.max(...ways.map((way) => way[3])) > 1.001 * MOST * facts.seconds, head = `At ${amount(state.num_bytes, "B")}${asking ? ", one step" : ""}:`;
  const marks = [[asking ? "start" : "steps", 0], ["bytes", 68]], from = 12 + 7.8 * head.length, few = narrow ? ""
    : [asking && "how long is each row in all?", cut && "a gap: longer than drawn", state.world_size > DOTS && `${DOTS} ranks are drawn`].filter(Boolean).join("; ");
  return [text(0, y - 8, head, { ...START, class: "x-strong" }),
    marks.map(([words, at], k) => [k ? hatched(from + at, y - 17, 14, 9, GREY, { rx: 0 }) : rect(from, y - 17, 14, 9, { rx: 0, style: `fill: ${GREY}` }),
      text(from + at + 19, y - 8, words, START)]), text(from + 136, y - 8, few, START),
    ways.map((way, i) => cost(way, i, high, view, y + i * high)),
    h("svg:path", { class: "x-frame", d: `M${ZERO} ${y - 3}v${BARS}` }),
    h("svg:path", { class: "x-frame", "stroke-opacity": 0.5, d: `M0 ${y + BARS}L${x(state.num_bytes)} ${top - 6}L${width} ${y + BARS}` })];
}

// Above: each algorithm, its steps, and what each of them sends.
function card(name, i, view) {
  const { state, facts, set, width, narrow, asking } = view;
  const { world_size: W, halving } = state, wide = width / 4, x = i * wide, across = wide - (narrow ? 8 : 18);
  const [left, top] = narrow ? [x, 68] : [x + 62, 15];
  const way = facts.ways.find(([one]) => one === name), strong = name === facts.fastest && !asking ? "x-strong" : "";
  const part = { ring: `n/${W.toLocaleString("en")}`, halving: "n/2, n/4 …" }[name] ?? "n";
  const said = way ? [`${way[1].toLocaleString("en")} steps`, narrow ? part.length > 7 ? part : `${part} each` : part.length > 6 ? `of ${part}` : `of ${part} bytes`]
    : halving ? ["needs 2, 4,", "8, … ranks"] : ["not used:", "press to add"];
  const box = h("svg:g", { style: "outline-offset: -2px" }, // or the edge cuts the frame
    h("svg:rect", { x: x - 5, y: 0, width: across + 5, height: narrow ? 106 : 56, fill: "transparent" }),
    h("svg:g", { opacity: way ? 1 : 0.5 }, pictogram(name, W, x)),
    text(left, top, name, { ...START, class: strong }),
    said.map((words, k) => text(left, top + 17 * (k + 1), words, { ...START, style: !halving && k && !way ? LINK : "" })));
  return name !== "halving" ? box
    : pressable(box, "halving", "allow halving and doubling, in the drawing", () => set({ halving: !halving }), halving);
}

// Say where sizes and times are. Times reach, in powers of ten, from the fastest at 1 kB
// to the slowest at 10 GB, so that each line ends at the right, beside its name.
function scales({ facts, state, width, narrow }) {
  const map = range01({ kind: "whole", range: [...SIZES, true] }), wide = width - LEFT - RIGHT, top = narrow ? 218 : 170, tall = narrow ? 152 : 156;
  const at = (way, bytes) => seconds(way, bytes, state.alpha_us * 1e-6, state.gb_per_s * 1e9), floor = top + tall;
  const low = Math.floor(Math.log10(Math.max(1e-9, Math.min(...facts.ways.map((way) => at(way, SIZES[0]))))));
  const high = Math.ceil(Math.log10(Math.max(...facts.ways.map((way) => at(way, SIZES[1])))));
  const y = (time) => Math.min(floor, top + tall * (high - Math.log10(Math.max(time, 1e-12))) / (high - low));
  const x = (bytes) => LEFT + wide * map.place(bytes), inside = (time) => y(time) >= top - 1 && time >= 10 ** low;
  const line = (way, from, to) => range(POINTS + 1).map((k) => from * (to / from) ** (k / POINTS))
    .filter((bytes) => inside(at(way, bytes))).map((bytes) => `${x(bytes).toFixed(1)} ${y(at(way, bytes)).toFixed(1)}`);
  return { map, wide, top, floor, low, high, at, x, y, inside, line };
}

function axes({ width, narrow }, { x, y, low, high, wide, floor }) {
  const tens = (from, to) => range(to - from + 1).map((i) => from + i), far = y(10 ** low) - y(10 ** (low + 1)) > 18;
  return [
    tens(low, high).map((k) => [
      h("svg:path", { class: "x-frame", d: `M${LEFT} ${y(10 ** k)}H${width - RIGHT}`, "stroke-opacity": 0.4 }),
      (far || (high - k) % 2 === 0) && text(LEFT - 6, y(10 ** k) + 4, k > 3 ? `10${[..."⁴⁵⁶⁷⁸"][k - 4]} s` : amount(10 ** k * 1.0000001, "s"), { "text-anchor": "end" }),
    ]),
    tens(3, 10).filter((k) => !narrow || k % 3 === 0).map((k) => text(x(10 ** k), floor + BAND + 19, amount(10 ** k, "B"))),
    text(LEFT + wide / 2, floor + BAND + 35, "bytes that each rank brings, n"),
  ];
}

// The lowest line, and below it which algorithm that is.
function lowest({ facts, width, asking }, { x, line, floor }) {
  if (asking) return text((LEFT + width - RIGHT) / 2, floor + 18, "which one wins, and where?");
  return facts.winners.map(([name, from], i) => {
    const way = facts.ways.find(([one]) => one === name), to = facts.winners[i + 1]?.[1] ?? SIZES[1];
    const [left, right] = [x(from), x(to)], across = right - left, middle = (left + right) / 2;
    return [
      h("svg:path", { d: `M${line(way, from, to).join("L")}`, style: "fill: none; stroke: var(--x-ink); stroke-width: 3", "data-id": `line ${name}` }),
      rect(left, floor + 4, Math.max(1, across - 1), BAND, { class: "x-box", "data-id": `band ${name}`, style: `--hue: ${GREY}; --deep: 14%` }),
      across > 7.5 * name.length + 60 ? text(middle, floor + 18, `${name} is fastest`)
        : across > 7.5 * name.length + 6 && text(middle, floor + 18, name),
    ];
  });
}

// The line of each algorithm, with its name where it ends: strong if the lowest, thick line
// ends there too, whichever is fastest at the upright one.
function lines({ facts, width, asking }, { y, at, line, floor }) {
  const lowest = facts.winners.at(-1)[0];
  let free = floor + 20; // names keep off each other, from the lowest line up
  return [...facts.ways].sort((a, b) => at(a, SIZES[1]) - at(b, SIZES[1])).map((way) => {
    free = Math.min(free - 15, y(at(way, SIZES[1])) + 4);
    return [
      h("svg:path", { d: `M${line(way, ...SIZES).join("L")}`, style: `fill: none; stroke: ${GREY}; stroke-width: 1.5`, "stroke-dasharray": DASHES[way[0]], "data-id": `way ${way[0]}` }),
      text(width - RIGHT + 7, free, way[0], { ...START, class: way[0] === lowest && !asking ? "x-strong" : "" }),
    ];
  });
}

const OVER = "paint-order: stroke; stroke: var(--x-ground); stroke-width: 4"; // lines are not seen behind

// Say where the lowest line pays for what: it bends where its steps cost as much as its bytes.
function bends({ facts, state, width, narrow }, { x, y, at, floor }) {
  const bend = (name) => facts.ways.find(([one]) => one === name), balance = ([, steps, share]) => steps * facts.balance / share;
  const [first, last] = [facts.winners[0], facts.winners.at(-1)].map(([name]) => bend(name)), wide = narrow ? 74 : 150;
  const low = y(Math.max(...facts.ways.map((way) => at(way, SIZES[0])))) - 9, climbs = x(Math.min(Math.max(balance(last), SIZES[0]), SIZES[1]));
  return [balance(first) > SIZES[0] && x(Math.min(balance(first), SIZES[1])) > LEFT + wide
      && text(LEFT + 6, low, narrow ? "flat: steps" : "flat: pays for steps", { style: OVER, ...START }),
    width - RIGHT - climbs > wide + 20 && state.gb_per_s > 0
      && text(width - RIGHT - 6, floor - 9, narrow ? "climbs: bytes" : "climbs: pays for bytes", { style: OVER, "text-anchor": "end" })];
}

// What a real machine took, if it is like this one; else the offer to compare with it. The
// upright line does not run through it.
function reality({ state, facts, set, narrow }, { x, y, inside, top }) {
  const [name, gpus] = REAL, like = facts.published.length > 0, [, alpha_us, gb_per_s] = LINKS.find(([one]) => one === name);
  const words = like ? (narrow ? `${gpus} H100` : `measured: ${gpus} H100`) : narrow ? `${gpus} real H100?` : `set to ${gpus} real H100, and compare`, across = !narrow ? 258 : like ? 80 : 126;
  const now = x(state.num_bytes), left = now < LEFT + across ? now + 8 : LEFT, px = left + 16, py = top + 32;
  const said = h("svg:g", {},
    h("svg:rect", { x: left, y: top + 16, width: across - 10, height: 26, fill: "transparent" }),
    h("svg:circle", { cx: px - 6, cy: py - 4, r: 3.5, style: "fill: var(--x-ground); stroke: var(--x-ink); stroke-width: 1.5" }),
    text(px + 4, py, words, { ...START, style: `${OVER}; ${like ? "" : LINK}` }));
  return [
    facts.published.filter(([, time]) => inside(time)).map(([bytes, time]) => h("svg:circle", { cx: x(bytes), cy: y(time), r: 3.5,
      style: "fill: var(--x-ground); stroke: var(--x-ink); stroke-width: 1.5" })),
    like ? said : pressable(said, "real", `set to ${gpus} real H100, and compare`, () => set({ world_size: gpus, alpha_us, gb_per_s })),
  ];
}

// The upright line at n, which one drags, and where it meets the algorithms' lines.
function handle({ state: { num_bytes: n }, facts, before, set, measured, asking }, { map, wide, top, floor, x, y, inside }) {
  const now = x(n), left = now > LEFT + wide / 2, real = measured?.seconds;
  return [
    before && inside(before.facts.seconds) && h("svg:circle", { cx: x(before.state.num_bytes), cy: y(before.facts.seconds), r: 6, class: "x-ghost" }),
    draggable(h("svg:g", {},
      h("svg:rect", { x: now - 22, y: top, width: 44, height: floor - top, fill: "transparent" }),
      h("svg:path", { class: "x-frame", style: "stroke: var(--x-mark); stroke-width: 2", d: `M${now} ${top}V${floor}` }),
      h("svg:rect", { x: now - 5, y: top - 6, width: 10, height: 22, rx: 4, class: "x-handle" })),
    "size", { label: "bytes of the tensor", now: n, low: SIZES[0], high: SIZES[1], said: amount(n, "B"),
      move: (by, start) => map.value(map.place(start) + by / wide),
      step: (by) => map.value(map.place(n) + by / 70), set: (num_bytes) => set({ num_bytes }) }),
    facts.ways.filter((way) => !asking && inside(way[3])).map(([name, , , time]) => h("svg:circle", { cx: now, cy: y(time),
      r: name === facts.fastest ? 6 : 4, style: `fill: ${name === facts.fastest ? "var(--x-ink)" : GREY}`, "data-id": `dot ${name}` })),
    real && inside(real) && y(real) < floor && rect(now - 6, y(real) - 6, 12, 12, { class: "x-handle" }),
    text(now + (left ? -10 : 10), top + 10, amount(n, "B"), { class: "x-strong", "text-anchor": left ? "end" : "start" }),
  ];
}

function draw(view) {
  const { state, facts, width } = view, place = scales(view);
  const alpha = state.alpha_us * 1e-6;
  const made = picture(width, place.floor + BAND + 42, "", ["naive", "tree", "ring", "halving"].map((name, i) => card(name, i, view)), magnified(view, place),
    axes(view, place), lowest(view, place), lines(view, place), reality(view, place), handle(view, place), bends(view, place));
  run(made.firstChild, facts, state.world_size);
  return {
    picture: made,
    below: [
      h("p", {}, "Drag the upright line, or focus it and press the arrow keys. Both axes are logarithmic: where a "
        + "line is flat, an all_reduce pays for its steps, and where it climbs, for its bytes. A message on this "
        + `link pays as much for itself as for its bytes at α\u00a0B = ${amount(facts.balance, "B")}. The bars magnify what the `
        + "upright line meets: an algorithm's steps (plain) and its bytes (hatched), on one scale of time; a bar with a gap is longer than drawn. The small drawings show at most 8 ranks; they move in proportion to the times."),
      facts.published.length > 0 && h("p", {}, `Dots: ${REAL[1]} H100 in one machine, as `, h("a", { href: REAL[2] }, "Microsoft Azure measured them"), " with NCCL."),
      table("The algorithms at this size", ["algorithm", "steps", "bytes that follow one another", "steps take", "bytes take", "time"],
        facts.ways.map(([name, steps, share, time]) => [name, steps, amount(share * state.num_bytes, "B"),
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
  sentence: "{world_size} ranks; a message takes {alpha_us} µs to start, and a link carries {gb_per_s} GB/s.",
});
