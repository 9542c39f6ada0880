// Who gets which sample: DistributedSampler and DataLoader, index by index.

import { h, picture, rect, text, rankColor, code, table, whole, explorable } from "../kit/kit.js";
import { BOUNDS, SHOWN } from "./figure.py";

const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;
const upto = (number) => [...Array(number).keys()];

// The random numbers of torch's CPU generator: MT19937, 32 bits at a time.
function twister(seed) {
  const words = new Uint32Array(624);
  words[0] = seed % 2 ** 32; // torch uses the low 32 bits of a seed
  for (let i = 1; i < 624; i++)
    words[i] = Math.imul(1812433253, words[i - 1] ^ (words[i - 1] >>> 30)) + i;
  let next = 624;
  return () => {
    if (next === 624) {
      for (let i = 0; i < 624; i++) {
        const y = (words[i] & 0x80000000) | (words[(i + 1) % 624] & 0x7fffffff);
        words[i] = words[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      next = 0;
    }
    let y = words[next++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  };
}

// torch.randperm(n) on the CPU: a shuffle from the front.
function randperm(n, seed) {
  const random = twister(seed), order = upto(n);
  for (let i = 0; i < n - 1; i++) {
    const other = i + (random() % (n - i));
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}

// What each rank gets: the sample at place p of the padded order goes to rank p % W.
function shares({ num_samples: n, world_size: W, drop_last }, order) {
  const share = drop_last ? Math.floor(n / W) : Math.ceil(n / W);
  return upto(W).map((rank) => upto(share).map((k) => order[(rank + k * W) % n]));
}

function list(samples) {
  const more = samples.length > SHOWN ? ` and ${samples.length - SHOWN} more` : "";
  return `sample${samples.length === 1 ? "" : "s"} ${samples.slice(0, SHOWN).join(", ")}${more}`;
}

function summary(state, facts) {
  const { num_samples, world_size, batch_size, epoch } = state;
  let words = `${count(num_samples, "sample")} on ${count(world_size, "rank")}: `
    + `${facts.share} for each.`;
  if (facts.repeated.length) words += ` Read more than once: ${list(facts.repeated)}.`;
  for (const [who, samples] of Object.entries(facts.left_out))
    if (samples.length) words += ` The ${who} leaves out ${list(samples)}.`;
  if (facts.steps) {
    const now = facts.batches[0][facts.step].length;
    words += ` An epoch has ${count(facts.steps, "step")}. Step ${facts.step} reads `
      + `${count(now * world_size, "sample")}: ${now} on each rank.`;
  } else words += ` No step: nobody fills a batch of ${batch_size}.`;
  if (state.shuffle && epoch && !state.set_epoch)
    words += ` Epoch ${epoch} replays epoch 0: nobody called set_epoch.`;
  return words;
}

export function compute(state) {
  for (const [name, [low, most]] of Object.entries(BOUNDS))
    if (whole(name, state[name], low) > most)
      throw Error(`${name} must be at most ${most}, not ${state[name]}`);
  const { num_samples, world_size, batch_size, epoch } = state;
  const orders = upto(3).map((ahead) => !state.shuffle ? upto(num_samples)
    : randperm(num_samples, state.seed + (state.set_epoch ? epoch + ahead : 0)));
  const indices = shares(state, orders[0]), share = indices[0].length;
  const steps = state.loader_drop_last
    ? Math.floor(share / batch_size) : Math.ceil(share / batch_size);
  const batches = indices.map((mine) => upto(steps).map((step) =>
    mine.slice(step * batch_size, (step + 1) * batch_size)));
  const times = Array(num_samples).fill(0), handedOut = new Set(indices.flat());
  for (const sample of batches.flat(2)) times[sample]++;
  const those = (test) => upto(num_samples).filter(test);
  const facts = {
    share, steps, batches,
    step: Math.max(0, Math.min(state.step, steps - 1)),
    global_batch: batch_size * world_size,
    repeated: those((i) => times[i] > 1),
    left_out: {
      sampler: those((i) => !handedOut.has(i)),
      loader: those((i) => handedOut.has(i) && !times[i]),
    },
    orders,
  };
  return { ...facts, summary: summary(state, facts) };
}

const bounded = (name, label, more = {}) =>
  ({ name, label, kind: "whole", min: BOUNDS[name][0], max: BOUNDS[name][1], ...more });
const flag = (name, label, more = {}) => ({ name, label, kind: "flag", ...more });
const shuffled = { show: (state) => state.shuffle };

const fields = [
  bounded("num_samples", "samples in the data set", { knob: true, range: BOUNDS.num_samples }),
  bounded("world_size", "world size (ranks)", { knob: true, range: BOUNDS.world_size }),
  bounded("batch_size", "batch size (per rank)", { knob: true, range: [1, 32] }),
  flag("drop_last", "DistributedSampler: drop_last"),
  flag("loader_drop_last", "DataLoader: drop_last"),
  flag("shuffle", "DistributedSampler: shuffle"),
  bounded("seed", "seed", shuffled),
  bounded("epoch", "epoch", { ...shuffled, range: [0, 9] }),
  flag("set_epoch", "set_epoch is called", { ...shuffled, knob: true }),
  { name: "step", label: "step", kind: "step", max: (facts) => Math.max(0, facts.steps - 1),
    show: (state, facts) => facts.steps > 1 },
];

const chip = (rank, words, kind = "") =>
  h(`span.x-cell${kind}`, { style: `--hue: ${rankColor(rank)}` }, words);

const GUTTER = 68, HEIGHT = 356; // px: what stands left of the cards, the drawing
// From the top, as time runs: the order that is dealt, the trays, the orders of the next
// two epochs.
const ORDER = 48, TRAYS = 124, SLOTS = 148, NEXT = HEIGHT - 44;
const DEAL = 32, MANY = 44; // px: the height of the order, in one row and in several
const LEAST = 17, GAP = 8; // px: a card's height in a tray, at least
const STEP = "stroke: var(--x-ink); stroke-width: 1.5"; // of the frame of this step

// Say of each place of an order who gets it: [sample, rank or null, k-th of the rank,
// again]. Behind the last sample come those that are read again, unless drop_last.
function placesOf(order, { num_samples: n, world_size: W }, { share }) {
  return upto(Math.max(n, share * W)).map((place) => [order[place % n],
    place < share * W ? place % W : null, Math.floor(place / W), place >= n]);
}

// Find the size of cards of which `num` fit into a box, where a number needs `need` px.
function tiling(num, width, height, need) {
  for (let rows = 1; ; rows++) {
    const columns = Math.ceil(num / rows), across = Math.min(60, width / columns), down = height / rows;
    if (across >= Math.min(need, 0.8 * down) || down < 8) return { rows, columns, across, down };
  }
}

// Make a card with a sample's number, if it has `need` px; `more` is a word below it.
function card([x, y, wide, high], words, need, kind, style, more) {
  const on = kind.includes("x-wrong") ? "x-on-wrong" : "", mid = x + wide / 2, low = y + high / 2 + 4.5;
  const two = more && high >= 34 && wide >= 36;
  return [rect(x, y, Math.max(1, wide), high, { class: kind, style, rx: Math.min(3, wide / 6) }),
    wide >= need - 3 && high > 11 && text(mid, two ? low - 7 : low, words, { class: on, style: high > 40 ? "font-size: 16px" : null }),
    two && text(mid, low + 8, more, { class: "x-small" })];
}

// Return how the trays are laid out: cards of one step stand in `lines` of `columns`, and
// as many steps are seen as fit, from step `first` on.
function trays({ world_size: W, batch_size }, { share, step }, width, need) {
  const between = Math.min(10, 80 / W), pitch = (width - GUTTER - 3 + between) / W, wide = pitch - between, inner = wide - Math.min(12, wide / 8);
  const size = Math.min(batch_size, share) || 1, steps = Math.ceil(share / size), room = NEXT - 8 - SLOTS;
  const columns = Math.max(1, Math.min(size, Math.floor(inner / need))), lines = Math.ceil(size / columns);
  const seen = Math.max(1, Math.min(steps, Math.floor(room / (lines * LEAST + GAP))));
  const tall = Math.min(room / seen, Math.max(80, lines * 24 + GAP)), high = (tall - GAP) / lines, across = Math.min(64, inner / columns);
  const first = Math.floor(step / seen) * seen;
  return { wide, tall, lines, steps: Math.min(steps - first, seen), first, all: steps,
    left: (rank) => GUTTER + rank * pitch,
    top: (which) => SLOTS + (which - first) * tall,
    // Where the k-th sample of a rank lies, or null if its step is not seen.
    slot(rank, k) {
      const which = Math.floor(k / size), i = k % size, start = GUTTER + rank * pitch + (wide - columns * across) / 2;
      if (which < first || which >= first + seen) return null;
      return [start + i % columns * across + 1, SLOTS + (which - first) * tall + GAP / 2 - 2 + Math.floor(i / columns) * high,
        across - 2, Math.min(high, 56) - 2];
    } };
}

// While the question is open, nobody knows who gets what is left when all ranks have got
// equally many, or whether it is dealt at all: this is the round of the deal, or null.
const open = ({ num_samples: n, world_size: W }) => n % W ? Math.floor(n / W) : null;

// The orders of the next epochs stand below; that they are the same again is wrong.
function nextOrders({ state, facts, set, width }, cards, need) {
  const same = state.shuffle && !state.set_epoch;
  return [1, 2].map((ahead) => {
    const epoch = state.epoch + ahead, y = NEXT + (ahead - 1) * 24, { num_samples: n } = state;
    // What does not fit is counted, because a number that is not read says nothing.
    const one = cards.rows === 1, across = one ? cards.across : need + 4, fit = one ? n : Math.floor((width - GUTTER - 74) / across);
    const lead = epoch <= BOUNDS.epoch[1] && state.shuffle ? { onclick: () => set({ epoch }), style: "cursor: pointer" } : {};
    return h("svg:g", lead, h("svg:title", {}, `the order of epoch ${epoch}`),
      text(0, y + 15, `epoch ${epoch}`, { "text-anchor": "start" }),
      facts.orders[ahead].slice(0, fit).map((sample, place) => h("svg:g", { "data-id": `${epoch} place ${place}` },
        card([GUTTER + place * across, y, across - 2, 19], sample, need, same ? "x-wrong" : "x-box", "--hue: var(--x-soft); --deep: 12%"))),
      fit < n && text(GUTTER + fit * across + 3, y + 14, `… ${n - fit} more`, { "text-anchor": "start", class: "x-small x-soft" }));
  });
}

// Say below which of the places the order begins again, or which nobody gets.
function bracket({ num_samples: n, world_size: W }, { share }, at, { rows, across }, narrow) {
  const more = share * W - n, many = Math.min(n, Math.abs(more)), y = ORDER - 3;
  const ends = (a, b) => [at(a)[0] + 1, at(b)[0] + across - 3], brace = ([a, b]) => `M${a} ${y}v-4H${b}v4`;
  const those = many === n ? "all" : many === 1 ? "the first" : `the first ${many}`;
  const words = more > 0 ? `${those} again${narrow ? "" : `, so that each rank gets ${share}`}`
    : `left out: the last${many > 1 ? ` ${many}` : ""}`;
  const from = ends(0, many - 1), to = more > 0 ? ends(n, n + more - 1) : ends(n - many, n - 1), mid = ([a, b]) => (a + b) / 2;
  if (!more) return null;
  return h("svg:g", { class: "x-answer" },
    rows > 1 ? null : [
      h("svg:path", { class: "x-arrow", d: brace(to) + (more > 0 ? brace(from) : "") }),
      more > 0 && h("svg:path", { class: "x-arrow", "stroke-dasharray": "3 3", d: `M${mid(from)} ${y - 4}v-5H${mid(to)}v5` })],
    text(more > 0 && rows === 1 ? (mid(from) + mid(to)) / 2 : Math.max(...to, GUTTER + 150), y - 13, words,
      { "text-anchor": more > 0 && rows === 1 ? "middle" : "end", class: "x-small" }));
}

// Say where the order comes from; that it never changes is wrong.
function origin({ shuffle, set_epoch, epoch, seed }, narrow) {
  if (!shuffle) return text(GUTTER, 13, "shuffle=False: in order, in each epoch", { "text-anchor": "start", class: "x-small x-soft" });
  const words = set_epoch ? `set_epoch(${epoch}): ${narrow ? "" : "shuffled from "}seed + epoch = ${seed + epoch}${narrow ? "" : ", so each epoch differs"}`
    : `no set_epoch: ${narrow ? "" : "each epoch repeats "}the order of epoch 0${narrow ? " again" : ""}`;
  return [!set_epoch && rect(GUTTER, 0, 7.1 * words.length + 4, 18, { class: "x-wrong" }),
    text(GUTTER + (set_epoch ? 0 : 6), 13, words, { "text-anchor": "start", class: set_epoch ? "" : "x-small x-on-wrong" })];
}

// Make an arrow's end above a tray, with so much of its shaft.
const tip = (x, hue, shaft = 0) => h("svg:path", { d: `M${x} ${TRAYS}l-4 -7h8zm-1 -6v-${shaft}h2v${shaft}z`, style: `fill: ${hue}` });

// Frame the cards of the order from one place to before another, row by row.
function framed(from, to, at, { columns, across, down }, kind = "") {
  return upto(Math.ceil(to / columns)).filter((row) => (row + 1) * columns > from).map((row) => {
    const [left, y] = at(Math.max(from, row * columns)), [right] = at(Math.min(to, (row + 1) * columns) - 1);
    return rect(left - 3, y - 3, right + across + 4 - left, down + 4, { rx: 5, class: `x-frame ${kind}`, style: STEP, "data-id": `dealt${kind} ${row}` });
  });
}

// Deal the order's cards into the ranks' trays, a row of them in each step. Those of this
// step are framed, and fly there. A press on a card leads to its step, as the slider does.
function deal(view) {
  const { state, facts, set, width, narrow } = view, { world_size: W, batch_size: size, epoch } = state;
  const places = placesOf(facts.orders[0], state, facts), digits = `${state.num_samples - 1}`.length;
  const need = 7.3 * digits + 5, split = places.length > state.num_samples ? 10 : 0;
  const room = width - GUTTER - split - 2, row = tiling(places.length, room, DEAL, need), tray = trays(state, facts, width, need + 4);
  const cards = row.rows === 1 ? row : tiling(places.length, room, MANY, need);
  const fine = cards.rows > 1 || W > 8; // then a thread for each card would be a tangle
  const read = facts.steps ? facts.batches[0].flat().length : 0;
  const at = (place) => [GUTTER + place % cards.columns * cards.across + (place >= state.num_samples && cards.rows === 1 ? split : 0),
    ORDER + Math.floor(place / cards.columns) * cards.down];
  const threads = [], above = [], below = [], round = open(state);
  places.forEach(([sample, rank, k, again], place) => {
    const step = Math.floor(k / size), hue = rank === null ? "" : rankColor(rank), gone = rank === null || k >= read;
    const now = !gone && step === facts.step;
    const lead = gone ? {} : { onclick: () => set({ step }), style: "cursor: pointer" };
    const look = `--hue: ${hue}; ${gone ? "" : "fill: color-mix(in srgb, var(--hue) 26%, var(--x-ground));"}`
      + (again ? "stroke-dasharray: 3 2" : ""), [x, y] = at(place); // opaque, and digits have 4.5:1
    const asked = k === round, veil = asked ? "x-answer" : ""; // k is the round of those that are left out, too
    const told = rank === null ? "left out" : `rank ${rank}${again ? ", read again" : ""}`;
    above.push(h("svg:g", { ...lead, class: veil, "data-id": `${epoch} place ${place}` }, h("svg:title", {}, `sample ${sample}: ${told}`),
      card([x, y, cards.across - 2, cards.down - 2], sample, need, rank === null ? "x-idle" : "x-box", look)),
    asked && !again && h("svg:g", { class: "x-guess" }, card([x, y, cards.across - 2, cards.down - 2], sample, need, "x-frame")));
    const slot = rank !== null && tray.slot(rank, k);
    if (!slot) return;
    if (now && !fine) {
      const [from, to] = [x + cards.across / 2 - 1, slot[0] + slot[2] / 2];
      threads.push(h("svg:g", { class: veil },
        h("svg:path", { class: "x-thread", style: `stroke: ${hue}`, d: `M${from} ${y + cards.down}C${from} ${TRAYS - 20} ${to} ${y + cards.down + 14} ${to} ${TRAYS - 5}` }), tip(to, hue)));
    }
    below.push(h("svg:g", { ...lead, class: `x-mine ${veil}`,
      "data-id": `${epoch} mine ${rank} ${k}`, "data-from": now ? `${epoch} place ${place}` : null },
    h("svg:title", {}, `rank ${rank}, step ${step}: sample ${sample}${again ? ", again" : ""}${gone ? ", left out by the loader" : ""}`),
    card(slot, sample, need, gone ? "x-idle" : "x-box", look, again && "again")),
    // One box across all trays: a box for each rank would count the answer.
    asked && rank === 0 && h("svg:g", { class: "x-guess" },
      card([tray.left(0), slot[1], tray.left(W - 1) - tray.left(0) + tray.wide, slot[3]], "?", 10, "x-idle")));
  });
  const first = facts.step * size * W, after = Math.min(first + size * W, read * W);
  const dealt = !facts.steps ? [] : round === null || Math.floor(round / size) !== facts.step ? framed(first, after, at, cards)
    : [framed(first, after, at, cards, "x-answer"), framed(first, Math.min(first + size * W, state.num_samples), at, cards, "x-guess")];
  return picture(width, HEIGHT, `All ${state.num_samples} samples, each with the rank that reads it`,
    origin(state, narrow), nextOrders(view, cards, need), bracket(state, facts, at, cards, narrow),
    text(0, ORDER + 20, `epoch ${epoch}`, { "text-anchor": "start", class: "x-strong" }),
    upto(W).map((rank) => [rect(tray.left(rank), TRAYS, tray.wide, NEXT - 8 - TRAYS, { rx: 5, "data-id": `tray ${rank}`,
      style: `fill: color-mix(in srgb, ${rankColor(rank)} 10%, var(--x-ground))` }),
    fine && tip(tray.left(rank) + tray.wide / 2, rankColor(rank), 10),
    text(tray.left(rank) + tray.wide / 2, TRAYS + 17, tray.wide > 46 ? `rank ${rank}` : rank, { class: "x-small" })]),
    tray.wide > 46 ? null : text(0, TRAYS + 17, "rank", { "text-anchor": "start", class: "x-small" }),
    threads, steps(state, facts, tray, width, round), above, below, dealt);
}

// Name the steps at the left, and frame the one that is looked at: it is one for all ranks.
function steps({ batch_size: size, world_size: W }, facts, tray, width, round) {
  const asked = round === null ? null : Math.floor(round / size), narrow = width < 500;
  return upto(tray.steps).map((i) => tray.first + i).map((step) => {
    const y = tray.top(step), mid = y + Math.min(tray.tall, 64) / 2, now = step === facts.step && facts.steps > 0;
    const num = W * (facts.batches[0]?.[step]?.length ?? 0), two = tray.tall >= 36, strong = now ? "x-strong" : "";
    const said = (name, many, kind) => [
      text(0, mid + (two && many ? -5 : 3), name, { "text-anchor": "start", class: `${strong} ${kind}` }),
      two && many && text(0, mid + 11, many, { "text-anchor": "start", class: `x-small x-soft ${kind}` })];
    const many = num && (num > 9 || narrow ? `${num} in all` : count(num, "sample"));
    return [now && rect(GUTTER - 4, y - 4, width - GUTTER + 3, Math.min(tray.tall, 56 * tray.lines + GAP) - 1, { rx: 6, class: "x-frame", style: STEP, "data-id": "step" }),
      said(num ? `step ${step}` : "left out", many, step === asked ? "x-answer" : ""),
      step === asked && said(`step ${step}`, narrow ? "? in all" : "? samples", "x-guess")];
  });
}

function rows({ state, facts, measured }) {
  const { num_samples, world_size, batch_size } = state, { step } = facts;
  return facts.batches.map((mine, rank) => {
    const cells = mine[step].map((sample, i) => {
      const place = rank + (step * batch_size + i) * world_size;
      return place < num_samples ? `${sample}` : `${sample} (again)`;
    });
    const row = [chip(rank, `rank ${rank}`), cells.join(", ")];
    const read = measured?.batches?.[rank][step] ?? [];
    const same = read.join() === mine[step].join();
    return measured?.batches
      ? [...row, `${same ? "the same" : "differs"}: ${read.join(", ")}`] : row;
  });
}

function lines(state) {
  const { shuffle, seed, batch_size } = state, drop = ", drop_last=True";
  const sampler = (shuffle ? `, seed=${seed}` : ", shuffle=False") + (state.drop_last ? drop : "");
  return [
    `sampler = DistributedSampler(data${sampler})`,
    `loader = DataLoader(data, batch_size=${batch_size}, sampler=sampler`
      + `${state.loader_drop_last ? drop : ""})`,
    "for epoch in range(num_epochs):",
    ...(state.set_epoch ? ["    sampler.set_epoch(epoch)"] : []),
    "    for batch in loader:",
  ].join("\n");
}

function draw(view) {
  const { state, facts, measured } = view, { batch_size, world_size } = state;
  const live = measured?.batches ? ["a live rank read"] : [];
  return { picture: deal(view), below: [
    h("p", {}, "The first card of the order goes to rank 0, the second to rank 1, and so on in turn. Framed: read in "
      + "this step. Dashed: read again, or left out if it is empty. Press a card to see its step, or the order of a later epoch to go there."),
    facts.steps > 0 && [
      table(`Step ${facts.step}`, ["rank", "samples", ...live], rows(view)),
      h("p", {}, "All these batches make one optimizer step. Full ones make a global batch of "
        + `${batch_size} · ${world_size} = ${facts.global_batch}.`),
    ],
    code(lines(state), "code"),
  ] };
}

// How many samples are read, among what one might think.
const total = (facts) => facts.batches.flat(2).length;
const guesses = ({ state: { num_samples: n, world_size: W }, facts }) =>
  [...new Set([n, total(facts), Math.floor(n / W) * W, n + W])].sort((a, b) => a - b).slice(0, 4);
const ask = {
  question: ({ state }) => `${state.num_samples} samples on ${state.world_size} ranks. How many samples do all ranks `
    + "together read in an epoch?",
  options: (view) => guesses(view).map(String),
  answer: (view) => guesses(view).indexOf(total(view.facts)),
  because: ({ facts }) => `Each rank gets ${facts.share}, because all need the same number of steps.`,
};

export default explorable({
  name: "batches", title: "Which rank reads which sample, and when",
  label: "A data set and the ranks that read it", fields, compute, draw, ask,
  sentence: "{num_samples} samples, {world_size} ranks, {batch_size} samples per batch; epoch {epoch}.",
});
