"""Begin a chapter or a draft: write its files, and run them once.

    python book/_tools/chapter.py ch7_fsdp "Fully sharded"
    python book/_tools/chapter.py draft_fsdp "Fully sharded"

A chapter gets a page, a notebook, a script and a test, a draft all but the notebook.
They pass their tests as they are. Together they say one true thing, about the mean over
all ranks; replace it, piece by piece, by what the chapter is about.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from nbformat import v4

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for book._ext and book._tools

from book._ext.chapters import chapter_map  # noqa: E402
from book._ext.chapters.chapter_map import DRAFT  # noqa: E402
from book._tools import notebooks  # noqa: E402

MOST = 30  # letters of a title, to fit two lines of its card on the map
LONGEST = 23  # letters of a name, so that the script's docstring fits 79 columns
TITLE = re.compile(r"[A-Z][\w ,:;'()/+-]*[\w)]")
TOC = """      - file: book/{name}
        sections:
          - file: notebooks/{name}
"""
DRAFTS = """  - caption: Drafts
    chapters:
"""
PAGE = """---
myst:
  html_meta:
    description: "{title}: two ranks average what they hold, and both get the mean."
# For glossary, said, course and least_ranks see book/_ext/front.py.
---
({name})=
# {title}

**After this page** you can say what each rank gets back when all of them average a
tensor.
{live}
## What does each rank get?

Two ranks hold different numbers. Each one hands a copy to `all_reduce`, which leaves
the sum in it, so a division by the number of ranks gives everybody the same mean:

```{{literalinclude}} ../scripts/{name}.py
:pyobject: mean_over_ranks
```

```{{run}} torchrun --standalone --nproc-per-node 2 scripts/{name}.py
```
"""
LIVE = """
Run it live: {{ref}}`{name}_live` asks you to predict each result below, and then
computes it.
"""
CELLS = (
    """({name}_live)=
# {title}, live

Two real processes run the cells of this notebook. Make each prediction before you run \
the cell below it. The page {{ref}}`{name}` has the whole story.""",
    "%load_ext allranks\n%ranks 2",
    """## The mean of what all hold

**Predict**: rank 0 holds ones, rank 1 holds twos. What does each rank get back?""",
    """%%ranks
from scripts.{name} import mean_over_ranks

mean_over_ranks(torch.ones(2) * (rank + 1))""",
    "Both get 1.5: the sum is 3 on every rank, and each divides it by 2.",
    "%ranks stop",
)
SCRIPT = '''"""{kind} - {title}.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/{name}.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Average a tensor over all ranks; every rank gets the same answer."""
    total = values.clone()  # all_reduce writes into what it is given
    dist.all_reduce(total)
    return total / dist.get_world_size()


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, numbers=3).parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Average a tensor over all ranks, and say what each of them has then."""
    args = parse_args(argv)
    with job.ranks(args) as (rank, _, device):
        values = torch.arange(float(args.numbers), device=device) + rank
        mean = mean_over_ranks(values)
        job.say(f"{{values.tolist()}} here, {{mean.tolist()}} on average")


if __name__ == "__main__":
    main()
'''
TEST = '''"""{kind}'s script: all ranks get the mean of what they hold."""

import pytest
import torch

from allranks import launch
from scripts import {name}


def test_each_rank_gets_what_one_process_would_compute():
    """The mean over ranks is the mean of their tensors, stacked."""
    run = launch("{name}", 2, "--numbers", "4")
    held = torch.stack([torch.arange(4.0), torch.arange(4.0) + 1])  # (W, 4)
    mean = held.mean(dim=0).tolist()
    for rank in range(2):
        said = f"{{held[rank].tolist()}} here, {{mean}} on average"
        assert run.lines[rank] == [f"[rank {{rank}}/2] {{said}}"]


@pytest.mark.parametrize("flag", ["--numbers=0", "--numbers=65"])
def test_refuses_impossible_numbers(flag):
    """A bad value is refused in one sentence that names it."""
    with pytest.raises(SystemExit, match=r"^--numbers (0|65): must be 1 to 64$"):
        {name}.parse_args([flag])
