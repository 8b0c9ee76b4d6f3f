"""Audit of quantised keys: inner products of `prod` are unbiased, those of `mse` are too small."""

import pytest
import torch
from inputs import make
from safetensors.torch import save_file

from attnprobe import approximate
from attnprobe.measure.audit import AuditRequest, measure_guarantees
from attnprobe.metrics.guarantees import GuaranteeReference
from attnprobe.operators.linalg.lloyd_max import distortion


def test_the_bias_of_scores_is_the_slope_of_a_regression():
    qkv = make(n=14, h=2, p=8)
    approx = approximate("turboquant", qkv, bits=2)
    s, other = (qkv.q @ k.mT for k in (qkv.k, approx.stored[0]))
    expected = (s * other).sum((1, 2)) / s.square().sum((1, 2)) - 1
    assert torch.allclose(GuaranteeReference(qkv).score_bias(approx), expected)
    assert GuaranteeReference(qkv).score_bias(approximate("performer", qkv, 4)) is None


def test_prod_is_unbiased_and_mse_is_not(tmp_path):
    file = tmp_path / "qkv.safetensors"
    qkv = make(n=24, h=2, p=64, p_v=8, dtype=torch.float32)
    save_file({"q": qkv.q, "k": qkv.k, "v": qkv.v}, file)
    methods = ("turboquant:bits=2,of=k", "turboquant:bits=2,variant=prod,of=k")
    request = AuditRequest(methods=methods, qkv=str(file), repeats=60, matrix=False, out=str(tmp_path / "run"))
    found = {}
    for cell in measure_guarantees(request).outcome.records:
        heads = [row for row in cell["rows"] if row["kind"] == "head"]
        found["prod" if "variant=prod" in str(cell["options"]) else "mse"] = heads
    for head in found["prod"]:
        assert abs(head["score_bias_z"]) < 4 and abs(head["score_bias"]) < 0.1
    for head in found["mse"]:
        assert head["score_bias"] == pytest.approx(-distortion(2), abs=0.03) and head["score_bias_z"] < -20
