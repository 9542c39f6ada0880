"""Our Sphinx extensions show what they should, and a mistake fails the build."""

import ast
import doctest
import io
import json
import re
import sys
from collections import Counter
from html import unescape
from textwrap import dedent
from typing import ClassVar

import pytest
import yaml
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from allranks.base.paths import ROOT
from book import _ext
from book._ext.paper.readable import readable
from book._ext.runs import bench, records
from book._ext.site import fresh, mathml

PARTS = ["runs.run", "runs.bench", "runs.gpu", "chapters.chapter_diff", "site.lexers"]
PARTS += ["site.mathml", "clinic.specimen", "clinic.cases", "clinic.lists"]
PARTS += ["chapters.opening", "runs.picture", "runs.callouts"]


@pytest.fixture
def build(tmp_path):
    """Return a function that builds one page: (its HTML, the build's warnings)."""

    def build(page: str, **files: str) -> tuple[str, str]:
        source = tmp_path / "source"
        for name, text in {"index.md": f"# T\n\n{page}", **files}.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text), "utf8")
        warnings = io.StringIO()
        settings = {
            "extensions": ["myst_parser", *(f"book._ext.{part}" for part in PARTS)],
            "myst_enable_extensions": ["dollarmath"],
            "html_math_renderer": "mathml",
            "html_theme": "basic",
        }
        folders = (source, None, tmp_path / "out", tmp_path / "trees")
        with docutils_namespace():
            app = Sphinx(*folders, "html", settings, status=None, warning=warnings)
            app.build()
        return (tmp_path / "out" / "index.html").read_text("utf8"), warnings.getvalue()

    return build


HOME = ROOT / "book" / "_ext"
MODULES = {
    path.relative_to(HOME).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(HOME.rglob("*.py"))
}


def test_the_extension_sets_up_every_part_and_loads_no_module_twice(tmp_path):
    """Sphinx, tests and tools load each file under one name, in ``book._ext``."""
    (tmp_path / "index.rst").write_text("T\n=\n")
    folders = (tmp_path, None, tmp_path / "out", tmp_path / "trees")
    settings = {"extensions": ["book._ext"]}
    with docutils_namespace():
        app = Sphinx(*folders, "dummy", settings, status=None, warning=None)
    extension = app.extensions["book._ext"]
    assert extension.parallel_read_safe and extension.parallel_write_safe
    paths = [*map(str, MODULES.values())]
    files = {name: getattr(one, "__file__", None) for name, one in sys.modules.items()}
    ours = {name: file for name, file in files.items() if file in paths}
    assert ours.keys() >= {f"book._ext.{part}" for part in _ext.PARTS}
    assert [name for name in ours if not f"{name}.".startswith("book._ext.")] == []
    assert max(Counter(ours.values()).values()) == 1


def test_each_module_with_a_setup_is_a_part():
    """Each is listed: a page could not use the directives of a forgotten one."""
    found = {
        name
        for name, path in MODULES.items()
        for node in ast.parse(path.read_text("utf8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "setup"
    }
    assert found == {*_ext.PARTS, "__init__"}
    assert len(_ext.PARTS) == len({*_ext.PARTS})


def test_the_book_is_configured_with_the_one_extension():
    """It is found from the root, so its modules get the names that tests use."""
    sphinx = yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))["sphinx"]
    assert sphinx["local_extensions"] == {"book._ext": "."}
    assert sphinx["config"]["extensions"].count("book._ext") == 1


@pytest.mark.parametrize("name", MODULES)
def test_a_module_holds_one_idea(name):
    """No module is longer than 300 lines, the most that one idea may need."""
    assert len(MODULES[name].read_text("utf8").splitlines()) <= 300


OLD = "def setup():\n    return 1\n\n\ndef train():\n    return 0\n"
NEW = OLD.replace("return 0", "return 2").replace("return 1", "return 3")


def diff(options: str = "", old: str = "old.py") -> str:
    """Return a page's block that compares new.py with another file."""
    return f"```{{chapter-diff}} new.py\n:diff: {old}\n{options}\n```\n"


