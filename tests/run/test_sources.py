"""The sources, layers and processes of a run, of objects made for it."""

import json
import os
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from attnprobe.errors import UsageError
from attnprobe.frame.rows import lines_of
from attnprobe.inputs import SourceSpec
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.error.measure import ErrorCells
from attnprobe.run import plan, provenance
from attnprobe.run.cells import _of_windows
from attnprobe.run.estimate import estimate_cells
from attnprobe.run.folder import _has_records, _locked, _refuse_empty
from attnprobe.run.group_work import GroupWork, _measure
from attnprobe.run.inputs import InputKeeper
from attnprobe.run.loop import VERSIONS, Ledger, Outcome
from attnprobe.run.plan import parse_methods, refuse_endless
from attnprobe.run.provenance import versions
from attnprobe.run.sources import layers_of, sources_of, tell_left_out


def test_weights_that_are_the_same_here_are_measured_once(monkeypatch):
    facts = {"model": "BERT-base", "weights": "initialized"}
    monkeypatch.setattr("attnprobe.run.sources.resolve", lambda spec, **_: SimpleNamespace(facts=facts))
    monkeypatch.setattr("attnprobe.run.sources.scaled_inputs", lambda source, _: [source])
    request = SimpleNamespace(source=SourceSpec(), weights=("pretrained", "initialized"), scale_inputs=())
    told = []
    assert len(sources_of(request, told.append, None)) == 1
    assert told == ["weights initialized are initialized here, which stand there already"]


def test_layers_by_default_and_by_a_word_of_which_there_are_none():
    assert layers_of(None, SimpleNamespace(available=(2, 3))) == (2,)
    for word, says in (("local", "no layer has"), ("global", "every layer has")):
        with pytest.raises(UsageError, match=f"layer {word}: {says} a sliding window; choose all"):
            layers_of(word, SimpleNamespace(available=(0,), local=(), global_layers=()))


@pytest.mark.parametrize(
    ("methods", "says"), [("nystromformer", "nystromformer has"), ("nystromformer,mss", "mss have")]
)
def test_methods_that_leave_out_local_layers_are_told(methods, says):
    told = []
    source = SimpleNamespace(available=(0, 1), local=(1,), global_layers=(0,))
    tell_left_out("all", source, parse_methods([methods], "softmax"), told.append)
    assert f"{says} no form for sliding windows: only on the 1 global of 2 layers" in told[0]


def test_exact_attention_is_measured_beside_a_method_with_a_form_for_windows():
    def cell(request):
        return SimpleNamespace(request=request)

    def asked(windows):
        return SimpleNamespace(requested=True, entry=SimpleNamespace(takes_windows=windows))

    exact, without, local = cell(None), cell(asked(False)), cell(asked(True))
    assert _of_windows([exact, without, local]) == [exact, local] and _of_windows([exact, without]) == [exact]
    assert _of_windows([without]) == []


def test_a_request_without_a_method_and_one_of_very_many_cells(monkeypatch):
    with pytest.raises(UsageError, match="no method; write --method NAME"):
        parse_methods([], "softmax")
    told = []
    monkeypatch.setattr(plan, "NOTED", 1000)
    refuse_endless(999, told.append)
    refuse_endless(1000, told.append)
    assert told == ["1,000 cells: listing them takes a while"]


def test_a_process_with_other_versions_is_told():
    told = []
    ledger = SimpleNamespace(outcome=Outcome(), notify=told.append)
    facts = {"host": "far", **{name: versions().get(name) for name in VERSIONS}}
    Ledger.began(ledger, facts)
    assert not told
    Ledger.began(ledger, {**facts, "torch": "1.0"})
    assert told == [f"far has torch 1.0 (here {versions()['torch']}): its numbers may differ by rounding"]
    Ledger.received(ledger, (), "note", "a line")
    assert told[1] == "a line"


def test_a_process_of_several_devices_takes_one_unless_keys_name_it():
    @dataclass(frozen=True)
    class Request:
        device: str = "cuda"

    opened = []

    def opening(exclusive):
        def open_cells(request, notify, timings):
            opened.append((exclusive, request.device))

        open_cells.exclusive = exclusive
        return open_cells

    for exclusive in (False, True):
        for number in (0, 3):
            work = SimpleNamespace(request=Request(), threads=None, devices=("cpu", "meta"), open=opening(exclusive))
            GroupWork._opened(work, number, print)
    assert opened == [(False, "cpu"), (False, "meta"), (True, "cuda"), (True, "cuda")]


