"""The first-order estimate: the tape's adjoints against autograd, the formula, measured errors, and plans."""

import pytest
import torch
from thinned import others_slow

from attnprobe import QKV
from attnprobe.errors import UsageError
from attnprobe.rounding import INPUTS, computation_of, estimate, format_named, measured, plan, rounded
from attnprobe.rounding.estimate import MEAN_SQUARE
from attnprobe.rounding.tape import Tape


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(n=160, h=4, p=8, seed=0, scale=1.0):
    q, k, v = seeded(3, h, n, p, seed=seed)
    return QKV(scale * q, scale * k, v)


def on_tape(run, inputs, to="bf16"):
    tape = Tape(format_named(to))
    with torch.no_grad():
        started = [tape.start(x) for x in inputs]
        with tape:
            output = run(*started)
    weights = seeded(*output.shape, seed=9)
    return tape.squares(output, weights), weights


def with_relative_changes(run, shapes, weights):
    """``‖∂⟨weights, output⟩ / ∂ε‖²`` for results ``y (1 + ε)``, one for each shape, by autograd."""
    changes = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    (weights * run(*changes)).sum().backward()
    return [0.0 if change.grad is None else float(change.grad.square().sum()) for change in changes]


def test_adjoints_are_those_of_autograd():
    """Through views, memory that is written twice, expanded tensors and assignments to indices."""
    x, w = rounded(seeded(6, 5), format_named("bf16")), rounded(seeded(5, 5, seed=1), format_named("bf16"))

    def run(x, w):
        y = x @ w
        memory = torch.empty_like(y)
        torch.mul(y, 0.7, out=memory)
        first = memory.T.exp()
        torch.mul(y[:, :1].expand(-1, 5), y, out=memory)
        memory[::2] = first.T[::2] * memory[1::2]
        memory[:, 1].sub_(y[:, 2])
        return memory.cumsum(0)

    squares, weights = on_tape(run, [x, w])
    assert squares.inputs == 0  # they are in the format already

    def changed(of_y, of_first_product, of_exp, of_product, of_rows, of_column, of_sums):
        y = (x @ w) * (1 + of_y)
        first = ((y * 0.7) * (1 + of_first_product)).T.exp() * (1 + of_exp)
        memory = (y[:, :1].expand(-1, 5) * y) * (1 + of_product)
        rows = (first.T[::2] * memory[1::2]) * (1 + of_rows)
        memory = torch.stack([rows[i // 2] if i % 2 == 0 else memory[i] for i in range(6)])
        column = (memory[:, 1] - y[:, 2]) * (1 + of_column)
        memory = torch.cat([memory[:, :1], column[:, None], memory[:, 2:]], 1)
        return memory.cumsum(0) * (1 + of_sums)

    shapes = [(6, 5), (6, 5), (5, 6), (6, 5), (3, 5), (6,), (6, 5)]
    expected = with_relative_changes(changed, shapes, weights)
    by_line = sorted(squares.made.items())
    assert [site.operation for site, _ in by_line] == ["mm", "mul", "exp", "mul", "mul", "sub", "cumsum"]
    for (site, value), wanted in zip(by_line, expected, strict=True):
        assert value == pytest.approx(wanted, rel=1e-12), site


def test_a_mask_has_no_derivative():
    x = seeded(6, 6)

    def run(x):
        scores = (x @ x).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf"))
        return torch.softmax(scores, -1) @ x + scores.logsumexp(-1, keepdim=True)

    squares, _ = on_tape(run, [x])
    every = [squares.inputs, *squares.made.values()]
    assert all(0 < value < float("inf") for value in every)

    def weighted(x):  # the weight of some is 0, and its logarithm -∞
        return torch.softmax(x + (x.square() * torch.ones(6, 6, dtype=x.dtype).tril()).log(), -1) @ x

    squares, _ = on_tape(weighted, [x])
    assert all(0 < value < float("inf") for value in squares.made.values())


def test_the_formula_is_that_of_independent_relative_errors():
    """Of a product with a diagonal matrix: each result has one rounding, of mean square (C u)² of itself."""
    y = seeded(4000).abs().log_normal_(0, 3, generator=torch.Generator().manual_seed(1))
    to = format_named("bf16")
    relative = (rounded(y, to) - y) / y
    assert float(relative.square().mean().sqrt()) == pytest.approx(MEAN_SQUARE * to.unit, rel=0.05)


BENIGN = ["linformer", "nystromformer", "performer", "linear", "efficient", "kernelized", "random", "bigbird"]


EACH = [(name, format) for name in BENIGN for format in ("bf16", "fp16", "tf32")]


@pytest.mark.parametrize("name, format", others_slow(EACH, lambda case: case[1] == "bf16" or case[0] == "linformer"))
def test_it_is_within_two_of_the_measured_error(name, format):
    of = computation_of(qkv(), name, 12, target="gaussian" if name == "kernelized" else "softmax")
    to = format_named(format)
    errors, predicted = measured(of, to), estimate(of, to)
    ratio = predicted.error / errors.held_frobenius
    assert ((ratio > 0.5) & (ratio < 2)).all(), ratio


@pytest.mark.parametrize(
    "arithmetic, format", [("tensor-cores", "tf32"), ("tensor-cores", "fp8-e4m3"), ("autocast", "bf16")]
)
def test_it_knows_what_each_arithmetic_rounds(arithmetic, format):
    of, to = computation_of(qkv(), "nystromformer", 12), format_named(format)
    errors, predicted = measured(of, to, arithmetic), estimate(of, to, arithmetic)
    ratio = predicted.error / errors.held_frobenius
    assert ((ratio > 0.5) & (ratio < 2)).all(), ratio


def test_it_needs_no_gradients_of_the_caller():
    of, to = computation_of(qkv(), "topk", 12), format_named("bf16")
    with torch.no_grad():
        inside = estimate(of, to)
    assert torch.equal(inside.error, estimate(of, to).error) and (inside.error > 0).all()


def test_shares_are_parts_of_the_whole():
    found = estimate(computation_of(qkv(), "performer", 12), format_named("bf16"))
    for shares in found.shares():
        assert sum(shares.values()) == pytest.approx(1) and INPUTS in shares and min(shares.values()) >= 0
    assert found.sites[0].operation in ("sub", "bmm")  # log features minus half of the squared norm
    everything = found.planned(found.sites)
    assert (everything < found.error).all() and (everything > 0).all()  # rounded Q, K and V remain


def test_heads_that_influence_each_other_are_estimated_together():
    of = computation_of(qkv(), "nystromformer", 12, z0="global")
    assert of.method.joint or of.options["z0"] == "global"
    errors, predicted = measured(of, format_named("bf16")), estimate(of, format_named("bf16"))
    ratio = predicted.error / errors.held_frobenius
    assert ((ratio > 0.4) & (ratio < 2.5)).all(), ratio


def clustered(n=192, h=4, p=8):
    """Tokens of few clusters in a row: the landmarks of segments are nearly equal, so the core is nearly singular."""
    centres = seeded(2, h, 12, p, seed=3).repeat_interleave(n // 12, 2)
    q, k = centres + 0.05 * seeded(2, h, n, p, seed=4)
    return QKV(1.2 * q, 1.2 * k, seeded(h, n, p, seed=5))


def test_a_plan_reaches_its_goal_and_is_measured():
    of = computation_of(clustered(), "nystromformer", 16, inverse="pinv", rtol=1e-3)
    to = format_named("bf16")
    before = measured(of, to)
    assert (before.rounding > 0.1 * before.approximation).any()
    found = plan(of, to)
    assert found.reached and not found.floor and 0 < len(found.keep) < found.steps
    assert (found.measured.held <= 0.1 * found.measured.approximation).double().mean() >= 0.9
    assert torch.equal(measured(of, to, keep=frozenset(found.keep)).held, found.measured.held)
    assert found.line().startswith(f"keep {len(found.keep)} of {found.steps} steps in float32: ")
    fewer = found.keep[: len(found.keep) // 2]
    worse = measured(of, to, keep=frozenset(fewer))
    assert (worse.held > 0.1 * worse.approximation).double().mean() > 0.1


def test_a_benign_method_needs_no_float32():
    found = plan(computation_of(qkv(), "linear", 12), format_named("bf16"))
    assert not found.keep and found.reached and found.line() == "every step may be in the format"


def test_no_plan_undoes_rounded_inputs():
    """At full budget the approximation's error is far below what rounded Q, K and V alone add."""
    of = computation_of(qkv(n=64), "topk", 60)
    found = plan(of, format_named("fp8-e5m2"))
    assert found.floor and not found.reached and found.line().startswith("no plan")


def test_an_exact_method_has_no_plan():
    with pytest.raises(UsageError, match="softmax is exact"):
        plan(computation_of(qkv(), "softmax"), format_named("bf16"))
