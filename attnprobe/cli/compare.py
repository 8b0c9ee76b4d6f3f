"""``attnprobe compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .options import as_shown, check_shown, output_of, shown_options, write_sections

if TYPE_CHECKING:
    from ..frame.records.read import ReadRecords
    from ..judge.compare import Comparison
    from ..show.header import Header

EPILOG = """\b
Examples:
  attnprobe compare outputs/before outputs/after --strict
  attnprobe compare outputs/run --pair skyformer=nystromformer
  attnprobe compare outputs/run --pair skyformer=skyformer:guard=sampled --all-layers
  attnprobe compare outputs/decode --pair snapkv=h2o --metric kl,loss_change
\b
In Python:
  from attnprobe.judge.runs import compare_runs
  from attnprobe.measure import read_run
  compare_runs(read_run("outputs/a").records, read_run("outputs/b").records).regressions
\b
Verdicts:
  same       the change is within --tolerance, and so is its interval if the draws differ
  worse, better    the change is larger, and significant if the draws differ; also worse: a
             value that is no longer finite, or a cell whose status got worse
  undecided  chance decides between these, or rows do that rounding decides
  missing    the row was requested, but is in one run only
\b
docs/guide/compare.md has the tests.
\b
Exit codes: 0 no regression, 1 a regression, or with --strict an undecided or missing row; 2 wrong usage,
a file that is not a run, runs of different sources, no requested row of both with a number;
4 no regression, but some rows could not be read."""

GROUPS = {  # of the help
    "What is compared": ("pairs", "all_layers", "metrics"),
    "What counts as a change": ("statistic", "tolerance", "level", "strict"),
    "What is shown": ("junit", "format_", "columns", "debug"),
}


class Grouped(click.Command):
    """A command whose help has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {name: title for title, names in GROUPS.items() for name in names}
        *_, last = GROUPS
        params = self.get_params(ctx)
        # options of click itself, such as --help, stand in the last group
        sections = [
            (title, [param for param in params if groups.get(param.name or "", last) == title]) for title in GROUPS
        ]
        write_sections(formatter, ctx, sections)


@click.command("compare", cls=Grouped, epilog=EPILOG)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--pair",
    "pairs",
    multiple=True,
    metavar="LEFT=RIGHT",
    help="Compare two methods, LEFT of A with RIGHT of B, or of A if there is no B; repeatable. Each is as in "
    "--method: skyformer=skyformer:guard=sampled, or topk:d=32=window:d=64.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="METRIC",
    help="Metrics to compare; repeatable and comma-separated. [default of error: output_spectral_relative, and "
    "matrix_spectral_relative if both runs have it; of inject: kl, loss_change, drift, top1_agreement and "
    "residual_sum]",
)
@click.option(
    "--all-layers",
    is_flag=True,
    help="One row for all layers, tested over the heads of all, in place of a table for each layer.",
)
@click.option(
    "--tolerance",
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Largest change that counts as equal, as a share of A's value.",
)
@click.option(
    "--level",
    default=0.05,
    show_default=True,
    metavar="PROBABILITY",
    help="Two-sided significance level, for all rows of a table together.",
)
@click.option(
    "--statistic",
    metavar="NAME",
    help="Statistic of the pairs: mean, median, p10, p90 or max. [default: the mean; the median where rounding decides "
    "the mean]",
)
@click.option("--strict", is_flag=True, help="Exit with 1 also if a row is undecided or missing.")
@click.option(
    "--junit",
    metavar="FILE",
    help="Write the rows as JUnit XML, for CI: undecided and missing ones are skipped, with --strict failures.",
)
@shown_options
def compare(
    a: str,
    b: str | None,
    pairs: tuple[str, ...],
    metrics: tuple[str, ...],
    all_layers: bool,
    tolerance: float,
    level: float,
    statistic: str | None,
    strict: bool,
    junit: str | None,
    **shown: Any,
) -> None:
    """Compare run B with run A, cell by cell, and exit with 1 if B is worse.

    With --pair, compare two methods, of two runs or of one: RIGHT is worse, better, the same or undecided.

    A and B are folders of `attnprobe error`, `inject` or `bench`, or rows.jsonl files. Both runs must have the
    same weights, text, tokenizer, positions and dtype, by their hashes. For bench, both must be from the same machine;
    --metric takes ratio_to_exact and peak_bytes (the default), seconds and flops.
    """
    from ..errors import UsageError
    from ..files import reading
    from ..judge.junit import check_report
    from ..judge.runs import compare_runs
    from ..measure import read_run
    from ..show.shown import Catalogue, Shown
    from .streams import answer, note

    output = output_of(**shown)
    if junit is not None:
        check_report(junit)
    catalogue = Catalogue.of("compare")
    check_shown(output, lambda: [catalogue])
    names = [metric.strip() for text in metrics for metric in text.split(",")]
    runs = [read_run(path) for path in (a, b) if path is not None]
    if b is None and not pairs:
        raise UsageError("compare takes two runs, A and B, or one with --pair LEFT=RIGHT")
    paths = (a, b or a)
    # a run alone is both sides; `compare_runs` knows it by the same list
    records_a, records_b = runs[0].required(), runs[-1].required()
    _tell_left_out(paths, runs)
    with reading(", ".join(dict.fromkeys(paths)), UsageError, ": cannot be compared"):
        comparison = compare_runs(records_a, records_b, names, tolerance, level, paths, pairs, all_layers, statistic)
    if len(runs) == 2 and records_a == records_b:
        note("A and B have the same rows: a run equals itself")
    malformed = _tell_malformed(runs)
    header = _header(a, b, bool(pairs), tolerance, level, [*records_a, *records_b])
    rows = Shown("compare", catalogue, lambda kind: comparison.frame, header)
    answer(rows.text(**as_shown(output)), styled=output.format_ == "table")
    worse = _concluded(comparison, strict, junit, "worse" if pairs else "regression")
    raise click.exceptions.Exit(1 if worse else 4 if malformed else 0)


