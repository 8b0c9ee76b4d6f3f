"""Parts of sources on objects made for them: what no model or file on this machine shows."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_models
import torch
from inputs import make
from sources_helpers import bert_config

from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs import cache as cache_module
from attnprobe.inputs import choose, gguf_file, hub, packaged, positions, resolve, save_qkv, scaled, vocabulary, weights
from attnprobe.inputs.cache import Cache, _runs
from attnprobe.inputs.converted import _refuse_what_is_lost
from attnprobe.inputs.description import _attention, _is_causal
from attnprobe.inputs.folder import ModelFolder, Seal, looks_like_a_path
from attnprobe.inputs.hooks.call import AttentionCall
from attnprobe.inputs.hooks.numbering import attention_layers
from attnprobe.inputs.model import ModelSource
from attnprobe.inputs.needle import parse_needle
from attnprobe.inputs.positions import _caches, _joined_block, _table, max_positions
from attnprobe.inputs.spec import Source, SourceSpec, check_memory
from attnprobe.inputs.surveying import _row
from attnprobe.inputs.text import Text, prepared
from attnprobe.inputs.tokens import TokenStream
from attnprobe.operators.block import Block

# --- what a model source says and does


FACTS = {
    "model": "m",
    "revision": "abc",
    "weights": "initialized",
    "weights_seed": 3,
    "model_sha256": "12",
    "text": "wikitext-2",
    "split": "train",
    "text_sha256": "34",
    "heads": 4,
    "p": 8,
    "max_positions": None,
    "tokenizer": "t",
    "tokenizer_sha256": "56",
    "unk_fraction": 0.25,
    "positions": "segment",
    "fallback": ["a substitute"],
}


def model_source(**facts):
    source = SimpleNamespace(facts={**FACTS, **facts}, weights="initialized", layers=2, available=(0, 1), name="m")
    source.spec = SourceSpec(weights="initialized")
    return source


def test_a_model_is_described_with_its_revision_split_and_limit():
    assert ModelSource.describe(model_source()) == [
        "model: m, revision abc, weights initialized (seed 3), sha256 12",
        "heads: 2 layers of 4 heads, p=8, any number of positions",
        "text: wikitext-2, split train, sha256 34",
        "tokenizer: t, sha256 56, unknown 25.00%",
        "positions: segment",
        "fallback: a substitute",
    ]
    model, heads, text, *_ = ModelSource.describe(
        model_source(revision=None, model_sha256=None, split=None, max_positions=64, weights_seed=None)
    )
    assert (model, text) == ("model: m, weights initialized", "text: wikitext-2, sha256 34")
    assert heads.endswith("p=8, 64 positions")


def test_a_capture_that_overflows_a_dtype_names_the_layer():
    qkv = make(h=2, n=3)
    captured = SimpleNamespace(rope=None, all_queries=None, scale=1.0, causal=False, positional=0)
    captured.q, captured.k, captured.v = qkv.q * torch.inf, qkv.k, qkv.v
    captured.sliding_window = captured.sink_logits = captured.bias = captured.softcap = captured.own = None
    captured.positions = captured.block = None
    source = model_source()
    source.text = Text("text", "", "")
    with pytest.raises(SourceError, match="^m, layer 1, as float32: q: the value at head 0, token 0, column 0 is"):
        ModelSource._labelled(source, 1, 3, 0, captured)


def test_a_question_that_the_tokenizer_joins_to_the_text_is_refused():
    needle = parse_needle("needle:pairs=2,answer=1")
    question, answer = needle.ending(0)

    def read(text):  # each character is a token
        return [ord(character) for character in text], [(place, place + 1) for place in range(len(text))]

    ids = read(f"prose.{question}{answer}")[0]
    source = SimpleNamespace(text=Text("needle", "", "", needle=needle), layout=SimpleNamespace(after=(7,)))
    source.stream = SimpleNamespace(vocabulary=SimpleNamespace(read=read))
    source.segments = lambda n, window: [[1], [*ids, 7]]
    assert ModelSource.ending(source, 9, 0) == (len(question) + len(answer) + 1, len(answer) + 1)
    source.segments = lambda n, window: [[1], [*ids[: -len(answer) - len(question)], 9, *ids[-len(answer) :], 7]]
    with pytest.raises(UsageError, match="the tokenizer joins its question to the text before it"):
        ModelSource.ending(source, 9, 0)


# --- needles


class Pieces:
    """Every word of a text is ``each`` tokens; a text with a question has at most ``most``."""

    def __init__(self, each=1, most=10**6):
        self.each, self.most = each, most

    def __call__(self, text):
        import re

        spans = [word.span() for word in re.finditer(r"\S+", text) for _ in range(self.each)]
        spans = spans[-self.most :] if "Question" in text else spans
        return [sum(map(ord, text[begin:end])) for begin, end in spans], spans


def test_no_cut_of_the_prose_gives_too_few_tokens():
    with pytest.raises(UsageError, match="no cut of its prose gives 60 tokens: choose another n"):
        parse_needle("needle:pairs=2").compose(Pieces(most=59), ["a b c. d e f."], 60, 0)


def test_a_token_that_is_cut_off_is_none_of_the_needle():
    """Of two tokens a word one is too many where n is odd: the first one, which may be the statement's."""
    cut = 0
    for window in range(6):
        needle, read = parse_needle("needle:pairs=1"), Pieces(2)
        groups, question, _ = needle.statements(window)
        whole = len(read(groups[0][0] + question)[0])
        ids, marked = needle.compose(read, ["a b c. d e f."], whole + 1, window)
        stated = len(read(groups[0][0])[0])
        assert len(ids) == whole + 1 and marked[-1] < whole and len(marked) in (stated - 1, stated)
        assert marked == list(range(marked[0], marked[0] + len(marked))) and marked[0] >= 0
        cut += len(marked) < stated
    assert cut


