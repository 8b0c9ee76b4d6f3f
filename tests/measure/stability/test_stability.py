"""``attnprobe stability``: τ against a literal twin, the tasks, pairs, records, tables, figures, gates and refusals."""

import json
import math
import re
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from paths import GOLDEN, ROOT
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from attnprobe import instability
from attnprobe.errors import SourceError, Unsupported, UsageError
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.read import read_records
from attnprobe.inputs import SourceSpec
from attnprobe.measure.stability import StabilityRequest, training
from attnprobe.measure.stability.classifier import Classifier
from attnprobe.measure.stability.data import DEPTH, SYMBOLS, expression
from attnprobe.measure.stability.plan import stability_prepared
from attnprobe.measure.stability.tasks import open_task
from attnprobe.measure.stability.training import training_steps
from attnprobe.show.catalogue.stability import cores, trainings
from attnprobe.show.page import open_run, views

SMALL = ("--n", "40", "--batch", "3", "--steps", "4", "--d", "8", "--condition-tokens", "12")
METRICS = ("tau", "tau_before_norm", "loss", "gradient_norm", "weight_change", "embedding_change")


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join(f"line {i} of a text that somebody wrote, and its square {i * i}" for i in range(200)))
    return path


# --- the score


class Twin(nn.Module):
    """The model as torch's modules have it, over a padded batch with a mask, as the authors train it."""

    def __init__(self, model, weights):
        super().__init__()
        w, h = model.width, model.hidden
        self.model = model
        self.token, self.position = nn.Embedding(model.vocabulary, w), nn.Embedding(model.length, w)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention_norm": nn.LayerNorm(w),
                    "mlp_norm": nn.LayerNorm(w),
                    "up": nn.Linear(w, h),
                    "down": nn.Linear(h, w),
                    **{name: nn.Linear(w, w) for name in ("query", "key", "value", "output")},
                }
            )
            for _ in range(model.layers)
        )
        self.last = nn.LayerNorm(w)
        self.head = nn.ModuleList([nn.Linear(w * (4 if model.pairs == 2 else 1), h), nn.Linear(h, model.classes)])
        names = {
            "embed.token.": "token.",
            "embed.position.": "position.",
            "last_norm.": "last.",
            "head.up.": "head.0.",
            "head.down.": "head.1.",
        }
        state = {}
        for name, x in weights.items():
            own = name if name.count(".") > 1 or name.startswith(("layer", "head", "last")) else f"{name}.weight"
            for other, ours in names.items():
                own = ours + own.removeprefix(other) if own.startswith(other) else own
            state[own.replace("layer0.", "layers.0.").replace("layer1.", "layers.1.")] = x.clone()
        self.double().load_state_dict(state)

    def forward(self, tokens, mask):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))

        def heads(y):
            return y.unflatten(2, (self.model.heads, -1)).transpose(1, 2)

        for layer in self.layers:
            y = layer["attention_norm"](x)
            q, k, v = (heads(layer[name](y)) for name in ("query", "key", "value"))
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask[:, None, None, :], float("-inf"))
            attended = torch.softmax(scores, -1) @ v
            x = x + layer["output"](attended.transpose(1, 2).flatten(2))
            x = x + layer["down"](functional.gelu(layer["up"](layer["mlp_norm"](x))))
        return self.last(x) * mask[..., None]

    def loss(self, embedding, mask, labels):
        means = embedding.sum(1) / mask.sum(1, keepdim=True)
        if self.model.pairs == 2:
            a, b = means[0::2], means[1::2]
            means = torch.cat([a, b, a * b, a - b], 1)
        return functional.cross_entropy(self.head[1](torch.relu(self.head[0](means))), labels)

    def scores(self, batches, rate, eps):
        """τ, the loss and the gradient's norm of each step, with Adam as its paper writes it."""
        own = dict(self.named_parameters())
        first, second = ({name: torch.zeros_like(x) for name, x in own.items()} for _ in range(2))
        for step, (tokens, mask, labels) in enumerate(batches, 1):
            before = self(tokens, mask)
            loss = self.loss(before, mask, labels)
            actual = torch.autograd.grad(loss, list(own.values()))
            gradients = dict(zip(own, actual, strict=True))
            moved = 0.0
            with torch.no_grad():
                for name, x in own.items():
                    g = gradients[name]
                    first[name] = 0.9 * first[name] + 0.1 * g
                    second[name] = 0.999 * second[name] + 0.001 * g * g
                    change = first[name] / (1 - 0.9**step) / ((second[name] / (1 - 0.999**step)).sqrt() + eps)
                    x -= rate * change
                    if not name.startswith("head"):
                        moved += float((rate * change).square().sum())
                after = self(tokens, mask)
            norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
            yield float((after - before.detach()).square().sum()) / moved, float(loss.detach()), norm


