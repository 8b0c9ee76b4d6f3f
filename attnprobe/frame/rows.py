"""The lines of ``rows.jsonl`` as types: a cell is some rows, and a line of kind ``cell`` that ends them.

A command declares a `RowTypes`: a model for each kind of its rows, and one for the line that ends a cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from ..files import Fields, JsonObject
from ..grammar.validation import Count, Facts, Key, Seed, in_words, said, shallow
from .metric import Metric
from .records.file import CELL, decode_inf
from .records.shapes import Source

HEAD = "head"
# The methods with the tag diagnostic, which bound the others or cost as much as exact attention. They stand here too,
# because showing a run imports no method; a test compares the two lists.
YARDSTICKS = frozenset(
    (
        *("softmax", "kernelized", "svd", "topk", "topp", "dsa-oracle", "magicpig", "vattention"),
        *("amm", "linformer-jlt", "prototype", "spectral-shift"),
    )
)


def _number(value: object) -> object:
    """A number as JSON has it: infinity is a text, and what is not a number is null."""
    if value != value:
        raise ValueError("expected a number, got NaN")
    return decode_inf(value) if value in ("inf", "-inf") else value


Value = Annotated[
    float | None,
    BeforeValidator(_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}, {"type": "null"}]}),
]
Known = Annotated[float, Field(ge=0)]  # a count: absent where it is not measured, but never null
Options = Annotated[str, said("the method's options that differ from their defaults, as k=v,k=v")]


class Line(BaseModel):
    """A line of ``rows.jsonl``. Fields that a later version adds are left out."""

    model_config = ConfigDict(strict=True, extra="ignore")


L = TypeVar("L", bound=Line)


class CellLine(Line):
    """The end of a cell: its place and its status. The rows of the cell stand before this line."""

    kind: Literal["cell"] = Field(description="the kind of the line")
    schema_: Annotated[int, said("the version of this format")] = Field(alias="schema")
    lines: Annotated[Count, said("how many rows of the cell stand before this line")]
    key: Annotated[Key, said("hash of everything that determines the cell's result")]
    command: Annotated[str, said("the command that measured it")]
    status: Annotated[Literal["ok", "skipped", "failed", "diverged"], said("the result of the cell")]
    reason: Annotated[str | None, said("the reason if the status is not ok")] = None
    source: Annotated[Source, BeforeValidator(shallow), said("the origin of Q, K and V: names, hashes, seeds")]
    window: Annotated[Count, said("the number of the text window")]
    n: Annotated[Count, said("tokens", ge=1)]
    layer: Annotated[Count | None, said("the layer; null for several layers together")] = None
    heads: Annotated[list[Count], said("the numbers of the heads that were measured")] = []
    method: Annotated[str | None, said("the method; null for a matrix")] = None
    options: Options = ""
    target: Annotated[str | None, said("the exact matrix: softmax or gaussian")] = None
    d: Annotated[Count | None, said("the budget; null if there is none")] = None
    repeat: Annotated[Count | None, said("the number of the repeat, from 0")] = None
    seed: Annotated[Seed | None, said("the seed of the draws")] = None
    requested: Annotated[bool, said("false for cells that attnprobe added, such as V-Mean")] = True
    reference: Annotated[bool, said("true for a yardstick such as V-Mean")] = False
    family: Annotated[str | None, said("the method's family")] = None
    method_file: Annotated[Facts | None, said("file and hash of a user's method")] = None
    duplicates: Annotated[Count | None, said("rows of Q, K and V that equal another row")] = None
    draws_hash: Annotated[str | None, said("hash of the method's random draws")] = None
    seconds: Annotated[Value, said("time of the cell; the only field that varies between runs")] = None
    run: Annotated[str | None, said("the name of the run's folder")] = None


class Row(Line):
    """A row of a cell: its own fields. Its place and the schema are on the cell line with the same ``key``."""

    kind: Annotated[str, said("the kind of the row")]
    key: Annotated[Key, said("the cell that the row belongs to")]


class HeadRow(Row):
    """A row of kind ``head``: the numbers of one head."""

    head: Annotated[Count | None, said("the head; null for numbers of the whole model")] = None


def with_metrics(name: str, base: type[L], metrics: Iterable[Metric]) -> type[L]:
    """The model ``base`` with a number for each of the metrics too."""
    types = {metric: Known if metric.unit == "rows" else Value for metric in metrics}
    fields: dict[str, Any] = {metric.name: (Annotated[of, said(metric.meaning)], None) for metric, of in types.items()}
    return create_model(name, __base__=base, __doc__=base.__doc__, **fields)


def head_rows(heads: Sequence[int], columns: Mapping[str, Sequence[Any]], kind: str = HEAD) -> list[JsonObject]:
    """A row for each head, from columns with a value for each head.

    >>> head_rows([3, 5], {"output_spectral": [0.5, 0.25]})
    [{'kind': 'head', 'head': 3, 'output_spectral': 0.5}, {'kind': 'head', 'head': 5, 'output_spectral': 0.25}]
    """
    for name, values in columns.items():
        if len(values) != len(heads):
            raise ValueError(f"{name}: {len(values)} values for {len(heads)} heads")
    of_heads = zip(*columns.values(), strict=True) if columns else [()] * len(heads)
    return [
        {"kind": kind, "head": head, **dict(zip(columns, values, strict=True))}
        for head, values in zip(heads, of_heads, strict=True)
    ]


@dataclass(frozen=True)
class RowTypes:
    """The lines of one command.

    Attributes:
        kinds: the model of each kind of rows. cell: the model of the line that ends a cell.
    """

    kinds: Mapping[str, type[Row]]
    cell: type[CellLine] = CellLine

    @cached_property
    def _lists(self) -> dict[str, TypeAdapter[Any]]:
        # A list is validated at once: one call for each row takes several times as long.
        lists: dict[str, Any] = {kind: list[model] for kind, model in self.kinds.items()}  # type: ignore
        return {kind: TypeAdapter(rows) for kind, rows in lists.items()}

    @cached_property
    def _fields(self) -> dict[str, frozenset[str]]:
        # pydantic makes the fields of a model anew at each access, too slowly for each number of a run
        return {kind: frozenset(model.model_fields) for kind, model in self.kinds.items()}

    def problem(self, cell: Fields) -> str | None:
        """The first fault of a cell and its rows, in words; None without a fault.

        >>> RowTypes({"head": HeadRow}).problem({"kind": "cell", "schema": 2, "lines": 1, "rows": []})
        'field key: missing, and 5 more'
        """
        own = {name: value for name, value in cell.items() if name != "rows"}
        try:
            self.cell.model_validate(own)
        except ValidationError as error:
            problems = in_words(error, own)
            return next(iter(problems.values())) + (f", and {len(problems) - 1} more" if len(problems) > 1 else "")
        rows = cell.get("rows", [])
        if len(rows) != cell["lines"]:
            return f"{len(rows)} of its {cell['lines']} rows can be read"
        # Before rows are grouped by kind, which would raise instead of naming the field.
        if not all(isinstance(row, dict) and isinstance(row.get("kind"), str) for row in rows):
            return "field kind: a row has none"
        for kind, group in by_kind(rows).items():
            if kind not in self.kinds:
                return f"field kind: no rows of kind '{kind}'; this version knows {', '.join(self.kinds)}"
            try:
                self._lists[kind].validate_python(group)
            except ValidationError as error:
                return next(iter(in_words(error, group).values()))
        return None

    def known(self, cell: Fields) -> JsonObject:
        """A cell without a `problem`, with exactly the fields of its types: a missing field has its default.

        Infinity, which is a text in JSON, is a number.
        """
        named = {field.alias or name: field for name, field in self.cell.model_fields.items()}
        # A run of an earlier version lacks the fields that later ones added.
        lacks = {name: field.default for name, field in named.items() if not field.is_required() and name not in cell}
        rows = [
            {name: _number(value) for name, value in row.items() if name in self._fields[row["kind"]]}
            for row in cell.get("rows", [])
        ]
        return {**{name: value for name, value in cell.items() if name in named}, **lacks, "rows": rows}

    def json_schemas(self) -> dict[str, JsonObject]:
        """JSON Schema of each kind of the command's lines; the last is of the line that ends a cell."""
        schemas = {}
        for kind, model in {**self.kinds, CELL: self.cell}.items():
            schema = model.model_json_schema()
            schema["properties"]["kind"] = {"const": kind, "description": "the kind of the line"}
            schemas[kind] = schema
        return schemas

    @property
    def columns(self) -> dict[str, str]:
        """The meaning of each column of the command's frames that other commands do not have."""
        models = [*self.kinds.values(), self.cell]
        fields = {name: field for model in models for name, field in model.model_fields.items()}
        return {name: field.description or "" for name, field in fields.items() if name not in CellLine.model_fields}


def by_kind(rows: Iterable[JsonObject]) -> dict[str, list[JsonObject]]:
    """Rows in groups of one kind."""
    groups: dict[str, list[JsonObject]] = {}
    for row in rows:
        groups.setdefault(row["kind"], []).append(row)
    return groups


def lines_of(cell: Fields) -> Iterator[JsonObject]:
    """The lines of a cell: its rows, then the line that ends it."""
    rows = cell["rows"]
    for row in rows:
        yield {**row, "key": cell["key"]}
    own = {name: value for name, value in cell.items() if name != "rows"}
    yield {**own, "kind": CELL, "lines": len(rows)}
