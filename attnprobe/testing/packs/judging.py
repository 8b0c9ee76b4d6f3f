"""Judging outputs that a kernel computed elsewhere, in any framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import SourceError, cut
from .case import Case, Expected
from .pack import Pack, opened

if TYPE_CHECKING:
    from pandas import DataFrame

WIDER = {torch.float16: (torch.float32, torch.float64), torch.bfloat16: (torch.float32, torch.float64)}
WIDER |= {torch.float32: (torch.float64,)}
PASSES, WRONG, MISSING = "passes", "wrong", "missing"


@dataclass(frozen=True)
class Judged:
    """The rows of all cases of a pack, one a head.

    Attributes:
        frame: columns ``case, q_head, verdict`` (`PASSES`, `WRONG` or `MISSING`), ``reason``, ``excess``, the largest
            error over its tolerance, and the further metrics of `judged`.
    """

    pack: Pack
    frame: DataFrame

    @property
    def failed(self) -> dict[str, str]:
        """The cases that do not pass, each with the reason of its worst head."""
        wrong = [row for row in self.frame.to_dict("records") if row["verdict"] != PASSES]
        wrong.sort(key=lambda row: row.get("excess") or 0)
        return {row["case"]: row["reason"] for row in wrong}


def read_outputs(path: str | Path, pack: Pack) -> dict[str, Tensor]:
    """The tensors ``CASE.o`` and ``CASE.lse`` of a safetensors file, for the cases of a pack.

    Raises:
        SourceError: no such file, outputs of another pack, or a tensor of another shape or dtype.
    """
    with opened(path) as file:
        own = (file.metadata() or {}).get("pack")
        if own not in (None, pack.id):
            raise SourceError(f"{path} has outputs of pack {cut(own)}, not of {pack.id}; run the kernel on this pack")
        names = set(file.keys())
        known = {f"{case.name}.{kind}" for case in pack.cases for kind in ("o", "lse")}
        if strange := sorted(names - known):
            raise SourceError(f"{path}: {cut(strange[0])} is no output of pack {pack.name}; name outputs CASE.o")
        outputs = {name: file.get_tensor(name) for name in sorted(names)}
    for case in pack.cases:
        _check(path, case, outputs)
    return outputs


def _check(path: str | Path, case: Case, outputs: Mapping[str, Tensor]) -> None:
    heads, n_q = case.q.shape[:2]
    for kind, shape in (("o", (heads, n_q, case.v.shape[2])), ("lse", (heads, n_q))):
        tensor = outputs.get(f"{case.name}.{kind}")
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise SourceError(f"{path}: {case.name}.{kind} has shape {tuple(tensor.shape)}, not {shape}")
        dtypes = (case.dtype, *WIDER[case.dtype]) if kind == "o" else (torch.float32, torch.float64)
        if tensor.dtype not in dtypes:
            words = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise SourceError(f"{path}: {case.name}.{kind} is {str(tensor.dtype).removeprefix('torch.')}, not {words}")


def judged(pack: Pack, outputs: Mapping[str, Tensor]) -> Judged:
    """Compare outputs with the exact ones, head by head.

    A head is wrong if a number of a judged query is not finite, or differs from the exact one by more than its
    tolerance (see `expected`). The columns of the frame, beside those of `Judged`:

    ===========================  ===============================================================================
    ``max_abs``                  ``max |O~ - O|``
    ``relative_frobenius``       ``‖O~ - O‖_F / ‖O‖_F``
    ``ratio_to_framework``       ``max_abs`` over that of torch with every step in the dtype of the case
    ``queries_within``           the share of queries with all entries within their tolerance
    ``worst_row``                the query with the largest excess
    ``entries_not_finite``       the number of entries that are NaN or infinite
    ``lse_excess``               the largest error of the log-sum-exp over its tolerance, where one is given
    ===========================  ===============================================================================
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for case in pack.cases:
        rows += _of_case(pack, case, outputs.get(f"{case.name}.o"), outputs.get(f"{case.name}.lse"))
    return Judged(pack, pd.DataFrame(rows))


def _of_case(pack: Pack, case: Case, output: Tensor | None, lse: Tensor | None) -> list[dict[str, Any]]:
    facts = {"case": case.name, "dtype": str(case.dtype).removeprefix("torch."), "n_q": case.q.shape[1]}
    facts |= {"n_k": case.k.shape[1], "p": case.q.shape[2]}
    if output is None:
        return [{**facts, "q_head": head, "verdict": MISSING, "reason": "no output"} for head in range(len(case.q))]
    want = pack.expected[case.name]
    return [{**facts, "q_head": head, **_of_head(case, want, head, output, lse)} for head in range(len(case.q))]


def _of_head(case: Case, want: Expected, head: int, output: Tensor, lse: Tensor | None) -> dict[str, Any]:
    seen = case.judged
    numbers, exact = output[head, seen].double(), want.output[head, seen]
    # NaN as an infinite error, so that it is the largest of its row
    error = (numbers - exact).abs().nan_to_num(nan=torch.inf)

    excess = (error / want.tolerance[head, seen].clamp(min=torch.finfo(torch.float64).tiny)).amax(-1)
    framework = (want.framework[head, seen] - exact).abs().nan_to_num(nan=torch.inf).max()
    found = {
        "excess": float(excess.max()),
        "max_abs": float(error.max()),
        "relative_frobenius": float(error.norm() / exact.norm()),
        "ratio_to_framework": float(error.max() / framework) if framework > 0 else (1.0 if error.max() == 0 else inf),
        "queries_within": float((excess <= 1).double().mean()),
        "worst_row": int(seen.nonzero()[excess.argmax(), 0]),
        "entries_not_finite": int((~numbers.isfinite()).sum()),
    }
    where = f"head {head}, query {found['worst_row']}"
    reason = "" if found["excess"] <= 1 else f"error {found['excess']:.3g} times its tolerance: {where}"
    reason = f"an entry is not finite: {where}" if found["entries_not_finite"] else reason
    if lse is not None:
        gap = (lse[head, seen].double() - want.lse[head, seen]).abs().nan_to_num(nan=torch.inf)
        found["lse_excess"] = float((gap / want.lse_tolerance[head, seen]).max())
        if found["lse_excess"] > 1:
            reason = reason or f"log-sum-exp {found['lse_excess']:.3g} times its tolerance: head {head}"
    return {"verdict": WRONG if reason else PASSES, "reason": reason, **found}
