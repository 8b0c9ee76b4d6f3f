"""``attnprobe inject --phase decode``: steps behind an exact prefix, held to transformers' own loops."""

import copy
import dataclasses
import functools
import itertools
import json
import math
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from inject_rows import lines_of, local, metrics, plan_of, requested, steps, without_reasons
from inject_rows import planned as planned_keys
from scipy.stats import spearmanr
from sources_helpers import VOCABULARY, save, seeded, text_of
from thinned import others_slow

from attnprobe import QKV, capture
from attnprobe.errors import SourceError, Unsupported, UsageError
from attnprobe.frame.records.read import read_records
from attnprobe.inject import attention_by
from attnprobe.machine.timings import Timings
from attnprobe.measure.inject import InjectRequest, _budgets, measure_drift
from attnprobe.measure.inject.allocation import head_errors, lava_budgets, planned_budgets, tried_budgets
from attnprobe.measure.inject.cache import CacheLayer
from attnprobe.measure.inject.drift import ExactOutput, Outputs, local_metrics, model_drift, step_rows
from attnprobe.measure.inject.files import files_of
from attnprobe.measure.inject.measure import InjectCells
from attnprobe.measure.inject.plan import _steps_behind
from attnprobe.measure.inject.policy import PromptPolicy, Steps, kept_keys, prompt_text
from attnprobe.methods import METHODS, get
from attnprobe.operators.block import Block
from attnprobe.show.page import open_run, views

N, PREFIX, GREEDY, LAYERS = 40, 15, 6, 3
SAME = 5e-6  # relative, in float32, over a few layers


def test_budgets_are_tried_at_equal_ratios_up_to_half_of_the_prompt_and_at_all_of_it():
    *tried, whole = tried_budgets(8192, 1024)
    assert whole == 8192 and tried[-1] == 4096 and tried[0] == 128 and len(tried) == 13
    ratios = [b / a for a, b in zip(tried, tried[1:], strict=False)]
    assert max(ratios) - min(ratios) < 0.02  # of 32^(1/12) = 1.33, by rounding to whole keys


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A GPT-2, a Llama whose four heads share two KV heads, and a Gemma of which one layer is global.

    All layers of the Gemma 2 are global, with scores capped at 1.

    The blocks of the GPT-NeoX add attention and the MLP at once, so none is verified. The GPT-OSS has sinks, and the
    last Llama no head.
    """
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        GptOssConfig,
        GptOssForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        LlamaModel,
    )

    sizes = {"vocab_size": len(VOCABULARY), "initializer_range": 0.3}
    llama = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    llama |= {"intermediate_size": 48, "max_position_embeddings": 64}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    gemma = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 7, "layer_types": kinds}
    capped = {"head_dim": 8, "attn_logit_softcapping": 1.0, "layer_types": ["full_attention"] * LAYERS}
    oss = {"head_dim": 8, "sliding_window": 7, "num_local_experts": 2, "num_experts_per_tok": 1}
    gpt2 = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64}
    makers = {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**sizes, **gpt2)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**sizes, **llama)),
        "gemma": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **llama, **gemma)),
        "capped": lambda: Gemma2ForCausalLM(Gemma2Config(**sizes, **llama, **capped)),
        "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, **llama)),
        "oss": lambda: with_sinks(GptOssForCausalLM(GptOssConfig(**sizes, **llama, **oss))),
        "bare": lambda: LlamaModel(LlamaConfig(**sizes, **llama)),
    }
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(seeded(make), folder / name)) for name, make in makers.items()}


def with_sinks(model):
    """The model with weights that transformers does not initialize."""
    for name, parameter in model.named_parameters():
        if name.endswith("sinks") or not bool(torch.isfinite(parameter).all()):
            parameter.data.normal_(0.0, 0.5)
    return model


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text(text_of(400))
    return str(path)


@pytest.fixture
def asked(models, text, tmp_path):
    """The request of decoding with a tiny model."""

    def made(model="llama", out="r", **rest):
        given = {"n": (N,), "d": (8,), "methods": ("topk",), "prefix": PREFIX, "greedy_steps": 0, **rest}
        spec = {"model": models[model], "text": text, "device": "cpu", "input_statistics": False}
        return InjectRequest(**spec, phase="decode", out=str(tmp_path / out), **given)

    return made


@pytest.fixture
def ask(asked):
    """The cells of decoding with a tiny model, without that of exact attention."""
    return lambda *args, **rest: requested(measure_drift(asked(*args, **rest)).outcome.records)


def opened(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval().requires_grad_(False)


def ids_of(text):
    words = Path(text).read_text().split()[: N - 2]
    return torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])


@pytest.mark.parametrize("model", others_slow(["gpt2", "llama", "oss"], lambda model: model[0] != "gpt2"))
def test_exact_attention_decodes_as_itself(ask, model):
    for record in ask(model, methods=("softmax",), windows=2, greedy_steps=GREEDY):
        found, of_steps = metrics(record), steps(record)
        assert found["kl"] < 1e-11 and found["drift"] < SAME and found["top1_agreement"] == 1
        assert found["greedy_match"] == GREEDY and (record["prefix"], record["greedy_steps"]) == (PREFIX, GREEDY)
        assert max(of_steps["kl"]) < 1e-10 and {len(values) for values in of_steps.values()} == {N - 1 - PREFIX}


def prefilled(whole, ids):
    """The model's own cache of the prompt, its keys (h_kv, n, p) by layer, and its weights (h, n, n) by layer."""
    from transformers import DynamicCache

    cache = DynamicCache(config=whole.config)
    output = whole(input_ids=ids[:, :PREFIX], past_key_values=cache, output_attentions=True)
    return cache, output.attentions


def smallest_norms(keys, weights):
    return -keys.norm(dim=-1)


def mean_weights(keys, weights):
    """The mean weight of each key over the queries that see it, and over the heads of its KV head."""
    sums = weights.sum(1) / torch.arange(PREFIX, 0, -1)
    return sums.unflatten(0, (len(keys), -1)).mean(1)


def pooled_weights(keys, weights):
    """SnapKV of the last three queries, which are kept too, without pooling."""
    scores = weights[:, -3:].mean(1).unflatten(0, (len(keys), -1)).mean(1)
    scores[:, -3:] = torch.inf
    return scores


def last_weights(keys, weights):
    return weights[:, -1].mean(0).expand(len(keys), -1)


def recent(keys, weights):
    scores = torch.arange(PREFIX).float().expand(len(keys), -1).clone()
    scores[:, :4] = torch.inf
    return scores


POLICIES = {
    "knorm": smallest_norms,
    "h2o": mean_weights,
    "snapkv:observe=3,kernel=1": pooled_weights,
    "tova": last_weights,
    "window": recent,
}


CROPPED = [(model, method) for model in ("llama", "gemma", "capped") for method in POLICIES]
CROPPED.remove(("gemma", "knorm"))  # the norms behind its k-norm are equal


