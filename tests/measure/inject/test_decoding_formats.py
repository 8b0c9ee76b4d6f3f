"""Decoding on quantised caches, held to transformers' own loop on a cache of quantised numbers; budgets by bytes."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, quants
from sources_helpers import VOCABULARY, save, seeded, text_of
from thinned import others_slow

from attnprobe import injected
from attnprobe.errors import UsageError
from attnprobe.measure.inject import InjectRequest, measure_drift

N, PREFIX, LAYERS = 40, 24, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Llama whose four heads of 8 numbers share two KV heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": len(VOCABULARY), "initializer_range": 0.3, "hidden_size": 32, "num_hidden_layers": LAYERS}
    sizes |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    folder = tmp_path_factory.mktemp("models") / "llama"
    return str(save(seeded(lambda: LlamaForCausalLM(LlamaConfig(**sizes))), folder))


@pytest.fixture(scope="module")
def bloom(tmp_path_factory):
    """A BLOOM, whose ALiBi no cache holds, with four heads of 8 numbers."""
    from transformers import BloomConfig, BloomForCausalLM

    sizes = {"vocab_size": len(VOCABULARY), "initializer_range": 0.3, "hidden_size": 32, "n_layer": LAYERS, "n_head": 4}
    return str(
        save(seeded(lambda: BloomForCausalLM(BloomConfig(**sizes))), tmp_path_factory.mktemp("models") / "bloom")
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text(text_of(400))
    return str(path)


@pytest.fixture
def ask(model, text, tmp_path):
    """The cells of decoding with the model, and the lines that the run says."""

    def measured(*methods, out="r", **rest):
        given = {"model": model, "n": (N,), "prefix": PREFIX, "input_statistics": False, "device": "cpu", **rest}
        given.setdefault("greedy_steps", 0)
        request = InjectRequest(text=text, methods=methods, phase="decode", out=str(tmp_path / out), **given)
        return [one for one in measure_drift(request).outcome.records if one.get("method") != "exact"]

    return measured


def numbers(cell):
    """The numbers of a cell's text."""
    return cell["rows"][0]


def losses(model, text, coded, prompt_by=None):
    """The mean loss of steps behind a prompt whose cache is ``coded``, and that is read by a method."""
    from transformers import AutoModelForCausalLM, DynamicCache

    llama = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval().requires_grad_(False)
    words = Path(text).read_text().split()[: N - 2]
    ids = torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])
    cache = DynamicCache()
    with injected(llama, prompt_by or "softmax"):
        llama(input_ids=ids[:, :PREFIX], past_key_values=cache)
    for layer in cache.layers:
        layer.keys, layer.values = coded(layer.keys[0])[None], coded(layer.values[0])[None]
    loss = []
    for place in range(PREFIX, N - 1):
        at = torch.tensor([[place]])
        logits = llama(input_ids=ids[:, place : place + 1], past_key_values=cache, position_ids=at).logits[0, -1]
        loss.append(-float(logits.double().log_softmax(0)[ids[0, place + 1]]))
    return sum(loss) / len(loss)


def by_gguf(kind, exact=0):
    def coded(x):
        padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % 32)).contiguous().numpy()
        read = torch.from_numpy(quants.dequantize(quants.quantize(padded, kind), kind))[..., : x.shape[-1]]
        return torch.cat([read[:, : PREFIX - exact], x[:, PREFIX - exact :]], 1)

    return coded


CODED = [("q4_0", 0), ("q8_0", 0), ("q5_1", 7)]


@pytest.mark.parametrize("name, exact", others_slow(CODED, lambda case: case[0] != "q4_0"))
def test_a_format_is_a_decode_on_a_cache_of_what_gguf_reads_back(ask, model, text, name, exact):
    [cell] = ask(name if not exact else f"{name}:exact={exact}")
    expected = losses(model, text, by_gguf(GGMLQuantizationType[name.upper()], exact))
    found = numbers(cell)
    assert found["loss"] == pytest.approx(expected, abs=1e-5)
    assert abs(found["loss_change"]) > 1e-5 and found["kl"] > 1e-6
    bits = {"q4_0": 4.5, "q8_0": 8.5, "q5_1": 6.0}[name] * 32  # 8 numbers in a block of 32
    size = 2 * 2 * LAYERS * ((PREFIX - exact) * bits + exact * 8 * 16) / 8
    assert found["cache_bytes"] == found["read_bytes"] == pytest.approx(size)


