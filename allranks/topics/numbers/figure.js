// A number in formats of few bits. Mirrors sums.py.

import { h, picture, rect, text, rankColor, table, pressable, draggable, explorable } from "../kit/kit.js";
import { FORMATS as BITS, MOST_LETTERS, MOST_EXPONENT, NUMBER } from "./sums.py";

const FORMATS = Object.fromEntries(Object.entries(BITS).map(([key, { label, exponent, mantissa, infinite }]) => {
  const sign = 2 ** (exponent + mantissa), ends = infinite ? 2 ** mantissa : 1;
  return [key, { label, exponent, mantissa, infinite, sign, top: sign - ends - 1, nan: sign - (infinite ? ends / 2 : 1), least: 2 - 2 ** (exponent - 1) - mantissa }];
}));
const KEYS = Object.keys(FORMATS);

// A fraction is a pair of BigInts.
const pow = (base, k) => k < 0 ? [1n, base ** BigInt(-k)] : [base ** BigInt(k), 1n];
const times = ([a, b], [c, d]) => [a * c, b * d];
const plus = ([a, b], [c, d]) => [a * d + c * b, b * d];
const less = ([a, b], [c, d]) => a * d < c * b;
const minus = ([a, b]) => [-a, b];
const size = ([a, b]) => [a < 0n ? -a : a, b];
function round([a, b]) { // to the nearest, ties to the even
  const whole = a / b, rest = 2n * (a % b);
  return rest > b || (rest === b && whole & 1n) ? whole + 1n : whole;
}

function read(name, typed) {
  if ([...typed].length > MOST_LETTERS) throw Error(`${name} must have at most ${MOST_LETTERS} letters`);
  const found = NUMBER.exec(typed);
  if (!found) throw Error(`${name} must be a number, such as 0.1, 1e-4 or 2^-24, not “${typed}”`);
  const [, sign, two, whole, part, ten] = found, power = Number(two ?? ten ?? 0);
  if (Math.abs(power) > MOST_EXPONENT)
    throw Error(`${name} must have an exponent from -${MOST_EXPONENT} to ${MOST_EXPONENT}`);
  return [sign === "-", two ? pow(2n, power)
    : times([BigInt(whole + part), 1n], pow(10n, power - part.length))];
}

function encode(form, x, negative) {
  let code = 0;
  if (x[0]) {
    let power = x[0].toString(2).length - x[1].toString(2).length;
    power -= less(x, pow(2n, power));
    const last = Math.max(power - form.mantissa, form.least);
    code = Number(round(times(x, pow(2n, -last)))) + (last - form.least) * 2 ** form.mantissa;
  }
  if (code > form.top) code = form.top + form.infinite;
  return code + form.sign * negative;
}

function decode(form, code) {
  const bare = code % form.sign, unit = 2 ** form.mantissa;
  if (bare > form.top) return null;
  const exponent = Math.floor(bare / unit), mantissa = bare % unit + (exponent ? unit : 0);
  const x = times([BigInt(mantissa), 1n], pow(2n, form.least + Math.max(exponent - 1, 0)));
  return code >= form.sign ? minus(x) : x;
}

function add(form, a, b) {
  const one = decode(form, a), other = decode(form, b);
  if (one === null || other === null) {
    const odd = [[a, one], [b, other]].filter(([, x]) => x === null).map(([code]) => code);
    return odd.some((c) => c % form.sign !== form.top + 1) || odd[0] !== odd.at(-1) ? form.nan : odd[0];
  }
  const total = plus(one, other);
  return encode(form, size(total), total[0] < 0n || (!total[0] && Math.min(a, b) >= form.sign));
}

function neighbours(form, code) {
  const negative = code >= form.sign, bare = code % form.sign;
  if (bare > form.top + form.infinite) return [null, null];
  const outer = bare < form.top ? bare + 1 : null, inner = bare ? bare - 1 : null;
  if (negative) return [outer === null ? null : outer + form.sign, inner === null ? 1 : inner + form.sign];
  return [inner === null ? form.sign + 1 : inner, outer];
}

function bits(form, code) {
  const all = code.toString(2).padStart(1 + form.exponent + form.mantissa, "0");
  return `${all[0]} ${all.slice(1, -form.mantissa)} ${all.slice(-form.mantissa)}`;
}

