"""How figures look: styles, colours, markers, ticks, and what values are called.

`styled` sets a style. `looks_of` gives each method of a run its colour and marker, the same in all of its figures.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm, Normalize, to_hex, to_rgb, to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from ..errors import unknown
from ..files import path_of, reading
from ..frame.metric import METRICS
from .styles import STYLES

HERE = Path(__file__).parent
MPLSTYLE = ".mplstyle"
PAGE = 9.0  # inches: the largest height of a figure in a paper
Ends = tuple[float, float]
MOST_MINOR = 1e6  # the largest ratio of the ends of an axis that has small ticks

# these colours differ for readers with red-green or blue-yellow blindness too
BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, PURPLE, BROWN = "#E69F00", "#56B4E9", "#550077", "#883300"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, BROWN)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1)))
FLAT = (0, (4, 1.2, 1, 1.2))  # the line of a method that has no d, where x is d
MAP = "YlGnBu"  # of heat maps
GREY, PALE, EMPTY = "#444444", "#c8c8c8", "#dddddd"
UNITS = {"bytes": "MiB"}  # of axes; see `points.SCALES`
LONG = 20  # letters of a name in one line
PALEST = 0.4  # the share of a colour in its palest tint


@dataclass(frozen=True)
class Look:
    """The colour, marker and dashes of a series."""

    colour: str
    marker: str = "o"
    dash: Any = "-"


FIXED: Mapping[str, Look] = {  # in every run
    "skyformer": Look(BLUE, "o"),
    "nystromformer": Look(VERMILION, "s"),
    "linformer": Look(GREEN, "^"),
    "performer": Look(PINK, "D"),
    "informer": Look(ORANGE, "v"),
    "bigbird": Look(SKY, "P"),
    "skeinformer": Look(PURPLE, "X"),
    "longformer": Look(BROWN, "<"),
    "reformer": Look(BROWN, "s", DASHES[1]),
    "softmax": Look("black", "s"),
    "exact": Look("black", "s"),
    "vmean": Look(GREY, "", DASHES[1]),
    "lower-bound": Look("#888888", "", DASHES[3]),
    "svd": Look("#7a7a7a", "D", DASHES[2]),
    "random": Look("#999999", "v", DASHES[3]),
    "holds": Look(GREEN, "o"),
    "violated": Look(VERMILION, "X"),
    "undecided": Look(BLUE, "D"),
    "vacuous": Look("#c4c4c4", "v"),
    "assumption not met": Look("#f2f2f2", "^"),
}
CORES = {
    **{"A": r"$A=\exp(S)$", "B": "$B$, softmax", "C": "$C$, Gaussian", "A_S": "$A_S$", "SAS": r"$S^\top\bar{A}S$"},
    **{"SCS": r"$S^\top\bar{C}S$", "SCS+ridge": r"$S^\top\bar{C}S+\gamma I$", "N0": r"$N$ at $\gamma=0$", "N": "$N$"},
}
EXACT_MATRICES = {
    **{"softmax": "softmax $B$", "gaussian": "Gaussian $C$", "output": "output $BV$", "unnormalised": "$A$"},
    **{"lifted-softmax": r"$\bar{A}$", "lifted-gaussian": r"$\bar{C}$"},
}
TITLES = {  # of values, by their column
    "name": {"vmean": "V-Mean", "lower-bound": "lower bound", "exact": "exact attention"},
    "matrix": CORES,
    "of": EXACT_MATRICES,
}
NBSP = "\u00a0"  # where titles do not break
ALL = {"layer": "all"}  # what an axis calls rows without a value
FLAGGED = ("none", "left")  # matplotlib's fillstyle of the first and the second flag of a figure
WORDS = {  # of statistics and of counts
    **{"min": "minimum", "max": "maximum", "low95": "95 % interval", "lower": "interval", "values": "heads"},
}


def looks_of(methods: Iterable[tuple[str, str, str]]) -> dict[str, Look]:
    """The look of each method of a run, by the name that is shown.

    Methods of `FIXED` have their look there; of several variants of one method, the first without options has it, or
    else the first. Each of the others gets a colour that the fewest methods of its family have, then the fewest of
    all; with it a marker and dashes that no other method of that colour has.

    Args:
        methods: the name, the method with its options, and the family of each, in the order of the run.

    >>> looks = looks_of([("Ours", "skyformer", "nystrom"), ("tova", "tova", "selection")])
    >>> looks["Ours"].colour == BLUE, looks["tova"].colour == BLUE
    (True, False)
    """
    methods = list(dict.fromkeys(methods))
    looks: dict[str, Look] = {}
    taken: set[str] = set()
    # methods without options first: they get the fixed look, also where a variant stands before them
    for name, method, _ in sorted(methods, key=lambda entry: ":" in entry[1]):
        plain = method.partition(":")[0]
        if plain in FIXED and plain not in taken:
            taken.add(plain)
            looks[name] = FIXED[plain]
    families = {name: family for name, _, family in methods}
    for name in families:
        if name not in looks:
            beside = Counter(looks[other].colour for other in looks if families[other] == families[name])
            counts = Counter(look.colour for look in looks.values())
            colour = min(COLOURS, key=lambda colour: (beside[colour], counts[colour]))
            looks[name] = _free(colour, [look for look in looks.values() if look.colour == colour])
    return {name: looks[name] for name in families}


def _free(colour: str, others: list[Look]) -> Look:
    """A look of a colour, with the marker and dashes that the fewest others of the colour have."""
    # each colour begins with a marker of its own, so that series differ in print without colours too
    first = COLOURS.index(colour)
    turned = MARKERS[first:] + MARKERS[:first]
    markers, dashes = Counter(look.marker for look in others), Counter(str(look.dash) for look in others)
    return Look(colour, min(turned, key=markers.__getitem__), min(DASHES, key=lambda dash: dashes[str(dash)]))


def tint(look: Look, number: int, count: int) -> Look:
    """The look of a shade, of several from pale to full."""
    if count < 2:
        return look
    share = PALEST + (1 - PALEST) * number / (count - 1)
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(look.colour))
    return replace(look, colour=to_hex((red, green, blue)), marker=MARKERS[number % len(MARKERS)])


@contextmanager
def styled(style: str) -> Iterator[None]:
    """A context in which matplotlib has a style: ours, the user's matplotlibrc, then the style that is given.

    Raises:
        UsageError: no such style, or a line in it that matplotlib does not know.
    """
    ours = HERE / f"{style if style in STYLES else STYLES[0]}{MPLSTYLE}"
    settings: Any = {**matplotlib.rc_params_from_file(ours, use_default_template=False), **settings_of(style)}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # it is drawn as a box
        yield


def grows(style: str) -> bool:
    """Whether a figure's height may grow with its panels: not on a slide, nor at a size that the user gives."""
    return style != "slide" and "figure.figsize" not in settings_of(style)


