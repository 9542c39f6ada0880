// A result that one should predict is shown after the guess, which stays beside it. The
// guesses are remembered in this browser, by page and place; without storage, until the
// page is left.
(() => {
  const KEY = "allranks.guesses", page = location.pathname.split("/").pop();
  let memory = {};
  const load = () => { // again before each write, as other windows write, too
    try {
      memory = JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch { /* blocked, or not ours */ }
  };
  const save = () => {
    try {
      localStorage.setItem(KEY, JSON.stringify(memory));
    } catch { /* blocked or full */ }
  };
  load();
  const asks = [...document.querySelectorAll(".predict-ask")].map((form) => {
    const { predict: name, answer } = form.dataset, key = `${page} ${name}`;
    const outputs = [...document.querySelectorAll(`[id^="${name}-"].predict`)];
    const input = form.querySelector("input");
    const show = (guess, pressed) => {
      for (const output of outputs) {
        output.classList.add("shown");
        output.removeAttribute("hidden");
      }
      const said = document.createElement("p");
      said.className = "predict-said";
      said.tabIndex = -1;
      const found = allRanksPredict.answerIn(outputs, answer);
      said.textContent = guess || pressed ? allRanksPredict.verdict(guess, found) : "";
      form.replaceWith(said);
      if (pressed) said.focus({ preventScroll: true });
    };
    const reveal = (guess, pressed) => {
      if (outputs[0].classList.contains("shown")) return;
      load();
      memory[key] = guess;
      save();
      show(guess, pressed);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      reveal(input.value.trim(), true);
    });
    const recall = () => {
      if (typeof memory[key] === "string" && form.isConnected) show(memory[key], false);
    };
    recall();
    if (form.isConnected) for (const output of outputs) {
      output.setAttribute("hidden", "until-found");
      output.addEventListener("beforematch", () => reveal("", false)); // found by Ctrl+F
    }
    return { outputs, reveal, recall };
  });
  const link = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const ask = target && asks.find(({ outputs }) => outputs.some((one) => one.contains(target)));
    if (!ask) return;
    ask.reveal("", false);
    target.scrollIntoView();
  };
  addEventListener("storage", () => {
    load(); // because another window has written
    for (const { recall } of asks) recall();
  });
  addEventListener("hashchange", link);
  link();
  document.querySelector(".predict-all")?.addEventListener("click", ({ target }) => {
    for (const { reveal } of asks) reveal("", false);
    target.replaceWith(Object.assign(document.createElement("span"),
      { textContent: "All results are shown", role: "status" }));
  });
  // Paper has room for all results, and the reader's screen is as before afterwards.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = asks.flatMap(({ outputs }) => outputs).filter((output) => output.hidden);
    for (const output of folded) output.removeAttribute("hidden");
  });
  addEventListener("afterprint", () => {
    for (const output of folded) output.setAttribute("hidden", "until-found");
  });
})();
