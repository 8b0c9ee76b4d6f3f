"""Folders of records, and the page that `attnprobe report` makes of them."""

from __future__ import annotations

import json

import pytest
from error_records import a_run

from attnprobe.cli import main
from attnprobe.records.file import strict_json

EVIL = "<script>document.title='owned'</script>\"'><img src=x onerror=alert(1)>--></style>"


def records(**changes):
    actual = []
    for number, one in enumerate(a_run(budgets=(16, 32), lengths=(64,), layers=(0, 2), windows=2, heads=6)):
        one = {"schema": 1, "key": f"k{number}", "command": "error", "seed": 0, **one}
        actual.append({**one, "source": {"weights": "pretrained", "model": "m", "fallback": []}, **changes})
    return actual


def a_folder(path, some, manifest=None):
    path.mkdir(parents=True)
    (path / "records.jsonl").write_text("".join(strict_json(one) + "\n" for one in some))
    if manifest is not None:
        (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def page_of(folder, *args):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(folder), "--debug", *args])
    assert not stop.value.code
    return (folder / "report.html").read_text(encoding="utf-8")
