"""Ranks stay in step from cell to cell, and unequal collectives are named."""

import pytest

from allranks import Ranks, RanksError

SUM = "x = torch.ones(2)\ndist.all_reduce(x)\nx.tolist()"


@pytest.fixture(scope="module")
def four():
    """Yield four live ranks."""
    with Ranks(4) as ranks:
        yield ranks


def fails(ranks, code: str, timeout: float = 3) -> str:
    """Run a cell that must fail; return the report."""
    with pytest.raises(RanksError) as caught:
        ranks.run_cell(f"\n{code}", "ranks cell 7", timeout=timeout, quiet=True)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "dist.barrier()\n"
            "w = dist.all_reduce(torch.full((2,), 100.), async_op=True) "
            "if rank == 0 else 0",
            "rank 0 has joined 2 collectives, ranks 1–3 have joined 1\n"
            "  rank 0 last called all_reduce of 2 × float32 at cell line 3\n"
            "  ranks 1–3 last called barrier at cell line 2",
        ),
        (
            "if rank < 2: dist.new_group([0, 1])",
            "ranks 0–1 have made 2 process groups, ranks 2–3 have made 1",
        ),
    ],
    ids=["async on one rank", "a group on a subset"],
)
def test_a_cell_that_leaves_ranks_out_of_step_is_an_error(code, told, capsys):
    """Else the next cell's sums would be of the wrong ranks, in silence."""
    with Ranks(4) as four:
        assert told in fails(four, code)
        assert four.run(SUM) == [[4.0, 4.0]] * 4  # fresh ranks
        assert f"(fresh ranks, since {told.partition(chr(10))[0]}" in (
            capsys.readouterr().out
        )


def test_cells_on_some_ranks_may_join_one_after_the_other(four):
    """Who names the ranks knows that the others are still to come."""
    later = "x = torch.ones(1); w = dist.all_reduce(x, async_op=True)"
    four.run(later, on=[0])
    four.run("nothing = 1")  # joins none, so it is not to blame
    four.run(later, on=[1, 2, 3])
    assert four.run("w.wait(); x.item()") == [4.0] * 4


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "x = torch.ones(3 if rank else 5)\ndist.all_reduce(x)",
            "rank 0 calls all_reduce of 5 × float32 at cell line 3, "
            "ranks 1–3 all_reduce of 3 × float32 at cell line 3",
        ),
        (
            "x = torch.ones(2, dtype=torch.float32 if rank else torch.float64)\n"
            "dist.broadcast(x, 0)",
            "rank 0 calls broadcast of 2 × float64 at cell line 3, "
            "ranks 1–3 broadcast of 2 × float32 at cell line 3",
        ),
        (
            "x = torch.ones(2)\n"
            "dist.all_reduce(x) if rank else dist.broadcast(x, 0)\ndist.barrier()",
            "rank 0 calls broadcast of 2 × float32 at cell line 3, "
            "ranks 1–3 all_reduce of 2 × float32 at cell line 3",
        ),
    ],
    ids=["size", "dtype", "operation"],
)
def test_unequal_calls_are_named(four, code, told):
    """Gloo sums what there is, waits, or aborts the process."""
    assert told in fails(four, code)


@pytest.mark.parametrize(
    "code",
    [
        "dist.all_gather_object([None] * 4, 'x' * rank)",
        "dist.all_to_all_single(torch.empty(4 * (rank + 1)), torch.ones(10), "
        "[rank + 1] * 4, [1, 2, 3, 4])",
        "dist.gather(torch.ones(1), [torch.ones(1)] * 4 if rank == 0 else None)",
        "dist.gather_object(rank, [None] * 4 if rank == 0 else None)",
        "pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]\n"
        "dist.all_reduce(torch.ones(1 + rank // 2), group=pairs[rank // 2])",
        "if rank < 2: dist.send(torch.ones(rank + 1), rank + 2)\n"
        "else: dist.recv(torch.ones(rank - 1), rank - 2)",
        "try:\n    dist.all_reduce(None)\nexcept Exception: pass",
        # Rank 0 joins in a shadow what the others do in hooks of their backward.
        "w = torch.ones(3, requires_grad=True)\n"
        "w.register_hook(lambda g: dist.all_reduce(g.clone()) or g)\n"
        "w.sum().backward() if rank else dist.all_reduce(torch.zeros(3))\n"
        "dist.all_gather_object([None] * 4, rank)",
        "x, name = torch.ones(2), {'group': dist.group.WORLD}\n"
        "dist.all_reduce(x, **(name if rank else {}))\n"
        "dist.broadcast(x, 0, **({} if rank else name))",
    ],
    ids=[
        "objects",
        "all_to_all",
        "gather",
        "gather_object",
        "pairs",
        "send",
        "caught",
        "shadow",
        "world",
    ],
)
def test_what_may_differ_is_no_error(four, code):
    """Sizes by rank, other groups, messages, and a mistake that was caught."""
    four.run_cell(code, "cell", quiet=True, timeout=10)
    assert four.run(SUM) == [[4.0, 4.0]] * 4


