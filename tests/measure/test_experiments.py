"""Every experiment has its parts, each part is what its name says, and a method that cannot run is a row."""

import pytest
import torch
from asked import measured
from safetensors.torch import save_file
from sources_helpers import VOCABULARY, save, seeded, text_of

from attnprobe.cli.factory import measuring_command
from attnprobe.errors import UsageError
from attnprobe.measure import EXPERIMENTS, experiment, shape_of
from attnprobe.measure.base import Experiment
from attnprobe.run.cells import Cells
from attnprobe.run.option import options_of
from attnprobe.run.topics.running import RunRequest
from attnprobe.run.topics.showing import Output


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_parts_of_an_experiment_are_there(name):
    one = experiment(name)
    assert isinstance(one, Experiment) and one.name == name and one.summary.endswith(".")
    assert issubclass(one.request, RunRequest) and issubclass(one.output, Output) and issubclass(one.cells, Cells)
    assert one.plots and one.examples and one.cells.command == name and one.request.__doc__


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_the_type_of_its_records(name):
    assert shape_of(name) is not None and shape_of(name) is shape_of(name)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_command_takes_plot_none(name):
    """It draws no figure, and a method named behind it is still a method."""
    words = ["--plot", "none", *(() if name == "spectrum" else ("performer",))]
    context = measuring_command(experiment(name)).make_context(name, words)
    assert not context.params.get("plot") and context.params.get("plots", ("none",)) == ("none",)
    assert context.params.get("methods", ("performer",)) == ("performer",)


def test_other_words_have_no_type():
    assert shape_of("sweep") is None


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_part_of_an_experiment_is_there(name):
    one = experiment(name)
    assert one.catalogue.columns and shape_of(name) is one.shape
    listed = any(option.name == "listing" for option in options_of(one.output))
    assert listed == (one.list_all is not None)
    assert not one.timed or "time" in one.shape.kinds
    with pytest.raises(UsageError, match=f"cannot keep pictures; it keeps {'maps' if name == 'error' else 'nothing'}"):
        one.measure(None, pictures=True)


CAUSAL = "attention is causal, and mss has no causal form"
MODEL = "--model llama --text words.txt --n 32 --no-input-statistics --d 8"
COMMANDS = {  # by name: the command, and the reason of mss
    "error": ("error --qkv qkv.safetensors --no-matrix --method window,mss --d 8", CAUSAL),
    "audit": (
        "audit --qkv qkv.safetensors --no-matrix --method performer,linformer --d 8 --repeats 3",
        CAUSAL.replace("mss", "linformer"),
    ),
    "budget": ("budget --qkv qkv.safetensors --method window,mss --epsilon 0.5 --repeats 2", CAUSAL),
    "condition": ("condition --qkv qkv.safetensors --method vmean,mss --d 8", CAUSAL),
    "spectrum": ("spectrum --qkv qkv.safetensors --of window,mss --d 8", CAUSAL),
    "theory": (
        "theory --qkv qkv.safetensors --theorem topk-tv,ma-property --method mss --d 8 --repeats 2",
        "attention is causal, but the theorem is about attention to all tokens",
    ),
    "bench": (
        "bench --source model --model llama --text words.txt --n 32 --method linear,mss --d 8 --rounds 1 --no-memory",
        CAUSAL,
    ),
    "stability": (
        "stability --task listops:n=64,batch=2 --method linear,mss --d 128 --steps 1 --seeds 1 --condition-tokens 0",
        "listops: mss: d=128 exceeds n=",
    ),
    "inject": (f"inject {MODEL} --method window,mss", CAUSAL),
    "inject-decode": (f"inject {MODEL} --method window,mss --phase decode", "mss cannot decode: it has no causal form"),
    "inject-decode-lsh": (
        f"inject {MODEL} --method window,lsh-qk --phase decode",
        "lsh-qk cannot decode: a row depends on the queries of earlier tokens or on the number of keys",
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Causal Q, K, V, a small Llama, and a text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("causal")
    tensors = torch.randn(3, 2, 32, 8, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip("qkv", tensors, strict=True)), folder / "qkv.safetensors", metadata={"causal": "true"})
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = LlamaConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, initializer_range=0.3, **sizes)
    save(seeded(lambda: LlamaForCausalLM(config)), folder / "llama")
    (folder / "words.txt").write_text(text_of(200))
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_method_that_cannot_run_is_a_skipped_row(inputs, tmp_path, monkeypatch, name):
    command, reason = COMMANDS[name]
    monkeypatch.chdir(inputs)
    records = measured(*command.split(), "--device", "cpu", "--out", tmp_path / "r")
    skipped = [record for record in records if record["status"] == "skipped"]
    assert skipped and any(reason in record["reason"] for record in skipped)
    assert {record["status"] for record in records} == {"ok", "skipped"}


def test_a_skipped_row_is_shown_and_no_failure(run, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(inputs)
    code, out, err = run(*COMMANDS["error"][0].split(), "--device", "cpu", "--out", tmp_path / "r")
    assert code == 0 and "skipped" in out, err
