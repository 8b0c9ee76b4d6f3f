"""What the command measures is what the library measures, for each method with its own options."""

import pytest
import torch
from golden.small_runs import INPUTS

from attnprobe import QKV, open_run, rounding_errors
from attnprobe.inputs import load_qkv
from attnprobe.measure.rounding import RoundingRequest, measure_rounding


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
