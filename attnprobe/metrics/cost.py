"""What one call costs: seconds, floating-point operations, peak memory; and how they grow with n."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, nan
from pathlib import Path
from statistics import linear_regression, median, quantiles
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Timing", "counted_flops", "exponent", "faster_from", "interleaved", "leading_products", "peak_bytes"]

Call = Callable[[], Any]
SHORTEST = 0.005  # seconds: shorter calls are repeated within one measurement
FIT_FROM = 2048  # tokens from which growth is fitted: below, what does not grow with n still counts


@dataclass(frozen=True)
class Timing:
    """The seconds of one call, one for each round.

    >>> Timing((1.0, 2.0, 4.0)).median
    2.0
    """

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles of the rounds, 0 for a single one."""
        if len(self.rounds) < 2:
            return 0.0
        first, _, third = quantiles(self.rounds, n=4, method="inclusive")
        return (third - first) / 2


def interleaved(
    work: Mapping[str, Call],
    rounds: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, str], None] = lambda done, name: None,
) -> dict[str, Timing]:
    """Time every call of ``work`` in turn, ``rounds`` times over, after one call of each that is not counted.

    In turn, so that a machine that slows down slows all of them. On a CPU by `torch.utils.benchmark.Timer` on all of
    torch's threads; on CUDA between two events of the device. A call shorter than 5 ms is repeated, and its mean taken.

    Args:
        progress: called before each measurement with the number of them done, warm-up included, and the call's name.
    """
    measure = _on_cuda if torch.device(device).type == "cuda" else _on_cpu
    repeats, found, done = {}, {name: [] for name in work}, 0
    for turn in range(rounds + 1):
        for name, once in work.items():
            progress(done, name)
            if turn == 0:
                measure(once, 1)  # cold caches, thread pools, kernels that are chosen now
                repeats[name] = max(1, ceil(SHORTEST / max(measure(once, 1), 1e-9)))
            else:
                found[name].append(measure(once, repeats[name]))
            done += 1
    return {name: Timing(tuple(every)) for name, every in found.items()}


def _on_cpu(once: Call, repeats: int) -> float:
    timer = Timer("once()", globals={"once": once}, num_threads=torch.get_num_threads())
    return timer.timeit(repeats).mean


