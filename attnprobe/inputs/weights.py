"""Models and their weights: pretrained from a directory, random, or pretrained with random W_Q, W_K, W_V.

The random weights of a parameter come from a generator that is seeded by the name of the parameter. So they do not
depend on the number of layers, on the device, or on torch's global random state, which does not change.
"""

from __future__ import annotations

import copy
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from ..errors import SourceError, UsageError, cut
from ..grammar.foreign import first_line, message, one_line
from ..rng import generator
from .folder import ModelFolder
from .hooks.interface import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

PACKED, SLACK = 4, 2**24  # numbers in a byte at most; numbers that a file may lack, such as those of a head
WORDS = {  # for the types of a configuration's settings
    "NoneType": "null",
    "bool": "true or false",
    "dict": "an object",
    "float": "a number with a point",
    "int": "a whole number",
    "list": "a list",
    "str": "text",
}
QKV_STD = 0.02  # the papers' "initialized": W_Q, W_K, W_V ~ N(0, 0.02²)
PROJECTIONS = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "q_lin", "k_lin", "v_lin", "q", "k", "v")
#: model types that are a plain stack of layers, so that the first layers can be built without the others
STACKS = ("bert", "roberta", "xlm-roberta", "camembert", "electra")


def configuration(folder: ModelFolder) -> PreTrainedConfig:
    """The configuration in a model's directory."""
    from transformers import AutoConfig

    kind = folder.settings().get("model_type")
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder.path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each configuration class validates in its own way
        subject = f"model type '{kind}'" if kind else "no model_type"
        raise SourceError(
            f"{folder.name}/config.json: {subject}: transformers cannot load it: {_line(error)}"
        ) from error
    folder.hold()
    return config


def pretrained(folder: ModelFolder, dtype: torch.dtype, *, with_decoder: bool = False) -> PreTrainedModel:
    """The model in a directory, from safetensors only, in evaluation mode.

    Of an encoder-decoder it is the encoder; ``with_decoder`` keeps the decoder.
    """
    model, missing = _from_folder(_auto_class(configuration(folder)), folder, dtype)
    if missing:
        raise _incomplete(folder, missing)
    return _reader(model, with_decoder, folder.name)


def is_decoder_part(config: PreTrainedConfig) -> bool:
    """Whether a configuration is of the decoder alone of an encoder-decoder, such as that of ``BartForCausalLM``."""
    alone = bool(getattr(config, "is_decoder", False)) and not getattr(config, "is_encoder_decoder", False)
    return alone and language_kind(config) == "causal" and hasattr(config, "decoder_layers")


def _auto_class(config: PreTrainedConfig) -> Any:
    """The class of transformers for the model of a configuration without its head."""
    from transformers import AutoModel, AutoModelForCausalLM

    return AutoModelForCausalLM if is_decoder_part(config) else AutoModel


def refuse_other_inputs(config: PreTrainedConfig, name: str) -> None:
    """Refuse a model that reads no tokens, or several texts, by what its class and configuration say."""
    from transformers import MODEL_MAPPING

    try:
        config.get_text_config()
    except ValueError as error:
        raise SourceError(f"{name}: a {config.model_type} has several texts, and commands read one") from error
    kinds = MODEL_MAPPING.get(type(config), None)
    kind = kinds[0] if isinstance(kinds, tuple) else kinds
    main = getattr(kind, "main_input_name", "input_ids")
    if main != "input_ids" and not is_decoder_part(config):
        raise SourceError(
            f"{name}: a {config.model_type} does not read text but {main}; attnprobe.capture takes any inputs"
        )


