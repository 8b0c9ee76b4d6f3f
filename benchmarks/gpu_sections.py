"""The sections of `gpu.py`: which rows each has, the most telling first."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from guarded import Measure, Row, Subject
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprobe import QKV, Operator, approximate, exact, matrix_errors
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS
from attnprobe.metrics import ExactOutput, output_errors, row_metrics
from attnprobe.metrics.cost import counted_flops
from attnprobe.operators.linalg.differences import Differences
from attnprobe.operators.linalg.spectra import Leading, leading_singular_values
from attnprobe.operators.linalg.spectral import block_size
from attnprobe.reference import attention, exact_output

__all__ = ["DIFFERENCE", "SECTIONS", "Sizes", "in_forwards"]

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
COLUMNS = 32  # of a pass
STEPS = 20  # power iterations
COMPILED_N = 16384  # the largest of peers that are compiled: flex attention took 15 s a call at 131,072 on an H200
SAMPLED = 64  # rows of an output that are compared with a CPU's
TABLE_1 = {"linformer": (256,), "longformer": (257,), "nystromformer": (64, 32)}  # the budgets of the paper's cells
DIFFERENCE = "difference from a CPU's float64"
FORWARD = "forward"


@dataclass(frozen=True)
class Sizes:
    """The sizes of every section; pairs are n and heads."""

    product: int = 8192
    p: int = 128
    several: int = 12
    reference: tuple[tuple[int, int], ...] = (
        *((4096, 1), (131072, 1), (1048576, 1), (32768, 1), (4096, 12), (16384, 12), (131072, 12)),
        *((65536, 1), (16384, 1), (8192, 1), (65536, 12), (32768, 12)),
    )
    passes: tuple[tuple[int, int], ...] = (
        *((4096, 1), (131072, 1), (32768, 1), (4096, 12), (16384, 12), (131072, 12)),
        *((65536, 1), (16384, 1), (65536, 12), (32768, 12)),
    )
    norms: tuple[tuple[int, int], ...] = (
        *((1024, 1), (4096, 1), (16384, 1), (131072, 1), (65536, 1), (4096, 12), (16384, 12), (131072, 12)),
    )
    dense_norms: int = 16384  # the largest
    spectra: tuple[int, ...] = (1024, 4096, 16384, 65536, 131072)
    methods: tuple[int, ...] = (4096, 16384)
    prompts: tuple[int, ...] = (4096, 32768)
    paper: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    d: int = 128
    k: int = 64

    @classmethod
    def small(cls) -> Sizes:
        """Matrices that a CPU measures in seconds."""
        few = ((256, 1), (512, 1), (256, 2))
        return cls(512, 16, 2, few, few, ((512, 1), (512, 2)), 512, (320,), (256,), (256,), (256,), 16, 16)


def peaks(measure: Measure, sizes: Sizes) -> None:
    """The rate of a plain product in each precision."""
    n = sizes.product
    kinds = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
    for name, dtype in kinds.items():
        if name != "tf32" or measure.device.type == "cuda":
            subject = Subject("plain product", n, 1, n, name, 2.0 * n**3)

            def make(name=name, dtype=dtype):
                return product(n, dtype, name == "tf32", measure.device)

            measure.row(subject, make, lambda _: clock(measure.device))


def clock(device: torch.device) -> dict[str, float]:
    """The clock of the GPU's processors just after work, where nvidia-smi tells it."""
    if device.type == "cuda":
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            printed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
            return {"MHz": float(printed.split()[0])}
    return {}


def product(n: int, dtype: torch.dtype, tf32: bool, device: torch.device) -> Callable[[], Tensor]:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))

    def once() -> Tensor:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return a @ b
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return once


def drawn(n: int, heads: int, p: int, device: torch.device, dtype: str = "float32") -> QKV:
    """Q, K and V of independent N(0, 1) numbers, made on the device."""
    generator = torch.Generator(device).manual_seed(0)

    def draw():
        return torch.randn(heads, n, p, generator=generator, device=device).to(getattr(torch, dtype))

    return QKV(draw(), draw(), draw())