@pytest.mark.parametrize(
    "model, method",
    others_slow(CROPPED, lambda case: case[0] == "llama" or case in (CROPPED[7], ("capped", "h2o"))),
)
def test_a_policy_is_a_decode_on_a_cropped_cache(ask, models, text, model, method):
    """transformers' own cache, cut to the keys of each KV head of global layers, then one token after another."""
    d = 8
    [record] = ask(model, methods=(method,), d=(d,), model_dtype="float64")
    ids, whole = ids_of(text), opened(models[model]).double()
    cache, weights = prefilled(whole, ids)
    for layer, of_layer in zip(cache.layers, weights, strict=True):
        if layer.is_sliding:
            continue
        kept = POLICIES[method](layer.keys[0], of_layer[0]).topk(d, dim=-1).indices.sort(-1).values
        index = kept[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[-1])
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
    size = sum(2 * x.numel() for layer in cache.layers for x in (layer.keys, layer.values))
    assert metrics(record)["cache_bytes"] == metrics(record)["read_bytes"] == pytest.approx(size)
    loss = []
    for place in range(PREFIX, N - 1):
        at = torch.tensor([[place]])
        logits = whole(input_ids=ids[:, place : place + 1], past_key_values=cache, position_ids=at).logits[0, -1]
        loss.append(-float(logits.double().log_softmax(0)[ids[0, place + 1]]))
    assert steps(record)["loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics(record)["loss"] == pytest.approx(sum(loss) / len(loss), abs=1e-5)
    assert abs(metrics(record)["loss_change"]) > 1e-3


@pytest.mark.parametrize("model", others_slow(["llama", "capped"], lambda model: model[0] == "capped"))
def test_topk_reads_the_d_largest_scores_of_the_prompt_at_each_step(ask, models, text, model):
    """In the last layer, where no earlier change moves the queries: a dense mask on the model's own scores."""
    last = LAYERS - 1
    [record] = ask(model, layer=(last,))
    ids, whole = ids_of(text), opened(models[model])
    [call] = [call for call in capture(whole, {"input_ids": ids}, last).values() if call.number == last]
    q, k = call.q[0, :, PREFIX : N - 1].double(), call.k[0].double().repeat_interleave(2, 0)[:, : N - 1]
    scores = call.scale * q @ k.mT
    assert call.softcap == (1.0 if model == "capped" else None)
    scores = scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()
    place = torch.arange(N - 1)
    scores = scores.masked_fill(place > torch.arange(PREFIX, N - 1)[:, None], -torch.inf)
    exact = scores.softmax(-1)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept[..., PREFIX:] = True
    kept.scatter_(-1, scores[..., :PREFIX].topk(8, dim=-1).indices, True)
    v = call.v[0].double().repeat_interleave(2, 0)[:, : N - 1]
    own, got = exact @ v, scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v
    errors = (got - own).norm(dim=(1, 2)) / own.norm(dim=(1, 2))
    assert local(record)[last] == pytest.approx(errors.tolist(), rel=1e-4)
    lost = float(exact.masked_fill(kept, 0).sum(-1).mean())
    assert metrics(record)["lost_mass"] == pytest.approx(lost, rel=1e-4) and lost > 1e-3


@pytest.mark.parametrize("method", ["knorm", "h2o", "topk"])
def test_a_cache_with_all_keys_loses_no_mass(asked, method):
    [found] = without_reasons(asked(methods=(method,), d=(PREFIX,), layer=(LAYERS - 1,)))
    assert found["lost_mass"] == 0 and found["kl"] == pytest.approx(0, abs=1e-9)


def test_forced_recent_keys_are_an_option_of_h2o(models, text):
    ids, whole = ids_of(text), opened(models["llama"])
    qkv = prompt_text(capture(whole, {"input_ids": ids}, 0)["model.layers.0.self_attn", 0].qkv(), PREFIX)
    recent_half = set(range(PREFIX - 4, PREFIX))
    sets = [kept_keys(get("h2o"), qkv, PREFIX, 8, options=options)[0] for options in ({"forced": True}, {})]
    assert recent_half <= set(sets[0].tolist()) and not recent_half <= set(sets[1].tolist())
    assert [len(set(one.tolist())) for one in sets] == [8, 8]
    ada = kept_keys(get("h2o"), qkv, PREFIX, 8, options={"streaming": False, "allocation": "ada"})
    assert int((ada >= 0).sum()) == 8 * len(ada)
    with pytest.raises(UsageError, match="streaming=True: a prompt is compressed once"):
        kept_keys(get("h2o"), qkv, PREFIX, 8, options={"streaming": True})


def test_random_keys_are_drawn_by_seed_and_head_beside_sinks(models, text):
    ids, whole = ids_of(text), opened(models["llama"])
    qkv = prompt_text(capture(whole, {"input_ids": ids}, 0)["model.layers.0.self_attn", 0].qkv(), PREFIX)
    kept = [kept_keys(get("random"), qkv, PREFIX, 8, seed).sort(-1).values.tolist() for seed in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2] and all({0, 1, 2, 3} < set(of_head) for of_head in kept[0])
    assert kept[0][0] == kept[0][1] != kept[0][2] and all(len(set(of_head)) == 8 for of_head in kept[0])


def test_all_keys_are_exact_attention(asked):
    for found in without_reasons(asked(methods=("knorm", "h2o", "topk", "window:sinks=0"), d=(PREFIX,))):
        assert found["kl"] < 1e-10 and found["residual_error"] < 1e-10 and found["first_divergence"] == N - 1 - PREFIX


def test_a_budget_of_the_whole_prompt_is_no_test(ask):
    """Exact attention itself is a row, and so is a method that has another law with all keys."""
    whole = ("knorm", "h2o", "topk", "window:sinks=0")
    cells = ask(methods=(*whole, "topp:p=0.5", "softmax"), d=(PREFIX, PREFIX - 1), greedy_steps=0, layer=(2,))
    by = {(cell["method"], cell["d"]): cell for cell in cells}
    for method in whole:
        name = method.partition(":")[0]
        skipped, few = by[name, PREFIX], by[name, PREFIX - 1]
        line = f"{name}: no test: each head reads all {PREFIX} tokens of the prompt, as exact attention does"
        assert skipped["status"] == "skipped" and skipped["reason"].startswith(line)
        assert few["status"] == "ok" and metrics(few)["kl"] > 0
    assert by["topp", PREFIX]["status"] == by["softmax", None]["status"] == "ok"
    with pytest.raises(UsageError, match="knorm: no test"):
        ask(methods=("knorm",), d=(PREFIX,), per_head=True, out="h")


def tokens_of(prompt, heads, read):
    """The mean number of tokens that a head of the cache has, or of which a step reads."""
    return CacheLayer(prompt, heads, 3, 5, 1, (0,)).bytes({0: read})[1]  # of 8 bits a token


@pytest.mark.parametrize(
    "name, options", [("topk", {}), ("snapkv", {"observe": 8, "sets": "head"}), ("snapkv", {"observe": 8})]
)
def test_what_is_read_is_counted_once_for_heads_that_share_keys(name, options):
    """Each step's keys, by hand: those that one of three heads chooses."""
    draws, prompt, d = torch.Generator().manual_seed(3), 30, 4
    q, k, v = (torch.randn(h, 36, 8, generator=draws, dtype=torch.float64) for h in (6, 2, 2))
    qkv = QKV(q, k, v, causal=True)
    text = prompt_text(qkv, prompt)
    policy = PromptPolicy(METHODS[name], d, 0, options, prompt, lambda layer, row: text)
    steps = qkv.replace(q=q[:, prompt:], positions=torch.arange(prompt, 36))
    policy.row(Steps(0, 0, 0, steps, prompt))
    if name == "topk":
        scores = torch.einsum("hip,hjp->ihj", q[:, prompt:], k[:, :prompt].repeat_interleave(3, 0))
        chosen = scores.topk(d).indices.tolist()  # of each step and head
    else:
        chosen = [kept_keys(METHODS[name], text, prompt, d, 0, options).tolist()]
    [read] = policy.read[0, 0]
    for heads in (2, 1):  # of the cache: those of the keys, or one for all heads, as of latent attention
        held = tokens_of(prompt, heads, read)
        size = 6 // heads
        sets = [of_step[head : head + size] for of_step in chosen for head in range(0, 6, size)]
        counts = [len(set().union(*of_heads)) for of_heads in sets]
        assert held == pytest.approx(prompt if name == "topk" and heads == 1 else sum(counts) / len(counts))
    assert (name == "topk" or "sets" in options) == (tokens_of(prompt, 2, read) > d)
    if name == "topk":  # whose sets are looked up where they are shared
        policy = dataclasses.replace(policy, shared=(0,), read={})
        policy.row(Steps(0, 0, 0, steps, prompt))
        assert tokens_of(prompt, 1, policy.read[0, 0][0]) == pytest.approx(sum(counts) / len(counts))


@pytest.mark.parametrize("name", ["vattention", "quest", "magicpig", "performer", "topk", "window", "random"])
def test_steps_in_one_forward_are_those_of_forwards_of_their_own(name):
    """Also their draws: of a method that samples keys for each query, no two steps have the same sample."""
    draws, prompt, count, d = torch.Generator().manual_seed(3), 30, 4, 12
    q, k, v = (torch.randn(2, prompt + count, 8, generator=draws, dtype=torch.float64) for _ in range(3))
    q[:, prompt:] = q[:, prompt : prompt + 1]  # steps with equal queries differ in their draws alone
    qkv = QKV(q, k, v, causal=True)
    text = prompt_text(qkv, prompt)

    def kept(places):
        policy = PromptPolicy(METHODS[name], d, 0, {}, prompt, lambda layer, row: text)
        some = qkv.replace(q=q[:, places], positions=places)
        return policy._kept(Steps(0, 0, 0, some, prompt))[0]

    together = kept(torch.arange(prompt, prompt + count))
    alone = torch.cat([kept(torch.tensor([place])) for place in range(prompt, prompt + count)], 1)
    assert alone.numpy() == pytest.approx(together.numpy(), rel=1e-6, abs=1e-6)  # the method is in float32 at least
    apart = (together[:, 1:] - together[:, :1]).abs().amax((0, 2))
    assert (apart > 1e-3).all() if name == "vattention" else (apart < 1e-9).all()


def test_bytes_are_those_of_the_cache(ask):
    """Three layers, two KV heads of 8 numbers, keys and values, 2 bytes each, whatever the dtype of the run."""
    given = {"methods": ("knorm", "topk", "window"), "d": (5,), "greedy_steps": 2}
    of = {record["method"]: metrics(record) for record in ask(**given)}
    whole = LAYERS * 2 * 8 * 2 * 2 * PREFIX
    for policy in ("knorm", "window"):
        assert [of[policy][name] for name in ("cache_bytes", "read_bytes")] == pytest.approx([whole / 3] * 2)
    assert of["topk"]["cache_bytes"] == pytest.approx(whole)
    assert whole / 3 < of["topk"]["read_bytes"] < 2 * whole / 3, "two heads that share keys choose different ones"
    [features] = ask(out="f", methods=("performer",), d=(5,))
    assert metrics(features)["read_bytes"] == whole, "d features are made of all keys"
    [plain] = ask(out="s", d=(5,))
    assert metrics(plain)["read_bytes"] == of["topk"]["read_bytes"], "greedy steps are not those of the text"
    block, pages = ask(out="p", methods=("moba", "quest:page=4"), d=(9,))
    assert block["status"] == "skipped" and "no test" in block["reason"], "one block of 512"
    read = metrics(pages)["read_bytes"] / whole
    assert 7 <= PREFIX * read < 11, "the last page, of 3 keys, and one of 4, or one for each of two heads"


def test_a_share_is_that_of_the_prompt(ask):
    records = ask(methods=("knorm",), d=(0.2, 8, 0.99))
    assert [record["d"] for record in records] == [3, 8, 14]


def test_one_kv_head_at_a_time(ask, tmp_path):
    """In the last layer the two heads' errors add up to those of the layer, and the ranks are scipy's."""
    records = ask(methods=("knorm", "window"), d=(6,), per_head=True, per_layer=True)
    heads = [record for record in records if record["kv_head"] is not None]
    assert len(heads) == 2 * LAYERS * 2
    layer = next(record for record in records if record["layer"] == 1 and record["kv_head"] is None)
    parts = [r for r in heads if (r["layer"], r["window"], r["method"]) == (1, layer["window"], layer["method"])]
    parts = [metrics(record) for record in parts]
    assert sum(part["residual_heads"] for part in parts) == pytest.approx(metrics(layer)["residual_heads"], rel=1e-5)
    assert sum(part["local_error"] for part in parts) / 2 == pytest.approx(metrics(layer)["local_error"], rel=1e-5)
    assert all(part["kl"] > 0 for part in parts) and parts[0]["kl"] != parts[1]["kl"]
    found = {row["places"]: row for row in lines_of(read_records(tmp_path / "r"), "predictors")}
    means = [[metrics(cell)[name] for cell in heads] for name in ("residual_error", "kl")]
    assert found["KV heads"]["points"] == len(heads) and found["layers"]["points"] == 2 * LAYERS
    assert found["KV heads"]["rho_residual_error"] == pytest.approx(spearmanr(*means).statistic)
    assert found["layers"]["rho_lost_mass"] is not None


def test_steps_say_where_the_prompt_ends(ask):
    [record] = ask(prefix=None, steps=10)
    assert record["prefix"] == N - 11 and len(steps(record)["kl"]) == 10


def test_a_window_gives_the_same_alone_and_in_a_batch(ask, tmp_path):
    asked = {"windows": 2, "greedy_steps": GREEDY}
    alone, together = ask(**asked), ask(out="b", batch=2, **asked)
    for a, b in zip(alone, together, strict=True):
        assert a["key"] != b["key"] and steps(a)["kl"] == pytest.approx(steps(b)["kl"], rel=1e-3, abs=1e-8)
        assert metrics(a)["greedy_match"] == metrics(b)["greedy_match"]
    path = tmp_path / "b" / "rows.jsonl"
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if "schema" in json.loads(line)]
    assert len(ends) == 4  # of two windows, and exact attention in them
    path.write_text("".join(lines[: ends[2] + 1]))
    assert [metrics(one) for one in ask(out="b", batch=2, **asked)] == [metrics(one) for one in together]
    assert len(path.read_text().splitlines()) == len(lines)


