"""The run of ``attnprobe audit``: a method with many seeds beside one exact reference, cell by cell.

Errors above ε are counted over repeats, and the verdicts on promises follow from the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import Unsupported, UsageError
from ...frame.rows import head_rows
from ...machine.timings import Timings
from ...methods import approximate
from ...metrics.guarantees import GuaranteeReference, normaliser_ratio, over_heads
from ...operators.linalg.exceedance import (
    HOLDS,
    UNDECIDED,
    VIOLATED,
    PValues,
    anytime_p_values,
    bias_z,
    clopper_pearson,
    confidence_sequence,
    exact_p_values,
    holm,
    normal_p_value,
    verdicts,
)
from ...qkv import QKV
from ...run.cells import Place, PlannedCells, Result
from ...run.costs import REPEAT, Cost, work_of_decompositions, work_of_method
from ...run.method_cells import NOT_FINITE, MethodCell, head_of, method_cells
from ...run.plan import ErrorPlan, Group, refused
from ...run.sources import draft_plan, prepared
from . import AuditRequest
from .record import SHAPE

ROUNDING = 128  # eps of the dtype; a mean error up to this is rounding and no bias


class Tally:
    """Counts exceedances of one method over repeats.

    Args:
        reference: the exact output and its norms. epsilons, deltas: of the promises.
        confidence: of all verdicts of a statement together.
        rows: whether each query is judged by itself. anytime: whether tests are valid at any time.
    """

    def __init__(
        self,
        reference: GuaranteeReference,
        epsilons: Sequence[float],
        deltas: Sequence[float],
        confidence: float,
        *,
        rows: bool,
        anytime: bool,
    ) -> None:
        self.reference, self.epsilons, self.deltas = reference, epsilons, deltas
        self.confidence, self.rows, self.anytime = confidence, rows, anytime
        self.trials = 0
        self.lost = torch.zeros(reference.qkv.h, dtype=torch.int64)
        self._counts: dict[tuple[str, float], Tensor] = {}
        self._p: dict[tuple[str, float, float], PValues] = {}
        self._moments: dict[str, Tensor] = {}
        self._stated: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}  # of further numbers of heads

    def add(self, approx: Approximation) -> None:
        """Count the errors of one repeat."""
        errors = self.reference.errors(approx, enough=max(self.epsilons))
        self.trials += 1
        lost = torch.zeros_like(self.lost)
        for name, error in errors.items():  # (h,) or (h, n_q)
            is_of_queries = error.ndim == 2
            if is_of_queries and not self.rows:
                error = over_heads(error, self.reference.sizes_of(name))
            finite = torch.isfinite(error).cpu()
            lost |= (~finite.flatten(1).all(1) if finite.ndim == 2 else ~finite).long()
            for epsilon in self.epsilons:
                # `not … <=`, so that NaN exceeds every ε
                exceeds = (~(error <= epsilon)).cpu().long()
                self._add(self._counts, (name, epsilon), exceeds)
        self.lost += lost
        self._add_moments(approx)
        read = approx.diagnostics.get("realised_d")
        if read is not None:
            self._add(self._sums, "keys", read.double().cpu())
        if (residuals := self.reference.residuals(approx)) is not None:
            self._add(self._sums, "residual_error", residuals.cpu())

    def look(self) -> None:
        """Test all promises on the counts so far. Anytime-valid tests keep the least p-value of all looks."""
        for name, epsilon in self._counts:
            counts = self._counts[name, epsilon].numpy()
            for delta in self.deltas:
                test = anytime_p_values if self.anytime else exact_p_values
                p = test(counts, self.trials, delta)
                before = self._p.get((name, epsilon, delta))
                # a p-value that is valid at any time may be the least of all looks
                if before is not None and self.anytime:
                    p = p.least(before)
                self._p[name, epsilon, delta] = p

    @property
    def decided(self) -> bool:
        """Whether no promise is undecided, as of the last look."""
        return all((verdicts(p, self.confidence) != UNDECIDED).all() for p in self._p.values())

    def promises(self) -> list[dict[str, Any]]:
        """A row for each promise and head (see `PromiseRow`)."""
        self.look()
        return [row for promise, p in self._p.items() for row in self._tested(*promise, p)]

    def metrics(self) -> dict[str, list[float | None]]:
        """For each head: keys read, residual error, bias and spread of the normaliser, and what the method states."""
        metrics: dict[str, Any] = {name: (sums / self.trials).numpy() for name, sums in self._sums.items()}
        if "keys" in metrics:
            qkv = self.reference.qkv
            metrics["keys_share"] = metrics["keys"] * qkv.n_q / qkv.entries
        if "score" in self._moments:
            metrics["score_bias"], metrics["score_bias_z"] = self._bias("score", "score_square", "score_cube")
        if "mean" in self._moments:
            mean, z = self._bias("mean", "square", "cube")
            metrics["bias"], metrics["bias_z"] = mean, z
            # over heads: each is tested for a bias of its own
            adjusted = holm(normal_p_value(z))
            rounding = ROUNDING * torch.finfo(self.reference.qkv.dtype).eps
            metrics["biased"] = ((adjusted <= 1 - self.confidence) & (np.abs(mean) > rounding)).astype(float)
            # the sample variance over repeats, from sums; rounding may take it below 0
            variance = (self._moments["row_square"] - self._moments["row_mean"] ** 2 / self.trials) / (self.trials - 1)
            spread = variance.clamp(min=0).sqrt()  # (h, n_q)
            metrics["normaliser_sd"] = spread.square().mean(-1).sqrt().numpy()
            if "variance" in self._stated:
                stated = self._stated["variance"] / self.trials
                metrics["sd_ratio"] = (stated.mean(-1) / spread.square().mean(-1)).sqrt().numpy()
        for name, values in self._stated.items():
            if name == "inclusion":
                metrics["least_inclusion"] = values.amin(-1).numpy()
            elif name != "variance":
                metrics[name] = (values / self.trials).mean(-1).numpy()
        return {name: _numbers(values) for name, values in metrics.items()}

    def _add(self, totals: dict[Any, Tensor], key: Any, values: Tensor) -> None:
        """Add the values of one repeat to a sum over repeats."""
        totals[key] = totals[key] + values if key in totals else values.clone()

    def _bias(self, *names: str) -> tuple[np.ndarray, np.ndarray]:
        """The mean over repeats of an error of each head, and that over its standard error, from sums of its powers."""
        mean, square, cube = (self._moments[name].numpy() / self.trials for name in names)
        return mean, bias_z(mean, square, cube, self.trials)

    def _add_moments(self, approx: Approximation) -> None:
        """Sums of the relative errors of the normaliser, and of what the method states of its estimates."""
        if (score := self.reference.score_bias(approx)) is not None:
            score = score.cpu()
            for power, name in enumerate(("score", "score_square", "score_cube"), 1):
                self._add(self._moments, name, score**power)
        ratio = normaliser_ratio(approx, self.reference.log_normaliser)
        if ratio is not None:
            error = (ratio - 1).cpu()
            of_head = error.mean(-1)
            for name, values in {
                "mean": of_head,
                "square": of_head.square(),
                "cube": of_head**3,
                "row_mean": error,
                "row_square": error.square(),
            }.items():
                self._add(self._moments, name, values)
        if approx.sampling is None:
            return
        for name, values in approx.sampling.known().items():
            values = values.double().cpu()
            # of the probabilities of inclusion the least is kept; of other numbers, the sum for a mean
            if name == "inclusion" and name in self._stated:
                self._stated[name] = torch.minimum(self._stated[name], values)
            else:
                self._add(self._stated, name, values)

    def _tested(self, quantity: str, epsilon: float, delta: float, p: PValues) -> list[dict[str, Any]]:
        counts = self._counts[quantity, epsilon].numpy()
        judged = verdicts(p, self.confidence)

        def of_head(values: np.ndarray) -> np.ndarray:
            return values.reshape(len(counts), -1)

        worst = of_head(counts).max(1)
        # the worst query of a head was chosen after the fact, so its interval is corrected for all that were looked at
        lower, upper = self._interval(worst, counts.size)
        columns = {
            "rate": _numbers(of_head(counts).mean(1) / self.trials),
            "worst": _numbers(worst / self.trials),
            "lower": _numbers(lower),
            "upper": _numbers(upper),
            "p_at_most": _numbers(of_head(holm(p.at_most)).min(1)),
            "p_above": _numbers(of_head(holm(p.above)).max(1)),
            "verdict": [_of_head(verdicts_of_rows) for verdicts_of_rows in of_head(judged)],
            "rows_violated": [int((verdicts_of_rows == VIOLATED).sum()) for verdicts_of_rows in of_head(judged)],
            "rows_holding": [int((verdicts_of_rows == HOLDS).sum()) for verdicts_of_rows in of_head(judged)],
        }
        per = "head" if counts.ndim == 1 else "row"
        promise = {"quantity": quantity, "per": per, "epsilon": epsilon, "delta": delta}
        return [{**row, **promise} for row in head_rows(self.reference.qkv.heads, columns, "promise")]

    def _interval(self, counts: np.ndarray, statements: int) -> tuple[np.ndarray, np.ndarray]:
        """Intervals of probabilities that are right together for so many statements (Bonferroni's correction)."""
        confidence = 1 - (1 - self.confidence) / statements
        if self.anytime:
            return confidence_sequence(counts, self.trials, confidence)
        ends = np.array([clopper_pearson(int(count), self.trials, confidence) for count in counts])
        return ends[:, 0], ends[:, 1]


def _of_head(judged: np.ndarray) -> str:
    """The verdict on a head from the verdicts on its rows: one violated row is enough, and all must hold."""
    if (judged == VIOLATED).any():
        return VIOLATED
    return HOLDS if (judged == HOLDS).all() else UNDECIDED


def _numbers(values: Any) -> list[float | None]:
    """The numbers of rows: a number that is not finite is null."""
    return [float(value) if np.isfinite(value) else None for value in np.asarray(values, dtype=np.float64)]


LOOK = 20  # repeats between two looks of a test that stops by itself
SHOWN = 50  # repeats between two reports of progress


class AuditCells(PlannedCells[AuditRequest, MethodCell, QKV]):
    """How often methods exceed a promised error."""

    command = "audit"
    shape = SHAPE
    blank = {**PlannedCells.blank, "trials": 0}

    def __init__(self, request: AuditRequest, notify: Callable[[str], None], timings: Timings) -> None:
        parts = prepared(request, replace(draft_plan(request), d=request.d), notify, timings)
        _, plan = parts[0]  # the plans of all sources have the same methods
        if all("deterministic" in method.entry.tags for method in plan.methods):
            names = ", ".join(method.label for method in plan.methods)
            raise UsageError(f"{names}: nothing is random, so there is no probability to test; see attnprobe error")
        super().__init__(request, parts, partial(_cells, request))
        self._reference: tuple[QKV, GuaranteeReference] | None = None

    def head(self, place: Place, cell: MethodCell) -> dict[str, Any]:
        assert cell.request is not None
        return head_of(self, place, cell) | {
            "reference": False,
            "family": cell.request.entry.family,
            "repeats": self.request.repeats,
            "confidence": self.request.confidence,
            "anytime": self.request.stop,
        }

    def work(self, place: Place, cell: MethodCell) -> Cost:
        n, heads = place.group.n, len(self.head_numbers(place))
        queries = self.queries(place)
        assert cell.request is not None
        work, size = work_of_method(n, cell.d, heads, cell.request.entry.cost, queries=queries)
        norms = work_of_decompositions(n, heads, 1)[0] * (queries / n) ** 2 / 16  # bounds of the norms of differences
        work += heads * REPEAT + self.request.matrix * norms
        return self.request.repeats * work, size + 8.0 * heads * n * n * self.request.matrix

    def measure_cell(self, place: Place, cell: MethodCell, inputs: QKV, result: Result) -> None:
        plan, request = self.plan_of(place), self.request
        assert cell.request is not None
        if (why := refused(cell.request, plan.target, inputs.n_k, cell.d)) is not None:
            raise Unsupported(why)
        if "deterministic" in cell.request.entry.tags:
            raise Unsupported(f"{cell.name} draws nothing: its errors are in `attnprobe error`")
        reference = self._exact(inputs, plan.target)
        if not torch.isfinite(reference.output).all():
            result |= {"status": "failed", "reason": NOT_FINITE}
            return
        tally = Tally(
            reference, request.epsilon, request.delta, request.confidence, rows=request.rows, anytime=request.stop
        )
        options = dict(cell.request.options)
        for repeat in range(request.repeats):
            approx = approximate(
                cell.request.entry, reference.qkv, cell.d, seed=plan.seed + repeat, target=plan.target, **options
            )
            tally.add(approx)
            if repeat == 0:
                result["draws_hash"] = approx.draws_hash()
            # each report rewrites a line of the terminal, and short repeats are many
            if tally.trials % SHOWN == 0:
                self.show(
                    f"{self.label(place, cell)} repeat {tally.trials}", {cell.key: tally.trials / request.repeats}
                )
            if request.stop and tally.trials % LOOK == 0:
                tally.look()
                if tally.decided:
                    break
        rows = [*head_rows(inputs.heads, tally.metrics()), *tally.promises()]
        result |= {"trials": tally.trials, "rows": rows}
        if tally.lost.any():
            heads = zip(inputs.heads, tally.lost.tolist(), strict=True)
            counts = ", ".join(f"{count} of head {head}" for head, count in heads if count)
            result |= {"status": "diverged", "reason": f"not finite in {tally.trials} repeats: {counts}"}

    def _exact(self, inputs: QKV, target: str) -> GuaranteeReference:
        """The reference of the inputs, which is kept for the next cells of the same place."""
        if self._reference is None or self._reference[0] is not inputs:
            self._reference = inputs, GuaranteeReference(inputs.compressed(), target, self.request.matrix)
        return self._reference[1]


def _cells(
    request: AuditRequest, plan: ErrorPlan, group: Group, layer: int, facts: Mapping[str, Any]
) -> Iterator[MethodCell]:
    names = ("repeats", "epsilon", "delta", "confidence", "stop", "rows", "matrix")
    options = {name: getattr(request, name) for name in names}
    return method_cells("audit", plan.methods, plan, group, layer, facts, **options)
