"""Causal models that lie: folders and GGUF files with one hostile value of configuration, tokenizer or metadata.

All cases: ``pytest -m slow -n 0 tests/hostile/test_hostile_models.py``; HOSTILE_MODELS=FIRST-END tries these.
"""

import json
import os
import random
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from conftest import Broken
from hostile_runs import del_, places, put
from paths import GOLDEN

INPUTS = GOLDEN / "inputs"
QUICK = range(1000, 1006)
FIRST, END = map(int, os.environ.get("HOSTILE_MODELS", "0-500").split("-"))
MOST_MEMORY = 600 * 2**20  # that a case may add
DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 7, 1.5, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x", "4"),
    "\x1b[31m",
    *("\ud800", "\u202e", "a\nb", "../x", "9" * 5000, [], {}, [1], ["x"], [[]], [None], [-1, 2**40], {"x": 1}, DEEP),
)
#: what a causal model's config.json may have besides, with values that are wrong for this model
MORE: tuple[tuple[str, Any], ...] = (
    *(
        ("rope_parameters", {"rope_type": kind, "factor": 2.0})
        for kind in ("linear", "dynamic", "yarn", "llama3", "longrope", "x")
    ),
    *(("rope_parameters", {"rope_type": "linear", "factor": one}) for one in (0, -1, "x", None, float("nan"), 1e308)),
    ("rope_parameters", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [-1.0] * 999, "factor": 1.0}),
    ("rope_parameters", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 0.0}),
    ("rope_parameters", {"rope_type": "default", "rope_theta": -1e4}),
    ("rope_scaling", {"type": "linear", "factor": -2}),
    ("rope_scaling", {"rope_type": ["x"], "factor": {}}),
    ("rope_theta", "x"),
    ("partial_rotary_factor", 99.0),
    ("sliding_window", -3),
    ("sliding_window", 2**70),
    ("layer_types", ["sliding_attention"]),
    ("layer_types", ["x", "y"]),
    ("layer_types", {"0": 1}),
    ("auto_map", {"AutoModelForCausalLM": "evil.Model"}),
    ("auto_map", "evil"),
    ("quantization_config", {"quant_method": "x"}),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    ("attn_implementation", "flash_attention_2"),
    ("_attn_implementation", "evil/kernel"),
    ("dtype", "float8_e4m3fn"),
    ("torch_dtype", "int8"),
    ("text_config", {"model_type": "llama"}),
    ("is_encoder_decoder", True),
    ("num_experts", 2**40),
    ("experts_implementation", "x"),
    *(
        ("model_type", one)
        for one in ("gemma3_text", "gpt_oss", "mistral", "qwen3", "gpt2", "mamba", "t5", "bert", "llama4")
    ),
    *(("architectures", one) for one in (["BertForMaskedLM"], ["x"], "LlamaForCausalLM", [1])),
)
LENGTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of GGUF's numbers
TEXT, LIST = 8, 9
ADDED: tuple[tuple[str, int, bytes], ...] = (  # keys that the file lacks
    ("llama.attention.key_length", 4, struct.pack("<I", 7)),
    ("llama.attention.value_length", 4, struct.pack("<I", 2**31)),
    ("llama.attention.sliding_window", 4, struct.pack("<I", 2**32 - 1)),
    ("llama.attention.scale", 6, struct.pack("<f", float("nan"))),
    ("llama.attention.causal", 7, b"\0"),
    ("llama.rope.scaling.type", TEXT, struct.pack("<Q", 4) + b"yarn"),
    ("llama.rope.scaling.type", TEXT, struct.pack("<Q", 6) + b"\x1b[31mx"),
    ("llama.rope.scaling.factor", 6, struct.pack("<f", -2.0)),
    ("llama.rope.scaling.original_context_length", 4, struct.pack("<I", 0)),
    ("llama.expert_count", 4, struct.pack("<I", 2**31)),
    ("llama.embedding_scale", 6, struct.pack("<f", 3.0)),
    ("llama.logit_scale", 6, struct.pack("<f", 3.0)),
    ("general.alignment", 4, struct.pack("<I", 64)),
    ("split.count", 2, struct.pack("<H", 9)),
    ("tokenizer.ggml.scores", LIST, struct.pack("<IQf", 6, 1, 1.0)),
    ("tokenizer.ggml.add_space_prefix", 7, b"\1"),
    ("tokenizer.chat_template", TEXT, struct.pack("<Q", 20) + b"{{ 1/0 }}\x1b[2J{{ x }}"),
)
Pair = tuple[bytes, int, bytes]  # key, kind, value


def tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer.json of the decoder's 30 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokens = ["<unk>", "<s>", "</s>", *"Ġword0123456789abefghĊ", "wo", "wor"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, [("w", "o"), ("wo", "r")], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return json.loads(made.to_str())