function kind(form, code) {
  const bare = code % form.sign;
  if (bare > form.top) return form.infinite && bare === form.top + 1 ? "inf" : "NaN";
  return bare >= 2 ** form.mantissa ? "normal" : bare ? "subnormal" : "zero";
}

function decimal(signed, digits = 9) {
  if (!signed[0]) return "0";
  const sign = signed[0] < 0n ? "-" : "", x = size(signed);
  let power = String(x[0]).length - String(x[1]).length;
  power -= less(x, pow(10n, power));
  let number = String(round(times(x, pow(10n, digits - 1 - power))));
  power += number.length > digits;
  number = number.replace(/0+$/, "");
  if (power < -5 || power >= 9) return `${sign}${number[0]}${number[1] ? "." : ""}${number.slice(1)}e${power}`;
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${number}`;
  const rest = number.slice(power + 1);
  return `${sign}${number.slice(0, power + 1).padEnd(power + 1, "0")}${rest ? "." : ""}${rest}`;
}

function show(form, code) {
  if (code === null) return "–";
  const x = decode(form, code), sign = code >= form.sign ? "-" : "", word = kind(form, code);
  return x === null ? (word === "NaN" ? word : sign + word) : x[0] ? decimal(x) : `${sign}0`;
}

function one(form, [negative, number], [down, more]) {
  const code = encode(form, number, negative), value = decode(form, code);
  const total = add(form, code, encode(form, more, down));
  const [below, above] = neighbours(form, code).map((next) => show(form, next));
  const off = value && size(plus(size(value), minus(number)));
  return {
    bits: bits(form, code), kind: kind(form, code), below, value: show(form, code), above,
    error: !off ? "–" : off[0] ? `${decimal([100n * off[0] * number[1], off[1] * number[0]], 2)} %` : "none",
    sum: show(form, total), lost: more[0] > 0n && total === code && value !== null,
    least: show(form, 1), normal: show(form, 2 ** form.mantissa), most: show(form, form.top),
  };
}

function summary(state, { exact: [number, more, exact], formats }) {
  const it = formats[state.form];
  let words = `${number} in ${FORMATS[state.form].label} is ${it.value}` + {
    zero: number === "0" ? ". " : ": too small, and rounded to zero. ",
    inf: `: the largest number is ${it.most}. `,
    subnormal: ", a subnormal number of fewer bits. ", normal: ". ",
  }[it.kind];
  if (it.value.replace("-", "") === it.most && it.error !== "none")
    words = `${words.slice(0, -2)}, the largest number there is. `;
  const near = [it.below, it.above].filter((x) => x !== "–");
  if (it.kind !== "inf") words += `Its neighbour${near[1] ? "s are" : " is"} ${near.join(" and ")}. `;
  words += `Adding ${more} gives ${it.sum}${it.lost ? ", as before" : ""}. `;
  const lost = KEYS.filter((key) => formats[key].lost).map((key) => FORMATS[key].label);
  return words + (lost.length ? `It is rounded away in ${lost.join(", ")}.` : `Exactly it would be ${exact}.`);
}

const signed = ([negative, x]) => negative ? minus(x) : x;
export function compute(state) {
  const typed = ["number", "add"].map((name) => read(name, state[name]));
  if (!KEYS.includes(state.form)) throw Error(`form must be one of ${KEYS.join(", ")}, not “${state.form}”`);
  const [a, b] = typed.map(signed);
  const facts = {
    exact: [a, b, plus(a, b)].map((x) => decimal(x)),
    formats: Object.fromEntries(KEYS.map((key) => [key, one(FORMATS[key], ...typed)])),
  };
  return { ...facts, summary: summary(state, facts) };
}

const fields = [
  { name: "number", label: "a number", kind: "text", knob: true },
  { name: "add", label: "add to it", kind: "text", knob: true },
  { name: "form", label: "look closely at", kind: "choice", knob: true,
    options: KEYS.map((key) => [key, FORMATS[key].label]) },
];

const LOW = -46, HIGH = 39; // powers of ten, the ends of the axis
const BEYOND = 15; // px, for what lies outside of the two neighbours
const SIGN = 5, EXPONENTS = 0, MANTISSA = 2; // hues
const small = { class: "x-small" }, soft = { class: "x-small x-soft" };
const hue = (number) => `--hue: ${rankColor(number)}`;
const power = (k) => k ? `10${[...String(k)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}` : "1";
const place = (words) => Math.min(HIGH, Math.max(LOW, Math.log10(Math.abs(Number(words)))));

// What each format reaches, and the number as an upright line.
function ranges({ state, facts, before, set, width, narrow }) {
  const left = narrow ? 10 : 76, wide = width - left - (narrow ? 10 : 240), high = narrow ? 42 : 28;
  const x = (at) => left + wide * (at - LOW) / (HIGH - LOW), floor = high * KEYS.length + 6;
  const rows = KEYS.map((key, i) => {
    const { label } = FORMATS[key], it = facts.formats[key], top = i * high, bar = top + (narrow ? 22 : 7);
    const [least, normal, most] = [it.least, it.normal, it.most].map((words) => x(place(words)));
    const sum = `is ${it.value}, sum ${it.lost ? "as before" : it.sum}`, chosen = key === state.form;
    return pressable(h("svg:g", {},
      h("svg:rect", { x: 0, y: top, width, height: high, fill: "transparent" }),
      text(narrow ? 4 : 2, narrow ? top + 15 : top + 19, label, { "text-anchor": "start", class: chosen ? "x-strong" : "" }),
      rect(least, bar + 3, normal - least, 9, { class: "x-idle" }),
      rect(normal, bar, most - normal, 15, { class: `x-box${chosen ? " x-chosen" : ""}`, style: hue(EXPONENTS) }),
      text(width - 4, narrow ? top + 15 : top + 19, sum, { "text-anchor": "end", class: `x-answer x-small${it.lost ? " x-strong" : ""}` })),
    `row ${key}`, `Look closely at ${label}: ${it.least} to ${it.most}`, () => set({ form: key }), chosen);
  });
  const now = place(facts.exact[0]), sign = facts.exact[0][0] === "-" ? "-" : "";
  const line = draggable(h("svg:g", {},
    h("svg:rect", { x: x(now) - 22, y: floor - 8, width: 44, height: 34, fill: "transparent" }),
    h("svg:path", { d: `M${x(now)} 0V${floor + 6}`, style: "stroke: var(--x-mark); stroke-width: 2; pointer-events: none" }),
    h("svg:circle", { cx: x(now), cy: floor + 6, r: 8, class: "x-handle" })),
  "number", { label: "the number, as a power of ten", now, low: LOW, high: HIGH, said: facts.exact[0],
    move: (by, start) => start + by / wide * (HIGH - LOW), step: (by) => now + by / 4,
    set: (to) => set({ number: sign + Number((10 ** to).toPrecision(2)) }) });
  const old = before && x(place(before.facts.exact[0]));
  return { floor: floor + 34, parts: [rows,
    h("svg:path", { class: "x-frame", d: `M${left} ${floor}H${left + wide}` }),
    [-40, -30, -20, -10, 0, 10, 20, 30].filter((k) => !narrow || k % 20 === 0).map((k) =>
      [h("svg:path", { class: "x-frame", d: `M${x(k)} ${floor - 3}v6` }), text(x(k), floor + 28, power(k), soft)]),
    old && h("svg:path", { class: "x-ghost", d: `M${old} 0V${floor}` }), line] };
}

// Its bits, in three groups.
function cells({ state, facts, width }, top) {
  const groups = facts.formats[state.form].bits.split(" "), gap = 18;
  const across = Math.min(17, (width - 2 * gap - 4) / groups.join("").length);
  let at = 2;
  return groups.map((group, g) => {
    const from = at;
    at += group.length * across + gap;
    return [[...group].map((bit, i) => [
      rect(from + i * across, top, across - 1, 22, { class: "x-box", style: hue([SIGN, EXPONENTS, MANTISSA][g]) }),
      text(from + (i + 0.5) * across - 0.5, top + 16, bit, small)]),
    text(from, top + 38, ["sign", "exponent", "mantissa"][g], { ...soft, "text-anchor": "start" })];
  });
}

// Number and sum between the neighbours: rings are exact, arrows round.
function between({ state, facts, width, narrow }, top) {
  const form = FORMATS[state.form], it = facts.formats[state.form];
  const [number, more] = ["number", "add"].map((name) => read(name, state[name]));
  const code = encode(form, number[1], number[0]), total = add(form, code, encode(form, more[1], more[0]));
  const ends = neighbours(form, code).map((next) => next === null ? null : decode(form, next));
  const value = decode(form, code), [low, high] = [ends[0] ?? value, ends[1] ?? value];
  if (value === null) return text(width / 2, top + 50, `${it.value}: the largest number is ${it.most}`, { class: "x-answer" });
  const left = narrow ? 60 : 90, wide = width - left - 24, span = plus(high, minus(low));
  const x = (v) => {
    const [a, b] = times(plus(v, minus(low)), [span[1], span[0]]), part = Number(a * 100000n / b) / 1e5;
    return left + Math.min(wide + BEYOND, Math.max(-BEYOND, wide * part));
  };
  const lane = (y, label, exact, rounded, about) => {
    const from = x(exact), to = rounded ? x(rounded) : left + wide + BEYOND;
    return [text(2, y + 4, label, { ...small, "text-anchor": "start" }), h("svg:g", { class: about },
      Math.abs(to - from) > 1 && h("svg:path", { class: "x-arrow", d: `M${from} ${y}H${to}` }),
      h("svg:circle", { cx: to, cy: y, r: 5, class: "x-handle" }),
      h("svg:circle", { cx: from, cy: y, r: 7, class: "x-frame" }))];
  };
  const exact = signed(number);
  const mark = (v, words, anchor, by, down) => v && [
    h("svg:path", { class: "x-frame", d: `M${x(v)} ${top + 20}V${top + 84}` }),
    text(x(v) + by, top + down, words, { class: by ? "x-small" : "x-small x-strong", "text-anchor": anchor })];
  return [
    mark(ends[0], it.below, "start", -20, 100), mark(value, it.value, "middle", 0, 14), mark(ends[1], it.above, "end", 20, 100),
    lane(top + 36, "number", exact, value, ""),
    lane(top + 66, "sum", plus(exact, signed(more)), decode(form, total), "x-answer"),
  ];
}

function draw(view) {
  const { facts, width } = view, { floor, parts } = ranges(view), chosen = FORMATS[view.state.form];
  return {
    picture: picture(width, floor + 172, "", parts,
      text(2, floor + 16, `${chosen.label}: ${chosen.exponent} bits of exponent, ${chosen.mantissa} of mantissa`, { "text-anchor": "start", class: "x-strong" }),
      cells(view, floor + 24), between(view, floor + 66)),
    below: [
      h("p", {}, "Drag the dot on the axis, or type a number: 0.1, 1e-4 or 2^-24. Bars are what a format reaches; a dashed part "
        + "holds subnormal numbers, which have fewer bits the smaller they are. Below, rings are exact, and dots are what they are "
        + "rounded to. tf32 is float32 on its way into a product on some GPUs; sums of fp8 are float32's, rounded."),
      table("All six formats", ["format", "bits", "next below", "the number", "next above", "error", "sum", "smallest", "largest"],
        KEYS.map((key) => {
          const it = facts.formats[key];
          return [FORMATS[key].label, it.bits, it.below, it.value, it.above, it.error, it.sum, it.least, it.most];
        })),
    ],
  };
}

// The sum: exact, as before, or the next number.
const sums = ({ state, facts }) => {
  const it = facts.formats[state.form];
  return [...new Set([facts.exact[2], it.value, it.above, it.sum])].filter((words) => words !== "–");
};
const ask = {
  question: ({ state, facts }) => `What is ${facts.exact[0]} + ${facts.exact[1]} in ${FORMATS[state.form].label}?`,
  options: (view) => sums(view),
  answer: (view) => sums(view).indexOf(view.facts.formats[view.state.form].sum),
  because: ({ state, facts }) => {
    const it = facts.formats[state.form];
    return `After ${it.value} comes ${it.above}, and the sum is rounded to the nearest.`;
  },
};

export default explorable({
  name: "numbers", title: "What is left of a number in few bits?",
  label: "A number in six formats", fields, compute, draw, ask, live: "Ask torch",
});
