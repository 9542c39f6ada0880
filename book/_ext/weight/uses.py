"""What the pages of a site contain: which elements, where, and what scripts add."""

import re
from collections import defaultdict

TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)((?:[^>\"']|\"[^\"]*\"|'[^']*')*)>")
ATTRIBUTE = re.compile(r"([^\s=/\"']+)\s*=\s*\"([^\"]*)\"|([^\s=/\"']+)")
RAW = re.compile(r"(<(script|style)\b[^>]*>)(.*?)</\2>", re.DOTALL)
WORD = re.compile(r"-{0,2}[a-zA-Z_][\w-]{2,}")
CLASS = re.compile(r"class[^;{}]{0,120}", re.IGNORECASE)
MADE = re.compile(r"<([a-z][a-z0-9]*)|[\"'`](?:svg:)?([a-z][a-z0-9]*)[\"'`.]")
# Parts of the theme that its scripts mention but this book does not use.
UNUSED = (
    *("version-switcher", "bd-header-", "pst-button-link", "list-group"),
    *("alert", "tooltip", "dropdown-menu-dark"),
)
ELEMENTS = frozenset(  # what scripts make
    re.findall(
        r"\w+",
        """a abbr article aside b br button canvas caption code col dd del details
        dialog div dl dt em fieldset figcaption figure form g h2 h3 h4 hr i img
        input ins kbd label legend li line mark math nav ol optgroup option output p
        path pre progress rect samp section select small span strong sub summary sup
        svg table tbody td text textarea th thead tr tspan u ul var""",
    )
)
VOID = {"br", "hr", "img", "input", "link", "meta", "wbr", "source", "col"}
# The theme's script moves what the sidebars hold, and their classes, into dialogs.
MOVED = {"pst-primary-sidebar", "pst-secondary-sidebar"}


class Uses:
    """What the pages of a site contain.

    Attributes:
        elements: one set per kind of element: its name, classes and id.
        inside: for each of these words, all words of the elements around it.
        attributes: the names of all attributes.
        wild: what scripts may add anywhere: words near "class", names of elements.
        words: all words of all scripts.
        text: everything that may read a CSS variable, other than a style sheet.
    """

    def __init__(self) -> None:
        self.elements: set[frozenset[str]] = set()
        self.inside: dict[str, set[str]] = defaultdict(set)
        self.attributes = {"data-mode", "data-theme", "open"}
        self.wild: set[str] = set()
        self.words: set[str] = set()
        self.text: list[str] = []

    def add_script(self, text: str) -> None:
        """Add the words of a script, and the elements that it makes."""
        self.words.update(WORD.findall(text))
        made = {name for pair in MADE.findall(text) for name in pair}
        self.wild |= made & ELEMENTS
        for near in CLASS.findall(text):
            self.wild.update(WORD.findall(near))
        self.text.append(text)

    def add_page(self, html: str) -> None:
        """Add the elements and inline scripts of a page."""
        for _, kind, text in RAW.findall(html):
            if kind == "script":
                self.add_script(text)
            else:  # the page's own style
                self.text.append(text)
        around: list[tuple[str, frozenset[str]]] = [("", frozenset())]
        for close, name, attributes in TAG.findall(RAW.sub(r"\1</\2>", html)):
            if close:
                while len(around) > 1 and around.pop()[0] != name:
                    pass
                continue
            words = {name.lower()}
            for key, value, bare in ATTRIBUTE.findall(attributes):
                self.attributes.add((key or bare).lower())
                if key in ("class", "id"):
                    words.update(value.split())
                elif key == "style":
                    self.text.append(value)
            words |= {
                word for ident in words & MOVED for word in (f"{ident}-modal", "dialog")
            }
            self.elements.add(frozenset(words))
            for word in words:
                self.inside[word] |= around[-1][1]
            if name.lower() not in VOID and not attributes.endswith("/"):
                around.append((name, around[-1][1] | words))

    def may_match(self, selector: list) -> bool:
        """Tell whether some element can match a selector, which is given as tokens.

        Arguments of ``:is()``, ``:not()`` and the like demand nothing, because they may
        be alternatives or negations.
        """
        compounds = self.split(selector)
        for words, attributes, _ in compounds:
            if not attributes <= self.attributes:
                return False
            if words and not any(words <= kind for kind in self.elements):
                return False
        last = compounds[-1][0]
        return all(
            words <= self.inside[word]
            for words, _, around in compounds[:-1]
            for word in (last if around else ())
        )

    def is_wild(self, word: str) -> bool:
        """Tell whether a script may add a word to any element."""
        added = word in self.wild or (word in self.words and word not in self.inside)
        return added and not word.startswith(UNUSED)

    def split(self, selector: list) -> list[tuple[set[str], set[str], bool]]:
        """Return the (words, attributes, is it an ancestor) of each compound."""
        found, before = [(set(), set())], ""
        combinators = []
        for token in selector:
            sign = token.value if token.type == "literal" else ""
            if token.type == "whitespace" or sign in (">", "+", "~"):
                if any(found[-1]) or before:
                    found.append((set(), set()))
                    combinators.append(sign)
                elif combinators and sign:
                    combinators[-1] = sign
                before = ""
                continue
            if token.type == "ident" and before != ":":
                exact = token.value if before == "." else token.lower_value
                found[-1][0].add(exact)
            elif token.type == "hash":
                found[-1][0].add(token.value)
            elif token.type == "[] block":
                names = [part for part in token.content if part.type == "ident"]
                found[-1][1].update(part.lower_value for part in names[:1])
            before = sign or "x"
        if len(found) > 1 and not any(found[-1]) and not before:
            found.pop()
            combinators.pop()
        beside = [i for i, sign in enumerate(combinators) if sign in ("+", "~")]
        return [
            # A sibling of an ancestor (+ or ~) is not itself an ancestor.
            (
                {word for word in words if not self.is_wild(word)},
                attributes,
                i not in beside,
            )
            for i, (words, attributes) in enumerate(found)
        ]
