"""Attention that a module computes by code of its own: what is seen of it rebuilds what it computed."""

import math

import pytest
import tiny_models
import torch
from torch import nn
from torch.nn import functional

from attnprobe import capture, injected
from attnprobe.errors import SourceError, Unsupported
from attnprobe.inputs.hooks.call import exact_rows
from attnprobe.inputs.hooks.products import Seen, Watch
from attnprobe.reference import exact_output

B, H, N, P = 2, 3, 11, 4


class SelfAttention(nn.Module):
    """Attention with one matrix for Q, K and V, or with projections of its own, and a score function."""

    def __init__(self, scores, fused=True):
        super().__init__()
        self.num_heads, self.scores = H, scores
        sizes = [3 * H * P] if fused else [H * P] * 3
        self.projections = nn.ModuleList(nn.Linear(H * P, size) for size in sizes)

    def forward(self, x):
        made = torch.cat([project(x) for project in self.projections], -1).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (H, P)).transpose(1, 2) for part in made)
        return self.scores(q, k, v).transpose(1, 2).flatten(2)


def seen_in(module, x) -> tuple[list[Seen], Watch, torch.Tensor]:
    """What is seen in a forward, and its output, which watching did not change."""
    found = []
    with Watch(module, lambda seen: found.append(seen) or seen.output) as watch:
        out = module(x)
    assert torch.equal(out, module(x))
    return found, watch, out


def rebuilt(seen: Seen) -> torch.Tensor:
    q, k, v = (x.double() for x in (seen.q, seen.k, seen.v))
    return exact_rows(q, k, v, seen.scale, bias=None if seen.mask is None else seen.mask.double())[0].flatten(2)


def states(seed=0):
    return torch.randn(B, N, H * P, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(P), -1) @ v


def in_place(q, k, v):
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores /= math.sqrt(P)
    scores += torch.linspace(-1, 1, N, dtype=q.dtype)
    scores.masked_fill_(torch.ones(N, N, dtype=torch.bool).triu(1), torch.finfo(q.dtype).min)
    return functional.dropout(functional.softmax(scores, dim=-1), 0.5, training=False) @ v


def einsum(q, k, v):
    weights = torch.einsum("bhid,bhjd->bhij", q * P**-0.5, k).softmax(-1)
    return torch.einsum("bhij,jbhd->ibhd", weights, v.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)


def added(q, k, v):
    """Scores that are added to a bias by one function, with one axis of batches."""
    bias = torch.linspace(0, 5, N, dtype=q.dtype).expand(B * H, 1, N)
    flat = [x.reshape(B * H, N, P) for x in (q, k, v)]
    scores = torch.baddbmm(bias, flat[0], flat[1].mT, beta=2.0, alpha=0.3)
    return torch.bmm(functional.softmax(scores, -1), flat[2]).view(B, H, N, P)


def two_products(q, k, v):
    """As in latent attention: the scores of two parts of a head are added, with two factors."""
    return torch.softmax(0.5 * (q[..., :1] @ k[..., :1].mT) + 2 * (q[..., 1:] @ k[..., 1:].mT), -1) @ v


def of_exponentials(q, k, v):
    scores = q @ k.mT
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


def fused(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)


def relative(q, k, v):
    """A bias that depends on the query and on the distance."""
    table = torch.randn(2 * N - 1, P, generator=torch.Generator().manual_seed(3), dtype=q.dtype)
    places = torch.arange(N)
    by_distance = (q @ table.mT).gather(-1, (places[None] - places[:, None] + N - 1).expand(B, H, N, N))
    return torch.softmax((q @ k.mT + by_distance) * P**-0.5, -1) @ v


def negative(q, k, v):
    return torch.softmax(-(q @ k.mT), -1) @ v


KINDS = {f.__name__: f for f in (plain, in_place, einsum, added, two_products, of_exponentials, fused, relative)}
KINDS["negative"] = negative


