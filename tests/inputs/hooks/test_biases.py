"""Biases and caps of a model's scores reach every method that can use them; ALiBi is one more coordinate."""

import pytest
import tiny_models
import torch

from attnprobe import QKV, approximate, capture, exact, injected, row_metrics
from attnprobe.errors import NotFinite, Unsupported, UsageError
from attnprobe.inputs.hooks.weightless import of_keys
from attnprobe.methods import METHODS
from attnprobe.metrics.spectrum import attention_matrix
from attnprobe.reference import exact_output

ALIBI = ("BLOOM", "MPT", "Falcon with ALiBi")
GENERAL = ("MPNet", "DeBERTa", "DeBERTa-v2", "T5", "Gemma 2")
SAME = 1e-6
D = 12


def alone(built, name):
    """The first call of a model for a text without padding."""
    model, _ = built(name)
    return next(iter(capture(model, tiny_models.inputs(model, padded=False)).values()))


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("name", ALIBI)
def test_alibi_is_one_more_coordinate(built, name):
    call = alone(built, name)
    qkv = call.qkv()
    assert call.bias is not None and call.bias.shape[2] == 1 and call.bias[..., 0].eq(0).all()
    assert qkv.terms is None and qkv.p == call.q.shape[3] + 1 and qkv.scale == call.scale and qkv.causal
    assert qkv.kv_heads == call.kv_heads  # heads that share keys have their slopes in Q
    assert apart(exact_output(qkv), call.output()[0].transpose(0, 1)) <= SAME
    if name != "Falcon with ALiBi":
        steps = call.bias[0, :, 0].diff()
        torch.testing.assert_close(qkv.k[..., -1].diff(), steps, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(qkv.q[..., -1], torch.full_like(qkv.q[..., -1], 1 / call.scale))


@pytest.mark.parametrize("method", ["q8_0", "rotated:q4_0", "kivi", "snapkv+q4_0"])
@pytest.mark.parametrize("name", ALIBI)
def test_formats_quantise_the_keys_of_a_model_without_its_alibi(built, name, method, tmp_path):
    """Reference: the model's own K, quantised, and the bias added to the scores afterwards."""
    call = alone(built, name)
    qkv = call.qkv()
    alike = [qkv, qkv.double(), qkv.select([1]), qkv.queries(torch.tensor([3, 9])), qkv.first(8)]
    assert all(one.positional == 1 for one in alike) and qkv.p_k == call.k.shape[3]
    every = {"d": qkv.n_k} if "+" in method else {}
    options = {"group": 4, "exact": 6} if method == "kivi" else {}
    got = approximate(method, qkv, **every, **options)
    entry = method.rpartition("+")[2]
    own = QKV(call.q[0], call.k[0], call.v[0], scale=call.scale)
    k, v = approximate(entry, own, **{**options, "exact": 0}).stored
    exact_from = (torch.arange(qkv.n_k) - 5).clamp(min=0) // 4 * 4 if options else torch.arange(qkv.n_k) + 1
    exactly = torch.arange(qkv.n_k) >= exact_from[:, None]
    group = call.heads // call.kv_heads
    k, v, own_k, own_v = (x.double().repeat_interleave(group, 0) for x in (k, v, own.shared_k, own.shared_v))
    scores = torch.where(exactly, own.q.double() @ own_k.mT, own.q.double() @ k.mT) * call.scale + call.bias[0].double()
    weights = scores.masked_fill(qkv.visible.hidden(qkv.n_k), -torch.inf).softmax(-1)
    assert apart(got.output, (weights * ~exactly) @ v + (weights * exactly) @ own_v) <= SAME
    assert apart(got.output, call.output()[0].transpose(0, 1)) > 10 * SAME


@pytest.mark.parametrize("name", ALIBI)
def test_every_causal_method_runs_on_alibi(built, name):
    qkv = alone(built, name).qkv()
    for method, entry in METHODS.items():
        if entry.is_causal and "sinks" not in method:
            try:
                made = approximate(method, qkv, D)
            except (Unsupported, UsageError) as error:
                assert "bias" not in str(error)
            else:
                assert made.output.shape == qkv.v.shape
    assert apart(approximate("topk", qkv, qkv.n_k).output, exact_output(qkv)) <= SAME


def test_alibi_of_a_padded_batch_and_behind_a_cache(built):
    model, batch = built("BLOOM")
    call = next(iter(capture(model, batch).values()))
    qkv = call.qkv(1)
    rows = exact_output(qkv)[:, : tiny_models.VALID]
    assert apart(rows, call.output()[1].transpose(0, 1)[:, : tiny_models.VALID]) <= SAME
    with injected(model, "window", d=tiny_models.N + 4):
        ids = batch["input_ids"][:1]
        full = model(ids, use_cache=False).last_hidden_state[:, -1]
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        assert apart(model(ids[:, -1:], past_key_values=cache).last_hidden_state[:, -1], full) <= 1e-5
    assert apart(full, model(ids, use_cache=False).last_hidden_state[:, -1]) <= 1e-5


@pytest.mark.parametrize("name", GENERAL)
def test_a_bias_or_cap_is_carried_by_q_k_v(built, name):
    call = alone(built, name)
    qkv = call.qkv()
    assert qkv.terms is not None and (qkv.bias is None) == (call.bias is None) and qkv.softcap == call.softcap
    output = call.output()[0].transpose(0, 1)
    dense = exact(qkv.double()).dense()
    scores = qkv.scale * qkv.q.double() @ qkv.k.double().mT
    if qkv.softcap is not None:
        scores = qkv.softcap * (scores / qkv.softcap).tanh()
    if qkv.bias is not None:
        scores = scores + qkv.bias
    if qkv.visible is not None:
        scores = scores.masked_fill(qkv.visible.hidden(qkv.n_k), -torch.inf)
    torch.testing.assert_close(dense, scores.softmax(-1), rtol=0, atol=1e-12)
    assert apart(exact_output(qkv), output) <= SAME and apart(dense @ qkv.v.double(), output) <= SAME
    log_a = scores - scores.amax((1, 2), keepdim=True)
    torch.testing.assert_close(attention_matrix(qkv.double(), "unnormalised").dense(), log_a.exp(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", GENERAL)
def test_methods_use_a_bias_or_are_refused_by_name(built, name):
    """With room for all keys, each that takes it is exact attention with its bias, and its rows have no error."""
    qkv = alone(built, name).qkv()
    reference, ran = exact_output(qkv), set()
    for method, entry in METHODS.items():
        if "biases" not in entry.tags:
            with pytest.raises(Unsupported, match=r"scores have|sliding window|is causal|does not take"):
                approximate(method, qkv, D)
            continue
        d, options = (None, {}) if entry.exact_at is None else entry.exact_at(qkv.n_k)
        try:
            made = approximate(method, qkv, d, **options)
        except Unsupported as error:
            assert "bias" not in str(error) and "cap" not in str(error)
            continue
        ran.add(method)
        if entry.claims("exact_at_full_budget", "softmax"):
            assert apart(made.output, reference) <= 2 * SAME, method
        if made.log_normalizer is not None:
            rows = row_metrics(exact(qkv), made, qkv)
            assert float(rows["log_normaliser_error"].abs().max()) <= 1e-4 and float(rows["tv"].max()) <= 1e-5, method
    assert ran >= {"softmax", "topk", "window"}


def test_few_keys_are_chosen_by_scores_with_their_bias():
    """Of equal queries and keys only the bias tells keys apart."""
    bias = torch.tensor([0.0, 3.0, 1.0, 2.0]).expand(1, 4, 4).contiguous()
    qkv = QKV(torch.ones(1, 4, 2), torch.ones(1, 4, 2), torch.eye(4)[None], bias=bias)
    for method in ("topk", "topp", "dsa-oracle", "h2o", "snapkv", "tova"):
        try:
            output = approximate(method, qkv, 2).output
        except UsageError:
            continue
        assert output[0, 0].nonzero()[:, 0].tolist() == [1, 3], method


def test_parts_of_inputs_have_their_parts_of_the_bias():
    draws = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 7, 4, generator=draws)
    bias = torch.randn(2, 7, 7, generator=draws)
    qkv = QKV(q, k, v, bias=bias, softcap=2.0)
    full = exact_output(qkv)
    rows = torch.tensor([1, 4])
    torch.testing.assert_close(exact_output(qkv.queries(rows)), full[:, rows])
    torch.testing.assert_close(exact_output(qkv.select([1])), full[1:])
    few = QKV(q[:1, :5], k[:1, :5], v[:1, :5], bias=bias[:1, :5, :5], softcap=2.0)
    torch.testing.assert_close(exact_output(qkv.first(5)), exact_output(few))
    mask = torch.tensor([True] * 5 + [False] * 2)
    torch.testing.assert_close(
        exact_output(qkv.replace(mask=mask))[:, :5],
        exact_output(QKV(q[:, :5], k[:, :5], v[:, :5], bias=bias[:, :5, :5], softcap=2.0)),
    )
    assert "bias" in repr(qkv) and qkv.half().bias.dtype == torch.float16


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bias": torch.zeros(3, 4, 4)}, "bias: needs shape"),
        ({"bias": torch.zeros(1, 4, 5)}, "bias: needs shape"),
        ({"bias": torch.zeros(1, 4, 4, dtype=torch.int64)}, "bias: needs shape"),
        ({"softcap": 0}, "softcap: 0 is not a positive number"),
        ({"softcap": "2"}, "softcap: '2' is not a positive number"),
        ({"own": torch.zeros(2, 4, 4)}, "own: needs shape"),
    ],
)
def test_a_wrong_bias_or_cap_is_one_line(wrong, says):
    with pytest.raises(UsageError, match=says):
        QKV(*torch.ones(3, 2, 4, 3), **wrong)


def test_a_bias_that_hides_keys_and_the_gaussian_target_are_refused():
    with pytest.raises(NotFinite, match="hide keys by a mask"):
        QKV(*torch.ones(3, 2, 4, 3), bias=torch.full((4, 4), -torch.inf))
    qkv = QKV(*torch.ones(3, 2, 4, 3), bias=torch.ones(4, 4))
    with pytest.raises(Unsupported, match="its scores have a bias from 1 to 1"):
        exact(qkv, "gaussian")


def test_a_bias_of_keys_is_told_from_another_one():
    of_key, of_row = torch.randn(1, 3, 1, 6), torch.randn(1, 3, 6, 1)
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    for visible in (None, causal):
        found = of_keys(of_key + of_row, visible)
        torch.testing.assert_close(found, of_key - of_key[..., :1])
        other = torch.randn(1, 3, 6, 6)
        assert of_keys(other, visible) is not None and of_keys(other, visible).shape == other.shape
    assert of_keys(of_row.expand(1, 3, 6, 6), None) is None
