"""Sweep files: what they may say, and how what they may not is named."""

import subprocess
import sys

import pytest

from attnprobe.cli.sweep import settings_of
from attnprobe.errors import UsageError
from attnprobe.run.sweeps import yaml_file
from attnprobe.run.sweeps.yaml_file import read_config


def read(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return read_config(path, settings_of)


def test_values_are_those_that_the_command_line_would_give(tmp_path):
    config = read(
        tmp_path,
        """
        methods:
          - nystromformer
          - {name: performer, options: {eps: 1e-4, double_norm: true}}
          - skyformer:sampler=wor
        weights: [initialized, pretrained]
        n: [128, 256]
        d: 16,32
        layer: 0
        windows: 2
        tol: 1e-2
        matrix: false
        figures: [errors, maps]
        weights-seed: 3
        cell-timeout: 2.5
        gates: [{metric: seconds, max: 1}]
        """,
    )
    assert config.command == "error" and config.gates == [{"metric": "seconds", "max": 1}]
    assert config.values == {
        "methods": ("nystromformer", "performer:eps=1e-4,double_norm=true", "skyformer:sampler=wor"),
        "weights": "initialized,pretrained",
        "n": "128,256",
        "d": "16,32",
        "layer": "0",
        "windows": 2,
        "tol": 1e-2,
        "matrix": False,
        "plots": ("errors", "maps"),
        "weights_seed": 3,
        "cell_timeout": 2.5,
    }
    assert config.lines["windows"] == 10


@pytest.mark.parametrize(
    "text, values",
    [
        (
            "command: spectrum\nof: [output, 'mss:identity=true']\nplot: true",
            {"of": ("output", "mss:identity=true"), "plots": ("spectrum",)},
        ),
        ("command: condition\nmethod: skyformer\niterations: 9", {"methods": ("skyformer",), "iterations": 9}),
        ("plot: true", {"plots": ("errors",)}),
        ("plot: false", {"plots": ()}),
        ("method: [{name: vmean}, {name: svd, options: {}}]", {"methods": ("vmean", "svd")}),
    ],
)
def test_each_command_has_its_own_options(tmp_path, text, values):
    assert read(tmp_path, text).values == values


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("", 1, "a mapping"),
        ("- 1", 1, "a mapping"),
        ("n: [1", 1, "not valid YAML"),
        ("n: 1\nd: {", 2, "not valid YAML"),
        ("n: 1\nd: 2\nmethod: \a", 3, "not valid YAML"),
        ("n: 512\n\nwindos: 2", 3, "did you mean 'windows'?"),
        ("n: 1\nn: 2", 2, "(first on line 1)"),
        ("method: vmean\nmethods: svd", 2, "repeats the option"),
        ("command: nothing", 1, "unknown command 'nothing'"),
        ("command: [error]", 1, "unknown command"),
        ("command: erorr", 1, "unknown command 'erorr'; did you mean 'error'?"),
        ("command: spectrum\nmethod: vmean", 2, "unknown key 'method' of command spectrum"),
        ("n: []", 1, "an empty list"),
        ("n:", 1, "no value"),
        ("windows: [1, 2]", 1, "takes one value"),
        ("windows: two", 1, "a whole number"),
        ("windows: true", 1, "a whole number"),
        ("windows: 1.5", 1, "a whole number"),
        ("tol: small", 1, "a number"),
        ("matrix: 1", 1, "true or false"),
        ("n: [true]", 1, "text or numbers"),
        ("n: {a: 1}", 1, "text or numbers"),
        ("model: ''", 1, "text or numbers"),
        ("method: [{nam: vmean}]", 1, "did you mean 'name'?"),
        ("method: [{options: {a: 1}}]", 1, "a method is NAME"),
        ("method: [{name: vmean, options: {a: [1]}}]", 1, "takes one value"),
        ("method: [{name: vmean, options: {a: 'b,./evil.py:f'}}]", 1, "takes one value"),
        ("method: [{name: vmean, options: [a]}]", 1, "a method is NAME"),
        ("method: true", 1, "text or numbers"),
        ("gates: {metric: x}", 1, "a list is needed"),
        ("gates: []", 1, "a list is needed"),
        ("1: 2", 1, "not an option name"),
        ("debug: true", 1, "unknown key"),
        ("n: 512\nd: 010", 2, "d: YAML reads 010 as octal; write 10, or 8"),
        ("d:\n  - 16\n  - 0_20", 3, "d: YAML reads 0_20 as octal; write 20, or 16"),
        ("windows: 010", 1, "windows: YAML reads 010 as octal; write 10, or 8"),
        ("method: [{name: skyformer, options: {iterations: 012}}]", 1, "method: YAML reads 012 as octal"),
        ("gates:\n  - {metric: seconds, max: 010}", 2, "gates: YAML reads 010 as octal"),
        ("n: 1:30", 1, "n: YAML reads 1:30 in base 60; write 90, or '1:30' in quotes"),
        ("cell-timeout: 1:30.5", 1, "cell-timeout: YAML reads 1:30.5 in base 60; write 90.5, or"),
        ("n: 2020-13-01", None, "month"),
        ("? [1]\n: 2", None, ""),
    ],
)
def test_what_does_not_hold_together_is_named_with_its_line(tmp_path, text, line, message):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    where = str(tmp_path / "c.yaml")
    assert str(error.value).startswith(where if line is None else f"{where}:{line}: ") and message in str(error.value)


