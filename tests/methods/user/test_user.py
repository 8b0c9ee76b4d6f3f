"""Methods that are not the project's own: from a file, from a package, from a function in hand."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from inputs import make

from attnprobe import Approximation, Storage, approximate, exact, matrix_errors, method
from attnprobe.errors import BadResult, Unsupported, UsageError
from attnprobe.frame.records.read import read_records
from attnprobe.machine.environment import plugins
from attnprobe.measure.bench.calls import Work
from attnprobe.methods import METHODS, get, is_method
from attnprobe.methods.user.recovered import Recovered
from attnprobe.operators import Dense, LowRank, Operator, RankOne, SoftmaxAttention
from attnprobe.qkv import QKV
from attnprobe.run.plan import ErrorPlan, Group, parse_methods

MINE = '''
import torch

def attention(q, k, v, scale, d, sharp=1.0):
    """Exact attention, sharpened."""
    return torch.softmax(sharp * scale * q @ k.mT, -1) @ v

def matrix(q, k, scale):
    return torch.softmax(scale * q @ k.mT, -1)

def linear(q, k, v, scale):
    return torch.softmax(scale * q @ k.mT, -1) @ v
linear.linear_in_v = True

def breaks(q, k, v):
    x = 1
    raise ValueError("no such luck")

def shapeless(v):
    return v[:, :3]

def lost(q, v):
    return v / 0

def needs(q, temperature):
    pass
'''


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def softmax(q, k, v, scale):
    return torch.softmax(scale * q @ k.mT, -1) @ v


class Hollow(Operator):
    """An operator without anything."""


class UserOperator(Operator):
    """An operator of a user's own class, with some attribute that is wrong."""

    def __init__(self, v, **wrong):
        self.v, self.shape, self.dtype, self.device = v, (len(v), 20, 20), v.dtype, v.device
        self.__dict__.update(wrong)


def masked(n=12, valid=8):
    qkv = make(n=n)
    return QKV(qkv.q, qkv.k, qkv.v, mask=torch.arange(n) < valid)


def one_line(err):
    [line] = err.strip().splitlines()
    assert line.startswith("attnprobe: ") and "Traceback" not in line
    return line


def test_a_function_gets_what_its_parameters_name_and_nothing_else():
    seen = {}

    def fn(q, /, k, *, v, d, scale, mask, generator, target, qkv, streams, width: int = 3, **rest):
        seen.update(vars(SimpleNamespace(**locals())))
        return v

    qkv = make(n=9, h=2)
    approximate(fn, qkv, 4, seed=5, target="softmax", width="7")
    assert torch.equal(seen["q"], qkv.q[1:]) and torch.equal(seen["k"], qkv.k[1:])  # the last head, alone
    assert torch.equal(seen["v"], qkv.v[1:]) and seen["qkv"].heads == (1,)
    assert (seen["d"], seen["scale"], seen["target"], seen["width"], seen["rest"]) == (4, qkv.scale, "softmax", 7, {})
    assert seen["mask"].dtype == torch.bool and seen["mask"].all() and seen["mask"].shape == (9,)
    assert seen["generator"].initial_seed() == seen["streams"].head(1).initial_seed()
    assert approximate(lambda v: v, qkv).output.shape == qkv.v.shape


def test_without_a_generator_all_heads_come_at_once_and_with_one_each_has_its_own():
    calls = []

    def fn(q, v, generator=None):
        calls.append(q.shape[0])
        return v + torch.rand(1, generator=generator, dtype=v.dtype)

    qkv = make(h=3)
    approx = approximate(fn, qkv)
    assert calls == [1, 1, 1] and approx.draws["generator_seed"].shape == (3, 1) and approx.draws_hash()
    assert torch.equal(approx.output[2], approximate(fn, qkv.select([2])).output[0])
    assert not torch.equal(approx.output, approximate(fn, qkv, seed=1).output)
    assert not get(fn).claims("deterministic", "softmax") and get(softmax).claims("deterministic", "softmax")


def test_padding_is_kept_from_a_function_unless_it_takes_the_mask():
    seen = []

    def without(q, k, v, scale):
        seen.append(q.shape[1])
        return softmax(q, k, v, scale)

    def with_mask(q, k, v, scale, mask):
        seen.append((q.shape[1], int(mask.sum())))
        return torch.softmax((scale * q @ k.mT).masked_fill(~mask, -torch.inf), -1)

    qkv = masked()
    plain, given = approximate(without, qkv), approximate(with_mask, qkv)
    assert seen == [8, (12, 8)] and plain.output.shape == given.output.shape == (2, 12, 5)
    assert torch.allclose(plain.output, given.output) and not given.output[:, 8:].any()
    assert matrix_errors(exact(qkv), given.operator)["matrix_spectral"].max() < 1e-12
    with pytest.raises(BadResult, match="gives weight to padded keys"):
        approximate(lambda q, k, mask: torch.ones(*q.shape[:2], k.shape[1]), qkv)


