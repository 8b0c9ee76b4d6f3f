"""The options that commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

__all__ = [
    "PLACES",
    "debug_option",
    "device_options",
    "elsewhere_options",
    "format_option",
    "gate_options",
    "input_options",
    "kinds_from",
    "model_options",
    "origins",
    "place_options",
    "refuse_contradictions",
    "refuse_unknown_format",
    "run_options",
    "source_from",
    "source_options",
    "split_option",
    "statistics_option",
    "weights_from",
]

split_option = click.option(
    "--split", default="test", show_default=True, metavar="train|validation|test", help="Which split of Wikitext-2."
)
device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda|cuda:N",
    help="auto is cuda where there is one.",
)
dtype_option = click.option(
    "--dtype",
    default="float32",
    show_default=True,
    metavar="float64|float32|bfloat16|float16",
    help="The dtype that methods run in; exact outputs are always float64.",
)
strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Refuse every substitution of a source instead of noting it; an undecided gate fails.",
)
DEVICE = (device_option, dtype_option, strict_option)
READ = (
    click.option(
        "--model",
        metavar="ID|DIR|minilm",
        help="A hub id, a directory, or the packaged MiniLM weights. [default: bert-base-cased, or what can be had]",
    ),
    click.option(
        "--weights",
        default="pretrained",
        show_default=True,
        metavar="pretrained|initialized|initialized-qkv",
        help="Pretrained weights; all random (needs no download); or pretrained with random W_Q, W_K, W_V; "
        "error and spectrum take several, comma-separated.",
    ),
    click.option("--weights-seed", default=0, show_default=True, help="Seed of random weights."),
    click.option(
        "--text",
        metavar="wikitext-2|wikitext-2:tokenised|embedded|FILE",
        help="The text to read. [default: wikitext-2, or the embedded text where it cannot be had]",
    ),
    split_option,
    click.option("--tokenizer", metavar="ID|DIR|VOCAB", help="Another tokenizer than the model's own."),
)
QKV = (
    click.option(
        "--positions",
        default="segment",
        show_default=True,
        metavar="segment|wrap|interpolate",
        help="What happens beyond the model's positions: segments read one by one and concatenated (the "
        "papers' protocol), positions that wrap around, or interpolated ones.",
    ),
    click.option("--qkv", metavar="FILE", help="Q, K and V from a safetensors file instead of a model and a text."),
)
SOURCE = (*READ, *QKV, *DEVICE)
MODEL = (*READ, device_option, strict_option)  # of a command that runs a whole model

debug_option = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
format_option = click.option(
    "--format",
    "format_",
    default="table",
    show_default=True,
    metavar="table|json|jsonl|csv|md|latex",
    help="What is printed on stdout.",
)


PLACES = (
    click.option("--layer", metavar="LIST", help="Layers: 0,5 or 0-5 or all. [default: 0]"),
    click.option("--head", default="all", show_default=True, metavar="LIST", help="Heads: 0,5 or 0-5 or all."),
    click.option("--windows", default=1, show_default=True, help="How many windows of the text."),
)


statistics_option = click.option(
    "--input-statistics/--no-input-statistics",
    default=True,
    show_default=True,
    help="Whether to tell what Q, K and V are like: scores, entropy, sinks, norms, stable ranks.",
)
INPUTS = (
    click.option(
        "--scale-inputs",
        default="1",
        show_default=True,
        metavar="LIST",
        help="Factors s of the scores, such as 0.5,1,2,4, each measured beside the others: Q and K are each "
        "multiplied by √s, so B is softmax(s S) and C_ij is C_ij^s. Stresses methods beyond the data.",
    ),
    statistics_option,
)
RUN = (
    click.option(
        "--out",
        metavar="DIR",
        help="The run's folder; what is done there already is not measured again. [default: a new one under outputs/]",
    ),
    click.option("--force", is_flag=True, help="Measure again what --out holds already."),
    click.option("--retry-failed", is_flag=True, help="Measure again what failed in --out."),
    click.option(
        "--cell-timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="A method that takes longer on one layer fails there, and the run goes on. It is measured in a worker "
        "process: what cannot be interrupted is ended with that process 5 s later.",
    ),
)


ELSEWHERE = (
    click.option(
        "--shard",
        metavar="I/N",
        help="Measure part I of N of the groups (weights, n, window, layer; of stability task and seed), from "
        "1/N to N/N, into files of its own in --out: for Slurm arrays and CI matrices. Once all have run, "
        "`attnprobe report DIR`, or the command without --shard, shows the whole.",
    ),
    click.option(
        "--jobs",
        type=int,
        metavar="N",
        help="Measure groups in N processes side by side, which share the "
        "GPUs and torch's threads; bench runs one at a time on each device. [default: one per visible GPU, 1 on a "
        "CPU and of bench, with ray as many as fit]",
    ),
    click.option(
        "--backend",
        default="local",
        show_default=True,
        metavar="local|ray",
        help="Where the processes are: on this machine, or on a Ray cluster; needs pip install 'attnprobe[ray]'.",
    ),
    click.option(
        "--ray-address",
        metavar="HOST:PORT|auto|local",
        help="The cluster to join; auto is the one that "
        "this node is of, local starts a private one of this machine for the length of the run.",
    ),
    click.option(
        "--gpus-per-task",
        type=float,
        metavar="F",
        help="GPUs that each process of --backend ray asks for, "
        "or a fraction of one. [default: 1 where the cluster has any and --device is not cpu, else 0]",
    ),
    click.option(
        "--cpus-per-task",
        type=int,
        metavar="N",
        help="CPUs that each process of --backend ray asks for, and its threads. [default: 1]",
    ),
)


def elsewhere_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which groups of cells a run measures, and in which processes."""
    for option in reversed(ELSEWHERE):
        function = option(function)
    return function


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where a run's folder is, and what becomes of what it holds."""
    for option in reversed(RUN):
        function = option(function)
    return function


