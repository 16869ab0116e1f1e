"""One fitted model in the user's units: what estimators hold, model files store, and certificates examine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.features import NO_LIMIT
from prismgp.core.models import Marginals, Predictor, Standardiser, central_levels, normal_quantile, standardise
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.data import StandardisedRows, TableEncoder
from prismgp.exceptions import DataError
from prismgp.model.conformal import Conformal
from prismgp.model.row_shapes import RowShapes, add_tail_density, add_tails, tailed_quantiles
from prismgp.model.unknown import DRAWS, Compute, KnownGaps, by_rows, fill_ignored, marginals_of_unknown
from prismgp.prism import LocalMixture
from prismgp.prism.shapes import Mask

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class FittedModel:
    """A fitted model: a predictor in standardised units, the units, and the record of the fit.

    Arrays passed in are rows of numbers, (n, d), in the units and the order of the training inputs, not finite where a
    cell is unknown (``unknown.py``); results have a column for each output.
    """

    kind: str  # "exact", "neighbors", "ssgp" or "prism"
    predictor: Predictor
    standardiser: Standardiser
    kernel: str
    target_ndim: int  # of the y the model was fitted to
    log_evidence: float  # log density of the training targets, in their units
    dtype: torch.dtype = torch.float64  # of the computation
    device: torch.device = _CPU
    chunk_rows: int | None = None  # to predict at a time; None: as suits the predictor
    # How quickly the function varies with each input, (d,), in the input's standard deviations, where that is known.
    input_lengthscale: Array | None = None
    # Of the standardised residuals of each output, (q,); None: what the predictor says. A normal shape is that too.
    shapes: tuple[NoiseShape, ...] | None = None
    # Noise shapes of rows whose inputs equal those of a stored row; None: as `shapes`.
    copy_shapes: tuple[NoiseShape, ...] | None = None
    tail_share: float = 0.0  # of the tails that held-out rows cannot rule out (Z6)
    # Of held-out rows; intervals are then those of split conformal prediction.
    conformal: Conformal | None = None
    feature_names: list[str] | None = None
    encoder: TableEncoder | None = None  # how raw columns of a table become the inputs
    background: Array | None = None  # training rows, (m, d), that unknown cells take their values from
    known_gaps: KnownGaps | None = None  # patterns of missing cells that are imputed
    status: dict[str, Any] = field(default_factory=dict)  # the estimator's fit_status_
    history: dict[str, list[Any]] = field(default_factory=dict)  # the estimator's history_
    n_iter: int = 1  # the estimator's n_iter_
    arguments: dict[str, Any] = field(default_factory=dict)  # of the estimator's constructor

    @classmethod
    def from_fit(
        cls,
        kind: str,
        predictor: Predictor,
        rows: StandardisedRows,
        stages: list[dict[str, Any]],
        *,
        status: dict[str, Any] | None = None,
        n_iter: int | None = None,
        **fields: Any,
    ) -> FittedModel:
        """The model that a fit to these rows has found, with its record; ``fields`` are further ones of the model."""
        s = rows.standardiser
        fields |= {"dtype": rows.dtype, "device": rows.device, "chunk_rows": rows.chunk_rows}
        steps = sum(stage["iterations"] for stage in stages) if n_iter is None else n_iter
        if fields.get("encoder") is not None:
            fields["encoder"] = fields["encoder"].ignore(s.constant_inputs)
        # scikit-learn wants at least one iteration of whatever has a max_iter.
        found = cls(kind, predictor, s, log_evidence=0.0, n_iter=max(1, steps), **fields)
        silent, names = np.flatnonzero(s.constant_inputs), found.feature_names  # never varied, or in very few rows
        ignored = [int(j) if names is None else names[j] for j in silent]
        record = {"ignored_inputs": ignored, "limited_inputs": found._limited_inputs(), "stages": stages}
        return found._with_predictor(predictor, {**record, **(status or {})})

    def _limited_inputs(self) -> list[dict[str, Any]]:
        """Inputs with limits, in the user's units; None if there is no limit on that side."""
        if self.predictor.limits is None:
            return []
        limits = self.predictor.limits.cpu().numpy()
        ends, known = limits * self.standardiser.x_scale + self.standardiser.x_shift, np.abs(limits) < NO_LIMIT
        names = range(self.n_inputs) if self.feature_names is None else self.feature_names
        columns = zip(names, *ends.tolist(), *known.tolist(), strict=True)
        return [
            {"input": name, "low": low if below else None, "high": high if above else None}
            for name, low, high, below, above in columns
            if below or above
        ]

    def _with_predictor(self, predictor: Predictor, status: dict[str, Any]) -> FittedModel:
        """With the evidence, and the state of the numerics, that the predictor reports."""
        n = predictor.n_rows
        worst = max(predictor.factors, key=lambda factor: factor.jitter)
        numerics = {"rows": n, "factorisation": worst.method, "jitter": worst.jitter}
        return replace(
            self,
            predictor=predictor,
            log_evidence=float(predictor.log_evidence - n * np.log(self.standardiser.y_scale).sum()),
            status={**status, **numerics, **predictor.status()},
        )

    # -- parameters in the user's units ----------------------------------------------------------

    @property
    def n_rows(self) -> int:
        """Training rows."""
        return self.predictor.n_rows

    @property
    def n_inputs(self) -> int:
        return len(self.standardiser.x_scale)

    @property
    def n_outputs(self) -> int:
        return len(self.standardiser.y_scale)

    @property
    def lengthscale(self) -> Array:
        """Of the kernel's inputs, in their units."""
        return self.predictor.params.lengthscale * self.predictor.kernel_input_scale(self.standardiser.x_scale)

    @property
    def relative_lengthscale(self) -> Array | None:
        """``input_lengthscale``, infinite for an ignored input."""
        known = self.input_lengthscale
        return None if known is None else np.where(self.standardiser.constant_inputs, np.inf, known)

    @property
    def signal_variance(self) -> Array:
        return self.predictor.params.signal * self.standardiser.y_scale**2

    @property
    def noise_variance(self) -> Array:
        return self.predictor.noise_level * self.standardiser.y_scale**2

    @property
    def mean(self) -> Array:
        """The constant mean of the prior."""
        return self.predictor.params.mean * self.standardiser.y_scale + self.standardiser.y_shift

    # -- prediction ------------------------------------------------------------------------------

    @property
    def prediction_rows(self) -> int:
        """Rows to predict at a time."""
        return self.predictor.prediction_rows(self.device) if self.chunk_rows is None else self.chunk_rows

    def on(self, dtype: torch.dtype, device: torch.device, chunk_rows: int | None) -> FittedModel:
        """The same model, computing in another precision or place or by other chunks."""
        return replace(self, predictor=self.predictor.to(device), dtype=dtype, device=device, chunk_rows=chunk_rows)

    def to_model(self, x: AnyArray) -> Tensor:
        """Rows in the model's units."""
        s = self.standardiser
        return standardise(x, s.x_shift, s.x_scale, dtype=self.dtype, device=self.device)

    def target_to_model(self, y: AnyArray) -> Tensor:
        """Targets, (n, q), in the model's units, float64; the columns of the rows' noise behind them are left out."""
        s = self.standardiser
        return torch.as_tensor((y[:, : self.n_outputs] - s.y_shift) / s.y_scale, dtype=torch.float64).to(self.device)

    def predict(
        self, x: AnyArray | Iterable[AnyArray], *, std: bool = True, include_noise: bool = True
    ) -> tuple[Array, Array | None]:
        """Mean and, if asked for, standard deviation, both (n, q), at rows (n, d), or at an iterable of such.

        Standard deviations take most of the time. They are of a new observation, or without noise of the function.
        """
        shift, scale = self.standardiser.y_shift, self.standardiser.y_scale

        def predict_known(rows: AnyArray) -> tuple[Array, ...]:
            mean, variance, noise = self.predictor.predict(self.to_model(rows), variance=std)
            if not std or variance is None:  # some models have it anyway
                return (mean.cpu().numpy() * scale + shift,)
            total = variance + noise if include_noise else variance
            return mean.cpu().numpy() * scale + shift, total.cpu().numpy() * scale**2

        def predict_unknown(rows: AnyArray) -> tuple[Array, ...]:
            marginals = self._marginals_of_unknown(rows, include_noise=include_noise)
            found = marginals.mean.cpu().numpy() * scale + shift, marginals.variance.cpu().numpy() * scale**2
            return found if std else found[:1]

        parts = [self._by_rows(rows, predict_known, predict_unknown) for rows in self._blocks(x)]
        mean, *variance = (np.concatenate(each) for each in zip(*parts, strict=True))
        return mean, np.sqrt(variance[0]) if std else None

    def covariance(self, x: AnyArray, *, include_noise: bool = True) -> tuple[Array, Array]:
        """Mean, (n, q), and joint covariance, (n, n, q).

        What unknown cells may be adds to the variance of their own row, and not to covariances.
        """
        s = self.standardiser
        chunk = self.to_model(self.complete(x))
        mean, _, noise = self.predictor.predict(chunk, variance=False)
        cov = self.predictor.covariance(chunk).cpu().numpy() * s.y_scale**2
        center = mean.cpu().numpy() * s.y_scale + s.y_shift
        gaps, average, extra = self._spread_of_unknown(x, cov[np.arange(len(x)), np.arange(len(x))])
        center[gaps] = average
        cov[gaps, gaps] += extra
        if include_noise:
            cov += np.eye(len(x))[:, :, None] * (noise.cpu().numpy() * s.y_scale**2)
        return center, cov

    def predict_quantiles(
        self, x: AnyArray | Iterable[AnyArray], levels: Sequence[float], *, include_noise: bool = True
    ) -> tuple[Array, Array, Array]:
        """Mean and standard deviation, as :meth:`predict`, and quantiles, (n, q, len(levels)), in one pass.

        Quantiles of a new observation are of the distribution whose density is :meth:`log_density`, output by output.
        Those of the function, without noise, do not have the shape of the noise.
        """
        s = self.standardiser
        shapes = None if self._has_plain_noise or not include_noise else self._row_shapes
        share, standard = (0.0, None) if shapes is None else (shapes.tail_share, shapes.quantiles(levels))
        normal = tailed_quantiles(NormalShape(), share, levels) if share else [normal_quantile(u) for u in levels]

        def evaluate(marginals: Marginals, copied: Mask | None = None) -> tuple[Array, Array, Array]:
            mean = marginals.mean.cpu().numpy() * s.y_scale + s.y_shift
            std = np.sqrt(marginals.variance.cpu().numpy() * s.y_scale**2)
            if marginals.is_normal:  # in the user's units, to the last digit
                values = mean[:, :, None] + std[:, :, None] * np.asarray(normal)
            elif shapes is None or not shapes.covers_all(self.n_outputs, copied):
                mixed = add_tails(marginals, share).quantiles(levels).cpu().numpy()
                values = mixed * s.y_scale[:, None] + s.y_shift[:, None]
            else:
                values = np.empty((*mean.shape, len(levels)))
            if standard is not None:
                standard.write_into(values, mean, std, copied)
            return mean, std, values

        def evaluate_known(rows: AnyArray) -> tuple[Array, ...]:
            inputs = self.to_model(rows)
            copied = None if shapes is None else shapes.mark_copies(inputs)
            return evaluate(self.predictor.marginals(inputs, include_noise=include_noise), copied)

        def evaluate_unknown(rows: AnyArray) -> tuple[Array, ...]:
            return evaluate(self._marginals_of_unknown(rows, include_noise=include_noise))

        parts = [self._by_rows(rows, evaluate_known, evaluate_unknown) for rows in self._blocks(x)]
        mean, std, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        return mean, std, values

    def predict_interval(
        self, x: AnyArray | Iterable[AnyArray], coverage: float, *, include_noise: bool = True
    ) -> tuple[Array, Array, Array]:
        """Mean and standard deviation, as :meth:`predict`, and the ends of intervals, (n, q, 2), in one pass.

        The intervals for a new observation are conformal (H1) if the model has been conformalized. Otherwise, and for
        the function, they are central ones of the predictive distribution.
        """
        levels = central_levels(coverage)
        if self.conformal is None or not include_noise:
            return self.predict_quantiles(x, levels, include_noise=include_noise)
        factors = self.conformal.factors(coverage)
        mean, std = self.predict(x)
        assert std is not None
        return mean, std, mean[:, :, None] + std[:, :, None] * factors

    def scores(self, blocks: Iterable[tuple[AnyArray, AnyArray]]) -> Array:
        """Scores of observations for conformal prediction, ``(y - mean) / std``, (n, q).

        ``blocks`` are pairs (x, y), in which noise columns may follow the targets.
        """
        parts = []
        for x, y in blocks:
            mean, std = self.predict(x)
            assert std is not None
            parts.append((y[:, : self.n_outputs] - mean) / std)
        return np.concatenate(parts)

    def log_density(self, blocks: Iterable[tuple[AnyArray, AnyArray]]) -> Array:
        """Log density of targets, (n, q), at rows, summed over outputs: (n,).

        ``blocks`` are pairs (x, y) of at most :attr:`prediction_rows` rows. If an output has a shape of its own, and in
        rows with unknown cells, the outputs are independent.
        """
        shapes = self._row_shapes
        parts: list[Array] = []
        d = self.n_inputs

        def compute_known(rows: AnyArray) -> tuple[Array]:
            inputs, target = self.to_model(rows[:, :d]), self.target_to_model(rows[:, d:])
            if not shapes and not self.tail_share:
                return (self.predictor.log_density(inputs, target).cpu().numpy(),)
            marginals = self.predictor.marginals(inputs)
            if shapes or self.n_outputs == 1:
                return (shapes.density(marginals, target, shapes.mark_copies(inputs)).sum(1),)
            joint = self.predictor.log_density(inputs, target)
            return (add_tail_density(joint, marginals, target, self.tail_share).cpu().numpy(),)

        def compute_unknown(rows: AnyArray) -> tuple[Array]:
            marginals, target = self._marginals_of_unknown(rows[:, :d]), self.target_to_model(rows[:, d:])
            return (shapes.density(marginals, target).sum(1),)

        for x, y in blocks:
            parts += self._by_rows(np.concatenate([x, y], axis=1), compute_known, compute_unknown)
        return np.asarray(np.concatenate(parts) - np.log(self.standardiser.y_scale).sum())

    def marginal_log_density(self, x: AnyArray, y: Array) -> Array:
        """Log density of each target, (n, q), at rows, (n, d), whatever the others are; NaN where a target is NaN."""
        d, shapes = self.n_inputs, self._row_shapes
        parts: list[Array] = []

        def compute_known(rows: AnyArray) -> tuple[Array]:
            inputs, target = self.to_model(rows[:, :d]), self.target_to_model(rows[:, d:])
            return (shapes.density(self.predictor.marginals(inputs), target, shapes.mark_copies(inputs)),)

        def compute_unknown(rows: AnyArray) -> tuple[Array]:
            return (shapes.density(self._marginals_of_unknown(rows[:, :d]), self.target_to_model(rows[:, d:])),)

        for rows in self._blocks(np.concatenate([x, np.nan_to_num(y)], axis=1)):
            parts += self._by_rows(rows, compute_known, compute_unknown)
        found = np.concatenate(parts) - np.log(self.standardiser.y_scale)
        return np.where(np.isnan(y), np.nan, found)

    @property
    def _has_plain_noise(self) -> bool:
        """Whether the distribution of new observations is the predictor's."""
        return self.shapes is None and self.copy_shapes is None and not self.tail_share

    @cached_property
    def _row_shapes(self) -> RowShapes:
        known = None
        if self.copy_shapes is not None and isinstance(self.predictor, LocalMixture):
            known = self.predictor.near[0].gp.sorted_hashes(self.n_inputs)
        return RowShapes.of(self.shapes, self.copy_shapes, self.tail_share, known)

    def sample(self, x: AnyArray, count: int, rng: np.random.Generator) -> Array:
        """Functions drawn from the posterior, (n, q, count); rows with unknown cells also vary by what they may be."""
        s, complete = self.standardiser, self.complete(x)
        samples = self.predictor.sample((self.to_model(rows) for rows in self._blocks(complete)), count, rng)
        found = np.asarray(samples * s.y_scale[:, None] + s.y_shift[:, None])
        if complete is not x:
            center, std = self.predict(complete, include_noise=False)
            assert std is not None
            gaps, average, extra = self._spread_of_unknown(x, std**2)
            found[gaps] += (average - center[gaps])[:, :, None]
            found[gaps] += np.sqrt(extra)[:, :, None] * rng.standard_normal((*extra.shape, count))
        return found

    def update(self, rows: StandardisedRows) -> FittedModel:
        """The model with more rows, at the same parameters. Scores for conformal prediction are dropped."""
        weighted = {"weighted": True} if rows.source.n_noise else {}
        updated = self._with_predictor(self.predictor.update(rows), {**self.status, **weighted})
        return replace(updated, conformal=None)

    def _blocks(self, x: AnyArray | Iterable[AnyArray]) -> Iterable[AnyArray]:
        if not isinstance(x, np.ndarray):
            return x
        rows = self.prediction_rows
        return (x[start : start + rows] for start in range(0, len(x), rows))

    # -- unknown cells ---------------------------------------------------------------------------

    def complete(self, x: AnyArray) -> AnyArray:
        """Rows with typical values, those of training, in place of unknown cells."""
        x = self._fill_known(x)
        if np.isfinite(x).all():
            return x
        if self.encoder is not None:
            x = self.encoder.impute(x)
        return np.where(np.isfinite(x), x, self._known_background().mean(axis=0))

    def _fill_known(self, x: AnyArray) -> AnyArray:
        """Rows with typical values in those unknown cells that are not averaged over."""
        x = fill_ignored(x, self.standardiser.constant_inputs, self.standardiser.x_shift)
        return x if self.known_gaps is None or self.encoder is None else self.known_gaps.fill(x, self.encoder)

    def _known_background(self) -> Array:
        if self.background is None:
            raise DataError(
                "the model has no training rows to take the values of missing cells from; fill them, or fit again"
            )
        return self.background

    def _spread_of_unknown(self, x: AnyArray, variance: Array) -> tuple[npt.NDArray[np.intp], Array, Array]:
        """Rows with unknown cells, their means, and by how much their variances exceed the given ones of all rows."""
        x = self._fill_known(x)
        gaps = np.flatnonzero(~np.isfinite(x).all(axis=1))
        if not len(gaps):
            return gaps, np.empty((0, self.n_outputs)), np.empty((0, self.n_outputs))
        mean, std = self.predict(x[gaps], include_noise=False)
        assert std is not None
        return gaps, mean, np.maximum(std**2 - variance[gaps], 0.0)

    def _by_rows(self, x: AnyArray, known: Compute, unknown: Compute) -> tuple[Array, ...]:
        if not np.isfinite(x).all():
            x = self._fill_known(x)
        if np.isfinite(x).all():
            return known(x)
        return by_rows(x, known, unknown, step=max(1, self.prediction_rows // DRAWS))

    def _marginals_of_unknown(self, x: AnyArray, *, include_noise: bool = True) -> Marginals:
        """The distribution of rows with unknown cells (M2)."""
        scale = self.standardiser.x_scale
        if self.input_lengthscale is not None:
            scale = scale * self.input_lengthscale

        def predict(rows: AnyArray) -> Marginals:
            return self.predictor.marginals(self.to_model(rows), include_noise=include_noise)

        return marginals_of_unknown(x, self._known_background(), scale, self.encoder, predict)
