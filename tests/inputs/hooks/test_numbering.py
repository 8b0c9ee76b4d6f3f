"""Layers have the model's own numbers, and calls of a layer are told apart."""

import pytest
import tiny_models
import torch
from thinned import others_slow
from tiny_models import CAPTURED

from attnprobe import Unsupported, capture, injected
from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs.hooks.call import joined
from attnprobe.inputs.hooks.capture import capture_layers, captured_forward
from attnprobe.inputs.hooks.numbering import attention_layers, layer_of, trace
from attnprobe.inputs.weights import skeleton

#: the layers with attention of models that have others, call a layer's attention twice, or run modules again
LAYERS = {
    "LFM2": [1, 3],
    "Jamba": [1, 3],
    "Bamba": [1],
    "Granite 4": [1],
    "Falcon-H1": [0, 1],
    "Nemotron-H": [1, 3],
    "Qwen3-Next": [2],
    "OLMo hybrid": [2],
    "MiniMax": [1],
    "RecurrentGemma": [1],
    "Zamba2": [1, 4],
    "DiffLlama": [0, 0, 1, 1],
    "HRM": list(range(12)),
    "ALBERT": [0, 1],
    "BART": [0, 1, 0, 0, 1, 1],
    "ViT": [0, 1],
}
TEXTS = [
    name
    for name, (kind, *_) in CAPTURED.items()
    if "ision" not in kind
    and kind not in ("ViTModel", "DeiTModel", "Dinov2Model")
    and name != "Nystromformer"  # which reads texts of one length
]
SAME = 2e-6  # relative, in float32, for each call


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("name", LAYERS)
def test_calls_have_the_number_of_their_layer_in_the_model(built, name):
    model, batch = built(name)
    calls = capture(model, batch)
    assert [call.layer for call in calls.values()] == LAYERS[name]
    assert [call.number for call in calls.values()] == list(range(len(calls)))
    assert len(calls) == len({(call.module, call.call) for call in calls.values()})
    for call in calls.values():
        assert "custom" in str(call.pattern) or call.beyond() or call.qkv().layer == call.layer


@pytest.mark.parametrize("name", others_slow(TEXTS, lambda name: name[0] not in tiny_models.ALIKE))
def test_the_calls_and_layers_of_a_model_are_known_before_it_reads(built, name):
    """From a few tokens, and from the modules without numbers."""
    model, batch = built(name)
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    known = trace(model)
    found = capture(model, {name: batch[name] for name in ("input_ids", "attention_mask")})
    assert known is not None
    assert [(place.module, place.call, place.layer) for place in known.places] == [
        (call.module, call.call, call.layer) for call in found.values()
    ]
    layers = attention_layers(skeleton(built(name)[0].config), model.config.num_hidden_layers)
    assert layers == sorted({call.layer for call in found.values()})


def test_groups_of_albert_are_layers_in_their_order():
    model = tiny_models.build("ALBERT", num_hidden_layers=6, num_hidden_groups=2)
    calls = capture(model, tiny_models.inputs(model))
    assert [call.layer for call in calls.values()] == list(range(6))
    assert attention_layers(skeleton(model.config), 6) == list(range(6))
    with injected(model, "vmean", layer=4):
        states = model(**tiny_models.inputs(model), output_hidden_states=True).hidden_states
    own = model(**tiny_models.inputs(model), output_hidden_states=True).hidden_states
    assert torch.equal(states[4], own[4]) and not torch.equal(states[5], own[5])


@pytest.mark.parametrize(
    "name", ["LFM2", "Zamba2", "DiffLlama", "HRM", "Gemma 3n", "DeepSeek-V2", "Falcon-H1", "MiniMax"]
)
def test_exact_attention_changes_nothing_and_a_layer_alone_changes_what_follows(built, name):
    model, batch = built(name)
    own = tiny_models.hidden(model, batch)
    valid = batch["attention_mask"].bool()
    calls = capture(model, batch)
    layers = sorted({call.layer for call in calls.values()})
    for layer in ("all", layers[-1]):
        with injected(model, "softmax", layer=layer):
            assert apart(tiny_models.hidden(model, batch)[valid], own[valid]) <= SAME * len(calls)
    drifts = []
    for layer in (layers[-1], "all"):
        with injected(model, "vmean", layer=layer):
            drifts.append(apart(tiny_models.hidden(model, batch)[valid], own[valid]))
    assert min(drifts) > 1e-3 and (len(layers) == 1 or drifts[0] != drifts[1])