# --- files


class Given(Source):
    """A source of given Q, K and V by layer."""

    facts = {"model": "m", "captured": "cache"}

    def __init__(self, *given):
        self.given = given

    def check(self, n, windows, layers):
        pass

    def qkv(self, n, layers, window):
        return {layer: self.given[layer] for layer in layers}

    def describe(self):
        return []


def test_sinks_windows_and_causality_are_written_and_read_again(tmp_path):
    local = make(h=2, n=9, dtype=torch.float32).replace(causal=True, sliding_window=4, sinks=2)
    whole = local.replace(sliding_window=None, sinks=0, positional=1)
    apart = local.replace(key_positions=3 * torch.arange(9))
    save_qkv(tmp_path / "x.safetensors", Given(local, whole, apart), 9, [0, 1, 2], 1)
    source = resolve(SourceSpec(qkv=str(tmp_path / "x.safetensors"), device="cpu"))
    got = source.qkv(9, [0, 1, 2], 0)
    assert [(got[layer].causal, got[layer].sliding_window, got[layer].sinks) for layer in (0, 1, 2)] == [
        (True, 4, 2),
        (True, None, 0),
        (True, 4, 2),
    ]
    assert [got[layer].positional for layer in (0, 1, 2)] == [0, 1, 0]
    assert got[0].key_positions is None and torch.equal(got[2].key_positions, apart.key_positions)
    assert torch.equal(source.qkv(5, [2], 0)[2].key_positions, 3 * torch.arange(5))
    assert "captured" not in source.facts


def test_what_a_file_cannot_store_is_refused(tmp_path):
    qkv = make(h=2, n=9)
    for source, layers, says in (
        (Given(qkv.replace(mask=torch.arange(9) < 7)), [0], "layer 0 has a mask"),
        (Given(qkv, qkv.replace(causal=True)), [0, 1], "only some layers are causal"),
    ):
        with pytest.raises(UsageError, match=f"{says}.*which this file format cannot store"):
            save_qkv(tmp_path / "x.safetensors", source, 9, layers, 1)
        assert not list(tmp_path.iterdir())


def test_the_queries_beside_those_of_some_tokens_are_scaled_too():
    qkv = make(h=2, n=9).replace(causal=True)
    some = scaled(qkv.queries(torch.tensor([3, 8])), 4.0)
    assert torch.equal(some.all_queries, 2 * qkv.q) and torch.equal(some.complete().q, scaled(qkv, 4.0).q)


