// Narrow a long list that is on the page: a box for words, and chips for kinds. Within a
// group of chips one has to fit, in each group in which any is pressed. The choice is in
// the page's address, so that a narrowed list can be linked.
(() => {
  const text = (element) => element.textContent.replace(/#$/, "").trim();
  const LISTS = { // what the items are, in which groups, and what is hidden with the last
    clinic: {
      things: "cases",
      items: () => [...document.querySelectorAll(".clinic-index li")].map((item) => ({
        parts: [item], group: item.closest("details"), words: text(item),
        kinds: { symptom: text(item.querySelector(".case-tag")), class: text(item.closest("details").querySelector("summary span")) },
      })),
    },
    glossary: {
      things: "terms",
      items: () => [...document.querySelectorAll("dl.glossary > dd")].map((meaning) => {
        const parts = [meaning];
        while (parts[0].previousElementSibling?.localName === "dt") parts.unshift(parts[0].previousElementSibling);
        const page = [...meaning.querySelectorAll("a.internal")].at(-1);
        return { parts, group: meaning.closest("section"), words: parts.map(text).join(" "),
          kinds: { "explained in": page ? text(page) : "" } };
      }),
    },
  };
  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  for (const box of document.querySelectorAll(".filter")) {
    const { things, items: find } = LISTS[box.dataset.filter], items = find();
    const chosen = new URLSearchParams(location.search), pressed = new Map();
    const input = make("input", { type: "search", id: "filter-words", autocomplete: "off", spellcheck: "false" });
    const status = make("p", { role: "status", class: "filter-count" });
    let before = false; // whether the list was narrowed: then its folds open
    input.value = chosen.get("words") ?? "";
    const update = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), groups = new Map();
      let count = 0;
      for (const { parts, group, words: have, kinds } of items) {
        const fits = words.every((word) => have.toLowerCase().includes(word))
          && [...pressed].every(([name, set]) => !set.size || set.has(kinds[name]));
        for (const part of parts) part.hidden = !fits;
        if (group) groups.set(group, groups.get(group) || fits);
        count += fits ? 1 : 0;
      }
      const narrowed = words.length > 0 || [...pressed.values()].some((set) => set.size);
      for (const [group, any] of groups) {
        group.hidden = !any;
        if (narrowed !== before && group.matches("details")) group.open = narrowed;
      }
      before = narrowed;
      status.textContent = count ? `${count} of ${items.length} ${things}`
        : `None of the ${items.length} ${things} fits: remove a word or a chip.`;
      const url = new URL(location.href);
      url.searchParams.delete("words");
      if (words.length) url.searchParams.set("words", input.value.trim());
      for (const [name, set] of pressed) {
        url.searchParams.delete(name);
        for (const value of set) url.searchParams.append(name, value);
      }
      try {
        if (url.href !== location.href) history.replaceState(history.state, "", url);
      } catch { /* this browser keeps the address of a file as it is */ }
    };
    input.addEventListener("input", update);
    const chips = Object.keys(items[0].kinds).map((name) => {
      const set = new Set(chosen.getAll(name)), values = items.map(({ kinds }) => kinds[name]).filter(Boolean);
      pressed.set(name, set);
      const buttons = [...new Set(values)].map((value) => {
        const button = make("button", { type: "button", "aria-pressed": set.has(value) },
          `${value} `, make("span", {}, values.filter((one) => one === value).length));
        button.addEventListener("click", () => {
          if (!set.delete(value)) set.add(value);
          button.setAttribute("aria-pressed", set.has(value));
          update();
        });
        return button;
      });
      const row = make("div", { role: "group", "aria-label": name, class: "filter-chips" }, ...buttons);
      const open = buttons.length < 6 || set.size;
      return make("details", open ? { open: "" } : {}, make("summary", {}, name), row);
    });
    box.append(make("label", { for: "filter-words" }, `Show ${things} with these words`), input, ...chips, status);
    update();
  }
})();
