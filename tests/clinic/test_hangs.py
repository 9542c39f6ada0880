"""What the page says about hangs holds: its verdicts, and the rules behind them."""

import json
import re
import subprocess
import sys

import pytest

from allranks import Ranks, clinic, hangs
from allranks.base.paths import ROOT
from allranks.hangs import flight, tools, verdicts
from allranks.hangs.measure import measure, meets_late

PAGE = (ROOT / "book" / "app_clinic_hangs.md").read_text("utf8")
MEASURE = "the hangs have changed: measure them again, python tests/bench hangs"
AGAIN = {  # a hang of each kind, with tools that see it differently
    "ddp-barrier-in-rank0": ["timeout", "monitored_barrier", "detail", "live_ranks"],
    "collective-order": ["detail", "flight_recorder"],
    "new-group-subset": ["monitored_barrier", "flight_recorder"],
    "p2p-deadlock": ["flight_recorder", "faulthandler"],
    "ddp-uneven-inputs": ["flight_recorder"],
    "wrong-port-or-firewall": ["faulthandler"],
}


def recorded() -> dict:
    """Return what was measured, by case and tool."""
    return json.loads((ROOT / hangs.DATA).read_text("utf8"))["hangs"]


def case(slug: str) -> clinic.Specimen:
    """Return a case of the clinic."""
    return clinic.read(ROOT / "clinic" / f"{slug}.py")


def test_every_hang_was_measured_with_every_tool():
    """Every pair of hang and tool is measured; a new one of either needs it too."""
    wanted = {case.slug: sorted(tools.TOOLS) for case in hangs.cases(ROOT)}
    found = {slug: sorted(by_tool) for slug, by_tool in recorded().items()}
    assert found == wanted, MEASURE
    assert set(hangs.WAITED_FOR) == set(wanted), "allranks/hangs/__init__.py"


PAIRS = [(slug, key) for slug, keys in AGAIN.items() for key in keys]


@pytest.mark.parametrize(("slug", "key"), PAIRS)
def test_a_tool_still_says_what_it_said(slug, key):
    """A tool measured again gives the same verdict and names the same ranks."""
    finding, then = measure(case(slug), key), recorded()[slug][key]
    assert finding.verdict == then["verdict"], finding
    assert finding.named == then["named"], finding


def test_what_cannot_be_attached_says_why():
    """A tool that needs a process group, or your own code, isn't tried without it."""
    alone = measure(case("world-size-too-big"), "detail")
    assert (alone.verdict, alone.words) == (verdicts.NONE, tools.NO_GROUP)
    launched = measure(case("node-missing-c10d"), "live_ranks")
    assert (launched.verdict, launched.words) == (verdicts.NONE, tools.COMMAND)


def test_a_hang_without_a_culprit_is_refused(tmp_path):
    """The author of a case has to say for whom the ranks wait."""
    (tmp_path / "clinic").mkdir()
    text = (ROOT / "clinic" / "ddp-barrier-in-rank0.py").read_text("utf8")
    (tmp_path / "clinic" / "new-one.py").write_text(text, "utf8")
    with pytest.raises(LookupError, match=r"new-one\.py hangs: say in .*WAITED_FOR"):
        hangs.cases(tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 9 ms", {1, 12}),
        ("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 9 ms", {3}),
        (
            "Rank 0 is running collective: A, but Rank 2 is running collective: B",
            {0, 2},
        ),
        ("[Rank 5] Timed out waiting 1000ms for recv operation to complete", set()),
    ],
)
def test_messages_name_the_ranks_that_they_accuse(text, named):
    """The rank that reports is not among those it accuses."""
    assert verdicts.in_message(text) == named


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ({0: "dist.barrier()", 1: verdicts.GONE}, {1}),
        ({0: "a()", 1: "a()", 2: "b()"}, {2}),
        ({0: "a()", 1: "b()"}, {0, 1}),
        ({0: "a()", 1: "a()"}, set()),
        ({0: "dist.send(x, 1)", 1: "dist.send(x, 1)"}, {0, 1}),
        ({0: verdicts.GONE, 1: verdicts.GONE}, set()),
    ],
)
def test_stacks_name_who_stands_elsewhere(places, named):
    """Stacks name the rank that is gone, else the minority, else all that differ."""
    assert verdicts.in_places(places) == named