def _tell_left_out(paths: Sequence[str], runs: Sequence[ReadRecords[Any]]) -> None:
    """Note the cells of a run's folder that its last command did not ask for; they are not compared."""
    from ..frame.records.read import left_out_note
    from .streams import note

    left_out = {
        line: path for path, run in zip(paths, runs, strict=False) for line in left_out_note(path, run.left_out)
    }
    for line, path in left_out.items():
        note(f"{line}: the last command did not ask for them; name {path}/rows.jsonl to compare them too")


def _tell_malformed(runs: Sequence[ReadRecords[Any]]) -> bool:
    """Note the lines of runs that cannot be read. Returns whether there are some."""
    from ..frame.records.read import malformed_notes
    from .streams import note

    malformed = [line for run in runs for line in run.malformed]
    for text in malformed_notes(malformed, "is left out"):
        note(text)
    return bool(malformed)


def _header(
    a: str, b: str | None, pairs: bool, tolerance: float, level: float, records: Sequence[Mapping[str, Any]]
) -> Header:
    """What stands above the table: the runs, how they are compared, and their sources."""
    from ..frame.labels import sources_in_words
    from ..judge.runs import sources_of
    from ..show.header import Header

    sources = sources_of(records)
    facts = {"a": a, "b": b or a, "tolerance": tolerance, "level": level, "sources": sources}
    lines = [
        *([f"A: {a}", f"B: {b}"] if b else [f"run: {a}"]),
        "A, B: left and right of the arrow" if pairs else "A, B: the runs",
        f"verdict: on B, with tolerance {tolerance:g} of A, level {level:g}",
        "p and [interval]: corrected for all lines of a table, so that all hold together",
        *sources_in_words(sources),
    ]
    return Header(facts, lines)


def _concluded(comparison: Comparison, strict: bool, junit: str | None, word: str) -> bool:
    """Write the notes, the regressions (each begins with ``word``), and the test cases. Returns whether B is worse."""
    from ..judge.outcomes import comparison_cases, comparison_line
    from .output import keep_cases
    from .streams import note

    for line in comparison.notes:
        note(line)
    for row in comparison.regressions:
        note(f"{word}: {comparison_line(row)}")
    note(comparison.in_words())
    worse = bool(comparison.regressions or (strict and comparison.undecided))
    keep_cases(comparison_cases(comparison.rows, strict), "compare", junit, worse)
    return worse
