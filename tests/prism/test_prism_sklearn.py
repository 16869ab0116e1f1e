"""scikit-learn's own checks for the revised SSGP."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from prismgp import PrismGPRegressor


# The checks fit hundreds of times, so the regressor is given small defaults.
@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
@parametrize_with_checks([PrismGPRegressor()])
@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_estimator_checks(estimator, check):
    check(estimator)


# One check requires a good score, and the recipe's narrow latent space, trained without labels, loses too much: many
# latent columns keep the signal.
@pytest.mark.slow
@parametrize_with_checks(
    [
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
@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_estimator_checks_of_the_paper_recipe(estimator, check):
    check(estimator)
