"""Values of any size in float64: a power of two of V, of outputs or of a stream moves no relative number."""

import pytest
import torch

from attnprobe import QKV, approximate, exact
from attnprobe.errors import UsageError
from attnprobe.experiments.inject.drift import local_errors
from attnprobe.methods.registry import METHODS
from attnprobe.metrics import kernel_errors, output_errors, residual_errors, row_metrics
from attnprobe.metrics.guarantees import GuaranteeReference, over_heads
from attnprobe.rng import generator

POWERS = [-1000, -560, 560, 1000]
SCALE_OF_VALUES = {"kdeformer"}  # its probabilities are of [V, 1]


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
    local = local_errors(own, got, None, [0, 1])
    return {"error": torch.tensor(local.error), "rows": torch.tensor(local.rows)}


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("measure", [own_rows, in_outputs, in_kernels, in_guarantees, in_streams, in_a_model])
def test_no_relative_error_depends_on_the_unit(measure, power):
    known, found = measure(1.0), measure(2.0**power)
    assert set(known) == set(found)
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("name", sorted(set(METHODS) - SCALE_OF_VALUES))
def test_no_method_depends_on_the_unit_of_values(name, power):
    target = METHODS[name].targets[0]
    known, found = (approximate(name, inputs(size), 16, target=target).output for size in (1.0, 2.0**power))
    assert torch.equal(found / 2.0**power, known)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("name", ["knorm", "keydiff"])
def test_choices_by_norms_or_directions_do_not_depend_on_the_unit_of_keys(name, power):
    known, found = (approximate(name, inputs(of_keys=size), 16).output for size in (1.0, 2.0**power))
    assert torch.equal(found, known)


def test_a_stream_without_a_column_is_refused():
    with pytest.raises(UsageError, match="n and m of at least 1"):
        residual_errors(torch.ones(2, 3, 0), torch.ones(3, 0))