@pytest.mark.parametrize("pairs", [1, 2])
def test_the_score_is_that_of_a_literal_twin(pairs):
    """Sequence by sequence without padding, against one padded and masked batch, in float64."""
    g = torch.Generator().manual_seed(0)
    model = Classifier(vocabulary=11, length=13, classes=3, pairs=pairs)
    weights = model.initial(5, torch.float64)
    ours, other = [], []
    for _ in range(4):
        lengths = torch.randint(4, 14, (3 * pairs,), generator=g).tolist()
        sequences = [torch.randint(11, (length,), generator=g) for length in lengths]
        labels = torch.randint(3, (3,), generator=g)
        ours.append([(sequences[i * pairs : (i + 1) * pairs], int(labels[i])) for i in range(3)])
        padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        other.append((padded, torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None], labels))

    def attend(step, number, layer, q, k, v):
        return functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

    before = {name: x.clone() for name, x in weights.items()}
    actual = list(training_steps(model, weights, ours.__getitem__, attend, steps=4, rate=1e-3))
    expected = list(Twin(model, weights).scores(other, 1e-3, 1e-6))
    for step, (tau, loss, norm) in zip(actual, expected, strict=True):
        assert step.tau == pytest.approx(tau, rel=1e-6)  # a difference of two embeddings loses half the digits
        assert step.loss == pytest.approx(loss, rel=1e-12) and step.gradient_norm == pytest.approx(norm, rel=1e-10)
        assert step.tau == pytest.approx(step.embedding_change**2 / step.weight_change**2)
    assert all(torch.equal(x, before[name]) for name, x in weights.items())


def test_training_with_self_attention_is_the_literal_twins(words):
    """`instability` from end to end, its own attention included, against the twin on the same batches."""
    task = open_task("text", SourceSpec(text=str(words), device="cpu", dtype="float64"), n=32, batch=3)
    actual = instability("softmax", task, seed=2, steps=3)
    model = Classifier(task.vocabulary, task.n, task.classes, task.pairs, layers=2)
    batches = []
    for step in range(3):
        examples = task.batch_of(2, step)
        sequences = [tokens for one in examples for tokens in one.sequences]
        padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True).long()
        lengths = torch.tensor([len(tokens) for tokens in sequences])
        mask = torch.arange(padded.shape[1]) < lengths[:, None]
        batches.append((padded, mask, torch.tensor([one.label for one in examples])))
    expected = list(Twin(model, model.initial(2, torch.float64)).scores(batches, task.rate, 1e-6))
    for step, (tau, loss, norm) in enumerate(expected):
        assert actual.tau[step] == pytest.approx(tau, rel=1e-6)
        assert actual.loss[step] == pytest.approx(loss, rel=1e-12)
        assert actual.gradient_norm[step] == pytest.approx(norm, rel=1e-10)


def test_the_weights_are_the_seeds_alone():
    one, two = Classifier(15, 40, 10).initial(0), Classifier(256, 64, 2).initial(0)
    assert torch.equal(one["layer1.query.weight"], two["layer1.query.weight"])
    assert torch.equal(one["embed.position"], two["embed.position"][:40])
    assert not torch.equal(one["layer0.query.weight"], Classifier(15, 40, 10).initial(1)["layer0.query.weight"])
    assert float(two["embed.token"].std()) == pytest.approx(0.02, rel=0.02)
    assert float(two["layer0.up.weight"].abs().max()) == pytest.approx(1 / 8, rel=0.01)
    assert set(map(float, one["last_norm.weight"])) == {1.0} and set(map(float, one["last_norm.bias"])) == {0.0}


def test_what_is_exact_has_the_scores_of_self_attention(words):
    """topk of every key is softmax attention: the same batches, weights and steps, so the same τ."""
    setting = {"n": 32, "batch": 3, "steps": 4, "text": str(words), "dtype": "float64"}
    theirs, ours = (instability(name, "text", d=32, **setting) for name in ("softmax", "topk"))
    assert ours.tau == pytest.approx(theirs.tau, rel=1e-6) and ours.loss == pytest.approx(theirs.loss, rel=1e-9)
    other = instability("softmax", "text", seed=1, **setting)
    assert not np.allclose(other.tau, theirs.tau, rtol=1e-2)


def test_draws_are_those_of_the_step_and_the_sequence(monkeypatch):
    """The same at W_{i-1} and at W_i, others at each step, sequence and layer."""
    seen = []
    real = training.approximate

    def spy(name, qkv, d, **rest):
        approx = real(name, qkv, d, **rest)
        seen.append((torch.is_grad_enabled(), qkv.layer, qkv.window, approx.draws_hash()))
        return approx

    monkeypatch.setattr(training, "approximate", spy)
    instability("linformer", "listops", d=6, n=40, batch=3, steps=2)
    before, after = ([one[1:] for one in seen if one[0] is graded] for graded in (True, False))
    assert before == after and len(before) == len(set(before)) == 2 * 3 * 2
    assert len({draws for _, _, draws in before}) == len(before)


