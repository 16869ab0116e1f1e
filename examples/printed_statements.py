"""The paper's statements that do not hold as printed, each with a counterexample that takes a line to check.

    python examples/printed_statements.py

The page "What is proved" quotes this output. Theorem 2 has an example of its own, ``masked_kernel.py``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np
from scipy.stats import chi2, norm

ROWS, CLUSTERS, BOUND = 1745, 18, 20.0  # data of Conditions 1 to 3, as in masked_kernel.py

Line = tuple[str, str, str]  # statement, what it claims, what is the case


def logdet(matrix: np.ndarray) -> float:
    return float(np.linalg.slogdet(matrix)[1])


def quadratic(q: np.ndarray, y: np.ndarray) -> float:
    return float(y @ np.linalg.solve(q, y))


def pair(off: float, noise: float) -> np.ndarray:
    """Q of two rows with this kernel value."""
    return np.array([[1.0 + noise, off], [off, 1.0 + noise]])


def tau(q: np.ndarray, error: float, noise: float) -> float:
    """The spectral constant of Lemma 9."""
    ends = np.abs(np.log(np.linalg.eigvalsh(q)[[0, -1]]))
    return max(np.log1p(error / noise), abs(np.log1p(-error / noise))) / ends.min()


def closeness() -> Iterator[Line]:
    e = np.eye(3) - np.ones((3, 3))  # K = I; K' = 11', the features of frequencies that are zero
    values = np.linalg.eigvalsh(e)
    yield "Definition 1", f"norm {values[-1]:.0f}", f"norm {np.abs(values).max():.0f} for K = I, K' = 11', three rows"
    p = 50
    yield "The sum of p GPs", "variance 1", f"variance {p / np.sqrt(p):.2f} for p = {p} GPs of kernel k / sqrt(p)"


def conditions() -> Iterator[Line]:
    theta = np.array([4.0, 0.25])
    printed, fixed = 2.0 / theta / theta, 2.0 * theta / theta  # Theta^-1/2 (x_u - x_v), per gamma^2
    found = f"({printed[0]:.3f}, {printed[1]:.0f}) for Theta = diag(4, 1/4); ({fixed[0]:.0f}, {fixed[1]:.0f}) "
    yield "Condition 1", "variances of scaled differences (1, 1)", found + "with covariance gamma^2 Theta"
    sizes = 2.0 ** (np.arange(1, CLUSTERS + 1) / 2)
    share = np.square(sizes).sum() / sizes.sum() ** 2
    total = 0.25 + 1.0 - share
    yield (
        "Lemma 2",
        "1/4 of the pairs",
        f"{share:.4f} with {CLUSTERS} clusters; Corollary 2 then adds up to {total:.3f}",
    )
    for d in (4, 18, 256):
        inside, enough = in_band(d)
        yield (
            "Lemma 3",
            "all pairs in band",
            f"{inside:.1%} at d = {d} with the repaired widths; {enough:.1%} close enough",
        )
    q = 2.0 ** -(-np.log2(1.0 - (BOUND / ROWS) ** 4) + CLUSTERS)
    least = 1.0 - (1.0 - 2.0 * q) ** 0.25
    text = f"every pair of cluster {CLUSTERS}: K >= 1 - {least:.1e} in its band; the limit is 1 - {q:.1e}"
    yield "Corollary 1", "only the diagonal is above a limit", text
    yield "Lemma 4", "|x_u - x_v|^2 >= 7", "1 for centres 0 and 3, rows at 1 and 2"


def in_band(d: int) -> tuple[float, float]:
    """Share of in-cluster pairs with s in [L/2, U/2], and with s below U/2, which is all that is used."""
    a = -np.log2(1.0 - (BOUND / ROWS) ** 4)
    inside = enough = pairs = 0.0
    for i in range(2, CLUSTERS + 1):
        u, low = (-np.log1p(-(2.0 ** -(a + k - 1))) for k in (i, i + 1))
        scale = (u + low) / (4.0 * d)  # s = 2 gamma^2 chi^2, gamma^2 = (U + L) / (8 d)
        size = round(2 ** (i / 2))
        count = size * (size - 1) / 2
        above, below = chi2.cdf([u / 2 / scale, low / 2 / scale], d)
        inside, enough, pairs = inside + count * (above - below), enough + count * above, pairs + count
    return inside / pairs, enough / pairs


def concentration() -> Iterator[Line]:
    s, times = 0.01, 10.0
    k = np.exp(-s / 2)
    deviation = times * np.sqrt(0.5) * (1 - k**2)
    true = 2 * norm.sf(np.arccos(k - deviation) / np.sqrt(s))
    printed = 2 * np.exp(-(times**2) / 4)
    yield "Lemma 5", f"P <= {printed:.1e}", f"P >= {true:.1e} for ten standard deviations, p = 1, s = {s:g}"
    n, p, theta = 800, 64, 0.01
    x = np.random.default_rng(30).standard_normal((n, 4)) / theta
    angle = x @ np.random.default_rng(0).standard_normal((4, p))
    features = np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(p)
    error = np.abs(np.linalg.eigvalsh(np.eye(n) - features @ features.T)).max()  # K = I to the last digit
    least = n / (2 * p) - 1
    text = f"|K - K'| = {error:.2f} for tiny length-scales, n = {n}, p = {p}; never below n / 2p - 1 = {least:.2f}"
    yield "Uniformity", "one p for all parameters", text


def prediction() -> Iterator[Line]:
    k, ours, noise = np.exp(-0.5), np.cos(1.5), 0.1  # one row at 0, y = 1, a test point at 1, one frequency of 1.5
    mean, variance = (f"{each:.3f}" for each in (k / (1 + noise), 1 - k**2 / (1 + noise)))
    mean_ours, variance_ours = (f"{each:.3f}" for each in (ours / (1 + noise), 1 - ours**2 / (1 + noise)))
    yield "Lemma 7", "equal means", f"{mean} and {mean_ours} for n = 1, where K = K' and lambda = 0"
    yield "Lemma 8", "equal variances", f"{variance} and {variance_ours}, the same"


def evidence() -> Iterator[Line]:
    noise, off = 0.1, np.sqrt(0.21)
    q, ours, error = pair(off, noise), pair(0.5, noise), 0.5 - off
    right = 2 * np.log1p(error / noise)
    yield (
        "Lemma 9",
        "log|Q'| = 0",
        f"{logdet(ours):.3f} for two rows with log|Q| = 0; |difference| <= {right:.3f}, corrected",
    )
    n, noise, error = 5, 0.05, 0.04
    q, ours = (k * np.ones((n, n)) + (1 - k + noise) * np.eye(n) for k in (0.98, 0.97))
    y = np.ones(n) * np.sqrt(-logdet(q) / quadratic(q, np.ones(n)))
    found = 0.5 * (logdet(ours) + quadratic(ours, y))
    right = 0.5 * (n * np.log1p(error / noise) + error / noise * quadratic(q, y))
    yield "Lemmas 10, 11", "l' = 0", f"{found:.2f} for five rows with l = 0; |l - l'| <= {right:.2f}, corrected"


def optimum() -> Iterator[Line]:
    noise, error, cross = 0.7, 0.1, np.array([0.9, 0.6])
    q, ours = pair(0.5, noise), pair(0.6, noise)
    values, values_ours = np.linalg.eigvalsh(q), np.linalg.eigvalsh(ours)
    rho = max(tau(q, error, noise), tau(ours, error, noise), error / noise)
    allowed = abs(np.log(values / values_ours).sum()) + rho * abs(1 - np.log(values).sum())
    w = np.linalg.solve(q, cross)
    y = 100.0 * np.array([-w[1], w[0]]) / np.linalg.norm(w)  # the exact mean is zero
    mean = abs(float(cross @ np.linalg.solve(ours, y)))
    claim = f"|mean| <= {allowed:.2f}"
    yield "Lemma 12, Theorem 4", claim, f"{mean:.2f} for one set of parameters and an exact mean of zero"


def checks() -> Iterator[Line]:
    """Statements that do hold."""
    least = np.inf
    for seed in range(200):
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((8, 4))
        b = a + 0.3 * rng.standard_normal((8, 4))
        k, ours, noise = a @ a.T, b @ b.T, 10 ** rng.uniform(-3, 1)
        error = np.abs(np.linalg.eigvalsh(k - ours)).max()
        q, q_ours, factor = k + noise * np.eye(8), ours + noise * np.eye(8), 1 + error / noise
        least = min(least, *(np.linalg.eigvalsh(each)[0] for each in (factor * q - q_ours, factor * q_ours - q)))
    text = f"it holds; least eigenvalue of the difference {least:.2f} over 200 random pairs"
    yield "Lemma 6", "(1 + c) Q >= Q'", text


def main() -> None:
    """Print all of them."""
    lines = [
        line
        for part in (closeness, conditions, concentration, prediction, evidence, optimum, checks)
        for line in part()
    ]
    for statement, claim, found in lines:
        print(f"{statement}, printed: {claim}")
        print(textwrap.fill(f"found: {found}", 84, initial_indent="    ", subsequent_indent="    "))


if __name__ == "__main__":
    main()
