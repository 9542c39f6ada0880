// What a step costs if ranks send less. Mirrors sums.py and ../links/sums.py.

import { h, picture, rect, text, rankColor, table, whole, amount, range01, draggable, pressable, explorable } from "../kit/kit.js";
import { LABELS, WHOLE, BOUNDS, MODELS, FIELDS } from "./figure.py";
import { BACKWARD, BUCKET, EFFORT } from "./sums.py";
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
const kept = (state, numbers) => Math.max(1, Math.floor(state.keep_percent / 100 * numbers));
const best = (found) => found.reduce((a, b) => b[7] < a[7] ? b : a)[0];

function summary(state, facts, [name, , sent, , encoding, , exposed, step], plain) {
  let words = `${LABELS[name]} on ${state.world_size} ranks, ${facts.link || "this link"}: a step takes `
    + `${amount(step, "s")}, of which ${amount(state.compute_ms * 1e-3, "s")} compute, ${amount(encoding, "s")} encode and `
    + `${amount(exposed, "s")} wait for the network. A rank sends ${amount(sent, "B")} per step, ${amount(facts.per_token, "B")} per token. `;
  if (name === "none")
    return words + (facts.fastest === "none" ? "Nothing is faster here." : `Fastest here: ${LABELS[facts.fastest]}.`);
  words += step < plain ? `That is ${Math.floor(100 * plain / step + 0.5) / 100} times as fast as without.`
    : `Without it, a step takes ${amount(plain, "s")}.`;
  if (name === "topk") words += ` From ${facts.more_from} ranks on it sends more than whole gradients around a ring.`;
  if (name === "powersgd") words += ` Of each matrix it sends ${2 * state.approx_rank * state.width} for ${state.width ** 2} numbers.`;
  if (name === "local") words += " What the loss says after as many steps is another question.";
  return words;
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
    ways: found, fastest: best(found), step: own[7], sent: own[2],
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
  { name: "method", label: "Method", kind: "choice", knob: true, options: Object.entries(LABELS) },
  bounded("world_size", "Ranks, W", [2, 1024, true], { knob: true }),
  number("keep_percent", "Top-k keeps, %", [0.01, 50, true], { knob: true, show: (s) => s.method === "topk" }),
  bounded("approx_rank", "PowerSGD, rank r", [1, 64, true], { knob: true, show: (s) => s.method === "powersgd" }),
  bounded("inner_steps", "Steps per average, H", [1, 1000, true], { knob: true, show: (s) => s.method === "local" }),
  { name: "overlap", label: "send while backward computes", kind: "flag", knob: true },
  bounded("matrices", "matrices", [1, 1000, true]),
  bounded("width", "width of a matrix", [2, 8192, true]),
  number("compute_ms", "ms of computing per step", [1, 1000, true]),
  bounded("tokens", "tokens per rank and step", [1, 1e5, true]),
  number("alpha_us", "α, µs per message", [0, 5000]),
  number("gb_per_s", "B, GB/s per link", [0.01, 1000, true]),
  number("search_gb_per_s", "GB/s, top-k's search", [0.1, 1000, true]),
];

const ROW = 42, BAR = 15, BAND = 20, HUES = { none: 6, bf16: 4, topk: 1, powersgd: 2, local: 7 };
const PARTS = [["computes", 0, 1], ["encodes", 2, 1], ["waits", 5, 1], ["sends meanwhile", 5, 0.45]];
const POINTS = 90, SPEEDS = [0.01, 1000]; // GB/s

