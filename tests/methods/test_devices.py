"""Every method on a device that is not the CPU, with numbers, by a pretended one; see `pretend_device`."""

import pytest
import torch
from every_setting import DEFAULTS, THINNED, run
from inputs import make
from pretend_device import AWAY, Pretended, pretending

from attnprobe.qkv import QKV
from attnprobe.reference import exact_output


def sent(qkv):
    mask = None if qkv.mask is None else qkv.mask.to(AWAY)
    return QKV(qkv.q.to(AWAY), qkv.k.to(AWAY), qkv.v.to(AWAY), mask=mask)


def same(away, here):
    """Other blocks of rows are used there, which moves the last digits."""
    assert isinstance(away, Pretended) and away.shape == here.shape
    return (away.held - here).abs().max() <= 1e-10 * max(1.0, float(here.abs().max()))


@pytest.mark.parametrize("name, target, options", THINNED)
def test_a_method_stays_on_the_device_of_its_inputs(name, target, options):
    qkv, x = make(n=24), torch.linspace(-1, 1, 2 * 24 * 3, dtype=torch.float64).reshape(2, 24, 3)
    expected = run(name, target, qkv, options)
    with pretending():
        got = run(name, target, sent(qkv), options)
        assert got.output.device == got.operator.device == AWAY and same(got.output, expected.output)
        assert same(got.operator @ x.to(AWAY), expected.operator @ x)
        assert same(got.operator.rmatmul(x.to(AWAY)), expected.operator.rmatmul(x))
        assert same(got.operator.rows(3, 9), expected.operator.rows(3, 9))
        assert same(got.operator.row_sums(), expected.operator.row_sums())
    assert all(not isinstance(draw, Pretended) for draw in got.draws.values())
    assert got.draws_hash() == expected.draws_hash()


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_padding_stays_on_it_too(name, target):
    mask = torch.arange(26) % 9 != 4
    qkv = make(n=26)
    qkv = QKV(qkv.q, qkv.k, qkv.v, mask=mask)
    expected = run(name, target, qkv, {})
    with pretending():
        got = run(name, target, sent(qkv), {})
        assert same(got.output, expected.output) and same(got.operator.dense(), expected.operator.dense())


@pytest.mark.parametrize("name, target, options", THINNED)
def test_no_tensor_is_made_on_the_default_device(name, target, options):
    """With a default device that holds no numbers, a tensor made without a device would spoil the result."""
    qkv = make(n=24)
    expected = run(name, target, qkv, options)
    with torch.device("meta"):
        got = run(name, target, qkv, options)
        products = got.operator @ qkv.v, got.operator.rmatmul(qkv.q), got.operator.rows(3, 9), got.operator.row_sums()
    assert torch.equal(got.output, expected.output) and got.draws_hash() == expected.draws_hash()
    assert all(part.device.type == "cpu" for part in (*products, *got.diagnostics.values()))


def test_exact_attention_stays_on_the_device():
    qkv = make(n=24)
    for target in ("softmax", "gaussian"):
        with pretending():
            got = exact_output(sent(qkv), target)
        assert same(got, exact_output(qkv, target))


def test_a_mixture_of_devices_is_noticed():
    """The control: what an accelerator refuses, and what it allows."""
    with pretending():
        away, here = torch.ones(3, device=AWAY), torch.ones(3, device="cpu")
        for mixture in (lambda: away + here, lambda: here @ away, lambda: torch.stack([away, here])):
            with pytest.raises(RuntimeError, match="meet tensors on meta"):
                mixture()
        with pytest.raises(RuntimeError, match="meet tensors on meta"):
            here[torch.zeros(2, dtype=torch.int64, device=AWAY)]
        assert (away + here.sum()).tolist() == [4.0] * 3  # a scalar
        assert away[torch.tensor([0, 2], device="cpu")].tolist() == [1.0] * 2  # an index
        assert (away.to("cpu") + here).tolist() == [2.0] * 3