def test_outputs_matrices_operators_and_approximations_are_told_apart():
    qkv = make(n=9)
    expected = SoftmaxAttention(qkv.q, qkv.k, qkv.scale)
    assert approximate(softmax, qkv).operator is None
    for fn in (
        lambda q, k, scale: torch.softmax(scale * q @ k.mT, -1),
        lambda q, k, scale: SoftmaxAttention(q, k, scale),
        lambda q, k, scale, generator: SoftmaxAttention(q, k, scale),
        lambda qkv: Approximation.of(SoftmaxAttention(qkv.q, qkv.k, qkv.scale), qkv),
        lambda qkv, generator: Approximation.of(SoftmaxAttention(qkv.q, qkv.k, qkv.scale), qkv),
    ):
        approx = approximate(fn, qkv)
        assert torch.allclose(approx.operator.dense(), expected.dense())
        assert torch.allclose(approx.output, expected @ qkv.v)
    square = make(n=5, p_v=5)  # a matrix has the shape of an output: one that never saw V is a matrix
    assert approximate(lambda q, k, scale: torch.softmax(scale * q @ k.mT, -1), square).operator is not None
    assert approximate(softmax, square).operator is None


def test_the_heads_of_several_operators_are_one():
    qkv = make(h=3, n=9)
    u = torch.rand(3, 9, 2, dtype=torch.float64)
    full = LowRank(u, None, u.mT)
    stacked = approximate(lambda qkv, generator: _at(full, qkv), qkv).operator
    assert type(stacked).__name__ == "Stacked" and stacked.shape == (3, 9, 9)
    for some in (slice(0, 3), slice(1, 2), slice(1, 3)):
        assert torch.equal(stacked.heads(some).dense(), full.heads(some).dense())
    x = torch.rand(3, 9, 2, dtype=torch.float64)
    assert torch.allclose(stacked @ x, full @ x) and torch.allclose(stacked.rmatmul(x), full.rmatmul(x))
    assert torch.equal(stacked.rows(2, 4), full.rows(2, 4)) and stacked.to(torch.float32).dtype == torch.float32
    with pytest.raises(UsageError, match="does not fit"):
        type(stacked)([RankOne(torch.ones(1, 2), torch.ones(1, 3)), RankOne(torch.ones(1, 2), torch.ones(1, 4))])


def _at(operator, qkv):
    head = qkv.heads[0]
    return operator.heads(slice(head, head + 1))


def test_a_normaliser_is_handed_on_and_one_of_another_shape_is_refused():
    qkv = make()
    sums = torch.arange(qkv.h * qkv.n_q, dtype=qkv.v.dtype).view(qkv.h, qkv.n_q)
    approx = approximate(lambda qkv: Approximation(None, qkv.v.clone(), log_normalizer=lambda: sums), qkv)
    assert torch.equal(approx.log_normalizer(), sums)
    approx = approximate(lambda qkv: Approximation(None, qkv.v.clone(), log_normalizer=lambda: sums[:1]), qkv)
    with pytest.raises(BadResult, match="log_normalizer has shape"):
        approx.log_normalizer()


def stated(v, **costs):
    """The values with costs that are wrong in the last head."""
    diagnostics = {name: torch.tensor([0.0, cost]) for name, cost in costs.items()}
    return Approximation(None, v.clone(), diagnostics=diagnostics)


