"""Exponentials without subnormal numbers. A CPU multiplies subnormal numbers up to a hundred times slower.

A float below ``tiny`` (1.2e-38 in float32, 2.2e-308 in float64) is subnormal. A sharp head has many such weights. They
become exact zeros before they reach a product:

- an exponential below ``tiny`` in `exp_`,
- a weight of a softmax over n keys whose exponential is below ``n · tiny`` in `softmax`: at most ``n · tiny`` itself.

So a matrix of n_q x n_k weights changes by at most ``n_k · tiny · sqrt(n_q n_k)`` in the spectral and the Frobenius
norm. For n = 4096 in float32 this is 2e-31, and a measured norm is certain to 1e-7 of ‖B‖₂ at best. Other weights do
not change at all. Half precision keeps its subnormal numbers, which are not small. GPUs keep them too, because they
multiply them at full speed. No flush-to-zero mode is used or set.

An exponential of -∞ costs 3 to 5 times as much as another one, and one with a subnormal result 30 times. So a pass over
a sharp head takes 1.1 times as long as over a flat one where torch has vector code (AVX2, AVX-512), and 1.3 to 1.9
times by its plain code (``ATEN_CPU_CAPABILITY=default``); see ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

KINDS = (torch.float32, torch.float64)


def least_exponent(x: Tensor, keys: int = 1) -> float:
    """The exponent below which exponentials become zero, in the dtype and on the device of ``x``; -∞ if none do.

    Args:
        keys: the number of exponentials in the sum by which a weight is divided.
    """
    if x.device.type != "cpu" or x.dtype not in KINDS:
        return -math.inf
    return math.log(torch.finfo(x.dtype).tiny) + math.log(keys)


def softmax(scores: Tensor, out: Tensor | None = None) -> Tensor:
    """The softmax of ``scores`` (…, n) over the last axis. It may overwrite ``scores`` if no gradient is needed.

    The weights that are not zero are those of ``torch.softmax`` to the last bit.

    >>> softmax(torch.tensor([[0.0, -90.0]])), torch.softmax(torch.tensor([[0.0, -90.0]]), -1)
    (tensor([[1., 0.]]), tensor([[1.0000e+00, 8.1940e-40]]))
    """
    least = least_exponent(scores, scores.shape[-1])
    if least > -math.inf:
        apart, largest = scores.requires_grad, scores.detach().amax(-1, keepdim=True)
        scores = scores - largest if apart else scores.sub_(largest)
        scores = torch.nn.functional.threshold(scores, least, -math.inf, inplace=not apart)
    return torch.softmax(scores, -1, out=out)


def exp_(exponents: Tensor) -> Tensor:
    """``exp`` of exponents up to 0, of any shape, in place."""
    least = least_exponent(exponents)
    if least > -math.inf and exponents.numel() and exponents.detach().amin() < least:
        exponents = torch.nn.functional.threshold(exponents, least, -math.inf, inplace=not exponents.requires_grad)
    return exponents.exp_()
