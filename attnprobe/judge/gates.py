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
ROUNDING = "≈"

NUMBERED = ("d", "n", "layer")
PLACES = (*NUMBERED, "target", "weights", "scale_inputs")
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
        """Of a gate in a sweep's file."""
        return (*self.subjects, *(key for key in KEYS if key not in self.without))

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics by name."""
        return tuple(metric.name for metric in self.metrics)

    def statistics(self, name: str) -> tuple[str, ...]:
        """Those that gates of a metric may name: the mean alone of one that is computed from a mean."""
        of_mean = next(metric.of_mean for metric in self.metrics if metric.name == name)
        return STATISTICS if of_mean is None else ("mean",)

    def better(self, name: str) -> str | None:
        """The better direction of a metric (see `Metric`)."""
        return next(metric.better for metric in self.metrics if metric.name == name)


@dataclass(frozen=True)
class Gate:
    """``min <= METRIC.STAT <= max``, for the rows of requested methods at the named places.

    ``method`` is a label of the command line: a name alone means every choice of options, and ``NAME:k=v,…`` the rows
    with exactly these options. The places, `PLACES`, have the allowed values; None means every value. A word of
    ``weights`` is a value of ``--weights``, or the label of a source if several share the word (see `source_labels`).
    ``subjects`` has the names that are meant of the further fields of a command's rows; None means every name.
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
        """The selected rows in words; empty if all are.

        >>> Gate("delta", max=1, method="mss", d=(64, 128), weights=("pretrained",)).selection
        ' for mss d=64,128 weights=pretrained'
        """
        places = (f"{name}={_joined(value)}" for name in PLACES if (value := getattr(self, name)))
        subjects = (f"{name}={value}" for name, value in self.subjects.items() if value)
        where = " ".join(filter(None, [*subjects, self.method, *places]))
        return f" for {where}" if where else ""

    def __str__(self) -> str:
        return f"{self.metric}.{self.stat} {self.limit}{self.selection}"

    def covers(self, row: Fields) -> bool:
        """Whether the row is at the places that the gate names."""
        if not all(self.meets(name, row) for name in PLACES):
            return False
        if any(name not in (None, row.get(field)) for field, name in self.subjects.items()):
            return False
        return self.method is None or _is_method(self.method, row)

    def meets(self, place: str, row: Fields) -> bool:
        """Whether the row is at one of the places of that name."""
        numbers = getattr(self, place)
        return numbers is None or any(value in numbers for value in _places(row, place))


