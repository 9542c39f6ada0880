"""The {quiz} directive shows and refuses the right things; page and build agree."""

import doctest
import io
import json
import random
import re
import subprocess
from collections import Counter
from textwrap import dedent

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from allranks.base.paths import ROOT
from book._ext.quiz import directive, formula
from tests.book.quizzes import FENCE, NUMBERS, QUIZZES

PARTS = "site.mathml", "quiz.nodes", "quiz.directive"
EXTENSIONS = [f"book._ext.{part}" for part in PARTS]
SCRIPT = ROOT / "book" / "_static" / "quiz.js"

RADIO = """
```{quiz}
:name: ch0_radio

How many ranks has `torchrun`, with $W = 2$?

- ( ) *One*

  See [a thread](https://example.org/1).

- (x) `2`

  As $W$ says.
```
"""
NUMBER = """
```{quiz}
:name: ch0_number
:values: nodes = 2..5; gpus = 6, 8
:unit: ranks

{nodes} machines, `--nproc-per-node {gpus}`: how many ranks?

- = nodes * gpus

  One for each of {gpus} GPUs.

- != gpus

  {this} is one machine's, not {answer}.
```
"""


@pytest.fixture
def build(tmp_path):
    """Return a function that builds pages: (the first one's text, the warnings)."""

    def build(*pages: str, builder: str = "html") -> tuple[str, str]:
        source = tmp_path / "source"
        source.mkdir(exist_ok=True)
        for name, text in zip(("index", "other"), pages, strict=False):
            (source / f"{name}.md").write_text(f"# T\n{dedent(text)}", "utf8")
        warnings = io.StringIO()
        settings = {
            "extensions": ["myst_parser", *EXTENSIONS],
            "myst_enable_extensions": ["dollarmath", "tasklist"],
            "html_math_renderer": "mathml",
            "html_theme": "basic",
            "exclude_patterns": ["other.md"] if len(pages) < 2 else [],
            "project": "t",
            "suppress_warnings": ["toc"],
        }
        folders = (source, None, tmp_path / builder, tmp_path / "trees")
        with docutils_namespace():
            app = Sphinx(*folders, builder, settings, status=None, warning=warnings)
            app.build()
        names = ("index.html", "index.xhtml", "index.txt", "t.tex")
        built = [tmp_path / builder / name for name in names]
        built = next(path for path in built if path.is_file())
        text = re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue())
        return built.read_text("utf8"), text

    return build


def test_a_quiz_is_a_question_with_a_folded_answer(build):
    """Markdown works everywhere, and there is no control that needs a script."""
    html, warnings = build(RADIO)
    assert not warnings
    quiz = BeautifulSoup(html, "html.parser").select_one("#quiz-ch0_radio")
    assert quiz["data-quiz"] == "ch0_radio"
    assert not quiz.select("input, button, form")
    assert quiz.select_one(".quiz-head").text == "Quiz 1 of 1"
    assert quiz.select_one(".quiz-question code").text == "torchrun"
    assert quiz.select_one(".quiz-question math")
    assert [o["class"] for o in quiz.select(".quiz-options > li")] == [
        ["quiz-wrong"],
        ["quiz-right"],
    ]
    assert quiz.select_one(".quiz-options em").text == "One"
    reasons = quiz.select("details .quiz-reasons > li")
    assert [r.text.split()[0] for r in reasons] == ["Wrong.", "Right."]
    assert reasons[0].a["href"] == "https://example.org/1"
    assert "quiz.js" in html


