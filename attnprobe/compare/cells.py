"""The cells of a run by identity, and whether two runs have the same sources."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import UsageError, unknown
from ..experiments import EXPERIMENTS, experiment
from ..files import Fields
from ..grammar.lists import parts, short_name, with_commas
from ..records.file import LOWER_BOUND, NAMES, STATUSES, strict_json
from ..tables.labels import TELLING
from ..tables.numbers import method_label, short_hashes

Key = tuple[Any, ...]
MOST_FACTS = 4  # that a refusal names
NO_NAME = re.compile(r"=|^\d")  # a value of an option
DEMAND = re.compile(r"\s*d\s*=")  # of a budget, among options


def cells_of(records: Iterable[Fields], name: str, command: str) -> dict[Key, Fields]:
    """The cells of a run by identity. Of equal ones, the best status wins, then the closest tolerance."""
    cells: dict[Key, Fields] = {}
    commands: set[str] = set()
    for record in records:
        commands.add(str(record.get("command", command)))
        if record.get("command", command) != command or record.get("method") == LOWER_BOUND:
            continue
        cell = cell_of(record, command)
        key = (_source_of(cell), *_row_key(cell), *place_of_cell(cell))
        if key not in cells or _quality(cell) <= _quality(cells[key]):
            cells[key] = cell
    if not cells:
        others = ", ".join(f"`{other}`" for other in sorted(commands - {command}))
        holds = f"it holds records of {others}" if others else "it holds no record of a method"
        taken = ", of ".join(f"`{other}`" for other in EXPERIMENTS if experiment(other).compared)
        raise UsageError(f"{name}: {holds}; compare takes two runs of {taken}")
    return cells


def cell_of(record: Fields, command: str) -> Fields:
    """A record as a cell. A command that measures the whole model has one value for each metric, so no heads."""
    return {**record, "heads": [None]} if experiment(command).whole else record


def place_of_cell(cell: Fields) -> Key:
    """The window, seed and heads of a cell."""
    return cell.get("window"), cell.get("seed"), tuple(cell["heads"])


def _source_of(record: Fields) -> str:
    return strict_json({name: fact for name, fact in record["source"].items() if name not in NAMES})


def _row_key(record: Fields) -> Key:
    options = "" if "pair" in record else json.dumps(record.get("options") or {}, sort_keys=True)
    method = record.get("pair", record["method"])
    numbers = (record.get(name) for name in ("target", "n", "d", "layer", "backward", "kv_head", "prefix"))
    return (method, options, *numbers, tuple(record.get("layers") or ()))


def _quality(record: Fields) -> tuple[int, float]:
    """The order of records: the status, then the tolerance of matrix errors; smaller is better."""
    tol = record.get("matrix_tol")
    return STATUSES.index(record["status"]), math.inf if tol is None else tol


def shared_sources(a: Mapping[Key, Fields], b: Mapping[Key, Fields]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The facts of the sources in both runs, and the names of the facts that differ between these sources.

    Raises:
        UsageError: each run has a source that the other lacks; the message names the two models, or of one model the
            first facts that differ.
    """
    ours, others = ({key[0]: record["source"] for key, record in run.items()} for run in (a, b))
    lost = [json.loads(key) for key in ours if key not in others]
    new = [json.loads(key) for key in others if key not in ours]
    if lost and new:
        pair = min(((_differing(x, y), x, y) for x in lost for y in new), key=lambda differing: len(differing[0]))
        names = [ours[strict_json(pair[1])], others[strict_json(pair[2])]]
        models = [_model(source) for source in names]
        if "model_sha256" in pair[0] and all(models) and models[0] != models[1]:
            raise UsageError(
                f"A and B measure two models, {models[0]} and {models[1]}: their heads and losses do not pair; "
                "compare methods of one model, compare A --pair LEFT=RIGHT and the same with B"
            )
        first = sorted(pair[0], key=lambda name: TELLING.index(name) if name in TELLING else len(TELLING))
        facts = [f"{name} {_fact(names[0], name)} in A, {_fact(names[1], name)} in B" for name in first[:MOST_FACTS]]
        facts += [f"{len(first) - MOST_FACTS} more"] if len(first) > MOST_FACTS else []
        raise UsageError(f"A and B measure different sources: {'; '.join(facts)}")
    every = [json.loads(key) for key in {**ours, **others}]
    varying = sorted({name for x in every for y in every for name in _differing(x, y)})
    return [ours[key] for key in ours if key in others], varying