def input_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is made of Q, K and V before anything is measured."""
    for option in reversed(INPUTS):
        function = option(function)
    return function


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where and in what numbers are computed, and whether a source may be substituted."""
    for option in reversed(DEVICE):
        function = option(function)
    return function


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where in the model and the text: layers, heads, windows."""
    for option in reversed(PLACES):
        function = option(function)
    return function


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where Q, K and V come from."""
    for option in reversed(SOURCE):
        function = option(function)
    return function


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which whole model reads which text."""
    for option in reversed(MODEL):
        function = option(function)
    return function


def gate_options(
    value: str = "a statistic (default: mean) of a line of the table",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say which values may not be exceeded, and where that is written.

    Args:
        value: what a gate is held against, in the words of the help.
    """
    options = (
        click.option(
            "--fail-above",
            "gates",
            multiple=True,
            metavar="METRIC[.STAT]=VALUE",
            help=f"Exit 1 where {value} exceeds the value, or is missing.",
        ),
        click.option("--junit", metavar="FILE", help="Write what became of --fail-above as JUnit XML, for CI."),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def refuse_contradictions() -> None:
    """Refuse lists that are none and options that exclude each other, before anything heavy loads."""
    from ..config import Asked, refuse_lists, refuse_pairs

    ctx = click.get_current_context()
    defaults = {option.name: option.default for option in ctx.command.params}
    asked = Asked(ctx.params, defaults, origins(), ctx.obj)
    refuse_lists(asked)
    refuse_pairs(asked)


def refuse_unknown_format(format_: str) -> None:
    """Refuse a ``--format`` that nothing is rendered in."""
    from ..errors import unknown
    from ..tables.view import FORMATS

    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)


def kinds_from(plots: tuple[str, ...], known: Sequence[str]) -> list[str]:
    """The kinds of figures that ``--plot`` names."""
    from ..errors import unknown

    kinds = [kind.strip() for text in plots for kind in text.split(",")]
    for kind in kinds:
        if kind not in known:
            raise unknown("plot", kind, known)
    return kinds


def weights_from(given: dict[str, Any]) -> tuple[str, ...]:
    """The words of ``--weights``, the first of which stays in ``given``."""
    from ..errors import UsageError

    words = tuple(word.strip() for word in given["weights"].split(","))
    if not all(words):
        raise UsageError(f"weights '{given['weights']}': an empty word; write pretrained,initialized")
    given["weights"] = words[0]
    return words


def source_from(given: dict[str, Any]) -> Any:
    """The `SourceSpec` of the parsed options, which it takes out of ``given``."""
    from ..sources import SourceSpec

    names = (
        "model",
        "weights",
        "weights_seed",
        "text",
        "split",
        "tokenizer",
        "positions",
        "device",
        "dtype",
        "strict",
        "qkv",
    )
    return SourceSpec(**{name: given.pop(name) for name in names})


def origins() -> dict[str, str]:
    """Where each option's value came from: command line, environment, a sweep's file, or default."""
    ctx = click.get_current_context()
    words = {
        ParameterSource.COMMANDLINE: "command line",
        ParameterSource.ENVIRONMENT: "environment",
        ParameterSource.DEFAULT_MAP: "file",
    }
    return {name: words.get(ctx.get_parameter_source(name), "default") for name in ctx.params}
