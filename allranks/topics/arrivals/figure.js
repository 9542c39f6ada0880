// Four ranks and one all_reduce. Mirrors figure.py and sums.py.

import { h, picture, rect, text, rankColor, amount, code, draggable, pressable, explorable } from "../kit/kit.js";
import { WORLD_SIZE, TIMEOUT, LATEST, FIRST } from "./figure.py";

const STEP = 50; // ms
const sum = (list) => list.reduce((a, b) => a + b, 0);
const ranks = [...Array(WORLD_SIZE).keys()];

// Name ranks as allranks.base.report.name_ranks does.
function nameRanks(list) {
  const runs = [];
  for (const rank of list) {
    if (runs.length && rank === runs.at(-1).at(-1) + 1) runs.at(-1).push(rank);
    else runs.push([rank]);
  }
  if (runs.length === 1 && runs[0].length > 1) return `ranks ${runs[0][0]}–${runs[0].at(-1)}`;
  const names = runs.flatMap((run) => (run.length > 2 ? [`${run[0]}–${run.at(-1)}`] : run));
  return names.length === 1 ? `rank ${names[0]}`
    : `ranks ${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function cell(arrives, absent) {
  const times = arrives.map((at) => (at ?? 0) / 1000).join(", ");
  const call = "dist.all_reduce(x)";
  return [`%%ranks --timeout ${TIMEOUT}`, "import time", "x = torch.tensor([float(rank)])",
    `time.sleep([${times}][rank])`,
    absent.length ? `if rank not in [${absent.join(", ")}]:\n    ${call}` : call, "x"].join("\n");
}

function outputOf(lines, present, absent, holds) {
  const done = absent.length ? absent : present, groups = new Map();
  for (const rank of done) groups.set(holds[rank], [...(groups.get(holds[rank]) ?? []), rank]);
  const shown = [...groups].map(([value, who]) => `${nameRanks(who)}: tensor([${value}.])`).join("\n");
  if (!present.length || !absent.length) return shown;
  const at = lines.findIndex((line) => line.includes("all_reduce"));
  return [shown, `timeout after ${TIMEOUT} s`,
    `${nameRanks(present)} wait${present.length > 1 ? "" : "s"} in \`${lines[at].trim()}\` at cell line ${at + 1}`,
    `${nameRanks(absent)} finished`].join("\n");
}

function summaryOf(seconds, present, absent, waits) {
  if (!present.length)
    return "Nobody calls all_reduce, so nobody waits; each keeps its own number.";
  const waited = amount(sum(waits), "s");
  if (absent.length) {
    const who = nameRanks(absent);
    return `${who[0].toUpperCase()}${who.slice(1)} never ${absent.length > 1 ? "call" : "calls"} all_reduce, `
      + `so ${nameRanks(present)} ${present.length > 1 ? "wait" : "waits"} in it, ${waited} in all, until `
      + `the cell's timeout ends that after ${TIMEOUT} s. A script would wait for half an hour, and print nothing.`;
  }
  const last = present.reduce((a, b) => (seconds[b] > seconds[a] ? b : a));
  return `Rank ${last} comes last, after ${amount(seconds[last], "s")}. The others wait for it: `
    + `${waited} added up. Then each rank holds 0 + 1 + 2 + 3 = 6.`;
}

export function compute({ arrives }) {
  if (arrives.length !== WORLD_SIZE) throw Error(`arrives must have ${WORLD_SIZE} entries`);
  arrives.forEach((at, rank) => {
    if (at !== null && !(at >= 0 && at <= LATEST))
      throw Error(`rank ${rank} cannot come after ${at} ms: 0 to ${LATEST}, or never`);
  });
  const seconds = arrives.map((at) => (at === null ? null : at / 1000));
  const present = ranks.filter((rank) => arrives[rank] !== null);
  const absent = ranks.filter((rank) => arrives[rank] === null);
  const begins = absent.length ? null : Math.max(...seconds), end = begins ?? TIMEOUT;
  const waits = seconds.map((at) => (at === null ? 0 : end - at));
  const holds = absent.length ? ranks : ranks.map(() => sum(ranks));
  const words = cell(arrives, absent);
  return { begins, waits, holds, code: words,
    output: outputOf(words.split("\n"), present, absent, holds),
    summary: summaryOf(seconds, present, absent, waits) };
}

const LANE = 44, PITCH = 52, TOP = 20;