def test_condition_numbers_are_of_the_matrices_themselves(monkeypatch):
    kept = []
    real = training.approximate

    def spy(name, qkv, d, **rest):
        approx = real(name, qkv, d, **rest)
        if torch.is_grad_enabled() and qkv.layer == 1:
            kept.append((qkv, approx))
        return approx

    monkeypatch.setattr(training, "approximate", spy)
    actual = instability("skyformer", "listops", d=8, n=60, batch=2, steps=2, condition_tokens=9, dtype="float64")
    entries = {(one["matrix"], one["layer"], one["head"]): one for one in actual.conditions}
    first = [pair for place, pair in enumerate(kept) if place % 2 == 0]  # the first sequence of each batch
    for step, (qkv, approx) in enumerate(first):
        q, k = (x[1, :9].detach() for x in (qkv.q, qkv.k))
        b = torch.softmax(qkv.scale * q @ k.mT, -1)
        c = torch.exp(-torch.cdist(q, k).square() * qkv.scale / 2)
        assert entries["B", 1, 1]["cond"][step] == pytest.approx(float(torch.linalg.cond(b)), rel=1e-6)
        assert entries["C", 1, 1]["cond"][step] == pytest.approx(float(torch.linalg.cond(c)), rel=1e-6)
        expected = float(torch.linalg.cond(approx.cores["scaled"][1].detach()))
        assert entries["N", 1, 1]["cond"][step] == pytest.approx(expected, rel=1e-6)
        assert entries["N", 1, 1]["inverted"] and entries["N", 1, 1]["tokens"][step] == qkv.n
    assert instability("softmax", "listops", n=40, batch=2, steps=1).conditions == ()


def test_a_target_is_the_methods_own_unless_it_is_named():
    setting = {"d": 8, "n": 40, "batch": 2, "steps": 1}
    own, gaussian, softmax = (
        instability("skyformer", "listops", target=target, **setting) for target in ("own", "gaussian", "softmax")
    )
    assert own == gaussian and softmax.tau != own.tau


def test_weights_that_no_gradient_reaches_stay_and_weights_that_stay_have_no_score():
    setting = {"task": "listops", "n": 40, "batch": 2, "steps": 1}
    assert instability("vmean", **setting).tau[0] > 0  # Q and K have no part in it
    still = instability("linear", rate=1e-300, **setting)
    assert still.weight_change == (0.0,) and math.isnan(still.tau[0])


def test_what_cannot_train_says_why():
    with pytest.raises(Unsupported, match="listops: nystromformer: d=64 exceeds n=10"):
        instability("nystromformer", "listops", d=64, n=40, batch=2, steps=1)
    with pytest.raises(UsageError, match="unknown task 'listop'; did you mean 'listops'"):
        instability("softmax", "listop")
    with pytest.raises(UsageError, match="eps=-1: choose a number above 0 and below 1"):
        instability("softmax", "listops", eps=-1)
    with pytest.raises(UsageError, match="condition-tokens=-2: choose 0, or at least 2 tokens"):
        instability("softmax", "listops", condition_tokens=-2)
    for task, form in {"image": "(N, n)", "pathfinder": "(N, n)", "retrieval": "(N, 2, n)"}.items():
        with pytest.raises(
            UsageError, match=re.escape(f"task {task} needs its data") + ".*" + re.escape(f"inputs {form}")
        ):
            instability("softmax", task)


# --- the tasks


def evaluated(tokens):
    """The value of an expression, by a parser of this test's own."""
    open_ = [(None, [])]
    for symbol in (SYMBOLS[token] for token in tokens):
        if symbol.startswith("["):
            open_.append((symbol, []))
        elif symbol == "]":
            operator, arguments = open_.pop()
            rule = {"[MIN": min, "[MAX": max, "[SM": lambda x: sum(x) % 10, "[MED": statistics.median}[operator]
            open_[-1][1].append(int(rule(arguments)))
        else:
            open_[-1][1].append(int(symbol))
    return open_[0][1][0]


def parsed(tokens):
    """Depth and the numbers of arguments, by a parser of this test's own."""
    depth, deepest, counts, stack = 1, 1, [], []
    for token in tokens:
        symbol = SYMBOLS[token]
        if symbol.startswith("["):
            if stack:
                stack[-1] += 1
            stack.append(0)
            depth += 1
        elif symbol == "]":
            counts.append(stack.pop())
            depth -= 1
        else:
            stack[-1] += 1
            deepest = max(deepest, depth)
    assert not stack
    return deepest, counts


def test_listops_is_the_published_grammar():
    drawn = [expression(3, i, 100, 400) for i in range(60)]
    counts = []
    for tokens, value in drawn:
        assert 100 < len(tokens) < 400 and value == evaluated(tokens) and 0 <= value <= 9
        deepest, arguments = parsed(tokens)
        assert deepest <= DEPTH and all(2 <= count <= 10 for count in arguments)
        counts += arguments
    assert drawn == [expression(3, i, 100, 400) for i in range(60)]
    assert [tokens for tokens, _ in drawn] != [expression(4, i, 100, 400)[0] for i in range(60)]
    noise = 5 * np.std(counts) / math.sqrt(len(counts))
    assert np.mean(counts) == pytest.approx(6, abs=noise + 0.35)  # trees that are long enough have more
    every = [SYMBOLS[token] for tokens, _ in drawn for token in tokens]
    for operator in ("[MIN", "[MAX", "[MED", "[SM"):
        share = every.count(operator) / len(counts)
        assert share == pytest.approx(0.25, abs=5 * math.sqrt(0.1875 / len(counts)))


