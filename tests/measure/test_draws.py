"""Draws of every command: what statistics take for independent has its own, and a head has those of its layer."""

import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from asked import measured
from golden.small_runs import INPUTS
from golden.values import records_of
from inject_rows import local as local_errors
from inject_rows import of_kind
from thinned import others_slow

from attnprobe import rng
from attnprobe.frame.records.read import read_records
from attnprobe.methods import METHODS

PROBABILITIES = (
    "skyformer-theorem-2,skyformer-theorem-2-budget,skeinformer-jl,skeinformer-jl-vector,skeinformer-proposition-1,"
    "skeinformer-lemma-1,ma-property,wildcat-trace"
)
FILE = "--qkv qkv.safetensors --d 4"
TINY = "--model tiny --text words.txt --n 16 --d 4"
DECODE = "--model decoder --text words.txt --n 16 --d 4 --phase decode --prefix 9"
PLACES = {"windows": ("--windows 1", "--windows 2"), "layers": ("--layer 0", "--layer 0,2")}
HEADS = {"heads": ("--head 0", "--head 0,1")}
REPEATS = {"repeats": ("--repeats 1", "--repeats 2")}
TWICE = {"repeats": ("--repeats 2", "--repeats 4")}
LAYERS = {"layers": ("--layer 0", "--layer 0,1")}
WINDOWS = {"windows": PLACES["windows"]}
#: by command: options of a small run, and for each thing that is independent the options for one and for two of it
RUNS = {
    "error": (f"{FILE} --method skeinformer,linformer --no-matrix", PLACES | HEADS | REPEATS),
    "audit": (f"{FILE} --method performer,bigbird --no-matrix", PLACES | HEADS | TWICE),
    "budget": (
        "--qkv qkv.safetensors --method linformer --epsilon 0.5 --scan --d-min 4 --d-max 6",
        PLACES | HEADS | REPEATS,
    ),
    "bench": (f"{FILE} --source model --method skyformer --rounds 1 --no-memory", {"layers": PLACES["layers"]} | HEADS),
    "condition": (f"{FILE} --method nystromformer --sensitivity", PLACES | HEADS),
    "spectrum": (f"{FILE} --of skyformer,linformer", PLACES | HEADS),
    "theory": (f"{FILE} --theorem {PROBABILITIES} --method linformer", PLACES | HEADS | REPEATS),
    "inject": (f"{TINY} --method skeinformer,linformer --batch 2", WINDOWS | LAYERS | REPEATS),
    "inject lines": (f"{TINY} --method skeinformer --batch 2 --lines", WINDOWS),
    "inject decode": (f"{DECODE} --method random,vattention --batch 2", WINDOWS | LAYERS | REPEATS),
    "inject plan": (
        f"{DECODE} --method random --plan measured",
        {"windows": ("--windows 1 --plan-windows 1", "--windows 2 --plan-windows 2")} | REPEATS,
    ),
    "stability": (
        "--method skyformer --d 8 --condition-tokens 0",
        {
            "seeds": ("--seeds 1", "--seeds 2"),
            "steps": ("--steps 1", "--steps 2"),
            "prompts": ("--task listops:n=64,batch=1", "--task listops:n=64,batch=2"),
        },
    ),
}
#: every method with draws whose heads are chosen alone, and whose result at --head is that of the layer
DRAWING = ",".join(name for name, one in METHODS.items() if "deterministic" not in one.tags and not one.joint)
ALONE = {
    **{name.partition(" ")[0]: options for name, (options, axes) in RUNS.items() if "heads" in axes},
    "error": f"--qkv qkv.safetensors --d 8 --no-matrix --rows --method {DRAWING}",
    "condition": f"{FILE} --method skyformer,nystromformer --sensitivity --iterations 6",
    "theory": f"{FILE} --theorem all --method linformer",
}
QUICK = ("error", "theory", "condition", "inject", "inject decode", "stability")  # each opens streams in its own way
OF_ALL_HEADS = {"lower", "upper", "p_at_most", "p_above", "verdict"}  # of a promise: corrected for the number of tests
ONCE = {"certificate", "perturbation", "trace", "ritz", "gradient", "power"}  # of what is right for each matrix alone
#: draws of the text and of the model that all methods, layers, repeats and steps of training read
SAME = {"hidden words": ("layers", "repeats"), "weights": ("steps", "prompts")}


