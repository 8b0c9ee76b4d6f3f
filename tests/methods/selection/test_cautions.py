"""A method whose budget means little with its options says so once, before a run."""

import pytest
import torch

from attnprobe import QKV, approximate
from attnprobe.methods import METHODS

CASES = [
    ("moba", {}, 512, True),
    ("moba", {}, 513, False),
    ("moba", {"block": 8}, 16, False),
    ("vertical-slash", {}, 128, True),
    ("vertical-slash", {}, 202, False),
    ("vertical-slash", {"first": 4, "near": 8}, 20, False),
    ("quest", {}, 2, False),
]


@pytest.mark.parametrize(("name", "options", "d", "warns"), CASES)
def test_a_method_warns_where_its_budget_means_little(name, options, d, warns):
    assert (METHODS[name].warning(d, options) is not None) is warns


def test_mobas_rows_are_the_same_where_it_warns_and_others_beyond():
    tensors = torch.randn(3, 1, 64, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outputs = {d: approximate("moba", QKV(*tensors, causal=True), d, block=8).output for d in (1, 8, 9)}
    assert torch.equal(outputs[1], outputs[8]) and not torch.equal(outputs[1], outputs[9])
    assert METHODS["moba"].warning(8, {"block": 8}) and not METHODS["moba"].warning(9, {"block": 8})


def test_a_run_says_it_once(run, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "qkv.safetensors"
    save_file(dict(zip("qkv", torch.randn(3, 1, 32, 8), strict=True)), path, metadata={"causal": "true"})
    words = ("--method", "moba,quest", "--d", "4,8", "--scale-inputs", "1,2", "--no-matrix")
    code, _, err = run("error", "--qkv", path, *words)
    assert code == 0 and err.count("moba: every d up to block=512 gives the same rows") == 1
    assert "quest:" not in err
