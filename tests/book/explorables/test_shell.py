"""What the shell promises for every explorable: drawing first, no jumps, a link."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from allranks.base.paths import ROOT

FIGURE = re.compile(r"^```\{explorable\} (\w+)$", re.MULTILINE)
PAGES = {  # where each explorable is shown
    name: f"book/{page.stem}"
    for page in sorted(ROOT.glob("book/*.md"))
    for name in FIGURE.findall(page.read_text("utf8"))
}


def place(locator) -> dict:
    """Return where an element is, in px of the window."""
    return locator.bounding_box()


# How far below the figure's top its drawing and its form are. The drawing may stick to
# the top of the window, but its place in the page is what must not change.
LAYOUT = """box => {
    const stage = box.querySelector(".x-stage");
    stage.style.position = "static";
    const top = box.querySelector(".x").getBoundingClientRect().top;
    const far = ["svg, .x-stage .x-cells", ".x-form"].map(
        (one) => box.querySelector(one).getBoundingClientRect().top - top);
    stage.style.position = "";
    return far; }"""


def layout(x) -> list[float]:
    """Return where the drawing and the form are within the figure, in px."""
    return x.box.evaluate(LAYOUT)


@pytest.mark.parametrize(("name", "page"), [*PAGES.items()], ids=list(PAGES))
def test_what_holds_for_every_explorable(explore, name, page):
    """On a phone, on a page that is loaded once for all of it, and on a laptop."""
    x = explore(page, name, asked=True)
    the_drawing_comes_first_and_fits(x)
    a_question_is_about_what_the_figure_shows(x)
    for asked in x.box.get_by_role("button", name="Just show me").all():
        asked.click()
    x.unfold()
    what_a_finger_touches_is_large_enough(x)
    nothing_moves_while_a_reader_changes_it(x)
    no_word_lies_on_another(x)
    x.page.set_viewport_size({"width": 1280, "height": 800})
    x = explore(page, name, asked=True, unfold=False)
    the_drawing_is_half_of_its_frame_and_both_fit_a_laptop(x)


def the_drawing_comes_first_and_fits(x) -> None:
    """Check that it begins above all controls, at the figure's top, in its width."""
    above, form = layout(x)
    drawing = place(x.box.locator(".x-stage svg, .x-cells").first)
    box = place(x.box)
    assert above < 110
    assert above + drawing["height"] <= form + 1
    assert drawing["width"] > 0.85 * box["width"]
    assert drawing["x"] + drawing["width"] <= box["x"] + box["width"]


def what_a_finger_touches_is_large_enough(x) -> None:
    """Check that each control outside of the drawing is 44 px high, or its label is."""
    small = x.box.evaluate(
        """box => [...box.querySelectorAll(
            "button, select, input, summary, .x-say")].filter(one => {
                const { width, height } = one.getBoundingClientRect();
                const narrow = width < 43.5 && one.type !== "checkbox";
                return height && (height < 43.5 || narrow);
            }).map(one => one.outerHTML.slice(0, 90))"""
    )
    assert not small


def nothing_moves_while_a_reader_changes_it(x) -> None:
    """Check that the drawing keeps its height: what a finger is on stays there."""
    first, before, changes = layout(x), x.box.inner_html(), 0
    sliders = x.box.locator("input.x-slider:visible, .x-step input:visible")
    for number in range(sliders.count()):
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            slider = sliders.nth(number)  # one step less may leave a single one
            if not slider.count():
                break
            slider.focus()
            x.page.keyboard.press(key)
            changes += 1 if x.box.inner_html() != before else 0
            now = layout(x)
            assert now == pytest.approx(first, abs=1), (number, key)
        if x.button("Reset").count():  # it is hidden in the first state
            x.press("Reset")
    assert changes or not sliders.count()


