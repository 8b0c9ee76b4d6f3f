"""What a run says of the installation that made it."""

import importlib.util

import pytest

from attnprobe import UsageError
from attnprobe.run.provenance import versions


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_versions_name_fused_kernels_where_they_are_chosen(monkeypatch):
    monkeypatch.delenv("ATTNPROBE_KERNELS", raising=False)
    assert "kernels" not in versions()
    monkeypatch.setenv("ATTNPROBE_KERNELS", "triton")
    assert versions()["kernels"].startswith("triton ")


def test_a_run_with_an_unknown_name_of_kernels_is_refused(monkeypatch):
    monkeypatch.setenv("ATTNPROBE_KERNELS", "fast")
    with pytest.raises(UsageError, match="ATTNPROBE_KERNELS 'fast'; choose from torch, triton"):
        versions()
