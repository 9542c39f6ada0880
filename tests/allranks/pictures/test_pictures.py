"""The pages' pictures are drawn from what runs printed, and say what it says.

Every picture of every page is drawn here with its real source, and with a source that
is broken: then it refuses, and the build fails.
"""

import doctest
import inspect
import json
import re
from importlib import import_module
from itertools import chain

import pytest
import torch

from allranks import pictures
from allranks.base.paths import ROOT
from allranks.base.picture import Picture
from allranks.base.svg import ON_WRONG, RANK_COLORS, WAITING, WRONG
from allranks.openings.sheet import GROUND, MUTED
from allranks.pictures import (
    ch3_save_load,
    ch7_collectives,
    ch9_data,
    ch10_precision,
    chart,
)
from allranks.topics.collectives.sums import before, simulate
from book._ext.runs import bench, records
from book._ext.runs import picture as directive
from scripts import ch9_data as script

FENCE = re.compile(
    r"^```\{picture\} (\S+)\n((?::\w+: [^\n]*\n)*)(.+?)\n```$", re.MULTILINE | re.DOTALL
)
OPTION = re.compile(r"^:(\w+): (.*)$", re.M)
MODULES = [
    import_module(f"{pictures.__name__}.{path.stem}")
    for path in sorted(directive.FOLDER.glob("[!_]*.py"))
    if path.stem != "chart"
]
SMALLEST = 12  # px, of a letter
COLORS = {*RANK_COLORS, WAITING, WRONG, ON_WRONG, MUTED, GROUND, "currentColor", "none"}


def source(kind: str, text: str) -> object:
    """Return what an option of ``{picture}`` leads to."""
    if kind == "given":
        return text
    if kind == "bench":
        return bench.find(json.loads((ROOT / bench.DATA).read_text()), text)
    if kind == "hang":
        tool, hang = text.split()
        return json.loads((ROOT / directive.HANGS).read_text())["hangs"][hang][tool][
            "words"
        ]
    if kind == "glue":
        path, _, name = text.partition("::")
        return directive.glued(ROOT / path.removeprefix("../"), name)
    commands = [records.Command(line) for line in text.split(" && ")]
    folder = ROOT / directive.RUNS
    return "\n".join(f"$ {c.line}\n{records.read(folder, c)}" for c in commands)


def uses() -> list[tuple[str, str, str]]:
    """List (function, kind of source, its text) of every picture on a page."""
    found = []
    for page in sorted(ROOT.glob("book/*.md")):
        for name, options, _ in FENCE.findall(page.read_text("utf8")):
            (kind, text), *_ = [*OPTION.findall(options), ("", "")]
            found.append((name, kind, text))
    return found


USES = uses()


def draw(name: str, *sources: object) -> Picture:
    """Draw a picture by its name on a page."""
    module, _, function = name.partition(".")
    return getattr(import_module(f"{pictures.__name__}.{module}"), function)(*sources)


@pytest.mark.parametrize(("name", "kind", "text"), USES)
def test_a_picture_says_its_numbers_in_a_column_and_on_a_phone(name, kind, text):
    """Both drawings have a text for screen readers, large letters, and our colours."""
    picture = draw(name, *([source(kind, text)] if kind else []))
    title, _, alt = picture.text.partition("\n")
    assert title and re.search(r"\d", alt) and len(alt) > 40
    svgs = re.findall(r"<svg.*?</svg>", picture.html, re.S)
    assert [re.search(r'viewBox="-1 -1 (\d+)', svg)[1] for svg in svgs] == [
        "754",
        "354",
    ]
    for svg in svgs:
        assert svg.count("aria-label=") == 1 and 'role="img"' in svg
        assert min(map(int, re.findall(r'font-size="(\d+)"', svg))) >= SMALLEST
        used = re.findall(
            r"(?:fill|stroke):((?:var\([^)]*(?:\([^)]*\))?\))|[#\w]+)", svg
        )
        assert {*used} <= COLORS


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [use for use in USES if use[1] in ("output", "glue", "hang")],
)
def test_an_output_of_another_form_is_refused(name, kind, text):
    """The error says what the picture looked for, so that one can repair it."""
    for broken in ("", "$ python x\nall is different now: 3\n"):
        with pytest.raises(ValueError, match=r"\w{4}"):
            draw(name, broken)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch9_data.workers", r"(read, 2 workers.*waited) \d+%", r"\1 60%"),
        (
            "ch9_data.seeds",
            r"32 of 32 different, unchanged",
            "31 of 32 different, unchanged",
        ),
        ("ch9_data.padding", r"in buckets: 0\.\d+", "in buckets: 0.45"),
        ("ch9_data.uneven", r"(pad: .*off by) 0.000", r"\1 0.100"),
        ("ch9_data.cuts", r"(cut in a header, alone:) 20", r"\1 ReadError: no"),
        ("ch10_precision.sums", r"41\.03", "0.50"),
        ("ch10_precision.cures", r"(bf16  .*loss) 3\.\d+", r"\1 2.950"),
        (
            "ch3_save_load.lost",
            r"lost nothing: .+",
            "lost nothing: off by 0.1, from step 8",
        ),
        ("ch8_ddp_by_hand.trace", r"message 0: [\d.]+", "message 0: 30.0"),
        ("ch7_collectives.hierarchy", r"5\.5 n / B", "9.5 n / B"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    kind, text = next(use[1:] for use in USES if use[0] == name)
    output = source(kind, text)
    changed = re.sub(old, new, output)
    assert changed != output
    with pytest.raises(ValueError, match="contradict the title"):
        draw(name, changed)


def test_every_picture_is_on_a_page():
    """None is left over."""
    known = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and inspect.signature(function).return_annotation is Picture
    }
    parts = {"ch8_ddp_by_hand.versions"}  # two others are made with it
    assert known - parts == {name for name, *_ in USES}


