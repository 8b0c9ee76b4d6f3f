"""The cache of captures: what a second run takes from it, when it does not, and what may be wrong with a file of it."""

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sources_helpers import VOCABULARY, bert_config, save, seeded, text_of
from thinned import others_slow

from attnprobe.errors import SourceError, UsageError
from attnprobe.frame.records.file import identity_facts
from attnprobe.inputs import SourceSpec, load_qkv, resolve, save_qkv
from attnprobe.inputs.cache import Cache, default_cache
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.show.page import open_run


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The user's cache, which is empty and on."""
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "64MiB")
    monkeypatch.setenv("ATTNPROBE_CACHE_DIR", str(tmp_path / "cache"))
    return default_cache()


@pytest.fixture
def model(tmp_path):
    """A tiny model of its own, whose files a test may change."""
    from transformers import BertModel

    return save(seeded(lambda: BertModel(bert_config())), tmp_path / "model")


FILES = ("rows.jsonl", "inputs.jsonl")


def source(model, text, notify=lambda line: None, **options):
    return resolve(SourceSpec(model=str(model), text=text, device="cpu", **options), notify=notify)


def refuse_forwards(monkeypatch):
    def forward(*args):
        raise AssertionError("the model was run")

    monkeypatch.setattr("attnprobe.inputs.model.read", forward)


def test_a_second_source_takes_the_same_tensors_without_a_forward(cache, model, text_file, monkeypatch):
    first = source(model, text_file)
    expected = first.qkv(24, [0, 2], 1)
    refuse_forwards(monkeypatch)
    again = source(model, text_file)
    assert identity_facts(again.facts) == identity_facts(first.facts) and "captured" not in first.facts
    got = again.qkv(24, [2, 0], 1)
    assert again.facts == {**first.facts, "captured": "cache"}
    for layer, qkv in expected.items():
        assert all(torch.equal(getattr(qkv, axis), getattr(got[layer], axis)) for axis in "qkv")
        for part in ("weight", "size"):
            assert torch.equal(getattr(qkv.block, part), getattr(got[layer].block, part))
        assert (qkv.scale, qkv.causal) == (got[layer].scale, got[layer].causal)
        assert got[layer].label == {**qkv.label, "captured": "cache"}


@pytest.mark.parametrize(
    "other",
    [
        {"n": 25},
        {"window": 0},
        {"layer": 1},
        {"queries": "last:3"},
        {"positions": "wrap"},
        {"weights": "initialized"},
        {"cache": False},
    ],
)
def test_what_was_not_captured_is(other, cache, model, text_file, monkeypatch):
    place = {"model": str(model), "text": text_file, "n": 24, "layer": 0, "window": 1, "device": "cpu"}
    load_qkv(**place)
    refuse_forwards(monkeypatch)
    load_qkv(**place)
    with pytest.raises(AssertionError, match="the model was run"):
        load_qkv(**place | other)


def test_windows_sinks_and_queries_are_cached(cache, tmp_path, monkeypatch):
    from transformers import GptOssConfig, GptOssModel

    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "num_local_experts": 2}
    model = seeded(lambda: GptOssModel(GptOssConfig(**sizes, **more, num_experts_per_tok=1, intermediate_size=8)))
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    text = tmp_path / "text"
    text.write_text(text_of(90))
    folder = save(model, tmp_path / "model")
    first = source(folder, str(text), queries="last:5").qkv(24, [0], 0)[0]
    refuse_forwards(monkeypatch)
    again = source(folder, str(text), queries="last:5").qkv(24, [0], 0)[0]
    assert (again.sliding_window, again.causal) == (first.sliding_window, first.causal) == (6, True)
    assert again.group == first.group == 2 and torch.equal(again.shared_k, first.shared_k)
    assert torch.equal(again.sink_logits, first.sink_logits) and torch.equal(again.positions, first.positions)


def test_each_read_says_whether_it_is_of_the_cache(cache, model, text_file):
    source(model, text_file).qkv(24, [0], 1)
    one = source(model, text_file)
    labels = [one.qkv(24, [0], window)[0].label for window in (1, 0, 1)]
    assert [label.get("captured") for label in labels] == ["cache", None, "cache"]


@pytest.mark.parametrize("queries", [None, "last:4"])
def test_a_capture_without_blocks_is_cached(queries, cache, model, text_file, monkeypatch):
    monkeypatch.setattr("attnprobe.inputs.hooks.blocks._weight_of", lambda *_: None)
    one, two = (source(model, text_file, queries=queries).qkv(24, [0, 2], 0) for _ in range(2))
    for layer in (0, 2):
        assert one[layer].block is two[layer].block is None and torch.equal(one[layer].q, two[layer].q)


