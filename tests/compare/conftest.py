"""Runs of records as folders, and the command line."""

from __future__ import annotations

import pytest

from attnprobe.records.append import RecordWriter


@pytest.fixture
def command(request):
    """The fixture of the command line, whose name a function has here."""
    return request.getfixturevalue("run")


@pytest.fixture
def write(tmp_path):
    def write_(name, records):
        with RecordWriter(tmp_path / name / "records.jsonl") as writer:
            for index, record in enumerate(records):
                writer.append({**record, "key": f"{name}{index}"})
        return name

    return write_
