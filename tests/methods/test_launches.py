"""On a device that is not the CPU a method asks for as many operations for two heads as for five.

Draws come from the CPU, one stream for each head, and are not counted.
"""

from collections import Counter
from functools import cache

import pytest
import torch
from every_setting import DEFAULTS, THINNED, run
from inputs import make
from pretend_device import AWAY, Pretended, pretending, tensors_of

from attnprobe.methods import METHODS, get
from attnprobe.qkv import QKV

DENSE = "a dense yardstick: head by head, because each needs n x n numbers"
EXCEPTIONS = {
    "prototype": DENSE,
    "spectral-shift": DENSE,
    "svd": DENSE,
    "magicpig": DENSE,
    "vattention": DENSE,
    "skyformer-rls": "each head draws another number of rows at each level",
}
FORMS = [
    pytest.param(*case.values, causal, id=f"{case.id}-{'causal' if causal else 'full'}", marks=case.marks)
    for case in THINNED
    for causal in (False, True)
    if not causal or (get(case.values[0]).is_causal and not case.values[2])
]


class Counting(pretending):
    """Counts the operations that have a tensor on the pretended device."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        values = (*args, *(kwargs or {}).values(), out)
        if any(isinstance(x, Pretended) for x in tensors_of(values)):
            self.calls[str(func)] += 1
        return out


def exception(name, options, causal):
    """The reason for which a method may loop over heads, or None."""
    if options.get("sampler") == "rls":
        return EXCEPTIONS["skyformer-rls"]
    return EXCEPTIONS.get(name)


def calls(name, target, options, h, causal):
    return called(name, target, tuple(options.items()), h, causal)


@cache
def called(name, target, options, h, causal):
    qkv = make(h=h, n=24, dtype=torch.float32)
    with Counting() as counting:
        away = QKV(qkv.q.to(AWAY), qkv.k.to(AWAY), qkv.v.to(AWAY), causal=causal)
        counting.calls.clear()
        run(name, target, away, dict(options))
    return counting.calls


@pytest.mark.parametrize("name, target, options, causal", FORMS)
def test_two_heads_and_five_are_as_many_operations(name, target, options, causal):
    if options.get("allocation") == "ada":
        pytest.skip("its index is as wide as the largest set, and other heads have another one")
    few, many = (calls(name, target, options, h, causal) for h in (2, 5))
    grown = {operation: (few[operation], count) for operation, count in many.items() if count != few[operation]}
    assert bool(grown) == (exception(name, options, causal) is not None), grown


CHECKED = "its operator looks at its indices, or a copy of Q, K, V is checked to be finite"
WAITING = {
    "informer": "few queries, as many as float32 cannot rule out, are measured in float64",
    **dict.fromkeys(("amm", "bigbird", "linformer-jlt", "longformer", "lsh-qk", "prototype", "reformer"), CHECKED),
    **dict.fromkeys(("magicpig", "vattention"), "the number of keys of a row is read to make its slots"),
    **dict.fromkeys(("skeinformer", "spectral-shift", "svd", "thinformer", "topk", "tri-shape", "window"), CHECKED),
    **dict.fromkeys(("hyper", "kdeformer"), CHECKED),
    **dict.fromkeys((name for name, entry in METHODS.items() if entry.family in ("selection", "quantised")), CHECKED),
}


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_a_method_waits_for_no_number_of_the_device(name, target):
    """Python reads no number of the device, and no shape depends on one."""
    actual = calls(name, target, {}, 2, False)
    waits = actual["aten._local_scalar_dense.default"] + actual["aten.nonzero.default"]
    assert (waits > 0) == (name in WAITING), waits
