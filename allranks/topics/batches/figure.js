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
function shares({ num_samples: n, world_size: W, shuffle, seed, drop_last }, epoch) {
  const order = shuffle ? randperm(n, seed + epoch) : upto(n);
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
    words += ` ${count(facts.steps, "step")}. Step ${facts.step} takes `
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
  const { num_samples, world_size, batch_size, set_epoch } = state;
  const indices = shares(state, set_epoch ? state.epoch : 0), share = indices[0].length;
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
    epochs: upto(3).map((epoch) =>
      shares(state, set_epoch ? epoch : 0)[0].slice(0, batch_size)),
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
  flag("set_epoch", "set_epoch is called", shuffled),
  { name: "step", label: "step", kind: "step", max: (facts) => Math.max(0, facts.steps - 1),
    show: (state, facts) => facts.steps > 1 },
];

const chip = (rank, words, kind = "") =>
  h(`span.x-cell${kind}`, { style: `--hue: ${rankColor(rank)}` }, words);

const BAND = 104, LANES = 208, HEAD = 20; // px: the order's part of the drawing, the ranks'

// Say of each place of the order who gets it: [sample, rank or null, k-th of the rank,
// again]. Behind the last sample come those that are read again, unless drop_last.
function placesOf(state, facts) {
  const { num_samples: n, world_size: W } = state;
  const order = state.shuffle ? randperm(n, state.seed + (state.set_epoch ? state.epoch : 0)) : upto(n);
  const used = facts.share * W;
  return upto(Math.max(n, used)).map((place) => [order[place % n],
    place < used ? place % W : null, Math.floor(place / W), place >= n]);
}

// Find the size of cells of which `num` fit into a box.
function tiling(num, width, height) {
  for (let rows = 1; ; rows++) {
    const columns = Math.ceil(num / rows), across = Math.min(60, width / columns), down = Math.min(30, height / rows);
    if (across >= 0.8 * down || down < 8) return { columns, across, down };
  }
}

// Draw the order as a band, and below it what each rank gets; this step's samples are
// joined to their places in the order. A press on a sample leads to its step, as the
// slider does.
function deal({ state, facts, set, width }) {
  const places = placesOf(state, facts), { columns, across, down } = tiling(places.length, width, BAND - HEAD);
  const { world_size: W, batch_size: size } = state, left = 54, read = facts.steps ? facts.batches[0].flat().length : 0;
  const pitch = Math.min(46, (LANES - HEAD) / W), high = Math.min(30, pitch - 3);
  const gaps = Math.max(0, Math.ceil(facts.share / size) - 1), gap = Math.min(8, 60 / (gaps || 1));
  const cell = Math.min(72, (width - left - 4 - gaps * gap) / facts.share);
  const from = (place) => [place % columns * across, HEAD + Math.floor(place / columns) * down];
  const into = (rank, k) => [left + k * cell + Math.floor(k / size) * gap, BAND + HEAD + rank * pitch];
  const word = (sample, x, y, wide, tall, rest) => 7.3 * String(sample).length + 2 < wide && tall > 11
    && text(x + wide / 2, y + tall / 2 + 4, sample, { class: "x-tiny", ...rest });
  const parts = [text(0, 13, state.shuffle ? "the order, shuffled: place 0, 1, 2 …" : "the order: place 0, 1, 2 …",
    { "text-anchor": "start", class: "x-small x-soft" })], lines = [];
  places.forEach(([sample, rank, k, again], place) => {
    const [x, y] = from(place), hue = rank === null ? "transparent" : rankColor(rank);
    const told = rank === null ? "left out" : `rank ${rank}${again ? ", read again" : ""}`;
    const step = Math.floor(k / size), now = rank !== null && step === facts.step && k < read;
    const lead = rank !== null && k < read ? { onclick: () => set({ step }), style: "cursor: pointer" } : {};
    parts.push(h("svg:g", lead, h("svg:title", {}, `sample ${sample}: ${told}`),
      rect(x, y, across - 2, down - 2, { class: `${rank === null ? "x-idle" : "x-box"}${now ? " x-chosen" : ""}`,
        style: `--hue: ${hue}`, "stroke-dasharray": again ? "3 2" : null, "data-id": `place ${place}` }),
      word(sample, x, y, across - 2, down - 2)));
    if (rank === null) return;
    const [tx, ty] = into(rank, k), wide = Math.max(2, cell - 2), gone = k >= read;
    if (now && W <= 8 && places.length <= 80) lines.push(h("svg:path", { class: "x-thread", style: `stroke: ${hue}`,
      d: `M${x + across / 2 - 1} ${y + down - 2}C${x + across / 2} ${BAND + HEAD} ${tx + wide / 2} ${BAND - 20} ${tx + wide / 2} ${ty}` }));
    const move = { "data-id": `mine ${rank} ${k}`, "data-from": now ? `place ${place}` : `mine ${rank} ${k}` };
    parts.push(h("svg:g", lead, h("svg:title", {}, `rank ${rank}, step ${step}: sample ${sample}${again ? ", again" : ""}${gone ? ", left out by the loader" : ""}`),
      rect(tx, ty, wide, high, { class: gone ? "x-idle" : now ? "x-box x-chosen x-mine" : "x-box x-mine",
        style: `--hue: ${hue}; fill-opacity: ${step > facts.step ? 0.25 : 1}`,
        "stroke-dasharray": again && !gone ? "3 2" : null, ...move }),
      word(sample, tx, ty, wide, high)));
  });
  for (const rank of upto(W)) parts.push(text(0, BAND + HEAD + rank * pitch + high / 2 + 4,
    `rank ${rank}`, { "text-anchor": "start", class: "x-small" }));
  return picture(width, BAND + LANES + 6, `All ${state.num_samples} samples, each with the rank that reads it`,
    lines, parts);
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
  const told = state.set_epoch
    ? "set_epoch is called, so the order comes from seed + epoch."
    : "set_epoch is not called, so the order comes from the seed alone, in every epoch.";
  return { picture: deal(view), below: [

    h("p", {}, "Place 0 of the order goes to rank 0, place 1 to rank 1, and so on in turn. Thick frame: read "
      + "in this step. Pale: in a later one. Dashed and coloured: read again, so that all ranks have as many. "
      + "Dashed and empty: left out. Press a sample to see where it goes."),
    facts.steps > 0 && [
      table(`Step ${facts.step}`, ["rank", "samples", ...live], rows(view)),
      h("p", {}, "All these batches make one optimizer step. Full ones make a global batch of "
        + `${batch_size} · ${world_size} = ${facts.global_batch}.`),
    ],
    state.shuffle && [
      h("p", {}, told),
      table("Rank 0's first batch", ["epoch", "samples"], facts.epochs.map((first, epoch) =>
        [epoch, first.join(", ") + (epoch && !state.set_epoch ? " (as in epoch 0)" : "")])),
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
