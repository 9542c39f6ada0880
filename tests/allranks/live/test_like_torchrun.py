"""What works or fails under torchrun works or fails on live ranks in the same way."""

import functools
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from allranks import Ranks, RanksError
from allranks.live.jobs import are_equal

LOADER = """
import time
from torch.utils.data import DataLoader, Dataset
class Own(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return index
loader = DataLoader(Own(), 8, num_workers=2, collate_fn=lambda batch: sum(batch))
start = time.monotonic()
passes = [sum(loader) for _ in range(2)]
"""
UNUSED = """
from torch.nn.parallel import DistributedDataParallel as DDP
ddp = DDP(torch.nn.Linear(2, 2), find_unused_parameters=True)
for _ in range(3): ddp(torch.ones(1, 2)).sum().backward()
"""


@pytest.fixture(scope="module")
def two():
    """Yield two live ranks."""
    with Ranks(2) as ranks:
        yield ranks


def test_workers_know_the_cells_classes_and_import_nothing(two):
    """They are forked from the rank, as they are from a script."""
    two.run(LOADER)
    assert two.run("passes") == [[2016, 2016]] * 2
    assert two.run("import multiprocessing as m; m.get_start_method()") == (
        two.run("m.get_all_start_methods()[0]")  # the platform's own
    )


def test_an_error_in_a_worker_is_shown(two):
    """With the worker's own traceback."""
    bad = "def bad(batch): raise ValueError('bad batch')\nloader.collate_fn = bad\n"
    with pytest.raises(Exception, match="ValueError: bad batch"):
        two.run(f"{LOADER}\n{bad}\nnext(iter(loader))")


def test_what_native_code_and_children_write_is_shown(two, capsys):
    """Under the cell that caused it, once for equal ranks."""
    two.run_cell(UNUSED, "cell")
    out = capsys.readouterr().out
    assert "ranks 0–1: [W reducer.cpp:" in out
    assert "find_unused_parameters=True was specified" in out
    two.run_cell("!ls /nonexistent; echo after", "cell")
    first, last = capsys.readouterr().out.splitlines()
    assert "No such file or directory" in first and last == "ranks 0–1: after"
    two.run_cell("import os\nos.system('ls /nonexistent2')\nprint('x');", "cell")
    assert "/nonexistent2" in capsys.readouterr().out
    two.run_cell("1", "cell")
    assert capsys.readouterr().out == "ranks 0–1: 1\n"


def test_a_warning_names_the_readers_line(two, capsys):
    """Torch counts frames up to its caller, and finds a timer there."""
    code = "\nx = [torch.ones(1)]\ndist.all_reduce_coalesced(x)"
    two.run_cell(code, "ranks cell 7")
    out = capsys.readouterr().out
    assert "ranks 0–1: ranks cell 7:3: FutureWarning" in out
    assert "dist.all_reduce_coalesced(x" in out and "clock.py" not in out


def test_each_rank_has_random_numbers_of_its_own():
    """So a missing broadcast shows; and fresh ranks draw others."""
    draw = "import random, numpy\n"
    draw += "[torch.rand(1).item(), random.random(), numpy.random.rand()]"
    drawn = []
    for _ in range(2):
        with Ranks(2) as ranks:
            drawn += ranks.run(draw)
    for kind in zip(*drawn, strict=True):
        assert len(set(kind)) == 4


def test_a_script_may_leave_its_group_and_make_another(two):
    """MASTER_ADDR and MASTER_PORT are there, as under torchrun."""
    again = "dist.destroy_process_group()\ndist.init_process_group('gloo')\n"
    try:
        found = two.run(f"{again}x = torch.ones(1)\ndist.all_reduce(x)\nx.item()")
        assert found == [2.0, 2.0]
    finally:
        two.close()


def add(a, b):
    """Return a sum."""
    return a + b


def test_a_partial_is_a_function(two):
    """Its module is not functools, which cannot be sent by value."""
    assert two.run(functools.partial(add, 1), 2) == [3, 3]


def test_calls_of_several_threads_come_one_after_the_other(two):
    """Each gets its own answers."""
    found = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: two.run(add, n, 0)}))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [n, n] for n in range(6)}


@pytest.mark.parametrize("timeout", [-1, 0])
def test_a_timeout_that_is_none_is_refused(timeout):
    """In a sentence that names it."""
    with pytest.raises(ValueError, match=f"timeout {timeout}: it must be more than 0"):
        Ranks(2, timeout=timeout)


def test_a_value_of_the_ranks_own_is_not_pushed(two):
    """It would be equal everywhere afterwards, without a word."""
    with pytest.raises(ValueError, match="rank: each rank has a value of its own"):
        two.push({"rank": 77})
    assert two.run("rank") == [0, 1]


def test_a_large_value_comes_over_once_for_all(two):
    """By a file, so the time does not grow with the number of ranks."""
    big = torch.arange(10_000_000)
    two.push({"big": big})
    assert two.run("big.sum().item()") == [big.sum().item()] * 2
    assert not list(two._crew._folder.glob("push*"))  # it may be a folder in memory


class Slow:
    """A value that takes its time when it arrives."""

    def __init__(self, seconds, num_bytes=0):
        self.about = seconds, bytes(num_bytes)

    def __reduce__(self):
        """Sleep where it is unpickled."""
        return (lambda seconds, _: time.sleep(seconds)), self.about


def test_a_large_value_may_take_longer_to_come_over():
    """A small one counts as hung after the ranks' own limit."""
    with Ranks(2, timeout=1) as ranks:
        ranks.push({"large": Slow(2, num_bytes=40_000_000)})
        ranks.push({"kept": 1})
        assert ranks.run("kept") == [1, 1]
        with pytest.raises(RanksError, match="; %push --timeout 10 allows more"):
            ranks.push({"small": Slow(99)})


def test_what_does_not_fit_into_memory_is_not_pushed(two, monkeypatch):
    """The system would end a rank or this process, and no variable would be left."""
    two.run("kept = 7")
    free = SimpleNamespace(available=150_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    told = (
        "big: to copy 0.04 GB to 2 ranks takes 0.2 GB of memory for a moment, and "
        "0.1 GB are free: push to fewer ranks"
    )
    with pytest.raises(ValueError, match=told):
        two.push({"big": bytes(40_000_000)})
    two.push({"big": bytes(40_000_000)}, on=[1])
    assert two.run("kept") == [7, 7]


def test_a_dtensor_stays_on_its_ranks(two):
    """Also within a dict; the sentence says what can be taken instead."""
    code = "from torch.distributed.tensor import distribute_tensor, Shard\n"
    code += "from torch.distributed.device_mesh import init_device_mesh\n"
    code += "mesh = init_device_mesh('cpu', (2,))\n"
    two.run(f"{code}d = {{'w': distribute_tensor(torch.ones(4), mesh, [Shard(0)])}}")
    with pytest.raises(Exception, match=r"to_local\(\) or its full_tensor\(\)"):
        two.pull("d")


def test_tensors_of_any_layout_can_be_compared():
    """Equal and unequal ones, and none raises."""
    a = torch.eye(2)
    for make in (
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda x: torch.nested.nested_tensor([x, x[:1]]),
    ):
        assert are_equal(make(a), make(a))
        assert not are_equal(make(a), make(2 * a))
        assert not are_equal(a, make(a))
