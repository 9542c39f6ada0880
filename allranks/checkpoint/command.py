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
    """Return a path; an empty one is a variable that nobody set."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no file: give its name")
    return Path(text)


def at_least_0(text: str) -> int:
    """Return how many prefixes may go."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Make the parser; each subcommand takes what its function's parameters name."""
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
    """Do what the command line says; refuse in one sentence, with exit code 1."""
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
    """Return a refusal's sentence, or the part of torch's that says something."""
    if isinstance(error, Refusal):
        return str(error)
    why = f"{type(error).__name__}: {re.sub(NOISE, '', str(error))}".strip(": ")
    return f"cannot be read; damaged, or no checkpoint? ({why})"


def run() -> int | str:
    """Run the tool; return its exit code, or the sentence to end with."""
    code: int | str = 0
    try:
        main()
        print(end="", flush=True)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # nobody reads any more, as head after its lines
        code = 141
    except OSError as error:
        code = f"cannot print: {error}"
    if code:
        sys.stdout = None  # or the interpreter tries to write the rest again
    return code
