"""A run writes to its own folder and nowhere else, and leaves in it what is not its own."""

import json
import os
import shutil

import pytest
from folders import snapshot
from paths import GOLDEN

from attnprobe.cli import main
from attnprobe.errors import UsageError
from attnprobe.records.append import RecordWriter
from attnprobe.records.ownership import produced, refuse_foreign, remove_output, write_output
from attnprobe.records.read import read_records

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


def replace_manifest(text):
    return lambda run: (run / "manifest.json").write_text(text)


def link(name, directory=False):
    """Put what stands at ``name`` outside of the run, and a link to it in its place."""

    def make(run):
        outside = run.parent / "outside"
        if (run / name).exists():
            (run / name).rename(outside)
        elif directory:
            outside.mkdir()
        else:
            outside.write_text("")
        (run / name).symlink_to(outside)

    return make


def only(name, text):
    def make(run):
        emptied(run)
        (run / name).write_text(text)

    return make


FOREIGN = {
    "notes alone": only("notes.txt", "mine"),
    "notes as records": only("records.jsonl", "my own notes"),
    "records without a manifest": lambda run: (run / "manifest.json").unlink(),
    "a manifest of something else": replace_manifest('{"name": "app", "start_url": "/", "icons": []}'),
    "a manifest that is no JSON": replace_manifest("{"),
    "a manifest that is a list": replace_manifest("[]"),
    "a manifest with another schema": replace_manifest('{"schema": true, "command": "error", "start": "", "plan": {}}'),
    "a manifest whose command is no name": replace_manifest(
        '{"schema": 1, "command": 5, "start": "", "config": {}, "plan": {}}'
    ),
    "notes for records, in a run": lambda run: (run / "records.jsonl").write_text("my own notes"),
    "a first line of something else": lambda run: (run / "records.jsonl").write_text('{"a":1}\n{"torn'),
    "notes for a shard's records": lambda run: (run / "records-1-of-2.jsonl").write_text("- [ ] buy milk"),
    "notes for inputs": lambda run: (run / "inputs.jsonl").write_text("[1]\n"),
    "linked records": link("records.jsonl"),
    "linked records of a shard": link("records-1-of-2.jsonl"),
    "a linked manifest": link("manifest.json"),
    "linked inputs": link("inputs.jsonl"),
    "linked figures": link("figures", directory=True),
    "linked tables": link("tables", directory=True),
    "linked maps": link("maps"),
    "a link to nothing": lambda run: (run / "figures").symlink_to(run.parent / "nothing"),
    "a named pipe for records": lambda run: (run / "records.jsonl").unlink() or os.mkfifo(run / "records.jsonl"),
    "a folder for records": lambda run: (run / "records.jsonl").unlink() or (run / "records.jsonl").mkdir(),
    "a file for figures": lambda run: (run / "figures").write_text(""),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_folder_that_is_not_ours_is_refused_in_one_line(case, run):
    FOREIGN[case](run)
    before = {} if "pipe" in case else snapshot(run.parent)
    with pytest.raises(UsageError) as caught:
        refuse_foreign(run)
    assert "\n" not in str(caught.value)
    assert str(run) in str(caught.value)
    assert before == ({} if "pipe" in case else snapshot(run.parent))


OURS = {
    "a run": lambda run: None,
    "an empty folder": emptied,
    "what a kill leaves before the manifest": lambda run: (
        emptied(run) or [(run / name).touch() for name in (".0a1b2c3d.probe", ".manifest.json.0a1b2c3d.tmp")]
    ),
    "another shard's lock": lambda run: emptied(run) or (run / ".lock-1-of-2").touch(),
    "a shard": lambda run: (run / "manifest.json").rename(run / "manifest-1-of-2.json"),
    "a torn last line": lambda run: (run / "records.jsonl").open("a").write('{"key":'),
    "no records yet": lambda run: (run / "records.jsonl").write_text(""),
    "a torn first line": lambda run: (run / "records.jsonl").write_text('{"batch":'),
    "a user's lines of JSON": lambda run: (run / "mine.jsonl").write_text("[1]"),
    "a user's notes": lambda run: (run / "notes.md").write_text("mine"),
    "a user's link to elsewhere": lambda run: (run / "paper").symlink_to("/"),
}


@pytest.mark.parametrize("case", OURS)
def test_a_folder_that_is_ours_is_gone_on_with(case, run):
    OURS[case](run)
    before = snapshot(run)
    refuse_foreign(run)
    assert snapshot(run) == before


def test_a_link_to_the_folder_itself_is_followed(run):
    link = run.parent / "link"
    link.symlink_to(run)
    refuse_foreign(link)
    assert write_output(link, "tables/error.md", "new") and (run / "tables/error.md").read_text() == "new"
    (run / "manifest.json").write_text("notes")
    with pytest.raises(UsageError, match="not the manifest of a run"):
        refuse_foreign(link)


@pytest.mark.parametrize("text", ["my own notes", "a\nb", '{"a":1}\n', "[1,2]\n", '{"schema":1}\n', "\n\nnotes"])
def test_a_writer_leaves_a_file_of_something_else(text, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a record"), RecordWriter(path):
        pass
    assert path.read_text() == text


def test_a_writer_does_not_follow_a_link(tmp_path):
    (tmp_path / "notes").write_text("")
    (tmp_path / "records.jsonl").symlink_to("notes")
    with pytest.raises(UsageError, match=r"records\.jsonl"), RecordWriter(tmp_path / "records.jsonl") as writer:
        writer.append({"key": "a"})
    assert (tmp_path / "notes").read_text() == ""


def test_what_is_written_is_listed_and_replaced_and_removed(tmp_path):
    write_output(tmp_path, "figures/error-x.svg", b"1")
    write_output(tmp_path, "figures/error-x.svg", b"2")
    assert produced(tmp_path) == ["figures/error-x.svg"]
    assert (tmp_path / "figures/error-x.svg").read_bytes() == b"2"
    assert remove_output(tmp_path, "figures/error-x.svg")
    assert produced(tmp_path) == [] and snapshot(tmp_path).keys() == {"figures", "produced.json"}


def test_a_users_file_is_neither_replaced_nor_removed(run):
    write_output(run, "tables/error.md", "ours")
    (run / "tables/error.tex").write_text("mine")
    (run / "figures").mkdir()
    (run / "figures/error-annotated.svg").write_text("mine")
    before = snapshot(run.parent)
    with pytest.raises(UsageError, match=r"tables/error\.tex is not a file that attnprobe wrote"):
        write_output(run, "tables/error.tex", "ours")
    assert not remove_output(run, "figures/error-annotated.svg")
    assert snapshot(run.parent) == before


def test_what_an_older_version_wrote_is_replaced_and_not_removed(run):
    """Such a run has no list: what stands there may be its own or the user's."""
    for name in ("tables/error.md", "tables/error.tex", "figures/error-annotated.svg"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("older")
    write_output(run, "tables/error.md", "new")
    write_output(run, "tables/error.tex", "new")
    assert not remove_output(run, "figures/error-annotated.svg")
    assert remove_output(run, "tables/error.md")
    assert "figures/error-annotated.svg" in produced(run)


@pytest.mark.parametrize("name", ["tables", "tables/error.md", "produced.json"])
def test_a_link_in_the_place_of_an_output_is_not_followed(name, run):
    write_output(run, "tables/error.md", "ours")
    link(name)(run)
    before = snapshot(run.parent)
    with pytest.raises(UsageError, match="symbolic link"):
        write_output(run, "tables/error.md", "new")
    assert not remove_output(run, "tables/error.md")
    assert snapshot(run.parent) == before


def listing(*names):
    return json.dumps({"schema": 1, "files": list(names), "older": []})


FOREIGN_LISTS = {
    "above the folder": listing("../beside.txt"),
    "above the folder, by a folder of ours": listing("figures/error-x/../../../beside.txt"),
    "above the folder, as a figure": listing("figures/error-../../../beside.svg"),
    "a folder of ours and dots": listing("figures/.."),
    "backslashes": listing("..\\beside.txt"),
    "an empty name": listing(""),
    "records": listing("records.jsonl"),
    "a manifest": listing("manifest.json"),
    "a name of the user's": listing("notes.md"),
    "one of ours and one that is not": listing("tables/error.md", "../beside.txt"),
    "a line break": listing("figures/error-a\n.svg"),
    "no name": listing(5),
    "an older file above the folder": json.dumps({"schema": 1, "files": [], "older": ["../beside.txt"]}),
    "another schema": json.dumps({"schema": 2, "files": [], "older": []}),
    "a name in place of a list": json.dumps({"schema": 1, "files": "report.html", "older": []}),
    "no lists": '{"files": 3}',
    "a list": "[]",
    "no JSON": "{",
    "nothing": "",
}


@pytest.mark.parametrize("case", FOREIGN_LISTS)
def test_a_foreign_list_is_refused_and_nothing_changes(case, run):
    (run / "produced.json").write_text(FOREIGN_LISTS[case])
    before = snapshot(run.parent)
    tries = [refuse_foreign, produced, lambda run: write_output(run, "report.html", "ours")]
    for attempt in tries:
        with pytest.raises(UsageError, match=r"produced\.json: not a list of attnprobe's files; delete it") as caught:
            attempt(run)
        assert "\n" not in str(caught.value)
    assert not remove_output(run, "tables/error.md")
    assert snapshot(run.parent) == before


def test_a_list_of_anything_else_than_our_names_cannot_be_made(run):
    with pytest.raises(ValueError, match="not a name of"):
        write_output(run, "../beside.txt", "ours")
    assert (run.parent / "beside.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A finished run with figures, beside a user's own files."""
    place = tmp_path_factory.mktemp("measured")
    assert command(place, "--plot") == 0
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


@pytest.mark.parametrize("name", ["figures", "tables"])
@pytest.mark.parametrize("how", ["resumed", "report"])
def test_a_users_files_survive_a_run_that_goes_on_and_its_report(name, how, place):
    mine = [place / "run" / name / "error-annotated.svg", place / "run/error-notes.md", place / "run/maps/mine.npy"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    before = snapshot(place)
    if how == "report":
        assert command(place, "report", place / "run", "--plot", "none") == 0
        assert command(place, "report", place / "run") == 0
    else:
        assert command(place, "--layer", "2") == 0
    after = snapshot(place)
    assert all(path.read_text() == "mine" for path in mine)
    assert {
        name for name in after | before if after.get(name) != before.get(name) and not name.startswith("run")
    } == set()


def test_pictures_of_an_earlier_run_go_and_a_users_do_not(place):
    mine = place / "run/figures/error-annotated.svg"
    mine.write_text("mine")
    drawn = place / "run/figures/error-output_spectral_relative.svg"
    write_output(place / "run", "figures/error-stale.svg", "<svg/>")
    assert drawn.is_file()
    assert command(place, "report", place / "run") == 0
    assert mine.read_text() == "mine" and drawn.is_file()
    assert not (place / "run/figures/error-stale.svg").exists()


@pytest.fixture
def victims(place):
    """The user's files that a foreign list names, by that name."""
    names = {
        "../../victim.txt": place.parent / "victim.txt",
        str(place.parent / "victim.svg"): place.parent / "victim.svg",
        "figures/error-output_spectral_relative-x/../../../victim.svg": place / "victim.svg",
        "tables/../../beside.txt": place / "beside.txt",
        "inner/mine.svg": place / "run/inner/mine.svg",
    }
    (place / "run/figures/error-output_spectral_relative-x").mkdir()
    (place / "run/inner").mkdir()
    for path in names.values():
        path.write_text("mine")
    return names


@pytest.mark.parametrize("how", ["report", "a report elsewhere", "resumed"])
def test_a_foreign_list_costs_the_user_nothing(how, place, victims, capfd):
    asked = {
        "report": ("report", place / "run"),
        "a report elsewhere": ("report", place / "other", "--out", place / "run"),
        "resumed": ("--layer", "2", "--plot"),
    }[how]
    if how == "a report elsewhere":
        shutil.copytree(place / "run", place / "other")
    for name in victims:
        (place / "run/produced.json").write_text(listing("tables/error.md", name))
        before = snapshot(place.parent)
        capfd.readouterr()
        assert command(place, *asked) == 2, name
        assert snapshot(place.parent) == before, name
        (line,) = [line for line in capfd.readouterr().err.splitlines() if "produced.json" in line]
        assert "not a list of attnprobe's files" in line


def test_a_page_leaves_a_neighbour_with_a_foreign_list(place, victims, capfd):
    assert command(place, "report", place / "run", "--out", place / "pages", "--plot", "none") == 0
    neighbour = place / "pages/neighbour"
    (neighbour / "figures/error-output_spectral_relative-x").mkdir(parents=True)
    for name in victims:
        (neighbour / "produced.json").write_text(listing(name))
        before = snapshot(place.parent)
        capfd.readouterr()
        assert command(place, "report", place / "run", "--out", place / "pages", "--plot", "none") == 0
        assert snapshot(place.parent) == before, name
        assert capfd.readouterr().err.count("the folder is left as it is") == 1
    (neighbour / "produced.json").write_text(listing("figures/error-x.svg"))  # one that is of ours goes
    assert command(place, "report", place / "run", "--out", place / "pages", "--plot", "none") == 0
    assert not (neighbour / "produced.json").exists()


@pytest.mark.parametrize("name", ["records.jsonl", "figures", "tables"])
def test_a_link_in_a_run_is_refused_before_anything_is_written(name, place, capfd):
    link(name)(place / "run")
    before = snapshot(place)
    assert command(place, "--plot", "--force") == 2
    assert snapshot(place) == before
    error = capfd.readouterr().err.strip()
    assert "symbolic link" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("shard", [(), ("--shard", "1/2")])
@pytest.mark.parametrize("case", ["notes as records", "notes alone", "notes for a shard's records"])
def test_a_foreign_folder_is_refused_before_anything_is_written(case, shard, place, capfd):
    FOREIGN[case](place / "run") if "shard" in case else emptied(place / "run") or FOREIGN[case](place / "run")
    before = snapshot(place)
    assert command(place, *shard) == 2
    assert snapshot(place) == before
    assert len(capfd.readouterr().err.strip().splitlines()) == 1


def test_a_report_elsewhere_leaves_what_is_there(place):
    (place / "paper/tables").mkdir(parents=True)
    (place / "paper/tables/error.md").write_text("mine")
    before = snapshot(place)
    assert command(place, "report", place / "run", "--out", place / "paper") == 2
    assert snapshot(place) == before
    (place / "paper/tables/error.md").unlink()
    (place / "paper/report.tex").write_text("mine")
    assert command(place, "report", place / "run", "--out", place / "paper") == 0
    assert command(place, "report", place / "run", "--out", place / "paper") == 0
    assert (place / "paper/report.tex").read_text() == "mine"


def test_a_folder_that_is_a_link_is_written_to(place):
    (place / "run").rename(place / "elsewhere")
    (place / "run").symlink_to("elsewhere")
    assert command(place, "--layer", "2") == 0
    assert {record["layer"] for record in read_records(place / "elsewhere")} == {0, 2}
