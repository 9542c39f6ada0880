"""The diagnosis is right on real logs, silent on healthy ones, alike on the page."""

import json
import random
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.diagnose import command as diagnose
from allranks.diagnose import reading
from allranks.diagnose.answers import flat
from allranks.diagnose.page import table
from allranks.diagnose.reading import decoded, read
from allranks.diagnose.signs import CUT, sign, signs_of
from allranks.diagnose.suspects import diagnose as suspects_of
from allranks.diagnose.suspects import ended, first_error
from allranks.diagnose.text import BLOCK, CHUNK, Log, bare
from allranks.diagnose.watchdog import compared
from book._ext.clinic.diagnose import headline, share, wilson
from tests.clinic import measure

CASES = clinic.folder(ROOT / "clinic")
LEVELS = ["full", "maybe", "echo"]
SHARED = {  # their output does not name them: what it names instead, or nothing
    "ddp-pickled-whole": {"pg-not-initialized"},  # unpickling DDP needs a group
    "dp-list-inputs": set(),  # an IndexError; only on GPUs does it name replicas
    "dp-gather-lengths": set(),  # virtual GPUs, as here, have other words
    "loss-nan": set(),  # any script may print this, unless torch is named
    "dp-stopiteration": set(),  # any StopIteration, unless torch is named
    "peer-died": set(),  # an echo, but here the error before it is shown
    "fsdp-root-first": set(),  # any check in torch, unless a traceback names FSDP
    "ddp-bn-twice-inplace": set(),  # any change in place, unless DDP is named
    "empty-loader": set(),  # any division by zero, unless a loader is named
    "exit-abort-gloo": set(),  # any C++ program, unless torch is named
    "module-not-found": set(),  # a missing module, unless a launcher is named
    "object-collective-numpy": set(),  # any .numpy(), unless a collective is named
    "pp-indivisible-batch": set(),  # any two sizes, unless a pipeline is named
    "tp-plain-parameter": set(),  # any two sizes, unless tensor parallelism is named
    "tp-view-heads": set(),  # any view, unless tensor parallelism is named
    "world-size-changed": set(),  # any other model's weights, unless shards are named
    "pp-stage-width": set(),  # any two matrices, unless a pipeline is named
    "spawn-missing-rank": set(),  # any missing argument, unless it is torch's spawn
}


def case(slug, *signs, symptom="crash"):
    """Return a case that has only what the diagnosis looks at."""
    fields = {"class": "DDP", "symptom": symptom, "runs on": "one process"}
    parts = dict.fromkeys(clinic.PARTS, "x")
    path = Path(f"{slug}.py")
    rest = {"prose": "", "given": "", "cells": {}, "commands": {}, "endless": False}
    return clinic.Specimen(path, slug, fields, parts=parts, signs=signs, **rest)


def names(text, *cases):
    """Return the slugs of the cases that a text shows, the likeliest first."""
    return [s.case.slug for s in suspects_of(Log(("log", text)), list(cases))]


A = case("a", ("full", r"the parrot has ceased to be"))
B = case("b", ("full", r"the bridge keeper asks a question"))


@cache
def today(name):
    """Return the figures of a set of logs."""
    return measure.measure(measure.rows(name), CASES)


def test_real_logs_are_known():
    """Of the logs that the signs were written for, 90 % are named first, 97 % shown.

    At most one in ten of those that show no case gets a name.
    """
    figures = today(measure.DEV)
    slugs = {case.slug for case in CASES}
    assert all(slugs.issuperset(row["accept"]) for row in measure.rows("dev"))
    assert figures.known + figures.unknown >= 100
    assert figures.first >= 0.9 * figures.known, figures.misses
    assert figures.shown >= 0.97 * figures.known, figures.misses
    assert figures.guessed <= 0.1 * figures.unknown, figures.misses


def test_healthy_logs_are_left_alone():
    """No case is named for a job that is healthy."""
    logs = measure.healthy()
    assert len(logs) >= 50
    assert measure.alarms(logs, CASES) == {}


def strangers():
    """Return logs of failures that are no case of the clinic, each with its name."""
    text = (measure.LOGS / "unknown.txt").read_text("utf8")
    return [tuple(part.split("\n", 1)) for part in text.split("=== ")[1:]]


@pytest.mark.parametrize(("what", "text"), strangers(), ids=lambda x: x.split("\n")[0])
def test_what_is_no_case_is_not_known(what, text):
    """An ordinary failure that is no case gets no guess, distributed or not."""
    assert names(text, *CASES) == []


