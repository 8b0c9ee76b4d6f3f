"""What a method returns: its matrix, its rows that are not finite, and the hash of its draws."""

import pytest
import torch
from inputs import make

from attnprobe import approximate, approximation
from attnprobe.approximation import Approximation, Sampling
from attnprobe.errors import Unsupported
from attnprobe.operators import Dense


def test_the_output_is_that_of_the_operator_in_the_dtype_of_the_values():
    qkv = make(n=6).to(dtype=torch.float32)
    weights = torch.rand(qkv.h, 6, 6, dtype=torch.float64)
    approx = Approximation.of(Dense(weights), qkv)
    assert approx.output.dtype == torch.float32 and approx.matrix() is approx.operator
    torch.testing.assert_close(approx.output, (weights @ qkv.v.double()).float())


def test_a_few_heads_at_a_time_have_the_output_of_all_together(monkeypatch):
    qkv = make(h=5, n=6).to(dtype=torch.float32)
    operator = Dense(torch.rand(5, 6, 6, dtype=torch.float64))
    expected = Approximation.of(operator, qkv).output
    for heads in (1, 2, 3):
        monkeypatch.setattr(approximation, "CACHED_ENTRIES", heads * 6 * qkv.p_v)
        with torch.profiler.profile() as profiled:
            output = Approximation.of(operator, qkv).output
        products = [event for event in profiled.events() if event.name == "aten::bmm"]
        assert len(products) == -(-5 // heads)
        torch.testing.assert_close(output, expected)


def test_an_output_without_an_operator_has_no_matrix():
    with pytest.raises(Unsupported, match="the method gives an output and no matrix"):
        Approximation(None, torch.zeros(1, 2, 3)).matrix()


def test_rows_that_are_not_finite_are_counted_by_head():
    output = torch.ones(3, 5, 2)
    assert Approximation(None, output).lost_rows().tolist() == [0, 0, 0]
    output[0, 1, 0], output[0, 1, 1], output[2, 4, 1] = float("nan"), float("inf"), float("-inf")
    assert Approximation(None, output).lost_rows().tolist() == [1, 0, 1]


def test_finite_rows_whose_sum_overflows_are_not_lost():
    assert Approximation(None, torch.full((1, 2, 4), 3e38)).lost_rows().tolist() == [0]


def test_the_hash_of_draws_is_that_of_their_names_values_and_shapes():
    def hashed(**draws):
        return Approximation(None, torch.zeros(1, 1, 1), draws=draws).draws_hash()

    index = torch.arange(6).reshape(2, 3)
    assert hashed() is None and hashed(rows=index) == hashed(rows=index.clone())
    others = [{"columns": index}, {"rows": index + 1}, {"rows": index.reshape(3, 2)}, {"rows": index.int()}]
    assert len({hashed(rows=index), *(hashed(**other) for other in others)}) == 5


def test_the_same_seed_has_the_same_hash_and_another_seed_has_another():
    first, again, other = (approximate("linformer", make(), 4, seed=seed).draws_hash() for seed in (0, 0, 1))
    assert first == again != other


def test_it_is_shown_with_its_draws_and_numbers():
    shown = repr(approximate("skyformer", make(n=8), d=4))
    assert shown.startswith("Approximation(output=(2, 8, ") and ", draws=" in shown and "diagnostics={'" in shown
    assert list(Sampling(ess=torch.ones(1, 1)).known()) == ["ess"]
