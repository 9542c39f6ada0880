// Who gets which sample: DistributedSampler and DataLoader, index by index.

import { h, rankColor, code, table, whole, explorable } from "./kit.js";

const BOUNDS = {
  num_samples: [1, 200], world_size: [1, 16], batch_size: [1, 200],
  epoch: [0, 99], seed: [0, 2 ** 32 - 1], step: [0, 10 ** 6],
};
const SHOWN = 6;
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
  bounded("num_samples", "samples in the data set"),
  bounded("world_size", "world size (ranks)"),
  bounded("batch_size", "batch size (per rank)"),
  flag("drop_last", "DistributedSampler: drop_last"),
  flag("loader_drop_last", "DataLoader: drop_last"),
  flag("shuffle", "DistributedSampler: shuffle"),
  bounded("seed", "seed", shuffled),
  bounded("epoch", "epoch", shuffled),
  flag("set_epoch", "set_epoch is called", shuffled),
  { name: "step", label: "step", kind: "step", max: (facts) => Math.max(0, facts.steps - 1),
    show: (state, facts) => facts.steps > 1 },
];

const chip = (rank, words, kind = "") =>
  h(`span.x-cell${kind}`, { style: `--hue: ${rankColor(rank)}` }, words);

// Every sample of the data set, with the ranks that read it, and when.
function grid({ state, facts }) {
  const readers = upto(state.num_samples).map(() => []);
  facts.batches.forEach((mine, rank) => mine.forEach((batch, step) => {
    for (const sample of batch) readers[sample].push({ rank, step });
  }));
  const cells = readers.map((by, sample) => {
    const number = h("b", {}, sample);
    if (!by.length) return h("span.x-cell.x-out", {}, number, "none");
    const now = by.some(({ step }) => step === facts.step) ? ".x-now" : "";
    const later = by.every(({ step }) => step > facts.step) ? ".x-later" : "";
    const ranks = by.length > 2 ? `${by.length}×` : by.map(({ rank }) => `r${rank}`).join("+");
    return chip(by[0].rank, [number, ranks], now + later + (by.length > 1 ? ".x-twice" : ""));
  });
  return h("div.x-cells", { role: "img", "aria-label":
    `All ${state.num_samples} samples, each with the rank that reads it` }, cells);
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
  return { picture: grid(view), below: [

    h("p", {}, "Thick frame: read in this step. Filled: read in it or before. Empty: to come. "
      + "Double frame, and two ranks (r0+r1) or a number (3×): read more than once. Dashed: nobody reads it."),
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

export default explorable({
  name: "batches", title: "Which rank reads which sample, and when", label: "A data set and the ranks that read it", fields, compute, draw,
});
