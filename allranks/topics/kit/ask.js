// Predict, then reveal: one question before the answer is shown, remembered afterwards.
import { h } from "./elements.js";
import { still } from "./motion.js";

const PAUSE = 1100; // ms: how long each state of an answer stands before the next

// Make a question, and a function that brings it up to date with the figure: a question
// is about one state, so a reader who changes the figure is offered the same question
// about what is there now. ask.question, ask.options and ask.answer (the right option's
// place) are values, or functions of the view; with ask.always, the question holds for
// every state. While a question is open, the class x-asking hides the summary and what a
// drawing marks x-answer. Once it is answered, `apply` shows the state ask.show (a value, or
// a function of the view), which is still what the question is about. If readers
// guess in the drawing, ask.guess(view) returns the option that they mean, or -1 while they
// have moved nothing, which is no guess, and ask.mine(view) says what they guessed. What of
// the state changes nothing about the question is named in ask.apart. If ask.show is a list,
// the answer walks through it.
// about(state): what a question depends on, as text.
export function asking(name, ask, el, apply, about) {
  const key = `allranks.guess.${name}`, box = h("div.x-ask", { role: "group", "aria-label": "A question first" });
  const verdict = h("span.x-verdict", { role: "status", tabindex: -1 });
  const button = (words, press) => h("button", { type: "button", onclick: press }, words);
  const quote = (words) => `“${words.replace(/\.$/, "")}”`;
  const mine = button("This is my guess", () => mine.ariaDisabled === "true" || choose(ask.guess(latest)));
  let asked = null, latest = null, face = "", timer = 0, veiled = false; // until an open question is answered
  for (const takesOver of ["pointerdown", "keydown"]) el.addEventListener(takesOver, () => clearTimeout(timer));

  function begin(view) {
    const of = (part) => (typeof part === "function" ? part(view) : part);
    const show = [of(ask.show ?? {})].flat();
    asked = { state: view.state, worth: about(view.state), show, shown: about({ ...view.state, ...show.at(-1) }), question: of(ask.question),
      options: of(ask.options), right: of(ask.answer), because: of(ask.because ?? ""), guess: null };
    face = "";
  }

  function choose(guess) {
    asked.guess = guess;
    asked.mine = guess < 0 ? "" : ask.mine?.(latest) ?? "";
    if (face === "left") apply({ ...asked.state });
    try {
      localStorage.setItem(key, `${guess} ${asked.question}${asked.mine && `\n${asked.mine}`}`);
    } catch { /* no storage here: it is asked again next time */ }
    walk(still() ? asked.show.slice(-1) : asked.show);
    verdict.focus({ preventScroll: true });
  }

  // Show the answer's states, one after the other, until the reader takes over.
  function walk([next, ...others]) {
    apply(next); // which draws it again, also if nothing else changes
    if (others.length) timer = setTimeout(() => el.isConnected && walk(others), PAUSE);
  }

  function earned() {
    const { guess, right, options } = asked, said = options[guess];
    if (guess === null) return "";
    return guess === right ? `You said ${quote(said)}: right. `
      : said ? `You said ${quote(said)}; it was ${quote(options[right])}. ` : `It was ${quote(options[right])}. `;
  }

  const again = () => button("Ask me about this one", () => {
    begin(latest);
    veiled = true;
    apply({});
    box.querySelector("button").focus({ preventScroll: true });
  });
  const back = () => button("Back to the question", () => apply({ ...asked.state }));

  const faces = {
    open: () => [h("p", {}, h("b", {}, asked.question)), h("div.x-options", {},
      ask.guess ? mine : asked.options.map((words, i) => button(words, () => choose(i))),
      button("Just show me", () => choose(-1)))],
    answered() {
      const { guess, right, options, because, mine = "" } = asked, said = options[guess];
      verdict.textContent = mine + (guess === right ? (mine ? `Yes, ${options[right].replace(/\.$/, "")}. ` : "Yes. ")
        : `${said && !mine ? `You said ${quote(said)}. ` : ""}The answer: ${quote(options[right])}. `) + because;
      return [h("p", {}, h("b", {}, asked.question), " ", verdict)];
    },
    // What the reader has earned stays, in a line.
    changed: () => [h("p.x-options.x-changed", {}, h("span", {}, earned(), "You changed the figure", h("span.x-was", {}, " (dotted: before)"), "."),
      again(), back())],
    // What has not been answered stays too, and says what it is about.
    left: () => [h("p", {}, h("b", {}, asked.question), " You changed the figure; this is about how it was."),
      h("div.x-options", {}, asked.options.map((words, i) => button(words, () => choose(i))), again(), back())],
  };

  function update(view) {
    latest = view;
    if (!asked) recall(view);
    if (ask.guess) mine.setAttribute("aria-disabled", ask.guess(view) < 0);
    const worth = about(view.state), same = worth === asked.worth || (asked.guess !== null && worth === asked.shown);
    const open = asked.guess === null, moved = !ask.always && !same;
    const now = !moved ? (open ? "open" : "answered") : open && !ask.guess ? "left" : "changed";
    if (now === "left" && face === "open" && el.dataset.held) return later(); // not under a finger
    el.classList.toggle("x-asking", now === "open" && veiled);
    if (now === face) return;
    if (face && now === "changed") hold(box.parentElement);
    box.replaceChildren(...faces[face = now]());
  }

  // Ask the first time. A guess that was stored for another question answers nothing,
  // but its reader has seen the figure.
  function recall(view) {
    let stored = null;
    try {
      stored = localStorage.getItem(key);
    } catch { /* as above */ }
    begin(view);
    const [guess, words = ""] = stored?.split(/ (.*)/s) ?? [], [question, mine] = words.split("\n");
    if (stored !== null && [asked.question, ""].includes(question)) Object.assign(asked, { guess: Number(guess), mine });
    veiled = stored === null;
  }

  let waits = false;
  function later() {
    if (waits) return;
    waits = true;
    const free = () => {
      for (const name of ["pointerup", "pointercancel"]) window.removeEventListener(name, free);
      waits = false;
      apply({}); // and with it the summary, which an open question hides
    };
    for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, free);
  }
  return { box, update };
}

// Keep the height of an element until the finger or the key is up that changes what is in
// it, so that nothing moves under a slider while it is dragged.
function hold(element) {
  const free = () => {
    element.style.minHeight = "";
    for (const name of ends) window.removeEventListener(name, free);
  };
  const ends = ["pointerup", "pointercancel", "keyup"];
  element.style.minHeight = `${element.offsetHeight}px`;
  for (const name of ends) window.addEventListener(name, free);
}
