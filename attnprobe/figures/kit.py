"""What every figure is made with: pages, a canvas under its title, legends and axes; SVG and PNG that do not vary."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..grammar.foreign import printable
from ..records.file import write_bytes
from ..tables.numbers import short_hashes

__all__ = [
    "LINE",
    "SYMBOLS",
    "canvas",
    "chunks",
    "columns_for",
    "drawn",
    "escaped",
    "fixed_settings",
    "grid",
    "legend",
    "legend_below",
    "legend_columns",
    "letters",
    "logarithmic",
    "plain_ticks",
    "powers_of_two",
    "saved",
    "symbol",
    "tiles",
    "title_lines",
]

Item = TypeVar("Item")
Page = TypeVar("Page")

LINE = 0.16  # inches of a line of a heading
SYMBOLS = {
    "output_spectral": r"$\|(B-\tilde{B})V\|_2$",
    "output_spectral_relative": r"$\|(B-\tilde{B})V\|_2\;/\;\|BV\|_2$",
    "output_frobenius": r"$\|(B-\tilde{B})V\|_F$",
    "output_frobenius_relative": r"$\|(B-\tilde{B})V\|_F\;/\;\|BV\|_F$",
    "matrix_spectral": r"$\|B-\tilde{B}\|_2$",
    "matrix_spectral_relative": r"$\|B-\tilde{B}\|_2\;/\;\|B\|_2$",
    "matrix_frobenius": r"$\|B-\tilde{B}\|_F$",
    "matrix_frobenius_relative": r"$\|B-\tilde{B}\|_F\;/\;\|B\|_F$",
}


def symbol(metric: str) -> str:
    """A metric as a formula, or in words."""
    return SYMBOLS.get(metric, metric.replace("_", " "))


def escaped(text: str) -> str:
    r"""Text in which a dollar starts no mathematics, and which matplotlib does not hide for its first underscore.

    >>> print(escaped("a$b"), escaped("_c"))
    a\$b  _c
    """
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


# --- pages and files


def chunks(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """The items of each page, at most so many.

    >>> chunks("abcde", 2)
    ['ab', 'cd', 'e']
    """
    return [items[start : start + most] for start in range(0, len(items), most)]


def tiles(
    rows: Sequence[Item], columns: Sequence[Page], down: int, across: int
) -> list[tuple[Sequence[Item], Sequence[Page]]]:
    """The rows and columns of each page."""
    return [(some, beside) for some in chunks(rows, down) for beside in chunks(columns, across)]


def drawn(pages: Sequence[Page], draw: Callable[[Page], Any], stem: Path) -> list[Path]:
    """A figure for each page, saved as ``stem``, ``stem-2``, …; the files' paths."""
    paths = []
    with fixed_settings():
        for number, page in enumerate(pages, 1):
            suffix = f"-{number}" if number > 1 else ""
            paths += saved(draw(page), stem.with_name(f"{stem.name}{suffix}"))
    return paths


def saved(figure: Any, stem: Path) -> list[Path]:
    """The figure as SVG and PNG, byte for byte the same wherever the same rows are drawn.

    Laid out once for both: a layout takes as long as a drawing, and each file would have made it twice. A character
    that the font lacks is drawn as a box; SVG, which holds every text as a comment, holds it as `printable`.
    """
    files: dict[Path, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of glyphs that the font lacks, of names longer than a panel
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=metadata)
            files[stem.with_name(f"{stem.name}.{kind}")] = file.getvalue()
    for path, data in files.items():
        write_bytes(path, printable(data.decode()).encode() if path.suffix == ".svg" else data)
    return list(files)


@contextmanager
def fixed_settings() -> Iterator[None]:
    """matplotlib's own defaults whatever the user's matplotlibrc says, with ids that do not vary."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "attnprobe",
                "svg.fonttype": "path",
                "font.size": 9,
                "axes.titlesize": 9.5,
                "axes.labelsize": 9,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "xtick.labelsize": 8.5,
                "ytick.labelsize": 8.5,
                "legend.fontsize": 8.5,
                "savefig.dpi": 160,
            }
        )
        yield


# --- canvas and title


def letters(inches: float) -> int:
    """How many letters of a title stand in a line."""
    return int(inches * 15.5)


def title_lines(title: str, width: int) -> list[str]:
    """The title's lines, wrapped, without one that another holds already; a SHA-256 shows its first 12 digits."""
    lines = [printable(short_hashes(line)) for line in dict.fromkeys(title.split("\n"))]
    lines = [line for line in lines if line and not any(line != other and line in other for other in lines)]
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="    ")]


