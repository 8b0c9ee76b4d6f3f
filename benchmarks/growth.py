"""How the CPU time of each command grows with n, heads, methods and windows, and its memory at 131,072 keys.

    python benchmarks/growth.py [--only error,rows,theory] [--rounds 2] [--keys 131072]

Each command measures MiniLM's layer 0 on the packaged text, on one thread, with Q, K and V in a cache: n = 512, three
heads, a method at d = 32 and a window, and again with one of these four times as large. Methods are options of
`performer`, which cost the same. An exponent is the logarithm of the ratio of the least CPU seconds, to the base 4. A
fixed part of a command makes exponents smaller, so a larger one than the goal is work that the command repeats.

Memory is the growth of a process, at its peak, while a command measures 256 queries of one head over --keys random keys
of 64 numbers, in which K and V alone are 64 MiB.

Goals: 2 in n for passes over the matrix, 3 for decompositions, 1 in heads, methods and windows, each with 0.15 for
noise; 2 GiB. Exits 1 where one is missed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from math import log
from pathlib import Path
from time import process_time
from typing import Any

import torch
from measuring import Goal, arguments, finish
from safetensors.torch import save_file

from attnprobe import probe
from attnprobe.metrics.cost import peak_bytes

FACTOR, N, HEADS, QUERIES = 4, 512, 3, 256
NOISE, MEMORY_GOAL = 0.15, 2048.0  # of an exponent; MiB, of which row metrics keep exact rows of 1 GiB
EQUAL = ("performer", "performer:qr=raw", "performer:scaling=sqrt", "performer:orthogonal=false")
PLAIN: dict[str, Any] = {"d": (32,), "input_statistics": False}
COMMANDS: dict[str, tuple[str, dict[str, Any], int]] = {  # the command, its options, and the exponent in n
    "error": ("error", {**PLAIN, "matrix": False}, 2),
    "matrix": ("error", {**PLAIN, "matrix": True}, 2),
    "rows": ("error", {**PLAIN, "matrix": False, "rows": True}, 2),
    "audit": ("audit", {**PLAIN, "repeats": 20, "queries": "last:64"}, 1),
    "budget": ("budget", {"d_max": 64, "input_statistics": False}, 2),
    "rounding": ("rounding", {**PLAIN, "formats": ("bf16",)}, 2),
    "theory": ("theory", {**PLAIN, "repeats": 4}, 3),
    "spectrum": ("spectrum", {"k": 8, "input_statistics": False}, 2),
    "condition": ("condition", PLAIN, 3),
    "inject": ("inject", {**PLAIN, "layer": ("0",)}, 2),
}
LONG = ("error", "rows", "audit", "budget", "spectrum")  # commands that take few queries of many keys


def changed(name: str, axis: str) -> dict[str, Any]:
    """The options of a command with one axis ``FACTOR`` times as large; all as they are for another ``axis``."""
    command, options, _ = COMMANDS[name]
    methods = EQUAL if axis == "methods" else EQUAL[:1]
    heads = HEADS * (FACTOR if axis == "heads" else 1)
    return {
        **options,
        **({"of": methods, "d": (32,)} if command == "spectrum" else {"methods": methods}),
        **({} if command == "inject" else {"head": (f"0-{heads - 1}",)}),
        "n": (N * (FACTOR if axis == "n" else 1),),
        "windows": FACTOR if axis == "windows" else 1,
    }


def axes(name: str) -> tuple[str, ...]:
    """What may grow: a model's attention has all heads, and MiniLM reads 512 tokens."""
    return ("methods", "windows") if name == "inject" else ("n", "heads", "methods", "windows")


def seconds(name: str, axis: str, rounds: int) -> float:
    """The least CPU seconds of a command, after a call that fills the cache."""

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            begin = process_time()
            probe(COMMANDS[name][0], model="minilm", text="embedded", device="cpu", out=folder, **changed(name, axis))
            return process_time() - begin

    return min([once() for _ in range(rounds + 1)][1:])


def exponents(name: str, rounds: int) -> list[Goal]:
    """The exponent of a command along each axis."""
    base, goals = seconds(name, "", rounds), []
    for axis in axes(name):
        power = COMMANDS[name][2] if axis == "n" else 1
        found = log(seconds(name, axis, rounds) / base, FACTOR)
        goals.append(Goal(f"exponent of {name} in {axis}", found, power + NOISE, at_least=False))
    return goals


def make(command: str, options: dict[str, Any], keys: int, folder: str) -> Callable[[], Any]:
    """A command on a file of random Q, K and V, with a new run at each call."""
    path = Path(folder) / "qkv.safetensors"
    draws = torch.Generator().manual_seed(0)
    sizes = {"q": QUERIES, "k": keys, "v": keys}
    tensors = {axis: torch.randn(1, size, 64, generator=draws) for axis, size in sizes.items()}
    save_file({**tensors, "positions": torch.arange(keys - QUERIES, keys)}, path)
    return lambda: probe(command, device="cpu", qkv=str(path), out=tempfile.mkdtemp(dir=folder), **options)


def memory(name: str, keys: int) -> list[Goal]:
    """The growth of the memory of a process in a command over many keys."""
    if name not in LONG:
        return []
    command, options, _ = COMMANDS[name]
    options = {key: value for key, value in options.items() if key != "queries"}
    methods = ("topk",) if name == "rows" else EQUAL[:1]
    options |= {"of": ("softmax",)} if command == "spectrum" else {"methods": methods}
    with tempfile.TemporaryDirectory() as folder:
        grown = (peak_bytes(make, command, options, keys, folder) or 0) / 2**20
    return [Goal(f"MiB of {name} at {keys} keys", grown, MEMORY_GOAL, at_least=False)]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", default=",".join(COMMANDS), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keys", type=int, default=2**17)
    args = parser.parse_args()
    torch.set_num_threads(1)
    goals: list[Goal] = []
    for name in args.only.split(","):
        for part, argument in ((exponents, args.rounds), (memory, args.keys)):
            found = part(name, argument)
            print(*found, sep="\n", flush=True)
            goals += found
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
