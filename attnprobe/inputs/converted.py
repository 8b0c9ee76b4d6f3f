"""A GGUF file as a model's folder: converted once by transformers, and kept in the cache.

The weights of the folder are float32. They equal the dequantised blocks of the file to the bit; only the rows of W_Q
and W_K of a Llama are put back into the order that transformers rotates.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from ..errors import SourceError, UsageError
from ..files import MIB, reading
from .cache import TITLE, Cache, key_of
from .folder import ModelFolder, Seal, refuse_settings
from .gguf_file import Header, read_header
from .hooks.interface import quiet
from .spec import check_memory

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

SLOW = 10_000_000  # weights whose conversion takes seconds, so that the user is told
FORM = 1  # raised when the folders of the same file change
UNREADABLE = " cannot be read as a GGUF file"
#: cuts of byte-level BPE into words: those of GPT-2, and those where each digit is a word too
PLAIN = ("gpt-2", "phi-2", "mpt", "olmo", "jais")
DIGITS = ("smollm", "starcoder", "refact", "codeshell")

#: the folders of this process that the cache does not hold, by their keys
_unkept: dict[str, tuple[TemporaryDirectory[str], Seal]] = {}


def converted(name: str, file: Seal, cache: Cache) -> ModelFolder:
    """The folder of a GGUF file, from the cache or converted now.

    If the cache is off, or too small for the folder, the folder lives as long as this process.

    Args:
        name: the user's name of the model. file: the seal of the file.

    Cost: 4 bytes of memory and of disk for each weight; about 5 s of CPU time for 135 million weights.
    """
    key = key_of(FORM, file.sha256, {package: version(package) for package in ("transformers", "gguf")})
    if key in _unkept:
        return _folder(name, file, _unkept[key][1])
    seal = cache.folder_of(key)
    if seal is None:
        scratch = _scratch(cache)
        folder = Path(scratch.name) / "model"
        with reading(name, SourceError, UNREADABLE):
            _convert(file.files[0], folder, Path(scratch.name) / "model.gguf", cache)
        (folder / TITLE).write_text(name, encoding="utf-8", errors="replace")
        # Before the folder gets its key: a file that changed meanwhile must not be kept under the old hash.
        file.hold()
        seal = Seal(sorted(folder.iterdir()))
        if not cache.keep_folder(key, seal):
            _unkept[key] = scratch, seal  # an unreferenced TemporaryDirectory would be removed
    return _folder(name, file, seal)


def _folder(name: str, file: Seal, seal: Seal) -> ModelFolder:
    return ModelFolder(name, seal.files[0].parent, seals=(seal,), origin_sha256=file.sha256)


def _scratch(cache: Cache) -> TemporaryDirectory[str]:
    """An empty folder in the cache, so that a folder in it can be renamed; elsewhere if the cache cannot be written."""
    if cache.largest:
        with suppress(OSError):
            return cache.making()
    return TemporaryDirectory(prefix="attnprobe-")


def _convert(path: Path, folder: Path, link: Path, cache: Cache) -> None:
    """Write config.json, model.safetensors and tokenizer.json of a GGUF file into a new folder.

    Args:
        link: a name for the file in a folder of its own: transformers would also read files beside it.
    """
    header = read_header(path)
    _refuse_what_is_lost(header)
    try:
        check_memory(2 * header.numbers, f"its {header.numbers:,} weights in float32, with a copy,")
    except UsageError as error:
        raise ValueError(str(error)) from error
    if header.numbers > SLOW:
        cache.notify(f"{path.name}: converted once, to {header.numbers * 4 / MIB:,.0f} MiB; this may take a minute")
    link.symlink_to(path.resolve())

    with quiet(), redirect_stderr(io.StringIO()), _read_once():  # for its bar of progress
        _model(link, header).save_pretrained(folder)
        _tokenizer(link, header).save(str(folder / "tokenizer.json"))


@contextmanager
def _read_once() -> Iterator[None]:
    """A context in which transformers gets the same reader of a file, and the same map of names, each time.

    It reads the vocabulary, token by token, for the configuration, the weights and the tokenizer, and makes the map
    again for each module of a model.
    """
    import gguf
    import numpy as np

    class Plain(gguf.GGUFReader):
        def __setattr__(self, name: str, value: Any) -> None:  # each of many slices of numpy's memory maps is slow
            super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    own = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        gguf.GGUFReader, gguf.get_tensor_name_map = once(Plain), once(gguf.get_tensor_name_map)
        yield
    finally:
        for name, function in own.items():
            setattr(gguf, name, function)


def _tokenizer(path: Path, header: Header) -> Tokenizer:
    """The tokenizer of a GGUF file."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, trust_remote_code=False, local_files_only=True
    ).backend_tokenizer
    if header.metadata.get("tokenizer.ggml.model") == "gpt2":
        cut_into_words = header.metadata.get("tokenizer.ggml.pre")
        if cut_into_words in DIGITS:
            steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        elif cut_into_words not in (*PLAIN, *_cuts_of_transformers()):
            raise ValueError(f"tokenizer.ggml.pre is {cut_into_words!r}, and transformers knows no such cut into words")
    return tokenizer


def _cuts_of_transformers() -> dict[str, str]:
    """The patterns of the cuts into words that transformers knows, by their names."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:
        return {}
    return GGUF_PRE_TOKENIZER_SPLITS


def _refuse_what_is_lost(header: Header) -> None:
    """Refuse scaled rotary positions, which transformers' reader of GGUF leaves out: the model would be another."""
    scaled = [name for name in header.shapes if name.startswith("rope_")]
    prefix = f"{header.architecture}.rope.scal"
    for name, value in header.metadata.items():
        if name.startswith(prefix) and name.endswith(("type", "factor", "linear")) and value not in ("none", 1, 0):
            scaled.append(name)
    if scaled:
        raise ValueError(f"{scaled[0]}: its rotary positions are scaled, which transformers does not read from GGUF")


def _model(path: Path, header: Header) -> PreTrainedModel:
    """The language model of a GGUF file, with its weights in float32."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(
        path.parent, gguf_file=path.name, trust_remote_code=False, local_files_only=True
    )
    # The path is that of a temporary link, and would be saved in config.json, so that hashes differ between runs.
    config.__dict__.pop("_model_name_or_path", None)
    refuse_settings(config.to_dict())
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"the architecture {header.architecture} is not that of a causal language model")
    if config.get_text_config().num_hidden_layers > len(header.shapes):
        raise ValueError(f"it states {config.get_text_config().num_hidden_layers} layers, more than it has tensors")
    # Shapes alone: the tensors of the file are put in below, so that the weights are in memory once.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    expected = model.state_dict()
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, not {tuple(expected[name].shape)}")
    # transformers leaves out tensors that it does not know, without a word; the model would be another.
    if sum(tensor.numel() for tensor in tensors.values()) != header.numbers:
        raise ValueError(f"it holds tensors that transformers' {config.model_type} has no place for")
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if missing:
        raise ValueError(f"it lacks {missing[0]} (and {len(missing) - 1} more); the model is incomplete")
    return model