def reference(measure: Measure, sizes: Sizes) -> None:
    """Exact ``B V``, and what else computes it."""
    for n, heads in sizes.reference:
        reference_at(measure, n, heads, sizes.p)


def reference_at(measure: Measure, n: int, heads: int, p: int) -> None:
    def row(name: str, dtype: str, make: Callable[[QKV], Callable[[], Tensor]], compared: bool = False) -> None:
        subject = Subject(name, n, heads, p, dtype, 4.0 * heads * n * n * p)

        def inputs():
            return drawn(n, heads, p, measure.device, "float32" if compared else dtype)

        def facts(out):
            return {DIFFERENCE: difference(inputs(), out)} if compared else {}

        measure.row(subject, lambda: make(inputs()), facts)

    row("attnprobe", "float64", lambda qkv: lambda: exact_output(qkv), compared=True)
    row("attnprobe", "float32", lambda qkv: lambda: exact(qkv) @ qkv.v, compared=True)
    row("SDPA, memory-efficient", "float32", lambda qkv: by_backend(SDPBackend.EFFICIENT_ATTENTION, qkv))
    row("SDPA, unfused", "float64", lambda qkv: by_backend(SDPBackend.MATH, qkv))
    row("SDPA, flash", "bfloat16", lambda qkv: by_backend(SDPBackend.FLASH_ATTENTION, qkv))
    if n <= COMPILED_N:
        row("flex attention", "float32", flex)
        row("pykeops", "float64", keops)


def difference(qkv: QKV, out: Tensor) -> float:
    """The largest difference of sampled rows from a dense float64 softmax on the CPU, over the largest entry."""
    index = torch.linspace(0, qkv.n - 1, min(SAMPLED, qkv.n)).long()
    worst = size = 0.0
    for head in range(qkv.h):
        queries = qkv.q[head, index.to(qkv.device)]
        q, k, v = (x.cpu().double() for x in (queries, qkv.k[head], qkv.v[head]))
        true = torch.softmax(q @ k.T * qkv.scale, -1) @ v
        rows = out[head, index.to(out.device)].cpu().double()
        worst = max(worst, float((rows - true).abs().max()))
        size = max(size, float(true.abs().max()))
    return worst / size


def by_backend(backend: SDPBackend, qkv: QKV) -> Callable[[], Tensor]:
    def once() -> Tensor:
        with sdpa_kernel(backend):
            return attention(qkv.q, qkv.k, qkv.v, qkv.scale)

    return once


def flex(qkv: QKV) -> Callable[[], Tensor]:
    if qkv.device.type != "cuda":
        raise Unsupported("compiled for a GPU alone here")
    return lambda: approximate("torch:flex", qkv).output


def keops(qkv: QKV) -> Callable[[], Tensor]:
    try:
        from pykeops.torch import LazyTensor  # pyright: ignore[reportMissingImports]  (optional)
    except ImportError as error:
        raise Unsupported("pykeops is not installed") from error
    q = LazyTensor(qkv.q[:, :, None].contiguous() * qkv.scale)
    k, v = LazyTensor(qkv.k[:, None].contiguous()), LazyTensor(qkv.v[:, None].contiguous())
    return lambda: (q * k).sum(-1).sumsoftmaxweight(v, axis=2)


def passes(measure: Measure, sizes: Sizes) -> None:
    """One product ``EᵀE x`` of 32 columns, E = B - B~ of Nyströmformer, and a forward beside it."""
    for n, heads in sizes.passes:
        for dtype in ("float32", "float64"):
            pass_at(measure, n, heads, dtype, sizes)