'''


def numbered(root: Path) -> list[str]:
    """Return the names of the numbered chapters, in the order of the book."""
    parts = chapter_map.read(root).values()
    return [one.name for part in parts for one in part if one.number]


def fault(root: Path, name: str, title: str) -> str:
    """Return why this name and title can't be used, or an empty text if they can."""
    names = numbered(root)
    next_ = len(names) + 1
    match = re.fullmatch(rf"(?:ch(\d+)_|{DRAFT})[a-z][a-z0-9_]*", name)
    if not match:
        how = f"ch{next_}_ (or {DRAFT}) and the field's term, as in {names[-1]}"
        return f"NAME={name}: write {how}"
    if len(name) > LONGEST:
        return (
            f"NAME={name}: at most {LONGEST} letters, so that its command fits a line"
        )
    if not match[1] and (root / "book" / f"{name}.md").exists():
        return f"NAME={name}: book/{name}.md exists"
    if match[1] and int(match[1]) != next_:
        there = [one for one in names if one.startswith(f"ch{match[1]}_")]
        why = f"{there[0]} exists" if there else f"the last chapter is {names[-1]}"
        return f"NAME={name}: {why}, so the next name begins with ch{next_}_"
    if not TITLE.fullmatch(title) or len(title) > MOST:
        return (
            f"TITLE={title!r}: write 2 to {MOST} letters, digits, spaces or ,:;'()/+-, "
            "the first of them a capital letter"
        )
    return ""


def write(root: Path, name: str, title: str) -> list[Path]:
    """Write the files of a chapter or a draft, and add it to the contents."""
    draft = name.startswith(DRAFT)
    number = name.partition("_")[0].removeprefix("ch")
    words = {"name": name, "title": title}
    words["kind"] = "Draft" if draft else f"Chapter {number}"
    words["live"] = "" if draft else LIVE.format(name=name)
    make = v4.new_markdown_cell, v4.new_code_cell
    cells = [
        make[place % 2](text.format(**words), id=f"c{place:02}")
        for place, text in enumerate(CELLS)
    ]
    files = {
        f"book/{name}.md": PAGE.format(**words),
        f"notebooks/{name}.ipynb": notebooks.canonical(v4.new_notebook(cells=cells)),
        f"scripts/{name}.py": SCRIPT.format(**words),
        f"tests/test_{name}.py": TEST.format(**words),
    }
    if draft:
        del files[f"notebooks/{name}.ipynb"]
    for path, text in files.items():
        (root / path).write_text(text, "utf8")
    toc = (root / "_toc.yml").read_text("utf8")
    (root / "_toc.yml").write_text(listed(toc, name, numbered(root)[-1]), "utf8")
    return [root / path for path in files]


def listed(toc: str, name: str, last: str) -> str:
    """Return the contents with a new chapter below the last, or a draft at the end."""
    if name.startswith(DRAFT):
        head = "" if DRAFTS in toc else DRAFTS
        return f"{toc}{head}      - file: book/{name}\n"
    above = TOC.format(name=last).splitlines(keepends=True)[-1]  # below section pages
    if above not in toc:
        raise ValueError(f"_toc.yml: no entry of the usual form for {last}")
    return toc.replace(above, above + TOC.format(name=name))


def main(argv: list[str] | None = None) -> None:
    """Write a chapter or a draft, then execute its page and its notebook."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="ch7_fsdp or draft_fsdp: a field's term")
    parser.add_argument("title", help=f"at most {MOST} letters")
    options = parser.parse_args(argv)
    if why := fault(ROOT, options.name, options.title):
        parser.exit(2, f"{why}\n")
    files = write(ROOT, options.name, options.title)
    run = [path for path in files if path.suffix in (".md", ".ipynb")]
    execute = [sys.executable, ROOT / "book" / "_tools" / "execute.py", *run]
    if code := subprocess.run(execute).returncode:
        parser.exit(code)
    print(*(path.relative_to(ROOT) for path in files), sep="\n")
    print("CONTRIBUTING.md says which tests ask for more.")


if __name__ == "__main__":
    main()
