"""The clinic's index and the glossary can be narrowed, and the choice can be linked."""

import re

import pytest

from allranks import clinic
from allranks.base.paths import ROOT
from book._ext.clinic.cases import load


@pytest.fixture
def tab(empty_tab):
    """Return a phone's window."""
    return empty_tab(390, 844)


def shown(tab, what: str) -> list[str]:
    """Return the visible items' texts."""
    return tab.locator(f"{what}:visible").all_inner_texts()


def test_cases_are_narrowed_by_symptom_class_and_words(tab, site):
    """Chips of one group add up, groups narrow each other, and so do words."""
    tab.goto((site / "book/app_clinic.html").as_uri())
    cases = load(ROOT)
    rows, status = ".clinic-index li", tab.locator(".filter-count")
    assert shown(tab, rows) == []  # folded, by class
    assert tab.locator(rows).count() == len(cases)
    assert status.inner_text() == f"{len(cases)} of {len(cases)} cases"
    hangs = [case for case in cases if case.fields["symptom"] == "hang"]
    chip = tab.locator(".filter-chips button", has_text=re.compile("^hangs"))
    assert chip.inner_text() == f"hangs {len(hangs)}"
    assert chip.bounding_box()["height"] >= 44
    chip.focus()
    tab.keyboard.press("Space")
    assert chip.get_attribute("aria-pressed") == "true"
    assert len(shown(tab, rows)) == len(hangs)
    assert status.inner_text() == f"{len(hangs)} of {len(cases)} cases"
    name = hangs[0].fields["class"]
    both = [case for case in hangs if case.fields["class"] == name]
    tab.locator(".filter summary", has_text="class").click()
    page = (ROOT / "book" / f"{clinic.CLASSES[name]}.md").read_text("utf8")
    label = re.search(r"^# (.+)$", page, re.MULTILINE)[1] + " "
    tab.locator(
        ".filter-chips button", has_text=re.compile(f"^{re.escape(label)}")
    ).click()
    assert len(shown(tab, rows)) == len(both)
    tab.get_by_label("Show cases with these words").fill("no such words")
    assert shown(tab, rows) == [] and "remove a word or a chip" in status.inner_text()
    tab.get_by_label("Show cases with these words").fill("")
    folds = tab.locator(".clinic-index details:visible")
    assert folds.count() == 1 and folds.get_attribute("open") is not None
    before, address = shown(tab, rows), tab.url
    assert "symptom" in address and "class" in address
    tab.goto("about:blank")
    tab.goto(address)  # the link shows the same
    assert shown(tab, rows) == before
    pressed = tab.locator(".filter-chips button[aria-pressed=true]")
    while pressed.count():
        pressed.first.click()
    assert shown(tab, rows) == []  # folded again
    fold = tab.locator(".clinic-index details").filter(has_text=label.strip()).first
    fold.locator("summary").click()
    own = [case for case in cases if case.fields["class"] == name]
    assert len(shown(tab, rows)) == len(own)
    assert fold.locator("summary").inner_text().endswith(f" {len(own)} cases")


def test_the_index_and_the_sidebar_use_the_same_names(tab, site):
    """A class is called what its page is called, and says how many cases it has."""
    tab.goto((site / "book/app_clinic.html").as_uri())
    names = tab.locator(".clinic-index summary span:first-child").all_text_contents()
    links = tab.locator("nav.bd-links .current li a").all_text_contents()
    assert len(names) == len(clinic.CLASSES)
    assert {*names} <= {link.strip() for link in links}
    tags = tab.locator(".clinic-index li .case-tag")
    assert tags.count() >= len(load(ROOT))
    tab.locator(".clinic-index summary").first.click()
    crash = tab.locator(".clinic-index .case-crash").first
    assert crash.bounding_box()["width"] <= 1  # read aloud, and not shown 133 times


def test_terms_are_narrowed_in_both_languages(tab, site):
    """A word of the meaning or a Chinese term is enough; empty letters vanish."""
    tab.goto((site / "book/app_glossary.html").as_uri())
    box = tab.get_by_label("Show terms with these words")
    for words, term in (("加速器", "accelerator"), ("schedule backward early", "1F1B")):
        box.fill(words)
        found = [text.rstrip("#") for text in shown(tab, "dl.glossary > dt")]
        assert term in found and len(found) < 10
        assert len(shown(tab, "article section section")) <= len(found)
    box.fill("")
    assert len(shown(tab, "dl.glossary > dt")) > 100


@pytest.mark.parametrize("page", ["app_clinic", "app_glossary"])
def test_everything_is_there_without_a_script_and_on_paper(
    browser, empty_tab, site, page
):
    """Nothing is hidden where nobody can press a chip."""
    items = ".clinic-index li, dl.glossary > dt"
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((site / f"book/{page}.html").as_uri())
    for summary in tab.locator(".clinic-index summary").all():
        summary.click()  # folds need no script
    everything = tab.locator(f":is({items}):visible").count()
    assert everything == tab.locator(items).count() > 100
    assert not tab.locator(".filter input").count()
    context.close()
    tab = empty_tab(1280, 720)
    tab.goto((site / f"book/{page}.html").as_uri() + "?words=checkpoint")
    assert tab.locator(f":is({items}):visible").count() < everything
    tab.emulate_media(media="print")
    assert tab.locator(f":is({items}):visible").count() == everything
