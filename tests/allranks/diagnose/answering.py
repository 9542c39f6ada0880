"""How often the answer to a description names a case that was the matter.

A file of described threads is a list of ``{title, url, text, cases}``: what somebody
wrote, in our words, and the addresses of the cases that may be the matter. Those
without a ``url`` were not found but written, as a learner may put it.
"""

from collections.abc import Callable

from allranks.clinic.specimens import Specimen
from allranks.diagnose.described import candidates, table
from allranks.diagnose.suspects import SHOWN, diagnose
from allranks.diagnose.text import Log

THREE, FIVE = 0.9, 0.95  # the shares that a test holds


def words(row: dict) -> str:
    """Return what somebody wrote."""
    return f"{row['title']}\n{row['text']}".strip()


def answers(cases: list[Specimen]) -> Callable[[str], list[str]]:
    """Return a function that names the cases that the tool names for a text."""

    words = table(cases)

    def answer(text: str) -> list[str]:
        log = Log(("text", text))
        found = [suspect.case.slug for suspect in diagnose(log, cases)[:SHOWN]]
        return found or candidates(log, words)

    return answer


def place(row: dict, found: list[str]) -> int | None:
    """Return where the first case stands that was the matter, from 1 on, or None."""
    wanted = {address.rpartition("#clinic-")[2] for address in row["cases"]}
    places = [i for i, slug in enumerate(found, 1) if slug in wanted]
    return places[0] if places else None


def share(places: list[int | None], most: int) -> float:
    """Return the share of descriptions that are answered among the first places."""
    return sum(bool(one and one <= most) for one in places) / len(places)
