// State-dict keys under wrappers. Mirrors sums.py.

import { h, picture, rect, text, rankColor, pressable, code, explorable } from "../kit/kit.js";
import { SHAPES, PREFIX, CALLS, CLASSES, MOST, API, CONSUME, PLAIN, REFUSED } from "./sums.py";

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
    return { raises: false, num: 2, text: "<All keys matched successfully>" };
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

export function compute({ saved, loaded, strict }) {
  check(saved);
  check(loaded);
  const writer = describe(saved), reader = describe(loaded);
  const found = answer(writer, reader, strict);
  const values = { Tensor: "whole tensors", DTensor: "DTensors, each rank's part" };
  const ending = found.raises ? "torch raises an error" : found.num ? "It loads"
    : "No error, and nothing is loaded: the weights stay as they were";
  return {
    saved: writer, loaded: reader, ...found, programs: programs(writer, reader, strict),
    summary: `Saved from ${writer.call}: keys like ${writer.keys[0]}, ${values[writer.values]}. `
      + `${reader.call} wants keys like ${reader.keys[0]}, ${values[reader.values]}. ${ending}.`,
  };
}

const choices = [["", "nothing"], ["DDP", "DDP"], ["compile", "torch.compile"],
  ["DataParallel", "DataParallel"], ["FSDP2", "FSDP2 (fully_shard)"]];

const slots = (side, who) => ["wraps in", "then in", "at last in"].map((words, i) => ({
  label: `${who} ${words}`, kind: "choice", options: choices,
  get: (s) => s[side][i] ?? "", show: (s) => s[side].length >= i,
  set: (name, s) => ({ [side]: [...s[side].slice(0, i), ...(name ? [name] : []), ...s[side].slice(i + 1)] }),
}));

const fields = [
  ...slots("saved", "The writer"), ...slots("loaded", "The reader"),
  { name: "strict", label: "strict (of load_state_dict)", kind: "flag",
    show: (s, f) => !s.strict || f.saved.prefix !== f.loaded.prefix },
];

const LINES = { DataParallel: ["Data-", "Parallel"] }; // of a name that is too long for its button

// Tell why torch would refuse one more wrapper, or return "".
const refusal = (order, name) => {
  try {
    return check([...order, name]) ?? "";
  } catch (reason) {
    return reason.message;
  }
};

// Draw one side: buttons that wrap, the wrappers around each other, and the keys. The
// colour of a wrapper is that of the part that it puts before each key.
function side(which, title, order, facts, set, { x, y, width, level, flip }) {
  const hue = (i) => `--hue: ${rankColor(i + 1)}`; // i: from the inside out; the model is 0
  const add = Object.keys(PREFIX).map((name, i, all) => {
    const wide = width / all.length, why = refusal(order, name), left = x + i * wide;
    return pressable(h("svg:g", { "aria-disabled": why ? true : null, opacity: why ? 0.45 : null },
      rect(left + 1, y + 18, wide - 4, 44, { class: "x-frame", style: "fill: var(--x-shade)" }),
      (wide < 110 && LINES[name] || [name]).map((words, i, all) => text(left + wide / 2, y + 53 - 8 * all.length + 16 * i,
        i ? words : `+ ${words}`, { class: "x-small" }))),
    `add ${which} ${name}`, `${title} wraps in ${name}`, () => set({ [which]: [...order, name] }));
  });
  const all = ["net", ...order], top = y + 70, deep = 4 * level + 12, num = all.length;
  const nest = all.map((name, i) => {
    const out = num - 1 - i, at = top + out * level, height = deep - out * level - 4 * out - 2;
    const shape = [
      rect(x + 1 + 7 * out, at, width - 4 - 14 * out, height, { class: "x-box", "data-id": `${which} ${i}`,
        style: `${hue(i - 1)}; fill: color-mix(in srgb, var(--hue) 16%, var(--x-ground))` }),
      text(x + 10 + 7 * out, at + level / 2 + 6, i ? name : "the model", { "text-anchor": "start" }),
      text(x + width - 12 - 7 * out, at + level / 2 + 6, i ? PREFIX[name] || "no prefix" : "hidden.weight",
        { "text-anchor": "end", "font-family": "monospace", class: "x-small" }),
    ];
    return i ? pressable(h("svg:g", {}, shape), `off ${which} ${i}`, `${title} takes ${name} off`,
      () => set({ [which]: order.filter((_, at) => at !== i - 1) })) : shape;
  }).reverse();
  const keys = Object.keys(SHAPES).map((key, row) => {
    const at = top + deep + 20 + row * 26, parts = [...order].map((name, i) => [PREFIX[name], i]).reverse()
      .filter(([words]) => words);
    let left = x + (flip ? width - 7.3 * facts.keys[row].length : 4);
    return [...parts, [key, -1]].map(([words, i]) => {
      const here = left;
      left += 7.3 * words.length;
      return text(here, at, words, { "text-anchor": "start", "font-family": "monospace", class: "x-small",
        "data-id": `${which} ${row} ${i}`, style: `fill: color-mix(in srgb, ${rankColor(i + 1)} 55%, var(--x-ink))` });
    });
  });
  return { parts: [text(x, y + 12, title, { "text-anchor": "start", class: "x-strong" }), add, nest, keys],
    height: 66 + deep + 16 + 26 * keys.length, keys: top + deep + 16 };
}

