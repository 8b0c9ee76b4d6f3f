"""Literal twins of the dyadic form: each row by itself, its leaf key by key, each earlier block by its method's twin.

``BLOCKS[name](block, d, draws, target, **options)`` gives a function of a query: the entries of the block's keys before
normalisation, and their part of D~.
"""

from collections.abc import Callable
from math import exp

import torch
from torch import Tensor
from twins import _dot, gaussian_of, lifted, razavi_steps, segments, skyformer_inverse, softmax_of
from twins_coresets import thinformer_keys, wildcat_kernel, wildcat_pivots

from attnprobe.qkv import QKV

Entries = Callable[[list[float]], tuple[Tensor, float]]


def over(landmarks: Tensor, scale: float, weights: Tensor, mass: Tensor | None = None) -> Entries:
    """``Σ_c exp(s q·x_c) w_cj``, and ``Σ_c exp(s q·x_c) m_c`` or their sum."""

    def entries(query: list[float]) -> tuple[Tensor, float]:
        left = torch.tensor([exp(scale * _dot(query, x)) for x in landmarks.tolist()], dtype=torch.float64)
        row = left @ weights
        return row, float(row.sum() if mass is None else left @ mass)

    return entries


def wildcat(block: QKV, d, draws, target, **options) -> Entries:
    h = wildcat_kernel(block, **options)
    pivots = wildcat_pivots(h, draws["pivot_numbers"].tolist())
    return over(block.k[0, pivots].double(), block.scale, torch.linalg.inv(h[pivots][:, pivots]) @ h[pivots])


def thinformer(block: QKV, d, draws, target, **options) -> Entries:
    keys = thinformer_keys(block, d, draws["halving_numbers"].tolist(), **options)
    weights = torch.zeros(len(keys), block.n_k, dtype=torch.float64)
    weights[range(len(keys)), keys] = block.n_k / len(keys)
    return over(block.k[0, keys].double(), block.scale, weights)


def nystromformer(block: QKV, d, draws, target, *, inverse="schulz") -> Entries:
    q_means, k_means = segments(block.q[0].double(), d), segments(block.k[0].double(), d)
    a = softmax_of(q_means, k_means, block.scale)
    w = softmax_of(q_means, block.k[0].double(), block.scale)
    start = a.T / (max(float(x.sum()) for x in a.T) * max(float(x.sum()) for x in a))
    z = torch.linalg.pinv(a) if inverse == "pinv" else razavi_steps(a, start, 6)
    size = block.n_k / d
    return over(k_means, block.scale, size * z @ w, torch.full((d,), size, dtype=torch.float64))


def skeinformer(block: QKV, d, draws, target, *, ablation="none") -> Entries:
    columns, k = draws["columns"].tolist(), block.k[0].tolist()

    def entries(query: list[float]) -> tuple[Tensor, float]:
        scores = [block.scale * _dot(query, k[j]) for j in columns]
        g = 0.0 if ablation == "simple-norm" else exp(sum(scores) / d)
        row = torch.full((block.n_k,), g, dtype=torch.float64)
        for j, score in zip(columns, scores, strict=True):
            row[j] = exp(score)
        return row, float(row.sum())

    return entries


def skyformer(block: QKV, d, draws, target) -> Entries:
    marks = lifted(block)[draws["indices"]].double()
    core, keys = gaussian_of(marks, marks, block.scale), block.k[0].double()
    inverse, gamma = ("schulz", 0.1) if target == "gaussian" else ("pinv", 0.0)
    weights = skyformer_inverse(core, inverse, gamma, 6, "paper", None) @ gaussian_of(marks, keys, block.scale)
    if target == "gaussian":

        def rows(query):
            return gaussian_of(torch.tensor([query], dtype=torch.float64), marks, block.scale)[0] @ weights

        return lambda query: (rows(query), 0.0)

    def half(x):
        return torch.tensor([exp(block.scale / 2 * _dot(row, row)) for row in x.tolist()], dtype=torch.float64)

    return over(marks, block.scale, weights * half(keys) / half(marks)[:, None])


BLOCKS = {
    "nystromformer": nystromformer,
    "skeinformer": skeinformer,
    "skyformer": skyformer,
    "thinformer": thinformer,
    "wildcat": wildcat,
}


def earlier(leaves: int) -> list[tuple[int, int]]:
    """The blocks of the first ``leaves`` leaves, by the binary digits of their number, the largest first."""
    blocks, start = [], 0
    for digit in reversed(range(leaves.bit_length())):
        if leaves >> digit & 1:
            blocks.append((start, start + 2**digit))
            start += 2**digit
    return blocks


def dyadic(name: str):
    def causal(qkv: QKV, d, draws, target, **options) -> Tensor:
        size, out = 2 * d, torch.zeros(qkv.n, qkv.n, dtype=torch.float64)
        kernel = gaussian_of if target == "gaussian" else None
        for i in range(qkv.n):
            query, total, leaf = qkv.q[0, i].double().tolist(), 0.0, i // size
            for first, last in earlier(leaf):
                start, stop = first * size, last * size
                q, k, v = (x[:, start:stop] for x in (qkv.q, qkv.k, qkv.v))
                block = QKV(q, k, v, qkv.scale)
                own = {key.split(":")[0]: x for key, x in draws.items() if key.endswith(f":{start}-{stop}")}
                row, mass = BLOCKS[name](block, d, own, target, **options)(query)
                out[i, start:stop], total = row, total + mass
            for j in range(leaf * size, i + 1):
                key = qkv.k[0, j].double()
                if kernel is None:
                    out[i, j] = exp(qkv.scale * _dot(query, key.tolist()))
                else:
                    out[i, j] = kernel(qkv.q[:1, i].double(), key[None], qkv.scale)[0, 0]
                total += float(out[i, j])
            if target != "gaussian":
                out[i] /= total
        return out

    return causal


CAUSAL = {name: dyadic(name) for name in BLOCKS}
