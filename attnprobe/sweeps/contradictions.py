"""Options that exclude each other, and lists that are none: refused by name before anything heavy loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..grammar.lists import parse_numbers, parse_positive
from ..grammar.texts import wikitext_name
from ..records.shards import parse_shard
from .yaml_file import Config

__all__ = ["Asked", "refuse_lists", "refuse_pairs"]

NAMES = {"methods": "method", "plots": "plot", "gates": "fail-above", "format_": "format", "inputs": "source"}
SHAPE = ("heads", "p")  # of random Q, K and V
READING = ("model", "weights", "weights_seed", "text", "split", "tokenizer", "positions")  # a model reads a text
OF_RAY = ("ray_address", "gpus_per_task", "cpus_per_task")
LISTS = ("n", "d", "layer", "head")


@dataclass(frozen=True)
class Asked:
    """The options of a command as they hold.

    Attributes:
        values, defaults, origins: by the command's parameter names; an origin is ``command line``, ``environment``,
            ``file`` or ``default``. config: the sweep's file, where there is one.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    config: Config | None = None

    def given(self, name: str) -> bool:
        """Whether an option has another value than it would have by itself."""
        value = self.values.get(name)
        return value is not None and value != self.defaults.get(name)

    def called(self, name: str) -> str:
        """An option as its user wrote it: ``c.yaml:3: layer``, ``ATTNPROBE_LAYER`` or ``--layer``."""
        option = NAMES.get(name, name.replace("_", "-"))
        if self.origins.get(name) == "file" and self.config is not None:
            key = next((key for key in (option, name, "figures") if key in self.config.lines), option)
            return f"{self.config.path}:{self.config.lines.get(key, 1)}: {key}"
        if self.origins.get(name) == "environment":
            return f"ATTNPROBE_{option.replace('-', '_').upper()}"
        return f"--{option}"


def refuse_lists(asked: Asked) -> None:
    """Refuse lists of lengths, budgets, layers, heads and factors that are none.

    Raises:
        UsageError: it names the option where its user wrote it.
    """
    for name in LISTS:
        text = asked.values.get(name)
        if text is not None and not (text.strip() == "all" and name in ("layer", "head")):
            numbers = parse_numbers(text, asked.called(name) if asked.origins.get(name) == "file" else name)
            if name == "n" and min(numbers) < 2:
                raise UsageError(f"{asked.called(name)}={min(numbers)}: attention needs at least 2 tokens")
    if asked.values.get("scale_inputs") is not None:
        name = asked.called("scale_inputs") if asked.origins.get("scale_inputs") == "file" else "scale-inputs"
        parse_positive(asked.values["scale_inputs"], name)


def refuse_pairs(asked: Asked) -> None:
    """Refuse options of which one would silently do nothing, or undo the other.

    What is merely redundant stands: a tolerance without matrix errors, repeats of a method that draws nothing.

    Raises:
        UsageError: it names both, the one to drop where its user wrote it.
    """
    values = asked.values
    if values.get("qkv") is not None:
        for name in READING:
            if asked.given(name):
                option = name.replace("_", "-")
                why = f"--qkv {values['qkv']} holds Q, K and V already: drop --{option}"
                raise UsageError(f"{asked.called(name)} and qkv exclude each other: {why}")
    if "inputs" in values:
        named = values["inputs"]
        excluded = {"random": ("qkv", *READING, "layer", "head"), "model": SHAPE}.get(named, ())
        for name in excluded:
            if asked.given(name):
                other = "model" if named == "random" else "random"
                raise UsageError(f"{asked.called(name)} is read by --source {other} alone, and the source is {named}")
    if values.get("budgets") is not None and asked.given("d"):
        raise UsageError(f"{asked.called('d')} and budgets exclude each other: {values['budgets']} holds the budgets")
    if values.get("force") and values.get("retry_failed"):
        raise UsageError(f"{asked.called('retry_failed')} and force exclude each other: force measures all again")
    if values.get("shard") is not None:
        _refuse_of_shards(asked)
    for name in OF_RAY:
        if asked.given(name) and values.get("backend") == "local":
            raise UsageError(f"{asked.called(name)} is of backend ray; give --backend ray, or drop it")
    if values.get("backend") == "ray" and not values.get("ray_address"):
        raise UsageError(
            f"{asked.called('backend')} ray joins a cluster that you name; give --ray-address HOST:PORT, "
            "or local for a private one of this machine"
        )
    if values.get("split_rows") is not None:
        _refuse_of_split_rows(asked)
    text = values.get("text")
    if asked.given("split") and text is not None and wikitext_name(text) is None:
        raise UsageError(f"{asked.called('split')} names a split of Wikitext-2, and the text is '{text}': drop it")
    if values.get("junit") is not None and not values.get("gates") and not (asked.config and asked.config.gates):
        raise UsageError(
            f"{asked.called('junit')} reports gates, and there are none; give --fail-above "
            "METRIC[.STAT]=VALUE, or gates in the file of a sweep"
        )


def _refuse_of_shards(asked: Asked) -> None:
    """Refuse a shard that is none, one without a folder, and what only the whole run can give.

    Figures and gates that a sweep's file names stand: they are for the run without a shard that gathers the others.
    """
    shard = parse_shard(asked.values["shard"])
    if asked.values.get("out") is None:
        raise UsageError(f"{asked.called('shard')} {shard}: name the folder that the shards share; give --out DIR")
    for name, what in (("plots", "figures"), ("plot", "figures"), ("gates", "gates"), ("junit", "gates")):
        if asked.values.get(name) and asked.origins.get(name) != "file":
            raise UsageError(
                f"{asked.called(name)} and shard exclude each other: {what} are of the whole run; give it "
                "without --shard, once all shards have run"
            )


def _refuse_of_split_rows(asked: Asked) -> None:
    """Refuse rows over several devices beside processes that share them, and on one GPU by its number."""
    number, jobs, device = (asked.values.get(name) for name in ("split_rows", "jobs", "device"))
    if jobs is not None and jobs > 1:
        raise UsageError(
            f"{asked.called('jobs')} and split-rows exclude each other: --split-rows {number} takes the "
            "devices for one group at a time"
        )
    if asked.values.get("backend") == "ray":
        raise UsageError(
            f"{asked.called('backend')} ray and split-rows exclude each other: rows are split within one process"
        )
    if device is not None and device.startswith("cuda:"):
        raise UsageError(
            f"{asked.called('device')} and split-rows exclude each other: {device} is one GPU; "
            f"--device cuda takes the first {number}"
        )
