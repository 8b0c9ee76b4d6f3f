"""``attnprobe inject``: drift by hand, padded batches, losses, budgets from a file, records, tables and refusals."""

import functools
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from inject_rows import by_layer, lines_of, local, metrics, of_kind, requested, shown_of
from paths import GOLDEN
from scipy.stats import spearmanr
from sources_helpers import VOCABULARY, WORDS, bert_config, needs_minilm, save, seeded, text_of
from thinned import others_slow

from attnprobe import approximate, capture, exact, injected, input_statistics, load_qkv
from attnprobe.errors import Unsupported, UsageError
from attnprobe.frame.correlation import LEAST
from attnprobe.frame.metric import TAILS
from attnprobe.frame.read import frame_of
from attnprobe.frame.records.budgets import read_budgets
from attnprobe.frame.records.read import read_records
from attnprobe.frame.summary import summary
from attnprobe.inject import attention_by
from attnprobe.inject.replacement import Replacement
from attnprobe.judge.gates import check
from attnprobe.judge.parse import parse_gate
from attnprobe.machine.timings import Timings
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.measure.inject import EXPERIMENT, GATED, InjectRequest, measure_drift
from attnprobe.measure.inject import measure as measure_module
from attnprobe.measure.inject.drift import Outputs, answer_metrics, model_drift
from attnprobe.measure.inject.language import batch_of
from attnprobe.measure.inject.measure import InjectCells
from attnprobe.measure.inject.plan import _text_of
from attnprobe.methods import METHODS, get
from attnprobe.metrics import shared_matrix_errors
from attnprobe.operators.linalg.exceedance import clopper_pearson
from attnprobe.run.cells import OPENING
from attnprobe.run.plan import MethodRequest
from attnprobe.show.page import open_run, views

SAME = 5e-6  # relative, in float32, over a few layers
LAYERS, HEADS, N = 3, 4, 40
LOSSES = {"loss", "loss_own", "loss_change", "kl", "top1_agreement", "logits_drift"}


def makers():
    from transformers import (
        BertForMaskedLM,
        BertModel,
        DistilBertConfig,
        DistilBertForMaskedLM,
        Gemma2Config,
        Gemma2ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        T5Config,
        T5Model,
    )

    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS}
    sizes = {"vocab_size": len(VOCABULARY), "initializer_range": 0.3}
    distilbert = {"dim": 32, "hidden_dim": 48, "n_layers": LAYERS, "n_heads": HEADS, "max_position_embeddings": 64}
    llama = {"hidden_size": 32, "num_hidden_layers": LAYERS, "intermediate_size": 48, "max_position_embeddings": 64}
    llama |= {"num_attention_heads": HEADS, "num_key_value_heads": 2}
    gpt2 = {"n_embd": 32, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
    return {
        "bert": lambda: BertForMaskedLM(bert_config(max_position_embeddings=64)),
        "bare": lambda: BertModel(bert_config(max_position_embeddings=64)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**sizes, **gpt2)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes, **llama)),
        "distilbert": lambda: DistilBertForMaskedLM(DistilBertConfig(**sizes, **distilbert)),
        "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, **llama)),
        "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**sizes, **llama, head_dim=8, sliding_window=64)),
        "t5": lambda: T5Model(T5Config(vocab_size=len(VOCABULARY), **t5)),
        "half": lambda: LlamaForCausalLM(LlamaConfig(**sizes, **llama)).to(torch.bfloat16),
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of tiny models with a head that predicts words.

    ``bare`` has none and ``half`` is bfloat16. The blocks of ``neox`` add attention and the MLP at once, so none is
    verified. ``gemma2`` caps its scores. The forward of ``distilbert`` takes no ``use_cache``.
    """
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(seeded(make), folder / name)) for name, make in makers().items()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A text of windows, and one of lines of unequal length."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "words.txt").write_text(text_of(400))
    words = [WORDS[(7 * i * i + i) % 37] for i in range(400)]
    ends = (0, 3, 33, 58, 61, 130, 154)
    lines = [" ".join(words[a:b]) for a, b in zip(ends, ends[1:], strict=False)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    return {"words": str(folder / "words.txt"), "lines": str(folder / "lines.txt")}


@pytest.fixture
def ask(models, texts, tmp_path):
    """The cells of ``measure_drift`` of a tiny model, without that of exact attention."""

    def measured(model="bert", out="r", text="words", **rest):
        spec = {"model": models[model], "text": texts[text], "device": "cpu", **rest.pop("spec", {})}
        arguments = {"n": (N,), "d": (8,), "methods": ("skyformer",), "input_statistics": False, **rest}
        return requested(measure_drift(InjectRequest(**spec, out=str(tmp_path / out), **arguments)).outcome.records)

    return measured


@pytest.fixture
def inject(run, models, texts):
    """``attnprobe inject`` on a tiny model in this process: ``(code, stdout, stderr)``."""

    def call(model, *args, inputs=False):
        spec = ("--model", models[model], "--text", texts["words"], "--n", N, "--device", "cpu")
        return run("inject", *spec, *(("--no-input-statistics",) * (not inputs)), *args)

    return call


def opened(folder):
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    auto = AutoModelForMaskedLM if folder.endswith("bert") else AutoModelForCausalLM
    return auto.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)


def ids_of(texts, count=N, start=0):
    """The tokens of a window as the tiny vocabulary has them: [CLS] words [SEP]."""
    words = Path(texts["words"]).read_text().split()[start * (count - 2) :][: count - 2]
    return torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])


EACH = [(model, batch) for model in ("bert", "gpt2", "llama", "distilbert") for batch in (1, 3)]


@pytest.mark.parametrize("model, batch", others_slow(EACH, lambda case: case[1] == 3 or case[0] == "bert"))
def test_the_exact_method_drifts_by_rounding_alone(ask, model, batch):
    """In padded batches of lines of unequal length too."""
    records = ask(model, text="lines", methods=("softmax",), lines=True, windows=4, batch=batch, per_layer=True)
    assert len(records) == 4 * (1 + LAYERS) and len({record["tokens"] for record in records}) == 4
    for actual in map(metrics, records):
        assert 0 < actual["drift"] < SAME and actual["logits_drift"] < SAME and actual["local_error"] < SAME
        assert actual["kl"] < SAME and actual["top1_agreement"] == 1 and abs(actual["loss_change"]) < SAME
        assert ("perplexity" in actual) == (model in ("gpt2", "llama")) != ("embedding_cosine" in actual)


def test_a_masked_models_drift_is_what_transformers_gives_by_hand(ask, models, texts):
    """Hidden states, embedding, masked loss, KL, agreement: loops over tokens in float64."""
    [record] = [r for r in ask(seed=4, windows=2) if r["window"] == 1]
    actual, ids, model = metrics(record), ids_of(texts, start=1), opened(models["bert"])
    places = hidden_words(N, 1, seed=4)
    assert len(places) == round(0.15 * (N - 2)) and min(places) > 0 and max(places) < N - 1
    masked = ids.clone()
    masked[0, places] = VOCABULARY.index("[MASK]")
    mask = torch.ones_like(ids)

    def run(x):
        return model(input_ids=x, attention_mask=mask, output_hidden_states=True)

    own, own_masked = run(ids).hidden_states[-1][0].double(), run(masked).logits[0].double()
    method = Replacement(get("skyformer"), 8, 4, "softmax", {})
    with attention_by(model, lambda call: method(replace(call, windows=[1]))):
        got, got_masked = run(ids).hidden_states[-1][0].double(), run(masked).logits[0].double()
    assert actual["drift"] == pytest.approx(float((got - own).norm() / own.norm()), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(got.mean(0), own.mean(0), dim=0)
    assert actual["embedding_cosine"] == pytest.approx(float(cosine), abs=1e-6)
    loss = kl = same = loss_own = 0.0
    for place in places:
        p, q = own_masked[place].softmax(0), got_masked[place].softmax(0)
        loss -= math.log(q[ids[0, place]]) / len(places)
        loss_own -= math.log(p[ids[0, place]]) / len(places)
        kl += sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True)) / len(places)
        same += float(p.argmax() == q.argmax()) / len(places)
    for name, value in (
        ("loss", loss),
        ("loss_own", loss_own),
        ("kl", kl),
        ("top1_agreement", same),
        ("loss_change", loss - loss_own),
    ):
        assert actual[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    gap = (got_masked - own_masked)[places].norm() / own_masked[places].norm()
    assert actual["logits_drift"] == pytest.approx(float(gap), rel=1e-4)
    assert actual["drift"] > 1e-2 and actual["kl"] > 1e-3


def hidden_words(length, window, seed):
    from attnprobe.rng import generator

    order = torch.randperm(length - 2, generator=generator(seed, "hidden words", length, window))
    return sorted((1 + order[: round(0.15 * (length - 2))]).tolist())


@pytest.mark.parametrize("model", others_slow(["gpt2", "llama"], lambda model: model[0] == "llama"))
def test_a_causal_models_perplexity_is_that_of_transformers_own_loss(ask, models, texts, model):
    actual = metrics(ask(model, methods=("window:causal=true",))[0])
    ids, whole = ids_of(texts), opened(models[model])
    own = float(whole(input_ids=ids, labels=ids).loss)
    with injected(whole, "window", d=8, causal=True):
        got = float(whole(input_ids=ids, labels=ids).loss)
    assert actual["loss_own"] == pytest.approx(own, rel=1e-5) and actual["loss"] == pytest.approx(got, rel=1e-5)
    assert actual["perplexity"] == pytest.approx(math.exp(got), rel=1e-4)
    assert actual["perplexity_change"] == pytest.approx(math.exp(got) - math.exp(own), rel=1e-3, abs=1e-2)
    assert actual["drift"] > 1e-2 and actual["top1_agreement"] < 1


def test_the_drift_of_logits_is_of_all_tokens_as_that_of_hidden_states(ask, models, texts):
    """No word follows the last token, so the other numbers of predictions are without it."""
    actual = metrics(ask("llama", methods=("window:causal=true",))[0])
    ids, whole = ids_of(texts), opened(models["llama"])
    own = whole(input_ids=ids).logits[0].double()
    with injected(whole, "window", d=8, causal=True):
        got = whole(input_ids=ids).logits[0].double()
    expected, shorter = (float((got - own)[:rows].norm() / own[:rows].norm()) for rows in (N, N - 1))
    assert actual["logits_drift"] == pytest.approx(expected, rel=1e-5) != pytest.approx(shorter, rel=1e-3)
    kl = torch.nn.functional.kl_div(got.log_softmax(-1), own.log_softmax(-1), log_target=True, reduction="none").sum(-1)
    assert actual["kl"] == pytest.approx(float(kl[: N - 1].mean()), rel=1e-5)


def output_errors(cell):
    """The relative error of each head's output, in a cell of ``attnprobe error``."""
    return [row["output_frobenius_relative"] for row in of_kind(cell, "head")]


