"""The registry: what it reads from a method's signature, and what it refuses."""

import inspect
import re
from typing import Literal

import numpy as np
import pytest
import torch
from inputs import make
from paths import TESTS

from attnprobe.errors import Unsupported, UsageError, nearest, unknown
from attnprobe.methods import FAMILIES, METHODS, TAGS, approximate, by_family, get
from attnprobe.methods.base import Approximation
from attnprobe.methods.option import Option
from attnprobe.methods.registry import KINDS, Method, register


def toy(
    qkv,
    d,
    *,
    streams,
    target="softmax",
    a: int = 3,
    b: float | None = None,
    c: bool = False,
    e: Literal["x", "y"] = "x",
):
    """A method that is there for its signature."""
    return a, b, c, e


def entry(**facts):
    facts = (
        dict(
            name="toy",
            function=toy,
            paper="none",
            year=1,
            family="user",
            targets=("softmax",),
            kind="user",
            tags=(),
            budget="d things",
            cost="1",
            oracle="none",
            limit=lambda n_q, n_k: n_k,
        )
        | facts
    )
    return Method(**facts)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_entry_is_complete(name):
    method = METHODS[name]
    assert method.name == name == get(name).name and method.kind in KINDS and method.targets
    assert set(method.targets) <= {"softmax", "gaussian"} and {tag.split("@")[0] for tag in method.tags} <= set(TAGS)
    assert all(tag.partition("@")[2] in ("", *method.targets) for tag in method.tags)
    assert (method.budget is None) == (method.limit is None)
    assert any(tag.startswith("exact_at_full_budget") for tag in method.tags) == (method.exact_at is not None)
    parameters = inspect.signature(method.function).parameters
    assert list(parameters)[:2] == ["qkv", "d"] and parameters["streams"].default is inspect.Parameter.empty
    assert parameters["target"].default == "softmax"
    for option, facts in method.options.items():
        assert facts.default == parameters[option].default and facts.describe()
        assert option in inspect.getdoc(method.function), f"{option} is not explained"
    assert method.row()["options"] == {key: value.default for key, value in method.options.items()}
    page = method.explain()
    assert page.startswith(name) and str(method.year) in page and all(key in page for key in method.options)
    method.check(method.targets[0], {key: value.default for key, value in method.options.items()})


