"""The properties of every method, each a function of a `Case` that raises `Fault` if the property does not hold.

The project's own tests check every built-in method with the same functions.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..approximation import Approximation
from ..errors import Unsupported, UsageError
from ..operators import Operator
from ..operators.groups import repeated
from ..qkv import QKV
from ..reference import exact_output
from .bands import eps
from .cases import Case, Skip, demand, half_the_digits, in_kit, reaching

TOPS = (200.0, 700.0, 2000.0, 2e4)  # largest |score|; exp overflows above 88 in float32 and above 709 in float64
HALF = (torch.bfloat16, torch.float16)
LOW = (0.0, -5e4, -1e5)  # scores of all keys of a row
FIRST = 256.0  # the first coordinate of queries that have such scores; a power of two is exact in every dtype
SEEDS = range(5)


@in_kit(
    "shapes",
    "the output is (h, n_q, p_v) in the dtype of Q, K, V, also where queries are fewer than keys",
    scores=(1.0,),
)
def shapes(case: Case) -> None:
    # a method may refuse unequal numbers of queries and keys, never equal ones
    for n_k in dict.fromkeys((case.n, case.n + 3)):
        qkv = case.qkv(n_k=n_k)
        try:
            approx = case.run(qkv)
        except Unsupported:
            if n_k == case.n:
                raise
            continue
        expected = (qkv.h, qkv.n_q, qkv.p_v)
        demand(approx.output.shape == expected, f"the output is {tuple(approx.output.shape)}, not {expected}")
        demand(approx.output.dtype == qkv.dtype, f"the output is {approx.output.dtype}, not {qkv.dtype}")
        matrix = (qkv.h, qkv.n_q, qkv.n_k)
        demand(
            approx.operator is None or approx.operator.shape == matrix,
            f"the operator is {approx.operator!r}, not {matrix}",
        )


@in_kit("finite", "no value is lost at ordinary scores")
def finite(case: Case) -> None:
    lost = case.run().lost_rows()
    demand(not lost.any(), f"{int(lost.sum())} of {case.h * case.n} output rows are not finite")


@in_kit("large-scores", "scores up to 20000 give finite outputs, or rows that the method counts as bad", scores=(1.0,))
def large_scores(case: Case) -> None:
    for top in TOPS:
        qkv = reaching(top, h=case.h, n=case.n, p=case.p, p_v=case.p_v, dtype=case.dtype, seed=case.seed)
        approx = case.run(qkv)
        lost = approx.lost_rows()
        demand((lost <= approx.diagnostics["bad_rows"]).all(), f"rows are lost and not counted at scores of {top:g}")
        if not case.method.claims("vanishing_normaliser", case.target):
            demand(
                not lost.any(),
                f"{int(lost.sum())} of {case.h * case.n} output rows are not finite at scores of "
                f"{top:g}; subtract each row's largest score before exp",
            )


@in_kit(
    "low-scores",
    "rows whose scores are all near 0, -50000 or -100000, or equal, are finite, and sum to 1 if the method's rows do",
    scores=(1.0,),
)
def low_scores(case: Case) -> None:
    """A kernel whose mask or whose first largest score is a number such as -50000 makes such rows zero."""
    for score in LOW:
        for equal in (True, False):
            qkv = _near(case.qkv(), score, equal)
            where = f"where all scores are {'' if equal else 'near '}{score:g}"
            approx = case.run(qkv)
            lost = approx.lost_rows()
            demand((lost <= approx.diagnostics["bad_rows"]).all(), f"rows are lost and not counted {where}")
            # such a method loses rows by its nature; it must only count them
            if case.method.claims("vanishing_normaliser", case.target):
                continue
            demand(not lost.any(), f"{int(lost.sum())} of {case.h * case.n} output rows are not finite {where}")
            if _averages(case):
                ones = case.run(qkv.replace(v=torch.ones_like(qkv.v)))
                # what a method that quantises reads back of a value of 1, which need not be 1
                stored = _values(case, ones, qkv.replace(v=torch.ones_like(qkv.v)))[:, :1].expand_as(ones.output)
                case.near(ones.output, stored, half_the_digits(stored, case.dtype), f"row sums {where}")
            if equal and case.method.kind == "kernel":
                mean = qkv.v.double().mean(1, keepdim=True).expand_as(approx.output)
                case.near(approx.output, mean, half_the_digits(qkv.v, case.dtype), f"{where}, against the mean of V")


@in_kit("one-key", "a row that sees one key alone has its value, also at a score of -100000", scores=(1.0,))
def one_key(case: Case) -> None:
    """The only token that is no padding, the first row of a causal text, every row of a sliding window of one key."""
    if not _averages(case):
        raise Skip("its rows do not sum to 1")
    every, first = torch.ones(case.n, dtype=torch.bool), torch.arange(case.n) == 0
    scenes: list[tuple[dict[str, Any], torch.Tensor]] = [({"mask": first.flip(0)}, first.flip(0))]
    if case.method.claims("causal", case.target):
        scenes.append(({"causal": True}, first))
    if case.method.claims("local", case.target):
        causal = [True, False] if case.method.claims("causal", case.target) else [False]
        scenes += [({"sliding_window": 1, "causal": looks_back}, every) for looks_back in causal]
    for fields, alone in scenes:
        for score in LOW:
            qkv = _near(case.qkv().replace(**fields), score, equal=True)
            try:
                approx = case.run(qkv, d=case.budget and case.method.least if qkv.mask is not None else None)
            except UsageError:  # it takes no single token
                continue
            value = _values(case, approx, qkv)[:, alone if qkv.mask is None or approx.stored is None else slice(None)]
            text = f"a row that sees one key, of score {score:g}, against its value"
            case.near(approx.output[:, alone], value, half_the_digits(value, case.dtype), text)


def _values(case: Case, approx: Approximation, qkv: QKV) -> torch.Tensor:
    """The values that rows average, (h, n_k, p_v): V, or what a method that quantises it reads back.

    Raises:
        Skip: rows read the values of sets that are quantised one by one.
    """
    if approx.stored is not None:
        return repeated(approx.stored[1], qkv.h)
    if case.method.format is not None and approx.keys is not None:
        raise Skip("a row averages the values of its set, which is quantised alone")
    return qkv.v


def _averages(case: Case) -> bool:
    """Whether an output is an average of V: of a kernel, which is exact attention, and of rows that sum to 1."""
    return case.method.kind == "kernel" or case.method.claims("row_sums_one", case.target)


def _near(qkv: QKV, score: float, equal: bool) -> QKV:
    """Q, K and V whose scores are ``score`` plus those of their other coordinates, or all ``score``."""
    q, k = qkv.q.clone(), torch.zeros_like(qkv.k) if equal else qkv.k.clone()
    q[..., 0], k[..., 0] = FIRST, score / (FIRST * qkv.scale)
    return qkv.replace(q=q, k=k)


@in_kit("half-precision", "bfloat16 and float16 run, and lie near float64", scores=(0.25,), dtypes=HALF)
def half_precision(case: Case) -> None:
    qkv = case.qkv()
    approx, expected = case.run(qkv), case.run(qkv.to(dtype=torch.float64)).output
    demand(torch.isfinite(approx.output).all(), "the output is not finite")
    # scores of at most 4 lose 4 eps, an inverse with ridge 0.1 amplifies by at most 10: 40 eps, doubled for its sums
    error, size = ((approx.output.double() - expected).norm(dim=(1, 2)), expected.norm(dim=(1, 2)))
    demand(
        (error <= 80 * eps(case.dtype) * size).all(),
        f"off by {float((error / size).max()):.2g} of the float64 output, more than 80 eps",
    )


@in_kit("float32", "float32 agrees with float64 on the same numbers", dtypes=(torch.float32,))
def float32(case: Case) -> None:
    single = case.qkv()
    ours, expected = case.run(single), case.run(single.to(dtype=torch.float64))
    case.near(ours.output, expected.output, case.output_band(ours, single), "float32 against float64")


@in_kit("scale", "the model's scale is applied once: 2Q and 2K at scale s are Q and K at 4s")
def scale(case: Case) -> None:
    if case.method.claims("own_scale", case.target):
        raise Skip("it says own_scale: its matrix is no function of the scores")
    steeper, ours, other = scaled(case)
    case.compare(
        ours,
        other,
        steeper,
        "the scale is left out, fixed, or applied twice: Q and K at scale 4s against 2Q and 2K at s",
    )


def scaled(case: Case) -> tuple[QKV, Approximation, Approximation]:
    """Q and K at scale 4s, the result on them, and the result on 2Q and 2K at s. Factors of two are exact."""
    qkv = case.qkv()
    steeper = qkv.replace(scale=4 * qkv.scale)
    return steeper, case.run(steeper), case.run(qkv.replace(q=2 * qkv.q, k=2 * qkv.k))


@in_kit("deterministic-by-seed", "one seed gives one result, whatever torch's global generator is at", scores=(1.0,))
def by_seed(case: Case) -> None:
    qkv = case.qkv()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = case.run(qkv)
        torch.manual_seed(2)
        second = case.run(qkv)
    demand(
        # NaN differs from itself
        torch.equal(first.output, second.output) or not torch.isfinite(first.output).all(),
        "two runs with one seed differ: draw from the generator that the method is given",
    )
    demand(first.draws_hash() == second.draws_hash(), "two runs with one seed have different draws")


def _numpy_state() -> tuple[bytes, int]:
    """The key and the position of numpy's global generator."""
    state: dict[str, Any] = dict(np.random.get_state(legacy=False))["state"]
    return state["key"].tobytes(), state["pos"]


