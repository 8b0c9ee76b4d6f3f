"""Options that exclude each other, refused before heavy modules load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ...frame.records.file import parse_shard
from ...grammar.lists import wikitext_name
from ...machine.environment import variable
from ..option import Option
from ..topics.showing import NO_FIGURE
from .yaml_file import Config


@dataclass(frozen=True)
class Given:
    """The given options of a command.

    Attributes:
        options: of the command. texts: the option's values as texts, by the option's name.
        origins: ``command line``, ``environment``, ``file`` or ``default``, by the option's name.
        config: the sweep's file; None without a sweep.
    """

    options: Sequence[Option]
    texts: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
    config: Config | None = None

    def changes(self, option: Option) -> bool:
        """Whether an option differs from its default."""
        text = self.texts.get(option.name)
        return text is not None and text != option.text(option.default)

    def called(self, name: str) -> str:
        """An option as its user wrote it: ``c.yaml:3: layer``, ``ATTNPROBE_LAYER`` or ``--layer``."""
        if self.origins.get(name) != "file" or self.config is None:
            return self.plain(name)
        key = self.plain(name)
        return f"{self.config.path}:{self.config.lines.get(key, 1)}: {key}"

    def plain(self, name: str) -> str:
        """An option as its user wrote it, without its line: ``layer``, ``ATTNPROBE_LAYER`` or ``--layer``."""
        option = self.option(name)
        origin = self.origins.get(name)
        if origin == "file" and self.config is not None:
            return next(key for key in self.config.lines if {key, key.replace("_", "-")} & {*option.keys})
        if origin == "environment":
            return variable(option.long)
        return f"--{option.long}"

    def option(self, name: str) -> Option:
        """The option of this name."""
        return next(option for option in self.options if option.name == name)


def refuse_pairs(given: Given) -> None:
    """Refuse two options if one would have no effect or undo the other.

    Redundant options are allowed: a tolerance without matrix errors, repeats of a deterministic method.

    Raises:
        UsageError: the message names both options, and where the option stands that should go.
    """
    for option in given.options:
        if given.texts.get(option.name):
            _refuse_excluded(given, option)
    texts = given.texts
    if texts.get("shard") is not None:
        _refuse_with_shards(given)
    text = texts.get("text")
    if given.changes(given.option("split")) and text is not None and wikitext_name(text) is None:
        raise UsageError(f"{given.called('split')} names a split of Wikitext-2, but the text is '{text}': drop it")
    if (
        texts.get("junit") is not None
        and not (texts.get("gates") or texts.get("floors"))
        and not (given.config and given.config.gates)
    ):
        raise UsageError(
            f"{given.called('junit')} reports gates, but none is set; give --fail-above or "
            "--fail-below METRIC[.STAT]=VALUE, or gates in the file of a sweep"
        )


def _refuse_excluded(given: Given, option: Option) -> None:
    """Refuse options that another option excludes, and options that need another value of an option."""
    value = given.texts[option.name]
    changed = [other for other in given.options if given.changes(other)]
    for other in changed:
        if other.name in option.excludes:
            why = option.excludes[other.name].format(value=value, flag=f"--{other.long}")
            raise UsageError(f"{given.called(other.name)} and {given.plain(option.name)} exclude each other: {why}")
        readers = [reader for reader, names in option.reads.items() if other.name in names]
        if readers and value not in readers:
            [reader] = readers  # no option is read at two values
            needed = f"--{option.long} {reader}"
            raise UsageError(f"{given.called(other.name)} needs {needed}, but the {option.long} is {value}")


def _refuse_with_shards(given: Given) -> None:
    """Refuse a malformed shard, a shard without a folder, and results that need the whole run.

    Figures and gates of a sweep's file are allowed: they are for the last run, which has no shard and joins the parts.
    """
    shard = parse_shard(given.texts["shard"])
    if given.texts.get("out") is None:
        raise UsageError(f"{given.called('shard')} {shard}: name the folder that the shards share; give --out DIR")
    for option in given.options:
        text = given.texts.get(option.name)
        if option.of_whole and text and text != (NO_FIGURE,) and given.origins.get(option.name) != "file":
            raise UsageError(
                f"{given.called(option.name)} and {given.plain('shard')} exclude each other: {option.of_whole} need "
                "the whole run; give it without --shard, once all shards have run"
            )
