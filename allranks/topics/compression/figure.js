// What a step costs if ranks send less. Mirrors sums.py and ../links/sums.py.

import { h, picture, rect, text, hatched, table, whole, amount, range01, draggable, pressable, explorable } from "../kit/kit.js";
import { LABELS, WHOLE, BOUNDS, MODELS, FIELDS } from "./figure.py";
import { BACKWARD, BUCKET, EFFORT, LEARNS } from "./sums.py";
import { LINKS as NAMED } from "../links/sums.py";

const LINKS = Object.values(NAMED);
const linkOf = (alpha, speed) => LINKS.find(([, a, b]) => a === alpha && b === speed)?.[0] ?? "";
const [, ...SIZES] = FIELDS;
const modelOf = (state) => MODELS.find(([, ...numbers]) => numbers.every((n, i) => n === state[SIZES[i]]))?.[0] ?? "";

// Return [name, handed, sent, messages, encoding, communication, exposed, step] of each method.
function ways(state, bandwidth = state.gb_per_s * 1e9) {
  const { world_size: size, matrices, width, inner_steps: every, approx_rank: r } = state;
  const numbers = matrices * width ** 2, bytes = 4 * numbers, others = size - 1, share = 2 * others / size;
  const rounds = Math.ceil(bytes / BUCKET), around = 2 * others * rounds;
  const alpha = state.alpha_us * 1e-6, compute = state.compute_ms * 1e-3;
  return [["none", bytes, around, share], ["bf16", bytes / 2, around, share],
    ["topk", 8 * kept(state, numbers), others * rounds, others],
    ["powersgd", 8 * r * width * matrices, 2 * around, share],
    ["local", bytes / every, around / every, share]].map(([name, handed, messages, hops]) => {
    const sent = handed * hops, communication = messages * alpha + sent / bandwidth;
    const encoding = (EFFORT[name] ?? 0) * bytes / (state.search_gb_per_s * 1e9);
    const hides = state.overlap && name !== "local", busy = communication - BACKWARD * compute * (rounds - 1) / rounds;
    const exposed = hides ? Math.max(communication / rounds, busy) : communication; // the last bucket is never hidden
    return [name, handed, sent, messages, encoding, communication, exposed, compute + encoding + exposed];
  });
}
// Return the seconds in which a way learns what one plain step teaches, if that is known.
function asGood(state, name, step) {
  const [setting, value, steps] = LEARNS[name];
  return setting && state[setting] !== value ? null : step * steps;
}
const kept = (state, numbers) => Math.max(1, Math.floor(state.keep_percent / 100 * numbers));
const best = (found) => found.reduce((a, b) => b[7] < a[7] ? b : a)[0];

function summary(state, facts, [name, , sent, , encoding, , exposed, step], plain) {
  const parts = [[state.compute_ms * 1e-3, "compute"], [encoding, "encode"], [exposed, "wait"]].filter(([seconds]) => seconds > 0)
    .map(([seconds, what]) => `${amount(seconds, "s")} ${what}`);
  const words = `${LABELS[name]} on ${state.world_size} ranks, ${facts.link || "this link"}: ${amount(step, "s")} a step (${parts.join(", ")})`;
  const compared = name === "none" ? "" : step < plain ? `, ${Math.floor(100 * plain / step + 0.5) / 100} times as fast as without`
    : `; without it, ${amount(plain, "s")}`;
  const last = name !== "none" ? "." : facts.fastest === "none" ? ". Nothing is faster here." : `. Fastest here: ${LABELS[facts.fastest]}.`;
  return `${words}${compared}. A rank sends ${amount(sent, "B")}${last}`;
}

