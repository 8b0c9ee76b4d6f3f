"""Exact attention, the reference of all errors."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .errors import Unsupported, unknown
from .grammar.arguments import checked
from .operators import GaussianAttention, Operator, Padded, Scaled, SoftmaxAttention
from .operators.blocks import row_blocks
from .operators.terms import Terms
from .operators.threads import side_by_side
from .operators.visible import Visible
from .qkv import QKV

TARGETS = ("softmax", "gaussian")
ROWS = 512  # the least of a head that a thread of a CPU computes at a time
JOBS = 4  # of a thread: few copies of keys, and none waits long for another
# below this number of scores threads cost more than they save
SMALL = 2**20  # threads take a millisecond to begin


@checked()
def exact(qkv: QKV, target: str = "softmax") -> Operator:
    """The exact operator, (h, n_q, n_k), in the dtype of ``qkv``.

    ``softmax`` is ``B = softmax(scale · Q Kᵀ)``; ``gaussian`` is ``C_ij = exp(-‖q_i - k_j‖² · scale/2)``. Padded rows
    and columns are zero. So are entries of keys that a query does not see: later keys of causal inputs, and keys
    outside of a sliding window. A row of B is a softmax over the visible keys, times `sink_share` if the head has a
    sink. A cap and a bias of the inputs change the scores before the softmax. No n x n matrix is stored; for the cost
    of products see `attnprobe.operators.SoftmaxAttention`.

    Raises:
        UsageError: an unknown target. Unsupported: ``gaussian`` of inputs with a cap or a bias.

    >>> B = exact(QKV(*torch.ones(3, 1, 4, 2)))
    >>> B.row_sums()
    tensor([[1., 1., 1., 1.]])
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    inner = qkv.compressed()
    check_terms(inner, target)
    kind = SoftmaxAttention if target == "softmax" else GaussianAttention
    operator = kind(inner.q, inner.shared_k, inner.scale, inner.visible, inner.terms)
    if inner.sink_logits is not None and isinstance(operator, SoftmaxAttention):
        operator = Scaled(operator, left=sink_share(operator.log_normalizer(), inner.sink_logits))
    return operator if qkv.mask is None else Padded(operator, qkv.mask)


def check_terms(qkv: QKV, target: str) -> None:
    """Refuse the Gaussian target of inputs whose scores have a cap or a bias."""
    if qkv.terms is not None and target != "softmax":
        raise Unsupported(f"its scores have {qkv.terms}, and the target {target} has no form for it")


def exact_output(qkv: QKV, target: str = "softmax") -> Tensor:
    """``B V`` or ``C V`` in float64, (h, n_q, p_v), for any dtype of ``qkv``.

    On a CPU each thread computes at least 512 rows of a KV head at a time, against the keys that they see. Other
    devices compute one KV head after another. So only a few heads are copied to float64. Cost ``h n_q n_k (p + p_v)``
    multiply-adds, about half of them for causal inputs on a CPU; memory O(h n p). The relative error is 1e-15.

    Args:
        target: ``softmax`` or ``gaussian``.

    Raises:
        UsageError: an unknown target.
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    inner = qkv.compressed()
    check_terms(inner, target)
    out = torch.empty(inner.h, inner.n_q, inner.p_v, dtype=torch.float64, device=inner.device)
    with torch.no_grad():
        jobs = [
            partial(_compute_rows, inner, target, head, out, *rows)
            for head in range(inner.kv_heads)
            for rows in row_blocks(inner.n_q, _rows_at_a_time(inner))
        ]
        if inner.h * inner.n_q * inner.n_k < SMALL:
            for job in jobs:
                job()
        else:
            side_by_side(jobs, inner.device)
    if qkv.mask is None:
        return out
    # a padded token has no output
    padded = out.new_zeros(qkv.h, qkv.n_q, qkv.p_v)
    padded[:, qkv.mask] = out
    return padded


def _rows_at_a_time(qkv: QKV) -> int:
    """The rows of a KV head in a job. Where later rows see more keys, the least, so that a job skips keys."""
    if qkv.device.type != "cpu":
        return qkv.n_q
    if qkv.visible is not None:
        return ROWS
    share = qkv.kv_heads * qkv.n_q // (JOBS * torch.get_num_threads())
    return ROWS * max(1, share // ROWS)


def _compute_rows(qkv: QKV, target: str, head: int, out: Tensor, start: int, stop: int) -> None:
    """Compute rows of ``out`` of the query heads of a KV head; a CPU skips keys that none of these rows sees."""
    visible, seen = qkv.visible, qkv.n_k
    if visible is not None and qkv.device.type == "cpu":  # on a GPU the number would have to be waited for
        seen = int(visible.last[start:stop].max()) + 1
    k, v = (x[head : head + 1, :seen].double() for x in (qkv.shared_k, qkv.shared_v))
    heads = slice(head * qkv.group, (head + 1) * qkv.group)
    q = qkv.q[heads, start:stop].to(k)
    kind = SoftmaxAttention if target == "softmax" else GaussianAttention
    seen_by = None if visible is None else visible.of(slice(start, stop))
    terms = None if qkv.terms is None else qkv.terms.of(heads, slice(start, stop), slice(seen)).to(torch.float64)
    operator = kind(q, k, qkv.scale, seen_by, terms)
    v = v.expand(len(q), -1, -1)
    rows = operator.product_once(v) if isinstance(operator, SoftmaxAttention) else operator @ v
    if qkv.sink_logits is not None and isinstance(operator, SoftmaxAttention):
        log_sum = operator.log_normalizer()
        rows = rows * sink_share(log_sum, qkv.sink_logits[heads].to(log_sum))[..., None]
    out[heads, start:stop] = rows.to(out.device)


def own_output(qkv: QKV) -> Tensor:
    """``B V`` in the dtype of ``qkv``, (h, n_q, p_v), of inputs without a mask: by `attention` if that is possible."""
    fused = fused_output(qkv)
    return exact(qkv).matmul_shared(qkv.shared_v) if fused is None else fused


def masked_output(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor) -> Tensor:
    """The output of queries that see keys as ``visible`` says, (n_q, n_k) bool: by `attention` if that is possible."""
    fused = unless_refused(q, k, v, scale, visible)
    if fused is not None:
        return fused
    hidden = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, -inf)
    return SoftmaxAttention(q, k, scale, terms=Terms(bias=hidden[None])).matmul_shared(v)


def fused_output(qkv: QKV) -> Tensor | None:
    """``B V`` by torch's fused kernel (see `attention`); None where it has no form of the inputs, or refuses them."""
    if not _is_plain(qkv):
        return None
    return unless_refused(qkv.q, qkv.shared_k, qkv.shared_v, qkv.scale, qkv.visible)


