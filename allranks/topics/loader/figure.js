// A loader is a queue: who waits, the model or the workers. Mirrors sums.py.

import { h, picture, rect, text, rankColor, table, whole, amount, explorable } from "../kit/kit.js";
import { NUM, TIMES, SIZES, WHOLE } from "./figure.py";
import { EPS, A, M } from "./sums.py";

const REAL = { load_ms: TIMES, step_ms: TIMES, batch_mb: SIZES };
const upto = (n) => [...Array(n).keys()];
const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

function loadTimes(mean, jitter) {
  let x = 1;
  return upto(NUM).map(() => {
    x = x * A % M;
    return mean * (1 + jitter * (2 * (x * A % M) / M - 1));
  });
}

// Return of each batch [worker, asked, start, ready, taken, done], in ms.
function simulate(loads, step, workers, prefetch, cores, onCore) {
  if (!workers) {
    let now = 0;
    return loads.map((load) => {
      const start = now, ready = now + load;
      now = ready + step;
      return [0, start, start, ready, ready, now];
    });
  }
  const room = workers * prefetch, rows = loads.map((_, b) => [b % workers, 0, 0, null, 0, 0]);
  const queues = upto(workers).map((w) => upto(Math.min(room, NUM)).filter((b) => b % workers === w));
  const busy = queues.map(() => null);
  let now = 0, turn = 0, left = null;
  while (turn < NUM) {
    if (left === null && rows[turn][3] !== null) {
      [rows[turn][4], left] = [now, step];
      if (turn + room < NUM) {
        rows[turn + room][1] = now;
        queues[turn % workers].push(turn + room);
      }
    }
    queues.forEach((queue, w) => {
      if (busy[w] || !queue.length) return;
      const batch = queue.shift();
      busy[w] = [batch, loads[batch]];
      rows[batch][2] = now;
    });
    const works = busy.filter(Boolean), running = works.length + (onCore && left !== null ? 1 : 0);
    const speed = Math.min(1, cores / Math.max(1, running)), own = onCore ? speed : 1;
    const passed = Math.min(...works.map((work) => work[1] / speed), ...(left === null ? [] : [left / own]));
    now += passed;
    busy.forEach((work, w) => {
      if (!work) return;
      work[1] -= passed * speed;
      if (work[1] <= EPS) [rows[work[0]][3], busy[w]] = [now, null];
    });
    if (left !== null) {
      left -= passed * own;
      if (left <= EPS) [rows[turn++][5], left] = [now, null];
    }
  }
  return rows;
}

function depths(rows) {
  const events = [...rows.map((row) => [row[3], 1]), ...rows.map((row) => [row[4], -1])];
  const found = [[0, 0]];
  let depth = 0;
  for (const [time, change] of events.sort((a, b) => a[0] - b[0] || a[1] - b[1])) {
    depth += change;
    if (found.at(-1)[0] === time) found.pop();
    found.push([time, depth]);
  }
  return found;
}

function boundsOf({ load_ms: load, step_ms: step, num_workers: n, cores, model_on_cpu: onCore }) {
  return { model: 1000 / step, workers: n ? 1000 * n / load : 1000 / (load + step),
    cores: 1000 * cores / (load + (onCore ? step : 0)) };
}

function digits(value) {
  const places = value >= 100 ? 1 : value >= 10 ? 10 : 100;
  return `${Math.floor(value * places + 0.5) / places}`;
}
const percent = (share) => Math.floor(100 * share + 0.5);
const ms = (value) => value ? amount(value / 1000, "s") : "0 ms";