export function compute(state) {
  if (!LABELS[state.method])
    throw Error(`method must be one of ${Object.keys(LABELS).join(", ")}, not ${state.method}`);
  for (const [name, [low, high]] of Object.entries(WHOLE))
    if (whole(name, state[name], low) > high) throw Error(`${name} must be at most ${high}, not ${state[name]}`);
  for (const [name, [low, high]] of Object.entries(BOUNDS))
    if (!(low <= state[name] && state[name] <= high)) throw Error(`${name} must be ${low} to ${high}`);
  if (state.approx_rank > state.width)
    throw Error(`approx_rank must be at most the width, ${state.width}: a matrix has no higher rank`);
  const found = ways(state), own = found.find(([name]) => name === state.method);
  const numbers = state.matrices * state.width ** 2;
  const facts = {
    ways: found, as_good: found.map(([name, ...rest]) => asGood(state, name, rest[6])), fastest: best(found), step: own[7], sent: own[2],
    gradient: 4 * numbers, buckets: Math.ceil(4 * numbers / (25 * 2 ** 20)), per_token: own[2] / state.tokens,
    more_from: Math.floor(numbers / kept(state, numbers)) + 1,
    link: linkOf(state.alpha_us, state.gb_per_s), model: modelOf(state),
  };
  return { ...facts, summary: summary(state, facts, own, found[0][7]) };
}

// A method's label in the drawing, with what it is set to.
const setTo = (name, state) => LABELS[name] + ({ topk: `, ${state.keep_percent} %`, powersgd: `, r = ${state.approx_rank}`,
  local: `, H = ${state.inner_steps}` }[name] ?? "");
const own = (known) => (known ? [] : [["", "your own"]]);
const number = (name, label, range, more = {}) => ({ name, label, kind: "number", min: 0, range, ...more });
const bounded = (name, label, range, more = {}) =>
  ({ name, label, kind: "whole", min: WHOLE[name][0], max: WHOLE[name][1], range, ...more });
const fields = [
  { name: "model", label: "Model", kind: "choice", knob: true, get: (s, f) => f.model,
    options: (s) => [...own(modelOf(s)), ...MODELS.map(([name]) => [name, name])],
    set: (name) => Object.fromEntries(MODELS.find((one) => one[0] === name).slice(1).map((n, i) => [SIZES[i], n])) },
  { name: "link", label: "Link", kind: "choice", knob: true, get: (s, f) => f.link,
    options: (s) => [...own(linkOf(s.alpha_us, s.gb_per_s)), ...LINKS.map(([name]) => [name, name])],
    set: (name) => {
      const [, alpha_us, gb_per_s] = LINKS.find((one) => one[0] === name);
      return { alpha_us, gb_per_s };
    } },
  { name: "method", label: "Method", kind: "choice", options: Object.entries(LABELS) },
  bounded("world_size", "Ranks, W", [2, 1024, true]),
  number("keep_percent", "Top-k keeps, %", [0.01, 50, true]),
  bounded("approx_rank", "PowerSGD, rank r", [1, 64, true]),
  bounded("inner_steps", "Steps per average, H", [1, 1000, true]),
  { name: "overlap", label: "send while backward computes", kind: "flag" },
  bounded("matrices", "matrices", [1, 1000, true]),
  bounded("width", "width of a matrix", [2, 8192, true]),
  number("compute_ms", "ms of computing per step", [1, 1000, true]),
  bounded("tokens", "tokens per rank and step", [1, 1e5, true]),
  number("alpha_us", "α, µs per message", [0, 5000]),
  number("gb_per_s", "B, GB/s per link", [0.01, 1000, true]),
  number("search_gb_per_s", "GB/s, top-k's search", [0.1, 1000, true]),
];

const MOST = 5; // times the shortest step: the longest bar
const BAR = 24, LINK = 9, BAND = 24, POINTS = 120, SPEEDS = [0.01, 1000]; // GB/s
const SHORT = [["NVLink", "middle", 0], ["PCIe", "start", -3], ["InfiniBand", "end", 5], // of LINKS
  ["Ethernet", "middle", 0], ["Ethernet", "middle", 0], ["home", "middle", 0]];
const BRIEF = { none: "none", bf16: "bf16", topk: "top-k", powersgd: "Power", local: "local" }; // where a name has no room
const START = { "text-anchor": "start" }, END = { "text-anchor": "end" };
const TAIL = 0.16; // of the room: where bars that are cut end, in the order of their lengths
const OVER = "paint-order: stroke; stroke: var(--x-ground); stroke-width: 5"; // a line is not seen behind
// No rank is drawn here, as all do the same: gray, by the kind of work.
const gray = (deep, more = {}) =>
  ({ class: "x-box", style: `--hue: var(--x-soft); --deep: ${deep}%`, rx: 0, ...more });
