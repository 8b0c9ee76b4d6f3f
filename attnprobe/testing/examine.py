"""Every property on every case, and what fails made small."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..errors import Unsupported, UsageError, unknown
from ..grammar.foreign import first_line, message, reason
from ..grammar.spelling import parts
from ..methods import Method, get, line_of
from .cases import Case, Fault, Skip
from .properties import PROPERTIES, Property

__all__ = ["SIZES", "Verdict", "check_method", "examine"]

SIZES = ("n", "h", "p", "p_v", "d")
SMALLER = {
    "dtype": (torch.float64, torch.float32),
    "score": (1.0,),
    "h": (1,),
    "n": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    "d": (1, 2, 3, 4, 5),
    "p": (1, 2, 4),
    "p_v": (1, 2, 3),
}
TRIES = 300  # runs of a property until what fails counts as small


@dataclass(frozen=True)
class Verdict:
    """What became of one property against one target.

    ``status`` is ok | failed | skipped, ``cases`` how many were tried, ``reason`` why it failed or was skipped,
    ``case`` the smallest that fails, ``replay`` the command that runs just this.
    """

    property: str
    says: str
    target: str
    status: str
    cases: int = 0
    reason: str | None = None
    case: Mapping[str, Any] | None = None
    replay: str | None = None


def examine(
    method: str | Method | Callable[..., Any],
    *,
    only: Iterable[str] = (),
    target: str | None = None,
    fixed: Mapping[str, Any] | None = None,
    progress: Callable[[float, int, str], None] = lambda done, total, label: None,
) -> list[Verdict]:
    """Prove every property of a method, each at score scale 1 and 6, in float32 and float64 where it says no other.

    A property of which a case fails is tried again on fewer heads, tokens, dimensions and a smaller budget, for as long
    as it fails in the same way, so that what is reported is small. Inputs are normal numbers from a seed.

    Args:
        method: as `attnprobe.approximate` takes it, with options behind a colon in a name.
        only: names of properties. target: of its targets one; None is each.
        fixed: fields of `Case` that are not varied.

    Raises:
        UsageError: an unknown method, option, property, target or impossible size.
    """
    name, listed = parts(method) if isinstance(method, str) else (method, None)
    entry = get(name)
    wanted = list(only) or list(PROPERTIES)
    for one in wanted:
        if one not in PROPERTIES:
            raise unknown("property", one, PROPERTIES)
    targets = entry.targets if target is None else (target,)
    given = dict(pair.split("=", 1) for pair in (listed or "").split(",") if "=" in pair)
    if listed is not None and len(given) != len(listed.split(",")):
        raise UsageError(f"{name}: '{listed}' are no options; write {name}:OPTION=VALUE")
    found, total = [], len(targets) * len(wanted)
    for one in targets:
        options = entry.check(one, given)
        for key in wanted:
            progress(len(found), total, key)
            base = Case(entry, one, options)
            spelt = method if isinstance(method, str) else None
            found.append(_verdict(PROPERTIES[key], base, dict(fixed or {}), spelt))
    progress(total, total, "")
    return found


def check_method(method: str | Method | Callable[..., Any], **settings: Any) -> list[Verdict]:
    """`examine` for a test: raises where a property fails, with each failure's smallest case.

    Args:
        settings: ``only`` and ``target`` as `examine` takes them; the rest are fields of `Case`, which are then fixed.

    Raises:
        AssertionError: a property does not hold.

    >>> def forgetful(q, k, v):  # of the scale
    ...     return torch.softmax(q @ k.mT, -1) @ v
    >>> check_method(forgetful, only=["shapes"])[0].status
    'ok'
    >>> examine(forgetful, only=["scale"])[0].status
    'failed'
    """
    only, target = settings.pop("only", ()), settings.pop("target", None)
    verdicts = examine(method, only=only, target=target, fixed=settings)
    failures = [one for one in verdicts if one.status == "failed"]
    if failures:
        raise AssertionError(
            "\n".join(f"{one.property} ({one.target}): {one.reason}\n  at {_words(one.case or {})}" for one in failures)
        )
    return verdicts


def _verdict(one: Property, base: Case, fixed: dict[str, Any], spelt: str | None) -> Verdict:
    """What becomes of one property."""
    verdict = partial(Verdict, one.name, one.says, base.target)
    if one.tag is not None and not base.method.claims(one.tag, base.target):
        return verdict("skipped", reason="not claimed")
    why, tried = None, 0
    for case in _cases(one, base, fixed):
        error = _tried(one, case)
        if isinstance(error, Skip):
            why = why or message(error)
            continue
        tried += 1
        if error is not None:
            small = case if fixed else _shrunk(one, case, error)
            error = _tried(one, small)
            return verdict(
                "failed",
                cases=tried,
                reason=_said(error),
                case=_facts(small),
                replay=spelt and _replay(one, small, spelt),
            )
    if not tried:
        return verdict("skipped", reason=why)
    return verdict("ok", cases=tried)


def _cases(one: Property, base: Case, fixed: Mapping[str, Any]) -> Iterator[Case]:
    """The cases of a property, without those that are fixed otherwise."""
    for dtype in (fixed["dtype"],) if "dtype" in fixed else one.dtypes:
        for score in (fixed["score"],) if "score" in fixed else one.scores:
            yield replace(base, **{**fixed, "dtype": dtype, "score": score})


def _tried(one: Property, case: Case) -> Exception | None:
    """What a property raises on a case: a `Fault`, a `Skip`, what the method raises, or nothing."""
    if (why := case.refused()) is not None:
        return Skip(why)
    try:
        one.hold(case)
    except Unsupported as error:
        return Skip(message(error))
    except Exception as error:  # whatever a method raises is a failure of its property
        return error
    return None


def _shrunk(one: Property, case: Case, error: Exception) -> Case:
    """The smallest case found that fails in the same way, one size after the other until none helps."""
    same = lambda other: type(other) is type(error) and not isinstance(other, Skip)
    left, before = TRIES, None
    while before != case and left > 0:
        before = case
        for name, values in SMALLER.items():
            now = getattr(case, name)
            for value in values:
                if value == now or left <= 0 or (name == "dtype" and now not in values):
                    break
                if name != "dtype" and value > now:
                    break
                changes = {name: value} | ({"d": min(case.d, value)} if name == "n" else {})
                left -= 1
                if same(_tried(one, replace(case, **changes))):
                    case = replace(case, **changes)
                    break
    return case


def _said(error: Exception | None) -> str:
    if error is None:
        return "fails only now and then"
    return first_line(message(error)) if isinstance(error, Fault) else f"{reason(error)}{line_of(error)}"


def _facts(case: Case) -> dict[str, Any]:
    sizes = {name: getattr(case, name) for name in SIZES if name != "d" or case.method.budget is not None}
    return {**sizes, "score": case.score, "dtype": str(case.dtype)[6:], "seed": case.seed}


def _words(facts: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in facts.items()
    )


def _replay(one: Property, case: Case, spelt: str) -> str:
    """The command that runs a property on a case alone."""
    names = {"h": "heads", "p_v": "p-v"}
    sizes = [f"--{names.get(name, name)} {value}" for name, value in _facts(case).items()]
    several = [f"--target {case.target}"] if len(case.method.targets) > 1 else []
    return " ".join(["attnprobe check", shlex.quote(spelt), "--only", one.name, *several, *sizes])
