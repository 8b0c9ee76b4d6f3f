"""Figures of ``attnprobe theory``: verdicts on heads, and measured values against bounds, statement by statement."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.kit import edge_ticks, logarithmic
from ...figures.looks import BLUE, GREEN, GREY, MARKERS, VERMILION, typeset
from ...figures.methods import BROKEN, HUGE, PROMISED, facts, where
from ...figures.panels import Panels, draw_figures
from ...tables.labels import LETTERS, at_label, file_tag
from ...tables.long import Row
from ...tables.table import gathered, grouped_by
from .curves import in_seeds, theory_curves

NOT_MET = "assumption not met"
VERDICTS = {  # their colours, in the order of bars from below
    "holds": GREEN,
    "undecided": BLUE,
    "violated": VERMILION,
    "vacuous": "#c4c4c4",
    NOT_MET: "white",
}
EDGED = {"edgecolor": GREY, "linewidth": 0.5}
SIGNS = {"at most": "≤", "at least": "≥"}
SLOT = 0.8  # of the space of a layer or ε, that its bars share
LEAST_SLOTS = 3  # of an axis, so that no bar is as wide as the panel
ACROSS, UP = 36, 28  # letters of a line below an axis, and beside it


def theory_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the findings, and the curves of `theory_curves`.

    ``theory-bounds-nN``, for each (source, n): a panel for each theorem, sense and statement in words. If all heads
    have one bound, such as δ, the panel counts them by verdict, a bar for each ε, or else layer, and budget. If not,
    each head is a point of bound and measured value, on logarithmic axes of one range with their diagonal. Values that
    are infinite, or not above 0, stand on the frame, which says so; values that were not measured are omitted. Colours
    are verdicts, and markers are budgets and ε. Bars of heads none of which meets the assumption are
    left out.

    Returns:
        The files' paths.
    """
    findings = [row for row in rows if row["head"] is not None]
    known = [row for row in findings if None not in (row["verdict"], row["bound"], row["measured"])]
    bounds = [_bounds(group) for group in grouped_by(known, "source", "n")]
    return draw_figures([*bounds, *theory_curves(findings)], drawing, out_dir)


def _bounds(rows: Sequence[Row]) -> Panels:
    """A panel for each statement."""
    every = _titled(rows)
    panels = [one for one in every if not _is_unmet(one[1])]
    unmet = [title.replace("\n", ", ") for title, group in every if _is_unmet(group)]
    kinds = _kinds(group for _, group in panels)
    markers = {kind: MARKERS[place % len(MARKERS)] for place, kind in enumerate(kinds)}

    def draw(axis: Any, group: Sequence[Row]) -> None:
        _count(axis, group) if _is_counted(group) else _compare(axis, group, markers)

    def legend(panels: Sequence[Sequence[Row]]) -> dict[str, Any]:
        there = {row["verdict"] for row in chain(*panels)}
        square = {"linestyle": "", "marker": "s", "markersize": 7, "markeredgecolor": GREY, "markeredgewidth": 0.5}
        words = {word: {"color": colour, **square} for word, colour in VERDICTS.items() if word in there}
        shapes = {kind: {"color": GREY, "linestyle": "", "marker": markers[kind]} for kind in _kinds(panels) if kind}
        return words | shapes | ({} if all(map(_is_counted, panels)) else {"promise broken": BROKEN})

    return Panels(
        f"theory-bounds-n{rows[0]['n']}{file_tag(rows[0]['source'])}",
        "Verdicts on heads, and measured against promised",
        [
            "A panel for each statement. Bars count heads by verdict. A point is the measured value of a head against "
            "what is promised. The line is equality, and its shaded side breaks the promise. What is infinite or not "
            "above 0 stands on the frame.",
            *dict.fromkeys(f"{in_paper(row['paper'])}: {row['says'] or 'no statement is known'}." for row in rows),
            *(f"No panel of {title}: no head meets its assumption." for title in unmet),
            where(rows),
        ],
        panels,
        draw,
        legend=legend,
        width=2.25,
        height=2.6,
        sharing={},
    )


def in_paper(paper: str) -> str:
    """A paper by the name of its method, or else of its authors, and the theorem's place.

    >>> in_paper("Chen et al. 2021 (Skyformer), Theorem 2"), in_paper("Eckart & Young 1936, Mirsky 1960")
    ('Skyformer, Theorem 2', 'Eckart & Young 1936, Mirsky 1960')
    """
    found = re.match(r"(.*?[0-9]{4})(?: \(([^)]*)\))?, (.*)", paper)
    return f"{found[2] or found[1]}, {found[3]}" if found else paper


def sides(promise: str, sense: str) -> tuple[str, str]:
    """What a promise is of, and what it promises.

    >>> sides("‖res(BV)‖ / ‖res(V)‖ ≤ 2γ max D", "at most"), sides("the rest", "at most")
    (('‖res(BV)‖ / ‖res(V)‖', '2γ max D'), ('measured', 'the rest'))
    """
    parts = re.split(rf" (?:is {sense}|{SIGNS[sense]}) ", promise, maxsplit=1)
    return (parts[0], parts[1]) if len(parts) > 1 else ("measured", promise)


