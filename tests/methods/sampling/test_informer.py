"""Informer's own mathematics: its measurements, its sizes, the rows that it chooses."""

from math import exp, log

import pytest
import torch
from inputs import assert_twin, draws_of, make, one_head, reaching
from twins import exact as exact_twin
from twins_rows import informer as twin
from twins_rows import sparsity

from attnprobe.methods import approximate
from attnprobe.methods.sampling import informer as module
from attnprobe.qkv import QKV
from attnprobe.rng import generator

MEASURES = ("max-mean", "log-ratio")


def run(qkv, d, **options):
    return approximate("informer", qkv, d, **options)


def measured(qkv, sampled, measure):
    """M̂ of every query, (h, n_q)."""
    return module._gathered(qkv.q, qkv.k, sampled, None, qkv.scale, measure).view(qkv.h, qkv.n_q)


@pytest.mark.parametrize("n_q, n_k, d", [(20, 20, 6), (14, 19, 5), (19, 14, 19), (9, 9, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("measure", MEASURES)
def test_each_measure_chooses_the_rows_of_its_literal_definition(measure, score, dtype, n_q, n_k, d):
    qkv = make(n=n_q, n_k=n_k, score=score, dtype=dtype)
    approx = run(qkv, d, measure=measure)
    assert approx.draws["sampled_keys"].shape == (2, n_q, d) and approx.draws["top_queries"].shape == (2, d)
    assert_twin(approx, qkv, twin, d, measure=measure)


def test_the_measures_are_not_the_same():
    qkv = make(n=40)
    rows = [run(qkv, 8, measure=measure).draws["top_queries"] for measure in MEASURES]
    assert any(set(a) != set(b) for a, b in zip(rows[0].tolist(), rows[1].tolist(), strict=True))


def test_of_equal_measurements_the_earlier_query_is_taken():
    """One sampled key has a log-ratio of 0 whatever it is."""
    assert run(make(), 1, measure="log-ratio").draws["top_queries"].tolist() == [[0], [0]]


def test_the_log_ratio_is_that_of_arithmetic_and_geometric_mean():
    """On the entries themselves, and 0 where all are alike."""
    qkv = make(h=1, n=12)
    sampled = run(qkv, 5, measure="log-ratio").draws["sampled_keys"][0]
    got = measured(qkv, sampled[None], "log-ratio")[0]
    for i in range(12):
        a = [exp(qkv.scale * float(qkv.q[0, i] @ qkv.k[0, j])) for j in sampled[i].tolist()]
        product = 1.0
        for entry in a:
            product *= entry
        assert abs(float(got[i]) - log(sum(a) / 5 / product**0.2)) <= 1e-13
    flat = measured(qkv.replace(q=torch.zeros_like(qkv.q)), sampled[None], "log-ratio")
    assert flat.abs().max() <= 1e-15


@pytest.mark.parametrize("measure", MEASURES)
def test_the_measurement_in_blocks_is_that_in_one(measure, monkeypatch):
    qkv = make(h=2, n=23, n_k=19)
    sampled = run(qkv, 5).draws["sampled_keys"]
    full = measured(qkv, sampled, measure)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 4 * 5 * 8)
    blocks = measured(qkv, sampled, measure)
    expected = [sparsity(one_head(qkv, row), sampled[row], measure) for row in range(2)]
    assert torch.allclose(full, blocks, atol=1e-13)
    assert torch.allclose(full, torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    rows = torch.tensor([40, 3, 23])
    some = module._gathered(qkv.q, qkv.k, sampled, rows, qkv.scale, measure)
    assert torch.allclose(some, full.flatten()[rows], atol=1e-13)


@pytest.mark.parametrize("measure", MEASURES)
def test_products_with_all_keys_give_the_measurement_of_the_sampled_ones(measure, monkeypatch):
    qkv = make(h=3, n=23, n_k=19)
    sampled = run(qkv, 5).draws["sampled_keys"]
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 4 * 3 * 19)
    full = measured(qkv, sampled, measure)
    monkeypatch.setattr(module, "_gathered", None)  # 19 keys are less than 8 times 5
    near = module._near(qkv.q, qkv.k, sampled, qkv.scale, measure)
    assert torch.allclose(near, full, atol=1e-13)


@pytest.mark.parametrize("size", [1.0, 1e25])
@pytest.mark.parametrize("measure", MEASURES)
def test_queries_that_float32_cannot_tell_apart_are_ordered_by_float64(measure, size):
    """Tokens that are nearly one; and products that overflow in float32."""
    qkv = make(h=2, n=60)
    q, k = (size * (x[:, :1] + 1e-7 * x) for x in (qkv.q, qkv.k))
    qkv = qkv.replace(q=q, k=k)
    approx = run(qkv, 7, measure=measure)
    exact = measured(qkv, approx.draws["sampled_keys"], measure)
    expected = exact.sort(descending=True, stable=True).indices[:, :7]
    assert torch.equal(approx.draws["top_queries"], expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_few_queries_are_measured_in_float64(measure, monkeypatch):
    qkv, seen, plain = make(h=2, n=500), [], module._gathered

    def recorded(q, k, sampled, rows, *rest):
        seen.append((q.dtype, None if rows is None else len(rows)))
        return plain(q, k, sampled, rows, *rest)

    monkeypatch.setattr(module, "_gathered", recorded)
    run(qkv, 20, measure=measure)
    assert seen[0] == (torch.float32, None) and seen[1][0] == torch.float64
    assert 2 * 20 <= seen[1][1] <= 2 * 22


@pytest.mark.parametrize(
    "n, sizes",
    [
        (512, {16: 21, 32: 42, 64: 77, 128: 147, 256: 294}),
        (1024, {16: 21, 32: 35, 64: 70, 128: 133, 256: 259}),
        (4096, {16: 18, 32: 36, 64: 72, 128: 144, 256: 279}),
    ],
)
def test_the_authors_sizes_overshoot_the_budget(n, sizes):
    for d, expected in sizes.items():
        assert module._sizes(d, n, n) == (expected, expected)


def test_the_authors_factor_is_in_the_draws_and_the_diagnostics():
    qkv = make(n=60)
    approx = run(qkv, 16, authors_factor=True)  # f = ⌈16 / 4.09⌉ = 4, times ⌈4.09⌉ = 5
    assert approx.draws["sampled_keys"].shape == (2, 60, 20) and approx.draws["top_queries"].shape == (2, 20)
    assert approx.diagnostics["realised_d"].tolist() == [20, 20]
    assert approx.diagnostics["visited"].tolist() == [2 * 20 * 60] * 2
    plain = run(qkv, 16)
    assert plain.diagnostics["realised_d"].tolist() == [16, 16]
    assert plain.diagnostics["visited"].tolist() == [2 * 16 * 60] * 2
    for row in range(2):
        expected = twin(one_head(qkv, row), 16, draws_of(approx, row), "softmax")
        assert torch.allclose(approx.operator.dense()[row], expected, atol=1e-13)


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 7), (3, 1), (5, 9), (20, 20)])
def test_the_authors_sizes_stay_within_the_tokens(n_q, n_k):
    for d in range(1, n_q + 1):
        u, sample_k = module._sizes(d, n_q, n_k)
        assert 1 <= u <= n_q and 1 <= sample_k <= n_k
        assert torch.isfinite(run(make(n=n_q, n_k=n_k), d, authors_factor=True).output).all()


