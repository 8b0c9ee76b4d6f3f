"""Sets of keys in files: what is written is what is read, and what does not fit is refused."""

from __future__ import annotations

import json

import pytest
import torch
from inputs import make
from safetensors.torch import load_file, save_file

from attnprobe import QKV, approximate, exact, row_metrics
from attnprobe.errors import Unsupported, UsageError
from attnprobe.grammar.spelling import parts
from attnprobe.methods import get
from attnprobe.methods.selection.files import save_selection, selected_keys


def causal(n=24, h=2, **more) -> QKV:
    return make(n=n, h=h, score=3.0, **more).replace(causal=True)


def written(tmp_path, keys, **metadata):
    path = tmp_path / "sets.safetensors"
    tensors = keys if isinstance(keys, dict) else {"indices": torch.as_tensor(keys, dtype=torch.int32)}
    save_file(tensors, path, {name: str(value) for name, value in metadata.items()})
    return f"selection:{path}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sets_of_quest_from_a_file_are_quest_bit_for_bit(tmp_path, dtype):
    qkv = causal(n=70, h=3, dtype=dtype)
    quest = approximate("quest", qkv, 12, page=4)
    save_selection(tmp_path / "quest.safetensors", [(qkv, quest)], source="quest:page=4")
    again = approximate(f"selection:{tmp_path / 'quest.safetensors'}", qkv)
    assert torch.equal(again.output, quest.output)
    assert torch.equal(again.operator.dense(), quest.operator.dense())
    assert torch.equal(again.diagnostics["realised_d"], quest.diagnostics["realised_d"])
    assert torch.equal(again.diagnostics["kv_read"], quest.diagnostics["kv_read"])
    assert again.diagnostics["future_keys"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["block-topk", "snapkv", "vertical-slash", "topk", "window", "bigbird"])
def test_the_sets_of_any_sparse_method_can_be_written(tmp_path, name):
    qkv = causal()
    made = approximate(name, qkv, 12, **get(name).small)
    if name == "bigbird":  # whose first and last rows are another operator
        with pytest.raises(Unsupported, match="no set of keys for each row"):
            save_selection(tmp_path / "sets", [(qkv, made)])
        return
    save_selection(tmp_path / "sets", [(qkv, made)])
    again = approximate(f"selection:{tmp_path / 'sets'}", qkv)
    assert (again.operator.dense() - made.operator.dense()).abs().max() < 1e-14


def test_layers_windows_and_heads_have_sets_of_their_own(tmp_path):
    pairs = []
    for layer, window in ((0, 0), (0, 1), (2, 0)):
        qkv = causal(seed=layer + 7 * window).replace(label={"layer": layer, "window": window}, heads=(3, 5))
        pairs.append((qkv, approximate("topk", qkv, 4)))
    save_selection(tmp_path / "sets", pairs)
    for qkv, made in pairs:
        again = approximate(f"selection:{tmp_path / 'sets'}", qkv.select([5]))
        assert torch.allclose(again.operator.dense()[0], made.operator.dense()[1], atol=1e-15)
    with pytest.raises(UsageError, match="either indices or blocks of layer 1, window 0"):
        approximate(f"selection:{tmp_path / 'sets'}", qkv.replace(label={"layer": 1}))
    with pytest.raises(UsageError, match="two sets of layer0.window0"):
        save_selection(tmp_path / "sets", [pairs[0], pairs[0]])
    with pytest.raises(UsageError, match="no sets of head 1"):
        approximate(f"selection:{tmp_path / 'sets'}", pairs[0][0].replace(heads=(3, 1)))


def test_sets_of_kv_heads_are_those_of_their_query_heads(tmp_path):
    q, kv = make(h=4, n=6), make(h=2, n=6)
    qkv = QKV(q.q, kv.k, kv.v)
    keys = torch.tensor([[[0, 1]] * 6, [[2, 3]] * 6])
    dense = approximate(written(tmp_path, keys), qkv).operator.dense() != 0
    for head in range(4):
        assert dense[head].any(0).nonzero()[:, 0].tolist() == ([0, 1] if head < 2 else [2, 3])