def _titled(rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """A panel for each theorem, sense and statement in words, such as a method or a sign: what theorems have two of."""
    groups = gathered(rows, lambda row: (row["theorem"], row["sense"], *_in_words(row["at"])))
    count = Counter(group[0]["theorem"] for group in groups)
    panels = []
    for group in groups:
        several = count[group[0]["theorem"]] > 1
        words = ", ".join(_in_words(group[0]["at"])) or group[0]["sense"]
        panels.append((in_paper(group[0]["paper"]) + f"\n{words}" * several + f"\n{facts(rows)}", group))
    return panels


def _in_words(at: Mapping[str, Any]) -> list[str]:
    """The parameters of a statement that are words."""
    words = {name: value for name, value in at.items() if isinstance(value, str)}
    return [value if name in ("method", "of") else f"{name} {value}" for name, value in words.items()]


def _is_counted(group: Sequence[Row]) -> bool:
    """Whether all of several findings of a statement have one bound."""
    return len({row["bound"] for row in group}) == 1 < len(group) and math.isfinite(group[0]["bound"])


def _is_unmet(group: Sequence[Row]) -> bool:
    """Whether bars would count heads none of which meets the assumption."""
    return _is_counted(group) and {row["verdict"] for row in group} == {NOT_MET}


def _kind(row: Row) -> str:
    """The budget and ε of a point, which its marker tells."""
    given = {"d": row["d"], "epsilon": row["at"].get("epsilon")}
    return at_label({name: value for name, value in given.items() if value is not None})


def _kinds(panels: Iterable[Sequence[Row]]) -> list[str]:
    """The kinds of points of panels that are not counted."""
    return list(dict.fromkeys(_kind(row) for group in panels if not _is_counted(group) for row in group))


def _count(axis: Any, group: Sequence[Row]) -> None:
    """The number of heads with each verdict: a bar for each ε, or layer, and budget."""
    at = group[0]["at"]
    slots = sorted({row["at"].get("epsilon", row["layer"]) for row in group})
    budgets = sorted({row["d"] or 0 for row in group})
    counts = Counter((row["at"].get("epsilon", row["layer"]), row["d"] or 0, row["verdict"]) for row in group)
    wide = SLOT / len(budgets)
    for place, slot in enumerate(slots):
        for number, d in enumerate(budgets):
            x, heads = place + wide * (number - (len(budgets) - 1) / 2), 0
            for verdict, colour in VERDICTS.items():
                more = counts[slot, d, verdict]
                axis.bar([x], [more], wide, [heads], color=colour, **EDGED)
                heads += more
    middle, half = (len(slots) - 1) / 2, max(len(slots), LEAST_SLOTS) / 2
    axis.set_xlim(middle - half, middle + half)
    axis.grid(False, axis="x")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.set_xticks(range(len(slots)), [f"{slot:g}" for slot in slots])
    several = [f"{name}s" for name in ("layer", "window") if len({row[name] for row in group}) > 1]
    axis.set_ylabel(" × ".join(["heads", *several]))
    fixed = {name: value for name, value in at.items() if not isinstance(value, str) and name != "epsilon"}
    beside = ("; side by side: d = " if len(budgets) > 1 else "; d = ") + ", ".join(map(str, budgets))
    what = LETTERS["epsilon"] if "epsilon" in at else "layer"
    below = ", ".join(filter(None, [at_label(fixed), in_seeds(group) if "delta" in at else ""]))
    lines = [what + beside * any(budgets), _formula(group[0]["promise"] or "", ACROSS), below]
    axis.set_xlabel("\n".join(filter(None, lines)))


def _compare(axis: Any, group: Sequence[Row], markers: Mapping[str, str]) -> None:
    """Measured values against bounds, a point for each head."""
    sense = group[0]["sense"]
    bounds, values = ([row[name] for row in group] for name in ("bound", "measured"))
    low, high = _range([*bounds, *values])
    logarithmic(axis)
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=1)
    broken = high if sense == "at most" else low
    axis.fill_between([low, high], [low, high], [broken, broken], color=PROMISED, linewidth=0, zorder=0)
    for row in group:
        x, y = np.clip([row["bound"], row["measured"]], low, high)
        look = {"marker": markers[_kind(row)], "markersize": 5, "markeredgecolor": GREY, "markeredgewidth": 0.5}
        axis.plot([x], [y], color=VERDICTS[row["verdict"]], linestyle="", clip_on=False, in_layout=False, **look)
    for side, some in ((axis.xaxis, bounds), (axis.yaxis, values)):
        ends = {low: "0" if min(some) == 0 else "≤ 0"} if min(some) <= 0 else {}
        edge_ticks(side, ends | ({high: "∞"} if math.inf in some else {}))
    measured, bound = sides(group[0]["promise"] or "", sense)
    axis.set_xlabel(f"promised, {sense}\n{_formula(bound, ACROSS)}")
    axis.set_ylabel(_formula(measured, UP))


def _formula(text: str, most: int) -> str:
    """A formula in lines of at most so many letters, broken outside of brackets if that suffices."""
    joined = re.sub(r"\([^()]*\)", lambda part: part[0].replace(" ", "\u00a0"), text)
    return "\n".join(typeset(line.replace("\u00a0", " ")) for line in textwrap.wrap(joined, most))


def _range(values: Iterable[float]) -> tuple[float, float]:
    """From below the smallest positive value to above the largest, with two powers of ten within."""
    values_in_range = [min(max(value, 1 / HUGE), HUGE) for value in values if 0 < value < math.inf]
    low, high = (min(values_in_range), max(values_in_range)) if values_in_range else (0.1, 1.0)
    spare = max(1.6, (high / low) ** 0.08)
    low, high = low / spare, high * spare
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if sum(low <= 10.0**k <= high for k in range(first, last + 1)) < 2:
        low, high = min(low, 10.0**first), max(high, 10.0 ** (first + 1))
    return low, high
