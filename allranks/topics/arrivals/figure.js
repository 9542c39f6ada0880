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
  if (!sum(waits))
    return `All four call all_reduce after ${amount(seconds[0], "s")}, so nobody waits. Then each rank holds 0 + 1 + 2 + 3 = 6.`;
  const last = present.reduce((a, b) => (seconds[b] > seconds[a] ? b : a));
  return `Rank ${last} comes last, after ${amount(seconds[last], "s")}. The others wait for it, `
    + `and their waits add up to ${waited}. Then each rank holds 0 + 1 + 2 + 3 = 6.`;
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
  return { begins, waits, waited_s: sum(waits), holds, code: words,
    output: outputOf(words.split("\n"), present, absent, holds),
    summary: summaryOf(seconds, present, absent, waits) };
}

const LANE = 40, PITCH = 48, TOP = 21, CHIP = 28; // px
// The page's clock: it runs from 0 s once, and stands at the end otherwise (kit.css).
const ramp = (from, takes) => `clamp(0, (var(--x-time) - ${from}) / ${takes}, 1)`;
const appears = (from, takes = 0.01) => `opacity: ${ramp(from, takes)}`;
// Let something fly, at a moment, from so far away to where it stands.
const flies = (from, [dx, dy]) => `${appears(from)}; transform: translate(calc((1 - ${ramp(from, 0.35)}) * ${dx}px), `
  + `calc((1 - ${ramp(from, 0.35)}) * ${dy}px))`;

// A number as the book writes it: at its foot are the hues of the ranks that are in it.
function chip(x, y, value, who, attributes = {}) {
  const wide = (CHIP - 2) / who.length;
  return h("svg:g", attributes,
    rect(x, y, CHIP, CHIP, { class: "x-number" }),
    who.map((rank, i) => h("svg:rect", { x: x + 1 + i * wide, y: y + CHIP - 7, width: wide, height: 6, style: `fill: ${rankColor(rank)}` })),
    text(x + CHIP / 2, y + 16, value, { class: "x-strong" }));
}

// The part of a drawing that all lanes share.
function places({ state, facts, width, narrow }) {
  const left = narrow ? 62 : 72, right = narrow ? 68 : 46, scale = (width - left - right) / TIMEOUT;
  const x = (seconds) => left + seconds * scale, end = facts.begins ?? TIMEOUT;
  const bottom = TOP + PITCH * WORLD_SIZE, term = narrow ? 40 : 44, label = narrow ? 74 : 82;
  // Below the line the numbers are added up; the row stays within the drawing.
  const row = label + term * WORLD_SIZE + CHIP;
  const first = Math.max(left - CHIP / 2, Math.min(width - row - 1, x(end) - row / 2)) + label;
  const slot = (i) => first + i * term, chipY = (rank) => TOP + PITCH * rank + (LANE - CHIP) / 2;
  const at = (rank) => x((state.arrives[rank] ?? 0) / 1000) - CHIP / 2;
  return { scale, x, end, bottom, slot, chipY, at, label };
}

// What a rank does over time: it works until its number's handle, waits until the line,
// and goes on.
function bars(rank, { state: { arrives }, facts, before, narrow }, { x, end }) {
  const y = TOP + PITCH * rank, middle = y + LANE / 2 + 4, at = arrives[rank], early = { "text-anchor": "start" };
  if (at === null) return [
    rect(x(0), y, x(TIMEOUT) - x(0) - CHIP - 8, LANE, { class: "x-idle", "data-id": `work${rank}` }),
    text(x(0) + 12, middle, narrow ? "never calls it" : `never calls all_reduce, and prints tensor([${rank}.])`, { ...early, class: "x-soft" }),
  ];
  const until = x(at / 1000), wait = x(end) - until, waits = facts.waits[rank], room = wait - CHIP;
  const box = (deep) => ({ class: "x-box", style: `--hue: ${rankColor(rank)}; --deep: ${deep}` });
  const line = facts.code.split("\n").findIndex((one) => one.includes("all_reduce")) + 1;
  const words = room > 250 && facts.begins === null ? `waits ${amount(waits, "s")}, in line ${line}: dist.all_reduce(x)`
    : room > 84 ? `waits ${amount(waits, "s")}` : room > 36 && "waits";
  const hint = !before && rank === WORLD_SIZE - 1 && until - x(0) > 130; // until the reader has changed something
  const works = until - x(0) > (!hint ? 150 : narrow ? 190 : 260) ? `works ${amount(at / 1000, "s")}` : until - x(0) > 66 && "works";
  return [
    facts.begins !== null && rect(x(end), y, x(TIMEOUT) - x(end), LANE, { ...box("9%; stroke: none"), "data-id": `on${rank}`, rx: 0 }),
    rect(x(0), y, until - x(0), LANE, { ...box("26%"), "data-id": `work${rank}` }),
    works && text(x(0) + 12, middle, works, { ...early, class: "x-small", style: appears(at / 1000, 0.1) }), // then it is true
    waits > 0 && rect(until, y, wait, LANE, { class: "x-wait", "data-id": `wait${rank}`, rx: 0 }),
    waits > 0 && words && text(until + wait / 2 + CHIP / 4, middle, words, { class: "x-small" }),
    hint && text(until - 26, middle, narrow ? "drag me" : "now you: drag me",
      { class: "x-small x-strong", "text-anchor": "end", style: appears(TIMEOUT + 0.1, 0.2) }),
  ];
}

