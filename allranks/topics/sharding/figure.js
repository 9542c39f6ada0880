// The brick wall: what a rank holds and sends with DDP and ZeRO. Mirrors sums.py.

import { h, picture, rect, text, rankColor, hatched, table, whole, amount, draggable, explorable } from "../kit/kit.js";
import { STAGES, KINDS, PRECISIONS } from "./sums.py";
import { BOUNDS, FEWEST, MOST } from "./figure.py";
import { DEPTHS } from "./picture.py";

const upto = (n) => [...Array(n).keys()];
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
const times = (letter, n) => letter.repeat(Math.max(0, n));
const bytes = (num) => amount(num, "B");
const count = (letters, one) => letters.split(one).length - 1;

function weightsAt(stage, name, k, n, reshard) {
  if (stage < 3) return times(stage && name === "end" ? "a" : "w", n);
  const [past, soon] = reshard ? "pa" : "ww", after = n - k - 1;
  if (name === "start") return "a" + times("p", n - 1);
  if (name === "forward") return times(past, k) + "w" + times("a", after > 0) + times("p", after - 1);
  if (name === "loss") return times(past, n - 1) + soon;
  if (name === "backward") return times(past, k - 1) + times(soon, k > 0) + "w" + times("p", after);
  return times("p", n);
}

function gradsAt(stage, name, k, n) {
  const after = n - k - 1;
  if (name === "backward") return times("-", k) + "o"
    + (stage === 1 ? times("o", after) : times("r", after > 0) + times("s", after - 1));
  if (name === "reduce") return stage === 1 ? times("r", n) : "r" + times("s", n - 1);
  return times(name === "step" ? "s" : "-", n);
}

const walk = (stage, n, reshard) => [["start", -1], ...upto(n).map((k) => ["forward", k]), ["loss", -1],
  ...upto(n).reverse().map((k) => ["backward", k]), ["reduce", -1], ["step", -1], ["end", -1]]
  .map(([name, k]) => [name, k, weightsAt(stage, name, k, n, reshard), gradsAt(stage, name, k, n)]);

function memory([, , weights, grads], stage, params, shards, { weight, grad, state }) {
  const each = params / weights.length, w = stage === 3 ? weight + weight / shards : weight, part = grad / shards;
  const held = { "-": 0, o: grad, r: stage ? grad + part : grad, s: stage ? part : grad };
  return [each * sum([...weights].map((one) => (one === "p" ? weight / shards : w))),
    each * sum([...grads].map((one) => held[one])), params * (stage ? state / shards : state)];
}

const moves = ([, , weights, grads], stage, params, shards, { weight, grad }) => params / weights.length
  * (shards - 1) / shards * (count(weights, "a") * weight + count(grads, "r") * grad * (stage ? 1 : 2));

const most = (stage, layers, reshard, ...given) =>
  Math.max(...walk(stage, layers, reshard).map((moment) => sum(memory(moment, stage, ...given))));

function say([name, k, weights], stage, n, reshard) {
  const arrives = weights.includes("a"), cut = stage === 3;
  if (name === "forward") return `Layer ${k} runs forward${arrives ? `, layer ${k + 1} arrives` : ""}`
    + (cut && reshard && k ? `, layer ${k - 1} is let go.` : ".");
  if (name === "backward") return `Layer ${k} runs backward${arrives ? `, layer ${k - 1} arrives` : ""}`
    + (k === n - 1 ? "." : `, the gradients of layer ${k + 1} ${["are added up", "stay"][stage] ?? "collapse"}.`);
  return {
    start: cut ? "The first layer arrives, and all wait for it." : "All weights are there.",
    loss: cut && reshard ? "The last layer arrives again for backward, and all wait for it." : "The loss is computed.",
    reduce: `${stage === 1 ? "All" : "The last"} gradients are added up, and all wait for them.`,
    step: `The optimizer updates ${stage ? "each rank's part" : "all weights"}.`,
    end: stage % 3 ? "The new weights go to all ranks, which wait for them." : "The gradients are freed.",
  }[name];
}

