"""Icon fonts cut down to the icons in use, inside the style sheet: no extra request."""

import logging
import re
from base64 import b64encode
from io import BytesIO
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

from book._ext.weight.uses import Uses

logging.getLogger("fontTools").setLevel(logging.WARNING)
FONTS = {  # each font, and the classes that use it
    "solid-900": {"fa-solid", "fas"},
    "regular-400": {"fa-regular", "far"},
    "brands-400": {"fa-brands", "fab"},
}


def subset(path: Path, css: str) -> str:
    """Return an icon font, cut down to the glyphs in a style sheet, as a data URL."""
    named = re.findall(
        r"\\(f[0-9a-f]{3}|e[0-9a-f]{3}|[0-9a-f]{2})\b|([\ue000-\uf8ff])", css
    )
    letters = {int(code, 16) if code else ord(letter) for code, letter in named}
    font = TTFont(path, recalcTimestamp=False)
    options = Options(
        flavor="woff2", layout_features=[], hinting=False, desubroutinize=True
    )
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=letters)
    subsetter.subset(font)
    font.flavor = "woff2"
    font.save(data := BytesIO())
    return f"data:font/woff2;base64,{b64encode(data.getvalue()).decode()}"


def icons(css: str, static: Path, uses: Uses) -> str:
    """Replace each icon font by the glyphs in use, or drop it if there are none."""

    def face(match: re.Match) -> str:
        for name, classes in FONTS.items():
            if name in match[0]:
                if not uses.inside.keys() & classes:
                    return ""
                path = static / f"vendor/fontawesome/webfonts/fa-{name}.woff2"
                rest = re.sub(r"src:[^;}]*;?", "", match[0][:-1]).rstrip(";")
                return f'{rest};src:url({subset(path, css)}) format("woff2")}}'
        return match[0]

    return re.sub(r"@font-face\{[^}]*\}", face, css)