def test_a_frame_has_a_row_for_each_step(ask, tmp_path):
    """Its means are those of the model's row, and `kl_so_far` is the mean up to a step."""
    cells = ask(windows=3, batch=3, per_layer=True)
    frame = open_run(tmp_path / "r").frame("step")
    together = frame[frame["layer"].isna() & ~frame["reference"]]
    assert together["step"].tolist() == 3 * list(range(N - 1 - PREFIX)) and set(together["prefix"]) == {PREFIX}
    assert set(frame["layer"].dropna()) == set(range(LAYERS)) and len(frame.columns) < 60
    for cell in cells:
        of_cell = frame[frame["key"] == cell["key"]]
        for name in ("kl", "loss", "loss_own", "top1_agreement"):
            assert of_cell[name].mean() == pytest.approx(metrics(cell)[name], rel=1e-9, abs=1e-12)
        assert of_cell["kl_so_far"].tolist() == pytest.approx(of_cell["kl"].expanding().mean().tolist())


def test_the_default_prefix_is_half_of_the_text(ask):
    [record] = ask(prefix=None)
    assert record["prefix"] == N // 2 and len(steps(record)["kl"]) == N - 1 - N // 2
    assert "greedy_match" not in metrics(record)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"methods": ("mss", "lsh-qk")}, "mss cannot decode: it has no causal form; choose from .*topk"),
        ({"methods": ("knorm",), "d": (PREFIX + 1,)}, "knorm: d=16 exceeds the prompt of 15 tokens; choose d in 1..15"),
        (
            {"methods": ("snapkv",)},
            "snapkv: observe=64 exceeds the prompt of 15 tokens; choose observe in 1..15, or a longer prompt",
        ),
        ({"methods": ("knorm:every=8",)}, "knorm:every=8: a prompt is compressed once, so it has no segments"),
        ({"d": (1.5,)}, "d=1.5: a share of the prompt lies between 0 and 1"),
        ({"prefix": None, "steps": N - 1}, "steps=39: n=40 leaves no prompt; choose up to 38 steps"),
        ({"methods": ("lsh-qk",)}, "lsh-qk cannot decode: a row depends on the queries of earlier tokens or on"),
        ({"methods": ("block-topk",)}, "block-topk cannot decode: later queries choose the keys of earlier ones"),
        ({"prefix": N - 1}, f"prefix={N - 1}: n={N} leaves no step; choose a prefix up to {N - 2}"),
        ({"lines": True}, "reads windows of one length, not --lines"),
        (
            {"weights": ("initialized",)},
            "needs a model that predicts the next word, such as --model smollm2, and .* has random weights",
        ),
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
    args += ["--d", "4,8"]  # other bytes
    code, out, err = run("inject", *args, "--plot", "--format", "json", "--fail-below", f"greedy_match={GREEDY + 1}")
    rows = [row for row in json.loads(out)["rows"] if row["table"] == "decoded" and not row["reference"]]
    assert code == 1 and err.count("gate failed: greedy_match") == len(rows) == 2
    assert all(row["greedy_match.mean"] <= GREEDY for row in rows)
    assert {"inject-steps.svg", "inject-bytes.svg"} <= {*os.listdir(tmp_path / "r/figures")}
    code, out, _ = run("report", tmp_path / "r", "--format", "table", "--plot", "none")
    assert code == 0 and f"prompt {N // 2}" in out and f"/{GREEDY}" in out


