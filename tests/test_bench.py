"""A figure whose runs differ too much is not published, and the page states that."""

import importlib
import importlib.util
import json
import re
import sys
from types import SimpleNamespace

import pytest
from torch import nn

from allranks import Ranks
from allranks.base.paths import ROOT
from book._ext.runs import bench
from tests.bench import by_hand
from tests.bench.apart import apart

PAGE = (ROOT / "book" / "ch2_data_parallel.md").read_text("utf8")
BUSY = {"threads": 1.94, "threads_min": 0.42, "threads_max": 4.39, "one_ms": 98.0}
QUIET = BUSY | {"threads_min": 1.8, "threads_max": 2.1}


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """Return a function that gives tests/bench parts with fixed figures."""
    path = ROOT / "tests" / "bench" / "__main__.py"
    spec = importlib.util.spec_from_file_location("bench_main", path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

    def add(**figures):
        for name, found in figures.items():
            part = SimpleNamespace(__doc__="A part.", DATA=tmp_path / "bench.json")
            part.run, part.report = (lambda found=found: found), str
            monkeypatch.setitem(sys.modules, name, part)
        monkeypatch.setattr(program, "PARTS", list(figures))
        return program.main, tmp_path / "bench.json"

    return add


def test_a_wide_figure_is_refused_and_the_others_are_stored(runner):
    """The refusal names the figure, its spread, the bound and what else is running."""
    main, file = runner(before={"small": QUIET}, busy={"small": BUSY}, after=QUIET)
    with pytest.raises(SystemExit) as end:
        main([])
    (said,) = str(end.value.code).splitlines()
    assert said.startswith(
        "busy.small.threads is 1.94, but its runs go from 0.42 to 4.39"
    )
    assert "205% of it, where 50% is the most" in said
    assert re.search(r"load \d+\.\d; now running: \w", said)
    stored = json.loads(file.read_text())
    assert {"before", "after"} <= stored.keys() and "busy" not in stored
    assert set(stored["machines"]) == {"before", "after"}


def test_what_was_published_stays_when_a_new_run_is_refused(runner):
    """A refused run changes nothing; measuring one part doesn't redate the others."""
    main, file = runner(part=QUIET)
    main([])
    before = json.loads(file.read_text())
    main, file = runner(part=BUSY)
    with pytest.raises(SystemExit):
        main(["part"])
    assert json.loads(file.read_text()) == before
    file.write_text(json.dumps(before | {"machine": {"date": "long ago"}}))
    main, file = runner(part=QUIET)
    main(["part"])
    assert json.loads(file.read_text())["machine"] == {"date": "long ago"}
    assert json.loads(file.read_text())["machines"]["part"]["cores"] >= 1


def test_a_part_may_refuse_what_it_found(runner):
    """A part's own refusal ends the program, and its figures are not stored."""
    main, file = runner(light={"bytes": 1}, heavy={"bytes": 9})
    sys.modules["heavy"].refusal = "{bytes} are too many".format_map
    sys.modules["light"].refusal = lambda found: ""
    with pytest.raises(SystemExit, match="9 are too many"):
        main([])
    stored = json.loads(file.read_text())
    assert "light" in stored and "heavy" not in stored


@pytest.mark.parametrize(
    ("low", "high", "wide"),
    [(0.75, 1.25, False), (0.74, 1.25, True), (1, 1, False), (float("nan"), 1, True)],
)
def test_the_bound(low, high, wide):
    """The largest and the smallest run may differ by half of the figure."""
    figures = {"a": {"ratio": 1.0, "ratio_min": low, "ratio_max": high, "ms": 9}}
    found = [path for path, *_ in bench.too_wide(figures)]
    assert found == ["a.ratio"] * wide


def test_the_page_states_the_bound_and_whether_its_table_keeps_it():
    """The bound comes from a role and a directive, not from a typed number."""
    assert "{bench}`most_spread:.0%`" in PAGE
    assert "```{bench-machine} data_parallel\n```" in PAGE
    assert bench.lookup({}, "most_spread:.0%") == f"{bench.MOST_SPREAD:.0%}"


def test_the_page_opens_with_its_verdict_and_shows_its_memory_first():
    """The page begins with "use DDP" and the memory table; the reasons follow."""
    opening, *sections = PAGE.split("\n## ")
    assert "**Don't use it: use DDP**" in opening
    assert opening.count("{glue:} ch2_memory") == 1 == PAGE.count("{glue:} ch2_memory")
    assert opening.index("use DDP") < opening.index("{glue:} ch2_memory")
    assert opening.index("use DDP") < opening.index("One reason not to use it")
    assert "use it?" not in "".join(sections)


def test_a_screen_of_the_benchmark_sees_each_line_when_it_is_printed(monkeypatch):
    """It is told while the cell runs, or there would be nothing to take a median of."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "bench")
    live_ranks = importlib.import_module("live_ranks")
    with Ranks(1) as ranks:
        ages = live_ranks.until_shown(ranks)
    assert 10 <= len(ages) <= 20 and max(ages) < 60  # the last may come at the end


def test_two_sides_that_share_a_tensor_are_refused():
    """A wrapper's hooks on a shared parameter would run in the other side's steps."""
    layer, norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
    other = nn.BatchNorm1d(2)
    other.running_mean = norm.running_mean
    sides = {"a": nn.Sequential(layer, norm), "b": nn.Sequential(nn.Linear(2, 2))}
    assert apart(sides) is sides
    with pytest.raises(ValueError, match=r"'c' and 'a' share 0\.weight: give each"):
        apart(sides | {"c": nn.Sequential(layer)})
    with pytest.raises(ValueError, match=r"'c' and 'a' share 0\.running_mean"):
        apart(sides | {"c": nn.Sequential(other)})


@pytest.mark.parametrize("kind", ["mlp", "slow"])
def test_the_ladder_is_measured_on_objects_of_each_sides_own(kind):
    """While another side trains, nothing is sent that it did not ask for."""
    ways = ("by_hand", "torch") if kind == "mlp" else ("from_hook", "by_hand", "torch")
    with Ranks(2) as ranks:
        for found in ranks.run(by_hand.on_rank, kind, 1, ways, quiet=True):
            assert {way: len(times) for way, times in found.items()} == dict.fromkeys(
                ways, 1
            )


def test_every_benchmark_that_trains_several_models_keeps_them_apart():
    """The bound that refuses shared objects is in each of them."""
    several = {
        path.stem: source
        for path in (ROOT / "tests" / "bench").glob("*.py")
        if re.search(r"^ +models\b.*=", source := path.read_text("utf8"), re.M)
    }
    assert {"by_hand", "ddp", "backends", "guard"} <= several.keys()
    assert [name for name, source in several.items() if "apart(" not in source] == []
