"""Methods in figures: looks, marks of bad rows, crosses, legends."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from ..files import Fields
from ..tables.labels import layer_in_words, source_heading
from ..tables.methods import family, mark, statistic, within_budget
from ..tables.numbers import method_label
from ..tables.table import counted, gathered, reasons
from .files import chunks
from .looks import CURVE, DASHES, GREY, POINT, YARDSTICKS, escaped, looks_of, sentence

R = TypeVar("R", bound=Fields)
Styles = Mapping[str, Mapping[str, Any]]  # the looks of methods by their label
CROSS = "diverged or failed"
HOLLOWED = "Points are hollow, and methods have !,"
CROSSES = {"linestyle": "", "marker": "x", "color": "black", "markersize": 8, "markeredgewidth": 1.5, "zorder": 5}
SHADE = 0.14  # opacity of bands
QUANTILES = "p10 – p90"
INTERVAL = "95 % interval"
INTERVALS = "Bars: 95 % by Student's test of windows."  # see `half_interval`
BAD = "bad rows (normaliser ≤ 0 or lost)"  # of a legend
HOLLOW_BAD = f"hollow, !: {BAD}"
BAD_ROWS = "where the normaliser of some rows is not positive or lost to rounding."
HOLLOW = {"markerfacecolor": "none", "markersize": 8, "markeredgewidth": 1.5, "linestyle": "", "zorder": 4}
HUGE = 1e60  # what matplotlib draws without overflow, and far beyond what a float32 output can be off by
MOST_IN_PANEL = 6  # methods, whose lines are in one panel
MOST_LEFT_OUT = 3  # methods that a legend names
MOST_OF_FAMILY = 4  # methods of a panel of families
OWN = "user"  # the family of the user's own methods
PROMISED = "#f3ece4"  # the side of a panel that breaks a promise, and that of singular matrices
BROKEN = {"color": "#e0d0bd", "linestyle": "", "marker": "s", "markersize": 7}  # that side, in legends
CLEAR = 0.85  # of the space between neighbours, that a marker takes at most
SMALLEST = 0.35  # of the size of a marker
MARKED = 6  # markers of a curve of many points
MANY_POINTS = {"markersize": 3.5, "linewidth": 1.0}  # the look of such curves
BAR_APART = 2.0  # points from a bar to the next one at one x


def styles_of(run: Sequence[Fields], rows: Sequence[Fields] | None = None) -> dict[str, dict[str, Any]]:
    """The look of each method (see `looks_of`), family by family; references are grey, without markers, and last.

    Args:
        run: all rows of the run; methods of one of its `family_panels` differ by their colours. rows: of a figure; by
            default those of the run.
    """
    rows = run if rows is None else rows
    families = list(dict.fromkeys(family(row) for row in rows if not row.get("reference")))
    place = {name: index for index, name in enumerate(families)}
    measured = [row for row in run if not row.get("reference")]
    panels = [[(row["method"] or "", method_label(row)) for row in panel] for _, panel in family_panels(measured)]
    looks = {**YARDSTICKS, **looks_of(*panels)}
    styles: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (bool(row.get("reference")), place.get(family(row), -1))):
        look = looks.get(method_label(row), YARDSTICKS["vmean"])
        flat = row["d"] is None and method_label(row) not in YARDSTICKS
        own = {"linestyle": DASHES[2] if flat else look["linestyle"], "linewidth": CURVE, "markersize": POINT}
        own = {"marker": None, "linewidth": 1.3} if row.get("reference") else own
        styles.setdefault(text_label(row), {**look, **own})
    return styles


def text_label(row: Fields) -> str:
    """The legend's text, escaped: a dollar begins mathematics, and matplotlib hides a leading underscore."""
    if row["method"] == "vmean" and row.get("reference"):
        return "V-Mean"
    return escaped(method_label(row))


