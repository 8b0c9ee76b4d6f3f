"""Each method's time and peak memory against exact attention, and the exponent with which its time grows.

    python benchmarks/methods.py [--method all] [--n 1024,2048,4096,8192,16384] [--d 128] [--heads 2] [--p 64]
                                 [--rounds 5] [--dtype float32] [--device auto] [--no-memory] [--quadratic-n 4096]

A time is that of one call of `attnprobe.approximate`: the draws, the operator and its product with V. Exact attention
is torch's `scaled_dot_product_attention` in the same dtype. In each round all of them run once in turn in this process;
a time is the median of the rounds, and the first call of each is not counted. Peak memory is that of a fresh process
each, beyond what it held with its inputs made (on CUDA, what torch allocated). The exponent is the slope of log time
over log n by least squares, for n ≥ 2048.

Goal: an exponent of at most 1.15 for every method whose cost is linear in n. It is the registry's ``cost`` that says
so: one that holds n² or n³ is a yardstick, timed up to --quadratic-n (n³ up to a quarter of it) and held to nothing;
one of n √n (hashing, and sorting) says so and is not held to it either. Exits 1 where the goal is missed.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import sys
from collections.abc import Callable
from math import log, nan
from statistics import linear_regression, median
from time import perf_counter

import torch
from measuring import peak_mib

from attnprobe import QKV, approximate
from attnprobe.errors import Unsupported
from attnprobe.methods import METHODS, Method, get
from attnprobe.reference import attention

GOAL, FIT_FROM = 1.15, 2048
EXACT = "exact (SDPA)"
Call = Callable[[], object]


def inputs(n: int, args: argparse.Namespace) -> QKV:
    generator = torch.Generator().manual_seed(n)
    qkv = QKV(*torch.randn(3, args.heads, n, args.p, generator=generator))
    return qkv.to(device=args.device, dtype=getattr(torch, args.dtype))


def call(name: str, qkv: QKV, d: int) -> Call:
    """The work that is measured, ready to run."""
    if name == EXACT:
        return lambda: attention(qkv.q, qkv.k, qkv.v, qkv.scale)
    entry = get(name)
    return lambda: approximate(name, qkv, None if entry.budget is None else d, target=entry.targets[0])


def growth(entry: Method) -> str:
    """How the cost that a method claims grows with n."""
    quadratic = "n²" in entry.cost or "n³" in entry.cost
    assert quadratic == ("diagnostic" in entry.tags), f"{entry.name}: cost {entry.cost}, tags {entry.tags}"
    return "quadratic" if quadratic else "n √n" if "√n" in entry.cost else "linear"


def why_not(entry: Method, n: int, args: argparse.Namespace) -> str | None:
    """Why a method is not run at n, None where it is."""
    longest = args.quadratic_n // (4 if "n³" in entry.cost else 1)
    if growth(entry) == "quadratic" and n > longest:
        return f"costs {entry.cost}, timed up to n={longest} (--quadratic-n)"
    try:
        entry.check_budget(args.d, n, n)
    except Unsupported as error:
        return str(error)
    return None


def seconds(work: Call, device: str) -> float:
    begin = perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - begin


def peak_extra_mib(name: str, n: int, args: argparse.Namespace) -> float:
    """Peak memory of one call beyond the inputs; on a CPU this is to run in a process of its own."""
    work = call(name, inputs(n, args), args.d)
    call(name, inputs(2 * args.d, args), args.d)()  # thread pools and kernels are no cost of the method
    if args.device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that nothing hides in it
    return peak_mib(work)


def exponent(times: dict[int, float]) -> float:
    """The slope of log time over log n for n ≥ 2048; NaN for fewer than two of them."""
    points = [(log(n), log(found)) for n, found in times.items() if n >= FIT_FROM]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else nan


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="all", help="names, separated by commas")
    parser.add_argument("--n", default="1024,2048,4096,8192,16384")
    parser.add_argument("--d", type=int, default=128)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--p", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float64", "float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--quadratic-n", type=int, default=4096, help="longest n for methods that cost n²")
    args = parser.parse_args()
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    names = [name for name, entry in METHODS.items() if entry.kind != "user"]
    args.names = names if args.method == "all" else [get(name).name for name in args.method.split(",")]
    args.lengths = sorted(map(int, args.n.split(",")))
    return args


def measured(args: argparse.Namespace) -> tuple[dict, dict, dict]:
    """``{name: {n: seconds}}``, ``{name: {n: MiB}}`` and why a method was left out, ``{name: {reason: first n}}``."""
    rows = [EXACT, *args.names]
    times, peaks, reasons = ({name: {} for name in rows} for _ in range(3))
    # a server that imported everything and computed nothing makes each process small, fresh and quick to start
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["attnprobe.methods"])
    with processes.Pool(1, maxtasksperchild=1) as pool:
        for n in args.lengths:
            qkv, work = inputs(n, args), {}
            for name in rows:
                if name != EXACT and (reason := why_not(get(name), n, args)) is not None:
                    reasons[name].setdefault(reason, n)
                else:
                    work[name] = call(name, qkv, args.d)
            found = {name: [] for name in work}
            for _ in range(args.rounds + 1):
                for name, once in work.items():
                    found[name].append(seconds(once, args.device))
            for name, every in found.items():
                times[name][n] = median(every[1:])  # the first finds cold caches
                if args.memory and args.device == "cuda":
                    peaks[name][n] = peak_extra_mib(name, n, args)
                elif args.memory:
                    peaks[name][n] = pool.apply(peak_extra_mib, (name, n, args))
    return times, peaks, reasons


def main() -> int:
    args = parsed()
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {device}, {args.dtype}, {args.heads} heads, p={args.p}, d={args.d}")
    times, peaks, reasons = measured(args)
    missed = []
    print(f"\n{'seconds (x exact)':18}" + "".join(f"{n:>16}" for n in args.lengths) + "  exponent  cost")
    for name, found in times.items():
        cells = [f"{found[n]:.4f} ({found[n] / times[EXACT][n]:.2f})" if n in found else "-" for n in args.lengths]
        kind, slope = "quadratic" if name == EXACT else growth(get(name)), exponent(found)
        if kind == "linear" and slope > GOAL:
            missed.append(f"{name}: exponent {slope:.2f}, goal {GOAL}")
        print(f"{name:18}" + "".join(f"{cell:>16}" for cell in cells) + f"{slope:10.2f}  {kind}")
    if args.memory:
        print(f"\n{'extra MiB':18}" + "".join(f"{n:>16}" for n in args.lengths))
        for name, found in peaks.items():
            print(f"{name:18}" + "".join(f"{found[n]:16.0f}" if n in found else f"{'-':>16}" for n in args.lengths))
    print(f"\nexponents are fitted on n >= {FIT_FROM}; only those of linear cost are held to {GOAL}")
    for name, why in reasons.items():
        for reason, n in why.items():
            print(f"from n={n} without {name}: {reason.removeprefix(name + ': ')}")
    for line in missed:
        print("missed:", line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
