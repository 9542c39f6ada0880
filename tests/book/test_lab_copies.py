"""Notebooks that a reader opens show no answer before the guess."""

import json
import subprocess

import pytest

from allranks.base.paths import ROOT
from allranks.predict.forms import predictions
from book._tools import lab

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield a folder with copies, made from one notebook in a tree of its own."""
    for name in "notebooks", "book":
        (tmp_path / name).mkdir()
    source = ROOT / "notebooks" / "ch7_collectives.ipynb"
    (tmp_path / "notebooks" / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(lab, "all_titles", all_titles)
    monkeypatch.setattr(lab, "ROOT", tmp_path)
    lab.write(tmp_path / "lab")
    return tmp_path / "lab"


TITLES = lab.all_titles()


def all_titles():
    """Return the titles of this book, whatever tree is copied."""
    return TITLES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_copy_has_every_question_and_no_result(path):
    """Nor a mark that only the built book can read."""
    original = json.loads(path.read_text("utf8"))
    copy = lab.blank(original, TITLES)
    before, after = predictions(original), predictions(copy)
    assert [p.cells for p in before] == [p.cells for p in after]
    assert [p.answer for p in before] == [p.answer for p in after]
    assert any(cell.get("outputs") for cell in original["cells"])  # it has some
    assert not any(cell.get("outputs") for cell in copy["cells"])
    texts = [c["source"] for c in copy["cells"] if c["cell_type"] == "markdown"]
    assert texts and not any("{ref}" in text or ")=\n" in text for text in texts)
    assert texts[0].startswith("# ")


def test_what_a_reader_has_written_stays(folder):
    """An untouched copy follows its original; another one is the reader's."""
    [copy], original = folder.glob("*.ipynb"), folder.parent / "notebooks"
    [original] = original.glob("*.ipynb")
    original.write_text(original.read_text("utf8").replace("Predict", "Foretell"))
    lab.write(folder)
    assert "Foretell" in copy.read_text("utf8")
    copy.write_text(copy.read_text("utf8").replace("Foretell", "Mine"))
    original.write_text(original.read_text("utf8").replace("Foretell", "Other"))
    lab.write(folder)
    assert "Mine" in copy.read_text("utf8") and "Other" not in copy.read_text("utf8")


def test_copies_of_an_interrupted_run_follow_their_originals(tmp_path, monkeypatch):
    """Nobody has worked in them."""
    blank, calls = lab.blank, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return blank(*args)

    monkeypatch.setattr(lab, "blank", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.write(tmp_path)
    copies = sorted(tmp_path.glob("*.ipynb"))
    monkeypatch.setattr(lab, "blank", lambda *args: blank(*args) | {"new": True})
    lab.write(tmp_path)
    assert len(copies) == 2
    assert all("new" in json.loads(copy.read_text("utf8")) for copy in copies)


def test_each_way_to_open_a_notebook_makes_the_copies():
    """``make lab``, Binder and the container; nothing else may open an original."""
    listed = subprocess.run(
        ["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "book/_tools/lab.py" in listed and "notebooks/" not in listed
    assert "lab.py --in-place" in (ROOT / ".binder/postBuild").read_text()
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert "book/_tools/lab.py" in container["postCreateCommand"]
    [opened] = container["customizations"]["codespaces"]["openFiles"]
    assert opened.startswith("lab/")
    assert container["customizations"]["vscode"]["settings"]["files.exclude"] == {
        "notebooks": True
    }
