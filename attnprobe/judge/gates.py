"""Gates: a gate is a limit on a statistic of a summary, at the lines of requested methods. `check` judges them.

`attnprobe.judge.parse` reads gates. A gate that covers no line fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..errors import nearest
from ..files import Fields
from ..frame.labels import at_label, source_heading
from ..frame.metric import Metric
from ..grammar.lists import method_label, options_text, parts, short_name

STATISTICS = ("mean", "se", "median", "p10", "p90", "min", "max")
ROUNDING = "≈"  # the sign of an undecided gate

NUMBERED = ("d", "n", "layer")  # places with whole numbers
PLACES = (*NUMBERED, "target", "weights", "scale_inputs")  # by which a gate selects lines
KEYS = ("metric", "stat", "method", *PLACES, "max", "min")  # of a gate in a sweep's file


@dataclass(frozen=True)
class Gated:
    """The metrics and places that a command's gates may name.

    Attributes:
        metrics: with their better directions. over_all_n: names of metrics that are over all n together.
        subjects: further fields of rows, each with a name, that a gate in a sweep's file may select by.
        without: places that no gate may name.
    """

    metrics: tuple[Metric, ...]
    over_all_n: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a gate in a sweep's file."""
        return (*self.subjects, *(key for key in KEYS if key not in self.without))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(metric.name for metric in self.metrics)

    def statistics(self, name: str) -> tuple[str, ...]:
        """The statistics that gates of a metric may name. A metric that is computed from a mean has the mean alone."""
        of_mean = next(metric.of_mean for metric in self.metrics if metric.name == name)
        return STATISTICS if of_mean is None else ("mean",)

    def better(self, name: str) -> str | None:
        """The better direction of a metric (see `Metric`)."""
        return next(metric.better for metric in self.metrics if metric.name == name)


@dataclass(frozen=True)
class Gate:
    """``min <= METRIC.STAT <= max``, at the lines of requested methods that the gate selects.

    ``method`` is a label of the command line: a name alone selects every choice of options, and ``NAME:k=v,…`` the
    lines with exactly these options. Each of `PLACES` has the values that are selected; None selects every value. A
    word of ``weights`` is a value of ``--weights``, or a source's label if sources share it (see `source_labels`).
    ``subjects`` has, for each of `Gated.subjects`, the name that is selected; None selects every name.
    """

    metric: str
    stat: str = "mean"
    max: float | None = None
    min: float | None = None
    method: str | None = None
    d: tuple[int, ...] | None = None
    n: tuple[int, ...] | None = None
    layer: tuple[int, ...] | None = None
    target: tuple[str, ...] | None = None
    weights: tuple[str, ...] | None = None
    scale_inputs: tuple[float, ...] | None = None
    subjects: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """The limits in words.

        >>> Gate("bad_rows", "max", max=0).limit, Gate("delta", min=-1, max=0.5).limit
        ('<= 0', '>= -1 and <= 0.5')
        """
        ends = (f"{sign} {end:g}" for sign, end in ((">=", self.min), ("<=", self.max)) if end is not None)
        return " and ".join(ends)

    @property
    def selection(self) -> str:
        """The selected lines in words; empty if every line is selected.

        >>> Gate("delta", max=1, method="mss", d=(64, 128), weights=("pretrained",)).selection
        ' for mss d=64,128 weights=pretrained'
        """
        places = (f"{name}={_joined(value)}" for name in PLACES if (value := getattr(self, name)))
        subjects = (f"{name}={value}" for name, value in self.subjects.items() if value)
        where = " ".join(filter(None, [*subjects, self.method, *places]))
        return f" for {where}" if where else ""

    def __str__(self) -> str:
        return f"{self.metric}.{self.stat} {self.limit}{self.selection}"

    def covers(self, line: Fields) -> bool:
        """Whether the gate selects a line of a summary."""
        if not all(self.meets(name, line) for name in PLACES):
            return False
        if any(name not in (None, line.get(field)) for field, name in self.subjects.items()):
            return False
        return self.method is None or _is_method(self.method, line)

    def meets(self, name: str, line: Fields) -> bool:
        """Whether the line has one of the values that the gate selects by the place ``name``."""
        selected = getattr(self, name)
        return selected is None or any(value in selected for value in _values(line, name))


