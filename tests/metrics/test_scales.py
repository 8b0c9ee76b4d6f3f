"""Numbers of any size in float64: a power of two of V, an output, a matrix or a stream moves no relative number."""

from functools import cache

import pytest
import torch
from thinned import others_slow

from attnprobe import QKV, approximate, exact
from attnprobe.errors import UsageError
from attnprobe.measure.inject.drift import ExactOutput
from attnprobe.methods.registry import METHODS
from attnprobe.metrics import (
    input_statistics,
    kernel_errors,
    lower_bound,
    matrix_errors,
    output_errors,
    residual_errors,
    row_metrics,
    schulz_residuals,
    sensitivity,
    spectra,
)
from attnprobe.metrics.guarantees import GuaranteeReference, over_heads
from attnprobe.operators import Dense
from attnprobe.operators.linalg.condition import condition
from attnprobe.operators.linalg.dimension import exact_leverage, largest_leverage, leverage, statistical_dimension
from attnprobe.operators.linalg.inverses import inverse_root, razavi, start, truncated_pinv
from attnprobe.operators.linalg.norms import output_norms, row_norms, tail_singular_values
from attnprobe.operators.linalg.sampling import kmeans
from attnprobe.operators.linalg.spectra import eigenvalues, leading_singular_values, singular_values
from attnprobe.rng import generator

POWERS = [-1000, -560, 560, 1000]
every_power = pytest.mark.parametrize("power", others_slow(POWERS, lambda power: power[0] in (-1000, 560)))
SCALE_OF_VALUES = {"kdeformer"}  # its probabilities are of [V, 1]
SCALE_OF_VALUES |= {name for name, entry in METHODS.items() if entry.format is not None}  # they store float32 at most


def inputs(of_values=1.0, of_keys=1.0):
    q, k, v = torch.randn(3, 2, 40, 6, generator=generator(0, "scales"), dtype=torch.float64)
    v[0, 3] = 0
    return QKV(q / of_keys, k * of_keys, v * of_values)


def own_rows(size):
    qkv = inputs(size)
    return row_metrics(exact(qkv), approximate("topk", qkv, 8), qkv, needle=torch.tensor([2]))


def in_outputs(size):
    qkv = inputs(size)
    errors = output_errors(exact(qkv), approximate("topk", qkv, 8), qkv)
    return {name: value for name, value in errors.items() if name not in ("output_spectral", "output_frobenius")}


def in_kernels(size):
    qkv = inputs(size)
    errors = kernel_errors(approximate("topk", qkv, 30), qkv)
    return {name: value for name, value in errors.items() if "max_abs" not in name and "framework" not in name}


def in_guarantees(size):
    qkv = inputs(size)
    reference = GuaranteeReference(qkv)
    errors = reference.errors(approximate("vattention", qkv, 30))
    return {**errors, "heads": over_heads(errors["output"], reference.sizes)}


def in_streams(size):
    change, stream = torch.randn(2, 9, 5, generator=generator(1, "scales"), dtype=torch.float64) * size
    change[0], stream[1] = 0, 0
    return {
        "residual": residual_errors(change, stream),
        "largest": residual_errors(change, 0 * stream),
        "least": residual_errors(0 * change, stream),
    }


def in_a_model(size):
    own, got = torch.randn(2, 9, 2, 5, generator=generator(2, "scales"), dtype=torch.float64) * size
    own[0] = got[0]
    local = ExactOutput(own, None, [0, 1]).errors(got)
    return {"error": torch.tensor(local.error), "rows": torch.tensor(local.rows)}


def matrices(n=280, seed=3):
    """B of two heads, nonnegative, and B~ beside it."""
    b = torch.rand(2, n, n, generator=generator(seed, "scales"), dtype=torch.float64) ** 2
    return b, b + 0.1 * torch.randn(2, n, n, generator=generator(seed, "other"), dtype=torch.float64)


def in_matrices(size, n=280):
    b, approx = (x * size for x in matrices(n))
    of_size = (
        "matrix_spectral",
        "matrix_spectral_lower",
        "matrix_spectral_upper",
        "matrix_frobenius",
        "matrix_infinity",
    )
    errors = matrix_errors(Dense(b), Dense(approx))
    return {name: value / size if name in of_size else value for name, value in errors.items()}


def in_dense_matrices(size):
    return in_matrices(size, 40)


def in_norms(size):
    x = matrices(40)[1] * size
    spectral, frobenius = output_norms(x)
    sizes = {"spectral": spectral, "frobenius": frobenius, "rows": row_norms(x), "tail": tail_singular_values(x)}
    bounds = lower_bound(x, 3)
    found = {name: value / size for name, value in sizes.items()}
    return found | {name: value for name, value in bounds.items() if name.endswith("relative")}


