"""``{run}``: a command with a copy button, and below it its recorded output.

    ```{run} torchrun --standalone --nproc-per-node 4 scripts/ch4_ranks.py
    ```

``:exit: 1`` states an expected exit code other than 0. ``:only: REGEX`` is for output
that describes the machine: what it finds must be the same on every other one. The
output is the record in ``book/_runs/``; a command without a record fails the build.
"""

from pathlib import Path
from typing import ClassVar

import records
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

RUNS = "book/_runs"


class Run(SphinxDirective):
    """A command block followed by an output block."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "exit": directives.nonnegative_int,
        "only": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Look the record up and show it below its command."""
        command = records.Command(self.arguments[0], self.options.get("exit", 0))
        self.env.note_dependency(f"{RUNS}/{command.record}")
        try:
            output = records.read(Path(self.env.srcdir, RUNS), command)
        except LookupError as error:
            raise self.error(str(error)) from None
        box = nodes.container(classes=["run"])
        box += self.block(f"$ {command.line}", "console", "run-command")
        if output:
            box += self.block(output, "ranks", "run-output", "no-copy")
        if command.exit_code:
            note = f"It ends with exit code {command.exit_code}."
            box += nodes.paragraph(note, note, classes=["run-exit"])
        return [box]

    def block(self, text: str, language: str, *classes: str) -> nodes.literal_block:
        """One highlighted block."""
        block = nodes.literal_block(text, text, language=language, classes=[*classes])
        self.set_source_info(block)
        return block


def setup(app) -> dict:
    """Add the directive."""
    app.add_directive("run", Run)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
