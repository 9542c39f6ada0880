// Buckets and overlap. Mirrors sums.py, models.py and traces.py.

import { h, picture, rect, text, hatched, table, whole, amount, nice, FINE, draggable, explorable } from "../kit/kit.js";
import { EXAMPLE, LEAST, LONGEST, MOST, POINTS, TINY } from "./figure.py";
import { LAYER, MODELS, MOST_LAYERS } from "./models.py";
import { DEFAULT_CAPS, MIB } from "./sums.py";
import { BACKWARD, COMM, LARGEST, MOST as MOST_SPANS } from "./traces.py";

const CURVE = [...Array(POINTS).keys()].map((k) => 2 ** (k / 4)); // MiB
const sum = (values) => values.reduce((a, b) => a + b, 0);

function layersOf(model, words) {
  if (Object.hasOwn(MODELS, model)) return MODELS[model];
  if (model !== "own")
    throw Error(`no model ${model}: there are ${Object.keys(MODELS).join(", ")}, own`);
  const parts = words.split(",");
  if (parts.length > MOST_LAYERS)
    throw Error(`${parts.length} layers are too many: at most ${MOST_LAYERS}`);
  return parts.map((part, i) => {
    const match = LAYER.exec(part);
    if (!match) throw Error(`'${part}' is no layer: write numbers:MFLOP, as 590000:1.2`);
    return [`layer ${i}`, [Number(match[1])], Number(match[2])];
  });
}

export function assign(sizes, first, other) {
  const buckets = [];
  let current = [], held = 0, cap = first;
  sizes.forEach((size, i) => {
    current.push(i);
    held += size;
    if (held < cap) return;
    buckets.push(current);
    [current, held, cap] = [[], 0, other];
  });
  return current.length ? [...buckets, current] : buckets;
}

function stepOf(layers, capMb, { batch_size, tflops, world_size, alpha_us, gb_per_s }) {
  const flops = tflops * 1e12, bandwidth = gb_per_s * 1e9, W = world_size;
  const forward = sum(layers.map((layer) => layer[2])) * 1e6 * batch_size / flops;
  const caps = capMb === null ? DEFAULT_CAPS : Array(2).fill(Math.floor(capMb * MIB));
  const spans = [], sizes = [], owners = [];
  let now = forward, free = 0;
  for (const [name, numbers, mflop] of [...layers].reverse()) {
    const end = now + 2e6 * mflop * batch_size / flops;
    for (const number of [...numbers].reverse()) {
      sizes.push(4 * number);
      owners.push(spans.length);
    }
    spans.push([name, 4 * sum(numbers), now, end]);
    now = end;
  }
  const buckets = assign(sizes, ...caps).map((members) => {
    const pieces = new Map(), ready = spans[owners[members.at(-1)]][3];
    for (const i of members) pieces.set(owners[i], (pieces.get(owners[i]) ?? 0) + sizes[i]);
    const bytes = sum([...pieces.values()]);
    const start = Math.max(ready, free);
    free = start + 2 * (W - 1) * (alpha_us * 1e-6) + 2 * (W - 1) * bytes / W / bandwidth;
    return [bytes, [...new Set([...pieces.keys()].map((i) => spans[i][0]))], ready, start, free, [...pieces]];
  });
  const backward = now - forward, computed = forward + backward;
  return {
    forward, backward, computed, layers: spans, buckets,
    sending: sum(buckets.map((b) => b[4] - b[3])),
    total: Math.max(computed, ...buckets.map((b) => b[4])),
  };
}

const order = (a, b) => a[0] - b[0] || a[1] - b[1] || (a[2] < b[2] ? -1 : a[2] > b[2] ? 1 : 0);
function union(spans, gap = 0) {
  const found = [];
  for (const [start, end] of [...spans].sort(order)) {
    const last = found.at(-1);
    if (last && start <= last[1] + gap) last[1] = Math.max(last[1], end);
    else found.push([start, end]);
  }
  return found;
}
// Total time in `spans` during which nothing in `cover` runs.
const uncovered = (spans, cover) => sum(union(spans).map(([start, end]) => end - start
  - sum(union(cover).map(([a, b]) => Math.max(0, Math.min(b, end) - Math.max(a, start))))));