def family_panels(rows: Sequence[R]) -> list[tuple[str, list[R]]]:
    """One panel of up to `MOST_IN_PANEL` methods; of more, panels of families.

    Small families share a panel, and large ones have several.

    Returns:
        The title of each panel, empty for one of all methods, and its rows.
    """
    others, everywhere = _apart(rows)
    if len(set(map(text_label, others))) <= MOST_IN_PANEL:
        return [("", list(rows))]
    groups: list[list[list[R]]] = []  # of families
    for members in gathered(others, family):
        together = [*chain(*groups[-1]), *members] if groups else []
        if groups and len(set(map(text_label, together))) <= MOST_OF_FAMILY:
            groups[-1].append(members)
        else:
            groups.append([members])
    panels = []
    for families in groups:
        name = ", ".join(family(members[0]) for members in families)
        split = parts([*chain(*families), *everywhere], MOST_OF_FAMILY)
        for number, part in enumerate(split, 1):
            panels.append((name + (f" ({number} of {len(split)})" if len(split) > 1 else ""), part))
    return panels


def parts(rows: Sequence[R], most: int) -> list[list[R]]:
    """Rows in parts of at most so many methods. The user's own methods, and references, are in every part."""
    others, everywhere = _apart(rows)
    lines = gathered(others, text_label)
    count = math.ceil(len(lines) / most)
    size = math.ceil(len(lines) / max(count, 1))
    return [[*chain(*part), *everywhere] for part in chunks(lines, max(size, 1))]


def _apart(rows: Sequence[R]) -> tuple[list[R], list[R]]:
    """The methods to compare with, and what stands beside each of them: the user's own methods, and references."""
    references = [row for row in rows if row.get("reference")]
    own = [row for row in rows if not row.get("reference") and family(row) == OWN]
    others = [row for row in rows if not row.get("reference") and family(row) != OWN]
    return (others, [*own, *references]) if others else (own, references)


def flagged(rows: Iterable[Fields]) -> set[str]:
    """The labels of methods with bad rows left as they are."""
    return {text_label(row) for row in rows if mark(row) == "!"}


def legend_text(label: str, marked: Iterable[str]) -> str:
    """A method's legend entry, with ``!`` if it is flagged."""
    return f"{label} !" if label in marked else label


def names_of(rows: Sequence[Fields]) -> dict[str, str]:
    """The names of methods by label: with ``!`` for bad rows, and with the budget used where it is more than d."""
    marked = flagged(rows)
    lines = [(text_label(group[0]), group) for group in gathered(rows, text_label)]
    return {label: legend_text(label, marked) + _overspent(group) for label, group in lines}


def _overspent(rows: Sequence[Fields]) -> str:
    """The mean budgets that rows of a method used, of those that used more than d (see `within_budget`)."""
    beyond = [row for row in rows if not within_budget(row)]
    used = sorted(statistic(row, "realised_d", "mean") or 0.0 for row in beyond)
    budgets = sorted({row["d"] for row in beyond})
    numbers = list(dict.fromkeys(f"{value:.1f}".removesuffix(".0") for value in (*used[:1], *used[-1:])))
    where = "" if {row["d"] for row in rows} == {*budgets} else f" at d = {', '.join(map(str, budgets))}"
    return f" (used {' – '.join(numbers)}{where})" if beyond else ""


def ranked(rows: Sequence[R], error: Callable[[Sequence[R]], float]) -> list[str]:
    """The labels of methods by rising errors at their largest budgets. Those of `overspent` are last.

    Args:
        error: of the rows of one method at one budget.
    """
    last = overspent(rows)
    places = {text_label(group[0]): error(_at_largest(group)) for group in gathered(rows, text_label)}
    return sorted(places, key=lambda label: (label in last, places[label]))


def overspent(rows: Sequence[Fields]) -> set[str]:
    """The labels of methods that used more than their largest budget."""
    lines = gathered(rows, text_label)
    return {text_label(group[0]) for group in lines if not all(map(within_budget, _at_largest(group)))}


def _at_largest(group: Sequence[R]) -> list[R]:
    most = max(row["d"] or 0 for row in group)
    return [row for row in group if (row["d"] or 0) == most]


def best_first(rows: Sequence[Fields]) -> str:
    """The order of `ranked` beside its lines."""
    return "best first" + "; those above d last" * bool(overspent(rows))


def order_of(rows: Iterable[Fields], by: str) -> str:
    """The sentence of a caption on the order of `ranked`, by these errors.

    >>> used = {"realised_d": {"mean": 40.0}}
    >>> rows = [{"method": "moba", "options": {}, "d": d, "metrics": used} for d in (32, 64)]
    >>> order_of(rows, "medians")
    'Methods stand by rising medians at the largest d.'
    >>> order_of(rows[:1], "medians")
    'Methods stand by rising medians; last are those that used more than d.'
    """
    rows = [row for row in rows if row["d"] is not None]
    at = " at the largest d" * (len({row["d"] for row in rows}) > 1)
    last = "; last are those that used more than d" * bool(overspent(rows))
    return f"Methods stand by rising {by}{at}{last}."