def test_figures_show_no_text():
    """The figures for logs that must stay unseen are numbers, without their text."""
    figures = measure.measure(
        [
            {"text": "x\nthe parrot has ceased to be", "accept": ["a"], "link": "l"},
            {"text": "the parrot has ceased to be", "accept": ["b"], "link": "l"},
            {"text": "the parrot has ceased to be", "accept": [], "link": "l"},
            {"text": "parrot", "accept": [], "link": "l"},
            {"text": "the parrot has ceased to be", "accept": [], "healthy": True},
            {"text": "parrot", "accept": [], "healthy": True},
        ],
        [A, B],
    )
    assert str(figures) == (
        "2 logs with a case: first 1 (50.0%), among the first 3 1 (50.0%); "
        "2 without: 1 guessed; 2 healthy: 1 alarms"
    )


@pytest.mark.parametrize("name", measure.sets())
def test_the_page_has_the_figures_of_today(name):
    """The record holds today's figures, and no set that was seen is called fresh."""
    found = json.loads(measure.DATA.read_text("utf8"))["sets"]
    assert [one["name"] for one in found] == measure.sets()
    mine = measure.counted(name, today(name))
    if name == measure.DEV:
        good = measure.healthy()
        mine |= {"healthy": len(good), "alarms": len(measure.alarms(good, CASES))}
    (recorded,) = (one for one in found if one["name"] == name)
    assert recorded == mine, "python tests/clinic/measure.py --record"
    assert bool(recorded["seen"]) != name.startswith("fresh")


def test_an_interval_is_wilsons():
    """The bounds agree with published tables, also if none or all were right."""
    for count, total, low, high in (81, 263, 0.2553, 0.3662), (0, 20, 0, 0.1611):
        assert wilson(count, total) == pytest.approx((low, high), abs=5e-5)
    assert wilson(20, 20) == pytest.approx((0.8389, 1), abs=5e-5)
    one = dict.fromkeys(measure.COUNTS, 0) | {"known": 68, "first": 54, "shown": 60}
    assert share(one, "first", "known") == "54 of 68 (79 %, 68 to 87)"
    assert share(one, "guessed", "unknown") == "none"
    assert "108 of 136 (79 %, 72 to 85)" in headline([one, one])
    assert "expect less" in headline([])


@pytest.mark.parametrize("one", CASES, ids=lambda case: case.slug)
def test_signs_are_usable(one):
    """Every sign contains a literal piece that can be searched first."""
    assert all(sign.needles for sign in signs_of(one))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?i)address already", "do not both know"),
        ("(?<=x)address already", "do not both know"),
        ("(?P<a>address already)", "do not both know"),
        (r"address already\Z", "do not both know"),
        ("address already[[]", "do not both know"),
        ("address already{,3}", "do not both know"),
        ("address already{a}", "do not both know"),
        ("address already*+", "do not both know"),
        (r"\x41ddress already", "do not both know"),
        (r"(address already) \1", "do not both know"),
        ("address (already", "is no expression"),
        ("address – already", "not ASCII"),
        ("Errno", "6 literal characters"),
        ("ab+cde+fghi", "6 literal characters"),
        ("address already|rank", "6 literal characters"),
        ("(?:address already)?", "6 literal characters"),
        ("(?!address already).", "6 literal characters"),
    ],
)
def test_a_sign_is_refused(pattern, why):
    """A pattern is refused if browsers read it differently, or it is slow to find."""
    with pytest.raises(ValueError, match=re.escape(why)):
        sign("full", pattern)


@pytest.mark.parametrize(
    ("pattern", "needles"),
    [
        (r"op\.preamble\.length <= op", ["op.preamble.length<=op"]),
        (r"[Rr]ank \d+: (?:is gone|has left)", ["isgone", "hasleft"]),
        (r"the key 'RANK'? was missing", ["thekey'RANK"]),
        (r"Address\s+already in use|EADDRINUSE", ["Addressalreadyinuse", "EADDRINUSE"]),
        (r"(?:never){0,2} the bridge", ["thebridge"]),
    ],
)
def test_what_a_sign_is_searched_by(pattern, needles):
    """Each alternative is searched by its longest literal piece, without spaces."""
    assert sign("full", pattern).needles == needles


SAD = "RuntimeError: 'the parrot' said -- on <rank> 2 -- that it has ceased to be"
SAID = case("said", ("full", r"'the parrot' said --on <rank>|'the parrot' said -- on"))


