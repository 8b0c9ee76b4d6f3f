"""``attnprobe report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..measure import plot_kinds
from ..run.topics.showing import ALL
from .options import by_layer_option, check_shown, kinds_from, output_of, shown_options, style_option

if TYPE_CHECKING:
    from ..show.page import Report, Run
    from ..show.shown import Shown

EPILOG = """\b
Examples:
  attnprobe report outputs/20261121-084512-error-1a2b3c
  attnprobe report outputs/RUN --format latex > table.tex
  attnprobe report outputs/RUN --plot maps --out elsewhere
  attnprobe report outputs/A outputs/B --out both
  attnprobe report outputs/RUN --plot papers --reference skyformer_fig1.csv
\b
In Python:
  from attnprobe.show.page import open_run, views
  for view in views(open_run("outputs/RUN")):
      print(view.text("md"))"""


@click.command("report", epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--metric",
    metavar="NAME",
    help="The error that figures show. [default: output_spectral_relative, and output_spectral in the papers' panels]",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="FILE.csv",
    help="A paper's values, drawn as hollow markers in the figure papers. Columns: init, n, d, method, value, "
    "digitisation_uncertainty. Repeatable.",
)
@click.option(
    "--plot",
    "plots",
    multiple=True,
    metavar="KIND",
    help="Draw only these kinds of figures, of those that the rows have numbers for: "
    f"{', '.join(plot_kinds())}, all or none; repeatable and comma-separated. [default: all]",
)
@click.option(
    "--out",
    metavar="DIR",
    help="The folder for tables/, figures/ and report.html. With several runs, each has its own folder in it. "
    "[default: the run's folder; required with several runs]",
)
@style_option
@by_layer_option
@shown_options
def report(
    runs: tuple[str, ...],
    metric: str | None,
    references: tuple[str, ...],
    plots: tuple[str, ...],
    out: str | None,
    style: str,
    **shown: Any,
) -> None:
    """Rebuild every table and figure of a run from its rows alone.

    RUN is the folder of a run. Nothing is measured, and no model or text is needed. The command prints the tables and
    writes them as Markdown, CSV, JSON and LaTeX, identical to those of the measuring command. report.html is one page
    with all figures, sortable tables and the provenance. It needs no network. Several runs can share one page.
    Another --format, without --plot and --out, prints and writes nothing.
    """
    from ..errors import UsageError
    from ..files import path_of, reading
    from ..frame.papers import read_reference
    from ..frame.records.outputs import PAGE, write_output
    from ..measure import experiment
    from ..show.page import html_page, open_run, views
    from .output import columns_of, show
    from .streams import note

    # everything is refused before anything is written
    output = output_of(**shown)
    kinds = kinds_from(plots or (ALL,), plot_kinds())
    writes = output.format_ == "table" or bool(plots) or out is not None
    _refuse_impossible(len(runs), metric, style, out, output.format_)
    papers = [read_reference(path) for path in references]
    opened = [open_run(run) for run in runs]
    if len({run.path.resolve() for run in opened}) < len(runs):
        raise UsageError("a run is named twice; name each once")
    commands = dict.fromkeys(command for run in opened for command in run.records)
    check_shown(output, lambda: [experiment(command).catalogue for command in commands])
    page = opened[0].path if out is None else path_of(out)
    if page.exists() and not page.is_dir():
        raise UsageError(f"--out {page} is not a directory")
    reports = []
    for run, folder in zip(opened, _folders(opened, page), strict=True):
        with reading(run.path, UsageError, ": cannot be shown"):
            shown_views = views(run, metric, papers, style)
            for line in run.notes:
                note(line)
            for view in shown_views:
                show(view, output)
            if writes:
                reports.append(_rebuilt(run, shown_views, folder, page, kinds, columns_of(output)))
    if writes:
        note(f"page: {write_output(page, PAGE, html_page(reports))}")
    if any(run.malformed for run in opened):
        raise click.exceptions.Exit(4)


def _refuse_impossible(runs: int, metric: str | None, style: str, out: str | None, format_: str) -> None:
    """Refuse options that are wrong for so many runs, whatever the runs hold."""
    from ..errors import UsageError, unknown
    from ..frame.metric import ERROR
    from ..show.styles import check_style

    errors = [known.name for known in ERROR]
    if metric is not None and metric not in errors:
        raise unknown("metric", metric, errors)
    check_style(style)
    if out is not None and not out.strip():
        raise UsageError("--out is empty; name a folder, or leave --out away for the run's own folder")
    if out is None and runs > 1:
        raise UsageError("several runs need --out DIR, the folder of their common page")
    if runs > 1 and format_ in ("json", "jsonl", "csv"):
        raise UsageError(f"--format {format_} shows one run; for several, read the tables of each run under --out")


def _folders(runs: Sequence[Run], page: Path) -> list[Path]:
    """The folder of each run's tables and figures: next to the page, or one folder per run next to the page."""
    if len(runs) == 1:
        return [page]
    names: list[str] = []
    for run in runs:
        name = run.path.resolve().name or "run"
        # runs in different folders may have one name
        again = sum(other == name or other.startswith(f"{name}-again") for other in names)
        names.append(f"{name}-again{again}" if again else name)
    return [page / name for name in names]


def _rebuilt(
    run: Run, shown: Sequence[Shown], folder: Path, page: Path, kinds: Sequence[str], columns: Sequence[str]
) -> Report:
    """Write a run's tables and figures to a folder, and return what the page shows of the run.

    The page shows only the SVG figures that are drawn now: an older file may be of another run.
    """
    from ..show.page import Report
    from .output import draw, figure_files, is_named, keep_files
    from .streams import note

    files: list[Path] = []
    figures: list[Path] = []
    for view in shown:
        files += keep_files(view, folder, columns)
        figures += draw(view, folder, kinds)
        files += [path for figure in view.figures.values() for path in figure_files(folder, figure.stem)]
    for kind in kinds:
        if kind in plot_kinds() and not any(is_named(name, [kind]) for view in shown for name in view.figures):
            note(f"no figure of {kind}: this run did not measure its numbers")
    drawn = [path for path in figures if path.suffix == ".svg"]
    # SVG files stand in the page itself; an older one that was not drawn now may be another run's
    linked = sorted({path for path in (*files, *figures) if path.suffix != ".svg" or path in drawn})
    if folder.resolve() == run.path.resolve():
        linked += sorted(folder.glob("rows*.jsonl"))
        if run.manifest:
            linked.append(folder / "manifest.json")
    return Report(run, shown, drawn, [path.relative_to(page).as_posix() for path in linked])