@in_kit(
    "inputs",
    "Q, K, V and global random states are left as they are",
    scores=(1.0,),
    dtypes=(torch.float64,),
)
def inputs(case: Case) -> None:
    qkv = case.qkv()
    before = [x.clone() for x in (qkv.q, qkv.k, qkv.v)]
    states = torch.get_rng_state(), _numpy_state(), random.getstate()
    case.run(qkv)
    for axis, a, b in zip("qkv", before, (qkv.q, qkv.k, qkv.v), strict=True):
        demand(torch.equal(a, b), f"it writes into {axis}")
    demand(torch.equal(states[0], torch.get_rng_state()), "it moves torch's global generator on")
    demand(states[1] == _numpy_state(), "it moves numpy's global generator on")
    demand(states[2] == random.getstate(), "it moves Python's global generator on")


@in_kit("heads", "heads in a batch equal heads alone, under their original numbers", dtypes=(torch.float64,))
def heads(case: Case) -> None:
    every = case.qkv(h=case.h + 3)
    # neither ascending nor in a row: a method that draws by the row and not by the head's number is found
    order = [case.h + 2, 1, *range(3, case.h + 2)][: max(2, case.h)]
    batch = every.select(order)
    together = case.run(batch)
    for row, head in enumerate(order):
        alone = case.run(every.select([head]))
        for key, value in alone.draws.items():
            demand(torch.equal(value[0], together.draws[key][row]), f"head {head} draws other {key} alone")
        in_batch = replace(
            together,
            output=together.output[row : row + 1],
            operator=together.operator and together.operator.heads(slice(row, row + 1)),
        )
        case.compare(in_batch, alone, every.select([head]), f"head {head} in a batch against alone")
        for key, value in alone.diagnostics.items():
            other = together.diagnostics[key]
            demand(value.shape == (1,) and other.shape == (len(order),), f"{key} is not one number a head")
            demand(torch.allclose(value[0].double(), other[row].double(), atol=1e-9), f"{key} of head {head} differs")