@pytest.mark.parametrize(
    "mess",
    [
        lambda s: f"\x1b[31m{s[:30]}\x1b[0m{s[30:]}",
        lambda s: f"[31m{s[:30]}[0m{s[30:]}",
        lambda s: f"\x1b]0;title\x07{s}",
        lambda s: f"> > {s}",
        lambda s: f"│ {s}    │",
        lambda s: s.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;"),
        lambda s: s.replace("'", "’").replace(" ", "\xa0"),
        lambda s: f"  3%|█▏   | 1/9\r  6%|█▏   | 2/9\r{s}",
        lambda s: f"{s}\r",
        lambda s: f"[rank2]: {s}",
        lambda s: f"2024-05-01T10:00:00.123456789Z stderr F {s}",
        lambda s: f"[1,2]<stderr>:{s}",
        lambda s: f"node-0 | 2024-05-01 10:00:00,123 [ERROR] {s}",
        lambda s: s[:-20],
        lambda s: "\n".join(textwrap.wrap(s, 41)),
        lambda s: "\n".join(textwrap.wrap(f"[rank2]:   {s}", 50)),
        lambda s: "\n".join(s[i : i + 40] for i in range(0, len(s), 40)),
        lambda s: "\n> ".join(["", *textwrap.wrap(s, 41)]),
        lambda s: "x" * 3980 + " " + s,
        lambda s: "x " * 100_000 + s,
    ],
)
def test_a_message_is_found_in_any_dress(mess):
    """A message is found under colors, frames and prefixes, and in broken lines."""
    text = mess(SAD)
    assert names(text, A, SAID) == ["said"], repr(text)
    assert names(f"Epoch 1\n{text}\nbye", A, SAID) == ["said"]


def test_a_line_is_not_joined_with_a_stranger():
    """A line is joined to the next only if it is long and both are of one rank."""
    assert names("the parrot has\nceased to be", A) == []
    head = "it is long enough to be broken by a terminal: the parrot has"
    assert names(f"{head}\nceased to be", A) == ["a"]
    both = case("both", ("full", r"the parrot has.*ceased to be"))
    assert names(f"{head}\n[rank1]: it ceased to be", both) == []


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: x", "3"),
        ("[default1]:x", "1"),
        ("[2]:x", "2"),
        ("[1,7]<stdout>:x", "7"),
        ("[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog", "1"),
        ("[E PG.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 5] Exception", "5"),
        ("4: x", "4"),
        ("rank 3 is well", ""),
    ],
)
def test_a_prefix_names_the_rank(line, rank):
    """A line's rank is read from the prefixes of torchrun, srun, mpirun and NCCL."""
    assert Log(("log", line)).rank(0) == rank
    srun = line.startswith("4:")  # then the first line has a rank, too
    found = Log(("log", f"12: import torch\n{line}")).rank(0)
    assert found == ("12" if srun else "")


def test_a_prefix_is_bare_again():
    """A sign that is anchored with ^ or $ matches the message behind the prefixes."""
    anchored = case("killed", ("full", r"^Killed by the parrot$"))
    assert names("2024-05-01 10:00:00 [rank0]: Killed by the parrot", anchored)
    assert names("Not Killed by the parrot", anchored) == []
    assert bare("12:00:01 INFO [rank0]: x") == "x"


@pytest.mark.parametrize(
    ("text", "cases", "order"),
    [
        ("B!\nA!", "full full", "ba"),  # the earliest
        ("B!\nA!", "full maybe", "ab"),
        ("B!\nA!", "maybe echo", "ab"),
        ("A!\nB!", "echo full", "b"),  # nobody needs the echo beside it
        ("B!\nA!", "echo echo", "ba"),
        ('    raise ValueError("B!")\nA!', "full full", "ab"),
        ('-> 12     raise ValueError("B!")\nA!', "full full", "ab"),
        ('    raise ValueError("B!")\nA!\nValueError: B!', "full full", "ab"),
        ("B!\nA!", "full with", "a"),
        ("A!", "with with", ""),
        ("nothing", "full full", ""),
    ],
)
def test_the_order(text, cases, order):
    """Full comes before maybe, and maybe before echo; "with" alone names nothing.

    A sign in a line of source code counts less than one in a message.
    """
    kinds = cases.split()
    one = case("a", (kinds[0], r"the parrot has ceased to be"))
    two = case("b", (kinds[1], r"the bridge keeper asks a question"))
    text = text.replace("A!", "the parrot has ceased to be")
    text = text.replace("B!", "the bridge keeper asks a question")
    assert "".join(names(text, one, two)) == order


def test_a_crash_goes_before_the_wait_for_it():
    """A crash comes before the timeouts that it causes, and a warning after both.

    A hang that has evidence of its own comes before the crash.
    """
    hang = case("hang", ("full", r"the bridge keeper asks a question"), symptom="hang")
    slow = case("slow", ("full", r"an unladen swallow"), symptom="slow")
    text = (
        "an unladen swallow\nthe bridge keeper asks a question\n"
        "the parrot has ceased to be"
    )
    assert names(text, slow, hang, A) == ["a", "hang", "slow"]
    shown = case("shown", *hang.signs, ("with", r"of the Grail"), symptom="hang")
    assert names(f"{text}\nof the Grail", A, shown) == ["shown", "a"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a swallow\nall is well", ["slow"]),
        ("a swallow\nBrianError: no", []),  # a warning does not end a job
        ("BrianError: a swallow\nno", ["slow"]),
        ("a swallow\nthe parrot has ceased to be\nBrianError: no", ["a", "slow"]),
    ],
)
def test_a_warning_does_not_explain_an_error(text, found):
    """If an error that nothing explains ends a log, a warning names no case."""
    slow = case("slow", ("full", r"a swallow"), symptom="slow")
    assert names(text, slow, A) == found


