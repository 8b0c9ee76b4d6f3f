"""How often `attnprobe compare` flags two runs without a change, and how often it finds one.

    python benchmarks/chance.py [--pairs 1000] [--noise 0,1] [--windows 1,2,3,4,8]

It simulates pairs of runs of 12 heads, W windows and R rows of a table. The error of row r, window w and head h is

    e = μ_r exp(α_w + β_h + γ_wh) (1 + δ) + μ_r σ z,   α, β, γ normal with s.d. 0.3, 0.3, 0.1,

with α, β and γ equal in both runs, since both read the same windows. δ is 0 in A, and in B the planted change. z is
drawn anew in each run, as ``NOISES`` says. For each W and R the table has two numbers in percent: tables without a
change that have a *worse* row, and a row with δ = 0.1 among rows without a change that is *worse*. Nothing is
tolerated.

Goals for noise of independent draws, shared draws and other windows: *worse* in at most 3 % of the tables without a
change; for independent draws also: two windows find no less than one. Exits 1 where one is missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from measuring import Goal, arguments, finish

from attnprobe.judge.chance import LEVEL, Evidence, holm, of_heads, of_windows, two_samples

HEADS, MOST_ROWS = 12, 11
ROWS = (1, 4, 11)
CHANGE = 0.1
GOAL = 3.0  # percent of tables without a change that have a worse row; 2.5 is half the level


@dataclass(frozen=True)
class Noise:
    """What differs by chance between two runs.

    Attributes:
        size: σ. same: the axes of (rows, windows, heads) over which z is one number. skewed: exponential z of another
            size in each head, else normal. texts: the s.d. of a change of each window's own, with mean 0. declared:
            the draws that heads share are an option of the method. apart: B reads other windows.
        kept: whether the false alarms have a goal.
    """

    size: float
    same: tuple[int, ...] = ()
    skewed: bool = False
    texts: float = 0.0
    declared: bool = False
    apart: bool = False
    kept: bool = True


NOISES = {
    "draws, 2 %": Noise(0.02),
    "draws, 10 %": Noise(0.1),
    "skewed draws, 2 %": Noise(0.02, skewed=True),
    "draws that heads share (`share_heads`), 2 %": Noise(0.02, same=(2,), declared=True),
    "other windows": Noise(0.02, apart=True),
    "draws that heads share, not declared, 2 %": Noise(0.02, same=(2,), kept=False),
    "draws of a whole run, not declared, 2 %": Noise(0.02, same=(1, 2), kept=False),
    "a change of each text, 5 %": Noise(0.02, texts=0.05, kept=False),
}


def drawn(noise: Noise, windows: int, change: float, rng: np.random.Generator) -> np.ndarray:
    """The errors of A and of B, (2, rows, windows, heads)."""

    head = 0.3 * rng.normal(size=HEADS)

    def text() -> np.ndarray:
        return np.exp(0.3 * rng.normal(size=(windows, 1)) + head + 0.1 * rng.normal(size=(windows, HEADS)))

    shape = (MOST_ROWS, windows, HEADS)
    kept = [1 if axis in noise.same else size for axis, size in enumerate(shape)]
    own = rng.lognormal(0, 0.5, size=HEADS) if noise.skewed else np.ones(HEADS)
    first, runs = text(), []
    for size, one in ((0.0, first), (change, text() if noise.apart else first)):
        z = rng.exponential(size=kept) - 1 if noise.skewed else rng.normal(size=kept)
        of_text = noise.texts * rng.normal(size=(MOST_ROWS, windows, 1))
        runs.append(one * (1 + size) * (1 + of_text) + noise.size * own * z)
    return np.arange(1, MOST_ROWS + 1)[:, None, None] * np.broadcast_to(runs, (2, *shape))


def tested(noise: Noise, windows: int, change: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The p-values of the rows of a pair of runs, 1 without a test, and whether B is the worse one in each."""
    a, b = drawn(noise, windows, change, rng)
    p = [evidence(noise, *row).p for row in zip(a, b, strict=True)]
    return np.array([1.0 if one is None else one for one in p]), b.mean((1, 2)) > a.mean((1, 2))


def evidence(noise: Noise, a: np.ndarray, b: np.ndarray) -> Evidence:
    """The test that `compare` takes for the errors of a row, (windows, heads) in each run."""
    if noise.apart:
        return two_samples(a.mean(1).tolist(), b.mean(1).tolist())
    if noise.declared:
        return of_windows((b - a).mean(1).tolist())
    return of_heads(a.ravel().tolist(), b.ravel().tolist())


def shares(noise: Noise, windows: int, pairs: int, seed: int = 0) -> Iterator[tuple[int, float, float]]:
    """For each number of rows: it, and the percentages of false alarms and of changes found.

    A pair of runs has `MOST_ROWS` rows without a change, of which smaller tables take some, and as many with one.
    """
    rng = np.random.default_rng([seed, windows])
    alarms, found = ({rows: [] for rows in ROWS} for _ in range(2))
    for _ in range(pairs):
        (still, above), (changed, larger) = (tested(noise, windows, change, rng) for change in (0.0, CHANGE))
        for rows in ROWS:
            for first in range(0, MOST_ROWS - rows + 1, rows):
                table = slice(first, first + rows)
                alarms[rows].append(np.any((np.array(holm(still[table])) <= LEVEL) & above[table]))
                with_one = [changed[first], *still[table][1:]]
                found[rows].append(holm(with_one)[0] <= LEVEL and larger[first])
    for rows in ROWS:
        yield rows, 100 * float(np.mean(alarms[rows])), 100 * float(np.mean(found[rows]))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--noise", default=",".join(map(str, range(len(NOISES)))), help="their places in NOISES")
    parser.add_argument("--windows", default="1,2,3,4,8")
    args = parser.parse_args()
    windows = [int(one) for one in args.windows.split(",")]
    names = [list(NOISES)[int(place)] for place in args.noise.split(",")]
    goals: list[Goal] = []
    print(f"| noise | rows | {' | '.join(f'W = {one}' for one in windows)} |")
    print(f"| --- | ---: |{' ---: |' * len(windows)}")
    for name in names:
        noise = NOISES[name]
        of_windows = {one: {rows: rest for rows, *rest in shares(noise, one, args.pairs)} for one in windows}
        for rows in ROWS:
            cells = (f"{alarm:.1f} / {found:.0f}" for alarm, found in (of_windows[one][rows] for one in windows))
            print(f"| {name} | {rows} | {' | '.join(cells)} |", flush=True)
        goals += goals_of(name, noise, of_windows, args.pairs)
    return finish(goals, args.json)


def goals_of(
    name: str, noise: Noise, of_windows: Mapping[int, Mapping[int, Sequence[float]]], pairs: int
) -> list[Goal]:
    """The goals of one noise; their spread is three standard errors of a percentage of so many tables."""
    alarms = [alarm for shares_of in of_windows.values() for alarm, _ in shares_of.values()]
    spread = 3 * math.sqrt(GOAL * (100 - GOAL) / pairs)
    goals = [Goal(f"{name}: worse without a change, %", max(alarms), GOAL, False, spread)] if noise.kept else []
    if not (noise.same or noise.apart or noise.texts) and {1, 2} <= of_windows.keys():
        least = min(of_windows[2][rows][1] - of_windows[1][rows][1] for rows in ROWS)
        goals.append(Goal(f"{name}: found with two windows beyond one, %", least, 0.0, spread=spread))
    return goals


if __name__ == "__main__":
    sys.exit(main())