def in_spectra(size):
    """All values of a small matrix, and leading values of a larger one, of operators that stream or do not."""
    b, approx = (x * size for x in matrices())
    symmetric = eigenvalues(approx[0] + approx[0].mT, symmetric=True)
    found = {"singular": singular_values(b[0]), "symmetric": symmetric, "eigen": eigenvalues(b[0])[:1].abs()}
    found = {name: value / size for name, value in found.items()}
    for name, operator, k in (("all", Dense(b), None), ("leading", Dense(approx), 8)):
        one = spectra(QKV(*torch.ones(3, 2, 280, 1, dtype=torch.float64)), operator, k=k)[0]
        numbers = [one.stable_rank, one.entropy_rank, one.participation_ratio, one.rank(90)]
        numbers += [one.rank_within(0.5, norm) for norm in ("spectral", "frobenius")]
        found[name] = torch.tensor([float("nan") if x is None else x for x in numbers], dtype=torch.float64)
        found[f"{name} norm"] = torch.tensor(one.frobenius, dtype=torch.float64) / size
    leading = leading_singular_values(Dense(approx[:1]), 8)
    return found | {name: getattr(leading, name) / size for name in ("values", "upper")}


def in_condition(size):
    """A matrix of condition 1e10, whose inverses are in range too."""
    u, _, v = torch.linalg.svd(matrices(12)[1])
    values = torch.logspace(0, -10, 12, dtype=torch.float64)
    matrix = u * values @ v * size
    one = condition(matrix[0])
    numbers = torch.tensor([one.value, one.cond_eff, one.rank, one.cond_at(5)], dtype=torch.float64)
    return {"numbers": numbers, "values": one.values / size}


def in_inverses(size):
    core = matrices(12)[0]
    core = (core @ core.mT + 9 * torch.eye(12, dtype=torch.float64)) * size
    root = inverse_root(core) * size**0.5
    pseudo = {"root": root @ root.mT, "pinv": truncated_pinv(core) * size}
    found = {name: inverse.diagonal(dim1=1, dim2=2) for name, inverse in pseudo.items()}
    found["steps"] = razavi(core, start(core, "norms"), 8) * size
    return found | {"residuals": schulz_residuals(core, "norms", 8)}


def in_dimensions(size):
    x = matrices(60)[1]
    kernel = x @ x.mT * size
    ridge = torch.tensor([[3.0, 0.5], [2.0, 1.0]], dtype=torch.float64) * size
    dimension = statistical_dimension(Dense(kernel), ridge)
    rows = leverage(Dense(kernel), ridge, torch.tensor([[1, 5], [2, 7]]))
    largest = largest_leverage(Dense(kernel), ridge)
    return {
        **{name: getattr(dimension, name) for name in ("value", "lower", "upper", "standard_error")},
        **{
            f"{one} {name}": getattr(of, name)
            for one, of in (("rows", rows), ("largest", largest))
            for name in ("lower", "upper")
        },
        "exact": exact_leverage(kernel[0], ridge[0]),
    }


def in_sensitivities(size):
    """Of a matrix as large as ``size``, of unscaled Q and K."""
    qkv = inputs()
    return {"change": sensitivity(lambda x: Dense(exact(x).dense() * size), qkv, directions=2)}


def in_centroids(size):
    x = matrices(40)[1]
    return {"kmeans": kmeans(x * size, 5, [generator(0, "centroids", head) for head in range(2)]) / size}


def in_inputs(size):
    """Q larger by ``size`` and K smaller: the scores are the same. And V larger."""
    found = {}
    for causal in (False, True):
        qkv = inputs(size, size).replace(causal=causal)
        for name, value in input_statistics(qkv).items():
            unit = {"q": 1 / size, "k": size, "v": size}[name[0]] if name[1:] in ("_norm_mean", "_norm_max") else 1.0
            found[f"{name} {causal}"] = value / unit
    return found


def in_mean_errors(size):
    errors = torch.rand(2, 9, generator=generator(4, "scales"), dtype=torch.float64) * size
    return {"heads": over_heads(errors) / size}


MEASURES = [own_rows, in_outputs, in_kernels, in_guarantees, in_streams, in_a_model]
OF_MATRICES = [in_matrices, in_dense_matrices, in_norms, in_spectra, in_condition, in_inverses, in_dimensions]
OF_MATRICES += [in_sensitivities, in_centroids, in_inputs, in_mean_errors]


@cache
def in_ones(measure):
    """What is measured in the unit 1, once for all other units."""
    return measure(1.0)


@every_power
@pytest.mark.parametrize("measure", MEASURES + OF_MATRICES)
def test_no_relative_error_depends_on_the_unit(measure, power):
    known, found = in_ones(measure), measure(2.0**power)
    assert set(known) == set(found)
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=0, equal_nan=True, msg=name)


@every_power
@pytest.mark.parametrize("name", sorted(set(METHODS) - SCALE_OF_VALUES))
def test_no_method_depends_on_the_unit_of_values(name, power):
    target = METHODS[name].targets[0]
    known, found = (approximate(name, inputs(size), 16, target=target).output for size in (1.0, 2.0**power))
    assert torch.equal(found / 2.0**power, known)


@every_power
@pytest.mark.parametrize("name", ["knorm", "keydiff"])
def test_choices_by_norms_or_directions_do_not_depend_on_the_unit_of_keys(name, power):
    known, found = (approximate(name, inputs(of_keys=size), 16).output for size in (1.0, 2.0**power))
    assert torch.equal(found, known)


def test_a_stream_without_a_column_is_refused():
    with pytest.raises(UsageError, match="n and m of at least 1"):
        residual_errors(torch.ones(2, 3, 0), torch.ones(3, 0))
