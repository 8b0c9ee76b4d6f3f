"""Windows as the ends of blocks of keys and the beginnings of the next, and the operator of their features."""

import pytest
import torch

from attnprobe.operators import CausalFeatures, Windows
from attnprobe.operators.windowed import BlockRows, window_sums, windowed_features
from attnprobe.rng import generator

N, F = 29, 3


def randn(*shape, label="x"):
    return torch.randn(shape, generator=generator(0, label), dtype=torch.float64)


KEYS = torch.arange(N)
HOLES = KEYS + 2 * (KEYS // 2)  # two positions in four have a key
CASES = [
    Windows(KEYS, 7, KEYS),
    Windows(KEYS, 7, KEYS, sinks=3),
    Windows(KEYS + 4, 9, KEYS),  # four keys ahead
    Windows(torch.tensor([20, 3, 28]), 8, KEYS, sinks=40),
    Windows(KEYS, 1, KEYS),
    Windows(KEYS, N, KEYS),
    Windows(HOLES, 7, HOLES),
    Windows(HOLES, 3, HOLES, sinks=3),
    Windows(HOLES + 5, 11, HOLES),
    Windows(torch.tensor([20, 4, 57]), 8, HOLES, sinks=2),
]
every_case = pytest.mark.parametrize("windows", CASES)


def literal(windows: Windows):
    """Which keys each query sees, (n_q, n_k) bool."""
    key, end = windows.keys, windows.end[:, None]
    near = (key <= end) & (key > end - windows.width)
    return near | ((torch.arange(N) < windows.sinks) & (key <= end))


@every_case
def test_it_is_the_normalised_product_of_the_features_of_a_window(windows):
    log_q, log_k = randn(2, len(windows.end), F, label="q"), 3 * randn(2, N, F, label="k")
    weights = (log_q.exp() @ log_k.exp().mT) * literal(windows)
    expected = weights / weights.sum(-1, keepdim=True)
    operator, log_sums = windowed_features(log_q, log_k, windows)
    x, y = randn(2, N, 4), randn(2, len(windows.end), 4, label="y")
    assert (log_sums - weights.sum(-1).log()).abs().max() < 1e-13
    assert (window_sums(log_q, log_k, windows).logsumexp(-1) - log_sums).abs().max() == 0
    for start, stop in ((0, len(windows.end)), (1, 3)):
        assert (operator.rows(start, stop) - expected[:, start:stop]).abs().max() < 1e-14
    assert (operator @ x - expected @ x).abs().max() < 1e-13
    assert (operator.rmatmul(y) - expected.mT @ y).abs().max() < 1e-13
    one = operator.heads(slice(1, 2))
    assert torch.equal(one.dense(), operator.dense()[1:]) and torch.equal(one @ x[1:], (operator @ x)[1:])
    single = operator.to(torch.float32)
    assert single.dtype == torch.float32 and (single @ x.float() - expected @ x).abs().max() < 1e-5


@pytest.mark.parametrize("far", [300.0, 3000.0])
def test_keys_outside_of_a_window_leave_no_trace(far):
    """However large their features are: a difference of prefix sums would lose every digit."""
    windows = CASES[0]
    log_q, log_k = randn(1, N, F, label="q"), randn(1, N, F, label="k")
    low, _ = windowed_features(log_q, log_k, windows)
    log_k[:, :5] += far
    high, _ = windowed_features(log_q, log_k, windows)
    free = torch.arange(N) >= 5 + windows.width
    assert (high.dense() - low.dense())[:, free].abs().max() < 1e-14 and torch.isfinite(high.dense()).all()


def test_reversed_blocks_are_read_backwards():
    windows = CASES[0]
    features = CausalFeatures(*torch.randn(2, 2 * windows.blocks, windows.width, F, dtype=torch.float64))
    forwards = BlockRows(features, windows.end, windows).dense().unflatten(2, (-1, 1))
    backwards = BlockRows(features, windows.end, windows, back=True).dense()
    for key in range(N):
        turned = key // windows.width * windows.width + windows.width - 1 - key % windows.width
        if turned < N:
            assert torch.equal(backwards[:, :, key], forwards[:, :, turned, 0])
