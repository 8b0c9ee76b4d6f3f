"""The keys that policies keep of a prompt, beside those of kvpress on the same model, where it is installed:

pip install --no-deps kvpress cachetools fire termcolor    # kvpress itself asks for an older transformers
"""

import pytest
import tiny_models
import torch

from attnprobe import capture
from attnprobe.experiments.inject.policy import kept_keys
from attnprobe.methods.registry import METHODS

PROMPT, D = 96, 24  # a share that has no rounding
PRESSES = {  # the press, its settings, the policy and its options
    "snapkv": ("SnapKVPress", {"window_size": 8, "kernel_size": 5}, {"observe": 8}),
    "knorm": ("KnormPress", {}, {}),
    "keydiff": ("KeyDiffPress", {}, {}),
    "tova": ("TOVAPress", {}, {}),
    "h2o": ("ObservedAttentionPress", {}, {}),
    "window": ("StreamingLLMPress", {"n_sink": 4}, {"sinks": 4}),
}
BORDER = {  # the keys that may differ
    "snapkv": 2,  # kvpress pools over keys before the observed window alone, so scores of the last two of them differ
    "tova": 1,  # kvpress always keeps the last key
}


@pytest.fixture(scope="module")
def prefill():
    """A prefill of a tiny Llama: its attention calls, and what a press sees of each layer."""
    model = tiny_models.build("Llama", max_position_embeddings=256)
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
            kept = kept_keys(METHODS[policy], qkv, PROMPT, D, options=options)
            ours = [set(keys.tolist()) - {-1} for keys in kept[:: qkv.group]]
        for mine, other in zip(ours, theirs, strict=True):
            assert len(mine) == len(other) == D and len(mine - other) <= BORDER.get(policy, 0)
