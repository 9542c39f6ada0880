"""What is shown of ranks: in its final form, while they run, and on a terminal."""

import contextlib
import os
import pty
import threading

import pytest

from allranks import Ranks
from allranks.base.report import fold
from allranks.live import screen
from allranks.live.transcript import KEPT, Transcript, left_out, settle, shortened


def transcript(*pieces: str | tuple) -> Transcript:
    """Return a transcript of printed texts and of messages of a rank."""
    made = Transcript(0)
    for piece in pieces:
        if isinstance(piece, str):
            made.add(piece.encode())
        else:
            kind, *rest = piece
            made.message((kind, made.end, *rest))
    return made


def display(html: str, display_id: str | None = None, update: bool = False) -> tuple:
    """Return the message of a rank that displays some HTML."""
    data = {"text/plain": "<object at 0x7f>", "text/html": html}
    return "display", data, {}, display_id, update


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("a\rb\n", "b\n"),
        ("long line\rshort\n", "shortline\n"),
        ("0%\r50%\r100%", "100%"),
        ("one\ntwo\x1b[A\rONE\n", "ONE\ntwo"),
        ("abc\x1b[2K\rd", "d"),
        ("abc\b\bX", "aXc"),
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),
        ("a\r\nb\n", "a\nb\n"),
    ],
)
def test_a_text_settles_to_what_a_terminal_shows(printed, seen):
    """Carriage returns, backspaces and moves upward write over what was there."""
    assert settle(printed) == seen


def test_texts_and_displays_come_in_turn():
    """A display stands between what was printed before it and after it."""
    made = transcript("a\n", display("<b>1</b>"), "b\n", display("<b>2</b>"))
    before, first, between, second, after = made.parts()
    assert (before, between, after) == ("a\n", "b\n", "")
    assert [d.data["text/html"] for d in (first, second)] == ["<b>1</b>", "<b>2</b>"]


def test_an_update_replaces_and_a_clear_takes_back():
    """An update with no display to update becomes one."""
    made = transcript(display("1", "id"), "x\n", display("2", "id", update=True))
    assert [p.data["text/html"] for p in made.parts() if not isinstance(p, str)] == [
        "2"
    ]
    made = transcript("old\n", display("1"), ("clear",), "new\n")
    assert made.parts() == ["new\n"] and made.text() == "new\n"
    assert len(transcript(display("3", "other", update=True)).parts()) == 3


def test_what_is_left_out_is_counted_in_all_its_places():
    """The middle of a flood is dropped early, and more of it when it is shown."""
    made = transcript()
    line = b"0123456789\n"
    number = 3 * KEPT // len(line)
    made.add(line * number)
    text = shortened(fold([made.text()], [0]), 1000)
    [note] = [row for row in text.splitlines() if "left out" in row]
    left = int(note.split()[1].replace(",", ""))
    assert left + len(text.splitlines()) - 1 in (
        number,
        number + 1,
    )  # one is cut in two
    assert shortened("short", 1000) == "short"
    assert left_out(0, 1234) == "\n(... 1,234 characters left out here ...)\n"


def test_the_final_form_is_by_rank_and_the_area_by_line():
    """Only the area depends on which rank was faster."""
    shown = {0: transcript("a\nb\n"), 1: transcript("a\nc\n"), 2: transcript("a\n")}
    assert screen.final(shown) == [
        "rank 0: a\nrank 0: b\nrank 1: a\nrank 1: c\nrank 2: a"
    ]
    area = screen._area(shown, "3 s")
    assert area == {"text/plain": "ranks 0–2: a\nrank 0: b\nrank 1: c\n3 s"}


def test_the_area_shows_the_last_lines_and_counts_the_others():
    """A front end must not be flooded ten times a second."""
    shown = {0: transcript("".join(f"{n}\n" for n in range(1000)))}
    rows = screen._area(shown, "")["text/plain"].splitlines()
    assert rows[0] == "(... 970 lines before these ...)"
    assert rows[1:] == [f"rank 0: {n}" for n in range(970, 1000)]


