"""Folders of records, and the page that `attnprobe report` makes of them."""

import functools
import json

import pytest
from error_records import a_run
from error_rows import as_rows

from attnprobe.cli import main
from attnprobe.frame.records.file import strict_json
from attnprobe.frame.rows import lines_of
from attnprobe.show.page import open_run, views

EVIL = "<script>document.title='owned'</script>\"'><img src=x onerror=alert(1)>--></style>"


@functools.cache
def shown(folder):
    """The view of a run; its tables are filled once for all tests."""
    [one] = views(open_run(folder))
    return one


def records(**changes):
    actual = []
    for number, one in enumerate(a_run(budgets=(16, 32), lengths=(64,), layers=(0, 2), windows=2, heads=8)):
        one = {"schema": 1, "key": f"k{number}", "command": "error", "seed": 0, **one}
        actual.append({**one, "source": {"weights": "pretrained", "model": "m", "fallback": []}, **changes})
    return actual


def a_folder(path, some, manifest=None):
    path.mkdir(parents=True)
    (path / "rows.jsonl").write_text(
        "".join(strict_json(line) + "\n" for cell in as_rows(some) for line in lines_of(cell))
    )
    if manifest is not None:
        (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def an_evil_folder(place):
    """A run whose every word is `EVIL`: options, labels, reasons, and what its manifest says."""
    source = {"weights": EVIL, "model": EVIL, "fallback": [EVIL], "text": EVIL, EVIL: EVIL}
    some = records(source=source, options={"sampler": EVIL}, target=EVIL)
    failed = {"method": EVIL, "status": "failed", "reason": EVIL, "family": EVIL}
    some += [{**one, "key": f"x{one['key']}", **failed} for one in some if one["method"] == "skyformer"]
    some += [{**one, "key": f"y{one['key']}", "source": {**source, "weights": "other"}} for one in some]
    manifest = dict.fromkeys(("status", "start", "end", "git_commit"), EVIL)
    manifest |= {"arguments": [EVIL], "versions": {EVIL: EVIL}, "described": [[EVIL]], "source": source}
    manifest["config"] = {EVIL: {"value": EVIL, "origin": EVIL}}
    return a_folder(place / "r <script>", some, manifest)


def page_of(folder, *args):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(folder), "--debug", *args])
    assert not stop.value.code
    return (folder / "report.html").read_text(encoding="utf-8")
