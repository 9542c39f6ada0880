"""A check answers whatever it is given, and hints, files and notebooks fit together.

That each check takes the right answers and no wrong one: tests/exercises/.
"""

import ast
import re
import threading

import nbformat
import psutil
import pytest

from allranks import check, hints
from allranks.base.paths import ROOT
from allranks.exercises import files, grader
from allranks.live.processes import RankProcesses
from book._tools import exercises as book
from tests.answers import FOLDER, function
from tests.exercises.grading import OURS

NAMES = files.names()
NOTEBOOKS = {
    int(path.stem.partition("_")[0].removeprefix("ch")): path
    for path in ROOT.glob("notebooks/ch*.ipynb")
}
IMPORT, HEAD = "import torch.distributed as dist\n", "def ex5_1(model):\n"
HANGS = """import torch
import torch.distributed as dist


def ex3_4(model, path):
    rank = dist.get_rank()
    if rank == 1:
        dist.recv(torch.zeros(1), src=0)
"""


def test_each_exercise_has_a_file_of_answers():
    """And there is none that is never played."""
    assert {path.stem for path in FOLDER.glob("ex*.py")} == {*NAMES}


def answer(code: str, name: str = "ex5_1"):
    """Return a reader's function: the one that ``code`` defines under this name."""
    return function(name, code)


