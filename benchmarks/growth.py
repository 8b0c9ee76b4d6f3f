"""How the CPU time of each command grows with n, heads, methods and windows, and its memory at 131,072 keys.

    python benchmarks/growth.py [--only error,rows,theory] [--rounds 2] [--keys 131072]

Each command measures MiniLM's layer 0 on the packaged text, on one thread, with Q, K and V in a cache: n = 512, three
heads, a method at d = 32 and a window, and again with one of these four times as large. `theory` begins at n = 128,
because it factorises matrices. `inject` reads a Llama of two layers with random weights, whose other sizes do not grow
with its heads. `bench` times random numbers and has no windows. `stability` trains its own model of two heads, and its
seeds stand for windows. Methods are options of `performer`, which cost the same. An exponent is the logarithm of the
ratio of the least CPU seconds, to the base 4. A fixed part of a command makes exponents smaller, so a larger one than
the goal is work that the command repeats.

Memory is the growth of a process, at its peak, while a command measures 256 queries of one head over --keys random keys
of 64 numbers, in which K and V alone are 64 MiB.

Goals: 2 in n for passes over the matrix, 3 for decompositions, 1 in heads, methods and windows, each with 0.15 for
noise; 2 GiB. Exits 1 where one is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import log
from pathlib import Path
from shutil import copy
from time import process_time
from typing import Any

import torch
from measuring import Goal, arguments, finish
from safetensors.torch import save_file
from transformers.models.llama import LlamaConfig, LlamaModel

from attnprobe import probe
from attnprobe.inputs.packaged import packaged_weights
from attnprobe.metrics.cost import peak_bytes

FACTOR, N, HEADS, QUERIES = 4, 512, 3, 256
NOISE, MEMORY_GOAL = 0.15, 2048.0  # of an exponent; MiB, of which row metrics keep exact rows of 1 GiB
EQUAL = ("performer", "performer:qr=raw", "performer:scaling=sqrt", "performer:orthogonal=false")
PLAIN: dict[str, Any] = {"d": (32,), "input_statistics": False}
MODEL: dict[str, Any] = {"model": "minilm", "text": "embedded"}


@dataclass(frozen=True)
class Grown:
    """A command, its options, the exponent in n, and n before it grows.

    Attributes:
        source: the options of its inputs. lacks: the axes that it does not have.
        long: whether it takes few queries of many keys.
    """

    command: str
    options: dict[str, Any]
    power: int = 2
    n: int = N
    source: dict[str, Any] = field(default_factory=lambda: MODEL)
    lacks: tuple[str, ...] = ()
    long: bool = False


COMMANDS = {
    "error": Grown("error", {**PLAIN, "matrix": False}, long=True),
    "matrix": Grown("error", {**PLAIN, "matrix": True}),
    "rows": Grown("error", {**PLAIN, "matrix": False, "rows": True}, long=True),
    "audit": Grown("audit", {**PLAIN, "repeats": 20, "queries": "last:64"}, 1, long=True),
    "budget": Grown("budget", {"d_max": 64, "input_statistics": False}, long=True),
    "rounding": Grown("rounding", {**PLAIN, "formats": ("bf16",)}, long=True),
    "theory": Grown("theory", {**PLAIN, "repeats": 4}, 3, n=128),
    "spectrum": Grown("spectrum", {"k": 8, "input_statistics": False}, long=True),
    "condition": Grown("condition", PLAIN, 3, long=True),
    "inject": Grown("inject", {**PLAIN, "layer": ("0",)}),
    "bench": Grown("bench", {"d": (32,), "rounds": 3, "memory": False}, source={}, lacks=("windows",), long=True),
    "stability": Grown(
        "stability",
        {"tasks": ("listops:batch=4",), "d": (32,), "steps": 4, "condition_tokens": 0},
        source={},
        lacks=("heads",),
    ),
}
AXES = ("n", "heads", "methods", "windows")


@cache
def decoder(heads: int) -> tempfile.TemporaryDirectory[str]:
    """A folder with a Llama of these heads of 32 numbers, and MiniLM's tokenizer."""
    folder, tokenizer = tempfile.TemporaryDirectory(), packaged_weights()["path"]
    sizes: dict[str, Any] = {
        "vocab_size": 30522,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "head_dim": 32,
    }
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": N * FACTOR}
    torch.manual_seed(0)
    LlamaModel(LlamaConfig(**sizes)).save_pretrained(folder.name)
    copy(Path(tokenizer) / "tokenizer.json", folder.name)
    settings = json.loads((Path(tokenizer) / "tokenizer_config.json").read_text())
    longer = json.dumps(settings | {"model_max_length": N * FACTOR})
    (Path(folder.name) / "tokenizer_config.json").write_text(longer)
    return folder


def changed(name: str, axis: str) -> dict[str, Any]:
    """The options of a command with one axis ``FACTOR`` times as large; all as they are for another ``axis``."""
    command, size = COMMANDS[name].command, {one: FACTOR if one == axis else 1 for one in AXES}
    methods, n, heads = EQUAL[: size["methods"]], COMMANDS[name].n * size["n"], HEADS * size["heads"]
    numbers = {"n": (n,), "windows": size["windows"], "head": (f"0-{heads - 1}",)}
    if command == "bench":
        numbers = {"n": (n,), "heads": heads}
    elif command == "stability":
        numbers = {"n": n, "seeds": size["windows"]}
    elif command == "inject":
        numbers |= {"model": decoder(heads).name}
        del numbers["head"]
    of = {"of": methods, "d": (32,)} if command == "spectrum" else {"methods": methods}
    return {**COMMANDS[name].source, **COMMANDS[name].options, **of, **numbers}


def seconds(name: str, axis: str, rounds: int) -> float:
    """The least CPU seconds of a command, after a call that fills the cache."""

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            begin = process_time()
            probe(COMMANDS[name].command, device="cpu", out=folder, **changed(name, axis))
            return process_time() - begin

    return min([once() for _ in range(rounds + 1)][1:])


def exponents(name: str, rounds: int) -> list[Goal]:
    """The exponent of a command along each axis."""
    base, goals = seconds(name, "", rounds), []
    for axis in AXES:
        if axis in COMMANDS[name].lacks:
            continue
        power = COMMANDS[name].power if axis == "n" else 1
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
    if not COMMANDS[name].long:
        return []
    command = COMMANDS[name].command
    options = {key: value for key, value in COMMANDS[name].options.items() if key != "queries"}
    methods = {"rows": ("topk",), "condition": ("skyformer",)}.get(name, EQUAL[:1])
    options |= {"of": ("softmax",)} if command == "spectrum" else {"methods": methods}
    options |= {"inputs": "model"} if command == "bench" else {}
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
