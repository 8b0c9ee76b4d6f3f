"""Captures Q, K, V of a running model, and verifies that they determine its attention.

A function in transformers' attention interface calls the model's own eager attention, so the forward does not change.
Modules that compute attention themselves are watched, see `attnprobe.inputs.hooks.products`. Both record Q, K, V, the
mask and further inputs (a bias, a cap, sinks) of the selected calls. Each capture is verified: exact attention,
recomputed in float64 from the captured tensors, must equal the model's own output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ...errors import SourceError, UsageError
from ...grammar.arguments import checked
from ...grammar.foreign import reason
from .blocks import Blocks, Finished, watched
from .call import AttentionCall, blocks, joined
from .interface import Computed, Masks, Selection, bypassed, call_of, put, switched
from .numbering import Numbering, numbered, trace
from .rope import Rope, rope_of, ropes
from .standins import only_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Result = TypeVar("Result")

NAME = "attnprobe_capture"
#: inputs of a forward with the attention calls of a `trace`
TOKENS = frozenset(("input_ids", "attention_mask", "position_ids", "token_type_ids", "past_key_values", "use_cache"))
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # about 80 and 4500 roundings; half dtypes have 1e-2

_active: ContextVar[_Recorder | None] = ContextVar("attnprobe_capture", default=None)


@checked(model=torch.nn.Module)
def capture(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    layers: str | int | Iterable[str | int] | None = None,
    *,
    blocks: bool = False,
) -> dict[tuple[str, int], AttentionCall]:
    """Run ``model(**inputs)`` and return its attention calls, each verified, by module name and call.

    It takes any model whose attention is softmax attention, through transformers' interface or by code of its own:
    encoders, decoders, encoder-decoders, vision models. A module that computes an approximation (Nyströmformer,
    BigBird, Longformer, Reformer) gives the exact attention for which it stands, and what it computes, `own`.
    Each call has Q, K, V after RoPE and norms, the scale, mask, bias, cap and sinks of the model, and ``delta``, the
    relative distance of the recomputed attention from the model's own. Cost: the forward, and exact attention in
    float64 of each selected call, in blocks of rows.

    Args:
        model: in evaluation mode. inputs: the arguments of its forward.
        layers: numbers of layers in the model (``"0-5"``), patterns of module names (``"decoder.*.encoder_attn"``), or
            None for all. A number means every attention call of the layer, in encoder-decoders those of both. If the
            inputs are only tokens, the forward stops after the last selected call.
        blocks: also find each call's `Block`, for `residual_errors`: the output projection, a norm behind it, and the
            sizes of the residual stream. A call whose block is not found has None. The forward is whole.

    Raises:
        SourceError: the model has no softmax attention or computes more than is captured, or its forward fails.
        UsageError: a layer that was never reached, or a model in training mode.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)).eval()
    >>> calls = capture(model, {"input_ids": torch.arange(6)[None]})
    >>> list(calls), calls["encoder.layer.0.attention.self", 0].q.shape
    ([('encoder.layer.0.attention.self', 0)], torch.Size([1, 2, 6, 4]))
    """
    recorder = _Recorder(type(model).__name__, Selection(layers))
    if not blocks and TOKENS.issuperset(inputs):
        recorder.stop_after_last(model)
    return _captured(recorder, model, lambda: model(**inputs), blocks)[1]


def captured_forward(
    model: PreTrainedModel,
    forward: Callable[[], Result],
    layers: Iterable[int],
    first: int = 0,
    seen: Callable[[int, torch.nn.Module, Tensor], None] | None = None,
) -> tuple[Result, dict[int, AttentionCall]]:
    """The result of ``forward``, a call of ``model``, and the attention of each of ``layers``, as `capture` gives it.

    Each call keeps its exact output in float64, which its verification computes. Each block has `Block.last`.

    Args:
        first: the first token whose attention is needed exactly. Those of earlier blocks of rows are not verified.
        seen: gets the number, the module and the keys of every attention call, before the next one begins.
    """
    recorder = _Recorder(type(model).__name__, Selection(layers), exact=True, first=first, keys=seen)
    result, calls = _captured(recorder, model, forward, blocks=True)
    return result, recorder.by_layer(calls.values())


def _captured(
    recorder: _Recorder, model: PreTrainedModel, forward: Callable[[], Result], blocks: bool
) -> tuple[Result, dict[tuple[str, int], AttentionCall]]:
    """The result of ``forward``, None if it was stopped early, and its selected calls."""
    if model.training:
        raise UsageError(f"{type(model).__name__} is in training mode, which applies dropout: call model.eval()")
    with watched(model) if blocks else nullcontext() as recorder.blocks:
        result = _run(recorder, model, forward)
    if missing := recorder.missing():
        raise UsageError(f"{recorder.model}: {missing}")
    return result, recorder.by_name()


def capture_all(
    model: PreTrainedModel, inputs: Mapping[str, Any], name: str | None = None
) -> tuple[dict[tuple[str, int], AttentionCall], float]:
    """All attention calls of a forward, and the distance of the model's outputs under capture from its own outputs.

    The distance is relative, the largest over the output tensors. It reveals a mask that never arrived at the
    interface. The verification of a single call cannot reveal it, because it uses the mask of that call.
    """
    recorder = _Recorder(name or type(model).__name__, Selection())
    with torch.no_grad():
        captured = _run(recorder, model, lambda: seeded(model, lambda: model(**inputs)))
        own = seeded(model, lambda: model(**inputs))
    pairs = [(a, b) for a, b in zip(captured.to_tuple(), own.to_tuple(), strict=True) if isinstance(a, Tensor)]
    distances = [float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-300)) for a, b in pairs]
    return recorder.by_name(), max(distances)


def seeded(model: PreTrainedModel, forward: Callable[[], Result]) -> Result:
    """The result of a forward whose draws are the same each time; Reformer draws its hashes in every forward."""
    on_cpu = model.device.type == "cpu"
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        # torch.manual_seed seeds every device: until CUDA is used it keeps a stack for that, which takes milliseconds
        (torch.default_generator if on_cpu else torch).manual_seed(0)
        return forward()


def capture_layers(
    model: PreTrainedModel,
    name: str,
    layers: Iterable[int],
    forward: Callable[[], Any],
    queries: Tensor | None = None,
    cached: bool = False,
) -> dict[int, AttentionCall]:
    """Run ``forward``, a call of ``model``, and return the attention of ``layers``, which a `QKV` describes.

    Args:
        model: any transformers model, in evaluation mode.
        name: the model's name in messages.
        layers: the numbers of layers in the model.
        forward: calls the model; an exception stops it after the last selected layer.
        queries: the tokens of the forward whose queries are captured and verified, (n_q,) int64; None is all.
        cached: whether these tokens follow a cache of keys.

    Raises:
        SourceError: the model has no softmax attention, masks single tokens, or computes more than ``softmax(scale · Q
            Kᵀ) V`` over the tokens that a `QKV` makes visible, with or without sinks; its forward fails; a layer was
            never reached, or has several attention matrices.
    """
    recorder = _Recorder(name, Selection(layers), plain=True, queries=queries, cached=cached)
    recorder.stop_after_last(model)
    with watched(model, recorder.last) as recorder.blocks:
        _run(recorder, model, lambda: seeded(model, forward))
    if missing := recorder.missing():
        raise SourceError(f"{name}: {missing}")
    return recorder.by_layer(recorder.by_name().values())


@dataclass
class _Recorder:
    """Records the selected attention calls of a forward."""

    model: str
    selection: Selection
    plain: bool = False
    queries: Tensor | None = None
    cached: bool = False
    numbering: Numbering = field(init=False)
    captured: dict[int, AttentionCall] = field(default_factory=dict)  # by the numbers of calls
    masks: Masks = field(default_factory=Masks)
    blocks: Blocks | None = None
    exact: bool = False
    first: int = 0  # of the tokens that are verified
    ropes: Mapping[str, Rope] = field(default_factory=dict)
    keys: Callable[[int, torch.nn.Module, Tensor], None] | None = None  # gets those of each call
    last: int | None = None  # the number of the last selected call, after which the forward stops; None: it goes on

    def refuse(self, layer: int, why: str) -> SourceError:
        return SourceError(f"{self.model} is refused at layer {layer}: {why}")

    def stop_after_last(self, model: torch.nn.Module) -> None:
        """Stop the forward after the last selected call, if it is known beforehand."""
        known = trace(model)
        if known is not None and not self.selection.everything:
            self.last = known.last(lambda place: self.selection.takes(place.layer, place.module))

    def missing(self) -> str | None:
        """What is selected and was never reached, in words; None if all was."""
        return self.selection.missing((place.layer, place.module) for place in self.numbering.seen)

    def by_layer(self, calls: Iterable[AttentionCall]) -> dict[int, AttentionCall]:
        """The attention of each layer. Several calls with one matrix are joined."""
        layers: dict[int, list[AttentionCall]] = {}
        for call in calls:
            layers.setdefault(call.layer, []).append(call)
        found = {}
        for layer, own in layers.items():
            call_of_layer = joined(own)
            if call_of_layer is None:
                raise self.refuse(
                    layer,
                    f"it calls attention {len(own)} times with different queries, keys or masks; "
                    "attnprobe.capture gives each call, and attnprobe.injected replaces all",
                )
            found[layer] = call_of_layer
        return found

    def by_name(self) -> dict[tuple[str, int], AttentionCall]:
        found = {} if self.blocks is None else self.blocks.found
        last = None if self.blocks is None or not self.exact else found.get(self.blocks.last or 0)
        if last is not None:
            found = {number: replace(block, last=last.size) for number, block in found.items()}
        if self.queries is not None:
            found = {number: block.at(slice(None), self.queries) for number, block in found.items()}
        calls = [
            replace(call, block=found.get(number), rope=rope_of(self.ropes, call))
            for number, call in self.captured.items()
        ]
        return {(call.module, call.call): call for call in calls}


def _run(recorder: _Recorder, model: PreTrainedModel, forward: Callable[[], Any]) -> Any:
    """Run ``forward`` with its attention recorded, and return its result; None if it was stopped early."""
    result = None
    put(NAME, _attention)
    token = _active.set(recorder)
    try:
        with (
            numbered(model) as recorder.numbering,
            switched(model, NAME, recorder.model) as implementation,
            torch.no_grad(),
        ):
            recorder.masks = Masks(implementation)
            result = forward()
    except Finished:
        pass
    except (SourceError, UsageError):
        raise
    except Exception as error:  # a model may raise anything on inputs that it does not support
        why = f"its forward failed ({reason(error)})"
        if (tokens := only_length(model.config)) is not None:
            why += f"; it reads only texts of {tokens} tokens"
        if (recorder.plain or recorder.exact) and (reads := _also_reads(model)) is not None:
            why = f"{reads}, and commands give it text alone; attnprobe.capture takes any inputs"
        raise SourceError(f"{recorder.model}: {why}") from error
    finally:
        _active.reset(token)
    if not recorder.numbering.seen:
        raise bypassed(model, recorder.model)
    recorder.ropes = ropes(model)
    return result


def _also_reads(model: PreTrainedModel) -> str | None:
    """What a model reads, if its class says that it is not text alone."""
    kinds = getattr(model, "input_modalities", "text")
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    return None if names == ("text",) else f"a {model.config.model_type} reads {' and '.join(names)}"


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,  # by its place, where kvpress has wrapped this function
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls: query (b, h, n, p), key and value (b, h_kv, n, ·), mask (b, 1, n, n)."""
    recorder = _active.get()
    masks = Masks() if recorder is None else recorder.masks
    rows = masks.own(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    if recorder is None:
        return torch.cat([rows(slice(*block)) for block in blocks(query, key)], dim=1), None
    place = recorder.numbering.next(module)
    if recorder.blocks is not None and place.number - 1 == recorder.blocks.until:
        raise Finished  # the block of the last call was not found
    last = place.number == recorder.last
    if isinstance(rows, Computed):
        output = rows(slice(None))
    elif recorder.queries is not None and last:  # nothing reads the other rows
        parts = [rows(part) for part in recorder.queries.split(_step(query, key))]
        output = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        output[:, recorder.queries] = torch.cat(parts, dim=1)
    else:
        output = torch.cat([rows(slice(*block)) for block in blocks(query, key)], dim=1)  # (b, n, h, p_v)
    if recorder.numbering.forwards > 1:  # calls are those of the first
        return output, None
    if recorder.keys is not None:
        recorder.keys(place.number, module, key)
    if recorder.selection.takes(place.layer, place.module):
        captured = call_of(module, query, key, value, rows.mask.numbers, scaling, kwargs, place, recorder.masks)
        own = rows.output if isinstance(rows, Computed) else output
        if recorder.plain:
            captured = captured.without_end()
            own = own[:, : captured.q.shape[2]]
            _check_plain(recorder, captured)
        if recorder.queries is not None:
            captured, own = captured.at(recorder.queries), own[:, recorder.queries]
        recorder.captured[place.number] = _verified(recorder, captured, own, rows.coarse)
    if recorder.blocks is not None and (recorder.exact or place.number in recorder.captured):
        recorder.blocks.attended(place.module, place.number, output)
    if last and recorder.blocks is None:
        raise Finished
    return output, None


def _step(query: Tensor, key: Tensor) -> int:
    """The rows of a block."""
    start, stop = next(blocks(query, key))
    return stop - start


def _check_plain(recorder: _Recorder, call: AttentionCall) -> None:
    """Refuse every call except self-attention over a complete text that a `QKV` describes."""
    n_q, n_k = call.q.shape[2], call.k.shape[2]
    if n_q != n_k and not (recorder.cached and call.cached and call.causal):
        raise recorder.refuse(call.layer, f"{n_q} queries, {n_k} keys: self-attention is needed")
    fault = call.beyond()
    if fault is None and call.pattern.keys is not None:
        fault = "masked attention is not supported"
    if fault is not None:
        raise recorder.refuse(
            call.layer, f"{fault}, only full, causal and sliding-window attention, with or without sinks"
        )


def _verified(recorder: _Recorder, call: AttentionCall, output: Tensor, coarse: bool) -> AttentionCall:
    """The captured call with its ``delta``, after the check that it reproduces the model's own output.

    ``coarse``: the model's softmax was in float32, which limits the accuracy.
    """
    for letter, tensor in (("Q", call.q), ("K", call.k), ("V", call.v)):
        if not bool(torch.isfinite(tensor).all()):
            raise recorder.refuse(call.layer, f"its {letter} holds NaN or infinity; are its weights damaged?")
    exact = None
    if recorder.exact:
        size = len(call.q), call.q.shape[2], call.heads, call.v.shape[3]
        exact = output.new_full(size, torch.nan, dtype=torch.float64)
    delta, largest = _distance(call, output, exact, recorder.first)
    dtype = torch.float32 if coarse and call.q.dtype == torch.float64 else call.q.dtype
    dtype = max(dtype, output.dtype, key=lambda kind: torch.finfo(kind).eps)  # some modules score in float32
    eps = torch.finfo(dtype).eps
    allowed = max(TOLERANCE.get(dtype, 1e-2), eps * largest)  # a score s has an error of about s·eps
    if not delta < allowed:
        raise recorder.refuse(
            call.layer,
            f"attention rebuilt from its Q, K, V differs from its own by {delta:.1e} (relative; {allowed:.0e} is "
            f"allowed), so {call.kind} does more than is captured",
        )
    return replace(call, delta=delta, exact=exact)


def _distance(call: AttentionCall, output: Tensor, kept: Tensor | None = None, first: int = 0) -> tuple[float, float]:
    """Relative Frobenius distance of exact attention (float64) to ``output``, and the largest score.

    It is that of the blocks of rows from the row ``first`` on. The exact rows are written to ``kept``.
    Queries without visible keys are left out, because their softmax depends on the kernel.
    """
    difference = norm = largest = 0.0
    sees = None if call.visible is None else call.visible.any(-1)  # (b, 1 or h, n_q)
    for start, stop, exact, top in call.output_blocks(first):
        if kept is not None:
            kept[:, start:stop] = exact
        gap = exact - output[:, start:stop].reshape(exact.shape)
        if sees is not None:
            gap = gap.masked_fill(~sees[:, :, start:stop].transpose(1, 2)[..., None], 0.0)
        difference += float(gap.square().sum())
        norm += float(exact.square().sum())
        largest = max(largest, top)
    if norm == 0.0:
        return difference**0.5, largest
    return (difference / norm) ** 0.5, largest
