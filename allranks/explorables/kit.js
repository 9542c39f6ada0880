// What all explorables share: elements, the form, steps, and the loop
// state -> compute -> draw. It runs in JupyterLab (anywidget), on a static page and in
// node (only `compute` there), so nothing here may touch the document on import.

const SVG = "http://www.w3.org/2000/svg";
let number = 0; // makes ids unique where a page holds several explorables

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

// Return the page's colour of a rank, or that of svg.HUES where no page sets one, as in
// JupyterLab.
const HUES = ["#6275c4", "#b9621e", "#41856b", "#956b98",
  "#11849d", "#c4556b", "#847b35", "#8167d6"];
export const rankColor = (rank) => `var(--rank-${rank % 8}, ${HUES[rank % 8]})`;

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

// The caption goes above the table, because inside it could not be wider than the table.
export const table = (caption, head, rows) => [h("p.x-caption", {}, caption),
  h("div.x-scroll", {}, h("table.x-table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, head.map((cell) => cell === "" ? h("td") : h("th", { scope: "col" }, cell)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) =>
      i ? h("td", {}, cell) : h("th", { scope: "row" }, cell)))))))];

// Make a line of code with a button that copies it.
export function code(line, key) {
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
  const pre = h("code", {}, line);
  return h("div.x-code", {}, pre, h("button", {
    type: "button", "data-key": key, "aria-label": `Copy ${line}`, onclick: copy,
  }, "Copy"), done);
}

// Refuse what is not a whole number, in the words of allranks.sums.topology.whole.
export function whole(name, value, low) {
  if (!Number.isInteger(value)) throw Error(`${name} must be a whole number, not ${value}`);
  if (value < low) throw Error(`${name} must be at least ${low}, not ${value}`);
  return value;
}

