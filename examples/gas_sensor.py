"""The simulated gas sensor array: what it looks like, and how hard it is.

    python examples/gas_sensor.py --out gas

Writes the figure ``gas_simulated.png`` into the folder and prints the errors of a linear regression and of the exact
GP on held-out rows. The GP's parameters are learned on some of the training rows, its predictions use all of them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.linear_model import LinearRegression

from prismgp import ExactGPRegressor
from prismgp.datasets import make_gas_sensor

mpl.use("Agg")
from matplotlib import pyplot as plt  # after the choice of the backend

SECONDS = 0.308  # between rows in the order of time


def draw(path: Path) -> None:
    """Six hours of conditions, and two heater cycles at a low and a high concentration."""
    data = make_gas_sensor(round(6 * 3600 / SECONDS), 0, order="time")
    hours = np.arange(len(data.y)) * SECONDS / 3600
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5.6), layout="constrained")
    top.plot(hours, data.y, color="tab:red", label="CO (ppm)", linewidth=1.2)
    top.set(xlabel="hours", ylabel="CO (ppm)", xlim=(0, 6))
    humid = top.twinx()
    humid.plot(hours, data.X["Humidity (%r.h.)"], color="tab:blue", linewidth=0.8, alpha=0.7)
    humid.set_ylabel("humidity (%r.h.)", color="tab:blue")
    top.yaxis.label.set_color("tab:red")
    top.set_title("Simulated gas sensor array: conditions", fontsize=10)

    rows = round(45 / SECONDS) * 2
    settled = np.arange(len(data.y)) * SECONDS % 900 // 45 == 15  # well after a change
    starts = np.flatnonzero(settled & ~np.roll(settled, 1))
    levels = data.y.to_numpy()[starts]
    for start, style in ((starts[levels.argmin()], "-"), (starts[levels.argmax()], "--")):
        part = data.X.iloc[start : start + rows]
        seconds = np.arange(len(part)) * SECONDS
        for sensor, colour in (("R1 (MOhm)", "tab:green"), ("R8 (MOhm)", "tab:purple")):
            label = f"{sensor.split()[0]} at {data.y.iloc[start]:.1f} ppm"
            bottom.semilogy(seconds, part[sensor], style, color=colour, label=label, linewidth=1.2)
    bottom.set(xlabel="seconds", ylabel="resistance (MOhm)", xlim=(0, 90), ylim=(0.06, 500))
    bottom.set_title("Simulated: two sensors over two heater cycles", fontsize=10)
    bottom.legend(fontsize=8, ncols=4, loc="upper center")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw, time, fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gas"), help="folder for the figure")
    parser.add_argument("--rows", type=int, default=10_000, help="a fifth is held out (default: %(default)s)")
    parser.add_argument("--learn", type=int, default=2_000, help="rows to learn parameters on (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw(arguments.out / "gas_simulated.png")

    began = time.perf_counter()
    make_gas_sensor(1_000_000)
    print(f"a million rows simulated in {time.perf_counter() - began:.1f} s")

    data = make_gas_sensor(arguments.rows, 0)
    print(data)
    scale = float(data.y_train.std())

    def error(mean: np.ndarray) -> float:
        return float(np.sqrt(np.mean((mean - data.y_test.to_numpy()) ** 2))) / scale

    linear = LinearRegression().fit(data.X_train, data.y_train)
    print(f"linear regression: RMSE {error(linear.predict(data.X_test)):.3f} of the target's standard deviation")
    first = arguments.learn
    learned = ExactGPRegressor(max_iter=100, random_state=0).fit(data.X_train[:first], data.y_train[:first])
    model = ExactGPRegressor(
        lengthscale=learned.lengthscale_,
        signal_variance=learned.signal_variance_,
        noise_variance=learned.noise_variance_,
        mean=learned.mean_,
        optimize=False,
    ).fit(data.X_train, data.y_train)
    print(f"exact GP: RMSE {error(model.predict(data.X_test)):.3f}")


if __name__ == "__main__":
    main()
