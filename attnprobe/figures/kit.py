"""What every figure is made with: pages, a canvas under its title, legends and axes; files that do not vary."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..grammar.foreign import printable
from ..records.file import write_bytes
from ..tables.numbers import short_hashes
from .drawing import Drawing

__all__ = [
    "FILES",
    "SYMBOLS",
    "Sheet",
    "canvas",
    "chunks",
    "columns_for",
    "columns_of",
    "drawn",
    "escaped",
    "fixed_settings",
    "formula",
    "grid",
    "in_words",
    "legend",
    "legend_below",
    "legend_columns",
    "legend_inches",
    "letters",
    "logarithmic",
    "plain_ticks",
    "powers_of_two",
    "saved",
    "sentence",
    "symbol",
    "tiles",
    "title_inches",
    "title_lines",
]

Item = TypeVar("Item")
Page = TypeVar("Page")

FILES = (".svg", ".png", ".pdf", ".txt")  # of a figure; the last is its caption
DPI = 300
LEADING = 1.35  # of lines, over the size of their type
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
PLAIN = {"$": "", r"\|": "‖", r"\tilde{B}": "B~", r"\;": " ", "_2": "₂", "_F": "F", "-": " − "}
WORDS = {"output": "output error", "matrix": "matrix error"}


@dataclass(frozen=True)
class Sheet:
    """A figure, its title, and its caption: sentences that say what is drawn and which statistic."""

    figure: Any
    title: str
    caption: Sequence[str] = ()


def symbol(metric: str) -> str:
    """A metric as a formula, or in words."""
    return SYMBOLS.get(metric, metric.replace("_", " "))


def formula(metric: str) -> str:
    """A metric as a formula without mathematics' commands, for captions.

    >>> formula("output_spectral")
    '‖(B − B~)V‖₂'
    """
    text = SYMBOLS.get(metric, metric)
    for tex, plain in PLAIN.items():
        text = text.replace(tex, plain)
    return text


def in_words(metric: str) -> str:
    """A metric as a title has it.

    >>> in_words("output_spectral_relative"), in_words("max_abs")
    ('relative output error (spectral norm)', 'max abs')
    """
    if metric not in SYMBOLS:
        return metric.replace("_", " ")
    of, norm, *rest = metric.split("_")
    norm = norm.title() if norm == "frobenius" else norm
    return f"{'relative ' if rest else ''}{WORDS[of]} ({norm} norm)"


def sentence(text: str) -> str:
    """A text with a capital at its beginning, unless that is a symbol or the name of a file.

    >>> sentence("layer 0"), sentence("n = 512"), sentence("q.safetensors, n = 512")
    ('Layer 0', 'n = 512', 'q.safetensors, n = 512')
    """
    first = text.split(" ")[0].rstrip(",:")
    return text[:1].upper() + text[1:] if len(first) > 1 and "." not in first else text


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


def drawn(pages: Sequence[Page], draw: Callable[[Page], Sheet], stem: Path, drawing: Drawing) -> list[Path]:
    """A figure for each page, saved as ``stem``, ``stem-2``, …; the files' paths."""
    paths = []
    with fixed_settings(drawing):
        for number, page in enumerate(pages, 1):
            suffix = f"-{number}" if number > 1 else ""
            paths += saved(draw(page), stem.with_name(f"{stem.name}{suffix}"), drawing)
    return paths


def saved(sheet: Sheet, stem: Path, drawing: Drawing) -> list[Path]:
    """The figure as SVG, PNG and PDF, and its caption as text, the same to the byte for the same rows.

    Title and caption stand in the metadata of each file too; no file holds a date. The figure is laid out once for all:
    a layout takes as long as a drawing. A character that the font lacks is drawn as a box; SVG, which holds every text
    as a comment, holds it as `printable`.
    """
    figure = sheet.figure
    facts = [printable(short_hashes(line)) for line in drawing.facts]
    title, words = printable(sheet.title), printable(" ".join(sheet.caption))
    files: dict[Path, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of glyphs that the font lacks, of names longer than a panel
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
        within = _captioned(figure, [words, *facts], drawing.sizes.size - 1.5) if drawing.caption else None
        for kind, metadata in _metadata(title, [words, *facts]).items():
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=metadata, dpi="figure", bbox_inches=within)
            files[stem.with_name(f"{stem.name}.{kind}")] = file.getvalue()
    for path, data in files.items():
        write_bytes(path, printable(data.decode()).encode() if path.suffix == ".svg" else data)
    text = stem.with_name(f"{stem.name}{FILES[-1]}")
    write_bytes(text, "\n\n".join([title, words, "\n".join(facts)]).strip().encode() + b"\n")
    return [*files, text]


