"""What a notebook user expects of cells on ranks, in a real kernel."""

import json
import re
import time

import pytest

WATCHED = """%%ranks
import os, time
print("first", rank // 2)
while not os.path.exists("SEEN"): time.sleep(0.01)
print("last", rank // 2)"""


@pytest.fixture
def four(shared_kernel):
    """Yield the kernel with four fresh ranks."""
    assert shared_kernel.run("%ranks 4") == ("ranks 0–3 on cpu\n", "")
    return shared_kernel


def messages(
    kernel, code: str, answers=(), stdin: bool = True, seen=lambda content: None
) -> list[tuple]:
    """Run a cell; return what a front end gets: seconds, kind and content of each.

    Args:
        answers: what the reader types, one by one, when asked.
        stdin: whether the front end can ask anybody.
        seen: called with the content of each message, as soon as it is there.
    """
    start, answers = time.monotonic(), list(answers)
    msg_id = kernel.client.execute(code, allow_stdin=stdin)
    found = []
    while True:
        if answers and kernel.client.stdin_channel.msg_ready():
            question = kernel.client.get_stdin_msg(timeout=1)["content"]["prompt"]
            found.append((time.monotonic() - start, "question", question))
            kernel.client.input(answers.pop(0))
        try:
            message = kernel.client.get_iopub_msg(timeout=0.02)
        except Exception as error:
            assert type(error).__name__ == "Empty", error
            assert time.monotonic() - start < 60
            continue
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return found
        if kind not in ("status", "execute_input"):
            seen(content)
            found.append((time.monotonic() - start, kind, content))


def wait_for(condition, seconds: float = 30) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shown(found: list[tuple]) -> list[dict]:
    """Return what a front end shows in the end, as entries of a saved notebook."""
    outputs, clear = [], False
    for _, kind, content in found:
        if kind == "clear_output":
            clear = content["wait"]
            outputs = outputs if clear else []
        elif kind in ("stream", "display_data", "execute_result", "error"):
            outputs, clear = ([] if clear else outputs), False
            outputs.append(content)
    return outputs


def test_the_first_pull_says_why_it_takes_seconds(shared_kernel):
    """It imports torch into the notebook, once, and takes that line back.

    So this test comes before all that pull.
    """
    shared_kernel.run("%ranks 1")
    shared_kernel.run("%%ranks\nx = 1")
    first, second = (messages(shared_kernel, "%pull x") for _ in range(2))
    told, taken_back, came = (content for *_, content in first)
    assert told["data"]["text/plain"].startswith("importing torch into the note")
    assert taken_back["data"]["text/plain"] == ""
    assert came["text"] == "x: one value\n"
    assert [kind for _, kind, _ in second] == ["stream"]


