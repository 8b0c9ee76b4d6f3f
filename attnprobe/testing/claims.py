"""The properties behind the tags of methods; each applies to methods with the tag."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..errors import Unsupported, UsageError
from ..methods import TAGS
from ..qkv import QKV
from ..reference import exact, exact_output
from ..rng import generator
from .bands import eps
from .cases import Case, Skip, demand, half_the_digits, in_kit, permuted, reaching
from .properties import TOPS, scaled

MANY = 50  # seeds in which V may decide a draw


def claim(tag: str, **where: Any) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a property for methods with ``tag``."""
    return in_kit(tag.replace("_", "-"), TAGS[tag], tag=tag, **where)


@claim("deterministic")
def deterministic(case: Case) -> None:
    qkv = case.qkv()
    same = torch.equal(case.run(qkv, seed=0).output, case.run(qkv, seed=1).output)
    demand(same, "another seed gives another output")


@claim("row_sums_one")
def row_sums_one(case: Case) -> None:
    """Also with the least budget, the method's defaults and a causal mask, where a row may be without a key."""
    _rows_sum_to_one(case, case.qkv())
    methods, budgets = (case.method, replace(case.method, small={})), (case.method.least, case.budget or 0)
    for method, d, causal in product(methods, budgets, (False, True)):
        other = case.with_(method=method, d=d)
        with suppress(UsageError):  # not every method takes a mask, or few tokens with its defaults
            _rows_sum_to_one(other, other.qkv().replace(causal=causal))


def _rows_sum_to_one(case: Case, qkv: QKV) -> None:
    approx = case.run(qkv)
    if approx.operator is None:  # the output for a V of ones
        ones = qkv.replace(v=torch.ones_like(qkv.v))
        approx = case.run(ones)
        case.near(approx.output, torch.ones_like(approx.output), case.output_band(approx, ones), "row sums and 1")
        return
    sums = approx.operator.dense().double().sum(-1, keepdim=True)
    case.near(sums, torch.ones_like(sums), case.band(approx, qkv).sum(-1, keepdim=True), "row sums and 1")


@claim("nonnegative")
def nonnegative(case: Case) -> None:
    least = float(case.operator(case.run()).dense().min())
    demand(least >= 0, f"the smallest entry is {least:.3g}")


@claim("vanishing_normaliser", scores=(1.0,))
def vanishing_normaliser(case: Case) -> None:
    sizes = {"h": case.h, "n": case.n, "p": case.p, "p_v": case.p_v, "dtype": case.dtype, "seed": case.seed}
    bad = [case.run(reaching(top, **sizes)).diagnostics["bad_rows"].any() for top in TOPS]
    demand(any(bad), f"no row is bad at scores up to {TOPS[-1]:g}: drop the tag")


@claim("uses_values", scores=(1.0,), dtypes=(torch.float64,))
def uses_values(case: Case) -> None:
    qkv = case.qkv()
    weights = torch.linspace(0.1, 3, qkv.n_k, dtype=torch.float64)[:, None]
    other = qkv.replace(v=qkv.v.flip(1) * weights)

    def matrix(x: QKV, seed: int) -> Tensor:
        return case.operator(case.run(x, seed=seed)).dense()

    # a draw may come out alike by chance for one seed
    moved = any(not torch.equal(matrix(qkv, seed), matrix(other, seed)) for seed in range(MANY))
    demand(moved, "another V gives the same matrix: drop the tag")


@claim("exact_at_full_budget")
def exact_at_full_budget(case: Case) -> None:
    qkv = case.qkv()
    assert case.method.exact_at is not None  # the registry holds the tag to it
    d, options = case.method.exact_at(case.n)
    approx = case.run(qkv, d=d, **options)
    if approx.operator is None:
        expected = exact_output(qkv, case.target)
        case.near(approx.output, expected, case.output_band(approx, qkv), f"at d={d} against exact attention")
        return
    expected = exact(qkv.to(dtype=torch.float64), case.target).dense()
    case.near(approx.operator.dense(), expected, case.band(approx, qkv), f"at d={d} against exact attention")


