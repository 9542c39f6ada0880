// State-dict keys under wrappers. Mirrors sums.py.

import { h, picture, rect, text, rankColor, pressable, code, explorable } from "../kit/kit.js";
import { SHAPES, PREFIX, CALLS, CLASSES, MOST, API, CONSUME, PLAIN, REFUSED, MATCHED } from "./sums.py";

const callOf = (order) => order.reduce((inner, name) => `${CALLS[name] ?? name}(${inner})`, "net");

function check(order) {
  order.forEach((name, i) => {
    const inner = order.slice(0, i), shell = inner.filter((other) => other !== "FSDP2").at(-1);
    if (!Object.hasOwn(PREFIX, name))
      throw Error(`no wrapper ${name}: there are ${Object.keys(PREFIX).join(", ")}`);
    if ((name === "DDP" && inner.includes("FSDP2"))
      || (name === "FSDP2" && inner.at(-1) === "FSDP2")
      || (name === "compile" && shell === "compile"))
      throw Error(`torch refuses ${callOf(order.slice(0, i + 1))}: ${REFUSED[name]}`);
  });
  if (order.length > MOST)
    throw Error(`${order.length} wrappers do not fit here: at most ${MOST}`);
}

function describe(order) {
  const outer = order.filter((name) => name !== "FSDP2").at(-1);
  const prefix = [...order].reverse().map((name) => PREFIX[name]).join("");
  return {
    call: callOf(order), prefix,
    keys: Object.keys(SHAPES).map((key) => prefix + key),
    values: order.includes("FSDP2") ? "DTensor" : "Tensor",
    class: (order.at(-1) === "FSDP2" ? "FSDP" : "") + (CLASSES[outer] ?? outer ?? "Net"),
    inner: `net.${prefix}`.replace(/\.$/, ""),
  };
}

const listed = (keys) => "[" + keys.map((key) => `'${key}'`).join(", ") + "]";
const quoted = (keys) => keys.map((key) => `"${key}"`).join(", ");

function answer(saved, loaded, strict) {
  const head = `RuntimeError: Error(s) in loading state_dict for ${loaded.class}:`;
  if (saved.prefix !== loaded.prefix) {
    if (!strict) return { raises: false, num: 0, text: "_IncompatibleKeys(missing_keys="
      + `${listed(loaded.keys)}, unexpected_keys=${listed(saved.keys)})` };
    return { raises: true, num: 0, text: `${head}\n\tMissing key(s) in state_dict: `
      + `${quoted(loaded.keys)}. \n\tUnexpected key(s) in state_dict: ${quoted(saved.keys)}. ` };
  }
  if (saved.values === loaded.values)
    return { raises: false, num: 2, text: MATCHED };
  const lines = saved.keys.map((key, i) => {
    const size = `torch.Size([${Object.values(SHAPES)[i].join(", ")}])`;
    return `\tWhile copying the parameter named "${key}", whose dimensions in the model are `
      + `${size} and whose dimensions in the checkpoint are ${size}, an exception occurred : `
      + "('aten.copy_.default got mixed torch.Tensor and DTensor, need to convert all "
      + "torch.Tensor to DTensor before calling distributed operators!',).";
  });
  return { raises: true, num: 0, text: [head, ...lines].join("\n") };
}

function fill(loaded, state) {
  if (loaded.values === "Tensor") return `${loaded.inner}.load_state_dict(${state})`;
  return `from ${API} import StateDictOptions, set_model_state_dict\n\n`
    + "whole = StateDictOptions(full_state_dict=True)\n"
    + `set_model_state_dict(${loaded.inner}, ${state}, options=whole)`;
}

function programs(saved, loaded, strict) {
  const shards = saved.values === "DTensor", into = loaded.values === "DTensor";
  const file = shards ? 'f"net{rank}.pt"' : '"net.pt"', state = "net.state_dict()";
  const once = (what, where) => `if rank == 0:\n    torch.save(${what}, ${where})`;
  const plain = !shards ? once(`${saved.inner}.state_dict()`, '"net.pt"')
    : `from ${API} import StateDictOptions, get_model_state_dict\n\n`
      + "whole = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
      + `state = get_model_state_dict(${saved.inner}, options=whole)\n${once("state", '"net.pt"')}`;
  const read = shards ? `torch.load(${file})` : PLAIN;
  const lines = [`state = ${read}`];
  if (saved.prefix) {
    lines.unshift(`from torch.nn.modules.utils import ${CONSUME}\n`);
    lines.push(`${CONSUME}(state, "${saved.prefix}")`);
  }
  if (shards && !into)
    lines.push("state = {key: part.full_tensor() for key, part in state.items()}");
  lines.push(into && !shards ? fill(loaded, "state") : `${loaded.inner}.load_state_dict(state)`);
  return {
    save: shards ? `torch.save(${state}, ${file})` : once(state, file),
    load: `net.load_state_dict(${read}${strict ? "" : ", strict=False"})`,
    save_plain: plain, load_plain: fill(loaded, PLAIN),
    repair: lines.join("\n"),
  };
}