def test_lanes_and_buffers_are_those_of_the_script(monkeypatch):
    """What the pictures compute is what chapter 9's script does."""
    lanes = script.deal(6144, ch9_data.LANES, "0 1")
    ends = sorted({shard.start for shard in chain(*lanes)})
    numbers = [[ends.index(shard.start) for shard in shards] for shards in lanes]
    assert ch9_data.dealt("0 1") == numbers
    stream = script.Stream(None, lanes, "0 1", 12, (1, 3))
    first = stream.rank + stream.world_size * 0
    mine = list(range(first, len(lanes), stream.world_size))
    assert mine == [i for i in range(8) if ch9_data.reader(i, 3) == 1]
    for size in ch9_data.BUFFERS:
        monkeypatch.setattr(script, "BUFFER", size)
        assert [*script.shuffle(range(256), 0)] == ch9_data.shuffled(256, size)


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_rings_and_halves_end_with_all_sums_everywhere(num):
    """The states that chapter 7's pictures show are those of an all_reduce."""
    ranks = frozenset(range(num))
    last = simulate(ch7_collectives.around(num), before("all_reduce", num))[-1]
    assert last == [dict.fromkeys(range(num), ranks)] * num
    if num & (num - 1) == 0:
        states = ch7_collectives.halve(num)
        assert len(states) == 2 * (num - 1).bit_length() + 1
        assert states[-1] == last
        middle = states[len(states) // 2]
        assert all(len(mine) == 1 and ranks in mine.values() for mine in middle)


def test_a_chain_is_done_when_the_formula_says():
    """W − 2 + k steps, and no link carries two segments at once."""
    for ranks, segments in ((4, 1), (4, 4), (3, 7)):
        sent = ch7_collectives.sent(ranks, segments)
        assert max(step for step, *_ in sent) + 1 == ranks - 2 + segments
        assert len({(step, link) for step, link, _ in sent}) == len(sent)


def test_float32_rounds_as_torch_does():
    """The sums of chapter 10's picture are torch's."""
    for x in (1 + 2.0**-24, 1 + 2.0**-23, 0.1, 1e-40):
        assert ch10_precision.float32(x) == torch.tensor(x, dtype=torch.float32).item()


def test_rows_are_saved_as_fully_shard_cuts_them():
    """Four ranks hold what the notebook printed of them."""
    text = (ROOT / "notebooks/ch3_save_load.ipynb").read_text()
    found = re.search(r"rows by rank: \[([\d, ]+)\]", text)[1]
    table = source("glue", "../notebooks/ch3_save_load.ipynb::ch3_dcp")
    alt = ch3_save_load.shards(table).text
    saved = [f"rank {r} has {n}" for r, n in enumerate(found.split(", "))]
    assert f"saved on 4: {', '.join(saved)}" in alt


@pytest.mark.parametrize(
    "module", [*MODULES, chart], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_hold(module):
    assert not doctest.testmod(module).failed