def test_a_batch_is_the_same_whenever_it_is_asked_for():
    one, two = (open_task("listops", SourceSpec(device="cpu"), n=64, batch=4) for _ in range(2))
    two.batch_of(0, 0)
    for ours, other in zip(one.batch_of(0, 1), two.batch_of(0, 1), strict=True):
        assert ours.label == other.label and torch.equal(ours.sequences[0], other.sequences[0])
    assert one.batch_of(0, 0)[0].sequences[0].tolist() != one.batch_of(1, 0)[0].sequences[0].tolist()


def text_task(path, **rest):
    return open_task("text", SourceSpec(text=str(path), device="cpu"), **{"n": 300, "batch": 3, **rest})


def test_labelled_texts(tmp_path):
    lines = [f"{'no' if i % 3 else 'yes'}\t{'word ' * (10 + 10 * i)}\n\n" for i in range(12)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    actual = text_task(tmp_path / "a.tsv")
    assert actual.classes == 2 and actual.facts["labels"] == "given, of 2" and not actual.facts["fallback"]
    assert actual.facts["documents"] == 7  # those of at least 256 bytes
    batch = actual.batch_of(0, 0)
    assert all(256 <= len(one.sequences[0]) <= 300 and one.label in (0, 1) for one in batch)
    assert bytes(batch[0].sequences[0].tolist()).startswith(b"word word")
    for label in ("down", "up"):
        (tmp_path / "docs" / label).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "docs" / label / f"{i}.txt").write_text(f"{label} {i} " * 60)
    (tmp_path / "docs" / "README").write_text("two labels")
    actual = text_task(tmp_path / "docs")
    labels = {bytes(one.sequences[0].tolist())[:2]: one.label for step in range(9) for one in actual.batch_of(0, step)}
    assert labels == {b"do": 0, b"up": 1}