@dataclass(frozen=True)
class GateResult:
    """The result of a gate at one line. ``where`` is empty if no line matches the gate.

    ``message`` is the reason why it failed or is undecided, empty if it passed. ``value`` is None if the line has none.
    ``seconds`` is the time of the line's cells, None if unknown. The gate is ``undecided`` where rounding decides the
    value (see `attnprobe.frame.summary`): on another machine it may lie on the other side of the limit.
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

    Fails closed: a missing or infinite value, a metric that is missing or infinite at some head, a line that is not ok,
    and a gate that covers no requested line, or none at one of the places that it lists, are failures. Of certified
    intervals the upper ends stand below ``max`` and the lower ends above ``min``.

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
        tables = dict.fromkeys(line.get("table") for line in lines if line.get(f"{gate.metric}.count"))
        tables = tables or dict.fromkeys(line.get("table") for line in lines if f"{gate.metric}.count" in line)
        tables = tables or dict.fromkeys(line.get("table") for line in lines)
        of_tables = [[line for line in lines if line.get("table") == name] for name in tables]
        judged = next((some for some in of_tables if any(map(gate.covers, some))), next(iter(of_tables), []))
        covered = [line for line in judged if gate.covers(line)]
        results += [_result(gate, line) for line in covered]
        if not covered:
            results.append(GateResult(gate, "", None, _nothing(gate, judged)))
        elif absent := _absent(gate, covered):
            results.append(GateResult(gate, "", None, absent))
    return results


def _result(gate: Gate, line: Fields) -> GateResult:
    """The result at one of its limits, which does not pass if one does not."""
    sides = [(side, limit) for side, limit in (("upper", gate.max), ("lower", gate.min)) if limit is not None]
    return max((_compared(gate, line, *side) for side in sides), key=lambda result: not result.passed)


def _compared(gate: Gate, line: Fields, side: str, limit: float) -> GateResult:
    """The result at one limit."""
    result = partial(GateResult, gate, _where(gate, line), seconds=_seconds(line))
    if line.get("status") != "ok":
        return result(None, f"{line.get('status')}: {line.get('reason') or 'no reason given'}")
    name, end = gate.metric, ""
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
    ends = (line.get(f"{name}.{stat}") for stat in ("min", "max"))
    if any(end is not None and _finite(end) is None for end in ends):
        return result(value, "a value is not finite")
    kept = value <= limit if side == "upper" else value >= limit
    texts = [f"{number:.6g}" for number in (value, limit)]
    if texts[0] == texts[1]:  # they differ beyond six digits, or not at all
        texts = [repr(value), repr(limit)]
    words = {
        ("upper", False): "above",
        ("lower", False): "below",
        ("upper", True): "at most",
        ("lower", True): "at least",
    }
    message = f"{texts[0]}{end} is {words[side, kept]} {texts[1]}"
    if line.get(f"{gate.metric}.{gate.stat}.fragile"):
        sound = gate.stat != "median" and not line.get(f"{gate.metric}.median.fragile")
        way_out = f"{'gate the median, or ' if sound else ''}use guard=sampled (bidirectional skyformer)"
        return result(value, f"{ROUNDING}{message}, but rounding decides it; {way_out}", undecided=True)
    return result(value, "" if kept else message)


def _finite(value: object) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _seconds(line: Fields) -> float | None:
    """The time of all cells of a line; a row of a head has the time of its whole cell."""
    mean, cells = _finite(line.get("seconds.mean")), line.get("cells") or line.get("seconds.count")
    return mean * cells if mean is not None and isinstance(cells, int) else None


def _where(gate: Gate, row: Fields) -> str:
    places = (f"{name}={row[name]}" for name in NUMBERED if row.get(name) is not None)
    subject = [*map(row.get, gate.subjects), method_label(row) if row.get("method") else None]
    further = {name: value for name, value in (row.get("at") or {}).items() if name not in gate.subjects}
    at = at_label(further, row.get("method"))
    return " ".join(filter(None, [*subject, *places, at, source_heading(row)]))


def _nothing(gate: Gate, rows: Sequence[Fields]) -> str:
    """The reason why a gate covers no row: the first of its places that no row has."""
    if not rows:
        return "no row of a requested method to compare"
    for name, name_of_gate in gate.subjects.items():
        have = {row.get(name) or "" for row in rows}
        if name_of_gate is not None and name_of_gate not in have:
            return f"no row of the {name} '{name_of_gate}'{nearest(name_of_gate, have)}"
    if gate.method is not None and not any(_is_method(gate.method, row) for row in rows):
        methods = [row for row in rows if row.get("method")]
        names = sorted({row["method"] if parts(gate.method)[1] is None else method_label(row) for row in methods})
        return f"no row of the method '{gate.method}'{nearest(gate.method, names)}"
    for name in PLACES:
        if not any(gate.meets(name, row) for row in rows):  # where each alone has some, no row has all
            have = sorted({value for row in rows for value in _places(row, name)})
            return f"no row with {name}={_joined(getattr(gate, name))}; the rows have {_joined(have) or 'none'}"
    return "no row has all of these together"


def _absent(gate: Gate, covered: Sequence[Fields]) -> str:
    absent = []
    for name in PLACES:
        have = {value for row in covered for value in _places(row, name)}
        if lost := [value for value in getattr(gate, name) or () if value not in have]:
            absent.append(f"no row with {name}={_joined(lost)} among those that are meant")
    return "; ".join(absent)


def _places(row: Fields, name: str) -> list[str | int]:
    """The names that match the row at a place; for weights also the label of its source."""
    values = (row.get(name), row.get("source") if name == "weights" else None)
    return [value for value in values if value is not None]


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _is_method(label: str, row: Fields) -> bool:
    """Whether a label matches the row's method: a bare name matches all options, else they must be equal."""
    name, text = parts(label)
    if short_name(name) != row.get("method"):
        return False
    return text is None or _options(text) == _options(options_text(row.get("options")))


def _options(text: str) -> dict[str, float | str]:
    """Options for comparison."""
    pairs = (item.partition("=") for item in text.split(",") if item)
    return {name.strip(): _value(value) for name, _, value in pairs}


def _value(text: str) -> float | str:
    """An option's value for comparison: a number, or text in lower case."""
    text = text.strip().lower()
    try:
        return float(text)
    except ValueError:
        return text
