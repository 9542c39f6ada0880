"""What changed is replayed, the rest in turn, and ten commits replay everything."""

import json
import re
import subprocess
import time

import pytest

from book._ext.runs import replayed
from tests import replays

pytest_plugins = "pytester"
NAMES = [f"tests/test_ch{n}_x.py" for n in range(1, 13)]
TEST = "def test_one():\n    assert True\n\n\ndef test_two():\n    assert True\n"
FAILS = TEST.replace("assert True", "assert False")
ENDS = TEST.replace("assert True", "__import__('pytest').exit('enough')")
PLUGINS = "-p", "tests.replays", "-p", "no:nbval", "-p", "no:hypothesispytest"
HEAD = "git", "rev-parse", "HEAD"
ENDED = re.compile(r" (PASSED|FAILED|XFAIL) +\[")
IMPORTS = f"{TEST}\n\ndef unused():\n    from allranks import ring\n"


@pytest.fixture
def tree(pytester) -> pytest.Pytester:
    """Return a tree with one commit and twelve files that are replayed, two tests each.

    Another file, with one test, runs each time. All replays are recorded.
    """
    pytester.makeini("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib")
    for folder in "tests", "book/_data", "allranks":
        (pytester.path / folder).mkdir(parents=True)
    for name in NAMES:
        (pytester.path / name).write_text(TEST)
    (pytester.path / "tests/test_law.py").write_text("def test_it():\n    pass\n")
    (pytester.path / "allranks/ring.py").write_text("W = 4\n")
    git(pytester, "init", "-q")
    git(pytester, "add", ".")
    commit(pytester)
    replayed.write(pytester.path, replayed.digests(pytester.path))
    return pytester


def git(tree: pytest.Pytester, *words: str) -> None:
    """Run a command of git in a tree."""
    who = "-c", "user.name=a", "-c", "user.email=a@b.c"
    subprocess.run(["git", *who, *words], cwd=tree.path, check=True)


def commit(tree: pytest.Pytester) -> None:
    """Add a commit, which moves the turn on."""
    git(tree, "commit", "-q", "--allow-empty", "-m", f"{time.time()}")


def in_turn(tree: pytest.Pytester) -> set[str]:
    """Return the files in turn, after as many commits as it takes until there are."""
    while True:
        turn = replays.turn(tree.path)
        if names := {name for name in NAMES if replays.part(name) == turn}:
            return names
        commit(tree)


def run(tree: pytest.Pytester, *words: str) -> tuple[str, set[str]]:
    """Run the tests of a tree; return the header's line, and the files that ran."""
    result = tree.runpytest_inprocess(*PLUGINS, "-v", *words)
    head = next(line for line in result.outlines if line.startswith("replays: "))
    lines = [line for line in result.outlines if ENDED.search(line)]
    ran = {line.partition("::")[0] for line in lines}
    return head, ran


def test_what_is_not_in_turn_is_deselected_and_counted(tree):
    """Nothing has changed: a tenth runs, and what is no replay at all."""
    chosen, turn = in_turn(tree), replays.turn(tree.path)
    head, ran = run(tree)
    said = f"0 changed, {len(chosen)} of 12 in turn (part {turn} of 10)"
    assert head == f"replays: {said}"
    assert ran == chosen | {"tests/test_law.py"}
    result = tree.runpytest_inprocess(*PLUGINS)
    left_out = 2 * (12 - len(chosen))
    result.assert_outcomes(passed=2 * len(chosen) + 1, deselected=left_out)


def test_what_changed_is_replayed_until_it_passes(tree):
    """Also if a module has that it imports, and it need not pass on each machine."""
    turn = replays.turn(tree.path)
    name = next(name for name in NAMES if replays.part(name) != turn)
    (tree.path / name).write_text(IMPORTS)
    replayed.write(tree.path, replayed.digests(tree.path))
    assert name not in run(tree)[1]
    (tree.path / "allranks" / "ring.py").write_text("W = 8\n")
    head, ran = run(tree)
    assert name in ran and head.startswith("replays: 1 changed, ")
    assert name not in run(tree)[1]  # it has passed on this machine


def test_what_failed_is_replayed_until_it_passes(tree):
    """Though nothing changes that it is known to read, and another part is in turn."""
    name, away = min(in_turn(tree)), tree.path / "away"
    test = f"import os\n\n\ndef test_one():\n    assert not os.path.exists('{away}')\n"
    (tree.path / name).write_text(test)
    replayed.write(tree.path, replayed.digests(tree.path))
    away.touch()
    run(tree)
    commit(tree)
    assert name in run(tree)[1]
    away.unlink()
    assert name in run(tree)[1] and name not in run(tree)[1]


SKIPS = "import pytest\n\n\ndef test_two():\n    pytest.skip('no GPU')\n"


@pytest.mark.parametrize("passes", [True, False])
def test_what_a_machine_lacks_keeps_no_file_due(tree, passes):
    """A skip beside tests that pass is no failure; a file of skips has not run."""
    (tree.path / NAMES[0]).write_text(f"{TEST if passes else ''}{SKIPS}")
    assert run(tree)[0].startswith("replays: 1 changed, ")
    assert run(tree)[0].startswith(f"replays: {0 if passes else 1} changed, ")


