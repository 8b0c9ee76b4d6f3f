"""Models with local layers, which have a sliding window, and global ones, such as Gemma 3."""

import pytest
from asked import measuring
from inject_rows import metrics
from sources_helpers import VOCABULARY, save, seeded, text_of

from attnprobe.frame.records.read import read_records

TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
HERE = ("--text", "words.txt", "--n", 48, "--d", 8, "--device", "cpu", "--no-input-statistics")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Gemma 3 with random weights, a causal model with local layers only, and a text."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM

    folder = tmp_path_factory.mktemp("hybrid")
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 48}
    shared = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "initializer_range": 0.3, **sizes}
    window = {"sliding_window": 16, "head_dim": 16}
    hybrid = Gemma3TextConfig(num_hidden_layers=4, layer_types=TYPES, **window, **shared)
    save(seeded(lambda: Gemma3ForCausalLM(hybrid)), folder / "gemma")
    save(seeded(lambda: MistralForCausalLM(MistralConfig(num_hidden_layers=2, **window, **shared))), folder / "mistral")
    (folder / "words.txt").write_text(text_of(100))
    return folder


@pytest.fixture
def shown_by(run, folder, tmp_path, monkeypatch):
    """Runs a command in the folder; gives its records, its tables and what it said."""
    monkeypatch.chdir(folder)

    def measure(*arguments, code=0):
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        got, shown, said = run(*arguments, *HERE, "--out", out)
        assert got == code, said
        records = read_records(out) if code == 0 else []
        return [record for record in records if record["requested"]], shown, said

    return measure


@pytest.fixture
def records_of(folder, tmp_path, monkeypatch):
    """Measures a command in the folder, and shows nothing; gives its records."""
    return measuring(folder, tmp_path, monkeypatch, *HERE)


def layers_of(records, method, field="layer"):
    return [record[field] for record in records if record["method"] == method]


def test_methods_are_compared_in_the_global_layers(shown_by, records_of):
    records, shown, said = shown_by("inject", "--model", "gemma", "--method", "window,quest")
    assert layers_of(records, "window", "layers") == layers_of(records, "quest", "layers") == ["1, 3"]
    assert "layers 1, 3 are global and replaced; the other 2 keep exact attention to their window" in shown
    assert "skipped" not in shown and "sliding" not in said
    named = records_of("inject", "--model", "gemma", "--method", "window,quest", "--layer", "1,3")
    assert list(map(metrics, named)) == list(map(metrics, records))
    assert [record["key"] for record in named] == [record["key"] for record in records]


def test_all_layers_are_those_that_a_method_takes(shown_by, records_of):
    records, shown, said = shown_by("inject", "--model", "gemma", "--method", "window,quest", "--layer", "all")
    assert layers_of(records, "window", "layers") == ["0-3"] and layers_of(records, "quest", "layers") == ["1, 3"]
    assert "window: layers 0-3 replaced" in shown and "quest: layers 1, 3 are global and replaced" in shown
    assert "quest has no form for sliding windows: only on the 2 global of 4 layers" in said
    alone = records_of("inject", "--model", "gemma", "--method", "quest", "--per-layer", "--layer", "all")
    assert layers_of(alone, "quest") == [None, 1, 3]


def test_local_layers_are_replaced_where_they_are_named(records_of):
    records = records_of("inject", "--model", "gemma", "--method", "window,quest", "--layer", "local")
    assert layers_of(records, "window", "layers") == layers_of(records, "quest", "layers") == ["0, 2"]
    assert [record["status"] for record in records] == ["ok", "skipped"]
    assert "attention has a sliding window, and quest has no form for it" in records[1]["reason"]


def test_steps_of_decoding_too(shown_by):
    steps = ("--phase", "decode", "--greedy-steps", 0)
    records, shown, _ = shown_by("inject", "--model", "gemma", "--method", "topk,quest", *steps)
    assert {record["status"] for record in records} == {"ok"}
    assert shown.count("layers 1, 3 are global and replaced") == 1  # of all methods