// Read one step of a torch.profiler trace, by the rules of traces.py.
export function lanes(words) {
  let trace;
  try {
    trace = JSON.parse(words);
  } catch {
    throw Error("this is no JSON: export it with prof.export_chrome_trace, and unpack .gz");
  }
  const events = trace?.traceEvents;
  if (!Array.isArray(events))
    throw Error("there are no traceEvents: this is no trace of torch.profiler");
  const spans = { kernel: [], gpu_user_annotation: [], "": [] };
  for (const event of events) {
    if (event?.ph !== "X" || typeof event.name !== "string") continue;
    const { ts, dur, name, cat } = event;
    const number = (value) => typeof value === "number" && Math.abs(value) < LARGEST;
    if (number(ts) && number(dur) && dur >= 0)
      spans[typeof cat === "string" && Object.hasOwn(spans, cat) ? cat : ""].push([ts, ts + dur, name]);
  }
  const nccl = ([, , name]) => name.startsWith("nccl"), on = (prefix) => ([, , name]) => name.startsWith(prefix);
  let comm = spans.kernel.filter(nccl), marks = spans.gpu_user_annotation, compute;
  if (comm.length) compute = spans.kernel.filter((span) => !nccl(span));
  else {
    marks = spans[""];
    comm = marks.filter(([, , name]) => COMM.some((backend) => name.startsWith(backend)));
    compute = marks.filter(on(BACKWARD));
  }
  if (!comm.length) throw Error("no gloo or nccl event in it: profile DDP on two ranks or more");
  if (!compute.length) throw Error("no backward pass in it: profile loss.backward() too");
  for (const [begin, end] of marks.filter(on("ProfilerStep#")).sort(order).reverse()) {
    const both = [compute, comm].map((lane) => lane.filter(([t]) => begin <= t && t < end));
    if (both[0].length && both[1].length) {
      [compute, comm] = both;
      break;
    }
  }
  if (comm.length > MOST_SPANS)
    throw Error(`${comm.length} collectives are too many: profile a single step`);
  const all = [...compute, ...comm];
  const zero = all.reduce((t, s) => Math.min(t, s[0]), Infinity);
  const length = all.reduce((t, s) => Math.max(t, s[1]), -Infinity) - zero;
  const ms = (time) => Math.floor(time - zero + 0.5) / 1000;
  let busy = union(compute);
  if (busy.length > MOST_SPANS) busy = union(compute, length / MOST_SPANS);
  const ranks = trace.distributedInfo?.world_size;
  return {
    compute: busy.map(([a, b]) => [ms(a), ms(b)]),
    comm: comm.sort(order).map(([a, b, name]) => [ms(a), ms(b), name.slice(0, 40)]),
    ranks: Number.isInteger(ranks) ? ranks : null,
  };
}

