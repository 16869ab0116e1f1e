"""Fitted regressors as BoTorch models, for Bayesian optimisation and active learning; needs ``prismgp[botorch]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
import torch

try:
    from botorch.acquisition.objective import PosteriorTransform
    from botorch.models.gpytorch import GPyTorchModel
    from botorch.models.model import FantasizeMixin
    from botorch.posteriors.gpytorch import GPyTorchPosterior
    from botorch.posteriors.posterior import Posterior
    from botorch.sampling.pathwise.paths import SamplePath
    from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
    from gpytorch.likelihoods import Likelihood
    from linear_operator import to_linear_operator
except ImportError as error:
    raise ImportError(f"prismgp.botorch needs BoTorch; install prismgp[botorch] ({error})") from error

from prismgp._types import Array, Tensor
from prismgp.core.models import Standardiser, standardise
from prismgp.core.process import Functions, Joint, Process
from prismgp.estimators import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.exceptions import DataError
from prismgp.model import FittedModel
from prismgp.neighbors import NeighborModel
from prismgp.prism import LocalMixture

__all__ = ["PrismModel"]

Regressor = SSGPRegressor | PrismGPRegressor | ExactGPRegressor | NeighborGPRegressor


class PrismModel(GPyTorchModel, FantasizeMixin):  # type: ignore[misc]
    """A fitted regressor as a BoTorch model.

    Inputs and outcomes are in the units of the regressor's fit, which standardises both itself: BoTorch's input and
    outcome transforms are not needed. Everything is computed in float64, and is differentiable by X.

    Parameters
    ----------
    fitted : SSGPRegressor, PrismGPRegressor, ExactGPRegressor or NeighborGPRegressor
        Fitted to numbers. The model keeps its own state: a later fit of the regressor does not change it.

    Attributes
    ----------
    num_outputs : int
        Columns of y.
    batch_shape : torch.Size
        Of the observations that the model was conditioned on; empty for the fitted model.

    Notes
    -----
    *Posterior.* Mean and joint covariance over q points are those of ``predict(X, return_cov=True)``. Outputs are
    independent. The mixture of experts of :class:`~prismgp.PrismGPRegressor` is represented by the normal distribution
    with its moments. Networks, which ``predict`` evaluates in float32, are evaluated in float64.

    *Conditioning* keeps all parameters, as ``partial_fit`` does.

    - Sparse spectrum: the posterior of the weights is updated exactly, O(p^2) for each observation.
    - Mixture of experts: the weights of every expert are updated exactly. Shares of the experts and the temperature,
      which held-out rows have decided, stay. This is what ``partial_fit`` does; it is not Bayes' rule for the mixture,
      which would also change the shares. The variance has the spread of the experts' means, so unlike that of a GP it
      depends on the values observed: give ``qNegIntegratedPosteriorVariance`` a sampler of several fantasies.
    - Exact GP: exactly the GP of all rows.
    - With neighbours: observations join the rows that may be neighbours, again as in ``partial_fit``. Only one set of
      observations is taken, not a batch, so ``fantasize`` and acquisition functions that need it raise an error.
      ``PrismGPRegressor(local="never")`` has no neighbours.

    With neighbours, and with hard gates, mean and variance jump where the nearest rows or the cluster change. Between
    the jumps derivatives are exact; a gradient-based optimiser may stop at a jump, and BoTorch then warns and restarts.

    *Function draws*, as of ``PathwiseThompsonSampling``, are exact for a sparse spectrum and its mixtures: they are
    draws of the weights. Exact GP and neighbours need Matheron's rule, with a prior of 1,024 random frequencies.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from botorch.acquisition import LogExpectedImprovement
    >>> from prismgp import SSGPRegressor
    >>> from prismgp.botorch import PrismModel
    >>> X = np.random.default_rng(0).uniform(size=(40, 2))
    >>> y = -((X - 0.3) ** 2).sum(1)
    >>> model = PrismModel(SSGPRegressor(n_frequencies=16, max_iter=20, random_state=0).fit(X, y))
    >>> acquisition = LogExpectedImprovement(model, best_f=y.max())
    >>> acquisition(torch.rand(5, 1, 2, dtype=torch.double)).shape
    torch.Size([5])
    """

    def __init__(self, fitted: Regressor) -> None:
        super().__init__()
        if not isinstance(fitted, Regressor):
            raise DataError(f"PrismModel takes a fitted PrismGP regressor, got {type(fitted).__name__}")
        model: FittedModel = fitted.current_model()
        self._n_inputs = model.n_inputs
        # Joint predictions from neighbours depend on all points asked for, so no part of a root can be kept.
        self._supports_cache_root = not isinstance(model.predictor, NeighborModel | LocalMixture)
        self._set(_FittedProcess.of(model), range(model.n_outputs), torch.Size())
        self.eval()

    def _set(self, process: _FittedProcess, outputs: Sequence[int], batch_shape: torch.Size) -> None:
        self._process, self._outputs, self._batch_shape = process, list(outputs), batch_shape
        self.likelihood = _ModelNoise(process, self._outputs)

    def _with(self, process: _FittedProcess, outputs: Sequence[int], batch_shape: torch.Size) -> PrismModel:
        other = PrismModel.__new__(PrismModel)
        super(PrismModel, other).__init__()
        other._n_inputs, other._supports_cache_root = self._n_inputs, self._supports_cache_root
        other._set(process, outputs, batch_shape)
        other.eval()
        return other

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def batch_shape(self) -> torch.Size:
        return self._batch_shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Joint distribution of the function at points X.

        Parameters
        ----------
        X : Tensor, (..., q, d)
        output_indices : list of int, optional
            Outputs to return; all by default.
        observation_noise : bool or Tensor, default False
            True: of new observations. A tensor, broadcastable to (..., q, outputs), holds the noise variances to add.
        posterior_transform : PosteriorTransform, optional

        Returns
        -------
        GPyTorchPosterior
            Over (..., q, outputs), with the batch dimensions of X and of the model broadcast.
        """
        outputs = self._outputs if output_indices is None else [self._outputs[k] for k in output_indices]
        mean, covariance, noise = (each[..., outputs] for each in self._process.joint(self._check(X)))
        if isinstance(observation_noise, torch.Tensor):
            noise = observation_noise.to(mean)
        if observation_noise is not False:
            covariance = covariance + torch.diag_embed(noise.expand_as(mean).mT).movedim(-3, -1)
        posterior = GPyTorchPosterior(_distribution(mean, covariance))
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The distribution of the function at points X, as GPyTorch's models return it."""
        return self.posterior(X).distribution

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> PrismModel:
        """The model that knows more observations, at the same parameters; see Notes for what that means.

        Parameters
        ----------
        X : Tensor, (..., n, d)
        Y : Tensor, (..., n, outputs)
            NaN where an output was not observed. Batch dimensions of X, Y and the model are broadcast.
        noise : Tensor, optional
            Noise variances of the observations, broadcastable to Y; by default those of the model.

        Returns
        -------
        PrismModel
        """
        if kwargs:
            raise TypeError(f"condition_on_observations got unknown arguments: {', '.join(kwargs)}")
        self._check(X)
        if Y.ndim < 2 or Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise DataError(
                f"Y must have shape (..., {X.shape[-2]}, {self.num_outputs}): a row for each point of X and a column "
                f"for each output, got {tuple(Y.shape)}"
            )
        batch = torch.Size(np.broadcast_shapes(self.batch_shape, X.shape[:-2], Y.shape[:-2]))
        total = len(self._process.standardiser.y_scale)
        if total > self.num_outputs:  # other outputs are not observed
            index = torch.tensor(self._outputs, device=Y.device)
            shape = (*Y.shape[:-1], total)
            noise = None if noise is None else Y.new_ones(shape).index_copy(-1, index, noise.to(Y).expand_as(Y))
            Y = Y.new_full(shape, nan).index_copy(-1, index, Y)
        return self._with(self._process.condition(X, Y, noise), self._outputs, batch)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> PrismModel:
        """``condition_on_observations`` as GPyTorch calls it, with targets (..., n); for ``ModelListGP``."""
        noise = kwargs.pop("noise", None)
        noise = None if noise is None else noise[..., None]
        return self.condition_on_observations(inputs, targets[..., None], noise, **kwargs)

    def subset_output(self, idcs: list[int]) -> PrismModel:
        """The model of some of the outputs."""
        return self._with(self._process, [self._outputs[k] for k in idcs], self.batch_shape)

    def draw_paths(self, sample_shape: torch.Size) -> PosteriorPath:
        """Functions drawn from the posterior, by torch's random numbers; see Notes for what is exact."""
        if self.batch_shape:
            raise DataError(
                f"functions cannot be drawn from a batch of models, shape {tuple(self.batch_shape)}; condition one "
                "model on each set of observations"
            )
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        return PosteriorPath(self._process.draw(sample_shape.numel(), rng), sample_shape, self._outputs)

    def _check(self, X: Tensor) -> Tensor:
        if X.ndim < 2 or X.shape[-1] != self._n_inputs:
            raise DataError(f"X must have shape (..., points, {self._n_inputs} inputs), got {tuple(X.shape)}")
        return X


