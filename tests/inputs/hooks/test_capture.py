"""Capture: what is read out is what the weights give; it is proved; what Q, K, V do not describe is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file
from sources_helpers import VOCABULARY, bert_config, save, seeded, text_of
from thinned import others_slow
from transformers import LlamaConfig, LlamaModel

from attnprobe.errors import SourceError, UsageError
from attnprobe.frame.records.file import identity_facts
from attnprobe.inputs import SourceSpec, load_qkv, resolve, save_qkv
from attnprobe.inputs.hooks.capture import capture
from attnprobe.inputs.hooks.interface import eager_of
from attnprobe.inputs.queries import Queries
from attnprobe.reference import exact_output

IDS = {token: number for number, token in enumerate(VOCABULARY)}


def source(model, text, **changes):
    return resolve(SourceSpec(model=str(model), text=text, device="cpu", **changes))


def source_of(path):
    return resolve(SourceSpec(qkv=str(path), device="cpu"))


def segments_of(n, longest=16, window_start=0):
    """The tokens that a window must hold, written out once more: [CLS], text, [SEP] in each segment."""
    words = [IDS[word] for word in text_of(300).split()][window_start:]
    segments = []
    while n > 0:
        length = min(n, longest)
        inner = length - 2 if length > 2 else length
        text, words = words[:inner], words[inner:]
        segments.append([IDS["[CLS]"], *text, IDS["[SEP]"]] if length > 2 else text)
        n -= length
    return segments


def slow_bert(weights, ids, rows, table=None, heads=4):
    """BERT, one head and one query at a time, in float64: [(q, k, v), ...] of each layer, (h, n, p)."""
    w = {name: tensor.double() for name, tensor in weights.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return unit * w[f"{name}.weight"] + w[f"{name}.bias"]

    table = w["embeddings.position_embeddings.weight"] if table is None else table
    x = w["embeddings.word_embeddings.weight"][ids] + table[rows] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    n, p, actual = len(ids), x.shape[-1] // heads, []
    for layer in range(3):
        at = f"encoder.layer.{layer}."
        q, k, v = (linear(x, f"{at}attention.self.{name}") for name in ("query", "key", "value"))

        def split(t):
            return torch.stack([t[:, h * p : (h + 1) * p] for h in range(heads)])

        actual.append(tuple(map(split, (q, k, v))))
        output = torch.zeros_like(x)
        for h in range(heads):
            qh, kh, vh = (t[h] for t in actual[-1])
            for i in range(n):
                weight = torch.exp(kh @ qh[i] / p**0.5)
                output[i, h * p : (h + 1) * p] = (weight / weight.sum()) @ vh
        x = norm(linear(output, f"{at}attention.output.dense") + x, f"{at}attention.output.LayerNorm")
        hidden = torch.nn.functional.gelu(linear(x, f"{at}intermediate.dense"))
        x = norm(linear(hidden, f"{at}output.dense") + x, f"{at}output.LayerNorm")
    return actual


@pytest.fixture(scope="module")
def weights(tiny_bert):
    return load_file(f"{tiny_bert}/model.safetensors")


@pytest.mark.parametrize("n", [2, 3, 16, 17, 18, 19, 40])
def test_segment_equals_a_forward_of_each_segment(tiny_bert, text_file, weights, n):
    captured = source(tiny_bert, text_file, dtype="float64").qkv(n, [0, 1, 2], 0)
    twins = [slow_bert(weights, segment, range(len(segment))) for segment in segments_of(n)]
    for layer in range(3):
        for axis, name in enumerate("qkv"):
            expected = torch.cat([twin[layer][axis] for twin in twins], dim=1)
            got = getattr(captured[layer], name)
            assert got.shape == (4, n, 8)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_windows_follow_each_other(tiny_bert, text_file, weights):
    captured = source(tiny_bert, text_file, dtype="float64").qkv(20, [1], 2)[1]
    used = 2 * (14 + 2)  # two windows of 14 words in a segment of 16 and 2 in the tail of 4
    twins = [slow_bert(weights, segment, range(len(segment))) for segment in segments_of(20, window_start=used)]
    torch.testing.assert_close(captured.k, torch.cat([twin[1][1] for twin in twins], dim=1), rtol=0, atol=1e-10)
    assert (captured.layer, captured.window, captured.label["n"]) == (1, 2, 20)


def test_wrap_is_one_sequence_whose_positions_restart(tiny_bert, text_file, weights):
    captured = source(tiny_bert, text_file, dtype="float64", positions="wrap").qkv(40, [0, 2], 0)
    ids = sum(segments_of(40), [])
    twin = slow_bert(weights, ids, [i % 16 for i in range(40)])
    for layer in (0, 2):
        torch.testing.assert_close(captured[layer].v, twin[layer][2], rtol=0, atol=1e-10)
    segment = source(tiny_bert, text_file, dtype="float64").qkv(40, [0, 2], 0)
    torch.testing.assert_close(captured[0].q, segment[0].q, rtol=0, atol=1e-12)  # layer 0 sees no other token yet
    assert (captured[2].q - segment[2].q).abs().max() > 1e-2


def test_interpolate_stretches_the_table_and_restores_it(tiny_bert, text_file, weights):
    src = source(tiny_bert, text_file, dtype="float64", positions="interpolate")
    captured = src.qkv(40, [0, 2], 0)
    table = weights["embeddings.position_embeddings.weight"].double()
    at = [i * 15 / 39 for i in range(40)]
    stretched = torch.stack([table[int(a)] + (a - int(a)) * (table[min(int(a) + 1, 15)] - table[int(a)]) for a in at])
    twin = slow_bert(weights, sum(segments_of(40), []), range(40), stretched)
    for layer in (0, 2):
        torch.testing.assert_close(captured[layer].k, twin[layer][1], rtol=0, atol=1e-10)
    assert src._model.embeddings.position_embeddings.weight.shape == (16, 32)
    again = src.qkv(16, [2], 0)[2]
    for policy in ("segment", "wrap"):
        same = source(tiny_bert, text_file, dtype="float64", positions=policy).qkv(16, [2], 0)[2]
        assert torch.equal(again.q, same.q)


def test_blocks_of_rows_change_nothing(tiny_bert, text_file, monkeypatch):
    src = source(tiny_bert, text_file, dtype="float64", positions="wrap")
    full = src.qkv(40, [2], 0)[2]
    monkeypatch.setattr("attnprobe.inputs.hooks.call.BLOCK_BYTES", 4 * 4 * 40 * 7)
    torch.testing.assert_close(src.qkv(40, [2], 0)[2].q, full.q, rtol=0, atol=1e-12)


def test_the_model_goes_on_as_before(tiny_bert, text_file):
    src = source(tiny_bert, text_file)
    first = src.qkv(40, [2], 0)[2]
    ids = torch.arange(12)[None]
    before = src._model(input_ids=ids).last_hidden_state
    src.qkv(40, [0], 0)
    assert src._model.config._attn_implementation == "eager"
    assert torch.equal(src._model(input_ids=ids).last_hidden_state, before)
    again = src.qkv(40, [2], 0)[2]
    assert torch.equal(first.q, again.q) and not first.q.is_inference() and first.q.is_contiguous()
    assert first.q.requires_grad is False and (first.q * 2).sum() is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_dtypes_are_a_cast_of_the_float32_capture(tiny_bert, text_file, dtype):
    exact = source(tiny_bert, text_file).qkv(32, [1], 0)[1]
    assert exact.dtype == torch.float32
    got = source(tiny_bert, text_file, dtype=dtype).qkv(32, [1], 0)[1]
    assert torch.equal(got.q, exact.q.to(getattr(torch, dtype))) and got.scale == exact.scale == 8**-0.5


def test_float32_and_float64_models_agree(tiny_bert, text_file):
    exact = source(tiny_bert, text_file, dtype="float64").qkv(32, [2], 0)[2]
    rough = source(tiny_bert, text_file).qkv(32, [2], 0)[2]
    assert exact.dtype == torch.float64
    assert float((rough.v - exact.v).norm() / exact.v.norm()) < 1e-5
    assert not torch.equal(rough.v.double(), exact.v)  # the float64 model really ran in float64


def test_the_label_is_json_and_complete(tiny_bert, text_file):
    qkv = load_qkv(tiny_bert, text=text_file, n=20, layer=1, device="cpu")
    label = json.loads(json.dumps(dict(qkv.label)))
    assert (label["layer"], label["window"], label["n"]) == (1, 0, 20)
    assert (label["model"], label["weights"], label["weights_seed"]) == (tiny_bert, "pretrained", None)
    assert (label["p"], label["heads"], label["max_positions"], label["fallback"]) == (8, 4, 16, [])
    assert len(label["model_sha256"]) == len(label["text_sha256"]) == len(label["tokenizer_sha256"]) == 64


@pytest.mark.parametrize(
    ("n", "windows", "layers", "says"),
    [
        (1, 1, [0], "n=1: attention needs at least 2 tokens"),
        (64, 1, [3], "layer 3: the model has layers 0-2"),
        (64, 1, [-1], "layer -1: the model has layers 0-2"),
        (64, 1, [], "layer: name at least one"),
        (64, 0, [0], "windows=0"),
        (400, 1, [0], "n=400 needs 350 tokens, but the text"),
        (160, 3, [0], "n=160 in 3 windows needs 420 tokens"),
    ],
)
def test_impossible_requests_are_refused_before_any_forward(tiny_bert, text_file, n, windows, layers, says):
    src = source(tiny_bert, text_file)
    with pytest.raises(UsageError) as caught:
        src.check(n, windows, layers)
    assert says in str(caught.value) and src._model is None
    if "needs" in says and "tokens, but" in says:
        assert "has 300" in str(caught.value) and "longer text" in str(caught.value)


def fold(**config):
    """Sizes that a tiny model of any family takes."""
    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {**sizes, "intermediate_size": 48, "max_position_embeddings": 32, **config}


def family(name):
    import transformers as t

    if name == "llama":
        return t.LlamaModel(t.LlamaConfig(**fold(num_key_value_heads=2)))
    if name == "gpt2":
        return t.GPT2Model(t.GPT2Config(vocab_size=len(VOCABULARY), n_embd=32, n_layer=2, n_head=4, n_positions=32))
    if name == "deberta":
        return t.DebertaV2Model(t.DebertaV2Config(**fold(relative_attention=True)))
    if name == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        return t.T5Model(t.T5Config(vocab_size=len(VOCABULARY), **sizes))
    if name == "modernbert":
        special = dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0)
        return t.ModernBertModel(t.ModernBertConfig(**fold(num_hidden_layers=4, local_attention=8, **special)))
    if name == "mistral":
        return t.MistralModel(t.MistralConfig(**fold(num_key_value_heads=2, sliding_window=6)))
    if name == "gemma3":
        types = ["sliding_attention", "full_attention"]
        sizes = fold(num_key_value_heads=2, head_dim=16, sliding_window=6, layer_types=types)
        return t.Gemma3TextModel(t.Gemma3TextConfig(**sizes))
    if name == "gpt_oss":
        sizes = fold(num_key_value_heads=2, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=1)
        model = t.GptOssModel(t.GptOssConfig(**sizes))
        for parameter in model.parameters():  # transformers leaves the sinks and the experts as they are
            parameter.data.normal_(0.0, 0.3)
        return model
    if name == "eurobert":
        special = dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "mask_token_id"), 0)
        return t.EuroBertModel(t.EuroBertConfig(**fold(num_key_value_heads=2, **special)))
    if name == "longformer":
        return t.LongformerModel(t.LongformerConfig(**fold(attention_window=8)))
    if name == "vit":
        return t.ViTModel(t.ViTConfig(image_size=32, patch_size=16, hidden_size=32, num_attention_heads=4))
    if name == "roberta":
        return t.RobertaModel(t.RobertaConfig(**fold(max_position_embeddings=18, pad_token_id=1)))
    if name == "distilbert":
        sizes = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32}
        return t.DistilBertModel(t.DistilBertConfig(vocab_size=len(VOCABULARY), **sizes))
    raise KeyError(name)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Directories of tiny models, each made on first use."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = save(seeded(lambda: family(name)), tmp_path_factory.mktemp("families") / name)
        return str(made[name])

    return folder


@pytest.mark.parametrize(
    ("name", "layer", "says"),
    [
        ("vit", 0, "a vit does not read text"),
    ],
)
def test_models_that_q_k_v_alone_do_not_describe_are_refused_by_name(families, text_file, name, layer, says):
    folder = families(name)
    with pytest.raises(SourceError) as caught:
        source(folder, text_file).qkv(24, [layer], 0)
    assert says in str(caught.value) and folder in str(caught.value)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("eurobert", [0, 1]),
        ("modernbert", [0]),
        ("distilbert", [0, 1]),
        ("longformer", [0, 1]),
        ("deberta", [0]),
        ("t5", [0]),
    ],
)
def test_other_bidirectional_models_are_captured(families, text_file, name, layers):
    captured = source(families(name), text_file).qkv(24, layers, 0)
    for layer in layers:
        assert captured[layer].q.shape == captured[layer].k.shape == captured[layer].v.shape == (4, 24, 8)


LOCAL = {
    "mistral": (True, [6, 6], "attention: causal, sliding window 6"),
    "gemma3": (True, [6, None], "attention: causal, sliding window 6"),
    "gpt_oss": (True, [6, None], "attention: causal, sliding window 6, sinks"),
    "modernbert": (False, [None, 5, 5, None], "attention: sliding window 5"),
}


@pytest.mark.parametrize("name", LOCAL)
def test_windows_and_sinks_are_captured_and_told(families, text_file, name, tmp_path):
    """By the configuration before a forward and by the forward itself; a file keeps them."""
    causal, widths, line = LOCAL[name]
    src = source(families(name), text_file)
    stated = {fact: src.facts.get(fact) for fact in ("causal", "sliding_window", "sinks")}
    assert line in src.describe()
    layers = list(range(len(widths)))
    actual = src.qkv(24, layers, 0)
    assert stated == {fact: src.facts.get(fact) for fact in stated}
    assert [actual[layer].sliding_window for layer in layers] == widths
    assert {actual[layer].causal for layer in layers} == {causal}
    assert (actual[0].sink_logits is not None) is (name == "gpt_oss")
    copied = source_of(save_qkv(tmp_path / "kept", src, 24, layers))
    assert line in copied.describe()
    for layer, qkv in copied.qkv(24, layers, 0).items():
        assert torch.equal(exact_output(qkv), exact_output(actual[layer]))
    shorter = copied.qkv(12, layers, 0)
    assert [shorter[layer].sliding_window for layer in layers] == widths


def test_facts_of_attention_are_no_part_of_a_cells_key(families, text_file):
    src = source(families("gpt_oss"), text_file)
    assert {"causal"} == {"causal", "sliding_window", "sinks"} & set(identity_facts(src.facts))


def test_a_window_that_only_the_forward_shows_is_told_afterwards(families, text_file, monkeypatch):
    monkeypatch.setattr("attnprobe.inputs.description._attention", lambda config: {})
    src = source(families("gpt_oss"), text_file)
    assert not {"causal", "sliding_window", "sinks"} & set(src.facts)
    src.qkv(24, [0], 0)
    assert (src.facts["causal"], src.facts["sliding_window"], src.facts["sinks"]) == (True, 6, True)


SELECTED = ("last:5", "every:4", "random:7", "0,3,9-12")
PARTS = ("last:5", "every:4", "0,1", "23")
TURNS = (("mistral", "last:5"), ("gpt_oss", "23"), ("llama", "every:4"), ("modernbert", "every:4"), ("gpt2", "last:5"))


def test_a_window_wider_than_the_text_hides_nothing_and_is_told(families, text_file):
    src = source(families("mistral"), text_file)
    qkv = src.qkv(6, [0], 0)[0]
    assert qkv.sliding_window is None and src.facts["sliding_window"] == 6


SOME = [(name, of) for name in ("mistral", "gpt_oss", "modernbert", "llama", "gpt2") for of in SELECTED]


# a model has its own masks, and a selection its own rows: each one runs with the others' first
@pytest.mark.parametrize("name, queries", others_slow(SOME, lambda case: case[0] == "gpt_oss" or case in TURNS))
def test_some_queries_are_rows_of_all(families, text_file, name, queries):
    full = source(families(name), text_file).qkv(24, [0, 1], 0)
    some = source(families(name), text_file, queries=queries).qkv(24, [0, 1], 0)
    rows = Queries(queries).positions(24)
    for layer, qkv in some.items():
        assert torch.equal(qkv.positions, rows) and torch.equal(qkv.query_positions, rows)
        assert torch.equal(qkv.q, full[layer].q[:, rows]) and torch.equal(qkv.k, full[layer].k)
        assert (exact_output(qkv) - exact_output(full[layer])[:, rows]).abs().max() < 1e-12
        assert qkv.label["queries"] == queries
        assert torch.equal(qkv.all_queries, full[layer].q)


PARTED = [(name, of) for name in ("llama", "mistral", "gemma3", "gpt_oss", "gpt2") for of in PARTS]


@pytest.mark.parametrize("name, queries", others_slow(PARTED, lambda case: case[0] == "gemma3" or case in TURNS))
def test_a_long_text_is_read_in_parts(families, text_file, monkeypatch, name, queries):
    """What they give is that of one forward; 24 tokens in parts of 7 are more than a window and a last part of 3."""
    full = source(families(name), text_file, queries=queries).qkv(24, [0, 1], 0)
    monkeypatch.setattr("attnprobe.inputs.positions.LONGEST", 20)
    monkeypatch.setattr("attnprobe.inputs.positions.PART", 7)
    for layers in ([0, 1], [1]):
        for layer, qkv in source(families(name), text_file, queries=queries).qkv(24, layers, 0).items():
            one = full[layer]
            assert (qkv.causal, qkv.sliding_window, qkv.scale) == (one.causal, one.sliding_window, one.scale)
            assert torch.equal(qkv.positions, one.positions)
            for axis in ("q", "k", "v", "all_queries"):
                torch.testing.assert_close(getattr(qkv, axis), getattr(one, axis), rtol=0, atol=1e-5)
            assert (qkv.sink_logits is None) is (name != "gpt_oss")


def test_queries_of_segments_are_rows_of_the_whole_text(tiny_bert, text_file):
    for positions in ("segment", "wrap", "interpolate"):
        full = source(tiny_bert, text_file, positions=positions).qkv(40, [1], 0)[1]
        some = source(tiny_bert, text_file, positions=positions, queries="10-20,39").qkv(40, [1], 0)[1]
        rows = torch.tensor([*range(10, 21), 39])
        assert torch.equal(some.q, full.q[:, rows]) and torch.equal(some.v, full.v)
        assert torch.equal(some.all_queries, full.q)
        assert torch.equal(some.positions, rows) and not some.causal


def test_the_proof_is_made_of_the_queries_that_are_kept(families, text_file, monkeypatch):
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward

    def bent(module, query, key, value, mask, **kwargs):
        output, weights = eager(module, query, key, value, mask, **kwargs)
        if output.shape[1] == 24:  # all rows: of the last layer only the kept ones are computed
            output[:, 3] *= 1.001
        return output, weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", bent)
    assert source(families("llama"), text_file, queries="4-23").qkv(24, [0, 1], 0)[0].n_q == 20
    with pytest.raises(SourceError, match="differs from its own by"):
        source(families("llama"), text_file, queries="3-5").qkv(24, [0, 1], 0)


def test_queries_beyond_the_text_are_refused_before_any_forward(tiny_bert, text_file):
    src = source(tiny_bert, text_file, queries="last:64")
    with pytest.raises(UsageError, match="queries last:64: n=40 is too short, at least n=64 is needed"):
        src.check(40, 1, [0])
    assert src._model is None


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_decoder_gives_causal_q_k_v_and_says_so(families, text_file, name):
    """Told from its configuration and proved by the forward; keys are shared by the heads of their group."""
    src = source(families(name), text_file)
    assert src.facts["causal"] is True and "attention: causal" in src.describe()
    actual = src.qkv(24, [0, 1], 0)
    for qkv in actual.values():
        assert qkv.causal and qkv.k.shape == qkv.q.shape == (4, 24, 8) and qkv.label["causal"] is True
        assert qkv.kv_heads == (2 if name == "llama" else 4)
    longer = src.qkv(40, [1], 0)[1] if name == "gpt2" else None
    assert longer is None or longer.causal  # segments read one by one, side by side
    assert "causal" not in source(families("eurobert"), text_file).facts


def test_what_a_forward_proves_counts_more_than_a_configuration(families, text_file, monkeypatch):
    monkeypatch.setattr("attnprobe.inputs.description._is_causal", lambda config: False)
    src = source(families("gpt2"), text_file)
    assert "causal" not in src.facts
    assert src.qkv(24, [0], 0)[0].causal and src.facts["causal"] is True


def test_blocks_of_rows_cut_the_masks_of_layers_on_the_way(families, text_file, monkeypatch):
    """ModernBERT's layers 1 and 2 see a window, 0 and 3 everything: layer 3 is right only if 1 and 2 were."""
    src = source(families("modernbert"), text_file)
    full = src.qkv(32, [3], 0)[3]
    monkeypatch.setattr("attnprobe.inputs.hooks.call.BLOCK_BYTES", 4 * 4 * 32 * 7)
    torch.testing.assert_close(src.qkv(32, [3], 0)[3].q, full.q, rtol=0, atol=1e-5)