def test_budgets_belong_to_the_layers_of_the_model(built):
    model, batch = built("LFM2")
    with injected(model, "window", {1: 8, 3: None}):
        some = tiny_models.hidden(model, batch)
    valid = batch["attention_mask"].bool()
    with injected(model, "window", 8, layer="1"):
        assert apart(tiny_models.hidden(model, batch)[valid], some[valid]) <= 2 * SAME
    with pytest.raises(UsageError, match="no budget for layer 3, head 0"), injected(model, "window", {1: 8}):
        tiny_models.hidden(model, batch)


def test_a_layer_without_attention_is_never_reached(built):
    model, batch = built("LFM2")
    with pytest.raises(UsageError, match="^Lfm2Model: layer 2 was never reached; attention was called in layers 1, 3$"):
        capture(model, batch, 2)
    with pytest.raises(UsageError, match="layer 0 was never reached"), injected(model, "vmean", layer="0-1"):
        tiny_models.hidden(model, batch)


def test_a_forward_of_tokens_ends_behind_the_last_selected_call(built):
    model, batch = built("HRM")
    entered = []
    hook = model.H_module.layers[1].register_forward_hook(lambda *_: entered.append(1))
    try:
        assert [call.layer for call in capture(model, batch, "2-4").values()] == [2, 3, 4]
        assert not entered
        assert [call.layer for call in capture(model, batch, [5]).values()] == [5]
        capture(model, batch, [11])
        assert len(entered) == 1  # the last call is in it
    finally:
        hook.remove()


def test_calls_with_one_matrix_are_one_attention_with_the_values_of_both(built):
    """DiffLlama calls attention for each half of its values."""
    model, batch = built("DiffLlama")
    ids = batch["input_ids"]
    first, second = capture(model, {"input_ids": ids}, [1]).values()
    assert (first.call, second.call) == (0, 1) and torch.equal(first.q, second.q) and not torch.equal(first.v, second.v)
    one = capture_layers(model, "m", [1], lambda: model(input_ids=ids))[1]
    assert torch.equal(one.v, torch.cat([first.v, second.v], -1)) and one.layer == 1
    torch.testing.assert_close(one.output(), torch.cat([first.output(), second.output()], -1), rtol=0, atol=1e-12)
    other = capture(model, {"input_ids": ids}, [0])
    assert joined([first, next(iter(other.values()))]) is None


def test_a_layer_with_several_matrices_is_refused_in_one_line(built):
    bert, batch = built("BERT decoder")
    given = {"input_ids": batch["input_ids"], "encoder_hidden_states": torch.ones(2, 9, 32)}
    says = "^BertModel is refused at layer 0: it calls attention 2 times with different queries, keys or masks; "
    with pytest.raises(SourceError, match=says):
        captured_forward(bert, lambda: bert(**given), [0])


def test_a_module_that_knows_no_number_has_that_of_its_name():
    module = torch.nn.Linear(1, 1)
    assert layer_of("encoder.layer.7.attention.3", module) == 7 and layer_of("pooler.attention", module) is None
    module.layer_idx = 4
    assert layer_of("encoder.layer.7.attention", module) == 4
    assert layer_of("encoder.layer.7.attention", module, shared=True) == 7
    module.layer_idx = -1
    assert layer_of("layers.7.attention", module) == 7


def test_a_method_is_refused_with_the_name_of_the_layer_that_shares_its_module(built):
    model, batch = built("Zamba2")
    with (
        pytest.raises(Unsupported, match="^layers.4.shared_transformer.self_attn: "),
        injected(model, "linformer", 4, layer=4),
    ):
        tiny_models.hidden(model, batch)
