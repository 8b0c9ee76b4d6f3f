"""Bounded entries: the paper's B at any scale of scores, and its verdicts."""

from math import log

import pytest
import torch
from inputs import make
from theory_settings import check

from attnprobe.theorems.alman2023 import alman2023_entries


def test_the_papers_scale_has_the_entries_themselves():
    """At 1/p, B is the largest entry if Q and K have the same; a factor of Q may stand at K, or at the scale."""
    qkv = make(n=20)
    q = qkv.q.double()
    paper = qkv.replace(q=q, k=q.flip(1), scale=1 / qkv.p)
    largest = q.abs().amax((1, 2))
    assert torch.allclose(alman2023_entries(paper), largest, rtol=1e-14)
    for same in (paper.replace(q=4 * q, k=q.flip(1) / 4), paper.replace(q=2 * q, scale=1 / (2 * qkv.p))):
        assert torch.allclose(alman2023_entries(same), largest, rtol=1e-14)


def test_scores_of_such_entries_are_at_most_their_square():
    """Every |S_ij| is at most B², and equal entries reach it: scores may be o(ln n), not only o(√ln n)."""
    qkv = make(n=20)
    assert ((qkv.scale * qkv.q @ qkv.k.mT).abs().amax((1, 2)) <= alman2023_entries(qkv).square()).all()
    equal = qkv.replace(q=torch.full_like(qkv.q, 1.5), k=torch.full_like(qkv.k, 1.5))
    score = equal.scale * equal.q[:, 0] @ equal.k[0, 0]
    assert torch.allclose(alman2023_entries(equal).square(), score.double())


@pytest.mark.parametrize("largest, verdict", [(0.99, "holds"), (1.01, "assumption not met")])
def test_entries_are_bounded_or_not(largest, verdict):
    """At the paper's scale entries just below √ln n meet the assumption, and their scores are near ln n."""
    qkv = make(n=60)
    entries = torch.full_like(qkv.q, largest * log(60) ** 0.5).double()
    [one] = check("bounded-entries", qkv.replace(q=entries, k=entries, scale=1 / qkv.p, causal=True))
    assert one.verdicts() == [verdict] * qkv.h
    assert one.bound.tolist() == pytest.approx([log(60) ** 0.5] * qkv.h)
    assert one.details["dimension"].tolist() == pytest.approx([qkv.p / log(60)] * qkv.h)
