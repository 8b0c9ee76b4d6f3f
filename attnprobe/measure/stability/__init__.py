"""``attnprobe stability``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...frame.metric import metrics
from ...grammar.lists import lengths, positive_numbers
from ...judge.gates import Gated
from ...run.option import SOURCE, opt
from ...run.topics.reading import MOST, TARGETS, Dtype, Split, methods_option
from ...run.topics.running import RunRequest
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells
from .naming import parse_tasks

OWN = "own"
MOST_STEPS = 10_000


def one_length(text: str, called: str) -> int:
    """One number of tokens."""
    first, *others = lengths(text, called)
    if others:
        raise UsageError(f"{called}={text}: one number for all tasks; a task has its own as --task listops:n={first}")
    return first


@dataclass(frozen=True, kw_only=True)
class StabilityRequest(Split, Dtype, RunRequest):
    """Train a small transformer with each method as its attention, and measure how far each step moves its embedding.

    This is the instability score of Skyformer's appendix F over the first steps: the squared change of the embedding
    after two layers, divided by the squared change of the weights. The table shows its mean ratio to self-attention's.
    Every method has the same initial weights, batches and seeds.

    \b
    Tasks, each NAME[:n=…,batch=…,rate=…,data=FILE]. Defaults are the paper's lengths, batches and rates:
      listops      generated with its published grammar
      text         bytes of --text
      retrieval, pathfinder, image    only from a local file: npz or safetensors with inputs
                   (whole numbers (N, n), for retrieval (N, 2, n)), labels (N,), and lengths
                   if sequences are padded
    """

    tasks: tuple[str, ...] = opt(
        ("listops", "text"),
        "Tasks of the Long Range Arena. [default: listops,text]",
        flag="--task",
        metavar="NAME[:k=v,…]",
    )
    methods: tuple[str, ...] = methods_option(
        ("kernelized", "skyformer", "nystromformer", "performer"),
        "Methods beside self-attention. [default: kernelized,skyformer,nystromformer,performer]",
        "NAME[:k=v,…]",
    )
    steps: int = opt(20, "Steps of training.", between=(1, MOST_STEPS))
    seeds: int = opt(3, "Seeds of weights, batches and draws, from --seed on.", between=(1, MOST))
    n: int | None = opt(
        None,
        "Largest sequence length. [default: the paper's]",
        metavar="N",
        parse=one_length,
    )
    d: tuple[int, ...] = opt((128,), "Budgets, such as 64,128.", parse=positive_numbers)
    batch: int | None = opt(
        None,
        "Sequences in a batch. [default: the paper's]",
        metavar="B",
    )
    rate: float | None = opt(None, "Learning rate. [default: the paper's]", metavar="RATE")
    eps: float = opt(1e-6, "Adam's ε.", inside=(0, 1), choose="a number above 0 and below 1, such as 1e-6")
    target: str = opt(
        OWN,
        "What methods approximate; own is the Gaussian kernel where a method can.",
        metavar="own|softmax|gaussian",
        among=(OWN, *TARGETS),
    )
    condition_tokens: int = opt(
        256,
        "Tokens on which attention's condition numbers are computed; 0 computes none.",
        metavar="N",
    )
    seed: int = opt(0, "The first seed.")
    text: str | None = opt(
        None,
        "Data of the task text: FILE.tsv, a folder, imdb or any text. [default: imdb]",
        group=SOURCE,
        metavar="TEXT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_tasks(self.tasks)


@dataclass(frozen=True, kw_only=True)
class StabilityOutput(Output, Gates):
    plots: tuple[str, ...] = plots_option("stability")


GATED = Gated(
    metrics("ratio", "ratio_before_norm", "tau", "loss", "gradient_norm"),
    subjects=("task",),
)


def _cells() -> type[Cells]:
    from .measure import StabilityCells

    return StabilityCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="stability",
    summary="Train with each method as the attention, and measure how far each step moves the embedding.",
    request=StabilityRequest,
    output=StabilityOutput,
    load_cells=_cells,
    load_rows=_rows,
    gated=GATED,
    examples=(
        "--task listops --method kernelized,skyformer --plot",
        "--task listops:batch=8,text:n=1000,batch=8 --text reviews.tsv",
        "--task image:data=cifar.npz --seeds 5 --device cuda",
        "--fail-above ratio.max=1",
    ),
)
measure_stability = EXPERIMENT.measure