def size_of(setting: str) -> float:
    """A setting's size of type, in points; a style may have it in words."""
    settings: Any = matplotlib.rcParams
    return FontProperties(size=settings[setting]).get_size_in_points()


def settings_of(style: str) -> dict[str, Any]:
    """What the user's matplotlibrc and a style of matplotlib's set."""
    settings = dict(matplotlib.rc_params_from_file(matplotlib.matplotlib_fname(), use_default_template=False))
    if style not in STYLES:
        known = {path.stem: path for path in Path(matplotlib.get_data_path(), "stylelib").glob(f"[!_]*{MPLSTYLE}")}
        if style not in known and not style.endswith(MPLSTYLE):
            raise unknown("style", style, [*STYLES, *sorted(known), f"FILE{MPLSTYLE}"])
        with reading(f"--style {style}"), refusing():
            settings |= matplotlib.rc_params_from_file(path_of(known.get(style, style)), use_default_template=False)
    # files are drawn without a screen, whatever backend the user's notebooks have
    return {name: value for name, value in settings.items() if name != "backend"}


@contextmanager
def refusing() -> Iterator[None]:
    """A context that raises ValueError for a line of a style that matplotlib would only log."""
    lines: list[str] = []
    logger, handler = logging.getLogger("matplotlib"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage().strip().partition("\n")[0])
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    if lines:
        raise ValueError(lines[0])


def text_of(value: Any, column: str = "") -> str:
    r"""A value of a column as text of a figure, in which a dollar begins no mathematics and an underscore is shown.

    >>> print(text_of("a$b"), text_of("_c"), text_of(0.5), text_of(16.0), text_of("vmean", "name"))
    a\$b  _c 0.5 16 V-Mean
    """
    if isinstance(value, float):
        return f"{value:g}"
    if value in TITLES.get(column, {}):
        return TITLES[column][value]
    text = str(value).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def folded(text: str) -> str:
    """A long name of a method in two lines: its options stand below it.

    >>> folded("skyformer"), folded("skyformer:guard=sampled,ridge=0.1")
    ('skyformer', 'skyformer:\\nguard=sampled,ridge=0.1')
    """
    # a pair of methods is broken at its arrow
    mark = " > " if " > " in text else ":"
    return text.replace(mark, f"{mark}\n", 1) if len(text) > LONG else text


