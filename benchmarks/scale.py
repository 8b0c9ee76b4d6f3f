"""`attnprobe error` by two processes against one, and what the process that keeps the records adds to each cell.

    python benchmarks/scale.py [--n 1024] [--windows 12] [--rounds 3] [--ray]

The same sweep of random Q, K, V of 12 heads (Nyströmformer and Skyformer at d = 64 and 128, errors of the output and of
the matrix, V-Mean and lower bounds beside them) by one process, by --jobs 2, with --ray by two processes of a private
Ray cluster, and by two shards started at once, a thread each; all from the first group to the last record, so that what
it takes to start the processes, which is printed, does not count. Shards know nothing of each other: their ratio is
what this machine gives two processes, and the others' over it is what is lost by sharing one file of records. The
overhead is the time from a record's making in another process to its line on disk, of groups of nine cells whose work
takes no time.

Goals: two processes at least 1.6 times as fast as one on two idle cores; less than 20 ms of overhead per cell. Exits 1
where one is missed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from measuring import Goal, arguments, finish, spread
from safetensors.torch import save_file

from attnprobe.frame.records.append import RecordWriter
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.run.topics.running import Cluster
from attnprobe.run.where.backends import Alone, Crew
from attnprobe.run.where.pool import Processes
from attnprobe.run.where.ray_cluster import cluster

SPEED_GOAL, OVERHEAD_GOAL = 1.6, 0.02
CELLS, GROUPS = 9, 200


class Echo:
    """Work that takes no time: the records of a group."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def start(self, number: int, send: Any) -> tuple[dict[str, Any], Any]:
        def do(group: int, told: Any) -> None:
            for cell in range(CELLS):
                send("show", f"group {group}, cell {cell}")
                send("record", {**self.record, "key": f"{group} {cell}"})

        return {}, do


class Keeper:
    """Writes the records that it receives, and counts them from the first message on."""

    def __init__(self, writer: RecordWriter) -> None:
        self.writer, self.count, self.since = writer, 0, None

    def done_keys(self, group: int) -> frozenset[str]:
        return frozenset()

    def received(self, group: int, kind: str, value: Any) -> None:
        self.since = self.since or perf_counter()
        if kind == "record":
            self.writer.append(value)
            self.count += 1

    def began(self, facts: Any) -> None:
        pass

    def lost(self, group: int, reason: str) -> None:
        raise RuntimeError(reason)


def inputs(folder: str, n: int, windows: int) -> str:
    """A file of Q, K and V."""
    drawn = torch.Generator().manual_seed(0)
    path = str(Path(folder) / "qkv.safetensors")
    save_file(
        {
            f"layer0.window{window}.{axis}": torch.randn(12, n, 64, generator=drawn)
            for window in range(windows)
            for axis in "qkv"
        },
        path,
    )
    return path


def swept(path: str, windows: int, **where: Any) -> tuple[float, float, float, list[dict[str, Any]]]:
    """When a run began, when its first group did, when it ended, and its records."""
    started: list[float] = []

    def progress(done: int, total: int, label: str) -> None:
        if not started:
            started.append(perf_counter())

    request = ErrorRequest(
        qkv=path,
        device="cpu",
        methods=("nystromformer,skyformer",),
        d=(64, 128),
        windows=windows,
        input_statistics=False,
        out=tempfile.mkdtemp(),
        **where,
    )
    begin = perf_counter()
    records = measure_errors(request, progress=progress).outcome.records
    return begin, started[0], perf_counter(), records


def shard(path: str, windows: int, index: int, both: Any, times: Any) -> None:
    """One of two shards, which begins with the other."""
    torch.set_num_threads(1)
    both.wait()
    times.put(swept(path, windows, shard=f"{index}/2")[1:3])


def apart(path: str, windows: int) -> float:
    """Seconds from the first group of two shards to the last record of both."""
    spawn = multiprocessing.get_context("spawn")
    both, times = spawn.Barrier(2), spawn.Queue()
    shards = [spawn.Process(target=shard, args=(path, windows, index, both, times)) for index in (1, 2)]
    for process in shards:
        process.start()
    ends = [times.get() for _ in shards]
    for process in shards:
        process.join()
    return max(end for _, end in ends) - min(start for start, _ in ends)


def overhead(record: dict[str, Any], folder: str, backend: Alone | Crew) -> float:
    """Seconds per cell of groups that take no time, beyond the start of the process."""
    with RecordWriter(Path(folder) / "rows.jsonl") as writer:
        keeper = Keeper(writer)
        backend.run(range(GROUPS), Echo(record), keeper)
        return (perf_counter() - keeper.since) / keeper.count


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", action="store_true", help="also two processes of a private Ray cluster")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways = {"two processes": {"jobs": 2}}
    if args.ray:
        ways["two of Ray"] = {"jobs": 2, "backend": "ray:local"}
    ratios: dict[str, list[float]] = {name: [] for name in (*ways, "two shards")}
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        path = inputs(folder, args.n, args.windows)
        for _ in range(args.rounds):
            _, begin, end, records = swept(path, args.windows)
            alone, line = end - begin, f"{len(records)} cells, n={args.n}: one process {end - begin:.1f} s"
            for name, where in ways.items():
                start, begin, end, same = swept(path, args.windows, **where)
                different += sum(
                    one | {"seconds": 0, "run": ""} != other | {"seconds": 0, "run": ""}
                    for one, other in zip(records, same, strict=True)
                )
                ratios[name].append(alone / (end - begin))
                line += f", {name} {end - begin:.1f} s and {begin - start:.1f} s to start"
            both = apart(path, args.windows)
            ratios["two shards"].append(alone / both)
            print(f"{line}, two shards {both:.1f} s; about {len(str(records[-1]))} bytes a record", flush=True)
        each = {"": overhead(records[-1], folder, Processes(1))}
        if args.ray:
            with cluster(Cluster(address="local", gpus=0, cpus=1), 1, "cpu", lambda line: None) as (backend, _):
                each[" of Ray"] = overhead(records[-1], folder, backend)
    middle = {name: sorted(found)[len(found) // 2] for name, found in ratios.items()}
    print(f"two shards over one process: {middle['two shards']:.2f} ± {spread(ratios['two shards']):.2f}")
    return finish(
        [
            *(
                Goal(f"speed of {name} over one", middle[name], SPEED_GOAL, spread=spread(ratios[name]))
                for name in ways
            ),
            *(
                Goal(f"seconds of overhead per cell{name}", seconds, OVERHEAD_GOAL, at_least=False)
                for name, seconds in each.items()
            ),
            Goal("records that differ from those of one process", different, 0, at_least=False),
        ],
        args.json,
    )


if __name__ == "__main__":
    sys.exit(main())
