"""The clinic's search box works in a browser, from a file, without a server."""

import gzip
import re
from functools import partial

import pytest
from bs4 import BeautifulSoup

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.diagnose.answers import flat
from allranks.diagnose.described import candidates, symptoms, table
from allranks.diagnose.text import Log
from book._ext.clinic.cases import change, load
from tests.book.axe import AXE, COLOURS, RUN
from tests.book.visits import STILL

LOG = "Epoch 1\n[rank1]: KeyError: \x1b[31m'LOCAL_RANK'\x1b[0m <img src=x onerror=x>\n"
STOPPED = b"Epoch 1\nKeyboardInterrupt\nRuntimeError: Connection closed by peer\n"
SYMPTOM = "my training hangs at the end of the epoch"
FOUND = "KeyError LOCAL_RANK: the script was not started by torchrun"
WIDER = "() => document.documentElement.scrollWidth > window.innerWidth"


@pytest.fixture(scope="module")
def address(site):
    """Return the address of the page as a file."""
    return (site / "book" / "app_clinic.html").resolve().as_uri()


@pytest.fixture
def tab(empty_tab, address):
    """Yield a page, and check that it had no error and asked no server."""
    tab, said = empty_tab(1280, 900), []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url))
    tab.goto(address)
    yield tab
    assert [line for line in said if not line.startswith("file:")] == []


def results(tab):
    """Return the titles that are listed once the search has ended and all is shown."""
    tab.wait_for_function(
        "!/Looking|Reading/.test(document.querySelector('.diagnose-status').textContent)"
        " && !document.querySelector('.diagnose-told:empty')"
    )
    return [link.inner_text() for link in tab.locator(".diagnose-title a").all()]


def test_a_log_is_diagnosed_by_keyboard(tab):
    """Paste, Tab and Enter find the case; the log is shown as text, with a mark."""
    tab.get_by_label("A traceback or a log").fill(LOG)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Find it"
    tab.keyboard.press("Enter")
    assert FOUND in results(tab)[0]
    assert FOUND in tab.locator(".diagnose-status").inner_text()
    first = tab.locator(".diagnose-found > li").first
    assert first.locator("mark").first.inner_text() == "KeyError: 'LOCAL_RANK'"
    assert first.locator(".diagnose-place").first.inner_text() == "line 2, rank 1"
    assert "<img src=x" in first.inner_text() and not first.locator("img").count()
    href = first.locator("a").get_attribute("href")
    assert href == "app_clinic_launch.html#clinic-local-rank-keyerror"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_answer_is_in_the_window_with_cause_cure_and_change(tab, width):
    """It says what the shell says, is in the window, and has the focus."""
    tab.set_viewport_size({"width": width, "height": 844})
    asked = []
    tab.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    tab.get_by_label("A traceback or a log").fill(LOG)
    tab.get_by_role("button", name="Find it").click()
    assert FOUND in results(tab)[0]
    case = next(one for one in load(ROOT) if one.slug == "local-rank-keyerror")
    first = tab.locator(".diagnose-found > li").first
    text = first.inner_text()
    for part in "Cause", "Cure":
        assert f"{part}: {flat(case.parts[part]).replace('`', '')}" in text
    pre = first.locator("details[open] pre")
    assert pre.text_content().rstrip() == change(case)
    signs = {"gi": "+", "gd": "-"}
    for name, sign in signs.items():
        lines = pre.locator(f".{name}").all_text_contents()
        assert lines and all(line.startswith(sign) for line in lines)
    seen = """() => {
      const box = (name) => document.querySelector(name).getBoundingClientRect();
      const top = box(".diagnose-status").top, header = box(".bd-header-article");
      return header.bottom <= top && box(".diagnose-told").bottom < innerHeight;
    }"""
    assert tab.evaluate(seen)
    assert tab.locator(".diagnose-status").get_attribute("role") == "status"
    title = first.get_by_role("heading", level=3)
    assert title.evaluate("(title) => title === document.activeElement")
    texts = [name.partition("?")[0] for name in asked if name.startswith("cases_")]
    assert texts == ["cases_launch.js"]
    summary = first.locator("summary")
    assert summary.bounding_box()["height"] >= 44
    tab.keyboard.press("Tab")  # the title's link
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert not pre.is_visible()


