"""The rotary positions (RoPE) of a model's queries, measured by what its attention modules do: see `ropes`.

A copy of the model reads a few tokens at chosen positions. Each attention module gets one random hidden state at all of
them, so that its queries differ by their position alone. RoPE turns pairs of coordinates of the query at position t by
t times their angle. The pairs and the angles are found from the queries, and verified on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import ceil, exp, log, pi
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .call import Angles, AttentionCall
from .interface import put, quiet, switched
from .numbering import bare_copy, names_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "attnprobe_rope"

SHORT = 2**5  # tokens of the short text, which shows whether angles depend on the length of a text
LEAST = 4  # tokens of it, if the model has fewer positions
LONG = 2**13  # tokens of the long text, unless the model has more positions
LONGEST = 2**17
READ = 2**10  # tokens of the long text of a model that does not take positions, and must read all of them
SAMPLES = 16  # queries at a position: so many that coordinates are not alike by chance
ROUNDING = 16  # the error of a query, in units of the rounding of its dtype
PHASE = 2.0**-21  # the relative error of an angle times a position in float32
DIGITS = 6  # of a base θ, which is a round number

_measured: WeakKeyDictionary[nn.Module, dict[str, Rope]] = WeakKeyDictionary()
_active: ContextVar[_Probe | None] = ContextVar(NAME, default=None)


@dataclass(frozen=True)
class Rope:
    """The angles of a module's RoPE, as in `AttentionCall`, in texts of at most ``tokens`` tokens."""

    angles: Angles
    tokens: int


def ropes(model: PreTrainedModel) -> Mapping[str, Rope]:
    """The RoPE of each attention module of a model, by the module's name.

    It lacks modules without RoPE, modules whose queries depend on the position in another way, and all modules of a
    model that does not read plain tokens. A model is measured once, by a copy with the same weights, so its state stays
    as it is. Cost: two forwards of at most 20 tokens; of `READ` tokens if the model does not take their positions.
    """
    if model not in _measured:
        found, names = _ropes(model), names_of(model).values()
        _measured[model] = {path: found[paths[0]] for paths in names if paths[0] in found for path in paths}
    return _measured[model]


def rope_of(known: Mapping[str, Rope], call: AttentionCall) -> Angles | None:
    """The RoPE of a call, from that of modules; None if it is not known, or not for so many tokens."""
    rope = known.get(call.module)
    return rope.angles if rope is not None and not call.cross and call.k.shape[2] <= rope.tokens else None


def _ropes(model: PreTrainedModel) -> dict[str, Rope]:
    found: dict[str, Rope] = {}
    if getattr(model, "main_input_name", None) != "input_ids":
        return found
    put(NAME, _attention)
    with quiet(), torch.no_grad():
        for stated in (True, False):
            known, explained = _of_modules(model, stated)
            found = known | found
            if explained:
                break
    return found


def _of_modules(model: PreTrainedModel, stated: bool) -> tuple[dict[str, Rope], bool]:
    """The RoPE of each module, and whether the queries of all other modules do not depend on the position.

    A RoPE is that of the longest text in which it is also that of a short text.

    Args:
        stated: whether the model is told positions; else it reads all tokens of a text.
    """
    *longer, least = _lengths(model, stated)
    short = _read(model, least, stated)
    found: dict[str, Rope] = {}
    rotations = {path: queries.rotation() for path, queries in short.items()}
    turning = [path for path, rotation in rotations.items() if rotation is not None and rotation.pairs]
    for tokens in (*longer, least):
        left = [path for path in turning if path not in found]
        texts = _read(model, tokens, stated) if left and tokens > least else short
        for path in left:
            rotation = texts[path].rotation() if path in texts else None
            if rotation is not None and short[path].turned_by(rotation):
                found[path] = Rope(texts[path].described(rotation), tokens)
    return found, bool(short) and None not in rotations.values()


@dataclass(frozen=True, eq=False)
class _Rotation:
    """Pairs (i, j) that turn at each token to ``x_i cos a - x_j sin a`` and ``x_i sin a + x_j cos a``."""

    pairs: list[tuple[int, int]]
    angles: Tensor  # (pairs,) float64

    def turned(self, x: Tensor, places: Tensor) -> Tensor:
        """Vectors x (…, p) at each position, (…, positions, p)."""
        i, j = torch.tensor(self.pairs).T
        phase = places[:, None] * self.angles  # (positions, pairs)
        a, b = x[..., None, i], x[..., None, j]
        turned = x[..., None, :].repeat(*[1] * (x.dim() - 1), len(places), 1)
        turned[..., i] = a * phase.cos() - b * phase.sin()
        turned[..., j] = a * phase.sin() + b * phase.cos()
        return turned


