"""Records: what a kill, a full disk, another process or a hand-edited file does to them; budgets for other software."""

import io
import json
import math
import os
import random
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

from attnprobe.errors import UsageError
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.budgets import Budgets, duo_attention_heads, kvpress_ratios, minference_pattern
from attnprobe.frame.records.file import (
    SCHEMA,
    cell_key,
    missing_maps,
    missing_maps_path,
    plain,
    run_directory,
    strict_json,
    write_bytes,
    write_json,
    write_text,
)
from attnprobe.frame.records.read import Malformed, malformed_notes, read_inputs, read_records
from attnprobe.grammar.validation import shallow


def record(key, **fields):
    return {"key": key, "status": "ok", "method": "skyformer", "metrics": {"output_spectral": [0.25, 1e-300]}, **fields}


def write(path, *records):
    with RecordWriter(path) as writer:
        for one in records:
            writer.append(one)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    records = [record("a", reason="é\u2028\n\ud800", d=None), record("b", options={"r": 0.1, "z": 1}, heads=(0, 5))]
    write(path, *records)
    assert read_records(path) == [{"schema": SCHEMA, **plain(one)} for one in records]
    assert read_records(path.parent) == read_records(path)
    assert plain({3, 1, 2}) == [1, 2, 3]
    lines = path.read_bytes().splitlines()
    assert lines == [json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode() for line in lines]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_is_null_at_any_depth(tmp_path, value):
    numpy = pytest.importorskip("numpy")
    write(tmp_path / "r.jsonl", record("a", metrics={"x": [1.0, value], "y": numpy.array([value, 2.0])}, seconds=value))
    (actual,) = read_records(tmp_path / "r.jsonl")
    assert actual["metrics"] == {"x": [1.0, None], "y": [None, 2.0]}
    assert actual["seconds"] is None


def test_what_has_no_json_form_is_refused_and_leaves_no_trace(tmp_path):
    with RecordWriter(tmp_path / "r.jsonl") as writer:
        with pytest.raises(TypeError):
            writer.append(record("a", options={"f": object()}))
        with pytest.raises(ValueError, match="status"):
            writer.append(record("a", status="fine"))
    assert (tmp_path / "r.jsonl").read_bytes() == b""
    with pytest.raises(RuntimeError):
        writer.append(record("a"))


def test_a_torn_last_line_at_every_offset(tmp_path):
    """Cut the file after each byte: nothing whole is lost, nothing torn is read, and the next append is sound."""
    whole = tmp_path / "whole.jsonl"
    write(whole, record("first"), record("second", reason="é, \u2028 and }"))
    data = whole.read_bytes()
    first = data.index(b"\n")
    path = tmp_path / "rows.jsonl"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        # a record is whole as soon as its closing brace is there
        kept = [key for key, end in (("first", first), ("second", len(data) - 1)) if cut >= end]
        assert [one["key"] for one in read_records(path)] == kept, cut
        write(path, record("third"))
        assert [one["key"] for one in read_records(path)] == [*kept, "third"], cut
        assert path.read_bytes().count(b"\n") == len(kept) + 1, cut


def test_a_torn_line_longer_than_a_block_and_one_of_binary_rubbish(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, record("a"))
    sound = path.read_bytes()
    for torn in (b'{"key":"' + b"x" * 300_000, b"\0" * 4096, b"\xff\xfe", b"[1,2]", b"17"):
        path.write_bytes(sound + torn)
        assert [one["key"] for one in read_records(path)] == ["a"]
        write(path)
        assert path.read_bytes() == sound


