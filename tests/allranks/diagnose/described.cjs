// What the page's script makes of texts: node described.cjs DIAGNOSE DESCRIBED < {table, texts}
const { Log, bare } = require(process.argv[2]);
const { candidates, ranked } = require(process.argv[3]);
const { table, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = texts.map((text) =>
  [candidates(new Log(text), bare, table), ranked(text, table)]);
process.stdout.write(JSON.stringify(answers));
