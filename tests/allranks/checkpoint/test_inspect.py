"""Inspect shows what is in a file, in words that are safe to print."""

import torch

from allranks.checkpoint.command import main
from allranks.checkpoint.inspect import table
from tests.allranks.checkpoint.files import WEIGHT


def test_counts_numbers_that_are_there():
    """Views of one buffer aren't called tied, and an expanded tensor is one number."""
    flat = torch.ones(160)
    parts = {str(i): flat[i * 40 : i * 40 + 40] for i in range(4)}
    lines = table(parts | {"tied": parts["0"]})
    assert lines[0].startswith("160 numbers")
    assert [line.split("memory of ")[1:] for line in lines[1:]] == [[]] * 4 + [["0"]]
    assert table({"x": torch.zeros(1).expand(10**12)})[0].startswith("1 num")


def test_names_cannot_play_tricks_on_the_terminal(saved, capsys):
    """Control characters, line breaks and lone surrogates are escaped."""
    wild = {"\x1b[2Jw\n\ud800": WEIGHT, "n": "x" * 9999}
    main(["inspect", str(saved({"model": wild, "\r": "\x1b"}))])
    shown = capsys.readouterr().out
    assert shown.isascii() and shown.replace("\n", "").isprintable()
    assert r"\x1b[2Jw\n\ud800" in shown and max(map(len, shown.splitlines())) < 300
