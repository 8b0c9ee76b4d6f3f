"""Which registered methods have a form for inputs, without running them."""

from __future__ import annotations

from ..errors import Unsupported
from ..operators.terms import Terms
from .registry import METHODS, Method


def by_form(causal: bool, local: bool, terms: Terms | None) -> dict[str, list[str]]:
    """The names of methods by what they have no form for; those under ``""`` have a form for the inputs.

    Args:
        causal, local, terms: as in `Method.check_form`.

    >>> by_form(causal=True, local=False, terms=None)["causal attention"][:2]
    ['hyper', 'kdeformer']
    """
    asked: dict[str, tuple[bool, bool, Terms | None]] = {
        "causal attention": (causal, False, None),
        "a sliding window": (False, local, None),
        "a bias or a cap": (False, False, terms),
    }
    found: dict[str, list[str]] = {"": []}
    for name, entry in METHODS.items():
        missing = next((feature for feature, form in asked.items() if not _has_form(entry, *form)), "")
        found.setdefault(missing, []).append(name)
    return found


def _has_form(entry: Method, causal: bool, local: bool, terms: Terms | None) -> bool:
    try:
        entry.check_form(causal, local, terms)
    except Unsupported:
        return False
    return True
