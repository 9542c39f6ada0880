// Which cases may a description mean: "it hangs at the end of the epoch"? It takes the same
// steps as allranks/diagnose/described.py with the same table, and a test compares the two.
((core) => {
  if (typeof module === "object") module.exports = core;
  else globalThis.allRanksDescribe = core;
})(({ constants, terms, main, tells, vague, cases, shared }) => {
  const { FEW, NEAR, LEAST, VAGUE, SHARED, ALONE, NEARLY, BRIEF } = constants;
  const [ENDS, LOGGED] = [constants.ENDS, constants.LOGGED].map(({ pattern }) => new RegExp(pattern));
  const { WORD, SPOKEN, ODD, NUMBER, TIMES, CARD } = Object.fromEntries(Object.entries(constants)
    .map(([name, { pattern }]) => [name, pattern && new RegExp(pattern, "g")]));
  const count = (text, pattern) => (text.match(pattern) ?? []).length;

  // The words of a text; "8xA100" is 8 GPUs.
  const normal = (text) => {
    const counted = text.toLowerCase().replace(TIMES, "$1 ").replace(CARD, "gpu ");
    return " " + (counted.match(WORD) ?? []).join(" ") + " ";
  };

  // Whether all words of a term stand close together.
  function near(text, [first, ...others]) {
    for (let at = text.indexOf(first); at >= 0; at = text.indexOf(first, at + 1)) {
      const part = text.slice(Math.max(0, at - NEAR), at + first.length + NEAR);
      if (others.every((other) => part.includes(other))) return true;
    }
    return false;
  }

  const stem = (word) => (word.length > 4 ? word.replace(ENDS, "") : word);

  // Score the cases of which the text tells enough by their things, and by the words that
  // they share with it, as far as these stand out. A case that lacks each main thing of the
  // text counts half, and one is left out if another fits far better.
  function ranked(text) {
    const plain = normal(text);
    const said = terms.map((some) => some.some((needles) => near(plain, needles)));
    const told = main.filter((thing) => said[thing]);
    const common = cases.map(() => 0);
    for (const word of new Set(plain.trim().split(" ").map(stem))) {
      if (!Object.hasOwn(shared, word)) continue;
      for (let i = 0; i < shared[word].length; i += 2) common[shared[word][i]] += shared[word][i + 1];
    }
    const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
    const mean = sum(common) / common.length;
    const spread = Math.sqrt(sum(common.map((words) => (words - mean) ** 2)) / common.length) || 1;
    const total = [];
    cases.forEach(([slug, things, share, must], i) => {
      const both = things.filter((thing) => said[thing]);
      const all = sum(both.map((thing) => tells[thing]));
      const vaguely = sum(both.filter((thing) => vague.includes(thing)).map((thing) => tells[thing]));
      if (all - (1 - VAGUE) * vaguely < LEAST || must.some((thing) => !said[thing])) return;
      const standsOut = Math.max(0, (common[i] - mean) / spread);
      if (both.length === 1 && standsOut < ALONE) return;
      const fits = !told.length || both.some((thing) => told.includes(thing));
      const score = fits ? share * all : (share * all) / 2;
      total.push([score + SHARED * standsOut, slug]);
    });
    const least = NEARLY * Math.max(0, ...total.map(([score]) => score));
    return total.filter(([score]) => score >= least).sort((a, b) => b[0] - a[0]);
  }

  // Whether a person wrote a line, as far as its signs and digits show it.
  function spoken(line, said) {
    const words = count(said, SPOKEN);
    return said === line.replace(/^[ |-]+/, "").replace(/ +$/, "") && words >= 2
      && 4 * count(said, ODD) <= words && 2 * count(said, NUMBER) <= words;
  }

  // Whether a short text describes something in words, and is no log.
  function isSaid(log, bare) {
    const lines = log.lines.filter((line) => /[^ ]/.test(line));
    const said = lines.filter((line) => spoken(line, bare(line))).length;
    return lines.length > 0 && lines.length <= BRIEF && 2 * said >= lines.length
      && !lines.some((line) => LOGGED.test(bare(line)));
  }

  // Name the cases and pages that a short text may describe, the best first.
  function candidates(log, bare) {
    if (!isSaid(log, bare)) return [];
    return ranked(log.lines.filter((line) => /[^ ]/.test(line)).join("\n")).slice(0, FEW).map(([, slug]) => slug);
  }

  return { candidates, isSaid, ranked };
});
