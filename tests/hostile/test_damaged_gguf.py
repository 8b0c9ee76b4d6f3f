"""GGUF files that are damaged or lie: each is refused with one line, in little time and memory."""

import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_gguf
from hostile_cases import VALUES

HUGE = (2**31, 2**40, 2**63, 2**64 - 1)
TEXT, LIST, U8, U32, U64 = 8, 9, 0, 4, 10
MOST_MEMORY = 300 * 2**20  # that all cases may take


REASONS = {
    "magic": "it does not begin with GGUF",
    "version 50331648": "it is big-endian",
    "the first 5000 bytes": "it ends inside its header",
    "bytes as a list": "more than 2000000 entries",
    "a key twice": "occurs twice",
    "a tensor twice": "occurs twice",
    "half a block": "not whole blocks of 32",
    "alignment 3": "not a power of 2",
    "tensors in the same place": "inside another one",
    "tensors that overlap": "inside another one",
    "not aligned": "or not aligned",
    "tokens that are a number": "its key tokenizer.ggml.tokens is not a list",
    "types of fewer tokens": "its key tokenizer.ggml.token_type has 1 elements for 2 tokens",
    "behind the end": "behind the end of the file",
    "tensor of type 99": "the unknown type 99",
    "axes whose product overflows": "behind the end of the file",
}


