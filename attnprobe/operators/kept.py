"""Intermediate results that several computations with the same inputs share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

Made = TypeVar("Made")


class Kept:
    """The intermediate results of calls with the same inputs and settings, such as those of many seeds.

    Args:
        owner: the inputs, which hold the tensors.
    """

    # weak keys: the results go with the inputs, as long as no result holds the inputs themselves
    _last: WeakKeyDictionary[Any, tuple[tuple[object, ...], dict[Hashable, Any]]] = WeakKeyDictionary()

    def __init__(self, owner: object, tensors: Iterable[Tensor | None], *settings: object) -> None:
        state = (*settings, *(0 if x is None else x._version for x in tensors))  # of changes in place
        # only the last settings of the same inputs are kept: cells with equal settings follow each other
        last = self._last.get(owner)
        if last is None or last[0] != state:
            last = self._last[owner] = state, {}
        self.found = last[1]

    def once(self, what: Hashable, make: Callable[[], Made]) -> Made:
        """What was made under this name, or is made now."""
        if what not in self.found:
            self.found[what] = make()
        return self.found[what]
