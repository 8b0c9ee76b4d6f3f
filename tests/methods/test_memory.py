"""No method, and no product of its operator, makes a tensor of n x n numbers."""

import pytest
from every_setting import THINNED, run
from inputs import make
from largest import Largest

from attnprobe.methods import METHODS, get

N = 1200
ROWS = 64  # of an exact matrix, which some methods stream
WIDEST = {  # times as many numbers
    "softmax": 2,  # 128 rows of an exact matrix that are multiplied in place
    "kernelized": 2,
    **{name: 2 for name, entry in METHODS.items() if entry.format is not None},
    "linformer-jlt": 2,
    "magicpig": 4,  # slots: rows are as wide as the one with the most keys
    "nsa": 7,  # n²/3 weights of means of three keys
    "flexprefill": 3,  # pairs of blocks of three keys
    "xattention": 5,  # pairs of blocks of two keys
}


@pytest.mark.parametrize("name, target, options", THINNED)
def test_nothing_of_size_n_by_n_is_made(name, target, options):
    if get(name).max_n is not None:
        pytest.skip(f"{name} is a dense yardstick, for n up to {get(name).max_n}")
    qkv = make(h=1, n=N, p=4, p_v=3)
    with Largest() as largest:
        operator = run(name, target, qkv, options).operator
        operator @ qkv.v
        operator.rmatmul(qkv.q)
        operator.row_sums()
    assert largest.numel <= WIDEST.get(name, 1) * ROWS * N


def test_a_dense_matrix_is_noticed():
    """The control."""
    with Largest() as largest:
        run("softmax", "softmax", make(h=1, n=100), {}).operator.dense()
    assert largest.numel == 100 * 100