def canvas(
    title: str,
    told: Sequence[str],
    inches: float,
    tall: float,
    shape: tuple[int, int],
    panels: int | None = None,
    **sharing: Any,
) -> tuple[Any, list[Any]]:
    """A figure under its title, and its panels row by row.

    Args:
        title: the source and every fallback. told: lines beneath it, what is shown. tall: inches without these lines.
        shape: rows and columns of panels. panels: how many are used, the others are hidden; all by default.
        sharing: of matplotlib's ``subplots``.
    """
    from matplotlib.figure import Figure

    heading = [*title_lines(title, letters(inches)), *told]
    figure = Figure(figsize=(inches, tall + LINE * len(heading)), layout="constrained")
    axes = list(figure.subplots(*shape, squeeze=False, **sharing).flat)
    used = len(axes) if panels is None else panels
    for axis in axes[used:]:
        axis.set_visible(False)
    figure.suptitle("\n".join(heading), x=0.012, ha="left", fontsize=8, parse_math=False)
    return figure, axes[:used]


def grid(
    names: Sequence[str], width: float, height: float, title: str, told: str, columns: int = 3, shared: bool = True
) -> tuple[Any, list[Any]]:
    """A figure with a panel of each name, at most ``columns`` beside each other, under its title.

    Args:
        width, height: of a panel, in inches. shared: whether all panels have the same axes.
    """
    columns = min(columns, len(names))
    lines = math.ceil(len(names) / columns)
    inches = max(6.4, width * columns + 1.6)
    told_lines = textwrap.wrap(told, letters(inches))
    shape = (lines, columns)
    figure, panels = canvas(
        title, told_lines, inches, height * lines + 0.5, shape, len(names), sharex=shared, sharey=shared
    )
    for axis, name in zip(panels, names, strict=True):
        axis.set_title(name)
        axis.grid(color="#dddddd", linewidth=0.6)
    return figure, panels


def columns_for(lengths: Sequence[int]) -> int:
    """Panels side by side, of panels for these n: a column per n where there are several rows, else at most three."""
    distinct = len(set(lengths))
    if 1 < distinct <= 4 and len(lengths) > distinct:
        return distinct
    return {1: 1, 2: 2, 4: 2}.get(len(lengths), 3)


# --- legends


def legend(figure: Any, handles: Mapping[str, Any], columns: int, **look: Any) -> None:
    """The legend beneath all panels; none without entries."""
    if handles:
        place = {"loc": "outside lower center", "frameon": False}
        figure.legend(handles.values(), handles.keys(), ncols=columns, **place, **look)


def legend_below(axis: Any, handles: Mapping[str, Any], drop: float, **look: Any) -> None:
    """A panel's own legend, so far beneath it."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -drop), "frameon": False, "fontsize": 7.5}
    axis.legend(handles.values(), handles.keys(), **place, **look)


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """How many legend entries stand side by side."""
    return max(1, min(len(labels), int(inches / (0.5 + 0.07 * max(map(len, labels), default=1)))))


# --- axes


def logarithmic(axis: Any) -> None:
    """Both axes logarithmic, with numbers at powers of ten alone."""
    from matplotlib.ticker import NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())


def powers_of_two(axis: Any, values: Sequence[int], labels: Sequence[str] | None = None) -> None:
    """A horizontal axis on which doubling is one step, with ticks at the values alone."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(values, labels or [str(value) for value in values])


def plain_ticks(axis: Any, ends: tuple[float, float], dense: float = 60) -> None:
    """Ticks of a logarithmic axis without exponents: at 1, 2 and 5 where its ends are less than ``dense`` apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ends
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < dense * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
