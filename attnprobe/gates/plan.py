"""Gates that no run with given settings can pass, refused before the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import nearest
from ..files import Fields
from ..grammar.spelling import parts, short_name
from .check import PLACES, Gate

OPEN = ("all", "own")  # words whose meaning the source or the method decides


def impossible_reason(gate: Gate, settings: Fields, measures: Mapping[str, str]) -> str | None:
    """The reason why a gate must fail under a command's settings; None if it may pass, or if that is not known yet.

    Args:
        settings: the values of options by name. What lacks is not known.
        measures: by option, what the metrics begin with that are not measured where it is False.

    >>> impossible_reason(Gate("matrix_spectral", max=1), {"matrix": False}, {"matrix": "matrix_"})
    'matrix: false measures no matrix_spectral'
    >>> impossible_reason(Gate("bad_rows", max=0, n=(512,)), {"n": (64, 65, 66)}, {})
    'n=512 is not measured; n is 64,65,66'
    >>> impossible_reason(Gate("tau", max=1, n=(512,)), {"n": 64}, {})
    'n=512 is not measured; n is 64'
    """
    for setting, measured in measures.items():
        if gate.metric.startswith(measured) and settings.get(setting) is False:
            return f"{setting}: false measures no {gate.metric}"
    if gate.stat == "se" and settings.get("windows") == 1:
        return "one text window has no standard error; give more windows, or gate another statistic"
    names = _methods(settings.get("methods"))
    if gate.method is not None and names is not None and short_name(parts(gate.method)[0]) not in names:
        return f"the method '{gate.method}' is not measured{nearest(gate.method, names)}"
    for place in PLACES:
        values, measured = getattr(gate, place), _measured(settings.get(place))
        if values is not None and measured == ():
            return f"no {place} is measured by itself"
        for value in values or ():
            if measured is not None and value not in measured:
                return f"{place}={_text(value)} is not measured; {place} is {','.join(map(_text, measured))}"
    return None


def _measured(value: object) -> tuple[Any, ...] | None:
    """The values of a place; None if only the source knows them."""
    if value is None or value in OPEN:
        return None
    return tuple(value) if isinstance(value, tuple) else (value,)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _methods(texts: Iterable[str] | None) -> list[str] | None:
    """The names in ``--method`` items; None for ``all`` or no items."""
    items = [item.strip() for text in texts or () for item in text.split(",")]
    names = [short_name(parts(item)[0]) for item in items if parts(item)[1] is not None or "=" not in item]
    return None if not names or "all" in names else list(dict.fromkeys(names))
