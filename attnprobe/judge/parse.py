"""Gates as text and as mappings, ``--fail-above`` and a sweep's ``gates``, and those that no run can pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown

from ..errors import UsageError, nearest, unknown
from ..files import Fields, JsonObject
from ..grammar.lists import parts, short_name
from .gates import NUMBERED, PLACES, Gate, Gated

OPEN = ("all", "own")  # values of options that the source or the method decides
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(NUMBERED, (int, "a whole number or a list of them")),
    "scale_inputs": ((int, float), "a number or a list of numbers"),
}


def parse_gate(text: str, gated: Gated, least: bool = False) -> Gate:
    """``METRIC[.STAT]=VALUE[ for METHOD KEY=VALUE,… …]`` of ``--fail-above`` as a gate.

    The statistic defaults to the mean. The words behind *for* are as in `Gate.selection`: a method, and keys of a
    sweep's file.

    Args:
        least: whether the text is of ``--fail-below``: its value is the gate's ``min``, otherwise the ``max``.

    Raises:
        UsageError: another form; as `parse_gates`.

    >>> from attnprobe.frame.metric import metrics
    >>> gated = Gated(metrics("bad_rows"))
    >>> str(parse_gate("bad_rows.median=0.5 for skyformer:guard=sampled d=64,128", gated))
    'bad_rows.median <= 0.5 for skyformer:guard=sampled d=64,128'
    >>> parse_gate("bad_rows.medain=0.5", gated)
    Traceback (most recent call last):
    attnprobe.errors.UsageError: --fail-above bad_rows.medain=0.5: unknown statistic 'medain'; did you mean 'median'?
    """
    flag, other = ("--fail-below", "--fail-above") if least else ("--fail-above", "--fail-below")
    where = f"{flag} {text}"
    limited, _, selection = text.partition(" for ")
    name, equals, value = (part.strip() for part in limited.partition("="))
    metric, dot, statistic = name.partition(".")
    if not equals or not metric or (dot and not statistic):
        form = "METRIC[.STAT]=VALUE, as output_spectral.median=0.5 or 'bad_rows.max=0 for skyformer d=64'"
        raise UsageError(f"{where}: the form is {form}")
    worse = "larger" if not least else "smaller"
    if metric in gated.names and gated.better(metric) == worse:
        raise UsageError(f"{flag} {metric}: {worse} is better there; use {other}")
    entry = {"metric": metric, "stat": statistic or "mean", "min" if least else "max": _plain(value)}
    for word in selection.split():
        key, equals, values = word.partition("=")
        if not equals or ":" in key:  # options of a method stand behind a colon
            key, values = "method", word
        if key in entry:
            raise UsageError(f"{where}: {key} is named twice")
        entry[key] = [_plain(value) for value in values.split(",")] if key in PLACES else values
    return _gate(entry, where, gated)


def _plain(text: str) -> int | float | str:
    """A finite number, or else the text."""
    try:
        return int(text)
    except ValueError:
        return number if math.isfinite(number := _float(text)) else text


def parse_gates(entries: Sequence[Fields], gated: Gated, names: Sequence[str] | None = None) -> list[Gate]:
    """The gates of a config: mappings ``{metric, stat, method, d, n, layer, target, weights, scale_inputs, max, min}``.

    ``metric`` and one of ``max`` and ``min`` are needed; ``stat`` defaults to the mean. The other keys select lines:
    ``d``, ``n`` and ``layer`` are whole numbers or lists of them, ``target`` and ``weights`` words or lists of them,
    ``scale_inputs`` numbers, and each of `Gated.subjects` a name.

    Args:
        names: of the entries in messages; by default ``gate 1`` and so on.

    >>> from attnprobe.frame.metric import metrics
    >>> gated = Gated(metrics("bad_rows"))
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
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: {entry!r} is not a mapping; write {{metric: bad_rows, max: 0}}")
    keys, metrics = gated.keys, gated.names
    for key in entry:
        if key not in keys:
            raise UsageError(f"{where}: {unknown('key', str(key), keys)}")
    metric = _text(entry, "metric", where)
    if metric is None:
        raise UsageError(f"{where}: no metric; choose from {', '.join(metrics)}")
    stat = _text(entry, "stat", where) or "mean"
    if metric not in metrics:
        raise UsageError(f"{where}: {unknown('metric', metric, metrics)}")
    if stat not in gated.statistics(metric):
        raise UsageError(f"{where}: {unknown('statistic', stat, gated.statistics(metric))}")
    most, least = _number(entry, "max", where), _number(entry, "min", where)
    if most is None and least is None:
        raise UsageError(f"{where}: {metric} has no limit; give max, min or both")
    if most is not None and least is not None and least > most:
        raise UsageError(f"{where}: no value is above min={least:g} and below max={most:g}")
    if gated.better(metric) == "larger" and least is None:
        raise UsageError(f"{where}: {metric}: larger is better there; give min")
    if metric in gated.over_all_n and "n" in entry:
        raise UsageError(f"{where}: {metric} describes all n together; leave n out")
    places: JsonObject = {name: _several(entry, name, where) for name in PLACES}
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
    if isinstance(value, str) and math.isfinite(_float(value)):  # YAML 1.1 reads 1e-3 as text
        raise UsageError(f"{where}: {key}: '{value}' is text; write {float(value)!r} without quotes, with a point")
    # an integer above the largest float has no float to compare with
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise UsageError(f"{where}: {key}: {shown(value)} is not a finite number")
    return value


