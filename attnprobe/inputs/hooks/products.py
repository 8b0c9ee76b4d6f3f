"""Softmax attention that a module computes by code of its own, found from the products and the softmax that it takes.

While a module runs, torch's mode shows each function that it calls. Of each product of two activations the mode follows
what the module makes of it and, beside that, what it would make of zeros. At the softmax both are known: the scores S,
and the scores S₀ without the product. If ``S - S₀`` is a number times the product, then Q and K are its factors, the
number is the scale, and S₀ is the sum of mask and bias. V is the other factor of the product with the weights. No name
of a module, a projection or an argument is used, so fused and shared projections are no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from .call import row_blocks
from .masks import lowest

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
LOG_SUM = (torch.logsumexp, Tensor.logsumexp)
MATMUL = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
BADDBMM = (torch.baddbmm, Tensor.baddbmm)
#: torch's multi-head attention, whose steps a mode sees: the original hands itself to the mode as one function
MULTI_HEAD = FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**vars(functional), "has_torch_function": lambda tensors: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")  # attributes with h, where b·h is one axis
ROUNDINGS = 32  # of the scores, by which S - S₀ may differ from a multiple of the product
NO_WEIGHT = -745.0  # exp of a lower number is 0 in float64


class NotSoftmax(Exception):
    """A module's own code computes something else than softmax attention; the message says what, after "and"."""


