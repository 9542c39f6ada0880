"""``{run}``: a command with a copy button, and its recorded output below.

    ```{run} torchrun --standalone --nproc-per-node 4 scripts/ch4_ranks.py
    ```

``:exit: 1`` states an expected exit code other than 0. ``:only: REGEX`` is for output
that describes the machine: only what the expression finds must be the same on every
machine. The output is the record in ``book/_runs/``, and a command without a record
fails the build.

For a ``torchrun`` that fails, the ranks' lines come first and the whole terminal is
folded below them; ``:open:`` shows the terminal alone, unfolded.
"""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from book._ext.runs import records, terminal

RUNS = "book/_runs"
HOW_TO_READ = "launch_terminal"  # label of the section on how to read a terminal


class fold(nodes.container):
    """A part that readers unfold by a click on its ``title``."""


class Run(SphinxDirective):
    """A command block followed by an output block."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "exit": directives.nonnegative_int,
        "only": directives.unchanged_required,
        "open": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Look up the record, and show it below its command."""
        command = records.Command(self.arguments[0], self.options.get("exit", 0))
        self.env.note_dependency(f"{RUNS}/{command.record}")
        try:
            output = records.read(Path(self.env.srcdir, RUNS), command)
        except LookupError as error:
            raise self.error(str(error)) from None
        box = nodes.container(classes=["run"])
        box += self.block(f"$ {command.line}", "console", "run-command")
        folded = command.terminal and "open" not in self.options
        if shown := terminal.of_ranks(output) if folded else output:
            box += self.block(shown, "ranks", "run-output", "no-copy")
        if folded:
            title = f"The whole terminal, {len(output.splitlines())} lines"
            whole = self.block(output, "text", "run-output", "no-copy")
            box += fold("", whole, classes=["run-fold"], title=title)
        if command.exit_code:
            note = f"It ends with exit code {command.exit_code}. "
            note = nodes.paragraph(note, note, classes=["run-exit"])
            note += self.how_to_read() if folded else []
            box += note
        return [box]

    def how_to_read(self) -> list[nodes.Node]:
        """Return a link to the section on how to read a terminal."""
        link = addnodes.pending_xref(
            refdomain="std",
            reftype="ref",
            reftarget=HOW_TO_READ,
            refexplicit=True,
            refdoc=self.env.docname,
            refwarn=True,
        )
        link += nodes.inline("", "How to read a terminal")
        return [link]

    def block(self, text: str, language: str, *classes: str) -> nodes.literal_block:
        """Build one highlighted block."""
        block = nodes.literal_block(text, text, language=language, classes=[*classes])
        self.set_source_info(block)
        return block


def unfold(writer: HTML5Translator, node: fold) -> None:
    """Open a box that folds without any script."""
    tag = writer.starttag(node, "details")
    writer.body.append(f"{tag}<summary>{node['title']}</summary>\n")


def close(writer: HTML5Translator, node: fold) -> None:
    """Close the box."""
    writer.body.append("</details>\n")


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_node(fold, html=(unfold, close))
    app.add_directive("run", Run)
