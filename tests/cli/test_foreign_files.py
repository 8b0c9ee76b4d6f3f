"""Files of a user that are anything at all: one line that names the file, and the exit code of usage or of a source."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from folders import snapshot
from paths import GOLDEN
from safetensors.torch import load_file, save_file

INPUTS = GOLDEN / "inputs"
QKV = str(INPUTS / "qkv.safetensors")


def model(place, **settings):
    """A copy of a tiny model whose config.json says something else."""
    shutil.copytree(INPUTS / "tiny", place / "model")
    config = json.loads((place / "model/config.json").read_text())
    (place / "model/config.json").write_text(json.dumps({**config, **settings}))
    return ["error", "--model", "./model", "--text", str(INPUTS / "words.txt"), "--n", "16", "--d", "4"]


def tokenizer(place, change):
    """A tokenizer.json that was changed."""
    from tokenizers import Tokenizer, models

    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    (place / "tokenizer.json").write_text(json.dumps(change(json.loads(made.to_str()))))
    return [*model(place), "--tokenizer", "./tokenizer.json"]


def without_unknown(actual):
    actual["model"]["vocab"] = {"b": 0}
    return actual


def shards(place, *names):
    arguments = model(place)
    (place / "model/model.safetensors").rename(place / "weights.safetensors")
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    (place / "model/model.safetensors.index.json").write_text(json.dumps(index))
    return arguments


def sweep(place, text):
    (place / "s.yaml").write_text(text)
    return ["sweep", "s.yaml"]


def file(place, metadata=None, rename=lambda name: name):
    save_file({rename(name): tensor for name, tensor in load_file(QKV).items()}, place / "x.safetensors", metadata)
    return ["error", "--qkv", "x.safetensors", "--d", "4"]


def header(place, text):
    """A file with a header of any text."""
    (place / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode())
    return ["error", "--qkv", "x.safetensors", "--d", "4"]


def reference(place, text):
    (place / "r.csv").write_text(text)
    return ["report", str(INPUTS.parent / "runs/error"), "--out", "o", "--reference", "r.csv"]


def changed_run(place, file, change):
    """A copy of a run in which each line of a file is changed. Cells without rows are left out."""
    shutil.copytree(INPUTS.parent / "runs/error", place / "a")
    lines = [json.loads(line) for line in (place / "a" / file).read_text().splitlines()]
    (place / "a" / file).write_text(
        "".join(f"{json.dumps(change(line))}\n" for line in lines if line.get("lines") != 0)
    )
    return ["report", "a", "--plot", "none", "--out", "o"]


def in_rows(**fields):
    """A change of each line that is a row."""
    return lambda one: one if one["kind"] == "cell" else {**one, **fields}


def link(path, *arguments):
    """A link to a user's file, and a command that writes to it."""
    (path.parent / "mine").write_text("mine")
    path.symlink_to("mine")
    return list(arguments)


def junit(place, text):
    """A file of something else where the report of gates goes."""
    (place / "j").write_text(text)
    return ["error", "--qkv", QKV, "--d", "4", "--fail-above", "output_spectral=9", "--junit", "j"]


def loop(path):
    path.symlink_to(path.name)