@dataclass(frozen=True)
class _FittedProcess:
    """A :class:`prismgp.core.process.Process` in the units of the rows and targets of the fit, in float64."""

    process: Process
    standardiser: Standardiser
    device: torch.device

    @classmethod
    def of(cls, model: FittedModel) -> _FittedProcess:
        """The process of a fitted model, where it computes. Networks compute in float64 too."""
        return cls(model.predictor.to_float64().to(model.device), model.standardiser, model.device)

    def joint(self, x: Tensor) -> Joint:
        """Mean, (..., n, q), covariance of the function, (..., n, n, q), and noise variance, (..., n, q)."""
        shift, scale = self._target_units()
        mean, covariance, noise = self.process.joint(self._rows(x))
        return mean * scale + shift, covariance * scale.square(), noise * scale.square()

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> _FittedProcess:
        """The process given targets y, (..., n, q), at rows x, (..., n, d), with noise variances or the model's own."""
        shift, scale = self._target_units()
        targets = (y.to(shift) - shift) / scale
        variances = None if noise is None else noise.to(shift) / scale.square()
        return replace(self, process=self.process.condition(self._rows(x), targets, variances))

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the process, which take rows, (n, d), and return values, (n, q, count)."""
        shift, scale = self._target_units()
        functions = self.process.draw(count, rng)
        return lambda x: functions(self._rows(x)) * scale[:, None] + shift[:, None]

    def _rows(self, x: Tensor) -> Tensor:
        s = self.standardiser
        return standardise(x, s.x_shift, s.x_scale, dtype=torch.float64, device=self.device)

    def _target_units(self) -> tuple[Tensor, Tensor]:
        def tensor(values: Array) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64, device=self.device)

        return tensor(self.standardiser.y_shift), tensor(self.standardiser.y_scale)


def _distribution(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    """Independent outputs, of means (..., n, q) and covariances (..., n, n, q) with fewer batch dimensions or as many.

    Linear operators, because GPyTorch would factor tensors at once, without jitter.
    """
    covariance = covariance.expand(*mean.shape[:-1], *covariance.shape[-2:])
    parts = [MultivariateNormal(mean[..., k], to_linear_operator(covariance[..., k])) for k in range(mean.shape[-1])]
    return parts[0] if len(parts) == 1 else MultitaskMultivariateNormal.from_independent_mvns(parts)


class _ModelNoise(Likelihood):  # type: ignore[misc]
    """The noise of the model, which may depend on the inputs, as a GPyTorch likelihood."""

    def __init__(self, process: _FittedProcess, outputs: list[int]) -> None:
        super().__init__()
        self._process, self._outputs = process, outputs

    def forward(self, function_samples: Tensor, X: Tensor) -> torch.distributions.Normal:
        noise = self._process.joint(X)[2][..., self._outputs]
        return torch.distributions.Normal(function_samples, (noise[..., 0] if noise.shape[-1] == 1 else noise).sqrt())

    def marginal(self, function_dist: MultivariateNormal, X: Tensor) -> MultivariateNormal:
        noise = self._process.joint(X)[2][..., self._outputs]
        # Of several outputs, all points of the first output come first, unless they are interleaved.
        columns = noise if getattr(function_dist, "_interleaved", True) else noise.mT
        covariance = function_dist.lazy_covariance_matrix.add_diagonal(columns.flatten(-2))
        several = isinstance(function_dist, MultitaskMultivariateNormal)
        layout = {"interleaved": function_dist._interleaved} if several else {}
        return function_dist.__class__(function_dist.mean, covariance, **layout)


class PosteriorPath(SamplePath):  # type: ignore[misc]
    """Functions drawn from a :class:`PrismModel`, with the shapes of BoTorch's sample paths.

    Parameters
    ----------
    functions : callable
        From rows, (n, d), to values, (n, all outputs, samples).
    sample_shape : torch.Size
    outputs : list of int
    """

    def __init__(self, functions: Functions, sample_shape: torch.Size, outputs: list[int]) -> None:
        super().__init__()
        self._functions, self._outputs = functions, outputs
        # Several outputs are the last batch dimension.
        self.function_shape = (*sample_shape, len(outputs)) if len(outputs) > 1 else tuple(sample_shape)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Set whether the model is an ensemble, as BoTorch does for all paths; it is not."""

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate at x, (..., n, d): batch dimensions are broadcast with those of the functions; (..., n)."""
        k = len(self.function_shape)
        missing = max(0, k - (x.ndim - 2))
        x = x.reshape(*([1] * missing), *x.shape)
        split = x.ndim - 2 - k
        lead, own, rows = x.shape[:split], x.shape[split:-2], x.shape[-2:]
        apart = any(size > 1 for size in own)  # every function has points of its own
        if apart:
            x = x.expand(*lead, *self.function_shape, *rows)
        values = self._functions(x.reshape(-1, rows[1]))[:, self._outputs]  # (points, outputs, samples)
        values = values.movedim(1, 2).reshape(*lead, -1, rows[0], values.shape[1] * values.shape[2])
        found = values.diagonal(dim1=-3, dim2=-1) if apart else values[..., 0, :, :]
        return found.mT.reshape(*lead, *self.function_shape, rows[0])


@DrawMatheronPaths.register(PrismModel)  # type: ignore[untyped-decorator]
def _draw_paths(model: PrismModel, *, sample_shape: torch.Size, **_: Any) -> PosteriorPath:
    """BoTorch's ``draw_matheron_paths``; its samplers of prior and update are not needed."""
    return model.draw_paths(sample_shape)
