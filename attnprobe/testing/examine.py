"""Checks every property on every case, reduces a failing case to a small one, and says the results as text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..errors import Unsupported, UsageError, unknown
from ..grammar.arguments import checked
from ..grammar.foreign import first_line, message, reason
from ..grammar.lists import parts
from ..methods import Method, get, line_of
from .cases import PROPERTIES, Case, Fault, Property, Skip

SIZES = ("n", "h", "p", "p_v", "d")
FIXED = (*SIZES, "score", "dtype", "seed")
SMALLER = {
    "dtype": (torch.float64, torch.float32),
    "score": (1.0,),
    "h": (1,),
    "n": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    "d": (1, 2, 3, 4, 5),
    "p": (1, 2, 4),
    "p_v": (1, 2, 3),
}

TRIES = 300  # runs of a property for the reduction of a failing case


@dataclass(frozen=True)
class Verdict:
    """The result of one property against one target.

    Attributes:
        status: ok | failed | skipped. cases: the number of cases run. reason: why it failed or was skipped.
        case: the smallest failing case found. replay: the command that runs only this case.
    """

    property: str
    says: str
    target: str
    status: str
    cases: int = 0
    reason: str | None = None
    case: Mapping[str, Any] | None = None
    replay: str | None = None


@checked()
def examine(
    method: str | Method | Callable[..., Any],
    *,
    only: Iterable[str] = (),
    target: str | None = None,
    fixed: Mapping[str, Any] | None = None,
    progress: Callable[[float, int, str], None] = lambda done, total, label: None,
) -> list[Verdict]:
    """Check every property of a method, by default at score scales 1 and 6, in float32 and float64.

    A failing case is reduced to fewer heads, tokens and dimensions and a smaller budget as long as it fails with the
    same exception. So the reported case is small. Inputs are seeded normal numbers. A method that fails ``finite`` is
    tried no further, because NaN differs from itself.

    Args:
        method: as in `attnprobe.approximate`; options follow a colon in a name.
        only: names of properties; empty for all. target: one of the method's targets; None for all.
        fixed: fixed fields of `Case`. progress: called with the finished and all checks, and the name of the next.

    Raises:
        UsageError: an unknown method, option, property or target, or an impossible size.
    """
    name, option_text = parts(method) if isinstance(method, str) else (method, None)
    entry = get(name)
    selected = list(only) or list(PROPERTIES)
    for key in selected:
        if key not in PROPERTIES:
            raise unknown("property", str(key), PROPERTIES)
    for size in fixed or {}:
        if size not in FIXED:
            raise unknown("field of a case", str(size), FIXED)
    targets = entry.targets if target is None else (target,)
    values = dict(pair.split("=", 1) for pair in (option_text or "").split(",") if "=" in pair)
    if option_text is not None and len(values) != len(option_text.split(",")):
        raise UsageError(f"{name}: '{option_text}' is not OPTION=VALUE; write {name}:OPTION=VALUE,…")
    verdicts, total = [], len(targets) * len(selected)
    for of_target in targets:
        options, finite = entry.check(of_target, values), True
        for key in selected:
            progress(len(verdicts), total, key)
            base = Case(entry, of_target, options)
            name_and_options = method if isinstance(method, str) else None
            verdicts.append(_verdict(PROPERTIES[key], base, dict(fixed or {}), name_and_options, finite))
            finite = finite and (key, verdicts[-1].status) != ("finite", "failed")
    progress(total, total, "")
    return verdicts


def check_method(method: str | Method | Callable[..., Any], **settings: Any) -> list[Verdict]:
    """`examine` for a test. It raises if a property fails, with a small case of each failure.

    Args:
        settings: ``only`` and ``target`` as in `examine`; others are fixed fields of `Case`.

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
    failures = [verdict for verdict in verdicts if verdict.status == "failed"]
    if failures:
        raise AssertionError(
            "\n".join(f"{bad.property} ({bad.target}): {bad.reason}\n  at {_words(bad.case or {})}" for bad in failures)
        )
    return verdicts


def _verdict(one: Property, base: Case, fixed: dict[str, Any], method: str | None, finite: bool) -> Verdict:
    """The verdict on one property.

    Args:
        method: the user's name of the method, for the replay command. finite: false after ``finite`` failed.
    """
    verdict = partial(Verdict, one.name, one.says, base.target)
    if one.tag is not None and not base.method.claims(one.tag, base.target):
        return verdict("skipped", reason="not claimed")
    if not finite:
        return verdict("skipped", reason="not tried, as finite failed")
    skip_reason, count = None, 0
    for case in _cases(one, base, fixed):
        error = _run_case(one, case)
        if isinstance(error, Skip):
            skip_reason = skip_reason or message(error)
            continue
        count += 1
        if error is not None:
            # sizes that the user has set are the case to repeat: they are not reduced
            small = case if fixed else _reduced(one, case, error)
            error = _run_case(one, small)
            return verdict(
                "failed",
                cases=count,
                reason=_error_text(error),
                case=_facts(small),
                replay=method and _replay(one, small, method),
            )
    if not count:
        return verdict("skipped", reason=skip_reason)
    return verdict("ok", cases=count)


