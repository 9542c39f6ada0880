"""A pipe is passed on at once, kept in little memory, and read on after Ctrl-C."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from allranks.base.paths import ROOT
from allranks.diagnose import reading

DIAGNOSE = [sys.executable, "-m", "allranks.diagnose"]
LOG = b"Epoch 1\n[rank1]: KeyError: 'LOCAL_RANK'\n"
RULE = b"--- python -m allranks.diagnose:\n"


def start(*arguments, **how):
    """Start the command with pipes, in a session of its own."""
    how = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | how
    return subprocess.Popen(
        [*DIAGNOSE, *arguments], cwd=ROOT, start_new_session=True, **how
    )


def run(*arguments, given=b"", **how):
    """Run the command and return its exit code, stdout and stderr."""
    with start(*arguments, **how) as process:
        out, error = process.communicate(given, timeout=60)
    return process.returncode, out, error


def until(stream, end):
    """Read until the text ends with these bytes."""
    text = b""
    while not text.endswith(end):
        assert select.select([stream], [], [], 30)[0], text
        part = os.read(stream.fileno(), 1)
        assert part, text
        text += part
    return text


def test_what_comes_goes_on_at_once():
    """Bytes are passed on unchanged, parts of lines too, before the next ones come."""
    parts = (
        b"rank 0 is ready",
        b"\n 10%|#  |\r",
        b"\x1b[31m\xff\xfe\0",
        b" 20%|## |\r\n",
    )
    with start() as process:
        for part in parts:
            process.stdin.write(part)
            process.stdin.flush()
            assert until(process.stdout, part) == part
        process.stdin.write(LOG[:-1])
        process.stdin.close()
        rest = process.stdout.read()
        assert rest.startswith(LOG[:-1] + b"\n" + RULE), rest
        assert b"local-rank-keyerror" in rest and process.stderr.read() == b""
        assert process.wait(60) == 0


def test_what_is_passed_on_and_where():
    """stdout has the log and the answer; with --json or --quiet only the answer."""
    noise = b"caf\xe9 \x1b[0m 10%|\r" * 20_000 + b"\n"
    code, out, error = run(given=LOG + noise)
    assert (code, error) == (0, b"")
    assert out.startswith(LOG + noise + RULE) and b"local-rank" in out[-1500:]
    code, out, error = run("--json", given=LOG)
    assert (code, error) == (0, LOG) and out.startswith(b'{\n "known": true')
    code, out, error = run("--quiet", given=LOG)
    assert (code, error) == (0, b"") and out.startswith(b"1. KeyError LOCAL_RANK")


def test_a_file_on_stdin_is_not_shown(tmp_path):
    """A file is complete already, so it is not passed on, only diagnosed."""
    (tmp_path / "log").write_bytes(LOG)
    with open(tmp_path / "log", "rb") as file:
        code, out, error = run(stdin=file, given=None)
    assert (code, error) == (0, b"") and out.startswith(b"1. KeyError LOCAL_RANK")


@pytest.mark.parametrize(
    ("where", "why"),
    [("full", b"No space left"), ("gone", b"Broken pipe"), ("closed", b"is closed")],
)
def test_a_stdout_that_takes_no_more(where, why):
    """After one sentence the job is still read to its end; stderr has the answer."""
    how = {"stdout": open("/dev/full", "wb")} if where == "full" else {}  # noqa: SIM115
    how |= {"preexec_fn": lambda: os.close(1)} if where == "closed" else {}
    with start(**how) as process:
        if where == "gone":
            process.stdout.close()
        process.stdin.write(b"step\n" * 200_000 + LOG)
        process.stdin.close()
        error = process.stderr.read()
        assert process.wait(60) == 0
    first, rest = error.split(b"\n", 1)
    assert first.startswith(b"diagnose: ") and why in first
    assert rest.count(b"diagnose: ") == 0 and b"local-rank-keyerror" in rest
    if where == "full":
        how["stdout"].close()


def test_an_answer_that_cannot_be_written(tmp_path):
    """A full disk gives a sentence and exit code 2; ``| head`` gives neither."""
    (tmp_path / "log").write_bytes(LOG)
    with open("/dev/full", "wb") as full:
        code, _, error = run(str(tmp_path / "log"), stdout=full)
    assert code == 2
    assert error == b"diagnose: the answer cannot be written: No space left on device\n"
    with start(str(tmp_path / "log")) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 0


HANG = r"""
import sys, time
print("rank 0 is ready\nrank 1 is r", end="", flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:999", flush=True)
    raise
"""


def in_terminal(script, keys, *, wait):
    """Return what a terminal shows of a script; press Ctrl-C after each of the keys."""
    child, screen = pty.fork()
    if not child:
        os.chdir(ROOT)
        os.execvp("bash", ["bash", "-c", script])
    text, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([screen], [], [], 0.2)[0]:
            try:
                part = os.read(screen, 4096)
            except OSError:  # on Linux this means that the other side is closed
                part = b""
            if not part:
                break
            text += part
        if keys and keys[0] in text:
            time.sleep(wait)
            os.write(screen, b"\x03")
            keys = keys[1:]
    else:
        os.kill(child, signal.SIGKILL)
    os.close(screen)
    os.waitpid(child, 0)
    return text.replace(b"\r\n", b"\n").decode()


def test_control_c_on_a_hang(tmp_path):
    """The whole pipe gets Ctrl-C; then the answer follows, and it blames no peer."""
    (tmp_path / "job.py").write_text(HANG, "utf8")
    job = f"{sys.executable} {tmp_path / 'job.py'}"
    script = f"{job} 2>&1 | {' '.join(DIAGNOSE)}; echo exit ${{PIPESTATUS[1]}}"
    text = in_terminal(script, [b"rank 1 is r"], wait=1.5)
    log, answer = text.split(RULE.decode())
    assert "Connection closed by peer" in log and "KeyboardInterrupt" in log
    flat = " ".join(answer.split())
    assert flat.startswith("You ended a job that stood still: nothing came for "), text
    assert "book/app_clinic_hangs.html" in flat and "exit 1" in flat
    assert "peer" not in flat and "(line 2 of stdin)" in flat


def test_a_second_control_c_does_not_wait():
    """If the job outlives Ctrl-C, a second one brings the answer for what has come."""
    with start() as process:
        process.stdin.write(LOG)
        process.stdin.flush()
        until(process.stdout, LOG)
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"still here\n")
        process.stdin.flush()
        until(process.stdout, b"still here\n")
        process.send_signal(signal.SIGINT)
        text = process.stdout.read().decode()
        assert process.wait(60) == 0
    assert "local-rank-keyerror" in text
    assert "After that the job was ended by Ctrl-C (line 3 of stdin)" in text


def test_a_job_that_spoke_is_not_called_still(monkeypatch):
    """Silence only counts as a hang if it was longer than any pause before it."""
    clock = iter([50, 51, 55, 58, 9, 10, 10.5, 3])
    monkeypatch.setattr(reading.time, "monotonic", lambda: next(clock))
    came = reading.Received()
    for part in b"a\n", b"b", b"c\n":
        came.add(part)
    came.interrupt()  # after 3 s; the longest pause was 4 s, without the start
    assert not came.stood and came.ended == came.lines == 2
    came = reading.Received()
    came.add(b"a\n")
    came.add(b"b\n")
    came.interrupt()  # after 0.5 s
    assert not came.stood
    came = reading.Received(_last=0)
    came.interrupt()  # after 3 s without a word
    assert came.stood and came.ended == 0


def test_of_a_long_pipe_the_end_is_kept(monkeypatch):
    """The log of a job that runs for days is passed on; its last part is diagnosed."""
    monkeypatch.setattr(reading, "LIMIT", 1000)
    monkeypatch.setattr(reading, "CHUNK", 100)
    came = reading.Received()
    for i in range(500):
        came.add(b"line %d\n" % i)
    kept = b"".join(came.taken())
    assert 800 < len(kept) <= 1000 and kept.endswith(b"line 499\n")
    assert came.size == sum(len(b"line %d\n" % i) for i in range(500))
    assert came.lines == kept.count(b"\n")


PEAK = r"""
import resource, sys
from allranks.diagnose import command as diagnose
code = diagnose.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_memory_is_at_most_three_times_the_log(tmp_path):
    """This holds for a file and a pipe, with signs, prefixes and progress bars."""
    lines = [
        f"[rank{i % 8}]: step {i} loss 2.31 | lr 0.001 \u2588\u2588\u258f {i:x}"
        for i in range(3000)
    ]
    bars = "\r".join(f" {i}%|\u2588\u2588| {i}/100" for i in range(100))
    data = "\n".join([*lines, bars, ""]).encode() * 130 + LOG
    (tmp_path / "log").write_bytes(data)
    (tmp_path / "one").write_bytes(LOG)

    def peak(*arguments, given=None):
        command = [sys.executable, "-c", PEAK, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, input=given, capture_output=True, check=True
        )
        assert b"local-rank-keyerror" in done.stdout
        return 1024 * int(done.stderr)

    assert len(data) > 20e6
    bare = peak(str(tmp_path / "one"))
    assert peak(str(tmp_path / "log")) - bare < 3 * len(data)
    assert peak("--quiet", given=data) - bare < 3 * len(data)
