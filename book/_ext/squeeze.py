"""Blanks and comments that JavaScript does not need; rjsmin loses nested templates.

>>> squeeze("const f = (a) => {\\n  return a + +1 / 2; // half\\n};")
'const f=(a)=>{return a+ +1/2;};'
>>> squeeze("`a ${ x ? `${ y } b` : / `+/ } c`")
'`a ${x?`${y} b`:/ `+/} c`'

A line ends where it ended if a statement could end there. For our own scripts: it takes
a slash behind ``)``, ``]`` or ``}`` for a division.
"""

import re

STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/\w*")
BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
WORD = re.compile(r"[\w$]+")
ENDS = re.compile(r"[\w$)\]}\"'`/]")  # what a statement may end with
GOES_ON = ")]},;.?:=&|*"  # what no statement begins with


def squeeze(text: str) -> str:
    """A script that does the same."""
    return _code(text, 0)[0]


def _code(text: str, at: int) -> tuple[str, int]:
    """Code from ``at`` to its end, or to the brace that ends a template's ``${``."""
    out, depth, blank = [], 0, ""
    while at < len(text):
        if match := BLANK.match(text, at):
            blank, at = match[0], match.end()
            continue
        one, last = text[at], out[-1].lstrip() if out else ""
        if one == "}" and not depth:
            return "".join(out), at
        depth += (one == "{") - (one == "}")
        if one == "`":
            token, at = _template(text, at + 1)
        else:
            value = re.match(r"[\w$)\]}\"'`]", last[-1:])
            value = value and last not in ("return", "case", "typeof", "of", "in")
            kinds = [STRING, WORD] if value else [STRING, REGEX, WORD]
            match = next(filter(None, (kind.match(text, at) for kind in kinds)), None)
            token = match[0] if match else one
            at += len(token)
        if blank and last:
            words = WORD.match(token) and re.search(r"[\w$]$", last)
            signs = last in "+-" and token in "+-"
            line = "\n" in blank and ENDS.match(last[-1]) and one not in GOES_ON
            token = ("\n" if line else " " if words or signs else "") + token
        out.append(token)
        blank = ""
    return "".join(out), at


def _template(text: str, at: int) -> tuple[str, int]:
    """A template whose first backtick stands before ``at``."""
    out = ["`"]
    while text[at] != "`":
        if text.startswith("${", at):
            code, at = _code(text, at + 2)
            out.append(f"${{{code}}}")
            at += 1
        else:
            size = 2 if text[at] == "\\" else 1
            out.append(text[at : at + size])
            at += size
    return "".join([*out, "`"]), at + 1