def text(value: str | bytes) -> bytes:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def elements(kind: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + data


def tensor(name: str | bytes = "a", shape: tuple[int, ...] = (4,), kind: int = 0, place: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, place)


LLAMA = pair("general.architecture", TEXT, text("llama"))


def file(pairs: bytes = LLAMA, tensors: int = 0, keys: int = 1, version: int = 3) -> bytes:
    """A file that states these counts."""
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + pairs
    return head + bytes(-len(head) % 32) + bytes(256)


def cases(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of files."""
    yield "empty", b""
    yield "magic", b"GGML" + whole[4:]
    yield "magic of another format", b"PK\x03\x04" + whole[4:]
    for length in (3, 4, 8, 23, 24, 31, 40, 100, 1_000, 5_000, 9_000, 20_000, len(whole) // 2, len(whole) - 1):
        yield f"the first {length} bytes", whole[:length]
    for version in (0, 1, 4, 2**32 - 1, 3 << 24):
        yield f"version {version}", file(version=version)
    for count in HUGE:
        yield f"{count} tensors", file(tensors=count)
        yield f"{count} keys", file(keys=count)
        yield f"key of {count} bytes", file(struct.pack("<Q", count) + b"key")
        yield f"text of {count} bytes", file(pair("key", TEXT, struct.pack("<Q", count)))
        yield f"list of {count} bytes", file(LLAMA + pair("key", LIST, elements(U8, count)), keys=2)
        yield f"list of {count} texts", file(LLAMA + pair("key", LIST, elements(TEXT, count)), keys=2)
        yield f"axis of {count}", file(tensors=1, pairs=LLAMA + tensor(shape=(count,)))
        yield f"place {count}", file(tensors=1, pairs=LLAMA + tensor(place=count - count % 32))
    yield "zeros", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**20) + bytes(2**16)
    yield "many empty texts", file(LLAMA + pair("key", LIST, elements(TEXT, 10**6, bytes(8 * 10**6))) * 3, keys=4)
    yield "bytes as a list", file(LLAMA + pair("key", LIST, elements(U8, 10**7, bytes(10**7))), keys=2)
    yield "long token", file(LLAMA + pair("key", LIST, elements(TEXT, 1, text("a" * 10**6))), keys=2)
    yield "lists in lists", file(LLAMA + pair("key", LIST, elements(LIST, 1) * 5000), keys=2)
    yield "type of a value", file(LLAMA + pair("key", 13, bytes(8)), keys=2)
    yield "type of elements", file(LLAMA + pair("key", LIST, elements(99, 1)), keys=2)
    yield "a key twice", file(LLAMA * 2, keys=2)
    yield "a key that is not UTF-8", file(pair(b"\xff\xfe", TEXT, text("llama")))
    yield "no architecture", file(pair("general.name", TEXT, text("llama")))
    yield "an architecture that is a number", file(pair("general.architecture", U32, bytes(4)))
    for alignment in (0, 3, 2**31 - 1):
        yield (
            f"alignment {alignment}",
            file(LLAMA + pair("general.alignment", U32, struct.pack("<I", alignment)), keys=2),
        )
    yield "alignment as a text", file(LLAMA + pair("general.alignment", TEXT, text("32")), keys=2)
    for kind in (4, 5, 31, 99, 2**32 - 1):
        yield f"tensor of type {kind}", file(tensors=1, pairs=LLAMA + tensor(kind=kind))
    yield "no axes", file(tensors=1, pairs=LLAMA + tensor(shape=()))
    yield "many axes", file(tensors=1, pairs=LLAMA + tensor(shape=(1,) * 9))
    yield "an axis of 0", file(tensors=1, pairs=LLAMA + tensor(shape=(4, 0)))
    yield "half a block", file(tensors=1, pairs=LLAMA + tensor(shape=(16,), kind=8))
    yield "axes whose product overflows", file(tensors=1, pairs=LLAMA + tensor(shape=(2**32, 2**32, 2**32)))
    yield "a tensor twice", file(tensors=2, pairs=LLAMA + tensor() + tensor(place=32))
    yield "tensors in the same place", file(tensors=2, pairs=LLAMA + tensor() + tensor("b"))
    yield "tensors that overlap", file(tensors=2, pairs=LLAMA + tensor(shape=(16,)) + tensor("b", place=32))
    yield "not aligned", file(tensors=1, pairs=LLAMA + tensor(place=8))
    yield "behind the end", file(tensors=1, pairs=LLAMA + tensor(shape=(100,)))
    yield "tokens that are a number", file(LLAMA + pair("tokenizer.ggml.tokens", U32, bytes(4)), keys=2)
    tokens = pair("tokenizer.ggml.tokens", LIST, elements(TEXT, 2, text("a") + text("b")))
    types = pair("tokenizer.ggml.token_type", LIST, elements(U32, 1, bytes(4)))
    yield "types of fewer tokens", file(LLAMA + tokens + types, keys=3)
    yield "nothing but a header", file()
    for name in VALUES[:12]:
        yield f"architecture {name!a}", file(pair("general.architecture", TEXT, text(name)))


def settings(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """A complete file in which one number of the model is another."""
    for key in (
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.rope.dimension_count",
        "llama.vocab_size",
    ):
        place = whole.index(text(key)) + len(text(key)) + 4
        for number in (0, 3, 2**31 - 1, 2**32 - 1):
            yield f"{key} {number}", whole[:place] + struct.pack("<I", number) + whole[place + 4 :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_gguf.llama()).read_bytes()


@pytest.fixture
def refused(run, tmp_path, in_time):
    """Ask for a model in a file of these bytes: code 3 and one line, in little time."""
    path = tmp_path / "stranger.gguf"

    def call(name: str, data: bytes) -> str:
        path.write_bytes(data)
        code, out, err = run("error", "--model", path, "--text", "embedded", "--n", 16, "--d", 4)
        assert (code, out, err.count("\n")) == (3, "", 1), (name, err)
        assert err.startswith(f"attnprobe: {path} cannot be read as a GGUF file: "), (name, err)
        return err

    return call


def test_damaged_and_lying_files_are_refused(refused, whole):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    errors = {name: refused(name, data) for name, data in cases(whole)}
    assert {name: says for name, says in REASONS.items() if says not in errors[name]} == {}
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


def test_files_with_other_numbers_than_their_tensors_are_refused(refused, whole):
    for name, data in settings(whole):
        refused(name, data)


def test_what_is_no_file(promise, tmp_path):
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    link = tmp_path / "link.gguf"
    link.symlink_to("/dev/zero")
    for path in (folder, link, Path("no.gguf"), Path("a" * 300 + ".gguf"), Path("\n.gguf")):
        assert promise("error", "--model", str(path), "--text", "embedded") == 3
