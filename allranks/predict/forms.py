"""In JupyterLab, the result of a cell that answers a **Predict** waits for a guess.

A Markdown cell that says **Predict** asks; the code cells up to the next text answer.
The kernel knows which notebook it belongs to and which cell it runs, so ``%load_ext
allranks`` is all that a notebook needs. Before such a cell runs, a small form goes into
its output, and hides what follows until the reader has guessed; ``lab.js`` does
that, and remembers the guess in the browser. Where nobody watches, as in nbval, or
where the notebook is unknown, nothing is shown and nothing is hidden.

The question's cell may have the metadata ``answer``: a regular expression that finds
the answer in the result, in its groups. Then the result confirms or corrects the guess.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

ASKS = re.compile(r"\*\*Predict\*\*:?\s*(.*)", re.DOTALL)
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Prediction:
    """A question, and the code cells whose results answer it.

    Attributes:
        question: its words, in Markdown.
        cells: the ids of the code cells, in order.
        answer: a regular expression for the answer, or "".
    """

    question: str
    cells: tuple[str, ...]
    answer: str = ""


def predictions(notebook: dict[str, Any]) -> list[Prediction]:
    """List the predictions of a notebook (its JSON) that code cells answer."""
    found: list[Prediction] = []
    question: str | None = None
    answer, cells = "", []

    def close() -> None:
        if question is not None and cells:
            found.append(Prediction(question, tuple(cells), answer))

    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cells.append(cell["id"])
            continue
        close()
        asked = ASKS.search("".join(cell["source"]))
        question, cells = asked and asked[1].strip(), []
        answer = cell["metadata"].get("answer", "")
    close()
    return found


class Forms:
    """Shows a form before the result of each cell that one should predict.

    Attributes:
        shown: whether the cell that runs now has a form in its output.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell, self.shown = shell, False

    def ask(self, info: Any) -> None:
        """Show the form of a cell that is about to run; for IPython's events."""
        self.shown = False
        if not info.silent and info.store_history:
            self._ask(info.cell_id)

    def ask_now(self) -> None:
        """Show the form of the cell that runs now, for it has loaded the extension."""
        parent = getattr(self._shell, "get_parent", dict)()
        self._ask(parent.get("metadata", {}).get("cellId"))

    def _ask(self, cell: str | None) -> None:
        path = Path(os.environ.get("JPY_SESSION_NAME", ""))
        kernel = getattr(self._shell, "kernel", None)
        # A front end with a person before it can be asked for input.
        if not cell or not getattr(kernel, "_allow_stdin", False):
            return
        try:
            known = predictions(json.loads(path.read_text("utf8")))
        except (OSError, ValueError, KeyError, TypeError):
            return  # renamed, or not a notebook: the cells work all the same
        for prediction in known:
            if cell in prediction.cells:
                html = form(prediction, cell, path.stem)
                display({"text/html": html, "text/plain": ""}, raw=True)
                self.shown = True


def form(prediction: Prediction, cell: str, notebook: str) -> str:
    """Return HTML that asks for a guess, and hides the rest of the output till then."""
    settings = {
        "key": f"{notebook} {prediction.cells[0]}",
        "first": cell == prediction.cells[0],
        "question": prediction.question,
        "answer": prediction.answer,
    }
    words = json.dumps(settings).replace("<", "\\u003c")
    verdict = (HERE / "verdict.js").read_text("utf8")
    script = (HERE / "lab.js").read_text("utf8")
    style = (HERE / "lab.css").read_text("utf8")
    return (
        f'<div class="ar-predict"><style>{style}</style></div>'
        f"<script>(() => {{\n{verdict}{script}start({words});\n}})();</script>"
    )


_forms: Forms | None = None  # a kernel has one shell


def watch(shell: InteractiveShell) -> None:
    """Show forms in this shell from now on; a second call changes nothing."""
    global _forms
    if _forms is None:
        _forms = Forms(shell)
        shell.events.register("pre_run_cell", _forms.ask)
        _forms.ask_now()


def asking() -> bool:
    """Tell whether the output of the cell that runs now begins with a form."""
    return _forms is not None and _forms.shown
