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

function neighbors(form, code) {
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
  const off = value && size(plus(size(value), minus(number)));
  const near = neighbors(form, code), [below, above] = near.map((next) => show(form, next)), beside = value && decode(form, near[1] ?? near[0]);
  return {
    bits: bits(form, code), kind: kind(form, code), below, value: show(form, code), above,
    error: !off ? "–" : off[0] ? `${decimal([100n * off[0] * number[1], off[1] * number[0]], 2)} %` : "none",
    fits: !less(decode(form, form.top), number) && !number[0] === !(value?.[0] ?? 1n),
    gap: value ? decimal(size(plus(beside, minus(value))), 3) : "–",
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
  if (it.kind !== "inf") words += `Its neighbor${near[1] ? "s are" : " is"} ${near.join(" and ")}. `;
  words += `Adding ${more} gives ${it.sum}${it.lost ? ", as before" : ""}. `;
  const names = (those) => KEYS.filter((key) => those(formats[key])).map((key) => FORMATS[key].label).join(", ");
  const lost = names((f) => f.lost && f.fits), beyond = names((f) => !f.fits);
  return words + (lost ? `It is rounded away in ${lost}.` : `Exactly it would be ${exact}.`)
    + (beyond && ` ${number} does not fit in ${beyond}.`);
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
  { name: "form", label: "look closely at", kind: "choice",
    options: KEYS.map((key) => [key, FORMATS[key].label]) },
];

const ENDS = [-46, 39], NEAR = [-8, 8]; // powers of ten, the ends of the axis; on a phone, of its middle
const ROW = 24, SIDE = 76, TIP = 7; // px: a format's row, what stands left of axis and ruler, an axis' ends
const DEPTH = [44, 28, 12]; // %: sign, exponent, mantissa; no rank, so all gray
const small = { class: "x-small" }, soft = { class: "x-small x-soft" }, start = { "text-anchor": "start" }, end = { "text-anchor": "end" };
const gray = (depth) => `--hue: var(--x-soft); --deep: ${depth}%`;
const raised = (base, k) => base + [...String(k)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
const plusOf = (words) => words[0] === "-" ? `− ${words.slice(1)}` : `+ ${words}`;
const place = (words, [low, high]) => Math.min(high, Math.max(low, Math.log10(Math.abs(Number(words)))));

// Write a number with as many digits as there is room for letters.
function brief(words, most) {
  for (let digits = 8, now = words; ; digits--) {
    if (now.length <= most || !digits) return now;
    const short = Number(Number(words).toPrecision(digits)), whole = String(short);
    now = (whole.length > most ? short.toExponential() : whole).replace("+", "");
  }
}

// Write what a row stores; what does not fit stands on yellow.
function stored(right, y, it, most) {
  const words = brief(it.value, most), wide = 8.2 * words.length + 8;
  return [!it.fits && rect(right - wide + 4, y - 9, wide, 18, { class: "x-wrong" }),
    text(right, y + 4, words.replace(/^-/, "−"), { "text-anchor": "end", class: it.fits ? "x-small" : "x-small x-on-wrong" })];
}

// Say what becomes of the sum: the number that it is rounded to, or that what was added is
// lost, or that it does not fit. Nothing is said where the number itself did not fit.
function verdict(x, y, it) {
  const fits = !/inf|NaN/.test(it.sum);
  if (!it.fits) return text(x, y + 4, "–", { class: "x-soft x-answer" });
  return h("svg:g.x-answer", {}, h("svg:title", {}, `the sum is ${it.sum}${it.lost ? ", as before" : ""}`),
    fits && !it.lost ? text(x + 20, y + 4, brief(it.sum, 8).replace(/^-/, "−"), { class: "x-small x-strong", "text-anchor": "end" })
      : [rect(x - 15, y - 9, 30, 18, { class: "x-wrong" }),
        text(x, y + 4, fits ? "lost" : it.sum.replace("-", "−"), { class: "x-small x-on-wrong" })]);
}

// Return what is added, in the same ratio to another number: on the ruler, which is in
// gaps, the sum stays within reach.
function inRatio({ exact: [number, add] }, to) {
  const ratio = Number((Number(add) / Number(number)).toPrecision(2)), now = ratio * Number(to);
  return Number.isFinite(now) && now ? String(Number(now.toPrecision(4))) : add;
}

// Tips beside a handle: it can be dragged.
const tips = (x, y) => [-1, 1].map((side) => h("svg:path", { class: "x-grip", d: `M${x + side * 12} ${y - 5}l${side * 5} 5l${-side * 5} 5z` }));

// What each format reaches, and the number as an upright line with a dot in each row: a
// ring among subnormal numbers. Where the number does not fit, the dot is where it ends.
function ranges({ state, facts, before, set, width, narrow }) {
  const side = narrow ? 46 : SIDE, most = narrow ? 7 : 11, apart = narrow ? 6 : 8, gaps = width - (narrow ? 62 : 106), right = gaps - (narrow ? 50 : 76), ends = narrow ? NEAR : ENDS, [low, high] = ends;
  const wide = right - 7.2 * most - side - 2 * TIP, x = (at) => side + TIP + wide * (at - low) / (high - low), top = narrow ? 36 : 22;
  const now = place(facts.exact[0], ends), sign = facts.exact[0][0] === "-" ? "-" : "", floor = top + ROW * KEYS.length + 4;
  const rows = KEYS.map((key, i) => {
    const { label } = FORMATS[key], it = facts.formats[key], y = top + i * ROW, mid = y + ROW / 2, chosen = key === state.form;
    const [least, normal, last] = [it.least, it.normal, it.most].map((words) => x(place(words, ends)));
    // Where a range goes on beyond the axis, it has a tip.
    const tip = (words, at, side) => ((Math.log10(Number(words)) - (side > 0 ? high : low)) * side > 0.01) && h("svg:path", { class: "x-goes-on",
      d: `M${at} ${mid - 7}l${TIP * side} 7 ${-TIP * side} 7z`, style: `fill: color-mix(in srgb, var(--x-soft) ${chosen ? 50 : 18}%, transparent); stroke: var(--x-soft)` });
    const dot = it.fits ? x(now) : Math.min(last, Math.max(least, x(now)));
    return pressable(h("svg:g", {},
      rect(0, y + 1, width, ROW - 2, { style: chosen ? "fill: var(--x-shade)" : "fill: transparent" }),
      text(4, mid + 4, narrow ? label.replace("fp8 ", "") : label, { ...start, class: chosen ? "x-strong" : "" }),
      rect(least, mid - 4, normal - least, 8, { class: "x-idle" }),
      rect(normal, mid - 7, last - normal, 14, { class: "x-box", style: gray(chosen ? 50 : 18) }), tip(it.normal, normal, -1), tip(it.most, last, 1),
      dot !== x(now) && h("svg:path", { class: "x-idle", d: `M${dot} ${mid}H${x(now)}` }),
      h("svg:g", {}, h("svg:title", {}, `is ${it.value}`), h("svg:circle", { cx: dot, cy: mid, r: it.fits ? 4.5 : 6,
        class: !it.fits ? "x-wrong" : it.kind === "subnormal" ? "x-open" : "x-handle" })),
      stored(right, mid, it, most), text(gaps, mid + 4, brief(it.gap, apart), { "text-anchor": "end", class: "x-small" }), verdict(width - 20, mid, it)),
    `row ${key}`, `Look closely at ${label}: ${it.least} to ${it.most}`, () => set({ form: key }), chosen);
  });
  const line = draggable(h("svg:g", {},
    h("svg:circle", { cx: x(now), cy: floor, r: 8, class: "x-handle", "data-id": "number" }), tips(x(now), floor),
    h("svg:rect", { x: x(now) - 22, y: floor - 10, width: 44, height: 34, fill: "transparent" })),
  "number", { label: "the number, as a power of ten", now, low, high, said: facts.exact[0],
    move: (by, from) => from + by / wide * (high - low), step: (by) => now + by / 4,
    set: (to) => {
      const number = sign + Number((10 ** to).toPrecision(2));
      set({ number, add: inRatio(facts, number) });
    } });
  const old = before && x(place(before.facts.exact[0], ends));
  return { floor: floor + 28, parts: [
    text(2, 13, narrow ? "1. Which hold it?" : "1. Which formats hold the number?", { ...start, class: "x-strong" }),
    rect(narrow ? 136 : 274, 5, 20, 8, { class: "x-idle" }), text(narrow ? 162 : 300, 13, "subnormal", start),
    text(right, top - 9, "stores", end), text(gaps - (narrow ? 10 : 0), top - 9, "gap", end),
    h("svg:g.x-answer", {}, narrow && text(width, 13, "then", end), text(width, top - 9, `${narrow ? "" : "then "}${plusOf(brief(facts.exact[1], 7))}`, end)),
    h("svg:path", { d: `M${x(now)} ${top}V${floor}`, style: "stroke: var(--x-mark); stroke-width: 1.5" }), rows,
    h("svg:path", { class: "x-frame", d: `M${side} ${floor}H${side + wide + 2 * TIP}` }),
    (narrow ? [-8, 0, 8] : [-40, -20, 0, 20]).map((k) => [h("svg:path", { class: "x-frame", d: `M${x(k)} ${floor - 3}v6` }),
      text(x(k), floor + 22, k ? raised(10, k) : "1")]),
    old && h("svg:path", { class: "x-ghost", d: `M${old} ${top}V${floor}` }), line] };
}

// Write the number of a code as a reader would type it; what is not a number has none.
function typed(form, code) {
  const bare = code % form.sign;
  if (bare <= form.top) return show(form, code);
  return form.infinite && bare === form.top + 1 ? `${code >= form.sign ? "-" : ""}2^${2 ** (form.exponent - 1)}` : null;
}

// Its bits, in three groups; one presses a bit to flip it.
function cells({ state, facts, set, width, narrow }, top) {
  const form = FORMATS[state.form], it = facts.formats[state.form], groups = it.bits.split(" "), all = groups.join("");
  const gap = 16, across = Math.min(30, (width - 2 * gap - 2) / all.length), code = parseInt(all, 2);
  const unit = 2 ** form.mantissa, raw = Math.floor(code % form.sign / unit), finite = decode(form, code) !== null;
  const means = [code >= form.sign ? "−" : "+", finite ? raised(2, Math.max(raw, 1) + 1 - 2 ** (form.exponent - 1)) : "all 1",
    finite ? `× (${raw ? 1 : 0} + ${code % unit}/${unit})` : "all 0: infinity"];
  let at = 1, place = all.length;
  const boxes = groups.map((group, g) => {
    const from = at, name = ["sign", "exponent", "mantissa"][g];
    at += group.length * across + gap;
    return [[...group].map((bit, i) => {
      const next = typed(form, code + (bit === "0" ? 1 : -1) * 2 ** --place), key = `bit ${g} ${i}`;
      const cell = h("svg:g", { "data-key": key }, rect(from + i * across, top, across - 1, 26, { class: "x-box", rx: across < 14 ? 1 : 3, style: gray(DEPTH[g]) }),
        text(from + (i + 0.5) * across - 0.5, top + 17, bit, small));
      return next === null ? cell : pressable(cell, key, `Bit ${i + 1} of ${name}, ${bit}: flip it`, () => set({ number: next, add: g === 1 ? inRatio(facts, next) : state.add }));
    }), text(from, top - 5, narrow && !g ? "±" : name, start), text(from, top + 42, means[g], start)];
  });
  return [boxes, at + 9 * it.value.length < width && text(at, top + 18, `= ${it.value}`, { ...start, class: "x-strong" })];
}

// The numbers that there are around this one, as [code, value] outwards, on one side.
function outwards(form, code, side, most = 7) {
  const found = [];
  for (let next = code; found.length < most && (next = neighbors(form, next)[side]) !== null;) found.push([next, decode(form, next)]);
  return found;
}

// Label a ruler's marks outwards from `middle`: the first is moved until it has room, and
// the others are left out where there is none.
function labels(form, marks, x, sign, first, middle, y, width) {
  let edge = 4 * first.length + 6;
  return marks.map(([code, v], n) => {
    const words = show(form, code), half = 3.7 * words.length, free = edge + half, far = Math.abs(x(v) - middle);
    if (n && (far < free || middle + sign * far + half > width || middle + sign * far < half)) return null;
    const at = n ? far : Math.max(far, free);
    edge = at + half + 8;
    return text(Math.min(width - half, Math.max(half, middle + sign * at)), y, words, small);
  });
}

// A ruler with the numbers that there are. The exact number falls on its nearest mark,
// and the exact sum rises to its own; where another is nearer, one finds by dragging.
function ruler({ state, facts, set, width, narrow }, top) {
  const form = FORMATS[state.form], it = facts.formats[state.form], [number, more] = ["number", "add"].map((name) => read(name, state[name]));
  const code = encode(form, number[1], number[0]), total = decode(form, add(form, code, encode(form, more[1], more[0])));
  const value = decode(form, code), base = top + 48, sums = base + 42, from = narrow ? 52 : SIDE, to = width - 18, middle = (from + to) / 2;
  if (value === null) return [rect(from, base - 22, to - from, 30, { class: "x-wrong" }),
    text(middle, base - 2, `${it.value}: the largest number is ${it.most}`, { class: "x-on-wrong" })];
  const sides = [0, 1].map((side) => outwards(form, code, side)), next = sides[1][0] ?? sides[0][0];
  const gap = size(plus(next[1], minus(value))), around = narrow ? 1.4 : 3, per = (to - from) / 2 / around;
  const gaps = (v) => { // from the number's mark to v
    const [a, b] = times(plus(v, minus(value)), [gap[1], gap[0]]);
    return Number(a * 100000n / b) / 1e5;
  };
  const x = (v) => middle + per * Math.min(around, Math.max(-around, gaps(v)));
  const inside = sides.map((side) => side.filter(([, v]) => Math.abs(gaps(v)) < around + 0.01));
  const exact = signed(number), sum = plus(exact, signed(more)), far = Math.abs(gaps(sum)), right = gaps(sum) > 0 ? 1 : -1;
  // Half a gap above the largest number begins infinity, in formats that have it.
  const [last, former] = [form.top, form.top - 1].map((code) => decode(form, code)), limit = plus(last, times(plus(last, minus(former)), [1n, 2n]));
  const beyond = form.infinite ? [[x(limit), to, "inf"], [from, x(minus(limit)), "−inf"]].filter(([a, b]) => b - a > 1) : [];
  const goal = total ? x(total) : beyond.length ? (beyond[0][0] + beyond[0][1]) / 2 : right > 0 ? to : from;
  const arrow = (x1, y1, x2, y2, down) => [h("svg:path", { class: "x-arrow", d: `M${x1} ${y1}L${x2} ${y2 - 6 * down}` }),
    h("svg:path", { class: "x-tip", d: `M${x2} ${y2}l-4 ${-7 * down}h8z` })];
  const halves = sides.filter(([one]) => one).map(([[, v]]) => (x(v) + middle) / 2); // a sum beyond goes to another mark
  const unit = Number(decimal(gap)), k = gap[0].toString(2).length - gap[1].toString(2).length, at = (x(value) + x(next[1])) / 2;
  const most = around * unit, added = Math.min(most, Math.max(-most, Number(facts.exact[1])));
  return [
    text(2, top + 16, "number", start), text(2, sums + 4, "sum", start),
    h("svg:path", { d: `M${from} ${base}H${to}`, style: "stroke: var(--x-ink); stroke-width: 1.5" }),
    [value, ...inside.flat().map(([, v]) => v)].map((v) => h("svg:path", { d: `M${x(v)} ${base - 10}V${base}`, style: "stroke: var(--x-ink); stroke-width: 1.5" })),
    Math.abs(x(next[1]) - x(value)) > 40 && text(at, base - 5, `gap ${raised(2, k)}`),
    beyond.map(([a, b, words]) => [rect(a, base - 18, b - a, 18, { class: "x-wrong" }), b - a > 30 && text((a + b) / 2, base - 5, words, { class: "x-small x-on-wrong" })]),
    text(middle, base + 17, it.value, { class: "x-small x-strong" }),
    labels(form, inside[0], x, -1, it.value, middle, base + 17, width), labels(form, inside[1], x, 1, it.value, middle, base + 17, width),
    arrow(x(exact), top + 18, x(value), base - 12, 1), h("svg:circle", { cx: x(exact), cy: top + 12, r: 6, class: "x-handle" }),
    x(exact) + 7 * facts.exact[0].length < to ? text(x(exact) + 12, top + 16, facts.exact[0], start)
      : text(x(exact) - 12, top + 14, facts.exact[0], end),
    h("svg:path", { class: "x-frame", d: `M${from} ${sums}H${to}`, opacity: 0.5 }), [...halves].map((at) => h("svg:path", { class: "x-frame", d: `M${at} ${sums - 9}v18`, "stroke-dasharray": "3 3" })),
    h("svg:g.x-answer", {}, arrow(x(sum), sums - 7, goal, base + 24, -1)),
    far > around && h("svg:path", { class: "x-arrow", d: `M${x(sum) - 24 * right} ${sums + 6}l4 -12m4 0l-4 12` }), // the axis breaks
    far > around && text(x(sum) + 6 * right, sums + 18, `${far < 1e6 ? Math.round(far) : raised(10, Math.floor(Math.log10(far)))} gaps away`, { "text-anchor": right > 0 ? "end" : "start" }),
    draggable(h("svg:g", {}, h("svg:circle", { cx: x(sum), cy: sums, r: 8, class: "x-handle", "data-id": "sum" }), tips(x(sum), sums),
      h("svg:path", { d: `M${x(sum) - 4} ${sums}h8m-4 -4v8`, style: "stroke: var(--x-ground); stroke-width: 2" }),
      h("svg:rect", { x: x(sum) - 22, y: sums - 16, width: 44, height: 36, fill: "transparent" })),
    "sum", { label: "what is added, on the ruler", now: added, low: -most, high: most, said: facts.exact[1],
      move: (by, from) => from + by / per * unit, step: (by) => added + by * unit / 10,
      set: (to) => set({ add: String(Number(to.toPrecision(3))) }) }),
    h("svg:text", { x: middle, y: sums + 33, "text-anchor": "middle" }, narrow ? facts.exact[2] : `${facts.exact[0]} ${plusOf(facts.exact[1])} = ${facts.exact[2]}`,
      h("svg:tspan.x-answer", {}, ", rounded to ", h("svg:tspan.x-strong", {}, it.sum))),
  ];
}

function draw(view) {
  const { facts, width, state } = view, { floor, parts } = ranges(view), { label } = FORMATS[state.form];
  const it = facts.formats[state.form], heading = (y, words) => text(2, y, words, { ...start, class: "x-strong" });
  return {
    picture: picture(width, floor + 231, "", parts,
      heading(floor + 16, `2. ${label} stores ${it.value}. Flip a bit:`), cells(view, floor + 38),
      heading(floor + 100, /inf|NaN/.test(it.value) ? "3. It has no neighbors:" : "3. Which number is nearest to the sum? Drag it:"), ruler(view, floor + 106)),
    below: [
      h("p", {}, "Drag the dot on the axis, or type a number: 0.1, 1e-4 or 2^-24. Subnormal numbers have fewer bits the "
        + "smaller they are. The gap is the distance to the next number. Beyond a dashed mark of the ruler, the sum goes to another number. "
        + "tf32 is float32 on its way into a product on some GPUs; sums of fp8 are float32's, rounded."),
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
