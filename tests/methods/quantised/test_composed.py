"""``rotated:FORMAT`` and ``POLICY+FORMAT``: names, options, what rows read, and what is stored."""

from contextlib import suppress

import pytest
import torch
from inputs import draws_of, make
from thinned import others_slow
from twins_quantised import READ, rotation_of, turned

from attnprobe import QKV, Storage, approximate, exact
from attnprobe.errors import Unsupported, UsageError
from attnprobe.grammar.lists import parts, short_name
from attnprobe.measure.inject.policy import kept_keys, prompt_text
from attnprobe.methods import METHODS, get, is_method
from attnprobe.methods.quantised.evicted import kept_cache
from attnprobe.methods.quantised.rotation import drawn_rotation, rotated
from attnprobe.rng import generator
from attnprobe.run.plan import parse_methods
from attnprobe.testing import PROPERTIES, Case, check_method
from attnprobe.testing.cases import Skip

F64 = torch.float64
FORMATS = sorted(name for name, entry in METHODS.items() if entry.format is not None)
SMALL = {"kivi": {"group": 3, "exact": 2, "bits": 3}}


def grouped(n=20, causal=True, **facts) -> QKV:
    made = make(h=4, n=n, p=8, p_v=8)
    return QKV(made.q, made.k[::2], made.v[::2], causal=causal, **facts)


def options_of(policy, fmt, **more):
    small = {key: value for key, value in get(policy).small.items()}
    return {**small, **SMALL.get(fmt, {}), **more}


# names


def test_names_are_read_with_their_options():
    [one, other] = parse_methods(["snapkv+rotated:q4_0:observe=8,exact=4,rotated:kivi:bits=3"], "softmax")
    assert (one.name, one.options) == ("snapkv+rotated:q4_0", {"observe": 8, "exact": 4})
    assert (other.name, other.options) == ("rotated:kivi", {"bits": 3}) and other.label == "rotated:kivi"
    assert parts("c++/mine.py:fn+rotated:q4_0:exact=4") == ("c++/mine.py:fn+rotated:q4_0", "exact=4")
    assert short_name("c++/mine.py:fn+q4_0") == "mine.py:fn+q4_0"
    assert all(map(is_method, ["snapkv+q4_0", "rotated:q4_0", "mine.py:fn+rotated:q8_0"])) and not is_method("a+q4_0")


