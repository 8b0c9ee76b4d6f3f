"""Capture of any architecture: what is kept rebuilds what the model computed, and what is not kept is refused."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from thinned import others_slow
from tiny_models import ALIKE, CAPTURED, REFUSED, VALID, N

from attnprobe import capture
from attnprobe.errors import SourceError, Unsupported, UsageError
from attnprobe.inputs.hooks.call import AttentionCall
from attnprobe.inputs.hooks.capture import capture_all, captured_forward
from attnprobe.inputs.hooks.interface import is_cross, switched
from attnprobe.inputs.hooks.masks import _behind_cache, _pattern, pattern_of, split_mask
from attnprobe.methods import METHODS
from attnprobe.reference import exact_output

DELTA = 1e-6


#: the masks and extras of each architecture, in the order of its calls; one entry stands for all
PADDED, CAUSAL, WINDOW = "padding", "causal with padding", "causal sliding-window (6) with padding"
PAIR = [PADDED] * 2 + ["causal", "padding, cross"] * 2
KINDS = {
    **dict.fromkeys(("BERT", "RoBERTa", "XLM-R", "ELECTRA", "ALBERT", "DistilBERT", "EuroBERT"), [PADDED]),
    **dict.fromkeys(("GPT-2", "GPT-NeoX", "OPT", "Llama", "Phi-3", "OLMo-2", "Qwen2", "Qwen3", "Gemma"), [CAUSAL]),
    **dict.fromkeys(("ViT", "DeiT", "DINOv2", "CLIP (vision)"), ["full"]),
    "SigLIP (vision)": ["full", "full", "full, cross"],  # a query pools the tokens
    **dict.fromkeys(("BART", "mBART"), PAIR),
    "BERT decoder": ["causal", "padding, cross"] * 2,
    "ModernBERT": [PADDED, *["sliding-window (9) with padding"] * 2, PADDED],
    "Mistral": [WINDOW],
    "Gemma 2": [f"{WINDOW}, softcap=2", f"{CAUSAL}, softcap=2"],
    "Gemma 3": [WINDOW, CAUSAL],
    "GPT-OSS": [f"{WINDOW}, sinks", f"{CAUSAL}, sinks"],
    "T5": ["padding, bias"] * 2 + ["causal, bias", "padding, cross"] * 2,
    **dict.fromkeys(("SmolLM3", "Phi", "GLM", "DiffLlama", "DeepSeek-V2", "DeepSeek-V3", "HRM"), [CAUSAL]),
    **dict.fromkeys(("LFM2", "Jamba", "Bamba", "Granite 4", "Falcon-H1", "Nemotron-H", "Qwen3-Next"), [CAUSAL]),
    **dict.fromkeys(("OLMo hybrid", "MiniMax", "Zamba2"), [CAUSAL]),
    "Cohere 2": [WINDOW, CAUSAL],
    **dict.fromkeys(("Gemma 3n", "Gemma 4"), [WINDOW, CAUSAL] * 2),
    "RecurrentGemma": [WINDOW],
    **dict.fromkeys(("RoFormer", "BigBird", "BigBird (block-sparse)", "Longformer"), [PADDED]),
    **dict.fromkeys(("DeBERTa", "DeBERTa-v2", "MPNet"), [f"{PADDED}, bias"]),
    **dict.fromkeys(("Falcon", "GPT-J", "XGLM"), [CAUSAL]),
    **dict.fromkeys(("BLOOM", "MPT", "Falcon with ALiBi"), [f"{CAUSAL}, key bias"]),
    "GPT-Neo": [CAUSAL, WINDOW],
    "XLNet": ["custom, bias"],  # a padded token sees itself
    "Nystromformer": ["full"],
    "Reformer": [PADDED, "custom"],  # a token does not see itself
}


@pytest.mark.parametrize("name", others_slow(CAPTURED, lambda name: name[0] not in ALIKE))
def test_every_call_rebuilds_what_the_model_computed(built, name):
    model, batch = built(name)
    calls, full = capture_all(model, batch)
    assert max(call.delta for call in calls.values()) <= DELTA and full <= DELTA
    assert [call.number for call in calls.values()] == list(range(len(calls)))
    kinds = [", ".join([str(call.pattern), *call.extras()]) for call in calls.values()]
    expected = KINDS[name]
    assert kinds == (expected * len(kinds) if len(expected) == 1 else expected)
    modules = dict(model.named_modules())
    for (path, number), call in calls.items():
        assert type(modules[path]).__name__ == call.kind and number == call.call
        assert call.heads % call.kv_heads == 0 and call.output().shape == (2, call.q.shape[2], 4, call.v.shape[3])


def slow(call, row: int, head: int) -> torch.Tensor:
    """One head of one row of a batch by the formula, a query at a time in float64."""
    group = call.heads // call.kv_heads
    q, k, v = call.q[row, head].double(), call.k[row, head // group].double(), call.v[row, head // group].double()
    out = torch.zeros(len(q), v.shape[1], dtype=torch.float64)
    for i in range(len(q)):
        weights = []
        for j in range(len(k)):
            score = call.scale * float(q[i] @ k[j])
            if call.softcap is not None:
                score = call.softcap * float(torch.tanh(torch.tensor(score / call.softcap, dtype=torch.float64)))
            if call.bias is not None:
                score += float(call.bias.expand(2, call.heads, len(q), len(k))[row, head, i, j])
            seen = call.visible is None or bool(call.visible.expand(2, call.heads, -1, -1)[row, head, i, j])
            weights.append(torch.tensor(score if seen else float("-inf"), dtype=torch.float64).exp())
        total = sum(weights) + (0.0 if call.sinks is None else call.sinks[head].double().exp())
        for j, weight in enumerate(weights):
            if float(total):  # a padded query may see no key at all
                out[i] += weight / total * v[j]
    return out


def test_a_captured_call_keeps_its_sinks_when_the_model_changes_them():
    model = tiny_models.build("GPT-OSS")
    call = next(iter(capture(model, tiny_models.inputs(model), [0]).values()))
    before = call.output()
    for path, parameter in model.named_parameters():
        if path.endswith("sinks"):
            parameter.data.add_(5.0)
    assert torch.equal(call.output(), before)


@pytest.mark.parametrize("name", ["Gemma 2", "GPT-OSS", "T5", "ModernBERT"])
def test_the_rebuilt_attention_is_the_formula(built, name):
    model, batch = built(name)
    for call in list(capture(model, batch).values())[:3]:
        torch.testing.assert_close(call.output()[1, :, 3], slow(call, 1, 3), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_round_the_interface_is_refused_by_name(built, name):
    model, batch = built(name)
    with pytest.raises(SourceError) as caught:
        capture(model, batch)
    message = str(caught.value)
    assert message.startswith(f"{type(model).__name__} bypasses transformers' attention interface")
    assert ("no softmax" if name == "FNet" else "V is not multiplied by the weights of its softmax") in message
    assert model.config._attn_implementation == "eager"
    if name == "FNet":
        with pytest.raises(SourceError, match="^mine bypasses"), switched(model, "none", "mine"):
            pass


def test_a_padding_mask_is_kept_and_a_qkv_gets_it(built):
    model, batch = built("BERT")
    call = capture(model, batch)["encoder.layer.1.attention.self", 0]
    assert torch.equal(call.pattern.keys, batch["attention_mask"].bool())
    full, part = call.qkv(0), call.qkv(1)
    assert full.mask is None and torch.equal(part.mask, batch["attention_mask"][1].bool())
    assert part.layer == 1 and part.scale == call.scale
    output = call.output().transpose(1, 2)  # (b, h, n, p_v)
    torch.testing.assert_close(exact_output(full), output[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(exact_output(part)[:, :VALID], output[1, :, :VALID], rtol=0, atol=1e-6)


def test_padded_keys_of_cross_attention_are_no_padded_queries(built):
    model, batch = built("BART")
    qkv = capture(model, batch, "decoder.layers.1.encoder_attn")["decoder.layers.1.encoder_attn", 0].qkv(1)
    assert (qkv.n_q, qkv.n_k, qkv.mask) == (N, VALID, None)


@pytest.mark.parametrize(
    ("facts", "path", "n_k", "causal", "cross"),
    [
        ({}, "layers.0.self_attn", 4, False, False),
        ({}, "layers.0.self_attn", 6, False, True),
        ({}, "layers.0.self_attn", 6, True, False),
        ({"is_causal": True}, "layers.0.self_attn", 6, False, False),
        ({"is_decoder": True}, "layers.0.self_attn", 4, False, True),
        ({"is_cross_attention": True}, "layers.0.self_attn", 4, True, True),
        ({}, "layers.0.encoder_attn", 4, True, True),
    ],
)
def test_cross_attention_is_told_by_its_module_its_name_or_its_lengths(facts, path, n_k, causal, cross):
    assert is_cross(SimpleNamespace(**facts), path, 4, n_k, causal) == cross


@pytest.mark.parametrize("name", ["Gemma 2", "T5", "MPNet", "DeBERTa", "BLOOM", "Falcon with ALiBi"])
def test_a_bias_or_a_cap_never_vanishes_between_a_capture_and_a_method(built, name):
    model, batch = built(name)
    for call in capture(model, batch).values():
        torch.testing.assert_close(exact_output(call.qkv(0)), call.output()[0].transpose(0, 1), rtol=0, atol=1e-6)


#: the projection of each attention module that takes its output, and (sliding_window, causal, sinks) of each layer
DESCRIBED = {
    "Llama": ("o_proj", [(None, True, False)] * 2),
    "Mistral": ("o_proj", [(6, True, False)] * 2),
    "Gemma 2": ("o_proj", [(6, True, False), (None, True, False)]),
    "Gemma 3": ("o_proj", [(6, True, False), (None, True, False)]),
    "GPT-OSS": ("o_proj", [(6, True, True), (None, True, True)]),
    "ModernBERT": ("Wo", [(None, False, False), *[(5, False, False)] * 2, (None, False, False)]),
}


def own_outputs(model, batch, projection, paths):
    """What each attention module of these paths hands to its output projection, (b, h, n, p_v)."""
    actual = {}
    for path in paths:

        def keep(_, inputs, path=path):
            return actual.__setitem__(path, inputs[0].unflatten(2, (4, -1)).transpose(1, 2))

        model.get_submodule(f"{path}.{projection}").register_forward_pre_hook(keep)
    with torch.no_grad():
        model(**batch)
    return actual


FORMS = ("float32", "float32, padded on the right", "float32, padded on the left", "float64")


@pytest.mark.parametrize("form", others_slow(FORMS, lambda form: form[0] in FORMS[2:]))
@pytest.mark.parametrize("name", DESCRIBED)
def test_a_qkv_gives_the_models_own_attention(name, form):
    """Windows, grouped keys and sinks. In float64 too the softmax of these models is in float32."""
    model = tiny_models.build(name, **({"attn_logit_softcapping": None} if name == "Gemma 2" else {}))
    if form == "float64":
        model = model.double()
        if name == "GPT-OSS":
            model.set_experts_implementation("eager")
    batch = tiny_models.inputs(model, padded="padded" in form)
    if "left" in form:
        batch["attention_mask"] = batch["attention_mask"].flip(1)
    projection, kinds = DESCRIBED[name]
    calls = capture(model, batch)
    own = own_outputs(model, batch, projection, [path for path, _ in calls])
    seen = []
    for (path, _), call in calls.items():
        for row, valid in enumerate(batch["attention_mask"].bool()):
            qkv = call.qkv(row)
            output, rebuilt = exact_output(qkv)[:, valid], call.output()[row, valid].transpose(0, 1)
            assert (output - rebuilt).abs().max() <= 1e-12 * rebuilt.abs().max()
            assert (output - own[path][row][:, valid]).norm() <= 1e-6 * output.norm()
        seen.append((qkv.sliding_window, qkv.causal, qkv.sink_logits is not None))
    assert seen == kinds


def test_a_softmax_in_float64_is_reproduced_to_its_rounding(built, monkeypatch):
    """Mistral's eager attention with its one cast to float32 taken out."""
    from transformers.models.mistral import modeling_mistral

    plain = torch.nn.functional.softmax
    monkeypatch.setattr(modeling_mistral.nn.functional, "softmax", lambda x, dim, dtype=None: plain(x, dim=dim))
    model = tiny_models.build("Mistral").double()
    batch = tiny_models.inputs(model)
    calls = capture(model, batch)
    own = own_outputs(model, batch, "o_proj", [path for path, _ in calls])
    for (path, _), call in calls.items():
        assert call.delta < 1e-12
        output = exact_output(call.qkv(1))[:, :VALID]
        assert (output - own[path][1][:, :VALID]).norm() <= 1e-12 * output.norm()


