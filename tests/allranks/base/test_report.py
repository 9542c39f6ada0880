"""Reports: stacks that are cut short, names of ranks, and how processes ended."""

import pytest

from allranks.base.report import describe_death, describe_stack, name_ranks
from allranks.clinic.outcomes import clean

STACK = """\
Current thread 0x00007f0000000000 (most recent call first):
  File "/venv/lib/python3/site-packages/torch/distributed/c10d.py", line 9 in barrier
  File "ranks cell 2", line 3 in meet
  File "ranks cell 5", line 2 in <module>
"""
SOURCES = {
    "ranks cell 2": "\ndef meet():\n    dist.barrier()",
    "ranks cell 5": "\nmeet()",
}


def test_a_stack_cut_anywhere_is_no_error():
    """A rank may still be writing its stack while we read it."""
    for cut in range(len(STACK)):
        place = describe_stack(STACK[:cut], SOURCES, "ranks cell 5")
        assert place.startswith(("`", "the engine", "native code"))


def test_the_readers_innermost_line_is_named():
    where = describe_stack(STACK, SOURCES, "ranks cell 2")
    assert where == "`dist.barrier()` at cell line 3"
    where = describe_stack(STACK, SOURCES, "ranks cell 5")
    assert where == "`dist.barrier()` at ranks cell 2 line 3"


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0–1"),
        ([0, 2], "ranks 0 and 2"),
        ([0, 1, 2, 3], "ranks 0–3"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([5, 0, 1, 2, 7], "ranks 0–2, 5 and 7"),
    ],
)
def test_ranks_are_named_as_a_reader_would(ranks, name):
    assert name_ranks(ranks) == name


def test_a_death_says_how_and_the_last_words():
    assert describe_death(-9, "").startswith("was killed by SIGKILL")
    text = describe_death(-6, "terminate called\n", " in `x` at cell line 1")
    assert text == (
        "was killed by SIGABRT (abort) in `x` at cell line 1\n  terminate called"
    )
    assert describe_death(3, "") == "ended its process with exit code 3"


def test_the_order_of_a_set_is_no_part_of_an_outcome():
    """Each process orders strings in a set differently, so a record would change."""
    told = "parameters locate in {'cpu', 'meta'}."
    assert clean("parameters locate in {'meta', 'cpu'}.") == clean(told) == told
    assert clean("{'a': 1} {'b'}") == "{'a': 1} {'b'}"
    told = "dtype but got {torch.bfloat16, torch.float32}"
    assert clean("dtype but got {torch.float32, torch.bfloat16}") == clean(told) == told


def test_how_a_dead_peers_socket_ended_is_no_part_of_an_outcome():
    """It depends on what the peer had read when it died, so a record would change."""
    closed = (
        "rank 0: RuntimeError: [gloo/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:4321. This is typically caused by a remote worker crashing. Check"
    )
    reset = (
        "rank 0: RuntimeError: [gloo/pair.cc:537] Read error [127.0.0.1]:PORT: "
        "Connection reset by peer. This is typically caused by a remote worker hanging "
        "or bugs in the application. Check"
    )
    for end in ("rank 1 was killed by SIGABRT", "ranks 1 and 2 ended their processes"):
        told = f"{reset}\n{end}"
        assert clean(f"{closed}\n{end}") == clean(told) == told
    assert "closed by peer" in clean(closed), "nobody died: the words are gloo's"
