"""Arguments that a metric cannot take: one line that says what is wrong."""

import pytest
import torch

from attnprobe import QKV, AttnprobeError, approximate, exact
from attnprobe.metrics.condition import core_matrices, lemma3_interval
from attnprobe.metrics.matrix import matrix_errors
from attnprobe.metrics.output import ExactOutput, lower_bound
from attnprobe.metrics.residual import residual_rows
from attnprobe.metrics.rows import row_metrics
from attnprobe.metrics.spectrum import attention_matrix
from attnprobe.operators import Dense
from attnprobe.operators.compose import Mosaic
from attnprobe.operators.linalg.dimension import statistical_dimension

NUMBERS = "needle: numbers of keys are needed"
SHAPES = r"needs square matrices and \(h, L\)"
X = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
INPUTS = QKV(X, X.flip(1), X)
FEWER = {"heads": QKV(X[:1], X[:1], X[:1]), "keys": QKV(X[:, :2], X[:, :2], X[:, :2])}
SQUARE = Dense(torch.eye(3).expand(2, 3, 3))


def errors(**options):
    return matrix_errors(exact(INPUTS), approximate("vmean", INPUTS).operator, **options)


def rows(needle):
    return row_metrics(exact(INPUTS), approximate("topk", INPUTS, 2), INPUTS, needle=torch.tensor(needle))


def cores(fewer):
    return core_matrices(FEWER[fewer], approximate("skyformer", INPUTS, 3), {})


REFUSED = {
    "a negative width": (lambda: errors(tol=-0.1), "tol=-0.1: choose a relative width of 0 or more"),
    "a width without an end": (lambda: errors(tol=float("inf")), "tol=inf: choose a relative width"),
    "a certain failure": (lambda: errors(delta=1.0), "delta=1: choose a probability above 0 and below 1"),
    "an impossible failure": (lambda: errors(delta=0.0), "delta=0: choose a probability"),
    "a negative rank": (lambda: lower_bound(X, -1), "lower_bound: d=-1 is negative"),
    "an output without heads": (lambda: ExactOutput.of(X[0]), r"the exact output has shape \(6, 3\); \(h, n_q, p_v\)"),
    "a needle of numbers": (
        lambda: rows([0.5]),
        rf"{NUMBERS}, \(m,\) int64; got shape \(1,\), f",
    ),
    "a needle with two axes": (
        lambda: rows([[1]]),
        rf"{NUMBERS}, .* got shape \(1, 1\), int64",
    ),
    "an empty needle": (
        lambda: rows(torch.tensor([], dtype=torch.int64).tolist()),
        "needle: numbers of keys are needed",
    ),
    "a needle before the keys": (lambda: rows([-1, 2]), "needle: keys -1 … 2 are not among the 6 keys"),
    "a needle behind the keys": (lambda: rows([2, 6]), "needle: keys 2 … 6 are not among the 6 keys"),
    "a needle that names a key twice": (lambda: rows([2, 2]), "needle: a key is named twice"),
    "a matrix of no name": (lambda: attention_matrix(INPUTS, "softmux"), "did you mean 'softmax'"),
    "a lifted kernel of local inputs": (
        lambda: attention_matrix(QKV(X, X, X, sliding_window=2), "lifted-softmax"),
        "attention is local, and lifted-softmax has no local form",
    ),
    "a lifted kernel of causal inputs": (
        lambda: attention_matrix(QKV(X, X, X, causal=True), "lifted-gaussian"),
        "attention is causal, and lifted-gaussian has no causal form",
    ),
    "a core without heads": (lambda: lemma3_interval(torch.eye(2)), r"core has shape \(2, 2\); \(h, d, d\) is needed"),
    "a core that is not square": (lambda: lemma3_interval(X), r"core has shape \(2, 6, 3\); \(h, d, d\) is needed"),
    "cores of other heads": (lambda: cores("heads"), "approx was made of other Q and K than those of qkv"),
    "cores of other keys": (lambda: cores("keys"), "approx was made of other Q and K than those of qkv"),
    "λ for other heads": (
        lambda: statistical_dimension(SQUARE, torch.ones(3, 1)),
        r"needs square matrices and \(h, L\)",
    ),
    "λ without heads": (lambda: statistical_dimension(SQUARE, torch.ones(2)), SHAPES),
    "rows for columns": (
        lambda: statistical_dimension(Dense(X), torch.ones(2, 1)),
        r"needs square matrices and \(h, L\)",
    ),
    "a part of other heads": (lambda: Mosaic([(SQUARE, 0, 0)], (1, 3, 3)), r"mosaic: .* is not within \(1, 3, 3\)"),
    "a part beyond the matrix": (lambda: Mosaic([(SQUARE, 1, 0)], (2, 3, 3)), "mosaic: .* at row 1 and column 0"),
    "a change of one axis": (lambda: residual_rows(X[0, 0], X[0]), r"the change has shape \(3,\)"),
    "a stream of one axis": (lambda: residual_rows(X[0], X[0, 0]), r"and the stream \(3,\); \(…, n, m\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_one_line(case):
    call, says = REFUSED[case]
    with pytest.raises(AttnprobeError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
