"""Every number that attnprobe measures, declared once: `METRICS`. Tables, figures, gates, compare and docs read it.

`METRICS` has a `Metric` for each column of numbers that a frame may have. E is B − B~, the error of the matrix, and EV
that of the output; O is exact attention's output for the inputs of a kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

ROUNDING = 1e-5  # relative errors below it may be rounding alone


@dataclass(frozen=True)
class Metric:
    """A metric: what it is called, its better direction, and the scale on which changes are judged.

    Attributes:
        title: a few words, for the axis of a figure.
        meaning: one line of at most 100 characters, for a legend.
        symbol, tex: the symbol in a terminal and in LaTeX, which no other metric has. The title if it has none.
        unit: of its values; empty for pure numbers.
        better: ``smaller`` or ``larger``; None where no value is better than another.
        scale: what a tolerance is a share of. ``relative``: of the size of a. ``complement``: of that of 1 − a, for
            cosines, whose distance from 1 is the error. ``absolute``: of 1, for shares of rows or heads.
        floor: a change of at most this size counts as none, in the units of `cost`.
        rounds: whether values up to `ROUNDING` may be rounding alone, as relative errors of methods.
        timed: whether two equal runs differ in it, as they do in times.
        steady: whether the normaliser of a method's rows cannot move it: counts, costs, and what exact attention has.
        signed: whether it has no least value, as cosines and errors do.
        made_of: the metrics from whose means over windows its mean is computed, by ``formula``. It has no other
            statistic, and runs are compared by the last of them, ``of_mean``.
    """

    name: str
    title: str
    meaning: str
    symbol: str = ""
    tex: str = ""
    unit: str = ""
    better: str | None = "smaller"
    scale: str = "relative"
    floor: float = 0.0
    rounds: bool = False
    timed: bool = False
    steady: bool = False
    signed: bool = False
    made_of: tuple[str, ...] = ()
    formula: Callable[..., float] = max

    def __post_init__(self) -> None:
        symbol = self.symbol or self.title
        # the class is frozen: a metric changes only here, where it is made
        object.__setattr__(self, "symbol", symbol)
        object.__setattr__(self, "tex", self.tex or symbol)

    @property
    def of_mean(self) -> str | None:
        return self.made_of[-1] if self.made_of else None

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of its values; shares of weights that can be negative have no upper one.

        >>> METRICS["output_spectral"].range, METRICS["cosine"].range, METRICS["loss_change"].range
        ((0.0, inf), (-1.0, 1.0), (-inf, inf))
        """
        return (-1.0, 1.0) if self.scale == "complement" else (-math.inf if self.signed else 0.0, math.inf)

    def cost(self, value: Any) -> Any:
        """The value, a number or a tensor, as a quantity of which less is better: 1 − x for a cosine.

        >>> METRICS["output_cosine_min"].cost(0.75), METRICS["slack"].cost(2.0), METRICS["delta"].cost(0.5)
        (0.25, -2.0, 0.5)
        """
        if self.scale == "complement":
            return 1 - value
        return -value if self.better == "larger" else value

    def tolerated(self, a: float, tolerance: float) -> float:
        """The largest change from ``a`` within a tolerance.

        >>> METRICS["output_spectral"].tolerated(4.0, 0.25), METRICS["cosine"].tolerated(-0.5, 0.5)
        (1.0, 0.75)
        """
        size = 1.0 if self.scale == "absolute" else abs(self.cost(a))
        return max(tolerance * size, self.floor)


def perplexity(loss: float) -> float:
    """``exp(loss)``, at most exp(700); NaN for a loss that is not finite."""
    return math.exp(min(loss, 700.0)) if math.isfinite(loss) else math.nan  # exp(710) overflows float64


def perplexity_change(loss: float, change: float) -> float:
    """The perplexity of a loss less that of the model's own."""
    return perplexity(loss) - perplexity(loss - change)


def cosine(name: str, title: str, meaning: str, symbol: str = "", tex: str = "") -> Metric:
    """A cosine: better near 1. Rounding in float32 moves 1 − x by about the floor."""
    return Metric(name, title, meaning, symbol, tex, better="larger", scale="complement", floor=1e-6)


def share(
    name: str,
    title: str,
    meaning: str,
    symbol: str = "",
    tex: str = "",
    better: str | None = "smaller",
    steady: bool = False,
) -> Metric:
    """A share of rows, heads or weights, or another number whose changes are judged as they are."""
    return Metric(name, title, meaning, symbol, tex, better=better, scale="absolute", steady=steady)


def fact(name: str, title: str, meaning: str, symbol: str = "", tex: str = "", unit: str = "", **facts: Any) -> Metric:
    """A steady metric: a count, a cost, or a number of exact attention."""
    return Metric(name, title, meaning, symbol, tex, unit, steady=True, **facts)