// Write the longest of some words that fits into a box.
const inside = (x, y, across, ...words) => {
  const fits = words.find((one) => 7.4 * one.length + 5 < across);
  return fits && text(x + across / 2, y, fits);
};

// Return where things stand: names at the left and times at the right, or above the bars.
function layout({ facts, width, narrow, asking }) {
  const left = narrow ? 1 : 140, room = width - left - (narrow ? 3 : 172), row = narrow ? 58 : 48;
  const longest = Math.max(...facts.ways.map((way, i) => Math.max(way[7], facts.as_good[i] ?? 0)));
  // On a slow link the longest would leave slivers of the others. It is cut, after the answer.
  const most = asking ? longest : Math.min(longest, MOST * Math.min(...facts.ways.map((way) => way[7])));
  const uncut = room * (most < longest ? 1 - TAIL : 1), top = narrow ? 58 : 22;
  const long = (seconds) => seconds <= most ? uncut * seconds / most : uncut + (room - uncut) * Math.min(1, (Math.log(seconds / most) + 0.2) / (Math.log(longest / most) + 0.2));
  return { left, room, most, uncut, long, bar: narrow ? 20 : 5,
    y: (i) => top + row * i, row, floor: top + 5 * row + 53, columns: [width - (narrow ? 88 : 106), width - 5] };
}

// Draw what a link is busy with: the start-ups of messages, and then their bytes. In truth
// they take turns, bucket by bucket. Part of it is hidden by computing.
function onLink({ state, facts }, at, i) {
  const [name, , , messages, encoding, communication, exposed] = facts.ways[i], y = at.y(i) + at.bar + BAR + 1;
  const compute = state.compute_ms * 1e-3, hidden = Math.min(communication - exposed, compute);
  const starting = messages * state.alpha_us * 1e-6, early = Math.min(starting, hidden), late = Math.min(starting - early, exposed);
  const piece = (what, from, seconds, box) => {
    const x = at.long(from), across = at.long(from + seconds) - x;
    return across > 0.3 && box(at.left + x, Math.max(1, across), `${what} ${name}`);
  };
  const starts = (x, across, id) => rect(x, y, across, LINK, gray(60, { "data-id": id }));
  const bytes = (x, across, id) => hatched(x, y, across, LINK, "var(--x-soft)", { rx: 0, "data-id": id });
  return [piece("starts", compute - hidden, early, starts), piece("hidden", compute - hidden + early, hidden - early, bytes),
    piece("restarts", compute + encoding, late, starts), piece("sent", compute + encoding + late, exposed - late, bytes)];
}

// Draw a step: all ranks compute, encode and wait; below, when the link is busy.
function bars(view, at, i) {
  const { state, facts, before } = view, [name, , , , encoding, , exposed, step] = facts.ways[i];
  const y = at.y(i) + at.bar, compute = state.compute_ms * 1e-3;
  let x = at.left, since = 0;
  const part = (seconds, what, attributes) => {
    const from = x;
    x = at.left + at.long(since += seconds);
    const across = Math.max(1, x - from);
    return seconds > 0 && from < at.left + at.room && [rect(from, y, across, BAR, { rx: 0, style: "fill: var(--x-ground)" }), // one red, on all rows
      rect(from, y, across, BAR, { ...attributes, "data-id": `${what} ${name}` }),
      inside(from, y + 17, across, `${what} ${amount(seconds, "s")}`, amount(seconds, "s"))];
  };
  const good = facts.as_good[i] ?? step, more = at.long(good) - at.long(step), end = at.left + at.uncut + 6, past = before?.facts.ways[i][7];
  return [part(compute, "computes", gray(18)), part(encoding, "encodes", gray(40)), part(exposed, "waits", { class: "x-wait", rx: 0 }),
    more > 1 && [rect(x, y, more, BAR, { class: "x-idle", rx: 0 }), inside(x, y + 17, more, "more steps")],
    onLink(view, at, i),
    Math.max(step, good) > 1.001 * at.most && h("svg:path", { class: "x-cut", d: `M${end - 16} ${y + BAR + LINK + 4}l12 ${-BAR - LINK - 8}`, style: "stroke: var(--x-ground); stroke-width: 6" }),
    !view.narrow && past && past !== step && past <= at.most && h("svg:path", { class: "x-ghost", d: `M${at.left + at.long(past)} ${y - 4}v${BAR + 8}` })];
}

