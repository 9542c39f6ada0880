"""The book on paper: an EPUB builder of our own that replaces Sphinx's.

Its pages have no theme and no scripts, because readable.py reduces them to what paper
can show. book/_tools/paper.py makes the PDF from the same pages.
"""

import posixpath
import re
import shutil
import uuid
from html import escape
from importlib.metadata import version
from pathlib import Path

import yaml
from bs4 import BeautifulSoup
from pygments.formatters import HtmlFormatter
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder

from book._ext.paper.readable import COLORS, TOKENS, properties, readable

PAPER = Path(__file__).resolve().parents[2] / "_paper"
COVER = "_static/cover.png"
PAGE = """<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" \
lang="en" xml:lang="en">
<head>
<meta charset="utf-8"/>
<title>{title}</title>
<link rel="stylesheet" type="text/css" href="{root}_static/pygments.css"/>
<link rel="stylesheet" type="text/css" href="{root}_static/paper.css"/>
</head>
<body>
{body}
</body>
</html>
"""
COVER_BODY = '<div class="cover"><img src="{}" alt="All Ranks"/></div>'


class PaperBuilder(Epub3Builder):
    """Sphinx's EPUB builder with pages, metadata and files of our own."""

    name = "epub"

    def init(self) -> None:
        """Set title, author and other metadata, which Jupyter Book does not pass on."""
        book = yaml.safe_load(Path(self.srcdir, "_config.yml").read_text("utf8"))
        config = self.config
        config.version = config.release = version("allranks")
        config.epub_basename = "all-ranks"
        config.epub_title = config.project = book["title"]
        config.epub_author = config.epub_publisher = book["author"]
        config.epub_contributor = book["author"]
        config.epub_copyright = f"{book['copyright']} {book['author']}, CC BY 4.0"
        config.epub_description = (
            "An interactive book on training PyTorch models on many GPUs."
        )
        config.epub_identifier = (
            f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_DNS, 'all-ranks')}"
        )
        config.epub_scheme, config.epub_uid = "UUID", "BookId"
        config.epub_cover = (COVER, "cover")
        config.epub_tocdepth, config.epub_tocdup = 2, False
        config.epub_tocscope = "includehidden"
        config.epub_show_urls, config.epub_use_index = "no", False
        config.html_copy_source = False
        super().init()

    def handle_page(
        self,
        pagename: str,
        addctx: dict,
        templatename: str = "page.html",
        outfilename: str | None = None,
        event_arg: object = None,
    ) -> None:
        """Write one page without theme and scripts."""
        body = addctx.get("body", "")
        if templatename == "cover":
            body = COVER_BODY.format(addctx["image"])
        title = BeautifulSoup(addctx.get("title", ""), "html.parser").get_text()
        path = Path(self.outdir, f"{pagename}{self.out_suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        root = posixpath.relpath(".", posixpath.dirname(pagename) or ".") + "/"
        page = PAGE.format(title=escape(title), root=root, body=readable(body))
        path.write_text(page, "utf8")

    def copy_static_files(self) -> None:
        """Copy the cover and write two style sheets."""
        static = Path(self.outdir, "_static")
        shutil.rmtree(static, ignore_errors=True)
        static.mkdir(parents=True)
        for name in ("paper.css", "cover.png"):
            shutil.copy(PAPER / name, static)
        style = HtmlFormatter(style="a11y-high-contrast-light")
        css = [style.get_style_defs(".highlight")]
        for token, name in TOKENS.items():
            css.append(f".highlight .{token} {{ color: {COLORS[name]} }}")
        (static / "pygments.css").write_text("\n".join(css), "utf8")

    def get_toc(self) -> None:
        """Collect the table of contents, and remove ``book/..`` from its addresses."""
        super().get_toc()
        for node in self.refnodes:
            node["refuri"] = posixpath.normpath(node["refuri"])

    def toc_metadata(self, level: int, navpoints: list) -> dict:
        """Return the metadata of toc.ncx, with the same identifier as content.opf."""
        known = super().toc_metadata(level, navpoints)
        return known | {"uid": self.config.epub_identifier}

    def build_content(self) -> None:
        """Write content.opf, and mark the cover and pages with formulas or drawings."""
        super().build_content()
        path = Path(self.outdir, "content.opf")
        path.write_text(re.sub(r"<item [^>]*?/>", self.mark, path.read_text("utf8")))

    def mark(self, item: re.Match) -> str:
        """Return an entry of the manifest with the properties that EPUB 3 asks for."""
        text, href = item[0], re.search(r'href="([^"]+)"', item[0])[1]
        found = "cover-image" if href == COVER else ""
        if href.endswith(self.out_suffix) and "properties=" not in text:
            found = properties(Path(self.outdir, href).read_text("utf8"))
        return text.replace(" />", f' properties="{found}" />') if found else text


def setup(app: Sphinx) -> None:
    """Replace Sphinx's EPUB builder by ours."""
    app.add_builder(PaperBuilder, override=True)
