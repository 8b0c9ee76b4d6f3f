"""Both sides of limits that small functions have, each with the value that they should give."""

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from attnprobe.cli.sweep import settings_of
from attnprobe.errors import SourceError, UsageError
from attnprobe.frame.labels import file_tag
from attnprobe.frame.records.outputs import scratch
from attnprobe.grammar import validation
from attnprobe.inputs import SourceSpec, resolve
from attnprobe.inputs.choose import open_model
from attnprobe.inputs.folder import ModelFolder, combined_sha256
from attnprobe.inputs.positions import _batches
from attnprobe.inputs.weights import language_kind, with_head
from attnprobe.judge.gates import Gate, check
from attnprobe.judge.parse import impossible_reason, parse_gates
from attnprobe.measure.error import EXPERIMENT, ErrorRequest
from attnprobe.run import provenance
from attnprobe.run.folder import held_already
from attnprobe.run.sweeps import yaml_file
from attnprobe.run.sweeps.yaml_file import packaged_sweeps, sweep_file
from attnprobe.show.page import page
from attnprobe.show.page.run import Run


def test_the_hash_of_one_file_is_its_own_and_of_several_that_of_their_sorted_names_and_hashes(tmp_path):
    paths = [tmp_path / name for name in ("b", "a")]
    for path in paths:
        path.write_text(path.name)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    assert combined_sha256(paths[:1]) == digests["b"]
    lines = f"a {digests['a']}\nb {digests['b']}\n"
    assert combined_sha256(paths) == hashlib.sha256(lines.encode()).hexdigest()


@pytest.fixture
def uneven(tmp_path):
    """A file with two windows of layer 0 and one of layer 2, of three heads of 8."""
    places = ("layer0.window0", "layer0.window1", "layer2.window0")
    save_file(
        {f"{place}.{axis}": torch.randn(3, 16, 8) for place in places for axis in "qkv"}, tmp_path / "x.safetensors"
    )
    return resolve(SourceSpec(qkv=str(tmp_path / "x.safetensors"), device="cpu"))


def test_a_file_says_which_windows_the_layer_that_is_asked_for_has(uneven):
    uneven.check(16, 2, (0,))
    with pytest.raises(UsageError, match=r"window 1 of layer 2: .* has window 0$"):
        uneven.check(16, 2, (0, 2))


def test_heads_of_a_file_that_names_none_are_counted(uneven):
    assert uneven.head_numbers == (0, 1, 2)


def test_a_tag_of_a_file_is_cut_at_60_characters():
    assert file_tag("x" * 60) == "-" + "x" * 60
    cut = file_tag("x" * 61)
    assert cut.startswith("-" + "x" * 60 + "-") and len(cut) == 1 + 60 + 1 + 6


def test_figures_of_a_kind_are_folded_beyond_the_most_that_stand_open(tmp_path):
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    for kind, count in (("few", page.MOST_OPEN), ("many", page.MOST_OPEN + 1)):
        for number in range(count):
            (tmp_path / f"{kind}-{number}.svg").write_text(svg)
    kinds = page._figures(sorted(tmp_path.glob("*.svg")), "")
    assert [(kind["name"], kind["folded"]) for kind in kinds] == [("few", False), ("many", True)]


def test_a_run_of_records_alone_leaves_nothing_out(tmp_path):
    assert Run(tmp_path, {}).notes == [f"{tmp_path} has no manifest.json: the rows alone are shown"]


def test_a_limit_may_be_the_largest_float_and_no_more():
    largest = sys.float_info.max
    [gate] = parse_gates([{"metric": "output_spectral", "max": largest}], EXPERIMENT.gated)
    assert gate.max == largest
    with pytest.raises(UsageError, match="not a finite number"):
        parse_gates([{"metric": "output_spectral", "max": 2 * int(largest)}], EXPERIMENT.gated)


def test_a_gate_of_weights_is_hopeless_unless_a_file_stands_for_them():
    gate = Gate("output_spectral", max=1, weights=("initialized",))
    expected = "weights=initialized is not measured; weights is pretrained"
    assert impossible_reason(gate, ErrorRequest().known(), {}) == expected
    assert impossible_reason(gate, ErrorRequest(qkv="x.safetensors").known(), {}) is None
    layer = Gate("output_spectral", max=1, layer=(3,))
    assert (
        impossible_reason(layer, ErrorRequest(qkv="x.safetensors", layer=(0, 1, 2)).known(), {})
        == "layer=3 is not measured; layer is 0,1,2"
    )


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({}, "output_spectral was not measured"),
        ({"output_spectral.mean": 0.1, "output_spectral.count": 1}, "only 1 of 2 values are finite"),
        ({"output_spectral.mean": None, "output_spectral.count": 2}, "no finite value"),
    ],
)
def test_a_metric_that_lacks_values_fails_its_gate_and_is_not_undecided(metrics, message):
    row = {"method": "vmean", "requested": True, "status": "ok", "values": 2, **metrics}
    [result] = check([row], [Gate("output_spectral", max=1.0)])
    assert (result.message, result.failed, result.undecided) == (message, True, False)


