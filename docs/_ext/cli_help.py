"""The directive ``{cli-help} COMMAND``: what the command line itself prints as its help."""

from __future__ import annotations

import contextlib
import io
import os
from unittest import mock

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from prismgp.cli import main


class CliHelp(Directive):
    """Put ``prismgp COMMAND --help`` into a literal block."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = io.StringIO()
        with mock.patch.dict(os.environ, {"COLUMNS": "84"}), contextlib.redirect_stdout(text):
            code = main([*self.arguments, "--help"])
        if code:
            raise self.error(f"prismgp {' '.join(self.arguments)} --help: exit code {code}")
        return [nodes.literal_block(text.getvalue(), text.getvalue(), language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("cli-help", CliHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