class Case:
    """A hostile model: what it is in words, and how it is made in a folder."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(f"models {number}")
        kinds = (self.config, self.more, self.tokens, self.vocabulary, self.side, self.metadata)
        self.kind = kinds[number % len(kinds)]
        self.command = "inject" if self.random.random() < 0.2 else "error"
        self.words = self.kind.__name__

    def make(self, folder: Path, whole: bytes) -> Path:
        """The model's path."""
        if self.kind == self.metadata:
            path = folder.with_suffix(".gguf")
            path.write_bytes(self.metadata(whole))
            return path
        shutil.copytree(INPUTS / "decoder", folder)
        self.kind(folder)
        return folder

    def changed(self, file: Path, place: tuple[Any, ...], value: Any) -> None:
        contents = json.loads(file.read_text())
        put(contents, place, value)
        self.words = f"{file.name}: {place} = {value!r:.50}"
        file.write_text(json.dumps(contents))

    def value(self) -> Any:
        return self.random.choice((*VALUES, del_, del_))

    def config(self, folder: Path) -> None:
        file = folder / "config.json"
        self.changed(file, self.random.choice([*places(json.loads(file.read_text()))]), self.value())

    def more(self, folder: Path) -> None:
        name, value = self.random.choice(MORE)
        self.changed(folder / "config.json", (name,), value)

    def tokens(self, folder: Path) -> None:
        """tokenizer.json with another value anywhere."""
        (folder / "vocab.txt").unlink()
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
        where = [*places(tokenizer())]
        self.changed(folder / "tokenizer.json", self.random.choice(where), self.value())

    def vocabulary(self, folder: Path) -> None:
        """A vocabulary that does not fit the model."""
        (folder / "vocab.txt").unlink()
        contents = tokenizer()
        tokens = contents["model"]["vocab"]
        how = self.random.choice(("beyond", "negative", "twice", "empty", "long", "control", "merges", "added", "many"))
        self.words = f"vocabulary: {how}"
        if how in ("beyond", "negative", "twice"):
            tokens["o"] = {"beyond": self.random.choice((30, 31, 2**31, 2**32 - 1)), "negative": -1, "twice": 5}[how]
        elif how == "empty":
            contents["model"] |= {"vocab": {}, "merges": []}
        elif how == "long":
            contents["model"]["vocab"] = {**tokens, "x" * 10**6: 30}
        elif how == "control":
            contents["model"]["vocab"] = {token + "\x1b[31m\u202e": place for token, place in tokens.items()}
        elif how == "merges":
            contents["model"]["merges"] = self.random.choice(([["q", "z"]], ["w"], [["w"]], [[]], ["w o r"], [[1, 2]]))
        elif how == "added":
            contents["added_tokens"].append({**contents["added_tokens"][0], "id": 2**32 - 1, "content": "word"})
        else:
            contents["model"]["vocab"] = {**tokens, **{f"q{place}": place for place in range(30, 20_000)}}
        (folder / "tokenizer.json").write_text(json.dumps(contents))

    def side(self, folder: Path) -> None:
        """Files beside them."""
        name = self.random.choice(
            ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "added_tokens.json")
        )
        field = self.random.choice(
            ("bos_token", "unk_token", "model_max_length", "tokenizer_class", "added_tokens_decoder", "auto_map")
            + ("chat_template", "add_bos_token", "max_length", "temperature", "extra_special_tokens", "do_lower_case")
        )
        value = self.random.choice(VALUES)
        self.words = f"{name}: {field} = {value!r:.50}"
        (folder / name).write_text(json.dumps({field: value}))

    def metadata(self, whole: bytes) -> bytes:
        """A GGUF file with another value of one key, or with one more key."""
        pairs, tensors, data = parsed(whole)
        place = self.random.randrange(len(pairs))
        key, kind, value = pairs[place]
        how = self.random.choice(("number", "kind", "gone", "text", "list", "more", "cut", "tokens"))
        if how == "more":
            name, kind, value = self.random.choice(ADDED)
            pairs.append((name.encode(), kind, value))
            key = name.encode()
        elif how == "gone":
            del pairs[place]
        elif how == "text":
            text = self.random.choice(("", "x", "gpt2", "\x1b[31m", "../x", "9" * 5000, "a\nb")).encode()
            pairs[place] = key, TEXT, struct.pack("<Q", len(text)) + text
        elif how == "list":
            pairs[place] = key, LIST, struct.pack("<IQ", 4, 3) + struct.pack("<3I", 1, 2, 2**31)
        elif how == "kind" or kind in (TEXT, LIST) and how == "number":
            kind = self.random.choice([*LENGTHS])
            pairs[place] = key, kind, self.random.choice((b"\0" * 8, b"\xff" * 8, b"\1" + b"\0" * 7))[: LENGTHS[kind]]
        elif how == "number":
            pairs[place] = key, kind, self.random.choice((b"\0" * 8, b"\xff" * 8, b"\7" * 8))[: LENGTHS[kind]]
        else:
            lists = [one for one, (_, kind, _) in enumerate(pairs) if kind == LIST]
            place = self.random.choice(lists)
            key, kind, value = pairs[place]
            pairs[place] = key, kind, (shortened if how == "cut" else renamed)(value)
        self.words = f"metadata: {how} {key.decode()}"
        return written(pairs, tensors, data, whole)


