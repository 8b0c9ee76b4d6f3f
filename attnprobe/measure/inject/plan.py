"""The plan of ``attnprobe inject``: its checked request and its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import Unsupported, UsageError
from ...frame.records.budgets import Budgets, read_budgets
from ...frame.records.file import cell_key, identity_facts
from ...grammar.arithmetic import FLOAT64
from ...grammar.foreign import message
from ...grammar.lists import short_name
from ...inject.replacement import Budget
from ...inputs.description import of_layers
from ...inputs.weights import language_kind
from ...machine.timings import Timings
from ...methods import METHODS, Method
from ...methods.fitting import Fitted, fitted
from ...rounding import Arithmetic
from ...run.plan import ErrorPlan, MethodRequest, method_identity, parse_methods
from ...run.sources import draft_plan, left_out, prepared
from . import EXACT, LAVA, SHUFFLED, InjectRequest
from .policy import KEYED, why_not_kept

DEFAULT_N = 512  # tokens of a text, see `InjectRequest.n`
UNCHANGED = MethodRequest("softmax", requested=False)  # stands for the model's own attention


@dataclass(frozen=True)
class InjectWork:
    """One forward of a batch: a method with its budget and seed in some layers.

    Attributes:
        layer: the layer, if one alone is replaced. head: its KV head, if one alone is replaced.
        why: the reason why no budget fits ``--bytes``; None if one does. prompt: how the prompt is read.
        exact: whether this is the unmodified model, whose own numbers stand beside those of methods.
        arithmetic: that of the method, as ``--arithmetic`` names it, or float64; None is that of torch.
    """

    request: MethodRequest
    d: int | None
    budget: Budget
    repeat: int
    seed: int
    layers: tuple[int, ...]
    layer: int | None
    head: int | None = None
    why: str | None = None
    prompt: str = "exact"
    exact: bool = False
    arithmetic: str | None = None

    @property
    def in_float64(self) -> InjectWork | None:
        """The same with the method in float64, from which rounding is measured; None if nothing is rounded."""
        return None if self.arithmetic in (None, FLOAT64.name) else replace(self, arithmetic=FLOAT64.name)

    @property
    def plan(self) -> str | None:
        """By which error the budgets of heads are planned, if they are."""
        return self.request.options.get("plan")  # type: ignore[return-value]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method itself."""
        return {name: value for name, value in self.request.options.items() if name != "plan"}

    @property
    def method(self) -> tuple[Any, ...]:
        """The name, the options and the seed, which tell methods with other numbers apart."""
        return self.request.name, tuple(sorted(self.options.items())), self.seed

    @property
    def name(self) -> str:
        if self.exact:
            return "exact attention"
        budget = "" if self.d is None else f" d={self.d}"
        head = "" if self.head is None else f", KV head {self.head}"
        layers = "all replaced layers" if self.layer is None else f"layer {self.layer}"
        arithmetic = "" if self.arithmetic is None else f" {self.arithmetic}"
        return f"{self.request.name}{arithmetic}{budget} in {layers}{head}"


@dataclass(frozen=True)
class InjectCell:
    """One window of one forward."""

    key: str
    work: InjectWork
    window: int

    @property
    def name(self) -> str:
        if self.work.exact:
            return EXACT
        return " ".join(filter(None, (self.work.request.label, self.work.arithmetic)))

    @property
    def d(self) -> int | None:
        return self.work.d


