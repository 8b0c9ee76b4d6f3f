"""``attnprobe extract --pack`` and ``attnprobe accept``, as the page on kernels elsewhere uses them."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
from paths import ROOT
from planted_kernels import naive
from sources_helpers import needs_minilm

from attnprobe.testing.packs import Pack, save_pack
from attnprobe.testing.packs.making import hard_cases


@pytest.fixture
def pack(tmp_path):
    cases = list(hard_cases(small=True))[:4]
    save_pack(Pack("smoke", cases), tmp_path / "pack.safetensors")
    return cases


def write(tmp_path, outputs):
    from safetensors.torch import save_file

    save_file(outputs, tmp_path / "outputs.safetensors")
    return [str(tmp_path / f"{name}.safetensors") for name in ("pack", "outputs")]


def test_a_right_kernel_exits_with_0_and_a_wrong_one_with_1(run, pack, tmp_path):
    outputs = {f"{case.name}.o": naive(case) for case in pack}
    code, out, _ = run("accept", *write(tmp_path, outputs))
    assert code == 0 and "passes all 4 cases" in out
    outputs[f"{pack[0].name}.o"][0, 5] = float("nan")
    del outputs[f"{pack[1].name}.o"]
    report = tmp_path / "kernel.xml"
    code, out, _ = run("accept", *write(tmp_path, outputs), "--junit", str(report))
    assert code == 1 and "fails 2 of 4 cases" in out
    failures = {case.get("name"): case.find("failure") for case in ET.parse(report).iter("testcase")}
    messages = [None if one is None else one.get("message") for one in failures.values()]
    assert messages == ["an entry is not finite: head 0, query 5", "no output", None, None]


def test_limits_are_judged_for_every_case_beside_its_verdict(run, pack, tmp_path):
    """A right kernel fails a limit that is tighter than rounding; a wrong or missing case fails every limit."""
    outputs = {f"{case.name}.o": naive(case) for case in pack}
    paths, report = write(tmp_path, outputs), str(tmp_path / "kernel.xml")
    code, out, err = run("accept", *paths, "--fail-above", "excess.max=1", "--fail-below", "queries_within.min=1")
    assert code == 0 and "passes all 4 cases" in out and "gates passed: excess.max <= 1, queries_within.min >= 1" in err
    rows = json.loads(run("accept", *paths, "--format", "json")[1])["rows"]
    largest = max(rows, key=lambda row: row["excess.max"])
    limit = f"excess.max={0.99 * largest['excess.max']}"
    code, out, err = run("accept", *paths, "--fail-above", limit, "--junit", report)
    failed = [line for line in err.splitlines() if "gate failed" in line]
    assert code == 1 and "passes all 4 cases" in out and failed and largest["case"] in failed[0]
    cases = [case.find("failure") is None for case in ET.parse(report).iter("testcase")]
    assert len(cases) == 8 and all(cases[:4]) and cases[4:].count(False) == len(failed)
    others = [row["case"] for row in rows if row["excess.max"] < 0.99 * largest["excess.max"]]
    assert run("accept", *paths, "--fail-above", f"{limit} for case={others[0]}")[0] == 0
    del outputs[f"{pack[1].name}.o"]
    code, _, err = run("accept", *write(tmp_path, outputs), "--fail-above", "max_abs.max=9")
    [line] = [line for line in err.splitlines() if "gate failed" in line]
    assert code == 1 and line.endswith(f"{pack[1].name}: only 0 of {len(pack[1].q)} values are finite")


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("excces.max=1", "unknown metric 'excces'; did you mean 'excess'?"),
        ("excess.most=1", "unknown statistic 'most'; choose from mean"),
        ("queries_within=1", "larger is better there; use --fail-below"),
        ("excess=1 for window", "unknown key 'method'"),
        ("lse_excess=1 for case=nothing", "no row of the case 'nothing'"),
    ],
)
def test_a_limit_that_cannot_be_judged_fails(limit, says, run, pack, tmp_path):
    code, _, err = run(
        "accept", *write(tmp_path, {f"{case.name}.o": naive(case) for case in pack}), "--fail-above", limit
    )
    assert code == (1 if "nothing" in limit else 2) and says in err


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "md", "latex", "github"])
def test_every_format_has_every_case(format, run, pack, tmp_path):
    code, out, _ = run("accept", *write(tmp_path, {f"{case.name}.o": naive(case) for case in pack}), "--format", format)
    assert code == 0 and all(case.name in out for case in pack)
    if format == "json":
        rows = json.loads(out)["rows"]
        assert [row["verdict"] for row in rows] == ["passes"] * 4 and 0 < rows[0]["excess.max"] < 1


def test_impossible_input_is_one_line(run, pack, tmp_path):
    paths = write(tmp_path, {"x.o": naive(pack[0])})
    for words, code, said in (
        (("accept", *paths), 3, "is no output of pack"),
        (("accept", *reversed(paths)), 3, "is no pack"),
        (("accept", paths[0], str(tmp_path)), 3, "is a directory"),
        (("extract", "--pack", "huge", "--out", str(tmp_path / "x")), 2, "unknown pack 'huge'"),
        (("extract", "--pack", "smoke", "--n", "9", "--out", str(tmp_path / "x")), 2, "drop --n"),
    ):
        got, out, err = run(*words)
        assert (got, out) == (code, "") and said in err and err.count("\n") == 1


@needs_minilm
def test_the_page_does_what_it_says(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/guide/accept.md").read_text()
    assert run("extract", "--pack", "smoke", "--out", "smoke.safetensors")[0] == 0
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(block, "accept.md", "exec"), {})
    code, out, _ = run("accept", "smoke.safetensors", "outputs.safetensors", "--format", "json")
    verdicts = {row["case"]: row["verdict"] for row in json.loads(out)["rows"]}
    assert code == 1 and "wrong" not in verdicts.values()
    assert [name for name, verdict in verdicts.items() if verdict == "missing"] == ["sinks-decide.bf16", "softcap.bf16"]