def test_the_local_error_is_what_error_measures(ask, models, texts, tmp_path):
    """On the same layer, method, budget and seed."""
    records = ask("bare", per_layer=True, methods=("skyformer,nystromformer",), d=(8, 16), seed=2)
    spec = {"model": models["bare"], "text": texts["words"], "device": "cpu"}
    asked = {"n": (N,), "d": (8, 16), "layer": "all", "seed": 2, "matrix": False}
    methods = ("skyformer,nystromformer",)
    errors = measure_errors(ErrorRequest(**spec, **asked, methods=methods, out=str(tmp_path / "e")))
    expected = {(r["method"], r["d"], r["layer"]): output_errors(r) for r in errors.outcome.records if r["requested"]}
    alone = [record for record in records if record["layer"] is not None]
    assert len(alone) == 2 * 2 * LAYERS
    for record in alone:
        place = (record["method"], record["d"], record["layer"])
        assert local(record) == {place[2]: pytest.approx(expected[place], rel=1e-4)}, place
        assert metrics(record)["local_error"] == pytest.approx(sum(expected[place]) / HEADS, rel=1e-4)
    for record in records:
        if record["layer"] is None:
            every = [expected[record["method"], record["d"], layer] for layer in range(LAYERS)]
            mean = sum(map(sum, every)) / (HEADS * LAYERS)
            assert record["layers"] == "0-2" and metrics(record)["local_error"] == pytest.approx(mean, rel=1e-4)


def test_a_spectral_error_that_ran_out_of_memory_is_measured_again(ask, monkeypatch):
    whole = [metrics(one)["spectral_error"] for one in ask(methods=("vmean",), layer=(1,), per_head=True)]
    full = [torch.OutOfMemoryError("full")]

    def once(*args, **options):
        if full:
            raise full.pop()
        return shared_matrix_errors(*args, **options)

    monkeypatch.setattr("attnprobe.measure.inject.bench.shared_matrix_errors", once)
    again = ask(methods=("vmean",), layer=(1,), per_head=True, force=True)
    assert not full and [metrics(one)["spectral_error"] for one in again] == whole


def test_per_head_replaces_one_head_at_a_time(ask, models, texts):
    """Each drift is that of the model with this head's budget by hand, and the heads' errors are the layer's."""
    records = ask(methods=("skyformer", "vmean"), layer=(1,), per_head=True)
    whole, ids = opened(models["bert"]).base_model, ids_of(texts)
    own = whole(ids).last_hidden_state
    [call] = capture(whole, {"input_ids": ids}, [1]).values()
    matrix = exact(call.qkv()).dense().double().numpy()
    for method, d in (("skyformer", 8), ("vmean", None)):
        layer, *heads = [metrics(record) for record in records if record["method"] == method]
        assert len(heads) == HEADS
        gap = matrix - approximate(method, call.qkv(), d).operator.dense().double().numpy()
        spectral = np.linalg.norm(gap, 2, (1, 2)) / np.linalg.norm(matrix, 2, (1, 2))
        assert [head["spectral_error"] for head in heads] == pytest.approx(spectral.tolist(), rel=1e-4)
        assert layer["spectral_error"] == pytest.approx(spectral.mean(), rel=1e-4)
        assert sum(head["local_error"] for head in heads) / HEADS == pytest.approx(layer["local_error"], rel=1e-5)
        assert sum(head["residual_error"] for head in heads) == pytest.approx(layer["residual_heads"], rel=1e-5)
        for head, found in enumerate(heads):
            budget = {(1, number): (d or 1) if number == head else None for number in range(HEADS)}
            with injected(whole, method, budget, layer=[1]):
                got = whole(ids).last_hidden_state
            assert (
                found["drift"] == pytest.approx(float((got - own).norm() / own.norm()), rel=1e-3) and found["drift"] > 0
            )


def test_per_head_has_the_heads_budgets_of_a_file(ask, models, texts, tmp_path):
    path = budgets_file(tmp_path / "b.json")
    layer, *heads = map(metrics, ask(budgets=path, layer=(1,), per_head=True))
    whole, ids = opened(models["bert"]).base_model, ids_of(texts)
    own = whole(ids).last_hidden_state
    for head, found in enumerate(heads):
        budget = {(1, number): 8 + 4 * head if number == head else None for number in range(HEADS)}
        with injected(whole, "skyformer", budget, layer=[1], sampler="iid"):
            got = whole(ids).last_hidden_state
        assert found["drift"] == pytest.approx(float((got - own).norm() / own.norm()), rel=1e-3)
    assert sum(head["local_error"] for head in heads) / HEADS == pytest.approx(layer["local_error"], rel=1e-5)
    assert not any("spectral_error" in found for found in (layer, *heads))  # of one budget alone


