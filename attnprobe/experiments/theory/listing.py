"""The theorems, their statements and their cost."""

from __future__ import annotations

import textwrap

from ...tables.view import flat_view
from ...theorems import THEOREMS


def list_all(format_: str) -> str:
    """Every theorem in a format: its name, paper, statement and cost."""
    if format_ == "table":
        return "\n\n".join(_card(name) for name in THEOREMS)
    rows = [
        {"theorem": one.name, "paper": one.paper, "says": one.says, "cost": one.cost, "per_method": one.per_method}
        for one in THEOREMS.values()
    ]
    return flat_view("theorems", rows).text(format_)


def _card(name: str) -> str:
    one = THEOREMS[name]
    about = " · tested for every --method" if one.per_method else ""
    lines = [one.paper, one.says, f"cost: {one.cost}{about}"]
    wrapped = [part for line in lines for part in textwrap.wrap(line, 96, subsequent_indent="  ")]
    return "\n".join([one.name, *(f"  {line}" for line in wrapped)])