// Draw what is known of a step before the answer: what it computes, and its bytes on the
// link, all from where the link is busy first without compression.
function veiled({ state, facts }, at, i) {
  const y = at.y(i) + at.bar, [name, , sent] = facts.ways[i], from = at.long(state.compute_ms * 1e-3), bytes = at.long(sent / (state.gb_per_s * 1e9));
  const [, , , , , communication, exposed] = facts.ways[0], busy = at.long(Math.max(0, state.compute_ms * 1e-3 - communication + exposed));
  return [rect(at.left, y, from, BAR, gray(18)), inside(at.left, y + 17, from, `computes ${amount(state.compute_ms * 1e-3, "s")}`, "computes"),
    hatched(at.left + Math.max(0, Math.min(busy, at.room - bytes)), y + BAR + 1, Math.max(2, bytes), LINK, "var(--x-soft)", { rx: 0, "data-id": `carries ${name}` }),
    text(at.left + from + 8, y + 17, `${EFFORT[name] ? "+ encodes " : ""}+ waits`, { ...START, style: OVER })];
}

// Draw a way of sending: press it to choose it.
function row(view, at, i) {
  const { state, facts, set, width, narrow, asking } = view, [name, , sent, , , , , step] = facts.ways[i];
  const y = at.y(i), chosen = name === state.method, open = asking && i > 0, base = narrow ? y + 14 : y + at.bar + 17;
  const good = facts.as_good[i];
  const label = setTo(name, state), sends = `${amount(sent, "B")}`;
  const shown = open ? ["?", ""] : [amount(step, "s"), asking ? "" : good === null ? "not measured" : amount(good, "s")];
  const look = (k) => (k ? "" : name === facts.fastest && !asking ? "x-strong" : ""); // the question is about the first column
  const button = pressable(h("svg:g", { "data-id": `row ${name}` },
    rect(0, y - 2, width, at.row - 2, { style: `fill: ${chosen ? "var(--x-shade)" : "transparent"}` }),
    text(4, base - (narrow ? 0 : 6), narrow ? `${label} · ${sends}` : label, { ...START, class: chosen ? "x-strong" : "" }),
    !narrow && text(4, base + 10, `sends ${sends}`, START),
    shown.map((words, k) => text(at.columns[k], base, words, { ...END, style: narrow && !chosen ? OVER : "", class: look(k) })),
    open ? veiled(view, at, i) : bars(view, at, i)), `method ${name}`, LABELS[name], () => set({ method: name }), chosen);
  return button;
}

