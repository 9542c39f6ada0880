"""Ask what somebody sees, until a few cases are left: ``--ask``.

The questions are the tree of symptoms.toml, which the page of the clinic shows too.
"""

import sys

from allranks.clinic.specimens import Specimen
from allranks.diagnose.described import symptoms
from allranks.diagnose.pipe import complain
from allranks.diagnose.words import about_case, show

FIRST = "What do you see?"
NO_TERMINAL = (
    "--ask asks in a terminal, and stdin is none: give a sentence that says what you "
    'see instead, as in python -m allranks.diagnose "it hangs at the end of the epoch"'
)


def ask(cases: list[Specimen]) -> int:
    """Ask from question to question, and show the cases at the end.

    Returns:
        0 if cases were shown, 1 if it ended before, 2 without a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        complain(NO_TERMINAL)
        return 2
    known = {case.slug: case for case in cases}
    path, answered = [], 1
    try:
        while True:
            here = path[-1] if path else {"ask": FIRST, "see": symptoms()["see"]}
            if "cases" in here:
                answered = 0
                for number, slug in enumerate(here["cases"].split(), 1):
                    print(f"\n{show(number, about_case(known[slug]), False)}")
                print("\n  0. back")
            else:
                print(f"\n{here['ask']}\n")
                for number, one in enumerate(here["see"], 1):
                    print(f"{number:3}. {one['answer']}")
                print(f"  0. {'back' if path else 'end'}")
            number = choose(len(here.get("see", [])))
            if number:
                path.append(here["see"][number - 1])
            elif path:
                path.pop()
            else:
                return answered
    except (EOFError, KeyboardInterrupt):
        print()
        return answered


def choose(most: int) -> int:
    """Return the number that is typed, from 0 on; ask again for any other."""
    wanted = f"a number from 0 to {most}" if most else "0, or Ctrl-D to end"
    while True:
        typed = input("> ").strip()
        if typed.isdecimal() and int(typed) <= most:
            return int(typed)
        print(f"Type {wanted}.")