def test_a_cache_does_not_hold_alibi(ask, bloom, text):
    [cell] = ask("q8_0", model=bloom)
    found = numbers(cell)
    assert found["loss"] == pytest.approx(losses(bloom, text, by_gguf(GGMLQuantizationType.Q8_0)), abs=1e-5)
    assert found["cache_bytes"] == 2 * 4 * LAYERS * PREFIX * 8.5 * 32 / 8


def test_a_prompt_is_read_exactly_or_by_quantised_keys_and_values(ask, model, text):
    """The cache is quantised behind the prompt's forward, or each layer reads quantised keys in it too."""
    behind, [within] = ask("q4_0"), ask("q4_0", prompt="quantised", out="other")
    expected = losses(model, text, by_gguf(GGMLQuantizationType.Q4_0), prompt_by="q4_0")
    assert numbers(within)["loss"] == pytest.approx(expected, abs=1e-5)
    assert abs(numbers(within)["loss"] - numbers(behind[0])["loss"]) > 1e-4
    assert within["key"] != behind[0]["key"]


def test_only_formats_read_a_prompt_so(ask):
    *others, combined, fmt = ask("knorm,topk,knorm+q8_0,q8_0", prompt="quantised", d=(8,))
    for cell in others:
        assert cell["status"] == "skipped" and "prompt=quantised needs a format in all heads" in cell["reason"]
    assert fmt["status"] == combined["status"] == "ok"


def test_a_policy_with_a_format_keeps_keys_of_the_prompt_that_the_format_has_read(ask, model, text):
    """Held to transformers' loop: each KV head keeps the keys of least norm of its cache, and gguf reads them back."""
    from transformers import AutoModelForCausalLM, DynamicCache

    d, coded = 9, by_gguf(GGMLQuantizationType.Q4_0)
    found, exactly, whole, fmt = (
        numbers(cell)
        for prompt, methods, budget in (
            ("quantised", "knorm+q4_0", d),
            ("exact", "knorm+q4_0", d),
            ("quantised", "knorm+q4_0", PREFIX),
            ("quantised", "q4_0", PREFIX),
        )
        for cell in ask(methods, prompt=prompt, d=(budget,), out=f"{prompt}{methods}{budget}")
    )
    llama = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval().requires_grad_(False)
    words = Path(text).read_text().split()[: N - 2]
    ids = torch.tensor([[2, *(VOCABULARY.index(word) for word in words), 3]])
    cache = DynamicCache()
    with injected(llama, "q4_0"):
        llama(input_ids=ids[:, :PREFIX], past_key_values=cache)
    for layer in cache.layers:
        index = layer.keys[0].norm(dim=-1).topk(d, largest=False).indices.sort().values[..., None]
        kept = [x[0].gather(1, index.expand(-1, -1, x.shape[-1])) for x in (layer.keys, layer.values)]
        layer.keys, layer.values = (coded(x)[None] for x in kept)
    loss = []
    for place in range(PREFIX, N - 1):
        at = torch.tensor([[place]])
        logits = llama(input_ids=ids[:, place : place + 1], past_key_values=cache, position_ids=at).logits[0, -1]
        loss.append(-float(logits.double().log_softmax(0)[ids[0, place + 1]]))
    assert found["loss"] == pytest.approx(sum(loss) / len(loss), abs=1e-5)
    assert abs(found["loss"] - exactly["loss"]) > 1e-4
    assert whole["loss"] == pytest.approx(fmt["loss"], abs=1e-6) and whole["cache_bytes"] == fmt["cache_bytes"]