@dataclass(frozen=True)
class InjectPlan:
    """The plan of the methods, and the budgets of a file, which has one method.

    ``left_out`` are the layers with a sliding window, which keep exact attention if a method has no form for it.
    ``kv_heads`` are the numbers of KV heads of each layer, and ``p`` is the largest head dimension.
    """

    base: ErrorPlan
    budgets: Budgets | None
    request: InjectRequest
    left_out: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    p: int = 1

    @property
    def arithmetics(self) -> tuple[str | None, ...]:
        """The arithmetics of each method: torch's (None), float64, from which rounding is measured, and formats."""
        return (None, FLOAT64.name, *self.request.arithmetic) if self.request.arithmetic else (None,)

    def facts(self) -> dict[str, Any]:
        """The plan as a manifest shows it."""
        budgets = None if self.budgets is None else [[*head, d] for head, d in sorted(self.budgets.d.items())]
        return self.base.facts() | {
            "per_layer": self.request.per_layer,
            "batch": self.request.batch,
            **({"prefix": self.request.prefix} if self.request.phase == "decode" else {}),
            "budgets": budgets,
            **({"arithmetic": list(self.request.arithmetic)} if self.request.arithmetic else {}),
            **({} if self.request.bytes is None else {"bytes": [line for n in self.base.n for line in self.used(n)]}),
        }

    def works(self, n: int) -> list[InjectWork]:
        """The forwards of one batch at ``n`` tokens: exact attention, then every method, budget and seed in all layers
        together and in each layer alone.
        """
        all_works = [InjectWork(UNCHANGED, None, None, 0, self.base.seed, self.base.layers, None, exact=True)]
        for request in self.base.methods:
            # Method by method: a method with a form for windows replaces all layers beside one that leaves some out.
            left_out = () if request.entry.takes_windows else self.left_out
            layers = tuple(layer for layer in self.base.layers if layer not in left_out)
            replaced: list[tuple[tuple[int, ...], int | None, int | None]] = [(layers, None, None)]
            replaced += [((layer,), layer, None) for layer in layers] if self.request.per_layer else []
            if self.request.per_head:
                replaced += [((layer,), layer, head) for layer in layers for head in range(self.kv_heads[layer])]
            # Seeds of a deterministic method would repeat its row.
            repeats = 1 if "deterministic" in request.entry.tags else self.base.repeats
            for sized, d, why in self._sized(request, n):
                budget: Budget = self._of_file(n) if self.budgets else d
                for repeat in range(repeats):
                    seed = self.base.seed + repeat
                    all_works += [
                        InjectWork(sized, d, budget, repeat, seed, *where, why, self.request.prompt, False, arithmetic)
                        for where in replaced
                        for arithmetic in self.arithmetics
                    ]
                    # Plans only where all layers are replaced: they divide the keys of the whole model among its heads.
                    plans = self._plans(sized, d)
                    all_works += [InjectWork(planned, d, budget, repeat, seed, *replaced[0]) for planned in plans]
        if self.request.bytes is None:
            return all_works
        once: dict[Any, InjectWork] = {}  # two shares may have one budget
        for work in all_works:
            options = tuple(sorted(work.request.options.items()))
            once.setdefault((work.request.name, work.exact, options, work.d, work.seed, work.layer, work.head), work)
        return [*once.values()]

    def _sized(self, request: MethodRequest, n: int) -> list[tuple[MethodRequest, int | None, str | None]]:
        """A method with each of its budgets. With ``--bytes`` they are those that fit; else the reason is the last."""
        if self.request.bytes is None or request.entry.family == "exact":
            budgets = (None,) if self.budgets or request.entry.budget is None else self.request.budgets_at(n)
            return [(request, d, None) for d in budgets]
        found: list[tuple[MethodRequest, int | None, str | None]] = []
        for fit in self.fits(request, n).values():
            if isinstance(fit, Fitted):
                found.append((MethodRequest(request.name, {**request.options, **fit.options}), fit.d, None))
        return found or [(request, None, str(fit))]

    def fits(self, request: MethodRequest, n: int) -> dict[float, Fitted | str]:
        """What a method uses of each share of ``--bytes`` at ``n`` tokens, or why nothing fits."""
        prompt, fits = self.request.prefix_at(n), dict[float, Fitted | str]()
        assert prompt is not None
        for share in self.request.bytes or ():
            try:
                fits[share] = fitted(request.entry, request.options, share, prompt, k=self.p, v=self.p)
            except Unsupported as error:
                fits[share] = message(error)
        return fits

    def used(self, n: int) -> list[str]:
        """A line for each share of ``--bytes``: the budgets of methods, and what they use."""
        lines = []
        for share in self.request.bytes or ():
            parts = []
            for request in self.base.methods:
                if request.entry.family != "exact":
                    parts.append(_used(request, self.fits(request, n)[share]))
            lines.append(f"bytes={share:g}, n={n}: {', '.join(parts)}")
        return lines

    def _of_file(self, n: int) -> dict[int | tuple[int, int], int | None]:
        """The budgets of a file. Those of a plan are shares of its prompt."""
        assert self.budgets is not None
        made, prompt = self.budgets.about.get("prompt"), self.request.prefix_at(n)
        if not isinstance(made, int) or made < 1 or prompt is None:
            return {**self.budgets.d}
        return {
            head: None if d is None else min(prompt, max(1, round(d * prompt / made)))
            for head, d in self.budgets.d.items()
        }

    def _plans(self, request: MethodRequest, d: int | None) -> list[MethodRequest]:
        """A policy with planned budgets, with those budgets at random heads, and with LAVa's."""
        if self.request.plan is None or why_not_planned(request, d, self.request.plan) is not None:
            return []
        return [
            MethodRequest(request.name, {**request.options, "plan": by}) for by in (self.request.plan, SHUFFLED, LAVA)
        ]


