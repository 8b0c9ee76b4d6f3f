"""Cells of two runs compared to the last bit."""

import json


def bits(cells):
    """Each cell with its rows as text, by its key: without times, the run's name and what was not measured."""
    return {cell["key"]: json.dumps(_lasting(cell), sort_keys=True) for cell in cells}


def _lasting(value):
    if isinstance(value, dict):
        left_out = ("run", "lines", "kind", "schema") if "rows" in value or "metrics" in value else ("key",)
        kept = {name: one for name, one in value.items() if name not in left_out and "seconds" not in name}
        return {name: _lasting(one) for name, one in kept.items() if one is not None}
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    return float(value) if value in ("inf", "-inf") else value
