"""The keys that policies keep of a prompt, and what is decoded behind them, beside kvpress on the same model.

kvpress asks for transformers below 5.3, so it has an environment of its own:
pip install 'transformers<5.3' kvpress pytest && PYTHONPATH=. pytest -n 0 tests/measure/inject/test_kvpress.py
"""

import pytest
import tiny_models
import torch

from attnprobe import capture
from attnprobe.inject import attention_by
from attnprobe.measure.inject.policy import PromptPolicy, kept_keys, prompt_text
from attnprobe.methods.registry import METHODS

PROMPT, D = 96, 24  # a share that has no rounding
PRESSES = {  # the press, its settings, the policy and its options
    "snapkv": ("SnapKVPress", {"window_size": 8, "kernel_size": 5}, {"observe": 8}),
    "knorm": ("KnormPress", {}, {}),
    "keydiff": ("KeyDiffPress", {}, {}),
    "tova": ("TOVAPress", {}, {}),
    "h2o": ("ObservedAttentionPress", {}, {}),
    "window": ("StreamingLLMPress", {"n_sink": 4}, {"sinks": 4}),
    "expected": ("ExpectedAttentionPress", {"n_sink": 4}, {"first": 4, "rope": "model"}),
}
BORDER = {  # the keys that may differ
    "snapkv": 2,  # kvpress pools over keys before the observed window alone, so scores of the last two of them differ
    "tova": 1,  # kvpress always keeps the last key
}


@pytest.fixture(scope="module")
def prefill():
    """A prefill of a tiny Llama: its attention calls, and what a press sees of each layer."""
    model = tiny_models.build("Llama", max_position_embeddings=256)
    for layer in model.layers:
        layer.self_attn.rotary_emb = model.rotary_emb  # as kvpress gives it to its presses
    ids = torch.randint(3, 60, (1, PROMPT), generator=torch.Generator().manual_seed(2))
    seen = []

    def look(module, args, kwargs, output):
        seen.append((module, kwargs, output[1]))

    hooks = [layer.self_attn.register_forward_hook(look, with_kwargs=True) for layer in model.layers]
    model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return list(capture(model, {"input_ids": ids}).values()), seen


@pytest.mark.parametrize("policy", PRESSES)
def test_a_policy_keeps_what_its_press_keeps(policy, prefill):
    kvpress = pytest.importorskip("kvpress", reason="kvpress is not installed", exc_type=ImportError)
    name, settings, options = PRESSES[policy]
    press = getattr(kvpress, name)(compression_ratio=1 - D / PROMPT, **settings)
    for call, (module, kwargs, attentions) in zip(*prefill, strict=True):
        scores = press.score(module, kwargs["hidden_states"], call.k, call.v, attentions, kwargs)
        theirs = [set(kept.tolist()) for kept in scores[0].topk(D, dim=-1).indices]
        qkv = call.qkv()
        if METHODS[policy].compress is None:
            ours = [{*range(4), *range(PROMPT - D + 4, PROMPT)}] * qkv.kv_heads
        else:
            kept = kept_keys(METHODS[policy], prompt_text(qkv, PROMPT), PROMPT, D, options=options)
            ours = [set(keys.tolist()) - {-1} for keys in kept[:: qkv.group]]
        for mine, other in zip(ours, theirs, strict=True):
            assert len(mine) == len(other) == D and len(mine - other) <= BORDER.get(policy, 0)


@pytest.mark.parametrize("policy", [policy for policy in PRESSES if policy not in BORDER])
def test_steps_behind_a_policy_are_those_behind_its_press(policy):
    """The logits of tokens that are decoded one by one on kvpress' compressed cache."""
    kvpress = pytest.importorskip("kvpress", reason="kvpress is not installed", exc_type=ImportError)
    from transformers import DynamicCache, LlamaForCausalLM

    base = tiny_models.build("Llama", max_position_embeddings=256)
    model = LlamaForCausalLM(base.config).eval()
    model.model = base
    ids = torch.randint(3, 60, (1, PROMPT + 6), generator=torch.Generator().manual_seed(2))
    name, settings, options = PRESSES[policy]
    theirs, cache = [], DynamicCache()
    with torch.no_grad():
        with getattr(kvpress, name)(compression_ratio=1 - D / PROMPT, **settings)(model):
            base(input_ids=ids[:, :PROMPT], past_key_values=cache)
        for place in range(PROMPT, PROMPT + 6):
            at = torch.tensor([[place]])
            step = model(input_ids=ids[:, place : place + 1], past_key_values=cache, position_ids=at)
            theirs.append(step.logits[0, 0])
        texts = {call.number: prompt_text(call.qkv(), PROMPT) for call in capture(base, {"input_ids": ids}).values()}
        ours, policy_of = (
            DynamicCache(),
            PromptPolicy(METHODS[policy], D, 0, options, PROMPT, lambda layer, row: texts[layer]),
        )
        base(input_ids=ids[:, :PROMPT], past_key_values=ours)
        with attention_by(base, policy_of):
            logits = model(input_ids=ids[:, PROMPT:], past_key_values=ours).logits[0]
        own = model(input_ids=ids).logits[0, PROMPT:]
    assert (logits - torch.stack(theirs)).abs().max() < 1e-4 < 0.01 < (logits - own).abs().max()
