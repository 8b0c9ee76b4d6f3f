"""The registry of methods: the facts, claims and options of each.

A method is a pure function ``method(qkv, d, *, streams, target="softmax", **options) -> Approximation``. Its options
are its keyword-only arguments with defaults. The command line, the rows and ``attnprobe methods`` read them from
the signature.
"""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from numbers import Integral
from typing import Any

from ..errors import Unsupported, UsageError, unknown
from ..grammar.arguments import checked
from ..grammar.folding import fold_text
from ..operators.terms import Terms
from .base import Approximation
from .option import Option, option_of, word
from .storage import Storage

METHODS: dict[str, Method] = {}
KERNELS: dict[str, Method] = {}  # methods of kind kernel: implementations of exact attention
OF_MODELS: dict[str, Method] = {}  # methods of kind model: what the modules of models compute
NOT_OPTIONS = ("qkv", "d", "streams", "target")
FAMILIES = (
    "exact",
    "Nyström",
    "sampling",
    "sketch",
    "features",
    "LSH",
    "sparse",
    "selection",
    "quantised",
    "reference",
    "kernel",
    "user",
)
KINDS = ("method", "reference", "kernel", "model", "user")
KEYS = {"limit": lambda n_q, n_k: n_k, "limit_name": "n_k"}  # largest budgets, as facts of `Method`
TWICE_KEYS = {"limit": lambda n_q, n_k: 2 * n_k, "limit_name": "2 n_k"}
TOKENS = {"limit": lambda n_q, n_k: n_q + n_k, "limit_name": "n_q + n_k"}
BOTH_WAYS = {"limit": lambda n_q, n_k: max(n_q, n_k) + n_k, "limit_name": "max(n_q, n_k) + n_k"}
TAGS = {
    "deterministic": "the same result for every seed",
    "row_sums_one": "every row of B~ sums to 1",
    "nonnegative": "no entry of B~ is negative",
    "uses_values": "B~ depends on V",
    "exact_at_full_budget": "exact at full budget",
    "permutation_equivariant": "permuting the tokens (and the drawn indices) permutes B~",
    "shift_invariant": "adding one vector to every key leaves B~ unchanged",
    "psd_below": "the lifted C̄ - C̄~ is positive semidefinite",
    "own_scale": "not a function of the scores: 2Q and 2K at scale s are not Q and K at 4s",
    "vanishing_normaliser": "the normaliser of a row may vanish at large scores; such rows are counted",
    "diagnostic": "costs n² or more: a yardstick, not a way to save work",
    "causal": "has a causal form, in which no later token moves an earlier row",
    "prefill": "no later key has weight in causal attention, but later queries choose the keys of earlier ones",
    "whole_scale": "no later key has weight in causal attention, but scales are of all tokens, as calibrated ones are",
    "causal_target": "stands for the causal matrix too, but looks ahead itself",
    "decodes": "a row of its causal form, or behind a prompt, is its result for one query alone, as in decoding",
    "local": "has a form for a sliding window of the model: keys outside of it have no weight",
    "biases": "takes scores with a bias or a cap of the model",
}
DISTRIBUTIONS = ("row_sums_one", "nonnegative")  # tags of matrices whose rows are distributions
INVARIANT = ("permutation_equivariant", "shift_invariant")
EVERY_MASK = ("causal", "decodes", "local")  # tags of methods with a form for every mask


@dataclass(frozen=True)
class Provenance:
    """The origin of a user's method.

    Attributes:
        sha256: of its file and the modules of the same folder that it imports.
        share_heads: whether its heads share their draws by default; None if that is not known.
    """

    file: str
    sha256: str
    package: str | None = None
    share_heads: bool | None = False


