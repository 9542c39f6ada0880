"""Ranks have colors that everybody can tell apart, and pages copy and print well."""

import colorsys
import re
from itertools import combinations, product

import pytest

from allranks.base.paths import ROOT
from allranks.base.svg import DARK, HUES, LIGHT
from allranks.topics.pipelines.picture import DEPTH

CSS = (ROOT / "book" / "_static" / "book.css").read_text("utf8")
# How color-blind readers see, as a matrix on linear RGB.
# Source: Machado, Oliveira and Fernandes, IEEE TVCG 2009.
EYES = {
    "all": [(1, 0, 0), (0, 1, 0), (0, 0, 1)],
    "no red cones": [
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ],
    "no green cones": [
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ],
    "no blue cones": [
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ],
}
# Targets below 44 px, but for links in text, and boxes within their labels.
SMALL = """() => [...document.querySelectorAll(`main :is(button, summary, input, select)
    , .map-card a, .bd-header-article :is(button, label)`)]
  .filter(e => !["radio", "checkbox", "range", "file"].includes(e.type))
  .map(e => [e.getBoundingClientRect().height, e.className, e.textContent.slice(0, 30)])
  .filter(([height]) => 0 < height && height < 43.5)"""


def linear(color: str) -> list[float]:
    """Return ``#rrggbb`` as the light that a screen gives, in linear RGB."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def times(matrix, vector) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast ratio, from 1 to 21."""
    lights = [
        sum(times([(0.2126, 0.7152, 0.0722)], linear(color))) for color in (one, other)
    ]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def distance(one: str, other: str, eyes) -> float:
    """Return how different two colors look (Oklab): 100 is black against white."""
    to_cones = [
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    ]
    to_lab = [
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    ]
    labs = []
    for color in (one, other):
        seen = [min(1, max(0, c)) for c in times(eyes, linear(color))]
        labs.append(times(to_lab, [c ** (1 / 3) for c in times(to_cones, seen)]))
    return 100 * sum((a - b) ** 2 for a, b in zip(*labs, strict=True)) ** 0.5


def mixed(color: str, ground: str, depth: float) -> str:
    """Return a color of which ``depth`` % lie on a ground."""
    pairs = zip(bytes.fromhex(color[1:]), bytes.fromhex(ground[1:]), strict=True)
    parts = [round((depth * a + (100 - depth) * b) / 100) for a, b in pairs]
    return f"#{bytes(parts).hex()}"


def variables(theme: str) -> dict[str, str]:
    """Return the colors that the style sheet sets for one theme."""
    dark = "".join(re.findall(r'html\[data-theme="dark"\] \{(.*?)\}', CSS, re.DOTALL))
    light = CSS.partition('html[data-theme="dark"]')[0]
    return dict(re.findall(r"(--[\w-]+): (#\w+);", dark if theme == "dark" else light))


def test_one_place_states_the_colors_of_ranks():
    """The style sheet repeats the colors that pictures take from base/svg.py."""
    for theme, colors in (("light", LIGHT), ("dark", DARK)):
        found = variables(theme)
        assert [found[f"--rank-{rank}"] for rank in range(8)] == colors, theme


@pytest.mark.parametrize(("theme", "colors"), [("light", LIGHT), ("dark", DARK)])
def test_ranks_are_legible_on_every_ground(theme, colors):
    """Ranks have a contrast of 4.5:1 on page and code, or 3:1 if no theme is known."""
    found = variables(theme)
    for name in ("background", "surface"):
        ground = found[f"--pst-color-{name}"]
        ground = f"#{ground[1:] * 2}" if len(ground) == 4 else ground
        for color in (*colors, found["--diff-in"], found["--diff-out"]):
            assert contrast(color, ground) >= 4.5, (color, name)
    for color in HUES:
        assert min(contrast(color, "#ffffff"), contrast(color, "#111111")) >= 3


@pytest.mark.parametrize(("theme", "colors"), [("light", LIGHT), ("dark", DARK)])
def test_digits_are_legible_on_every_piece_of_work(theme, colors):
    """A pipeline's boxes let as much of the page through as its ink needs: 4.5:1."""
    found = variables(theme)
    ground = found["--pst-color-background"].replace("#fff", "#ffffff")
    for color, depth in product(colors, DEPTH.values()):
        ink = found["--pst-color-text-base"]
        assert contrast(mixed(color, ground, depth), ink) >= 4.5, (color, depth)


