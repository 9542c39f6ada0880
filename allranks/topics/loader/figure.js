// A loader is a queue: who waits, the model or the workers. Mirrors sums.py.

import { h, picture, rect, text, table, whole, amount, nice, pressable, explorable } from "../kit/kit.js";
import { NUM, TIMES, SIZES, WHOLE } from "./figure.py";
import { EPS, A, M } from "./sums.py";

const REAL = { load_ms: TIMES, step_ms: TIMES, batch_mb: SIZES };
const upto = (n) => [...Array(n).keys()];
const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

function loadTimes(num, mean, jitter) {
  let x = 1;
  return upto(num).map(() => {
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
  const num = loads.length, room = workers * prefetch, rows = loads.map((_, b) => [b % workers, 0, 0, null, 0, 0]);
  const queues = upto(workers).map((w) => upto(Math.min(room, num)).filter((b) => b % workers === w));
  const busy = queues.map(() => null);
  let now = 0, turn = 0, left = null;
  while (turn < num) {
    if (left === null && rows[turn][3] !== null) {
      [rows[turn][4], left] = [now, step];
      if (turn + room < num) {
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

// Return steps per second, and the shares of time that model and workers wait, without
// the start: those of whole rounds of the workers, but the first.
function rates(rows, n) {
  const first = n ? n + (NUM - 1 - n) % n : 0, begin = rows[first][5], end = rows[NUM - 1][5];
  let waits = 0, works = 0;
  for (let b = first + 1; b < NUM; b++) waits += rows[b][4] - rows[b - 1][5];
  for (const [, , start, ready] of rows) works += Math.max(0, Math.min(ready, end) - Math.max(start, begin));
  return { per_s: 1000 * (NUM - 1 - first) / (end - begin), model_waits: waits / (end - begin),
    workers_wait: n ? 1 - works / (n * (end - begin)) : 0 };
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
  const words = `${n ? count(n, "worker") : "No workers"}, loads of ${ms(state.load_ms)}, steps of ${ms(state.step_ms)}: `
    + `${digits(facts.per_s)} steps/s, and the model waits ${percent(facts.model_waits)} % of the time. `;
  if (!n) return `${words}Nobody loads while it works; ${helps}`;
  return words + {
    model: "The model is the limit; more workers do not help. ",
    workers: `The workers are the limit; ${helps} `,
    cores: `${state.cores === 1 ? "One core is" : `The ${state.cores} cores are`} the limit: ${digits(facts.bounds.cores)} steps per second, with any number of workers. `,
  }[facts.limit] + (state.jitter ? "This is by the averages: batches are taken in their order, so a late one holds up those behind it, and a longer queue helps. " : "")
    + (held ? `Queue: at most ${held} of ${facts.room} (${amount(facts.held_bytes, "B")}).`
      : `The queue stays empty; it can hold ${facts.room} (${amount(facts.room_bytes, "B")}).`);
}

export function compute(state) {
  for (const [name, [low, most]] of Object.entries(WHOLE))
    if (whole(name, state[name], low) > most) throw Error(`${name} must be at most ${most}, not ${state[name]}`);
  for (const [name, [low, most]] of Object.entries(REAL))
    if (!(low <= state[name] && state[name] <= most)) throw Error(`${name} must be ${low} to ${most}`);
  const { load_ms: load, step_ms: step, num_workers: n, prefetch_factor: prefetch, cores, model_on_cpu: onCore } = state;
  const room = n * prefetch; // so many more, that the queue does not run dry before the last of NUM
  const batches = simulate(loadTimes(NUM + room, load, state.jitter / 100), step, n, prefetch, cores, onCore);
  const bounds = boundsOf(state), limit = Object.keys(bounds).reduce((a, b) => bounds[b] < bounds[a] ? b : a);
  const most = Math.max(...depths(batches).map(([, depth]) => depth));
  const facts = {
    batches, ...rates(batches, n), bounds, limit,
    enough: Math.max(1, Math.ceil(Math.min(bounds.model, bounds.cores) * load / 1000 - EPS)),
    room, most_ready: most, room_bytes: room * state.batch_mb * 1e6, held_bytes: most * state.batch_mb * 1e6,
  };
  return { ...facts, summary: summary(state, facts) };
}

const bounded = (name, label, more = {}) =>
  ({ name, label, kind: "whole", min: WHOLE[name][0], max: WHOLE[name][1], range: WHOLE[name], ...more });
const fields = [
  { name: "load_ms", label: "ms to load a batch", kind: "number", min: 0, range: [1, 1000, true] },
  { name: "step_ms", label: "ms of the model's step", kind: "number", min: 0, range: [1, 1000, true] },
  bounded("num_workers", "num_workers"),
  bounded("prefetch_factor", "prefetch_factor"),
  bounded("cores", "cores", { range: [1, 32] }),
  { name: "model_on_cpu", label: "the model's step needs a core, too", kind: "flag" },
  bounded("jitter", "load time varies by ± %"),
  { name: "batch_mb", label: "MB of a batch", kind: "number", min: 0, range: [0.1, 1000, true] },
  { name: "batch", label: "Batch to follow", kind: "step", max: () => NUM - 1 },
];

const LEFT = 74, TOP = 36, LOADS = 105, QUEUE = 96, MODEL = 56, RIGHT = 4; // px
const QUEUE_END = TOP + LOADS + 12 + QUEUE, MODEL_TOP = QUEUE_END + 14, HEIGHT = MODEL_TOP + MODEL + 24;
const start = { "text-anchor": "start" };
const DEEP = { load: 22, place: 12, step: 42 }; // %: a batch is loaded, lies ready, is trained on

// Return the places of batches that lie ready, as [batch, place, from, to]: the one that is
// taken next lies in place 0, and the others move up.
function queued(rows) {
  const found = [], lying = new Map();
  for (const time of [...new Set(rows.flatMap((row) => [row[3], row[4]]))].sort((a, b) => a - b)) {
    const now = upto(rows.length).filter((b) => rows[b][3] <= time && time < rows[b][4]);
    for (const [b, piece] of lying) if (now.indexOf(b) !== piece[1]) {
      piece[3] = time;
      lying.delete(b);
    }
    now.forEach((b, place) => {
      if (!lying.has(b)) lying.set(b, found[found.push([b, place, time, time]) - 1]);
    });
  }
  return found;
}

// Return the window of time: it moves when the batch that is followed nears its end. Its
// length does not depend on the workers, so more of them are seen to bring more steps.
function seen({ load_ms, step_ms, batch }, { batches }, narrow, width) {
  const span = (narrow ? 3.5 : 6) * nice(load_ms + step_ms), end = batches[NUM - 1][5];
  const from = Math.max(0, Math.min(batches[batch][4] - 0.6 * span, end - span)), to = from + span;
  return { from, to, x: (time) => LEFT + (Math.min(to, Math.max(from, time)) - from) * (width - LEFT - RIGHT) / span };
}

// Draw a batch in a lane, from one moment to another. A press follows it. A step is seen
// however short it is, and where many lie on each other, they are one area.
function bar({ x, from, to, at, set }, b, begin, end, y, tall, { id, told, fly }) {
  const left = x(begin), wide = x(end) - left;
  const [kind] = id.split(" "), least = kind === "step" ? 2 : 1;
  if (end <= from || begin >= to || (wide < 0.3 && least === 1)) return null;
  const fits = wide > (b > 9 ? 18 : 10) && tall > 11, look = [b === at && "x-strong", tall < 16 && "x-small"].filter(Boolean).join(" ");
  const box = rect(left, y, Math.max(least, wide - 1), tall, { class: b === at ? "x-box x-chosen" : "x-box", rx: Math.min(3, wide / 6, tall / 4),
    style: `--hue: var(--x-soft); fill: color-mix(in srgb, var(--x-soft) ${DEEP[kind]}%, var(--x-ground))${b === at ? tall < 20 ? "; stroke-width: 2" : "" : tall < 4 ? "; stroke: none" : ""}`, "data-id": fly ? null : `${id} ${b}` });
  const word = fits && text(left + wide / 2, y + tall / 2 + 4.5, b, { class: look, "data-id": fly ? null : `t ${id} ${b}` });
  return h("svg:g", b < NUM ? { onclick: () => set({ batch: b }), style: "cursor: pointer" } : {}, h("svg:title", {}, told),
    // What flies keeps its own size, and its place stays marked until it is there.
    fly ? [rect(left, y, Math.max(least, wide - 1), tall, { class: "x-idle" }),
      h("svg:g", { "data-id": `${id} ${b}`, "data-from": fly }, box, word)] : [box, word]);
}

// The buttons that add a worker and take one away stand where they don't move.
function stepper(n, set) {
  const [low, high] = WHOLE.num_workers;
  const button = (x, sign, words, next) => {
    const end = next < low || next > high;
    return pressable(h("svg:g", { "aria-disabled": `${end}`, opacity: end ? 0.4 : 1 },
      h("svg:rect", { x: Math.max(0, x - 5), y: 0, width: 40, height: TOP - 2, fill: "transparent" }),
      rect(x + 1, 2, 30, 26, { class: "x-frame", style: "fill: var(--x-shade)" }), text(x + 16, 21, sign, { style: "font-size: 18px" })),
    words, words, () => end || set({ num_workers: next }));
  };
  return [button(0, "−", "One worker less", n - 1), text(84, 20, n ? count(n, "worker") : "no workers", { class: "x-strong" }),
    button(138, "+", "One worker more", n + 1)];
}

// Where a worker waits: it has loaded all that it was asked for, and its places in the
// queue are full until the model takes a batch. It is no rank, so this is not red.
function pauses({ x, from, to }, batches, n, y, tall) {
  if (!n || tall < 5) return [];
  return batches.slice(n).map(([w, , begin], k) => {
    const free = batches[k][3], left = x(free), wide = x(begin) - left;
    return begin - free > EPS && begin > from && free < to && wide > 4 && h("svg:g.x-pause", {},
      rect(left + 1.5, y(w) + 1.5, wide - 4, tall - 3, { class: "x-idle", "data-id": `pause ${k}` }),
      tall > 11 && wide > 32 ? text(left + wide / 2, y(w) + tall / 2 + 4, wide > 62 ? "queue full" : "full", { class: "x-small" }) : null);
  });
}

// The workers' lanes, and below a few of them the place of one more.
function loading(view, { state: { num_workers: n }, facts: { batches }, set }, width) {
  const lanes = Math.max(1, n), more = n < 3, pitch = LOADS / (lanes + (more ? 1 : 0)), tall = pitch - Math.min(5, pitch / 4);
  return { end: (w) => TOP + w * pitch + tall, ground: [
    upto(lanes).map((w) => [
      pitch > 16 && text(0, TOP + w * pitch + tall / 2 + 4, n ? `worker ${w}` : "process", start),
      rect(LEFT, TOP + w * pitch, width - LEFT - RIGHT, tall, { style: "fill: var(--x-shade)", "data-id": `lane ${w}` })]),
    pitch <= 16 && text(0, TOP + LOADS / 2, "workers", start),
    pauses(view, batches, n, (w) => TOP + w * pitch, tall),
    more && h("svg:g", { onclick: () => set({ num_workers: n + 1 }), style: "cursor: pointer" },
      rect(LEFT + 0.5, TOP + lanes * pitch, width - LEFT - RIGHT - 1, tall, { class: "x-idle", "pointer-events": "all" }),
      text((LEFT + width) / 2, TOP + lanes * pitch + tall / 2 + 4, "+ a worker", { class: "x-small x-soft" }))],
  parts: batches.map(([w, , begin, ready], b) => bar(view, b, begin, ready, TOP + w * pitch, tall,
    { id: "load", told: `batch ${b} is loaded from ${ms(begin)} to ${ms(ready)}` })) };
}

// The queue: a slot for each batch that may be ahead, the next to be taken at the bottom.
function slots(view, { state: { num_workers: n }, facts: { batches, room, most_ready: most }, narrow }, width) {
  const tall = Math.min(QUEUE / Math.max(1, room), 34), y = (place) => QUEUE_END - (place + 1) * tall;
  const top = QUEUE_END - tall * room, pieces = queued(batches), middle = (QUEUE_END + top) / 2;
  const mine = pieces.filter(([b]) => b === view.at);
  return { from: mine.length && y(mine[0][1]) + 1, until: mine.length && y(mine.at(-1)[1]) + tall - 1, ground: [
    text(0, room ? middle - 3 : QUEUE_END - 20, "queue", start),
    text(0, room ? middle + 13 : QUEUE_END - 4, room ? `holds ${room > n && n > 1 && room < 20 ? `${n} × ${room / n}` : room}` : "none", { ...start, class: "x-small" }),
    upto(room <= 16 ? room : room && 1).map((place) => rect(LEFT + 0.5, room <= 16 ? y(place) + 1 : top, width - LEFT - RIGHT - 1,
      (room <= 16 ? tall : tall * room) - 2, { class: "x-frame", "stroke-opacity": 0.35 })),
    room > 0 && !most && text((LEFT + width) / 2, QUEUE_END - tall / 2 + 4, narrow ? "empty: taken at once" : "stays empty: the model takes each batch at once",
      { class: "x-small x-soft x-answer", style: "paint-order: stroke; stroke: var(--x-ground); stroke-width: 5" })],
  parts: pieces.map(([b, place, from, to]) => bar(view, b, from, to, y(place) + 1.5, Math.max(0.5, tall - 3),
    { id: `place ${place}`, told: `batch ${b} lies ready until ${ms(batches[b][4])}` })) };
}

// The model's steps, and in red the time in which it waits for a batch. The first one
// cannot be there at the start, whatever the loader: that is not counted.
function stepping(view, { facts, width }) {
  const { x, from, to, at } = view, { batches, model_waits: share } = facts;
  const next = x(batches[0][5]), end = width - RIGHT;
  let said = false; // once is enough
  return [
    text(0, MODEL_TOP + 17, "model", { ...start, class: "x-strong" }),
    text(0, MODEL_TOP + 34, `waits ${percent(share)} %`, { ...start, class: "x-small x-answer" }),
    text(0, MODEL_TOP + 49, "after start", { ...start, class: "x-small x-soft x-answer" }),
    batches.map(([, , , , taken, done], b) => {
      const free = b ? batches[b - 1][5] : 0, wide = x(taken) - x(free);
      const mid = x(free) + wide / 2, low = MODEL_TOP + MODEL / 2;
      const word = (!b || !said) && wide > 15 && (wide > 38 ? text(mid, low + 4, b ? "waits" : "start", { class: "x-small", "data-id": `t wait ${b}` })
        : text(mid, low + 4, b ? "waits" : "start", { class: "x-small", transform: `rotate(-90 ${mid} ${low})` }));
      said ||= b && word;
      return [taken - free > EPS && taken > from && free < to && h("svg:g", { class: "x-answer" },
        rect(x(free), MODEL_TOP, wide, MODEL, { class: "x-wait", rx: 0, "data-id": `wait ${b}` }), word),
      h("svg:g", { class: b ? "x-answer" : "" }, bar(view, b, taken, done, MODEL_TOP, MODEL, { id: "step", fly: b === at && `load ${b}`,
        told: `step with batch ${b}, from ${ms(taken)} to ${ms(done)}` }))];
    }),
    // While the question is open, steps that could be counted are not drawn.
    h("svg:g", { class: "x-guess" }, rect(next + 2, MODEL_TOP, Math.max(0, end - next - 2), MODEL, { class: "x-idle" }),
      text((next + end) / 2, MODEL_TOP + MODEL / 2 + 4, "how many follow?", { class: "x-small" })),
  ];
}

function draw(shown) {
  const { state, facts, before, set, measured, width, narrow } = shown, { batches, room } = facts, { num_workers: n, batch: at, cores } = state;
  const view = { ...seen(state, facts, narrow, width), at, set }, { x, from, to } = view;
  const lanes = loading(view, shown, width), queue = slots(view, shown, width), chosen = batches[at];
  const worth = before && before.facts.per_s !== facts.per_s && !narrow ? `before: ${digits(before.facts.per_s)}, now ` : "";
  // The way of the batch that is followed, behind all others.
  const down = lanes.end(chosen[0]), out = queue.until || down;
  const route = chosen[3] >= from && h("svg:g", { "pointer-events": "none", class: at ? "x-answer" : "" },
    h("svg:path", { d: `M${x(chosen[3])} ${down}V${queue.from || down}M${x(chosen[4])} ${out}V${MODEL_TOP - 6}`, stroke: "var(--x-ink)", "stroke-width": 2 }),
    h("svg:path", { class: "x-tip", d: `M${x(chosen[4])} ${MODEL_TOP}l-5 -8h10z` }));
  return {
    picture: picture(width, HEIGHT, "", stepper(n, set),
      text(width - RIGHT, 20, `${worth}${digits(facts.per_s)} steps/s`, { "text-anchor": "end", class: "x-strong x-answer" }),
      lanes.ground, queue.ground, route, lanes.parts, queue.parts, stepping(view, shown),
      [0, 0.5, 1].map((part, i) => text(LEFT + part * (width - LEFT - RIGHT), HEIGHT - 6, ms(from + part * (to - from)),
        { "text-anchor": ["start", "middle", "end"][i], class: "x-small x-soft" }))),
    below: [
      h("p", {}, follow(at, chosen, n, at ? batches[at - 1][5] : 0)),
      h("p", {}, "Press a batch to follow it: the line goes from its worker through the queue to its step. The drawing shows a part "
        + `of ${NUM} batches, and the figures are of all of them but the start, the first round of the workers. Torch gives batch b to worker b mod N, even if another one is free, `
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

// How fast it can be in the long run, among what one might think.
const fastest = ({ bounds }) => Math.min(...Object.values(bounds));
const guesses = ({ state: { load_ms: load, step_ms: step, num_workers: n }, facts }) =>
  [...new Set([fastest(facts), 1000 / step, 1000 / (load + step), 1000 / load, 1000 * n / (load + step)].map(digits))]
    .slice(0, 4).sort((a, b) => a - b);
const ask = {
  question: ({ state }) => `It takes ${ms(state.load_ms)} to load a batch, and ${ms(state.step_ms)} to train on it. With `
    + `${count(state.num_workers, "worker")}, how many steps per second are possible at most?`,
  options: guesses,
  answer: (view) => guesses(view).indexOf(digits(fastest(view.facts))),
  because: ({ state: { cores }, facts: { bounds, per_s } }) => `The least decides: the model allows ${digits(bounds.model)}, the workers ${digits(bounds.workers)}, `
    + `and ${cores > 1 ? `the ${cores} cores` : "one core"} ${digits(bounds.cores)}.` + (digits(per_s) === digits(fastest({ bounds })) ? ""
    : ` In these ${NUM} batches it is ${digits(per_s)}.`),
};

export default explorable({
  name: "loader", title: "Who waits, the model or the loader?",
  label: "A model, its loader and their queue", fields, compute, draw, ask, live: "Run a real DataLoader",
  sentence: "A worker loads a batch in {load_ms} ms ± {jitter} %, and may be {prefetch_factor} batches ahead; a step takes {step_ms} ms.",
});