def test_an_exercise_is_replayed_with_its_answers(tree):
    """They are tried with its check, though no file of the package reads them."""
    (tree.path / "exercises").mkdir()
    (tree.path / "tests/exercises").mkdir()
    (tree.path / "exercises/ex1_1.py").write_text("W = 4\n")
    for text in "# %% right: so\n", "# %% right: not so\n":
        (tree.path / "tests/exercises/ex1_1.py").write_text(text)
        now = replayed.digests(tree.path)
        changed, _ = replays.due(now, replayed.load(tree.path), {}, turn=0)
        assert changed == {"exercises/ex1_1.py"}
        replayed.write(tree.path, now)


def test_ten_commits_in_a_row_replay_everything(tree):
    """A name belongs to one part, and each commit has the next one, merges too."""
    seen = []
    for number in range(10):
        if number == 5:  # of three commits beside this one
            git(tree, "checkout", "-q", "-b", "beside", "HEAD~1")
            for _ in range(3):
                commit(tree)
            git(tree, "checkout", "-q", "-")
            git(tree, "merge", "-q", "--no-ff", "-m", "x", "beside")
        else:
            commit(tree)
        turn = replays.turn(tree.path)
        seen += [name for name in NAMES if replays.part(name) == turn]
    assert sorted(seen) == sorted(NAMES)


def test_a_run_of_everything_records_what_passed(tree):
    """A replay that failed or whose file is gone loses its place, or keeps the old."""
    bad, gone, new, wrong = NAMES[:4]
    path = tree.path / replayed.DATA
    (tree.path / new).write_text(f"# new\n{TEST}")
    (tree.path / bad).write_text(FAILS)
    (tree.path / gone).unlink()
    known = "import pytest\n\npytestmark = pytest.mark.xfail  # a fault is expected\n"
    (tree.path / wrong).write_text(known + FAILS)
    before = json.loads(path.read_text())
    head, ran = run(tree, "--replays=all")
    after = json.loads(path.read_text())
    now = replayed.digests(tree.path)
    assert head == "replays: all 11" and ran == {*NAMES, "tests/test_law.py"} - {gone}
    assert after[wrong]["digest"] == now[wrong] != before[wrong]["digest"]
    assert after.keys() == before.keys() - {gone}
    assert after[new]["digest"] == now[new] != before[new]["digest"]
    assert after[bad] == before[bad] and now[bad] != after[bad]["digest"]


@pytest.mark.parametrize(
    ("words", "next_file"),
    [
        (("-k", "not two"), FAILS),
        (("-x",), FAILS),
        ((), ENDS),
        ((NAMES[0],), FAILS),
    ],
)
def test_half_a_replay_is_none(tree, words, next_file):
    """What a choice of tests or an early end left out has not been replayed."""
    more = f'import pytest\n\npytestmark = pytest.mark.replay("{NAMES[0]}")\n\n\n{TEST}'
    (tree.path / NAMES[0]).write_text(f"# changed\n{TEST}")
    (tree.path / NAMES[1]).write_text(next_file)
    (tree.path / "tests/test_more.py").write_text(more)
    run(tree, *words)
    assert NAMES[0] in run(tree)[1]


def test_a_worker_that_dies_has_replayed_nothing(tree):
    """Which of its tests had run is not known, so what passed counts no more."""
    one, two = TEST.split("\n\n\n")
    kills = "__import__('os').kill(__import__('os').getpid(), 9)"
    dies = f"{one}\n\n\n{two.replace('assert True', kills)}"
    (tree.path / NAMES[0]).write_text(dies)
    tree.runpytest_inprocess(*PLUGINS, "-n", "1")
    assert "replays: 1 changed, " in run(tree, "--collect-only")[0]


def test_without_a_cache_all_that_changed_is_replayed(tree):
    """Nothing is remembered of this machine, and the run itself ends well."""
    (tree.path / NAMES[0]).write_text(f"# changed\n{TEST}")
    for _ in range(2):
        assert NAMES[0] in run(tree, "-p", "no:cacheprovider")[1]


def test_whoever_names_a_file_gets_all_of_it(tree):
    """The turn is for runs of the whole suite."""
    assert run(tree, *NAMES[:3])[1] == set(NAMES[:3])


def test_without_history_the_commit_decides(tree, tmp_path):
    """A shallow clone counts one commit for ever, so its hash stands in."""
    found = set()
    for number in range(4):
        commit(tree)
        clone = tmp_path / str(number)
        command = ["git", "clone", "-q", "--depth=1", tree.path.as_uri(), clone]
        subprocess.run(command, check=True)
        done = subprocess.run(HEAD, cwd=clone, capture_output=True, text=True)
        assert replays.turn(clone) == int(done.stdout, 16) % 10
        found.add(replays.turn(clone))
    assert len(found) > 1
