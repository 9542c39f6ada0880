"""Quizzes and progress in a real browser, driven by the keyboard."""

import json
import re

import pytest
from playwright.sync_api import expect

PAGE, NOTEBOOK, COURSE = "book/ch4_ranks", "notebooks/ch4_ranks", "book/app_course"
BLOCKED = """Object.defineProperty(window, "localStorage", {
    get() { throw new DOMException("blocked", "SecurityError"); }
});"""
CONTRAST = """box => {
    const light = rgb => rgb.map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const read = text => text.match(/[\\d.]+/g).map(Number);
    const ground = element => {
        for (let e = element; e; e = e.parentElement) {
            const color = read(getComputedStyle(e).backgroundColor);
            if (color.length < 4 || color[3] > 0) return color.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const texts = [...box.querySelectorAll("*")].filter(e => e.checkVisibility()
        && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
    return texts.map(e => {
        const [a, b] = [read(getComputedStyle(e).color).slice(0, 3), ground(e)]
            .map(light).sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)];
    });
}"""


class Reader:
    """A reader with a browser window and a list of the errors on its pages."""

    def __init__(self, page, base: str):
        self.base = base
        self.page = page
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, page: str):
        """Go to a page of the site."""
        self.page.goto(f"{self.base}/{page}.html")
        return self.page

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def quiz(self, name: str):
        """Return a quiz's box."""
        return self.page.locator(f"#quiz-{name}")

    def status(self, name: str) -> str:
        """Return what a quiz said last."""
        text = self.quiz(name).get_by_role("status").inner_text()
        return re.sub(r"\n+", "\n", text)

    def focused(self) -> str:
        """Return the text or the type of the element that has the focus."""
        return self.page.evaluate(
            "document.activeElement.textContent || document.activeElement.type"
        )

    def tally(self, name: str) -> str:
        """Return what the head of a quiz says about progress."""
        return self.quiz(name).locator(".progress-tally").inner_text()

    def solve(self, name: str) -> None:
        """Answer a quiz with its right options, by keyboard."""
        for reason in self.quiz(name).locator(".quiz-reasons > li").all():
            if reason.text_content().startswith("Right."):
                letter = reason.evaluate("e => [...e.parentNode.children].indexOf(e)")
                self.quiz(name).locator("input").nth(letter).focus()
                self.press("Space")
        self.press("Enter")


@pytest.fixture(params=["http", "file"])
def base(request, site, http) -> str:
    """Return where the site is: on a server, or in a folder."""
    return http if request.param == "http" else site.as_uri()


@pytest.fixture
def reader(empty_tab, http, served):
    """Yield a reader who has done nothing yet, and check that no page had an error."""
    empty_tab(1280, 720)  # files and the server have each their own storage
    reader = Reader(empty_tab(1280, 720, served), http)
    yield reader
    assert reader.errors == []


def test_one_right_option_by_keyboard(reader):
    """Arrows choose, Enter checks, and each choice gets its own reason."""
    page, name = reader.open(PAGE), "ch4_device"
    group = reader.quiz(name).get_by_role("group")
    assert "Two machines with four GPUs each" in group.locator("legend").inner_text()
    reader.quiz(name).locator("input").first.focus()
    reader.press("Space", "Enter")
    assert reader.status(name).startswith("✗ Not yet.\nCUDA knows only its own machine")
    assert reader.quiz(name).locator("label").first.inner_text().endswith("✗ wrong")
    assert reader.tally(name) == ""
    reader.press("ArrowDown")
    assert reader.status(name) == ""  # a new choice: the old verdict is gone
    reader.press("Tab")
    assert reader.focused() == "Check"
    reader.press("Space")
    assert reader.status(name).startswith("✓ Right.\nRank 4 asks for the fifth GPU")
    assert reader.focused() == "Check"
    assert re.fullmatch(r"✓ solved · 1 of \d+ on this page", reader.tally(name))
    assert page.locator("details.quiz-answer[open]").count() == 0


def test_several_right_options(reader):
    """All right options and no others are needed; missing ones are only counted."""
    reader.open(PAGE)
    name = "ch4_rank_or_local"
    boxes = reader.quiz(name).locator("input[type=checkbox]")
    boxes.nth(0).focus()
    reader.press("Enter")
    assert reader.status(name) == "Choose an answer first."
    reader.press("Space", "Enter")
    assert reader.status(name) == "✗ Not yet: one is missing."
    boxes.nth(1).focus()
    reader.press("Space", "Enter")
    assert reader.status(name).startswith("✗ Not yet.\nNo two ranks")
    reader.press("Space")
    boxes.nth(2).focus()
    reader.press("Space", "Enter")
    assert reader.status(name).startswith("✓ Right.")


