"""Sentences below tables: what takes no part, what p is corrected over, and marks without a cell."""

import pytest

from attnprobe.tables.duels import left_out
from attnprobe.tables.methods import notes, reach
from attnprobe.tables.table import Column, table_of


def row(method, d=8, **fields):
    return {"method": method, "options": {}, "d": d, "status": "ok", "reason": None, "metrics": {}, **fields}


def test_what_takes_no_part_is_named_with_its_reason():
    more = row("moba", metrics={"realised_d": {"mean": 9.0}})
    bad = row("skyformer", metrics={"bad_rows": {"max": 1.0}})
    rows = [row("window"), more, bad, row("topk"), row("vmean", None, reference=True)]
    assert left_out(rows) == [
        "Not ranked where they have bad rows: skyformer.",
        "Not ranked where they use more than d: moba.",
        "Not ranked as yardsticks: topk.",
    ]
    assert left_out([row("topk"), row("window")]) == [], "of two methods a yardstick is compared"
    assert left_out([row("topk", status="skipped"), row("window"), row("bigbird")]) == []


@pytest.mark.parametrize("fragile, kept", [(["mean"], True), (["se"], False)])
def test_a_note_on_numbers_that_are_not_reproducible_stands_where_one_is_shown(fragile, kept):
    one = row("skyformer", metrics={"kl": {"mean": 2.0}}, fragile={"kl": fragile})
    table = table_of("", [one], [Column("KL", "{metrics[kl][mean]:3}")], notes([one]))
    assert any(line.startswith("≈ skyformer") for line in table.notes) == kept


def test_what_stands_after_plus_or_minus_has_the_mark_of_what_is_not_reproducible():
    one = {"windows": 2, "metrics": {"kl": {"se": 0.01}}}
    assert reach({**one, "fragile": {"kl": ["se"]}}, "kl") == "≈0.13"


def test_a_method_with_a_lost_head_says_of_how_many_values_its_numbers_are():
    one = row("mine", status="diverged", reason="not finite in head 3", values=12)
    one["metrics"] = {"output_spectral_relative": {"count": 11}}
    assert notes([one]) == ["✗ mine d=8: not finite in head 3; numbers are of 11 of 12 values"]
