"""The sparse methods: their patterns against literal masks, other implementations, and edges."""

import pytest
import torch
from inputs import assert_twin, make, one_head, reaching
from twins import TWINS
from twins_sparse import bigbird_mask, longformer_mask, topk, tri_shape, window_mask

from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import approximate, get
from attnprobe.methods.sparse import bigbird as bigbird_file
from attnprobe.methods.sparse import topk as topk_file
from attnprobe.methods.sparse_softmax import band, sparse_softmax
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import generator


def pattern(approx, row):
    return approx.operator.dense()[row] != 0


def assert_counts(approx, masks):
    """``visited`` and ``realised_d`` are those of the masks."""
    for row, mask in enumerate(masks):
        entries = sum(map(sum, mask))
        assert approx.diagnostics["visited"][row] == entries
        assert abs(approx.diagnostics["realised_d"][row] - entries / len(mask)) < 1e-12


def heads_apart(x, h):
    """(1, n, h·p) of a module as (h, n, p)."""
    return x[0].unflatten(-1, (h, -1)).transpose(0, 1)


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (2, 2), (3, 3), (7, 7), (20, 20), (9, 14), (14, 9), (9, 2)])
@pytest.mark.parametrize("sinks", [0, 1, 4, 30])
@pytest.mark.parametrize("causal", [False, True])
def test_the_window_is_its_literal_mask(n_q, n_k, sinks, causal):
    qkv = make(n=n_q, n_k=n_k)
    for d in range(5, n_q + n_k + 5):
        if d <= sinks:
            with pytest.raises(Unsupported, match=f"window: d={d} leaves no window with sinks={sinks}"):
                approximate("window", qkv, d, sinks=sinks)
            continue
        approx = approximate("window", qkv, d, sinks=sinks, causal=causal)
        mask = window_mask(n_q, n_k, d, sinks, causal)
        assert all(pattern(approx, row).tolist() == mask for row in range(2))
        assert_counts(approx, [mask, mask])
        assert approx.operator.index.shape[2] <= n_k and approx.diagnostics["realised_d"].max() <= d


def test_a_causal_window_is_what_a_cache_of_sinks_and_recent_tokens_holds():
    """Token by token: a cache of s + w keys that drops, when it is full, the oldest that is no sink."""
    s, w, qkv = 2, 3, make(n=12, h=1)
    seen, cache = pattern(approximate("window", qkv, s + w, sinks=s, causal=True), 0), []
    for i in range(12):
        cache.append(i)
        if len(cache) > s + w:
            del cache[s]
        assert seen[i].nonzero()[:, 0].tolist() == cache


