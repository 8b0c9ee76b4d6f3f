"""The lines above tables: what was measured, on what, and what the reader should be warned of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Header:
    """The facts of a run above its tables.

    Attributes:
        source: the facts as data. lines: the facts as lines. first: what was measured, in plain words. remarks: lines
            about the run.
        warnings: each fallback is one; a line that repeats a warning is shown once, as the warning.
    """

    source: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    first: str = ""
    remarks: Sequence[str] = ()

    @property
    def facts(self) -> list[str]:
        """The lines without the warnings, and the remarks."""
        # a fallback is a warning and one of the source's facts: the reader sees it once
        lines = [line for line in self.lines if not any(warning in line for warning in self.warnings)]
        return [*lines, *self.remarks]

    def above(self, announced: Collection[str] = ()) -> list[str]:
        """What stands above tables on a terminal, without the warnings that it has shown already."""
        told = [f"! {line}" for line in self.warnings if line not in announced]
        return [*filter(None, [self.first]), *(self.remarks if self.first else self.facts), *told]
