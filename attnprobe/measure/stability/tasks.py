"""The five tasks of the Long Range Arena that the papers train on, as batches of labelled sequences.

ListOps is generated, ``text`` reads the text of the request, and the other tasks need a local file. Sequences are not
padded.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import SourceError, UsageError, unknown
from ...files import GIB, open_regular, path_of, reading
from ...inputs.spec import DTYPES, SourceSpec, choose_device
from ...rng import generator
from .data import CLASSES, SYMBOLS, expression, labelled_text
from .naming import TASKS

LEAST = 256  # bytes of a document, or n if that is less; shorter documents have too few tokens
MOST_BATCH = 100_000
MOST_N = 2**17


@dataclass(frozen=True)
class Example:
    """One example: its class, and its sequences (two for retrieval), int64 token numbers (n_i,) on the CPU."""

    sequences: tuple[Tensor, ...]
    label: int


class TaskSource(ABC):
    """A task with its batches, which depend on the seed and the step alone, on every machine.

    Attributes:
        name: one of `TASKS`. n, shortest: the most and the fewest tokens of a sequence.
        batch: the number of examples of a batch. rate: the learning rate, by default the paper's.
        classes, vocabulary: the numbers of labels and of tokens. pairs: the number of sequences of an example.
        facts: everything that determines the batches, for rows and titles.
    """

    classes: int
    vocabulary: int
    shortest: int
    pairs: int = 1
    facts: dict[str, Any]

    def __init__(self, name: str, n: int | None, batch: int | None, spec: SourceSpec) -> None:
        setting = TASKS[name]
        self.name, self.rate = name, setting.rate
        self.n, self.batch = n or setting.n, batch or setting.batch
        self.device, self.dtype = choose_device(spec.device), DTYPES[spec.dtype]
        self._batches: dict[tuple[int, int], list[Example]] = {}
        self.facts = {"task": name, "dtype": spec.dtype, "fallback": []}

    def batch_of(self, seed: int, step: int) -> list[Example]:
        """The examples of one step. The batches of a seed are cached, because every method trains on the same ones."""
        if any(other != seed for other, _ in self._batches):  # the seeds follow one another
            self._batches.clear()
        if (seed, step) not in self._batches:
            self._batches[seed, step] = self._made(seed, step)
        return self._batches[seed, step]

    @abstractmethod
    def _made(self, seed: int, step: int) -> list[Example]: ...

    @abstractmethod
    def describe(self) -> list[str]:
        """Every fact about the task's data, one line each, for a person."""


class _ListOps(TaskSource):
    """Expressions of n/4 to n tokens, 500 to 2000 in the paper's setting."""

    classes = CLASSES
    vocabulary = len(SYMBOLS)

    def __init__(self, n: int | None, batch: int | None, spec: SourceSpec) -> None:
        super().__init__("listops", n, batch, spec)
        # The paper's lengths are 500 to 2000; the same share of n keeps the task as hard at other lengths.
        self.shortest = self.n // 4
        self.facts |= {"generator": "grammar of Nangia & Bowman, depth 10, 2 to 10 arguments"}

    def _made(self, seed: int, step: int) -> list[Example]:
        drawn = (expression(seed, step * self.batch + i, self.shortest, self.n) for i in range(self.batch))
        return [Example((torch.tensor(tokens, device="cpu"),), value) for tokens, value in drawn]

    def describe(self) -> list[str]:
        return [f"listops: generated, {self.facts['generator']}, {self.shortest} to {self.n} tokens"]


