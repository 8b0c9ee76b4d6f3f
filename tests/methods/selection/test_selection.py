"""The methods that select keys: their sets, their sizes and costs, and the rows of what they select."""

import sys
from typing import Any

import pytest
import torch
from inputs import make, one_head
from thinned import others_slow
from twins_selection import CAUSAL, TWINS

from attnprobe import approximate, exact, row_metrics
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, get
from attnprobe.methods.selection import base, h2o, quest, subsets
from attnprobe.methods.selection.base import page_means
from attnprobe.methods.selection.diagonals import _best as best_places
from attnprobe.methods.selection.diagonals import columns_and_diagonals
from attnprobe.methods.selection.flexprefill import _pooled_blocks
from attnprobe.methods.selection.xattention import _block_mass as block_mass
from attnprobe.qkv import QKV
from attnprobe.rng import generator
from attnprobe.testing import examine

SELECTORS = sorted(name for name, entry in METHODS.items() if entry.family == "selection")
every_selector = pytest.mark.parametrize("name", SELECTORS)


RENORMALISED = {"nsa": {"branch": "selected"}}  # options of methods whose defaults also use means of keys


def run(name, qkv, d=12, **options):
    return approximate(name, qkv, d, **{**get(name).small, **RENORMALISED.get(name, {}), **options})


def grouped(n=24, h=4, h_kv=2, causal=True) -> QKV:
    q, k, v = (make(h=heads, n=n, seed=seed) for heads, seed in ((h, 0), (h_kv, 1), (h_kv, 2)))
    return QKV(q.q, k.k, v.v, causal=causal)


def sets(approx):
    return approx.operator.dense() != 0


def test_every_selector_has_a_twin_and_a_causal_form():
    assert set(SELECTORS) == set(TWINS) == set(CAUSAL)
    for name in SELECTORS:
        assert {"causal", "prefill"} & set(get(name).tags), name


@every_selector
@pytest.mark.parametrize("causal", [False, True])
def test_sizes_and_costs_are_those_of_the_sets(name, causal):
    qkv = make(n=31, h=3).replace(causal=causal)
    approx = run(name, qkv)
    keys = sets(approx).sum(-1).double()
    actual = approx.diagnostics
    assert torch.equal(actual["realised_d"], keys.mean(1)) and torch.equal(actual["kv_read"], keys.mean(1))
    assert torch.allclose(actual["realised_d_p10"], keys.quantile(0.1, dim=1))
    assert torch.allclose(actual["realised_d_p90"], keys.quantile(0.9, dim=1))
    assert keys.max() <= 12 and (actual["scored"] >= 0).all()
    assert torch.equal(actual["visited"], keys.sum(1)) or "diagnostic" in get(name).tags


SCORED = {  # scores of all 31 rows, causal and not; 11 pages of three keys; segments end at 6, 12, 18, 24 and 30
    "block-topk": (66, 11 * 11),
    "dsa-oracle": (31 * 32 / 2, 31 * 31),
    "expected": (90 * 9, 31 * 9),  # 8 products for the covariance, one for the mean
    "flexprefill": (29 + 30 + 31 + 66, 3 * 31 + 11 * 11),
    "h2o": (0, 31 * 31),
    "keydiff": (90, 31),
    "knorm": (90, 31),
    "moba": (3 * 55 + 11, 31 * 11),
    "nsa": (3 * 45 + 10, 31 * 11),
    "quest": (2 * (3 * 55 + 11), 2 * 31 * 11),  # two bounds of a page
    "random": (90, 31),
    "snapkv": (90 * 3 - 15, 31 * 3),
    "topp": (31 * 32 / 2, 31 * 31),
    "tova": (0, 31),
    "vertical-slash": (29 + 30 + 31, 3 * 31),
    "xattention": (2 * (15 * 16 / 2) + 16, 31 * 16),  # 16 cells of two keys
}


@every_selector
def test_the_scores_of_a_choice_are_counted(name):
    for causal, expected in zip((True, False), SCORED[name], strict=True):
        qkv = make(n=31, h=2).replace(causal=causal)
        actual = approximate(name, qkv, 12, **get(name).small).diagnostics["scored"] * 31
        assert actual.tolist() == pytest.approx([expected] * 2), causal


@pytest.mark.parametrize("observe, expected", [(None, 30 * 31 / 2), (3, 90 * 3 - 15)])
def test_the_scores_of_observed_queries_are_those_of_the_keys_that_they_see(observe, expected):
    approx = approximate("h2o", make(n=31, h=2).replace(causal=True), 12, streaming=False, observe=observe)
    assert (approx.diagnostics["scored"] * 31).tolist() == pytest.approx([expected] * 2)


