"""Long rows and their statistics."""

from attnprobe.experiments.condition.record import SHAPE
from attnprobe.tables.long import long_rows, summarised


def record(window, status="ok", reason=None, **metrics):
    place = {"method": "mss", "options": {}, "target": "softmax", "layer": 0, "window": window, "n": 8, "d": 2}
    return {
        **place,
        "source": {},
        "heads": [0, 3],
        "status": status,
        "reason": reason,
        "matrices": [],
        "metrics": metrics,
    }


def test_a_record_has_a_row_for_each_head_and_one_without_any():
    errors = {"output_spectral_relative": [0.5, 0.25]}
    measured, failed = record(0, **errors), record(1, "failed", "no memory")
    rows = long_rows([measured, failed], SHAPE)
    expected = [(0, 0, 0.5, "ok"), (0, 3, 0.25, "ok"), (1, None, None, "failed")]
    assert [(row["window"], row["head"], row.get("error"), row["status"]) for row in rows] == expected


def test_a_group_has_the_worst_status_the_first_reason_and_its_numbers_of_heads_and_windows():
    rows = long_rows([record(0, output_spectral_relative=[1.0, 2.0]), record(1, "skipped", "too small")], SHAPE)
    [entry] = summarised(rows, ("method", "d"), lambda group: {"rows": len(group)})
    assert (entry["status"], entry["reason"], entry["heads"], entry["windows"]) == ("skipped", "too small", 2, 2)
    assert entry["rows"] == 3 and entry["scale_inputs"] == 1 and "window" not in entry