def test_a_number_quiz_marks_what_changes(build):
    """One draw is shown, and each value carries its name, also inside code."""
    html, warnings = build(NUMBER)
    assert not warnings
    quiz = BeautifulSoup(html, "html.parser").select_one("#quiz-ch0_number")
    drawn = json.loads(quiz["data-numbers"])["drawn"]
    shown = {v["data-value"]: v.text for v in quiz.select("[data-value]")}
    right = drawn["nodes"] * drawn["gpus"]
    assert shown == {
        **{name: str(value) for name, value in drawn.items()},
        "result_0": str(right),
        "equals_0": "=",
        "result_1": str(drawn["gpus"]),
        "about_1": "",
    }
    assert quiz.select_one("code [data-value=gpus]")
    answer = quiz.select_one("details > p").text
    assert answer == f"{right} = {drawn['nodes']} × {drawn['gpus']}"
    slip = quiz.select_one(".quiz-slips li").text
    assert slip == f"{drawn['gpus']}? {drawn['gpus']} is one machine’s, not {right}."
    assert json.loads(quiz["data-numbers"])["rounded"] is False


MEAN = """
```{quiz}
:name: ch0_mean
:values: size = 100, 200, 400; time = 7, 9, 11
:unit: GB/s
:digits: 1

{size} MB in {time} ms: how fast is that?

- = size [MB] * 10000 / (10000 * time [ms])

  One MB per ms is one GB/s.

- != time / size

  {this} is upside down, not {answer}.
```
"""


@pytest.mark.parametrize("builder", ["html", "singlehtml", "text"])
def test_what_is_rounded_says_so_and_units_stand_in_the_answer(build, builder):
    """A page, and paper, have ≈ where a number is rounded, and the formula's units."""
    slip = "2 * size / time"
    text, warnings = build(MEAN.replace("time / size", slip), builder=builder)
    assert not warnings
    if builder != "text":
        text = BeautifulSoup(text, "html.parser").select_one(".quiz-answer").text
    text = " ".join(text.replace("*", "").split())
    size, time = re.search(r"(\d+) MB × 10,000 / \(10,000 × (\d+) ms\)", text).groups()
    fast = int(size) / int(time)
    assert f"{fast:.1f} GB/s ≈ {size} MB × 10,000 / (10,000 × {time} ms)" in text
    assert f"≈ {2 * fast:.1f}? {2 * fast:.1f} is upside down, not {fast:.1f}." in text


def test_a_quiz_that_asks_for_rounding_says_how_far(build):
    """The form can tell how many places it wants, if any answer is rounded."""
    html, _ = build(MEAN.replace("time / size", "2 * size / time"))
    box = BeautifulSoup(html, "html.parser").select_one("#quiz-ch0_mean")
    assert json.loads(box["data-numbers"])["rounded"] is True


def radio(options: str, head: str = ":name: ch0_x\n\nWhy?\n\n") -> str:
    """Return a quiz with these options."""
    return f"```{{quiz}}\n{head}{options}\n```\n"