def words(html: str) -> str:
    """Return the text of a page."""
    return re.sub(r"<[^>]+>", "", html)


def test_diff_shows_what_changed_under_relative_names(build):
    """The whole diff is shown, without a path of the machine that built it."""
    html, warnings = build(diff(), **{"old.py": OLD, "new.py": NEW})
    assert not warnings
    for line in ("--- old.py", "+++ new.py", "-    return 0", "+    return 2"):
        assert line in words(html)
    assert "/source" not in html


def test_diff_of_one_function_leaves_the_others_out(build):
    """With :pyobject:, only that definition is compared."""
    html, _ = build(diff(":pyobject: train"), **{"old.py": OLD, "new.py": NEW})
    assert "+    return 2" in words(html)
    assert "return 3" not in words(html)


def test_diff_of_the_lesson_leaves_out_what_three_scripts_share(build):
    """:lesson: hides a function that three scripts share, but not one that two do."""
    shared, pair = "def refuse():\n    exit()\n\n\n", "def pair():\n    pass\n\n\n"
    files = {"old.py": OLD, "new.py": shared + pair + NEW}
    files |= {"a.py": shared + pair, "b.py": shared, "c.py": "def refuse():\n    1\n"}
    html, _ = build(diff(":lesson:"), **files)
    assert "+def pair" in words(html) and "+    return 2" in words(html)
    assert "refuse" not in words(html)


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (diff(old="gone.py"), "no such file: gone.py"),
        (diff(":pyobject: gone"), "no function or class named gone"),
        (diff(old="new.py"), "do not differ"),
        ("```{chapter-diff} new.py\n```\n", "needs :diff:"),
    ],
)
def test_a_diff_that_cannot_be_shown_fails_the_build(build, block, complaint):
    """A renamed script or function, or an empty diff, is reported."""
    _, warnings = build(block, **{"old.py": OLD, "new.py": NEW})
    assert complaint in warnings


def test_an_edit_of_a_script_rebuilds_the_page(build):
    """A page depends on both files of its diff."""
    build(diff(), **{"old.py": OLD, "new.py": NEW})
    html, _ = build(diff(), **{"old.py": OLD, "new.py": NEW + "\n\nLATER = 1\n"})
    assert "+LATER = 1" in words(html)


COMMAND = records.Command("torchrun scripts/x.py --epochs 2")
RECORD = f"book/_runs/{COMMAND.record}"
RUN = f"```{{run}} {COMMAND.line}\n```\n"


def test_run_shows_the_command_and_its_record(build):
    """The record stands below the command, and a rank's prefix has its color."""
    record = f"$ {COMMAND.line}\nexit 0\n[rank 1/2] loss 0.5\nplain\n"
    html, warnings = build(RUN, **{RECORD: record})
    assert not warnings
    assert f"$ {COMMAND.line}" in words(html)
    assert "[rank 1/2] loss 0.5\nplain" in words(html)
    assert '<span class="g g-Rank1">[rank 1/2]</span>' in html


def test_a_ranks_cell_is_colored_as_python(build):
    """Our lexer colors the lines below ``%%ranks``; IPython's leaves them plain."""
    html, _ = build("```ipython3\n%%ranks --on 0,2\nimport torch\n```\n")
    assert '<span class="kn">import</span>' in html
    html, _ = build("```ranks\nrank 3: tensor([1.])\nranks 0–2: None\n```\n")
    assert '<span class="g g-Rank3">rank 3</span>: tensor' in html


@pytest.mark.parametrize(
    "files",
    [
        {},
        {RECORD: f"$ {COMMAND.line}\nexit 1\nboom\n"},
        {RECORD: "$ torchrun scripts/y.py\nexit 0\n"},
    ],
    ids=["no record", "another exit code", "another command"],
)
def test_a_command_without_its_record_fails_the_build(build, files):
    """A command that was not run can't be published."""
    _, warnings = build(RUN, **files)
    assert "make notebooks records it" in warnings