# --- models


def test_positions_that_a_configuration_counts_wrong_are_no_limit():
    for rows, most in ((0, None), (-1, None), (None, None), (64, 64)):
        assert max_positions(SimpleNamespace(max_position_embeddings=rows, model_type="bert")) == most
    for pad, most in ((None, 63), (1, 62)):
        config = SimpleNamespace(max_position_embeddings=64, model_type="roberta", pad_token_id=pad)
        assert max_positions(config) == most


def test_a_decoder_alone_takes_a_cache():
    def model(forward, pair=False):
        return SimpleNamespace(forward=forward, config=SimpleNamespace(is_encoder_decoder=pair))

    def cached(past_key_values, use_cache):
        """The forward of a decoder."""

    def plain(use_cache):
        """Another one."""

    assert [_caches(model(cached)), _caches(model(cached, pair=True)), _caches(model(plain))] == [True, False, False]


@pytest.mark.parametrize("name", ["Jamba", "Bamba", "RecurrentGemma", "MiniMax", "LFM2", "BERT"])
def test_a_long_text_is_as_in_one_forward_whatever_a_model_does_behind_a_cache(monkeypatch, name):
    """Some hybrids begin other layers anew behind a cache, an encoder sees later parts, some have their own cache."""
    model = tiny_models.build(name)
    layers = attention_layers(model, model.config.num_hidden_layers)
    tokens = tiny_models.inputs(model)["input_ids"][0].tolist()
    queries = torch.tensor([2, 9, 15, 16, 23])
    whole = positions.read(model, name, [tokens], layers, "segment", queries)
    monkeypatch.setattr(positions, "LONGEST", 8)
    monkeypatch.setattr(positions, "PART", 8)
    for layer, captured in positions.read(model, name, [tokens], layers, "segment", queries).items():
        for axis in "qkv":
            torch.testing.assert_close(getattr(captured, axis), getattr(whole[layer], axis), rtol=0, atol=1e-5)


def test_a_block_that_one_segment_lacks_is_none():
    block = Block(torch.ones(1, 1), torch.ones(1, 3))
    assert _joined_block([block, block]).size.tolist() == [1.0] * 6 and _joined_block([block, None]) is None


def test_a_table_of_positions_that_the_forward_does_not_take_cannot_be_stretched():
    model = SimpleNamespace(config=SimpleNamespace(model_type="x"), forward=lambda input_ids: None)
    model.embeddings = SimpleNamespace(position_embeddings=torch.nn.Embedding(2, 2))
    with pytest.raises(UsageError, match="--positions wrap: m \\(x\\) has no table of learned absolute positions"):
        _table(model, "m", "wrap")
    model.forward = lambda input_ids, position_ids: None
    assert _table(model, "m", "wrap") is model.embeddings.position_embeddings


def test_attention_of_configurations_with_a_window_that_no_layer_has():
    from transformers import Qwen2Config

    sizes = {"num_hidden_layers": 2, "sliding_window": 8, "use_sliding_window": True}
    kinds = {True: ["full_attention"] * 2, False: ["full_attention", "sliding_attention"]}
    for none, layer_types in kinds.items():
        facts = _attention(Qwen2Config(**sizes, layer_types=layer_types))
        assert facts == {"causal": True} | ({} if none else {"sliding_window": 8})
    assert _is_causal(bert_config(is_decoder=True)) and not _is_causal(bert_config())


def test_a_head_is_there_where_a_pooler_alone_is_missing(monkeypatch):
    model = tiny_models.build("BERT")
    for missing, why in (([], None), (["pooler.dense.weight", "cls.bias"], "hold no masked-LM head (cls.bias is")):
        info = {"missing_keys": [*missing, "pooler.dense.bias"]}
        auto = SimpleNamespace(from_pretrained=lambda *_, info=info, **__: (model, info))
        monkeypatch.setattr("transformers.AutoModelForMaskedLM", auto)
        monkeypatch.setattr(weights, "configuration", lambda folder: None)
        monkeypatch.setattr(weights, "_refuse_far_larger", lambda *_: None)
        folder = SimpleNamespace(name="m", path="m", tensors=list, hold=lambda: None)
        found, said = weights.with_head(folder, torch.float32, "masked")
        assert found is model and (said is None if why is None else why in said)


