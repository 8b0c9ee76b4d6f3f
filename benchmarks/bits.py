"""Which number predicts the damage of few bits: one KV head of a model is quantised at a time.

    python benchmarks/bits.py --text embedded code.py needle:pairs=6,answer=1 --out FOLDER

A text's windows have a prompt that the model reads exactly, and steps behind it. The damage is the KL divergence of the
steps' words with the cache of one KV head in few bits. Beside it stand, over the same head and steps, means over
windows:

- the residual, local and row errors of `attnprobe inject`;
- the Fisher error of scores, ``1/2 Var_B(Δs)`` with ``Δs = s q (k^ - k)`` under the exact weights of a row, a mean over
  rows: half the second order of the divergence of the row's weights. It is of keys alone;
- the storage error, the mean square of ``x^ - x`` over the numbers of keys and values, and its share of the mean square
  of x, a mean of both.

Prints Spearman's correlation of each with the damage: over all points, within a layer and within a format (means over
layers and formats), with the 2.5 and 97.5 % points of resampled windows. The last line is how the damage in half of the
windows orders the damage in the other half, a mean over all halves: it says how much of the order is noise. Every layer
of a text leaves its points in FOLDER, so a second run goes on where the first one ended. Exits 1 where the residual
error has less than 0.85 within formats.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Goal, arguments, finish
from torch import Tensor

from attnprobe.frame.correlation import rank_correlation
from attnprobe.grammar.lists import options_text
from attnprobe.machine.timings import Timings
from attnprobe.measure.inject import InjectRequest
from attnprobe.measure.inject.decoding import DecodingBench
from attnprobe.measure.inject.measure import InjectCells
from attnprobe.measure.inject.plan import InjectWork
from attnprobe.measure.inject.policy import Steps
from attnprobe.methods import approximate
from attnprobe.run.plan import MethodRequest, parse_methods

GOAL = 0.85  # of the residual error within formats
RESAMPLES = 200
FORMATS = "fp8,q4_0,q4_1,mxfp4,rotated:q4_0,kivi:exact=32,turboquant:bits=2,turboquant:bits=3"
Place = tuple[int, str, int]  # a layer, a format and a KV head
NUMBERS = {
    "residual_error": "residual error",
    "local_error": "local error",
    "row_error": "row error",
    "fisher": "Fisher error of scores",
    "storage": "storage error",
    "storage_share": "storage error, its share",
}


def stored_errors(steps: Steps, request: MethodRequest) -> dict[str, Tensor]:
    """The storage errors and the Fisher error of each KV head, (h_kv,) each, of a row."""
    qkv = steps.qkv
    last = torch.full((qkv.n_q,), steps.prompt - 1, device=qkv.device)
    label = {**qkv.label, "step": 0}
    prompt = qkv.replace(k=steps.k, v=steps.v, causal=False, positions=last, all_queries=None, label=label)
    made = approximate(request.entry, prompt, None, seed=0, **request.options)
    assert made.stored is not None  # without causal rows all rows read the same keys
    k, v = (x.double() for x in made.stored)
    gaps, sizes = zip(*((read - own, own) for read, own in ((k, steps.k.double()), (v, steps.v.double()))), strict=True)
    squares = [gap.square().mean((1, 2)) for gap in gaps]
    shares = [square / size.square().mean((1, 2)) for square, size in zip(squares, sizes, strict=True)]
    grouped = qkv.q.double().unflatten(0, (qkv.kv_heads, -1))  # (h_kv, group, n_q, p)
    size = torch.logaddexp(steps.whole[1], steps.new[1]).double().unflatten(0, (qkv.kv_heads, -1))
    scores = qkv.scale * grouped @ steps.k.double()[:, None].mT
    weights = (scores - size[..., None]).exp()
    change = qkv.scale * grouped @ gaps[0][:, None].mT
    variance = (weights * change.square()).sum(-1) - (weights * change).sum(-1).square()
    return {
        "fisher": variance.mean((1, 2)) / 2,
        "storage": torch.stack(squares).mean(0),
        "storage_share": torch.stack(shares).mean(0),
    }


def points(bench: DecodingBench, requests: Sequence[MethodRequest], layer: int) -> Iterator[dict[str, Any]]:
    """The numbers of every KV head of a layer, format and window."""
    rows = bench._exact(layer).rows
    for request in requests:
        name = ":".join(filter(None, (request.name, options_text(request.options))))
        with torch.no_grad():
            stored = [stored_errors(row, request) for row in rows]
        for head in range(bench.calls[layer].kv_heads):
            work = InjectWork(request, None, None, 0, 0, (layer,), layer, head)
            for window, result in enumerate(bench.measure(work)):
                got = result["rows"][0]
                numbers = {name: got[name] for name in ("kl", "residual_error", "local_error", "row_error")}
                numbers |= {name: float(values[head]) for name, values in stored[window].items()}
                yield {"layer": layer, "head": head, "format": name, "window": window, **numbers}


def measured(args: argparse.Namespace, text: str, folder: Path) -> list[dict[str, Any]]:
    """The points of a text; a layer that has a file is read, not measured again."""
    found: list[dict[str, Any]] = []
    bench: DecodingBench | None = None
    stem = "".join(sign if sign.isalnum() else "-" for sign in Path(text).name)
    for layer in args.layers:
        path = folder / f"{stem}-layer{layer}.json"
        if not path.exists():
            bench = bench or bench_of(args, text)
            requests = parse_methods([args.formats], "softmax")
            path.write_text(json.dumps([*points(bench, requests, layer)]))
            print(f"{text}: layer {layer}", file=sys.stderr, flush=True)
        found += json.loads(path.read_text())
    return found


def bench_of(args: argparse.Namespace, text: str) -> DecodingBench:
    """The windows of a text as one batch, read by the unmodified model."""
    n, layers = args.prompt + args.steps + 1, tuple(args.layers)
    shape: dict[str, Any] = {"n": (n,), "steps": args.steps, "windows": args.windows, "batch": args.windows}
    given = {"model": args.model, "text": text, "phase": "decode", "methods": (args.formats,), "layer": layers}
    cells = InjectCells(InjectRequest(**given, **shape), lambda line: None, Timings())
    windows = range(args.windows)
    rows = [cells.texts[0][n][window] for window in windows]
    return DecodingBench(cells._model(0), rows, windows, layers, 0, prefix_length=args.prompt, greedy_steps=0)


def table_of(found: Sequence[dict[str, Any]]) -> tuple[list[Place], np.ndarray]:
    """The places and their numbers (places, 1 + numbers, windows), the damage first."""
    places = list(dict.fromkeys((point["layer"], point["format"], point["head"]) for point in found))
    order = {place: number for number, place in enumerate(places)}
    values = np.full((len(places), 1 + len(NUMBERS), 1 + max(point["window"] for point in found)), np.nan)
    for point in found:
        place = order[point["layer"], point["format"], point["head"]]
        values[place, :, point["window"]] = [point[name] for name in ("kl", *NUMBERS)]
    return places, values


def correlations(places: Sequence[Place], numbers: np.ndarray, damage: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each number with the damage, (numbers, 3): of all, in a layer, in a format.

    Args:
        numbers: (places, numbers), means over windows. damage: (places,).
    """
    parts: tuple[Callable[[Place], Any], ...] = (lambda _: 0, lambda place: place[0], lambda place: place[1])
    found = np.full((numbers.shape[1], len(parts)), np.nan)
    for column, part in enumerate(parts):
        keys = [part(place) for place in places]
        groups = [[number for number, key in enumerate(keys) if key == one] for one in dict.fromkeys(keys)]
        for row in range(len(found)):
            every = [rank_correlation(numbers[group, row], damage[group]) for group in groups]
            known = [one[0] for one in every if one is not None]
            found[row, column] = np.mean(known) if known else np.nan
    return found


