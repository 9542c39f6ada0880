// Turn each quiz on the page into a form. The page already contains question, options,
// answer and reasons as plain text, which is what readers see without this script.
(() => {
  const floorDiv = (a, b) => Math.floor(a / b);
  const OPERATORS = {
    "+": (a, b) => a + b,
    "-": (a, b) => a - b,
    "*": (a, b) => a * b,
    "/": (a, b) => a / b,
    "//": floorDiv,
    "%": (a, b) => a - b * floorDiv(a, b),
    "**": Math.pow,
    ceil: Math.ceil,
    floor: Math.floor,
    max: Math.max,
    min: Math.min,
    sqrt: Math.sqrt,
  };

  // Compute a tree of book/_ext/quiz/formula.py: a number, a name or [operator, part, part].
  function evaluate(tree, values) {
    if (typeof tree === "string") return values[tree];
    if (!Array.isArray(tree)) return tree;
    const [name, ...parts] = tree;
    return OPERATORS[name](...parts.map((part) => evaluate(part, values)));
  }

  function shown(value, digits) {
    const scale = 10 ** digits; // half up, in the same steps as in Python
    return String(Math.floor(value * scale + 0.5) / scale);
  }

  const sure = (value) => 1e-9 * Math.max(1, Math.abs(value));
  const resultsOf = (numbers, values) =>
    [numbers.right, ...numbers.wrong].map((tree) => evaluate(tree, values));

  // Whether a number is shown as it is.
  function exact(value, digits) {
    const scale = 10 ** digits;
    return Math.abs(Math.floor(value * scale + 0.5) / scale - value) <= sure(value);
  }

  // How far from a number an answer may be: half a unit of its last digit if it is rounded.
  function reach(value, digits) {
    return (exact(value, digits) ? 0 : 0.5 / 10 ** digits) + sure(value);
  }

  // Whether no answer can stand for two of the results.
  function apart(numbers, values) {
    const results = resultsOf(numbers, values), to = (value) => reach(value, numbers.digits);
    return results.every((a, i) => results.every((b, j) =>
      i === j || Math.abs(a - b) > to(a) + to(b) + 1e-6));
  }

  // Return what the page shows of these values and their results.
  function texts(numbers, values) {
    const found = Object.entries(values).map(([name, value]) => [name, String(value)]);
    resultsOf(numbers, values).forEach((result, i) => {
      const whole = exact(result, numbers.digits);
      found.push([`result_${i}`, shown(result, numbers.digits)],
        [`about_${i}`, whole ? "" : "≈ "], [`equals_${i}`, whole ? "=" : "≈"]);
    });
    return Object.fromEntries(found);
  }

  function draw(numbers, random = Math.random) {
    const pick = (list) => list[Math.floor(random() * list.length)];
    const last = JSON.stringify(numbers.drawn);
    for (let i = 0; i < 1000; i++) {
      const entries = Object.entries(numbers.values).map(([k, list]) => [k, pick(list)]);
      const values = Object.fromEntries(entries);
      if (JSON.stringify(values) !== last && apart(numbers, values)) return values;
    }
    return numbers.drawn;
  }

  // Read what a reader types: "1,437", "1e3", "0,27" or "3/11", also with the quiz's own
  // unit or a % behind it. NaN if that is not a number.
  function read(text, unit = "") {
    const small = (words) => words.toLowerCase().replace(/[\s_']/g, "").replace(/\u2212/g, "-");
    const match = /^([-+]?[\d.,]+)(e[-+]?\d+)?(?:\/(\d+))?(\D*)$/.exec(small(text));
    if (!match || ![...["", "%", unit].map(small), small(unit.split(" per ")[0])].includes(match[4])) return NaN;
    const grouped = /^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(match[1]);
    const plain = match[1].replace(/,/g, grouped ? "" : ".");
    return Number(plain + (match[2] ?? "")) / (match[3] ?? 1);
  }

  // Judge an answer: 0 if it is right, 1, 2, ... for the slip with this number, else -1.
  function judge(numbers, values, given) {
    return resultsOf(numbers, values).findIndex((value) =>
      Math.abs(given - value) <= reach(value, numbers.digits));
  }

  // Whether an answer is the right one, but rounded too far or cut off.
  function rough(numbers, values, given) {
    const right = evaluate(numbers.right, values);
    const scales = Array.from({ length: numbers.digits + 1 }, (_, digits) => 10 ** digits);
    return scales.some((scale) => [Math.floor, Math.round].some((cut) =>
      Math.abs(cut(right * scale) / scale - given) <= sure(given)));
  }

  // Say how precise an answer has to be.
  function places(digits) {
    if (!digits) return "to the nearest whole number";
    return `to ${digits} decimal place${digits === 1 ? "" : "s"}`;
  }

  if (typeof module === "object") {
    module.exports = { evaluate, shown, apart, draw, read, judge, rough, texts };
    return;
  }

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const SIGN = { right: "✓ ", wrong: "✗ " };

  // Copy a reason without the verdict in front of it.
  function reasonOf(item) {
    const copy = make("div", { class: "quiz-reason" });
    for (const child of item.childNodes) copy.append(child.cloneNode(true));
    copy.querySelector(".quiz-verdict")?.remove();
    return copy;
  }

  class Quiz {
    constructor(box) {
      this.box = box;
      this.id = box.dataset.quiz;
      this.kind = box.dataset.kind;
      this.details = box.querySelector("details.quiz-answer");
      this.status = make("div", { class: "quiz-status", role: "status" });
      this.form = make("form", { class: "quiz-form", novalidate: "" });
      this.buttons = make("div", { class: "quiz-buttons" },
        make("button", { type: "submit", class: "quiz-button" }, "Check"));
      this.form.append(this.fieldset(), this.buttons, this.status);
      this.details.before(this.form);
      this.details.querySelector("summary").textContent = "Show the answer";
      this.form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.check();
      });
      this.form.addEventListener("input", () => this.clear());
    }

    // Build a group that the question's first paragraph names; the rest follows below it.
    fieldset() {
      const question = this.box.querySelector(".quiz-question");
      const [first, ...more] = question.children;
      const legend = make("legend", {}, ...(first ? [...first.childNodes] : []));
      const set = make("fieldset", {}, legend, ...more);
      const described = [this.box.querySelector(".quiz-head"), ...more];
      described.forEach((part, i) => (part.id ||= `quiz-${this.id}-about-${i}`));
      set.setAttribute("aria-describedby", described.map((part) => part.id).join(" "));
      question.remove();
      if (this.kind === "number") set.append(this.field());
      else set.append(...this.choices());
      return set;
    }

    choices() {
      const list = this.box.querySelector("ol.quiz-options");
      const reasons = this.box.querySelectorAll("ol.quiz-reasons > li");
      this.options = [...list.children].map((item, i) => {
        const input = make("input", { type: this.kind, name: `quiz-${this.id}`, value: i });
        const letter = make("span", { class: "quiz-letter", "aria-hidden": "true" },
          `${"abcdefgh"[i]}.`);
        const text = make("span", { class: "quiz-text" });
        for (const part of item.children) text.append(...part.childNodes);
        const mark = make("span", { class: "quiz-mark" });
        const label = make("label", { class: "quiz-option" }, input, letter, text, mark);
        const right = item.classList.contains("quiz-right");
        return { input, label, mark, right, reason: reasons[i] };
      });
      list.remove();
      return this.options.map((option) => option.label);
    }

    field() {
      this.numbers = JSON.parse(this.box.dataset.numbers);
      this.values = this.numbers.drawn;
      const { unit, rounded, digits } = this.numbers;
      const asked = [unit, rounded && places(digits)].filter(Boolean).join(", ");
      this.input = make("input", { type: "text", inputmode: "decimal", autocomplete: "off",
        class: "quiz-input" });
      const again = make("button", { type: "button", class: "quiz-button quiz-again" },
        "Other numbers");
      again.addEventListener("click", () => this.again());
      this.buttons.append(again);
      return make("label", { class: "quiz-field" }, `Your answer${asked && ` (${asked})`}: `, this.input);
    }

    // Put fresh numbers into the question, the answer and the reasons.
    again() {
      this.values = draw({ ...this.numbers, drawn: this.values });
      const now = texts(this.numbers, this.values);
      for (const span of this.box.querySelectorAll("[data-value]")) {
        span.textContent = now[span.dataset.value];
      }
      this.details.open = false;
      this.clear();
      this.input.value = "";
      this.say("wait", "Other numbers are in the question.");
      this.input.focus();
    }

    // Clear the verdict, because it is about an earlier choice.
    clear() {
      this.status.replaceChildren();
      delete this.status.dataset.state;
      for (const { label, mark } of this.options ?? []) {
        mark.textContent = "";
        delete label.dataset.state;
      }
      this.input?.removeAttribute("aria-invalid");
    }

    say(state, text, ...reasons) {
      this.status.dataset.state = state;
      this.status.replaceChildren(
        make("p", { class: "quiz-verdict" }, (SIGN[state] ?? "") + text), ...reasons);
      if (state !== "right") return;
      const detail = { kind: "quiz", id: this.id };
      document.dispatchEvent(new CustomEvent("allranks:done", { detail }));
    }

    check() {
      this.clear();
      if (this.kind === "number") this.checkNumber();
      else this.checkChoice();
    }

    checkChoice() {
      const chosen = this.options.filter(({ input }) => input.checked);
      if (!chosen.length) {
        this.say("wait", "Choose an answer first.");
        return;
      }
      for (const { label, mark, right } of chosen) {
        label.dataset.state = right ? "right" : "wrong";
        mark.textContent = right ? " ✓ right" : " ✗ wrong";
      }
      const slips = chosen.filter(({ right }) => !right);
      const missing = this.options.filter((o) => o.right && !o.input.checked).length;
      const right = !slips.length && !missing;
      const shownReasons = (right ? chosen : slips).map(({ reason }) => reasonOf(reason));
      let text = right ? "Right." : "Not yet.";
      if (!slips.length && missing) {
        text = `Not yet: ${missing === 1 ? "one is" : `${missing} are`} missing.`;
      }
      this.say(right ? "right" : "wrong", text, ...shownReasons);
    }

    checkNumber() {
      const { unit } = this.numbers, given = read(this.input.value, unit);
      if (!Number.isFinite(given)) {
        this.input.setAttribute("aria-invalid", "true");
        this.say("wait", `Write the number only${unit && ", in "}${unit}.`);
        return;
      }
      const found = judge(this.numbers, this.values, given);
      if (found < 0 && rough(this.numbers, this.values, given)) {
        this.say("wait", `Almost: give the answer ${places(this.numbers.digits)}.`);
        return;
      }
      if (found < 0) {
        this.say("wrong", `Not ${shown(given, 6)}. No usual slip leads there: try again, `
          + "or look at the answer.");
        return;
      }
      const answer = this.details.querySelectorAll(":scope > p");
      const slip = this.details.querySelectorAll(".quiz-slips > li")[found - 1];
      if (slip) this.say("wrong", `Not ${shown(given, 6)}.`, reasonOf(slip));
      else this.say("right", "Right.", ...[...answer].map((p) => p.cloneNode(true)));
    }
  }

  const start = () => {
    for (const box of document.querySelectorAll(".quiz[data-quiz]")) new Quiz(box);
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