def test_numbers_are_fresh_at_each_try(reader):
    """A common mistake is named, and new numbers ask for a new answer."""
    reader.open(PAGE)
    name = "ch4_global_batch"
    numbers = json.loads(reader.quiz(name).get_attribute("data-numbers"))
    drawn, field = numbers["drawn"], reader.quiz(name).get_by_role("textbox")

    def answer(text):
        field.focus()
        reader.press("Control+A")
        reader.page.keyboard.type(text)
        reader.press("Enter")
        return reader.status(name)

    assert reader.quiz(name).get_by_label("Your answer (samples)").count() == 1
    assert answer("many") == "Write the number only, in samples."
    assert field.get_attribute("aria-invalid") == "true"
    one_machine = drawn["gpus"] * drawn["batch"]
    slip = (
        "You forgot to multiply by the number of machines: that is one machine’s share."
    )
    assert answer(str(one_machine)) == f"✗ Not {one_machine}.\n{slip}"
    assert answer("7").startswith("✗ Not 7. No usual slip leads there")
    right = drawn["nodes"] * one_machine
    assert answer(f"{right:,}").startswith(f"✓ Right.\n{right} = {drawn['nodes']} × ")
    reader.press("Tab", "Tab")
    assert reader.focused() == "Other numbers"
    reader.press("Enter")
    assert reader.focused() == "text"
    assert field.input_value() == ""
    assert "Other numbers are in the question" in reader.status(name)
    shown = {
        span.get_attribute("data-value"): int(span.inner_text())
        for span in reader.quiz(name).locator("legend [data-value]").all()
    }
    assert shown != drawn
    right = shown["nodes"] * shown["gpus"] * shown["batch"]
    assert answer(str(right)).startswith(f"✓ Right.\n{right} = {shown['nodes']} × ")
    folded = reader.quiz(name).locator("details > p").first.text_content()
    assert folded.startswith(f"{right} = ")


def test_the_form_takes_the_numbers_that_it_shows(reader, base):
    """What the answer and the slips display is accepted, also where it is rounded."""
    reader.base = base
    reader.open("book/ch9_1_packing")
    quiz = reader.quiz("ch9_mean")
    field = quiz.get_by_label("Your answer (to 2 decimal places)")

    def answer(text):
        field.fill(text)
        field.press("Enter")
        return reader.status("ch9_mean")

    for _ in range(3):
        right = quiz.locator("details > p").first.text_content()
        number, sign, *_ = right.split()
        reason = "Add up the tokens’ losses, and divide once."
        assert answer(number) == f"✓ Right.\n{right}\n{reason}"
        if sign == "≈":
            almost = "Almost: give the answer to 2 decimal places."
            assert answer(number[:-1]) == almost
        exchanged = quiz.locator(".quiz-slips .quiz-verdict").nth(1).text_content()
        text = exchanged.removeprefix("≈ ").removesuffix("? ")
        assert answer(text).startswith(f"✗ Not {text}.\nThe weights are exchanged")
        quiz.get_by_role("button", name="Other numbers").click()


def test_progress_stays_is_counted_and_can_be_cleared(reader, base):
    """Progress survives a reload and reaches other pages; clearing it asks first."""
    reader.base = base
    reader.open(PAGE)
    reader.solve("ch4_device")
    reader.solve("ch4_rank_or_local")
    page = reader.open(PAGE)
    assert reader.tally("ch4_device").startswith("✓ solved · 2 of ")
    assert reader.tally("ch4_global_batch").startswith("2 of ")
    reader.open(NOTEBOOK)
    box = page.get_by_label("I have done exercise 4.1")
    box.focus()
    reader.press("Space")
    assert page.locator(".progress-done", has=box).inner_text().endswith("on this page")
    ask = page.locator(".predict-ask input").first
    ask.fill("eight")
    ask.press("Enter")
    reader.open(NOTEBOOK)
    expect(box).to_be_checked()  # the page left may write after the new one has read
    guess = page.get_by_text("You guessed: eight")
    expect(guess).to_be_visible()
    reader.open(COURSE)
    row = page.locator(".progress-box tr", has_text="Ranks: who is who")
    cells = row.locator("[data-progress]")
    totals = [len(c.get_attribute("data-progress").split()) - 1 for c in cells.all()]
    assert cells.all_inner_texts() == [f"2 of {totals[0]}", f"1 of {totals[1]}"]
    clear = page.get_by_role("button", name="Clear my progress …")
    clear.focus()
    reader.press("Enter")
    assert page.get_by_role("dialog").is_visible()
    assert reader.focused() == "Keep them"
    reader.press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    assert reader.focused() == "Clear my progress …"
    assert cells.first.inner_text().startswith("2 of")
    reader.press("Enter", "Enter")  # keep them
    assert cells.first.inner_text().startswith("2 of")
    reader.press("Enter", "Tab", "Enter")
    assert page.locator(".progress-status").inner_text().strip() == "Cleared."
    assert reader.focused() == "Clear my progress …"
    assert cells.first.inner_text().startswith("0 of")
    reader.open(NOTEBOOK)
    assert not box.is_checked()
    assert not guess.count()


def test_a_second_window_follows(reader):
    """A quiz solved in one window shows as solved in the other."""
    reader.open(PAGE)
    other = Reader(reader.page.context.new_page(), reader.base)
    other.open(PAGE)
    assert other.tally("ch4_device") == ""
    reader.page.bring_to_front()
    reader.solve("ch4_device")
    tally = other.quiz("ch4_device").locator(".progress-tally")
    tally.filter(has_text="solved").wait_for(state="attached")
    other.page.close()
    assert other.errors == []


def test_guesses_of_two_windows_are_both_kept(reader):
    """A guess shows in the other window, whose own guess leaves it as it is."""
    page = reader.open(NOTEBOOK)
    other = Reader(page.context.new_page(), reader.base)
    other.open(NOTEBOOK)
    for window, word in ((page, "eight"), (other.page, "nine")):
        ask = window.locator(".predict-ask input").first
        ask.fill(word)
        ask.press("Enter")
        other.page.get_by_text(f"You guessed: {word}").wait_for()
    other.page.close()
    reader.open(NOTEBOOK)
    for word in ("eight", "nine"):
        page.get_by_text(f"You guessed: {word}").wait_for()


def test_the_map_says_what_is_done_and_nothing_else(reader):
    """A chapter's card counts its own quizzes and exercises, once there are any."""
    page = reader.open("book/intro")
    marks = page.locator(".map-progress")
    assert marks.count() > 10 and not "".join(marks.all_inner_texts())
    done = {"quiz": {"ch4_device": 1, "ch4_rank_or_local": 1}, "exercise": {"ex5_1": 1}}
    store = "done => localStorage.setItem('allranks.progress', JSON.stringify(done))"
    page.evaluate(store, done)
    page.reload()
    card = page.locator(".map-card").filter(has_text="Ranks: who is who")
    card.get_by_text(re.compile(r"2 of \d+ quizzes done")).wait_for()
    said = [text for text in marks.all_inner_texts() if text.strip()]
    assert len(said) == 2
    assert re.search(r"; 1 of \d+ exercises? done", said[1])


def test_blocked_storage_is_no_error(browser, http):
    """Without storage a page still counts, but forgets when the reader leaves it."""
    context = browser.new_context()
    context.add_init_script(BLOCKED)
    reader = Reader(context.new_page(), http)
    reader.open(PAGE)
    reader.solve("ch4_device")
    assert reader.tally("ch4_device").startswith("✓ solved · 1 of ")
    reader.open(PAGE)
    assert reader.tally("ch4_device") == ""
    reader.open(COURSE)
    context.close()
    assert not [error for error in reader.errors if "progress" in error]


def test_without_javascript_nothing_is_dead(browser, site):
    """A quiz is a question, options and a folded answer, without any control."""
    context = browser.new_context(java_script_enabled=False)
    reader = Reader(context.new_page(), site.as_uri())
    page = reader.open(PAGE)
    assert page.locator(".quiz :is(input, button)").count() == 0
    details = reader.quiz("ch4_device").locator("details")
    assert not details.get_by_text("Right.").is_visible()
    details.locator("summary").press("Enter")
    assert details.get_by_text("Right.").is_visible()
    reader.open(NOTEBOOK)
    assert page.locator(".exercise-help input").count() == 0
    reader.open(COURSE)
    cells = page.locator(".progress-box [data-progress]").all_inner_texts()
    assert all(text.isdecimal() for text in cells)
    assert page.locator(".progress-box button").count() == 0
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_verdicts_can_be_read(empty_tab, reader, served, theme):
    """Every text of an answered quiz has a contrast of 4.5 : 1, and fits a phone."""
    empty_tab(390, 844, served, color_scheme=theme)
    reader.open(PAGE)
    name = "ch4_rank_or_local"
    for index in (0, 1):
        reader.quiz(name).locator("input").nth(index).check()
    reader.press("Enter")
    reader.solve("ch4_device")
    reader.quiz(name).locator("summary").click()
    reader.quiz("ch4_global_batch").get_by_role("textbox").fill("7")
    reader.press("Enter")
    for quiz in (name, "ch4_device", "ch4_global_batch"):
        ratios = reader.quiz(quiz).evaluate(CONTRAST)
        assert len(ratios) > 5
        assert [(ratio, text) for ratio, text in ratios if ratio < 4.5] == []
        box = reader.quiz(quiz).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
