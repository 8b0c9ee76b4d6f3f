"""A survey of a model's attention modules: name, sizes, mask, and whether Q, K, V can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import SourceError
from ..grammar.arguments import checked
from ..grammar.lists import counted
from ..operators.terms import Terms
from ..rng import generator
from .choose import open_model
from .hooks.call import AttentionCall
from .hooks.capture import capture_all
from .hooks.interface import bypassing, why_refused
from .hooks.standins import only_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Forms = Mapping[str, Sequence[str]]  # names of methods, by what they have no form for
ByForm = Callable[[bool, bool, "Terms | None"], Forms]
TOKENS = 32
COLUMNS = ("layer", "module", "class", "heads", "kv", "p", "scale", "mask", "rope", "captured", "delta", "methods")
COLUMNS += ("q k v suffice",)


@checked()
def survey(name: str | Path, weights: str = "pretrained", by_form: ByForm | None = None) -> list[str]:
    """Lines about every attention call of a model, from one forward over 32 tokens (or one image).

    ``mask`` is the mask of that input, and what else changes the scores: a bias, a cap, sinks; a window wider than the
    input comes from the model's configuration. ``rope`` is the base of the rotary positions as the layer applies them.
    ``captured`` says where Q, K and V were seen: at transformers' interface, in the module's own code, or in the exact
    form of a module that approximates it. ``delta`` is the relative distance between exact attention, recomputed from
    the captured tensors, and the model's own. ``methods`` is the number of those that can run; lines below the table
    name the others with the reason.

    The last column says whether a `QKV` describes the call, so that methods can run on it, or the reason why it does
    not. ``layer`` is the number of the layer in the model; a line names the layers with attention if others have none.
    ``causal`` and ``local`` are the tags that methods need for the call; with ``sinks`` they must state their
    normaliser.

    Args:
        by_form: gives the methods by what they have no form for, as `attnprobe.methods.forms.by_form` does. None: the
            column ``methods`` is empty.

    Raises:
        SourceError: the model is missing, has no softmax attention, or reads neither text nor images.
    """
    name = str(name)
    model = open_model(name, weights)
    inputs = example(model, name)
    try:
        calls, difference = capture_all(model, inputs, name)
    except SourceError:
        if "image" not in getattr(model, "input_modalities", ()) or "pixel_values" in inputs:
            raise
        calls, difference = capture_all(model, {**inputs, **_image(model)}, name)
    asked = by_form or (lambda causal, local, terms: {})
    forms = {key: _forms_of(call, asked) for key, call in calls.items()}
    rows = [COLUMNS, *(_row(call, forms[key]) for key, call in calls.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    layers = sorted({call.layer for call in calls.values()})
    count = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    if any(layer not in layers for layer in range(count)):
        lines.append(f"attention in {counted('layer', layers)} of {count}")
    without: dict[str, list[int]] = {}
    for key, call in calls.items():
        for feature, names in (forms[key] or {}).items():
            if feature:
                without.setdefault(f"no form for {feature}: {', '.join(names)}", []).append(call.layer)
    lines += [f"{counted('layer', sorted(set(of)))}: {line}" for line, of in without.items()]
    silent = bypassing(model, [path for path, _ in calls])
    lines += [f"refused: {path}: {type(module).__name__} {why_refused(module)}" for path, module in silent]
    head = f"{name}: {type(model).__name__}, weights {weights}, {len(calls)} attention calls"
    return [head, *lines, f"outputs under capture differ from its own by {difference:.1e}"]


def example(model: PreTrainedModel, name: str) -> dict[str, Any]:
    """The inputs of a short forward, from a fixed seed."""
    draws = generator(0, "survey")
    config, main = model.config, model.main_input_name
    if main == "pixel_values":
        return _image(model)
    if main != "input_ids":
        raise SourceError(f"{name}: a {config.model_type} reads {main}; doctor has only text and images")
    words, tokens = config.get_text_config().vocab_size, only_length(config) or TOKENS
    batch = {main: torch.randint(words // 2, words, (1, tokens), generator=draws)}  # special tokens come first
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(words // 2, words, (1, TOKENS // 2), generator=draws)
    return batch


def _image(model: PreTrainedModel) -> dict[str, Tensor]:
    """An image of random numbers, as a model reads it."""
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    shape = (1, getattr(config, "num_channels", 3), height, width)
    return {"pixel_values": torch.randn(shape, generator=generator(0, "survey"))}


def _row(call: AttentionCall, forms: Forms | None) -> tuple[str, ...]:
    path = call.module if call.call == 0 else f"{call.module} (call {call.call + 1})"
    p, p_v = call.q.shape[3], call.v.shape[3]
    needs = {"causal": call.causal, "local": call.sliding_window is not None, "sinks": call.sinks is not None}
    fit = ", ".join(["yes", *(name for name, needed in needs.items() if needed)])
    mask = ", ".join([str(call.pattern), *call.extras()])
    sizes = (str(call.heads), str(call.kv_heads), str(p) if p == p_v else f"{p}/{p_v}", f"{call.scale:.4g}")
    rope = "" if call.rope is None else f"{call.rope:g}" if isinstance(call.rope, float) else "angles"
    found = (mask, rope, call.captured, f"{call.delta:.0e}", "softmax" if forms is None else _counted(forms))
    return (str(call.layer), path, call.kind, *sizes, *found, call.beyond() or fit)


def _forms_of(call: AttentionCall, by_form: ByForm) -> Forms | None:
    """The methods by what they have no form for; None if a `QKV` does not describe the call."""
    if call.beyond():
        return None
    longer = call.with_coordinate()
    biased = longer.bias is not None or longer.softcap is not None
    terms = Terms(longer.softcap, longer.bias) if biased else None
    return by_form(call.causal, call.sliding_window is not None, terms)


def _counted(forms: Forms) -> str:
    """How many of all methods have a form; empty if methods were not asked for."""
    every = sum(map(len, forms.values()))
    return f"{len(forms.get('', ()))} of {every}" if every else ""
