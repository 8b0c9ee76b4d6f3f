"""The fewest steps of a method that must stay in float32. Call `plan`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError
from ..grammar.arithmetic import EVERY, Format
from .computation import Computation
from .estimate import Estimate, estimate
from .measured import EXACT, GOAL, RoundingErrors, measured
from .site import Site

HEADS = 0.9  # the part of the heads in which a plan reaches the goal
HOPELESS = 1e6  # ratio of a head's error to the allowed one, above which it does not decide between steps
TRIALS = 8  # measurements of plans that grow step by step


@dataclass(frozen=True, eq=False)
class Plan:
    """Which steps stay in float32.

    Attributes:
        keep: the steps that stay in float32, the most important first.
        steps: the number of all steps whose results are rounded.
        reached: whether rounding, measured with the choices of float64 held, is at most ``goal`` times the
            approximation's error in the wanted part of the heads.
        floor: whether rounded Q, K and V alone exceed the goal, so that no plan reaches it.
        predicted: the estimated error of the plan, (h,). measured: its errors.
    """

    keep: tuple[Site, ...]
    steps: int
    reached: bool
    floor: bool
    predicted: Tensor
    measured: RoundingErrors

    def line(self) -> str:
        """The plan in one line that an engineer can act on."""
        if self.floor:
            return "no plan: rounded Q, K and V alone exceed the goal"
        if not self.keep:
            return "every step may be in the format"
        named = "; ".join(map(str, self.keep))
        missed = "" if self.reached else " (the goal is not reached)"
        return f"keep {len(self.keep)} of {self.steps} steps in float32{missed}: {named}"


def plan(
    computation: Computation,
    to: Format,
    plain: RoundingErrors | None = None,
    known: Estimate | None = None,
    *,
    arithmetic: str = EVERY,
    goal: float = GOAL,
    heads: float = HEADS,
) -> Plan:
    """The fewest steps that stay in float32 so that rounding is at most ``goal`` times the approximation's error.

    It begins with all steps in float32. Each turn it puts that step into the format whose estimated error is then
    smallest, until the estimate exceeds the goal in more than ``1 - heads`` of the heads. Promotion from the other end
    fails: a consumer in the format rounds what float32 made. Then the plan is measured; while it misses the goal, the
    last steps return to float32, twice as many each time.

    Args:
        plain, known: the errors without a plan and the estimate, to avoid computing them again.

    Cost: one `estimate`, and one to eight emulated runs.

    Raises:
        UsageError: the method is exact, so that rounding is all of its error.
    """
    known = estimate(computation, to, arithmetic) if known is None else known
    plain = measured(computation, to, arithmetic, goal=goal) if plain is None else plain
    if not (plain.approximation > EXACT).any():
        raise UsageError(f"{computation.method.name} is exact, so rounding is all of its error and there is no plan")
    allowed = goal * plain.approximation
    sites = known.sites
    floor = not _reached(plain.input_floor, allowed, heads)
    order = _demoted(known, sites, allowed, heads)
    lowered = 0
    while lowered < len(order) and _reached(known.planned(set(sites) - set(order[: lowered + 1])), allowed, heads):
        lowered += 1
    step = 1
    for _ in range(TRIALS):
        keep = tuple(site for site in sites if site not in order[:lowered])
        errors = measured(computation, to, arithmetic, frozenset(keep), goal) if keep else plain
        reached = _reached(errors.held, allowed, heads)
        # no further step in float32 can help, or none is left
        if reached or not lowered or floor:
            break
        # doubled: each trial is an emulated run, and a first-order estimate may be far off
        lowered, step = max(0, lowered - step), 2 * step
    return Plan(keep, len(sites), reached, floor, known.planned(keep), errors)


def _reached(error: Tensor, allowed: Tensor, heads: float) -> bool:
    return float((error <= allowed).double().mean()) >= heads


def _demoted(known: Estimate, sites: list[Site], allowed: Tensor, heads: float) -> list[Site]:
    """All sites in the order in which they go into the format: each turn the one with the smallest error then."""
    kept, order = list(sites), []
    while kept:

        def after(site: Site) -> tuple[float, float]:
            # capped, so that one head that no plan can save does not decide the order for all
            ratio = (known.planned(set(kept) - {site}) / allowed).nan_to_num(nan=HOPELESS).clamp(max=HOPELESS)
            # the quantile that the goal asks for; the mean square breaks its ties
            return float(torch.quantile(ratio, heads, interpolation="higher")), float(ratio.square().mean())

        cheapest = min(kept, key=after)
        kept.remove(cheapest)
        order.append(cheapest)
    return order
