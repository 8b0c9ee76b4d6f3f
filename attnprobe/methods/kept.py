"""Intermediate results that several computations with the same Q, K and V share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..qkv import QKV

Made = TypeVar("Made")


class Kept:
    """The intermediate results of calls with the same inputs and settings, such as those of many seeds."""

    # weak keys: the results go with the inputs, as long as no result holds the inputs themselves
    _last: WeakKeyDictionary[QKV, tuple[tuple[object, ...], dict[Hashable, Any]]] = WeakKeyDictionary()

    def __init__(self, qkv: QKV, *settings: object) -> None:
        inputs = (qkv.q, qkv.shared_k, qkv.shared_v, qkv.all_queries, qkv.bias)
        state = (*settings, *(0 if x is None else x._version for x in inputs))  # of changes in place
        # only the last settings of each Q, K, V are kept: cells with equal settings follow each other
        last = self._last.get(qkv)
        if last is None or last[0] != state:
            last = self._last[qkv] = state, {}
        self.found = last[1]

    def once(self, what: Hashable, make: Callable[[], Made]) -> Made:
        """What was made under this name, or is made now."""
        if what not in self.found:
            self.found[what] = make()
        return self.found[what]
