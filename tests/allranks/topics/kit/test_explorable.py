"""An explorable's JavaScript computes what its Python does, and refuses the same."""

import gzip
import importlib
import json
import math
import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable
from traitlets import TraitError

from allranks.base import svg, units
from allranks.base.svg import RANK_COLORS
from allranks.topics import CLASSES, Sampler, by_name
from allranks.topics.kit import bundle
from tests.twins import twice

REPLAY = Path(__file__).with_name("replay.mjs")
LIMIT = 10 * 1024  # bytes of an explorable's own script, as a server sends it
KIT_LIMIT = 14 * 1024  # likewise of the kit, which all share


def node(*arguments, data: str = "") -> str:
    """Run the node that comes with Playwright."""
    command = [compute_driver_executable()[0], *arguments]
    done = subprocess.run(
        command, input=data, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def figure_file(name: str, folder: Path) -> Path:
    """Write a figure as a module that Node can load, with all that it exports."""
    path = folder / f"{name}.mjs"
    text = bundle.IMPORT.sub(r"const \1 = allRanks.kit;\n", bundle.figure(name))
    path.write_text(bundle.kit_script() + text, "utf8")
    return path


def sent(script: str) -> int:
    """Return the number of bytes in which most servers send a script."""
    return len(gzip.compress(script.encode(), 6))


def answer(widget, state: dict) -> dict:
    """Return what Python makes of a state, in the form that JSON gives it."""
    try:
        return json.loads(json.dumps(widget.compute(**state)))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


def differs(a, b, path="") -> str:
    """Return where two answers differ, or ""; the last digits of floats may differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{path}: {sorted(a)} against {sorted(b)}"
        pairs = [(f"{path}.{key}", a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{path}: {len(a)} against {len(b)} entries"
        pairs = [
            (f"{path}[{i}]", *both) for i, both in enumerate(zip(a, b, strict=True))
        ]
    elif type(a) in (int, float) and type(b) in (int, float):
        same = math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        return "" if same else f"{path}: {a} against {b}"
    else:
        return "" if a == b and type(a) is type(b) else f"{path}: {a!r} against {b!r}"
    return next(filter(None, (differs(x, y, where) for where, x, y in pairs)), "")


@pytest.mark.parametrize("name", CLASSES.values())
class TestEach:
    """What holds for every explorable."""

    def test_javascript_computes_what_python_does(self, name, tmp_path):
        """They agree on hundreds of states, impossible ones included."""
        module = importlib.import_module(f"allranks.topics.{name}.figure")
        states = module.cases()
        here = [answer(by_name(name), state) for state in states]
        refused = sum("error" in facts for facts in here)
        assert len(states) >= 200 and refused >= 20 and len(states) - refused >= 100
        path = figure_file(name, tmp_path)
        there = json.loads(node(REPLAY, path, data=json.dumps(states)))
        for state, python, javascript in zip(states, here, there, strict=True):
            assert not (where := differs(python, javascript)), f"{state}: {where}"

    def test_no_constant_stands_twice(self, name):
        """A script imports from Python what stands there; drawings have their own."""
        files = [*(bundle.TOPICS / name).glob("*.py"), bundle.TOPICS / "links/sums.py"]
        modules = [
            importlib.import_module(f"allranks.topics.{path.parent.name}.{path.stem}")
            for path in files
            if path.stem not in ("__init__", "picture", "runs")
        ]
        script = (bundle.TOPICS / name / "figure.js").read_text("utf8")
        assert twice(script, modules) == set()

    def test_scripts_are_small_and_parse(self, name, tmp_path):
        """Both forms parse as JavaScript, and what a page loads is small."""
        script = bundle.script(name)
        assert sent(script) <= LIMIT
        assert sent(bundle.kit_script()) <= KIT_LIMIT
        page = tmp_path / "page.js"
        page.write_text(bundle.kit_script() + script, "utf8")
        node("--check", page)
        (tmp_path / "one.mjs").write_text(bundle.module(name), "utf8")
        node("--check", tmp_path / "one.mjs")

    def test_a_figure_stands_without_a_script(self, name):
        """The figure has a picture, and the text says what is in it."""
        widget = by_name(name)()
        html = widget.figure()
        assert ("<svg" in html or "<table" in html) and f'"{name}"' in html
        assert widget.facts["summary"] in repr(widget)

    def test_state_is_checked_and_kept(self, name):
        """An impossible state is refused in one sentence; the old one stays."""
        module = importlib.import_module(f"allranks.topics.{name}.figure")
        widget = by_name(name)()
        before, refused = widget.state, 0
        for state in module.cases()[-40:]:
            try:
                widget.compute(**state)
            except (TypeError, ValueError):
                with pytest.raises(TraitError):
                    widget.change(**state)
                refused += 1
                assert widget.state == before
        assert refused >= 5
        with pytest.raises(TypeError, match="has no color"):
            by_name(name)(color=1)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (OSError("no room"), "no room"),
        (KeyError(), "KeyError"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_the_button_hears_that_it_begins_and_how_it_ends(ends, words, monkeypatch):
    """Python says that it has begun, and no error leaves the view waiting."""
    widget, said = Sampler(), []

    def measure(self):
        raise ends

    monkeypatch.setattr(Sampler, "measure", measure)
    widget.observe(lambda change: said.append(change.new), "measured")
    widget.runs += 1
    assert [one.get("running") for one in said] == ["begun", None]
    assert said[-1] == {"error": words, "state": widget.state}


def test_a_module_that_a_page_could_not_load_is_refused(tmp_path, monkeypatch):
    """A figure may import only kit.js and constants, and may export only names."""
    monkeypatch.setattr(bundle, "TOPICS", tmp_path)
    for name, line in (
        ("bad", 'import { a } from "./b.js";\n'),
        ("worse", "export { a }"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "figure.js").write_text(line)
    with pytest.raises(ValueError, match="import from"):
        bundle.script("bad")
    with pytest.raises(ValueError, match="export names only"):
        bundle.script("worse")
    with pytest.raises(LookupError, match="there are bad, worse"):
        bundle.script("none")


def test_a_rank_has_the_color_that_it_has_in_pictures():
    """The colors are the same, also in a host that defines none."""
    say = (
        "console.log(JSON.stringify([...Array(16).keys()].map(allRanks.kit.rankColor)))"
    )
    colors = json.loads(node("--eval", f"{bundle.kit_script()}{say}"))
    assert colors == RANK_COLORS * 2


def test_the_kit_takes_its_constants_from_python():
    """Colors and units are those of the pictures."""
    script = "".join(path.read_text("utf8") for path in bundle.KIT.glob("*.js"))
    assert twice(script, [svg, units]) == set()


def test_every_explorable_is_listed():
    """Every script has a class, and every class its two files."""
    assert set(bundle.names()) == set(CLASSES.values())
    parts = {path.name for path in bundle.KIT.glob("*.js")} - {"kit.js"}
    assert parts == set(bundle.PART.findall((bundle.KIT / "kit.js").read_text("utf8")))
    with pytest.raises(LookupError, match="topology"):
        by_name("who_was_who")
