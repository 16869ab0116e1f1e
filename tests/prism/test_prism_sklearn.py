"""scikit-learn's own checks for the revised SSGP."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from prismgp import PrismGPRegressor


# The checks fit hundreds of times: a given length-scale saves the search for one, and few steps are enough.
@parametrize_with_checks(
    [
        PrismGPRegressor(6, n_members=1, lengthscale=1.0, max_steps=3, hidden=8, batch_size=64, max_iter=3),
        # One check wants a good score, and the recipe's narrow passage, trained without labels, loses too much:
        # many latent columns let the signal through.
        PrismGPRegressor(
            24,
            recipe="paper",
            output="latent",
            latent_dim=24,
            n_components=1,
            hidden=64,
            alpha=0.1,
            beta=0,
            max_steps=3,
            optimize=False,
            dtype="float32",
        ),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)
