"""The files of ``attnprobe new-method``: a working method with a complete docstring, and its test."""

from __future__ import annotations

import keyword
from importlib.util import find_spec
from pathlib import Path

from ...errors import UsageError
from ...files import path_of, writing

METHOD = '''"""{title}: one sentence about the method. Replace this example, which averages keys, by your own."""

import torch

import attnprobe


@attnprobe.method(
    linear_in_v=True,
    tags=("row_sums_one", "nonnegative", "exact_at_full_budget"),
    budget="d segments of consecutive keys",
    cost="2 n d p",
    limit=lambda n_q, n_k: n_k,
    exact_at=lambda n: (n, {{}}),
)
def {name}(q, k, v, d, scale):
    """Attention over the means of d segments of keys.

    With m_s the mean of the c_s keys of segment s, and u_s that of their values,

        ``out_i = Σ_s w_is u_s``,   ``w_is ∝ c_s exp(scale · q_i · m_s)``.

    Args:
        q, k, v: (h, n_q, p), (h, n_k, p), (h, n_k, p_v), on any device and of any dtype.
        d: the number of segments. scale: the factor on Q Kᵀ, applied here.

    Returns:
        The output, (h, n_q, p_v). ``2 n d p`` multiply-adds a head.
    """
    n = k.shape[1]
    segment = torch.arange(n, device=k.device) * d // n  # (n_k,)
    member = torch.nn.functional.one_hot(segment, d).to(k.dtype)  # (n_k, d)
    size = member.sum(0)  # (d,)
    keys, values = (member.mT @ x / size[:, None] for x in (k, v))  # (h, d, p), (h, d, p_v)
    scores = scale * q @ keys.mT + size.log()  # (h, n_q, d)
    return torch.softmax(scores, -1) @ values
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
    expected = torch.zeros_like(v)
    segments = [[0, 1, 2], [3, 4], [5, 6]]  # of 7 keys
    for i in range(7):
        weights = [len(s) * torch.exp(0.5 * q[0, i] @ k[0, s].mean(0)) for s in segments]
        expected[0, i] = sum(w * v[0, s].mean(0) for w, s in zip(weights, segments)) / sum(weights)
    assert torch.allclose(approximate({name}, QKV(q, k, v), d=3).output, expected)
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
