r"""A text as people paste it, without colours, entities, typographic quotes, frames.

book/_static/diagnose.js does the same, step by step. A change belongs in both.
"""

import re

PLAIN = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u00b4\u2032", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u00a0\u1680\u202f\u205f\u3000\u2028\u2029\x85", " "),
    **{chr(code): " " for code in range(0x2000, 0x200B)},
    "\uff0c": ",",
    "\uff1a": ":",
}
ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'", "nbsp": " "}
ENTITIES |= {"#39": "'", "#x27": "'", "#34": '"', "#x22": '"', "#96": "`", "#x60": "`"}
_ESCAPES = {"n": "\r", "t": " ", '"': '"', "\\": "\\"}
_ESCAPED = re.compile(
    r'\\n +File \\*"|\\n(?:Traceback|\[rank\d|\w*(?:Error|Exception): )', re.ASCII
)
_ESCAPE = re.compile(r'\\(["\\nt])')
_CONTROLS = "\t\x0b\x0c\x1c\x1d\x1e\x1f"
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z=>])"
)
_BARE = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")  # a colour whose first byte was lost
_ENTITY = re.compile(rf"&({'|'.join(ENTITIES)});")
_ODD = re.compile(f"[{''.join(PLAIN)}\ud800-\udfff\U00010000-\U0010ffff]")
_DASH = re.compile(r"[\u2013\u2014](?=[a-z])")
_BEGIN, _END = r"(?<![^\n\r])", r"(?![^\n\r])"
_QUOTE = re.compile(rf"{_BEGIN} *(?:> ?)+")
_BAR = "[\u2502\u2503\u2551]"
_FRAME = re.compile(rf"{_BEGIN} *{_BAR} ?|{_BAR} *{_END}")


def plain(text: str) -> str:
    """Take out what only decorates: colours, entities, typographic quotes, frames.

    >>> plain("\\x1b[31m> \\u2018RANK\\u2019 &gt; 1\\x1b[0m")
    "'RANK' > 1"
    """
    text = text.replace("\r\n", "\n")
    for control in _CONTROLS:
        text = text.replace(control, " ")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = _BARE.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: ENTITIES[match[1]], text)
    if not text.isascii():
        text = _ODD.sub(lambda match: PLAIN.get(match[0], "\ufffd"), text)
    lines = text.split("\n")
    for i, line in enumerate(lines):  # the few that are framed or quoted
        if not line.isascii():
            line = _FRAME.sub("", _DASH.sub("--", line))
        line = _QUOTE.sub("", line) if ">" in line else line
        lines[i] = unescaped(line) if "\\n" in line else line
    return "\n".join(lines)


def unescaped(line: str) -> str:
    r"""The lines that JSON holds in one, each with a carriage return at its end.

    >>> unescaped(r'{"py": "\\n  File \\"x\\"\\nOSError: gone"}').split("\r")[1:]
    ['  File "x"', 'OSError: gone"}']
    """
    for _ in range(3):  # JSON in JSON
        if not _ESCAPED.search(line):
            break
        line = _ESCAPE.sub(lambda match: _ESCAPES[match[1]], line)
    return line
