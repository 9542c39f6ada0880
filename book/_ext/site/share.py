"""What a link to a page shows elsewhere, and the page at the site's own address.

Each page names its title, its description and a picture of 1200 x 630 px (Open Graph),
which chats and search engines show beside a link. The picture is drawn here, from the
page's own words, and no page loads it itself. Open Graph asks for absolute addresses:
they are those of GitHub Pages where the repository is known (see ``links.py``), and
relative where it is not. ``index.html`` is the front page itself, not a redirect.
"""

import re
from html import escape, unescape
from pathlib import Path
from textwrap import shorten, wrap
from urllib.parse import urlsplit

import matplotlib
from docutils import nodes
from PIL import Image, ImageDraw, ImageFont
from sphinx.application import Sphinx

from allranks.base.svg import LIGHT
from allranks.topics.arrivals import sums

SIZE = (1200, 630)
INK, SOFT, PAPER = "#1d2430", "#515b6b", "#ffffff"
WAITING = "#f3c6c6"  # red, as in all figures
FACE = "DejaVuSans.ttf"
FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
FRONT = "book/intro.html"
DESCRIPTION = re.compile(r'<meta (?=[^>]*name="description")[^>]*content="([^"]*)"')


def base_of(repository: str) -> str:
    """Return the address at which GitHub Pages serves a repository.

    >>> base_of("https://github.com/owner/name")
    'https://owner.github.io/name/'
    """
    owner, _, name = urlsplit(repository).path.strip("/").partition("/")
    host = f"https://{owner}.github.io/"
    return host if name == f"{owner}.github.io" else f"{host}{name}/"


def card(title: str, above: str, text: str) -> Image.Image:
    """Draw the picture of a page.

    Args:
        title: of the page.
        above: what stands above it, such as "Chapter 5".
        text: what the page is about, in a sentence or two.
    """
    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)

    def write(x: int, y: int, words: str, size: int, color: str, bold: bool) -> None:
        name = "DejaVuSans-Bold.ttf" if bold else FACE
        font = ImageFont.truetype(str(FONTS / name), size)
        draw.text((x, y), words, color, font)

    for rank, color in enumerate(LIGHT[:4]):  # four ranks, and what joins them
        draw.rectangle((0, rank * 158, 28, rank * 158 + 157), fill=color)
    write(80, 60, f"All Ranks{' · ' if above else ''}{above}", 34, SOFT, bold=False)
    y = 130
    for line in wrap(title, 26)[:3]:
        write(80, y, line, 66, INK, bold=True)
        y += 84
    y += 16
    for line in wrap(text, 58)[: (590 - y) // 44]:
        write(80, y, line, 32, INK, bold=False)
        y += 44
    return image


def hero(image: Image.Image) -> None:
    """Draw the front page's figure below its words: four ranks, one all_reduce."""
    draw, font = ImageDraw.Draw(image), ImageFont.truetype(str(FONTS / FACE), 26)
    arrives = [at / 1000 for at in sums.FIRST]
    begins, waits = sums.waits(arrives, 3)
    left, scale, pitch, high, top = 80, 460, 62, 50, 352
    end = left + scale * begins
    for rank, at in enumerate(arrives):
        y, until = top + rank * pitch, left + scale * at
        draw.rectangle((left, y, until, y + high), fill=LIGHT[rank])
        draw.text((left + 16, y + 9), f"rank {rank}", PAPER, font)
        if waits[rank]:
            draw.rectangle((until, y, end, y + high), fill=WAITING)
            draw.text((until + 16, y + 9), "waits", INK, font)
    draw.line((end, top - 10, end, top + 4 * pitch), fill=INK, width=6)


def tag(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Describe a page, say what a link to it shows, and draw its picture."""
    if app.builder.name != "html" or doctree is None:
        return
    metatags = context.get("metatags", "")
    title = re.sub(r"<[^>]*>", "", unescape(context.get("title", "")))
    if found := DESCRIPTION.search(metatags):
        about = unescape(found[1])
    else:  # its first sentences
        first = next(doctree.findall(nodes.paragraph), None)
        about = shorten(first.astext() if first else title, 160, placeholder=" …")
        metatags += f'\n<meta name="description" content="{escape(about)}" />'
    title = re.sub(r"^[\d.]+\. ", "", title)  # the number stands above it
    number = app.env.toc_secnumbers.get(page, {}).get("", ())
    above = f"Chapter {number[0]}" if number else ""
    above += ", live" if number and page.startswith("notebooks/") else ""
    name = f"_static/share/{page.replace('/', '-')}.png"
    path = Path(app.outdir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = card(title, above, about)
    if page == FRONT.removesuffix(".html"):
        hero(image)
    image.quantize(64).save(path, optimize=True)
    known = app.config.allranks_repository
    base = base_of(known[0]) if known else ""
    address = f"{base}{name}" if base else context["pathto"](name, 1)
    tags = {
        "og:title": title,
        "og:type": "article",
        "og:site_name": "All Ranks",
        "og:description": about,
        "og:image": address,
        "og:image:width": SIZE[0],
        "og:image:height": SIZE[1],
        "og:image:alt": f"{title}. {about}",
    }
    if base:
        tags["og:url"] = f"{base}{page}.html"
    lines = [
        f'<meta property="{key}" content="{escape(str(value))}" />'
        for key, value in tags.items()
    ]
    lines.append('<meta name="twitter:card" content="summary_large_image" />')
    context["metatags"] = "\n".join([metatags, *lines])


def front(app: Sphinx, exception: Exception | None) -> None:
    """Write ``index.html``: the front page itself instead of a redirect to it."""
    source = Path(app.outdir, FRONT)
    if exception or app.builder.name != "html" or not source.is_file():
        return
    base = f'<base href="{FRONT}"><link rel="canonical" href="{source.name}">'
    html = source.read_text("utf8").replace("<head>", f"<head>\n{base}", 1)
    Path(app.outdir, "index.html").write_text(html, "utf8")


def setup(app: Sphinx) -> None:
    """Register both; the second runs after all else, at the build's end."""
    app.connect("html-page-context", tag)
    app.connect("build-finished", front, priority=1000)