@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-OSS"])
@pytest.mark.parametrize("count", [1, 4])
def test_queries_behind_a_cache_stand_at_the_end(built, name, count):
    model, batch = built(name)
    ids = batch["input_ids"][:1]
    cache = model(input_ids=ids[:, :-count], use_cache=True).past_key_values
    calls = capture(model, {"input_ids": ids[:, -count:], "past_key_values": cache, "use_cache": True})
    for call in calls.values():
        qkv = call.qkv()
        assert qkv.causal and qkv.n_q == count < qkv.n_k and int(qkv.query_positions[-1]) == qkv.n_k - 1
        torch.testing.assert_close(exact_output(qkv), call.output()[0].transpose(0, 1), rtol=0, atol=1e-9)


def test_padded_keys_before_a_cached_query_are_removed(built):
    model, batch = built("Llama")
    ids, mask = batch["input_ids"], batch["attention_mask"].flip(1)
    cache = model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1], use_cache=True).past_key_values
    step = {"input_ids": ids[:, -1:], "attention_mask": mask, "past_key_values": cache, "use_cache": True}
    for call in capture(model, step).values():
        qkv = call.qkv(1)
        assert (qkv.n_q, qkv.n_k, qkv.mask) == (1, VALID, None)
        torch.testing.assert_close(exact_output(qkv), call.output()[1].transpose(0, 1), rtol=0, atol=1e-9)


