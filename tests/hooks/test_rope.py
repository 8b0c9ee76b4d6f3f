"""The angles of a model's RoPE turn its queries before RoPE into those that are captured."""

import pytest
import tiny_models
import torch

from attnprobe import capture

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED = {"rope_theta": 500.0, "original_max_position_embeddings": 16}
MODELS = {
    "Llama": ("Llama", {}),
    "another base": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "scaled as Llama 3.1": ("Llama", {"rope_parameters": {**LLAMA3, **SCALED}}),
    "YaRN": ("Llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **SCALED}}),
    "a norm of queries": ("Qwen3", {}),
    "two bases": ("Gemma 3", {}),
}


def turned(x, angles):
    """x (n, p) by the RoPE of its places."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None] * angles  # (n, p/2)
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


@pytest.mark.parametrize("name", MODELS)
def test_the_angles_are_those_of_the_model(name):
    kind, changes = MODELS[name]
    model = tiny_models.build(kind, **changes)
    seen = []
    for layer in model.layers:
        last = getattr(layer.self_attn, "q_norm", layer.self_attn.q_proj)
        last.register_forward_hook(lambda module, args, output: seen.append(output))
    calls = capture(model, {"input_ids": torch.arange(3, 23)[None]})
    for call, output in zip(calls.values(), seen, strict=True):
        p = call.q.shape[-1]
        heads_first = output.dim() == 4 and output.shape[2] == 20
        before = output[0].transpose(0, 1) if heads_first else output[0].reshape(20, -1, p)  # (n, h, p)
        angles = call.rope
        if isinstance(angles, float):
            angles = angles ** (-2 * torch.arange(p // 2, dtype=torch.float64) / p)
        ours = turned(before[:, 0].double(), torch.as_tensor(angles))
        factor = call.q[0, 0].norm() / ours.norm()  # YaRN also lengthens queries
        assert torch.allclose(call.q[0, 0].double(), factor * ours, atol=1e-5) and 0.999 < factor < 1.2
        assert call.qkv().label["rope"] == call.rope


def test_layers_with_another_base_say_it():
    model = tiny_models.build("Gemma 3")
    calls = capture(model, {"input_ids": torch.arange(3, 23)[None]})
    assert [call.rope for call in calls.values()] == [1e4, 1e6]


UNKNOWN = {
    "no RoPE": ("GPT-2", {}),
    "a part of the coordinates": ("GPT-NeoX", {}),
    "angles by the length": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **SCALED}}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_forms_are_not_known(name):
    kind, changes = UNKNOWN[name]
    calls = capture(tiny_models.build(kind, **changes), {"input_ids": torch.arange(3, 23)[None]})
    assert all(call.rope is None and "rope" not in call.qkv().label for call in calls.values())


def test_pairs_of_neighbours_are_another_form():
    import transformers

    config = transformers.CohereConfig(**tiny_models.grouped())
    calls = capture(transformers.CohereModel(config).eval(), {"input_ids": torch.arange(3, 23)[None]})
    assert all(call.rope is None for call in calls.values())
