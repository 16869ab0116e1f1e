"""Accuracy and calibration on real data: RMSE, NLPD and coverage by data set, splits and number of frequencies.

python benchmarks/accuracy.py [--datasets abalone,elevators] [--splits 3] [-p 64] [--model ssgp|exact]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from _common import load_split, scores, write_result
from prismgp import ExactGPRegressor, SSGPRegressor

DATASETS = "abalone,elevators,pol,kin40k,keggdirected,pumadyn32nm,concrete,energy,airfoil"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default=DATASETS)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("-p", type=int, default=64)
    parser.add_argument("--model", choices=("ssgp", "exact"), default="ssgp")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--name", help="name of the result file")
    args = parser.parse_args()
    rows = []
    print(f"{'data set':14s} {'split':>5s} {'rows':>7s} {'rmse':>7s} {'nlpd':>8s} {'cover':>6s} {'fit s':>7s}")
    for name in args.datasets.split(","):
        found = []
        for split in range(args.splits):
            x, y, x_test, y_test = load_split(name, split)
            common = {"device": args.device, "dtype": args.dtype, "random_state": split}
            model = SSGPRegressor(args.p, **common) if args.model == "ssgp" else ExactGPRegressor(**common)
            began = time.perf_counter()
            model.fit(x, y)
            seconds = time.perf_counter() - began
            mean, std = model.predict(x_test, return_std=True)
            score = scores(y_test, mean, std, float(y.std()))
            found.append(score)
            rows.append({"dataset": name, "split": split, "rows": len(y), "fit_seconds": seconds, **score})
            print(
                f"{name:14s} {split:5d} {len(y):7d} {score['rmse']:7.4f} {score['nlpd']:8.4f} "
                f"{score['coverage']:6.3f} {seconds:7.1f}",
                flush=True,
            )
        mean_score = {key: float(np.mean([score[key] for score in found])) for key in found[0]}
        print(
            f"{name:14s}  mean         {mean_score['rmse']:7.4f} {mean_score['nlpd']:8.4f} "
            f"{mean_score['coverage']:6.3f}",
            flush=True,
        )
        label = args.name or f"accuracy_{args.model}" + (f"_p{args.p}" if args.model == "ssgp" else "")
        write_result(label, {"model": args.model, "p": args.p, "device": args.device, "runs": rows})


if __name__ == "__main__":
    main()