def test_a_capture_whose_projection_is_gone_is_made_again(cache, model, text_file):
    expected = source(model, text_file).qkv(24, [0], 0)[0]
    [entry] = (path for path in cache.folder.glob("*.safetensors") if list(load_file(path)) == ["weight"])
    entry.unlink()
    again = source(model, text_file)
    got = again.qkv(24, [0], 0)[0]
    assert "captured" not in again.facts and torch.equal(got.block.weight, expected.block.weight)


def test_a_file_of_what_is_cached_has_the_same_bytes(cache, model, text_file, tmp_path):
    one, two = (save_qkv(tmp_path / name, source(model, text_file), 24, [1]).read_bytes() for name in ("1", "2"))
    assert one == two


def test_other_weights_in_the_same_place_are_captured_anew(cache, model, text_file):
    expected = source(model, text_file).qkv(24, [0], 0)[0]
    tensors = load_file(model / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, model / "model.safetensors", {"format": "pt"})
    changed = source(model, text_file)
    assert not torch.equal(changed.qkv(24, [0], 0)[0].q, expected.q) and "captured" not in changed.facts


@pytest.mark.parametrize("file", ["config.json", "vocab.txt"])
def test_another_configuration_or_vocabulary_is_another_source(file, cache, model, text_file):
    before = source(model, text_file)
    before.qkv(24, [0], 0)
    path = model / file
    path.write_text(
        path.read_text().replace('"gelu"', '"relu"') if file == "config.json" else path.read_text() + "new\n"
    )
    after = source(model, text_file)
    after.qkv(24, [0], 0)
    assert "captured" not in after.facts and identity_facts(after.facts) != identity_facts(before.facts)


def test_a_dtype_is_applied_to_what_is_cached(cache, model, text_file):
    expected = source(model, text_file, dtype="bfloat16").qkv(24, [0], 0)[0]
    got = source(model, text_file, dtype="bfloat16").qkv(24, [0], 0)[0]
    assert got.q.dtype == torch.bfloat16 and torch.equal(got.q, expected.q)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b""]
)
def test_a_damaged_entry_is_made_again_with_a_word(damage, cache, model, text_file):
    expected = source(model, text_file).qkv(24, [0], 0)[0]
    for entry in cache.entries():
        entry.path.write_bytes(damage(entry.path.read_bytes()))
    lines = []
    again = source(model, text_file, notify=lines.append)
    assert torch.equal(again.qkv(24, [0], 0)[0].q, expected.q) and "captured" not in again.facts
    assert len(lines) == 3 and all(line.endswith("the cached capture is damaged; it is made again") for line in lines)
    full = source(model, text_file, notify=lines.append)
    full.qkv(24, [0], 0)
    assert full.facts["captured"] == "cache" and len(lines) == 3


def test_a_folder_that_cannot_be_written_costs_a_word_and_nothing_else(cache, model, text_file, tmp_path):
    (tmp_path / "cache").write_text("a file")
    lines = []
    assert source(model, text_file, notify=lines.append).qkv(24, [0], 0)[0].n_q == 24
    assert lines and all("the capture is not cached: " in line for line in lines)


def test_a_text_that_is_too_short_is_refused_with_and_without_the_cache(cache, model, text_file):
    for _ in range(2):
        with pytest.raises(UsageError, match="needs 10000 tokens|needs .* tokens, but the text"):
            source(model, text_file).check(10000, 1, [0])
        source(model, text_file).check(24, 1, [0])


def test_a_substitute_is_told_by_the_run_that_finds_it_in_the_cache_too(cache, model, text_file):
    (model / "vocab.txt").unlink()
    stated = []
    for _ in range(2):
        lines = []
        actual = source(model, text_file, notify=lines.append, weights="initialized")
        actual.qkv(24, [0], 0)
        stated.append((lines, actual.facts["fallback"]))
    assert stated[0] == stated[1] and len(stated[0][0]) == 1 and actual.facts["captured"] == "cache"
    with pytest.raises(SourceError, match="--strict forbids a substitute"):
        source(model, text_file, weights="initialized", strict=True)