def test_keys_ahead_are_refused_or_counted(tmp_path):
    qkv = causal(n=4, h=1)
    name = written(tmp_path, [[[0, 1], [0, 1], [1, 3], [-1, 2]]])
    with pytest.raises(Unsupported, match=r"row 0 of head 0 has key 1, which comes after it; lookahead=allow"):
        approximate(name, qkv)
    actual = approximate(name, qkv, lookahead="allow")
    assert actual.diagnostics["future_keys"].tolist() == [2]
    seen = [row.nonzero()[:, 0].tolist() for row in actual.operator.dense()[0]]
    assert seen == [[0], [0, 1], [1], [2]] and actual.diagnostics["realised_d"].tolist() == [1.25]
    assert not approximate(name, qkv.replace(causal=False)).diagnostics["future_keys"].any()


def test_blocks_are_the_keys_in_them(tmp_path):
    qkv = causal(n=7, h=1)
    blocks = torch.tensor([[[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]]], dtype=torch.bool)
    dense = approximate(written(tmp_path, {"blocks": blocks}, block="3,2"), qkv).operator.dense()[0] != 0
    seen = [row.nonzero()[:, 0].tolist() for row in dense]
    assert seen == [[0], [0, 1], [0, 1], [2, 3], [2, 3], [2, 3], [0, 1, 4, 5, 6]]
    with pytest.raises(UsageError, match=r"blocks of 2 x 2 are \(4, 4\), not \(3, 4\)"):
        approximate(written(tmp_path, {"blocks": blocks}, block=2), qkv)


@pytest.mark.parametrize("kind", ["probability", "log_bias"])
def test_weights_are_importance_weights_or_biases(tmp_path, kind):
    qkv = causal(n=5, h=1)
    keys = torch.tril(torch.arange(5).expand(1, 5, 5) + 1) - 1
    weights = torch.rand(1, 5, 5, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.1
    tensors = {"indices": keys.to(torch.int32).contiguous(), "weights": weights}
    actual = approximate(written(tmp_path, tensors, weights=kind), qkv)
    factor = 1 / weights if kind == "probability" else weights.exp()
    entries = exact(qkv).dense()[0] * factor[0]
    assert torch.allclose(actual.operator.dense()[0], entries / entries.sum(-1, keepdim=True), atol=1e-12)
    scores = (qkv.scale * qkv.q[0] @ qkv.k[0].mT).exp().tril() * factor[0]
    assert torch.allclose(actual.log_normalizer()[0], scores.sum(-1).log(), atol=1e-12)


def test_rows_of_a_file_have_the_identities_of_a_selection(tmp_path):
    qkv = causal(n=30, h=2)
    name = written(tmp_path, selected_keys(approximate("quest", qkv, 9, page=3)))
    actual = row_metrics(exact(qkv), approximate(name, qkv), qkv)
    assert (actual["tv"] - 1 + actual["mass"]).abs().max() < 1e-10
    assert (actual["row_error"] - (1 - actual["mass"]) * actual["tail_gap"]).abs().max() < 1e-10


@pytest.mark.parametrize(
    "keys, metadata, says",
    [
        ([[[0]] * 3], {}, "it has 3 rows, and there are 4 queries"),
        ([[[4]] * 4], {}, "keys are -1 … 3; it has 4 … 4"),
        ([[[-2]] * 4], {}, "keys are -1 … 3; it has -2"),
        ([[[0, 0]] * 4], {}, "row 0 of head 0 has a key twice"),
        ([[0]] * 4, {}, "sets have three axes"),
        ([[[0]] * 4], {"causal": "false"}, "inputs with causal=false, and these have true"),
        ([[[0]] * 4], {"offset": 9}, "inputs with offset=9, and these have 0"),
        ([[[0]] * 4], {"heads": json.dumps([7])}, "it has no sets of head 0"),
    ],
)
def test_sets_that_do_not_fit_are_refused(tmp_path, keys, metadata, says):
    with pytest.raises(UsageError, match=says):
        approximate(written(tmp_path, keys, **metadata), causal(n=4, h=1))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(UsageError, match="text is not a safetensors file"):
        approximate(f"selection:{tmp_path / 'text'}", causal())
    with pytest.raises(UsageError, match="no sets of keys can be read from it"):
        get(f"selection:{tmp_path / 'absent'}")


def test_the_name_and_the_options_are_apart_and_another_content_is_another_method(tmp_path):
    assert parts("selection:a/b.safetensors:lookahead=allow") == ("selection:a/b.safetensors", "lookahead=allow")
    name = written(tmp_path, [[[0]]])
    first = get(name)
    assert first.name == "selection:sets.safetensors" and set(first.options) == {"lookahead"}
    written(tmp_path, [[[-1]]])
    assert get(name).provenance.sha256 != first.provenance.sha256
    assert load_file(tmp_path / "sets.safetensors")["indices"].dtype == torch.int32