@pytest.mark.parametrize(
    ("line", "lines", "found"),
    [
        ("[W socket.cpp:9] [c10d] a swallow", 3, ["a"]),
        ("[W socket.cpp:9] [c10d] a swallow", 30, []),
        ("W0104 13:46:27.8 9 run.py:7] a swallow", 30, []),
        ("UserWarning: a swallow", 30, []),
        ("RuntimeError: a swallow", 30, ["a"]),
    ],
)
def test_a_warning_that_may_be_is_news_in_a_brief_paste(line, lines, found):
    """A warning that only may point to a case is reported only in a short log.

    Long healthy logs contain such warnings too.
    """
    maybe = case("a", ("maybe", r"a swallow"))
    assert names("\n".join(["epoch"] * lines + [line]), maybe) == found
    full = case("a", ("full", r"a swallow"))
    assert names("\n".join(["epoch"] * lines + [line]), full) == ["a"]


def test_a_message_that_others_share_needs_evidence():
    """A shared message names a case that asks for evidence only beside a better one."""
    shy = case("shy", ("maybe", r"ceased to be"), ("with", r"the fjords"))
    assert names("the parrot has ceased to be", shy) == []
    assert names("the parrot has ceased to be: the fjords", shy) == ["shy"]
    assert names("the parrot has ceased to be", A, shy) == ["a", "shy"]
    echo = case("echo", ("echo", r"the parrot"))
    assert names("the parrot has ceased to be", echo, shy) == ["echo"]


def test_evidence_against_a_case_takes_it_away():
    """An "unless" sign removes a case, also one whose message has other capitals."""
    alive = case("alive", *A.signs, ("unless", r"beautiful plumage"))
    assert names("the parrot has ceased to be", alive) == ["alive"]
    assert names("the parrot has ceased to be\nbeautiful plumage", alive) == []
    assert names("the Parrot has CEASED to be", alive) == ["alive"]
    assert names("the Parrot has CEASED to be\nbeautiful plumage", alive) == []
    assert names("beautiful plumage", alive) == []


@pytest.mark.parametrize(
    ("size", "count", "found"), [(4, 3, ["a"]), (4, 4, []), (4, 16, []), (16, 4, ["a"])]
)
def test_a_barrier_that_all_have_reached_lacks_nobody(size, count, found):
    """A barrier that all ranks have reached is not a case, even if it is used twice.

    The counter of a store goes on counting when a barrier is used again. A regular
    expression cannot compare two numbers, so code has to do it.
    """
    waits = case("a", ("full", r"Timed out in the store's barrier"))
    text = f"Timed out in the store's barrier (world_size={size}, worker_count={count})"
    assert names(text, waits) == found


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_json_holds_a_traceback_in_one_line(depth):
    """Lines, quotes and ranks are read from JSON too, as in torchrun's error files."""
    last = case("last", ("full", r"^ParrotError: \"it\" has ceased to be$"))
    text = 'Traceback\n  File "a.py", line 1, in b\n\t[rank2]: ParrotError: "it" has'
    text += " ceased to be\n"
    assert names(text, last) == ["last"]
    for _ in range(depth):
        text = json.dumps({"message": text})
    assert names(f"ok\n{text}", last) == ["last"]
    log = Log(("log", f"ok\n{text}"))
    assert {log.place(i)[1] for i in range(1, len(log.lines))} == {2}
    path = r"C:\new\table\nodes"
    assert [*Log(("log", path)).lines] == [path]


def test_what_ends_no_job_is_no_better_than_an_echo_of_the_end():
    """A failure that ends no job comes after an echo, unless its sign is a full one."""
    echo = case("echo", ("echo", r"the parrot has"))
    text = "a swallow\nthe parrot has ceased to be"
    for kind, found in ("maybe", ["echo", "slow"]), ("full", ["slow", "echo"]):
        slow = case("slow", (kind, r"a swallow"), symptom="slow")
        assert names(text, slow, echo) == found


def test_a_training_that_goes_on_needs_no_warning_named():
    """A warning that only may point to a case is no news beside steps that go on."""
    slow = case("slow", ("maybe", r"UserWarning: a swallow"), symptom="slow")
    assert names("UserWarning: a swallow", slow) == ["slow"]
    for line in "epoch 3: loss 0.5", "loss=0.25", "Step 7", "30%|###   | 3/9 [2.1it/s]":
        assert names(f"UserWarning: a swallow\n{line}", slow) == [], line


def test_an_echo_is_no_case_if_the_training_goes_on():
    """Steps that follow an echo show that the job did not end by it."""
    echo = case("echo", ("echo", r"the parrot has"))
    steps = "\nstep 8 loss 0.5\nstep 9 loss 0.4"
    assert names(f"{steps}\nthe parrot has", echo) == ["echo"]
    assert names(f"the parrot has{steps}", echo) == []
    assert names("the parrot has\nstep 9 loss 0.4", echo) == ["echo"]


