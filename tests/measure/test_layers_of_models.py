"""Commands on models in which not every layer has attention, or a layer calls it several times."""

import pytest
import tiny_models
import torch
import transformers
from asked import measuring
from inject_rows import local, metrics
from sources_helpers import VOCABULARY, save, seeded, text_of
from thinned import others_slow

from attnprobe import injected, load_qkv
from attnprobe.errors import UsageError
from attnprobe.grammar.lists import spans
from attnprobe.inputs.hooks.capture import captured_forward

HEADED = {"LFM2": "Lfm2ForCausalLM", "Zamba2": "Zamba2ForCausalLM", "DiffLlama": "DiffLlamaForCausalLM"}
ATTENTION = {"LFM2": [1, 3], "Zamba2": [1, 4], "DiffLlama": [0, 1]}
HERE = ("--text", "words.txt", "--n", 32, "--d", 8, "--device", "cpu", "--no-input-statistics")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    for name, kind in HEADED.items():
        _, config, settings = tiny_models.CAPTURED[name]
        given = {**settings(), "vocab_size": len(VOCABULARY)}
        config = getattr(transformers, config)(**given)
        save(seeded(lambda kind=kind, config=config: getattr(transformers, kind)(config)), folder / name)
    (folder / "words.txt").write_text(text_of(100))
    return folder


@pytest.fixture
def command(folder, tmp_path, monkeypatch):
    """Measures a command in the folder; gives its records without those of references."""
    return measuring(folder, tmp_path, monkeypatch, *HERE)


@pytest.mark.parametrize("name", others_slow(HEADED, lambda name: name[0] == "Zamba2"))
def test_all_means_the_layers_with_attention_by_their_own_numbers(command, name):
    layers = ATTENTION[name]
    records = command("error", "window", "--model", name, "--layer", "all", "--no-matrix")
    assert [record["layer"] for record in records] == layers
    records = command("error", "window", "--model", name, "--no-matrix")
    assert [record["layer"] for record in records] == layers[:1]


def test_a_layer_without_attention_is_refused_with_those_that_have_it(command):
    for command_line in (("error", "--no-matrix"), ("inject",)):
        with pytest.raises(UsageError, match="layer 2 of LFM2 has no attention; choose from 1, 3"):
            command(*command_line, "window", "--model", "LFM2", "--layer", "2")
        with pytest.raises(UsageError, match="layer 4 does not exist; choose from 1, 3"):
            command(*command_line, "window", "--model", "LFM2", "--layer", "4")


@pytest.mark.parametrize("name", others_slow(HEADED, lambda name: name[0] != "LFM2"))
def test_the_drift_is_that_of_all_calls_of_the_layers(command, folder, name):
    for layers in (ATTENTION[name], ATTENTION[name][-1:]):
        chosen = ",".join(map(str, layers))
        [record] = command("inject", "window", "--model", name, "--layer", chosen)
        assert record["layers"] == spans(layers) and list(local(record)) == layers
        model = getattr(transformers, HEADED[name]).from_pretrained(folder / name, attn_implementation="eager").eval()
        qkv = load_qkv(folder / name, text=folder / "words.txt", n=32, layer=layers[0], device="cpu", cache=False)
        ids = _ids(folder, name)
        with torch.no_grad():
            own = model.base_model(ids).last_hidden_state
            with injected(model, "window", d=8, layer=layers):
                got = model.base_model(ids).last_hidden_state
        expected = float((got.double() - own.double()).norm() / own.double().norm())
        assert metrics(record)["drift"] == pytest.approx(expected, rel=1e-4)
        assert qkv.layer == layers[0]


def _ids(folder, name):
    from attnprobe.inputs import SourceSpec, resolve

    source = resolve(SourceSpec(model=folder / name, text=str(folder / "words.txt"), device="cpu", cache=False))
    [tokens] = source.segments(32, 0)
    return torch.tensor([tokens])


def test_a_source_gives_the_layer_that_is_asked_for(folder):
    """The calls of DiffLlama's layer are one attention with the values of both."""
    for name, layers in ATTENTION.items():
        model = getattr(transformers, HEADED[name]).from_pretrained(folder / name, attn_implementation="eager").eval()
        ids = _ids(folder, name)
        with torch.no_grad():
            _, calls = captured_forward(model, lambda model=model, ids=ids: model(ids), layers)
        for layer in layers:
            given = {"text": folder / "words.txt", "n": 32, "device": "cpu", "cache": False}
            qkv, call = load_qkv(folder / name, layer=layer, **given), calls[layer]
            assert qkv.layer == layer and torch.equal(qkv.q, call.q[0]) and torch.equal(qkv.shared_v, call.v[0])
            assert qkv.p_v == qkv.p * (2 if name == "DiffLlama" else 1)


@pytest.mark.parametrize("name", others_slow(HEADED, lambda name: name[0] != "DiffLlama"))
def test_steps_of_decoding_read_the_layers_with_attention(command, name):
    records = command("inject", "topk,h2o", "--model", name, "--phase", "decode", "--steps", "8")
    assert [(record["status"], record["layers"]) for record in records] == [("ok", spans(ATTENTION[name]))] * 2
    assert [list(local(record)) for record in records] == [ATTENTION[name]] * 2


def test_doctor_lists_the_layers_with_attention(run, folder):
    for name, says in (("LFM2", "attention in layers 1, 3 of 4"), ("DiffLlama", "(call 2)")):
        code, shown, said = run("doctor", "--model", folder / name)
        assert code == 0 and says in shown, said
