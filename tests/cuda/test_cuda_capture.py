"""Capture of every architecture on a GPU: the tensors of the CPU up to the model's own rounding."""

import pytest
import tiny_models
import torch
from tiny_models import CAPTURED

from attnprobe import capture, injected
from attnprobe.errors import SourceError
from attnprobe.inputs.hooks.capture import capture_all
from attnprobe.operators.precision import full_precision

SAME = 2e-4  # relative to the largest entry, in float32 over a few layers


def moved(batch, place):
    return {name: place.sent(x) for name, x in batch.items()}


def close(place, got, expected):
    expected = expected.double()
    return (place.back(got).double() - expected).abs().max() <= SAME * expected.abs().max().clamp(min=1e-3)


@pytest.fixture
def both(place):
    """The calls of a model on the CPU and on the device."""
    if place.name == "pretended":
        pytest.skip("a model's parameters cannot be on a pretended device")

    def call(name):
        model = tiny_models.build(name)
        batch = tiny_models.inputs(model)
        with full_precision():  # cuDNN makes convolutions of image models in TF32 by default
            try:
                expected = capture_all(model, batch)
            except SourceError as refusal:  # by this transformers; the ordinary suite says which models it must take
                pytest.skip(str(refusal))
            got = capture_all(model.to(place.device), moved(batch, place))
        return expected, got

    return call


@pytest.mark.parametrize("name", CAPTURED)
def test_every_call_is_that_of_the_cpu(name, both, place):
    (expected, _), (got, full) = both(name)
    assert list(got) == list(expected) and full <= 1e-5
    for key, call in expected.items():
        away = got[key]
        assert all(place.holds(getattr(away, axis)) for axis in "qkv")
        assert all(close(place, getattr(away, axis), getattr(call, axis)) for axis in "qkv")
        assert str(away.pattern) == str(call.pattern) and away.extras() == call.extras() and away.delta <= 1e-5
        assert close(place, away.output(), call.output())


def test_a_method_in_a_model(place):
    if place.name == "pretended":
        pytest.skip("a model's parameters cannot be on a pretended device")
    model = tiny_models.build("BERT")
    batch, outputs = tiny_models.inputs(model), []
    for to in (torch.device("cpu"), place.device):
        there = {name: x.to(to) for name, x in batch.items()}
        with full_precision(), injected(model.to(to), "nystromformer", 4), torch.no_grad():
            outputs.append(tiny_models.hidden(model, there))
    valid = batch["attention_mask"].bool()
    assert close(place, outputs[1][valid.to(outputs[1].device)], outputs[0][valid])


def test_a_model_on_the_device_gives_tensors_there(place):
    if place.name == "pretended":
        pytest.skip("a model's parameters cannot be on a pretended device")
    model = tiny_models.build("BERT").to(place.device)
    calls = capture(model, moved(tiny_models.inputs(model), place), [0])
    assert all(place.holds(call.qkv(0).q) for call in calls.values())