CALLBACKS = """
import threading
def hook(step, bucket):  # its future is done late on one rank, on another at once
    later, summed = torch.futures.Future(), torch.futures.Future()
    late = threading.Timer(0.3, later.set_result, [None])
    def end():
        late.start() if (rank + step[0]) % 2 else later.set_result(None)
    def sum(_):
        dist.all_reduce(bucket.buffer())
        summed.set_result(bucket.buffer())
    ADD
    return summed
step = [0]
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
net.register_comm_hook(step, hook)
for step[0] in range(2):
    net(torch.ones(2, 3)).sum().backward()
    dist.all_reduce(torch.zeros(3))
"""


@pytest.mark.parametrize(
    "add", ["end(), later.then(sum)", "later.add_done_callback(sum), end()"]
)
def test_a_callback_may_run_in_either_thread(four, add):
    """As on gloo: what a hook's callback calls says nothing of the ranks' own order."""
    four.run_cell(CALLBACKS.replace("ADD", add), "cell", quiet=True, timeout=20)
    assert four.run(SUM) == [[4.0, 4.0]] * 4


def test_a_hang_in_await_has_its_line(four):
    """A coroutine that waits has no frame on the stack."""
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(99)\n"
    said = fails(four, f"{code}if rank == 1:\n    await f()", timeout=1)
    assert "rank 1 waits in `await asyncio.sleep(99)` at cell line 4" in said
    assert four.run("rank") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(3)", "ranks 0–3 ended their processes with exit code 3"),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
            "ranks 0–3 were killed by SIGTERM",
        ),
        (
            "import os\nif rank == 1: os.execv('/bin/sleep', ['sleep', '60'])",
            "rank 1 runs another program, which has taken its place: sleep 60",
        ),
        (
            "import os, signal\nif rank == 2: os.kill(os.getpid(), signal.SIGSTOP)",
            "rank 2 stands still, stopped by SIGSTOP",
        ),
        ("import builtins\nbuiltins.len = None", "this rank cannot go on: TypeError"),
    ],
    ids=["exit", "SIGTERM", "execv", "SIGSTOP", "builtins"],
)
def test_how_a_rank_ended_is_told_in_its_own_words(four, code, told):
    """One verb for several ranks, and the reason rather than the consequence.

    The signal that ends what does not end by itself is the engine's own, so no news.
    """
    said = fails(four, code, timeout=1)
    assert told in said and "SIGINT" not in said
    assert four.run(SUM) == [[4.0, 4.0]] * 4


@pytest.mark.parametrize(
    "harm",
    [
        "import io, sys; sys.stdout = io.StringIO()",
        "import sys; sys.stdout = None",
        "import os; os.close(1); os.close(2)",
    ],
)
def test_a_replaced_stdout_swallows_no_later_cell(harm, capsys):
    """What an earlier cell has put in its place is taken away again."""
    with Ranks(2) as ranks:
        ranks.run(harm)
        capsys.readouterr()
        ranks.run_cell("7", "cell")
        assert capsys.readouterr().out.endswith("ranks 0–1: 7\n")


def test_signals_that_a_cell_has_taken_come_back(four):
    """A hang has its line even so."""
    four.run("import signal\nfor s in (2, 10): signal.signal(s, lambda *_: None)")
    code = "import time\nif rank == 1:\n    time.sleep(99)"
    said = fails(four, code, timeout=1)
    assert "rank 1 waits in `time.sleep(99)` at cell line 4" in said
    assert four.run("rank") == [0, 1, 2, 3]


def test_a_flood_of_output_is_not_kept_for_ever(four):
    """The file of a rank is emptied between two cells once it is large."""
    for _ in range(3):
        four.run("print('x' * (20 << 20))", quiet=True)
    sizes = four.run("import os; os.fstat(1).st_size", quiet=True)
    assert max(sizes) < 10 << 20
    four.run_cell("print('seen')", "cell", quiet=True)
    assert four.outputs == ["seen\n"] * 4
