"""Gates that no run of some settings could pass, told before the run: they would fail after hours of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import nearest
from ..grammar.lists import parse_numbers, parse_positive
from ..grammar.spelling import parts, short_name
from .check import NUMBERED, PLACES, Gate

__all__ = ["hopeless"]


def hopeless(gate: Gate, settings: Mapping[str, Any]) -> str | None:
    """Why a gate can only fail under these settings of a command; None where it may pass, or that is not known yet.

    Args:
        settings: by the names of a command's parameters: ``methods``, ``n``, ``d``, ``layer``, ``target``,
            ``weights``, ``scale_inputs``, ``qkv``, ``windows``, ``matrix``, ``errors``, ``memory``, ``budgets`` and
            ``per_layer``, each as the user wrote it. What lacks is not known.

    >>> hopeless(Gate("matrix_spectral", max=1), {"matrix": False})
    'matrix: false measures no matrix_spectral'
    >>> hopeless(Gate("bad_rows", max=0, n=(512,)), {"n": "64-66"})
    'n=512 is not measured; n is 64,65,66'
    """
    if gate.metric.startswith("matrix_") and settings.get("matrix") is False:
        return f"matrix: false measures no {gate.metric}"
    for setting, measured in (("errors", "output_"), ("memory", "peak_bytes")):  # of bench
        if gate.metric.startswith(measured) and settings.get(setting) is False:
            return f"{setting}: false measures no {gate.metric}"
    if gate.stat == "se" and settings.get("windows") == 1:
        return "one text window has no standard error; give more windows, or gate another statistic"
    if settings.get("budgets") is not None:  # a file of them names its method
        settings = {name: value for name, value in settings.items() if name not in ("methods", "d")}
    if gate.layer is not None and settings.get("per_layer") is False:
        return "per-layer: false replaces no layer by itself"
    names = _methods(settings.get("methods"))
    if gate.method is not None and names is not None and short_name(parts(gate.method)[0]) not in names:
        return f"the method '{gate.method}' is not measured{nearest(gate.method, names)}"
    for place in PLACES:
        wanted, measured = getattr(gate, place), _measured(place, settings)
        for value in wanted or ():
            if measured is not None and value not in measured:
                return f"{place}={value} is not measured; {place} is {','.join(map(str, measured))}"
    return None


def _measured(place: str, settings: Mapping[str, Any]) -> list[Any] | None:
    """What the settings say of a place; None where only the source tells."""
    text = settings.get(place)
    if text is None or text.strip() in ("all", "own") or (place == "weights" and settings.get("qkv") is not None):
        return None
    if place == "scale_inputs":
        return [int(value) if value.is_integer() else value for value in parse_positive(text, place)]
    return parse_numbers(text, place) if place in NUMBERED else [word.strip() for word in text.split(",")]


def _methods(texts: Iterable[str] | None) -> list[str] | None:
    """The names in ``--method`` items; None where they are not given, or are ``all``."""
    items = [item.strip() for text in texts or () for item in text.split(",")]
    names = [short_name(parts(item)[0]) for item in items if parts(item)[1] is not None or "=" not in item]
    return None if not names or "all" in names else list(dict.fromkeys(names))
