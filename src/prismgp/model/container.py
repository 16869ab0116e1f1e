"""The bytes of a model file, safetensors with a checksum, written in pieces and mapped when read; text and tensors.

The header's metadata has two entries: ``prismgp``, a text, and ``sha256``, the digest of the whole file with the 64
digits of the digest itself replaced by zeros, so that every flipped bit is noticed.

Neither direction needs memory for the whole file. Tensors of more than a megabyte are views of a private map of the
file: pages are read when they are used, the system may drop them, and a write would change the process's copy only.
The map stays valid when the file is deleted or another is renamed over it.

Reading the text alone needs no torch, which takes a second to load.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prismgp._system import atomic_path
from prismgp.exceptions import ModelFileError, PrismGPError

if TYPE_CHECKING:
    from prismgp._types import Tensor
    from prismgp.core.kernels import Parameters

FORMAT_VERSION = 5
ZEROS = b"0" * 64
ROWS = "near."  # beginning of the names of tensors that are read row by row, wherever they lie in memory
PARAMETERS = ("log_lengthscale", "log_signal", "log_noise", "mean")  # of a kernel
STANDARDISER = ("x_shift", "x_scale", "y_shift", "y_scale", "fixed_mean")  # units of inputs and targets
_TYPES = {"F64": "float64", "F32": "float32"}  # as torch and NumPy call them
_NAMES = {f"torch.{dtype}": name for name, dtype in _TYPES.items()}
_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in _TYPES.items()}
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_MAX_HEADER = 64 * 2**20
_BLOCK = 2**22  # bytes read or written at a time
_MAPPED = 2**20  # bytes, from which a tensor is mapped; smaller ones are copied
_CHANGED = "the file was changed while it was read"
_MAX_LOG = 700.0  # of a parameter; beyond it, exp is infinite or zero
_LINE = 64  # bytes; products of matrices that begin elsewhere may round differently
# What reading inconsistent numbers and text may raise; RuntimeError is torch's.
_UNUSABLE = (PrismGPError, ValueError, TypeError, LookupError, AttributeError, OverflowError, MemoryError, RuntimeError)


@dataclass(frozen=True)
class _Entry:
    """A tensor in the file."""

    name: str
    kind: str  # of its numbers, "F64" or "F32"
    shape: tuple[int, ...]
    start: int  # from the end of the header, in bytes, and so is stop
    stop: int


def write_tensors(path: str | PathLike[str], text: str, tensors: dict[str, Tensor]) -> None:
    """Write float64 and float32 tensors and a text to a file that appears whole or not at all."""
    head, order = _layout(text, tensors)
    digest = hashlib.sha256(head)
    size = len(head) + sum(map(_size, tensors.values()))
    with atomic_path(path, size) as temporary, temporary.open("wb") as file:
        file.write(head)
        for name in order:
            for piece in split_bytes(tensors[name]):
                digest.update(piece)
                file.write(piece)
        file.seek(digest_place(head).start)
        file.write(digest.hexdigest().encode())


def count_bytes(text: str, tensors: dict[str, Tensor]) -> int:
    """Size of the file that :func:`write_tensors` would write."""
    return len(_layout(text, tensors)[0]) + sum(map(_size, tensors.values()))


def read_tensors(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Text and tensors of a file, all of them finite; a damaged file, or one of another kind, raises ModelFileError."""
    with path.open("rb") as file:
        stamp = _stamp(file)
        head, header = _read_header(file, stamp[0])
        text = header.pop("__metadata__")["prismgp"]
        entries = read_entries(header, stamp[0] - len(head))
        # One map for all: it keeps the file, and lives as long as a tensor does.
        large = any(entry.stop - entry.start > _MAPPED for entry in entries)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if large else None
        tensors = {entry.name: _tensor(file, mapped, entry, len(head)) for entry in entries}
        if _stamp(file) != stamp:
            raise ModelFileError(_CHANGED)
    for name, tensor in tensors.items():
        if not _is_finite(tensor):
            raise ModelFileError(f"tensor {name!r} is not made of finite numbers")
    return text, tensors