def test_a_decode_without_a_method_measures_policies(run, models, text, tmp_path):
    given = {"model": models["llama"], "phase": "decode"}
    assert InjectRequest(**given, origin={"methods": "default"}).methods[::5] == ("topk", "random")
    assert InjectRequest(**given, origin={"methods": "command line"}, methods=("tova",)).methods == ("tova",)
    args = ("--model", models["llama"], "--text", text, "--n", N, "--d", 4, "--phase", "decode", "--device", "cpu")
    code, out, _ = run("inject", *args, "--steps", 2, "--greedy-steps", 0, "--out", tmp_path / "r")
    assert code == 0 and "snapkv: observe=64 exceeds the prompt" in out


def test_step_drift_of_one_step_by_hand():
    own, got = torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[2.0, 1.0, 0.0]])
    hidden = torch.ones(1, 2)
    _, found = model_drift(Outputs(hidden, own), Outputs(hidden, got), torch.tensor([1]), causal=True, encoder=False)
    p, q = own.double().softmax(1)[0], got.double().softmax(1)[0]
    assert found["kl"] == pytest.approx([float((p * (p / q).log()).sum())]) and found["top1_agreement"] == [0.0]
    assert found["loss"] == pytest.approx([-math.log(q[1])]) and found["loss_own"] == pytest.approx([-math.log(p[1])])


def least_sum(errors, tried, total):
    """The least sum of errors of all choices of tried numbers with at most the total."""
    places = range(len(errors))
    choices = itertools.product(range(len(tried)), repeat=len(errors))
    fair = [choice for choice in choices if sum(tried[one] for one in choice) <= total]
    return min(sum(errors[place][choice[place]] for place in places) for choice in fair)


def test_a_plan_is_the_best_of_all_choices_on_convex_errors():
    tried, stream = [1, 2, 3, 5, 8], torch.Generator().manual_seed(0)
    for total in range(4, 24):
        slopes = torch.rand(3, 4, generator=stream, dtype=torch.float64).sort(descending=True).values
        errors = 20 - torch.cat([torch.zeros(3, 1), (slopes * torch.tensor([1, 1, 2, 3])).cumsum(1)], 1)
        budgets = planned_budgets(errors, tried, total)
        assert sum(budgets) == min(total, 24) and min(budgets) >= 1
        along = sum(np.interp(d, tried, row) for d, row in zip(budgets, errors.tolist(), strict=True))
        assert along <= least_sum(errors.tolist(), tried, total) + 1e-9
    flat = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.9, 0.2]])
    assert planned_budgets(flat, [2, 4, 6], 8) == [2, 6], "no keys for a head that gains nothing"


@pytest.fixture(scope="module")
def made_once(models, text, tmp_path_factory):
    """The cells of a plan of knorm, without that of exact attention."""
    given = {"model": models["llama"], "text": text, "device": "cpu", "input_statistics": False, "phase": "decode"}
    given |= {"n": (N,), "d": (5,), "methods": ("knorm",), "prefix": PREFIX, "greedy_steps": 0}
    out = str(tmp_path_factory.mktemp("planned") / "r")
    request = InjectRequest(**given, plan="residual", plan_windows=2, windows=2, out=out)
    return requested(measure_drift(request).outcome.records)


@pytest.fixture
def planned(made_once):
    return copy.deepcopy(made_once)


