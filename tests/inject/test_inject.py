"""A method in place of attention: the exact one changes nothing, the others do what `approximate` does, row by row."""

import copy
from dataclasses import replace

import pytest
import tiny_models
import torch
from sources_helpers import needs_minilm
from thinned import others_slow
from tiny_models import VALID, N

from attnprobe import QKV, approximate, capture, injected, register_attention
from attnprobe.errors import SourceError, Unsupported, UsageError
from attnprobe.inject.replacement import Replacement, _exact_with_extras
from attnprobe.inputs.hooks import call
from attnprobe.methods import METHODS, get
from attnprobe.rng import generator
from attnprobe.rounding import Arithmetic

SAME = 2e-6  # relative, in float32, over a few layers
EXACT_IN = (
    *("BERT", "BERT decoder", "ALBERT", "ModernBERT", "GPT-2", "Llama", "Mistral", "Qwen3", "Gemma 2", "GPT-OSS"),
    *("BART", "T5", "ViT"),
)


def apart(a: torch.Tensor, b: torch.Tensor, batch=None) -> float:
    """Relative distance of two hidden states at the tokens that are not padding."""
    if batch is not None and "attention_mask" in batch and "decoder_input_ids" not in batch:
        valid = batch["attention_mask"].bool()
        a, b = a[valid], b[valid]
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("name", EXACT_IN)
def test_the_exact_method_reproduces_the_model(built, name):
    """Padded batches, grouped keys, causal masks, windows, caps, sinks, biases and cross attention included."""
    model, batch = built(name)
    own = tiny_models.hidden(model, batch)
    with injected(model, "softmax"):
        got = tiny_models.hidden(model, batch)
    assert apart(got, own, batch) <= SAME
    assert torch.equal(tiny_models.hidden(model, batch), own)


ROUNDED = ["BERT", "Mistral", "GPT-OSS", "Gemma 2", "T5"]


@pytest.mark.parametrize("name", others_slow(ROUNDED, lambda name: name[0] in ("GPT-OSS", "Gemma 2")))
def test_exact_attention_runs_in_an_arithmetic(built, name):
    """Also with caps, sinks and biases, which no other method takes."""
    model, batch = built(name)
    own, distances = tiny_models.hidden(model, batch), {}
    for arithmetic in ("float64", "fp32", "fp16", "bf16"):
        with injected(model, "softmax", arithmetic=arithmetic):
            distances[arithmetic] = apart(tiny_models.hidden(model, batch), own, batch)
    assert distances["float64"] <= SAME and distances["fp32"] <= SAME
    assert 10 * SAME < distances["fp16"] < distances["bf16"] < 0.1


def test_a_head_that_is_lost_in_a_format_leaves_the_others(qkv_of_two_heads):
    """Its queries are too large for fp16, and LAPACK would refuse its core."""
    qkv = qkv_of_two_heads
    large = qkv.replace(q=qkv.q * torch.tensor([1e6, 1.0], dtype=torch.float64)[:, None, None])
    of = get("nystromformer")

    def run(x):
        return approximate(of, x, 4)

    got, alone = Arithmetic.read("fp16").approximate(run, large), Arithmetic.read("fp16").approximate(run, qkv.head(1))
    assert got.output[0].isnan().all() and torch.equal(got.output[1], alone.output[0])
    assert Arithmetic.read("fp16").approximate(run, large, joint=True).output.isnan().all()


