"""The (ε, δ)-matrix-approximation property (Chen et al. 2021, definition 2; Drineas et al. 2006) of any method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import Unsupported
from ..metrics.matrix import shared_matrix_errors
from ..metrics.output import ExactOutput, output_errors
from ..qkv import QKV
from ..reference import exact, exact_output
from .finding import Finding, Setting, frequency, theorem

AT_ONCE = 4  # the number of operators of different seeds that share a pass
TOL = 1e-3
INFINITE = float("inf")
PARTS = {"matrix": "P(‖M - M~‖₂ > ε‖M‖₂) ≤ δ", "output": "P(‖MV - M~V‖₂ > ε‖MV‖₂) ≤ δ"}

Errors = dict[str, tuple[Tensor, Tensor, Tensor]]  # value, lower and upper of each part, (seeds, h)


@theorem(
    "ma-property",
    paper="Chen et al. 2021 (Skyformer), Definition 2",
    says="a method's relative spectral error exceeds ε with probability at most δ",
    cost="for each method, d and seed: its run, and a few passes of n² (p + d)",
    per_method=True,
)
def ma_property(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The share of seeds with a relative error above ε, for each method, d and ε, of the matrix and of the output.

    A definition has no assumption. The verdict says whether the method has the property on these inputs. A method
    without draws runs once. If a method cannot take a budget or has no operator, nothing is measured, and the verdict
    is that the assumption is not met. ``details["errors"]`` are the errors of each seed, (h, seeds), which give the
    verdict for any other ε and δ.
    """
    output = ExactOutput.of(exact_output(qkv, setting.target))
    for method in setting.methods:
        for d in setting.budgets:
            try:
                first = setting.run(method, d, setting.seeds[0])
            except Unsupported:
                yield from _findings(qkv, setting, method, d, {}, drawn=False)
                continue
            drawn = bool(first.draws)
            runs = [first, *(setting.run(method, d, seed) for seed in (setting.seeds[1:] if drawn else ()))]
            yield from _findings(qkv, setting, method, d, ma_errors(qkv, runs, setting.target, output), drawn)


def ma_errors(qkv: QKV, runs: Sequence[Approximation], target: str, output: ExactOutput | None = None) -> Errors:
    """The relative spectral errors of the runs and the ends of their intervals, (runs, h) each, by part.

    The parts are ``output`` and ``matrix``; without an operator there is no part ``matrix``. An error that is not
    finite counts as infinite, with its ends, so it exceeds every ε. An error of zero is 0 even if the exact output is
    zero.

    Args:
        runs: results of a method for several seeds. target: ``softmax`` or ``gaussian``.
        output: the exact output, to avoid computing it again.
    """
    output = ExactOutput.of(exact_output(qkv, target)) if output is None else output
    errors = [output_errors(output, run, qkv) for run in runs]
    values = [torch.where(run["output_spectral"] == 0, 0, run["output_spectral_relative"]).cpu() for run in errors]
    output_errors_of_runs = torch.stack(values)
    parts: Errors = {"output": (output_errors_of_runs, output_errors_of_runs, output_errors_of_runs)}
    operators = [run.operator for run in runs if run.operator is not None]
    if len(operators) == len(runs):
        ends = []
        # several operators share each pass over the exact matrix, which costs most
        for start in range(0, len(operators), AT_ONCE):
            shared = shared_matrix_errors(exact(qkv, target), operators[start : start + AT_ONCE], tol=TOL)
            ends += [_relative(of_run.metrics) for of_run in shared]
        value, lower, upper = (torch.stack(end) for end in zip(*ends, strict=True))
        parts["matrix"] = (value, lower, upper)

    def beyond(x: Tensor) -> Tensor:
        return x.nan_to_num(INFINITE, INFINITE)

    return {part: (beyond(value), beyond(lower), beyond(upper)) for part, (value, lower, upper) in parts.items()}


def _relative(metrics: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """``‖E‖₂/‖B‖₂`` and the ends of its interval, (h,)."""
    names = ("", "_lower", "_relative", "_relative_upper")
    value, lower, relative, upper = (metrics[f"matrix_spectral{name}"].cpu() for name in names)
    share = torch.where(value == 0, torch.ones_like(value), lower / value)
    return relative, relative * share / (1 + TOL), upper  # the interval of ‖B‖₂ is no wider than TOL


def _findings(qkv: QKV, setting: Setting, method: str, d: int, errors: Errors, drawn: bool) -> Iterator[Finding]:
    h = qkv.h
    for part, promise in PARTS.items():
        known = part in errors
        value, lower, upper = errors.get(part, (torch.full((1, h), float("nan"), dtype=torch.float64),) * 3)
        for epsilon in setting.epsilons:
            exceeded = frequency(value > epsilon, lower > epsilon, upper > epsilon)
            yield Finding(
                theorem="ma-property",
                d=d,
                at={"method": method, "epsilon": epsilon, "delta": setting.delta, "of": part},
                assumption="none" if known else f"{method} takes d={d} and has a {part}",
                met=torch.full((h,), known),
                promise=promise,
                bound=torch.full((h,), setting.delta, dtype=torch.float64),
                measured=exceeded.value if known else value[0],
                lower=exceeded.lower if known and drawn else None,
                upper=exceeded.upper if known and drawn else None,
                vacuous=torch.full((h,), setting.delta >= 1),
                details={"errors": value.mT},
            )