def test_a_plan_gives_every_head_its_keys_at_the_same_total(planned, ask):
    by = {plan_of(record): record for record in planned}
    budgets, control = (sum(planned_keys(by[name]).values(), []) for name in ("residual", "shuffled"))
    assert len(budgets) == LAYERS * 2 and sum(budgets) == 5 * len(budgets) and len(set(budgets)) > 1
    assert sorted(control) == sorted(budgets) and control != budgets
    uniform, plan = metrics(by[None]), metrics(by["residual"])
    assert plan["cache_bytes"] == pytest.approx(uniform["cache_bytes"]) and plan["kl"] != uniform["kl"]
    other = ask(out="o", methods=("knorm",), d=(5,), plan="residual", plan_windows=2, windows=1)
    assert other[1]["key"] != planned[2]["key"], "other windows make another plan"


def test_policies_that_cannot_be_planned_leave_the_others_their_plans(ask):
    """One whose queries the prompt lacks, one that chooses at each step, and one that has budgets of its own."""
    methods = ("snapkv", "topk", "h2o:streaming=false,allocation=ada", "knorm")
    records = ask(methods=methods, d=(5,), plan="residual", plan_windows=1)
    by = {(record["method"], plan_of(record)): record for record in records}
    assert len(by) == 4 + 1 + 1 + 4 and ("topk", None) in by and ("h2o", None) in by
    for plan in (None, "residual", "shuffled"):
        assert "observe=64 exceeds the prompt of 15" in by["snapkv", plan]["reason"]
    assert sum(sum(planned_keys(by["knorm", "residual"]).values(), [])) == 5 * LAYERS * 2


OWN = """
import attnprobe, torch

def shortest(q, k, v, d, scale, stated):
    kept = k.norm(dim=-1).topk(d, largest=False).indices
    keys, values = (x.gather(1, kept[..., None].expand(-1, -1, x.shape[2])) for x in (k, v))
    scores = scale * q @ keys.mT
    parts = {
        "keys": {"keys": lambda: kept[:, None].expand(-1, q.shape[1], -1)},
        "count": {"diagnostics": {"kv_read": torch.full((len(q),), float(d))}},
        "nothing": {},
    }[stated]
    return attnprobe.Approximation(
        None, torch.softmax(scores, -1) @ values, log_normalizer=lambda: scores.logsumexp(-1), **parts
    )

claims = {"tags": ("decodes",), "budget": "keys", "limit": lambda n_q, n_k: n_k}

@attnprobe.method(storage=attnprobe.Storage(evicts=True), **claims)
def evicting(q, k, v, d, scale, stated="keys"):
    return shortest(q, k, v, d, scale, stated)

@attnprobe.method(storage=lambda d, options: attnprobe.Storage(evicts=True, k=options["bits"], v=2.0), **claims)
def few_bits(q, k, v, d, scale, bits=6.0):
    return shortest(q, k, v, d, scale, "count")

@attnprobe.method(**claims)
def plain(q, k, v, d, scale):
    return shortest(q, k, v, d, scale, "keys")
"""


def test_bytes_of_a_users_policy_are_what_it_states(ask, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    own = [f"{tmp_path}/own.py:{name}" for name in ("evicting", "evicting:stated=count", "evicting:stated=nothing")]
    own += [f"{tmp_path}/own.py:{name}" for name in ("few_bits", "few_bits:bits=10", "plain")]
    knorm, keys, count, nothing, six, ten, plain = map(metrics, ask(methods=("knorm", *own), d=(5,)))
    for found in (keys, count, nothing, six, ten, plain):
        assert found["kl"] == pytest.approx(knorm["kl"], rel=1e-4)
    for found in (keys, count):
        assert found["cache_bytes"] == found["read_bytes"] == knorm["cache_bytes"]
    whole = PREFIX / 5 * knorm["cache_bytes"]
    assert nothing["cache_bytes"] == nothing["read_bytes"] == pytest.approx(whole)
    assert six["cache_bytes"] == six["read_bytes"] == pytest.approx(knorm["cache_bytes"] * (6 + 2) / 2 / 16)
    assert ten["cache_bytes"] == pytest.approx(knorm["cache_bytes"] * (10 + 2) / 2 / 16)
    assert plain["cache_bytes"] == pytest.approx(whole) and plain["read_bytes"] == knorm["read_bytes"]


def test_a_plan_is_made_for_every_policy_that_drops_keys_and_says_for_which_it_is_not(ask, run, models, text, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    own = f"{tmp_path}/own.py"
    given = {"d": (5,), "plan": "residual", "plan_windows": 1}
    records = ask(methods=(f"{own}:evicting", "knorm", "window", "topk", f"{own}:plain"), **given)
    plans = {record["method"]: planned_keys(record) for record in records if plan_of(record) == "residual"}
    assert plans.keys() == {"own.py:evicting", "knorm", "window"}
    assert all(sum(sum(plan.values(), [])) == 5 * LAYERS * 2 for plan in plans.values())
    assert plans["own.py:evicting"] == plans["knorm"] and min(sum(plans["window"].values(), [])) >= 5
    args = ["--model", models["llama"], "--text", text, "--n", N, "--d", 5, "--device", "cpu", "--phase", "decode"]
    args += ["--dry-run", "--plan", "mass", "--method"]
    code, _, err = run("inject", *args, f"{own}:evicting,{own}:plain,topk,knorm,knorm:allocation=ada")
    assert code == 0 and [line.partition(" where ")[2] for line in err.splitlines() if "plan=mass" in line] == [
        "own.py:evicting may have weights of no key, so that its lost mass is unknown",
        "own.py:plain does not say that keys leave the cache (claim storage=attnprobe.Storage(evicts=True), see "
        "docs/guide/add-a-method.md)",
        "topk keeps the whole prompt",
        "knorm:allocation=ada divides the keys of heads itself",
    ]
    code, _, err = run("inject", *args, "topk,quest")
    assert code == 2 and "plan=mass: topk keeps the whole prompt; choose a policy that drops keys, such as h2o" in err


def test_a_block_that_is_not_verified_has_no_residual_error_to_plan_by(ask):
    records = ask("neox", methods=("knorm",), d=(5,), plan="residual", plan_windows=1)
    by = {plan_of(record): record for record in records}
    for plan in (None, "lava"):
        assert by[plan]["status"] == "ok" and not any("residual" in name for name in metrics(by[plan]))
        assert metrics(by[plan])["lost_mass"] > 0
    for plan in ("residual", "shuffled"):
        assert by[plan]["status"] == "skipped"
        assert "no block around it was verified, so it has no residual error" in by[plan]["reason"]


def test_a_local_layer_has_no_cache_of_the_prompt(ask):
    with pytest.raises(UsageError, match="layers.0.self_attn: a layer with a sliding window has no cache beyond its"):
        ask("gemma", methods=("tova",), layer=(0,))


def test_a_model_whose_weights_lack_its_head_does_not_decode(ask):
    with pytest.raises(SourceError, match="--phase decode: .*hold no causal-LM head"):
        ask("bare")


def test_policies_planned_together_have_the_plans_that_each_has_alone(planned, ask, tmp_path):
    settings = {"d": (5,), "plan": "residual", "plan_windows": 2, "windows": 2}
    both = ask(out="b", methods=("tova", "knorm"), **settings)
    of_knorm = {record["key"]: planned_keys(record) for record in both if record["method"] == "knorm"}
    assert of_knorm == {record["key"]: planned_keys(record) for record in planned} and any(of_knorm.values())
    [shown] = views(open_run(tmp_path / "b"))
    [grid] = [grid for grid in shown.tables if grid.table.name == "plans"]
    assert f"n = {N}, prompt {PREFIX}" in grid.caption


@pytest.mark.parametrize("plan", ["row", "mass"])
def test_a_plan_by_rows_or_mass_is_made_and_lava_reads_one_prompt_at_a_time(ask, plan):
    records = ask(methods=("knorm",), d=(5,), plan=plan, plan_windows=1, windows=2, batch=2)
    by = {plan_of(record): record for record in records}
    assert by["lava"]["status"] == "skipped" and "choose --batch 1" in by["lava"]["reason"]
    budgets = sum(planned_keys(by[plan]).values(), [])
    assert sum(budgets) == 5 * len(budgets) and len(set(budgets)) > 1


def test_a_file_for_prompts_is_scaled_to_the_prompt_and_null_keeps_all_keys(ask, tmp_path):
    def file(name, prompt):
        listed = [
            {"layer": layer, "head": head, "d": None if head else 4} for layer in range(LAYERS) for head in range(4)
        ]
        contents = {"schema": 1, "method": "topk", "options": {}, "epsilon": 0.1, "budgets": listed, "prompt": prompt}
        (tmp_path / name).write_text(json.dumps(contents))
        return {"methods": InjectRequest.methods, "d": InjectRequest.d, "budgets": str(tmp_path / name), "out": name[0]}

    [half] = ask(**file("half.json", 2 * PREFIX))
    [same] = ask(**file("same.json", PREFIX))
    assert [half[f"budget_{name}"] for name in ("mean", "heads", "exact")] == [2, 12, 9] and same["budget_mean"] == 4
    [unknown] = ask(**file("unknown.json", 0))
    assert metrics(unknown) == metrics(same) and metrics(half)["lost_mass"] > metrics(same)["lost_mass"] > 0
    for errors in local(half).values():
        assert errors[0] > 1e-3 and max(errors[1:]) < SAME


def test_methods_whose_weights_are_of_no_keys_lose_no_mass(ask, monkeypatch):
    relu = METHODS["performer-relu"]

    @functools.wraps(relu.function)
    def silent(qkv, d, **options):
        return dataclasses.replace(relu.function(qkv, d, **options), log_normalizer=None)

    monkeypatch.setitem(METHODS, "performer-relu", dataclasses.replace(relu, function=silent))
    by = {record["method"]: record for record in ask(methods=("performer", "topk", "performer-relu"))}
    assert "lost_mass" not in metrics(by["performer"]) and metrics(by["topk"])["lost_mass"] > 0
    assert by["performer-relu"]["status"] == "skipped"
    assert "performer-relu does not state its normaliser" in by["performer-relu"]["reason"]


def test_errors_of_kv_heads_by_rows_and_by_mass_are_means_over_their_query_heads():
    exact, got = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))  # (n, h, p_v) each
    call, lost = SimpleNamespace(heads=4, kv_heads=2), torch.tensor([0.1, 0.3, 0.5, 0.9])
    rows = [[float((got[i, h] - exact[i, h]).norm() / exact[i, h].norm()) for i in range(3)] for h in range(4)]
    of_heads = [sum(rows[h] + rows[h + 1]) / 6 for h in (0, 2)]
    assert head_errors(call, 0, exact, got, lost, "row").tolist() == pytest.approx(of_heads, rel=1e-6)
    assert head_errors(call, 0, exact, got, lost, "mass").tolist() == pytest.approx([0.2, 0.7])