@pytest.mark.parametrize(
    "line", [b"{torn", b"[]", b"17", b'{"key":"a"}', b'{"schema":"1"}', b'{"schema":0}', b'{"schema":true}', b"\xff"]
)
def test_a_broken_line_elsewhere_is_named(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    sound = strict_json({"schema": 1, **record("a")}).encode()
    path.write_bytes(b"\n".join([sound, line, sound, b""]))
    with pytest.raises(UsageError, match=r"rows\.jsonl:2: "):
        read_records(path)


def test_reasons_of_missing_maps_that_are_no_words_are_left_out(tmp_path):
    path = missing_maps_path(tmp_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for text, expected in (('{"a": "why", "b": 5}', {"a": "why"}), ('["why"]', {}), ("{", {})):
        path.write_text(text)
        assert missing_maps(tmp_path) == expected


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(strict_json({"schema": SCHEMA + 1, "key": "a"}) + "\n")
    with pytest.raises(UsageError, match=rf"rows\.jsonl:1: schema {SCHEMA + 1} is newer"):
        read_records(path)


def test_shards_are_read_together_and_a_key_counts_once(tmp_path):
    write(tmp_path / "rows-1.jsonl", record("a", status="failed"), record("b", seconds=1.0))
    write(tmp_path / "rows-2.jsonl", record("a", status="ok"), record("b", status="failed"))
    write(tmp_path / "rows.jsonl", record("c", seconds=1.0), record("c", seconds=2.0))
    (tmp_path / "other.jsonl").write_text("not a record\n")
    actual = {one["key"]: one for one in read_records(tmp_path)}
    assert [actual[key]["status"] for key in "abc"] == ["ok", "ok", "ok"]
    assert actual["c"]["seconds"] == 2.0
    assert len(read_records(tmp_path)) == 3


def test_nothing_to_read_is_a_usage_error(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match=str(path)):
            read_records(path)


WORKER = """
import sys
from attnprobe.frame.records.append import RecordWriter
for i in range(300):
    if i % 50 == 0:
        writer = RecordWriter(sys.argv[1]).__enter__()
    writer.append({"key": f"{sys.argv[2]}-{i}", "status": "ok", "reason": "x" * (i * 41 % 9000)})
"""


def test_four_processes_append_to_one_file(tmp_path):
    """Whole lines only, none lost, also while others open the file and look for a torn line."""
    path = tmp_path / "rows.jsonl"
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, path, str(i)]) for i in range(4)]
    assert [worker.wait(timeout=120) for worker in workers] == [0] * 4
    actual = read_records(path)
    assert {one["key"] for one in actual} == {f"{w}-{i}" for w in range(4) for i in range(300)}
    assert path.read_bytes().count(b"\n") == len(actual) == 1200


LIMITED = """
import resource, sys
from attnprobe.errors import UsageError
from attnprobe.frame.records.append import RecordWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
with RecordWriter(sys.argv[1]) as writer:
    try:
        for i in range(100):
            writer.append({"key": str(i), "status": "ok", "reason": "x" * 100})
    except UsageError as error:
        print(i, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.append({"key": "after", "status": "ok"})
"""


def test_a_write_that_falls_short_is_taken_back(tmp_path):
    """A file-size limit cuts a line in two as a full disk does: what was whole stays, the next append is sound."""
    path = tmp_path / "rows.jsonl"
    done = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=True)
    count, message = done.stdout.split(" ", 1)
    assert 0 < int(count) < 100
    assert str(path) in message
    assert re.search(r"only \d+ of \d+ bytes could be written; is the disk full\?", message)
    assert [one["key"] for one in read_records(path)] == [*map(str, range(int(count))), "after"]


def test_what_cannot_be_written_is_a_usage_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link to nothing").symlink_to(tmp_path / "nothing")
    below = tmp_path / "file" / "rows.jsonl"
    attempts = [
        lambda: write(below),
        lambda: write(tmp_path),
        lambda: write_text(below, ""),
        lambda: write_bytes(tmp_path, b""),
        lambda: run_directory(tmp_path / "file", "error", "20261121-084512", "1a2b3c"),
        lambda: run_directory(tmp_path / "link to nothing", "error", "20261121-084512", "1a2b3c"),
    ]
    if os.path.exists("/dev/full"):
        attempts.append(lambda: write(Path("/dev/full"), record("a")))
    for attempt in attempts:
        with pytest.raises(UsageError, match=f"^({tmp_path}|/dev/full)"):
            attempt()
    with pytest.raises(UsageError, match="/dev/null: not a regular file"):
        write_text("/dev/null", "x")


