"""Cases of a test of which the ordinary suite runs some; `pytest -m slow` runs the others."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def others_slow(cases: Iterable[Any], kept: Callable[[Sequence[Any]], bool]) -> list[Any]:
    """The cases of a parametrized test; those that are not ``kept`` are slow tests."""
    made = []
    for case in cases:
        values = case.values if hasattr(case, "values") else case if isinstance(case, tuple) else (case,)
        known = {"id": case.id, "marks": case.marks} if hasattr(case, "values") else {"id": None, "marks": ()}
        marks = known["marks"] if kept(values) else (*known["marks"], pytest.mark.slow)
        made.append(pytest.param(*values, id=known["id"], marks=marks))
    return made
