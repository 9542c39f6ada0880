"""Described symptoms lead to cases, by words and by questions, here and on the page."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from allranks import clinic
from allranks.base.paths import ROOT
from allranks.diagnose import described, page
from allranks.diagnose.command import main, spoken
from allranks.diagnose.described import candidates, ranked, symptoms, table
from allranks.diagnose.text import Log
from tests.allranks.diagnose.answering import (
    FIVE,
    THREE,
    answers,
    place,
    share,
    words,
)
from tests.clinic import measure

CASES = clinic.folder(ROOT / "clinic")
SLUGS = {case.slug for case in CASES}
HERE = Path(__file__).parent
QUESTIONS = json.loads((HERE / "questions.json").read_text("utf8"))
THREADS = json.loads((HERE / "threads.json").read_text("utf8"))
WALKS = json.loads((HERE / "walks.json").read_text("utf8"))
ENGLISH = "My training hangs at the end of the epoch."
CHINESE = "训练到一个 epoch 结束的时候就卡住了"
TABLE = table(CASES)
LEAVES = 5  # cases at most


def leaves(tree: list[dict]) -> Iterator[dict]:
    """Yield the answers that end at cases."""
    for one in tree:
        if "see" in one:
            assert one["ask"].endswith("?") and "cases" not in one, one["answer"]
            yield from leaves(one["see"])
        else:
            yield one


def led(answers: list[str]) -> set[str]:
    """Return the cases at which these answers end."""
    tree = symptoms()["see"]
    for answer in answers:
        (chosen,) = [one for one in tree if one["answer"] == answer]
        tree = chosen.get("see", [])
    return set(chosen["cases"].split())


class TestTree:
    """The tree leads to every case."""

    def test_every_case_is_reached(self):
        """Each leaf has one to five cases that exist, and none is left out."""
        reached = set()
        for leaf in leaves(symptoms()["see"]):
            cases = leaf["cases"].split()
            assert 1 <= len(cases) == len(set(cases)) <= LEAVES, leaf["answer"]
            assert SLUGS.issuperset(cases), leaf["answer"]
            reached |= set(cases)
        assert reached == SLUGS

    def test_the_answers_that_fit_a_thread_lead_to_its_case(self):
        """For 30 threads an author of the tree, not told the cases, chose two ways.

        The first ended at a case that was the matter for 26 of them, the second for
        three more. Afterwards one case was put where it had been looked for: 27 and 29.
        """
        assert len(WALKS) == 30
        ends = [[led(walk) for walk in row["walks"]] for row in WALKS]
        wanted = [{a.rpartition("#clinic-")[2] for a in row["cases"]} for row in WALKS]
        first = [bool(case & end[0]) for case, end in zip(wanted, ends, strict=True)]
        either = [any(c & e for e in end) for c, end in zip(wanted, ends, strict=True)]
        assert (sum(first), sum(either)) == (27, 29)

    def test_no_two_answers_of_a_question_are_alike(self):
        """Whoever is asked can tell the answers apart."""

        def walk(tree: list[dict]) -> None:
            answered = [one["answer"] for one in tree]
            assert len(answered) == len(set(answered)), answered
            for one in tree:
                walk(one.get("see", []))

        walk(symptoms()["see"])

    def test_every_case_has_words_and_every_word_a_case(self):
        """The table names all cases, things that exist, and no thing in vain."""
        data = symptoms()
        assert set(data["cases"]) == SLUGS
        pages = [page["things"] for page in data["pages"].values()]
        said = [*data["cases"].values(), *pages]
        used = {thing for one in said for thing in one.split()}
        assert used == set(data["words"])
        assert used.issuperset(data["main"].split() + data["vague"].split())
        assert SLUGS.issuperset(data["seldom"].split())


class TestWords:
    """What somebody writes finds the cases that it may be."""

    def test_described_threads_are_answered(self):
        """A case that was the matter is among the first three, or five.

        ``python tests/bench threads FILE`` prints the shares of any such file.
        """
        answer = answers(CASES)
        places = {words(row): place(row, answer(words(row))) for row in THREADS}
        missed = [text for text, found in places.items() if not found]
        assert share([*places.values()], 3) >= THREE, missed
        assert share([*places.values()], 5) >= FIVE, missed

    def test_threads_name_cases_and_their_source(self):
        """Half of the descriptions are of real threads, each of which is there once."""
        urls = [row["url"] for row in THREADS if row["url"]]
        assert len(urls) == len(set(urls)) >= len(THREADS) / 2
        for row in THREADS:
            for address in row["cases"]:
                page, _, slug = address.partition("#clinic-")
                case = next(case for case in CASES if case.slug == slug)
                assert page == f"book/{clinic.CLASSES[case.fields['class']]}.html"

    @pytest.mark.parametrize("text", [ENGLISH, CHINESE])
    def test_both_languages(self, text):
        """The same symptom finds the same case."""
        assert "ddp-uneven-inputs" in candidates(Log(("text", text)), TABLE)[:3]

    def test_a_word_close_by_or_right_behind(self):
        """Words of a term stand near each other; those with hyphens in a row."""
        text = described.normal("at the end of this (second) epoch")
        assert described.near(text, [" epoch", " end"])
        assert not described.near(text, [" end epoch"])
        far = described.normal("the end " + "of a long story " * 5 + "of an epoch")
        assert not described.near(far, [" epoch", " end"])

    def test_what_is_no_description_gets_no_candidates(self):
        """Neither an error that nobody knows nor a long text, and few healthy logs."""
        error = "it hangs at the end of the epoch\nBrianError: he is not the Messiah"
        for text in error, "my training hangs\n" * 13, "all is well", "", "1 2 3":
            assert candidates(Log(("text", text)), TABLE) == []
        logs = measure.healthy()
        told = [
            name for name, log in logs.items() if candidates(Log((name, log)), TABLE)
        ]
        assert len(told) <= len(logs) / 10, told

    def test_questions_find_their_case_or_page(self):
        """Slowness, memory, batch sizes and launchers are found, whoever asks."""
        answers = {
            text: candidates(Log(("text", text)), TABLE) for text in QUESTIONS["asked"]
        }
        right = {text: row.split() for text, row in QUESTIONS["asked"].items()}
        first = [text for text, found in answers.items() if found[:1][0] in right[text]]
        assert len(first) >= 0.8 * len(answers)
        for text, found in answers.items():
            assert set(right[text]) & set(found), text

    def test_questions_about_something_else_get_nothing(self):
        """At most one in ten questions that are not about this book is answered."""
        other = QUESTIONS["other"]
        told = [text for text in other if candidates(Log(("text", text)), TABLE)]
        assert len(told) <= len(other) / 10, told

    def test_questions_without_a_case_get_no_list(self):
        """A sentence on training that no case answers gets two names at most."""
        none = QUESTIONS["none"]
        found = {text: candidates(Log(("text", text)), TABLE) for text in none}
        told = {text: names for text, names in found.items() if len(names) > 2}
        assert len(told) <= len(none) / 5, told
        assert sum(map(bool, found.values())) <= len(none) / 2

    def test_one_thing_is_too_little(self):
        """The end of an epoch is no failure, but a hang at the end of one is."""
        said = "The log shows a loss of 0.3 after the first epoch, is that normal?"
        assert candidates(Log(("text", said)), TABLE) == []
        assert candidates(Log(("text", "it hangs after the first epoch")), TABLE)

    def test_words_of_grammar_begin_no_others(self):
        """ "No batch" is not "one node, batch size"; cards are counted as GPUs."""
        assert not described.near(
            described.normal("node batchsize"), [" no ", " batch"]
        )
        assert described.needle("no") == " no "
        assert " 8 gpu " in described.normal("8xA100 instead of 1xA100")

    def test_a_page_that_answers_is_there(self):
        """Each page names a heading of the book, and no page is called like a case."""
        for name, section in symptoms()["pages"].items():
            assert name not in SLUGS
            file, _, anchor = section["read"].partition("#")
            text = (ROOT / "book" / f"{file}.md").read_text("utf8")
            heads = re.findall(r"^#+ (.+)$", text, re.M)
            slugs = [re.sub("[^a-z0-9]+", "-", h.lower()).strip("-") for h in heads]
            assert anchor in slugs, section["read"]

    def test_the_page_finds_the_same(self):
        """described.js names the same cases, with the same scores, for all threads."""
        texts = [words(row) for row in THREADS]
        texts += [text for some in QUESTIONS.values() for text in some]
        texts += [
            *measure.healthy().values(),
            "",
            ENGLISH,
            CHINESE,
            "İt hangs, 40 GPUs",
        ]
        texts += [log[:300] for log in measure.healthy().values()]
        scripts = [ROOT / "book/_static" / f"{n}.js" for n in ("diagnose", "described")]
        command = [compute_driver_executable()[0], HERE / "described.cjs", *scripts]
        given = json.dumps({"signs": page.table([]), "table": TABLE, "texts": texts})
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=100
        )
        assert not done.returncode, done.stderr
        for text, (named, scores) in zip(texts, json.loads(done.stdout), strict=True):
            assert named == candidates(Log(("text", text)), TABLE), text
            mine = ranked(text, TABLE)
            assert [slug for _, slug in scores] == [slug for _, slug in mine], text
            assert [s for s, _ in scores] == pytest.approx([s for s, _ in mine])


class TestCommand:
    """The shell answers descriptions, and asks."""

    def test_a_sentence_instead_of_a_log(self, capsys):
        """What is no file but words is a description; a missing file stays one."""
        assert main([ENGLISH]) == 1
        text = " ".join(capsys.readouterr().out.split())
        assert (
            text.startswith("Not known: none of ") and "it may be one of these" in text
        )
        assert "ddp-uneven-inputs (DDP; hangs) Cause: " in text
        assert "book/app_clinic_ddp.html#clinic-ddp-uneven-inputs" in text
        assert main([CHINESE]) == 1
        assert "ddp-uneven-inputs" in capsys.readouterr().out
        for name in "runs/my train.log", "my train.log", "train":
            assert main([name]) == 2
            assert "No such file" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("the loss is off by 1/world_size on 4 GPUs", True),
            ("srun torchrun / torchrun, which one do I need?", True),
            ("it hangs in epoch 2 of train.py", True),
            ("多机/单机训练卡住", True),
            ("runs/my train.log", False),
            ("my train.log", False),
            ("./it hangs at the end of the epoch", False),
            ("/var/log/it hangs at the end of the epoch", False),
            ("train", False),
            ("日志/训练.log", False),
        ],
    )
    def test_a_slash_makes_no_path_of_a_sentence(self, text, sentence, capsys):
        """A sentence may have a slash or a file's name; a file has few words."""
        assert spoken(text) == sentence
        assert main([text]) == (1 if sentence else 2)
        assert bool(capsys.readouterr().err) != sentence

    def test_a_section_answers_a_question(self, capsys):
        """What is no failure is answered by a section of the book."""
        question = "Is the batch size with DDP per GPU or the total?"
        assert main([question]) == 1
        text = " ".join(capsys.readouterr().out.split())
        assert "What is the batch size now? a section of the book The batch" in text
        assert "book/ch4_ranks.html#what-is-the-batch-size-now" in text
        assert main(["--json", question]) == 1
        told = json.loads(capsys.readouterr().out)["candidates"]
        (page,) = (one for one in told if one.get("page") == "batch-size")
        assert {"title", "says", "read"} <= set(page) and "slug" not in page

    def test_words_that_fit_nothing_are_told_so(self, capsys):
        """Nobody is sent to five cases that have nothing to do with the question."""
        assert main(["how do I plot a confusion matrix"]) == 1
        text = " ".join(capsys.readouterr().out.split())
        assert text.startswith("Not known: nothing in the book fits these words.")

    def test_candidates_are_not_known_to_tools(self, capsys):
        """``--json`` keeps them apart from what a log shows."""
        assert main(["--json", ENGLISH]) == 1
        told = json.loads(capsys.readouterr().out)
        assert (told["known"], told["found"]) == (False, [])
        assert 1 <= len(told["candidates"]) <= 5
        assert {"slug", "title", "cause", "cure", "read"} <= set(told["candidates"][0])

    def test_asking_needs_a_terminal(self):
        """Without one, a sentence says what to do instead."""
        command = [sys.executable, "-m", "allranks.diagnose", "--ask"]
        done = subprocess.run(command, cwd=ROOT, input=b"1\n", capture_output=True)
        assert done.returncode == 2 and not done.stdout
        assert len(done.stderr.splitlines()) == 1
        assert b"--ask asks in a terminal" in done.stderr
        with pytest.raises(SystemExit, match="2"):
            main(["--ask", "train.log"])

    @pytest.mark.parametrize(
        ("typed", "code"),
        [
            ("1\n4\n0\n0\n0\n", 0),  # to the cases, and back to the end
            ("1\n4\n\x04", 0),  # Ctrl-D beside the cases
            ("1\nx\n99\n\n0\n0\n", 1),  # nonsense, and no case was shown
            ("1\n\x04", 1),
        ],
    )
    def test_questions_end_at_cases(self, typed, code):
        """A number answers, 0 goes back, and Ctrl-D ends without a word."""
        done, text, errors = asked(typed)
        assert (done, errors) == (code, "")
        first = symptoms()["see"][0]
        assert first["answer"] in text and first["ask"] in text
        shown = first["see"][3]["cases"].split()
        assert all((f"   {slug} (" in text) == (code == 0) for slug in shown)
        if "x" in typed:
            assert text.count("Type a number from 0 to ") == 3
        if typed.endswith("0\n0\n"):
            assert text.count("What do you see?") == 2
        if typed.endswith("0\n0\n0\n"):  # one question at a time
            assert text.count(first["ask"]) == 2

    def test_ctrl_c_ends_quietly(self):
        """It is no traceback."""
        done, text, errors = asked("1\n", stop=True)
        assert (done, errors) == (1, "") and "What do you see?" in text


def asked(typed: str, stop: bool = False) -> tuple[int, str, str]:
    """Type into ``--ask`` in a terminal; return its exit code, stdout and stderr."""
    keys, terminal = pty.openpty()
    command = [sys.executable, "-u", "-m", "allranks.diagnose", "--ask"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, stdin=terminal, **pipes) as process:
        try:
            os.write(keys, typed.encode())
            text = b""
            while stop and symptoms()["see"][0]["ask"].encode() not in text:
                text += os.read(process.stdout.fileno(), 2**16)
            if stop:
                process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(keys)
            os.close(terminal)
    return process.returncode, (text + rest).decode(), errors.decode()
