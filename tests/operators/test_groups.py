"""Which KV heads query heads read, and the rows of a group as those of one product."""

import pytest
import torch

from attnprobe.operators.groups import as_index, folded, of_heads, repeated, shared_heads, unfolded


@pytest.mark.parametrize(
    "heads", [[0], [5], [1, 2, 3], [0, 1, 2, 3], [2, 3, 0, 1], [4, 0, 5, 1], [7, 6, 5, 4, 3, 2]], ids=str
)
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_the_heads_that_are_read_are_those_of_the_repeated_keys(heads, group):
    k = torch.arange(8 // group)
    read = shared_heads(heads, group)
    assert torch.equal(repeated(k[read], len(heads)), repeated(k, 8)[heads])


def test_consecutive_rows_are_a_slice():
    assert as_index([2, 3, 4]) == slice(2, 5) and as_index(range(1)) == slice(0, 1) and as_index([2, 4]) == [2, 4]


def test_heads_of_whole_groups_and_within_one_are_views():
    k = torch.randn(2, 5, 3)
    for some in (slice(0, 8), slice(4, 8), slice(5, 7), slice(3, 4)):
        read = of_heads(k, some, 8)
        assert read.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
        assert torch.equal(repeated(read, len(range(8)[some])), repeated(k, 8)[some])


@pytest.mark.parametrize("batch", [(), (3,)], ids=["heads", "batch"])
def test_folded_rows_make_the_product_of_every_head(batch):
    q, k = torch.randn(*batch, 6, 4, 3, dtype=torch.float64), torch.randn(*batch, 2, 5, 3, dtype=torch.float64)
    expected = q @ k.repeat_interleave(3, -3).mT
    product = unfolded(folded(q, 2) @ k.mT, 6)
    assert product.shape == expected.shape and torch.allclose(product, expected, rtol=1e-14)
