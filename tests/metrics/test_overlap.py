"""The overlap of two selections, against Python's sets."""

import pytest
import torch
from inputs import make

from attnprobe import approximate
from attnprobe.errors import UsageError
from attnprobe.methods.selection.files import selected_keys
from attnprobe.metrics import neighbour_overlap, selection_overlap


def jaccard(a, b):
    a, b = set(a) - {-1}, set(b) - {-1}
    return len(a & b) / len(a | b) if a | b else 1.0


def test_it_is_the_jaccard_index_of_the_sets():
    qkv = make(n=30, h=3, score=3.0).replace(causal=True)
    first, second = (selected_keys(approximate(name, qkv, d)) for name, d in (("topk", 6), ("window", 9)))
    actual = selection_overlap(first, second)
    for head in range(3):
        for row in range(30):
            assert actual[head, row] == pytest.approx(jaccard(first[head, row].tolist(), second[head, row].tolist()))
    assert actual.shape == (3, 30) and 0 < actual.mean() < 1
    assert torch.equal(selection_overlap(first, first.flip(-1)), torch.ones(3, 30, dtype=torch.float64))


def test_neighbours_are_rows_that_follow_one_another():
    keys = torch.tensor([[[0, 1, 2], [2, 1, 5], [-1, -1, -1], [-1, -1, -1]]])
    actual = neighbour_overlap(keys)[0].tolist()
    assert actual[0] != actual[0] and actual[1:] == [0.5, 0.0, 1.0]


def test_sets_of_other_rows_are_refused():
    with pytest.raises(UsageError, match=r"sets of \(1, 2\) heads and rows, and of \(1, 3\)"):
        selection_overlap(torch.zeros(1, 2, 1), torch.zeros(1, 3, 1))
