"""Runs: folders that commands leave behind, and the page that each kind of run becomes.

A run is ``run.json``, which says what was done, and a file in ``results`` for every finished piece of work.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from experiments.lab._folder import RunFolder, read_json
from experiments.report._content import Page
from prismgp.exceptions import DataError

__all__ = ["KINDS", "build", "read_results", "read_run"]

# Imported only when needed: a page of one kind should not wait for the others.
KINDS = {
    "reproduce": "experiments.lab.reproduce:page",
    "bench": "experiments.lab.bench:page",
    "demo": "experiments.lab.demo:page",
}


def build(folder: str | PathLike[str]) -> Page:
    """The page of a run.

    Parameters
    ----------
    folder : path
        Holds ``run.json`` and ``results``.

    Returns
    -------
    Page

    Raises
    ------
    DataError
        There is no run, this version cannot read it, or nothing is finished yet.
    """
    run = read_run(folder)
    place = Path(folder)
    if not any((place / "results").glob("*.json")):
        raise DataError(
            f"{place}: the run has no finished results yet; let it go on with {_command(run)}, then try again"
        )
    return _builder(place, run["kind"])(place)


def read_run(folder: str | PathLike[str]) -> dict[str, Any]:
    """What ``run.json`` says, checked for a format and a kind that this version knows.

    Parameters
    ----------
    folder : path

    Returns
    -------
    dict
    """
    run = RunFolder.read(folder).about
    kind = run.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DataError(
            f"{Path(folder) / 'run.json'}: unknown kind of run {kind!r}; this version knows {', '.join(KINDS)}. "
            "A newer PrismGP may have written it: upgrade"
        )
    return run


def read_results(folder: str | PathLike[str]) -> dict[str, dict[str, Any]]:
    """Every finished result, by its key, in the order of the keys.

    Parameters
    ----------
    folder : path
        Of the run.

    Returns
    -------
    dict
        File name without suffix to what the file holds.
    """
    paths = sorted((Path(folder) / "results").glob("*.json"))
    return {path.stem: read_json(path, "delete this file and run the command again") for path in paths}


def _command(run: dict[str, Any]) -> str:
    command = run.get("command")
    return repr(command) if isinstance(command, str) and command else "the command that began it"


def _builder(folder: Path, kind: str) -> Callable[[Path], Page]:
    module, _, name = KINDS[kind].partition(":")
    try:
        found: Callable[[Path], Page] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        absent = error.name or module
        if absent.split(".")[0] != "prismgp":
            raise DataError(
                f'{folder}: its page needs {absent}, which is not installed: pip install "prismgp[all]"'
            ) from error
        raise DataError(
            f"{folder}: this installation has no pages for runs of kind {kind!r}; upgrade PrismGP"
        ) from error
    return found