def pass_at(measure: Measure, n: int, heads: int, dtype: str, sizes: Sizes) -> None:
    p, device = sizes.p, measure.device

    def forward() -> Callable[[], Tensor]:
        qkv = drawn(n, heads, p, device, dtype)
        if dtype == "float64" and device.type == "cuda":
            return lambda: exact(qkv) @ qkv.v  # SDPA's own in float64 holds n x n
        return lambda: attention(qkv.q, qkv.k, qkv.v, qkv.scale)

    def normal() -> Callable[[], Tensor]:
        qkv, op = inputs_and_operator(n, heads, sizes, device)
        matrices = Differences(exact(qkv).to(getattr(torch, dtype)), [op])
        x = torch.randn(heads, n, COLUMNS, device=device).to(matrices.dtype)
        return lambda: matrices.normal(x, torch.arange(heads))

    one = measure.row(Subject("forward", n, heads, p, dtype, 4.0 * heads * n * n * p), forward)
    products = Subject("EᵀE pass", n, heads, p, dtype, heads * one_pass(n, p, COLUMNS))
    measure.row(products, normal, lambda _: {FORWARD: one.seconds} if one.seconds else {})


def in_forwards(row: Row) -> float | None:
    """How many forwards of the same precision a pass takes."""
    forward = row.facts.get(FORWARD)
    return row.seconds / forward if row.seconds and forward else None


def inputs_and_operator(n: int, heads: int, sizes: Sizes, device: torch.device) -> tuple[QKV, Operator]:
    """Q, K, V, and the operator of Nyströmformer on them."""
    qkv = drawn(n, heads, sizes.p, device)
    op = approximate("nystromformer", qkv, sizes.d).operator
    assert op is not None
    return qkv, op


def norms(measure: Measure, sizes: Sizes) -> None:
    """Certified ``‖E‖₂`` and ``‖E‖_F``; the dense norm, and power iterations, which prove nothing."""
    for n, heads in sizes.norms:
        norms_at(measure, n, heads, sizes)


def norms_at(measure: Measure, n: int, heads: int, sizes: Sizes) -> None:
    def inputs():
        return inputs_and_operator(n, heads, sizes, measure.device)

    def certified() -> Callable[[], dict[str, Tensor]]:
        qkv, op = inputs()
        return lambda: matrix_errors(exact(qkv), op)

    def power() -> Callable[[], Tensor]:
        qkv, op = inputs()
        return lambda: power_norms(qkv, op)

    def dense() -> Callable[[], Tensor]:
        qkv, op = inputs()
        return lambda: dense_norms(qkv, op)

    def value(found):
        return {"‖E‖₂": float(found.max())}

    def subject(name, flops, growth=2.0):
        return Subject(name, n, heads, sizes.p, "float32", flops, growth)

    frobenius = 2.0 * heads * n * n * sizes.d

    def flops(found):
        return frobenius + one_pass(n, sizes.p, block_size(n)) * int(found["matrix_spectral_passes"].sum())

    measure.row(subject("certified ‖E‖₂ and ‖E‖_F", flops), certified, interval)
    iterations = STEPS * heads * one_pass(n, sizes.p, 1)
    measure.row(subject(f"{STEPS} power iterations through SDPA", iterations), power, value)
    if n <= sizes.dense_norms:
        measure.row(subject("dense matrix_norm(2)", None, growth=3.0), dense, value)


def one_pass(n: int, p: int, s: int) -> float:
    """FLOPs of ``EᵀE x`` of one head, x of s columns: scores once, ``B x`` and ``Bᵀ y``."""
    return n * n * (2.0 * p + 4.0 * s)