def test_bench_puts_a_measured_figure_into_a_sentence(build):
    """A role takes a dotted path and a format; a directive names the machine."""
    data = """
        {"ddp": {"ratio": 0.9124, "steps": 40},
         "machine": {"date": "2026-01-01", "machine": "x86", "cores": 2, "torch": "2"}}
    """
    page = "{bench}`ddp.ratio:.2f` of {bench}`ddp.steps`\n\n```{bench-machine}\n```\n"
    html, warnings = build(page, **{bench.DATA: data})
    assert not warnings
    assert "0.91 of 40" in words(html)
    assert "2026-01-01: x86, 2 cores" in words(html)


EFFICIENCY = "allranks.topics.pipelines.picture.efficiency_plot"
PLOT = f"```{{bench-picture}} {EFFICIENCY} pipe.four\n```\n"


def test_bench_picture_draws_measured_figures(build):
    """The page holds the function's own SVG, drawn from the named part of the file."""
    four = '"num_stages": 4, "title": "T", "m2": {"sleep": 0.38, "busy": 0.22}'
    data = f'{{"pipe": {{"four": {{{four}}}}}}}'
    html, warnings = build(PLOT, **{bench.DATA: data})
    assert not warnings
    assert '<div class="text_html"><figure class="picture"' in html and "0.38" in html


@pytest.mark.parametrize(
    "page",
    [
        PLOT,
        PLOT.replace("efficiency_plot", "no_such_function"),
        PLOT.replace("allranks.", "nowhere."),
    ],
    ids=["not measured", "no function", "no module"],
)
def test_a_picture_that_cannot_be_drawn_fails_the_build(build, page):
    """A page can't be published without its picture."""
    _, warnings = build(page, **{bench.DATA: '{"pipe": {}}'})
    assert "ERROR" in warnings


PADDING = records.Command("python x.py")
PAGE_PICTURE = (
    "```{picture} ch9_data.padding\n:output: python x.py\nHalf *empty*.\n```\n"
)
SAID = """\
$ python x.py
exit 0
as they come: 0.50 of the positions are padding
in buckets: 0.07 of the positions are padding
packed: 0.03 of the positions are padding
"""


def test_picture_draws_what_a_run_printed(build):
    """The page holds both drawings, with the output's numbers, and the caption."""
    files = {f"book/_runs/{PADDING.record}": SAID}
    html, warnings = build(PAGE_PICTURE, **files)
    assert not warnings
    assert html.count("<svg") == 2 and "50 % of the positions are padding" in html
    assert 'class="picture-caption">Half <em>empty</em>.' in html


@pytest.mark.parametrize(
    ("page", "output", "says"),
    [
        (PAGE_PICTURE, None, "make notebooks records it"),
        (PAGE_PICTURE, SAID.replace("positions", "seats"), "adapt the picture"),
        (PAGE_PICTURE, SAID.replace("0.07", "0.49"), "contradict the title"),
        (PAGE_PICTURE.replace("padding", "nothing"), SAID, "nothing"),
        (PAGE_PICTURE.replace("Half *empty*.\n", ""), SAID, "needs a caption"),
        (PAGE_PICTURE.replace("output: python x.py", "glue: a::b"), SAID, "notebook a"),
        (PAGE_PICTURE.replace(":output: python x.py\n", ""), SAID, "give it that"),
    ],
    ids=["no record", "another form", "another result", "no function", "no caption",
         "no notebook", "no source"],
)  # fmt: skip
def test_a_picture_without_its_numbers_fails_the_build(build, page, output, says):
    """The error says what is missing."""
    files = {f"book/_runs/{PADDING.record}": output} if output else {}
    _, warnings = build(page, **files)
    assert "ERROR" in warnings and says in warnings


LISTING = "def one():\n    return 1\n\n\ndef two():\n    x = one()\n    return x < 2\n"
CALLOUTS = (
    "```{callouts} x.py\n:pyobject: two\n\n1. `x = one()` asks.\n2. `x <` says.\n```\n"
)


