"""Sweep files, Q/K/V files and models' folders that are damaged in every place."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hostile_cases import VALUES
from safetensors.torch import save, save_file

SWEEP = {"command": "error", "qkv": "../qkv.safetensors", "method": "vmean", "n": 16, "d": 4, "layer": 0}
SWEEP |= {"head": "all", "windows": 1, "seed": 0, "target": "softmax", "tol": 0.001, "matrix": True, "repeats": 1}
SWEEP |= {"cell-timeout": 60, "gates": ["output_spectral=1"]}
YAML = (
    *(json.dumps(value) for value in VALUES if value.isprintable() and len(value) < 100),
    "null",
    "true",
    "!!bool x",
    "!!binary x",
    "!!timestamp x",
    "!!python/object/apply:os.system [touch broken]",
    "&a [*a]",
    "[[[[[[[[]]]]]]]]",
    "{a: {b: {c: 1}}}",
    "[1, two, 3.0, null]",
    ".nan",
    ".inf",
    "-.inf",
    "2001-01-01",
    "0o17",
    "|\n  a\n  b",
    "*nothing",
    "{",
    "'",
    "\t",
)
WHOLE = (
    "",
    "---",
    "--- 1\n--- 2",
    "[]",
    "just words",
    "? [a, b]\n: c",
    "1: 2",
    "command: error\ncommand: error",
    "command: sweep",
    "command: compare",
    "\x00",
    "\ufeffcommand: error",
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: &d [*c, *c]\ne: [*d, *d]",
    "x: " * 2000 + "1",
    "[" * 3000,
    "%TAG ! tag:x,2000:\n---\n!x a: b",
)


def sweeps() -> Iterator[str]:
    """A sweep's file with one key at one value, and files that are none."""
    for key in SWEEP:
        for value in YAML:
            yield "".join(f"{name}: {value if name == key else json.dumps(one)}\n" for name, one in SWEEP.items())
    for key in ("methods", "", "~", "Command", "command ", "n ", "__class__", "\\x1b[31m", "é"):
        yield "".join(f"{name}: {json.dumps(one)}\n" for name, one in SWEEP.items()) + f'"{key}": 1\n'
    yield from WHOLE


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {axis: torch.randn(2, 16, 4, generator=made) for axis in "qkv"}


def damaged_tensors() -> Iterator[dict[str, torch.Tensor]]:
    """Q, K and V of other shapes, types, names and values."""
    good = tensors()
    for axis in "qkv":
        x = good[axis]
        others = (x[0], x[None], x[:1], x[:, :3], x[..., :3], x[:, :0], x[:0], x[..., :0], x.long(), x.to(torch.int8))
        others += (
            x.bool(),
            x.half(),
            x.bfloat16(),
            x.to(torch.complex64),
            x * float("nan"),
            x / 0,
            x * 1e38,
            x * 1e-45,
        )
        others += (torch.zeros(()), torch.zeros(1), torch.full_like(x, 3e38), -x.abs() * 3e38)
        for other in others:
            yield good | {axis: other.contiguous()}
        yield {name: one for name, one in good.items() if name != axis}
        for name in (
            "",
            "Q",
            "layer0.q",
            "layer0.window0.q",
            "layer-1.window0.q",
            f"layer{'9' * 5000}.window0.q",
            "\x1b[2J",
        ):
            yield {other: one for other, one in good.items() if other != axis} | {name: good[axis]}
    yield {}
    yield good | {"mask": torch.zeros(16, dtype=torch.bool)}
    yield good | {"scale": torch.zeros(1)}


def damaged_headers() -> Iterator[bytes]:
    """Files whose header is wrong."""
    whole = save(tensors(), {"model": "x"})
    size = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]

    def file(head: object, length: int | None = None) -> bytes:
        text = head if isinstance(head, bytes) else json.dumps(head).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    yield from (b"", b"x", whole[:8], whole[:-1], whole[: 8 + size], whole + b"x", whole[4:], b"\x00" * 64)
    yield from (file(header, length) for length in (0, 1, size - 1, size + 10**6, 2**40, 2**63, 2**64 - 1))
    yield from (file(head) for head in ([], 1, None, "x", {}, b"\xff" * 20, b"[" * 5000, b'{"q": 1e999}'))
    for field, values in {
        "dtype": ("F33", 1, None, "\x1b[31m", [], "BOOL"),
        "shape": ([], [2, 16, -4], [2, 16, 2**62], ["2", 16, 4], None, "x", [2.5, 16, 4], [1] * 500),
        "data_offsets": ([0, 0], [8, 0], [-1, 512], [0, 2**60], [0], None, "x", [0, 512.5]),
    }.items():
        for value in values:
            yield file({**header, "q": {**header["q"], field: value}})
    deep: object = 1
    for _ in range(500):
        deep = {"a": deep}
    for facts in (
        deep,
        1,
        [],
        {"model": 1},
        {"model": "\x1b[31m"},
        {"model": None},
        {"causal": "perhaps"},
        {"scale": "-1"},
    ):
        yield file({**header, "__metadata__": facts})
        yield file({**header, "__metadata__": {"attnprobe": json.dumps(facts)}})