def _metadata(title: str, lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each kind of file says of itself."""
    text = "\n".join(filter(None, lines))
    return {
        "svg": {"Title": title, "Description": text, "Creator": "attnprobe", "Date": None},
        "png": {"Title": title, "Description": text, "Software": None},
        "pdf": {"Title": title, "Subject": text, "Keywords": "attention approximation", "CreationDate": None}
        | {"Creator": "attnprobe", "Producer": None},
    }


def _captioned(figure: Any, lines: Sequence[str], size: float) -> Any:
    """Draw a caption in small type below a figure that is laid out; what is to be saved, in inches."""
    from matplotlib.transforms import Bbox

    wide, tall = figure.get_size_inches()
    wrapped = [part for line in lines for part in textwrap.wrap(line, letters(wide, size))]
    inches = (len(wrapped) + 1) * size * LEADING / 72
    for legend in figure.legends:  # its place is the figure's, which what is saved is not
        box = legend.get_window_extent().transformed(figure.transFigure.inverted())
        legend.set_loc("lower left")
        legend.set_bbox_to_anchor((box.x0, box.y0), transform=figure.transFigure)
        legend.borderaxespad = 0
    look = {"va": "top", "fontsize": size, "color": "#333333", "parse_math": False, "linespacing": LEADING}
    figure.text(0.04 / wide, -0.5 * size / 72 / tall, "\n".join(wrapped), **look)
    return Bbox.from_extents(0, -inches, wide, tall)


@contextmanager
def fixed_settings(drawing: Drawing) -> Iterator[None]:
    """matplotlib's own defaults whatever the user's matplotlibrc says, with ids that do not vary."""
    import matplotlib

    size = drawing.sizes.size
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "attnprobe",
                "svg.fonttype": "path",
                "pdf.fonttype": 42,  # TrueType, which journals ask for
                "font.size": size,
                "axes.titlesize": size,
                "axes.labelsize": size,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.linewidth": 0.7,
                "xtick.labelsize": size - 1,
                "ytick.labelsize": size - 1,
                "legend.fontsize": size - 1,
                "legend.handlelength": 1.8,
                "legend.columnspacing": 1.2,
                "figure.dpi": DPI,
            }
        )
        yield


# --- canvas and title


def letters(inches: float, size: float) -> int:
    """How many letters of type of this size, in points, stand in a line."""
    return max(8, int(inches * 134 / size))


def title_lines(title: str, inches: float, size: float) -> list[str]:
    """A title in lines that are no longer than the figure."""
    return textwrap.wrap(printable(title), letters(inches, size))


def title_inches(lines: Sequence[str], size: float) -> float:
    """How tall the lines of a title are."""
    return len(lines) * size * LEADING / 72


def canvas(
    drawing: Drawing,
    title: str,
    caption: Sequence[str],
    tall: float,
    shape: tuple[int, int],
    panels: int | None = None,
    **sharing: Any,
) -> tuple[Sheet, list[Any]]:
    """A figure under its title, and its panels row by row.

    Args:
        title: what is drawn, and which statistic. caption: sentences that say the rest.
        tall: inches without the title, where the style leaves that free.
        shape: rows and columns of panels. panels: how many are used, the others are hidden; all by default.
        sharing: of matplotlib's ``subplots``.
    """
    from matplotlib.figure import Figure

    style = drawing.sizes
    inches = style.inches(shape[1])
    lines = title_lines(title, inches, style.size)
    height = style.tall if style.fixed else tall + title_inches(lines, style.size)
    figure = Figure(figsize=(inches, height), layout="constrained")
    axes = list(figure.subplots(*shape, squeeze=False, **sharing).flat)
    used = len(axes) if panels is None else panels
    for axis in axes[used:]:
        axis.set_visible(False)
    figure.suptitle("\n".join(lines), x=0.04 / inches, ha="left", fontsize=style.size, parse_math=False)
    return Sheet(figure, title, caption), axes[:used]


def grid(
    drawing: Drawing,
    title: str,
    caption: Sequence[str],
    names: Sequence[str],
    width: float,
    height: float,
    columns: int = 3,
    shared: bool = True,
) -> tuple[Sheet, list[Any]]:
    """A figure with a panel of each name, at most ``columns`` beside each other, under its title.

    Args:
        width, height: of a panel, in inches; the width is the least. shared: whether all panels have the same axes.
    """
    columns = min(columns, len(names), drawing.sizes.across(width))
    lines = math.ceil(len(names) / columns)
    sharing = {"sharex": shared, "sharey": shared}
    sheet, panels = canvas(drawing, title, caption, height * lines + 0.4, (lines, columns), len(names), **sharing)
    for axis, name in zip(panels, names, strict=True):
        axis.set_title(name)
        axis.grid(color="#dddddd", linewidth=0.6)
    return sheet, panels


def columns_for(lengths: Sequence[int]) -> int:
    """Panels side by side, of panels for these n: a column per n where there are several rows, else at most three."""
    distinct = len(set(lengths))
    if 1 < distinct <= 4 and len(lengths) > distinct:
        return distinct
    return {1: 1, 2: 2, 4: 2}.get(len(lengths), 3)


def columns_of(panels: Sequence[Any]) -> int:
    """How many panels of a figure stand side by side."""
    return panels[0].get_gridspec().ncols


# --- legends


def legend(sheet: Sheet, handles: Mapping[str, Any], columns: int, **look: Any) -> None:
    """The legend beneath all panels; none without entries."""
    if handles:
        place = {"loc": "outside lower center", "frameon": False}
        sheet.figure.legend(handles.values(), handles.keys(), ncols=columns, **place, **look)


def legend_below(axis: Any, handles: Mapping[str, Any], drop: float, **look: Any) -> None:
    """A panel's own legend, so far beneath it."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -drop), "frameon": False, "fontsize": "small"}
    axis.legend(handles.values(), handles.keys(), **place, **look)


def legend_columns(labels: Sequence[str], inches: float, size: float = 8) -> int:
    """How many legend entries stand side by side."""
    longest = max((len(plain_math(label)) for label in labels), default=1)
    return max(1, min(len(labels), int(inches / (0.45 + 0.0075 * (size - 1) * longest))))


def legend_inches(labels: Sequence[str], inches: float, size: float = 8) -> float:
    """How tall a legend beneath the panels is."""
    return math.ceil(len(labels) / legend_columns(labels, inches, size)) * 1.45 * size / 72 if labels else 0.0


def plain_math(label: str) -> str:
    """A label about as long as it is drawn, without the commands of mathematics."""
    return re.sub(r"\\[a-z]+|[${}\\]", "", label)


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
