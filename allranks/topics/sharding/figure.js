// The brick wall: what a rank holds and sends with DDP and ZeRO. Mirrors sums.py.

import { h, picture, rect, text, rankColor, hatched, table, whole, amount, draggable, pressable, still, explorable } from "../kit/kit.js";
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
    start: cut ? "The first layer arrives, and all wait for it." : "Every rank has all the weights.",
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
  const peaks = STAGES.map((_, one) => walk(one, n, reshard).map((moment) => memory(moment, one, ...given))
    .reduce((top, kinds) => (sum(kinds) > sum(top) ? kinds : top)));
  const fit = each.findIndex(([peak]) => peak <= 1e9 * gpu_gb), at = Math.min(state.step, moments.length - 1);
  const [peak, all] = each[stage], ratio = Math.round(100 * all / each[0][1]) / 100;
  return {
    moments, memory: held, each, peaks, at, fits: fit < 0 ? null : fit,
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

const WALLS = [4, 8]; // ranks, and layers
const wallOf = ({ world_size, num_layers }) => (world_size === num_layers && WALLS.includes(world_size) ? world_size : 0);
const fields = [
  { label: "Ranks × layers", kind: "choice", knob: true, get: wallOf,
    options: (state) => [...WALLS.map((n) => [n, `${n} × ${n}`]), ...wallOf(state) ? [] : [[0, "your own"]]],
    set: (n) => (n ? { world_size: n, num_layers: n } : {}) },
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
const FILM = 38, TOP = FILM + 38, PANEL = 236, PILL = 68;
const BORROWED = 14; // % of a hue: what is gathered is lighter than a rank's own part
const starts = { "text-anchor": "start" }, ends = { "text-anchor": "end" };
const wide = (words) => 7.2 * words.length;

// Where the columns, the rows, the bricks of a rank and the knife's stops are. On a page
// the stops stand beside the wall, on a phone in the lines between its rows.
function layout({ state: { world_size: shards, num_layers: n }, width, narrow }) {
  const across = narrow ? width : width - PANEL - 16, slot = narrow ? 24 : 26, wall = narrow ? 48 : 56, pitch = slot + wall;
  const gap = narrow ? 6 : 12, column = (across - gap * (shards - 1)) / shards, high = wall / n, between = high > 8 ? 2 : 1;
  const box = (rank, kind, layer, from = 0, parts = 1) => [rank * (column + gap) + from * column / parts,
    TOP + kind * pitch + slot + layer * high, column / parts - (parts > 1 ? 1 : 0), high - between];
  return { across, slot, wall, pitch, column, high, box, x: (rank) => rank * (column + gap),
    stop: (stage) => TOP + (3 - stage) * pitch, pill: narrow ? width - PILL : across + 16, foot: TOP + 3 * pitch + slot };
}

const brick = (box, hue, deep, id) => rect(...box, { class: "x-box", rx: 1, style: `--hue: ${rankColor(hue)}; --deep: ${deep}%`, ...id });

// A sum of all ranks' gradients: stripes in the hue of each. Where a brick is long the
// stripes are repeated: one of each would look like a part of each. What they are made of
// comes from each rank, hatched as all that travels, if it has just come.
function bands([x, y, width, height], shards, id, from, fresh) {
  const each = width / (shards * Math.max(1, Math.round(width / shards / 5)));
  return upto(shards).map((other) => [h("svg:path", { style: `fill: ${rankColor(other)}`, "data-id": `${id} ${other}`,
    d: upto(Math.round(width / each / shards)).map((set) => `M${x + (set * shards + other) * each} ${y}h${each}v${height}h${-each}z`).join("") }),
  fresh && fly(hatched(x, y, width, height, rankColor(other), { rx: 1, opacity: 0, "data-id": `fly ${id} ${other}`, "data-from": from(other) }))]);
}

// Show a part while it comes.
function fly(part) {
  part.lastChild.append(h("svg:animate", { attributeName: "opacity", values: "1;1;0", keyTimes: "0;0.8;1", dur: "0.4s" }));
  return part;
}

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
function grads(letter, stage, rank, layer, shards, box, fresh) {
  const cut = stage > 1 || (stage && letter !== "o"), key = `g ${rank} ${layer}`;
  if (letter === "-") return null;
  if (!cut) return letter === "o" ? brick(box(rank, 1, layer), rank, DEPTHS[1], { "data-id": key })
    : bands(box(rank, 1, layer), shards, `m ${rank} ${layer}`, (other) => `g ${other} ${layer}`, fresh && letter === "r");
  return upto(shards).map((owner) => {
    const place = box(rank, 1, layer, owner, shards), id = { "data-id": `${key} ${owner}` };
    if (letter === "o") return brick(place, rank, DEPTHS[1], id);
    if (owner === rank) return bands(place, shards, `m ${rank} ${layer}`, (other) => `g ${other} ${layer}${stage > 1 ? ` ${rank}` : ""}`, fresh && letter === "r");
    return letter === "r" && hatched(...place, rankColor(rank), { rx: 1, ...id });
  });
}

// Draw all that a rank has: three walls, of which the knife cuts those below it.
function rank(r, fresh, { state: { stage, world_size: shards, num_layers: n }, facts }, { box, x, column, pitch, slot, wall }) {
  const [name, k, w, g] = facts.moments[facts.at], words = column < 56 ? `${r}` : `rank ${r}`, waits = facts.waits[facts.at];
  const chosen = (kind, layer, rows = 1) => {
    const [left, y, width, height] = box(r, kind, layer);
    return rect(left - 1, y - 1, width + 2, rows > 1 ? wall : height + 2, { class: "x-chosen", fill: "none", rx: 1, "stroke-width": 2, style: "stroke-width: 2" });
  };
  const y = TOP - 20, more = waits && column > wide(`${words} waits`) + 4 ? " waits" : "";
  return h("svg:g", {},
    waits && rect(x(r), y, column, 19, { class: "x-wait", "data-id": `wait ${r}` }),
    text(x(r) + column / 2, y + 14, words + more, { class: "x-strong" }),
    upto(3).map((kind) => rect(x(r), TOP + kind * pitch + slot, column, wall - 1, { rx: 0, style: "fill: var(--x-shade)" })),
    upto(n).map((layer) => [weights(w[layer], stage, r, layer, shards, box), grads(g[layer], stage, r, layer, shards, box, fresh),
      stage ? brick(box(r, 2, layer, r, shards), r, DEPTHS[2], { "data-id": `s ${r} ${layer} ${r}`, "data-from": `s ${r} ${layer}` })
        : brick(box(r, 2, layer), r, DEPTHS[2], { "data-id": `s ${r} ${layer}`, "data-from": `s ${r} ${layer} ${r}` })]),
    k >= 0 && chosen(0, k), name === "backward" && chosen(1, k), name === "step" && chosen(2, 0, n));
}

// The knife lies above what it cuts; pulled up to the next of its stops, it cuts more.
function knife({ state: { stage }, set }, { stop, slot, pill, pitch }) {
  const y = stop(stage), low = y + slot - 1;
  const said = stage ? `${STAGES[stage]}: cut are ${KINDS.slice(3 - stage).join(", ")}` : "DDP: nothing is cut";
  return [!stage && text(0, low - 11, "the knife: it cuts what is below it", starts), STAGES.map((name, at) => at !== stage && pressable(h("svg:g", {}, h("svg:rect", { x: pill - 4, y: stop(at) - 10, width: PILL + 4, height: 40, fill: "transparent" }),
    rect(pill, stop(at) + 1, PILL, 20, { class: "x-pill", rx: 10 }), text(pill + PILL / 2, stop(at) + 15, name)), `stop ${name}`, `Cut as ${name}`, () => set({ stage: at }))),
  draggable(h("svg:g", {},
    h("svg:path", { d: `M0 ${low}H${pill + 10}V${low - 8}z`, "data-id": "blade", style: "fill: var(--x-soft)" }),
    rect(pill, y + 1, PILL, 20, { class: "x-tip", rx: 10, "data-id": "haft" }),
    text(pill + PILL / 2, y + 15, `\u2195 ${STAGES[stage]}`, { class: "x-small x-strong", style: "fill: var(--x-ground)", "data-id": "named" }),
    h("svg:rect", { x: pill - 6, y: y - 10, width: PILL + 8, height: 44, fill: "transparent" })),
  "knife", { label: "The knife, which cuts what is below it", now: stage, low: 0, high: 3, said, axis: "y",
    move: (by, start) => Math.round(start + by / pitch), step: (by) => stage + by, set: (next) => set({ stage: next }) })];
}

// What a rank holds at a stop of the knife, and what of it does not fit; dotted, what it was
// at most before the last change. At the knife it is what is held in this moment.
function tank(at, { state: { gpu_gb, stage }, facts, before }, x, y, room, high) {
  const was = before?.facts.each[at][0] ?? 0, most = facts.each[at][0], limit = 1e9 * gpu_gb;
  const until = Math.max(limit, ...facts.each.map(([peak]) => peak), was < 3 * facts.each[0][0] ? was : 0), scale = room / until;
  const held = at === stage ? facts.memory[facts.at] : facts.peaks[at], total = sum(held), end = x + limit * scale;
  let left = x;
  return [KINDS.map((_, i) => {
    const size = held[i] * scale, from = left, seen = Math.min(size, end - from - 2); // up to the limit's line
    left += size;
    return size > 0 && [rect(from, y, size, high, { class: "x-box", rx: 0, style: `--hue: var(--x-soft); --deep: ${DEPTHS[i]}%`, "data-id": `tank ${at} ${i}` }),
      seen > 14 && text(from + seen / 2, y + high - 4, "WGS"[i], { "data-id": `tank t ${at} ${i}` })];
  }),
  rect(x, y, most * scale, high, { class: "x-idle", rx: 0, "data-id": `most ${at}` }),
  total > limit && rect(end, y, (total - limit) * scale, high, { class: "x-wrong", rx: 0, "data-id": `over ${at}` }),
  was > 0 && was !== most && was <= until && h("svg:path.x-ghost", { d: `M${x + was * scale} ${y - 3}v${high + 6}` }),
  h("svg:path.x-line", { d: `M${end} ${y - 3}v${high + 6}`, "data-id": `limit ${at}` })];
}

// What a rank has sent, hatched as all that travels, of what it sends in the step.
function sending(at, { state: { stage }, facts: { each, sent, at: now } }, x, y, room, high) {
  const scale = room / Math.max(...each.map(([, num]) => num)), all = each[at][1];
  return [hatched(x, y, (at === stage ? sent[now] : all) * scale, high, "var(--x-soft)", { rx: 0, "data-id": `sent ${at}` }),
    rect(x, y, all * scale, high, { class: "x-idle", rx: 0 })];
}

// The bytes of all stops of the knife, side by side; before the answer, not what they send.
function bill(view, place) {
  const { state: { stage, gpu_gb }, facts: { each, memory: held, at }, width, narrow } = view, { stop, pill, foot } = place;
  const now = bytes(sum(held[at])), heads = narrow ? [[60, `holds; line: ${gpu_gb} GB`], [246, "sends"]] : [[pill, `A rank holds (line: its ${gpu_gb} GB)`]];
  const answer = (...parts) => h("svg:g.x-answer", {}, parts), open = (x, y, words, more) => text(x, y, words, { ...more, class: "x-guess" });
  return [heads.map(([x, words]) => text(x, narrow ? foot + 15 : TOP - 6, words, starts)), STAGES.map((name, one) => {
    const [most, all] = each[one], look = { class: one === stage ? "x-strong" : "" };
    if (narrow) {
      const y = foot + 22 + 20 * one;
      return [text(0, y + 12, name, { ...starts, ...look }), tank(one, view, 60, y, 118, 15), text(238, y + 12, bytes(most), ends),
        answer(sending(one, view, 246, y + 2, width - 246 - 54, 11), text(width, y + 12, bytes(all), ends)), open(width, y + 12, "?", ends)];
    }
    const y = stop(one), said = one > stage ? `cuts ${KINDS[3 - one].split(" ")[0]}: ${bytes(most)}` : one === stage && now !== bytes(most) ? `${bytes(most)}, now ${now}` : `holds ${bytes(most)}`;
    return [text(pill + PILL + 8, y + 15, said, { ...starts, ...look }), tank(one, view, pill, y + 27, PANEL - 2, 17), open(pill, y + 62, "sends ?", starts),
      answer(sending(one, view, pill, y + 52, PANEL - 108, 12), text(width, y + 62, `sends ${bytes(all)}`, { ...ends, ...look }))];
  })];
}

// The step as a film: how much a rank holds in each moment, with the line that it must
// not cross. The frame can be pulled along, and each moment chosen.
function film({ state, facts, set, narrow }, { across: width, pill }) {
  const { moments, memory: held, at } = facts, pitch = width / moments.length, limit = 1e9 * state.gpu_gb;
  const scale = (FILM - 6) / Math.max(limit, ...facts.each.map(([peak]) => peak)), floor = FILM - 2, cap = floor - limit * scale;
  const bar = (kinds, i) => {
    let y = floor;
    const total = sum(kinds) * scale;
    return h("svg:g", { style: "cursor: pointer", onclick: () => set({ step: i }) },
      rect(i * pitch, 0, pitch, FILM, { fill: "transparent", style: "pointer-events: all" }),
      facts.waits[i] && rect(i * pitch + 1, 1, pitch - 2, FILM - 1, { class: "x-wait", rx: 0 }),
      kinds.map((size, kind) => rect(i * pitch + 3, y -= size * scale, pitch - 6, size * scale,
        { class: "x-box", rx: 0, style: `--hue: var(--x-soft); --deep: ${DEPTHS[kind]}%`, "data-id": `film ${kind} ${i}` })),
      floor - total < cap && rect(i * pitch + 3, floor - total, pitch - 6, cap - floor + total, { class: "x-wrong", rx: 0, "stroke-width": 0.5, "data-id": `film over ${i}` }));
  };
  const words = label(state, facts), half = wide(words) / 2, middle = (at + 0.5) * pitch;
  return [held.map(bar), h("svg:path.x-line", { d: `M0 ${cap}H${width}`, "stroke-dasharray": "5 4" }),
    text(Math.max(half, Math.min(middle, width - half)), FILM + 15, words, { class: "x-strong" }),
    !narrow && ["A rank's memory over one step;", `yellow: over the GPU's ${state.gpu_gb} GB`].map((words, i) =>
      text(pill, 14 + 17 * i, words, starts)),
    !narrow && ["forward", "backward"].map((name) => {
      const first = moments.findIndex((moment) => moment[0] === name), place = (first + state.num_layers / 2) * pitch;
      return Math.abs(place - middle) > half + 40 && text(place, FILM + 15, name);
    }),
    draggable(h("svg:g", {}, rect(at * pitch + 1, 1, pitch - 2, FILM - 2, { class: "x-chosen", fill: "transparent", "data-id": "frame" })),
      "moment", { label: "moment, in the film", now: at, low: 0, high: moments.length - 1, said: words,
        move: (by, start) => Math.round(start + by / pitch), step: (by) => at + by, set: (step) => set({ step }) })];
}

// Name what the marks mean, in as many lines as the width needs.
function legend(width, y, narrow) {
  const soft = "var(--x-soft)", box = (deep) => (x, y) => rect(x, y, 16, 12, { class: "x-box", rx: 1, style: `--hue: ${soft}; --deep: ${deep}%` });
  let x = 0;
  const marks = [["own part", box(DEPTHS[0])], ["gathered", box(BORROWED)], ["travels", (x, y) => hatched(x, y, 16, 12, soft, { rx: 1 })],
    ["sum of all", (x, y) => upto(4).map((one) => rect(x + 4 * one, y, 4, 12, { rx: 0, style: `fill: ${rankColor(one)}` }))],
    ["computes", (x, y) => rect(x + 1, y + 1, 14, 10, { class: "x-chosen", fill: "none", rx: 1, style: "stroke-width: 2" })],
    ["waits", (x, y) => rect(x, y, 16, 12, { class: "x-wait", rx: 0 })],
    narrow && ["too much", (x, y) => rect(x, y, 16, 12, { class: "x-wrong", rx: 0, "stroke-width": 0.5 })]].filter(Boolean).map(([words, mark]) => {
    const room = 30 + wide(words), from = x + room > width + 12 ? 0 : x;
    if (from < x) y += 19;
    x = from + room;
    return [mark(from, y), text(from + 20, y + 11, words, starts)];
  });
  return { marks, bottom: y + 20 };
}

let last = ""; // the moment that was drawn last: what has come in it does not come again
function draw(view) {
  const { state: { stage, world_size: shards }, facts, width, narrow } = view;
  const place = layout(view), { stop, foot, across } = place, held = facts.memory[facts.at];
  const [, , w, g] = facts.moments[facts.at], added = stage ? "reduce_scatter" : "all_reduce";
  const flies = [w.includes("a") ? "; all_gather" : "", g.includes("r") ? `; ${added}` : "", ""];
  const cut = (i) => (i < 3 - stage ? "" : narrow ? ", cut" : `, cut into ${shards}`);
  const key = legend(across, foot + (narrow ? 108 : 10), narrow), moment = `${stage} ${facts.at}`, fresh = moment !== last && !still();
  last = moment;
  return {
    picture: picture(width, key.bottom, "",
      film(view, place), upto(shards).map((r) => rank(r, fresh, view, place)),
      KINDS.map((kind, i) => h("svg:text", { x: 0, y: stop(3 - i) + 14, ...starts }, h("svg:tspan.x-strong", {}, kind),
        `${cut(i)}: ${bytes(held[i])}${narrow ? "" : " on each rank"}${flies[i]}`)),
      bill(view, place), knife(view, place), key.marks),
    below: [
      h("p", {}, "A column is a rank, a row a layer (0 on top), and a brick the part that one rank owns, in its hue. The film "
        + "shows what a rank holds in each moment; its dashed line is the GPU's memory. W, G and S are weights, gradients and the "
        + "optimizer's state. Activations are not counted."),
      table("All four with these numbers", ["stage", "holds at most", "sends", "of DDP's bytes"],
        STAGES.map((name, i) => [name, bytes(facts.each[i][0]), bytes(facts.each[i][1]), `${Math.round(100 * facts.each[i][1] / facts.each[0][1])} %`])),
      h("p", {}, `With all gradients and no layer gathered, a rank holds ${bytes(facts.between)}.`),
    ],
  };
}

const ask = {
  question: "Which of ZeRO-1, 2 and 3 sends more than DDP, and by how much?",
  options: ["none", "ZeRO-3, by half", "ZeRO-2 and 3, by half", "all three"],
  answer: ({ facts: { each } }) => (each[3][1] > 1.01 * each[0][1] ? 1 : 0),
  because: ({ facts: { each: [[, ddp], , , [, zero3]] } }) => (zero3 > 1.01 * ddp
    ? `It gathers weights twice: ${bytes(zero3)}, and the others send ${bytes(ddp)}.`
    : `ZeRO-3 sends ${bytes(zero3)} in a step, and DDP ${bytes(ddp)}.`),
  show: STAGES.map((_, stage) => ({ stage, step: 0 })), // the knife comes to each of its stops
  apart: ["stage", "gpu_gb"],
};

export default explorable({
  name: "sharding", title: "The brick wall",
  label: "A model, its ranks, and what is cut", fields, compute, draw, ask,
  sentence: "{billions} billion parameters in {num_layers} layers, on {world_size} ranks with {gpu_gb} GB each.",
});