def test_no_rank_shines_in_the_dark():
    """The first four fill a box alike bright: what shines would look like chosen."""
    found = variables("dark")
    fills = [mixed(c, found["--pst-color-background"], 22) for c in DARK[:4]]
    for one, other in combinations(fills, 2):
        assert contrast(one, other) < 1.15, (one, other)
    for one, other in combinations(DARK[:4], 2):
        assert contrast(one, other) < 1.4, (one, other)


@pytest.mark.parametrize(("theme", "depth"), [("light", 0.3), ("dark", 0.5)])
def test_words_are_legible_on_waiting(theme, depth):
    """Red, which is stronger on a dark ground, leaves the ink 4.5:1."""
    found = variables(theme)
    assert depth == 0.3 or f"--waiting-depth: {depth};" in CSS
    ground = found["--pst-color-background"].replace("#fff", "#ffffff")
    box = mixed(found["--waiting"], ground, 100 * depth)
    assert contrast(box, found["--pst-color-text-base"]) >= 4.5


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_ranks_differ_for_color_blind_readers(colors, eyes):
    """Any two colors differ; neighbors and the first four differ clearly."""
    for i, j in combinations(range(8), 2):
        near = j - i in (1, 7) or j < 4
        apart = distance(colors[i], colors[j], EYES[eyes])
        assert apart > (8 if near else 3.5), (i, j)


def test_nothing_in_a_figure_is_red_but_waiting():
    """No drawing names a red of its own; a rank's hue is far from it, light or dark."""
    folders = "base", "openings", "pictures", "topics"
    files = [p for f in folders for p in ROOT.glob(f"allranks/{f}/**/*")]
    texts = {
        p: p.read_text("utf8") for p in files if p.suffix in (".py", ".js", ".css")
    }
    found = {
        c.lower() for t in texts.values() for c in re.findall("#[0-9a-fA-F]{6}", t)
    }
    assert {c for c in found if is_red(c)} == {"#d0342c"}
    assert is_red(variables("light")["--waiting"]) and is_red("#c4556b")
    assert is_red(variables("dark")["--waiting"])


def test_what_one_takes_hold_of_has_no_ranks_hue():
    """Handles, thumbs and numbers to drag are ink: a blue is nearly rank 0's."""
    kit = (ROOT / "allranks/topics/kit/kit.css").read_text("utf8")
    assert "--x-mark: var(--x-ink);" in kit
    assert not re.search(r"pst-color-(link|primary)|jp-brand", kit)


def is_red(color: str) -> bool:
    """Tell whether a color is a red: within 16 degrees of it, and no gray."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
    return saturation > 0.3 and min(hue, 1 - hue) < 16 / 360


def test_what_lands_in_the_clipboard(browser, http):
    """Copying drops prompts and output of commands, and takes code as it stands."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.goto(f"{http}/book/ch5_ddp.html")

    def copy(selector: str) -> str:
        tab.locator(selector).first.click()
        tab.wait_for_selector('.copybtn[data-tooltip="Copied!"]')
        return tab.evaluate("navigator.clipboard.readText()")

    assert copy(".run-command .copybtn") == "python scripts/ch5_single.py"
    tab.wait_for_selector('.copybtn[data-tooltip="Copied!"]', state="detached")
    code = tab.locator(".highlight-diff pre").first.inner_text().rstrip("\n")
    assert "\n" in code and copy(".highlight-diff .copybtn") == code
    session = ">>> x = 1\n>>> for i in x:\n...     i\n1\n"
    ipython = "In [1]: x\nOut[1]: 2\nIn [2]: def f():\n   ...:     pass\n"
    for shown, copied in (
        (session, "x = 1\nfor i in x:\n    i"),
        (ipython, "x\ndef f():\n    pass"),
        ("$ ls\nfile\n$ pwd\n/\n", "ls\npwd"),
    ):
        tab.evaluate(
            "text => document.querySelector('.run-command pre').textContent = text",
            shown,
        )
        tab.wait_for_selector('.copybtn[data-tooltip="Copied!"]', state="detached")
        assert copy(".run-command .copybtn") == copied
    context.close()


def test_paper_shows_the_whole_page_and_nothing_else(empty_tab, http, served):
    """Print is white and unfolded, without menus; afterwards all is as before."""
    tab = empty_tab(1280, 720, served, color_scheme="dark")
    tab.goto(f"{http}/book/ch2_data_parallel.html")
    folded = tab.locator("article details:not([open])")
    before = folded.count()
    assert before > 1
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert folded.count() == 0
    assert tab.locator("html").get_attribute("data-theme") == "light"
    assert tab.locator("article h1").is_visible()
    for gone in (
        ".bd-sidebar-primary",
        ".bd-header-article",
        ".copybtn",
        ".headerlink",
    ):
        assert not tab.locator(gone).first.is_visible(), gone
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folded.count() == before
    assert tab.locator("html").get_attribute("data-theme") == "dark"