def test_key_is_of_the_content_alone():
    assert cell_key(a=1, b={"x": 0.1, "y": None}) == cell_key(b={"y": None, "x": 0.1}, a=1)
    keys = [
        cell_key(**one)
        for one in ({"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": None}, {"a": math.nan}, {"a": True}, {"b": 1}, {"a": [1]})
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 24 and int(key, 16) >= 0 for key in keys)
    # the form itself: a change would orphan every old run
    canonical = b'{"d":128,"method":"skyformer","options":{"ridge":0.001}}'
    assert cell_key(method="skyformer", d=128, options={"ridge": 1e-3}) == sha256(canonical).hexdigest()[:24]


def test_writing_replaces_whole_files_and_leaves_no_others(tmp_path):
    write_json(tmp_path / "new" / "m.json", {"b": math.inf, "a": (1, Path("p"))})
    assert json.loads((tmp_path / "new" / "m.json").read_text()) == {"a": [1, "p"], "b": None}
    write_text(tmp_path / "new" / "m.json", "é")
    assert (tmp_path / "new" / "m.json").read_bytes() == "é".encode()
    with pytest.raises(TypeError):
        write_json(tmp_path / "new" / "m.json", {"a": object()})
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["m.json"]


FULL = """
import resource, sys
from attnprobe.errors import UsageError
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.file import write_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_bytes(sys.argv[1], b"x" * 5000)
except UsageError as error:
    print(error)
"""


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True)
    assert str(path) in done.stdout
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["table.csv"]


def test_a_file_has_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "")
        write(tmp_path / "b")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o640, 0o640]


def test_a_run_directory_is_never_shared(tmp_path):
    made = [run_directory(tmp_path / "outputs", "error", "20261121-084512", "1a2b3c") for _ in range(3)]
    assert [path.name for path in made] == [f"20261121-084512-error-1a2b3c{end}" for end in ("", "-2", "-3")]
    assert all(path.is_dir() and not any(path.iterdir()) for path in made)


