"""What every registered method must do: each tag proved, at score scale 6 in float64 and at 1 in float32.

Large scores show what a method does to small weights, and float64 shows it to 1e-13. Scores of order one have the
narrowest bands in float32. `test_large_scores.py` has large scores in float32.

Bands are `inputs.entry_band` and `inputs.output_band`: eps times the norms that the computation passes through. They
are worst-case bounds; typical errors are 100 times smaller.
"""

import hashlib

import pytest
import torch
from inputs import (
    DTYPES,
    PRECISIONS,
    SCORES,
    assert_twin,
    draws_of,
    entry_band,
    eps,
    factor_of,
    magnitude,
    make,
    one_head,
    permuted,
)
from thinned import others_slow
from twins import TWINS, skyformer_lifted
from twins import exact as exact_twin

from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, TAGS, approximate, get
from attnprobe.rng import generator
from attnprobe.testing import PROPERTIES, Case

BUDGET = 6
CASES = [(name, target) for name, entry in METHODS.items() for target in entry.targets if entry.kind != "user"]
every_method = pytest.mark.parametrize("name, target", CASES)
every_score = pytest.mark.parametrize("score", SCORES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
# what holds in float64 holds in float32, which test_float32_agrees_with_float64 compares with it
in_float64 = pytest.mark.parametrize(
    "score, dtype", others_slow(PRECISIONS, lambda case: case[1] == torch.float64), ids=["float64", "float32"]
)
# limits of the exponent, which float32 meets first
of_float32 = pytest.mark.parametrize(
    "dtype", others_slow(DTYPES, lambda dtype: dtype[0] == torch.float32), ids=lambda dtype: str(dtype)[6:]
)
every_precision = pytest.mark.parametrize("score, dtype", PRECISIONS, ids=["float64", "float32"])


def claiming(tag):
    """Every (method, target) that claims ``tag``; an empty list would be a tag without a proof."""
    cases = [case for case in CASES if get(case[0]).claims(tag, case[1])]
    assert cases or tag == "uses_values", tag
    return pytest.mark.parametrize("name, target", cases)


def budget(name):
    return max(BUDGET, get(name).least)


def run(name, target, qkv, d=None, **options):
    d = budget(name) if d is None else d
    options = {**get(name).small, **options}
    return approximate(name, qkv, None if get(name).budget is None else d, target=target, **options)


def proved(which, name, target, **case):
    """The conformance kit's own proof of a property; where the kit would skip, this fails."""
    PROPERTIES[which].hold(Case(get(name), target, **case))


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
        "deterministic",
        "row_sums_one",
        "nonnegative",
        "uses_values",
        "exact_at_full_budget",
        "permutation_equivariant",
        "shift_invariant",
        "psd_below",
        "own_scale",
        "diagnostic",
        "vanishing_normaliser",  # in test_check and test_skyformer
        "causal",
        "causal_target",  # in test_causal
        "prefill",  # by the conformance kit
        "whole_scale",  # by the conformance kit
        "decodes",  # by the conformance kit
        "local",  # in test_visible
        "biases",  # in test_biases, too
    }
    assert proved == set(TAGS)


@in_float64
@every_method
def test_a_method_equals_its_literal_twin(name, target, score, dtype):
    qkv = make(score=score, dtype=dtype)
    approx = run(name, target, qkv)
    assert_twin(approx, qkv, TWINS[name], budget(name), target)


@every_method
def test_a_method_takes_as_many_queries_as_keys_or_not(name, target):
    qkv = make(n=14, n_k=19)
    if get(name).square:
        with pytest.raises(Unsupported, match=f"{name}: 14 queries and 19 keys; it takes as many queries as keys"):
            run(name, target, qkv)
        return
    approx = run(name, target, qkv)
    assert approx.operator.shape == (2, 14, 19) and approx.output.shape == (2, 14, 5)
    assert_twin(approx, qkv, TWINS[name], budget(name), target)