def test_hidden_states_that_are_zero_have_no_drift_or_none_that_is_known():
    zero, one = (Outputs(torch.full((3, 2), value), None) for value in (0.0, 1.0))
    assert model_drift(zero, zero, None, causal=False, encoder=False) == ({"drift": 0.0}, {})
    assert math.isnan(model_drift(zero, one, None, causal=False, encoder=False)[0]["drift"])


def test_prompts_of_the_default_length_are_refused_too(run, models, text):
    for d, says in (("600", "knorm: d=600 exceeds the prompt of 256 tokens"), ("0.5", "n=512 needs 496 tokens")):
        code, _, err = run(
            "inject", "--model", models["llama"], "--text", text, "--phase decode --method knorm", "--d", d
        )
        assert code == 2 and says in err, err


def test_a_method_that_cannot_decode_is_a_skipped_row_beside_others(ask):
    by = {record["method"]: record for record in ask(methods=("lsh-qk", "topp:p=0.5"), d=(PREFIX,), layer=(2,))}
    assert by["lsh-qk"]["status"] == "skipped" and "lsh-qk cannot decode: a row depends" in by["lsh-qk"]["reason"]
    assert metrics(by["topp"])["lost_mass"] > 0  # all keys are exact attention with p = 1 alone


def test_a_share_of_the_whole_prompt_is_its_number_of_tokens():
    assert _budgets("0.5, 4,10", "d") == (0.5, 4, 10)
    with pytest.raises(UsageError, match="d=1.00 is the whole prompt; choose a share below 1, or its number of tokens"):
        _budgets("0.5, 1.00", "d")


def test_errors_are_not_summed_over_layers_where_the_last_stream_is_not_known():
    own, got = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0))  # (n, h, p_v) each
    block = Block(torch.eye(8), torch.full((3,), 2.0))
    alone = ExactOutput(own, block, range(2)).errors(got)
    whole = ExactOutput(own, dataclasses.replace(block, last=torch.full((3,), 8.0)), range(2)).errors(got)
    r = (got - own).double().flatten(1).norm(dim=1) / 4
    assert alone.weighted is None and whole.weighted == pytest.approx(float((r**2 / (1 + r**2)).mean()))
    assert "residual_sum" not in local_metrics([whole, alone])
    assert local_metrics([whole, whole])["residual_sum"] == pytest.approx(2 * whole.weighted)
    assert local_metrics([whole, alone])["residual_error"] == pytest.approx(whole.together + alone.together)


def test_a_file_of_budgets_stands_for_methods_and_d():
    named = InjectRequest(budgets="b.json").known()
    assert not {"methods", "d"} & named.keys() and {"methods", "d"} <= InjectRequest().known().keys()