def test_weights_that_are_missing_of_one_file_and_of_several():
    def folder(*names):
        return SimpleNamespace(name="m", tensors=lambda: [SimpleNamespace(name=name) for name in names])

    assert str(weights._incomplete(folder("a"), ["w"])) == "m: a lacks w; the model is incomplete"
    several = str(weights._incomplete(folder("a", "b"), ["w", "x", "y"]))
    assert several == "m: its safetensors files lacks w (and 2 more); the model is incomplete"


def test_what_transformers_says_of_a_setting_in_words():
    error = ValueError("Validation error for field 'head_dim':\n  of a kind")
    assert weights._line(error) == "Validation error for field 'head_dim':"
    error.__cause__ = TypeError("Field 'head_dim' expected int, got str")
    assert weights._line(error) == "head_dim; a whole number is needed"
    assert weights._of_setting("x", "it is odd\nvery odd") == "x: it is odd"
    assert weights._of_setting("x", "Field 'x' expected Thing, got str (value: 1)").startswith("x: Field 'x' expected")


def test_projections_that_are_no_linear_modules_are_not_redrawn():
    model = torch.nn.ModuleDict({name: torch.nn.Identity() for name in ("query", "key", "value")})
    model.config = SimpleNamespace(model_type="x")
    with pytest.raises(UsageError, match="this x has none under these names"):
        weights.redraw_projections(model, 0, "m")


# --- tokenizers


def test_a_vocabulary_without_cls_or_sep_puts_nothing_around_a_text():
    for tokens in (["[UNK]", "a"], ["[UNK]", "[CLS]", "a"], ["[UNK]", "[SEP]", "a"]):
        assert vocabulary.wordpiece(tokens, cased=True).encode("a").tokens == ["a"]


def test_a_vocabulary_is_cased_by_its_words_alone(tmp_path):
    for word, cased in (("[A", True), ("A]", True), ("[A]", False)):
        (tmp_path / "vocab.txt").write_text(f"[UNK]\n[CLS]\n[SEP]\na\nb\n{word}\n")
        opened = vocabulary.open_tokenizer(str(tmp_path / "vocab.txt"))
        assert opened.read("A")[0] == [0 if cased else 3]


def test_the_words_of_a_long_text_are_those_of_its_beginning(monkeypatch):
    text = Text("text", "first words\nlater words\n", "")
    assert vocabulary.fallback_vocabulary(text, 99).read("later")[0] != [1]
    monkeypatch.setattr(vocabulary, "COUNTED", 11)
    tokenizer = vocabulary.fallback_vocabulary(text, 99).tokenizer
    assert tokenizer.token_to_id("later") is None and tokenizer.token_to_id("first") is not None


def test_a_tokenizer_without_a_fast_form_is_refused(monkeypatch, tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: object())
    with pytest.raises(SourceError, match="m: its tokenizer has no fast form; save it as tokenizer.json"):
        vocabulary.of_folder("m", tmp_path)


def test_a_tokenizer_is_read_where_stderr_is_closed(monkeypatch, tmp_path):
    def closed(descriptor):
        raise OSError("closed")

    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    monkeypatch.setattr(os, "dup", closed)
    assert vocabulary.open_tokenizer(str(tmp_path / "vocab.txt")).read("a")[0] == [1]


def test_a_text_that_is_read_again_is_said_once(tiny_bert):
    source = resolve(SourceSpec(model=str(tiny_bert), text="embedded", device="cpu"), notify=lambda line: None)
    for _ in range(2):
        source.check(260_000, 1, [0])
    assert len([line for line in source.facts["fallback"] if "is read again from its start" in line]) == 1


def test_a_cache_of_an_earlier_version_does_not_allow_windows_of_repeated_text(tiny_bert):
    source = resolve(SourceSpec(model=str(tiny_bert), text="embedded", device="cpu"), notify=lambda line: None)
    source._card["lengths"]["2000 x 130"] = "the text is read again"
    with pytest.raises(UsageError, match="choose at most 108 windows or a longer text"):
        source.check(2000, 130, [0])


