"""What ``attnprobe condition`` shows: rows per head, their summary per matrix, and tables in every format."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ...errors import unknown
from ...records.file import SCHEMA, strict_json
from ...tables.console import STYLES, UNLIMITED, Header, console_of, finished, print_header, width_of
from ...tables.formats import FORMATS, Plain, render
from ...tables.labels import identity, scale_of, source_heading, source_labels
from ...tables.numbers import brief, method_label, significant
from ...tables.statistics import quantiles, rank_correlation

__all__ = ["condition_legend", "condition_rows", "condition_tables", "conditions_summary", "render_conditions"]

Record = Mapping[str, Any]
Row = dict[str, Any]

ERROR = "output_spectral_relative"
SYMBOLS = {"SAS": "SᵀĀS", "SCS": "SᵀC̄S", "SCS+ridge": "SᵀC̄S + γI", "N0": "N at γ = 0"}
ORDER = ("A", "B", "C", "B~", "A_S", "SAS", "SCS", "SCS+ridge", "N0", "N")
STEPS = (0, 2, 4, 6, 8, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
SPARE = ("at m/2", "repeated", "effective", "[p10 – p90]", "rank")
LEGEND = (
    "cond: σ₁/σ_m in float64, median over heads and windows; a matrix whose smallest singular value is rounding has no "
    "value and counts as singular. rank: σ > m eps σ₁, median, of m. effective: σ₁/σ_rank. at m/2: σ₁/σ_{m/2}. "
    "repeated: rows that repeat exactly, median. error: ‖E‖₂/‖BV‖₂ of the "
    "method. ρ: Spearman's rank correlation of cond and error, over so many heads. ●: the method inverts this matrix."
)
STRONG = 0.5  # |ρ| from which on the legend counts rows


def condition_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per matrix and head; a cell without matrices is one row with its reason."""
    records = list(records)
    labels = source_labels(records)
    rows = []
    for record in records:
        place = {name: record.get(name) for name in ("method", "options", "target", "layer", "window", "n", "d")}
        place["weights"] = (record.get("source") or {}).get("weights")
        place["source"] = labels[identity(record.get("source"))]
        place["scale_inputs"] = scale_of(record.get("source"))
        state = {"status": record["status"], "reason": record.get("reason")}
        errors = record["metrics"].get(ERROR)
        changes = dict(record["metrics"].get("sensitivity") or {})
        found = [(m["matrix"], m) for m in record["matrices"]]
        found += [(name, None) for name in changes if name not in dict(found)]
        for name, measured in found:
            for index, head in enumerate(record["heads"]):
                row = {"matrix": name, **place, "head": head, "error": errors[index] if errors else None, **state}
                empty = dict.fromkeys(("cond", "flag", "rank", "cond_at", "cond_eff", "duplicates"))
                if measured is not None:
                    row |= {"size": measured["size"], "inverted": measured["inverted"]}
                    row |= {key: values[index] for key, values in sorted(measured["metrics"].items())}
                row = empty | row
                if name in changes:
                    row["sensitivity"] = changes[name][index]
                rows.append(row)
        if not found:
            rows.append({"matrix": None, **place, "head": None, **state})
    return rows


def conditions_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, layer, n, matrix, method with options, d), over heads and windows, in the tables' order.

    A flagged matrix counts as infinitely ill-conditioned: a quantile that reaches one is infinite (null in JSON), and
    in the rank correlation flagged heads are tied at the top. ``spearman`` is null below 3 heads, or where all tie.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        who = (row["matrix"], row["method"], strict_json(row["options"] or {}), row["d"])
        groups.setdefault((row.get("source"), row["layer"], row["n"], *who), []).append(row)
    found = [_summary(some) for some in groups.values()]
    sources = list(dict.fromkeys(row["source"] for row in found))
    place = {name: index for index, name in enumerate(ORDER)}
    order = lambda row: (sources.index(row["source"]), row["layer"], row["n"], place.get(row["matrix"], len(place)))
    return sorted(found, key=order)