# Pairs of words in the drawing that lie on each other, with each slider at both ends
# and each choice taken in turn.
ON_EACH_OTHER = """async box => {
    const found = new Set();
    const all = () => [...box.querySelectorAll("input.x-slider, select")];
    const look = () => {
        const texts = [...box.querySelectorAll(".x-stage svg text")]
            .filter(one => one.textContent.trim() && one.checkVisibility())
            .map(one => [one.textContent, one.getBoundingClientRect()]);
        texts.forEach(([words, a], i) => texts.slice(i + 1).forEach(([more, b]) => {
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 1.5 && high > 4) found.add(`${words} | ${more}`);
        }));
    };
    look();
    for (let i = 0; i < all().length; i++) {
        const { value, options, min, max } = all()[i];
        const values = options ? [...options].map(one => one.value) : [min, max];
        for (const next of [...values, value]) {
            all()[i].value = next;
            all()[i].dispatchEvent(new Event("input", { bubbles: true }));
            all()[i].dispatchEvent(new Event("change", { bubbles: true }));
            await new Promise(requestAnimationFrame);
            look();
        }
    }
    return [...found];
}"""


def no_word_lies_on_another(x) -> None:
    """Check both ends of each slider, and each choice."""
    assert not x.box.evaluate(ON_EACH_OTHER)


# Change a figure by its own controls until what it says is another: a number of the
# sentence, else the first slider, list or rank.
SETTLED = """() => {
    const now = performance.now();
    if (window.was !== location.href) [window.was, window.since] = [location.href, now];
    return now - window.since > 1000;
}"""
CHANGE = """box => {
    const words = () => box.querySelector(".x-summary").textContent, before = words();
    const all = (those) => [...box.querySelectorAll(those)];
    const send = (one, event) => one.dispatchEvent(event);
    const up = new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true });
    const other = (list) => {
        list.selectedIndex = (list.selectedIndex + 1) % list.options.length;
        send(list, new Event("change", { bubbles: true }));
    };
    const slide = (slider) => {
        slider.value = slider.value > 500 ? 0 : 1000;
        send(slider, new Event("input", { bubbles: true }));
    };
    const ways = [
        ...all(".x-say").map(one => () => send(one, up)),
        ...all(".x-tools > .x-field select").map(one => () => other(one)),
        ...all(".x-tools > .x-field .x-slider").map(one => () => slide(one)),
        ...all(".x-stage .x-press").map(one => () =>
            send(one, new MouseEvent("click", { bubbles: true }))),
    ];
    return ways.some(way => { way(); return words() !== before; });
}"""
FIRM = {"arrivals"}  # its question does not depend on what stands in the figure


def a_question_is_about_what_the_figure_shows(x) -> None:
    """Check that after a change it is asked anew or taken back, and leave it open."""
    ask, summary = x.box.locator(".x-ask"), x.box.locator(".x-summary")
    first = ask.inner_text()
    x.press("Just show me")
    answered = ask.inner_text()
    assert "The answer: " in answered and summary.is_visible()
    assert x.box.evaluate(CHANGE)
    if x.name in FIRM:
        assert ask.inner_text() == answered
        x.press("Reset")
        return
    assert "The answer" not in ask.inner_text() and summary.is_visible()
    x.press("Back to the question")
    assert ask.inner_text() == answered
    assert x.box.evaluate(CHANGE)
    x.press("Ask me about this one")
    assert not summary.is_visible() and "The answer" not in ask.inner_text()
    # It is the question that a link to this state asks, computed for it.
    again = ask.inner_text()
    x.page.wait_for_function(SETTLED)  # the address follows what was changed last
    assert f"{x.name}." in x.page.url
    x.page.evaluate("localStorage.clear()")
    x.page.reload()
    assert ask.inner_text() == again
    x.press("Reset")
    assert summary.is_visible() and "You changed the figure" in ask.inner_text()
    x.press("Ask me about this one")
    assert ask.inner_text() == first


def test_a_number_stays_under_the_finger_that_changes_it(explore):
    """The verdict gives way to one line, but not before the finger is up."""
    x = explore("book/ch5_ddp", "buckets", asked=True)
    x.press("Just show me")
    number = x.box.locator(".x-say").first
    number.scroll_into_view_if_needed()
    before = place(number)
    x.page.mouse.move(before["x"] + before["width"] / 2, before["y"] + 22)
    x.page.mouse.down()
    x.page.mouse.move(before["x"] + before["width"] / 2 + 40, before["y"] + 22)
    assert "You changed the figure" in x.box.locator(".x-ask").inner_text()
    assert place(number)["y"] == pytest.approx(before["y"], abs=1)
    x.page.mouse.up()
    assert x.box.locator(".x-words").evaluate("one => one.style.minHeight") == ""