def _model(source: Mapping[str, Any]) -> str:
    """A source's model with its size; empty without one.

    >>> _model({"model": "smollm2", "heads": 9, "p": 64})
    'smollm2 (9 heads of 64)'
    """
    if not source.get("model"):
        return ""
    size = f" ({source['heads']} heads of {source['p']})" if source.get("heads") and source.get("p") else ""
    return f"{source['model']}{size}"


def _differing(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({**x, **y}) if name not in x or name not in y or x[name] != y[name]]


def _fact(source: Mapping[str, Any], name: str) -> str:
    """A fact in words; a hash with the name of the hashed file."""
    if name not in source:
        return "absent"
    text = short_hashes(json.dumps(source[name], ensure_ascii=False)).strip('"')
    called = source.get(name.removesuffix("_sha256")) if name.endswith("_sha256") else None
    return f"{text} ({called})" if called else text


def grouped(cells: Mapping[Key, Fields]) -> dict[Key, dict[Key, Fields]]:
    """The cells of each row, by window, seed and heads."""
    rows: dict[Key, dict[Key, Fields]] = {}
    for key, record in cells.items():
        rows.setdefault(key[:-3], {})[key[-3:]] = record
    return rows


ARROW = " → "  # between the methods of a pair in the name of a row
Related = list[dict[str, Any]]


def related(a: Sequence[Fields], b: Sequence[Fields], pairs: Iterable[str]) -> tuple[Related, Related, list[str]]:
    """The cells of the left method of each pair in A, and of the right one in B, under the name of their pair.

    A pair is ``LEFT=RIGHT``, each as in ``--method``; options that are not written may have any value, if one method of
    the run fits alone. ``d=N`` among them takes that budget alone, so that two budgets can be compared; a side without
    it takes the budget of the other. A method without a budget is compared with every budget of the other. Skipped
    records are of no side. Two methods at one budget are compared once, also if a later pair names them, or in one run
    the same in reverse.

    Args:
        a, b: records or rows, with ``method``, ``options`` and ``d``.

    Returns:
        the cells of A and those of B: copies with the name ``pair``, requested, with the budget of their pair; and the
        pairs of which an earlier one has a budget.

    Raises:
        UsageError: a pair that names no method of the run, several, or twice the same cells.
    """
    ours: Related = []
    others: Related = []
    compared: set[Any] = set()
    repeated: list[str] = []
    for text in pairs:
        left, right = _sides(text, a, b)
        if a is b and left == right:
            raise UsageError(f"--pair {text}: both sides are the same cells")
        taken = [_cells(rows, side) for rows, side in ((a, left), (b, right))]
        name = f"{left[0]}{ARROW}{right[0]}"
        budgets = [{row["d"] for row in rows} for rows in taken]
        free = left[1] is not None or right[1] is not None
        again = []
        for d in [None] if free else sorted((budgets[0] | budgets[1]) - {None}) or [None]:
            at = (left[1], right[1]) if free else [None if of == {None} else d for of in budgets]
            test = (left[2], at[0]), (right[2], at[1])
            if test in compared:
                again.append(d)
                continue
            compared |= {test, test[::-1]} if a is b else {test}
            for into, rows in zip((ours, others), taken, strict=True):
                into += [
                    {**row, "pair": name, "requested": True, "d": d} for row in rows if free or row["d"] in (None, d)
                ]
        named = ", ".join(str(d) for d in again if d is not None)
        repeated += [f"{text} at d={named}" if named else text] if again else []
    return ours, others, repeated


Side = tuple[str, int | None, str]  # the name that is shown, the budget that is asked for, the method's label


