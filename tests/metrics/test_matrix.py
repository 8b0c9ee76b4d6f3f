"""Errors of whole matrices, without holding one, against the dense float64 matrix."""

from collections import Counter

import pytest
import torch
from inputs import make
from largest import Largest
from thinned import others_slow

from attnprobe import exact, matrix_errors
from attnprobe.errors import UsageError
from attnprobe.methods import approximate, by_family
from attnprobe.metrics import MATRIX_METRICS, ExactNorms, exact_norms, shared_matrix_errors
from attnprobe.metrics import matrix as matrix_file
from attnprobe.operators import Dense, LowRank, SoftmaxAttention
from attnprobe.operators.linalg import differences as differences_file
from attnprobe.operators.linalg.differences import Differences
from attnprobe.operators.linalg.krylov import start_block
from attnprobe.operators.linalg.spectral import block_size
from attnprobe.qkv import QKV

F64 = torch.float64
METHODS = [(entry.name, target) for entry in by_family() for target in entry.targets if entry.kind != "user"]
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, F64], ids=lambda dtype: str(dtype)[6:])


def operator(name, target, qkv, d=110):
    return approximate(name, qkv, d, target=target).operator


def truth(qkv, target, op):
    """Every metric from dense float64 matrices."""
    b = exact(qkv.to(dtype=F64), target).dense()
    e = b - op.dense().double()
    spectral, size = torch.linalg.matrix_norm(e, 2), torch.linalg.matrix_norm(b, 2)
    frobenius = torch.linalg.matrix_norm(e)
    return {
        "size": size,
        "matrix_spectral": spectral,
        "matrix_spectral_relative": spectral / size,
        "matrix_frobenius": frobenius,
        "matrix_frobenius_relative": frobenius / torch.linalg.matrix_norm(b),
        "matrix_infinity": e.abs().sum(-1).amax(-1),
    }


def assert_right(actual, expected, size, dtype, tol=1e-3):
    """The entries of B have a relative error of about 20 eps here: absolute, that of ‖B‖ = ``size``."""
    slack = (1e-12 if dtype == F64 else 2e-6) * size
    spectral = expected["matrix_spectral"]
    assert (actual["matrix_spectral_lower"] <= spectral + slack).all()
    assert (actual["matrix_spectral_upper"] >= spectral - slack).all()
    closed = actual["matrix_spectral_upper"] <= (1 + tol) * actual["matrix_spectral_lower"]
    assert (closed | (spectral <= slack)).all()
    for name in ("matrix_spectral", "matrix_spectral_relative"):
        assert ((actual[name] - expected[name]).abs() <= tol * expected[name] + slack).all(), name
    for name in ("matrix_frobenius", "matrix_frobenius_relative", "matrix_infinity"):
        assert ((actual[name] - expected[name]).abs() <= 1e-6 * expected[name] + slack * 300**0.5).all(), name


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(F64, marks=pytest.mark.slow)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("name, target", others_slow(METHODS, lambda case: case in METHODS[::3]))
def test_the_error_of_every_method_is_that_of_its_dense_matrix(name, target, dtype):
    qkv = make(n=300, dtype=dtype, score=2.0)
    op = operator(name, target, qkv)
    actual = matrix_errors(exact(qkv, target), op)
    assert set(MATRIX_METRICS) < set(actual) and all(value.shape == (2,) for value in actual.values())
    expected = truth(qkv, target, op)
    assert_right(actual, expected, expected["size"], dtype)


@every_dtype
@pytest.mark.parametrize("name", ["nystromformer", "window"])
def test_the_wide_blocks_of_longer_sequences(name, dtype):
    qkv = make(n=530, dtype=dtype, score=2.0)
    assert block_size(530) > block_size(300)
    op = operator(name, "softmax", qkv)
    expected = truth(qkv, "softmax", op)
    assert_right(matrix_errors(exact(qkv), op), expected, expected["size"], dtype)


@pytest.mark.parametrize("n", [257, 383, 511, 512, 513])
def test_the_last_block_of_rows_may_be_short(n):
    assert {n % differences_file.CPU_BLOCK for n in (257, 511, 512)} == {1, 255, 0}
    qkv = make(n=n)
    op = operator("nystromformer", "softmax", qkv)
    actual = matrix_errors(exact(qkv), op)
    assert_right(actual, truth(qkv, "softmax", op), 1.0, F64)


@pytest.mark.parametrize("n_q, n_k", [(300, 70), (40, 300), (300, 257), (1, 300), (300, 1)])
def test_queries_and_keys_may_differ_in_number(n_q, n_k):
    qkv = make(n=n_q, n_k=n_k)
    op = operator("linear", "softmax", qkv)
    assert_right(matrix_errors(exact(qkv), op), truth(qkv, "softmax", op), 1.0 * n_q**0.5, F64)