export function compute({ model, layers, bucket_cap_mb, trace, ...machine }) {
  const chosen = layersOf(model, layers);
  for (const name of ["batch_size", "world_size"])
    if (whole(name, machine[name], 1) > MOST) throw Error(`${name} must be at most ${MOST}`);
  for (const name of ["tflops", "gb_per_s"]) {
    if (machine[name] <= 0) throw Error(`${name} must be above 0, not ${machine[name]}`);
    if (machine[name] < LEAST) throw Error(`${name} must be at least ${LEAST}`);
  }
  for (const [name, value] of [["alpha_us", machine.alpha_us], ["bucket_cap_mb", bucket_cap_mb ?? 0]])
    if (value < 0) throw Error(`${name} must not be negative: ${value}`);
  if (machine.alpha_us > LONGEST) throw Error(`alpha_us must be at most ${LONGEST}`);
  if (trace && !(trace.compute?.length && trace.comm?.length))
    throw Error("trace must be what allranks.topics.buckets.traces.lanes returns");
  const step = stepOf(chosen, bucket_cap_mb, machine), { total, computed } = step;
  const exposed = total - computed, W = machine.world_size, n = step.buckets.length;
  const s = (value) => amount(value, "s");
  const percent = Math.floor(100 * (total ? computed / total : 1) + 0.5);
  const share = percent === 100 && exposed >= TINY ? "over 99"
    : percent === 0 && computed >= TINY ? "under 1" : percent;
  let seen = null, summary = `${W} rank${W > 1 ? "s" : ""}, `
    + `${amount(sum(step.layers.map((layer) => layer[1])), "B")} of gradients in ${n} `
    + `bucket${n === 1 ? "" : "s"}. Forward takes ${s(step.forward)}, backward ${s(step.backward)}, all_reduce ${s(step.sending)}; `
    + `${s(exposed)} of it is exposed. A step takes ${s(total)}, `
    + `${share} % of it computing.`;
  if (trace) {
    const { compute: busy, comm } = trace, length = (list) => sum(list.map(([a, b]) => b - a)) / 1e3;
    seen = {
      compute: length(busy), sending: length(union(comm)), exposed: uncovered(comm, busy) / 1e3,
      length: Math.max(...[...busy, ...comm].map((span) => span[1])) / 1e3,
    };
    summary += ` In the trace, backward computes ${s(seen.compute)}; ${comm.length} collectives `
      + `take ${s(seen.sending)}, ${s(seen.exposed)} of it exposed.`;
  }
  return {
    layers: step.layers, buckets: step.buckets, forward: step.forward, backward: step.backward,
    sending: step.sending, exposed, total, after_backward: computed + step.sending,
    curve: CURVE.map((cap) => {
      const other = stepOf(chosen, cap, machine);
      return other.total - other.computed;
    }),
    seen, summary,
  };
}

const decimal = (name, label, range, rest) => ({ name, label, kind: "number", min: 0, range, ...rest });
const whole1 = (name, label, range, rest) => ({ name, label, kind: "whole", min: 1, range, ...rest });
const fields = [
  whole1("world_size", "Ranks, W", [1, 1024, true], { knob: true }),
  decimal("gb_per_s", "B, GB/s per link", [0.1, 1000, true], { knob: true }),
  { name: "model", label: "Model", kind: "choice", knob: true, options: [["gpt2", "GPT-2, 124 M"],
    ["mlp", "MLP with one wide layer"], ["digits", "the digits' CNN"], ["own", "your own layers"]] },
  { name: "layers", label: "Layers, numbers:MFLOP", kind: "text", show: (s) => s.model === "own" },
  whole1("batch_size", "Samples per rank", [1, 1024, true]),
  decimal("tflops", "TFLOP/s per rank", [0.1, 1000, true]),
  decimal("alpha_us", "α, µs per message", [0, 1000]),
  { label: "bucket_cap_mb is set", kind: "flag", get: (s) => s.bucket_cap_mb !== null,
    set: (on) => ({ bucket_cap_mb: on ? 25 : null }) },
  { ...decimal("bucket_cap_mb", "bucket_cap_mb, MiB"), show: (s) => s.bucket_cap_mb !== null },
  { label: "Your trace (.json)", kind: "file", accept: ".json,application/json", most: 64e6,
    get: () => null, set: (words) => ({ trace: lanes(words) }) },
];

