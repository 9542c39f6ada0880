"""The pages' pictures are drawn from what runs printed, and say what it says.

Every picture of every page is drawn here with its real source, and with a source that
is broken: then it refuses, and the build fails.
"""

import doctest
import inspect
import re
from importlib import import_module

import pytest

from allranks import pictures
from allranks.base.picture import Picture
from allranks.base.svg import ON_WRONG, RANK_COLORS, WAITING, WRONG
from allranks.openings.sheet import GROUND, MUTED
from allranks.pictures import chart
from book._ext.runs import picture as directive
from tests.allranks.pictures.drawing import USES, draw, source

MODULES = [
    import_module(f"{pictures.__name__}.{path.stem}")
    for path in sorted(directive.FOLDER.glob("[!_]*.py"))
    if path.stem != "chart"
]
SMALLEST = 12  # px, of a letter
COLORS = {*RANK_COLORS, WAITING, WRONG, ON_WRONG, MUTED, GROUND, "currentColor", "none"}


@pytest.mark.parametrize(("name", "kind", "text"), USES)
def test_a_picture_says_its_numbers_in_a_column_and_on_a_phone(name, kind, text):
    """Both drawings have a text for screen readers, large letters, and our colors."""
    picture = draw(name, *([source(kind, text)] if kind else []))
    title, _, alt = picture.text.partition("\n")
    assert title and re.search(r"\d", alt) and len(alt) > 40
    svgs = re.findall(r"<svg.*?</svg>", picture.html, re.S)
    assert [re.search(r'viewBox="-1 -1 (\d+)', svg)[1] for svg in svgs] == [
        "754",
        "354",
    ]
    for svg in svgs:
        assert svg.count("aria-label=") == 1 and 'role="img"' in svg
        assert min(map(int, re.findall(r'font-size="(\d+)"', svg))) >= SMALLEST
        used = re.findall(
            r"(?:fill|stroke):((?:var\([^)]*(?:\([^)]*\))?\))|[#\w]+)", svg
        )
        assert {*used} <= COLORS


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [use for use in USES if use[1] in ("output", "glue", "hang")],
)
def test_an_output_of_another_form_is_refused(name, kind, text):
    """The error says what the picture looked for, so that one can repair it."""
    for broken in ("", "$ python x\nall is different now: 3\n"):
        with pytest.raises(ValueError, match=r"\w{4}"):
            draw(name, broken)


def test_every_picture_is_on_a_page():
    """None is left over."""
    known = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and function.__module__ == module.__name__
        and inspect.signature(function).return_annotation is Picture
    }
    assert known == {name for name, *_ in USES}


@pytest.mark.parametrize(
    "module", [*MODULES, chart], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_hold(module):
    assert not doctest.testmod(module).failed