def test_a_text_without_labels_says_so(words):
    notes = []
    actual = open_task("text", SourceSpec(text=str(words), device="cpu"), n=300, batch=4, notify=notes.append)
    assert "which half of the text" in actual.facts["fallback"][0] and notes == actual.facts["fallback"]
    data = words.read_bytes()
    for one in actual.batch_of(0, 0):
        place = data.index(bytes(one.sequences[0].tolist()))
        windows = len(data) // 300
        assert place % 300 == 0 and one.label == int(2 * (place // 300) >= windows)


def test_without_a_hub_the_embedded_text_stands_in(no_hub, monkeypatch):
    monkeypatch.setattr("attnprobe.measure.stability.data.hub_reachable", lambda: False)
    notes = []
    actual = open_task("text", SourceSpec(device="cpu"), n=500, batch=2, notify=notes.append)
    assert actual.facts["text"] == "embedded" and "cannot reach the hub for IMDb" in notes[0]
    with pytest.raises(SourceError, match="IMDb"):
        open_task("text", SourceSpec(device="cpu", strict=True), n=500, batch=2)
    imdb = SourceSpec(device="cpu", text="imdb")
    with pytest.raises(SourceError, match="IMDb"):
        open_task("text", imdb, n=500, batch=2)

    def broken(*_, **__):
        raise ConnectionError("cut off")

    nothing, quiet = lambda *_: None, SimpleNamespace(HF_HUB_OFFLINE=False)
    logging = SimpleNamespace(get_verbosity=nothing, set_verbosity=nothing, set_verbosity_error=nothing)
    bars = {"is_progress_bar_enabled": nothing, "disable_progress_bars": nothing}
    stub = SimpleNamespace(logging=logging, config=quiet, load_dataset=broken, **bars)
    monkeypatch.setattr("attnprobe.measure.stability.data.prepared", lambda *_: True)
    monkeypatch.setitem(sys.modules, "datasets", stub)
    with pytest.raises(SourceError, match=r"cannot reach the hub for IMDb: .* \(ConnectionError\)"):
        open_task("text", imdb, n=500, batch=2)  # which the cache holds only in part
    assert quiet.HF_HUB_OFFLINE is False
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match="^'imdb' needs the package datasets: pip install datasets, or"):
        open_task("text", imdb, n=500, batch=2)


def test_local_files(tmp_path):
    g = np.random.default_rng(0)
    inputs, labels = g.integers(0, 256, (6, 20)).astype(np.uint8), np.arange(6) % 3
    np.savez(tmp_path / "image.npz", inputs=inputs, labels=labels, lengths=np.full(6, 11))
    actual = open_task("image", SourceSpec(device="cpu"), n=16, batch=4, data=str(tmp_path / "image.npz"))
    assert (actual.classes, actual.vocabulary, actual.shortest, actual.pairs) == (3, 256, 11, 1)
    rows = {tuple(row[:11]): label for row, label in zip(inputs.tolist(), labels.tolist(), strict=True)}
    assert all(rows[tuple(one.sequences[0].tolist())] == one.label for one in actual.batch_of(0, 0))
    [line] = actual.describe()
    assert line.startswith(f"image: {tmp_path / 'image.npz'}, sha256 ") and line.endswith(
        ", 6 examples, 11 to 16 tokens"
    )
    pairs = {"inputs": torch.randint(0, 300, (5, 2, 20)), "labels": torch.tensor([0, 1, 0, 1, 0])}
    save_file(pairs, tmp_path / "pairs.safetensors")
    path = str(tmp_path / "pairs.safetensors")
    actual = instability("skyformer", "retrieval", d=8, n=16, batch=2, steps=2, data=path)
    assert all(value > 0 for value in actual.tau)
    assert open_task("retrieval", SourceSpec(device="cpu"), batch=2, data=path).rate == 2e-4


def test_damaged_files_are_named(tmp_path):
    def opened(name, file):
        return open_task(name, SourceSpec(device="cpu"), n=16, batch=2, data=str(tmp_path / file))

    (tmp_path / "no.npz").write_bytes(b"no")
    np.savez(tmp_path / "half.npz", inputs=np.zeros((3, 20), np.uint8))
    np.savez(tmp_path / "float.npz", inputs=np.zeros((3, 20)), labels=np.zeros(3, int))
    inputs, labels = np.zeros((3, 20), np.uint8), np.zeros(3, int)
    np.savez(tmp_path / "one.npz", inputs=inputs, labels=labels)
    np.savez(tmp_path / "nothing.npz")
    np.savez(tmp_path / "flat.npz", inputs=inputs[0], labels=labels)
    np.savez(tmp_path / "fewer.npz", inputs=inputs, labels=labels[:2])
    np.savez(tmp_path / "bool.npz", inputs=inputs > 0, labels=labels)
    np.savez(tmp_path / "single.npz", inputs=inputs[:1], labels=labels[:1])
    for name, lengths in (("lengths", labels[:2] + 9), ("scalar", np.int64(9)), ("no_lengths", labels[:0])):
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=labels, lengths=lengths)
    for name, file, words in (
        ("image", "gone.npz", "cannot be read"),
        ("image", "no.npz", "cannot be read as npz"),
        ("image", "half.npz", "no 'labels'"),
        ("image", "float.npz", "whole number"),
        ("retrieval", "one.npz", r"\(N, 2, n\)"),
        ("image", "nothing.npz", "no 'inputs'; it holds nothing"),
        ("image", "flat.npz", r"inputs \(N, n\) and labels \(N,\) are needed, got \(20,\) and \(3,\)"),
        ("image", "fewer.npz", r"are needed, got \(3, 20\) and \(2,\)"),
        ("image", "bool.npz", "inputs must hold whole numbers"),
        ("image", "lengths.npz", r"lengths of shape \(2, 1\) do not fit inputs \(3, 1, 20\)"),
        ("image", "scalar.npz", r"lengths of shape \(\) do not fit inputs"),
        ("image", "no_lengths.npz", r"lengths of shape \(0, 1\) do not fit inputs"),
    ):
        with pytest.raises(SourceError, match=words):
            opened(name, file)
    with pytest.raises(UsageError, match="holds 1 examples, but a batch takes 2"):
        opened("image", "single.npz")
    (tmp_path / "bytes.tsv").write_bytes(b"yes\t\xff")
    with pytest.raises(SourceError, match="is not UTF-8: byte 4; convert it first"):
        text_task(tmp_path / "bytes.tsv")
    (tmp_path / "bad.tsv").write_text("yes\tsome words\nno tab here\n")
    with pytest.raises(SourceError, match="document 2 is not label<TAB>text"):
        text_task(tmp_path / "bad.tsv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="without a folder of .txt files"):
        text_task(tmp_path / "empty")
    (tmp_path / "short.txt").write_text("word " * 100)
    with pytest.raises(UsageError, match="1 documents of at least 256 bytes, but a batch takes 3"):
        text_task(tmp_path / "short.txt")


# --- the run


@pytest.fixture
def small(run, words):
    """The command on a small setting of both tasks."""

    def call(*args, tasks="listops,text"):
        return run("stability", "--task", tasks, "--text", "words.txt", *SMALL, *args)

    return call


def test_the_rows_and_the_table(small):
    code, out, err = small("--method", "kernelized,nystromformer", "--seeds", "2", "--out", "r", "--format", "json")
    assert code == 0, err
    records = read_records("r")
    assert len(records) == 2 * 3 * 2
    for record in records:
        steps = [row for row in record["rows"] if row["kind"] == "step"]
        assert record["status"] == "ok" and [row["step"] for row in steps] == [1, 2, 3, 4]
        assert all(row[name] > 0 for row in steps for name in METRICS)
    assert [(one["task"], one["repeat"], one["method"]) for one in records[:4]] == [
        ("listops", 0, "softmax"),
        ("listops", 0, "kernelized"),
        ("listops", 0, "nystromformer"),
        ("listops", 1, "softmax"),
    ]
    expected = {("softmax", "softmax"), ("kernelized", "gaussian"), ("nystromformer", "softmax")}
    assert {(one["method"], one["target"]) for one in records} == expected
    actual = json.loads(out)
    lines = [row for row in actual["rows"] if row["table"] == "trainings"]
    assert {"rows", "source", "run"} <= actual.keys() and len(lines) == 6
    [one] = [row for row in lines if (row["task"], row["name"]) == ("text", "kernelized")]
    tau = {
        (r["method"], r["seed"]): [row["tau"] for row in r["rows"] if row["kind"] == "step"]
        for r in records
        if r["task"] == "text"
    }
    ratios = [np.mean(np.array(tau["kernelized", seed]) / tau["softmax", seed]) for seed in (0, 1)]
    assert one["ratio.mean"] == pytest.approx(np.mean(ratios)) and one["paper"] == 0.83
    assert one["ratio.median"] == pytest.approx(np.median(ratios)) and one["ratio.count"] == 2
    error = abs(ratios[0] - ratios[1]) / 2
    assert one["ratio.se"] == pytest.approx(error)
    assert one["ratio.half"] == pytest.approx(12.7062047 * error, rel=1e-6)
    base = next(row for row in lines if row["name"] == "softmax")
    assert base["ratio.mean"] == 1 and base["reference"]


def test_the_table_of_conditions_has_medians_over_steps_layers_and_heads_then_over_seeds(small):
    code, out, err = small("--method", "skyformer", "--seeds", "2", "--out", "r", "--format", "json", tasks="listops")
    assert code == 0, err
    lines = [row for row in json.loads(out)["rows"] if row["table"] == "conditions"]
    of_seeds = {}
    for record in read_records("r"):
        assert record["layer"] is None
        for row in record["rows"]:
            if row["kind"] == "condition":
                key = record["method"], row["matrix"], row["inverted"]
                of_seeds.setdefault(key, {}).setdefault(record["seed"], []).append(float(row["cond"]))
    assert {(line["name"], line["matrix"], line["inverted"]) for line in lines} == of_seeds.keys()
    assert ("skyformer", "N", True) in of_seeds and ("softmax", "B", False) in of_seeds
    for line in lines:
        seeds = of_seeds[line["name"], line["matrix"], line["inverted"]]
        assert [len(values) for values in seeds.values()] == [4 * 2 * 2] * 2
        assert float(line["cond.median"]) == pytest.approx(statistics.median(map(statistics.median, seeds.values())))
        assert line["matrices.sum"] == 32
        assert line["singular.sum"] == sum(values.count(math.inf) for values in seeds.values())


def test_the_header_says_which_tasks_ran(small):
    code, out, err = small("--seeds", "1", "--method", "kernelized", "--out", "r")
    assert code == 0, err
    assert "tasks: listops, text of the paper's five; not run: retrieval, pathfinder, image" in out
    assert "task text: words.txt has no labels" in err and "not the papers' task" in err
    assert "listops here: batch 3, not 32; tokens at most 40, not 2000" in out
    assert "self-attention" in out and "0.77" in out and "0.83" in out


def test_gates(small, run):
    ask = ("--seeds", "1", "--method", "kernelized", "--out", "r")
    code, _, err = small(*ask, "--fail-above", "ratio=0.001", "--junit", "g.xml")
    assert code == 1 and "gate failed: ratio.mean <= 0.001: listops kernelized" in err and Path("g.xml").exists()
    assert not any("softmax" in line for line in err.splitlines() if "gate failed" in line)  # nobody asked for it
    assert small(*ask, "--fail-above", "ratio=1e9", "--fail-above", "loss.max=50")[0] == 0
    code, _, err = small(*ask, "--fail-above", "rati=1")
    assert code == 2 and "did you mean 'ratio'" in err
    text = (
        "command: stability\ntask: [listops, text]\ntext: words.txt\nn: 40\nbatch: 3\nsteps: 4\nd: 8\n"
        "condition-tokens: 12\nseeds: 1\nmethod: [kernelized]\n"
        "gates: [{metric: ratio, task: text, method: kernelized, max: 0.001}]\n"
    )
    Path("s.yaml").write_text(text)
    code, _, err = run("sweep", "s.yaml", "--out", "r")
    assert code == 1 and "text kernelized" in err and "listops kernelized" not in err
    code, out, err = run("sweep", "s.yaml", "--dry-run", "--out", "r")
    assert code == 0 and "4 cells, 4 done in r" in out, err


def test_cells_that_fail_are_rows(small, monkeypatch):
    real = training.approximate

    def faulty(method, qkv, d, **rest):
        if method.name == "performer":
            raise RuntimeError("no luck")
        approx = real(method, qkv, d, **rest)
        if method.name == "linear" and qkv.window >= 3:
            object.__setattr__(approx, "output", approx.output * float("inf"))
        return approx

    monkeypatch.setattr(training, "approximate", faulty)
    ask = ("--method", "performer,linear,bigbird,kernelized", "--seeds", "1", "--out", "r")
    code, out, err = small(*ask, tasks="listops")
    assert code == 4, err
    actual = {record["method"]: record for record in read_records("r")}
    assert {name: one["status"] for name, one in actual.items()} == {
        "softmax": "ok",
        "kernelized": "ok",
        "performer": "failed",
        "linear": "diverged",
        "bigbird": "skipped",
    }
    assert "no luck" in actual["performer"]["reason"] and actual["linear"]["reason"].startswith("step 2")
    diverged = [row for row in actual["linear"]["rows"] if row["kind"] == "step"]
    assert len(diverged) in (1, 2) and "– bigbird" in out and "✗ performer" in out and "✗ linear" in out
    assert not actual["performer"]["rows"] and not actual["bigbird"]["rows"]
    monkeypatch.setattr(training, "approximate", real)
    assert small(*ask, "--retry-failed", "--plot", tasks="listops")[0] == 4  # what diverged stays


def test_a_method_without_a_gradient_is_skipped(small, monkeypatch):
    real = training.approximate

    def detached(method, *args, **rest):
        approx = real(method, *args, **rest)
        if method.name == "linear":
            object.__setattr__(approx, "output", approx.output.detach())
        return approx

    monkeypatch.setattr(training, "approximate", detached)
    code, out, err = small("--method", "linear,kernelized", "--seeds", "1", "--out", "r", tasks="listops")
    assert code == 0 and "linear does not differentiate: no gradient reaches its output" in out, err


@pytest.mark.parametrize(
    "args, words",
    [
        (("--task", "listop"), "unknown task 'listop'; did you mean 'listops'"),
        (("--task", "listops,listops"), "task listops is named twice"),
        (("--task", "listops:m=3"), "'m=3' is not an option"),
        (("--task", "listops:n=x"), "n=x is not a number"),
        (("--task", "listops:n"), "'n' is not an option"),
        (("--task", "listops:data="), "'data=' is not an option"),
        (("--task", "listops:n=40,n=50"), "n is given twice"),
        (("--task", "n=40"), "'n=40' is an option without a task before it; write NAME:n=40"),
        (("--task", "pathfinder"), "needs its data"),
        (("--n", "4"), "n=4: choose a number of tokens from 16"),
        (("--n", "32,64"), "one number for all tasks"),
        (("--batch", "0"), "batch=0"),
        (("--batch", "0", "--task", "listops:batch=2"), "batch=0"),
        (("--rate", "2"), "rate=2"),
        (("--eps", "0"), "eps=0"),
        (("--dtype", "float16"), "float32 or float64"),
        (("--condition-tokens", "1"), "condition-tokens=1"),
        (("--method", "nystromformer", "--d", "64"), "d=64 exceeds n=10"),
    ],
)
def test_what_is_impossible_is_refused(run, args, words):
    base = {"--task": "listops", "--n": "40", "--batch": "2", "--steps": "2"}
    base |= dict(zip(args[::2], args[1::2], strict=True))
    code, out, err = run("stability", *(part for pair in base.items() for part in pair))
    assert code == 2 and words in err and err.count("\n") == 1 and not Path("outputs").exists(), err


def test_a_request_without_a_task_is_refused():
    with pytest.raises(UsageError, match="no task; choose from text, listops"):
        stability_prepared(StabilityRequest(tasks=()), print)


def test_self_attention_that_was_asked_for_comes_first():
    request = StabilityRequest(tasks=("listops",), methods=("kernelized,softmax",), n=40, batch=2)
    _, methods, _ = stability_prepared(request, print)
    assert [(one.name, one.requested) for one in methods] == [("softmax", True), ("kernelized", True)]


def test_the_config_is_a_plan(run):
    config = ROOT / "configs/skyformer_stability.yaml"
    code, out, err = run("sweep", config, "--text", "embedded", "--dry-run", "--out", "r")
    assert code == 0 and "30 cells, 0 done in r" in out, err


def test_settings_that_do_not_pair_have_no_ratio(small):
    assert small("--seeds", "1", "--method", "kernelized", "--out", "r", tasks="listops")[0] == 0
    path = Path("r/rows.jsonl")
    cells = [record for record in read_records("r") if record["method"] != "softmax"]
    keys = {cell["key"] for cell in cells}
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines() if json.loads(line)["key"] in keys))
    [view] = views(open_run("r"))
    [row] = [row for row in json.loads(view.text("json"))["rows"] if row["table"] == "trainings"]
    assert row["name"] == "kernelized" and row["ratio.mean"] is None and row["tau.mean"] > 0
    assert "kernelized" in view.text("table")