def test_exact_attention_in_every_layer_changes_nothing(shown_by):
    [record], shown, _ = shown_by("inject", "--model", "gemma", "--method", "softmax", "--layer", "all")
    assert record["layers"] == "0-3" and metrics(record)["drift"] < 2e-6
    assert "keep exact attention" not in shown


def test_a_model_without_global_layers_has_all_of_them_replaced(shown_by):
    records, shown, _ = shown_by("inject", "--model", "mistral", "--method", "window,quest")
    assert layers_of(records, "window", "layers") == layers_of(records, "quest", "layers") == ["0-1"]
    assert [record["status"] for record in records] == ["ok", "skipped"] and "are global" not in shown


ERROR = ("error", "--model", "gemma", "--no-matrix", "--method")


def test_all_layers_are_no_list_of_skipped_rows(shown_by, records_of):
    records, _, said = shown_by(*ERROR, "window,quest", "--layer", "all")
    assert layers_of(records, "window") == [0, 1, 2, 3] and layers_of(records, "quest") == [1, 3]
    assert {record["status"] for record in records} == {"ok"}
    assert "quest has no form for sliding windows: only on the 2 global of 4 layers" in said
    records = records_of(*ERROR, "quest", "--layer", "all")
    assert {record["layer"] for record in records} == {1, 3}  # references alone are no result


@pytest.mark.parametrize(("layer", "expected"), [("global", [1, 3]), ("local", [0, 2]), ("0", [0])])
def test_layers_by_word_and_by_number(records_of, layer, expected):
    records = records_of(*ERROR, "window,quest", "--layer", layer)
    assert layers_of(records, "window") == layers_of(records, "quest") == expected
    statuses = {record["status"] for record in records if record["method"] == "quest"}
    assert statuses == ({"ok"} if layer == "global" else {"skipped"})


def test_a_file_of_q_k_v_keeps_the_kinds_of_its_layers(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    out = tmp_path / "qkv.safetensors"
    place = ("--model", "gemma", "--text", "words.txt", "--n", 48, "--device", "cpu")
    assert run("extract", *place, "--layer", "all", "--out", out)[0] == 0
    code, shown, _ = run("error", "--qkv", out, "--layer", "global", "--method", "quest", "--d", 8, "--no-matrix")
    assert code == 0 and "layers 1, 3" in shown
    selected = tmp_path / "keys.safetensors"
    code, _, said = run("select", "quest", *place, "--layer", "global", "--d", 8, "--out", selected)
    assert code == 0 and "layer 1, 3" in said


def test_select_writes_the_keys_of_the_layers_that_the_method_has_a_form_for(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    words = ("select", "quest", "--model", "gemma", "--text", "words.txt", "--n", 48, "--device", "cpu", "--d", 8)
    code, _, said = run(*words, "--layer", "all", "--out", tmp_path / "keys.safetensors")
    assert code == 0 and "wrote the keys of layer 1, 3," in said
    assert "quest has no form for sliding windows: only on the 2 global of 4 layers" in said
    code, _, said = run(*words, "--layer", "1,2", "--out", tmp_path / "none.safetensors")
    assert code == 2 and "layer 2: attention has a sliding window, and quest has no form for it" in said


def test_some_queries_of_many_layers_are_extracted_and_read_again(run, folder, tmp_path, monkeypatch):
    """The layers share the positions of their queries."""
    monkeypatch.chdir(folder)
    place, out = ("--model", "gemma", "--text", "words.txt", "--device", "cpu"), tmp_path / "qkv.safetensors"
    code, _, said = run("extract", *place, "--n", 48, "--queries", "last:5", "--layer", "1,3", "--out", out)
    assert code == 0, said
    code, shown, said = run("error", "snapkv", "--qkv", out, "--layer", "1,3", "--d", 8, "--no-matrix", "--rows")
    assert code == 0 and "layers 1, 3" in shown, said


def test_a_word_without_layers_is_refused(shown_by):
    _, _, said = shown_by("error", "--model", "mistral", "--layer", "global", "--no-matrix", code=2)
    assert "layer global: every layer has a sliding window; choose all" in said