class TestOutputAppearsWhileItIsPrinted:
    """A reader who trains for a minute sees what happens."""

    def test_at_once_and_in_its_final_form_at_the_end(self, four, tmp_path):
        """The last line is printed only after the first one was seen.

        How long that takes on a quiet machine is measured by ``make bench``.
        """
        flag = tmp_path / "seen"
        area = "ranks 0–1: first 0\nranks 2–3: first 1"

        def seen(content):
            if content.get("data") == {"text/plain": area}:
                flag.touch()

        found = messages(four, WATCHED.replace("SEEN", str(flag)), seen=seen)
        assert found[0][1] == "display_data" and "last" not in str(found[0][2])
        [output] = shown(found)
        assert output["name"] == "stdout" and output["text"] == (
            "ranks 0–1: first 0\nranks 0–1: last 0\n"
            "ranks 2–3: first 1\nranks 2–3: last 1\n"
        )

    def test_what_is_executed_for_a_file_gets_the_final_form_only(self, four):
        """Nobody watches nbconvert, and nbval compares each message."""
        cell = "%%ranks\nimport time\nfor n in range(4): print(n); time.sleep(0.2)"
        found = messages(four, cell, stdin=False)
        assert [kind for _, kind, _ in found] == ["stream"]

    def test_a_short_cell_is_printed_at_once(self, four):
        """No area is drawn for it, which would flicker."""
        four.run("import allranks.live.collect as c; tick, c.TICK = c.TICK, 10")
        found = messages(four, "%%ranks\nrank // 4")
        four.run("c.TICK = tick")
        assert [(kind, c["text"]) for _, kind, c in found] == [
            ("stream", "ranks 0–3: 0\n")
        ]

    def test_progress_tells_where_the_ranks_stand(self, four, tmp_path):
        """With --progress, a line says who has finished and where the others are."""
        line = "while rank and not os.path.exists('seen'): time.sleep(0.01)"
        told = f"rank 0 finished; ranks 1–3 in `{line}` at cell line 4"

        def seen(content):
            if told in content.get("data", {}).get("text/plain", ""):
                (tmp_path / "seen").touch()

        cell = f"import os, time\nos.chdir({str(tmp_path)!r})\n{line}"
        found = messages(four, f"%%ranks --progress\n{cell}", seen=seen)
        assert (tmp_path / "seen").exists()
        assert shown(found) == []  # the line goes when the cell is over

        (tmp_path / "seen").unlink()
        four.run("%ranks --progress")  # for all cells from now on
        messages(four, f"%%ranks\n{cell}", seen=seen)
        assert (tmp_path / "seen").exists()

    def test_a_progress_bar_is_one_line(self, four):
        """It is redrawn in place, and one bar stands for all ranks that are level."""
        cell = """%%ranks
import time
from tqdm import tqdm
for _ in tqdm(range(10), desc="steps"): time.sleep(0.05)"""
        found = messages(four, cell)
        [output] = shown(found)
        assert re.fullmatch(
            r"ranks 0–3: steps: 100%\|█+\| 10/10 \[.*it/s\]\n", output["text"]
        )
        drawn = [c["data"]["text/plain"] for _, k, c in found if "display" in k]
        assert len(drawn) > 2
        assert all(len(text.splitlines()) <= 4 for text in drawn)  # a line per rank

    def test_a_flood_is_cut_and_counted(self, four):
        """Jupyter would drop it all: "IOPub data rate exceeded"."""
        found = messages(four, "%%ranks\nfor i in range(50_000): print(rank // 4, i)")
        [output] = shown(found)
        text = output["text"]
        assert text.startswith("ranks 0–3: 0 0\n") and text.endswith(" 49999\n")
        [lines] = re.findall(r"\(\.\.\. ([\d,]+) lines, [\d,]+ characters left", text)
        assert len(text) < 101_000
        assert int(lines.replace(",", "")) + text.count("\n") - 1 == 50_000
        sent = sum(len(json.dumps(content)) for _, _, content in found)
        assert sent < 1_000_000 + 500_000 * found[-1][0]

    def test_a_line_of_ten_megabytes_is_cut_and_counted(self, four):
        """Its beginning and its end are shown, and the next cell works."""
        found = messages(four, "%%ranks\nprint('a' + 'x' * 10_000_000 + 'z')")
        [output] = shown(found)
        assert len(output["text"]) < 101_000
        assert re.search(r"x\n\(\.\.\. 9,9\d\d,\d+ characters left out", output["text"])
        assert output["text"].endswith("xz\n")
        assert four.run("%%ranks\n1")[0] == "ranks 0–3: 1\n"

    def test_a_late_print_of_a_thread_is_marked(self, four, tmp_path):
        """It appears under a cell that has not printed it, and says so."""
        flag = tmp_path / "over"
        four.run(
            "%%ranks\nimport os, threading, time\n"
            "def late():\n"
            f"    while not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
            "    print('done')\n"
            f"    open(f'{flag}{{rank}}', 'w').close()\n"
            "threading.Thread(target=late, name='saver').start()"
        )
        flag.touch()
        wait_for(lambda: len(list(tmp_path.glob("over?"))) == 4)
        four.run("x = 1\n%push x")  # which shows nothing, and must swallow nothing
        printed, _ = four.run(
            "%%ranks\nt = threading.Thread(target=print, args='p')\nt.start(); t.join()"
        )
        assert printed == "ranks 0–3: (saver, of an earlier cell) done\nranks 0–3: p\n"


