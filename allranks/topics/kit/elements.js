// What drawings are made of: elements of HTML and SVG, tables, lines of code, amounts.
// Nothing here may touch the document on import, because Node runs it too.

import { HUES } from "../../base/svg.py";
import { UNITS } from "../../base/units.py";

const SVG = "http://www.w3.org/2000/svg";

// Make an element: h("p.note", { id: "a" }, "text"), or one of SVG: h("svg:rect").
export function h(what, attributes = {}, ...children) {
  const [name, ...classes] = what.split(".");
  const element = name.startsWith("svg:")
    ? document.createElementNS(SVG, name.slice(4))
    : document.createElement(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value != null)
      element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

// Make an SVG picture of width x height units; a screen reader says its `label`.
// Without a label it is a group, and the buttons in it have names of their own.
export function picture(width, height, label, ...parts) {
  const role = label ? { role: "img", "aria-label": label } : { role: "group" };
  const box = { viewBox: `0 0 ${width} ${height}`, width, ...role };
  return h("div.x-scroll", {}, h("svg:svg", box, ...parts));
}

export const rect = (x, y, width, height, attributes = {}) =>
  h("svg:rect", { x, y, width, height, rx: 3, ...attributes });

export const text = (x, y, words, attributes = {}) =>
  h("svg:text", { x, y, "text-anchor": "middle", ...attributes }, String(words));

// Return the page's color of a rank, or the picture's where no page sets one, as in
// JupyterLab.
export const rankColor = (rank) => `var(--rank-${rank % HUES.length}, ${HUES[rank % HUES.length]})`;

// Make a hatch of what travels, in a hue: a pattern, and what to fill or stroke with it.
let hatches = 0;
export function hatch(hue) {
  const id = `hatch${hatches++}`;
  const pattern = h("svg:pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    h("svg:path", { d: "M0 3H6", style: `stroke: ${hue}`, "stroke-width": 2.5 }));
  return { pattern, paint: `url(#${id})` };
}

// Make a box of what travels: x, y, width, height as for rect.
export function hatched(x, y, width, height, hue, attributes = {}) {
  const { pattern, paint } = hatch(hue);
  return h("svg:g", {}, pattern, rect(x, y, width, height, { ...attributes, fill: paint, style: `stroke: ${hue}` }));
}

// Make any element of a picture a button for mouse, Enter and Space. By its `key`, the
// focus finds it again after a redraw.
export function pressable(element, key, label, press, pressed = null) {
  for (const [name, value] of Object.entries({
    role: "button", tabindex: 0, "data-key": key, "aria-label": label,
    "aria-pressed": pressed,
  })) if (value !== null) element.setAttribute(name, value);
  element.classList.add("x-press");
  element.addEventListener("click", press);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press(event);
  });
  return element;
}

// A table is folded, because the drawing says it first. Its caption is what one presses.
export const table = (caption, head, rows) => h("details.x-fold", {},
  h("summary", { "data-key": `fold ${caption.replace(/\d/g, "").slice(0, 12)}` }, caption),
  h("div.x-scroll", {}, h("table.x-table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, head.map((cell) => cell === "" ? h("td") : h("th", { scope: "col" }, cell)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) =>
      i ? h("td", {}, cell) : h("th", { scope: "row" }, cell))))))));

// Make a line of code with a button that copies it; it may be shown in parts.
export function code(line, key, shown = line) {
  const done = h("span", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(line);
      done.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(pre); // no clipboard here: select it instead
      done.textContent = "selected: press Ctrl+C";
    }
  };
  const pre = h("code", {}, shown);
  return h("div.x-code", {}, pre, h("button", {
    type: "button", "data-key": key, "aria-label": `Copy ${line}`, onclick: copy,
  }, "Copy"), done);
}

// Refuse what is not a whole number, in the words of allranks.base.units.whole.
export function whole(name, value, low) {
  if (!Number.isInteger(value)) throw Error(`${name} must be a whole number, not ${value}`);
  if (value < low) throw Error(`${name} must be at least ${low}, not ${value}`);
  return value;
}

// Write three digits and a unit, "B" or "s", as allranks/base/units.py does.
export function amount(value, unit) {
  const [scale, name] = UNITS[unit].findLast(([least]) => value >= least) ?? UNITS[unit][0];
  const number = value / scale, places = number >= 100 ? 1 : number >= 10 ? 10 : 100;
  return `${Math.floor(number * places + 0.5) / places} ${name}`;
}

// Return the smallest of 1, 2, 5, 10, 20, ... that is not below a value: an axis that ends
// there changes in steps, so a small change of the value is seen as one. FINE steps leave
// less of the width empty.
export const FINE = [1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 10];
export function nice(value, steps = [1, 2, 5, 10]) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return steps.find((step) => step * power >= value * (1 - 1e-9)) * power;
}