@every_method
def test_the_scale_is_the_models_own(name, target):
    """Not p^-½, and not left out."""
    qkv = make(n=14).replace(scale=0.6)
    approx = run(name, target, qkv)
    assert_twin(approx, qkv, TWINS[name], budget(name), target)


@in_float64
@every_method
def test_the_output_is_the_operator_times_V(name, target, score, dtype):
    proved("operator", name, target, score=score, dtype=dtype)


@in_float64
@every_method
def test_the_transpose_is_the_adjoint_and_rows_agree_with_products(name, target, score, dtype):
    proved("adjoint", name, target, score=score, dtype=dtype)


@every_score
@every_method
def test_heads_in_a_batch_equal_heads_alone_under_their_original_numbers(name, target, score):
    proved("heads", name, target, score=score, h=3)


@every_method
def test_masked_equals_compressed_whatever_the_padding_holds(name, target):
    proved("padding", name, target, n=17)


@every_method
def test_inputs_and_global_randomness_stay_untouched(name, target):
    proved("inputs", name, target)


@every_method
def test_a_seed_fixes_the_draws_and_another_seed_layer_window_or_method_changes_them(name, target):
    qkv = make(n=64)
    approx = run(name, target, qkv, d=20, seed=3)
    again = run(name, target, qkv, d=20, seed=3)
    assert torch.equal(approx.output, again.output) and approx.draws_hash() == again.draws_hash()
    if get(name).claims("deterministic", target):
        assert approx.draws_hash() is None
        return
    others = [run(name, target, qkv, d=20, seed=4).draws_hash()]
    for label in ({"layer": 1}, {"window": 1}, {"layer": "encoder.1"}):
        others.append(run(name, target, qkv.replace(label=label), d=20, seed=3).draws_hash())
    assert len({approx.draws_hash(), *others}) == 5
    first = next(iter(approx.draws.values()))
    assert not torch.equal(first[0], first[1])  # heads draw on their own


@every_method
def test_draws_depend_on_neither_dtype_nor_target_nor_values(name, target):
    qkv = make()
    expected = run(name, target, qkv).draws_hash()
    assert run(name, target, qkv.to(dtype=torch.float32)).draws_hash() == expected
    for other in get(name).targets:
        assert run(name, other, qkv).draws_hash() == expected
    if not get(name).claims("uses_values", target):
        assert run(name, target, qkv.replace(v=-qkv.v)).draws_hash() == expected


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
    proved("float32", name, target, score=score, dtype=torch.float32)


@of_float32
@every_method
def test_large_scores_give_finite_outputs_or_counted_rows(name, target, dtype):
    proved("large-scores", name, target, dtype=dtype)


@of_float32
@every_method
def test_rows_of_low_scores_are_finite_and_sum_to_one(name, target, dtype):
    proved("low-scores", name, target, dtype=dtype)


@of_float32
@claiming("row_sums_one")
def test_a_row_that_sees_one_key_has_its_value(name, target, dtype):
    proved("one-key", name, target, dtype=dtype)


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_runs_and_lies_near(name, target, dtype):
    proved("half-precision", name, target, score=0.25, dtype=dtype)


@in_float64
@claiming("deterministic")
def test_deterministic_methods_ignore_the_seed(name, target, score, dtype):
    proved("deterministic", name, target, score=score, dtype=dtype)


@in_float64
@claiming("row_sums_one")
def test_rows_sum_to_one(name, target, score, dtype):
    proved("row-sums-one", name, target, score=score, dtype=dtype)


@in_float64
@claiming("nonnegative")
def test_no_entry_is_negative(name, target, score, dtype):
    proved("nonnegative", name, target, score=score, dtype=dtype)


