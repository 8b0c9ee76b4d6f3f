"""The residual error, held to plain torch: the modules of the model are named here and nowhere in the package."""

import pytest
import torch
from thinned import others_slow
from tiny_models import CAPTURED, build, inputs

from attnprobe import UsageError, approximate, budgets, capture, exact, residual_errors, row_metrics
from attnprobe.inputs.hooks.capture import capture_layers
from attnprobe.reference import exact_output

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


def found(name, dtype=torch.float32):
    """A model's captured calls, and the input of each of its layers."""
    model = build(name, output_hidden_states=True).to(dtype)
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
            got = residual_errors(ours[ROW], call.block.size[ROW, :, None])
            assert got.item() == pytest.approx(expected, rel=1e-4) and 0 < got.item() < 1


def row_errors(qkv, approx):
    return row_metrics(exact(qkv), approx, qkv)["residual_error"]


@pytest.mark.parametrize("name", PLAIN)
def test_row_metrics_have_the_residual_error_of_each_head(name):
    """In float64 by the model's own modules; Llama and Gemma have a softmax in float32."""
    rebuilt, layers_of = PLAIN[name]
    model, calls, streams = found(name, torch.float64)
    for call, layer, stream in zip(calls, layers_of(model), streams, strict=False):
        qkv = call.qkv(ROW)
        approx = approximate("window", qkv, 6)
        got, own = row_errors(qkv, approx), exact_output(qkv)
        for head in range(qkv.h):
            moved = own.clone()
            moved[head] = approx.output[head]
            y, changed = (
                rebuilt(layer, stream[ROW : ROW + 1], o.transpose(0, 1).flatten(1)[None]) for o in (own, moved)
            )
            r = (changed - y).norm(dim=-1)[0] / y.norm(dim=-1)[0]
            assert torch.allclose(got[head], r**2 / (1 + r**2), rtol=1e-5, atol=1e-15) and got[head].max() > 0
        rows = torch.tensor([3, 20])
        few = qkv.select([2, 1]).queries(rows)
        assert torch.allclose(row_errors(few, approximate("window", few, 6)), got[[2, 1]][:, rows], atol=1e-15)
        assert row_errors(qkv, approximate("topk", qkv, qkv.n)).max() < 1e-20
        assert row_errors(qkv.replace(scale=1.0), approx).isnan().all()
        [found_d] = {head.d for head in budgets(qkv, "topk", 1.0, metric="residual_error", d_min=3).heads}
        assert found_d == 3  # the error is always below 1


def test_the_block_of_some_queries_ends_the_forward_early(tmp_path, monkeypatch):
    """A capture for Q, K and V reads no layer behind the last one, and keeps the sizes of the queries' rows."""
    model, entered = build("Llama"), []
    ids = inputs(model)["input_ids"][:1]
    for number, layer in enumerate(model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, number=number: entered.append(number))
    whole = capture_layers(model, "m", [0, 1], lambda: model(input_ids=ids))
    last = capture_layers(model, "m", [1], lambda: model(input_ids=ids), torch.tensor([2, 9]))
    assert entered == [0, 0] and torch.allclose(last[1].block.size, whole[1].block.size[:, [2, 9]], rtol=1e-6)


#: attention and MLP at once, a flattened stream, several streams, calls that are combined, a gate, other inputs too, or
#: a projection that is no linear module
WITHOUT_BLOCKS = {
    "Falcon",
    "Falcon with ALiBi",
    "GPT-J",
    "XLNet",
    "GPT-NeoX",
    "Phi",
    "Cohere 2",
    "Falcon-H1",
    "OPT",
    "Gemma 3n",
    "DiffLlama",
    "Qwen3-Next",
    "HRM",
    "Zamba2",
}
FOUND = sorted(set(CAPTURED) - WITHOUT_BLOCKS)


@pytest.mark.parametrize("name", others_slow(FOUND, lambda name: name[0] in FOUND[::4] or "BART" in name[0]))
def test_the_blocks_of_other_architectures_are_found_and_those_that_are_not_are_absent(name):
    model = build(name)
    calls = list(capture(model, inputs(model), blocks=True).values())
    # BART's cross attention and SigLIP's pooling head add to another stream than that of their queries
    with_blocks = calls[: 2 if "BART" in name or "SigLIP" in name else None]
    assert all(call.block is not None for call in with_blocks)


@pytest.mark.parametrize(
    "name", others_slow(sorted(WITHOUT_BLOCKS), lambda name: name[0] in sorted(WITHOUT_BLOCKS)[::3])
)
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
