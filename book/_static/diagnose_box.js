// The form around diagnose.js: the reader pastes, drops or chooses a log, and sees which
// failures it shows, with cause, cure and change. Nothing is sent, so the log stays in
// this page.
(() => {
  const folder = new URL(".", document.currentScript.src).href;
  const { Log, bare, diagnose, firstError, ended, compared,
    SHOWN, FULL, ECHO, HEAD, CONTROL, ENDS } = globalThis.allRanksDiagnose;
  const { classes, cases } = globalThis.allRanksClinic;
  const MOST = 64 * 2 ** 20;
  const LETTERS = 240;
  const KNOWN = "ddp-unused-params"; // the case that the example shows
  const EXAMPLE = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 31, in <module>',
    "[rank1]:     loss = step(model, batch)",
    "[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before ",
    "starting a new one. This error indicates that your module has parameters that were not used",
    "[rank0]: RuntimeError: Read error [127.0.0.1]:9888: Connection reset by peer.",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED",
  ].join("\n");

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // Show `names` in a title as code.
  const words = (title) => title.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

  // A signature may begin within a word, as "xpected" does, for both ways to write it.
  const wordStart = (text, at) => at - /\w*$/.exec(text.slice(0, at))[0].length * /\w/.test(text[at]);

  // Show the line that matched; a long one is cut around the match.
  function excerpt(hit) {
    const from = wordStart(hit.text, hit.begin);
    const begin = Math.max(0, Math.min(from - 60, hit.end - LETTERS));
    const end = Math.min(hit.text.length, Math.max(hit.end, begin + LETTERS));
    const stop = Math.min(hit.end, end);
    return make("code", {}, begin ? "…" : "", hit.text.slice(begin, from),
      make("mark", {}, hit.text.slice(from, stop)),
      hit.text.slice(stop, end), end < hit.text.length ? "…" : "");
  }

  // Load a script, since a page that was opened as a file may load no other data; one that
  // failed is tried again.
  const loading = new Map();
  function load(file) {
    if (!loading.has(file)) {
      loading.set(file, new Promise((done, fail) => {
        const script = make("script", { src: folder + file });
        script.onload = done;
        script.onerror = () => {
          loading.delete(file);
          fail();
        };
        document.head.append(script);
      }));
    }
    return loading.get(file);
  }

  // Get what there is to say about the cases of a class.
  const loaded = globalThis.allRanksTexts = {};
  const texts = (name, file) => load(file).then(() => loaded[name]);

  // Say cause and cure in the words of the shell's answer, and show what changes.
  function told([cause, cure, change], open) {
    const lines = change.split("\n").map((line) => {
      const kind = { "+": "gi", "-": "gd" }[line[0]];
      return kind ? make("span", { class: kind }, line + "\n") : line + "\n";
    });
    return [
      make("p", {}, make("strong", {}, "Cause: "), ...words(cause)),
      make("p", {}, make("strong", {}, "Cure: "), ...words(cure)),
      make("details", open ? { open: "" } : {}, make("summary", {}, "Broken → fixed"),
        make("div", { class: "highlight" }, make("pre", {}, ...lines))),
    ];
  }

  function result(log, suspect, files, first) {
    const [slug, title, kind, symptom] = suspect.case;
    const [name, page] = classes[kind];
    const address = page + ".html#clinic-" + slug;
    const doubt = suspect.level === FULL || !suspect.hits.length ? "" : suspect.level < ECHO
      ? " · perhaps: the message has other causes, too"
      : " · perhaps the echo of another rank's failure: look for what came before";
    const seen = new Set();
    const lines = suspect.hits.map(([, hit]) => hit).sort((a, b) => a.first - b.first)
      .filter((hit) => !seen.has(hit.first) && seen.add(hit.first))
      .map((hit) => {
        const rank = log.rank(hit.first);
        const place = "line " + log.numbers[hit.first] + (rank ? ", rank " + rank : "");
        return make("li", {}, make("span", { class: "diagnose-place" }, place), excerpt(hit));
      });
    const ranks = lines.length && suspect.hits.some(([, hit]) => hit.text.includes("WorkNCCL("))
      ? compared(log) : "";
    const more = make("div", { class: "diagnose-told" });
    const unfolded = first && suspect.hits.length > 0;
    texts(name, files[kind]).then((all) => more.replaceChildren(...told(all[slug], unfolded)),
      () => more.replaceChildren(make("p", {}, "Cause and cure could not be loaded: "
        + "they are on the page that the title links.")));
    return make("li", {},
      make("h3", { class: "diagnose-title", tabindex: -1 },
        make("a", { href: address }, ...words(title))),
      make("p", { class: "diagnose-kind" }, name + " · " + ENDS[symptom] + doubt),
      lines.length ? make("ul", { class: "diagnose-lines" }, ...lines) : "",
      ranks ? make("p", { class: "diagnose-ranks" }, make("strong", {}, "Ranks: "), ranks) : "",
      suspect.hits.length ? more : make("details", first ? { open: "" } : {},
        make("summary", {}, "Cause and cure"), more));
  }

  // An example of a line and its answer, as it stands here until the reader asks.
  function still() {
    const [slug, title, kind] = cases.find(([name]) => name === KNOWN);
    const [before, seen, after] = EXAMPLE.split("\n")[3].split(/(Expected.*iteration)/);
    return make("div", { class: "diagnose-still" },
      make("p", { class: "diagnose-hint" }, "For example, this line:"),
      make("p", {}, make("code", {}, before, make("mark", {}, seen), after + "…")),
      make("p", {}, "→ ", make("a", { href: classes[kind][1] + ".html#clinic-" + slug }, ...words(title)),
        ", with its cause and its cure"));
  }

  // A section of the book that answers what is no failure.
  function section([title, place, says]) {
    const [page, anchor] = place.split("#");
    return make("li", {},
      make("h3", { class: "diagnose-title", tabindex: -1 },
        make("a", { href: page + ".html#" + anchor }, ...words(title))),
      make("p", { class: "diagnose-kind" }, "a section of this book"),
      make("p", {}, ...words(says)));
  }

  // Recognise UTF-16 by its mark, or by zeros in every other byte, exactly as
  // allranks/diagnose/reading.py does.
  function encoding(bytes) {
    const mark = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()];
    const head = bytes.subarray(0, HEAD), half = head.length >> 1;
    const zeros = [0, 0];
    head.forEach((byte, i) => { zeros[i % 2] += byte === 0; });
    const [even, odd] = zeros;
    const wide = half && Math.max(even, odd) >= 0.4 * half && Math.min(even, odd) <= half >> 3;
    return mark ?? (wide ? (even > odd ? "utf-16be" : "utf-16le") : "utf-8");
  }

  class Box {
    constructor(box) {
      this.files = box.dataset.texts.split(" "); // one for each class, in their order
      this.words = box.dataset.words.split(" "); // to find what a description may mean
      this.text = make("textarea", { id: "diagnose-log", rows: 5, spellcheck: "false",
        autocomplete: "off", autocapitalize: "off", "aria-describedby": "diagnose-hint" });
      this.file = make("input", { type: "file", id: "diagnose-file" });
      const example = make("button", { type: "button" }, "Show an example");
      this.status = make("p", { class: "diagnose-status", role: "status" });
      this.list = make("ol", { class: "diagnose-found" });
      this.still = still();
      this.form = make("form", {},
        make("label", { for: "diagnose-log" }, "A traceback or a log, or what you see"),
        this.text,
        make("p", { id: "diagnose-hint", class: "diagnose-hint" },
          "Paste it unedited. Nothing leaves this page."),
        make("div", { class: "diagnose-buttons" },
          make("button", { type: "submit" }, "Find it"),
          make("label", { for: "diagnose-file" }, "or a log file", this.file),
          example));
      box.replaceChildren(this.form, this.status, this.still, this.list);
      this.form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.find(this.text.value);
      });
      this.text.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
      });
      this.text.addEventListener("paste",
        () => setTimeout(() => this.find(this.text.value, "", true)));
      example.addEventListener("click", () => {
        this.text.value = EXAMPLE;
        this.find(EXAMPLE);
      });
      this.file.addEventListener("change", () => this.read(this.file.files[0]));
      box.addEventListener("dragover", (event) => event.preventDefault());
      box.addEventListener("drop", (event) => {
        if (!event.dataTransfer.files.length) return; // the field itself takes dragged text
        event.preventDefault();
        this.read(event.dataTransfer.files[0]);
      });
    }

    say(text) {
      this.still.remove();
      this.list.replaceChildren();
      this.status.textContent = text;
      this.status.scrollIntoView({ block: "nearest", behavior: "instant" });
    }

    // Read a file in the browser.
    read(file) {
      if (!file) return;
      if (file.size > MOST) {
        this.say(file.name + " has more than 64 MiB: give its last part, or use the shell.");
        return;
      }
      this.say("Reading " + file.name + " …");
      const reader = new FileReader();
      reader.onerror = () => this.say(file.name + " cannot be read.");
      reader.onload = () => {
        const bytes = new Uint8Array(reader.result);
        const text = new TextDecoder(encoding(bytes)).decode(bytes);
        const odd = (text.slice(0, HEAD).match(CONTROL) ?? []).length;
        if (odd > 8 + Math.min(text.length, HEAD) / 10) {
          this.say(file.name + " is not a text file: unpack it, and choose the log inside.");
          return;
        }
        this.find(text.replaceAll("\0", ""), " in " + file.name);
      };
      reader.readAsArrayBuffer(file);
    }

    // Look for cases. The focus moves to the first one, unless it `stays` in the field.
    find(text, where = "", stays = false) {
      if (!text.trim()) {
        this.say("Nothing to look at: paste a traceback or a log, or choose a file.");
        return;
      }
      this.say("Looking …");
      // Let the browser paint first.
      setTimeout(() => this.show(new Log(text), where, stays));
    }

    show(log, where, stays) {
      const found = diagnose(log, cases).slice(0, SHOWN);
      const end = ended(log);
      if (!found.length && end < Infinity) {
        this.say("Ctrl-C ended this job, in line " + log.numbers[end] + where + ", and nothing"
          + " before it shows a failure. If it stood still: the page on hangs, below, says"
          + " which tool finds the rank that the others wait for.");
        return;
      }
      if (!found.length) {
        const pages = this.words.map(load);
        Promise.all(pages).then(() => this.guess(log, where, stays),
          () => this.unknown(log, where));
        return;
      }
      this.say((found.length > 1 ? found.length + " cases match" + where + ". The likeliest: "
        : "One case matches" + where + ": ") + found[0].case[1].replaceAll("`", "") + ".");
      this.fill(log, found, stays);
    }

    fill(log, found, stays) {
      this.list.replaceChildren(...found.map((suspect, i) =>
        (suspect.page ? section(suspect.page) : result(log, suspect, this.files, !i))));
      this.status.scrollIntoView({ block: "start", behavior: "instant" });
      if (!stays) this.list.querySelector("h3").focus({ preventScroll: true });
    }

    unknown(log, where) {
      const line = firstError(log);
      const first = line === null ? "" : " The first line that looks like an error is "
        + log.numbers[line] + ".";
      this.say("Not known: none of " + cases.length + " cases shows" + where + "." + first
        + " Look at the first error in time, of each rank, not at the last. No error at all?"
        + " Say in a sentence what you see, or answer the questions below.");
    }

    // Name the cases that a text may describe.
    guess(log, where, stays) {
      const { allRanksDescribe: describe, allRanksDescribed: table } = globalThis;
      const { candidates, isSaid } = describe(table);
      const found = candidates(log, bare).map((slug) => table.pages[slug]
        ? { page: table.pages[slug] } : { case: cases.find((one) => one[0] === slug), hits: [] });
      if (!found.length && isSaid(log, bare)) {
        this.say("Not known: nothing in the book fits these words. Say what you see, and when:"
          + " does it hang, fail, run out of memory, is it wrong, is it slow? With how many GPUs"
          + " and machines; in DDP, FSDP, a pipeline? Or answer the questions below.");
        return;
      }
      if (!found.length) {
        this.unknown(log, where);
        return;
      }
      this.say("Not known: none of " + cases.length + " cases shows. But if this describes what"
        + " you see, it may be " + (found.length > 1
          ? "one of these " + found.length + ", the likeliest first." : "this."));
      this.fill(log, found, stays);
    }
  }

  document.querySelectorAll(".diagnose").forEach((box) => new Box(box));
})();