def test_importing_records_is_light():
    code = (
        "import sys, attnprobe.frame.records.file; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_file_with_any_bytes_changed_is_read_or_refused_by_name(tmp_path):
    """Bytes overwritten, removed, doubled or inserted at random: what comes back are records, or one clear error."""
    path = tmp_path / "rows.jsonl"
    with RecordWriter(path) as writer:
        for number in range(6):
            writer.append({"key": f"k{number}", "status": "ok", "metrics": {"output_spectral": [0.5, None, 1e-7]}})
    whole, draw = path.read_bytes(), random.Random(0)
    read = refused = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            at, size = draw.randrange(len(data)), draw.randint(1, 12)
            some = bytes(draw.choice(b'{}[]":,0919eE+-.\\\n \x00\xff\xc3nulltrue') for _ in range(size))
            data[at : at + draw.choice((0, size))] = draw.choice((some, b"", data[at : at + size] * 2))
        path.write_bytes(data)
        try:
            actual = read_records(path)
            assert all(isinstance(record, dict) and isinstance(record["schema"], int) for record in actual)
            read += 1
        except UsageError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert read > 50 and refused > 50


def test_files_of_shards_are_read_in_the_order_of_their_names(tmp_path):
    """Whatever order the folder lists them in: a later file's record takes the place of an earlier one's."""
    numbers = [7, 2, 9, 1, 4, 8, 3, 6, 5]
    for number in numbers:
        place = {"source": {}, "layer": 0, "window": 0, "n": number, "heads": [0], "lines": 0, "kind": "cell"}
        own = {"schema": SCHEMA, "key": f"own-{number}", "command": "inputs", "status": "ok", **place}
        shared = {**own, "key": "shared"}
        text = "".join(json.dumps(record) + "\n" for record in (own, shared))
        (tmp_path / f"inputs-{number}.jsonl").write_text(text)
    actual = {record["key"]: record["n"] for record in read_inputs(tmp_path).records}
    assert [key for key in actual if key != "shared"] == [f"own-{number}" for number in sorted(numbers)]
    assert actual["shared"] == 9


def test_the_first_malformed_lines_are_named_and_the_others_counted():
    lines = [Malformed(Path("r.jsonl"), number, None, "wrong") for number in range(6)]
    expected = ["r.jsonl:4: wrong; it is left out", "1 more lines are malformed"]
    assert malformed_notes(lines, "is left out")[-2:] == expected
    assert malformed_notes(lines[:5], "is left out")[-1] == "r.jsonl:4: wrong; it is left out"


KEYS = {(0, 0): 10, (0, 1): 10, (0, 2): 40, (0, 3): 40, (1, 0): 5, (1, 1): 5, (1, 2): 1, (1, 3): 1}
PLAN = Budgets("h2o", {}, KEYS, {"prompt": 50, "kv_heads": 2})


def test_kvpress_drops_a_share_of_each_kv_head():
    assert np.allclose(kvpress_ratios(PLAN), [[0.8, 0.2], [0.9, 0.98]])


def test_duo_attention_reads_a_line_for_each_layer():
    read = np.clip(np.loadtxt(io.StringIO(duo_attention_heads(PLAN)), dtype=float, delimiter="\t"), 0, 1)
    assert np.allclose(read, [[0.2, 0.8], [0.1, 0.02]])


def test_minference_reads_columns_and_diagonals_of_each_query_head():
    pattern = minference_pattern(PLAN)
    assert [list(layer) for layer in pattern] == [["0", "1", "2", "3"]] * 2
    assert pattern[0]["2"] == ["vertical_and_slash", 20, 20, 1.0] and pattern[1]["0"][1:3] == [2, 3]
    assert pattern[1]["3"][1:3] == [1, 1]


def test_the_example_of_the_guide_writes_each_format(tmp_path, monkeypatch):
    entries = [{"layer": layer, "head": head, "d": d} for (layer, head), d in PLAN.d.items()]
    monkeypatch.chdir(tmp_path)
    Path("budgets-h2o-n577-d57.json").write_text(json.dumps({"method": "h2o", "budgets": entries, **PLAN.about}))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/inject.md").read_text(), re.S)
    [example] = [block for block in blocks if "kvpress" in block]
    names = {}
    exec(example, names)
    assert names["ratios"] == kvpress_ratios(PLAN)
    assert Path("full_attention_heads.tsv").read_text() == duo_attention_heads(PLAN)
    assert json.loads(Path("best_pattern.json").read_text()) == minference_pattern(PLAN)


def test_a_head_without_a_budget_keeps_the_prompt():
    whole = Budgets("h2o", {}, {**KEYS, (0, 2): None, (0, 3): None}, PLAN.about)
    assert np.allclose(kvpress_ratios(whole), [[0.8, 0.0], [0.9, 0.98]])
    assert minference_pattern(whole)[0]["2"][1:3] == [25, 25]


@pytest.mark.parametrize(
    "about", [{}, {"prompt": 50}, {"kv_heads": 2}, {"prompt": 0, "kv_heads": 2}, {"prompt": 9, "kv_heads": 0}]
)
def test_budgets_of_no_plan_are_refused(about):
    with pytest.raises(UsageError, match="the budgets are not of a plan"):
        kvpress_ratios(Budgets("h2o", {}, KEYS, about))


def test_a_plan_of_some_layers_is_refused():
    some = {place: d for place, d in KEYS.items() if place != (0, 3)}
    with pytest.raises(UsageError, match="lacks layer 0, head 3"):
        minference_pattern(Budgets("h2o", {}, some, PLAN.about))


def test_facts_nest_eight_levels_deep():
    value = shallow([])
    for _ in range(8):
        value = shallow([value])
    with pytest.raises(ValueError, match="^expected at most 8 levels$"):
        shallow([value])
