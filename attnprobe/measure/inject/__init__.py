"""``attnprobe inject``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import UsageError
from ...frame.metric import INJECT, TAILS
from ...grammar.arithmetic import arithmetics
from ...grammar.lists import lengths, numbers, positive_numbers, positives
from ...judge.gates import Gated
from ...run.option import NUMBERS, PLACES, opt
from ...run.topics.reading import LAYERS, MOST, Reading, Statistics, WeightsWords, Windows, methods_option
from ...run.topics.running import RunRequest
from ...run.topics.showing import Gates, Output, plots_option, shown
from ...show.formats import FORMATS, LLAMACPP
from ..base import Experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...files import Fields
    from ...frame.rows import RowTypes
    from ...run.cells import Cells

POLICIES = ("topk", "h2o", "tova", "snapkv", "window", "random")  # of a decode for which a command names none
SHUFFLED = "shuffled"  # the control of a plan: its budgets at random heads
LAVA = "lava"  # a rival of plans: budgets by a prompt's own weights
EXACT = "exact"  # the unmodified model, whose own loss, needle and bytes stand beside those of methods

placed = partial(opt, group=PLACES)


def _budgets(text: str, what: str) -> tuple[float, ...]:
    """Whole numbers and ranges, and shares with a decimal point, in their order."""
    values: list[float] = []
    for part in text.split(","):
        # 1.0 may be meant as all keys or as one key, and they differ by the whole prompt.
        if "." in part and part.strip().strip("0") == "1.":
            raise UsageError(
                f"{what}={part.strip()} is the whole prompt; choose a share below 1, or its number of tokens"
            )
        values += positives(part, what) if "." in part else positive_numbers(part, what)
    return tuple(dict.fromkeys(values))


def keys_of_share(share: float, prompt: int) -> int:
    """The keys of a share of a prompt, at least one."""
    # 0.29 * 100 is below 29 in float64; the small number undoes that.
    return max(1, int(share * prompt + 1e-9))


def _shares(text: str, what: str) -> tuple[float, ...]:
    """Shares of bytes, above 0 and at most 1, in rising order."""
    values = positives(text, what)
    if values[-1] > 1:
        raise UsageError(f"{what}={values[-1]:g} is above all bytes of the prompt; choose shares up to 1, such as 0.25")
    return values


@dataclass(frozen=True, kw_only=True)
class InjectRequest(Windows, Statistics, WeightsWords, Reading, RunRequest):
    """Run a model with a method in place of its attention, and measure how far it drifts from itself.

    The drift is the relative error of the last hidden states. If the model has a head that predicts words, the command
    also measures the error of the logits, the KL divergence, the agreement of the likeliest word, and the loss: on the
    next word for causal models, and on 15 % masked words for masked ones. For encoders it measures the cosine of the
    mean-pooled embedding. The local error is that of the method on the Q, K and V of the replaced layers.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer",),
        "Methods with options. [default: skyformer; with decode six policies]",
        "NAME[:k=v,…]",
    )
    n: tuple[int, ...] | None = opt(
        None, "Sequence lengths, up to the model's positions. [default: 512]", parse=lengths
    )
    d: tuple[float, ...] = opt(
        (128,),
        "Budgets, such as 32,128; with decode also shares, such as 0.1.",
        parse=_budgets,
    )
    budgets: str | None = opt(
        None,
        "A file of budgets by layer and head, of `attnprobe budget`, instead of --d.",
        metavar="FILE",
        excludes={"d": "{value} holds the budgets", "bytes": "{value} holds the budgets"},
    )
    bytes: tuple[float, ...] | None = opt(
        None,
        "With decode, instead of --d: shares of the cache's bytes, such as 0.1,0.25.",
        parse=_shares,
        excludes={"d": "each method gets the budget that fits its bytes"},
        later=True,
    )
    layer: tuple[int, ...] | str | None = placed(
        None,
        "Layers replaced together. [default: global if there are both, else all]",
        parse=numbers,
        words=LAYERS,
    )
    phase: str = placed(
        "prefill",
        "prefill: the method reads all; decode: tokens behind a kept prompt.",
        metavar="prefill|decode",
        among=("prefill", "decode"),
        reads={"decode": ("prefix", "steps", "greedy_steps", "plan", "plan_windows", "question", "bytes", "prompt")},
        later=True,
    )
    prefix: int | None = placed(None, "Tokens of the prompt. [default: half of n]", between=(1, MOST), later=True)
    prompt: str = placed(
        "exact",
        "How the prompt is read before its cache is quantised.",
        metavar="exact|quantised",
        among=("exact", "quantised"),
        later=True,
    )
    steps: int | None = placed(
        None,
        "Steps after the prompt, instead of --prefix.",
        between=(1, MOST),
        excludes={"prefix": "the prompt has n - 1 - {value} tokens"},
        later=True,
    )
    question: str | None = placed(
        None,
        "Where the question of a needle:… text stands, instead of --steps.",
        metavar="inside|outside",
        among=("inside", "outside"),
        excludes={"prefix": "the prompt ends at the question", "steps": "the prompt ends at the question"},
        later=True,
    )
    greedy_steps: int = placed(
        0,
        "Also compare this many steps of greedy decoding.",
        between=(0, MOST),
        later=True,
    )
    per_layer: bool = placed(False, "Also replace each layer alone.")
    per_head: bool = placed(
        False,
        "Also replace each KV head alone, and say which local number predicts the damage.",
        later=True,
    )
    plan: str | None = placed(
        None,
        "With decode: also a plan of budgets by head, by residual, measured, row or mass.",
        metavar="NUMBER",
        among=("residual", "measured", "row", "mass"),
        later=True,
    )
    plan_windows: int = placed(
        4,
        "Windows on which a plan is made, behind the measured ones.",
        between=(1, MOST),
        later=True,
    )
    lines: bool = placed(False, "Read lines of the text instead of windows of n tokens.")
    batch: int = placed(1, "Windows in one forward pass.", between=(1, MOST))
    seed: int = opt(0, "Seed of random draws and of masked words.")
    repeats: int = opt(1, "Number of seeds of random methods, from --seed on.", between=(1, MOST))
    arithmetic: tuple[str, ...] | None = opt(
        None,
        "Also run each method in the arithmetic of these formats, such as bf16.",
        group=NUMBERS,
        metavar="FORMAT[:MODEL],…",
        parse=arithmetics,
        later=True,
    )
    model_dtype: str = opt(
        "float32",
        "The dtype of the model; auto is that of its configuration.",
        group=NUMBERS,
        metavar="DTYPE",
        among=("auto", "float64", "float32", "bfloat16", "float16"),
        called="model dtype",
    )

    head: ClassVar[str] = "all"
    scale_inputs: ClassVar[tuple[float, ...]] = (1.0,)  # a model computes its own scores
    target: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        # The default method of a prefill has no form for decoding.
        if self.phase == "decode" and self.budgets is None and self.origin.get("methods") == "default":
            object.__setattr__(self, "methods", POLICIES)
        if self.phase == "decode" and self.origin.get("input_statistics") == "default":  # half of the time of a prompt
            object.__setattr__(self, "input_statistics", False)
        super().__post_init__()
        if self.bytes is not None and (self.phase != "decode" or not all(0 < share <= 1 for share in self.bytes)):
            raise UsageError(
                f"bytes={self.bytes}: shares of a prompt's bytes, above 0 and up to 1, need --phase decode"
            )
        if self.arithmetic and self.phase == "decode":
            raise UsageError(
                f"arithmetic={','.join(self.arithmetic)}: --phase decode runs methods in the model's own arithmetic; "
                "choose --phase prefill"
            )
        for d in self.d:
            if not isinstance(d, int) and not 0 < d <= 1:
                raise UsageError(f"d={d:g}: a share of the prompt lies between 0 and 1; choose one, or a whole number")

    def prefix_at(self, n: int) -> int | None:
        """The tokens of n that exact attention reads before the first step; None without decoding."""
        if self.phase != "decode":
            return None
        if self.steps is not None:
            return n - 1 - self.steps
        return n // 2 if self.prefix is None else self.prefix

    def budgets_at(self, n: int) -> tuple[int, ...]:
        """The budgets at ``n`` tokens: whole numbers, and shares of the prompt as numbers of its keys."""
        prompt = self.prefix_at(n)
        if self.bytes is not None and prompt is not None:
            return tuple(dict.fromkeys(keys_of_share(share, prompt) for share in self.bytes))
        return tuple(
            dict.fromkeys(int(d) if isinstance(d, int) or prompt is None else keys_of_share(d, prompt) for d in self.d)
        )

    def known(self) -> dict[str, Any]:
        """The values of options, without those that a file of budgets sets; the layers are those replaced alone."""
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
    format_: str = shown(
        "table",
        f"{', '.join(FORMATS)}; with decode {LLAMACPP}.",
        flag="--format",
        metavar="FORMAT",
    )
    plots: tuple[str, ...] = plots_option(
        *(
            "inject",
            "inject-layers",
            "inject-local",
            "inject-rounding",
            "inject-bytes",
            "inject-answers",
            "inject-steps",
        )
    )


GATED = Gated((*INJECT, *TAILS), subjects=("format",))


def _cells() -> type[Cells]:
    from .measure import InjectCells

    return InjectCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


def _files(cells: Sequence[Fields]) -> dict[str, dict[str, Any]]:
    from .files import files_of

    return files_of(cells)


EXPERIMENT = Experiment(
    name="inject",
    summary="Put a method in place of a model's attention, and measure how far the model drifts.",
    request=InjectRequest,
    output=InjectOutput,
    load_cells=_cells,
    load_rows=_rows,
    gated=GATED,
    compared=("kl", "loss_change", "drift", "top1_agreement", "residual_sum"),
    whole=True,
    files_of=_files,
    examples=(
        "--model minilm --method skyformer,nystromformer --d 32,128 --per-layer --plot",
        "--model DIR --method window,performer --layer 0-5 --n 1024 --windows 8 --batch 4",
        "--model minilm --method nystromformer,performer --d 64 --per-layer --arithmetic bf16,fp16",
        "--method skyformer --fail-above drift=0.2",
    ),
)
measure_drift = EXPERIMENT.measure