class TestRichResults:
    """What a rank shows looks as it would in the kernel."""

    def html(self, kernel, cell: str) -> str:
        """Return the HTML that a cell shows."""
        [output] = shown(messages(kernel, f"%%ranks\n{cell}"))
        return output["data"]["text/html"]

    def test_the_last_value_is_shown_as_html_equal_ones_once(self, four):
        """Two different ones stand beside each other, each under its ranks."""
        html = self.html(
            four,
            "class Page:\n"
            "    def _repr_html_(self): return f'<b>{rank // 2}</b>'\n"
            "Page()",
        )
        assert re.findall(r"<figcaption>(.*?)</figcaption>(.*?)</figure>", html) == [
            ("ranks 0–1", "<b>0</b>"),
            ("ranks 2–3", "<b>1</b>"),
        ]

    def test_text_and_displays_keep_their_order(self, four):
        """What was printed before a display stands above it."""
        cell = """%%ranks
from IPython.display import HTML, display
print("before")
display(HTML("<i>x</i>"))
print("after")"""
        first, middle, last = shown(messages(four, cell))
        assert first["text"] == "ranks 0–3: before\n"
        assert (
            "<figcaption>ranks 0–3</figcaption><i>x</i>" in middle["data"]["text/html"]
        )
        assert last["text"] == "ranks 0–3: after\n"

    def test_figures_of_matplotlib(self, four):
        """Without a call of show, as the inline backend does it."""
        cell = "import matplotlib.pyplot as plt\nplt.plot([rank // 2, 1]);"
        html = self.html(four, cell)
        assert re.findall(r"<figcaption>(.*?)</figcaption><img", html) == [
            "ranks 0–1",
            "ranks 2–3",
        ]
        assert html.count("data:image/png;base64,iVBOR") == 2

    def test_a_display_is_updated_in_place(self, four):
        """A live curve is one picture, which changes."""
        cell = """%%ranks
import time
from IPython.display import HTML, display
handle = display(HTML("<b>0</b>"), display_id=True)
for step in range(1, 4):
    time.sleep(0.3)
    handle.update(HTML(f"<b>{step}</b>"))"""
        found = messages(four, cell)
        seen = [
            re.findall("<b>(.)</b>", content["data"]["text/html"])
            for _, kind, content in found
            if "display" in kind
        ]
        assert len(seen) >= 3 and all(
            len(drawn) <= 2 for drawn in seen
        )  # ranks may differ
        assert seen[-1] == ["3"]
        [output] = shown(found)
        assert "<b>3</b>" in output["data"]["text/html"]

    def test_clear_output_takes_back_what_a_rank_has_shown(self, four):
        """As in a loop that draws anew."""
        cell = """%%ranks
from IPython.display import clear_output
for step in range(3):
    clear_output(wait=True)
    print(step)"""
        assert [o["text"] for o in shown(messages(four, cell))] == ["ranks 0–3: 2\n"]

    def test_a_picture_that_fails_says_why(self, four):
        """The value is shown as text, below the exception of its method."""
        cell = "class Bad:\n    def _repr_html_(self): return 1 / 0\nBad()"
        printed, error = four.run(f"%%ranks\n{cell}")
        assert "ZeroDivisionError: division by zero" in printed and not error

    def test_what_is_executed_for_a_file_has_pictures_too(self, four):
        """They are in the saved notebook, as they would be without ranks."""
        cell = "%%ranks\nfrom IPython.display import HTML\nHTML('<b>saved</b>')"
        [(_, kind, content)] = messages(four, cell, stdin=False)
        assert kind == "display_data" and "<b>saved</b>" in content["data"]["text/html"]

    def test_a_widget_cannot_leave_its_rank(self, four):
        """Its model would be in another process than the one that the page talks to."""
        html = self.html(four, "import ipywidgets\nipywidgets.IntSlider()")
        assert "IntSlider(value=0) (widgets work in the notebook&#x27;s process" in html

    def test_markdown_is_left_to_the_front_end(self, four):
        """Only the front end can draw it, so it comes as it is."""
        cell = "%%ranks\nfrom IPython.display import Markdown\nMarkdown('*x*')"
        [output] = shown(messages(four, cell))
        assert output["data"]["text/markdown"] == "*x*"


