"""The options that commands share, by topic: a request inherits those that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..figures.drawing import STYLES
from ..grammar.lists import parse_numbers, parse_positive
from .option import FOLDER, SHOWN, check_fields, opt, options_of

if TYPE_CHECKING:
    from ..sources import SourceSpec

__all__ = [
    "MEASURED",
    "MOST",
    "READING",
    "TARGETS",
    "Device",
    "Dtype",
    "Budgets",
    "Elsewhere",
    "Folder",
    "Gates",
    "Inputs",
    "Layers",
    "Lengths",
    "OnTensors",
    "Output",
    "Places",
    "Reading",
    "RunRequest",
    "Source",
    "Split",
    "Statistics",
    "Tensors",
    "Timed",
    "WeightsWord",
    "WeightsWords",
    "Windows",
    "gates_option",
    "lengths",
    "methods_option",
    "numbers",
    "plot_option",
    "positives",
    "target_option",
    "words",
]

MEASURED = "What is measured"
PLACES = "Where in the model and the text"
SOURCE = "Where Q, K and V come from"
NUMBERS = "Device and numbers"
RUN = "The run's folder"
ELSEWHERE = "Processes and machines"
OUTPUT = "What is shown"
GATES = "Gates"
GROUPS = (MEASURED, PLACES, SOURCE, NUMBERS, RUN, ELSEWHERE, OUTPUT, GATES)  # the order of the help

MOST = 100_000  # windows, and repeats
TARGETS = ("softmax", "gaussian")
WEIGHTS = "pretrained|initialized|initialized-qkv"
WEIGHTS_HELP = (
    "The weights. initialized draws all of them and needs no download; initialized-qkv keeps the pretrained embedding "
    "and draws W_Q, W_K and W_V."
)
SEVERAL_WEIGHTS = " A comma-separated list measures each of them."


def numbers(text: str, what: str) -> tuple[int, ...]:
    """A list of whole numbers and ranges, such as ``16,32`` or ``0-5``."""
    return tuple(parse_numbers(text, what))


def lengths(text: str, what: str) -> tuple[int, ...]:
    """A list of numbers of tokens."""
    found = numbers(text, what)
    if min(found) < 2:
        raise UsageError(f"{what}={min(found)}: attention needs at least 2 tokens")
    return found


def positives(text: str, what: str) -> tuple[float, ...]:
    """A list of numbers above 0, in rising order."""
    return tuple(parse_positive(text, what))


def words(text: str, what: str) -> tuple[str, ...]:
    """A list of words."""
    found = tuple(word.strip() for word in text.split(","))
    if not all(found):
        raise UsageError(f"{what} '{text}': an empty word; write words with commas between them, such as a,b")
    return found


def methods_option(default: tuple[str, ...], help: str, metavar: str = "NAME|FILE.py:FN[:k=v,…]") -> Any:
    """The field of ``--method``."""
    return opt(default, help, group=MEASURED, flag="--method", metavar=metavar, complete=True)


def target_option(help: str) -> Any:
    """The field of ``--target``."""
    return opt("softmax", help, group=MEASURED, metavar="softmax|gaussian", among=TARGETS)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    n: tuple[int, ...] | None = opt(
        None,
        "Sequence lengths, such as 512,1024. [default: 512, or all of a --qkv file]",
        group=MEASURED,
        metavar="LIST",
        parse=lengths,
    )


@dataclass(frozen=True, kw_only=True)
class Budgets:
    d: tuple[int, ...] = opt((128,), "Budgets, such as 16,32,64.", group=MEASURED, metavar="LIST", parse=numbers)


@dataclass(frozen=True, kw_only=True)
class Layers:
    layer: tuple[int, ...] | str | None = opt(
        None, "Layers: 0,5 or 0-5 or all. [default: 0]", group=PLACES, metavar="LIST", parse=numbers, words=("all",)
    )
    head: tuple[int, ...] | str = opt(
        "all", "Heads: 0,5 or 0-5 or all.", group=PLACES, metavar="LIST", parse=numbers, words=("all",)
    )


@dataclass(frozen=True, kw_only=True)
class Windows:
    windows: int = opt(1, "Number of text windows to measure.", group=PLACES, between=(1, MOST))


@dataclass(frozen=True, kw_only=True)
class Places(Layers, Windows):
    """Where in the model and the text."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    input_statistics: bool = opt(
        True,
        "Measure statistics of Q, K and V: scores, entropy, sinks, norms and stable ranks.",
        group=MEASURED,
        flag="--input-statistics/--no-input-statistics",
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class Inputs(Statistics):
    """What is made of Q, K and V before anything is measured."""

    scale_inputs: tuple[float, ...] = opt(
        (1.0,),
        "Factors s of the scores, such as 0.5,1,2,4; each is measured separately. Q and K are each multiplied by √s, "
        "so B becomes softmax(s S) and C_ij becomes C_ij^s.",
        group=MEASURED,
        metavar="LIST",
        parse=positives,
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    split: str = opt("test", "Split of Wikitext-2.", group=SOURCE, metavar="train|validation|test")


@dataclass(frozen=True, kw_only=True)
class Reading(Split):
    """Which model reads which text."""

    model: str | None = opt(
        None,
        "A hub id, a directory, or minilm, the packaged weights. [default: bert-base-cased; without a hub minilm, or "
        "random weights]",
        group=SOURCE,
        metavar="ID|DIR|minilm",
    )
    weights_seed: int = opt(0, "Seed of random weights.", group=SOURCE)
    text: str | None = opt(
        None,
        "The text to read. [default: wikitext-2; without a hub the embedded text]",
        group=SOURCE,
        metavar="wikitext-2|wikitext-2:tokenised|embedded|FILE",
    )
    tokenizer: str | None = opt(
        None, "A tokenizer to use instead of the model's own.", group=SOURCE, metavar="ID|DIR|VOCAB"
    )


@dataclass(frozen=True, kw_only=True)
class WeightsWord:
    weights: str = opt("pretrained", WEIGHTS_HELP, group=SOURCE, metavar=WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class WeightsWords:
    weights: tuple[str, ...] = opt(
        ("pretrained",), WEIGHTS_HELP + SEVERAL_WEIGHTS, group=SOURCE, metavar=WEIGHTS, parse=words
    )


READING = (*(one.name for one in options_of(Reading)), "weights", "positions")  # what only a model that reads takes


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """What is taken from a model that reads a text, or from a file."""

    positions: str = opt(
        "segment",
        "For n beyond the model's positions: read segments one by one and concatenate them (the papers' protocol), "
        "wrap positions around, or interpolate them.",
        group=SOURCE,
        metavar="segment|wrap|interpolate",
    )
    qkv: str | None = opt(
        None,
        "Read Q, K and V from a safetensors file instead of a model and a text.",
        group=SOURCE,
        metavar="FILE",
        excludes=dict.fromkeys(READING, "--qkv {value} holds Q, K and V already: drop {flag}"),
    )
    cache: bool = opt(
        True,
        "Read Q, K and V of earlier runs from the cache, and store new ones in it.",
        group=SOURCE,
        flag="--cache/--no-cache",
        role=FOLDER,
    )


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where is computed, and whether a source may be substituted."""

    device: str = opt(
        "auto", "The device; auto uses CUDA if there is a GPU.", group=NUMBERS, metavar="auto|cpu|cuda|cuda:N"
    )
    strict: bool = opt(
        False,
        "Fail instead of falling back to another model or text. An undecided gate fails too.",
        group=NUMBERS,
    )


@dataclass(frozen=True, kw_only=True)
class Dtype:
    dtype: str = opt(
        "float32",
        "The dtype of the methods. Exact outputs are always float64.",
        group=NUMBERS,
        metavar="float64|float32|bfloat16|float16",
    )


@dataclass(frozen=True, kw_only=True)
class Source(Reading, WeightsWord, Tensors, Device, Dtype):
    """A source by itself."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The run's folder, and what becomes of what it holds."""

    out: str | None = opt(
        None,
        "The run's folder. Finished cells in it are skipped. [default: a new folder under outputs/]",
        group=RUN,
        metavar="DIR",
        role=FOLDER,
    )
    force: bool = opt(
        False,
        "Measure finished cells of --out again.",
        group=RUN,
        role=FOLDER,
        excludes={"retry_failed": "force measures all again"},
    )
    retry_failed: bool = opt(False, "Measure failed cells of --out again.", group=RUN, role=FOLDER)
    cell_timeout: float | None = opt(
        None,
        "Time limit of a cell. A cell that takes longer fails, and the run continues. Cells are measured in a worker "
        "process, which is ended if a cell does not stop within 5 s after the limit.",
        group=RUN,
        metavar="SECONDS",
        role=FOLDER,
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Which groups of cells a run measures, and in which processes."""

    shard: str | None = opt(
        None,
        "Measure part I of N of the groups (weights, n, window, layer; for stability task and seed), from 1/N to "
        "N/N, into separate files in --out. For Slurm arrays and CI matrices. After all parts, `attnprobe report "
        "DIR` or the command without --shard shows the complete run.",
        group=ELSEWHERE,
        metavar="I/N",
        role=FOLDER,
    )
    jobs: int | None = opt(
        None,
        "Run N worker processes. They share the GPUs and torch's threads; bench runs one at a time on each device. "
        "[default: one per visible GPU; 1 on a CPU and for bench; with ray as many as fit]",
        group=ELSEWHERE,
        metavar="N",
        role=FOLDER,
    )
    backend: str = opt(
        "local",
        "Run the processes on this machine or on a Ray cluster. ray needs pip install 'attnprobe[ray]'.",
        group=ELSEWHERE,
        metavar="local|ray",
        role=FOLDER,
        reads={"ray": ("ray_address", "gpus_per_task", "cpus_per_task")},
    )
    ray_address: str | None = opt(
        None,
        "The Ray cluster to join. auto joins the cluster of this node; local starts a private cluster on this "
        "machine for this run.",
        group=ELSEWHERE,
        metavar="HOST:PORT|auto|local",
        role=FOLDER,
    )
    gpus_per_task: float | None = opt(
        None,
        "GPUs of each process with --backend ray; may be a fraction. [default: 1 if the cluster has GPUs and "
        "--device is not cpu, else 0]",
        group=ELSEWHERE,
        metavar="F",
        role=FOLDER,
    )
    cpus_per_task: int | None = opt(
        None,
        "CPUs, and so threads, of each process with --backend ray. [default: 1]",
        group=ELSEWHERE,
        metavar="N",
        role=FOLDER,
    )


@dataclass(frozen=True, kw_only=True)
class RunRequest(Device, Folder, Elsewhere):
    """What every command that leaves a run is asked for.

    Attributes:
        base: where new folders are made. origin: where each value came from, for the manifest.
    """

    base: str = "outputs"
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def source(self) -> SourceSpec:
        """What is read, with the first of the weights."""
        from ..sources import SourceSpec

        given = {one.name: getattr(self, one.name) for one in fields(SourceSpec) if hasattr(self, one.name)}
        if isinstance(given.get("weights"), tuple):
            given["weights"] = given["weights"][0]
        return SourceSpec(**given)

    def known(self) -> dict[str, Any]:
        """The values of options, but for those that something else decides."""
        return {one.name: getattr(self, one.name) for one in options_of(type(self))}


@dataclass(frozen=True, kw_only=True)
class OnTensors(Places, Inputs, Reading, Tensors, Dtype, RunRequest):
    """A command that measures on Q, K and V of a model or a file."""

    def known(self) -> dict[str, Any]:
        """The values of options, but for those that something else decides."""
        values = super().known()
        if self.qkv is not None:
            del values["weights"]
        return values


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command shows of a run."""

    def __post_init__(self) -> None:
        check_fields(self)

    format_: str = opt(
        "table",
        "Format of the output on stdout.",
        group=OUTPUT,
        flag="--format",
        metavar="table|json|jsonl|csv|md|latex|github",
        role=SHOWN,
    )
    columns: tuple[str, ...] | None = opt(
        None,
        "The columns to show, in this order, by the names that the table has. [default: all that fit]",
        group=OUTPUT,
        metavar="NAME,…",
        parse=words,
        role=SHOWN,
    )
    legend: bool = opt(
        False,
        "Explain every column, and show where Q, K and V come from in full.",
        group=OUTPUT,
        role=SHOWN,
    )
    style: str = opt(
        "paper",
        "The size of figures, which are written as SVG, PNG and PDF: paper is as wide as a column or the text, in 8 "
        "points; slide is 16:9 with large type.",
        group=OUTPUT,
        metavar="paper|slide",
        among=tuple(STYLES),
        role=SHOWN,
    )
    caption: bool = opt(
        False,
        "Draw each figure's caption below it too; it always stands in a text file beside it.",
        group=OUTPUT,
        role=SHOWN,
    )
    dry_run: bool = opt(
        False,
        "Print the cells, how many are done, and an estimate of time and memory. Measure nothing.",
        group=OUTPUT,
        role=SHOWN,
        in_file=False,
    )
    debug: bool = opt(False, "Show the traceback if an error occurs.", group=OUTPUT, role=SHOWN, in_file=False)


@dataclass(frozen=True, kw_only=True)
class Timed:
    show_timings: bool = opt(
        False, "Show on stderr how long each stage took.", group=OUTPUT, flag="--timings", role=SHOWN
    )


def plot_option(help: str) -> Any:
    """The field of ``--plot`` of a command with one kind of figures."""
    return opt(False, help, group=OUTPUT, role=SHOWN, alias="figures", of_whole="figures")


def gates_option(value: str) -> Any:
    """The field of ``--fail-above``; ``value`` is what a gate is held against."""
    return opt(
        (),
        f"Exit with 1 if {value} exceeds VALUE or is missing.",
        group=GATES,
        flag="--fail-above",
        metavar="METRIC[.STAT]=VALUE",
        role=SHOWN,
        of_whole="gates",
    )


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Which values may not be exceeded, and where that is written."""

    gates: tuple[str, ...] = gates_option("a statistic (default: mean) of a table row")
    junit: str | None = opt(
        None,
        "Write the results of the gates as JUnit XML, for CI.",
        group=GATES,
        metavar="FILE",
        role=SHOWN,
        of_whole="gates",
    )
