"""Gates: forms, limits that fail closed, their table and their JUnit XML."""

import math
import re
import xml.etree.ElementTree as ET

import pytest
from error_records import cell as a_cell
from frames import gate_lines

from attnprobe.errors import UsageError
from attnprobe.judge.gates import Gate, GateResult, check
from attnprobe.judge.junit import write_junit
from attnprobe.judge.outcomes import gate_cases, gates_markdown, gates_table
from attnprobe.judge.parse import impossible_reason, parse_gate, parse_gates
from attnprobe.measure import experiment
from attnprobe.measure.error import EXPERIMENT


def cell(method="skyformer", d=16, values=(0.5, 1.0), **fields):
    return a_cell(method, d, values, **{"metrics": {"output_spectral": list(values)}, **fields})


def messages(records, *gates):
    return [result.message for result in check(gate_lines(records), gates) if not result.passed]


# --- forms


def test_gate_forms():
    assert parse_gate("output_spectral=0.5", EXPERIMENT.gated) == Gate("output_spectral", "mean", max=0.5)
    assert parse_gate(" bad_rows.max = 0 ", EXPERIMENT.gated) == Gate("bad_rows", "max", max=0.0)
    for text, message in [
        ("output_spektral=1", "did you mean 'output_spectral'"),
        ("output_spectral.medain=1", "did you mean 'median'"),
        ("output_spectral.count=1", "unknown statistic 'count'"),
        ("output_spectral=high", "'high' is not a finite number"),
        ("output_spectral=nan", "not a finite number"),
        ("output_spectral=inf", "not a finite number"),
        ("output_spectral=", "not a finite number"),
        ("output_spectral", "METRIC"),
        ("output_spectral.=1", "METRIC"),
        ("=1", "METRIC"),
        ("output_cosine_min=1", "larger is better"),
        ("bad_rows=0 for x y", "method is named twice"),
        ("bad_rows=0 for d=8 d=9", "d is named twice"),
        ("bad_rows=0 for d=few", "d: expected a whole number or a list of them, got ['few']"),
        ("bad_rows=0 for layers=3", "unknown key 'layers'; did you mean 'layer'?"),
        ("bad_rows=0 for max=3", "max is named twice"),
        ("bad_rows=0 for min=3", "min: '3' is text"),
        ("bad_rows=0 for d=", "d: expected a whole number"),
    ]:
        with pytest.raises(UsageError, match=re.escape(message)):
            parse_gate(text, EXPERIMENT.gated)


def test_a_gate_of_the_command_line_selects_rows_in_the_words_that_results_have():
    for selection in (
        "for skyformer",
        "for ./mine.py:mine d=64,128 n=512 layer=0,3",
        "for skyformer:guard=sampled,ridge=0.1 target=softmax",
        "for layer=3 weights=pretrained,initialized scale_inputs=0.5,4",
    ):
        gate = parse_gate(f"output_spectral.p90=0.5 {selection}", EXPERIMENT.gated)
        assert str(gate) == f"output_spectral.p90 <= 0.5 {selection}"
    assert gate == Gate(
        "output_spectral",
        "p90",
        max=0.5,
        layer=(3,),
        weights=("pretrained", "initialized"),
        scale_inputs=(0.5, 4),
    )
    subject = parse_gate("slack=1 for theorem=skyformer-theorem-2", experiment("theory").gated, least=True)
    assert subject.subjects["theorem"] == "skyformer-theorem-2" and "for theorem=skyformer-theorem-2" in str(subject)


