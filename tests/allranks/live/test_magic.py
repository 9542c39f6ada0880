"""The magics in a real kernel: what a reader types and sees, and how to stop it."""

import copy
import re
import time

import nbformat
import psutil
import pytest


@pytest.fixture
def four(shared_kernel):
    """Yield the kernel with four fresh ranks."""
    printed, error = shared_kernel.run("%ranks 4")
    assert (printed, error) == ("ranks 0–3 on cpu\n", "")
    return shared_kernel


def test_the_example_of_the_readme(four):
    """An all_reduce on four ranks prints equal results in one line."""
    cell = "%%ranks\nx = torch.full((2,), float(rank))\ndist.all_reduce(x)\nx"
    assert four.run(cell) == ("ranks 0–3: tensor([6., 6.])\n", "")
    assert four.run("%%ranks\nx + rank")[0].splitlines() == [
        f"rank {r}: tensor([{6 + r}., {6 + r}.])" for r in range(4)
    ]


def test_on_quiet_and_out(four):
    """A cell can run on a subset, print nothing, and hand its values to the kernel."""
    assert four.run("%%ranks --on 0,2\nrank") == ("rank 0: 0\nrank 2: 2\n", "")
    assert four.run("%%ranks --quiet\nprint(rank)\nrank") == ("", "")
    four.run("%%ranks --quiet --out values\ntorch.tensor([rank])")
    assert four.run("[v.item() for v in values]; print(values[3].item())")[0] == "3\n"


def test_a_failure_is_the_cells_own_and_nothing_else(four):
    """Line numbers are those of the cell, and no frame of the package is shown."""
    _, error = four.run("%%ranks\nif rank == 1:\n    1 / 0\ndist.barrier()")
    lines = error.splitlines()
    assert lines[0] == "RanksError: rank 1:"
    assert '", line 3, in <module>' in error and "1 / 0" in error
    assert lines[-1] == "ranks 0, 2 and 3 wait in `dist.barrier()` at cell line 4"
    assert len(lines) == 6
    printed, _ = four.run("%%ranks\nrank + 1")
    assert printed.startswith("(fresh ranks: the variables of earlier cells are gone)")


def test_a_function_of_an_earlier_cell_is_named_with_its_cell(four):
    """A rank that waits inside a helper is found in the helper's cell."""
    four.run("%%ranks\ndef meet():\n    dist.barrier()")
    _, error = four.run("%%ranks --timeout 1\nif rank: meet()")
    assert error.splitlines()[0] == "RanksError: timeout after 1 s"
    assert "ranks 1–3 wait in `dist.barrier()` at ranks cell " in error
    assert error.splitlines()[-1] == "rank 0 finished"


def ranks_of(kernel) -> list[psutil.Process]:
    """Return the processes that ``%ranks status`` names."""
    told, _ = kernel.run("%ranks status")
    return [psutil.Process(int(pid)) for pid in re.findall(r"\d+", told)[1:]]


def test_the_stop_button_ends_a_hang_at_once(four, all_gone):
    """An interrupt gives the same report as a timeout, and the kernel survives.

    The ranks of the cell are gone.
    """
    old = ranks_of(four)
    msg_id = four.start("%%ranks\nif rank:\n    dist.barrier()")
    time.sleep(1)
    four.manager.interrupt_kernel()
    start = time.monotonic()
    _, error = four.finish(msg_id)
    assert time.monotonic() - start < 5
    assert error.splitlines() == [
        "RanksInterrupted: interrupted",
        "ranks 1–3 wait in `dist.barrier()` at cell line 3",
        "rank 0 finished",
    ]
    assert "ranks 0–3: 4" in four.run("%%ranks\nworld_size")[0]
    assert len(old) == 4
    all_gone(old)


def test_asking_again_replaces_the_ranks(four, all_gone):
    """A second %ranks ends the first group, so two never live side by side."""
    old = ranks_of(four)
    assert len(old) == 4
    four.run("%ranks 2")
    assert four.run("%%ranks\nworld_size") == ("ranks 0–1: 2\n", "")
    all_gone(old)