export function compute({ saved, loaded, strict, repaired }) {
  check(saved);
  check(loaded);
  const writer = describe(saved), reader = describe(loaded);
  const first = answer(writer, reader, strict), mended = repaired && !first.num;
  const found = mended ? { raises: false, num: Object.keys(SHAPES).length, text: MATCHED } : first;
  const values = { Tensor: "", DTensor: " (DTensors)" };
  const ending = mended ? "Once repaired, it loads" : found.raises ? "torch raises an error" : found.num ? "It loads"
    : "No error, and nothing is loaded: the weights stay as they were";
  return {
    saved: writer, loaded: reader, ...found, repaired: mended, programs: programs(writer, reader, strict),
    summary: `Saved from ${writer.call}: keys like ${writer.keys[0]}${values[writer.values]}. `
      + `${reader.call} wants keys like ${reader.keys[0]}${values[reader.values]}. ${ending}.`,
  };
}

const choices = [["", "nothing"], ["DDP", "DDP"], ["compile", "torch.compile"],
  ["DataParallel", "DataParallel"], ["FSDP2", "FSDP2 (fully_shard)"]];

const slots = (side, who) => ["wraps in", "then in", "at last in"].map((words, i) => ({
  label: `${who} ${words}`, kind: "choice", options: (s) => choices.filter(([name]) => name !== "FSDP2" || !s[side].slice(0, i).some((one) => one.startsWith("D"))),
  get: (s) => s[side][i] ?? "", show: (s) => s[side].length >= i,
  set: (name, s) => ({ repaired: false,
    [side]: [...s[side].slice(0, i), ...(name ? [name] : []), ...s[side].slice(i + 1)] }),
}));

const fields = [
  ...slots("saved", "The writer"), ...slots("loaded", "The reader"),
  { name: "strict", label: "strict (of load_state_dict)", kind: "flag",
    show: (s, f) => !s.strict || f.saved.prefix !== f.loaded.prefix },
  { name: "repaired", label: "repair the file before it is loaded", kind: "flag",
    show: (s, f) => s.repaired || f.num === 0 },
];

// Tell why torch would refuse one more wrapper, or return "".
const refusal = (order, name) => {
  try {
    return check(putOn(order, name)) ?? "";
  } catch (reason) {
    return reason.message;
  }
};

const LINES = { DataParallel: ["Data-", "Parallel"] }; // of a name that is too long for its button
const TITLES = { saved: "The model that saves", loaded: "The model that loads" };
const KINDS = { Tensor: "whole tensors", DTensor: "parts" };
const WHO = { saved: "The writer", loaded: "The reader" }, CHAR = 7.25, KEY = 21, VALUE = 24;
const START = { "text-anchor": "start" }, END = { "text-anchor": "end" }, MONO = { "font-family": "monospace", class: "x-small" };
// A wrapper belongs to no rank, so it is gray; the outer, the deeper.
const gray = (i) => `fill: color-mix(in srgb, var(--x-soft) ${[10, 22, 34, 46][i]}%, var(--x-ground))`;

// Draw a tensor: whole, or in the parts of two ranks.
const value = (x, y, kind, id) => (kind === "Tensor"
  ? rect(x, y, VALUE, 14, { class: "x-frame", rx: 1, style: gray(3), "data-id": id })
  : [0, 1].map((rank) => rect(x + 13 * rank, y, 11, 14, { class: "x-frame", rx: 1, "data-id": `${id} ${rank}`,
    style: `stroke: ${rankColor(rank)}; fill: color-mix(in srgb, ${rankColor(rank)} 50%, var(--x-ground))` })));

// Put a wrapper on. Nobody builds fully_shard(DDP(net)), though torch takes it: each of
// these brings the ranks together, so one takes the other's place.
const PARALLEL = ["DDP", "DataParallel", "FSDP2"];
const putOn = (order, name) => (PARALLEL.includes(name) && order.some((one) => PARALLEL.includes(one))
  ? order.map((one) => (PARALLEL.includes(one) ? name : one)) : [...order, name]);

