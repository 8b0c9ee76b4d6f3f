"""How long ``attnprobe --help`` takes beyond a bare interpreter.

    python benchmarks/startup.py [--rounds 15]

The two commands run in turn. Goal: the median difference is under 0.3 s; exits 1 where it is missed.
"""

from __future__ import annotations

import subprocess
import sys

from measuring import Goal, arguments, finish, spread, timed

GOAL = 0.3
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "attnprobe --help": [sys.executable, "-m", "attnprobe", "--help"],
}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    calls = {
        name: lambda command=command: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for name, command in COMMANDS.items()
    }
    found = timed(calls, args.rounds)
    for name, times in found.seconds.items():
        print(f"{name:18} median {found.median(name):.3f} s  ({min(times):.3f} - {max(times):.3f})")
    bare, ours = COMMANDS
    extra = found.median(ours) - found.median(bare)
    print(f"{'extra':18} {extra:.3f} s, goal {GOAL} s; ratio {found.ratio(ours, bare)[0]:.1f}")
    beside = spread([b - a for a, b in zip(found.seconds[bare], found.seconds[ours], strict=True)])
    goal = Goal("seconds of attnprobe --help beyond a bare interpreter", extra, GOAL, False, beside)
    return finish([goal], args.json)


if __name__ == "__main__":
    sys.exit(main())