CONFIG = (
    *("model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "vocab_size", "type_vocab_size", "initializer_range", "layer_norm_eps"),
    *("hidden_act", "is_encoder_decoder", "is_decoder", "pad_token_id", "torch_dtype", "id2label", "num_labels"),
    *("auto_map", "quantization_config"),
)
JSON = (
    *(None, True, False, 0, -1, 1, 2.5, 1e308, 10**9, 10**30, "", "x", "gpt2", "../x", "\x1b[31m", [], [1], {}),
    {"a": 1},
)


def configs(good: dict[str, object]) -> Iterator[str]:
    """A model's configuration with one field at one value, and files that are none."""
    for field in CONFIG:
        for value in JSON:
            yield json.dumps(good | {field: value})
        yield json.dumps({name: one for name, one in good.items() if name != field})
    yield from (
        "",
        "[]",
        "1",
        "null",
        '{"model_type": "bert"',
        "\x00",
        "[" * 5000,
        '{"a": ' * 3000,
        '{"model_type": NaN}',
    )


def vocabularies() -> Iterator[tuple[str, bytes]]:
    """Files of a tokenizer's that are none, by their names."""
    for text in (
        b"",
        b"\xff\xfe",
        b"\n\n\n",
        b"a\na\na\n",
        b"[UNK]\n",
        b"x" * 10**6,
        b"[PAD]\n[CLS]\n[SEP]\n",
        b"\x00\n",
    ):
        yield "vocab.txt", text
    for text in (
        b"",
        b"{}",
        b"[]",
        b"1",
        b'{"model": 1}',
        b'{"model": {"type": "BPE"}}',
        b'{"model": {"type": "WordPiece"}}',
    ):
        yield "tokenizer.json", text
    yield "tokenizer.json", json.dumps(PANIC).encode()
    for text in (b"", b"[]", b'{"model_max_length": -1}', b'{"unk_token": 1}', b'{"tokenizer_class": "../x"}', b"\xff"):
        yield "tokenizer_config.json", text
    for text in (b"", b"x", b"\x00" * 100, struct.pack("<Q", 2**60)):
        yield "model.safetensors", text
    for shards in ({}, {"weight_map": 1}, {"weight_map": {"a": "../x"}}, {"weight_map": {"a": "/etc/passwd"}}, []):
        yield "model.safetensors.index.json", json.dumps(shards).encode()


PANIC = {  # a pattern that gives up on a long line, which is a panic in Rust
    **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "((.|..)+)+$."}, "behavior": "Isolated", "invert": False},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}


def test_a_tokenizer_that_panics_is_refused(tries_models):
    assert tries_models("tokenizer.json", json.dumps(PANIC).encode()) == 3


@pytest.fixture
def good(tiny_bert) -> dict[str, object]:
    return json.loads((Path(tiny_bert) / "config.json").read_text())


@pytest.fixture
def tries_sweeps(promise, tmp_path):
    save_file(tensors(), tmp_path / "qkv.safetensors")

    def call(text: str) -> None:
        (tmp_path / "sweep.yaml").write_text(text)
        promise("sweep", str(tmp_path / "sweep.yaml"), "--out", "run", "--dry-run")

    return call


@pytest.fixture
def tries_files(promise, tmp_path):
    path = tmp_path / "damaged.safetensors"

    def call(made: dict[str, torch.Tensor] | bytes) -> None:
        if isinstance(made, bytes):
            path.write_bytes(made)
        else:
            save_file(made, path)
        shutil.rmtree(tmp_path / "home" / "run", ignore_errors=True)
        run = ("error", "--method", "vmean", "--n", "16", "--d", "4", "--qkv", str(path), "--out", "run")
        assert promise(*run) != 2  # a source that is refused is no wrong usage

    return call


@pytest.fixture
def tries_models(promise, tmp_path, tiny_bert, text_file):
    folder = tmp_path / "model"

    def call(name: str, content: bytes) -> int:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(tmp_path / "home" / "run", ignore_errors=True)
        shutil.copytree(tiny_bert, folder)
        if name == "model.safetensors.index.json":
            (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)
        run = ("error", "--model", str(folder), "--text", text_file, "--method", "vmean", "--n", "8", "--d", "4")
        return promise(*run, "--no-matrix", "--out", "run")

    return call


def quick(cases):
    """One case in twenty, from the first on."""
    return list(cases)[::20]


@pytest.mark.parametrize("share", [quick, pytest.param(list, marks=pytest.mark.slow)])
def test_sweep_files(share, tries_sweeps, held):
    held(tries_sweeps, [(case,) for case in share(sweeps())])


@pytest.mark.parametrize("share", [quick, pytest.param(list, marks=pytest.mark.slow)])
def test_files_of_tensors(share, tries_files, held):
    held(tries_files, [(case,) for case in share([*damaged_tensors(), *damaged_headers()])])


@pytest.mark.parametrize("share", [quick, pytest.param(list, marks=pytest.mark.slow)])
def test_folders_of_models(share, tries_models, held, good):
    files = [*(("config.json", text.encode()) for text in configs(good)), *vocabularies()]
    held(tries_models, share(files))
