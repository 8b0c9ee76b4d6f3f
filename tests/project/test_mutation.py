"""The planted faults apply, each family has every kind, and the page of their results is theirs."""

import re
import runpy
from dataclasses import replace

import mutation
import pytest
from faults import FAULTS, FILES, KINDS, Fault
from mutation import CONTRACT, PAGE, Broken, cells, judge, layer, page, planted
from mutation import test_files as files_of
from paths import test_file as path_of

from attnprobe.methods import FAMILIES, METHODS

PACKAGE = mutation.ROOT / "attnprobe"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_applies_and_compiles(fault):
    text = (PACKAGE / fault.file).read_text()
    assert planted(text, fault) != text
    compile(planted(text, fault), fault.file, "exec")


def test_a_fault_whose_text_moved_on_is_refused():
    fault = Fault("exact", "softmax", "scale", "reference.py", "a b", "c", "none")
    for text, times in (("a", 0), ("a b a b", 2)):
        with pytest.raises(Broken, match=f"softmax: none: reference.py has its text {times} times"):
            planted(text, fault)
    assert planted("a b, a", fault) == "c, a"


@pytest.mark.parametrize("family", sorted({entry.family for entry in METHODS.values()} - {"user"}, key=FAMILIES.index))
def test_every_family_has_every_kind(family):
    assert {fault.kind for fault in FAULTS if fault.family == family} == set(KINDS)


def test_faults_are_of_methods_that_exist_and_differ():
    for fault in FAULTS:
        assert fault.method in mutation.APART or METHODS[fault.method].family == fault.family
        assert all(path.exists() for path in files_of(fault.method)), fault.method
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == len({(f.file, f.new, f.method) for f in FAULTS})
    assert set(FILES) <= {fault.method for fault in FAULTS}


@pytest.mark.parametrize(
    "file, name, expected",
    [
        ("methods_contract", "test_rows_sum_to_one", "contract"),
        ("methods_contract", "test_the_full_budget_is_exact", "contract"),
        ("methods_contract", "test_a_method_equals_its_literal_twin", "twin"),
        ("methods_contract", "test_permuting_the_tokens_and_the_drawn_indices_permutes_the_operator", "twin"),
        ("features", "test_it_equals_performer_pytorch_with_the_same_projection", "oracle"),
        ("features", "test_the_kernel_estimate_is_unbiased", "identities"),
        ("informer", "test_it_equals_the_transformers_module_given_its_sample_and_sizes", "oracle"),
        ("sparse", "test_a_sparse_method_is_torchs_attention_under_its_mask", "oracle"),
        ("sparse", "test_the_window_is_its_literal_mask", "twin"),
        ("sparse", "test_every_set_of_random_blocks_is_as_likely_as_any_other", "identities"),
    ],
)
def test_the_layer_of_a_test_is_seen_from_what_it_uses(file, name, expected):
    path = path_of(f"test_{file}.py")
    assert layer(runpy.run_path(str(path))[name], path.name) == expected


def found(**failed):
    return {name: {"ran": name != "oracle", "failed": failed.get(name)} for name in mutation.LAYERS}


def test_a_survivor_and_an_empty_layer_are_named():
    assert cells(found()) == ["no", "no", "–", "no", "SURVIVED"]
    caught = found(identities="test_x.py::test_i[3]", twin="test_x.py::test_t")
    assert cells(caught) == ["no", "yes", "–", "yes", "`test_t`"]
    survived, known = FAULTS[:2]
    text = page([(survived, found(), 1.0), (known, caught, 2.0)], jobs=1, seconds=60.0)
    assert "| exact | 2 | 0 | 1 | 0 | 1 | 1 |" in text
    alone = page([(known, found(twin="test_x.py::test_t"), 2.0)], jobs=1, seconds=60.0)
    assert "| all | 1 | 0 | 1 | 0 | 0 | 1 |" in alone


def test_the_command_says_in_its_exit_code_whether_one_survived(monkeypatch, capsys):
    verdict = {}
    monkeypatch.setattr(mutation, "judge", lambda method, fault=None: found(**(verdict if fault else {})))
    monkeypatch.setattr(mutation, "check_green", lambda methods, jobs: None)
    assert mutation.main(["--method", "vmean"]) == 1
    assert "SURVIVED: vmean" in capsys.readouterr().err
    verdict["contract"] = "test_x.py::test_c"
    assert mutation.main(["--family", "exact", "--jobs", "2"]) == 0
    for wrong in (["--write", "--family", "exact"], ["--family", "exact", "--method", "vmean"], ["--method", "none"]):
        with pytest.raises(SystemExit):
            mutation.main(wrong)


def test_tests_that_fail_without_a_fault_end_the_command(monkeypatch, capsys):
    monkeypatch.setattr(mutation, "judge", lambda method, fault=None: found(contract="test_x.py::test_c"))
    assert mutation.main(["--method", "vmean"]) == 2
    assert "vmean: without any fault test_x.py::test_c fails" in capsys.readouterr().err


@pytest.mark.slow
def test_a_harmless_edit_survives_and_a_fault_is_caught_in_a_copy():
    before = {file: file.read_text() for file in PACKAGE.rglob("*.py")}
    known = next(fault for fault in FAULTS if fault.method == "vmean")
    survived, caught = judge("vmean", replace(known, new=known.old + "  ")), judge("vmean", known)
    assert not any(facts["failed"] for facts in survived.values())
    assert survived["contract"]["ran"] > 20 and survived["twin"]["ran"] > 5 and survived["identities"]["ran"] > 5
    assert caught["twin"]["failed"].startswith(CONTRACT)
    assert {file: file.read_text() for file in before} == before


def test_the_page_counts_every_fault_and_no_survivor():
    text = PAGE.read_text()
    assert "python tests/support/mutation.py --jobs 2" in text
    for family in (*dict.fromkeys(fault.family for fault in FAULTS), "all"):
        planned = sum(family in ("all", fault.family) for fault in FAULTS)
        assert re.search(rf"^\| {family} \| {planned} \|.*\| {planned} \|$", text, re.MULTILINE), family