def _on_cuda(once: Call, repeats: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        once()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000 / repeats


def counted_flops(once: Call) -> int:
    """The floating-point operations of the matrix products that a call makes, by torch's own counter.

    A multiplication and an addition count as two. Exponentials, sums, sorts, draws and factorisations (eigenvalues,
    QR, Cholesky) are not products and not counted.

    >>> counted_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={fused: _attention_flops}) as counter:
        once()
    return counter.get_total_flops()


def _attention_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Of the kernel that the counter does not know, from its inputs' shapes (…, n, p)."""
    batch = 1
    for size in q[:-2]:
        batch *= size
    return 2 * batch * q[-2] * k[-2] * (q[-1] + v[-1])


def leading_products(cost: str, n: int, d: int | None, p: int) -> float | None:
    """The leading term of a method's ``cost`` as the registry states it, multiply-adds per head.

    Terms within ``O(…)`` have no constant and are left out; None where no other is left.

    >>> leading_products("4 n d p + O(d³)", 512, 16, 64), leading_products("O(n³)", 512, 16, 64)
    (2097152.0, None)
    >>> leading_products("2 n (d + 16) p", 512, 16, 64)
    2097152.0
    """
    known = re.sub(r"\+?\s*O\((?:[^()]|\([^()]*\))*\)", "", cost).strip()
    if not known or ("d" in known and d is None):
        return None
    sizes = {"n": float(n), "d": float(d or 0), "p": float(p)}
    return _sum(re.findall(r"\d+|[ndp]|[²³√()+]", known), sizes)


def _sum(tokens: list[str], sizes: Mapping[str, float]) -> float:
    """The value of a sum of products; takes what it reads from the front of ``tokens``."""
    total, product = 0.0, 1.0
    while tokens and tokens[0] != ")":
        token = tokens.pop(0)
        if token == "+":
            total, product = total + product, 1.0
            continue
        root = token == "√"
        token = tokens.pop(0) if root else token
        if token == "(":
            factor = _sum(tokens, sizes)
            tokens.pop(0)
        else:
            factor = sizes[token] if token in sizes else float(token)
        if tokens and tokens[0] in "²³":
            factor **= {"²": 2, "³": 3}[tokens.pop(0)]
        product *= factor**0.5 if root else factor
    return total + product


def exponent(cost_at: Mapping[int, float]) -> float:
    """The slope of log cost over log n by least squares for n ≥ 2048; NaN for fewer than two of them.

    >>> round(exponent({1024: 9.0, 2048: 1.0, 4096: 4.0, 8192: 16.0}), 6)
    2.0
    """
    points = [(log(n), log(cost)) for n, cost in cost_at.items() if n >= FIT_FROM and cost > 0]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else nan


def faster_from(method: Mapping[int, float], exact: Mapping[int, float]) -> float | None:
    """The n from which a method takes less time than exact attention; None where it does not at the longest n of both.

    Between the last n at which it is slower and the next, log time is taken for linear in log n. The shortest n where
    it is faster everywhere.

    >>> faster_from({512: 2.0, 1024: 4.0, 2048: 8.0}, {512: 1.0, 1024: 4.0, 2048: 16.0})
    1024.0
    """
    lengths = sorted(set(method) & set(exact))
    gaps = [log(method[n] / exact[n]) for n in lengths]
    if not lengths or gaps[-1] >= 0:
        return None
    slower = max((place for place, gap in enumerate(gaps) if gap >= 0), default=None)
    if slower is None:
        return float(lengths[0])
    (n_0, gap_0), (n_1, gap_1) = ((lengths[place], gaps[place]) for place in (slower, slower + 1))
    return float(n_0 * (n_1 / n_0) ** (gap_0 / (gap_0 - gap_1)))


def peak_bytes(make: Callable[..., Call], *args: Any, device: torch.device | str = "cpu") -> int | None:
    """Peak memory of one call beyond what its process holds before it; None where the system does not tell.

    Args:
        make: ``make(*args)`` gives the call with its inputs made, and ``make(*args, few=True)`` a small one like it,
            whose thread pools, kernels and libraries are no cost of the call. Both must be importable by name: on a
            CPU they run in a process of their own, forked from one that has imported torch and computed nothing, so
            that nothing that was freed before hides in the number.

    On a CPU it is the growth of the resident set (Linux), accurate to the pages that malloc keeps, about 0.1 MiB; on
    CUDA the growth of what torch's allocator gave out.
    """
    if torch.device(device).type == "cuda":
        make(*args, few=True)()
        once = make(*args)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if not Path("/proc/self/clear_refs").exists():
        return None
    with _processes().Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(_resident_growth, (make, args))


def _processes() -> Any:
    """Processes forked from a server that imported what is needed, so that each is small, fresh and quick to start."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["attnprobe.methods", __name__])
    return processes


def _resident_growth(make: Callable[..., Call], args: tuple[Any, ...]) -> int:
    """In a fresh process: the peak of the resident set during one call, less its size before."""
    import ctypes

    make(*args, few=True)()
    once = make(*args)
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that nothing hides in it
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _resident("VmRSS")
    once()
    return max(0, _resident("VmHWM") - before)


def _resident(what: str) -> int:
    """``VmRSS`` or its peak ``VmHWM`` of this process, in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))


def random_inputs(n: int, heads: int, p: int, dtype: torch.dtype, device: torch.device | str) -> tuple[Tensor, ...]:
    """Q, K and V of independent normal numbers, (heads, n, p), the same for the same shape on every device."""
    generator = torch.Generator().manual_seed(n)
    return tuple(torch.randn(3, heads, n, p, generator=generator).to(device=device, dtype=dtype))
