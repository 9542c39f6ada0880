// Remember which quizzes and exercises a reader has done, in this browser only. If its
// storage is blocked, they are remembered until the page is left, without an error.
(() => {
  const KEY = "allranks.progress";
  let memory = { quiz: {}, exercise: {} };

  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(KEY));
      memory = { quiz: { ...stored?.quiz }, exercise: { ...stored?.exercise } };
    } catch {
      // blocked, or not ours: go on with what this page knows
    }
    return memory;
  }

  function set(kind, id, done) {
    const progress = load();
    if (done) progress[kind][id] = 1;
    else delete progress[kind][id];
    save();
  }

  function save() {
    try {
      localStorage.setItem(KEY, JSON.stringify(memory));
    } catch {
      // blocked or full
    }
    show();
  }

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const done = (kind, ids) => ids.filter((id) => Object.hasOwn(memory[kind], id)).length;
  const refresh = []; // one function for each thing that shows progress

  function show() {
    for (const update of refresh) update();
  }

  // In the heading of each quiz, say whether it is solved, and how many on the page are.
  function quizzes() {
    const boxes = [...document.querySelectorAll(".quiz[data-quiz]")];
    const ids = boxes.map((box) => box.dataset.quiz);
    for (const box of boxes) {
      const tally = make("span", { class: "progress-tally" });
      box.querySelector(".quiz-head")?.append(tally);
      refresh.push(() => {
        const solved = done("quiz", [box.dataset.quiz]) ? "✓ solved · " : "";
        const total = done("quiz", ids);
        tally.textContent = total ? `${solved}${total} of ${ids.length} on this page` : "";
      });
    }
  }

  // Put a box to tick below the hints of each exercise.
  function exercises() {
    const places = [...document.querySelectorAll(".exercise-help[data-exercise]")];
    const ids = places.map((place) => place.dataset.exercise);
    for (const place of places) {
      const id = place.dataset.exercise;
      const name = id.replace(/^ex(\d+)_(\d+)$/, "$1.$2");
      const box = make("input", { type: "checkbox" });
      const tally = make("span", { class: "progress-tally" });
      box.addEventListener("change", () => set("exercise", id, box.checked));
      const label = make("label", {}, box, `I have done exercise ${name}`);
      place.append(make("div", { class: "progress-done" }, label, tally));
      refresh.push(() => {
        box.checked = done("exercise", [id]) === 1;
        const total = done("exercise", ids);
        tally.textContent = total ? `${total} of ${ids.length} on this page` : "";
      });
    }
  }

  // Fill the overview, for which the build wrote each total and the names behind it.
  function overview() {
    for (const box of document.querySelectorAll(".progress-box")) {
      for (const cell of box.querySelectorAll("[data-progress]")) {
        const [kind, ...ids] = cell.dataset.progress.split(" ");
        refresh.push(() => {
          const full = ids.length && done(kind, ids) === ids.length ? " ✓" : "";
          cell.textContent = ids.length ? `${done(kind, ids)} of ${ids.length}${full}` : "–";
        });
      }
      box.append(...clearing());
    }
  }

  // On the map of the chapters, say what is done, and nothing where nothing is.
  function map() {
    for (const place of document.querySelectorAll(".map-progress")) {
      const [kind, ...ids] = place.dataset.progress.split(" ");
      refresh.push(() => {
        const total = done(kind, ids), word = place.dataset.word;
        const full = total === ids.length ? " ✓" : "";
        place.textContent = total ? `; ${total} of ${ids.length} ${word} done${full}` : "";
      });
    }
  }

  // Add a button that clears everything, but asks first.
  function clearing() {
    const ask = make("dialog", { class: "progress-ask", "aria-labelledby": "progress-ask" },
      make("p", { id: "progress-ask" },
        "Forget all solved quizzes, all guesses and all exercises that you ticked? They are "
        + "kept in this browser only, so they cannot be brought back."));
    const keep = make("button", { type: "button", autofocus: "" }, "Keep them");
    const clear = make("button", { type: "button" }, "Forget them");
    const open = make("button", { type: "button" }, "Clear my progress …");
    const status = make("span", { role: "status", class: "progress-status" });
    ask.append(keep, " ", clear);
    open.addEventListener("click", () => {
      status.textContent = "";
      ask.showModal();
    });
    keep.addEventListener("click", () => ask.close());
    clear.addEventListener("click", () => {
      memory = { quiz: {}, exercise: {} };
      try {
        const mine = /^allranks\.(progress|guess)/; // guesses: predict.js and kit/ask.js
        for (const key of Object.keys(localStorage).filter((key) => mine.test(key)))
          localStorage.removeItem(key);
      } catch {
        // blocked: there was nothing to remove
      }
      ask.close();
      show();
      status.textContent = " Cleared.";
    });
    return [make("p", {}, open, status), ask];
  }

  function start() {
    quizzes();
    exercises();
    overview();
    map();
    load();
    show();
    document.addEventListener("allranks:done", ({ detail }) => set(detail.kind, detail.id, true));
    addEventListener("storage", () => {
      load(); // because another tab has written
      show();
    });
    addEventListener("pageshow", () => {
      load(); // because the reader came back from another page
      show();
    });
  }
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