class TestWhatIPythonUnderstands:
    """It works, or a sentence says what to do, and the ranks are kept."""

    @pytest.mark.parametrize(
        ("cell", "told"),
        [
            ("!echo hi {rank // 4}", "ranks 0–3: hi 0"),
            ("lines = !echo a; echo b\nlines", "ranks 0–3: ['a', 'b']"),
            ("rank?", "Type:        int"),
            ("nothing_such?", "ranks 0–3: Object `nothing_such` not found."),
            ("%matplotlib inline\n1", "ranks 0–3: 1"),
            ("%time rank", "UsageError: %time is a magic of the kernel"),
            ("x = %pwd", "UsageError: %pwd is a magic of the kernel"),
        ],
    )
    def test_lines_that_are_not_python(self, four, cell, told):
        """Shell commands and questions run on the ranks, magics in the kernel."""
        printed, error = four.run(f"%%ranks\n{cell}")
        assert told in printed and not error

    def test_await_at_the_top_level(self, four):
        """A cell may await, and tasks live on in the rank's event loop."""
        four.run("%%ranks\nimport asyncio\nasync def ten(): return 10")
        four.run("%%ranks\ntask = asyncio.get_event_loop_policy().get_event_loop()")
        assert four.run("%%ranks\nawait ten()")[0] == "ranks 0–3: 10\n"
        four.run("%%ranks\nawait asyncio.sleep(0)\ntask = asyncio.create_task(ten())")
        assert four.run("%%ranks\nawait task")[0] == "ranks 0–3: 10\n"

    @pytest.mark.parametrize(
        ("cell", "told"),
        [
            ("input('name: ')", "a rank has no keyboard"),
            ("import getpass; getpass.getpass()", "a rank has no keyboard"),
            ("breakpoint()", "%debug_rank opens the debugger"),
        ],
    )
    def test_what_would_wait_for_a_keyboard_is_refused(self, four, cell, told):
        """The sentence names the way out, and no variable is lost."""
        four.run("%%ranks\nkept = 1")
        _, error = four.run(f"%%ranks\n{cell}")
        assert told in error
        assert four.run("%%ranks\nkept")[0] == "ranks 0–3: 1\n"

    def test_a_syntax_error_shows_the_cells_line_only(self, four):
        """No frame of the package, and the line number is the cell's."""
        _, error = four.run("%%ranks\nx = 1\nx ==== 2")
        lines = error.splitlines()
        assert lines[0] == '  File "ranks cell 1", line 3' or "line 3" in lines[0]
        assert "x ==== 2" in error and error.endswith("SyntaxError: invalid syntax\n")
        assert "allranks" not in error


class TestStateIsKept:
    """A typo is no reason to lose a model."""

    def test_after_a_name_error(self, four):
        """The variables of earlier cells are there, and no line says otherwise."""
        four.run("%%ranks\nmodel = torch.nn.Linear(2, 2)")
        _, error = four.run("%%ranks\nmodle(torch.ones(2))")
        assert "NameError" in error
        assert four.run("%%ranks\nmodel.in_features") == ("ranks 0–3: 2\n", "")

    def test_after_the_stop_button(self, four, tmp_path):
        """Python code obeys the interrupt, so a long training can be looked at."""
        four.run("%%ranks\nstep = 0")
        begun = f"open(f'{tmp_path}/{{rank}}', 'w').close()"
        msg_id = four.start(f"%%ranks\n{begun}\nwhile True: step += 1")
        wait_for(lambda: len(list(tmp_path.iterdir())) == 4)
        four.manager.interrupt_kernel()
        _, error = four.finish(msg_id)
        assert error.startswith("RanksInterrupted: interrupted\nranks 0–3 run `while")
        assert error.endswith(
            "variables are kept; each rank stopped where it was, perhaps a step apart"
        )
        assert four.run("%%ranks\nstep > 0") == ("ranks 0–3: True\n", "")


