"""What every command shows of a small run, and the keys of its cells, are what they were.

A deliberate change of what is shown is a reviewed diff: `python tests/golden/rewrite.py`, and look at what changed.
"""

import json
import platform
import re
from importlib.metadata import version
from itertools import zip_longest

import pytest
from golden import rewrite as golden

from attnprobe.compare.verdicts import MACHINE
from attnprobe.records.file import cell_key

KNOWN = json.loads(golden.KEYS.read_text(encoding="utf-8"))
REWRITE = "if that is meant: python tests/golden/rewrite.py, and review the diff"


@pytest.mark.parametrize("command", golden.COMMANDS)
def test_what_is_shown(command, tmp_path):
    golden.shown(command, tmp_path)
    actual, known = (
        {path.name: path.read_text() for path in (place / command).iterdir()} for place in (tmp_path, golden.SHOWN)
    )
    if version("matplotlib") != golden.MATPLOTLIB.read_text().strip():  # another version draws other bytes
        actual, known = _words(actual), _words(known)
    assert actual.keys() == known.keys(), REWRITE
    for name, text in known.items():
        assert actual[name] == text, f"{command}: {name}: {REWRITE}"


@pytest.mark.parametrize("name", golden.READINGS)
def test_what_is_read_of_the_runs(name, tmp_path):
    golden.read(name, tmp_path)
    actual, known = ((place / f"{name}.txt").read_text(encoding="utf-8") for place in (tmp_path, golden.READ))
    if version("matplotlib") != golden.MATPLOTLIB.read_text().strip():
        actual, known = (re.sub(r"(?<=\.svg: )\w+", "", text) for text in (actual, known))
    assert actual == known, f"{name}: {REWRITE}"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors round otherwise")
@pytest.mark.parametrize("name", golden.MEASURED)
def test_what_is_measured(name):
    known = json.loads((golden.NOW / f"{name}.json").read_text(encoding="utf-8"))
    assert list(differences(golden.measured(name), known)) == [], f"{name}: {REWRITE}"


def differences(actual, known, place=""):
    """Where two values of JSON differ by more than rounding."""
    if isinstance(actual, float) and isinstance(known, float):
        if actual != pytest.approx(known, rel=5e-3, abs=2e-5) and min(actual, known) < 1e10:
            yield f"{place}: {actual}, {known}"
    elif type(actual) is not type(known) or not isinstance(actual, (dict, list)):
        if actual != known:
            yield f"{place}: {actual!r}, {known!r}"
    elif isinstance(actual, dict):
        for name in actual.keys() | known.keys():
            yield from differences(actual.get(name, "absent"), known.get(name, "absent"), f"{place}.{name}")
    else:
        for number, (one, other) in enumerate(zip_longest(actual, known, fillvalue="absent")):
            yield from differences(one, other, f"{place}[{number}]")


def _words(files):
    """The files with the words of figures alone."""
    figures = {name: one["words"] for name, one in json.loads(files["figures.json"]).items()}
    return {**files, "figures.json": json.dumps(figures)}


@pytest.mark.parametrize(("command", "arguments"), [(name, one) for name, some in golden.CASES.items() for one in some])
def test_older_runs_resume(command, arguments):
    assert golden.keys_of(command, arguments) == KNOWN[command][arguments]


@pytest.mark.parametrize("arguments", golden.BENCH)
def test_older_benches_resume_on_their_machine(arguments):
    records = [record for _, record in golden.bench_cells(arguments)]
    keys = [
        cell_key(**determinants, machine={name: record[name] for name in MACHINE})
        for determinants, record in zip(KNOWN["bench"][arguments], records, strict=True)
    ]
    assert [record["key"] for record in records] == keys


def test_no_record_holds_a_path_of_a_machine():
    texts = {path: path.read_text() for path in golden.RUNS.rglob("*.json*")}
    assert not [path for path, text in texts.items() if "/tmp" in text or str(golden.HERE.parents[1]) in text]


@pytest.mark.parametrize("name", golden.SWEEPS)
def test_older_sweeps_find_their_folder(name):
    assert golden.folder_of(name) == KNOWN["folders"][name]


def test_options_are_what_they_were():
    lines = golden.options().splitlines(), golden.OPTIONS.read_text(encoding="utf-8").splitlines()
    new, gone = ([line for line in lines[one] if line not in lines[1 - one]] for one in (0, 1))
    assert not new and not gone, "if help is improved: python tests/golden/rewrite.py options, and review the diff"