@pytest.mark.parametrize(
    "fn, words",
    [
        (lambda v: v[:, :3], r"returned shape \(2, 3, 5\); an output is \(h, n_q, p_v\) = \(2, 20, 5\)"),
        (lambda v: v.float(), "returned float32 for inputs of float64; end with .to"),
        (lambda v: v.long(), "returned int64; floating point is needed"),
        (lambda v: None, "returned a NoneType"),
        (lambda v: v.tolist(), "returned a list"),
        (lambda v: v.mul_(2), "writes into its input v; work on v.clone"),
        (lambda q, v: (q.fill_(0), v)[1], "writes into its input q"),
        (lambda qkv: Approximation(None, qkv.v.float()), "returned float32"),
        (lambda qkv: Approximation(None, qkv.v[:, :3]), r"returned shape \(2, 3, 5\); its output is \(h, n_q, p_v\)"),
        (lambda qkv: Approximation(None, qkv.v[:1]), r"returned shape \(1, 20, 5\); its output is \(h, n_q, p_v\)"),
        (lambda qkv: Approximation(RankOne(torch.ones(2, 3), torch.ones(2, 3)), qkv.v), "its operator is"),
        (lambda v: RankOne(torch.ones(2, 3), torch.ones(2, 3)), r"a matrix \(h, n_q, n_k\)"),
        (lambda v: RankOne(torch.ones(2, 20), torch.ones(2, 20)) @ torch.ones(1), "operand of shape|has no attribute"),
        (lambda v: exit(3), "ends the process"),
        (lambda v: Hollow(), "its operator is incomplete: AttributeError for its shape, dtype or device"),
        (lambda v: UserOperator(v, dtype=torch.int64), "its operator has dtype torch.int64"),
        (lambda v: UserOperator(v, shape=(2, 20)), r"its operator has shape \(2, 20\); \(h, n_q, n_k\) is needed"),
        (lambda v: UserOperator(v, device="cpu"), "its operator has device 'cpu'; a torch.device is needed"),
        (lambda v: Dense(v.new_ones(2, 20, 20, dtype=torch.int64)), "its operator has dtype torch.int64"),
        (lambda v: Dense(v.new_ones(2, 20, 20, device="meta")), "returned a result on meta for inputs on cpu"),
        (lambda v: v.to("meta"), "returned a result on meta for inputs on cpu"),
        (lambda v: v.to_sparse(), "its result is a tensor of layout sparse_coo"),
        (lambda v: Approximation(None, v.clone(), draws={"x": v[0, 0, 0]}), r"'x' has shape \(\); \(h, …\) is needed"),
        (lambda v: Approximation(None, v.clone(), cores={"x": v[:1]}), r"'x' has shape \(1, 20, 5\); \(h, …\)"),
        (lambda v: Approximation(None, v.clone(), diagnostics={"x": v}), "its diagnostic 'x' has shape"),
        (lambda v: stated(v, visited=-1), "its diagnostic 'visited' is -1 in a head; a finite number of at least 0"),
        (lambda v: stated(v, kv_read=torch.nan), "its diagnostic 'kv_read' is nan in a head; a finite number"),
        (lambda v: stated(v, realised_d=torch.inf), "its diagnostic 'realised_d' is inf in a head; a finite number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_result_is_said_in_words(fn, words):
    qkv = make()
    before = qkv.v.clone(), qkv.q.clone()
    with pytest.raises((BadResult, AttributeError), match=words):
        approximate(fn, qkv)
    assert torch.equal(qkv.v, before[0]) and torch.equal(qkv.q, before[1])  # copies were given away


def test_a_warning_of_a_method_is_said_once():
    """The filters of warnings are as they are: each change of them makes Python say all warnings again."""

    def warning(v, generator):
        warnings.warn("odd inputs", stacklevel=1)
        return v

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        approximate(warning, make(h=4))
    assert [str(one.message) for one in said] == ["odd inputs"]


def test_a_function_may_say_that_it_does_not_support_its_inputs():
    def fn(v):
        raise Unsupported("odd lengths only")

    with pytest.raises(Unsupported, match="^odd lengths only$"):
        approximate(fn, make())


@pytest.mark.parametrize(
    "keys, words",
    [
        (lambda: [[0]], r"the value of its keys must be \(h, n_q, k\) int64"),
        (lambda: torch.zeros(2, 20, 1), "the value of its keys must be"),
        (lambda: torch.zeros(2, 3, 1, dtype=torch.int64), "the value of its keys must be"),
        (lambda: torch.full((2, 20, 1), -2), "its keys -2 … -2 are not all among the 20 keys; -1 is an empty slot"),
        (lambda: torch.full((2, 20, 1), 20), "its keys 20 … 20 are not all among the 20 keys"),
        (lambda: 1 / 0, r"its keys\(\)"),
    ],
)
def test_keys_that_are_none_are_said_in_words(keys, words):
    approx = approximate(lambda v: Approximation(None, v.clone(), keys=keys), make())
    with pytest.raises(BadResult, match=words):
        approx.keys()


def test_keys_may_be_none_at_all():
    approx = approximate(lambda v: Approximation(None, v.clone(), keys=lambda: torch.zeros(2, 20, 0).long()), make())
    assert approx.keys().shape == (2, 20, 0)


def test_what_a_function_with_a_mask_may_return():
    def dense(q, k, scale, mask):
        return Dense(torch.softmax((scale * q @ k.mT).masked_fill(~mask, -torch.inf), -1))

    def output(q, k, v, scale, mask):
        return dense(q, k, scale, mask) @ v

    qkv = masked()
    linear = method(linear_in_v=True)(output)
    for fn in (dense, linear):
        approx = approximate(fn, qkv)
        assert torch.allclose(approx.operator.dense(), exact(qkv).dense())
        assert torch.allclose(approx.output, exact(qkv) @ qkv.v)
    with pytest.raises(BadResult, match="takes a mask and returned an Approximation; return the output or the matrix"):
        approximate(lambda v, mask: Approximation(None, v.clone()), qkv)


def test_approximations_of_single_heads_are_one():
    def some(v, generator):
        operator = RankOne(v.new_ones(1, 20), v.new_ones(1, 20))
        return Approximation(operator, v.clone(), draws={"x": v[:, :1], "y": v[:, :2]}, diagnostics={"z": v[:, 0, 0]})

    qkv = make()
    approx = approximate(some, qkv)
    assert type(approx.operator).__name__ == "Stacked" and torch.equal(approx.draws["x"], qkv.v[:, :1])
    assert torch.equal(approx.diagnostics["z"], qkv.v[:, 0, 0])

    def few(q, v, generator):
        first = torch.equal(q, qkv.q[:1])
        operator = RankOne(v.new_ones(1, 20), v.new_ones(1, 20)) if first else None
        return Approximation(operator, v.clone(), draws={"x": v[:, :1]} if first else {})

    approx = approximate(few, qkv)
    assert approx.operator is None and "x" not in approx.draws
    dense = approximate(lambda v, generator: Dense(v.new_ones(1, 20, 20)), qkv).operator
    assert type(dense) is Dense and dense.shape == (2, 20, 20)


def test_what_an_operator_of_a_users_class_computes_is_checked():
    class Doubled(UserOperator):
        def _apply(self, x):
            return (2 * x).float() if self.wrong == "dtype" else 2 * x

        def heads(self, index):
            return self if self.wrong == "heads" else Doubled(self.v[index])

        def to(self, dtype):
            return Doubled(self.v.to(dtype if self.wrong != "to" else self.v.dtype))

        wrong = ""

    qkv = make()
    operator = approximate(lambda v: Doubled(v), qkv).operator
    assert torch.equal(operator @ qkv.v, 2 * qkv.v) and operator.heads(slice(0, 1)).shape == (1, 20, 20)
    assert operator.to(torch.float32).dtype == torch.float32
    for wrong, call, words in (
        ("dtype", lambda op: op @ qkv.v, "the result of _apply of its operator is float32 on cpu, not float64 on cpu"),
        ("heads", lambda op: op.heads(slice(0, 1)), "heads of its operator gives"),
        ("to", lambda op: op.to(torch.float32), "to of its operator gives"),
    ):
        operator.operator.wrong = wrong
        with pytest.raises(BadResult, match=words):
            call(operator)


def test_the_matrix_of_a_linear_function_is_recovered_and_the_claim_is_checked():
    @method(linear_in_v=True)
    def fn(q, k, v, scale):
        return softmax(q, k, v, scale)

    for qkv in (make(n=13), make(n=13, n_k=11, dtype=torch.float32), masked(), make(n=3, p_v=7)):
        operator = approximate(fn, qkv).operator
        assert torch.allclose(operator.dense(), exact(qkv).dense(), atol=1e-6)
        assert matrix_errors(exact(qkv), operator)["matrix_spectral"].max() < 1e-6

    @method(linear_in_v=True)
    def drawn(q, v, generator):  # the draws are the same for every block
        return torch.rand(1, q.shape[1], v.shape[1], generator=generator, dtype=v.dtype) @ v

    @method(linear_in_v=True)
    def counted(q, k, v, scale, generator):
        return Approximation(None, softmax(q, k, v, scale), diagnostics={"visited": torch.full((len(q),), 7)})

    approx = approximate(counted, make())
    assert torch.allclose(approx.operator.dense(), exact(make()).dense())
    assert approx.diagnostics["visited"].tolist() == [7, 7] and approx.draws["generator_seed"].shape == (2, 1)

    signed = approximate(method(linear_in_v=True)(lambda q, k, v: q @ (k.mT @ v)), make())
    assert torch.allclose(signed.operator.dense(), make().q @ make().k.mT)

    approx = approximate(drawn, make(h=3))
    assert torch.allclose(approx.operator @ make(h=3).v, approx.output)

    for false in (
        lambda q, k, v, scale: softmax(q, k, v.abs(), scale),
        lambda q, k, v, scale: softmax(q, k, v, scale) + 1,
        lambda q, k, v, scale: softmax(q, k * v.norm(dim=2, keepdim=True), v, scale),
        lambda q, k, v, scale: softmax(q, k, v, scale) * v.norm(),
    ):
        approx = approximate(method(linear_in_v=True)(false), make())
        with pytest.raises(
            BadResult, match=r"claims to be linear in V, and is not.*\(head [0-9] of [0-9]\); drop linear_in_v"
        ):
            approx.operator.dense()
    with pytest.raises(BadResult, match="claims linear_in_v.*returned a matrix"):
        approximate(method(linear_in_v=True)(lambda q, k: q @ k.mT), make())


def test_a_matrix_too_large_to_recover_is_not(monkeypatch):
    monkeypatch.setattr("attnprobe.methods.user.calls.LARGEST", 100)
    approx = approximate(method(linear_in_v=True)(softmax), make())
    assert approx.operator is None and "GiB, too large to recover" in approx.no_operator
    del softmax.attnprobe_claims
    assert Recovered.size(make(n=4, h=1)) == 4 * 4 * 8


def test_options_come_from_annotations_or_defaults():
    def fn(v, a=3, b=0.5, c=True, e="x", f=None, g: float = 1, h: Literal["x", "y"] = "x", i: int | None = None):
        return v

    actual = {name: option.kinds for name, option in get(fn).options.items()}
    assert actual["a"] == (int,) and actual["b"] == (float,) and actual["c"] == (bool,) and actual["e"] == (str,)
    assert actual["f"] == (int, float, str, type(None)) and actual["g"] == (float,) and actual["i"] == (int, type(None))
    assert get(fn).options["h"].choices == ("x", "y")
    given = {"a": "4", "b": "2", "c": "false", "e": "word", "f": "none", "h": "y"}
    assert get(fn).check("softmax", given) == {"a": 4, "b": 2.0, "c": False, "e": "word", "h": "y"}
    assert get(fn).check("softmax", {"f": "2"}) == {"f": 2} and get(fn).check("softmax", {"f": "z"}) == {"f": "z"}
    with pytest.raises(UsageError, match="option 'x' has a default of type tuple"):
        get(lambda v, x=(1, 2): v)
    with pytest.raises(UsageError, match="'temperature' has no default; give it one, or use one of q, k, v"):
        get(lambda q, temperature: q)
    with pytest.raises(UsageError, match="method=3; text or a Method or a function is needed"):
        get(3)


def test_a_function_says_what_it_is():
    about = {"budget": "things", "paper": "Me", "year": 2030, "cost": "n d p"}

    @method(tags="nonnegative", targets=["softmax", "gaussian"], least=2, limit=lambda n_q, n_k: n_k, **about)
    def fn(v, d):
        "Docs."
        return v

    entry = get(fn)
    assert entry.targets == ("softmax", "gaussian") and entry.tags == ("deterministic", "nonnegative")
    assert (entry.budget, entry.cost, entry.source, entry.kind) == ("things", "n d p", "Me (2030)", "user")
    assert "Docs." in entry.explain() and "things" in entry.card() and entry.row()["family"] == "user"
    for d in (1, 21):
        with pytest.raises(Unsupported, match=r"choose d in 2\.\.20"):
            approximate(fn, make(), d)
    with pytest.raises(Unsupported, match=r"d=0 is not positive; choose d in 1\.\.$"):
        approximate(lambda v, d: v, make(), 0)
    for wrong, words in (
        ({"speed": 1}, "speed"),
        ({"tags": ("fast",)}, "there is no tag 'fast'"),
        ({"targets": "sigmoid"}, "there is no target 'sigmoid'"),
        ({"targets": ()}, r"targets=\(\) names no exact matrix; choose from softmax, gaussian"),
        ({"kind": "bone"}, "there is no kind 'bone'"),
        ({"kind": "kernel", "targets": ("gaussian",)}, "a kernel stands for softmax attention; drop its targets"),
        ({"tags": ("exact_at_full_budget",)}, "go together"),
        ({"storage": 4}, "attnprobe.method: storage=4"),
    ):
        with pytest.raises(UsageError, match=words):
            get(method(**wrong)(lambda v: v))
    with pytest.raises(UsageError, match="takes no claims; wrap it in a function"):
        method(year=2030)(len)
    with pytest.raises(UsageError, match="has no readable signature; wrap it in a function of q, k, v"):
        get(dict)

    def claiming(v):
        return v

    claiming.attnprobe_claims = 3
    with pytest.raises(UsageError, match="attnprobe_claims=3.*; state claims by the decorator attnprobe.method"):
        get(claiming)


def test_a_function_says_what_it_stores():
    def stored(**claims):
        return get(method(**claims)(lambda v, d, bits=4: v)).stored(3, {"bits": 2})

    assert stored() == Storage() and stored(storage=Storage(evicts=True, k=2.0)) == Storage(evicts=True, k=2.0)
    of_options = stored(storage=lambda d, options: Storage(k=float(options["bits"]), exact=d))
    assert of_options == Storage(k=2.0, exact=3)
    with pytest.raises(UsageError, match=r"storage=\(d, options\) -> Storage returns a wrong value: it"):
        stored(storage=lambda d, options: 4.5)
    assert METHODS["h2o"].stored(8, {}).evicts and METHODS["window"].stored(8, {}).evicts
    assert METHODS["topk"].stored(8, {}) == Storage()


def test_a_name_is_a_file_only_with_its_suffix(mine):
    assert is_method("svd") and is_method("./mine.py:fn") and is_method("mine.py") and not is_method("mine")
    requests = parse_methods([f"{mine}:attention:sharp=2,svd:share=1"[:-8], f"{mine}:matrix"], "softmax")
    assert [request.label for request in requests] == ["mine.py:attention", "svd", "mine.py:matrix"]
    assert requests[0].options == {"sharp": 2.0}
    twice = parse_methods([f"{mine}:matrix,{mine.parent}/./mine.py:matrix"], "softmax")
    assert len(twice) == 1
    other = mine.parent / "b" / "mine.py"
    other.parent.mkdir()
    other.write_text(MINE + "#")
    with pytest.raises(UsageError, match="share the name mine.py:matrix: rename one"):
        parse_methods([f"{mine}:matrix,{other}:matrix"], "softmax")


@pytest.mark.parametrize(
    "text, name, words",
    [
        (MINE, "mine.py:nothing", "has no function 'nothing'; choose from attention"),
        (MINE, "mine.py:atention", "has no function 'atention'; did you mean 'attention'"),
        (MINE, "mine.py", r"which function\? write .*mine.py:FUNCTION; it defines attention, matrix"),
        (MINE, "mine.py:needs", "mine.py:needs: the parameter 'temperature' has no default"),
        (MINE, "mine.py:attention:blunt=1", "unknown option of mine.py:attention 'blunt'"),
        (MINE, "mine.py:attention:sharp=x", "sharp=x is not a number"),
        (MINE, "mine.py:torch", "is a module, not a function"),
        (None, "mine.py:fn", "mine.py: no method can be loaded from it: No such file or directory"),
        ("import nothing_of_the_kind", "mine.py:fn", "mine.py, line 1: ModuleNotFoundError"),
        ("x = 1\ny = (", "mine.py:fn", "mine.py, line 2: SyntaxError"),
        ("print('noise')\nraise SystemExit(7)", "mine.py:fn", "mine.py, line 2: SystemExit: 7"),
        ("", "mine.py:fn", "it defines no function"),
        ("x = (", "mine.py", r"which function\? write .*mine.py:FUNCTION$"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_and_exit_2(run, qkv, tmp_path, text, name, words):
    import re

    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    for args in (
        ("error", "--qkv", qkv, "--method", f"./{name}"),
        ("methods", f"./{name.split(':blunt')[0]}"),
        ("check", f"./{name}"),
    ):
        code, out, err = run(*args)
        if args[0] == "methods" and ":attention" in name:
            assert code == 2 or "sharp" in out
            continue
        line = one_line(err.removeprefix("noise\n"))
        assert code == 2 and re.search(words, line) and not out, line
    assert not (tmp_path / "outputs").exists()


def test_a_record_says_whether_the_heads_of_a_users_method_share_draws(run, qkv, tmp_path):
    """A default of share_heads was in no record, so that heads with one draw were tested as independent pairs."""
    (tmp_path / "draws.py").write_text(
        "import attnprobe\n"
        "def shared(v, d, streams, share_heads=True): return v / (1 + streams.shared().initial_seed())\n"
        "def apart(v, d, streams, share_heads=False): return v\n"
        "def unknown(v, d, streams): return v\n"
        "def of_heads(v, d, generator): return v\n"
        "def plain(v, d): return v\n"
        "@attnprobe.method(tags='deterministic')\n"
        "def claimed(v, d): return v\n"
    )
    expected = {"shared": True, "apart": False, "unknown": None, "of_heads": False, "plain": None, "claimed": False}
    names = ",".join(f"./draws.py:{name}" for name in expected)
    methods = f"{names},./draws.py:shared:share_heads=false"
    code, _, err = run("error", "--method", methods, "--qkv", qkv, "--d", "4", "--no-matrix", "--out", "r")
    assert code == 0, err
    origins = {one["method"]: one["method_file"] for one in read_records("r") if "method_file" in one}
    assert {name.partition(":")[2]: origin["share_heads"] for name, origin in origins.items()} == expected
    for option, test in {"": None, ":share_heads=false": "heads"}.items():
        out = run("compare", "r", "--pair", f"draws.py:shared{option}=vmean", "--format", "json")[1]
        [row] = json.loads(out)["rows"]
        assert row["test"] == test and ("whose heads share their draws" in row["reason"]) == (test is None)


def test_every_command_takes_a_file(run, qkv, mine):
    rows = {}
    for name, args in {
        "error": ("error", "--method", "./mine.py:linear,mine.py:attention:sharp=2", "--d", "4", "--plot", "maps"),
        "spectrum": ("spectrum", "--of", "softmax,./mine.py:linear,./mine.py:attention:sharp=2", "--d", "4"),
        "condition": ("condition", "--method", "./mine.py:linear", "--sensitivity"),
        "theory": ("theory", "--method ./mine.py:matrix,mine.py:attention --theorem ma-property --d 4 --repeats 2"),
        "bench": ("bench", "--source", "model", "--method", "./mine.py:linear", "--rounds", "1", "--no-memory"),
    }.items():
        code, out, err = run(*args, "--qkv", qkv, "--format", "json", "--out", name)
        assert code == 0, err
        rows[name] = json.loads(out)["rows"]
        used = {record["method"]: record for record in read_records(name) if record.get("method")}
        first = next(record for name, record in used.items() if name.startswith("mine.py:"))
        assert first["method_file"]["sha256"] and first["method_file"]["file"].endswith("mine.py")
        manifest = json.loads(Path(name, "manifest.json").read_text())["plan"]
        assert any("method_file" in one for one in manifest.get("methods") or manifest["of"] if isinstance(one, dict))
        assert run("report", name, "--plot", "none")[0] == 0
    by_name = {row["method"]: row for row in rows["error"]}
    assert by_name["mine.py:linear"]["matrix_spectral_relative.max"] < 1e-5
    assert by_name["mine.py:attention"]["name"] == "mine.py:attention:sharp=2.0"
    assert by_name["mine.py:attention"]["status"] == "ok"
    skips = {cell["method"]: cell.get("matrix_skipped") for cell in read_records("error")}
    assert skips["mine.py:attention"] == "gives an output and no matrix" and skips["vmean"] is None
    skipped = [row for row in rows["spectrum"] if row["status"] == "skipped"]
    assert {row["of"] for row in skipped} == {"mine.py:attention:sharp=2.0"} and "no matrix" in str(skipped)


def test_the_table_says_why_there_is_no_matrix_error(run, qkv, mine):
    code, out, _ = run("error", "--qkv", qkv, "--method", "./mine.py:attention", "--d", "4")
    assert code == 0 and "gives an output and no matrix" in " ".join(out.split())
    assert "gives an output" not in run("error", "--qkv", qkv, "--method", "./mine.py:attention", "--no-matrix")[1]


def test_what_breaks_in_a_run_is_a_row_with_its_line(run, qkv, mine):
    methods = "./mine.py:breaks,./mine.py:shapeless,mine.py:lost,vmean"
    code, out, err = run("error", f"--qkv {qkv} --method {methods} --format json")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert code == 4 and rows["vmean"]["status"] == "ok", err
    assert rows["mine.py:breaks"]["reason"] == "ValueError: no such luck (mine.py, line 17)"
    assert "returned shape (2, 3, 8)" in rows["mine.py:shapeless"]["reason"]
    states = [rows[f"mine.py:{name}"]["status"] for name in ("breaks", "shapeless", "lost")]
    assert states == ["failed", "failed", "diverged"]
    (mine.parent / "false.py").write_text("def fn(v):\n    return v.abs()\nfn.linear_in_v = True")
    code, out, _ = run("error", "--qkv", qkv, "--method", "false.py:fn", "--format", "json")
    [row] = [row for row in json.loads(out)["rows"] if row["requested"]]
    assert code == 4 and row["status"] == "failed" and "claims to be linear in V, and is not" in row["reason"]


def test_numbers_of_an_edited_file_are_never_used_again(run, qkv, mine):
    def measured():
        code, _, err = run("error", "--qkv", qkv, "--method", "./mine.py:attention", "--d", "4", "--out", "r")
        assert code == 0, err
        return {one["key"]: one for one in read_records("r") if one["method"] == "mine.py:attention"}

    before = measured()
    assert measured().keys() == before.keys() and len(before) == 1
    (mine.parent / "helper.py").write_text("FACTOR = 2\n")
    mine.write_text(
        MINE.replace("import torch", "import torch\nfrom helper import FACTOR", 1).replace(
            "sharp * scale", "FACTOR * sharp * scale"
        )
    )
    after = measured()
    assert len(after) == 2
    (mine.parent / "helper.py").write_text("FACTOR = 3.0\n")  # what it imports from its own folder counts too
    last = measured()
    errors = {one["rows"][0]["output_spectral"] for one in last.values()}
    assert len(last) == 3 and len(errors) == 3
    shutil.move(mine, mine.parent / "moved.py")
    (mine.parent / "moved.py").rename(mine)
    assert len(measured()) == 3


def test_two_versions_of_a_method_are_compared(run, qkv, mine):
    base = ("error", "--qkv", qkv, "--method", "./mine.py:attention", "--d", "4", "--out")
    assert run(*base, "a")[0] == 0
    mine.write_text(MINE.replace("sharp * scale", "1.5 * sharp * scale"))
    assert run(*base, "b")[0] == 0
    code, out, err = run("compare", "a", "b", "--format", "json")
    [row] = [row for row in json.loads(out)["rows"] if row["method"] == "mine.py:attention"]
    assert code == 1 and row["verdict"] == "worse", err


def test_matrices_that_a_user_may_hold_are_not_held_together(mine, monkeypatch):
    methods = tuple(parse_methods([f"{mine}:linear,{mine}:matrix,vmean,svd"], "softmax"))
    plan = ErrorPlan(methods, (64,), (2,), (0,), None, tol=1e-3)
    cells = plan.cells(Group(64, 0), 0, {})

    def shape():
        return [[cell.request.label for cell in batch] for batch in plan.batches(cells, make(n=64))]

    assert shape()[1:] == [["mine.py:linear", "mine.py:matrix", "vmean", "svd"]]
    monkeypatch.setattr("attnprobe.run.plan.HELD", 2 * 64 * 64 * 8 + 50_000)
    assert shape()[1:] == [["mine.py:linear"], ["mine.py:matrix", "vmean", "svd"]]


def test_another_process_makes_the_same_call_or_says_that_the_file_changed(mine):
    name = f"{mine}:linear"
    work = Work(name, sha256=get(name).provenance.sha256)
    expected = work.run(make()).output
    again = pickle.loads(pickle.dumps(work))  # the loaded function itself does not travel
    assert again == work and torch.equal(again.run(make()).output, expected)
    mine.write_text(MINE + "#")
    with pytest.raises(BadResult, match="mine.py:linear: its file changed while the run was on"):
        pickle.loads(pickle.dumps(work)).run(make())
    assert torch.equal(work.run(make()).output, expected)  # a run stays with what it began with


def test_gates_and_sweeps_name_a_file(run, qkv, mine, tmp_path):
    (tmp_path / "s.yaml").write_text(
        f"qkv: {qkv.name}\nmethod: ['./mine.py:linear', {{name: ./mine.py:attention, options: {{sharp: 2}}}}]\nd: [4]\n"
        "gates:\n"
        "  - {metric: output_spectral_relative, max: 0.001, method: 'mine.py:linear'}\n"
        "  - {metric: output_spectral_relative, min: 0.01, method: './mine.py:attention:sharp=2'}\n"
    )
    code, out, err = run("sweep", "s.yaml")
    assert code == 0 and "mine.py:attention:sharp=2" in out, err
    assert run("sweep", "s.yaml", "--dry-run")[0] == 0
    (tmp_path / "s.yaml").write_text((tmp_path / "s.yaml").read_text().replace("'mine.py:linear'}", "'mine.py:liner'}"))
    code, _, err = run("sweep", "s.yaml")
    assert code == 2 and "'mine.py:liner' is not measured; did you mean 'mine.py:linear'" in err


def test_a_function_stands_in_a_model(mine):
    from transformers import BertConfig, BertModel

    from attnprobe import injected, register_attention

    model = BertModel(
        BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, initializer_range=0.5)
    ).eval()
    ids = torch.arange(6)[None]
    own = model(ids).last_hidden_state
    for one in (softmax, f"{mine}:linear"):
        with injected(model, one):
            assert torch.allclose(model(ids).last_hidden_state, own, atol=1e-5)
    assert register_attention(softmax) == "attnprobe-softmax"
    with pytest.raises(UsageError, match="mine.py:attention needs a budget"), injected(model, f"{mine}:attention"):
        pass


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make an installed package of this name, whose module has this text and whose entry points these lines."""

    def make_one(name, text, points):
        folder = tmp_path / "site"
        info = folder / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}_module.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("[attnprobe.methods]\n" + "\n".join(points) + "\n")
        monkeypatch.syspath_prepend(str(folder))

    return make_one


GOOD = "def half(v):\n    '''Half of V.'''\n    return v / 2\nhalf.linear_in_v = True"


def test_a_package_brings_methods(run, qkv, package, monkeypatch):
    package("goodkit", GOOD, ["half = goodkit_module:half", "svd = goodkit_module:half"])
    package("badkit", "raise RuntimeError('broken on\\nimport')", ["ruin = badkit_module:fn"])
    package("oddkit", "fn = 3", ["odd = oddkit_module:fn"])
    entry = get("half")
    assert entry.provenance.package == "goodkit 1.2" and entry.provenance.file == "goodkit_module.py"
    assert torch.equal(approximate("half", make()).output, make().v / 2)
    code, out, err = run("methods", "--format", "json")
    assert code == 0 and "half" in {row["name"] for row in json.loads(out)["rows"]}
    lines = err.strip().splitlines()
    assert len(lines) == 3, lines
    assert lines[0].endswith("the method 'odd' of oddkit 1.2: odd is an int, not a function")
    assert "the method 'ruin' of badkit 1.2: RuntimeError: broken on" in lines[1]
    assert "'svd' of goodkit 1.2 has the name of a built-in method and is left out" in lines[2]
    code, out, err = run("error", "--qkv", qkv, "--method", "half,svd", "--d", "8", "--out", "r", "--format", "json")
    assert code == 0 and not [line for line in err.splitlines() if "badkit" in line]
    [record] = [one for one in read_records("r") if one["method"] == "half"]
    assert record["method_file"]["package"] == "goodkit 1.2"
    code, _, err = run("error", "--qkv", qkv, "--method", "ruin")
    assert code == 2 and "the method 'ruin' of badkit 1.2: RuntimeError" in one_line(err)
    code, _, err = run("error", "--qkv", qkv, "--method", "hafl")
    assert code == 2 and "did you mean 'half'" in one_line(err)
    for value, there in (("", set()), ("goodkit", {"half", "svd"}), ("ruin, half", {"half", "ruin"})):
        monkeypatch.setenv("ATTNPROBE_LOAD_PLUGINS", value)
        assert set(plugins()) == there
        assert run("methods", "--long")[2].count("attnprobe:") == len({"svd", "ruin"} & there)


CLAIMS = """
import torch
from attnprobe import method

def causal(q, k, v, scale, qkv, ahead):
    scores = scale * q @ k.mT
    if qkv.visible is not None:
        hidden = torch.arange(k.shape[1]) > qkv.query_positions[:, None] + ahead
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ v

@method(tags=("causal",))
def honest(q, k, v, scale, qkv):
    return causal(q, k, v, scale, qkv, 0)

@method(tags=("causal",))
def peeks(q, k, v, scale, qkv):
    return causal(q, k, v, scale, qkv, 1)

@method(tags=("causal",), linear_in_v=True)
def squares(q, k, v, scale, qkv):
    return causal(q, k, v * v, scale, qkv, 0)

@method(tags=("causal",))
def large(q, k, v, scale, qkv):
    if len(qkv.heads) < 2:
        raise ValueError("it takes two heads")
    return causal(q, k, v, scale, qkv, 0)

@method(tags=("causal",))
def draws(q, k, v, scale, qkv, generator):
    noise = torch.rand(1, k.shape[1], 1, generator=generator)
    return causal(q, k, v * (1 + noise), scale, qkv, 0)
"""


@pytest.fixture
def claims(tmp_path):
    (tmp_path / "claims.py").write_text(CLAIMS)


@pytest.mark.parametrize(
    ("name", "says"),
    [("honest", None), ("draws", None), ("large", None), ("peeks", "later tokens"), ("squares", "linear in V")],
)
def test_a_run_fails_the_cells_of_a_function_whose_claim_a_few_tokens_refute(run, claims, qkv, name, says):
    code, out, _ = run("error", "--qkv", qkv, "--method", f"claims.py:{name}", "--no-matrix", "--format", "json")
    [row] = [row for row in json.loads(out)["rows"] if row["requested"]]
    assert (row["status"], code) == (("ok", 0) if says is None else ("failed", 4))
    assert says is None or says in row["reason"]
