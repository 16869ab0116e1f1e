"""Threads: keep NumPy's pool out of torch's way, and torch's results the same in every run."""

from __future__ import annotations

import sys

import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

__all__ = ["quiet_blas"]


def quiet_blas() -> threadpool_limits:
    """A context in which the OpenBLAS of NumPy and SciPy uses one thread.

    Its idle threads spin for a while after each call. Between calls into torch, which has a pool of its
    own, that takes cores away: on two cores, fits took two to three times as long. NumPy and SciPy only
    handle vectors of parameters here, so they lose nothing.
    """
    return _pools().limit(limits={"libscipy_openblas": 1})


_found: tuple[int, ThreadpoolController] | None = None  # with the number of modules that were loaded


def _pools() -> ThreadpoolController:
    """The thread pools of this process; looked for again, which takes milliseconds, once modules have been loaded."""
    global _found
    found, modules = _found, len(sys.modules)
    if found is None or found[0] != modules:
        found = _found = modules, ThreadpoolController()
    return found[1]


def settle_vector_math() -> None:
    """Call exp, cos and sin once from a single thread.

    Where two threads make a process's first call into MKL's vector functions at the same time, one of
    them may get values that differ in the last bit (seen in about one process in fifteen, on a busy
    machine). The optimiser would carry that into visible digits; a run would not repeat bit for bit.
    """
    for dtype in (torch.float32, torch.float64):
        few = torch.linspace(0.0, 1.0, 64, dtype=dtype)
        for function in (torch.exp, torch.cos, torch.sin):
            function(few)


settle_vector_math()