def test_a_causal_window_over_everything_is_causal_attention():
    qkv = make(n=11, n_k=11, score=3.0)
    approx = approximate("window", qkv, 15, sinks=4, causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(qkv.q, qkv.k, qkv.v, is_causal=True, scale=qkv.scale)
    assert (approx.output - expected).abs().max() <= 1e-13 * float(expected.abs().max())


def test_an_inner_row_of_the_window_has_exactly_the_budget():
    for d in (5, 6, 9, 10):
        assert int(pattern(approximate("window", make(n=30), d), 0)[15].sum()) == d


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (2, 2), (3, 3), (7, 7), (20, 20), (9, 14), (14, 9), (9, 2)])
@pytest.mark.parametrize("g", [0, 1, 3, 12])
def test_longformer_is_its_literal_mask(n_q, n_k, g):
    qkv = make(n=n_q, n_k=n_k)
    for d in range(3, n_q + n_k + 2):
        if d < 1 + 2 * g:
            with pytest.raises(Unsupported, match=f"longformer: d={d} leaves no window with global_tokens={g}"):
                approximate("longformer", qkv, d, global_tokens=g)
            continue
        approx = approximate("longformer", qkv, d, global_tokens=g)
        mask = longformer_mask(n_q, n_k, d, g)
        assert all(pattern(approx, row).tolist() == mask for row in range(2))
        assert_counts(approx, [mask, mask])
        assert n_q != n_k or approx.diagnostics["realised_d"].max() <= d


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (2, 2), (3, 3), (7, 7), (20, 20), (41, 41), (20, 33), (33, 20)])
@pytest.mark.parametrize("d", [10, 20, 29, 30, 50])
@pytest.mark.parametrize("r", [0, 1, 3, 5])
def test_bigbird_is_its_literal_mask_for_any_length(n_q, n_k, d, r):
    if d > 10 * max(n_q, n_k) or d < 7 + r:
        return
    qkv = make(n=n_q, n_k=n_k, h=3)
    approx = approximate("bigbird", qkv, d, random_blocks=r)
    blocks = approx.draws["blocks"]
    nb_q, nb_k = -(-n_q // (d // (7 + r))), -(-n_k // (d // (7 + r)))
    assert blocks.shape == (3, max(0, nb_q - 2), r)
    masks = [bigbird_mask(n_q, n_k, d, blocks[row], r) for row in range(3)]
    assert all(pattern(approx, row).tolist() == masks[row] for row in range(3))
    assert_counts(approx, masks)
    assert n_q != n_k or approx.diagnostics["realised_d"].max() <= d
    for head in blocks.tolist():
        for row, drawn in enumerate(head, start=1):
            centre = min(row, nb_k - 1)
            seen = {0, nb_k - 1, centre - 1, centre, centre + 1} & set(range(nb_k))
            selected = [block for block in drawn if block >= 0]
            assert len(set(selected)) == len(selected) == min(r, nb_k - len(seen))
            assert not seen & set(selected) and set(selected) <= set(range(nb_k))


def test_every_set_of_random_blocks_is_as_likely_as_any_other():
    seen = torch.tensor([[0, 9, 3, 4, 5]]).expand(20000, 5)  # left: 1, 2, 6, 7, 8
    drawn = bigbird_file._drawn(seen, 10, 3, generator(0, "blocks")).sort(1).values
    sets, counts = drawn.unique(dim=0, return_counts=True)
    assert len(sets) == 10 and set(sets.flatten().tolist()) == {1, 2, 6, 7, 8}
    assert (counts - 2000).abs().max() <= 5 * (20000 * 0.1 * 0.9) ** 0.5  # five standard deviations


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_bigbird_is_exact_with_up_to_seven_blocks(n):
    qkv = make(n=n)
    approx = approximate("bigbird", qkv, 10 * -(-n // 7))
    assert len(approx.draws_hash()) == 16  # where no block was left to draw, too
    assert (approx.operator.dense() - exact(qkv).dense()).abs().max() <= 1e-14


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("n_q, n_k", [(5, 3), (20, 20), (9, 14), (14, 9)])
@pytest.mark.parametrize("name", ["bigbird", "longformer", "topk", "window"])
def test_a_sparse_method_is_torchs_attention_under_its_mask(name, n_q, n_k, score):
    qkv = make(n=n_q, n_k=n_k, score=score)
    approx = approximate(name, qkv, {"bigbird": 10, "topk": min(6, n_k)}.get(name, 6))
    mask = approx.operator.dense() != 0  # which the literal masks above prove
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(qkv.q, qkv.k, qkv.v, attn_mask=mask, scale=qkv.scale)
    assert (approx.output - expected).abs().max() <= 1e-13 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("n, d", [(1, 1), (2, 1), (20, 1), (20, 7), (20, 20), (150, 9)])
def test_topk_equals_its_twin_in_every_block_of_rows(n, d, renormalize):
    qkv = make(n=n, score=3.0)
    approx = approximate("topk", qkv, d, renormalize=renormalize)
    assert n < topk_file.BLOCK or n % topk_file.BLOCK
    for row in range(2):
        expected = topk(one_head(qkv, row), d, {}, "softmax", renormalize=renormalize)
        assert (approx.operator.dense()[row] - expected).abs().max() <= 1e-13
        assert (pattern(approx, row).sum(1) == d).all()


def test_the_largest_entries_as_they_are_are_the_best_sparse_rows():
    """In every row, against the sparse rows of other choices and weights; renormalising moves away from them."""
    qkv = make()
    full = exact(qkv).dense()
    best = (approximate("topk", qkv, 6, renormalize=False).operator.dense() - full).norm(dim=-1)
    for other in (approximate("topk", qkv, 6), approximate("window", qkv, 6)):
        assert (best <= (other.operator.dense() - full).norm(dim=-1) + 1e-15).all()
    left = (full - approximate("topk", qkv, 6, renormalize=False).operator.dense()).sum(-1)
    assert torch.allclose(left, full.sort(-1).values[..., :-6].sum(-1))


@pytest.mark.parametrize("name", ["bigbird", "longformer", "topk", "window"])
@pytest.mark.parametrize("top", [200.0, 2e4])
def test_large_scores_keep_the_rows(name, top):
    qkv = reaching(top)
    approx = approximate(name, qkv, 10)
    assert torch.allclose(approx.operator.row_sums(), torch.ones(2, 20, dtype=torch.float64))
    assert_twin(approx, qkv, TWINS[name], 10)


def test_no_step_depends_on_the_size_of_its_blocks(monkeypatch):
    qkv = make(n=33, h=2)
    expected = {
        name: approximate(name, qkv, 12).operator.dense() for name in ("bigbird", "longformer", "topk", "window")
    }
    output = {name: dense @ qkv.v for name, dense in expected.items()}
    monkeypatch.setattr("attnprobe.methods.sparse.topk.BLOCK", 5)
    for band_rows in (1, 4, 7, 11, 33, 50):
        monkeypatch.setattr("attnprobe.methods.sparse_softmax.BAND", band_rows)
        for entries in (1, 8 * 12 * 2, 8 * 12 * 7):
            monkeypatch.setattr("attnprobe.operators.blocks.GATHERED_ENTRIES", entries)
            for name, dense in expected.items():
                approx = approximate(name, qkv, 12)
                assert (approx.operator.dense() - dense).abs().max() <= 1e-15
                assert (approx.output - output[name]).abs().max() <= 1e-14


def test_the_index_of_a_wide_pattern_is_no_wider_than_the_matrix():
    qkv = make(n=23)
    for d in range(10, 231, 10):
        operator = approximate("bigbird", qkv, d).operator
        assert operator.base.index.shape[2] < 23 + d // 10


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_gathered_columns_and_all_columns_give_the_same_softmax(group, causal, monkeypatch):
    """Four query heads on two KV heads; 70 rows are several blocks."""
    q, k, v = (torch.randn(h, 70, 5, generator=generator(h, "x"), dtype=torch.float64) for h in (4, 2, 2))
    index = torch.randint(-1, 70, (4, -(-70 // group), 9), generator=generator(0, "columns")).sort(-1).values
    index[..., 1:].masked_fill_(index.diff(dim=-1) == 0, -1)
    towards = torch.randn(4, 70, 70, generator=generator(1, "towards"), dtype=torch.float64)
    dense, gradients = [], []
    for streamed in (0, 10**9):
        monkeypatch.setattr("attnprobe.operators.sparse.STREAMED", streamed)
        monkeypatch.setattr("attnprobe.operators.blocks.GATHERED_ENTRIES", 70 * 32)  # 32 rows at once
        keys = k.clone().requires_grad_()
        operator, _ = sparse_softmax(QKV(q, keys, v, causal=causal), index, group)
        dense.append(operator.dense())
        gradients += torch.autograd.grad((dense[-1] * towards).sum(), keys)
    torch.testing.assert_close(*dense, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_a_row_without_columns_is_zero():
    qkv = make(n=4, h=1)
    index = torch.tensor([[[0, 2], [-1, -1], [3, -1], [-1, 1]]])
    operator, _ = sparse_softmax(qkv, index)
    assert torch.equal(operator.row_sums() > 0, torch.tensor([[True, False, True, True]]))
    assert not operator.dense()[0, 1].any() and operator.dense()[0, 2, 3] == 1 == operator.dense()[0, 3, 1]


def test_a_band_that_starts_behind_the_last_key_is_empty():
    columns, has = band(torch.arange(3), 3, 1, 1, first=3, group=2)
    assert columns.tolist() == [[0, 1, 2]] * 2 and has.all() and has.shape == (3, 3)
    assert band(torch.tensor([0, 1, 1]), 2, 1, 1, first=7, group=2)[0].tolist() == [[0, 1]] * 2
    columns, has = band(torch.arange(2), 5, 9, 9, first=0, group=1)
    assert columns.tolist() == [[0, 1, 2, 3, 4]] * 2 and has.all()


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (3, 3), (20, 20), (9, 14), (14, 9), (9, 2)])
@pytest.mark.parametrize("left, right, first", [(0, 0, 0), (1, 0, 0), (0, 1, 2), (3, 5, 1), (30, 0, 4), (2, 2, 30)])
@pytest.mark.parametrize("group", [1, 4, 7, 50])
def test_a_band_in_groups_of_rows_is_its_literal_mask_without_a_column_to_spare(n_q, n_k, left, right, first, group):
    columns, has = band(torch.arange(n_q).clamp(max=n_k - 1), n_k, left, right, first, group)
    assert columns.shape == (-(-n_q // group), has.shape[1]) and len(has) == n_q
    assert columns.shape[1] <= min(n_k, first + left + right + group)
    for i in range(n_q):
        c = min(i, n_k - 1)
        expected = [j for j in range(n_k) if j < first or c - left <= j <= c + right]
        assert columns[i // group, has[i]].tolist() == expected
    assert (columns >= 0).all() and (columns < n_k).all()


def test_rows_of_a_group_have_columns_of_their_own():
    qkv = make(n=5, n_k=6, h=2)
    index = torch.tensor([[[0, 5, 2], [1, -1, 3]], [[4, 0, 1], [-1, -1, -1]]])
    has = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    dense = sparse_softmax(qkv, index, 3, has)[0].dense()
    for head in range(2):
        for i in range(5):
            columns = [j for j, there in zip(index[head, i // 3].tolist(), has[i].tolist(), strict=True) if there]
            columns = [j for j in columns if j >= 0]
            expected = torch.zeros(6, dtype=torch.float64)
            expected[columns] = torch.softmax(qkv.scale * qkv.k[head, columns] @ qkv.q[head, i], 0)
            assert (dense[head, i] - expected).abs().max() <= 1e-15


def test_impossible_options_are_refused():
    with pytest.raises(UsageError, match="window: sinks=-1"):
        approximate("window", make(), 8, sinks=-1)
    with pytest.raises(UsageError, match="longformer: global_tokens=-1"):
        approximate("longformer", make(), 8, global_tokens=-1)
    with pytest.raises(UsageError, match="bigbird: random_blocks=-1"):
        approximate("bigbird", make(), 10, random_blocks=-1)
    with pytest.raises(Unsupported, match=r"bigbird: d=10 leaves no token .* random_blocks=4; use at most 3"):
        approximate("bigbird", make(), 10, random_blocks=4)
    with pytest.raises(Unsupported, match=r"bigbird: d=9 is below its least of 10; choose d in 10\.\.200"):
        approximate("bigbird", make(), 9)


@pytest.mark.parametrize("n, w, g", [(24, 4, 0), (24, 4, 2), (32, 8, 1)])
def test_longformer_equals_the_module_of_transformers(n, w, g):
    """With its global projections set to the others; its softmax is float32 inside, hence 1e-5."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    modeling = pytest.importorskip(
        "transformers.models.longformer.modeling_longformer", reason="no Longformer in this transformers"
    )
    config = transformers.LongformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        attention_window=[w],
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    module = modeling.LongformerSelfAttention(config, layer_id=0).double().eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=random, dtype=torch.float64))
        for name in ("query", "key", "value"):
            getattr(module, f"{name}_global").load_state_dict(getattr(module, name).state_dict())
        x = torch.randn(1, n, 24, generator=random, dtype=torch.float64)
        role = torch.zeros(1, n, dtype=torch.float64)
        role[:, :g] = 10000.0
        expected = heads_apart(
            module(
                x, attention_mask=role, is_index_masked=role < 0, is_index_global_attn=role > 0, is_global_attn=g > 0
            )[0],
            3,
        )
        qkv = QKV(*(heads_apart(layer(x), 3) for layer in (module.query, module.key, module.value)))
    approx = approximate("longformer", qkv, w + 1 + 2 * g, global_tokens=g)
    assert (approx.output - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("b, nb", [(2, 12), (4, 13), (3, 9)])
def test_bigbird_equals_the_module_of_transformers_given_the_random_blocks(b, nb, monkeypatch):
    """In training mode: outside it, the module's random blocks are block 0 three times."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    modeling = pytest.importorskip(
        "transformers.models.big_bird.modeling_big_bird", reason="no BigBird in this transformers"
    )
    n = b * nb
    config = transformers.BigBirdConfig(
        hidden_size=24, num_attention_heads=3, block_size=b, num_random_blocks=3, attention_probs_dropout_prob=0.0
    )
    module = modeling.BigBirdBlockSparseAttention(config, seed=0).double().train()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=random, dtype=torch.float64))
        x = torch.randn(1, n, 24, generator=random, dtype=torch.float64)
        qkv = QKV(*(heads_apart(layer(x), 3) for layer in (module.query, module.key, module.value)))
        approx = approximate("bigbird", qkv, 10 * b)
        drawn = list(approx.draws["blocks"].numpy())
        monkeypatch.setattr(module, "_bigbird_block_rand_mask_with_head", lambda **facts: drawn)
        ones = torch.ones(1, n, dtype=torch.float64)
        blocked, band_mask, from_mask, to_mask = modeling.BigBirdModel.create_masks_for_block_sparse_attn(ones, b)
        expected = module(
            x,
            band_mask=band_mask,
            from_mask=from_mask,
            to_mask=to_mask,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
        )[0]
    assert (approx.output - heads_apart(expected, 3)).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))


def test_the_columns_given_to_a_sparse_operator_keep_their_empty_slots():
    qkv = make(n=6)
    index = torch.tensor([[0, 3, -1], [2, -1, -1], [5, 1, 4]]).repeat(2, 1, 1)
    before = index.clone()
    operator, _ = sparse_softmax(qkv, index, group=2)
    assert torch.equal(index, before)
    assert (operator.dense() != 0).sum(-1).tolist() == [[2, 2, 1, 1, 3, 3]] * 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first, last, d", [(0, 3, 9), (2, 0, 7), (1, 30, 5)])
def test_tri_shape_equals_its_twin_and_keeps_its_budget(first, last, d, causal):
    qkv = make(n=29, h=2).replace(causal=causal)
    approx = approximate("tri-shape", qkv, d, first=first, last=last)
    every = last >= 29
    for row in range(2):
        options = {"first": first, "last": 28 if every else last}
        twin = exact(qkv).dense()[row] if every else tri_shape(one_head(qkv, row), d, {}, "softmax", **options)
        assert (approx.operator.dense()[row] - twin).abs().max() < 1e-12
    assert every or approx.diagnostics["realised_d"].max() <= d
    assert (approx.operator.dense() != 0).sum(-1).double().mean(1).tolist() == approx.diagnostics["realised_d"].tolist()


@pytest.mark.parametrize("d, window", [(12, range(12, 18)), (13, range(12, 19))])
def test_the_window_of_tri_shape_is_that_of_its_page(d, window):
    """Even w has one key more to the left: w = 6 has i - 3 … i + 2."""
    row = approximate("tri-shape", make(n=30), d, first=2, last=5).operator.dense()[0, 15]
    assert (row > 0).nonzero()[:, 0].tolist() == [0, 1, *window]
    assert "i - ⌊w/2⌋ … i + ⌊(w-1)/2⌋" in get("tri-shape").function.__doc__


def test_tri_shape_without_room_for_its_last_rows_is_refused():
    with pytest.raises(Unsupported, match="leaves no window with last=100, first=4; choose d above 104"):
        approximate("tri-shape", make(n=200), 50)


@pytest.mark.parametrize("rows", [range(20, 40), [0, 20, 63], [21]])
def test_some_queries_of_bigbird_have_its_rows_whether_or_not_any_is_global(rows):
    qkv, rows = make(n=64).replace(causal=True), torch.tensor(list(rows))
    every, some = approximate("bigbird", qkv, 32), approximate("bigbird", qkv.queries(rows), 32)
    assert torch.allclose(some.matrix().dense(), every.matrix().dense()[:, rows], atol=1e-14)
    assert torch.allclose(some.log_normalizer(), every.log_normalizer()[:, rows])
