"""The colour, marker and line of each method of a figure. Names of metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from ..frame.metric import in_words as in_words

Look = dict[str, Any]  # of matplotlib: color, marker, linestyle

# They differ for readers with red-green or blue-yellow blindness too, on white and turned over on black.
BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, PURPLE, BROWN = "#E69F00", "#56B4E9", "#550077", "#883300"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, BROWN)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
DASHES: tuple[Any, ...] = ("-", "--", (0, (5, 1.5, 1, 1.5)), (0, (1, 1)))  # of the methods of one colour
CURVE, POINT = 1.6, 5.0  # points of the width of a method's curve, and of its markers
GREY = "#444444"  # of V-Mean, bounds and guides

EXACT = "exact"  # attention itself, where it is measured as a yardstick of cost
YARDSTICKS: Mapping[str, Look] = {
    "softmax": {"color": "black", "marker": "s", "linestyle": "-"},
    "vmean": {"color": GREY, "marker": "o", "linestyle": "--"},
    "svd": {"color": "#7a7a7a", "marker": "D", "linestyle": "-."},
    "random": {"color": "#999999", "marker": "v", "linestyle": ":"},
}
HOMES = {  # the methods of a colour; the place in a row chooses the marker
    BLUE: "skyformer vattention efficient nsa expected",
    VERMILION: "nystromformer snapkv lsh-qk linformer-jlt moba topp",
    GREEN: "linformer mss magicpig thinformer window block-topk",
    PINK: "performer nystromformer-kmeans hyper flexprefill tova",
    ORANGE: "informer mss-literal linear kdeformer vertical-slash topk",
    SKY: "bigbird prototype amm h2o xattention",
    PURPLE: "skeinformer spectral-shift performer-relu quest keydiff dsa-oracle",
    BROWN: "longformer reformer tri-shape kernelized knorm wildcat",
}
HOME: Mapping[str, tuple[str, str]] = {  # colour and marker of a method, of which no two are equal
    name: (colour, MARKERS[(row + place) % len(MARKERS)])
    for row, (colour, names) in enumerate(HOMES.items())
    for place, name in enumerate(names.split())
}


def looks_of(*panels: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """The colour, marker and line of the methods of a run, each by its name and its label ``NAME[:k=v,…]``.

    No two methods look the same, and each looks the same in all figures of the run. A method has its colour and marker
    of `HOME`. Where two methods of one panel have one colour there, the first in the order of `HOME` has it; the other
    takes the colour that is free there, and home of the fewest others. So do markers, of which each of a colour has
    another first. Methods that are in most panels choose first. Up to 8 methods are one panel. Of more, each colour has
    about as many methods as another, with other markers and dashes. Yardsticks always look the same.

    Args:
        panels: the methods of the run, those together that should differ by their colours.

    >>> {label: look["color"] for label, look in looks_of([("performer", "performer"), ("tova", "tova")]).items()}
    {'performer': '#CC79A7', 'tova': '#0072B2'}
    """
    groups = [set(panel) for panel in panels]
    every = set(chain(*groups))
    looks = {label: {**YARDSTICKS[label]} for _, label in every if label in YARDSTICKS}
    measured = {method for method in every if method[1] not in YARDSTICKS}
    most = math.ceil(len(measured) / len(COLOURS))  # methods of a colour
    groups = [every] if most == 1 else groups
    order = [*HOME]

    def turn(method: tuple[str, str]) -> tuple[int, int, str]:
        often = sum(method in group for group in groups)
        return -often, order.index(method[1]) if method[1] in HOME else len(order), method[1]

    for name, label in sorted(measured, key=turn):
        home, marker = HOME.get(name, (None, None))
        beside = set(chain(*(group for group in groups if (name, label) in group)))
        there = {other: looks[other] for _, other in beside if other in looks}
        colours = [look["color"] for look in there.values()]
        wanted = [HOME[other][0] for other, _ in beside if other in HOME]
        of_colour = {colour: [look for look in looks.values() if look["color"] == colour] for colour in COLOURS}
        ranks = {
            colour: (colours.count(colour), len(taken) >= most, colour != home, wanted.count(colour), len(taken))
            for colour, taken in of_colour.items()
        }
        colour = min(ranks, key=ranks.__getitem__)
        line = DASHES[len(of_colour[colour]) % len(DASHES)]
        first = MARKERS.index(marker or MARKERS[COLOURS.index(colour)])
        turned = [*MARKERS[first:], *MARKERS[:first]]
        crowds = (  # the first weighs most
            [look for look in of_colour[colour] if look["linestyle"] == line],
            of_colour[colour],
            [look for other, look in there.items() if other not in YARDSTICKS],
            there.values(),
        )
        used = [[look["marker"] for look in crowd] for crowd in crowds]
        marker = min(turned, key=lambda one, used=used: [markers.count(one) for markers in used])
        looks[label] = {"color": colour, "marker": marker, "linestyle": line}
    return looks


SYMBOLS = {
    "output_spectral": "‖(B − B~)V‖₂",
    "output_spectral_relative": "‖(B − B~)V‖₂ / ‖BV‖₂",
    "output_frobenius": "‖(B − B~)V‖_F",
    "output_frobenius_relative": "‖(B − B~)V‖_F / ‖BV‖_F",
    "matrix_spectral": "‖B − B~‖₂",
    "matrix_spectral_relative": "‖B − B~‖₂ / ‖B‖₂",
    "matrix_frobenius": "‖B − B~‖_F",
    "matrix_frobenius_relative": "‖B − B~‖_F / ‖B‖_F",
}
ACCENTS = {"~": r"\tilde", "\u0304": r"\bar", "^": r"\hat", "\u0302": r"\hat"}
TEX = {"‖": r"\|", "−": "-", "≤": r"\leq ", "≥": r"\geq ", "⪯": r"\preceq ", "·": r"\cdot ", "₂": "_2", "²": "^2"}
TEX |= {"ᵀ": "^T", "⁺": "^+", "~": r"\sim ", "^": r"\wedge ", "\\": r"\backslash "}
TEX |= {letter: rf"\{letter}" for letter in "_$%#&{}"}
PIECES = re.compile(
    r"(?P<script>[_^])(?:\{(?P<long>[^{}$\\]+)\}|(?P<short>-?[A-Za-z0-9ε∞½]+|\([^ $\\{}]+\)))"
    r"|(?P<under>\w)(?P<accent>[~\u0304\u0302]|\^(?![\w(-]))"
    r"|(?P<word>[A-Za-z]?[a-z]{2,}(?:'s)?)|(?P<sign> *[-+=<>≤≥−⪯] *)|(?P<space> +)|(?P<other>.)"
)


def symbol(metric: str) -> str:
    """A metric as a formula of mathematics, or in words."""
    return typeset(SYMBOLS[metric]) if metric in SYMBOLS else metric.replace("_", " ")


def formula(metric: str) -> str:
    """A metric as a formula without the commands of mathematics, for captions."""
    return SYMBOLS.get(metric, metric)


def typeset(text: str) -> str:
    r"""A formula of captions in the commands of mathematics: letters are italic, and words are upright.

    >>> print(typeset("‖(B − B~)V‖_F / ‖BV‖_F"), typeset("d with σ_{d+1}(M~) ≤ d_stat"))
    $\|(B-\tilde{B})V\|_F\;/\;\|BV\|_F$ $d\;\mathrm{with}\;σ_{d+1}(\tilde{M})\leq d_{\mathrm{stat}}$
    """

    def piece(found: re.Match[str]) -> str:
        script, below = found["script"], found["long"] or found["short"]
        if script and len(below) > 1:
            return rf"{script}{{\mathrm{{{below}}}}}" if re.fullmatch("[a-z]{3,}", below) else f"{script}{{{below}}}"
        if found["accent"]:
            return f"{ACCENTS[found['accent']]}{{{found['under']}}}"
        if found["word"]:
            return rf"\mathrm{{{found['word'].replace(chr(39), '’')}}}"
        return r"\;" if found["space"] else TEX.get(found[0].strip(), found[0].strip())

    return f"${PIECES.sub(piece, text)}$" if re.search("[^a-z ]", text) else text


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
