"""The facts about a model and a text before they are loaded, and the function that loads them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import SourceError
from .folder import ModelFolder
from .hooks.numbering import attention_layers
from .positions import max_positions
from .spec import SourceSpec
from .text import Text
from .vocabulary import Vocabulary
from .weights import STACKS, is_decoder_part, refuse_other_inputs, skeleton

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MOST_UNKNOWN = 0.3  # of the tokens: beyond it the text is of another language or script than the vocabulary
#: settings of a configuration that its hash leaves out: its version, its path, and those of the run
UNHASHED = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "_attn_implementation")
WITH_SINKS = ("gpt_oss",)  # model types with sinks that their configuration does not state


@dataclass(frozen=True)
class Opened:
    """A model's configuration and a vocabulary, loaded before the text is tokenised.

    Attributes:
        config: the model's configuration. vocabulary: the tokenizer of the text.
        made_up: the vocabulary was built from the text, so unknown tokens are not an error.
    """

    config: PreTrainedConfig
    vocabulary: Vocabulary
    made_up: bool


def described(
    spec: SourceSpec, name: str, folder: ModelFolder | None, weights: str, text: Text, opened: Opened, unknown: float
) -> dict[str, Any]:
    """The facts of a source, its number of layers, and the special tokens of a segment, as JSON-able values.

    Args:
        name: the model's name. weights: their resolved kind. unknown: the share of unknown tokens in the text.
    """
    config, vocabulary = opened.config, opened.vocabulary
    refuse_other_inputs(config, name)
    layers, heads, p = _sizes(name, config)
    attention = _attention_layers(config, layers, name)
    if unknown > MOST_UNKNOWN and not opened.made_up:
        raise SourceError(
            f"tokenizer {vocabulary.name}: {unknown:.0%} of the text '{text.name}' is unknown to it; "
            "use another --tokenizer or --text"
        )
    # A tokenizer states a limit of its own (model_max_length), which may be the shorter one.
    limits = [limit for limit in (max_positions(config), vocabulary.longest) if limit is not None]
    trained = folder is not None and weights != "initialized"
    settings = {setting: value for setting, value in config.to_dict().items() if setting not in UNHASHED}
    facts = {
        "model": name,
        "revision": None if folder is None else folder.revision,
        "model_sha256": folder.weights_sha256 if folder is not None and trained else None,
        "config_sha256": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest(),
        "weights": weights,
        "weights_seed": None if weights == "pretrained" else spec.weights_seed,
        "text": text.name,
        "split": text.split,
        "text_sha256": text.sha256,
        "tokenizer": vocabulary.name,
        "tokenizer_sha256": vocabulary.sha256,
        "unk_fraction": round(unknown, 6),
        "positions": spec.positions,
        "dtype": spec.dtype,
        "max_positions": min(limits, default=None),
        "p": p,
        "heads": heads,
        **_attention(config),
    }
    if spec.scores != "model":
        facts["scores"] = spec.scores
    if not vocabulary.drops_line_breaks:  # until 0.1.0 these were left out of the text
        facts["line_breaks"] = "read"
    around = {"before": vocabulary.before, "after": vocabulary.after}
    windows = _local_layers(config, layers) if "sliding_window" in facts else []
    return {
        "facts": facts,
        "layers": layers,
        "attention": attention,
        "local": [layer for layer in windows if layer in attention],
        "lengths": {},
        "needles": {},
        **around,
    }


def _attention(config: PreTrainedConfig) -> dict[str, Any]:
    """The facts ``causal``, ``sliding_window`` and ``sinks`` that a configuration states. A forward corrects them.

    ``sliding_window`` is that of `QKV`. transformers counts a window of both sides without the token itself.
    """
    inner = config.get_text_config()
    causal = _is_causal(config)
    stated = [getattr(part, "sliding_window", None) for part in of_layers(inner)]
    width = max((size for size in stated if isinstance(size, int)), default=0)
    facts: dict[str, Any] = {"causal": True} if causal else {}
    if width > 0 and _local_layers(config, 1):
        facts["sliding_window"] = width if causal else width + 1
    return facts | ({"sinks": True} if config.model_type in WITH_SINKS else {})


def _attention_layers(config: PreTrainedConfig, layers: int, name: str) -> list[int]:
    """The layers with attention among those of a model, by the modules that it is made of."""
    if config.model_type in STACKS:
        return list(range(layers))
    return attention_layers(skeleton(config, name), layers)


def _local_layers(config: PreTrainedConfig, layers: int) -> list[int]:
    """The layers with the sliding window of a configuration: all of them unless it has a type for each layer."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ["sliding_attention"] * layers
    return [number for number, kind in enumerate(kinds) if kind == "sliding_attention"]


def _is_causal(config: PreTrainedConfig) -> bool:
    """Whether the configuration is of a causal decoder. A forward verifies this later.

    An encoder-decoder counts as its encoder.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    inner = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        return False
    kind = config.model_type
    writes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return writes or bool(getattr(inner, "is_decoder", False))


def _sizes(name: str, config: PreTrainedConfig) -> tuple[int, int, int]:
    """The layers, heads and head dimension of a configuration: the largest, if layers differ in it."""
    inner = config.get_text_config()
    layers_name, heads_name = "num_hidden_layers", "num_attention_heads"
    if is_decoder_part(config):
        layers_name, heads_name = "decoder_layers", "decoder_attention_heads"
    if not isinstance(getattr(inner, "vocab_size", None), int):
        raise SourceError(f"{name}: a {config.model_type} does not read text (its configuration has no vocab_size)")
    parts = of_layers(inner)
    try:
        layers, counts = int(getattr(inner, layers_name)), {int(getattr(part, heads_name)) for part in parts}
        heads = max(counts)
        p = max(int(getattr(part, "head_dim", None) or part.hidden_size // heads) for part in parts)
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise SourceError(f"{name}: its configuration has no numbers of layers and heads ({error})") from error
    if len(counts) > 1:
        raise SourceError(
            f"{name}: its layers have {min(counts)} to {heads} heads, and commands read models with the same heads in "
            "all layers; attnprobe.capture takes any"
        )
    return layers, heads, p


def of_layers(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """The configurations of the layers of a text model, or only its own if all layers have the same settings.

    A model whose layers differ, such as Gemma 4, has no setting of its own where they do.
    """
    return list(config.per_layer_config) if getattr(config, "is_heterogeneous", False) else [config]