@dataclass(frozen=True)
class Seen:
    """Softmax attention that a module's own code computed.

    Attributes:
        q: (b, h, n_q, p). k: (b, h_kv, n_k, p). v: (b, h_kv, n_k, p_v). scale: the factor on their product.
        mask: what is added to the scores, (b or 1, h or 1, n_q, n_k); None for nothing.
        output: what the module computed, (b, n_q, h, p_v).
        coarse: whether its softmax was in float32 though its values are in float64.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: Tensor | None
    output: Tensor
    coarse: bool


@dataclass(frozen=True, eq=False)
class Product:
    """``x y`` in the layout of matrices: x (…, i, c), y (…, c, j), and the layout that the module asked for.

    It is computed again where it is needed, because a module may overwrite what it got.
    """

    x: Tensor
    y: Tensor
    back: Callable[[Tensor], Tensor] = field(default=lambda out: out)

    @property
    def shape(self) -> torch.Size:
        """That of ``x y``, (…, i, j)."""
        batch = torch.broadcast_shapes(self.x.shape[:-2], self.y.shape[:-2])
        return torch.Size((*batch, self.x.shape[-2], self.y.shape[-1]))

    def matrix(self, rows: slice = slice(None)) -> Tensor:
        """Some rows of ``x y``, (…, i, j)."""
        return self.x[..., rows, :] @ self.y


class Watch(TorchFunctionMode):
    """Shows softmax attention among the functions that are called while it is open.

    Args:
        module: whose code runs; it gives the number of heads where scores are (b·h, n_q, n_k).
        answer: gets each attention, and gives the output in its place, (b, n_q, h, p_v).
    """

    def __init__(self, module: nn.Module, answer: Callable[[Seen], Tensor]) -> None:
        super().__init__()
        self.module, self.answer, self.found = module, answer, 0
        self.refused: str | None = None  # why what the module computes is no softmax attention
        self._products: list[Product] = []
        self._without: Any = WeakIdKeyDictionary()  # tensor -> {number of a product: the tensor without it}
        self._scores: tuple[Tensor, Tensor] | None = None  # of a softmax without its product with V: S and weights

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.refused is None:
            try:
                return self._follow(func, args, kwargs)
            except NotSoftmax as why:
                self.refused = str(why)
        return func(*args, **kwargs)

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function, with what the mode knows of it."""
        if func is functional.scaled_dot_product_attention:
            return self._fused(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:
                return MULTI_HEAD(*args, **kwargs)
        if func in SOFTMAX or func in LOG_SUM:
            out = func(*args, **kwargs)
            self._softmax(func in LOG_SUM, out, *args, **kwargs)
            return out
        made = _product(func, args, kwargs)
        if made is not None and self._scores is not None and self._weighs(made.x):
            return made.back(self._attended(made))
        shadows = self._shadows(func, args, kwargs)
        out = func(*args, **kwargs)
        if made is not None and not shadows and made.y.dim() > 2:  # a matrix is that of a linear layer
            zeros = torch.zeros_like(out)
            if func in BADDBMM:  # the tensor to which the product is added
                zeros = zeros + args[0] * kwargs.get("beta", 1)
            shadows = {len(self._products): zeros}
            self._products.append(made)
        for part, tensors in _paired(out, shadows):
            self._without[part] = tensors
        return out

    def why(self) -> str | None:
        """Why nothing was found, or not all; None if it was."""
        if self.refused is None and self._scores is not None:
            return "V is not multiplied by the weights of its softmax, but by what it makes of them"
        return self.refused

    def _shadows(self, func: Any, args: Any, kwargs: Any) -> dict[int, Any]:
        """The result of a function for each product without which its arguments are known."""
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x in self._without]
        numbers = {number for x in given for number in self._without[x]}
        name, target = getattr(func, "__name__", ""), args[0] if args else None
        writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
        shadows = {}
        for number in numbers:

            def without(x: Any, number: int = number) -> Any:
                return self._without[x].get(number, x) if isinstance(x, Tensor) and x in self._without else x

            others = tree_map(without, args)
            if writes and isinstance(target, Tensor) and others[0] is target:
                others = (target.clone(), *others[1:])
            shadows[number] = func(*others, **tree_map(without, kwargs))
            if writes and isinstance(target, Tensor):
                self._without.setdefault(target, {})[number] = others[0]
        return shadows

    def _softmax(self, log: bool, out: Tensor, scores: Tensor, dim: Any = None, *_: Any, **given: Any) -> None:
        if scores not in self._without:
            return
        dim = given.get("dim", dim)
        if dim not in (-1, scores.dim() - 1):
            raise NotSoftmax(f"it takes a softmax over the axis {dim} of its scores, not over the keys")
        if self._scores is not None or self.found:
            raise NotSoftmax("it takes more than one softmax")
        self._scores = scores, torch.softmax(scores, -1) if log else out

    def _weighs(self, x: Tensor) -> bool:
        """Whether x are the weights of the softmax that was seen."""
        assert self._scores is not None
        weights = self._scores[1]
        if x.numel() != weights.numel() or x.shape[-2:] != weights.shape[-2:]:
            return False
        same, eps = weights.reshape(x.shape), max(torch.finfo(x.dtype).eps, torch.finfo(weights.dtype).eps)
        return x.data_ptr() == weights.data_ptr() or torch.allclose(x.to(same), same, rtol=ROUNDINGS * eps, atol=eps)

    def _attended(self, weighed: Product) -> Tensor:
        """The output in place of a product of weights and V, in its layout."""
        assert self._scores is not None
        scores, weights = self._scores
        self._scores, self.found = None, self.found + 1
        terms, rest = self._terms(scores)
        first = self._products[terms[0][0]]
        computed = weighed.matrix()
        b, h = self._sizes(scores, first.x, computed)
        scale = terms[0][1]
        factors = [
            (_heads(self._products[number].x, b, h) * (factor / scale), _heads(self._products[number].y.mT, b, h))
            for number, factor in terms
        ]
        q, k = _heads(first.x, b, h), factors[0][1]
        if len(factors) > 1:
            kv = max(k.shape[1] for _, k in factors)
            q = torch.cat([q for q, _ in factors], -1)
            k = torch.cat([k.expand(-1, kv, -1, -1) for _, k in factors], -1)
        v = _heads(weighed.y, b, h)
        output = computed.reshape(b, h, *computed.shape[-2:]).transpose(1, 2)
        coarse = weights.dtype == torch.float32 and v.dtype == torch.float64 or scores.dtype != q.dtype
        seen = _seen(
            q.expand(-1, h, -1, -1),
            k,
            v,
            scale,
            rest.reshape(b, h, *rest.shape[-2:]),
            output,
            coarse or q.dtype != v.dtype,
        )
        return self.answer(seen).to(output).transpose(1, 2).reshape(computed.shape)

    def _terms(self, scores: Tensor) -> tuple[list[tuple[int, float]], Tensor]:
        """The products of which the scores are a sum, with their factors, and the scores without them."""
        known = self._without[scores]
        fits = {number: self._factor(self._products[number], scores, other) for number, other in known.items()}
        terms = [(number, factor) for number, factor in fits.items() if factor is not None]
        if not terms:
            raise NotSoftmax("its scores are not a number times Q Kᵀ, plus what does not depend on that product")
        rest = known[terms[0][0]]
        for number, factor in terms[1:]:
            rest = rest - factor * self._products[number].matrix().reshape(rest.shape)
        return terms, rest

    def _factor(self, factors: Product, scores: Tensor, without: Tensor) -> float | None:
        """f, if ``scores - without`` is f times a product wherever a key has weight; None if it is not.

        It is found in blocks of rows, because all scores in float64 would take many times the memory of the forward.
        """
        if factors.shape.numel() != scores.numel() or factors.shape[-2:] != scores.shape[-2:]:
            return None
        scores, without = scores.detach(), without.detach()
        parts = [slice(*part) for part in row_blocks(scores)]
        both = squares = 0.0
        for rows in parts:
            own, difference, size, _ = _compared(factors, scores, without, rows)
            wide = own / size
            both += float((wide * (difference / size)).sum())
            squares += float(wide.square().sum())
        if not squares:
            return None
        factor = both / squares
        eps = max(torch.finfo(scores.dtype).eps, torch.finfo(factors.x.dtype).eps)
        for rows in parts:
            own, difference, size, terms = _compared(factors, scores, without, rows)
            allowed = ROUNDINGS * eps * (size + abs(factor) * terms)
            if not bool(((difference - factor * own).abs() <= allowed).all()):
                return None
        return factor or None

    def _sizes(self, *tensors: Tensor) -> tuple[int, int]:
        """b and h, from a tensor (b, h, ·, ·), else from the module."""
        for x in tensors:
            if x.dim() == 4:
                return x.shape[0], x.shape[1]
        named = [size for name in HEADS if isinstance(size := getattr(self.module, name, None), int)]
        rows = tensors[0].shape[0] if tensors[0].dim() == 3 else 1
        if not named or rows % named[0] or any(x.dim() > 4 for x in tensors):
            raise NotSoftmax("its heads cannot be told apart")
        return rows // named[0], named[0]

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """The output in place of a call of torch's attention, (b, h, n_q, p_v)."""
        given = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask, **given)
        if query.dim() != 4:
            raise NotSoftmax("its heads cannot be told apart")
        mask = attn_mask
        if is_causal:
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
        if mask is not None and mask.dtype == torch.bool:
            mask = query.new_zeros(mask.shape).masked_fill(~mask, lowest(query.dtype))
        self.found += 1
        factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
        seen = _seen(query, key, value, factor, mask, out.transpose(1, 2), coarse=False)
        return self.answer(seen).to(out).transpose(1, 2)


