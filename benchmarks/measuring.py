"""What the benchmarks share: interleaved rounds, goals, and how a script hands its numbers back."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnprobe import QKV


def spread(values: Sequence[float]) -> float:
    """Half the range between the quartiles, 0 for a single value."""
    if len(values) < 2:
        return 0.0
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2


@dataclass(frozen=True)
class Goal:
    """A number that a benchmark found, and the least (or the most) that it should be.

    It is missed where it falls short by more than ``spread``, half the range between the quartiles of the rounds.
    """

    name: str
    value: float
    goal: float
    at_least: bool = True
    spread: float = 0.0

    @property
    def missed(self) -> bool:
        gap = self.goal - self.value if self.at_least else self.value - self.goal
        return not gap <= self.spread

    def __str__(self) -> str:
        sign, found = "≥" if self.at_least else "≤", f"{self.value:.3g}"
        beside = f" ± {self.spread:.2g}" if self.spread else ""
        return f"{self.name}: {found}{beside}, goal {sign} {self.goal:g}"


@dataclass(frozen=True)
class Timed:
    """Seconds of each call in every round, and what each gave last."""

    seconds: Mapping[str, Sequence[float]]
    results: Mapping[str, Any]

    def median(self, name: str) -> float:
        return median(self.seconds[name])

    def ratio(self, name: str, other: str, factor: float = 1.0) -> tuple[float, float]:
        """``factor`` times the time of ``name`` over that of ``other``: median of the rounds, and their spread."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        each = [factor * ours / theirs for ours, theirs in pairs]
        return median(each), spread(each)


def timed(work: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> Timed:
    """Every call in turn, ``rounds`` times over, after ``warm_up`` rounds that find cold caches and do not count."""
    seconds, results = {name: [] for name in work}, {}
    for _ in range(rounds + warm_up):
        for name, once in work.items():
            begin = perf_counter()
            results[name] = once()
            seconds[name].append(perf_counter() - begin)
    return Timed({name: every[warm_up:] for name, every in seconds.items()}, results)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the script's docstring and ``--json``, by which `all.py` gets the numbers."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the numbers that have goals there")
    return parser


def grid_arguments(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a script that measures Figure 1's grid: weights, text, lengths, budgets, heads and rounds."""
    parser = arguments(doc)
    parser.add_argument("--weights", default="initialized,pretrained")
    parser.add_argument("--text", help="see attnprobe.load_qkv; it must be long enough")
    parser.add_argument("--n", default="512,1024,2048,4096")
    parser.add_argument("--d", default="16,32,64,128,256")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def layers_and_heads(text: str) -> list[tuple[int, int]]:
    """``0:0,2:3``: layers and heads."""
    return [tuple(map(int, pair.split(":"))) for pair in text.split(",")]


def one_head(weights: str, layer: int, head: int, args: argparse.Namespace) -> QKV:
    """Q, K and V of one head, of ``args.n`` tokens of ``args.text``."""
    from attnprobe import QKV, load_qkv

    qkv = load_qkv(weights=weights, n=args.n, layer=layer, text=args.text, device="cpu", notify=lambda line: None)
    one = slice(head, head + 1)
    return QKV(*(x[one].contiguous() for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale)


def finish(goals: Sequence[Goal], path: str | None) -> int:
    """Print the goals that are missed, hand all of them back where asked to, and give the exit code."""
    if path is not None:
        Path(path).write_text(json.dumps([asdict(goal) for goal in goals]))
    for goal in goals:
        if goal.missed:
            print("missed:", goal)
    return int(any(goal.missed for goal in goals))
