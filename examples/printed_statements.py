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
    # Sizes as near to 2^(i/2) as whole rows can be.
    probability, rounded = sizes / sizes.sum(), np.rint(sizes)
    drawn = np.random.default_rng(0).multinomial(int(rounded.sum()), probability, size=20_000)
    hits = int((drawn == rounded).all(1).sum())
    text = f"{hits} of {len(drawn):,} draws of {ROWS} rows from {CLUSTERS} clusters have these sizes"
    yield "Condition 2", "follows from Condition 1 with high probability", text
    most = (2.0 ** (np.arange(1, 9) / 2)).sum()
    yield "Condition 2, k = 8", "any n", f"8 clusters of 2^(i/2) rows have {most:.1f} rows in all"
    least, proof = np.exp(8 - 2.0), 4.0**8 * np.exp(-2.0)
    text = f"exp(b - sqrt d) = {least:.0f} for b = 8, d = 4, and the proof's 4^b exp(-sqrt d) = {proof:.0f}"
    yield "Theorem 2, delta", "delta between it and 1", text
    ratio = 4.0**CLUSTERS / sizes.sum() ** 4
    text = f"4^b is {ratio:.4f} n^4 for b = {CLUSTERS}: it is exp(4 log n - sqrt d)"
    yield "Lemma 3, delta", "exp(log n - sqrt d)", text


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