def test_without_a_matrix_there_is_no_error_of_one(ask, monkeypatch):
    """Of a method that gives outputs alone. Scores with a cap have a matrix."""
    entry = METHODS["vmean"]
    bare = functools.wraps(entry.function)(lambda *args, **rest: replace(entry.function(*args, **rest), operator=None))
    monkeypatch.setitem(METHODS, "vmean", replace(entry, function=bare))
    for model, method in (("bert", "vmean"), ("gemma2", "softmax")):
        records = ask(model, out=model, methods=(method,), layer=(1,), per_head=True)
        assert {record["status"] for record in records} == {"ok"} and len(records) > 1
        for found in map(metrics, records):
            assert ("spectral_error" in found) == (method == "softmax")
            assert (found["local_error"] > 1e-3) == (method == "vmean") and found.get("spectral_error", 0) < 1e-6


def test_the_work_of_cells_knows_the_model_that_is_opened_and_its_words(models, texts, tmp_path, monkeypatch):
    spec = {"model": models["llama"], "text": texts["words"], "device": "cpu", "methods": ("window:causal=true",)}
    cells = InjectCells(InjectRequest(**spec, n=(N,), d=(8,), out=str(tmp_path / "r")), print, Timings())
    [place] = cells.places
    [own, cell] = cells.by_place[place]
    assert own.work.exact and cells.work(place, own)[0] < cells.work(place, cell)[0]
    with_words, _ = cells.work(place, cell)
    cells.sources[0].config.architectures = None
    assert cells.work(place, cell)[0] < with_words
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils", raising=False)
    assert cells.work_of_opening(cells.places) == OPENING > cells.work_of_opening([])


def test_a_block_that_is_not_verified_has_no_residual_error(ask):
    records = ask("neox", methods=("window:causal=true",), per_layer=True)
    assert len(records) == 1 + LAYERS
    for record in records:
        assert not any("residual" in name for row in record["rows"] for name in row)
        assert metrics(record)["row_error"] > 1e-2 and metrics(record)["drift"] > 1e-2


def test_per_layer_replaces_one_layer_at_a_time(ask, models, texts):
    actual = {record["layer"]: metrics(record)["drift"] for record in ask(layer=(1, 2), per_layer=True)}
    ids, model = ids_of(texts), opened(models["bert"]).base_model
    own = model(ids).last_hidden_state.double()
    for place, layers in ((None, [1, 2]), (1, [1]), (2, [2])):
        with injected(model, "skyformer", d=8, layer=layers):
            got = model(ids).last_hidden_state.double()
        assert actual.pop(place) == pytest.approx(float((got - own).norm() / own.norm()), rel=1e-5)
    assert not actual


def test_a_method_with_bad_rows_has_the_mark_and_takes_no_part(inject, models, texts):
    """Its rows were compared with those of sound methods, without a mark."""
    methods = "skyformer,skyformer:guard=sampled,nystromformer"
    code, out, _ = inject("bert", "--method", methods, "--windows", 3, "--d", 20, "--out", "r")
    assert code == 0 and "! skyformer " in out and "! has bad rows" in out and out.count("! ") == 2
    [shown] = views(open_run("r"))
    [grid] = shown.tables
    bold = [line[0].value for line in grid.cells if any(cell.bold for cell in line)]
    assert bold and set(bold) <= {"nystromformer", "skyformer:guard=sampled"}
    [first, *_] = requested(read_records("r"))
    calls = {call.number: call for call in capture(opened(models["bert"]), {"input_ids": ids_of(texts)}).values()}
    made = [approximate("skyformer", call.qkv(), 20, seed=first["seed"]) for call in calls.values()]
    assert metrics(first)["bad_rows"] == sum(int(one.diagnostics["bad_rows"].sum()) for one in made) > 0


BATCHED = [("bert", "skyformer"), ("llama", "window:causal=true")]


@pytest.mark.parametrize(("model", "method"), others_slow(BATCHED, lambda case: case[0] == "bert"))
def test_a_padded_batch_gives_each_line_what_it_has_alone(ask, model, method):
    settings = {"text": "lines", "methods": (method,), "lines": True, "windows": 4}
    alone, together = ask(model, "a", **settings), ask(model, "b", batch=4, **settings)
    assert [record["tokens"] for record in alone] == [record["tokens"] for record in together] == [32, 27, 40, 26]
    for one, other in zip(alone, together, strict=True):
        assert metrics(other) == pytest.approx(metrics(one), rel=1e-3, abs=1e-5)
        assert local(one).keys() == local(other).keys() and one["key"] != other["key"]


@pytest.mark.parametrize(
    ("model", "spec", "says"),
    [("bare", {}, "hold no masked-LM head (cls.predictions"), ("bert", {"weights": ("initialized",)}, "are random")],
)
def test_a_model_without_a_head_has_no_loss_and_says_so(ask, model, spec, says):
    [record] = ask(model, spec=spec)
    assert record["status"] == "ok" and not LOSSES & metrics(record).keys() and says in record["predicts_not"]
    assert record["predicts"] is None
    of_layers = {"local_error", "row_error", "residual_error", "residual_heads", "residual_sum"}
    stated = {"realised_d", "bad_rows", "rounded_rows"}
    assert {"drift", "embedding_cosine", *of_layers, *stated} == metrics(record).keys()


def test_residual_errors_are_those_of_the_models_own_projection(ask, models, monkeypatch):
    """Per head and of the layer, in plain torch: BERT's output projection, and the stream before its norm."""
    from attnprobe import approximate, capture
    from attnprobe.inject.replacement import Replacement
    from attnprobe.methods import get

    [record] = ask(layer=(1,))
    seen = {}
    bench = measure_module.Bench.measure

    def watching(self, work):
        seen["bench"], seen["work"] = self, work
        return bench(self, work)

    monkeypatch.setattr(measure_module.Bench, "measure", watching)
    ask(layer=(1,), out="again")
    model, work = seen["bench"].model.model, seen["work"]
    base = model.base_model
    ids = seen["bench"].reading.inputs
    calls = {call.number: call for call in capture(model, ids).values()}
    with torch.no_grad():
        x, *_, deep, _ = (state[0] for state in base(**ids, output_hidden_states=True).hidden_states[1:])
    dense, last = (base.encoder.layer[layer].attention.output.dense for layer in (1, -1))
    deep = deep + last(calls[max(calls)].output()[0].float().flatten(1))
    own = calls[1].output()[0].float()
    gap = Replacement(get(work.request.entry), work.budget, work.seed, "softmax", {})(calls[1])[0] - own
    stream = x + dense(own.flatten(1))
    width, heads = own.shape[2], own.shape[1]
    parts = [gap[:, head] @ dense.weight[:, head * width : (head + 1) * width].T for head in range(heads)]

    def error(change, size=None):
        r = change.norm(dim=1) / (stream.norm(dim=1) if size is None else size)
        return float((r**2 / (1 + r**2)).mean())

    assert by_layer(record, "local", "residual_error")[1] == pytest.approx([error(part) for part in parts], rel=1e-4)
    found = metrics(record)
    assert found["residual_error"] == pytest.approx(error(sum(parts)), rel=1e-4)
    beside = (stream.norm(dim=1) * deep.norm(dim=1)).sqrt()
    assert found["residual_sum"] == pytest.approx(error(sum(parts), beside), rel=1e-4)
    assert found["residual_heads"] == pytest.approx(sum(map(error, parts)), rel=1e-4)
    assert found["row_error"] == pytest.approx(float((gap.norm(dim=2) / own.norm(dim=2)).mean()), rel=1e-4)
    made = approximate(work.request.entry, calls[1].qkv(), work.budget, seed=work.seed)
    assert found["realised_d"] == pytest.approx(float(made.diagnostics["realised_d"].mean()), rel=1e-12)


