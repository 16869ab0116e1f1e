"""The command ``prismgp``.

Every subcommand is a module with ``add_parser``, which declares its arguments, and ``run``, which
does the work and returns the exit code. Errors are handled here, in one place.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import prismgp
from prismgp.cli.common import Parser, complain, one_line
from prismgp.exceptions import PrismGPError, PrismGPWarning

__all__ = ["main"]

_SUBCOMMANDS = ("fit", "predict", "certify", "report", "info")

_BAD_INPUT = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : list of str or None, default None
        Arguments without the program's name; None: those of the process.

    Returns
    -------
    int
        0 on success; 1 for a certificate that does not hold; 2, with one line on stderr, on bad usage or bad input;
        130 when interrupted; 141 when the reader of the output has closed it.
    """
    try:
        args = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    except SystemExit as stop:  # argparse leaves this way, also after --help
        return stop.code if isinstance(stop.code, int) else _BAD_INPUT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PrismGPWarning)
            warnings.showwarning = _show_warning
            code = int(args.run(args))
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        _abandon_stdout()
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        complain("interrupted")
        return _INTERRUPTED
    except PrismGPError as error:
        complain(f"error: {error}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        complain(f"error: {place}{error.strerror or error}")
    except MemoryError:
        complain("error: out of memory; use fewer rows or columns, or fewer frequencies (-p)")
    return _BAD_INPUT


def _parser(argv: list[str]) -> Parser:
    """The parser of the given command only, if there is one: commands load what they need, and predict needs little."""
    parser = Parser(
        prog="prismgp",
        description="Gaussian process regression on tables: fit, predict with uncertainty, certify, report, "
        "inspect models.",
        epilog="Exit code: 0 on success, 1 when a certificate does not hold, 2 on bad usage or bad input.",
    )
    parser.add_argument("--version", action="version", version=f"prismgp {prismgp.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in argv[:1] if argv and argv[0] in _SUBCOMMANDS else _SUBCOMMANDS:
        import_module(f"prismgp.cli.{name}").add_parser(subparsers)
    return parser


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {one_line(str(message))}")


def _abandon_stdout() -> None:
    """Redirect stdout to nothing, so that the interpreter's last flush does not fail."""
    with suppress(OSError, ValueError):  # a stdout without a descriptor needs no care
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
