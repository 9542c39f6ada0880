"""Peaks that are asked for without memory: they are those of real ranks."""

import re

import pytest
import torch

from allranks import Ranks
from scripts import ch11_questions

SMALL = "--ranks=2", "--width=128", "--layers=3", "--tokens=64", "--words=256"
WAYS = {
    "plain": {},
    "one unit": {"group": 3},
    "not resharded": {"reshard": False},
    "checkpointed": {"keep": ["nothing"] * 3},
    "attention kept": {"keep": ["attention"] * 3},
    "float32": {"param": "float32", "reduce": "float32"},
}
REAL = """
from contextlib import nullcontext
from scripts import ch11_questions

ch11_questions.FakeTensorMode = lambda **_: nullcontext()
ch11_questions.dist.init_process_group = lambda *_, **__: None  # there is one
ch11_questions.dist.destroy_process_group = lambda: None
how = {k: getattr(torch, v) if v == "float32" else v for k, v in how.items()}
ch11_questions.ask(ch11_questions.parse_args(flags), **how)
"""


def ask(*flags: str, **how) -> dict[str, int]:
    """Return the bytes of a peak, by kind."""
    numbers = {k: torch.float32 for k in how if how[k] == "float32"}
    return ch11_questions.ask(ch11_questions.parse_args(flags), **how | numbers)


@pytest.mark.parametrize("way", WAYS)
def test_fake_tensors_take_the_bytes_of_real_ones(way):
    """Two ranks that really train find the same, kind by kind, at their lowest peak.

    gloo's threads may let go of a message late (one step in five), and it then counts.
    A checkpoint also keeps a random state, which no fake tensor has: a small model's
    peak may then be at another moment, and 1.1 % higher.
    """
    wanted, found = ask(*SMALL, **WAYS[way]), []
    with Ranks(2) as ranks:
        ranks.push({"flags": SMALL, "how": WAYS[way]})
        while wanted not in found and len(found) < 20:
            found += ranks.run(REAL, quiet=True)
    lowest = min(found, key=lambda kinds: kinds["Total"])
    if "keep" in WAYS[way]:
        assert lowest["Total"] == pytest.approx(wanted["Total"], rel=0.02)
        assert lowest["OptState"] == wanted["OptState"]
    else:
        assert lowest == wanted


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_optimizer_state_is_divided_by_the_ranks(world_size):
    """Adam keeps 8 bytes per parameter, and 4 for each tensor's step counter."""
    layers, dim, words, tokens = 3, 128, 256, 64
    params = layers * (12 * dim + 13) * dim + (2 * words + tokens + 2) * dim + words
    found = ask(*SMALL[1:], f"--ranks={world_size}")
    assert found["OptState"] == 8 * params / world_size + 4 * (12 * layers + 6)
    assert found["Sharded Param"] == 4 * params / world_size


@pytest.mark.parametrize(("size", "mb"), [("batch_size", 40), ("tokens", 40)])
def test_what_is_said_to_fit_is_the_most_that_fits(size, mb):
    """The line through two peaks ends where a third one says."""
    flags = *SMALL, f"--gpu-mb={mb}"
    line = ch11_questions.most(ch11_questions.parse_args(flags), size)
    room = int(re.search(r"at most (\d+) in", line)[1])
    assert room > 10
    peaks = [ask(*flags, **{size: n})["Total"] for n in (room, room + 1)]
    assert peaks[0] <= mb * 1e6 < peaks[1]


def test_all_questions_are_answered(capsys):
    """Each of the 14 has its row, those on sharding last; what should save saves."""
    ch11_questions.main(ch11_questions.parse_args([]))
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop(8) == "sharding, the subject of chapter 12:"
    rows = [re.match(r" ?(\d+) .*?([-+][\d.]+)?(?: MB)?$", line) for line in lines]
    assert [int(row[1]) for row in rows] == [*range(1, 6), *range(5, 15)]
    change = {int(row[1]): float(row[2]) for row in rows if row[2]}
    assert all(change[n] < 0 for n in (4, 5, 6, 9, 10))
    assert all(change[n] > 0 for n in (7, 8, 11, 12, 13, 14))
    assert change[6] == change[4] and change[13] < change[14]


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--ranks=3", "--ranks 3: must be even, for two replicas"),
        ("--width=100", "--width 100: must be a multiple of 64"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(flag, why):
    with pytest.raises(SystemExit, match=f"^{why}$"):
        ch11_questions.parse_args([flag])
