// The form in a cell's output in JupyterLab. All cells that answer one question share a
// key; the first has the form, and the others wait for it.
const KEY = "allranks.guesses", ALL = "allranks.show-all", EVENT = "allranks:guess";
const recall = () => {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch { // blocked, or not ours
    return {};
  }
};
const stored = (store, key, value) => {
  try {
    store().setItem(key, value);
  } catch { /* blocked or full: it is asked again next time */ }
};
const make = (tag, set = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), set);
  element.append(...children);
  return element;
};
const button = (words, press) => make("button", { type: "button", textContent: words, onclick: press });

function start({ key, first, question, answer }) {
  const box = document.currentScript.previousElementSibling;
  const memory = window.allRanksGuesses ??= recall(); // also where storage is blocked
  const style = box.firstElementChild;
  const tell = (what) => dispatchEvent(new CustomEvent(EVENT, { detail: { key, ...what } }));
  const show = (...parts) => box.replaceChildren(style, ...parts);
  const keep = (guess) => {
    if (guess === null) delete memory[key];
    else memory[key] = guess;
    stored(() => localStorage, KEY, JSON.stringify(memory));
    tell({ pressed: true });
  };
  const all = () => {
    stored(() => sessionStorage, ALL, "yes");
    window.allRanksShowAll = true;
    dispatchEvent(new CustomEvent(EVENT, { detail: {} }));
  };
  const open = () => {
    try {
      return window.allRanksShowAll || sessionStorage.getItem(ALL) !== null;
    } catch {
      return window.allRanksShowAll;
    }
  };

  // The results of all cells of this question that have run so far.
  const results = () => [...document.querySelectorAll(".ar-predict")]
    .filter((one) => one.dataset.key === key)
    .flatMap((one) => [...one.closest(".jp-OutputArea")?.children ?? []])
    .filter((output) => !output.querySelector(".ar-predict"));

  function ask() {
    const input = make("input", { type: "text", maxLength: 120, autocomplete: "off" });
    const form = make("form", { ariaLabel: question }, make("label", {}, "Your guess ", input),
      make("button", { type: "submit", textContent: "I have a guess: show" }),
      button("Show all from now on", all));
    const send = (event) => {
      event.preventDefault();
      keep(input.value.trim());
    };
    form.addEventListener("submit", send);
    input.addEventListener("keydown", (event) => { // JupyterLab keeps Enter from the form
      if (event.key === "Enter" && !event.isComposing) send(event);
    });
    return form;
  }

  let said = null;
  function draw(pressed) {
    const guess = memory[key], shown = guess !== undefined || open();
    box.classList.toggle("ar-waiting", !shown);
    if (!shown) {
      show(first ? ask() : make("p", {}, "The result is shown once you have guessed above. ",
        button("Show", () => keep(""))));
    } else if (!first || guess === undefined) show();
    else {
      said = make("span", { role: "status", tabIndex: -1 });
      show(make("p", {}, said, " ", button("Guess again", () => keep(null))));
      judge();
      if (pressed) said.focus({ preventScroll: true });
    }
  }
  function judge() {
    const words = verdict(memory[key] ?? "", answerIn(results(), answer));
    if (said && said.textContent !== words) said.textContent = words;
  }

  box.dataset.key = key;
  draw();
  const hear = ({ detail }) => {
    if (!box.isConnected) removeEventListener(EVENT, hear); // the cell has run again
    else if (detail.arrived) judge();
    else if (!detail.key || detail.key === key) draw(detail.pressed && first);
  };
  // A result may come after the guess, and in pieces.
  const settle = (frames = 60) => {
    const area = box.closest(".jp-OutputArea");
    if (!area) { // not put on the page yet, or not JupyterLab
      if (frames) requestAnimationFrame(() => settle(frames - 1));
      return;
    }
    addEventListener(EVENT, hear);
    if (answer) new MutationObserver((changes) => {
      if (changes.some(({ target }) => !box.contains(target))) tell({ arrived: true });
    }).observe(area, { childList: true, subtree: true });
  };
  settle();
}
