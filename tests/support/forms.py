"""Forms of attention (queries, positions, masks, windows, sinks, groups), and a literal reference with loops.

The reference is written from the documentation of `QKV`, in Python's floats, and shares no code with the package.
"""

import math
from dataclasses import dataclass, field
from functools import cache

import torch

from attnprobe import QKV
from attnprobe.rng import generator

N, P, P_V = 20, 6, 5
HOLES = tuple(i not in (3, 4, 11, 12, 13, 17) for i in range(N))
LEFT = tuple(i >= 4 for i in range(N))
LEFT_AND_HOLES = tuple(i >= 3 and i not in (5, 9, 10, 18) for i in range(N))


@dataclass(frozen=True)
class Form:
    """What each query sees, in tokens of the text.

    Attributes:
        at: the tokens of the queries; None is all n tokens in their order.
        stated: whether the inputs state these tokens as positions; otherwise they follow from the number of queries.
        valid: the tokens that are not padding; None is all.
        all_queries: whether the inputs have the queries of the other tokens too.
    """

    causal: bool = False
    at: tuple[int, ...] | None = None
    stated: bool = True
    window: int | None = None
    sinks: int = 0
    sink_logits: bool = False
    valid: tuple[bool, ...] | None = None
    heads: int = 2
    kv_heads: int = 2
    all_queries: bool = False
    score: float = 2.0
    dtype: torch.dtype = field(default=torch.float64)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token of each query."""
        return tuple(range(N)) if self.at is None else self.at

    def sees(self, c: int, j: int) -> bool:
        """Whether the query of token c sees token j. Sinks are counted from the first token that is not padding."""
        valid = (True,) * N if self.valid is None else self.valid
        if not (valid[c] and valid[j]) or (self.causal and j > c):
            return False
        if self.window is None or abs(c - j) < self.window:
            return True
        return j - valid.index(True) < self.sinks

    @cache  # noqa: B019 - the forms are constants of the tests
    def qkv(self) -> QKV:
        """The inputs as a user makes them."""
        every, k, v = made(self.heads, self.kv_heads, self.score, self.dtype)
        rows = [N + i if c in self.tokens[:i] else c for i, c in enumerate(self.tokens)]  # no two queries are equal
        facts = {"causal": self.causal, "sliding_window": self.window, "sinks": self.sinks}
        if self.valid is not None:
            facts["mask"] = torch.tensor(self.valid)
        if self.at is not None and self.stated:
            facts["positions"] = torch.tensor(self.at)
        if self.all_queries:
            facts["all_queries"] = every[:, :N]
        if self.sink_logits:
            facts["sink_logits"] = torch.linspace(-1, 2, self.heads, dtype=self.dtype)
        return QKV(every[:, rows], k, v, scale=0.6, **facts)


@cache
def made(heads, kv_heads, score, dtype):
    """The queries of all tokens and twice as many more, the keys and the values."""
    g = generator(0, "forms")
    sizes = (heads, 3 * N, P), (kv_heads, N, P), (kv_heads, N, P_V)
    q, k, v = (torch.randn(size, generator=g) for size in sizes)
    return tuple((x * (score**0.5 if i < 2 else 1)).to(dtype) for i, x in enumerate((q, k, v)))


@cache
def literal(form: Form, target: str = "softmax") -> tuple[torch.Tensor, torch.Tensor]:
    """B or C, (h, n_q, n_k), and its product with V, (h, n_q, p_v), of the inputs in the form's dtype; float64."""
    qkv = form.qkv()
    q, k, v = (x.double().tolist() for x in (qkv.q, qkv.shared_k, qkv.shared_v))
    logits = None if qkv.sink_logits is None else qkv.sink_logits.double().tolist()
    matrix = torch.zeros(form.heads, len(form.tokens), N, dtype=torch.float64)
    output = torch.zeros(form.heads, len(form.tokens), P_V, dtype=torch.float64)
    for head in range(form.heads):
        group = head // (form.heads // form.kv_heads)
        for row, token in enumerate(form.tokens):
            keys = [j for j in range(N) if form.sees(token, j)]
            if target == "gaussian":
                gaps = [math.fsum((a - b) ** 2 for a, b in zip(q[head][row], k[group][j], strict=True)) for j in keys]
                weights = [math.exp(-gap * 0.6 / 2) for gap in gaps]
            elif keys:
                scores = [0.6 * math.fsum(a * b for a, b in zip(q[head][row], k[group][j], strict=True)) for j in keys]
                beside = [] if logits is None else [logits[head]]
                largest = max(scores + beside)
                total = math.fsum(math.exp(score - largest) for score in scores + beside)
                weights = [math.exp(score - largest) / total for score in scores]
            else:
                weights = []
            for j, weight in zip(keys, weights, strict=True):
                matrix[head, row, j] = weight
            for column in range(P_V):
                terms = [weight * v[group][j][column] for j, weight in zip(keys, weights, strict=True)]
                output[head, row, column] = math.fsum(terms)
    return matrix, output
