// Replays states against an explorable's JavaScript: what does compute make of each?
//     node replay.mjs MODULE [FUNCTION] < states.json > answers.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const module = await import(pathToFileURL(process.argv[2]));
const compute = module[process.argv[3] ?? "compute"];
const answers = JSON.parse(readFileSync(0, "utf8")).map((state) => {
  try {
    return compute(state);
  } catch (error) {
    return { error: error.message };
  }
});
process.stdout.write(JSON.stringify(answers));