def render_conditions(
    rows: Sequence[Row], summary: Sequence[Row], header: Header, format: str, run: str | None, width: int | None = None
) -> str:
    """The rows as text: ``json`` holds rows and summary, ``jsonl`` and ``csv`` the rows per head, the others tables.

    Args:
        rows, summary: of `condition_rows` and `conditions_summary`.
        width: the terminal's width; None is as wide as needed.
    """
    if format == "json":
        whole = {
            "schema": SCHEMA,
            "command": "condition",
            "source": header.source,
            "rows": rows,
            "summary": summary,
            "bounds": [],
            "run": run,
        }
        if header.inputs:
            whole["inputs"] = header.inputs
        return strict_json(whole, indent=2)
    if format in ("jsonl", "csv"):
        return render(rows, [], header, format, run, command="condition")
    tables = _tables(summary)
    if format == "table":
        return _terminal(tables, condition_legend(summary), header, run, width)
    if format not in ("md", "latex"):
        raise unknown("format", format, FORMATS)
    parts = []
    for index, (caption, lines, notes) in enumerate(tables):
        plain = [{key: text.strip() for key, text in line.items()} for line in lines]
        parts.append(render(plain, [], header if index == 0 else Header(), format, None, command=caption))
        parts += notes if format == "md" else []
    told = condition_legend(summary)
    tail = [told, f"Run: {run}"] if format == "md" else [f"% {told}", f"% run: {run}"]
    return "\n\n".join([*parts, *tail])


def condition_legend(summary: Sequence[Row]) -> str:
    """What the columns mean, and how the condition numbers of this run go with its errors."""
    known = [(row["spearman"], row["spearman_count"]) for row in summary if row.get("spearman") is not None]
    if not known:
        return LEGEND
    rho, heads = zip(*known, strict=True)
    ends = " to ".join(f"{end:+.2f}" for end in dict.fromkeys((min(rho), max(rho))))
    counts = " to ".join(map(str, dict.fromkeys((min(heads), max(heads)))))
    strong = sum(abs(one) >= STRONG for one in rho)
    return (
        f"{LEGEND} In this run ρ is {ends}, over {counts} heads a row, and |ρ| ≥ {STRONG:g} in {strong} of {len(rho)} "
        f"row{'s' * (len(rho) != 1)}."
    )


def condition_tables(summary: Sequence[Row]) -> list[Plain]:
    """The tables for people as strings."""
    found = []
    for caption, lines, notes in _tables(summary):
        names = list(lines[0]) if lines else []
        found.append(Plain(caption, names, [[line[name].strip() for name in names] for line in lines], notes))
    return found


