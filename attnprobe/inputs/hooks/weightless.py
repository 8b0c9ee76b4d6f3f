"""Keys that a bias hides: it leaves them no weight in float64 beside the largest score of their row.

Much code writes a mask as -1e9 or -1e4, which is added to the scores. Whether that hides a key depends on the scores.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from ...operators.groups import folded, unfolded
from ...operators.terms import Terms
from .call import blocks, row_blocks, rows_of
from .masks import Pattern, of_all, pattern_of

ROUNDING = 16  # roundings of the largest bias, by which rows of one bias may differ
HIDDEN = 3e4  # a bias that leaves no weight, in every dtype
NO_WEIGHT = -1075 * log(2)  # exp of a lower number is 0 in float64, whose smallest positive number is 2^-1074


def hide_weightless(
    visible: Tensor | None, bias: Tensor, q: Tensor, k: Tensor, scale: float, softcap: float | None
) -> tuple[Tensor | None, Tensor | None]:
    """The visible keys and the bias of `split_mask`, where keys without weight are hidden; the bias is None if it is 0.

    The key j has no weight for the query i if ``exp(s_ij - max_k s_ik)`` is 0 in float64, where s are the scores with
    their bias. A key whose bias is the largest of its row is not hidden by it. A query sees no key if all its biases
    lie that far below another query's and are equal, or each hides keys of other queries.

    Args:
        q: (b, h, n_q, p). k: (b, h_kv, n_k, p). scale, softcap: as in `AttentionCall`.

    Cost: a pass over the bias; one over the scores only if the norms of the queries and keys do not decide.
    """
    shown = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    top = shown.amax(-1, keepdim=True)
    below = shown - top
    longest = float(q.detach().norm(dim=-1).amax()) * float(k.detach().norm(dim=-1).amax())
    # By the inequality of Cauchy and Schwarz a score is at most scale · max ‖q‖ · max ‖k‖.
    apart = 2 * abs(scale) * longest  # no two scores of a row differ by more
    apart = apart if softcap is None else min(apart, 2 * softcap)
    hidden = below < NO_WEIGHT - apart
    # Between both bounds the scores decide, and cost a product of Q and K.
    if bool((~hidden & (below < NO_WEIGHT + apart) & shown.isfinite()).any()):
        hidden = _hidden(shown, q, k, scale, softcap)
    hidden = hidden & (below < 0) & shown.isfinite()
    highest = shown.masked_fill(~hidden, -torch.inf).amax()
    level = ((below == 0) | ~shown.isfinite()).all(-1, keepdim=True)
    hidden = hidden | ((level | (top <= highest)) & (top - top.amax() < NO_WEIGHT))
    if not bool(hidden.any()):
        return visible, bias if bool(bias.any()) else None
    bias = bias.masked_fill(hidden, 0)
    seen = ~hidden if visible is None else visible & ~hidden
    return of_all(seen, (len(q), q.shape[2], k.shape[2])), bias if bool(bias.any()) else None


def of_keys(bias: Tensor, visible: Tensor | None) -> Tensor | None:
    """A bias (b, h, 1, n_k) with the same softmax, if the biases of a row are its constant and one for each key.

    ALiBi is such a bias. The constants of rows cancel, so the first key that a query sees has the bias 0. None if all
    others have it too; the bias itself if its rows differ otherwise.

    Args:
        bias: (b or 1, 1 or h, n_q or 1, n_k). visible: (b, 1 or h, n_q, n_k); None means all.
    """
    n_q = bias.shape[2] if visible is None else visible.shape[2]
    seen = torch.ones_like(bias, dtype=torch.bool) if visible is None else visible
    seen = seen.expand(max(len(bias), len(seen)), max(bias.shape[1], seen.shape[1]), n_q, -1)
    bias = bias.expand(seen.shape)
    # The query that sees most keys states the biases of all of them but for a constant.
    widest = seen.sum(-1, keepdim=True).argmax(2, keepdim=True).expand(-1, -1, -1, bias.shape[3])
    last, first = bias.gather(2, widest), seen.gather(2, widest).byte().argmax(-1, keepdim=True)
    own = seen.byte().argmax(-1, keepdim=True)  # the first key of each row
    of_key = last - last.gather(-1, first)  # (b, h, 1, n_k)
    of_row = bias.gather(-1, own) - of_key.expand_as(bias).gather(-1, own)
    sizes, gaps = [], []
    for start, stop in row_blocks(bias):
        rows = slice(start, stop)
        part, unseen = bias[:, :, rows], ~seen[:, :, rows]
        sizes.append(part.abs().masked_fill_(unseen, 0).amax())
        gaps.append((part - of_key - of_row[:, :, rows]).abs_().masked_fill_(unseen, 0).amax())
    if not bool(torch.stack(gaps).amax() <= ROUNDING * torch.finfo(bias.dtype).eps * torch.stack(sizes).amax()):
        return bias
    of_key = of_key.masked_fill(~seen.any(2, keepdim=True), 0)
    return of_key if bool(of_key.any()) else None


def but_itself(
    visible: Tensor | None, pattern: Pattern, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Pattern, Tensor | None]:
    """What each query sees, where a query sees all but its own key: its key is visible, with a bias of no weight.

    Reformer hides a token from itself, because its queries are its keys. Other masks stay.
    """
    if visible is None or pattern.regular or visible.shape[2] != visible.shape[3]:
        return visible, pattern, bias
    itself = torch.eye(visible.shape[2], dtype=torch.bool, device=visible.device)
    regular = pattern_of(visible | itself)
    if not regular.regular:
        return visible, pattern, bias
    bias = torch.zeros(1, 1, *visible.shape[2:], dtype=dtype, device=visible.device) if bias is None else bias
    bias = bias.masked_fill(itself & ~visible, -HIDDEN)
    return of_all(visible | itself, (len(visible), visible.shape[2], visible.shape[3])), regular, bias


def _hidden(shown: Tensor, q: Tensor, k: Tensor, scale: float, softcap: float | None) -> Tensor:
    """The keys without weight, (b, h, n_q, n_k), from the scores in float64, by blocks of rows."""
    q, k = q.detach().double() * scale, k.detach().double()
    hidden = []
    for start, stop in blocks(q, k, bytes_each=8):
        rows = slice(start, stop)
        scores = Terms(softcap).capped(unfolded(folded(q[:, :, rows], k.shape[1]) @ k.mT, q.shape[1]))
        of_rows = rows_of(shown, rows)
        assert of_rows is not None
        scores = scores + of_rows
        hidden.append(scores - scores.amax(-1, keepdim=True) < NO_WEIGHT)
    return torch.cat(hidden, dim=2)
