// Buckets and overlap. Mirrors sums.py, models.py and traces.py.

import { h, picture, rect, text, rankColor, table, whole, amount, nice, draggable, explorable } from "../kit/kit.js";
import { CAPS, EXAMPLE, LEAST, LONGEST, MOST, TINY } from "./figure.py";
import { LAYER, MODELS, MOST_LAYERS } from "./models.py";
import { DEFAULT_CAPS, MIB } from "./sums.py";
import { BACKWARD, COMM, LARGEST, MOST as MOST_SPANS } from "./traces.py";

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
    const bytes = sum(members.map((i) => sizes[i])), ready = spans[owners[members.at(-1)]][3];
    const start = Math.max(ready, free);
    free = start + 2 * (W - 1) * (alpha_us * 1e-6) + 2 * (W - 1) * bytes / W / bandwidth;
    return [bytes, [...new Set(members.map((i) => spans[owners[i]][0]))], ready, start, free];
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
    + `bucket${n === 1 ? "" : "s"}. Backward takes ${s(step.backward)}, all_reduce ${s(step.sending)}; `
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
    compare: CAPS.map((cap) => {
      const other = stepOf(chosen, cap, machine);
      return [cap, other.buckets.length, other.total];
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

const LANE = 44, TOP = 22, PITCH = LANE + TOP + 8, EDGE = 9;

// Draw two lanes over time, one for what computes and one for what is sent. A span is
// [name, from, to, words of a tooltip]. A name is written in its box, or in the gap
// behind it; if it is too long for both, only its number is.
function timeline(label, rows, { width, until, id }, ...more) {
  const scale = (width - 2 * EDGE) / until, x = (time) => EDGE + time * scale;
  const bottom = PITCH * rows.length + 4;
  return picture(width, bottom + 22, label,
    rows.map(([name, hue, spans, kind], row) => [
      text(EDGE, PITCH * row + 15, name, { "text-anchor": "start", class: "x-soft" }),
      h("svg:g", { class: kind }, spans.map(([words, from, to, tip], i) => {
        const y = PITCH * row + TOP, across = (to - from) * scale;
        const gap = ((spans[i + 1]?.[1] ?? until) - to) * scale, short = /\d*$/.exec(words)[0];
        const fits = (one, room) => one && 7.2 * one.length + 3 < room && one;
        const inside = fits(words, across) || fits(short, across), behind = !inside && fits(short, gap);
        const mark = id && { "data-id": `${row} ${words}` }, note = id && { "data-id": `t${row} ${words}` };
        return h("svg:g", {}, h("svg:title", {}, `${tip ?? words}: ${amount(from, "s")} to ${amount(to, "s")}`),
          h("svg:rect", { x: x(from), y, width: Math.max(0.5, across), ...mark,
            height: LANE, class: "x-box", style: `--hue: ${rankColor(hue)}` }),
          inside && text((x(from) + x(to)) / 2, y + 27, inside, { class: "x-small", ...note }),
          behind && text(x(to) + Math.min(gap / 2, 3.6 * behind.length + 3), y + 27, behind, { class: "x-small", ...note }));
      })),
    ]),
    h("svg:path", { class: "x-frame", d: `M${x(0)} ${bottom}H${x(until)}` }),
    [0, 0.5, 1].map((part, i) => [
      h("svg:path", { class: "x-frame", d: `M${x(until * part)} ${bottom - 4}v8` }),
      text(x(until * part), bottom + 18, part ? amount(until * part, "s") : "0",
        { "text-anchor": ["start", "middle", "end"][i], class: "x-small" }),
    ]),
    more.map((make) => make?.(x, bottom)));
}

// Shade the time in which a rank waits for what is still being sent.
const exposed = (facts, end) => (x, bottom) => facts.exposed > 0 && h("svg:g", { class: "x-answer" },
  rect(x(end), TOP, x(facts.total) - x(end), bottom - TOP - 4, { class: "x-wait", "data-id": "exposed", rx: 0 }),
  text(Math.max(x(facts.total), EDGE + 186), 15, `exposed: ${amount(facts.exposed, "s")}`,
    { "text-anchor": "end", class: "x-small" }));

// The step before the last change, as dashed outlines on the same scale.
const ghosts = (before) => (x, bottom) => before && h("svg:g", { class: "x-answer" },
  before.facts.buckets.map(([, , , a, b]) => h("svg:rect", { class: "x-ghost",
    x: x(a), y: PITCH + TOP, width: Math.max(0.5, x(b) - x(a)), height: LANE })),
  h("svg:path", { class: "x-ghost", d: `M${x(before.facts.total)} 4V${bottom}` }));

// The edge of a bucket that is full can be pulled: that sets bucket_cap_mb.
const edge = (state, facts, set) => (x) => {
  const { buckets } = facts, at = buckets.length > 2 ? 1 : 0, [bytes, , , from, to] = buckets[at];
  const now = state.bucket_cap_mb ?? 25, across = Math.max(24, x(to) - x(from));
  const high = 1024, map = (value) => Math.max(1, Math.round(value));
  return h("svg:g", { class: "x-answer" }, draggable(
    h("svg:rect", { x: x(to) - 5, y: PITCH + TOP - 4, width: 10, height: LANE + 8, rx: 4, class: "x-handle" }),
    "edge", { label: "bucket_cap_mb, the edge of a bucket", now: Math.round(now), low: 1, high,
      said: `${now} MiB; this bucket has ${amount(bytes, "B")}`,
      move: (by, start) => map(start * (1 + by / across)),
      step: (by) => map(by > 0 ? Math.max(now + 1, now * 1.1 ** by) : Math.min(now - 1, now * 1.1 ** by)),
      set: (cap) => set({ bucket_cap_mb: cap }) }));
};

function draw({ state, facts, before, set, measured, width }) {
  const s = (value) => amount(value, "s"), computed = facts.forward + facts.backward;
  const trace = measured?.trace ?? state.trace, seen = measured?.seen ?? facts.seen;
  const button = (key, words, press) =>
    h("button", { type: "button", "data-key": key, onclick: press }, words);
  const times = (total) => [s(total), computed ? (total / computed).toFixed(2) : "–"];
  const until = nice(Math.max(facts.total, before?.facts.total ?? 0, TINY));
  return {
    picture: [
      timeline(`Modelled step: ${facts.summary}`, [
        ["computes", 0, [["forward", 0, facts.forward], ...facts.layers.map(([name, , a, b]) => [name, a, b])]],
        ["all_reduce, bucket by bucket", 1, facts.buckets.map(([bytes, , , a, b], i) =>
          [String(i), a, b, `bucket ${i}, ${amount(bytes, "B")}`]), "x-answer"],
      ], { width, until, id: true }, ghosts(before), exposed(facts, computed), edge(state, facts, set)),
      trace && [
        h("p", {}, `${measured?.trace ? "Measured on live ranks" : "Trace"}${trace.ranks ? `, ${trace.ranks} ranks` : ""}: `
          + `${s(seen.length)}; ${s(seen.exposed)} of ${s(seen.sending)} of sending is exposed.`),
        timeline("The trace: backward and collectives over time", [
          ["computes", 0, trace.compute.map(([a, b]) => ["", a / 1e3, b / 1e3, "backward"])],
          ["sends", 1, trace.comm.map(([a, b, name], i) => [String(i), a / 1e3, b / 1e3, name])],
        ], { width, until: seen.length || 1 }),
      ],
    ],
    below: [
      h("p", {}, "Forward, then backward from the last layer to the first; each bucket is sent as soon as it is full and the link is free. The numbers count blocks, layers and buckets from 0. Dashed: as it was before your last change. Pull the thick edge of a bucket to fill it later or sooner."),
      h("p", {}, button("example", "Show an example trace", () => set({ trace: EXAMPLE })), " ",
        state.trace && button("remove", "Remove the trace", () => set({ trace: null }))),
      table("The step with other buckets", ["bucket_cap_mb", "buckets", "step", "step / computing"], [
        ...facts.compare.map(([cap, count, total]) => [cap === null ? "default: 25, the first 1"
          : cap > 1e5 ? "so large that all is one" : cap, count, ...times(total)]),
        ["no overlap: sent after backward", facts.buckets.length, ...times(facts.after_backward)],
      ]),
      table("Each bucket, in the order in which they are sent",
        ["bucket", "bytes", "ready", "sent", "there", "layers"],
        facts.buckets.map(([bytes, names, ...when], i) => [i, amount(bytes, "B"), ...when.map(s),
          names.length > 3 ? `${names[0]} to ${names.at(-1)}` : names.join(", ")])),
    ],
  };
}

const HIDDEN = ["nearly all of it", "about half of it", "hardly any of it"];
const ask = {
  question: ({ facts }) => `Backward takes ${amount(facts.backward, "s")}, and sending all gradients `
    + `${amount(facts.sending, "s")}. How much of the sending hides behind backward?`,
  options: HIDDEN,
  answer({ facts }) {
    const share = 1 - facts.exposed / (facts.sending || 1);
    return share > 0.75 ? 0 : share > 0.25 ? 1 : 2;
  },
  because: ({ facts }) => `${amount(facts.exposed, "s")} of the sending is exposed: it is left when backward has `
    + "ended. A bucket can be sent only when the last of its gradients is there.",
};

export default explorable({
  name: "buckets", title: "What of a step's communication hides behind backward?",
  label: "A step of DDP", fields, compute, draw, ask, live: "Profile it on live ranks",
  sentence: "{world_size} ranks take {batch_size} samples each, compute {tflops} TFLOP/s, and "
    + "send {gb_per_s} GB/s over each link.",
});
