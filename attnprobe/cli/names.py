"""Names of methods and of their options, without importing the methods' modules, which takes seconds."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..environment import plugins
from ..errors import UsageError, unknown, unknown_method, unknown_option
from ..experiments import EXPERIMENTS, experiment
from ..files import NO_METHOD, path_of, qkv_file, reading, text_file
from ..grammar.lists import (
    SELECTION,
    available_ones,
    check_device,
    file_and_function,
    is_file_of_text,
    parts,
    refuse_colons,
)
from ..run.topics.reading import Reading, Tensors
from ..run.topics.running import RunRequest

# the built-in methods by family, with their papers; a test compares the registry
INDEX = {
    "exact": {
        "kernelized": "Chen et al., Skyformer (2021)",
        "softmax": "Vaswani et al., Attention Is All You Need (2017)",
    },
    "Nyström": {
        "mss": "Verma, Beyond Nyströmformer (an interpretation) (2021)",
        "mss-literal": "Verma, Beyond Nyströmformer (as printed) (2021)",
        "nystromformer": "Xiong et al., Nyströmformer (2021)",
        "nystromformer-kmeans": "Xiong et al., Nyströmformer, with the landmarks of Zhang, Tsang & Kwok (2021)",
        "prototype": "Wang & Zhang, Improving CUR matrix decomposition and the Nyström approximation (2013)",
        "skyformer": "Chen et al., Skyformer (2021)",
        "spectral-shift": "Wang et al., Improving the modified Nyström method using spectral shifting (2014)",
        "wildcat": "Schröder & Mackey, WildCat (2026)",
    },
    "sampling": {
        "informer": "Zhou et al., Informer (2021)",
        "skeinformer": "Chen et al., Skeinformer (2022)",
        "thinformer": "Carrell et al., Thinformer: low-rank thinning (2025)",
        "vattention": "Desai et al., vAttention: verified sparse attention (2025)",
    },
    "sketch": {
        "amm": "Drineas, Kannan & Mahoney, Fast Monte Carlo algorithms for matrices I (2006)",
        "linformer": "Wang et al., Linformer (untrained) (2020)",
        "linformer-jlt": "Wang et al., Linformer (theorem 1, unreduced) (2020)",
    },
    "features": {
        "efficient": "Shen et al., Efficient Attention (2021)",
        "linear": "Katharopoulos et al., Linear Transformer (2020)",
        "performer": "Choromanski et al., Performer (2021)",
        "performer-relu": "Choromanski et al., Performer (2021)",
    },
    "LSH": {
        "hyper": "Han et al., HyperAttention (2024)",
        "kdeformer": "Zandieh et al., KDEformer (2023)",
        "lsh-qk": "after Kitaev, Kaiser & Levskaya, Reformer (2020)",
        "magicpig": "Chen et al., MagicPIG: LSH sampling for efficient LLM generation (2024)",
        "reformer": "Kitaev, Kaiser & Levskaya, Reformer (2020)",
    },
    "sparse": {
        "bigbird": "Zaheer et al., BigBird (2020)",
        "longformer": "Beltagy et al., Longformer (2020)",
        "topk": "Gupta et al., Top-k Attention (2021)",
        "tri-shape": "Li et al., SCBench (Tri-shape) (2024)",
        "window": "Xiao et al., StreamingLLM (2024)",
    },
    "selection": {
        "block-topk": "Jiang et al., MInference (block-sparse head) (2024)",
        "dsa-oracle": "DeepSeek-AI, DeepSeek-V3.2-Exp (what its indexer is trained for) (2025)",
        "expected": "Devoto et al., Expected Attention (2025)",
        "flexprefill": "Lai et al., FlexPrefill (2025)",
        "h2o": "Zhang et al., H2O (2023)",
        "keydiff": "Park et al., KeyDiff (2025)",
        "knorm": "Devoto et al., L2-norm KV compression (2024)",
        "moba": "Lu et al., MoBA (2025)",
        "nsa": "Yuan et al., Native Sparse Attention (untrained) (2025)",
        "quest": "Tang et al., Quest (2024)",
        "random": "random keys beside the sinks of StreamingLLM, a floor (2024)",
        "snapkv": "Li et al., SnapKV (2024)",
        "topp": "Lin et al., Twilight (2025)",
        "tova": "Oren et al., TOVA (2024)",
        "vertical-slash": "Jiang et al., MInference (vertical-slash head) (2024)",
        "xattention": "Xu et al., XAttention (2025)",
    },
    "reference": {"svd": "Eckart & Young (1936)", "vmean": "Chen et al., Skeinformer (baseline) (2022)"},
    "kernel": {
        "torch:flex": "Dong et al., Flex Attention (2024)",
        "torch:int8": "Zhang et al., SageAttention (2024)",
        "torch:sdpa-flash": "Dao et al., FlashAttention (2022)",
        "torch:sdpa-math": "PyTorch, scaled_dot_product_attention (2023)",
    },
}
NAMES = tuple(name for family in INDEX.values() for name in family)
# of `spectrum --of`, and the layers and heads of packaged weights; a test compares both
MATRICES = ("softmax", "unnormalised", "gaussian", "lifted-softmax", "lifted-gaussian", "output")
PACKAGED = {"minilm": (6, 12), "smollm2": (30, 9)}


def check_methods(texts: Iterable[str], what: str = "method", beside: Sequence[str] = ()) -> None:
    """Refuse an unknown method or option of a method as `attnprobe.run.plan.parse_methods` does, but at once.

    Args:
        what: a name is called in the message. beside: other names that are possible.

    >>> check_methods(["skyformer:sampler=iid,guard=none,all"])
    >>> check_methods(["skyformer:inverze=pinv"])
    Traceback (most recent call last):
        ...
    attnprobe.errors.UsageError: unknown option of skyformer 'inverze'; did you mean 'inverse'?
    """
    method = "all"
    for item in (item.strip() for text in texts for item in text.split(",")):
        refuse_colons(item)
        name, options = parts(item)
        if "=" in item and options is None:
            options = item
        else:
            method = name
            file = file_and_function(name)
            elsewhere = name in ("", "all", *beside) or name.startswith(SELECTION) or file is not None
            if file is not None:
                with reading(file[0], UsageError, NO_METHOD):
                    path_of(file[0]).stat()
            known = elsewhere or name in NAMES or name in _registered("methods.registry", "METHODS")
            if not known and name not in (installed := plugins()):
                raise unknown_method(what, name, [*beside, *sorted([*NAMES, *installed])])
        option, equals, value = (options or "").partition("=")
        if option and equals and method in NAMES:
            taken = options_of_method(method)
            if option not in taken:
                raise unknown_option(method, option, taken)
            if taken[option] and value not in taken[option]:
                raise unknown(f"value of {method}:{option}", value, taken[option])


def check_given(request: RunRequest) -> None:
    """Refuse what is given and is not there before torch is imported: methods, matrices, theorems, a text, tensors, a
    device, and layers and heads of packaged weights.
    """
    check_methods(getattr(request, "methods", None) or ())
    check_methods(getattr(request, "of", ()), "matrix or method", MATRICES)
    texts = getattr(request, "theorems", ())
    names = [name for text in texts for name in map(str.strip, text.split(",")) if name not in ("", "all")]
    known = [*dict.fromkeys([*theorem_names(), *_registered("theorems.finding", "THEOREMS")])] if names else []
    for name in names:
        if name not in known:
            raise unknown("theorem", name, known)
    if isinstance(request, Tensors) and request.qkv is not None:
        qkv_file(request.qkv)
    if isinstance(request, Reading) and request.text is not None and is_file_of_text(request.text):
        text_file(request.text)
    check_device(request.device)
    if isinstance(request, Reading) and request.model in PACKAGED:
        for what, count in zip(("layer", "head"), PACKAGED[request.model], strict=True):
            chosen = getattr(request, what, None)
            if isinstance(chosen, tuple):
                available_ones(chosen, what, range(count))


def theorem_names() -> list[str]:
    """The theorems, as their files register them."""
    files = sorted((Path(__file__).parent.parent / "theorems").glob("*.py"))
    return [name for file in files for name in re.findall(r'^@theorem\(\s*"([^"]+)"', file.read_text("utf-8"), re.M)]


def _registered(module: str, table: str) -> Collection[str]:
    """The methods or theorems that this process has registered, if it has imported their module."""
    return getattr(sys.modules.get(f"attnprobe.{module}"), table, ())


def options_of_method(method: str) -> dict[str, tuple[str, ...]]:
    """The options of a built-in method: keyword-only arguments of the function that is registered with its name. Each
    has the words that it takes; none if it takes other values.
    """
    for file in sorted((Path(__file__).parent.parent / "methods").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if f'name="{method}"' in text:
            body = ast.parse(text).body
            functions = [node for node in body if isinstance(node, ast.FunctionDef)]
            [found] = [one for one in functions if f"(name='{method}'" in "".join(map(ast.unparse, one.decorator_list))]
            kinds = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
            taken = [argument for argument in found.args.kwonlyargs if argument.arg not in ("streams", "target")]
            return {argument.arg: _words(argument.annotation, kinds) for argument in taken}
    raise AssertionError(f"no file registers {method}")


def _words(hint: ast.expr | None, kinds: Mapping[str, ast.expr]) -> tuple[str, ...]:
    """The words of a ``Literal``, also of one that the module gives a name."""
    if isinstance(hint, ast.Name):
        hint = kinds.get(hint.id)
    if not isinstance(hint, ast.Subscript) or ast.unparse(hint.value) != "Literal":
        return ()
    words = ast.literal_eval(hint.slice)
    return words if isinstance(words, tuple) else (words,)


def complete_methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The methods of the project and of installed packages that begin with the typed text, and files."""
    return _completed({*NAMES, *plugins()}, incomplete, ".py")


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The packaged weights that begin with the typed text, and files."""
    return _completed(PACKAGED, incomplete, ".gguf")


def complete_compared(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The metrics of which smaller or larger is better, of the commands that `attnprobe compare` takes."""
    from ..compare.runs import directed
    from ..compare.verdicts import BENCHED

    commands = [name for name in EXPERIMENTS if experiment(name).compared]
    return _completed({*BENCHED, *(metric for name in commands for metric in directed(name))}, incomplete)


def _completed(names: Iterable[str], incomplete: str, ending: str | None = None) -> list[Any]:
    """The names that begin with the typed text; files for a path, or a text with the ``ending`` of files.

    What stands before the last comma stays: ``skyformer,nys`` becomes ``skyformer,nystromformer``.
    """
    from click.shell_completion import CompletionItem

    before, comma, last = incomplete.rpartition(",")
    matches = [f"{before}{comma}{name}" for name in sorted(names) if name.startswith(last)]
    if matches or ending is None or not last.startswith((".", "/", "~")) and ending not in last:
        return [CompletionItem(name) for name in matches]
    return [CompletionItem(incomplete, type="file")]


def method_list() -> str:
    """The methods by family, then those of installed packages, a line each."""
    width = max(len(name) for family in INDEX.values() for name in family) + 2
    parts = []
    for family, papers in INDEX.items():
        parts += [family, *(f"  {name:{width}}{paper}" for name, paper in papers.items()), ""]
    if installed := plugins():
        parts += ["of installed packages", *(f"  {name}" for name in installed), ""]
    return "\n".join(
        [*parts, "attnprobe methods NAME explains a method; --long lists targets, budgets, costs and tags."]
    )