// Draw the wrappers that one can put on.
function palette({ state, set, narrow }, which, at) {
  const order = state[which], wide = at.width / Object.keys(PREFIX).length;
  return Object.keys(PREFIX).map((name, i) => {
    const why = refusal(order, name), x = at.x + i * wide, lines = wide < 84 && LINES[name] || [name];
    return pressable(h("svg:g", { "aria-disabled": why ? true : null }, why && h("svg:title", {}, why),
      rect(x + 1, at.y + 20, wide - 5, at.chip, { class: why ? "x-idle" : "x-frame", "data-id": `add ${which} ${name}`,
        style: why ? "" : "fill: var(--x-shade)" }),
      lines.map((words, k) => text(x + wide / 2 - 2, at.y + 24 + at.chip / 2 - 7 * (lines.length - 1) + 14 * k, words,
        { class: why ? "x-soft" : wide < 90 ? "x-small" : "" }))),
    `add ${which} ${name}`, `${WHO[which]} wraps in ${name}`, () => set({ [which]: putOn(order, name), repaired: false }));
  });
}

// Draw a model in its wrappers. The model stays where it is, and each wrapper goes around.
function nest(view, which, at) {
  const { state, facts, set, before } = view, order = state[which], { level, most: room } = at;
  const top = at.y + 24 + at.chip + room * level, tall = 2 * level + 4, inset = 8 * MOST;
  const fresh = before && before.state[which].length < order.length; // the last one was put on just now
  const around = order.map((name, i) => {
    const out = i + 1, x = at.x + inset - 8 * out, y = top - level * out, width = at.width - 2 * inset + 16 * out;
    const shape = h("svg:g", {},
      rect(x + 1, y, width - 4, tall + level * out + 4 * out, { class: "x-frame", style: gray(i), "data-id": `${which} ${i}`,
        "data-from": fresh && i === order.length - 1 ? `add ${which} ${name}` : null }),
      text(x + 10, y + level / 2 + 5, name, START),
      text(x + width - 26, y + level / 2 + 5, PREFIX[name] || "no prefix, a part per rank", { ...END, ...(PREFIX[name] ? MONO : {}) }),
      text(x + width - 14, y + level / 2 + 5, "×", { class: "x-strong" }));
    return pressable(shape, `off ${which} ${i}`, `${WHO[which]} takes ${name} off`,
      () => set({ [which]: order.filter((_, one) => one !== i), repaired: false }));
  });
  const left = at.x + inset, right = at.x + at.width - inset;
  const hint = at.y + 24 + at.chip + (room - order.length) * level;
  const most = [at.x + 1, top - room * level, at.width - 4, tall + room * (level + 4)]; // the room for wrappers
  return [order.length < room && rect(...most, { class: "x-idle", opacity: 0.6 }),
    !order.length && text(at.x + at.width / 2, hint - level / 2 + 2, "press a wrapper: it goes around"),
    around.reverse(), rect(left + 1, top, right - left - 4, tall, { class: "x-frame", style: "fill: var(--x-ground)" }),
    text(left + 10, top + level / 2 + 6, "net", { ...START, class: "x-strong" }),
    value(left + 10, top + 1.5 * level - 5, facts[which].values, `${which} legend`),
    text(left + 40, top + 1.5 * level + 6, facts[which].values === "Tensor" ? "a tensor" : "parts: rank 0, 1", START),
    Object.keys(SHAPES).map((key, row) => [
      text(right - VALUE - 20, top + level / 2 + 6 + level * row, key, { ...END, ...MONO }),
      value(right - VALUE - 12, top + level / 2 - 5 + level * row, facts[which].values, `${which} in ${row}`)])];
}

