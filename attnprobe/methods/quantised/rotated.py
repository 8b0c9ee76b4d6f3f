"""``rotated:FORMAT``: any format behind a rotation of the vectors, and the inverse rotation behind it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...errors import UsageError
from ..registry import Method
from .base import Format, Side, method_facts, method_of
from .rotation import Kind, drawn_rotation, rotated

TEXT = """``x̂ = Rᵀ f(R x)`` with the format f of ``{name}`` and a rotation R of keys, and of values.

A rotation spreads the numbers of outlying channels over all coordinates, so that blocks have smaller scales. Without a
format it changes nothing. It costs no bits.

Options:
    rotation: ``hadamard``, a Hadamard matrix; ``signed``, the same behind random signs of each KV head; ``haar``,
        uniform over all rotations, of each KV head.

The other options are those of ``{name}``:

{text}"""


def rotated_format(entry: Method) -> Method:
    """The method ``rotated:NAME`` of a method with a format.

    Raises:
        UsageError: the method has no format, or rotates vectors itself.
    """
    stated = entry.format
    if stated is None or entry.compress is not None:
        raise UsageError(f"rotated:{entry.name}: {entry.name} is not a format; choose one such as rotated:q4_0")
    if "rotation" in stated.options:
        raise UsageError(f"rotated:{entry.name}: {entry.name} rotates vectors itself; leave rotated: out")
    name = f"rotated:{entry.name}"

    def law(x: Tensor, side: Side, *, rotation: Kind, **options: Any) -> Tensor:
        matrix = drawn_rotation(rotation, x.shape[-1], side)
        return rotated(stated.law(rotated(x, matrix).float(), side, **options), matrix, back=True)

    def storage(rotation: Kind, **options: Any) -> Any:
        return stated.storage(**options)

    def group(rotation: Kind, **options: Any) -> int:
        return stated.group(**options)

    def validate(target: str, *, rotation: Kind, **options: Any) -> None:
        if entry.validate is not None:
            shared = {"of": "kv", "exact": 0, "pre_rope": False}
            entry.validate(target, **shared, **options)

    kind = inspect.Parameter("rotation", inspect.Parameter.KEYWORD_ONLY, default="hadamard", annotation=Kind)
    turned = Format(name, law, storage, stated.alone, group, {"rotation": kind, **stated.options}, stated.exact)
    facts = {
        "name": name,
        "paper": f"a Hadamard rotation before {entry.paper}",
        "year": entry.year,
        "tags": tuple(tag for tag in entry.tags if tag in ("causal", "whole_scale", "permutation_equivariant")),
        "oracle": "the format without a rotation",
        "small": entry.small,
        "validate": validate,
    }
    text = TEXT.format(name=entry.name, text=inspect.getdoc(entry.function))
    return replace(entry, **{"function": method_of(turned, text), **method_facts(turned, facts)})
