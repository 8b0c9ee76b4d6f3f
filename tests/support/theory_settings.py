"""What theorems are evaluated at in tests: registered methods run on the Q/K/V itself."""

import torch

from attnprobe.methods import approximate
from attnprobe.rng import Streams
from attnprobe.run.plan import parse_methods
from attnprobe.theorems import THEOREMS, Finding, Setting


def setting_for(
    qkv, budgets=(6,), *, epsilons=(0.5,), delta=0.1, seeds=range(20), methods=(), target="softmax"
) -> Setting:
    def run(method, d, seed, row=None):
        one = parse_methods([method], target)[0]
        some = qkv if row is None else qkv.select([qkv.heads[row]])
        return approximate(one.name, some, d, seed=seed, target=target, **one.options)

    return Setting(
        tuple(budgets),
        tuple(epsilons),
        delta,
        seeds,
        lambda label, seed: Streams(seed, label, qkv.layer, qkv.window),
        run,
        tuple(methods),
        target=target,
    )


def check(name: str, qkv, *args, **more) -> list[Finding]:
    """All findings of a theorem; every number of a head stands on the CPU in float64."""
    actual = list(THEOREMS[name].check(qkv, setting_for(qkv, *args, **more)))
    for one in actual:
        for x in (one.bound, one.measured, *(e for e in (one.lower, one.upper) if e is not None)):
            assert x.device.type == "cpu" and x.shape == (qkv.h,) and x.dtype is torch.float64
        assert one.theorem == name and all(len(x) == qkv.h for x in one.details.values())
    assert len({(one.d, *sorted(map(str, one.at.items()))) for one in actual}) == len(actual)  # told apart
    return actual
