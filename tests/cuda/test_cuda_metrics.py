"""References and metrics on a GPU: exact outputs, certified intervals, spectra, condition numbers, theorems."""

import math

import pytest
import torch
from inputs import make
from theory_settings import setting_for

from attnprobe import approximate, exact, findings
from attnprobe.methods import KERNELS
from attnprobe.metrics import (
    ExactOutput,
    attention_maps,
    core_matrices,
    exact_matrices,
    input_statistics,
    iteration_gradient,
    kernel_errors,
    lemma3_interval,
    lower_bound,
    matrix_errors,
    output_errors,
    repeated_rows,
    row_metrics,
    schulz_residuals,
    sensitivity,
    shared_matrix_errors,
    spectra,
)
from attnprobe.operators import GaussianAttention, UnnormalisedAttention
from attnprobe.operators.attention import UNSHIFTED_KEYS
from attnprobe.operators.linalg.condition import condition
from attnprobe.operators.linalg.dimension import largest_leverage, statistical_dimension
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output
from attnprobe.theorems import THEOREMS

F64 = torch.float64
DTYPES = (F64, torch.float32, torch.bfloat16)
PASSES = 300  # tokens: more than are held, so that intervals come from passes
ROUNDED = {F64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 2e-2}  # relative; of half precision the factors differ


def forms(n=60, dtype=F64):
    """Plain, padded and causal inputs."""
    qkv = make(n=n).to(dtype=dtype)
    mask = torch.arange(n) % 7 != 3
    return {
        "plain": qkv,
        "padded": QKV(qkv.q, qkv.k, qkv.v, mask=mask),
        "causal": QKV(qkv.q, qkv.k, qkv.v, causal=True),
    }


