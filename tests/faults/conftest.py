"""Fixtures of the faults."""

from __future__ import annotations

from tests.faults.commands import bench, origin, sizes

__all__ = ["bench", "origin", "sizes"]
