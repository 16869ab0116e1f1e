"""scikit-learn's own checks for the revised SSGP."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from prismgp import PrismGPRegressor


@parametrize_with_checks(
    [
        PrismGPRegressor(4, n_members=1, max_steps=4, hidden=8, batch_size=64, max_iter=20),
        PrismGPRegressor(16, recipe="paper", max_steps=200, max_iter=20, dtype="float32"),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)
