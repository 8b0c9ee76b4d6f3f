"""The view of ``attnprobe stability``: a row for each training, their summary over seeds, and the paper's ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...tables.numbers import brief, significant
from ...tables.table import Column, Table, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from .names import SELF_ATTENTION, TASKS, stability_label
from .result import stability_result
from .rows import FIELDS, StabilitySummary, stability_rows, stability_summary

if TYPE_CHECKING:
    from .record import StabilityRecord


def view(recorded: Recorded[StabilityRecord]) -> View:
    """The view of the records of ``attnprobe stability``, with the trainings in the header."""
    from .figures import stability_figures

    rows = stability_rows(recorded.records)
    summary = stability_summary(rows)
    above = recorded.header
    header = replace(above, remarks=_trained(recorded.records), inputs=(), measured=())
    draw = lambda folder: stability_figures(rows, recorded.drawing, folder)
    return View(
        "stability",
        header,
        rows,
        stability_tables(summary),
        columns=COLUMNS,
        fields=FIELDS,
        title="The first steps of training",
        result=stability_result(rows),
        summary=summary,
        judged=summary,
        figures={"stability": Figure("stability", draw, "nothing was trained that could be drawn")},
    )


def stability_tables(summary: Sequence[StabilitySummary]) -> list[Table]:
    """A table for each task, a line for each method."""
    tables = []
    for group in grouped_by(summary, "task", "source"):
        first = group[0]
        caption = joined(
            first["task"],
            f"n ≤ {first['n']}",
            f"batch {first['batch']}",
            f"learning rate {first['rate']:g}",
            f"{first['steps']} steps",
            counted(group, "seeds"),
        )
        tables.append(table_of(caption, group, COLUMNS, reasons(group, stability_label)))
    return tables


def _mean_of(name: str, text: Callable[[float], str] = brief) -> Callable[[StabilitySummary], str]:
    """The mean over the seeds; empty if a seed has none."""

    def cell(row: StabilitySummary) -> str:
        mean = row["metrics"][name]["mean"]
        return "" if mean is None else text(mean)

    return cell


def _three(value: float) -> str:
    return significant(value, 3)


def _interval(row: StabilitySummary) -> str:
    ends = row["intervals"]["ratio"]
    is_base = row["method"] == SELF_ATTENTION and not row["options"]
    return "" if ends is None or is_base else " – ".join(map(_three, ends))


def _losses(row: StabilitySummary) -> str:
    ends = [significant(row[name], 4) for name in ("loss_first", "loss_last")]
    return " – ".join(ends) if all(ends) else ""


def _cond(name: str) -> Callable[[StabilitySummary], str]:
    return lambda row: brief(row["conditions"][name]["median"]) if name in row["conditions"] else ""


def _core(row: StabilitySummary) -> str:
    inverted = [name for name, entry in row["conditions"].items() if entry["inverted"]]
    return "; ".join(f"{name} {_cond(name)(row)}" for name in inverted)


COND = "σ₁/σ_m, median"
FIRST_TOKENS = (
    "over steps, layers, heads and seeds, of the first sequence of each batch; B and C of its first tokens on the "
    "method's own Q and K, core: what the method inverts"
)
RATIO = "of τ over self-attention's"
PAIRED = "mean over the steps on the same batches, and over seeds; the interval is Student's over the seeds, as pairs"
COLUMNS: tuple[Column, ...] = (
    Column("method", stability_label, key=True),
    Column("d", "{d}", key=True),
    Column(
        "ratio",
        _mean_of("ratio", _three),
        RATIO,
        more=PAIRED,
    ),
    Column("95 % interval", _interval, RATIO, more=PAIRED),
    Column(
        "paper",
        lambda row: "" if row["paper"] is None else f"{row['paper']:.2f}",
        "Skyformer's appendix F",
    ),
    Column(
        "ratio before norm",
        _mean_of("ratio_before_norm"),
        "before the last layer norm",
        spare=4,
        more="the ratio of the embedding there",
    ),
    Column(
        "τ",
        _mean_of("tau"),
        "squared change of the embedding over that of the weights",
        spare=1,
        more="‖f(x_i, W_i) − f(x_i, W_{i−1})‖²_F / ‖W_i − W_{i−1}‖²_F, mean over the steps and seeds, f the embedding "
        "after two layers and the last norm",
    ),
    Column("loss, first – last", _losses, "of the first and last step", spare=3, short="loss", more="mean over seeds"),
    Column("‖∇‖", _mean_of("gradient_norm", _three), "mean norm of the gradient", spare=5, short="∇"),
    Column("cond B", _cond("B"), COND, spare=6, more=FIRST_TOKENS),
    Column("cond C", _cond("C"), COND, spare=7, more=FIRST_TOKENS),
    Column("cond core", _core, COND, spare=2, more=FIRST_TOKENS),
    Column("status", lambda row: "" if row["status"] == "ok" else row["status"]),
)


def _trained(records: Sequence[StabilityRecord]) -> list[str]:
    """The lines of the header: which of the five tasks ran, and how the training differs from the paper's."""
    ran = list(dict.fromkeys(record["task"] for record in records))
    rest = [name for name in TASKS if name not in ran]
    lines = [f"tasks: {', '.join(ran)} of the paper's five" + (f"; not run: {', '.join(rest)}" if rest else "")]
    lines.append(
        "trained: 2 layers, width 64, hidden 128, 2 heads, mean pooling, Adam; "
        "the same initial weights, batches and seeds of draws for every method"
    )
    for task in ran:
        record = next(one for one in records if one["task"] == task)
        paper = record["paper_setting"]
        words = {"batch": "batch", "n": "tokens at most", "rate": "learning rate"}
        off = [
            f"{word} {record[name]:g}, not {paper[name]:g}"
            for name, word in words.items()
            if record[name] != paper[name]
        ]
        lines.append(f"{task} here: {'; '.join(off) if off else 'the batch, length and learning rate of the paper'}")
    return lines