@every_selector
def test_rows_have_the_identities_of_a_renormalised_selection(name):
    """TV = lost mass = 1 - exp(-KL), and row error = lost mass · tail gap."""
    qkv = make(n=40, h=2, score=3.0).replace(causal=True)
    actual = row_metrics(exact(qkv), run(name, qkv), qkv)
    lost = 1 - actual["mass"]
    assert (actual["tv"] - lost).abs().max() < 1e-10
    assert (actual["tv"] + torch.expm1(-actual["kl"])).abs().max() < 1e-10
    assert (actual["row_error"] - lost * actual["tail_gap"]).abs().max() < 1e-10


@every_selector
def test_the_keys_of_a_group_are_counted_once(name):
    qkv = grouped()
    approx = run(name, qkv)
    union = sets(approx).unflatten(0, (2, 2)).any(1).sum(-1).double().mean(1)
    assert torch.allclose(approx.diagnostics["kv_read"], union.repeat_interleave(2))


@pytest.mark.parametrize("share", ["group-mean", "group-max"])
@pytest.mark.parametrize("name", [name for name in SELECTORS if "share" in get(name).options])
def test_the_heads_of_a_group_share_their_sets_where_that_is_said(name, share):
    qkv = grouped()
    chosen, own = sets(run(name, qkv, share=share)), sets(run(name, qkv, share="head"))
    assert torch.equal(chosen[0], chosen[1]) and torch.equal(chosen[2], chosen[3]) and not torch.equal(chosen, own)
    approx = run(name, qkv, share=share)
    assert torch.equal(approx.diagnostics["kv_read"], approx.diagnostics["realised_d"])


def test_shared_scores_are_the_mean_or_the_largest_of_a_group():
    qkv, scores = grouped(n=3), torch.tensor([[1.0], [3.0], [2.0], [6.0]])
    assert base.shared(scores, qkv, "group-mean").flatten().tolist() == [2, 2, 4, 4]
    assert base.shared(scores, qkv, "group-max").flatten().tolist() == [3, 3, 6, 6]
    assert base.shared(scores, qkv, "head") is scores


