"""Read what a picture shows back from its SVG."""

import re
import xml.etree.ElementTree as ElementTree
from html import unescape

SVG = "{http://www.w3.org/2000/svg}"


def styles(element):
    """Return an element's CSS as a dict."""
    pairs = (pair.split(":") for pair in element.get("style", "").split(";") if pair)
    return {name: value for name, value in pairs}


def drawings(picture):
    """Return the SVG for a column, and the one for a phone if there is another."""
    found = re.findall("<svg.*?</svg>", picture.html, re.DOTALL)
    return [ElementTree.fromstring(svg) for svg in found]


def title(picture):
    """Return what stands above a picture."""
    return unescape(re.search("<figcaption><b>(.*?)</b>", picture.html)[1])


def drawn(picture, which=0):
    """Return a drawing's root, and its boxes as (text, fill, stroke, bands)."""
    root = drawings(picture)[which]
    boxes = []
    for rect in root.iter(f"{SVG}rect"):
        x, y, width, height = (
            float(rect.get(k)) for k in ("x", "y", "width", "height")
        )
        if height < 20:
            boxes[-1][3].append(styles(rect)["fill"])
            continue
        inside = [
            text.text
            for text in root.iter(f"{SVG}text")
            if x < float(text.get("x")) < x + width
            and y < float(text.get("y")) < y + height
            and text.get("text-anchor") == "middle"
        ]
        style = styles(rect)
        boxes.append((" ".join(inside), style.get("fill"), style.get("stroke"), []))
    return root, boxes
