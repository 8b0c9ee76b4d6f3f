"""The results of a measuring command: its answer on stdout, tables and figures in its folder, gates, an exit code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from ..run.option import options_of
from ..run.topics.showing import ALL, Output
from .options import as_shown
from .streams import answer, echo, note

if TYPE_CHECKING:
    from ..files import Fields
    from ..judge.gates import Gate, Gated, GateResult
    from ..judge.junit import Case
    from ..show.shown import Drawn, Shown


def shard_of_command() -> str | None:
    """The ``--shard`` of the running command, or None."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.params.get("shard")


MOST_FIGURES = 4  # figures of a kind are named one by one up to so many
KINDS = {"md": "md", "csv": "csv", "json": "json", "tex": "latex"}  # endings of tables in a run's folder, with formats


def show(view: Shown, output: Output, announced: Collection[str] = (), verdict: Sequence[str] = ()) -> None:
    """Print a view. A line on stderr says how many tables have none of the columns of the user's choice.

    Args:
        announced: lines that the run wrote to stderr; a table on stdout does not repeat them.
        verdict: the results of gates as lines of Markdown.
    """
    view = replace(view, apart=("layer",)) if output.by_layer else view
    names = columns_of(output)
    if names and (missing := len(view.tables) - len(view.with_columns(names).tables)):
        note(f"--columns: {missing} of {len(view.tables)} tables have none of these columns and are left out")
    answer(view.text(**as_shown(output), above=verdict, announced=announced), styled=output.format_ == "table")


def columns_of(output: Output) -> Sequence[str]:
    """The columns of tables that a user chose. For CSV they are fields of rows, and no columns of tables."""
    return () if output.format_ == "csv" else output.columns or ()


def keep_files(view: Shown, folder: Path, columns: Sequence[str] = ()) -> list[Path]:
    """Write a view to ``tables/COMMAND.…`` in every format of `KINDS`, and its own files next to the rows.

    The statistics of the inputs are in ``tables/COMMAND-inputs.…``, if the header has them. A shard writes no tables,
    because those in the folder have the rows of all shards.

    Args:
        columns: of the view's tables in Markdown and LaTeX (see `Shown.text`).

    Returns the files that were written.
    """
    from ..frame.records.file import strict_json
    from ..frame.records.outputs import write_output

    paths = []
    if shard := shard_of_command():
        note(
            f"shard {shard}: these are the rows of this shard; after all shards, `attnprobe report {folder}` or this "
            "command without --shard makes the tables and figures"
        )
    else:
        by_name = {view.command: view, **{companion.command: companion for companion in view.companions}}
        if (inputs := view.inputs) is not None:
            by_name[f"{view.command}-inputs"] = inputs
        for name, part in by_name.items():
            for ending, form in KINDS.items():
                # CSV and JSON have all fields; a companion has other columns than the user chose from
                chosen = columns if part is view and ending in ("md", "tex") else ()
                paths.append(write_output(folder, f"tables/{name}.{ending}", part.text(form, columns=chosen) + "\n"))
    for name, value in view.files.items():
        path = write_output(folder, name, strict_json(value, indent=2) + "\n")
        paths.append(path)
        note(f"{name.partition('-')[0]}: {path}")
    return paths


@contextmanager
def tolerate_write_errors(folder: Path) -> Iterator[list[str]]:
    """A block in which failed writes of tables and figures are collected and printed, not raised."""
    lost: list[str] = []
    try:
        yield lost
    except UsageError as error:
        lost.append(str(error))
        note(f"{error}: some tables or figures are missing; `attnprobe report {folder}` makes them from the rows")


def figure_files(folder: str | Path | None, stem: str) -> list[Path]:
    """The files ``figures/STEM.svg``, ``figures/STEM-….svg`` and the like of one kind of figures in a folder."""
    from ..files import path_of
    from ..frame.records.outputs import OUTPUTS
    from ..show.styles import FILES

    if folder is None:
        return []
    with suppress(OSError, UsageError):  # a folder that cannot be is refused where it is made
        found = sorted((path_of(folder) / "figures").glob(f"{stem}[-.]*"))
        return [path for path in found if path.name.endswith(FILES) and OUTPUTS.fullmatch(f"figures/{path.name}")]
    return []


def draw(view: Shown, folder: Path, kinds: Collection[str]) -> list[Path]:
    """Draw figures of a view into ``figures/``, and return their files. A shard draws nothing.

    Args:
        kinds: names of ``view.figures``, or first words of their names; ``all`` is every figure.
    """
    if shard_of_command():
        return []
    paths = []
    for kind, figure in view.figures.items():
        named = is_named(kind, kinds)
        if named or ALL in kinds:
            paths += _drawn(figure, folder, named)
    return paths


def is_named(figure: str, kinds: Iterable[str]) -> bool:
    """Whether a kind of figures is a figure's name, or the words that its name begins with.

    >>> is_named("bench-time", ["bench"]), is_named("bench-time", ["bench-memory"])
    (True, False)
    """
    return any(f"{figure}-".startswith(f"{kind}-") for kind in kinds)