def read_text(path: Path) -> str:
    """Text of a file, after a check of its checksum."""
    with path.open("rb") as file:
        _, header = _read_header(file, _stamp(file)[0])
    text: str = header["__metadata__"]["prismgp"]
    return text


def _read_header(file: BufferedReader, total: int) -> tuple[bytes, dict[str, Any]]:
    """The first bytes of a file, and the header that they hold, after a check of the checksum."""
    head = _read_head(file, total)
    place = digest_place(head)
    if digest_file(file, head, place) != head[place]:
        raise ModelFileError("checksum mismatch: the file is damaged; copy it again, or save the model again")
    header: dict[str, Any] = json.loads(head[8:])
    return head, header


def _stamp(file: BufferedReader) -> tuple[int, int]:
    """Return size and time of a file, which change with its contents."""
    about = os.fstat(file.fileno())
    return about.st_size, about.st_mtime_ns


def digest_place(head: bytes | bytearray) -> slice:
    """Find the 64 digits of the digest in a file, from its first bytes, the header included."""
    if len(head) < 8:
        raise ModelFileError("too short for a model file")
    size = int.from_bytes(head[:8], "little")
    if size > _MAX_HEADER:
        raise ModelFileError("not a PrismGP model file, or a damaged one (on the command line, MODEL is before DATA)")
    if size > len(head) - 8:
        raise ModelFileError(f"header claims {size:,} bytes; the file is truncated or damaged")
    found = list(_DIGEST.finditer(bytes(head[8 : 8 + size])))
    if len(found) != 1:
        raise ModelFileError("no checksum in the header; damaged, or not a PrismGP model file")
    start, end = found[0].span(1)
    return slice(8 + start, 8 + end)


# -- writing -------------------------------------------------------------------------------------


def _layout(text: str, tensors: dict[str, Tensor]) -> tuple[bytes, list[str]]:
    """Length and header, with zeros for the digest; and the order of the tensors."""
    # Those that fill whole lines of memory come first, then the largest, so that nearly every matrix that is large
    # enough to be mapped begins a line; float64 before float32, so that every number is aligned to its size.
    order = sorted(
        tensors,
        key=lambda name: (
            name.startswith(ROWS),
            _size(tensors[name]) % _LINE != 0,
            -tensors[name].element_size(),
            -_size(tensors[name]),
        ),
    )
    header: dict[str, Any] = {"__metadata__": {"prismgp": text, "sha256": ZEROS.decode()}}
    start = 0
    for name in order:
        tensor, stop = tensors[name], start + _size(tensors[name])
        shape, offsets = list(tensor.shape), [start, stop]
        header[name] = {"dtype": _NAMES[str(tensor.dtype)], "shape": shape, "data_offsets": offsets}
        start = stop
    body = json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-(8 + len(body)) % _LINE)
    if len(body) > _MAX_HEADER:
        raise ModelFileError(f"the description of the model takes {len(body):,} bytes, more than a file may have")
    return len(body).to_bytes(8, "little") + body, order


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def split_bytes(tensor: Tensor) -> Iterator[memoryview]:
    """Split the bytes of a tensor into blocks, in order."""
    flat = tensor.detach().reshape(-1)
    step = _BLOCK // tensor.element_size()
    for start in range(0, len(flat), step):
        yield flat[start : start + step].cpu().contiguous().numpy().data.cast("B")


# -- reading -------------------------------------------------------------------------------------


def _read_head(file: BufferedReader, total: int) -> bytes:
    first = file.read(8)
    size = int.from_bytes(first, "little")
    # digest_place raises the error about a wrong length.
    return first + file.read(size) if size <= min(_MAX_HEADER, total - 8) else first


def digest_file(file: BufferedReader, head: bytes, place: slice) -> bytes:
    """Compute the digest of a file that has been read to the end of its header."""
    digest = hashlib.sha256(head[: place.start])
    digest.update(ZEROS)
    digest.update(head[place.stop :])
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest().encode()


def read_entries(header: dict[str, Any], room: int) -> list[_Entry]:
    """Read the entries of a header; the tensors must fill the room behind it without gaps."""
    entries = [_entry(name, **about) for name, about in header.items()]
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            raise ModelFileError(f"tensor {entry.name!r} does not begin where the one before it ends")
        end = entry.stop
    if end != room:
        raise ModelFileError(f"the tensors take {end:,} bytes, but the file has {room:,} for them")
    return entries