// Draw a side's key, syllable by syllable, with its value. At the left side, x is where it
// ends. What the other side lacks is marked; a repair takes off all that wrappers added.
function line({ state, facts, asking, before }, which, row, x, y, flip, far) {
  const order = state[which].filter((name) => PREFIX[name]), other = state[which === "saved" ? "loaded" : "saved"].filter((name) => PREFIX[name]);
  const same = order.findIndex((name, i) => PREFIX[name] !== PREFIX[other[i]]), common = same < 0 ? order.length : same;
  const cut = facts.repaired && !asking, key = Object.keys(SHAPES)[row], wide = (words) => CHAR * words.length + 5;
  const parts = [...order.map((name, i) => [PREFIX[name], i]).reverse(), [key, -1]];
  const kept = cut ? parts.slice(-1) : parts, size = (list) => list.reduce((sum, [words]) => sum + wide(words), 0);
  const apart = facts.saved.values !== facts.loaded.values, mixed = apart && same < 0 && !other[order.length] && !asking && !cut;
  const kind = cut && apart ? "Tensor" : facts[which].values;
  const fresh = before && before.state[which].length < state[which].length && state[which].at(-1);
  const draw = (list, left, gone) => list.map(([words, i]) => {
    const here = left, wrong = !asking && !gone && i >= common, id = `${which} ${row} ${i}`;
    left += wide(words);
    return h("svg:g", { "data-id": id,
      "data-from": fresh && PREFIX[fresh] && i === order.length - 1 ? `add ${which} ${fresh}` : null },
    rect(here, y, wide(words) - 1, KEY, { rx: 2, class: wrong ? "x-wrong" : gone ? "x-idle" : "x-frame",
      style: wrong || gone ? "" : i < 0 ? "fill: var(--x-ground)" : gray(state[which].lastIndexOf(order[i])) }),
    text(here + 2, y + 15, words, { ...START, ...MONO, class: `x-small${wrong ? " x-on-wrong" : gone ? " x-soft" : ""}` }),
    (gone || wrong && which === "saved") && h("svg:path", { d: `M${here + 1} ${y + KEY / 2}h${wide(words) - 3}`, class: "x-arrow",
      style: wrong ? "stroke: #1b1b1b; stroke-width: 1" : "" }));
  });
  const begin = flip ? x + VALUE + 7 : x - VALUE - 7 - size(kept);
  const box = flip ? x : x - VALUE, gone = parts.slice(0, -1);
  return [mixed && rect(box - 3, y, VALUE + 6, KEY, { class: "x-wrong", rx: 2 }), value(box, y + 4, kind, `${which} value ${row}`),
    draw(kept, begin), cut && draw(gone, far < x ? far : far - size(gone), true)];
}

// Draw what the file has and what the model wants, and whether they agree.
function keys(view, at) {
  const { facts, set, width, narrow, asking } = view, works = facts.num > 0, cut = facts.repaired && !asking;
  const differ = !asking && !cut && facts.saved.prefix !== facts.loaded.prefix, middle = width / 2;
  const mixed = !asking && !cut && !differ && facts.saved.values !== facts.loaded.values;
  const [has, wants] = differ ? [", unexpected", ", missing"] : mixed ? [facts.saved, facts.loaded].map(({ values }) => ` ${KINDS[values]}`) : ["", ""];
  const heads = [["saved", `the file has${has}:`], ["loaded", `the model wants${wants}:`]];
  const agree = cut || facts.saved.prefix === facts.loaded.prefix && facts.saved.values === facts.loaded.values;
  const rows = Object.keys(SHAPES).map((_, row) => row);
  const button = !asking && (cut || !works) && pressable(h("svg:g", {},
    rect(at.button - 75, at.press, 150, 26, { class: "x-frame", style: "fill: var(--x-shade)", rx: 13 }),
    text(at.button, at.press + 18, cut ? "undo the repair" : "✂ repair the file")),
  "repair", cut ? "Undo the repair" : "Repair the file", () => set({ repaired: !cut }));
  const sign = (x, y) => text(x, y, asking ? "?" : agree ? "=" : "≠", { class: "x-strong", "font-size": 18 });
  return [heads.map(([which, words], i) => {
    const flip = narrow || i > 0, far = flip ? width - 2 : 2, x = narrow ? 3 : middle + (i ? 20 : -20), y = at.keys[i];
    return [text(x, y + 12, words, { ...(flip ? START : END), class: has ? "x-strong" : "" }),
      cut && facts[which].prefix && text(far, y + 12, i ? "left outside" : "taken off", { ...(far < x ? START : END) }),
      rows.map((row) => line(view, which, row, x, y + (narrow ? 17 : 20) + at.pitch * row, flip, far))];
  }), narrow ? sign(20, at.press + 19) : rows.map((row) => sign(middle, at.keys[0] + 37 + at.pitch * row)), button];
}

// What torch says, in a box that is as high as its longest error, or on a phone grows with
// it. What the drawing marks in a key is marked here too.
function torch({ facts, asking }) {
  const lost = !facts.raises && !facts.num, shards = facts.saved.values === "DTensor" && !facts.repaired;
  if (asking) return [];
  const words = facts.repaired ? "Torch's answer, now that the file is repaired:" : facts.raises ? "Torch's error:"
    : lost ? "Torch's answer. No tensor was loaded, and this line is all the warning: strict=False repaired nothing."
    : shards ? "Torch's answer, if as many ranks load as saved: each rank's file has only its part." : "Torch's answer:";
  return [h("p.x-tell", {}, words),
    h("pre.x-report", { tabindex: 0, "aria-label": "What torch says" }, marked(facts))];
}

