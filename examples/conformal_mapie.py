"""Conformal intervals three ways: by ``conformalize``, and by MAPIE around the same fitted model.

    python examples/conformal_mapie.py

MAPIE (``pip install mapie``) offers further conformal methods for any scikit-learn regressor. Given the model's
standard deviation as the scale of its residuals, it makes intervals as ``conformalize`` does; without it, all intervals
have the same width. The noise of the simulated data grows with the input, and the model does not know that.
"""

from __future__ import annotations

import argparse

import numpy as np
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

from prismgp import GPRegressor, PrismGPRegressor


class StandardDeviation(RegressorMixin, BaseEstimator):
    """The standard deviation of a fitted regressor, as a regressor: what MAPIE takes for the scale of residuals."""

    def __init__(self, model: GPRegressor) -> None:
        self.model = model

    def fit(self, X: np.ndarray, y: np.ndarray) -> StandardDeviation:  # noqa: ARG002
        """Nothing is left to fit."""
        return self

    @property
    def n_features_in_(self) -> int:
        """By which MAPIE sees that it is fitted."""
        return self.model.n_features_in_

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Standard deviations of new observations, (n,)."""
        return self.model.predict(X, return_std=True)[1]


def simulate(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A curve with skewed noise that grows with the first input."""
    X = rng.uniform(-2, 2, (n, 2))
    noise = (0.05 + 0.2 * (X[:, 0] + 2)) * (rng.standard_exponential(n) - 1)
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + noise


def main() -> None:
    """Fit once, calibrate in each way, and compare coverage and width on new rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000, help="of the fit (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="of each network (default: %(default)s)")
    parser.add_argument("--coverage", type=float, default=0.9, help="default: %(default)s")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    model = PrismGPRegressor(16, n_members=1, max_steps=args.steps, local="never", random_state=0)
    model.fit(*simulate(args.rows, rng))
    held_out, new = simulate(1_000, rng), simulate(20_000, rng)

    intervals = {"of the model": model.predict_interval(new[0], args.coverage)}
    scores = {"MAPIE": "absolute", "MAPIE, scaled": ResidualNormalisedScore(StandardDeviation(model), prefit=True)}
    for name, score in scores.items():
        wrapped = SplitConformalRegressor(model, confidence_level=args.coverage, conformity_score=score, prefit=True)
        intervals[name] = wrapped.conformalize(*held_out).predict_interval(new[0])[1][:, :, 0]
    model.conformalize(*held_out, coverage=args.coverage)
    intervals["conformalize"] = model.predict_interval(new[0], args.coverage)

    print(f"{'intervals':<14}  coverage  mean width")
    for name, ends in intervals.items():
        inside = np.mean((ends[:, 0] <= new[1]) & (new[1] <= ends[:, 1]))
        print(f"{name:<14}  {inside:8.3f}  {np.mean(ends[:, 1] - ends[:, 0]):10.3f}")


if __name__ == "__main__":
    main()
