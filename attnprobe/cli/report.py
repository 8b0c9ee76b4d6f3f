"""``attnprobe report``."""

from __future__ import annotations

from pathlib import Path

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
  from attnprobe.report import open_run, views
  for view in views(open_run("outputs/RUN")):
      print(view.text("md"))
\b
Exit codes: 0 fine, failed cells included, 2 usage, or a folder that is no run, 4 some records
could not be read and are left out, 130 interrupted."""


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
    from ..experiments.error.gates import METRICS
    from ..experiments.error.papers import read_reference
    from ..records.ownership import write_output
    from ..report import html_page, open_run, plot_kinds, views
    from .output import draw, keep_files, show
    from .streams import note

    refuse_unknown_format(format_)
    asked = kinds_from(plots, (*plot_kinds(), "all", "none"))
    if metric is not None and metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if out is not None and not out.strip():
        raise UsageError("--out has no name; leave it out for the run's own folder")
    papers = [read_reference(path) for path in references]
    opened = open_run(run)
    folder = opened.path if out is None else Path(out).expanduser()
    for line in opened.notes:
        note(line)
    found, figures = views(opened, metric, papers), []
    for view in found:
        show(view, folder, format_)
        keep_files(view, folder)
        figures += draw(view, folder, asked)
    pictures = [path for path in figures if path.suffix == ".svg"]
    page = write_output(folder, "report.html", html_page(opened, found, pictures))
    note(f"page: {page}")
    for kind in asked:
        if kind in plot_kinds() and not any(kind in view.figures for view in found):
            note(f"no figure of {kind}: this run left nothing to draw it from")
    if opened.malformed:
        raise click.exceptions.Exit(4)