def test_the_least_recently_used_entries_go(tmp_path):
    cache = Cache(tmp_path, largest=3000)
    for number in range(3):
        cache.keep_tensors(f"key{number}", {"x": torch.zeros(200)}, {})
        os.utime(cache.entries()[-1].path, (number, number))
    assert cache.tensors("key0") is not None  # used now
    cache.keep_tensors("key3", {"x": torch.zeros(200)}, {})
    assert {entry.key for entry in cache.entries()} == {"key0", "key2", "key3"}
    cache.keep_tensors("large", {"x": torch.zeros(1000)}, {})
    assert cache.tensors("large") is None and len(cache.entries()) == 3
    assert cache.clear() == 3 and cache.entries() == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 2**32), ("0", 0), ("5000", 5000), ("3k", 3072), ("1.5 MB", 1572864), ("2GiB", 2**31), ("1T", 2**40)],
)
def test_a_size_is_read(text, size, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", text)
    assert default_cache().largest == size


@pytest.mark.parametrize("size, shown", [("much", "much"), ("9" * 400, "9{79}…"), ("1." + "0" * 400, "1.0{77}…")])
def test_what_is_no_size_is_refused(size, shown, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", size)
    with pytest.raises(UsageError, match=f"ATTNPROBE_CACHE_SIZE={shown}: write a size, such as 4GiB"):
        default_cache()


def test_a_folder_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("ATTNPROBE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache().folder == tmp_path / "attnprobe" / "captures"


def use(folder, told):
    """Keep and read entries, more than the cache holds; tell what went wrong."""
    cache = Cache(folder, largest=40_000, notify=told.put)
    for number in range(60):
        key = f"key{number % 7}"
        cache.keep_tensors(key, {"x": torch.full((1000,), float(number))}, {"number": number})
        found = cache.tensors(key)
        assert found is None or float(found[0]["x"][0]) == found[1]["number"]


def test_entries_are_counted_again_where_they_may_exceed_the_cache_and_not_at_each_one(tmp_path):
    counts = []

    class Watched(Cache):
        def entries(self):
            counts.append(len(super().entries()))
            return super().entries()

    cache = Watched(tmp_path, largest=64 * 1000)
    for number in range(40):
        cache.keep_facts(f"k{number}", {"text": "x" * 90})
    assert 3 <= len(counts) <= 5  # once, and after each thousand bytes of a cache of 64,000
    cache = Watched(tmp_path, largest=2000)
    cache.keep_facts("last", {"text": "x" * 90})
    assert sum(entry.size for entry in cache.entries()) <= 2000


def test_several_processes_read_write_and_evict_at_once(tmp_path):
    """Forks of this process, which has imported everything."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    started = [context.Process(target=use, args=(tmp_path, told)) for _ in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [process.exitcode for process in started] == [0, 0, 0] and told.empty()
    cache = Cache(tmp_path, largest=40_000, notify=pytest.fail)
    assert cache.entries() and all(cache.tensors(entry.key) for entry in cache.entries())
    assert not list(tmp_path.glob(".*"))


LATER = """
import sys
from attnprobe.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*(name for name in NOT_NEEDED if name in sys.modules), file=sys.stderr)
"""
#: what a run without matrix errors needs only for a forward, a download, a figure or nothing at all; tables need pandas
HEAVY = "transformers tokenizers datasets scipy.stats matplotlib sympy jinja2 torch._dynamo torch._inductor"


@pytest.mark.slow
def test_a_run_whose_captures_are_there_imports_nothing_that_it_does_not_use(cache, model, text_file, tmp_path):
    def run(name):
        args = ["error", "--model", str(model), "--text", text_file, "--n", "24", "--method", "vmean", "--out", name]
        script = f"NOT_NEEDED = {HEAVY.split()}{LATER}"
        command = [sys.executable, "-c", script, *args, "--no-matrix", "--device", "cpu"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        records = [json.loads(line) for line in (tmp_path / name / "rows.jsonl").read_text().splitlines()]
        for record in records:
            record.pop("run", None), record.pop("seconds", None)  # rows of heads have neither
        return done.stderr.splitlines()[-1], records, [record["source"] for record in records if "source" in record]

    (loaded, first, _), (light, second, sources) = run("first"), run("second")
    assert {"transformers", "tokenizers"} <= set(loaded.split()) and light == ""
    assert sources and [source.pop("captured", None) for source in sources] == ["cache"] * len(sources)
    assert first == second


@pytest.mark.parametrize("scale", others_slow([1.0, 2.0], lambda factor: factor[0] == 2))
def test_the_exact_output_and_the_input_statistics_are_made_once(scale, cache, model, text_file, tmp_path, monkeypatch):
    made = []

    def counted(module, name):
        function = getattr(importlib.import_module(module), name)
        monkeypatch.setattr(f"{module}.{name}", lambda *args: made.append(name) or function(*args))

    counted("attnprobe.run.inputs", "input_statistics")
    counted("attnprobe.measure.error.measure", "exact_output")
    place = {"model": str(model), "text": text_file, "n": (24,), "methods": ("vmean",), "device": "cpu"}

    def measured(name, **options):
        options = place | {"out": str(tmp_path / name), "scale_inputs": (scale,)} | options
        measure_errors(ErrorRequest(**options))
        folder = tmp_path / name
        run = open_run(folder)
        return [run.frame(kind).drop(columns=["seconds", "key"], errors="ignore") for kind in ("head", "inputs")]

    first = measured("first")
    assert sorted(made) == ["exact_output", "input_statistics"]
    second = measured("second")
    assert len(made) == 2 and all(one.equals(other) for one, other in zip(first, second, strict=True))
    others = {"head": {"head": (1,)}, "scale": {"scale_inputs": (scale + 1,)}, "target": {"target": "gaussian"}}
    for number, (name, options) in enumerate(others.items(), 1):
        measured(name, **options)
        assert made.count("exact_output") == 1 + number, name
    assert made.count("input_statistics") == 3  # they do not depend on the target


def test_the_command_lists_and_clears(cache, model, text_file, run):
    source(model, text_file).qkv(24, [0], 0)
    code, out, _ = run("cache")
    head, *lines = out.splitlines()
    assert code == 0 and "in 3 entries" in head and f"Q, K, V: model {model}, weights pretrained" in out
    assert "layer 0, n 24, window 0" in out and len(lines) == 3
    assert f"model and text: model {model}, weights pretrained" in out
    assert run("cache", "clear")[1].endswith(": 3 entries removed\n")
    assert run("cache", "list")[1].endswith("in 0 entries\n")


def test_what_a_killed_conversion_left_is_removed_and_a_running_one_stays(cache, run, monkeypatch):
    models = default_cache(kind="models")
    killed = subprocess.Popen(["true"])
    killed.wait()
    left, used = (models.folder / f".{pid}-abc_123.tmp" for pid in (killed.pid, os.getpid()))
    for folder in (left, used, models.folder / ".mine.tmp"):
        (folder / "model").mkdir(parents=True)
        (folder / "model/config.json").write_text("{}")
    (left / "model.gguf").symlink_to(used / "model/config.json")
    assert run("cache", "clear")[1].endswith(f"{models.folder}: 1 entries removed\n")
    assert not left.exists() and (used / "model/config.json").exists() and (models.folder / ".mine.tmp").exists()
    with models.making() as name:
        assert Path(name).parent == models.folder and models.unfinished() == []


def test_what_is_not_the_caches_stays(cache, tmp_path, run):
    """Other files beside entries: also folders, links and names that are almost those of entries."""
    cache.keep_facts("a" * 32, {"x": 1})
    (entry,) = cache.folder.iterdir()
    for name in ("my-notes.txt", "my-data.json", f"{entry.name}.bak", entry.name.replace("-", "-0")):
        (cache.folder / name).write_text("mine")
    (cache.folder / "my-dir.d").mkdir()
    (cache.folder / f"b-{'0' * 64}.json").mkdir()
    (tmp_path / "outside.json").write_text("mine")
    (cache.folder / f"c-{'0' * 64}.json").symlink_to(tmp_path / "outside.json")
    before = {path.name for path in cache.folder.iterdir()}
    assert run("cache", "clear")[:2] == (0, f"{cache.folder}: 1 entries removed\n")
    assert {path.name for path in cache.folder.iterdir()} == before - {entry.name}
    assert (tmp_path / "outside.json").read_text() == "mine"


@pytest.mark.parametrize("data", [b"", b"{}", b"garbage", b"\xff" * 40, b"\x08" + bytes(7) + b'{"a": 1}', b"[1]"])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_an_entry_that_cannot_be_read_is_listed(data, suffix, cache, run):
    cache.folder.mkdir(parents=True)
    (cache.folder / f"key-{'0' * 64}{suffix}").write_bytes(data)
    code, out, err = run("cache", "--debug")
    assert code == 0 and err == "" and out.splitlines()[1].endswith("damaged, or of another version")


def test_a_vocabulary_of_the_text_reads_as_before(cache, tmp_path):
    text = tmp_path / "words.txt"
    text.write_text(text_of(300))
    first, second = (load_qkv(weights="initialized", text=str(text), n=16, device="cpu") for _ in range(2))
    assert torch.equal(first.q, second.q) and second.label["captured"] == "cache"