@pytest.mark.parametrize("page", [1, 2, 5, 16])
def test_the_bound_of_a_page_is_at_least_its_largest_score(page, monkeypatch):
    qkv = make(n=37, h=2)
    bounds = []

    def keep(qkv_, d, size, queries, position, score):
        bounds.append(score(queries))
        return base.row_pages(qkv_, d, size, queries, position, score)

    monkeypatch.setattr(quest, "row_pages", keep)
    approximate("quest", qkv, 10, page=page)
    scores = qkv.q @ qkv.k.mT
    for number in range(-(-37 // page)):
        assert (bounds[0][..., number] >= scores[..., number * page : (number + 1) * page].amax(-1) - 1e-12).all()
    assert page > 1 or torch.allclose(bounds[0], scores)


@pytest.mark.parametrize("name, option", [("quest", "page"), ("moba", "block")])
@pytest.mark.parametrize("causal", [False, True])
def test_pages_of_one_key_are_topk_with_the_own_key(causal, name, option):
    """The bound and the mean of one key give its score: top-k, but for the key at its own place."""
    qkv = make(n=30, h=2).replace(causal=causal)
    chosen = sets(approximate(name, qkv, 8, **{option: 1}))
    best = sets(approximate("topk", qkv, 7))
    own = torch.eye(30, dtype=torch.bool)
    assert not (best & ~chosen).any() and (chosen & own == own).all()


def test_the_order_of_keys_within_other_pages_changes_no_choice():
    qkv = make(n=32, h=2)
    order = torch.cat([4 * page + torch.randperm(4, generator=generator(0, str(page))) for page in range(8)])
    moved = qkv.replace(k=qkv.k[:, order], v=qkv.v[:, order])
    for name, option in (("quest", "page"), ("block-topk", "block"), ("moba", "block")):
        first, second = (approximate(name, x, 12, **{option: 4}) for x in (qkv, moved))
        torch.testing.assert_close(second.output, first.output, rtol=0, atol=1e-12)


def test_a_row_with_room_for_all_its_pages_reads_all_of_them():
    qkv = make(n=40, h=1).replace(causal=True)
    chosen = sets(approximate("quest", qkv, 13, page=4))
    assert all(chosen[0, i, : i + 1].all() for i in range(13)) and int(chosen[0, 13].sum()) <= 13


def test_topp_holds_its_mass_or_all_the_keys_that_it_may_have():
    qkv = make(n=60, h=2, score=4.0)
    for p, d in ((0.5, 60), (0.9, 60), (0.9, 5), (1.0, 7)):
        approx = approximate("topp", qkv, d, p=p)
        actual = row_metrics(exact(qkv), approx, qkv)
        assert ((actual["mass"] >= p - 1e-12) | (actual["keys"] == d)).all() and actual["keys"].max() <= d
        assert (actual["mass_efficiency"] > 1 - 1e-12).all()
    fewest = row_metrics(exact(qkv), approximate("topp", qkv, 60, p=0.9), qkv)
    assert torch.equal(fewest["keys"], fewest["k_90"])


def test_the_mean_of_a_short_last_block_is_of_its_tokens():
    x = torch.arange(7.0)[None, :, None]
    assert base.page_means(x, 3).flatten().tolist() == [1, 4, 6]
    assert base.page_means(x[:, 3:], 3, torch.arange(3, 7)).flatten().tolist() == [0, 4, 6]
    assert base.page_means(x[:, [4, 6]], 3, torch.tensor([4, 6])).flatten().tolist() == [0, 4, 6]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("branch", ["merge", "selected", "window", "compressed"])
@pytest.mark.parametrize("window", [3, 512])
def test_the_branches_of_nsa_equal_their_twin(branch, window, causal):
    qkv = make(n=23, h=2).replace(causal=causal)
    approx = approximate("nsa", qkv, 12, branch=branch, window=window, block=3)
    for row in range(2):
        twin = TWINS["nsa"](one_head(qkv, row), 12, {}, "softmax", branch=branch, window=window)
        assert (approx.operator.dense()[row] - twin).abs().max() < 1e-12
    expected = exact(qkv).dense() @ qkv.v
    assert branch in ("selected", "window") or ((approx.output - expected).norm() < expected.norm())


@pytest.mark.parametrize("causal", [False, True])
def test_the_merge_of_nsa_counts_every_key_once(causal):
    """With keys that are equal within blocks the means lose nothing: the normaliser is that of exact attention."""
    qkv = make(n=24, h=2).replace(causal=causal)
    equal = qkv.replace(k=qkv.k[:, ::3].repeat_interleave(3, 1))
    approx = approximate("nsa", equal, 10, block=3)
    assert (approx.log_normalizer() - exact(equal).log_normalizer()).abs().max() < 1e-12
    single = approximate("nsa", qkv, 6, block=1)
    assert (single.output - exact(qkv).dense() @ qkv.v).abs().max() < 1e-12


def test_the_merge_of_nsa_reads_the_means_beside_its_keys():
    qkv = make(n=24).replace(causal=True)
    merged, alone = (approximate("nsa", qkv, 12, block=3, branch=branch) for branch in ("merge", "selected"))
    assert torch.equal(alone.diagnostics["kv_read"], alone.diagnostics["realised_d"])
    blocks = torch.tensor([(i // 3) for i in range(24)]).double().mean()
    read = merged.diagnostics["kv_read"] - merged.diagnostics["realised_d"]
    assert (read > 0).all() and (read <= blocks).all() and (merged.diagnostics["scored"] == blocks).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{"tau": 0.0}, {"tau": 1.0}, {"tau": 1.0, "mass": 0.5}, {"tau": 0.0, "mass": 0.5}])
def test_both_patterns_of_flexprefill_equal_their_twin(options, causal):
    qkv = make(n=26, h=2).replace(causal=causal)
    approx = run("flexprefill", qkv, 14, **options)
    for row in range(2):
        twin = TWINS["flexprefill"](one_head(qkv, row), 14, {}, "softmax", **options)
        assert (approx.operator.dense()[row] - twin).abs().max() < 1e-12


def test_pooled_blocks_are_those_of_block_rows_with_queries():
    """Of 6 block rows of 4, two have queries: half of their mass decides, and the rest get their own block alone."""
    qkv = make(n=24, h=2, score=3.0)
    some = qkv.queries(torch.tensor([0, 1, 2, 3, 16, 17, 18, 19])).replace(all_queries=None)
    means = page_means(qkv.k, 4, torch.arange(24))
    actual = _pooled_blocks(some, means, 24, 4, 0.5)
    for head in range(2):
        rows = torch.stack([qkv.q[head, 4 * row : 4 * row + 4].mean(0) for row in (0, 4)])
        weights = (qkv.scale * rows @ means[head].T).softmax(-1)
        selected, mass = {(0, 0), (4, 4)}, 0.0
        for place in weights.flatten().argsort(descending=True).tolist():
            if mass >= 0.5 * 2:
                break
            selected.add(((0, 4)[place // 6], place % 6))
            mass += float(weights.flatten()[place])
        assert {(r, b) for r in (0, 4) for b in actual[head, r].tolist() if b >= 0} == selected


def test_all_of_the_mass_is_all_blocks_though_their_weights_are_zero():
    qkv = make(n=24, h=2, score=3000.0)
    means = page_means(qkv.k, 4, torch.arange(24))
    assert _pooled_blocks(qkv, means, 24, 4, 1.0).sort().values.tolist() == [[[*range(6)]] * 6] * 2


def test_a_head_has_blocks_where_the_pooled_estimate_is_the_mass_of_the_probe():
    """With blocks of one key and a probe of one row the two are equal: any tau above 0 leaves blocks."""
    qkv = make(n=20, h=2, score=3.0).replace(causal=True)
    blocks, lines = (approximate("flexprefill", qkv, 6, block=1, tau=tau) for tau in (1e-6, 0.0))
    assert not torch.equal(sets(blocks), sets(lines))
    best = sets(approximate("flexprefill", qkv, 6, block=1, tau=1e-6, mass=1.0))
    weights = exact(qkv).dense() + 2 * torch.eye(20)
    assert all(
        set(best[0, i].nonzero()[:, 0].tolist()) == set(weights[0, i].topk(6).indices.tolist()) for i in range(6, 20)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_estimate_of_xattention_is_the_mass_of_a_block_with_stride_one(causal):
    qkv = make(n=23, h=2).replace(causal=causal)
    weights = exact(qkv).dense()
    estimate = block_mass(qkv, 1, 4)
    for i in range(6):
        for j in range(6):
            rows = weights[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].sum(-1)
            assert (rows.mean(1) - estimate[:, i, j]).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stride, block, mass", [(1, 3, 0.7), (2, 4, 1.0), (4, 4, 0.5)])
def test_xattention_equals_its_twin(stride, block, mass, causal):
    qkv = make(n=27, h=2).replace(causal=causal)
    options = {"stride": stride, "block": block, "mass": mass}
    approx = approximate("xattention", qkv, 14, **options)
    for row in range(2):
        twin = TWINS["xattention"](one_head(qkv, row), 14, {}, "softmax", **options)
        assert (approx.operator.dense()[row] - twin).abs().max() < 1e-12


def test_the_estimate_of_xattention_does_not_see_a_vector_added_to_every_key():
    """Also where the last cell is not full."""
    qkv = make(n=27, h=2)
    shifted = qkv.replace(k=qkv.k + 3 * make(n=1, h=2, seed=5).k)
    assert (block_mass(shifted, 4, 8) - block_mass(qkv, 4, 8)).abs().max() < 1e-12


def test_rows_of_xattention_from_the_start_of_a_block_are_those_of_all():
    qkv = make(n=32, h=2).replace(causal=True)
    options = {"stride": 2, "block": 4}
    every, some = (approximate("xattention", x, 12, **options) for x in (qkv, qkv.queries(torch.arange(20, 32))))
    assert (some.output - every.output[:, 20:]).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("d", others_slow([1, 2, 16, 64, 200], lambda d: d[0] in (1, 16, 200)))
def test_first_columns_and_nearest_diagonals_come_first_however_few_fit(d, causal):
    qkv = make(n=120, h=1).replace(causal=causal)
    options: dict[str, Any] = {"probe": 64, "first": 30, "near": 100}  # the defaults
    approx = approximate("vertical-slash", qkv, d, **options)
    twin = TWINS["vertical-slash"](qkv, d, {}, "softmax", **options)
    assert (approx.matrix().dense()[0] - twin).abs().max() < 1e-12
    assert sets(approx)[0].diagonal().all()


def test_a_budget_that_queries_do_not_decide_has_a_warning():
    columns, diagonals = "16 columns are the first ones (first=16)", "48 diagonals are the nearest ones (near=48)"
    for first, near, said in (
        (15, 47, None),
        (16, 47, f"at d=64 all {columns}, whatever the queries"),
        (15, 48, f"at d=64 all {diagonals}, whatever the queries"),
        (16, 48, f"at d=64 all {columns} and all {diagonals}, whatever the queries"),
    ):
        assert get("vertical-slash").warning(64, {"vertical": 0.25, "first": first, "near": near}) == said
    assert (get("moba").warning(64, {"block": 64}) or "").startswith("every d up to block=64 gives the same rows")
    assert get("moba").warning(65, {"block": 64}) is None and get("moba").warning(None, {}) is None


def test_a_row_without_a_key_is_noticed(monkeypatch):
    """The planted fault: the own key is left out, which only the first row of causal inputs cannot do without."""

    def without_own(qkv, *args):
        keys = columns_and_diagonals(qkv, *args)
        return keys.masked_fill(keys == qkv.query_positions[:, None], -1)

    monkeypatch.setattr("attnprobe.methods.selection.vertical_slash.columns_and_diagonals", without_own)
    [verdict] = examine("vertical-slash", only=["row-sums-one"])
    assert verdict.status == "failed" and "row sums and 1: at head 0, row 0" in verdict.reason


def test_a_third_of_columns_leaves_the_rest_of_the_budget_to_diagonals_on_both_sides():
    qkv = make(n=60, h=1)
    options: dict[str, Any] = {"vertical": 0.3, "probe": 64, "first": 1, "near": 1}
    twin = TWINS["vertical-slash"](qkv, 120, {}, "softmax", **options)
    assert (approximate("vertical-slash", qkv, 120, **options).matrix().dense()[0] - twin).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["topp", "dsa-oracle", "quest", "moba", "block-topk", "knorm"])
@pytest.mark.parametrize("d", [7, 13])
@pytest.mark.parametrize("causal", [True, False])
def test_of_equal_keys_those_with_the_smaller_places_are_selected(name, d, causal):
    """Six keys are repeated. They and their means over three are integers, so that sums are exact in every order."""
    q, six = (3.0 * torch.randint(-1, 2, (1, size, 2), generator=generator(0, "ties", size)) for size in (42, 6))
    qkv = QKV(q.double(), six.double().repeat(1, 7, 1), make(n=42, h=1).v, causal=causal)
    options: dict[str, Any] = {"p": 1.0} if name == "topp" else {}
    twin = TWINS[name](qkv, d, {}, "softmax", **options)
    assert torch.equal(run(name, qkv, d, **options).matrix().dense()[0] > 0, twin > 0)


def test_one_set_of_keys_for_all_heads_is_that_of_their_summed_weights():
    qkv = make(n=20, h=4).replace(causal=True)
    chosen = sets(approximate("dsa-oracle", qkv, 5))
    weights = exact(qkv).dense().sum(0)
    for i in range(20):
        best = set(weights[i, : i + 1].topk(min(5, i + 1)).indices.tolist())
        assert all(set(head[i].nonzero()[:, 0].tolist()) == best for head in chosen)
    grouped_sets = sets(approximate("dsa-oracle", grouped(), 5, sets="group"))
    assert torch.equal(grouped_sets[0], grouped_sets[1]) and not torch.equal(grouped_sets[1], grouped_sets[2])
    approx = approximate("dsa-oracle", grouped(), 5)
    assert torch.equal(approx.diagnostics["kv_read"], approx.diagnostics["realised_d"])


IMPOSSIBLE = (
    *("quest:page=0", "block-topk:block=0", "moba:block=0", "xattention:mass=0.0", "xattention:stride=0"),
    *("flexprefill:tau=-1.0", "flexprefill:mass=2.0", "nsa:window=0", "vertical-slash:vertical=0.0"),
    *("vertical-slash:near=0", "snapkv:observe=0", "h2o:every=0", "expected:first=-1", "topp:p=0.0", "topp:p=1.5"),
)


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_impossible_options_are_refused(text):
    name, option = text.split(":")
    key, value = option.split("=")
    with pytest.raises(UsageError, match=f"{name}: {option}"):
        approximate(name, make(), 8, **{key: float(value) if "." in value else int(value)})


def test_bounds_over_the_keys_of_the_own_page_are_a_look_ahead_that_the_check_notices(monkeypatch):
    """The planted fault: the own page is chosen by a bound that later keys move."""

    def ahead(scores, position, d, page, n_k, causal):
        return scores.masked_fill(~seen_pages(position, page, scores), float("-inf")).topk(d // page, dim=-1).indices

    def seen_pages(position, page, scores):
        return torch.arange(scores.shape[2]) <= (position // page)[:, None]

    monkeypatch.setattr(base, "top_pages", ahead)
    [verdict] = examine("quest", only=["causal"])
    assert verdict.status == "failed"


LOOKING = [name for name in SELECTORS if "causal" in get(name).tags]


@pytest.mark.parametrize("name", [name for name in LOOKING if name not in ("h2o", "random")])  # draws do not look
def test_a_choice_that_looks_ahead_is_noticed_in_every_selector(name, monkeypatch):
    """The planted fault: a row takes what the eighth row after it keeps, of the keys that it sees.

    The first of some inputs on which that changes a set. The first eight rows keep their own sets.
    """

    def ahead(qkv, selection):
        row = torch.arange(qkv.n_q)
        later = torch.where(row < 8, row, (row + 8).clamp(max=qkv.n_q - 1))
        return base.attend(qkv, base.Selection(selection.index[:, later // selection.group], 1, selection.scored))

    module = sys.modules[get(name).function.__module__]
    monkeypatch.setattr(module if hasattr(module, "attend") else subsets, "attend", ahead)
    verdicts = (examine(name, only=["causal"], fixed={"n": 30, "d": 8, "seed": seed})[0] for seed in range(9))
    caught = next(verdict for verdict in verdicts if verdict.status == "failed")
    assert "change the rows before them" in caught.reason


def test_sums_over_later_queries_are_noticed(monkeypatch):
    """The planted fault of h2o, whose cache keeps old keys whatever comes later: the sums are over all queries."""

    def ahead(qkv, d, *settings, **more):
        best = exact(qkv).dense().sum(1).topk(d - 1).indices[:, None].expand(-1, qkv.n_q, -1)
        own = torch.arange(qkv.n_q)[None, :, None].expand(qkv.h, -1, 1)
        return base.Selection(torch.cat([own, best.masked_fill(best == own, -1)], 2), 1, 0.0)

    monkeypatch.setattr(h2o, "streamed", ahead)
    [verdict] = examine("h2o", only=["causal"])
    assert verdict.status == "failed" and "change the rows before them" in verdict.reason


@pytest.mark.parametrize("average", [False, True])
def test_h2o_in_one_shot_keeps_the_largest_sums_of_exact_weights(average):
    qkv = make(n=24, h=1, score=3.0).replace(causal=True)
    chosen = sets(approximate("h2o", qkv, 8, streaming=False, average=average))[0]
    weights = exact(qkv).dense()[0]
    for i in range(24):
        end = i // 4 * 4  # segments of d/2 tokens
        sums = weights[:end, :end].sum(0)
        sums = sums / (end - torch.arange(end)) if average else sums
        sums[max(0, end - min(4, end) // 2) :] = float("inf")  # half of the room before the segment
        expected = set(sums.topk(min(4, end)).indices.tolist()) | set(range(end, i + 1))
        assert set(chosen[i].nonzero()[:, 0].tolist()) == expected


def test_every_query_that_is_not_causal_sees_every_key():
    qkv = make(n=30)
    summed, averaged = (sets(approximate("h2o", qkv, 8, average=one)) for one in (False, True))
    assert torch.equal(summed, averaged)


def test_tova_in_one_shot_keeps_what_the_last_query_before_the_segment_attends_to():
    qkv = make(n=24, h=3, score=3.0).replace(causal=True)
    chosen = sets(approximate("tova", qkv, 8, streaming=False))
    mean = exact(qkv).dense().mean(0)
    for i in range(4, 24):
        end = i // 4 * 4
        expected = set(mean[end - 1, :end].topk(4).indices.tolist()) | set(range(end, i + 1))
        assert all(set(head[i].nonzero()[:, 0].tolist()) == expected for head in chosen)


def test_tova_drops_in_all_heads_the_key_with_the_least_mean_weight_of_the_last_query():
    """Its default: token by token, one cache for the heads of a layer."""
    qkv, d = make(n=20, h=3, score=3.0).replace(causal=True), 6
    chosen = sets(approximate("tova", qkv, d))
    scores = qkv.scale * qkv.q @ qkv.k.mT
    cache: list[int] = []
    weights = torch.empty(0)
    for i in range(20):
        if len(cache) == d:
            cache.pop(int(weights.argmin()))
        cache.append(i)
        weights = scores[:, i, cache].softmax(-1).mean(0)
        assert all(head[i].nonzero()[:, 0].tolist() == sorted(cache) for head in chosen)
    alone = sets(approximate("tova", qkv, d, sets="head"))
    assert not torch.equal(alone, chosen)


def rotation(position, p, base):
    """The matrix of RoPE at a position."""
    turn = torch.zeros(p, p, dtype=torch.float64)
    for i in range(p // 2):
        angle = torch.tensor(position * base ** (-2 * i / p), dtype=torch.float64)
        turn[i, i] = turn[i + p // 2, i + p // 2] = angle.cos()
        turn[i + p // 2, i] = angle.sin()
        turn[i, i + p // 2] = -angle.sin()
    return turn


@pytest.mark.parametrize("causal", [False, True])
def test_first_tokens_that_are_all_of_them_are_kept_in_their_order(causal):
    """No query is left behind them, so that there is nothing to expect."""
    qkv = make(n=30, h=2, p=6, score=3.0).replace(causal=causal)
    turned, plain = (approximate("expected", qkv, 9, rope=rope, first=30) for rope in (50.0, None))
    assert torch.equal(sets(turned), sets(plain)) and torch.isfinite(turned.output).all()


@pytest.mark.parametrize("step", [1, 3])
def test_expected_attention_before_rope_is_that_of_queries_without_it(step):
    """The paper's Gaussian of unrotated queries, turned by the mean rotation of the next 512 positions.

    With a step, the tokens between were padding.
    """
    n, p, base, first, d = 30, 6, 50.0, 2, 9
    before, qkv = make(n=n, h=2, p=p, score=3.0), make(n=n, h=2, p=p, seed=5)
    qkv = qkv.replace(key_positions=step * torch.arange(n))
    turned = torch.stack([before.q[:, i] @ rotation(step * i, p, base).T for i in range(n)], 1)
    mean_turn = sum(rotation(step * (n - 1) + 1 + i, p, base) for i in range(512)) / 512
    approx = approximate("expected", qkv.replace(q=turned), d, rope=base, first=first, sets="head")
    for head in range(2):
        queries = before.q[head, first:] @ mean_turn.T
        mu, covariance = queries.mean(0), queries.T.cov(correction=0)
        keys = qkv.scale * qkv.k[head]
        log_weights = torch.stack([k @ mu + k @ covariance @ k / 2 for k in keys])
        scores = log_weights[first:].softmax(0) * qkv.v[head, first:].norm(dim=-1)
        kept = {*range(first), *(first + scores.topk(d - first).indices).tolist()}
        assert set(approx.keys()[head, 0].tolist()) == kept
    angles = [base ** (-2 * i / p) for i in range(p // 2)]
    for known in (base, angles, [(i, i + p // 2, angle) for i, angle in enumerate(angles)]):  # of the model
        inputs = qkv.replace(q=turned, label={"rope": known})
        assert torch.equal(
            approximate("expected", inputs, d, rope="model", first=first, sets="head").keys(), approx.keys()
        )
    with pytest.raises(Unsupported, match="head dimension 5 is odd"):
        approximate("expected", make(n=n, p=5), d, rope=base)
    with pytest.raises(Unsupported, match="rope=model needs inputs of a model"):
        approximate("expected", make(n=n, p=6), d, rope="model")
    with pytest.raises(UsageError, match="rope=modle is neither model nor the base"):
        approximate("expected", make(n=n, p=6), d, rope="modle")


OBSERVERS = {
    "snapkv": {},
    "expected": {},
    "h2o": {},
    "h2o:streaming": {"streaming": True},
    "tova": {"streaming": False},
    "tova:streaming": {"streaming": True},
    "h2o:observe": {"streaming": False, "observe": 3},
}
LOOK_AHEAD = ("vertical-slash", "flexprefill", "block-topk", "xattention")


@pytest.mark.parametrize("name", [*OBSERVERS, *LOOK_AHEAD])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [range(25, 40), [0, 7, 21, 39]], ids=["last", "some"])
def test_measured_rows_are_those_of_all_queries(name, causal, rows):
    """``--queries`` names rows; the queries that choose their keys are those of the whole text."""
    full = make(n=40, h=4).replace(causal=causal)
    method, _, _ = name.partition(":")
    options = {**get(method).small, **OBSERVERS.get(name, {})}
    some = full.queries(torch.tensor(list(rows)))
    expected = approximate(method, full, 12, **options).output[:, list(rows)]
    assert (approximate(method, some, 12, **options).output - expected).abs().max() < 1e-12
    part = approximate(method, some.select([2, 3]).to(dtype=torch.float64), 12, **options).output
    assert (part - approximate(method, full.select([2, 3]), 12, **options).output[:, list(rows)]).abs().max() < 1e-12


@pytest.mark.parametrize("name", OBSERVERS)
@pytest.mark.parametrize("causal", [True, False])
def test_queries_that_choose_keys_must_be_given(name, causal):
    full = make(n=40, h=2).replace(causal=causal)
    method, _, _ = name.partition(":")
    some = full.queries(torch.arange(25, 40)).replace(all_queries=None)
    with pytest.raises(Unsupported, match="these inputs do not have the queries of all tokens"):
        approximate(method, some, 12, **{**get(method).small, **OBSERVERS[name]})


def test_a_probe_without_the_scale_is_noticed(monkeypatch):
    """The planted fault: the softmax of the probe forgets the scale, so that other columns are the largest."""

    def forgets(qkv):
        return exact(qkv.replace(scale=1.0))

    monkeypatch.setattr("attnprobe.methods.selection.vertical_slash.exact", forgets)
    [verdict] = examine("vertical-slash", only=["scale"])
    assert verdict.status == "failed"


@pytest.mark.parametrize("name", ["knorm", "block-topk"])
@pytest.mark.parametrize("first, group", [(12, True), (13, False)])
def test_rows_from_the_start_of_a_block_share_their_sets(name, first, group):
    qkv = make(n=30, h=2).replace(causal=True)
    options = {"block": 3} if name == "block-topk" else {"every": 3}
    some = approximate(name, qkv.queries(torch.arange(first, 30)), 9, **options)
    assert (some.operator.group == 3) == group
    expected = approximate(name, qkv, 9, **options).output
    assert (some.output[:, 2:] - expected[:, first + 2 :]).abs().max() < 1e-12  # a mean needs all queries of its block


def test_weight_ahead_within_a_diagonal_block_is_noticed(monkeypatch):
    """The planted fault: diagonal blocks are not masked within."""
    monkeypatch.setattr(QKV, "visible", property(lambda qkv: None))
    [verdict] = examine("block-topk", only=["prefill"])
    assert verdict.status == "failed" and "ahead of its row" in verdict.reason


def test_a_mean_padded_with_zeros_is_noticed(monkeypatch):
    """The planted fault: the last block is divided by the block size, not by the number of its tokens."""

    def padded(x, page, place=None):
        place = torch.arange(x.shape[1]) if place is None else place
        sums = x.new_zeros(len(x), int(place.max()) // page + 1, x.shape[2]).index_add_(1, place // page, x)
        return sums / page

    monkeypatch.setattr("attnprobe.methods.selection.block_topk.page_means", padded)
    [verdict] = examine("block-topk", only=["shift-invariant"])
    assert verdict.status == "failed"


SHARED_OUT = [
    ("snapkv", {"observe": 6}),
    ("h2o", {"streaming": False}),
    ("expected", {}),
    ("knorm", {}),
    ("keydiff", {}),
]


def key_counts(name, qkv, d, **options):
    """The number of keys of each head and of each row, (h, n_q)."""
    return (approximate(name, qkv, d, **options).operator.dense() > 0).sum(-1)


def uneven(n: int = 48, **rest) -> QKV:
    """Four query heads on two KV heads; keys of the second KV head are longer."""
    q, k = make(h=4, n=n), make(h=2, n=n, seed=1)
    return QKV(q.q, k.k * torch.tensor([0.3, 3.0])[:, None, None], k.v, **rest)


@pytest.mark.parametrize("name, options", SHARED_OUT)
@pytest.mark.parametrize("causal", [True, False])
def test_ada_keeps_as_many_keys_on_average_and_a_fifth_in_each_head(name, options, causal):
    qkv, d = uneven(causal=causal), 20
    even = key_counts(name, qkv, d, **options)
    ada = key_counts(name, qkv, d, allocation="ada", **options)
    assert torch.equal(ada.sum(0), even.sum(0)) and not torch.equal(ada, even)
    own = 10 if causal else 0  # keys of the segment
    late = even[:, -1] == even.max()
    assert (ada[:, -1][late] >= own // 2 + 2).all()
    assert torch.equal(ada[0], ada[1]) and torch.equal(ada[2], ada[3])  # one set for each KV head


def test_ada_keeps_the_largest_scores_of_all_heads_together():
    """Literally, for scores that are norms: a fifth of the room in each set, and the rest in the order of all keys."""
    qkv, d = uneven(), 15
    actual = approximate("knorm", qkv, d, allocation="ada").operator.dense() > 0
    norms = qkv.shared_k.norm(dim=-1)
    sets = [set(row.argsort()[:3].tolist()) for row in norms]
    others = sorted((float(norms[s, j]), s, j) for s in range(2) for j in range(48) if j not in sets[s])
    for _, s, j in others[: 2 * d - 6]:
        sets[s].add(j)
    for head in range(4):
        assert all(set(row.nonzero()[:, 0].tolist()) == sets[head // 2] for row in actual[head])


def test_ada_with_a_set_for_each_head_weighs_query_heads_apart():
    qkv = uneven()
    counts = key_counts("snapkv", qkv, 12, observe=6, sets="head", allocation="ada")[:, 0]
    assert int(counts.sum()) == 48 and len(set(counts.tolist())) > 2


@pytest.mark.parametrize("name, options", SHARED_OUT)
def test_a_pyramid_has_fewer_keys_from_layer_to_layer(name, options):
    counts = []
    for layer in range(6):
        qkv = uneven().replace(label={"layer": layer})
        counts.append(key_counts(name, qkv, 20, allocation="pyramid", layers=6, **options).unique().tolist())
    assert counts == [[39], [32], [24], [17], [9], [1]]  # 20 on average, but for rounding


def test_allocations_that_contradict_their_options_are_refused():
    qkv = uneven()
    for options, message in (
        ({"allocation": "pyramid"}, "allocation=pyramid and layers"),
        ({"layers": 3}, "allocation=pyramid and layers"),
        ({"allocation": "pyramid", "layers": 0}, "layers=0 is not positive"),
    ):
        with pytest.raises(UsageError, match=message):
            approximate("knorm", qkv, 8, **options)
    with pytest.raises(UsageError, match="layer 4 is not among layers=3"):
        approximate("knorm", qkv.replace(label={"layer": 4}), 8, allocation="pyramid", layers=3)
    with pytest.raises(UsageError, match="h2o: allocation=ada belongs to streaming=false"):
        approximate("h2o", qkv, 8, allocation="ada")


def test_columns_end_where_the_mass_before_them_is_reached_exactly():
    weight = torch.tensor([[0.5, 0.25, 0.25]])
    kept = best_places(weight, torch.zeros(1, 3, dtype=torch.bool), 3, 0.5)
    assert kept.tolist() == [[0, -1, -1]]