def _used(request: MethodRequest, fit: Fitted | str) -> str:
    """A method with its budget, and the share of bytes that it uses."""
    if isinstance(fit, str):
        return f"{request.label} none"
    budget = "".join(f" {name}={value}" for name, value in {"d": fit.d, **fit.options}.items() if value is not None)
    return f"{request.label}{budget} ({fit.share:.3g}{'' if fit.keeps else ' read'})"


def why_not_planned(request: MethodRequest, d: int | None, by: str) -> str | None:
    """Why no budgets of heads are planned for a method by an error; None if they are."""
    entry = request.entry
    if entry.budget is None:
        return f"{request.label} has no budget"
    if "allocation" in request.options:
        return f"{request.label}:allocation={request.options['allocation']} divides the keys of heads itself"
    if entry.stored(d, request.options).evicts:
        known = by != "mass" or entry.family in KEYED
        return None if known else f"{request.label} may have weights of no key, so that its lost mass is unknown"
    if entry.family == "user":
        claim = "storage=attnprobe.Storage(evicts=True), see docs/guide/add-a-method.md"
        return f"{request.label} does not say that keys leave the cache (claim {claim})"
    return f"{request.label} keeps the whole prompt"


def _note_unplanned(request: InjectRequest, notify: Callable[[str], None]) -> None:
    """Say for which methods no budgets of heads are planned, and refuse a plan for none."""
    n = min(request.n or (DEFAULT_N,))
    d = request.budgets_at(n)[0]
    methods = parse_methods(request.methods, request.target)
    reasons = [why_not_planned(method, d, request.plan or "") for method in methods]
    if None not in reasons:
        raise UsageError(f"plan={request.plan}: {reasons[0]}; choose a policy that drops keys, such as h2o")
    for reason in dict.fromkeys(reasons):
        if reason is not None:
            notify(f"plan={request.plan}: no budgets are planned where {reason}")


def inject_prepared(request: InjectRequest, notify: Callable[[str], None]) -> list[tuple[Any, InjectPlan]]:
    """The sources of a request, each with its plan, after every check of the request."""
    for arithmetic in request.arithmetic or ():
        Arithmetic.read(arithmetic)  # which this torch may lack
    budgets, read = _with_file(request, notify)
    if request.phase == "decode":
        _refuse_methods(read)
        if request.lines:
            raise UsageError("--phase decode reads windows of one length, not --lines")
    if request.lines:  # lines are counted when they are read
        read = replace(read, windows=1)
    plans: list[tuple[Any, InjectPlan]] = []
    for d in request.d:
        if not isinstance(d, int) and request.phase != "decode":
            raise UsageError(f"d={d:g} is a share of a prompt: it needs --phase decode; choose a whole number")
    if request.question is None:  # which says where the prompt ends
        _refuse_prompts(read, read.n or (DEFAULT_N,))
    if request.plan is not None and budgets is not None:
        raise UsageError(f"{request.budgets}: --budgets has the keys of each head, and --plan makes them: choose one")
    if request.plan is not None:
        _note_unplanned(request, notify)
    # Shares of a prompt become numbers here, because every later check is of numbers of keys.
    read = replace(read, d=tuple(dict.fromkeys(d for n in read.n or (DEFAULT_N,) for d in read.budgets_at(n))))
    draft = replace(draft_plan(read), d=read.d, repeats=read.repeats)
    parts = prepared(read, draft, notify, Timings(), refuse=budgets is None, whole_model=True)
    if request.question is not None:
        request = replace(request, steps=max(_steps_behind(request, source, plan.n) for source, plan in parts))
    for source, plan in parts:
        _compare_file(request, budgets, source, plan, notify)
        if request.phase == "decode":
            _refuse_models(source)
        if request.question is not None:
            _refuse_prompts(replace(request, methods=read.methods), plan.n)
        made = _plan_of(request, budgets, source, plan)
        for n in plan.n if request.bytes is not None else ():
            for line in made.used(n):
                notify(line)
        plans.append((source, made))
    return plans


