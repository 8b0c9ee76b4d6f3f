"""Every method and every kernel in every form of attention, against a reference with loops over tokens.

A method that claims to be exact at its full budget must equal the reference there. Every method must keep what its tags
promise. A method without a form must refuse in one line, exactly where its tags lack the form.
"""

from dataclasses import replace

import pytest
import torch
from forms import HOLES, LEFT, LEFT_AND_HOLES, Form, N, P, literal
from inputs import entry_band, eps, output_band

from attnprobe import approximate, exact, kernel_errors
from attnprobe.errors import Unsupported
from attnprobe.methods import KERNELS, METHODS, get
from attnprobe.metrics.kernel import KernelReference, eager_output
from attnprobe.reference import exact_output, own_output

GAPS, MIXED = (2, 7, 8, 15, 19), (15, 2, 19, 7)
LAST = tuple(range(N - 5, N))
PLACED = {
    "all": {},
    "last": {"at": LAST, "stated": False},
    "one": {"at": (N - 1,), "stated": False},
    "stated last": {"at": LAST},
    "gaps": {"at": GAPS},
    "mixed": {"at": MIXED},
    "reversed": {"at": tuple(reversed(range(N)))},
    "early": {"at": (7,)},
    "first": {"at": (0,)},
}
FREE = {
    "all": {},
    "few": {"at": (0, 1, 2, 3, 4), "stated": False},
    "one": {"at": (0,), "stated": False},
    "more": {"at": (*range(N), N - 1, N - 1, N - 1), "stated": False},
    "gaps": {"at": GAPS},
    "repeated": {"at": (4, 4, 9, 19)},
    "reversed": {"at": tuple(reversed(range(N)))},
}
MASKS = {"holes": HOLES, "left": LEFT, "left and holes": LEFT_AND_HOLES}
GROUPS = {"GQA": (4, 2), "MQA": (4, 1)}


def forms():
    made = {f"causal {name}": Form(causal=True, **placed) for name, placed in PLACED.items()}
    made |= {f"free {name}": Form(**placed) for name, placed in FREE.items()}
    for width in (1, 5, 16, N - 1, N):
        for name in ("all", "last", "gaps", "reversed"):
            made[f"causal {name} window {width}"] = Form(causal=True, window=width, **PLACED[name])
        for name in ("all", "more", "gaps", "repeated", "reversed"):
            made[f"free {name} window {width}"] = Form(window=width, **FREE[name])
    for name in ("all", "last", "one", "gaps", "mixed"):
        made[f"causal {name} sinks"] = Form(causal=True, window=5, sinks=3, **PLACED[name])
    for name in ("all", "last", "gaps"):
        made[f"causal {name} sink logits"] = Form(causal=True, sink_logits=True, **PLACED[name])
        made[f"causal {name} window and sink logits"] = Form(causal=True, window=5, sink_logits=True, **PLACED[name])
    made["free all sink logits"] = Form(sink_logits=True)
    for group, (heads, kv_heads) in GROUPS.items():
        shared = {"heads": heads, "kv_heads": kv_heads}
        for name in ("all", "last", "one", "gaps"):
            made[f"{group} causal {name}"] = Form(causal=True, **PLACED[name], **shared)
        made[f"{group} free all"] = Form(**shared)
        made[f"{group} causal last sinks"] = Form(causal=True, window=5, sinks=3, **PLACED["last"], **shared)
    for name, valid in MASKS.items():
        for causal in (False, True):
            key = f"{'causal' if causal else 'free'} {name}"
            made[key] = Form(causal=causal, valid=valid)
            for width in (1, 4, 16):
                made[f"{key} window {width}"] = Form(causal=causal, valid=valid, window=width)
        made[f"causal {name} sinks"] = Form(causal=True, valid=valid, window=4, sinks=4)
    return made


FORMS = forms()
HALVES = (torch.bfloat16, torch.float16)


def share(number, of, forms=FORMS):
    """Every ``of``-th form."""
    return dict(list(forms.items())[number % of :: of])