def test_the_inputs_of_places_whose_cells_are_done_are_not_read():
    read, sent = [], []

    def inputs(places, keeper):
        read.append(list(places))
        return iter([])

    cells = SimpleNamespace(by_place={place: [SimpleNamespace(key=place)] for place in "ab"}, inputs=inputs)
    cells.send = lambda *what: sent.append(what)
    for done in ({}, {"a": None}, {"a": None, "b": None}):
        _measure(cells, ("a", "b"), done, "r", None)
    assert read == [["a", "b"], ["b"]] and not sent


def test_input_statistics_that_failed_are_measured_again(monkeypatch, tmp_path):
    records = [{"key": "a", "status": "ok"}, {"key": "b", "status": "failed"}]
    monkeypatch.setattr("attnprobe.run.inputs.read_inputs", lambda folder: SimpleNamespace(records=records))

    def there(**options):
        return InputKeeper(ErrorRequest(**options), tmp_path, "r").there

    assert there() == {"a"} and there(force=True) == there(input_statistics=False) == set()


def test_a_folder_of_references_alone_is_no_empty_run(tmp_path):
    def outcome(*given):
        return Outcome(records=[{"requested": asked, "status": status, "reason": "why"} for asked, status in given])

    with pytest.raises(UsageError, match="vanished while the run was writing to it"):
        _refuse_empty(outcome(), tmp_path, True)
    file = tmp_path / "rows.jsonl"
    for made in (False, True):
        file.write_text("a record\n")
        for some in ((), ((False, "skipped"),), ((True, "skipped"), (True, "ok"))):
            _refuse_empty(outcome(*some), tmp_path, made)
        with pytest.raises(UsageError, match="why"):
            _refuse_empty(outcome((True, "skipped"), (False, "ok")), tmp_path, made)
        assert file.exists() != made


def test_a_folder_named_as_records_holds_none(tmp_path):
    (tmp_path / "rows-1.jsonl").mkdir()
    assert not _has_records(tmp_path)
    (tmp_path / "rows.jsonl").write_text("")
    assert not _has_records(tmp_path)
    (tmp_path / "rows.jsonl").write_text("a record\n")
    assert _has_records(tmp_path)


def test_a_file_system_without_locks_locks_nothing(monkeypatch, tmp_path):
    import fcntl

    def without(descriptor, how):
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    [descriptor] = _locked(tmp_path, None)
    os.close(descriptor)


def test_a_dry_run_counts_failed_cells_where_they_are_tried_again(tmp_path):
    q = torch.randn(3, 1, 24, 4, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip("qkv", (x.contiguous() for x in q), strict=True)), tmp_path / "x.safetensors")
    asked = {"qkv": str(tmp_path / "x.safetensors"), "device": "cpu", "out": str(tmp_path / "r"), "matrix": False}
    asked |= {"methods": ("linear,vmean",), "d": (4,)}
    records = measure_errors(ErrorRequest(**asked)).outcome.records
    records = [{**one, "status": "failed"} if one["method"] == "linear" else one for one in records]
    lines = [line for cell in records for line in lines_of(cell)]
    (tmp_path / "r/rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for again, done in ((False, {True}), (True, {False})):
        cells = estimate_cells(ErrorCells, ErrorRequest(**asked, retry_failed=again))
        assert {cell.done for cell in cells if cell.name == "linear"} == done
        assert all(cell.done for cell in cells if cell.name != "linear")


def test_what_doctor_says_of_packages_and_processors(monkeypatch):
    for installed, right, says in (
        (False, True, "is not installed: pip install"),
        (True, True, "at here, sha256 as published"),
        (True, False, "at here, sha256 WRONG: refused"),
    ):
        facts = {"installed": installed, "sha256_ok": right, "path": "here"}
        monkeypatch.setattr(provenance, "packaged_weights", lambda name, facts=facts: facts)
        assert says in provenance._state("minilm")


def test_a_list_in_python_is_a_tuple_and_a_word_is_none():
    for value, example in (("softmax", "('softmax',)"), (7, "(7,)")):
        with pytest.raises(UsageError, match="methods=.*: a tuple is needed, such as " + re.escape(example)):
            ErrorRequest(methods=value)
    with pytest.raises(UsageError, match="methods=None: a tuple is needed, such as \\('"):
        ErrorRequest(methods=None)
