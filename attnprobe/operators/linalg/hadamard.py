"""Hadamard matrices: orthogonal matrices of the entries ±1, up to a factor."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def hadamard(order: int) -> Tensor | None:
    """A Hadamard matrix H (order, order) float64 with ``H Hᵀ = order · I``; None if there is none by these rules.

    An even order doubles that of half of it, ``[[H, H], [H, -H]]`` (Sylvester 1867). The order ``q + 1`` of a prime q
    with remainder 3 by 4 is made of the quadratic residues of q (Paley 1933). So there are those of powers of two, and
    of 12, 20, 24, 44 times them: of all common head dimensions.

    >>> hadamard(4)
    tensor([[ 1.,  1.,  1.,  1.],
            [ 1., -1.,  1., -1.],
            [ 1.,  1., -1., -1.],
            [ 1., -1., -1.,  1.]], dtype=torch.float64)
    >>> hadamard(80).shape, hadamard(5)
    (torch.Size([80, 80]), None)
    """
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64, device="cpu")
    if order % 2 == 0 and (half := hadamard(order // 2)) is not None:
        return torch.cat([torch.cat([half, half], 1), torch.cat([half, -half], 1)])
    return _paley(order - 1) if order % 4 == 0 and _is_prime(order - 1) else None


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def _paley(q: int) -> Tensor:
    """``I + S`` of order q + 1 with the skew matrix S of the quadratic characters of differences mod q."""
    character = -torch.ones(q, dtype=torch.float64, device="cpu")
    character[torch.arange(1, q, device="cpu") ** 2 % q] = 1
    character[0] = 0
    place = torch.arange(q, device="cpu")
    matrix = torch.ones(q + 1, q + 1, dtype=torch.float64, device="cpu")
    matrix[1:, 0] = -1
    matrix[1:, 1:] = character[(place[:, None] - place) % q] + torch.eye(q, dtype=torch.float64, device="cpu")
    return matrix