def shortened(value: bytes) -> bytes:
    """A list of GGUF with its first element alone."""
    kind, count = struct.unpack("<IQ", value[:12])
    first = value[12:]
    size = 8 + struct.unpack("<Q", first[:8])[0] if kind == TEXT else LENGTHS[kind]
    return struct.pack("<IQ", kind, min(count, 1)) + first[:size]


def renamed(value: bytes) -> bytes:
    """A list of GGUF with one first element, which has control characters, in the place of all others."""
    kind, count = struct.unpack("<IQ", value[:12])
    element = struct.pack("<Q", 6) + b"\x1b[31m\n" if kind == TEXT else b"\xff" * LENGTHS[kind]
    return struct.pack("<IQ", kind, count) + element * count


def parsed(whole: bytes) -> tuple[list[Pair], bytes, bytes]:
    """The pairs of a sound file, the descriptions of its tensors, and their data."""
    tensors, count = struct.unpack("<QQ", whole[8:24])
    at, pairs = 24, []

    def end_of(kind: int, place: int) -> int:
        if kind == TEXT:
            return place + 8 + struct.unpack("<Q", whole[place : place + 8])[0]
        if kind != LIST:
            return place + LENGTHS[kind]
        inner, length = struct.unpack("<IQ", whole[place : place + 12])
        place += 12
        for _ in range(length):
            place = end_of(inner, place)
        return place

    for _ in range(count):
        end = end_of(TEXT, at)
        (kind,) = struct.unpack("<I", whole[end : end + 4])
        after = end_of(kind, end + 4)
        pairs.append((whole[at + 8 : end], kind, whole[end + 4 : after]))
        at = after
    begin = at
    for _ in range(tensors):
        at = end_of(TEXT, at)
        (axes,) = struct.unpack("<I", whole[at : at + 4])
        at += 4 + 8 * axes + 12
    return pairs, whole[begin:at], whole[at + -at % 32 :]


def written(pairs: list[Pair], tensors: bytes, data: bytes, whole: bytes) -> bytes:
    """The file of these pairs."""
    keys = b"".join(struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value for key, kind, value in pairs)
    head = whole[:16] + struct.pack("<Q", len(pairs)) + keys + tensors
    return head + bytes(-len(head) % 32) + data


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_gguf.llama()).read_bytes()


@pytest.fixture
def tries(promise, tmp_path, whole, monkeypatch) -> Callable[[int], int]:
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "0")
    asked = {
        "error": ("error", "--method", "vmean", "--n", "8", "--d", "4", "--no-matrix"),
        "inject": ("inject", "--method", "window", "--n", "8", "--d", "5"),
    }

    def call(number: int) -> int:
        shutil.rmtree(tmp_path / "home/run", ignore_errors=True)
        shutil.rmtree(tmp_path / "stranger", ignore_errors=True)
        case = Case(number)
        model = case.make(tmp_path / "stranger", whole)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            code = promise(
                *asked[case.command], "--model", str(model), "--text", str(INPUTS / "words.txt"), "--out", "run"
            )
        except Broken as error:
            raise Broken(f"{case.command} {case.words!a}: {error}") from None
        more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        if more > MOST_MEMORY:
            raise Broken(f"{case.command} {case.words!a}: {more / 2**20:.0f} MiB")
        return code

    return call


def test_a_file_that_is_written_again_is_the_same(whole, tmp_path):
    assert written(*parsed(whole), whole) == whole
    assert len({Case(number).kind.__name__ for number in range(6)}) == 6


@pytest.mark.parametrize("numbers", [QUICK, pytest.param(range(FIRST, END), marks=pytest.mark.slow)])
def test_a_model_that_lies_is_refused_with_one_line(numbers, tries, held):
    tries(-1)  # what is imported once is no case's memory
    held(tries, [(number,) for number in numbers])


def test_an_unknown_kind_of_rotation_is_named(promise, tmp_path):
    shutil.copytree(INPUTS / "decoder", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["rope_parameters"]["rope_type"] = "spiral"
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    asked = ("error", "--method", "vmean", "--n", "8", "--model", str(tmp_path / "model"))
    assert promise(*asked, "--text", str(INPUTS / "words.txt"), named="'spiral' is missing or unknown") == 3


def test_a_configuration_of_a_far_larger_model_takes_no_memory(promise, tmp_path):
    shutil.copytree(INPUTS / "decoder", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "model_type": "llama4"}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asked = ("error", "--method", "vmean", "--n", "8", "--model", str(tmp_path / "model"))
    assert promise(*asked, "--text", str(INPUTS / "words.txt"), named="config.json describes a model of") == 3
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MOST_MEMORY
