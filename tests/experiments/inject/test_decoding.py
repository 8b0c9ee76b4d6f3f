"""``attnprobe inject --phase decode``: steps behind an exact prefix, held to transformers' own loops."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sources_helpers import VOCABULARY, save, seeded, text_of

from attnprobe import approximate, injected
from attnprobe.errors import UsageError
from attnprobe.experiments.inject import InjectRequest, measure_drift
from attnprobe.experiments.inject.decoding import Prefix
from attnprobe.experiments.inject.drift import step_drift
from attnprobe.experiments.inject.language import LanguageModel
from attnprobe.experiments.inject.rows import inject_rows
from attnprobe.methods import get
from attnprobe.reference import exact_output

N, PREFIX, GREEDY, LAYERS = 40, 15, 6, 3
SAME = 5e-6  # relative, in float32, over a few layers


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A GPT-2, and a Llama whose four heads share two KV heads."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": len(VOCABULARY), "initializer_range": 0.3}
    llama = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    gpt2 = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64}
    makers = {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**sizes, **gpt2)),
        "llama": lambda: LlamaForCausalLM(
            LlamaConfig(**sizes, **llama, intermediate_size=48, max_position_embeddings=64)
        ),
    }
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(seeded(make), folder / name)) for name, make in makers.items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text(text_of(400))
    return str(path)


@pytest.fixture
def ask(models, text, tmp_path):
    """The records of decoding with a tiny model."""

    def measured(model="llama", out="r", **rest):
        given = {"n": (N,), "d": (8,), "methods": ("topk",), "prefix": PREFIX, "greedy_steps": GREEDY, **rest}
        spec = {"model": models[model], "text": text, "device": "cpu", "input_statistics": False}
        return measure_drift(InjectRequest(**spec, phase="decode", out=str(tmp_path / out), **given)).outcome.records

    return measured


def opened(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)


def ids_of(text):
    words = Path(text).read_text().split()[: N - 2]
    return torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])


def metrics(record):
    return {name: value for name, [value] in record["metrics"].items()}


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_exact_attention_decodes_as_itself(ask, model):
    for record in ask(model, methods=("softmax",), windows=2):
        found, steps = metrics(record), record["steps"]
        assert found["kl"] < 1e-11 and found["drift"] < SAME and found["top1_agreement"] == 1
        assert found["greedy_match"] == GREEDY and (record["prefix"], record["greedy_steps"]) == (PREFIX, GREEDY)
        assert max(steps["kl"]) < 1e-10 and {len(values) for values in steps.values()} == {N - 1 - PREFIX}


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_steps_are_those_of_a_loop_over_the_models_own_cache(ask, models, text, model):
    """And greedy tokens are those of its own generate."""
    from transformers import DynamicCache

    [record] = ask(model)
    ids, whole = ids_of(text), opened(models[model])
    own = whole(input_ids=ids).logits[0].double()

    def prefilled():
        cache = DynamicCache(config=whole.config)
        return cache, whole(input_ids=ids[:, :PREFIX], past_key_values=cache).logits[:, -1:].argmax(-1)

    cache, first = prefilled()
    kl, loss, same = [], [], []
    with injected(whole, "topk", d=8):
        for place in range(PREFIX, N - 1):
            logits = whole(input_ids=ids[:, place : place + 1], past_key_values=cache).logits[0, -1].double()
            p, q = own[place].softmax(0), logits.softmax(0)
            kl.append(sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True)))
            loss.append(-math.log(q[ids[0, place + 1]]))
            same.append(float(p.argmax() == q.argmax()))
    steps = record["steps"]
    assert steps["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-7) and steps["loss"] == pytest.approx(loss, rel=1e-4)
    assert steps["top1_agreement"] == same and 0 < sum(same) < len(same)
    found = metrics(record)
    assert found["kl"] == pytest.approx(sum(kl) / len(kl), rel=1e-3) and found["kl"] > 1e-3
    assert found["loss"] == pytest.approx(sum(loss) / len(loss), rel=1e-4)
    tokens = []
    for method in ("softmax", "topk"):
        cache, first = prefilled()
        start = torch.cat([ids[:, :PREFIX], first], dim=1)
        settings = {"max_new_tokens": GREEDY, "min_new_tokens": GREEDY, "do_sample": False, "pad_token_id": 0}
        with injected(whole, method, d=None if method == "softmax" else 8):
            tokens.append(whole.generate(start, past_key_values=cache, **settings)[0, -GREEDY:].tolist())
    match = next((place for place, (a, b) in enumerate(zip(*tokens, strict=True)) if a != b), GREEDY)
    assert found["greedy_match"] == match


def behind(whole, ids, method, **where) -> torch.Tensor:
    """The logits of every step, (steps, words)."""
    model = LanguageModel(whole, "causal", None, False, None, (0, 0), "float32")
    prefix = Prefix.read(model, ids, PREFIX)
    with injected(whole, method, d=8, **where):
        [found] = prefix.outputs(0)
    assert found.logits is not None
    return found.logits


def test_steps_are_rows_of_a_prefill_whose_earlier_rows_are_exact(models, text):
    """In all layers; an injection in the last layer alone changes no earlier key, so there any prefill will do."""
    ids, whole = ids_of(text), opened(models["llama"])
    topk = get("topk")

    def behind_prefix(qkv, d, **rest):
        approx = approximate("topk", qkv, d)
        exact = exact_output(qkv)[:, :PREFIX].to(qkv.dtype)
        return replace(approx, output=torch.cat([exact, approx.output[:, PREFIX:]], dim=1))

    late = replace(topk, function=behind_prefix)
    for method, layer in ((late, "all"), (topk, str(LAYERS - 1))):
        with injected(whole, method, d=8, layer=layer):
            expected = whole(input_ids=ids).logits[0, PREFIX : N - 1]
        torch.testing.assert_close(behind(whole, ids, topk, layer=layer), expected, rtol=0, atol=1e-4)
    with injected(whole, topk, d=8):
        prefilled = whole(input_ids=ids).logits[0, PREFIX : N - 1]
    assert (behind(whole, ids, topk) - prefilled).abs().max() > 1e-2


def test_a_window_gives_the_same_alone_and_in_a_batch(ask):
    alone, together = ask(windows=2), ask(out="b", windows=2, batch=2)
    for a, b in zip(alone, together, strict=True):
        assert a["key"] != b["key"] and a["steps"]["kl"] == pytest.approx(b["steps"]["kl"], rel=1e-3, abs=1e-8)
        assert a["metrics"]["greedy_match"] == b["metrics"]["greedy_match"]


def test_rows_hold_the_means_of_steps(ask):
    records = ask(windows=3, batch=3, per_layer=True)
    rows = inject_rows(records)
    assert [row["layer"] for row in rows] == [None, *range(LAYERS)]
    together = [record for record in records if record["layer"] is None]
    steps = rows[0]["steps"]
    assert steps is not None and rows[0]["prefix"] == PREFIX
    for name in steps:
        columns = zip(*(record["steps"][name] for record in together), strict=True)
        assert steps[name] == pytest.approx([sum(column) / 3 for column in columns])
    assert sum(steps["kl"]) / len(steps["kl"]) == pytest.approx(rows[0]["metrics"]["kl"]["mean"])


def test_the_default_prefix_is_half_of_the_text(ask):
    [record] = ask(prefix=None, greedy_steps=0)
    assert record["prefix"] == N // 2 and len(record["steps"]["kl"]) == N - 1 - N // 2
    assert record["metrics"]["greedy_match"] == [0.0]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"methods": ("mss", "snapkv")}, "mss cannot decode: it has no causal form; choose from .*topk"),
        ({"methods": ("lsh-qk",)}, "lsh-qk cannot decode: a row depends on the queries of earlier tokens or on"),
        ({"methods": ("block-topk",)}, "block-topk cannot decode: later queries choose the keys of earlier ones"),
        ({"prefix": N - 1}, f"prefix={N - 1}: n={N} leaves no step; choose a prefix up to {N - 2}"),
        ({"lines": True}, "reads windows of one length, not --lines"),
        ({"weights": ("initialized",)}, "needs a model that predicts the next word, and .* has random weights"),
    ],
    ids=lambda x: "" if isinstance(x, str) else "-".join(x),
)
def test_what_cannot_be_decoded_is_refused_before_anything_is_measured(ask, tmp_path, changes, words):
    with pytest.raises(UsageError, match=words):
        ask(**changes)
    assert not (tmp_path / "r").exists()


def test_an_encoder_is_refused(run, tiny_bert, text_file, tmp_path):
    args = ("--model", tiny_bert, "--text", text_file, "--n", 24, "--method", "topk", "--d", 4, "--device", "cpu")
    code, _, err = run("inject", *args, "--phase", "decode", "--out", tmp_path / "r")
    assert code == 2 and "predicts the next word" in err and "bert model" in err
    code, _, err = run("inject", *args, "--prefix", 4, "--out", tmp_path / "r")
    assert code == 2 and "--prefix needs --phase decode, but the phase is prefill" in err


def test_the_command_shows_steps_and_gates_greedy_decoding(run, models, text, tmp_path):
    args = ["--model", models["llama"], "--text", text, "--n", N, "--method", "topk", "--d", 8, "--device", "cpu"]
    args += ["--phase", "decode", "--greedy-steps", GREEDY, "--out", tmp_path / "r", "--no-input-statistics"]
    code, out, _ = run("inject", *args, "--dry-run")
    assert code == 0 and not (tmp_path / "r").exists()
    code, out, err = run("inject", *args, "--plot", "--format", "json", "--fail-below", f"greedy_match={GREEDY + 1}")
    [row] = json.loads(out)["rows"]
    assert code == 1 and "gate failed: greedy_match" in err and len(row["steps"]["kl"]) == N - 1 - N // 2
    assert (tmp_path / "r/figures" / f"inject-steps-n{N}.svg").exists()
    code, out, _ = run("report", tmp_path / "r", "--format", "table")
    assert code == 0 and f"decoding behind {N // 2} tokens" in out and f"of {GREEDY}" in out


def test_step_drift_of_one_step_by_hand():
    own, got = torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[2.0, 1.0, 0.0]])
    found = step_drift(own, got, torch.tensor([1]))
    p, q = own.double().softmax(1)[0], got.double().softmax(1)[0]
    assert found["kl"] == pytest.approx([float((p * (p / q).log()).sum())]) and found["top1_agreement"] == [0.0]
    assert found["loss"] == pytest.approx([-math.log(q[1])]) and found["loss_own"] == pytest.approx([-math.log(p[1])])