def test_a_measured_plan_weighs_layers_by_what_random_keys_cost_there(ask, monkeypatch):
    """The weights are KL over residual error of each layer alone, of the windows behind the measured ones."""
    weights = {}
    sensitivities = InjectCells._sensitivities

    def watching(self, place, work):
        weights.update(sensitivities(self, place, work))
        return weights

    monkeypatch.setattr(InjectCells, "_sensitivities", watching)
    same = {"d": (5,)}
    records = ask(methods=("knorm",), plan="measured", plan_windows=2, windows=1, **same)
    budgets = next(sum(keys.values(), []) for record in records if (keys := planned_keys(record)))
    assert sum(budgets) == 5 * LAYERS * 2 and len(set(budgets)) > 1
    alone = [
        metrics(r) | r for r in ask(out="a", methods=("random",), windows=3, per_layer=True, **same) if r["window"]
    ]
    for layer, weight in weights.items():
        kl, residual = (sum(r[name] for r in alone if r["layer"] == layer) for name in ("kl", "residual_error"))
        assert float(weight) == pytest.approx(kl / residual, rel=1e-4)


@pytest.mark.parametrize("question", others_slow(["inside", "outside"], lambda question: question[0] == "outside"))
def test_the_answer_of_a_needle_is_behind_the_prompt(question, models, tmp_path):
    """Its loss is that of the steps before [SEP], and its rank is counted over the words of the model."""
    model = opened(models["llama"])
    model.config.max_position_embeddings = n = 300
    given = {"model": str(save(model, tmp_path / "long")), "n": (n,), "d": (8,), "phase": "decode", "device": "cpu"}
    given |= {"methods": ("softmax", "knorm"), "windows": 2, "question": question, "out": str(tmp_path / "r")}
    request = InjectRequest(**given, text="needle:pairs=2,answer=1")
    source, cells = InjectCells(request, print, Timings()).sources[0], measure_drift(request).outcome.records
    endings = [source.ending(n, window) for window in range(2)]
    prefix = n - (max(both for both, _ in endings) if question == "outside" else max(a for _, a in endings) + 1)
    for record in requested(cells):
        answer, found, of_steps = endings[record["window"]][1], metrics(record), steps(record)
        assert answer == 6 and record["prefix"] == prefix  # five digits and [SEP]
        assert found["needle_loss"] == pytest.approx(np.mean(of_steps["loss"][-answer:-1]))
        own = np.mean(of_steps["loss_own"][-answer:-1])
        assert found["needle_loss_change"] == pytest.approx(found["needle_loss"] - own, abs=1e-9)
        assert found["answer_right"] == (found["needle_rank"] == 1) and found["answer_flipped"] in (0, 1)
    of_window = {record["method"]: record for record in cells if record["window"] == 0}
    exact = of_window["softmax"]
    ids = torch.tensor(source.segments(n, 0))
    logits, words = model(ids).logits[0, -7:-2], ids[0, -6:-1]
    ranks = [1 + sum(float(x) > float(row[word]) for x in row) for row, word in zip(logits, words, strict=True)]
    assert metrics(exact)["needle_rank"] == pytest.approx(sum(ranks) / 5)
    assert metrics(of_window["exact"])["needle_rank"] == pytest.approx(sum(ranks) / 5)
    assert metrics(of_window["exact"])["needle_loss_change"] == 0
    with pytest.raises(UsageError, match="ends with no answer"):
        InjectCells(dataclasses.replace(request, text="needle:pairs=2"), print, Timings())


def test_a_file_of_budgets_that_keeps_every_head_whole_is_no_test(planned, ask, tmp_path):
    [(name, contents)] = files_of(planned).items()
    line = f"knorm: no test: each head reads all {PREFIX} tokens of the prompt"
    path, given = tmp_path / name, {"methods": InjectRequest.methods, "d": InjectRequest.d}
    budgets = [{**one, "d": PREFIX} for one in contents["budgets"]]
    for first in (PREFIX, None, PREFIX - 1):
        path.write_text(json.dumps({**contents, "budgets": [{**budgets[0], "d": first}, *budgets[1:]]}))
        with nullcontext() if first == PREFIX - 1 else pytest.raises(UsageError, match=line):
            assert [cell["status"] for cell in ask(out=str(first), **given, budgets=str(path))] == ["ok"]


def test_a_file_of_a_plan_runs_as_the_plan(planned, ask, tmp_path):
    [(name, contents)] = files_of(planned).items()
    assert name == f"budgets-knorm-n{N}-d5.json" and contents["prompt"] == PREFIX
    path = tmp_path / name
    path.write_text(json.dumps(contents))
    again = ask(out="f", methods=InjectRequest.methods, d=InjectRequest.d, budgets=str(path), windows=2)
    kl = {record["window"]: metrics(record)["kl"] for record in planned if plan_of(record) == "residual"}
    assert {record["window"]: metrics(record)["kl"] for record in again} == pytest.approx(kl)
    [longer] = ask(out="l", methods=InjectRequest.methods, d=InjectRequest.d, budgets=str(path), prefix=2 * PREFIX)
    share = metrics(longer)["cache_bytes"] / metrics(again[0])["cache_bytes"]
    assert share == pytest.approx(2, rel=0.05), "budgets are shares of the prompt"
    assert longer["budget_mean"] == pytest.approx(2 * again[0]["budget_mean"], rel=0.05)
    with pytest.raises(UsageError, match="--plan makes them: choose one"):
        ask(out="p", methods=InjectRequest.methods, d=InjectRequest.d, budgets=str(path), plan="mass")
    smaller = {**contents, "model": "another", "budgets": contents["budgets"][:1]}
    path.write_text(json.dumps({**contents, "n": 64}))  # another length is told
    [other] = ask(out="q", methods=InjectRequest.methods, d=InjectRequest.d, budgets=str(path))
    assert metrics(other)["kl"] == metrics(again[0])["kl"]
    path.write_text(json.dumps({**contents, "weights": "initialized"}))
    with pytest.raises(UsageError, match="its budgets are for weights initialized; here it is pretrained"):
        ask(out="m", methods=InjectRequest.methods, d=InjectRequest.d, budgets=str(path))
    path.write_text(json.dumps(smaller))
    with pytest.raises(UsageError, match="its budgets are for model another; here it is"):
        ask(out="m", methods=InjectRequest.methods, d=InjectRequest.d, budgets=str(path))