def test_the_mappings_of_a_config():
    assert parse_gates([], EXPERIMENT.gated) == []
    place = {"method": " skyformer ", "n": 512, "d": [64, 128], "layer": 0}
    every = {"metric": "output_cosine_min", "stat": "p10", "max": 1, "min": -0.5, **place}
    (gate,) = parse_gates([every], EXPERIMENT.gated)
    assert gate == Gate("output_cosine_min", "p10", 1, -0.5, "skyformer", (64, 128), (512,), (0,))
    assert str(gate) == "output_cosine_min.p10 >= -0.5 and <= 1 for skyformer d=64,128 n=512 layer=0"
    words = {"target": "softmax", "weights": ["pretrained", "initialized"]}
    (gate,) = parse_gates([{"metric": "delta", "max": 1, **words}], EXPERIMENT.gated)
    assert gate == Gate("delta", max=1, target=("softmax",), weights=("pretrained", "initialized"))
    assert str(gate) == "delta.mean <= 1 for target=softmax weights=pretrained,initialized"
    assert parse_gates(({"metric": "bad_rows", "max": 0},), EXPERIMENT.gated) == [Gate("bad_rows", max=0)]


WRONG = {
    "no list": ({"metric": "bad_rows", "max": 0}, "gates: need a list of mappings"),
    "text": ("bad_rows=0", "gates: need a list of mappings"),
    "nothing": (None, "gates: need a list of mappings"),
    "no mapping": (["bad_rows=0"], "gate 1: 'bad_rows=0' is not a mapping"),
    "an unknown key": ([{"metric": "bad_rows", "maximum": 0}], "unknown key 'maximum'; did you mean 'max'?"),
    "a key that is no text": ([{"metric": "bad_rows", 3: 0}], "unknown key '3'"),
    "no metric": ([{"max": 0}], "gate 1: no metric; choose from output_spectral"),
    "an unknown metric": ([{"metric": "output_spektral", "max": 0}], "did you mean 'output_spectral'?"),
    "a metric of nothing": ([{"metric": None, "max": 0}], "metric: expected a name, got None"),
    "a metric that is no text": ([{"metric": ["bad_rows"], "max": 0}], "metric: expected a name, got ['bad_rows']"),
    "an unknown statistic": ([{"metric": "bad_rows", "stat": "maximal", "max": 0}], "did you mean 'max'?"),
    "no statistic": ([{"metric": "bad_rows", "stat": None, "max": 0}], "stat: expected a name, got None"),
    "no limit": ([{"metric": "bad_rows"}], "bad_rows has no limit; give max, min or both"),
    "a limit of nothing": ([{"metric": "bad_rows", "max": None}], "max: None is not a finite number"),
    "a limit in quotes": ([{"metric": "bad_rows", "max": "1e-3"}], "max: '1e-3' is text; write 0.001 without quotes"),
    "a word": ([{"metric": "bad_rows", "min": "low"}], "min: 'low' is not a finite number"),
    "a limit of NaN": ([{"metric": "bad_rows", "max": math.nan}], "max: nan is not a finite number"),
    "an infinite limit": ([{"metric": "bad_rows", "max": math.inf}], "max: inf is not a finite number"),
    "true": ([{"metric": "bad_rows", "max": True}], "max: True is not a finite number"),
    "limits crossed": ([{"metric": "delta", "min": 1, "max": 0.5}], "no value is above min=1 and below max=0.5"),
    "a cosine from above": ([{"metric": "output_cosine_min", "max": 0.5}], "larger is better there; give min"),
    "a budget in words": (
        [{"metric": "bad_rows", "max": 0, "d": "64"}],
        "d: expected a whole number or a list of them, got '64'",
    ),
    "half a layer": (
        [{"metric": "bad_rows", "max": 0, "layer": 0.5}],
        "layer: expected a whole number or a list of them, got 0.5",
    ),
    "no length": ([{"metric": "bad_rows", "max": 0, "n": []}], "n: expected a whole number or a list of them, got []"),
    "a truth": (
        [{"metric": "bad_rows", "max": 0, "n": True}],
        "n: expected a whole number or a list of them, got True",
    ),
    "a true factor": (
        [{"metric": "bad_rows", "max": 0, "scale_inputs": True}],
        "scale_inputs: expected a number or a list of numbers, got True",
    ),
    "a word as factor": (
        [{"metric": "bad_rows", "max": 0, "scale_inputs": "4"}],
        "scale_inputs: expected a number or a list of numbers, got '4'",
    ),
    "a method of no name": ([{"metric": "bad_rows", "max": 0, "method": " "}], "method: expected a name, got ' '"),
    "weights of a number": (
        [{"metric": "bad_rows", "max": 0, "weights": [1]}],
        "weights: expected a word or a list of words, got [1]",
    ),
    "a target of nothing": (
        [{"metric": "bad_rows", "max": 0, "target": " "}],
        "target: expected a word or a list of words, got ' '",
    ),
    "the second": ([{"metric": "bad_rows", "max": 0}, {"metric": "delta"}], "gate 2: delta has no limit"),
}