export function compute(state) {
  for (const [name, [low, high]] of Object.entries(BOUNDS))
    if (whole(name, state[name], low) > high) throw Error(`${name} must be at most ${high}, not ${state[name]}`);
  const { stage, world_size: shards, num_layers: n, billions, gpu_gb, reshard } = state;
  if (!(FEWEST <= billions && billions <= MOST)) throw Error(`billions must be from ${FEWEST} to ${MOST}`);
  if (!Object.hasOwn(PRECISIONS, state.precision))
    throw Error(`no precision ${state.precision}: there are ${Object.keys(PRECISIONS).join("; ")}`);
  const [weight, grad, kept] = PRECISIONS[state.precision], given = [1e9 * billions, shards, { weight, grad, state: kept }];
  const moments = walk(stage, n, reshard), held = moments.map((moment) => memory(moment, stage, ...given));
  let sent = 0;
  const each = STAGES.map((_, one) => [most(one, n, reshard, ...given),
    sum(walk(one, n, reshard).map((moment) => moves(moment, one, ...given)))]);
  const fit = each.findIndex(([peak]) => peak <= 1e9 * gpu_gb), at = Math.min(state.step, moments.length - 1);
  const [peak, all] = each[stage], ratio = Math.round(100 * all / each[0][1]) / 100;
  return {
    moments, memory: held, each, at, fits: fit < 0 ? null : fit,
    waits: moments.map(([, k, weights, grads]) => k < 0 && (weights.includes("a") || grads.includes("r"))),
    sent: moments.map((moment) => (sent += moves(moment, stage, ...given))),
    between: given[0] * ((weight / (stage > 2 ? shards : 1)) + grad / (stage > 1 ? shards : 1) + kept / (stage ? shards : 1)),
    summary: `${STAGES[stage]} on ${shards} ranks: each rank needs up to ${bytes(peak)}`
      + `${peak <= 1e9 * gpu_gb ? " of" : ", more than"} ${gpu_gb} GB, and sends ${bytes(all)} in a step`
      + (stage ? `, ${ratio === 1 ? "" : `${ratio} times `}as much as DDP` : "")
      + `. ${say(moments[at], stage, n, reshard)}`,
  };
}

const bounded = (name, label, log) => ({ name, label, kind: "whole", min: BOUNDS[name][0], max: BOUNDS[name][1],
  range: [...BOUNDS[name], log] });
const label = (state, facts) => {
  const [name, k] = facts.moments[facts.at];
  return k < 0 ? name : `${name}, layer ${k}`;
};

const fields = [
  { name: "billions", label: "parameters (billion)", kind: "number", range: [FEWEST, MOST, true] },
  bounded("num_layers", "layers"),
  bounded("world_size", "ranks"),
  bounded("gpu_gb", "memory of a GPU (GB)", true),
  { name: "stage", label: "what is cut", kind: "choice", options: STAGES.map((name, i) => [i, name]) },
  { name: "precision", label: "precision", kind: "choice", options: Object.keys(PRECISIONS).map((name) => [name, name]) },
  { name: "reshard", label: "reshard_after_forward (ZeRO-3)", kind: "flag" },
  { name: "step", label: "moment", kind: "step", film: true, max: (facts) => facts.moments.length - 1, said: label },
];

// Heights in px: they do not depend on the state, so that nothing moves.
const FILM = 38, SLOT = 23, WALL = 48, PITCH = SLOT + WALL, TOP = FILM + 38, FOOT = TOP + 3 * PITCH + 17;
const BORROWED = 16; // % of a hue: what is gathered is lighter than a rank's own part
const fine = { class: "x-small" }, starts = { ...fine, "text-anchor": "start" };
const wide = (words) => 6.6 * words.length;

