"""Literal twins of the quantised caches: number by number, in the rounding of the formats; merged into `twins`.

``READ[name](x, side, draws, **options)`` is what is read back of the rows of x, (n, p), the keys or values of a head.
"""

from math import exp, floor, frexp, pi

import numpy as np
import torch
from torch import Tensor

from attnprobe.operators.linalg.lloyd_max import lloyd_max
from attnprobe.qkv import QKV

F16, F32 = np.float16, np.float32


def blocks(row: list[float], size: int) -> list[list[np.float32]]:
    padded = [*row, *[0.0] * (-len(row) % size)]
    return [[F32(x) for x in padded[start : start + size]] for start in range(0, len(padded), size)]


def by_blocks(size, law):
    """The rows of x with a law applied to each block."""

    def read(x: Tensor, side, draws, **options) -> Tensor:
        rows = []
        for row in x.tolist():
            coded = [number for block in blocks(row, size) for number in law(block, **options)]
            rows.append([float(number) for number in coded[: len(row)]])
        return torch.tensor(rows, dtype=torch.float64)

    return read


def half_up(x) -> int:
    return floor(float(x))


def q8_0(block):
    step = max(abs(x) for x in block) / F32(127)
    if step == 0:
        return block
    codes = []
    for x in block:
        ratio = float(x * (F32(1) / step))
        codes.append(int(abs(ratio) + 0.5) * (1 if ratio > 0 else -1))
    return [F32(code) * F32(F16(step)) for code in codes]


def largest_first(block):
    return max(block, key=abs)  # the first of several


def signed(bits):
    def law(block):
        half = 2 ** (bits - 1)
        step = largest_first(block) / F32(-half)
        if step == 0:
            return block
        inverse = F32(1) / step
        codes = [min(2 * half - 1, half_up(x * inverse + F32(half + 0.5))) - half for x in block]
        return [F32(code) * F32(F16(step)) for code in codes]

    return law


def ranged(bits):
    def law(block):
        most, least = 2**bits - 1, min(block)
        step = (max(block) - least) / F32(most)
        inverse = F32(0) if step == 0 else F32(1) / step
        codes = [min(most, half_up((x - least) * inverse + F32(0.5))) for x in block]
        return [F32(code) * F32(F16(step)) + F32(F16(least)) for code in codes]

    return law


SIZES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # of e2m1: the codes of even numbers have an even place


def nearest(x: float, sizes: list[float], to_even: bool) -> float:
    """The nearest size with the sign of x; a tie goes to an even place of the list, or to the smaller one."""
    distances = [abs(abs(x) - size) for size in sizes]
    tied = [place for place, distance in enumerate(distances) if distance == min(distances)]
    place = next((place for place in tied if place % 2 == 0), tied[0]) if to_even else tied[0]
    return sizes[place] * (-1 if x < 0 else 1)


def mxfp4(block):
    largest = float(max(abs(x) for x in block))
    if largest == 0:
        return block
    step = 2.0 ** (frexp(largest)[1] - 1 - 2)
    return [step * nearest(float(x) / step, SIZES, to_even=False) for x in block]


def floats(exponents: int, mantissas: int, most: float) -> list[float]:
    """The sizes of a floating-point format up to its largest one, in the order of their codes."""
    bias = 2 ** (exponents - 1) - 1
    sizes = []
    for code in range(2 ** (exponents + mantissas)):
        e, m = divmod(code, 2**mantissas)
        size = m / 2**mantissas * 2.0 ** (1 - bias) if e == 0 else (1 + m / 2**mantissas) * 2.0 ** (e - bias)
        if size <= most:
            sizes.append(size)
    return sizes


E4M3, E5M2 = floats(4, 3, 448.0), floats(5, 2, 57344.0)


def fp8(x: Tensor, side, draws, number="e4m3", scale="head") -> Tensor:
    sizes = E4M3 if number == "e4m3" else E5M2
    rows = [[F32(value) for value in row] for row in x.tolist()]
    out = []
    for row in rows:
        those = rows if scale != "token" else [row]
        step = max(abs(value) for one in those for value in one) / F32(sizes[-1])
        out.append([float(F32(nearest(float(value / step), sizes, True)) * step) if step else 0.0 for value in row])
    return torch.tensor(out, dtype=torch.float64)


def nvfp4(x: Tensor, side, draws) -> Tensor:
    rows = [blocks(row, 16) for row in x.tolist()]
    whole = max(abs(value) for row in rows for block in row for value in block) / F32(6 * 448)
    out = []
    for row in rows:
        numbers = []
        for block in row:
            scale = F32(nearest(float(max(abs(value) for value in block) / F32(6) * (F32(1) / whole)), E4M3, True))
            step = scale * whole
            inverse = F32(1) / step if step else F32(0)
            numbers += [float(F32(nearest(float(value * inverse), SIZES, True)) * step) for value in block]
        out.append(numbers[: x.shape[1]])
    return torch.tensor(out, dtype=torch.float64)


