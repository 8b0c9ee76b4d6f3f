"""Scores far beyond what exp can hold: every row comes out finite or is counted, whatever the option and the dtype."""

from dataclasses import replace

import pytest
import torch
from every_setting import DEFAULTS, THINNED, run
from inputs import eps, make, reaching
from thinned import others_slow

from attnprobe.methods import METHODS, approximate, get
from attnprobe.qkv import QKV

FAMILIES_WITH_INVERSES = ("Nyström",)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# bfloat16 has the exponents of float32, and float64 more
every_dtype = pytest.mark.parametrize(
    "dtype",
    others_slow(DTYPES, lambda dtype: dtype[0] in (torch.float32, torch.float16)),
    ids=lambda dtype: str(dtype)[6:],
)


def lost(approx):
    return (~torch.isfinite(approx.output)).any(-1).sum(-1)


@every_dtype
@pytest.mark.parametrize("name, target, options", THINNED)
def test_a_row_is_finite_or_counted(name, target, options, dtype):
    for top in (200.0, 1e3, 1e5, 1e8):  # 65504 is the largest number of float16
        approx = run(name, target, reaching(top, n=24, dtype=dtype), options)
        assert (lost(approx) <= approx.diagnostics["bad_rows"]).all()
        assert not (lost(approx).any() and top < 1e4 and get(name).family not in FAMILIES_WITH_INVERSES)


@every_dtype
@pytest.mark.parametrize("name, target, options", DEFAULTS)
def test_normalised_rows_still_sum_to_one(name, target, options, dtype):
    """To a few roundings of the dtype, not to the rounding of scores of 200, which is 1 in bfloat16."""
    if not get(name).claims("row_sums_one", target) or get(name).family in FAMILIES_WITH_INVERSES:
        pytest.skip("makes no such claim, or one that depends on its inverse")
    for top in (200.0, 1e4):
        dense = run(name, target, reaching(top, n=24, dtype=dtype), options).operator.dense()
        assert ((dense.double().sum(-1) - 1).abs() <= 8 * eps(dtype)).all()


@pytest.mark.parametrize("renormalize", [True, False])
def test_the_largest_entries_keep_their_ratio_to_the_whole_in_half_precision(renormalize):
    """One key far above the rest has all of the weight, whichever sum is divided by."""
    qkv = make(h=1, n=16, p=4, dtype=torch.bfloat16)
    k = torch.zeros_like(qkv.k)
    k[:, 3] = 20 * torch.ones(4)
    qkv = QKV(torch.full_like(qkv.q, 5.0), k, qkv.v)  # scores of 200 and 0
    dense = approximate("topk", qkv, 2, renormalize=renormalize).operator.dense()
    assert torch.equal(dense[0, :, 3], torch.ones(16, dtype=torch.bfloat16))


def test_rows_lost_to_overflow_are_added_to_what_the_method_counts(monkeypatch):
    """A method that counts none, or fewer, and one that counts more."""
    qkv = make(h=2, n=6)
    broken = qkv.v.new_zeros(2, 6, 5)
    broken[0, 1:4] = float("nan")
    broken[1, 2, 0] = float("inf")
    function = get("vmean").function

    def method(actual):
        def replaced(*args, **kwargs):
            result = function(*args, **kwargs)
            diagnostics = {**result.diagnostics, **({} if actual is None else {"bad_rows": torch.tensor(actual)})}
            return replace(result, output=broken, diagnostics=diagnostics)

        return replace(get("vmean"), function=replaced)

    for actual, expected in ((None, [3, 1]), ([0, 5], [3, 5]), ([3, 0], [3, 1])):
        monkeypatch.setitem(METHODS, "vmean", method(actual))
        assert approximate("vmean", qkv).diagnostics["bad_rows"].tolist() == expected


def test_a_method_without_a_fault_counts_no_bad_row():
    for name in ("vmean", "window", "kernelized", "topk"):
        assert approximate(name, make(), 8).diagnostics["bad_rows"].tolist() == [0, 0]
