"""Which rows share a source: Q, K and V of other weights, texts or settings are never averaged together."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..grammar.foreign import printable
from ..records.file import NAMES, plain, strict_json
from .numbers import short_hashes
from .rows import Sourced, Where

if TYPE_CHECKING:
    from ..records.shapes import Record

__all__ = ["at_label", "file_tag", "identity", "scale_of", "source_heading", "source_labels", "with_source"]

R = TypeVar("R", bound="Record")

LETTERS = {"epsilon": "ε", "delta": "δ", "lambda": "λ", "gamma": "γ", "beta": "β", "eta": "η"}
# asked in turn
TELLING = ("scale_inputs", "weights_seed", "model_sha256", "text_sha256", "tokenizer_sha256", "positions", "dtype")
BY_NAME = {"model_sha256": "model", "text_sha256": "text", "tokenizer_sha256": "tokenizer", "qkv_sha256": "qkv"}


def identity(facts: Mapping[str, Any] | None) -> str:
    """What a source's tensors are determined by, as text: its facts but for those that only name what others hash."""
    told = {name: fact for name, fact in (facts or {}).items() if name not in NAMES}
    return json.dumps(told, sort_keys=True, default=plain)


def scale_of(facts: Mapping[str, Any] | None) -> float:
    """The factor of a source's scores; 1 where it has none of its own."""
    return (facts or {}).get("scale_inputs", 1)


def source_labels(records: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """A short label for each source of the records, by `identity`, in their order; None where there is one alone.

    It is the word of ``--weights``, a Q/K/V file's name or a task's, and what else tells apart sources that share it.

    >>> facts = {"weights": "initialized", "weights_seed": 0}, {"weights": "initialized", "weights_seed": 1}
    >>> list(source_labels({"source": one} for one in facts).values())
    ['initialized, weights seed 0', 'initialized, weights seed 1']
    """
    found: dict[str, Mapping[str, Any]] = {}
    for record in records:
        found.setdefault(identity(record.get("source")), record.get("source") or {})
    if len(found) < 2:
        return dict.fromkeys(found)
    labels = {key: str(_word(facts)) for key, facts in found.items()}
    others = sorted({name for facts in found.values() for name in facts} - {*TELLING, *NAMES, "weights"})
    for name in (*TELLING, *others):
        before = dict(labels)
        for key in found:
            tied = [other for other in found if before[other] == before[key]]
            if len({strict_json(found[other].get(name)) for other in tied}) > 1:
                labels[key] += f", {_told(name, found, tied, key)}"
    return dict(labels)


def with_source(records: Sequence[R]) -> Iterator[tuple[R, Where]]:
    """Each record, and what its rows say of its source."""
    labels = source_labels(records)
    for record in records:
        facts = record.get("source") or {}
        where: Where = {
            "weights": facts.get("weights"),
            "source": labels[identity(facts)],
            "scale_inputs": scale_of(facts),
        }
        yield record, where


def source_heading(row: Sourced) -> str:
    """What a caption or a panel's title says of a row's source; nothing where the run has one alone."""
    label = row.get("source")
    return "" if not label else f"weights {label}" if row.get("weights") else str(label)


def file_tag(label: str | None) -> str:
    """The part of a file's name that tells figures of several sources apart; a label that must be changed is hashed.

    >>> file_tag("initialized-qkv"), file_tag(None), file_tag("initialized, weights seed 1")
    ('-initialized-qkv', '', '-initialized-weights-seed-1-531770')
    """
    if not label:
        return ""
    tag = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")[:60]
    digest = hashlib.sha256(printable(label).encode()).hexdigest()
    return f"-{tag}" if tag == label else f"-{tag}-{digest[:6]}"


def _word(facts: Mapping[str, Any]) -> str:
    """What a source is called first: its weights, file or task."""
    return str(next((facts[name] for name in ("weights", "qkv", "task") if facts.get(name)), "unknown source"))


def _told(name: str, found: Mapping[str, Mapping[str, Any]], tied: list[str], key: str) -> str:
    """A fact as words: by the name of what is hashed, where the names differ too."""
    if name == "scale_inputs":
        return f"scores x {scale_of(found[key]):g}"
    short = BY_NAME.get(name)
    if short and len({found[other].get(short) for other in tied}) == len(tied):
        return f"{short} {found[key].get(short)}"
    return f"{name.replace('_', ' ')} {short_hashes(str(found[key].get(name)))}"


def at_label(at: Mapping[str, object], method: str | None = None) -> str:
    """The parameters of a statement, without the method where it is named beside them.

    >>> at_label({"epsilon": 0.5, "delta": 0.1, "norm": "spectral"})
    'ε = 0.5, δ = 0.1, norm = spectral'
    """
    shown = lambda value: f"{value:g}" if isinstance(value, float) else str(value)
    order = [*LETTERS]
    names = [name for name in at if name != "method" or not method]
    names.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return ", ".join(f"{LETTERS.get(name, name.replace('_', ' '))} = {shown(at[name])}" for name in names)