// Where the parts of the drawing are, from top to bottom, in px; all as wide as the axis.
const EDGE = 9, LANE = 40, COMPUTES = 22, SENDS = 150, AXIS = 216, CURVE_TOP = 264, TRACK = 360;
const PALE = "color-mix(in srgb, var(--x-soft) 65%, transparent)"; // no rank's own: all do the same
const left = { "text-anchor": "start" }, right = { "text-anchor": "end" };
const wide = (words) => 7.4 * words.length + 4; // px of letters, at most
const path = (d, look, more) => h("svg:path", { d, class: look, ...more });
const OVER = "paint-order: stroke; stroke: var(--x-ground); stroke-width: 4px"; // words on a line
const shade = (deep, hue = "") => ({ style: `${hue} --deep: ${deep}%` });

// Draw a piece of work, gray in a depth, or hatched if it travels, from time a to b. The
// longest of its names that fits stands in it.
function span([name, a, b], x, y, { deep, id, names = [name], tip = name }) {
  const from = x(a), width = Math.max(0.5, x(b) - from), key = (what) => ({ "data-id": id && what + id });
  const words = names.find((one) => wide(one) < width), middle = from + width / 2, box = [from, y, width, LANE];
  return h("svg:g", {}, h("svg:title", {}, `${tip}: ${amount(a, "s")} to ${amount(b, "s")}`),
    deep ? rect(...box, { class: "x-box", rx: 0, ...shade(deep, "--hue: var(--x-soft);"), ...key("") })
      : hatched(...box, PALE, { rx: 0, ...key(""), "stroke-width": width < 8 ? 0.4 : 1 }), // edges of many are a blot
    words && !deep && rect(middle - wide(words) / 2, y + 11, wide(words), 18, { class: "x-plate", ...key("plate ") }),
    words && text(middle, y + 25, words, key("name ")));
}

// No block and no bucket has a number: they stand above each other, but are no pairs.
const computing = ({ forward, layers }, x) => [["forward", 0, forward], ...layers.map(([name, , a, b]) => [name, a, b])]
  .map((one, i) => span(one, x, COMPUTES, { deep: i ? 32 : 12, id: `does ${one[0]}`, names: /\d$/.test(one[0]) ? [] : [one[0]] }));
const sending = (buckets, x) => buckets.map(([bytes, , , a, b], i) => span([`bucket ${i}, ${amount(bytes, "B")}`, a, b], x, SENDS,
  { id: `sends ${i}`, names: i && i === buckets.length - 1 ? [`the last: ${amount(bytes, "B")}`, "the last", "last"] : [] }));

// Let each layer's gradient fall from its backward into its buckets. What a bucket gets
// of a layer is as wide as its share, above of the layer's time, below of the bucket's.
function falling(layers, buckets, x) {
  const top = COMPUTES + LANE, middle = (top + SENDS) / 2, taken = layers.map(() => 0);
  const fall = (from, to) => `${from} ${top}C${from} ${middle} ${to} ${middle} ${to} ${SENDS}`;
  return buckets.map(([bytes, , ready, start, end, pieces]) => {
    let landed = 0;
    const ribbons = pieces.map(([layer, part]) => {
      const [, all, a, b] = layers[layer];
      const [from, from2] = [0, part].map((more) => x(a + (b - a) * (taken[layer] + more) / all));
      const [to, to2] = [0, part].map((more) => x(start + (end - start) * (landed + more) / bytes));
      taken[layer] += part;
      landed += part;
      return `M${fall(from, to)}H${to2}C${to2} ${middle} ${from2} ${middle} ${from2} ${top}Z`;
    });
    return [path(ribbons.join(""), "x-fall", shade(20)),
      // Its last gradient is there: it leaves, as soon as the link is free.
      buckets.length < 50 && path(`M${fall(x(ready), x(start))}`, "x-frame")];
  });
}

