"""Options of a run: its folder, and the processes that measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

from ...files import JsonObject
from ..option import ELSEWHERE, RUN, check_fields, opt, options_of
from .reading import Device, Dtype, Inputs, Places, Reading, Tensors

if TYPE_CHECKING:
    from ...inputs import SourceSpec

LONGEST = 1e7  # seconds, four months
MOST = 1024  # processes, and devices

in_run, elsewhere = partial(opt, group=RUN), partial(opt, group=ELSEWHERE)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The run's folder, and the treatment of earlier records."""

    out: str | None = in_run(
        None,
        "The run's folder. Finished cells in it are skipped. [default: a new folder under outputs/]",
        metavar="DIR",
    )
    force: bool = in_run(
        False, "Measure finished cells of --out again.", excludes={"retry_failed": "force measures all again"}
    )
    retry_failed: bool = in_run(False, "Measure failed cells of --out again.")
    cell_timeout: float | None = in_run(
        None,
        "Time limit of a cell. A cell that takes longer fails, and the run continues. Cells are measured in a worker "
        "process, which is ended if a cell does not stop within 5 s after the limit.",
        metavar="SECONDS",
        inside=(0, LONGEST),
        choose=f"seconds above 0 and below {LONGEST:g}",
    )


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The groups of cells that a run measures, and its processes."""

    shard: str | None = elsewhere(
        None,
        "Measure part I of N of the groups (weights, n, window, layer; for stability task and seed), from 1/N to "
        "N/N, into separate files in --out. For Slurm arrays and CI matrices. After all parts, `attnprobe report "
        "DIR` or the command without --shard shows the complete run.",
        metavar="I/N",
    )
    jobs: int | None = elsewhere(
        None,
        "Run N worker processes. They share the GPUs and torch's threads; bench runs one at a time on each device. "
        "[default: one per visible GPU; 1 on a CPU and for bench; with ray as many as fit]",
        metavar="N",
        between=(1, MOST),
    )
    backend: str = elsewhere(
        "local",
        "Run the processes on this machine or on a Ray cluster. ray needs pip install 'attnprobe[ray]'.",
        metavar="local|ray",
        among=("local", "ray"),
        reads={"ray": ("ray_address", "gpus_per_task", "cpus_per_task")},
    )
    ray_address: str | None = elsewhere(
        None,
        "The Ray cluster to join. auto joins the cluster of this node; local starts a private cluster on this "
        "machine for this run.",
        metavar="HOST:PORT|auto|local",
    )
    gpus_per_task: float | None = elsewhere(
        None,
        "GPUs of each process with --backend ray; may be a fraction. [default: 1 if the cluster has GPUs and "
        "--device is not cpu, else 0]",
        metavar="F",
    )
    cpus_per_task: int | None = elsewhere(
        None, "CPUs, and so threads, of each process with --backend ray. [default: 1]", metavar="N", between=(1, MOST)
    )


@dataclass(frozen=True, kw_only=True)
class RunRequest(Device, Folder, Elsewhere):
    """The options of every command that writes a run.

    Attributes:
        base: where new folders are made. origin: where each value came from, for the manifest, which calls other
            values than the default ``python`` where this names none.
    """

    base: str = "outputs"
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def source(self) -> SourceSpec:
        """The source, with the first of the weights."""
        from ...inputs import SourceSpec

        given = {one.name: getattr(self, one.name) for one in fields(SourceSpec) if hasattr(self, one.name)}
        if isinstance(given.get("weights"), tuple):
            given["weights"] = given["weights"][0]
        return SourceSpec(**given)

    def known(self) -> JsonObject:
        """The values of options, without those that another option decides."""
        return {one.name: getattr(self, one.name) for one in options_of(type(self))}


@dataclass(frozen=True, kw_only=True)
class OnTensors(Places, Inputs, Reading, Tensors, Dtype, RunRequest):
    """Options of a command that measures Q, K and V of a model or a file."""

    def known(self) -> JsonObject:
        """The values of options, without those that another option decides; a model's default layer is its first."""
        values = super().known()
        if self.qkv is not None:
            del values["weights"]
        elif self.layer is None:
            values["layer"] = (0,)
        return values