function draw({ state, facts, before, set, width, narrow }) {
  const compute = state.compute_ms * 1e-3, top = narrow ? 56 : 30;
  const most = Math.max(...facts.ways.map((way) => way[7])), long = (time) => (width - 4) * time / most;
  const start = { "text-anchor": "start" }, small = { class: "x-small" };
  const fill = (hue, more = {}) => ({ class: "x-box", style: `--hue: ${rankColor(hue)}; fill: ${rankColor(hue)}`, rx: 1, ...more });

  const legend = PARTS.map(([words, hue, tall], i) => {
    const x = narrow ? i % 2 * width / 2 : i * (width - 4) / 4, y = narrow ? 4 + 22 * Math.floor(i / 2) : 4;
    return [rect(x + 2, y + 12 * (1 - tall) / 2, 16, 12 * tall, fill(hue)), text(x + 24, y + 11, words, { ...start, class: "x-small" })];
  });
  // One row for each method: press it to choose it.
  const rows = facts.ways.map(([name, , , , encoding, communication, exposed, step], i) => {
    const y = top + i * ROW, chosen = name === state.method, hidden = communication - exposed;
    const kind = chosen ? "x-strong" : "", told = `${amount(step, "s")}${name === facts.fastest ? ", fastest" : ""}`;
    const past = before?.facts.ways[i][7];
    const row = h("svg:g", { "data-id": `row ${name}` },
      rect(0, y - 2, width - 2, ROW - 4, { fill: "transparent", class: chosen ? "x-frame" : "", style: "fill: transparent" }),
      text(5, y + 12, setTo(name, state), { ...start, class: kind }),
      text(width - 7, y + 12, told, { "text-anchor": "end", class: `x-answer ${kind}` }),
      h("svg:g", { class: "x-answer" },
        rect(2, y + 18, Math.max(1, long(compute)), BAR, fill(0)),
        encoding > 0 && rect(2 + long(compute), y + 18, Math.max(1, long(encoding)), BAR, fill(2)),
        exposed > 0 && rect(2 + long(compute + encoding), y + 18, Math.max(1, long(exposed)), BAR, fill(5)),
        hidden > 0 && rect(2 + long(Math.max(0, compute - hidden)), y + 18 + BAR - 6, Math.max(1, long(Math.min(hidden, compute))), 6, fill(5)),
        past && past !== step && past <= most && h("svg:path", { class: "x-ghost", d: `M${2 + long(past)} ${y + 15}v${BAR + 6}` })));
    return pressable(row, `method ${name}`, `${LABELS[name]}`, () => set({ method: name }), chosen);
  });
  // Below: the fastest method by bandwidth, with a handle at this link's.
  const floor = top + 5 * ROW + 30, map = range01({ kind: "number", range: [...SPEEDS, true] });
  const x = (speed) => 4 + (width - 8) * map.place(speed), winners = [];
  for (let i = 0; i <= POINTS; i++) {
    const speed = SPEEDS[0] * (SPEEDS[1] / SPEEDS[0]) ** (i / POINTS), name = best(ways(state, speed * 1e9));
    if (winners.at(-1)?.[0] !== name) winners.push([name, x(speed)]);
  }
  const band = winners.map(([name, from], i) => {
    const across = (winners[i + 1]?.[1] ?? width - 4) - from;
    return [rect(from, floor, Math.max(1, across - 1), BAND, { class: "x-box", style: `--hue: ${rankColor(HUES[name])}`, "data-id": `band ${name}` }),
      across > 7.5 * LABELS[name].length + 6 && text(from + across / 2, floor + 14, LABELS[name], small)];
  });
  const now = x(state.gb_per_s);
  const handle = draggable(
    h("svg:g", {}, rect(now - 22, floor - 12, 44, BAND + 24, { fill: "transparent" }),
      h("svg:path", { class: "x-frame", style: "stroke: var(--x-mark); stroke-width: 2", d: `M${now} ${floor - 8}v${BAND + 14}` }),
      rect(now - 4, floor - 10, 8, 14, { class: "x-handle" })),
    "speed", { label: "bandwidth of a link", now: state.gb_per_s, low: SPEEDS[0], high: SPEEDS[1], said: `${state.gb_per_s} GB/s`,
      move: (by, from) => map.value(map.place(from) + by / (width - 8)),
      step: (by) => map.value(map.place(state.gb_per_s) + by / 60), set: (gb_per_s) => set({ gb_per_s }) });
  return {
    picture: picture(width, floor + BAND + 36, "", legend, rows,
      text(2, floor - 16, "The fastest way, by the link's bandwidth in GB/s", { ...start, class: "x-small x-soft" }),
      h("svg:g", { class: "x-answer" }, band), handle,
      [-2, -1, 0, 1, 2, 3].map((k) => text(Math.min(Math.max(x(10 ** k), 18), width - 18), floor + BAND + 18, 10 ** k, small))),
    below: [
      h("p", {}, "Press a method, or drag the handle on the band. Thin: sent while the rank computes; the last bucket has nothing "
        + "left to hide behind. The figure counts "
        + "seconds and bytes, and says nothing about the loss, which all but the first method change. Encoding for PowerSGD takes 0.4 of "
        + "the time of top-k's search, and a cast 0.1, about as measured on one core. The two large models' times are estimates, at "
        + "40 % of an H100's peak."),
      h("p", {}, `The gradient has ${amount(facts.gradient, "B")} and leaves in ${facts.buckets} bucket${facts.buckets > 1 ? "s" : ""} of 25 MB. `
        + "Top-k sends 8 bytes for each number that it keeps, a value and its place, and they go to all ranks: W − 1 hops. "
        + "The others go around a ring, 2 (W − 1) / W times. PowerSGD sends r numbers for each row and for each column, in two all_reduces."),
      table("What each method sends and takes", ["method", "handed over", "sent", "messages in a row", "encodes", "communicates", "waits", "step"],
        facts.ways.map(([name, handed, sent, messages, ...times]) => [LABELS[name], amount(handed, "B"), amount(sent, "B"),
          Number(messages.toFixed(2)), ...times.map((time) => amount(time, "s"))])),
    ],
  };
}

const ask = {
  question: ({ state, facts }) => `${state.world_size} ranks train ${facts.model || "a model"}, whose gradient has ${amount(facts.gradient, "B")}, over `
    + `${facts.link || `links of ${state.gb_per_s} GB/s`}. In which way is a step shortest?`,
  options: Object.values(LABELS),
  answer: ({ facts }) => Object.keys(LABELS).indexOf(facts.fastest),
  because: ({ facts }) => {
    const fastest = facts.ways.find(([name]) => name === facts.fastest), [plain] = facts.ways;
    return `A step takes ${amount(fastest[7], "s")}, and ${amount(plain[7], "s")} without compression.`;
  },
};

export default explorable({
  name: "compression", title: "What does it save to send less?",
  label: "A step of data parallelism, by what its ranks send", fields, compute, draw, ask,
  sentence: "{world_size} ranks; a message costs {alpha_us} µs, and a link carries {gb_per_s} GB/s.",
});
