"""The block formats of GGML for caches, as llama.cpp stores them: 32 numbers with a scale in float16.

Every step is rounded in float32, so that codes are those of GGML to the bit.
"""

from __future__ import annotations

from torch import Tensor

from ..storage import Storage
from .base import UNIT, Side, cache_format, in_blocks, inverse_of, of_blocks

BLOCK = 32
FACTS = {
    "paper": "GGML, llama.cpp",
    "year": 2023,
    "tags": ("deterministic", "permutation_equivariant", "causal"),
    "oracle": "gguf.quants, to the bit",
}


def _storage(bits: int, units: int = 1) -> Storage:
    """Codes of some bits, and numbers in float16 of each block."""
    share = bits + units * UNIT / BLOCK
    return Storage(k=share, v=share, block=BLOCK)


def _by_largest(x: Tensor, bits: int) -> Tensor:
    """What is read back of codes whose scale is the number of largest size over ``-2^(bits-1)``."""
    blocks, half = in_blocks(x, BLOCK), 2 ** (bits - 1)
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))  # the first of several
    step = largest / -half
    # GGML multiplies by the reciprocal and truncates, which rounds other codes than a division would.
    codes = (blocks * inverse_of(step) + (half + 0.5)).trunc().clamp(0, 2 * half - 1)
    return of_blocks((codes - half) * step.half().float(), x.shape[-1])


def _by_range(x: Tensor, bits: int) -> Tensor:
    """What is read back of codes from the least number of a block to the largest."""
    blocks, most = in_blocks(x, BLOCK), 2**bits - 1
    least = blocks.amin(-1, keepdim=True)
    step = (blocks.amax(-1, keepdim=True) - least) / most
    codes = ((blocks - least) * inverse_of(step) + 0.5).trunc().clamp(0, most)
    return of_blocks(codes * step.half().float() + least.half().float(), x.shape[-1])


@cache_format(name="q8_0", storage=lambda: _storage(8), **FACTS)
def q8_0(x: Tensor, side: Side) -> Tensor:
    """Blocks of 32 numbers as ``x̂ = s c`` with ``s = max |x| / 127`` in float16 and codes c from -127 to 127.

    Ties are rounded away from 0. A vector whose length is no multiple of 32 is padded with zeros. Source: GGML.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 8.5 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: a scale beyond float16. UsageError: options that contradict each other.
    """
    blocks = in_blocks(x, BLOCK)
    step = blocks.abs().amax(-1, keepdim=True) / 127
    codes = blocks * inverse_of(step)
    below = codes.abs().floor()
    codes = codes.sign() * (below + (2 * (codes.abs() - below)).floor())
    return of_blocks(codes * step.half().float(), x.shape[-1])


@cache_format(name="q4_0", storage=lambda: _storage(4), **FACTS)
def q4_0(x: Tensor, side: Side) -> Tensor:
    """Blocks of 32 numbers as ``x̂ = s c`` with codes c from -8 to 7, and in float16 ``s = m / -8``.

    m is the number of the largest size of the block, which has the code -8. A vector whose length is no multiple of 32
    is padded with zeros. Source: GGML.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 4.5 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: a scale beyond float16. UsageError: options that contradict each other.
    """
    return _by_largest(x, 4)


@cache_format(name="q5_0", storage=lambda: _storage(5), **FACTS)
def q5_0(x: Tensor, side: Side) -> Tensor:
    """Blocks of 32 numbers as ``x̂ = s c`` with codes c from -16 to 15, and in float16 ``s = m / -16``.

    m is the number of the largest size of the block, which has the code -16. A vector whose length is no multiple of 32
    is padded with zeros. Source: GGML.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 5.5 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: a scale beyond float16. UsageError: options that contradict each other.
    """
    return _by_largest(x, 5)


@cache_format(name="q4_1", storage=lambda: _storage(4, 2), **FACTS)
def q4_1(x: Tensor, side: Side) -> Tensor:
    """Blocks of 32 numbers as ``x̂ = s c + m`` with codes c from 0 to 15, ``m = min x`` and ``s = (max x - m) / 15``.

    s and m are in float16. A vector whose length is no multiple of 32 is padded with zeros. Source: GGML.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 5 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: a scale beyond float16. UsageError: options that contradict each other.
    """
    return _by_range(x, 4)


@cache_format(name="q5_1", storage=lambda: _storage(5, 2), **FACTS)
def q5_1(x: Tensor, side: Side) -> Tensor:
    """Blocks of 32 numbers as ``x̂ = s c + m`` with codes c from 0 to 31, ``m = min x`` and ``s = (max x - m) / 31``.

    s and m are in float16. A vector whose length is no multiple of 32 is padded with zeros. Source: GGML.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 6 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: a scale beyond float16. UsageError: options that contradict each other.
    """
    return _by_range(x, 5)
