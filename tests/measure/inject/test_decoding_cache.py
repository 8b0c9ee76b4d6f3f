"""Decoding on caches of other forms: layers without keys, layers that share keys, and heads that share latent rows."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers
from inject_rows import metrics, requested, without_reasons
from sources_helpers import VOCABULARY, save, seeded, text_of
from thinned import others_slow

from attnprobe import Storage, capture
from attnprobe.errors import Unsupported, UsageError
from attnprobe.measure.inject import InjectRequest, measure_drift
from attnprobe.measure.inject.cache import OWN, CacheLayer, CacheReaders, Read
from attnprobe.measure.inject.decoding import Prefix, _way
from attnprobe.measure.inject.language import LanguageModel
from attnprobe.measure.inject.policy import kept_keys, prompt_text
from attnprobe.methods import get

N, PREFIX, D = 40, 24, 6
SAME = 5e-6  # relative, in float32, over a few layers
ROW = 2  # bytes of a number
SIZES = {"vocab_size": len(VOCABULARY), "num_attention_heads": 4, "initializer_range": 0.3}
LATENT = {"kv_lora_rank": 12, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
SHARED = {"vocab_size_per_layer_input": len(VOCABULARY), "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
SHARED |= {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": None}
SHARED |= {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
MAMBA = {"attn_layer_period": 2, "attn_layer_offset": 0, "num_experts": 2, "num_experts_per_tok": 1}
MAMBA_2 = {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
MODELS = {  # by the class of the configuration
    "latent rows": ("MiniCPM3Config", {"num_key_value_heads": 4, **LATENT}),
    "shared layers": ("Gemma3nTextConfig", {"sliding_window": 9, "head_dim": 8, **SHARED}),
    "convolutions": ("Lfm2Config", {"layer_types": ["full_attention", "conv"]}),
    "Mamba, one token at a time": ("JambaConfig", {"use_mamba_kernels": False, **MAMBA}),
    "Mamba in the same layers": (
        "FalconH1Config",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "Mamba first, told its positions": ("BambaConfig", MAMBA_2),
    "a cache of its own class": (
        "MiniMaxConfig",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "head_dim": 8,
            "block_size": 16,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    "a state outside the cache": (
        "RecurrentGemmaConfig",
        {"lru_width": 32, "attention_window_size": 64, "block_types": ["attention", "recurrent"]},
    ),
}


def made(name):
    config, changes = MODELS[name]
    settings = {**tiny_models.grouped(), **SIZES, **changes}
    model = config.removesuffix("Config").removesuffix("Text")
    return getattr(transformers, f"{model}ForCausalLM")(getattr(transformers, config)(**settings))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(seeded(lambda name=name: made(name)), folder / name)) for name in MODELS}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text(text_of(400))
    return str(path)


@pytest.fixture
def ask(models, text, tmp_path):
    """The metrics of decoding by each method; ``tests=False`` measures also what is no test."""

    def measured(model, methods, tests=True, **rest):
        whole, ids = opened(models[model], text)
        first = (next(iter(capture(whole, {"input_ids": ids}).values())).layer,)
        given = {"n": (N,), "d": (D,), "prefix": PREFIX, "layer": first, "input_statistics": False}
        given |= {"greedy_steps": 0, **rest}
        spec = {"model": models[model], "text": text, "device": "cpu", "phase": "decode", "methods": methods}
        request = InjectRequest(**spec, out=str(tmp_path / str(rest)), **given)
        if not tests:
            return without_reasons(request)
        records = measure_drift(request).outcome.records
        assert all(record["status"] == "ok" for record in records)
        return [metrics(record) for record in requested(records)]

    return measured


def opened(folder, text):
    """The model, and the tokens of the text's first window."""
    words = Path(text).read_text().split()[: N - 2]
    ids = torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model.eval().requires_grad_(False), ids


CACHED = [name for name in MODELS if name != "a state outside the cache"]
APART = ("latent rows", "shared layers", "Mamba, one token at a time", "a cache of its own class")


@pytest.mark.parametrize("name", others_slow(CACHED, lambda name: name[0] in APART))
def test_a_prompt_that_is_kept_whole_changes_nothing(ask, name):
    """The last number of keys and values is that of the layers that have some."""
    layer = {"layer": (1, 3)} if name == "shared layers" else {}
    exact, all_keys = ask(name, ("softmax", "knorm"), tests=False, d=(PREFIX,), greedy_steps=4, **layer)
    few, topk = ask(name, ("knorm", "topk"), **layer)
    for found in (exact, all_keys):
        assert found["kl"] < 1e-10 and found["drift"] < SAME and found["greedy_match"] == 4
        assert found["cache_bytes"] == found["read_bytes"] == exact["cache_bytes"] == topk["cache_bytes"]
    assert few["drift"] > 1e-3 and few["cache_bytes"] == few["read_bytes"] < topk["cache_bytes"]
    assert topk["read_bytes"] < topk["cache_bytes"]


