"""The cost of a call: seconds, floating-point operations and peak memory."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from math import ceil, prod
from pathlib import Path
from timeit import Timer
from typing import Any

import torch
from torch.utils.benchmark import timer as clock
from torch.utils.flop_counter import FlopCounterMode

from ..machine.processes import follow_parent
from ..operators.precision import ONEDNN

Call = Callable[[], Any]
SHORTEST = 0.005  # seconds; a shorter call is repeated within one measurement


def interleaved(
    work: Mapping[str, Call],
    rounds: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, str], None] = lambda done, name: None,
) -> dict[str, list[float]]:
    """The seconds of every call in ``work``: ``rounds`` measurements of each, after one warm-up round.

    A round measures each call once, so that a slow moment of the machine affects all of them. A CPU is timed by
    `timeit` with torch's clock and all of torch's threads, CUDA by two events of the device. A call shorter than 5 ms
    is repeated within a measurement, and the mean is taken.

    Args:
        progress: called before each measurement with the number of measurements done, warm-up included, and the call's
            name.

    >>> {name: len(times) for name, times in interleaved({"sum": lambda: torch.ones(9).sum()}, rounds=3).items()}
    {'sum': 3}
    """
    measure = partial(_on_cuda, device) if torch.device(device).type == "cuda" else _on_cpu
    repeats, seconds, done = {}, {name: [] for name in work}, 0
    for turn in range(rounds + 1):
        for name, once in work.items():
            progress(done, name)
            if turn == 0:
                first = measure(once, 1)  # includes cold caches, thread pools and the choice of kernels
                repeats[name] = 1 if first > 10 * SHORTEST else max(1, ceil(SHORTEST / max(measure(once, 1), 1e-9)))
            else:
                seconds[name].append(measure(once, repeats[name]))
            done += 1
    return seconds


def _on_cpu(once: Call, repeats: int) -> float:
    return Timer(once, timer=clock).timeit(repeats) / repeats


def _on_cuda(device: torch.device | str, once: Call, repeats: int) -> float:
    with torch.cuda.device(device):  # events are recorded in its stream
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(repeats):
            once()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000 / repeats


def counted_flops(once: Call) -> int:
    """The floating-point operations of a call's matrix products, counted by torch.

    A multiplication and an addition count as two. Exponentials, sums, sorts, draws and factorisations (eigenvalues,
    QR, Cholesky) are not counted.

    >>> counted_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    unknown: dict[Any, Any] = {fused: _attention_flops}
    if ONEDNN is not None:  # from the shapes (m, k) and (n, k)
        unknown[ONEDNN] = lambda a, b, *_, **__: 2 * a[0] * a[1] * b[0]
    with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
        once()
    return counter.get_total_flops()


def _attention_flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """The operations of the fused CPU kernel, which torch's counter does not know, from the shapes (…, n, p)."""
    return 2 * prod(q[:-2]) * q[-2] * k[-2] * (q[-1] + v[-1])


def leading_products(cost: str, n: int, d: int | None, p: int) -> float | None:
    """The value of a method's ``cost`` in the registry, in multiply-adds per head.

    Terms within ``O(…)`` have no constant and are left out. The result is None if no other term remains.

    >>> leading_products("4 n d p + O(d³)", 512, 16, 64), leading_products("O(n³)", 512, 16, 64)
    (2097152.0, None)
    >>> leading_products("2 n (d + 16) p", 512, 16, 64)
    2097152.0
    """
    terms = re.sub(r"\+?\s*O\((?:[^()]|\([^()]*\))*\)", "", cost).strip()
    if not terms or ("d" in terms and d is None):
        return None
    sizes = {"n": float(n), "d": float(d or 0), "p": float(p)}
    return _sum(re.findall(r"\d+|[ndp]|[²³√()+]", terms), sizes)


def _sum(tokens: list[str], sizes: Mapping[str, float]) -> float:
    """The value of a sum of products. It removes the tokens that it reads from the front of ``tokens``."""
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
    """The growth of memory during one call, at its peak, in bytes; None if the system cannot measure it.

    Args:
        make: ``make(*args)`` prepares the inputs and returns the call. It runs once before the one that counts: that
            loads thread pools, kernels and libraries with their buffers, which are not a cost of the call. ``make``
            must be importable by name. On a CPU it runs in a new process, forked from one that has imported torch and
            computed nothing, and freed memory is returned to the system. So the call cannot reuse it.

    On a CPU it is the growth of the resident set (Linux only), accurate to the pages that malloc keeps, about 0.1 MiB.
    On CUDA it is the growth of the memory of torch's allocator.

    Raises:
        Exception: any exception of the call. BrokenProcessPool: the system ended its process.
    """
    if torch.device(device).type == "cuda":
        once = make(*args)
        _warm_up(once)
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        once()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if not Path("/proc/self/clear_refs").exists():
        return None
    processes = multiprocessing.get_context("forkserver")  # imports once the modules that every child needs
    processes.set_forkserver_preload([make.__module__, "attnprobe.methods", __name__])
    with ProcessPoolExecutor(1, mp_context=processes, initializer=follow_parent) as pool:
        return pool.submit(_resident_growth, make, args).result()


def _warm_up(once: Call) -> None:
    with suppress(Exception):  # the call that counts reports it
        once()


def _resident_growth(make: Callable[..., Call], args: tuple[Any, ...]) -> int:
    """In a new process: the peak of the resident set during one call, less its size before."""
    import ctypes

    once = make(*args)
    _warm_up(once)
    ctypes.CDLL(None).malloc_trim(0)  # return freed memory, which the call could reuse unseen
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _resident("VmRSS")
    once()
    return max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    """The resident set ``VmRSS`` of this process or its peak ``VmHWM``, in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
