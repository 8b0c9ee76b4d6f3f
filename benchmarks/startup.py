"""How long ``attnprobe --help`` takes beyond a bare interpreter.

    python benchmarks/startup.py [--rounds 15]

The two commands run in turn. Goal: the median difference is under 0.3 s; exits 1 where it is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter

GOAL = 0.3
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "attnprobe --help": [sys.executable, "-m", "attnprobe", "--help"],
}


def timed(command: list[str]) -> float:
    begin = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    found = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):
        for name, command in COMMANDS.items():
            found[name].append(timed(command))
    bare, ours = (sorted(times[1:]) for times in found.values())  # the first round fills the file cache
    for name, times in zip(COMMANDS, (bare, ours), strict=True):
        print(f"{name:18} median {median(times):.3f} s  ({times[0]:.3f} - {times[-1]:.3f})")
    extra = median(ours) - median(bare)
    print(f"{'extra':18} {extra:.3f} s, goal {GOAL} s; ratio {median(ours) / median(bare):.1f}")
    return 0 if extra < GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
