"""The (ε, δ)-MA property: the interval of a probability, and errors of known size over seeds."""

from math import comb

import numpy as np
import pytest
import torch
from inputs import make

from attnprobe import Approximation, approximate, exact
from attnprobe.errors import Unsupported, UsageError
from attnprobe.operators import LowRank, Scaled
from attnprobe.operators.linalg.exceedance import clopper_pearson
from attnprobe.rng import Streams
from attnprobe.theorems import Setting, get_theorem, ma
from attnprobe.theorems.finding import frequency
from attnprobe.theorems.ma import ma_errors


def tail(k: int, n: int, p: float) -> float:
    """P(X ≥ k) of a binomial X."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(
    "happened, trials, lower, upper",
    [
        (0, 20, 0.0, 0.1684),
        (20, 20, 0.8316, 1.0),
        (1, 10, 0.0025, 0.4450),
        (8, 10, 0.4439, 0.9748),
        (50, 100, 0.3983, 0.6017),
        (0, 1, 0.0, 0.975),
        (1, 1, 0.025, 1.0),
    ],
)
def test_known_intervals(happened, trials, lower, upper):
    assert clopper_pearson(happened, trials) == pytest.approx((lower, upper), abs=5e-5)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("trials", [1, 7, 40])
def test_the_ends_have_the_tails_that_define_them(trials, confidence):
    for happened in range(trials + 1):
        lower, upper = clopper_pearson(happened, trials, confidence)
        share = (1 - confidence) / 2
        assert lower == 0 if happened == 0 else tail(happened, trials, lower) == pytest.approx(share, rel=1e-9)
        assert (
            upper == 1
            if happened == trials
            else 1 - tail(happened + 1, trials, upper) == pytest.approx(share, rel=1e-6)
        )


def test_the_interval_covers_whatever_the_probability():
    for p in (0.01, 0.1, 0.37, 0.9, 0.999):
        missed = 0.0
        for happened in range(31):
            lower, upper = clopper_pearson(happened, 30)
            if not lower <= p <= upper:
                missed += comb(30, happened) * p**happened * (1 - p) ** (30 - happened)
        assert missed <= 0.05


@pytest.mark.parametrize("happened, trials, confidence", [(3, 2, 0.9), (-1, 2, 0.9), (0, 0, 0.9), (1, 2, 1.0)])
def test_counts_that_do_not_fit_are_refused(happened, trials, confidence):
    with pytest.raises(UsageError):
        clopper_pearson(happened, trials, confidence)


def test_trials_that_are_not_decided_widen_the_interval():
    certain, happened, possible = ((torch.arange(4) < count)[:, None] for count in (1, 2, 3))
    actual = frequency(happened, certain, possible)
    assert float(actual.value) == 0.5
    assert float(actual.lower) == clopper_pearson(1, 4)[0] and float(actual.upper) == clopper_pearson(3, 4)[1]


QKV_ = make(h=2, n=24, p=4)
SIZES = {seed: size for seed, size in enumerate([0.05, 0.15, 0.15, 0.15, 0.25, 0.25, 0.25, 0.45, 0.45, 0.95])}


def off_by(size: float, drawn: bool = True) -> Approximation:
    """``(1 + size) B``: every relative error is ``size``."""
    op = Scaled(exact(QKV_), left=torch.full((2, 24), 1 + size, dtype=torch.float64))
    return Approximation.of(op, QKV_, draws={"size": torch.tensor(size)} if drawn else {})


def setting(run, methods=("scaled",), epsilons=(0.1, 0.2, 0.4), delta=0.1, seeds=range(10), budgets=(4,)) -> Setting:
    def streams(label, seed):
        return Streams(seed, label)

    return Setting(budgets, epsilons, delta, seeds, streams, run, methods)


def check(*given, qkv=QKV_, **options) -> dict:
    """Findings by (d, epsilon, of)."""
    actual = list(get_theorem("ma-property").check(qkv, setting(*given, **options)))
    return {(one.d, one.at["method"], one.at["epsilon"], one.at["of"]): one for one in actual}


def test_errors_of_known_size_are_counted():
    calls = []
    actual = check(lambda method, d, seed: (calls.append((method, d, seed)), off_by(SIZES[seed]))[1], budgets=(4, 8))
    assert sorted(calls) == sorted(("scaled", d, seed) for d in (4, 8) for seed in range(10))  # once for all ε
    assert len(actual) == 2 * 3 * 2
    for (_, _, epsilon, _), one in actual.items():
        beyond = sum(size > epsilon for size in SIZES.values())
        assert one.measured.tolist() == [beyond / 10] * 2
        assert (float(one.lower[0]), float(one.upper[0])) == clopper_pearson(beyond, 10)
        assert one.bound.tolist() == [0.1] * 2 and one.met.all() and not one.vacuous.any()
        assert one.details["errors"][1].tolist() == pytest.approx(list(SIZES.values()), rel=1e-9)


@pytest.mark.parametrize(
    "delta, verdict",
    [(0.05, "violated"), (0.5, "undecided"), (0.6, "undecided"), (0.95, "holds"), (1.0, "vacuous")],
)
def test_the_verdict_follows_the_interval(delta, verdict):
    """6 of 10 beyond ε = 0.2: the probability is in [0.26, 0.88]. A δ below is contradicted, one inside undecided."""
    actual = check(lambda method, d, seed: off_by(SIZES[seed]), delta=delta, epsilons=(0.2,))
    for one in actual.values():
        assert one.measured.tolist() == [0.6, 0.6] and one.verdicts() == [verdict] * 2


def test_an_error_of_epsilon_itself_does_not_exceed_it():
    def half(method, d, seed):
        return off_by(0.5)  # (1 + ½) B - B is exact in floating point

    actual = check(half, epsilons=(0.4999999, 0.5000001))
    for (_, _, epsilon, _), one in actual.items():
        assert one.measured.tolist() == [float(epsilon < 0.5)] * 2


def test_no_error_does_not_exceed_zero():
    actual = check(lambda method, d, seed: off_by(0.0), epsilons=(0.0,))
    assert actual[4, "scaled", 0.0, "matrix"].measured.tolist() == [0.0, 0.0]


def test_a_method_that_draws_nothing_is_run_once_and_has_no_interval():
    calls = []
    actual = check(lambda method, d, seed: (calls.append(seed), off_by(0.3, drawn=False))[1])
    assert calls == [0]
    for (_, _, epsilon, _), one in actual.items():
        assert one.lower is None and one.upper is None and one.measured.tolist() == [float(epsilon < 0.3)] * 2
        assert one.verdicts() == ["violated" if epsilon < 0.3 else "holds"] * 2


def test_a_method_that_cannot_take_the_budget_is_a_row():
    def run(method, d, seed):
        if d > 4:
            raise Unsupported(f"d={d} exceeds n")
        return off_by(0.0)

    actual = check(run, budgets=(4, 99))
    for (d, *_), one in actual.items():
        assert one.verdicts() == ["undecided" if d == 4 else "assumption not met"] * 2
        assert d == 4 or (one.measured.isnan().all() and "d=99" in one.assumption)


def test_an_output_without_an_operator_has_no_matrix():
    def run(method, d, seed):
        return Approximation(None, off_by(0.3).output, {"size": torch.tensor(0.3)})

    for (*_, of), one in check(run).items():
        assert one.met.tolist() == [of == "output"] * 2


def test_an_error_that_is_no_number_exceeds_every_epsilon():
    def run(method, d, seed):
        size = torch.full((2, 24), 1.0, dtype=torch.float64)
        size[0] = float("nan") if seed == 0 else 1.0
        return Approximation.of(Scaled(exact(QKV_), left=size), QKV_, draws={"seed": torch.tensor(seed)})

    for one in check(run, seeds=range(4)).values():
        assert one.measured.tolist() == [0.25, 0.0]
        assert float(one.lower[0]) == clopper_pearson(1, 4)[0]


@pytest.mark.parametrize(
    "target, method", [("softmax", "nystromformer"), ("softmax", "skyformer"), ("gaussian", "skyformer")]
)
def test_a_real_method_against_dense_norms(target, method):
    """The literal definition, head by head and seed by seed, with numpy."""
    qkv = make(h=2, n=40, p=6)
    runs = [approximate(method, qkv, 8, seed=seed, target=target) for seed in range(3)]
    actual = ma_errors(qkv, runs, target)
    for head in range(2):
        b, v = exact(qkv, target).dense()[head].numpy(), qkv.v[head].numpy()
        for seed, run in enumerate(runs):
            approx = run.operator.dense()[head].numpy()
            matrix = np.linalg.norm(b - approx, 2) / np.linalg.norm(b, 2)
            output = np.linalg.norm(b @ v - approx @ v, 2) / np.linalg.norm(b @ v, 2)
            value, lower, upper = (float(end[seed, head]) for end in actual["matrix"])
            assert value == pytest.approx(matrix, rel=1e-9) and lower <= matrix <= upper
            assert float(actual["output"][0][seed, head]) == pytest.approx(output, rel=1e-9)


def test_streamed_intervals_hold_the_dense_norm():
    """Beyond the keys at which a matrix is held the norms are intervals."""
    qkv = make(h=1, n=300, p=6)
    runs = [approximate("skyformer", qkv, 16, seed=seed) for seed in range(5)]
    value, lower, upper = ma_errors(qkv, runs, "softmax")["matrix"]
    b = exact(qkv).dense()[0]
    for seed, run in enumerate(runs):
        true = float(torch.linalg.matrix_norm(b - run.operator.dense()[0], 2) / torch.linalg.matrix_norm(b, 2))
        assert float(lower[seed]) <= true <= float(upper[seed]) <= 1.003 * float(lower[seed])
        assert float(value[seed]) == pytest.approx(true, rel=1e-3)  # what an interval closes to


def test_an_exact_method_has_no_error():
    qkv = make(h=1, n=16, p=4)
    same = Approximation.of(exact(qkv), qkv)
    assert all(float(end.max()) < 1e-9 for end in ma_errors(qkv, [same], "softmax")["matrix"])
    none = Approximation.of(LowRank(torch.zeros(1, 16, 1).double(), None, torch.zeros(1, 1, 16).double()), qkv)
    value, lower, upper = ma_errors(qkv, [none], "softmax")["matrix"]
    assert float(value) == pytest.approx(1) and float(lower) <= 1 <= float(upper)


def test_the_ends_of_a_relative_error_are_those_of_the_interval():
    """The value and its ends scale alike; the lower one also covers an exact norm that is known to 1e-3."""

    def number(*x):
        return torch.tensor(x, dtype=torch.float64)

    ends = {"": (4.0, 0.0), "_lower": (3.0, 0.0), "_relative": (2.0, 0.0), "_relative_upper": (2.5, 0.0)}
    value, lower, upper = ma._relative({f"matrix_spectral{end}": number(*two) for end, two in ends.items()})
    assert value.tolist() == [2.0, 0.0] and upper.tolist() == [2.5, 0.0]
    assert lower.tolist() == pytest.approx([2.0 * 3 / 4 / 1.001, 0.0])


def test_the_interval_of_a_probability_counts_what_is_certain_and_what_is_possible():
    """Of ten seeds two exceed ε for certain, three more by their value, and five by the upper end alone."""
    value = torch.tensor([[0.9]] * 2 + [[0.6]] * 3 + [[0.4]] * 5)
    lower = torch.tensor([[0.8]] * 2 + [[0.4]] * 3 + [[0.3]] * 5)
    actual = frequency(value > 0.5, lower > 0.5, torch.full_like(value, 0.95) > 0.5)
    assert float(actual.value) == 0.5
    assert (float(actual.lower), float(actual.upper)) == (clopper_pearson(2, 10)[0], clopper_pearson(10, 10)[1])
