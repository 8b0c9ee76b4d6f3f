"""Maps of attention: block means against dense averages, what a run keeps of them, and what is drawn."""

from __future__ import annotations

import pytest
import torch
from every_setting import DEFAULTS, run
from inputs import DTYPES, eps, factor_of, magnitude, make
from pretend_device import AWAY, pretending

from attnprobe.errors import UsageError
from attnprobe.methods import approximate
from attnprobe.metrics import MAP_BLOCKS, attention_maps
from attnprobe.operators import Dense, Identity, Padded, Sum
from attnprobe.qkv import QKV
from attnprobe.reference import TARGETS, exact


def literal(matrix, blocks):
    """Block means of (h, n_q, n_k) by loops: the first ``n mod blocks`` blocks are one token longer."""
    h, n_q, n_k = matrix.shape
    edges = []
    for n in (n_q, n_k):
        count = min(blocks, n)
        edges.append([0])
        for block in range(count):
            edges[-1].append(edges[-1][-1] + n // count + (1 if block < n % count else 0))
        assert edges[-1][-1] == n
    out = torch.empty(h, len(edges[0]) - 1, len(edges[1]) - 1, dtype=torch.float64)
    for head in range(h):
        for s in range(out.shape[1]):
            for t in range(out.shape[2]):
                values = [float(matrix[head, i, j]) for i in range(edges[0][s], edges[0][s + 1])
                          for j in range(edges[1][t], edges[1][t + 1])]  # fmt: skip
                out[head, s, t] = sum(values) / len(values)
    return out


def rounding(operator, qkv, dtype, blocks):
    """How far a block mean may be off: the mean of what its entries may be, once for each of the two ways."""
    return 2 * literal(eps(dtype) * factor_of(qkv) * magnitude(operator), blocks) + torch.finfo(dtype).tiny


@pytest.mark.parametrize("blocks", [1, 4, 7, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_maps_of_every_method_are_dense_block_means(name, target, dtype, blocks):
    qkv = make(n=23, score=2.0, dtype=dtype)
    operator = run(name, target, qkv, {}).operator
    got, wanted = attention_maps(operator, blocks), literal(operator.dense().double(), blocks)
    assert got.dtype == torch.float64 and got.shape == (2, min(blocks, 23), min(blocks, 23))
    assert bool(((got - wanted).abs() <= rounding(operator, qkv, operator.dtype, blocks)).all())


@pytest.mark.parametrize("n", [2, 3, 65])
@pytest.mark.parametrize("target", TARGETS)
def test_maps_of_exact_attention_at_any_length(n, target):
    qkv = make(n=n)
    operator = exact(qkv, target)
    got = attention_maps(operator)
    assert got.shape == (2, min(n, MAP_BLOCKS), min(n, MAP_BLOCKS))
    torch.testing.assert_close(got, literal(operator.dense(), MAP_BLOCKS), rtol=1e-13, atol=0)


def test_queries_and_keys_have_blocks_of_their_own():
    qkv = make(n=9, n_k=14)
    got = attention_maps(exact(qkv), 4)
    torch.testing.assert_close(got, literal(exact(qkv).dense(), 4), rtol=1e-13, atol=0)
    tall = attention_maps(exact(qkv), 12)
    assert tall.shape == (2, 9, 12)
    torch.testing.assert_close(tall, literal(exact(qkv).dense(), 12), rtol=1e-13, atol=0)


def test_padded_tokens_are_zeros_that_count():
    mask = torch.arange(11) % 4 != 1
    qkv = make(n=11)
    qkv = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    for operator in (exact(qkv), approximate("nystromformer", qkv, 3).operator):
        assert isinstance(operator, Padded)
        torch.testing.assert_close(attention_maps(operator, 4), literal(operator.dense(), 4), rtol=1e-11, atol=1e-14)
        whole = attention_maps(operator, 11)
        assert bool((whole[:, ~mask] == 0).all()) and bool((whole[:, :, ~mask] == 0).all())


def test_negative_means_stay_negative_and_a_broken_row_stays_in_its_blocks():
    matrix = torch.tensor([[[1.0, -3.0, 0, 0], [0, 0, 0, 0], [2, 2, 2, float("inf")], [1, 1, 1, 1]]])
    got = attention_maps(Dense(matrix), 2)
    assert float(got[0, 0, 0]) == -0.5 and float(got[0, 0, 1]) == 0
    assert not bool(torch.isfinite(got[0, 1, 1])) and bool(torch.isfinite(got[0, 0]).all())


def test_half_precision_is_summed_in_float32():
    matrix = torch.full((1, 4096, 4096), 20.0, dtype=torch.float16)  # a block's row sums to 81920, beyond float16
    assert attention_maps(Dense(matrix), 1).tolist() == [[[20.0]]]


def test_a_map_never_holds_the_matrix(monkeypatch):
    """No dense row of an operator is asked for, and what is multiplied has as many columns as there are blocks."""
    operator, widths = exact(make(n=40)), []
    apply = type(operator)._apply
    monkeypatch.setattr(type(operator), "_rows", lambda *args: pytest.fail("a dense block of rows"))
    monkeypatch.setattr(type(operator), "_apply", lambda self, x: widths.append(x.shape[2]) or apply(self, x))
    attention_maps(operator, 6)
    assert widths == [6]


def test_maps_stay_on_the_device_and_leave_the_default_device_alone():
    qkv = make(n=24)
    wanted = attention_maps(approximate("skyformer", qkv, 10).operator, 7)
    with torch.device("meta"):
        assert torch.equal(attention_maps(approximate("skyformer", qkv, 10).operator, 7), wanted)
    with pretending():
        away = QKV(qkv.q.to(AWAY), qkv.k.to(AWAY), qkv.v.to(AWAY))
        got = attention_maps(approximate("skyformer", away, 10).operator, 7)
        assert got.device == AWAY and (got.held - wanted).abs().max() < 1e-10


def test_blocks_are_counted_from_one():
    with pytest.raises(UsageError, match="blocks=0"):
        attention_maps(exact(make(n=4)), 0)


def test_a_map_is_linear_in_its_operator():
    operator = exact(make(n=10))
    both = attention_maps(Sum([operator, Identity(torch.ones(2, dtype=torch.float64), 10)]), 3)
    alone = attention_maps(operator, 3)
    eye = literal(torch.eye(10, dtype=torch.float64).expand(2, -1, -1), 3)
    torch.testing.assert_close(both, alone + eye)
