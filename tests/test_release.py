"""The workflows run make, with few permissions, and refuse a wrong tag."""

import re
import subprocess
import sys
import zipfile

import pytest
import yaml

from allranks import __version__
from allranks.base.paths import ROOT
from book._tools import release

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {p.stem: yaml.safe_load(p.read_text("utf8")) for p in FOLDER.glob("*.yml")}
STEPS = [
    (f"{name}.{job}", step)
    for name, workflow in WORKFLOWS.items()
    for job, what in workflow["jobs"].items()
    for step in what["steps"]
]
COMMANDS = [(where, step["run"]) for where, step in STEPS if "run" in step]
ACTIONS = {step["uses"] for _, step in STEPS if "uses" in step}
MAKEFILE = (ROOT / "Makefile").read_text("utf8")
TARGETS = set(re.findall(r"^([a-z]+):.* ## ", MAKEFILE, re.MULTILINE))
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
LOG = """# Changes

## [Unreleased]

## [1.2.0] - 2026-01-31

### Added

- A chapter.

## [1.1.0] - 2025-12-01

- Older.
"""


def steps(name: str, job: str) -> list[str]:
    """Return the commands and actions of a job, in order."""
    found = [step for where, step in STEPS if where == f"{name}.{job}"]
    return [step.get("run") or step["uses"] for step in found]


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=str)
def test_each_command_is_a_target_of_make_or_makes_the_release(where, command):
    """Each can also run locally, and no event's text is pasted into a shell."""
    words = command.split()
    if where == "release.attach":
        assert words[:3] == ["gh", "release", "create"]
    else:
        assert words[0] == "make" and words[1] in TARGETS
        assert words[2:] in ([], ['TAG="$GITHUB_REF_NAME"'])
    assert "${{" not in command


def test_the_actions_are_those_that_were_read():
    """Only actions that were reviewed are used, each in the reviewed version."""
    ours = "checkout@v4", "setup-python@v5", "upload-artifact@v4"
    ours += "download-artifact@v4", "upload-pages-artifact@v4", "deploy-pages@v4"
    assert {f"actions/{name}" for name in ours} == {
        name for name in ACTIONS if name != "pypa/gh-action-pypi-publish@release/v1"
    }


def test_a_job_may_write_only_where_it_has_to():
    """Jobs may only read; those that deploy, attach or publish build nothing."""
    assert {str(w["permissions"]) for w in WORKFLOWS.values()} == {
        "{'contents': 'read'}"
    }
    may = {
        f"{name}.{job}": what["permissions"]
        for name, workflow in WORKFLOWS.items()
        for job, what in workflow["jobs"].items()
        if "permissions" in what
    }
    assert may == {
        "pages.deploy": {"pages": "write", "id-token": "write"},
        "release.attach": {"contents": "write"},
        "release.publish": {"id-token": "write"},
    }
    for where in may:
        name, job = where.split(".")
        assert WORKFLOWS[name]["jobs"][job]["needs"] == "build"
        assert not [step for step in steps(name, job) if "checkout" in step]


def test_pages_are_built_from_main_and_from_releases():
    """The site that make book wrote is deployed to GitHub Pages."""
    workflow = WORKFLOWS["pages"]
    events = workflow[True]  # YAML 1.1 reads "on" as a truth value
    assert events == {"push": {"branches": ["main"], "tags": ["v[0-9]*"]}}
    assert workflow["jobs"]["deploy"]["environment"]["name"] == "github-pages"
    (site,) = re.findall(r"^SITE := (\S+)$", MAKEFILE, re.MULTILINE)
    paths = [
        s["with"]["path"] for w, s in STEPS if "pages-artifact" in s.get("uses", "")
    ]
    assert paths == [site]


def test_a_release_is_checked_tested_and_only_then_published():
    """The tag is checked first, and the index gets only the packages."""
    workflow = WORKFLOWS["release"]
    assert workflow[True] == {"push": {"tags": ["v[0-9]*"]}}
    commands = [step for step in steps("release", "build") if step.startswith("make")]
    assert [c.split()[1] for c in commands] == ["tag", "everything", "release"]
    uploads = [s["with"] for w, s in STEPS if w == "release.build" and "with" in s]
    uploads = {w["name"]: w["path"].split() for w in uploads if "name" in w}
    assert uploads == {
        "packages": ["_build/release/*.whl", "_build/release/*.tar.gz"],
        "release": ["_build/release", "_build/notes.md"],
    }
    (attach,) = [step for step in steps("release", "attach") if step.startswith("gh")]
    assert '"$GITHUB_REF_NAME" release/* ' in attach
    assert "--notes-file notes.md" in attach
    publish = workflow["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert publish["steps"][0]["with"] == {"name": "packages", "path": "dist"}


def test_everything_is_replayed_each_night():
    """On the pinned torch and on the newest, without a push."""
    assert "schedule" in WORKFLOWS["nightly"][True]
    assert steps("nightly", "everything").count("make everything") == 1


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        ("v1.2.0", ""),
        ("1.2.0", "tag '1.2.0' is not v1.2.0"),
        ("v1.2", "tag 'v1.2' is not v1.2.0"),
        ("", "tag '' is not v1.2.0"),
    ],
)
def test_a_tag_is_the_version_or_refused(tag, why):
    """A tag without its v, one of another version, or none at all is refused."""
    said = release.fault(tag, "1.2.0", LOG)
    assert said.startswith(why) and bool(said) == bool(why)


