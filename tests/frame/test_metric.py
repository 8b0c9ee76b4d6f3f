"""The metrics: each declared once, with a symbol of its own."""

from __future__ import annotations

import re

import pytest
from matplotlib.mathtext import MathTextParser

from attnprobe.frame.metric import BENCH, ERROR, INJECT, METRICS, metrics
from attnprobe.metrics import INPUT_STATISTICS, KERNEL_METRICS, MATRIX_METRICS, OUTPUT_METRICS, OVER_ROWS


def test_a_symbol_has_one_meaning():
    for symbol in ("symbol", "tex", "meaning"):
        of = {}
        for metric in METRICS.values():
            of.setdefault(getattr(metric, symbol), []).append(metric.name)
        assert not {text: names for text, names in of.items() if len(names) > 1}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_says_what_it_is(metric):
    assert metric.title and len(metric.title) <= 40
    assert metric.meaning and len(metric.meaning) <= 100 and not metric.meaning.endswith(".")
    assert metric.tex.isascii() and metric.tex.count("$") % 2 == 0
    assert not re.search(r"(?<!\\)[%&#_^]", re.sub(r"\$.*?\$", "", metric.tex)), "LaTeX cannot set it"


def test_what_is_measured_is_declared():
    measured = {*OUTPUT_METRICS, *MATRIX_METRICS, *KERNEL_METRICS, *OVER_ROWS, *INPUT_STATISTICS}
    assert not measured - METRICS.keys()


def test_an_unknown_metric_is_refused():
    with pytest.raises(KeyError, match="output_spectrl"):
        metrics("output_spectral", "output_spectrl")


def test_each_metric_has_its_better_direction_and_the_scale_of_its_changes():
    rules = {}
    for one in {one.name: one for one in (*ERROR, *BENCH, *INJECT)}.values():
        rule = (one.better, one.scale, one.floor, one.timed, one.of_mean)
        rules.setdefault(rule, []).append(one.name)
    usual = " ".join(rules.pop(("smaller", "relative", 0.0, False, None)))
    assert usual == (
        "output_spectral output_spectral_relative output_frobenius output_frobenius_relative output_row_relative_max "
        "matrix_spectral matrix_spectral_relative matrix_frobenius matrix_frobenius_relative matrix_infinity bad_rows "
        "guarded_rows rounded_rows visited_fraction scored kv_read inverse_residual max_abs relative_frobenius "
        "row_error_p50 row_error_p99 row_error_p99_9 ratio_to_framework ratio_to_framework_frobenius framework_max_abs "
        "framework_relative_frobenius kl row_error_p90 row_error_max row_error_angle residual_error tail_gap flops "
        "drift logits_drift loss loss_own loss_change local_error row_error spectral_error residual_heads residual_sum "
        "cache_bytes read_bytes needle_loss needle_loss_change needle_rank rounding_drift "
        "rounding_kl rounding_local"
    )
    larger_shares = "rows_within mass mass_p10 mass_efficiency recall_k needle_mass_kept top1_agreement answer_right"
    assert {rule: " ".join(names) for rule, names in rules.items()} == {
        ("larger", "complement", 1e-6, False, None): "output_cosine_min cosine embedding_cosine",
        (None, "relative", 0.0, False, None): "delta keys support k_50 k_90 k_99 realised_d",
        ("smaller", "relative", 0.0, True, None): "seconds ratio_to_exact",
        ("larger", "absolute", 0.0, False, None): larger_shares,
        (None, "absolute", 0.0, False, None): "mass_oracle distant_mass needle_mass log_normaliser_error",
        ("smaller", "absolute", 0.0, False, None): "tv js log_normaliser_error_sd lost_mass answer_flipped",
        ("smaller", "relative", 2.0**20, False, None): "peak_bytes",
        ("smaller", "relative", 0.0, False, "loss"): "perplexity",
        ("smaller", "relative", 0.0, False, "loss_own"): "perplexity_own",
        ("smaller", "relative", 0.0, False, "loss_change"): "perplexity_change",
        ("larger", "relative", 0.0, False, None): "first_divergence greedy_match",
    }


def test_a_figure_can_set_the_symbols_of_all_metrics():
    for metric in METRICS.values():
        MathTextParser("path").parse(metric.tex)