class TestCheck:
    """Whatever a reader hands in gets one calm answer, and no process is left."""

    @pytest.mark.parametrize("thing", [None, "ex5_1", 3, print, lambda model: model])
    def test_of_something_that_is_no_exercise(self, thing, capsys):
        """Anything that isn't an exercise gets one sentence."""
        found = check(thing)
        assert not found
        assert found.status == "no exercise"
        assert capsys.readouterr().out == f"{found.message}\n"
        assert len(found.message.splitlines()) == 1

    def test_names_the_line_of_an_exception(self):
        """Lines count from the reader's own def, and the function's output is shown."""
        found = check(answer(HEAD + "    print('here', 1)\n    return model / 0\n"))
        assert found.status == "error"
        assert "Line 3 of your ex5_1: return model / 0" in found.message
        assert "TypeError" in found.message
        assert found.message.endswith("It printed:\n    here 1")
        assert not re.search(OURS, found.message)

    def test_tells_a_hang_by_who_waits_where(self):
        """Rank 1 waits for a message that no rank sends, and the report says where."""
        found = check(answer(HANGS, "ex3_4"))
        assert found.status == "hang"
        assert "Rank 1 waits in line 4 of your ex3_4: dist.recv(" in found.message
        assert "Ranks 0 and 2 left your ex3_4." in found.message
        assert "A send ends when the other side receives" in found.message
        assert "collective" not in found.message

    def test_lets_a_slow_right_answer_pass(self, monkeypatch):
        """Ranks that are all in one collective are slow, though nothing seems to move.

        This is what a machine looks like on which no rank gets a core: no processor
        time, no switch, and each rank in the same line.
        """
        monkeypatch.setattr(RankProcesses, "is_busy", lambda *_, **__: False)
        monkeypatch.setattr(RankProcesses, "switches", lambda *_: 0)
        # Asked once while all sleep; then all have two seconds to end before the next.
        monkeypatch.setattr(grader, "STALL_S", 3)
        monkeypatch.setattr(grader, "LIMIT_S", 60.0)  # no time counts as a queue's
        code = files.find("ex5_1").code("solution")
        slow = "late and time.sleep(late.pop()), dist.all_reduce("
        code = code.replace("dist.all_reduce(", slow)
        assert slow in code
        code = f"import time\nlate = [3.5]\n{code}"
        found = check(answer(code))
        assert found.passed, found.message

    @pytest.mark.parametrize(
        ("name", "who", "why"),
        [
            ("ex5_1", "1 rank, case “a small network”: It waits", "No other rank is"),
            (
                "ex3_4",
                "3 ranks, case “no file yet”: Ranks 0–2 wait",
                "All ranks have come to",
            ),
        ],
    )
    def test_calls_it_no_hang_if_all_wait_in_one_line(
        self, monkeypatch, name, who, why
    ):
        """The report says what it can be, and never that a rank has not come."""
        monkeypatch.setattr(grader, "LIMIT_S", 1.5)
        monkeypatch.setattr(grader, "STALL_S", 0.3)
        code = f"import time\ndef {name}(*_):\n    time.sleep(60)\n"
        found = check(answer(code, name))
        text = " ".join(found.message.split())
        line = f"in line 2 of your {name}: time.sleep(60)"
        assert text.startswith(f"{name}: it does not go on. {who} {line} {why}")
        assert "the machine is too busy: check again." in text
        assert "A collective ends when" not in text
        assert text.endswith("Stopped: timeout after 1.5 s.")

    def test_calls_a_ring_of_receives_a_hang_at_once(self, monkeypatch):
        """All ranks wait in one line, but each for a single rank: no doubt about it."""
        monkeypatch.setattr(grader, "LIMIT_S", 1e9)
        code = HANGS.replace("if rank == 1", "if True").replace(
            "src=0", "src=(rank - 1) % 3"
        )
        found = check(answer(code, "ex3_4"))
        text = " ".join(found.message.split())
        assert text.startswith("ex3_4: it hangs.")
        assert "A send ends when the other side receives" in text

    def test_ends_what_computes_for_ever(self, monkeypatch):
        """An endless loop isn't a wait: it is stopped when its time is over."""
        monkeypatch.setattr(grader, "LIMIT_S", 1.5)
        found = check(
            answer("def ex2_3(losses, counts):\n    while True: pass", "ex2_3")
        )
        assert found.status == "hang"
        assert "It computes in line 2 of your ex2_3: while True: pass" in found.message
        assert "timeout after 1.5 s" in found.message

    def test_says_which_stub_was_half_filled(self):
        """A line before the stub's raise isn't an answer yet."""
        code = "    n = dist.get_world_size()\n    raise NotImplementedError\n"
        found = check(answer(IMPORT + HEAD + code))
        assert (found.status, found.passed) == ("stub", False)
        assert "NotImplementedError" in found.message

    @pytest.mark.parametrize("way", ["os._exit(3)", "sys.exit(3)", "os.kill(0, 9)"])
    def test_survives_an_answer_that_ends_its_process(self, way):
        """The check survives, even if the answer kills its whole process group."""
        found = check(answer(f"import os, sys\n{HEAD}    {way}\n"))
        assert found.status == "error"
        assert not re.search(OURS, found.message)

    def test_names_the_rank_that_died_not_the_one_that_missed_it(self):
        """Rank 0 only sees a closed connection, which isn't the cause."""
        code = "    if dist.get_rank() == 1:\n        os._exit(3)\n"
        code += "    dist.all_reduce(torch.ones(1))\n"
        found = check(answer(f"import os\nimport torch\n{IMPORT}{HEAD}{code}"))
        assert found.status == "error"
        assert "rank 1:" in found.message
        assert "Connection" not in found.message
        assert "exit code 3" in found.message

    def test_tells_what_cannot_be_sent(self):
        """An answer that holds a lock can't be sent to another process."""
        lock = threading.Lock()

        def ex5_1(model):
            with lock:
                return model

        found = check(ex5_1)
        assert found.status == "error"
        assert "cannot be sent to a rank" in found.message

    def test_leaves_no_process_and_no_file(self, tmp_path, monkeypatch):
        """Nothing is left, even after a hang with a child that outlives its parent."""
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        code = f"{HANGS}    subprocess.Popen(['sleep', '61.5'])\n"
        code = code.replace("    if", "    open('left', 'w').close()\n    if")
        assert check(answer(f"import subprocess\n{code}", "ex3_4")).status == "hang"
        lines = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
        assert ["sleep", "61.5"] not in lines
        assert list(tmp_path.iterdir()) == []

    def test_needs_no_source(self):
        """A function typed into a shell has no source, but can be checked."""
        namespace = {"__name__": "__main__"}
        exec("def ex2_3(losses, counts):\n    return losses.mean()", namespace)
        found = check(namespace["ex2_3"])
        assert found.status == "wrong"
        assert "mean of the means" in found.message