@in_float64
@claiming("exact_at_full_budget")
@pytest.mark.parametrize("n", [9, 20])
def test_the_full_budget_is_exact(name, target, score, dtype, n):
    qkv = make(n=n, score=score, dtype=dtype)
    d, options = get(name).exact_at(n)
    approx = run(name, target, qkv, d=d, **options)
    band = entry_band(approx.operator, qkv, approx.operator.dtype)
    for row in range(qkv.h):
        expected = exact_twin(one_head(qkv, row), target)
        assert ((approx.operator.dense()[row].double() - expected).abs() <= band[row]).all()


@in_float64
@claiming("permutation_equivariant")
def test_permuting_the_tokens_and_the_drawn_indices_permutes_the_operator(name, target, score, dtype):
    """The permuted run draws its own indices; the twin of the unpermuted tokens takes them under their old numbers."""
    qkv = make(score=score, dtype=dtype)
    order = torch.randperm(qkv.n, generator=generator(0, "order"))
    moved = run(name, target, permuted(qkv, order))
    band = entry_band(moved.operator, qkv, dtype)
    for row in range(qkv.h):
        draws = renamed(draws_of(moved, row), order)
        expected = TWINS[name](one_head(qkv, row), budget(name), draws, target)[order][:, order]
        assert ((moved.operator.dense()[row].double() - expected).abs() <= band[row]).all()


def test_segments_are_not_permutation_equivariant():
    """The negative control: the test above would notice."""
    qkv = make()
    order = torch.randperm(qkv.n, generator=generator(0, "order"))
    assert not get("nystromformer").claims("permutation_equivariant", "softmax")
    still = run("nystromformer", "softmax", qkv).operator.dense()[:, order][:, :, order]
    assert (run("nystromformer", "softmax", permuted(qkv, order)).operator.dense() - still).abs().max() > 1e-2


@claiming("biases")
def test_a_bias_is_that_of_exact_attention(name, target):
    if target == "gaussian":
        with pytest.raises(Unsupported, match="the target gaussian has no form for it"):
            proved("biases", name, target, dtype=torch.float64)
        return
    proved("biases", name, target, dtype=torch.float64)


def shifted(qkv):
    return qkv.replace(k=qkv.k + random_like((qkv.h, 1, qkv.p), "shift").to(qkv.dtype))


@every_precision
@claiming("shift_invariant")
def test_a_vector_added_to_every_key_changes_nothing(name, target, score, dtype):
    proved("shift-invariant", name, target, score=score, dtype=dtype)


@pytest.mark.parametrize(
    "name, target", [("skyformer", "softmax"), ("skyformer", "gaussian"), ("kernelized", "gaussian")]
)
def test_the_lifted_kernel_is_not_shift_invariant(name, target):
    """The negative control."""
    assert not get(name).claims("shift_invariant", target)
    qkv = make()
    change = run(name, target, qkv).operator.dense() - run(name, target, shifted(qkv)).operator.dense()
    assert change.abs().max() > 1e-2


@every_precision
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
    proved("uses-values" if get(name).claims("uses_values", target) else "linear", name, target)


@in_float64
@every_method
def test_the_matrix_is_one_of_scores_or_its_method_says_so(name, target, score, dtype):
    proved("own-scale" if get(name).claims("own_scale", target) else "scale", name, target, score=score, dtype=dtype)


@every_method
def test_more_budget_is_no_worse(name, target):
    if get(name).budget is not None:
        proved("budget", name, target)


@every_method
def test_diagnostics_are_numbers_per_head(name, target):
    proved("diagnostics", name, target, h=3)
    actual = run(name, target, make(h=3)).diagnostics
    assert {"visited", "bad_rows", *(() if get(name).budget is None else ("realised_d",))} <= set(actual)
    if get(name).claims("diagnostic", target):
        proved("diagnostic", name, target)


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
        with pytest.raises(UsageError, match=f"{name}|approximate: d=True; a number or None is needed"):
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
        approximate(name, qkv.replace(mask=mask), entry.limit(10, 10), target=target)


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
