"""Make the EPUB, and from the same pages the PDF.

    python book/_tools/paper.py epub     # writes _build/all-ranks.epub
    python book/_tools/paper.py pdf      # writes _build/all-ranks.pdf; needs Chromium

book/_ext/paper/ writes the EPUB's pages, without controls and folded parts. The PDF is
one long page made of all of them. Chromium prints it twice, because only the first
print tells on which page each heading is, which the table of contents needs.
"""

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for book._ext

from book._ext.paper.readable import parse  # noqa: E402
from book._tools import pdf  # noqa: E402

PAPER = ROOT / "book" / "_paper"
SHORT = 22  # lines of code that stay together
RUNNING = """
@page {name} {{ @top-right {{ content: "{title}" }} }}
#{name} {{ page: {name} }}
"""


def build(folder: Path) -> Path:
    """Build the EPUB below a folder; return the folder with its pages and the book."""
    out = folder / "_build" / "epub"
    shutil.rmtree(out, ignore_errors=True)  # or a page that was deleted would stay
    for read in (".doctrees", "jupyter_execute"):  # so that Sphinx need not read again
        if (ROOT / "_build/html/.built").exists() and not (out.parent / read).exists():
            shutil.copytree(ROOT / "_build" / read, out.parent / read)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT]
    command += ["--builder", "custom", "--custom-builder", "epub"]
    command += ["-W", "-n", "--keep-going", "-q", "--path-output", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder)  # Sphinx would not repeat its warnings
        raise SystemExit(f"the EPUB does not build:\n{done.stderr}")
    return out


def parts(toc: dict) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return each part's caption and pages, as (name, is it below another page)."""
    found = [("", [(toc["root"], False)])]
    for part in toc["parts"]:
        pages = []
        for chapter in part["chapters"]:
            pages.append((chapter["file"], False))
            pages += [(below["file"], True) for below in chapter.get("sections", ())]
        found.append((part["caption"], pages))
    return found


def name(page: str) -> str:
    """Turn a page's name into an id: ``book/ch5_ddp`` becomes ``book-ch5_ddp``."""
    return page.replace("/", "-")


@cache
def joined(out: Path, page: str) -> Tag:
    """Return a page's content for the one long page, with ids that are unique there."""
    tree = parse((out / f"{page}.xhtml").read_text("utf8"))
    own = name(page)
    for tag in tree.find_all(id=True):
        tag["id"] = f"{own}--{tag['id']}"
    for tag in tree.find_all(["a", "image", "use"]):
        for key in ("href", "xlink:href"):
            if key in tag.attrs:
                tag[key] = moved(page, tag[key])
    for tag in tree.find_all(re.compile("^(rect|path|g|line|circle|text|polygon)$")):
        for key, value in tag.attrs.items():
            if isinstance(value, str):
                tag[key] = value.replace("url(#", f"url(#{own}--")
    for tag in tree.find_all("img"):
        folder = posixpath.dirname(page)
        if not tag["src"].startswith("data:"):
            tag["src"] = posixpath.normpath(posixpath.join(folder, tag["src"]))
    for tag in tree.find_all("pre"):
        if tag.get_text().count("\n") <= SHORT:
            tag["class"] = "short"
    for tag in tree.find_all("strong", string="Predict"):
        tag.parent["class"] = "predict"  # no page break before the cell that answers
    body = tree.body
    body.name, body.attrs = "section", {"class": "doc", "id": own}
    body.append(addresses(tree))
    return body


def moved(page: str, link: str) -> str:
    """Turn a link of one page into a link within the long page."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return link
    folder = posixpath.dirname(page)
    target = posixpath.normpath(posixpath.join(folder, url.path)) if url.path else page
    target = name(target.removesuffix(".xhtml"))
    return f"#{target}--{unquote(url.fragment)}" if url.fragment else f"#{target}"


def addresses(tree: BeautifulSoup) -> Tag | str:
    """Number the links that leave the book, and list their addresses."""
    found: dict[str, int] = {}
    for tag in tree.find_all("a", href=re.compile("^https?:")):
        number = found.setdefault(tag["href"], len(found) + 1)
        mark = tree.new_tag("span", attrs={"class": "link-number"})
        mark.string = str(number)
        tag.append(mark)
    if not found:
        return ""
    rows = "".join(f'<li><a href="{escape(u)}">{escape(u)}</a></li>' for u in found)
    text = f'<div class="links"><p>Links of this page</p><ol>{rows}</ol></div>'
    return BeautifulSoup(text, "html.parser").div


def document(out: Path, numbers: dict[str, int]) -> str:
    """Return the whole book as one HTML page; ``numbers`` has the page of each id."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    styles = [(PAPER / "paper.css").read_text("utf8")]
    styles += [(out / "_static" / "pygments.css").read_text("utf8")]
    styles += [(PAPER / "print.css").read_text("utf8")]
    contents, bodies = [], []
    for caption, files in parts(toc):
        contents.append(f"<h2>{escape(caption)}</h2>" if caption else "")
        contents.append("<ol>")
        for page, below in files:
            body = joined(out, page)
            title = body.h1.get_text().strip()
            styles.append(
                RUNNING.format(name=name(page), title=title.replace('"', "'"))
            )
            contents.append(entry(name(page), title, "below" if below else "", numbers))
            if not below and caption.startswith("Part"):
                for section in body.section.find_all("section", recursive=False):
                    heading = section.h2  # a section may begin on the page before
                    heading["id"] = f"{section['id']}--title"
                    text = heading.get_text().strip()
                    contents.append(entry(heading["id"], text, "below", numbers))
            bodies.append(str(body))
        contents.append("</ol>")
    cover = '<div class="cover"><img src="_static/cover.png" alt="All Ranks"/></div>'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>{escape('All Ranks')}</title><style>{''.join(styles)}</style></head>"
        f'<body>{cover}<section class="toc"><h1>Contents</h1>{"".join(contents)}'
        f"</section>{''.join(bodies)}</body></html>"
    )


def entry(anchor: str, title: str, kind: str, numbers: dict[str, int]) -> str:
    """Return a line of the table of contents."""
    return (
        f'<li class="{kind}"><a class="title" href="#{escape(anchor)}">{escape(title)}'
        f'</a><span class="dots"></span>'
        f'<span class="page">{numbers.get(anchor, 0)}</span></li>'
    )


def write_pdf(out: Path, target: Path) -> None:
    """Print the book until its table of contents is right, which takes two prints."""
    path = out / "paper.html"
    path.write_text(document(out, {}), "utf8")
    with pdf.Printer() as printer:
        numbers, before = pdf.targets(printer.print(path, draft=True)), {}
        while numbers != before:
            path.write_text(document(out, numbers), "utf8")
            data = printer.print(path)
            numbers, before = pdf.targets(data), numbers
    target.write_bytes(data)


def main(argv: list[str] | None = None) -> None:
    """Make the EPUB or the PDF, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["epub", "pdf"])
    parser.add_argument("--folder", type=Path, default=ROOT / "_build")
    options = parser.parse_args(argv)
    out = build(options.folder / "paper")
    target = options.folder / f"all-ranks.{options.kind}"
    if options.kind == "epub":
        shutil.copy(out / target.name, target)
    else:
        write_pdf(out, target)
    print(f"The book: {target}")


if __name__ == "__main__":
    main()
