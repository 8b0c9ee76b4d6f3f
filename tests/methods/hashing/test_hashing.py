"""Reformer's attention and lsh-qk: twins, published code with the same rotations, sets of keys, and edges."""

import math

import pytest
import torch
from inputs import assert_twin, make, one_head, permuted, reaching
from twins import TWINS
from twins_lsh import factors, lsh_mask

from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import approximate, get
from attnprobe.methods.hashing.hashed import block_product
from attnprobe.methods.hashing.lsh_qk import _of_equal_length
from attnprobe.operators import Sparse
from attnprobe.operators.linalg.hashing import bucket_counts, cross_polytope, inverse, look_back, look_back_within
from attnprobe.operators.visible import Visible
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import generator

NAMES = ("reformer", "lsh-qk")
every_name = pytest.mark.parametrize("name", NAMES)


def randn(*shape, label="x"):
    return torch.randn(shape, generator=generator(0, label), dtype=torch.float64)


def twin_of(name, qkv, d, **options):
    approx = approximate(name, qkv, d, **options)
    assert_twin(approx, qkv, TWINS[name], d, **options)
    return approx


SHAPES = [(2, 4, 1), (2, 4, 2), (2, 8, 2), (3, 4, 2), (7, 12, 2), (7, 9, 1), (16, 16, 2), (20, 18, 3), (33, 20, 2)]


