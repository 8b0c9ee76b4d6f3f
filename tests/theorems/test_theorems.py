"""The registry of theorems, and the approximations that their checks are given."""

import pytest
from inputs import make
from theory_settings import check

from attnprobe import approximate
from attnprobe.errors import Unsupported, UsageError
from attnprobe.rng import Streams
from attnprobe.theorems.finding import THEOREMS, Setting, get_theorem, theorem


def test_a_theorem_is_found_by_its_name_and_a_misspelt_one_is_answered_with_the_nearest():
    for name, entry in THEOREMS.items():
        assert get_theorem(name) is entry and entry.name == name and entry.paper and entry.says and entry.cost
    name = next(iter(THEOREMS))
    with pytest.raises(UsageError, match=f"unknown theorem .* did you mean '{name}'"):
        get_theorem(name[:-1] + "_")


def test_a_theorem_is_registered_once():
    name = next(iter(THEOREMS))
    with pytest.raises(ValueError, match=f"theorem {name} is registered twice"):
        theorem(name, paper="", says="", cost="")(lambda qkv, setting: [])


def setting(budgets, run):
    return Setting(budgets, (0.1,), 0.1, range(3, 5), lambda label, seed: Streams(seed, make()), run, ("svd",))


def test_runs_are_those_of_the_budgets_that_a_method_takes_with_the_first_seed():
    requests = []

    def run(method, d, seed):
        requests.append((method, d, seed))
        return approximate(method, make(n=12), d, seed=seed)

    actual = list(setting((4, 100, 8), run).runs("svd"))
    assert [d for d, _ in actual] == [4, 8] and requests == [("svd", 4, 3), ("svd", 100, 3), ("svd", 8, 3)]


def test_a_method_that_takes_no_budget_is_refused_with_its_last_reason():
    with pytest.raises(Unsupported, match="d=200"):
        list(setting((100, 200), lambda method, d, seed: approximate(method, make(n=12), d)).runs("svd"))


@pytest.mark.parametrize(
    "name, detail",
    [
        ("skyformer-theorem-2", "error_over_lambda"),
        ("skeinformer-lemma-1", "beta_median"),
        ("skeinformer-proposition-1", "beta_median"),
    ],
)
def test_the_median_of_two_seeds_is_the_mean_of_both(name, detail):
    low, high, both = (
        [one.details[detail] for one in check(name, make(n=20, seed=2), (6,), seeds=seeds)]
        for seeds in (range(1), range(1, 2), range(2))
    )
    for one, other, middle in zip(low, high, both, strict=True):
        assert (one != other).any()
        assert middle.tolist() == pytest.approx(((one + other) / 2).tolist(), rel=1e-12)
