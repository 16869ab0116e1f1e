"""Families of bounds: every formula that applies to one set of inputs, as records with their assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from prismgp.complexity import _samples as formulas
from prismgp.complexity._inputs import BoundInputs
from prismgp.complexity._records import SampleBound
from prismgp.complexity._uniform import uniform_expansion, uniform_net
from prismgp.core.kernels import Kernel

__all__ = ["FIXED", "Target", "one_setting", "relative_error_bound", "simultaneous"]

FIXED = "length-scales and partition are fixed before the frequencies are drawn"
_MOST = 2**50  # more frequencies are no answer
_ANY_KERNEL = "any stationary kernel"
_INDEPENDENT = "frequencies are drawn independently from the kernel's spectral law, not learned, and not from the data"


@dataclass(frozen=True)
class Target:
    """What all bounds of one call share."""

    bound: float
    delta: float  # of one draw
    n_draws: int
    kernel: Kernel
    frequencies: str
    parameters: str

    def record(
        self,
        name: str,
        formula: str,
        estimator: str,
        compute: Callable[[], int | None],
        *,
        rbf_only: bool,
        room: float = math.inf,
        parameters: str | None = None,
        statement: str | None = None,
        assumptions: tuple[str, ...] = (),
        missing: str = "",
    ) -> SampleBound:
        """A record whose p is computed only where every assumption that can be checked holds."""
        reason = missing
        if self.frequencies != "iid":
            reason = f"proved for independent frequencies only, not for frequencies={self.frequencies!r}"
        elif rbf_only and self.kernel.name != "rbf":
            reason = "derived for the rbf kernel only"
        elif not missing and room <= 0:
            off = f"{self.bound - room:.4g}"
            reason = f"clusters overlap: the off-cluster norm is up to {off}, not below the bound {self.bound:g}"
        p = None if reason else compute()
        if not reason and (p is None or p > _MOST):
            p, reason = None, "no usable number of frequencies brings this bound below the target"
        return SampleBound(
            name=name,
            formula=formula,
            p=p,
            estimator=estimator,
            statement=statement or f"|K - K'| <= {self.bound:g}",
            parameters=parameters or self.parameters,
            kernel="rbf" if rbf_only else _ANY_KERNEL,
            frequencies="iid" if self.n_draws == 1 else f"iid, any one of {self.n_draws} draws",
            probability=1.0 - self.delta * self.n_draws,
            assumptions=(_INDEPENDENT, *assumptions),
            holds=p is not None,
            reason=reason,
        )


def one_setting(
    target: Target,
    inputs: BoundInputs,
    estimator: str,
    assumptions: tuple[str, ...],
    *,
    rbf_inputs: bool = False,
    missing: str = "",
) -> list[SampleBound]:
    """Every bound for one set of length-scales; each is valid alone. ``missing`` is an assumption that fails."""
    room, delta = target.bound - inputs.tau_out, target.delta
    v, largest = inputs.variance, math.sqrt(inputs.largest_square)

    def record(name: str, tag: str, compute: Callable[[], int], rbf_only: bool) -> SampleBound:
        only = rbf_only or rbf_inputs
        return target.record(
            name, tag, estimator, compute, rbf_only=only, room=room, assumptions=assumptions, missing=missing
        )

    return [
        record("markov", "S2", lambda: formulas.markov(v, room, delta), False),
        record("bern_bounded", "S3", lambda: formulas.bernstein_bounded(v, largest, room, delta), False),
        record("bennett", "S4", lambda: formulas.bennett(v, largest, room, delta), False),
        record(
            "bern_tight",
            "S5",
            lambda: formulas.bernstein_tight(v, math.sqrt(inputs.theory_clipped), room, delta),
            True,
        ),
        record("chernoff", "S6", lambda: formulas.chernoff(v, math.sqrt(inputs.clipped), room, delta), True),
        record(
            "union_tight",
            "S7",
            lambda: formulas.union_tight(math.sqrt(inputs.square_sum), inputs.pairs, room, delta),
            True,
        ),
        record(
            "matrix_bernstein",
            "S8",
            lambda: formulas.matrix_bernstein(
                inputs.matrix_variance, inputs.matrix_trace, float(inputs.sizes.max()), room, delta
            ),
            False,
        ),
    ]


def simultaneous(target: Target, inputs: BoundInputs, d: int, estimator: str, bounded: bool) -> list[SampleBound]:
    """The bounds that hold for all length-scales of a set at once."""
    room, largest = target.bound - inputs.tau_out, int(inputs.sizes.max())
    norm, fourth_norm = math.sqrt(inputs.square_sum), math.sqrt(inputs.fourth_sum)
    where = (
        "all length-scales of the box at once" if estimator == "masked" else "all length-scales from the given ones up"
    )
    missing = "" if bounded else "needs lengthscale_high: for large length-scales the mask fails"

    def record(name: str, tag: str, compute: Callable[[], int | None]) -> SampleBound:
        fixed = ("the lower length-scales and the partition are fixed before the frequencies are drawn",)
        return target.record(
            name,
            tag,
            estimator,
            compute,
            rbf_only=True,
            room=room,
            parameters=where,
            assumptions=fixed,
            missing=missing,
        )

    return [
        record("uniform_net", "S15", lambda: uniform_net(d, inputs.diameter, largest, room, target.delta)),
        record("uniform_expansion", "S16", lambda: uniform_expansion(d, norm, fourth_norm, room, target.delta)),
    ]


def relative_error_bound(target: Target, inputs: BoundInputs, noise: float, error: float) -> SampleBound:
    n = int(inputs.sizes.sum())
    norm = float(inputs.norms[0])
    share = norm / (norm + noise)
    if inputs.effective_dimension is not None and inputs.source == "exact":
        dimension = inputs.effective_dimension
    else:
        # Eigenvalues have mean 1 and x / (x + noise) is concave; the share is added as in S8, since it is a bound too.
        dimension = n / (1.0 + noise) + share
    return target.record(
        "relative",
        "S9",
        "plain",
        lambda: formulas.relative(n, noise, share, dimension, error, target.delta),
        rbf_only=False,
        statement=f"(1 - {error:g}) Q <= Q' <= (1 + {error:g}) Q, Q = K + {noise:g} I",
        assumptions=(FIXED,),
    )