// Where the columns, the rows and the bricks of a rank are.
function layout({ state: { world_size: shards, num_layers: n }, width, narrow }) {
  const gap = narrow ? 6 : 14, column = (width - gap * (shards - 1)) / shards, high = WALL / n;
  const box = (rank, kind, layer, from = 0, parts = 1) => [rank * (column + gap) + from * column / parts,
    TOP + kind * PITCH + SLOT + layer * high, column / parts - (parts > 1 ? 1 : 0), high - 1];
  return { column, high, box, x: (rank) => rank * (column + gap) };
}

const brick = (box, hue, deep, id) => rect(...box, { class: "x-box", rx: 1, style: `--hue: ${rankColor(hue)}; --deep: ${deep}%`, ...id });

// A sum of all ranks' gradients: a band in the hue of each, that comes from there.
const bands = ([x, y, width, height], shards, id, from) => upto(shards).map((other) => rect(x, y + other * height / shards, width,
  height / shards, { rx: 0, style: `fill: ${rankColor(other)}`, "data-id": `${id} ${other}`, "data-from": from(other) }));

// Draw a layer's weights on a rank: whole, or a brick for each owner that has sent its own.
function weights(letter, stage, rank, layer, shards, box) {
  if (letter === "w" && stage < 3) return brick(box(rank, 0, layer), rank, DEPTHS[0], { "data-id": `w ${rank} ${layer}` });
  return upto(shards).filter((owner) => letter !== "p" || owner === rank).map((owner) => {
    const place = box(rank, 0, layer, owner, shards), id = { "data-id": `w ${rank} ${layer} ${owner}` };
    if (owner === rank || letter === "w") return brick(place, owner, owner === rank ? DEPTHS[0] : BORROWED, id);
    return hatched(...place, rankColor(owner), { rx: 1, ...id, "data-from": stage < 3 ? `w ${owner} ${layer}` : `w ${owner} ${layer} ${owner}` });
  });
}

// Draw a layer's gradients on a rank. Parts that go to their owners are hatched.
function grads(letter, stage, rank, layer, shards, box) {
  const cut = stage > 1 || (stage && letter !== "o"), key = `g ${rank} ${layer}`;
  if (letter === "-") return null;
  if (!cut) return letter === "o" ? brick(box(rank, 1, layer), rank, DEPTHS[1], { "data-id": key })
    : bands(box(rank, 1, layer), shards, `m ${rank} ${layer}`, (other) => `g ${other} ${layer}`);
  return upto(shards).map((owner) => {
    const place = box(rank, 1, layer, owner, shards), id = { "data-id": `${key} ${owner}` };
    if (letter === "o") return brick(place, rank, DEPTHS[1], id);
    if (owner === rank) return bands(place, shards, `m ${rank} ${layer}`, (other) => `g ${other} ${layer}${stage > 1 ? ` ${rank}` : ""}`);
    return letter === "r" && hatched(...place, rankColor(rank), { rx: 1, ...id });
  });
}

// Draw all that a rank has: three walls, of which the knife cuts those below it.
function rank(r, { state: { stage, world_size: shards, num_layers: n }, facts, narrow }, { box, x, column }) {
  const [name, k, w, g] = facts.moments[facts.at], words = narrow ? `${r}` : `rank ${r}`, waits = facts.waits[facts.at];
  const chosen = (kind, layer, rows = 1) => {
    const [left, y, width, height] = box(r, kind, layer);
    return rect(left, y, width, (height + 1) * rows - 1, { class: "x-chosen", fill: "none", rx: 1, "stroke-width": 2, style: "stroke-width: 2" });
  };
  const y = TOP - 20, more = waits && column > wide(`${words} waits`) + 4 ? " waits" : "";
  return h("svg:g", {},
    waits && rect(x(r), y, column, 19, { class: "x-wait", "data-id": `wait ${r}` }),
    text(x(r) + column / 2, y + 14, words + more, { class: "x-small x-strong" }),
    upto(3).map((kind) => rect(x(r), TOP + kind * PITCH + SLOT, column, WALL - 1, { rx: 0, style: "fill: var(--x-shade)" })),
    upto(n).map((layer) => [weights(w[layer], stage, r, layer, shards, box), grads(g[layer], stage, r, layer, shards, box),
      stage ? brick(box(r, 2, layer, r, shards), r, DEPTHS[2], { "data-id": `s ${r} ${layer} ${r}`, "data-from": `s ${r} ${layer}` })
        : brick(box(r, 2, layer), r, DEPTHS[2], { "data-id": `s ${r} ${layer}`, "data-from": `s ${r} ${layer} ${r}` })]),
    k >= 0 && chosen(0, k), name === "backward" && chosen(1, k), name === "step" && chosen(2, 0, n));
}