def _drawn(figure: Drawn, folder: Path, named: bool) -> list[Path]:
    """The files of one kind of figure. If there are none and the kind was ``named``, stderr has the reason."""
    from ..frame.records.outputs import scratch, write_output
    from ..show.styles import FILES

    # drawn elsewhere first, so that a file in the folder is complete or not there
    with scratch(folder) as empty_folder:
        drawn = {f"figures/{file.name}": file.read_bytes() for file in figure.draw(empty_folder)}
    paths = [write_output(folder, name, data) for name, data in drawn.items()]
    drawings = [path for path in paths if path.suffix == FILES[0]]
    several = f"{len(drawings)} figures: {folder / 'figures' / figure.stem}*{FILES[0]}"
    names = [f"figure: {path}" for path in drawings] if len(drawings) <= MOST_FIGURES else [several]
    for name in names:
        note(f"{name}, and {', '.join(FILES[1:])}")
    if not paths and named:
        note(f"no figure: {figure.nothing}")
    if paths and figure.remark:
        note(figure.remark)
    return paths


def exit_of(cells: Sequence[Mapping[str, Any]], lost: Sequence[str], failed: bool = False) -> click.exceptions.Exit:
    """The exit code of a measuring command: 1 if a gate failed, 4 if a cell or a table is lost, else 0.

    Args:
        cells: those of the run. lost: the lines that `tolerate_write_errors` collected.
        failed: whether a gate failed or is undecided.

    >>> exit_of([{"status": "ok"}, {"status": "skipped"}], []).exit_code
    0
    >>> exit_of([{"status": "ok"}, {"status": "diverged"}], []).exit_code
    4
    >>> exit_of([{"status": "diverged"}], [], failed=True).exit_code
    1
    """
    # a skipped cell is no failure: its method has said that it cannot take the setting
    broken = any(cell["status"] in ("failed", "diverged") for cell in cells)
    return click.exceptions.Exit(1 if failed else 4 if broken or lost else 0)


def gates_of(request: Any, command: str, above: Sequence[str], below: Sequence[str], junit: str | None) -> list[Any]:
    """The gates of a sweep's file, of ``--fail-above`` and of ``--fail-below``; none for a command without gates."""
    from ..judge.junit import check_report
    from ..judge.parse import parse_gates
    from ..measure import experiment

    config = click.get_current_context().obj  # of a sweep
    gated = experiment(command).gated
    if gated is None:
        return []
    declared = [] if config is None else parse_gates(config.gates, gated)
    requested = limits_of(gated, above, below)
    refuse_impossible(requested, request)
    if junit is not None:
        check_report(junit)
    return [*declared, *requested.values()]


def limits_of(gated: Gated, above: Sequence[str], below: Sequence[str]) -> dict[str, Gate]:
    """The gates of ``--fail-above`` and ``--fail-below``, by what a message calls them."""
    from ..judge.parse import parse_gate

    found = {f"--fail-above {text}": parse_gate(text, gated) for text in above}
    return found | {f"--fail-below {text}": parse_gate(text, gated, least=True) for text in below}


def refuse_impossible(gates: Mapping[str, Any], request: Any) -> None:
    """Refuse gates that no run of a request can pass.

    Args:
        gates: by their names in messages.
    """
    from ..judge.parse import impossible_reason

    measures = {option.name: option.measures for option in options_of(type(request)) if option.measures}
    for where, gate in gates.items():
        if (why := impossible_reason(gate, request.known(), measures)) is not None:
            raise UsageError(f"{where}: {why}")


def judged(lines: Sequence[Fields], gates: Sequence[Any]) -> list[GateResult]:
    """The results of gates at the lines. A shard has only part of them, so its gates are not judged."""
    from ..judge.gates import check

    return [] if shard_of_command() else check(lines, gates)


def judge_gates(results: Sequence[GateResult], gates: Sequence[Any], junit: str | None) -> bool:
    """Whether a gate failed or is undecided. Results go to stderr, for a sweep's gates as a table, and to JUnit XML.

    Args:
        results: as `judged` gives them.
    """
    from ..judge.outcomes import gate_cases, gates_table

    if shard := shard_of_command():
        if gates:
            note(f"shard {shard}: gates are not judged for a part; run this command without --shard after all shards")
        return False
    for result in results:
        if not result.passed:
            note(f"gate {'undecided' if result.undecided else 'failed'}: {result.line}")
    failed = not all(result.passed for result in results)
    if gates and not failed:
        note(f"gates passed: {', '.join(map(str, gates))}")
    config = click.get_current_context().obj
    if config is not None and config.gates:
        echo(gates_table(results), err=True, styled=True)
    keep_cases(gate_cases(results), "gates", junit, failed)
    return failed


def begin_cases(gates: Sequence[Any], junit: str | None) -> None:
    """Write a failure of each gate to the file of ``--junit``. It stays there if the run does not finish."""
    from ..judge.junit import Case, write_junit

    if junit is not None and not shard_of_command():
        # a CI that only reads the file would take a missing file for success
        cases = [Case(gate.metric, str(gate), "the run did not finish", "unfinished") for gate in gates]
        write_junit(cases, "gates", junit)


def keep_cases(cases: Sequence[Case], suite: str, junit: str | None, failed: bool) -> None:
    """Write test cases to the file of ``--junit``, if there is one.

    Args:
        failed: whether a case failed. Then a file that cannot be written is only noted: the exit code is that of the
            failure.
    """
    from ..judge.junit import write_junit

    if junit is None:
        return
    try:
        write_junit(cases, suite, junit)
        note(f"{suite}: {junit}")
    except UsageError as error:
        if not failed:
            raise
        note(str(error))
