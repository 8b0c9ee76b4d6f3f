"""What a command that measures leaves behind: its answer on stdout, tables and figures in its folder, an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from .streams import answer, note

__all__ = ["draw", "ended", "header_of", "pictures", "shard_asked", "show", "whatever_fits"]


def shard_asked() -> str | None:
    """The ``--shard`` of the command that runs; None where it has none."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.params.get("shard")


def show(
    folder: Path,
    command: str,
    format_: str,
    rendered: Callable[[str], str],
    header: Any = None,
    kinds: Sequence[str] = ("md", "csv", "json"),
) -> None:
    """Answer with ``rendered(format_)``, and write it into ``tables/COMMAND.…`` in every one of ``kinds``.

    What the inputs are like stands beside them in ``tables/COMMAND-inputs.…``, where the header knows it. A shard's
    rows are printed alone: tables in the folder are of all shards.
    """
    from ..records.ownership import write_output

    answer(rendered(format_), styled=format_ == "table")
    if shard := shard_asked():
        note(
            f"shard {shard}: these rows are its own; once all have run, `attnprobe report {folder}` or this command "
            "without --shard makes tables and figures of the whole"
        )
        return
    forms = {kind: "latex" if kind == "tex" else kind for kind in kinds}
    for kind, form in forms.items():
        write_output(folder, f"tables/{command}.{kind}", rendered(form) + "\n")
    if header is not None and header.inputs:
        from ..report import Header, render

        plain = Header(header.source, header.lines, header.warnings)
        for kind, form in forms.items():
            text = render(header.inputs, [], plain, form, None, "inputs")
            write_output(folder, f"tables/{command}-inputs.{kind}", text + "\n")


@contextmanager
def whatever_fits(folder: Path) -> Iterator[list[str]]:
    """Let a run end where its tables and figures cannot be written; yields what was not, which is told."""
    lost: list[str] = []
    try:
        yield lost
    except UsageError as error:
        lost.append(str(error))
        note(f"{error}: tables and figures are not all there; `attnprobe report {folder}` makes them from the records")


def header_of(sources: Sequence[Any], folder: Path, records: Sequence[Any]) -> Any:
    """What stands above the tables and figures of a run: what its sources share once, and what each has of its own.

    Args:
        folder: where the inputs' statistics stand. records: of the run's cells.
    """
    from ..records.file import read_inputs
    from ..report import Header, input_lines, input_rows, source_labels

    facts = [source.facts for source in sources]
    told = [source.describe() for source in sources]
    shared = [line for line in told[0] if all(line in other for other in told)]
    lines = [*(line for own in told for line in own if line not in shared), *shared]
    warnings = list(dict.fromkeys(line for fact in facts for line in fact.get("fallback", ())))
    labels = source_labels({"source": fact} for fact in facts).values()
    source = facts[0] if len(facts) == 1 else dict(zip(labels, facts, strict=True))
    rows = input_rows(read_inputs(folder), records)
    return Header(source, lines, warnings, rows, input_lines(rows))


def pictures(folder: str | Path | None, stem: str) -> list[str]:
    """The names of the figures of one kind, ``figures/STEM-….svg`` and ``.png``, that this program left in a folder."""
    from ..records.ownership import produced

    if folder is None:
        return []
    with suppress(OSError, RuntimeError):  # a folder that cannot be is refused where it is made
        names = produced(Path(folder).expanduser())
        return [name for name in names if name.startswith(f"figures/{stem}-") and name.endswith((".svg", ".png"))]
    return []


def draw(folder: Path, plot: bool, stem: str, figures: Callable[[Path], list[Path]], nothing: str | None) -> list[Path]:
    """Draw into ``figures/`` where asked to, or where an older picture would contradict the new table.

    Older pictures of the kind that are not drawn again show what the table does not, and go; a user's own stay.

    Args:
        stem: what the names of this kind of figure begin with. figures: draws into a folder and returns the files.
        nothing: why there may be none; None says nothing of it.

    A shard draws nothing.
    """
    from ..records.ownership import remove_output, scratch, write_output

    if shard_asked():
        return []
    older = pictures(folder, stem)
    if not plot and not older:
        return []
    with scratch(folder) as place:
        drawn = {f"figures/{file.name}": file.read_bytes() for file in figures(place)}
    paths = [write_output(folder, name, data) for name, data in drawn.items()]
    for path in paths:
        note(f"figure: {path}")
    if not paths and nothing:
        note(f"no figure: {nothing}")
    for name in older:
        if name not in drawn and remove_output(folder, name):
            note(f"removed, as it shows an earlier run: {folder / name}")
    return paths


def ended(records: Sequence[Mapping[str, Any]], lost: Sequence[str], failed: bool = False) -> click.exceptions.Exit:
    """How a command that measured ends: 1 where a gate failed, 4 where a cell is broken or a table is lost, else 0.

    Args:
        records: of the run's cells. lost: as `whatever_fits` yields it. failed: as `settled` says.

    >>> ended([{"status": "ok"}, {"status": "skipped"}], []).exit_code
    0
    >>> ended([{"status": "ok"}, {"status": "diverged"}], []).exit_code
    4
    >>> ended([{"status": "diverged"}], [], failed=True).exit_code
    1
    """
    broken = any(record["status"] in ("failed", "diverged") for record in records)
    return click.exceptions.Exit(1 if failed else 4 if broken or lost else 0)