def random_case(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Q, Q', the *exact* k_* of a test point, y, and c, for a Gaussian kernel and random frequencies."""
    n, noise = int(rng.integers(2, 12)), 10.0 ** rng.uniform(-1, 1)
    x = rng.standard_normal((n + 1, 2)) * 10.0 ** rng.uniform(-1, 0.5)
    k = np.exp(-0.5 * np.square(x[:, None] - x[None]).sum(-1))
    angle = x[:n] @ rng.standard_normal((2, int(rng.integers(1, 60))))
    phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(angle.shape[1])
    error = np.abs(np.linalg.eigvalsh(k[:n, :n] - phi @ phi.T)).max()
    q, ours = k[:n, :n] + noise * np.eye(n), phi @ phi.T + noise * np.eye(n)
    return q, ours, k[n, :n], rng.standard_normal(n), float(error / noise)


def prediction() -> Iterator[Line]:
    noise, cross = 0.7, np.array([0.9, 0.6])  # kernel values of two rows .5, and .9 and .6 to the test point
    q, ours = pair(0.5, noise), pair(0.6, noise)
    w = np.linalg.solve(ours, cross)
    y = np.array([-w[1], w[0]]) / np.linalg.norm(w)  # the approximate mean is zero, and so must be the exact one
    mean = float(cross @ np.linalg.solve(q, y))
    yield "Lemma 7", "mean 0", f"{mean:.3f} for two rows, the exact k_* in both means, and an approximate mean of 0"
    broken_mean = broken_variance = 0
    rng = np.random.default_rng(0)
    for _ in range(3000):
        q, ours, cross, y, c = random_case(rng)
        means = [float(cross @ np.linalg.solve(each, y)) for each in (q, ours)]
        v, v_ours = (1.0 - quadratic(each, cross) for each in (q, ours))
        broken_mean += abs(means[0] - means[1]) > c * abs(means[1]) + 1e-12
        broken_variance += abs(v - v_ours) > c * abs(v_ours) + c + 1e-12
    yield "Lemma 7", "none fails", f"{broken_mean} of 3,000 random cases with the exact k_* in both means"
    yield "Lemma 8", "none fails", f"{broken_variance} of 3,000 with the exact k_* in both variances: it holds"
    k, approximate, noise = np.exp(-0.5), np.cos(1.5), 0.1  # one row at 0, a test point at 1, one frequency of 1.5
    v, v_ours = (1 - each**2 / (1 + noise) for each in (k, approximate))
    text = f"{v:.3f} and {v_ours:.3f} for n = 1, where K = K' and lambda = 0, but k_* is approximated"
    yield "Lemma 8 for an SSGP", "equal variances", text


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
    yield "Lemma 11", *optimal_evidence()
    failed = tried = 0
    rng = np.random.default_rng(1)
    while tried < 2000:
        q, ours, _, y, c = random_case(rng)
        if not 0.0 < c < 1.0 or np.linalg.eigvalsh(q)[0] <= 1.0:
            continue
        tried += 1
        limit = tau(q, c, 1.0)
        value, value_ours = (0.5 * (logdet(each) + quadratic(each, y)) for each in (q, ours))
        failed += abs(logdet(ours) - logdet(q)) > limit * logdet(q) + 1e-9
        failed += abs(value_ours - value) > max(limit, c) * value + 1e-9
    text = f"{failed} of {tried} random cases with eigenvalues of Q above 1 and c below 1: they hold there"
    yield "Lemmas 9, 10", "none fails", text


def optimal_evidence() -> tuple[str, str]:
    """The optima of both evidences over 41 length-scales, and how far apart they may be."""
    rng = np.random.default_rng(5)
    n, p, noise = 40, 500, 0.5
    x, epsilon = rng.uniform(-2, 2, (n, 2)), rng.standard_normal((2, p))
    y = np.sin(2 * x[:, 0]) + 0.7 * rng.standard_normal(n)
    s = np.square(x[:, None] - x[None]).sum(-1)
    exact, approximate, limits = [], [], []
    for theta in np.geomspace(0.2, 5.0, 41):
        angle = x @ epsilon / theta
        phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(p)
        q, ours = np.exp(-0.5 * s / theta**2) + noise * np.eye(n), phi @ phi.T + noise * np.eye(n)
        c = np.abs(np.linalg.eigvalsh(q - ours)).max() / noise
        exact.append(0.5 * (logdet(q) + quadratic(q, y)))
        approximate.append(0.5 * (logdet(ours) + quadratic(ours, y)))
        limits.append(0.5 * (n * np.log1p(c) + c * min(quadratic(q, y), quadratic(ours, y))))
    best, best_ours = int(np.argmin(exact)), int(np.argmin(approximate))
    limit, difference = max(limits[best], limits[best_ours]), abs(approximate[best_ours] - exact[best])
    text = f"{difference:.2f} apart for {n} rows, {p} frequencies; at most max(e(Theta_*), e(Theta'_*)) = {limit:.1f}"
    return "the minima differ by a factor", f"{text}, corrected"


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
    worst, rng = 0.0, np.random.default_rng(2)
    for _ in range(200):
        q, ours, _, _, c = random_case(rng)
        ratio = np.linalg.eigvalsh(q)[0] / np.linalg.eigvalsh(ours)[0]  # of the norms of the inverses
        worst = max(worst, abs(ratio - 1.0) / c)
    n, p, delta = 400, 100_000, 0.1
    x = rng.standard_normal((n, 4))
    k = np.exp(-0.5 * np.square(x[:, None] - x[None]).sum(-1))
    worst_entry = np.abs(k[0] - np.cos((x[0] - x) @ rng.standard_normal((4, p))).mean(1)).max()
    yield "Theorem 1", "k is the mean of cosines", f"it holds; at most {worst_entry:.3f} off with {p:,} draws, {n} rows"
    bound, size = 0.1 * n, float(np.linalg.eigvalsh(k)[-1])
    needed = n**2 / bound**2 * np.log(n)
    enough = int(np.ceil((2 * n * size / bound**2 + 2 * n / (3 * bound)) * np.log(8 * n / (size * delta))))  # S8
    angle = x @ rng.standard_normal((4, enough))
    phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(enough)
    error = np.abs(np.linalg.eigvalsh(k - phi @ phi.T)).max()
    text = f"{enough} suffice for {n} rows and lambda = {bound:.0f}, by (S8); with as many |K - K'| = {error:.1f}"
    yield "Without conditions", f"n^2 lambda^-2 log n = {needed:.0f} frequencies are needed", text
    yield "Lemma 6", "|Q'^-1| = (1 +- c) |Q^-1|", f"it holds; at most 1 +- {worst:.2f} c in 200 random cases"


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