def unless_refused(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Visible | Tensor | None) -> Tensor | None:
    """`attention`; None where torch refuses its fused kernel.

    It does in half precision on some processors (AMX with ``ATEN_CPU_CAPABILITY=default``).
    """
    try:
        return attention(q, k, v, scale, visible)
    # a RuntimeError too, but no refusal: the cell must fail for want of memory
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None


def _is_plain(qkv: QKV) -> bool:
    """Whether `attention` computes the attention of ``qkv``: over all keys, or causal and without a window or sinks."""
    if qkv.sink_logits is not None or qkv.terms is not None:
        return False
    return qkv.visible is None or (qkv.sliding_window is None and qkv.square)


def sink_share(log_normalizer: Tensor, logits: Tensor) -> Tensor:
    """``D / (D + exp(sink))`` of each row, (h, n_q): the weight that the keys of a row have beside a sink.

    Args:
        log_normalizer: ``log D_i``, (h, n_q). logits: the sink of each head, (h,).
    """
    return torch.sigmoid(log_normalizer - logits[:, None])


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Visible | Tensor | None = None) -> Tensor:
    """``softmax(scale · q kᵀ) v`` by torch's fused kernel, (h, n_q, p_v), in the dtype of its arguments.

    torch uses the kernel only for 4-D tensors with equal head dimensions. For 3-D tensors, or ``p_v ≠ p``, it silently
    stores n x n matrices (1.7 GiB at n = 4096 with 12 heads). So the smaller dimension is padded with zero columns.
    They change neither the scores nor the other columns of the output.

    Args:
        q: (h, n_q, p). k: (h_kv, n_k, p). v: (h_kv, n_k, p_v).
        visible: the keys that each query sees, or whether it sees each, (n_q, n_k) bool; None means all.

    Cost ``2 h n_q n_k max(p, p_v)`` multiply-adds; memory O(h n p), and ``n_q n_k`` bytes for a mask that is not the
    causal one of the last tokens.
    """
    masked = _mask(visible, q.shape[1], k.shape[1])
    p, p_v = q.shape[-1], v.shape[-1]
    if p != p_v:  # a pad of nothing copies too
        q, k, v = (functional.pad(x, (0, max(p, p_v) - x.shape[-1])) for x in (q, k, v))
    q = q.unflatten(0, (len(k), -1))  # (h_kv, group, n, p)
    k, v = (x[:, None].expand(-1, q.shape[1], -1, -1) for x in (k, v))
    out = functional.scaled_dot_product_attention(q, k, v, scale=scale, **masked)
    return out.flatten(0, 1)[..., :p_v]


def _mask(visible: Visible | Tensor | None, n_q: int, n_k: int) -> dict[str, Any]:
    """The arguments by which torch's attention hides keys.

    ``is_causal`` puts the first query at the first key. So it is for as many queries as keys only.
    """
    if visible is None:
        return {}
    if isinstance(visible, Tensor):
        return {"attn_mask": visible}
    if visible.first is None or not (visible.first > visible.sinks).any():  # no window hides a key
        last = visible.last
        if torch.equal(last, torch.arange(n_k - n_q, n_k, device=last.device)):
            if n_q == n_k:
                return {"is_causal": True}
            if last.device.type == "cuda":  # with a mask of numbers no flash kernel runs there
                # its module imports torch's compiler, which takes a third of the start of a command
                from torch.nn.attention.bias import causal_lower_right

                return {"attn_mask": causal_lower_right(n_q, n_k)}
        # every query sees all keys, such as one query behind a cache
        if (last == n_k - 1).all():
            return {}
    return {"attn_mask": ~visible.hidden(n_k)}