function summary(state, facts) {
  const { num_workers: n } = state, most = facts.enough, held = facts.most_ready;
  const helps = `${most === 1 ? "one worker helps" : `up to ${most} workers help`}.`;
  const words = `${n ? count(n, "worker") : "No workers"}, ${ms(state.load_ms)} to load a batch, ${ms(state.step_ms)} per step: `
    + `${digits(facts.per_s)} steps per second, and the model waits ${percent(facts.model_waits)} % of the time. `;
  if (!n) return `${words}Nobody loads while it works; ${helps}`;
  return words + {
    model: "The model is the limit, so more workers do not help. ",
    workers: `The workers are the limit; ${helps} `,
    cores: `${state.cores === 1 ? "One core is" : `The ${state.cores} cores are`} the limit: ${digits(facts.bounds.cores)} steps per second, with any number of workers. `,
  }[facts.limit] + (state.jitter ? "This is by the averages: batches are taken in their order, so a late one holds up those behind it, and a longer queue helps. " : "")
    + `At most ${held} batch${held === 1 ? "" : "es"} (${amount(facts.held_bytes, "B")}) waited in the queue, `
    + `which holds ${facts.room} (${amount(facts.room_bytes, "B")}).`;
}

export function compute(state) {
  for (const [name, [low, most]] of Object.entries(WHOLE))
    if (whole(name, state[name], low) > most) throw Error(`${name} must be at most ${most}, not ${state[name]}`);
  for (const [name, [low, most]] of Object.entries(REAL))
    if (!(low <= state[name] && state[name] <= most)) throw Error(`${name} must be ${low} to ${most}`);
  const { load_ms: load, step_ms: step, num_workers: n, prefetch_factor: prefetch, cores, model_on_cpu: onCore } = state;
  const batches = simulate(loadTimes(load, state.jitter / 100), step, n, prefetch, cores, onCore);
  let before = 0, waits = 0, works = 0;
  for (const [, , start, ready, taken, done] of batches) {
    waits += taken - before;
    works += ready - start;
    before = done;
  }
  const bounds = boundsOf(state), limit = Object.keys(bounds).reduce((a, b) => bounds[b] < bounds[a] ? b : a);
  const room = n * prefetch, most = Math.max(...depths(batches).map(([, depth]) => depth));
  const facts = {
    batches, per_s: 1000 * NUM / before, model_waits: waits / before,
    workers_wait: n ? 1 - works / (n * before) : 0,
    bounds, limit,
    enough: Math.max(1, Math.ceil(Math.min(bounds.model, bounds.cores) * load / 1000 - EPS)),
    room, most_ready: most, room_bytes: room * state.batch_mb * 1e6, held_bytes: most * state.batch_mb * 1e6,
  };
  return { ...facts, summary: summary(state, facts) };
}

const bounded = (name, label, more = {}) =>
  ({ name, label, kind: "whole", min: WHOLE[name][0], max: WHOLE[name][1], range: WHOLE[name], ...more });
const fields = [
  { name: "load_ms", label: "ms to load a batch", kind: "number", min: 0, knob: true, range: [1, 1000, true] },
  { name: "step_ms", label: "ms of the model's step", kind: "number", min: 0, knob: true, range: [1, 1000, true] },
  bounded("num_workers", "num_workers", { knob: true }),
  bounded("prefetch_factor", "prefetch_factor", { knob: true }),
  bounded("cores", "cores", { range: [1, 32] }),
  { name: "model_on_cpu", label: "the model's step needs a core, too", kind: "flag" },
  bounded("jitter", "load time varies by ± %", { knob: true }),
  { name: "batch_mb", label: "MB of a batch", kind: "number", min: 0, range: [0.1, 1000, true] },
  { name: "batch", label: "Batch to follow", kind: "step", max: () => NUM - 1 },
];

const LEFT = 62, RIGHT = 8, HEAD = 20, LANES = 152, QUEUE = 46, GAP = 26; // px
const SEEN = 12; // batches in the drawing

