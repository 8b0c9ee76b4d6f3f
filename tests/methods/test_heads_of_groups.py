"""A head of a layer with grouped queries alone, in a part of its group, and in its layer."""

import re

import pytest
import torch
from inputs import entry_band, make

from attnprobe import QKV, approximate
from attnprobe.methods import KERNELS, METHODS, get

N, GROUP = 24, 4
LAYER = range(8)  # of two KV heads
PARTS = {
    "alone": [5],
    "two of a group": [1, 2],
    "unequal parts of both groups": [2, 3, 4],
    "mixed": [6, 0, 3],
    "a whole group": [4, 5, 6, 7],
    "the layer in another order": [7, 2, 0, 5, 1, 3, 6, 4],
}
FEW = ["alone", "unequal parts of both groups"]
EVERY = {**METHODS, **KERNELS}
SETS = {"sets": "head", "share": "head"}  # options with which a head chooses keys by itself
TOGETHER = ["dsa-oracle", "expected", "h2o", "nsa", "snapkv", "tova"]  # by default heads choose keys together


def layer(causal):
    made = make(h=len(LAYER), n=N, score=2.0)
    return QKV(made.q, made.k[::GROUP], made.v[::GROUP], causal=causal)


def run(name, qkv, **options):
    entry = get(name)
    d = None if entry.budget is None else max(14, entry.least)
    small = {key: value for key, value in entry.small.items() if key not in SETS}
    compiled = {"compiled": False} if name == "torch:flex" else {}
    return approximate(name, qkv, d, target=entry.targets[0], **{**small, **compiled, **options})


def differing(name, causal, parts=PARTS, **options):
    """The parts of a layer in which a head has another result or other draws than in the layer."""
    qkv, found = layer(causal), []
    whole = run(name, qkv, **options)
    for label in parts:
        heads = PARTS[label]
        part = run(name, qkv.select(heads), **options)
        if whole.operator is None:
            same = (part.output - whole.output[heads]).abs().max() < 1e-12
        else:
            expected = whole.operator.dense()[heads]
            band = entry_band(whole.operator, qkv, whole.operator.dtype)[heads]
            same = ((part.operator.dense() - expected).abs() <= band).all()
        drawn = all(torch.equal(value, whole.draws[key][heads]) for key, value in part.draws.items())
        found += [label] * (not same or not drawn)
    return found


def forms(name):
    return [False, True] if {"causal", "prefill", "whole_scale", "causal_target"} & set(get(name).tags) else [False]


@pytest.mark.parametrize("parts", [FEW, pytest.param([*PARTS], marks=pytest.mark.slow)], ids=["few", "all"])
@pytest.mark.parametrize("name", EVERY)
def test_a_head_is_the_same_alone_and_in_its_layer_or_its_page_says_why_not(name, parts):
    parts = parts if name != "torch:flex" else ["unequal parts of both groups"]  # its masks take a while
    for causal in forms(name):
        found = differing(name, causal, parts)
        assert bool(found) == (name in TOGETHER), found
        if found:
            page = " ".join((get(name).function.__doc__ or "").split())
            assert re.search(r"(given heads|given ones), so a (head alone|part of a group) has other sets", page)


@pytest.mark.parametrize("name", TOGETHER)
def test_heads_that_choose_by_themselves_are_the_same_everywhere(name):
    own = {key: value for key, value in SETS.items() if key in get(name).options}
    for causal in forms(name):
        assert differing(name, causal, **own) == []


@pytest.mark.parametrize("name", sorted({*TOGETHER} - {"dsa-oracle", "tova"}))
def test_a_group_chooses_as_it_does_in_its_layer(name):
    for causal in forms(name):
        assert differing(name, causal, ["a whole group", "the layer in another order"]) == []


@pytest.mark.parametrize("name", ["dsa-oracle", "h2o", "nsa", "quest", "snapkv", "tova"])
def test_the_given_heads_of_a_group_choose_together_wherever_they_stand(name):
    """Heads 2 and 3 of a group beside a head of the other group, and apart from each other."""
    together = {"share": "group-mean"} if "share" in get(name).options else {"sets": "group"}
    together |= {"branch": "selected"} if name == "nsa" else {}
    qkv = layer(True)
    for heads, rows in (([2, 3, 4], [0, 1]), ([3, 6, 2], [2, 0])):
        got, expected = (
            run(name, qkv.select(some), **together) for some in (heads, sorted(heads[row] for row in rows))
        )
        assert torch.equal(got.keys()[rows], expected.keys())
        read = got.diagnostics["kv_read"][rows]
        assert torch.allclose(read, expected.diagnostics["kv_read"]) and read[0] == read[1]
