"""Fused products on a device beside torch's: for each case the largest difference, over the largest entry."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnprobe import QKV, approximate, exact, matrix_errors, spectra
from attnprobe.linalg.differences import Differences
from attnprobe.operators import GaussianAttention, SoftmaxAttention, UnnormalisedAttention
from attnprobe.operators.fused import is_fused
from attnprobe.reference import exact_output
from attnprobe.visible import Visible

KINDS = (SoftmaxAttention, GaussianAttention, UnnormalisedAttention)
SIZES = [  # n_q, n_k, p, columns, heads: below, at and beyond the ends of tiles
    (1, 1, 1, 1, 1),
    (64, 64, 32, 16, 1),
    (65, 129, 40, 5, 2),
    (130, 130, 16, 33, 2),
    (150, 70, 64, 130, 1),
]


def both(make: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What the Triton kernels give, and torch's."""
    actual = []
    for name in ("triton", "torch"):
        os.environ["ATTNPROBE_KERNELS"] = name
        actual.append(make().detach().double())
    return actual[0], actual[1]


def off(make: Callable[[], Tensor]) -> float:
    ours, other = both(make)
    assert ours.shape == other.shape
    return float((ours - other).abs().max() / other.abs().max())


def products(dtype: torch.dtype, device: str) -> Iterator[tuple[str, float]]:
    """Every kind of matrix and size, with and without hidden keys, and with large scores."""
    draws = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draws, dtype=dtype).to(device)

    for kind in KINDS:
        for n_q, n_k, p, c, h in SIZES:
            q, k, x, y = normal(h, n_q, p), normal(h, n_k, p), normal(h, n_k, c), normal(h, n_q, c)
            for seen in (None, Visible(torch.arange(n_q, device=device).clamp(max=n_k - 1))):

                def op(q=q, k=k, seen=seen, kind=kind):
                    return kind(q, k, q.shape[2] ** -0.5, visible=seen)

                label = f"{kind.__name__} {n_q}x{n_k} p={p} c={c}{'' if seen is None else ' causal'}"
                yield label, off(lambda op=op, x=x: op() @ x)
                yield f"{label} transposed", off(lambda op=op, y=y: op().rmatmul(y))
    q, k, x, y = normal(1, 130, 16) * 30, normal(1, 140, 16) * 30, normal(1, 140, 3), normal(1, 130, 3)
    yield "large scores", off(lambda: SoftmaxAttention(q, k, 1.0) @ x)
    yield "large scores transposed", off(lambda: SoftmaxAttention(q, k, 1.0).rmatmul(y))

    def views():
        return SoftmaxAttention(q.mT.contiguous().mT, k.flip(1), 0.01) @ x.flip(2)

    yield "views", off(views)
    last = torch.randint(0, 140, (130,), generator=draws).to(device)
    yield "any last keys", off(lambda: SoftmaxAttention(q, k, 0.01, Visible(last)) @ x)
    yield "any last keys transposed", off(lambda: SoftmaxAttention(q, k, 0.01, Visible(last)).rmatmul(y))


def used(device: str) -> Iterator[tuple[str, float]]:
    """What is made of float64 products: references, masks, intervals, spectra."""
    draws = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 140, 16, generator=draws, dtype=torch.float64).to(device) for _ in range(3))
    mask = (torch.rand(140, generator=draws) > 0.2).to(device)
    plain = QKV(q, k, v)
    yield "exact output", off(lambda: exact_output(plain, "gaussian"))
    yield "masked", off(lambda: exact(QKV(q, k, v, mask=mask)) @ v)
    yield "heads", off(lambda: exact(plain).heads(slice(1, 2)) @ v[1:])
    yield "leading singular values", off(lambda: spectra(QKV(q[:1], k[:1], v[:1]), k=16)[0].values)
    q, k, v = (torch.randn(1, 260, 16, generator=draws, dtype=torch.float64).to(device) for _ in range(3))
    causal = QKV(q, k, v, causal=True)
    op = approximate("window", causal, 20).operator
    assert op is not None
    names = ("matrix_spectral", "matrix_spectral_lower", "matrix_spectral_upper", "matrix_frobenius")

    def errors() -> Tensor:
        actual = matrix_errors(exact(causal), op)
        return torch.stack([actual[name] for name in names])

    yield "certified norms", off(errors)


def facts(dtype: torch.dtype, device: str) -> dict[str, Any]:
    """What no difference shows."""
    os.environ["ATTNPROBE_KERNELS"] = "triton"
    draws = torch.Generator().manual_seed(2)
    q, k, x = (torch.randn(1, 130, 16, generator=draws, dtype=dtype).to(device) for _ in range(3))
    op = SoftmaxAttention(q, k, 0.25)
    first, turned = op @ x, op.rmatmul(x)
    again = SoftmaxAttention(q, k, 0.25)
    expected = SoftmaxAttention(q.clone().requires_grad_(), k, 0.25)
    broken = q.clone()
    broken[0, 3, 2] = float("nan")
    rows = torch.isnan((SoftmaxAttention(broken, k, 0.25) @ x)[0]).all(-1)
    passes = Differences(op.to(torch.float64), [None])
    passes.normal(torch.ones(1, 130, 2, dtype=torch.float64, device=device), torch.tensor([0]))
    return {
        "fused": is_fused(op),
        "fused passes": passes._fused(slice(0, 1)) is not None,
        "blocks in float32": Differences(op.to(torch.float32), [None])._fused(slice(0, 1)) is None,
        "repeatable": torch.equal(again.rmatmul(x), turned) and torch.equal(again @ x, first),
        "row sums": float((op.row_sums().double() - 1).abs().max()),
        "gradient": not is_fused(expected) and (expected @ x).requires_grad,
        "half": is_fused(SoftmaxAttention(q.half(), k.half(), 0.25)),
        "rows of NaN": rows.nonzero()[:, 0].tolist(),
        "dtype": first.dtype == dtype,
    }


def compared(dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The differences of all cases in a dtype, and the facts."""
    differences = dict(products(dtype, device))
    if dtype == torch.float64:
        differences |= dict(used(device))
    return {"differences": differences, "facts": facts(dtype, device)}


def wrong(actual: dict[str, Any], same: float, large: float) -> dict[str, Any]:
    """What of `compared` does not hold: differences beyond ``same``, of large scores beyond ``large``, and facts."""
    differences, facts = actual["differences"], dict(actual["facts"])
    off = {name: value for name, value in differences.items() if not value <= (large if "large" in name else same)}
    holds = {
        "row sums": facts.pop("row sums") < same,
        "rows of NaN": facts.pop("rows of NaN") == [3],
        "half": facts.pop("half") is False,
        **facts,
    }
    return off | {name: value for name, value in holds.items() if value is not True}