def test_plans_are_compared_with_the_best_uniform_policy_on_the_same_windows(planned):
    def plans(cells):
        lines = lines_of(cells, "plans")
        return {line["name"]: line for line in lines}

    def copied(name, **changes):
        """A uniform policy with other numbers."""
        plain = [cell for cell in planned if plan_of(cell) is None]
        rows = [{**cell["rows"][0], "key": name + cell["key"], **changes} for cell in plain]
        return [
            {**cell, "method": name, "key": row["key"], "rows": [row]} for cell, row in zip(plain, rows, strict=True)
        ]

    found = plans(planned)
    names = ("knorm", *(f"knorm:plan={plan}" for plan in ("residual", "shuffled", "lava")))
    assert tuple(found) == names
    uniform, plan, *_ = found.values()
    assert uniform["kl_gap.mean"] == uniform["kl_gap.se"] == 0 and uniform["kl_ratio"] == 1
    of = {(plan_of(cell), cell["window"]): metrics(cell)["kl"] for cell in planned}
    gaps = [of["residual", window] - of[None, window] for window in (0, 1)]
    assert plan["kl_gap.mean"] == pytest.approx(sum(gaps) / 2)
    assert plan["kl_gap.se"] == pytest.approx(abs(gaps[0] - gaps[1]) / 2)
    losses = {(plan_of(cell), cell["window"]): metrics(cell)["loss"] for cell in planned}
    gaps = [losses["residual", window] - losses[None, window] for window in (0, 1)]
    assert plan["loss_gap.mean"] == pytest.approx(sum(gaps) / 2)
    others = plans([*planned, *copied("lost", kl=None), *copied("larger", cache_bytes=1e9)])
    assert tuple(others) == (*names, "lost")  # one keeps more bytes than the plan
    assert all(others[name]["kl_gap.mean"] == found[name]["kl_gap.mean"] for name in names)
    assert others["lost"]["kl_ratio"] is None and others["lost"]["kl_gap.mean"] is None
    residual = [cell for cell in planned if plan_of(cell) == "residual"]
    alone = plans([*copied("lost", kl=None), *residual])
    assert alone["lost"]["kl_ratio"] is None and alone["knorm:plan=residual"]["kl_ratio"] is None


def test_budgets_of_lava_are_those_of_loops_over_weights():
    prompt, d, last = 20, 6, 3
    q, k, v = torch.randn(3, 2, 24, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layers = {layer: QKV(size * q, k[:1], v[:1], causal=True) for layer, size in ((0, 1.0), (4, 6.0))}
    scores = {}
    for layer, qkv in layers.items():
        mean = np.zeros((2, prompt - last))
        for head, i in itertools.product(range(2), range(prompt - last, prompt)):
            row = np.exp([float(qkv.scale * qkv.q[head, i] @ qkv.k[head, j]) for j in range(i + 1)])
            mean[head] += (row / row.sum())[: prompt - last] / last
        size = max(float(v[0, j].abs().sum()) for j in range(prompt - last))
        near = [slice(max(0, j - 3), j + 4) for j in range(prompt - last)]
        scores[layer] = [size * max(mean[0, part].max(), mean[1, part].max()) for part in near]
    entropies = {layer: -sum(s / sum(of) * np.log(s / sum(of)) for s in of) for layer, of in scores.items()}
    expected = {layer: [last + int(2 * (d - last) * e / sum(entropies.values()))] for layer, e in entropies.items()}
    assert lava_budgets(layers, prompt, d) == expected and expected[0] != expected[4]
    pair = QKV(q, k, v, causal=True)
    [of_layer] = lava_budgets({0: pair}, prompt, d).values()
    assert sum(of_layer) == 2 * d and min(of_layer) >= last


def test_the_steps_behind_a_prompt_are_those_of_the_longest_answer_of_all_windows():
    """Those of a plan too."""
    source = SimpleNamespace(ending=lambda n, window: (n + 3 * window, n + window))
    for plan, last in ((None, 1), ("row", 3)):
        request = InjectRequest(phase="decode", windows=2, plan=plan, plan_windows=2, question="inside")
        assert _steps_behind(request, source, (4, 9)) == 9 + last
        assert _steps_behind(dataclasses.replace(request, question="outside"), source, (4, 9)) == 9 + 3 * last - 1


def test_the_mean_so_far_is_of_the_steps_that_have_a_number():
    numbers = [row["kl_so_far"] for row in step_rows({"kl": [math.nan, 1.0, math.nan, 3.0]})]
    assert numbers == [None, 1.0, 1.0, 2.0]


def test_exact_attention_has_its_own_loss_and_all_bytes(ask, models, text, tmp_path):
    """Three layers, two KV heads of 8 numbers, keys and values, 2 bytes each, of every token of the prompt."""
    [cell] = ask(methods=("window",), d=(6,), greedy_steps=GREEDY)
    [exact] = [one for one in read_records(tmp_path / "r") if not one["requested"]]
    found, own = metrics(exact), metrics(cell)
    assert (exact["method"], exact["d"], exact["reference"], exact["layers"]) == ("exact", None, True, "0-2")
    assert found["loss"] == found["loss_own"] == own["loss_own"] and found["kl"] == found["loss_change"] == 0
    assert found["cache_bytes"] == found["read_bytes"] == LAYERS * 2 * 8 * 2 * 2 * PREFIX
    assert found["first_divergence"] == N - 1 - PREFIX and found["greedy_match"] == GREEDY
    assert steps(exact)["loss"] == pytest.approx(steps(cell)["loss_own"]) and not local(exact)


BIASED = [(*of, at_once) for of in (("topk", PREFIX), ("window", 2 * PREFIX), ("softmax", None)) for at_once in (1, 0)]


@pytest.mark.parametrize("method, d, at_once", others_slow(BIASED, lambda case: case[2] == 1 or case[0] == "topk"))
def test_a_bias_of_each_query_reaches_the_steps_of_a_t5(method, d, at_once):
    """All tokens of the prompt, joined to the new ones, give what the model gives; fewer do not."""
    import tiny_models

    model = tiny_models.build("T5").double()
    batch = tiny_models.inputs(model, padded=False)
    ids = batch["decoder_input_ids"]
    with torch.no_grad():
        states = model.encoder(input_ids=batch["input_ids"])
        own = model(encoder_outputs=states, decoder_input_ids=ids, use_cache=False).last_hidden_state[:, PREFIX:]
        for keys in (d, 5):
            policy = PromptPolicy(get(method), None if d is None else keys, 0, {}, PREFIX, lambda layer, row: None)
            cache = model(encoder_outputs=states, decoder_input_ids=ids[:, :PREFIX], use_cache=True).past_key_values
            parts = []
            with attention_by(model, policy, "decoder.*.SelfAttention"):
                for part in ids[:, PREFIX:].split(ids.shape[1] if at_once else 1, 1):
                    given = {"decoder_input_ids": part, "past_key_values": cache}
                    parts.append(model(encoder_outputs=states, **given).last_hidden_state)
            apart = float((torch.cat(parts, 1) - own).norm() / own.norm())
            assert apart < 1e-9 if keys == d else apart > 1e-4
            if d is None:
                break


@pytest.mark.parametrize("method", ["h2o", "performer-relu"])
def test_a_bias_of_each_query_has_no_form_where_a_prompt_is_compressed_once(method):
    import tiny_models

    model = tiny_models.build("T5")
    batch = tiny_models.inputs(model, padded=False)
    policy = PromptPolicy(get(method), 4, 0, {}, PREFIX, lambda layer, row: None)
    says = "chooses keys of a prompt once by its queries" if method == "h2o" else "has no form for it"
    cache = model(**batch | {"decoder_input_ids": batch["decoder_input_ids"][:, :PREFIX]}).past_key_values
    for steps_at_once in (1, 2):
        part = batch["decoder_input_ids"][:, PREFIX : PREFIX + steps_at_once]
        with pytest.raises(Unsupported, match=says), attention_by(model, policy, "decoder.*.SelfAttention"):
            model(**batch | {"decoder_input_ids": part}, past_key_values=cache)