def test_a_needle_is_composed_once_for_a_place(monkeypatch):
    source = resolve(SourceSpec(weights="initialized", text="needle:pairs=2", device="cpu"), notify=lambda line: None)
    calls, own = [], TokenStream.needle
    monkeypatch.setattr(TokenStream, "needle", lambda *given: calls.append(given) or own(*given))
    assert source._needle(400, 1) == source._needle(400, 1) and len(calls) == 1


# --- folders, packages and the cache


def test_marks_of_paths():
    paths = {name: looks_like_a_path(name) for name in ("bert/", "a\\b", "a/b/", "bert", "a/b")}
    assert paths == {"bert/": True, "a\\b": True, "a/b/": True, "bert": False, "a/b": False}


@pytest.mark.parametrize("shard", ["", ".", ".."])
def test_a_shard_that_names_a_folder_is_refused(shard, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(SourceError, match="a shard's name is .*, not that of a file in the same directory"):
        ModelFolder("m", tmp_path).tensors()


def test_a_snapshot_that_lacks_a_file_is_not_the_cached_one(monkeypatch):
    held = {"config.json": "/hub/snapshots/1/config.json"}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: held.get(file))
    assert str(hub.cached_folder("m", "config.json")) == "/hub/snapshots/1"
    assert hub.cached_folder("m", "config.json", "model.safetensors") is None and hub.cached_folder("m") is None


def test_data_sets_lie_where_the_variables_say(monkeypatch, tmp_path):
    for name in ("HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, below in (("XDG_CACHE_HOME", "huggingface/datasets"), ("HF_HOME", "datasets"), ("HF_DATASETS_CACHE", "")):
        folder = tmp_path / name / below / "a___b" / "c" / "0" / "1"
        folder.mkdir(parents=True)
        (folder / "x.arrow").write_text("")
        with monkeypatch.context() as patched:
            patched.setenv(name, str(tmp_path / name))
            assert prepared("c", "a/b") and not prepared("d", "a/b")


def test_words_of_a_text_that_exceed_a_made_up_vocabulary_are_unknown_and_no_fault(tmp_path):
    bert_config(vocab_size=8).save_pretrained(tmp_path / "m")
    (tmp_path / "t.txt").write_text("one two three four five six seven eight nine ten eleven twelve\n")
    spec = SourceSpec(model=str(tmp_path / "m"), weights="initialized", text=str(tmp_path / "t.txt"), device="cpu")
    assert resolve(spec, notify=lambda line: None).facts["unk_fraction"] > 0.5


def test_rotary_positions_that_a_gguf_file_scales_are_refused():
    plain = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0, "llama.rope.scale_linear": 0}
    plain |= {"llama.rope.scaling.original_context_length": 4096, "general.architecture": "llama"}
    _refuse_what_is_lost(gguf_file.Header(plain, {}))
    for name, value in (("scaling.type", "yarn"), ("scaling.factor", 8.0), ("scale_linear", 2.0)):
        with pytest.raises(ValueError, match=f"^llama.rope.{name}: its rotary positions are scaled"):
            _refuse_what_is_lost(gguf_file.Header({**plain, f"llama.rope.{name}": value}, {}))
    with pytest.raises(ValueError, match="rope_freqs.weight: its rotary positions are scaled"):
        _refuse_what_is_lost(gguf_file.Header(plain, {"rope_freqs.weight": (4,)}))


@pytest.mark.parametrize("places", [None, ["nowhere"]])
def test_a_package_without_its_files_is_not_installed(places, monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=places))
    assert packaged._seals.__wrapped__("minilm") == ()


def test_a_packaged_model_that_is_not_the_published_one_is_no_substitute(monkeypatch):
    for installed, words in ((True, "of the packaged MiniLM, whose sha256 is wrong"), (False, "(an initialized")):
        told = []
        monkeypatch.setattr(choose, "packaged_weights", lambda i=installed: {"installed": i, "sha256_ok": False})
        substitutions = SimpleNamespace(add=lambda *given, told=told: told.append(given))
        assert choose._without_hub(substitutions, None) == (None, "initialized")
        assert words in told[0][1]
        monkeypatch.setattr(choose, "cached_folder", lambda *names: None)
        monkeypatch.setattr(choose, "hub_reachable", lambda: False)
        assert choose.describe_defaults()[0] == f"model: {choose.BUILT_IN}, weights initialized"