@pytest.mark.parametrize("n, d, rounds", SHAPES)
@pytest.mark.parametrize(
    "options", [{}, {"buckets": 2}, {"buckets": 6}, {"logits": "scaled"}, {"duplicates": "once"}, {"eps": 0.5}], ids=str
)
def test_reformer_equals_its_twin_for_any_length_and_chunk(n, d, rounds, options):
    approx = twin_of("reformer", make(n=n, score=2.0), d, rounds=rounds, **options)
    chunk = min(d // (2 * rounds), n)
    assert approx.operator.index.shape[2] <= d and approx.diagnostics["visited"].max() <= n * d
    if n * rounds % chunk == 0 and n * rounds > chunk:
        assert (approx.diagnostics["realised_d"] == 2 * chunk * rounds).all()


@pytest.mark.parametrize(
    "n_q, n_k, rounds",
    [(1, 1, 1), (1, 1, 2), (2, 2, 2), (7, 7, 2), (20, 20, 3), (9, 14, 2), (14, 9, 2), (33, 5, 1), (5, 33, 2)],
)
@pytest.mark.parametrize("options", [{}, {"buckets": 2}, {"buckets": 6}, {"hash": "smyrf"}], ids=str)
def test_lsh_qk_sees_the_keys_of_its_literal_mask(n_q, n_k, rounds, options):
    qkv = make(n=n_q, n_k=n_k)
    for d in range(max(4, 2 * rounds), 4 * n_k + 1, 7):
        approx = twin_of("lsh-qk", qkv, d, rounds=rounds, **options)
        chunk = min(d // (2 * rounds), n_k)
        for row in range(2):
            mask = lsh_mask(one_head(qkv, row), d, approx.draws["rotations"][row], rounds=rounds, **options)
            assert (approx.operator.dense()[row] > 0).tolist() == mask
            assert math.isclose(approx.diagnostics["realised_d"][row], sum(map(sum, mask)) / n_q)
        if n_k % chunk == 0:
            assert (approx.diagnostics["visited"] == n_q * rounds * min(2 * chunk, n_k)).all()


def modules(n, chunk, rounds, buckets, h=3, p=8):
    """transformers' module with random weights, its Q and V, and how to give it rotations."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    modeling = pytest.importorskip(
        "transformers.models.reformer.modeling_reformer", reason="no Reformer in this transformers"
    )
    config = transformers.ReformerConfig(
        hidden_size=h * p,
        attention_head_size=p,
        num_attention_heads=h,
        num_hashes=rounds,
        num_buckets=buckets,
        lsh_attn_chunk_length=chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        is_decoder=False,
        lsh_attention_probs_dropout_prob=0.0,
        max_position_embeddings=n,
        hash_seed=None,
    )
    module = modeling.LSHSelfAttention(config).double().eval()
    with torch.no_grad():
        for number, weight in enumerate(module.parameters()):
            weight.copy_(0.5 * randn(*weight.shape, label=f"weight {number}"))
        x = randn(1, n, h * p)
        heads = [layer(x)[0].unflatten(-1, (h, p)).transpose(0, 1) for layer in (module.query_key, module.value)]
    return module, x, heads


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize(
    "n, chunk, rounds, buckets",
    [
        (32, 4, 2, None),
        (64, 2, 2, None),
        (30, 5, 1, 6),
        (48, 8, 3, 4),
        (24, 12, 2, 2),
        (36, 3, 4, None),
        (16, 16, 2, 4),
    ],
)
def test_reformer_equals_the_module_of_transformers(n, chunk, rounds, buckets, score, monkeypatch):
    """Its choice of buckets included, which splits the hash at n = 64; at n = 16 it attends to all."""
    module, x, (q, v) = modules(n, chunk, rounds, buckets)
    x, q, v = score * x, score * q, score * v
    qkv = QKV(q, torch.full_like(q, 7.0), v)
    approx = approximate("reformer", qkv, 2 * chunk * rounds, rounds=rounds, buckets=buckets, eps=1e-6)
    given = approx.draws["rotations"].permute(0, 3, 1, 2)  # (h, p, rounds, f)

    def instead(shape, **facts):
        assert tuple(shape) == tuple(given.shape)
        return given

    monkeypatch.setattr(torch, "randn", instead)
    with torch.no_grad():
        expected = module(x).hidden_states[0].unflatten(-1, (3, -1)).transpose(0, 1)
    assert (approx.output - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("n, chunk, rounds", [(32, 4, 2), (48, 8, 4), (40, 10, 1), (16, 8, 2)])
@pytest.mark.parametrize("duplicates", ["count", "once"])
def test_reformer_equals_reformer_pytorch(n, chunk, rounds, duplicates, monkeypatch):
    """With duplicates=once, in the rows of tokens that are in the first chunk of no round.

    Those chunks look back into another round, and of such pairs it counts only meetings within one round: there may be
    none, and it subtracts log(0 + 1e-9). In the other rows the 1e-9 is all that differs.
    """
    module = pytest.importorskip("reformer_pytorch", reason="reformer-pytorch is not installed")
    attention = module.LSHAttention(
        bucket_size=chunk,
        n_hashes=rounds,
        random_rotations_per_head=True,
        allow_duplicate_attention=duplicates == "count",
    ).eval()
    qkv = make(h=3, n=n, p_v=8, score=6.0)  # whose values have the dimension of its queries
    approx = approximate(
        "reformer", qkv, 2 * chunk * rounds, rounds=rounds, buckets=n // chunk, logits="scaled", duplicates=duplicates
    )
    given = approx.draws["rotations"].permute(0, 3, 1, 2)

    def instead(shape, **facts):
        assert tuple(shape) == tuple(given.shape)
        return given

    monkeypatch.setattr(torch, "randn", instead)
    error = (approx.output - attention(qkv.q, qkv.v)[0]).abs().amax(-1)  # (h, n)
    if duplicates == "count":
        assert error.max() <= 1e-12
    else:
        order = cross_polytope(qkv.q, approx.draws["rotations"], (n // chunk,)).argsort(dim=-1, stable=True)
        within = (inverse(order) >= chunk).all(1) | (rounds == 1)
        assert within.any(1).all() and error[within].max() <= 1e-8


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("n_q, n_k", [(20, 20), (9, 14), (14, 9)])
@pytest.mark.parametrize("hash", ["angular", "smyrf"])
def test_lsh_qk_is_torchs_attention_under_its_mask(n_q, n_k, score, hash):
    qkv = make(n=n_q, n_k=n_k, score=score)
    approx = approximate("lsh-qk", qkv, 12, hash=hash)
    mask = approx.operator.dense() != 0  # which the literal masks above prove
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(qkv.q, qkv.k, qkv.v, attn_mask=mask, scale=qkv.scale)
    assert (approx.output - expected).abs().max() <= 1e-13 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("n_q, n_k", [(10, 10), (9, 14), (14, 9), (33, 8)])
@pytest.mark.parametrize("rounds", [1, 2])
def test_lsh_qk_is_exact_from_half_the_keys_on(n_q, n_k, rounds):
    qkv = make(n=n_q, n_k=n_k, score=6.0)
    chunk = -(-n_k // 2)
    approx = approximate("lsh-qk", qkv, 2 * chunk * rounds, rounds=rounds)
    assert (approx.operator.dense() - exact(qkv).dense()).abs().max() <= 1e-13
    less = approximate("lsh-qk", qkv, 2 * (chunk - 1) * rounds, rounds=rounds, buckets=2)
    assert (less.operator.dense() == 0).any() or rounds > 1


def test_more_rounds_of_the_same_chunk_only_add_keys():
    """So A, whose entries are exact or 0, is approximated no worse; and the rounds share their draws."""
    qkv = make(n=60, score=3.0)
    kernel = torch.exp(qkv.scale * qkv.q @ qkv.k.mT)
    before, errors = torch.zeros(2, 60, 60, dtype=torch.bool), []
    drawn = []
    for rounds in (1, 2, 3, 4):
        approx = approximate("lsh-qk", qkv, 8 * rounds, rounds=rounds)
        seen = approx.operator.dense() > 0
        assert (seen >= before).all() and (rounds == 1 or (seen != before).any())
        errors.append(float((kernel * ~seen).norm()))
        before = seen
        drawn.append(approx.draws["rotations"])
    assert all(torch.equal(more[:, :-1], less) for less, more in zip(drawn, drawn[1:], strict=False))
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("hash", ["angular", "smyrf"])
def test_a_query_sees_the_key_of_its_own_direction(hash):
    """With keys along the queries the sorted lists are one, so every query stands beside its own key."""
    qkv = make(n=120, p=16)
    lengths = 3.0 if hash == "smyrf" else torch.linspace(0.1, 4, 120, dtype=torch.float64)[:, None]
    approx = approximate("lsh-qk", QKV(qkv.q, lengths * qkv.q, qkv.v), 8, hash=hash)
    seen = approx.operator.dense().diagonal(dim1=1, dim2=2) > 0
    assert seen.all() if hash == "angular" else seen.double().mean() > 0.5


@pytest.mark.parametrize("hash, least", [("angular", 2.0), ("smyrf", 1.5)])
def test_queries_see_more_of_their_attention_than_chance_has(hash, least):
    """Tokens around 16 centres; smyrf as well where all keys share a vector, under which directions say little."""
    centres, noise = 2 * randn(2, 16, 16, label="centres"), randn(2, 256, 16, label="noise") / 2
    which = torch.randint(16, (2, 256, 2), generator=generator(0, "which"))
    q, k = (centres[torch.arange(2)[:, None], which[..., i]] + noise.roll(i, 1) for i in range(2))
    common = 4 * randn(2, 1, 16, label="common")
    for shift in (0 * common, common) if hash == "smyrf" else (0 * common,):
        qkv = QKV(q, k + shift, k)
        approx = approximate("lsh-qk", qkv, 32, hash=hash)
        mass = float((exact(qkv).dense() * (approx.operator.dense() > 0)).sum(-1).mean())
        assert mass > least * float(approx.diagnostics["realised_d"].mean()) / 256


@pytest.mark.parametrize("score", [0.5, 6.0])
def test_reformer_does_not_look_at_the_keys(score):
    qkv = make(score=score)
    other = QKV(qkv.q, -5 * qkv.k.flip(1), qkv.v)
    assert torch.equal(approximate("reformer", qkv, 12).output, approximate("reformer", other, 12).output)
    assert not torch.equal(approximate("lsh-qk", qkv, 12).output, approximate("lsh-qk", other, 12).output)


def test_no_budget_makes_reformer_the_attention_of_its_keys():
    qkv = make()
    change = approximate("reformer", qkv, 80).operator.dense() - exact(qkv).dense()
    assert change.norm() > 0.5 * exact(qkv).dense().norm()
    assert not get("reformer").claims("exact_at_full_budget", "softmax")


def test_as_many_queries_as_keys_are_needed():
    with pytest.raises(Unsupported, match="reformer: 3 queries and 5 keys; it takes as many queries as keys"):
        approximate("reformer", make(n=3, n_k=5), 4)
    assert approximate("reformer", make(n=5), 4).operator.shape == (2, 5, 5)


def test_a_token_attends_to_itself_only_where_it_is_alone():
    """Also where a query is so long that a logit of -1e5 would not be the smallest."""
    for qkv in (make(), reaching(1e12)):
        assert not approximate("reformer", qkv, 12).operator.dense().diagonal(dim1=1, dim2=2).any()
    for options in ({}, {"rounds": 1}, {"duplicates": "once"}):
        alone = approximate("reformer", make(n=1), 4, **options).operator.dense()
        assert torch.equal(alone, torch.ones(2, 1, 1, dtype=torch.float64))


@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_queries_and_keys_of_zeros_have_finite_rows(name, dtype):
    qkv = make(dtype=dtype)
    q, k = qkv.q.clone(), qkv.k.clone()
    q[:, 3:9], k[:, 5:12] = 0, 0
    operator = approximate(name, QKV(q, k, qkv.v), 12).operator
    assert torch.allclose(operator.row_sums().double(), torch.ones(2, 20).double(), atol=1e-2)
    zeros = operator.dense()[:, 3:9].double()
    shares = zeros[zeros > 0] * (zeros > 0).sum(-1, keepdim=True).expand_as(zeros)[zeros > 0]
    assert name == "reformer" or torch.allclose(shares, torch.ones_like(shares), atol=1e-2)  # all scores are 0


@every_name
@pytest.mark.parametrize("top", [200.0, 2e4])
def test_large_scores_keep_the_rows(name, top):
    qkv = reaching(top)
    approx = twin_of(name, qkv, 12)
    assert torch.allclose(approx.operator.row_sums(), torch.ones(2, 20, dtype=torch.float64))


@every_name
def test_chunks_are_those_of_float64_in_every_dtype(name):
    qkv = make(n=64, h=4, score=0.5, dtype=torch.bfloat16)
    expected = approximate(name, qkv.to(dtype=torch.float64), 16).operator.index
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(approximate(name, qkv.to(dtype=dtype), 16).operator.index, expected)


@every_name
def test_tokens_of_one_bucket_are_sorted_by_position_so_their_order_counts(name):
    """The negative control of permutation equivariance, which neither claims."""
    qkv = make()
    order = torch.randperm(20, generator=generator(0, "order"))
    assert not get(name).claims("permutation_equivariant", "softmax")
    still = approximate(name, qkv, 12, buckets=2).operator.dense()[:, order][:, :, order]
    assert (approximate(name, permuted(qkv, order), 12, buckets=2).operator.dense() - still).abs().max() > 1e-2


@every_name
def test_impossible_options_are_refused(name):
    for options in ({"rounds": 0}, {"rounds": -2}, {"buckets": 0}, {"buckets": 3}, {"buckets": -4}):
        ((key, value),) = options.items()
        with pytest.raises(UsageError, match=f"{name}: {key}={value} is not"):
            approximate(name, make(), 12, **options)
    with pytest.raises(Unsupported, match=f"{name}: d=12 leaves no chunk for rounds=7; use at most 6"):
        approximate(name, make(), 12, rounds=7)
    with pytest.raises(UsageError, match="reformer: eps=-1.0 is negative"):
        approximate("reformer", make(), 12, eps=-1.0)
    with pytest.raises(UsageError, match="lsh-qk: buckets=4 belongs to hash=angular, not to hash=smyrf"):
        approximate("lsh-qk", make(), 12, buckets=4, hash="smyrf")


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 32])
def test_the_number_of_buckets_is_transformers_choice(chunk):
    for n in range(chunk, 400, 7):
        counts = bucket_counts(n, chunk)
        assert list(counts) == factors(n, chunk, None) and all(count % 2 == 0 for count in counts)
        assert n // chunk < math.prod(counts) <= 2 * (n // chunk)
    assert bucket_counts(100, chunk, 6) == (6,)


def test_a_bucket_depends_on_the_direction_alone_and_opposite_tokens_never_share_one():
    x, rotations = randn(2, 50, 6), randn(2, 3, 5, 6, label="rotations")
    buckets = cross_polytope(x, rotations, (10,))
    factor = randn(2, 50, 1, label="lengths").exp()
    assert buckets.shape == (2, 3, 50) and set(buckets.flatten().tolist()) == set(range(10))
    assert torch.equal(cross_polytope(factor * x, rotations, (10,)), buckets)
    assert torch.equal(cross_polytope(-x, rotations, (10,)), (buckets + 5) % 10)
    two = cross_polytope(x, rotations, (4, 6))
    parts = [cross_polytope(x, rotations[:, :, rows], (count,)) for rows, count in ((slice(2), 4), (slice(2, 5), 6))]
    assert torch.equal(two, parts[0] + 4 * parts[1])


def test_nearer_tokens_share_a_bucket_more_often():
    """Of two directions at an angle t, turned at random, one of two buckets is shared with probability 1 - t/π."""
    turns = 2 * math.pi * torch.rand(20000, generator=generator(0, "turns"), dtype=torch.float64)
    for angle in (0.2, 1.0, 2.5):
        x = torch.stack([turns.cos(), turns.sin()], -1), torch.stack([(turns + angle).cos(), (turns + angle).sin()], -1)
        first, second = cross_polytope(torch.stack(x), randn(1, 1, 1, 2).expand(2, -1, -1, -1), (2,))[:, 0]
        rate, expected = (first == second).double().mean(), 1 - angle / math.pi
        assert abs(rate - expected) <= 5 * (expected * (1 - expected) / 20000) ** 0.5  # five standard deviations


def test_augmented_tokens_have_one_length_and_the_same_inner_products():
    q, k = randn(2, 9, 6, label="q"), 3 * randn(2, 14, 6, label="k")
    left, right = _of_equal_length(q, k)
    total = q.norm(dim=-1).amax(1).square() + k.norm(dim=-1).amax(1).square()
    for x in (left, right):
        assert torch.allclose(x.norm(dim=-1).square(), total[:, None].expand(x.shape[:2]))
    assert torch.allclose(left @ right.mT, q @ k.mT)


def test_lists_of_heads_are_cut_apart():
    orders = torch.stack([torch.randperm(7, generator=generator(0, "order", head)) for head in range(3)])
    windows = look_back(orders, 3)
    assert windows.shape == (3, 3, 6)
    assert all(torch.equal(window, look_back(order, 3)) for window, order in zip(windows, orders, strict=True))


def test_hashing_in_blocks_of_tokens_is_that_in_one(monkeypatch):
    x, rotations = randn(2, 17, 3), randn(2, 2, 4, 3)
    full = cross_polytope(x, rotations, (8,))
    monkeypatch.setattr("attnprobe.operators.linalg.hashing.COUNTS", 5 * 2 * 2 * 4)  # five tokens at a time
    assert torch.equal(cross_polytope(x, rotations, (8,)), full)


def test_a_product_in_blocks_is_that_of_the_sparse_matrix():
    """Four rows in blocks of three: the second block has an empty row, and its last key is an empty slot."""
    keys = torch.tensor([[[0, 4], [2, -1]], [[1, 3], [3, -1]]])  # (h, m, u)
    place = torch.tensor([[3, 0, 2, 1], [0, 4, 5, 1]])
    weights, v = randn(2, 4, 2).abs(), randn(2, 5, 3)
    slots = torch.stack([rows[at // 3] for rows, at in zip(keys, place, strict=True)])
    expected = Sparse(slots, weights, 5) @ v
    weights = weights.masked_fill(slots < 0, 0)
    torch.testing.assert_close(block_product(weights, place, 3, keys, v), expected)


@pytest.mark.parametrize("n, chunk", [(1, 1), (5, 1), (5, 2), (6, 3), (7, 3), (4, 4), (4, 9)])
def test_chunks_follow_each_other_around_the_list(n, chunk):
    order = torch.randperm(n, generator=generator(0, "order"))
    chunks = [order[start : start + chunk].tolist() for start in range(0, n, chunk)]
    window = look_back(order, chunk)
    assert len(window) == len(chunks)
    for t, row in enumerate(window.tolist()):
        selected = [token for token in row if token >= 0]
        assert selected == (chunks[t] if len(chunks) == 1 else chunks[t - 1] + chunks[t])
    assert torch.equal(order[inverse(order)], torch.arange(n))


@pytest.mark.parametrize("buckets", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 5, 60])
@pytest.mark.parametrize("first, sinks", [(None, 0), (-4, 0), (-4, 2), (-9, 12)])
def test_a_look_back_is_that_of_the_sorted_keys_that_a_query_sees(buckets, width, first, sinks, monkeypatch):
    monkeypatch.setattr("attnprobe.operators.linalg.hashing.COUNTS", 8 * buckets)  # several blocks of rows
    own, of_key = (torch.randint(buckets, (2, 30), generator=generator(0, name)) for name in ("own", "keys"))
    last = torch.arange(30)
    visible = Visible(last, None if first is None else (last + first).clamp(min=0), sinks)
    seen = ~visible.hidden(30)
    for head, rows in enumerate(look_back_within(own, of_key, visible, buckets, width)):
        for i in range(30):
            ordered = sorted((int(of_key[head, j]), j) for j in seen[i].nonzero()[:, 0].tolist())
            behind = sum(bucket <= int(own[head, i]) for bucket, _ in ordered)
            turned = (ordered[behind:] + ordered[:behind])[::-1][:width]
            assert rows[i].tolist() == [j for _, j in turned] + [-1] * (rows.shape[1] - len(turned))


@pytest.mark.parametrize("name", ["reformer", "lsh-qk"])
def test_more_buckets_than_any_list_fills_are_refused(name):
    approximate(name, make(n=20), 8, buckets=1024)
    with pytest.raises(Unsupported, match="buckets=1026 exceeds 1024"):
        approximate(name, make(n=20), 8, buckets=1026)