def test_random_projections_are_those_that_error_has(ask, models, texts, tmp_path):
    [record] = ask(spec={"weights": ("initialized-qkv",)}, layer=(0,))
    spec = {"model": models["bert"], "text": texts["words"], "device": "cpu", "weights": ("initialized-qkv",)}
    outcome = measure_errors(ErrorRequest(**spec, n=(N,), d=(8,), matrix=False, out=str(tmp_path / "e"))).outcome
    [expected] = [output_errors(r) for r in outcome.records if r["requested"]]
    assert local(record)[0] == pytest.approx(expected, rel=1e-3)


def test_a_dtype_that_no_configuration_states_is_float32(ask, models, tmp_path):
    model = shutil.copytree(models["bert"], tmp_path / "bert")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != "dtype"}))
    [record] = ask(spec={"model": str(model)}, model_dtype="auto")
    assert record["model_dtype"] == "float32" and metrics(record)["drift"] > 1e-3


def test_a_tokenizer_without_a_mask_token_hides_no_words(ask, models, tmp_path):
    model = shutil.copytree(models["bert"], tmp_path / "bert")
    (model / "vocab.txt").write_text((model / "vocab.txt").read_text().replace("[MASK]", "[M]"))
    [record] = ask(spec={"model": str(model)})
    assert "has no mask token" in record["predicts_not"] and not LOSSES & metrics(record).keys()


def test_a_text_of_special_tokens_alone_hides_one_of_them(ask):
    [record] = ask(n=(2,), d=(1,), methods=("skyformer", "softmax"))[1:]
    assert metrics(record)["drift"] < SAME and "loss" in metrics(record)


@pytest.mark.parametrize(
    "settings", [{"model": "bert", "model_dtype": "bfloat16"}, {"model": "half", "model_dtype": "auto"}]
)
def test_half_precision_drifts_by_its_own_rounding(ask, settings):
    model = settings["model"]
    method = "skyformer" if model == "bert" else "window:causal=true"
    exact, rough = map(metrics, ask(methods=("softmax", method), **settings))
    assert 0 < exact["drift"] < 16 * torch.finfo(torch.bfloat16).eps < rough["drift"]
    assert exact["local_error"] < 1e-5 < rough["local_error"]  # methods run in float32


def test_a_method_without_a_causal_form_is_skipped_by_name(inject):
    code, out, err = inject("llama", "--method", "linformer", "--d", 8, "--out", "r")
    assert code == 2 and "model.layers.0.self_attn: attention is causal" in err and not Path("r").exists()
    code, out, err = inject("llama", "--method", "linformer,softmax", "--d", 8, "--format", "json")
    rows = {row["method"]: row for row in json.loads(out)["rows"] if row["table"] == "words"}
    assert code == 0 and rows["softmax"]["status"] == "ok", err
    assert rows["linformer"]["status"] == "skipped" and "no causal form" in rows["linformer"]["reason"]


def budgets_file(path, budget=lambda layer, head: 8 + 4 * head, **rest):
    listed = [
        {"layer": layer, "head": head, "d": budget(layer, head)} for layer in range(LAYERS) for head in range(HEADS)
    ]
    whole = {"schema": 1, "method": "skyformer", "options": {"sampler": "iid"}, "epsilon": 0.1, "budgets": listed}
    Path(path).write_text(json.dumps({**whole, **rest}))
    return str(path)


def test_budgets_of_a_file_are_those_of_each_head(ask, tmp_path):
    mixed = ask(out="m", budgets=budgets_file(tmp_path / "m.json"), per_layer=True)
    same = ask(out="s", budgets=budgets_file(tmp_path / "s.json", lambda *_: 16))
    named = ask(out="n", budgets=budgets_file(tmp_path / "n.json", prompt=7), methods=("skyformer:sampler=iid",))
    assert [record["key"] for record in named] == [mixed[0]["key"]] and named[0]["budget_mean"] == 14
    plain = ask(out="p", methods=("skyformer:sampler=iid",), d=(8, 12, 16, 20), per_layer=True)
    expected = {(r["d"], r["layer"]): r for r in plain}
    assert metrics(same[0]) == pytest.approx(metrics(expected[16, None]), rel=1e-4)
    assert [r["layer"] for r in mixed] == [None, 0, 1, 2] and mixed[0]["d"] is None
    assert mixed[0]["options"] == "sampler=iid"
    assert [mixed[0][f"budget_{name}"] for name in ("mean", "heads", "exact")] == [14, 12, 0]
    for layer in range(LAYERS):
        per_head = [local(expected[8 + 4 * head, layer])[layer][head] for head in range(HEADS)]
        assert local(mixed[1 + layer])[layer] == pytest.approx(per_head, rel=1e-4)


def test_another_budget_of_a_layer_is_another_cell_of_that_layer_alone(ask, tmp_path):
    keys = []
    for name, last in (("a", 16), ("b", 20)):
        path = budgets_file(tmp_path / f"{name}.json", lambda layer, head, last=last: last if layer == 2 else 8)
        keys.append({record["layer"]: record["key"] for record in ask(out=name, budgets=path, per_layer=True)})
    assert {layer for layer in keys[0] if keys[0][layer] != keys[1][layer]} == {None, 2}


def test_a_file_of_budgets_has_at_most_64_mib(tmp_path):
    path = Path(budgets_file(tmp_path / "b.json"))
    path.write_bytes(path.read_bytes().ljust(64 * 2**20))
    assert read_budgets(path).method == "skyformer"
    with path.open("ab") as file:
        file.write(b" ")
    with pytest.raises(UsageError, match="b.json: .*64 MiB"):
        read_budgets(path)


def test_what_budget_finds_is_what_inject_runs(run, inject, models, texts, tmp_path):
    """The file of `budget` keeps its ε in `inject`, head by head, on the same window."""
    args = ("--model", models["bert"], "--text", texts["words"], "--n", N, "--device", "cpu")
    asked = "--method topk:renormalize=false --epsilon 0.1 --layer all --d-max 12 --out b"
    code, _, err = run("budget", *args, asked)
    [path] = (tmp_path / "b").glob("budgets-*.json")
    actual = read_budgets(path)
    assert code == 0 and str(path.name) in err and len(actual.d) == LAYERS * HEADS
    assert len(set(actual.d.values()) - {None}) > 1 and None in actual.d.values()
    code, out, err = inject("bert", "--budgets", path, "--per-layer", "--out", "i")
    assert code == 0 and "its budgets are for" not in err
    records = requested(read_records(tmp_path / "i"))
    assert [r["layer"] for r in records] == [None, 0, 1, 2]
    assert {(r["method"], r["options"]) for r in records} == {("topk", "renormalize=False")}
    for record in records:
        for layer, errors in local(record).items():
            for head, error in enumerate(errors):
                d = actual.d[layer, head]
                assert error < SAME if d is None else 1e-3 < error <= 0.1 * (1 + 1e-5)
    exact = sum(d is None for d in actual.d.values())
    assert records[0]["budget_exact"] == exact and f"{exact} of {LAYERS * HEADS} heads keep exact" in out


ABOUT = [
    ({"model": "other"}, "its budgets are for model other; here it is"),
    ({"n": 64, "epsilon": 0.1}, f"its budgets are for n 64; here it is {N}"),
    ({"weights": "initialized"}, "its budgets are for weights initialized; here it is pretrained"),
    ({"scale_inputs": 2}, "its budgets are for scale inputs 2; here it is 1"),
    ({"n": N, "weights": "pretrained", "scale_inputs": 1, "target": "softmax"}, None),
]


