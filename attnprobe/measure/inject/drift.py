"""The distance of a model's outputs from those of the unmodified model, and a batch of texts that both read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan

import torch
from torch import Tensor

from ...files import JsonObject
from ...frame.metric import perplexity
from ...frame.rows import head_rows
from ...inputs import Block
from ...metrics.residual import head_residuals, heads_alone, residual_errors
from ...operators.linalg.norms import row_norms

STATED = ("realised_d", "bad_rows", "guarded_rows", "rounded_rows")  # diagnostics of heads: a mean, and sums
STEP_METRICS = ("kl", "top1_agreement", "loss", "loss_own")  # of one step of decoding
CHUNK = 2**18  # numbers of logits that are compared at once in float64: they stay in the cache
KEPT = 2**22  # numbers of logits whose distributions are kept, for all methods


@dataclass(frozen=True)
class Outputs:
    """A model's outputs for one text.

    Attributes:
        hidden: its last hidden states, (n, hidden). logits: of the tokens that are compared, (places, words), or None.
        greedy: the tokens of greedy decoding, (steps,), or None.
    """

    hidden: Tensor
    logits: Tensor | None = None
    greedy: Tensor | None = None

    @cached_property
    def words(self) -> Words:
        """The predicted distributions. They take four times the memory of float32 logits."""
        assert self.logits is not None
        return Words(self.logits)


class Words:
    """The distributions ``p = exp(logits - log_sum)`` of words that logits (places, words) predict, in float64."""

    def __init__(self, logits: Tensor) -> None:
        # Of distributions this close a divergence in float32 is rounding.
        self.logits = logits.double()
        self.p = self.logits.softmax(-1)
        self.likeliest = _likeliest(self.logits)
        logit, p = (x.gather(-1, self.likeliest[:, None])[:, 0] for x in (self.logits, self.p))
        self.log_sum = logit - p.log()  # by one exponential of each word, where a logsumexp would take another

    def at(self, places: slice) -> Words:
        """The distributions at some places."""
        some = copy(self)
        for name, values in vars(self).items():
            setattr(some, name, values[places])
        return some


def model_drift(
    own: Outputs, got: Outputs, words: Tensor | None, causal: bool, encoder: bool
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The metrics of outputs alone, in float64; those of logits and greedy tokens only if there are any.

    Beside them stand the `STEP_METRICS` of each predicted word.

    Args:
        own, got: outputs of the unmodified model, and of the model with a method.
        words: the true words at the first places of the logits.
        causal: also compute the perplexity. encoder: also compare the mean of the hidden states, an embedding.

    >>> import torch
    >>> same = Outputs(torch.ones(3, 2), torch.eye(2))
    >>> metrics, steps = model_drift(same, same, torch.tensor([0, 1]), causal=True, encoder=False)
    >>> metrics["drift"], metrics["kl"], metrics["top1_agreement"], round(metrics["perplexity"], 3)
    (0.0, 0.0, 1.0, 1.368)
    >>> steps["kl"]
    [0.0, 0.0]
    """
    # Differences of close outputs cancel, so they are taken in float64 whatever the model's dtype is.
    exact, moved = own.hidden.double(), got.hidden.double()
    drifts = {"drift": _relative(float((moved - exact).norm()), float(exact.norm()))}
    if encoder:
        a, b = exact.mean(0), moved.mean(0)
        drifts["embedding_cosine"] = float((a / a.norm()) @ (b / b.norm()))
    if own.greedy is not None and got.greedy is not None and len(own.greedy):
        # the steps before the first other token: after it both texts go their own ways
        drifts["greedy_match"] = float((own.greedy == got.greedy).long().cumprod(0).sum())
    if own.logits is None or got.logits is None or words is None or not len(words):
        return drifts, {}
    changes, steps = _predictions(own, got.logits, words)
    drifts |= changes
    if causal:
        drifts["perplexity"], drifts["perplexity_own"] = perplexity(drifts["loss"]), perplexity(drifts["loss_own"])
        drifts["perplexity_change"] = drifts["perplexity"] - drifts["perplexity_own"]
    return drifts, steps


@dataclass(frozen=True)
class Local:
    """The errors of a method on a layer's own Q, K and V.

    Attributes:
        error: ``‖(B − B~) V‖_F / ‖B V‖_F``, and rows: the mean over rows of ``‖(B − B~) V‖ / ‖B V‖``, of each head.
        residual: the residual error of each head, and together: that of all these heads; None without a `Block`.
        weighted: ``together`` beside the geometric mean of the layer's stream and the last layer's.
        lost: with --phase decode, the share of the exact weights that no kept key has, of each head, mean over rows.
        spectral: ``‖B − B~‖₂ / ‖B‖₂`` of each head; None if it was not asked for, or the method has no matrix.
        stated: the `STATED` diagnostics of each head, of methods that have them.
        rounding: what a format adds to the error of each head (see `added_errors`); None in torch's arithmetic.
    """

    error: list[float]
    rows: list[float]
    residual: list[float] | None
    together: float | None
    lost: list[float] | None = None
    weighted: float | None = None
    spectral: list[float] | None = None
    stated: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rounding: list[float] | None = None


