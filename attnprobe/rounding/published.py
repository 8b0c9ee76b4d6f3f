"""Published code of methods, really run in few bits: `PUBLISHED` has its facts, and `published_errors` measures it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Unsupported
from ..grammar.arithmetic import EVERY, Format
from .computation import Computation
from .measured import GOAL, added

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}  # in which torch computes


@dataclass(frozen=True)
class Published:
    """A package with the code of a method.

    Attributes:
        package: its name for pip. module: its name for Python.
        options: those with which our method computes the same in float64.
        make: the module of one head, in float64, from the package, ``n``, ``p``, ``d`` and the head's draws by name.
        joined: whether its input is one tensor ``[q, k, v]``, (1, n, 3 p), instead of three (1, 1, n, p).
    """

    package: str
    module: str
    make: Callable[[Any, int, int, int, Mapping[str, Tensor]], nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    joined: bool = True

    @property
    def name(self) -> str:
        """What rows call it, which no method is called."""
        return f"pip:{self.package}"

    def opened(self) -> Any:
        """The imported package.

        Raises:
            Unsupported: it is not installed.
        """
        if find_spec(self.module.partition(".")[0]) is None:
            raise Unsupported(f"{self.package} is not installed; pip install {self.package}")
        return import_module(self.module)


class Part(nn.Module):
    """One of the parts of an input that consists of q, k and v."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return x.chunk(3, -1)[self.number]


def _nystrom(package: Any, n: int, p: int, d: int, draws: Mapping[str, Tensor]) -> nn.Module:
    module = package.NystromAttention(dim=3 * p, dim_head=p, heads=1, num_landmarks=d, residual=False)
    # the published module has projections around the attention; only the attention is compared
    module.to_qkv = module.to_out = nn.Identity()
    return module


def _performer(package: Any, n: int, p: int, d: int, draws: Mapping[str, Tensor]) -> nn.Module:
    module = package.FastAttention(p, nb_features=draws["projection"].shape[0]).double()
    module.projection_matrix.copy_(draws["projection"])
    return module


def _linformer(package: Any, n: int, p: int, d: int, draws: Mapping[str, Tensor]) -> nn.Module:
    module = package.LinformerSelfAttention(dim=3 * p, seq_len=n, k=d, heads=1, dim_head=p).double()
    module.to_q, module.to_k, module.to_v, module.to_out = *map(Part, range(3)), nn.Identity()
    with torch.no_grad():
        module.proj_k.copy_(draws["sketch"])
        module.proj_v.copy_(draws.get("sketch_values", draws["sketch"]))
    return module


#: by the name of the method
PUBLISHED = {
    "nystromformer": Published("nystrom-attention", "nystrom_attention", _nystrom),
    "performer": Published("performer-pytorch", "performer_pytorch", _performer, {"eps": 1e-4}, joined=False),
    "linformer": Published("linformer", "linformer", _linformer),
}


def why_not_published(computation: Computation, to: Format, arithmetic: str) -> str | None:
    """Why the published code of a method cannot run so; None if it can."""
    qkv, known = computation.qkv, PUBLISHED[computation.method.name]
    if to.name not in DTYPES:
        return f"{known.package} runs in torch's {', '.join(DTYPES)}, and torch computes nothing in {to.name}"
    if arithmetic != EVERY:
        return f"{known.package} runs as it is written; choose {to.name}"
    if qkv.causal or qkv.sliding_window is not None or qkv.mask is not None or qkv.sink_logits is not None:
        return f"{known.package} has no form for causal, padded or windowed attention, or for sinks"
    if qkv.terms is not None:
        return f"{known.package} has no form for {qkv.terms}"
    if qkv.n_q != qkv.n_k or qkv.p != qkv.p_v:
        return f"{known.package} needs as many queries as keys, and values as wide as queries"
    if computation.target != "softmax":
        return f"{known.package} approximates softmax attention"
    return None


def published_errors(
    computation: Computation, to: Format, arithmetic: str = EVERY, goal: float = GOAL
) -> dict[str, Tensor]:
    """The errors of a method's published code, really run in the dtype of a format, (h,) each by name.

    The code runs head by head, with the draws of our method, in float64 and in the dtype. Its own error is the distance
    of its float64 output from exact attention. What it keeps in float32 inside, or pads, it does here too.

    Raises:
        Unsupported: the package is not installed, or has no form for these inputs.
    """
    known = PUBLISHED[computation.method.name]
    if (why := why_not_published(computation, to, arithmetic)) is not None:
        raise Unsupported(why)
    package = known.opened()
    plain, own = (_output(known, package, computation, dtype) for dtype in (torch.float64, DTYPES[to.name]))
    return added(computation, plain, own, to, goal)


def _output(known: Published, package: Any, computation: Computation, dtype: torch.dtype) -> Tensor:
    """The output of the code in a dtype, (h, n, p) float64."""
    qkv, outputs = computation.qkv, []
    factor = (qkv.scale * qkv.p**0.5) ** 0.5  # the code's own scale is p^-½
    for row in range(qkv.h):
        draws = {name: values[row] for name, values in computation.approximation.draws.items()}
        with torch.no_grad():
            with _default_dtype(torch.float64):
                module = known.make(package, qkv.n, qkv.p, computation.d or qkv.p, draws).double().eval()
            parts = [x[row].to(dtype) for x in (factor * qkv.q, factor * qkv.k, qkv.v)]
            inputs = [torch.cat(parts, -1)[None]] if known.joined else [x[None, None] for x in parts]
            with _default_dtype(dtype):  # constants that the code makes have no dtype of their own
                # a copy: buffers that the code fills in a forward must not reach the next dtype
                outputs.append(copy.deepcopy(module).to(dtype)(*inputs).double().reshape(qkv.n, qkv.p))
    return torch.stack(outputs)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
