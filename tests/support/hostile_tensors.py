"""Files of Q, K, V and of sets of keys, good and hostile, and an independent reading of them in float64.

`cases` draws files. Each case starts from a good file; none, one or two entries are then replaced by values of other
types, shapes and sizes, or bytes are damaged. `reading` is a second reader. It takes what the documentation describes,
and computes the error of the output row by row.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
NUMBERS = ("", "nan", "inf", "-1", "0", "1", "2", "3", "1.5", "1e400", str(2**80), "9" * 5000, "x", "true", "[1]", "{}")
JSON = (None, True, 0, -1, 1, 2, 1.5, "2", "x", 2**80, [], [1], {}, {"0": 2}, {"0": None}, {"0": 1.5}, {"7": 2})
HEADS = ([0], [True, False], [0.5, 1], [-1, 0], [0, 2**70], ["a", "b"], [0, 0], None, 3, {}, [[0]])
DEEP: Any = {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}}


class Refused(Exception):
    """The documentation does not allow the file, or the request."""


@dataclass
class Case:
    """A file of Q, K, V, perhaps one of sets of keys, and what is asked of them.

    Attributes:
        changes: what was replaced, in words. qkv, sets: the bytes of the files.
    """

    number: int
    changes: list[str] = field(default_factory=list)
    qkv: bytes = b""
    sets: bytes | None = None
    n: int | None = None
    head: int | None = None
    queries: str | None = None
    lookahead: bool = False

    def arguments(self, qkv: str, sets: str, out: str) -> list[str]:
        """The command line that measures the files of these names."""
        method = "vmean" if self.sets is None else f"selection:{sets}" + ":lookahead=allow" * self.lookahead
        args = ["error", "--method", method, "--qkv", qkv, "--dtype", "float64", "--no-matrix", "--out", out]
        args += [] if self.n is None else ["--n", str(self.n)]
        args += [] if self.head is None else ["--head", str(self.head)]
        return args + ([] if self.queries is None else ["--queries", self.queries])


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Cases 0 … count - 1; each depends on its number and the seed only."""
    for number in range(count):
        yield _case(number, random.Random(f"{seed}.{number}"))


def _case(number: int, draw: random.Random) -> Case:
    made = torch.Generator().manual_seed(draw.randrange(2**31))
    case = Case(number)
    h_kv = draw.choice((1, 2))
    h, n, p = h_kv * draw.choice((1, 2, 4)), draw.choice((6, 9, 12)), draw.choice((2, 4))
    causal, ours = draw.random() < 0.6, draw.random() < 0.5
    place = "layer0.window0." if ours else ""
    shapes = {"q": (h, n, p), "k": (h_kv, n, p), "v": (h_kv, n, draw.choice((p, p + 1)))}
    tensors = {place + axis: torch.randn(shape, generator=made) for axis, shape in shapes.items()}
    dtype = draw.choice(FLOATS)
    tensors = {name: x.to(dtype) for name, x in tensors.items()}
    entry: dict[str, Any] = {"causal": True} if causal else {}
    if draw.random() < 0.3:
        entry["scale"] = {"0": 0.5} if ours else 0.5
    if draw.random() < 0.3:
        entry["sliding_window"] = {"0": 3} if ours else 3
        entry |= {"sinks": 1} if causal and draw.random() < 0.5 else {}
    if ours and draw.random() < 0.5:
        entry["heads"] = [2 * head + 1 for head in range(h)]
    if draw.random() < 0.2:
        tensors[place + "sink_logits"] = torch.randn(h, generator=made).to(dtype)
    if draw.random() < 0.2:
        some = sorted(draw.sample(range(n), n - 3))
        if draw.random() < 0.5:
            tensors[place + "all_queries"] = tensors[place + "q"]
        tensors[place + "q"] = tensors[place + "q"][:, some]
        tensors[place + "positions"] = torch.tensor(some)
    elif not ours and draw.random() < 0.2:
        tensors["mask"] = torch.arange(n) % 4 != 1
    rows = tensors[place + "q"].shape[1]
    first = int(tensors.get(place + "positions", torch.zeros(1, dtype=torch.int64))[0])
    if draw.random() < 0.2:
        case.n = draw.choice((3, n - 1, n, n + 1))
    if draw.random() < 0.15:
        case.queries = draw.choice(("last:2", f"{first},{n - 1}", "every:2"))
    numbers = entry.get("heads") or list(range(h))
    if draw.random() < 0.5:
        case.head = draw.choice(numbers)
    sets, about = {}, {}
    if place + "sink_logits" in tensors or draw.random() < 0.6:  # V-Mean refuses sinks
        rows = rows if case.queries is None and case.n is None else draw.choice((rows, 2))
        sets, about = _sets(draw, made, (h, h_kv, rows, n), causal, numbers)
        case.lookahead = draw.random() < 0.6
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        of_sets = bool(sets) and draw.random() < 0.5
        change = draw.choice(SETS_CHANGES if of_sets else QKV_CHANGES)
        case.changes.append(f"{change.__name__[1:]}: {change(draw, *((sets, about) if of_sets else (tensors, entry)))}")
    metadata = {name: _text(value) for name, value in entry.items()}
    if ours:
        metadata = {"attnprobe": json.dumps({"schema": 1, **entry})}
    case.qkv = _saved(tensors, metadata)
    case.sets = _saved(sets, {name: _text(value) for name, value in about.items()}) if sets else None
    if draw.random() < 0.12:
        name = "qkv" if case.sets is None or draw.random() < 0.5 else "sets"
        how = draw.choice(DAMAGES)
        case.changes.append(f"{name} {how.__name__[1:]}")
        setattr(case, name, how(draw, getattr(case, name)))
    return case