def test_a_heavy_picture_is_drawn_less_often(monkeypatch):
    """Ten times a second it would be more than Jupyter's servers let through."""
    notebook, drawn = screen.Notebook(alone=True), []
    monkeypatch.setattr(notebook, "_draw", drawn.append)
    clock = iter(range(100))
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(clock) / 10)
    for step in range(20):  # two seconds
        notebook.update({0: transcript(display(f"{step}" + "x" * 100_000))})
    assert 3 <= len(drawn) <= 6
    for step in range(20):
        notebook.update({0: transcript(f"{step}\n")})
    assert len(drawn) > 15


def test_level_progress_bars_are_one_whatever_their_speed():
    """Elapsed time and rate differ by rank, and say nothing that matters here."""
    bars = [
        "50%|#  | 1/2 [00:01<00:01,  1.0it/s]",
        "50%|#  | 1/2 [00:02<00:02,  2.0s/it]",
    ]
    assert screen.final({r: transcript(bar) for r, bar in enumerate(bars)}) == [
        f"ranks 0–1: {bars[0]}"
    ]
    assert len(screen.final({0: transcript("1/2 a"), 1: transcript("1/2 b")})[0]) > 20


def test_what_only_a_front_end_can_draw_is_passed_on():
    """A picture that we can put into HTML stands beside the others."""
    data = {"text/plain": "x", "text/latex": "$x$"}
    [bundle] = screen._beside({1: screen.Display(data, {})})
    assert bundle == data
    png = {"text/plain": "<Figure>", "image/png": "aGk=\n"}
    [bundle] = screen._beside({0: screen.Display(png, {}), 1: screen.Display(png, {})})
    assert (
        '<img src="data:image/png;base64,aGk=" alt="&lt;Figure&gt;"'
        in (bundle["text/html"])
    )
    assert bundle["text/html"].count("<figure") == 1


CELL = r"""
import os, time
print("first", rank)
while not os.path.exists("SEEN"): time.sleep(0.01)
for n in range(3):
    print(f"\r{n} of 2", end="")
    time.sleep(0.3)
print("\ndone")
"""


def test_a_terminal_shows_lines_at_once_and_redraws_what_is_not_finished(
    tmp_path, monkeypatch
):
    """What stays on the screen in the end is each line once, in its order."""
    flag, data = tmp_path / "seen", bytearray()
    ours, theirs = pty.openpty()

    def watch() -> None:
        with contextlib.suppress(OSError):  # the other end has been closed
            while piece := os.read(ours, 4096):
                data.extend(piece)
                if b"first 1" in data:
                    flag.touch()  # only now does the cell go on

    watcher = threading.Thread(target=watch)
    watcher.start()
    with Ranks(2) as ranks, open(theirs, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        ranks.run_cell(CELL.replace("SEEN", str(flag)), "cell")
    watcher.join()
    os.close(ours)
    text = data.decode()
    assert settled_screen(text).split("\n") == [
        "rank 0: first 0",
        "rank 1: first 1",
        "ranks 0–1: 2 of 2",
        "ranks 0–1: done",
        "",
    ]
    assert "0 of 2" in text and "\x1b[1A" in text  # it was drawn, and drawn over


def test_a_terminal_counts_what_it_does_not_print(capsys):
    """Half a million lines would take minutes."""
    terminal = screen.Terminal()
    terminal.finish({0: transcript("".join(f"{n}\n" for n in range(10_000)))})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "(... 9,500 lines left out here ...)"
    assert lines[1:] == [f"rank 0: {n}" for n in range(9_500, 10_000)]


def settled_screen(text: str) -> str:
    """Return what a terminal shows after a text that erases below the cursor."""
    lines = [""]
    for piece in text.replace("\r\n", "\n").replace("\x1b[J", "\x1b[J\0").split("\n"):
        while "\x1b[" in piece:
            before, _, rest = piece.partition("\x1b[")
            lines[-1] += before
            code, _, piece = rest.partition("\0") if "J" in rest else ("", "", rest)
            up = int(code.split("A")[0] or 1)
            del lines[len(lines) - 1 - up :]
            lines.append("")
        lines[-1] += piece
        lines.append("")
    return "\n".join(lines[:-1])