# every form in float64 or float32, whose bands are narrow: what a dtype changes does not depend on what a query sees
OF_DTYPE = {
    torch.float64: share(0, 2),
    torch.float32: share(1, 2),
    torch.bfloat16: share(1, 6),
    torch.float16: share(4, 6),
}
FEW = ["causal all", "causal gaps", "causal last sinks", "free gaps window 5", "GQA causal last", "causal holes sinks"]
CASES = [(name, target) for name, entry in METHODS.items() for target in entry.targets if entry.kind != "user"]
EXACT = [case for case in CASES if get(case[0]).claims("exact_at_full_budget", case[1])]
# the ordinary suite runs some of the forms with a method, and others with the next
thirds, fifths = (
    pytest.mark.parametrize("of", [of, pytest.param(1, marks=pytest.mark.slow)], ids=[name, "all"])
    for of, name in ((3, "a third"), (5, "a fifth"))
)
every_method = pytest.mark.parametrize("name, target", CASES)
OBSERVE = {"expected", "h2o", "snapkv", "tova"}  # they choose keys by queries of other tokens
SUMMARISE = {"nystromformer", "skeinformer", "skyformer"}  # their causal form summarises queries of other tokens


def run(name, target, form, d=None, **options):
    return approximate(name, form.qkv(), d, target=target, **{**get(name).small, **options})


def at_most(entry, form, d):
    """``d``, or the largest budget that a method takes for a form."""
    inner = form.qkv().compressed()
    return d if None in (d, entry.limit) else min(d, entry.limit(inner.n_q, inner.n_k))


def some(entry, form):
    """A budget that leaves keys out."""
    return None if entry.budget is None else at_most(entry, form, max(6, entry.least))


def full(entry, form):
    """The largest budget that is of use, and the options with which it is exact."""
    d, options = entry.exact_at(max(N, len(form.tokens)))
    return at_most(entry, form, d), options


def refusal(name, target, form):
    """The line with which a method must refuse a form; None if it has the form."""
    entry, part = get(name), form.at is not None
    tags = set(entry.tags)
    if form.causal and not {"causal", "prefill", "whole_scale", "causal_target"} & tags:
        return f"attention is causal, and {name} has no causal form"
    if form.window is not None and not {"local", "causal_target"} & tags:
        return f"attention has a sliding window, and {name} has no form for it"
    if entry.square and len(form.tokens) == N and part:
        return f"{name}: its queries are the tokens in their order, and these have other positions"
    if entry.square and part:
        return f"{name}: {len(form.tokens)} queries and {N} keys; it takes as many queries as keys"
    if name in SUMMARISE and form.causal and part:
        return f"{name}: its causal form summarises earlier queries; give all queries of the text"
    if form.sink_logits:
        without = replace(form, sink_logits=False)
        approx = result(name, target, without, some(entry, without))
        if approx is not None and approx.log_normalizer is None:
            return f"heads have sinks of their own, and {name} states no normaliser to add them to"
    return None


def result(name, target, form, d, **options):
    """The result of a method; None if it lacks the form and says so in one line."""
    line = refusal(name, target, form)
    if line is None:
        try:
            return run(name, target, form, d, **options)
        except Unsupported as refused:
            missing = name in OBSERVE and form.at is not None and not form.all_queries
            assert missing and "these inputs do not have the queries of all tokens" in str(refused), refused
            return None
    with pytest.raises(Unsupported) as refused:
        run(name, target, form, d, **options)
    assert line in str(refused.value) and "\n" not in str(refused.value)
    return None


