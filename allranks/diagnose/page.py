"""What the search box of the clinic's page needs: all cases, and what Python goes by.

book/_static/diagnose.js takes the same steps as the modules here. Each number, word and
expression that both need stands in Python alone, and goes to the page with the cases.
"""

from allranks.clinic import cases as kinds
from allranks.clinic.cases import CLASSES, KINDS, SYMPTOMS
from allranks.clinic.specimens import Specimen
from allranks.diagnose import answers, reading, search, signs, suspects, text, watchdog
from allranks.diagnose.signs import Sign, signs_of

NEEDED = {
    text: "CHUNK FEW NARROW WIDE PREFIX RANKS SRUN PLAIN ENTITIES ENTITY ESCAPES "
    "ESCAPED ESCAPE CONTROLS ANSI COLOUR DASH QUOTE FRAME DOTS",
    signs: "CUT SPACE",
    search: "TRIES SOURCE TYPED BARRIER NEXT",
    suspects: "SHOWN BRIEF REST WARNING DIGEST PROGRESS RAISED ERRORS ALONE TORCH "
    "OTHERS LISTS KEY_LIST KEY INTERRUPTS INTERRUPT TRACEBACK STACK",
    watchdog: "WORK BEFORE AFTER REPORT",
    reading: "HEAD CONTROL",
    answers: "ENDS",
}
CODES = "FULL ECHO WITH UNLESS OURS KEYS"  # kinds of signs, sent as numbers


def table(cases: list[Specimen]) -> dict:
    """Return the cases in the form that book/_static/diagnose.js reads.

    Returns:
        classes: each class and the name of its page.
        cases: each case's name, its title, the numbers of class and symptom, its signs.
        constants: what ``NEEDED`` names; the symptoms; the number of each kind of sign.
    """
    classes, symptoms = list(CLASSES), list(SYMPTOMS)
    rows = []
    for case in cases:
        kind = classes.index(case.fields["class"])
        symptom = symptoms.index(case.fields["symptom"])
        row = [case.slug, case.title.removesuffix("."), kind, symptom]
        rows.append([*row, [_row(sign) for sign in signs_of(case)]])
    constants = {"SYMPTOMS": symptoms}
    constants["KIND"] = {
        name: KINDS.index(getattr(kinds, name)) for name in CODES.split()
    }
    for module, names in NEEDED.items():
        constants |= signs.for_browsers(vars(module), names)
    return {"classes": list(CLASSES.items()), "cases": rows, "constants": constants}


def _row(sign: Sign) -> list:
    """Return a sign as its kind, its pattern, its spans, and the signs beside it."""
    needed = [_row(other) for other in sign.also]
    spans = [place for span in sign.spans for place in span]
    return [KINDS.index(sign.kind), sign.pattern, *spans, *needed]
