"""Error against budget, as SVG and PNG that are byte for byte the same wherever the same rows are drawn."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..grammar.foreign import printable
from ..records.file import write_bytes
from ..tables.labels import source_heading
from ..tables.methods import family
from ..tables.numbers import short_hashes
from .panels import CROSS, FLAG, crossed, dot_panel, flagged, has, legend_text, line_panel, scale, styles_of

__all__ = ["error_figure", "fixed_settings", "grid", "logarithmic", "saved", "title_lines"]

Row = Mapping[str, Any]
Place = tuple[Any, Any, Any, str, str | None]  # layer, n, target, source, and the family where each has a panel

PANELS = 12  # per figure
SPAN = 1e3  # of the panels of families about V-Mean's error
MOST_IN_PANEL = 8  # methods; the lines of more are drawn family by family
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


def error_figure(
    rows: Sequence[Row],
    bounds: Sequence[Row],
    header_line: str,
    out_dir: str | Path,
    metric: str = "output_spectral",
    relative: bool = False,
) -> list[Path]:
    """Draw ``metric`` against ``d``: one panel per (source, layer, n, target), one line per method.

    More than 8 methods of several families have a panel for each family, all on one scale.

    Points are medians over heads, windows and repeats and bars run from p10 to p90, because a mean is dominated by a
    few heads for the Nyström family (the bars of one ``d`` stand side by side so that they can be told apart). Ticks
    are maxima; points of rows with bad rows are hollow, and the legend has ``!`` at their methods. Methods
    without a budget are horizontal lines (V-Mean dashed), the lower bound is dotted where its median is positive; a
    cross marks a row in which cells diverged or failed. Where there is one ``d``, the figure is a dot plot instead:
    per method the median, p10 – p90 and the maximum.

    Args:
        header_line: the title: the source and every fallback, in one or more lines.
        out_dir: where ``error-METRIC.svg`` and ``.png`` are written (``-2``, … beyond 12 panels).
        relative: draw ``METRIC_relative``.

    Returns:
        The files' paths; none where no method's row holds the metric.
    """
    name = f"{metric}_relative" if relative and not metric.endswith("_relative") else metric
    kept = [row for row in rows if has(row, name) or crossed(row, name)]
    limits = [row for row in bounds if has(row, name)]
    if not any(has(row, name) for row in kept) or all(row.get("reference") for row in kept):
        return []
    budgets = {row["d"] for row in kept if row["d"] is not None and not row.get("reference")}
    families = list(dict.fromkeys(family(row) for row in kept if not row.get("reference")))
    place = {name: index for index, name in enumerate(families)}
    kept.sort(key=lambda row: (bool(row.get("reference")), place.get(family(row), -1)))
    styles = styles_of(rows, kept)
    crowded = sum(style["marker"] is not None for style in styles.values()) > MOST_IN_PANEL
    split = crowded and len(families) > 1 and len(budgets) > 1
    corners = list(dict.fromkeys(_corner(row) for row in rows))
    corners = [corner for corner in corners if any(_at(row, (*corner, None)) for row in kept)]
    places = [(*corner, name) for corner in corners for name in (families if split else (None,))]
    paths = []
    most = len(families) if split else PANELS
    with fixed_settings():
        for page in range(0, len(places), most):
            figure = _page(places[page : page + most], kept, limits, name, header_line, styles, len(budgets) < 2)
            suffix = f"-{page // most + 1}" if page else ""
            paths += saved(figure, Path(out_dir) / f"error-{name}{suffix}")
    return paths


def saved(figure: Any, stem: Path) -> list[Path]:
    """The figure as SVG and PNG, byte for byte the same wherever the same rows are drawn.

    Laid out once for both: a layout takes as long as a drawing, and each file would have made it twice. A character
    that the font lacks is drawn as a box; SVG, which holds every text as a comment, holds it as `printable`.
    """
    drawn: dict[Path, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of glyphs that the font lacks, of names longer than a panel
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=metadata)
            drawn[stem.with_name(f"{stem.name}.{kind}")] = file.getvalue()
    for path, data in drawn.items():
        write_bytes(path, printable(data.decode()).encode() if path.suffix == ".svg" else data)
    return list(drawn)


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


def _page(
    places: Sequence[Place],
    rows: Sequence[Row],
    bounds: Sequence[Row],
    name: str,
    title: str,
    styles: Mapping[str, dict[str, Any]],
    dots: bool,
) -> Any:
    """One figure of up to `PANELS` panels."""
    from matplotlib.figure import Figure

    split = places[0][4] is not None
    columns = min(4, len(places)) if split else columns_for(places)
    lines = math.ceil(len(places) / columns)
    inches = max(6.4, (2.7 if split else 3.4) * columns + 0.6)
    shown = [row for row in rows if any(_at(row, place) for place in places)]
    marked = flagged(shown)
    told = [*title_lines(title, int(inches * 15.5)), f"median, p10 – p90 and maximum (tick) over {counted(rows)}"]
    told[-1] += f"; hollow, {FLAG}" if marked else ""
    told += [_panel_title(places[0])] if split else []
    height = max(1.2, 0.28 * len(styles) + 0.5) if dots else (2.6 if lines > 1 else 3.0)
    keys = 0.17 * (MOST_IN_PANEL * lines / 2 if split else math.ceil(len(styles) / 4))
    figure = Figure(figsize=(inches, height * lines + 0.9 + keys + 0.16 * len(told)), layout="constrained")
    # where a row of panels is a layer or a source, with a column for each n, it has a scale of its own
    rowwise = not split and not dots and lines > 1 and len({place[1] for place in places}) == columns
    sharing = {"sharey": "row" if rowwise else True, "sharex": dots}
    panels = list(figure.subplots(lines, columns, squeeze=False, **sharing).flat)
    budgets = sorted({row["d"] for row in shown if row["d"] is not None})
    handles: dict[str, Any] = {}
    low, high = _span(shown, name) if split else (0.0, math.inf)
    label = f"{SYMBOLS.get(name, name.replace('_', ' '))}  (median, p10 – p90, max)"
    for index, (axis, place) in enumerate(zip(panels, places, strict=False)):
        here = [row for row in shown if _at(row, place)]
        limits = [row for row in bounds if _at(row, (*place[:4], None))]
        lowest = index + columns >= len(places)
        if dots:
            dot_panel(axis, here, limits, name, styles, handles)
            axis.set_xlabel(label if lowest else "")
            axis.tick_params(labelbottom=True)
        else:
            looks = styles_of(here) if split else styles
            own: dict[str, Any] = {}
            line_panel(axis, here, limits, name, looks, own, budgets)
            axis.set_xlabel("budget d" if lowest or split else "")
            axis.set_ylabel(label if index % columns == 0 else "")
            if split:
                mine = {key: own.pop(key) for key in looks if key in own and looks[key]["marker"]}
                mine = {_beyond(legend_text(key, flagged(here)), line, low, high): line for key, line in mine.items()}
                _legend_below(axis, mine, inches / columns)
            handles.update(own)
        axis.set_title(place[4] if split else _panel_title(place, budgets if dots else ()))
    for axis in panels[len(places) :]:
        axis.set_visible(False)
    step = columns if rowwise else len(places)
    for start in range(0, len(places), step):
        some = places[start : start + step]
        values = [row["metrics"][name] for row in shown if has(row, name) and any(_at(row, place) for place in some)]
        scale(panels[start : start + len(some)], values, dots, low, high)
    figure.suptitle("\n".join(told), x=0.012, ha="left", fontsize=8, parse_math=False)
    order = sorted(
        handles, key=lambda key: (key == CROSS, key not in styles, styles.get(key, {}).get("marker") is None)
    )
    if order:
        figure.legend(
            [handles[key] for key in order],
            [legend_text(key, marked) for key in order],
            loc="outside lower center",
            ncols=legend_columns(order, inches),
            frameon=False,
        )
    return figure


def grid(
    names: Sequence[str], width: float, height: float, title: str, told: str, columns: int = 3, shared: bool = True
) -> tuple[Any, list[Any]]:
    """A figure with a panel of each name, at most ``columns`` beside each other, under its title.

    Args:
        shared: whether all panels have the same axes.
    """
    from matplotlib.figure import Figure

    columns = min(columns, len(names))
    lines = math.ceil(len(names) / columns)
    inches = max(6.4, width * columns + 1.6)
    wide = int(inches * 15.5)
    heading = [*title_lines(title, wide), *textwrap.wrap(told, wide)]
    figure = Figure(figsize=(inches, height * lines + 0.5 + 0.16 * len(heading)), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False, sharex=shared, sharey=shared).flat)
    for axis in panels[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(panels, names, strict=False):
        axis.set_title(name)
        axis.grid(color="#dddddd", linewidth=0.6)
    figure.suptitle("\n".join(heading), x=0.012, ha="left", fontsize=8, parse_math=False)
    return figure, panels


def logarithmic(axis: Any) -> None:
    """Both axes logarithmic, with numbers at powers of ten alone."""
    from matplotlib.ticker import NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())


def _span(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """What the panels of families show: a factor of 1000 about V-Mean's error, or about the middle of all."""
    middles = [row["metrics"][name]["median"] for row in rows if has(row, name) and row.get("reference")]
    middles = middles or sorted(row["metrics"][name]["median"] for row in rows if has(row, name))
    middle = middles[len(middles) // 2]
    return (middle / SPAN, middle * SPAN) if middle > 0 else (0.0, math.inf)


def _beyond(label: str, line: Any, low: float, high: float) -> str:
    """A legend's label, which says where the line is when it does not cross the panel."""
    values = [value for value in line.get_ydata() if not math.isnan(value)]
    if values and max(values) < low:
        return f"{label} (below, {max(values):.0e})"
    return f"{label} (above, {min(values):.0e})" if values and min(values) > high else label


def _legend_below(axis: Any, handles: Mapping[str, Any], inches: float) -> None:
    """A panel's own legend."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "frameon": False, "fontsize": 7.5}
    axis.legend(handles.values(), handles, ncols=legend_columns(list(handles), inches), columnspacing=1.0, **place)


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """How many legend entries stand side by side."""
    return max(1, min(len(labels), int(inches / (0.5 + 0.07 * max(map(len, labels), default=1)))))


def counted(rows: Sequence[Row]) -> str:
    """How many heads, windows and repeats there are."""
    counts = []
    for name in ("heads", "windows", "repeats"):
        most = max((row.get(name) or 0 for row in rows), default=0)
        counts.append(f"{most} {name if most != 1 else name[:-1]}")
    return " x ".join(counts)


def _corner(row: Row) -> tuple[Any, ...]:
    """Where methods are compared: layer, n, target, source."""
    return row.get("layer"), row.get("n"), row.get("target"), source_heading(row)


def _at(row: Row, place: Place) -> bool:
    """Whether a panel shows the row; references stand in every family's."""
    if _corner(row) != place[:4]:
        return False
    return place[4] is None or bool(row.get("reference")) or family(row) == place[4]


def columns_for(places: Sequence[tuple[Any, ...]]) -> int:
    """Panels side by side: one column per n where there are several layers or sources, else at most three."""
    lengths = len({n for _, n, *_ in places})
    if 1 < lengths <= 4 and len(places) > lengths:
        return lengths
    return {1: 1, 2: 2, 4: 2}.get(len(places), 3)


def _panel_title(place: Place, budgets: Sequence[int] = ()) -> str:
    layer, n, target, source, _ = place
    parts = [*([source.replace("$", r"\$")] if source else []), f"layer {layer}", f"n = {n}"]
    if target != "softmax":
        parts.append(f"target {target}")
    return ", ".join([*parts, *(f"d = {d}" for d in budgets)])


def title_lines(title: str, width: int) -> list[str]:
    """The title's lines, wrapped, without one that another holds already; a SHA-256 shows its first 12 digits."""
    lines = [printable(short_hashes(line)) for line in dict.fromkeys(title.split("\n"))]
    lines = [line for line in lines if line and not any(line != other and line in other for other in lines)]
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="    ")]