GOOD = "- (x) a\n\n  b\n\n- ( ) c\n\n  d\n"


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (radio(GOOD, "\nWhy?\n\n"), "quiz without a name: it needs a :name:"),
        (radio(GOOD, ":name: A-b\n\nWhy?\n\n"), "it needs a :name: of small letters"),
        (radio(GOOD, ":name: ch0_x\n\n"), "quiz ch0_x: it has no question"),
        (radio(GOOD.replace("(x)", "( )")), "it has no right options: mark one (x)"),
        (radio(GOOD.replace("( )", "(x)")), "it has 2 right options: mark one (x)"),
        (radio(GOOD.replace("(", "[").replace(")", "]").replace("x", " ")), "[x] and"),
        (radio(GOOD.replace("( )", "[ ]")), "its options mix (), [] and formulas"),
        (radio(GOOD.replace("c\n", "a\n")), "two options are the same"),
        (radio("- (x) a\n\n  b\n"), "it needs two options or more"),
        (radio("Just text."), "it needs two options or more"),
        (radio(GOOD.replace("  d", "")), "the option `c` has no reason below it"),
        (radio(GOOD + "\nand more"), "`and more` belongs to no option"),
        (radio(GOOD) + radio(GOOD), "index has a quiz of this name, line 2"),
        (NUMBER.replace("nodes * gpus", "nodes *"), "formula `nodes *` is broken"),
        (NUMBER.replace("nodes * gpus", "nods * gpus"), "uses nods, which :values:"),
        (NUMBER.replace("* gpus", "* open('x')"), "may hold numbers, names, + -"),
        (NUMBER.replace("* gpus", "/ (gpus - 8)"), "a formula fails for some"),
        (NUMBER.replace("!=", "="), "it needs one right formula, marked ="),
        (NUMBER.replace("!= gpus", "!= gpus * nodes"), "of 8 draws of :values: tell"),
        (NUMBER.replace("6, 8", "6"), "needs 2 to 60 numbers in `gpus = 6`"),
        (NUMBER.replace("6, 8", "1..900"), "needs 2 to 60 numbers"),
        (NUMBER.replace("{gpus}`", "8`"), "the question does not say what gpus is"),
        (NUMBER.replace("{this}", "{that}"), "{that} is none of its :values:"),
        (NUMBER.replace("`--n", "$--n").replace("}`", "}$"), "in a formula or a block"),
        (re.sub(":values:.*\n", "", NUMBER), "its formula needs :values:"),
        (MEAN, "0.07 would be shown as 0.1: add :digits:"),
        (MEAN.replace("size [MB]", "size[MB]"), "may hold numbers, names, + -"),
    ],
)
def test_a_wrong_quiz_is_one_sentence_with_file_and_line(build, page, complaint):
    """The build fails with a sentence that names the quiz and what to do."""
    _, warnings = build(page)
    problems = re.findall(r"^(\S+:\d+): ERROR: (.*)$", warnings, re.MULTILINE)
    assert [text for _, text in problems if complaint in text], warnings
    assert len(problems) == 1
    assert "Traceback" not in warnings


def test_a_name_belongs_to_one_quiz_of_the_book(build):
    """Two pages may not share a name, but a page that is read again keeps its own."""
    _, warnings = build(RADIO, RADIO)
    assert "has a quiz of this name" in warnings
    _, warnings = build(RADIO, NUMBER)
    assert "has a quiz of this name" not in warnings
    _, warnings = build("\n\n" + RADIO, NUMBER)
    assert "has a quiz of this name" not in warnings


# ---- The formulas, in Python and on the page

NAMES = {"a": [1, 7, 13], "b": [2, 5], "c": [0.5, 3]}
LEAVES = st.sampled_from(["a", "b", "c", "1", "4", "10"])
FORMULAS = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(["+", "-", "*", "/", "//", "%"]), part).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["max", "min"]), part, part).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        part.map(lambda text: f"-{text}"),
    ),
    max_leaves=6,
)


@given(FORMULAS, st.sampled_from([1, 7, 13]), st.sampled_from([2, 5]))
def test_a_formula_is_what_python_computes(text, a, b):
    """Evaluating a formula's tree gives what Python computes for its text."""
    values = {"a": a, "b": b, "c": 0.5}
    tree = formula.parse(text, values)
    try:
        expected = eval(text, {"max": max, "min": min}, values)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            formula.evaluate(tree, values)
        return
    assert formula.evaluate(tree, values) == expected


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a.b", "a[0]", "a if a else 1", "[a]", "'a'", "True",
             "a < 1", "ceil(a, 1)", "max(a)", "lambda: 1", "a; 1", "", "a == 1", "f(a)"]
)  # fmt: skip
def test_a_formula_is_arithmetic_and_nothing_else(text):
    """Anything else is refused in one sentence, and nothing is called."""
    with pytest.raises(ValueError, match="formula"):
        formula.parse(text, ["a"])


