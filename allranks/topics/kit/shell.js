// The shell in which every explorable lives: title, drawing, steps, the question or what
// the drawing says, sentence, knobs, and the rest folded below; and the loop
// state -> compute -> draw. It runs in
// JupyterLab (anywidget), on a static page and in node (only `compute` there).
import { h } from "./elements.js";
import { BUSY, LOST, isLost, keepModels } from "./kernel.js";
import { sentence } from "./drag.js";
import { controls } from "./controls.js";
import { redraw } from "./motion.js";
import { sharing } from "./share.js";
import { asking } from "./ask.js";

const NARROW = 560; // px: below, a drawing stacks what stands side by side above
const GESTURE = 800; // ms: changes that follow faster are one, and so is a drag
let number = 0; // makes ids unique where a page holds several explorables

// Build an explorable from these parts:
// name: of its file; title: what it is about, in a line; label: the form's name.
// fields: [{ name, label, kind, ... }], where kind is "whole", "number", "choice" (with
// options: [[value, text], ...], or a function of the state that returns them), "flag",
// "text", "file" (with set(text, state, facts); a file of more than `most` bytes is
// refused) or "step" (with max: facts => last step, and stop: facts => where Play
// stops, or null; with `film`, the drawing has its slider; with `late`, it is not there
// while a question is open). If a field is not a trait itself,
// `get` and `set` map it to the state; `show(state)` decides whether it is visible. With
// `knob` it stands below the drawing, the others under "More", and with them those that
// one can drag in the sentence; range: [low, high, log] gives a knob its slider, and lets
// the sentence use it.
// sentence: "{world_size} ranks ...", whose numbers can be dragged (see drag.js).
// ask: a question that comes before the answer (see ask.js).
// compute(state) -> facts, with facts.summary, or throws an Error with one sentence.
// draw(view) -> { picture, after, below }: what stands in the stage, what stands after the
// words about it, and what is folded: how to read the drawing, and its numbers.
// A view is { state, facts, before, set, measured, width, narrow, asking }: `before` has
// state and facts before the reader's last change (or null), for ghosts; width is the
// stage's in px, which is the width that the picture should have. Its height should not
// depend on the state, so that nothing moves under the reader's finger. `asking` says
// whether a question is open.
export function explorable({ name, title, label, fields, compute, draw, ask,
  sentence: words, live = "Run on live ranks" }) {
  return {
    render({ model, el }) {
      keepModels(model.widget_manager);
      const id = `x${number++}`;
      const names = Object.keys(model.get("initial"));
      const state = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
      const waiting = new Map(); // from a field's input to the change that was refused
      let quiet = false, facts = null, before = null, shown = null, changed = 0;
      let pressed = false, since = 0, watch = null, tallest = 0; // an answer of the kernel is awaited
      let answered = null; // when the drawing first showed what an answer shows
      const save = () => isLost(model) || model.save_changes();
      const error = h("p.x-error", { id: `${id}-error`, role: "alert" });
      const stage = h("div.x-stage"), after = h("div.x-after"), below = h("div.x-below");
      const summary = h("p.x-summary", { role: "status" });
      const bench = { id, el, waiting, apply, state, facts: () => facts, pause() {} };
      const inputs = controls(fields, bench);

      // Say why a state is refused, call the field by its visible name, and mark it.
      function complain(said, input) {
        const words = said || [...waiting.values()][0]?.said || "";
        const { name, label } = fields.find(({ name }) => words.startsWith(`${name} `)) ?? {};
        const line = name ? label + words.slice(name.length).replace(/^ must/, ": must") : words;
        if (error.textContent !== line) error.textContent = line; // or it is read again
        for (const { input: one } of inputs) {
          if (waiting.has(one) || (said && one === input)) one.setAttribute("aria-invalid", true);
          else one.removeAttribute("aria-invalid");
        }
        if (words) reset.setAttribute("aria-disabled", false);
      }

      // Pass only possible states to the model. A refused value stays in its field and is
      // tried again with each change, since two values may be possible only together.
      function apply(patch, input, tick) {
        if (!tick) bench.pause();
        let next = {}, wanted = null, said = "";
        const fit = (...patches) => {
          const all = Object.assign({}, ...patches);
          compute({ ...state(), ...all });
          return all;
        };
        waiting.delete(input);
        try {
          wanted = typeof patch === "function" ? patch() : patch;
          next = fit(wanted);
        } catch (reason) {
          said = reason.message;
        }
        const others = [...waiting].filter(([, one]) => one.wanted);
        if (wanted && others.length) try {
          next = fit(...others.map(([, one]) => one.wanted), wanted);
          for (const [other] of others) waiting.delete(other);
          said = "";
        } catch { // not all of them together, so try each by itself
          for (const [other, one] of others) try {
            next = fit(one.wanted, next);
            waiting.delete(other);
          } catch (reason) {
            one.said = reason.message;
          }
        }
        if (said && input && !["file", "range"].includes(input.type)) waiting.set(input, { wanted, said });
        // A measurement stays valid for every step, but not after any other change.
        const real = Object.keys(next).some((name) => !views.includes(name));
        if (real) { // a drag is one change, however slow it is
          const { held } = el.dataset;
          if (held === "new" || (held === undefined && Date.now() - changed > GESTURE)) before = shown;
          if (held === "new") el.dataset.held = "moved";
          changed = Date.now();
        }
        quiet = true;
        for (const [name, value] of Object.entries(next)) model.set(name, value);
        if (real) {
          pressed = false;
          if (model.get("measured")) model.set("measured", null);
        }
        quiet = false;
        save();
        update();
        complain(said, input);
      }

      const views = fields.filter(({ kind }) => kind === "step").map(({ name }) => name);
      const reset = h("button", {
        type: "button", onclick: () => {
          waiting.clear();
          apply({ ...model.get("initial") });
          before = null;
          update();
        },
      }, "Reset");
      const answer = h("p.x-measured", { role: "status" });
      const run = model.get("live") && h("div.x-buttons", {}, h("button", { // there is a kernel
        type: "button", onclick: () => {
          [pressed, since] = [true, Date.now()];
          if (!isLost(model)) {
            model.set("measured", { running: "asked", summary: "running …" });
            model.set("runs", model.get("runs") + 1);
            save();
          }
          update();
        },
      }, live));

      // Say what became of the button, and look again while the answer is not there.
      function report() {
        const measured = model.get("measured"), { running } = measured ?? {};
        const lost = (pressed || running) && isLost(model), late = Date.now() - since > 2000;
        const words = lost ? LOST : running === "asked" && late ? BUSY
          : measured?.error ?? measured?.summary ?? "";
        if (answer.textContent !== words) answer.textContent = words; // or it is read again
        if (!lost && running) watch ??= setInterval(report, 500);
        else {
          clearInterval(watch);
          watch = null;
          if (!lost) pressed = false;
        }
      }

      function update() {
        const now = state();
        try {
          facts = compute(now);
        } catch (reason) { // Python set an impossible state
          return reason.message;
        }
        for (const one of inputs) one.show(now, facts);
        said?.update(now, facts);
        question?.update({ state: now, facts });
        reset.setAttribute("aria-disabled",
          JSON.stringify(now) === JSON.stringify(model.get("initial")));
        paint();
        if (summary.textContent !== facts.summary) summary.textContent = facts.summary;
        keepRoom();
        report();
      }

      // The summary is never cut, and keeps the room of its longest words: what stands below
      // it does not come up again under a finger.
      function keepRoom() {
        tallest = Math.max(tallest, summary.offsetHeight);
        summary.style.setProperty("--x-tallest", `${tallest}px`);
      }

      function paint() {
        const width = Math.floor(stage.clientWidth) || 700;
        const view = { state: state(), facts, before, measured: model.get("measured"),
          set: (patch) => apply(patch), width, narrow: width < NARROW,
          asking: el.classList.contains("x-asking") };
        shown = { state: view.state, facts };
        answered = view.asking ? null : answered ?? performance.now();
        // A drawing is made anew with each change, and what it reveals goes on, not back.
        stage.style.setProperty("--x-since", `${answered === null ? 0 : answered - performance.now()}ms`);
        let made = {};
        redraw(stage, () => (made = draw(view)).picture);
        redraw(after, () => made.after ?? []);
        redraw(below, () => made.below ?? []);
      }

      const said = words && sentence(words, fields, (patch) => apply(patch));
      const place = (test) => inputs.filter(({ field }) => test(field)).map(({ box }) => box);
      const first = ({ knob, name }) => knob && !words?.includes(`{${name}}`);
      const knobs = place(first), steps = place(({ kind }) => kind === "step");
      const more = place((field) => !first(field) && field.kind !== "step");
      // A question is about everything but the moment that is looked at, and ask.apart.
      const apart = [...views, ...ask?.apart ?? []];
      const about = (state) => JSON.stringify({ ...state, ...Object.fromEntries(apart.map((one) => [one, 0])) });
      compute(state()); // an impossible state, as an address may hold, is thrown to the page
      const question = ask && asking(name, ask, el, (patch) => apply(patch), about);
      el.classList.add("x");
      followHand(el);
      el.replaceChildren(...[
        h("div.x-head", {}, h("p.x-title", {}, title), reset, sharing(name, stage, model.link)), stage,
        h("form.x-form", { "aria-label": label, onsubmit: (event) => event.preventDefault() },
          steps, h("div.x-words", {}, question?.box ?? "", summary), after, error, said?.element ?? "",
          h("div.x-tools", {}, knobs,
            more.length > 0 && h("details.x-more", {}, h("summary", {}, "More controls"), h("div.x-knobs", {}, more)),
            h("details", {}, h("summary", {}, "How to read it, and the numbers"), below), run)),
        answer,
      ].filter(Boolean));
      // When Python sets the state, that replaces what was typed.
      const outside = () => {
        if (quiet) return;
        waiting.clear();
        complain(update());
      };
      const again = () => quiet || complain(update());
      for (const name of names) model.on(`change:${name}`, outside);
      model.on("change:measured", again);
      complain(update());
      // A picture is made for a width, so a new one is made when that changes.
      let width = stage.clientWidth;
      const watcher = new ResizeObserver(() => {
        if (stage.clientWidth === width || !facts) return;
        width = stage.clientWidth;
        summary.style.removeProperty("--x-tallest");
        tallest = 0;
        paint();
        keepRoom();
      });
      watcher.observe(stage);
      return () => {
        bench.pause();
        watcher.disconnect();
        clearInterval(watch);
        for (const name of names) model.off(`change:${name}`, outside);
        model.off("change:measured", again);
      };
    },
  };
}

// Frame what has the focus for those who use keys, and not under a mouse that drags it.
// data-held: a slider, on the drawing or below it, is being dragged: "new" until that
// changes something.
function followHand(el) {
  el.addEventListener("pointerdown", ({ target }) => {
    el.dataset.by = "pointer";
    if (!target.closest("[role=slider], input[type=range]")) return;
    el.dataset.held = "new";
    // On a phone the summary comes up over what is above it, but cuts no question in two.
    const ask = el.querySelector(".x-ask")?.getBoundingClientRect();
    const edge = innerHeight - el.querySelector(".x-summary").offsetHeight;
    el.classList.toggle("x-firm", ask?.top < edge && edge < ask?.bottom);
    const free = () => { delete el.dataset.held; };
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, free, { once: true });
  });
  el.addEventListener("keydown", () => { delete el.dataset.by; });
}