@pytest.mark.parametrize(("entries", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_gate_is_one_clear_line(entries, says):
    with pytest.raises(UsageError) as error:
        parse_gates(entries, EXPERIMENT.gated)
    assert says in str(error.value) and "\n" not in str(error.value)


# --- limits


def test_a_gate_passes_at_the_limit_and_fails_beyond_it():
    records = [cell(values=[0.5, 0.5]), cell("vmean", None, [9.0, 9.0])]
    assert messages(records, Gate("output_spectral", max=0.5)) == []
    assert messages(records, Gate("output_spectral", min=0.5)) == []
    assert messages(records, Gate("output_spectral", min=0.5, max=0.5)) == []
    assert messages(records) == []
    assert messages(records, Gate("output_spectral", max=0.49)) == ["0.5 is above 0.49"]
    close = math.nextafter(0.5, 0)
    assert messages(records, Gate("output_spectral", max=close)) == [f"0.5 is above {close!r}"]
    assert messages(records, Gate("output_spectral", min=0.51, max=0.6)) == ["0.5 is below 0.51"]
    assert messages(records, Gate("output_spectral", min=0.1, max=0.4)) == ["0.5 is above 0.4"]
    results = check(gate_lines(records), [Gate("output_spectral", "max", max=0.49), Gate("seconds", max=1.0)])
    expected = [(0.5, "<= 0.49", False), (0.25, "<= 1", True)]
    assert [(result.value, result.limit, result.passed) for result in results] == expected
    for part in ("output_spectral.max", "0.49", "skyformer", "d=16", "n=64", "layer=0"):
        assert part in results[0].name
    assert results[0].line == f"{results[0].name}: 0.5 is above 0.49"
    assert [result.seconds for result in results] == [0.25, 0.25]
    (result,) = check(gate_lines([cell(), cell(window=1, seconds=0.5)]), [Gate("output_spectral", max=9.0)])
    assert result.seconds == 0.75  # of all cells


BROKEN = {
    "no row": [],
    "only references": [cell("vmean", None)],
    "not measured": [cell(metrics={"output_frobenius": [0.0, 0.0]})],
    "no metrics": [cell(metrics={})],
    "null in one head": [cell(values=[0.1, None])],
    "NaN everywhere": [cell(values=[math.nan, math.nan])],
    "infinite": [cell(values=[0.1, math.inf])],
    "overflow of the mean": [cell(values=[-1.7e308, -1.7e308])],
    "measured in one window only": [cell(), cell(window=1, metrics={})],
    "failed": [cell(status="failed")],
    "diverged": [cell(status="diverged")],
    "skipped": [cell(status="skipped")],
    "one window of three failed": [cell(), cell(window=1), cell(window=2, status="failed")],
    "one method of two skipped": [cell(), cell("other", status="skipped", metrics={})],
}


@pytest.mark.parametrize("records", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("limit", [{"max": 1e308}, {"min": -1e308}], ids=["max", "min"])
def test_a_gate_fails_closed(records, limit):
    assert messages(records, Gate("output_spectral", **limit))


def test_a_gate_fails_closed_on_rows_of_any_origin():
    """Rows read from JSON, where a value may be anything."""
    for value in (None, math.nan, math.inf, "0.1", True, [0.1]):
        row = {"method": "x", "status": "ok", "seconds.mean": value, "seconds.count": 1}
        for gate in (Gate("seconds", max=10.0), Gate("seconds", min=-10.0)):
            (result,) = check([row], [gate])
            assert not result.passed and result.value is None, value
    (line,) = messages([cell()], Gate("output_spectral", "se", max=10.0))
    assert "one text window has no standard error" in line


def test_a_gate_looks_at_the_rows_that_it_names():
    records = [
        cell(d=d, n=n, layer=layer, options=options, values=[d, d])
        for d in (16, 32)
        for n in (64, 128)
        for layer in (0, 5)
        for options in ({}, {"inverse": "pinv", "ridge": 0.1})
    ]
    records += [cell("mss", 16, [1.0, 1.0]), cell("vmean", None, [99.0])]
    rows = gate_lines(records)

    def count(**places):
        return len(check(rows, [Gate("output_spectral", max=0.0, **places)]))

    assert count() == 17  # never the reference
    assert count(method="skyformer") == 16 and count(method="mss") == 1
    assert count(method="skyformer:inverse=pinv,ridge=0.1") == count(method="skyformer: ridge=1e-1,inverse=PINV") == 8
    assert count(d=(16,)) == 9 and count(d=(16, 32)) == 17
    assert count(n=(128,), layer=(5,)) == 4 and count(method="skyformer", n=(64,), layer=(0,), d=(32,)) == 2
    results = check(rows, [Gate("output_spectral", max=16.0, method="skyformer", layer=(5,), n=(64,))])
    assert [result.passed for result in results] == [True, True, False, False]  # d = 16, 16, 32, 32


def test_a_gate_tells_weights_and_targets_apart():
    def of(word, seed=None, **more):
        return cell(source={"weights": word, "weights_seed": seed}, **more)

    records = [
        of("pretrained", values=[1.0]),
        of("initialized", 0, values=[2.0]),
        of("initialized", 1, values=[3.0]),
        of("pretrained", values=[4.0], target="gaussian"),
    ]
    rows = gate_lines(records)

    def actual(**places):
        return [one.value for one in check(rows, [Gate("output_spectral", max=9.0, **places)])]

    assert actual() == [1.0, 2.0, 3.0, 4.0]
    assert actual(weights=("pretrained",)) == [1.0, 4.0] and actual(weights=("initialized",)) == [2.0, 3.0]
    assert actual(weights=("initialized, weights seed 1",)) == [3.0]
    assert actual(target=("gaussian",)) == [4.0] and actual(target=("softmax",), weights=("pretrained",)) == [1.0]
    (result,) = check(rows, [Gate("output_spectral", max=0.5, weights=("initialized, weights seed 1",))])
    assert result.name == (
        "output_spectral.mean <= 0.5 for weights=initialized, weights seed 1: "
        "skyformer d=16 n=64 layer=0 weights initialized, weights seed 1"
    )
    assert r"output\_spectral.mean for weights=initialized, weights seed 1" in gates_markdown([result])[6]


def test_every_place_that_a_gate_lists_has_a_row_or_the_gate_fails():
    rows = gate_lines([cell(d=16), cell(d=32, layer=5)])
    results = check(rows, [Gate("output_spectral", max=9.0, d=(16, 64, 32), layer=(0, 5, 7))])
    assert [result.passed for result in results] == [True, True, False]
    assert results[-1].message == (
        "no row with d=64 among those that are meant; no row with layer=7 among those that are meant"
    )


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({"method": "skyfromer"}, "no row of the method 'skyfromer'; did you mean 'skyformer'?"),
        ({"method": "skyformer:ridge=1"}, "no row of the method 'skyformer:ridge=1'"),
        ({"method": "vmean"}, "no row of the method 'vmean'"),
        ({"d": (8, 9)}, "no row with d=8,9; the rows have 16,32"),
        ({"layer": (3,)}, "no row with layer=3; the rows have 0"),
        ({"d": (16,), "n": (128,)}, "no row has all of these together"),
        ({"target": ("gaussian",)}, "no row with target=gaussian; the rows have softmax"),
        ({"weights": ("pretrained",)}, "no row with weights=pretrained; the rows have initialized"),
    ],
)
def test_a_gate_that_no_row_answers_to_fails(places, says):
    records = [cell(), cell(d=32, n=128), cell("vmean", None)]
    records = [{**record, "source": {"weights": "initialized"}} for record in records]
    (result,) = check(gate_lines(records), [Gate("output_spectral", max=1e9, **places)])
    assert not result.passed and result.message.startswith(says)
    assert (result.where, result.value, result.seconds, result.name) == ("", None, None, str(result.gate))


def test_a_gate_on_a_subject_that_no_row_has_names_it():
    row = {"theorem": "skyformer", "status": "ok", "ratio.mean": 0.5, "ratio.count": 1}
    results = check(
        [row], [Gate("ratio", max=1.0, subjects={"theorem": one}) for one in ("skyformer", "skyfromer", None)]
    )
    assert [result.line for result in results] == [
        "ratio.mean <= 1 for theorem=skyformer: skyformer: passed",
        "ratio.mean <= 1 for theorem=skyfromer: no row of the theorem 'skyfromer'; did you mean 'skyformer'?",
        "ratio.mean <= 1: skyformer: passed",
    ]


# --- what is shown


def a_few():
    records = [
        cell("a_<&>\"'", 8, [0.25]),
        cell(d=128, n=4096, values=[123.456]),
        cell("mss", 8, status="failed", metrics={}, seconds=None),
    ]
    lines = gate_lines(records)
    lines[-1]["reason"] = "it \x1b[31mbroke\x00 & <that> \ud800 ]]> was it"
    return check(lines, [Gate("output_spectral", max=1.0), Gate("bad_rows", max=0, d=(9,))])


def test_the_table_of_gates(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = gates_table(a_few())
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, gates_table(a_few()).splitlines())) <= 80
    lines = text.splitlines()
    assert lines[-1] == "4 checked, 3 failed"
    assert "…" not in text and "\x1b" not in text
    (sky,) = [line for line in lines if "skyformer d=128" in line and "n=4096" in line and "above" not in line]
    assert sky.startswith("✗") and "123.5" in sky and "<= 1" in sky
    (passed,) = [line for line in lines if "a_<&>" in line]
    assert not passed.startswith("✗") and passed.index(".25") == sky.index(".5")  # aligned at the point
    assert "bad_rows.mean <= 0 for d=9: no row with d=9; the rows have 8,128" in text
    shown = gates_markdown(a_few())
    assert r"| ✗ bad\_rows.mean for d=9 | none |  | \<= 0 |" in shown
    assert sum(line.startswith("✗") for line in shown) == 3  # of the four, one passed
    assert gates_markdown(a_few()[:1])[-1].startswith("| ✓ ")
    assert gates_table([]).splitlines()[-1] == "0 checked, 0 failed"


