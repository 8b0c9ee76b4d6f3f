"""Masks that users pass themselves: bool ones, and numbers that hide keys without being the most negative ones."""

from contextlib import nullcontext

import pytest
import tiny_models
import torch
from thinned import others_slow

from attnprobe import capture, injected, register_attention
from attnprobe.errors import Unsupported
from attnprobe.inputs.hooks.weightless import NO_WEIGHT, hide_weightless

SAME = 2e-6  # relative, in float32, over a few layers
N = 24
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
PADDED = CAUSAL & (torch.arange(N) > 4)  # padding on the left: five queries see no key
PREFIX = CAUSAL | (torch.arange(N) < 6)
WINDOW = CAUSAL & CAUSAL.triu(-5).bool()


def model_of(name, implementation):
    model = tiny_models.build(name)
    model.set_attn_implementation(implementation)
    return model


def ids(rows=1):
    return torch.randint(3, tiny_models.VOCABULARY, (rows, N), generator=torch.Generator().manual_seed(1))


def states(model, mask):
    return model(input_ids=ids(), attention_mask=mask).last_hidden_state


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def numbers(visible, value):
    return torch.zeros(visible.shape).masked_fill(~visible, value)


MASKS = {"causal": CAUSAL, "padded": PADDED, "prefix": PREFIX, "window": WINDOW, "all": torch.ones_like(CAUSAL)}


READ = [
    (name, mask, of) for name in ("Llama", "BERT", "GPT-2") for mask in MASKS for of in ("all", "0", "1", "no.module")
]


# all layers, and one of two, under each mask
@pytest.mark.parametrize(
    "name, mask, layer", others_slow(READ, lambda case: case[2] in ("all", "0") or case[1] == "window")
)
def test_exact_attention_changes_nothing_under_a_bool_mask(name, mask, layer):
    """Layers that are not selected, whose attention is eager, read it as the model's own attention does."""
    model, visible = model_of(name, "sdpa"), MASKS[mask][None, None]
    own = states(model, visible)
    try:
        with injected(model, "softmax", layer=layer):
            got = states(model, visible)
    except Exception as error:
        assert layer == "no.module" and "was never reached" in str(error)
    assert apart(got, own) <= SAME