def _cases(one: Property, base: Case, fixed: Mapping[str, Any]) -> Iterator[Case]:
    """The cases of a property, with the ``fixed`` fields in place of its own dtypes and scores."""
    for dtype in (fixed["dtype"],) if "dtype" in fixed else one.dtypes:
        for score in (fixed["score"],) if "score" in fixed else one.scores:
            yield replace(base, **{**fixed, "dtype": dtype, "score": score})


def _run_case(one: Property, case: Case) -> Exception | None:
    """The exception of a property on a case: a `Fault`, a `Skip` or an error of the method; None if it holds."""
    if (refusal := case.refused()) is not None:
        return Skip(refusal)
    try:
        one.hold(case)
    except Unsupported as error:
        return Skip(message(error))
    except Exception as error:  # any exception of a method is a failure of the property
        return error
    return None


def _reduced(one: Property, case: Case, error: Exception) -> Case:
    """A small case that fails in the same way: each size is reduced in turn until no reduction still fails."""

    def same(other: Exception | None) -> bool:
        return type(other) is type(error) and not isinstance(other, Skip)

    left, before = TRIES, None
    while before != case:
        before = case
        for name, values in SMALLER.items():
            now = getattr(case, name)
            for value in values:
                if value == now or left <= 0 or (name == "dtype" and now not in values):
                    break
                if name != "dtype" and value > now:
                    break
                # a budget above n would fail for another reason
                changes = {name: value} | ({"d": min(case.d, value)} if name == "n" else {})
                left -= 1
                if same(_run_case(one, replace(case, **changes))):
                    case = replace(case, **changes)
                    break
    return case


def _error_text(error: Exception | None) -> str:
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


def _replay(one: Property, case: Case, method: str) -> str:
    """The command that runs one property on one case."""
    names = {"h": "heads", "p_v": "p-v"}
    sizes = [f"--{names.get(name, name)} {value}" for name, value in _facts(case).items()]
    target = [f"--target {case.target}"] if len(case.method.targets) > 1 else []
    return " ".join(["attnprobe check", shlex.quote(method), "--only", one.name, *target, *sizes])


MARKS = {"ok": "✓", "failed": "✗", "skipped": "–"}
WIDTH = 110
UNCLAIMED = "not claimed"
CAUSE = "deterministic-by-seed"  # what makes others fail, so its failure stands first


def conformance_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each property, and one for those whose tags the method does not have; then each failure with its
    smallest case and the command that repeats it, once for all properties with the same reason.

    >>> print(conformance_table([{"property": "scale", "target": "softmax", "status": "ok", "cases": 4, "says": "s"}]))
    ✓ scale  4 cases  s
    <BLANKLINE>
    1 holds, 0 fail, 0 do not apply
    """
    several = len({row["target"] for row in rows}) > 1
    rows, unclaimed = ([row for row in rows if (row.get("reason") == UNCLAIMED) is claim] for claim in (False, True))
    names = [row["property"] + (f" ({row['target']})" if several else "") for row in rows]
    width, room = (max(map(len, texts), default=0) for texts in (names, [_tried(row) for row in rows]))
    lines = []
    for name, row in zip(names, rows, strict=True):
        head = f"{MARKS[row['status']]} {name:{width}}  {_tried(row):{room}}  "
        text = row["reason"] if row["status"] == "skipped" else row["says"]
        lines += textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    if unclaimed:
        properties = ", ".join(dict.fromkeys(row["property"] for row in unclaimed))
        lines += textwrap.wrap(f"– {UNCLAIMED}: {properties}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    # one defect often fails several properties with one message; it is said once
    same: dict[str, list[str]] = {}  # by reason: what fails for it
    for name, row in zip(names, rows, strict=True):
        if row["status"] == "failed":
            same.setdefault(row["reason"], []).append(name)
    # False sorts before True: the cause stands first
    for row in sorted(rows, key=lambda row: row["property"] != CAUSE):
        if row["status"] == "failed" and (failing := same.pop(row["reason"], None)):
            case = " ".join(f"{key}={value}" for key, value in row["case"].items())
            lines += [
                "",
                *textwrap.wrap(
                    f"{', '.join(failing)}: {row['reason']}", WIDTH, initial_indent="✗ ", subsequent_indent="  "
                ),
                f"  smallest case: {case}",
            ]
            if row.get("replay"):
                lines.append(f"  again: {row['replay']}")
            if row["property"] == CAUSE and same:
                lines.append("  mend this first: the properties below compare runs with one seed, and may hold then")
    counts = [sum(row["status"] == status for row in rows) for status in ("ok", "failed", "skipped")]
    words = (
        "holds" if counts[0] == 1 else "hold",
        "fails" if counts[1] == 1 else "fail",
        "does not apply" if counts[2] == 1 else "do not apply",
    )
    summary = ", ".join(f"{count} {word}" for count, word in zip(counts, words, strict=True))
    return "\n".join([*lines, "", summary])


def _tried(row: Mapping[str, Any]) -> str:
    return f"{row['cases']} case{'s' if row['cases'] != 1 else ''}" if row["status"] == "ok" else row["status"]
