"""A style sheet without the rules that no page can use.

The themes bring 540 KB of CSS for everything that a site might contain. A rule stays if
some page has the elements of its selector, nested as the selector demands. A class that
a script names may be added to any element, so it counts as present everywhere, and what
is not understood stays. After that, variables that nothing reads and animations that
nothing names are removed, too.
"""

import re

import tinycss2
from rcssmin import cssmin

from book._ext.weight.uses import Uses


def alternatives(prelude: list) -> list[list]:
    """Return the selectors between the commas, without the space around them."""
    found = [[]]
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            found.append([])
        elif found[-1] or token.type != "whitespace":
            found[-1].append(token)
    for selector in found:
        while selector and selector[-1].type == "whitespace":
            selector.pop()
    return found


def keep_rules(rules: list, uses: Uses) -> str:
    """Return the rules that may match, also those in ``@media`` and ``@supports``."""
    kept = []
    for rule in rules:
        if rule.type == "error":
            raise ValueError(f"CSS: {rule.message} in line {rule.source_line}")
        if rule.type == "qualified-rule":
            usable = [s for s in alternatives(rule.prelude) if uses.may_match(s)]
            if usable and any(t.type != "whitespace" for t in rule.content):
                head = ",".join(tinycss2.serialize(s) for s in usable)
                kept.append(f"{head}{{{tinycss2.serialize(rule.content)}}}")
        elif rule.lower_at_keyword in ("media", "supports"):
            inner = tinycss2.parse_rule_list(rule.content, True, True)
            if body := keep_rules(inner, uses):
                head = tinycss2.serialize(rule.prelude)
                kept.append(f"@{rule.at_keyword}{head}{{{body}}}")
        elif rule.lower_at_keyword not in ("charset", "import"):
            kept.append(rule.serialize())
    return "\n".join(kept)


def drop_unread(css: str, uses: Uses) -> str:
    """Leave out variables that nothing reads, and animations that nothing names."""
    elsewhere = set(re.findall(r"--[\w-]+", "\n".join(uses.text)))
    value = r"(?:[^;{}\"']|\"[^\"]*\"|'[^']*')*"
    while True:
        read = set(re.findall(r"var\(\s*(--[\w-]+)", css)) | elsewhere
        unread = set(re.findall(r"(?<=[{;\s])(--[\w-]+)\s*:", css)) - read
        names = "|".join(map(re.escape, sorted(unread)))
        if not names:
            break
        css = re.sub(rf"(?<=[{{;\s])(?:{names})\s*:{value}(?:;|(?=\}}))", "", css)
    for name in set(re.findall(r"@(?:-\w+-)?keyframes\s+([\w-]+)", css)):
        if not re.search(rf"animation[\w-]*:[^;}}]*(?<![\w-]){name}(?![\w-])", css):
            steps = r"\s*\{(?:[^{}]*\{[^{}]*\})*\s*\}"
            css = re.sub(rf"@(?:-\w+-)?keyframes\s+{name}{steps}", "", css)
    return css


def purge(css: str, uses: Uses) -> str:
    """Return the part of a style sheet that these pages can use, minified.

    >>> uses = Uses()
    >>> uses.add_page('<ul class="nav"><li><a id="x">1</a></li></ul>')
    >>> purge("ul #x, .z { top: 0 } ul { } a li { left: 0 } :root { --y: 1; --z: 2 }"
    ...       " @media print { .nav > li { top: var(--z) } b { top: 1 } }", uses)
    'ul #x{top:0}:root{--z:2}@media print{.nav>li{top:var(--z)}}'
    """
    rules = tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True)
    return cssmin(drop_unread(keep_rules(rules, uses), uses))
