"""Each page's links lead to existing files on the right branch, or are left out."""

import doctest
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from allranks.base.paths import ROOT
from book._ext.site import links

SAMPLE = links.Repository("https://github.com/owner/the.name", "topic/new")
PAGES = [p.relative_to(ROOT) for p in ROOT.glob("book/*.md")]
PAGES += [p.relative_to(ROOT) for p in ROOT.glob("notebooks/*.ipynb")]


def tracked() -> set[str]:
    """Return the files that a visitor of the repository finds."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("not a git checkout: no list of the files that are ours")
    return set(done.stdout.split("\0"))


def bar(page: Path, repository=SAMPLE) -> dict[str, str]:
    """Return the links below a page's title, as addresses by text."""
    name = page.with_suffix("").as_posix()
    html = links.bar(ROOT, name, page.as_posix(), "../", repository)
    return {a.get_text(): a["href"] for a in BeautifulSoup(html, "html.parser")("a")}


def test_every_link_names_a_tracked_file_and_the_branch():
    """The path inside each address is a tracked file, on the branch that was given."""
    ours, seen = tracked(), 0
    for page in PAGES:
        for text, address in bar(page).items():
            url = urlsplit(address)
            if text == "what differs there":
                path = address.removeprefix("../").replace(".html", ".md")
            elif not url.scheme:
                path = address.removeprefix(f"../{links.FILES}/")
            elif text == "Report a mistake":
                assert address.startswith(f"{SAMPLE.address}/issues/new?title=")
                path = unquote(url.query).removeprefix("title=").removesuffix(": ")
            elif text == "Codespaces":
                assert unquote(url.path) == "/owner/the.name/tree/topic/new"
                path = ".devcontainer/devcontainer.json"
            elif text == "Binder":
                assert url.path == "/v2/gh/owner/the.name/topic%2Fnew"
                path = url.query.removeprefix("urlpath=lab/tree/")
                assert ".binder/environment.yml" in ours
            else:
                assert "/topic/new/" in url.path
                assert url.path.startswith(("/owner/the.name/", "/github/owner/"))
                path = url.path.partition("/topic/new/")[2]
            seen += 1
            assert path in ours, f"{page}: {text} leads to {address}"
    assert seen > 50


def test_a_chapter_offers_its_notebook_its_scripts_and_places_to_run_them():
    """The chapter's own script comes first; a page without files offers none."""
    texts = list(bar(Path("book/ch5_ddp.md")))
    assert texts[:2] == ["ch5_ddp.ipynb", "ch5_ddp.py"]
    assert {"ch5_ddp_spawn.py", "Colab", "Binder", "Codespaces"} < set(texts)
    assert list(bar(Path("book/intro.md"))) == ["Edit this page", "Report a mistake"]


def test_the_start_page_offers_both_of_its_scripts():
    """What it runs can be downloaded from it."""
    texts = list(bar(Path("book/start.md")))
    assert texts[:2] == ["start_ddp.py", "start_single.py"]


def test_a_section_page_offers_the_scripts_that_it_shows():
    """The notebook and the other scripts are on its chapter's page."""
    texts = list(bar(Path("book/ch9_1_packing.md")))
    shown = ["ch9_balance.py", "ch9_mean_loss.py", "ch9_packing.py"]
    shown += ["ch9_padding.py", "ch9_pull.py"]
    assert texts == [*shown, "Edit this page", "Report a mistake"]


def test_without_a_repository_no_link_leaves_the_book():
    """Without a repository, no link leads outside the book."""
    assert links.bar(ROOT, "book/intro", "book/intro.md", "../", None) == ""
    for page in PAGES:
        assert not [a for a in bar(page, None).values() if urlsplit(a).scheme]


def test_elsewhere_than_on_github_com_nothing_is_launched():
    """Colab and Binder read public repositories of github.com only."""
    own = links.Repository("https://git.example.org/owner/name")
    texts = bar(Path("book/ch5_ddp.md"), own)
    assert "Colab" not in texts and "Edit this page" in texts


@pytest.mark.parametrize(
    "remote",
    [
        "https://github.com/owner/name",
        "https://github.com/owner/name.git",
        "https://user:token@github.com/owner/name.git",
        "git@github.com:owner/name.git",
        "ssh://git@github.com/owner/name.git",
    ],
)
def test_the_remote_says_where_it_is_without_its_credentials(tmp_path, remote):
    """All of git's forms of an address are understood, and credentials dropped."""
    for words in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert links.find(tmp_path, {}) == links.Repository("https://github.com/owner/name")


@pytest.mark.parametrize(
    "remote", ["https://example.org/a/b", "/srv/name.git", "https://github.com/owner"]
)
def test_a_remote_elsewhere_says_nothing(tmp_path, remote):
    """A remote elsewhere gives no repository; nor does a missing remote or checkout."""
    assert links.find(tmp_path / "none", {}) is None
    for words in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert links.find(tmp_path, {}) is None


def test_the_command_line_comes_first_then_github_actions():
    """ALLRANKS_REPOSITORY wins; a pull request's links name its target branch."""
    ours = {"ALLRANKS_REPOSITORY": "https://github.com/a/b"}
    theirs = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "c/d"}
    theirs |= {"GITHUB_REF_NAME": "7/merge", "GITHUB_BASE_REF": "dev"}
    assert links.find(ROOT, ours | theirs).address == "https://github.com/a/b"
    assert links.find(ROOT, theirs) == links.Repository("https://github.com/c/d", "dev")
    with pytest.raises(ValueError, match=r"REPOSITORY=b/c is no address like"):
        links.find(ROOT, {"ALLRANKS_REPOSITORY": "b/c"})


def test_binder_installs_what_the_notebooks_need():
    """Binder has all that requirements.txt lists for the package and the notebooks."""
    names = yaml.safe_load((ROOT / ".binder/environment.yml").read_text("utf8"))
    have = {re.split(r"[<>=]", name)[0] for name in names["dependencies"]}
    text = (ROOT / "requirements.txt").read_text("utf8")
    engine = text.partition("# The subject")[2].partition("# The book")[0]
    need = set(re.findall(r"^([\w-]+)==", engine, re.MULTILINE))
    assert need - have == {"torch"}
    assert "pytorch-cpu" in have
    assert os.access(ROOT / ".binder/postBuild", os.X_OK)


def test_examples_in_docstrings_hold():
    """Every example in the module gives what it says."""
    result = doctest.testmod(links)
    assert result.attempted
    assert not result.failed


def test_the_first_cell_for_colab_lets_a_notebook_run(tmp_path):
    """In a kernel without the book, the cell clones it for notebook and live ranks."""
    from nbclient import NotebookClient

    tracked()  # skips the test if this isn't a checkout, which could not be cloned
    cell = links.COLAB.format(branch="here", address=ROOT.as_uri())
    cell = cell.replace("/content", str(tmp_path)).replace("--branch here ", "")
    ask = "import allranks, os\nprint(os.path.dirname(allranks.__file__), os.getcwd())"
    live = "%load_ext allranks\n%ranks 1"
    code = "%%ranks\nimport allranks\nprint(rank, allranks.__file__)"
    stop = "%ranks stop"
    cells = [nbformat.v4.new_code_cell(c) for c in (cell, ask, live, code, stop)]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        book, timeout=90, resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = ["".join(str(o) for o in c.outputs) for c in book.cells]
    assert f"{tmp_path}/book/allranks" in outputs[1]
    assert f"{tmp_path}/book/notebooks" in outputs[1]
    assert outputs[3].count(f"{tmp_path}/book/allranks") >= 1, outputs[3]