@pytest.mark.parametrize(
    ("named", "guilty", "text", "verdict"),
    [
        ({1}, (1, 2), "rank 1", verdicts.NAMES),
        ({0, 1}, (1,), "ranks 0 and 1", verdicts.BLAMES),
        (set(), (1,), "Timed out", verdicts.SHOWS),
        (set(), (1,), "", verdicts.SILENT),
        (set(), r"connect to \(", "connect to (gpu1, 29500)", verdicts.NAMES),
        (set(), r"connect to \(", "Timed out", verdicts.SHOWS),
    ],
)
def test_verdicts_compare_with_who_is_waited_for(named, guilty, text, verdict):
    """A verdict compares the named ranks with the guilty; one innocent is too many."""
    assert verdicts.judge(named, guilty, text) == verdict


def test_both_tools_stacks_are_read():
    """Stacks of py-spy and of faulthandler are read, but only the main thread's."""
    sources = {"broken": "x = 1\ndist.barrier()"}
    spied = (
        'Thread 7 (idle): "pool"\n    work (other.py:3)\n'
        'Thread 5 (idle): "MainThread"\n'
        "    wrapper (/lib/site-packages/torch/c10d.py:83)\n    <module> (broken:2)\n"
    )
    faults = (
        'Thread 0x01 (most recent call first):\n  File "other.py", line 3 in work\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/lib/site-packages/torch/c10d.py", line 83 in wrapper\n'
        '  File "broken", line 2 in <module>\n'
    )
    idle = '  File "/lib/threading.py", line 8 in wait\n'
    stacks = {0: spied, 1: faults, 2: idle, 3: ""}
    places = verdicts.places_in_stacks(stacks, sources)
    assert places[0] == places[1] == "`dist.barrier()` at cell line 2"
    assert (places[2], places[3]) == (verdicts.GONE, verdicts.MUTE)


def test_the_reports_of_live_ranks_are_read():
    """The report of live ranks is read for who waits and who doesn't."""
    report = "ranks 0–1 and 3 wait in `a()` at cell line 1\nrank 2 finished"
    assert verdicts.in_places(verdicts.places_in_report(report, 4)) == {2}


def record(*names: str, group="0", ranks="[0, 1, 2]") -> dict:
    """Return a dump that holds these collectives, in order."""
    entries = [
        {
            "process_group": (group, ""),
            "collective_seq_id": number,
            "profiling_name": name,
            "input_sizes": [[4]],
            "is_p2p": False,
            "frames": [{"filename": "train.py", "line": 10 + number}],
        }
        for number, name in enumerate(names, 1)
    ]
    return {"pg_config": {group: {"ranks": ranks}}, "entries": entries}


def test_dumps_tell_who_is_behind():
    """The suspect is the rank whose record ends first, or that has none at all."""
    dumps = {0: record("a", "b"), 1: record("a"), 2: record("a", "b")}
    sentences, suspects = flight.compare(dumps)
    assert suspects == [1]
    assert sentences == [
        "group 0, collective 2: rank 1 is behind (last: 1); ranks 0 and 2 began "
        "b of [[4]] at train.py line 12"
    ]
    assert flight.compare({0: record("a"), 1: record(), 2: record()})[1] == [1, 2]
    assert flight.compare({0: record("a"), 1: record("a")})[1] == [2]  # no dump


def test_dumps_tell_who_differs():
    """Two operations under one number differ; equal records accuse no rank."""
    dumps = {0: record("a", "b"), 1: record("a", "c"), 2: record("a", "b")}
    sentences, suspects = flight.compare(dumps)
    assert suspects == [0, 1, 2]
    assert "collective 2 differs: rank 0 b of" in sentences[0]
    assert flight.compare(dict.fromkeys(range(3), record("a"))) == ([], [])