@pytest.mark.parametrize(
    "name, line",
    [
        ("snapkv+q4_2", "unknown format 'q4_2'; did you mean 'q4_1'"),
        ("rotated:q4_2", "unknown format 'q4_2'; did you mean 'q4_1'"),
        ("rotated:snapkv", "unknown format 'snapkv'; choose from fp8, kivi, mxfp4"),
        ("snapkv+svd", "unknown format 'svd'; choose from fp8, kivi, mxfp4"),
        ("rotated:turboquant", "rotated:turboquant: turboquant rotates vectors itself; leave rotated: out"),
        ("quest+q4_0", r"quest\+q4_0: quest drops no keys; choose a policy that does, such as snapkv\+q4_0"),
        ("q8_0+q4_0", r"q8_0\+q4_0: q8_0 drops no keys"),
        ("snapkv+q8_0+q4_0", r"snapkv\+q8_0 drops no keys"),
        ("snapvk+q4_0", "unknown method 'snapvk'; did you mean 'snapkv'"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_line(name, line):
    with pytest.raises(UsageError, match=line) as refused:
        get(name)
    assert "\n" not in str(refused.value)


OWN = """
import torch

import attnprobe


@attnprobe.method(budget="the shortest keys", storage=attnprobe.Storage(evicts=True), tags=("decodes",))
def shortest(q, k, v, d, scale, exact=0):
    kept = k.norm(dim=-1).topk(d, largest=False).indices
    keys, values = (x.gather(1, kept[..., None].expand(-1, -1, x.shape[2])) for x in (k, v))
    scores = scale * q @ keys.mT
    return attnprobe.Approximation(
        None, torch.softmax(scores, -1) @ values, log_normalizer=lambda: scores.logsumexp(-1),
        keys=lambda: kept[:, None].expand(-1, q.shape[1], -1),
    )
"""


def test_a_users_policy_is_composed_unless_its_options_have_a_name_of_the_formats(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(
        UsageError, match=r"own.py:shortest\+q4_0: both methods have an option exact; rename that of own"
    ):
        get(f"{tmp_path}/own.py:shortest+q4_0")
    (tmp_path / "own.py").write_text(OWN.replace(", exact=0", ""))
    entry = get(f"{tmp_path}/own.py:shortest+q4_0")
    assert entry.name == "own.py:shortest+q4_0" and entry.provenance is not None
    qkv = grouped(causal=False)
    got, alone = approximate(entry, qkv, 5), approximate(f"{tmp_path}/own.py:shortest", qkv, 5)
    assert torch.equal(got.keys().sort(-1).values, alone.keys().sort(-1).values)
    read = qkv.replace(k=got.stored[0], v=got.stored[1])
    weights = exact(read).dense() * (got.operator.dense() > 0)
    assert torch.allclose(got.output, weights / weights.sum(-1, keepdim=True) @ read.v)


# rotations


@pytest.mark.parametrize("rotation", ["hadamard", "signed", "haar"])
def test_a_rotation_without_a_format_changes_nothing(rotation):
    class Side:
        word, method = "key", "test"

        @staticmethod
        def draw(name, make):
            return torch.stack([make(generator(0, name, head)) for head in range(2)])

    x = torch.randn(2, 3, 5, 24, dtype=F64, generator=generator(0, "x"))
    matrix = drawn_rotation(rotation, 24, Side)
    turned_x = rotated(x, matrix)
    assert (turned_x.norm(dim=-1) - x.norm(dim=-1)).abs().max() < 1e-12 and not torch.allclose(turned_x, x)
    assert (rotated(turned_x, matrix, back=True) - x).abs().max() < 1e-12


@pytest.mark.parametrize("rotation", ["hadamard", "signed", "haar"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "turboquant"])
def test_a_rotated_format_is_the_format_of_rotated_vectors(name, rotation):
    qkv, options = make(n=20, p=8, p_v=16, dtype=torch.float32), {**SMALL.get(name, {}), "exact": 0}
    own = {key: value for key, value in options.items() if key != "exact"}
    approx = approximate(f"rotated:{name}", qkv, rotation=rotation, **options)
    whole = 20 // own.get("group", 1) * own.get("group", 1)
    for side, ours, x in zip(("key", "value"), approx.stored, (qkv.k, qkv.v), strict=True):
        for head in range(qkv.h):
            matrix = rotation_of(side, draws_of(approx, head), x.shape[2], rotation)
            rows = torch.tensor([turned(matrix, row) for row in x[head].tolist()], dtype=F64)
            read = READ[name](rows, side, {}, **own)
            theirs = read @ torch.tensor(matrix, dtype=F64)
            assert (ours[head].double() - theirs)[:whole].abs().max() < 1e-5, side


def test_a_rotation_has_an_order_or_is_refused():
    with pytest.raises(Unsupported, match=r"rotated:q4_0: a value has 5 numbers, .*; choose rotation=haar"):
        approximate("rotated:q4_0", make(p_v=5))
    assert torch.isfinite(approximate("rotated:q4_0", make(p_v=5), rotation="haar").output).all()
    assert get("rotated:q4_0").stored(None, {}) == get("q4_0").stored(None, {})


def test_outlying_channels_cost_less_behind_a_rotation():
    x = torch.randn(1, 64, 64, generator=generator(0, "outliers"))
    x[..., 5] *= 50
    qkv = QKV(x, x, x)
    plain, spread = ((approximate(name, qkv).stored[0] - x).norm() for name in ("q4_0", "rotated:q4_0"))
    assert spread < plain / 2


# eviction and a format


def literal(qkv: QKV, keys, fmt, draws, exact_tokens=0, **own):
    """The rows of one head: each over its kept visible keys in their order, quantised as a cache of its own."""
    group = own.get("group", 1)
    matrix = torch.zeros(qkv.n_q, qkv.n_k, dtype=F64)
    output = torch.zeros(qkv.n_q, qkv.p_v, dtype=F64)
    caches = {}  # of the rows that share a set
    for i, place in enumerate(qkv.query_positions.tolist()):
        every = sorted(key for key in keys[i].tolist() if key >= 0)
        seen = [key for key in every if not qkv.causal or key <= place]
        first = max(0, len(seen) - exact_tokens) // group * group
        if tuple(every) not in caches:
            sides = {"key": qkv.k[0], "value": qkv.v[0]}
            caches[tuple(every)] = {side: READ[fmt](x[every].double(), side, draws, **own) for side, x in sides.items()}
        read = {side: x[: len(seen)].clone() for side, x in caches[tuple(every)].items()}
        for side, x in (("key", qkv.k[0]), ("value", qkv.v[0])):
            read[side][first:] = x[seen][first:]
        weights = torch.softmax(qkv.scale * read["key"] @ qkv.q[0, i], 0)
        matrix[i, seen], output[i] = weights, weights @ read["value"]
    return matrix, output


@pytest.mark.parametrize(
    "policy, fmt, more",
    others_slow(
        [
            (policy, *of_format)
            for policy in ("random", "snapkv", "window")
            for of_format in (("q4_0", {}), ("q8_0", {"exact": 3}), ("fp8", {}), ("kivi", {}))
        ],
        # the literal form searches the numbers of fp8 in every row
        lambda case: case[1] != "fp8" or case[0] == "random",
    ),
)
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_reads_its_kept_keys_from_a_cache_of_its_own(policy, fmt, more, causal):
    """A scale and a group are those of the kept tokens, and the most recent ones of these are exact."""
    qkv, given = grouped(causal=causal), options_of(policy, fmt, **more)
    d = 12
    alone = approximate(policy, qkv, d, **{name: given[name] for name in get(policy).options.keys() & given.keys()})
    got = approximate(f"{policy}+{fmt}", qkv, d, **given)
    keys = alone.keys() if alone.keys is not None else got.keys()
    if policy == "window":
        kept = (alone.operator.dense() > 0).int().sum(-1)
        assert torch.equal((got.keys() >= 0).sum(-1), kept.long())
    else:
        assert torch.equal(got.keys().sort(-1).values, keys.sort(-1).values)
    for name, value in alone.draws.items():
        assert torch.equal(got.draws[name], value)
    sets = _sets(policy, qkv, d, given, got)
    exact_tokens = given.get("exact", get(fmt).format.exact)
    own = {key: value for key, value in SMALL.get(fmt, {}).items() if key != "exact"}
    for head in range(qkv.h):
        one = qkv.head(head)
        matrix, output = literal(one, sets[head], fmt, draws_of(got, head), exact_tokens, **own)
        assert (got.operator.dense()[head] - matrix).abs().max() < 1e-6
        assert (got.output[head] - output).abs().max() < 1e-6


def _sets(policy, qkv, d, given, got):
    """The sets of rows, with keys that a row does not see yet: they are in the cache of its segment."""
    entry = get(policy)
    if entry.choose is None:
        return got.keys()
    from attnprobe.rng import Streams

    own = {name: given[name] for name in entry.options.keys() & given.keys()}
    selection = entry.choose(qkv, d, streams=Streams(0, policy, qkv.layer, qkv.window), **own)
    of_row = torch.arange(qkv.n_q) // selection.group
    return selection.index[:, of_row]


COMPOSED = ["snapkv+q4_0", "knorm+kivi", "random+fp8", "window+rotated:q8_0", "rotated:nvfp4"]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_methods_conform(name):
    assert len(check_method(name)) > 10


@pytest.mark.parametrize(
    "which", ["operator", "adjoint", "heads", "padding", "inputs", "causal", "decodes", "whole-scale"]
)
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_methods_have_the_properties_of_their_tags(name, which):
    tag = PROPERTIES[which].tag
    if tag is None or tag in get(name).tags:
        with suppress(Skip):
            PROPERTIES[which].hold(Case(get(name), h=3 if which == "heads" else 2, p_v=8))


@pytest.mark.parametrize("policy", ["expected", "h2o", "keydiff", "knorm", "tova"])
def test_every_policy_that_keeps_keys_has_its_sets(policy):
    qkv, small = grouped(), options_of(policy, "q4_0")
    got, alone = approximate(f"{policy}+q4_0", qkv, 12, **small), approximate(policy, qkv, 12, **small)
    assert torch.equal(got.keys(), alone.keys()) and not torch.equal(got.output, alone.output)
    read = approximate("q4_0", qkv)
    assert torch.equal(got.stored[0], read.stored[0]) and torch.equal(got.stored[1], read.stored[1])


def test_what_a_policy_draws_and_what_a_format_draws_are_those_of_each_alone():
    qkv = grouped()
    both = approximate("random+turboquant", qkv, 12, seed=3)
    policy, fmt = approximate("random", qkv, 12, seed=3), approximate("turboquant", qkv, seed=3)
    assert {**both.draws}.keys() == {*policy.draws, *fmt.draws}
    for name, value in {**policy.draws, **fmt.draws}.items():
        assert torch.equal(both.draws[name], value)
    assert torch.equal(both.stored[0], fmt.stored[0])


def test_what_stays_is_stored_in_the_bits_of_the_format():
    stored = get("snapkv+kivi").stored(20, {"exact": 8, "observe": 4, "bits": 4})
    assert stored == Storage(evicts=True, k=5.0, v=5.0, exact=8, group=32)
    assert get("window+q4_0").stored(20, {"of": "v"}) == Storage(evicts=True, v=4.5, block=32)
    assert get("snapkv+rotated:fp8").stored(20, {}).head == 64.0


@pytest.mark.parametrize("fmt", ["q4_0", "fp8", "kivi", "turboquant"])
def test_a_prompt_that_is_compressed_once_is_quantised_behind_the_choice(fmt):
    """What decoding reads: the keys that the policy keeps of the prompt, in their order, from one cache."""
    qkv, options = grouped(n=30), {"observe": 4, **SMALL.get(fmt, {})}
    text, method = prompt_text(qkv, 26), get(f"snapkv+{fmt}")
    index = kept_keys(method, text, 26, 11, 0, options)
    assert torch.equal(index, kept_keys(get("snapkv"), text, 26, 11, 0, {"observe": 4}))
    assert (index.diff() > 0).all() and index.shape == (4, 11)
    k, v = kept_cache(method, qkv, index, 0, options)
    draws = approximate(fmt, qkv, **SMALL.get(fmt, {})).draws
    own = {key: value for key, value in SMALL.get(fmt, {}).items() if key != "exact"}
    first = (11 - SMALL.get(fmt, {}).get("exact", 0)) // own.get("group", 1) * own.get("group", 1)
    for head in range(4):
        of_head = {name: value[head] for name, value in draws.items()}
        for side, got, x in (("key", k, qkv.k), ("value", v, qkv.v)):
            kept = x[head, index[head]]
            expected = READ[fmt](kept, side, of_head, **own)
            expected[first:] = kept[first:]
            assert (got[head] - expected).abs().max() < 1e-6