def steps(name, taus, *, key="", seed=0, status="ok", loss=None, **place):
    """Rows of steps of one training."""
    every = {"source": "", "task": "listops", "n": 64, "batch": 4, "learning_rate": 1e-4, "eps": 1e-6, "steps": 3}
    rows = [
        {**every, "key": key or f"{name}{seed}", "name": name, "seed": seed, "status": status, "step": number}
        | {"tau": tau, "tau_before_norm": tau, "gradient_norm": 2.0, "loss": number if loss is None else loss}
        | place
        for number, tau in enumerate(taus, 1)
    ]
    types = {"tau": "Float64", "tau_before_norm": "Float64", "loss": "Float64", "step": "Int64", "batch": "Int64"}
    return pd.DataFrame(rows).astype(types)


def ratios_of(*groups):
    rows = trainings(pd.concat(groups, ignore_index=True))
    values = zip(rows["key"], rows["ratio"], strict=True)
    return {key: None if pd.isna(ratio) else float(ratio) for key, ratio in values}


def test_a_ratio_is_the_mean_over_steps_with_the_same_seed_and_setting():
    base, other = steps("softmax", [1.0, 2.0, 4.0]), steps("softmax", [2.0, 2.0, 2.0], seed=1)
    ours, theirs = steps("a", [2.0, 2.0, 2.0]), steps("a", [2.0, 4.0, 6.0], seed=1)
    assert ratios_of(ours, theirs, base, other) == {"a0": 3.5 / 3, "a1": 2.0, "softmax0": 1.0, "softmax1": 1.0}
    assert ratios_of(base, steps("a", [2.0] * 3, eps=1e-7))["a0"] is None
    assert ratios_of(base, base.assign(key="again"), ours)["a0"] == pytest.approx(3.5 / 3)


