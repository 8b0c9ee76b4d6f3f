"""Frames of cells that tests write down, and the lines of their summary."""

from attnprobe.frame.metric import METRICS
from attnprobe.frame.summary import summary
from attnprobe.grammar.lists import options_text
from attnprobe.judge.compare import compare
from attnprobe.judge.runs import heads_share_draws
from attnprobe.show.shown import PLACES
from attnprobe.show.writers import json_rows

INTEGERS = ("n", "d", "layer", "window", "repeat", "head", "kv_head", "prefix")
WORDS = ("source", "weights", "name", "method", "options", "target", "status", "reason", "draws", "key")


def frame_of(cells):
    """The frame of kind ``head`` of cells: a row for each head, or one without a head."""
    import pandas as pd

    rows = []
    for number, cell in enumerate(cells):
        facts, options = cell.get("source") or {}, options_text(cell.get("options"))
        own = {name: value for name, value in cell.items() if name not in ("heads", "metrics", "source", "options")}
        label = ", weights seed ".join(str(facts[name]) for name in ("weights", "weights_seed") if facts.get(name))
        place = {
            "command": "error",
            "key": str(number),
            "source": label,
            "weights": facts.get("weights"),
            "scale_inputs": float(facts.get("scale_inputs", 1)),
            "name": f"{cell['method']}:{options}" if options else cell["method"],
            "options": options,
            "requested": not cell.get("reference", False),
            "reference": False,
            "reason": None,
            "shares": heads_share_draws(cell),
            "draws": (cell["draws_hash"] or "") if "draws_hash" in cell else None,
            "seed": None,
            "repeat": None,
            **own,
        }
        heads = cell.get("heads") or [None]
        for at, head in enumerate(heads):
            metrics = {name: values[at] for name, values in (cell.get("metrics") or {}).items() if values}
            rows.append({**place, "head": head, **metrics})
    frame = pd.DataFrame(rows, columns=None if rows else ["method", "requested", "reference", "status", *PLACES[:7]])
    numbers = [name for name in frame if name in METRICS and name not in INTEGERS]
    dtypes = dict.fromkeys(numbers, "Float64") | dict.fromkeys(INTEGERS, "Int64") | dict.fromkeys(WORDS, "string")
    dtypes["shares"] = "boolean"
    return frame.astype({name: dtype for name, dtype in dtypes.items() if name in frame})


def gate_lines(cells):
    """The lines of the cells that gates judge."""
    if not cells:
        return []
    frame = frame_of(cells)
    by = [name for name in (*PLACES, "reference") if name in frame]
    return json_rows(summary(frame, by, [name for name in frame if name in METRICS and name not in by]))


def compared(a, b, metrics=(), **options):
    """The comparison of the cells of two runs, which may be one."""
    left = frame_of(a)
    return compare(left, left if b is a else frame_of(b), metrics or ("output_spectral_relative",), **options)
