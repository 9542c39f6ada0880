// Predict, then reveal: one question before the answer is shown, remembered afterwards.
import { h } from "./elements.js";

// Make the question about the state in `view`: ask.question, ask.options and ask.answer
// (the right option's place) are values, or functions of the view. While it is open, the
// class x-asking hides the summary and what a drawing marks x-answer. Once it is answered,
// `apply` shows the state ask.show, if the question is about another than the first.
export function asking(name, ask, view, el, apply) {
  if (!ask) return null;
  const key = `allranks.guess.${name}`, of = (part) => (typeof part === "function" ? part(view) : part);
  const options = of(ask.options), right = of(ask.answer);
  const box = h("div.x-ask", { role: "group", "aria-label": "A question first" });
  const verdict = h("p.x-verdict", { role: "status" });
  const remember = (guess) => {
    try {
      localStorage.setItem(key, guess);
    } catch { /* no storage here: it is asked again next time */ }
  };
  function reveal(guess, first) {
    el.classList.remove("x-asking");
    const said = options[guess], quote = (words) => `“${words.replace(/\.$/, "")}”`;
    verdict.textContent = (guess === right ? "Yes. "
      : `${said ? `You said ${quote(said)}. ` : ""}The answer: ${quote(options[right])}. `)
      + (ask.because ? of(ask.because) : "");
    box.replaceChildren(h("p", {}, h("b", {}, of(ask.question))), verdict);
    if (first) {
      verdict.tabIndex = -1;
      verdict.focus({ preventScroll: true });
    }
  }
  const choose = (guess) => {
    remember(guess);
    reveal(guess, true);
    if (ask.show) apply(ask.show);
  };
  const button = (words, press) => h("button", { type: "button", onclick: press }, words);
  el.classList.add("x-asking");
  box.append(h("p", {}, h("b", {}, of(ask.question))), h("div.x-options", {},
    options.map((words, i) => button(words, () => choose(i))),
    button("Just show me", () => choose(-1))));
  let before = null;
  try {
    before = localStorage.getItem(key);
  } catch { /* as above */ }
  if (before !== null) reveal(Number(before), false);
  return box;
}
