"""A method's approximations at the budgets that it takes."""

from __future__ import annotations

from collections.abc import Iterator

from ..approximation import Approximation
from ..errors import Unsupported
from .registry import Setting

__all__ = ["runs"]


def runs(setting: Setting, method: str) -> Iterator[tuple[int, Approximation]]:
    """``(d, approximation)`` at every budget that ``method`` can take, with the first seed.

    Raises:
        Unsupported: after all, where it takes none of them, with its reason for the last.
    """
    refusal, taken = None, False
    for d in setting.budgets:
        try:
            approx = setting.run(method, d, setting.seeds[0])
        except Unsupported as error:
            refusal = error
        else:
            taken = True
            yield d, approx
    if refusal is not None and not taken:
        raise refusal
