"""torch's own `MultiheadAttention` and encoder layers inside a user's module, which is no model of transformers."""

import copy

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

from attnprobe import capture, injected
from attnprobe.errors import SourceError, Unsupported
from attnprobe.reference import exact_output

B, H, N, P = 2, 4, 9, 3
VALID = 6
CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)
PADDING = torch.arange(N).expand(B, N) >= torch.tensor([[N], [VALID]])
SAME = 1e-6


class Model(nn.Module):
    """A part of torch between two linear layers, called in some way."""

    def __init__(self, part, call):
        super().__init__()
        self.first, self.part, self.call = nn.Linear(H * P, H * P), part, call

    def forward(self, x):
        return self.call(self.part, self.first(x))


def attention(**options):
    return nn.MultiheadAttention(H * P, H, batch_first=True, **options)


def layer(kind=nn.TransformerEncoderLayer):
    return kind(H * P, H, 20, batch_first=True)


def by_tokens_first(part, x):
    x = x.transpose(0, 1)
    return part(x, x, x)[0].transpose(0, 1)


KINDS = {
    "with weights": (attention, lambda part, x: part(x, x, x)[0], ["full"]),
    "without weights": (attention, lambda part, x: part(x, x, x, need_weights=False)[0], ["full"]),
    "padded": (attention, lambda part, x: part(x, x, x, key_padding_mask=PADDING)[0], ["padding"]),
    "causal": (attention, lambda part, x: part(x, x, x, attn_mask=CAUSAL)[0], ["causal"]),
    "is causal": (
        attention,
        lambda part, x: part(x, x, x, attn_mask=CAUSAL, is_causal=True, need_weights=False)[0],
        ["causal"],
    ),
    "a bias": (attention, lambda part, x: part(x, x, x, attn_mask=torch.eye(N))[0], ["full, bias"]),
    "tokens first": (lambda: nn.MultiheadAttention(H * P, H), by_tokens_first, ["full"]),
    "other sizes": (
        lambda: attention(kdim=5, vdim=7),
        lambda part, x: part(x, x[..., :5], x[..., :7])[0],
        ["full, cross"],
    ),
    "other tokens": (attention, lambda part, x: part(x, x[:, :4].flip(1), x[:, :4])[0], ["full, cross"]),
    "a learned key": (lambda: attention(add_bias_kv=True), lambda part, x: part(x, x, x)[0], ["full, cross"]),
    "a key of zeros": (lambda: attention(add_zero_attn=True), lambda part, x: part(x, x, x)[0], ["full, cross"]),
    "encoder layer": (layer, lambda part, x: part(x), ["full"]),
    "padded encoder": (
        lambda: nn.TransformerEncoder(layer(), 2),
        lambda part, x: part(x, src_key_padding_mask=PADDING),
        ["padding", "padding"],
    ),
    "decoder layer": (
        lambda: layer(nn.TransformerDecoderLayer),
        lambda part, x: part(x, 2 * x, tgt_mask=CAUSAL),
        ["causal", "full, cross"],
    ),
}


def built(name):
    torch.manual_seed(0)
    made, call, kinds = KINDS[name]
    return Model(made(), call).eval(), torch.randn(B, N, H * P), kinds


def rows(x):
    """The outputs of tokens that are not padding."""
    return [x[0], x[1, :VALID]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_each_call_rebuilds_what_torch_computed_and_is_replaced(name):
    model, x, kinds = built(name)
    own = model(x)
    calls = list(capture(model, {"x": x}).values())
    assert [", ".join([str(call.pattern), *call.extras()]) for call in calls] == kinds
    assert max(call.delta for call in calls) <= SAME and {call.captured for call in calls} == {"code"}
    with injected(model, "softmax"):
        torch.testing.assert_close(rows(model(x)), rows(own), rtol=0, atol=SAME)
    if "causal" not in kinds:
        with injected(model, "vmean"):
            assert float((model(x)[0] - own[0]).abs().max()) > 1e-2
    torch.testing.assert_close(rows(model(x)), rows(own), rtol=0, atol=0)  # by torch's fast path again


@torch.no_grad()
def test_the_inputs_of_a_method_are_those_of_the_formula():
    model, x, _ = built("with weights")
    part, states = model.part, model.first(x)
    q, k, v = (states @ part.in_proj_weight.mT + part.in_proj_bias).unflatten(-1, (3, H, P)).permute(2, 0, 3, 1, 4)
    [call] = capture(model, {"x": x}).values()
    expected = torch.softmax(q @ k.mT * P**-0.5, -1) @ v
    torch.testing.assert_close(exact_output(call.qkv(1)).float(), expected[1], rtol=0, atol=SAME)


@torch.no_grad()
def test_a_key_beside_those_of_the_tokens_is_not_before_them():
    model, x, _ = built("a learned key")
    [call] = capture(model, {"x": x}).values()
    qkv = call.qkv()
    assert (qkv.n_q, qkv.n_k) == (N, N + 1) and qkv.query_positions.tolist() == list(range(N))
    model.call = lambda part, x: part(x, x, x, attn_mask=CAUSAL)[0]
    [call] = capture(model, {"x": x}).values()
    with pytest.raises(Unsupported, match="is not supported, and a method that gets only Q, K and V would miss it"):
        call.qkv()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["with weights", "encoder layer"])
@torch.no_grad()
def test_layers_of_eight_bits_are_captured_as_they_compute(name):
    model, x, _ = built(name)
    small = quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    [call] = capture(small, {"x": x}).values()
    [before] = capture(model, {"x": x}).values()
    assert call.delta <= SAME and not torch.equal(call.q, before.q)


def test_a_module_without_attention_is_refused_in_one_line():
    with pytest.raises(SourceError, match=r"^Sequential bypasses .* no softmax of Q Kᵀ was seen$"):
        capture(nn.Sequential(nn.Linear(3, 3)).eval(), {"input": torch.ones(2, 3)})