// What lies on the bars: a rank's number, what it holds in the end, and the button.
function parts(rank, { state: { arrives }, facts, width }, place, change) {
  const { x, end, slot, bottom, chipY } = place, y = TOP + PITCH * rank, middle = y + LANE / 2 + 4;
  const at = arrives[rank], gone = at === null, start = { "text-anchor": "start" };
  // The result stands after the line, or where that would cover the axis' end, after it.
  const near = x(end) + CHIP / 2 + 14, covers = near < x(TIMEOUT) + 3 && near + CHIP > x(TIMEOUT) - 3;
  const held = Math.min(covers ? x(TIMEOUT) + 3 : near, width - 32 - CHIP), room = x(TIMEOUT) - held - CHIP;
  return [
    text(0, middle, `rank ${rank}`, { ...start, class: gone ? "x-soft" : "" }),
    facts.begins !== null && [
      chip(held, chipY(rank), facts.holds[rank], ranks, { "data-id": `hold${rank}`, "pointer-events": "none",
        style: flies(end + 0.45, [slot(WORLD_SIZE) - held, bottom + 8 - chipY(rank)]) }),
      room > 84 && text(held + CHIP + 8, middle, `${room > 150 ? "prints " : ""}tensor([${facts.holds[rank]}.])`,
        { ...start, class: "x-small", style: appears(end + 0.8, 0.1) }),
    ],
    gone ? chip(x(TIMEOUT) - CHIP, chipY(rank), rank, [rank], { "data-id": `term${rank}` })
      : handle(rank, at, facts.begins === null ? "term" : "chip", change, place),
    remove(rank, gone, width - 18, y + LANE / 2, () => change(rank, gone ? FIRST[rank] : null)),
  ];
}

// A rank carries its number to the call: its chip is what one drags. `id`: a number that
// has not been added flies from here to the sum as soon as all have come (motion.js).
function handle(rank, at, id, change, { x, chipY, scale }) {
  const until = x(at / 1000), y = TOP + PITCH * rank;
  const arrow = (side) => h("svg:path", { class: "x-grip", d: `M${until + side * 19} ${y + LANE / 2 - 5}l${side * 5} 5l${-side * 5} 5z` });
  return draggable(h("svg:g", { style: `transform: translateX(calc(min(0, var(--x-time) - ${at / 1000}) * ${scale}px)); --hue: ${rankColor(rank)}` },
    h("svg:rect", { x: until - 24, y: y - 2, width: 48, height: LANE + 4, fill: "transparent" }),
    at > 0 && arrow(-1), at < LATEST && arrow(1), h("svg:path", { class: "x-rail", d: `M${until} ${y - 3}V${y + LANE + 3}` }),
    chip(until - CHIP / 2, chipY(rank), rank, [rank], { "data-id": `${id}${rank}` })),
  `late${rank}`, { label: `rank ${rank} calls all_reduce after, ms`, now: at, low: 0, high: LATEST,
    said: amount(at / 1000, "s"),
    move: (by, start) => Math.round((start + by / scale * 1000) / STEP) * STEP,
    step: (by) => at + by * STEP, set: (value) => change(rank, value) });
}

const remove = (rank, gone, x, y, press) => pressable(h("svg:g", {},
  h("svg:rect", { x: x - 20, y: y - 22, width: 40, height: 44, fill: "transparent" }),
  h("svg:circle", { cx: x, cy: y, r: 12, class: "x-frame" }),
  h("svg:path", { class: "x-cross", d: gone ? `M${x - 5} ${y}h10M${x} ${y - 5}v10` : `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` })),
`rank${rank}`, gone ? `Bring rank ${rank} back` : `Take rank ${rank} away`, press);