@dataclass(frozen=True)
class LeftOut:
    """What a figure says of methods that were asked for and that it does not show."""

    sentences: Sequence[str]
    legend: dict[str, dict[str, Any]]


def left_out(run: Iterable[R], rows: Iterable[R], name_of: Callable[[R], str]) -> LeftOut:
    """The methods of a run that have none of these rows: sentences of a caption with reasons, and a line of a legend.

    >>> row = {"status": "skipped", "reason": "d = 8 is below 10"}
    >>> left_out([row], [], lambda row: "bigbird")
    LeftOut(sentences=['bigbird: skipped, d = 8 is below 10.'], legend={'skipped: bigbird': {'linestyle': ''}})
    """
    shown = set(map(name_of, rows))
    lost = [row for row in run if name_of(row) not in shown]
    legend: dict[str, dict[str, Any]] = {}
    for group in gathered(lost, lambda row: row["status"]):
        names = dict.fromkeys(map(name_of, group))
        which = ", ".join(names) if len(names) <= MOST_LEFT_OUT else f"{len(names)} methods"
        legend[f"{group[0]['status']}: {which}"] = {"linestyle": ""}
    return LeftOut([f"{line.partition(' ')[2]}." for line in reasons(lost, name_of)], legend)


def cross_out(axis: Any, x: float, y: float | None, colour: str, dots: bool = False) -> None:
    """A cross where cells did not converge; in the method's colour at the panel's edge without a value."""
    if y is not None:
        axis.plot([x], [y], **CROSSES)
    elif dots:
        axis.plot([0.98], [x], transform=axis.get_yaxis_transform(), **{**CROSSES, "color": colour})
    else:
        axis.plot([x], [0.97], transform=axis.get_xaxis_transform(), **{**CROSSES, "color": colour})


def shared_legend(rows: Sequence[Fields], styles: Styles, name: str, notes: Mapping[str, str]) -> dict[str, Any]:
    """The legend of methods and of the metric's crosses; those without markers in the figure stand behind the others.

    Args:
        rows: that a figure shows. styles: of `styles_of`. notes: of `outside`.
    """
    names = names_of(rows)
    flat = {text_label(row) for row in rows if row["d"] is None}
    looks = {label: {**style, "marker": None} if label in flat else style for label, style in styles.items()}
    order = sorted(looks, key=lambda label: looks[label]["marker"] is None)
    crosses = {CROSS: CROSSES} if any(crossed(row, name) for row in rows) else {}
    return {names[label] + notes.get(label, ""): looks[label] for label in order} | crosses


def hollow_legend(rows: Iterable[Fields]) -> dict[str, Any]:
    """The legend of hollow points, if there are any."""
    return {HOLLOW_BAD: {"color": GREY, "marker": "o", **HOLLOW}} if flagged(rows) else {}


def sign_legend(rows: Iterable[Fields]) -> dict[str, Any]:
    """The legend of ``!``, if a method has it."""
    return {BAD: {"color": GREY, "linestyle": "", "marker": "$!$", "markersize": 8}} if flagged(rows) else {}


def beside(axis: Any, place: int, count: int) -> Any:
    """The shift of the bars of one of so many curves, so that those at one x stand side by side."""
    from matplotlib.transforms import ScaledTranslation

    return ScaledTranslation(BAR_APART * (place - (count - 1) / 2) / 72, 0, axis.figure.dpi_scale_trans)


def spread_legend(label: str, banded: bool = False) -> dict[str, Any]:
    """The legend of upright bars around points, or of bands along lines."""
    band = {"linewidth": 7, "alpha": SHADE}
    return {label: {"color": GREY, **(band if banded else {"linestyle": "", "marker": "|", "markersize": 8})}}


def band_legend(rows: Iterable[Fields], colours: Collection[str] = ()) -> dict[str, Any]:
    """The legend of bands from p10 to p90 over heads and windows, if there are several; in the only colour."""
    legend = spread_legend(QUANTILES, banded=True) if len({(row["head"], row["window"]) for row in rows}) > 1 else {}
    (colour,) = colours if len(colours) == 1 else (GREY,)
    return {label: {**look, "color": colour} for label, look in legend.items()}


