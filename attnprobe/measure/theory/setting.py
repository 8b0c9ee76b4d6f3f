"""The theorems of a request, their parameters, their list, and the function that evaluates them from Python."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import UsageError, unknown
from ...grammar.arguments import checked
from ...grammar.lists import positive
from ...methods import Approximation, approximate
from ...operators.precision import full_precision
from ...qkv import QKV
from ...reference import TARGETS
from ...rng import Streams
from ...run.plan import MethodRequest, parse_methods
from ...theorems import THEOREMS, Finding, Setting, Theorem, get_theorem

MOST = 10**9 - 1  # of a budget, as on the command line


@dataclass(frozen=True)
class Question:
    """The theorems of a request, and their parameters besides budgets and seeds."""

    theorems: tuple[Theorem, ...]
    epsilons: tuple[float, ...]
    delta: float
    quadrature: bool | None


@checked()
@torch.no_grad()
@full_precision()
def findings(
    qkv: QKV,
    theorem: str = "all",
    *,
    d: int | Sequence[int] = 128,
    epsilon: float | Sequence[float] = (0.05, 0.1, 0.2, 0.5),
    delta: float = 0.1,
    methods: Sequence[str] = ("skyformer", "nystromformer"),
    seeds: range = range(20),
    target: str = "softmax",
    quadrature: bool | None = None,
) -> list[Finding]:
    """Evaluate theorems on ``qkv``: their assumptions, bounds and measured values, with a verdict for each head.

    Returns one `Finding` for each statement, budget and relative error: ``assumption`` and ``promise`` in words,
    ``met``, ``bound``, ``measured``, ``vacuous`` and ``slack`` (h,), and ``verdicts()``, all on the CPU in float64.
    ``attnprobe theory --list`` prints the paper, statement and cost of each theorem. Cost: exact theorems decompose
    n x n or 2n x 2n matrices head by head, O(n³); probabilities take ``len(seeds)`` runs of a method.

    Args:
        theorem: a name, several with commas, or ``all``.
        d: budgets. epsilon: relative errors. delta: the probability with which a statement may fail.
        methods: the methods of statements about any method, each ``NAME[:k=v,…]``.
        seeds: one repetition each, by which a probability is measured; the only randomness.
        target: the exact matrix that those methods approximate, ``softmax`` or ``gaussian``.
        quadrature: whether traces are estimated; None does so above n = 4096.

    Raises:
        Unsupported: a method does not support a budget or the target. UsageError: unknown names, impossible values.

    >>> import torch
    >>> qkv = QKV(*torch.randn(3, 1, 16, 4, generator=torch.Generator().manual_seed(0)))
    >>> findings(qkv, "skyformer-theorm-2")
    Traceback (most recent call last):
    attnprobe.errors.UsageError: unknown theorem 'skyformer-theorm-2'; did you mean 'skyformer-theorem-2'?
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    if not seeds:
        raise UsageError("no seeds; a probability needs at least one")

    # Repeats would give rows that no reader could tell apart.
    epsilons = tuple(dict.fromkeys(positive(str(value), "epsilon") for value in _several(epsilon)))
    question = question_of([theorem], epsilons, delta, quadrature)
    inner, budgets, results = qkv.compressed(), checked_budgets(_several(d)), []
    for statement in question.theorems:
        # A statement about no method is evaluated once, not once for each method.
        for method in parse_methods(methods, target) if statement.per_method else (None,):
            results += statement.check(inner, setting_of(question, method, budgets, seeds, target, inner))
    return results


def _several(values: int | float | Iterable[Any]) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, Iterable) else (values,)


def question_of(
    theorems: Iterable[str], epsilons: tuple[float, ...], delta: float, quadrature: bool | None
) -> Question:
    """The question of names with commas, or of ``all``."""
    names = [name.strip() for text in theorems for name in text.split(",")]
    if not all(names):
        raise UsageError("an empty theorem name; write --theorem NAME or NAME,NAME, or all")
    unique = dict.fromkeys(known for name in names for known in (THEOREMS if name == "all" else [name]))
    if not unique:
        raise UsageError("no theorem; write --theorem NAME")
    if not epsilons:
        raise UsageError("no epsilon; choose at least one relative error, such as 0.1")
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta:g}: choose a probability above 0 and below 1, such as 0.1")
    return Question(tuple(map(get_theorem, unique)), epsilons, delta, quadrature)


def checked_budgets(budgets: Iterable[int]) -> tuple[int, ...]:
    """The budgets, each at least 1."""
    budgets = tuple(budgets)
    if wrong := [d for d in budgets if not 1 <= d <= MOST]:
        raise UsageError(f"d={wrong[0]}: choose a budget from 1 to {MOST}")
    if not budgets:
        raise UsageError("no budget; choose at least one, such as d=128")
    return budgets


def setting_of(
    question: Question, request: MethodRequest | None, budgets: tuple[int, ...], seeds: range, target: str, qkv: QKV
) -> Setting:
    """The parameters of a theorem, with the draws and the methods of this layer and window.

    Args:
        request: the method of a statement about any method. None for a theorem that names its methods itself: their
            target is softmax.
    """
    # The request's target is of the methods on the command line, which such a theorem does not run.
    target = "softmax" if request is None else target
    known = {} if request is None else {_written(request): request}

    def run(name: str, d: int | None, seed: int, row: int | None = None) -> Approximation:
        method = known[name] if name in known else parse_methods([name], target)[0]
        heads = qkv if row is None else qkv.head(row)
        return approximate(method.entry, heads, d, seed=seed, target=target, **method.options)

    return Setting(
        budgets=budgets,
        epsilons=question.epsilons,
        delta=question.delta,
        seeds=seeds,
        streams=lambda label, seed: Streams(seed, label, qkv.layer, qkv.window),
        run=run,
        methods=tuple(known),
        quadrature=question.quadrature,
        target=target,
    )


def _written(request: MethodRequest) -> str:
    """The method as ``--method`` takes it."""
    options = ",".join(f"{name}={value}" for name, value in sorted(request.options.items()))
    return f"{request.label}:{options}" if options else request.label


def list_all(format_: str) -> str:
    """Every theorem in a format: its name, paper, statement and cost."""
    if format_ == "table":
        return "\n\n".join(_card(name) for name in THEOREMS)
    from ...show.listing import listing

    names = ("paper", "says", "cost", "per_method")
    facts = [
        {"theorem": theorem.name, **{name: getattr(theorem, name) for name in names}} for theorem in THEOREMS.values()
    ]
    return listing("theorems", facts, format_)


def _card(name: str) -> str:
    """A theorem on a terminal."""
    theorem = THEOREMS[name]
    about = " · tested for every --method" if theorem.per_method else ""
    lines = [theorem.paper, theorem.says, f"cost: {theorem.cost}{about}"]
    wrapped = [part for line in lines for part in textwrap.wrap(line, 96, subsequent_indent="  ")]
    return "\n".join([theorem.name, *(f"  {line}" for line in wrapped)])
