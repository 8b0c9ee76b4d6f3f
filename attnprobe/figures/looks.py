"""The colour, marker and line of each method of a figure. Names of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

Look = dict[str, Any]  # of matplotlib: color, marker, linestyle

# They differ for readers with red-green or blue-yellow blindness too, on white and turned over on black.
BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, PURPLE, BROWN = "#E69F00", "#56B4E9", "#550077", "#883300"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, BROWN)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")  # that of the first method of each colour
DASHES: tuple[Any, ...] = ("-", "--", (0, (5, 1.5, 1, 1.5)), (0, (1, 1)))  # of the methods of one colour in a panel
CURVE, POINT = 1.6, 5.0  # points of the width of a method's curve, and of its markers
GREY = "#444444"  # of V-Mean, bounds and guides

EXACT = "exact"  # attention itself, where it is measured as a yardstick of cost
YARDSTICKS: Mapping[str, Look] = {
    "softmax": {"color": "black", "marker": "s", "linestyle": "-"},
    "vmean": {"color": GREY, "marker": "o", "linestyle": "--"},
    "svd": {"color": "#7a7a7a", "marker": "D", "linestyle": "-."},
    "random": {"color": "#999999", "marker": "v", "linestyle": ":"},
}
USUAL = {  # the colour of a method; the first of a figure has it
    name: colour
    for colour, names in {
        BLUE: "skyformer vattention efficient expected",
        VERMILION: "nystromformer linformer-jlt lsh-qk snapkv",
        GREEN: "linformer mss thinformer magicpig window block-topk",
        PINK: "performer nystromformer-kmeans hyper tova",
        ORANGE: "informer mss-literal linear kdeformer topk vertical-slash",
        SKY: "bigbird prototype amm h2o moba",
        PURPLE: "skeinformer spectral-shift performer-relu quest keydiff",
        BROWN: "longformer reformer wildcat kernelized knorm",
    }.items()
    for name in names.split()
}


def looks_of(*panels: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """The colour, marker and line of the methods of a figure, each by its name and its label ``NAME[:k=v,…]``.

    Up to 8 methods have different colours. Of more, those of one panel do, and where a panel has more than 8, methods
    of one colour differ by their dashes. Methods of one colour have different markers. A method has its colour of
    `USUAL` if that is free, else one of `COLOURS` that is free and usual for the fewest others. Those in most panels
    choose first, then those of `USUAL` in its order. Yardsticks always look the same.

    >>> {label: look["color"] for label, look in looks_of([("performer", "performer"), ("tova", "tova")]).items()}
    {'performer': '#CC79A7', 'tova': '#0072B2'}
    """
    groups = [{method for method in panel if method[1] not in YARDSTICKS} for panel in panels]
    every = set(chain(*groups))
    if len(every) <= len(COLOURS):
        groups = [every]
    looks = {label: {**YARDSTICKS[label]} for _, label in chain(*panels) if label in YARDSTICKS}
    order = [*USUAL]

    def turn(method: tuple[str, str]) -> tuple[int, int, str]:
        often = sum(method in group for group in groups)
        return -often, order.index(method[1]) if method[1] in USUAL else len(order), method[1]

    for name, label in sorted(every, key=turn):
        beside = set(chain(*(group for group in groups if (name, label) in group)))
        there = [looks[other]["color"] for _, other in beside if other in looks]
        wanted = [USUAL.get(other) for other, _ in beside]
        every_colour = [look["color"] for look in looks.values()]
        ranks = {
            colour: (there.count(colour), colour != USUAL.get(name), wanted.count(colour), every_colour.count(colour))
            for colour in COLOURS
        }
        colour = min(ranks, key=ranks.__getitem__)
        first = COLOURS.index(colour)
        used = [look["marker"] for look in looks.values() if look["color"] == colour]
        marker = min([*MARKERS[first:], *MARKERS[:first]], key=used.count)
        looks[label] = {"color": colour, "marker": marker, "linestyle": DASHES[there.count(colour) % len(DASHES)]}
    return looks


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


def symbol(metric: str) -> str:
    """A metric as a formula, or in words."""
    return SYMBOLS.get(metric, metric.replace("_", " "))


def formula(metric: str) -> str:
    """A metric as a formula without the commands of mathematics, for captions.

    >>> formula("output_spectral")
    '‖(B − B~)V‖₂'
    """
    text = SYMBOLS.get(metric, metric)
    for tex, plain in PLAIN.items():
        text = text.replace(tex, plain)
    return text


def in_words(metric: str) -> str:
    """A metric's name in a title.

    >>> in_words("output_spectral_relative"), in_words("max_abs")
    ('relative output error (spectral norm)', 'max abs')
    """
    if metric not in SYMBOLS:
        return metric.replace("_", " ")
    of, norm, *rest = metric.split("_")
    norm = norm.title() if norm == "frobenius" else norm
    return f"{'relative ' if rest else ''}{WORDS[of]} ({norm} norm)"


def sentence(text: str) -> str:
    """A text with a capital first letter, unless it begins with a symbol or a file name.

    >>> sentence("layer 0"), sentence("n = 512"), sentence("q.safetensors, n = 512")
    ('Layer 0', 'n = 512', 'q.safetensors, n = 512')
    """
    first = text.split(" ")[0].rstrip(",:")
    return text[:1].upper() + text[1:] if len(first) > 1 and "." not in first else text


def escaped(text: str) -> str:
    r"""Text in which a dollar begins no mathematics and a leading underscore is shown.

    >>> print(escaped("a$b"), escaped("_c"))
    a\$b  _c
    """
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
