"""The sources, layers, heads and plans of a request. Requests in which nothing can run are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from ..grammar.lists import chosen_numbers
from ..inputs import Source, resolve, scaled_inputs
from ..machine.timings import Timings
from .plan import ErrorPlan, MethodRequest, fitting, parse_methods, refuse_endless, refused

Layers = tuple[int, ...] | str | None  # numbers, a word, or the default


def once(notify: Callable[[str], None]) -> Callable[[str], None]:
    """``notify`` that skips lines it has already passed on."""
    lines: set[str] = set()

    def tell(line: str) -> None:
        if line not in lines:
            lines.add(line)
            notify(line)

    return tell


def sources_of(request: Any, notify: Callable[[str], None], timings: Timings) -> list[Source]:
    """One source for each of a request's ``weights`` and ``scale_inputs``; equal ones count once."""
    spec = request.source
    # some commands take one word for the weights, others several
    words = (request.weights,) if isinstance(request.weights, str) else request.weights
    if len(words) > 1 and spec.qkv is not None:
        raise UsageError(f"--qkv {spec.qkv} holds Q, K and V already: drop --weights")
    sources: list[Source] = []
    notify = once(notify)
    for word in dict.fromkeys(words):
        source = resolve(replace(spec, weights=word), notify=notify, timings=timings)
        # without the hub, other weights may stand in for the named ones
        labels = [(other.facts.get("model"), other.facts.get("weights")) for other in sources]
        if (source.facts.get("model"), source.facts.get("weights")) in labels:
            notify(f"weights {word} are {source.facts['weights']} here, which stand there already")
        else:
            sources.append(source)
    return [scaled for source in sources for scaled in scaled_inputs(source, request.scale_inputs)]


def layers_of(layer: Layers, source: Source, *, whole_model: bool = False) -> tuple[int, ...]:
    """The layers that a request names.

    Without a name, the layer is layer 0, or the first layer with attention. For a ``whole_model`` it is every layer; in
    a model with local layers, which keep few keys as they are, it is every global layer.
    """
    if layer is None and whole_model:
        return source.global_layers or source.available
    if layer is None:
        return (0,) if 0 in source.available else source.available[:1]
    if layer in ("global", "local"):
        layers = source.local if layer == "local" else source.global_layers
        if not layers:
            every = "no layer" if layer == "local" else "every layer"
            raise UsageError(f"layer {layer}: {every} has a sliding window; choose all")
        return layers
    for number in () if isinstance(layer, str) else layer:
        if number not in source.available:
            raise UsageError(source.why_absent(number))
    return source.available if isinstance(layer, str) else tuple(layer)


def left_out(layer: Layers, source: Source) -> tuple[int, ...]:
    """The layers that ``all`` does not mean for a method without a form for sliding windows: the local ones.

    There are none if the model has no other layers.
    """
    return source.local if layer == "all" and source.global_layers else ()


def tell_left_out(
    layer: Layers, source: Source, methods: Iterable[MethodRequest], notify: Callable[[str], None]
) -> None:
    """Say which methods leave out the local layers."""
    names = [request.label for request in methods if not request.entry.takes_windows]
    if names and left_out(layer, source):
        has = "have" if len(names) > 1 else "has"
        count = f"{len(source.global_layers)} global of {len(source.available)} layers"
        notify(f"{', '.join(names)} {has} no form for sliding windows: only on the {count}")


def heads_of(head: tuple[int, ...] | str, source: Source) -> tuple[int, ...]:
    """The heads that a request names."""
    return chosen_numbers(head, "head", source.head_numbers)


def draft_plan(request: Any) -> ErrorPlan:
    """The plan of a request before its sources are known: layer 0, all heads, and no n unless the request names it.

    Args:
        request: has ``methods``, ``target`` and ``seed``, and the fields of `OnTensors` that name sources and places.
    """
    return ErrorPlan(
        methods=tuple(parse_methods(request.methods, request.target)),
        n=request.n or (),
        d=(),
        layers=(0,),
        heads=None,
        windows=request.windows,
        seed=request.seed,
        target=request.target,
    )


def prepared(
    request: Any,
    draft: ErrorPlan,
    notify: Callable[[str], None],
    timings: Timings,
    *,
    refuse: bool = True,
    whole_model: bool = False,
) -> list[tuple[Any, ErrorPlan]]:
    """The sources of a request, each with its plan, after both have been checked.

    Args:
        draft: the plan of `draft_plan` with the command's own fields.
        refuse: whether it is an error that none of the methods can run.
        whole_model: whether a request that names no layers means those of the model, as in `layers_of`.
    """
    # what can be refused without a source is refused before a model is opened
    if request.n is not None:
        refuse_endless(draft.count)
        _refuse_impossible(_fitted(request, draft), refuse)
    parts, count = [], 0
    for source in sources_of(request, notify, timings):
        heads = None if request.head == "all" else heads_of(request.head, source)
        n = request.n or (source.default_n,)
        layers = layers_of(request.layer, source, whole_model=whole_model)
        plan = _fitted(request, replace(draft, n=n, layers=layers, heads=heads), notify, source.facts.get("p"))
        count += plan.count
        refuse_endless(count)
        _refuse_impossible(plan, refuse)
        for length in plan.n:
            source.check(length, plan.windows, plan.layers)
        tell_left_out(request.layer, source, plan.methods, notify)
        _tell_cautions(plan, notify)
        parts.append((source, plan))
    refuse_endless(count, notify)  # announced once, for the cells of all sources
    return parts


def _tell_cautions(plan: ErrorPlan, notify: Callable[[str], None]) -> None:
    """Say once of each method that a budget means little with its options."""
    for request in plan.methods:
        entry = request.entry
        cautions = [entry.warning(d, request.options) for d in plan.d] if entry.budget is not None else []
        if caution := next(filter(None, cautions), None):
            notify(f"{request.label}: {caution}")


def _refuse_impossible(plan: ErrorPlan, refuse: bool) -> None:
    if refuse and (why := plan.refusal()) is not None:
        raise UsageError(why)


def _fitted(
    request: Any, plan: ErrorPlan, notify: Callable[[str], None] = lambda line: None, p: int | None = None
) -> ErrorPlan:
    """The plan with budgets that its methods take at its longest n, if the request names no budget."""
    if not plan.d:
        return plan
    n = max(plan.n)

    def refusals(d: int) -> int:
        return sum(refused(method, plan.target, n, d) is not None for method in plan.methods)

    return replace(plan, d=fitting(request, n, refusals, notify, p))
