"""`attnprobe error` by two processes against one, and what the process that keeps the records adds to each cell.

    python benchmarks/scale.py [--n 1024] [--windows 6] [--rounds 2]

The same sweep of random Q, K, V of 12 heads (Nyströmformer and Skyformer at d = 64 and 128, errors of the output and of
the matrix, V-Mean and lower bounds beside them) with --jobs 1 and --jobs 2 in turn, a thread each; both from the first
group to the last record, so that what it takes to start the processes, which is printed, does not count. The overhead
is the time from a record's making in another process to its line on disk, of groups of nine cells whose work takes no
time.

Goals: two processes at least 1.6 times as fast as one on two idle cores; less than 20 ms of overhead per cell. Exits 1
where one is missed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from measuring import Goal, arguments, finish, spread
from safetensors.torch import save_file

from attnprobe.records import RecordWriter
from attnprobe.sources import SourceSpec
from attnprobe.sweep import ErrorRequest, Outcome, measure_errors
from attnprobe.sweep.pool import run_pool

SPEED_GOAL, OVERHEAD_GOAL = 1.6, 0.02
CELLS, GROUPS = 9, 200


class Echo:
    """Work that takes no time: the records of a group."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def start(self, number: int, send: Any) -> Any:
        def do(group: int, told: Any) -> None:
            for cell in range(CELLS):
                send("show", f"group {group}, cell {cell}")
                send("record", {**self.record, "key": f"{group} {cell}"})

        return do


def inputs(folder: str, n: int, windows: int) -> str:
    """A file of Q, K and V."""
    drawn = torch.Generator().manual_seed(0)
    path = str(Path(folder) / "qkv.safetensors")
    save_file({f"layer0.window{window}.{axis}": torch.randn(12, n, 64, generator=drawn)
               for window in range(windows) for axis in "qkv"}, path)  # fmt: skip
    return path


def swept(path: str, windows: int, jobs: int) -> tuple[float, float, list[dict[str, Any]]]:
    """Seconds from the first group to the end, seconds until then, and the records."""
    started: list[float] = []

    def progress(done: int, total: int, label: str) -> None:
        if not label.startswith("starting") and not started:
            started.append(perf_counter())

    request = ErrorRequest(
        source=SourceSpec(qkv=path, device="cpu"), methods=("nystromformer,skyformer",), d="64,128", windows=windows,
        input_statistics=False, jobs=jobs, out=tempfile.mkdtemp(),
    )  # fmt: skip
    begin = perf_counter()
    records = measure_errors(request, progress=progress).outcome.records
    return perf_counter() - started[0], started[0] - begin, records


def overhead(record: dict[str, Any], folder: str) -> float:
    """Seconds per cell of groups that take no time, beyond the start of the process."""
    outcome, started = Outcome(), []
    with RecordWriter(Path(folder) / "records.jsonl") as writer:

        def found(group: int, kind: str, value: Any) -> None:
            if not started:
                started.append(perf_counter())
            if kind == "record":
                outcome.keep(value, writer)

        run_pool(range(GROUPS), Echo(record), 1, told=lambda group: frozenset(), found=found, lost=print)
        return (perf_counter() - started[0]) / outcome.measured


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        path = inputs(folder, args.n, args.windows)
        for _ in range(args.rounds):
            alone, _, records = swept(path, args.windows, 1)
            both, start, same = swept(path, args.windows, 2)
            different = sum(one | {"seconds": 0, "run": ""} != other | {"seconds": 0, "run": ""}
                            for one, other in zip(records, same, strict=True))  # fmt: skip
            ratios.append(alone / both)
            size = len(str(records[-1]))
            print(f"{len(records)} cells, n={args.n}: one process {alone:.1f} s, two {both:.1f} s and {start:.1f} s to "
                  f"start; {different} records differ; about {size} bytes a record", flush=True)  # fmt: skip
        each = overhead(records[-1], folder)
    print(f"overhead per cell {1e3 * each:.2f} ms")
    return finish([
        Goal("speed of two processes over one", sorted(ratios)[len(ratios) // 2], SPEED_GOAL, spread=spread(ratios)),
        Goal("seconds of overhead per cell", each, OVERHEAD_GOAL, at_least=False),
        Goal("records that differ between one process and two", different, 0, at_least=False),
    ], args.json)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
