// A guess beside the result: what a page and JupyterLab say once both are there.

// Return an output's text as a reader sees it, a table's row in a line.
const textOf = (output) => (output.querySelector("tr")
  ? [...output.querySelectorAll("tr")].map((row) => [...row.cells].map((c) => c.textContent.trim()).join("  "))
  : [output.textContent]).join("\n");

// Return the answer that a pattern finds in these outputs, or null.
const answerIn = (outputs, pattern) => {
  const found = pattern && new RegExp(pattern).exec(outputs.map(textOf).join("\n"));
  return found ? found.slice(1).map((part) => part.trim()).join(", ") : null;
};

// Compare numbers with numbers, and words with words; yes is True.
const WORDS = "zero one two three four five six seven eight nine ten".split(" ");
const plain = (text) => text.toLowerCase().replace(/(\d),(?=\d{3}\b)/g, "$1")
  .replace(/[a-z]+/g, (word) => (WORDS.includes(word) ? WORDS.indexOf(word)
    : { yes: "true", no: "false", none: 0, never: 0, once: 1, twice: 2 }[word] ?? word))
  .replace(/[−–]/g, "-").replace(/[^\w.%+-]+|\.(?!\d)/g, " ").trim();
const numbers = (text) => plain(text).match(/(?<!\d)-?\d+(?:\.\d+)?/g) ?? [];
// A guess with a decimal point need not have all the digits: 2.3 is right for 2.31.
const near = (guess, number) => {
  const digits = guess.split(".")[1]?.length;
  return digits ? Number(number).toFixed(digits) === Number(guess).toFixed(digits) : Number(guess) === Number(number);
};
const same = (guess, answer) => {
  const wanted = numbers(answer), given = numbers(guess);
  return wanted.length ? given.length === wanted.length && given.every((n, i) => near(n, wanted[i]))
    : ` ${plain(guess)} `.includes(` ${plain(answer)} `);
};

// Return one sentence about a guess ("" for none) and the answer (null for unknown).
const verdict = (guess, answer) => {
  if (answer === null) return guess ? `You guessed: ${guess}` : "The result:";
  const yes = answer.replace(/\bTrue\b/g, "yes").replace(/\bFalse\b/g, "no");
  if (!guess) return `The answer: ${yes}.`;
  return same(guess, answer) ? `As you guessed: ${yes}.` : `You guessed: ${guess}. The answer: ${yes}.`;
};