@pytest.mark.parametrize("error", ["AssertionError", "[rank1]: StopIteration"])
def test_an_exception_without_a_message_is_an_error(error):
    """An echo does not explain a bare exception before it."""
    echo = case("echo", ("echo", r"the parrot has"))
    assert names(f"{error}\nthe parrot has", echo) == []
    assert names(f"x = {error}(1)\nthe parrot has", echo) == ["echo"]


@pytest.mark.parametrize("typed", ["+ grep '{}' log", "++ echo '{}'", "$ echo {}"])
def test_what_a_shell_repeats_is_no_message(typed):
    """A command that a shell shows before it runs says nothing about the run."""
    line = typed.format("the parrot has ceased to be")
    assert names(line, A) == []
    assert names(f"{line}\nthe parrot has ceased to be", A) == ["a"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A!\nB!", ["both"]),
        ("B!\nA!", ["both"]),
        ("A!", []),
        ("B!", []),
        ("a!\nB!", ["both"]),  # in other capitals
        ("a!", []),
    ],
)
def test_a_sign_may_need_a_second_line(text, found):
    """A sign with ``&&`` counts only if other lines say the rest."""
    said = r"the parrot has ceased to be && the bridge keeper asks"
    both = case("both", ("full", said))
    text = text.replace("A!", "the parrot has ceased to be")
    text = text.replace("a!", "The Parrot has ceased to be")
    assert names(text.replace("B!", "the bridge keeper asks a question"), both) == found


def test_an_echo_explains_no_error_before_it():
    """If an unknown error comes before an echo, no case is named."""
    echo = case("echo", ("echo", r"Connection closed by the bridge keeper"))
    line = "RuntimeError: Connection closed by the bridge keeper"
    assert names(line, echo) == ["echo"]
    assert names(f"{line}\nBrianError: no", echo) == ["echo"]
    assert names(f"BrianError: no\n{line}", echo) == []


def test_a_warning_is_no_error():
    """A warning is not taken for an error, even if it contains the word."""
    echo = case("echo", ("echo", r"closed by the bridge keeper"))
    late = "closed by the bridge keeper"
    assert names(f"[W socket.cpp:1] (gai error: -2)\n{late}", echo) == ["echo"]
    assert names(f"UserWarning: BrianError: no\n{late}", echo) == ["echo"]
    assert names(f"[W socket.cpp:1]\n(error: no)\n{late}", echo) == []
    warned = "UserWarning: BrianError: no\nBrianError: no"
    assert first_error(Log(("log", warned))) == 1


def test_nccl_goes_on_after_its_first_line():
    """The lines after NCCL's first belong to the same error, even if one is an echo."""
    echo = case("echo", ("echo", r"closed by the bridge keeper"))
    text = "BrianError: {} error\nncclError: no\nLast error:\n{}"
    text += "closed by the bridge keeper"
    assert names(text.format("NCCL", ""), echo) == ["echo"]
    assert names(text.format("no", ""), echo) == []
    assert names(text.format("NCCL", "\n\n"), echo) == []


def test_a_title_has_other_capitals():
    """A message with other capitals counts as a maybe, in a short log and alone."""
    log = Log(("log", "the Parrot has CEASED to be"))
    (suspect,) = suspects_of(log, [A])
    assert (suspect.case, suspect.level) == (A, "maybe")
    assert names("the Parrot has CEASED to be\n" * 20, A) == []
    both = "the Parrot has CEASED to be\nthe bridge keeper asks a question"
    assert names(both, A, B) == ["b"]
    short = case("short", ("full", r"the parrot"))
    assert names("The Parrot", short) == []
    unsure = case("unsure", ("maybe", r"the parrot has ceased to be"))
    assert names("the Parrot has CEASED to be", unsure) == []


def test_an_error_is_no_mere_warning():
    """A silent failure counts, also in a long log, if an error shows it in the end."""
    silent = case("a", ("maybe", r"an unladen swallow"), symptom="silent")
    lines = ["epoch"] * 30
    assert names("\n".join([*lines, "an unladen swallow"]), silent) == []
    assert names("\n".join([*lines, "BrianError: an unladen swallow"]), silent) == ["a"]


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("NorwegianError: the parrot has ceased t", ["a"]),
        ("NorwegianError: the parrot has ceased t...", ["a"]),
        ("NorwegianError: the parrot has", []),
        ("NorwegianError: the parrot has ceased t\nbye", []),
    ],
)
def test_the_end_may_be_cut(end, found):
    """Two thirds of a message suffice where the end of the log cuts it off."""
    assert names(f"Epoch 1\n{end}", A) == found
    only = case("with", ("with", A.signs[0][1]))
    assert names(f"Epoch 1\n{end}", only) == []