def test_outputs_have_no_light_frame_in_the_dark(empty_tab, http, served):
    """A cell's output has no ground or padding, though the theme would add both."""
    tab = empty_tab(1280, 720, served, color_scheme="dark")
    tab.goto(f"{http}/notebooks/ch2_data_parallel.html")
    style = (
        "box => [getComputedStyle(box).backgroundColor, getComputedStyle(box).padding]"
    )
    looks = [box.evaluate(style) for box in tab.query_selector_all(".text_html")]
    assert len(looks) > 3
    assert {tuple(look) for look in looks} == {("rgba(0, 0, 0, 0)", "0px")}


def test_what_became_too_wide_can_be_scrolled_by_keyboard(empty_tab, http, served):
    """A box that becomes too narrow gets the keyboard's focus, and loses it again."""
    tab = empty_tab(1280, 800, served)
    tab.goto(f"{http}/notebooks/ch2_data_parallel.html")
    tab.locator(".predict-all").click()
    tab.evaluate(
        "document.querySelectorAll('.x details').forEach(one => { one.open = true; })"
    )
    box = tab.locator(".x-scroll:has(table)").first.element_handle()
    reachable = "([box, yes]) => box.hasAttribute('tabindex') === yes"
    for width, yes in (("", False), ("100px", True), ("", False)):
        box.evaluate("(box, width) => { box.style.width = width }", width)
        tab.wait_for_function(reachable, arg=[box, yes])  # sizes are told a frame later


def test_the_section_being_read_is_marked(empty_tab, http, served):
    """\"On this page\" follows the reader, and previous and next change the page."""
    tab = empty_tab(1280, 800, served)
    tab.goto(f"{http}/book/ch5_ddp.html")
    link = tab.locator("nav.page-toc .nav-link").nth(4)
    marked = 'nav.page-toc .nav-link[aria-current="true"]'
    link.click()
    tab.locator(marked, has_text=link.inner_text()).wait_for()
    assert tab.locator(marked).count() == 1
    tab.set_viewport_size({"width": 1280, "height": 300})  # less than the list needs
    last = tab.locator("nav.page-toc .nav-link").last.element_handle()
    low = "e => e.closest('.bd-sidebar-secondary').clientHeight < innerHeight"
    tab.wait_for_function(low, arg=last)  # the list's own height follows a frame later
    end = "e => { scrollTo(0, 1e6); return e.ariaCurrent === 'true'; }"
    tab.wait_for_function(end, arg=last)
    assert last.evaluate("e => e.getBoundingClientRect().bottom <= innerHeight")
    assert not last.evaluate(
        """e => {
            e.closest('.bd-sidebar-secondary').scrollTop = 0; // until the next scroll
            return e.getBoundingClientRect().bottom <= innerHeight;
        }"""
    )
    title = tab.title()
    tab.locator("a.right-next").click()
    assert tab.title() != title
    tab.locator("a.left-prev").click()
    assert tab.title() == title


def test_a_deep_link_lands_at_once(empty_tab, http, served):
    """The page does not scroll by, and the heading is not below the page's header."""
    tab = empty_tab(1280, 720, served, reduced_motion="no-preference")
    tab.goto(f"{http}/book/app_glossary.html")
    tab.evaluate("[...document.querySelectorAll('dt')].at(-1).scrollIntoView()")
    assert tab.evaluate("scrollY") > 2000  # at once, not after 20,000 px of motion
    last = tab.locator("dt[id]").last.get_attribute("id")
    tab.goto(f"{http}/book/app_glossary.html#{last}")
    header = tab.locator(".bd-header-article").bounding_box()
    at = tab.locator(f"[id='{last}']").bounding_box()
    assert header["y"] + header["height"] <= at["y"] < tab.viewport_size["height"]


def test_a_finger_hits_what_it_means(browser, http):
    """Where nothing can hover, copy buttons are there, and all targets large enough."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    tab = context.new_page()
    tab.goto(f"{http}/book/ch5_ddp.html")
    for button in tab.locator(".copybtn:visible").all()[:5]:
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 44
        assert button.evaluate("b => getComputedStyle(b).opacity") == "1"
    for page in "intro", "ch4_ranks", "app_clinic", "app_course":
        tab.goto(f"{http}/book/{page}.html")
        small = tab.evaluate(SMALL)
        assert not small, (page, small)
    context.close()