@claim("biases", dtypes=(torch.float64,))
def biases(case: Case) -> None:
    """A number added to all scores of a row cancels; at full budget a bias and a cap are those of exact attention."""
    qkv = case.qkv()
    same = qkv.replace(bias=case.random(qkv.h, qkv.n_q, 1).to(qkv.dtype).expand(-1, -1, qkv.n_k))
    plain = case.run(qkv).output
    band = half_the_digits(plain, qkv.dtype)
    case.near(case.run(same).output, plain, band, "with a number added to all scores of a row")
    if case.method.exact_at is None:
        return
    d, options = case.method.exact_at(case.n)
    capped = qkv.replace(bias=case.random(qkv.h, qkv.n_q, qkv.n_k).to(qkv.dtype), softcap=2.0)
    expected = exact_output(capped, case.target)
    band = half_the_digits(expected, qkv.dtype)
    case.near(case.run(capped, d=d, **options).output, expected, band, f"at d={d} with a bias and a cap")


@claim("shift_invariant")
def shift_invariant(case: Case) -> None:
    qkv = case.qkv()
    after = qkv.replace(k=qkv.k + case.random(qkv.h, 1, qkv.p).to(qkv.dtype))
    before, moved = case.run(qkv), case.run(after)
    dtype = max(case.dtype, case.operator(moved).dtype, key=eps)
    # the shifted keys are rounded too: one more eps of a score, within the factor's 4 (p + 4) G
    band = case.band(moved, after, dtype) + case.band(before, qkv, dtype)
    case.near(moved.matrix().dense(), before.matrix().dense(), band, "with a vector added to every key")


@claim("permutation_equivariant")
def permutation_equivariant(case: Case) -> None:
    if not case.method.claims("deterministic", case.target):
        raise Skip("it draws, and permuted tokens get other draws")
    qkv = case.qkv()
    order = torch.randperm(qkv.n, generator=generator(case.seed, "order"))
    moved, still = case.run(permuted(qkv, order)), case.run(qkv)
    if moved.operator is None:
        case.near(moved.output, still.output[:, order], case.output_band(still, qkv)[:, order], "permuted tokens")
        return
    dtype = max(case.dtype, moved.operator.dtype, key=eps)
    expected, band = (x[:, order][:, :, order] for x in (still.matrix().dense(), case.band(still, qkv, dtype)))
    case.near(moved.operator.dense(), expected, band, "permuted tokens")


@claim("own_scale", scores=(1.0,), dtypes=(torch.float64,))
def own_scale(case: Case) -> None:
    _, ours, other = scaled(case)
    demand(not torch.allclose(ours.output, other.output), "it is a function of the scores: drop the tag")