def test_a_number_that_means_the_same_in_every_base_or_says_its_base_is_read(tmp_path):
    values = read(tmp_path, "n: 0x40\nd: [07, 0, 1_000, '010']\nwindows: 0b11\ntol: 0.01").values
    assert values == {"n": "64", "d": "7,0,1000,010", "windows": 3, "tol": 0.01}


@pytest.fixture
def sweep(run, qkv, tmp_path):
    """A sweep of a file with these lines, on the Q/K/V file of the tests: its exit code and its stderr."""

    def call(text, *options):
        (tmp_path / "c.yaml").write_text(text)
        code, _, err = run("sweep", "c.yaml", "--out", "r", *options)
        assert not (tmp_path / "r").exists() or code != 2
        return code, err.replace("attnprobe: ", "").strip()

    return call


PAIRS = [
    *(
        (f"qkv: qkv.safetensors\n{key}: {value}", 2, f"{key} and qkv exclude each other")
        for key, value in [
            ("model", "minilm"),
            ("text", "embedded"),
            ("tokenizer", "v.txt"),
            ("weights", "initialized"),
            ("weights-seed", 1),
            ("split", "train"),
            ("positions", "wrap"),
        ]
    ),
    ("weights: [pretrained, initialized]\nqkv: qkv.safetensors", 1, "weights and qkv exclude each other"),
    ("force: true\nretry-failed: true", 2, "retry-failed and force exclude each other"),
    ("text: embedded\nsplit: train", 2, "split names a split of Wikitext-2, but the text is 'embedded'"),
    ("n: 1x", 1, "n: '1x' is not a whole number"),
    ("d: [8, 9, -1]", 1, "d: -1 is below 1"),
    ("layer: 3-1", 1, "layer: the range 3-1 runs backwards"),
    ("head: al", 1, "head: 'al' is not a whole number"),
    ("d: all", 1, "d: 'all' is not a whole number"),
    ("n: [64, 1]", 1, "n=1: attention needs at least 2 tokens"),
    ("junit: g.xml", 1, "junit reports gates, but none is set"),
    ("backend: ray", 1, "backend ray: name the cluster"),
    ("command: spectrum\ngates: [{metric: seconds, max: 1}]", 2, "spectrum takes no gates"),
    ("command: condition\nqkv: q\nmodel: minilm", 3, "model and qkv exclude each other"),
    ("command: spectrum\nforce: true\nretry-failed: true", 3, "retry-failed and force exclude each other"),
]


@pytest.mark.parametrize("text", ["wikitext-2", "wikitext-2:tokenised", "wikitext-2:tokenized"])
def test_a_split_is_of_wikitext_2_in_either_spelling(sweep, no_hub, tiny_bert, text):
    code, err = sweep(f"text: {text}\nsplit: train\nmodel: {tiny_bert}")
    assert code == 3 and "cannot reach the hub for Wikitext-2" in err


def test_a_split_without_a_text_is_of_the_default_one(sweep, no_hub, tiny_bert):
    code, err = sweep(f"split: train\nmodel: {tiny_bert}\nn: 8\nd: 4", "--dry-run")
    assert code == 0 and "Wikitext-2 is out of reach" in err, err


@pytest.mark.parametrize("text, line, message", PAIRS)
def test_what_cannot_go_together_is_refused_with_its_line(sweep, text, line, message):
    code, err = sweep(text)
    assert code == 2 and err.startswith(f"c.yaml:{line}: {message}"), err
    assert sweep(text, "--dry-run")[0] == 2


def test_a_packaged_sweep_is_that_of_the_wheel_if_there_is_one(monkeypatch, tmp_path):
    assert yaml_file._folder() == yaml_file.IN_CLONE
    monkeypatch.setattr(yaml_file, "IN_WHEEL", tmp_path)
    assert yaml_file._folder() == tmp_path


