"""``attnprobe report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import debug_option, format_option, kinds_from, refuse_unknown_format

EPILOG = """\b
Examples:
  attnprobe report outputs/20261121-084512-error-1a2b3c
  attnprobe report outputs/RUN --format latex > table.tex
  attnprobe report outputs/RUN --plot maps --out elsewhere
  attnprobe report outputs/RUN --plot papers --reference skyformer_fig1.csv
\b
In Python:
  from pathlib import Path
  from attnprobe.report import open_run, parts
  for part in parts(open_run("outputs/RUN")):
      print(part.text("md"))
\b
Exit codes: 0 fine, failed cells included, 2 usage, or a folder that is no run, 130 interrupted."""


@click.command("report", epilog=EPILOG)
@click.argument("run", metavar="RUN")
@click.option(
    "--metric",
    metavar="NAME",
    help="The error that figures show. [default: output_spectral, and "
    "output_spectral_relative in those of heads and of cost]",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="FILE.csv",
    help="Values that a paper's figure shows, drawn as hollow markers in the panels of papers: columns init, "
    "n, d, method, value, digitisation_uncertainty; repeatable.",
)
@click.option(
    "--plot",
    "plots",
    multiple=True,
    default=("all",),
    metavar="KIND",
    help="The figures to draw, of those that the records can give: errors, papers, heads, cost, "
    "maps, spectrum, condition, theory, budget, bench, inject, stability, all or none; repeatable and "
    "comma-separated. [default: all]",
)
@click.option(
    "--out", metavar="DIR", help="Where tables/, figures/ and report.html are written. [default: the run's own folder]"
)
@format_option
@debug_option
def command(
    run: str,
    metric: str | None,
    references: tuple[str, ...],
    plots: tuple[str, ...],
    out: str | None,
    format_: str,
    debug: bool,
) -> None:
    """Rebuild every table and figure of a run from its records alone.

    RUN is the folder that a command left. Its records*.jsonl, manifest.json and maps/ are read; nothing is measured,
    and no model, text or torch is needed. Tables are written as Markdown, CSV, JSON and LaTeX, and the tables of the
    command are printed. What the command itself wrote is written again to the byte. report.html shows it all in one
    page that needs no network: figures inline, tables that sort, and the run's provenance.
    """
    from ..errors import UsageError, unknown
    from ..records.ownership import write_output
    from ..report import GATED_METRICS, PLOTS, html_page, open_run, parts, read_reference
    from .streams import note

    refuse_unknown_format(format_)
    asked = kinds_from(plots, (*PLOTS, "all", "none"))
    if metric is not None and metric not in GATED_METRICS:
        raise unknown("metric", metric, GATED_METRICS)
    if out is not None and not out.strip():
        raise UsageError("--out has no name; leave it out for the run's own folder")
    papers = [read_reference(path) for path in references]
    opened = open_run(run)
    folder = opened.path if out is None else Path(out).expanduser()
    for line in opened.notes:
        note(line)
    found = parts(opened, metric, papers)
    figures = [path for part in found for path in _write(part, folder, format_, asked)]
    pictures = [path for path in figures if path.suffix == ".svg"]
    page = write_output(folder, "report.html", html_page(opened, found, pictures))
    note(f"page: {page}")
    for kind in asked:
        if kind in PLOTS and not any(kind in part.figures for part in found):
            note(f"no figure of {kind}: this run left nothing to draw it from")


def _write(part: Any, folder: Path, format_: str, asked: list[str]) -> list[Path]:
    """Print a part, leave its tables and figures in the folder, and return the figures."""
    from ..records.file import strict_json
    from ..records.ownership import write_output
    from .output import draw, show

    show(folder, part.command, format_, part.text, part.header, ("md", "csv", "json", "tex"))
    for name, text in part.more.items():
        for kind in ("md", "csv", "json"):
            write_output(folder, f"tables/{name}.{kind}", text(kind) + "\n")
    for name, value in part.files.items():
        write_output(folder, name, strict_json(value, indent=2) + "\n")
    paths: list[Path] = []
    for kind, (stem, figures) in part.figures.items():
        nothing = "the records hold nothing to draw" if kind in asked else None
        paths += draw(folder, kind in asked or "all" in asked, stem, figures, nothing)
    return paths
