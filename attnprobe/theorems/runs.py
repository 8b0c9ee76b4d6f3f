"""The approximations of a method at all possible budgets."""

from __future__ import annotations

from collections.abc import Iterator

from ..approximation import Approximation
from ..errors import Unsupported
from .registry import Setting


def runs(setting: Setting, method: str) -> Iterator[tuple[int, Approximation]]:
    """Yields ``(d, approximation)`` for every budget that ``method`` can take, with the first seed.

    Raises:
        Unsupported: the method can take none of the budgets. The message is that of the last.
    """
    unsupported, any_run = None, False
    for d in setting.budgets:
        try:
            approx = setting.run(method, d, setting.seeds[0])
        except Unsupported as error:
            unsupported = error
        else:
            any_run = True
            yield d, approx
    if unsupported is not None and not any_run:
        raise unsupported