def language_kind(config: PreTrainedConfig) -> str | None:
    """The kind of language model: ``causal`` predicts next words, ``masked`` predicts masked words; None for others."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    architectures = " ".join(getattr(config, "architectures", None) or ())
    is_decoder = bool(getattr(config, "is_decoder", False))
    causal = "CausalLM" in architectures or "LMHead" in architectures or is_decoder
    if getattr(config, "is_encoder_decoder", False):
        return None
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not causal:
        return "masked"
    return "causal" if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else None


def with_head(folder: ModelFolder, dtype: torch.dtype, kind: str) -> tuple[PreTrainedModel, str | None]:
    """The model in a directory with its language-model head of `language_kind` ``kind``; otherwise as `pretrained`.

    Returns:
        The model and None. If the weights have no such head: the model without a head, and the reason.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    model, missing = _from_folder(AutoModelForCausalLM if kind == "causal" else AutoModelForMaskedLM, folder, dtype)
    inside = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    if inside:
        raise _incomplete(folder, inside)
    bare = cast("PreTrainedModel", model.base_model).eval().requires_grad_(False)
    if missing:
        return bare, f"the weights of {folder.name} hold no {kind}-LM head ({missing[0]} is missing)"
    return model.eval().requires_grad_(False), None


def _from_folder(auto: Any, folder: ModelFolder, dtype: torch.dtype) -> tuple[PreTrainedModel, list[str]]:
    """The model of a directory loaded by a class of transformers, and the names of missing weights but a pooler's."""
    held = sum(file.stat().st_size for file in folder.tensors())
    config = configuration(folder)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            _refuse_far_larger(auto, config, held)
            model, info = auto.from_pretrained(
                folder.path,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                attn_implementation="eager",
                dtype=dtype,
            )
    except Exception as error:  # OSError, ValueError, RuntimeError, SafetensorError, KeyError by model and file
        cause = "a weight's shape differs from config.json" if "mismatch" in message(error) else _line(error)
        raise SourceError(f"{folder.name}: its weights cannot be loaded: {cause}") from error
    folder.hold()
    return model, sorted(name for name in info["missing_keys"] if "pooler" not in name.split("."))


def _refuse_far_larger(auto: Any, config: PreTrainedConfig, held: int) -> None:
    """Refuse a configuration of a far larger model than its files hold, before memory is taken for what they lack."""
    with torch.device("meta"):
        model = auto.from_config(config, trust_remote_code=False, attn_implementation="eager")
    stated = sum(weight.numel() for weight in model.parameters())
    if stated > PACKED * held + SLACK:
        raise ValueError(f"config.json describes a model of {stated:.2g} numbers, and its files have {held:.2g} bytes")


def _incomplete(folder: ModelFolder, missing: list[str]) -> SourceError:
    files = folder.tensors()
    where = files[0].name if len(files) == 1 else "its safetensors files"
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return SourceError(f"{folder.name}: {where} lacks {missing[0]}{more}; the model is incomplete")


def initialized(
    config: PreTrainedConfig, seed: int, layers: int, dtype: torch.dtype, name: str, *, with_decoder: bool = False
) -> PreTrainedModel:
    """The model of a configuration with random weights.

    Weights of two or more axes (Linear, Embedding) are N(0, initializer_range²), with a zero padding row. Weights of
    normalisations are 1, and all other parameters of one axis are 0. Draws are float32 for every ``dtype``.

    Args:
        layers: the number of layers to build if the model is a plain stack; other models are built in full.
        with_decoder: keep the decoder of an encoder-decoder.
    """
    from transformers import initialization

    config = copy.deepcopy(config)
    if config.model_type in STACKS:
        config.num_hidden_layers = min(layers, config.num_hidden_layers)
    # transformers' own draws are replaced; they are skipped for models whose constructor sets every buffer
    skips = config.model_type in STACKS and hasattr(initialization, "no_init_weights")
    try:
        with (
            quiet(),
            torch.random.fork_rng(devices=[]),
            initialization.no_init_weights() if skips else nullcontext(),
        ):
            auto = _auto_class(config)
            model = auto.from_config(config, trust_remote_code=False, attn_implementation="eager")
    except Exception as error:  # a contradictory configuration
        raise SourceError(f"{name}: transformers cannot build this model: {_line(error)}") from error
    std = float(getattr(config, "initializer_range", None) or 0.02)
    if not 0 < std < float("inf"):
        raise SourceError(f"{name}: the initializer_range {std} of its configuration is not a positive number")
    paddings = {
        f"{path}.weight": module.padding_idx
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None
    }
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            _draw(parameter, seed, parameter_name, std)
            if parameter_name in paddings:
                parameter.data[paddings[parameter_name]] = 0
        else:
            parameter.data.fill_(1.0 if parameter_name.endswith("weight") else 0.0)
    return _reader(model.to(dtype), with_decoder, name)


