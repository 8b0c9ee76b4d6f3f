"""What a piece of code asks of torch: how often each operation, and how often Python waits for the device."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.item.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class Reading(TorchDispatchMode):
    """How often a value or a size is read back, or a tensor taken to the CPU: what makes Python wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        to_cpu = func is aten._to_copy.default and (kwargs or {}).get("device") == torch.device("cpu")
        by_mask = func in INDEXING and any(x is not None and x.dtype == torch.bool for x in args[1])
        self.count += func in WAITING or to_cpu or by_mask
        return func(*args, **(kwargs or {}))


class Counting(TorchDispatchMode):
    """How often each operation is called."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))
