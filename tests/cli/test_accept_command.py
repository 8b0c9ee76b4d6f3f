"""``attnprobe extract --pack`` and ``attnprobe accept``, as the page on kernels elsewhere uses them."""

import json
import re
import subprocess
import sys
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
    subprocess.run([sys.executable, "-c", block], check=True)
    code, out, _ = run("accept", "smoke.safetensors", "outputs.safetensors", "--format", "json")
    verdicts = {row["case"]: row["verdict"] for row in json.loads(out)["rows"]}
    assert code == 1 and "wrong" not in verdicts.values()
    assert [name for name, verdict in verdicts.items() if verdict == "missing"] == ["sinks-decide.bf16", "softcap.bf16"]