def added_errors(own: Tensor, got: Tensor, usual: Tensor) -> list[float]:
    """``‖(B̂ − B~) V‖_F / ‖B V‖_F`` of each head, from outputs (n, h, p_v); infinite if an output is not finite.

    Args:
        own: exact. got: of the method in a format. usual: of the method in float64.
    """
    exact, gap = (x.double().transpose(0, 1).flatten(1) for x in (own, got - usual))
    added = gap.norm(dim=1) / exact.norm(dim=1)
    return added.masked_fill(~torch.isfinite(gap).all(1), torch.inf).tolist()


@dataclass(frozen=True, eq=False)
class ExactOutput:
    """The exact output of heads of a layer, beside which the outputs of all methods are measured.

    Attributes:
        output: (n, h, p_v). block: of the attention, over the same tokens. heads: the numbers of these heads.
    """

    output: Tensor
    block: Block | None
    heads: Sequence[int]

    @cached_property
    def exact(self) -> Tensor:
        """The output of each head, (h, n, p_v) float64."""
        return self.output.double().transpose(0, 1)

    @cached_property
    def rows(self) -> Tensor:
        """The norm of each row, (h, n)."""
        return row_norms(self.exact)

    @cached_property
    def sizes(self) -> Tensor:
        """The norm of each head, (h,)."""
        return row_norms(self.exact, 2)

    @cached_property
    def alone(self) -> Block | None:
        """The block by which the residual error of a head alone is computed."""
        if self.block is None or self.block.projected is not None:
            return self.block
        return heads_alone(self.block, self.output.shape[2])

    def errors(self, got: Tensor) -> Local:
        """The local errors of outputs (n, h, p_v); those of all these heads together add to the stream."""
        gap = got.double().transpose(0, 1) - self.exact
        distances = row_norms(gap)
        rows = distances / self.rows  # 0 / 0: a row that is zero in both has no error
        sizes = (row_norms(gap, 2) / self.sizes).tolist()
        means = rows.masked_fill(distances == 0, 0.0).mean(1).tolist()
        if self.block is None or self.alone is None:
            return Local(sizes, means, None, None)
        alone = head_residuals(gap, self.alone, self.heads).mean(-1).tolist()
        change = self.block.change(gap.transpose(0, 1), self.heads)
        streams = [self.block.size] if self.block.last is None else [self.block.size, self.block.between]
        together, *weighted = residual_errors(change, torch.stack(streams)[..., None]).tolist()
        return Local(sizes, means, alone, together, weighted=weighted[0] if weighted else None)


def local_metrics(local: Sequence[Local]) -> dict[str, float]:
    """The local errors of all replaced layers in one number each; residual errors only if every layer has them."""
    sizes = [error for errors in local for error in errors.error]
    rows = [error for errors in local for error in errors.rows]
    metrics = {"local_error": sum(sizes) / len(sizes), "row_error": sum(rows) / len(rows)}
    for name in STATED:
        if values := [value for errors in local for value in errors.stated.get(name, ())]:
            metrics[name] = sum(values) / (len(values) if name == "realised_d" else 1)
    lost = [share for errors in local for share in errors.lost or ()]
    # NaN of a method whose weights are not those of keys
    if lost and all(share == share for share in lost):
        metrics["lost_mass"] = sum(lost) / len(lost)
    if all(errors.rounding is not None for errors in local):
        added = [error for errors in local for error in errors.rounding or ()]
        metrics["rounding_local"] = sum(added) / len(added)
    if all(errors.spectral is not None for errors in local):
        spectral = [error for errors in local for error in errors.spectral or ()]
        metrics["spectral_error"] = sum(spectral) / len(spectral)
    # A sum over some layers would look like a small one over all.
    if all(errors.residual is not None for errors in local):
        metrics["residual_error"] = sum(errors.together or 0.0 for errors in local)
        metrics["residual_heads"] = sum(error for errors in local for error in errors.residual or ())
    if all(errors.weighted is not None for errors in local):
        metrics["residual_sum"] = sum(errors.weighted or 0.0 for errors in local)
    return metrics


def local_rows(layer: int, heads: Sequence[int], errors: Local) -> list[JsonObject]:
    """A row for each of these heads of a layer."""
    columns = {"local_error": errors.error}
    if errors.residual is not None:
        columns["residual_error"] = errors.residual
    if errors.rounding is not None:
        columns["rounding_local"] = errors.rounding
    return [{**row, "layer": layer} for row in head_rows(heads, columns, "local")]