def _with_file(request: InjectRequest, notify: Callable[[str], None]) -> tuple[Budgets | None, InjectRequest]:
    """The file of budgets of a request, and the request with the file's method; without a file the request itself."""
    if request.budgets is None:
        return None, request
    budgets = read_budgets(request.budgets)
    if budgets.about.get("target", "softmax") != "softmax":
        raise UsageError(
            f"{request.budgets}: its budgets are for target={budgets.about['target']}, but inject "
            "replaces softmax attention"
        )
    # a plan is of one model, which is compared before it is opened
    if "prompt" in budgets.about and request.model is not None:
        differing = _differing(request.budgets, budgets, {**budgets.about, "model": request.model}, ())
        if "model" in differing:
            raise UsageError(differing["model"])
    return budgets, replace(request, methods=(_method_of(request, budgets, notify),), d=(1,))


def _compare_file(
    request: InjectRequest, budgets: Budgets | None, source: Any, plan: ErrorPlan, notify: Callable[[str], None]
) -> None:
    """Say in what a file of budgets differs from this run; refuse a plan of another model, and missing heads."""
    differing = _differing(request.budgets, budgets, source.facts, plan.n)
    for name, line in differing.items():
        if budgets is not None and "prompt" in budgets.about and name != "n":
            raise UsageError(line)
    _refuse_missing(request.budgets, budgets, plan.layers, source.heads)
    for line in differing.values():
        notify(line)