def valid(qkv):
    """The rows that are not padding."""
    return slice(None) if qkv.mask is None else qkv.mask


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_exact_attention_is_the_reference(target):
    wrong = []
    for label, form in FORMS.items():
        matrix, output = literal(form, target)
        qkv = form.qkv()
        operator = exact(qkv, target)
        band = entry_band(operator, qkv, torch.float64)
        wrong += [label] * (not ((operator.dense() - matrix).abs() <= band).all())
        band = band @ qkv.v.abs() + eps(torch.float64) * output.abs()
        wrong += [label] * (not ((exact_output(qkv, target) - output).abs() <= band).all())
        if target == "softmax":
            own = own_output(qkv.compressed()) - output[:, valid(qkv)]
            wrong += [label] * (not (own.abs() <= band[:, valid(qkv)]).all())
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@thirds
@pytest.mark.parametrize("name, target", EXACT)
def test_the_full_budget_is_the_reference(name, target, dtype, of):
    wrong = []
    for label, form in share(EXACT.index((name, target)), of, OF_DTYPE[dtype]).items():
        form = replace(form, dtype=dtype)
        d, options = full(get(name), form)
        approx = result(name, target, form, d, **options)
        if approx is None:
            continue
        matrix, output = literal(form, target)
        qkv, of_operator = form.qkv(), approx.operator.dtype
        entries = (approx.operator.dense().double() - matrix).abs() <= entry_band(approx.operator, qkv, of_operator)
        band = output_band(approx, qkv, of_operator)
        if form.sink_logits:  # the share of the keys is rounded, and its product with the output
            band = band + eps(dtype) * output.abs()
        outputs = (approx.output.double() - output).abs() <= band
        wrong += [label] * (not entries.all() or not outputs.all())
    assert wrong == []


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@thirds
@pytest.mark.parametrize("name, target", EXACT)
def test_so_it_is_in_half_precision(name, target, dtype, of):
    """Scores of at most 4 lose 4 eps, an inverse amplifies by at most 10, and 2 for its sums, as in the kit."""
    wrong = []
    for label, form in share(EXACT.index((name, target)), of, OF_DTYPE[dtype]).items():
        form = replace(form, dtype=dtype, score=0.25)
        d, options = full(get(name), form)
        approx = result(name, target, form, d, **options)
        if approx is None:
            continue
        output = literal(form, target)[1]
        error, size = ((x).norm(dim=(1, 2)) for x in (approx.output.double() - output, output))
        wrong += [label] * (not (error <= 80 * eps(dtype) * size).all())
    assert wrong == []


@fifths
@every_method
def test_what_a_method_promises_holds_in_every_form(name, target, of):
    wrong = {}
    for label, form in share(CASES.index((name, target)), of).items():
        approx = result(name, target, form, some(get(name), form))
        broken = None if approx is None else broken_promise(name, target, form, approx)
        if broken is not None:
            wrong[label] = broken
    assert wrong == {}


def broken_promise(name, target, form, approx):
    """Which tag of a method does not hold for its result, in words; None if all hold."""
    entry, matrix = get(name), approx.operator.dense()
    seen = literal(form, "gaussian")[0] > 0
    band = entry_band(approx.operator, form.qkv(), approx.operator.dtype)
    lost = ~torch.isfinite(approx.output).all(-1)
    if lost.any() and not entry.claims("vanishing_normaliser", target):
        return "rows are lost"
    if (lost.sum(-1) > approx.diagnostics["bad_rows"]).any():
        return "lost rows are not counted"
    matrix = matrix.masked_fill(lost[..., None], 0)
    if "causal_target" not in entry.tags and matrix[~seen].any():
        return "a key that its query does not see has weight"
    if entry.claims("nonnegative", target) and (matrix < 0).any():
        return "an entry is negative"
    if entry.claims("row_sums_one", target):
        total = seen.any(-1).double()  # rows of padding are 0
        if form.sink_logits:
            total = 1 - (form.qkv().sink_logits.double()[:, None] - approx.log_normalizer()).exp()
        if ((matrix.double().sum(-1) - total).abs() > band.sum(-1)).masked_fill(lost, False).any():
            return "a row does not sum to 1"
    return None


PARTS = {
    **{f"causal {name}": (Form(causal=True), placed) for name, placed in PLACED.items()},
    **{f"causal {name} window": (Form(causal=True, window=5, sinks=2), placed) for name, placed in PLACED.items()},
    **{f"GQA {name}": (Form(causal=True, heads=4, kv_heads=2), placed) for name, placed in PLACED.items()},
    "free gaps": (Form(), FREE["gaps"]),
    "free reversed": (Form(), FREE["reversed"]),
    "free few": (Form(), FREE["few"]),
    "free gaps window": (Form(window=5), FREE["gaps"]),
}