def test_a_version_without_a_section_is_refused():
    """A release's notes are its own section of the change log, which must exist."""
    assert release.notes(LOG, "1.2.0") == "### Added\n\n- A chapter."
    assert "[1.2.1]" in release.fault("v1.2.1", "1.2.1", LOG)
    assert release.notes(LOG, "1.2") == release.notes(LOG, "Unreleased") == ""


def test_make_tag_ends_with_a_failure_and_a_sentence():
    """make tag works as the workflow calls it, without the book's environment."""
    command = ["make", "tag", "TAG=v0.0.0", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"tag 'v0.0.0' is not v{__version__}" in done.stderr


def test_the_change_log_keeps_its_form():
    """Versions are dated, newest first, below the changes not released yet."""
    text = (ROOT / "CHANGELOG.md").read_text("utf8")
    first, *versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    found = [
        re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", v) for v in versions
    ]
    numbers = [tuple(map(int, match[1].split("."))) for match in found]
    assert numbers == sorted(numbers, reverse=True)
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## ")[0]
    assert f"[{__version__}]" in text or "\n- " in unreleased


def test_each_target_of_make_is_explained():
    """A target is in the README or, if only maintainers need it, in CONTRIBUTING.md."""
    files = "README.md", "CONTRIBUTING.md"
    text = "\n".join((ROOT / file).read_text("utf8") for file in files)
    assert len(TARGETS) > 12
    assert {
        t for t in TARGETS - {"help"} if not re.search(rf"make {t}\b", text)
    } == set()


@pytest.fixture
def tree(tmp_path):
    """Return a book with one notebook, as make release finds it."""
    files = {
        "_build/all-ranks.epub": "epub",
        "_build/all-ranks.pdf": "pdf",
        "_build/html/index.html": "home",
        "_build/html/book/a.html": "page",
        "_build/release/all-ranks-book-0.0.0.zip": "of an earlier release",
        "notebooks/ch9_a.ipynb": '"tests/fixtures/machines/one"',
        "scripts/ch9_a.py": "",
        "scripts/__pycache__/ch9_a.pyc": "",
        "tests/fixtures/machines/one/gpus.csv": "",
        "tests/fixtures/others/two.csv": "",
        "LICENSE": "",
        "book/LICENSE": "",
        "CHANGELOG.md": f"## [{__version__}] - 2026-01-31\n\n- It begins.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_release_holds_papers_site_and_notebooks(tree):
    """Notebooks lie beside the scripts they import and the other files they read."""
    folder = tree / "_build" / "release"
    written = {path.name: path for path in release.pack(tree, folder)}
    notebooks = f"all-ranks-notebooks-{__version__}"
    site = f"all-ranks-book-{__version__}.zip"
    assert set(written) == {"all-ranks.epub", "all-ranks.pdf", f"{notebooks}.zip", site}
    assert {path.name for path in folder.iterdir()} == set(written)
    pages = {n for n in zipfile.ZipFile(written[site]).namelist() if n[-1] != "/"}
    assert pages == {"index.html", "book/a.html"}
    names = set(zipfile.ZipFile(written[f"{notebooks}.zip"]).namelist())
    held = "README.txt", "ch9_a.ipynb", "scripts/ch9_a.py", "LICENSE"
    held += "LICENSE-CC-BY-4.0", "tests/fixtures/machines/one/gpus.csv"
    assert names == {f"{notebooks}/{name}" for name in held}
    assert (tree / "_build" / "notes.md").read_text() == "- It begins.\n"


def test_a_release_without_a_part_is_refused(tree):
    """The message names what was not built."""
    (tree / "_build" / "all-ranks.pdf").unlink()
    with pytest.raises(FileNotFoundError, match=r"all-ranks\.pdf is missing"):
        release.pack(tree, tree / "_build" / "release")