class TestHints:
    """Hints are folded in HTML; a terminal shows as many as were asked for."""

    def test_unfold_one_by_one(self):
        """Each level adds a hint, and the last one adds the solution."""
        exercise = files.find("ex2_3")
        for level in 1, 2, 3:
            text = repr(hints("ex2_3", level))
            assert text.count("Hint ") == level
            assert f'hints("ex2_3", {level + 1})' in text
        assert exercise.code("solution") in repr(hints("ex2_3", 4))

    @pytest.mark.parametrize("name", NAMES)
    def test_are_folded_on_a_page(self, name):
        """Three hints and the solution are each in a <details> that is closed."""
        html = hints(name)._repr_html_()
        assert html.startswith(f'<div class="exercise-help" data-exercise="{name}">')
        assert re.findall(r"<summary>(.*?)</summary>", html) == [
            *(f"Hint {n}" for n in (1, 2, 3)),
            "Solution",
        ]
        assert "<details open" not in html

    @pytest.mark.parametrize("arguments", [("ex9_9",), (None,), ("ex5_1", 5)])
    def test_refuse_in_a_sentence(self, arguments):
        """An unknown exercise or level raises ValueError."""
        with pytest.raises(ValueError, match=r"there is no exercise|level 5"):
            hints(*arguments)


@pytest.mark.parametrize("number", sorted(NOTEBOOKS))
class TestChapter:
    """A notebook shows what ``exercises/`` says."""

    def test_has_four_exercises_the_last_one_hard(self, number):
        """A chapter has at least four, each with its minutes; only the last is hard."""
        found = book.chapter(number)
        assert len(found) >= 4
        assert [e.name for e in found] == [
            f"ex{number}_{k}" for k in range(1, len(found) + 1)
        ]
        assert [e.hard for e in found] == [False] * (len(found) - 1) + [True]
        assert all(5 <= e.minutes <= 60 for e in found)

    def test_page_ends_with_their_list(self, number):
        """The chapter's page lists them, in its last section."""
        page = (ROOT / "book" / f"{NOTEBOOKS[number].stem}.md").read_text("utf8")
        assert page.endswith("\n\n## Exercises\n\n```{exercises}\n```\n")

    def test_notebook_is_written_from_the_files(self, number):
        """Task, stub, check and hints are as book/_tools/exercises.py writes them."""
        notebook = nbformat.read(NOTEBOOKS[number], as_version=4)
        shown = [(c.id, c.cell_type, c.source) for c in book.own(notebook)]
        want = [(c.id, c.cell_type, c.source) for c in book.section(number)]
        assert shown == want

    def test_notebook_shows_the_hints_of_the_files(self, number):
        """The notebook's outputs show the hints, and that each stub is still a stub."""
        notebook = nbformat.read(NOTEBOOKS[number], as_version=4)
        outputs = {c.id: c.outputs for c in notebook.cells if c.cell_type == "code"}
        for exercise in book.chapter(number):
            (output,) = outputs[f"{exercise.name}-check"]
            assert output.text.startswith(f"{exercise.name}: still the stub.")
            (output,) = outputs[f"{exercise.name}-hints"]
            html = output.data["text/html"]
            assert html == hints(exercise.name)._repr_html_()


@pytest.mark.parametrize("name", NAMES)
def test_the_check_gives_nothing_away_to_its_own_reader(name):
    """The solution has the stub's signature and docstring; the stub only raises."""
    exercise = files.find(name)
    stub, solution = (
        next(
            n
            for n in ast.parse(exercise.code(kind)).body
            if getattr(n, "name", "") == name
        )
        for kind in ("stub", "solution")
    )
    assert ast.dump(stub.args) == ast.dump(solution.args)
    assert ast.get_docstring(stub) == ast.get_docstring(solution)
    assert ast.unparse(stub.body[-1]) == "raise NotImplementedError"


