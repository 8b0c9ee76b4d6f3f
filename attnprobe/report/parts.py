"""The views of a run, made from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..arguments import checked
from ..compare.view import duels
from ..experiments import experiment
from ..experiments.base import Recorded
from ..figures.drawing import Drawing
from ..tables.console import Header
from ..tables.view import View
from .run import Run


@checked()
def views(
    run: Run,
    metric: str | None = None,
    references: Sequence[Any] = (),
    drawing: Drawing | None = None,
) -> list[View]:
    """The views of a run, one for each command with records.

    Args:
        metric: a further metric of figures of errors. references: values of papers, shown next to those of ``error``.
        drawing: the look of figures.
    """
    made = []
    for command, records in run.records.items():
        config = run.manifest.get("config") or {}
        header = run.header(records)
        look = replace(drawing or Drawing(), facts=_facts(run, command, header))
        against = duels(records) if command == "error" else {}
        recorded = Recorded(records, header, run.path, config, run.missing, metric, references, against, look)
        made.append(experiment(command).view(recorded).of_run(run.path))
    return made


def _facts(run: Run, command: str, header: Header) -> list[str]:
    """The facts of a run in captions of figures: sources, fallbacks, device and precision."""
    config, versions = run.manifest.get("config"), run.manifest.get("versions")
    version = versions.get("attnprobe") if isinstance(versions, dict) else None
    facts = [*header.facts, *header.warnings]
    facts += [f"attnprobe {version}"] if version else []
    return facts + ([experiment(command).command_line(config)] if config else [])
