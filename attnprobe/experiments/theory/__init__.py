"""``attnprobe theory``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import Metric, share
from ..base import Experiment
from .request import TheoryOutput, TheoryRequest

__all__ = ["EXPERIMENT", "TheoryOutput", "TheoryRequest", "measure_theory"]

EXPERIMENT = Experiment(
    name="theory",
    summary="Evaluate the papers' theorems on real Q, K and V, with a verdict for each head.",
    request=TheoryRequest,
    output=TheoryOutput,
    plots=("theory",),
    gated=Gated(
        (
            share("holds", "larger"),
            share("violated"),
            share("vacuous"),
            share("assumption_not_met"),
            Metric("measured", None),
            Metric("bound", None),
            Metric("slack", "larger"),
        ),
        subjects=("theorem",),
    ),
    examples=(
        "--list",
        "--theorem skyformer-theorem-2 --d 64,128 --plot",
        "--fail-above violated=0",
    ),
    quick={"n": "64", "d": "8", "head": "0", "repeats": "3"},
    python=(
        "from attnprobe.experiments.theory import TheoryRequest, measure_theory",
        'measure_theory(TheoryRequest(d=(64, 128), theorems=("skyformer-theorem-2",))).outcome.records',
    ),
)
measure_theory = EXPERIMENT.measure
