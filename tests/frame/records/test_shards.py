"""Runs in shards: every group in one of them, their records together those of one run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from thinned import others_slow

from attnprobe.errors import UsageError
from attnprobe.frame.records.file import Shard, parse_shard
from attnprobe.frame.records.read import _together, read_inputs, read_records
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.show.page import open_run

PLACES = ["--layer", "0,2", "--windows", "2", "--n", "40,64", "--d", "4"]
COMMANDS = {
    "error": ["error", "--method", "skyformer", "--repeats", "2", *PLACES],
    "scaled": ["error", "--scale-inputs", "1,2", "--no-matrix", *PLACES],
    "spectrum": ["spectrum", "--of", "softmax,skyformer", *PLACES],
    "condition": ["condition", *PLACES],
    "theory": ["theory", "--theorem", "rank-collapse,skyformer-lemma-1", *PLACES],
    "budget": ["budget", "--method", "skyformer", "--epsilon", "0.5", *PLACES[:6]],
}


@pytest.fixture(scope="module")
def file(two_layers):
    return two_layers


def without_times(records):
    """By key, without what differs between runs."""
    return {one["key"]: {**one, "seconds": None, "run": None} for one in records}


def request(file, out, **rest):
    given = {"d": (4,), "n": (40, 64), "layer": (0, 2), "windows": 2, "matrix": False, **rest}
    return ErrorRequest(qkv=str(file), device="cpu", out=str(out), **given)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_every_place_is_in_one_shard_and_shards_are_even(count):
    places = [(n, f"{hash(('x', n, i)):x}", (n, i)) for n in (64, 512) for i in range(17)]
    dealt = [Shard(index, count).dealt(places) for index in range(1, count + 1)]
    assert sorted(place for one in dealt for place in one) == sorted(place for _, _, place in places)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    longest = [sum(n == 512 for n, _ in one) for one in dealt]
    assert max(longest) - min(longest) <= 1
    assert Shard(1, count).dealt(places[::-1]) == dealt[0]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "1 / 2", "", "1/9999999", "١/٢"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="is not I/N"):
        parse_shard(text)


@pytest.mark.parametrize("name", others_slow(COMMANDS, lambda name: name[0] == "error"))
def test_shards_together_are_the_run_without_shards(run, file, name):
    args = [*COMMANDS[name], "--qkv", file]
    assert run(*args, "--out", "whole")[0] == 0
    whole = without_times(read_records("whole"))
    parts = []
    for index in ("1/3", "2/3", "3/3"):
        code, out, err = run(*args, "--out", "shards", "--shard", index)
        assert code == 0 and f"shard {index}" in err, err
        parts.append(read_records(f"shards/rows-{index.replace('/', '-of-')}.jsonl"))
    places = [
        {(one["n"], one["window"], one["layer"], one["source"].get("scale_inputs")) for one in part} for part in parts
    ]
    assert all(places) and not (places[0] & places[1] | places[0] & places[2] | places[1] & places[2])
    assert without_times(read_records("shards")) == whole
    assert sum(map(len, parts)) == len(whole)
    assert without_times(read_inputs("shards").records) == without_times(read_inputs("whole").records)
    assert {path.name for path in Path("shards").iterdir() if path.is_dir()} == set()  # no table of a part

    before = {path.name: path.read_bytes() for path in Path("shards").glob("*.jsonl")}
    assert run(*args, "--out", "shards", "--shard", "2/3")[0] == 0  # twice is without harm
    assert before == {path.name: path.read_bytes() for path in Path("shards").glob("*.jsonl")}

    assert run("report", "shards", "--plot", "none")[0] == 0
    [table] = Path("whole/tables").glob(f"{args[0]}.json")
    shown = [json.loads(Path(folder, "tables", table.name).read_text()) for folder in ("whole", "shards")]
    one, other = (without_seconds(each) for each in shown)
    assert one == other


def without_seconds(value):
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key.partition(".")[0] not in ("seconds", "run")}
        return {key: without_seconds(one) for key, one in kept.items()}
    return [without_seconds(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_shards_of_two_processes_at_once_do_not_harm_each_other(file, tmp_path):
    command = [sys.executable, "-m", "attnprobe", "error", "--qkv", file, *PLACES, "--out", tmp_path / "r"]
    both = [subprocess.Popen([*command, "--shard", f"{index}/2"], stdout=-1, stderr=-1) for index in (1, 2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0], [process.stderr.read() for process in both]
    measure_errors(request(file, tmp_path / "whole", matrix=True))
    assert without_times(read_records(tmp_path / "r")) == without_times(read_records(tmp_path / "whole"))
    assert [json.loads((tmp_path / f"r/manifest-{i}-of-2.json").read_text())["shard"] for i in (1, 2)] == ["1/2", "2/2"]
    assert open_run(tmp_path / "r").notes == []


def test_a_report_says_which_shards_are_missing(file, tmp_path):
    out = tmp_path / "r"
    measure_errors(request(file, out, shard="1/2"))
    assert any("finished in 1 of 2 shards" in line for line in open_run(out).notes)
    measure_errors(request(file, out, shard="2/2"))
    assert open_run(out).notes == []


def test_other_settings_of_shards_are_in_order():
    parts = [{"other_settings": [*"fdb"]}, {"other_settings": [*"gec"]}, {"other_settings": ["a"]}]
    assert _together(parts, {}, 3)["other_settings"] == [*"abcdefg"]


def test_records_of_other_settings_are_told_and_those_of_other_shards_are_not(file, tmp_path):
    out, notes = tmp_path / "r", []
    measure_errors(request(file, out, d=(6,)))
    for index in ("1/2", "2/2"):
        measure_errors(request(file, out, shard=index), notify=notes.append)
    [line] = {line for line in notes if "settings alone" in line}
    shown = open_run(out)
    other = sum(one["d"] == 6 for one in read_records(out))
    assert f"keeps {other} cells of others" in line and shown.left_out[0] == other
    assert {one["d"] for one in shown.everything} == {4, None}


def test_a_shard_without_a_group_is_fine(run, file):
    for index in ("1/3", "2/3", "3/3"):
        code, out, err = run("error", "--qkv", file, "--layer", "0", "--d", "4", "--out", "r", "--shard", index)
        assert code == 0, err
    assert [len(read_records(path)) > 0 for path in sorted(Path("r").glob("rows-*"))] == [True, False, False]
    assert open_run("r").notes == []


def test_a_shard_that_runs_already_is_refused(file, tmp_path):
    import fcntl

    out = tmp_path / "r"
    measure_errors(request(file, out, shard="1/2"))
    with open(out / ".lock-1-of-2") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another run is writing shard 1/2"):
            measure_errors(request(file, out, shard="1/2"))
        measure_errors(request(file, out, shard="2/2"))


def test_a_run_and_a_shard_exclude_each_other_while_they_run(file, tmp_path):
    inner = {}

    def start(kind, other):
        def progress(done, total, label):
            if kind not in inner:
                inner[kind] = None
                with pytest.raises(UsageError, match="another run is writing to this folder"):
                    measure_errors(other)
                inner[kind] = "refused"

        return progress

    one, part = request(file, tmp_path / "r"), request(file, tmp_path / "r", shard="1/2")
    measure_errors(part, progress=start("run", one))
    measure_errors(one, progress=start("shard", part))
    assert inner == {"run": "refused", "shard": "refused"}


def test_what_only_a_whole_run_gives_is_refused_of_a_shard(run, file):
    args = ["error", "--qkv", file, "--d", "4", "--shard", "1/2"]
    assert run(*args)[0] == 2 and "--out DIR" in run(*args)[2]
    for extra in (["--plot"], ["--fail-above", "output_spectral=1"], ["--junit", "x.xml"]):
        code, _, err = run(*args, "--out", "r", *extra)
        assert code == 2 and "exclude each other" in err and not Path("r").exists()


def test_a_sweeps_gates_and_figures_wait_for_the_whole_run_which_gathers_its_shards(run, file):
    Path("c.yaml").write_text(
        f"qkv: {file}\nd: 4\nlayer: 0,2\nplot: errors\ngates:\n  - {{metric: output_spectral, max: 0}}\n"
    )
    for index in ("1/2", "2/2"):
        code, _, err = run("sweep", "c.yaml", "--shard", index)
        assert code == 0 and "gates are not judged for a part" in err
    code, _, err = run("sweep", "c.yaml")  # the same folder, whatever the shard
    assert code == 1 and "gate failed" in err
    [folder] = Path("outputs").iterdir()
    assert (folder / "tables/error.csv").is_file() and list((folder / "figures").iterdir())
    assert (folder / "rows.jsonl").read_bytes() == b""  # nothing was measured again


def test_a_dry_run_tells_a_shards_part(run, file):
    Path("c.yaml").write_text(f"qkv: {file}\nd: 4\nlayer: 0,2\nwindows: 2\n")
    code, out, err = run("sweep", "c.yaml", "--dry-run", "--shard", "1/4")
    assert code == 0 and "shard 1/4: 3 of 12 cells" in out, out
