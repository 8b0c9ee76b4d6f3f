"""The metadata of files of Q, K, V and of sets of keys."""

import pytest

from attnprobe.errors import SourceError
from attnprobe.grammar.metadata import QKVMetadata, SelectionMetadata


def test_texts_and_json_are_the_same_values():
    texts = {"causal": "True", "scale": "0.5", "sinks": "4", "heads": "[0, 2]"}
    values = {"causal": True, "scale": 0.5, "sinks": 4, "heads": [0, 2]}
    assert QKVMetadata.read("f", texts, SourceError) == QKVMetadata.read("f", values, SourceError)
    assert SelectionMetadata.read("f", {"block": "64"}, SourceError).block == [64, 64]
    assert SelectionMetadata.read("f", {"block": "64,128"}, SourceError).block == [64, 128]
    assert SelectionMetadata.read("f", {"block": [64, 128]}, SourceError).block == [64, 128]
    assert QKVMetadata.read("f", {"sinks": None}, SourceError).sinks is None


def test_a_number_is_of_all_layers_or_of_one():
    every = QKVMetadata.read("f", {"sliding_window": 8}, SourceError)
    assert every.of("sliding_window", 0) == every.of("sliding_window", 5) == 8 and every.of("sinks", 0) is None
    one = QKVMetadata.read("f", {"sliding_window": {"0": 8}, "scale": {"0": 0.5}}, SourceError)
    assert one.of("sliding_window", 0) == 8 and one.of("sliding_window", 1) is None
    assert one.fault([0]) is None and one.fault([0, 1]) == "metadata scale: layer 1 has none"
    assert one.fault([1]) == "metadata scale: there is no layer 0"


WRONG = (
    {"heads": []},
    {"scale": "1_0"},
    {"sinks": "1_0"},
    {"sinks": "1.5"},
    {"heads": "[true]"},
    {"scale": 0},
    {"causal": "no"},
    {"heads": [1, 1]},
)


@pytest.mark.parametrize("wrong", WRONG)
def test_one_line_names_the_file_and_the_entry(wrong):
    with pytest.raises(SourceError, match=rf"^f\.safetensors: metadata {next(iter(wrong))}"):
        QKVMetadata.read("f.safetensors", wrong, SourceError)


@pytest.mark.parametrize(
    ("entry", "field"),
    [("causl", "causal"), ("is_causal", "causal"), ("SINKS", "sinks"), ("sliding-window", "sliding_window")],
)
def test_a_misspelt_entry_is_refused(entry, field):
    with pytest.raises(SourceError, match=f"^f: unknown metadata {entry}; did you mean '{field}'\\?$"):
        QKVMetadata.read("f", {entry: "1"}, SourceError)


def test_several_wrong_entries_are_counted():
    with pytest.raises(SourceError, match="^f: metadata block: expected .*, and 1 more$"):
        SelectionMetadata.read("f", {"block": 64, "weights": "none"}, SourceError)


def test_entries_of_other_programs_are_left_alone():
    foreign = {"format": "pt", "schema": 1, "source": "x", "num_heads": "12", "model": "m"}
    assert QKVMetadata.read("f", foreign, SourceError) == QKVMetadata()
    assert SelectionMetadata.read("f", foreign, SourceError) == SelectionMetadata()
    plain = QKVMetadata.read("f", {"head": "12", "heads": "12", "facts": "x", "scale": "2"}, SourceError, ("scale",))
    assert plain == QKVMetadata(scale={"every": 2.0})
