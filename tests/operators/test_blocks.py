"""Blocks of rows: every row once, none larger than the device's share, and the same numbers whatever their size."""

import pytest
import torch
from counting import Reading
from inputs import make
from operator_cases import cases
from pretend_device import AWAY, pretending

from attnprobe.operators import GaussianAttention, SoftmaxAttention, UnnormalisedAttention, blocks
from attnprobe.operators.blocks import BLOCK_MEMORY, block_rows, head_blocks
from attnprobe.operators.visible import Visible

F64 = torch.float64


class On:
    """The shape of matrices on a device, and nothing else."""

    def __init__(self, shape, device, dtype=F64):
        self.shape, self.device, self.dtype = shape, torch.device(device), dtype


@pytest.mark.parametrize("bytes_", [1, 2**8, 2**12, 2**16, 2**40])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (4, 300, 20), (5, 9, 1000)])
@pytest.mark.parametrize("device", ["cpu", AWAY], ids=str)
def test_every_row_of_every_head_is_in_one_block_which_fits(shape, device, bytes_, monkeypatch):
    monkeypatch.setattr(blocks, "UNTOLD", bytes_)
    h, n_q, n_k = shape
    seen = torch.zeros(h, n_q)
    for heads, start, stop in head_blocks(On(shape, device), cpu=64):
        seen[heads, start:stop] += 1
        numbers = (heads.stop - heads.start) * (stop - start) * n_k
        if str(device) == "cpu":
            assert heads.stop - heads.start == 1 and (stop - start == 64 or stop == n_q)
        else:
            assert 8 * numbers <= bytes_ or stop - start == heads.stop - heads.start == 1
    assert (seen == 1).all()


def test_all_heads_are_one_block_where_they_fit(monkeypatch):
    shape = (6, 500, 500)
    assert list(head_blocks(On(shape, AWAY), cpu=64)) == [(slice(0, 6), 0, 500)]
    monkeypatch.setattr(blocks, "UNTOLD", 8 * 500 * 128 * 3)  # 128 rows of three heads
    spans = [heads for heads, start, _ in head_blocks(On(shape, AWAY), cpu=64) if start == 0]
    assert spans == [slice(0, 3), slice(3, 6)]


def test_a_block_of_half_the_numbers_has_twice_the_rows():
    rows = {
        dtype: block_rows(On((1, 1, 1), AWAY, dtype), 1000, cpu=1) for dtype in (F64, torch.float32, torch.bfloat16)
    }
    assert rows[F64] == blocks.UNTOLD // 8000 and rows[torch.float32] == blocks.UNTOLD // 4000
    assert rows[torch.bfloat16] == blocks.UNTOLD // 2000


def test_halving_makes_smaller_blocks_down_to_one_row_but_not_on_a_cpu():
    before = block_rows(On((1, 1, 1), AWAY), 1000, cpu=64)
    BLOCK_MEMORY.halve()
    assert block_rows(On((1, 1, 1), AWAY), 1000, cpu=64) in (before // 2, before // 2 + 1)
    BLOCK_MEMORY.halvings = 100
    assert block_rows(On((1, 1, 1), AWAY), 1000, cpu=64) == 1 and block_rows(On((1, 1, 1), "cpu"), 1000, cpu=64) == 64


def test_the_share_is_the_same_until_an_eighth_of_the_memory_is_left():
    total = 79 * 2**30
    shares = {blocks.share(free, total) for free in range(10 * 2**30, total, 2**30)}
    assert shares == {2**30}
    assert blocks.share(2**20, total) == 2**17 and blocks.share(0, total) == 1


@pytest.mark.parametrize("bytes_", [1, 2**10, 2**13, 2**28])
@pytest.mark.parametrize("kind", [SoftmaxAttention, GaussianAttention, UnnormalisedAttention])
@pytest.mark.parametrize("causal", [False, True])
def test_exact_attention_is_the_same_in_blocks_of_any_size(kind, causal, bytes_, monkeypatch):
    qkv, x = make(n=21), torch.linspace(-1, 1, 2 * 21 * 3, dtype=F64).reshape(2, 21, 3)
    visible = Visible(torch.arange(21)) if causal else None
    here = kind(qkv.q, qkv.k, qkv.scale, visible=visible)
    monkeypatch.setattr(blocks, "UNTOLD", bytes_)

    def close(away, expected):
        return (away.held - expected).abs().max() <= 1e-13 * expected.abs().max()

    with pretending():
        there = kind(qkv.q.to(AWAY), qkv.k.to(AWAY), qkv.scale, visible=visible)
        assert close(there @ x.to(AWAY), here @ x) and close(there.rmatmul(x.to(AWAY)), here.rmatmul(x))
        if kind is SoftmaxAttention:
            assert close(there.log_normalizer(), here.log_normalizer())
        if kind is UnnormalisedAttention:
            assert close(there.shift, here.shift)


#: which tokens are padding is read from the device in a product
READ = {"nested", "padded"}


@pytest.mark.parametrize("name, operator, dense", [pytest.param(*case, id=case[0]) for case in cases()])
def test_no_value_is_read_back_from_the_device_in_a_product(name, operator, dense):
    x, y = torch.ones(2, dense.shape[2], 2, dtype=F64), torch.ones(2, dense.shape[1], 2, dtype=F64)
    with pretending():
        there, x, y = operator.on(AWAY), x.to(AWAY), y.to(AWAY)
    with pretending(), Reading() as reading:
        one = there.heads(slice(0, 1)).to(torch.float32)
        if name not in READ:
            for some, of_x, of_y in ((there, x, y), (one, x[:1], y[:1])):
                some @ of_x
                some.rmatmul(of_y)
                some.rows(1, 3)
    assert one.device == AWAY and reading.count == 0


def test_a_causal_product_reads_nothing_back():
    qkv = make(n=21)
    with pretending():
        q, k, v = (x.to(AWAY) for x in (qkv.q, qkv.k, qkv.v))
        there = SoftmaxAttention(q, k, qkv.scale, Visible(torch.arange(21, device=AWAY)))
    with pretending(), Reading() as reading:
        there @ v
        there.log_normalizer()
    assert reading.count == 0


def test_what_is_read_back_is_noticed():
    """The control."""
    with pretending():
        there = torch.ones(3, device=AWAY)
    reads = {
        "a number": lambda: int(there.max()),
        "a copy": lambda: there.to("cpu"),
        "places": lambda: there.nonzero(),
        "a mask": lambda: there[there > 0],
    }
    for name, read in reads.items():
        with pretending(), Reading() as reading:
            read()
        assert reading.count, name