function draw({ state, facts, set, width, narrow }) {
  const { saved, loaded, programs: lines } = facts, same = saved.prefix === loaded.prefix;
  const works = facts.num > 0, shards = saved.values === "DTensor";
  const level = narrow ? 20 : 36, each = narrow ? width : (width - 90) / 2;
  const writer = side("saved", "The writer", state.saved, saved, set, { x: 0, y: 0, width: each, level });
  const reader = side("loaded", "The reader", state.loaded, loaded, set,
    { x: narrow ? 0 : each + 90, y: narrow ? writer.height + 28 : 0, width: each, level });
  const link = { class: "x-answer x-strong", style: `fill: ${same ? "var(--x-ink)" : "var(--x-bad)"}` };
  const dash = { class: "x-answer x-frame", "stroke-dasharray": same ? null : "3 3",
    style: same ? "" : "stroke: var(--x-bad)" };
  const between = narrow
    ? text(4, writer.height + 14, same ? "= the keys are equal" : "≠ unexpected above, missing below",
      { ...link, "text-anchor": "start" })
    : saved.keys.map((_, row) => [
      h("svg:path", { ...dash, d: `M${each + 6} ${writer.keys + 26 * row}h78` }),
      row === 0 && text(each + 45, writer.keys - 8, same ? "equal" : "differ", { ...link, class: `${link.class} x-small` }),
    ]);
  const fold = (words, key, ...parts) =>
    h("details.x-fold", {}, h("summary", { "data-key": `fold ${key}` }, words), parts);
  const wrong = narrow || same ? [] : [["unexpected", 4, "start"], ["missing", width - 4, "end"]].map(([words, x, anchor]) =>
    text(x, writer.height + 12, words, { ...link, class: `${link.class} x-small`, "text-anchor": anchor }));
  return {
    picture: picture(width, narrow ? writer.height * 2 + 28 : writer.height + 20, "",
      writer.parts, reader.parts, between, wrong),
    below: [
      h("p", {}, "Press a wrapper to put it on, or one that is on to take it off. Each puts its own part before every key."),
      h("div.x-answer", {}, h("p.x-tell", {}, facts.raises ? "Torch's error:" : "Torch's answer:"),
        h("pre.x-report", { tabindex: 0, "aria-label": "What torch says" }, facts.text),
        !facts.raises && !works ? h("p", {}, h("strong", {},
          "strict=False repaired nothing. No tensor was loaded, and this answer is all the warning.")) : "",
        shards ? h("p", {}, "Each rank's file has only its part: as many ranks must load as saved.") : "",
        works ? h("p", {}, "It loads, since both sides agree. The next reader may not: save plainly.") : ""),
      works ? "" : fold("The repair, for a file that exists", "repair", code(lines.repair, "repair")),
      fold(`${works ? "Plainly" : "Better"}: save what is inside, under plain names`, "plain",
        code(lines.save_plain, "plain"),
        h("p", {}, loaded.prefix ? "and load it inside:" : "and load it:"), code(lines.load_plain, "inside")),
      fold("What the two run now", "run", h("p", {}, "The writer runs"), code(lines.save, "save"),
        h("p", {}, "and the reader"), code(lines.load, "load")),
    ],
  };
}

const ask = {
  question: ({ state, facts }) => `A file is saved from ${facts.saved.call}, and ${facts.loaded.call} loads it`
    + `${state.strict ? "" : " with strict=False"}. What does torch do?`,
  options: ["It loads the weights.", "It raises an error.", "It loads nothing, and raises nothing."],
  answer: ({ facts }) => (facts.raises ? 1 : facts.num > 0 ? 0 : 2),
  because: ({ facts }) => `The file has ${facts.saved.keys[0]}, and the reader wants ${facts.loaded.keys[0]}.`,
};

export default explorable({
  name: "state_dicts", title: "A wrapper puts its name before every key",
  label: "Wrappers of the model that is saved and of the one that loads", fields, compute, draw, ask,
});