@pytest.mark.parametrize(("about", "says"), ABOUT)
def test_budgets_for_another_setting_give_a_warning(models, texts, tmp_path, about, says):
    """Before anything is measured."""
    spec = {"model": models["bert"], "text": texts["words"], "n": (N,), "device": "cpu"}
    given, told = {"budgets": budgets_file(tmp_path / "b.json", **about)}, []
    InjectCells(InjectRequest(**spec, **given, out=str(tmp_path / "r")), told.append, Timings())
    assert any(says in line for line in told) if says else not any("b.json" in line for line in told), told


def test_budgets_of_another_target_are_refused(inject, tmp_path):
    code, out, err = inject("bert", "--budgets", budgets_file(tmp_path / "b.json", target="gaussian"), "--out", "r")
    assert (code, out) == (2, "") and "its budgets are for target=gaussian" in err and not (tmp_path / "r").exists()


OWN = "import torch\n\ndef f(q, k, v, d, scale):\n    return torch.softmax(scale * q @ k.mT, -1) @ v\n"
EVIL = "open('executed', 'w').close()\n\ndef f(q, k, v, d, scale):\n    return v\n"


@pytest.mark.parametrize(
    "contents",
    [
        {"method": "./evil.py:f", "options": {}},
        {"method": "evil.py:f", "options": {}},
        {"method": "skyformer,./evil.py:f"},
        {"method": "skyformer:sampler=iid,./evil.py:f", "options": {}},
        {"options": {"sampler": "iid,./evil.py:f"}},
        {"options": {"sampler=iid,./evil.py:f": 1}},
        {"method": "all", "options": {}},
    ],
    ids=str,
)
@pytest.mark.parametrize("named", [(), ("--method", "skyformer:sampler=iid")], ids=["unnamed", "another"])
def test_a_file_of_budgets_brings_no_code_to_run(inject, tmp_path, contents, named):
    (tmp_path / "evil.py").write_text(EVIL)
    path = budgets_file(tmp_path / "b.json", **contents)
    code, out, err = inject("bert", "--budgets", path, *named, "--out", "r")
    assert (code, out) == (2, "") and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "executed").exists() and not (tmp_path / "r").exists()


def test_an_option_of_a_file_of_budgets_is_one_option():
    assert _text_of(MethodRequest("window", {"sinks": 4})) == "window:sinks=4"
    with pytest.raises(UsageError, match="an option's value has a comma"):
        _text_of(MethodRequest("window", {"sinks": "4,./evil.py:f"}))


def test_budgets_of_an_own_method_run_where_it_is_named_and_unchanged(run, inject, models, texts, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    where = ("--model", models["bert"], "--text", texts["words"], "--n", N)
    code, _, err = run("budget", *where, "--method", "./own.py:f", "--layer", "all", "--d-max", 12, "--out", "b")
    assert code in (0, 4), err
    [path] = (tmp_path / "b").glob("budgets-*.json")
    assert read_budgets(path).about["method_sha256"]
    code, _, err = inject("bert", "--budgets", path, "--method", "./own.py:f", "--out", "i")
    assert code == 0, err
    (tmp_path / "sweep.yaml").write_text(
        f"command: inject\nmethods: [./own.py:f]\nmodel: {models['bert']}\n"
        f"text: {texts['words']}\nn: {N}\nbudgets: {path}\nout: s\n"
    )
    assert run("sweep", "sweep.yaml")[0] == 0
    silent = {name: value for name, value in json.loads(path.read_text()).items() if name != "method_sha256"}
    Path("silent.json").write_text(json.dumps(silent))
    code, _, err = inject("bert", "--budgets", "silent.json", "--method", "./own.py:f", "--out", "u")
    assert code == 0 and "it has no hash of own.py:f" in err
    (tmp_path / "own.py").write_text(OWN.replace("softmax", "sigmoid"))
    code, _, err = inject("bert", "--budgets", path, "--method", "./own.py:f", "--out", "j")
    assert code == 2 and "has changed since" in err and not (tmp_path / "j").exists()


def test_a_budget_of_null_keeps_exact_attention(ask, tmp_path):
    path = budgets_file(tmp_path / "b.json", lambda layer, head: None if head else 8)
    for record in ask(budgets=path, per_layer=True):
        assert record["budget_exact"] == 3 * len(local(record)) and record["budget_mean"] == 8
        for errors in local(record).values():
            assert errors[0] > 1e-3 and max(errors[1:]) < SAME
    none = ask(out="n", budgets=budgets_file(tmp_path / "n.json", lambda *_: None))[0]
    assert metrics(none)["drift"] < SAME and none["budget_mean"] is None


def test_mappings_of_budgets_are_by_layer_or_by_head(built):
    import tiny_models

    model, batch = built("BERT")
    valid = batch["attention_mask"].bool()

    def hidden(d):
        return _hidden(tiny_models, model, batch, d)[valid]

    torch.testing.assert_close(hidden({0: 8, 1: 8}), hidden(8), rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="layer.1.attention.self: no budget for layer 1, head 0"):
        hidden({0: 8})
    torch.testing.assert_close(
        hidden({(0, h): 8 for h in range(4)} | {1: None}),
        _hidden(tiny_models, model, batch, 8, layer=0)[valid],
        rtol=1e-4,
        atol=1e-4,
    )
    with pytest.raises(Unsupported, match="d=40 exceeds"):
        hidden({0: 8, (1, 0): 40, 1: 8})


def _hidden(tiny_models, model, batch, d, **rest):
    with injected(model, "skyformer", d, **rest):
        return tiny_models.hidden(model, batch)


def test_gradients_flow_through_heads_of_different_budgets():
    import tiny_models

    model = tiny_models.build("Llama").requires_grad_(True)
    batch = tiny_models.inputs(model)
    with injected(model, "window", {0: 8, (1, 0): 6, (1, 1): None, 1: 8}, causal=True):
        model(**batch).last_hidden_state[:, 0].square().sum().backward()
    assert all(float(model.layers[i].self_attn.v_proj.weight.grad.norm()) > 0 for i in (0, 1))


ONE = {"layer": 0, "head": 1, "d": 8}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "field record: expected a valid dictionary, got a list of 0"),
        ({"method": 3}, "field method: expected a valid string, got 3"),
        ({"budgets": 1}, "field budgets: expected a valid list, got 1"),
        ({"options": [1]}, "field options: expected a valid dictionary, got a list of 1"),
        ({"schema": 2}, "field schema: expected at most 1, got 2"),
        ({"budgets": [3]}, "field budgets[0]: expected a valid dictionary, got 3"),
        ({"budgets": [{**ONE, "head": -1}]}, "field budgets[0].head: expected at least 0, got -1"),
        ({"budgets": [{**ONE, "layer": True}]}, "field budgets[0].layer: expected a valid integer, got true"),
        ({"budgets": [{"layer": 0, "head": 1}]}, "field budgets[0].d: missing"),
        ({"budgets": [{**ONE, "d": 0}]}, "field budgets[0].d: expected at least 1, got 0"),
        ({"budgets": [ONE, ONE]}, "budgets[1]: layer 0, head 1 is listed twice"),
    ],
)
def test_a_file_that_holds_no_budgets_is_one_line(tmp_path, text, says):
    (tmp_path / "b.json").write_text(text if isinstance(text, str) else json.dumps({"method": "a", **text}))
    with pytest.raises(UsageError) as caught:
        read_budgets(tmp_path / "b.json")
    assert str(caught.value).startswith(f"{tmp_path}/b.json: ") and says in str(caught.value)
    with pytest.raises(UsageError, match="nowhere.json: cannot be read"):
        read_budgets(tmp_path / "nowhere.json")


def test_a_budget_of_one_is_one(tmp_path):
    assert set(read_budgets(budgets_file(tmp_path / "b.json", lambda layer, head: 1)).d.values()) == {1}