def test_an_answer_without_its_texts_still_names_the_case(browser, http):
    """What cannot be loaded is said, with the way to it, and is tried again."""
    tab = browser.new_page()
    tab.goto(f"{http}/book/app_clinic.html")
    tab.route("**/cases_launch.js*", lambda route: route.abort())
    tab.get_by_label("A traceback or a log").fill(LOG)
    tab.get_by_role("button", name="Find it").click()
    assert FOUND in results(tab)[0]
    told = tab.locator(".diagnose-told").first
    assert "on the page that the title links" in told.inner_text()
    tab.unroute("**/cases_launch.js*")
    tab.get_by_role("button", name="Find it").click()
    results(tab)
    assert told.inner_text().startswith("Cause: torchrun puts LOCAL_RANK")
    tab.close()


def test_a_pasted_log_needs_no_button(tab):
    """A paste starts the search and keeps the focus; Control and Enter repeat it."""
    box = tab.get_by_label("A traceback or a log")
    box.fill(LOG)
    box.dispatch_event("paste")
    assert results(tab)
    assert box.evaluate("(box) => box === document.activeElement")
    assert tab.locator(".diagnose-title").first.evaluate(
        "(title) => title.getBoundingClientRect().bottom < innerHeight"
    )
    box.fill("all is well")
    box.press("Control+Enter")
    assert results(tab) == []
    status = tab.locator(".diagnose-status").inner_text()
    assert status.startswith("Not known: nothing in the book fits these words.")


FILES = [
    ("a.log", LOG.encode(), "One case matches in a.log: "),
    ("a.log", LOG.encode("utf-16"), "One case matches in a.log: "),
    ("a.log", LOG.encode("utf-16-le"), "One case matches in a.log: "),
    ("a.log", LOG.encode("utf-16-be"), "One case matches in a.log: "),
    ("a.log", b"> python a.py\n" * 700 + LOG.encode("utf-16-le"), "One case matches"),
    ("a.log", STOPPED, "Ctrl-C ended this job, in line 2 in a.log"),
    ("a.bin", b"\x7fELF" + bytes(100), "a.bin is not a text file"),
    ("a.log", b" \n", "Nothing to look at"),
]


def test_a_file_is_read_here(tab):
    """A file, chosen or dropped, may be UTF-8 or UTF-16; a binary one is refused."""
    status = tab.locator(".diagnose-status")
    drop = """([name, bytes]) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
      const box = document.querySelector(".diagnose");
      box.dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
    }"""
    for name, content, says in FILES:
        file = {"name": name, "mimeType": "text/plain", "buffer": content}
        field = tab.get_by_label("or a log file")
        for take in (
            partial(field.set_input_files, [file]),
            partial(tab.evaluate, drop, [name, list(content)]),
        ):
            status.evaluate("(status) => { status.textContent = 'Reading'; }")
            take()
            results(tab)
            assert status.inner_text().startswith(says), content[:20]


def test_a_description_finds_candidates(tab):
    """What is no log gets the cases that it may mean, as in the shell, on demand."""
    asked = []
    tab.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    tab.get_by_label("A traceback or a log, or what you see").fill(SYMPTOM)
    tab.get_by_role("button", name="Find it").click()
    cases = load(ROOT)
    named = candidates(Log(("text", SYMPTOM)), table(cases))
    titles = {case.slug: case.title for case in cases}
    assert results(tab) == [titles[slug].removesuffix(".") for slug in named]
    status = tab.locator(".diagnose-status").inner_text()
    assert status.startswith("Not known: none of ")
    assert f"one of these {len(named)}, the likeliest first" in status
    names = [name.partition("?")[0] for name in asked]
    assert {"described.js", "described_data.js"} <= set(names)
    first = tab.locator(".diagnose-found > li").first
    assert first.locator(".diagnose-told").inner_text().startswith("Cause: ")
    title = first.get_by_role("heading", level=3)
    assert title.evaluate("(title) => title === document.activeElement")
    second = tab.locator(".diagnose-found > li").nth(1)
    summary = second.locator("summary", has_text="Cause and cure")
    assert not second.locator(".diagnose-told").is_visible()
    assert summary.bounding_box()["height"] >= 44
    summary.focus()
    tab.keyboard.press("Enter")
    assert second.locator(".diagnose-told").is_visible()
    tab.get_by_label("A traceback or a log").fill("all is well")
    tab.keyboard.press("Control+Enter")
    assert results(tab) == []
    assert "answer the questions below" in tab.locator(".diagnose-status").inner_text()