def _compared(factors: Product, scores: Tensor, without: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Some rows of a product, of the scores less those without it, of their sizes, and of the products of norms.

    All are float64, (…, rows, n_k). The first two are 0 where the key has no weight, or is the only one that has.
    """
    s, rest = (x[..., rows, :].double().clamp(min=lowest(x.dtype)) for x in (scores, without))
    own = factors.matrix(rows).detach().double().reshape(s.shape)
    heavy = (s - s.amax(-1, keepdim=True) > NO_WEIGHT) & (rest > lowest(scores.dtype) / 2)
    heavy &= heavy.sum(-1, keepdim=True) > 1  # of one key alone any score gives the weight 1
    x, y = factors.x[..., rows, :].detach().double(), factors.y.detach().double()
    terms = (x.norm(dim=-1)[..., None] * y.norm(dim=-2)[..., None, :]).expand(*factors.shape[:-2], -1, -1)
    size = s.abs() + rest.abs() + 1e-30
    return own.masked_fill(~heavy, 0), (s - rest).masked_fill(~heavy, 0), size, terms.reshape(s.shape)


def _paired(out: Any, shadows: Mapping[int, Any]) -> list[tuple[Tensor, dict[int, Tensor]]]:
    """Each tensor of a result, with what it is without each product."""
    if not shadows:
        return []
    parts = {number: tree_leaves(shadow) for number, shadow in shadows.items()}
    return [
        (part, {number: of[place] for number, of in parts.items()})
        for place, part in enumerate(tree_leaves(out))
        if isinstance(part, Tensor)
    ]


def _product(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Product | None:
    """The product of two tensors that a function computes; None for another function."""
    if func is Tensor.__rmatmul__:
        func, args = torch.matmul, (args[1], args[0])
    if func in MATMUL and len(args) == 2 and min(x.dim() for x in args) >= 2:
        return Product(*args)
    if func in BADDBMM:
        factors = [*args[1:3], *(kwargs[name] for name in ("batch1", "batch2") if name in kwargs)]
        return Product(*factors)
    if func is torch.einsum and isinstance(args[0], str):
        operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        return _einsum(args[0], *operands) if len(operands) == 2 else None
    return None


def _einsum(equation: str, x: Tensor, y: Tensor) -> Product | None:
    """The product of matrices of an einsum with axes of batches, one free axis of each operand and one common one."""
    inputs, _, result = equation.replace(" ", "").partition("->")
    of_x, _, of_y = inputs.partition(",")
    if "." in equation or not result:
        return None
    batch = [axis for axis in result if axis in of_x and axis in of_y]
    free_x, free_y = ([axis for axis in own if axis in result and axis not in batch] for own in (of_x, of_y))
    common = [axis for axis in of_x if axis in of_y and axis not in result]
    if (len(free_x), len(free_y), len(common)) != (1, 1, 1) or len(of_x) + len(of_y) != 2 * len(batch) + 4:
        return None

    def placed(of: str, axes: list[str], tensor: Tensor) -> Tensor:
        return tensor.permute([of.index(axis) for axis in axes])

    axes = [*batch, *free_x, *free_y]
    left, right = placed(of_x, [*batch, *free_x, *common], x), placed(of_y, [*batch, *common, *free_y], y)
    return Product(left, right, lambda out: out.permute([axes.index(axis) for axis in result]))


def _heads(x: Tensor, b: int, h: int) -> Tensor:
    """A factor (b, h or fewer, n, ·) of (…, n, ·)."""
    if x.dim() == 4:
        return x if x.shape[0] == b else x.expand(b, -1, -1, -1)
    return x.reshape(b, -1, *x.shape[-2:]) if x.dim() == 3 and len(x) % b == 0 else x.expand(b, h, *x.shape[-2:])


def _seen(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, output: Tensor, coarse: bool) -> Seen:
    """What was seen, with a positive scale, tensors of one dtype and no axis of the mask that repeats itself."""
    wide = torch.promote_types(q.dtype, v.dtype)
    q, k, v = (x.detach().to(wide) if not torch.is_grad_enabled() else x.to(wide) for x in (q, k, v))
    if scale < 0:
        q, scale = -q, -scale
    for usual in (1.0, q.shape[-1] ** -0.5):  # which the module rounds
        if abs(scale - usual) <= ROUNDINGS * torch.finfo(torch.float32).eps * usual:
            scale = usual
    kv = max(k.shape[1], v.shape[1])
    k, v = (x.expand(-1, kv, -1, -1) for x in (k, v))
    every = _equal_heads(k, v)
    k, v = k[:, ::every], v[:, ::every]
    if mask is not None:
        mask = _once(mask)
        if not bool(mask.amin() >= lowest(mask.dtype)):
            mask = _once(mask.clamp(min=lowest(mask.dtype)))
        mask = mask.to(wide)
        mask = mask if bool(mask.any()) else None
    return Seen(q, k, v, scale, mask, output, coarse)


def _once(mask: Tensor) -> Tensor:
    """A mask (b, h, n_q, n_k) without the axes of texts and heads along which it repeats itself."""
    for axis in range(mask.dim() - 2):
        if mask.shape[axis] > 1 and torch.equal(mask, mask.narrow(axis, 0, 1).expand_as(mask)):
            mask = mask.narrow(axis, 0, 1)
    return mask


def _equal_heads(k: Tensor, v: Tensor) -> int:
    """The number of consecutive heads that share keys and values, as grouped queries do when they were repeated."""
    h, group = k.shape[1], 1
    for size in range(2, h + 1):
        if h % size == 0:
            parts = (x.unflatten(1, (-1, size)) for x in (k, v))
            if all(torch.equal(x, x[:, :, :1].expand_as(x)) for x in parts):
                group = size
            elif group == 1 and not torch.equal(k[:, 0], k[:, 1]):
                break
    return group
