"""Safetensors files of queries, keys and values, written by `save_qkv` or by other programs.

Files of `save_qkv` hold ``layer{L}.window{W}.q``, (h, n, p), ``.k`` and ``.v``, (h_kv, n, p), and a metadata entry
``attnprobe`` with the facts of their source. Files of other programs hold ``q``, ``k``, ``v`` of these shapes or of
(n, p), an optional bool ``mask`` (n,), and optional metadata entries ``scale``, ``causal`` (``true`` or ``false``),
``sliding_window``, ``sinks``, ``softcap`` and ``positional``. Both may hold ``sink_logits`` (h,), the ``positions``
(n_q,) of queries that are not all tokens, with ``all_queries``, (h, n, p), ``key_positions`` (n,), ``bias`` (h or 1,
n_q, n) and ``own`` (h, n_q, p_v), what a model computes in place of exact attention.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import SourceError, UsageError, cut
from ..files import FORMS, parse_json, qkv_file, reading
from ..grammar.foreign import message
from ..grammar.lists import counted
from ..grammar.metadata import OF_LAYERS, QKVMetadata
from ..qkv import QKV, check_positions
from .folder import sha256_of
from .queries import Queries
from .spec import DTYPES, Source, SourceSpec, attention_lines, check_sizes

SCHEMA = 1
ENTRY = "attnprobe"
EXTRA = ("sink_logits", "positions", "all_queries", "key_positions", "bias", "own")  # may be absent
OURS = re.compile(rf"layer([0-9]{{1,9}})\.window([0-9]{{1,9}})\.([qkv]|{'|'.join(EXTRA)})")
PLAIN = ("causal", *OF_LAYERS)  # metadata of other programs
STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class FileSource(Source):
    """Q, K, V from a safetensors file. Its facts hold the model and the text if the file states them.

    Raises:
        SourceError: the file is missing, is not safetensors, or has tensors of other names, shapes or dtypes.
    """

    def __init__(self, spec: SourceSpec, device: torch.device, *, notify: Callable[[str], None] = lambda line: None):
        self.path, self.device, self.dtype = qkv_file(str(spec.qkv)), device, DTYPES[spec.dtype]
        self.name = str(spec.qkv)
        self.selection = None if spec.queries is None else Queries(spec.queries)
        with reading(self.name, SourceError):  # a damaged header may raise anything
            with self._opened() as file:
                names = list(file.keys())
                self._shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
                stored = {name: file.get_slice(name).get_dtype() for name in names}
                metadata = file.metadata() or {}
            self._ours = any(map(OURS.fullmatch, names))
            self.metadata = self._read_metadata(metadata)
            self._pairs = self._find_pairs()
            self._check_metadata()
            self.n = self.default_n = min(self._tokens(*pair) for pair in self._pairs)
            layers = [layer for layer, _ in self._pairs]
            self.layers, self.windows = max(layers) + 1, 1 + max(window for _, window in self._pairs)
            shapes = [self._shape(*pair, "q") for pair in self._pairs]
            self.heads, p = shapes[0][0], shapes[0][2]
            dtypes = self._dtypes(stored)
            if "float64" in dtypes and self.dtype != torch.float64:
                notify(f"{self.name} holds float64: measured in {spec.dtype} (--dtype float64 keeps it)")
        origin = self.metadata.facts or {}
        if "mask" in self._shapes and self._shapes["mask"] != (self.n,):
            shape = self._shapes["mask"]
            raise SourceError(f"{self.name}: mask: needs shape ({self.n},), dtype bool; it has shape {shape}")
        axes = f"{self.heads} heads of {self.n} tokens; the order of axes is (heads, tokens, dimension)"
        in_doubt = [f"{self.name}: {axes}"] if self.heads > self.n and self.metadata.facts is None else []
        self.local = tuple(layer for layer in self.available if self.metadata.of("sliding_window", layer) is not None)
        sinks = any(name.split(".")[-1] == "sink_logits" for name in names)
        sinks = sinks or any(self.metadata.of("sinks", layer) for layer in self.available)
        self.facts = {
            "qkv": self.name,
            "qkv_sha256": sha256_of(self.path),
            "stored_dtype": ",".join(dtypes),
            "stored_n": self.n,
            "dtype": spec.dtype,
            "p": p,
            "heads": self.heads,
            "fallback": [*_lines_of(origin.get("fallback")), *in_doubt],
            **({"origin": origin} if origin else {}),
            **({"causal": True} if self.metadata.causal else {}),
            **({"sliding_window": self.metadata.of("sliding_window", self.local[0])} if self.local else {}),
            **({"sinks": True} if sinks else {}),
            **({} if self.selection is None else {"queries": self.selection.fact}),
        }

    def _dtypes(self, stored: Mapping[str, str]) -> list[str]:
        """The dtypes in which Q, K and V are stored, from safetensors' name of each tensor's dtype."""
        measured = [name for name in stored if name.split(".")[-1] in ("q", "k", "v", "all_queries")]
        for name in measured:
            if stored[name] not in STORED:
                every = ", ".join(STORED.values())
                raise SourceError(f"{self.name}: {name} is stored as {stored[name]}, not as one of {every}")
        return sorted({STORED[stored[name]] for name in measured})

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """The head numbers that the file states, otherwise those that every layer has."""
        if self.metadata.heads is not None:
            return tuple(self.metadata.heads)
        return tuple(range(min(self._shape(*pair, "q")[0] for pair in self._pairs)))

    @property
    def available(self) -> tuple[int, ...]:
        return tuple(sorted({layer for layer, _ in self._pairs}))

    def check(self, n: int, windows: int, layers: Sequence[int]) -> None:
        check_sizes(n, windows)
        if not layers:
            raise UsageError("layer: name at least one")
        for layer in layers:
            if layer not in self.available:
                raise UsageError(f"layer {layer}: {self.name} has {counted('layer', self.available)}")
            for window in range(windows):
                if (layer, window) not in self._pairs:
                    has = sorted(w for at, w in self._pairs if at == layer)
                    raise UsageError(f"window {window} of layer {layer}: {self.name} has {counted('window', has)}")
                tokens = self._tokens(layer, window)
                if n > tokens:
                    raise UsageError(f"n={n}: {self.name} holds {tokens} tokens; choose a smaller n")
        if self.selection is not None:
            self.selection.positions(n)

    def qkv(self, n: int, layers: Sequence[int], window: int) -> dict[int, QKV]:
        """The first ``n`` tokens of each layer, bit for bit if the dtype is that of the file.

        Raises:
            UsageError: see `Source.check`.
            SourceError: a tensor that `QKV` refuses (an empty axis, NaN).
        """
        self.check(n, window + 1, layers)
        return {layer: self._read(n, layer, window) for layer in sorted(set(layers))}

    def describe(self) -> list[str]:
        f = self.facts
        lines = [
            f"qkv: {f['qkv']}, sha256 {f['qkv_sha256']}, stored as {f['stored_dtype']}",
            f"heads: {counted('layer', self.available)}, {f['heads']} head{'s' * (f['heads'] != 1)}, p={f['p']}, "
            f"{f['stored_n']} tokens",
        ]
        lines += attention_lines(f)
        origin = f.get("origin")
        lines += [f"origin {key}: {value}" for key, value in (origin or {}).items() if value not in (None, [])]
        return lines

    def _read(self, n: int, layer: int, window: int) -> QKV:
        with self._opened() as file:
            mask = file.get_tensor("mask")[:n] if "mask" in self._shapes else None
            logits = self._tensor(file, layer, window, "sink_logits")
            rows, positions = self._rows(n, layer, window, self._tensor(file, layer, window, "positions"))
            queries = self._tensor(file, layer, window, "all_queries")
            of_keys = self._tensor(file, layer, window, "key_positions")
            bias, own = (self._tensor(file, layer, window, name) for name in ("bias", "own"))
            queried = slice(n) if rows is None else rows
            bias = bias if bias is None else bias[..., queried, :n].to(self.device, self.dtype)
            own = (
                None if own is None or n < self._tokens(layer, window) else own[:, queried].to(self.device, self.dtype)
            )
            positioned = self._name(layer, window, "positions") in self._shapes
            holds_all = not positioned and self._queries(layer, window) == self._tokens(layer, window)
            if queries is None and self.selection is not None and holds_all:
                queries = file.get_tensor(self._name(layer, window, "q"))
            if queries is not None:
                queries = (queries if queries.dim() == 3 else queries[None])[:, :n].to(self.device, self.dtype)
            tensors = self._projections(file, n, layer, window, rows)
        if queries is not None:
            of_rows = queries if positions is None else queries[:, positions.to(self.device)]
            if not torch.equal(of_rows, tensors[0] if tensors[0].dim() == 3 else tensors[0][None]):
                raise self._refused(layer, window, UsageError("all_queries: the rows of q are not among them"))
        try:
            return QKV(
                *tensors,
                scale=self.metadata.of("scale", layer),
                mask=mask,
                heads=self.metadata.heads,
                label={"layer": layer, "window": window, "n": n, **self.facts},
                causal=self.metadata.causal,
                positions=positions,
                sliding_window=self.metadata.of("sliding_window", layer),
                sinks=self.metadata.of("sinks", layer) or 0,
                sink_logits=logits,
                all_queries=queries,
                key_positions=None if of_keys is None else of_keys[:n],
                bias=bias,
                softcap=self.metadata.of("softcap", layer),
                positional=self.metadata.of("positional", layer) or 0,
                own=own,
            )
        except UsageError as error:
            raise self._refused(layer, window, error) from error

    def _projections(self, file: Any, n: int, layer: int, window: int, rows: Tensor | None) -> list[Tensor]:
        """Q at the selected rows, K and V of the first n tokens, each (h, ·, p) or (·, p) as stored."""
        tensors = []
        for axis in "qkv":
            name = self._name(layer, window, axis)
            piece = file.get_slice(name)  # reads from the file only the numbers that are sliced
            if axis == "q" and rows is not None:
                tensor = file.get_tensor(name)[..., rows, :]
            else:
                tensor = piece[:n] if len(self._shapes[name]) == 2 else piece[:, :n]
            # A copy, because safetensors maps the file: tensors of the map would change with it.
            tensors.append(tensor.to(self.device, self.dtype, copy=True).contiguous())
        return tensors

    def _rows(self, n: int, layer: int, window: int, positions: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The selected rows of Q and their positions, (n_q,) int64 each; both None for the first n tokens.

        Args:
            positions: the positions of all rows of Q, if the file states them.
        """
        stored, tokens = self._queries(layer, window), self._tokens(layer, window)
        if positions is None and stored == tokens and self.selection is None:
            return None, None
        if positions is None:
            positions = torch.arange(tokens - stored, tokens)
        if self.selection is None:
            rows = (positions < n).nonzero()[:, 0]
            if len(rows) == 0:
                raise UsageError(f"n={n}: all queries of {self.name} come after its first {n} tokens")
            return rows, positions[rows]
        row_of = {position: row for row, position in enumerate(positions.tolist())}
        selected = self.selection.positions(n)
        if len(row_of) < len(positions):
            raise UsageError(f"queries {self.selection.text}: two queries of {self.name} share a position")
        absent = [position for position in selected.tolist() if position not in row_of]
        if absent:
            raise UsageError(f"queries {self.selection.text}: {self.name} holds no query of token {absent[0]}")
        return torch.tensor([row_of[position] for position in selected.tolist()]), selected

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            file = safe_open(self.path, framework="pt")
        except (SafetensorError, OSError, ValueError) as error:
            raise SourceError(f"{self.name} is not a complete safetensors file: {error}") from error
        with file:
            yield file

    def _name(self, layer: int, window: int, axis: str) -> str:
        return f"layer{layer}.window{window}.{axis}" if self._ours else axis

    def _shape(self, layer: int, window: int, axis: str) -> tuple[int, ...]:
        shape = self._shapes[self._name(layer, window, axis)]
        return shape if len(shape) == 3 else (1, *shape)

    def _tokens(self, layer: int, window: int) -> int:
        return self._shape(layer, window, "k")[1]

    def _queries(self, layer: int, window: int) -> int:
        return self._shape(layer, window, "q")[1]

    def _find_pairs(self) -> set[tuple[int, int]]:
        """The (layer, window) pairs of the file. It refuses incomplete pairs and shapes that do not match."""
        names = list(self._shapes)
        has = f"it has {', '.join(name[:80] for name in names[:8]) or 'no tensors'}{' …' if len(names) > 8 else ''}"
        ours = [match for name in names if (match := OURS.fullmatch(name))]
        pairs = {(int(match[1]), int(match[2])) for match in ours} or {(0, 0)}
        expected = {self._name(*pair, axis) for pair in pairs for axis in "qkv"}
        absent = sorted(expected - set(names))
        optional = {self._name(*pair, name) for pair in pairs for name in EXTRA} | ({"mask"} if not ours else set())
        strange = sorted(set(names) - expected - optional)
        if absent or strange:
            wrong = f"no tensor {absent[0]}" if absent else f"an unknown tensor {strange[0][:80]}"
            raise SourceError(f"{self.name} has {wrong}: it needs {FORMS}; {has}")
        for name in sorted(expected):
            if len(self._shapes[name]) not in (2, 3):
                raise SourceError(f"{self.name}: {name} has shape {self._shapes[name]}, not (heads, tokens, dimension)")
            if 0 in self._shapes[name]:
                raise SourceError(f"{self.name}: {name} has shape {self._shapes[name]}, an axis of length 0")
        for pair in sorted(pairs):
            positioned = self._name(*pair, "positions") in names or self.metadata.causal
            if self._queries(*pair) != self._tokens(*pair) and not positioned:
                raise SourceError(
                    f"{self.name}: {self._name(*pair, 'q')} has {self._queries(*pair)} tokens, "
                    f"{self._name(*pair, 'k')} {self._tokens(*pair)}; queries that are not all tokens need positions"
                )
            of_k, of_v = (self._shape(*pair, axis)[1] for axis in "kv")
            if of_k != of_v:
                raise SourceError(f"{self.name}: {self._name(*pair, 'v')}: {of_v} tokens, but k has {of_k}")
            heads, _, p = self._shape(*pair, "q")
            name = self._name(*pair, "all_queries")
            if name in names and self._shape(*pair, "all_queries") != (heads, of_k, p):
                raise SourceError(f"{self.name}: {name} has shape {self._shapes[name]}, not {(heads, of_k, p)}")
        return pairs

    def _read_metadata(self, texts: dict[str, str]) -> QKVMetadata:
        """The metadata: our entry, or those of another program."""
        entry: Any = texts
        if ENTRY in texts:
            try:
                entry = parse_json(texts[ENTRY])
                schema = entry["schema"]
            except (ValueError, KeyError, TypeError) as error:
                raise SourceError(f"{self.name}: its metadata '{ENTRY}' are damaged: {message(error)}") from error
            if schema != SCHEMA:
                raise SourceError(f"{self.name}: schema {cut(str(schema))}, but this version reads schema {SCHEMA}")
        return QKVMetadata.read(self.name, entry, SourceError, () if ENTRY in texts else PLAIN)

    def _check_metadata(self) -> None:
        """Refuse metadata and positions that do not fit to the tensors."""
        if fault := self.metadata.fault(self.available):
            raise SourceError(f"{self.name}: {fault}")
        for pair in sorted(self._pairs):
            heads, stated = self._shape(*pair, "q")[0], self.metadata.heads
            if stated is not None and len(stated) != heads:
                raise SourceError(f"{self.name}: metadata heads: {len(stated)} numbers for {heads} heads")
            name = self._name(*pair, "positions")
            if name in self._shapes:
                with self._opened() as file:
                    positions = file.get_tensor(name)
                try:
                    check_positions(positions, self._queries(*pair), self._tokens(*pair), self.metadata.causal)
                except UsageError as error:
                    raise self._refused(*pair, error) from error

    def _refused(self, layer: int, window: int, error: UsageError) -> SourceError:
        where = f"layer{layer}.window{window}." if self._ours else ""
        return SourceError(f"{self.name}: {where}{error}")

    def _tensor(self, file: Any, layer: int, window: int, name: str) -> Tensor | None:
        """An optional tensor of a layer and window; None if there is none."""
        name = self._name(layer, window, name)
        return file.get_tensor(name) if name in self._shapes else None


def _lines_of(value: Any) -> list[str]:
    """The strings of a list in the metadata; empty if it is not a list."""
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []
