"""Every method with its defaults, and with every choice of every option by itself."""

import pytest
from thinned import others_slow

from attnprobe.errors import UsageError
from attnprobe.methods import METHODS, approximate, get

BUDGET = 10


def settings(name):
    options = get(name).options.values()
    chosen = [{option.name: choice} for option in options for choice in option.choices or ()]
    return [{}, *chosen, *({option.name: not option.default} for option in options if bool in option.kinds)]


CASES = [
    pytest.param(name, target, options, id=f"{name}-{target}-{'-'.join(f'{k}={v}' for k, v in options.items())}")
    for name, entry in METHODS.items()
    if entry.kind != "user"
    for target in entry.targets
    for options in settings(name)
]
DEFAULTS = [case for case in CASES if not case.values[2]]
#: every setting; the ordinary suite runs the defaults
THINNED = others_slow(CASES, lambda values: not values[2])


def run(name, target, qkv, options, d=BUDGET):
    """The approximation; a setting that the method refuses skips the test."""
    try:
        options = {**get(name).small, **options}
        return approximate(name, qkv, None if get(name).budget is None else d, target=target, **options)
    except UsageError as refusal:
        pytest.skip(str(refusal))