def test_what_goes_together_across_file_and_command_line(sweep, run, monkeypatch):
    assert sweep("qkv: qkv.safetensors\njunit: g.xml", "--fail-below", "output_cosine_min=-2", "--dry-run")[0] == 0
    code, err = sweep("qkv: qkv.safetensors", "--model", "minilm")
    assert code == 2 and err.startswith("--model and qkv exclude each other: --qkv qkv.safetensors holds Q, K and V")
    code, err = sweep("force: true", "--retry-failed")
    assert code == 2 and err.startswith("--retry-failed and force exclude")
    assert "--retry-failed and --force exclude" in run("error", "--force", "--retry-failed")[2]
    monkeypatch.setenv("ATTNPROBE_MODEL", "minilm")
    assert sweep("qkv: qkv.safetensors")[1].startswith("ATTNPROBE_MODEL and qkv exclude each other")


def test_what_is_merely_redundant_stands(sweep):
    """A tolerance without matrix errors, repeats of a method that draws nothing, the defaults' own values."""
    text = "qkv: qkv.safetensors\nn: 64\nmatrix: false\ntol: 1e-2\nrepeats: 2\nmethod: vmean\nsplit: test\nforce: true"
    assert sweep(text)[0] == 0


HOPELESS = [
    ("matrix: false\ngates: [{metric: matrix_spectral, max: 1}]", 2, "only --matrix measures matrix_spectral"),
    ("rows: false\ngates: [{metric: tv, max: 1}]", 2, "only --rows measures tv"),
    ("gates:\n- {metric: bad_rows, max: 0}\n- {metric: bad_rows, stat: se, max: 0}", 3, "one text window has no"),
    (
        "method: [performer, 'skyformer:ridge=0.1']\ngates:\n- {metric: bad_rows, max: 0, method: linear}",
        3,
        "the method 'linear' is not measured; choose from performer, skyformer",
    ),
    ("d: [8, 16]\ngates:\n- {metric: bad_rows, max: 0, d: [8, 32]}", 3, "d=32 is not measured; d is 8,16"),
    ("n: 64\ngates:\n- {metric: bad_rows, max: 0, n: 32}", 3, "n=32 is not measured; n is 64"),
    ("layer: 0-2\ngates:\n- {metric: bad_rows, max: 0, layer: 3}", 3, "layer=3 is not measured; layer is 0,1,2"),
    ("model: minilm\ngates:\n- {metric: bad_rows, max: 0, layer: 3}", 3, "layer=3 is not measured; layer is 0"),
    ("gates:\n- {metric: bad_rows, max: 0, target: gaussian}", 2, "target=gaussian is not measured; target is softmax"),
    ("gates:\n- {metric: bad_rows, max: 0, weights: initialised}", 2, "weights=initialised is not measured; weights"),
    ("gates:\n\n- {metric: bad_rows, max: 0, wieghts: initialized}", 3, "unknown key 'wieghts'; did you mean 'weigh"),
    ("gates:\n- metric: bad_rows\n  max: 0\n- metric: seconds\n  max: 0\n  layers: 1", 4, "unknown key 'layers'"),
    ("gates:\n- {metric: bad_rows, max: 0, weights: 3}", 2, "weights: expected a word or a list of words, got 3"),
    ("gates:\n- {metric: bad_rows, max: 0, method: {nam: mss}}", 2, "unknown key 'nam' of a method"),
]


@pytest.mark.parametrize("text, line, message", HOPELESS)
def test_a_gate_that_could_only_fail_is_refused_with_its_line(sweep, text, line, message):
    code, err = sweep(text)
    number = text.count("metric: ")  # the last one of each is the wrong one
    where = f"c.yaml:{line}: gate {number}: "
    assert code == 2 and err.startswith(where) and message in err, err


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for name in ("absent.yaml", "."):
        with pytest.raises(UsageError, match="cannot be read"):
            read_config(tmp_path / name, settings_of)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "b.yaml", settings_of)


def test_a_file_is_refused_before_anything_heavy_is_imported(tmp_path):
    texts = ["windos: 2", *(text for text, _, _ in (*PAIRS[::5], HOPELESS[0], HOPELESS[-2])), "plot: erors"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
    code = (
        "import sys; from attnprobe.cli import main\n"
        "heavy = {'torch', 'transformers', 'matplotlib'}\n"
        "for number in range(int(sys.argv[1])):\n"
        "    try: main(['sweep', f'{number}.yaml'])\n"
        "    except SystemExit as stop: print(stop.code, sorted(heavy & set(sys.modules)))"
    )
    run = [sys.executable, "-c", code, str(len(texts))]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["2 []"] * len(texts), done.stderr
