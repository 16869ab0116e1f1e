"""One fitted model in the user's units: what estimators hold, model files store, and certificates examine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.models import Predictor
from prismgp.core.normal import Marginals, normal_quantile
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.data import StandardisedRows, Standardiser, TableEncoder, standardise

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class FittedModel:
    """A fitted model: a predictor in standardised units, the units, and the record of the fit.

    Arrays passed in are rows of finite numbers, (n, d), in the units and the order of the training inputs; results
    have a column for each output.
    """

    kind: str  # "exact", "ssgp" or "prism"
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
    feature_names: list[str] | None = None
    encoder: TableEncoder | None = None  # how raw columns of a table become the inputs
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
        # scikit-learn wants at least one iteration of whatever has a max_iter.
        found = cls(kind, predictor, s, log_evidence=0.0, n_iter=max(1, steps), **fields)
        silent, names = np.flatnonzero(s.constant_inputs), found.feature_names  # never varied, or in very few rows
        ignored = [int(j) if names is None else names[j] for j in silent]
        return found._with_predictor(predictor, {"ignored_inputs": ignored, "stages": stages, **(status or {})})

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
        predictor = self.predictor.to(device)
        return replace(self, predictor=predictor, dtype=dtype, device=device, chunk_rows=chunk_rows)

    def to_model(self, x: AnyArray) -> Tensor:
        """Rows in the model's units."""
        s = self.standardiser
        return standardise(x, s.x_shift, s.x_scale, dtype=self.dtype, device=self.device)

    def target_to_model(self, y: AnyArray) -> Tensor:
        """Targets, (n, q), in the model's units, float64."""
        s = self.standardiser
        return torch.as_tensor((y - s.y_shift) / s.y_scale, dtype=torch.float64).to(self.device)

    def predict(
        self, x: AnyArray | Iterable[AnyArray], *, std: bool = True, include_noise: bool = True
    ) -> tuple[Array, Array | None]:
        """Mean and, if asked for, standard deviation, both (n, q), at rows (n, d), or at an iterable of such.

        Standard deviations take most of the time. They are of a new observation, or without noise of the function.
        """
        means, variances = [], []
        shift, scale = self.standardiser.y_shift, self.standardiser.y_scale
        for chunk in self._chunks(x):
            mean, variance, noise = self.predictor.predict(chunk, variance=std)
            means.append(mean.cpu().numpy() * scale + shift)
            if variance is not None:
                total = variance + noise if include_noise else variance
                variances.append(total.cpu().numpy() * scale**2)
        return np.concatenate(means), np.sqrt(np.concatenate(variances)) if std else None

    def covariance(self, x: AnyArray, *, include_noise: bool = True) -> tuple[Array, Array]:
        """Mean, (n, q), and joint covariance, (n, n, q)."""
        s = self.standardiser
        chunk = self.to_model(x)
        mean, _, noise = self.predictor.predict(chunk, variance=False)
        cov = self.predictor.covariance(chunk).cpu().numpy() * s.y_scale**2
        if include_noise:
            cov += np.eye(len(x))[:, :, None] * (noise.cpu().numpy() * s.y_scale**2)
        return mean.cpu().numpy() * s.y_scale + s.y_shift, cov

    def quantiles(self, x: AnyArray | Iterable[AnyArray], levels: Sequence[float]) -> Array:
        """Quantiles of a new observation at levels between 0 and 1, (n, q, len(levels)), at rows as in :meth:`predict`.

        They are of the distribution whose density is :meth:`log_density`, output by output.
        """
        return self.predict_quantiles(x, levels)[2]

    def predict_quantiles(
        self, x: AnyArray | Iterable[AnyArray], levels: Sequence[float], *, include_noise: bool = True
    ) -> tuple[Array, Array, Array]:
        """Mean and standard deviation, as :meth:`predict`, and quantiles, (n, q, len(levels)), in one pass.

        Those of the function, without noise, do not have the shape of the noise.
        """
        means, stds, found = [], [], []
        s = self.standardiser
        shapes = self._own_shapes() if include_noise else {}
        standard = {k: shape.quantile(np.array(levels, dtype=np.float64)) for k, shape in shapes.items()}
        for chunk in self._chunks(x):
            marginals = self.predictor.marginals(chunk, include_noise=include_noise)
            mean = marginals.mean.cpu().numpy() * s.y_scale + s.y_shift
            std = np.sqrt(marginals.variance.cpu().numpy() * s.y_scale**2)
            if marginals.is_normal:  # in the user's units, to the last digit
                values = mean[:, :, None] + std[:, :, None] * np.array([normal_quantile(level) for level in levels])
            elif len(shapes) < self.n_outputs:
                values = marginals.quantiles(levels).cpu().numpy() * s.y_scale[:, None] + s.y_shift[:, None]
            else:
                values = np.empty((*mean.shape, len(levels)))
            for k, z in standard.items():
                values[:, k] = mean[:, k, None] + std[:, k, None] * z  # (Z2)
            means.append(mean)
            stds.append(std)
            found.append(values)
        return np.concatenate(means), np.concatenate(stds), np.concatenate(found)

    def log_density(self, blocks: Iterable[tuple[AnyArray, AnyArray]]) -> Array:
        """Log density of targets, (n, q), at rows, summed over outputs: (n,).

        ``blocks`` are pairs (x, y) of at most :attr:`prediction_rows` rows. If an output has a shape of its own, the
        outputs are independent.
        """
        shapes = self._own_shapes()
        parts = []
        for x, y in blocks:
            rows, target = self.to_model(x), self.target_to_model(y)
            if shapes:
                parts.append(_marginal_log_density(self.predictor.marginals(rows), target, shapes).sum(1))
            else:
                parts.append(self.predictor.log_density(rows, target).cpu().numpy())
        return np.asarray(np.concatenate(parts) - np.log(self.standardiser.y_scale).sum())

    def marginal_log_density(self, x: AnyArray, y: Array) -> Array:
        """Log density of each target, (n, q), at rows, (n, d), whatever the others are; NaN where a target is NaN."""
        shapes, scale, parts = self._own_shapes(), self.standardiser.y_scale, []
        for start in range(0, len(x), self.prediction_rows):
            part = slice(start, start + self.prediction_rows)
            marginals = self.predictor.marginals(self.to_model(x[part]))
            parts.append(_marginal_log_density(marginals, self.target_to_model(y[part]), shapes))
        return np.asarray(np.concatenate(parts) - np.log(scale))

    def _own_shapes(self) -> dict[int, NoiseShape]:
        """The shapes that are not normal, by output; the distribution of the other outputs is the predictor's."""
        return {k: shape for k, shape in enumerate(self.shapes or ()) if not isinstance(shape, NormalShape)}

    def sample(self, x: AnyArray, count: int, rng: np.random.Generator) -> Array:
        """Functions drawn from the posterior, (n, q, count)."""
        s = self.standardiser
        samples = self.predictor.sample(self._chunks(x), count, rng)
        return np.asarray(samples * s.y_scale[:, None] + s.y_shift[:, None])

    def update(self, rows: StandardisedRows) -> FittedModel:
        """The model that knows more rows, at the same parameters."""
        return self._with_predictor(self.predictor.update(rows), self.status)

    def _chunks(self, x: AnyArray | Iterable[AnyArray]) -> Iterator[Tensor]:
        if not isinstance(x, np.ndarray):
            return map(self.to_model, x)
        rows = self.prediction_rows
        return (self.to_model(x[start : start + rows]) for start in range(0, len(x), rows))


def _marginal_log_density(marginals: Marginals, y: Tensor, shapes: dict[int, NoiseShape]) -> Array:
    """Log density of targets, (n, q), if some outputs are ``mean + std Z`` (Z2)."""
    found = marginals.log_density(y).cpu().numpy()
    variance = marginals.variance.cpu().numpy()
    z = (y - marginals.mean).cpu().numpy() / np.sqrt(variance)
    for k, shape in shapes.items():
        found[:, k] = shape.log_density(z[:, k]) - 0.5 * np.log(variance[:, k])
    return np.asarray(found)