// The knife lies above what it cuts; pulled up, it cuts more.
function knife({ state: { stage }, set, width }) {
  const y = TOP + (3 - stage) * PITCH - (stage ? 0 : 8), x = width - 78;
  const said = stage ? `${STAGES[stage]}: cut are ${KINDS.slice(3 - stage).join(", ")}` : "DDP: nothing is cut";
  return draggable(h("svg:g", {},
    h("svg:path", { d: `M0 ${y + 21}H${x + 9}V${y + 11}C${x * 0.7} ${y + 15} ${x * 0.4} ${y + 18} 0 ${y + 21}z`, "data-id": "blade",
      style: "fill: color-mix(in srgb, var(--x-soft) 45%, var(--x-ground)); stroke: var(--x-soft)" }),
    rect(x, y + 3, 78, 19, { class: "x-tip", rx: 9, "data-id": "haft" }),
    text(x + 39, y + 17, `\u2195 ${STAGES[stage]}`, { class: "x-small x-strong", style: "fill: var(--x-ground)", "data-id": "named" }),
    h("svg:rect", { x: x - 6, y: y - 10, width: 84, height: 44, fill: "transparent" })),
  "knife", { label: "The knife, which cuts what is below it", now: stage, low: 0, high: 3, said, axis: "y",
    move: (by, start) => Math.round(start + by / PITCH), step: (by) => stage + by, set: (next) => set({ stage: next }) });
}

// A bar per rank of what it holds, and what of it does not fit; dotted, what it was at most
// before the last change.
function tank(r, { state: { gpu_gb, stage }, facts, before }, { x, column }, y) {
  const was = before?.facts.each[before.state.stage][0] ?? 0;
  const until = Math.max(1e9 * gpu_gb, was, ...facts.each.map(([peak]) => peak)), scale = (column - 2) / until, limit = 1e9 * gpu_gb;
  const held = facts.memory[facts.at], total = sum(held), end = x(r) + limit * scale;
  let left = x(r);
  return [KINDS.map((_, i) => {
    const size = held[i] * scale, from = left, seen = Math.min(size, end - from - 2); // up to the limit's line
    left += size;
    return size > 0 && [rect(from, y, size, 18, { class: "x-box", rx: 0, style: `--hue: ${rankColor(r)}; --deep: ${DEPTHS[i]}%`, "data-id": `tank ${r} ${i}` }),
      seen > 14 && text(from + seen / 2, y + 13, "WGS"[i], { ...fine, "data-id": `tank t ${r} ${i}` })];
  }),
  rect(x(r), y, facts.each[stage][0] * scale, 18, { class: "x-idle", rx: 0, "data-id": `most ${r}` }),
  total > limit && [rect(end, y, (total - limit) * scale, 18, { class: "x-wrong", rx: 0, "data-id": `over ${r}` }),
    (total - limit) * scale > 76 && text(end + (total - limit) * scale / 2, y + 13, "does not fit", { class: "x-small x-on-wrong" })],
  was > 0 && h("svg:path.x-ghost", { d: `M${x(r) + was * scale} ${y - 3}v24`, "data-id": `was ${r}` }),
  h("svg:path.x-line", { d: `M${end} ${y - 3}v24`, "data-id": `limit ${r}` })];
}

