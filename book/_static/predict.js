// A result that one should predict is shown after the guess, which stays beside it. The
// guesses are remembered in this browser, by page and place; without storage, until the
// page is left.
(() => {
  const KEY = "allranks.guesses", page = location.pathname.split("/").pop();
  let memory = {};
  try {
    memory = JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch { /* blocked, or not ours */ }
  const save = () => {
    try {
      localStorage.setItem(KEY, JSON.stringify(memory));
    } catch { /* blocked or full */ }
  };
  const asks = [...document.querySelectorAll(".predict-ask")].map((form) => {
    const output = document.getElementById(form.dataset.predict), key = `${page} ${output.id}`;
    const input = form.querySelector("input");
    const show = (guess, pressed) => {
      output.classList.add("shown");
      output.removeAttribute("hidden");
      const said = document.createElement("p");
      said.className = "predict-said";
      said.tabIndex = -1;
      said.textContent = guess ? `You guessed: ${guess}` : pressed ? "The result:" : "";
      form.replaceWith(said);
      if (pressed) said.focus({ preventScroll: true });
    };
    const reveal = (guess, pressed) => {
      if (output.classList.contains("shown")) return;
      memory[key] = guess;
      save();
      show(guess, pressed);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      reveal(input.value.trim(), true);
    });
    if (typeof memory[key] === "string") show(memory[key], false);
    else output.setAttribute("hidden", "until-found");
    output.addEventListener("beforematch", () => reveal("", false)); // found by Ctrl+F
    return { output, reveal };
  });
  const link = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const ask = target && asks.find(({ output }) => output.contains(target));
    if (!ask) return;
    ask.reveal("", false);
    target.scrollIntoView();
  };
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
    folded = asks.filter(({ output }) => output.hidden).map(({ output }) => output);
    for (const output of folded) output.removeAttribute("hidden");
  });
  addEventListener("afterprint", () => {
    for (const output of folded) output.setAttribute("hidden", "until-found");
  });
})();