@pytest.mark.parametrize("measure", MEASURES)
def test_all_rows_are_exact(measure):
    qkv = make(n=12, n_k=15, score=3.0)
    approx = run(qkv, 12, measure=measure)
    for row in range(2):
        assert torch.allclose(approx.operator.dense()[row], exact_twin(one_head(qkv, row), "softmax"), atol=1e-13)


def test_rows_that_are_not_chosen_are_the_mean_of_the_values():
    qkv = make()
    approx = run(qkv, 4)
    for row in range(2):
        others = sorted(set(range(20)) - set(approx.draws["top_queries"][row].tolist()))
        assert len(others) == 16
        assert (approx.output[row, others] - qkv.v[row].mean(0)).abs().max() <= 1e-14


def test_keys_are_sampled_uniformly_for_each_query_and_with_replacement():
    sampled = torch.cat([run(make(h=4, n=10), 10, seed=seed).draws["sampled_keys"] for seed in range(10)])
    counts = torch.stack([torch.bincount(sampled[:, i].flatten(), minlength=10) for i in range(10)]).double()
    # 400 draws of ten keys: σ = (400 · 0.1 · 0.9)^½ = 6
    assert ((counts - 40).abs() <= 5 * 6).all() and counts.std() > 3
    assert any(len(set(row)) < 10 for row in sampled[0].tolist())
    assert not torch.equal(sampled[0, 0], sampled[0, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("top", [100.0, 400.0, 2e4])
@pytest.mark.parametrize("measure", MEASURES)
def test_large_scores_stay_finite(measure, top, dtype):
    approx = run(reaching(top, dtype=dtype), 6, measure=measure)
    assert torch.isfinite(approx.output).all()
    assert ((approx.operator.row_sums().double() - 1).abs() <= 60 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("authors_factor", [False, True])
def test_padding_is_neither_sampled_nor_chosen_nor_averaged(measure, authors_factor):
    qkv = make(n=17)
    mask = torch.ones(17, dtype=torch.bool)
    mask[[0, 6, 7, 16]] = False
    noise = torch.where(mask[:, None], 0.0, 1e3).double()
    padded = QKV(qkv.q + noise, qkv.k + noise, qkv.v + noise, mask=mask)
    options = {"measure": measure, "authors_factor": authors_factor}
    got, expected = run(padded, 5, **options), run(padded.compressed(), 5, **options)
    assert got.draws_hash() == expected.draws_hash() and got.draws["sampled_keys"].max() <= 12
    assert torch.equal(got.output[:, mask], expected.output) and not got.output[:, ~mask].any()


def test_a_vector_added_to_every_key_moves_the_choice_with_max_mean_only():
    """M̂_i moves by (1 - sample_k/n_k) q_i·c; the log-ratio does not move."""
    qkv = make()
    c = 3 * torch.randn(2, 1, 8, generator=generator(0, "shift"), dtype=torch.float64)
    moved = QKV(qkv.q, qkv.k + c, qkv.v)
    for measure, same in (("max-mean", False), ("log-ratio", True)):
        before, after = run(qkv, 5, measure=measure), run(moved, 5, measure=measure)
        assert torch.equal(before.draws["top_queries"], after.draws["top_queries"]) == same
        for row in range(2):
            sampled = before.draws["sampled_keys"]
            change = (measured(moved, sampled, measure) - measured(qkv, sampled, measure))[row]
            expected = 0 * change if same else (1 - 5 / 20) * (qkv.q[row] @ c[row, 0])
            assert (change - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_it_equals_the_transformers_module_given_its_sample_and_sizes(score, monkeypatch):
    """Its sample is one set of n keys for all queries and heads, its u is factor · ⌈ln(1 + n)⌉."""
    from transformers.models.informer.modeling_informer import InformerProbSparseAttention

    n, heads, p, factor, u = 16, 2, 8, 2, 6
    g = generator(0, "transformers")
    theirs = InformerProbSparseAttention(heads * p, heads, sampling_factor=factor, bias=False).double().eval()
    with torch.no_grad():
        for layer, size in ((theirs.q_proj, score), (theirs.k_proj, 1.0), (theirs.v_proj, 1.0)):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=g) * size / (heads * p) ** 0.5)
        theirs.out_proj.weight.copy_(torch.eye(heads * p))
        x = torch.randn(1, n, heads * p, generator=g).double()
        q, k, v = (f(x)[0].view(n, heads, p).transpose(0, 1) for f in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
        shared = torch.randint(n, (n,), generator=g)
        monkeypatch.setattr(torch, "randint", lambda *args, **kwargs: shared.expand(args[-1]))
        monkeypatch.setattr(module, "_sizes", lambda d, n_q, n_k: (u, n))
        expected = theirs(x)[0][0].view(n, heads, p).transpose(0, 1)
        ours = run(QKV(q.contiguous(), k.contiguous(), v.contiguous()), u, authors_factor=True)
    assert (ours.output - expected).abs().max() <= 1e-13 * float(v.abs().max())
    assert ours.diagnostics["realised_d"].tolist() == [u, u]