def of_halves(places: Sequence[Place], damage: np.ndarray) -> np.ndarray:
    """The correlations (3,) of the damage (places, windows) in half of the windows with that in the others."""
    windows = range(damage.shape[1])
    every = []
    for half in combinations(windows, len(windows) // 2):
        first, rest = damage[:, half], damage[:, [window for window in windows if window not in half]]
        every.append(correlations(places, first.mean(1, keepdims=True), rest.mean(1)))
    return np.mean(every, axis=0)[0]


def compare(text: str, found: Sequence[dict[str, Any]]) -> Goal:
    """Print the correlations of a text."""
    places, values = table_of(found)
    windows = values.shape[2]

    def of(some: Any) -> np.ndarray:
        means = values[:, :, some].mean(2)
        return correlations(places, means[:, 1:], means[:, 0])

    rhos, halves = of(slice(None)), of_halves(places, values[:, 0])
    draws = np.random.default_rng(0).integers(windows, size=(RESAMPLES, windows))
    ends = np.quantile([of(draw) for draw in draws], (0.025, 0.975), axis=0)
    print(f"\n{text}: {len(places)} pairs of KV head and format, {windows} windows")
    print(f"{'number':26}{'all':>22}{'in a layer':>22}{'in a format':>22}")
    for row, words in enumerate(NUMBERS.values()):
        cells = [
            f"{rhos[row, column]:+.2f} [{ends[0, row, column]:+.2f}, {ends[1, row, column]:+.2f}]"
            for column in range(3)
        ]
        print(f"{words:26}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"{'damage of other windows':26}" + "".join(f"{rho:>+22.2f}" for rho in halves))
    return Goal(f"{text}: residual error within formats", float(rhos[0, 2]), GOAL)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--text", nargs="+", default=["embedded"])
    parser.add_argument("--out", type=Path, help="keeps the points; a folder that is thrown away by default")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--layers", type=int, nargs="+", default=[*range(1, 30, 3)])
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--windows", type=int, default=8)
    args = parser.parse_args()
    args.out = args.out or Path(tempfile.mkdtemp())
    args.out.mkdir(parents=True, exist_ok=True)
    goals = [compare(text, measured(args, text, args.out)) for text in args.text]
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
