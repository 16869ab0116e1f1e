"""Posteriors of PrismModel: equality with predict, batches, gradients, outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.posteriors import GPyTorchPosterior
from sklearn.linear_model import LinearRegression
from sklearn.mixture import GaussianMixture

from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.botorch import PrismModel
from prismgp.core.kernels import KERNELS
from prismgp.exceptions import DataError
from tests.botorch.small import KINDS, assert_close, fit, model, moments, points
from tests.prism.small import data
from tests.tolerances import PREDICTION

pytestmark = pytest.mark.slow


def predicted(regressor, x, *, include_noise):
    mean, covariance = regressor.predict(x.numpy(), return_cov=True, include_noise=include_noise)
    n = len(x)
    return torch.as_tensor(mean).reshape(n, -1), torch.as_tensor(covariance).reshape(n, n, -1)


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_posterior_is_what_predict_returns(kind, q):
    regressor = fit(kind, q)
    x = points(5)
    for include_noise in (False, True):
        posterior = PrismModel(regressor).posterior(x, observation_noise=include_noise)
        assert isinstance(posterior, GPyTorchPosterior)
        assert_close(moments(posterior), predicted(regressor, x, include_noise=include_noise), PREDICTION)


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_computed_one_by_one(kind, q):
    wrapped = model(kind, q)
    x = points(2, 3, 4)
    mean, covariance = moments(wrapped.posterior(x))
    assert mean.shape == (2, 3, 4, q or 1)
    for i in range(2):
        for j in range(3):
            single = moments(wrapped.posterior(x[i, j]))
            assert_close((mean[i, j], covariance[i, j]), single, PREDICTION)
    one = wrapped.posterior(x[..., :1, :])  # a single point, which neighbours take another way
    assert_close((one.mean, one.variance), [each[..., :1, :] for each in marginals(wrapped, x)], PREDICTION)


def marginals(wrapped, x):
    singles = [wrapped.posterior(each[None]) for each in x.flatten(0, -2)]
    found = torch.cat([each.mean for each in singles]), torch.cat([each.variance for each in singles])
    return [each.reshape(*x.shape[:-1], -1) for each in found]


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_the_points(kind, q):
    wrapped = model(kind, q)
    # Neighbours beside the mixture have coordinates in float32.
    eps, atol = (1e-4, 2e-2) if kind == "local" else (1e-6, 1e-4)
    x = points(2, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: moments(wrapped.posterior(x)), (x,), eps=eps, atol=atol)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_at_training_rows_are_finite(kernel):
    x, y = data(n=20)
    wrapped = PrismModel(ExactGPRegressor(kernel=kernel, optimize=False).fit(x, y))
    at = torch.as_tensor(x[:3]).requires_grad_()
    mean, covariance = moments(wrapped.posterior(at))
    (gradient,) = torch.autograd.grad(mean.sum() + covariance.sum(), at)
    assert bool(gradient.isfinite().all())


def test_outputs_can_be_chosen():
    wrapped = model("ssgp", 3)
    x = points(4)
    mean, covariance = moments(wrapped.posterior(x, observation_noise=True))
    for chosen in (
        wrapped.posterior(x, output_indices=[2, 0], observation_noise=True),
        wrapped.subset_output([2, 0]).posterior(x, observation_noise=True),
        wrapped.subset_output([1, 2, 0]).posterior(x, output_indices=[1, 2], observation_noise=True),
    ):
        assert_close(moments(chosen), (mean[..., [2, 0]], covariance[..., [2, 0]]), 0.0)
    assert wrapped.num_outputs == 3
    assert wrapped.subset_output([1]).num_outputs == 1
    assert wrapped.batch_shape == torch.Size()


def test_noise_can_be_given_and_posteriors_transformed():
    wrapped = model("ssgp", 2)
    x = points(3, 4)
    noise = torch.rand(3, 4, 2, dtype=torch.float64)
    _, without = moments(wrapped.posterior(x))
    _, given = moments(wrapped.posterior(x, observation_noise=noise))
    torch.testing.assert_close(given - without, torch.diag_embed(noise.mT).movedim(-3, -1))
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = wrapped.posterior(x, posterior_transform=ScalarizedPosteriorTransform(weights))
    mean, covariance = moments(wrapped.posterior(x))
    assert_close((found.mean[..., 0],), (mean @ weights,), PREDICTION)
    assert_close((found.variance[..., 0],), (covariance.diagonal(dim1=-3, dim2=-2).mT @ weights**2,), PREDICTION)


@pytest.mark.parametrize("q", [None, 2])
def test_likelihood_adds_the_noise_of_the_model(q):
    wrapped = model("prism", q)  # its noise depends on the inputs
    x = points(3, 4)
    found = wrapped.likelihood(wrapped(x), x)
    assert_close(moments(GPyTorchPosterior(found)), moments(wrapped.posterior(x, observation_noise=True)), PREDICTION)
    noise = wrapped.likelihood(wrapped(x).mean, x).variance.reshape(3, 4, -1)
    spread = wrapped.posterior(x, observation_noise=True).variance - wrapped.posterior(x).variance
    assert_close((noise,), (spread,), PREDICTION)


def test_a_later_fit_does_not_change_the_model():
    regressor = fit("prism")
    wrapped = PrismModel(regressor)
    x = points(3)
    before = moments(wrapped.posterior(x))
    regressor.partial_fit(*data(n=30, seed=5))
    assert_close(moments(wrapped.posterior(x)), before, 0.0)


def test_bad_input_is_refused():
    x, y = data(n=20)
    with pytest.raises(DataError, match="fitted PrismGP regressor, got LinearRegression"):
        PrismModel(LinearRegression().fit(x, y))
    with pytest.raises(ValueError, match="not fitted"):
        PrismModel(SSGPRegressor())
    with pytest.raises(DataError, match=r"2 inputs\), got \(4, 3\)"):
        model("ssgp").posterior(torch.zeros(4, 3))


def test_probabilities_of_a_clusterer_have_no_derivatives():
    x, y = data(n=60)
    clusterer = GaussianMixture(2, random_state=0).fit(x)
    regressor = SSGPRegressor(n_frequencies=4, max_iter=2, gating="soft", partition=clusterer, random_state=0)
    wrapped = PrismModel(regressor.fit(x, y))
    at = points(2)
    assert_close((wrapped.posterior(at).mean[:, 0],), (torch.as_tensor(regressor.predict(at.numpy())),), PREDICTION)
    with pytest.raises(DataError, match="GaussianMixture have no derivatives"):
        wrapped.posterior(at.requires_grad_())


def test_single_precision_inputs_give_double_posteriors():
    x = points(3)
    found = model("ssgp").posterior(x.float())
    assert found.mean.dtype == torch.float64
    np.testing.assert_allclose(found.mean, model("ssgp").posterior(x.float().double()).mean)
