"""The tools behind ``make notebooks`` parse, compare and write a canonical form."""

from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from book._ext.runs import records
from book._ext.runs.records import Command
from book._tools import commands, notebooks

PAGE = """
```{run} torchrun --standalone scripts/a.py
```
Text.
:::{run} python scripts/a.py
:exit: 1
:::
```python
torchrun = 1
```
"""


def test_commands_are_found_in_order_with_their_exit_codes():
    """Both kinds of fence hold commands; other blocks are ignored."""
    assert records.commands(PAGE) == [
        Command("torchrun --standalone scripts/a.py"),
        Command("python scripts/a.py", 1),
    ]


def test_a_record_reads_back(tmp_path):
    """A record reads back as written, but not for another exit code."""
    command = Command("torchrun scripts/a.py")
    records.write(tmp_path, command, "one\n\n  two\n\n")
    assert records.read(tmp_path, command) == "one\n\n  two"
    with pytest.raises(LookupError, match="exit 1"):
        records.read(tmp_path, Command(command.line, 1))


def test_records_of_different_commands_have_different_names():
    """Names differ, even if long ones have to be cut."""
    lines = [f"torchrun {'--flag ' * 20}--epochs {n}" for n in range(3)]
    names = {Command(line).record for line in lines}
    assert len(names) == 3
    assert max(map(len, names)) < 90


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("1,234 samples/s", "999.5 samples/s", True),
        ("took 0.5 s", "took 12 s", True),
        ("loss 0.612", "loss 0.613", True),
        ("loss 0.612", "loss 0.9", False),
        ("rank 1", "rank 2", False),
        ("12 samples", "13 samples", False),
        ("a  0.50 s | b", "a 10.50 s | b", True),
        ("a", "a\nb", False),
        ("loss 0.5 0.5", "loss 0.5", False),
    ],
)
def test_outputs_are_compared_without_their_timings(old, new, same):
    """Timings and roundings may differ, but a word may not."""
    assert records.same(old, new) is same


def test_of_a_machines_own_output_only_what_the_page_names_is_compared():
    """Machines differ, in cores for example; ``:only:`` says what all must print."""
    (command,) = records.commands("```{run} python x.py\n:only: ^ok +(\\w+)\n```\n")
    assert command == records.Command("python x.py", 0, r"^ok +(\w+)")
    here, there = "ok  torch 2.13\n2 cores", "ok    torch 2.14\n64 cores"
    assert records.same(here, there, command.only) and not records.same(here, there)
    assert not records.same(here, "fail  torch: none\n2 cores", command.only)
    with pytest.raises(ValueError, match="compare nothing"):
        records.same("2 cores", "64 cores", command.only)


def test_lines_of_ranks_are_put_in_rank_order():
    """Lines are sorted by rank and stay in order within one; other text is kept."""
    mixed = "[rank 1/2] a\n[rank 0/2] b\n[rank 1/2] c"
    assert commands.in_rank_order(mixed) == "[rank 0/2] b\n[rank 1/2] a\n[rank 1/2] c"
    assert commands.in_rank_order("b\na") == "b\na"
    mixed = "node1| [rank 2/4] c\nnode0| [rank 0/4] a"
    lines = "node0| [rank 0/4] a\nnode1| [rank 2/4] c"
    assert commands.in_rank_order(mixed) == lines
    assert commands.in_rank_order("node1| b\nnode0| a") == "node0| a\nnode1| b"


def test_a_page_is_run_in_a_folder_of_its_own(tmp_path):
    """A later command sees the files of an earlier one; nothing is left behind."""
    write = "python -c \"open('x', 'w').write('1')\""
    read = "python -c \"print(open('x').read())\""
    fail = "```{run} python -c 'raise SystemExit(3)'\n:exit: 3\n```\n"
    page = tmp_path / "page.md"
    page.write_text(f"```{{run}} {write}\n```\n```{{run}} {read}\n```\n{fail}")
    assert [output for _, output in commands.run_page(page)] == ["", "1", ""]
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("python -c 'raise SystemExit(2)'", "exit code 2"),
        ("python -c 'print(object())'", "only this machine has"),
    ],
)
def test_a_command_that_breaks_its_promise_is_refused(tmp_path, command, complaint):
    """Another exit code is refused, and so is output that differs per machine."""
    page = tmp_path / "page.md"
    page.write_text(f"```{{run}} {command}\n```\n")
    with pytest.raises(ValueError, match=complaint):
        list(commands.run_page(page))


def notebook(path: Path, *cells: str, **metadata) -> Path:
    """Write a notebook of code cells."""
    nb = v4.new_notebook(cells=[v4.new_code_cell(c, metadata=metadata) for c in cells])
    nbformat.write(nb, path)
    return path


def test_a_second_run_writes_the_same_bytes(tmp_path):
    """Ids stay, and no time or version is written."""
    path = notebook(tmp_path / "a.ipynb", "print(1)\nprint(2)", "3")
    assert notebooks.check(path)  # not executed yet
    notebooks.execute(path)
    first = path.read_bytes()
    assert notebooks.check(path) == []
    notebooks.execute(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("source", "tags", "complaint"),
    [
        ("1/0", [], "ZeroDivisionError"),
        ("1", ["raises-exception"], "did not fail"),
        ("import os\nprint(os.__file__)\nobject()", [], "only one machine has"),
    ],
)
def test_a_notebook_that_may_not_be_published_stays_as_it_was(
    tmp_path, source, tags, complaint
):
    """A failing cell, a missing failure or a machine's own output changes nothing."""
    path = notebook(tmp_path / "a.ipynb", source, tags=tags)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=complaint):
        notebooks.execute(path)
    assert path.read_bytes() == before


def test_outputs_that_differ_in_each_run_are_kept_on_demand(tmp_path):
    """A timeline is no reason for a new file, as long as the code is the same."""
    source = "import time\ntime.perf_counter()"
    path = notebook(tmp_path / "a.ipynb", source, tags=["nbval-ignore-output"])
    notebooks.execute(path)
    first = path.read_bytes()
    notebooks.execute(path, timings=False)
    assert path.read_bytes() == first
    notebooks.execute(path)
    assert path.read_bytes() != first
    nb = nbformat.read(path, as_version=4)
    nb.cells[0].outputs = []  # cleared, as before a commit
    nbformat.write(nb, path)
    notebooks.execute(path, timings=False)
    assert nbformat.read(path, as_version=4).cells[0].outputs


def test_streams_cut_by_timing_are_joined():
    """Adjacent pieces of stdout are joined, unless stderr lies between them."""
    out, err = (v4.new_output("stream", name=n, text="x") for n in ("stdout", "stderr"))
    pieces = [nbformat.from_dict(dict(o)) for o in (out, out, err, out)]
    assert [o.text for o in notebooks.merged(pieces)] == ["xx", "x", "x"]
