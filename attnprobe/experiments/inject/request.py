"""What ``attnprobe inject`` measures and shows; its fields are its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...run.option import opt
from ...run.topics import (
    MEASURED,
    MOST,
    NUMBERS,
    PLACES,
    Gates,
    Output,
    Reading,
    RunRequest,
    Statistics,
    WeightsWords,
    Windows,
    lengths,
    methods_option,
    numbers,
    plot_option,
)

__all__ = ["InjectOutput", "InjectRequest"]


@dataclass(frozen=True, kw_only=True)
class InjectRequest(Windows, Statistics, WeightsWords, Reading, RunRequest):
    """Run a model with a method in place of its attention, and measure how far it drifts from itself.

    The drift is the relative error of the last hidden states. Where the weights hold a head that predicts words also
    that of the logits, KL divergence, agreement of the likeliest word and the loss, of causal models on the next word
    and of masked ones on a hidden 15 % of the words; for encoders the cosine of the mean-pooled embedding. Beside each
    drift stands the local error of the method on the Q, K and V of the layers that it replaces.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer",),
        "Methods, repeatable and comma-separated; all is every registered method. [default: skyformer]",
        "NAME[:k=v,…]",
    )
    n: tuple[int, ...] | None = opt(
        None,
        "Sequence lengths, up to the model's positions. [default: 512]",
        group=MEASURED,
        metavar="LIST",
        parse=lengths,
    )
    d: tuple[int, ...] = opt((128,), "Budgets, such as 32,128.", group=MEASURED, metavar="LIST", parse=numbers)
    budgets: str | None = opt(
        None,
        "Budgets of a method by layer and head, as `attnprobe budget` writes them, instead of --d. Your own method "
        "runs where --method names it too.",
        group=MEASURED,
        metavar="FILE",
        excludes={"d": "{value} holds the budgets"},
    )
    layer: tuple[int, ...] | str | None = opt(
        "all",
        "The layers whose attention is replaced, together: 0,5 or 0-5 or all.",
        group=PLACES,
        metavar="LIST",
        parse=numbers,
        words=("all",),
    )
    per_layer: bool = opt(False, "Also replace each of them by itself.", group=PLACES)
    lines: bool = opt(
        False,
        "Read lines of the text, of n/2 tokens and more and cut at n, instead of windows of n tokens.",
        group=PLACES,
    )
    batch: int = opt(1, "Windows in one forward; lines are padded.", group=PLACES, between=(1, MOST))
    seed: int = opt(0, "Seed of the methods' draws, and of the hidden words of a masked-LM loss.", group=MEASURED)
    repeats: int = opt(1, "Seeds seed … seed+repeats-1 for random methods.", group=MEASURED, between=(1, MOST))
    model_dtype: str = opt(
        "float32",
        "The dtype of the model, auto as its configuration states; methods run in float32 at least.",
        group=NUMBERS,
        metavar="auto|float64|float32|bfloat16|float16",
        among=("auto", "float64", "float32", "bfloat16", "float16"),
        called="model dtype",
    )

    head: ClassVar[str] = "all"
    scale_inputs: ClassVar[tuple[float, ...]] = (1.0,)  # a model computes its own scores
    target: ClassVar[str] = "softmax"

    def known(self) -> dict[str, Any]:
        """The values of options, but for those that a file of budgets decides; the layers are those alone."""
        values = super().known()
        if self.budgets is not None:
            del values["methods"], values["d"]
        if not self.per_layer:
            values["layer"] = ()
        return values

    @property
    def dtype(self) -> str:
        """The dtype that methods run in."""
        return "float64" if self.model_dtype == "float64" else "float32"


@dataclass(frozen=True, kw_only=True)
class InjectOutput(Output, Gates):
    plot: bool = plot_option(
        "Draw the profile of layers, and local error against drift, into the run's "
        "figures/ (SVG and PNG); they need --per-layer."
    )