// The rank waits for what is sent when it has computed; below, what is hidden and what not.
function waiting({ buckets, exposed, total, sending }, x, width) {
  const computed = x(total - exposed), hidden = sending - exposed, y = SENDS + LANE + 5;
  const bare = `exposed: ${amount(exposed, "s")}`, from = Math.min(computed + 5, width - EDGE - wide(bare));
  const words = ["all_reduce hidden behind backward: ", "hidden: "].map((one) => one + amount(hidden, "s"));
  const until = exposed > TINY ? Math.min(computed, from) - 6 : computed, short = words.find((one) => wide(one) < until - EDGE);
  const line = (a, b, stroke) => path(`M${a} ${y}H${b}`, "", { style: `stroke: ${stroke}; stroke-width: 3px` });
  return [
    hidden > TINY && [line(x(buckets[0][3]), computed, "var(--x-soft)"), short && text(until, y + 15, short, { ...right, style: OVER })],
    exposed > TINY && [line(computed, x(total), "var(--x-ink)"), text(from, y + 15, bare, { ...left, style: OVER }),
      rect(computed, COMPUTES, x(total) - computed, LANE, { class: "x-wait", "data-id": "exposed", rx: 0 }),
      x(total) - computed > 44 && text((computed + x(total)) / 2, COMPUTES + 25, "waits")]];
}

// What the reader guesses, for each state that was asked about: when sending would begin.
const guesses = new Map();
const about = (state) => JSON.stringify({ ...state, trace: null });

// Before the answer, the buckets stand behind backward, and one drags them under it: a
// gradient that would be sent before it is there leans back.
function guessing({ state, facts, set, width, narrow }, x, until) {
  const { forward, backward, sending: sends, layers } = facts, ends = forward + backward, now = guesses.get(about(state)) ?? ends;
  const hidden = Math.min(ends - now, sends), bar = [x(now), SENDS, x(now + sends) - x(now), LANE], y = SENDS + LANE + 18;
  let free = now;
  const train = facts.buckets.map(([bytes, names, ready, a, b, pieces]) => [bytes, names, ready, free, free += b - a, pieces]);
  const grip = h("svg:g", {}, rect(...bar, { fill: "transparent" }), sending(train, x),
    rect(bar[0] - 22, SENDS - 2, 44, 44, { fill: "transparent" }), rect(bar[0] - 5, SENDS - 4, 10, LANE + 8, { class: "x-handle", rx: 5 }));
  const words = x(forward) > ASIDE ? ["Drag the buckets", "under backward,", "as far as you", "think they fit."]
    : [narrow ? "Drag the buckets under backward" : "Drag the buckets under backward, as far as you think they fit"];
  return [falling(layers, train, x), aside(words),
    draggable(grip, "guess", { label: "your guess: when all_reduce begins", now, low: forward, high: ends,
      said: `${amount(hidden, "s")} of it behind backward`,
      move: (by, from) => from + by * until / (width - 2 * EDGE), step: (by) => now + by * backward / 20,
      set: (seconds) => {
        guesses.set(about(state), seconds);
        set({}); // nothing but the drawing changes
      } }),
    hidden > TINY && text(x(ends) - 6, y, `hidden: ${amount(hidden, "s")}?`, right),
    sends - hidden > TINY && text(Math.min(x(ends) + 6, width - EDGE - wide("exposed: 99.9 ms?")), y, `exposed: ${amount(sends - hidden, "s")}?`, left)];
}

// Say something below forward, where it has the room, or in one line above the buckets.
const ASIDE = 128; // px
const aside = (lines, more) => lines.map((line, i) =>
  text(EDGE, SENDS - (lines[1] ? 66 - 17 * i : 8), line, { ...left, style: OVER, ...more }));

// Beside the answer stays where the reader thought that sending would begin.
function guessed({ state, facts }, x) {
  const start = guesses.get(about(state));
  return start !== undefined && [path(`M${x(start)} ${SENDS - 12}v${LANE + 12}`, "x-line"),
    text(x(start) - 5, SENDS - 4, "your guess", { ...right, style: OVER })];
}

