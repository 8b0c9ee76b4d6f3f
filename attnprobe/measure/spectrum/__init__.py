"""``attnprobe spectrum``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...grammar.lists import positive_numbers
from ...run.option import opt
from ...run.topics.reading import Lengths, SomeQueries, WeightsWords, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Output, Timed, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells


def shares(text: str, called: str) -> tuple[float, ...]:
    """A list of relative errors between 0 and 1.

    >>> shares("0.1, 0.01", "epsilon")
    (0.1, 0.01)
    """
    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = float("nan")
        if not 0 < value < 1:
            raise UsageError(f"{called}: '{part.strip()}' is not a number between 0 and 1, such as 0.1")
        values.append(value)
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, kw_only=True)
class SpectrumRequest(SomeQueries, Lengths, WeightsWords, OnTensors):
    """Compute singular values, eigenvalues and effective ranks of attention matrices and of methods.

    Up to n = 4096 all values are computed in float64, one head at a time. A matrix takes about 24 n² bytes (384 MiB); a
    lifted kernel has 2n rows. Beyond 4096, the --k largest values come from a block Krylov space, and no n x n matrix
    is stored. `--weights pretrained,initialized` draws both into one figure.

    \b
    Matrices of --of, beside any method of `attnprobe methods`:
      softmax          B, rows sum to 1
      unnormalised     A = exp(S), divided by its largest entry
      gaussian         C_ij = exp(-|q_i - k_j|^2 scale/2)
      lifted-softmax   A over [Q; K], 2n x 2n, positive semidefinite
      lifted-gaussian  C over [Q; K], 2n x 2n, positive semidefinite
      output           B V, n x p_v
    """

    of: tuple[str, ...] = opt(
        ("softmax",),
        "Matrices, and methods with options. [default: softmax]",
        metavar="NAME[:k=v,…],…",
        of_methods=True,
    )
    kind: str = opt(
        "singular",
        "Singular values, or eigenvalues.",
        metavar="singular|eigen",
        among=("singular", "eigen"),
    )
    k: int | None = opt(None, "Only the k largest values, each with an error. [default: all up to n = 4096, else 64]")
    epsilon: tuple[float, ...] = opt((0.1, 0.01), "Relative errors whose rank is reported.", parse=shares)
    d: tuple[int, ...] = opt((128,), "Budgets of methods, such as 16,32,64.", parse=positive_numbers)
    target: str = target_option("The exact matrix that methods approximate.")
    seed: int = opt(0, "Seed of random draws, also of --k.")


@dataclass(frozen=True, kw_only=True)
class SpectrumOutput(Output, Timed):
    plots: tuple[str, ...] = plots_option("spectrum")


def _cells() -> type[Cells]:
    from .measure import SpectrumCells

    return SpectrumCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="spectrum",
    summary="Compute singular values and effective ranks of attention matrices.",
    request=SpectrumRequest,
    output=SpectrumOutput,
    load_cells=_cells,
    load_rows=_rows,
    examples=(
        "--of softmax,unnormalised,gaussian --n 1024 --layer all --plot",
        "--of softmax,skyformer,nystromformer:inverse=pinv --d 32,128",
        "--of lifted-gaussian --kind eigen --n 512 --format json",
        "--of softmax --n 16384 --k 64",
    ),
)
measure_spectra = EXPERIMENT.measure
