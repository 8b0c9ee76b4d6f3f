"""The metadata of safetensors files of Q, K, V and of sets of keys, as types that check them.

Values are JSON, or the texts that safetensors stores: ``true`` or ``True``, ``0.3``, ``[0, 1]``, ``64,128``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import AttnprobeError, cut, near
from ..files import parse_json
from .validation import Count, Facts, Number, in_words, shallow

EVERY = "every"  # stands for the layers of a value that is not by layer
MISSPELT = 0.8  # similarity of an entry to the name of a field: causl, slidingwindow, is_causal


def _truth(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    truth = {"true": True, "false": False}.get(str(value).lower())
    if truth is None:
        raise ValueError("expected true or false")
    return truth


def _number(value: Any, kind: type) -> Any:
    """The number that a text stands for. Other values, and texts that are no number, stay as they are."""
    try:
        return kind(value) if isinstance(value, str) and "_" not in value else value  # Python reads 1_0 as 10
    except ValueError:
        return value


def _by_layer(value: Any) -> Any:
    return value if value is None or isinstance(value, dict) else {EVERY: value}


def _layer(name: str) -> str:
    if name != EVERY and not re.fullmatch("0|[1-9][0-9]{0,8}", name):
        raise ValueError("expected the number of a layer")
    return name


def _list(value: Any) -> Any:
    numbers = parse_json(value) if isinstance(value, str) else value
    if not isinstance(numbers, list):
        raise ValueError("expected a list of numbers")
    return numbers


def _sizes(value: Any) -> Any:
    sizes = value.split(",") if isinstance(value, str) else value
    return [*sizes, *sizes][:2] if isinstance(sizes, list) and len(sizes) == 1 else sizes


def _different(numbers: list[int]) -> list[int]:
    if len(set(numbers)) < len(numbers):
        raise ValueError("expected numbers that do not repeat")
    return numbers


def _inside(facts: Any) -> Any:
    """Facts that may stand one level deeper in a row."""
    shallow({"origin": facts})
    return facts


_whole, _real = partial(_number, kind=int), partial(_number, kind=float)
Truth = Annotated[bool, BeforeValidator(_truth)]
Whole = Annotated[Count, BeforeValidator(_whole)]
Positive = Annotated[int, Field(ge=1, le=2**53), BeforeValidator(_whole)]
Real = Annotated[Number, Field(gt=0), BeforeValidator(_real)]
Layer = Annotated[str, AfterValidator(_layer)]
Numbers = Annotated[list[Whole], Field(min_length=1), AfterValidator(_different), BeforeValidator(_list)]
Sizes = Annotated[list[Positive], Field(min_length=2, max_length=2), BeforeValidator(_sizes)]


class _Metadata(BaseModel):
    """Metadata that are checked when they are read. Other entries of a file are allowed, unless they look misspelt."""

    model_config: ClassVar = ConfigDict(strict=True, frozen=True, extra="ignore")

    @classmethod
    def read(
        cls, name: str, metadata: Mapping[str, Any], error: type[AttnprobeError], fields: Sequence[str] = ()
    ) -> Self:
        """The metadata of the file ``name``.

        Args:
            fields: the names of the fields that are read; by default all.

        Raises:
            AttnprobeError: ``error``, for an entry of another type, or an entry whose name is nearly a field's name.
                The line names the file and the entry.
        """
        read = fields or tuple(cls.model_fields)
        metadata = {entry: value for entry, value in metadata.items() if entry in read or entry not in cls.model_fields}
        for entry in metadata:
            if entry not in read and (match := near(entry, read, MISSPELT)) is not None:
                raise error(f"{name}: unknown metadata {cut(entry)}; did you mean '{match}'?")
        try:
            return cls.model_validate(metadata)
        except ValidationError as wrong:
            problems = list(in_words(wrong, metadata).values())
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            raise error(f"{name}: metadata {problems[0].removeprefix('field ')}{more}") from wrong


OfLayer = Literal["scale", "sliding_window", "sinks", "softcap", "positional"]  # a number of a layer
OF_LAYERS: tuple[OfLayer, ...] = get_args(OfLayer)


class QKVMetadata(_Metadata):
    """What a file of Q, K, V states beside its tensors.

    Attributes:
        facts: the origin of the tensors. heads: the numbers of the heads. causal: as in `QKV`.
        scale, sliding_window, sinks, softcap, positional: as in `QKV`; a number for all layers, or an object with
            numbers of some layers.
    """

    facts: Annotated[Facts | None, BeforeValidator(_inside)] = None
    heads: Numbers | None = None
    causal: Truth = False
    scale: Annotated[dict[Layer, Real | None] | None, BeforeValidator(_by_layer)] = None
    sliding_window: Annotated[dict[Layer, Positive | None] | None, BeforeValidator(_by_layer)] = None
    sinks: Annotated[dict[Layer, Whole | None] | None, BeforeValidator(_by_layer)] = None
    softcap: Annotated[dict[Layer, Real | None] | None, BeforeValidator(_by_layer)] = None
    positional: Annotated[dict[Layer, Whole | None] | None, BeforeValidator(_by_layer)] = None

    def of(self, field: OfLayer, layer: int) -> Any:
        """The number of a layer; None if the layer has no number."""
        numbers = getattr(self, field) or {}
        return numbers.get(EVERY, numbers.get(str(layer)))

    def fault(self, layers: Iterable[int]) -> str | None:
        """The first field that does not fit to the layers of the file, in words; None if every field fits."""
        names = {str(layer) for layer in layers}
        for field in OF_LAYERS:
            numbers = getattr(self, field)
            if numbers is None or EVERY in numbers:
                continue
            if strange := sorted(set(numbers) - names):
                return f"metadata {field}: there is no layer {strange[0]}"
            if field == "scale" and (absent := sorted(names - set(numbers))):
                return f"metadata scale: layer {absent[0]} has none"
        return None


class SelectionMetadata(_Metadata):
    """What a file of sets of keys states beside its tensors.

    Attributes:
        causal: whether the Q, K, V of the sets are causal. offset: the position of the first query.
        positions: the position of each query; without positions, the queries are consecutive tokens.
        block: the rows and the keys of a block. weights: the meaning of the weights.
        heads: the numbers of the heads of the sets. heads_of: whether they are query heads or KV heads.
    """

    causal: Truth | None = None
    offset: Whole | None = None
    positions: Annotated[list[Whole] | None, BeforeValidator(_list)] = None
    block: Sizes | None = None
    weights: Literal["probability", "log_bias"] = "probability"
    heads: Numbers | None = None
    heads_of: Literal["query", "kv"] | None = None
