"""What people type and read: the parser of arguments, messages, tables of values, JSON, progress.

Nothing here needs the numerical libraries, which take seconds to load: ``prismgp --help`` answers at once.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, **kwargs: Any) -> None:
        # Abbreviated options in scripts would break when an option is added.
        super().__init__(**{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        complain(f"error: {message} (see {self.prog} --help)")
        raise SystemExit(2)


STDOUT = "standard output"  # in messages
Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"


def one_line(text: str) -> str:
    """Remove line breaks and control characters, which may come from the contents of files."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def printable(name: str) -> str:
    """A column's name, quoted if it has characters that do not show."""
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
    """Characters of a line."""
    return shutil.get_terminal_size((100, 24)).columns


def print_rows(rows: Sequence[tuple[str, str]], *, indent: int = 2, error: bool = False, wrapped: bool = False) -> None:
    """Print labels and values in two columns; ``wrapped``: break long values into several lines."""
    width = max((len(label) for label, _ in rows), default=0)
    room = min(terminal_width(), 110) - indent - width - 2
    for label, value in rows:
        lines = [value]
        if wrapped:  # paths are not broken
            lines = textwrap.wrap(value, max(room, 40), break_long_words=False, break_on_hyphens=False)
        for start, line in zip([label, *([""] * len(lines))], lines, strict=False):
            say(f"{'':{indent}}{start:<{width}}  {line}".rstrip(), error=error)


def json_text(value: dict[str, Any], *, indent: int | None = 2) -> str:
    """One JSON object; numbers that JSON cannot represent become null."""
    return json.dumps(_jsonable(value), allow_nan=False, indent=indent)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        return _jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def show_progress(args: argparse.Namespace) -> bool:
    """Whether to show a progress bar: only on a terminal, and not with --quiet."""
    return sys.stderr.isatty() and not args.quiet


@contextmanager
def ticking(label: str, *, shown: bool) -> Iterator[None]:
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
