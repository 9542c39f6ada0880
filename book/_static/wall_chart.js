// The wall chart: a tab for each layout, and a playhead that fills the tanks. The
// drawings are Python's (allranks/topics/step/picture.py); this moves their parts.
(() => {
  const TIMES = 220; // ms from one moment of Play to the next
  const amount = (bytes) => bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${Math.round(bytes / 1e6)} MB`;
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  // Show a time in a drawing, after a moment: heights of the tanks' parts, the line, what
  // has been sent.
  function show(svg, { moments, sends }, { kinds, full, longest }, at, time) {
    const [, held] = moments[at];
    const sent = sends.reduce((sum, [start, end]) => sum + Math.min(Math.max(time - start, 0), end - start), 0)
      / (sends.reduce((sum, [start, end]) => sum + end - start, 0) || 1);
    for (const part of svg.querySelectorAll("[data-kind]")) {
      const kind = kinds.indexOf(part.dataset.kind), { floor, high } = part.dataset;
      const tall = (bytes) => bytes / full * high;
      const below = held.slice(0, kind).reduce((sum, bytes) => sum + bytes, 0);
      part.setAttribute("height", tall(held[kind]));
      part.setAttribute("y", floor - tall(below + held[kind]));
    }
    const line = svg.querySelector("[data-line]");
    line.setAttribute("transform", `translate(${time / longest * line.dataset.line} 0)`);
    for (const cell of svg.querySelectorAll("[data-cell]")) {
      const tall = sent * cell.dataset.size;
      cell.setAttribute("height", tall);
      cell.setAttribute("y", cell.dataset.cell - tall);
    }
  }

  function start(figure, number) {
    const facts = JSON.parse(figure.dataset.facts), names = Object.keys(facts.layouts);
    const panels = [...figure.querySelectorAll(".wall-panel")];
    const now = make("p", { class: "wall-now", role: "status" });
    const slider = make("input", { type: "range", class: "wall-time", min: 0, max: 1000, step: 1,
      "aria-label": "Moment of the step" });
    let layout = names.at(-1), at = 0, time = 0, timer = null;
    const moments = () => facts.layouts[layout].moments;

    function update() {
      const one = facts.layouts[layout], [since, held, done] = one.moments[at];
      slider.value = 1000 * time / facts.longest;
      for (const svg of figure.querySelectorAll(`[data-layout="${layout}"] svg`)) show(svg, one, facts, at, time);
      const most = Math.max(...one.moments.map(([, bytes]) => bytes.reduce((a, b) => a + b)));
      const sum = held.reduce((a, b) => a + b);
      now.textContent = `After ${(1e3 * since).toFixed(1)} ms (${done}), a rank holds ${amount(sum)}`
        + `${sum === most ? ", the most of the step" : ""}: `
        + `${facts.kinds.map((kind, i) => [kind, held[i]]).filter(([, bytes]) => bytes)
          .map(([kind, bytes]) => `${kind} ${amount(bytes)}`).join(", ")}.`;
      slider.setAttribute("aria-valuetext", `${(1e3 * time).toFixed(1)} ms, ${done}`);
    }

    // Go to a moment, and to a time between it and the next one.
    function go(to, between) {
      at = Math.min(Math.max(to, 0), moments().length - 1);
      time = between ?? moments()[at][0];
      update();
    }

    function choose(name) {
      layout = name;
      panels.forEach((panel) => { panel.hidden = panel.dataset.layout !== name; });
      tabs.forEach((tab) => {
        const chosen = tab.dataset.layout === name;
        tab.setAttribute("aria-selected", chosen);
        tab.tabIndex = chosen ? 0 : -1;
      });
      // Begin where something travels, so that tanks, lanes and sends all say something; a
      // GPU alone sends nothing, and begins at its peak.
      const { sends } = facts.layouts[name];
      const half = (sends[0]?.[0] + Math.max(...sends.map(([, end]) => end))) / 2;
      const sums = moments().map(([, held]) => held.reduce((a, b) => a + b));
      if (sends.length) go(moments().findLastIndex(([since]) => since <= half), half);
      else go(sums.indexOf(Math.max(...sums)));
    }

    const tabs = panels.map((panel, i) => {
      panel.id = `wall${number}-${i}`;
      panel.setAttribute("role", "tabpanel");
      const title = panel.firstElementChild;
      title.remove();
      const tab = make("button", { type: "button", role: "tab", "aria-controls": panel.id,
        id: `wall${number}-tab${i}`, "data-layout": panel.dataset.layout }, title.textContent);
      panel.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => choose(panel.dataset.layout));
      tab.addEventListener("keydown", ({ key }) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
        if (!by) return;
        const next = tabs[(i + by + tabs.length) % tabs.length];
        choose(next.dataset.layout);
        next.focus();
      });
      return tab;
    });
    const stop = () => {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    };
    const play = make("button", { type: "button" }, "Play");
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (at === moments().length - 1) go(0);
      play.textContent = "Pause";
      timer = setInterval(() => {
        go(at + 1);
        if (at === moments().length - 1) stop();
      }, TIMES);
    });
    const [back, next] = [["Back", -1], ["Next", 1]].map(([words, by]) => {
      const button = make("button", { type: "button" }, words);
      button.addEventListener("click", () => {
        stop();
        go(at + by);
      });
      return button;
    });
    // The slider is time; a tank shows the last moment before. Keys go from one to the next.
    slider.addEventListener("input", () => {
      stop();
      const chosen = Math.min(slider.value / 1000 * facts.longest, moments().at(-1)[0]);
      go(moments().findLastIndex(([since]) => since <= chosen + facts.longest / 2000), chosen);
    });
    slider.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
        Home: 0, End: Infinity }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      stop();
      go(to);
    });
    figure.prepend(make("div", { class: "wall-bar" },
      make("div", { role: "tablist", "aria-label": "Layout" }, ...tabs), back, next, play), now, slider);
    choose(layout);
    figure.classList.add("wall-on");
  }

  document.querySelectorAll("figure.wall-chart").forEach(start);
})();
