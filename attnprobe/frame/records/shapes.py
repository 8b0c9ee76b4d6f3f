"""The types of a source and of the manifest, with their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, Never, NotRequired, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ...errors import UsageError
from ...files import Fields, JsonObject
from ...grammar.validation import Count, Facts, Number, Seed, in_words, shallow
from .file import parse_shard


class Source(TypedDict, total=False):
    """The facts of a source that reports use; a source may have more."""

    weights: str | None
    weights_seed: Seed | None
    model: str | None
    model_sha256: str | None
    text: str | None
    text_sha256: str | None
    tokenizer: str | None
    tokenizer_sha256: str | None
    qkv: str
    qkv_sha256: str
    task: str
    positions: str | None
    scores: str
    dtype: str
    causal: bool
    sliding_window: Annotated[Count, Field(ge=1)]
    sinks: bool
    captured: Literal["cache"]
    scale_inputs: Annotated[Number, Field(gt=0)]
    fallback: list[str]


class Setting(TypedDict):
    """An option of a run, and whether the user named it."""

    value: object
    origin: NotRequired[str]


def _shard(text: str) -> str:
    try:
        parse_shard(text)
    except UsageError as error:
        raise ValueError("expected I/N with I from 1 to N") from error
    return text


class Manifest(TypedDict, total=False):
    """The fields of ``manifest.json``."""

    schema: int
    command: str
    shard: Annotated[str, AfterValidator(_shard)] | None
    arguments: list[str]
    config: Annotated[dict[str, Setting], BeforeValidator(shallow)]
    plan: Facts
    source: Annotated[Source | list[Source] | None, BeforeValidator(shallow)]
    described: list[list[str]]
    versions: Facts
    git_commit: str | None
    device: str | None
    threads: Count | None
    dtype: str | None
    start: str
    end: str
    status: str
    other_settings: list[str]
    processes: Annotated[list[JsonObject], BeforeValidator(shallow)]
    deaths: list[str]


R = TypeVar("R", bound=Fields)


def _nothing(record: object) -> Iterator[Never]:
    return iter(())


@dataclass(frozen=True)
class Shape(Generic[R]):
    """A type of objects in a file, and their checks.

    Attributes:
        type: the type. problems: what else is wrong with an object that has this type, such as a head that stands
            twice.
    """

    type: type[R]
    problems: Callable[[R], Iterable[str]] = _nothing

    @cached_property
    def _adapter(self) -> TypeAdapter[R]:
        return TypeAdapter(self.type)

    @cached_property
    def fields(self) -> frozenset[str]:
        return frozenset(self.type.__required_keys__ | self.type.__optional_keys__)  # type: ignore[attr-defined]

    def problem(self, record: Any) -> str | None:
        """The first problem of a record, in words, or None.

        >>> Shape(Manifest).problem({"start": "2026-11-28", "deaths": 0})
        'field deaths: expected a valid list, got 0'
        """
        problems = self.by_field(record)
        if not problems:
            return next(iter(self.problems(record)), None)
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        return f"{next(iter(problems.values()))}{more}"

    def by_field(self, record: object) -> dict[str, str]:
        """The first problem of each field that is not of its type, in words."""
        try:
            self._adapter.validate_python(record, strict=True)
        except ValidationError as error:
            return in_words(error, record)
        return {}

    def known(self, record: Fields) -> R:
        """A record without a `problem`, with only the fields of its type."""
        return {name: value for name, value in record.items() if name in self.fields}  # type: ignore[return-value]

    def json_schema(self) -> JsonObject:
        """The type as JSON Schema."""
        return self._adapter.json_schema()


MANIFEST = Shape(Manifest)