// Mark the keys of an error that one side lacks.
function marked({ text, raises, repaired, saved, loaded }) {
  if (!raises || repaired || saved.prefix === loaded.prefix) return text;
  return text.split(/("[^"]+\.[^"]+")/).map((words, i) => (i % 2 ? h("mark", {}, words) : words));
}

function draw(view) {
  const { state, facts, width, narrow } = view, { programs: lines } = facts, works = facts.num > 0 && !facts.repaired;
  const chip = 32, level = narrow ? 20 : 26, each = narrow ? width : (width - 34) / 2;
  // On a phone there is room for the wrappers that are on, and for a first one.
  const most = { saved: MOST, loaded: MOST };
  if (narrow) for (const which of ["saved", "loaded"]) most[which] = Math.max(1, state[which].length);
  const [first, second] = ["saved", "loaded"].map((which) => 28 + chip + (most[which] + 2) * level + 4 * most[which]);
  const side = narrow ? first + second + 8 : first, below = narrow ? 158 : 112;
  const at = { pitch: narrow ? 22 : 27, press: side + (narrow ? 66 : 84), button: narrow ? width - 80 : width / 2,
    keys: narrow ? [side + 3, side + 94] : [side + 6, side + 6] };
  const sides = [["saved", 0, 0], ["loaded", narrow ? 0 : each + 34, narrow ? first + 6 : 0]].map(([which, x, y]) => {
    const place = { x, y, width: each, chip, level, most: most[which] };
    return [text(x + 1, y + 13, TITLES[which], { ...START, class: "x-strong" }), palette(view, which, place), nest(view, which, place)];
  });
  const fold = (words, key, ...parts) =>
    h("details.x-fold", {}, h("summary", { "data-key": `fold ${key}` }, words), parts);
  const drawing = picture(width, side + below + 2, "", sides, keys(view, at),
    !narrow && h("svg:path", { class: "x-arrow", d: `M${each + 2} ${side - 42}h28m-7 -5l7 5l-7 5` }));
  return {
    picture: narrow ? drawing : [drawing, ...torch(view)],
    after: narrow ? torch(view) : [],
    below: [
      h("p", {}, "Press a wrapper to put it on, or one that is on to take it off; of DDP, DataParallel and FSDP2, one takes the other's place. Each puts its own part before every key. "
        + "FSDP2 adds no name: it cuts each tensor, and rank 0's and rank 1's parts have their ranks' colors."),
      works ? h("p", {}, "It loads, since both sides agree. The next reader may not: save plainly.")
        : fold("The repair, for a file that exists", "repair", code(lines.repair, "repair")),
      fold(`${works ? "Plainly" : "Better"}: save what is inside, under plain names`, "plain",
        code(lines.save_plain, "plain"),
        h("p", {}, facts.loaded.prefix ? "and load it inside:" : "and load it:"), code(lines.load_plain, "inside")),
      fold("What the two run now", "run", h("p", {}, "The writer runs"), code(lines.save, "save"),
        h("p", {}, "and the reader"), code(lines.load, "load")),
    ],
  };
}

const ask = {
  question: ({ state, facts }) => `A file is saved from ${facts.saved.call}, and ${facts.loaded.call} loads it`
    + `${state.strict ? "" : " with strict=False"}. What does torch do?`,
  options: ["It loads the weights.", "It raises an error.", "It loads nothing, and raises nothing."],
  apart: ["repaired"],
  answer({ state }) {
    const { raises, num } = compute({ ...state, repaired: false });
    return raises ? 1 : num > 0 ? 0 : 2;
  },
  because({ facts: { saved, loaded } }) {
    const [has, wants] = [saved, loaded].map(({ keys }) => keys[0]);
    if (has !== wants) return `The file has ${has}, and the reader wants ${wants}.`;
    if (saved.values === loaded.values) return `Both say ${has}.`;
    return `Both say ${has}, but the file has ${KINDS[saved.values]} and the reader wants ${KINDS[loaded.values]}.`;
  },
};

export default explorable({
  name: "state_dicts", title: "A wrapper puts its name before every key",
  label: "Wrappers of the model that is saved and of the one that loads", fields, compute, draw, ask,
});