// The axis has the two times that matter: when backward ends, and when the step does. It
// is long enough for a step without any overlap, as the veiled bar begins.
function axis({ exposed, total, after_backward: worst }, x, until) {
  const computed = x(total - exposed), end = `step: ${amount(total, "s")}`, far = Math.max(x(total), wide(end) + 22);
  const mid = `backward ends: ${amount(total - exposed, "s")}`;
  return [path(`M${x(0)} ${AXIS - 4}v8m0 -4H${x(until)}`, "x-frame"), text(x(0), AXIS + 16, "0", left),
    path(`M${x(total)} ${AXIS - 4}v8`, "x-frame x-answer"), text(far, AXIS + 16, end, { ...right, class: "x-answer" }),
    x(worst) - x(total) > 126 && h("svg:g", { class: "x-answer" }, path(`M${x(worst)} ${SENDS}V${AXIS + 4}`, "x-idle"),
      ["without overlap:", amount(worst, "s")].map((line, i) => text(x(worst) - 6, SENDS + 15 + 17 * i, line, right))),
    exposed > TINY && path(`M${computed} ${COMPUTES + LANE}V${AXIS + 4}`, "x-idle"),
    computed < far - wide(end) && computed > 26 + wide(mid) && text(computed, AXIS + 16, mid, right)];
}

// The time exposed with every size of buckets, and a handle that chooses one. The axis is
// from the least to the most: sizes differ little beside what no size can hide.
function choosing({ state, facts, set, width, narrow, asking }) {
  const low = CURVE[0], high = CURVE.at(-1), across = width - 2 * EDGE, cap = state.bucket_cap_mb, now = cap ?? DEFAULT_CAPS[1] / MIB;
  const fit = (mib) => Math.min(high, Math.max(low, Math.round(mib))), track = asking ? CURVE_TOP + 12 : TRACK;
  const x = (mib) => EDGE + across * Math.log(mib / low) / Math.log(high / low), at = x(fit(now));
  const words = amount(facts.exposed, "s"), [first, size] = DEFAULT_CAPS.map((bytes) => bytes / MIB);
  const chosen = cap !== null ? `${cap} MiB` : `${size} MiB${narrow ? "" : ` (default; the first bucket: ${first} MiB)`}`;
  return [
    h("svg:text", { x: EDGE, y: CURVE_TOP - 10, ...left },
      h("svg:tspan.x-strong", {}, `bucket_cap_mb: ${chosen}`), !asking && `: ${words} exposed`),
    !asking && curve(facts, x, at),
    path(`M${EDGE} ${track}h${across}`, "x-frame"),
    [1, 5, size, 100].map((mib) => text(x(mib), track + 24, mib === size ? `${size}, default` : mib, mib > 1 ? {} : left)),
    text(width - EDGE, track + 24, "1024 MiB", right),
    draggable(h("svg:g", {}, rect(at - 22, track - 22, 44, 44, { fill: "transparent" }),
      rect(at - 7, track - 10, 14, 20, { class: "x-handle", rx: 5 }),
      path(`M${at - 2} ${track - 4}v8m4 -8v8`, "", { style: "stroke: var(--x-ground)" })),
    "cap", { label: "bucket_cap_mb, the handle", now: fit(now), low, high,
      said: `${now} MiB: ${facts.buckets.length} buckets${asking ? "" : `, ${words} exposed`}`,
      move: (by, start) => fit(start * (high / low) ** (by / across)),
      step: (by) => fit(by > 0 ? Math.max(now + 1, now * 1.1 ** by) : Math.min(now - 1, now * 1.1 ** by)),
      set: (mib) => set({ bucket_cap_mb: mib }) })];
}