@in_kit(
    "padding", "padded tokens have no influence, and rows and columns of zeros", scores=(1.0,), dtypes=(torch.float64,)
)
def padding(case: Case) -> None:
    if case.n < 2:
        raise Skip("one token has no padding beside it")
    mask = torch.ones(case.n, dtype=torch.bool)
    # at both ends, and two tokens in the middle
    mask[[0, case.n // 3, case.n // 3 + 1, case.n - 1] if case.n > 8 else [case.n - 1]] = False
    plain = case.qkv()
    # large, so that padding that is read shows
    noise = torch.where(mask[:, None], 0.0, 1e3).to(plain.dtype)
    padded = QKV(plain.q + noise, plain.k + noise, plain.v + noise, mask=mask)
    got, expected = case.run(padded), case.run(padded.compressed())
    if case.method.takes_mask:  # its products may be in another order
        case.near(
            got.output[:, mask], expected.output, case.output_band(expected, padded), "with padding against without"
        )
    else:
        demand(torch.equal(got.output[:, mask], expected.output), "the output of valid tokens depends on padding")
    demand(not got.output[:, ~mask].any(), "the output of padded tokens is not 0")
    if got.operator is None:
        return
    dense = got.operator.dense()
    case.near(
        dense[:, mask][:, :, mask],
        expected.matrix().dense(),
        case.band(expected, padded.compressed()),
        "the matrix with padding against without",
    )
    demand(not dense[:, ~mask].any() and not dense[:, :, ~mask].any(), "rows or columns of padding are not 0")
    x = case.random(case.h, case.n, 3)
    slack = eps(torch.float64) * 450 * dense.abs()  # of products in another order
    near = slack + case.band(got, padded)
    case.near(got.operator @ x, dense @ x, near @ x.abs(), "with padding, B~ X against the dense matrix times X")
    back = got.operator.rmatmul(x)
    case.near(back, dense.mT @ x, near.mT @ x.abs(), "with padding, B~ᵀ Y against the dense transpose times Y")
    demand(not back[:, ~mask].any(), "B~ᵀ Y is not 0 at padding")


@in_kit("operator", "the output is the operator times V, or times the values that the method stores in its place")
def operator(case: Case) -> None:
    qkv = case.qkv()
    approx = case.run(qkv)
    qkv = qkv.replace(v=_values(case, approx, qkv))
    expected = case.operator(approx).dense().double() @ qkv.v.double()
    case.near(approx.output, expected, case.output_band(approx, qkv), "the output against the operator times V")


@in_kit("linear", "the output is linear in V, and the matrix does not look at V unless the method says so")
def linear(case: Case) -> None:
    qkv = case.qkv()
    if case.method.claims("uses_values", case.target):
        raise Skip("it says that it looks at V")
    first = case.run(qkv)
    if first.operator is None:
        raise Skip(f"it {first.no_operator}, and does not say linear_in_v")
    weights = torch.linspace(0.1, 3, qkv.n_k, dtype=torch.float64)[:, None].to(qkv.dtype)
    other = qkv.replace(v=qkv.v.flip(1) * weights)
    both = qkv.replace(v=2 * qkv.v - other.v)
    case.compare(case.run(other), first, qkv, "the matrix for another V")
    if case.method.format is not None:
        return  # it quantises V
    a, b, c = (case.run(x) for x in (qkv, other, both))
    band = case.output_band(a, qkv) * 2 + case.output_band(b, other) + case.output_band(c, both)
    # 2V - V' is rounded itself
    band = band + eps(case.dtype) * a.matrix().dense().double().abs() @ (2 * qkv.v.abs() + other.v.abs()).double()
    case.near(c.output, 2 * a.output.double() - b.output.double(), band, "the output for 2V - V' against 2Y - Y'")


@in_kit("adjoint", "the product with the transpose, blocks of rows and row sums agree with the matrix")
def adjoint(case: Case) -> None:
    qkv = case.qkv()
    approx = case.run(qkv)
    approximate = case.operator(approx)
    u, x = case.random(qkv.h, qkv.n_q, 3), case.random(qkv.h, qkv.n_k, 3)
    band, dense = case.band(approx, qkv), approximate.dense().double()
    case.near(approximate @ x, dense @ x, band @ x.abs(), "B~ X against the dense matrix times X")
    case.near(approximate.rmatmul(u), dense.mT @ u, band.mT @ u.abs(), "B~ᵀ Y against the dense transpose times Y")
    left, right = (u * (approximate @ x).double()).sum(1), (approximate.rmatmul(u).double() * x).sum(1)
    demand(((left - right).abs() <= 2 * (u.abs() * (band @ x.abs())).sum(1)).all(), "⟨Y, B~X⟩ is not ⟨B~ᵀY, X⟩")
    case.near(_in_blocks(approximate), dense, band, "rows in blocks against the dense matrix")
    case.near(approximate.row_sums()[..., None], dense.sum(-1, keepdim=True), band.sum(-1, keepdim=True), "row sums")


def _in_blocks(approximate: Operator) -> torch.Tensor:
    n = approximate.shape[1]
    # unequal blocks, of which one has a single row
    cuts = sorted({0, n // 3, min(n // 3 + 1, n), n})
    return torch.cat([approximate.rows(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)], 1)


@in_kit(
    "budget",
    "more budget is no worse: the error with the largest d is not above that with the smallest",
    scores=(1.0,),
    dtypes=(torch.float64,),
)
def budget(case: Case) -> None:
    if case.method.budget is None:
        raise Skip("it has no budget")
    least, most = case.method.least, case.n if case.method.limit is None else case.method.limit(case.n, case.n)
    # far apart, because between neighbouring budgets the draws decide
    small, large = least, min(most, max(case.n, 4 * least))
    if large <= small:
        raise Skip("it has one budget")
    qkv = case.qkv()
    reference = exact_output(qkv, case.target)
    few, many = (
        sum(float(torch.linalg.matrix_norm(reference - case.run(qkv, d, seed=seed).output, 2).mean()) for seed in SEEDS)
        / len(SEEDS)
        for d in (small, large)
    )
    fault = f"the mean error is {few:.3g} at d={small} and {many:.3g} at d={large}: more budget does not help"
    demand(many <= WORSE * few, fault)


WORSE = 1.05


@in_kit(
    "diagnostics",
    "diagnostics are one number a head, and d as used is no more than d",
    scores=(1.0,),
    dtypes=(torch.float64,),
)
def diagnostics(case: Case) -> None:
    approx = case.run()
    for name, value in approx.diagnostics.items():
        demand(value.shape == (case.h,), f"{name} has the shape {tuple(value.shape)}, not ({case.h},)")
    if "realised_d" in approx.diagnostics and case.budget is not None:
        used = approx.diagnostics["realised_d"]
        demand((used <= case.budget).all() and (used >= 1).all(), f"realised_d={used.tolist()} of d={case.budget}")
