"""A traceback has the reader's frames, and is printed once."""

import re

import pytest

from allranks.rehearse import lines, records, tracebacks

OURS = f"{lines.HERE}rehearse/child.py"
TORCH = f"{lines.TORCHS}nn/modules/module.py"


def frames(*paths):
    """Return a traceback through some files."""
    told = [
        f'  File "{path}", line 7, in call\n    call()\n    ^^^^\n' for path in paths
    ]
    return f"Traceback (most recent call last):\n{''.join(told)}ValueError: no\n"


def test_frames_of_ours_are_left_out_and_a_packages_row_is_cut():
    """The reader looks for a line of the script, and what torch was asked there."""
    text = frames("<frozen runpy>", OURS, "/me/train.py", *[TORCH] * 9, OURS)
    short = tracebacks.shorten(text)
    assert lines.HERE not in short and "runpy" not in short
    assert '  File "/me/train.py", line 7, in call\n    call()\n' in short
    assert short.count(TORCH) == 2 and "    ... and 7 more of packages\n" in short
    assert short.endswith("ValueError: no\n")


def test_one_inside_of_an_errors_text_is_shortened_too():
    """mp.spawn's parent has its child's traceback in its own error."""
    inner = f"-- Process 1 terminated:\n{frames(OURS, '/me/train.py')}"
    assert lines.HERE not in tracebacks.shorten(inner)
    assert tracebacks.shorten("ValueError: no") == "ValueError: no"


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Yield a function that sets the stage."""

    def setup(**changes):
        made = records.Stage(folder=str(tmp_path), gpus=2, **changes)
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)

    monkeypatch.delenv("RANK", raising=False)
    return setup


def fail(text, here=True):
    """Return an error with a traceback, which has one of two places."""
    try:
        if here:
            raise ValueError(text)
        raise ValueError(text)
    except ValueError as error:
        return error


def test_equal_tracebacks_are_printed_once(stage, capsys, monkeypatch):
    """Ranks differ in numbers; what fails at another line is another failure."""
    stage()
    monkeypatch.setenv("RANK", "0")
    tracebacks.tell(fail("rank 0 has 3"))
    monkeypatch.setenv("RANK", "1")
    tracebacks.tell(fail("rank 1 has 4"))
    tracebacks.tell(fail("rank 1 has 4", here=False))
    told = capsys.readouterr().err
    assert re.findall(r"^(.*)ValueError: (.*)", told, re.M) == [
        ("[rank0]: ", "rank 0 has 3"),
        ("[rank1]: ", "rank 1 has 4"),
    ]
    stage(full=True)
    tracebacks.tell(fail("rank 1 has 4"))
    assert "rank 1 has 4" in capsys.readouterr().err
