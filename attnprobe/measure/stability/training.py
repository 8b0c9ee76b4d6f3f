"""The first steps of training, and the change of the embedding by each step.

W_0 are the initial weights, x_i the i-th batch, f the embedding after the layers, all tokens of all sequences of the
batch one after the other. Skyformer's appendix F calls

    ``τ_i = ‖f(x_i, W_i) - f(x_i, W_{i-1})‖²_F / ‖W_i - W_{i-1}‖²_F``

the instability of step i. A smaller value means that a step of a given length changes the embedding less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import Unsupported
from ...grammar.arguments import checked
from ...inputs import SourceSpec
from ...methods import approximate, get
from ...metrics import core_matrices, exact_matrices
from ...operators.linalg.condition import condition
from ...qkv import QKV
from ...run.plan import MethodRequest
from . import StabilityRequest
from .classifier import HEAD, Classifier, Weights
from .plan import LAYERS, OWN, check_condition_tokens, own_target, unsupported_reason
from .record import STEP_METRICS
from .tasks import TaskSource, open_task

BETAS = (0.9, 0.999)  # of Adam
SHOWN = ("B", "C")  # the exact matrices whose condition is measured, on the Q and K of a method's own training

Examples = Sequence[tuple[Sequence[Tensor], int]]
AttendAt = Callable[[int, int, int, Tensor, Tensor, Tensor], Tensor]  # step, sequence, layer, q, k, v


@dataclass(frozen=True)
class Step:
    """One step, i.

    Attributes:
        tau: τ_i. tau_before_norm: the same ratio of the embedding before the last layer norm.
        loss: the mean cross entropy of the batch at W_{i-1}.
        gradient_norm: the norm of the loss's gradient with respect to all weights.
        weight_change: ``‖W_i - W_{i-1}‖_F`` of the weights of f, which are all except the classifier's.
        embedding_change: ``‖f(x_i, W_i) - f(x_i, W_{i-1})‖_F``.
    """

    tau: float
    tau_before_norm: float
    loss: float
    gradient_norm: float
    weight_change: float
    embedding_change: float


def training_steps(
    model: Classifier,
    weights: Weights,
    batches: Callable[[int], Examples],
    attend: AttendAt,
    *,
    steps: int,
    rate: float,
    eps: float = 1e-6,
) -> Iterator[Step]:
    """Train by Adam (β = 0.9, 0.999, no weight decay, a constant rate), and yield the changes of each step.

    Sequences are processed one at a time and their gradients are added. So memory is that of one sequence, and no
    sequence is padded. Each sequence is read twice: at W_{i-1} with its gradient, and at W_i. Sums are taken in
    float64.

    Args:
        weights: W_0, which is not changed. batches: the examples of a step, ``(sequences, label)`` each.
        attend: ``(step, sequence, layer, q, k, v) -> (h, n, p)``; the attention of the same step and sequence has the
            same draws at W_{i-1} and at W_i, or τ would measure their noise.
        eps: Adam's, which is added to the root of the second moment.
    """
    # Clones, because every method begins at the same weights.
    own = {name: x.detach().clone().requires_grad_() for name, x in weights.items()}
    adam = torch.optim.Adam(list(own.values()), lr=rate, betas=BETAS, eps=eps)
    for step in range(steps):
        batch = batches(step)

        def attend_at(number: int, step: int = step) -> Callable[..., Tensor]:
            return partial(attend, step, number)

        adam.zero_grad()
        loss, before = _add_gradients(model, own, batch, attend_at)
        squares = [weight.grad.double().square().sum() for weight in own.values() if weight.grad is not None]
        # W_{i-1}
        earlier = {name: x.detach().clone() for name, x in own.items()}
        adam.step()
        with torch.no_grad():
            # W_i - W_{i-1} of the weights of f: all but the classifier's
            weight = sum(
                float((x - earlier[name]).double().square().sum())
                for name, x in own.items()
                if not name.startswith(HEAD)
            )
            moved = _moved(model, own, [tokens for sequences, _ in batch for tokens in sequences], before, attend_at)
        normed, raw = moved

        def ratio(change: float, weight: float = weight) -> float:
            return change / weight if weight else float("nan")

        yield Step(ratio(normed), ratio(raw), loss, float(sum(squares)) ** 0.5, weight**0.5, normed**0.5)


def _add_gradients(
    model: Classifier, weights: Weights, batch: Examples, attend_at: Callable[[int], Callable[..., Tensor]]
) -> tuple[float, list[tuple[Tensor, ...]]]:
    """Add the gradients of a batch to those of the weights, example by example.

    Returns the mean loss, and the embedding of each sequence after and before the last norm.
    """
    loss, before = 0.0, []
    number = 0  # of the sequence in the batch; an example of retrieval has two
    for sequences, label in batch:
        embeddings = []
        for tokens in sequences:
            embeddings.append(model.embedding(weights, _put(tokens, weights), attend_at(number)))
            number += 1
        scores = model.logits(weights, [normed for normed, _ in embeddings])
        part = functional.cross_entropy(scores[None], torch.tensor([label], device=scores.device)) / len(batch)
        part.backward()  # at once, which frees the graph of the example
        loss += float(part.detach())
        before += [(normed.detach(), raw.detach()) for normed, raw in embeddings]
    return loss, before


def _put(tokens: Tensor, weights: Weights) -> Tensor:
    """The tokens on the device of the weights."""
    return tokens.to(weights["embed.token"].device)


def _moved(
    model: Classifier, weights: Weights, sequences: Sequence[Tensor], before: list[tuple[Tensor, ...]], attend_at
) -> tuple[float, float]:
    """``‖f(x_i, W_i) - f(x_i, W_{i-1})‖²_F``, and the same before the last norm."""
    after_norm = before_norm = 0.0
    for number, tokens in enumerate(sequences):
        normed, raw = model.embedding(weights, _put(tokens, weights), attend_at(number))
        old_normed, old_raw = before[number]
        after_norm += float((normed - old_normed).double().square().sum())
        before_norm += float((raw - old_raw).double().square().sum())
        before[number] = ()  # frees its memory
    return after_norm, before_norm


@dataclass(frozen=True)
class Trajectory:
    """The measurements of one training, one number for each step.

    Attributes:
        tau, tau_before_norm, loss, gradient_norm, weight_change, embedding_change: as in `Step`.
        conditions: one entry for each matrix, layer and head of the first sequence of each batch, at W_{i-1}:
            ``matrix``, ``inverted`` (whether the method inverts it), ``layer``, ``head``, ``tokens``, and lists over
            the steps: ``cond`` (None if the matrix is numerically singular), ``cond_eff`` and ``rank``. ``B`` and ``C``
            are of the first ``tokens`` tokens, cores of all.
    """

    tau: tuple[float, ...]
    tau_before_norm: tuple[float, ...]
    loss: tuple[float, ...]
    gradient_norm: tuple[float, ...]
    weight_change: tuple[float, ...]
    embedding_change: tuple[float, ...]
    conditions: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Training:
    """One training, and the condition numbers of its matrices.

    Attributes:
        tokens: the number of tokens for condition numbers of attention; 0 computes no condition numbers.
        conditions: an entry of `Trajectory.conditions` for each matrix, layer and head.
    """

    task: TaskSource
    method: MethodRequest
    target: str
    d: int | None
    seed: int
    tokens: int
    conditions: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def run(self, steps: int, eps: float) -> Iterator[Step]:
        """Train, and yield each step."""
        task = self.task
        model = Classifier(task.vocabulary, task.n, task.classes, task.pairs, layers=LAYERS)
        weights = model.initial(self.seed, task.dtype, task.device)

        def batches(step: int) -> list[tuple[Sequence[Tensor], int]]:
            return [(example.sequences, example.label) for example in task.batch_of(self.seed, step)]

        yield from training_steps(model, weights, batches, self.attend, steps=steps, rate=task.rate, eps=eps)

    def attend(self, step: int, number: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention of one layer on one sequence, (h, n, p)."""
        sequences = self.task.batch * self.task.pairs  # of a step
        # the label seeds the draws: they differ between steps and sequences, and not between W_{i-1} and W_i
        qkv = QKV(q, k, v, label={"layer": layer, "window": step * sequences + number})
        method = self.method
        approx = approximate(method.entry, qkv, self.d, seed=self.seed, target=self.target, **method.options)
        if torch.is_grad_enabled() and not approx.output.requires_grad:
            raise Unsupported(f"{method.label} does not differentiate: no gradient reaches its output")
        # the first sequence of a batch, and W_{i-1} alone, where gradients are enabled
        if self.tokens and number == 0 and torch.is_grad_enabled():
            with torch.no_grad():
                self._observe(layer, qkv, approx)
        return approx.output

    def _observe(self, layer: int, qkv: QKV, approx: Any) -> None:
        """Measure the condition of B and C on the first tokens, and of the method's cores on all tokens."""
        first_tokens = QKV(*(x.detach()[:, : self.tokens] for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale)
        for index, head in enumerate(qkv.heads):
            for name, matrix, _ in exact_matrices(first_tokens, index):
                if name in SHOWN:
                    self._keep(name, False, layer, head, first_tokens.n, matrix)
        detached = QKV(*(x.detach() for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale)
        for core in core_matrices(detached, approx, self.method.options) if approx.cores else ():
            for head, matrix in zip(qkv.heads, core.matrix.detach(), strict=True):
                self._keep(core.name, core.inverted, layer, head, qkv.n, matrix)

    def _keep(self, name: str, inverted: bool, layer: int, head: int, tokens: int, matrix: Tensor) -> None:
        """Append the condition of a matrix at one step to the entry of the matrix."""
        facts = {"matrix": name, "inverted": inverted, "layer": layer, "head": head}
        empty = {key: [] for key in ("tokens", "cond", "cond_eff", "rank")}
        entry = self.conditions.setdefault((name, layer, head), facts | empty)
        measured = condition(matrix)
        values = {"cond": measured.value, "cond_eff": measured.cond_eff, "rank": measured.rank}
        for key, value in {"tokens": tokens, **values}.items():
            entry[key].append(value)

    def trajectory(self, steps: list[Step]) -> Trajectory:
        """The measurements of the steps, as lists over steps."""
        lists = {name: tuple(getattr(step, name) for step in steps) for name in STEP_METRICS}
        return Trajectory(**lists, conditions=tuple(self.conditions.values()))


@checked()
def instability(
    method: str,
    task: str | TaskSource = "listops",
    d: int | None = 128,
    *,
    seed: int = 0,
    steps: int = 20,
    n: int | None = None,
    batch: int | None = None,
    rate: float | None = None,
    eps: float = 1e-6,
    target: str = OWN,
    condition_tokens: int = 0,
    text: str | None = None,
    data: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    progress: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> Trajectory:
    """Train a small transformer with ``method`` as its attention, and measure how far each step moves its embedding.

    ``τ_i = ‖f(x_i, W_i) - f(x_i, W_{i-1})‖²_F / ‖W_i - W_{i-1}‖²_F`` of Chen et al. 2021 (Skyformer), appendix F: f is
    the embedding after two layers and the last layer norm, x_i the i-th batch, W_i the weights of f. The model has two
    layers of width 64 and hidden width 128 with 2 heads, and mean pooling; it is trained by Adam. Two methods with the
    same seed have the same initial weights and batches, so a ratio of their τ is a paired ratio.

    The weights, the batches and the method's draws are random, all from ``seed``. The draws differ between steps and
    sequences, and are the same at W_{i-1} and W_i. Cost of a step: two forwards and a backward of the batch. Memory is
    that of one sequence.

    Args:
        method, d, options: as in `approximate`; a method without a budget ignores d.
        task: ``listops``, ``text``, ``retrieval``, ``pathfinder``, ``image``, or a result of `open_task`.
        n, batch, rate: the most tokens of a sequence, the batch size and the learning rate; None is the paper's.
        target: ``softmax``, ``gaussian``, or ``own``: the target of the method in its own model.
        condition_tokens: the number of tokens for condition numbers of attention; 0 computes no condition numbers.
        text, data: of the task. device, dtype: of the training; the dtype is ``float32`` or ``float64``.
        progress: called with the number of each step.

    Raises:
        Unsupported: the method is not differentiable or does not support the sequences. UsageError: unknown names or
            impossible values. SourceError: a text or file is absent or damaged.

    >>> result = instability("skyformer", "listops", d=8, n=64, batch=2, steps=3)
    >>> len(result.tau), all(value > 0 for value in result.tau)
    (3, True)
    """
    StabilityRequest(steps=steps, eps=eps)  # refuses impossible values
    check_condition_tokens(condition_tokens)
    if isinstance(task, str):
        spec = SourceSpec(text=text, device=device, dtype=dtype)
        task = open_task(task, spec, n=n, batch=batch, rate=rate, data=data)
    entry = get(method)
    target = own_target(MethodRequest(method)) if target == OWN else target
    request = MethodRequest(method, entry.check(target, options))
    d = None if entry.budget is None else d
    if (why := unsupported_reason(request, target, task, d)) is not None:
        raise Unsupported(why)
    training = Training(task, request, target, d, seed, condition_tokens)
    measured = []
    for number, step in enumerate(training.run(steps, eps)):
        measured.append(step)
        progress(number)
    return training.trajectory(measured)
