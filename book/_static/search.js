// The search of the book: which sections, cases, terms and figures answer a query?
// MiniSearch scores each word by BM25+; here is what a query means. It needs no page.
//
// MiniSearch was chosen among kept libraries because its index can be made in the
// browser from a script (Pagefind fetches files, which a page opened from a folder may
// not), it takes our own words, and it scores one word at a time, with fields, prefixes
// and typing errors. Lunr is no longer kept, and FlexSearch has no BM25.
(() => {
  const [PAGE, CASE, TERM, FIGURE, NOTEBOOK] = [0, 1, 2, 3, 4];
  const BOOST = { title: 4, said: 3.5, names: 1.6, lead: 1.5, slug: 1.5, messages: 1, words: 1,
    above: 0.6 };
  const PRIOR = { [PAGE]: 1, [CASE]: 1, [TERM]: 0.95, [FIGURE]: 0.6, [NOTEBOOK]: 0.7 };
  const HAN = /\p{Script=Han}/u, RUN = /\p{Script=Han}+/gu;
  const OPTION = "(?:(?<![\\p{L}\\p{N}-])(?:--|\u2013))?"; // a dash where two hyphens stood
  const NAME = "[\\p{L}\\p{N}]+(?:[-_\u2013]+[\\p{L}\\p{N}]+)*";
  const WORD = new RegExp(`${RUN.source}|${OPTION}${NAME}`, "gu");
  // Found by trying, on some 780 queries: messages, logs, terms, symptoms, questions.
  const FULL = 4; // beyond this multiple of a word's rarity, more of it hardly counts
  const PART = 0.1; // the weight of "set" in set_epoch
  const SYNONYM = 0.55, CAP = 0.7; // its share, and its limit as a share of the word's best
  const COVER = [0.3, 0.7]; // a place without the query's words keeps this; exponent
  const TITLE = 1.2, EXACT = 1.8; // all of the title is asked for; nothing else is
  const CLOSE = 2, LONG = 1.2; // words that follow each other, in few words or many
  const LESS = 0.8; // what is wrong elsewhere comes after what is right here
  const PASTED = /\w(?:Error|Exception|Warning)\b|[a-z]: |\w\(|"|\[[A-Z\d]/;
  const MANY = 120; // words of a query that are looked up

  // "synchronising" and "synchronised" are one word, and so are "batch" and "batches".
  function stem(word) {
    if (word.length < 4 || /\d/.test(word)) return word;
    let root = word.replace(/ies$/, "y").replace(/(x|ch|sh|ss)es$/, "$1");
    root = root.replace(/(parallel)isms?$/, "$1").replace(/([^sui])s$/, "$1").replace(/is(e|ed|ing|ation)$/, "iz$1");
    const short = root.replace(/(?:ation|ing|ed|ly)$/, "");
    if (short.length > 2 && /[aeiouy]/.test(short)) root = short;
    root = root.replace(/([bdgmnprt])\1$/, "$1");
    return root.length > 4 ? root.replace(/([st])ion$/, "$1").replace(/e$/, "") : root;
  }

  const STOP = new Set(("a an and are as at be but by can do does for from had has have how i"
    + " if in into is it its me my of on only or other our so some than that the their them"
    + " then there they this to too up was we what when where which while who why will with"
    + " you your get got after before between during vs versus use using used true false none"
    + " per keep just like").split(" ").map(stem));

  // Words as the index has them, each with its parts: set_epoch is also "set", "epoch".
  function tokens(text) {
    const found = [];
    for (const [chunk] of text.normalize("NFKC").replace(RUN, " $& ").matchAll(WORD)) {
      if (HAN.test(chunk)) {
        const signs = [...chunk];
        const pairs = signs.slice(1).map((sign, i) => ({ term: signs[i] + sign, parts: [] }));
        found.push(...(pairs.length ? pairs : [{ term: chunk, parts: [] }]));
        continue;
      }
      const option = /^[-\u2013]/.test(chunk);
      const named = chunk.replace(/^[-\u2013]+/, "").replace(/ZeRO/g, "zeroopt"); // no number
      const pieces = named.split(/[-_\u2013]+/).flatMap((piece) =>
        /[a-z][A-Z]/.test(piece) ? piece.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z\d]+/g) : [piece]);
      const parts = pieces.map((piece) => stem(piece.toLowerCase()));
      const joined = parts.join("");
      const inner = parts.length > 1 ? parts : [];
      if (option) found.push({ term: `--${joined}`, parts: [joined, ...inner] });
      else found.push({ term: joined, parts: inner });
    }
    return found;
  }

  const flat = (text) => tokens(text).flatMap(({ term, parts }) => [term, ...parts])
    .filter((term) => term.length > 1);

  const telling = ({ term }) => /\d/.test(term) || (term.length > 1 && !STOP.has(term));

  class Search {
    constructor({ pages, entries, words, synonyms }) {
      const code = (text) => (text.match(/../g) ?? []).map((two) =>
        list[digit(two[0]) * digits.length + digit(two[1])]).join(" ");
      const digits = Array.from({ length: 92 }, (_, n) => String.fromCharCode(35 + n))
        .filter((sign) => !"\\<&".includes(sign)).join("");
      const digit = (sign) => digits.indexOf(sign);
      const list = words.split(" ");
      this.docs = entries.map((row, id) => {
        const [number, anchor, kind, title, parent, lead, messages, said, names, rest] = row;
        const page = pages[number], path = [];
        for (let at = parent; at >= 0; at = entries[at][4]) path.unshift(entries[at][3]);
        const chinese = kind === TERM ? lead.split(" \u00b7 ")[0] : "";
        const titles = tokens(title).map(({ term }) => term);
        const slug = `${page} ${anchor}`.replace(/[^a-z\d]+/gi, " ");
        return { id, page, anchor, kind, title, path, lead, messages, said, slug, chinese, titles,
          above: path.join(" "), names: code(names), words: code(rest) };
      });
      this.counts = new Map();
      const seen = (text, field) => {
        const all = flat(text), named = field === "title" ? tokens(text) : [];
        if ([2, 3].includes(named.length)) all.push(named.map(({ term }) => term).join(""));
        for (const term of new Set(all)) this.counts.set(term, (this.counts.get(term) ?? 0) + 1);
        return all;
      };
      this.index = new MiniSearch({ fields: Object.keys(BOOST), tokenize: seen,
        processTerm: (term) => term });
      this.index.addAll(this.docs);
      this.found = new Map();
      this.synonyms = this.rules(synonyms);
    }

    // Each rule by its first word; glossary terms translate themselves.
    rules(table) {
      const rules = new Map();
      const add = (typed, others) => {
        const terms = (text) => tokens(text).map(({ term }) => term);
        const key = terms(typed), known = rules.get(key[0]) ?? [];
        const rule = { key, others: others.filter((other) => other !== typed).map(terms) };
        rules.set(key[0], [...known, rule]);
      };
      for (const [typed, others] of table) for (const one of typed) add(one, others);
      for (const doc of this.docs) {
        if (/\p{Script=Han}{2}/u.test(doc.chinese)) add(doc.chinese, [doc.title]);
      }
      return rules;
    }

    // One word's score in each document that has it.
    scores(term, options = {}) {
      const key = JSON.stringify([term, options]);
      if (!this.found.has(key)) {
        const hits = this.index.search(term, { boost: BOOST, tokenize: (t) => [t], ...options });
        this.found.set(key, new Map(hits.map(({ id, score }) => [id, score])));
      }
      return this.found.get(key);
    }

    idf(term) {
      const count = this.counts.get(term) ?? 0;
      return Math.log(1 + (this.docs.length - count / 2) / (count / 2 + 1));
    }

    // The score of an expression: that of all of its words, or nothing.
    expression(terms) {
      const [first, ...others] = terms.map((term) => this.scores(term));
      const found = new Map();
      for (const [id, score] of first) {
        const rest = others.map((one) => one.get(id));
        const sum = rest.reduce((a, b) => a + b, score);
        if (rest.every(Boolean)) found.set(id, sum / terms.length);
      }
      return found;
    }

    // A word without alternatives.
    one(term) {
      return { idf: this.idf(term), alternatives: [[this.scores(term), 1]] };
    }

    // What a query asks for: groups of alternatives, of which a document needs one.
    groups(query) {
      const typed = tokens(query).filter(({ term }) => term.length > 1 && !/^\d+$/.test(term))
        .slice(0, MANY);
      const sequence = typed.map(({ term }) => term);
      const groups = [];
      typed.forEach(({ term, parts }, at) => {
        const last = at === typed.length - 1 && !/\s$/.test(query);
        let weight = STOP.has(term) && typed.length > 1 ? 0.08 : 1;
        const exact = this.scores(term);
        const most = exact.size ? Math.max(...exact.values()) : Infinity;
        const alternatives = [[exact, 1]];
        const chinese = HAN.test(term); // its translation is as good as the word
        if (chinese) weight *= 0.7;
        let known = this.counts.has(term);
        if (term.length > 2 && (last || !known)) {
          const longer = this.scores(term, { prefix: true });
          if (longer.size) alternatives.push([longer, known ? 0.3 : 0.7]);
          known ||= longer.size > 0;
        }
        for (const { key, others } of this.synonyms.get(term) ?? []) {
          if (!key.every((word, n) => sequence[at + n] === word)) continue;
          const limits = chinese ? [1, Infinity] : [SYNONYM, CAP * most];
          for (const other of others) alternatives.push([this.expression(other), ...limits]);
          known = true;
        }
        if (!known && term.length > 4 && typed.length < 8) {
          const near = this.scores(term, { fuzzy: term.length > 7 ? 2 : 1 });
          if (near.size) alternatives.push([near, 0.6]);
          known = near.size > 0;
        }
        for (const size of [2, 3]) { // "set epoch" is set_epoch
          const joined = sequence.slice(at, at + size).join("");
          if (at + size <= sequence.length && this.counts.has(joined)) {
            groups.push({ weight: 0.8, ...this.one(joined) });
          }
        }
        for (const part of parts) {
          if (part.length > 1 && this.counts.has(part)) {
            groups.push({ weight: known ? PART : 0.5, ...this.one(part) });
          }
        }
        if (!known) weight *= parts.length ? 0 : 0.3;
        groups.push({ weight, idf: known ? this.idf(term) : 3, alternatives });
      });
      return { groups, sequence };
    }

    // How much of the query's neighboring words a document has as neighbors.
    closeness(pairs, doc) {
      if (!doc.pairs) {
        const text = [doc.title, doc.messages, doc.lead, doc.said].join(" . ");
        const own = tokens(text).filter(telling);
        const rows = [own.map(({ term }) => term), ...own.map(({ parts }) => parts)];
        const pairs = (row) => row.slice(1).map((term, i) => `${row[i]} ${term}`);
        doc.pairs = new Set(rows.flatMap(pairs));
      }
      return pairs.length && pairs.filter((pair) => doc.pairs.has(pair)).length / pairs.length;
    }

    // Documents that answer a query, best first.
    ask(query, most = 12) {
      const { groups, sequence } = this.groups(query);
      const totals = new Map();
      let possible = 0;
      for (const { weight, idf, alternatives } of groups) {
        possible += weight * idf;
        const best = new Map();
        for (const [scores, share, most = Infinity] of alternatives) {
          for (const [id, score] of scores)
            best.set(id, Math.max(best.get(id) ?? 0, Math.min(share * score, most)));
        }
        for (const [id, score] of best) {
          const total = totals.get(id) ?? { score: 0, covered: 0 };
          total.score += weight * idf * (1 + FULL) * score / (score + FULL * idf);
          total.covered += weight * idf;
          totals.set(id, total);
        }
      }
      const told = tokens(query).filter(telling).map(({ term }) => term).slice(0, MANY);
      const pairs = told.slice(1).map((term, i) => `${told[i]} ${term}`);
      const asked = sequence.filter((term) => !STOP.has(term)), sought = new Set(asked);
      const squeezed = sequence.join("");
      const pasted = PASTED.test(query), long = pasted || sequence.length > 9;
      const ranked = [...totals].map(([id, { score, covered }]) =>
        ({ id, score: score * (COVER[0] + (1 - COVER[0]) * (covered / possible) ** COVER[1]) }))
        .sort((a, b) => b.score - a.score).slice(0, 80);
      for (const hit of ranked) {
        const doc = this.docs[hit.id];
        hit.score *= PRIOR[doc.kind] * (doc.page.endsWith("errata") ? LESS : 1);
        const named = doc.titles.join(""), title = doc.titles.filter((term) => !STOP.has(term));
        const exact = asked.length && title.join("") === asked.join("");
        if (exact || named === squeezed || doc.chinese === query.trim()) hit.score *= EXACT;
        if (title.length && title.every((term) => sought.has(term))) {
          hit.score *= 1 + TITLE * Math.min(1, title.length / asked.length);
        }
        const close = this.closeness(pairs, doc);
        hit.score *= 1 + (long ? LONG : CLOSE) * close;
        if (long && doc.kind === CASE) hit.score *= pasted ? 1.5 : 1.2;
        Object.assign(hit, doc);
      }
      return ranked.sort((a, b) => b.score - a.score).slice(0, most);
    }
  }

  globalThis.allRanksSearch = { Search, STOP, stem, tokens };
})();
