"""Fixtures of the tests of the sources: a tiny model and a text on disk, and a machine without a hub."""

from __future__ import annotations

import pytest
from sources_helpers import bert_config, save, seeded, text_of


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> str:
    """A directory with a three-layer BERT of 4 heads of 8 and 16 positions, and its vocab.txt."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("models") / "bert"
    return str(save(seeded(lambda: BertModel(bert_config())), folder))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> str:
    """A text of 300 words, each one token of the tiny vocabulary."""
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text(text_of(300))
    return str(path)


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """A machine without a hub and with empty caches."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
