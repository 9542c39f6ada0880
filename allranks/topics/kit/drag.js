// Numbers that one can drag: on the drawing, on a slider, in the sentence below. (d3-drag
// and d3-scale would bring 60 kB with what they import, for what these lines do.)
import { h } from "./elements.js";

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Map a field's range to places from 0 to 1, by ratios if `log`; values that come back
// are whole if the field's are, or have two digits.
export function range01({ kind, range: [low, high, log] }) {
  const f = log ? Math.log : (x) => x, a = f(low), b = f(high);
  return {
    place: (value) => clamp((f(clamp(value, low, high)) - a) / (b - a), 0, 1),
    value(place) {
      const raw = a + clamp(place, 0, 1) * (b - a), value = log ? Math.exp(raw) : raw;
      if (kind === "whole" && (!log || value < 10)) return Math.round(value);
      return Number(value.toPrecision(2));
    },
  };
}

// Return the next value above or below one: 1 more if whole and small, else 5 % of the range.
export function beside(field, value, by) {
  const { low, high } = { low: field.range[0], high: field.range[1] }, map = range01(field);
  const one = field.kind === "whole" ? value + by : NaN;
  const far = field.range[2] || high - low > 100 || field.kind !== "whole";
  const next = far && !(value + by <= 16 && field.kind === "whole")
    ? map.value(map.place(value) + by / 20) : one;
  return clamp(next === value ? value + by : next, low, high);
}

// Make an element a slider for pointer and keys. By its `key`, the focus finds it again
// after a redraw. move(by, start) returns the value `by` pixels from where the drag began
// at value `start`, and step(by) the value one or ten steps on; set(value) gets them.
export function draggable(element, key, { label, now, low, high, said, axis = "x", move, step, set }) {
  for (const [name, value] of Object.entries({
    role: "slider", tabindex: 0, "data-key": key, "aria-label": label, "aria-valuenow": now,
    "aria-valuemin": low, "aria-valuemax": high, "aria-valuetext": said ?? `${now}`,
    "aria-orientation": axis === "y" ? "vertical" : "horizontal",
  })) element.setAttribute(name, value);
  element.classList.add("x-drag", `x-drag-${axis}`);
  const current = () => Number(element.getAttribute("aria-valuenow"));
  element.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10,
      PageDown: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    set(Math.abs(by) === Infinity ? (by < 0 ? low : high) : clamp(step(by), low, high));
  });
  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault(); // no text is selected
    element.focus({ preventScroll: true });
    const from = axis === "y" ? event.clientY : event.clientX, start = current();
    let last = start;
    // The window listens, because a redraw replaces the element under the finger.
    const go = (moved) => {
      if (moved.pointerId !== event.pointerId) return;
      const by = axis === "y" ? from - moved.clientY : moved.clientX - from;
      const value = clamp(move(by, start), low, high);
      if (value !== last) set(last = value);
    };
    const end = (ended) => {
      if (ended.pointerId !== event.pointerId) return;
      for (const [name, listen] of listeners) window.removeEventListener(name, listen);
    };
    const listeners = [["pointermove", go], ["pointerup", end], ["pointercancel", end]];
    for (const [name, listen] of listeners) window.addEventListener(name, listen);
  });
  return element;
}

const POINT = /^[,.;]*/;

// Make the sentence "{world_size} ranks with ...": each name in braces becomes a number to
// drag. Return it with what brings it up to date.
export function sentence(words, fields, apply) {
  let now = []; // state and facts
  const parts = words.split(/\{(\w+)\}/).map((part, i) => {
    if (i % 2 === 0) return { element: part };
    const field = fields.find(({ name }) => name === part), map = range01(field);
    const [low, high] = field.range, across = clamp((high - low) * 12, 120, 300);
    const element = draggable(h("span.x-say"), `say ${part}`, {
      label: `${field.label}, in the sentence`, now: low, low, high,
      move: (by, start) => map.value(map.place(start) + by / across),
      step: (by) => beside(field, Number(element.getAttribute("aria-valuenow")), by),
      set: (value) => apply(field.set ? () => field.set(value, ...now) : { [part]: value }),
    });
    return { element, field };
  });
  return {
    element: h("p.x-sentence", {}, parts.map(({ element, field }, i) => {
      if (!field) return i ? element.replace(POINT, "") : element;
      const [point] = POINT.exec(parts[i + 1].element); // it begins no line
      return point ? h("span", { style: "white-space: nowrap" }, element, point) : element;
    })),
    update(state, facts) {
      now = [state, facts];
      for (const { element, field } of parts) if (field) {
        const value = field.get ? field.get(state, facts) : state[field.name];
        element.textContent = value >= 1e4 ? value.toLocaleString("en") : value ?? "–";
        element.setAttribute("aria-valuenow", value ?? 0);
        element.setAttribute("aria-valuetext", `${value ?? "none"}`);
      }
    },
  };
}
