"""A run's folder as a report reads it: records in the order of the plan, the manifest, and what it says of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..records.file import LOWER_BOUND, STATUSES, inputs_path, missing_maps, read_inputs, read_records, strict_json
from ..records.manifest import read_manifest
from ..tables.console import Header
from ..tables.inputs import input_lines, input_rows
from ..tables.labels import identity, scale_of, source_labels

__all__ = ["KNOWN", "Run", "open_run"]

Record = Mapping[str, Any]

# commands whose records can be shown
KNOWN = ("error", "spectrum", "condition", "theory", "budget", "bench", "inject", "stability")
# what a record of each command must hold: name and kinds of value
SHAPE = {
    "key": (str,),
    "status": (str,),
    "metrics": (dict,),
    "heads": (list,),
    "source": (dict,),
    "options": (dict,),
    "layer": (int,),
    "n": (int,),
    "window": (int,),
}
ALSO = {
    "error": {"method": (str,), "seed": (int,), "requested": (bool,)},
    "spectrum": {"of": (str,), "kind": (str,), "head": (int,)},
    "condition": {"matrices": (list,)},
    "theory": {"theorem": (str,), "paper": (str,), "says": (str,), "findings": (list,)},
    "budget": {"method": (str,), "metric": (str,), "found": (list,), "tried": (list,)},
    "bench": {"method": (str,), "machine": (dict,), "versions": (dict,), "reference": (bool,)},
    "inject": {"method": (str,), "layer": (int, type(None)), "layers": (list,), "local": (dict,), "requested": (bool,)},
    "stability": {
        "method": (str,),
        "task": (str,),
        "seed": (int,),
        "batch": (int,),
        "rate": (float,),
        "eps": (float,),
        "steps": (int,),
        "requested": (bool,),
        "conditions": (list,),
        "paper_setting": (dict,),
    },
}
FINDING = (
    "at",
    "assumption",
    "promise",
    "sense",
    "met",
    "bound",
    "measured",
    "lower",
    "upper",
    "rounding",
    "vacuous",
    "slack",
    "verdict",
    "details",
)
ENDS = ("lower", "upper")  # of an interval, where there is one
REALS = ("bound", "measured", *ENDS, "rounding", "slack")  # infinity is a text, NaN null
FOUND = ("d", "below", "error", "held", "lower", "upper", "again", "settled")
AT_THE_END = 1 << 30  # of an order: what the plan does not name


@dataclass(frozen=True)
class Run:
    """What is known of a run: its records by command, its manifest (empty where there is none), and its header.

    Attributes:
        left_out: how many records are of other settings than those that the run's last command named, and how many
            of commands that this version cannot show.
        missing: why cells have no map, by their keys.
        inputs: what the layers' Q, K and V are like.
    """

    path: Path
    records: Mapping[str, list[Record]]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[int, int] = (0, 0)
    missing: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[Record] = ()

    @property
    def everything(self) -> list[Record]:
        return [record for some in self.records.values() for record in some]

    @property
    def notes(self) -> list[str]:
        """What a reader should know before the tables: a run that did not end, records that are not shown."""
        settings, unknown = self.left_out
        state = self.manifest.get("status")
        lines = [] if self.manifest else [f"{self.path} has no manifest.json: the records alone are shown"]
        lines += [f"{self.path}: this run is {state}, not finished"] if state not in (None, "finished") else []
        lines += [f"{self.path} holds {settings} records of other settings too, which are left out"] if settings else []
        lines += [f"{unknown} records of commands that this version cannot show are left out"] if unknown else []
        return lines

    def header(self, records: Sequence[Record]) -> Header:
        """What stands above tables and figures: what the sources share once, and what each has of its own."""
        told, facts = self._described(), {}
        labels = source_labels(records)
        for record in records:
            facts.setdefault(identity(record["source"]), record["source"])
        own = {key: told.get(key, (fact, _described(fact))) for key, fact in facts.items()}
        lines = [lines for _, lines in own.values()]
        shared = [line for line in lines[0] if all(line in other for other in lines)]
        own_lines = [line for some in lines for line in some if line not in shared]
        warnings = list(dict.fromkeys(line for fact, _ in own.values() for line in fact.get("fallback") or ()))
        source = {labels[key]: fact for key, (fact, _) in own.items()}
        source = source if len(source) > 1 else next(iter(source.values()))
        rows = input_rows(self.inputs, records)
        return Header(source, [*own_lines, *shared], warnings, rows, input_lines(rows))

    def _described(self) -> dict[str, tuple[Record, list[str]]]:
        """The manifest's facts of each source and its lines on them, by `identity`."""
        sources, lines = self.manifest.get("source"), self.manifest.get("described")
        sources = sources if isinstance(sources, list) else [sources]
        if not isinstance(lines, list) or len(lines) != len(sources):
            return {}
        pairs = zip(sources, lines, strict=True)
        return {identity(fact): (fact, list(map(str, some))) for fact, some in pairs if isinstance(fact, dict)}


