"""Keep NumPy's thread pool out of torch's way."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

__all__ = ["quiet_blas"]


def quiet_blas() -> threadpool_limits:
    """A context in which the OpenBLAS of NumPy and SciPy uses one thread.

    Its idle threads spin for a while after each call. Between calls into torch, which has a pool of its
    own, that takes cores away: on two cores, fits took two to three times as long. NumPy and SciPy only
    handle vectors of parameters here, so they lose nothing.
    """
    return threadpool_limits(limits={"libscipy_openblas": 1})
