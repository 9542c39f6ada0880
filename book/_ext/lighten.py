"""The same page in fewer bytes: nothing that shows is changed."""

import re
from collections import Counter

LEFTOVERS = [
    re.compile(r"\s*<script>DOCUMENTATION_OPTIONS\.pagename[^<]*</script>"),
    re.compile(r"\s*<link rel=\"preload\" as=\"script\"[^>]*>"),
    re.compile(r"\s*<meta name=\"docsearch:[^>]*>"),
    re.compile(r"\s*<!--(?!\[).*?-->", re.DOTALL),
]
# One word of code: Sphinx wraps it twice, to keep it on one line; book.css does.
WORD = re.compile(
    r"(<code class=\")docutils (literal notranslate\">)"
    r"<span class=\"pre\">([^<]*)</span></code>"
)
# Two neighbours in one colour, such as the added lines of a diff.
TWINS = re.compile(r'(<span class="(\w+)">[^<]*)</span>(\s*)<span class="\2">')
DRAWING = re.compile(r'<svg [^>]*role="img"(?:(?!<svg).)*?</svg>', re.DOTALL)
UNFILLED = re.compile(r"<(?:rect|circle|path|line|g) (?![^>]*fill)")
STYLED = re.compile(r'<(\w+) ((?:(?!class=)[^>])*?)style="([^"]*)"(?![^>]*class=)')


def lighten(html: str, dull: re.Pattern) -> str:
    """Drop what shows nothing: comments, indentation, spans without a colour."""
    for pattern in LEFTOVERS:
        html = pattern.sub("", html)
    parts = re.split(r"(<(pre|script|textarea|style)\b.*?</\2>)", html, flags=re.DOTALL)
    for i in range(0, len(parts), 3):
        parts[i] = re.sub(r"\s*\n\s*", "\n", parts[i])
        if i + 1 < len(parts) and parts[i + 2] == "pre":
            code, found = dull.sub(r"\1", parts[i + 1]), 1
            while found:
                code, found = TWINS.subn(r"\1\3", code)
            parts[i + 1] = code
    html = "".join(part for i, part in enumerate(parts) if i % 3 < 2)
    html = WORD.sub(r"\1\2\3</code>", html)
    return lighten_pictures(html)


def lighten_pictures(html: str) -> str:
    """Say once per picture, or per page, what our drawings say for each of their parts.

    A size, an anchor and a colour that all texts of a picture share go to its root. A
    style that occurs again becomes a class.
    """
    html = re.sub(r"var\((--rank-\d), #\w{6}\)", r"var(\1)", html)

    html = DRAWING.sub(hoist, html)
    drawn = "".join(DRAWING.findall(html))
    styles = Counter(match[2] for match in STYLED.findall(drawn))
    often = [style for style, number in styles.items() if number > 2]
    names = {style: f"s{i}" for i, style in enumerate(often)}

    def classify(match: re.Match) -> str:
        name = names.get(match[3])
        return f'<{match[1]} {match[2]}class="{name}"' if name else match[0]

    html = DRAWING.sub(lambda match: STYLED.sub(classify, match[0]), html)
    rules = "".join(f"svg .{name}{{{style}}}" for style, name in names.items())
    sheet = f"<style>{rules}</style>\n" if rules else ""
    return html.replace("</head>", f"{sheet}</head>", 1)


def hoist(match: re.Match) -> str:
    """Move what all texts of a picture share to its root, which they inherit from."""
    picture = match[0]
    texts = re.findall(r"<text [^>]*>", picture)
    for shared in ('text-anchor="middle"', 'fill="currentColor"', 'font-size="14"'):
        name = shared.partition("=")[0]
        if not texts or not all(f" {name}=" in text for text in texts):
            continue
        if name == "fill" and UNFILLED.search(picture):
            continue
        picture = re.sub(rf"(<text [^>]*?) {re.escape(shared)}", r"\1", picture)
        picture = picture.replace("<svg ", f"<svg {shared} ", 1)
    return picture


def dull_spans(css: str) -> re.Pattern:
    """Spans of code whose class has the same colour as no class, light and dark."""
    rules = re.findall(r"([^{}]*)\{\s*([^{}]*?)\s*\}", css)
    plain = {r.split("color:")[1].strip() for s, r in rules
             if re.search(r"\] \.highlight\s*$", s) and "color:" in r}  # fmt: skip
    names = []
    for name in ("n", "nn", "nx", "p", "w", "x"):
        here = [r for s, r in rules if re.search(rf"\.highlight \.{name}\s*$", s)]
        if all(r.removeprefix("color:").strip() in plain for r in here):
            names.append(name)
    return re.compile(rf'<span class="(?:{"|".join(names)})">([^<]*)</span>')