def open_run(path: str | Path, keys: Iterable[str] | None = None) -> Run:
    """Read a run's folder. Records stand in the order of the plan, whatever order interruptions left them in.

    Args:
        keys: of the records that are meant; None is all but those of other settings.

    Raises:
        UsageError: no folder, no records, a line that is none, records of another program or a newer version.
    """
    path = Path(path).expanduser()
    if path.is_file():
        raise UsageError(f"{path} is a file; name the run's folder")
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder; the folders of runs stand under outputs/")
    manifest = read_manifest(path)
    records = read_records(path)
    if not records:
        raise UsageError(f"{path}: its records are empty: nothing was measured, or nothing was finished")
    for record in records:
        _check(record, path)
    if keys is None:
        others = manifest.get("other_settings")
        others = set(others) if isinstance(others, list) else set()
        kept = [record for record in records if record["key"] not in others] or records
    else:
        asked = set(keys)
        kept = [record for record in records if record["key"] in asked]
    by_command: dict[str, list[Record]] = {}
    for record in kept:
        by_command.setdefault(record["command"], []).append(record)
    shown = {command: _ordered(some, manifest) for command, some in by_command.items() if command in KNOWN}
    unknown = [command for command in by_command if command not in KNOWN]
    if not shown:
        raise UsageError(f"{path}: its records are of '{unknown[0]}', which this version cannot show; upgrade")
    left_out = (len(records) - len(kept), sum(len(by_command[command]) for command in unknown))
    return Run(path, shown, manifest, left_out, missing_maps(path), _inputs(path))


def _inputs(path: Path) -> list[Record]:
    """What the folder says of the layers' inputs, as this program writes it."""
    found = read_inputs(path)
    for record in found:
        numbers = [("n", int), ("layer", int), ("window", int), ("heads", list), ("source", dict), ("metrics", dict)]
        whole = all(isinstance(record.get(name), kind) for name, kind in numbers)
        if not whole or any(
            not isinstance(some, list) or len(some) != len(record["heads"]) for some in record["metrics"].values()
        ):
            where = f"{inputs_path(path)}: record {record.get('key')}"
            raise UsageError(f"{where} is none of this program; remove the file")
    return found


def _check(record: Record, path: Path) -> None:
    """Refuse a record that no command of this program wrote."""
    command = record.get("command")
    if not isinstance(command, str):
        raise UsageError(f"{path}: these are no records of this program: one has no command")
    if command not in KNOWN:
        return
    where = f"{path}: record {record.get('key', 'without a key')} of {command}"
    for name, kinds in {**SHAPE, **ALSO[command]}.items():
        value = record.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UsageError(f"{where}: its {name} is {strict_json(value)[:60]}, not {_word(kinds[0])}")
    if record["status"] not in STATUSES:
        raise UsageError(f"{where}: its status is '{record['status']}', not one of {', '.join(STATUSES)}")
    listed = ("error", "bench", "inject", "stability")
    for name, value in record["metrics"].items() if command in listed else ():
        if not all(one is None or _number(one) for one in (value if isinstance(value, list) else [value])):
            raise UsageError(f"{where}: its {name} holds what is no number")
    for matrix in record["matrices"] if command == "condition" else ():
        if not isinstance(matrix, dict) or not {"matrix", "inverted", "size", "metrics"} <= matrix.keys():
            raise UsageError(f"{where}: one of its matrices is none")
    for finding in record["findings"] if command == "theory" else ():
        if not isinstance(finding, dict) or not _is_finding(finding, len(record["heads"])):
            raise UsageError(f"{where}: one of its findings is none")
    if command == "budget" and not _is_search(record):
        raise UsageError(f"{where}: what was found is none")
    for entry in record["conditions"] if command == "stability" else ():
        if not isinstance(entry, dict) or not {"matrix", "inverted", "cond"} <= entry.keys():
            raise UsageError(f"{where}: one of its condition numbers is none")
    if record.get("d") is not None and (not isinstance(record["d"], int) or isinstance(record["d"], bool)):
        raise UsageError(f"{where}: its d is {strict_json(record['d'])[:60]}, not a number")


def _is_finding(finding: Record, heads: int) -> bool:
    """Whether an object has what a finding says, with one entry for each head."""
    if not finding.keys() >= set(FINDING) or not all(isinstance(finding[name], dict) for name in ("at", "details")):
        return False
    listed = {name: finding[name] for name in FINDING[4:-1] if finding[name] is not None or name not in ENDS}
    several = (*listed.values(), *finding["details"].values())
    if not all(isinstance(some, list) and len(some) == heads for some in several):
        return False
    known = lambda one: one is None or _number(one) or one in ("inf", "-inf")
    return all(known(one) for name in REALS if name in listed for one in listed[name])


