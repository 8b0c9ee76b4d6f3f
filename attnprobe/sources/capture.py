"""Reading Q, K, V out of a running model, and proving that they are what its attention used.

transformers ≥ 5 hands every attention call to a registered function, after RoPE, before heads are repeated. Ours
computes what the model's own eager function computes, so the model goes on as it would, and keeps Q, K, V of the
layers that are wanted. A model's own extras (a position bias, a soft cap, sinks) or a path round the interface would
make Q, K, V alone a wrong description. So each captured layer is proved: ``softmax(scale · Q Kᵀ) V``, rebuilt in
float64 from what was captured, must equal what the model computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import SourceError, UsageError
from .hub import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Captured", "capture"]

NAME = "attnprobe_capture"
BLOCK_BYTES = 2**25  # of scores alive at a time: on a CPU 2.5 times faster than blocks of 2**28
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}

_active: ContextVar[_Recorder | None] = ContextVar("attnprobe_capture", default=None)


@dataclass(frozen=True)
class Captured:
    """One attention call: q, k, v are ``(batch, h, n, ·)``; ``scale`` is what the model passed."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    module: str


class _Finished(Exception):
    """Ends a forward behind the last layer that is wanted."""


@dataclass
class _Recorder:
    """Counts attention calls (call number = layer) and keeps the wanted ones."""

    model: str
    wanted: frozenset[int]
    names: dict[int, str]
    calls: int = 0
    captured: dict[int, Captured] = field(default_factory=dict)

    def refuse(self, layer: int, why: str) -> SourceError:
        return SourceError(f"{self.model} is refused at layer {layer}: {why}")


def capture(
    model: PreTrainedModel, name: str, layers: Iterable[int], forward: Callable[[], Any]
) -> dict[int, Captured]:
    """Run ``forward``, a call of ``model``, and return the proven attention inputs of ``layers``.

    Args:
        model: any transformers model, in evaluation mode.
        name: what messages call it.
        layers: numbers of attention calls in the order in which the forward makes them.
        forward: it is left at the last wanted layer by an exception of our own.

    Raises:
        SourceError: the model bypasses the interface, masks tokens, or computes something else than
            ``softmax(scale · Q Kᵀ) V``; its forward fails; or a layer was never reached.
    """
    _register()
    wanted = frozenset(layers)
    recorder = _Recorder(name, wanted, {id(module): path for path, module in model.named_modules()})
    token = _active.set(recorder)
    try:
        with _through_us(model), torch.no_grad():
            forward()
    except _Finished:
        pass
    except (SourceError, UsageError):
        raise
    except Exception as error:  # whatever a model raises that does not read token ids as we feed them
        line = (str(error).strip().splitlines() or [""])[0]
        raise SourceError(f"{name}: its forward failed ({type(error).__name__}: {line})") from error
    finally:
        _active.reset(token)
    if recorder.calls == 0:
        raise SourceError(
            f"{name} bypasses transformers' attention interface ({type(model).__name__} made no call): not supported"
        )
    missing = sorted(wanted - set(recorder.captured))
    if missing:
        raise SourceError(f"{name}: layer {missing[0]} was never reached, it made {recorder.calls} attention calls")
    return recorder.captured


@contextmanager
def _through_us(model: PreTrainedModel) -> Iterator[None]:
    """Send the model's attention calls to `_attention` for the length of a block."""
    before = model.config._attn_implementation
    with quiet():
        try:
            model.set_attn_implementation(NAME)
            yield
        finally:
            model.set_attn_implementation(before)


def _register() -> None:
    """Register function and mask under the private name; without the mask half, masks would vanish silently."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    if NAME not in AttentionInterface().valid_keys():
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, eager_mask)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: query (b, h, n, p), key and value (b, h_kv, n, ·), mask additive (b, 1, n, n)."""
    recorder = _active.get()
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    layer = recorder.calls if recorder is not None else 0
    if eager is None:
        who = recorder.model if recorder is not None else type(module).__name__
        raise SourceError(f"{who}: {type(module).__module__} has no eager attention to compare with: not supported")

    def rows(start: int, stop: int) -> Tensor:
        """The model's own attention of some query rows, (b, rows, h, p_v)."""
        cut = lambda x: _query_rows(x, query.shape[2], key.shape[2], start, stop)
        extras = {name: cut(extra) for name, extra in kwargs.items()}
        arguments = (module, query[:, :, start:stop], key, value, cut(attention_mask))
        return eager(*arguments, scaling=scaling, dropout=dropout, **extras)[0]

    blocks = list(_blocks(query, key))
    output = torch.cat([rows(*block) for block in blocks], dim=1)  # (b, n, h, p_v)
    if recorder is not None:
        recorder.calls += 1
        if layer in recorder.wanted:
            recorder.captured[layer] = _proved(
                recorder, layer, module, query, key, value, attention_mask, scaling, output
            )
            if layer == max(recorder.wanted):
                raise _Finished
    return output, None