function draw({ state, facts, before, set, measured, width, narrow }) {
  const { batches, room } = facts, { num_workers: n, batch: at, cores } = state;
  const page = Math.floor(at / SEEN) * SEEN, from = page ? batches[page - 1][5] : 0, to = batches[page + SEEN - 1][5];
  const scale = (width - LEFT - RIGHT) / (to - from), x = (time) => LEFT + (Math.min(to, Math.max(from, time)) - from) * scale;
  const lanes = Math.max(1, n), pitch = Math.min(48, LANES / lanes), high = Math.max(6, pitch - 4);
  const queueTop = HEAD + LANES + GAP, modelTop = queueTop + QUEUE + GAP, bottom = modelTop + 34;
  const label = (y, words) => text(0, y, words, { "text-anchor": "start", class: "x-small" });
  const small = { class: "x-tiny" };
  const number = (b, left, right, y, tall) => right - left > (b > 9 ? 17 : 10) && tall > 11
    && text((left + right) / 2, y + tall / 2 + 4, b, small);
  const box = (b, left, right, y, tall, id, told) => right - left > 0.3 && h("svg:g",
    { onclick: () => set({ batch: b }), style: "cursor: pointer" }, h("svg:title", {}, told),
    rect(left, y, Math.max(1, right - left - 1), tall, { class: b === at ? "x-box x-chosen" : "x-box", rx: 2,
      style: `--hue: ${rankColor(batches[b][0])}`, "data-id": `${id} ${b}` }), number(b, left, right, y, tall));
  const rows = upto(lanes).map((w) => {
    const y = HEAD + w * pitch, mine = batches.map((row, b) => [b, ...row]).filter((row) => row[1] === w);
    return [high > 9 && label(y + high / 2 + 4, n ? `worker ${w}` : "process"),
      h("svg:path", { class: "x-frame", "stroke-opacity": 0.4, d: `M${LEFT} ${y + high}H${width - RIGHT}` }),
      mine.filter(([, , , start, ready]) => ready > from && start < to).map(([b, , , start, ready]) =>
        box(b, x(start), x(ready), y, high, "load", `batch ${b} is loaded from ${ms(start)} to ${ms(ready)}`))];
  });
  // How many batches lie ready, as steps; the dashed line is as many as may be ahead.
  const most = Math.max(1, room), level = (depth) => queueTop + QUEUE * (1 - depth / most);
  const deep = depths(batches), first = deep.findLast(([time]) => time <= from)?.[1] ?? 0;
  let line = `M${LEFT} ${queueTop + QUEUE}V${level(first)}`;
  for (const [time, depth] of deep) if (time > from && time < to) line += `H${x(time).toFixed(1)}V${level(depth).toFixed(1)}`;
  const waits = upto(SEEN).map((i) => {
    const b = page + i, start = b ? batches[b - 1][5] : 0, end = batches[b][4];
    return end - start > EPS && rect(x(start), modelTop, x(end) - x(start), 26, { class: "x-wait x-answer", rx: 0, "data-id": `wait ${b}` });
  });
  const chosen = batches[at], lane = HEAD + chosen[0] * pitch + high;
  const worth = before && before.facts.per_s !== facts.per_s ? ` (before: ${digits(before.facts.per_s)})` : "";
  return {
    picture: picture(width, bottom + 22, "",
      text(LEFT, 13, n ? `${count(n, "worker")}${narrow ? "" : ", loading"}` : `one process${narrow ? "" : " loads, then computes"}`, { "text-anchor": "start", class: "x-small x-soft" }),
      text(width - RIGHT, 13, `${digits(facts.per_s)} steps/s${worth}`, { "text-anchor": "end", class: "x-strong x-answer" }),
      rows,
      label(queueTop + QUEUE / 2 + 4, "ready"),
      room > 0 && h("svg:path", { class: "x-idle", d: `M${LEFT} ${queueTop}H${width - RIGHT}` }),
      text(LEFT, queueTop - 5, room ? `ready: at most ${room}` : "nothing is loaded ahead", { "text-anchor": "start", class: "x-small x-soft" }),
      h("svg:path", { d: `${line}H${width - RIGHT}V${queueTop + QUEUE}Z`, style: "fill: var(--x-shade); stroke: var(--x-ink)" }),
      label(modelTop + 17, "model"),
      text(LEFT, modelTop - 5, "steps", { "text-anchor": "start", class: "x-small x-soft" }),
      text(LEFT + 40, modelTop - 5, "red: the model waits", { "text-anchor": "start", class: "x-small x-soft x-answer" }),
      waits,
      upto(SEEN).map((i) => page + i).map((b) => box(b, x(batches[b][4]), x(batches[b][5]), modelTop, 26, "step",
        `step with batch ${b}, from ${ms(batches[b][4])} to ${ms(batches[b][5])}`)),
      chosen[3] >= from && h("svg:path", { class: "x-thread", "pointer-events": "none", style: `stroke: ${rankColor(chosen[0])}`,
        d: `M${x(chosen[3])} ${lane}C${x(chosen[3])} ${queueTop} ${x(chosen[4])} ${queueTop} ${x(chosen[4])} ${modelTop}` }),
      h("svg:path", { class: "x-frame", d: `M${LEFT} ${bottom}H${width - RIGHT}` }),
      [0, 0.5, 1].map((part, i) => text(LEFT + part * (width - LEFT - RIGHT), bottom + 16, ms(from + part * (to - from)),
        { "text-anchor": ["start", "middle", "end"][i], class: "x-small" }))),
    below: [
      h("p", {}, follow(at, chosen, n, at ? batches[at - 1][5] : 0)),
      h("p", {}, "Press a batch to follow it: the line goes from its worker to its step. The drawing shows twelve batches of sixty, "
        + "and the figures are of all sixty, the start included. Torch gives batch b to worker b mod N, even if another one is free, "
        + "and the model takes the batches in order, unless you set in_order=False. " + (n > cores ? "More workers than cores load more slowly." : "")),
      measured?.counts && table("Prepared by the real loader", ["batches taken", "prepared", "the model says"],
        measured.counts.map((found, i) => [i + 1, found, i + 1 + room])),
      table("At most, in steps per second", ["limit", "steps per second"],
        Object.entries(facts.bounds).map(([name, value]) => [name, digits(value)])),
      table("By number of workers", ["workers", "steps per second", "the model waits", "the workers wait", "queue size"],
        [...new Set([0, 1, 2, 3, 4, 6, 8, 12, 16, n])].sort((a, b) => a - b).map((num) => {
          const one = compute({ ...state, num_workers: num });
          return [num === n ? h("strong", {}, num) : num, digits(one.per_s), `${percent(one.model_waits)} %`,
            num ? `${percent(one.workers_wait)} %` : "–", num ? amount(one.room_bytes, "B") : "nothing"];
        })),
    ],
  };
}

