"""A page like those of real runs: five sections, wide tables, six figures, certificates. Its numbers are made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.page import (
    Figure,
    Highlight,
    Notice,
    Page,
    Section,
    Table,
    best_cells,
    certificate_section,
    draw_calibration,
    draw_curves,
    draw_embedding,
    draw_pareto,
    draw_svg,
)
from prismgp.certificates import Certificate, Interval

MODELS = ["full GP", "SSGP, p = 64", "paper's recipe", "PrismGP", "GPyTorch SVGP", "scikit-learn GPR"]
DATA = ["abalone", "elevators", "pol (simulated long data set name)", "kin40k"]


def certificate(**changes: Any) -> Certificate:
    """Of an ensemble of two, at three test points."""
    ours, half = np.array([0.1, 0.4, -0.2]), np.array([0.01, 0.02, 0.005])
    settings: dict[str, Any] = {
        "name": "PrismGPRegressor",
        "statement": "the mixture, with the ensemble's own weights, of the exact GPs of its members",
        "rows": 3_000,
        "kernel_error": None,
        "kernel_error_frobenius": None,
        "log_evidence": Interval(-1200.0, -1190.0, 1.0, "made up", -1195.0),
        "mean": Interval(ours - half, ours + half, 0.99, "made up", ours),
        "variance": Interval(np.full(3, 0.01), np.full(3, 0.03), 0.99, "made up", np.full(3, 0.02)),
        "noise_variance": np.full(3, 0.04),
        "probability": 0.99,
        "holds": True,
        "reason": "",
        "assumptions": ("floating-point rounding as in IEEE 754",),
        "spent": {"rank": 512, "products": 40, "seconds": 3.2},
    }
    settings |= changes
    if "members" not in changes:
        kernel = Interval(0.2, 0.9, 1.0, "made up")
        names = ("PrismGPRegressor, member 0", "PrismGPRegressor, member 1")
        settings["members"] = tuple(certificate(name=name, kernel_error=kernel, members=()) for name in names)
    return Certificate(**settings)


def summary_table() -> Table:
    rng = np.random.default_rng(0)
    rows, rmse, nlpd, groups = [], [], [], []
    for name in DATA:
        for k, model in enumerate(MODELS):
            error, density, cover, seconds = 0.3 + 0.2 * rng.random(3).mean() - 0.02 * (k == 3), *rng.random(3)
            rows.append(
                [
                    f"{name}: {model}",
                    f"{error:.3f} ± 0.004",
                    f"{density:.3f}",
                    f"{90 + 9 * cover:.1f}%",
                    f"{900 * seconds:,.1f}",
                    f"{40_000 * seconds:,.0f}",
                    f"{seconds:.2e}",
                    "-" if k == 0 else str(16 * k),
                    "-1,204.7",
                    "yes" if k else "no",
                ]
            )
            rmse.append(round(error, 3))
            nlpd.append(round(float(density), 3))
            groups.append(name)
    header = [
        "Data and model",
        "RMSE",
        "NLPD",
        "95% intervals cover",
        "fit, s",
        "predictions per s",
        "memory, GB",
        "frequencies",
        "log evidence",
        "certified",
    ]
    return Table(
        "Accuracy, calibration and time",
        header,
        rows,
        note="Mean over five splits and standard error. Lower is better but for coverage, which should be 95%.",
        best=best_cells({1: rmse, 2: nlpd}, groups),
        lost=frozenset({4, 17}),
        groups=groups,
    )


def figures() -> list[Figure]:
    rng = np.random.default_rng(1)
    levels = np.linspace(0.02, 0.98, 49)
    calibration = {name: np.clip(levels ** (0.8 + 0.1 * k), 0, 1) for k, name in enumerate(MODELS[:5])}
    time = np.geomspace(0.5, 900, 14)
    curves = {}
    for k, name in enumerate(MODELS):
        middle = 0.25 + 0.02 * k + (0.8 + 0.1 * k) * time ** (-0.3 - 0.06 * (6 - k))
        curves[name] = (time, middle, 0.93 * middle, 1.08 * middle)
    points = {name: (10 ** rng.uniform(0, 3), rng.uniform(0.25, 0.5)) for name in MODELS}
    points |= {"PrismGP, fast": (20.0, 0.27), "SSGP, p = 16": (1.1, 0.47), "SSGP, p = 32": (1.3, 0.46)}
    points |= {"SSGP, p = 128": (21.0, 0.272), "XGBoost": (1.2, 0.465)}
    clusters = rng.integers(0, 5, 4_000)
    xy = rng.standard_normal((4_000, 2)) + 4 * np.stack([np.cos(clusters * 1.3), np.sin(clusters * 1.3)], axis=1)
    ours = {"PrismGP", "PrismGP, fast", "SSGP, p = 16", "SSGP, p = 32", "SSGP, p = 64", "SSGP, p = 128"}

    def error(axes: Any) -> None:
        labels = {"xlabel": "seconds", "ylabel": "RMSE", "title": "Error against time"}
        draw_curves(axes, curves, log_x=True, log_y=True, **labels)

    pareto = draw_svg(
        lambda axes: draw_pareto(axes, points, ours=ours, ylabel="RMSE", title="Error against time of the fit")
    )
    return [
        Figure(pareto, "Error against time; the dashed line is what nothing else beats.", "Eleven points and a front."),
        Figure(draw_svg(error), "Median of five seeds and the range of all.", "Six falling curves."),
        Figure(
            draw_svg(lambda axes: draw_calibration(axes, levels, calibration, title="Calibration, kin40k"), (4.6, 4.4)),
            "Share of held-out values inside central intervals, against what the intervals claim.",
            "Five curves around the diagonal.",
            wide=False,
        ),
        Figure(
            draw_svg(
                lambda axes: draw_embedding(axes, xy, clusters, title="Inputs after re-configuration"), (4.6, 4.4)
            ),
            "The first two latent coordinates, by cluster.",
            "Five round clouds of points in a ring.",
            wide=False,
        ),
        Figure(
            draw_svg(lambda axes: draw_embedding(axes, xy[:300], clusters[:300], title="A sample"), (4.6, 4.4)),
            "Some of them.",
            "Five sparse clouds of points.",
            wide=False,
        ),
        Figure(
            draw_svg(lambda axes: draw_pareto(axes, {"PrismGP": (1.0, 0.5)}), (4.6, 4.4)),
            "One point.",
            "One.",
            wide=False,
        ),
    ]


def page() -> Page:
    pareto, error, calibration, embedding, sample, one = figures()
    failed = certificate(
        holds=False, reason="the Cholesky factor of the kernel matrix lost too many digits to rounding.", members=()
    )
    narrow = Table(
        "Fitted parameters", ["Parameter", "value", "unit"], [["noise std", "0.201", "kg"], ["signal std", "1.4", "kg"]]
    )
    return Page(
        title="PrismGP against five other models on four data sets",
        summary="Every model fitted on the same five splits of four data sets, with the same budget of time.\n\n"
        "PrismGP has the least error on three of them; on elevators another library wins, and the tables say so.",
        notice=Notice("3 of 120 fits are not finished; the tables show the others.", title="This run goes on."),
        highlights=[
            Highlight("0.241", "RMSE of PrismGP, all data sets", "full GP: 0.260"),
            Highlight("3 of 4", "data sets where PrismGP is best", "another library wins on elevators"),
            Highlight("94.8%", "of 95% intervals hold the truth", "5,000 held-out values"),
            Highlight("12.4 s", "median time of a fit", "2 CPU cores"),
        ],
        tables=[summary_table()],
        sections=[
            Section(
                "Error against time",
                "Both axes are logarithmic.\n\nFurther left and lower is better.",
                figures=[pareto, error],
            ),
            Section(
                "Calibration", "An interval of 95% should hold 95% of new values.", figures=[calibration, embedding]
            ),
            certificate_section(certificate().to_dict(), title="Certificate: abalone"),
            certificate_section(failed.to_dict(), title="Certificate: kin40k"),
            Section("What was learned", "Parameters in the units of the data.", tables=[narrow], figures=[sample, one]),
        ],
        made_by={
            "command": "python -m experiments bench --quick",
            "versions": "prismgp 0.1.0, Python 3.12.3, torch 2.7.0",
            "seeds": "0 to 4",
            "machine": "2 CPU cores, no GPU",
        },
    )