def test_lines_are_not_counted_as_windows(ask):
    """A text of four lines that are long enough has not four windows of 48 tokens."""
    with pytest.raises(UsageError, match="choose at most 3 windows"):
        ask(text="lines", methods=("vmean",), n=(48,), windows=4)
    assert len(ask(text="lines", methods=("vmean",), n=(48,), lines=True, windows=4)) == 4


def test_what_a_file_of_budgets_says_beside_them_is_kept(tmp_path):
    actual = read_budgets(budgets_file(tmp_path / "b.json", lambda layer, head: None if head else 8, other=1))
    assert actual.about == {"epsilon": 0.1, "other": 1} and actual.item == "skyformer:sampler=iid"
    assert actual.d[2, 0] == 8 and actual.d[2, 1] is None and len(actual.d) == LAYERS * HEADS


@pytest.mark.parametrize(
    "args, reason",
    [
        (("--n", 65), "n=65 is more than the 64 positions"),
        (("--d", 99), "d=99 exceeds"),
        (("--layer", "3"), "layer 3 does not exist; choose from 0-2"),
        (("--model-dtype", "int8"), "unknown model dtype 'int8'"),
        (("--batch", 0), "batch=0"),
        (("--lines", "--windows", 3), "has 0 lines of at least 20 tokens"),
        (("--windows", 99), "choose at most"),
        (("--budgets", "b.json", "--d", 8), "--d and --budgets exclude each other"),
        (("--budgets", "b.json", "--method", "mss"), "budgets belong to skyformer:sampler=iid, but --method names mss"),
        (("--budgets", "b.json", "--method", "skyformer"), "skyformer:sampler=iid, but --method names skyformer"),
        (("--d", "0.5"), "d=0.5 is a share of a prompt: it needs --phase decode"),
        (("--budgets", "b.json"), "b.json: it holds no budget for layer 2, head 3"),
        (("--fail-above", "top1_agreement=1"), "larger is better there"),
        (("--fail-above", "drif=1"), "did you mean 'drift'"),
        (("--qkv", "x"), "No such option"),
    ],
)
def test_what_cannot_be_asked_for_exits_2_and_leaves_nothing(inject, tmp_path, args, reason):
    path = budgets_file(tmp_path / "b.json")
    actual = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**actual, "budgets": actual["budgets"][:-1]}))
    some = () if {"--d", "--budgets"} & set(args) else ("--d", 8)
    code, out, err = inject("bert", "--out", "r", *some, *args)
    assert code == 2 and reason.lower() in err.lower() and out == "" and not Path("r").exists(), err


def test_a_model_round_the_interface_exits_3(run, texts, tmp_path):
    from transformers import DebertaConfig, DebertaModel

    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = DebertaConfig(**sizes, intermediate_size=48, talking_head=True)
    save(seeded(lambda: DebertaModel(config)), tmp_path / "deberta")
    code, out, err = run("inject", "--model", "./deberta", "--text", texts["words"], "--n", 32, "--d", 8, "--out", "r")
    assert code == 3 and "bypasses transformers' attention interface" in err and not Path("r").exists()


def test_without_single_layers_there_is_no_figure_and_it_says_so(inject):
    code, _, err = inject("bert", "--d", 8, "--plot", "--out", "r")
    assert code == 0 and "no figure" in err and not list(Path("r/figures").glob("*"))


def test_gates_judge_all_layers_together(inject):
    args = ("bert", "--d", 8, "--per-layer", "--out", "r", "--junit", "g.xml")
    gates = ("drift=1e-6", "local_error.max=1e-6", "perplexity=1e9")  # a masked model has no perplexity
    gates += ("drift=100", "kl.p90=100")
    code, _, err = inject(*args, *(word for gate in gates for word in ("--fail-above", gate)))
    assert code == 1 and err.count("gate failed: drift.mean <= 1e-06: skyformer d=8 n=40") == 1
    assert err.count("gate failed: ") == 3 and "gate failed: perplexity.mean <= 1e+09" in err, err
    assert Path("g.xml").exists()


def test_a_gate_of_a_layer_needs_layers_by_themselves(run, models, texts):
    Path("c.yaml").write_text(
        f"command: inject\nmodel: {models['bert']}\ntext: {texts['words']}\nn: {N}\nd: [8, 16]\nlayer: [1]\nout: r\n"
        "per-layer: true\ndevice: cpu\nmethod: [nystromformer, {name: window, options: {sinks: 2}}]\n"
        "gates: [{metric: embedding_cosine, min: -1}, {metric: drift, max: 99, layer: 1}, "
        "{metric: drift, max: 0.000001, layer: 1}]\n"
    )
    code, _, err = run("sweep", "c.yaml")
    assert code == 1 and err.count("gate failed: drift.mean <= 1e-06 for layer=1: ") == 4, err
    assert err.count("gate failed: ") == 4, err
    Path("c.yaml").write_text(Path("c.yaml").read_text().replace("per-layer: true", "per-layer: false"))
    code, _, err = run("sweep", "c.yaml")
    assert code == 2 and "c.yaml:11: gate 2: no layer is measured by itself" in err


def test_a_method_that_is_not_finite_is_a_row_and_exit_4(inject, monkeypatch):
    def lost(qkv, d, **options):
        actual = METHODS["vmean"].function(qkv, d, **options)
        return replace(actual, output=actual.output * math.nan)

    monkeypatch.setitem(METHODS, "efficient", replace(METHODS["efficient"], function=lost))
    for options, reason in (("", "head 0, token 0"), ("--layer 2", "the last hidden states are not finite")):
        code, out, _ = inject("bert", "--method efficient --format json", options or "--windows 1")
        [row] = [row for row in json.loads(out)["rows"] if not row["reference"]]
        assert code == 4 and row["status"] == "diverged" and reason in row["reason"], row
    assert row["drift.mean"] is None


def test_repeats_are_seeds_of_random_methods_alone(ask):
    records = ask(methods=("skyformer,vmean",), repeats=3, seed=5)
    expected = [("skyformer", 5), ("skyformer", 6), ("skyformer", 7), ("vmean", 5)]
    assert [(r["method"], r["seed"]) for r in records] == expected
    assert len({metrics(r)["drift"] for r in records}) == 4 and len({metrics(r)["loss_own"] for r in records}) == 1
    frame = frame_of(records, EXPERIMENT.shape, "head", {record["key"]: "" for record in records})
    line = summary(frame, ["name"], ["drift"]).iloc[0]
    assert line["repeats"] == line["drift.count"] == 3


def planted(layer, drift, local_error, method="a", d=8, **more):
    """A cell with these numbers; of all four layers if ``layer`` is None."""
    place = {"n": 8, "d": d, "window": 0, "layer": layer, "layers": "0-3" if layer is None else f"{layer}"}
    place |= {"alone": layer is not None, "key": f"{method}{d}{layer}", "heads": [0], "source": {}, "repeat": 0}
    state = {"kind": "cell", "method": method, "options": "", "status": "ok", "command": "inject", **more}
    numbers = {"drift": drift, "local_error": local_error, "rounded_rows": more.get("rounded", 0.0)}
    return {**place, **state, "rows": [{"kind": "head", "key": place["key"], **numbers}]}


def test_layers_that_tolerate_a_method_best_and_worst_and_the_correlation():
    a = [(0, 0.4, 0.1), (1, 0.2, 0.2), (2, 0.9, 0.3), (3, 0.8, 0.25), (4, 0.5, 0.28), (5, 0.6, 0.4)]
    b = [(layer, 0.1 + layer, 0.1 + layer) for layer in range(LEAST)]
    [few] = lines_of([planted(*one) for one in a[1:]], "layers")
    assert few["rho"] is None
    cells = [planted(None, 1.5, 0.2), *(planted(*one) for one in a), *(planted(*one, method="b") for one in b)]
    first, second = lines_of(cells, "layers")
    assert (first["best_layer"], first["best_drift"]) == (1, 0.2)
    assert (first["worst_layer"], first["worst_drift"]) == (2, 0.9) and second["rho"] == 1
    [every] = lines_of(cells, "predictors")
    for rho, points in ((first["rho"], a), (every["rho_local_error"], a + b)):
        _, drift, local_error = zip(*points, strict=True)
        assert rho == pytest.approx(spearmanr(local_error, drift).statistic)
    assert every["points"] == len(a + b) and every["places"] == "layers"
    within = [spearmanr(*zip(*((one[2], one[1]) for one in points), strict=True)).statistic for points in (a, b)]
    assert every["rho_local_error_in_a_method"] == pytest.approx(sum(within) / 2)
    lost = planted(2, None, 0.3, method="c")
    assert lines_of([*cells, lost], "predictors")[0]["points"] == len(a + b)


def test_exact_attention_stands_below_the_methods_with_its_own_loss(inject):
    code, out, _ = inject("llama", "--method", "window:causal=true", "--d", 8, "--windows", 2, "--out", "r")
    [shown] = views(open_run("r"))
    frame = shown.frame("head")
    exact, method = (frame[frame["reference"] == of] for of in (True, False))
    assert code == 0 and exact["loss"].tolist() == method["loss_own"].tolist() and not exact["requested"].any()
    assert (exact["kl"] == 0).all() and (exact["drift"] == 0).all() and (exact["top1_agreement"] == 1).all()
    [grid] = shown.tables
    assert [line[0].value for line in grid.cells] == ["window:causal=True", "exact (ref.)"]
    heading = [column.name for column in grid.columns]
    assert grid.cells[1][heading.index("loss.mean")].value == pytest.approx(exact["loss"].mean())


@pytest.mark.parametrize(("model", "table", "metric"), [("llama", "words", "kl"), ("bare", "drift", "drift")])
def test_causal_models_are_ranked_by_their_divergence_and_others_by_drift(ask, tmp_path, model, table, metric):
    """The sentence is that of compare: the best at each d, with the p-value of the windows."""
    causal = ":causal=true" if model == "llama" else ""
    methods = f"window:sinks=2{causal and ',causal=true'},window{causal}"
    ask(model, methods=(methods,), d=(8, 12), windows=4, batch=4)
    [shown] = views(open_run(tmp_path / "r"))
    [grid] = shown.tables
    assert (grid.table.name, grid.table.metric, grid.table.main) == (table, metric, f"{metric}.mean")
    names = {"kl": "mean KL divergence", "drift": "mean drift"}
    assert grid.sentence.startswith(f"Smallest {names[metric]}: window") and "over windows" in grid.sentence
    for duel in shown.duels:
        means = [row[f"{metric}.mean"] for row in shown.rows if row["d"] == duel["d"]]
        assert duel["value"] == pytest.approx(min(means)) and duel["freedom"] == 3


def test_rows_of_a_batch_are_padded_by_a_number_that_the_model_has():
    for pad, filled in ((-1, 0), (None, 0), ("x", 0), (5, 5)):
        model = SimpleNamespace(config=SimpleNamespace(pad_token_id=pad), device="cpu")
        reading = batch_of([[1, 2], [3]], SimpleNamespace(model=model))
        assert reading.inputs["input_ids"].tolist() == [[1, 2], [3, filled]] and reading.lengths == [2, 1]


def test_lines_of_special_tokens_alone_are_none(ask):
    with pytest.raises(UsageError, match="windows=1: the text .* has 0 lines of at least 1 tokens"):
        ask(n=(2,), d=(1,), lines=True)


def test_an_encoder_decoder_predicts_no_words_and_has_any_number_of_positions(ask):
    [record] = ask("t5", methods=("softmax",))
    assert record["predicts_not"] == "a t5 model has no head here" and metrics(record)["drift"] < SAME
    assert not LOSSES & metrics(record).keys()


@needs_minilm
@pytest.mark.slow  # of planted cells in the ordinary suite
@pytest.mark.parametrize(("layers", "there"), [("0-4", False), ("all", True)])
def test_a_correlation_is_shown_where_there_are_layers_enough(run, texts, layers, there):
    where = ("--model", "minilm", "--text", texts["words"], "--n", N, "--device", "cpu", "--layer", layers)
    code, out, _ = run("inject", *where, "--method", "vmean", "--per-layer", "--format", "md")
    assert code == 0 and there == ("| ρ |" in out)


def test_logits_in_chunks_give_what_they_give_at_once(monkeypatch):
    own, got = (
        Outputs(torch.ones(8, 2), torch.randn(7, 9, generator=torch.Generator().manual_seed(i))) for i in (0, 1)
    )
    whole = model_drift(own, got, torch.arange(7), causal=True, encoder=False)
    for rows in (1, 3, 6, 7):
        monkeypatch.setattr("attnprobe.measure.inject.drift.CHUNK", 9 * rows)
        drift, steps = model_drift(own, got, torch.arange(7), causal=True, encoder=False)
        assert drift == pytest.approx(whole[0], rel=1e-12) and steps["kl"] == pytest.approx(whole[1]["kl"], rel=1e-12)
        assert {name: len(values) for name, values in steps.items()} == dict.fromkeys(steps, 7)


def test_the_drift_of_outputs_is_zero_for_equal_and_lost_for_lost_ones():
    one = Outputs(torch.randn(5, 4), torch.randn(3, 9), torch.tensor([4, 2, 7]))
    words = torch.tensor([1, 2, 3])
    same = model_drift(one, one, words, causal=True, encoder=True)[0]
    of_layers = {"local_error", "realised_d", "bad_rows", "guarded_rows", "rounded_rows", "row_error", "spectral_error"}
    of_layers |= {"residual_error", "residual_heads", "residual_sum"}
    of_prompt = {
        "lost_mass",
        "first_divergence",
        "cache_bytes",
        "read_bytes",
        "needle_loss",
        "needle_loss_change",
        "needle_rank",
        "answer_right",
        "answer_flipped",
    }
    of_prompt |= {metric.name for metric in TAILS}
    of_rounding = {"rounding_drift", "rounding_kl", "rounding_local"}
    assert same.keys() == set(GATED.names) - of_layers - of_prompt - of_rounding and same["drift"] == same["kl"] == 0
    assert same["top1_agreement"] == 1 and same["embedding_cosine"] == pytest.approx(1) and same["greedy_match"] == 3
    differs = Outputs(one.hidden, one.logits, torch.tensor([4, 3, 7]))
    assert model_drift(one, differs, words, causal=True, encoder=True)[0]["greedy_match"] == 1
    nothing = Outputs(one.hidden * math.nan, one.logits * math.nan)
    lost = model_drift(one, nothing, words, causal=True, encoder=True)[0]
    assert all(math.isnan(lost[name]) for name in ("drift", "kl", "top1_agreement", "loss", "perplexity"))
    far = Outputs(one.hidden, torch.full((3, 9), -1e4).index_fill(1, torch.tensor([0]), 1e4))
    assert model_drift(one, far, words, causal=True, encoder=False)[0]["perplexity"] > 1e300


@needs_minilm
@pytest.mark.slow  # a model without a head and exact attention in any model are in the ordinary suite
def test_minilm_has_no_head_and_drifts_by_rounding(run, texts):
    options = "--n 64 --d 32 --per-layer --layer 0,5 --method softmax,nystromformer --device cpu --format json"
    code, out, err = run("inject", "--model minilm --text embedded", options)
    assert code == 0 and "no loss and no logits: the weights of minilm hold no masked-LM head" in err, err
    rows = [row for row in json.loads(out)["rows"] if row["table"] in ("drift", "alone")]
    assert len(rows) == 2 * 3
    for row in rows:
        assert (row["drift.mean"] < SAME) == (row["method"] == "softmax") and row.get("loss.mean") is None