# the elements, attributes and children of Jenkins' junit-10.xsd that are used, each attribute with its type
NUMBER, TEXT = r"\d+\.\d{3}", r"[\s\S]*"  # a suite's time has at most three decimals
COUNTS = {"name": TEXT, "time": NUMBER, **dict.fromkeys(("tests", "failures", "errors"), r"\d+")}
SCHEMA = {
    "testsuites": (COUNTS, {"testsuite"}),
    "testsuite": ({**COUNTS, "skipped": r"\d+"}, {"testcase"}),
    "testcase": ({"name": TEXT, "classname": TEXT, "time": NUMBER}, {"failure"}),
    "failure": ({"message": TEXT, "type": TEXT}, set()),
}
NEEDED = {"testsuite": {"name", "tests", "failures"}, "testcase": {"name", "classname"}}


def valid(element):
    attributes, children = SCHEMA[element.tag]
    for name, value in element.attrib.items():
        assert re.fullmatch(attributes[name], value), (element.tag, name, value)
    assert NEEDED.get(element.tag, set()) <= set(element.attrib)
    assert {child.tag for child in element} <= children
    assert element.tag == "failure" or not (element.text or "").strip()
    for child in element:
        valid(child)


def test_junit_xml_is_one_case_per_gate_and_row(tmp_path):
    results = a_few()
    write_junit(gate_cases(results), "gates", tmp_path / "deep/er/gates.xml")
    data = (tmp_path / "deep/er/gates.xml").read_bytes()
    assert data.startswith(b"<?xml version='1.0' encoding='utf-8'?>\n<testsuites ") and data.endswith(b">\n")
    root = ET.fromstring(data)
    assert root.tag == "testsuites"
    valid(root)
    (suite,) = root
    cases = list(suite)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "3", "0")
    assert (root.get("tests"), root.get("failures")) == ("4", "3")
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == 4
    assert [case.get("classname") for case in cases] == ["attnprobe.output_spectral"] * 3 + ["attnprobe.bad_rows"]
    assert [case.find("failure") is None for case in cases] == [result.passed for result in results]
    assert cases[0].get("name") == results[0].name and "a_<&>\"'" in results[0].name  # escaped, and read back
    by_method = {case.get("name").split(": ")[-1].split()[0]: case for case in cases[:3]}
    assert by_method["skyformer"].find("failure").get("message") == "123.456 is above 1"
    told = by_method["mss"].find("failure").get("message")
    assert told == r"failed: it \x1b[31mbroke\x00 & <that> \ud800 ]]> was it"  # what XML cannot hold is escaped
    assert by_method["mss"].find("failure").text.endswith(told)
    assert [float(case.get("time")) for case in cases] == [0.25, 0.25, 0.0, 0.0]
    assert float(suite.get("time")) == 0.5
    write_junit(gate_cases(results), "gates", tmp_path / "again.xml")
    assert (tmp_path / "again.xml").read_bytes() == data


