"""The sources, layers and processes of a run, of objects made for it."""

from types import SimpleNamespace

import pytest

from attnprobe.errors import UsageError
from attnprobe.run import plan
from attnprobe.run.cells import _of_windows
from attnprobe.run.loop import VERSIONS, Ledger, Outcome
from attnprobe.run.plan import parse_methods, refuse_endless
from attnprobe.run.provenance import versions
from attnprobe.run.sources import layers_of, sources_of, tell_left_out
from attnprobe.sources import SourceSpec


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