def test_questions_lead_to_cases(tab):
    """By keyboard on a phone, each answer opens; what is touched is large enough."""
    tab.set_viewport_size({"width": 390, "height": 844})
    first = symptoms()["see"][0]
    tab.locator(".symptoms > details > summary").first.focus()
    tab.keyboard.press("Enter")
    inner = tab.locator(".symptoms details details > summary:visible")
    answers = [one["answer"].replace("'", "’") for one in first["see"]]
    assert inner.all_inner_texts() == answers
    assert tab.locator(".symptoms p:visible").inner_text() == first["ask"]
    for _ in range(4):
        tab.keyboard.press("Tab")
    tab.keyboard.press("Space")
    links = tab.locator(".symptoms a:visible")
    places = [link.get_attribute("href").partition("#")[2] for link in links.all()]
    assert places == [f"clinic-{slug}" for slug in first["see"][3]["cases"].split()]
    small = """() => [...document.querySelectorAll(".symptoms :is(summary, a)")]
      .filter((one) => one.checkVisibility() && one.offsetHeight < 44)
      .map((one) => one.textContent)"""
    assert tab.evaluate(small) == []
    assert not tab.evaluate(WIDER)


def test_the_example_is_diagnosed(tab):
    """The example is diagnosed, with its cause first and not an echo of it.

    Until then, a line of it stands there with its answer, which links to the case.
    """
    still = tab.locator(".diagnose-still")
    address = still.get_by_role("link", name="takes no part").get_attribute("href")
    assert address == "app_clinic_ddp.html#clinic-ddp-unused-params"
    assert still.locator("mark").inner_text().startswith("Expected to have finished")
    tab.get_by_role("button", name="Show an example").click()
    assert "takes no part" in results(tab)[0] and not still.count()
    # The whole word is marked, and not in yellow.
    seen = tab.locator(".diagnose-found mark").first
    assert seen.inner_text().startswith("Expected to have finished")
    ground = seen.evaluate("one => getComputedStyle(one).backgroundColor")
    assert ground == "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("width", [1280, 390])
def test_results_are_for_everybody(tab, width):
    """With results on the page, axe finds nothing, and nothing is too wide."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.reload()
    tab.get_by_role("button", name="Show an example").click()
    assert len(results(tab)) == 3
    tab.locator(".symptoms > details > summary").first.click()
    tab.locator(".symptoms details details > summary:visible").nth(3).click()
    tab.add_style_tag(content=STILL)
    tab.evaluate(AXE)
    if width == 390:
        assert tab.evaluate(RUN, [COLOURS, None, None])[0] == []
    boxes = {"include": [".diagnose", ".symptoms"]}
    for theme in "light", "dark":
        violations, passes = tab.evaluate(RUN, [COLOURS, theme, boxes])
        assert violations == [] and passes > 10, theme
    assert not tab.evaluate(WIDER)


def test_without_a_script_a_sentence_stands_there(address, browser):
    """Without a script, a sentence names the command and the tables instead."""
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(address)
    text = tab.locator(".diagnose").inner_text()
    tab.locator(".symptoms > details > summary").first.click()
    assert tab.locator(".symptoms details details > summary").first.is_visible()
    context.close()
    assert "python -m allranks.diagnose" in text and "tables below" in text


def test_only_this_page_pays(site):
    """The signs are one small script, and only the page with the box loads it."""
    static = site / "_static"
    data = (static / "diagnose_data.js").read_text("utf8")
    assert len(data) < 90_000
    words = (static / "described_data.js").read_bytes()  # loaded when it is needed
    assert len(gzip.compress(words)) < 70_000
    for page in clinic.CLASSES.values():  # fetched when a case of the class is found
        name = f"cases_{page.removeprefix('app_clinic_')}.js"
        assert (static / name).stat().st_size < 35_000
    with_box = [
        page.name
        for page in (site / "book").glob("*.html")
        if "diagnose_data.js" in page.read_text("utf8")
    ]
    assert with_box == ["app_clinic.html"]
    html = (site / "book" / "app_clinic.html").read_text("utf8")
    tree = BeautifulSoup(html, "html.parser")
    scripts = [tag["src"] for tag in tree.select("script[src*=diagnose]")]
    order = [re.search(r"/(\w+)\.js", source)[1] for source in scripts]
    assert order == ["diagnose_data", "diagnose", "diagnose_box"]