def step_rows(steps: Mapping[str, Sequence[float]]) -> list[JsonObject]:
    """A row for each step of decoding: its `STEP_METRICS`, and the mean divergence of the steps up to it.

    >>> step_rows({"kl": [1.0, 3.0]})
    [{'kind': 'step', 'step': 0, 'kl': 1.0, 'kl_so_far': 1.0}, {'kind': 'step', 'step': 1, 'kl': 3.0, 'kl_so_far': 2.0}]
    """
    rows, known = [], []
    for step, values in enumerate(zip(*steps.values(), strict=True)):
        of_step = dict(zip(steps, values, strict=True))
        # a step that is lost must not hide all that follow
        known += [of_step["kl"]] if isfinite(of_step["kl"]) else []
        so_far = sum(known) / len(known) if known else None
        rows.append({"kind": "step", "step": step, **of_step, "kl_so_far": so_far})
    return rows


def _predictions(own: Outputs, got: Tensor, words: Tensor) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The metrics of two sets of logits (places, words), and `STEP_METRICS` of each word, computed chunk by chunk.

    Args:
        words: the true words at the first places. The other places count for the drift alone.
    """
    assert own.logits is not None
    sums: dict[str, float] = dict.fromkeys(("gap", "size", "kl", "same", "loss", "loss_own"), 0.0)
    steps: dict[str, list[float]] = {name: [] for name in STEP_METRICS}
    rows = max(1, CHUNK // got.shape[1])
    kept = own.words if got.numel() <= KEPT else None
    for start in range(0, len(got), rows):
        part, true = slice(start, start + rows), words[start : start + rows]
        exact, moved = Words(own.logits[part]) if kept is None else kept.at(part), Words(got[part])
        sums["gap"] += float((moved.logits - exact.logits).square_().sum())
        sums["size"] += float(exact.logits.square().sum())
        predicted = slice(len(true))
        compared = _compared(exact.at(predicted), moved.at(predicted), true)
        for name, values in compared.items():
            sums[name] += float(values.sum())
        # a divergence is at least 0; of equal distributions rounding may leave less
        steps["kl"] += compared["kl"].clamp(min=0).tolist()
        steps["top1_agreement"] += compared["same"].double().tolist()
        steps["loss"] += compared["loss"].tolist()
        steps["loss_own"] += compared["loss_own"].tolist()
    count = len(words)
    changes = {"logits_drift": _relative(sums["gap"] ** 0.5, sums["size"] ** 0.5)}
    changes |= {"kl": max(sums["kl"] / count, 0.0) if sums["kl"] == sums["kl"] else nan}
    changes |= {"top1_agreement": sums["same"] / count if isfinite(sums["gap"]) else nan}
    changes |= {name: sums[name] / count for name in ("loss", "loss_own")}
    return changes | {"loss_change": changes["loss"] - changes["loss_own"]}, steps


def answer_metrics(own: Tensor, got: Tensor, words: Tensor) -> dict[str, float]:
    """The loss, its change, and the rank of the words of an answer, from two sets of logits (places, words).

    The answer is right if each of its words is the likeliest behind those before it, as greedy decoding would give it;
    it is flipped if the first logits have it right and the second wrong.

    >>> import torch
    >>> own, got = torch.tensor([[0.0, 4.0, 1.0]]), torch.tensor([[2.0, 1.0, 0.0]])
    >>> {name: round(value, 3) for name, value in answer_metrics(own, got, torch.tensor([1])).items()}
    {'needle_loss': 1.408, 'needle_loss_change': 1.342, 'needle_rank': 2.0, 'answer_right': 0.0, 'answer_flipped': 1.0}
    """
    compared = _compared(Words(own), Words(got), words)
    loss = float(compared["loss"].mean())
    rank, rank_own = (1 + (logits > logits.gather(1, words[:, None])).sum(1) for logits in (got, own))
    right, right_own = bool((rank == 1).all()), bool((rank_own == 1).all())
    return {
        "needle_loss": loss,
        "needle_loss_change": loss - float(compared["loss_own"].mean()),
        "needle_rank": float(rank.double().mean()),
        "answer_right": float(right),
        "answer_flipped": float(right_own and not right),
    }


def _compared(own: Words, got: Words, words: Tensor) -> dict[str, Tensor]:
    """KL(p ‖ p~), whether the likeliest words are the same, and the losses of the true ``words``, (places,) each.

    ``KL(p ‖ p~) = Σ_w p_w (s_w - s~_w) - log Σ_w exp(s_w) + log Σ_w exp(s~_w)`` of logits s and s~.
    """
    change = got.log_sum - own.log_sum
    true = words[:, None]
    return {
        "kl": (own.logits - got.logits).mul_(own.p).sum(-1) + change,
        "same": own.likeliest == got.likeliest,
        "loss": got.log_sum - got.logits.gather(1, true)[:, 0],
        "loss_own": own.log_sum - own.logits.gather(1, true)[:, 0],
    }


def _likeliest(logits: Tensor) -> Tensor:
    """The first place of the largest of each row's logits (places, words); on a CPU by numpy, which is faster."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.numpy().argmax(-1))


def _relative(gap: float, size: float) -> float:
    return gap / size if size > 0 else (0.0 if gap == 0 else nan)