def fitting(axis: Any, size: float, apart: float) -> float:
    """The size of a marker, smaller if neighbours that are so far apart on the x axis would cover each other."""
    low, high = axis.get_xlim()
    space = CLEAR * apart / (high - low) * axis.get_window_extent().width / axis.figure.dpi * 72
    return min(size, max(space, SMALLEST * size))


def markers(points: int, place: int, count: int) -> tuple[int, int]:
    """The first point of a curve with a marker, and the step to the next: those of many curves lie side by side.

    Args:
        points: of the curve. place: of the curve among so many.

    >>> markers(64, 1, 9), markers(3, 1, 2)
    ((1, 10), (0, 1))
    """
    step = (points - 1) // MARKED or 1
    return place * step // count, step


def correlated(rho: float | None) -> str:
    """What a legend adds to the name of points: their rank correlation, if it is known.

    >>> correlated(-0.5), correlated(None)
    (", Spearman's ρ = −0.50", '')
    """
    return "" if rho is None else f", Spearman's ρ = {rho:+.2f}".replace("-", "−")


def panel_title(row: Fields, budgets: Sequence[int] = ()) -> str:
    """The place of a panel's rows: source, layer, n if they have one, and a target that is not softmax."""
    length = [] if row["n"] is None else [f"n = {row['n']}"]
    target = [] if row.get("target", "softmax") == "softmax" else [f"target {row['target']}"]
    parts = [source_heading(row), layer_in_words(row["layer"]), *length, *target]
    return ", ".join([*filter(None, parts), *(f"d = {d}" for d in budgets)])


def where(rows: Sequence[Any], *names: str) -> str:
    """The `facts` of rows as a sentence of a caption.

    >>> where([{"layer": 0, "n": n, "heads": 12} for n in (512, 1024)], "heads")
    'Layer 0, n = 512 and 1024, 12 heads.'
    """
    return sentence(facts(rows, *names)) + "."


def facts(rows: Sequence[Any], *names: str) -> str:
    """The place of rows and what they are over.

    Args:
        names: what is counted: heads, windows, repeats.
    """

    def seen(name: str) -> list[Any]:
        return [one for one in dict.fromkeys(row.get(name) for row in rows) if one is not None]

    layers, lengths = sorted(seen("layer")), sorted(seen("n"))
    parts = list(dict.fromkeys(heading for row in rows if (heading := source_heading(row))))
    parts += [f"layers {_in_words(layers)}" if len(layers) > 1 else layer_in_words(layers[0])] if layers else []
    parts += [f"n = {_in_words(lengths)}"] if lengths else []
    parts += [f"target {one}" for one in seen("target") if one != "softmax"]
    parts += [counted(rows, *names)] if names else []
    return ", ".join(parts)


def _in_words(values: Sequence[Any]) -> str:
    """Numbers in words; three or more consecutive ones as a range."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values[:-1])) + f" and {values[-1]}" if len(values) > 1 else str(values[0])


def marks(rows: Iterable[Fields], name: str, bad: str = HOLLOWED) -> list[str]:
    """Sentences of a caption on the marks of a metric's rows; ``bad`` is the mark of bad rows."""
    rows = list(rows)
    lines = []
    if flagged(rows):
        lines.append(f"{bad} {BAD_ROWS}")
    if any(row.get("reference") and row["method"] == "vmean" for row in rows):
        lines.append("Dashed: V-Mean, which replaces attention by the mean of V.")
    if any(crossed(row, name) for row in rows):
        lines.append("A cross marks rows in which cells diverged or failed.")
    return lines


def rank_of(d: int | None, budgets: Sequence[int]) -> float:
    """The rank of a budget among all, from 0 to 1; 1 for a single one."""
    return 1.0 if d is None or len(budgets) < 2 else budgets.index(d) / (len(budgets) - 1)


def has(row: Fields, name: str) -> bool:
    """Whether the row has a drawable median of the metric."""
    median = (row["metrics"].get(name) or {}).get("median")
    return median is not None and median <= HUGE


def crossed(row: Fields, name: str) -> bool:
    """Whether a cross marks the row: cells that diverged or failed, or a median beyond the drawable range."""
    return row["status"] in ("failed", "diverged") or (name in row["metrics"] and not has(row, name))
