"""``attnprobe inject``: the request, whose fields are the command's options, and what is light of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ...errors import UsageError
from ...frame.metric import INJECT, TAILS
from ...grammar.lists import lengths, numbers, positive_numbers, positives
from ...judge.gates import Gated
from ...run.option import NUMBERS, PLACES, opt
from ...run.topics.arithmetic import ARITHMETICS, FORMATS, arithmetics
from ...run.topics.reading import LAYERS, MOST, Reading, Statistics, WeightsWords, Windows, methods_option
from ...run.topics.running import RunRequest
from ...run.topics.showing import Gates, Output, plots_option, shown
from ...show.formats import LLAMACPP, metavar
from ..base import Experiment

POLICIES = ("topk", "h2o", "tova", "snapkv", "window", "random")  # of a decode for which a command names none
SHUFFLED = "shuffled"  # the control of a plan: its budgets at random heads
LAVA = "lava"  # a rival of plans: budgets by a prompt's own weights
EXACT = "exact"  # the unmodified model, whose own loss, needle and bytes stand beside those of methods

placed = partial(opt, group=PLACES)


def _budgets(text: str, what: str) -> tuple[float, ...]:
    """Whole numbers and ranges, and shares with a decimal point, in their order."""
    values: list[float] = []
    for part in text.split(","):
        if "." in part and part.strip().strip("0") == "1.":
            raise UsageError(
                f"{what}={part.strip()} is the whole prompt; choose a share below 1, or its number of tokens"
            )
        values += positives(part, what) if "." in part else positive_numbers(part, what)
    return tuple(dict.fromkeys(values))


def _keys(share: float, prompt: int) -> int:
    """The keys of a share of a prompt, at least one."""
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
        "Methods; repeatable and comma-separated. `all` is every registered method. [default: skyformer; with --phase "
        "decode topk,h2o,tova,snapkv,window,random]",
        "NAME[:k=v,…]",
    )
    n: tuple[int, ...] | None = opt(
        None, "Sequence lengths, up to the model's positions. [default: 512]", parse=lengths
    )
    d: tuple[float, ...] = opt(
        (128,),
        "Budgets, such as 32,128; with --phase decode also shares of the prompt, such as 0.1,0.25.",
        parse=_budgets,
    )
    budgets: str | None = opt(
        None,
        "A file of budgets by layer and head, as `attnprobe budget` writes it, instead of --d. If its method is your "
        "own, --method must name it too.",
        metavar="FILE",
        excludes={"d": "{value} holds the budgets", "bytes": "{value} holds the budgets"},
    )
    bytes: tuple[float, ...] | None = opt(
        None,
        "With --phase decode, instead of --d: shares of the bytes of the prompt's keys and values in 16 bits a number, "
        "such as 0.1,0.25. Each method gets the largest budget that fits: keys of a policy, bits of a format.",
        parse=_shares,
        excludes={"d": "each method gets the budget that fits its bytes"},
        later=True,
    )
    layer: tuple[int, ...] | str | None = placed(
        None,
        "Layers whose attention is replaced together: 0,5 or 0-5 or all; global are those without a sliding window, "
        "local those with one. [default: global if there are both, else all]",
        parse=numbers,
        words=LAYERS,
    )
    phase: str = placed(
        "prefill",
        "prefill: the method reads the whole text at once. decode: exact attention reads a prompt, and each later "
        "token sees all tokens after the prompt and what the method keeps or reads of it; for causal models. "
        "Statistics of inputs are then measured with --input-statistics only.",
        metavar="prefill|decode",
        among=("prefill", "decode"),
        reads={"decode": ("prefix", "steps", "greedy_steps", "plan", "plan_windows", "question", "bytes", "prompt")},
        later=True,
    )
    prefix: int | None = placed(None, "Tokens of the prompt. [default: half of n]", between=(1, MOST), later=True)
    prompt: str = placed(
        "exact",
        "How the prompt is read before its cache is quantised: exact, by the unmodified model; quantised, where each "
        "layer reads quantised keys and values in the prompt's own forward too. For formats, alone or behind a policy.",
        metavar="exact|quantised",
        among=("exact", "quantised"),
        later=True,
    )
    steps: int | None = placed(
        None,
        "Steps after the prompt, instead of --prefix: the prompt has n - 1 - STEPS tokens.",
        between=(1, MOST),
        excludes={"prefix": "the prompt has n - 1 - {value} tokens"},
        later=True,
    )
    question: str | None = placed(
        None,
        "Of a text such as needle:pairs=16,answer=1, instead of --steps: whether the question is inside the prompt, or "
        "outside, behind it. The table then has the loss and the rank of the answer's tokens.",
        metavar="inside|outside",
        among=("inside", "outside"),
        excludes={"prefix": "the prompt ends at the question", "steps": "the prompt ends at the question"},
        later=True,
    )
    greedy_steps: int = placed(
        0,
        "Also this many steps of greedy decoding from the prompt, compared with those of exact attention.",
        between=(0, MOST),
        later=True,
    )
    per_layer: bool = placed(False, "Also replace each of these layers alone.")
    per_head: bool = placed(
        False,
        "Also replace each KV head of these layers alone, and print which local number predicts the damage.",
        later=True,
    )
    plan: str | None = placed(
        None,
        "With --phase decode: also a plan of budgets for each policy that compresses, at each d. It gives each KV head "
        "its own number of keys, with a mean of d, by the residual error, the row error or the lost mass of each head "
        "alone, on other windows. measured is the residual error times the sensitivity of its layer, measured with "
        "random keys. The control has these budgets at random heads, and LAVa's budgets stand beside it. The run's "
        "folder gets the plans.",
        metavar="residual|measured|row|mass",
        among=("residual", "measured", "row", "mass"),
        later=True,
    )
    plan_windows: int = placed(
        4,
        "The windows on which a plan is made. They follow the measured ones in the text.",
        between=(1, MOST),
        later=True,
    )
    lines: bool = placed(
        False, "Read lines of the text (at least n/2 tokens, cut at n) instead of windows of n tokens."
    )
    batch: int = placed(1, "Windows in one forward pass; lines are padded.", between=(1, MOST))
    seed: int = opt(0, "Seed of the methods' random draws and of the masked words.")
    repeats: int = opt(1, "Number of seeds for random methods: seed … seed+repeats-1.", between=(1, MOST))
    arithmetic: tuple[str, ...] | None = opt(
        None,
        "Also run each method in the arithmetic of these formats, emulated as `attnprobe rounding` does, and in "
        "float64, from which the model's drift is measured then; FORMAT:MODEL names what is rounded, and every is the "
        "model that is not written.",
        group=NUMBERS,
        metavar=f"{'|'.join(FORMATS)}[:{'|'.join(ARITHMETICS)}]",
        parse=arithmetics,
        later=True,
    )
    model_dtype: str = opt(
        "float32",
        "The dtype of the model; auto takes that of its configuration. Methods run in float32 or float64.",
        group=NUMBERS,
        metavar="auto|float64|float32|bfloat16|float16",
        among=("auto", "float64", "float32", "bfloat16", "float16"),
        called="model dtype",
    )

    head: ClassVar[str] = "all"
    scale_inputs: ClassVar[tuple[float, ...]] = (1.0,)  # a model computes its own scores
    target: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
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
            return tuple(dict.fromkeys(_keys(share, prompt) for share in self.bytes))
        return tuple(
            dict.fromkeys(int(d) if isinstance(d, int) or prompt is None else _keys(d, prompt) for d in self.d)
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
        "Format of the output on stdout. llamacpp, with --phase decode, is the block of statistics that llama.cpp's "
        "perplexity tool prints of a divergence, for each method.",
        flag="--format",
        metavar=metavar(LLAMACPP),
    )
    plots: tuple[str, ...] = plots_option(
        "Draw drift by layer and local error against drift (with --per-layer), what rounding adds to both (with "
        "--arithmetic), and divergence against bytes and steps (with --phase decode), into figures/; inject (--plot "
        "alone) is all of these.",
        *("inject", "inject-layers", "inject-local", "inject-rounding", "inject-bytes", "inject-steps"),
    )


GATED = Gated((*INJECT, *TAILS), subjects=("format",))
EXPERIMENT = Experiment(
    name="inject",
    summary="Put a method in place of a model's attention, and measure how far the model drifts.",
    request=InjectRequest,
    output=InjectOutput,
    gated=GATED,
    compared=("kl", "loss_change", "drift", "top1_agreement", "residual_sum"),
    whole=True,
    writes=True,
    examples=(
        "--model minilm --method skyformer,nystromformer --d 32,128 --per-layer --plot",
        "--model DIR --method window,performer --layer 0-5 --n 1024 --windows 8 --batch 4",
        "--model minilm --budgets budgets.json",
        "--model minilm --method nystromformer,performer --d 64 --per-layer --arithmetic bf16,fp16",
        "--method skyformer --fail-above drift=0.2",
    ),
    python=(
        "from attnprobe.measure.inject import InjectRequest, measure_drift",
        'measure_drift(InjectRequest(model="minilm", d=(32, 128))).outcome.records',
    ),
)
measure_drift = EXPERIMENT.measure