def described(name: str, title: str, meaning: str, symbol: str = "", tex: str = "", unit: str = "") -> Metric:
    """A steady metric of which no value is better than another: a property of the inputs or of a matrix."""
    return fact(name, title, meaning, symbol, tex, unit, better=None)


OUTPUT = (  # errors of a head's output
    Metric("output_spectral", "output error", "largest error of the output, in the units of V", "‖EV‖₂", r"$\|EV\|_2$"),
    Metric(
        "output_spectral_relative",
        "relative output error",
        "error of the output over the size of the output, spectral norm; zeros have 1",
        "‖EV‖₂ / ‖BV‖₂",
        r"$\|EV\|_2 / \|BV\|_2$",
        rounds=True,
    ),
    Metric(
        "output_frobenius", "output error, Frobenius", "error of a typical row of the output", "‖EV‖_F", r"$\|EV\|_F$"
    ),
    Metric(
        "output_frobenius_relative",
        "relative output error, Frobenius",
        "error of the output over the size of the output, Frobenius norm",
        "‖EV‖_F / ‖BV‖_F",
        r"$\|EV\|_F / \|BV\|_F$",
        rounds=True,
    ),
    Metric(
        "output_row_relative_max",
        "relative error of the worst row",
        "largest relative error of a token's output",
        "max ‖(EV)_i‖ / ‖(BV)_i‖",
        r"$\max_i \|(EV)_i\| / \|(BV)_i\|$",
    ),
    cosine("output_cosine_min", "least cosine of a row", "smallest cosine of a token's output with the exact output"),
)
MATRIX = (  # errors of the attention matrix
    Metric("matrix_spectral", "matrix error", "error of the attention matrix for the worst V", "‖E‖₂", r"$\|E\|_2$"),
    Metric(
        "matrix_spectral_relative",
        "relative matrix error",
        "error of the attention matrix over the size of the matrix; upper end of a certified interval",
        "‖E‖₂ / ‖B‖₂",
        r"$\|E\|_2 / \|B\|_2$",
        rounds=True,
    ),
    Metric("matrix_frobenius", "matrix error, Frobenius", "error of all entries together", "‖E‖_F", r"$\|E\|_F$"),
    Metric(
        "matrix_frobenius_relative",
        "relative matrix error, Frobenius",
        "error of all entries over the size of the matrix",
        "‖E‖_F / ‖B‖_F",
        r"$\|E\|_F / \|B\|_F$",
        rounds=True,
    ),
    Metric(
        "matrix_infinity",
        "largest row of the matrix error",
        "largest sum of absolute errors in a row",
        "‖E‖_∞",
        r"$\|E\|_\infty$",
    ),
)
DIAGNOSTICS = (  # of a method
    fact("bad_rows", "bad rows", "rows whose normaliser is not positive or lost to rounding", unit="rows"),
    fact("guarded_rows", "guarded rows", "bad rows that the method replaced", unit="rows"),
    fact("rounded_rows", "rounded rows", "rows whose values rounding decides", unit="rows"),
    fact("visited_fraction", "entries visited", "scores or features computed, over queries times keys", "visited"),
)
SELECTED = (  # what methods that select keys compute and read for a query
    fact("scored", "scores to choose keys", "scores computed to choose the keys of a query", "scored", unit="tokens"),
    fact("kv_read", "keys read", "keys that the query heads of a KV head read for a query", unit="tokens"),
)
INVERSE = (
    fact(
        "inverse_residual",
        "inverse residual",
        "how far the core N and its inverse Z are from a product I: 0 exact, 1 not inverted",
        "‖I − NZ‖_F / √d",
        r"$\|I - NZ\|_F / \sqrt{d}$",
    ),
    described("delta", "spectral shift", "the shift δ of spectral-shift methods", "δ", r"$\delta$"),
    fact("seconds", "time", "time of a method for all heads of a layer", unit="s", timed=True),
)
KERNELS = (  # errors of kernels of exact attention
    cosine(
        "cosine",
        "cosine of outputs",
        "cosine of all entries with the exact output",
        "cos(O~, O)",
        r"$\cos(\tilde O, O)$",
    ),
    Metric(
        "max_abs",
        "largest error of an entry",
        "largest error, in the units of V",
        "max |O~ − O|",
        r"$\max|\tilde O - O|$",
    ),
    Metric(
        "relative_frobenius",
        "relative kernel error, Frobenius",
        "error of all entries over the size of the exact output",
        "‖O~ − O‖_F / ‖O‖_F",
        r"$\|\tilde O - O\|_F / \|O\|_F$",
    ),
    Metric("row_error_p50", "median row error", "median over rows of the relative error of a row", "row p50"),
    Metric("row_error_p99", "row error, p99", "99 % quantile over rows of the relative error of a row", "row p99"),
    Metric("row_error_p99_9", "row error, p99.9", "99.9 % quantile over rows of the relative error", "row p99.9"),
    share("rows_within", "rows within the tolerance", "share of rows within --row-tolerance", better="larger"),
    Metric(
        "ratio_to_framework",
        "error over plain torch's",
        "largest error over that of plain torch",
        "× framework",
        r"$\times$ framework",
    ),
    Metric(
        "ratio_to_framework_frobenius",
        "error over plain torch's, Frobenius",
        "Frobenius error over that of plain torch",
        "× framework, F",
        r"$\times$ framework, F",
    ),
    fact("framework_max_abs", "plain torch's largest error", "largest error of plain torch in the kernel's dtype"),
    fact("framework_relative_frobenius", "plain torch's error, Frobenius", "Frobenius error of plain torch"),
)
JUDGED = (  # of a kernel's output on a case of a pack
    Metric(
        "excess",
        "error over tolerance",
        "largest error of an entry over its tolerance; above 1 is wrong",
        "error / tol.",
    ),
    Metric(
        "lse_excess", "error of lse over tolerance", "largest error of the log-sum-exp over its tolerance", "lse / tol."
    ),
    share("queries_within", "queries within tolerance", "share of queries with all entries within", better="larger"),
    fact("entries_not_finite", "entries not finite", "entries of the output that are NaN or infinite"),
)
CHOICE = ("mass", "mass_p10", "mass_efficiency", "recall_k")  # of keys: 1 for a method that uses all of them
ROWS = (  # of attention rows, each a distribution over keys
    share("mass", "mass kept", "exact weight of the keys that the method uses", better="larger", steady=True),
    share("mass_p10", "mass kept, p10 of rows", "10 % quantile over rows of the mass", better="larger", steady=True),
    share(
        "mass_efficiency",
        "mass over the best",
        "mass over the most that as many keys could hold",
        better="larger",
        steady=True,
    ),
    share(
        "recall_k", "recall of the largest keys", "share of the largest keys that is used", better="larger", steady=True
    ),
    share("needle_mass_kept", "needle's mass kept", "the method's weight of the needle", better="larger", steady=True),
    share(
        "mass_oracle", "best possible mass", "most exact weight that as many keys can hold", better=None, steady=True
    ),
    share(
        "distant_mass",
        "distant mass",
        "exact weight beyond the first 4 and the nearest 64 keys",
        better=None,
        steady=True,
    ),
    share("needle_mass", "needle's mass", "exact weight of the needle", better=None, steady=True),
    share("tv", "total variation", "half the absolute errors in a row", "½ Σ|E_ij|", r"$\frac{1}{2}\sum_j|E_{ij}|$"),
    share("js", "Jensen-Shannon divergence", "Jensen-Shannon divergence of rows, in nats: 0 to ln 2", "JS"),
    Metric(
        "kl", "KL divergence", "divergence of rows, or of a model's predictions, from the exact ones", "KL", unit="nats"
    ),
    Metric(
        "log_normaliser_error",
        "log error of the normaliser",
        "mean over rows of ln of the normaliser over the exact one: its bias",
        "ln(D~ / D)",
        r"$\ln(\tilde D / D)$",
        better=None,
        scale="absolute",
        signed=True,  # a bias
    ),
    Metric(
        "log_normaliser_error_sd",
        "spread of the log normaliser",
        "standard deviation over rows of ln of the normaliser over the exact one: its noise",
        "s.d. ln(D~ / D)",
        r"s.d. $\ln(\tilde D / D)$",
        scale="absolute",
    ),
    Metric("row_error_p90", "row error, p90", "90 % quantile over rows of the relative error of a row", "row p90"),
    Metric("row_error_max", "largest row error", "largest relative error of a row", "row max"),
    Metric(
        "row_error_angle",
        "angle of rows",
        "1 − cosine of a row with the exact row, mean over rows",
        "1 − cos",
        r"$1 - \cos$",
    ),
    Metric("residual_error", "residual error", "size of the error beside the model's residual stream, from 0 to 1"),
    Metric("tail_gap", "tail gap", "how much a unit of lost mass costs"),
    described("keys", "keys used", "keys with a weight in a row", unit="tokens"),
    described("support", "effective keys", "exp of the entropy of an exact row", unit="tokens"),
    described("k_50", "keys that hold 0.5", "fewest keys with an exact weight of 0.5", "k₅₀", "$k_{50}$", "tokens"),
    described("k_90", "keys that hold 0.9", "fewest keys with an exact weight of 0.9", "k₉₀", "$k_{90}$", "tokens"),
    described("k_99", "keys that hold 0.99", "fewest keys with an exact weight of 0.99", "k₉₉", "$k_{99}$", "tokens"),
)
COSTS = (
    fact(
        "ratio_to_exact",
        "time over exact attention's",
        "time over torch's fused exact attention",
        "time / exact",
        timed=True,
    ),
    # the allocator's pages: two equal runs differ by less
    fact("peak_bytes", "peak memory", "peak memory beyond Q, K and V", "memory", unit="bytes", floor=2.0**20),
    fact("flops", "counted operations", "operations of matrix products, two for a multiply-add", "FLOP"),
)
GROWTH = (
    Metric("time_exponent", "growth of time", "slope of ln time over ln n"),
    Metric("memory_exponent", "growth of memory", "slope of ln memory over ln n"),
)
MODELS = (  # of a whole model with a method in place of its attention
    Metric(
        "drift",
        "drift",
        "relative error of the last hidden states",
        "‖ΔH‖ / ‖H‖",
        r"$\|\Delta H\|_F / \|H\|_F$",
        rounds=True,
    ),
    Metric("logits_drift", "drift of logits", "relative error of the logits", rounds=True),
    share(
        "top1_agreement",
        "equal predictions",
        "share of predictions with the same likeliest word",
        "top-1",
        better="larger",
    ),
    Metric(
        "kl_so_far", "KL divergence so far", "mean divergence of the predictions up to a step", "KL so far", unit="nats"
    ),
    *(
        Metric(
            name,
            f"KL, {words}",
            f"{meaning} of the KL divergence of single tokens",
            f"KL {words}",
            f"KL {words}".replace("%", r"\%"),
            unit="nats",
        )
        for name, words, meaning in (
            ("kl_median", "median", "median"),
            ("kl_p90", "90 %", "90 % quantile"),
            ("kl_p95", "95 %", "95 % quantile"),
            ("kl_p99", "99 %", "99 % quantile"),
            ("kl_p999", "99.9 %", "99.9 % quantile"),
            ("kl_max", "maximum", "maximum"),
        )
    ),
    share(
        "dp_rms",
        "RMS Δp",
        "root mean square of the change of the right word's probability",
        tex=r"RMS $\Delta p$",
    ),
    Metric("loss", "loss", "mean of −ln p of the right word or class", unit="nats"),
    fact("loss_own", "model's own loss", "loss of the model with exact attention", unit="nats"),
    Metric(
        "loss_change",
        "loss change",
        "loss less that of the model with exact attention",
        "Δloss",
        r"$\Delta$loss",
        "nats",
        signed=True,
    ),
    Metric("perplexity", "perplexity", "exp of the mean loss over windows", made_of=("loss",), formula=perplexity),
    fact(
        "perplexity_own",
        "model's own perplexity",
        "perplexity with exact attention",
        made_of=("loss_own",),
        formula=perplexity,
    ),
    Metric(
        "perplexity_change",
        "perplexity change",
        "perplexity less the model's own",
        signed=True,
        made_of=("loss", "loss_change"),
        formula=perplexity_change,
    ),
    cosine("embedding_cosine", "cosine of embeddings", "cosine of mean-pooled hidden states with the model's own"),
    Metric("local_error", "local error", "relative output error of the replaced layers, mean over heads", rounds=True),
    described(
        "realised_d", "budget used", "keys or landmarks that a row used, mean over rows", "d used", unit="tokens"
    ),
    Metric("row_error", "row error", "relative error of a row of the output, mean over rows", rounds=True),
    Metric(
        "spectral_error",
        "matrix error of replaced heads",
        "relative matrix error, mean over replaced heads",
        rounds=True,
    ),
    Metric(
        "residual_heads", "residual error of heads", "residual errors of each head alone, summed over heads and layers"
    ),
    Metric("residual_sum", "residual sum", "errors beside their own and the last residual stream, summed over layers"),
    share("lost_mass", "lost mass", "exact weight of the keys that a step does not see", steady=True),
    Metric(
        "first_divergence",
        "equal first steps",
        "first steps with the same likeliest word",
        unit="tokens",
        better="larger",
    ),
    fact("cache_bytes", "bytes kept", "keys and values of the prompt that stay in the cache", "kept", unit="bytes"),
    fact("read_bytes", "bytes read", "keys and values of the prompt that a step reads", "read", unit="bytes"),
    Metric(
        "greedy_match",
        "equal greedy tokens",
        "equal tokens of greedy decoding before the first other",
        unit="tokens",
        better="larger",
    ),
    Metric("needle_loss", "needle's loss", "mean of −ln p of the needle's tokens", unit="nats"),
    Metric(
        "needle_loss_change", "needle's loss change", "the needle's loss less the model's own", unit="nats", signed=True
    ),
    Metric("needle_rank", "needle's rank", "mean place of the needle's tokens among all words, from 1"),
    share("answer_right", "right answers", "share of windows whose answer greedy decoding would give", better="larger"),
    share(
        "answer_flipped", "flipped answers", "share of windows whose answer exact attention has right, the method not"
    ),
)
VERDICTS = (  # shares of heads with a verdict
    share("holds", "holds", "share of heads for which the statement holds", better="larger"),
    share("violated", "violated", "share of heads for which the statement is violated"),
    share("undecided", "undecided", "share of heads that the test cannot decide"),
    share("vacuous", "vacuous", "share of heads whose bound is true of any matrix"),
    share("assumption_not_met", "assumption not met", "share of heads that do not meet the statement's assumption"),
    Metric("measured", "measured", "the measured side of a statement", better=None),
    Metric("bound", "bound", "the promised side of a statement", better=None),
    Metric("slack", "slack", "factor between measured and bound; above 1 the statement holds", better="larger"),
)
PROMISES = (  # of random methods
    share("biased", "biased", "share of heads whose normaliser has a bias that is not chance"),
    share("rate", "rate of errors above ε", "share of repeats with an error above ε", "rate"),
    share("worst", "rate of the worst row", "the rate of the head's worst row"),
    share("upper", "upper end of the worst rate", "upper end of the interval of the worst row's rate"),
    Metric("bias", "bias of the normaliser", "mean over repeats and rows of D~/D − 1", better=None, signed=True),
    Metric(
        "bias_z", "bias over its error", "bias over its standard error, corrected for skewness", "z", "$z$", better=None
    ),
    Metric(
        "score_bias",
        "bias of scores",
        "mean over repeats of Σ S S~ / Σ S² − 1, of quantised keys",
        better=None,
        signed=True,
    ),
    Metric("score_bias_z", "bias of scores over its error", "the same over its standard error", better=None),
    Metric(
        "normaliser_sd",
        "noise of the normaliser",
        "standard deviation of D~/D over repeats",
        "s.d. D~/D",
        r"s.d. $\tilde D/D$",
    ),
    Metric("sd_ratio", "stated over measured noise", "the method's own estimate over the measured one", better=None),
    Metric("ess", "effective sample size", "(Σ w)² / Σ w² of the weights of a row's keys", "ESS", better="larger"),
    share(
        "least_inclusion",
        "least inclusion",
        "smallest probability that a visible key is used",
        "π_min",
        r"$\pi_{\min}$",
        better=None,
    ),
    share("capped", "rows at the cap", "share of rows whose samples reached a cap"),
    share("keys_share", "share of keys used", "keys used over the keys that a row sees", better=None, steady=True),
)
BUDGETS = (
    Metric("d", "budget d", "landmarks, features or keys of a method", "d", "$d$"),
    Metric("d_over_n", "budget over tokens", "budget over the number of tokens", "d / n", "$d/n$"),
    share("unreached", "unreached", "share of heads for which no budget is enough"),
    Metric("found", "smallest sufficient d", "smallest budget whose error is at most ε; infinite if none is enough"),
    fact("fails", "larger budgets that fail", "budgets above the sufficient one whose error exceeds ε again"),
    share("counterexamples", "counterexamples", "share of heads whose error exceeds ε again at a larger budget"),
)
TRAINING = (
    Metric(
        "ratio",
        "instability over self-attention's",
        "τ over that of self-attention",
        "τ / τ_self",
        r"$\tau/\tau_{\mathrm{self}}$",
    ),
    Metric("ratio_before_norm", "instability before the last norm", "τ over self-attention's, before the last norm"),
    Metric("tau", "instability", "squared change of the embedding over that of the weights", "τ", r"$\tau$"),
    Metric("tau_before_norm", "instability of the raw embedding", "τ of the embedding before the last norm"),
    Metric("gradient_norm", "gradient norm", "norm of the gradient", "‖∇‖", r"$\|\nabla\|$"),
    Metric("loss_first", "loss of the first step", "mean cross entropy of the first batch", unit="nats"),
    Metric("loss_last", "loss of the last step", "mean cross entropy of the last batch", unit="nats"),
    described("weight_change", "change of the weights", "norm of a step of the weights", "‖ΔW‖_F", r"$\|\Delta W\|_F$"),
    described(
        "embedding_change",
        "change of the embedding",
        "norm of the change of the embedding by a step",
        "‖Δf‖_F",
        r"$\|\Delta f\|_F$",
    ),
    described("singular", "singular matrices", "matrices that float64 cannot tell from singular ones"),
    described("matrices", "matrices", "matrices whose condition number was computed"),
)
SPECTRA = (
    described("value", "singular value", "singular value, or modulus of an eigenvalue, by rank", "σ_i", r"$\sigma_i$"),
    described(
        "decay", "value over the largest", "a singular value over the largest one", "σ_i / σ₁", r"$\sigma_i/\sigma_1$"
    ),
    described(
        "cumulative",
        "cumulative share",
        "share of Σσ² that the values up to a rank have",
        "Σ_{j≤i} σ_j² / Σσ²",
        r"$\sum_{j \leq i} \sigma_j^2 / \sum \sigma^2$",
    ),
    described(
        "stable_rank",
        "stable rank",
        "squared Frobenius over squared spectral norm",
        "‖·‖_F² / ‖·‖₂²",
        r"$\|\cdot\|_F^2 / \|\cdot\|_2^2$",
    ),
    described("entropy_rank", "entropy rank", "exp of the entropy of σ² over their sum"),
    described(
        "participation_ratio", "participation", "(Σσ²)² over Σσ⁴", "(Σσ²)² / Σσ⁴", r"$(\sum\sigma^2)^2 / \sum\sigma^4$"
    ),
    described("rank_90", "values that hold 90 %", "leading values that hold 90 % of Σσ²", "rank 90 %", r"rank 90\,\%"),
    described("rank_95", "values that hold 95 %", "leading values that hold 95 % of Σσ²", "rank 95 %", r"rank 95\,\%"),
    described("rank_99", "values that hold 99 %", "leading values that hold 99 % of Σσ²", "rank 99 %", r"rank 99\,\%"),
    described(
        "d_spectral",
        "rank within ε, spectral",
        "smallest rank within ε of the matrix, spectral norm",
        "rank ‖·‖₂ ≤ ε",
        r"rank $\|\cdot\|_2 \leq \varepsilon$",
    ),
    described(
        "d_frobenius",
        "rank within ε, Frobenius",
        "smallest rank within ε of the matrix, Frobenius norm",
        "rank ‖·‖_F ≤ ε",
        r"rank $\|\cdot\|_F \leq \varepsilon$",
    ),
)
CONDITIONS = (
    described(
        "cond",
        "condition number",
        "largest over smallest singular value; infinite if singular",
        "σ₁ / σ_m",
        r"$\sigma_1/\sigma_m$",
    ),
    described(
        "cond_eff",
        "effective condition number",
        "largest singular value over the last above rounding",
        "σ₁ / σ_r",
        r"$\sigma_1/\sigma_r$",
    ),
    described(
        "cond_half",
        "condition number of the larger half",
        "largest over the middle singular value; infinite if that is rounding",
        "σ₁ / σ_{m/2}",
        r"$\sigma_1/\sigma_{m/2}$",
    ),
    described(
        "cond_at",
        "condition number up to a rank",
        "largest over the k-th singular value; infinite if that is rounding",
        "σ₁ / σ_k",
        r"$\sigma_1/\sigma_k$",
    ),
    described("rank", "numerical rank", "singular values above rounding", "r", "$r$"),
    described("repeated", "repeated rows", "rows that equal an earlier row", unit="rows"),
    described(
        "gradient",
        "gradient through the core",
        "squared norm of the exact inverse; infinite if singular",
        "‖M⁻¹‖₂²",
        r"$\|M^{-1}\|_2^2$",
    ),
    described("gradient_six", "gradient, six steps", "gradient norm through six Schulz steps"),
    described(
        "residual",
        "residual of the iteration",
        "distance of the core times its inverse from I, step by step",
        "‖I − MZ_t‖_F / √d",
        r"$\|I - MZ_t\|_F / \sqrt{d}$",
    ),
    described("sensitivity", "sensitivity", "relative change of the matrix per relative change of Q and K"),
    described("eigen_min", "least eigenvalue", "least eigenvalue of the scaled core", "λ_min", r"$\lambda_{\min}$"),
    described("eigen_max", "largest eigenvalue", "largest eigenvalue of the scaled core", "λ_max", r"$\lambda_{\max}$"),
)
INPUTS = (  # of Q, K and V, before any method
    described("score_std", "spread of scores", "standard deviation of all scores", "score s.d."),
    described("score_max", "largest score", "largest absolute score", "max |S_ij|", r"$\max|S_{ij}|$"),
    described("entropy", "entropy of rows", "mean entropy of the rows of attention", "entropy", unit="nats"),
    described("entropy_share", "entropy over uniform", "entropy over that of uniform rows", "entropy / uniform"),
    described("sink_first", "attention to the first token", "mean attention that the first token gets", "first token"),
    described(
        "sink_most", "attention to the top token", "mean attention that the most attended token gets", "top token"
    ),
    *(
        metric
        for x in "qkv"
        for metric in (
            described(f"{x}_stable_rank", f"stable rank of {x.upper()}", f"directions in use by {x.upper()}"),
            described(f"{x}_norm_mean", f"mean row norm of {x.upper()}", f"mean norm of a row of {x.upper()}"),
            described(f"{x}_norm_max", f"largest row norm of {x.upper()}", f"largest norm of a row of {x.upper()}"),
            described(f"{x}_norm_ratio", f"outliers of {x.upper()}", f"largest over median row norm of {x.upper()}"),
        )
    ),
)
STATEMENTS = (  # of statements of papers
    described(
        "d_stat",
        "statistical dimension",
        "statistical dimension of the lifted kernel",
        "d_stat",
        r"$d_{\mathrm{stat}}$",
    ),
    described("sufficient", "sufficient landmarks", "landmarks that Skyformer's Theorem 2 requires", unit="tokens"),
)
UNJUDGED = (  # further numbers of heads, which no gate limits
    described("realised_d_p10", "budget used, p10", "keys that a row used, 10 % quantile over rows", unit="tokens"),
    described("realised_d_p90", "budget used, p90", "keys that a row used, 90 % quantile over rows", unit="tokens"),
    described("matrix_open", "open intervals", "share of heads whose certified interval is wider than asked for"),
    described("matrix_passes", "passes", "products with the matrix that the certified interval took"),
    Metric(
        "matrix_spectral_lower", "matrix error, lower end", "lower end of the interval of the matrix error", better=None
    ),
    Metric(
        "matrix_spectral_upper", "matrix error, upper end", "upper end of the interval of the matrix error", better=None
    ),
    Metric(
        "matrix_spectral_relative_upper",
        "relative matrix error, upper end",
        "upper end of the interval of the relative matrix error",
        better=None,
    ),
    fact("leading_flops", "leading operations", "operations of the stated leading cost"),
    fact("visited", "entries computed", "scores or features computed for all queries"),
    fact("stored_bits", "bits a number", "bits that a cache keeps, scales included, over all its numbers", "bits"),
    fact(
        "repeated_seconds",
        "repeated time of exact attention",
        "time of exact attention, called again in the same round",
        unit="s",
        timed=True,
    ),
    fact("exact_seconds", "time of exact attention", "time of torch's fused exact attention", unit="s", timed=True),
)
MAPS = (described("weight", "mean weight of a block", "mean entry of a block of the matrix"),)
ADDED = (  # what the arithmetic of a format adds to a method's own error; B^ is the method in the format
    Metric(
        "rounding_error",
        "error added by rounding",
        "what the format adds: distance from the method in float64, over the output; infinite if lost",
        "‖(B^ − B~)V‖₂ / ‖BV‖₂",
        r"$\|(\hat B - \tilde B)V\|_2 / \|BV\|_2$",
    ),
    Metric("rounding_held", "error added, choices held", "error added by rounding if float64's choices are held"),
    Metric(
        "rounding_frobenius",
        "error added, choices held, Frobenius",
        "error added by rounding if float64's choices are held, Frobenius norm",
    ),
    Metric("total_error", "total error", "distance of the method in the format from exact attention, over the output"),
    Metric("input_floor", "error of rounded Q, K, V", "error added if Q, K and V alone are rounded"),
    Metric(
        "planned_error", "error added with the plan", "error added if the plan's steps stay in float32, choices held"
    ),
    Metric(
        "amplification",
        "amplification",
        "error added by rounding over the unit roundoff u of the format",
        "amplification",
        better="smaller",
    ),
    Metric(
        "bits_needed", "bits needed", "significand bits with which rounding keeps to its goal", unit="bits", signed=True
    ),
    share("rounding_decides", "rounding above the method's error", "whether rounding exceeds the method's own error"),
    share("not_finite", "heads that are not finite", "whether an output in the format is not finite"),
    share("flips", "flipped choices", "share of the cell's integer choices that rounding flips"),
    described("rounding_estimate", "estimated error added", "estimate of the error added, by one backward pass"),
    described(
        "estimate_ratio", "estimate over measured", "estimated over measured error, choices held, Frobenius norm"
    ),
    described("kept_steps", "steps kept in float32", "steps that the plan keeps in float32"),
    described("share", "share of a step", "share of a step in the squared estimate"),
    described("kept", "kept in float32", "whether the plan keeps the step in float32"),
    described(
        "inverse_norm", "norm of the inverse", "largest norm of an inverse that the method uses", "‖Z‖₂", r"$\|Z\|_2$"
    ),
    described("cancellation", "cancellation of rows", "largest sum of absolute weights of a row over its absolute sum"),
)
ADDED_IN_MODEL = (  # what the arithmetic of a format adds to the drift of a model
    Metric(
        "rounding_drift",
        "drift added by rounding",
        "distance of the last hidden states from those with the method in float64, over these",
    ),
    Metric(
        "rounding_kl",
        "KL added by rounding",
        "divergence of the predicted words from those with the method in float64",
        unit="nats",
    ),
    Metric(
        "rounding_local",
        "local error added by rounding",
        "what the format adds on a layer's own Q, K, V: Frobenius norm over the output, mean over heads",
    ),
)
PLACES = (  # what a number is of: the axes of figures
    described("n", "tokens", "tokens of the input", "n", "$n$", "tokens"),
    described("prefix", "prompt", "tokens of the prompt, before the first step", unit="tokens"),
    described("layer", "layer", "layer of the model"),
    described("head", "head", "head of the layer"),
    described("step", "step", "step of decoding or of training"),
    described("iteration", "iteration", "step of the iteration of an inverse", "t", "$t$"),
    described("position", "keys seen", "keys that a query sees", unit="tokens"),
    described("index", "rank", "rank of a value, from 1", "i", "$i$"),
    described("order", "order of steps", "place of a step by its mean share over heads, from 1"),
    described("epsilon", "allowed error", "the error that is allowed or promised", "ε", r"$\varepsilon$"),
    described(
        "promised",
        "promised probability",
        "promised probability of a larger error",
        "P(error > ε)",
        r"$P(\mathrm{error} > \varepsilon)$",
    ),
)


