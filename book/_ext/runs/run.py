"""``{run}``: a command with a copy button, and its recorded output below.

    ```{run} torchrun --standalone --nproc-per-node 4 scripts/ch4_ranks.py
    ```

``:exit: 1`` states an expected exit code other than 0. ``:only: REGEX`` is for output
that describes the machine: only what the expression finds must be the same on every
machine. The output is the record in ``book/_runs/``, and a command without a record
fails the build.

For a ``torchrun`` that fails, the ranks' lines come first and the whole terminal is
folded below them; ``:open:`` shows the terminal alone, unfolded. ``:show: REGEX`` shows
the lines of an output that matter, and folds the whole below them (fold.py).
"""

from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book._ext.runs import records, terminal
from book._ext.runs.fold import close, fold, folded, that_matter, unfold

RUNS = "book/_runs"
HOW_TO_READ = "launch_terminal"  # label of the section that explains it


class Run(SphinxDirective):
    """A command block followed by an output block."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "exit": directives.nonnegative_int,
        "only": directives.unchanged_required,
        "open": directives.flag,
        "show": directives.unchanged_required,
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
        both = command.terminal and "open" not in self.options
        if shown := terminal.of_ranks(output) if both else output:
            box += self.output(shown, command)
        if both:
            whole = self.block(output, "text", "run-output", "no-copy")
            where = f"{RUNS}/{command.record}"
            box += folded(whole, where, "The whole terminal")
        if command.exit_code:
            note = f"It ends with exit code {command.exit_code}. "
            note = nodes.paragraph(note, note, classes=["run-exit"])
            note += self.how_to_read() if both else []
            box += note
        return [box]

    def output(self, text: str, command: records.Command) -> list[nodes.Node]:
        """Show an output, or only what ``:show:`` finds in it."""
        look = ("ranks", "run-output", "no-copy")
        if "show" not in self.options:
            return [self.block(text, *look)]
        try:
            some = that_matter(text, self.options["show"])
        except ValueError as error:
            raise self.error(f"{command.line}: {error}") from None
        whole = folded(self.block(text, *look), f"{RUNS}/{command.record}")
        return [self.block(some, *look), *whole]

    def how_to_read(self) -> list[nodes.Node]:
        """Return a link to the section on how to read such an output."""
        link = addnodes.pending_xref(
            refdomain="std",
            reftype="ref",
            reftarget=HOW_TO_READ,
            refexplicit=True,
            refdoc=self.env.docname,
            refwarn=True,
        )
        link += nodes.inline("", "How to read this output")
        return [link]

    def block(self, text: str, language: str, *classes: str) -> nodes.literal_block:
        """Build one highlighted block."""
        block = nodes.literal_block(text, text, language=language, classes=[*classes])
        self.set_source_info(block)
        return block


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_node(fold, html=(unfold, close))
    app.add_directive("run", Run)
