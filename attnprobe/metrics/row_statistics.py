"""Row metrics over the rows of a head: means, quantiles and a profile over positions; the overlap of selections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import UsageError
from ..grammar.arguments import checked
from .rows import ROW_METRICS

OVER_ROWS: dict[str, tuple[str, str | float]] = {  # by the names of rows of heads; a number is a quantile
    **{name: (name, "mean") for name in ROW_METRICS if name != "row_error"},
    "kl": ("kl", "mean of all"),
    "js": ("js", "mean of all"),
    "mass_p10": ("mass", 0.1),
    "log_normaliser_error_sd": ("log_normaliser_error", "sd"),
    "row_error_p50": ("row_error", 0.5),
    "row_error_p90": ("row_error", 0.9),
    "row_error_p99": ("row_error", 0.99),
    "row_error_max": ("row_error", 1.0),
}
PROFILED = ("mass", "mass_oracle", "tv", "log_normaliser_error", "row_error")  # over the positions of queries


@checked()
def over_rows(by_metric: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The `OVER_ROWS` of row metrics (h, n_q), (h,) each: means, standard deviations and quantiles over rows.

    Values that are not finite do not count; a head without a finite value has NaN. But a divergence is over all rows of
    a head: the rows that have one are the better ones, so a mean of them alone says nothing of the head. It is NaN if a
    row has none, and infinite if a row's is. A row at which every metric is NaN is padding and does not count.
    """
    padding = torch.stack(list(by_metric.values())).isnan().all(0)  # (h, n_q)
    statistics: dict[str, dict[str | float, str]] = {}  # by metric: the name of each statistic
    for name, (metric, statistic) in OVER_ROWS.items():
        if metric in by_metric:
            statistics.setdefault(metric, {})[statistic] = name
    found = {}
    for metric, names in statistics.items():
        values = by_metric[metric]
        if values.isfinite().all():
            of_heads = _over(values, values, list(names))
        else:
            rows = [row[~padded] for row, padded in zip(values, padding, strict=True)]
            of_heads = torch.stack([_over(row, row[row.isfinite()], list(names)) for row in rows])
        found |= dict(zip(names.values(), of_heads.T, strict=True))
    return {name: found[name] for name in OVER_ROWS if name in found}


def _over(values: Tensor, finite: Tensor, statistics: Sequence[str | float]) -> Tensor:
    """Statistics of values (…, n) of rows and of the finite ones among them, (…, m), by one sort for all quantiles."""
    numbers = [statistic for statistic in statistics if not isinstance(statistic, str)]
    exists = finite.shape[-1] > 0
    quantiles = iter(finite.quantile(finite.new_tensor(numbers), dim=-1) if numbers and exists else ())

    def of(statistic: str | float) -> Tensor:
        if statistic == "mean of all":
            return values.mean(-1)
        if not exists:
            return values.new_tensor(torch.nan)
        if statistic == "mean":
            return finite.mean(-1)
        if statistic == "sd":
            return finite.std(-1, correction=0)
        return next(quantiles)

    return torch.stack([of(statistic) for statistic in statistics], -1)


@checked()
def position_profile(values: Mapping[str, Tensor], positions: Tensor) -> tuple[list[int], dict[str, list[list[float]]]]:
    """The means of the `PROFILED` metrics over queries with ``2^a … 2^(a+1) - 1`` tokens up to their own.

    Args:
        values: row metrics by name, (h, n_q) each. positions: those of the queries, (n_q,) int64.

    Returns:
        ``2^a`` of each bucket with a query, ascending; and for each metric a list for each head with the mean of each
        bucket, which is NaN without a finite value.
    """
    bucket = torch.log2((positions + 1).double()).floor().long()
    buckets = bucket.unique()
    edges = [2 ** int(power) for power in buckets]
    names = [name for name in PROFILED if name in values]
    if not names:
        return edges, {}
    every = torch.stack([values[name] for name in names])  # (m, h, n_q)
    parts = [every[..., (bucket == power).nonzero()[:, 0]].nanmean(-1) for power in buckets]
    means = torch.stack(parts, -1).tolist()
    return edges, dict(zip(names, means, strict=True))


@checked()
def selection_overlap(first: Tensor, second: Tensor) -> Tensor:
    """The Jaccard index ``|S ∩ T| / |S ∪ T|`` of the sets of keys of each row, (h, n_q) float64; 1 for two empty sets.

    Args:
        first, second: keys (h, n_q, k) int64, each at most once, -1 in empty slots: see
            `attnprobe.methods.selection.files.selected_keys`. k may differ. They may belong to two methods, two layers,
            or two heads of a group.

    Cost: a sort of ``k₁ + k₂`` keys in each row.

    Raises:
        UsageError: different numbers of heads or rows.

    >>> selection_overlap(torch.tensor([[[0, 1, -1]]]), torch.tensor([[[1, 2]]]))
    tensor([[0.3333]], dtype=torch.float64)
    """
    if first.shape[:2] != second.shape[:2]:
        raise UsageError(
            f"overlap: the first sets are of {tuple(first.shape[:2])} heads and rows, the second of "
            f"{tuple(second.shape[:2])}; both need the same"
        )
    keys = torch.cat([first, second.to(first)], 2).sort(-1).values
    common = ((keys[..., 1:] == keys[..., :-1]) & (keys[..., 1:] >= 0)).sum(-1)
    union = (keys >= 0).sum(-1) - common
    return torch.where(union > 0, common.double() / union.clamp(min=1), 1.0)


@checked()
def neighbour_overlap(keys: Tensor) -> Tensor:
    """`selection_overlap` of the keys (h, n_q, k) of each row and of the row before it, (h, n_q); NaN for the first.

    >>> neighbour_overlap(torch.tensor([[[0, 1], [0, 2]]]))
    tensor([[   nan, 0.3333]], dtype=torch.float64)
    """
    overlap = torch.full(keys.shape[:2], torch.nan, dtype=torch.float64, device=keys.device)
    overlap[:, 1:] = selection_overlap(keys[:, 1:], keys[:, :-1])
    return overlap