def test_what_the_inputs_are_like_stands_beside_the_drift(inject, models, texts):
    """Those of the Q, K and V that other commands read, layer by layer; none of another dtype."""
    base = ("--windows", "2", "--method", "nystromformer", "--d", "4", "--format", "json")
    code, out, err = inject("bert", *base, "--batch", "2", "--out", "with", inputs=True)
    assert code == 0, err
    places = [(one["layer"], one["window"]) for one in open_run("with").inputs]
    assert sorted(places) == [(layer, window) for layer in range(LAYERS) for window in range(2)]
    kept = Path("with/inputs.jsonl").read_bytes()
    assert inject("bert", *base, "--batch", "2", "--out", "with", inputs=True)[0] == 0
    assert Path("with/inputs.jsonl").read_bytes() == kept
    read = load_qkv(model=models["bert"], text=texts["words"], n=N, layer=1, device="cpu")
    expected = input_statistics(read)
    [one] = [one for one in open_run("with").inputs if (one["layer"], one["window"]) == (1, 0)]
    assert [row["entropy"] for row in one["rows"]] == pytest.approx(expected["entropy"].tolist(), rel=1e-4)
    for place, inputs in enumerate((True, False)):
        spec = {"model": models["bert"], "text": texts["words"], "n": (N,), "d": (4,), "methods": ("nystromformer",)}
        more = {"model_dtype": "bfloat16"} if inputs else {}
        measure_drift(InjectRequest(**spec, **more, device="cpu", input_statistics=inputs, out=f"without{place}"))
        assert not open_run(f"without{place}").inputs


def decoded():
    """The cells of the golden run that decodes with topk, in two windows."""
    return [cell for cell in read_records(GOLDEN / "runs/inject-decode") if (cell["method"], cell["d"]) == ("topk", 3)]


def whole(cell):
    """The row of the whole model."""
    return next(row for row in cell["rows"] if row["kind"] == "head")


def test_perplexities_are_of_the_mean_loss_in_tables_json_and_gates():
    """The mean of the changes of the windows is another number."""
    cells = decoded()
    shown = shown_of(cells)
    [line] = [row for row in shown.rows if row["table"] == "decoded"]
    loss, own, change = (sum(whole(cell)[name] for cell in cells) / 2 for name in ("loss", "loss_own", "loss_change"))
    expected = {"perplexity": math.exp(loss), "perplexity_own": math.exp(own)}
    expected["perplexity_change"] = math.exp(loss) - math.exp(loss - change)
    for name, value in expected.items():
        assert line[f"{name}.mean"] == pytest.approx(value, rel=1e-12) and line[f"{name}.count"] == 2
        assert not [line[f"{name}.{of}"] for of in ("se", "median", "p10", "p90", "min", "max") if line[f"{name}.{of}"]]
    assert expected["perplexity_change"] == pytest.approx(math.exp(loss) - math.exp(own), rel=1e-9)
    mean = sum(whole(cell)["perplexity_change"] for cell in cells) / 2
    assert abs(mean - expected["perplexity_change"]) > 0.01
    [grid] = shown.with_columns(["perplexity_change"]).tables
    assert grid.cells[0][-1].value == pytest.approx(expected["perplexity_change"])
    limit = math.ceil(expected["perplexity_change"])
    for most, passed in ((limit, True), (limit - 1, False)):
        [result] = check(shown.gate_lines, [parse_gate(f"perplexity_change={most}", GATED)])
        assert result.passed == passed
    with pytest.raises(UsageError, match="unknown statistic 'p90'"):
        parse_gate("perplexity_change.p90=9", GATED)


def test_the_change_of_the_perplexity_is_over_windows_with_both_losses():
    first, second = decoded()
    names = ("loss", "loss_change", "perplexity", "perplexity_change")
    whole(second).update(dict.fromkeys(names))
    shown = shown_of([first, second])
    [line] = [row for row in shown.rows if row["table"] == "decoded"]
    assert line["perplexity_change.mean"] == pytest.approx(whole(first)["perplexity_change"], rel=1e-12)
    [result] = check(shown.gate_lines, [parse_gate("perplexity_change=0", GATED)])
    assert result.message == "only 1 of 2 values are finite"
    whole(first).update(dict.fromkeys(names))
    [line] = lines_of([first, second], "decoded")
    assert line["perplexity.mean"] is None and line["perplexity_change.mean"] is None


def test_the_sum_of_residual_errors_is_the_one_that_is_compared():
    assert "residual_sum" in EXPERIMENT.compared and "residual_error" not in EXPERIMENT.compared


@pytest.mark.parametrize(("right", "flipped"), [((1, 1), (0, 0)), ((1, 0), (0, 1)), ((0, 1), (0, 0))])
def test_an_answer_is_right_where_greedy_decoding_would_give_it(right, flipped):
    """Two words of an answer, each the likeliest of its row or the second."""
    words, best = torch.tensor([2, 0]), torch.tensor([[0.0, 1.0, 3.0], [3.0, 0.0, 1.0]])
    second = torch.tensor([[0.0, 4.0, 3.0], [3.0, 0.0, 1.0]])
    own, got = ((best if is_right else second) for is_right in right)
    numbers = answer_metrics(own, got, words)
    assert (numbers["answer_right"], numbers["answer_flipped"]) == (right[1], flipped[1])


def test_answers_have_their_exact_interval_and_are_refused_as_judges_where_the_model_has_them_wrong():
    methods = ("topk", "exact")
    cells = [cell for cell in read_records(GOLDEN / "runs/inject-decode") if cell["method"] in methods]
    for cell in cells:
        whole(cell)["answer_right"] = float(cell["window"] == 0 or cell["method"] != "exact")
    windows = {cell["window"] for cell in cells}
    assert len(windows) > 1 and {cell["method"] for cell in cells} == {*methods}
    lines = {line["name"]: line for line in lines_of(cells, "decoded")}
    interval = clopper_pearson(1, len(windows))
    assert (lines["exact"]["right_low"], lines["exact"]["right_high"]) == pytest.approx(interval)
    [note] = [line for grid in shown_of(cells).tables for line in grid.reasons if "do not judge a method" in line]
    assert note.startswith(f"exact attention has {1 / len(windows):.0%} of the answers right")
    for cell in cells:
        whole(cell)["answer_right"] = 1.0
    assert not any("judge a method" in line for grid in shown_of(cells).tables for line in grid.reasons)


def test_a_method_without_lost_mass_is_named():
    """Such as a user's, whose weights may be of no key."""
    cells = decoded()
    assert not any("lost mass is unknown" in line for grid in shown_of(cells).tables for line in grid.reasons)
    for cell in cells:
        whole(cell)["lost_mass"] = None
    [note] = [line for grid in shown_of(cells).tables for line in grid.reasons if "lost mass is unknown" in line]
    assert note.startswith("topk: the lost mass is unknown") and "the bytes that a method states, or else all" in note


def test_numbers_of_cells_with_rounded_rows_are_not_reproducible():
    first, second = decoded()
    whole(first)["rounded_rows"], whole(second)["rounded_rows"] = 3.0, 0.0
    shown = shown_of([first, second])
    [line] = [row for row in shown.rows if row["table"] == "decoded"]
    for name in ("kl", "loss_change", "perplexity", "perplexity_change"):
        assert line[f"{name}.mean.fragile"], name
    steady = ("loss_own", "perplexity_own", "rounded_rows", "cache_bytes")
    assert not [name for name in line if name.endswith(".fragile") and name.partition(".")[0] in steady]
    [grid] = shown.with_columns(["perplexity_change"]).tables
    assert grid.cells[0][-1].flag.sign == "≈"
    whole(first)["rounded_rows"] = 0.0
    [line] = lines_of([first, second], "decoded")
    assert not [name for name in line if name.endswith(".fragile")]
