"""The devices over which the rows of one sequence are split."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UsageError
from ..sources import choose_device

MOST = 1024


def row_devices(request: Any) -> tuple[torch.device, ...] | None:
    """The devices of ``request.split_rows``: the first of the visible GPUs, or that many threads of the one CPU.

    Raises:
        UsageError: a number that cannot be, more than the visible GPUs, one GPU by its number, or several processes.
        SourceError: a device that this machine does not have.
    """
    number = request.split_rows
    if number is None:
        return None
    if not 1 <= number <= MOST:
        raise UsageError(f"split-rows={number}: choose a number from 1 to {MOST}")
    if request.jobs not in (None, 1):
        raise UsageError(f"split-rows={number} and jobs={request.jobs} exclude each other: both spread over devices")
    if request.backend == "ray":
        raise UsageError(f"split-rows={number}: rows are split within one process, but backend ray has several")
    device = choose_device(request.source.device)
    if device.type == "cpu":
        return (device,) * number
    if device.index is not None:
        raise UsageError(
            f"split-rows={number}: device {device} is one GPU; give --device {device.type} for the first {number}"
        )
    there = torch.cuda.device_count()
    if number > there:
        raise UsageError(f"split-rows={number}: {there} GPU(s) are visible; choose a number from 1 to {there}")
    return tuple(torch.device("cuda", index) for index in range(number))