def test_two_groups_are_two_histories():
    """Only the members of a group can fall behind in it."""
    both = record("a", "b", group="1", ranks="[0, 1]")
    one = record("a", group="1", ranks="[0, 1]")
    assert flight.compare({0: both, 1: one, 2: record("a", ranks="[2]")})[1] == [1]


def test_dumps_of_a_live_hang_are_read_by_us_and_by_torch(tmp_path):
    """A thread writes the dumps; our command and torchfrtrace name the same rank."""

    def prepare(folder):
        from allranks.hangs import flight

        flight.dump_after(0.3, folder)

    with Ranks(2) as ranks:
        ranks.run(prepare, str(tmp_path))
        late = (
            "import time\nif rank == 0:\n    dist.barrier()\nelse:\n    time.sleep(1)"
        )
        ranks.run(f"{late}\n    dist.barrier()")
    command = [sys.executable, "-m", "allranks.hangs.flight", str(tmp_path)]
    ours = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "rank 1 is behind (last: 0); rank 0 began gloo:barrier" in ours
    assert ours.endswith("look at rank 1\n")
    with Ranks(1) as ranks:  # a live rank has imported torch already
        where = f"{flight.PREFIX!r}, {str(tmp_path)!r}"
        code = "from torch.distributed.flight_recorder.fr_trace import main"
        ranks.run(f"{code}\nmain(['--prefix', {where}])", quiet=True)
        assert "missing ranks: {1}" in ranks.outputs[0]
    assert "missing ranks: {1}" in PAGE


def test_the_command_says_what_it_needs(tmp_path):
    """The command asks for one folder with dumps in it."""
    for arguments, words in ([], "one folder of dumps"), ([tmp_path], "no dump in"):
        with pytest.raises(SystemExit, match=words):
            flight.main(arguments)


def test_what_the_page_says_of_the_table():
    """The recorded figures bear out the lessons that the page draws from its table."""
    found, late = recorded(), {c.slug for c in hangs.cases(ROOT) if meets_late(c)}
    group = [by_tool for slug, by_tool in found.items() if slug not in late]
    assert {by_tool["timeout"]["verdict"] for by_tool in group} == {verdicts.SHOWS}
    names = {key: 0 for key in tools.TOOLS}
    for by_tool in group:
        for key in names:
            if by_tool[key]["verdict"] == verdicts.NAMES:
                names[key] += 1
    stacks = {names[key] for key in ("py_spy", "faulthandler", "live_ranks")}
    others = {names[key] for key in ("detail", "flight_recorder", "monitored_barrier")}
    assert min(stacks) > max(others) > 0
    for slug in "p2p-deadlock", "new-group-subset":
        for key in "detail", "flight_recorder":
            assert found[slug][key]["verdict"] != verdicts.NAMES


def test_a_monitored_barrier_does_not_miss_rank_0():
    """Without rank 0, the others wait for the group's timeout, not the barrier's."""

    def wait():
        import time
        from datetime import timedelta

        import torch.distributed as dist

        group, start = dist.new_group(timeout=timedelta(seconds=1)), time.monotonic()
        if dist.get_rank() == 0:
            return "", 1
        try:
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.01))
        except RuntimeError as error:
            return str(error), time.monotonic() - start

    with Ranks(2) as ranks:
        _, (message, seconds) = ranks.run(wait, timeout=20)
    assert "1000ms" in message, message
    assert seconds > 0.9


def test_the_page_shows_each_tool():
    """Each tool has a section with an output and with what the tool cannot see."""
    shown = set(re.findall(r"\{hang-output\} (\w+) ", PAGE))
    assert shown == set(tools.TOOLS)
    assert PAGE.count("*What it cannot see:*") == len(tools.TOOLS)
