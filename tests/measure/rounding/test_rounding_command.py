"""What the command measures is what the library measures, for each method with its own options."""

import pytest
import torch
from golden.small_runs import INPUTS

from attnprobe import QKV, open_run, rounding_errors
from attnprobe.inputs import load_qkv
from attnprobe.judge.gates import check
from attnprobe.judge.parse import parse_gate
from attnprobe.measure.rounding import EXPERIMENT, RoundingRequest, measure_rounding
from attnprobe.show.page.parts import views


def test_rows_are_the_numbers_of_the_library(tmp_path):
    qkv_file = INPUTS / "qkv.safetensors"
    methods = ("nystromformer", "nystromformer:inverse=pinv,rtol=0.1", "nystromformer:n_iter=2")
    measure_rounding(
        RoundingRequest(qkv=str(qkv_file), methods=methods, d=(4,), formats=("bf16", "fp16"), out=str(tmp_path / "r"))
    )
    frame = open_run(tmp_path / "r").frame(kind="head")
    qkv: QKV = load_qkv(qkv=str(qkv_file))
    for options in ({}, {"inverse": "pinv", "rtol": 0.1}, {"n_iter": 2}):
        text = ",".join(f"{name}={value}" for name, value in options.items())
        for format in ("bf16", "fp16"):
            rows = frame[(frame["options"].fillna("") == text) & (frame["format"] == format)]
            errors = rounding_errors(qkv, "nystromformer", 4, format, **options)
            assert rows["rounding_error"].tolist() == pytest.approx(errors.rounding.tolist(), rel=1e-12)
            assert torch.tensor(rows["estimate_ratio"].tolist()).log2().abs().max() < 2


def test_one_run_has_several_models_of_arithmetic_of_a_format(tmp_path):
    """Each is a line and a gate of its own, and equals the library's numbers."""
    qkv_file = str(INPUTS / "qkv.safetensors")
    formats = ("bf16", "bf16:tensor-cores", "bf16:autocast")
    request = RoundingRequest(qkv=qkv_file, methods=("performer",), d=(4,), formats=formats, out=str(tmp_path / "r"))
    records = measure_rounding(request).outcome.records
    assert [cell["format"] for cell in records] == [*formats]
    frame = open_run(tmp_path / "r").frame(kind="head")
    for format in formats:
        errors = rounding_errors(load_qkv(qkv=qkv_file), "performer", 4, format)
        assert frame[frame["format"] == format]["rounding_error"].tolist() == pytest.approx(errors.rounding.tolist())
    [shown] = views(open_run(tmp_path / "r"))
    assert [line["format"] for line in shown.rows if line["table"] == "rounding"] == [*formats]
    assert "\nbf16:tensor-cores: products round their inputs" in shown.text("md")
    [first, second, third] = check(shown.gate_lines, [parse_gate("rounding_error=1", EXPERIMENT.gated)])
    assert [result.where.split()[0] for result in (first, second, third)] == [*formats]
