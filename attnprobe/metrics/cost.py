"""What one call costs: seconds, floating-point operations, peak memory; and how they grow with n."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from math import ceil
from pathlib import Path
from timeit import Timer
from typing import Any

import torch
from torch.utils.benchmark import timer as clock
from torch.utils.flop_counter import FlopCounterMode

from ..processes import follow_parent

__all__ = ["counted_flops", "interleaved", "leading_products", "peak_bytes"]

Call = Callable[[], Any]
SHORTEST = 0.005  # seconds: shorter calls are repeated within one measurement


def interleaved(
    work: Mapping[str, Call],
    rounds: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, str], None] = lambda done, name: None,
) -> dict[str, list[float]]:
    """Seconds of every call of ``work``, timed in turn ``rounds`` times over, after turns that are not counted.

    In turn, so that a machine that slows down slows all of them. On a CPU by `timeit` on torch's own clock, with all of
    torch's threads; on CUDA between two events of the device. A call shorter than 5 ms is repeated, and its mean taken.

    Args:
        progress: called before each measurement with the number of them done, warm-up included, and the call's name.

    >>> {name: len(found) for name, found in interleaved({"sum": lambda: torch.ones(9).sum()}, rounds=3).items()}
    {'sum': 3}
    """
    measure = _on_cuda if torch.device(device).type == "cuda" else _on_cpu
    repeats, found, done = {}, {name: [] for name in work}, 0
    for turn in range(rounds + 1):
        for name, once in work.items():
            progress(done, name)
            if turn == 0:
                first = measure(once, 1)  # cold caches, thread pools, kernels that are chosen now
                repeats[name] = 1 if first > 10 * SHORTEST else max(1, ceil(SHORTEST / max(measure(once, 1), 1e-9)))
            else:
                found[name].append(measure(once, repeats[name]))
            done += 1
    return found


def _on_cpu(once: Call, repeats: int) -> float:
    return Timer(once, timer=clock).timeit(repeats) / repeats


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


def peak_bytes(make: Callable[..., Call], *args: Any, device: torch.device | str = "cpu") -> int | None:
    """Peak memory of one call beyond what its process holds before it; None where the system does not tell.

    Args:
        make: ``make(*args)`` gives the call with its inputs made, and ``make(*args, few=True)`` a small one like it,
            whose thread pools, kernels and libraries are no cost of the call; it may fail. It must be importable by
            name: on a CPU it runs in a process of its own, forked from one that has imported torch and computed
            nothing, so that nothing that was freed before hides in the number.

    On a CPU it is the growth of the resident set (Linux), accurate to the pages that malloc keeps, about 0.1 MiB; on
    CUDA the growth of what torch's allocator gave out.

    Raises:
        Exception: whatever the call raises; BrokenProcessPool where the system ended its process.
    """
    if torch.device(device).type == "cuda":
        _rehearsed(make, args)
        once = make(*args)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if not Path("/proc/self/clear_refs").exists():
        return None
    processes = multiprocessing.get_context("forkserver")  # which imports once what every child needs
    processes.set_forkserver_preload([make.__module__, "attnprobe.methods", __name__])
    with ProcessPoolExecutor(1, mp_context=processes, initializer=follow_parent) as pool:
        return pool.submit(_resident_growth, make, args).result()


def _rehearsed(make: Callable[..., Call], args: tuple[Any, ...]) -> None:
    with suppress(Exception):  # a small call may be one that cannot be: the real one says so
        make(*args, few=True)()


def _resident_growth(make: Callable[..., Call], args: tuple[Any, ...]) -> int:
    """In a fresh process: the peak of the resident set during one call, less its size before."""
    import ctypes

    _rehearsed(make, args)
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