// Write three digits and a unit, "B" or "s", as allranks/sums/units.py does.
const UNITS = {
  B: [[1, "B"], [1e3, "KB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]],
  s: [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [3600, "h"], [86400, "d"]],
};
export function amount(value, unit) {
  const [scale, name] = UNITS[unit].findLast(([least]) => value >= least) ?? UNITS[unit][0];
  const number = value / scale, places = number >= 100 ? 1 : number >= 10 ? 10 : 100;
  return `${Math.floor(number * places + 0.5) / places} ${name}`;
}

const LOST = "The kernel of this figure was restarted or shut down, so run the cell above "
  + "again; everything but this button works without it.";
const BUSY = "waiting for the kernel: it is busy, and runs this as soon as it can …";

// Tell whether nothing can reach the Python behind a model any more. anywidget shows no
// comm, but the layout's lives and ends with it: a restart marks it dead, a crash drops
// it from the kernel, and after a shutdown there is no kernel. A host that shows none of
// this is believed, and so is a kernel that is slow.
function isLost(model) {
  const layout = model.get("layout"), manager = model.widget_manager;
  if (layout?.comm_live === false) return true;
  if (!layout?.model_id || !manager || !("kernel" in manager)) return false;
  const { kernel } = manager;
  return !kernel || kernel.isDisposed || kernel.hasComm?.(layout.model_id) === false;
}

// JupyterLab saves a figure's view, but not its model, and then finds none when the
// notebook is opened again. So save with the notebook all models that its outputs show,
// also those whose kernel has ended since.
const STATE = "application/vnd.jupyter.widget-state+json", seen = new WeakMap();
function keepModels(manager) {
  const notebook = manager?.context?.model;
  if (!notebook?.setMetadata || !manager.get_state_sync) return; // another host
  const live = () => manager.get_state_sync({ drop_defaults: true });
  const first = !seen.has(manager);
  seen.set(manager, { ...seen.get(manager), ...live().state });
  if (first) manager.context.saveState.connect((_, moment) => {
    if (moment !== "started") return;
    const { state, ...version } = live();
    const before = notebook.getMetadata("widgets")?.[STATE]?.state;
    const all = { ...before, ...seen.get(manager), ...state }, ids = Object.keys(all);
    const named = (what) => ids.filter((id) => what.includes(id));
    const views = named(JSON.stringify(Array.from(notebook.cells, (cell) => cell.outputs?.toJSON())));
    const parts = named(JSON.stringify(views.map((id) => all[id]))); // a figure's layout
    const kept = Object.fromEntries([...views, ...parts].map((id) => [id, all[id]]));
    if (before || views.length) notebook.setMetadata("widgets", { [STATE]: { ...version, state: kept } });
  });
}

// Build an explorable from these parts:
// fields: [{ name, label, kind, ... }], where kind is "whole", "number", "choice" (with
// options: [[value, text], ...], or a function of the state that returns them), "flag",
// "text", "file" (with set(text, state, facts); a file of more than `most` bytes is
// refused) or "step" (with max: facts => last step). If a field is not a trait itself,
// `get` and `set` map it to the state; `show(state)` decides whether it is visible.
// compute(state) -> facts, with facts.summary, or throws an Error with one sentence.
// draw({ state, facts, set, measured }) -> what the stage shows.
export function explorable({ label, fields, compute, draw, live = "Run on live ranks" }) {
  return {
    render({ model, el }) {
      keepModels(model.widget_manager);
      const id = `x${number++}`;
      const names = Object.keys(model.get("initial"));
      const state = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
      const waiting = new Map(); // from a field's input to the change that was refused
      let quiet = false, timer = null, facts = null, pause = () => {};
      let pressed = false, since = 0, watch = null; // an answer of the kernel is awaited
      const save = () => isLost(model) || model.save_changes();

      const error = h("p.x-error", { id: `${id}-error`, role: "alert" });
      const stage = h("div.x-stage");
      const summary = h("p.x-summary", { role: "status" });
      const form = h("form.x-form", {
        "aria-label": label, onsubmit: (event) => event.preventDefault(),
      });

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
        if (!tick) pause();
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
        quiet = true;
        for (const [name, value] of Object.entries(next)) model.set(name, value);
        // A measurement stays valid for every step, but not after any other change.
        if (Object.keys(next).some((name) => !views.includes(name))) {
          pressed = false;
          if (model.get("measured")) model.set("measured", null);
        }
        quiet = false;
        save();
        update();
        complain(said, input);
      }

      const views = fields.filter(({ kind }) => kind === "step").map(({ name }) => name);
      const inputs = fields.map((field, i) => {
        const attributes = { id: `${id}-${i}`, "aria-describedby": `${id}-error` };
        const { kind, name, min, max, step } = field;
        let input, control, options = [], words = "";
        // Rebuild the list only if it changed, so that focus and choice are kept.
        const list = (now, value) => {
          const typed = waiting.has(input) && options[input.selectedIndex]?.[0];
          options = typeof field.options === "function" ? field.options(now) : field.options;
          if (words !== (words = JSON.stringify(options))) input.replaceChildren(
            ...options.map(([value, words]) => h("option", { value }, words)));
          const find = (value) => options.findIndex(([one]) => one === value);
          if (find(typed) < 0) waiting.delete(input);
          input.selectedIndex = find(waiting.has(input) ? typed : value);
        };
        const read = async () => {
          const file = input.files[0];
          if (!file) return;
          const big = file.size > field.most;
          const data = big ? "" : await file.text();
          input.value = ""; // so that the same file can be chosen again
          apply(() => {
            if (big) throw Error(`${file.name} has ${amount(file.size, "B")}: at most ${amount(field.most, "B")}`);
            return field.set(data, state(), facts);
          }, input);
        };
        const change = () => apply(() => {
          const typed = kind === "flag" ? input.checked
            : ["whole", "number", "step"].includes(kind)
              ? (input.value.trim() === "" ? NaN : Number(input.value))
              : kind === "choice" ? options[input.selectedIndex][0] : input.value;
          if (Number.isNaN(typed))
            throw Error(`${field.label}: type a ${kind === "number" ? "" : "whole "}number`);
          return field.set ? field.set(typed, state(), facts) : { [name]: typed };
        }, input);
        if (kind === "choice")
          control = input = h("select", { ...attributes, onchange: change });
        else if (kind === "file")
          control = input = h("input", { ...attributes, type: "file", accept: field.accept, onchange: read });
        else if (kind === "step") {
          input = h("input", { ...attributes, type: "range", min: 0, step: 1, oninput: change });
          control = h("div.x-steps", {}, input, ...stepButtons(field, input));
        } else
          control = input = h("input", {
            ...attributes, min, max, step,
            type: { flag: "checkbox", whole: "number", number: "number" }[kind] ?? "text",
            ...(kind === "number" && { step: "any" }),
            [kind === "flag" ? "onchange" : "oninput"]: change,
            autocomplete: "off", spellcheck: "false",
          });
        const box = h(`div.x-field.x-${kind}`, {},
          h("label", { for: `${id}-${i}` }, field.label), control);
        form.append(box);
        return { field, input, box, list };
      });

      function stepButtons(field, input) {
        const go = (by, tick) => {
          if (!tick) pause();
          const last = Number(input.max), now = Number(input.value) + by;
          if (now >= 0 && now <= last) apply({ [field.name]: now }, null, tick);
          return now < last;
        };
        pause = () => {
          clearInterval(timer);
          timer = null;
          play.textContent = "Play";
        };
        const start = () => {
          if (Number(input.value) >= Number(input.max)) apply({ [field.name]: 0 });
          timer = setInterval(() => el.isConnected && go(1, true) || pause(), 900);
          play.textContent = "Pause";
        };
        const button = (words, press) => h("button", { type: "button", onclick: press }, words);
        const play = button("Play", () => (timer ? pause() : start()));
        const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
        return [
          button("Back", () => go(-1)), button("Next", () => go(1)),
          still ? null : play,
        ].filter(Boolean);
      }

      const reset = h("button", {
        type: "button", onclick: () => {
          waiting.clear();
          apply({ ...model.get("initial") });
        },
      }, "Reset");
      const buttons = h("div.x-buttons", {}, reset);
      const answer = h("p.x-measured", { role: "status" });
      let run = null;
      if (model.get("live")) { // there is a kernel to run it
        run = h("button", { type: "button", onclick: () => {
          [pressed, since] = [true, Date.now()];
          if (!isLost(model)) {
            model.set("measured", { running: "asked", summary: "running …" });
            model.set("runs", model.get("runs") + 1);
            save();
          }
          update();
        } }, live);
        buttons.prepend(run);
      }
      form.append(buttons);

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
        for (const { field, input, box, list } of inputs) {
          const value = field.get ? field.get(now, facts) : now[field.name];
          box.hidden = field.show ? !field.show(now, facts) : false;
          const refused = waiting.get(input), worth = JSON.stringify(value);
          if (refused) refused.worth ??= worth; // if it changes, it replaces what was typed
          if (box.hidden || worth !== refused?.worth) waiting.delete(input);
          if (field.kind === "choice") list(now, value);
          else if (waiting.has(input)) continue; // what was typed stays
          else if (field.kind === "flag") input.checked = value;
          else if (field.kind !== "file") {
            if (field.kind === "step") input.max = field.max(facts);
            // Leave "08" or "2, " alone while it is being typed and means the same.
            const same = field.kind === "text" ? input.value === value
              : input.value !== "" && Number(input.value) === value;
            if (!same && !(input === document.activeElement && field.kind === "text"))
              input.value = value ?? "";
          }
          if (field.kind === "step")
            [value === 0, value === Number(input.max)].forEach((end, i) =>
              box.querySelectorAll("button")[i].setAttribute("aria-disabled", end));
        }
        const first = JSON.stringify(model.get("initial"));
        reset.setAttribute("aria-disabled", JSON.stringify(now) === first);
        const measured = model.get("measured");
        const set = (patch) => apply(patch);
        const key = stage.contains(document.activeElement)
          && document.activeElement.dataset.key;
        stage.replaceChildren(...[draw({ state: now, facts, set, measured })].flat(9)
          .filter((part) => part != null && part !== false));
        if (key) stage.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
        for (const box of stage.querySelectorAll(".x-scroll"))
          if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
        if (summary.textContent !== facts.summary) summary.textContent = facts.summary;
        report();
      }

      el.classList.add("x");
      el.replaceChildren(form, error, summary, stage, answer);
      // When Python sets the state, that replaces what was typed.
      const outside = () => {
        if (quiet) return;
        waiting.clear();
        complain(update());
      };
      const redraw = () => quiet || complain(update());
      for (const name of names) model.on(`change:${name}`, outside);
      model.on("change:measured", redraw);
      complain(update());
      return () => {
        clearInterval(timer);
        clearInterval(watch);
        for (const name of names) model.off(`change:${name}`, outside);
        model.off("change:measured", redraw);
      };
    },
  };
}
