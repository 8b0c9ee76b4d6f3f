"""The numbers of a small run of every command, as one flat list: where a number was measured, its metric, its value.

``values/RUN.txt`` has one line for each place of a run, and below it its metrics. A place is a source, window, repeat,
layer, head, method, options, d, n and target, and the further dimensions that the command has: a step, a matrix, an ε.
Up to two dimensions stand behind the colon of that line, with all their entries: the values of a metric are in the
order of ``itertools.product`` of these entries.
``values/rounding.txt`` says how far the numbers of a metric move by rounding alone. `records_of` and `facts_of` read
what the product writes; all else is independent of its files. After a number has moved for a reason that is known:

    cd tests; python -m golden.values error  # measures as several kinds of processors do; review the diff
    cd tests; python -m golden.values        # all runs, which takes minutes

On a processor on which numbers differ from those of another one, at a commit whose numbers are right:

    cd tests; python -m golden.values --rounding   # keeps the numbers; what differs from them is rounding
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from golden import small_runs as golden

os.environ["ATTNPROBE_CACHE_SIZE"] = "0"  # what is measured does not depend on earlier runs
HERE = Path(__file__).resolve().parent
KEPT, ROUNDING = HERE / "values", HERE / "values" / "rounding.txt"
DIGITS = 8
LISTED = " : "  # between a place and the dimensions whose entries its line lists
EXACT = 2.0**-20  # relative: sixteen roundings of float32, by which any metric may move
NOTHING = 2.0**-40  # absolute: the rounding of float64 in a number of order one, with a condition number of 4096
SEEN = 8  # times the movement that was seen on some processors, which is a sample of all
PROCESSORS = (  # by order of sums: other instruction sets, and one thread and two
    {"OMP_NUM_THREADS": "1"},
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
    {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    {"MKL_CBWR": "AVX512", "ATEN_CPU_CAPABILITY": "avx512"},
    {"OMP_NUM_THREADS": "2"},
)

FILE, DECODER = golden.FILE, "--model decoder --text words.txt --n 16"
TWO = f"error {FILE} --method skyformer,nystromformer,linformer,window --d 4,8 --windows 2 --repeats 2"
COMPARED = {"compare-a": TWO, "compare-b": f"{TWO} --seed 7"}
RUNS = {
    **{
        name: f"{name.partition('-')[0]} {line.partition(' --plot')[0]}"
        for name, line in golden.COMMANDS.items()
        if name != "audit"
    },
    **{name: golden.MEASURED[name] for name in ("methods-causal", "theorems", "condition-steps", "audit-few")},
    "error": f"error {golden.COMMANDS['error'].replace('errors,maps', 'maps')}",
    "budget": f"budget {golden.COMMANDS['budget'].replace(' --plot', '')}",
    "methods": golden.MEASURED["methods"].replace(" --rows", ""),  # `methods-causal` has them of every method
    "spectrum-eigen": f"spectrum {FILE} --of softmax,linear --kind eigen --d 4",
    "inject-budgets": f"inject {golden.MODEL} --budgets budgets.json",
    "inject-plan": f"inject {DECODER} --phase decode --prefix 9 --method knorm --d 5 --plan residual --plan-windows 2 "
    "--windows 2",
    **COMPARED,
}
COMPARISONS = {
    "compare-seeds": "compare compare-a compare-b --metric output_spectral_relative,output_frobenius,bad_rows",
    "compare-pairs": "compare compare-a --pair skyformer=linformer --pair nystromformer:d=4=window:d=8",
    "compare-decode": "compare inject-decode --pair topk=window --metric kl,loss_change",
}
GATES = {
    "gates-hold": "error --fail-above bad_rows.max=0 --fail-below output_cosine_min.p10=-2",
    "gates-fail": "error --fail-above output_spectral_relative=1",
    "gates-audit": "audit-few --fail-above violated=1",
}
SELECTIONS = {
    "select-topk": f"select topk {FILE} --n 24 --d 4",
    "select-quest": f"select quest:page=2 {DECODER} --layer 0,1 --windows 2 --d 4",
}

PLACE = ("source", "window", "repeat", "layer", "head", "method", "options", "d", "n", "target")
NOT_COMPARED = re.compile(  # times, memory, and quotients and counts of roundings
    "(.*_)?seconds|ratio_to_exact|peak_bytes|slack|ratio_to_framework.*|rounded_rows"
)
STATISTICS = ("mean", "se", "median", "p10", "p90", "count")
COLUMNS = (  # dimensions whose entries a line lists: the first two that a place has
    *("order", "position", "index", "step", "trial", "k", "key", "query", "statistic", "kv_head", "head", "d"),
    *("epsilon", "repeat", "window"),
)
SUMMARISED = ("error", "condition", "theory", "audit-few", "budget", "inject", "inject-decode", "stability")
STATISTICS_OF = re.compile(  # of errors, which have many metrics, those of some
    "(output|matrix)_spectral_relative|output_cosine_min|bad_rows|visited_fraction|drift|kl|loss_change|residual_sum|"
    "top1_agreement|d|d_over_n|rate|bound|measured|violated|holds|ratio|tau|loss|cond|cond_eff|cond_half|rank|"
    "singular|matrices"
)
TESTED = (
    "a",
    "b",
    "value",
    "difference",
    "ratio",
    "low",
    "high",
    "se",
    "freedom",
    "p",
    "p_adjusted",
    "test",
    "verdict",
)
Place = tuple[str, ...]  # NAME=VALUE, in the order of `PLACE`, then the further dimensions
Numbers = dict[tuple[Place, str], str]


# what the product writes


def records_of(folder: Path) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The numbers that a run's folder holds: a place, a metric, and its value."""
    for record in _cells(folder / "rows.jsonl"):
        place = _place(record)
        for name in ("status", "seed", "duplicates", "row_tolerance", "matrix_tol"):
            yield place, name, record.get(name)
        yield from _of_rows(place, record)
        map_file = folder / "maps" / f"{record['key']}.npy"
        if map_file.is_file():
            yield from _of_map(place, record, map_file)
    for record in _cells(folder / "inputs.jsonl"):
        yield from _of_rows(_place(record) | {"of": "inputs"}, record)
    for file in sorted(folder.glob("budgets-*.json")):
        plan = json.loads(file.read_text(encoding="utf-8"))
        place = {
            "source": f"x{plan.get('scale_inputs') or 1:g}",
            "method": plan["method"],
            "n": plan["n"],
            "of": "file",
        }
        for head in plan["budgets"]:
            at = {"layer": head["layer"], "head": head["head"], "epsilon": plan.get("epsilon")}
            yield place | at, "d", head["d"]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _cells(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; a cell has the rows that stand before it."""
    rows = []
    for line in _lines(path):
        if "schema" not in line:
            rows.append(line)
        else:
            yield {**line, "rows": rows} if line.get("kind") == "cell" else line
            rows = []


# of rows: where a number stands, beside the place of its cell
DIMENSIONS = (
    *("quantity", "per", "epsilon", "delta", "round", "d", "at", "sense", "index", "order", "position"),
    *("matrix", "k", "iteration", "trial", "layer", "kv_head", "step", "places"),
)
NOT_OF = {"error": ("delta",)}  # which are metrics of a command
# fields of cells that say where their numbers stand
OF_PLACES = ("theorem", "format", "of", "spectrum", "head", "task", "layers")
OF_CELLS = (  # numbers on the lines that end cells
    *("trials", "flops", "leading_flops", "needed", "least", "most"),
    *("size", "known", "log_scale", "frobenius", "passes", "closed"),
    *("tokens", "prefix", "greedy_steps", "predicts", "budget_mean", "budget_heads", "budget_exact"),
)
WORDS = ("kind", "key", "head", "reason", "assumption", "promise", "detail", "site", "first_failed")  # of rows


def _of_rows(place, cell):
    place = place | {name: cell[name] for name in OF_PLACES if name in cell}
    for name in OF_CELLS:
        if name in cell:
            yield place, name, cell[name]
    dimensions = [name for name in DIMENSIONS if name not in NOT_OF.get(cell["command"], ())]
    for row in cell["rows"]:
        at = place | {name: row[name] for name in ("head", *dimensions) if name in row}
        for name, value in row.items():
            if name not in (*WORDS, *dimensions):
                yield at, f"details.{row['detail']}" if "detail" in row else name, value


def _place(record: Mapping[str, Any]) -> dict[str, Any]:
    """Where a record was measured."""
    source = record["source"]
    weights = [source["weights"]] if source.get("weights") else []
    shared = {name: record.get(name) for name in PLACE if name not in ("source", "head", "options")}
    facts = "+".join([*weights, f"x{source.get('scale_inputs') or 1:g}"])
    return {**shared, "source": facts, "head": None, "options": _options(record.get("options"))}


def _options(options: Mapping[str, Any] | str | None) -> str | None:
    if isinstance(options, str):
        return options or None
    return ",".join(f"{name}={value}" for name, value in sorted((options or {}).items())) or None


def _of_map(place, record, file):
    """Every fifth query and key of a map."""
    import numpy

    for head, entries in zip(record["heads"], numpy.load(file), strict=True):
        for query in range(0, entries.shape[0], 5):
            for key in range(0, entries.shape[1], 5):
                at = {"head": head, "of": "map", "query": query, "key": key}
                yield place | at, "entry", float(entries[query, key])


def facts_of(answer: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The numbers that the JSON of a command has beside its records: statistics over heads, and tests."""
    command = answer["command"]
    tested = answer["rows"] if command == "compare" else answer.get("best") or ()
    for row in tested:
        options = row.get("options", str(row["name"]).removeprefix(str(row["method"])).removeprefix(":"))
        for name in TESTED:
            yield (
                _summary_place({**row, "options": options}) | {"of": "test", "metric": row["metric"]},
                name,
                row.get(name),
            )
    if command == "compare":
        return
    yield from _of_tables(answer["rows"])


def _of_tables(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The statistics of the lines of tables whose cells are rows."""
    for line in lines:
        options = (line.get("name") or "").removeprefix(line.get("method") or "").removeprefix(":")
        place = _summary_place({**line, "options": options}) | {"of": "statistics"}
        names = ("head", *OF_PLACES, *DIMENSIONS)
        place |= {name: _text(line[name]) for name in names if line.get(name) is not None}
        yield place, "median_over_vmean", line.get("median_over_vmean")
        for name, value in line.items():
            metric, _, statistic = name.partition(".")
            if statistic in STATISTICS and STATISTICS_OF.fullmatch(metric) and line[f"{metric}.count"]:
                yield place, name, value
        if "lower.max" in line:  # the ends of the interval of the largest rate, with which they grow
            yield place, "interval.0", line["lower.max"]
            yield place, "interval.1", line["upper.max"]


def _summary_place(row: Mapping[str, Any]) -> dict[str, Any]:
    weights = [row["weights"]] if row.get("weights") else []
    place = {name: row.get(name) for name in ("layer", "method", "d", "n", "target")}
    return {**place, "source": "+".join([*weights, _scale(row)]), "options": _options(row.get("options"))}


def _scale(row: Mapping[str, Any]) -> str:
    """The factor of the scores, in a row whose source is text."""
    found = re.search(r"scores x (\S+)", str(row.get("source")))
    return f"x{found[1]}" if found else f"x{row.get('scale_inputs') or 1:g}"


def selected(file: Path) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The keys of each fifth query of a file of selections."""
    from safetensors import safe_open

    with safe_open(file, "pt") as tensors:
        for name in sorted(tensors.keys()):
            if name.endswith(".indices"):
                for head, of_head in enumerate(tensors.get_tensor(name)):
                    for query in range(0, len(of_head), 5):
                        yield (
                            {"of": name, "head": head, "query": query},
                            "keys",
                            ",".join(map(str, of_head[query].tolist())),
                        )


# measured


def together() -> list[tuple[str, ...]]:
    """All names of files of numbers; those that read one run stand together, so that it is measured once."""
    groups = {name: [name] for name in RUNS if name not in COMPARED}
    for name, line in {**COMPARISONS, **GATES}.items():
        read = next(word for word in line.split() if word in RUNS)
        groups.setdefault(read, []).append(name)
    return [*map(tuple, groups.values()), *((name,) for name in SELECTIONS)]


def measured(names: Sequence[str] = ()) -> dict[str, Numbers]:
    """The numbers of every run, or of those that are named, by its name."""
    found: dict[str, Numbers] = {}
    every = {**RUNS, **COMPARISONS, **GATES, **SELECTIONS}
    wanted = {*(names or every)}
    read = {run for name in wanted for run in every[name].split() if name not in RUNS}  # by comparisons and gates
    runs, comparisons, gated, selections = (
        {name: line for name, line in some.items() if name in wanted | (read if some is RUNS else set())}
        for some in (RUNS, COMPARISONS, GATES, SELECTIONS)
    )
    with golden.inputs() as here:
        for name, line in runs.items():
            answer, _ = _answer([*line.split(), "--device", "cpu", "--out", name])
            if name not in COMPARED and name in wanted:
                facts = facts_of(answer) if name in SUMMARISED else ()
                found[name] = _listed([*records_of(here / name), *facts])
        for name, line in comparisons.items():
            answer, code = _answer(line.split())
            found[name] = _listed([*facts_of(answer), ({"of": "exit"}, "code", code)])
        for name, gates in gated.items():
            run, *options = gates.split()
            shutil.rmtree(here / run / "figures", ignore_errors=True)  # a gate need not draw them again
            line = RUNS[run].partition(" --plot")[0]
            _, code = _answer([*line.split(), "--device", "cpu", "--out", run, *options])
            found[name] = _listed([({"of": "exit"}, "code", code)])
        for name, line in selections.items():
            golden.attnprobe([*line.split(), "--out", "keys.safetensors", "--force"])
            found[name] = _listed(selected(here / "keys.safetensors"))
    return found


def _answer(words: list[str]) -> tuple[dict[str, Any], int]:
    """The JSON that a command prints, and its exit code."""
    text, _, said = golden.said([*words, "--format", "json"]).partition("--- stderr\n")
    code = re.findall(r"^--- exit (\d+)$", said, flags=re.M)[-1]
    if code not in ("0", "1", "4"):
        raise RuntimeError(f"{' '.join(words)}: {said}")
    return json.loads(text), int(code)


def _listed(numbers: Iterable[tuple[Mapping[str, Any], str, Any]]) -> Numbers:
    """Numbers by place and metric, as text."""
    listed: Numbers = {}
    for place, metric, value in numbers:
        if value in (None, "") or NOT_COMPARED.fullmatch(metric.partition(".")[0]):
            continue  # None is not measured: no number
        names = (*PLACE, *sorted(place.keys() - {*PLACE}))
        key = tuple(f"{name}={place[name]}" for name in names if place.get(name) is not None), metric
        if listed.setdefault(key, _text(value)) != _text(value):
            raise ValueError(f"two values at {' '.join(key[0])} {metric}: {listed[key]} and {_text(value)}")
    return listed


def _text(value: Any) -> str:
    """A number with `DIGITS` digits; whole numbers in full."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.{DIGITS}g}"
    return f"{int(value)}" if isinstance(value, float) and abs(value) < 1e15 else f"{value}"


# compared


Movement = tuple[float, float]  # the largest movement by rounding: absolute, and relative to the number
Movements = dict[tuple[str, str], Movement | None]  # by method and metric; None: rounding decides what is no number


def differences(actual: Numbers, known: Numbers, rounding: Movements) -> list[str]:
    """Where two lists differ by more than rounding; a place and metric a line.

    Two numbers a and b of a metric are equal if |a - b| ≤ max(2⁻⁴⁰, 2⁻²⁰ |b|, 8 min(s, r |b|)): s and r are the
    absolute and the relative movement of the metric that other orders of sums made, over all places of the method in
    the run.
    """
    lines = []
    for key in sorted({*actual, *known}):
        values = actual.get(key, "absent"), known.get(key, "absent")
        if values[0] != values[1] and not _equal(*values, rounding.get(_group(key), (0.0, 0.0))):
            lines.append(f"{' '.join(key[0])} {key[1]}: {values[0]}, was {values[1]}")
    return lines


def _equal(actual: str, known: str, movement: Movement | None) -> bool:
    a, b = _number(actual), _number(known)
    if "absent" in (actual, known):
        return False
    if movement is None:
        return True
    if a is None or b is None or not math.isfinite(a - b):
        return False
    return abs(a - b) <= max(_least(b), _allowed(b, movement))


def _least(number: float) -> float:
    """The movement that every metric may have."""
    return max(NOTHING, EXACT * abs(number))


def _allowed(number: float, movement: Movement) -> float:
    """The movement that a metric may have, by what was seen on other processors."""
    return SEEN * min(movement[0], movement[1] * abs(number)) if number else SEEN * movement[0]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _group(key: tuple[Place, str]) -> tuple[str, str]:
    """The method of a place, and its metric: what rounding moves alike."""
    method = next((part for part in key[0] if part.startswith("method=")), "")
    return method.removeprefix("method="), key[1]


def movements(known: Numbers, others: Iterable[Numbers]) -> Movements:
    """How far each metric of each method moved on other processors; those that every metric may have are left out."""
    found: Movements = {}
    for other in others:
        if other.keys() != known.keys():
            raise ValueError(f"another processor has other places: {sorted(other.keys() ^ known.keys())[:3]}")
        for key, text in known.items():
            if other[key] == text:
                continue
            a, b = _number(other[key]), _number(text)
            group = _group(key)
            if a is None or b is None or not math.isfinite(a - b):
                found[group] = None
            elif (before := found.get(group, (0.0, 0.0))) is not None:
                move = abs(a - b)
                found[group] = max(before[0], move), max(before[1], move / abs(b) if b else math.inf)
    needed = {
        group
        for key, text in known.items()
        if (group := _group(key)) in found
        and ((move := found[group]) is None or _allowed(b := _number(text) or 0.0, move) > _least(b))
    }
    return {group: found[group] for group in needed}


# kept


def read() -> dict[str, Numbers]:
    """The numbers that are kept, by run."""
    return {path.stem: _parsed(path) for path in sorted(KEPT.glob("*.txt")) if path != ROUNDING}


def _parsed(path: Path) -> Numbers:
    numbers: Numbers = {}
    place: list[str] = []
    columns: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("\t"):
            shared, _, listed = line.partition(LISTED)
            place, columns = shared.split(" | "), [_entries(part) for part in listed.split(" | ") if part]
            continue
        metric, *values = line[1:].split("\t")
        for entries, value in zip(product(*columns), values, strict=True):
            if value:
                numbers[_whole([*place, *entries], metric)] = value
    return numbers


def _entries(column: str) -> list[str]:
    """The entries of a listed dimension, NAME=VALUE."""
    name, _, values = column.partition("=")
    return [f"{name}={value}" for value in values.split(",")]


def _whole(place: Iterable[str], metric: str) -> tuple[Place, str]:
    """The dimensions of a place in their order; a statistic is part of the metric's name."""
    names = _named(place)
    if "statistic" in names:
        metric += "." + names.pop("statistic").partition("=")[2]
    return tuple(names[name] for name in (*PLACE, *sorted(names.keys() - {*PLACE})) if name in names), metric


def _split(place: Place, metric: str) -> tuple[Place, str, Place]:
    """A place without the dimensions that its line lists, the metric without a statistic, and those dimensions."""
    names = _named(place)
    base, _, statistic = metric.rpartition(".")
    if "of=statistics" in place and statistic in STATISTICS:
        metric, names["statistic"] = base, f"statistic={statistic}"
    listed = tuple(names.pop(name) for name in [name for name in COLUMNS if name in names][:2])
    return tuple(names.values()), metric, listed


def _named(place: Iterable[str]) -> dict[str, str]:
    return {part.partition("=")[0]: part for part in place}


def read_rounding() -> dict[str, Movements]:
    """The movements by rounding, by run."""
    found: dict[str, Movements] = {}
    run = method = ""
    for line in ROUNDING.read_text(encoding="utf-8").splitlines():
        if not line.startswith("\t"):
            run, method = line.split(" | ")
            continue
        metric, *move = line[1:].split("\t")
        found.setdefault(run, {})[method, metric] = None if move == ["any"] else (float(move[0]), float(move[1]))
    return found


def write(numbers: Mapping[str, Numbers], rounding: Mapping[str, Movements]) -> None:
    """Keep these numbers of their runs, and no numbers of runs that there are no more."""
    for path in KEPT.glob("*.txt"):
        if path.stem not in {*RUNS, *COMPARISONS, *GATES, *SELECTIONS, "rounding"}:
            path.unlink()
    for run, of_run in numbers.items():
        (KEPT / f"{run}.txt").write_text("".join(_lines_of(of_run)), encoding="utf-8")
    lines: dict[str, list[str]] = {}
    for run in rounding:
        for (method, metric), move in sorted(rounding.get(run, {}).items()):
            parts = ["any"] if move is None else [f"{part:.2g}" for part in move]
            lines.setdefault(f"{run} | {method}", []).append("\t".join(["", metric, *parts]))
    texts = ["\n".join([heading, *some]) for heading, some in lines.items()]
    ROUNDING.write_text("\n".join(texts) + "\n", encoding="utf-8")


def _lines_of(numbers: Numbers) -> Iterator[str]:
    """A line for each place, with the entries of its listed dimensions, and below it a line for each metric."""
    tables: dict[tuple[Place, Place], dict[str, dict[Place, str]]] = {}
    for key, value in numbers.items():
        place, metric, listed = _split(*key)
        tables.setdefault((place, tuple(_named(listed))), {}).setdefault(metric, {})[listed] = value
    for (place, names), table in sorted(tables.items()):
        seen = {at for row in table.values() for at in row}
        columns = [sorted(set(entries), key=_rank) for entries in zip(*seen, strict=True)]
        values = [",".join(at.partition("=")[2] for at in column) for column in columns]
        listed = [f"{name}={text}" for name, text in zip(names, values, strict=True)]
        yield " | ".join(place) + (LISTED + " | ".join(listed) if listed else "") + "\n"
        for metric, row in sorted(table.items()):
            yield "\t".join(["", metric, *(row.get(at, "") for at in product(*columns))]) + "\n"


def _rank(entry: str) -> tuple[int, str]:
    """Numbers of few digits first, statistics in their order."""
    value = entry.partition("=")[2]
    return (STATISTICS.index(value), "") if value in STATISTICS else (len(value), value)


def _settled(numbers: Numbers, known: Numbers, rounding: Movements) -> Numbers:
    """These numbers, with the kept digits of those that moved by rounding alone."""
    same = {
        key: known[key]
        for key, text in numbers.items()
        if key in known and _equal(text, known[key], rounding.get(_group(key)))
    }
    return {**numbers, **same}


def _widest(*seen: Movements) -> Movements:
    """The largest movement of each metric that any of these saw: a processor at hand today does not unsee another."""
    found: Movements = {}
    for group, move in (item for movements in seen for item in movements.items()):
        before = found.get(group, (0.0, 0.0))
        found[group] = None if move is None or before is None else (max(before[0], move[0]), max(before[1], move[1]))
    return found


def _on_another(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, Numbers]:
    """What is measured in a process with another order of sums."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        program = [sys.executable, "-m", "golden.values", "--to", file.name, *names]
        subprocess.run(program, check=True, cwd=HERE.parent, env={**os.environ, **environment})
        of_runs = json.loads(Path(file.name).read_text(encoding="utf-8"))
    return {run: {(tuple(place), metric): value for place, metric, value in some} for run, some in of_runs.items()}


def main() -> None:
    """Measure runs and keep their numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="runs; all by default")
    parser.add_argument("--to", type=Path, help="write the numbers to this file as JSON, and keep nothing")
    parser.add_argument("--rounding", action="store_true", help="keep the numbers; what differs from them is rounding")
    args = parser.parse_args()
    found = measured(args.names)
    if args.to:
        plain = {run: [[*key, value] for key, value in of_run.items()] for run, of_run in found.items()}
        args.to.write_text(json.dumps(plain), encoding="utf-8")
        return
    known, rounding = read(), read_rounding()
    if args.rounding:
        kept = {run: known[run] for run in found}
    else:
        kept = {run: _settled(of_run, known.get(run, {}), rounding.get(run, {})) for run, of_run in found.items()}
    others = [found, *(_on_another(environment, args.names) for environment in PROCESSORS)]
    moved = {run: movements(of_run, [other[run] for other in others]) for run, of_run in kept.items()}
    write(kept, {**rounding, **{run: _widest(rounding.get(run, {}), of_run) for run, of_run in moved.items()}})


if __name__ == "__main__":
    main()
