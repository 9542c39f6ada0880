"""Run Lighthouse over the built site and record its scores in book/_data/.

make lighthouse

It measures the intro, chapter 5 and the heaviest page, on a laptop and on a phone, and
sends them compressed, as servers do. The score for performance means something only on
an idle machine, which is why the tests check only what does not depend on time. It
needs npm's npx, and Chromium.
"""

import argparse
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from allranks.base.paths import ROOT
from book._tools.browser import find

SITE = ROOT / "_build" / "html"
RECORD = ROOT / "book" / "_data" / "lighthouse.json"
VERSION = "13.5.0"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
TEXT = {".html", ".css", ".js", ".svg", ".json"}
PAGES = ["book/intro", "book/ch5_ddp"]
CATEGORIES = ("performance", "accessibility", "best-practices", "seo")


class Quiet(SimpleHTTPRequestHandler):
    """A server without a log, which compresses texts."""

    def send_head(self) -> io.BytesIO | None:
        """Answer with a file, compressed unless it is a picture or a font."""
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return super().send_head()
        data, compressed = path.read_bytes(), path.suffix in TEXT
        data = gzip.compress(data) if compressed else data
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Length", str(len(data)))
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        return io.BytesIO(data)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def measure(url: str, form: str) -> dict:
    """Return the scores of one page, 0 to 100, and the audits that cost points."""
    browser = find() or ""
    command = ["npx", "--yes", f"lighthouse@{VERSION}", url, "--quiet"]
    command += ["--output=json", f"--chrome-flags={FLAGS}"]
    command += ["--preset=desktop"] if form == "desktop" else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        environment = os.environ | {"CHROME_PATH": browser}
        subprocess.run(
            [*command, f"--output-path={report}"], env=environment, check=True
        )
        result = json.loads(report.read_text("utf8"))
    scores = {n: round(100 * result["categories"][n]["score"]) for n in CATEGORIES}
    lost = [
        part["id"]
        for name in CATEGORIES
        for part in result["categories"][name]["auditRefs"]
        if part["weight"] and (result["audits"][part["id"]]["score"] or 0) < 0.9
        and result["audits"][part["id"]]["scoreDisplayMode"] in ("binary", "numeric")
    ]  # fmt: skip
    return scores | {"lost": sorted(set(lost))}


def heaviest(site: Path) -> str:
    """Return the page with the most bytes."""
    pages = [*site.glob("book/*.html"), *site.glob("notebooks/*.html")]
    page = max(pages, key=lambda path: path.stat().st_size)
    return page.relative_to(site).with_suffix("").as_posix()


def main() -> None:
    """Measure the pages, print the scores, and record them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "pages", nargs="*", help="default: the intro, chapter 5, and the heaviest"
    )
    parser.add_argument("--site", type=Path, default=SITE)
    parser.add_argument("--dry-run", action="store_true", help="do not record")
    args = parser.parse_args()
    if not shutil.which("npx"):
        sys.exit("lighthouse needs npx, which comes with Node.js")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=args.site))
    Thread(target=server.serve_forever, daemon=True).start()
    record = {"date": f"{date.today()}", "version": VERSION, "pages": {}}
    for page in args.pages or [*PAGES, heaviest(args.site)]:
        for form in ("desktop", "mobile"):
            url = f"http://127.0.0.1:{server.server_port}/{page}.html"
            scores = measure(url, form)
            record["pages"].setdefault(page, {})[form] = scores
            print(page, form, scores, flush=True)
    server.shutdown()
    if not args.dry_run:
        RECORD.write_text(json.dumps(record, indent=2) + "\n", "utf8")


if __name__ == "__main__":
    main()