def _float(text: str) -> float:
    """The number that a text stands for; NaN if it is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _several(entry: Fields, key: str, where: str) -> tuple[object, ...] | None:
    """The values that a gate selects at a place, from one value or a list: words, unless `KINDS` says otherwise."""
    if key not in entry:
        return None
    values = entry[key] if isinstance(entry[key], (list, tuple)) else [entry[key]]
    kind, expected = KINDS.get(key, (str, "a word or a list of words"))
    values = [value.strip() if isinstance(value, str) else value for value in values]
    if not values or any(value == "" or isinstance(value, bool) or not isinstance(value, kind) for value in values):
        raise UsageError(f"{where}: {key}: expected {expected}, got {entry[key]!r}")
    return tuple(values)


def impossible_reason(gate: Gate, settings: Fields, measures: Mapping[str, tuple[str, ...]]) -> str | None:
    """The reason why a gate must fail under a command's settings; None if it may pass, or if that is not known yet.

    Args:
        settings: the values of options by name; a value that is missing is not known.
        measures: by option, the prefixes of metrics that are measured only if the option is true.

    >>> impossible_reason(Gate("matrix_spectral", max=1), {"matrix": False}, {"matrix": ("matrix_",)})
    'only --matrix measures matrix_spectral'
    >>> impossible_reason(Gate("bad_rows", max=0, n=(512,)), {"n": (64, 65, 66)}, {})
    'n=512 is not measured; n is 64,65,66'
    >>> impossible_reason(Gate("tau", max=1, n=(512,)), {"n": "all"}, {})
    >>> impossible_reason(Gate("tau", max=1, n=(512,)), {"n": 64}, {})
    'n=512 is not measured; n is 64'
    >>> impossible_reason(Gate("tau", "se", max=1), {"windows": 1}, {}).partition(";")[0]
    'one text window has no standard error'
    >>> impossible_reason(Gate("tau", "se", max=1), {"windows": 2}, {})
    >>> impossible_reason(Gate("tau", max=1, method="topk"), {"windows": 1, "methods": ["all"]}, {})
    """
    for setting, measured in measures.items():
        if gate.metric.startswith(measured) and settings.get(setting) is False:
            return f"only --{setting.replace('_', '-')} measures {gate.metric}"
    if gate.stat == "se" and settings.get("windows") == 1:
        return "one text window has no standard error; give more windows, or gate another statistic"
    names = _methods(settings.get("methods"))
    if gate.method is not None and names is not None and short_name(parts(gate.method)[0]) not in names:
        return f"the method '{gate.method}' is not measured{nearest(gate.method, names)}"
    for name in PLACES:
        values, measured = getattr(gate, name), _measured(settings.get(name))
        if values is not None and measured == ():
            return f"no {name} is measured by itself"
        for value in values or ():
            if measured is not None and value not in measured:
                return f"{name}={_written(value)} is not measured; {name} is {','.join(map(_written, measured))}"
    return None


def _measured(value: object) -> tuple[object, ...] | None:
    """The values of a place; None if only the source knows them."""
    if value is None or value in OPEN:
        return None
    return tuple(value) if isinstance(value, tuple) else (value,)


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _methods(texts: Iterable[str] | None) -> list[str] | None:
    """The names in ``--method`` items; None for ``all`` or no items."""
    items = [item.strip() for text in texts or () for item in text.split(",")]
    names = [short_name(parts(item)[0]) for item in items if parts(item)[1] is not None or "=" not in item]
    return None if not names or "all" in names else list(dict.fromkeys(names))
