"""The identities of truncated rows on every head of tiny models, and of MiniLM where its weights are installed."""

import pytest
import tiny_models
import torch
from thinned import others_slow

from attnprobe import approximate, exact, load_qkv, row_metrics
from attnprobe.errors import SourceError
from attnprobe.inputs.hooks.capture import capture

MODELS = ("Llama", "Mistral", "Gemma 2", "GPT-OSS", "ModernBERT", "BERT")
METHODS = {"topk": (3, 8), "window": (5, 12), "longformer": (5, 12), "bigbird": (10, 20)}


def check(qkv):
    """Of a renormalised selection: TV = lost mass = 1 - exp(-KL), and row error = lost mass · tail gap."""
    wide = qkv.to(dtype=torch.float64)
    for method, budgets in METHODS.items():
        for d in budgets:
            actual = row_metrics(exact(wide), approximate(method, wide, d), wide)
            lost = 1 - actual["mass"]
            assert (actual["tv"] - lost).abs().max() < 1e-10, method
            assert (actual["tv"] + torch.expm1(-actual["kl"])).abs().max() < 1e-10, method
            assert (actual["row_error"] - lost * actual["tail_gap"]).abs().max() < 1e-10, method
            assert (actual["log_normaliser_error"] - actual["mass"].log()).abs().max() < 1e-9, method


@pytest.mark.parametrize("name", others_slow(MODELS, lambda name: name[0] in ("Gemma 2", "GPT-OSS", "ModernBERT")))
def test_the_identities_hold_on_every_head_of_a_model(name):
    model = tiny_models.build(name, **({"attn_logit_softcapping": None} if name == "Gemma 2" else {}))
    calls = capture(model, tiny_models.inputs(model, padded=False))
    assert calls
    for call in calls.values():
        check(call.qkv())


@pytest.mark.slow
@pytest.mark.parametrize("layer", range(6))
def test_the_identities_hold_on_every_head_of_minilm(layer):
    try:
        qkv = load_qkv(model="minilm", text="embedded", n=256, layer=layer, device="cpu", notify=lambda line: None)
    except SourceError as error:
        pytest.skip(str(error))
    check(qkv)