@pytest.mark.parametrize("module", [formula, directive])
def test_examples_in_docstrings_hold(module):
    """Every example in these modules gives what it says."""
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def on_the_page(work: str, given) -> list:
    """Return what some JavaScript gives for each input, with the page's ``quiz``."""
    from playwright._impl._driver import compute_driver_executable

    code = (
        f"const quiz = require({json.dumps(str(SCRIPT))});"
        "const given = JSON.parse(require('fs').readFileSync(0));"
        f"process.stdout.write(JSON.stringify(given.map((one) => {work})));"
    )
    node = compute_driver_executable()[0]
    command = [node, "-e", code]
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, timeout=60
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def plain(numbers: formula.Numbers, drawn: dict) -> dict:
    """Return what a page knows about a number quiz."""
    return {**vars(numbers), "drawn": drawn}


def test_the_page_computes_what_the_build_computes():
    """Python and JavaScript agree to the bit on all formulas, for hundreds of draws."""
    pick, cases = random.Random(0), []
    for numbers in NUMBERS.values():
        draws = numbers.draws()
        for values in pick.sample(draws, min(60, len(draws))):
            cases += [(t, values) for t in (numbers.right, *numbers.wrong)]
    assert len(cases) > 250
    results = on_the_page("quiz.evaluate(...one)", cases)
    for case, value in zip(cases, results, strict=True):
        assert value == formula.evaluate(*case), case


def test_what_a_quiz_displays_is_what_it_accepts():
    """In each variant of each quiz the numbers on show are judged as what they are.

    The answer that is displayed is right, each displayed slip is that slip, and no two
    are alike, in Python as on the page. So are the numbers before they are rounded.
    """
    cases = []
    for name, numbers in NUMBERS.items():
        for values in numbers.draws():
            texts = numbers.texts(values)
            results = numbers.results(values)
            given = [texts[f"result_{i}"] for i in range(len(results))]
            assert len(set(given)) == len(results), (name, values)
            for i, (text, result) in enumerate(zip(given, results, strict=True)):
                assert numbers.judge(values, float(text)) == i, (name, values, text)
                assert numbers.judge(values, result) == i, (name, values, result)
                is_rounded = float(text) != pytest.approx(result, abs=1e-9)
                assert (texts[f"about_{i}"] == "≈ ") == is_rounded, (name, values)
            cases.append((plain(numbers, values), values, given, texts))
    assert len(cases) > 250
    work = """[quiz.texts(one[0], one[1]),
        one[2].map((text) => quiz.judge(one[0], one[1], quiz.read(text)))]"""
    for case, (texts, found) in zip(cases, on_the_page(work, cases), strict=True):
        assert texts == case[3], case
        assert found == list(range(len(found))), case


def test_half_a_unit_of_the_last_digit_is_the_limit():
    """Rounded numbers are accepted as far as they are shown, and exact ones exactly."""
    one = formula.Numbers({"a": [16]}, ["/", "a", 7], [["/", "a", 4]], digits=2)
    values = {"a": 16}  # 16 / 7 = 2.2857..., 16 / 4 = 4
    given = {"2.29": 0, "2.2857": 0, "16/7": 0, "2.281": 0, "2.28": -1, "2.3": -1,
             "2.291": -1, "4": 1, "4.0": 1, "4.004": -1, "3.996": -1}  # fmt: skip
    cases = [(plain(one, values), values, text) for text in given]
    work = "[quiz.read(one[2]), quiz.judge(one[0], one[1], quiz.read(one[2]))]"
    for (text, verdict), (number, found) in zip(
        given.items(), on_the_page(work, cases), strict=True
    ):
        assert found == verdict == one.judge(values, number), text


@pytest.mark.parametrize(
    ("given", "is_rough"),
    [(2, True), (2.3, True), (2.2, True), (2.28, True), (3, False), (2.4, False),
     (2.27, False), (2.5, False)],
)  # fmt: skip
def test_an_answer_with_too_few_digits_is_no_slip(given, is_rough):
    """The page asks for more places if the answer was rounded too far, or cut off."""
    one = plain(formula.Numbers({"a": [16]}, ["/", "a", 7], ["a"], digits=2), {"a": 16})
    work = "quiz.rough(one[0], {a: 16}, one[1])"
    assert on_the_page(work, [(one, given)]) == [is_rough]