def test_callouts_number_lines_and_explain_them(build):
    """A number stands at each line that an item names; the list follows."""
    html, warnings = build(CALLOUTS, **{"x.py": LISTING})
    assert not warnings
    lines = re.findall(r'class="callout" data-number="(\d)">(.*)', html)
    texts = [(number, unescape(re.sub(r"<.*?>", "", line))) for number, line in lines]
    assert texts == [("1", "x = one()"), ("2", "return x < 2")]
    assert "return 1" not in html and "asks." in html
    assert readable(html).count("data-number=") == 2  # on paper, too


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (CALLOUTS.replace("x = one()", "y = one()"), "the listing has no y = one()"),
        (CALLOUTS.replace("x <", "x = one()"), "the listing has no x = one() there"),
        (CALLOUTS.replace("two", "three"), "three"),
        (CALLOUTS.replace("`x <` says", "says"), "names no code"),
        (CALLOUTS.replace(" x.py", ""), "name a file"),
    ],
)
def test_callouts_that_do_not_fit_fail_the_build(build, page, says):
    """A listing that changed needs other words."""
    _, warnings = build(page, **{"x.py": LISTING})
    assert says in warnings


@pytest.mark.parametrize(
    ("role", "files"),
    [
        ("{bench}`ddp.ratio`", {}),
        ("{bench}`ddp.ratio`", {bench.DATA: '{"ddp": {}}'}),
        ("{bench}`ddp`", {bench.DATA: '{"ddp": {}}'}),
        ("{bench}`ddp:.2z`", {bench.DATA: '{"ddp": 1.5}'}),
    ],
    ids=["no file", "no such figure", "not a figure", "bad format"],
)
def test_a_figure_that_was_not_measured_fails_the_build(build, role, files):
    """A sentence can't be published without its number."""
    _, warnings = build(role, **files)
    assert "ERROR" in warnings


def test_formulas_are_mathml(build):
    """Inline, display and numbered formulas need no script."""
    html, warnings = build("$W^2$\n\n$$\n\\frac{1}{W} \\sum_r g_r\n$$ (mean)\n")
    assert not warnings
    assert html.count("<math ") == 2
    assert 'class="eqno"' in html
    assert "mathjax@" not in html


@pytest.mark.parametrize(
    "tex", [r"\foo{x}", r"\frac{1", r"x_", r"\frac{1}{2", r"\begin{align} a", "a & b"]
)
def test_bad_tex_is_a_warning(build, tex):
    """A broken formula is reported; latex2mathml accepts most of these silently."""
    _, warnings = build(f"${tex}$\n")
    assert "WARNING: formula" in warnings


@pytest.mark.parametrize(
    "tex",
    [
        r"\left\lceil \frac{N}{W} \right\rceil",
        r"\begin{aligned} a &= b \\ &= c \end{aligned}",
        r"a = b \\ c = d",
        r"\text{local\_rank} = \texttt{a\_b} \bmod W",
        r"\{ x \mid x < \mathcal{O}(n) \}",
    ],
)
def test_good_tex_is_translated(tex):
    """The TeX that the pages use is translated, and no backslash is left."""
    assert "\\" not in mathml.translate(tex)


def test_digest_follows_content(tmp_path):
    """Editing a style sheet changes its folder's digest; a second look doesn't."""
    (tmp_path / "a.css").write_text("a")
    before = fresh.digest(tmp_path)
    assert fresh.digest(tmp_path) == before
    (tmp_path / "a.css").write_text("b")
    assert fresh.digest(tmp_path) != before


@pytest.mark.parametrize("module", [bench, mathml])
def test_examples_in_docstrings_hold(module):
    """Every example in these modules' docstrings gives what it says."""
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_a_changed_notebook_re_reads_the_pages_that_glue_it(tmp_path):
    (tmp_path / "page.md").write_text("{glue}`../notebooks/a.ipynb::x`")
    (tmp_path / "other.md").write_text("no glue here")

    class Env:
        found_docs: ClassVar = {"page", "other", "notebooks/a"}

        def doc2path(self, name):
            return tmp_path / f"{name}.md"

    def pages(changed):
        return fresh.gluing_pages(None, Env(), set(), changed, set())

    assert pages({"notebooks/a"}) == ["page"]
    assert pages(set()) == []


