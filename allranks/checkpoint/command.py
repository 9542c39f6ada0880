"""Look into a checkpoint, or write its plain form, without the model that made it."""

import argparse
import re
import sys
from pathlib import Path

from allranks.checkpoint.convert import convert
from allranks.checkpoint.demo import demo
from allranks.checkpoint.inspect import inspect
from allranks.checkpoint.keys import MOST
from allranks.checkpoint.refusals import Refusal, clean

NOISE = r"(?s)^.*(Unpickler error:|load failed\.)\s*|[.\n][ \n].*"  # in torch's words


def file_name(text: str) -> Path:
    """Return a path; an empty one comes from a variable that is not set.

    Raises:
        argparse.ArgumentTypeError: if it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("'' is no file: give its name")
    return Path(text)


def at_least_0(text: str) -> int:
    """Return how many prefixes may be removed.

    Raises:
        argparse.ArgumentTypeError: if it is no whole number from 0 on.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser; a subcommand takes the parameters of its function."""
    found = argparse.ArgumentParser(
        "python -m allranks.checkpoint", description=__doc__
    )
    commands = found.add_subparsers(dest="command", required=True)
    for function in demo, inspect, convert:
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("file", type=file_name)
        if function is convert:
            command.add_argument("out", type=file_name)
            text = "keep only keys that begin so, without it"
            command.add_argument("--prefix", default="", help=text)
        if function is not inspect:
            text = "replace a file"
            command.add_argument("--force", action="store_true", help=text)
        if function is not demo:
            command.add_argument("--entry", help="which state dict")
            text = "how many leading module. may go"
            how = {"type": at_least_0, "default": MOST, "help": text}
            command.add_argument("--most", **how)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run a subcommand; if it fails, exit with code 1 and one sentence.

    Args:
        arguments: of the command line; None for those of this process.
    """
    chosen = vars(parser().parse_args(arguments))
    function = chosen.pop("function")
    del chosen["command"]
    try:
        lines = function(**chosen)
    except Exception as error:
        name = clean(str(chosen["file"]))
        raise SystemExit(f"{name}: {clean(reason(error), 400)}") from None
    print("\n".join(lines))


def reason(error: Exception) -> str:
    """Return a refusal's sentence, or the telling part of torch's message."""
    if isinstance(error, Refusal):
        return str(error)
    why = f"{type(error).__name__}: {re.sub(NOISE, '', str(error))}".strip(": ")
    return f"cannot be read; damaged, or no checkpoint? ({why})"


def run() -> int | str:
    """Run the tool, and return its exit code or the sentence to exit with."""
    code: int | str = 0
    try:
        main()
        print(end="", flush=True)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader is gone, as head is after its lines
        code = 141
    except OSError as error:
        code = f"cannot print: {error}"
    if code:
        sys.stdout = None  # else the interpreter would try to write the rest
    return code