@dataclass(frozen=True)
class GateResult:
    """The result of a gate at one line.

    Attributes:
        where: the line in words; empty if no line matches the gate. value: None if the line has no value.
        message: the reason why the gate failed or is undecided; empty if it passed.
        seconds: the time of the line's cells, None if unknown.
        undecided: whether rounding decides the value (see `attnprobe.frame.summary`): on another machine it may lie on
            the other side of the limit.
    """

    gate: Gate
    where: str
    value: float | None
    message: str
    seconds: float | None = None
    undecided: bool = False

    @property
    def passed(self) -> bool:
        return not self.message

    @property
    def failed(self) -> bool:
        return not self.passed and not self.undecided

    @property
    def limit(self) -> str:
        return self.gate.limit

    @property
    def name(self) -> str:
        return f"{self.gate}: {self.where}" if self.where else str(self.gate)

    @property
    def line(self) -> str:
        """Name and message."""
        return f"{self.name}: {self.message or 'passed'}"


def check(lines: Iterable[Fields], gates: Iterable[Gate]) -> list[GateResult]:
    """One result for each gate and each requested line that it covers, in this order.

    Doubt is failure. These fail: a missing or infinite value, a metric that is missing or infinite at some head, a line
    that is not ok, a gate that covers no requested line, and a gate that lists a value of a place without a line. Of
    certified intervals, the upper ends must be at most ``max`` and the lower ends at least ``min``.

    Args:
        lines: of a `attnprobe.frame.summary`, ``METRIC.STAT`` and the flags ``METRIC.STAT.fragile`` among their fields.
            Of several tables, a gate judges the first that has numbers of its metric at a place that it names.

    >>> line = {"method": "x", "d": 8, "status": "ok", "delta.mean": 0.5, "delta.count": 2, "values": 2}
    >>> [(result.name, result.value, result.passed) for result in check([line], [Gate("delta", max=1)])]
    [('delta.mean <= 1: x d=8', 0.5, True)]
    """
    lines = [line for line in lines if line.get("requested", not line.get("reference"))]
    results = []
    for gate in gates:
        judged = _judged_table(gate, lines)
        covered = [line for line in judged if gate.covers(line)]
        results += [_result(gate, line) for line in covered]
        if not covered:
            results.append(GateResult(gate, "", None, _nothing(gate, judged)))
        elif absent := _absent(gate, covered):
            results.append(GateResult(gate, "", None, absent))
    return results


def _judged_table(gate: Gate, lines: Sequence[Fields]) -> list[Fields]:
    """The lines of the table that a gate judges: the first with numbers of its metric and a line that it covers.

    Without such a table, the first that could have numbers of the metric: its lines are named in the failure.
    """
    count = f"{gate.metric}.count"
    names = dict.fromkeys(line.get("table") for line in lines if line.get(count))
    names = names or dict.fromkeys(line.get("table") for line in lines if count in line)
    names = names or dict.fromkeys(line.get("table") for line in lines)
    tables = [[line for line in lines if line.get("table") == name] for name in names]
    first = next(iter(tables), [])
    return next((table for table in tables if any(map(gate.covers, table))), first)


def _result(gate: Gate, line: Fields) -> GateResult:
    """The result at a line. Of two limits it is the one that does not pass, if there is one."""
    sides = [(side, limit) for side, limit in (("upper", gate.max), ("lower", gate.min)) if limit is not None]
    return max((_compared(gate, line, *side) for side in sides), key=lambda result: not result.passed)