SPECIMEN = '''
"""A slip with `code`.

runs on: 2 ranks
outcome: raises
chapter: index

Why it goes *wrong*.
"""

# %% given
x = 1

# %% wrong
y

# %% right
print(x)
'''
ENDS = """{"a1_slip": {"wrong": {"status": "raises", "text": "NameError: y"},
"right": {"status": "runs", "text": "1"}}}"""
SHOW = "(index)=\n```{specimen-table} errata\n```\n\n```{specimens} errata\n```\n"
SLIP = {"errata/a1_slip.py": SPECIMEN.strip(), "errata/outcomes.json": ENDS}


def test_a_specimen_shows_code_outcome_and_repair(build):
    """It shows both cells, both outputs and the prose, and the table links to it."""
    html, warnings = build(SHOW, **SLIP)
    assert not warnings
    text = re.sub(r"\s+", " ", words(html))
    parts = ["A1. A slip with code", "Why it goes wrong.", "Given, for both", "x = 1"]
    parts += ["Wrong", "y", "It fails.", "NameError: y", "Right", "print(x)", "1"]
    assert re.search(".* ".join(map(re.escape, parts)), text)
    assert 'href="#errata-a1"' in html
    assert 'id="errata-a1"' in html
    assert "Run on 2 ranks." in text


def test_a_specimen_with_commands_on_virtual_gpus_says_that_they_were_rehearsed(build):
    """A reader who types them without a GPU would see something else."""
    cells = SPECIMEN.replace("# %% given\nx = 1\n\n", "").replace(
        "2 ranks", "2 virtual GPUs"
    )
    for cell in "wrong", "right":
        cells = cells.replace(f"%% {cell}", f"%% {cell}: python train.py")
    pages = {**SLIP, "errata/a1_slip.py": cells.strip()}
    html, warnings = build(f"(app_rehearse)=\n# Rehearse\n\n{SHOW}", **pages)
    assert not warnings
    text = re.sub(r"\s+", " ", words(html))
    assert "Run by the commands above, rehearsed on 2 virtual GPUs. More: " in text
    assert 'href="#app-rehearse"' in html


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"errata/outcomes.json": "{}"}, "no outcome of a1_slip.py"),
        ({"errata/a1_slip.py": SPECIMEN.replace("right", "rihgt")}, "needs cells"),
        ({"errata/a1_slip.py": "x ="}, "invalid syntax"),
    ],
)
def test_a_specimen_that_was_not_played_fails_the_build(build, files, complaint):
    """A slip that was not run can't be published."""
    _, warnings = build(SHOW, **SLIP | files)
    assert complaint in warnings


def test_a_specimen_played_anew_rebuilds_the_page(build):
    """A page depends on the record of its specimens' outcomes."""
    build(SHOW, **SLIP)
    later = {"errata/outcomes.json": ENDS.replace("NameError: y", "NameError: z")}
    html, _ = build(SHOW, **SLIP | later)
    assert "NameError: z" in words(html)


CASE = """
r'''A case with `code`.

class: DDP
symptom: silent
runs on: 2 ranks
chapter: index
signature: 3
guard: 3 wheels

You see: three *wheels*.

Cause: one is lost.

Cure: torchrun finds it.

Next time: count.

Links: https://a.b/1 (a lost wheel)
'''

# %% given
x = 1

# %% broken
y = 3
same = x

# %% fixed: torchrun train.py
y = 4
same = x

# %% invariant: there are four
assert y == 4, y

# %% guarded
watch(y)

# %% signs
# lost a wheel
"""
QUOTED = CASE.replace("2 ranks", "quoted").replace("silent", "crash")
QUOTED = QUOTED.replace("# %% signs", "# %% quoted\n# CUDA error: wheels\n\n# %% signs")
DID = """{"a-case": {"broken": {"status": "violates", "text": "AssertionError: 3"},
"fixed": {"status": "runs", "text": "it rolls"}, "guarded": {"status": "raises",
"text": "epoch 0\\nranks 0–1: GuardError: 3 wheels instead of 4"}}}"""
WARD = {"clinic/a-case.py": CASE.strip(), "clinic/outcomes.json": DID}
TELL = "(app_clinic_ddp)=\n(index)=\n## U\n\n```{clinic} DDP\n```\n"


