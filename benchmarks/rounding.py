"""The emulation of half precision against code that really runs in it, on real Q, K and V.

    python benchmarks/rounding.py --model minilm --layer 0,3,5 --n 512

prints the table of docs/guide/rounding.md: for each code and format the ratio of the emulated to the real norm of the
rounding error, over the heads of all layers; the share of heads within 1.25; and the heads with outputs that are not
finite, really and emulated.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from linformer import LinformerSelfAttention
from measuring import Goal, arguments, finish
from nystrom_attention import NystromAttention
from performer_pytorch import FastAttention
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprobe import QKV, load_qkv
from attnprobe.rounding import emulated
from attnprobe.rounding.published import Part

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
D = 64
SHARE = 0.95  # of heads within 1.25


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def kernel(backend: SDPBackend) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v)

    return attention


def codes(qkv: QKV) -> Iterator[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
    """The name of each code, the code, and its inputs in float64."""
    parts = tuple(x.double()[None] for x in (qkv.q, qkv.k, qkv.v))
    joined = torch.cat([x.transpose(1, 2).flatten(2) for x in parts], -1)
    yield "plain attention", plain, parts
    yield "torch, math", kernel(SDPBackend.MATH), parts
    yield "torch, flash (one operation)", kernel(SDPBackend.FLASH_ATTENTION), parts
    of_linformer = LinformerSelfAttention(dim=qkv.h * qkv.p, seq_len=qkv.n, k=D, heads=qkv.h)
    of_linformer.to_q, of_linformer.to_k, of_linformer.to_v = Part(0), Part(1), Part(2)
    of_linformer.to_out = nn.Identity()
    yield "linformer", of_linformer, (joined,)
    nystrom = NystromAttention(dim=qkv.h * qkv.p, dim_head=qkv.p, heads=qkv.h, num_landmarks=D, residual=False)
    nystrom.to_qkv = nystrom.to_out = nn.Identity()
    yield "nystrom-attention", nystrom, (joined,)
    yield "performer-pytorch", FastAttention(qkv.p, nb_features=D), parts


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def heads(x: Tensor, h: int) -> Tensor:
    """(h, n, p) of an output (1, n, h·p) or (1, h, n, p)."""
    return x[0] if x.dim() == 4 else x[0].unflatten(-1, (h, -1)).transpose(0, 1)


def compared(
    code: Callable[..., Tensor], inputs: tuple[Tensor, ...], name: str, h: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The ratio of the norms of both errors, and the heads that are lost really and emulated, (h,) each."""
    dtype = FORMATS[name]

    def of(kind: torch.dtype) -> Callable[..., Tensor]:
        return copy.deepcopy(code).to(kind).eval() if isinstance(code, nn.Module) else code

    with torch.no_grad():
        with default_dtype(torch.float64):
            exact = heads(of(torch.float64)(*inputs), h)
            ours = heads(emulated(of(torch.float64), inputs, name)[0], h)
        with default_dtype(dtype):
            real = heads(of(dtype)(*(x.to(dtype) for x in inputs)), h).double()
    lost = [~torch.isfinite(x).flatten(1).all(1) for x in (real, ours)]
    of_real, of_ours = (
        torch.linalg.matrix_norm((x - exact).masked_fill(gone[:, None, None], 0), 2)
        for x, gone in zip((real, ours), lost, strict=True)
    )
    return of_ours / of_real, lost[0], lost[1]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layer", default="0,3,5")
    parser.add_argument("--n", type=int, default=512)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[tuple[str, str], list[tuple[Tensor, Tensor, Tensor]]] = {}
    for layer in given.layer.split(","):
        qkv = load_qkv(given.model, text="embedded", n=given.n, layer=int(layer))
        torch.manual_seed(0)
        for code, run, inputs in codes(qkv):
            for name in FORMATS:
                found.setdefault((code, name), []).append(compared(run, inputs, name, qkv.h))
    print("| code | format | ratio | range | within 1.25 | not finite, real / emulated |")
    print("| --- | --- | --: | --: | --: | --: |")
    goals = []
    for (code, name), parts in found.items():
        ratio, real, ours = (torch.cat(one) for one in zip(*parts, strict=True))
        kept = ratio[~real & ~ours]
        same = "" if torch.equal(real, ours) else " (other heads)"
        lost = f"{int(real.sum())} / {int(ours.sum())}{same}"
        within = ((kept > 1 / 1.25) & (kept < 1.25)).double().mean()
        numbers = (
            f"{kept.median():.2f} | {kept.min():.2f}–{kept.max():.2f} | {within:.0%}" if len(kept) else "– | – | –"
        )
        print(f"| {code} | {name} | {numbers} | {lost} |")
        if len(kept):
            goals.append(Goal(f"heads of {code} in {name} within 1.25 of real rounding", float(within), SHARE))
    return finish(goals, given.json)


if __name__ == "__main__":
    sys.exit(main())
