"""The method `own`: what the module of a model computes in place of exact attention."""

from pathlib import Path

import pytest
import tiny_models
import torch

from attnprobe import QKV, approximate, capture, load_qkv
from attnprobe.errors import SourceError, Unsupported
from attnprobe.inputs import SourceSpec, resolve
from attnprobe.inputs.save import save_qkv
from attnprobe.measure.error import ErrorRequest, measure_errors

N = tiny_models.N
APPROXIMATE = ("Longformer", "Nystromformer", "Reformer", "BigBird (block-sparse)")


def first_call(name, **changes):
    model = tiny_models.build(name, **changes)
    for module in model.modules():
        if hasattr(module, "conv_kernel_size"):
            module.conv_kernel_size = None
    batch = {name: x[:1] for name, x in tiny_models.inputs(model, padded=False).items()}
    return next(iter(capture(model, batch).values()))


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_longformer_s_own_attention_is_a_window_of_its_keys():
    qkv = first_call("Longformer").qkv()
    assert apart(approximate("own", qkv).output, approximate("window", qkv, 9, sinks=0).output) <= 1e-6


def test_nystromformer_s_own_attention_is_the_method_of_that_name():
    qkv = first_call("Nystromformer").qkv()
    ours = approximate("nystromformer", qkv, 4, z0="global").output
    assert apart(approximate("own", qkv).output, ours) <= 1e-5


def test_parts_of_inputs_have_their_parts_of_it():
    qkv = first_call("Longformer").qkv()
    own = approximate("own", qkv).output
    assert torch.equal(approximate("own", qkv.select([2, 1])).output, own[[2, 1]])
    rows = torch.tensor([3, 7])
    assert torch.equal(approximate("own", qkv.queries(rows)).output, own[:, rows])
    assert torch.equal(approximate("own", qkv.double()).output, own.double())
    for changed in (qkv.replace(q=2 * qkv.q), qkv.replace(scale=1.0), QKV(*torch.ones(3, 1, 4, 2))):
        with pytest.raises(Unsupported, match="own: these inputs have no output of a module"):
            approximate("own", changed)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "0")
    Path("text.txt").write_text(tiny_models.PROSE * 8)

    def saved(name):
        tiny_models.save(name, Path(name))
        return {"model": f"./{name}", "text": "./text.txt", "device": "cpu"}

    return saved


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_checkpoint_by_its_path_is_measured_layer_by_layer(folder, name):
    given = folder(name)
    request = ErrorRequest(methods=("own", "topk"), n=(N,), d=(N,), layer="all", input_statistics=False, **given)
    records = measure_errors(request).outcome.records
    found = {(record["method"], record["layer"]): record for record in records if record["status"] == "ok"}
    for layer in (0, 1):
        errors = {
            method: [row["output_spectral_relative"] for row in found[method, layer]["rows"]]
            for method in ("own", "topk")
        }
        assert min(errors["own"]) > 0.05 and max(errors["topk"]) <= 1e-6
    again = measure_errors(ErrorRequest(**{**vars(request), "out": "again"})).outcome.records
    assert [row for record in again for row in record.get("rows", [])] == [
        row for record in records for row in record.get("rows", [])
    ]


@pytest.mark.parametrize("name", ["Longformer", "MPNet"])
def test_a_file_keeps_what_a_model_adds_to_scores_and_what_it_computes(folder, name):
    given = folder(name)
    source = resolve(SourceSpec(**given))
    save_qkv("qkv.safetensors", source, N, [0, 1])
    for layer in (0, 1):
        actual, stored = source.qkv(N, [layer], 0)[layer], load_qkv(qkv="qkv.safetensors", n=N, layer=layer)
        for one in ("bias", "own"):
            a, b = getattr(actual, one), getattr(stored, one)
            assert (a is None and b is None) or torch.equal(a, b)
        few = load_qkv(qkv="qkv.safetensors", n=9, layer=layer)
        assert few.own is None and (few.bias is None or few.bias.shape[1:] == (9, 9))


def test_a_text_of_several_segments_has_no_bias_between_them(folder):
    with pytest.raises(SourceError, match="between segments"):
        load_qkv(**folder("MPNet"), n=96, layer=0)