class TestFile:
    """A malformed file is refused, naming the part that is missing."""

    GOOD = (files.FOLDER / "ex2_3.py").read_text("utf8")
    GOOD += "# %% mistake: the mean of the means\n# > This is the mean of the means.\n"
    GOOD += "# = return losses.mean()\n"

    @pytest.mark.parametrize(
        ("old", "new", "fault"),
        [
            ("The mean of means.", "", "a title"),
            ("Minutes: 8", "", "Ranks, Minutes"),
            ("Ranks: 1", "Ranks: one", "world sizes"),
            ("Hint 2: ", "", "Hint 1, Hint 2, Hint 3"),
            ("# %% check", "# %% chekc", "kinds of cells"),
            ("# %% solution", "# %% stub", "stub, solution and check"),
            (
                "# = return losses.mean()",
                "# - total = 0",
                "right answers with the lines",
            ),
            ("# = return losses.mean()", "# = return (", "Python in line 3"),
            ("Minutes: 8", "Minutes: 8\nLevel: easy", "Level: hard"),
            ("# = return losses.mean()", "x = 1", "changes in each mistake"),
            ("# > This is the mean of the means.\n", "", "a sentence"),
            ("def ex2_3(", "def ex2_4(", "def ex2_3 in stub and solution"),
            ("# %% mistake:", "# %% check:", "one stub, solution and check"),
        ],
    )
    def test_is_refused(self, tmp_path, old, new, fault):
        """The message names the file and the fault."""
        assert old in self.GOOD
        path = tmp_path / "ex2_3.py"
        path.write_text(self.GOOD.replace(old, new, 1), "utf8")
        with pytest.raises(ValueError, match=f"ex2_3.py needs .*{fault}"):
            files.read(path)

    def test_needs_no_import_of_a_module(self, tmp_path):
        """A cell gets the modules that it names, unless that name is its own."""
        text = self.GOOD.replace("def check(answer, case):", "def check(answer, copy):")
        text = text.replace("case(", "copy(time), nn, os.path.join(")
        body = "# = random = losses.mean() * math.pi\n# = return random"
        text = text.replace("# = return losses.mean()", body)
        path = tmp_path / "ex2_3.py"
        path.write_text(text, "utf8")
        exercise = files.read(path)
        head, _, _ = exercise.code("check").partition("\n\n\n")
        given = "import torch\nfrom torch import nn"
        assert head == f"import os\nimport time\n\n{given}"
        assert exercise.code("mistake").startswith("import math\n\n\ndef ex2_3(")

    @pytest.mark.parametrize(
        ("edits", "body"),
        [
            ("# ~ x: => not x:", "    if not x:\n        y = 1\n        return x\n"),
            ("# ~ y = => y = y =", "    if x:\n        y = y = 1\n        return x\n"),
            ("# ~ y … 1 => z(x)", "    if x:\n        z(x)\n        return x\n"),
            ("# - y = 1", "    if x:\n        return x\n"),
            (
                "# - return x\n# + return y",
                "    if x:\n        y = 1\n        return y\n",
            ),
            (
                "#   y = 1\n# + if y:\n# +     y += 1\n# - return x",
                "    if x:\n        y = 1\n        if y:\n            y += 1\n",
            ),
            ("# = if y:\n# =     return y", "    if y:\n        return y\n"),
        ],
    )
    def test_says_how_a_mistake_differs_from_the_solution(self, tmp_path, edits, body):
        """Lines are found in their order, whatever their indentation."""
        head = 'def ex2_3(x, y):\n    """Do it."""\n'
        solution = f"{head}    if x:\n        y = 1\n        return x\n"
        text = re.sub(r"(?s)(?<=solution\n).*?(?=# %% check)", solution, self.GOOD)
        path = tmp_path / "ex2_3.py"
        path.write_text(f"{text}# %% mistake: so\n# > Why.\n{edits}\n", "utf8")
        cell = files.read(path).cells[-1]
        assert (cell.code, cell.sentence) == ((head + body).strip(), "Why.")

    def test_may_say_how_a_stub_differs_from_the_solution(self, tmp_path):
        """An import that would give the solution away is left out of the stub."""
        head = "# %% stub\n# - import math\n# %% solution\nimport torch\nimport math\n"
        path = tmp_path / "ex2_3.py"
        path.write_text(self.GOOD.replace("# %% solution\n", f"{head}\n\n"), "utf8")
        stub = files.read(path).code("stub")
        assert stub.startswith("import torch\n\n\ndef ex2_3(losses, counts):\n")
        assert stub.endswith("raise NotImplementedError")
