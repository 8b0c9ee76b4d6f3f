"""Tokens that repeat exactly."""

from __future__ import annotations

import torch

from ..qkv import QKV


def repeated_rows(qkv: QKV) -> int:
    """The number of valid tokens whose query and key equal those of an earlier token bit by bit, in the first head.

    In layer 0 of concatenated segments, equal tokens at the same position of two segments have equal rows. B and C are
    then singular, and their condition numbers describe only these repetitions. It is 0 if the numbers of queries and
    keys differ.

    >>> repeated_rows(QKV(*torch.ones(3, 1, 5, 2)))
    4
    """
    if qkv.n_q != qkv.n_k:
        return 0
    qkv = qkv.compressed()
    rows = torch.cat([qkv.q[0], qkv.k[0]], dim=-1).detach().cpu().contiguous()
    return len(rows) - len({row.numpy().tobytes() for row in rows.view(torch.uint8)})
