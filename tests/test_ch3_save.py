"""Chapter 3's safe file: a save that fails leaves it, and plain values load again."""

import sys
from pathlib import Path

import pytest
import torch

from scripts import ch3_save as lesson


def test_its_lines_say_what_the_page_says(tmp_path, monkeypatch, capsys):
    """Each attempt ends as it must, and one file is left."""
    monkeypatch.chdir(tmp_path)
    lesson.main([])
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    error = said["flags as a Namespace"]
    assert error == "UnpicklingError: Weights only load failed"
    assert said["flags as a dict"] == "model, optim, step, flags"
    assert "PytorchStreamReader failed" in said["left by a failed save_in_place"]
    assert said["left by a failed save"] == "model, optim, step"
    assert [file.name for file in tmp_path.iterdir()] == ["ch3_save.pt"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    """A failed save leaves the old file intact; saving in place destroys it."""
    path, state = tmp_path / "x.pt", {"model": {"weight": torch.ones(9)}, "step": 20}
    lesson.save(str(path), state)
    before = path.read_bytes()
    for way in lesson.save, lesson.save_in_place:
        with pytest.raises(TypeError, match="pickle"):
            way(str(path), state | {"log": sys.stdout})
        assert (path.read_bytes() == before) == (way is lesson.save)
        assert list(Path(path).parent.iterdir()) == [path]
    with pytest.raises(RuntimeError, match="PytorchStreamReader"):
        torch.load(path)