def test_evidence_decides_between_equals():
    """If two cases share a message, the one whose "with" sign matches comes first."""
    rich = case("rich", *A.signs, ("with", r"pining for the fjords"))
    assert names("the parrot has ceased to be", A, rich) == ["a", "rich"]
    text = "the parrot has ceased to be\npining for the fjords"
    assert names(text, A, rich) == ["rich", "a"]


def test_a_message_alone_cannot_show_evidence():
    """A "with" sign that is anchored at both ends matches only a log of one line."""
    alone = case(
        "alone", ("maybe", r"the parrot"), ("with", r"^\W*the parrot rests\W*$")
    )
    line = "(the parrot rests)."
    for text in line, f"\n\n{line}\n", f"  \n[rank0]: {line}":
        assert names(text, alone) == ["alone"]
    for text in f"{line}\n{line}", f"a swallow\n{line}", "the parrot rests here":
        assert names(text, alone) == []
    assert names(line + 8 * "\n", alone) == ["alone"]
    assert names(line + 9 * "\n", alone) == []


@pytest.mark.parametrize("one", CASES, ids=lambda case: case.slug)
def test_what_the_page_shows_is_diagnosed(one):
    """The recorded output of each crash names that case, or is listed in SHARED."""
    if one.fields["symptom"] != "crash":
        return
    try:
        text = clinic.recorded(one)["broken"].text if one.runs else one.quoted
    except LookupError:
        pytest.fail("not recorded: make notebooks", pytrace=False)
    found = names(text, *CASES)[:3]
    if one.slug not in found:
        assert one.slug in SHARED, text
        others = SHARED[one.slug]
        assert others & set(found) if others else not found, (found, text)


