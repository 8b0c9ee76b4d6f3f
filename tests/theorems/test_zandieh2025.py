"""TurboQuant's theorems hold on keys of any kind, and are violated by keys that are quantised otherwise."""

import pytest
import torch
from inputs import make
from thinned import others_slow

from attnprobe import QKV
from attnprobe.measure.theory.setting import findings
from attnprobe.methods.quantised import turboquant as module
from attnprobe.operators.linalg.lloyd_max import distortion
from attnprobe.theorems.zandieh2025 import BITS, rate

SEEDS = range(40)


def layer(kind) -> QKV:
    qkv = make(n=24, h=2, p=64, p_v=8, dtype=torch.float32)
    k = qkv.k.clone()
    if kind == "outlying channels":
        k[..., 3] *= 100
    elif kind == "equal keys":
        k = k[:, :1].expand_as(k).clone()
    return QKV(qkv.q, k, qkv.v, causal=kind == "causal")


@pytest.mark.parametrize(
    "kind",
    others_slow(["normal", "outlying channels", "equal keys", "causal"], lambda kind: kind[0] == "outlying channels"),
)
def test_no_statement_is_violated(kind):
    """But for chance: of 8 intervals of the bias at 95 %, three miss 0 with a probability of 0.6 %."""
    found = findings(layer(kind), "turboquant-mse,turboquant-prod,lloyd-max", seeds=SEEDS)
    beyond = [one.at["of"] for one in found for verdict in one.verdicts() if verdict == "violated"]
    assert set(beyond) <= {"bias"} and len(beyond) < 3
    for one in found:
        if one.theorem == "lloyd-max":
            assert one.verdicts() == ["holds"] * 2 and float(one.measured[0]) == distortion(one.at["bits"])
        if one.theorem == "turboquant-mse":
            assert (one.details["lloyd_max"] - one.measured).abs().max() < 0.1 * distortion(one.at["bits"])
            assert float(one.bound[0]) == pytest.approx(rate(one.at["bits"]))
        if one.at["of"] == "bias":
            assert (one.details["slope"].abs() < 0.1).all()
            assert (one.details["mse"] + distortion(one.at["bits"])).abs().max() < 0.1


def test_a_statement_for_each_number_of_bits():
    found = findings(layer("normal"), "turboquant-prod", seeds=range(2))
    assert [(one.at["bits"], one.at["of"]) for one in found] == [(b, of) for b in BITS for of in ("bias", "variance")]
    assert [one.verdicts() for one in findings(layer("normal"), "turboquant-mse", seeds=range(1))] == [
        ["undecided"] * 2
    ] * len(BITS)


def test_keys_without_a_rotation_violate_the_rate(monkeypatch):
    """The control: channels of other sizes are not normal numbers of one size."""
    monkeypatch.setattr(module, "rotated", lambda x, matrix, back=False: x.double())
    found = findings(layer("outlying channels"), "turboquant-mse", seeds=range(3))
    assert {verdict for one in found for verdict in one.verdicts()} == {"violated"}


def test_signs_without_the_factor_of_the_residual_are_biased(monkeypatch):
    """The control: the signs are worth √(2/π) of what they should be."""
    monkeypatch.setattr(module, "pi", 2.0)
    found = findings(layer("normal"), "turboquant-prod", seeds=range(20))
    assert "violated" in {verdict for one in found if one.at["of"] == "bias" for verdict in one.verdicts()}


def test_a_key_of_zeros_has_no_share():
    qkv = layer("normal")
    k = qkv.k.clone()
    k[:, 3] = 0
    for one in findings(qkv.replace(k=k), "turboquant-mse,turboquant-prod", seeds=range(8)):
        assert torch.isfinite(one.measured).all()
