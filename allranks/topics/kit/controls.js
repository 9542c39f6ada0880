// The controls of an explorable: sliders, fields, steps. They know the state only
// through `bench`, which the shell makes: { id, label, el, state(), facts(), apply(patch,
// input, tick), waiting }, where waiting holds what was typed and refused, by its input.
import { h, amount } from "./elements.js";
import { beside, range01 } from "./drag.js";

const TIMES = 900; // ms from one step of Play to the next

// Make the control of one field, of a kind that the shell explains.
function control(field, i, bench) {
  const { id, waiting, apply } = bench, { kind, name, min, max, step } = field;
  const attributes = { id: `${id}-${i}`, "aria-describedby": `${id}-error` };
  const one = { field };
  let options = [], words = "";
  // Rebuild the list only if it changed, so that focus and choice are kept.
  const list = (now, value) => {
    const { input } = one, typed = waiting.has(input) && options[input.selectedIndex]?.[0];
    options = typeof field.options === "function" ? field.options(now) : field.options;
    if (words !== (words = JSON.stringify(options))) input.replaceChildren(
      ...options.map(([value, words]) => h("option", { value }, words)));
    const find = (value) => options.findIndex(([one]) => one === value);
    if (find(typed) < 0) waiting.delete(input);
    input.selectedIndex = find(waiting.has(input) ? typed : value);
  };
  const read = async () => {
    const { input } = one, file = input.files[0];
    if (!file) return;
    const big = file.size > field.most;
    const data = big ? "" : await file.text();
    input.value = ""; // so that the same file can be chosen again
    apply(() => {
      if (big) throw Error(`${file.name} has ${amount(file.size, "B")}: at most ${amount(field.most, "B")}`);
      return field.set(data, bench.state(), bench.facts());
    }, input);
  };
  const patch = (typed) => field.set ? field.set(typed, bench.state(), bench.facts()) : { [name]: typed };
  const change = () => apply(() => {
    const { input } = one;
    const typed = kind === "flag" ? input.checked
      : ["whole", "number", "step"].includes(kind)
        ? (input.value.trim() === "" ? NaN : Number(input.value))
        : kind === "choice" ? options[input.selectedIndex][0] : input.value;
    if (Number.isNaN(typed))
      throw Error(`${field.label}: type a ${kind === "number" ? "" : "whole "}number`);
    return patch(typed);
  }, one.input);
  let shown;
  if (kind === "choice")
    shown = one.input = h("select", { ...attributes, onchange: change });
  else if (kind === "file")
    shown = one.input = h("input", { ...attributes, type: "file", accept: field.accept, onchange: read });
  else if (kind === "step") {
    one.input = h("input", { ...attributes, type: "range", min: 0, step: 1, oninput: change });
    shown = h("div.x-steps", {}, one.input, stepButtons(field, one.input, bench));
  } else
    shown = one.input = h("input", {
      ...attributes, min, max, step,
      type: { flag: "checkbox", whole: "number", number: "number" }[kind] ?? "text",
      ...(kind === "number" && { step: "any" }),
      [kind === "flag" ? "onchange" : "oninput"]: change,
      autocomplete: "off", spellcheck: "false",
    });
  if (field.knob && field.range) one.slider = slider(field, one, bench, patch);
  one.box = h(`div.x-field.x-${kind}${field.film ? ".x-film" : ""}${field.late ? ".x-late" : ""}`, {},
    h("label", { for: `${id}-${i}` }, field.label), one.slider, shown);
  // Show a value, unless what the reader typed was refused and waits for another change.
  one.show = (now, facts) => {
    const { input, box, slider } = one, value = field.get ? field.get(now, facts) : now[name];
    box.hidden = field.show ? !field.show(now, facts) : false;
    if (slider && value != null) slider.show(value);
    const refused = waiting.get(input), worth = JSON.stringify(value);
    if (refused) refused.worth ??= worth; // if it changes, it replaces what was typed
    if (box.hidden || worth !== refused?.worth) waiting.delete(input);
    if (kind === "choice") list(now, value);
    else if (waiting.has(input)) return; // what was typed stays
    else if (kind === "flag") input.checked = value;
    else if (kind !== "file") {
      if (kind === "step") {
        input.max = field.max(facts);
        const stop = field.stop?.(facts) ?? null;
        if (stop === null) delete input.dataset.stop;
        else input.dataset.stop = stop;
        if (field.said) input.setAttribute("aria-valuetext", field.said(now, facts));
      }
      // Leave "08" or "2, " alone while it is being typed and means the same.
      const same = kind === "text" ? input.value === value
        : input.value !== "" && Number(input.value) === value;
      if (!same && !(input === document.activeElement && kind === "text"))
        input.value = value ?? "";
    }
    if (kind === "step")
      [value === 0, value === Number(input.max)].forEach((end, at) =>
        box.querySelectorAll("button")[at].setAttribute("aria-disabled", end));
  };
  return one;
}

// The slider of a knob stands beside the field in which one types.
function slider(field, one, { apply }, patch) {
  const map = range01(field), last = 1000;
  let value = 0;
  const element = h("input.x-slider", {
    type: "range", min: 0, max: last, "aria-label": `${field.label}: slider`,
    oninput: () => {
      const next = map.value(element.value / last);
      if (next !== value) apply(() => patch(next), one.input);
    },
    onkeydown: (event) => { // one at a time, where a thousandth would change nothing
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      apply(() => patch(beside(field, value, by)), one.input);
    },
  });
  element.show = (now) => {
    value = now;
    element.value = Math.round(map.place(now) * last);
    element.setAttribute("aria-valuetext", field.said ? field.said(now) : `${now}`);
  };
  return element;
}

function stepButtons(field, input, bench) {
  let timer = null;
  const go = (by, tick) => {
    if (!tick) bench.pause();
    const last = Number(input.max), now = Number(input.value) + by;
    if (now >= 0 && now <= last) bench.apply({ [field.name]: now }, null, tick);
    return now < last && now !== Number(input.dataset.stop ?? NaN); // Play goes no further
  };
  bench.pause = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const start = () => {
    if (Number(input.value) >= Number(input.max)) bench.apply({ [field.name]: 0 });
    timer = setInterval(() => bench.el.isConnected && go(1, true) || bench.pause(), TIMES);
    play.textContent = "Pause";
  };
  const button = (words, press) => h("button", { type: "button", onclick: press }, words);
  const play = button("Play", () => (timer ? bench.pause() : start()));
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  return [button("Back", () => go(-1)), button("Next", () => go(1)), still ? null : play];
}

export const controls = (fields, bench) => fields.map((field, i) => control(field, i, bench));