// The curve, and on it its ends and its least: none of these words is crossed by it.
function curve({ curve: times, exposed }, x, at) {
  const all = [...times, exposed], most = Math.max(...all), least = Math.min(...all), floor = TRACK - 30;
  const y = (time) => floor - (floor - CURVE_TOP - 18) * (most - least > TINY ? (time - least) / (most - least) : 0);
  const points = times.map((time, i) => [x(CURVE[i]), y(time)]), [first, last] = [0, -1].map((end) => times.at(end));
  // Above what stands there of the curve, or below, where there is no room above it.
  const label = (words, from) => {
    const near = points.filter(([px], i) => (points[i + 1]?.[0] ?? px) >= from - 4 && (points[i - 1]?.[0] ?? px) <= from + wide(words) + 4).map(([, py]) => py);
    const up = Math.min(...near) - 7;
    return text(from, up > CURVE_TOP + 6 ? up : Math.max(...near) + 17, words, left);
  };
  // Of several least, the one that is nearest to the default.
  const best = times.map((time, i) => [time - least > TINY, Math.abs(CURVE[i] - DEFAULT_CAPS[1] / MIB), x(CURVE[i])]).sort((a, b) => a[0] - b[0] || a[1] - b[1])[0][2];
  const lowest = `least: ${amount(least, "s")}`, half = wide(lowest) / 2, beside = best > at ? at + 10 : at - 6 - 2 * half;
  const one = `one bucket: ${amount(last, "s")}`;
  return [path(`M${points.join("L")}`, "x-line", { "data-id": "curve" }), path(`M${at} ${y(exposed)}V${TRACK}`, "x-frame"),
    first - least > TINY && label(amount(first, "s"), EDGE), most - least > TINY && label(one, x(CURVE.at(-1)) - wide(one) + 8),
    text(Math.abs(best - at) < half + 8 ? Math.max(EDGE, beside) : Math.max(EDGE, best - half), floor + 17, lowest, left),
    h("svg:circle", { cx: at, cy: y(exposed), r: 4, class: "x-tip", "data-id": "chosen" })];
}

// "blocks 11 to 0", or "out to in": the layers' names, in backward's order.
function spell(layers) {
  const names = layers.map(([name]) => name), numbered = names.filter((name) => /\d$/.test(name));
  const many = numbered.length > 3, [first, last] = [0, -1].map((at) => (many ? numbered : names).at(at));
  return many ? `${first.replace(" ", "s ")} to ${/\d+$/.exec(last)}` : `${first} to ${last}`;
}

function stepPicture(view) {
  const { facts, before, width, narrow, state: { world_size: W } } = view;
  const ends = (one) => one?.facts[narrow && !view.asking ? "total" : "after_backward"] ?? 0; // no room for it on a phone
  const until = nice(Math.max(ends(view), ends(before), TINY), FINE);
  const x = (time) => EDGE + time * (width - 2 * EDGE) / until, n = facts.buckets.length, held = `${n} bucket${n > 1 ? "s" : ""}:`;
  return picture(width, (view.asking ? CURVE_TOP + 12 : TRACK) + 30, "",
    text(EDGE, 14, `${narrow ? "" : W > 1 ? `one rank of ${W} ` : "the rank "}computes: forward, then backward, ${spell(facts.layers)}`, left),
    before && h("svg:g", { class: "x-answer" }, before.facts.buckets.map(([, , , a, b]) =>
      rect(x(a), SENDS, Math.max(0.5, x(b) - x(a)), LANE, { class: "x-ghost", rx: 0 })),
    path(`M${x(before.facts.total)} ${COMPUTES}V${AXIS}`, "x-ghost")),
    h("svg:g", { class: "x-answer x-sweep" }, falling(facts.layers, facts.buckets, x), sending(facts.buckets, x), waiting(facts, x, width), guessed(view, x)),
    computing(facts, x),
    x(facts.buckets[0][3]) - EDGE > wide(held) && text(EDGE, SENDS + 25, held, { ...left, class: "x-strong x-answer" }),
    x(facts.forward) > ASIDE && aside(["A gradient falls", "into a bucket. Full,", "it is sent, when", "the link is free."], { class: "x-answer" }),
    axis(facts, x, until), view.asking && guessing(view, x, until), choosing(view));
}

