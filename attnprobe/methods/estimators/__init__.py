"""Unbiased estimators of numerators and normalisers, from keys that are sampled with known probabilities."""

from . import hyper, kdeformer, magicpig, vattention  # noqa: F401  (their methods register)