@pytest.mark.parametrize(
    "base, ours",
    [
        pytest.param({"taus": [1.0, 2.0]}, {"taus": [1.0, 2.0, 4.0]}, id="self-attention has fewer steps"),
        pytest.param({"taus": [1.0, 2.0, 4.0]}, {"taus": [1.0, 2.0], "status": "diverged"}, id="the method has fewer"),
        pytest.param({"taus": [1.0, 2.0, 4.0], "status": "diverged"}, {"taus": [1.0, 2.0, 4.0]}, id="diverged"),
        pytest.param({"taus": [1.0, 0.0, 4.0]}, {"taus": [1.0, 2.0, 4.0]}, id="self-attention stands still"),
        pytest.param({"taus": [1.0, 2.0, 4.0]}, {"taus": [1.0, None, 4.0]}, id="a step is unknown"),
    ],
)
def test_a_ratio_without_a_pair_at_each_step_is_missing(base, ours):
    assert ratios_of(steps("softmax", **base), steps("a", **ours))["a0"] is None


def test_a_training_has_means_and_the_first_and_last_loss():
    rows = trainings(pd.concat([steps("a", [1.0, 2.0, 6.0]), steps("b", [1.0, None, 6.0])], ignore_index=True))
    [a, b] = rows.to_dict("records")
    assert (a["tau"], a["loss"], a["loss_first"], a["loss_last"]) == (3.0, 2.0, 1.0, 3.0)
    assert pd.isna(b["tau"]) and b["loss"] == 2.0
    assert a["setting"] == "batch 4, learning rate 0.0001, 3 steps"


