"""Make pages light: one style sheet, one script, and the icons in a small font.

After the build, the style sheets that all pages load become one, without the rules that
no page can use (purge.py). The scripts that all pages load become one as well, without
those that have nothing to do here. Of 384 KB of icon fonts only the glyphs in use stay,
and files that are no longer needed are deleted. The whole style sheet is kept beside
the doctrees, so that a test can check that both look the same.

What only some pages load loses its comments and blanks. The pages themselves do not:
browsers get them compressed.
"""

import hashlib
import json
import re
from pathlib import Path

import minify_html
from rcssmin import cssmin
from sphinx.application import Sphinx

from book._ext.weight.icon_font import icons
from book._ext.weight.purge import purge
from book._ext.weight.uses import Uses

LINK = re.compile(
    r"\s*<link\b(?=[^>]*stylesheet)[^>]*href=\"(?:\.\./)*_static/([^\"?]+\.css)[^>]*>"
)
SCRIPT = re.compile(
    r"\s*<script\b[^>]*\bsrc=\"(?:\.\./)*_static/([^\"?]+\.js)[^>]*></script>"
)
OWN = re.compile(r"<script (?=src=\"(?:(?:\.\./)*_static/|searchindex))")
NEVER = {  # book.js does what the book needs of these, in a tenth of the bytes
    "scripts/bootstrap.js",
    "scripts/fontawesome.js",
    "clipboard.min.js",
    "copybutton.js",
}
# Scripts that stay separate, and what a page must contain to load them.
ONLY_FOR = {
    "togglebutton.js": r'class="(?:[^"]* )?(?:toggle|dropdown admonition)[ "]',
    "design-tabs.js": r'class="(?:[^"]* )?sd-tab-set[ "]',
}
SETTINGS = {"togglebutton.js": r"\s*<script>(?:let|var) toggle[^<]*</script>"}
COMMENT = re.compile(r"^[ \t]*//.*\n", re.MULTILINE)
# These would load scripts that are gone, or call one that now runs after them.
VAIN = re.compile(
    r"\s*<link rel=\"preload\" as=\"script\"[^>]*>"
    r"|\s*<script>DOCUMENTATION_OPTIONS\.pagename[^<]*</script>"
)


def resolve(path: Path, static: Path) -> str:
    """Return a style sheet with its imports inlined, and addresses from ``static``."""
    css = re.sub(
        r'@import "([^"]+)";',
        lambda m: resolve((path.parent / m[1]).resolve(), static),
        path.read_text("utf8"),
    )
    folder = path.parent.relative_to(static).as_posix()
    return css if folder == "." else re.sub(
        r"url\((?![\"']?data:)[\"']?([^)\"']+)[\"']?\)", rf"url({folder}/\1)", css
    )  # fmt: skip


def delete_unnamed(static: Path, text: str) -> None:
    """Delete the files that no page, style sheet or script names, and empty folders."""
    for path in sorted(static.rglob("*"), reverse=True):
        if path.is_file() and path.name not in text:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def shortened(js: str) -> str:
    """Return a script without blanks and comments; what is in ``/*`` stays."""
    bare = COMMENT.sub("", js)  # minify_html keeps those above a function
    page = minify_html.minify(f"<script>{bare}</script>", minify_js=True)
    return page.removeprefix("<script>").removesuffix("</script>")


def shorten(static: Path) -> None:
    """Shorten the scripts and style sheets that only some pages load.

    What is one line is data, or was shortened by an earlier build.
    """
    how = {".css": cssmin, ".js": shortened}
    done = {"all.js", "all.css", "minisearch.js"}
    for path in static.rglob("*.*"):
        if path.suffix in how and path.name not in done:
            text = path.read_text("utf8")
            if "\n" in text.strip():
                path.write_text(how[path.suffix](text), "utf8")


def slim(app: Sphinx, exception: Exception | None) -> None:
    """Rewrite the pages and what they load, and shorten the rest."""
    if exception or app.builder.name != "html":
        return
    rewrite(app)
    shorten(Path(app.outdir, "_static"))


def rewrite(app: Sphinx) -> None:
    """Make one style sheet and one script, and have the pages load them."""
    out, memory = Path(app.outdir), Path(app.doctreedir, "slim.json")
    static = out / "_static"
    pages = {
        p: p.read_text("utf8") for p in out.rglob("*.html") if static not in p.parents
    }
    pages = {p: html for p, html in pages.items() if "<main" in html}
    new = {p: html for p, html in pages.items() if "/all.css?" not in html}
    if not new:
        return
    if len(new) == len(pages):
        lists = [
            [pattern.findall(html) for html in new.values()]
            for pattern in (LINK, SCRIPT)
        ]
        found = [
            [n for n in all_[0] if all(n in one for one in all_)] for all_ in lists
        ]
        memory.write_text(json.dumps(found))
    styles, scripts = json.loads(memory.read_text())
    merged = [name for name in scripts if name not in NEVER | ONLY_FOR.keys()]

    uses = Uses()
    for html in pages.values():
        uses.add_page(html)
    js = ";\n".join((static / name).read_text("utf8") for name in merged)
    uses.add_script(js)
    js = shortened(js)
    for path in static.rglob("*.js"):
        if path.relative_to(static).as_posix() not in {*NEVER, *merged, "all.js"}:
            uses.add_script(path.read_text("utf8"))
    whole = "\n".join(resolve(static / name, static) for name in styles)
    Path(app.doctreedir, "whole.css").write_text(whole, "utf8")
    css = icons(purge(whole, uses), static, uses)
    files = {"all.css": css, "all.js": js}
    sums = {
        name: hashlib.sha256(text.encode()).hexdigest()[:8]
        for name, text in files.items()
    }
    for name, text in files.items():
        (static / name).write_text(text, "utf8")

    for path, html in pages.items():
        up = "../" * len(path.relative_to(out).parts[:-1])
        if path in new:
            html = LINK.sub(lambda m: "" if m[1] in styles else m[0], html)
            idle = {n for n, need in ONLY_FOR.items() if not re.search(need, html)}
            gone = {*NEVER, *merged, *idle}
            html = VAIN.sub("", html)
            html = SCRIPT.sub(lambda m, g=gone: "" if m[1] in g else m[0], html)
            html = OWN.sub("<script defer ", html)
            link = f'<link rel="stylesheet" href="{up}_static/all.css?v=x">'
            load = f'<script defer src="{up}_static/all.js?v=x"></script>'
            html = html.replace("</title>", f"</title>\n{link}\n{load}", 1)
            for name in idle & SETTINGS.keys():
                html = re.sub(SETTINGS[name], "", html)
        for name, digest in sums.items():
            html = re.sub(rf"(?<=/{re.escape(name)}\?v=)\w+", digest, html)
        if html != pages[path]:
            path.write_text(html, "utf8")
        pages[path] = html
    delete_unnamed(static, "".join([*pages.values(), css, js]))


def setup(app: Sphinx) -> None:
    """Run after everything that changes pages."""
    app.connect("build-finished", slim, priority=950)
