"""The pages of a figure, and its files. The same rows give the same bytes."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..grammar.foreign import printable
from ..records.file import write_bytes
from ..tables.numbers import short_hashes
from .background import on_background
from .drawing import Drawing
from .kit import Sheet

Item = TypeVar("Item")
Page = TypeVar("Page")

FILES = (".svg", ".png", ".pdf", ".txt")  # of a figure; the last is its caption
DPI = 300
GRID = "#dddddd"


def chunks(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """The items of each page, at most so many.

    >>> chunks("abcde", 2)
    ['ab', 'cd', 'e']
    """
    return [items[start : start + most] for start in range(0, len(items), most)]


def drawn(pages: Sequence[Page], draw: Callable[[Page], Sheet], stem: Path, drawing: Drawing) -> list[Path]:
    """A figure for each page, saved as ``stem``, ``stem-2``, …; the files' paths."""
    paths = []
    with fixed_settings(drawing):
        for number, page in enumerate(pages, 1):
            suffix = f"-{number}" if number > 1 else ""
            paths += saved(draw(page), stem.with_name(f"{stem.name}{suffix}"), drawing)
    return paths


def saved(sheet: Sheet, stem: Path, drawing: Drawing) -> list[Path]:
    """Save the figure as SVG, PNG and PDF, and its caption as text. The same rows give the same bytes.

    The metadata of each file has title and caption, and no date. The layout is computed once for all files, because it
    takes as long as a drawing. A character that the font lacks is drawn as a box. SVG has each text as a comment too,
    as `printable`.
    """
    figure = sheet.figure
    facts = [printable(short_hashes(line)) for line in drawing.facts]
    title, words = printable(sheet.title), printable(" ".join(sheet.caption))
    files: dict[Path, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of glyphs that the font lacks, of names longer than a panel
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
        for axis in figure.axes:
            if axis.title.get_position()[1] == 1.0:  # nothing is above the panel: no file need lay out ticks to see it
                axis.set_title(axis.get_title(), fontsize=axis.title.get_size(), y=1.0)
        show_overlaps(figure)
        for finish in sheet.finish:
            finish()
        described = {"Title": title, "Description": "\n".join(filter(None, [words, *facts]))}
        keywords = {"Keywords": "attention approximation", "Creator": "attnprobe"}
        in_pdf = {"Title": title, "Subject": described["Description"], **keywords}
        for kind, metadata in {
            "svg": {**described, "Creator": "attnprobe", "Date": None},
            "png": {**described, "Software": None},
            "pdf": {**in_pdf, "CreationDate": None, "Producer": None},
        }.items():
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=metadata)
            files[stem.with_name(f"{stem.name}.{kind}")] = file.getvalue()
    for path, data in files.items():
        write_bytes(path, printable(data.decode()).encode() if path.suffix == ".svg" else data)
    text = stem.with_name(f"{stem.name}{FILES[-1]}")
    write_bytes(text, "\n\n".join([title, words, "\n".join(facts)]).strip().encode() + b"\n")
    return [*files, text]


@contextmanager
def fixed_settings(drawing: Drawing) -> Iterator[None]:
    """matplotlib's defaults with our look, then what the user's matplotlibrc and ``--style FILE`` set; fixed ids."""
    import matplotlib
    from matplotlib.colors import same_color

    size = drawing.sizes.size
    parts: dict[Any, float] = {"axes.titlesize": size, "axes.labelsize": size, "figure.titlesize": size}
    parts |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), size - 1)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "attnprobe",
                "pdf.fonttype": 42,  # TrueType, which journals ask for
                "font.size": size,
                **parts,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.linewidth": 0.7,
                "axes.grid": True,
                "grid.color": GRID,
                "grid.linewidth": 0.6,
                "legend.frameon": False,
                "legend.handlelength": 2.8,  # dashes are seen beside a marker
                "legend.columnspacing": 1.2,
                "figure.dpi": DPI,
            }
        )
        larger = drawing.theirs.get("font.size", size) / size
        matplotlib.rcParams.update({name: larger * one for name, one in parts.items()})
        matplotlib.rcParams.update(drawing.theirs)
        if same_color(matplotlib.rcParams["grid.color"], matplotlib.rcParams["text.color"]):  # louder than curves
            matplotlib.rcParams["grid.color"] = on_background(GRID)
        yield


NEAR = 0.5  # points between curves that hide each other
WIDER = 2.4  # points of line width for each curve above
LARGER = 4.0  # points of marker size for each curve above
PALE = 0.45  # opacity of a curve with another above it

Points = dict[float, float]


def show_overlaps(figure: Any) -> None:
    """Widen each curve that a curve above it covers, and make it pale. The layout must be final.

    Its markers are larger only where the curves above have markers at the same points.
    """
    for axis in figure.axes:
        lines = [line for line in axis.lines if line.get_linestyle() not in ("None", "", " ")]
        lines = [line for line in lines if line.get_alpha() is None and line.get_transform() == axis.transData]
        lines.sort(key=lambda line: line.get_zorder())  # without edges of bands and guides, which are translucent
        curves = [(line, _points(line, 72 / figure.dpi)) for line in lines]
        for place, (line, points) in enumerate(curves):
            above = [other for other, later in curves[place + 1 :] if _coincide(points, later)]
            if above:
                covered = sum(not _marked(line).isdisjoint(_marked(other)) for other in above)
                line.set_linewidth(line.get_linewidth() + len(above) * WIDER)
                line.set_markersize(line.get_markersize() + covered * LARGER)
                line.set_alpha(PALE)


def _marked(line: Any) -> set[float]:
    """The x of the points of a curve that have markers."""
    every, x = line.get_markevery(), list(line.get_xdata())
    if isinstance(every, tuple):
        start, step = every
        return set(x[start::step])
    return set(x if every is None else (x[place] for place in every))


def _points(line: Any, scale: float) -> Points:
    """The y of a line's points by their x, in points of the page; ``scale`` is the size of a pixel."""
    places = line.get_transform().transform(line.get_xydata()) * scale
    return {round(x, 2): y for x, y in places.tolist()}


def _coincide(one: Points, other: Points) -> bool:
    """Whether two curves have points at two common x at least, and are near each other at every common x."""
    gaps = [abs(one[x] - other[x]) for x in one.keys() & other.keys()]
    finite = [gap for gap in gaps if math.isfinite(gap)]
    return len(finite) > 1 and max(finite) < NEAR
