"""The files of ``attnprobe new-method``: a working method with a complete docstring, and its test."""

from __future__ import annotations

import keyword
from importlib.util import find_spec
from pathlib import Path

from ...errors import UsageError
from ...files import path_of, writing

METHOD = '''"""{title}: one sentence about the method. Replace this example, which keeps d keys, by your own."""

import torch

import attnprobe


@attnprobe.method(
    linear_in_v=True,
    tags=("deterministic", "row_sums_one", "nonnegative", "exact_at_full_budget", "causal"),
    budget="d keys at equal distances",
    cost="2 n d p",
    limit=lambda n_q, n_k: n_k,
    exact_at=lambda n: (n, {{}}),
)
def {name}(q, k, v, d, scale, qkv):
    """Attention to the keys ``⌊s n_k / d⌋``, s = 0 … d - 1; a causal query sees those up to its own place.

        ``out_i = Σ_s w_is v_s``,   ``w_is ∝ exp(scale · q_i · k_s)``.

    Args:
        q, k, v: (h, n_q, p), (h, n_k, p), (h, n_k, p_v), on any device and of any dtype.
        d: the number of keys. scale: the factor on Q Kᵀ, applied here. qkv: says which keys a query sees.

    Returns:
        The output, (h, n_q, p_v), and the number of computed scores. ``2 n d p`` multiply-adds a head.
    """
    kept = torch.arange(d, device=k.device) * k.shape[1] // d  # (d,)
    scores = scale * q @ k[:, kept].mT  # (h, n_q, d)
    if qkv.visible is not None:  # causal
        scores = scores.masked_fill(qkv.visible.hides(kept), -torch.inf)
    output = torch.softmax(scores, -1) @ v[:, kept]
    visited = (scores > -torch.inf).sum((1, 2))  # (h,), for the tables and the figure of cost
    return attnprobe.Approximation(None, output, diagnostics={{"visited": visited}})
'''

TEST = '''"""{title}: the contract of every method, and the formula."""

import torch
from {name} import {name}

from attnprobe import QKV, approximate
from attnprobe.testing import check_method


def test_it_keeps_the_contract():
    check_method({name})


def test_it_equals_its_formula():
    q, k, v = torch.randn(3, 1, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for causal in (False, True):
        expected = torch.zeros_like(v)
        for i in range(7):
            kept = [s for s in (0, 2, 4) if s <= i or not causal]  # of 7 keys
            weights = torch.softmax(0.5 * k[0, kept] @ q[0, i], 0)
            expected[0, i] = weights @ v[0, kept]
        assert torch.allclose(approximate({name}, QKV(q, k, v, causal=causal), d=3).output, expected)
'''


def write_method(name: str, folder: str | Path = ".") -> tuple[Path, Path]:
    """Write ``NAME.py`` and ``test_NAME.py`` and return their paths; nothing is overwritten.

    Raises:
        UsageError: the name is not a valid name of a function, or is the name of an installed module; a file exists;
            the folder cannot be written to.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise UsageError(f"'{name}' cannot name a function; use letters, digits and _, such as my_method")
    with writing(folder):
        folder = path_of(folder)
        files = folder / f"{name}.py", folder / f"test_{name}.py"
        for file in files:
            if file.exists():
                raise UsageError(f"{file} exists; choose another name, or remove it")
    if find_spec(name) is not None:
        raise UsageError(f"'{name}' is the name of an installed module; choose another name")
    title = name.replace("_", " ").strip().capitalize() or name
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in zip(files, (METHOD, TEST), strict=True):
            with file.open("x", encoding="utf-8") as out:
                out.write(text.format(name=name, title=title))
    return files