@dataclass(frozen=True)
class Method:
    """A registered method.

    Attributes:
        name: as in ``--method``.
        function: the method itself.
        paper, year: the source. family: the heading under which tables group it, one of `FAMILIES`.
        targets: the exact matrices that it can approximate, of ``softmax`` and ``gaussian``.
        kind: method | reference | kernel | model | user.
        tags: claims that the tests prove; ``tag@target`` is claimed for one target only.
        budget: the meaning of ``d``; None for a method without a budget, whose ``d`` is null in rows.
        cost: leading multiply-adds per head at the default options, for n_q = n_k = n and p_v = p.
        oracle: the reference of its tests besides the literal twin: other software, or an identity.
        limit: ``(n_q, n_k) -> d``, the largest budget; None for no limit. ``limit_name`` is its name in messages.
        least: the smallest budget for any options.
        max_n: the longest sequence that it takes; None for no limit.
        square: whether it needs as many keys as queries.
        validate: ``(target, **options)``, raises `UsageError` for options that contradict each other.
        caution: ``(d, **options)``, the reason why a budget means little with these options; None if it does not.
        exact_at: ``n -> (d, options)`` at which it is exact, for methods with the tag ``exact_at_full_budget``.
        small: the options of checks on few tokens, because one default block would have all of them.
        joint: whether heads choose keys together, so that the result of a head depends on the other heads.
        takes_mask: whether it gets the padded inputs with their mask. It returns its result on the valid tokens.
        compress: the options with which it chooses keys of a prompt once, for decoding on them, before those that a
            user names; None if it has no such form.
        choose: ``(qkv, d, …) -> Selection``, the keys that it chooses, without attention over them; of methods that
            compress.
        storage: what it stores of a prompt, or ``(d, options) -> Storage`` for all options; None: keys and values as
            the model has them, of which a method that compresses evicts those that it does not keep.
        format: how it stores keys and values, of methods that quantise them.
        provenance: the origin of a user's method; None for the project's own.
    """

    name: str
    function: Callable[..., Approximation]
    paper: str
    year: int
    family: str
    tags: tuple[str, ...]
    budget: str | None
    cost: str
    oracle: str
    targets: tuple[str, ...] = ("softmax",)
    kind: str = "method"
    limit: Callable[[int, int], int] | None = None
    limit_name: str = "n"
    least: int = 1
    max_n: int | None = None
    square: bool = False
    validate: Callable[..., None] | None = None
    caution: Callable[..., str | None] | None = None
    exact_at: Callable[[int], tuple[int | None, dict[str, Any]]] | None = None
    small: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False
    takes_mask: bool = False
    compress: Mapping[str, Any] | None = None
    choose: Callable[..., Any] | None = None
    storage: Storage | Callable[[int | None, dict[str, Any]], Storage] | None = None
    format: Any = None
    provenance: Provenance | None = None

    @cached_property
    def options(self) -> dict[str, Option]:
        """The options by name, from the signature. They are read once, because type hints take a millisecond."""
        hints = typing.get_type_hints(self.function)
        parameters = inspect.signature(self.function).parameters.values()
        return {
            p.name: option_of(p.name, p.default, hints[p.name])
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in NOT_OPTIONS
        }

    def claims(self, tag: str, target: str) -> bool:
        """Whether the method claims ``tag`` with its default options against ``target``."""
        return tag in self.tags or f"{tag}@{target}" in self.tags

    @property
    def is_causal(self) -> bool:
        """Whether the method has a causal form, in which no row depends on later tokens."""
        return "causal" in self.tags

    @property
    def replaces_causal(self) -> bool:
        """Whether it can replace causal attention in a model: no later key moves a row, except by a scale."""
        return self.is_causal or "whole_scale" in self.tags

    @property
    def takes_windows(self) -> bool:
        """Whether the method takes inputs of a layer with a sliding window, which hides keys."""
        return "local" in self.tags or "causal_target" in self.tags

    def check_form(self, causal: bool, local: bool, terms: Terms | None = None) -> None:
        """Refuse inputs for which the method has no form.

        Args:
            causal: whether the inputs are causal. local: whether a sliding window hides keys. terms: the cap and the
                bias of their scores.

        Raises:
            Unsupported: causal or windowed inputs without a form for them or the tag ``causal_target``; a bias or a cap
                without the tag ``biases``.
        """
        if terms is not None and "biases" not in self.tags:
            raise Unsupported(f"scores have {terms}, and {self.name} has no form for it{self._way_out('biases')}")
        if "causal_target" in self.tags:
            return
        if causal and not self.replaces_causal and "prefill" not in self.tags:
            raise Unsupported(f"attention is causal, and {self.name} has no causal form{self._way_out('causal')}")
        if local and not self.takes_windows:
            way_out = self._way_out("local")
            raise Unsupported(f"attention has a sliding window, and {self.name} has no form for it{way_out}")

    def _way_out(self, tag: str) -> str:
        """What a user's function needs for causal or windowed inputs; empty for the project's own methods."""
        if self.family != "user":
            return ""
        does = "add qkv.terms to the scores" if tag == "biases" else "hide what qkv.visible hides"
        return f"; take qkv, {does}, and claim {tag}: docs/guide/add-a-method.md, A causal method"

    def why_not_decoding(self) -> str | None:
        """Why it has no form for one query behind a cache of keys; None for a method with the tag ``decodes``."""
        if "decodes" in self.tags:
            return None
        if "prefill" in self.tags:
            return "later queries choose the keys of earlier ones"
        if self.family == "user":
            return "it does not claim the tag decodes, as the policy in docs/guide/add-a-method.md does"
        if not self.is_causal:
            return "it has no causal form"
        return "a row depends on the queries of earlier tokens or on the number of keys, and a step has one query"

    def check(self, target: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with converted values, without those that equal their defaults.

        Raises:
            Unsupported: a target that the method does not take.
            UsageError: an unknown option, an invalid value, or options that contradict each other.
        """
        if target not in self.targets:
            raise Unsupported(f"{self.name} does not take target={target}; it takes {', '.join(self.targets)}")
        known = self.options
        chosen = {}
        for name, value in options.items():
            if name not in known:
                raise unknown(f"option of {self.name}", name, known)
            value = known[name].coerce(value, self.name)
            # True == 1 and 1 == 1.0, so values alone would drop an option of another type.
            if value != known[name].default or type(value) is not type(known[name].default):
                chosen[name] = value
        if self.validate is not None:
            self.validate(target, **{name: chosen.get(name, option.default) for name, option in known.items()})
        return chosen

    def warning(self, d: int | None, options: Mapping[str, Any]) -> str | None:
        """The reason why a budget means little with these options; None if it means what it says."""
        if self.caution is None or d is None:
            return None
        return self.caution(d, **{name: options.get(name, option.default) for name, option in self.options.items()})

    def check_budget(self, d: int | None, n_q: int, n_k: int) -> int | None:
        """``d`` as an integer, or None for a method without a budget.

        Raises:
            UsageError: d is missing, or is not an integer.
            Unsupported: the method cannot take this budget or these numbers of queries and keys.
        """
        if self.max_n is not None and max(n_q, n_k) > self.max_n:
            raise Unsupported(f"{self.name}: n={max(n_q, n_k)} is above its limit of {self.max_n}; choose a smaller n")
        if self.square and n_q != n_k:
            raise Unsupported(f"{self.name}: {n_q} queries and {n_k} keys; it takes as many queries as keys")
        if self.budget is None:
            return None
        if d is None:
            raise UsageError(f"{self.name} needs a budget: pass d ({self.budget})")
        if isinstance(d, bool) or not isinstance(d, Integral | float) or d != d or d in (inf, -inf) or d != int(d):
            raise UsageError(f"{self.name}: d={d} is not a whole number")
        limit = inf if self.limit is None else self.limit(n_q, n_k)
        if not self.least <= d <= limit:
            below = "is not positive" if d < 1 else f"is below its least of {self.least}"
            fault = below if d < self.least else f"exceeds {self.limit_name}={limit}"
            if self.least > limit:
                raise Unsupported(
                    f"{self.name}: its least d is {self.least}, above {self.limit_name}={limit}; choose a longer text"
                )
            most = "" if self.limit is None else limit
            raise Unsupported(f"{self.name}: d={d} {fault}; choose d in {self.least}..{most}")
        return int(d)

    def stored(self, d: int | None, options: Mapping[str, Any]) -> Storage:
        """What it stores of a prompt at a budget, with the given options and the defaults of the others."""
        if self.storage is None:
            return Storage(evicts=self.compress is not None)
        if isinstance(self.storage, Storage):
            return self.storage
        return self.storage(d, {name: options.get(name, option.default) for name, option in self.options.items()})

    def why_no_test(self, d: int | None, options: Mapping[str, Any], tokens: int) -> str | None:
        """Why a format quantises none of some tokens, so that a cell is no test of it; None if it quantises some."""
        if self.format is None:
            return None
        stored = self.stored(d, options)
        kept = tokens if d is None or not stored.evicts else min(d, tokens)
        if stored.coded(kept):
            return None
        groups = "" if stored.group == 1 else f" and groups of {stored.group}"
        return (
            f"{self.name}: no test: with exact={stored.exact}{groups} all {kept} tokens that it stores stay exact; "
            "choose fewer exact tokens or more tokens"
        )

    @property
    def source(self) -> str:
        """The paper and its year, or the package or file of a user's method."""
        if self.year:
            return f"{self.paper} ({self.year})"
        where = self.provenance and (self.provenance.package or self.provenance.file)
        return f"{self.paper}, {where}" if where else self.paper

    def row(self) -> dict[str, Any]:
        """The facts of the method, as a row of ``attnprobe methods``."""
        names = ("name", "paper", "year", "family", "targets", "kind", "budget", "cost", "oracle", "tags")
        facts = {name: getattr(self, name) for name in names}
        return {
            **{name: list(fact) if isinstance(fact, tuple) else fact for name, fact in facts.items()},
            "options": {name: option.default for name, option in self.options.items()},
        }

    def card(self) -> str:
        """The method in four lines: paper; targets, kind and cost; meaning of d; claims."""
        tags = ", ".join(tag.replace("_", " ").replace("@", " for ") for tag in self.tags)
        lines = [
            self.source,
            f"target {', '.join(self.targets)} · {self.kind} · {self.cost}",
            f"d: {self.budget or 'none'}",
            tags,
        ]
        lines = [part for line in lines for part in textwrap.wrap(line, 84, subsequent_indent="  ")]
        return "\n".join(f"{self.name if index == 0 else '':15} {line}" for index, line in enumerate(lines))

    def explain(self, width: int = 100) -> str:
        """The text of ``attnprobe methods NAME``: facts, docstring, and options with defaults and allowed values.

        Args:
            width: the largest length of a line.
        """
        facts = {
            "paper": self.source,
            "family": f"{self.family}, kind {self.kind}",
            "targets": ", ".join(self.targets),
            "budget d": self.budget or "none: d is ignored",
            "cost": self.cost if self.family == "user" else f"{self.cost} multiply-adds per head",
            "proved by": self.oracle
            if self.family in ("kernel", "user") or self.kind == "model"
            else f"its literal twin; {self.oracle}",
            "claims": "; ".join(self.claimed()),
        }
        lines = [self.name, ""]
        for name, text in facts.items():
            lines += textwrap.wrap(
                text, width, initial_indent=f"{name:11}", subsequent_indent=" " * 11, break_on_hyphens=False
            )
        lines += ["", fold_text((inspect.getdoc(self.function) or "").replace("``", "`"), width)]
        if self.options:
            lines += ["", f"Defaults and allowed values (--method {self.name}:OPTION=VALUE,…):"]
            defaults = {f"{name}={option.default_text}": option for name, option in self.options.items()}
            longest = max(map(len, defaults))
            for text, option in defaults.items():
                lines += textwrap.wrap(
                    option.describe(),
                    width,
                    initial_indent=f"  {text:{longest}}  ",
                    subsequent_indent=" " * (longest + 4),
                    break_on_hyphens=False,
                )
        return "\n".join(lines)

    def claimed(self) -> list[str]:
        """The tags of the method, in words."""
        return [self._claim(tag) for tag in self.tags]

    def _claim(self, tag: str) -> str:
        """A tag in words, with its target and options."""
        name, _, target = tag.partition("@")
        where = [f"target {target}"] if target else []
        if name == "exact_at_full_budget" and self.exact_at is not None:
            d, options = self.exact_at(1)
            where += [] if d is None else [f"d={'' if d == 1 else d}n"]
            where += [f"{key}={word(value)}" for key, value in options.items()]
        return TAGS[name] + (f" ({', '.join(where)})" if where else "")


def register(**facts: Any) -> Callable[[Callable[..., Approximation]], Callable[..., Approximation]]:
    """A decorator that adds a function to `METHODS`, `KERNELS` or `OF_MODELS`. ``facts`` are fields of `Method`."""

    def put(function: Callable[..., Approximation]) -> Callable[..., Approximation]:
        entry = Method(function=function, **facts)
        assert entry.name not in METHODS | KERNELS | OF_MODELS and entry.kind in KINDS and entry.family in FAMILIES
        assert all(tag.split("@")[0] in TAGS for tag in entry.tags), entry.tags
        {"kernel": KERNELS, "model": OF_MODELS}.get(entry.kind, METHODS)[entry.name] = entry
        return function

    return put


@checked()
def by_family(kernels: bool = False) -> list[Method]:
    """All methods, and all kernels if ``kernels``, sorted by family (in the order of `FAMILIES`) and name."""
    entries = [*METHODS.values(), *(KERNELS.values() if kernels else ())]
    return sorted(entries, key=lambda entry: (FAMILIES.index(entry.family), entry.name))