def test_junit_xml_of_nothing_and_of_a_path_that_cannot_be(tmp_path):
    write_junit(gate_cases([]), "gates", tmp_path / "none.xml")
    root = ET.parse(tmp_path / "none.xml").getroot()
    valid(root)
    assert root[0].get("tests") == "0" and len(root[0]) == 0
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file/below.xml"):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            write_junit(gate_cases([]), "gates", path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "none.xml"]


def with_rounded(*values, rounded=(0.0, 7.0), metric="output_spectral", **more):
    """The line of heads, of which the second has rows whose normaliser rounding decides."""
    metrics = {metric: list(values), "rounded_rows": [*rounded][: len(values)], "bad_rows": [*rounded][: len(values)]}
    return gate_lines([cell(values=values, metrics=metrics, **more)])


@pytest.mark.parametrize(
    ("gate", "outcome"),
    [
        (Gate("output_spectral", "max", max=1.0), "undecided"),
        (Gate("output_spectral", "max", max=1e9), "undecided"),
        (Gate("output_spectral", "mean", min=0.51), "undecided"),
        (Gate("output_spectral", "max", min=1.0, max=1e9), "undecided"),
        (Gate("output_spectral", "min", max=1.0), "passed"),  # no larger value of the other head moves it
        (Gate("output_spectral", "min", max=0.9), "failed"),
        (Gate("bad_rows", "max", max=7), "passed"),  # a count is no error
    ],
)
def test_a_gate_on_a_value_that_rounding_decides_is_undecided(gate, outcome):
    (result,) = check(with_rounded(1.0, 90.0), [gate])
    assert [name for name in ("passed", "failed", "undecided") if getattr(result, name)] == [outcome]
    (sound,) = check(with_rounded(1.0, 90.0, rounded=(0.0, 0.0)), [gate])
    assert not sound.undecided


