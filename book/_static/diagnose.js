// The search box of the error clinic: which failures does a pasted log show?
// It takes the same steps as text.py, search.py and suspects.py in allranks/diagnose/,
// and a test compares the two. What both count by stands there: see page.py.
((core) => {
  if (typeof module === "object") module.exports = core;
  else globalThis.allRanksDiagnose = core(globalThis.allRanksClinic.constants);
})((constants) => {
  // An expression comes as its text.
  const revived = (value) => (value?.pattern ? new RegExp(value.pattern)
    : Array.isArray(value) ? value.map(revived) : value);
  const each = (expression) => new RegExp(expression, "g");
  const { CHUNK, FEW, NARROW, WIDE, PREFIX, RANKS, SRUN, PLAIN, ENTITIES, ENTITY, ESCAPES, ESCAPED,
    ESCAPE, CONTROLS, ANSI, COLOUR, DASH, QUOTE, FRAME, DOTS, CUT, SPACE, TRIES, SOURCE, TYPED, BARRIER,
    NEXT, SHOWN, BRIEF, REST, WARNING, DIGEST, PROGRESS, RAISED, ERRORS, ALONE, TORCH, OTHERS, LISTS,
    KEY_LIST, KEY, INTERRUPTS, INTERRUPT, TRACEBACK, STACK, WORK, BEFORE, AFTER, REPORT, HEAD, CONTROL,
    ENDS, SYMPTOMS, KIND: { FULL, ECHO, WITH, UNLESS, OURS, KEYS },
  } = Object.fromEntries(Object.entries(constants).map(([name, value]) => [name, revived(value)]));
  const GROUP = SYMPTOMS.map((symptom) => ({ crash: 0, hang: 1 }[symptom] ?? 2));
  const TYPOGRAPHIC = new RegExp(`[${Object.keys(PLAIN).join("")}]`, "g");

  // Whether a log comes from torch: any program's log may say that it was killed.
  const ours = (log) => TORCH.split(" ").some((word) => log.squeezed.includes(word));

  // Whether it comes from another library, which may use NCCL as well, and not from torch.
  const foreign = (log) => OTHERS.split(" ").some((word) => log.squeezed.includes(word)) && !ours(log);

  function keysAfter(log, word) {
    const found = new Set();
    let at = -1;
    for (let tries = 0; tries < TRIES; tries++) {
      at = log.squeezed.indexOf(word, at + 1);
      if (at < 0) break;
      const list = new RegExp(KEY_LIST, "y");
      list.lastIndex = at + word.length;
      for (const match of list.exec(log.squeezed)[0].matchAll(each(KEY))) found.add(match[1]);
    }
    return found;
  }

  // Whether missing and unexpected keys agree once a prefix is removed from either.
  function meet(log, prefix) {
    const [missing, unexpected] = LISTS.map((word) => keysAfter(log, word));
    if (!missing.size || !unexpected.size) return true;
    return [[missing, unexpected], [unexpected, missing]].some(([keys, other]) =>
      [...keys].some((key) => key.includes(prefix) && other.has(key.replaceAll(prefix, ""))));
  }

  const bare = (line) => line.slice(PREFIX.exec(line)[0].length).trimEnd();

  // Unescape a line of JSON; each line within it ends with a carriage return then.
  function unescaped(line) {
    for (let i = 0; i < 3 && ESCAPED.test(line); i++) { // JSON may contain JSON
      line = line.replaceAll(each(ESCAPE), (_, name) => ESCAPES[name]);
    }
    return line;
  }

  // Remove what only decorates a text: colors, entities, typographic quotes, frames.
  function plain(text) {
    const lines = undecorated(text).split("\n");
    return lines.map((line) => (line.includes("\\n") ? unescaped(line) : line)).join("\n");
  }

  function undecorated(text) {
    const spaced = [...CONTROLS].reduce((rest, control) => rest.replaceAll(control, " "),
      text.replaceAll("\r\n", "\n"));
    return spaced.replace(each(ANSI), "").replace(each(COLOUR), "")
      .replace(each(ENTITY), (_, name) => ENTITIES[name]).replace(TYPOGRAPHIC, (odd) => PLAIN[odd])
      .replace(/[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]/g, "\ufffd")
      .replace(each(DASH), "--").replace(each(FRAME), "").replace(each(QUOTE), "");
  }

  class Log {
    constructor(text) {
      this.lines = [];
      this.numbers = [];
      plain(text).split("\n").forEach((line, number) => {
        for (const part of line.split("\r")) {
          for (let at = 0; at < Math.max(1, part.length); at += CHUNK) {
            this.lines.push(part.slice(at, at + CHUNK));
            this.numbers.push(number + 1);
          }
        }
      });
      const tight = this.lines.join("\n").replaceAll(" ", "").split("\n");
      this.squeezed = tight.join("");
      this.tail = this.squeezed.slice(-2 * CHUNK).replace(new RegExp(`[${DOTS}]+$`), "");
      this.alone = this.lines.length <= FEW
        && this.lines.filter((line) => /[^ ]/.test(line)).length === 1;
      this.starts = [0];
      for (const line of tight) this.starts.push(this.starts.at(-1) + line.length);
    }

    lineAt(offset) {
      let [low, high] = [0, this.starts.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (offset < this.starts[middle]) high = middle;
        else low = middle + 1;
      }
      return low - 1;
    }

    goesOn(index) {
      if (index < 0 || index >= this.lines.length - 1) return false;
      const size = this.lines[index].length;
      return (NARROW <= size && size <= WIDE) || size === CHUNK;
    }

    rank(index) {
      const line = this.lines[index];
      for (const pattern of RANKS) {
        const match = pattern.exec(line);
        if (match) return match[1] ?? match[2];
      }
      const near = [this.lines[index - 1], this.lines[index + 1]]
        .filter((other) => other !== undefined);
      const match = SRUN.exec(line);
      const counted = !near.length || near.some((other) => SRUN.test(other));
      return match && counted ? match[1] : "";
    }
  }

  const hitOf = (first, last, text, match, weak) =>
    ({ first, last, text, begin: match.index, end: match.index + match[0].length, weak });

  // Match the lines from line to end, then with neighbors joined to them.
  function attempt(log, expression, line, end) {
    if (line === end) {
      if (TYPED.test(bare(log.lines[line]))) return null;
      for (const text of [log.lines[line], bare(log.lines[line])]) {
        const match = expression.exec(text);
        if (match) return hitOf(line, line, text, match, SOURCE.test(bare(log.lines[line])));
      }
    }
    for (const [before, after] of [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]) {
      const [first, last] = [line - before, end + after];
      const size = last - first;
      if (size < 1 || size > 3) continue;
      const inside = Array.from({ length: size }, (_, i) => first + i);
      if (!inside.every((index) => log.goesOn(index))) continue;
      const parts = log.lines.slice(first, last + 1).map((part) => part.trim());
      if (parts.slice(1).some((part) => NEXT.test(part)) || TYPED.test(bare(parts[0]))) continue;
      for (let joints = 0; joints < 1 << size; joints++) {
        const text = parts.reduce((whole, part, i) =>
          whole + (joints >> (size - i) & 1 ? "" : " ") + part);
        const match = expression.exec(text);
        if (match) return hitOf(first, last, text, match, SOURCE.test(bare(parts[0])));
      }
    }
    return null;
  }

  const needleOf = (source) => source.replace(each(SPACE), "$1");

  function needlesOf([, pattern, ...rest]) {
    const spans = rest.filter((one) => !Array.isArray(one)); // the others: see beside
    const needles = [];
    for (let i = 0; i < spans.length; i += 2) {
      needles.push(needleOf(pattern.slice(spans[i], spans[i + 1])));
    }
    return needles;
  }

  // Find the beginning of a piece at the very end, where a log may have been cut.
  function logEnd(log, needle) {
    for (let size = needle.length - 1; size >= Math.max(CUT, needle.length >> 1); size--) {
      if (log.tail.endsWith(needle.slice(0, size))) {
        const line = log.lineAt(log.squeezed.length - 1);
        const text = log.lines[line];
        return { first: line, last: line, text, begin: 0, end: text.length, weak: true };
      }
    }
    return null;
  }

  // Whether a store's barrier says that it waits although all workers have arrived.
  function complete(text) {
    const match = BARRIER.exec(text);
    return match !== null && Number(match[2]) >= Number(match[1]);
  }

  // Find the earliest place of a sign; a message is better than a line of code.
  function find(log, sign) {
    const found = [], code = [];
    if (sign[0] === WITH && /^\^.*\$$/.test(sign[1]) && !log.alone) return null;
    let expression;
    for (const needle of needlesOf(sign)) {
      let at = log.squeezed.indexOf(needle), last = "";
      for (let tries = 0; tries < TRIES && at >= 0; tries++) {
        const line = log.lineAt(at), end = log.lineAt(at + needle.length - 1);
        if (line + "-" + end !== last) {
          last = line + "-" + end;
          expression ??= new RegExp(sign[1]);
          let hit = attempt(log, expression, line, end);
          if (hit && sign[0] !== UNLESS && complete(hit.text)) hit = null;
          if (hit && !hit.weak) {
            found.push(hit);
            break;
          }
          if (hit) code.push(hit);
        }
        at = log.squeezed.indexOf(needle, at + 1);
      }
    }
    const needles = found.length || code.length || sign[0] === WITH || sign[0] === UNLESS ? [] : needlesOf(sign);
    const cut = needles.map((needle) => logEnd(log, needle)).filter((hit) => hit);
    const hits = found.length ? found : code.length ? code : cut;
    return hits.reduce((best, hit) => (best && best.first <= hit.first ? best : hit), null);
  }

  // Whether other lines of the log say what a sign needs beside its own line.
  const beside = (log, sign) => sign.filter(Array.isArray).every((other) => find(log, other));

  const lower = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());

  // Find the earliest place of a sign by its long pieces, in upper or lower case.
  function findFolded(log, sign) {
    log.folded ??= lower(log.squeezed);
    for (const needle of needlesOf(sign)) {
      const at = needle.length >= CUT ? log.folded.indexOf(lower(needle)) : -1;
      if (at < 0) continue;
      const ends = [log.lineAt(at), log.lineAt(at + needle.length - 1)];
      const hit = attempt(log, new RegExp(sign[1], "i"), ...ends);
      if (hit && !complete(hit.text)) return { ...hit, weak: true };
    }
    return null;
  }

  // Sort by likelihood: messages before echoes; crashes before the waits that follow from
  // them, but not before a wait that has evidence of its own; both before warnings. Among
  // equals, the earliest comes first, and then the best supported.
  function keyOf(suspect, order) {
    const named = suspect.hits.filter(([sign]) => sign[0] !== WITH);
    const level = Math.min(...named.map(([sign, hit]) =>
      Math.min(sign[0] % OURS + (hit.weak ? 1 : 0), ECHO)));
    const kind = GROUP[suspect.case[3]];
    const group = kind === 1 && named.length < suspect.hits.length ? 0 : kind;
    suspect.first = Math.min(...named.map(([, hit]) => hit.first));
    suspect.supported = named.some(([sign]) => sign[0] % OURS === FULL)
      || named.length < suspect.hits.length
      || !suspect.case[4].some((sign) => sign[0] === WITH);
    const longest = Math.max(...suspect.hits.flatMap(([sign]) =>
      needlesOf(sign).map((needle) => needle.length)));
    suspect.level = level;
    const warns = group === 2 ? 1 : 0;
    return [level + warns >= ECHO ? 1 : 0, warns, level, group, suspect.first,
      named.length - suspect.hits.length, -longest, order];
  }

  function suspected(log, cases, look) {
    const suspects = [];
    cases.forEach((one, order) => {
      const suspect = { case: one, hits: [] };
      const prefixes = one[4].filter((sign) => sign[0] === KEYS).map((sign) => needlesOf(sign)[0]);
      if (prefixes.length && !prefixes.some((prefix) => meet(log, prefix))) return;
      for (const sign of one[4]) {
        if (sign[0] === KEYS || (sign[0] === OURS && !log.ours)) continue;
        const hit = look(log, sign);
        if (hit && !beside(log, sign)) continue;
        if (hit && sign[0] === UNLESS) return;
        if (hit) suspect.hits.push([sign, hit]);
      }
      if (!suspect.hits.some(([sign]) => sign[0] !== WITH)) return;
      suspect.key = keyOf(suspect, order);
      suspects.push(suspect);
    });
    return suspects;
  }

  function diagnose(log, cases) {
    if (foreign(log)) return [];
    log.ours = ours(log);
    let suspects = suspected(log, cases, find);
    if (!suspects.length && log.lines.length <= BRIEF) {
      // In a title or a question, people write messages without the capitals.
      const full = (...args) => (args[1][0] % OURS === FULL ? findFolded(...args)
        : args[1][0] === UNLESS ? find(...args) : null);
      suspects = suspected(log, cases, full);
    }
    const compare = (a, b) => {
      const i = a.key.findIndex((value, k) => value !== b.key[k]);
      return i < 0 ? 0 : a.key[i] - b.key[i];
    };
    return honest(log, suspects.sort(compare), ended(log));
  }

  // Find the line where the log says that somebody ended the job.
  function ended(log) {
    let end = Infinity;
    for (const word of INTERRUPTS) {
      let at = -1;
      for (let tries = 0; tries < TRIES; tries++) {
        at = log.squeezed.indexOf(word, at + 1);
        if (at < 0) break;
        let line = log.lineAt(at);
        if (!INTERRUPT.test(bare(log.lines[line]))) continue;
        let head = line;
        while (head >= 0 && line - head <= STACK && !log.lines[head].includes(TRACEBACK)) head--;
        if (head >= 0 && line - head <= STACK) line = head;
        end = Math.min(end, line);
      }
    }
    return end;
  }

  function mereWarning(log, { level, case: one, hits }) {
    if (level === FULL || level === ECHO) return false;
    const lines = hits.filter(([sign]) => sign[0] !== WITH)
      .map(([, hit]) => log.lines[hit.first]);
    if (GROUP[one[3]] === 2) return !lines.some((line) => RAISED.test(line));
    return lines.every((line) => WARNING.test(line));
  }

  // Drop what the log does not prove. If a case lists supporting evidence and the log has
  // none of it, a mere "maybe" is reported only beside a better suspect. A warning that only
  // may point to a case is not reported, unless the log is short. Warnings do not explain
  // an error, echoes do not explain an error that came before them, and nobody needs them
  // beside what they certainly echo, nor if the training goes on after them. Nothing that is printed after Ctrl-C explains anything.
  function honest(log, all, end) {
    const brief = log.lines.length <= BRIEF && end === Infinity
      && !log.lines.some((line) => PROGRESS.test(line));
    const goesOn = log.lines.flatMap((line, i) => (PROGRESS.test(line) ? [i] : []));
    const still = goesOn.at(-2) ?? -1;
    const suspects = (brief ? all : all.filter((one) => !mereWarning(log, one)))
      .filter((one) => one.first < end && (one.level !== ECHO || one.first >= still));
    let error = firstError(log);
    if (error !== null && error >= end) error = null;
    const sure = suspects.filter((one) => one.level !== ECHO && one.supported);
    if (sure.length) {
      const hits = suspects.flatMap((one) => one.hits);
      const quiet = error === null || hits.some(([, hit]) => hit.first === error);
      const known = sure.some((one) => one.level === FULL && GROUP[one.case[3]] !== 2);
      return quiet || !sure.every((one) => GROUP[one.case[3]] === 2)
        ? suspects.filter((one) => !(known && one.level === ECHO)) : [];
    }
    const echoes = suspects.filter((one) => one.level === ECHO);
    if (error === null) return echoes;
    const last = error + (/nccl/i.test(log.lines[error]) ? REST : 0);
    return echoes.some((one) => one.first <= last) ? echoes : [];
  }

  // Compare what NCCL's watchdogs say of several ranks, exactly as
  // allranks/diagnose/watchdog.py does.
  function compared(log) {
    const groups = new Map();
    let at = -1;
    for (let tries = 0; tries < TRIES; tries++) {
      at = log.squeezed.indexOf(WORK, at + 1);
      if (at < 0) break;
      const near = log.squeezed.slice(Math.max(0, at - BEFORE), at + AFTER);
      for (const [, group, told, number, call, size] of near.matchAll(each(REPORT))) {
        const rank = Number(log.rank(log.lineAt(at)) || told);
        if (!groups.has(group)) groups.set(group, new Map());
        const reports = groups.get(group);
        if (!reports.has(rank)) reports.set(rank, [Number(number), call, size ? Number(size) : null]);
      }
    }
    const several = [...groups.values()].find((reports) => reports.size > 1);
    return several ? sentence(several) : "";
  }

  const named = (ranks) => "rank" + (ranks.length === 1 ? "" : "s") + " " + ranks.join(", ");

  function sentence(reports) {
    const calls = new Map();
    for (const rank of [...reports.keys()].sort((a, b) => a - b)) {
      const key = JSON.stringify(reports.get(rank));
      if (!calls.has(key)) calls.set(key, []);
      calls.get(key).push(rank);
    }
    const inside = (numbered) => [...calls].map(([key, ranks]) => {
      const [number, call, size] = JSON.parse(key);
      return named(ranks) + (ranks.length === 1 ? " is in " : " are in ") + call
        + (size === null ? "" : " of " + size + (size === 1 ? " number" : " numbers"))
        + (numbered ? " (SeqNum " + number + ")" : "");
    }).join(", ");
    const numbers = [...new Set([...calls.keys()].map((key) => JSON.parse(key)[0]))];
    const least = Math.min(...numbers);
    let text;
    if (calls.size === 1) {
      const [[key, ranks]] = calls;
      const silent = Array.from({ length: ranks.at(-1) }, (_, i) => i)
        .filter((rank) => !ranks.includes(rank));
      text = named(ranks) + " wait in the same " + JSON.parse(key)[1] + " (SeqNum " + least + "). "
        + (silent.length === 1 ? "Rank " + silent[0] + " reports nothing, so look there."
          : "Look for a rank that reports nothing, or else at the network.");
    } else if (numbers.length === 1) {
      text = "At SeqNum " + least + " " + inside(false)
        + ": the ranks make different calls, so each waits for the other.";
    } else {
      text = inside(true) + ": the ranks are not at the same call. Compare what each of them"
        + " calls as SeqNum " + least + ".";
    }
    return text[0].toUpperCase() + text.slice(1);
  }

  function firstError(log) {
    const found = [];
    for (const word of [...ERRORS, ...ALONE]) {
      let at = -1;
      for (let tries = 0; tries < TRIES; tries++) {
        at = log.squeezed.indexOf(word.replaceAll(" ", ""), at + 1);
        if (at < 0) break;
        const line = log.lineAt(at);
        if (ALONE.includes(word) && bare(log.lines[line]) !== word) continue;
        if (WARNING.test(log.lines[line]) || DIGEST.test(log.lines[line])) continue;
        found.push(line);
        break;
      }
    }
    return found.length ? Math.min(...found) : null;
  }

  return { plain, bare, Log, diagnose, firstError, ended, compared,
    SHOWN, FULL, ECHO, HEAD, CONTROL: each(CONTROL), ENDS: SYMPTOMS.map((symptom) => ENDS[symptom]) };
});