// What a profiler saw, in ms: one lane for what computes, one for what is sent.
function traced(trace, length, width) {
  const x = (time) => EDGE + time * (width - 2 * EDGE) / (length || 1), low = COMPUTES + LANE + 26, bottom = low + LANE + 6;
  return picture(width, bottom + 22, "The trace: backward and collectives over time",
    text(EDGE, 14, "computes", left), text(EDGE, low - 8, "sends", left),
    trace.compute.map(([a, b]) => span(["backward", a / 1e3, b / 1e3], x, COMPUTES, { deep: 32 })),
    trace.comm.map(([a, b, name], i) => span([`${i}`, a / 1e3, b / 1e3], x, low, { tip: name })),
    path(`M${x(0)} ${bottom}H${x(length)}`, "x-frame"),
    text(x(0), bottom + 17, "0", left), text(x(length), bottom + 17, amount(length, "s"), right));
}

function draw(view) {
  const { state, facts, set, measured, width } = view, s = (value) => amount(value, "s");
  const trace = measured?.trace ?? state.trace, seen = measured?.seen ?? facts.seen;
  const button = (key, words, press) =>
    h("button", { type: "button", "data-key": key, onclick: press }, words);
  return {
    picture: [
      stepPicture(view),
      trace && [
        h("p", {}, `${measured?.trace ? "Measured on live ranks" : "Trace"}${trace.ranks ? `, ${trace.ranks} ranks` : ""}: `
          + `${s(seen.length)}; ${s(seen.exposed)} of ${s(seen.sending)} of sending is exposed.`),
        traced(trace, seen.length, width),
      ],
    ],
    below: [
      h("p", {}, "Hatched: on the link. Dashed: as it was before your last change. Without any overlap, if all were sent after "
        + `backward, a step would take ${s(facts.after_backward)}.`),
      h("p", {}, button("example", "Show an example trace", () => set({ trace: EXAMPLE })), " ",
        state.trace && button("remove", "Remove the trace", () => set({ trace: null }))),
      table("Each bucket, in the order in which they are sent",
        ["bucket", "bytes", "ready", "sent", "there", "layers"],
        facts.buckets.map(([bytes, names, ready, from, to], i) => [i, amount(bytes, "B"), s(ready), s(from), s(to),
          names.length > 3 ? `${names[0]} to ${names.at(-1)}` : names.join(", ")])),
    ],
  };
}

// Return the time that would hide, as the reader guesses it.
const guessedTime = ({ state, facts: { forward, backward, sending } }) =>
  Math.min(forward + backward - guesses.get(about(state)), sending);
const ask = {
  question: ({ facts }) => `Backward takes ${amount(facts.backward, "s")}, and sending all gradients `
    + `${amount(facts.sending, "s")}. How much of the sending hides behind backward?`,
  options: ({ facts: { sending, exposed } }) => [exposed <= TINY ? "all of it" : sending - exposed <= TINY ? "none of it"
    : `${amount(sending - exposed, "s")} of it`, "more than that", "less than that"],
  mine: (view) => `You guessed that ${amount(guessedTime(view), "s")} hide. `,
  // A guess is right if it is off by at most a tenth of the sending.
  guess(view) {
    const { state, facts: { sending, exposed } } = view, off = guessedTime(view) - (sending - exposed);
    return !guesses.has(about(state)) ? -1 : Math.abs(off) <= sending / 10 ? 0 : off > 0 ? 1 : 2;
  },
  answer: 0,
  because: ({ facts }) => `${amount(facts.exposed, "s")} ${facts.exposed > TINY ? "are" : "is"} exposed: `
    + "a bucket can be sent only when the last of its gradients is there.",
};

export default explorable({
  name: "buckets", title: "What of a step's communication hides behind backward?",
  label: "A step of DDP", fields, compute, draw, ask, live: "Profile it on live ranks",
  sentence: "{world_size} ranks take {batch_size} samples each, compute {tflops} TFLOP/s, and "
    + "send {gb_per_s} GB/s over each link.",
});