@thirds
@every_method
def test_the_rows_of_some_queries_are_those_of_all(name, target, of):
    """Of causal queries, whatever the others are; without a causal mask where a method is for one query alone."""
    wrong, whole_of = [], {}
    for label, (form, placed) in share(CASES.index((name, target)), of, PARTS).items():
        if "causal_target" in get(name).tags or (not form.causal and "decodes" not in get(name).tags):
            continue
        part = replace(form, **placed, all_queries=form.causal)
        d = some(get(name), part)
        if (form, d) not in whole_of:
            whole_of[form, d] = result(name, target, form, d)
        got, whole = result(name, target, part, d), whole_of[form, d]
        if got is None or whole is None:
            continue
        index = list(part.tokens)
        band = entry_band(whole.operator, form.qkv(), whole.operator.dtype)[:, index]
        wrong += [label] * bool(((got.operator.dense() - whole.operator.dense()[:, index]).abs() > band).any())
    assert wrong == []


def rounding(form, dtype):
    """The error of a kernel in a dtype, in units of the largest |v|: of scores, of sums, of weights and the output.

    Scores and sums of half precision are in float32.
    """
    qkv = form.qkv()
    scores = qkv.scale * float(qkv.q.double().norm(dim=2).max() * qkv.k.double().norm(dim=2).max())
    return 4 * eps(dtype) + 2 * min(eps(dtype), eps(torch.float32)) * ((P + 4) * scores + 2 * N)


def rounding_of_integers(form):
    """The error of `torch:int8`: scores move by half a step of each number of q, and of k."""
    qkv = form.qkv()
    q, k = (x.double().abs() for x in (qkv.q, qkv.k))
    steps = [x.amax(-1).max() / 127 for x in (q, k)]
    moved = steps[0] / 2 * k.sum(-1).max() + steps[1] / 2 * q.sum(-1).max() + P * steps[0] * steps[1] / 4
    return float(torch.expm1(2 * qkv.scale * moved))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
@thirds
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_the_reference(name, dtype, of):
    """And it is judged by its distance to the reference."""
    wrong = []
    options = {"compiled": False} if name == "torch:flex" else {}
    # torch's unfused flex attention takes a tenth of a second
    few = FEW if dtype == torch.float32 else FEW[2:3]
    some = share([*KERNELS].index(name), of, OF_DTYPE[dtype])
    for label in few if name == "torch:flex" else some:
        form = replace(FORMS[label], dtype=dtype)
        qkv, output = form.qkv(), literal(form)[1]
        if form.sink_logits:
            with pytest.raises(Unsupported, match=f"{name} states no normaliser to add them to"):
                approximate(name, qkv, **options)
            continue
        got = approximate(name, qkv, **options).output
        band = rounding(form, dtype) + (rounding_of_integers(form) if name == "torch:int8" else 0)
        error = (got.double() - output).abs().amax((1, 2))
        of_judge = kernel_errors(got, qkv)["max_abs"]
        right = (error <= band * qkv.v.double().abs().max()).all() and ((error - of_judge).abs() < 1e-13).all()
        wrong += [label] * (not right)
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
def test_the_framework_beside_a_kernel_is_the_reference(dtype):
    """Every step is rounded to the dtype: scores, weights, their sum, the output."""
    wrong = []
    for label, form in OF_DTYPE[dtype].items():
        form = replace(form, dtype=dtype, score=1.0)
        qkv = form.qkv()
        output = literal(form)[1][:, valid(qkv)]
        exactly = (KernelReference.of(qkv).exact - output).abs().max() <= 1e-13
        scores = qkv.scale * qkv.q.double().norm(dim=2).max() * qkv.k.double().norm(dim=2).max()
        band = eps(dtype) * (3 * scores + 3 * N) * qkv.v.double().abs().max()
        eager = ((eager_output(qkv).double() - output).abs() <= band).all()
        wrong += [label] * (not (exactly and eager))
    assert wrong == []
