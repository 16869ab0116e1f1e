"""All benchmarks, one after the other.

python benchmarks/run.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from _common import data_folder

HERE = Path(__file__).resolve().parent


def main() -> None:
    commands = [["speed.py"]]
    if data_folder() is None:
        print("real data sets are absent (set PRISMGP_DATA): accuracy, efficiency, flights and tightness are skipped")
    else:
        # Accuracy and efficiency keep the runs that are stored and make the missing ones.
        commands += [["accuracy.py"], ["efficiency.py"], ["flights.py"], ["tightness.py"]]
    for command in commands:
        print(f"\n== {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, str(HERE / command[0]), *command[1:]], check=True)


if __name__ == "__main__":
    main()
