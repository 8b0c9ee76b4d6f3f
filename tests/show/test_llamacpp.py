"""llama.cpp's block of statistics, recomputed from its definitions, and the table of tails."""

import math
import re
from statistics import mean, median

import numpy as np
import pytest
from inject_rows import shown_of
from paths import GOLDEN

from attnprobe.frame.records.read import read_records
from attnprobe.frame.tails import RESAMPLES, quantile, quantile_ends, rms, rms_ends
from attnprobe.show.shown import Catalogue
from attnprobe.show.writers.llamacpp import LEAST, block


def tokens(count=257, seed=3):
    """Divergences, losses and equal words of tokens."""
    draws = np.random.default_rng(seed)
    base = draws.exponential(2.0, count)
    return (
        draws.lognormal(-3, 1.5, count),
        base + draws.normal(0.1, 0.3, count).clip(-base),
        base,
        draws.random(count) < 0.9,
    )


def at(values, share):
    """The quantile as llama.cpp has it: linear between the two nearest of the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return (1 - place + below) * ordered[below] + (place - below) * ordered[above]


def error(values):
    """The standard error of a mean: √((mean x² - mean² x) / (count - 1))."""
    return math.sqrt((mean(x * x for x in values) - mean(values) ** 2) / (len(values) - 1))


def found(text):
    """The numbers of each line by what stands before them, section by section."""
    lines = {}
    for line in text.splitlines():
        name = re.split(r"\s*:\s", line)[0]
        if " KLD" in line or " Δp" in line or "PPL" in line or "Same" in line:
            lines[" ".join(name.rstrip(":").split())] = [
                float(part) for part in re.findall(r"-?\d+\.\d+", line.split(":")[-1])
            ]
    return lines


def test_each_number_of_the_block_follows_from_its_definition():
    kl, loss, own, same = (list(map(float, values)) for values in tokens())
    change = [math.exp(-q) - math.exp(-p) for q, p in zip(loss, own, strict=True)]
    lines = found(block(kl, loss, own, same))
    covariance = (mean(a * b for a, b in zip(loss, own, strict=True)) - mean(loss) * mean(own)) / (len(kl) - 1)
    ratio, of_ratio = mean(loss) - mean(own), math.sqrt(error(loss) ** 2 + error(own) ** 2 - 2 * covariance)
    ppl, base = math.exp(mean(loss)), math.exp(mean(own))
    gap = (ppl * error(loss)) ** 2 + (base * error(own)) ** 2 - 2 * ppl * base * covariance
    squares = [x * x for x in change]
    rms, equal = math.sqrt(mean(squares)), mean(same)
    expected = {
        "Mean PPL(Q)": [ppl, ppl * error(loss)],
        "Mean PPL(base)": [base, base * error(own)],
        "Cor(ln(PPL(Q)), ln(PPL(base)))": [100 * covariance / error(loss) / error(own)],
        "Mean ln(PPL(Q)/PPL(base))": [ratio, of_ratio],
        "Mean PPL(Q)/PPL(base)": [math.exp(ratio), math.exp(ratio) * of_ratio],
        "Mean PPL(Q)-PPL(base)": [ppl - base, math.sqrt(gap)],
        "Mean KLD": [mean(kl), error(kl)],
        "Maximum KLD": [max(kl)],
        "Median KLD": [median(kl)],
        "Minimum KLD": [min(kl)],
        "Mean Δp": [100 * mean(change), 100 * error(change)],
        "Maximum Δp": [100 * max(change)],
        "Median Δp": [100 * median(change)],
        "Minimum Δp": [100 * min(change)],
        "RMS Δp": [100 * rms, 100 * error(squares) / 2 / rms],
        "Same top p": [100 * equal, 100 * math.sqrt(equal * (1 - equal) / (len(kl) - 1))],
    }
    for share in (99.9, 99, 95, 90, 10, 5, 1, 0.1):
        expected[f"{share:.1f}% KLD"] = [at(kl, share / 100)]
        expected[f"{share:.1f}% Δp"] = [100 * at(change, share / 100)]
    for share in (75, 25):
        expected[f"{share:.1f}% Δp"] = [100 * at(change, share / 100)]
    assert lines.keys() == expected.keys()
    for name, numbers in expected.items():
        digits = 2 if "Cor" in name else 6 if "PPL" in name or "KLD" in name else 3
        assert lines[name] == pytest.approx(numbers, abs=0.5 * 10**-digits + 1e-12), name


def test_the_block_has_the_form_that_readers_of_llama_cpp_parse():
    text = block(*tokens())
    assert [line for line in text.splitlines() if line.startswith("=")] == [
        "====== Perplexity statistics ======",
        "====== KL divergence statistics ======",
        "====== Token probability statistics ======",
    ]
    for pattern in (
        r"^Mean PPL\(Q\)                   : +[\d.]+ ± +[\d.]+$",
        r"^Cor\(ln\(PPL\(Q\)\), ln\(PPL\(base\)\)\): +[\d.]+%$",
        r"^Mean    KLD: +[\d.]+ ± +[\d.]+$",
        r"^99\.9%   KLD: +[\d.]+$",
        r"^ 5\.0%   KLD: +[\d.]+$",
        r"^Median  KLD: +[\d.]+$",
        r"^Maximum Δp: +[\d.]+%$",
        r"^RMS Δp    : +[\d.]+ ± +[\d.]+ %$",
        r"^Same top p: +[\d.]+ ± +[\d.]+ %$",
    ):
        assert re.search(pattern, text, re.M), pattern


def test_numbers_without_statistics_are_refused_by_one_line():
    few = [values[: LEAST - 1] for values in tokens()]
    with pytest.raises(ValueError, match="99 tokens; llama.cpp writes no statistics of fewer than 100"):
        block(*few)
    kl, *rest = tokens()
    kl[5] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        block(kl, *rest)
    assert "Cor(ln(PPL(Q)), ln(PPL(base))):    nan%" in block(*([0.0] * 200 for _ in range(4))), "constant numbers"


# --- intervals over windows


def test_an_interval_is_that_of_resampled_windows():
    """Windows of different lengths, each resample written out."""
    draws = np.random.default_rng(1)
    lengths = (5, 9, 2, 7)
    values = [list(draws.exponential(1.0 + number, size)) for number, size in enumerate(lengths)]
    windows = [10 * number for number, size in enumerate(lengths) for _ in range(size)]
    counts = np.random.default_rng(0).multinomial(4, [0.25] * 4, RESAMPLES)
    pools = [sum((values[w] * int(count) for w, count in enumerate(row)), []) for row in counts]
    flat = sum(values, [])
    for share in (0.0, 0.5, 0.9, 0.999, 1.0):
        ends = np.quantile([at(pool, share) for pool in pools], (0.025, 0.975))
        assert quantile_ends(flat, windows, share) == pytest.approx(tuple(ends))
        assert quantile(flat, share) == pytest.approx(at(flat, share))
    roots = [math.sqrt(mean(x * x for x in pool)) for pool in pools]
    assert rms_ends(flat, windows) == pytest.approx(tuple(np.quantile(roots, (0.025, 0.975))))
    assert rms(flat) == pytest.approx(math.sqrt(mean(x * x for x in flat)))
    assert quantile_ends(flat, [0] * len(flat), 0.5) is None and rms_ends([1.0], [0]) is None
    assert quantile([], 0.5) is None and quantile_ends([math.nan, 1.0], [0, 1], 0.5) is None


def test_an_interval_of_a_quantile_covers_it():
    """Sixteen windows of sixteen independent tokens: of 95 % intervals of a median, 200 tries miss 5 % and a bit."""
    draws = np.random.default_rng(7)
    windows, true, inside = np.repeat(np.arange(16), 16), math.log(2), 0
    for _ in range(200):
        low, high = quantile_ends(draws.exponential(1.0, 256), windows, 0.5)
        inside += low <= true <= high
    assert 180 <= inside <= 199  # 184 … 196 are within two standard deviations of 95 %


# --- the table and the format of a run

QUANTILES = {"kl_median": 0.5, "kl_p90": 0.9, "kl_p95": 0.95, "kl_p99": 0.99, "kl_p999": 0.999, "kl_max": 1.0}


def steps_of(cells, name, d):
    rows = [row for cell in cells if (cell["method"], cell["d"]) == (name, d) for row in cell["rows"]]
    return [row for row in rows if row["kind"] == "step"]


@pytest.fixture
def cells():
    return [
        cell for cell in read_records(GOLDEN / "runs" / "inject-decode") if cell["source"]["weights"] == "pretrained"
    ]


def test_the_table_of_tails_has_the_numbers_of_all_tokens(cells):
    lines = {(row["name"], row["d"]): row for row in shown_of(cells).rows if row["table"] == "tails"}
    skipped = lines.pop(("window", 3))
    assert lines.keys() == {("topk", 3), ("topk", 6), ("window", 6)} and skipped["kl_max"] is None
    for (name, d), line in lines.items():
        steps = steps_of(cells, name, d)
        kl = [row["kl"] for row in steps]
        change = [math.exp(-row["loss"]) - math.exp(-row["loss_own"]) for row in steps]
        for metric, share in QUANTILES.items():
            assert line[metric] == pytest.approx(at(kl, share))
            assert line[f"{metric}_low"] <= line[metric] <= line[f"{metric}_high"] * (1 + 1e-12)
        assert line["dp_rms"] == pytest.approx(math.sqrt(mean(x * x for x in change)))
        assert line["token_kl.mean"] == pytest.approx(mean(kl))
        assert line["token_same.mean"] == pytest.approx(mean(row["top1_agreement"] for row in steps))
        assert line["token_kl.half"] > 0
        assert not any(one.startswith(("kl.", "loss.")) for one in line), "gates of kl are on means of windows"


def test_gates_of_tails_are_judged(cells):
    lines = {(line["name"], line["d"]): line for line in shown_of(cells).gate_lines if line["table"] == "tails"}
    kl = [row["kl"] for row in steps_of(cells, "window", 6)]
    assert lines["window", 6]["kl_max.mean"] == max(kl) and lines["window", 6]["kl_max.count"] >= 1


def test_a_run_has_a_block_for_each_method(cells):
    text = shown_of(cells).text("llamacpp")
    assert (
        text.count("# ") == 4 and "# window d=3: n=16, prompt 9, 2 windows, 0 tokens\n\nno statistics: window" in text
    )
    assert "# window d=6: n=16, prompt 9, " in text
    assert "no statistics: 12 tokens; llama.cpp writes no statistics of fewer than 100" in text
    many = [
        {
            **cell,
            "window": number,
            "key": f"{number}{cell['key']}",
            "rows": [{**row, "key": f"{number}{cell['key']}"} for row in cell["rows"]],
        }
        for cell in cells
        for number in range(9 * cell["window"], 9 * cell["window"] + 9)
    ]
    steps = steps_of(many, "window", 6)
    expected = block(*([row[name] for row in steps] for name in ("kl", "loss", "loss_own", "top1_agreement")))
    text = shown_of(many).text("llamacpp")
    [part] = [one for one in text.split("\n# ") if one.removeprefix("# ").startswith("window d=6")]
    assert part.split("\n\n", 1)[1].strip() == expected and "18 windows, 108 tokens" in part


def test_a_catalogue_offers_a_format_by_its_writers():
    assert [name for name in ("inject", "error", "bench", "compare") if Catalogue.of(name).writers] == ["inject"]


def test_other_commands_refuse_it(run, tmp_path):
    for command in ("error", "compare a b", "methods", "bench"):
        code, out, err = run(*command.split(), "--format", "llamacpp")
        assert code == 2 and not out and len(err.strip().splitlines()) == 1 and "unknown format 'llamacpp'" in err, (
            command
        )
    code, out, err = run("inject", "--format", "llamacpp", "--columns", "kl")
    assert code == 2 and "llamacpp has every field" in err


def test_a_run_without_steps_has_no_block(run):
    code, out, err = run("report", GOLDEN / "runs" / "inject", "--format", "llamacpp")
    assert code == 2 and "choose --phase decode" in err and not out
    code, out, _ = run("report", GOLDEN / "runs" / "inject-decode", "--format", "llamacpp")
    assert code == 0 and out.startswith("# ")