@pytest.mark.parametrize("name, layers", [("convolutions", 1), ("Mamba, one token at a time", 1)])
def test_layers_without_keys_hold_no_bytes_of_the_prompt(ask, name, layers):
    whole = layers * 2 * 2 * 8 * ROW  # keys and values of two KV heads of 8
    exact, few = ask(name, ("softmax", "knorm"))
    assert [exact["cache_bytes"], few["cache_bytes"]] == pytest.approx([PREFIX * whole, D * whole])


def kept_of(models, text, name, layer, method, options):
    """The keys that a policy keeps of the prompt in a layer, (h, k)."""
    whole, ids = opened(models[name], text)
    [call] = [one for one in capture(whole, {"input_ids": ids}).values() if f"layers.{layer}." in one.module]
    return kept_keys(get(method), prompt_text(call.qkv(), PREFIX), PREFIX, D, options=options)


def test_a_row_that_all_heads_share_is_held_while_one_of_them_keeps_it(ask, models, text):
    row = (LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"]) * ROW
    exact, few = ask("latent rows", ("softmax", "knorm"))
    kept = kept_of(models, text, "latent rows", 0, "knorm", {})
    together = len(set(kept.flatten().tolist()))
    assert D < together < 4 * D and exact["cache_bytes"] == pytest.approx(2 * PREFIX * row)  # of two layers
    assert few["cache_bytes"] == pytest.approx((PREFIX + together) * row)


def test_keys_that_layers_share_are_held_while_one_of_them_keeps_them(ask, models, text):
    """Layers 1 and 3 read one layer of the cache, 0 and 2 another one, of 8 tokens before the next one."""
    row, method, options = 2 * 2 * 8 * ROW, "h2o", {}
    local = 8 * row
    [both] = ask("shared layers", (method,), layer=(1, 3))
    kept = [kept_of(models, text, "shared layers", layer, method, options) for layer in (1, 3)]
    union = [len(set(torch.cat(kept, 1)[2 * head : 2 * head + 2].flatten().tolist())) for head in (0, 1)]
    assert D < sum(union) / 2 < 2 * D
    assert both["cache_bytes"] == both["read_bytes"] == pytest.approx(local + row * sum(union) / 2)
    for layer in (1, 3):
        [alone] = ask("shared layers", (method,), layer=(layer,))
        assert alone["cache_bytes"] == pytest.approx(local + row * PREFIX), "the other layer reads all keys"
        assert alone["drift"] > 1e-3


def test_steps_one_by_one_are_those_on_a_cropped_cache(ask, models, text):
    """transformers' own cache, cut to the keys of each KV head, then one token after another."""
    name = "Mamba, one token at a time"
    [few] = ask(name, ("knorm",))
    whole, ids = opened(models[name], text)
    cache = transformers.DynamicCache(config=whole.config)
    whole(input_ids=ids[:, :PREFIX], past_key_values=cache)
    layer = cache.layers[0]
    index = (-layer.keys.norm(dim=-1)).topk(D, -1).indices.sort(-1).values[..., None].expand(-1, -1, -1, 8)
    layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
    losses = []
    for place in range(PREFIX, N - 1):
        logits = whole(input_ids=ids[:, place : place + 1], past_key_values=cache).logits[0, -1]
        losses.append(-float(logits.double().log_softmax(0)[ids[0, place + 1]]))
    assert few["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)


def test_a_model_that_reads_no_token_behind_a_cache_as_in_a_text_is_one_line(ask):
    with pytest.raises(
        Unsupported, match=r"RecurrentGemmaForCausalLM: behind a cache its hidden states differ by .* cannot decode"
    ):
        ask("a state outside the cache", ("knorm",))


def test_a_model_whose_forward_fails_behind_a_cache_is_one_line():
    class Fails(Prefix):
        def outputs(self, way):
            raise RuntimeError("size 39 must match\nsize 15")

    model = tiny_models.build("Llama")
    language = LanguageModel(model, "causal", None, False, None, (0, 0), "float32")
    with pytest.raises(Unsupported) as error:
        _way(Fails(language, torch.zeros(1, 4), 2, None, None), [])
    assert str(error.value) == (
        "LlamaModel: behind a cache its forward failed (RuntimeError: size 39 must match), so it cannot decode"
    )


def test_a_call_whose_layer_of_the_cache_is_not_known_is_one_line():
    cache, keys = transformers.DynamicCache(), torch.randn(1, 2, 5, 4)
    own, values = cache.update(keys, torch.randn(1, 2, 5, 4), 0)
    readers, module = CacheReaders(cache), torch.nn.Module()
    module.layer_idx = 0
    readers(0, module, own[:, :, 1:])
    readers(1, module, torch.randn(1, 4, 5, 4))  # made of what layer 0 holds
    assert readers.of(cache) == [CacheLayer(5, 2, 8, 8, 16, (0, 1))]
    module.layer_idx = 7
    readers(2, module, own)
    readers(3, module, torch.randn(1, 4, 5, 4))
    assert readers.layers == {0: 0, 1: 0, 2: 0, 3: None}
    with pytest.raises(Unsupported, match="the keys of attention call 3 are in no known layer of the model's cache"):
        readers.of(cache)


NOTHING, UNKNOWN = torch.zeros(4, dtype=torch.bool), torch.full((4,), torch.inf, dtype=torch.float64)
EVICTS = [Storage(evicts=True)] * 4
FIRST = Read(2, EVICTS, NOTHING, torch.tensor([[[0, 1]], [[1, 2]], [[3, -1]], [[3, 4]]]), UNKNOWN)


def layer(heads=2, readers=(0,)):
    """Nine tokens of 12 + 4 numbers of 16 bits: 32 bytes a token."""
    return CacheLayer(9, heads, 12, 4, 16, readers)


def test_what_readers_have_in_common_is_counted_once():
    second = Read(2, EVICTS, NOTHING, torch.tensor([[[0, 5], [0, 6]]] * 4), UNKNOWN)  # in two steps
    of_two = layer(readers=(0, 1))
    assert layer().bytes({0: FIRST}) == (32 * (3 + 2) / 2,) * 2
    assert of_two.bytes({0: FIRST, 1: second}) == (32 * (4 + 4) / 2,) * 2
    assert layer(heads=1).bytes({0: FIRST}) == (32 * 5,) * 2, "0, 1, 2, 3 and 4"
    assert of_two.bytes({0: FIRST}) == layer(readers=()).bytes({0: FIRST}) == (32 * 9,) * 2, "others read all tokens"
    one = replace(FIRST, whole=torch.tensor([False, False, False, True]))
    assert layer().bytes({0: one}) == (32 * (3 + 9) / 2,) * 2
    stated = replace(FIRST, tokens=None, count=torch.tensor([3.0, 3.0, 20.0, 20.0], dtype=torch.float64))
    assert layer().bytes({0: stated}) == (32 * (3 + 9) / 2,) * 2
    assert layer(heads=1).bytes({0: stated}) == (32 * 9,) * 2, "what the heads have in common is not known"


@pytest.mark.parametrize(
    "storage, kept, read",
    [
        (Storage(), 9 * 32, 2.5 * 32),  # all tokens stay, and steps read 3 and 2
        (Storage(evicts=True), 2.5 * 32, 2.5 * 32),
        (Storage(k=4.5, v=2.0), 9 * (12 * 4.5 + 4 * 2) / 8, 2.5 * (12 * 4.5 + 4 * 2) / 8),
        (Storage(k=4.0), 9 * (12 * 4 + 4 * 16) / 8, 2.5 * (12 * 4 + 4 * 16) / 8),
        (Storage(evicts=True, k=4.0, v=4.0, token=32.0), 2.5 * (16 * 4 + 2 * 32) / 8, 2.5 * (16 * 4 + 2 * 32) / 8),
        (Storage(evicts=True, k=4.0, v=4.0, head=48.0), (2.5 * 64 + 96) / 8, (2.5 * 64 + 96) / 8),
        (Storage(evicts=True, k=4.0, v=4.0, exact=1), (2 * 128 + 3 * 32) / 8, (2 * 128 + 3 * 32) / 8),
    ],
)
def test_bytes_are_those_of_the_stored_form(storage, kept, read):
    """Two KV heads, of which the first has 3 tokens and the second 2."""
    assert layer().bytes({0: replace(FIRST, storage=[storage] * 4)}) == pytest.approx((kept, read))


def test_heads_without_the_method_keep_the_models_own_form():
    mixed = replace(
        FIRST, storage=[Storage(k=4.0, v=4.0)] * 2 + [OWN] * 2, whole=torch.tensor([False] * 2 + [True] * 2)
    )
    assert layer().bytes({0: mixed}) == (9 * (8 * 4 + 8 * 16) / 8, (3 * 8 * 4 + 9 * 8 * 16) / 8)
    assert layer(heads=1).bytes({0: mixed}) == (9 * 32, 9 * 32), "one row serves all heads"


@pytest.mark.parametrize("wrong", [{"k": -1.0}, {"head": float("inf")}, {"exact": -1}, {"v": float("nan")}])
def test_storage_of_no_number_of_bits_is_refused(wrong):
    with pytest.raises(UsageError, match=f"Storage: {[*wrong][0]}"):
        Storage(**wrong)
