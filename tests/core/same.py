"""A regressor that has the parameters of another, and learns nothing."""

from prismgp import SSGPRegressor


def with_parameters_of(model):
    return SSGPRegressor(
        len(model.frequencies_),
        frequencies=model.frequencies_,
        optimize=False,
        lengthscale=model.lengthscale_,
        signal_variance=model.signal_variance_,
        noise_variance=model.noise_variance_,
        mean=model.mean_,
    )
