// What is seen between two drawings: parts glide from where the part with their data-id,
// or with that in their data-from if it was there, was; and what a reader had opened, scrolled or focused
// stays so.

const DURATION = 300; // ms

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const folded = (stage) => [...stage.querySelectorAll("details")].map((one) =>
  [one.firstChild.dataset.key ?? one.firstChild.textContent, one]);
const scrolled = (stage) => [...stage.querySelectorAll(".x-scroll")];

// Replace what `stage` shows by what `make` returns.
const drawn = new WeakMap(); // when each stage was drawn last
const opened = new WeakMap(); // of each stage: what is open, by its key
export function redraw(stage, make) {
  const now = performance.now(), glide = !still() && now - (drawn.get(stage) ?? 0) > 150;
  drawn.set(stage, now);
  const boxes = new Map();
  if (glide && stage.isConnected) for (const part of stage.querySelectorAll("[data-id]"))
    boxes.set(part.dataset.id, part.getBBox());
  const width = stage.querySelector("svg")?.viewBox.baseVal.width;
  const key = stage.contains(document.activeElement) && document.activeElement.dataset.key;
  const open = opened.get(stage) ?? new Map();
  opened.set(stage, open);
  for (const [name, one] of folded(stage)) open.set(name, one.open);
  const places = scrolled(stage).map((one) => [one.scrollLeft, one.scrollTop]);
  stage.replaceChildren(...[make()].flat(9).filter((part) => part != null && part !== false));
  for (const [name, one] of folded(stage)) one.open = open.get(name) ?? one.open;
  scrolled(stage).forEach((one, i) => {
    if (places[i]) [one.scrollLeft, one.scrollTop] = places[i];
    if (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight) one.tabIndex = 0;
  });
  if (key) stage.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  if (boxes.size && width === stage.querySelector("svg")?.viewBox.baseVal.width) move(stage, boxes);
}

function move(stage, boxes) {
  for (const part of stage.querySelectorAll("[data-id]")) {
    const old = boxes.get(part.dataset.from) ?? boxes.get(part.dataset.id), timing = { duration: DURATION, easing: "ease-out" };
    if (!old) {
      part.animate([{ opacity: 0 }, {}], timing);
      continue;
    }
    const box = part.getBBox(), [x, y] = [old.x - box.x, old.y - box.y];
    const stretch = part.localName === "rect" && box.width && box.height;
    const [w, h] = stretch ? [old.width / box.width, old.height / box.height] : [1, 1];
    if (Math.abs(x) + Math.abs(y) + Math.abs(w - 1) + Math.abs(h - 1) < 0.01) continue;
    part.animate([{ transform: `translate(${x}px, ${y}px) scale(${w}, ${h})` },
      { transform: "none" }], timing);
  }
}
