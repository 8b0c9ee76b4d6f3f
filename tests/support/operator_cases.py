"""Every kind of operator beside the dense matrix that it stands for."""

import torch
from twins import gaussian_of, softmax_of

from attnprobe.operators import (
    Columns,
    Dense,
    GaussianAttention,
    Identity,
    LowRank,
    Mosaic,
    Padded,
    RankOne,
    RowOverride,
    Scaled,
    SoftmaxAttention,
    Sparse,
    Sum,
)
from attnprobe.operators.compose import Rows
from attnprobe.rng import generator

F64 = torch.float64


def randn(*shape):
    return torch.randn(*shape, generator=generator(0, str(shape)), dtype=F64)


def attention(kind, n_q, n_k, scale=0.4):
    q, k = randn(2, n_q, 3), randn(2, n_k, 3)
    of = softmax_of if kind is SoftmaxAttention else gaussian_of
    return kind(q, k, scale), torch.stack([of(q[i], k[i], scale) for i in range(2)])


def sparse():
    index = torch.tensor([[[0, 3], [3, 3], [-1, 1], [-1, -1], [4, 0]], [[1, -1], [2, 0], [4, 4], [0, 1], [-1, 2]]])
    weight = randn(2, 5, 2)
    weight[0, 3] = float("nan")  # an empty slot's weight is not used
    dense = torch.zeros(2, 5, 6, dtype=F64)
    for h in range(2):
        for i in range(5):
            for u in range(2):
                if index[h, i, u] >= 0:
                    dense[h, i, index[h, i, u]] += weight[h, i, u]
    return Sparse(index, weight, 6), dense


def grouped(n_q, group):
    """Rows in groups that share columns; the last group may be shorter."""
    count = -(-n_q // group)
    index = torch.randint(-1, 6, (2, count, 4), generator=generator(0, "grouped"))
    index[0, 0] = torch.tensor([5, -1, 5, 0])  # an empty slot, and a repeat that adds up
    weight = randn(2, n_q, 4)
    dense = torch.zeros(2, n_q, 6, dtype=F64)
    for h in range(2):
        for i in range(n_q):
            for u in range(4):
                if index[h, i // group, u] >= 0:
                    dense[h, i, index[h, i // group, u]] += weight[h, i, u]
                else:
                    weight[h, i, u] = float("nan")
    return Sparse(index, weight, 6, group), dense


def columns():
    index, weight = torch.tensor([[3, 0, 3], [5, 2, 1]]), randn(2, 5, 3)
    dense = torch.zeros(2, 5, 6, dtype=F64)
    for h in range(2):
        for i in range(5):
            for u in range(3):
                dense[h, i, index[h, u]] += weight[h, i, u]
    return Columns(weight, index, 6), dense


def override():
    base, new = randn(2, 5, 6), randn(2, 3, 6)
    index = torch.tensor([[4, 0, -1], [2, -1, -1]])
    dense = base.clone()
    dense[0, 4], dense[0, 0], dense[1, 2] = new[0, 0], new[0, 1], new[1, 0]
    return RowOverride(Dense(base), index, Dense(new)), dense


def mosaic():
    """Parts that overlap in one entry, a row and a column without a part."""
    left, right, block = randn(2, 3, 1), randn(2, 1, 2), randn(2, 2, 3)
    dense = torch.zeros(2, 5, 6, dtype=F64)
    dense[:, :3, 1:3] += left @ right
    dense[:, 2:4, 2:5] += block
    return Mosaic([(LowRank(left, None, right), 0, 1), (Dense(block), 2, 2)], (2, 5, 6)), dense


def padded():
    mask = torch.tensor([False, True, True, False, True, False])
    inner = randn(2, 3, 3)
    dense = torch.zeros(2, 6, 6, dtype=F64)
    for i, a in enumerate((1, 2, 4)):
        for j, b in enumerate((1, 2, 4)):
            dense[:, a, b] = inner[:, i, j]
    return Padded(Dense(inner), mask), dense


def cases():
    left, middle, right = randn(2, 5, 3), randn(2, 3, 3), randn(2, 3, 6)
    a, b, r, c = randn(2, 5, 6), randn(2, 5, 6) + 1, randn(2, 5), randn(2, 6)
    yield "dense", Dense(a), a
    yield "low rank", LowRank(left, middle, right), torch.einsum("hia,hab,hbj->hij", left, middle, right)
    other = randn(2, 3, 4)
    wide = torch.einsum("hia,hab,hbc,hdc,hdj->hij", left, middle, other, other, right)
    yield "low rank with factors", LowRank(left, [middle, other, other.mT], right), wide
    yield "low rank without a middle", LowRank(left, None, right), torch.einsum("hia,haj->hij", left, right)
    yield "rank one", RankOne(r, c), torch.einsum("hi,hj->hij", r, c)
    delta = torch.tensor([2.0, -0.5], dtype=F64)
    yield "identity", Identity(delta, 5), torch.stack([2.0 * torch.eye(5), -0.5 * torch.eye(5)]).double()
    yield "sparse", *sparse()
    yield "sparse in groups", *grouped(12, 3)
    yield "sparse in groups, the last one shorter", *grouped(11, 4)
    yield "sparse in one group", *grouped(5, 8)
    yield "columns", *columns()
    yield (
        "sum",
        Sum([Dense(a), Dense(b), RankOne(r, c)], [1.0, -1.0, 0.5]),
        a - b + 0.5 * torch.einsum("hi,hj->hij", r, c),
    )
    yield "plain sum", Sum([Dense(a), Dense(b)]), a + b
    yield "scaled", Scaled(Dense(a), r, c), torch.einsum("hi,hij,hj->hij", r, a, c)
    yield "scaled from the left", Scaled(Dense(a), left=r), r[:, :, None] * a
    yield "scaled from the right", Scaled(Dense(a), right=c), a * c[:, None]
    yield "rows replaced", *override()
    yield "no row replaced", RowOverride(Dense(a), torch.empty(2, 0, dtype=torch.int64), Dense(a[:, :0])), a
    yield "some rows", Rows(Dense(a), torch.tensor([4, 0, 1, 3])), a[:, [4, 0, 1, 3]]
    yield "mosaic", *mosaic()
    yield "padded", *padded()
    for kind in (SoftmaxAttention, GaussianAttention):
        yield kind.__name__, *attention(kind, 5, 7)
        yield f"{kind.__name__} in three blocks", *attention(kind, 150, 9)
    nested, inner = override()
    yield (
        "nested",
        Scaled(Sum([nested, RankOne(r, c)]), r, c),
        (inner + torch.einsum("hi,hj->hij", r, c)) * r[:, :, None] * c[:, None],
    )