def interval(found: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest norm, the widest interval and the most passes of the heads."""
    width = found["matrix_spectral_upper"] / found["matrix_spectral_lower"] - 1
    passes = int(found["matrix_spectral_passes"].max())
    return {"‖E‖₂": float(found["matrix_spectral"].max()), "interval": float(width.max()), "passes": passes}


def dense_norms(qkv: QKV, op: Operator) -> Tensor:
    """‖E‖₂ of each head, of a matrix that is held."""
    found = []
    for head in range(qkv.h):
        b = torch.softmax(qkv.q[head] @ qkv.k[head].T * qkv.scale, -1)
        found.append(torch.linalg.matrix_norm(b - op.heads(slice(head, head + 1)).dense()[0], 2))
    return torch.stack(found)


def power_norms(qkv: QKV, op: Operator) -> Tensor:
    """‖E‖₂ of each head: ``B x`` is a forward with V = x, and ``Bᵀ y`` the gradient of V for the gradient y."""
    x = torch.randn(qkv.h, qkv.n, 1, device=qkv.device)
    size = y = x
    for _ in range(STEPS):
        y = attention(qkv.q, qkv.k, x, qkv.scale) - op @ x
        with torch.enable_grad():
            values = x.clone().requires_grad_()
            (back,) = torch.autograd.grad(attention(qkv.q, qkv.k, values, qkv.scale), values, y)
        x = back - op.rmatmul(y)
        size = x.norm(dim=1, keepdim=True)
        x = x / size
    return (size / y.norm(dim=1, keepdim=True)).flatten()


def spectra(measure: Measure, sizes: Sizes) -> None:
    """The leading singular values of B in float64, and all of them of a matrix that is held."""
    for n in sizes.spectra:
        spectra_at(measure, n, sizes)


def spectra_at(measure: Measure, n: int, sizes: Sizes) -> None:
    def leading() -> Callable[[], Leading]:
        b = exact(drawn(n, 1, sizes.p, measure.device))
        return lambda: leading_singular_values(b, sizes.k)

    def dense() -> Callable[[], Tensor]:
        b = exact(drawn(n, 1, sizes.p, measure.device, "float64"))
        return lambda: torch.linalg.svdvals(b.dense()[0])

    def facts(found):
        return {"passes": found.passes, "closed": found.closed}

    def flops(found):
        return found.passes * one_pass(n, sizes.p, sizes.k)

    measure.row(Subject(f"leading {sizes.k} singular values", n, 1, sizes.p, flops=flops), leading, facts)
    measure.row(Subject("dense svdvals", n, 1, sizes.p, growth=3.0), dense)


Configured = tuple[str, int | None, Mapping[str, Any]]  # a method, its budget and options


def methods(measure: Measure, sizes: Sizes) -> None:
    """The output of every method that does not cost n², over that of SDPA."""
    for n in sizes.methods:
        names = [name for name, entry in METHODS.items() if "n²" not in entry.cost and "n³" not in entry.cost]
        methods_at(measure, n, sizes.several, [(name, budget_of(name, sizes.d), {}) for name in names])


def budget_of(name: str, d: int) -> int | None:
    return None if METHODS[name].budget is None else d


def methods_at(measure: Measure, n: int, heads: int, configured: list[Configured]) -> None:
    """Rows of SDPA, then of methods over it; the head dimension is 64."""

    def inputs(dtype="float32"):
        return drawn(n, heads, 64, measure.device, dtype)

    def sdpa(dtype: str) -> Callable[[], Tensor]:
        qkv = inputs(dtype)
        return lambda: attention(qkv.q, qkv.k, qkv.v, qkv.scale)

    def method(name: str, d: int | None, options: Mapping[str, Any]) -> Callable[[], Tensor]:
        qkv = inputs()
        return lambda: approximate(name, qkv, d, **options).output

    over = {}
    for dtype in ("bfloat16", "float32"):
        subject = Subject("SDPA", n, heads, 64, dtype, 4.0 * heads * n * n * 64)
        row = measure.row(subject, lambda dtype=dtype: sdpa(dtype))
        if row.seconds:
            over[f"over SDPA {dtype}"] = row.seconds
    for name, d, options in configured:
        label = name if d is None else f"{name} d={d}"

        def make(one=(name, d, options)):
            return method(*one)

        def flops(_, make=make):
            return float(counted_flops(make()))

        measure.row(Subject(label, n, heads, 64, "float32", flops, growth=1.0), make, lambda _: over)


def of_paper(file: str) -> tuple[Mapping[str, Any], Iterator[tuple[str, Mapping[str, Any]]]]:
    """A packaged sweep, and the names and options of its methods."""
    config = yaml.safe_load((CONFIGS / file).read_text(encoding="utf-8"))
    entries: list[dict[str, Any]] = [{"name": one} if isinstance(one, str) else one for one in config["method"]]
    return config, ((entry["name"], entry.get("options", {})) for entry in entries)


def table_1(measure: Measure, sizes: Sizes) -> None:
    """Table 1 of Nyströmformer: the cells of the paper."""
    config, listed = of_paper("nystromformer_table1.yaml")
    configured = [(name, d, options) for name, options in listed for d in TABLE_1[name]]
    for n in sizes.paper:
        methods_at(measure, n, config["heads"], [one for one in configured if one[1] <= n])


def figure_1(measure: Measure, sizes: Sizes) -> None:
    """The grid of Skyformer's Figure 1: every method and budget of one window, exact output and errors included."""
    config, listed = of_paper("skyformer_fig1.yaml")
    configured = [(name, budget_of(name, d), options) for name, options in listed for d in config["d"]]
    for n in sizes.paper:
        if n in config["n"] or n == min(sizes.paper):
            subject = Subject("the grid of one window", n, sizes.several, 64, "float32")
            measure.row(subject, lambda n=n: grid(drawn(n, sizes.several, 64, measure.device), configured), cells)


def cells(count: int) -> dict[str, int]:
    return {"cells": count}


def grid(qkv: QKV, configured: list[Configured]) -> Callable[[], int]:
    """Errors of every method at every budget that it has here; how many cells there are."""

    def once() -> int:
        true, count = ExactOutput.of(exact_output(qkv)), 0
        for name, d, options in configured:
            with suppress(UsageError):
                output_errors(true, approximate(name, qkv, d, **options), qkv)
                count += 1
        return count

    return once


def decoding(measure: Measure, sizes: Sizes) -> None:
    """Steps behind a prompt: exact, over what a policy keeps, the policy's choice, and the numbers of each row."""
    for n in sizes.prompts:
        decoding_at(measure, n, sizes)


def decoding_at(measure: Measure, n: int, sizes: Sizes) -> None:
    """Rows of one prompt of n tokens; ``over exact`` compares with exact attention of the same steps."""
    from attnprobe.measure.inject.policy import PromptPolicy, Steps, kept_keys, prompt_text  # needs pydantic

    heads, d = sizes.several, min(max(n // 10, 1), n)

    def causal() -> QKV:
        qkv = drawn(n + SAMPLED, heads, 64, measure.device)
        return QKV(qkv.q, qkv.k, qkv.v, causal=True)

    def behind(qkv: QKV) -> Steps:
        places = torch.arange(n, n + SAMPLED, device=qkv.device)
        return Steps(0, 0, 0, qkv.replace(q=qkv.q[:, n:], positions=places), n)

    def whole() -> Callable[[], Tensor]:
        qkv = causal()
        return lambda: behind(qkv).whole[0]

    def kept(name: str) -> Callable[[], Tensor]:
        text = prompt_text(causal(), n)
        return lambda: kept_keys(METHODS[name], text, n, d)

    def steps(name: str) -> Callable[[], Tensor]:
        qkv = causal()
        text = prompt_text(qkv, n)
        policy = PromptPolicy(METHODS[name], d, 0, {}, n, lambda layer, row: text)
        return lambda: policy.row(behind(qkv))[0]

    def rows(name: str) -> Callable[[], Mapping[str, Tensor]]:
        qkv = behind(causal()).qkv
        return lambda: row_metrics(exact(qkv), approximate(name, qkv, d), qkv)

    exactly = measure.row(Subject(f"exact, {SAMPLED} steps", n, heads, 64, "float32"), whole)
    over = {"over exact": exactly.seconds} if exactly.seconds else {}
    for what, names, make in (
        ("keys kept", ("snapkv", "h2o", "knorm", "keydiff"), kept),
        ("steps", ("snapkv", "window", "quest", "topk", "magicpig"), steps),
        ("row metrics", ("window", "quest", "topk"), rows),
    ):
        for name in names:
            subject = Subject(f"{name} d={d}, {what}", n, heads, 64, "float32", growth=1.0)
            measure.row(subject, lambda make=make, name=name: make(name), lambda _: over)


SECTIONS: dict[str, Callable[[Measure, Sizes], None]] = {
    "peaks": peaks,
    "reference": reference,
    "pass": passes,
    "norms": norms,
    "spectra": spectra,
    "methods": methods,
    "decoding": decoding,
    "table 1": table_1,
    "figure 1": figure_1,
}