def _compared(gate: Gate, line: Fields, side: str, limit: float) -> GateResult:
    """The result at one limit."""
    result = partial(GateResult, gate, _where(gate, line), seconds=_seconds(line))
    if line.get("status") != "ok":
        return result(None, f"{line.get('status')}: {line.get('reason') or 'no reason given'}")
    name, end = gate.metric, ""
    # a certified interval is within the limit if its end on that side is
    if f"{name}_upper.count" in line:
        name, end = f"{name}_{side}", f", the {side} end of the certified intervals,"
    if (count := line.get(f"{name}.count")) is None:
        return result(None, f"{name} was not measured")
    expected = line.get("values") or line.get("cells")
    value = _finite(line.get(f"{name}.{gate.stat}"))
    if expected is not None and count != expected:
        return result(value, f"only {count} of {expected} values are finite")
    if value is None:
        alone = " (one text window has no standard error)" if gate.stat == "se" else ""
        return result(None, f"no finite value{alone}")
    # a median may be finite beside infinite values
    extremes = (line.get(f"{name}.{stat}") for stat in ("min", "max"))
    if any(extreme is not None and _finite(extreme) is None for extreme in extremes):
        return result(value, "a value is not finite")
    kept = value <= limit if side == "upper" else value >= limit
    shown, shown_limit = f"{value:.6g}", f"{limit:.6g}"
    if shown == shown_limit:  # "0.1 is above 0.1" would tell nothing
        shown, shown_limit = repr(value), repr(limit)
    words = {
        ("upper", False): "above",
        ("lower", False): "below",
        ("upper", True): "at most",
        ("lower", True): "at least",
    }
    message = f"{shown}{end} is {words[side, kept]} {shown_limit}"
    if line.get(f"{gate.metric}.{gate.stat}.fragile"):
        sound = gate.stat != "median" and not line.get(f"{gate.metric}.median.fragile")
        way_out = "use guard=sampled (bidirectional skyformer)"
        if sound:
            way_out = f"gate the median, or {way_out}"
        return result(value, f"{ROUNDING}{message}, but rounding decides it; {way_out}", undecided=True)
    return result(value, "" if kept else message)


def _finite(value: object) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _seconds(line: Fields) -> float | None:
    """The time of all cells of a line. The mean is of whole cells, because each head's row has its cell's time."""
    mean, cells = _finite(line.get("seconds.mean")), line.get("cells") or line.get("seconds.count")
    return mean * cells if mean is not None and isinstance(cells, int) else None


def _where(gate: Gate, line: Fields) -> str:
    """A line in words."""
    places = (f"{name}={line[name]}" for name in NUMBERED if line.get(name) is not None)
    subject = [*map(line.get, gate.subjects), method_label(line) if line.get("method") else None]
    further = {name: value for name, value in (line.get("at") or {}).items() if name not in gate.subjects}
    at = at_label(further, line.get("method"))
    return " ".join(filter(None, [*subject, *places, at, source_heading(line)]))


def _nothing(gate: Gate, lines: Sequence[Fields]) -> str:
    """The reason why a gate covers no line: the first of its selections that no line has."""
    if not lines:
        return "no row of a requested method to compare"
    for name, selected in gate.subjects.items():
        known = {line.get(name) or "" for line in lines}
        if selected is not None and selected not in known:
            return f"no row of the {name} '{selected}'{nearest(selected, known)}"
    if gate.method is not None and not any(_is_method(gate.method, line) for line in lines):
        of_methods = [line for line in lines if line.get("method")]
        # a bare name is near to names, a name with options to labels
        bare = parts(gate.method)[1] is None
        names = sorted({line["method"] if bare else method_label(line) for line in of_methods})
        return f"no row of the method '{gate.method}'{nearest(gate.method, names)}"
    for name in PLACES:
        if not any(gate.meets(name, line) for line in lines):
            known = sorted({value for line in lines for value in _values(line, name)})
            return f"no row with {name}={_joined(getattr(gate, name))}; the rows have {_joined(known) or 'none'}"
    return "no row has all of these together"


def _absent(gate: Gate, covered: Sequence[Fields]) -> str:
    """The selected values of places that no covered line has, in words; empty if there are none."""
    absent = []
    for name in PLACES:
        known = {value for line in covered for value in _values(line, name)}
        if lost := [value for value in getattr(gate, name) or () if value not in known]:
            absent.append(f"no row with {name}={_joined(lost)} among those that are meant")
    return "; ".join(absent)


def _values(line: Fields, name: str) -> list[str | int]:
    """The values by which a gate may select the line at a place; for weights also the label of its source."""
    values = (line.get(name), line.get("source") if name == "weights" else None)
    return [value for value in values if value is not None]


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _is_method(label: str, line: Fields) -> bool:
    """Whether a label matches the line's method: a bare name matches all options, else they must be equal."""
    name, text = parts(label)
    if short_name(name) != line.get("method"):
        return False
    return text is None or _options(text) == _options(options_text(line.get("options")))


def _options(text: str) -> dict[str, float | str]:
    """The options of ``k=v,k=v`` as values that can be compared."""
    pairs = (item.partition("=") for item in text.split(",") if item)
    return {name.strip(): _value(value) for name, _, value in pairs}


def _value(text: str) -> float | str:
    """An option's value for comparison: a number, or text in lower case."""
    text = text.strip().lower()
    try:
        return float(text)
    except ValueError:
        return text
