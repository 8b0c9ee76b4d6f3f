"""What torch's operations do to rounded numbers: which ones round, and in which arithmetic they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: operations whose results are numbers of their inputs, up to the sign: they round nothing
EXACT = _names(
    """
    abs alias amax amin aminmax as_strided as_strided_copy argmax argmin argsort bucketize cat ceil clamp
    clamp_max clamp_min clone constant_pad_nd contiguous copy copysign cummax cummin diag_embed diagonal_copy
    diagonal_scatter embedding expand_copy fill flip floor fmax fmin gather hardtanh im2col index index_copy
    index_fill index_put index_select kthvalue masked_fill masked_scatter masked_select max
    max_pool2d_with_indices maximum median min minimum mode nan_to_num nanmedian neg nonzero permute_copy
    reflection_pad1d relu repeat repeat_interleave replication_pad1d resize roll round scatter searchsorted
    select_scatter sgn sign slice_scatter sort split_copy stack take threshold topk tril triu trunc unfold_copy
    unique_consecutive unique_dim view_copy where zero _reshape_copy _to_copy _unique2 _unsafe_view
    _unsafe_index _unsafe_index_put _local_scalar_dense
    """
)
#: results that do not depend on the numbers of their inputs
FACTORIES = _names(
    """
    empty_like empty_strided full_like new_empty new_empty_strided new_full new_ones new_zeros ones_like
    rand_like randint_like randn_like zeros_like sym_size sym_stride sym_numel size stride is_same_size normal
    uniform random exponential
    """
)
#: products, which tensor cores compute
PRODUCTS = _names(
    """
    addbmm addmm addmv addr baddbmm bmm convolution dot linear matmul mm mv vdot _convolution _linear_pointwise
    _trilinear mkldnn_linear scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention
    """
)
#: operations that torch's autocast computes in float32 on CUDA, as aten has them
AUTOCAST_FLOAT32 = _names(
    """
    acos asin cosh cumprod cumsum dist erfinv exp exp2 expm1 linalg_vector_norm log log10 log1p log2
    logcumsumexp logsumexp native_group_norm native_layer_norm norm pow prod reciprocal renorm rsqrt sinh
    softplus sum tan log_softmax softmax _cdist_forward _log_softmax _softmax
    """
)
#: linear algebra by LAPACK, which has no half precision, besides what begins with linalg_ or _linalg_
LAPACK = _names(
    """
    cholesky cholesky_inverse cholesky_solve geqrf inverse linalg_ lu_solve lu_unpack matrix_exp orgqr ormqr
    pinverse triangular_solve
    """
)
NO_LAPACK = _names(
    """
    linalg_vector_norm linalg_cross linalg_vecdot linalg_diagonal linalg_matmul
    """
)
#: operations that add scattered terms one after another in half precision itself
SCATTERED = _names("index_add index_put put scatter_add scatter_reduce _unsafe_index_put")
#: operations whose number is rounded to the format; a number that multiplies or divides stays in float32
ROUNDED_NUMBERS = _names(
    """
    add pow rsub sub
    """
)
#: operations whose integers are a choice. Those that list or count a mask follow that mask, which is never held.
CHOOSING = _names(
    """
    argmax argmin argsort bucketize kthvalue max median min mode multinomial nanmedian searchsorted sort topk
    _to_copy
    """
)
#: those that return the chosen numbers before their places
CHOSEN_NUMBERS = _names(
    """
    kthvalue max median min mode nanmedian sort topk
    """
)


@dataclass(frozen=True)
class Operation:
    """An operation of torch, as the models of arithmetic see it.

    Attributes:
        name: the name in aten, without the mark of the form in place.
        exact: whether it rounds nothing.
        view: whether its result has the memory of an input.
        factory: whether its result does not depend on the numbers of its inputs.
        product: whether tensor cores compute it.
        wide: whether autocast computes it in float32.
        lapack: whether LAPACK computes it.
        writes: the names of the arguments whose memory it writes.
        arguments: the names of all arguments, in their order.
    """

    name: str
    exact: bool = False
    view: bool = False
    factory: bool = False
    product: bool = False
    wide: bool = False
    lapack: bool = False
    writes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


#: functions above torch's dispatcher that are one operation. Attention keeps float32 inside, by every backend. While
#: operations are followed, functions that return no vectors compute these too, by another algorithm of LAPACK.
FUSED = {
    functional.scaled_dot_product_attention: Operation("scaled_dot_product_attention", product=True),
    **{
        getattr(torch.linalg, name): Operation(f"linalg_{name}", lapack=True)
        for name in ("cond", "eigvals", "eigvalsh", "matrix_rank", "svdvals")
    },
}


@cache
def operation_of(func: Any) -> Operation:
    """The operation of an overload of torch's dispatcher."""
    schema = func._schema
    name = schema.name.split("::")[-1]
    writes = tuple(x.name for x in schema.arguments if x.alias_info is not None and x.alias_info.is_write)
    # `add_` is `add`; `__and__` is a name of its own
    if writes and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    view = any(x.alias_info is not None and not x.alias_info.is_write for x in schema.arguments)
    # scatter with reduce= adds or multiplies, so it rounds
    reduces = "reduce" in schema.overload_name
    lapack = name in LAPACK or (name.lstrip("_").startswith("linalg_") and name not in NO_LAPACK)
    return Operation(
        name,
        exact=view or (name in EXACT and not reduces),
        view=view,
        factory=name in FACTORIES,
        product=name in PRODUCTS,
        wide=name in AUTOCAST_FLOAT32,
        lapack=lapack,
        writes=writes,
        arguments=tuple(x.name for x in schema.arguments),
    )


def accumulates(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an assignment to indices adds, and so rounds."""
    if "index_put" not in operation.name:
        return False
    number = operation.arguments.index("accumulate")
    return bool(args[number] if len(args) > number else kwargs.get("accumulate", False))


def log_sum_exp(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    """``log Σ exp x`` by the operations of torch's own kernel, each of which rounds in half precision."""
    dims = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    if x.numel() == 0:
        return x.exp().sum(dims, keepdim).log()
    largest = x.amax(dims, keepdim=True)
    # a row of hidden keys only: −∞ − (−∞) would be NaN
    largest = largest.masked_fill(largest.abs() == float("inf"), 0)
    total = (x - largest).exp().sum(dims, keepdim)
    shift = largest
    if not keepdim:
        for axis in sorted((axis % x.dim() for axis in dims), reverse=True):  # the last first: numbers stay valid
            shift = shift.squeeze(axis)
    return total.log() + shift


DECOMPOSED = {"logsumexp": log_sum_exp}
