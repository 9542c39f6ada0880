"""``{quiz}``: a question that readers answer on the page.

    ```{quiz}
    :name: ch4_batch

    Eight ranks, `DataLoader(batch_size=32)`. How many samples are behind one step?

    - ( ) 32

      That is what *one* rank takes.

    - (x) 256

      Each rank takes 32 of its own.
    ```

Options are marked ``( )`` and ``(x)`` if one is right, ``[ ]`` and ``[x]`` if several
are, and each is followed by its reason. A number quiz has fresh numbers at each try::

    :values: nodes = 2..4; gpus = 4, 8
    :unit: ranks

    {nodes} machines with {gpus} GPUs each: what is the world size?

    - = nodes * gpus

      One process per GPU.

    - != nodes

      {this} counts the machines.

``=`` is the right formula, ``!=`` a typical slip. ``:digits:`` says how many decimal
places are shown, and so asked for. A unit in brackets, as in ``size [GB] / time [s]``,
stands in the answer, but is not computed with. Everything is Markdown. Without
JavaScript, and on paper, this is a question with its answers and reasons;
book/_static/quiz.js turns it into a form. Never change a name, even if the text
changes, because the reader's progress is stored under it.
"""

import json
import random
import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from book._ext.quiz import formula
from book._ext.quiz.nodes import answer_of, led, letters, quiz, quiz_value, verdict_of

OPTION = re.compile(r"[-*] (?:\(([ x])\)|\[([ x])\]|(!?=)) +(\S.*)")
VALUE = re.compile(r"\{([a-z][a-z0-9_]*)\}(`?)")
NAME = re.compile(r"[a-z][a-z0-9_]*")
Lines = tuple[int, list[str]]  # the number of the first line, and the lines
MARK = 0xE100  # of the private use area; while parsing, a letter stands for a value


