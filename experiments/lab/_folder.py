"""Results on disk: one file for each finished piece of work, whole or absent."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from prismgp._files import atomic_path
from prismgp.exceptions import DataError

__all__ = ["RUN_FORMAT", "RunFolder", "Store", "read_json", "write_json"]

RUN_FORMAT = 1
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write readable JSON atomically; not-a-number has no place in it."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path, remedy: str = "remove the file, and what it held is made again") -> dict[str, Any]:
    """The object a file holds, or an error that says what to do with the file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # broken JSON, or bytes that are no text
        raise DataError(f"{path}: not JSON ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no JSON object; {remedy}")
    return found


@dataclass(frozen=True)
class Store:
    """Results by key, each in a file of its own.

    Parameters
    ----------
    folder : Path
        Made when the first result is stored.
    """

    folder: Path

    def path(self, key: str) -> Path:
        """Where the result of a key lies."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} cannot be the name of a result")
        return self.folder / f"{key}.json"

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored result, None where there is none."""
        path = self.path(key)
        return read_json(path) if path.exists() else None

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Store a result; the file appears whole or not at all."""
        write_json(self.path(key), result)

    def all(self) -> dict[str, dict[str, Any]]:
        """Every stored result, by key, in the order of the keys."""
        return {path.stem: read_json(path) for path in sorted(self.folder.glob("*.json"))}


@dataclass(frozen=True)
class RunFolder:
    """A run: what was asked for, and what is finished of it.

    Attributes
    ----------
    folder : Path
    about : dict
        The content of ``run.json``: "kind", "name", "command", "options", "started" and what the kind adds.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def results(self) -> Store:
        """The finished pieces of work."""
        return Store(self.folder / "results")

    @classmethod
    def open(
        cls, folder: str | PathLike[str], *, kind: str, name: str, command: str, options: dict[str, Any], **more: Any
    ) -> RunFolder:
        """The run in the folder, begun or continued.

        A folder whose run has another kind, name or options is refused: its results would be mixed with
        others that do not belong together.
        """
        path = Path(folder)
        if not (path / "run.json").exists():
            if path.is_dir() and any(path.iterdir()):
                raise DataError(f"{path}: is not empty and holds no run; choose another folder")
            started = datetime.now(UTC).isoformat(timespec="seconds")
            asked = {"kind": kind, "name": name, "options": options, "command": command}
            write_json(path / "run.json", {"format": RUN_FORMAT, **asked, "started": started, **more})
            return cls.read(path)
        found = cls.read(path)
        for what, wanted in (("kind", kind), ("name", name), ("options", json.loads(json.dumps(options)))):
            if (there := found.about.get(what)) != wanted:
                raise DataError(
                    f"{path}: holds a run with other settings ({what}: {there!r}, asked for: {wanted!r}); "
                    "choose another folder, or remove it to begin again"
                )
        return found

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> RunFolder:
        """The run in a folder that has one."""
        path = Path(folder)
        if not path.exists():
            raise DataError(f"{path}: no such folder; name the one that a run was written to")
        if not path.is_dir():
            raise DataError(f"{path}: is a file; name the folder that a run was written to")
        file = path / "run.json"
        if not file.is_file():
            commands = "prismgp reproduce, prismgp bench or make demo"
            raise DataError(f"{path}: holds no run.json, so it is no run; name a folder that {commands} wrote")
        about = read_json(file, "the file is damaged: run the command again, into a new folder")
        version = about.get("format")
        if type(version) is not int or version != RUN_FORMAT:
            newer = isinstance(version, int) and version > RUN_FORMAT
            remedy = "upgrade PrismGP" if newer else "run the command again, into a new folder"
            raise DataError(f"{file}: format {version!r}, but this version reads {RUN_FORMAT}; {remedy}")
        return cls(path, about)
