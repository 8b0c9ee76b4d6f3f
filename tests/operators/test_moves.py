"""An operator moves to another device with all that it holds."""

import pytest
import torch
from every_setting import DEFAULTS
from every_setting import run as approximated
from inputs import make
from operator_cases import cases
from pretend_device import AWAY, Pretended, pretending

from attnprobe.methods.user.recovered import Recovered
from attnprobe.operators import CausalFeatures, Dense, Operator, Stacked

CPU = torch.device("cpu")
F64 = torch.float64


class Kept(Operator):
    """What a user may write: tensors in a dict and a list, an operator in a tuple, a function, a device."""

    def __init__(self, matrix):
        self.held, self.more, self.parts = {"matrix": matrix}, [matrix.mT], (Dense(matrix),)
        self.shape, self.dtype, self.device, self.name = tuple(matrix.shape), matrix.dtype, matrix.device, "kept"

    def _apply(self, x):
        return self.held["matrix"] @ x

    def _apply_transpose(self, y):
        return self.more[0] @ y

    def _rows(self, start, stop):
        return self.parts[0]._rows(start, stop)


def everything():
    yield from cases()
    dense = torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(3), dtype=F64)
    yield "a user's", Kept(dense), dense
    yield "stacked", Stacked([Dense(dense), Kept(dense)]), torch.cat([dense, dense])
    qkv = make(n=5, n_k=7, p_v=3)
    yield "recovered", Recovered(lambda v: dense @ v, qkv, "f"), dense
    causal = CausalFeatures(*torch.randn(2, 2, 70, 4, generator=torch.Generator().manual_seed(4), dtype=F64))
    yield "causal features", causal, causal.dense()


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Operator):
        yield from tensors_of(list(vars(value).values()))
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_of(inner)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def near(away, here):
    return isinstance(away, Pretended) and away.shape == here.shape and bool((away.held - here).abs().max() <= 1e-10)


@pytest.mark.parametrize("operator, dense", [case[1:] for case in everything()], ids=[case[0] for case in everything()])
def test_an_operator_moves_with_all_that_it_holds(operator, dense):
    before = [x.clone() for x in tensors_of(operator)]
    with pretending():
        there = operator.on(AWAY)
        assert there.device == AWAY and there.shape == operator.shape and there.dtype == operator.dtype
        assert all(isinstance(x, Pretended) for x in tensors_of(there))
        h, n_q, n_k = dense.shape
        x, y = torch.linspace(-1, 1, h * n_k * 2, dtype=F64), torch.linspace(-1, 1, h * n_q * 2, dtype=F64)
        x, y = x.reshape(h, n_k, 2), y.reshape(h, n_q, 2)
        assert near(there.dense(), dense) and near(there.rows(1, 4), dense[:, 1:4])
        assert near(there @ x.to(AWAY), dense @ x) and near(there.rmatmul(y.to(AWAY)), dense.mT @ y)
    assert operator.device == CPU and not any(isinstance(x, Pretended) for x in tensors_of(operator))
    for mine, old in zip(tensors_of(operator), before, strict=False):
        assert torch.equal(mine.nan_to_num(), old.nan_to_num())
    here = operator.on(CPU)
    assert torch.equal(here.dense(), operator.dense())


def test_what_is_there_already_is_shared_and_strides_are_those_of_a_copy():
    wide = torch.rand(2, 30, 8)
    for matrix in (wide, wide.mT, wide[1:], wide[1:].mT):  # dense in some order of the axes
        assert Dense(matrix).on(CPU).matrix.data_ptr() == matrix.data_ptr()
    for matrix in (wide, wide.mT, wide[..., :3], wide[..., :3].mT, wide[:, ::2], wide[:1].expand(3, -1, -1)):
        with pretending():
            there = Dense(matrix).on(AWAY).matrix
        assert Dense(matrix).on(CPU).matrix.stride() == there.held.stride()


def test_a_tensor_that_an_operator_holds_twice_is_moved_once():
    causal = CausalFeatures(*torch.randn(2, 1, 70, 4, generator=torch.Generator().manual_seed(4), dtype=F64))
    with pretending():
        there = causal.on(AWAY)
    assert there.triangles is there.parts[0] and there.carry is there.parts[3]


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_the_operator_of_every_method_moves(name, target):
    qkv = make(n=24)
    operator = approximated(name, target, qkv, {}).operator
    if operator is None:
        pytest.skip("it has no operator")
    with pretending():
        assert near(operator.heads(slice(1, 2)).on(AWAY).rows(3, 9), operator.rows(3, 9)[1:])