def value_of(column: str, value: Any) -> str:
    """What a title or a legend says of a value of a column.

    >>> print(value_of("layer", 0), value_of("d", 16), value_of("name", "tova"), sep=", ")
    layer 0, $d$ = 16, tova
    """
    if isinstance(value, str):
        return text_of(value, column)
    name = symbol_of(column)
    sign = "" if name == column else f"{NBSP}="
    return f"{name}{sign}{NBSP}{text_of(value)}"


def symbol_of(column: str) -> str:
    """The symbol of a column, as matplotlib sets it."""
    metric = METRICS.get(column)
    return column if metric is None else metric.tex if "$" in metric.tex else metric.symbol


def label_of(column: str) -> str:
    """The words and the symbol of a column, for an axis."""
    metric = METRICS.get(column)
    if metric is None:
        return WORDS.get(column, column.replace("_", " "))
    unit = f" ({UNITS.get(metric.unit, metric.unit)})" if metric.unit and metric.unit != metric.title else ""
    symbol = symbol_of(column)
    known = metric.symbol in metric.title.split() or "$" not in symbol
    return metric.title + unit if known else f"{metric.title}{unit}  {symbol}"


def colours_of(values: Any, norm: Normalize) -> Any:
    """The colours of a heat map's cells, (…, 4); negative values are orange, and those not known grey."""
    sequential, negative = matplotlib.colormaps[MAP], matplotlib.colormaps["Oranges"]
    least = norm.vmin if isinstance(norm, LogNorm) else 0.0
    sizes = norm(np.maximum(np.abs(np.nan_to_num(values)), least or 0.0)).filled(0.0)
    # a logarithmic scale has no colour for values below it
    below = isinstance(norm, LogNorm) & (np.abs(values) < (least or 0.0))
    colours = np.where((values < 0)[..., None], negative(sizes), sequential(sizes))
    colours = np.where(below[..., None], to_rgba("white"), colours)
    return np.where(np.isfinite(values)[..., None], colours, to_rgba(EMPTY))


def set_ticks(axis: Any, ends: Ends, log: bool, values: Sequence[float] = (), most: int = 7) -> None:
    """Ticks of an axis, at most so many: at the values themselves where they are few, else at round numbers."""
    low, high = ends
    whole = len(values) > 0 and all(float(value).is_integer() for value in values)
    if not log:
        axis.set_major_locator(MaxNLocator(min(5, most), integer=whole))
        return
    if whole:
        ticks = [float(value) for value in values] if len(values) <= most else _powers(low, high, 2, most)
    else:
        ticks = _digits(low, high, most)
    small = (
        range(math.floor(math.log10(low)), math.ceil(math.log10(high))) if high / low < MOST_MINOR and not whole else ()
    )
    minor = [digit * 10.0**power for power in small for digit in range(2, 10)]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(FixedLocator([tick for tick in minor if low <= tick <= high]))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number_of(value)))


def _digits(low: float, high: float, most: int) -> Sequence[float]:
    """The finest of some round numbers in a range of which there are at most so many, and at least two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            return ticks if len(ticks) > 1 else [*MaxNLocator(min(4, most)).tick_values(low, high)]
    return _powers(low, high, 10, most)


def _powers(low: float, high: float, base: int, most: int) -> list[float]:
    """The powers of a base in a range, at most so many."""
    # 1e-9: log(1000, 10) is 2.9999999999999996
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    step = max(1, -(-(last - first + 1) // most))
    return [float(base) ** power for power in range(first, last + 1) if power % step == 0]


def number_of(value: float) -> str:
    r"""A tick's number.

    >>> print(number_of(1024.0), number_of(0.05), number_of(1e-5), number_of(2e5))
    1024 0.05 $10^{-5}$ $2\times10^{5}$
    """
    if not value or 1e-3 <= abs(value) < 1e4:
        return f"{value:g}"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    digits = f"{value / 10.0**power:g}"
    return f"$10^{{{power}}}$" if digits == "1" else rf"${digits}\times10^{{{power}}}$"