def test_several_share_their_passes_and_each_is_as_alone():
    qkv = make(n=300, h=3)
    ops = [operator(name, "softmax", qkv, d) for name in ("performer", "nystromformer", "window") for d in (10, 40)]
    for op, actual in zip(ops, shared_matrix_errors(exact(qkv), ops), strict=True):
        alone = matrix_errors(exact(qkv), op)
        for name, value in alone.items():
            assert torch.allclose(actual.metrics[name].double(), value.double(), rtol=1e-9), name


def test_norms_that_are_given_are_used():
    qkv = make(n=300, h=3)
    op, norms = operator("performer", "softmax", qkv), exact_norms(exact(qkv))
    plain = matrix_errors(exact(qkv), op)
    twice = ExactNorms(**{name: 2 * value for name, value in vars(norms).items()})
    for given, factor in ((norms, 1), (twice, 2)):
        [actual] = shared_matrix_errors(exact(qkv), [op], norms=given)
        for name, value in plain.items():
            share = factor if "relative" in name else 1
            assert torch.allclose(share * actual.metrics[name].double(), value.double(), rtol=1e-9), name
    wide = ExactNorms(norms.value, norms.lower, 2 * norms.upper, norms.frobenius)
    assert shared_matrix_errors(exact(qkv), [op], norms=wide)[0].open == [True] * 3


def test_heads_in_a_batch_are_as_alone(monkeypatch):
    qkv = make(n=300, h=3)
    op = operator("performer", "softmax", qkv)
    together = matrix_errors(exact(qkv), op)
    monkeypatch.setattr(matrix_file, "MEMORY", 1)  # a head at a time
    apart = matrix_errors(exact(qkv), op)
    for name, value in together.items():
        assert torch.allclose(apart[name].double(), value.double(), rtol=1e-9), name


def test_a_small_error_is_resolved_in_float64():
    """An error of 1e-4 of B, of which float32 passes lose 1e-3 and more to the rounding of B."""
    qkv = make(n=300, dtype=torch.float32)
    b = exact(qkv.to(dtype=F64)).dense()
    noise = torch.randn(b.shape, generator=torch.Generator().manual_seed(0), dtype=F64)
    op = Dense(b + 1e-4 * noise / torch.linalg.matrix_norm(noise, 2)[:, None, None])
    actual = matrix_errors(exact(qkv), op)
    assert (actual["matrix_spectral_upper"] / actual["matrix_spectral_lower"] - 1 < 1e-2).all()
    assert ((actual["matrix_spectral"] - 1e-4).abs() <= 1e-2 * 1e-4).all()


def test_no_error_is_zero_and_a_matrix_that_is_not_finite_is_nan():
    qkv = make(n=300, h=2)
    nothing = matrix_errors(exact(qkv), Dense(exact(qkv).dense()))
    assert (nothing["matrix_spectral"] <= 1e-13).all() and (nothing["matrix_frobenius"] <= 1e-13).all()
    broken = exact(qkv).dense()
    broken[1, 5, 5] = float("nan")
    broken[0] += 1.0
    actual = matrix_errors(exact(qkv), Dense(broken))
    assert abs(float(actual["matrix_spectral"][0]) - 300) <= 1e-6 * 300
    assert all(bool(actual[name][1].isnan()) for name in MATRIX_METRICS)


def test_padding_is_left_out():
    qkv = make(n=310)
    mask = torch.ones(310, dtype=torch.bool)
    mask[::31] = False
    padded = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    full = matrix_errors(exact(padded), operator("performer", "softmax", padded))
    inner = padded.compressed()
    expected = matrix_errors(exact(inner), operator("performer", "softmax", inner))
    for name, value in expected.items():
        assert torch.equal(full[name], value), name
    with pytest.raises(UsageError, match="padding mask"):
        matrix_errors(exact(padded), operator("performer", "softmax", qkv))


