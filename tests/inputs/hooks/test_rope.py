"""RoPE as the queries of a layer show it: pairs of coordinates that turn, their angles, and where it is not known."""

import pytest
import tiny_models
import torch
import transformers

from attnprobe import Unsupported, approximate, capture
from attnprobe.inject import injected
from attnprobe.inputs.hooks import rope
from attnprobe.inputs.hooks.rope import ropes

TOKENS = 20
SINGLE = {"rel": 2**-22, "abs": 1e-9}  # an angle in float32 and its power; queries in float32 at position 8,191
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED = {"rope_theta": 500.0, "original_max_position_embeddings": 16}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, **SCALED}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
LATENT |= {"num_key_value_heads": 4}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}


def scaled(**parameters):
    return {"rope_parameters": {"rope_theta": 500.0, **parameters}}


def small(name, **changes):
    """The body of a model by the name of its class."""
    config = getattr(transformers, f"{name}Config")(**{**tiny_models.grouped(), **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{name.removesuffix('Text')}{'Text' * ('Text' in name)}Model")(config).eval()


def halves(base, p):
    return {(i, i + p // 2): base ** (-2 * i / p) for i in range(p // 2)}


def neighbours(base, p, first=0):
    return {(first + 2 * i, first + 2 * i + 1): base ** (-2 * i / p) for i in range(p // 2)}


def scaled_by(config, p):
    """The angles that transformers computes for a scaled RoPE."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    angles, _ = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, torch.device("cpu"))
    return {(i, i + p // 2): angle for i, angle in enumerate(angles.tolist())}


KNOWN = {  # the model, and by layer the pairs with their angles
    "Llama": (lambda: small("Llama"), lambda c: dict.fromkeys((0, 1), halves(1e4, 8))),
    "another base": (lambda: small("Llama", **scaled(rope_type="default")), lambda c: {0: halves(500, 8)}),
    "a norm of queries": (lambda: small("Qwen3", head_dim=16), lambda c: {1: halves(1e4, 16)}),
    "two bases": (
        lambda: tiny_models.build("Gemma 3"),
        lambda c: {0: halves(1e4, 16), 1: halves(1e6, 16)},
    ),
    "linear": (
        lambda: small("Llama", **scaled(rope_type="linear", factor=4.0)),
        lambda c: {0: {pair: angle / 4 for pair, angle in halves(500, 8).items()}},
    ),
    "as Llama 3.1": (lambda: small("Llama", rope_parameters={**LLAMA3, **SCALED}), lambda c: {0: scaled_by(c, 8)}),
    "YaRN": (
        lambda: small("Llama", rope_parameters={"rope_type": "yarn", "factor": 4.0, **SCALED}),
        lambda c: {0: scaled_by(c, 8)},
    ),
    "dynamic, in a text within its positions": (
        lambda: small("Llama", **scaled(rope_type="dynamic", factor=2.0)),
        lambda c: {0: halves(500, 8)},
    ),
    "a setting that the model does not read": (
        lambda: small("Llama", **scaled(rope_type="default", partial_rotary_factor=0.5)),
        lambda c: {0: halves(500, 8)},
    ),
    "a part of the coordinates": (
        lambda: small("GPTNeoX", rotary_pct=0.5),
        lambda c: {0: {(0, 2): 1.0, (1, 3): 0.01}},
    ),
    "neighbours": (lambda: small("Cohere"), lambda c: {1: neighbours(c.rope_parameters["rope_theta"], 8)}),
    "layers without": (
        lambda: small("SmolLM3", num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
        lambda c: {0: halves(2e6, 8), 1: None, 2: halves(2e6, 8)},
    ),
    "global layers without": (
        lambda: small("Cohere2", sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
        lambda c: {0: neighbours(c.rope_parameters["rope_theta"], 8), 1: None},
    ),
    "latent attention": (
        lambda: small("MiniCPM3", **LATENT),
        lambda c: {0: {(16 + i, 20 + i): 10.0**-i for i in range(4)}},
    ),
    "latent attention, neighbours": (
        lambda: small("DeepseekV2", first_k_dense_replace=9, **LATENT),
        lambda c: {0: neighbours(1e4, 8, first=16)},
    ),
    "behind convolutions": (
        lambda: small("Lfm2", layer_types=["conv", "full_attention"]),
        lambda c: {-1: halves(1e6, 8)},
    ),
    "behind linear attention, a part": (
        lambda: small(
            "Qwen3Next", head_dim=16, layer_types=["linear_attention", "full_attention"], **LINEAR, **EXPERTS
        ),
        lambda c: {-1: {(0, 2): 1.0, (1, 3): 0.01}},
    ),
}


def by_pair(known, p):
    """The angles of `AttentionCall.rope` by pair."""
    if isinstance(known, float):
        return halves(known, p)
    if isinstance(known[0], float):
        return {(i, i + p // 2): angle for i, angle in enumerate(known)}
    return {(i, j): angle for i, j, angle in known}


def turned(x, angles):
    """x (p,) at each token, (tokens, p)."""
    out = x.repeat(TOKENS, 1)
    for (i, j), angle in angles.items():
        phase = angle * torch.arange(TOKENS, dtype=torch.float64)
        out[:, i], out[:, j] = x[i] * phase.cos() - x[j] * phase.sin(), x[i] * phase.sin() + x[j] * phase.cos()
    return out


@pytest.mark.parametrize("name", KNOWN)
def test_pairs_and_angles_are_those_of_the_layer(name):
    make, expected = KNOWN[name]
    model = make()
    ids = torch.arange(3, 3 + TOKENS)[None]
    calls = list(capture(model, {"input_ids": ids}).values())
    for layer, pairs in expected(model.config).items():
        call = calls[layer]
        if pairs is None:
            assert call.rope is None and "rope" not in call.qkv().label
            continue
        found = by_pair(call.rope, call.q.shape[-1])
        assert found.keys() == pairs.keys()
        assert [found[pair] for pair in pairs] == pytest.approx([*pairs.values()], **SINGLE)
        assert call.qkv().label["rope"] == call.rope


@pytest.mark.parametrize("name", [name for name in KNOWN if not name.startswith("behind")])
def test_a_repeated_word_has_queries_that_turn_by_these_angles(name):
    """All hidden states are equal then, behind attention too."""
    model = KNOWN[name][0]()
    ids = torch.full((1, TOKENS), 7)
    for call in list(capture(model, {"input_ids": ids}).values())[:1]:
        q = call.q[0].double()
        for head in q:
            ours = turned(head[0], by_pair(call.rope, head.shape[-1]))
            assert float((ours - head).norm() / head.norm()) < 1e-5


def test_a_base_is_a_number_and_other_angles_are_not():
    forms = {name: list(ropes(KNOWN[name][0]()).values())[0].angles for name in ("Llama", "linear", "neighbours")}
    assert forms["Llama"] == 1e4
    assert forms["linear"] == pytest.approx([500 ** (-i / 4) / 4 for i in range(4)], **SINGLE)
    assert [pair[:2] for pair in forms["neighbours"]] == [(0, 1), (2, 3), (4, 5), (6, 7)]


NOT_KNOWN = {
    "no RoPE": lambda: tiny_models.build("GPT-2"),
    "relative positions": lambda: tiny_models.build("T5"),
    "pixels": lambda: tiny_models.build("ViT"),
    "angles by the length of the text": lambda: small("Llama", rope_parameters=DYNAMIC, max_position_embeddings=16),
}


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_no_rope_describes_is_not_known(name):
    model = NOT_KNOWN[name]()
    batch = tiny_models.inputs(model, padded=False)
    assert all(call.rope is None for call in capture(model, batch).values())


def test_a_query_that_depends_on_its_position_in_another_way_has_no_rope():
    model = small("Llama")
    attention = model.layers[1].self_attn.q_proj
    attention.register_forward_pre_hook(lambda module, args: None)  # hooks of the user are not called
    assert ropes(model).keys() == {"layers.0.self_attn", "layers.1.self_attn"}
    longer = small("Llama")

    class Growing(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.linspace(1, 2, x.shape[1])[:, None]

    longer.layers[1].self_attn.q_proj.__class__ = Growing
    assert ropes(longer).keys() == {"layers.0.self_attn"}


def test_the_model_is_as_it_was():
    """A dynamic RoPE keeps the angles of the longest text that it has read."""
    model, other = (small("Llama", rope_parameters=DYNAMIC, max_position_embeddings=16) for _ in range(2))
    seen = []
    model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    model.train()
    known, rotary = ropes(model), vars(model.rotary_emb)
    assert known["layers.0.self_attn"].tokens == 16 and not seen and model.training
    assert rotary["max_seq_len_cached"] == 16
    ids = torch.arange(3, 3 + TOKENS)[None]
    assert torch.equal(model.eval()(ids).last_hidden_state, other(ids).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_dtype(dtype):
    model = small("Llama").to(dtype)
    model.rotary_emb = type(model.rotary_emb)(model.config)  # in float32, as in a model that is loaded in this dtype
    assert {known.angles for known in ropes(model).values()} == {1e4}


def test_a_model_that_does_not_take_positions_reads_its_tokens(monkeypatch):
    model = small("Llama")
    whole = type(model).forward

    def forward(self, input_ids, use_cache=False):
        return whole(self, input_ids, use_cache=use_cache)

    monkeypatch.setattr(type(model), "forward", forward)
    assert {(known.angles, known.tokens) for known in ropes(model).values()} == {(1e4, rope.READ)}


def test_a_layer_without_rope_refuses_that_of_the_model():
    model = small("SmolLM3", no_rope_layers=[1, 0])
    ids = torch.arange(3, 3 + TOKENS)[None]
    with_rope, without = capture(model, {"input_ids": ids}).values()
    approximate("expected", with_rope.qkv(), 8, rope="model", every=4)
    with pytest.raises(
        Unsupported, match="rope=model needs inputs of a model with a RoPE that is known in layer 1; leave rope out"
    ):
        approximate("expected", without.qkv(), 8, rope="model", every=4)
    with injected(model, "expected", 8, layer=0, rope="model", every=4):
        model(ids)
    refused = pytest.raises(Unsupported, match=r"layers\.1\.self_attn: expected: rope=model")
    with refused, injected(model, "expected", 8, rope="model", every=4):
        model(ids)
