// What the page's script makes of texts: node diagnose.cjs SCRIPT < {table, texts}
const { Log, diagnose, firstError, plain, bare } = require(process.argv[2]);
const { table, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answers = texts.map((text) => {
  const log = new Log(text);
  const suspects = diagnose(log, table.cases).map((suspect) => [
    suspect.case[0],
    suspect.level,
    suspect.hits.map(([sign, hit]) => [sign[1], hit.text, hit.begin, hit.end,
      log.numbers[hit.first], log.rank(hit.first)]),
  ]);
  return [suspects, firstError(log)];
});
process.stdout.write(JSON.stringify(answers));
