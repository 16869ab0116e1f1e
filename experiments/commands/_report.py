"""``prismgp report``: a run as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.report import build, check_installed, read_run, render
from prismgp._memory import format_bytes
from prismgp.cli import common
from prismgp.cli.common import Parser, Subparsers, say

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "report",
        help="make an HTML page from a run",
        description="Make one HTML page, with all tables and figures inside, from a run: a folder that another command "
        "wrote. Works while the run goes on, with what is finished.",
    )
    parser.add_argument("folder", metavar="RUN", help="folder of the run; it holds run.json")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: RUN/report.html")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check everything, build, write."""
    check_installed("jinja2", "matplotlib")
    folder = Path(args.folder)
    read_run(folder)  # a path that is no run is the likelier mistake, and the better message
    output = Path(args.output) if args.output is not None else folder / "report.html"
    common.writable(str(output), inputs=[str(folder / "run.json"), *map(str, (folder / "results").glob("*.json"))])
    page = build(folder)
    render(page, output)
    if not args.quiet:
        say(f"Wrote {output} ({format_bytes(output.stat().st_size)}): {common.one_line(page.title)}")
    return 0
