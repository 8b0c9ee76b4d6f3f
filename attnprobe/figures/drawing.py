"""How the figures of a run are drawn: size, type, and the facts of the run for captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """The size of figures and of their type.

    Attributes:
        narrow, wide: the width in inches of a figure with one panel in a row, and with several. tall: the largest
            height in inches. fixed: whether every figure has this height. size: of type, in points.
    """

    narrow: float
    wide: float
    tall: float
    fixed: bool
    size: float

    def inches(self, across: int) -> float:
        """The width of a figure with so many panels in a row."""
        return self.narrow if across == 1 else self.wide

    def across(self, width: float) -> int:
        """How many panels of at least this width, in inches, fit in a row.

        >>> STYLES["paper"].across(2.1), STYLES["slide"].across(10.0)
        (3, 1)
        """
        return max(1, int(self.wide / width))

    def down(self, height: float) -> int:
        """How many panels of this height, in inches, fit in a column; title and legend take an inch."""
        return max(1, int((self.tall - 1) / height))


# Paper: the widths of a column and of the text, 8 points. Slide: 16:9, whose type is large because the sheet is small.
STYLES = {
    "paper": Style(narrow=3.3, wide=6.9, tall=9.0, fixed=False, size=8),
    "slide": Style(narrow=6.4, wide=6.4, tall=3.6, fixed=True, size=9),
}


@dataclass(frozen=True)
class Drawing:
    """How the figures of a run are drawn.

    Attributes:
        style: a name of `STYLES`. caption: whether it stands below the figure too. facts: what captions say of the run,
            a line each: model, text, fallbacks, version, command.
    """

    style: str = "paper"
    caption: bool = False
    facts: Sequence[str] = ()

    @property
    def sizes(self) -> Style:
        """Sizes of the style."""
        return STYLES[self.style]
