"""attnprobe measures what an attention approximation does to real queries, keys and values.

A *source* provides ``Q, K, V``. A *method* turns ``(Q, K, V, d)`` into an *operator* that approximates the n x n
attention matrix. A *metric* compares this operator with the exact one. A *command* measures many such cells and
writes their *rows*, of which tables, figures and gates are made.

Symbols, the same in every docstring (each method's page maps its paper's letters to these):

=====================================  ==============================================================  ============
``n``                                  tokens (queries and keys; ``n_q``, ``n_k`` where they differ)
``p``                                  head dimension; ``p_v`` the value dimension
``d``                                  the budget: landmarks, features, samples or selected keys
``h``                                  heads, the leading axis everywhere
``Q, K, V``                            queries, keys and values                                        (h, n, p)
``S = scale · Q Kᵀ``                   scores; the model passes ``scale``, usually 1/√p                (h, n, n)
``A = exp(S)``                         un-normalised softmax attention                                 (h, n, n)
``D = diag(A·1)``, ``B = D⁻¹A``        row sums; softmax attention                                     (h, n, n)
``C = exp(-‖q_i - k_j‖²·scale/2)``     Gaussian (kernelized) attention; not row-normalised             (h, n, n)
``Ā``, ``C̄``                           the lifted positive semidefinite kernels over ``[Q; K]``        (h, 2n, 2n)
tilde (``B~``, in code ``approx``)     an approximation
=====================================  ==============================================================  ============

>>> import torch
>>> from attnprobe import QKV, approximate, exact, output_errors
>>> g = torch.Generator().manual_seed(0)
>>> qkv = QKV(*torch.randn(3, 2, 64, 16, generator=g))
>>> approx = approximate("skyformer", qkv, d=32, seed=0)
>>> errors = output_errors(exact(qkv), approx, qkv)
>>> errors["output_spectral"].shape, errors["output_spectral"].dtype
(torch.Size([2]), torch.float64)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PUBLIC = {
    "QKV": "qkv",
    "Approximation": "approximation",
    "AttnprobeError": "errors",
    "BadResult": "errors",
    "Operator": "operators",
    "Run": "show.page",
    "SourceError": "errors",
    "Storage": "methods",
    "Unsupported": "errors",
    "UsageError": "errors",
    "approximate": "methods",
    "budgets": "measure.budget.search",
    "capture": "inputs",
    "decoding": "measure.inject.generating",
    "exact": "reference",
    "findings": "measure.theory.setting",
    "injected": "inject",
    "input_statistics": "metrics",
    "instability": "measure.stability.training",
    "kernel_errors": "metrics",
    "load_qkv": "inputs",
    "matrix_errors": "metrics",
    "method": "methods",
    "open_run": "show.page",
    "output_errors": "metrics",
    "probe": "probing",
    "register_attention": "inject",
    "residual_errors": "metrics",
    "rounding_errors": "rounding",
    "row_metrics": "metrics",
    "spectra": "metrics",
}
__all__ = [
    "QKV",
    "Approximation",
    "AttnprobeError",
    "BadResult",
    "Operator",
    "Run",
    "SourceError",
    "Storage",
    "Unsupported",
    "UsageError",
    "__version__",
    "approximate",
    "budgets",
    "capture",
    "decoding",
    "exact",
    "findings",
    "injected",
    "input_statistics",
    "instability",
    "kernel_errors",
    "load_qkv",
    "matrix_errors",
    "method",
    "open_run",
    "output_errors",
    "probe",
    "register_attention",
    "residual_errors",
    "rounding_errors",
    "row_metrics",
    "spectra",
]

if TYPE_CHECKING:
    from .approximation import Approximation
    from .errors import AttnprobeError, BadResult, SourceError, Unsupported, UsageError
    from .inject import injected, register_attention
    from .inputs import capture, load_qkv
    from .measure.budget.search import budgets
    from .measure.inject.generating import decoding
    from .measure.stability.training import instability
    from .measure.theory.setting import findings
    from .methods import Storage, approximate, method
    from .metrics import (
        input_statistics,
        kernel_errors,
        matrix_errors,
        output_errors,
        residual_errors,
        row_metrics,
        spectra,
    )
    from .operators import Operator
    from .probing import probe
    from .qkv import QKV
    from .reference import exact
    from .rounding import rounding_errors
    from .show.page import Run, open_run


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use, so that ``import attnprobe`` does not import torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'attnprobe' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"attnprobe.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