def skeleton(config: PreTrainedConfig, name: str = "the model") -> PreTrainedModel:
    """The model of a configuration that reads text, without numbers: of an encoder-decoder its encoder."""
    try:
        with quiet(), torch.device("meta"):
            auto = _auto_class(config)
            model = auto.from_config(config, trust_remote_code=False, attn_implementation="eager")
    except Exception as error:  # a contradictory configuration, or a kind of model that transformers does not load so
        raise SourceError(f"{name}: transformers cannot build this model: {_line(error)}") from error
    model = _reader(model, False, name)
    return model.get_decoder() if hasattr(model, "get_decoder") else model


def redraw_projections(model: PreTrainedModel, seed: int, name: str) -> None:
    """Replace W_Q, W_K and W_V of every layer by N(0, 0.02²) and their biases by 0, in place."""
    redrawn = {word: 0 for word in PROJECTIONS}
    for path, module in model.named_modules():
        word = path.rpartition(".")[2]
        if word in redrawn and isinstance(module, torch.nn.Linear):
            redrawn[word] += 1
            _draw(module.weight, seed, f"{path}.weight", QKV_STD)
            if module.bias is not None:
                module.bias.data.zero_()
    # As many of each of W_Q, W_K and W_V: a model that packs two of them in one matrix would be redrawn in part.
    counts = {sum(redrawn[word] for word in PROJECTIONS[axis::3]) for axis in range(3)}
    if len(counts) != 1 or counts == {0}:
        raise UsageError(
            f"{name}: --weights initialized-qkv needs separate query, key and value matrices, and this "
            f"{model.config.model_type} has none under these names; use pretrained or initialized"
        )


def _draw(parameter: torch.Tensor, seed: int, name: str, std: float) -> None:
    values = torch.empty(parameter.shape, dtype=torch.float32)
    parameter.data.copy_(values.normal_(0.0, std, generator=generator(seed, "weights", name)))


def _reader(model: PreTrainedModel, with_decoder: bool, name: str) -> PreTrainedModel:
    """The encoder of an encoder-decoder, or with its decoder the complete model; of a decoder alone its body.

    It is without gradients.
    """
    from transformers import PreTrainedModel

    if is_decoder_part(model.config):
        model = model.get_decoder()
    if not with_decoder and getattr(model.config, "is_encoder_decoder", False):
        kind, model = model.config.model_type, model.get_encoder()
        if not isinstance(model, PreTrainedModel):
            raise SourceError(f"{name}: config.json says is_encoder_decoder, but a {kind} is not one; set it to false")
    return model.eval().requires_grad_(False)


def _line(error: BaseException) -> str:
    """Why transformers refuses a model, as one short line."""
    if isinstance(error, KeyError):
        return f"{cut(message(error), 100)} is missing or unknown"
    if isinstance(error, (AttributeError, TypeError)) or "invalid literal" in message(error):  # Python's own words
        return "a setting in config.json is of a kind that it does not take; --debug shows where"
    refused = re.match(r"Validation error for field '(\w+)'", message(error))
    if refused and error.__cause__ is not None:
        return _of_setting(refused[1], str(error.__cause__))
    line = first_line(message(error))
    return line if len(line) <= 200 else line[:197] + "..."


def _of_setting(name: str, cause: str) -> str:
    """What a class of configurations says of a value of a wrong type, in words.

    >>> _of_setting("head_dim", "Field 'head_dim' expected int, got NoneType (value: None)")
    'head_dim is None; a whole number is needed'
    """
    value = re.search(r"with value (.*?) doesn't match|\(value: (.*?)\)$", cause, re.DOTALL)
    types = re.search(r"any type in \((.*?)\)\. Errors|expected (?:an? )?(\w+), got", cause)
    known = [WORDS[kind] for kind in re.findall(r"\w+", types[0]) if kind in WORDS] if types else []
    if not known:
        return f"{name}: {cut(first_line(cause), 200)}"
    stated = f" is {cut(one_line(value[1] or value[2]), 60)}" if value else ""
    return f"{name}{stated}; {' or '.join(dict.fromkeys(known))} is needed"
