"""Hostile files of Q, K, V and of sets of keys: numbers of an independent reading, or a refusal of one line."""

from pathlib import Path

import pytest
import torch
from hostile_tensors import Case, Refused, cases, reading

from attnprobe import approximate
from attnprobe.cli import main
from attnprobe.errors import AttnprobeError
from attnprobe.frame.records.file import decode_inf
from attnprobe.frame.records.read import read_records
from attnprobe.inputs import SourceSpec, resolve
from attnprobe.reference import exact_output


def written(case: Case, folder: Path) -> tuple[str, str]:
    """The names of the files of a case."""
    qkv, sets = folder / "qkv.safetensors", folder / "sets.safetensors"
    qkv.write_bytes(case.qkv)
    sets.write_bytes(case.sets or b"")
    return str(qkv), str(sets)


def fault(case: Case, actual: dict[int, float] | None) -> str | None:
    """What is wrong with the errors of a case's heads, or with a refusal, None; None if nothing is."""
    try:
        wanted = reading(case)
    except Refused:
        wanted = None
    where = f"case {case.number}, {', '.join(case.changes)}: "
    if (actual is None) != (wanted is None):
        return where + ("a good file is refused" if actual is None else "a file that is not allowed has numbers")
    if actual is None or wanted is None:
        return None
    if list(actual) != list(wanted):
        return where + f"heads {list(actual)}, not {list(wanted)}"
    wrong = [head for head, (error, size) in wanted.items() if not abs(actual[head] - error) <= 1e-9 * (1 + size)]
    return where + f"head {wrong[0]}: {actual[wrong[0]]}, not {wanted[wrong[0]][0]}" if wrong else None


def by_library(case: Case, folder: Path) -> dict[int, float] | None:
    """The error of each head; None if the case is refused by a line of one of the package's errors."""
    qkv_file, sets_file = written(case, folder)
    try:
        source = resolve(SourceSpec(qkv=qkv_file, queries=case.queries, dtype="float64", device="cpu"))
        qkv = source.qkv(source.default_n if case.n is None else case.n, [0], 0)[0]
        qkv = qkv if case.head is None else qkv.select([case.head])
        options = {} if case.sets is None else {"lookahead": "allow" if case.lookahead else "refuse"}
        output = approximate("vmean" if case.sets is None else f"selection:{sets_file}", qkv, **options).output
    except AttnprobeError as error:
        assert error.exit_code in (2, 3) and "\n" not in str(error) and len(str(error)) < 1000, str(error)
        return None
    errors = torch.linalg.matrix_norm(output - exact_output(qkv))
    return dict(zip(qkv.heads, errors.tolist(), strict=True))


def test_a_few_files_have_the_numbers_of_an_independent_reading_or_are_refused(tmp_path):
    few = list(cases(80, seed=1))
    actual = [by_library(case, tmp_path) for case in few]
    assert [one for case, errors in zip(few, actual, strict=True) if (one := fault(case, errors))] == []
    assert 20 < sum(errors is not None for errors in actual) < 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_files_have_these_numbers_in_records_that_report_reads(seed, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    faults = []
    for case in cases(200, seed=seed):
        names, out = written(case, tmp_path), f"run-{case.number}"
        code, line = called(case.arguments(*names, out), capfd)
        actual = None if code in (2, 3) else errors_of(case, tmp_path / out / "rows.jsonl")
        if code not in (0, 2, 3) or (code and not line.startswith("attnprobe: ")):
            faults.append(f"case {case.number}, {', '.join(case.changes)}: code {code}, {line}")
        elif (one := fault(case, actual)) is not None:
            faults.append(one)
        elif code == 0 and called(["report", out], capfd)[0] != 0:
            faults.append(f"case {case.number}: report refuses the records")
    assert faults == []


def called(args: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command, and its last line on stderr."""
    with pytest.raises(SystemExit) as stop:
        main(args)
    return int(stop.value.code or 0), (capfd.readouterr().err.strip().splitlines() or [""])[-1]


def errors_of(case: Case, records: Path) -> dict[int, float]:
    """The error of each head in the record of the method that is asked for."""
    method = "vmean" if case.sets is None else "selection:sets.safetensors"
    [record] = [one for one in read_records(records) if one["method"] == method]
    return {row["head"]: decode_inf(row["output_frobenius"]) for row in record["rows"]}