BLIND = [None, -torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("value", BLIND)
@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_a_query_that_sees_no_key_is_no_padding_if_others_see_its_key(name, value, implementation):
    """It gets what the model gives it: zeros under a bool mask, a mean of values under a number that leaves no score.

    A method with a causal or full form would give it something else.
    """
    if implementation == "eager" and value in BLIND[:2]:
        pytest.skip("the model adds True as 1, and gives NaN where all keys are at -inf")
    model = model_of(name, implementation)
    visible = (CAUSAL if name == "Llama" else torch.ones_like(CAUSAL)).clone()
    visible[5] = False
    mask = (visible if value is None else numbers(visible, value))[None, None]
    own = states(model, mask)
    for layer in ("0", "all"):
        with injected(model, "softmax", layer=layer):
            assert apart(states(model, mask), own) <= SAME
    with pytest.raises(Unsupported, match="custom"), injected(model, "topk", d=4, layer="0"):
        states(model, mask)
    calls = capture(model, {"input_ids": ids(), "attention_mask": mask})
    assert {str(call.pattern) for call in calls.values()} == {"custom"}
    model.set_attn_implementation(register_attention("softmax"))
    assert apart(states(model, mask), own) <= SAME


def test_a_query_of_cross_attention_that_sees_no_key_is_no_padding():
    """It gets what the model gives it: the padding of its own tokens says nothing of the keys of another text."""
    model, visible = model_of("BART", "sdpa"), CAUSAL.clone()
    visible[5] = False
    mask = numbers(visible, -1e4)[None, None]
    own = states(model, mask)
    for layer in ("decoder.*.encoder_attn", "all"):
        with injected(model, "softmax", layer=layer):
            assert apart(states(model, mask), own) <= SAME
    calls = capture(model, {"input_ids": ids(), "attention_mask": mask})
    assert {str(call.pattern) for (path, _), call in calls.items() if "encoder_attn" in path} == {"custom"}
    padded = {"input_ids": ids(), "attention_mask": (torch.arange(N) < 20)[None].long()}
    found = {str(call.pattern) for (path, _), call in capture(model, padded).items() if "encoder_attn" in path}
    assert found == {"padding"}


@pytest.mark.parametrize("value", [torch.finfo(torch.float64).min, *BLIND[2:]])
@pytest.mark.parametrize("name", ["Llama", "GPT-NeoX"])
def test_a_query_that_sees_no_key_in_float64_is_as_in_torchs_own_attention(name, value):
    """Eager attention takes softmax in float32, where such numbers lose the scores, or are -∞."""
    model = model_of(name, "sdpa").double()
    visible = CAUSAL.clone()
    visible[5], visible[:, :2] = False, False
    mask = numbers(visible, 0.0).double().masked_fill(~visible, value)[None, None]
    own = states(model, mask)
    for layer in ("0", "1", "all"):
        with injected(model, "softmax", layer=layer):
            assert apart(states(model, mask)[:, 2:], own[:, 2:]) <= SAME
    assert len(capture(model, {"input_ids": ids(), "attention_mask": mask})) == 2


def test_queries_that_see_no_key_may_differ_by_head_and_by_row():
    """Padding and a mask that are added hide some keys twice: -1e9 and -2e9 in one row."""
    model = model_of("Llama", "eager")
    visible = torch.stack([torch.stack([CAUSAL] * 4)] * 2)
    visible[0, 1, 5], visible[0, 1, 7], visible[1, 2, 9] = False, False, False
    mask = numbers(visible, -1e9) + numbers(torch.arange(N) < 12, -1e9)
    batch = {"input_ids": ids(2), "attention_mask": mask}
    own = tiny_models.hidden(model, batch)
    with injected(model, "softmax"):
        assert apart(tiny_models.hidden(model, batch), own) <= SAME


def test_gradients_pass_queries_that_see_no_key():
    model, weight = model_of("Llama", "eager").requires_grad_(True), torch.linspace(-1, 1, N)[:, None]
    visible = CAUSAL.clone()
    visible[5] = False
    mask, found = numbers(visible, torch.finfo(torch.float32).min)[None, None], []
    for block in (nullcontext(), injected(model, "softmax")):
        with block, torch.enable_grad():
            (weight * states(model, mask)).sum().backward()
        found.append(model.layers[0].self_attn.v_proj.weight.grad.clone())
        model.zero_grad()
    assert apart(*found) <= 10 * SAME


def test_a_bool_mask_may_differ_by_head_and_by_row():
    model = model_of("Llama", "sdpa")
    visible = torch.stack([torch.stack([CAUSAL, PREFIX, WINDOW, PADDED])] * 2)
    visible[1] &= torch.arange(N) > 2
    batch = {"input_ids": ids(2), "attention_mask": visible}
    own = tiny_models.hidden(model, batch)
    for layer in ("all", "1"):
        with injected(model, "softmax", layer=layer):
            assert apart(tiny_models.hidden(model, batch), own) <= SAME


@pytest.mark.parametrize("mask", MASKS)
def test_a_bool_mask_is_captured_as_its_additive_form(mask):
    model, visible = model_of("Llama", "sdpa"), MASKS[mask][None, None]
    both = [visible, numbers(visible, torch.finfo(torch.float32).min)]
    found = [capture(model, {"input_ids": ids(), "attention_mask": one}) for one in both]
    first, second = ([str(call.pattern) for call in calls.values()] for calls in found)
    expected = {
        "prefix": "custom",
        "window": "causal sliding-window (6)",
        "all": "full",
        "padded": "causal with padding",
    }
    assert first == second == [expected.get(mask, mask)] * 2


def test_a_model_whose_own_attention_is_eager_adds_a_bool_mask_as_it_does():
    """transformers adds True as 1 there. Capture says so, and exact attention changes nothing."""
    model, visible = model_of("Llama", "eager"), CAUSAL[None, None]
    own = states(model, visible)
    assert apart(own, states(model, visible.float())) == 0
    for layer in ("all", "0"):
        with injected(model, "softmax", layer=layer):
            assert apart(states(model, visible), own) <= SAME
    call = next(iter(capture(model, {"input_ids": ids(), "attention_mask": visible}).values()))
    assert str(call.qkv().terms) == "a bias from 0 to 1" and not call.causal


VALUES = [-torch.inf, torch.finfo(torch.float32).min, torch.finfo(torch.float16).min, -1e9, -1e5, -1e4, -3e3]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("mask", ["causal", "padded", "window"])
def test_a_number_that_leaves_a_key_no_weight_hides_it(mask, value):
    model, visible = model_of("Llama", "sdpa"), MASKS[mask][None, None]
    calls = capture(model, {"input_ids": ids(), "attention_mask": numbers(visible, value)})
    as_bool = capture(model, {"input_ids": ids(), "attention_mask": visible})
    for call, expected in zip(calls.values(), as_bool.values(), strict=True):
        got, own = call.qkv(), expected.qkv()
        assert got.causal and got.sliding_window == own.sliding_window and call.bias is None
        assert torch.equal(call.visible, expected.visible)


@pytest.mark.parametrize("value", [-5.0, -30.0, -100.0, 2.0])
def test_a_number_that_leaves_weight_is_a_bias_and_named_as_such(value):
    model, mask = model_of("Llama", "sdpa"), numbers(CAUSAL[None, None], value)
    call = next(iter(capture(model, {"input_ids": ids(), "attention_mask": mask}).values()))
    low, high = sorted((value, 0.0))
    assert str(call.qkv().terms) == f"a bias from {low:.4g} to {high:.4g}"
    assert str(call.pattern) == "full"
    own = states(model, mask)
    with injected(model, "softmax"):
        assert apart(states(model, mask), own) <= SAME


def test_a_mask_and_a_bias_are_told_apart():
    model = model_of("Llama", "sdpa")
    mask = numbers(CAUSAL[None, None], -1e4)
    mask[..., 7, 3] = -2.0
    call = next(iter(capture(model, {"input_ids": ids(), "attention_mask": mask}).values()))
    assert str(call.pattern) == "causal" and float(call.bias.sum()) == -2.0


def test_padding_of_a_batch_in_large_numbers_leaves_other_rows_as_they_are():
    model = model_of("Llama", "sdpa")
    visible = torch.stack([CAUSAL, PADDED])[:, None]
    for value in (-1e9, -1e4):
        batch = {"input_ids": ids(2), "attention_mask": numbers(visible, value)}
        for call in capture(model, batch).values():
            assert str(call.pattern) == "causal with padding" and call.qkv(0).mask is None
            assert torch.equal(call.qkv(1).mask, PADDED[-1])


def hidden(scores, bias, softcap=None):
    """Which keys of one query are hidden, where its scores are these."""
    q, k = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.tensor(scores, dtype=torch.float64)[None, None, :, None]
    added = torch.tensor(bias, dtype=torch.float64)[None, None, None]
    visible, rest = hide_weightless(None, added, q, k, 1.0, softcap)
    return [] if visible is None else (~visible).flatten().nonzero().flatten().tolist(), rest


def test_the_scores_decide_whether_a_number_hides():
    """A key whose score is 10,000 larger has all the weight under -1e4."""
    assert hidden([0.0, 0.0], [0.0, -1e4]) == ([1], None)
    seen, rest = hidden([0.0, 2e4], [0.0, -1e4])
    assert seen == [] and rest.flatten().tolist() == [0.0, -1e4]
    assert hidden([0.0, 1e4 - 800], [0.0, -1e4])[0] == [1] and hidden([0.0, 1e4 - 700], [0.0, -1e4])[0] == []


@pytest.mark.parametrize("start", [0.0, 3.0, -40.0])
def test_a_key_is_hidden_where_its_weight_in_float64_is_0(start):
    """The smallest positive float64 is 2^-1074; exp rounds to 0 below half of it."""
    for gap, gone in ((NO_WEIGHT - 1e-3, True), (NO_WEIGHT + 1e-3, False)):
        assert hidden([start, start], [0.0, gap])[0] == ([1] if gone else [])
        assert hidden([start, start - 9], [0.0, gap + 9])[0] == ([1] if gone else [])


def test_a_cap_bounds_the_scores():
    assert hidden([0.0, 1e6], [0.0, -800.0], softcap=10.0) == ([1], None)
    assert hidden([0.0, 1e6], [0.0, -750.0], softcap=10.0)[0] == []


def test_the_output_of_a_method_is_contiguous():
    """Models may view it in another shape."""
    model, seen = model_of("Llama", "eager"), []
    projection = model.layers[0].self_attn.o_proj
    projection.register_forward_pre_hook(lambda _, args: seen.append(args[0].is_contiguous()))
    for method in ("softmax", "window"):
        with injected(model, method, **({} if method == "softmax" else {"d": 8})):
            model(input_ids=ids())
    assert seen == [True, True]
