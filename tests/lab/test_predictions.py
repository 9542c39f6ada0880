"""In JupyterLab a result waits for the reader's guess, and confirms or corrects it."""

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.lab.conftest import EXECUTED, save_notebook

ASK = """**Predict**: what is {0}?"""
DRAWS = """%%ranks --out total
import time
print('sum', 1 + 2)
time.sleep(1)  # so that the line is on the screen before the cell is over
3"""
HIDDEN = "element => getComputedStyle(element).visibility === 'hidden'"


@pytest.fixture(scope="module", autouse=True)
def hidden(window):
    """Show no answer in the window of this file's tests, and in no other."""
    close(window)  # a tab of another file shows all
    window.add_init_script("window.allRanksShowAll = false")
    yield
    close(window)  # the next one shall not know what was shown here
    window.add_init_script("window.allRanksShowAll = true")  # as it was


def asking() -> list:
    """Return the cells of a notebook with three predictions."""
    new = nbformat.v4
    return [
        new.new_code_cell("%load_ext allranks\n%ranks 2"),
        new.new_markdown_cell(ASK.format("the sum"), metadata={"answer": r"sum (\d+)"}),
        new.new_code_cell(DRAWS),
        new.new_code_cell("print('again', total)"),
        new.new_markdown_cell(ASK.format("drawn"), metadata={"answer": r"is (\w+)"}),
        new.new_code_cell("import time\ntime.sleep(3)\nprint('it is', 1 > 2)"),
        new.new_markdown_cell(ASK.format("wrong here")),
        new.new_code_cell("1 / 0"),
        new.new_markdown_cell("No question."),
        new.new_code_cell("print('plain')"),
    ]


def close(window) -> None:
    """Close all tabs of a window."""
    for page in window.pages:
        page.close()


def result(cell):
    """Return what a cell shows below the form."""
    return cell.locator(".jp-OutputArea-child").last


@pytest.mark.timeout(600)  # much more than it takes, for busy machines
def test_each_prediction_of_chapter_7_takes_a_guess_and_tells_the_answer(opened, lab):
    """All eight, on live ranks: the form stands where the cell is, and knows."""
    path = Path(lab[0].cwd()) / "lab" / "ch7_collectives.ipynb"
    cells = nbformat.read(path, 4).cells
    last = next(i for i, one in enumerate(cells) if one.source == "%ranks stop")
    notebook, asked = opened(path, clear=False), []
    no_answer_stands_there_yet(notebook)
    code = [i for i, cell in enumerate(cells[:last]) if cell.cell_type == "code"]
    for number, i in enumerate(code):
        shown = notebook.cells.nth(number)
        notebook.run(shown)
        if "**Predict**" in cells[i - 1].source:
            notebook.show(shown, ".ar-predict input")
            shown.get_by_label("Your guess").fill("a guess")
            shown.get_by_role("button", name="I have a guess").click()
            said = shown.get_by_role("status")
            expect(said).to_contain_text("You guessed: a guess. The answer: ")
            asked.append(said.inner_text())
    assert len(asked) == 8


def no_answer_stands_there_yet(notebook) -> None:
    """Check that ``make lab`` opens no result, garbled picture or mark for the book."""
    assert notebook.cells.count() > 20
    assert not notebook.panel.get_by_text(EXECUTED).count()
    shown = "".join(notebook.panel.locator(".jp-OutputArea-output").all_inner_texts())
    assert not shown.strip()
    first = notebook.panel.locator(".jp-MarkdownOutput").first
    expect(first.locator("h1")).to_contain_text("What a collective costs, live")
    assert "{ref}" not in first.inner_text() and ")=" not in first.inner_text()


@pytest.mark.timeout(600)
def test_a_result_waits_for_the_guess(opened, errors, tmp_path):
    """Until there is one, or until a reader does not want to guess any more."""
    asked = opened(save_notebook(tmp_path / "asked.ipynb", asking()))
    a_guess_is_told_the_answer(asked)
    a_guess_may_come_before_the_result(asked)
    one_press_shows_all_from_then_on(asked)
    assert not errors


def a_guess_is_told_the_answer(asked) -> None:
    """Check by keyboard: guess, see, guess again; other cells of a question follow."""
    start, total, again = (asked.cells.nth(i) for i in range(3))
    asked.run(start)
    assert "ranks 0–1: sum 3" in asked.run(total)
    assert result(total).evaluate(HIDDEN) and result(total).bounding_box()["height"] < 1
    assert "again" in asked.run(again)
    assert result(again).evaluate(HIDDEN)
    field = total.get_by_label("Your guess")
    assert field.locator("xpath=ancestor::form").get_attribute("aria-label") == (
        "what is the sum?"
    )
    field.press_sequentially("four")
    field.press("Enter")
    said = total.get_by_role("status")
    expect(said).to_have_text("You guessed: four. The answer: 3.")
    expect(said).to_be_focused()
    for cell in total, again:
        assert not result(cell).evaluate(HIDDEN)
        assert result(cell).bounding_box()["height"] > 10
    assert "again" in again.inner_text() and not again.get_by_role("status").count()

    asked.run(total)  # it is remembered
    expect(said).to_have_text("You guessed: four. The answer: 3.")
    total.get_by_role("button", name="Guess again").click()
    assert result(total).evaluate(HIDDEN) and result(again).evaluate(HIDDEN)
    num_cells = asked.cells.count()
    field.press_sequentially("dd")  # in JupyterLab's command mode: delete this cell
    assert asked.cells.count() == num_cells and field.input_value() == "dd"
    field.fill("3")
    total.get_by_role("button", name="I have a guess").click()
    expect(said).to_have_text("As you guessed: 3.")
    times = total.locator(".jp-InputPrompt").inner_text()
    said.press("Shift+Enter")  # the form is gone, and the keys are JupyterLab's again
    expect(total.locator(".jp-InputPrompt")).not_to_have_text(times)
    asked.idle()


def a_guess_may_come_before_the_result(asked) -> None:
    """Check that a slow cell can be guessed while it runs."""
    slow = asked.cells.nth(3)
    asked.start(slow)
    field = slow.get_by_label("Your guess")
    field.fill("no")
    field.press("Enter")
    assert slow.locator(".jp-InputPrompt").inner_text() == "[*]:"
    expect(slow.get_by_role("status")).to_have_text("As you guessed: no.")
    asked.idle()


def one_press_shows_all_from_then_on(asked) -> None:
    """Check that no cell asks any more, not even for an answer that it had."""
    total, wrong, plain = (asked.cells.nth(i) for i in (1, 4, 5))
    total.get_by_role("button", name="Guess again").click()
    assert "ZeroDivisionError" in asked.run(wrong)
    assert result(wrong).evaluate(HIDDEN) and result(total).evaluate(HIDDEN)
    wrong.get_by_role("button", name="Show all from now on").click()
    assert not result(wrong).evaluate(HIDDEN)
    asked.run(total)
    assert not result(total).evaluate(HIDDEN)
    assert not total.get_by_label("Your guess").count()
    assert asked.run(plain) == "plain\n"
    assert not plain.locator(".ar-predict").count()