class _Text(TaskSource):
    """Documents as bytes, cut after n of them."""

    vocabulary = 256

    def __init__(self, n: int | None, batch: int | None, spec: SourceSpec, notify: Callable[[str], None]) -> None:
        super().__init__("text", n, batch, spec)
        self.shortest = min(LEAST, self.n)
        documents = labelled_text(spec, self.n, notify)
        self.documents = documents.at_least(self.shortest)
        self.classes = len(documents.classes)
        if len(self.documents.texts) < self.batch:
            raise UsageError(
                f"text {documents.name}: {len(self.documents.texts)} documents of at least {self.shortest} bytes, but "
                f"a batch takes {self.batch}; give a longer text, or a smaller --batch or --n"
            )
        self.facts |= documents.facts | {"documents": len(self.documents.texts), "shortest": self.shortest}
        if documents.synthetic:
            why = f"the label is {documents.labelling}, which is not the papers' task"
            line = f"task text: {documents.name} has no labels: {why}"
            self.facts["fallback"] = [*documents.fallback, line]
            notify(line)

    def _made(self, seed: int, step: int) -> list[Example]:
        # By the step, not an epoch, so that step 5 is the same batch whatever was trained before it.
        order = torch.randperm(len(self.documents.texts), generator=generator(seed, "text", step), device="cpu")
        chosen = order[: self.batch].tolist()
        texts, labels = self.documents.texts, self.documents.labels
        tokens = (torch.frombuffer(bytearray(texts[i][: self.n]), dtype=torch.uint8).long() for i in chosen)
        return [Example((of_text,), labels[i]) for i, of_text in zip(chosen, tokens, strict=True)]

    def describe(self) -> list[str]:
        facts = self.facts
        digest = f", sha256 {facts['text_sha256']}"
        lengths = f"{self.shortest} to {self.n} bytes"
        line = f"text: {facts['text']}{digest}, {facts['documents']} documents, {lengths}, label: {facts['labels']}"
        return [line, *(f"fallback: {line}" for line in facts["fallback"])]


class _Stored(TaskSource):
    """Sequences of a local file, ``inputs`` and ``labels``."""

    def __init__(self, name: str, path: str, n: int | None, batch: int | None, spec: SourceSpec) -> None:
        super().__init__(name, n, batch, spec)
        arrays, digest = _arrays(path)
        self.inputs, self.labels, self.lengths = _checked(name, path, arrays, self.n)
        self.pairs = self.inputs.shape[1]
        self.shortest = min(int(self.lengths.min()), self.n)
        self.classes = max(2, int(self.labels.max()) + 1)
        # At least the bytes, so that a file that happens to lack one trains the same embedding.
        self.vocabulary = max(256, int(self.inputs.max()) + 1)
        if len(self.labels) < self.batch:
            raise UsageError(f"{name}: {path} holds {len(self.labels)} examples, but a batch takes {self.batch}")
        self.facts |= {"data": path, "data_sha256": digest, "examples": len(self.labels), "classes": self.classes}

    def _made(self, seed: int, step: int) -> list[Example]:
        order = torch.randperm(len(self.labels), generator=generator(seed, self.name, step), device="cpu")
        return [Example(self._sequences(i), int(self.labels[i])) for i in order[: self.batch].tolist()]

    def _sequences(self, index: int) -> tuple[Tensor, ...]:
        pairs = zip(self.inputs[index], self.lengths[index].tolist(), strict=True)
        return tuple(tokens[: min(length, self.n)].long() for tokens, length in pairs)

    def describe(self) -> list[str]:
        facts = self.facts
        return [
            f"{self.name}: {facts['data']}, sha256 {facts['data_sha256']}, {facts['examples']} examples, "
            f"{self.shortest} to {self.n} tokens"
        ]


