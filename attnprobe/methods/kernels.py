"""Kernels: implementations of exact softmax attention, some in low precision. They compute all entries.

The error of a kernel is rounding. So it is measured against exact float64 attention of *the inputs that the kernel
gets*, next to the error of torch's own attention in the same dtype (see `attnprobe.kernel_errors`). Every kernel casts
Q, K and V to ``dtype`` and casts its output back to their dtype. Every kernel hides the keys that a query does not see:
later ones than its own position, and those outside of a sliding window.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import Unsupported
from ..grammar.arguments import checked
from ..grammar.foreign import reason
from ..operators.blocks import block_rows, row_blocks
from ..operators.visible import Visible
from ..qkv import QKV
from ..reference import attention
from ..rng import Streams
from .base import Approximation, per_head
from .registry import Method, register

Dtype = Literal["own", "bfloat16", "float16", "float32"]
NO_MATRIX = "is a kernel, which gives an output and no matrix"
ROWS = 256  # query rows of a head whose scores are in memory at a time
Kernel = Callable[[Tensor, Tensor, Tensor, QKV], Tensor]  # of Q, K, V in the kernel's dtype; QKV has scale and mask
FACTS = {
    "family": "kernel",
    "kind": "kernel",
    "tags": ("deterministic", "causal", "local", "diagnostic"),
    "budget": None,
    "cost": "2 n² p",
}


@checked()
def working_dtype(entry: Method, options: Mapping[str, Any], qkv: QKV) -> torch.dtype:
    """The dtype to which a kernel casts Q, K and V: its option ``dtype``, or their own dtype."""
    name = options.get("dtype", entry.options["dtype"].default) if "dtype" in entry.options else "own"
    dtype = getattr(torch, str(name), None)
    return dtype if isinstance(dtype, torch.dtype) else qkv.dtype


def _run(qkv: QKV, dtype: str, kernel: Kernel) -> Approximation:
    """The approximation with the output of ``kernel(q, k, v, qkv)``, run in ``dtype``."""
    q, k, v = (x if dtype == "own" else x.to(getattr(torch, dtype)) for x in (qkv.q, qkv.k, qkv.v))
    output = kernel(q, k, v, qkv).to(qkv.dtype)
    return Approximation(None, output, diagnostics={"visited": per_head(qkv.h, qkv.entries)}, no_operator=NO_MATRIX)


def _by_backend(name: str, backend: SDPBackend) -> Kernel:
    def kernel(q: Tensor, k: Tensor, v: Tensor, qkv: QKV) -> Tensor:
        try:
            with warnings.catch_warnings(), sdpa_kernel(backend):
                warnings.simplefilter("ignore")  # torch lists why each backend refuses
                return attention(q, k, v, qkv.scale, qkv.visible)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            where = f"{str(q.dtype)[6:]} on {q.device.type} at p={q.shape[2]}"
            masked = "" if qkv.visible is None else " under this mask"
            # Torch's own texts tell the cases apart, because all are RuntimeErrors; "No" and "no" both occur.
            if "o available kernel" in str(error):
                raise Unsupported(f"{name}: torch has no such kernel for {where}{masked}") from error
            if "allocate memory" in str(error):  # of a CPU
                raise
            raise Unsupported(f"{name}: torch refuses {where}{masked} ({reason(error)[:160]})") from error

    return kernel


@register(
    name="torch:sdpa-flash",
    paper="Dao et al., FlashAttention",
    year=2022,
    oracle="torch scaled_dot_product_attention",
    **FACTS,
)
def sdpa_flash(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax", dtype: Dtype = "own") -> Approximation:
    """``softmax(scale · Q Kᵀ) V`` by torch's flash kernel: scores in tiles, a running maximum and sum in float32.

    It is skipped where torch has no flash kernel for the dtype and device (on CUDA there is one for half precision
    only), and with torch's reason where torch refuses it on this processor.

    Options:
        dtype: round Q, K and V to this dtype first; ``own`` keeps theirs.

    Shapes: output (h, n_q, p_v) in the dtype of Q, K, V. Deterministic; cost ``2 n² p``, memory O(n p).
    """
    return _run(qkv, dtype, _by_backend("torch:sdpa-flash", SDPBackend.FLASH_ATTENTION))


@register(
    name="torch:sdpa-math",
    paper="PyTorch, scaled_dot_product_attention",
    year=2023,
    oracle="torch scaled_dot_product_attention",
    **FACTS,
)
def sdpa_math(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax", dtype: Dtype = "own") -> Approximation:
    """``softmax(scale · Q Kᵀ) V`` by torch's unfused fallback, which computes half precision in float32.

    It runs head by head, because it stores all scores.

    Options:
        dtype: round Q, K and V to this dtype first; ``own`` keeps theirs.

    Shapes: output (h, n_q, p_v) in the dtype of Q, K, V. Deterministic; cost ``2 n² p``, memory n² of one head.
    """
    one_head = _by_backend("torch:sdpa-math", SDPBackend.MATH)

    def kernel(q: Tensor, k: Tensor, v: Tensor, qkv: QKV) -> Tensor:
        heads = [slice(head, head + 1) for head in range(len(q))]
        return torch.cat([one_head(q[head], k[head], v[head], qkv) for head in heads])

    return _run(qkv, dtype, kernel)


@register(
    name="torch:flex",
    paper="Dong et al., Flex Attention",
    year=2024,
    oracle="torch scaled_dot_product_attention",
    **FACTS,
)
def flex(
    qkv: QKV, d: None, *, streams: Streams, target: str = "softmax", dtype: Dtype = "own", compiled: bool = True
) -> Approximation:
    """``softmax(scale · Q Kᵀ) V`` by torch's flex attention, compiled for the device.

    Compiling takes half a minute per dtype, and on a CPU a C++ compiler. If it fails, the kernel is skipped with the
    reason.

    Options:
        dtype: round Q, K and V to this dtype first; ``own`` keeps theirs.
        compiled: false runs torch's unfused version, which stores the scores of all heads and rounds differently.

    Shapes: output (h, n_q, p_v) in the dtype of Q, K, V. Deterministic; cost ``2 n² p``, memory O(n p) compiled.
    """

    def kernel(q: Tensor, k: Tensor, v: Tensor, qkv: QKV) -> Tensor:
        mask = None
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns if it is not compiled
                if qkv.visible is not None:
                    sees = _sees(qkv.visible)
                    mask = create_block_mask(sees, None, None, qkv.n_q, qkv.n_k, device=q.device.type)
                run = _compiled() if compiled else flex_attention
                return run(q[None], k[None], v[None], scale=qkv.scale, block_mask=mask)[0]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # from the compiler, from its subprocesses, or from a device without the kernel
            cause = reason(error)[:160]
            way_out = "; torch:flex:compiled=false runs it unfused" if compiled else ""
            raise Unsupported(f"torch:flex cannot run here ({cause}){way_out}") from error

    return _run(qkv, dtype, kernel)


def _sees(visible: Visible) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether a query sees a key, as flex attention asks for each pair."""
    last, first, sinks = visible.last, visible.first, visible.sinks

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = key <= last[query]
        if first is not None:
            near = key >= first[query]
            seen = seen & (near | (key < sinks) if sinks else near)
        return seen

    return sees


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@register(
    name="torch:int8",
    paper="Zhang et al., SageAttention",
    year=2024,
    oracle="identity: the dequantised scores in float64",
    **FACTS,
)
def int8(
    qkv: QKV,
    d: None,
    *,
    streams: Streams,
    target: str = "softmax",
    dtype: Dtype = "own",
    per: Literal["row", "head"] = "row",
) -> Approximation:
    """``softmax(scale · s_q s_k · Q̂ K̂ᵀ) V`` with the integers Q̂ = round(Q / s_q), K̂ = round(K / s_k) in -127 … 127.

    It is a simulation: the integers are stored as floats. Their products and sums equal those of int8 with int32
    accumulation, exactly up to p = 1040 in float32. Scores and softmax are float32 (float64 for float64 inputs). The
    weights are rounded to the dtype, and their product with V is summed in float32. Unlike in the paper, K is not
    smoothed. V is not quantised.

    Options:
        dtype: round Q, K and V to this dtype first, and the output too; ``own`` keeps theirs.
        per: ``row`` has a step ``s = max|x| / 127`` for each query and each key; ``head`` has one step for all queries
            of a head and one for all its keys.

    Shapes: output (h, n_q, p_v) in the dtype of Q, K, V. Deterministic; cost ``2 n² p``, memory O(n p).
    """

    def kernel(q: Tensor, k: Tensor, v: Tensor, qkv: QKV) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        (q8, q_step), (k8, k_step) = (_quantised(x.to(wide), per) for x in (q, k))
        values, output = v.to(wide), torch.empty(*q.shape[:2], v.shape[2], dtype=v.dtype, device=v.device)
        visible = qkv.visible
        for head in range(len(q)):
            for first, last in row_blocks(q.shape[1], block_rows(q8, k.shape[1], ROWS)):
                # The steps multiply after the product, as int32 accumulators are dequantised.
                scores = (q8[head, first:last] @ k8[head].mT) * (q_step[head, first:last] * k_step[head].mT * qkv.scale)
                if visible is not None:
                    hidden = visible.of(slice(first, last)).hidden(qkv.n_k)
                    scores = scores.masked_fill(hidden, float("-inf"))
                output[head, first:last] = torch.softmax(scores, -1).to(v.dtype).to(wide) @ values[head]
        return output

    return _run(qkv, dtype, kernel)


def _quantised(x: Tensor, per: str) -> tuple[Tensor, Tensor]:
    """Integers (h, n, p) and their steps (h, n, 1) with ``x ≈ integers · step``. The step of zeros is 1."""
    step = x.abs().amax(-1 if per == "row" else (1, 2), keepdim=True) / 127
    step = torch.where(step == 0, torch.ones_like(step), step).expand(-1, x.shape[1], -1)
    return (x / step).round(), step
