"""A check that the libraries agree: at the same parameters, the exact GP is one function.

Evidence, means and standard deviations of every exact implementation are compared with a plain float64 computation by
eigenvalues; approximations must come closer as they grow. A comparison of fits means little where this fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from experiments.comparison.entries import LIBRARIES
from experiments.comparison.peers import explain_absence, library_version
from experiments.internals import Array
from prismgp import ExactGPRegressor, SSGPRegressor

__all__ = ["TOLERANCE", "check", "disagreements"]

TOLERANCE = 1e-6  # of evidence per row, means and standard deviations, in units of the target's standard deviation
_ROWS, _TEST_ROWS = 300, 100
_LENGTHSCALE = np.array([0.8, 1.5, 3.0, 6.0])
_SIGNAL, _NOISE = 1.7, 0.05  # variances
FREQUENCIES = (16, 128, 1_024)
COMPONENTS = (30, 100, 300)


class _Answer(NamedTuple):
    """Log evidence, means and standard deviations of new observations; None where a library does not tell."""

    log_evidence: float | None
    mean: Array
    std: Array


class _Problem(NamedTuple):
    X: Array
    y: Array
    X_test: Array


def _problem(seed: int) -> _Problem:
    rng = np.random.default_rng(seed)
    X, X_test = rng.standard_normal((_ROWS, 4)), rng.standard_normal((_TEST_ROWS, 4))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + np.sqrt(_NOISE) * rng.standard_normal(_ROWS)
    return _Problem(X, y, X_test)


# -- the same function, by every library -----------------------------------------------------------


def _reference(problem: _Problem) -> _Answer:
    X, y, X_test = problem

    def kernel(a: Array, b: Array) -> Array:
        return np.asarray(_SIGNAL * np.exp(-0.5 * cdist(a / _LENGTHSCALE, b / _LENGTHSCALE) ** 2))

    values, vectors = np.linalg.eigh(kernel(X, X) + _NOISE * np.eye(len(y)))
    z, cross = vectors.T @ y, vectors.T @ kernel(X, X_test)
    evidence = -0.5 * float(z**2 @ (1 / values) + np.log(values).sum() + len(y) * np.log(2 * np.pi))
    variance = _SIGNAL + _NOISE - (cross**2 / values[:, None]).sum(0)
    return _Answer(evidence, cross.T @ (z / values), np.sqrt(variance))


def _ours(problem: _Problem) -> _Answer:
    model = ExactGPRegressor(
        lengthscale=_LENGTHSCALE, signal_variance=_SIGNAL, noise_variance=_NOISE, mean=0.0, optimize=False
    ).fit(problem.X, problem.y)
    mean, std = model.predict(problem.X_test, return_std=True)
    return _Answer(float(model.log_evidence_), mean, std)


def _scikit_learn(problem: _Problem) -> _Answer:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(_SIGNAL) * RBF(_LENGTHSCALE) + WhiteKernel(_NOISE)
    model = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(problem.X, problem.y)
    mean, std = model.predict(problem.X_test, return_std=True)
    return _Answer(float(model.log_marginal_likelihood_value_), mean, std)


def _gpytorch(problem: _Problem) -> _Answer:
    import gpytorch
    import torch

    from experiments.comparison.peers.gpytorch_exact import ExactModel, cholesky_only

    X, y, X_test = (torch.as_tensor(each) for each in problem)
    model = ExactModel(X, y, gpytorch.likelihoods.GaussianLikelihood()).double()
    model.kernel.base_kernel.lengthscale = torch.as_tensor(_LENGTHSCALE)
    model.kernel.outputscale, model.likelihood.noise = _SIGNAL, _NOISE
    with torch.no_grad(), cholesky_only(len(y) + len(X_test)):
        model.train()
        evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(X), y) * len(y)
        model.eval()
        model.likelihood.eval()
        found = model.likelihood(model(X_test))
        return _Answer(float(evidence), found.mean.numpy(), found.stddev.numpy())


def _gpboost(problem: _Problem) -> _Answer:
    import gpboost

    model = gpboost.GPModel(gp_coords=problem.X, cov_function="gaussian_ard", likelihood="gaussian", gp_approx="none")
    # Its kernel is exp(-(distance / range)^2): no half in the exponent.
    parameters = np.array([_NOISE, _SIGNAL, *(np.sqrt(2.0) * _LENGTHSCALE)])
    evidence = -model.neg_log_likelihood(cov_pars=parameters, y=problem.y)
    found = model.predict(
        y=problem.y, cov_pars=parameters, gp_coords_pred=problem.X_test, predict_var=True, predict_response=True
    )
    return _Answer(float(evidence), np.asarray(found["mu"]), np.sqrt(np.asarray(found["var"])))


_EXACT: dict[str, tuple[str, Callable[[_Problem], _Answer]]] = {
    "Exact GP (ours)": ("prismgp", _ours),
    "scikit-learn GPR": ("scikit-learn", _scikit_learn),
    "GPyTorch exact GP": ("gpytorch", _gpytorch),
    "GPBoost, no approximation": ("gpboost", _gpboost),
}


# -- approximations that converge to it ------------------------------------------------------------


def _spectral(problem: _Problem, p: int) -> _Answer:
    model = SSGPRegressor(
        p,
        lengthscale=_LENGTHSCALE,
        signal_variance=_SIGNAL,
        noise_variance=_NOISE,
        mean=0.0,
        optimize=False,
        random_state=0,
    ).fit(problem.X, problem.y)
    mean, std = model.predict(problem.X_test, return_std=True)
    return _Answer(float(model.log_evidence_), mean, std)


def _nystroem(problem: _Problem, components: int) -> _Answer:
    """Ridge regression on Nystroem features with the noise as penalty is the projected process."""
    from sklearn.kernel_approximation import Nystroem

    X, X_test = problem.X / _LENGTHSCALE, problem.X_test / _LENGTHSCALE
    features = Nystroem(gamma=0.5, n_components=components, random_state=0).fit(X)
    F, F_test = (np.sqrt(_SIGNAL) * features.transform(each) for each in (X, X_test))
    A = F.T @ F + _NOISE * np.eye(F.shape[1])
    variance = _NOISE * (1.0 + np.einsum("ij,ji->i", F_test, np.linalg.solve(A, F_test.T)))
    return _Answer(None, F_test @ np.linalg.solve(A, F.T @ problem.y), np.sqrt(variance))


# -- the check -------------------------------------------------------------------------------------


def _distance(answer: _Answer, reference: _Answer, scale: float) -> dict[str, float | None]:
    assert reference.log_evidence is not None
    evidence = answer.log_evidence
    return {
        "log_evidence_per_row": None if evidence is None else abs(evidence - reference.log_evidence) / _ROWS,
        "mean": float(np.max(np.abs(answer.mean - reference.mean))) / scale,
        "std": float(np.max(np.abs(answer.std - reference.std))) / scale,
    }


def _converges(rows: list[dict[str, Any]]) -> bool:
    """The largest approximation is the closest one, by a factor that no accident gives."""
    return all(
        rows[-1][what] < 0.5 * rows[0][what] and rows[-1][what] <= min(row[what] for row in rows)
        for what in ("mean", "std")
    )


def check(order: dict[str, Any]) -> dict[str, Any]:
    """Compare whatever is installed; the function of a job.

    Returns
    -------
    dict
        "exact": largest differences of each library from the reference, and whether it agrees; "limits": those of
        approximations of growing size, and whether they converge; "skipped": libraries that are not there.
    """
    problem = _problem(int(order.get("seed", 0)))
    reference, scale = _reference(problem), float(problem.y.std())
    exact: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name, (distribution, answer) in _EXACT.items():
        library = LIBRARIES[distribution]
        if (why := explain_absence(library)) is not None:
            skipped[name] = why
            continue
        distances = _distance(answer(problem), reference, scale)
        agrees = all(value is None or value <= TOLERANCE for value in distances.values())
        exact[name] = {**distances, "agrees": agrees, "version": library_version(library)}
    limits: dict[str, Any] = {}
    for name, sizes, approximate in (
        ("SSGP, frequencies", FREQUENCIES, _spectral),
        ("Nystroem, components", COMPONENTS, _nystroem),
    ):
        rows = [{"size": size, **_distance(approximate(problem, size), reference, scale)} for size in sizes]
        limits[name] = {"sizes": rows, "converges": _converges(rows)}
    about = {"rows": _ROWS, "test_rows": _TEST_ROWS, "tolerance": TOLERANCE}
    return {**about, "exact": exact, "limits": limits, "skipped": skipped}


def disagreements(found: dict[str, Any]) -> list[str]:
    """A sentence for everything that does not agree."""
    lines = [f"the agreement check failed: {found['failed']}"] if "failed" in found else []
    for name, each in found.get("exact", {}).items():
        if not each["agrees"]:
            differences = ", ".join(
                f"{what.replace('_', ' ')} {each[what]:.1e}"
                for what in ("log_evidence_per_row", "mean", "std")
                if each[what] is not None
            )
            lines.append(f"{name} differs from the exact GP at the same parameters: {differences}")
    for name, each in found.get("limits", {}).items():
        if not each["converges"]:
            lines.append(f"{name}: does not approach the exact GP as it grows")
    return lines
