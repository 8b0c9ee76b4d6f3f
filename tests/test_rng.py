"""The one door to randomness."""

import hashlib
import random

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from twins_estimators import mixed as mixed_twin

from attnprobe.rng import Streams, first_normals, generator, hashed_uniform, mixed, normal_into


def draw(g):
    return torch.rand(4, generator=g, dtype=torch.float64)


def test_the_seed_is_the_first_63_bits_of_sha256_of_the_labels():
    for labels in [(), ("a",), (3, "b"), ("3", "b"), (0, 1, 2)]:
        digest = hashlib.sha256(repr((7, *labels)).encode()).digest()
        expected = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") // 2)
        assert torch.equal(draw(generator(7, *labels)), draw(expected))


def test_draws_are_the_same_on_every_machine_and_version():
    """Recorded numbers: a change here changes every result that was ever published with a seed."""
    values = torch.randint(10**6, (3,), generator=Streams(0, "skyformer").head(3, "keys")).tolist()
    assert values == [572726, 19605, 381058]


def test_distinct_labels_give_distinct_streams():
    streams = Streams(0, "skyformer", 1, 2)
    generators = [
        streams.head(0),
        streams.head(1),
        streams.head(0, "keys"),
        streams.head(0, "queries"),
        streams.shared(),
        streams.shared("keys"),
        Streams(1, "skyformer", 1, 2).head(0),
        Streams(0, "other", 1, 2).head(0),
        Streams(0, "skyformer", 2, 2).head(0),
        Streams(0, "skyformer", 1, 3).head(0),
        Streams(0, "skyformer", "1", 2).head(0),
        Streams(0, "skyformer", 2, 1).head(0),
        generator(0, "skyformer", 1, 2),
    ]
    assert len({tuple(draw(g).tolist()) for g in generators}) == len(generators)


def test_labels_do_not_run_together():
    assert not torch.equal(draw(generator(0, "ab", "c")), draw(generator(0, "a", "bc")))
    assert not torch.equal(draw(generator(1, 23)), draw(generator(12, 3)))


def test_a_stream_starts_anew_at_every_call_and_is_on_the_cpu():
    streams = Streams(5, "m")
    assert torch.equal(draw(streams.head(2, "a")), draw(streams.head(2, "a")))
    assert torch.equal(draw(streams.shared("a")), draw(streams.shared("a")))
    assert streams.head(0).device.type == "cpu"


@pytest.mark.parametrize("number", [np.int64(3), torch.tensor(3), np.uint8(3)], ids=str)
def test_a_head_is_known_by_its_number_whatever_type_holds_it(number):
    assert torch.equal(draw(Streams(0, "m").head(number)), draw(Streams(0, "m").head(3)))


@pytest.mark.parametrize("number", [np.int64(3), torch.tensor(3)], ids=str)
def test_a_layer_and_a_window_are_known_by_their_number_whatever_type_holds_it(number):
    assert torch.equal(draw(Streams(0, "m", layer=number, window=number).head(0)), draw(Streams(0, "m", 3, 3).head(0)))


def test_negative_and_large_seeds_are_taken():
    assert len({float(draw(generator(seed))[0]) for seed in (-1, 0, 1, 2**63, 2**80)}) == 5


def test_global_state_stays():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    draw(Streams(0, "m").head(0))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert (before[2] == np.random.get_state()[1]).all()


def test_streams_of_neighbouring_heads_look_independent():
    """Correlation of 2000 uniform pairs: standard deviation 1/√2000 = 0.022, five of them."""
    rows = torch.stack([torch.rand(2000, generator=Streams(0, "m").head(i)) for i in range(6)])
    off = torch.corrcoef(rows) - torch.eye(6)
    assert off.abs().max() < 5 / 2000**0.5


@pytest.mark.parametrize("shape", [(1,), (3, 5), (16,), (17,), (31,), (4, 8), (33, 7), (2, 2**15), (3, 11_003)])
def test_normal_numbers_are_those_of_torch(shape):
    ours, of_torch = generator(0, "normal"), generator(0, "normal")
    drawn = normal_into(torch.empty(shape, dtype=torch.float64), ours)
    expected = torch.randn(shape, generator=of_torch, dtype=torch.float64)
    assert torch.allclose(drawn, expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(torch.rand(4, generator=ours), torch.rand(4, generator=of_torch))  # both stand at one place


def test_mixed_is_the_output_of_splitmix64():
    """The first outputs of its reference implementation for the seeds 0 and 1234567, and a Python twin."""
    assert mixed(torch.tensor([0])).tolist() == [0xE220A8397B1DCDAF - 2**64]
    assert mixed(torch.tensor([1234567])).tolist() == [6457827717110365317]
    values = [0, 1, -1, 2**62, -(2**63), 123456789012345]
    assert [x % 2**64 for x in mixed(torch.tensor(values)).tolist()] == [mixed_twin(x % 2**64) for x in values]


def test_hashed_numbers_are_uniform_and_independent_of_neighbouring_keys_and_counters():
    x = hashed_uniform(torch.arange(400), 500)
    assert x.shape == (400, 500) and x.min() >= 0 and x.max() < 1
    assert kstest(x.flatten().numpy(), "uniform").pvalue > 1e-4
    centred = (x - 0.5) * 12**0.5
    for a, b in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1]), (centred[1:, 1:], centred[:-1, :-1])):
        assert abs(float((a * b).mean())) * a.numel() ** 0.5 < 5
    assert len(x.unique()) == x.numel()


def test_hashed_numbers_do_not_depend_on_how_many_there_are():
    keys = torch.tensor([5, -7])
    assert torch.equal(hashed_uniform(keys, 9)[:, :4], hashed_uniform(keys, 4))
    assert torch.equal(hashed_uniform(keys[1:], 9), hashed_uniform(keys, 9)[1:])


def test_keys_that_differ_only_above_the_bits_that_torch_keeps_have_other_numbers():
    """The seed of torch's generator has 32 bits: these two are one stream there."""
    low, high = 1, 1 + 2**32
    assert torch.equal(draw(torch.Generator().manual_seed(low)), draw(torch.Generator().manual_seed(high)))
    assert not torch.equal(*hashed_uniform(torch.tensor([low, high]), 4))
    streams = Streams(0, "vattention")
    assert len({streams.key(0, "tail"), streams.key(1, "tail"), streams.key(0, "base"), streams.part("x").key(0)}) == 4


@pytest.mark.parametrize("shape", [(5, 3, 16), (5, 3, 7), (3, 1, 5), (2, 1, 3), (7, 5, 3), (256, 2, 1)])
def test_the_first_normal_numbers_are_those_of_all(shape):
    every = torch.randn(shape, generator=generator(0, "first"), dtype=torch.float64)
    for some in range(1, shape[0] + 1):
        assert torch.equal(first_normals(generator(0, "first"), some, *shape), every[:some])
