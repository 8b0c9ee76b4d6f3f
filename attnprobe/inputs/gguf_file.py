"""The header of a GGUF file, checked before a library reads the file.

A GGUF file holds, in this order: a magic number, a version, the numbers of tensors and of keys; the metadata, a key,
type and value each; the tensors, a name, shape, type and place each; and, aligned, the blocks of the tensors. Readers
trust these numbers. So each is compared with the length of the file first: a false one costs neither time nor memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import cut
from ..files import MIB, open_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
LARGEST = 64 * MIB  # the size limit of a header; that of Gemma 3, with 262,144 tokens, has 12 MiB
MOST = 2_000_000  # keys, elements of lists and tensors; Gemma 3 has 1.3 million
LONGEST = {"key": 2**16, "text": MIB, "token": 2**12, "tensor's name": 2**10}  # in bytes
AXES = 4
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
TOKENS = "tokenizer.ggml.tokens"
OF_EACH_TOKEN = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
LISTS = (TOKENS, *OF_EACH_TOKEN, "tokenizer.ggml.merges")
ALIGNMENT = "general.alignment"


@dataclass(frozen=True)
class Header:
    """What a GGUF file states about itself.

    Attributes:
        metadata: the values by their keys; of a list its length.
        shapes: the shapes of the tensors by their names, the fastest axis first. numbers: of all tensors.
    """

    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """The count of all weights."""
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def architecture(self) -> str:
        """The name of the architecture."""
        return self.metadata["general.architecture"]


def read_header(path: Path) -> Header:
    """The header of a GGUF file whose sizes, types and places agree with the file."""
    with open_regular(path, None) as file:
        return _Walk(file, path.stat().st_size).header()


class _Walk:
    """Reads a header from its start to its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.offset, self.elements = file, size, 0, 0

    def header(self) -> Header:
        if self.size < 4 or self.take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self.number("I")
        if version not in VERSIONS:
            # A small number of the other byte order has 0 in its 16 low bits.
            kind = "it is big-endian" if version & 0xFFFF == 0 else f"it is of version {version}"
            raise ValueError(f"{kind}; versions 2 and 3 are read, little-endian")
        tensors, keys = self.number("Q"), self.number("Q")
        self.count(tensors, "tensors")
        self.count(keys, "keys")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.text("key")
            if key in metadata:
                raise ValueError(f"its key {cut(key)} occurs twice")
            kind = self.number("I")
            metadata[key] = self.value(key, kind)
            if key in LISTS and kind != LIST:
                raise ValueError(f"its key {key} is not a list")
        if not isinstance(metadata.get("general.architecture"), str):
            raise ValueError("it states no general.architecture")
        for key in OF_EACH_TOKEN:
            if metadata.get(key, metadata.get(TOKENS)) != metadata.get(TOKENS):
                raise ValueError(f"its key {key} has {metadata[key]} elements for {metadata.get(TOKENS, 0)} tokens")
        shapes: dict[str, tuple[int, ...]] = {}
        blocks = []
        for _ in range(tensors):
            name, shape, begin, size = self.tensor()
            if name in shapes:
                raise ValueError(f"its tensor {cut(name)} occurs twice")
            shapes[name] = shape
            blocks.append((begin, begin + size, name))
        self.check_places(blocks, metadata.get(ALIGNMENT, 32))
        return Header(metadata, shapes)

    def take(self, size: int) -> bytes:
        # Both checks come before reading: a false size would otherwise be allocated.
        self.offset += size
        if self.offset > self.size:
            raise ValueError("it ends inside its header")
        if self.offset > LARGEST:
            raise ValueError(f"its header is larger than {LARGEST // MIB} MiB, the most that is read")
        data = self.file.read(size)
        if len(data) < size:
            raise ValueError("it ends inside its header")
        return data

    def number(self, form: str) -> Any:
        """The next number, by its code in `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def text(self, what: str) -> str:
        """The next text, behind its length."""
        size = self.number("Q")
        if size > LONGEST[what]:
            raise ValueError(f"a {what} has {size} bytes, and {LONGEST[what]} are allowed")
        return self.take(size).decode()

    def count(self, more: int, what: str) -> None:
        """Count elements that are about to be read."""
        self.elements += more
        if self.elements > MOST:
            raise ValueError(f"{more} {what}: its header has more than {MOST} entries")

    def value(self, key: str, kind: int) -> Any:
        """The next value of the metadata. Lists are skipped: their length is returned."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text("text")
        if kind != LIST:
            raise ValueError(f"its key {cut(key)} has the unknown type {kind}")
        element, length = self.number("I"), self.number("Q")
        self.count(length, f"elements of {cut(key)}")
        if element in SCALARS:
            self.take(length * struct.calcsize(f"<{SCALARS[element]}"))
        elif element == TEXT:
            for _ in range(length):
                self.text("token")
        else:
            raise ValueError(f"its key {cut(key)} is a list of the type {element}, which is not read")
        return length

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """The next tensor: its name and shape, and the place and size of its blocks."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, axes = self.text("tensor's name"), self.number("I")
        if not 1 <= axes <= AXES:
            raise ValueError(f"its tensor {cut(name)} has {axes} axes, not 1 to {AXES}")
        shape = tuple(self.number("Q") for _ in range(axes))
        kind, begin = self.number("I"), self.number("Q")
        if kind not in {known.value for known in GGML_QUANT_SIZES}:
            raise ValueError(f"its tensor {cut(name)} has the unknown type {kind}")
        length, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if 0 in shape or shape[0] % length:
            raise ValueError(f"its tensor {cut(name)} has rows of {shape[0]} numbers, not whole blocks of {length}")
        return name, shape, begin, prod(shape) // length * size

    def check_places(self, blocks: list[tuple[int, int, str]], alignment: Any) -> None:
        """Refuse blocks that overlap, lie outside of the file or are not aligned."""
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"its {ALIGNMENT} is {cut(str(alignment))}, not a power of 2")
        before = 0
        start = -(-self.offset // alignment) * alignment  # where the first block begins, behind the header
        for begin, end, name in sorted(blocks):
            if begin < before or begin % alignment:
                raise ValueError(f"its tensor {cut(name)} begins at {begin}: inside another one, or not aligned")
            if start + end > self.size:
                raise ValueError(
                    f"its tensor {cut(name)} ends {start + end - self.size} bytes behind the end of the file"
                )
            before = end
