"""JUnit XML for CI: the test cases of gates and of comparisons."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ..errors import UsageError
from ..files import open_regular, writing
from ..frame.records.file import write_bytes
from ..grammar.foreign import one_line

HEAD = b"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"attnprobe\""  # the first bytes of a report


@dataclass(frozen=True)
class Case:
    """A test case.

    Attributes:
        subject: the metric, or what else the case is about. name: of the case among those of its subject.
        message: the reason why the case did not pass; empty if it passed. kind: of failure.
        skipped: whether a case that did not pass counts as skipped, not as failed.
        seconds: the time that the values of the case took, None if unknown.
    """

    subject: str
    name: str
    message: str = ""
    kind: str = ""
    skipped: bool = False
    seconds: float | None = None


def check_report(path: str) -> None:
    """Refuse to replace a file other than a report of `write_junit` or an empty one."""
    if not path.strip() or os.path.isdir(path):
        raise UsageError(f"--junit '{path}' is not a file name; write one such as gates.xml")
    if not os.path.lexists(path):
        return
    with writing(path):
        if os.path.islink(path):
            raise UsageError(f"--junit {path} is a symbolic link, which is not followed; choose another name")
        with open_regular(path, None) as file:
            start = file.read(len(HEAD))
        if start not in (b"", HEAD):
            raise UsageError(f"--junit {path} is not a report of test cases; choose a new name, or remove the file")


def write_junit(cases: Sequence[Case], suite: str, path: str | os.PathLike[str]) -> None:
    """Write a suite of test cases as JUnit XML: each passed, failed or was skipped.

    The file is valid against Jenkins' ``junit-10.xsd``. Times are in seconds, 0 if unknown; the time of the suite is
    their sum. No date is written, so that equal cases give equal bytes, apart from times.

    Raises:
        UsageError: a path that cannot be written.
    """
    skipped = sum(case.skipped for case in cases)
    failures = sum(bool(case.message) for case in cases) - skipped
    times = [ceil(1e3 * (case.seconds or 0.0)) / 1e3 for case in cases]  # milliseconds: the schema has no more
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0"}
    time = {"time": f"{sum(times):.3f}"}
    root = ET.Element("testsuites", {"name": "attnprobe", **counts, **time})
    of_suite = {"name": f"attnprobe {suite}", **counts, "skipped": str(skipped), **time}
    element = ET.SubElement(root, "testsuite", of_suite)
    for case, seconds in zip(cases, times, strict=True):
        name, message = one_line(case.name), one_line(case.message)
        names = {"classname": f"attnprobe.{one_line(case.subject)}", "name": name}
        test = ET.SubElement(element, "testcase", {**names, "time": f"{seconds:.3f}"})
        if case.skipped:
            ET.SubElement(test, "skipped", {"message": message})
        elif message:
            ET.SubElement(test, "failure", {"message": message, "type": case.kind}).text = f"{name}: {message}"
    ET.indent(root)
    write_bytes(path, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