def _proved(
    recorder: _Recorder,
    layer: int,
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    output: Tensor,
) -> Captured:
    """The captured call, once it is shown that Q, K, V and the scale alone give the model's own output."""
    if query.shape[2] != key.shape[2]:
        raise recorder.refuse(layer, f"{query.shape[2]} queries, {key.shape[2]} keys: self-attention is needed")
    if mask is not None and bool((~mask if mask.dtype == torch.bool else mask != 0).any()):
        raise recorder.refuse(layer, f"{_mask_kind(mask)} attention is not supported yet, only full attention")
    for letter, tensor in (("Q", query), ("K", key), ("V", value)):
        if not bool(torch.isfinite(tensor).all()):
            raise recorder.refuse(layer, f"its {letter} holds NaN or infinity; are its weights damaged?")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    groups = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
    error, largest = _distance(query, k, v, scale, output)
    eps = torch.finfo(query.dtype).eps
    allowed = max(TOLERANCE.get(query.dtype, 1e-2), eps * largest)  # a score s is only known to about s·eps
    if not error < allowed:
        raise recorder.refuse(
            layer,
            f"attention rebuilt from its Q, K, V differs from its own by {error:.1e} (relative; {allowed:.0e} is "
            "allowed), so it is more than softmax(scale · Q Kᵀ) V",
        )
    return Captured(query, k, v, scale, recorder.names.get(id(module), type(module).__name__))


def _distance(q: Tensor, k: Tensor, v: Tensor, scale: float, output: Tensor) -> tuple[float, float]:
    """Relative Frobenius distance of exact attention (float64) to ``output``, and the largest score."""
    difference = norm = 0.0
    largest = 0.0
    k, v = k.double(), v.double()
    for start, stop in _blocks(q, k, bytes_each=8):
        scores = (q[:, :, start:stop].double() * scale) @ k.transpose(-2, -1)  # (b, h, rows, n)
        largest = max(largest, *(abs(float(x)) for x in torch.aminmax(scores)))
        exact = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)  # (b, rows, h, p_v)
        difference += float((exact - output[:, start:stop].reshape(exact.shape)).square().sum())
        norm += float(exact.square().sum())
    if norm == 0.0:
        return difference**0.5, largest
    return (difference / norm) ** 0.5, largest


def _blocks(q: Tensor, k: Tensor, bytes_each: int = 4) -> Iterator[tuple[int, int]]:
    """Blocks of query rows whose scores stay below `BLOCK_BYTES`."""
    row = q.shape[0] * q.shape[1] * k.shape[2] * bytes_each
    step = max(1, BLOCK_BYTES // row)
    for start in range(0, q.shape[2], step):
        yield start, min(start + step, q.shape[2])


def _query_rows(x: Any, n_q: int, n_k: int, start: int, stop: int) -> Any:
    """The rows of anything shaped like scores, (…, n_q, n_k); everything else as it is."""
    if isinstance(x, Tensor) and x.dim() >= 2 and x.shape[-2] == n_q and x.shape[-1] == n_k:
        return x[..., start:stop, :]
    return x


def _mask_kind(mask: Tensor) -> str:
    """What to call a mask that hides something."""
    hidden = (~mask if mask.dtype == torch.bool else mask != 0).flatten(0, -3)[0]  # (n_q, n_k)
    n = hidden.shape[-1]
    if torch.equal(hidden, torch.ones_like(hidden).triu(1)):
        return "causal"
    if not bool(hidden.diagonal().any()) and bool(hidden[0, -1]) and n > 2:
        return "sliding-window"
    return "masked"