def test_an_undecided_gate_says_its_value_and_the_way_out(tmp_path):
    gates = [Gate("output_spectral", "max", max=10), Gate("output_spectral", "max", max=100)]
    results = check(with_rounded(1.0, 90.0), gates)
    way_out = "but rounding decides it; use guard=sampled (bidirectional skyformer)"
    assert [result.message for result in results] == [f"≈90 is above 10, {way_out}", f"≈90 is at most 100, {way_out}"]
    three = with_rounded(1.0, 1.1, 90.0, rounded=(0.0, 0.0, 7.0))
    (one,) = check(three, gates[:1])
    assert one.message.endswith("; gate the median, or use guard=sampled (bidirectional skyformer)")
    write_junit(gate_cases(results), "gates", tmp_path / "gates.xml")
    (suite,) = ET.parse(tmp_path / "gates.xml").getroot()
    assert [case[0].get("type") for case in suite] == ["undecided", "undecided"]
    lines = gates_table(results).splitlines()
    assert (
        any(line.startswith("≈ output_spectral.max <= 10: skyformer") for line in lines)
        and lines[-1] == "2 checked, 2 undecided"
    )
    assert gates_markdown(results)[0] == "### ✗ 2 gates: 2 undecided"


def test_a_missing_value_fails_a_gate_before_it_is_undecided():
    (result,) = check(with_rounded(None, 90.0), [Gate("output_spectral", "max", max=1e9)])
    assert result.failed and "only 1 of 2 values are finite" in result.message