def test_operators_of_other_shapes_are_refused():
    for n in (300, 30):
        with pytest.raises(UsageError, match="differ in shape"):
            matrix_errors(exact(make(n=n)), operator("linear", "softmax", make(n=n - 1)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("room", [0, 2**27])
def test_the_passes_are_products_with_the_difference(causal, room, monkeypatch):
    """`normal` and `first` against dense matrices; `kivi` is streamed, and stands between others that are not.

    Of the causal rows the first 384 see the first 384 keys alone; `performer` has weights at hidden ones too.
    """
    monkeypatch.setattr(differences_file, "KEPT", room)
    full = make(n=450, h=2) if causal else make(n=100, n_k=90, h=2)
    qkv, m = full.replace(causal=causal), full.n_k
    of = {"performer": full, "kivi": qkv, "window": qkv}
    ops = [None, *(operator(name, "softmax", inputs, 12) for name, inputs in of.items())]
    matrices = Differences(exact(qkv), ops)
    v1, _ = start_block(m, 16, 0, F64, torch.device("cpu"))
    first = matrices.first(v1)
    dense = [exact(qkv).dense() - (0 if op is None else op.dense()) for op in ops]
    which = torch.tensor([7, 0, 3, 2])
    x = torch.randn(4, m, 16, generator=torch.Generator().manual_seed(1), dtype=F64)
    got = matrices.normal(x, which)
    for place, i in enumerate(which.tolist()):
        e = dense[i // 2][i % 2]
        assert (got[place] - e.T @ (e @ x[place])).abs().max() <= 1e-12 * float(e.norm()) ** 2
    for i in range(8):
        e = dense[i // 2][i % 2]
        assert (first.normal[i] - e.T @ (e @ v1)).abs().max() <= 1e-12 * float(e.norm()) ** 2
        assert abs(float(first.frobenius2[i]) - float(e.norm()) ** 2) <= 1e-13 * float(e.norm()) ** 2
        assert abs(float(first.infinity[i]) - float(e.abs().sum(1).max())) <= 1e-13 * float(e.abs().sum(1).max())
        assert first.size[i] >= torch.linalg.matrix_norm(dense[0][i % 2], 2)


@pytest.mark.parametrize(("room", "again"), [(0, 300), (128 * 300 * 4, 172), (2**27, 0)])
def test_rows_of_a_streamed_approximation_are_computed_once_and_kept_while_there_is_room(room, again, monkeypatch):
    """Products with it would compute them twice a pass, and in float64. Rows without room are computed in each pass."""
    qkv, computed = make(n=300, h=1, dtype=torch.float32), Counter()
    b, other = exact(qkv), SoftmaxAttention(qkv.q, 0.9 * qkv.k, qkv.scale)
    [expected] = shared_matrix_errors(b, [other], norms=exact_norms(b))

    class Counted(SoftmaxAttention):
        def scores(self, heads, start, stop, out=None):
            computed[self.dtype] += stop - start
            return super().scores(heads, start, stop, out)

    monkeypatch.setattr(differences_file, "KEPT", room)
    monkeypatch.setattr(differences_file, "CPU_BLOCK", 128)
    [errors] = shared_matrix_errors(b, [Counted(other.q, other.k, other.scale)], norms=exact_norms(b))
    passes = int(errors.metrics["matrix_spectral_passes"])
    assert passes > 2 and computed == {torch.float32: 300 + again * (passes - 1)}
    assert abs(errors.metrics["matrix_spectral"] / expected.metrics["matrix_spectral"] - 1) < 1e-5


def test_nothing_of_size_n_by_n_is_made():
    """Low-rank operators at n = 3000: a dense head would be 36 MB of float32."""
    qkv = make(n=3000, h=1, dtype=torch.float32)
    rank = LowRank(qkv.q, None, qkv.k.mT)
    with Largest() as largest:
        matrix_errors(exact(qkv), rank)
    assert largest.numel <= 32 * 12 * 3000  # the widest basis; a block of rows has 64


@pytest.mark.parametrize("n", [256, 257], ids=["dense", "streamed"])
@pytest.mark.parametrize("far", [6.0, 12.0, 19.0, 22.0])
def test_norms_of_a_matrix_whose_squares_underflow(n, far):
    """Every key is far from every query: the entries of C are about exp(-far² · 2.8/2), from 1e-20 to 1e-300."""
    q, k, v = torch.randn(3, 1, n, 8, generator=torch.Generator().manual_seed(0), dtype=F64)
    b = exact(QKV(q, k + far, v), "gaussian")
    errors = matrix_errors(b, Dense(torch.zeros(1, n, n, dtype=F64)))
    size = b.dense().amax()
    expected = torch.linalg.matrix_norm(b.dense() / size, 2) * size
    assert errors["matrix_spectral_lower"] <= expected * (1 + 1e-12)
    assert expected * (1 - 1e-12) <= errors["matrix_spectral_upper"] <= 1.001 * errors["matrix_spectral_lower"]
    frobenius = (b.dense() / size).norm() * size
    assert (errors["matrix_frobenius"] - frobenius).abs() <= 1e-12 * frobenius
    assert (errors["matrix_spectral_relative"] - 1).abs() <= 1e-12


@pytest.mark.parametrize("size", [1e-12, 1e-20, 1e-100, 1e-200, 1e-300])
def test_an_error_below_the_rounding_of_products_is_that_of_its_entries(size):
    """B~ lacks some entries of B, and equals it elsewhere: the products with both cancel to rounding."""
    draws = torch.Generator().manual_seed(0)
    b = torch.softmax(3 * torch.randn(1, 300, 300, generator=draws, dtype=F64), -1)
    lost = torch.rand(b.shape, generator=draws) < 0.3
    b[lost] = size * torch.rand(int(lost.sum()), generator=draws, dtype=F64)
    kept = b.masked_fill(lost, 0)
    errors = matrix_errors(Dense(b), Dense(kept))
    expected = torch.linalg.matrix_norm((b - kept) / size, 2) * size
    assert errors["matrix_spectral_lower"] <= expected <= errors["matrix_spectral_upper"]
    assert errors["matrix_spectral_lower"] <= errors["matrix_spectral"] <= errors["matrix_spectral_upper"]
    assert errors["matrix_spectral_upper"] <= 1.001 * errors["matrix_spectral_lower"]