def _plan_of(request: InjectRequest, budgets: Budgets | None, source: Any, plan: ErrorPlan) -> InjectPlan:
    """The plan of one source, with the numbers of its KV heads."""
    stated = [getattr(part, "num_key_value_heads", None) for part in of_layers(source.config.get_text_config())]
    # a configuration of one part is that of every layer
    kv_heads = tuple(count or source.heads for count in stated) * (source.layers // len(stated))
    left = left_out(request.layer, source)
    return InjectPlan(replace(plan, windows=request.windows), budgets, request, left, kv_heads, source.facts["p"])


def _steps_behind(request: InjectRequest, source: Any, lengths: Iterable[int]) -> int:
    """The most steps of a window: all predictions of the answer, and with the question outside those of its tokens."""
    numbers = range(request.windows + (0 if request.plan is None else request.plan_windows))
    endings = [source.ending(n, window) for n in lengths for window in numbers]
    if request.question == "inside":
        return max(answer for _, answer in endings)
    return max(both for both, _ in endings) - 1


def _refuse_methods(request: InjectRequest) -> None:
    entries = [method.entry for method in parse_methods(request.methods, request.target)]
    reasons = [why for entry in entries if (why := why_not_decoded(entry)) is not None]
    if len(reasons) == len(entries):
        able = ", ".join(name for name, entry in METHODS.items() if why_not_decoded(entry) is None)
        raise UsageError(f"--phase decode: {entries[0].name} cannot decode: {reasons[0]}; choose from {able}")


def why_not_decoded(entry: Method) -> str | None:
    """Why a method neither compresses a prompt nor reads it step by step; None if it does one of them."""
    return None if entry.compress is not None else entry.why_not_decoding()


def _refuse_models(source: Any) -> None:
    """Refuse a model that does not predict the next word."""
    if source.weights == "initialized" or language_kind(source.config) != "causal":
        kind = "has random weights" if source.weights == "initialized" else f"is a {source.config.model_type} model"
        needed = "a model that predicts the next word, such as --model smollm2"
        raise UsageError(f"--phase decode needs {needed}, and {source.name} {kind}")


def _refuse_prompts(request: InjectRequest, lengths: Iterable[int]) -> None:
    """Refuse prompts that leave no step, and those below a budget."""
    for n in lengths:
        prompt = request.prefix_at(n)
        if prompt is None:
            continue
        if prompt > n - 2:
            raise UsageError(f"prefix={prompt}: n={n} leaves no step; choose a prefix up to {n - 2}")
        if prompt < 1:
            raise UsageError(f"steps={request.steps}: n={n} leaves no prompt; choose up to {n - 2} steps")
        if request.budgets is not None:
            continue
        faults = [_fault(request, method, n, prompt) for method in parse_methods(request.methods, request.target)]
        if all(faults):  # else they are skipped rows
            raise UsageError(faults[0])


def _fault(request: InjectRequest, method: MethodRequest, n: int, prompt: int) -> str | None:
    """Why a method that compresses can keep no number of keys of a prompt; None if it can, or does not compress."""
    if method.entry.compress is None:
        return None
    faults = []
    for d in request.budgets_at(n):
        faults.append(why_not_kept(method.entry, prompt, d, method.options))
        if d > prompt:
            raise UsageError(faults[-1])
    return faults[0] if all(faults) else None


def _method_of(request: InjectRequest, budgets: Budgets, notify: Callable[[str], None]) -> str:
    """The method of a file of budgets, as `ErrorRequest` takes it."""
    path, name = request.budgets, budgets.method
    if request.origin.get("methods", "default") == "default" and request.methods == InjectRequest.methods:
        if name not in METHODS:
            raise UsageError(f"{path}: its method {name} is not part of attnprobe; name its file with --method")
        return _text_of(MethodRequest(name, METHODS[name].check("softmax", budgets.options)))
    for method in parse_methods(request.methods, "softmax"):
        if method.label == short_name(name) and method.options == method.entry.check("softmax", budgets.options):
            # Budgets of an edited file are those of another method, though its name is the same.
            sha256 = budgets.about.get("method_sha256")
            if sha256 is None and method.sha256 is not None:
                notify(f"{path}: it has no hash of {name}, which may have changed since its budgets were searched")
            elif sha256 != method.sha256:
                raise UsageError(f"{path}: {name} has changed since `attnprobe budget` wrote this file; run it again")
            return _text_of(method)
    raise UsageError(f"{path}: its budgets belong to {budgets.item}, but --method names {','.join(request.methods)}")


def _text_of(request: MethodRequest) -> str:
    """A method with checked options, in the form of ``--method``."""
    item = Budgets(request.name, request.options, {}).item
    if "," in "".join(map(str, request.options.values())):
        raise UsageError(f"{item}: an option's value has a comma, which --method reads as the next option")
    return item


def _refuse_missing(path: str | None, budgets: Budgets | None, layers: tuple[int, ...], heads: int) -> None:
    """Refuse a file that lacks the budget of a requested head."""
    if budgets is None:
        return
    for layer in layers:
        for head in range(heads):
            if (layer, head) not in budgets.d:
                raise UsageError(f"{path}: it holds no budget for layer {layer}, head {head}; choose other layers")


def _differing(
    path: str | None, budgets: Budgets | None, facts: Mapping[str, Any], lengths: Iterable[int]
) -> dict[str, str]:
    """A note for each fact in which a file of budgets differs from this run, by the fact."""
    about = {} if budgets is None else budgets.about
    facts_here = {
        "model": [facts.get("model")],
        "weights": [facts.get("weights")],
        "n": list(lengths),
        "scale_inputs": [1],
    }
    return {
        name: f"{path}: its budgets are for {name.replace('_', ' ')} {about[name]}; here it is "
        + ", ".join(map(str, values))
        for name, values in facts_here.items()
        if about.get(name) is not None and values != [about[name]]
    }


def inject_batches(plan: InjectPlan, source: Any) -> Iterator[tuple[int, tuple[int, ...], list[InjectCell]]]:
    """``(n, windows, cells)`` of every batch, with a cell for each forward and window."""
    facts, windows = identity_facts(source.facts), range(plan.base.windows)
    for n in plan.base.n:
        for at in range(0, len(windows), plan.request.batch):
            batch = tuple(windows[at : at + plan.request.batch])
            yield n, batch, [_cell(plan, work, n, batch, window, facts) for work in plan.works(n) for window in batch]


def _cell(
    plan: InjectPlan, work: InjectWork, n: int, batch: tuple[int, ...], window: int, facts: Mapping[str, Any]
) -> InjectCell:
    request = plan.request
    budgets = plan.budgets and [[*head, d] for head, d in sorted(plan.budgets.d.items()) if head[0] in work.layers]
    decoding: dict[str, Any] = {"prompt": request.prefix_at(n), "greedy_steps": request.greedy_steps}
    if work.prompt != "exact":
        decoding["prompt_read"] = work.prompt
    if work.plan is not None:
        # the residual error is that beside both streams, and another one would be another cell
        between = {"beside": "both streams"} if request.plan == "residual" else {}
        decoding |= {**between, "plan": request.plan, "plan_windows": [request.windows, request.plan_windows]}
    key = cell_key(
        command="inject",
        **(decoding if request.phase == "decode" else {}),
        **method_identity(work.request),
        source=dict(facts),
        n=n,
        window=window,
        batch=batch,
        lines=request.lines,
        layers=work.layers,
        alone=work.layer is not None,
        **({} if work.head is None else {"kv_head": work.head}),
        **({"exact": True} if work.exact else {}),
        **({} if work.arithmetic is None else {"arithmetic": work.arithmetic}),
        d=work.d,
        budgets=budgets,
        seed=work.seed,
        hidden_words=plan.base.seed,
        model_dtype=request.model_dtype,
    )
    return InjectCell(key, work, window)