def test_the_condition_that_is_drawn_is_of_the_last_matrix_that_is_inverted():
    def rows(method, *matrices):
        return pd.DataFrame(
            {
                "key": method,
                "method": method,
                "task": "listops",
                "source": "",
                "matrix": matrix,
                "inverted": inverted,
                "step": step,
            }
            | {"layer": layer, "head": 0, "cond": cond * (1 + 2 * layer)}
            for matrix, inverted, cond in matrices
            for layer in (0, 1)
            for step in (1, 2)
        )

    of_all = pd.concat(
        [
            rows("m", ("A", True, 1.0), ("G", True, 2.0), ("C", False, 3.0)),
            rows("none", ("B", False, 1.0), ("C", False, 3.0)),
            rows("softmax", ("B", False, 5.0), ("C", False, 3.0)),
            rows("kernelized", ("B", False, 1.0), ("C", False, math.inf)),
        ],
        ignore_index=True,
    )
    drawn = cores(of_all)
    shown = {
        key: (group["matrix"].iloc[0], group["step"].tolist(), group["cond"].tolist())
        for key, group in drawn.groupby("key")
    }
    assert shown == {
        "m": ("G", [1, 2], [4.0, 4.0]),
        "softmax": ("B", [1, 2], [10.0, 10.0]),
        "kernelized": ("C", [1, 2], [math.inf] * 2),
    }


def test_all_tasks_in_the_papers_setting_and_a_task_from_two_texts(tmp_path):
    """A task from two texts has two tables."""
    [softmax, *_] = [cell for cell in read_records(GOLDEN / "runs" / "stability") if cell["method"] == "softmax"]
    cells = [softmax]
    for task, text in (("text", "a0"), ("text", "f0"), ("retrieval", ""), ("pathfinder", ""), ("image", "")):
        lost = {"status": "failed", "reason": "no luck", "rows": []} if task != "text" else {}
        place = {"task": task, "source": {"task": task, "text_sha256": text}, "key": f"{task}{text}"}
        cells.append({**softmax, **place, "paper_n": 64, "paper_batch": 2, **lost})
    with RecordWriter(tmp_path / "rows.jsonl") as writer:
        for cell in cells:
            writer.append(cell)
    [view] = views(open_run(tmp_path))
    text = view.text("table")
    assert "tasks: listops, text, retrieval, pathfinder, image of the paper's five\n" in text
    assert "\ntext here: the batch, length and learning rate of the paper\n" in text
    captions = [grid.caption for grid in view.tables if grid.table.name == "trainings"]
    assert len({*captions}) == len(cells) and all(caption.count("listops") < 2 for caption in captions)
    assert "no luck" in text
