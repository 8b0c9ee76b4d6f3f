"""The budget that fits a share of the bytes of a prompt: no more, and the next one does not fit."""

import re

import pytest
import torch
from safetensors.torch import save_file

from attnprobe import Storage, method
from attnprobe.errors import Unsupported
from attnprobe.methods import get
from attnprobe.methods.fitting import Fitted, fitted
from attnprobe.rng import generator
from attnprobe.run.plan import MethodRequest, refused

SHARES = (1.0, 0.5, 0.25, 0.1, 1 / 16)
POLICIES = ["snapkv", "window", "random", "snapkv+q4_0", "snapkv+rotated:fp8", "knorm+kivi"]


def size(entry, d, options, count, k=64, v=64):
    return entry.stored(d, options).bits(count, k=k, v=v, own=16.0) / (count if d is None else 400) / (16 * (k + v))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_gets_the_most_keys_that_fit(name, share):
    entry = get(name)
    found = fitted(entry, {}, share, 400, k=64, v=64)
    assert found.share == pytest.approx(size(entry, found.d, {}, found.d)) and found.share <= share and found.keeps
    assert found.options == {}
    assert all(size(entry, d, {}, d) > share for d in range(found.d + 1, 401))
    if name == "snapkv":
        assert found.d == int(400 * share)


@pytest.mark.parametrize("share", SHARES)
def test_a_format_gets_the_most_bits_that_fit(share):
    for name, overhead in (("turboquant", 16 / 64), ("kivi", 1.0)):
        options = {"exact": 0} if name == "kivi" else {}
        fits = [bits for bits in range(1, 9) if bits + overhead <= 16 * share]
        if not fits:
            with pytest.raises(
                Unsupported, match=rf"{name} with bits=1: it takes 0\..* more than {share:g}; choose more"
            ):
                fitted(get(name), options, share, 384, k=64, v=64)
            continue
        found = fitted(get(name), options, share, 384, k=64, v=64)
        assert found.options == {"bits": fits[-1]} and found.d is None
        assert found.share == pytest.approx((fits[-1] + overhead) / 16)


def test_bits_that_are_given_stay_and_a_format_without_bits_fits_or_not():
    assert fitted(get("turboquant"), {"bits": 2}, 0.5, 100, k=64, v=64) == Fitted(None, 2.25 / 16)
    assert fitted(get("q4_0"), {}, 0.3, 100, k=64, v=64) == Fitted(None, 4.5 / 16)
    with pytest.raises(Unsupported, match=r"q4_0: it takes 0.281 of the bytes of 100 tokens, more than 0.25; choose"):
        fitted(get("q4_0"), {}, 0.25, 100, k=64, v=64)
    with pytest.raises(Unsupported, match=r"turboquant: it takes 0.141"):
        fitted(get("turboquant"), {"bits": 2}, 0.1, 100, k=64, v=64)


def test_exact_tokens_and_padding_take_their_bytes():
    assert fitted(get("q4_0"), {"exact": 50}, 1.0, 100, k=64, v=64).share == pytest.approx((50 * 16 + 50 * 4.5) / 1600)
    assert fitted(get("q8_0"), {}, 1.0, 10, k=80, v=80).share == pytest.approx(8.5 * 96 / (16 * 80))
    with pytest.raises(Unsupported, match=r"kivi with bits=1: it takes 1 of the bytes of 100 tokens"):
        fitted(get("kivi"), {}, 0.9, 100, k=64, v=64)  # 128 recent tokens are exact


def test_a_method_that_reads_the_whole_prompt_gets_what_it_may_read():
    assert fitted(get("topk"), {}, 0.1, 400, k=64, v=64) == Fitted(40, 0.1, keeps=False)


def test_too_few_bytes_are_refused_in_one_line():
    with pytest.raises(
        Unsupported, match="window: d=5, its least, takes 0.05 of the bytes of 100 tokens, more than 0.01"
    ):
        fitted(get("window"), {}, 0.01, 100, k=64, v=64)


def test_a_users_policy_states_its_bits():
    @method(budget="d keys", storage=lambda d, options: Storage(evicts=True, k=options["bits"], v=8.0))
    def own(q, k, v, d, bits=4.0):
        return v

    assert fitted(get(own), {}, 0.3, 100, k=64, v=64).d == int(100 * 0.3 * 16 / 6)
    assert fitted(get(own), {"bits": 16.0}, 0.3, 100, k=64, v=64).d == 40


@pytest.mark.parametrize(
    "name, d, options, tokens, line",
    [
        (
            "kivi",
            None,
            {},
            140,
            "kivi: no test: with exact=128 and groups of 32 all 140 tokens that it stores stay exact",
        ),
        (
            "q4_0",
            None,
            {"exact": 64},
            64,
            "q4_0: no test: with exact=64 all 64 tokens that it stores stay exact; choose f",
        ),
        ("snapkv+kivi", 150, {}, 500, r"snapkv\+kivi: no test: .* all 150 tokens that it stores stay exact"),
        ("kivi", None, {}, 160, None),
        ("snapkv+q4_0", 1, {}, 500, None),
        ("snapkv", 500, {}, 500, None),
    ],
)
def test_a_format_that_quantises_no_token_is_no_test(name, d, options, tokens, line):
    why = get(name).why_no_test(d, options, tokens)
    assert why is None if line is None else re.match(line, why)
    assert refused(MethodRequest(name, options), "softmax", tokens, d) == why


def test_its_row_is_skipped_and_says_so(run, tmp_path):
    torch_file = {axis: torch.randn(2, 40, 8, generator=generator(0, axis)) for axis in "qkv"}
    save_file(torch_file, tmp_path / "qkv.safetensors")
    code, out, _ = run("error", "--qkv", str(tmp_path / "qkv.safetensors"), "--method", "kivi,q4_0", "--no-matrix")
    assert code == 0 and "kivi: no test: with exact=128 and groups of 32 all 40 tokens" in " ".join(out.split())