class TestPostMortem:
    """``%debug_rank`` opens a debugger where a rank failed."""

    CELL = """%%ranks
def step(loss):
    if rank == 2:
        raise ValueError("diverged")
    dist.barrier()
step(100 + rank)"""

    def test_variables_of_the_failed_rank_while_the_others_hold(self, four):
        """Frames, variables and source of the cell can be seen; then it ends."""
        _, error = four.run(self.CELL)
        assert "ranks 0, 1 and 3 wait in `dist.barrier()` at cell line 5" in error
        found = messages(four, "%debug_rank 2", ["p loss", "up", "l", "q"])
        text = "".join(content["text"] for _, k, content in found if k == "stream")
        assert [prompt for _, k, prompt in found if k == "question"] == ["(Pdb) "] * 4
        assert "ValueError: diverged\n" in text and "\n102\n" in text
        assert "->\tstep(100 + rank)" in text and "allranks" not in text
        printed, _ = four.run("%%ranks\nrank // 4")
        assert printed.startswith("(fresh ranks: ") and printed.endswith(
            "ranks 0–3: 0\n"
        )

    def test_a_rank_that_was_kept_goes_on(self, four):
        """After an exception on all ranks, the variables outlive the debugger."""
        four.run("%%ranks\nkept = 5\n1 / 0")
        messages(four, "%debug_rank 0", ["p kept", "q"])
        assert four.run("%%ranks\nkept")[0] == "ranks 0–3: 5\n"

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("%debug_rank 1", "rank 1 has no exception to look at"),
            ("%debug_rank 7", "there is no rank 7: ranks go from 0 to 3"),
            ("%debug_rank x", "invalid int value: 'x'"),
        ],
    )
    def test_without_an_exception_a_sentence_says_so(self, four, line, told):
        """One line, and the ranks are kept."""
        four.run("%%ranks\nkept = 5")
        printed, error = four.run(line)
        assert told in printed and len(printed.splitlines()) == 1 and not error
        assert four.run("%%ranks\nkept")[0] == "ranks 0–3: 5\n"

    def test_where_nobody_can_type_it_ends(self, four):
        """As in nbconvert, which must not hang."""
        four.run("%%ranks\n1 / 0")
        found = messages(four, "%debug_rank 0", stdin=False)
        text = "".join(content["text"] for _, k, content in found if k == "stream")
        assert "nobody can answer here" in text
        assert four.run("%%ranks\nrank // 4")[0] == "ranks 0–3: 0\n"


class TestVariablesTravel:
    """``%push`` and ``%pull`` move values between the notebook and the ranks."""

    def test_push_copies_to_all_ranks_or_some(self, four):
        """Each rank has its own copy."""
        four.run("lr, sizes = 0.1, [1, 2]\n%push lr, sizes")
        assert four.run("%%ranks\nsizes.append(rank)\nlr, sizes[:2]")[0] == (
            "ranks 0–3: (0.1, [1, 2])\n"
        )
        four.run("lr = 0.2\n%push lr --on 1,2")
        assert "ranks 1–2: 0.2\n" in four.run("%%ranks --on 1,2\nlr")[0]
        assert four.run("%%ranks --on 0,3\nlr")[0] == "ranks 0 and 3: 0.1\n"

    def test_pull_brings_one_value_if_all_are_equal_else_a_list(self, four):
        """Tensors are compared by their values, and the line says what came."""
        four.run(
            "%%ranks\n"
            "a = {'w': torch.ones(2), 'n': float('nan')}\n"
            "b = torch.ones(1) * rank"
        )
        assert four.run("%pull a b")[0] == "a: one value\nb: a list of 4, by rank\n"
        code = "print(a['w'].tolist(), [x.item() for x in b])"
        assert four.run(code)[0] == "[1.0, 1.0] [0.0, 1.0, 2.0, 3.0]\n"

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("%push nothing", "%push nothing: the notebook has no such variable"),
            ("%push 3x", "'3x' is not the name of a variable"),
            ("%push gen", "gen: cannot go to the ranks"),
            ("%pull nothing", "ranks 0–3: NameError: name 'nothing' is not defined"),
            ("%pull gen", "a result of type generator cannot leave its rank"),
            ("%push lr --on 9", "there is no rank 9: ranks go from 0 to 3"),
        ],
    )
    def test_what_cannot_travel_is_named(self, four, line, told):
        """One line, and the ranks are kept."""
        four.run("gen, lr = (i for i in [1]), 1")
        four.run("%%ranks\ngen, kept = (i for i in [1]), 7")
        printed, error = four.run(line)
        assert told in printed and len(printed.splitlines()) == 1 and not error
        assert four.run("%%ranks\nkept")[0] == "ranks 0–3: 7\n"

    def test_only_and_from(self, four):
        """``--only`` runs a cell on some ranks, ``--from`` shows some of them."""
        assert four.run("%%ranks --only 2\nrank")[0] == "rank 2: 2\n"
        assert (
            four.run("%%ranks --from 0,1\nseen = 1\nrank")[0]
            == "rank 0: 0\nrank 1: 1\n"
        )
        assert four.run("%%ranks\nseen")[0] == "ranks 0–3: 1\n"
        assert "there is no rank 9" in four.run("%%ranks --from 9\nrank")[0]