// What a rank has sent so far, hatched, of what it sends in the step; the mark is DDP's.
function sending(r, { state: { stage }, facts: { each, sent, at } }, { x, column }, y) {
  const scale = (column - 2) / Math.max(...each.map(([, num]) => num)), ddp = x(r) + each[0][1] * scale;
  return h("svg:g.x-answer", {}, hatched(x(r), y, sent[at] * scale, 12, rankColor(r), { rx: 0, "data-id": `sent ${r}` }),
    rect(x(r), y, each[stage][1] * scale, 12, { class: "x-idle", rx: 0, "data-id": `all ${r}` }),
    h("svg:path.x-line", { d: `M${ddp} ${y - 3}v18` }));
}

// The step as a film: how much a rank holds in each moment, with the line that it must
// not cross. The frame can be pulled along, and each moment chosen.
function film({ state, facts, set, width, narrow }) {
  const { moments, memory: held, at } = facts, pitch = width / moments.length, limit = 1e9 * state.gpu_gb;
  const scale = (FILM - 6) / Math.max(limit, ...facts.each.map(([peak]) => peak)), floor = FILM - 2, cap = floor - limit * scale;
  const bar = (kinds, i) => {
    let y = floor;
    const total = sum(kinds) * scale;
    return h("svg:g", { style: "cursor: pointer", onclick: () => set({ step: i }) },
      rect(i * pitch, 0, pitch, FILM, { fill: "transparent", style: "pointer-events: all" }),
      kinds.map((size, kind) => rect(i * pitch + 3, y -= size * scale, pitch - 6, size * scale,
        { class: "x-box", rx: 0, style: `--hue: var(--x-soft); --deep: ${DEPTHS[kind]}%`, "data-id": `film ${kind} ${i}` })),
      floor - total < cap && rect(i * pitch + 3, floor - total, pitch - 6, cap - floor + total, { class: "x-wrong", rx: 0, "stroke-width": 0.5, "data-id": `film over ${i}` }),
      facts.waits[i] && rect(i * pitch + 3, FILM, pitch - 6, 4, { class: "x-wait", rx: 0 }));
  };
  const words = label(state, facts), half = wide(words) / 2, middle = (at + 0.5) * pitch;
  return [held.map(bar), h("svg:path.x-line", { d: `M0 ${cap}H${width}`, "stroke-dasharray": "5 4" }),
    text(Math.max(half, Math.min(middle, width - half)), FILM + 15, words, { class: "x-small x-strong" }),
    !narrow && ["forward", "backward"].map((name) => {
      const first = moments.findIndex((moment) => moment[0] === name), place = (first + state.num_layers / 2) * pitch;
      return Math.abs(place - middle) > half + 40 && text(place, FILM + 15, name, { class: "x-small x-soft" });
    }),
    draggable(h("svg:g", {}, rect(at * pitch + 1, 1, pitch - 2, FILM - 2, { class: "x-chosen", fill: "transparent", "data-id": "frame" })),
      "moment", { label: "moment, in the film", now: at, low: 0, high: moments.length - 1, said: words,
        move: (by, start) => Math.round(start + by / pitch), step: (by) => at + by, set: (step) => set({ step }) })];
}

// Name what the marks mean, in as many lines as the width needs.
function legend(width, y) {
  const soft = "var(--x-soft)", box = (deep) => (x, y) => rect(x, y, 16, 12, { class: "x-box", rx: 1, style: `--hue: ${soft}; --deep: ${deep}%` });
  let x = 0;
  const marks = [["own part", box(DEPTHS[0])], ["gathered", box(BORROWED)], ["on its way", (x, y) => hatched(x, y, 16, 12, soft, { rx: 1 })],
    ["sum of all", (x, y) => upto(4).map((one) => rect(x, y + 3 * one, 16, 3, { rx: 0, style: `fill: ${rankColor(one)}` }))],
    ["computes", (x, y) => rect(x + 1, y + 1, 14, 10, { class: "x-chosen", fill: "none", rx: 1, style: "stroke-width: 2" })],
    ["waits", (x, y) => rect(x, y, 16, 12, { class: "x-wait", rx: 0 })],
    ["does not fit", (x, y) => rect(x, y, 16, 12, { class: "x-wrong", rx: 0, "stroke-width": 0.5 })]].map(([words, mark]) => {
    const room = 34 + wide(words), from = x + room > width + 12 ? 0 : x;
    if (from < x) y += 19;
    x = from + room;
    return [mark(from, y), text(from + 20, y + 11, words, starts)];
  });
  return { marks, bottom: y + 15 };
}