def _is_search(record: Record) -> bool:
    """Whether a record of ``budget`` has one entry for each head in all that was found and tried."""
    heads, found, tried = len(record["heads"]), record["found"], record["tried"]
    if not all(isinstance(one, dict) and _number(one.get("epsilon")) for one in found):
        return False
    listed = [one.get(name) for one in found for name in FOUND]
    if not all(isinstance(some, list) and len(some) == heads for some in listed):
        return False
    sizes = [[one.get(name) for name in ("heads", "error")] if isinstance(one, dict) else [None] for one in tried]
    return all(isinstance(some, list) and len(some) == len(pair[0]) for pair in sizes for some in pair)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _word(kind: type) -> str:
    return {str: "a text", dict: "an object", list: "a list", int: "a whole number", bool: "true or false"}[kind]


def _ordered(records: Sequence[Record], manifest: Mapping[str, Any]) -> list[Record]:
    """The records in the order of the plan, as an uninterrupted run leaves them; without a plan, as they stand."""
    sources = manifest.get("source")
    sources = sources if isinstance(sources, list) else [sources]
    known = [*(fact for fact in sources if isinstance(fact, dict)), *(record["source"] for record in records)]
    order = {key: place for place, key in enumerate(dict.fromkeys(map(identity, known)))}
    plans: dict[str, tuple[Mapping[str, Any], dict[str, int]]] = {}

    def place(record: Record) -> tuple[int, ...]:
        source = identity(record["source"])
        if source not in plans:
            plan = _plan(manifest, record["source"])
            plans[source] = plan, _methods(plan)
        plan, methods = plans[source]
        at = lambda name, value: _index(plan.get(name), value)
        method = _first(record)
        if method is None:
            who = json.dumps([record.get("of", record.get("method")), record["options"]], sort_keys=True)
            method = methods.get(who, AT_THE_END)
        return (
            order[source],
            at("n", record["n"]),
            record["window"],
            at("layers", record["layer"]),
            at("theorems", record.get("theorem")),
            method,
            at("d", record.get("d")),
            record.get("repeat") or 0,
            at("heads", record.get("head")),
        )

    return sorted(records, key=place)


def _plan(manifest: Mapping[str, Any], source: Record) -> Mapping[str, Any]:
    """The plan of a record's source: a manifest of several holds one for each word of the weights."""
    plan = manifest.get("plan")
    if not isinstance(plan, dict):
        return {}
    own = plan.get(str(source.get("weights")))
    plan = own if isinstance(own, dict) else plan
    layers = plan.get("layers")
    if isinstance(layers, dict):
        plan = {**plan, "layers": layers.get(source.get("weights") or "file")}
    return plan


def _first(record: Record) -> int | None:
    """The place of what no one asked for: lower bounds, then V-Mean, then exact matrices stand before methods."""
    if record.get("method") == LOWER_BOUND:
        return -3
    if record["command"] == "bench" and record["method"] == "exact":
        return -3
    if record["command"] in ("error", "bench") and not record["requested"]:
        return -2
    return -1 if record["command"] == "condition" and record.get("method") is None else None


def _methods(plan: Mapping[str, Any]) -> dict[str, int]:
    asked = plan.get("methods") or plan.get("of") or ()
    texts = [[one, {}] if isinstance(one, str) else [one.get("name"), one.get("options")] for one in asked]
    return {json.dumps(text, sort_keys=True): place for place, text in enumerate(texts)}


def _index(values: Any, value: Any) -> int:
    return values.index(value) if isinstance(values, list) and value in values else AT_THE_END


def _described(facts: Mapping[str, Any]) -> list[str]:
    """A source's facts in lines, where no manifest has its own."""
    factor = [f"scores x {scale_of(facts):g}: --scale-inputs"] if scale_of(facts) != 1 else []
    if "qkv" in facts:
        return [f"qkv: {facts['qkv']}, sha256 {facts.get('qkv_sha256')}", *factor]
    if "task" in facts:
        digest = facts.get("text_sha256") or facts.get("data_sha256")
        read = facts.get("text") or facts.get("data") or facts.get("generator")
        lines = [f"{facts['task']}: {read}" + (f", sha256 {digest}" if digest else "")]
        return lines + [f"fallback: {line}" for line in facts.get("fallback") or ()]
    if "random" in facts:
        return [f"random: {facts['random']}, {facts.get('heads')} heads, p={facts.get('p')}, {facts.get('dtype')}"]
    seed = "" if facts.get("weights_seed") is None else f" (seed {facts['weights_seed']})"
    digest = f", sha256 {facts['model_sha256']}" if facts.get("model_sha256") else ""
    lines = [f"model: {facts.get('model')}, weights {facts.get('weights')}{seed}{digest}"]
    lines += [f"{name}: {facts[name]}" for name in ("text", "tokenizer", "positions") if facts.get(name)]
    return lines + factor + [f"fallback: {line}" for line in facts.get("fallback") or ()]
