"""What sources are called: labels that tell them apart, and plain words."""

import pytest

from attnprobe.frame.labels import measured_words, source_labels


def test_only_sources_that_share_a_word_are_told_apart():
    facts = [{"weights": "pretrained"}, *({"weights": "initialized", "weights_seed": seed} for seed in (0, 1))]
    labels = ["pretrained", "initialized, weights seed 0", "initialized, weights seed 1"]
    assert [*source_labels({"source": one} for one in facts).values()] == labels


TOLD = {  # a fact in which sources differ, the most telling first: two values, and what the label says of the second
    "scale_inputs": (1, 4, "scores x 4"),
    "weights_seed": (0, 1, "weights seed 1"),
    "model_sha256": ("1", "2", "model b"),
    "qkv_sha256": ("1", "2", "qkv b"),
    "text_sha256": ("1", "2", "text b"),
    "tokenizer_sha256": ("1", "2", "tokenizer b"),
    "positions": ("segment", "wrap", "positions wrap"),
    "dtype": ("float32", "float64", "dtype float64"),
    "causal": (False, True, "causal True"),
}


def test_sources_are_told_apart_by_the_most_telling_fact():
    names = [name.removesuffix("_sha256") for name in TOLD if name.endswith("_sha256")]
    for place in range(len(TOLD)):
        some = [*TOLD.items()][place:]
        sources = [
            {"weights": "pretrained", **dict.fromkeys(names, "ab"[i]), **{name: of[i] for name, of in some}}
            for i in (0, 1)
        ]
        said = [*source_labels({"source": one} for one in sources).values()][1]
        assert said == f"pretrained, {some[0][1][2]}"


def test_hashed_files_of_one_name_are_told_apart_by_their_hashes():
    sources = [{"weights": "pretrained", "text": "a", "text_sha256": x * 64} for x in "12"]
    labels = [*source_labels({"source": one} for one in sources).values()]
    assert labels == [f"pretrained, text sha256 {x * 12}…" for x in "12"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"model": "smollm2", "weights": "initialized", "weights_seed": 3, "text": "wikitext-2", "split": "test"},
            "SmolLM2 (135M-Instruct, 4-bit weights), random weights (seed 3), on Wikitext-2 (test)",
        ),
        (
            {"model": "m", "weights": "initialized-qkv", "text": "words.txt", "causal": True, "sliding_window": 4},
            "m, pretrained but random W_Q, W_K, W_V, on words.txt",
        ),
        ({"qkv": "a.npz", "queries": "last 8 of 16"}, "Q, K and V of a.npz"),
        ({"random": "independent N(0, 1)", "scale_inputs": 2}, "random Q, K and V, independent N(0, 1)"),
    ],
)
def test_what_was_measured_in_words(facts, words):
    records = [{"source": facts, "layer": layer, "n": n, "heads": [1]} for layer in (0, 1, 2) for n in (64, 32)]
    last = ["causal"] * ("causal" in facts) + ["sliding windows"] * ("sliding_window" in facts)
    last += [f"queries {facts['queries']}"] if "queries" in facts else []
    scaled = ["scores x 2"] if "scale_inputs" in facts else []
    assert measured_words(records) == ", ".join([words, *scaled, "layers 0-2, n = 32, 64 tokens, 1 head", *last])