// The line at which all have come, and below it the sum. Without it, its places are empty.
function together({ facts }, place) {
  const { x, end, bottom, slot, chipY, at, label } = place, y = bottom + 8, done = facts.begins !== null;
  const sign = (i, words) => text((slot(i) + CHIP + slot(i + 1)) / 2, y + 18, words);
  return [
    h("svg:path", { class: done ? "x-line" : "x-idle", d: `M${x(end)} ${TOP - 6}V${done ? y - 4 : bottom - 8}`, style: appears(end) }),
    text(slot(0) - label, y + 18, "all_reduce:", { "text-anchor": "start", class: "x-small" }),
    ranks.map((i) => sign(i, i < WORLD_SIZE - 1 ? "+" : "=")),
    [...ranks, WORLD_SIZE].map((i) => rect(slot(i), y, CHIP, CHIP, { class: "x-idle" })),
    !done && ranks.map((rank) => rect(slot(WORLD_SIZE), y, CHIP, CHIP, { fill: "none", "data-id": `hold${rank}` })), // from where it will fly
    done && [
      ranks.map((rank) => chip(slot(rank), y, rank, [rank], { "data-id": `term${rank}`,
        style: flies(end, [at(rank) - slot(rank), chipY(rank) - y]) })),
      chip(slot(WORLD_SIZE), y, sum(ranks), ranks, { style: appears(end + 0.35, 0.1) }),
    ],
  ];
}

// Let time be over as soon as the reader has changed something.
function settle() {
  for (const one of document.getAnimations()) if (one.animationName === "x-play") one.finish();
}

function draw(view) {
  if (view.before) settle();
  const { state: { arrives }, facts, set, width, narrow } = view, place = places(view), { x, scale, bottom, end } = place;
  const change = (rank, at) => set({ arrives: arrives.map((one, r) => (r === rank ? at : one)) });
  const high = bottom + (narrow ? 66 : 44), early = !narrow && x(end) < width / 2, lost = facts.waited_s;
  return {
    picture: picture(width, high, "",
      text(x(0), 13, "0 s", { class: "x-small" }),
      facts.begins === null ? text(width, 13, `${TIMEOUT} s: timeout`, { class: "x-small", "text-anchor": "end" })
        : text(x(TIMEOUT), 13, `${TIMEOUT} s`, { class: "x-small" }),
      h("svg:path", { class: "x-frame", "stroke-opacity": 0.4, d: `M${x(0)} 18V${bottom - 8}M${x(TIMEOUT)} 18V${bottom - 8}` }),
      ranks.map((rank) => bars(rank, view, place)),
      h("svg:g", { "pointer-events": "none", style: `opacity: clamp(0, (${TIMEOUT} - var(--x-time)) * 99, 1); transform: translateX(calc(var(--x-time) * ${scale}px))` },
        h("svg:rect", { x: x(0), y: TOP - 2, width, height: bottom - TOP, class: "x-future" }),
        h("svg:path", { class: "x-frame", d: `M${x(0)} ${TOP - 6}V${bottom - 6}` })),
      together(view, place),
      ranks.map((rank) => parts(rank, view, place, change)),
      text(early ? x(TIMEOUT) : narrow ? 0 : x(0), high - (narrow ? 8 : 18), lost ? `${amount(lost, "s")} lost in waiting` : "nobody waits",
        { "text-anchor": early ? "end" : "start", class: "x-strong", style: `${lost ? "fill: var(--x-red); " : ""}${appears(end)}` })),
    below: [
      h("p", {}, "Each rank works for a while, and then calls all_reduce with its number. Drag a number to let its rank come earlier or later."),
      h("p.x-tell", {}, "The cell, and what it prints:"), code(facts.code, "cell code"),
      h("pre.x-report", { tabindex: 0, "aria-label": "What the cell prints" }, facts.output),
    ],
  };
}

export default explorable({
  name: "arrivals", title: "Four ranks call all_reduce",
  label: "Four ranks and one all_reduce", fields: [], compute, draw,
  ask: {
    always: true,
    question: "If rank 1 never calls all_reduce, what happens to the other three?",
    options: ["They get 5.", "They get an error.", "They wait, without a word."],
    answer: () => {
      const { begins, output } = compute({ arrives: [400, null, 600, 1300] });
      return begins !== null ? 0 : output.includes("wait in") ? 2 : 1;
    },
    show: { arrives: FIRST.map((at, rank) => (rank === 1 ? null : at)) },
    because: "Press × to take a rank away, and + to bring it back.",
  },
});
