"""``attnprobe theory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import TheoryOutput, TheoryRequest

if TYPE_CHECKING:
    from .measure import measure_theory
else:
    measure_theory = called("theory.measure:measure_theory")

__all__ = ["EXPERIMENT", "TheoryOutput", "TheoryRequest", "measure_theory"]

EXPERIMENT = Experiment(
    name="theory",
    summary="Evaluate the papers' theorems on real Q, K and V, with a verdict for each head.",
    request=TheoryRequest,
    output=TheoryOutput,
    cells=late("theory.measure:TheoryCells"),
    measure=late("theory.measure:measure_theory"),
    view=late("theory.view:view"),
    columns=late("theory.view:THEORY_COLUMNS"),
    fields=late("theory.rows:FIELDS"),
    plots=("theory",),
    gated=late("theory.gates:GATED"),
    listing=late("theory.listing:theorem_list"),
    examples=(
        "--list",
        "--theorem skyformer-theorem-2 --d 64,128 --plot",
        "--fail-above violated=0",
    ),
    python=(
        "from attnprobe.experiments.theory import TheoryRequest, measure_theory",
        'measure_theory(TheoryRequest(d=(64, 128), theorems=("skyformer-theorem-2",))).outcome.records',
    ),
)