def test_a_case_shows_what_it_did_why_and_the_cure_as_a_diff(build):
    """It has all paragraphs, both runs, the diff with commands, the check, links."""
    html, warnings = build(TELL, **WARD)
    assert not warnings
    text = re.sub(r"\s+", " ", words(html))
    parts = ["A case with code", "silently wrong · we ran it on 2 ranks", "You see."]
    parts += ["Three wheels.", "AssertionError: 3", "Cause. One is lost."]
    parts += ["Cure. torchrun finds it."]
    parts += ["Shared setup", "x = 1", "-y = 3 +$ torchrun train.py +y = 4 same = x"]
    parts += ["it rolls", "Must hold: there are four", "assert y == 4", "Count."]
    assert re.search(".* ".join(map(re.escape, parts)), text), text
    assert 'id="clinic-a-case"' in html
    assert re.search(r'href="https://a.b/1">a lost wheel', html)


def test_a_quoted_case_never_looks_like_a_run(build):
    """It says that it is quoted, and shows the message from its source."""
    html, warnings = build(TELL, **WARD | {"clinic/a-case.py": QUOTED.strip()})
    assert not warnings
    text = re.sub(r"\s+", " ", words(html))
    assert "quoted from machines with GPUs, not run here" in text
    assert "CUDA error: wheels" in text
    assert "it rolls" not in text


def test_the_clinics_lists_count_and_link_every_case(build):
    """The index, the list of the guard's messages and the counts have each case."""
    lists = "```{clinic-index}\n```\n\n```{clinic-guard} caught\n```\n\n"
    lists += "N: {clinic-count}`all` {clinic-count}`quoted` {clinic-count}`DDP`\n"
    html, warnings = build(f"{TELL}\n{lists}", **WARD)
    assert not warnings
    assert html.count('href="#clinic-a-case"') >= 3  # contents, index, list
    text = re.sub(r"\s+", " ", words(html))
    assert "A case with code silently wrong" in text
    assert "A case with code: “3 wheels instead of 4”" in text
    assert "N: 1 0 1" in text


def test_a_page_shows_the_guards_whole_message_of_one_case(build):
    """All lines stand as the ranks printed them, and not only the last one's end."""
    html, warnings = build("# T\n\n```{clinic-guard} a-case\n```\n", **WARD)
    assert not warnings
    text = re.sub(r"\s+", " ", words(html))
    assert "epoch 0 ranks 0–1: GuardError: 3 wheels instead of 4" in text


@pytest.mark.parametrize(
    ("page", "files", "complaint"),
    [
        (TELL, {"clinic/outcomes.json": "{}"}, "no outcome of a-case.py"),
        (TELL, {"clinic/a-case.py": CASE.replace("Cause", "X").strip()}, "'Cause'"),
        ("# T\n\n```{clinic} cars\n```\n", {}, "the clinic has no class 'cars'"),
        ("# T\n\n```{clinic-guard} x\n```\n", {}, "caught or beyond, not 'x'"),
        ("# T\n\n{clinic-count}`x`\n", {}, "clinic-count: not 'x'"),
    ],
)
def test_the_clinic_refuses_what_it_cannot_show(build, page, files, complaint):
    """It refuses a case without a record or a paragraph, and unknown names."""
    _, warnings = build(page, **WARD | files)
    assert complaint in warnings