def test_what_a_model_predicts_follows_from_its_architectures():
    from transformers import BertConfig, GPT2Config

    assert language_kind(BertConfig(architectures=["BertForMaskedLM"])) == "masked"
    assert language_kind(BertConfig(architectures=["BertLMHeadModel"])) == "causal"
    assert language_kind(BertConfig()) == "masked" and language_kind(GPT2Config()) == "causal"


def test_a_scratch_folder_is_made_where_no_folder_is_and_leaves_nothing(tmp_path):
    with scratch(tmp_path / "a" / "b") as place:
        (place / "x").write_text("")
        assert place.parent == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("limit", [4096, pytest.param(None, marks=pytest.mark.slow)])
def test_a_sweep_of_four_mebibytes_is_read_and_a_longer_one_refused(limit, tmp_path, monkeypatch):
    assert yaml_file.LARGEST == 2**22
    monkeypatch.setattr(yaml_file, "LARGEST", limit or 2**22)  # of which YAML takes more than a second
    path = tmp_path / "s.yaml"
    text = "command: error\nmethod: vmean\n"
    path.write_text(text + "#" * (yaml_file.LARGEST - len(text)))
    assert yaml_file.read_config(path, settings_of)
    path.write_text(text + "#" * (yaml_file.LARGEST - len(text) + 1))
    with pytest.raises(UsageError, match="larger than 4 MiB" if limit is None else "larger than 4096 bytes"):
        yaml_file.read_config(path, settings_of)


def test_packaged_sweeps_go_by_their_name_where_no_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "smoke" in packaged_sweeps() and sweep_file("smoke").is_file()
    (tmp_path / "smoke").write_text("command: error\n")
    assert sweep_file("smoke") == Path("smoke")
    with pytest.raises(UsageError, match="smok: no such file, and no packaged sweep; did you mean 'smoke'"):
        sweep_file("smok")


def test_a_segment_too_long_for_its_scores_goes_alone():
    model = SimpleNamespace(config=SimpleNamespace(num_attention_heads=12))
    long = [range(10**6), range(10**6)]
    assert [list(batch) for batch in _batches(model, long)] == [[long[0]], [long[1]]]
    assert [len(batch) for batch in _batches(model, [range(8)] * 5)] == [5]


@pytest.mark.parametrize(
    ("names", "wrong"),
    [("q", "no tensor k"), ("qkvyx", "an unknown tensor x"), ((*"qkv", "x" * 81), f"an unknown tensor {'x' * 80}")],
)
def test_of_tensors_that_do_not_fit_the_first_is_told(names, wrong, tmp_path):
    save_file({name: torch.randn(2, 4, 3) for name in names}, tmp_path / "x.safetensors")
    with pytest.raises(SourceError, match=f"has {wrong}: it needs .*; it has [kqvxy, ]{{1,90}}$"):
        resolve(SourceSpec(qkv=str(tmp_path / "x.safetensors"), device="cpu"))


def test_a_model_that_is_named_has_no_substitute(no_hub):
    with pytest.raises(SourceError):
        open_model("nobody/nothing")


def test_counts_of_a_page_have_their_plurals():
    assert [page._tile(count, "row")["name"] for count in (0, 1, 2)] == ["rows", "row", "rows"]


def test_the_commit_is_that_of_this_clone_and_none_of_a_package_without_one(tmp_path, monkeypatch):
    here = Path(provenance.__file__).parents[2]
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True)
    if told.returncode == 0:
        assert provenance.git_commit().startswith(told.stdout.strip())
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "site/attnprobe/run/provenance.py"))
    assert provenance.git_commit() is None


def test_weights_without_a_head_say_the_first_that_is_missing(tiny_bert):
    _, why = with_head(ModelFolder("tiny", Path(tiny_bert)), torch.float32, "masked")
    assert why == "the weights of tiny hold no masked-LM head (cls.predictions.bias is missing)"


def test_no_folder_and_one_that_is_not_there_hold_no_records(tmp_path):
    for out in (None, str(tmp_path / "none")):
        assert held_already(SimpleNamespace(out=out), None) == {}


def test_the_largest_whole_number_of_json_is_shown_and_a_larger_one_is_counted_in_bits():
    assert validation._brief(validation.LARGEST) == "9007199254740992"
    assert validation._brief(validation.LARGEST + 1) == "a whole number of 54 bits"