def test_every_operator_is_the_same_on_the_page():
    """All operators agree, also unused ones, and with negative numbers."""
    texts = [f"a {sign} b" for sign in ("+", "-", "*", "/", "//", "%")]
    texts += [
        "sqrt(a * a)",
        "2 ** b",
        "ceil(a / b)",
        "floor(a / b)",
        "max(a, b)",
        "min(a, b)",
        "-a",
    ]
    cases = [
        (formula.parse(text, "ab"), {"a": a, "b": b})
        for text in texts
        for a in (-7, -1, 0, 3, 7.5)
        for b in (-2, 1, 2, 2.5)
    ]
    results = on_the_page("quiz.evaluate(...one)", cases)
    for case, result in zip(cases, results, strict=True):
        assert result == formula.evaluate(*case), case


def test_fresh_numbers_are_others_and_tell_answers_apart():
    """200 draws of each quiz are allowed, never the current one, and judged right."""
    given = [plain(numbers, numbers.draws()[0]) for numbers in NUMBERS.values()]
    work = "Array.from({length: 200}, () => quiz.draw(one))"
    for numbers, one, draws in zip(
        NUMBERS.values(), given, on_the_page(work, given), strict=True
    ):
        assert all(draw in numbers.draws() for draw in draws)
        assert one["drawn"] not in draws
        assert len({json.dumps(draw) for draw in draws}) > 4
    work = """[one.right, ...one.wrong].map((tree) =>
        quiz.judge(one, one.drawn, quiz.evaluate(tree, one.drawn)))"""
    for one, found in zip(given, on_the_page(work, given), strict=True):
        assert found == list(range(1 + len(one["wrong"])))


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), (" 1,437 ", 1437), ("1 437", 1437), ("27 %", 27), ("27%", 27),
     ("0,27", 0.27), ("3/12", 0.25), ("24 ranks", 24), ("−3", -3), ("+3", 3),
     (".5", 0.5), ("1,234.5", 1234.5), ("", None), ("twelve", None), ("1.2.3", None),
     ("12 or 13", None), ("1/", None), ("1e3", 1000), ("1.5E−3 Ranks", 0.0015),
     ("4OO", None), ("400 KB", None), ("24 rank", None), ("1e", None)],
)  # fmt: skip
def test_numbers_as_people_write_them(text, value):
    """A reader may write a number in all these ways; anything else reads as null."""
    assert on_the_page('quiz.read(one, "ranks")', [text]) == [value]


def test_a_unit_may_be_written_up_to_its_per():
    """Of "bytes per token" the first word is enough, but not another one."""
    given = ["800 bytes", "800 bytes per token", "800 per token", "800 token"]
    work = 'quiz.read(one, "bytes per token")'
    assert on_the_page(work, given) == [800, 800, None, None]


# ---- The quizzes of the book


def test_each_chapter_has_five_quizzes_and_one_with_numbers():
    """Each has enough quizzes on its pages, and one of them is a number quiz."""
    chapters = {path.stem.partition("_")[0] for path in ROOT.glob("book/ch*.md")}
    count = Counter(quiz.chapter for quiz in QUIZZES)
    assert {chapter for chapter in chapters if count[chapter] < 5} == set()
    with_numbers = {quiz.chapter for quiz in QUIZZES if quiz.name in NUMBERS}
    assert with_numbers == chapters


def test_names_say_their_chapter():
    """Names begin with the chapter, not a position: progress is stored under them."""
    for quiz in QUIZZES:
        assert quiz.name.startswith(f"{quiz.chapter}_"), quiz.name


def test_quizzes_stand_where_their_matter_is():
    """No three quizzes follow each other without text between them."""
    for page in {quiz.page for quiz in QUIZZES}:
        text = (ROOT / "book" / f"{page}.md").read_text("utf8")
        marked = re.sub(r"\s+", "", FENCE.sub("QUIZ!", text))
        assert "QUIZ!" * 3 not in marked, page
