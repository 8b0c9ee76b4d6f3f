"""Methods that select the keys of each query, or of all queries, and attend to them exactly."""

from . import (  # noqa: F401  (each registers itself)
    block_topk,
    dsa_oracle,
    expected,
    flexprefill,
    h2o,
    keydiff,
    knorm,
    moba,
    nsa,
    quest,
    random,
    snapkv,
    topp,
    tova,
    vertical_slash,
    xattention,
)