def close(place, got, expected, tolerance=1e-9):
    """Each number, relative to the largest finite one."""
    got, expected = place.back(got).double(), expected.double()
    size = float(expected.abs().nan_to_num(nan=0.0, posinf=0.0).max())
    same = torch.isclose(got, expected, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    return got.shape == expected.shape and bool(same.all())


def all_close(place, got, expected, tolerance=1e-9):
    assert got.keys() == expected.keys()
    return {
        name: (got[name], expected[name]) for name in expected if not close(place, got[name], expected[name], tolerance)
    }


@pytest.mark.share
@pytest.mark.parametrize("form", ["plain", "padded", "causal"])
@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_outputs(target, form, dtype, place):
    qkv = forms(dtype=dtype)[form]
    got = exact_output(place.sent(qkv), target)
    assert place.holds(got) and got.dtype == F64 and close(place, got, exact_output(qkv, target), 1e-13)


@pytest.mark.share
@pytest.mark.parametrize(("largest", "unshifted"), [(100, True), (5000, False)])
def test_exact_outputs_of_many_keys(largest, unshifted, place):
    """Keys of two blocks; exponentials of scores above 709 are infinite without a shift."""
    made = make(n=UNSHIFTED_KEYS + 50, h=2)
    q, k = (x / x.norm(dim=-1).amax() for x in (made.q[:, :5], made.k))
    qkv = QKV(q, k, made.v, scale=largest)
    there = place.sent(qkv)
    assert exact(there).needs_no_shift == (unshifted and there.device.type != "cpu")
    assert close(place, exact_output(there), exact_output(qkv), 1e-12)


@pytest.mark.share
@pytest.mark.parametrize("form", ["plain", "causal"])
@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_exact_outputs_with_rows_dealt_to_devices(target, form, place):
    qkv = forms(150)[form]
    there = place.sent(qkv)
    if place.name == "pretended":
        pytest.skip("a thread has no pretended device")
    for count in (1, 2):
        assert close(place, exact_output(there, target, [place.device] * count), exact_output(qkv, target), 1e-13)


@pytest.mark.share
@pytest.mark.parametrize("form", ["plain", "padded", "causal"])
def test_output_errors(form, place):
    qkv = forms()[form]
    there, other = place.sent(qkv), approximate("linear", qkv).output
    expected = output_errors(exact_output(qkv), other, qkv)
    assert not all_close(place, output_errors(exact_output(there), place.sent(other), there), expected)
    assert not all_close(place, output_errors(exact(there), place.sent(other), there), expected)
    assert not all_close(place, lower_bound(exact_output(there), 3), lower_bound(exact_output(qkv), 3))
    reference = ExactOutput.of(exact_output(there))
    assert close(place, reference.row_sizes, ExactOutput.of(exact_output(qkv)).row_sizes)


@pytest.mark.parametrize("n", [pytest.param(60, marks=pytest.mark.share), PASSES])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_certified_intervals(dtype, n, place):
    qkv = make(n=n).to(dtype=dtype)
    there, methods = place.sent(qkv), (("nystromformer", 8), ("window", 9), ("vmean", None))
    operators = [approximate(name, qkv, d).operator for name, d in methods]
    away = [approximate(name, there, d).operator for name, d in methods]
    every, wanted_of_all = shared_matrix_errors(exact(there), away), shared_matrix_errors(exact(qkv), operators)
    for actual, expected in zip(every, wanted_of_all, strict=True):
        got = {name: place.back(values) for name, values in actual.metrics.items()}
        band = ROUNDED[dtype]
        for name in ("matrix_spectral", "matrix_frobenius", "matrix_infinity", "matrix_spectral_relative"):
            assert torch.allclose(got[name], expected.metrics[name], rtol=max(band, 1e-6)), name
        lower, upper = got["matrix_spectral_lower"], got["matrix_spectral_upper"]
        assert (lower <= got["matrix_spectral"]).all() and (got["matrix_spectral"] <= upper).all()
        assert (lower <= expected.metrics["matrix_spectral_upper"] * (1 + band)).all()  # both hold the same number
        assert (expected.metrics["matrix_spectral_lower"] <= upper * (1 + band)).all()
        assert actual.kind == expected.kind or dtype != F64


@pytest.mark.parametrize("name", ["window", "linear", "informer"])
def test_intervals_hold_the_norm_of_the_dense_matrix(name, place):
    qkv = make(n=PASSES)
    there = place.sent(qkv)
    operator = approximate(name, there, 12 if name != "linear" else None).operator
    errors = matrix_errors(exact(there), operator)
    dense = torch.linalg.matrix_norm(place.back(exact(there).dense() - operator.dense()), 2)
    lower, upper = (place.back(errors[f"matrix_spectral_{end}"]) for end in ("lower", "upper"))
    assert (lower <= dense * (1 + 1e-12)).all() and (dense <= upper * (1 + 1e-12)).all()


@pytest.mark.share
@pytest.mark.parametrize("form", ["plain", "causal"])
def test_input_statistics_and_maps(form, place):
    qkv = forms(PASSES if form == "plain" else 60)[form]
    there = place.sent(qkv)
    assert not all_close(place, input_statistics(there), input_statistics(qkv), 1e-3)  # norms close to 1e-2
    assert close(place, attention_maps(exact(there), 5), attention_maps(exact(qkv), 5))
    assert repeated_rows(there) == repeated_rows(qkv) == 0


@pytest.mark.share
@pytest.mark.parametrize("of", ["softmax", "gaussian", "unnormalised", "lifted-gaussian", "lifted-softmax", "output"])
@pytest.mark.parametrize("kind, k", [("singular", None), ("singular", 4), ("eigen", None)])
def test_spectra(of, kind, k, place):
    if kind == "eigen" and of == "output":
        pytest.skip("an output has no eigenvalues")
    qkv = make(n=80)
    for got, expected in zip(spectra(place.sent(qkv), of, kind, k=k), spectra(qkv, of, kind, k=k), strict=True):
        size = float(expected.values.abs().max())

        def order(x):
            return torch.sort(x.abs(), descending=True).values

        assert torch.allclose(order(got.values), order(expected.values), rtol=1e-6, atol=1e-9 * size)
        assert got.size == expected.size and got.complete == expected.complete and got.closed == expected.closed
        assert got.passes == expected.passes and math.isclose(got.log_scale, expected.log_scale, rel_tol=1e-12)


@pytest.mark.share
def test_the_spectrum_of_an_approximation(place):
    qkv = make(n=80)
    there = place.sent(qkv)
    for got, expected in zip(
        spectra(there, approximate("skyformer", there, 8).operator),
        spectra(qkv, approximate("skyformer", qkv, 8).operator),
        strict=True,
    ):
        assert torch.allclose(got.values, expected.values, rtol=1e-6, atol=1e-9 * float(expected.values[0]))


@pytest.mark.share
def test_condition_numbers(place):
    qkv, options = make(n=60), {}
    there = place.sent(qkv)
    for got, expected in zip(exact_matrices(there, 0), exact_matrices(qkv, 0), strict=True):
        a, b = condition(got[1]), condition(expected[1])
        assert got[0] == expected[0] and got[2] == expected[2] and a.flag == b.flag and a.rank == b.rank
        assert a.value is None or math.isclose(a.value, b.value, rel_tol=1e-4)
    for name in ("skyformer", "nystromformer"):
        cores = [core_matrices(x, approximate(name, x, 8), options) for x in (there, qkv)]
        for got, expected in zip(*cores, strict=True):
            assert got.name == expected.name and torch.equal(got.repeated, expected.repeated)
            assert close(place, got.matrix, expected.matrix)
            away = schulz_residuals(got.matrix, got.start, 4)
            assert close(place, away, schulz_residuals(expected.matrix, expected.start, 4), 1e-6)
            if got.scaled:
                assert lemma3_interval(got.matrix)[2] == lemma3_interval(expected.matrix)[2]


def test_gradients_of_inverses_and_sensitivities(place):
    if place.name == "pretended":
        pytest.skip("a pretended tensor has no forward-mode derivative")
    qkv = make(n=40)
    there = place.sent(qkv)
    assert torch.allclose(sensitivity(exact, there, directions=2), sensitivity(exact, qkv, directions=2), rtol=1e-5)
    cores = [core_matrices(x, approximate("skyformer", x, 8), {})[0] for x in (there, qkv)]
    got, expected = (iteration_gradient(core.matrix, core.start) for core in cores)
    assert torch.allclose(got, expected, rtol=1e-2)


@pytest.mark.share
def test_statistical_dimensions(place):
    x, ridge = make(n=90).q, torch.tensor([[0.5, 2.0], [0.5, 2.0]], dtype=F64)
    here, there = (GaussianAttention(q, q, 0.5) for q in (x, place.sent(x)))
    for run in (statistical_dimension, largest_leverage):
        got, expected = run(there, place.sent(ridge)), run(here, ridge)
        assert close(place, got.lower, expected.lower, 1e-4) and close(place, got.upper, expected.upper, 1e-4)


def test_the_shift_of_unnormalised_attention(place):
    qkv = make(n=PASSES)
    there = place.sent(qkv)
    got, expected = (UnnormalisedAttention(x.q, x.k, x.scale) for x in (there, qkv))
    assert close(place, got.shift, expected.shift, 1e-13) and close(place, got @ there.v, expected @ qkv.v, 1e-12)


@pytest.mark.share
@pytest.mark.parametrize("name", sorted(THEOREMS))
def test_theorems(name, place):
    """The same verdicts, and bounds up to rounding."""
    qkv = make(n=40)
    methods = ("skyformer",) if THEOREMS[name].per_method else ()

    def run(x):
        return list(THEOREMS[name].check(x, setting_for(x, (6,), seeds=range(2), methods=methods)))

    for got, expected in zip(run(place.sent(qkv)), run(qkv), strict=True):
        assert (got.d, got.at, got.verdicts()) == (expected.d, expected.at, expected.verdicts())
        for number in ("bound", "measured"):
            a, b = place.back(getattr(got, number)), getattr(expected, number)
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-7, equal_nan=True), number


