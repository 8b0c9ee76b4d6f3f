"""Every operator against the dense matrix that it stands for."""

import pytest
import torch
from operator_cases import F64, attention, cases, grouped, randn

from attnprobe.errors import UsageError
from attnprobe.operators import (
    Columns,
    Dense,
    GaussianAttention,
    Mosaic,
    RowOverride,
    Scaled,
    SoftmaxAttention,
    Sparse,
    Sum,
    blocks,
)
from attnprobe.operators.blocks import row_blocks, row_groups
from attnprobe.operators.sparse import SparseBlock, sparse_blocks
from attnprobe.rng import generator


@pytest.mark.parametrize("name, operator, dense", list(cases()), ids=[case[0] for case in cases()])
def test_some_heads_and_another_dtype_are_the_same_matrix(name, operator, dense):
    for some in (slice(1, 2), slice(0, 1), slice(0, 2)):
        few = operator.heads(some)
        x, y = randn(2, dense.shape[2], 3)[some], randn(2, dense.shape[1], 3)[some]
        assert type(few) is type(operator) and few.shape == (len(dense[some]), *dense.shape[1:])
        assert torch.allclose(few.dense(), dense[some], rtol=1e-12, atol=1e-12)
        assert torch.allclose(few @ x, dense[some] @ x, rtol=1e-12, atol=1e-12)
        assert torch.allclose(few.rmatmul(y), dense[some].mT @ y, rtol=1e-12, atol=1e-12)
    single = operator.to(torch.float32)
    assert type(single) is type(operator) and single.dtype == torch.float32 == single.dense().dtype
    assert (single @ randn(2, dense.shape[2], 3)).dtype == torch.float32
    assert torch.allclose(single.dense().double(), dense, rtol=1e-5, atol=1e-5)
    assert torch.allclose(single.to(F64).dense(), dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name, operator, dense", list(cases()), ids=[case[0] for case in cases()])
def test_products_rows_and_sums_are_those_of_the_dense_matrix(name, operator, dense):
    h, n_q, n_k = dense.shape
    assert operator.shape == (h, n_q, n_k) and operator.dtype == F64 and operator.device.type == "cpu"
    x, y = randn(h, n_k, 4), randn(h, n_q, 4)

    def close(a, b):
        return torch.allclose(a, b, rtol=1e-12, atol=1e-12)  # sums of at most 150 terms of order 10

    assert close(operator @ x, dense @ x)
    assert close(operator.rmatmul(y), dense.mT @ y)
    assert close(operator.dense(), dense) and close(operator.row_sums(), dense.sum(-1))
    for start, stop in [(0, 1), (n_q - 1, n_q), (1, n_q), (0, n_q // 2), (2, 4)]:
        assert close(operator.rows(start, stop), dense[:, start:stop])
    left, right = (y * (operator @ x)).sum(), (operator.rmatmul(y) * x).sum()
    assert abs(left - right) <= 1e-12 * float(y.norm() * dense.norm() * x.norm())
    assert torch.equal(x, randn(h, n_k, 4)) and torch.equal(y, randn(h, n_q, 4))  # operands stay


@pytest.mark.parametrize("name, operator, dense", list(cases()), ids=[case[0] for case in cases()])
def test_operands_are_taken_to_the_dtype_of_the_operator_and_refused_where_they_do_not_fit(name, operator, dense):
    h, n_q, n_k = dense.shape
    assert (operator @ randn(h, n_k, 2).float()).dtype == F64
    assert (operator.rmatmul(randn(h, n_q, 2).float())).dtype == F64
    for wrong in (randn(h, n_k + 1, 2), randn(h + 1, n_k, 2), randn(n_k, 2), randn(1, n_k, 2)):
        with pytest.raises(UsageError, match="operand of shape"):
            operator @ wrong
    with pytest.raises(UsageError, match="operand of shape"):
        operator.rmatmul(randn(h, n_q + 1, 2))
    for start, stop in [(-1, 2), (0, n_q + 1), (2, 2), (3, 1)]:
        with pytest.raises(UsageError, match=f"rows {start}:{stop}"):
            operator.rows(start, stop)


def test_a_row_named_twice_in_one_head_is_refused():
    base, rows = Dense(randn(2, 5, 6)), Dense(randn(2, 2, 6))
    RowOverride(base, torch.tensor([[1, 2], [2, 1]]), rows)
    with pytest.raises(UsageError, match="named twice"):
        RowOverride(base, torch.tensor([[1, 2], [2, 2]]), rows)
    with pytest.raises(UsageError, match="does not fit"):
        RowOverride(base, torch.tensor([[1], [2]]), rows)


@pytest.mark.parametrize("index", [[[0, 6]], [[-1, 0]], [[0, 1, 2]], [[0, 1], [0, 1]]], ids=str)
def test_columns_that_do_not_fit_are_refused(index):
    with pytest.raises(UsageError, match="columns: index"):
        Columns(randn(1, 5, 2), torch.tensor(index), 6)


def test_a_replaced_row_hides_what_the_base_holds_there():
    base = randn(1, 4, 6)
    base[0, 2] = float("inf")
    operator = RowOverride(Scaled(Dense(base)), torch.tensor([[2]]), Dense(randn(1, 1, 6)))
    assert torch.isfinite(operator @ randn(1, 6, 2)).all() and torch.isfinite(operator.dense()).all()


@pytest.mark.parametrize("base, new", [(F64, torch.float32), (torch.float32, F64)], ids=str)
def test_replaced_rows_may_have_another_dtype_than_the_base(base, new):
    operator = RowOverride(Dense(randn(1, 4, 6).to(base)), torch.tensor([[2]]), Dense(randn(1, 1, 6).to(new)))
    x, y = randn(1, 6, 2), randn(1, 4, 2)
    assert operator.dense().dtype == operator.rmatmul(y).dtype == base
    assert torch.allclose((operator @ x).double(), operator.dense().double() @ x, atol=1e-5)  # float32


def test_a_part_of_a_mosaic_must_be_within():
    for row, column in ((0, 1), (1, 0), (-1, 0)):
        with pytest.raises(UsageError, match="mosaic: .* is not within"):
            Mosaic([(Dense(torch.ones(2, 3, 4)), row, column)], (2, 3, 4))


def test_terms_of_a_sum_must_fit():
    with pytest.raises(UsageError, match="sum"):
        Sum([Dense(randn(1, 4, 6)), Dense(randn(1, 4, 5))])
    with pytest.raises(UsageError, match="sum"):
        Sum([Dense(randn(1, 4, 6)), Dense(randn(1, 4, 6).float())])


def test_a_sparse_index_beyond_the_columns_is_refused():
    with pytest.raises(UsageError, match="sparse"):
        Sparse(torch.tensor([[[6]]]), randn(1, 1, 1), 6)


@pytest.mark.parametrize("n_q, groups, group", [(5, 5, 2), (5, 2, 2), (5, 2, 5), (4, 3, 2)])
def test_a_sparse_index_of_another_number_of_groups_is_refused(n_q, groups, group):
    with pytest.raises(UsageError, match=f"sparse: .* group={group}"):
        Sparse(torch.zeros(1, groups, 2, dtype=torch.int64), randn(1, n_q, 2), 6, group)


GATHERS, READS_ALL = 0, 10**9  # columns that are read in the time in which one is gathered


@pytest.mark.parametrize("dense", [False, True])
def test_the_products_of_a_block_of_two_heads(dense):
    columns, x = torch.tensor([[[0, 3, 5]], [[1, 2, 4]]]), randn(2, 6, 4)
    block = SparseBlock(slice(0, 2), slice(0, 2), columns, dense)
    weight, y = randn(2, 1, 2, 3), randn(2, 1, 2, 4)
    matrix = torch.zeros(2, 2, 6, dtype=F64).scatter(2, columns.expand(-1, 2, -1), weight[:, 0])
    torch.testing.assert_close(block.product(weight, x), matrix @ x)
    torch.testing.assert_close(block.scores(y, x)[:, 0], (y[:, 0] @ x.mT).gather(2, columns.expand(-1, 2, -1)))
    out = torch.ones_like(x)
    block.add_transposed(out, weight, y)
    torch.testing.assert_close(out, 1 + matrix.mT @ y[:, 0])


@pytest.mark.parametrize("streamed", [GATHERS, READS_ALL])
@pytest.mark.parametrize("entries", [1, 30, 2**18])
@pytest.mark.parametrize("n_q, group", [(12, 1), (12, 3), (11, 4), (5, 8)])
def test_a_sparse_product_does_not_depend_on_its_blocks(n_q, group, entries, streamed, monkeypatch):
    operator, dense = grouped(n_q, group)
    monkeypatch.setattr("attnprobe.operators.blocks.GATHERED_ENTRIES", entries)
    monkeypatch.setattr("attnprobe.operators.sparse.STREAMED", streamed)
    x, y = randn(2, 6, 3), randn(2, n_q, 3)
    assert torch.allclose(operator @ x, dense @ x, atol=1e-13)
    assert torch.allclose(operator.rmatmul(y), dense.mT @ y, atol=1e-13)


@pytest.mark.parametrize(
    ("n_q", "u", "group", "dense"), [(64, 64, 1, False), (64, 256, 1, True), (2, 256, 1, False), (64, 256, 16, False)]
)
def test_a_sparse_product_reads_all_columns_where_many_rows_gather_many_each(n_q, u, group, dense):
    index = torch.zeros(1, n_q // group or 1, u, dtype=torch.int64)
    blocks = list(sparse_blocks(torch.zeros(1, n_q, 4), index, 4096, 4, group))
    assert {block.dense for block in blocks} == {dense}
    assert max(block.rows.stop - block.rows.start for block in blocks) * (4096 if dense else 1) <= 2**18


@pytest.mark.parametrize("n", [1, 4, 11, 12])
@pytest.mark.parametrize("group", [1, 3, 4, 20])
@pytest.mark.parametrize("entries", [1, 2**16, 2**20])
def test_groups_of_rows_cover_every_row_once(n, group, entries):
    spans = list(row_groups(torch.zeros(1), n, group, entries))
    assert [i for _, rows in spans for i in range(rows.start, rows.stop)] == list(range(n))
    assert [i for groups, _ in spans for i in range(groups.start, groups.stop)] == list(range(-(-n // group)))
    for groups, rows in spans:
        count = groups.stop - groups.start
        assert rows.start == groups.start * group and (rows.stop - rows.start) % count == 0
        assert count == 1 or count * entries <= 2**18 and rows.stop - rows.start == count * group


@pytest.mark.parametrize("kind", [SoftmaxAttention, GaussianAttention])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_scores_of_ten_thousand_stay_finite(kind, dtype):
    q = (100 * randn(1, 40, 8)).to(dtype)
    block = kind(q, -q, 1.0).dense()
    assert torch.isfinite(block).all() and (block >= 0).all() and (block <= 1).all()


def test_the_gaussian_kernel_of_a_point_with_itself_is_one_up_to_rounding_and_never_more():
    q = 10 * randn(1, 60, 8)
    diagonal = GaussianAttention(q, q, 1.0).dense()[0].diagonal()
    assert (diagonal <= 1).all() and (diagonal >= 1 - 1e-11).all()  # exponents of 1000, 50 eps each


def test_the_log_normaliser_is_the_logarithm_of_the_row_sums():
    operator, dense = attention(SoftmaxAttention, 150, 9)
    scores = 0.4 * operator.q @ operator.k.mT
    assert (operator.log_normalizer() - scores.exp().sum(-1).log()).abs().max() <= 1e-14
    huge = SoftmaxAttention(100 * operator.q, 100 * operator.k, 0.4)
    top = (0.4 * huge.q @ huge.k.mT).amax(-1)
    assert ((huge.log_normalizer() - top) >= -1e-9).all() and ((huge.log_normalizer() - top) <= 2.2).all()  # log 9


@pytest.mark.parametrize("n, size", [(1, 1), (5, 2), (6, 3), (4, 9), (64, 64), (65, 64)])
def test_row_blocks_cover_every_row_once(n, size):
    blocks = list(row_blocks(n, size))
    assert [i for start, stop in blocks for i in range(start, stop)] == list(range(n))
    assert all(0 < stop - start <= size for start, stop in blocks)


@pytest.mark.parametrize("streamed", [GATHERS, READS_ALL])
@pytest.mark.parametrize(("n_q", "group"), [(5, 1), (7, 3), (6, 2)])
def test_the_gradient_of_a_sparse_product_is_that_of_the_dense_one(n_q, group, streamed, monkeypatch):
    monkeypatch.setattr(blocks, "GATHERED_ENTRIES", 16)  # several blocks
    monkeypatch.setattr("attnprobe.operators.sparse.STREAMED", streamed)
    empty = torch.randint(-1, 6, (2, -(-n_q // group), 4), generator=generator(0, "columns"))
    weight, x = randn(2, n_q, 4).requires_grad_(), randn(2, 6, 3).requires_grad_()

    def product(weight, x):
        return Sparse(empty, weight, 6, group) @ x

    def literal(weight, x):
        rows = empty.repeat_interleave(group, 1)[:, :n_q]
        dense = torch.zeros(2, n_q, 6, dtype=F64).scatter_add(2, rows.clamp(min=0), weight * (rows >= 0))
        return dense @ x

    towards = randn(2, n_q, 3)
    ours = torch.autograd.grad((product(weight, x) * towards).sum(), (weight, x))
    theirs = torch.autograd.grad((literal(weight, x) * towards).sum(), (weight, x))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradcheck(product, (weight, x))
    [alone] = torch.autograd.grad((product(weight.detach(), x) * towards).sum(), x)
    torch.testing.assert_close(alone, theirs[1], rtol=1e-12, atol=1e-14)


def test_the_gradient_of_a_sparse_product_keeps_no_gathered_rows():
    """Saved for the backward pass: the index, the weight and x, not the rows of x that were gathered."""
    index = torch.zeros(1, 64, 32, dtype=torch.int64)
    weight, x = randn(1, 64, 32).requires_grad_(), randn(1, 64, 16).requires_grad_()
    largest = 0

    def seen(tensor):
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        Sparse(index, weight, 64) @ x
    assert 0 < largest <= 64 * 32
