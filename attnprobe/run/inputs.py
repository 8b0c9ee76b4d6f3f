"""Statistics of the Q, K and V of a run, written to ``inputs.jsonl`` beside the rows of cells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files import Fields, JsonObject
from ..frame.records.append import RecordWriter
from ..frame.records.file import cell_key, identity_facts, inputs_path, parse_shard
from ..frame.records.read import read_inputs
from ..frame.rows import head_rows
from ..machine.timings import Timings
from ..metrics.inputs import INPUT_STATISTICS, input_statistics
from ..metrics.matrix import ExactNorms, exact_norms
from ..qkv import QKV
from ..reference import exact
from .limits import attempt, with_smaller_blocks
from .topics.running import RunRequest

STATISTICS = "statistics of inputs"  # the name under which a source remembers them

if TYPE_CHECKING:
    import torch

    from ..inputs import Source


def exact_norms_of(
    source: Source,
    n: int,
    layer: int,
    window: int,
    qkv: QKV,
    target: str = "softmax",
    tol: float = 1e-3,
    progress: Callable[[str, float], None] = lambda label, share: None,
) -> ExactNorms:
    """The norms of the exact matrix of a layer and window.

    They are computed once: the source remembers them for the input statistics, all cells and all runs.
    """

    def norms() -> ExactNorms:
        return exact_norms(exact(qkv, target), tol=tol, progress=progress)

    name = f"norms of the exact matrix, {target}, to {tol:g}"
    remembered = source.remembered(name, n, layer, window, qkv.heads, lambda: dict(vars(with_smaller_blocks(norms))))
    return ExactNorms(**remembered)


class InputKeeper:
    """Writes `input_statistics` of each layer that a run reads, once for all its cells.

    The lines are those of a cell of the command ``inputs``: a row for each head, then the line of the layer. They have
    a separate file, because they belong to all commands of a folder. A layer without unfinished cells is not read for
    them, and existing statistics are not made again.

    Args:
        request: whether records are written, existing ones are made again, and a shard has its own file.
        folder: the run's. run: its name.
    """

    def __init__(self, request: RunRequest, folder: Path, run: str, timings: Timings | None = None) -> None:
        shard = parse_shard(request.shard)
        self.path = inputs_path(folder) if shard is None else shard.of(inputs_path(folder))
        self.run, self.timings = run, timings or Timings()
        self.enabled: bool = getattr(request, "input_statistics", False)
        earlier = [] if request.force or not self.enabled else read_inputs(folder).records
        self.there = {record["key"] for record in earlier if record["status"] == "ok"}

    def keep(self, source: Source, n: int, window: int, layer: int, qkv: QKV) -> None:
        """Write the rows of a layer, for the heads of ``qkv``.

        On a full disk the rows are lost, and the run continues.
        """
        place = {"n": n, "window": window, "layer": layer, "heads": list(qkv.heads)}
        key = cell_key(command="inputs", source=identity_facts(source.facts), **place)
        if not self.enabled or key in self.there:
            return
        self.there.add(key)
        rows: list[JsonObject] = []
        # an attempt: the cells of the layer do not depend on its statistics
        with self.timings("input statistics"), attempt() as tried:

            def measured() -> dict[str, torch.Tensor]:
                return input_statistics(qkv, exact_norms_of(source, n, layer, window, qkv))

            make = partial(with_smaller_blocks, measured)
            statistics = source.remembered(STATISTICS, n, layer, window, qkv.heads, make)
            rows = head_rows(qkv.heads, {name: statistics[name].tolist() for name in INPUT_STATISTICS})
        record = {
            "key": key,
            "run": self.run,
            "command": "inputs",
            **tried.state,
            "source": source.facts,
            **place,
            "rows": rows,
        }
        self.write(record)

    def write_once(self, record: Fields) -> None:
        """Append another process's record, unless its key is there."""
        if record["key"] not in self.there:
            self.there.add(record["key"])
            self.write(record)

    def write(self, record: Fields) -> None:
        """Append a record to the file, if the disk has room."""
        with suppress(UsageError), RecordWriter(self.path) as writer:
            writer.append(record)
