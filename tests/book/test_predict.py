"""A notebook's page shows a result to predict after the guess, and remembers both."""

import json
import re

import nbformat
import pytest

from allranks.base.paths import ROOT

PAGE = "notebooks/ch5_ddp"
FIND = """forms => forms.map(form => allRanksPredict.answerIn(
  [...document.querySelectorAll(`[id^="${form.dataset.predict}-"].predict`)],
  form.dataset.answer))"""
FOLDED = ".cell_output.predict:not(.shown)"


@pytest.fixture
def tab(empty_tab, site):
    """Return a phone's window with a page that asks for predictions."""
    tab = empty_tab(390, 844)
    tab.goto((site / f"{PAGE}.html").as_uri())
    return tab


def heights(tab) -> list[float]:
    """Return how much of each output to predict is seen, in px."""
    return tab.locator(".cell_output.predict").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )


def test_every_prediction_has_a_field(site):
    """Each question of a notebook that a code cell answers has its field."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        asked = answered = 0
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "markdown":
                asked = "**Predict**" in cell.source
            elif asked and cell.get("outputs"):
                answered += 1
                asked = False
        html = (site / "notebooks" / f"{path.stem}.html").read_text("utf8")
        fields = len(re.findall('<form class="predict-ask"', html))
        assert fields == answered > 5, path.name


def test_a_guess_shows_the_result_and_stays_beside_it(tab):
    """By keyboard; nothing above moves, and a reload remembers it."""
    folded = tab.locator(FOLDED).count()
    assert folded > 20 and max(heights(tab)) < 1
    form = tab.locator(".predict-ask").first
    number = form.get_attribute("data-predict")
    top = form.evaluate("f => f.getBoundingClientRect().top + scrollY")
    form.get_by_label("Your guess").focus()
    tab.keyboard.type("that of rank 0")
    tab.keyboard.press("Enter")
    result = tab.locator(f"#{number}-0")
    assert result.bounding_box()["height"] > 10
    said = tab.locator(".predict-said").first
    assert said.inner_text() == "You guessed: that of rank 0"
    assert tab.evaluate("document.activeElement.className") == "predict-said"
    now = said.evaluate("p => p.getBoundingClientRect().top + scrollY")
    assert abs(now - top) < 20
    assert 0 < folded - tab.locator(FOLDED).count() < 5
    tab.reload()
    assert said.inner_text() == "You guessed: that of rank 0"
    assert result.bounding_box()["height"] > 10 and max(heights(tab)[5:]) < 1


def test_a_result_confirms_or_corrects_the_guess(tab, site):
    """Each answer that a notebook names is found on its page, so a guess is judged."""
    judged = 0
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, 4).cells
        tab.goto((site / "notebooks" / f"{path.stem}.html").as_uri())
        found = tab.locator(".predict-ask[data-answer]").evaluate_all(FIND)
        assert len(found) == sum("answer" in cell.metadata for cell in cells)
        assert all(found), (path.name, found)
        judged += len(found)
    assert judged > 20


VERDICTS = [
    ("four, I think", "4", "As you guessed: 4."),
    ("5", "4", "You guessed: 5. The answer: 4."),
    ("2.3", "2.31", "As you guessed: 2.31."),
    ("2", "2.31", "You guessed: 2. The answer: 2.31."),
    ("0 4 8", "0, 4, 8", "As you guessed: 0, 4, 8."),
    ("0 and 4", "0, 4, 8", "You guessed: 0 and 4. The answer: 0, 4, 8."),
    ("1,111", "1111", "As you guessed: 1111."),
    ("No!", "False", "As you guessed: no."),
    ("it knows", "False", "You guessed: it knows. The answer: no."),
    ("", "True", "The answer: yes."),
    ("it hangs", None, "You guessed: it hangs"),
]


def test_a_verdict_is_fair(tab):
    """Numbers are compared as numbers, words as words."""
    judge = "([guess, answer]) => allRanksPredict.verdict(guess, answer)"
    said = [tab.evaluate(judge, [guess, answer]) for guess, answer, _ in VERDICTS]
    assert said == [says for *_, says in VERDICTS]


def test_all_results_are_shown_at_once_and_a_link_opens_its_own(tab):
    """One button opens all; a link into a folded result opens that one."""
    last = tab.locator(".cell_output.predict").last.get_attribute("id")
    tab.goto(f"{tab.url}#{last}")
    assert tab.locator(f"#{last}").bounding_box()["height"] > 10
    assert tab.locator(FOLDED).count() > 20
    tab.get_by_role("button", name="Show all results").click()
    assert tab.locator(FOLDED).count() == 0 and min(heights(tab)) > 0
    tab.reload()
    assert tab.locator(FOLDED).count() == 0
    stored = json.loads(tab.evaluate("localStorage.getItem('allranks.guesses')"))
    assert set(stored.values()) == {""}


def test_results_are_there_on_paper_and_without_a_script(browser, site, tab):
    """Where nobody can press a button, nothing is folded."""
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert min(heights(tab)) > 0
    assert not tab.locator(".predict-ask:visible").count()
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto((site / f"{PAGE}.html").as_uri())
    assert not plain.locator(".predict-ask:visible").count()
    assert plain.locator(".cell_output.predict:visible").count() > 20
    context.close()
