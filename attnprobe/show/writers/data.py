"""Frames as CSV and JSON in full precision."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from ...grammar.foreign import one_line

if TYPE_CHECKING:
    from pandas import DataFrame


FORMULA = tuple("=+-@＝＋－＠")  # begin a formula of a spreadsheet


def csv(frame: DataFrame) -> str:
    """A frame as CSV in full precision. What was not measured is empty; infinity is ``inf``."""
    words = frame.select_dtypes(("object", "string"))
    safe = frame.assign(**{name: [csv_cell(value) for value in words[name]] for name in words})
    # one line ending on every platform, so that files can be compared
    return safe.rename(columns=csv_cell).to_csv(index=False, lineterminator="\n")


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet reads as a formula: text that begins like one gets an apostrophe.

    >>> csv_cell("=1+1"), csv_cell("-inf"), csv_cell(-0.5), csv_cell("skyformer")
    ("'=1+1", '-inf', -0.5, 'skyformer')
    """
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) and text not in ("inf", "-inf") else text


def json_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as JSON has them: null where nothing was measured, and infinity as the text ``inf``."""
    names, columns = [*map(str, frame)], [[*map(_jsonable, frame[name].tolist())] for name in frame]
    return [dict(zip(names, line, strict=True)) for line in zip(*columns, strict=True)]


def _jsonable(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if math.isnan(value) else str(value) if math.isinf(value) else value
    if isinstance(value, (str, int, list, tuple, dict)):
        return value
    return None if str(value) == "<NA>" else value


def jsonl(frame: DataFrame) -> str:
    """A frame as JSON, a line for each row."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in json_rows(frame))
