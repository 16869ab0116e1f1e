"""The plain SSGP at rows that its parameters have not seen, where rows are few.

Length-scales, frequencies and noise of highest evidence follow the rows they were learned from, the more so the more
inputs there are, so that errors at new rows are larger than they should be: of 886 rows of 25 columns, mostly text,
the mean square of the standardised residuals of new rows was 1.9. Leaving a row out of the posterior alone does not
show it. Here other parameters are learned without the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from prismgp.context import FitContext
from prismgp.core.models import standardise
from prismgp.core.numerics import Hashes
from prismgp.core.rows import Callback
from prismgp.core.threads import Workers
from prismgp.data import Source, StandardisedRows
from prismgp.prism.experts import Expert
from prismgp.prism.judging import HeldOutRows
from prismgp.prism.stacking import HeldOut, Residuals, find_temperature
from prismgp.prism.training_rows import MOST_COPIES
from prismgp.vae import Indices

Refit = Callable[[StandardisedRows, Callback], Expert]

# With more rows than the first, only the held-out ones are predicted so; with more than the second, parameters no
# longer follow single rows.
_FOLDED_ROWS, MOST_ROWS = 2_000, 10_000
_FOLDS = 5  # the held-out rows and four parts of the others
_FARTHEST = 10.0  # standard deviations; a row farther away, which no factor can explain, counts as if it were there


@dataclass(frozen=True)
class CrossFit:
    """What rows show of a plain SSGP that has not seen them."""

    plain: Expert  # that of all rows, its variances as large as the residuals say
    without: Expert  # that of the rows that are not held out, likewise
    residuals: Residuals  # of all rows that were predicted so, by the corrected variances


def held_out_rows_of(rows: StandardisedRows, source: Source, index: Indices) -> HeldOutRows:
    """Some rows of a source, in the model's units."""
    held, s = source.take(index), rows.standardiser
    x = standardise(held.x, s.x_shift, s.x_scale, dtype=rows.dtype, device=rows.device)
    y = standardise(held.y, *s.target_units(held.n_noise), dtype=torch.float64, device=rows.device)
    return HeldOutRows(x, y, rows.n_outputs)


def cross_fit(
    plain: Expert,
    rows: StandardisedRows,
    sample: Source,
    held_out: Indices,
    hashes: Hashes,
    refit: Refit,
    rng: np.random.Generator,
    context: FitContext,
) -> CrossFit | None:
    """Fit the plain SSGP without the held-out rows, and where all rows are few also without each part of the others.

    ``sample`` are all rows, and ``hashes`` numbers that are the same for rows with the same inputs, (n,), which stay
    together. None where most rows have copies, and where the fit ends before that is done.
    """
    _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    if (sizes[group] > 1).mean() > MOST_COPIES:
        return None
    parts = [held_out, *(_split(held_out, group, rng) if rows.n_rows <= _FOLDED_ROWS else [])]
    context.bar.total = len(parts)

    def fit_others(number: int) -> Expert:
        others = np.setdiff1d(np.arange(rows.n_rows), parts[number])
        expert = refit(replace(rows, source=sample.take(others)), context.part(f"fold {number}"))
        context.bar.update()
        return expert

    with Workers(wanted=rows.device.type == "cpu") as workers:
        experts = workers.map(fit_others, range(len(parts)))
    if context.ending.early:
        return None
    examples = [held_out_rows_of(rows, sample, part) for part in parts]
    found = [each.meet(expert, scaled=False).found for each, expert in zip(examples, experts, strict=True)]
    together, targets = HeldOut.join(found), np.concatenate([each.targets for each in examples])
    weights = None if examples[0].weights is None else np.concatenate([each.weights for each in examples])
    residuals = (targets - together.mean) / np.sqrt(together.total)
    factor = find_temperature(np.minimum(residuals**2, _FARTHEST**2), weights)
    return CrossFit(
        plain.with_variances_times(factor),
        experts[0].with_variances_times(factor),
        Residuals(residuals / np.sqrt(factor), torch.cat([each.x for each in examples]), weights, chose=False),
    )


def _split(held_out: Indices, group: Indices, rng: np.random.Generator) -> list[Indices]:
    """The other rows in parts of about the same size; rows of the same group, (n,), stay together."""
    others = np.setdiff1d(np.arange(len(group)), held_out)
    kinds = rng.permutation(np.unique(group[others]))
    return [others[np.isin(group[others], part)] for part in np.array_split(kinds, _FOLDS - 1) if len(part)]