def kivi(x: Tensor, side, draws, bits=2, group=32) -> Tensor:
    def law(numbers):
        most, least = 2**bits - 1, F32(F16(min(numbers)))
        step = F32(F16((max(numbers) - min(numbers)) / F32(most)))
        codes = [0 if step == 0 else min(most, max(0, round(float((value - least) / step)))) for value in numbers]
        return [float(F32(code) * step + least) for code in codes]

    if side == "value":
        parts = [x[:, start : start + group].tolist() for start in range(0, x.shape[1], group)]
        read = [[law([F32(value) for value in row]) for row in part] for part in parts]
        return torch.cat([torch.tensor(part, dtype=torch.float64) for part in read], 1)
    out, n = x.clone(), len(x)
    for channel in range(x.shape[1]):
        for start in range(0, n - group + 1, group):
            column = [F32(value) for value in x[start : start + group, channel].tolist()]
            out[start : start + group, channel] = torch.tensor(law(column), dtype=torch.float64)
    return out


def turned(matrix: list[list[float]], x: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, x, strict=True)) for row in matrix]


def sylvester(p: int) -> list[list[float]]:
    """A Hadamard matrix of a power of two: the parity of the common bits of the numbers of a row and a column."""
    return [[(-1.0) ** (i & j).bit_count() / p**0.5 for j in range(p)] for i in range(p)]


def rotation_of(side, draws, p, rotation) -> list[list[float]]:
    if rotation == "haar":
        return draws[f"{side}_rotation"].tolist()
    signs = draws[f"{side}_signs"].tolist() if rotation == "signed" else [1.0] * p
    return [[a * sign for a, sign in zip(row, signs, strict=True)] for row in sylvester(p)]


def turboquant(x: Tensor, side, draws, bits=4, variant="mse", rotation="haar") -> Tensor:
    p = x.shape[1]
    matrix = rotation_of(side, draws, p, rotation)
    back = [list(column) for column in zip(*matrix, strict=True)]
    rows = [[float(F32(value)) for value in row] for row in x.tolist()]

    def coded(row, bits):
        size = sum(value * value for value in row) ** 0.5
        unit = turned(matrix, [value / size for value in row])
        levels = [min(lloyd_max(bits), key=lambda level: abs(level - value * p**0.5)) for value in unit]
        return [float(F16(size)) * value / p**0.5 for value in turned(back, levels)]

    if variant == "mse":
        return torch.tensor([coded(row, bits) for row in rows], dtype=torch.float64)
    normal, out = draws[f"{side}_projection"].tolist(), []
    for row in rows:
        near = coded(row, bits - 1)
        rest = [a - b for a, b in zip(row, near, strict=True)]
        size = float(F16(sum(value * value for value in rest) ** 0.5))
        signs = [-1.0 if value < 0 else 1.0 for value in turned(normal, rest)]
        turned_back = turned([list(column) for column in zip(*normal, strict=True)], signs)
        out.append([a + (pi / 2) ** 0.5 / p * size * b for a, b in zip(near, turned_back, strict=True)])
    return torch.tensor(out, dtype=torch.float64)


READ = {
    "fp8": fp8,
    "kivi": kivi,
    "mxfp4": by_blocks(32, mxfp4),
    "nvfp4": nvfp4,
    "q4_0": by_blocks(32, signed(4)),
    "q4_1": by_blocks(32, ranged(4)),
    "q5_0": by_blocks(32, signed(5)),
    "q5_1": by_blocks(32, ranged(5)),
    "q8_0": by_blocks(32, q8_0),
    "turboquant": turboquant,
}
SMALL = {"kivi": {"group": 4, "exact": 3}}  # the options of checks on few tokens


def method(name):
    """The twin of a method: each row reads the quantised keys of its cache, and the most recent ones exactly."""

    def twin(qkv: QKV, d, draws, target, *, of="kv", exact=None, **options) -> Tensor:
        options = {key: value for key, value in SMALL.get(name, {}).items() if key != "exact"} | options
        exact = SMALL.get(name, {}).get("exact", 0) if exact is None else exact
        read = READ[name](qkv.k[0], "key", draws, **options) if "k" in of else qkv.k[0]
        group, q, k = options.get("group", 1), qkv.q[0].tolist(), qkv.k[0].tolist()
        places, out = qkv.query_positions.tolist(), torch.zeros(qkv.n_q, qkv.n_k, dtype=torch.float64)
        hidden = qkv.visible.hidden(qkv.n_k).tolist() if qkv.visible is not None else None
        for i in range(qkv.n_q):
            length = places[i] + 1 if qkv.causal else qkv.n_k
            first = max(0, length - exact) // group * group
            keys = [
                key if j >= first else of_code for j, (key, of_code) in enumerate(zip(k, read.tolist(), strict=True))
            ]
            scores = {
                j: qkv.scale * sum(a * b for a, b in zip(q[i], key, strict=True))
                for j, key in enumerate(keys)
                if hidden is None or not hidden[i][j]
            }
            top = max(scores.values())
            total = sum(exp(score - top) for score in scores.values())
            for j, score in scores.items():
                out[i, j] = exp(score - top) / total
        return out

    return twin


TWINS = {name: method(name) for name in READ}
