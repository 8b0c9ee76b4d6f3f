"""The cost that each method states, against the multiply-adds that torch counts in its matrix products."""

import re

import pytest
import torch
from inputs import make
from thinned import others_slow
from torch.utils.flop_counter import FlopCounterMode

from attnprobe.methods import METHODS, approximate, get

CASES = [(name, target) for name, entry in METHODS.items() for target in entry.targets if entry.kind != "user"]
# what O(…) may stand for: six steps of four products, a residual, and the few products of landmarks; a dense n x n
# matrix and its product with V; the directions of a hash, about √n, in each round and for Q and K
ORDER = 30
SHAPES = [(512, 40, 16), (2048, 40, 16), (1024, 80, 16), (512, 40, 32)]


def stated(cost: str, n: int, d: int, p: int) -> tuple[float, float]:
    """The least and the most multiply-adds that a cost such as ``n² (p + d) + O(d³)`` may mean.

    >>> stated("2 n d p + O(d³)", 10, 2, 3)
    (120, 360)
    """
    leading, _, order = cost.partition("O(")
    sizes = {"n": n, "d": d, "p": p}
    bounds = []
    for text in (leading.strip(" +") or "0", order.rstrip(")") or "0"):
        assert re.fullmatch(r"[0-9ndp²³√()+ ]+", text), cost
        product = text.replace("²", "**2").replace("³", "**3").replace("√n", "n**0.5")
        product = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", product)
        bounds.append(eval(product, {}, dict(sizes)))
    return bounds[0], bounds[0] + ORDER * bounds[1]


def counted(name: str, target: str, n: int, d: int, p: int, **options) -> float:
    """Multiply-adds of the matrix products of one head; sums, exponentials and factorisations are not counted."""
    qkv = make(h=1, n=n, p=p, p_v=p)
    with FlopCounterMode(display=False) as counter:
        options = {**get(name).small, **options}
        approximate(name, qkv, None if get(name).budget is None else d, target=target, **options)
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("n, d, p", others_slow(SHAPES, lambda shape: shape == SHAPES[3]))
@pytest.mark.parametrize("name, target", CASES)
def test_the_stated_cost_is_what_the_products_cost(name, target, n, d, p, monkeypatch):
    for fused in ("reference.exact_attention", "quantised.base"):  # a kernel that the counter does not know on a CPU
        monkeypatch.setattr(
            f"attnprobe.methods.{fused}.own_output",
            lambda qkv: torch.softmax(qkv.scale * qkv.q @ qkv.k.mT, -1) @ qkv.v,
        )
    # the stated cost is that of gathered keys: a CPU may read all keys in order, with more products in less time
    monkeypatch.setattr("attnprobe.operators.sparse.STREAMED", 1)
    if get(name).max_n is not None and n > get(name).max_n // 2:
        n //= 4
    least, most = stated(get(name).cost, n, d, p)
    got = counted(name, target, n, d, p)
    # what is not leading: terms with n p, with d p² or with n d beside n d p, and edges of windows
    assert 0.93 * least <= got <= 1.13 * most + n * p + d * p * p + n * d


@pytest.mark.parametrize(
    "name, options, cost",
    [
        ("skeinformer", {"ablation": "uniform"}, "2 n d p"),
        ("skeinformer", {"ablation": "simple-norm"}, "3 n d p"),
        ("skeinformer", {"ablation": "no-pilot-reuse"}, "3 n d p"),
        ("skeinformer", {"ablation": "no-norm"}, "n² p + 2 n d p"),
        ("skeinformer", {"ablation": "no-norm-weighted"}, "n² p + 2 n d p"),
        ("amm", {"normalizer": "self"}, "2 n d p"),
        ("amm", {"p": "vnorm"}, "n² p + 2 n d p"),
        ("amm", {"p": "pilot"}, "n² p + 3 n d p"),
        ("amm", {"p": "optimal"}, "n² (p + p) + 2 n d p"),
        ("linformer", {"share": False}, "4 n d p"),
    ],
)
def test_options_cost_what_their_docstring_says(name, options, cost):
    # "p" is an option of amm and a size here
    qkv = make(h=1, n=256, p=16, p_v=16)
    with FlopCounterMode(display=False) as counter:
        approximate(name, qkv, 40, **options)
    least, _ = stated(cost, 256, 40, 16)
    assert 0.97 * least <= counter.get_total_flops() / 2 <= 1.05 * least


def test_a_cost_is_read_as_a_formula():
    assert stated("n² (p + d) + n d p", 10, 2, 3) == (100 * 5 + 60, 100 * 5 + 60)
    assert stated("2 n d p + O(d³)", 10, 2, 3) == (120, 120 + ORDER * 8)
    with pytest.raises(AssertionError):
        stated("about n²", 1, 1, 1)