def test_stop_and_status(four):
    """%ranks status tells what lives, and %ranks stop ends it."""
    assert four.run("%ranks status")[0].startswith("4 ranks live on cpu, process ids ")
    four.run("%ranks stop")
    assert four.run("%ranks status") == ("no ranks: %ranks 4 starts 4\n", "")
    assert "there are no ranks yet: run %ranks 4 first" in four.run("%%ranks\n1")[0]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("%ranks 0", "0 ranks: the number must be 1 to 64"),
        ("%ranks -1", "-1 ranks: the number must be 1 to 64"),
        (
            "%ranks four",
            "%ranks four: say how many (%ranks 4), or status, stop, --timeline",
        ),
        ("%ranks", "%ranks: say how many (%ranks 4), or status, stop, --timeline"),
        ("%ranks 2 --device cuda", "this machine has no accelerator; try 'cpu'"),
        ("%ranks 2 --backend nccl", "backend 'nccl': choose gloo, shm, link"),
        ("%ranks 2 --timeout -1", "invalid number of seconds value: '-1'"),
        ("%%ranks --on 7\n1", "there is no rank 7: ranks go from 0 to 3"),
        ("%%ranks --on a\n1", "invalid list of ranks value: 'a'"),
        ("%%ranks --timeout 0\n1", "invalid number of seconds value: '0'"),
        ("%%ranks --out 1x\n1", "invalid name of a variable value: '1x'"),
        ("%%ranks --out if\n1", "invalid name of a variable value: 'if'"),
        ("%push rank", "rank: each rank has a value of its own; push another name"),
        ("%%ranks --fast\n1", "unrecognized arguments: --fast"),
        ("%vgpus 0", "0 virtual GPUs: plug in 1 to 64"),
        ("%vgpus two", "%vgpus two: say how many (%vgpus 2) or stop"),
        ("%vgpus 2 --memory lots", "memory 'lots': give bytes"),
    ],
)
def test_wrong_use_gets_one_sentence(four, line, sentence):
    """The error is one line without a traceback, and the ranks still work."""
    four.run("rank = 77")  # of the notebook
    printed, _ = four.run(line)
    assert sentence in printed
    assert len(printed.splitlines()) == 1
    assert four.run("%%ranks\nworld_size") == ("ranks 0–3: 4\n", "")


def test_ranks_with_virtual_gpus(shared_kernel):
    """A notebook asks with an option, and gets a script's own words for a device."""
    printed, error = shared_kernel.run("%ranks 2 --gpus")
    assert (printed, error) == (
        "ranks 0–1 on virtual GPUs cuda:0–1, backend nccl\n",
        "",
    )
    cell = "%%ranks\nx = torch.ones(1, device=device)\ndist.all_reduce(x)\nx"
    printed, _ = shared_kernel.run(cell)
    assert printed.splitlines() == [
        f"rank {rank}: tensor([2.], device='cuda:{rank}')" for rank in range(2)
    ]
    shared_kernel.run("%ranks stop")


def test_virtual_gpus_beside_live_ranks(four):
    """%vgpus changes the kernel's process only, and %vgpus stop undoes it."""
    assert four.run("%vgpus 2 --memory '64 MiB'") == ("vgpu:0–1, 64 MiB each\n", "")
    here = "torch.accelerator.device_count()"
    assert four.run(f"import torch; print({here})") == ("2\n", "")
    assert four.run(f"%%ranks\n{here}") == ("ranks 0–3: 0\n", "")
    four.run("%vgpus stop")
    assert four.run(f"print({here})") == ("0\n", "")


def test_strict_nbval_passes_on_live_output(tmp_path):
    """Folded output and reports are the same text in each run."""
    cells = [
        "%load_ext allranks\n%ranks 3",
        "%%ranks\ntorch.ones(2) * rank",
        "%%ranks\nprint('once')\nif rank == 1:\n    raise ValueError(rank)",
    ]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook.cells[2].metadata["tags"] = ["raises-exception"]
    from nbclient import NotebookClient

    NotebookClient(notebook, kernel_name="python3").execute()
    outputs = copy.deepcopy(notebook.cells[1].outputs)
    outputs[0]["text"] += "!"  # which must be noticed
    notebook.cells.insert(2, nbformat.v4.new_code_cell(cells[1], outputs=outputs))
    nbformat.write(notebook, tmp_path / "live.ipynb")
    outcomes = []

    class Reports:
        def pytest_runtest_logreport(self, report):
            if report.when == "call":
                outcomes.append(report.outcome)

    words = ["--nbval", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    assert pytest.main(words, plugins=[Reports()]) == 1
    assert outcomes == ["passed", "passed", "failed", "passed"]
