"""Make the EPUB, and from the same pages the PDF.

    python book/_tools/paper.py epub     # writes _build/all-ranks.epub
    python book/_tools/paper.py pdf      # writes _build/all-ranks.pdf; needs Chromium

book/_ext/paper/ writes the EPUB's pages: no control, nothing folded. The PDF is all
of them in one, printed by Chromium twice: the first time tells where each heading went.
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
    """Build the EPUB below a folder: the folder with its pages and the book."""
    out = folder / "_build" / "epub"
    shutil.rmtree(out, ignore_errors=True)  # else a page that is no more stays in it
    for read in (".doctrees", "jupyter_execute"):  # of pages that need no new reading
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
    """Captions of the parts, each with its pages: (name, is it below another)."""
    found = [("", [(toc["root"], False)])]
    for part in toc["parts"]:
        pages = []
        for chapter in part["chapters"]:
            pages.append((chapter["file"], False))
            pages += [(below["file"], True) for below in chapter.get("sections", ())]
        found.append((part["caption"], pages))
    return found


def name(page: str) -> str:
    """A page's name as an id: ``book/ch5_ddp`` to ``book-ch5_ddp``."""
    return page.replace("/", "-")


@cache
def joined(out: Path, page: str) -> Tag:
    """A page's content as a part of one long page: ids and links of its own."""
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
        tag.parent["class"] = "predict"  # stays with the cell that answers
    body = tree.body
    body.name, body.attrs = "section", {"class": "doc", "id": own}
    body.append(addresses(tree))
    return body


def moved(page: str, link: str) -> str:
    """A link of one page as a link within the long one."""
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
    """The whole book as one page of HTML; ``numbers`` says where each id stands."""
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
                    text = section.h2.get_text().strip()
                    contents.append(entry(section["id"], text, "below", numbers))
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
    """A line of the table of contents."""
    return (
        f'<li class="{kind}"><a class="title" href="#{escape(anchor)}">{escape(title)}'
        f'</a><span class="dots"></span>'
        f'<span class="page">{numbers.get(anchor, 0)}</span></li>'
    )


def write_pdf(out: Path, target: Path) -> None:
    """Print the book until its table of contents is right: twice."""
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
    """Make what the command line names."""
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
