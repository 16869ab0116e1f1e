"""Limits of inputs with long tails: beyond them, a row is taken to be at the limit.

The kernel of a few frequencies does not vanish at large distances. Where an input has long tails, a few rows lie far
from all others, the length-scales that suit the many are far too short for the few, and what the model predicts beyond
the rows it has seen is arbitrary: errors of tens of standard deviations, of which the model's own standard deviation
knows nothing. The evidence shows that. The targets of the rows are the same with limits and without, so that their
evidences compare, and a fit chooses the higher one (:class:`prismgp.core.fit.SSGPSettings`).
"""

from __future__ import annotations

import numpy as np
import torch

from prismgp._types import Tensor

_LEAST_ROWS = 300  # among fewer, next to no rows are beyond a limit
_SHARE = 0.01  # of the rows are beyond a limit
NO_LIMIT = 1e30  # finite, because model files hold finite numbers
_FAR = 2.0  # a tail is long if it ends so many times as far from the median as the limit is


def find_limits(x: Tensor) -> Tensor | None:
    """Lower and upper limits of each input, (2, d), from rows, (n, d); None where no input has long tails.

    Tails that are not long have the limit ``NO_LIMIT``. So have indicators, and other tails where almost all rows have
    the same value.
    """
    if len(x) < _LEAST_ROWS:
        return None
    values = x.double().cpu().numpy()
    low, middle, high = np.quantile(values, [_SHARE, 0.5, 1.0 - _SHARE], axis=0)
    below = (low < middle) & (middle - values.min(0) > _FAR * (middle - low))
    above = (high > middle) & (values.max(0) - middle > _FAR * (high - middle))
    if not (below.any() or above.any()):
        return None
    limits = np.stack([np.where(below, low, -NO_LIMIT), np.where(above, high, NO_LIMIT)])
    return torch.as_tensor(limits, device=x.device)


def limit_inputs(x: Tensor, limits: Tensor | None) -> Tensor:
    """Rows, (..., d), within the limits, (2, d); None leaves them as they are."""
    if limits is None:
        return x
    low, high = limits.to(x)
    limited: Tensor = torch.clamp(x, low, high)
    return limited