def by_name(*topics: Sequence[Metric]) -> dict[str, Metric]:
    """The metrics of all topics by name.

    Raises:
        ValueError: two metrics have one name: the second would take the place of the first in every table.

    >>> by_name([Metric("drift", "drift", "of a model")], [Metric("drift", "drift", "of its logits")])
    Traceback (most recent call last):
    ValueError: metric drift is declared twice: 'of a model' and 'of its logits'
    """
    metrics: dict[str, Metric] = {}
    for metric in chain(*topics):
        if (other := metrics.setdefault(metric.name, metric)) is not metric:
            raise ValueError(f"metric {metric.name} is declared twice: {other.meaning!r} and {metric.meaning!r}")
    return metrics


METRICS = by_name(
    *(OUTPUT, MATRIX, DIAGNOSTICS, SELECTED, INVERSE, KERNELS, JUDGED, ROWS, COSTS, GROWTH, MODELS, VERDICTS, PROMISES),
    *(BUDGETS, TRAINING, SPECTRA, CONDITIONS, INPUTS, STATEMENTS, UNJUDGED, MAPS, ADDED, ADDED_IN_MODEL, PLACES),
)


def metrics(*names: str) -> tuple[Metric, ...]:
    """The metrics of these names.

    Raises:
        KeyError: a name without a metric.
    """
    return tuple(METRICS[name] for name in names)