@pytest.mark.parametrize("stat", ["median", "min", "p10"])
def test_a_statistic_that_an_infinite_head_does_not_reach_fails_too(stat):
    lines = gate_lines([cell(values=[0.1, 0.2, math.inf])])
    (result,) = check(lines, [Gate("output_spectral", stat, max=10.0)])
    assert result.failed and result.message == "a value is not finite"


def test_a_time_that_is_no_number_is_none(tmp_path):
    gate = Gate("delta", max=1)
    for mean in (math.nan, None, "1", math.inf):
        row = {"method": "x", "status": "ok", "seconds.mean": mean, "seconds.count": 2}
        assert check([row], [gate])[0].seconds is None
    write_junit(
        gate_cases([GateResult(gate, "x", 0.5, "", 2.5), GateResult(gate, "y", 0.5, "")]), "gates", tmp_path / "x.xml"
    )
    times = [element.get("time") for element in ET.parse(tmp_path / "x.xml").iter()]
    assert times == ["2.500", "2.500", "2.500", "0.000"]


def test_a_reference_answers_to_no_gate_where_rows_do_not_say_what_was_requested():
    one = {"method": "x", "d": 8, "status": "ok", "delta.mean": 0.5, "delta.count": 2}
    reference = {**one, "method": "vmean", "reference": True, "delta.mean": 9.0}
    assert [result.name for result in check([reference, one], [Gate("delta", max=1)])] == ["delta.mean <= 1: x d=8"]


def test_a_gate_of_no_row_has_none_for_its_place_in_markdown():
    text = gates_markdown([GateResult(Gate("bad_rows", max=0), "", None, "no row of a requested method to compare")])
    assert text[0] == "### ✗ 1 gates: 1 failed" and "| none |" in "\n".join(text)


def test_a_place_that_no_row_has_is_told():
    records = [cell(d=None)]
    assert messages(records, Gate("bad_rows", max=0, d=(8,))) == ["no row with d=8; the rows have none"]


def test_a_method_is_not_missed_where_settings_name_none():
    gate = Gate("output_spectral", max=1, method="skyformer")
    assert impossible_reason(gate, {"windows": 2}, {}) is None
    assert "the method 'skyformer' is not measured" in impossible_reason(gate, {"methods": ["svd"]}, {})
