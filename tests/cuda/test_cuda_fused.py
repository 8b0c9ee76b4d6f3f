"""Fused products on a GPU are torch's; nothing stands in for one, since Triton compiles for it."""

import pytest
import torch
from fused_cases import compared, wrong

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU itself")


@pytest.mark.parametrize(("dtype", "same", "large"), [(torch.float64, 1e-12, 1e-10), (torch.float32, 1e-4, 5e-2)])
def test_fused_products_are_those_of_torch(monkeypatch, dtype, same, large):
    """Three products in TF32 are within 2⁻²¹, eight times what float32 loses of a score."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install 'attnprobe[triton]')")
    monkeypatch.setenv("ATTNPROBE_KERNELS", "torch")  # put back at the end
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert wrong(compared(dtype, "cuda"), same, large) == {}
