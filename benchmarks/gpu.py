"""What attnprobe costs on one GPU, beside its peers and beside what the device could do; within eight minutes.

    python benchmarks/gpu.py [--seconds 450] [--only reference,pass] [--out benchmarks/RESULTS-gpu.md]
    python benchmarks/gpu.py --device cpu --small        # the same rows of small matrices, in a minute

Where attnprobe is not installed, PYTHONPATH=. in a clone does; records and their packages are not imported.

Q, K and V are independent N(0, 1) numbers: nothing is fetched. Each section has a share of the time, which passes to
the next one where it is not used, and its most telling rows come first. A row that runs out of memory, raises, or would
take too long by the time of a smaller n says so instead of a time. The page and a JSON file beside it are written as
rows come. A time is the median of 3 calls after one that does not count, or one call above 2 s; memory is the peak that
torch's allocator gave out beyond what was held before.

The floor of a row is the FLOPs of the products that cannot be avoided, over the rate of a plain product of large
matrices in the same precision on the same device. Exponentials are in no floor, and decompositions have none.

Goals on a GPU: exact B V in float64 of one head with p = 128 in 0.4 s at n = 131,072 and 20 s at n = 1,048,576; an EᵀE
pass in 2.5 forwards of the same precision; 64 sampled rows equal to a CPU's float64 to 1e-12. Exits 1 where one is
missed. On a CPU only the last of them is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from gpu_sections import DIFFERENCE, SECTIONS, Sizes, in_forwards
from guarded import NO_TIME, Measure, Row, mark, read_rows, run_sections
from measuring import Goal, arguments, finish

from attnprobe.run.provenance import git_commit, machine, versions

HERE = Path(__file__).resolve().parent
SHARES = {  # of the time; peaks come first, since floors are made of them
    "peaks": 4,
    "reference": 30,
    "pass": 12,
    "norms": 14,
    "spectra": 8,
    "methods": 9,
    "decoding": 9,
    "table 1": 4,
    "figure 1": 4,
}
LEAST = 0.8  # of its share that a section has, however late it begins
REFERENCE_GOALS = {131072: 0.4, 1048576: 20.0}
PASS_N, FORWARDS_GOAL, SAME = 131072, 2.5, 1e-12
QUERIED = (
    *("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem"),
    *("power.limit", "temperature.gpu", "memory.total"),
)


def ends(names: Sequence[str], seconds: float) -> dict[str, float]:
    """Seconds from the beginning at which each section ends.

    >>> ends(["reference", "spectra"], 38.0)
    {'reference': 30.0, 'spectra': 38.0}
    """
    total, before, found = sum(SHARES[name] for name in names), 0.0, {}
    for name in names:
        before += seconds * SHARES[name] / total
        found[name] = before
    return found


def measure_sections(args: argparse.Namespace) -> int:
    """The process that measures: the rows of ``args.sections`` into the file ``args.rows``."""
    measure, until = Measure(torch.device(args.device), args.rows), ends(args.only, args.seconds)
    sizes = Sizes.small() if args.small else Sizes()
    whole = sum(SHARES[name] for name in args.only)
    for name in args.sections.split(","):
        least = LEAST * args.seconds * SHARES[name] / whole
        deadline = max(args.since + until[name], monotonic() + least)
        mark(args.rows, name, deadline)
        measure.begin(name, deadline)
        SECTIONS[name](measure, sizes)
    return 0


def conditions(device: str) -> dict[str, Any]:
    """Device, clocks, driver and versions."""
    found = {**machine(device), **versions(), "CUDA of torch": torch.version.cuda or "none"}
    found["commit"] = git_commit() or "unknown"
    with suppress(PackageNotFoundError):
        found["pykeops"] = version("pykeops")
    if device.startswith("cuda"):
        with suppress(OSError, subprocess.SubprocessError):
            command = ["nvidia-smi", f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader"]
            printed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
            found |= dict(zip(QUERIED, map(str.strip, printed.splitlines()[0].split(",")), strict=True))
    return found


def goals(rows: Sequence[Row], device: str) -> list[Goal]:
    """The rows that have goals; on a GPU one that was not measured is missed."""
    same = [
        Goal(f"difference of float64 rows, n={row.n}, {row.heads} heads", row.facts[DIFFERENCE], SAME, False)
        for row in rows
        if row.dtype == "float64" and DIFFERENCE in row.facts
    ]
    if not device.startswith("cuda"):
        return same
    places = {(row.name, row.dtype, row.n): row for row in rows if row.heads == 1 and row.p == 128}
    times, forwards = [], []
    for n, goal in REFERENCE_GOALS.items():
        row = places.get(("attnprobe", "float64", n))
        times.append(Goal(f"seconds of B V in float64, n={n}", number(row and row.seconds), goal, False))
    for dtype in ("float32", "float64"):
        row = places.get(("EᵀE pass", dtype, PASS_N))
        found = number(row and in_forwards(row))
        forwards.append(Goal(f"forwards of an EᵀE pass in {dtype}, n={PASS_N}", found, FORWARDS_GOAL, False))
    return [*times, *forwards, *same]


def number(value: float | None) -> float:
    return float("nan") if value is None else value


def page(facts: Mapping[str, Any], rows: Sequence[Row], broken: Mapping[str, str], found: Sequence[Goal]) -> str:
    """RESULTS-gpu.md."""
    lines = ["# What one GPU takes", ""]
    lines += ["`python benchmarks/gpu.py` writes this page; its docstring says what the columns are.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "## Goals", "", "| what | found | goal | |", "| --- | ---: | ---: | --- |"]
    for one in found:
        lines.append(f"| {one.name} | {one.value:.3g} | ≤ {one.goal:g} | {'missed' if one.missed else 'met'} |")
    for section in SHARES:
        every = [row for row in rows if row.section == section]
        some = [row for row in every if not (row.absent or "").endswith(NO_TIME)]
        if every or section in broken:
            lines += ["", f"## {section[0].upper()}{section[1:]}", ""]
        if section in broken:
            lines += [f"The section broke: {broken[section]}.", ""]
        if some:
            lines.append("| what | n | heads | p | dtype | seconds | ± | MiB | floor, s | over floor | |")
            lines.append("| --- |" + " ---: |" * 9 + " --- |")
        lines += [table_line(row) for row in some]
        if late := len(every) - len(some):
            lines += ["", f"{late} more rows did not fit the section's time."]
    return "\n".join(lines) + "\n"


def table_line(row: Row) -> str:
    numbers = [row.seconds, row.spread or None, row.mib, row.floor, row.over_floor]
    cells = [row.name, f"{row.n:,}", str(row.heads), str(row.p), row.dtype, *map(digits, numbers)]
    beside = ", ".join(f"{name} {digits(value)}" for name, value in ratios(row).items())
    return "| " + " | ".join([*cells, row.absent or beside]) + " |"


def digits(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def ratios(row: Row) -> dict[str, float]:
    """The facts of a row; where one is the time of another row, the ratio to it."""
    if (forwards := in_forwards(row)) is not None:
        return {"forwards": forwards}
    return {
        name: row.seconds / value if row.seconds and name.startswith("over ") else value
        for name, value in row.facts.items()
    }


def supervise(args: argparse.Namespace) -> int:
    """Run the sections in another process, and write what it measures as it comes."""
    out = args.out or (HERE / "RESULTS-gpu.md" if args.device.startswith("cuda") else None)
    facts = conditions(args.device)

    def write(rows: Sequence[Row], broken: Mapping[str, str]) -> None:
        if out is None:
            return
        out.write_text(page(facts, rows, broken, goals(rows, args.device)), encoding="utf-8")
        every = {"conditions": facts, "broken": dict(broken), "rows": [asdict(row) for row in rows]}
        out.with_suffix(".json").write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    own = ["--device", args.device, "--seconds", str(args.seconds), "--only", ",".join(args.only)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        command = [str(Path(__file__)), *own, *(["--small"] if args.small else [])]
        broken = run_sections(command, args.only, path, lambda rows: write(rows, {}))
        rows = read_rows(path)
    write(rows, broken)
    for section, why in broken.items():
        print(f"{section}: {why}")
    missed = finish(goals(rows, args.device), args.json)
    return max(missed, int(bool(broken)))


def sections_named(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in SHARES]:
        raise argparse.ArgumentTypeError(f"no section {', '.join(unknown)}; choose from {', '.join(SHARES)}")
    return [name for name in SHARES if name in names]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small matrices")
    parser.add_argument("--seconds", type=float, help="for all sections: 450, or 120 with --small")
    parser.add_argument("--only", type=sections_named, default=list(SHARES), help="sections, separated by commas")
    parser.add_argument("--out", type=Path, help="the page; RESULTS-gpu.md beside this script on a GPU, else none")
    parser.add_argument("--sections", help=argparse.SUPPRESS)  # of the process that measures, as the next two
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.seconds = args.seconds or (120.0 if args.small else 450.0)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --small tries the script")
    return measure_sections(args) if args.sections else supervise(args)


if __name__ == "__main__":
    sys.exit(main())