def _entry(name: str, *, dtype: str, shape: list[int], data_offsets: list[int]) -> _Entry:
    if dtype not in _TYPES:
        raise ModelFileError(f"tensor {name!r} is of type {dtype!r:.40}, not float64 or float32")
    start, stop = data_offsets
    if not all(type(number) is int and 0 <= number < 2**63 for number in (*shape, start, stop)):
        raise ModelFileError(f"shape or offsets of tensor {name!r} are not whole numbers")
    if math.prod(shape) * _BYTES[dtype] != stop - start:
        raise ModelFileError(f"tensor {name!r} of shape {shape!r:.40} does not take {stop - start:,} bytes")
    return _Entry(name, dtype, tuple(shape), start, stop)


def _tensor(file: BufferedReader, mapped: mmap.mmap | None, entry: _Entry, begin: int) -> Tensor:
    """A view of the map, or a copy where that is small, or would begin in the middle of a line of memory."""
    import torch

    dtype = getattr(torch, _TYPES[entry.kind])
    start, size = begin + entry.start, entry.stop - entry.start
    usable = start % (_BYTES[entry.kind] if entry.name.startswith(ROWS) else _LINE) == 0
    if mapped is not None and size > _MAPPED and usable:
        count = size // _BYTES[entry.kind]
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start).view(entry.shape)
    tensor = torch.empty(entry.shape, dtype=dtype)
    if size:
        file.seek(start)
        if file.readinto(tensor.view(-1).numpy().data.cast("B")) != size:
            raise ModelFileError(_CHANGED)
    return tensor


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite; by the extremes of blocks, which takes no memory."""
    flat = tensor.view(-1)
    parts = (flat[start : start + _BLOCK] for start in range(0, len(flat), _BLOCK))
    return all(math.isfinite(extreme) for part in parts for extreme in part.aminmax())


# -- the text ----------------------------------------------------------------------------------------


@contextmanager
def translate_errors(path: str | PathLike[str]) -> Iterator[Path]:
    """Turn every error about the file at the path into a ModelFileError that names it."""
    try:
        yield Path(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except _UNUSABLE as error:
        raise ModelFileError(f"{path}: not a usable model file ({type(error).__name__}: {error})") from error


def parse_text(text: str) -> dict[str, Any]:
    """The JSON object of a model file, after a check of its version."""
    config: dict[str, Any] = json.loads(text, parse_constant=_refuse_constant)
    version = config["format_version"]
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise ModelFileError(
            f"format version {version!r}; this PrismGP reads version {FORMAT_VERSION}: load the file with the release "
            "that wrote it, or fit again"
        )
    return config


def _refuse_constant(name: str) -> Any:
    raise ModelFileError(f"{name} is not a number in JSON")


def check_count(config: dict[str, Any], name: str) -> int:
    """Return an entry that must be a positive integer."""
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**53:
        raise ModelFileError(f"{name} is {value!r:.40}, not a positive integer")
    return value


# -- tensors by name ---------------------------------------------------------------------------------


def take(tensors: dict[str, Tensor], **shapes: tuple[int, ...]) -> list[Tensor]:
    """Tensors of a model file by name, after a check of their shapes."""
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ModelFileError(f"tensor {name!r} has shape {found}, expected {shape}")
    return [tensors[name] for name in shapes]


def take_parameters(tensors: dict[str, Tensor], prefix: str, inputs: int, q: int) -> Parameters:
    """Parameters of a kernel with that many inputs, after a check of their range."""
    from prismgp.core.kernels import Parameters

    shapes = {prefix + name: (inputs if name == "log_lengthscale" else q,) for name in PARAMETERS}
    params = Parameters(*(tensor.numpy() for tensor in take(tensors, **shapes)))
    if np.abs(np.concatenate([params.log_lengthscale, params.log_signal, params.log_noise])).max() > _MAX_LOG:
        raise ModelFileError("a parameter is out of range")
    return params