// Draw which way is fastest at what bandwidth, with a handle at this link's.
function band({ state, set, width, narrow, asking }, at) {
  const map = range01({ kind: "number", range: [...SPEEDS, true] }), { floor } = at, winners = [];
  const x = (speed) => 4 + (width - 8) * map.place(speed), now = x(state.gb_per_s);
  const grid = Array.from({ length: POINTS + 1 }, (_, i) => SPEEDS[0] * (SPEEDS[1] / SPEEDS[0]) ** (i / POINTS));
  for (const speed of [...grid, state.gb_per_s].sort((a, b) => a - b)) { // with the handle's own
    const name = best(ways(state, speed * 1e9));
    if (winners.at(-1)?.[0] !== name) winners.push([name, x(speed)]);
  }
  const parts = winners.map(([name, from], i) => {
    const to = winners[i + 1]?.[1] ?? width - 4;
    return [rect(from, floor, Math.max(1, to - from), BAND, gray(14, { "data-id": `band ${name}` })),
      inside(from, floor + 17, to - from, LABELS[name], BRIEF[name])];
  });
  const here = winners.findLastIndex(([, from]) => from <= now), [, from] = winners[here];
  parts.push(rect(from, floor, Math.max(1, (winners[here + 1]?.[1] ?? width - 4) - from), BAND, { class: "x-frame x-chosen", rx: 0, "data-id": `here ${winners[here][0]}` }));
  const names = LINKS.map(([, , speed], i) => {
    const [words, anchor, by] = narrow && [1, 4].includes(i) ? [] : SHORT[i];
    return words && [h("svg:path", { class: "x-frame", d: `M${x(speed)} ${floor - 5}v5` }),
      narrow ? text(x(speed), floor - 8, words) : text(x(speed) + by, floor - 8, `${words} ${speed}`, { "text-anchor": anchor })];
  });
  const bits = Number((8 * state.gb_per_s).toPrecision(3)); // as in a link's name
  const said = `${state.gb_per_s} GB/s${narrow ? "" : ` = ${bits} Gb/s`}`, wide = 7.8 * said.length + 16;
  const middle = Math.min(Math.max(now, wide / 2 + 1), width - wide / 2 - 1), low = floor + BAND + 6;
  const handle = draggable(h("svg:g", {}, rect(now - 22, floor - 4, 44, BAND + 36, { fill: "transparent" }),
    h("svg:path", { style: "stroke: var(--x-mark); stroke-width: 2", d: `M${now} ${floor - 5}v10M${now} ${floor + BAND - 5}v12` }),
    rect(middle - wide / 2, low, wide, 22, { class: "x-handle", rx: 11 }),
    text(middle, low + 15, said, { class: "x-strong", style: "fill: var(--x-ground)" })),
  "speed", { label: "bandwidth of a link", now: state.gb_per_s, low: SPEEDS[0], high: SPEEDS[1], said,
    move: (by, from) => map.value(map.place(from) + by / (width - 8)),
    step: (by) => map.value(map.place(state.gb_per_s) + by / 60), set: (gb_per_s) => set({ gb_per_s }) });
  return [text(4, floor - 27, narrow ? "The shortest step, by a link's GB/s" : "Which way has the shortest step, by the GB/s that a link carries", START), names,
    asking ? text(4, floor + 17, "which one wins, and where?", START) : parts,
    [-2, -1, 0, 1, 2, 3].map((k) => [10 ** k, Math.min(Math.max(x(10 ** k), 16), width - 18)])
      .filter(([, at]) => Math.abs(at - middle) > wide / 2 + 20)
      .map(([speed, at]) => text(at, floor + BAND + 20, speed)), handle];
}

// Name each kind of work, of a rank and of its link, in one line or, on a phone, in two.
function legend({ narrow, asking }) {
  const dashed = (x) => rect(x, 4, 14, LINK, { class: "x-idle", rx: 0 }), work = (deep) => (x, y) => rect(x, y, 14, LINK, gray(deep));
  const marks = [["computes", work(18)], ["encodes", work(40)], ["waits", (x, y) => rect(x, y, 14, LINK, { class: "x-wait", rx: 0 })],
    [narrow ? "link: starts" : "the link: starts", work(60)], ["bytes", (x, y) => hatched(x, y, 14, LINK, "var(--x-soft)", { rx: 0 })],
    !asking && ["more steps", (x, y) => h("svg:g", { transform: `translate(0 ${y - 4})` }, dashed(x))]].filter(Boolean);
  let x = 1, y = 4;
  return marks.map(([words, mark], k) => {
    if (narrow && k === 3) [x, y] = [1, 22];
    const from = x;
    x += 32 + 7.3 * words.length;
    return [mark(from, y), text(from + 18, y + 9, words, START)];
  });
}