ERROR = (*OUTPUT, *MATRIX, *DIAGNOSTICS, *SELECTED, *INVERSE, *KERNELS, *ROWS)
ACCEPT = (*JUDGED, *metrics("max_abs", "relative_frobenius", "ratio_to_framework"))
BENCH = metrics("ratio_to_exact", "seconds", "peak_bytes", "flops")
INJECT = metrics(
    *("drift", "logits_drift", "kl", "top1_agreement", "loss", "loss_own", "loss_change"),
    *("perplexity", "perplexity_own", "perplexity_change", "embedding_cosine", "local_error", "realised_d"),
    *("bad_rows", "guarded_rows", "rounded_rows", "row_error", "spectral_error"),
    *("residual_error", "residual_heads", "residual_sum", "lost_mass", "first_divergence"),
    *("cache_bytes", "read_bytes", "greedy_match", "needle_loss", "needle_loss_change", "needle_rank"),
    *("answer_right", "answer_flipped"),
    *(metric.name for metric in ADDED_IN_MODEL),
)
TAILS = metrics("kl_median", "kl_p90", "kl_p95", "kl_p99", "kl_p999", "kl_max", "dp_rms")
NORMED = re.compile("(output|matrix)_(spectral|frobenius)(_relative)?")


def in_words(metric: str) -> str:
    """A metric's name in a title.

    >>> in_words("output_spectral_relative"), in_words("max_abs")
    ('relative output error (spectral norm)', 'max abs')
    """
    normed = NORMED.fullmatch(metric)
    if normed is None:
        return metric.replace("_", " ")
    norm = normed[2].replace("f", "F")
    return f"{'relative ' if normed[3] else ''}{normed[1]} error ({norm} norm)"