def test_findings_from_python(place):
    qkv = make(n=40)
    got, expected = (findings(x, "rank-collapse") for x in (place.sent(qkv), qkv))
    assert [one.verdicts() for one in got] == [one.verdicts() for one in expected]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_kernels(name, dtype, place):
    """Judged by the GPU as by the CPU; a kernel that torch does not have for a dtype is skipped there."""
    from attnprobe.errors import Unsupported

    if name == "torch:flex" or place.name == "pretended" and name != "torch:int8":
        pytest.skip("is compiled for the device" if name == "torch:flex" else "torch chooses its kernels by the device")
    there = place.sent(make(n=60, p=8, p_v=8).to(dtype=dtype))
    try:
        approx = approximate(name, there)
    except Unsupported as error:
        pytest.skip(str(error))
    errors = {metric: place.back(values) for metric, values in kernel_errors(approx, there).items()}
    assert (errors["cosine"] > 0.999).all() and torch.isfinite(errors["max_abs"]).all()
    assert errors["relative_frobenius"].max() <= 64 * torch.finfo(dtype).eps + (0.05 if name == "torch:int8" else 0)


SELECTIONS = ("topk", "quest", "moba", "snapkv", "h2o", "tova", "expected", "knorm", "keydiff", "window", "random")


SHARE = ("topk", "moba", "h2o", "magicpig")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.share] * (name in SHARE)) for name in (*SELECTIONS, "magicpig")]
)
def test_rows_of_causal_attention(name, place):
    qkv, options = forms(96)["causal"], {"block": 8} if name == "moba" else {}
    there = place.sent(qkv)
    expected = row_metrics(exact(qkv), approximate(name, qkv, 24, **options), qkv)
    got = row_metrics(exact(there), approximate(name, there, 24, **options), there)
    assert got.keys() == expected.keys() and not all_close(place, got, expected, 1e-7)
