"""Fixtures: the command line, a small Q/K/V file, a tiny model and a text on disk, and a machine without a hub."""

import contextlib
import functools
import gc
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sources_helpers import bert_config, save, seeded, text_of

from attnprobe.cli import main
from attnprobe.frame.records.append import RecordWriter
from attnprobe.operators.blocks import BLOCK_MEMORY

os.environ["ATTNPROBE_CACHE_SIZE"] = "0"  # no test depends on what another has captured

#: files whose tests make no process, draw nothing and load no model: `pytest -m quick`
QUICK = {
    f"test_{name}.py"
    for name in [
        *("sweeps", "dimension", "files", "fragile", "gates", "imports", "informer", "large_scores", "linalg"),
        *("linformer", "ma", "metrics", "nystromformer", "operators", "features", "qkv", "records", "reference"),
        *("registry", "hashing", "rng", "skeinformer", "skyformer", "sparse", "spectral_shift", "dong2021"),
        *("finding", "frequency", "verma2021", "xiong2021"),
    ]
}


def pytest_ignore_collect(collection_path, config):
    """Quick tests do not wait for the others to be imported."""
    quick = config.option.markexpr == "quick" and collection_path.suffix == ".py"
    return True if quick and collection_path.name not in QUICK else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """A worker for each core: threads of its own would fight for them. NumPy reads their number when it is imported."""
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays to the end: the collector need not walk it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 10, 10)  # by default a tenth of the time of a test that draws goes to collections


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in QUICK and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.quick)


@pytest.fixture(autouse=True, scope="session")
def no_columns():
    """A pipe has no width, whatever the process that runs the tests exports."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def blocks_of_full_size(monkeypatch):
    """A test in which memory runs out makes no blocks of later ones smaller."""
    monkeypatch.setattr(BLOCK_MEMORY, "halvings", 0)


@pytest.fixture(autouse=True, scope="session")
def typed_records():
    """Whatever a command writes is what its type says."""
    from attnprobe.measure import shape_of

    append = RecordWriter.append

    def checked(self, record):
        append(self, record)
        *rows, end = map(json.loads, self._lines[-1].splitlines())
        written = {**end, "rows": rows} if "rows" in record else end
        shape = shape_of(written.get("command", ""))
        assert shape is None or shape.problem(written) is None, shape.problem(written)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordWriter, "append", checked)
        yield


@pytest.fixture(autouse=True, scope="session")
def fonts_are_subset_once():
    """The part of a font that a PDF needs is made once for the same characters. It takes a third of a figure's time."""
    from matplotlib.backends import _backend_pdf_ps as backend

    subset = backend.get_glyphs_subset

    @functools.lru_cache(maxsize=100)
    def made(path, glyphs):
        manager = subset(path, glyphs)
        return manager, manager.__enter__()  # the font is closed when the manager is forgotten

    backend.get_glyphs_subset = lambda path, glyphs: contextlib.nullcontext(made(path, tuple(glyphs))[1])
    yield
    backend.get_glyphs_subset = subset


@pytest.fixture(autouse=True, scope="session")
def svg_alone():
    """PNG and PDF of figures are empty files without `every_file`: they take longer than all else."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def saved(figure, path, **how):
        if Path(path).suffix in (".png", ".pdf"):
            Path(path).write_bytes(b"")
        else:
            save(figure, path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", saved)
        yield save


@pytest.fixture
def every_file(monkeypatch, svg_alone):
    """PNG and PDF are written as for a user."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", svg_alone)


@pytest.fixture
def here(monkeypatch):
    """What has a time limit is measured in this process all the same, with what a test has planted in it."""
    from attnprobe.run.where.backends import Alone

    monkeypatch.setattr("attnprobe.run.where.sites.Processes", lambda jobs: Alone())


@pytest.fixture
def hearing():
    """Ctrl-C as in a shell's foreground, whatever these tests were started from."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> str:
    """A directory with a three-layer BERT of 4 heads of 8 and 16 positions, and its vocab.txt."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("models") / "bert"
    return str(save(seeded(lambda: BertModel(bert_config())), folder))


@pytest.fixture(scope="module")
def built():
    """Each tiny model with a padded batch, made once."""
    import tiny_models

    made = {}

    def get(name):
        if name not in made:
            model = tiny_models.build(name)
            made[name] = (model, tiny_models.inputs(model))
        return made[name]

    return get


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are in another order with more
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory):
    """A file of Q, K and V of layers 0 and 2, of two heads and two windows of 64 tokens."""
    made = torch.Generator().manual_seed(3)
    path = tmp_path_factory.mktemp("qkv") / "qkv.safetensors"
    save_file(
        {
            f"layer{layer}.window{window}.{axis}": torch.randn(2, 64, 8, generator=made)
            for layer in (0, 2)
            for window in (0, 1)
            for axis in "qkv"
        },
        path,
    )
    return path


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


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command line in this process, in an empty folder: ``(code, stdout, stderr)``.

    An argument that begins with ``--`` and has blanks is several words: ``run("error", "--d 4,8 --out r")``.
    """
    monkeypatch.chdir(tmp_path)

    def call(*args):
        words = []
        for arg in map(str, args):
            words += arg.split() if arg.startswith("--") else [arg]
        with pytest.raises(SystemExit) as stop:
            main(words)
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call


@pytest.fixture
def qkv(tmp_path):
    """A small Q/K/V file: 2 heads, 96 tokens, p = 8."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 96, 8, generator=generator)
    path = tmp_path / "qkv.safetensors"
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, path)
    return path


@pytest.fixture
def command(request):
    """The fixture `run`, for tests with a function of that name."""
    return request.getfixturevalue("run")


@pytest.fixture
def write(tmp_path):
    """Write records as a run folder, by its name."""
    from error_rows import in_rows

    def write_(name, records):
        with RecordWriter(tmp_path / name / "rows.jsonl") as writer:
            for index, record in enumerate(records):
                writer.append(in_rows({**record, "key": f"{name}{index}"}))
        return name

    return write_
