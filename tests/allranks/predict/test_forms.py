"""Which cells answer a prediction, and where no form is shown."""

import json
from types import SimpleNamespace

import pytest

from allranks.base.paths import ROOT
from allranks.predict import forms as module
from allranks.predict.forms import Forms, Prediction, form, predictions


def cell(kind: str, name: str, source: str, **metadata: str) -> dict:
    """Return a notebook's cell."""
    return {"cell_type": kind, "id": name, "source": [source], "metadata": metadata}


NOTEBOOK = {
    "cells": [
        cell("code", "a", "1"),
        cell("markdown", "b", "Text. **Predict**: what is 1 + 1?", answer=r"(\d)"),
        cell("code", "c", "x = 1 + 1"),
        cell("code", "d", "x"),
        cell("markdown", "e", "It is 2."),
        cell("code", "f", "3"),
        cell("markdown", "g", "**Predict**: nothing answers this."),
        cell("markdown", "h", "**Predict**: and the last?"),
        cell("code", "i", "4"),
    ]
}


def test_the_cells_up_to_the_next_text_answer():
    """Cells before a question, and after the text that follows, are not hidden."""
    assert predictions(NOTEBOOK) == [
        Prediction("what is 1 + 1?", ("c", "d"), r"(\d)"),
        Prediction("and the last?", ("i",)),
    ]


def test_no_guess_can_break_the_script():
    """What a question says ends neither the script nor the attribute it is in."""
    html = form(Prediction("</script><b>", ("a",)), "a", "book")
    assert html.count("</script>") == 1 and '"first": true' in html


@pytest.fixture
def forms(tmp_path, monkeypatch):
    """Yield forms for a kernel with a person before it, on the notebook above."""
    path = tmp_path / "asked.ipynb"
    path.write_text(json.dumps(NOTEBOOK), "utf8")
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    made = Forms(SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True)))
    made.displays = []
    show = lambda bundle, raw: made.displays.append(bundle)  # noqa: E731
    monkeypatch.setattr(module, "display", show)
    return made


def shown(forms, name: str | None, silent: bool = False) -> int:
    """Return how many forms a cell gets."""
    info = SimpleNamespace(cell_id=name, silent=silent, store_history=not silent)
    forms.displays.clear()
    forms.ask(info)
    assert forms.shown == bool(forms.displays)
    return len(forms.displays)


def test_a_cell_that_answers_gets_a_form(forms):
    """Each cell of the group, and no other."""
    assert [shown(forms, name) for name in "acdfi"] == [0, 1, 1, 0, 1]


def test_nobody_is_asked_who_is_not_there(forms, monkeypatch, tmp_path):
    """Not a front end's own requests, not nbval, and not an unknown notebook."""
    assert shown(forms, "c") == 1
    assert shown(forms, "c", silent=True) == 0
    assert shown(forms, None) == 0
    forms._shell.kernel._allow_stdin = False
    assert shown(forms, "c") == 0
    forms._shell.kernel._allow_stdin = True
    (tmp_path / "asked.ipynb").write_text("{", "utf8")
    assert shown(forms, "c") == 0
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "renamed.ipynb"))
    assert shown(forms, "c") == 0


def test_every_notebook_shows_its_forms():
    """Each loads the extension, and before the first result that it asks for."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf8"))
        first = predictions(notebook)[0].cells[0]
        codes = [c for c in notebook["cells"] if c["cell_type"] == "code"]
        loads = [c["id"] for c in codes if "%load_ext allranks" in str(c["source"])]
        order = [c["id"] for c in codes]
        assert order.index(loads[0]) <= order.index(first), path.name
