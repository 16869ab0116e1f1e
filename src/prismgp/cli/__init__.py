"""The command ``prismgp``.

Every command is a module with ``add_parser``, which declares its arguments, and ``run``, which
does the work and returns the exit code. Errors and signals are handled here, in one place. Here is also what all
commands say: messages, tables of values, JSON, progress. Nothing here needs the numerical libraries, which take
seconds to load: ``prismgp --help`` answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

import prismgp
from prismgp.exceptions import PrismGPError, PrismGPWarning

__all__ = ["main"]

_COMMANDS = {
    "fit": "learn a model from a table",
    "predict": "predict the rows of a table",
    "suggest": "suggest the rows of a table to measure next",
    "certify": "bound how far a model is from the exact GP",
    "report": "write a page about a model on the rows of a table",
    "info": "show the contents of a model file",
}

STDOUT = "standard output"  # in messages
Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

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
        130 when interrupted by Ctrl-C or SIGTERM; 141 when the reader of the output has closed it.
    """
    with _interrupts() as interrupts:
        try:
            return _run(sys.argv[1:] if argv is None else argv, interrupts)
        except KeyboardInterrupt:
            print("prismgp: interrupted", file=sys.stderr)
            return _INTERRUPTED


def _run(argv: list[str], interrupts: _Interrupts) -> int:
    try:
        args = _parser(argv).parse_args(argv)
    except SystemExit as stop:  # argparse leaves this way, also after --help
        return stop.code if isinstance(stop.code, int) else _BAD_INPUT
    from prismgp._system import name_errors, refuse_too_large, reserve_memory  # loaded with the command

    try:
        interrupts.stop_waiting()
        with warnings.catch_warnings(), ExitStack() as args.at_exit, refuse_too_large("the command"):
            warnings.simplefilter("always", PrismGPWarning)
            warnings.showwarning = _show_warning
            reserve_memory()
            code = int(args.run(args))
            with name_errors(STDOUT):
                sys.stdout.flush()
            return code
    except BrokenPipeError:
        _abandon_stdout()
        return _BROKEN_PIPE
    except PrismGPError as error:
        complain(f"error: {error}")
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        complain(f"error: {place}{error.strerror or error}")
        if error.filename == STDOUT:
            _abandon_stdout()
    return _BAD_INPUT


class _Interrupts:
    """A signal handler that raises KeyboardInterrupt, but only after all modules are loaded.

    NumPy, for example, would report a broken installation if its import were interrupted.
    """

    def __init__(self) -> None:
        self._waiting, self._came = True, False

    def __call__(self, *_: Any) -> None:
        self._came = True
        if not self._waiting:
            raise KeyboardInterrupt

    def stop_waiting(self) -> None:
        """Called when everything is loaded."""
        self._waiting = False
        if self._came:
            raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """Treat SIGTERM as Ctrl-C while a command runs, and restore both afterwards.

    Only the main thread can do that. Signals that the process ignores, as under nohup, stay ignored.
    """
    handler = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, usual in before.items():
        if usual in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def _parser(argv: list[str]) -> Parser:
    """Make the parser, with the arguments of the given command only.

    A command loads the numerical libraries that it needs, which takes seconds: the list of commands must not wait.
    """
    parser = Parser(
        prog="prismgp",
        description="Gaussian process regression on tables: fit, predict with uncertainty, suggest rows to measure, "
        "certify, report, inspect models.",
        epilog="Exit code: 0 on success, 1 when a certificate does not hold, 2 on bad usage or bad input, 130 when "
        "interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"prismgp {prismgp.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        if argv[:1] == [name]:
            import_module(f"prismgp.cli.{name}").add_parser(subparsers, summary)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {one_line(str(message))}")


def _abandon_stdout() -> None:
    """Redirect stdout to nothing, so that the interpreter's last flush does not fail."""
    with suppress(OSError, ValueError):  # stdout may have no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- arguments and output ---------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, **kwargs: Any) -> None:
        # Abbreviated options in scripts would break when an option is added.
        super().__init__(**{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        complain(f"error: {message} (see {self.prog} --help)")
        raise SystemExit(2)


def one_line(text: str) -> str:
    """Remove line breaks and control characters, which may come from the contents of files."""
    return show_controls(" ".join(text.split()))


def show_controls(line: str) -> str:
    """Replace control characters in a line by question marks."""
    return "".join(character if character.isprintable() else "?" for character in line)


def format_name(name: str) -> str:
    """Return a column's name, quoted if it has characters that do not show."""
    return name if name.isprintable() and name.strip() == name and name else repr(name)


def complain(message: str) -> None:
    """Print one line on stderr."""
    _write(f"prismgp: {one_line(message)}", sys.stderr)


def say(text: str = "", *, error: bool = False) -> None:
    """Print a line on stdout, or on stderr if stdout is used for data."""
    _write(text, sys.stderr if error else sys.stdout)


def _write(text: str, stream: Any) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT if stream is sys.stdout else "standard error") from error


def terminal_width() -> int:
    """Return the number of characters in a line of the terminal."""
    return shutil.get_terminal_size((100, 24)).columns


def print_rows(rows: Sequence[tuple[str, str]], *, indent: int = 2, error: bool = False, wrapped: bool = False) -> None:
    """Print labels and values in two columns; ``wrapped``: break long values into several lines."""
    for line in format_rows(rows, indent=indent, wrapped=wrapped):
        say(line, error=error)


def format_rows(rows: Sequence[tuple[str, str]], *, indent: int = 2, wrapped: bool = False) -> Iterator[str]:
    """The lines that :func:`print_rows` prints."""
    width = max((len(label) for label, _ in rows), default=0)
    room = min(terminal_width(), 110) - indent - width - 2
    for label, value in rows:
        lines = [value]
        if wrapped:  # paths are not broken
            lines = textwrap.wrap(value, max(room, 40), break_long_words=False, break_on_hyphens=False)
        for start, line in zip([label, *([""] * len(lines))], lines, strict=False):
            yield f"{'':{indent}}{start:<{width}}  {line}".rstrip()


def json_text(value: dict[str, Any], *, indent: int | None = 2) -> str:
    """Format one JSON object; numbers that JSON cannot represent become null."""
    from prismgp._system import to_plain  # loads NumPy

    return json.dumps(to_plain(value), allow_nan=False, indent=indent)


def show_progress(args: argparse.Namespace) -> bool:
    """Return whether to show a progress bar: only on a terminal, and not with --quiet."""
    return sys.stderr.isatty() and not args.quiet


@contextmanager
def show_seconds(label: str, *, shown: bool) -> Iterator[None]:
    """Show the elapsed seconds, for work that cannot report its progress."""
    if not shown:
        yield
        return
    done, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not done.wait(1.0):
            print(f"\r{label}: {time.monotonic() - began:.0f} s ", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        print(f"\r{'':{len(label) + 12}}\r", end="", file=sys.stderr, flush=True)
