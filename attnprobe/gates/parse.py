"""Gates as text and as mappings: ``--fail-above`` and a sweep's ``gates``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from reprlib import repr as shown

from ..errors import UsageError, unknown
from ..files import Fields, JsonObject
from .check import NUMBERED, PLACES, STATISTICS, Gate, Gated


def parse_gate(text: str, gated: Gated, least: bool = False) -> Gate:
    """``METRIC[.STAT]=VALUE`` of ``--fail-above`` as a gate of a command; the statistic defaults to the mean.

    Args:
        least: it is of ``--fail-below``: the value is the gate's ``min``, otherwise its ``max``.

    Raises:
        UsageError: another form, an unknown metric or statistic (with the nearest one), a value that is no finite
            number.

    >>> from attnprobe.tables.metrics import Metric
    >>> str(parse_gate("bad_rows.median=0.5", Gated((Metric("bad_rows"),))))
    'bad_rows.median <= 0.5'
    >>> parse_gate("bad_rows.medain=0.5", Gated((Metric("bad_rows"),)))
    Traceback (most recent call last):
    attnprobe.errors.UsageError: unknown statistic 'medain'; did you mean 'median'?
    """
    flag, other = ("--fail-below", "--fail-above") if least else ("--fail-above", "--fail-below")
    name, equals, value = (part.strip() for part in text.partition("="))
    metric, dot, statistic = name.partition(".")
    if not equals or not metric or (dot and not statistic):
        raise UsageError(f"{flag} {text}: the form is METRIC[.STAT]=VALUE, as output_spectral.median=0.5")
    if metric not in gated.names:
        raise unknown("metric", metric, gated.names)
    worse = "larger" if not least else "smaller"
    if gated.better(metric) == worse:
        raise UsageError(f"{flag} {metric}: {worse} is better there; use {other}")
    if dot and statistic not in STATISTICS:
        raise unknown("statistic", statistic, STATISTICS)
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(f"{flag} {text}: '{value}' is not a finite number")
    if least:
        return Gate(metric, statistic or "mean", min=limit, subjects=dict.fromkeys(gated.subjects))
    return Gate(metric, statistic or "mean", max=limit, subjects=dict.fromkeys(gated.subjects))


def parse_gates(entries: Sequence[Fields], gated: Gated, names: Sequence[str] | None = None) -> list[Gate]:
    """The gates of a config: mappings ``{metric, stat, method, d, n, layer, target, weights, scale_inputs, max, min}``.

    ``metric`` and one of ``max`` and ``min`` are needed; ``stat`` defaults to the mean. What else there is narrows the
    rows that are judged: ``d``, ``n`` and ``layer`` are whole numbers or lists of them, ``target`` and ``weights``
    words or lists of them, ``scale_inputs`` numbers, and each of `Gated.subjects` a name.

    Args:
        names: what messages call each entry; None is ``gate 1`` and so on.

    Raises:
        UsageError: no list of mappings, an unknown key, metric or statistic (with the nearest one), a value of another
            type, no limit, limits that no value can keep.

    >>> from attnprobe.tables.metrics import Metric
    >>> gated = Gated((Metric("bad_rows"),))
    >>> [str(gate) for gate in parse_gates([{"metric": "bad_rows", "max": 0, "d": [64, 128]}], gated)]
    ['bad_rows.mean <= 0 for d=64,128']
    >>> parse_gates([{"metric": "bad_rows", "maxi": 0}], gated)
    Traceback (most recent call last):
    attnprobe.errors.UsageError: gate 1: unknown key 'maxi'; did you mean 'max'?
    """
    if not isinstance(entries, (list, tuple)):
        raise UsageError(f"gates: need a list of mappings such as [{{metric: bad_rows, max: 0}}], not {entries!r}")
    names = names or [f"gate {number}" for number in range(1, len(entries) + 1)]
    return [_gate(entry, name, gated) for entry, name in zip(entries, names, strict=True)]


def _gate(entry: object, where: str, gated: Gated) -> Gate:
    """One entry of a config's ``gates``."""
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: {entry!r} is not a mapping; write {{metric: bad_rows, max: 0}}")
    keys, metrics = gated.keys, gated.names
    for key in entry:
        if key not in keys:
            raise UsageError(f"{where}: {unknown('key', str(key), keys)}")
    if "metric" not in entry:
        raise UsageError(f"{where}: no metric; choose from {', '.join(metrics)}")
    metric, stat = _text(entry, "metric", where), _text(entry, "stat", where) or "mean"
    if metric is None or metric not in metrics:
        raise UsageError(f"{where}: {unknown('metric', str(metric), metrics)}")
    if stat not in STATISTICS:
        raise UsageError(f"{where}: {unknown('statistic', stat, STATISTICS)}")
    most, least = _number(entry, "max", where), _number(entry, "min", where)
    if most is None and least is None:
        raise UsageError(f"{where}: {metric} has no limit; give max, min or both")
    if most is not None and least is not None and least > most:
        raise UsageError(f"{where}: no value is above min={least:g} and below max={most:g}")
    if gated.better(metric) == "larger" and least is None:
        raise UsageError(f"{where}: {metric}: larger is better there; give min")
    if metric in gated.over_all_n and "n" in entry:
        raise UsageError(f"{where}: {metric} describes all n together; leave n out")
    kinds = dict.fromkeys(NUMBERED, _numbers) | {"scale_inputs": _factors}
    places: JsonObject = {name: kinds.get(name, _words)(entry, name, where) for name in PLACES}
    subjects = {name: _text(entry, name, where) for name in gated.subjects}
    return Gate(metric, stat, most, least, _text(entry, "method", where), **places, subjects=subjects)


def _text(entry: Fields, key: str, where: str) -> str | None:
    if key not in entry:
        return None
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key}: expected a name, got {value!r}")
    return value.strip()


def _number(entry: Fields, key: str, where: str) -> float | None:
    if key not in entry:
        return None
    value = entry[key]
    if isinstance(value, str) and _is_number(value):  # YAML 1.1 reads 1e-3 as text
        raise UsageError(f"{where}: {key}: '{value}' is text; write {float(value)!r} without quotes, with a point")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise UsageError(f"{where}: {key}: {shown(value)} is not a finite number")
    return value


def _is_finite(value: float) -> bool:
    """Whether a number is finite as a float. Large integers are not."""
    return abs(value) <= sys.float_info.max


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numbers(entry: Fields, key: str, where: str) -> tuple[int, ...] | None:
    if key not in entry:
        return None
    values = entry[key] if isinstance(entry[key], (list, tuple)) else [entry[key]]
    if not values or any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        raise UsageError(f"{where}: {key}: expected a whole number or a list of them, got {entry[key]!r}")
    return tuple(values)


def _factors(entry: Fields, key: str, where: str) -> tuple[float, ...] | None:
    if key not in entry:
        return None
    values = entry[key] if isinstance(entry[key], (list, tuple)) else [entry[key]]
    if not values or not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        raise UsageError(f"{where}: {key}: expected a number or a list of numbers, got {entry[key]!r}")
    return tuple(values)


def _words(entry: Fields, key: str, where: str) -> tuple[str, ...] | None:
    if key not in entry:
        return None
    values = entry[key] if isinstance(entry[key], (list, tuple)) else [entry[key]]
    if not values or not all(isinstance(value, str) and value.strip() for value in values):
        raise UsageError(f"{where}: {key}: expected a word or a list of words, got {entry[key]!r}")
    return tuple(value.strip() for value in values)