@dataclass(frozen=True, eq=False)
class _Queries:
    """The queries x (samples, positions, p) float64 of a module from one hidden state each, of length 1 at the first.

    Attributes:
        places: the positions, (positions,) float64. rounding: the error of a query by the rounding of its dtype.
    """

    x: Tensor
    places: Tensor
    rounding: float

    def rotation(self) -> _Rotation | None:
        """The rotation of the queries, without pairs if they do not move; None if no rotation describes them.

        The partner of a coordinate i is the j for which ``x_i(t) = a_t x_i(0) + b_t x_j(0)`` holds best in all samples.
        """
        first, p = self.x[:, 0], self.x.shape[-1]
        moves = (self.x - first[:, None]).abs().amax((0, 1)) > self.rounding * self.x.abs().amax((0, 1))
        if not bool(moves.any()):
            return _Rotation([], torch.empty(0, dtype=torch.float64))
        gram = first.T @ first  # (p, p)
        inner = torch.einsum("sti,sj->tij", self.x, first)
        own, sizes = inner.diagonal(dim1=1, dim2=2)[..., None], self.x.square().sum(0)[..., None]  # (t, p, 1)
        size_i, size_j = gram.diagonal()[:, None], gram.diagonal()[None]
        determinant = size_i * size_j - gram.square()
        a = (own * size_j - inner * gram) / determinant  # (t, p, p): of x_i by i and its partner
        b = (inner * size_i - own * gram) / determinant
        left = (sizes - a * own - b * inner).sum(0)
        possible = moves[:, None] & moves & ~torch.eye(p, dtype=torch.bool)
        partner = left.masked_fill(~possible | left.isnan(), torch.inf).argmin(1).tolist()
        pairs = [(i, j) for i, j in enumerate(partner) if possible[i, j] and i < j and partner[j] == i]
        if not pairs:
            return None
        i, j = torch.tensor(pairs).T
        # Both coordinates of a pair estimate the angle; together they have the smaller error.
        phases = torch.atan2(b[:, j, i] - b[:, i, j], a[:, i, j] + a[:, j, i])  # (t, pairs)
        angles = phases[1]  # at position 1
        # Positions double: the angle so far tells how many whole turns the next phase lacks, and that phase refines it.
        for position, phase in zip(self.places[2:], phases[2:], strict=True):
            turns = ((angles * position - phase) / (2 * pi)).round()
            angles = (phase + 2 * pi * turns) / position
        ordered = [(i, j) if angle > 0 else (j, i) for (i, j), angle in zip(pairs, angles.tolist(), strict=True)]
        rotation = _Rotation(ordered, angles.abs())
        return rotation if self.turned_by(rotation) else None

    def turned_by(self, rotation: _Rotation) -> bool:
        """Whether a rotation of the first queries gives the others, up to the rounding of the model's arithmetic."""
        phase = PHASE * self.places * rotation.angles.max()
        gap = (rotation.turned(self.x[:, 0], self.places) - self.x).norm(dim=-1)  # (samples, positions)
        return bool((gap <= self.rounding + phase).all())

    def described(self, rotation: _Rotation) -> Angles:
        """The pairs and angles of a rotation, as in `AttentionCall`."""
        angles, p = rotation.angles.tolist(), self.x.shape[-1]
        if p % 2 or any(j != i + p // 2 for i, j in rotation.pairs):
            return tuple((*pair, angle) for pair, angle in zip(rotation.pairs, angles, strict=True))
        by_pair = [0.0] * (p // 2)
        for (i, _), angle in zip(rotation.pairs, angles, strict=True):
            by_pair[i] = angle
        return next(self._bases(by_pair), tuple(by_pair))

    def _bases(self, angles: Sequence[float]) -> Iterator[float]:
        """The base θ of angles ``θ^(-2i/p)`` of the pairs (i, i + p/2), if there is one, as a round number."""
        half = len(angles)
        error = self.rounding / float(self.places[-1])
        known = [(half / i * (error / angle + PHASE), i) for i, angle in enumerate(angles) if i and angle]
        if not known:
            return
        i = min(known)[1]
        base = exp(-half / i * log(angles[i]))
        # The fewest digits that describe the queries: bases are round numbers such as 10000.
        for digits in range(DIGITS):
            tried = float(f"{base:.{digits}e}")
            powers = tried ** -(torch.arange(half, dtype=torch.float64) / half)
            if self.turned_by(_Rotation([(i, i + half) for i in range(half)], powers)):
                yield tried


class _Known(Exception):
    """Ends the forward of an attention module whose queries are known."""


def _lengths(model: PreTrainedModel, stated: bool) -> list[int]:
    """The lengths of texts that are tried, longest first."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    positions = positions if isinstance(positions, int) and positions >= LEAST else SHORT
    longest = min(LONGEST, max(LONG, 1 << (positions - 1).bit_length())) if stated else READ
    lengths = {min(positions, SHORT), min(positions, longest)}
    power = 2 * SHORT
    while power <= longest:
        lengths.add(power)
        power *= 2
    return sorted(lengths, reverse=True)


def _read(model: PreTrainedModel, tokens: int, stated: bool) -> dict[str, _Queries]:
    """The queries of each module at the first, the last, and some positions of a text.

    None are found if the model cannot read the text, for example because a table of positions ends.
    """
    powers = [2**power for power in range(tokens.bit_length()) if 2**power < tokens - 1]
    places = [0, *powers, tokens - 1]
    read = places if stated else range(tokens)
    inputs: dict[str, Any] = {"input_ids": torch.zeros(1, len(read), dtype=torch.int64, device=model.device)}
    if stated:
        inputs["position_ids"] = torch.tensor([places], device=model.device)
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    try:
        probe = _Probe.of(model)
    except Exception:  # a model may have a part that cannot be copied
        return {}
    token = _active.set(probe)
    try:
        with switched(probe.model, NAME):
            probe.model(**inputs)
    except Exception:  # a model may not use the interface, or not read such a text
        return {}
    finally:
        _active.reset(token)
    texts = {}
    for path, calls in probe.found.items():
        if all(torch.equal(calls[0], other) for other in calls[1:]):
            x = calls[0][:, slice(None) if stated else places].double().cpu()
            rounding = ROUNDING * torch.finfo(calls[0].dtype).eps
            size = x[:, :1].norm(dim=-1, keepdim=True)
            texts[path] = _Queries(x / size, torch.tensor(places, dtype=torch.float64), rounding)
    return texts


@dataclass(eq=False)
class _Probe:
    """A copy of a model whose attention modules are asked for their queries. Reading can change its state.

    Attributes:
        names: of its modules. entered: the last arguments of each module.
        asked: gets the queries (h, tokens, p) of the module that is asked now.
        found: the queries of each call of a module, (samples, tokens, p).
    """

    model: PreTrainedModel
    names: dict[nn.Module, str]
    entered: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    asked: list[Tensor] | None = None
    found: dict[str, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: PreTrainedModel) -> _Probe:
        """A copy with the same weights and without the model's hooks."""
        copied = bare_copy(model)
        probe = cls(copied, {module: path for path, module in copied.named_modules()})

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            probe.entered[module] = args, kwargs

        for module in probe.names:
            module.register_forward_pre_hook(enter, with_kwargs=True)
        return probe

    def ask(self, module: nn.Module, tokens: int, heads: int) -> None:
        """Find the queries of a module that has been entered, from one hidden state at all tokens."""
        args, kwargs = self.entered[module]
        arguments = {**dict(enumerate(args)), **kwargs}
        name = next((name for name, x in arguments.items() if _is_hidden(x, tokens)), None)
        if name is None:
            return
        hidden, draws, parts = arguments[name], torch.Generator().manual_seed(0), []
        # Every head gives a query of the same state, so h heads need so many fewer states.
        for _ in range(ceil(SAMPLES / heads)):
            state = torch.randn(hidden.shape[-1], generator=draws).to(hidden)
            again = {**arguments, name: state.expand_as(hidden)}
            self.asked = []
            try:
                module(*[again[index] for index in range(len(args))], **{key: again[key] for key in kwargs})
            except _Known:
                parts += self.asked
            except Exception:  # with one hidden state a module may fail, and its queries stay unknown
                return
            finally:
                self.asked = None
        if parts:
            self.found.setdefault(self.names[module], []).append(torch.cat(parts))


def _is_hidden(x: object, tokens: int) -> bool:
    """Whether an argument of a module is a hidden state (1, tokens, hidden)."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 3 and x.shape[:2] == (1, tokens)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function in a probe: it adds nothing to the hidden states."""
    probe = _active.get()
    assert probe is not None
    if probe.asked is not None:
        probe.asked.append(query[0])
        raise _Known
    b, h, n, _ = query.shape
    if module in probe.entered:
        probe.ask(module, n, h)
    return query.new_zeros(b, n, h, value.shape[-1]), None