class Quiz(SphinxDirective):
    """One quiz."""

    has_content = True
    option_spec: ClassVar = {
        "name": directives.unchanged_required,
        "values": directives.unchanged_required,
        "unit": directives.unchanged_required,
        "digits": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        """Read the options, parse each part as Markdown, and put them together."""
        name = self.options.get("name", "")
        try:
            self.claim(name)
            question, options = self.split()
            kind = self.kind(options)
            box = quiz(classes=["quiz", f"quiz-{kind}"], ids=[f"quiz-{name}"])
            box["quiz"], box["kind"] = name, kind
            build = self.number if kind == "number" else self.choice
            build(box, question, options)
        except ValueError as error:
            raise self.error(f"quiz {name or 'without a name'}: {error}") from None
        self.set_source_info(box)
        return [box]

    def claim(self, name: str) -> None:
        """Check that the name is well formed, and that no other quiz has it."""
        if not NAME.fullmatch(name):
            raise ValueError("it needs a :name: of small letters, digits and _")
        here = self.env.docname, self.lineno
        owner = quizzes(self.env).setdefault(name, here)
        if owner != here:
            raise ValueError(f"{owner[0]} has a quiz of this name, line {owner[1]}")

    def split(self) -> tuple[Lines, list]:
        """Return the question, and (mark, bracket, text, reason) of each option."""
        question, options = (0, []), []
        for number, line in enumerate(self.content):
            if match := OPTION.fullmatch(line):
                mark = next(group for group in match.groups()[:3] if group)
                options.append([mark, match[0][2:3], (number, [match[4]]), None])
            elif not options:
                question[1].append(line)
            elif line.startswith("  ") or not line.strip():
                option = options[-1]
                if option[3] is None and not line.strip():
                    option[3] = (number, [])
                part = option[2] if option[3] is None else option[3]
                part[1].append(line[2:])
            else:
                raise ValueError(
                    f"`{line.strip()}` belongs to no option: indent a reason by two "
                    "spaces, begin an option with ( ), (x), [ ], [x], = or !="
                )
        if not "".join(question[1]).strip():
            raise ValueError("it has no question")
        for _, _, text, reason in options:
            if reason is None or not "".join(reason[1]).strip():
                raise ValueError(f"the option `{text[1][0]}` has no reason below it")
        return question, options

    def kind(self, options: list) -> str:
        """Return the kind of quiz that the marks make, or refuse them."""
        brackets = {bracket for _, bracket, _, _ in options}
        marks = [mark for mark, _, _, _ in options]
        texts = [text[1][0] for _, _, text, _ in options]
        if len(options) < 2:
            raise ValueError("it needs two options or more, each with a mark")
        if len(set(texts)) < len(texts):
            raise ValueError("two options are the same")
        if brackets <= {"=", "!"}:
            if marks.count("=") != 1:
                raise ValueError("it needs one right formula, marked =")
            return "number"
        if brackets == {"("}:
            if marks.count("x") != 1:
                found = marks.count("x") or "no"
                raise ValueError(
                    f"it has {found} right options: mark one (x), or several [x]"
                )
            return "radio"
        if brackets != {"["}:
            raise ValueError("its options mix (), [] and formulas")
        if not 0 < marks.count("x") < len(marks):
            raise ValueError("it needs right options [x] and wrong ones [ ]")
        return "checkbox"

    def parse(self, part: Lines) -> list[nodes.Node]:
        """Parse some lines of Markdown."""
        offset, lines = part
        parsed = nodes.container()
        text = StringList(lines, source="")
        self.state.nested_parse(text, self.content_offset + offset, parsed)
        return parsed.children

    def choice(self, box: quiz, question: Lines, options: list) -> None:
        """Build a question with options to choose from."""
        box += nodes.container("", *self.parse(question), classes=["quiz-question"])
        listed, reasons = letters("quiz-options"), letters("quiz-reasons")
        for mark, _, text, reason in options:
            right = mark == "x"
            classes = ["quiz-right"] if right else ["quiz-wrong"]
            listed += nodes.list_item("", *self.parse(text), classes=classes)
            verdict = verdict_of("Right. " if right else "Wrong. ")
            reasons += nodes.list_item("", *led(verdict, self.parse(reason)))
        box += listed
        box += answer_of(reasons)

    def number(self, box: quiz, question: Lines, options: list) -> None:
        """Build a question with a formula, whose numbers are new at each try."""
        values = formula.spans(self.options.get("values", ""))
        if not values:
            raise ValueError("its formula needs :values:, such as ranks = 2, 4, 8")
        options.sort(key=lambda option: option[0] != "=")
        trees = [formula.parse(text[1][0], values) for _, _, text, _ in options]
        digits = self.options.get("digits", 0)
        numbers = formula.Numbers(values, trees[0], trees[1:], digits)
        draws = numbers.draws()
        drawn = random.Random(box["quiz"]).choice(draws)
        shown = numbers.texts(drawn)

        def fill(part: Lines, this: int = 0) -> list[nodes.Node]:
            also = {"this": f"result_{this}", "answer": "result_0"}
            also |= {"about": f"about_{this}", "equals": "equals_0"}
            return self.valued(part, shown, also)

        filled = fill(question)
        unused = values.keys() - {
            v["key"] for n in filled for v in n.findall(quiz_value)
        }
        if unused:
            raise ValueError(f"the question does not say what {min(unused)} is")
        box += nodes.container("", *filled, classes=["quiz-question"])
        unit = self.options.get("unit", "")
        answer = "**{answer}**"
        if isinstance(trees[0], list):  # otherwise the formula is a mere value
            text = options[0][2][1][0]
            has_units = unit and formula.UNIT.search(text)
            answer += f"\u00a0{unit}" if has_units else ""
            answer += " {equals} " + worked(text, values)
        body = [*fill((0, [answer])), *fill(options[0][3])]
        slips = nodes.bullet_list(bullet="-", classes=["quiz-slips"])
        for i, option in enumerate(options[1:], start=1):
            lead = fill((0, ["{about}{this}"]), i)[0].children
            reason = led(verdict_of(*lead, nodes.Text("? ")), fill(option[3], i))
            slips += nodes.list_item("", *reason)
        box += answer_of(*body, slips)
        whole = all(formula.exact(numbers.results(one)[0], digits) for one in draws)
        box["numbers"] = json.dumps(
            {"values": values, "right": trees[0], "wrong": trees[1:], "unit": unit,
             "digits": digits, "rounded": not whole, "drawn": drawn},
            separators=(",", ":"))  # fmt: skip

    def valued(self, part: Lines, shown: dict, also: dict) -> list[nodes.Node]:
        """Parse Markdown, and replace each {name} by a value that may change."""
        keys = list(shown)

        def mark(match: re.Match) -> str:
            key = also.get(match[1], match[1])
            if key not in keys and match[2]:
                return match[0]  # a role, such as {ref}`…`
            if key not in keys:
                raise ValueError(f"{{{match[1]}}} is none of its :values:")
            return chr(MARK + keys.index(key)) + match[2]

        offset, lines = part
        parsed = self.parse((offset, [VALUE.sub(mark, line) for line in lines]))
        marks = re.compile(f"([{chr(MARK)}-{chr(MARK + len(keys))}])")
        for text in [t for node in parsed for t in node.findall(nodes.Text)]:
            pieces = marks.split(text.astext())
            if len(pieces) == 1:
                continue
            if isinstance(text.parent, nodes.literal_block | nodes.math | nodes.raw):
                raise ValueError("a value stands in a formula or a block of code")
            for i in range(1, len(pieces), 2):
                key = keys[ord(pieces[i]) - MARK]
                pieces[i] = quiz_value(shown[key], shown[key], key=key)
            new = [nodes.Text(p) if isinstance(p, str) else p for p in pieces if p]
            text.parent.replace(text, new)
        return parsed


def worked(text: str, values: dict) -> str:
    """Write a formula as on paper, in Markdown, with its units and {names}.

    >>> worked("2 * (n - 1) * size [GB] / 100000 + sqrt(n ** 2)", {"n": [], "size": []})
    '2 × ({n} − 1) × {size}\\xa0GB / 100,000 + √({n}²)'
    """

    def write(match: re.Match) -> str:
        if match[1]:
            return f"\u00a0{match[1]}"
        if match[0].isdigit():
            return f"{int(match[0]):,}"
        return f"{{{match[0]}}}" if match[0] in values else match[0]

    parts = re.compile(rf"{formula.UNIT.pattern}|{NAME.pattern}|\d{{5,}}")
    text = parts.sub(write, text).replace(" ** 2", "²").replace("sqrt", "√")
    return re.sub(r"(?<!\*)\*(?!\*)", "×", text).replace(" - ", " − ")


def quizzes(env: BuildEnvironment) -> dict[str, tuple[str, int]]:
    """Return the page and the line of each quiz."""
    if not hasattr(env, "quizzes"):
        env.quizzes = {}
    return env.quizzes


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Forget the quizzes of a page that is about to be read again."""
    env.quizzes = {k: v for k, v in quizzes(env).items() if v[0] != docname}


def merge(
    app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment
) -> None:
    """Add the quizzes of the pages that another process has read."""
    mine = quizzes(env)
    mine.update({k: v for k, v in quizzes(other).items() if v[0] in docnames})


def setup(app: Sphinx) -> None:
    """Add the directive, and keep the table of names up to date."""
    app.add_directive("quiz", Quiz)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