def test_grouped_keys_are_repeated_for_their_queries(families, text_file):
    k = source(families("eurobert"), text_file).qkv(24, [1], 0)[1].k
    assert torch.equal(k[0], k[1]) and torch.equal(k[2], k[3]) and not torch.equal(k[1], k[2])


def test_roberta_counts_its_positions_from_the_padding_token(families, text_file):
    src = source(families("roberta"), text_file)
    assert src.facts["max_positions"] == 16
    layer0 = src.qkv(40, [0], 0)[0]
    wrap = source(families("roberta"), text_file, positions="wrap").qkv(40, [0], 0)[0]
    torch.testing.assert_close(layer0.q, wrap.q, rtol=0, atol=1e-6)
    source(families("roberta"), text_file, positions="interpolate").qkv(40, [1], 0)


@pytest.mark.parametrize("positions", ["wrap", "interpolate"])
def test_policies_that_need_a_table_refuse_rotary_models(families, text_file, positions):
    src = source(families("eurobert"), text_file, positions=positions)
    assert src.qkv(24, [0], 0)[0].n == 24
    with pytest.raises(UsageError, match="no table of learned absolute positions; use --positions segment"):
        src.qkv(40, [0], 0)


def test_a_wrong_capture_does_not_pass_the_proof(tiny_bert, text_file, monkeypatch):
    """A model whose eager attention is not softmax(scale · Q Kᵀ) V by one part in a thousand is refused."""
    from transformers.models.bert import modeling_bert

    eager = modeling_bert.eager_attention_forward

    def bent(*args, **kwargs):
        output, weights = eager(*args, **kwargs)
        return output * 1.001, weights

    src = source(tiny_bert, text_file)
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", bent)
    with pytest.raises(SourceError, match="differs from its own by 1.0e-03"):
        src.qkv(16, [0], 0)


