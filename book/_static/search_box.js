// The form of the search: results while typing, in the theme's dialog and on search.html.
(() => {
  const { Search, STOP, tokens } = globalThis.allRanksSearch;
  const search = new Search(globalThis.allRanksIndex);
  const KINDS = ["Section", "Clinic", "Term", "Figure", "Notebook"];
  const CASE = 1;
  const AROUND = 70; // letters before the first match of a long message
  const SHOWN = 220;
  const root = new URL("..", globalThis.allRanksFolder);
  const address = (hit) => new URL(`${hit.page}.html#${hit.anchor}`, root).href;

  function make(name, className, ...content) {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...content);
    return element;
  }

  // What a query's words look like in a text: the same words, or longer ones while typing.
  function matcher(query) {
    const asked = tokens(query).flatMap(({ term, parts }) => [term, ...parts])
      .filter((term) => term.length > 1);
    const exact = new Set(asked.filter((term) => !STOP.has(term))), last = asked.at(-1);
    const asks = (word) => tokens(word).some(({ term, parts }) => [term, ...parts].some((one) =>
      exact.has(one) || (last?.length > 2 && one.startsWith(last))));
    const known = new Map();
    return (word) => known.get(word) ?? known.set(word, asks(word)).get(word);
  }

  function marked(text, hits) {
    const pieces = text.split(/([\p{L}\p{N}]+(?:[-_][\p{L}\p{N}]+)*)/u);
    return pieces.map((piece, i) => (i % 2 && hits(piece) ? make("mark", "", piece) : piece));
  }

  const matches = (text, hits) => new Set((text.match(/[\p{L}\p{N}_-]+/gu) ?? [])
    .filter((word) => hits(word)).map((word) => word.toLowerCase())).size;

  // The part of a text that begins shortly before its first match.
  function around(text, hits) {
    const first = [...text.matchAll(/[\p{L}\p{N}_-]+/gu)].find(([word]) => hits(word));
    const from = Math.max(0, (first?.index ?? 0) - AROUND);
    const begin = from ? text.indexOf(" ", from) + 1 : 0;
    const part = text.slice(begin, begin + SHOWN);
    return `${begin ? "… " : ""}${part}${begin + SHOWN < text.length ? " …" : ""}`;
  }

  function item(hit, hits) {
    const name = hit.kind === CASE ? `Clinic: ${hit.title}` : hit.title;
    const link = make("a", "search-hit");
    link.href = address(hit);
    const path = [KINDS[hit.kind], ...hit.path].join(" \u203a ");
    link.append(make("span", "search-path", path));
    link.append(make("span", "search-title", ...marked(name, hits)));
    if (hit.lead) link.append(make("span", "search-text", ...marked(hit.lead, hits)));
    const shown = matches(`${hit.title} ${hit.lead}`, hits);
    const [asked] = hit.said.split("; ").map((words) => ({ words, number: matches(words, hits) }))
      .sort((one, other) => other.number - one.number);
    if (asked.number > shown) { // it was found under other words than its own
      link.append(make("span", "search-text", "Also: ", ...marked(asked.words, hits)));
    }
    if (matches(hit.messages, hits) > Math.max(1, shown)) {
      link.append(make("code", "search-text", ...marked(around(hit.messages, hits), hits)));
    }
    return make("li", "", link);
  }

  function nothing(query) {
    const to = (page, text) => {
      const link = make("a", "", text);
      link.href = new URL(page, root).href;
      return link;
    };
    const said = `Nothing found for \u201c${query}\u201d. Paste a log into `;
    return make("p", "search-nothing", said,
      to("book/app_clinic.html#find-yours", "the box that finds its failure"), ", or look in ",
      to("book/app_glossary.html", "the glossary"), ".");
  }

  function attach(form, place, most) {
    const input = form.querySelector("input");
    const dialog = form.closest("dialog");
    const said = make("p", "search-said");
    const list = make("ol", "search-list");
    const rest = make("div");
    const all = make("a", "search-hit", "All results");
    said.setAttribute("role", "status");
    place.append(said, rest, list);
    let shown;
    const show = () => {
      const query = input.value.trim().replace(/\s+/g, " ");
      if (query === shown) return;
      shown = query;
      const found = query.length > 1 ? search.ask(input.value, most) : [];
      const hits = matcher(query);
      const items = found.map((hit) => item(hit, hits));
      all.href = new URL(`search.html?q=${encodeURIComponent(query)}`, root).href;
      if (dialog && items.length === most) items.push(make("li", "", all)); // to share, too
      list.replaceChildren(...items);
      rest.replaceChildren(...(query.length > 1 && !found.length ? [nothing(query)] : []));
      const number = found.length === 1 ? "1 result" : `${found.length} results`;
      said.textContent = query.length > 1 && found.length ? number : "";
      const own = query ? `?q=${encodeURIComponent(query)}` : location.pathname;
      if (!dialog) history.replaceState(null, "", own);
      (dialog ?? document.documentElement).classList.toggle("search-found", found.length > 0);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      show();
      list.querySelector("a")?.[dialog ? "click" : "focus"]();
    });
    input.addEventListener("input", show);
    input.addEventListener("focus", () => input.select());
    list.addEventListener("click", (event) => {
      if (event.target.closest("a") && !event.ctrlKey && !event.metaKey) dialog?.close();
    });
    (dialog ?? form.parentElement).addEventListener("keydown", (event) => {
      if (event.key === "Escape" && dialog?.open) {
        event.preventDefault();
        dialog.close();
      }
      const links = [...list.querySelectorAll("a")];
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || !links.length) return;
      event.preventDefault();
      const at = links.indexOf(document.activeElement) + step;
      (at < 0 ? input : links[Math.min(at, links.length - 1)]).focus();
    });
    return show;
  }

  const dialog = document.getElementById("pst-search-dialog");
  if (dialog) attach(dialog.querySelector("form"), dialog, 8)();
  const page = document.getElementById("search-results");
  if (page) {
    const form = page.parentElement.querySelector("form.bd-search");
    const input = form.querySelector("input");
    const asked = new URLSearchParams(location.search).get("q");
    if (asked && !input.value) input.value = asked;
    if (!input.value) input.focus();
    attach(form, page, 20)();
  }
})();
