"""What every registered method must do: each tag proved, at score scale 1 and 6, in float32 and float64.

Bands are `inputs.entry_band` and `inputs.output_band`: eps times the norms that the computation passes through. They
are worst-case bounds; typical errors are 100 times smaller.
"""

import hashlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from inputs import (
    DTYPES,
    SCORES,
    entry_band,
    eps,
    factor_of,
    magnitude,
    make,
    one_head,
    output_band,
    permuted,
    reaching,
)
from twins import TWINS, skyformer_lifted
from twins import exact as exact_twin

from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, TAGS, approximate, get
from attnprobe.qkv import QKV
from attnprobe.rng import generator

BUDGET = 6
CASES = [(name, target) for name, entry in METHODS.items() for target in entry.targets if entry.kind != "user"]
every_method = pytest.mark.parametrize("name, target", CASES)
every_score = pytest.mark.parametrize("score", SCORES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def claiming(tag):
    """Every (method, target) that claims ``tag``; an empty list would be a tag without a proof."""
    cases = [case for case in CASES if get(case[0]).claims(tag, case[1])]
    assert cases or tag == "uses_values", tag
    return pytest.mark.parametrize("name, target", cases)


def budget(name):
    return max(BUDGET, get(name).least)


def run(name, target, qkv, d=None, **options):
    d = budget(name) if d is None else d
    return approximate(name, qkv, None if get(name).budget is None else d, target=target, **options)


def draws_of(approx, row):
    return {key: value[row] for key, value in approx.draws.items()}


def renamed(draws, order):
    """The draws of tokens that were put in ``order``, under the tokens' old numbers; a draw of no known kind fails."""
    n, new = len(order), {}
    for key, value in draws.items():
        if key == "sampled_keys":  # a row of them for each query
            new[key] = torch.empty_like(value).index_copy(0, order, order[value])
        elif key in ("sketch", "sketch_values"):  # a row of numbers for each token
            new[key] = torch.empty_like(value).index_copy(0, order, value)
        elif key in ("projection", "rotations", "query_centroids", "key_centroids"):  # of features, not of tokens
            new[key] = value
        else:
            assert key in ("indices", "pilot_rows", "columns", "top_queries", "order"), key
            new[key] = order[value % n] + n * (value // n)
    return new


def random_like(x, *labels):
    return torch.randn(x, generator=generator(0, *labels), dtype=torch.float64)


def test_every_method_has_a_twin_and_every_tag_a_proof():
    assert set(TWINS) == {name for name, entry in METHODS.items() if entry.kind != "user"}
    proved = {
        "deterministic", "row_sums_one", "nonnegative", "uses_values", "exact_at_full_budget",
        "permutation_equivariant", "shift_invariant", "psd_below", "diagnostic",
        "causal", "causal_target",  # in test_causal
    }  # fmt: skip
    assert proved == set(TAGS)


@every_dtype
@every_score
@every_method
def test_a_method_equals_its_literal_twin(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    approx = run(name, target, qkv)
    band = entry_band(approx.operator, qkv, dtype)
    for row in range(qkv.h):
        twin = TWINS[name](one_head(qkv, row), budget(name), draws_of(approx, row), target)
        assert ((approx.operator.dense()[row].double() - twin).abs() <= band[row]).all()


@every_method
def test_a_method_takes_as_many_queries_as_keys_or_not(name, target):
    qkv = make(n=14, n_k=19)
    if get(name).square:
        with pytest.raises(Unsupported, match=f"{name}: 14 queries and 19 keys; it takes as many queries as keys"):
            run(name, target, qkv)
        return
    approx = run(name, target, qkv)
    assert approx.operator.shape == (2, 14, 19) and approx.output.shape == (2, 14, 5)
    band = entry_band(approx.operator, qkv, torch.float64)
    for row in range(qkv.h):
        twin = TWINS[name](one_head(qkv, row), budget(name), draws_of(approx, row), target)
        assert ((approx.operator.dense()[row] - twin).abs() <= band[row]).all()


@every_method
def test_the_scale_is_the_models_own(name, target):
    """Not p^-½, and not left out."""
    qkv = replace(make(n=14), scale=0.6)
    approx = run(name, target, qkv)
    band = entry_band(approx.operator, qkv, torch.float64)
    for row in range(qkv.h):
        twin = TWINS[name](one_head(qkv, row), budget(name), draws_of(approx, row), target)
        assert ((approx.operator.dense()[row] - twin).abs() <= band[row]).all()


@every_dtype
@every_score
@every_method
def test_the_output_is_the_operator_times_V(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    approx = run(name, target, qkv)
    assert approx.output.dtype == dtype
    wanted = approx.operator.dense().double() @ qkv.v.double()
    assert ((approx.output.double() - wanted).abs() <= output_band(approx, qkv, approx.operator.dtype)).all()


@every_dtype
@every_score
@every_method
def test_the_transpose_is_the_adjoint_and_rows_agree_with_products(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    operator = run(name, target, qkv).operator
    u, x = random_like((2, qkv.n_q, 3), "u"), random_like((2, qkv.n_k, 3), "x")
    band = entry_band(operator, qkv, operator.dtype)
    dense = operator.dense().double()
    assert (((operator @ x).double() - dense @ x).abs() <= band @ x.abs()).all()
    assert ((operator.rmatmul(u).double() - dense.mT @ u).abs() <= band.mT @ u.abs()).all()
    left, right = (u * (operator @ x).double()).sum(1), (operator.rmatmul(u).double() * x).sum(1)
    assert ((left - right).abs() <= 2 * (u.abs() * (band @ x.abs())).sum(1)).all()
    blocks = torch.cat([operator.rows(0, 7), operator.rows(7, 8), operator.rows(8, qkv.n_q)], 1)
    assert ((blocks.double() - dense).abs() <= band).all()
    assert ((operator.row_sums().double() - dense.sum(-1)).abs() <= band.sum(-1)).all()


@every_score
@every_method
def test_heads_in_a_batch_equal_heads_alone_under_their_original_numbers(name, target, score):
    whole = make(h=5, score=score)
    batch = whole.select([4, 1, 3])
    together = run(name, target, batch)
    band = entry_band(together.operator, batch, torch.float64)
    for row, head in enumerate((4, 1, 3)):
        alone = run(name, target, whole.select([head]))
        for key, value in alone.draws.items():
            assert torch.equal(value[0], together.draws[key][row])
        assert ((alone.operator.dense()[0] - together.operator.dense()[row]).abs() <= band[row]).all()
        for key, value in alone.diagnostics.items():
            assert value.shape == (1,) and together.diagnostics[key].shape == (3,)
            assert torch.allclose(value[0].double(), together.diagnostics[key][row].double(), atol=1e-9)


@every_method
def test_masked_equals_compressed_whatever_the_padding_holds(name, target):
    qkv = make(n=17)
    mask = torch.ones(17, dtype=torch.bool)
    mask[[0, 6, 7, 16]] = False
    noise = torch.where(mask[:, None], 0.0, 1e3).double()
    padded = QKV(qkv.q + noise, qkv.k + noise, qkv.v + noise, mask=mask)
    got, wanted = run(name, target, padded), run(name, target, padded.compressed())
    dense = got.operator.dense()
    assert torch.equal(dense[:, mask][:, :, mask], wanted.operator.dense())
    assert not dense[:, ~mask].any() and not dense[:, :, ~mask].any()
    assert torch.equal(got.output[:, mask], wanted.output) and not got.output[:, ~mask].any()
    x = random_like((2, 17, 3), "x")
    band = 1e-13 * dense.abs() @ x.abs() + entry_band(got.operator, padded, torch.float64) @ x.abs()
    assert ((got.operator @ x - dense @ x).abs() <= band).all()
    u = random_like((2, 17, 3), "u")
    assert (got.operator.rmatmul(u) - dense.mT @ u).abs().max() <= 1e-9 and not got.operator.rmatmul(u)[:, ~mask].any()


@every_method
def test_inputs_and_global_randomness_stay_untouched(name, target):
    qkv = make()
    before = [x.clone() for x in (qkv.q, qkv.k, qkv.v)]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    run(name, target, qkv)
    assert all(torch.equal(a, b) for a, b in zip(before, (qkv.q, qkv.k, qkv.v), strict=True))
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all() and states[2] == random.getstate()


@every_method
def test_a_seed_fixes_the_draws_and_another_seed_layer_window_or_method_changes_them(name, target):
    qkv = make(n=40)
    approx = run(name, target, qkv, d=20, seed=3)
    again = run(name, target, qkv, d=20, seed=3)
    assert torch.equal(approx.output, again.output) and approx.draws_hash() == again.draws_hash()
    if get(name).claims("deterministic", target):
        assert approx.draws_hash() is None
        return
    others = [run(name, target, qkv, d=20, seed=4).draws_hash()]
    for label in ({"layer": 1}, {"window": 1}, {"layer": "encoder.1"}):
        others.append(run(name, target, replace(qkv, label=label), d=20, seed=3).draws_hash())
    assert len({approx.draws_hash(), *others}) == 5
    first = next(iter(approx.draws.values()))
    assert not torch.equal(first[0], first[1])  # heads draw on their own


@every_method
def test_draws_depend_on_neither_dtype_nor_target_nor_values(name, target):
    qkv = make()
    wanted = run(name, target, qkv).draws_hash()
    assert run(name, target, qkv.to(dtype=torch.float32)).draws_hash() == wanted
    for other in get(name).targets:
        assert run(name, other, qkv).draws_hash() == wanted
    if not get(name).claims("uses_values", target):
        assert run(name, target, replace(qkv, v=-qkv.v)).draws_hash() == wanted


@every_method
def test_the_hash_of_the_draws_is_sha256_of_their_names_shapes_and_bytes(name, target):
    approx = run(name, target, make())
    digest = hashlib.sha256()
    for key in sorted(approx.draws):
        value = approx.draws[key]
        digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode() + value.numpy().tobytes())
    assert approx.draws_hash() == (digest.hexdigest()[:16] if approx.draws else None)


@every_score
@every_method
def test_float32_agrees_with_float64(name, target, score):
    qkv = make(score=score)
    exact, single = run(name, target, qkv), run(name, target, qkv.to(dtype=torch.float32))
    band = output_band(single, qkv.to(dtype=torch.float32), single.operator.dtype)
    assert ((single.output.double() - exact.output).abs() <= band).all()


@every_dtype
@every_method
@pytest.mark.parametrize("top", [200.0, 700.0, 2000.0, 2e4])
def test_large_scores_give_finite_outputs_or_counted_rows(name, target, dtype, top):
    qkv = reaching(top, dtype=dtype)
    approx = run(name, target, qkv)
    lost = (~torch.isfinite(approx.output)).any(-1).sum(-1)
    assert (lost <= approx.diagnostics["bad_rows"]).all()
    if name != "skyformer":
        assert not lost.any()


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_runs_and_lies_near(name, target, dtype):
    qkv = make(score=0.25, dtype=dtype)
    approx = run(name, target, qkv)
    wanted = run(name, target, qkv.to(dtype=torch.float64)).output
    assert approx.output.dtype == dtype and torch.isfinite(approx.output).all()
    # scores of at most 4 lose 4 eps, an inverse with ridge 0.1 amplifies by at most 10: 40 eps, and 2 for its sums
    assert ((approx.output.double() - wanted).norm(dim=(1, 2)) <= 80 * eps(dtype) * wanted.norm(dim=(1, 2))).all()


@every_dtype
@every_score
@claiming("deterministic")
def test_deterministic_methods_ignore_the_seed(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    assert torch.equal(run(name, target, qkv, seed=0).output, run(name, target, qkv, seed=1).output)


@every_dtype
@every_score
@claiming("row_sums_one")
def test_rows_sum_to_one(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    operator = run(name, target, qkv).operator
    band = entry_band(operator, qkv, operator.dtype).sum(-1)
    assert ((operator.dense().double().sum(-1) - 1).abs() <= band).all()


@every_dtype
@every_score
@claiming("nonnegative")
def test_no_entry_is_negative(name, target, score, dtype):
    assert (run(name, target, make(score=score, dtype=dtype)).operator.dense() >= 0).all()


@every_dtype
@every_score
@claiming("exact_at_full_budget")
@pytest.mark.parametrize("n", [9, 20])
def test_the_full_budget_is_exact(name, target, score, dtype, n):
    qkv = make(n=n, score=score, dtype=dtype)
    d, options = get(name).exact_at(n)
    approx = run(name, target, qkv, d=d, **options)
    band = entry_band(approx.operator, qkv, approx.operator.dtype)
    for row in range(qkv.h):
        wanted = exact_twin(one_head(qkv, row), target)
        assert ((approx.operator.dense()[row].double() - wanted).abs() <= band[row]).all()


@every_dtype
@every_score
@claiming("permutation_equivariant")
def test_permuting_the_tokens_and_the_drawn_indices_permutes_the_operator(name, target, score, dtype):
    """The permuted run draws its own indices; the twin of the unpermuted tokens takes them under their old numbers."""
    qkv = make(score=score, dtype=dtype)
    order = torch.randperm(qkv.n, generator=generator(0, "order"))
    moved = run(name, target, permuted(qkv, order))
    band = entry_band(moved.operator, qkv, dtype)
    for row in range(qkv.h):
        draws = renamed(draws_of(moved, row), order)
        wanted = TWINS[name](one_head(qkv, row), budget(name), draws, target)[order][:, order]
        assert ((moved.operator.dense()[row].double() - wanted).abs() <= band[row]).all()


def test_segments_are_not_permutation_equivariant():
    """The negative control: the test above would notice."""
    qkv = make()
    order = torch.randperm(qkv.n, generator=generator(0, "order"))
    assert not get("nystromformer").claims("permutation_equivariant", "softmax")
    still = run("nystromformer", "softmax", qkv).operator.dense()[:, order][:, :, order]
    assert (run("nystromformer", "softmax", permuted(qkv, order)).operator.dense() - still).abs().max() > 1e-2


def shifted(qkv):
    return replace(qkv, k=qkv.k + random_like((qkv.h, 1, qkv.p), "shift").to(qkv.dtype))


@every_dtype
@every_score
@claiming("shift_invariant")
def test_a_vector_added_to_every_key_changes_nothing(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    after = shifted(qkv)
    before, moved = run(name, target, qkv), run(name, target, after)
    # the shifted keys are rounded too: one more eps of a score, within the factor's 4 (p + 4) G
    band = entry_band(moved.operator, after, dtype) + entry_band(before.operator, qkv, dtype)
    assert ((before.operator.dense().double() - moved.operator.dense().double()).abs() <= band).all()


@pytest.mark.parametrize(
    "name, target", [("skyformer", "softmax"), ("skyformer", "gaussian"), ("kernelized", "gaussian")]
)
def test_the_lifted_kernel_is_not_shift_invariant(name, target):
    """The negative control."""
    assert not get(name).claims("shift_invariant", target)
    qkv = make()
    change = run(name, target, qkv).operator.dense() - run(name, target, shifted(qkv)).operator.dense()
    assert change.abs().max() > 1e-2


@every_dtype
@every_score
@claiming("psd_below")
def test_the_lifted_approximation_lies_between_zero_and_the_lifted_kernel(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    approx = run(name, target, qkv)
    for row in range(qkv.h):
        middle = approx.inverses["core"][row]
        kernel, below = skyformer_lifted(one_head(qkv, row), approx.draws["indices"][row], middle)
        # the eigenvalues of a matrix of norm |C̄| move by its rounding; C̄~ has that of its factors
        band = eps(torch.float64) * factor_of(qkv) * float(kernel.norm() ** 2 * middle.norm())
        assert torch.linalg.eigvalsh(kernel - below).min() >= -band
        assert torch.linalg.eigvalsh((below + below.T) / 2).min() >= -band
        n = qkv.n_q
        ours = approx.operator.dense()[row].double()
        assert ((ours - below[:n, n:]).abs() <= entry_band(approx.operator, qkv, dtype)[row]).all()


@every_method
def test_only_methods_that_say_so_look_at_the_values(name, target):
    qkv = make()
    other = replace(qkv, v=qkv.v.flip(1) * torch.linspace(0.1, 3, qkv.n_k, dtype=torch.float64)[:, None])
    same = torch.equal(run(name, target, qkv).operator.dense(), run(name, target, other).operator.dense())
    assert same != get(name).claims("uses_values", target)


@every_method
def test_diagnostics_are_numbers_per_head(name, target):
    approx = run(name, target, make(h=3))
    assert {"visited", "bad_rows"} <= set(approx.diagnostics)
    assert all(value.shape == (3,) for value in approx.diagnostics.values())
    if get(name).budget is not None:
        assert (approx.diagnostics["realised_d"] <= budget(name)).all() and (
            approx.diagnostics["realised_d"] >= 1
        ).all()
    if get(name).claims("diagnostic", target):
        assert (approx.diagnostics["visited"] >= 20 * 20).all()


@every_method
def test_the_magnitude_of_the_bands_is_at_least_the_operator(name, target):
    """The bands' own check: no entry is larger than the norms that it is made of."""
    operator = run(name, target, make()).operator
    assert (magnitude(operator) * (1 + 1e-12) >= operator.dense().abs()).all()


@every_method
def test_an_impossible_budget_is_refused_with_its_value_and_the_way_out(name, target):
    entry = get(name)
    qkv = make(n=12 if entry.square else 10, n_k=12)
    if entry.budget is None:
        one, other = approximate(name, qkv, 10**6, target=target), approximate(name, qkv, target=target)
        assert torch.equal(one.output, other.output)
        return
    limit = entry.limit(qkv.n_q, 12)
    for d in (0, -3, entry.least - 1, limit + 1):
        with pytest.raises(Unsupported, match=rf"{name}: d={d} .*choose d in {entry.least}\.\.{limit}$"):
            approximate(name, qkv, d, target=target)
    for d in (None, 2.5, True):
        with pytest.raises(UsageError, match=name):
            approximate(name, qkv, d, target=target)
    for d in (entry.least, limit):
        assert torch.isfinite(approximate(name, qkv, d, target=target).output).all()


@every_method
def test_the_budget_counts_valid_tokens_only(name, target):
    entry, qkv = get(name), make(n=10)
    if entry.budget is None or entry.limit(4, 4) == entry.limit(10, 10):  # random features are not tokens
        return
    mask = torch.arange(10) < 4
    with pytest.raises(Unsupported, match=f"choose d in {entry.least}..{entry.limit(4, 4)}$"):
        approximate(name, replace(qkv, mask=mask), entry.limit(10, 10), target=target)


@every_method
def test_unknown_options_and_targets_are_refused(name, target):
    with pytest.raises(UsageError, match=f"{name}.*bogus"):
        run(name, target, make(), bogus=1)
    with pytest.raises(
        Unsupported, match=f"{name} does not take target=sigmoid; it takes {', '.join(get(name).targets)}"
    ):
        run(name, "sigmoid", make())


@every_method
def test_every_choice_of_every_option_runs_or_is_refused_by_name(name, target):
    qkv = make(n=12)
    for option in get(name).options.values():
        for value in option.choices or ():
            try:
                approx = run(name, target, qkv, **{option.name: value})
            except UsageError as refusal:
                assert name in str(refusal)
            else:
                assert approx.output.shape == (2, 12, 5)
        with pytest.raises(UsageError, match=option.name):
            run(name, target, qkv, **{option.name: "bogus"})