def open_task(
    name: str,
    spec: SourceSpec,
    *,
    n: int | None = None,
    batch: int | None = None,
    rate: float | None = None,
    data: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> TaskSource:
    """The task of this name.

    ``listops`` is generated. ``text`` reads `labelled_text`. Any task takes a local file instead: ``npz`` or
    ``safetensors`` with ``inputs``, integers (N, n), for retrieval (N, 2, n); ``labels`` (N,); and, if sequences are
    padded at their end, ``lengths``, (N,) or (N, 2).

    Args:
        n: the most tokens of a sequence; longer ones are cut. batch: examples of a batch. rate: the learning rate.
            None is the paper's. data: a local file.

    Raises:
        UsageError: an unknown task, an impossible n or batch, a task that needs a file.
        SourceError: a file or text is absent, empty or damaged, or a device is missing.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    check_setting(n, batch, rate)
    if data is not None:
        task: TaskSource = _Stored(name, data, n, batch, spec)
    elif name == "listops":
        task = _ListOps(n, batch, spec)
    elif name == "text":
        task = _Text(n, batch, spec, notify)
    else:
        form = "(N, 2, n)" if name == "retrieval" else "(N, n)"
        raise UsageError(
            f"task {name} needs its data: --task {name}:data=FILE, npz or safetensors with inputs {form} and labels "
            "(N,)"
        )
    task.rate = rate or task.rate
    return task


def check_setting(n: int | None, batch: int | None, rate: float | None) -> None:
    """Refuse a setting that no task can have."""
    if n is not None and not 16 <= n <= MOST_N:
        raise UsageError(f"n={n}: choose a number of tokens from 16 to {MOST_N}")
    if batch is not None and not 1 <= batch <= MOST_BATCH:
        raise UsageError(f"batch={batch}: choose a number from 1 to {MOST_BATCH}")
    if rate is not None and not 0 < rate < 1:
        raise UsageError(f"rate={rate:g}: choose a learning rate above 0 and below 1, such as 1e-4")


def _arrays(path: str) -> tuple[dict[str, Tensor], str]:
    """The arrays of a file by name, and its SHA-256."""
    file_path = path_of(path, SourceError)
    try:
        with open_regular(file_path, 16 * GIB) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # a file has readinto
    except OSError as error:
        raise SourceError(f"data {path} cannot be read: {error.strerror}") from error
    with reading(f"data {path}", SourceError, ": it cannot be read as npz or safetensors"):
        if file_path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file_path), digest
        import numpy as np

        # A pickle runs code of its own when it is loaded.
        with np.load(file_path, allow_pickle=False) as held:
            return {name: torch.from_numpy(held[name]) for name in held.files}, digest


def _checked(name: str, path: str, arrays: Mapping[str, Tensor], n: int) -> tuple[Tensor, Tensor, Tensor]:
    """``inputs`` (N, pairs, n), ``labels`` (N,) and ``lengths`` (N, pairs)."""
    for key in ("inputs", "labels"):
        if key not in arrays:
            raise SourceError(f"data {path} has no '{key}'; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    inputs, labels = arrays["inputs"], arrays["labels"]
    inputs = inputs[:, None] if inputs.dim() == 2 else inputs
    pairs = 2 if name == "retrieval" else 1
    if inputs.dim() != 3 or inputs.shape[1] != pairs or labels.shape != inputs.shape[:1] or 0 in inputs.shape:
        form = "(N, 2, n)" if pairs == 2 else "(N, n)"
        raise SourceError(
            f"data {path}: inputs {form} and labels (N,) are needed, got "
            f"{tuple(arrays['inputs'].shape)} and {tuple(labels.shape)}"
        )
    lengths = arrays.get("lengths", torch.full(inputs.shape[:2], inputs.shape[2]))
    lengths = lengths[:, None] if lengths.dim() == 1 else lengths
    if lengths.shape != inputs.shape[:2]:
        raise SourceError(
            f"data {path}: lengths of shape {tuple(lengths.shape)} do not fit inputs {tuple(inputs.shape)}"
        )
    for key, x, low, high in (
        ("inputs", inputs, 0, 2**16 - 1),
        ("labels", labels, 0, 2**12),
        ("lengths", lengths, 2, inputs.shape[2]),
    ):
        # Pixels as floats from 0 to 1 would all become token 0.
        if x.is_floating_point() or x.dtype == torch.bool or not low <= int(x.min()) <= int(x.max()) <= high:
            raise SourceError(f"data {path}: {key} must hold whole numbers from {low} to {high}")
    return inputs, labels.long(), lengths.long()
