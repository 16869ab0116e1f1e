"""Fit a model with few frequencies, and certify how far it is from the exact GP.

    python examples/certificate.py --out certificate

Runs the command line, ``prismgp fit`` and ``prismgp certify``, on two simulated tables: a noisy curve with one input
and a gap in the data, and a gas sensor with six inputs. Writes the tables, the models, the certificates as JSON and
the figures ``certificate_curve.png`` and ``certificate_sensor.png`` into the folder.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import numpy as np
import pandas as pd

from prismgp.cli import main as prismgp


def curve(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A curve that gets faster, with no data between 5 and 6.5."""
    time = np.sort(np.concatenate([rng.uniform(0, 5, 2 * n // 3), rng.uniform(6.5, 10, n - 2 * n // 3)]))
    signal = np.sin(0.25 * time**2) * np.exp(-0.1 * time)
    return pd.DataFrame({"time": time, "signal": signal + 0.15 * rng.standard_normal(n)})


def sensor(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A simulated gas sensor: concentration from two resistances under heater cycle, humidity and temperature."""
    gas = rng.uniform(0, 20, n)
    heater, humidity, temperature, flow = rng.uniform(size=(4, n))
    cycle = np.sin(2 * np.pi * heater)
    response = (1 + gas) ** (0.6 + 0.1 * cycle) * (1 - 0.3 * humidity) * np.exp(0.3 * temperature)
    first = np.log(response) + 0.02 * rng.standard_normal(n)
    second = np.log1p(gas) * (1 + 0.2 * cycle) + 0.4 * humidity + 0.05 * rng.standard_normal(n)
    columns = {"first": first, "second": second, "heater": heater, "humidity": humidity, "temperature": temperature}
    return pd.DataFrame({**columns, "flow": flow, "gas": gas})


def run(*words: object) -> int:
    """One command, shown as it would be typed."""
    argv = [str(word) for word in words]
    print(f"\n$ prismgp {shlex.join(argv)}\n", flush=True)
    return prismgp(argv)


def main() -> None:
    """Make the tables, fit, certify."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("certificate"), help="folder for everything that is made")
    parser.add_argument("--rows", type=int, default=3000, help="of the gas sensor (default: %(default)s)")
    parser.add_argument("--frequencies", type=int, default=256, help="of the gas sensor (default: %(default)s)")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    curve(240, rng).to_csv(out / "curve.csv", index=False)
    pd.DataFrame({"time": np.linspace(0, 10, 400)}).to_csv(out / "grid.csv", index=False)
    sensor(arguments.rows, rng).to_csv(out / "sensor.csv", index=False)

    run("fit", out / "curve.csv", "--model", "ssgp", "--target", "signal", "-p", 24, "-o", out / "curve.prism", "-q")
    files = ["--json", out / "curve.json", "--figure", out / "certificate_curve.png"]
    run("certify", out / "curve.prism", out / "curve.csv", "--test", out / "grid.csv", *files)
    fit = ["--target", "gas", "-p", arguments.frequencies, "--holdout", 0.2, "-o", out / "sensor.prism"]
    run("fit", out / "sensor.csv", "--model", "ssgp", *fit, "-q")
    files = ["--json", out / "sensor.json", "--figure", out / "certificate_sensor.png"]
    run("certify", out / "sensor.prism", out / "sensor.csv", "--holdout", 0.2, *files)


if __name__ == "__main__":
    main()
