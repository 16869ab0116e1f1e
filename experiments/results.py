"""Results on disk: one file for each study, ``STUDY.jsonl``, a line for each finished piece of work.

Lines are only ever appended, until `Study.compact` leaves out what no longer counts. Every line has a "key"; of several
lines with the same key the last one counts. The line with the key "study" says what was asked for. Each record names
the commit, the digest of the source, the versions and the machine it was made with. A list of objects that have the
same names is stored by columns, ``{"@columns": {name: values}}``, which takes half the room.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from experiments.machine import ROOT, atomic_path
from prismgp.exceptions import DataError

__all__ = ["FORMAT", "RESULTS", "RUNS", "Record", "Study"]

RESULTS = ROOT / "experiments" / "results"  # what README and documentation quote
RUNS = Path("runs")  # where commands write unless told otherwise
FORMAT = 1

_ABOUT = "study"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")
_DIGITS, _ARRAY_DIGITS = 8, 4  # significant, of numbers, and of those in arrays
_COLUMNS = "@columns"
_AS = "@as"  # a value that is the same as that of an earlier result

Record = dict[str, Any]


class Study:
    """The results of a study, begun or continued.

    Parameters
    ----------
    folder : path
    name : str
        The file is ``folder/name.jsonl``; it need not exist.

    Attributes
    ----------
    about : dict
        What was asked for: "kind", "options", "command", "started", "planned", "skipped"; empty for a new study.
    """

    def __init__(self, folder: str | PathLike[str], name: str) -> None:
        self.folder, self.name = Path(folder), name
        self._records = dict(_read(self.path))
        self.about: Record = self._records.pop(_ABOUT, {})
        found = self.about.get("format", FORMAT)
        if type(found) is not int or found != FORMAT:
            raise DataError(f"{self.path}: format {found!r}, but this version reads {FORMAT}; choose another folder")

    @property
    def path(self) -> Path:
        """The file of the results."""
        return self.folder / f"{self.name}.jsonl"

    @classmethod
    def read(cls, folder: str | PathLike[str], name: str) -> Study:
        """A study that has results."""
        path = Path(folder) / f"{name}.jsonl"
        if not path.is_file():
            there = ", ".join(sorted(each.stem for each in path.parent.glob("*.jsonl"))) or "none"
            raise DataError(f"{path}: no such study; the folder has: {there}")
        found = cls(folder, name)
        if not found.records:
            command = found.about.get("command") or "the command that began it"
            raise DataError(f"{path}: the study has no finished results yet; continue with {command!r}")
        return found

    @property
    def records(self) -> dict[str, Record]:
        """All finished results, in the order of their keys."""
        return {key: self._records[key] for key in sorted(self._records)}

    def get(self, key: str) -> Record | None:
        """The result of a key, None where there is none."""
        return self._records.get(key)

    def put(self, key: str, record: Record) -> None:
        """Append a result; after an interruption the line is there as a whole or ignored."""
        if not _KEY.fullmatch(key) or key == _ABOUT:
            raise ValueError(f"{key!r} cannot be the key of a result")
        self._records[key] = self._append(key, record)

    def remove(self, keys: Iterable[str]) -> None:
        """Leave out results that are in no plan any more, and write the file anew."""
        gone = set(keys)
        if absent := gone - self._records.keys():
            raise ValueError(f"no results of {', '.join(sorted(absent))}")
        self._records = {key: record for key, record in self._records.items() if key not in gone}
        if self.about:
            self.about = {**self.about, "planned": [key for key in self.about["planned"] if key not in gone]}
        self.compact()

    def compact(self) -> int:
        """Write the file anew with one line for each key; the bytes that were saved."""
        before = self.path.stat().st_size
        everything = {_ABOUT: self.about, **self._records}
        first: dict[str, str] = {}  # of equal objects, such as the machine: the result that has it in full
        with atomic_path(self.path) as temporary:
            lines = (_to_line(key, _refer(key, record, first)) for key, record in everything.items() if record)
            temporary.write_bytes(b"".join(lines))
        return before - self.path.stat().st_size

    def sibling(self, name: str) -> Study:
        """Another study in the same folder."""
        return Study(self.folder, name)

    def begin(self, *, kind: str, options: Record, command: str, planned: list[str], skipped: Record) -> None:
        """Say what is asked for; a study that was begun with another kind or other options is refused.

        What is planned is added to what was planned before: a study may be continued with more of the same.
        """
        asked = json.loads(json.dumps({"kind": kind, "options": options}))
        before = self.about
        for what, wanted in asked.items() if before else ():
            if before.get(what) != wanted:
                raise DataError(
                    f"{self.path}: holds results with other settings ({what}: {before.get(what)!r}, asked for: "
                    f"{wanted!r}); choose another folder with --results, or remove the file to begin again"
                )
        keys = dict.fromkeys([*before.get("planned", []), *planned])
        left_out = {**before.get("skipped", {}), **skipped}
        about = {
            "format": FORMAT,
            **asked,
            "command": before.get("command", command),
            "started": before.get("started", datetime.now(UTC).isoformat(timespec="seconds")),
            "planned": list(keys),
            "skipped": {key: why for key, why in left_out.items() if key not in keys},
        }
        if about != before:
            self.about = self._append(_ABOUT, about)

    def _append(self, key: str, record: Record) -> Record:
        line = _to_line(key, record)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            _drop_incomplete_line(file)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        return _from_line(line)[1]


def _read(path: Path) -> Iterator[tuple[str, Record]]:
    """Key and record of every whole line; a last line without an end was being written when its process died."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    found: dict[str, Record] = {}
    for number, line in enumerate(lines[:-1], start=1):
        try:
            key, record = _from_line(line)
            for name, value in record.items():
                if isinstance(value, dict) and value.keys() == {_AS}:
                    record[name] = found[value[_AS]][name]
            found.setdefault(key, record)  # the first: a later line may replace a result that others refer to
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number}: is not a JSON object with a key ({error}); remove the line, and the command "
                "measures again what it held"
            ) from error
        yield key, record


def _drop_incomplete_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - 1)
    file.seek(start)
    if end and file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _refer(key: str, record: Record, first: dict[str, str]) -> Record:
    """The record with objects that an earlier one has too as references to it, where that is shorter."""
    short = dict(record)
    for name, value in record.items():
        if isinstance(value, dict):
            text = json.dumps([name, value])
            reference = {_AS: first.setdefault(text, key)}
            if first[text] != key and len(json.dumps(reference)) < len(json.dumps(value)):
                short[name] = reference
    return short


def _to_line(key: str, record: Record) -> bytes:
    text = json.dumps({"key": key, **_compact(record)}, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return f"{text}\n".encode()


def _from_line(line: bytes) -> tuple[str, Record]:
    record = json.loads(line, object_hook=_expand)
    return record.pop("key"), record


def _compact(value: Any, *, in_array: bool = False) -> Any:
    """The same with numbers rounded, those inside of lists more, and tables by columns: most of the bytes are there."""
    if isinstance(value, dict):
        return {str(key): _compact(item, in_array=in_array) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > 1 and all(isinstance(row, dict) and row and row.keys() == value[0].keys() for row in value):
            return {_COLUMNS: {str(name): _compact([row[name] for row in value]) for name in value[0]}}
        return [_compact(item, in_array=True) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_ARRAY_DIGITS if in_array else _DIGITS}g}")
    return value


def _expand(value: Record) -> Any:
    """Rows from columns; any other object as it is."""
    if value.keys() != {_COLUMNS}:
        return value
    columns = value[_COLUMNS]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
