// Which cases may a description mean: "it hangs at the end of the epoch"? It takes the same
// steps as allranks/diagnose/described.py with the same table, and a test compares the two.
(() => {
  const FEW = 5;
  const NEAR = 40;
  const LEAST = 0.9;
  const SHARED = 0.7;
  const VAGUE = 3;
  const NEARLY = 0.5;
  const BRIEF = 12;
  const LOGGED = /^(?:[a-z][\w-]*: |[\w.]*(?:Error|Exception|Warning)\b|File "|Traceback)/;
  const SPOKEN = /[A-Za-z]{2,}|[\u4e00-\u9fff]/g;
  const ODD = /[=\[\]{}<>|\\#@*~]|[:/][^ ]|[0-9][.:][0-9]|(?:^| )--?[A-Za-z]/g;
  const count = (text, pattern) => (text.match(pattern) ?? []).length;

  const normal = (text) =>
    " " + (text.toLowerCase().match(/[a-z0-9]+|[\u4e00-\u9fff]+/g) ?? []).join(" ") + " ";

  // Whether all words of a term stand close together.
  function near(text, [first, ...others]) {
    for (let at = text.indexOf(first); at >= 0; at = text.indexOf(first, at + 1)) {
      const part = text.slice(Math.max(0, at - NEAR), at + first.length + NEAR);
      if (others.every((other) => part.includes(other))) return true;
    }
    return false;
  }

  const stem = (word) => (word.length > 4 ? word.replace(/(?:ing|ed|es|s|e)$/, "") : word);

  // Score all cases by their things, and among equals by the words that they share with the
  // text; a case that lacks each main thing of the text counts half. A case counts only if
  // the text has more of it than vague things, and is left out if another fits twice as well.
  function ranked(text, { terms, main, vague, cases, shared }) {
    const plain = normal(text);
    const said = terms.map((some) => some.some((needles) => near(plain, needles)));
    const told = main.filter((thing) => said[thing]);
    const scores = cases.map(([, weights, must]) => {
      if (must.some((thing) => !said[thing])) return 0;
      const sum = weights.reduce((all, [thing, weight]) => all + (said[thing] ? weight : 0), 0);
      const both = weights.filter(([thing]) => said[thing]);
      if (both.length < VAGUE && both.every(([thing]) => vague.includes(thing))) return 0;
      const fits = !told.length || weights.some(([thing]) => told.includes(thing));
      return fits ? sum : sum / 2;
    });
    const best = Math.max(...scores);
    if (best < LEAST) return [];
    const common = scores.map(() => 0);
    for (const word of new Set(plain.trim().split(" ").map(stem))) {
      if (!Object.hasOwn(shared, word)) continue;
      for (let i = 0; i < shared[word].length; i += 2) common[shared[word][i]] += shared[word][i + 1];
    }
    const most = Math.max(...common) || 1;
    const total = cases.map(([slug], i) =>
      [scores[i] ? scores[i] / best + SHARED * common[i] / most : 0, slug]);
    const least = NEARLY * Math.max(...total.map(([score]) => score));
    return total.filter(([score]) => score >= least).sort((a, b) => b[0] - a[0]);
  }

  // Whether a person wrote a line, as far as its signs and digits show it.
  function spoken(line, said) {
    const words = count(said, SPOKEN);
    return said === line.replace(/^[ |-]+/, "").replace(/ +$/, "") && words >= 2
      && 4 * count(said, ODD) <= words && 2 * count(said, /[0-9]+/g) <= words;
  }

  // Whether a short text describes something in words, and is no log.
  function isSaid(log, bare) {
    const lines = log.lines.filter((line) => /[^ ]/.test(line));
    const said = lines.filter((line) => spoken(line, bare(line))).length;
    return lines.length > 0 && lines.length <= BRIEF && 2 * said >= lines.length
      && !lines.some((line) => LOGGED.test(bare(line)));
  }

  // Name the cases and pages that a short text may describe, the best first.
  function candidates(log, bare, table) {
    if (!isSaid(log, bare)) return [];
    return ranked(log.lines.filter((line) => /[^ ]/.test(line)).join("\n"), table).slice(0, FEW).map(([, slug]) => slug);
  }

  const core = { candidates, isSaid, ranked };
  if (typeof module === "object") module.exports = core;
  else globalThis.allRanksDescribe = core;
})();