def call_with(visible):
    """A call of one head whose mask is given, (b, 1, n_q, n_k)."""
    b, _, n_q, n_k = visible.shape
    q, k, v = (torch.ones(b, 1, n, 2) for n in (n_q, n_k, n_k))
    return AttentionCall("m", 0, 0, "A", q, k, v, 1.0, visible, pattern=pattern_of(visible))


def test_a_call_says_its_sizes_scale_and_mask():
    call = call_with(torch.ones(2, 1, 3, 5, dtype=torch.bool))
    assert call.facts()[:5] == ["batch=2", "h=1", "n_q=3, n_k=5", "p=2", "scale=1"]
    assert call.facts()[5].startswith("mask=") and "batch=2, h=1" in repr(call)


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (lambda: lower(6) | (torch.arange(6) < 3), "custom attention is not supported"),
        (lambda: torch.ones(1, 1, 9, 9, dtype=torch.bool).tril(2).triu(-1), "sliding-window (4) attention is not"),
        (lambda: torch.ones(1, 1, 9, 9, dtype=torch.bool).tril(2), "custom attention is not supported"),
        (lambda: lower(3, 6) & (torch.arange(6) < 5), "queries that are padding follow a cache of keys"),
    ],
)
def test_other_masks_are_refused_in_words(mask, why):
    call = call_with(mask())
    assert str(call.beyond()).startswith(why)
    with pytest.raises(Unsupported, match=r"m: .*a method that gets only Q, K and V would miss it"):
        call.qkv()