@pytest.fixture
def qkv_of_two_heads():
    return QKV(*torch.randn(3, 2, 16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.mark.parametrize("name", ["BERT", "Mistral", "GPT-OSS", "Gemma 2", "BART", "T5"])
def test_blocks_of_rows_are_cut_where_masks_and_biases_are(built, name, monkeypatch):
    """Padding, windows, sinks, caps and relative positions, with blocks of a few rows instead of one of all."""
    model, batch = built(name)
    own, calls = tiny_models.hidden(model, batch), capture(model, batch)
    full = {where: one.output() for where, one in calls.items()}
    monkeypatch.setattr(call, "BLOCK_BYTES", 2048)
    for where, one in calls.items():
        assert len(list(one.output_blocks())) > 2, where
        assert torch.allclose(one.output(), full[where], rtol=0, atol=1e-12)
    with injected(model, "softmax"):
        assert apart(tiny_models.hidden(model, batch), own, batch) <= SAME


def test_one_row_of_a_mask_is_every_blocks(built, monkeypatch):
    """A mask that is the same for all queries may come as one row."""
    model, batch = built("BERT")
    one = next(iter(capture(model, batch).values()))
    row = batch["attention_mask"].bool()[:, None, None]
    full = replace(one, visible=row.expand(-1, -1, one.q.shape[2], -1))
    complete, rounded = full.output(), _exact_with_extras(full)
    monkeypatch.setattr(call, "BLOCK_BYTES", 2048)
    narrow = replace(one, visible=row)
    assert torch.allclose(narrow.output(), complete, rtol=0, atol=1e-12)
    assert torch.allclose(_exact_with_extras(narrow), rounded, rtol=1e-5, atol=1e-5)


def context(model, path, batch, *arguments, **options):
    """What the attention module at ``path`` hands on within `injected`, (b, n, h p)."""
    recorded = []
    hook = model.get_submodule(path).register_forward_hook(lambda _, __, out: recorded.append(out[0]))
    try:
        with injected(model, *arguments, **options):
            model(**batch)
    finally:
        hook.remove()
    return recorded[0]


@pytest.mark.parametrize("method", ["skyformer", "nystromformer", "performer", "window", "reformer"])
def test_a_method_gives_what_approximate_gives_for_each_row(built, method):
    model, batch = built("BERT")
    path = "encoder.layer.1.attention.self"
    got = context(model, path, batch, method, 12, layer=1, seed=3)
    call = capture(model, batch, 1)[path, 0]
    for row, valid in enumerate((N, VALID)):
        qkv = QKV(*(getattr(call, x)[row, :, :valid] for x in "qkv"), scale=call.scale, label={"layer": 1})
        expected = approximate(method, qkv, 12, seed=3).output.transpose(0, 1).flatten(1)  # (n, h p)
        torch.testing.assert_close(got[row, :valid], expected, rtol=1e-5, atol=1e-5)
        assert not got[row, valid:].any()


def test_a_row_of_a_padded_batch_gets_what_it_gets_alone(built):
    """In float64: skyformer's core amplifies roundings of float32, whose order is the processor's."""
    shared, batch = built("BERT")
    model = copy.deepcopy(shared).double()
    alone = {"input_ids": batch["input_ids"][1:, :VALID]}
    with injected(model, "skyformer", d=8):
        together, single = tiny_models.hidden(model, batch), tiny_models.hidden(model, alone)
        again = tiny_models.hidden(model, batch)
    assert apart(together[1:, :VALID], single) <= SAME and torch.equal(together, again)
    with injected(model, "skyformer", d=8, seed=1):
        assert apart(tiny_models.hidden(model, batch), together, batch) > 1e-3


@pytest.mark.parametrize(
    "name, method, d", [("Mistral", "softmax", None), ("Mistral", "window", 34), ("ModernBERT", "softmax", None)]
)
def test_padding_between_tokens_counts_in_the_window_of_the_model(built, name, method, d):
    """The positions of the model decide, whatever tokens are left of a text."""
    model, batch = built(name)
    mask = batch["attention_mask"].clone()
    mask[0, [3, 4, 7]] = 0
    batch = {**batch, "attention_mask": mask}
    own = tiny_models.hidden(model, batch)
    with injected(model, method, d):
        assert apart(tiny_models.hidden(model, batch), own, batch) <= SAME


def test_only_the_chosen_layers_are_replaced(built):
    model, batch = built("BERT")

    def states():
        return model(**batch, output_hidden_states=True).hidden_states

    own = states()
    with injected(model, "vmean", layer="1"):
        part = states()
    assert torch.equal(part[1], own[1]) and apart(part[2], own[2], batch) > 1e-2
    with injected(model, "vmean", layer="encoder.layer.0.*"):
        assert apart(states()[1], own[1], batch) > 1e-2
    with injected(model, "vmean", layer=[0, 1]):
        both = states()[2]
    with injected(model, "vmean"):
        assert torch.equal(states()[2], both)


@pytest.mark.parametrize("layer", ["5", "encoder.layer.9.*"])
def test_a_layer_that_no_forward_reaches_is_an_error(built, layer):
    model, batch = built("BERT")
    with (
        pytest.raises(UsageError, match="was never reached; attention was called in layers 0-1"),
        injected(model, "vmean", layer=layer),
    ):
        model(**batch)


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_the_model_is_restored_even_behind_an_error(before):
    model = tiny_models.build("BART")
    model.set_attn_implementation(before)
    batch = tiny_models.inputs(model)
    own = tiny_models.hidden(model, batch)
    with pytest.raises(ZeroDivisionError), injected(model, "vmean", layer="encoder.*"):
        model(**batch)
        _ = 1 / 0
    with pytest.raises(Unsupported), injected(model, "linformer", d=8):  # in the middle of a forward
        model(**batch)
    assert {module.config._attn_implementation for module in (model, model.encoder, model.decoder)} == {before}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(tiny_models.hidden(model, batch), own)
    with injected(model, "softmax"):
        assert apart(tiny_models.hidden(model, batch), own) <= SAME


def test_two_models_at_once_and_one_only_once():
    one, other = tiny_models.build("BERT"), tiny_models.build("BERT", seed=1)
    batch = tiny_models.inputs(one)
    with injected(one, "vmean"):
        first = tiny_models.hidden(one, batch)
        with injected(other, "softmax"):
            assert torch.equal(tiny_models.hidden(one, batch), first)
            second = tiny_models.hidden(other, batch)
        with pytest.raises(UsageError, match="has a method injected already"), injected(one, "softmax"):
            pass
        assert torch.equal(tiny_models.hidden(one, batch), first)
    assert apart(second, tiny_models.hidden(other, batch), batch) <= SAME


def test_a_model_with_the_configuration_of_an_injected_one_is_refused():
    one = tiny_models.build("BERT")
    other = type(one)(one.config)
    with (
        injected(one, "vmean"),
        pytest.raises(SourceError, match="BertSelfAttention has no method injected: leave `injected` before"),
    ):
        tiny_models.hidden(other, tiny_models.inputs(one))


def test_heads_without_a_budget_keep_the_attention_of_the_model(built):
    model, batch = built("Gemma 2")
    own = tiny_models.hidden(model, batch)
    with injected(model, "nystromformer", d=dict.fromkeys(range(model.config.num_hidden_layers))):
        assert apart(tiny_models.hidden(model, batch), own, batch) <= SAME


def test_a_part_that_has_a_method_keeps_the_whole_from_another():
    model = tiny_models.build("BART")
    with (
        injected(model.encoder, "vmean"),
        pytest.raises(UsageError, match="has a method injected already; leave that block first"),
        injected(model, "softmax"),
    ):
        pass


def test_a_part_of_a_model_may_be_run_by_itself():
    model = tiny_models.build("BART")
    batch = tiny_models.inputs(model)
    part = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with injected(model, "vmean", layer=1):
        alone, full = model.encoder(**part).last_hidden_state, model(**batch).encoder_last_hidden_state
    assert torch.equal(alone, full) and apart(alone, model.encoder(**part).last_hidden_state) > 1e-2


@pytest.mark.parametrize("name", tiny_models.REFUSED)
def test_a_model_round_the_interface_is_refused(name):
    model = tiny_models.build(name)
    with pytest.raises(SourceError, match=f"{type(model).__name__} bypasses"), injected(model, "vmean"):
        model(**tiny_models.inputs(model))


@pytest.mark.parametrize(
    ("name", "method", "d", "options", "says"),
    [
        ("Llama", "linformer", 8, {}, "layers.0.self_attn: attention is causal, and linformer has no causal form"),
        ("GPT-2", "informer", 8, {}, "h.0.attn: attention is causal, and informer has no causal form"),
        ("Llama", "svd", 8, {}, "layers.0.self_attn: attention is causal, but svd looks ahead"),
        ("Llama", "lsh-qk", 8, {"hash": "smyrf"}, "layers.0.self_attn: lsh-qk: hash=smyrf needs the lengths of hidden"),
        ("BERT", "window", 8, {"causal": True}, "window:causal=true, and padding attention looks ahead"),
        ("Mistral", "snapkv", 8, {}, "layers.0.self_attn: attention has a sliding window, and snapkv has no form"),
        ("Mistral", "linformer", 8, {}, "layers.0.self_attn: attention is causal, and linformer has no causal form"),
        ("ModernBERT", "skyformer", 8, {}, "layers.1.attn: attention has a sliding window, and skyformer has no form"),
        ("Gemma 2", "skyformer", 8, {}, "layers.0.self_attn: scores have a cap at 2, and skyformer has no form for it"),
        ("GPT-OSS", "kernelized", 8, {}, "layers.0.self_attn: heads have sinks of their own, and kernelized states no"),
        ("T5", "performer", 8, {}, "encoder.block.0.layer.0.SelfAttention: scores have a bias from"),
        ("BART", "linformer", 8, {}, "decoder.layers.0.self_attn: attention is causal"),
        ("BERT", "skyformer", 40, {}, "encoder.layer.0.attention.self: skyformer: d=40 exceeds"),
    ],
)
def test_what_a_method_has_no_form_for_is_refused_by_name(built, name, method, d, options, says):
    model, batch = built(name)
    with pytest.raises(Unsupported) as caught, injected(model, method, d, **options):
        model(**batch)
    assert says in str(caught.value)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_method_that_is_causal_itself_runs_in_a_causal_model(side):
    """A causal window as wide as the text is the model's own attention, grouped keys and padding included."""
    model = tiny_models.build("Llama")
    batch = tiny_models.inputs(model)
    if side == "left":
        batch["attention_mask"] = batch["attention_mask"].flip(1)
    own = tiny_models.hidden(model, batch)
    with injected(model, "window", d=N + 4):
        assert apart(tiny_models.hidden(model, batch), own, batch) <= SAME
    with injected(model, "window", d=8):
        narrow = tiny_models.hidden(model, batch)
    with injected(model, "window", d=8, causal=True):
        assert torch.equal(tiny_models.hidden(model, batch), narrow)
    assert apart(narrow, own, batch) > 1e-3


CAUSAL = sorted(name for name, entry in METHODS.items() if entry.is_causal)
#: of each method once; the models differ in what surrounds it, which three methods of different kinds meet
LATER = [(method, name) for method in CAUSAL for name in ("GPT-2", "Llama")]
BEHIND = [(method, name) for method in CAUSAL for name in ("GPT-2", "Llama", "BART")]
KINDS = ("performer", "snapkv", "topk")


@pytest.mark.parametrize("method, name", others_slow(LATER, lambda case: case[1] == "Llama" or case[0] in KINDS))
def test_no_later_token_moves_an_earlier_state_of_a_causal_model(built, name, method):
    model, batch = built(name)
    later = {**batch, "input_ids": batch["input_ids"].clone()}
    later["input_ids"][0, 20:] = 5
    with injected(model, method, d=12):
        before, after = tiny_models.hidden(model, batch), tiny_models.hidden(model, later)
    torch.testing.assert_close(after[0, :20], before[0, :20], rtol=0, atol=1e-4)
    assert (after[0, 20:] - before[0, 20:]).abs().max() > 1e-2


@pytest.mark.parametrize("method, name", others_slow(BEHIND, lambda case: case[1] == "Llama" or case[0] in KINDS))
def test_a_token_behind_a_cache_gets_what_it_gets_in_the_whole_text_or_is_refused(built, name, method):
    """Its query is the only row of the call, which is not its place in the text."""
    model, batch = built(name)
    layer = "all" if name != "BART" else "decoder.*.self_attn"
    side = "decoder_input_ids" if name == "BART" else "input_ids"
    source = {"input_ids": batch["input_ids"][:1]} if name == "BART" else {}
    ids = batch[side][:1]
    with torch.no_grad(), injected(model, method, d=12, layer=layer):
        full = model(**source, **{side: ids}, use_cache=False).last_hidden_state[:, -1]
        cache = model(**source, **{side: ids[:, :-1]}, use_cache=True).past_key_values

        def last():
            return model(**source, **{side: ids[:, -1:]}, past_key_values=cache).last_hidden_state[:, -1]

        if "decodes" in METHODS[method].tags:
            assert apart(last(), full) <= SAME
            return
        with pytest.raises(Unsupported, match=f"a query follows a cache of keys, and {method} cannot decode"):
            last()


LOCAL = [name for name, entry in METHODS.items() if {"causal", "local"} <= set(entry.tags)]


SEVERAL = [(of, name) for of in LOCAL if "decodes" in METHODS[of].tags for name in ("Llama", "Mistral", "GPT-OSS")]


@pytest.mark.parametrize("method, name", others_slow(SEVERAL, lambda case: case[1] == "Mistral" or case[0] in KINDS))
def test_several_tokens_behind_a_cache_get_what_they_get_in_the_whole_text(built, name, method):
    """With a sliding window and sinks too. A cache has only the keys that a window shows, not the first ones."""
    if name == "GPT-OSS" and method in ("kernelized", "linear", "performer-relu", "vmean"):
        pytest.skip("it states no normaliser for the sinks")
    places = name != "Llama" and "permutation_equivariant" not in METHODS[method].tags
    model, batch = built(name)
    ids = batch["input_ids"][:1]
    d = None if METHODS[method].budget is None else max(METHODS[method].least, 3)
    with torch.no_grad(), injected(model, method, d=d):
        full = model(input_ids=ids, use_cache=False).last_hidden_state[:, -4:]
        cache = model(input_ids=ids[:, :-4], use_cache=True).past_key_values

        def last():
            return model(input_ids=ids[:, -4:], past_key_values=cache).last_hidden_state

        if not places:
            assert apart(last(), full) <= SAME
            return
        with pytest.raises(Unsupported, match=f"a cache that may lack the keys .* {method} goes by the places"):
            last()


@pytest.mark.parametrize("name", ["Mistral", "Gemma 3", "GPT-OSS", "ModernBERT"])
def test_a_local_method_runs_inside_the_window_of_the_model(built, name):
    """Where its own pattern hides nothing it is the model's own attention, sinks included."""
    model, _ = built(name)
    batch = tiny_models.inputs(model, padded=False)
    own = tiny_models.hidden(model, batch)
    with injected(model, "window", d=2 * N + 4):
        assert apart(tiny_models.hidden(model, batch), own, batch) <= SAME
    with injected(model, "window", d=5):
        assert apart(tiny_models.hidden(model, batch), own, batch) > 1e-3


def test_a_method_in_a_causal_model_gives_what_approximate_gives(built):
    """Grouped keys repeated, padding left out, row by row."""
    model, batch = built("Llama")
    path, recorded = "layers.1.self_attn", []
    module = model.get_submodule(path).o_proj  # what the attention hands on is its input
    hook = module.register_forward_pre_hook(lambda _, inputs: recorded.append(inputs[0]))
    with injected(model, "performer", 12, layer=1, seed=3):
        model(**batch)
    hook.remove()
    call = capture(model, batch, 1)[path, 0]
    assert call.kv_heads == 2
    for row, valid in enumerate((N, VALID)):
        q, k, v = call.q[row], *(getattr(call, x)[row].repeat_interleave(2, 0) for x in "kv")
        qkv = QKV(q[:, :valid], k[:, :valid], v[:, :valid], scale=call.scale, label={"layer": 1}, causal=True)
        expected = approximate("performer", qkv, 12, seed=3).output.transpose(0, 1).flatten(1)
        torch.testing.assert_close(recorded[0][row, :valid], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["snapkv", "topk", "random"])
def test_a_head_with_a_budget_of_its_own_has_the_keys_that_it_has_in_its_layer(built, method):
    """Also where the heads of a group choose together: for each budget all of them are asked."""
    model, batch = built("Llama")
    call = next(iter(capture(model, batch, 1).values()))
    budgets = {(1, head): (8, 12, 8, None)[head] for head in range(call.heads)}
    seen, options = {}, {"observe": 4} if method == "snapkv" else {}
    replacement = Replacement(get(method), budgets, 3, "softmax", options, seen.__setitem__)
    qkv, got = call.qkv(0), replacement(call)[0]
    for d in (8, 12):
        heads = [head for head in range(call.heads) if budgets[1, head] == d]
        expected = approximate(method, qkv, d, seed=3, **options).output[heads].transpose(0, 1)
        torch.testing.assert_close(got[:, heads], expected, rtol=1e-5, atol=1e-5)
    assert len(seen[0].diagnostics["realised_d"]) == len(seen[0].output) == 1


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        ("skyfromer", {"d": 4}, "did you mean 'skyformer'"),
        ("skyformer", {}, "skyformer needs a budget"),
        ("skyformer", {"d": 4, "gama": 1}, "unknown option of skyformer 'gama'"),
        ("nystromformer", {"d": 4, "target": "gaussian"}, "does not take target=gaussian"),
        ("vmean", {"layer": "3-1"}, "runs backwards"),
        ("vmean", {"layer": []}, "layer: name at least one"),
    ],
)
def test_impossible_requests_are_refused_before_any_forward(built, method, options, says):
    with pytest.raises(UsageError, match=says), injected(built("BERT")[0], method, **options):
        raise AssertionError("the block was entered")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    model = tiny_models.build("BERT").to(dtype)
    batch = tiny_models.inputs(model)
    own = tiny_models.hidden(model, batch)
    with injected(model, "softmax"):
        exact = tiny_models.hidden(model, batch)
    with injected(model, "skyformer", d=8):
        rough = tiny_models.hidden(model, batch)
    path = "encoder.layer.0.attention.self"
    got, call = context(model, path, batch, "performer", 8), capture(model, batch, 0)[path, 0]
    wide = QKV(*(getattr(call, x)[0].float() for x in "qkv"), scale=call.scale)
    assert torch.equal(got[0], approximate("performer", wide, 8).output.transpose(0, 1).flatten(1).to(dtype))
    assert exact.dtype == rough.dtype == dtype
    assert apart(exact, own, batch) < 8 * torch.finfo(dtype).eps and bool(torch.isfinite(rough).all())