H100 = {"names": ["H100", "H100"], "memory_bytes": [85 * 10**9] * 2, "num_gpus": 2}
H100 |= {"date": "2026-11-22", "driver": "580.1", "cuda": "13.0", "torch": "2.13.0"}
STEPS = {"step_ms": 2.5, "loss": 0.9, "off_float32": 0.001}
RATIO = {"step_ms_without": 2.0, "step_ms_with": 2.02, "ratio": 1.01, "backend": "nccl"}
RATIO |= {"ratio_min": 0.99, "ratio_max": 1.03, "pairs": 7}
BYTES = {"weights": 4_000_000, "gradients": 4_000_000, "optimizer": 8_000_000}
PLAYED = [
    {"group": "doctor", "name": "d", "outcome": "failed", "why": "ecc fails"},
    {"group": "doctor", "name": "e", "outcome": "passed", "checks": {"a": ["ok", ""]}},
    {"group": "scripts", "name": "ch5_ddp, 2 ranks", "outcome": "passed"}
    | {"last": "accuracy 0.97", "devices": ["cuda:0", "cuda:1"]},
    {"group": "scripts", "name": "x", "outcome": "not run", "why": "needs 4 GPUs"},
    {"group": "AMP", "name": "a", "outcome": "passed"}
    | {"figures": {"width": 4096, "float32": STEPS, "bfloat16": STEPS}},
    {"group": "memory", "name": "m", "outcome": "passed"}
    | {"figures": {"formula": BYTES, "allocated": BYTES, "peak_allocated": 17_000_000}},
    {"group": "guard", "name": "g", "outcome": "passed", "figures": RATIO},
    {"group": "clinic", "name": "cuda-oom", "outcome": "passed"}
    | {"said": "CUDA out of memory. Tried <20 GiB>"},
]
GPU = "book/_data/gpu.json"


def test_gpu_says_that_no_run_is_recorded(build):
    """The page says so in one sentence, without an empty table."""
    html, warnings = build("```{gpu}\n```\n")
    assert not warnings
    assert "No GPU run is recorded: make gpu on a machine with one writes it." in html
    assert "<table" not in html


def test_gpu_shows_what_was_played_with_machine_and_date(build):
    """Failures and items not run are shown too, in bold; figures have units."""
    text = json.dumps({"machine": H100, "items": PLAYED})
    html, warnings = build("```{gpu}\n```\n", **{GPU: text})
    assert not warnings
    shown = html_words(html)
    assert "Run on 2026-11-22: 2 × H100 (79 GiB each), driver 580.1, CUDA 13.0" in shown
    assert "NCCL unknown. 1 failed, 1 not run, 6 passed." in shown
    for part in (
        "ecc fails",
        "1 ok",
        "on cuda:0, cuda:1: accuracy 0.97",
        "needs 4 GPUs",
        "float32: 2.5 ms a step; bfloat16: 2.5 ms a step, loss +0.10%",
        "weights 4.0 MB (formula 4.0)",
        "peak allocated 17.0 MB",
        "with the guard 2.02 ms: 1.010 (0.990 to 1.030, 7 pairs), nccl",
        "CUDA out of memory. Tried <20 GiB>",
    ):
        assert part in shown
    assert len(re.findall("<strong>(?:failed|not run)</strong>", html)) == 2


def html_words(html: str) -> str:
    """Return the text of a page, with its entities decoded."""
    return " ".join(unescape(words(html)).split())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is not what make gpu writes"),
        ("{}", "is not what make gpu writes"),
        ("[]", "is not what make gpu writes"),
        (json.dumps({"machine": H100, "items": [{}]}), "outcome"),
        (json.dumps({"machine": H100 | {"rehearsal": True}, "items": []}), "rehearsal"),
    ],
)
def test_gpu_fails_the_build_on_another_file(build, text, fault):
    """A foreign file fails; so does a rehearsal, as no CPU may pass for a GPU."""
    _, warnings = build("```{gpu}\n```\n", **{GPU: text})
    assert fault in warnings
    assert "gpu.json" in warnings