def _summary(some: Sequence[Row]) -> Row:
    """The summary of the rows of one matrix."""
    first = some[0]
    names = (
        "matrix",
        "method",
        "options",
        "target",
        "weights",
        "source",
        "scale_inputs",
        "layer",
        "n",
        "d",
        "size",
        "inverted",
    )
    found = {name: first.get(name) for name in names}
    statuses = [row["status"] for row in some]
    found["status"] = next((word for word in ("failed", "diverged", "skipped") if word in statuses), "ok")
    found["reason"] = next((row["reason"] for row in some if row["reason"]), None)
    found["heads"], found["windows"] = len({row["head"] for row in some}), len({row["window"] for row in some})
    found["flagged"] = None
    measured = [row for row in some if row.get("rank") is not None]
    if measured:
        conds = [math.inf if row["cond"] is None else row["cond"] for row in measured]
        half = str(max(1, first["size"] // 2))
        found["count"] = len(measured)
        found["flagged"] = sum(row["flag"] is not None for row in measured)
        found["cond"] = quantiles(conds)
        at = [row["cond_at"][half] for row in measured]
        found["cond_at_half"] = quantiles([math.inf if value is None else value for value in at])["median"]
        for name in ("rank", "cond_eff", "duplicates", "gradient", "gradient_six"):
            if name in first:
                found[name] = quantiles([math.inf if row[name] is None else row[name] for row in measured])["median"]
        pairs = [(c, row["error"]) for c, row in zip(conds, measured, strict=True) if row.get("error") is not None]
        found["spearman"] = rank_correlation(*zip(*pairs, strict=True)) if pairs else None
        found["spearman_count"] = len(pairs)
    errors = [row["error"] for row in some if row.get("error") is not None]
    found["error"] = quantiles(errors)["median"] if errors else None
    if verdicts := [row["lemma3"] for row in measured if row.get("lemma3")]:
        found["lemma3"] = {word: verdicts.count(word) for word in ("holds", "zero", "violated")}
        found["eigen_min"] = min(row["eigen_min"] for row in measured)
        found["eigen_max"] = max(row["eigen_max"] for row in measured)
    if changes := [x for row in some for x in row.get("sensitivity") or () if x is not None]:
        found["sensitivity"] = {**quantiles(changes), "max": max(changes), "count": len(changes)}
    if residuals := [row["residuals"] for row in measured if row.get("residuals")]:
        each = [[math.inf if x is None else x for x in step] for step in zip(*residuals, strict=True)]
        spread = [quantiles(step) for step in each]
        found["residuals"] = {key: [q[key] for q in spread] for key in ("p10", "median", "p90")}
        found["start"] = first.get("start")
    return found


Shown = tuple[str, list[dict[str, str]], list[str]]  # caption, lines, notes


def _tables(summary: Sequence[Row]) -> list[Shown]:
    """Up to four tables for each (source, layer, n): conditions, changes, gradients, residuals."""
    places = list(dict.fromkeys((source_heading(row), row["layer"], row["n"]) for row in summary))
    tables: list[Shown] = []
    for source, layer, n in places:
        here = [row for row in summary if (source_heading(row), row["layer"], row["n"]) == (source, layer, n)]
        heads, windows = (max(row[name] for row in here) for name in ("heads", "windows"))
        where = f"{source} · " if source else ""
        where += f"layer {layer} · n = {n} · {heads} head{'s' * (heads != 1)} x {windows} window{'s' * (windows != 1)}"
        rows = [row for row in here if "cond" in row]
        notes = [note for row in rows if (note := _lemma3(row))]
        told = [row for row in here if row["status"] != "ok" or (row["reason"] and "cond" not in row)]
        for row in told:
            who = f"{method_label(row)} " if row["method"] else ""
            budget = "" if row["d"] is None else f"d = {row['d']} "
            note = f"{who}{budget}{row['status'] if row['status'] != 'ok' else ''}: {row['reason']}".replace(" :", ":")
            if note not in notes:
                notes.append(note)
        tables.append((f"Condition numbers · {where}", _columns([_line(row) for row in rows]), notes))
        rows = [row for row in here if "sensitivity" in row]
        if rows:
            count = rows[0]["sensitivity"]["count"]
            lines = [
                {**_who(row), **_spread("change", row["sensitivity"]), "max": brief(row["sensitivity"]["max"])}
                for row in rows
            ]
            caption = f"Relative change per relative change of Q and K, {count} directions · {where}"
            tables.append((caption, _columns(lines), []))
        rows = [row for row in here if "gradient_six" in row]
        if rows:
            lines = [
                {**_who(row), "‖M⁻¹‖₂²": brief(row["gradient"]), "six steps": brief(row["gradient_six"])}
                for row in rows
            ]
            caption = f"Gradient norm through each core, ‖∂M⁻¹/∂M‖₂ and that of six Schulz steps, median · {where}"
            tables.append((caption, _columns(lines), ["A core k times as large has a gradient norm k² times smaller."]))
        rows = [row for row in here if "residuals" in row]
        if rows:
            last = len(rows[0]["residuals"]["median"]) - 1
            steps = [step for step in STEPS if step < last] + [last]
            lines = [
                {
                    **_who(row),
                    "start": row["start"],
                    **{f"t = {step}": brief(row["residuals"]["median"][step]) for step in steps},
                }
                for row in rows
            ]
            tables.append((f"‖I − MZ_t‖_F/√d of the Schulz iteration, median · {where}", _columns(lines), []))
    return tables


def _who(row: Row) -> dict[str, str]:
    name = SYMBOLS.get(row["matrix"], row["matrix"])
    return {
        "matrix": name,
        "": "●" if row["inverted"] else "",
        "method": method_label(row) if row["method"] else "",
        "d": "" if row["d"] is None else str(row["d"]),
    }


def _line(row: Row) -> dict[str, str]:
    """One matrix as the cells of a line."""
    rho = row["spearman"]
    return {
        **_who(row),
        **_spread("cond", row["cond"]),
        "singular": f"{row['flagged']}/{row['count']}" if row["flagged"] else "",
        "rank": f"{row['rank']:g}/{row['size']}",
        "effective": brief(row["cond_eff"]),
        "at m/2": brief(row["cond_at_half"]),
        "repeated": f"{row['duplicates']:g}",
        "error": significant(row["error"], 3),
        "ρ": "" if row["error"] is None else "–" if rho is None else f"{rho:+.2f} ({row['spearman_count']})",
    }


def _spread(name: str, stats: Mapping[str, float]) -> dict[str, str]:
    return {name: brief(stats["median"]), "[p10 – p90]": f"[{brief(stats['p10'])} – {brief(stats['p90'])}]"}


def _columns(lines: list[dict[str, str]]) -> list[dict[str, str]]:
    """Only the columns that hold something."""
    kept = [name for name in (lines[0] if lines else ()) if any(line[name] for line in lines)]
    return [{name: line[name] for name in kept} for line in lines]


def _lemma3(row: Row) -> str | None:
    """What a scaled core says of Lemma 3's interval."""
    if "lemma3" not in row:
        return None
    counts, name = row["lemma3"], SYMBOLS.get(row["matrix"], row["matrix"])
    parts = [f"holds in {counts['holds']} of {sum(counts.values())} heads"]
    parts += [f"smallest eigenvalue zero to rounding in {counts['zero']}"] if counts["zero"] else []
    parts += [f"violated in {counts['violated']}"] if counts["violated"] else []
    least, d = max(row["eigen_min"], 0.0) if counts["zero"] else row["eigen_min"], row["d"]
    ends = f"eigenvalues from {significant(least, 2)} to {row['eigen_max']:.12g}"
    statement = "Lemma 3, spectrum in (0, 1] (printed open at 1, which is always reached)"
    return f"{statement}: {name} of {method_label(row)}, d = {d}: {', '.join(parts)}; {ends}"


def _terminal(tables: Sequence[Shown], legend: str, header: Header, run: str | None, width: int | None) -> str:
    """The tables; a terminal too narrow goes without the columns of `SPARE`, and says which; a pipe has them all."""
    terminal = width is not None or sys.stdout.isatty()
    room = (width or shutil.get_terminal_size().columns) if terminal else UNLIMITED
    gone: list[str] = []
    while True:
        drawn = [
            (caption, _rich([{k: v for k, v in line.items() if k not in gone} for line in lines]), notes)
            for caption, lines, notes in tables
        ]
        spared = [width_of(table) for _, table, _ in drawn if any(column.header in SPARE for column in table.columns)]
        if max(spared, default=0) <= room:
            break
        gone.append(SPARE[len(gone)])
    needed = max((width_of(table) for _, table, _ in drawn), default=0)
    console = console_of(max(needed, room if terminal else 100), terminal)
    print_header(console, header, terminal)
    for caption, table, notes in drawn:
        console.print()
        console.print(Text(caption, style="bold"), soft_wrap=not terminal)
        if table.row_count:
            console.print(table)
        for note in notes:
            console.print(Text(note, style=STYLES["!"]), soft_wrap=not terminal)
    if not drawn:
        console.print("no rows")
    console.print()
    told = legend + (f" Left out at this width: {', '.join(gone)} (`--format md` has all)." if gone else "")
    console.print(Text(told, style="dim"), width=min(console.width, max(80, min(needed, 120))))
    if run is not None:
        console.print(Text(f"run: {run}", style="dim"), soft_wrap=True)
    return finished(console)


def _rich(lines: Sequence[Mapping[str, str]]) -> Table:
    """A table; a matrix's name stands on the first of its lines, and a rule between exact matrices and cores."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in lines[0] if lines else ():
        table.add_column(name, justify="left" if name in ("matrix", "", "method", "start") else "right", no_wrap=True)
    for index, line in enumerate(lines):
        if index and bool(line.get("method")) != bool(lines[index - 1].get("method")):
            table.add_section()
        texts = [Text(text) for text in line.values()]
        if index and line["matrix"] == lines[index - 1]["matrix"]:
            texts[0] = Text("")
        table.add_row(*texts)
    return table