@pytest.mark.parametrize("projections", ["one matrix", "three matrices"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_seen_rebuilds_what_was_computed(kind, projections):
    module = SelfAttention(KINDS[kind], fused=projections == "one matrix").double()
    (seen,), watch, out = seen_in(module, states())
    assert watch.why() is None and seen.q.shape == (B, H, N, P) and seen.scale > 0
    torch.testing.assert_close(rebuilt(seen), out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_another_output_takes_the_place_of_the_attention_and_gradients_reach_its_factors(kind):
    module = SelfAttention(KINDS[kind]).double()
    own = module(states())

    def double(seen):
        return (
            2
            * exact_rows(seen.q, seen.k, seen.v, seen.scale, bias=None if seen.mask is None else seen.mask.detach())[0]
        )

    with Watch(module, double):
        changed = module(states())
    torch.testing.assert_close(changed, 2 * own, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(changed.sum(), list(module.parameters())[0])
    assert bool(gradient.isfinite().all()) and float(gradient.abs().max()) > 0


def test_shared_projections_and_repeated_heads_are_told_from_their_numbers():
    def tied(q, k, v):
        return torch.softmax(q @ q.mT, -1) @ v

    def grouped(q, k, v):
        return torch.softmax(q @ k[:, :1].repeat(1, H, 1, 1).mT, -1) @ v[:, :1].expand(-1, H, -1, -1)

    def of_one_query(q, k, v):
        return torch.softmax(q[:, :1] @ k.mT, -1) @ v

    (seen,), _, out = seen_in(SelfAttention(tied).double(), states())
    assert torch.equal(seen.q, seen.k)
    torch.testing.assert_close(rebuilt(seen), out, rtol=0, atol=1e-12)
    (seen,), _, out = seen_in(SelfAttention(grouped).double(), states())
    assert seen.k.shape[1] == seen.v.shape[1] == 1 and seen.q.shape[1] == H
    torch.testing.assert_close(rebuilt(seen), out, rtol=0, atol=1e-12)
    (seen,), _, out = seen_in(SelfAttention(of_one_query).double(), states())
    torch.testing.assert_close(rebuilt(seen), out, rtol=0, atol=1e-12)


class Quantised(nn.Module):
    """A linear layer whose weights are whole numbers with a scale for each row."""

    def __init__(self, of):
        super().__init__()
        self.step = of.weight.detach().abs().amax(1, keepdim=True) / 127
        self.numbers = (of.weight.detach() / self.step).round().to(torch.int8)

    def forward(self, x):
        return torch.matmul(x, (self.numbers.to(x.dtype) * self.step).t())


def test_quantised_projections_are_captured():
    module = SelfAttention(plain).double()
    module.projections[0] = Quantised(module.projections[0])
    (seen,), _, out = seen_in(module, states())
    torch.testing.assert_close(rebuilt(seen), out, rtol=0, atol=1e-12)


def capped(q, k, v):
    return torch.softmax(2 * torch.tanh(q @ k.mT / 2), -1) @ v


def mixed_heads(q, k, v):
    mix = torch.randn(H, H, generator=torch.Generator().manual_seed(1), dtype=q.dtype)
    return torch.softmax(torch.einsum("bhij,hg->bgij", q @ k.mT, mix), -1) @ v


def mixed_weights(q, k, v):
    mix = torch.randn(H, H, generator=torch.Generator().manual_seed(1), dtype=q.dtype)
    return torch.einsum("bhij,hg->bgij", torch.softmax(q @ k.mT, -1), mix) @ v


def over_queries(q, k, v):
    return torch.softmax(q @ k.mT, -2) @ v


def of_landmarks(q, k, v):
    left = torch.softmax(q @ k[:, :, :2].mT, -1)
    return left @ (torch.softmax(q[:, :, :2] @ k.mT, -1) @ v)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (capped, "its scores are not a number times Q Kᵀ"),
        (mixed_heads, "its scores are not a number times Q Kᵀ"),
        (mixed_weights, "V is not multiplied by the weights of its softmax"),
        (over_queries, "a softmax over the axis -2"),
        (of_landmarks, "it takes more than one softmax"),
    ],
)
def test_what_is_no_softmax_attention_is_refused_by_a_true_line(kind, says):
    found, watch, _ = seen_in(SelfAttention(kind).double(), states())
    why = watch.why() or ""
    assert found == [] and says in why and "\n" not in why


def test_heads_that_cannot_be_told_apart_are_refused():
    def flat(q, k, v):
        return plain(*(x.reshape(B * H, N, P) for x in (q, k, v))).view(B, H, N, P)

    module = SelfAttention(flat).double()
    assert len(seen_in(module, states())[0]) == 1
    del module.num_heads
    found, watch, _ = seen_in(module, states())
    assert found == [] and watch.why() == "its heads cannot be told apart"


STANDINS = {  # with which settings a module computes exact attention, and how far it is from it with others
    "BigBird (block-sparse)": {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
    "Longformer": {"attention_window": 2 * tiny_models.N},
    "Nystromformer": {"num_landmarks": tiny_models.N},
    "Reformer": {"local_attn_chunk_length": 32, "lsh_attn_chunk_length": 32},
}


@pytest.mark.parametrize("name", STANDINS)
def test_a_module_stands_for_the_attention_that_it_computes_with_enough_room(built, name):
    model, batch = built(name)
    apart = []
    for call in capture(model, batch).values():
        assert call.own is not None
        apart.append(float((call.own - call.output()).norm() / call.output().norm()))
    assert min(apart) > 0.1
    model = tiny_models.build(name, **STANDINS[name])
    for module in model.modules():
        if hasattr(module, "conv_kernel_size"):
            module.conv_kernel_size = None  # beside its attention, Nyströmformer adds a convolution of V
    for call in capture(model, batch).values():
        own = call.output() if call.own is None else call.own.double()
        shown = torch.zeros(2, own.shape[1], 1, 1, dtype=torch.bool)
        shown[:, : tiny_models.N, 0, 0] = batch["attention_mask"].bool()
        assert float((own - call.output()).mul(shown).norm() / call.output().norm()) <= 1e-6


@pytest.mark.parametrize("name", STANDINS)
def test_watching_a_module_does_not_change_it_and_a_method_takes_its_place(built, name):
    model, batch = built(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = tiny_models.hidden(model, batch)
        torch.manual_seed(0)
        capture(model, batch)
        torch.manual_seed(0)
        assert torch.equal(tiny_models.hidden(model, batch), own)
    with injected(model, "softmax"):
        exact = tiny_models.hidden(model, batch)
    assert float((exact - own).norm() / own.norm()) > 0.05
    assert not any("forward" in vars(module) for module in model.modules())


def test_global_tokens_of_longformer_are_refused_by_name(built):
    model, batch = built("Longformer")
    marked = torch.zeros_like(batch["input_ids"])
    marked[:, 0] = 1
    with pytest.raises(SourceError, match="its global tokens have projections of their own"):
        capture(model, {**batch, "global_attention_mask": marked})


def test_a_module_with_more_attention_than_was_seen_is_refused(built):
    """The two streams of XLNet have a softmax each."""
    model, batch = built("XLNet")
    n = batch["input_ids"].shape[1]
    targets = torch.zeros(2, 1, n)
    targets[:, 0, -1] = 1
    with pytest.raises(SourceError, match="XLNetRelativeAttention computes .* and it takes more than one softmax"):
        capture(model, {**batch, "perm_mask": torch.zeros(2, n, n), "target_mapping": targets})


@torch.no_grad()
def test_a_padded_xlnet_is_exact_and_other_methods_are_refused(built):
    """Its padded tokens see themselves, which no padding mask says. The text alone has no such tokens."""
    model, batch = built("XLNet")
    own = model(**batch).last_hidden_state
    call = next(iter(capture(model, batch).values()))
    with pytest.raises(Unsupported, match="custom attention is not supported"):
        call.qkv(1)
    with injected(model, "softmax"):
        torch.testing.assert_close(model(**batch).last_hidden_state, own, rtol=0, atol=1e-5)
    says = "custom attention is not supported, which topk does not support"
    with pytest.raises(Unsupported, match=says), injected(model, "topk", d=4):
        model(**batch)
    alone = tiny_models.inputs(model, padded=False)
    with injected(model, "topk", d=tiny_models.N):
        changed = model(**alone).last_hidden_state
    torch.testing.assert_close(changed, model(**alone).last_hidden_state, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_two_streams_of_an_xlnet_are_refused_and_its_memory_is_not(built):
    model, batch = built("XLNet")
    ids = batch["input_ids"]
    tokens = ids.shape[1]
    targets = {
        "perm_mask": torch.zeros(2, tokens, tokens),
        "target_mapping": torch.eye(tokens)[None, :2].expand(2, -1, -1),
    }
    with pytest.raises(SourceError, match="it takes more than one softmax$"):
        capture(model, {"input_ids": ids, **targets})
    memory = model(ids[:, :10], use_mems=True).mems
    for call in capture(model, {"input_ids": ids[:, 10:], "mems": memory}).values():
        assert call.delta < 1e-6 and call.k.shape[2] == tokens and call.q.shape[2] == tokens - 10


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_compared_in_blocks_of_rows(kind, monkeypatch):
    module = SelfAttention(KINDS[kind]).double()
    (whole,), _, _ = seen_in(module, states())
    monkeypatch.setattr("attnprobe.inputs.hooks.call.BLOCK_BYTES", 1)
    (seen,), watch, out = seen_in(module, states())
    assert watch.why() is None and seen.scale == pytest.approx(whole.scale, rel=1e-12)
    torch.testing.assert_close(rebuilt(seen), out, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_long_alibi_is_a_bias_of_keys_though_it_leaves_the_first_ones_no_weight(monkeypatch):
    """In one head, whose biases grow by 16 with each token, as by a half in a text that is 32 times as long.

    A float32 score of 800 has an error of 3e-5.
    """
    from transformers import BloomConfig, BloomModel

    build = BloomModel.build_alibi_tensor
    monkeypatch.setattr(BloomModel, "build_alibi_tensor", lambda *args, **more: 32 * build(*args, **more))
    torch.manual_seed(0)
    model = BloomModel(BloomConfig(vocab_size=9, hidden_size=16, n_layer=1, n_head=8)).eval()
    whole = torch.ones(1, 51, dtype=torch.int64)
    [call] = capture(model, {"input_ids": torch.randint(9, (1, 51)), "attention_mask": whole}).values()
    assert str(call.pattern) == "causal" and call.extras() == ["key bias"] and float(call.bias.amax()) > 790
    qkv = call.qkv()
    assert qkv.terms is None
    torch.testing.assert_close(exact_output(qkv).mT[0], call.output()[0, :, 0].mT, rtol=0, atol=1e-6)


def test_a_bias_of_keys_without_weight_rounds_no_score():
    q = k = v = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    bias = torch.tensor([[0.0, -2000.0], [5.0, 3.0]], dtype=torch.float64)[None, None]
    assert exact_rows(q, k, v, 2.0, bias=bias)[1] == 7.0