@claim("causal", scores=(1.0,))
def causal(case: Case) -> None:
    qkv = case.qkv().replace(causal=True)
    approx = case.run(qkv)
    demand(torch.isfinite(approx.output).all(), "the output of causal Q, K, V is not finite")
    # larger and smaller than the past: whatever a method chooses by size among all tokens moves with one of both
    for first, size in product((qkv.n // 2, qkv.n - 1), (8.0, 0.125)):
        other = case.run(_with_future(case, qkv, first, size))
        demand(
            torch.equal(other.output[:, :first], approx.output[:, :first]),
            f"other tokens from {first} on change the rows before them; hide the keys that qkv.visible hides",
        )
    if approx.operator is not None:
        ahead = approx.operator.dense().triu(1)
        demand(not ahead.any(), f"an entry ahead of its row is {float(ahead.abs().max()):.3g}")


@in_kit("causal-rows", "some queries of causal Q, K, V get the rows of all of them", tag="causal", scores=(1.0,))
def causal_rows(case: Case) -> None:
    qkv = case.qkv().replace(causal=True)
    all_rows = case.run(qkv)
    # the last tokens, as in decoding, and scattered ones
    for index in (torch.arange(qkv.n - 3, qkv.n), torch.tensor([1, 2, qkv.n // 2, qkv.n - 1])):
        part = qkv.queries(index)
        try:
            rows = case.run(part)
        except Unsupported as error:
            # a refusal is honest; only other numbers are a fault
            raise Skip(f"it takes all queries of a text or none: {error}") from error
        band = case.output_band(all_rows, qkv)[:, index]
        case.near(
            rows.output,
            all_rows.output[:, index],
            band,
            f"queries {index.tolist()} alone (read their places from qkv.query_positions)",
        )


@claim("decodes", scores=(1.0,))
def decodes(case: Case) -> None:
    if not case.method.is_causal:
        return _reads_prompt(case)
    qkv = case.qkv().replace(causal=True)
    all_rows, least = case.run(qkv), case.budget or 1
    # the first step is the earliest token that has d keys before it
    for step in sorted({min(least, qkv.n - 1), qkv.n // 2, qkv.n - 1}):
        seen = slice(0, step + 1)
        last_query = qkv.replace(q=qkv.q[:, step : step + 1], k=qkv.k[:, seen], v=qkv.v[:, seen])
        band = case.output_band(all_rows, qkv)[:, step : step + 1]
        case.near(
            case.run(last_query, d=_affordable(case, step + 1)).output,
            all_rows.output[:, step : step + 1],
            band,
            f"decoding at token {step}",
        )


def _reads_prompt(case: Case) -> None:
    """Of a policy without a causal form: each query behind a prompt has its own result, and a normaliser."""
    qkv = case.qkv()
    all_rows = case.run(qkv)
    demand(all_rows.log_normalizer is not None, "no log_normalizer, by which the prompt and new tokens are joined")
    for step in (0, qkv.n - 1):
        at = slice(step, step + 1)
        alone = case.run(qkv.replace(q=qkv.q[:, at]))
        band = case.output_band(all_rows, qkv)[:, at]
        case.near(alone.output, all_rows.output[:, at], band, f"query {step} alone, behind the same keys")


@claim("local", scores=(1.0,))
def local(case: Case) -> None:
    for causal in [True, False] if "causal" in case.method.tags else [False]:
        # inputs have sinks only if they are causal
        qkv = case.qkv().replace(causal=causal, sliding_window=case.n // 3, sinks=int(causal))
        approx = case.run(qkv)
        demand(torch.isfinite(approx.output).all(), "the output with a sliding window is not finite")
        assert qkv.visible is not None
        outside = case.operator(approx).dense().masked_select(qkv.visible.hidden(qkv.n_k))
        demand(not outside.any(), "a key outside of the sliding window has weight")


@claim("prefill", scores=(1.0,))
def prefill(case: Case) -> None:
    _looks_back(case)


@claim("whole_scale", scores=(1.0,))
def whole_scale(case: Case) -> None:
    _looks_back(case)


def _looks_back(case: Case) -> None:
    qkv = case.qkv().replace(causal=True)
    approx = case.run(qkv)
    demand(torch.isfinite(approx.output).all(), "the output of causal Q, K, V is not finite")
    ahead = case.operator(approx).dense().triu(1)
    demand(not ahead.any(), f"an entry ahead of its row is {float(ahead.abs().max()):.3g}")


def _with_future(case: Case, qkv: QKV, first: int, size: float) -> QKV:
    """Other queries, keys and values from token ``first`` on, ``size`` times as large as normal numbers."""
    later = [x.clone() for x in (qkv.q, qkv.k, qkv.v)]
    for x in later:
        x[:, first:] = size * case.random(*x[:, first:].shape).to(x.dtype)
    q, k, v = later
    return qkv.replace(q=q, k=k, v=v)


def _affordable(case: Case, n_k: int) -> int | None:
    """The budget of the case, or the largest one that the method takes for one query and ``n_k`` keys."""
    if case.budget is None or case.method.limit is None:
        return case.budget
    return int(min(case.budget, case.method.limit(1, n_k)))


@claim("causal_target", scores=(1.0,))
def causal_target(case: Case) -> None:
    qkv = case.qkv().replace(causal=True)
    demand(case.run(qkv).output.shape == (qkv.h, qkv.n_q, qkv.p_v), "it does not take causal Q, K, V")


@claim("diagnostic", scores=(1.0,), dtypes=(torch.float64,))
def diagnostic(case: Case) -> None:
    visited = case.run().diagnostics.get("visited")
    if visited is None:
        raise Skip("it does not count the entries that it visits")
    demand((visited >= case.n * case.n).all(), f"it visits {visited.tolist()} entries, fewer than n²")


@claim("psd_below", scores=(1.0,), dtypes=(torch.float64,))
def psd_below(case: Case) -> None:
    raise Skip("proved of the built-in methods by the project's own tests, from their cores")
