"""The sources of queries, keys and values: a model that reads a text, a file, or random numbers.

`resolve` turns a `SourceSpec` into a `Source` with its provenance; `load_qkv` is both steps in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..grammar.arguments import checked
from ..operators.block import Block
from ..qkv import QKV
from .choose import describe_defaults, resolve
from .files import FileSource
from .hooks.call import AttentionCall
from .hooks.capture import capture
from .hub import cached_models, hub_reachable, note
from .model import ModelSource
from .packaged import packaged_weights
from .random import RandomSource
from .save import save_qkv
from .scaled import scaled, scaled_inputs
from .spec import Source, SourceSpec, as_text, choose_device
from .surveying import survey

__all__ = [
    "AttentionCall",
    "Block",
    "FileSource",
    "ModelSource",
    "RandomSource",
    "Source",
    "SourceSpec",
    "cached_models",
    "capture",
    "choose_device",
    "describe_defaults",
    "hub_reachable",
    "load_qkv",
    "packaged_weights",
    "resolve",
    "save_qkv",
    "scaled",
    "scaled_inputs",
    "survey",
]


@checked()
def load_qkv(
    model: str | Path | None = None,
    weights: str = "pretrained",
    text: str | Path | None = None,
    n: int | None = None,
    layer: int = 0,
    *,
    window: int = 0,
    weights_seed: int = 0,
    split: str = "test",
    tokenizer: str | Path | None = None,
    positions: str = "segment",
    scores: str = "model",
    device: str = "auto",
    dtype: str = "float32",
    strict: bool = False,
    qkv: str | Path | None = None,
    cache: bool = True,
    queries: str | Path | None = None,
    notify: Callable[[str], None] = note,
) -> QKV:
    """Q, K, V of ``n`` tokens at one layer of a model that reads a text, or from a file.

    Args:
        model, weights, text, weights_seed, split, tokenizer, positions, scores, device, dtype, strict, qkv, cache,
            queries: see `SourceSpec`. A name of a file or directory may be a `Path`.
        n: the number of tokens; None is 512, or all of a ``qkv`` file.
        layer: the layer, from 0.
        window: the index of the text window of ``n`` tokens, from 0.
        notify: called with a line for each substitution; the default prints it to stderr.

    Returns:
        A `QKV` of (h, n, p) tensors; with ``queries``, q is (h, n_q, p), at their ``positions``. Its ``label`` holds
        layer, window, n and all facts about the source.

    Raises:
        SourceError: a model, text, tokenizer, file or device is missing, damaged, refused or unreachable.
        UsageError: a layer or window that does not exist, or ``n`` below 2 or longer than the text.

    Cost: one forward of the model up to ``layer``, or none if the cache has the tensors.

    >>> qkv = load_qkv(weights="initialized", text="embedded", n=64, device="cpu", notify=lambda line: None)
    >>> qkv.q.shape, qkv.scale, qkv.label["weights"]
    (torch.Size([12, 64, 64]), 0.125, 'initialized')
    """
    spec = SourceSpec(
        model=as_text(model),
        weights=weights,
        weights_seed=weights_seed,
        text=as_text(text),
        split=split,
        tokenizer=as_text(tokenizer),
        positions=positions,
        scores=scores,
        device=device,
        dtype=dtype,
        strict=strict,
        qkv=as_text(qkv),
        cache=cache,
        queries=as_text(queries),
    )
    source = resolve(spec, notify=notify)
    return source.qkv(source.default_n if n is None else n, [layer], window)[layer]