def test_what_a_figure_says_covers_no_answer_on_a_phone(explore):
    """It stays in view only while something is dragged."""
    x = explore("book/ch6_model_parallel", "pipelines", asked=True)
    x.press("Just show me")
    x.box.evaluate("box => scrollBy(0, box.getBoundingClientRect().top - 60)")
    seen = x.box.evaluate(
        """box => [...box.querySelector(".x-verdict").getClientRects()].every(
            ({ left, top, height }) => box.querySelector(".x-ask").contains(
                document.elementFromPoint(left + 5, top + height / 2)))"""
    )
    assert seen


def the_drawing_is_half_of_its_frame_and_both_fit_a_laptop(x) -> None:
    """Check it in a column of 768 px, at most 700 px high: open, answered, changed."""
    for press in (None, "Just show me"):
        if press:
            x.press(press)
        frame, stage = (
            place(x.box.locator(one))["height"] for one in (".x", ".x-stage")
        )
        assert frame <= 700 and stage >= frame / 2, press
    assert x.box.evaluate(CHANGE)
    assert place(x.box.locator(".x"))["height"] <= 700
    if x.name not in FIRM:  # its words, and beside them its buttons
        boxes = [place(one) for one in x.box.locator(".x-changed > *").all()]
        middles = [box["y"] + box["height"] / 2 for box in boxes]
        assert len(middles) == 3 and max(middles) - min(middles) < 3


@pytest.mark.parametrize("width", [1280, 390])
def test_no_summary_is_cut(explore, width):
    """However much a figure has to say, all of it is in sight, and its room stays."""
    x = explore("book/ch5_ddp", "buckets")
    x.page.set_viewport_size({"width": width, "height": 800})
    summary = x.box.locator(".x-summary")
    summary.evaluate("one => { one.textContent = 'all of it '.repeat(60); }")
    assert summary.evaluate("one => one.scrollHeight <= one.clientHeight + 1")
    assert summary.evaluate("one => getComputedStyle(one).overflowY") == "visible"


def test_the_room_of_a_summary_does_not_grow_by_itself(explore):
    """Also where a host counts no padding into a height, as JupyterLab does."""
    x = explore("book/ch4_ranks", "topology")
    x.page.add_style_tag(content="* { box-sizing: content-box; }")
    summary, heights = x.box.locator(".x-summary"), set()
    for width in 390, 380, 390, 380:
        x.page.set_viewport_size({"width": width, "height": 844})
        for _ in range(3):
            x.box.evaluate(CHANGE)
        heights.add(place(summary)["height"])
    lines = summary.evaluate("one => one.style.getPropertyValue('--x-tallest')")
    assert max(heights) <= float(lines.removesuffix("px")) + 1


def test_the_address_is_the_picture(explore):
    """What a reader changed is in the address: a link or a reload shows just that."""
    x = explore("book/ch5_ddp", "buckets")
    first = x.summary
    x.fill("Ranks, W", 64)
    x.field("Model").select_option("mlp")
    x.page.wait_for_url(re.compile("buckets.model"))
    query = parse_qs(urlsplit(x.page.url).query)
    assert query == {"buckets.world_size": ["64"], "buckets.model": ["mlp"]}
    changed = x.summary
    assert changed != first and changed.startswith("64 ranks")
    x.page.reload()
    assert x.summary == changed
    x.press("Reset")
    x.page.wait_for_url(re.compile(r"\.html$|#"))
    assert x.summary == first
    for wrong in ("world_size=0", "world_size=x", "tflops=null", "nonsense=1"):
        x.page.goto(f"{x.page.url.split('?')[0].split('#')[0]}?buckets.{wrong}")
        assert x.summary == first