@pytest.mark.parametrize("seed", [1.5, "1", None, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(UsageError, match="approximate: seed=.*; a whole number is needed"):
        approximate("performer", make(), 4, seed=seed)


def test_a_budget_may_be_a_number_of_numpy():
    assert torch.equal(approximate("svd", make(), np.int64(3)).output, approximate("svd", make(), 3).output)


def test_the_software_that_a_method_is_said_to_be_compared_with_is_in_the_tests():
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = {word for entry in METHODS.values() for word in re.findall(r"\w+(?:Attention|_attention)\b", entry.oracle)}
    assert len(named) > 8 and all(entry.oracle for entry in METHODS.values())
    assert not [word for word in named if word not in tests]


def test_families_come_in_order_and_names_in_order_within():
    listed = by_family()
    places = [(FAMILIES.index(entry.family), entry.name) for entry in listed]
    assert places == sorted(places) and {entry.name for entry in listed} == set(METHODS)


def test_a_name_that_does_not_exist_offers_the_nearest():
    with pytest.raises(UsageError, match="unknown method 'skyfromer'; did you mean 'skyformer'"):
        approximate("skyfromer", make(), 4)
    with pytest.raises(UsageError, match="choose from"):
        get("zzz")
    assert nearest("SKYFORMER", ["skyformer"]) == "; did you mean 'skyformer'?"
    assert "x, y" in str(unknown("thing", "q", ["x", "y"])) and unknown("thing", "q", ["x"]).exit_code == 2


def test_options_are_read_from_the_signature():
    assert entry().options == {
        "a": Option("a", 3, None, (int,)),
        "b": Option("b", None, None, (float, type(None))),
        "c": Option("c", False, None, (bool,)),
        "e": Option("e", "x", ("x", "y"), (str,)),
    }


@pytest.mark.parametrize(
    "given, chosen",
    [
        ({"a": "7"}, {"a": 7}),
        ({"a": 7}, {"a": 7}),
        ({"a": "3"}, {}),
        ({"b": "1e-3"}, {"b": 1e-3}),
        ({"b": "none"}, {}),
        ({"b": None}, {}),
        ({"b": 2}, {"b": 2.0}),
        ({"b": "0"}, {"b": 0.0}),
        ({"c": "true"}, {"c": True}),
        ({"c": "False"}, {}),
        ({"c": True}, {"c": True}),
        ({"e": "y"}, {"e": "y"}),
        ({"e": "x", "a": 3}, {}),
    ],
    ids=str,
)
def test_words_and_values_become_the_type_of_the_option_and_defaults_are_left_out(given, chosen):
    got = entry().check("softmax", given)
    assert got == chosen and [type(v) for v in got.values()] == [type(v) for v in chosen.values()]


@pytest.mark.parametrize(
    "given, words",
    [
        ({"a": "x"}, "toy:a=x is not a whole number"),
        ({"a": 2.5}, "toy:a=2.5"),
        ({"a": True}, "toy:a=True"),
        ({"a": None}, "toy:a=None"),
        ({"b": "x"}, "toy:b=x is not a number or none"),
        ({"b": True}, "toy:b=True"),
        ({"c": "1"}, "toy:c=1 is not true or false"),
        ({"c": "none"}, "toy:c=none"),
        ({"e": "z"}, "unknown value of toy:e 'z'; choose from x, y"),
        ({"f": 1}, "unknown option of toy 'f'"),
        ({"streams": 1}, "unknown option of toy 'streams'"),
        ({"d": 1}, "unknown option of toy 'd'; choose from a, b, c, e"),
    ],
    ids=str,
)
def test_what_an_option_cannot_be_is_refused(given, words):
    with pytest.raises(UsageError, match=words):
        entry().check("softmax", given)


def test_validation_sees_every_option_with_its_default_or_value():
    seen = {}
    entry(validate=lambda target, **options: seen.update(options, target=target)).check("softmax", {"a": "9"})
    assert seen == {"target": "softmax", "a": 9, "b": None, "c": False, "e": "x"}


def test_a_tag_is_claimed_for_all_targets_or_for_one():
    method = entry(tags=("deterministic", "psd_below@gaussian"))
    assert method.claims("deterministic", "softmax") and method.claims("deterministic", "gaussian")
    assert method.claims("psd_below", "gaussian") and not method.claims("psd_below", "softmax")
    assert not method.claims("nonnegative", "softmax")


@pytest.mark.parametrize("d", [0, -1, 13])
def test_a_budget_outside_its_range_is_unsupported(d):
    with pytest.raises(Unsupported, match=f"toy: d={d} .*choose d in 1..12"):
        entry().check_budget(d, 10, 12)


@pytest.mark.parametrize("d, fault", [(0, "is not positive"), (2, "is below its least of 3"), (13, "exceeds n=12")])
def test_a_least_budget_is_part_of_the_range(d, fault):
    with pytest.raises(Unsupported, match=rf"toy: d={d} {fault}; choose d in 3\.\.12"):
        entry(least=3).check_budget(d, 10, 12)
    assert entry(least=3).check_budget(3, 10, 12) == 3


def test_a_text_that_is_too_short_for_any_budget_is_unsupported():
    for d in (1, 3):
        with pytest.raises(Unsupported, match="^toy: its least d is 3, above n=2; choose a longer text$"):
            entry(least=3).check_budget(d, 2, 2)


@pytest.mark.parametrize("d", [None, 1.5, "x", True, float("nan"), float("inf")])
def test_a_budget_that_is_no_whole_number_is_refused(d):
    with pytest.raises(UsageError, match="toy"):
        entry().check_budget(d, 10, 12)


def test_a_budget_that_can_be_is_a_whole_number():
    assert entry().check_budget(12, 10, 12) == 12 and type(entry().check_budget(4.0, 10, 12)) is int
    assert entry(budget=None, limit=None).check_budget(99, 10, 12) is None
    with pytest.raises(Unsupported, match="n=12 is above its limit of 11"):
        entry(max_n=11).check_budget(4, 10, 12)
    assert entry(max_n=12).check_budget(4, 10, 12) == 4


def test_a_method_may_take_only_as_many_queries_as_keys():
    for budget in ("d of something", None):
        with pytest.raises(Unsupported, match="10 queries and 12 keys; it takes as many queries as keys"):
            entry(square=True, budget=budget).check_budget(4, 10, 12)
    assert entry(square=True).check_budget(4, 12, 12) == 4


def test_a_method_is_registered_once_and_with_known_facts():
    facts = dict(
        name="toy",
        paper="",
        year=1,
        family="user",
        targets=("softmax",),
        kind="user",
        tags=(),
        budget=None,
        cost="",
        oracle="",
    )
    for wrong in ({"name": "skyformer"}, {"kind": "odd"}, {"family": "odd"}, {"tags": ("fast",)}):
        with pytest.raises(AssertionError):
            register(**(facts | wrong))(toy)
    assert "toy" not in METHODS
    try:
        assert register(**facts)(toy) is toy and get("toy").function is toy
    finally:
        METHODS.pop("toy", None)


def test_a_mask_keeps_an_approximation_without_an_operator():
    def bare(qkv, d, *, streams, target="softmax"):
        assert qkv.mask is None and qkv.n == 3
        return Approximation(None, qkv.v * 2)

    METHODS["bare"] = entry(name="bare", function=bare, budget=None, limit=None)
    try:
        qkv = make(n=5)
        masked = type(qkv)(qkv.q, qkv.k, qkv.v, mask=torch.tensor([True, False, True, True, False]))
        approx = approximate("bare", masked)
    finally:
        METHODS.pop("bare")
    assert approx.operator is None and approx.output.shape == (2, 5, 5)
    assert torch.equal(approx.output[:, masked.mask], 2 * qkv.v[:, masked.mask])
    assert not approx.output[:, ~masked.mask].any()