def test_a_name_that_is_none_is_an_answer_about_the_defaults(monkeypatch):
    def refused(*given):
        raise SourceError("no such hub")

    monkeypatch.setattr(choose, "cached_folder", refused)
    assert choose.describe_defaults()[0] == f"model: {choose.DEFAULT_MODEL}, no such hub"


def test_a_model_without_a_number_of_layers_is_built(monkeypatch):
    config, built = SimpleNamespace(), []
    monkeypatch.setattr(choose, "_model", lambda *given: ("folder", "initialized"))
    monkeypatch.setattr(choose, "configuration", lambda folder: config)
    monkeypatch.setattr(choose, "initialized", lambda *given, **rest: built.append(given))
    choose.open_model("m", "initialized")
    assert built[0][:3] == (config, 0, 1)


def test_a_header_of_a_gguf_file_has_a_most_size(monkeypatch, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3" + bytes(60))
    monkeypatch.setattr(gguf_file, "LARGEST", 8)
    with pytest.raises(ValueError, match="its header is larger than 0 MiB, the most that is read"):
        gguf_file.read_header(tmp_path / "m.gguf")


def test_a_folder_that_cannot_be_moved_stays_where_it_is(monkeypatch, tmp_path):
    def full(*given):
        raise OSError("no room")

    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text("{}")
    told = []
    seal = Seal([tmp_path / "made" / "config.json"])
    monkeypatch.setattr(os, "rename", full)
    assert not Cache(tmp_path / "cache", notify=told.append).keep_folder("key", seal)
    assert told == [f"{tmp_path}/cache: the converted model is not cached: no room"]
    assert (tmp_path / "made" / "config.json").is_file()


def test_the_newest_entry_stays_whatever_the_clock_said(tmp_path):
    cache = Cache(tmp_path, largest=100)
    cache._keep("older", ".json", bytes(60))
    [older] = tmp_path.iterdir()
    os.utime(older, (2**32, 2**32))  # a clock that was ahead
    cache._keep("newer", ".json", bytes(60))
    assert [entry.key for entry in cache.entries()] == ["newer"]


def test_what_is_named_as_a_conversion_and_is_no_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_runs", lambda pid: False)
    (tmp_path / ".7-file.tmp").write_text("")
    (tmp_path / ".7-folder.tmp").mkdir()
    (tmp_path / ".7-link.tmp").symlink_to(tmp_path / ".7-folder.tmp")
    assert Cache(tmp_path).unfinished() == [tmp_path / ".7-folder.tmp"]


def test_another_users_process_runs(monkeypatch):
    def refused(pid, signal):
        raise PermissionError

    assert not _runs(2**70)
    monkeypatch.setattr(os, "kill", refused)
    assert _runs(1)


def test_nothing_is_refused_where_the_memory_is_not_known(monkeypatch):
    with pytest.raises(UsageError, match="a stack needs .* GiB, and this machine has"):
        check_memory(2**50, "a stack")
    monkeypatch.setattr(os, "sysconf", lambda name: int("no such name"))
    check_memory(2**50, "a stack")


# --- surveys


def test_the_row_of_a_later_call_with_values_of_another_dimension_and_a_bias():
    q, k, v = torch.zeros(1, 2, 4, 3), torch.zeros(1, 2, 4, 3), torch.zeros(1, 2, 4, 5)
    plain = _row(AttentionCall("m", 0, 7, "M", q, k, k, 0.5, delta=1e-7), {})
    assert plain[:6] == ("7", "m", "M", "2", "2", "3") and plain[-1] == "yes"
    later = _row(AttentionCall("m", 1, 8, "M", q, k, v, 0.5, bias=torch.eye(4)[None, None], delta=1e-7), {})
    assert later[:6] == ("8", "m (call 2)", "M", "2", "2", "3/5") and later[7] == "full, bias" and later[-1] == "yes"
    assert not np.isnan(float(later[-3]))
