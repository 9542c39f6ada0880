// State-dict keys under wrappers. Mirrors allranks/sums/state_dicts.py.

import { h, picture, rect, text, rankColor, code, table, explorable } from "./kit.js";

const SHAPES = { "hidden.weight": [4, 4], "head.weight": [2, 4] };
const PREFIX = { DDP: "module.", compile: "_orig_mod.", DataParallel: "module.", FSDP2: "" };
const CALLS = { compile: "torch.compile", FSDP2: "fully_shard" };
const CLASSES = { DDP: "DistributedDataParallel", compile: "OptimizedModule" };
const MOST = 3;
const API = "torch.distributed.checkpoint.state_dict";
const CONSUME = "consume_prefix_in_state_dict_if_present";
const PLAIN = 'torch.load("net.pt", map_location="cpu")';
const REFUSED = {
  DDP: "NotImplementedError: Operator c10d.broadcast_.default does not have a sharding strategy "
    + "registered.",
  FSDP2: "AssertionError: Each distinct composable distributed API can only be applied to a "
    + "module once.",
  compile: "AttributeError: 'function' object has no attribute 'state_dict'",
};

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

// Draw the wrappers around each other, and what each of them adds to a key.
function shells(title, order, side) {
  const all = ["net", ...order].reverse(), width = 296, height = 12 + 40 * all.length;
  const drawing = picture(width, height, `${title} ${side.call}: ${side.keys[0]}`,
    all.map((name, i) => {
      const y = 1 + 40 * i, adds = i === all.length - 1 ? "hidden.weight"
        : PREFIX[name] || "no prefix; DTensors";
      const hue = `--hue: ${rankColor(order.length - i)}`; // the model has one colour on both sides
      const fill = "fill: color-mix(in srgb, var(--hue) 16%, var(--x-ground))";
      return [
        rect(1 + 8 * i, y, width - 2 - 16 * i, height - y - 2 - 4 * i,
          { class: "x-box", style: `${hue}; ${fill}` }),
        text(12 + 8 * i, y + 22, name === "net" ? "the model" : name, { "text-anchor": "start" }),
        text(width - 12 - 8 * i, y + 22, adds, { "text-anchor": "end", "font-family": "monospace" }),
      ];
    }));
  return h("div", {}, h("p", {}, title, " ", h("code", {}, side.call)), drawing);
}

function draw({ state, facts }) {
  const { saved, loaded, programs: lines } = facts, same = saved.prefix === loaded.prefix;
  const works = facts.num > 0, shards = saved.values === "DTensor";
  return [
    h("div", { style: "align-items: end; display: flex; flex-wrap: wrap; gap: 0.8rem 2rem" },
      shells("Saves:", state.saved, saved), shells("Loads:", state.loaded, loaded)),
    table("The keys", ["in the file", "", "wanted"], saved.keys.map((key, i) =>
      [h("code", {}, key), same ? "equals" : "differs from", h("code", {}, loaded.keys[i])])),
    h("p", {}, "The writer runs"), code(lines.save, "save"),
    h("p", {}, "and the reader"), code(lines.load, "load"),
    h("p", {}, facts.raises ? "Torch's error:" : "Torch's answer:"),
    h("div.x-code", {}, h("code", {}, facts.text)),
    !facts.raises && !works ? h("p", {}, h("strong", {},
      "strict=False repaired nothing. No tensor was loaded, and this answer is all the warning.")) : [],
    shards ? h("p", {}, "Each rank's file has only its part: as many ranks must load as saved.") : [],
    works ? h("p", {}, "It loads, since both sides agree. The next reader may not: save plainly.")
      : [h("p", {}, "The repair, for a file that exists:"), code(lines.repair, "repair")],
    h("p", {}, `${works ? "Plainly" : "Better"}: save what is inside, under plain names,`),
    code(lines.save_plain, "plain"),
    h("p", {}, loaded.prefix ? "and load it inside:" : "and load it:"), code(lines.load_plain, "inside"),
  ];
}

export default explorable({
  label: "Wrappers of the model that is saved and of the one that loads", fields, compute, draw,
});
