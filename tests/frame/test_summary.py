"""Statistics of groups, against numpy and against what rounding can do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from attnprobe.frame.summary import STATISTICS, summary


def frame(seed: int, rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "method": rng.choice(["a", "b", "c"], rows),
            "d": pd.array(rng.choice([8, 16, None], rows), "Int64"),
            "window": rng.integers(0, 4, rows),
            "head": rng.integers(0, 6, rows),
            "repeat": 0,
            "key": [str(number // 6) for number in range(rows)],
            "status": "ok",
            "reason": pd.array([None] * rows, "string"),
            "kl": pd.array(np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(size=rows)), "Float64"),
        }
    ).assign(kl=lambda one: one["kl"].mask(one["kl"].to_numpy(float, na_value=np.nan) != one["kl"].to_numpy(float)))


@pytest.mark.parametrize("seed", range(5))
def test_statistics_are_those_of_numpy(seed):
    rows = frame(seed)
    lines = summary(rows, ["method", "d"], ["kl"])
    groups = rows.groupby(["method", "d"], dropna=False, sort=False)
    assert len(lines) == groups.ngroups
    for line, (_, group) in zip(lines.to_dict("records"), groups, strict=True):
        values = group["kl"].dropna().to_numpy(float)
        means = group.dropna(subset="kl").groupby("window")["kl"].mean().to_numpy(float)
        right = {
            **{name: getattr(np, name)(values) for name in ("mean", "median", "min", "max", "sum")},
            **{name: np.quantile(values, share) for name, share in (("p10", 0.1), ("p90", 0.9))},
            "se": means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.nan,
            "count": len(values),
        }
        assert [line[f"kl.{name}"] for name in STATISTICS] == pytest.approx([right[n] for n in STATISTICS], nan_ok=True)
        assert (line["windows"], line["heads"]) == (group["window"].nunique(), group["head"].nunique())


def test_infinity_is_the_largest_value():
    rows = pd.DataFrame({"method": "a", "window": 0, "head": range(4), "cond": [1.0, 2.0, np.inf, np.inf]})
    line = summary(rows, ["method"], ["cond"]).iloc[0]
    assert line["cond.p10"] == pytest.approx(1.3)
    assert line["cond.median"] == line["cond.p90"] == line["cond.max"] == line["cond.mean"] == np.inf


def test_a_group_without_values_has_none_and_keeps_its_line():
    rows = pd.DataFrame(
        {
            "method": ["a", "b"],
            "window": 0,
            "head": pd.array([0, None], "Int64"),
            "key": ["1", "2"],
            "status": ["ok", "skipped"],
            "reason": [None, "no causal form"],
            "kl": [1.0, np.nan],
        }
    )
    ok, skipped = summary(rows, ["method"], ["kl"]).to_dict("records")
    assert (ok["status"], skipped["status"], skipped["reason"]) == ("ok", "skipped", "no causal form")
    assert skipped["kl.count"] == 0 and skipped["values"] == 0 and np.isnan(skipped["kl.mean"])


@pytest.mark.parametrize(
    "values, fragile", [([1, 2, 3, 90], {"mean", "se", "p90", "max", "sum"}), ([1, 2, 3, 2], set())]
)
def test_a_statistic_is_fragile_where_a_rounded_head_leaves_the_range_of_the_others(values, fragile):
    rows = pd.DataFrame(
        {
            "method": "a",
            "window": [0, 0, 1, 1],
            "head": range(4),
            "output_spectral": values,
            "rounded_rows": [0, 0, 0, 1],
        }
    )
    line = summary(rows, ["method"], ["output_spectral"]).iloc[0]
    assert {name for name in STATISTICS if line.get(f"output_spectral.{name}.fragile")} == fragile


def test_bad_rows_that_a_guard_replaced_are_not_bad():
    rows = pd.DataFrame({"method": ["a", "b"], "window": 0, "bad_rows": [3, 3], "guarded_rows": [np.nan, 3]})
    assert summary(rows, ["method"])["bad"].tolist() == [True, False]


def test_more_than_d_is_used():
    rows = pd.DataFrame(
        {"method": ["a", "b", "c"], "d": [100, 100, None], "window": 0, "realised_d": [105.0, 106, 500]}
    )
    assert summary(rows, ["method", "d"], ["realised_d"])["over"].tolist() == [False, True, False]


def test_half_an_interval_is_students_over_the_clusters_that_have_a_value():
    for freedom, expected in ((1, 12.7062047), (2, 4.30265273), (7, 2.36462425), (30, 2.04227246)):
        values = np.arange(freedom + 1.0)
        rows = pd.DataFrame({"method": "a", "window": 0, "seed": range(freedom + 3), "tau": [*values, np.nan, np.nan]})
        line = summary(rows, ["method"], ["tau"], "seed").iloc[0]
        assert line["tau.half"] / line["tau.se"] == pytest.approx(expected, rel=1e-7)
        assert line["tau.se"] == pytest.approx(values.std(ddof=1) / np.sqrt(len(values)))
        assert np.isnan(summary(rows, ["method"], ["tau"]).iloc[0]["tau.half"])  # of one window
    same = pd.DataFrame({"method": "a", "window": [0, 1], "tau": 2.0})
    assert summary(same, ["method"], ["tau"]).iloc[0]["tau.half"] == 0