def directional(output, x, towards):
    """The derivative of a weighted sum of the output by autograd, and by central differences."""
    leaf = [t.clone().requires_grad_() for t in x]
    grads = torch.autograd.grad(output(*leaf), leaf, allow_unused=True)
    by_autograd = sum(0.0 if g is None else float((g * t).sum()) for g, t in zip(grads, towards, strict=True))
    step = 1e-6
    ends = [output(*(a + sign * step * t for a, t in zip(x, towards, strict=True))) for sign in (1, -1)]
    return by_autograd, float(ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_gradients_flow_through_every_method(method):
    """Draws and choices held, the derivative along a random direction is that of finite differences."""
    if "whole_scale" in METHODS[method].tags:
        pytest.skip("a scale in float32 moves with the largest number, and no gradient passes it")
    g = generator(0, "gradients")
    x, towards = (list(torch.randn(3, 2, 40, 8, generator=g, dtype=torch.float64) * 0.7) for _ in range(2))
    weights = torch.randn(2, 40, 8, generator=g, dtype=torch.float64)
    for target in METHODS[method].targets:

        def output(*qkv, target=target):
            return (approximate(method, QKV(*qkv), 20, target=target).output * weights).sum()

        by_autograd, by_differences = directional(output, x, towards)
        assert by_autograd == pytest.approx(by_differences, rel=1e-4, abs=1e-4) and by_autograd != 0.0


def test_gradients_reach_the_weights_and_checkpoints_change_nothing():
    model = tiny_models.build("BERT").requires_grad_(True)
    batch = tiny_models.inputs(model)
    weight = model.encoder.layer[0].attention.self.query.weight

    def gradient(**settings):
        model.zero_grad()
        with injected(model, "skyformer", d=8, **settings):
            model(**batch).last_hidden_state[:, 0].square().sum().backward()
        return weight.grad.clone()

    plain, last = gradient(), gradient(layer=1)
    assert float(plain.norm()) > 0 and not torch.equal(plain, last)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(gradient(), plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient(layer=1), last, rtol=1e-4, atol=1e-5)


def test_a_registered_name_does_what_injected_does():
    model = tiny_models.build("BERT")
    batch = tiny_models.inputs(model)
    with injected(model, "skyformer", d=8, seed=2):
        expected = tiny_models.hidden(model, batch)
    assert register_attention("skyformer", d=8, seed=2) == "attnprobe-skyformer"
    model.set_attn_implementation("attnprobe-skyformer")
    assert torch.equal(tiny_models.hidden(model, batch), expected)
    assert register_attention("softmax", name="attnprobe-skyformer") == "attnprobe-skyformer"
    got = tiny_models.hidden(model, batch)
    model.set_attn_implementation("eager")
    assert apart(got, tiny_models.hidden(model, batch), batch) <= SAME
    with pytest.raises(UsageError, match="needs a budget"):
        register_attention("skyformer")


def test_a_model_with_attention_of_its_own_code_takes_no_name_but_is_injected():
    model = tiny_models.build("MPNet")
    batch = tiny_models.inputs(model, padded=False)
    own = tiny_models.hidden(model, batch)
    model.set_attn_implementation(register_attention("vmean"))
    assert torch.equal(tiny_models.hidden(model, batch), own)
    with injected(model, "vmean"):
        assert apart(tiny_models.hidden(model, batch), own) > 1e-2


def test_a_registered_method_refuses_a_causal_model():
    model = tiny_models.build("Llama")
    model.set_attn_implementation(register_attention("linformer", 8))
    with pytest.raises(Unsupported, match="LlamaAttention: attention is causal, and linformer has no causal form"):
        model(**tiny_models.inputs(model))


@needs_minilm
def test_minilm_with_every_method():
    from attnprobe.inputs.choose import open_model

    model = open_model("minilm")
    model.encoder.layer = model.encoder.layer[:1]  # the other layers have no method
    ids = torch.randint(1000, 20_000, (2, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 35:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    own = tiny_models.hidden(model, batch)
    for name, entry in METHODS.items():
        if "softmax" not in entry.targets:
            continue
        with injected(model, name, 32, layer="0", **entry.small):
            away = apart(tiny_models.hidden(model, batch), own, batch)
        assert away <= SAME if name == "softmax" else SAME < away < 2, (name, away)
