"""Refuse in one sentence, and name what a file holds in printable words."""


class Refusal(Exception):
    """A file cannot be used; the text tells the reader why, in one sentence."""


def clean(value: object, most: int = 200) -> str:
    r"""Name what a file holds in one short line of printable ASCII.

    >>> clean("\x1b[2Jweight"), clean(0.5), clean([1, 2])
    ('\\x1b[2Jweight', '0.5', 'list')
    """
    if not isinstance(value, (str, bool, int, float)):
        value = type(value).__name__
    text = ascii(str(value))[1:-1]
    return text if len(text) < most else f"{text[: most - 3]}..."
