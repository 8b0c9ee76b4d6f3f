"""The residual error, held to plain torch: the modules of the model are named here and nowhere in the package."""

from __future__ import annotations

import pytest
import torch
from tiny_models import CAPTURED, build, inputs

from attnprobe import UsageError, capture, residual_errors

HEAD, ROW = 1, 0


def of_llama(layer, stream, output):
    """The output projection is added to the stream."""
    return stream + layer.self_attn.o_proj(output)


def of_bert(layer, stream, output):
    """The norm follows the sum."""
    return stream + layer.attention.output.dense(output)


def of_gemma(layer, stream, output):
    """A norm stands between the projection and the stream."""
    return stream + layer.post_attention_layernorm(layer.self_attn.o_proj(output))


def of_gpt2(layer, stream, output):
    return stream + layer.attn.c_proj(output)


PLAIN = {
    "Llama": (of_llama, lambda model: model.layers),
    "BERT": (of_bert, lambda model: model.encoder.layer),
    "Gemma 3": (of_gemma, lambda model: model.layers),
    "GPT-2": (of_gpt2, lambda model: model.h),
}


def found(name):
    """A model's captured calls, and the input of each of its layers."""
    model = build(name, output_hidden_states=True)
    batch = inputs(model, padded=False)
    calls = capture(model, batch, blocks=True)
    with torch.no_grad():
        streams = model(**batch).hidden_states
    return model, list(calls.values()), streams


@pytest.mark.parametrize("name", PLAIN)
def test_the_block_gives_what_the_models_own_modules_give(name):
    """For one head and for all of a layer, row by row in plain torch."""
    rebuilt, layers_of = PLAIN[name]
    model, calls, streams = found(name)
    generator = torch.Generator().manual_seed(3)
    for call, layer, stream in zip(calls, layers_of(model), streams, strict=False):
        own = call.output().float()
        error = torch.randn(own.shape, generator=generator)
        for heads in ([HEAD], range(call.heads)):
            moved = own.clone()
            moved[:, :, list(heads)] += error[:, :, list(heads)]
            exact = rebuilt(layer, stream, own.flatten(2))
            change = rebuilt(layer, stream, moved.flatten(2)) - exact
            ratios = [(change[ROW, i].norm() / exact[ROW, i].norm()).item() for i in range(len(change[ROW]))]
            expected = sum(r * r / (1 + r * r) for r in ratios) / len(ratios)
            ours = call.block.change(error[:, :, list(heads)], heads)
            got = residual_errors(ours[ROW], call.block.stream[ROW])
            assert got.item() == pytest.approx(expected, rel=1e-4) and 0 < got.item() < 1


@pytest.mark.parametrize("name", sorted(set(CAPTURED) - {"GPT-NeoX", "OPT"}))
def test_the_blocks_of_other_architectures_are_found_and_those_that_are_not_are_absent(name):
    """GPT-NeoX adds attention and MLP at once, and OPT flattens its stream, so theirs are not found."""
    model = build(name)
    calls = list(capture(model, inputs(model), blocks=True).values())
    assert all(call.block is not None for call in calls[: 2 if "BART" in name else None])


@pytest.mark.parametrize("name", ["GPT-NeoX", "OPT"])
def test_a_block_that_is_not_verified_is_absent(name):
    model = build(name)
    assert {call.block for call in capture(model, inputs(model), blocks=True).values()} == {None}


def test_blocks_are_captured_on_demand():
    model = build("Llama")
    assert {call.block for call in capture(model, inputs(model)).values()} == {None}


def test_a_row_that_explodes_counts_as_one():
    change = torch.tensor([[1e30, 0.0], [0.0, 0.0], [float("inf"), 0.0]])
    stream = torch.ones(3, 2)
    assert residual_errors(change, stream).item() == pytest.approx(2 / 3)
    assert residual_errors(torch.zeros(3, 2), torch.zeros(3, 2)).item() == 0
    assert residual_errors(torch.full((3, 2), torch.nan), stream).isnan()


@pytest.mark.parametrize("change, stream", [((3, 2), (4, 2)), ((0, 2), (0, 2)), ((2,), (2,))])
def test_sizes_that_do_not_fit_are_refused(change, stream):
    with pytest.raises(UsageError, match="the change has shape"):
        residual_errors(torch.ones(change), torch.ones(stream))