def test_latent_rows_are_no_keys_of_heads(tmp_path, text):
    """MLA caches rows that all heads share; a format of heads' keys would count and quantise what no engine stores."""
    import transformers

    sizes = {"vocab_size": len(VOCABULARY), "num_attention_heads": 4, "initializer_range": 0.3, "hidden_size": 32}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64, "num_key_value_heads": 4}
    sizes |= {"kv_lora_rank": 12, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    config = transformers.MiniCPM3Config(**sizes)
    folder = save(seeded(lambda: transformers.AutoModelForCausalLM.from_config(config)), tmp_path / "mla")
    given = {"n": (N,), "prefix": PREFIX, "input_statistics": False, "device": "cpu", "phase": "decode"}
    request = InjectRequest(model=str(folder), text=text, methods=("q4_0", "knorm"), d=(8,), **given)
    cells = {one["method"]: one for one in measure_drift(request).outcome.records}
    assert cells["knorm"]["status"] == "ok" and cells["q4_0"]["status"] == "skipped"
    assert "layer 0 caches 1 rows of each token for 4 KV heads (latent attention)" in cells["q4_0"]["reason"]


def test_a_policy_with_a_format_keeps_its_keys_in_few_bits(ask):
    both, alone, fmt = (numbers(one) for one in ask("knorm+q8_0,knorm,q8_0", d=(9,)))
    assert both["cache_bytes"] == pytest.approx(fmt["cache_bytes"] * 9 / PREFIX)
    assert both["kl"] == pytest.approx(alone["kl"], rel=0.1) and both["kl"] != alone["kl"]
    assert "lost_mass" not in both or both["lost_mass"] is None


def test_a_format_that_leaves_the_prompt_exact_is_no_test(ask):
    skipped, run = ask("kivi,q4_0")
    assert (
        skipped["status"] == "skipped" and "kivi: no test: with exact=128 and groups of 32 all 24" in skipped["reason"]
    )
    assert run["status"] == "ok"


def test_each_method_gets_the_budget_that_fits_its_bytes(ask, model, text, tmp_path):
    """Heads have 8 numbers, so turboquant has two bits a number for its norm."""
    cells = ask("knorm,turboquant,knorm+turboquant:bits=2,q8_0,softmax", bytes=(0.25, 0.5))
    found = [(one["method"], one["options"], one["d"], one["status"]) for one in cells]
    assert found == [
        ("knorm", "", 6, "ok"),
        ("knorm", "", 12, "ok"),
        ("turboquant", "bits=2", None, "ok"),
        ("turboquant", "bits=6", None, "ok"),
        ("knorm+turboquant", "bits=2", 24, "ok"),
        ("q8_0", "", None, "skipped"),
        ("softmax", "", None, "ok"),
    ]
    assert "q8_0: it takes 2.12 of the bytes of 24 tokens, more than 0.5; choose more bytes" in cells[5]["reason"]
    whole = numbers(cells[6])["cache_bytes"]
    shares = [numbers(one)["cache_bytes"] / whole for one in cells if one["status"] == "ok"]
    assert shares == pytest.approx([0.25, 0.5, 0.25, 0.5, 0.25, 1.0])


def test_what_was_used_is_said(run, model, text, tmp_path):
    given = ("--model", model, "--text", text, "--n", str(N), "--phase", "decode", "--prefix", str(PREFIX))
    given += ("--device", "cpu", "--greedy-steps", "0", "--no-input-statistics", "--out", str(tmp_path / "run"))
    code, _, said = run("inject", *given, "--method", "knorm,turboquant,topk,q8_0", "--bytes", "0.25")
    assert code == 0
    assert "bytes=0.25, n=40: knorm d=6 (0.25), turboquant bits=2 (0.25), topk d=6 (0.25 read), q8_0 none" in said
    for wrong, line in (
        ("0", "'0' is not a number above 0"),
        ("2", "bytes=2 is above all bytes of the prompt; choose"),
    ):
        code, _, said = run("inject", *given, "--bytes", wrong)
        assert code == 2 and line in said
    code, _, said = run("inject", *given, "--bytes", "0.5", "--d", "8")
    assert code == 2 and "each method gets the budget that fits its bytes" in said


def test_bytes_belong_to_decoding(model, text):
    with pytest.raises(UsageError, match="bytes"):
        InjectRequest(model=model, text=text, bytes=(0.5,))