function draw({ state, facts, set, width, narrow }) {
  const left = narrow ? 70 : 80, right = narrow ? 64 : 84;
  const scale = (width - left - right) / TIMEOUT, x = (seconds) => left + seconds * scale;
  const bottom = TOP + PITCH * WORLD_SIZE, { arrives } = state;
  const change = (rank, at) => set({ arrives: arrives.map((one, r) => (r === rank ? at : one)) });
  const end = facts.begins ?? TIMEOUT;
  const lane = (rank) => {
    const y = TOP + PITCH * rank, at = arrives[rank], gone = at === null;
    const until = x(gone ? TIMEOUT : at / 1000), hue = `--hue: ${rankColor(rank)}`;
    const who = pressable(h("svg:g", {},
      rect(1, y, left - 10, LANE, { class: "x-box", style: hue, "stroke-dasharray": gone ? "4 3" : null }),
      text((left - 8) / 2, y + 19, `rank ${rank}`),
      text((left - 8) / 2, y + 35, gone ? "bring back" : "take away", { class: "x-tiny" })),
    `rank${rank}`, gone ? `Bring rank ${rank} back` : `Take rank ${rank} away`,
    () => change(rank, gone ? FIRST[rank] : null));
    const wait = x(end) - until;
    return [
      rect(x(0), y, until - x(0), LANE, { class: gone ? "x-idle" : "x-box", style: hue, "data-id": `work${rank}` }),
      gone ? text(x(TIMEOUT / 2), y + 27, narrow ? "never comes" : "never calls all_reduce", { class: "x-soft" })
        : until - x(0) > 40 && text((x(0) + until) / 2, y + 27, "works", { class: "x-small" }),
      !gone && facts.waits[rank] > 0 && [
        rect(until, y, wait, LANE, { class: "x-wait", "data-id": `wait${rank}`, rx: 0 }),
        wait > 46 && text(until + wait / 2, y + 27,
          wait > 110 ? `waits ${amount(facts.waits[rank], "s")}` : "waits", { class: "x-small" }),
      ],
      text(width - 2, y + 27, `holds ${facts.holds[rank]}`, { "text-anchor": "end",
        class: facts.begins === null ? "" : "x-strong" }),
      who,
      !gone && draggable(h("svg:g", {},
        h("svg:rect", { x: until - 22, y, width: 44, height: LANE, fill: "transparent" }),
        h("svg:rect", { x: until - 4, y: y - 2, width: 8, height: LANE + 4, rx: 4, class: "x-handle" })),
      `late${rank}`, { label: `rank ${rank} calls all_reduce after, ms`, now: at, low: 0, high: LATEST,
        said: amount(at / 1000, "s"),
        move: (by, start) => Math.round((start + by / scale * 1000) / STEP) * STEP,
        step: (by) => at + by * STEP, set: (value) => change(rank, value) }),
    ];
  };
  return {
    picture: [
      picture(width, bottom + 20, "",
        text(x(0), 13, "0 s", { class: "x-small" }),
        text(x(TIMEOUT), 13, `${TIMEOUT} s`, { class: "x-small" }),
        h("svg:path", { class: "x-frame", d: `M${x(0)} 16V${bottom}M${x(TIMEOUT)} 16V${bottom}` }),
        ranks.map(lane),
        facts.begins !== null && [
          h("svg:path", { d: `M${x(end)} ${TOP - 4}V${bottom}`, stroke: "var(--x-ink)", "stroke-width": 2, "pointer-events": "none" }),
          text(Math.min(x(end), width - 120), bottom + 15, "all_reduce: they add up", { class: "x-small" }),
        ]),
    ],
    after: [
      h("p.x-tell", {}, "What the cell prints:"),
      h("pre.x-report", { tabindex: 0, "aria-label": "What the cell prints" }, facts.output),
    ],
    below: [
      h("details.x-fold", {}, h("summary", { "data-key": "cell" }, "The cell"), code(facts.code, "cell code")),
    ],
  };
}

export default explorable({
  name: "arrivals", title: "Four ranks, one all_reduce: take a rank away, or make it late",
  label: "Four ranks and one all_reduce", fields: [], compute, draw,
  ask: {
    always: true,
    question: "If rank 1 never calls all_reduce, what happens to the other three?",
    options: ["They add up what is there: 5.", "They fail at once, with an error.", "They wait, without a word."],
    answer: () => {
      const { begins, output } = compute({ arrives: [400, null, 600, 1300] });
      return begins !== null ? 0 : output.includes("wait in") ? 2 : 1;
    },
    show: { arrives: FIRST.map((at, rank) => (rank === 1 ? null : at)) },
    because: "The cell prints who waits, and where. Press rank 1 to bring it back, or to take it away.",
  },
});