function draw(view) {
  const { state, facts, before, width, narrow, asking } = view, at = layout(view);
  const plain = at.left + at.long(facts.ways[0][7]), low = at.y(5) + 6, past = before && !narrow && !asking;
  return {
    picture: picture(width, at.floor + BAND + 32, "", legend(view),
      past && [h("svg:path", { class: "x-ghost", d: `M5 ${low - 12}v14` }), text(11, low, "before", START)],
      // Through all bars: how long a step takes without compression.
      facts.ways[0][7] <= at.most && h("svg:path", { class: "x-frame", d: [1, 2, 3, 4].map((i) => `M${plain} ${at.y(i) + at.bar - 1}v${BAR + LINK + 4}`).join("") }),
      facts.ways[0][7] <= at.most ? text(Math.min(Math.max(plain, 68), at.left + at.room - 64), low, "without compression")
        : text(at.left + at.room, low, "bars with a gap are longer", END),
      ["one step", asking ? "" : narrow ? "equal loss" : "for equal loss"].map((words, k) => text(at.columns[k], narrow ? 49 : 13, words, END)),
      facts.ways.map((_, i) => row(view, at, i)),
      band(view, at)),
    below: [
      h("p", {}, "Press a way to choose it, or drag the bandwidth. The last bucket has no backward left to hide behind. "
        + "Encoding for PowerSGD takes 0.4 of the time of top-k's search, and a cast 0.1, about as measured on one core. "
        + "The two large models' times are estimates, at 40 % of an H100's peak."),
      h("p", {}, "Each message has a start-up, α, which takes the link's time and sends nothing: where few bytes leave in many messages, "
        + "the link is busy for long. Start-ups and bytes alternate, bucket by bucket; the drawing puts all start-ups first."),
      h("p", {}, "A step may teach less than a plain one. The dashed part, and the last column, add the steps that this chapter's network on "
        + "digits needed to a loss of 0.2: "
        + `${Object.entries(LEARNS).filter(([, [setting]]) => setting).map(([name, [, , steps]]) => `${steps} times as many with ${LABELS[name]}`).join(", ")} `
        + "(with error feedback, on two ranks, means over five seeds; top-k's seeds differ most, 1.5 to 2.1). That is measured for these settings only, and your model may need more or fewer."),
      h("p", {}, `The gradient has ${amount(facts.gradient, "B")} and leaves in ${facts.buckets} bucket${facts.buckets > 1 ? "s" : ""} of 25 MB. `
        + "Top-k sends 8 bytes for each number that it keeps, a value and its place, and they go to all ranks, W − 1 hops: "
        + `from ${facts.more_from} ranks on, that is more than without. `
        + "The others go around a ring, 2 (W − 1) / W times. PowerSGD sends r numbers for each row and for each column, in two all_reduces."),
      table("What each method sends and takes", ["method", "handed over", "sent", "messages in a row", "their start-ups", "encodes", "communicates", "waits", "step"],
        facts.ways.map(([name, handed, sent, messages, ...times]) => [LABELS[name], amount(handed, "B"), amount(sent, "B"),
          Number(messages.toFixed(2)), ...[messages * state.alpha_us * 1e-6, ...times].map((time) => amount(time, "s"))])),
    ],
  };
}

const ask = {
  apart: ["method"],
  question: ({ state, facts }) => `${state.world_size} ranks train ${facts.model || "a model"} over `
    + `${facts.link || `links of ${state.gb_per_s} GB/s`}. Which way has the shortest step?`,
  options: Object.values(LABELS),
  answer: ({ facts }) => Object.keys(LABELS).indexOf(facts.fastest),
  because: ({ facts }) => {
    const fastest = facts.ways.find(([name]) => name === facts.fastest), [plain] = facts.ways;
    const known = facts.as_good.map((time) => time ?? Infinity), best = known.indexOf(Math.min(...known));
    return `A step takes ${amount(fastest[7], "s")}, without compression ${amount(plain[7], "s")}. `
      + `For equal loss, ${facts.ways[best][0] === facts.fastest ? "it still wins" : `${LABELS[facts.ways[best][0]]} wins`}: ${amount(known[best], "s")}.`;
  },
};

export default explorable({
  name: "compression", title: "What does it save to send less?",
  label: "A step of data parallelism, by what its ranks send", fields, compute, draw, ask,
  sentence: "{world_size} ranks; top-k keeps {keep_percent} %, PowerSGD has rank {approx_rank}, local steps meet every {inner_steps} steps.",
});