def _sets(
    draw: random.Random, made: torch.Generator, sizes: tuple[int, ...], causal: bool, numbers: list[int]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    h, h_kv, rows, n = sizes
    of_kv = draw.random() < 0.5
    heads = h_kv if of_kv else h
    about: dict[str, Any] = {"heads_of": "kv" if of_kv else "query"} if draw.random() < 0.5 else {}
    if not of_kv and (numbers[0] or draw.random() < 0.5):
        about["heads"] = numbers
    if of_kv and draw.random() < 0.5:
        about["heads"] = list(range(h_kv))[::-1]
    if draw.random() < 0.3:
        about["causal"] = causal
    if draw.random() < 0.3:
        sizes_of_block = draw.choice(((2, 3), (4, 4)))
        shape = (heads, -(-rows // sizes_of_block[0]), -(-n // sizes_of_block[1]))
        about["block"] = ",".join(map(str, sizes_of_block))
        return {"blocks": torch.rand(shape, generator=made) < 0.7}, about
    order = torch.rand(heads, rows, n, generator=made).argsort(-1)[..., :3]
    sets = {"indices": order.masked_fill(torch.rand(order.shape, generator=made) < 0.2, -1).to(draw.choice(WHOLE[:4]))}
    if draw.random() < 0.3:
        sets["weights"] = torch.rand(order.shape, generator=made).clamp(min=0.1)
        about |= {"weights": "log_bias"} if draw.random() < 0.5 else {}
    return sets, about


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _saved(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    return save({name: x.contiguous() for name, x in tensors.items()}, metadata)


# what replaces a part of a good file

Change = Callable[[random.Random, dict[str, Tensor], dict[str, Any]], str]


def _value(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(("scale", "causal", "sliding_window", "sinks"))
    entry[name] = draw.choice(NUMBERS + JSON)
    return f"{name} {str(entry[name])[:30]}"


def _numbers(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    entry["heads"] = draw.choice(HEADS)
    return str(entry["heads"])


def _facts(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    entry["facts"] = draw.choice((DEEP, [1], 1, "x", {"model": 1}, {"fallback": "x"}, {"\x1b": 2**200}))
    return str(entry["facts"])[:30]


def _shape(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(sorted(tensors))
    x = torch.atleast_1d(tensors[name])
    axis = draw.randrange(x.dim())
    first, shorter = x.narrow(axis, 0, min(1, x.shape[axis])), x.narrow(axis, 0, max(0, x.shape[axis] - 1))
    one = x[0] if len(x) else x
    tensors[name] = draw.choice((shorter, torch.cat([x, first], axis), x[None], x.flatten(), x[:0], one))
    return f"{name} {tuple(tensors[name].shape)}"


def _dtype(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(sorted(tensors))
    others = (*FLOATS, *WHOLE, torch.uint64, torch.uint16, torch.bool, torch.complex64, torch.float8_e4m3fn)
    tensors[name] = tensors[name].to(draw.choice(others))
    return f"{name} {tensors[name].dtype}"


def _number(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(sorted(tensors))
    x = tensors[name].clone()
    value = draw.choice((math.nan, math.inf, -1e30, 0.5) if x.is_floating_point() else (-2, -1, 0, 3, 11, 100))
    if x.numel():
        x.view(-1)[draw.randrange(x.numel())] = value
    tensors[name] = x
    return f"{name} {value}"


def _name(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(sorted(tensors))
    other = draw.choice(("Q", "layer0.q", "layer1.window0.q", "layer0.window1.indices", "", "\x1b[2J", "x" * 3000))
    tensors[other] = tensors.pop(name)
    return f"{name} is {other[:20]!r}"


def _absent(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(sorted(tensors))
    del tensors[name]
    tensors |= {"spare": torch.zeros(1)} if not tensors else {}
    return name


def _positions(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = next(("layer0.window0." for name in tensors if name.startswith("layer0.window0.")), "") + "positions"
    values = draw.choice(([0, 1], [0, 1, 2, 3, 4, 5], [-1, 1, 2], [5, 4, 3, 2, 1, 0], [1] * 6, list(range(12))))
    tensors[name] = torch.tensor(values, dtype=draw.choice((torch.int64, torch.int64, torch.int32, torch.float32)))
    return f"{values} {tensors[name].dtype}"


def _about(draw: random.Random, tensors: dict[str, Tensor], entry: dict[str, Any]) -> str:
    name = draw.choice(("causal", "offset", "block", "weights", "heads_of", "heads"))
    entry[name] = draw.choice((*NUMBERS, "query", "kv", "2,2", "0,1", "log_bias", "[", "null", "[true, false]"))
    return f"{name} {str(entry[name])[:30]}"


QKV_CHANGES: list[Change] = [_value, _value, _value, _numbers, _facts, _shape, _shape, _dtype, _number, _name, _absent]
QKV_CHANGES += [_positions]
SETS_CHANGES: list[Change] = [_about, _about, _about, _numbers, _shape, _shape, _dtype, _dtype, _number, _number]
SETS_CHANGES += [_absent, _name]


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _lie(draw: random.Random, data: bytes) -> bytes:
    """The header states another type, shape or place of a tensor."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    name = draw.choice([name for name in header if name != "__metadata__"])
    key, value = draw.choice(
        (
            ("dtype", "F64"),
            ("dtype", "\x1b[31m"),
            ("shape", [10**9, 10**9, 4]),
            ("shape", [2**62, 4, 4]),
            ("shape", [-1, 4]),
            ("data_offsets", [0, 2**60]),
            ("data_offsets", [8, 0]),
        )
    )
    text = json.dumps(header | {name: header[name] | {key: value}}).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def _length(draw: random.Random, data: bytes) -> bytes:
    return struct.pack("<Q", draw.choice((0, 1, 2**40, 2**64 - 1))) + data[8:]


def _noise(draw: random.Random, data: bytes) -> bytes:
    """Not safetensors at all."""
    return draw.choice((b"", b"no tensors", b"\x93NUMPY" + data, bytes(reversed(data))))


DAMAGES = [_cut, _lie, _length, _noise]


# the independent reading


def reading(case: Case) -> dict[int, tuple[float, float]]:
    """``‖O~ - O‖_F`` and ``‖O‖_F`` of each head that a case asks for, by its number.

    Raises:
        Refused: the documentation does not allow the file or the request.
    """
    tensors, stated = _loaded(case.qkv)
    place = "layer0.window0." if any(name.startswith("layer") for name in tensors) else ""
    optional = {"sink_logits", "positions", "all_queries"} | (set() if place else {"mask"})
    names = {name.removeprefix(place) for name in tensors}
    _need({"q", "k", "v"} <= names <= {"q", "k", "v"} | optional and all(name.startswith(place) for name in tensors))
    tensors = {name.removeprefix(place): x for name, x in tensors.items()}
    _need(all(tensors[axis].dtype in FLOATS and tensors[axis].dim() in (2, 3) for axis in "qkv"))
    q, k, v = (tensors[axis].double() if tensors[axis].dim() == 3 else tensors[axis].double()[None] for axis in "qkv")
    _need(0 not in (*q.shape, *k.shape, *v.shape))
    (h, n_q, p), (h_kv, n_k, _) = q.shape, k.shape
    _need(h % h_kv == 0 and v.shape[:2] == k.shape[:2] and k.shape[2] == p)
    if "attnprobe" in stated:
        entry = json.loads(stated["attnprobe"])
        _need(not isinstance(entry.get("facts", {}), (list, int, str)) and entry.get("facts") != DEEP)
        _need("\x1b" not in (entry.get("facts") or {}))
    else:
        entry = {name: text for name, text in stated.items() if name != "heads"}
    every = tensors.get("all_queries")
    _need(every is None or (every.dtype in FLOATS and every.dim() in (2, 3)))
    causal = _truth(entry.get("causal", False))
    scale = _of_layer(entry, "scale", _positive, whole=False)
    scale = p**-0.5 if scale is None else float(scale)
    width, sinks = _of_layer(entry, "sliding_window", _positive), _of_layer(entry, "sinks", _count) or 0
    _need(not sinks or causal)
    numbers = entry.get("heads")
    numbers = list(range(h)) if numbers is None else _heads(numbers, h)
    positions = tensors.get("positions")
    if positions is None:
        _need(n_q == n_k or (causal and n_q < n_k))
        positions = torch.arange(n_k - n_q, n_k)
    else:
        _need(positions.dtype == torch.int64 and positions.shape == (n_q,))
        _need(int(positions.min()) >= 0 and int(positions.max()) < n_k)
        _need(not causal or len(set(positions.tolist())) == n_q)
    if every is not None:
        every = every.double() if every.dim() == 3 else every.double()[None]
        _need(every.shape == (h, n_k, p))
    n = n_k if case.n is None else case.n
    _need(2 <= n <= n_k)
    wanted = [row for row, position in enumerate(positions.tolist()) if position < n]
    if case.queries is not None:
        asked = _asked(case.queries, n)
        _need(len(set(positions.tolist())) == n_q and set(asked) <= set(positions.tolist()))
        wanted = [positions.tolist().index(position) for position in asked]
    _need(bool(wanted))
    at, k, v = positions[wanted], k[:, :n], v[:, :n]
    q = q[:, wanted]
    _need(every is None or (bool(torch.isfinite(every[:, :n]).all()) and torch.equal(every[:, at], q)))
    _need(all(bool(torch.isfinite(x).all()) for x in (q, k, v)))
    logits = tensors.get("sink_logits")
    _need(logits is None or (logits.shape == (h,) and logits.dtype in FLOATS and bool(torch.isfinite(logits).all())))
    valid = tensors.get("mask", torch.ones(n_k, dtype=torch.bool))
    if "mask" in tensors:
        _need(valid.dtype == torch.bool and valid.shape == (n_k,) and bool(valid[:n].any()))
        _need(at.tolist() == list(range(n)))
    _need(case.head is None or case.head in numbers)
    valid = valid[:n]
    q, k, v, at = (
        q[:, valid] if "mask" in tensors else q,
        k[:, valid],
        v[:, valid],
        at[valid] if "mask" in tensors else at,
    )
    at = torch.arange(k.shape[1]) if "mask" in tensors else at
    chosen = None if case.sets is None else _Sets(case, h, h_kv, numbers, at, k.shape[1], causal)
    heads = numbers if case.head is None else [case.head]
    actual = {}
    for number in heads:
        row = numbers.index(number)
        kv = row // (h // h_kv)
        sink = -math.inf if logits is None else float(logits[row])
        pairs = [
            _row(q[row, i] @ k[kv].T * scale, v[kv], _seen(c, k.shape[1], causal, width, sinks), sink, chosen, row, i)
            for i, c in enumerate(at.tolist())
        ]
        exact, other = (torch.stack(rows) for rows in zip(*pairs, strict=True))
        actual[number] = float((other - exact).norm()), float(exact.norm())
    return actual


def _row(
    scores: Tensor, v: Tensor, seen: list[int], sink: float, chosen: _Sets | None, head: int, row: int
) -> tuple[Tensor, Tensor]:
    """A row of the exact output, and of that of the sets; without sets the row of V-Mean."""
    exact = _attended(scores, v, {key: 0.0 for key in seen}, sink)
    if chosen is None:
        return exact, v[seen].mean(0)
    keys = chosen.keys(head, row)
    return exact, _attended(scores, v, {key: bias for key, bias in keys.items() if key in seen}, sink)


def _attended(scores: Tensor, v: Tensor, bias: dict[int, float], sink: float) -> Tensor:
    terms = {key: float(scores[key]) + one for key, one in bias.items()}
    largest = max([*terms.values(), sink], default=0.0)
    if largest == -math.inf:
        return torch.zeros(v.shape[1], dtype=torch.float64)
    weights = {key: math.exp(term - largest) for key, term in terms.items()}
    total = sum(weights.values()) + math.exp(sink - largest)
    return sum((weight / total * v[key] for key, weight in weights.items()), torch.zeros(v.shape[1], dtype=v.dtype))


def _seen(at: int, n_k: int, causal: bool, width: int | None, sinks: int) -> list[int]:
    keys = range(at + 1 if causal else n_k)
    return [key for key in keys if width is None or abs(key - at) < width or key < sinks]


class _Sets:
    """The sets of keys of a file."""

    def __init__(self, case: Case, h: int, h_kv: int, numbers: list[int], at: Tensor, n_k: int, causal: bool):
        assert case.sets is not None
        tensors, about = _loaded(case.sets)
        kinds = {
            name: kind for name in tensors if (kind := name.rpartition(".")[2]) in ("indices", "blocks", "weights")
        }
        for name, kind in kinds.items():
            allowed = {"indices": WHOLE, "blocks": (torch.bool,), "weights": FLOATS}[kind]
            _need(tensors[name].dtype in allowed and tensors[name].dim() == 3 and 0 not in tensors[name].shape)
        place = "layer0.window0." if any(name.startswith("layer0.window0.") for name in tensors) else ""
        found = {kind: tensors[place + kind] for kind in ("indices", "blocks", "weights") if place + kind in tensors}
        _need(("indices" in found) != ("blocks" in found))
        self.kind = about.get("weights", "probability")
        _need(self.kind in ("probability", "log_bias") and about.get("heads_of", "kv") in ("kv", "query"))
        _need("causal" not in about or _truth(about["causal"]) == causal)
        _need("offset" not in about or _count(_parsed(about["offset"])) == int(at[0]))
        block = [_positive(_parsed(part)) for part in about["block"].split(",")] if "block" in about else None
        _need(block is None or len(block) in (1, 2))
        sets = found.get("indices", found.get("blocks"))
        assert sets is not None
        self.places = self._heads(sets, about, h, h_kv, numbers)
        self.weights, self.sets, self.at, self.causal = found.get("weights"), sets, at, causal
        if "blocks" in found:
            _need(block is not None)
            self._spread(block[0], block[-1], n_k)  # type: ignore[index]
        _need(self.sets.shape[1] == len(at))
        _need(self.weights is None or ("indices" in found and self.weights.shape == self.sets.shape))
        ahead = "indices" in found and causal and not case.lookahead
        heads = [numbers.index(number) for number in (numbers if case.head is None else [case.head])]
        _need(set(heads) <= set(self.places))
        for head in heads:
            for row, c in enumerate(at.tolist()):
                keys = [key for key in self.sets[self.places[head], row].tolist() if key != -1]
                _need(all(0 <= key < n_k for key in keys) and len(set(keys)) == len(keys))
                _need(not ahead or all(key <= c for key in keys))
                bias = self.keys(head, row)
                used = [bias[key] for key in keys if not causal or key <= c]
                _need(all(not math.isnan(one) and one < math.inf for one in used))
                _need(self.weights is None or self.kind != "probability" or all(one >= 0 for one in used))

    @staticmethod
    def _heads(sets: Tensor, about: dict[str, str], h: int, h_kv: int, numbers: list[int]) -> dict[int, int]:
        """The place of the sets of each row of Q."""
        stated = about.get("heads")
        given = list(range(len(sets))) if stated is None else _heads(_parsed(stated), len(sets))
        of = about.get("heads_of")
        if of is None and h_kv < h:
            _need(stated is None or max(given) >= h_kv)
            of = "kv" if stated is None and len(sets) == h_kv else "query"
        wanted = {row: row // (h // h_kv) if of == "kv" else numbers[row] for row in range(h)}
        return {row: given.index(number) for row, number in wanted.items() if number in given}

    def _spread(self, of_rows: int, of_keys: int, n_k: int) -> None:
        """Blocks as keys, -1 in empty slots."""
        _need(self.sets.shape[1:] == (-(-len(self.at) // of_rows), -(-n_k // of_keys)))
        keys = torch.full((len(self.sets), len(self.at), n_k), -1)
        for head in range(len(self.sets)):
            for row in range(len(self.at)):
                for key in range(n_k):
                    if self.sets[head, row // of_rows, key // of_keys]:
                        keys[head, row, key] = key
        self.sets = keys

    def keys(self, head: int, row: int) -> dict[int, float]:
        """The keys of a row, each with the term that is added to its score."""
        place = self.places[head]
        actual = {}
        for slot, key in enumerate(self.sets[place, row].tolist()):
            weight = 1.0 if self.weights is None else float(self.weights[place, row, slot])
            if self.weights is None:
                bias = 0.0
            elif self.kind == "log_bias":
                bias = weight
            else:
                bias = -math.log(weight) if weight > 0 else math.nan
            if key >= 0:
                actual[key] = bias
        return actual


def _need(holds: bool) -> None:
    if not holds:
        raise Refused


def _loaded(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        tensors = load(data)
        size = struct.unpack("<Q", data[:8])[0]
        return tensors, json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except BaseException as error:  # whatever the library raises
        raise Refused from error


def _parsed(value: Any) -> Any:
    """A number or a list in a text; other values as they are."""
    if not isinstance(value, str):
        return value
    for parse in (int, float, json.loads):
        try:
            parsed = parse(value)
        except ValueError:
            continue
        return value if parsed is None else parsed
    return value


def _truth(value: Any) -> bool:
    _need(isinstance(value, bool) or str(value).lower() in ("true", "false"))
    return str(value).lower() == "true"


def _count(value: Any, least: int = 0) -> int:
    _need(type(value) is int and least <= value <= 2**53)
    return value


def _positive(value: Any, whole: bool = True) -> Any:
    if whole:
        return _count(value, 1)
    _need(type(value) in (int, float) and 0 < value <= 1e300)
    return value


def _of_layer(entry: dict[str, Any], name: str, check: Callable[..., Any], **more: bool) -> Any:
    value = entry.get(name)
    if isinstance(value, dict):
        _need(set(value) <= {"0"} and (name != "scale" or "0" in value))
        value = value.get("0")
    value = _parsed(value) if not isinstance(value, (list, dict)) else value
    return None if value is None else check(value, **more)


def _heads(numbers: Any, count: int) -> list[int]:
    _need(isinstance(numbers, list) and len(numbers) == count)
    numbers = [_count(_parsed(number)) for number in numbers]
    _need(len(set(numbers)) == count)
    return numbers


def _asked(queries: str, n: int) -> list[int]:
    kind, _, count = queries.partition(":")
    if kind == "last":
        return list(range(n - int(count), n))
    if kind == "every":
        return list(range(int(count) - 1, n, int(count)))
    asked = sorted({int(part) for part in queries.split(",")})
    _need(asked[-1] < n)
    return asked