def test_a_number_in_the_sentence_is_dragged(explore):
    """Mouse and arrow keys change it, and a screen reader hears what it is."""
    x = explore("book/ch5_ddp", "buckets")
    number = x.box.locator(".x-say").first
    assert number.get_attribute("aria-valuetext") == "8"
    x.drag(number, 60)
    dragged = int(number.inner_text())
    assert dragged > 8 and x.summary.startswith(f"{dragged} ranks")
    x.page.mouse.move(300, 300)
    assert int(number.inner_text()) == dragged  # it was let go
    number.focus()
    x.page.keyboard.press("Home")
    x.page.keyboard.press("ArrowUp")
    assert number.inner_text() == "2" and x.summary.startswith("2 ranks")
    assert number.get_attribute("aria-valuenow") == "2"


def test_a_part_of_the_drawing_is_dragged(explore):
    """A handle sets bucket_cap_mb; the focus stays on it while it moves."""
    x = explore("book/ch5_ddp", "buckets")
    handle = x.box.get_by_role("slider", name="bucket_cap_mb, the handle")
    handle.focus()
    x.page.keyboard.press("ArrowLeft")
    low = int(handle.get_attribute("aria-valuenow"))
    x.page.keyboard.press("ArrowLeft")  # it is another element now, and has the focus
    assert low < 25 and int(handle.get_attribute("aria-valuenow")) < low
    x.drag(handle, 60)
    assert int(handle.get_attribute("aria-valuenow")) > 25
    assert not x.error


def test_a_question_hides_the_answer_until_it_is_answered(explore):
    """The answer is computed; it is remembered, and nothing is asked twice."""
    x = explore("book/ch5_ddp", "buckets", asked=True)
    summary, veiled = x.box.locator(".x-summary"), x.box.locator(".x-answer").first
    assert not summary.is_visible() and not veiled.is_visible()
    guess = x.box.get_by_role("slider", name="your guess: when all_reduce begins")
    guess.press("Home")  # with backward
    x.press("This is my guess")
    assert guess.count() == 0 and summary.is_visible() and veiled.is_visible()
    verdict = x.box.locator(".x-verdict").inner_text()
    assert verdict.startswith(
        "You guessed that 40.5 ms hide. The answer: “24.2 ms of it”"
    )
    assert "21.2 ms" in verdict and "21.2 ms of it is exposed" in x.summary
    x.page.reload()
    expect(summary).to_be_visible()
    assert x.box.locator(".x-options").count() == 0
    assert x.box.locator(".x-verdict").inner_text() == verdict


def test_what_changes_glides_unless_a_reader_wants_no_motion(explore):
    """Shapes move for 300 ms; with reduced motion they are there at once."""
    for motion, moves in (("no-preference", True), ("reduce", False)):
        x = explore("book/ch5_ddp", "buckets", reduced_motion=motion)
        x.page.wait_for_timeout(200)  # a change that follows at once is not animated
        running = x.box.evaluate(
            """box => {
                const field = box.querySelector("input.x-slider");
                field.value = 700;
                field.dispatchEvent(new Event("input"));
                return box.getAnimations({ subtree: true }).filter(
                    one => one.effect.getTiming().duration === 300).length; }"""
        )
        assert (running > 5) == moves
        assert x.box.locator(".x-ghost").count() > 5  # where the buckets were before


def test_the_picture_can_be_taken_along(explore):
    """PNG and SVG are those of the drawing, and stand alone."""
    x = explore("book/ch5_ddp", "buckets")
    x.box.locator(".x-share > summary").press("Enter")
    with x.page.expect_download() as saved:
        x.press("Save as PNG")
    data = saved.value.path().read_bytes()
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    drawing = place(x.box.locator(".x-stage svg").first)
    assert data[:4] == b"\x89PNG" and len(data) > 4000
    assert (width, height) == tuple(2 * round(drawing[d]) for d in ("width", "height"))
    x.page.evaluate("navigator.clipboard.writeText = t => { window.copied = t; }")
    x.press("Copy as SVG")
    x.box.get_by_text("SVG copied").wait_for()
    svg = x.page.evaluate("copied")
    assert svg.startswith("<svg") and "var(" not in svg and "exposed: 21.2 ms" in svg
