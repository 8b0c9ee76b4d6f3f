"""Colours on the background of the user's style: what is made for white paper is turned over on a dark one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

GREYISH = 0.2  # the most by which the channels of a grey differ
DEEP = 0.3  # hues below this lightness are made lighter on a dark background,
LIFT = 0.35  # by this share of the way to the colour of text


def on_background(colour: Any) -> Any:
    """A colour on the background of matplotlib's settings. It stays where text is dark, and if it is transparent.

    A grey of lightness g becomes ``(1 - g)`` times the colour of text and ``g`` times that of the background; a deep
    hue becomes lighter.
    """
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb, to_rgba

    text = to_rgb(rcParams["text.color"])
    *channels, alpha = to_rgba(colour)
    if _lightness(text) < 0.5 or alpha == 0:
        return colour
    if max(channels) - min(channels) <= GREYISH:
        paper = to_rgba(rcParams["axes.facecolor"])[:3]
        mixed = [ink + share * (white - ink) for share, ink, white in zip(channels, text, paper, strict=True)]
    elif _lightness(channels) < DEEP:
        mixed = [one + LIFT * (ink - one) for one, ink in zip(channels, text, strict=True)]
    else:
        return colour
    return *mixed, alpha


def _lightness(channels: Sequence[float]) -> float:
    red, green, blue = channels
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def turned_over(axes: Sequence[Any], handles: Iterable[Any]) -> None:
    """Give what panels and legends draw its colours on the user's background. Words on coloured cells keep theirs."""
    from matplotlib import rcParams
    from matplotlib.colors import same_color
    from matplotlib.lines import Line2D

    text = rcParams["text.color"]
    shapes = [*handles, *(one for axis in axes for one in (*axis.lines, *axis.collections, *axis.patches))]
    for one in shapes:
        if isinstance(one, Line2D):
            one.set(
                color=on_background(one.get_color()),
                markerfacecolor=on_background(one.get_markerfacecolor()),
                markeredgecolor=on_background(one.get_markeredgecolor()),
            )
        elif getattr(one, "get_array", lambda: None)() is None:
            one.set(
                facecolor=_each(one.get_facecolor()),
                edgecolor=_each(one.get_edgecolor()),
            )
    for axis in axes:
        if not is_map(axis):
            for word in axis.texts:
                if not same_color(word.get_color(), text):
                    word.set_color(on_background(word.get_color()))


def is_map(axis: Any) -> bool:
    """Whether a panel shows values as colours."""
    return any(one.get_array() is not None for one in (*axis.collections, *axis.images))


def _each(colours: Any) -> Any:
    """One colour, or each of several, on the background."""
    several = getattr(colours, "ndim", 1) == 2
    return [on_background(one) for one in colours] if several else on_background(colours)