function follow(at, [worker, asked, start, ready, taken], n, free) {
  if (!n) return `Batch ${at}: the process itself loads it, from ${ms(start)} to ${ms(ready)}, and the model waits.`;
  return `Batch ${at}: worker ${worker} is asked for it at ${ms(asked)}, and loads it from ${ms(start)} to ${ms(ready)}. `
    + (taken - ready > EPS ? `It lies ready for ${ms(taken - ready)}.`
      : taken - free > EPS ? `The model has waited for it for ${ms(taken - free)}.` : "The model takes it at once.");
}

// How fast it is, among what one might think.
const fastest = ({ bounds }) => Math.round(Math.min(...Object.values(bounds)));
const guesses = ({ state: { load_ms: load, step_ms: step, num_workers: n }, facts }) =>
  [...new Set([fastest(facts), Math.round(1000 / step), Math.round(1000 / (load + step)), Math.round(1000 / load),
    Math.round(1000 * n / (load + step))])].slice(0, 4).sort((a, b) => a - b);
const ask = {
  question: ({ state }) => `It takes ${ms(state.load_ms)} to load a batch, and ${ms(state.step_ms)} to train on it. With `
    + `${count(state.num_workers, "worker")}, about how many steps per second are possible?`,
  options: (view) => guesses(view).map(String),
  answer: (view) => guesses(view).indexOf(fastest(view.facts)),
  because: ({ facts: { bounds } }) => `The model allows ${digits(bounds.model)}, the workers ${digits(bounds.workers)}, `
    + `and the cores ${digits(bounds.cores)}. The least of them decides.`,
};

export default explorable({
  name: "loader", title: "Who waits, the model or the loader?",
  label: "A model, its loader and their queue", fields, compute, draw, ask, live: "Run a real DataLoader",
  sentence: "{load_ms} ms to load a batch, {step_ms} ms per step; {num_workers} workers, {prefetch_factor} batches ahead for each.",
});
