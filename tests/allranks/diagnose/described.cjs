// What the page's scripts make of texts: node described.cjs DIAGNOSE DESCRIBED < {signs, table, texts}
const { signs, table, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { Log, bare } = require(process.argv[2])(signs.constants);
const { candidates, ranked } = require(process.argv[3])(table);
const answers = texts.map((text) => [candidates(new Log(text), bare), ranked(text)]);
process.stdout.write(JSON.stringify(answers));
