"""Records of `attnprobe error` as real heads give them."""

import math
from random import Random

from attnprobe.frame.records.file import LOWER_BOUND


def cell(method="skyformer", d=16, values=(0.5, 1.0), **fields):
    values = list(values)
    one = {
        "method": method,
        "options": {},
        "target": "softmax",
        "n": 64,
        "d": d,
        "layer": 0,
        "window": 0,
        "repeat": 0,
        "heads": list(range(len(values))),
        "status": "ok",
        "reason": None,
        "reference": method in ("vmean", LOWER_BOUND),
        "requested": method not in ("vmean", LOWER_BOUND),
        "family": "",
        "metrics": {
            "output_spectral": values,
            "output_spectral_relative": [None if v is None else v / 4 for v in values],
            "output_frobenius": [None if v is None else v * 2 for v in values],
        },
        "seconds": 0.25,
    }
    return {**one, **fields}


def a_run(budgets=(16, 32, 128), lengths=(512, 1024), layers=(0,), windows=3, heads=12):
    """Records as real heads give them: medians near 0.3, one head of the Nyström family at 55 and more."""
    random = Random(0)
    records = []
    for layer in layers:
        for n in lengths:
            for window in range(windows):
                vmean = [0.4 * math.exp(random.gauss(0, 0.4)) for _ in range(heads)]
                place = {"layer": layer, "n": n, "window": window}
                records.append(cell("vmean", None, vmean, **place))
                for d in budgets:
                    bound = [max(0.0, v * (0.8 - d / 70)) for v in vmean]
                    records.append(cell(LOWER_BOUND, d, bound, seconds=None, **place))
                    for method, factor in (("skyformer", 1.0), ("nystromformer", 0.8), ("mine_%$&.py:fn", 3.0)):
                        values = [v * factor * (16 / d) ** 0.3 * math.exp(random.gauss(0, 0.1)) for v in vmean]
                        if method == "nystromformer":
                            values[5] = 55.123456789 * d / 16
                        one = cell(method, d, values, **place, seconds=random.random() / 100)
                        one["metrics"]["bad_rows"] = [17 if method == "skyformer" and d == 32 else 0] + [0] * (
                            heads - 1
                        )
                        one["metrics"]["visited_fraction"] = [2 * d / n] * heads
                        records.append(one)
    return records