def test_weights_that_are_not_finite_are_named(tmp_path, text_file):
    from transformers import BertModel

    model = seeded(lambda: BertModel(bert_config()))
    model.encoder.layer[1].attention.self.key.weight.data[0, 0] = float("nan")
    folder = save(model, tmp_path / "nan")
    assert source(folder, text_file).qkv(8, [0], 0)[0].n == 8
    with pytest.raises(SourceError, match="refused at layer 1: its K holds NaN or infinity"):
        source(folder, text_file).qkv(8, [1], 0)


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_rows_of_a_block_need_no_keys_after_it(monkeypatch, side):
    """The model's attention is computed without the keys that a causal mask hides from a block of rows."""
    sizes = {"vocab_size": 9, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5)
    torch.manual_seed(0)
    model, ids = LlamaModel(config).eval(), torch.arange(24).reshape(2, 12) % 9
    mask = torch.ones_like(ids)
    if side is not None:
        mask[1, :4] = 0
        mask = mask if side == "left" else mask.flip(1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    full = capture(model, inputs)
    widths, eager = set(), eager_of

    def counting(module):
        def attention(module, query, key, *rest, **more):
            widths.add((query.shape[2], key.shape[2]))
            return eager(module)(module, query, key, *rest, **more)

        return attention

    monkeypatch.setattr("attnprobe.inputs.hooks.interface.eager_of", counting)
    monkeypatch.setattr("attnprobe.inputs.hooks.interface._softmax_in_float32", lambda _: False)
    monkeypatch.setattr("attnprobe.operators.blocks.KEYS", 5)
    monkeypatch.setattr("attnprobe.inputs.hooks.call.BLOCK_BYTES", 4 * 2 * 4 * 12 * 3)
    cut = capture(model, inputs)
    assert widths == ({(3, 10), (3, 12)} if side == "left" else {(3, 5), (3, 10), (3, 12)})
    for name, call in full.items():
        for axis in "qkv":
            torch.testing.assert_close(getattr(cut[name], axis), getattr(call, axis))