@pytest.fixture
def drawn(monkeypatch):
    """The labels of all streams that are opened, with their seed, by their first label."""
    streams, number = defaultdict(set), rng._number

    def opened(seed, *labels):
        if ONCE.isdisjoint(labels):
            streams[labels[0]].add((seed, *labels))
        return number(seed, *labels)

    monkeypatch.setattr(rng, "_number", opened)
    return streams


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder with inputs, in which a test runs."""
    shutil.copytree(INPUTS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def measure(here, drawn):
    """The streams of a small run of a command."""

    def streams_of(name, *options):
        drawn.clear()
        cells = measured(name.split()[0], *options, "--device", "cpu", "--force", "--out", "r")
        assert {cell["status"] for cell in cells} <= {"ok", "skipped"}
        return {label: set(labels) for label, labels in drawn.items()}

    return streams_of


@pytest.mark.parametrize("name", others_slow(RUNS, lambda name: name[0] in QUICK))
def test_what_is_independent_has_draws_of_its_own(name, measure):
    options, axes = RUNS[name]
    alone = {axis: one for axis, (one, _) in axes.items()}
    base = measure(name, options, *alone.values())
    assert base
    for axis, (_, two) in axes.items():
        more = measure(name, options, *{**alone, axis: two}.values())
        for label, streams in base.items():
            factor = 1 if axis in SAME.get(label, ()) else 2
            assert streams <= more[label], (axis, label)
            assert len(more[label]) == factor * len(streams), (axis, label)


def test_inject_draws_as_error_does_in_every_window(here):
    """Layer 0 reads the same Q, K and V in both commands."""
    options = ("--method skeinformer,linformer,performer", TINY, "--windows 3 --repeats 2 --layer 0 --device cpu")
    measured("error", *options, "--no-matrix --out e")
    measured("inject", *options, "--batch 3 --out i")

    def by_cell(folder, numbers):
        records = [record for record in read_records(folder) if record["method"] in options[0]]
        return {(one["method"], one["window"], one["seed"]): numbers(one) for one in records}

    errors = by_cell("e", lambda record: [row["output_frobenius_relative"] for row in of_kind(record, "head")])
    local = by_cell("i", lambda record: local_errors(record)[0])
    assert len(errors) == 3 * 3 * 2
    assert local.keys() == errors.keys()
    for cell, of_heads in errors.items():
        assert local[cell] == pytest.approx(of_heads, rel=1e-4), cell  # float32, of a few sums of 16 terms


@pytest.mark.parametrize("name", others_slow(ALONE, lambda name: name[0] in QUICK))
def test_a_head_alone_is_that_of_its_layer(name, here):
    """To the rounding of float64 sums, which may have another order for one head, amplified by matrices of n = 24."""

    def numbers(heads):
        measured(name, *ALONE[name].split(), "--dtype float64 --device cpu --head", heads, "--out", heads)
        found = {}
        for place, metric, value in records_of(Path(heads)):
            passing = "seconds" in metric or (name == "audit" and metric in OF_ALL_HEADS)
            if place.get("head") == 1 and value is not None and not passing:
                found[(*sorted((key, str(part)) for key, part in place.items()), metric)] = value
        return found

    alone, both = numbers("1"), numbers("0,1")
    assert alone.keys() == both.keys() and len(alone) > 5
    for place, value in alone.items():
        if isinstance(value, float):
            assert both[place] == pytest.approx(value, rel=1e-7, abs=1e-11, nan_ok=True), place
        else:
            assert both[place] == value, place
