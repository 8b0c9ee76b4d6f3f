"""Every public function with arguments that nobody means: a result, or one line of an `AttnprobeError`."""

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Broken
from golden import small_runs as golden
from safetensors.torch import save_file
from sources_helpers import bert_config

import attnprobe
from attnprobe import QKV, Approximation, AttnprobeError
from attnprobe.grammar.arguments import fault
from attnprobe.testing import examine

LONGEST = 1000  # characters of a message


class Touchy:
    """An object that can be asked nothing."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("two\nlines")

    def __repr__(self) -> str:
        raise RuntimeError("two\nlines")


class Hollow(attnprobe.Operator):
    """An operator without anything."""


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def qkv(**more: Any) -> QKV:
    return QKV(x(2, 8, 4), x(2, 8, 4), x(2, 8, 3), **more)


OF_ANY_KIND: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "list": lambda: [],
    "numbers": lambda: [0.5, "a"],
    "tuple": lambda: (None,),
    "dict": lambda: {"a": [1]},
    "text": lambda: "x",
    "empty": lambda: "",
    "lines": lambda: "a\nb\x1b[31m",
    "letters": lambda: "x" * 100_000,
    "bytes": lambda: b"\xff",
    "True": lambda: True,
    "zero": lambda: 0,
    "negative": lambda: -1,
    "huge": lambda: 10**30,
    "digits": lambda: 10**5000,
    "half": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "complex": lambda: 1j,
    "array": lambda: np.ones((2, 8, 3)),
    "scalar": lambda: np.float32(3),
    "type": lambda: int,
    "object": lambda: object(),
    "touchy": Touchy,
    "generator": lambda: (i for i in range(2)),
    "qkv": lambda: qkv(),
    "hollow": Hollow,
    "nothing": lambda: Approximation(None, None),  # type: ignore[arg-type]
}
OUTPUTS: dict[str, Callable[[], Any]] = {
    "output": lambda: x(2, 8, 3),
    "flat": lambda: x(8, 3),
    "scalar tensor": lambda: torch.tensor(1.0),
    "short": lambda: x(2, 7, 3),
    "none": lambda: x(0, 8, 3),
    "whole": lambda: x(2, 8, 3).long(),
    "complex output": lambda: x(2, 8, 3).to(torch.complex64),
    "meta": lambda: x(2, 8, 3).to("meta"),
    "sparse": lambda: x(2, 8, 3).to_sparse(),
    "nan output": lambda: x(2, 8, 3) * torch.nan,
    "gradient": lambda: x(2, 8, 3).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(x(2, 8, 3)),
    "half precision": lambda: x(2, 8, 3).half(),
    "of meta": lambda: Approximation(None, x(2, 8, 3).to("meta")),
    "of sparse": lambda: Approximation(None, x(2, 8, 3).to_sparse()),
    "of complex": lambda: Approximation(None, x(2, 8, 3).to(torch.complex64)),
    "of hollow": lambda: Approximation(Hollow(), x(2, 8, 3)),
    "of others": lambda: attnprobe.approximate("vmean", QKV(*x(3, 1, 5, 2))),
}
INPUTS: dict[str, Callable[[], Any]] = {
    "masked": lambda: qkv(mask=torch.arange(8) < 5),
    "causal": lambda: qkv(causal=True),
    "window": lambda: qkv(causal=True, sliding_window=2, sinks=1),
    "sink logits": lambda: qkv(sink_logits=torch.zeros(2)),
    "gradients": lambda: QKV(*(part.requires_grad_() for part in (x(2, 8, 4), x(2, 8, 4), x(2, 8, 3)))),
    "float64": lambda: qkv().to(dtype=torch.float64),
    "float16": lambda: qkv().to(dtype=torch.float16),
    "one token": lambda: QKV(*x(3, 1, 1, 2)),
    "other heads": lambda: QKV(*x(3, 1, 8, 3)),
    "other tokens": lambda: QKV(*x(3, 2, 5, 3)),
}
MATRICES: dict[str, Callable[[], Any]] = {
    "exact": lambda: attnprobe.exact(qkv()),
    "gaussian": lambda: attnprobe.exact(qkv(), "gaussian"),
    "small": lambda: attnprobe.exact(QKV(*x(3, 2, 5, 3))),
    "of float64": lambda: attnprobe.exact(qkv().to(dtype=torch.float64)),
}
DEVICES = {"cpu": lambda: ["cpu"], "cpu twice": lambda: ["cpu", "cpu"], "meta device": lambda: ["meta"]}
DEVICES |= {"cuda:99": lambda: ["cuda:99"], "no device": lambda: ["\n"], "word": lambda: "cpu", "number": lambda: [-1]}
KEYS = {"keys": lambda: torch.tensor([1, 2]), "no keys": lambda: torch.tensor([], dtype=torch.int64)}
KEYS |= {"beyond": lambda: torch.tensor([99]), "halves": lambda: torch.tensor([0.5]), "2-d": lambda: torch.ones(2, 2)}
KEYS |= {"twice": lambda: torch.tensor([1, 1]), "meta keys": lambda: torch.ones(2, device="meta").long()}
EVERYTHING = OF_ANY_KIND | OUTPUTS | INPUTS | MATRICES | DEVICES | KEYS


def raising(q: Any) -> Any:
    raise ValueError("a\nb")


METHODS = {"function": lambda: raising, "lambda": lambda: lambda v: v, "builtin": lambda: len, "class": lambda: Touchy}


Table = dict[str, tuple[Callable[..., Any], dict[str, Any]]]


def functions() -> Table:
    """The public functions of tensors, each with good arguments by name."""
    inputs = qkv()
    exact, approx = attnprobe.exact(inputs), attnprobe.approximate("skyformer", inputs, 4)
    found = {"reference": exact, "approx": approx, "qkv": inputs}
    limits = {"d_min": 1, "d_max": 4, "resolution": 2.0, "scan": False}
    return {
        "approximate": (
            attnprobe.approximate,
            {"method": "skyformer", "qkv": inputs, "d": 4, "seed": 0, "target": "softmax", "gamma": 0.01},
        ),
        "exact": (attnprobe.exact, {"qkv": inputs, "target": "softmax"}),
        "matrix_errors": (
            attnprobe.matrix_errors,
            {"exact": exact, "approx": approx.operator, "tol": 1e-3, "seed": 0, "delta": 1e-10},
        ),
        "output_errors": (attnprobe.output_errors, found),
        "kernel_errors": (
            attnprobe.kernel_errors,
            {"approx": approx, "qkv": inputs, "dtype": None, "row_tolerance": None, "reference": None},
        ),
        "row_metrics": (attnprobe.row_metrics, found | {"needle": None}),
        "input_statistics": (attnprobe.input_statistics, {"qkv": inputs, "norms": None}),
        "spectra": (attnprobe.spectra, {"qkv": inputs}),
        "budgets": (
            attnprobe.budgets,
            {"qkv": inputs, "method": "svd", "epsilon": 0.5, "metric": "output_spectral", "delta": 0.1}
            | {"seeds": range(2), "target": "softmax", **limits},
        ),
        "findings": (
            attnprobe.findings,
            {"qkv": inputs, "theorem": "skyformer-theorem-2", "d": 4, "epsilon": 0.1, "delta": 0.1}
            | {"methods": ("skyformer",), "seeds": range(2), "target": "softmax", "quadrature": None},
        ),
        "method": (attnprobe.method, {"function": lambda v: v, "linear_in_v": True, "tags": ()}),
        "examine": (examine, {"method": "vmean", "only": ["shapes"], "target": None, "fixed": None}),
        "Approximation.of": (Approximation.of, {"operator": exact, "qkv": inputs}),
    }


def of_files(folder: Path) -> Table:
    """Those that read files."""
    save_file({axis: x(2, 8, 3) for axis in "qkv"}, folder / "qkv.safetensors")
    run = shutil.copytree(golden.RUNS / "error", folder / "run")
    names = dict.fromkeys(("model", "text", "tokenizer", "queries"))
    numbers = {"n": 8, "layer": 0, "window": 0, "weights_seed": 0, "strict": False, "cache": False}
    words = {"weights": "pretrained", "split": "test", "positions": "segment", "device": "cpu", "dtype": "float32"}
    source = {"qkv": str(folder / "qkv.safetensors"), **names, **numbers, **words, "notify": lambda line: None}
    small = partial(attnprobe.probe, qkv=source["qkv"], d=(2,), out=str(folder / "own"))
    return {
        "load_qkv": (attnprobe.load_qkv, source),
        "open_run": (attnprobe.open_run, {"path": run}),
        "probe": (small, {"command": "error"}),  # test_options has values of options
    }


def of_models() -> Table:
    """Those that use a model, or train one for a step."""
    from transformers import BertModel

    model = BertModel(bert_config()).eval()
    ids = torch.arange(6)[None]

    def use(model: Any, **more: Any) -> Any:
        with attnprobe.injected(model, **more):
            return model(ids)

    method = {"method": "skyformer", "d": 4, "seed": 0, "target": "softmax"}
    task = {"task": "listops", "d": 4, "n": 64, "batch": 1, "steps": 1, "seed": 0, "rate": 1e-3, "eps": 1e-6}
    rest = {"target": "own", "device": "cpu", "condition_tokens": 0, "dtype": "float32", "text": None, "data": None}
    return {
        "capture": (attnprobe.capture, {"model": model, "inputs": {"input_ids": ids}, "layers": None}),
        "injected": (use, {"model": model, **method, "layer": "all"}),
        "register_attention": (attnprobe.register_attention, method | {"name": None}),
        "instability": (attnprobe.instability, {"method": "vmean", **task, **rest}),
    }


def of_pages(folder: Path) -> Table:
    """Those of the modules that have a page in the reference."""
    from attnprobe import inputs as sources
    from attnprobe import methods, metrics, theorems
    from attnprobe.frame import records
    from attnprobe.operators.linalg.condition import condition
    from attnprobe.show import page as report

    save_file({axis: x(2, 8, 3) for axis in "qkv"}, folder / "qkv.safetensors")
    spec = sources.SourceSpec(qkv=str(folder / "qkv.safetensors"))
    source, run = sources.resolve(spec), report.open_run(golden.RUNS / "error")
    fields = {"model": None, "weights": "pretrained", "text": None, "queries": None}
    fields |= {"device": "cpu", "dtype": "float32", "positions": "segment", "split": "test", "weights_seed": 0}
    keys, inputs, cores = torch.zeros(2, 8, 3).long(), qkv(), x(2, 3, 3)
    approx = attnprobe.approximate("skyformer", inputs, 4)
    found = {
        "SourceSpec": (lambda **given: sources.resolve(sources.SourceSpec(**given)), fields | {"qkv": spec.qkv}),
        "choose_device": (sources.choose_device, {"name": "cpu"}),
        "packaged_weights": (sources.packaged_weights, {"name": "minilm"}),
        "resolve": (sources.resolve, {"spec": spec, "notify": print}),
        "save_qkv": (
            sources.save_qkv,
            {"path": folder / "saved.safetensors", "source": source, "n": 8, "layers": [0], "windows": 1},
        ),
        "scaled": (sources.scaled, {"qkv": inputs, "factor": 0.5}),
        "scaled_inputs": (sources.scaled_inputs, {"source": source, "factors": [0.5, 1.0]}),
        "survey": (sources.survey, {"name": "minilm", "weights": "pretrained"}),
        "attention_maps": (metrics.attention_maps, {"operator": attnprobe.exact(inputs), "blocks": 4}),
        "attention_matrix": (metrics.attention_matrix, {"qkv": inputs, "of": "softmax"}),
        "exact_norms": (metrics.exact_norms, {"exact": attnprobe.exact(inputs), "tol": 1e-3, "seed": 0, "delta": 0.1}),
        "shared_matrix_errors": (
            metrics.shared_matrix_errors,
            {"exact": attnprobe.exact(inputs), "approximations": [approx.operator], "tol": 1e-3, "seed": 0},
        ),
        "lower_bound": (metrics.lower_bound, {"exact": x(2, 8, 3), "d": 2}),
        "core_matrices": (metrics.core_matrices, {"qkv": inputs, "approx": approx, "options": {}}),
        "lemma3_interval": (metrics.lemma3_interval, {"core": cores}),
        "schulz_residuals": (partial(metrics.schulz_residuals, n_iter=2), {"core": cores, "rule": "norms"}),
        "iteration_gradient": (partial(metrics.iteration_gradient, n_iter=2), {"core": cores, "rule": "norms"}),
        "inverse_gradient": (metrics.inverse_gradient, {"measured": condition(cores[0]), "log_scale": 0.0}),
        "position_profile": (
            metrics.position_profile,
            {"values": {"mass": x(2, 8)}, "positions": torch.arange(8)},
        ),
        "neighbour_overlap": (metrics.neighbour_overlap, {"keys": keys}),
        "selection_overlap": (metrics.selection_overlap, {"first": keys, "second": keys}),
        "over_rows": (metrics.over_rows, {"by_metric": {"mass": x(2, 8)}}),
        "by_family": (methods.by_family, {"kernels": True}),
        "error_text": (methods.error_text, {"error": ValueError("x")}),
        "line_of": (methods.line_of, {"error": ValueError("x")}),
        "get": (methods.get, {"method": "skyformer"}),
        "is_method": (methods.is_method, {"name": "skyformer"}),
        "get_theorem": (theorems.get_theorem, {"name": "eckart-young"}),
        "html_page": (report.html_page, {"reports": []}),
        "views": (report.views, {"run": run, "metric": None, "style": "paper"}),
        "read_records": (records.read_records, {"path": golden.RUNS / "error"}),
    }
    return found


def cases(table: Table) -> Iterator[tuple[str, str, str]]:
    """Functions x parameters x values; a parameter gets the values of any kind and those that suit its name."""
    suiting = {"qkv": INPUTS, "exact": MATRICES, "reference": MATRICES | OUTPUTS, "approx": MATRICES | OUTPUTS}
    suiting |= {"operator": MATRICES, "needle": KEYS, "method": METHODS, "function": METHODS}
    for name, (_, good) in table.items():
        for parameter in good:
            for value in OF_ANY_KIND | suiting.get(parameter, {}):
                yield name, parameter, value


def value_of(name: str) -> Any:
    return (EVERYTHING | METHODS)[name]()


def attempt(table: Table, name: str, parameter: str, value: str) -> Any:
    """Call a function with one argument replaced: its result, or the one line that refuses it."""
    function, good = table[name]
    try:
        with warnings.catch_warnings(action="ignore"):
            return function(**good | {parameter: value_of(value)})
    except AttnprobeError as error:
        text = str(error)
        if len(text.splitlines()) != 1 or len(text) > LONGEST:
            raise Broken(
                f"a message of {len(text.splitlines())} lines and {len(text)} letters: {text[:80]!r}"
            ) from None
        return error
    except Exception as error:
        if error.__traceback__ and value in METHODS and "a\nb" in str(error):
            return error  # the user's own
        raise Broken(f"{type(error).__name__}: {str(error)[:80]!r}") from None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Words are names of files, too."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_every_public_function_is_among_them(tmp_path):
    classes = {name for name in attnprobe.__all__ if isinstance(getattr(attnprobe, name), type)}
    tried = functions() | of_files(tmp_path) | of_models()
    assert set(attnprobe.__all__) - classes - {"__version__"} <= set(tried)


@pytest.mark.parametrize("share", [slice(None, None, 12), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_arguments(share, held):
    table = functions()
    held(partial(attempt, table), list(cases(table))[share])


@pytest.mark.parametrize("share", [slice(None, None, 12), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_arguments_of_what_reads_files(share, held, no_hub, tmp_path):
    table = of_files(tmp_path)
    small = [one for one in cases(table) if one != ("load_qkv", "qkv", "None")]  # which loads the default model
    held(partial(attempt, table), small[share])


@pytest.mark.parametrize("share", [slice(None, None, 12), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_arguments_of_the_reference_s_other_functions(share, held, no_hub, tmp_path):
    table = of_pages(tmp_path)
    held(partial(attempt, table), list(cases(table))[share])


@pytest.mark.slow
def test_arguments_of_what_uses_models(held, no_hub):
    table = of_models()
    endless = {("instability", "steps"), ("instability", "batch")}  # as many as are asked for
    held(partial(attempt, table), [one for one in cases(table) if one[:2] not in endless])


@pytest.mark.parametrize(
    "value, kind, words",
    [
        (True, int, "=True; a whole number is needed"),
        (1.0, int, "=1.0; a whole number is needed"),
        (float("nan"), float, "=nan; a number is needed"),
        (1, bool, "=1; True or False is needed"),
        ("ab", Sequence[str], "='ab'; a sequence of text is needed"),
        ([1, "a"], Sequence[int], "[1]='a'; a whole number is needed"),
        ({"a": 1}, Mapping[str, torch.Tensor], "['a']=1; a Tensor is needed"),
        ((1, {}, 3), tuple[int, dict[str, Any]], " has 3 items; 2 are needed"),
        (5, tuple[str, ...], "=5; a tuple of text is needed"),
        (2**63, float, " is a whole number of 64 bits; at most 63 are possible"),
    ],
)
def test_a_fault_is_named(value, kind, words):
    assert fault(value, kind) == words


@pytest.mark.parametrize(
    "value, kind",
    [
        (np.int64(3), int),
        (np.float32(0.5), float),
        (3, float),
        ((i for i in "ab"), Iterable[str]),
        ([], Sequence[int]),
        (None, int | None),
        (torch.nn.Parameter(torch.zeros(2)), torch.Tensor),
        ((4, {"a": 1}), tuple[int | None, dict[str, Any]]),
    ],
)
def test_what_is_of_its_type_has_no_fault(value, kind):
    assert fault(value, kind) is None


def test_a_needle_named_twice_is_refused():
    inputs = qkv()
    approx = attnprobe.approximate("topk", inputs, 4)
    with pytest.raises(attnprobe.UsageError, match="a key is named twice"):
        attnprobe.row_metrics(attnprobe.exact(inputs), approx, inputs, needle=torch.tensor([1, 1]))


def test_every_message_is_one_line():
    assert str(attnprobe.UsageError("a\n  b\r\n\u2028c")) == "a b c"
    assert len(str(attnprobe.UsageError("x" * 10**6))) == LONGEST
