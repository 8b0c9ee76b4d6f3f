"""Both sides of limits that small functions have, each with the value that they should give."""

from __future__ import annotations

import hashlib
import sys

import pytest
import torch
from safetensors.torch import save_file

from attnprobe.cli.sweep import settings_of
from attnprobe.errors import UsageError
from attnprobe.experiments.error.gates import GATED
from attnprobe.gates.check import Gate, check
from attnprobe.gates.parse import parse_gate
from attnprobe.records.ownership import scratch
from attnprobe.report import page
from attnprobe.report.run import Run
from attnprobe.sources import SourceSpec, resolve
from attnprobe.sources.folder import combined_sha256
from attnprobe.sources.weights import language_kind
from attnprobe.sweeps import yaml_file
from attnprobe.tables.labels import file_tag


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
    assert Run(tmp_path, {}).notes == [f"{tmp_path} has no manifest.json: the records alone are shown"]


def test_a_limit_may_be_the_largest_float_and_no_more():
    largest = sys.float_info.max
    assert parse_gate(f"output_spectral={largest!r}", GATED).max == largest
    with pytest.raises(UsageError, match="not a finite number"):
        parse_gate("output_spectral=1e309", GATED)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({}, "output_spectral was not measured"),
        ({"output_spectral": {"mean": 0.1, "count": 1}}, "only 1 of 2 values are finite"),
        ({"output_spectral": {"mean": None, "count": 2}}, "no finite value"),
    ],
)
def test_a_metric_that_lacks_values_fails_its_gate_and_is_not_undecided(metrics, message):
    row = {"method": "vmean", "requested": True, "status": "ok", "values": 2, "metrics": metrics}
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


def test_a_sweep_of_four_mebibytes_is_read_and_a_longer_one_refused(tmp_path):
    path = tmp_path / "s.yaml"
    text = "command: error\nmethod: vmean\n"
    path.write_text(text + "#" * (2**22 - len(text)))
    assert yaml_file.read_config(path, settings_of)
    path.write_text(text + "#" * (2**22 - len(text) + 1))
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        yaml_file.read_config(path, settings_of)
