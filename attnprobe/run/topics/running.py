"""Options of a run: its folder, and the processes that measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import UsageError, unknown
from ...files import JsonObject
from ...grammar.lists import options_of as named_options
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
        "The run's folder; finished cells in it are skipped. [default: a new one in outputs/]",
        metavar="DIR",
    )
    force: bool = in_run(
        False, "Measure finished cells of --out again.", excludes={"retry_failed": "force measures all again"}
    )
    retry_failed: bool = in_run(False, "Measure failed cells of --out again.")
    cell_timeout: float | None = in_run(
        None,
        "Time limit of a cell; a slower cell fails, and the run continues.",
        metavar="SECONDS",
        inside=(0, LONGEST),
        choose=f"seconds above 0 and below {LONGEST:g}",
    )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster, and the resources of each process on it.

    Attributes:
        address: ``HOST:PORT``; ``auto`` is the cluster of this node; ``local`` starts a private cluster for the run.
        gpus: of a process, also a fraction; None is 1 where the cluster has GPUs and the device is not ``cpu``, else 0.
        cpus: of a process, and so the number of its threads; None is 1.
    """

    address: str
    gpus: float | None = None
    cpus: int | None = None

    @classmethod
    def read(cls, text: str, called: str = "backend") -> Cluster | None:
        """The cluster that a backend names; None is this machine. Messages say ``called`` for the backend.

        Raises:
            UsageError: an unknown backend, no address, or an impossible number.

        >>> Cluster.read("ray:auto,gpus=0.5,cpus=2"), Cluster.read("local")
        (Cluster(address='auto', gpus=0.5, cpus=2), None)
        """
        name, colon, rest = text.partition(":")
        if name not in ("local", "ray") or (name == "local" and colon):
            raise UsageError(f"{called} '{text}': choose local or ray:ADDRESS[,gpus=F][,cpus=N]")
        if name == "local":
            return None
        address, _, options = rest.partition(",")
        if not address.strip():
            raise UsageError(f"{called} ray: name the cluster, ray:HOST:PORT, or ray:local for a private one here")
        given = named_options(options)
        gpus, cpus = given.pop("gpus", None), given.pop("cpus", None)
        if given:
            raise unknown("option of ray", next(iter(given)), ("gpus", "cpus"))
        if gpus is not None and not _is_share(gpus):
            raise UsageError(f"{called} ray: gpus={gpus}: choose 0, a fraction from 0.01 to 1, or a whole number")
        if cpus is not None and not (isinstance(cpus, int) and 1 <= cpus <= MOST):
            raise UsageError(f"{called} ray: cpus={cpus}: choose a whole number from 1 to {MOST}")
        return cls(address=address.strip(), gpus=gpus, cpus=cpus)


def _is_share(gpus: Any) -> bool:
    """Whether Ray takes this number of GPUs for a process."""
    if not isinstance(gpus, (int, float)):
        return False
    return gpus == 0 or 0.01 <= gpus <= 1 or (gpus > 1 and float(gpus).is_integer())


def _backend(text: str, called: str) -> str:
    Cluster.read(text, called)
    return text  # the request keeps the text, which the manifest shows


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The groups of cells that a run measures, and its processes."""

    shard: str | None = elsewhere(
        None,
        "Measure part I of N, for job arrays; `attnprobe report` joins the parts.",
        metavar="I/N",
    )
    jobs: int | None = elsewhere(
        None,
        "Worker processes. [default: one for each GPU, or 1]",
        metavar="N",
        between=(1, MOST),
    )
    backend: str = elsewhere(
        "local",
        "local, ray:HOST:PORT, ray:auto or ray:local, with [,gpus=F][,cpus=N].",
        metavar="BACKEND",
        parse=_backend,
    )


@dataclass(frozen=True, kw_only=True)
class RunRequest(Device, Folder, Elsewhere):
    """The options of every command that writes a run.

    Attributes:
        base: the folder in which new run folders are made.
        origin: the origin of each option's value, for the manifest. A value without one is from Python, or the default.
    """

    base: str = "outputs"
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def source(self) -> SourceSpec:
        """The source of Q, K and V; of several weights it has the first."""
        from ...inputs import SourceSpec

        given = {of.name: getattr(self, of.name) for of in fields(SourceSpec) if hasattr(self, of.name)}
        if isinstance(given.get("weights"), tuple):
            given["weights"] = given["weights"][0]
        return SourceSpec(**given)

    def known(self) -> JsonObject:
        """The values of options, without those that another option decides."""
        return {option.name: getattr(self, option.name) for option in options_of(type(self))}


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
