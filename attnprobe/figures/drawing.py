"""How the figures of a run are drawn: size, type, and the facts of the run for captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from ..files import path_of, reading

MPLSTYLE = ".mplstyle"
SMALLER = 1.25  # the size of titles over that of small type


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

    def inches(self, across: int, width: float = 0.0) -> float:
        """The width of a figure with so many panels of this width, in inches, in a row."""
        return self.narrow if across == 1 and width <= self.narrow else self.wide

    def across(self, width: float) -> int:
        """How many panels of at least this width, in inches, fit in a row.

        >>> STYLES["paper"].across(2.1), STYLES["slide"].across(10.0)
        (3, 1)
        """
        return max(1, int(self.wide / width))

    def down(self, height: float) -> int:
        """How many panels of this height, in inches, fit in a column; title and legend take an inch.

        >>> [STYLES["paper"].down(height) for height in (4.0, 4.1, 20.0)]
        [2, 1, 1]
        """
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
        style: a name of `STYLES`, or a style of matplotlib's, by its name or as ``FILE.mplstyle``: what it sets wins
            over our look, and the rest is as in a paper. facts: what captions say of the run, a line each: model,
            text, fallbacks, version, command. collected: takes the figures in the place of files.
    """

    style: str = "paper"
    facts: Sequence[str] = ()
    collected: list[Any] | None = None

    @cached_property
    def theirs(self) -> dict[Any, Any]:
        """What the user's matplotlibrc and then a style of matplotlib's set, by matplotlib's names of settings."""
        import matplotlib

        from ..show.looks import refusing

        theirs = _settings(matplotlib.matplotlib_fname())
        if self.style not in STYLES:
            path = _theirs().get(self.style, self.style)
            with reading(path, UsageError, ": no style of matplotlib"), refusing():
                theirs |= _settings(path)
        return {name: value for name, value in theirs.items() if name != "backend"}

    @property
    def sizes(self) -> Style:
        """Sizes of the style; a user's ``figure.figsize`` is the size of every figure."""
        style = STYLES.get(self.style, STYLES["paper"])
        if self.style == "slide" or "figure.figsize" not in self.theirs:
            return style
        wide, tall = self.theirs["figure.figsize"]
        return Style(narrow=wide, wide=wide, tall=tall, fixed=True, size=style.size)

    @property
    def small(self) -> float:
        """The size of small type in points, such as names of the lines of maps."""
        return self.theirs.get("font.size", self.sizes.size) / SMALLER

    @property
    def titled(self) -> bool:
        """Whether the title stands above the figure, as on slides; in a paper, the caption says it."""
        return self.style == "slide"


def _theirs() -> dict[str, str]:
    """The files of matplotlib's own styles, by their names; those with an underscore are of its tests."""
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "stylelib")
    return {path.stem: str(path) for path in sorted(folder.glob(f"[!_]*{MPLSTYLE}"))}


def _settings(path: str) -> dict[Any, Any]:
    """What a file of matplotlib's settings sets."""
    import matplotlib

    return dict(matplotlib.rc_params_from_file(path, use_default_template=False))


def check_style(style: str) -> None:
    """Refuse a style that is neither in `STYLES` nor a style of matplotlib's, by its name or as a file."""
    if style in STYLES or style in _theirs():
        return
    if not style.endswith(MPLSTYLE):
        raise unknown("style", style, [*STYLES, *_theirs(), f"FILE{MPLSTYLE}"])
    if not path_of(style).is_file():
        raise UsageError(f"--style {style}: no such file")
    _ = Drawing(style).theirs  # reads it