DEEP = "[" * 500 + "]" * 500
CSV = "init,n,d,method,value\n"
CASES = {
    # name: (arguments after the files are made, exit code, what the line says)
    "new-method: a name that is too long": (
        lambda p: ["new-method", "m", "--out", "x" * 300],
        2,
        "is not a valid path",
    ),
    "new-method: the home of nobody": (
        lambda p: ["new-method", "m", "--out", "~nobody-at-all/x"],
        2,
        "is not a valid path",
    ),
    "new-method: a null": (lambda p: ["new-method", "m", "--out", "a\0b"], 2, "cannot be written"),
    "extract: a loop of links": (
        lambda p: loop(p / "l") or ["extract", "--qkv", QKV, "--n", "8", "--out", "l/x.safetensors"],
        2,
        "cannot be written",
    ),
    "extract: a name that is too long": (
        lambda p: ["extract", "--qkv", QKV, "--n", "8", "--out", "x" * 300],
        2,
        "is not a valid path",
    ),
    "extract: a link": (
        lambda p: link(p / "l", "extract", "--qkv", QKV, "--n", "8", "--force", "--out", "l"),
        2,
        "--out l is a symbolic link, which is not followed",
    ),
    "JUnit: a manifest": (lambda p: junit(p, '{"schema": 1}'), 2, "--junit j is not a report of test cases"),
    "JUnit: an XML of something else": (
        lambda p: junit(p, "<?xml version='1.0' encoding='utf-8'?>\n<project/>"),
        2,
        "--junit j is not a report of test cases; choose a new name, or remove the file",
    ),
    "JUnit: a link": (
        lambda p: link(p / "j", "error", "--qkv", QKV, "--d", "4", "--fail-above", "output_spectral=9", "--junit", "j"),
        2,
        "--junit j is a symbolic link",
    ),
    "report: a folder's name that is too long": (
        lambda p: ["report", str(INPUTS.parent / "runs/error"), "--out", "x" * 400],
        2,
        "is not a valid path: File name too long",
    ),
    "report: the home of nobody": (
        lambda p: ["report", str(INPUTS.parent / "runs/error"), "--out", "~nobody-at-all/x"],
        2,
        "is not a valid path",
    ),
    "report: a run's name that is too long": (
        lambda p: ["report", "x" * 400],
        2,
        "is not a valid path: File name too long",
    ),
    "report: records without tokens": (
        lambda p: changed_run(p, "rows.jsonl", lambda one: {k: v for k, v in one.items() if k != "n"}),
        2,
        "field n: missing; the run has no valid line",
    ),
    "report: a number that is a text": (
        lambda p: changed_run(p, "rows.jsonl", in_rows(output_spectral="nan")),
        2,
        'output_spectral: expected a valid number, got "nan"',
    ),
    "report: a position without its place": (
        lambda p: changed_run(p, "rows.jsonl", in_rows(kind="position", mass=1.0)),
        2,
        "position: missing",
    ),
    "report: rows of no kind": (
        lambda p: changed_run(p, "rows.jsonl", in_rows(kind="tail")),
        2,
        "field kind: no rows of kind 'tail'; this version knows head, position",
    ),
    "a configuration with a word for a number": (
        lambda p: model(p, hidden_size="many"),
        3,
        "config.json: model type 'bert': transformers cannot load it: hidden_size is 'many'; a whole number is needed",
    ),
    "a configuration with a list for a number": (
        lambda p: model(p, classifier_dropout=["x"]),
        3,
        "classifier_dropout is ['x']; a number with a point or a whole number or null is needed",
    ),
    "a configuration with a number for names": (
        lambda p: model(p, layer_types=0.5),
        3,
        "model/config.json is not valid: layer_types=0.5; a list of text or None is needed",
    ),
    "a configuration of no type": (lambda p: model(p, model_type=["x"]), 3, "model_type is a list; text or None is"),
    "labels that are no numbers": (
        lambda p: model(p, id2label={"a": "b"}),
        3,
        "a setting in config.json is of a kind that it does not take; --debug shows where",
    ),
    "tokenizer without its unknown token": (lambda p: tokenizer(p, without_unknown), 3, "cannot be used"),
    "an encoder that says it has a decoder": (lambda p: model(p, is_encoder_decoder=True), 3, "is_encoder_decoder"),
    "architectures in one word": (
        lambda p: model(p, architectures="BertForMaskedLM"),
        3,
        "model/config.json is not valid: architectures='BertForMaskedLM'; a list of text or None is needed",
    ),
    "layers without end": (lambda p: model(p, num_hidden_layers=10**9), 3, "num_hidden_layers is 1000000000"),
    "labels without end": (lambda p: model(p, num_labels=10**7), 3, "num_labels is 10000000"),
    "nested layers without end": (lambda p: model(p, text_config={"n_layer": 1e30}), 3, "text_config.n_layer is 1e+30"),
    "a deep configuration": (lambda p: model(p, x=json.loads(DEEP)), 3, "nested deeper"),
    "a shard above": (lambda p: shards(p, "../weights.safetensors"), 3, "of a file in the same directory"),
    "a shard elsewhere": (lambda p: shards(p, str(p / "weights.safetensors")), 3, "of a file in the same directory"),
    "a shard of a number": (lambda p: shards(p, 3), 3, "of a file in the same directory"),
    "a shard that is not there": (lambda p: shards(p, "w.safetensors"), 3, "is missing"),
    "YAML: no boolean": (lambda p: sweep(p, "d: !!bool x"), 2, "s.yaml: no YAML"),
    "YAML: a timestamp of month 13": (lambda p: sweep(p, "d: 2001-13-01"), 2, "s.yaml"),
    "YAML: a number of 5000 digits": (lambda p: sweep(p, f"d: {'9' * 5000}"), 2, "s.yaml"),
    "YAML: a billion laughs": (
        lambda p: sweep(
            p,
            "\n".join(
                ["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)), "d: *a9"]
            ),
        ),
        2,
        "unknown key 'a0'",
    ),
    "YAML: laughs in a value": (
        lambda p: sweep(p, f"qkv: {QKV}\nseed: [&a [x, x, x], &b [*a, *a, *a], &c [*b, *b, *b], [*c, *c, *c]]"),
        2,
        "seed takes one value",
    ),
    "YAML: a gate above every number": (
        lambda p: sweep(p, f"qkv: {QKV}\nd: 4\ngates: [{{metric: output_spectral, max: 1{'0' * 400}}}]"),
        2,
        "is not a finite number",
    ),
    "YAML: bytes": (lambda p: (p / "s.yaml").write_bytes(b"\xff\xfe\0") and ["sweep", "s.yaml"], 2, "s.yaml"),
    "Q/K/V: layers of 5000 digits": (
        lambda p: header(
            p, json.dumps({f"layer{'9' * 5000}.window0.q": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})
        ),
        3,
        "x.safetensors has ",
    ),
    "Q/K/V: metadata nested 500 deep": (
        lambda p: file(p, {"attnprobe": f'{{"schema": 1, "facts": {{"x": {DEEP}}}}}'}),
        3,
        "nested deeper",
    ),
    "Q/K/V: metadata of 100000 brackets": (lambda p: file(p, {"attnprobe": "[" * 100_000}), 3, "are damaged"),
    "Q/K/V: metadata of another schema": (lambda p: file(p, {"attnprobe": '{"schema": 1e999}'}), 3, "schema inf"),
    "Q/K/V: no header": (lambda p: header(p, ""), 3, "safetensors"),
    "a CSV field of a megabyte": (lambda p: reference(p, CSV + "x" * 1_000_000 + ",1,1,a,1\n"), 2, "field larger"),
    "a CSV number of 5000 digits": (lambda p: reference(p, CSV + f"a,{'9' * 5000},1,a,1\n"), 2, "not a number"),
    "a CSV number above every float": (lambda p: reference(p, CSV + f"a,1{'0' * 400},1,a,1\n"), 2, "r.csv"),
    "a CSV file of nothing": (lambda p: reference(p, ""), 2, "no column 'init'"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_foreign_file_gives_one_line_and_its_exit_code(case, run, tmp_path):
    make, code, says = CASES[case]
    arguments = make(tmp_path)
    before = snapshot(tmp_path)
    actual, out, err = run(
        *arguments, *(() if arguments[0] in ("new-method", "extract", "report", "sweep") else ("--out", "r"))
    )
    assert (actual, out) == (code, ""), err
    last = err.strip().splitlines()[-1]
    assert last.startswith("attnprobe: ") and says in last and "Traceback" not in err and "internal" not in err
    assert len(last) < 700
    assert snapshot(tmp_path) == before


SPECIAL = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a directory": Path.mkdir,
    "a file of a terabyte": lambda path: path.touch() or os.truncate(path, 1 << 40),
    "a file without rights": lambda path: path.touch() or path.chmod(0),
}
READERS = {
    "a sweep": (["sweep", "x"], 2),
    "budgets": (["inject", "--model", str(INPUTS / "tiny"), "--budgets", "x"], 2),
    "a reference": (["report", str(INPUTS.parent / "runs/error"), "--out", "o", "--reference", "x"], 2),
    "a text": (["error", "--model", str(INPUTS / "tiny"), "--text", "x", "--d", "4"], 3),
    "a tokenizer": (
        ["error", "--model", str(INPUTS / "tiny"), "--text", str(INPUTS / "words.txt"), "--tokenizer", "x", "--d", "4"],
        3,
    ),
    "Q, K and V": (["error", "--qkv", "x", "--d", "4"], 3),
    "a method": (["error", "--qkv", QKV, "--method", "./x.py:f", "--d", "4"], 2),
    "labelled text": (["stability", "--task", "text", "--text", "x.tsv"], 3),
    "data of a task": (["stability", "--task", "image:data=x"], 3),
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_by_every_reader(reader, special, run, tmp_path):
    """A reader that opened a pipe would wait for ever, one of a device read for ever."""
    arguments, code = READERS[reader]
    name = next(word for word in ("x.py", "x.tsv", "x") if any(word in one for one in arguments))
    SPECIAL[special](tmp_path / name)
    before = set(os.listdir(tmp_path))
    actual, out, err = run(*arguments)
    if special == "a file without rights" and os.geteuid() == 0:
        assert actual in (2, 3)  # root reads it all the same: it is empty
    assert (actual, out) == (code, ""), err
    assert len(err.strip().splitlines()) == 1 and "internal" not in err, err
    assert set(os.listdir(tmp_path)) == before


@pytest.mark.slow  # imports torch in a process of its own
@pytest.mark.parametrize("most", [12, 24, 40, 64])
def test_too_few_descriptors_are_no_internal_error(most, tmp_path):
    def limit():
        return resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    command = f"error --qkv {QKV} --d 4 --jobs 2 --out {tmp_path}/r"
    run = [sys.executable, "-c", "from attnprobe.cli import main; main()", *command.split()]
    done = subprocess.run(run, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode in (0, 4) and "Traceback" not in done.stderr, done.stderr