def cut_short():
    """Return each literal piece of a sign, cut where it is just known, and before."""
    pieces = {n for c in CASES for s in signs_of(c) for n in s.needles}
    known = {n[: max(CUT, len(n) // 2)] for n in pieces}
    return [f"x{piece}" for piece in sorted(known | {n[:-1] for n in known})]


TEXTS = {  # one test each, so that a slow machine does not reach the timeout
    "logs": lambda: [row["text"] for row in measure.rows("dev")],
    "healthy": lambda: [*measure.healthy().values(), "", "\r\n", STACKS],
    "mixed": lambda: list(mixed([row["text"] for row in measure.rows("dev")], 400)),
    "cut": cut_short,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_the_page_finds_the_same(kind):
    """diagnose.js names the same cases, at the same places and in the same order."""
    texts = TEXTS[kind]()
    script = ROOT / "book" / "_static" / "diagnose.js"
    command = [compute_driver_executable()[0], Path(__file__).with_name("diagnose.cjs")]
    given = json.dumps({"table": table(CASES), "texts": texts})
    done = subprocess.run(
        [*command, script], input=given, capture_output=True, text=True, timeout=100
    )
    assert not done.returncode, done.stderr
    told = 0
    for text, answer in zip(texts, json.loads(done.stdout), strict=True):
        log = Log(("log", text))
        mine = [
            [
                suspect.case.slug,
                LEVELS.index(suspect.level),
                [
                    [one.pattern, hit.text, hit.begin, hit.end, *at(log, hit.first)]
                    for one, hit in suspect.hits
                ],
            ]
            for suspect in suspects_of(log, CASES)
        ]
        others = [first_error(log), ended(log).get(0), compared(log)]
        mine = json.loads(json.dumps([mine, *others]))
        told += 1 if mine[0] else 0
        assert answer == mine, repr(text)
    assert told > 100 or kind == "healthy"


def at(log, line):
    """Return the number of a line in its file, and its rank."""
    return log.place(line)[1], log.rank(line)


def mixed(rows, number):
    """Yield logs that are put together, and changed in their form, at random."""
    draw = random.Random(5)

    def dress(text):
        lines, width = text.split("\n"), draw.randrange(45, 100)
        cut = [x[i : i + width] for x in lines for i in range(0, len(x) or 1, width)]
        fold = [part for x in lines for part in textwrap.wrap(x, width) or [""]]
        return draw.choice(
            [
                text,
                "\n".join(f"[rank{draw.randrange(4)}]: {x}" for x in lines),
                "\n".join(f"\x1b[31m{x}\x1b[0m" for x in lines),
                "\n".join(cut),
                "\n".join(f"> {x}" for x in fold),
                "\n".join(f"│ {x}  │" for x in lines),
                "\r".join(f"{draw.randrange(4)}: {x}" for x in lines),
                text.replace("'", "’").replace(" ", "\xa0").replace("--", "—"),
                text.replace("\n", "\r\n🙂\u2028\ud83d\x1c&amp;gt; "),
                text.replace("\n", " "),
            ]
        )

    for _ in range(number):
        text = "\n".join(dress(draw.choice(rows)) for _ in range(draw.randrange(1, 4)))
        begin = draw.randrange(len(text)) if draw.random() < 0.3 else 0
        yield text[begin : begin + draw.choice([500, 3000, 10_000])]


def run(*arguments, given=b"", **how):
    """Run the command and return its exit code, stdout and stderr."""
    command = [sys.executable, "-m", "allranks.diagnose", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, input=given, capture_output=True, timeout=60, **how
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


LOG = b"Epoch 1\n[rank1]: KeyError: 'LOCAL_RANK'\n"


def test_a_pipe_is_diagnosed_without_torch():
    """It prints what, where, why, the cure and a link, without importing torch."""
    command = (
        "import sys; from allranks import diagnose; code = diagnose.main([]); "
        "sys.exit(3 if {'torch', 'numpy', 'IPython'} & set(sys.modules) else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, input=LOG, capture_output=True
    )
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "local-rank-keyerror (launch; fails)" in text
    assert "> line 2, rank 1: [rank1]: KeyError: 'LOCAL_RANK'" in text
    assert "Cause: " in text and "Cure: " in text
    assert "book/app_clinic_launch.html#clinic-local-rank-keyerror" in text


def test_json_is_for_tools(capsys, tmp_path):
    """``--json`` prints the same as data; among several logs, a match names its own."""
    (tmp_path / "0.log").write_bytes(b"all is well\n")
    (tmp_path / "1.log").write_bytes(LOG)
    files = [str(tmp_path / "0.log"), str(tmp_path / "1.log")]
    assert diagnose.main(["--json", *files]) == 0
    told = json.loads(capsys.readouterr().out)
    match = told["found"][0]["matches"][0]
    assert told["known"] and match["file"] == files[1]
    assert (match["line"], match["rank"]) == (2, "1")
    assert diagnose.main(files) == 0
    assert f"> {files[1]}, line 2, rank 1: " in capsys.readouterr().out
    assert diagnose.main(["--json", files[0]]) == 1
    assert json.loads(capsys.readouterr().out) == {"known": False, "found": []}


def test_not_known_says_what_to_do(capsys, tmp_path):
    """Without a guess, it shows the line of the first error and where to go on."""
    (tmp_path / "log").write_text("ok\nBrianError: he is not the Messiah\n", "utf8")
    assert diagnose.main([str(tmp_path / "log")]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Not known: none of ")
    assert "looks like an error is 2 of" in text and "app_clinic_hangs" in text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        ("folder", "is a folder"),
        (b"", "is empty"),
        (b" \n\r\n", "is empty"),
        (b"\x7fELF" + bytes(100), "is not a text file"),
        (bytes(range(128, 256)) * 7, "is not a text file"),
        (b"PK\x03\x04 a zip", "is not a text file"),
        (b"\x1f\x8b\x08\x00 a gzip", "is not a text file"),
        (b"x" * 2000, "has more than 0 MiB"),
    ],
)
def test_a_bad_file_gets_one_sentence(content, sentence, capsys, tmp_path, monkeypatch):
    """The sentence names the file, and the exit code is 2."""
    monkeypatch.setattr(reading, "LIMIT", 1000)
    path = tmp_path / "train.log"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    assert diagnose.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    assert sentence in printed.err and "train.log" in printed.err


def test_a_file_that_may_not_be_read(capsys, monkeypatch):
    """The error becomes one sentence instead of a traceback."""

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ValueError, match=r"a\.log cannot be read: Permission denied"):
        list(read("a.log"))


WIDE = "étape 1\r\n日本\r\n" + LOG.decode().replace("\n", "\r\n")


@pytest.mark.parametrize("size", [1, 7, 9000])
@pytest.mark.parametrize(
    "data",
    [
        LOG.decode().encode("utf-16"),
        "\ufeff".encode() + LOG,
        b"caf\xe9 \xff\xfe\n" + LOG,
        LOG.replace(b"\n", b"\r\n"),
        LOG + b"\x00",
        WIDE.encode("utf-16-le"),  # what >> in PowerShell appends, or a part of a pipe
        WIDE.encode("utf-16-be"),
        ("\ufeff" + WIDE).encode("utf-16-be"),
        b"C:\\> python train.py\r\n" * 400 + LOG.decode().encode("utf-16-le"),
        b"C:\\> python train.py\r\n" * 400 + LOG.decode().encode("utf-16-be"),
    ],
)
def test_bytes_of_any_kind(data, size):
    """A log may be Latin-1, hold a zero, or be UTF-16, also in part or unmarked."""
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    log = Log(("log", decoded(chunks, "log")))
    assert suspects_of(log, CASES)[0].case.slug == "local-rank-keyerror"
    assert log.lines[-2].endswith("KeyError: 'LOCAL_RANK'")


def test_what_powershell_makes_of_stderr():
    """A message is found after PowerShell has added its own lines and broken long ones.

    Its > writes UTF-16, and it puts the program's name in front of the first line.
    """
    error = "RuntimeError: Expected to have finished reduction in the prior iteration "
    lines = [
        "Epoch 1",
        "python.exe : Traceback (most recent call last):",
        "At line:1 char:1",
        "+ python.exe train.py > train.log 2>&1",
        "    + CategoryInfo          : NotSpecified: (Traceback:String) [], RemoteE",
        "   xception",
        "    + FullyQualifiedErrorId : NativeCommandError",
        " ",
        f"{error}before starting a new o",
        "ne. This error indicates that your module has parameters that were not used",
    ]
    data = "\r\n".join(lines).encode("utf-16")
    log = Log(("log", decoded([data], "log")))
    assert "ddp-unused-params" in [one.case.slug for one in suspects_of(log, CASES)]


def test_a_log_is_cut_where_its_lines_end():
    """Neither lines nor their numbers depend on the blocks in which a log is read."""
    draw, parts = random.Random(3), []
    for i in range(4000):
        kind = draw.choice(["step", "\u2588" * 70, "x " * 40, "y" * 5000])
        parts += [f"{kind} {i}", draw.choice(["\n", "\n", "\r", "\r\n"])]
    text = "".join(parts)
    assert len(text) > 8 * BLOCK
    whole = [
        (row[at : at + CHUNK], number)
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
        for row in line.split("\r")
        for at in range(0, max(1, len(row)), CHUNK)
    ]
    for size in 4096, len(text):
        parts = (text[i : i + size] for i in range(0, len(text), size))
        log = Log(("a", "1\r2\n3"), ("b", parts))
        assert [log.place(i) for i in range(3)] == [("a", 1), ("a", 1), ("a", 2)]
        rows = range(3, len(log.lines))
        assert [(log.lines[i], log.place(i)[1]) for i in rows] == whole
        assert {log.place(i)[0] for i in rows} == {"b"}
    log = Log(("a", "z" * (3 * BLOCK) + "\nend"))
    assert [*log.lines][-1] == "end" and log.place(len(log.lines) - 1) == ("a", 2)


def test_a_log_is_joined_across_blocks():
    """A message in a broken line is found also where a block of the log ends."""
    head = "it is long enough to be broken by a terminal: the parrot has cea"
    filler = "epoch\n" * (BLOCK // 6)
    for end in range(0, 84, 6):
        text = f"{filler[end:]}{head}\nsed to be\n{filler}"
        (suspect,) = suspects_of(Log(("log", text)), [A])
        assert suspect.first == text[: text.index(head)].count("\n")


STACKS = """Epoch 1
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 9, in <module>
[rank1]: KeyboardInterrupt
RuntimeError: Connection closed by the bridge keeper
"""


def test_what_follows_from_control_c_is_no_cause():
    """A peer that Ctrl-C has ended is no cause, but an earlier error still counts."""
    echo = case("echo", ("echo", r"closed by the bridge keeper"))
    assert names(STACKS, echo) == []
    assert ended(Log(("log", STACKS))) == {0: 1}
    before = "RuntimeError: Connection closed by the bridge keeper\n"
    assert names(before + STACKS, echo) == ["echo"]
    assert names(f"the parrot has ceased to be\n{STACKS}", A, echo) == ["a"]
    slow = case("slow", ("maybe", r"Epoch 1"), symptom="slow")
    assert names("RuntimeError: Epoch 1", slow) == ["slow"]
    assert names(STACKS, slow) == []
    two = Log(("a", STACKS), ("b", "ok\nthe parrot has ceased to be\n" + STACKS))
    assert ended(two) == {0: 1, 1: 9}
    assert [one.case.slug for one in suspects_of(two, [A, echo])] == ["a"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("KeyboardInterrupt", True),
        ("[rank3]: KeyboardInterrupt: ", True),
        ("W0 api.py:704] Received 2 death signal, shutting down workers", True),
        ("WARNING Received Signals.SIGINT death signal, shutting down", True),
        ("SignalException: Process 4711 got signal: 2", True),
        ("SignalException: Process 4711 got signal: 23", False),
        ("    except KeyboardInterrupt:", False),
        ("Received 15 death signal, shutting down workers", False),
        ("press Ctrl-C to stop", False),
    ],
)
def test_a_log_tells_that_somebody_ended_the_job(line, told):
    """A log shows that somebody ended the job, in the words of Python or torchrun."""
    assert ended(Log(("log", f"ok\n{line}"))) == ({0: 1} if told else {})


def test_code_in_an_answer_keeps_its_asterisks():
    """Emphasis and links are taken out of an answer, but what is in backticks stays."""
    text = "*pass* **this**: `lambda *a, **k: None`, see [the page](https://x.org/*y*)"
    assert flat(text) == "pass this: `lambda *a, **k: None`, see the page"
