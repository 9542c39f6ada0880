// What the page's script makes of texts: node diagnose.cjs SCRIPT < {table, texts}
const { table, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { Log, compared, diagnose, firstError, ended } = require(process.argv[2])(table.constants);
const answers = texts.map((text) => {
  const log = new Log(text);
  const suspects = diagnose(log, table.cases).map((suspect) => [
    suspect.case[0],
    suspect.level,
    suspect.hits.map(([sign, hit]) => [sign[1], hit.text, hit.begin, hit.end,
      log.numbers[hit.first], log.rank(hit.first)]),
  ]);
  const end = ended(log);
  return [suspects, firstError(log), end === Infinity ? null : end, compared(log)];
});
process.stdout.write(JSON.stringify(answers));