def _sides(text: str, a: Sequence[Fields], b: Sequence[Fields]) -> tuple[Side, Side]:
    """The two methods of a pair; options hold signs of equality too, so the one between them is tried out."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    found = []
    for place in places:
        sides = _found(text[:place], a), _found(text[place + 1 :], b)
        if all(sides):
            found.append(sides)
    if not places:
        raise UsageError(f"--pair {text}: write two methods, LEFT=RIGHT, such as skyformer=nystromformer")
    if not found:
        raise _unfit(text, [(text[:place], text[place + 1 :]) for place in places], a, b)
    if any(len(side) > 1 for side in found[0]):
        several = ", ".join(dict.fromkeys(one[2] for side in found[0] for one in side))
        raise UsageError(f"--pair {text} fits several methods, {several}: write their options")
    (left,), (right,) = found[0]
    return _at_budget_of(right, left, a), _at_budget_of(left, right, b)


def _unfit(text: str, splits: Sequence[tuple[str, str]], a: Sequence[Fields], b: Sequence[Fields]) -> UsageError:
    """Why a pair, which is split at one of its signs of equality, names no two methods of the runs."""
    known = [list(dict.fromkeys(row["method"] for row in rows if _counts(row))) for rows in (a, b)]

    def names(split: tuple[str, str]) -> list[str]:
        return [short_name(parts(side)[0]) for side in split]

    def likely(split: tuple[str, str]) -> tuple[int, int]:
        named = names(split)
        return sum(name in of for name, of in zip(named, known, strict=True)), sum(
            not NO_NAME.search(name) for name in named
        )

    split = max(splits, key=likely)
    for name, of, run in zip(names(split), known, ("A", "B"), strict=True):
        if name not in of:
            return UsageError(f"--pair {text}: {unknown('method' if a is b else f'method of {run}', name, of)}")
    joined = [with_commas(side) for side in split]
    if joined != [*split]:
        return UsageError(f"--pair {text}: join options by commas: {'='.join(joined)}")
    side, rows = next((side, rows) for side, rows in zip(split, (a, b), strict=True) if not _found(side, rows))
    name, options = parts(side)
    fitting = _found(f"{name}:{','.join(one for one in (options or '').split(',') if not DEMAND.match(one))}", rows)
    if fitting:
        budgets = sorted({row["d"] for row in _cells(rows, fitting[0]) if row["d"] is not None})
        at = f"at d={', '.join(map(str, budgets))}" if budgets else "without d"
        return UsageError(f"--pair {text}: {fitting[0][2]} was measured {at}")
    labels = dict.fromkeys(method_label(row) for row in rows if row["method"] == short_name(name) and _counts(row))
    return UsageError(f"--pair {text}: '{side}' is not among {', '.join(labels)}; leave out options at their defaults")


def _at_budget_of(other: Side, side: Side, rows: Sequence[Fields]) -> Side:
    """A side at the budget that the other one names; as it is if it names its own, or its method has none."""
    cells = _cells(rows, side)
    if other[1] is None or side[1] is not None or all(row["d"] is None for row in cells):
        return side
    if all(row["d"] != other[1] for row in cells):
        raise UsageError(f"--pair: {side[0]} has no cell at d={other[1]}, which {other[0]} names: write its d= too")
    return _side(cells[0], other[1])


def _side(row: Fields, d: int | None) -> Side:
    """The method of a row as a side of a pair, at the budget that is asked for."""
    label = method_label(row)
    return (label if d is None else f"{label}{',' if row.get('options') else ':'}d={d}"), d, label


def _found(text: str, rows: Sequence[Fields]) -> list[Side]:
    """The methods of a run that a side of a pair may mean; the one with exactly these options alone, if there is."""
    name, options = parts(text)
    pieces = [piece.partition("=") for piece in (options or "").split(",") if piece]
    wanted = {key.strip(): value.strip() for key, _, value in pieces}
    d = wanted.pop("d", None)
    if (d is not None and not d.isdecimal()) or any(not value for value in wanted.values()):
        return []
    budget = None if d is None else int(d)
    sides: dict[str, Side] = {}
    for row in rows:
        has = row.get("options") or {}
        fits = row["method"] == short_name(name) and _counts(row) and wanted.keys() <= has.keys()
        fits = fits and all(_means(value, has[key]) for key, value in wanted.items())
        if fits and budget in (None, row["d"]):
            side = _side(row, budget)
            if has.keys() == wanted.keys():
                return [side]
            sides[side[2]] = side
    return [*sides.values()]


def _means(text: str, value: Any) -> bool:
    """Whether the text of an option, as in ``--method``, means a recorded value: 2 and 2e0 are 2.0, true is True.

    >>> _means("2", 2.0), _means("false", False), _means("null", None), _means("1", True), _means("max", "max")
    (True, True, True, False, True)
    """
    if value is None:
        return text.lower() in ("none", "null")
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, str):
        return text == value
    try:
        return float(text) == value
    except ValueError:
        return False


def _counts(row: Fields) -> bool:
    return row.get("method") not in (None, LOWER_BOUND) and row.get("status") != "skipped"


def _cells(rows: Sequence[Fields], side: Side) -> list[Fields]:
    return [row for row in rows if _counts(row) and method_label(row) == side[2] and side[1] in (None, row["d"])]
