"""The first steps of training, and the change of the embedding by each step.

W_0 are the initial weights, x_i the i-th batch, f the embedding after the layers, all tokens of all sequences of the
batch one after the other. Skyformer's appendix F calls

    ``τ_i = ‖f(x_i, W_i) - f(x_i, W_{i-1})‖²_F / ‖W_i - W_{i-1}‖²_F``

the instability of step i. A smaller value means that a step of a given length changes the embedding less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from .classifier import HEAD, Classifier, Weights

BETAS = (0.9, 0.999)

Examples = Sequence[tuple[Sequence[Tensor], int]]
AttendAt = Callable[[int, int, int, Tensor, Tensor, Tensor], Tensor]  # step, sequence, layer, q, k, v


@dataclass(frozen=True)
class Step:
    """One step, i.

    Attributes:
        tau: τ_i. tau_before_norm: the same of the embedding before the last layer norm. loss: the mean cross entropy of
            the batch at W_{i-1}. gradient_norm: the norm of its gradient with respect to all weights.
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

    Sequences are processed one at a time and their gradients are added. So memory is that of one sequence, and none is
    padded. Each sequence is read twice: at W_{i-1} with its gradient, and at W_i. Sums are taken in float64.

    Args:
        weights: W_0, which is not changed. batches: the examples of a step, ``(sequences, label)`` each.
        attend: ``(step, sequence, layer, q, k, v) -> (h, n, p)``; the attention of the same step and sequence has the
            same draws at W_{i-1} and at W_i, or τ would measure their noise.
        eps: Adam's, which is added to the root of the second moment.
    """
    own = {name: x.detach().clone().requires_grad_() for name, x in weights.items()}
    adam = torch.optim.Adam(list(own.values()), lr=rate, betas=BETAS, eps=eps)
    for step in range(steps):
        batch = batches(step)

        def attend_at(number: int, step: int = step) -> Callable[..., Tensor]:
            return partial(attend, step, number)

        adam.zero_grad()
        loss, before = 0.0, []
        number = 0
        for sequences, label in batch:
            embeddings = []
            for tokens in sequences:
                embeddings.append(model.embedding(own, _put(tokens, own), attend_at(number)))
                number += 1
            scores = model.logits(own, [normed for normed, _ in embeddings])
            part = functional.cross_entropy(scores[None], torch.tensor([label], device=scores.device)) / len(batch)
            part.backward()
            loss += float(part.detach())
            before += [(normed.detach(), raw.detach()) for normed, raw in embeddings]
        squares = [one.grad.double().square().sum() for one in own.values() if one.grad is not None]
        earlier = {name: x.detach().clone() for name, x in own.items()}
        adam.step()
        with torch.no_grad():
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


def _put(tokens: Tensor, weights: Weights) -> Tensor:
    return tokens.to(weights["embed.token"].device)


def _moved(
    model: Classifier, weights: Weights, sequences: Sequence[Tensor], before: list[tuple[Tensor, ...]], attend_at
) -> tuple[float, float]:
    """``‖f(x_i, W_i) - f(x_i, W_{i-1})‖²_F``, and the same before the last norm."""
    total = [0.0, 0.0]
    for number, tokens in enumerate(sequences):
        after = model.embedding(weights, _put(tokens, weights), attend_at(number))
        for place, (now, then) in enumerate(zip(after, before[number], strict=True)):
            total[place] += float((now - then).double().square().sum())
        before[number] = ()  # frees its memory
    return total[0], total[1]