function draw(view) {
  const { state, facts, width, narrow } = view, { stage, world_size: shards, gpu_gb } = state;
  const place = layout(view), ranks = upto(shards), held = facts.memory[facts.at], key = legend(width, FOOT + 72);
  const line = (y, strong, more, answer) => h("svg:text", { x: 0, y, ...starts }, h("svg:tspan.x-strong", {}, strong), answer && h("svg:tspan.x-guess", {}, ": ?"),
    h(`svg:tspan${answer ? ".x-answer" : ""}`, {}, more));
  const [, , w, g] = facts.moments[facts.at], added = stage ? "reduce_scatter" : "all_reduce";
  const flies = [w.includes("a") ? "; all_gather" : "", g.includes("r") ? `; ${added}` : "", ""];
  const [, all] = facts.each[stage], cut = (i) => (i < 3 - stage ? "" : narrow ? ", cut" : `, cut into ${shards}`);
  return {
    picture: picture(width, key.bottom, "",
      film(view), ranks.map((r) => rank(r, view, place)),
      KINDS.map((kind, i) => line(TOP + i * PITCH + 13, kind, `${cut(i)}: ${bytes(held[i])}${narrow ? "" : " on each rank"}${flies[i]}`)),
      knife(view),
      line(FOOT + 11, "memory", `: ${bytes(sum(held))}${narrow ? "" : ` in this moment, at most ${bytes(facts.each[stage][0])} in the step`}; line: ${gpu_gb} GB`),
      ranks.map((r) => tank(r, view, place, FOOT + 16)),
      line(FOOT + 48, "sent", `: ${bytes(facts.sent[facts.at])} of ${bytes(all)}${narrow ? "" : " in the step"}; line: DDP, ${bytes(facts.each[0][1])}`, true),
      ranks.map((r) => sending(r, view, place, FOOT + 53)), key.marks),
    below: [
      h("p", {}, "A column is a rank, a row a layer (0 on top), and a brick the part that one rank owns, in its hue. The film "
        + "shows what a rank holds in each moment; its dashed line is the GPU's memory. Activations are not counted."),
      table("All four with these numbers", ["stage", "holds at most", "sends", "of DDP's bytes"],
        STAGES.map((name, i) => [name, bytes(facts.each[i][0]), bytes(facts.each[i][1]), `${Math.round(100 * facts.each[i][1] / facts.each[0][1])} %`])),
      h("p", {}, `With all gradients and no layer gathered, a rank holds ${bytes(facts.between)}.`),
    ],
  };
}

const ask = {
  question: "Which of the four sends more than DDP, and by how much?",
  options: ["none", "ZeRO-3, by half", "ZeRO-2 and 3, by half", "all but DDP"],
  answer: ({ facts: { each } }) => (each[3][1] > 1.01 * each[0][1] ? 1 : 0),
  because: ({ facts: { each: [[, ddp], , , [, zero3]] } }) => (zero3 > 1.01 * ddp
    ? `It gathers weights twice: ${bytes(zero3)}, not ${bytes(ddp)}.`
    : `ZeRO-3 sends ${bytes(zero3)} in a step, and DDP ${bytes(ddp)}.`),
  show: { stage: 3, step: 0 }, // so that one walks through its step from the start
  apart: ["stage", "gpu_gb"],
};

export default explorable({
  name: "sharding", title: "The brick wall: who holds what",
  label: "A model, its ranks, and what is cut", fields, compute, draw, ask,
  sentence: "{billions} billion parameters in {num_layers} layers, on {world_size} ranks with {gpu_gb} GB each.",
});
