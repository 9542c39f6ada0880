"""The canonical form of an executed notebook: the same run gives the same bytes."""

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from book._tools.commands import machine_trace

METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
WIDGET = "application/vnd.jupyter.widget-view+json"
TIMED = "nbval-ignore-output"  # the tag of a cell whose output differs in each run
KEPT = ("answer", "mystnb", "tags")  # metadata of cells that pages or tests read


def execute(path: Path, timeout: float = 120, timings: bool = True) -> None:
    """Run a notebook from its first cell and write it in canonical form.

    Args:
        path: of the notebook.
        timeout: seconds for each cell.
        timings: whether to write outputs anew that differ in each run.

    Raises:
        ValueError: if a cell failed that is not tagged ``raises-exception``, or an
            output contains a path of this machine. The file then stays as it was.
    """
    nb = nbformat.read(path, as_version=4)
    before = nbformat.from_dict(nb)
    client = NotebookClient(
        nb,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],  # or it warns of unencrypted loopback
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if problems := faults(nb, path.name):
        raise ValueError("\n".join(problems))
    if not timings:
        keep_timings(before, nb)
    text = canonical(nb)
    if text != path.read_text("utf8"):
        path.write_text(text, "utf8")


def keep_timings(before: NotebookNode, after: NotebookNode) -> None:
    """Put back the old outputs of cells whose output differs in each run.

    Such a cell has the tag ``nbval-ignore-output``: a timeline, for example.
    """
    old = {cell.id: cell for cell in before.cells if cell.cell_type == "code"}
    for cell in after.cells:
        if TIMED in cell.metadata.get("tags", ()) and cell.id in old:
            cell.outputs = old[cell.id].outputs or cell.outputs


def canonical(nb: NotebookNode) -> str:
    """Return a notebook as text, with sorted keys, without timings and versions."""
    nb = nbformat.from_dict(nb)
    nb.metadata = METADATA
    nb.nbformat, nb.nbformat_minor = 4, 5
    for cell in nb.cells:
        cell.metadata = {
            key: cell.metadata[key] for key in KEPT if key in cell.metadata
        }
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
            for output in cell.outputs:  # drop a widget's random id, keep its HTML
                output.get("data", {}).pop(WIDGET, None)
    nbformat.validate(nb)
    text = nbformat.writes(nb, version=4)  # splits texts into lines
    text = json.dumps(json.loads(text), indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n"


def merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighboring pieces of one stream, which timing cuts at random places."""
    result = []
    for output in outputs:
        last = result[-1] if result else {}
        if output.output_type == "stream" and output.get("name") == last.get("name"):
            last.text += output.text
        else:
            result.append(output)
    return result


def faults(nb: NotebookNode, name: str) -> list[str]:
    """Return what keeps an executed notebook from being published, in sentences."""
    found = []
    cells = [c for c in nb.cells if c.cell_type == "code" and c.source.strip()]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        found.append(f"{name} was not run from its first cell to its last")
    for number, cell in enumerate(cells, 1):
        raised = any(output.output_type == "error" for output in cell.outputs)
        expected = "raises-exception" in cell.metadata.get("tags", ())
        if raised != expected:
            state = "failed, and is not" if raised else "did not fail, but is"
            found.append(f"{name}: cell {number} {state} tagged raises-exception")
        if trace := machine_trace(plain(cell.outputs)):
            found.append(
                f"{name}: cell {number} shows what only one machine has: {trace}"
            )
    return found


def plain(outputs: list[NotebookNode]) -> str:
    """Return all text that the outputs show."""
    texts = []
    for output in outputs:
        texts += [output.get("text", ""), *output.get("traceback", ())]
        texts += [text for text in output.get("data", {}).values() if type(text) is str]
    return "\n".join(texts)


def check(path: Path) -> list[str]:
    """Return why a file is not what ``make notebooks`` writes; nothing if it is."""
    nb = nbformat.read(path, as_version=4)
    found = faults(nb, path.name)
    if path.read_text("utf8") != canonical(nb):
        found.append(f"{path.name} is not in canonical form")
    return found
