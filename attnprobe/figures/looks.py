"""The colour and marker of each method, by its name alone: the same in all figures of all runs. Names of metrics.

A look in `LOOKS` never changes. A new method gets a new pair. The methods that papers compare (`COMPARED`)
have colours that differ for readers with red-green blindness too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

Look = dict[str, Any]  # of matplotlib: color, marker, linestyle

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
WINE, FOREST, BROWN, INDIGO, NAVY = "#882255", "#117733", "#661100", "#332288", "#1F3B73"
TEAL, OLIVE, SAND, ROSE, CYAN, PURPLE = "#44AA99", "#999933", "#DDCC77", "#CC6677", "#88CCEE", "#AA4499"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, WINE, FOREST, BROWN, INDIGO, NAVY)
CURVE, POINT = 1.6, 5.0  # points of the width of a method's curve, and of its markers
GREY = "#444444"  # of V-Mean, bounds and guides
SPARE = ("*", "d", "H", "8")  # markers of users' methods and of methods with options
DASHES: tuple[Any, ...] = ("--", (0, (5, 1.5, 1, 1.5)), (0, (1, 1)), (0, (8, 2)))  # of methods with options

YARDSTICKS = {"vmean": "--", "svd": "-.", "random": ":"}  # their lines
EXACT = "exact"  # attention itself, where it is measured as a yardstick of cost
LOOKS: Mapping[str, tuple[str, str]] = {
    EXACT: ("black", "o"),
    "softmax": ("black", "s"),
    "kernelized": (BROWN, "o"),
    "vmean": (GREY, "o"),
    "svd": ("#7a7a7a", "D"),
    # Nyström
    "skyformer": (BLUE, "o"),
    "nystromformer": (VERMILION, "s"),
    "nystromformer-kmeans": (PINK, "s"),
    "mss": (FOREST, "<"),
    "mss-literal": (ORANGE, "<"),
    "spectral-shift": (NAVY, ">"),
    "prototype": (SKY, "^"),
    "wildcat": (PURPLE, "<"),
    # sampling
    "informer": (ORANGE, "v"),
    "skeinformer": (WINE, "h"),
    "vattention": (INDIGO, "h"),
    "thinformer": (TEAL, "h"),
    # sketch
    "linformer": (GREEN, "^"),
    "linformer-jlt": (VERMILION, "^"),
    "amm": (SKY, "D"),
    # features
    "performer": (PINK, "D"),
    "performer-relu": (WINE, "D"),
    "linear": (ORANGE, "X"),
    "efficient": (BLUE, "P"),
    # LSH
    "reformer": (INDIGO, "p"),
    "lsh-qk": (VERMILION, "p"),
    "magicpig": (FOREST, "p"),
    "hyper": (PINK, "p"),
    "kdeformer": (ORANGE, "p"),
    # sparse
    "bigbird": (SKY, "P"),
    "longformer": (BROWN, "X"),
    "window": (GREEN, "v"),
    "topk": (ORANGE, ">"),
    # selection
    "quest": (NAVY, "<"),
    "topp": (WINE, "<"),
    "block-topk": (GREEN, ">"),
    "snapkv": (VERMILION, "v"),
    "h2o": (SKY, "v"),
    "tova": (PINK, "v"),
    "knorm": (BROWN, "v"),
    "keydiff": (INDIGO, "v"),
    "expected": (FOREST, "v"),
    "random": (GREY, "v"),
    "vertical-slash": (ORANGE, "D"),
    "tri-shape": (OLIVE, "D"),
    "moba": (TEAL, "s"),
    "xattention": (PURPLE, "s"),
    "flexprefill": (SAND, "s"),
    "nsa": (ROSE, "^"),
    "dsa-oracle": (CYAN, "^"),
    "selection": ("black", "^"),
    # kernels
    "torch:flex": (BLUE, "v"),
    "torch:int8": (VERMILION, "h"),
    "torch:sdpa-flash": (GREEN, "P"),
    "torch:sdpa-math": ("black", "D"),
}
COMPARED = (
    EXACT,
    "vmean",
    "skyformer",
    "nystromformer",
    "mss",
    "spectral-shift",
    "informer",
    "skeinformer",
    "linformer",
    "performer",
    "reformer",
    "bigbird",
    "longformer",
)


def looks_of(labels: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """The colour, marker and line style of methods, each by its name and its label ``NAME[:k=v,…]``.

    A method with options has its name's colour, a marker of `SPARE` and a kind of dashes; a method of a user has a
    colour and a marker of `SPARE`. Both follow from a hash of the label. If two labels of a figure have the same look,
    or two of a method the same dashes, the label that is later in the alphabet takes the next free ones.

    >>> looks_of([("skyformer", "skyformer")])["skyformer"]
    {'color': '#0072B2', 'marker': 'o', 'linestyle': '-'}
    """
    looks: dict[str, Look] = {}
    for name, label in sorted(set(labels)):
        candidates = _candidates(name, label)
        free = [one for one in candidates if one not in looks.values()] or candidates[:1]
        lines = [_line(look) for look in looks.values() if look["linestyle"] in DASHES]
        looks[label] = next((one for one in free if _line(one) not in lines), free[0])
    return looks


def _line(look: Look) -> tuple[Any, Any]:
    """The line style, which distinguishes lines with small markers."""
    return look["color"], look["linestyle"]


def _candidates(name: str, label: str) -> list[Look]:
    """The possible looks of a label, beginning with the one that its hash selects."""
    if label == name and name in LOOKS:
        colour, marker = LOOKS[name]
        return [{"color": colour, "marker": marker, "linestyle": YARDSTICKS.get(name, "-")}]
    if name in LOOKS:
        colour = LOOKS[name][0]
        pairs = [(marker, dashes) for dashes in DASHES for marker in SPARE]
        looks: list[Look] = [{"color": colour, "marker": marker, "linestyle": dashes} for marker, dashes in pairs]
    else:
        looks = [{"color": colour, "marker": marker, "linestyle": "-"} for marker in SPARE for colour in COLOURS]
    start = int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big") % len(looks)
    ordered = looks[start:] + looks[:start]
    return sorted(ordered, key=lambda look: look["marker"] != ordered[0]["marker"])  # the marker stays if it can


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
