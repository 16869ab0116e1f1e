"""Mutations of bytes, as a strategy of hypothesis: it draws them, and makes those that fail as small as it can."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

__all__ = ["mutations"]

# What parsers stumble over: lengths at their limits, numbers that are none, ends of text, other formats.
TOKENS = (
    *(b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00" * 8, b"\xff" * 8),
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 30, b"0x1", b"null", b"true", b"{}", b"[]", b"[" * 2_000, b'"'),
    *(b",", b"\n", b"\r", b"\r\n", b";", b"\t", b"\xef\xbb\xbf", b"\xfe\xff", b"\x1f\x8b", b"PAR1", b"PK\x03\x04"),
    *(b"=cmd|'/c calc'!A1", b"<script>", b"__import__('os')", b"\x80\x04\x95", b"cos\nsystem\n", b"../../etc/passwd"),
)


@st.composite
def mutations(draw: st.DrawFn, corpus: Sequence[bytes]) -> bytes:
    """A file of the corpus with up to eight mutations; also parts of two files, and bytes of no file."""
    data = bytearray(draw(st.sampled_from(corpus)))
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("flip", "token", "bytes", "delete", "copy", "cut", "number", "splice")))
        # Headers and footers, where parsers live, as often as all else.
        size = len(data)
        near = draw(st.sampled_from(("anywhere", "begin", "end")))
        low, high = {"anywhere": (0, size), "begin": (0, min(size, 400)), "end": (max(0, size - 400), size)}[near]
        at = draw(st.integers(low, high))
        if kind == "flip" and at < size:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "token":
            token = draw(st.sampled_from(TOKENS))
            data[at : at + draw(st.sampled_from((0, len(token))))] = token
        elif kind == "bytes":
            data[at : at + draw(st.integers(0, 16))] = draw(st.binary(max_size=16))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "copy":
            stop = min(size, at + draw(st.integers(1, 200)))
            to = draw(st.integers(0, size))
            data[to:to] = data[at:stop] * draw(st.sampled_from((1, 1, 50)))
        elif kind == "cut":
            del data[at:]
        elif kind == "number" and at + 8 <= size:
            width = draw(st.sampled_from((1, 2, 4, 8)))
            value = int.from_bytes(data[at : at + width], "little") + draw(st.sampled_from((-1, 1, 255, 2**31)))
            data[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == "splice":
            other = draw(st.sampled_from(corpus))
            data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)