@pytest.mark.parametrize("triangle", [lambda n: lower(n), lambda n: torch.ones(1, 1, n, n, dtype=torch.bool).tril(2)])
@pytest.mark.parametrize("holes", [(4,), (0, 4, 5), (1, 2, 6)])
def test_padding_between_the_tokens_of_a_sliding_window_keeps_their_distances(triangle, holes):
    valid = ~torch.isin(torch.arange(9), torch.tensor(holes))
    call = call_with(triangle(9).triu(-2) & valid & valid[:, None])
    g = torch.Generator().manual_seed(0)
    call = replace(call, **{axis: torch.randn(1, 1, 9, 2, generator=g) for axis in "qkv"})
    qkv = call.qkv()
    assert qkv.sliding_window == 3 and torch.equal(qkv.mask, valid)
    got, expected = exact_output(qkv), call.output()[0].transpose(0, 1)
    torch.testing.assert_close(got[:, valid], expected[:, valid], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (lambda: None, (False, None)),
        (lambda: lower(6), (True, None)),
        (lambda: lower(6).triu(-2), (True, 3)),
        (lambda: lower(6).triu(0), (True, 1)),
        (lambda: torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(2).triu(-2), (False, 3)),
        (lambda: lower(2, 6), (True, None)),
        (lambda: lower(1, 6), (True, None)),
        (lambda: lower(1, 6) & (torch.arange(6) > 2), (True, None)),  # padding, as far as one query shows
        (lambda: lower(3, 6).triu(1), (True, 3)),
        (lambda: lower(3, 7).triu(1) & (torch.arange(7) != 3), (True, 4)),  # padding within a window, behind a cache
        (lambda: torch.ones(1, 1, 1, 1, dtype=torch.bool), (False, None)),
    ],
)
def test_the_window_of_a_mask(mask, expected):
    made = mask()
    visible = torch.ones(1, 1, 6, 6, dtype=torch.bool) if made is None else made
    call = call_with(visible)
    qkv = call.qkv()
    assert (call.causal, call.sliding_window) == (qkv.causal, qkv.sliding_window) == expected
    torch.testing.assert_close(exact_output(qkv), call.output()[0].transpose(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Qwen3", "OPT", "GPT-NeoX", "BART"])
def test_a_causal_call_gives_a_causal_qkv(built, name):
    """Keys shared by their group, padding left out; of an encoder-decoder the decoder's own attention alone."""
    model, batch = built(name)
    calls = capture(model, batch)
    actual = {path: [call.qkv(row) for row in range(2)] for (path, _), call in calls.items()}
    assert all(
        qkv.causal == (name != "BART" or "decoder" in path and "self_attn" in path)
        for path, rows in actual.items()
        for qkv in rows
    )
    for (path, _), call in calls.items():
        for row, qkv in enumerate(actual[path]):
            output, valid = call.output()[row].transpose(0, 1), slice(None) if qkv.mask is None else qkv.mask
            assert qkv.h == call.heads
            torch.testing.assert_close(exact_output(qkv)[:, valid], output[:, valid], rtol=0, atol=1e-6)


def test_grouped_keys_are_kept_once_and_repeated_for_k():
    model = tiny_models.build("EuroBERT")
    call = capture(model, tiny_models.inputs(model, padded=False))["layers.1.self_attn", 0]
    k = call.qkv(0).k
    assert (call.kv_heads, call.qkv(0).kv_heads, len(k)) == (2, 2, 4)
    assert torch.equal(k[0], call.k[0, 0]) and torch.equal(k[1], call.k[0, 0]) and torch.equal(k[2], call.k[0, 1])


def test_one_module_called_twice_has_two_calls(built):
    calls = capture(*built("ALBERT"))
    assert len({path for path, _ in calls}) == 1 and [number for _, number in calls] == [0, 1]
    first, second = calls.values()
    assert not torch.equal(first.q, second.q)


def test_layers_by_number_range_and_name(built):
    model, batch = built("BART")
    calls = capture(model, batch)
    every = list(calls)
    assert [call.layer for call in calls.values()] == [0, 1, 0, 0, 1, 1]  # of the encoder, then of the decoder
    assert list(capture(model, batch, [1])) == [every[1], *every[4:]]
    assert list(capture(model, batch, "0-1")) == every
    cross = list(capture(model, batch, "decoder.*.encoder_attn"))
    assert [path for path, _ in cross] == ["decoder.layers.0.encoder_attn", "decoder.layers.1.encoder_attn"]
    for expected, absent in (([0, 6], "layer 6"), ("encoder.*, lm_head", "'lm_head'")):
        with pytest.raises(
            UsageError, match=f"BartModel: {absent} was never reached; attention was called in layers 0-1"
        ):
            capture(model, batch, expected)


def test_a_forward_is_left_behind_the_last_layer(built):
    model, batch = built("BERT")
    ran = []
    handle = model.encoder.layer[1].register_forward_hook(lambda *_: ran.append(1))
    try:
        capture(model, batch, 0)
        assert not ran
        capture(model, batch)
    finally:
        handle.remove()
    assert ran == [1]


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_the_model_is_as_it_was(before):
    model = tiny_models.build("BART")
    model.set_attn_implementation(before)
    batch = tiny_models.inputs(model)
    own = tiny_models.hidden(model, batch)
    capture(model, batch)
    with pytest.raises(SourceError, match="its forward failed"):
        capture(model, {"input_ids": torch.full((1, 4), 10_000)})
    assert {module.config._attn_implementation for module in (model, model.encoder, model.decoder)} == {before}
    assert torch.equal(tiny_models.hidden(model, batch), own)


def test_a_model_in_training_mode_is_refused(built):
    model = tiny_models.build("BERT").train()
    with pytest.raises(UsageError, match=r"BertModel is in training mode.*call model.eval\(\)"):
        capture(model, tiny_models.inputs(model))


def test_half_precision_is_proved_to_its_own_rounding():
    model = tiny_models.build("Qwen3").to(torch.bfloat16)
    calls = capture(model, tiny_models.inputs(model))
    assert all(call.q.dtype == torch.bfloat16 and 1e-5 < call.delta < 1e-2 for call in calls.values())


def test_an_attention_that_does_more_is_refused(built, monkeypatch):
    """An extra that is not captured (here a gate on the output) does not pass the proof."""
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", lambda *a, **k: (eager(*a, **k)[0] * 1.001, None))
    model, batch = built("Llama")
    with pytest.raises(SourceError, match="refused at layer 0.*by 1.0e-03.*LlamaAttention does more than is captured"):
        capture(model, batch)


def test_attention_before_the_first_needed_token_is_not_verified(monkeypatch):
    """Rows of blocks that end before it are not computed exactly; those of the others are, to the bit."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr("attnprobe.inputs.hooks.call.BLOCK_BYTES", 8 * 4 * 20 * 5)  # five rows
    model, eager = tiny_models.build("Llama"), modeling_llama.eager_attention_forward
    ids = torch.arange(3, 23)[None]

    def exact(first):
        return captured_forward(model, lambda: model(input_ids=ids), [0], first)[1][0].exact

    whole, part = exact(0), exact(12)
    assert part[:, :10].isnan().all() and torch.equal(part[:, 10:], whole[:, 10:]) and whole.isfinite().all()

    def bent(*args, **kwargs):
        output, weights = eager(*args, **kwargs)
        output[:, row] *= 1.01
        return output, weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", bent)
    monkeypatch.setattr("attnprobe.inputs.hooks.capture.blocks", lambda q, k: iter([(0, q.shape[2])]))
    row = 9
    exact(12)
    row = 12
    with pytest.raises(SourceError, match="differs from its own"):
        exact(12)


def lower(n, m=None):
    return torch.ones(1, 1, n, m or n, dtype=torch.bool).tril((m or n) - n)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (None, "full"),
        (lower(6), "causal"),
        (lower(2, 6), "causal"),  # new tokens behind a cache
        (lower(6).triu(-2), "causal sliding-window (3)"),
        (torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(2).triu(-2), "sliding-window (5)"),
        (lower(6) & (torch.arange(6) >= 2), "causal with padding"),  # padded on the left
        (lower(6) & (torch.arange(6) < 4), "causal with padding"),
        ((torch.arange(6) < 4).expand(1, 1, 6, 6), "padding"),
        (lower(6) | (torch.arange(6) < 3), "custom"),  # a prefix that everyone sees
        (lower(6) & (torch.arange(6)[:, None] // 3 == torch.arange(6) // 3), "custom"),  # two texts in one row
        (lower(6).mT, "custom"),  # the future alone
        (torch.stack([lower(6)[0, 0], lower(6)[0, 0].mT])[None], "custom"),  # heads that differ
        (lower(9).triu(-5) & ~torch.eye(9, dtype=torch.bool).roll(3, 0), "custom"),  # holes in a band
    ],
)
def test_what_a_mask_is_called(mask, says):
    assert str(pattern_of(mask)) == says
    assert pattern_of(mask).causal is (says.startswith("causal"))
    if not pattern_of(mask).regular:
        assert pattern_of(mask).left is pattern_of(mask).right is None  # there is no sliding window


def test_doctor_tells_every_attention_by_name(run, tmp_path):
    tiny_models.build("BART").save_pretrained(tmp_path / "bart")
    code, out, _ = run("doctor", "--model", tmp_path / "bart")
    lines = out.splitlines()
    assert code == 0 and lines[0].endswith("BartModel, weights pretrained, 6 attention calls")
    cells = [line.split() for line in lines[2:8]]
    assert [row[1] for row in cells][2:4] == ["decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"]
    assert lines[4].endswith("yes, causal") and cells[2][-1] == "causal" and cells[3][-1] == "yes"
    assert [row[2:7] for row in cells] == [["BartAttention", "4", "4", "8", "0.3536"]] * 6
    assert all(float(next(cell for cell in row if "e-" in cell)) <= DELTA for row in cells)


def test_doctor_says_a_window_that_its_input_is_too_short_to_show(run, tmp_path):
    import transformers

    transformers.MistralConfig(**tiny_models.grouped(sliding_window=4096)).save_pretrained(tmp_path / "mistral")
    code, out, _ = run("doctor", "--model", tmp_path / "mistral", "--weights", "initialized")
    assert code == 0 and out.count("causal, window=4096") == 2


@pytest.mark.parametrize(
    ("name", "found", "says"),
    [
        ("BLOOM", "causal, key bias code", "no form for causal attention: "),
        ("MPNet", "full, bias code", "layers 0-1: no form for a bias or a cap: "),
        ("GPT-J", "causal angles code", "no form for causal attention: "),
        ("Nystromformer", "full exact form", "attention calls"),
        ("Gemma 2", "softcap=2 10000 interface", "no form for a sliding window: "),
    ],
)
def test_doctor_says_where_each_module_was_captured_and_which_methods_run(run, tmp_path, name, found, says):
    tiny_models.save(name, tmp_path / "model")
    code, out, _ = run("doctor", "--model", tmp_path / "model")
    row = " ".join(out.splitlines()[2].split())
    assert code == 0 and found in row and says in out
    few, of = re.findall(r"(\d+) of (\d+)", row)[0]
    of_first = [line for line in out.splitlines() if "no form for" in line and line.startswith(("layer 0", "layers 0"))]
    assert int(of) == len(METHODS)
    assert int(of) - int(few) == sum(len(line.rpartition(": ")[2].split(", ")) for line in of_first)


def test_doctor_refuses_by_name(run, tmp_path):
    tiny_models.build("FNet").save_pretrained(tmp_path / "fnet")
    code, _, err = run("doctor", "--model", tmp_path / "fnet")
    assert code == 3 and "fnet bypasses transformers' attention interface (FNetModel made no call)" in err
    assert run("doctor", "--model", tmp_path / "fnet", "--weights", "initialised")[0] == 2
    assert run("doctor", "--model", tmp_path / "nothing")[0] == 3


def behind_a_cache(n_q, n_k):
    """Masks of queries behind a cache of keys: causal, and with what makes them something else."""
    position, centre = torch.arange(n_k), torch.arange(n_k - n_q, n_k)[:, None]
    causal = position <= centre
    forms = {
        "causal": causal,
        "full": torch.ones_like(causal),
        "window within": causal & (position > centre - 3),
        "window": causal & (position > centre - n_q - 2),
        "a key that is hidden in the cache": causal & (position != 1),
        "a hole in the cache": causal & ~((position == 1) & (centre == n_k - 1)),
        "a hole among the own keys": causal & ~((position == n_k - 2) & (centre == n_k - 1)),
        "padding at the end": causal & (position < n_k - 1),
        "a row without own keys": causal & ((centre != n_k - 2) | (position < n_k - n_q)),
        "a row without keys": causal & (centre != n_k - 2),
    }
    return {name: mask[None, None] for name, mask in forms.items()}


@pytest.mark.parametrize("sizes", [(4, 11), (1, 6), (5, 5), (3, 4)], ids=str)
@pytest.mark.parametrize("name", behind_a_cache(4, 11))
def test_a_pattern_behind_a_cache_is_that_of_all_entries(sizes, name):
    mask = behind_a_cache(*sizes)[name]
    got, expected = pattern_of(mask), _pattern(mask[:, 0], cross=False)
    assert (got.left, got.right, got.regular) == (expected.left, expected.right, expected.regular)
    assert got.keys is expected.keys is None or torch.equal(got.keys, expected.keys)
    if name == "causal" and sizes[0] < sizes[1]:
        assert _behind_cache(mask[:, 0]) is not None


@pytest.mark.parametrize("place, value", [((1, 0), 0.5), ((0, 3), -2.0)], ids=["seen", "hidden"])
def test_numbers_of_a_mask_that_do_not_hide_are_a_bias(place, value):
    mask = torch.zeros(1, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), torch.finfo(torch.float32).min)
    visible, bias = split_mask(mask, (1, 4, 4))
    assert bias is None and torch.equal(visible[0, 0], torch.ones(4, 4).tril().bool())
    mask[0, 0][place] = value
    visible, bias = split_mask(mask, (1, 4, 4))
    assert visible[0, 0][place] and bias[0, 0][place] == value and int((bias != 0).sum()) == 1
