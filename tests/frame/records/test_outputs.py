"""A run writes files of known names below its own folder, and removes none."""

import json
import shutil

import pytest
from folders import snapshot
from paths import GOLDEN

from attnprobe.cli import main
from attnprobe.errors import UsageError
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.outputs import refuse_foreign, write_output
from attnprobe.frame.records.read import read_records

RUN = GOLDEN / "runs/error"
QKV = GOLDEN / "inputs/qkv.safetensors"


@pytest.fixture
def run(tmp_path):
    """A copy of a small run, in a folder whose other contents must stay as they are."""
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "beside.txt").write_text("mine")
    return tmp_path / "run"


def emptied(run):
    for path in sorted(run.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def only(name, text):
    def make(run):
        emptied(run)
        (run / name).write_text(text)

    return make


def without(name):
    def make(run):
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest[name]
        (run / "manifest.json").write_text(json.dumps(manifest))

    return make


FOREIGN = {
    "notes alone": only("notes.md", "mine"),
    "records without a manifest": lambda run: (run / "manifest.json").unlink(),
    "the manifest of another program": only("manifest.json", '{"name": "my app", "version": 3}'),
    "a manifest of no command": without("command"),
    "a manifest that is no JSON": lambda run: (run / "manifest.json").write_text("notes"),
    "a manifest that is a folder": lambda run: (run / "manifest.json").unlink() or (run / "manifest.json").mkdir(),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_folder_without_a_run_is_refused_before_anything_is_written(case, run, capfd):
    FOREIGN[case](run)
    before = snapshot(run.parent)
    with pytest.raises(UsageError, match="holds files but no run: choose a new or empty folder"):
        refuse_foreign(run)
    assert command(run.parent) == 2 and len(capfd.readouterr().err.strip().splitlines()) == 1
    assert snapshot(run.parent) == before


OURS = {
    "a run": lambda run: None,
    "an empty folder": emptied,
    "what a kill leaves before the manifest": lambda run: (
        emptied(run) or [(run / name).touch() for name in (".0a1b2c3d.probe", ".manifest.json.0a1b2c3d.tmp")]
    ),
    "another shard's lock": lambda run: emptied(run) or (run / ".lock-1-of-2").touch(),
    "a shard": lambda run: (run / "manifest.json").rename(run / "manifest-1-of-2.json"),
    "a torn last line": lambda run: (run / "rows.jsonl").open("a").write('{"key":'),
    "no records yet": lambda run: (run / "rows.jsonl").write_text(""),
    "a user's notes": lambda run: (run / "notes.md").write_text("mine"),
}


@pytest.mark.parametrize("case", OURS)
def test_a_folder_that_is_ours_is_gone_on_with(case, run):
    OURS[case](run)
    before = snapshot(run)
    refuse_foreign(run)
    assert snapshot(run) == before


@pytest.mark.parametrize("text", ["my own notes", "a\nb", '{"a":1}\n', "[1,2]\n", '{"schema":1}\n', "\n\nnotes"])
def test_a_writer_leaves_a_file_of_something_else(text, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not one of attnprobe"), RecordWriter(path):
        pass
    assert path.read_text() == text


def test_a_writer_does_not_follow_a_link(tmp_path):
    (tmp_path / "notes").write_text("")
    (tmp_path / "rows.jsonl").symlink_to("notes")
    with pytest.raises(UsageError, match=r"rows\.jsonl"), RecordWriter(tmp_path / "rows.jsonl") as writer:
        writer.append({"key": "a"})
    assert (tmp_path / "notes").read_text() == ""


def test_what_is_written_takes_the_place_of_the_earlier(tmp_path):
    write_output(tmp_path, "figures/error-x.svg", b"1")
    write_output(tmp_path, "figures/error-x.svg", b"2")
    assert (tmp_path / "figures/error-x.svg").read_bytes() == b"2"
    assert snapshot(tmp_path).keys() == {"figures", "figures/error-x.svg"}


@pytest.mark.parametrize("name", ["../beside.txt", "figures/../../beside.txt", "rows.jsonl", "notes.md", "figures/.."])
def test_another_name_is_never_written(name, run):
    before = snapshot(run.parent)
    with pytest.raises(ValueError, match="not a name of"):
        write_output(run, name, "ours")
    assert snapshot(run.parent) == before


def test_nothing_is_written_through_a_link(run):
    outside = run.parent / "outside"
    outside.mkdir()
    (outside / "error.md").write_text("mine")
    (run / "tables").mkdir()
    (run / "tables/error.md").symlink_to(outside / "error.md")
    (run / "figures").symlink_to(outside)
    assert write_output(run, "tables/error.md", "ours").read_text() == "ours"  # the link is replaced
    with pytest.raises(UsageError, match="figures is a link to"):
        write_output(run, "figures/error-x.svg", "ours")
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"error.md": "mine"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A finished run with figures."""
    place = tmp_path_factory.mktemp("measured")
    assert command(place, "--plot", "errors") == 0
    return place


def command(place, *more):
    """The exit code of a small run of ``attnprobe error`` into ``run`` below ``place``, or of another command."""
    arguments = ["error", "--qkv", str(QKV), "--method", "linformer", "--d", "4", "--out", str(place / "run"), *more]
    arguments = arguments if not more or more[0].startswith("-") else [str(one) for one in more]
    try:
        main(arguments)
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.fixture
def place(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "place")
    (tmp_path / "place/beside.txt").write_text("mine")
    return tmp_path / "place"


@pytest.mark.parametrize("how", ["resumed", "report"])
def test_a_users_files_survive_a_run_that_goes_on_and_its_report(how, place):
    names = ("figures/error-annotated.svg", "tables/error-notes.md", "error-notes.md", "maps/mine.npy")
    for name in names:
        path = place / "run" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    before = snapshot(place)
    if how == "report":
        assert command(place, "report", place / "run", "--plot", "none") == 0
        assert command(place, "report", place / "run", "--plot", "errors") == 0
    else:
        assert command(place, "--layer", "2") == 0
    after = snapshot(place)
    assert all((place / "run" / name).read_text() == "mine" for name in names)
    assert before.keys() <= after.keys()
    assert {name for name in after if after[name] != before.get(name) and not name.startswith("run")} == set()


def test_a_folder_that_is_a_link_is_written_to(place):
    (place / "run").rename(place / "elsewhere")
    (place / "run").symlink_to("elsewhere")
    assert command(place, "--layer", "2") == 0
    assert {record["layer"] for record in read_records(place / "elsewhere")} == {0, 2}
