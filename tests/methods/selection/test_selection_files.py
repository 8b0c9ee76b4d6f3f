"""Sets of keys in files: what is written is what is read, and what does not fit is refused."""

import json

import pytest
import torch
from inputs import make
from safetensors.torch import load_file, save_file

from attnprobe import QKV, approximate, exact, row_metrics
from attnprobe.errors import Unsupported, UsageError
from attnprobe.grammar.lists import parts
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


def sets_of(heads: int, rows: int) -> torch.Tensor:
    """Three keys for each row of each head, which differ between heads."""
    first = torch.arange(heads)[:, None, None] + torch.arange(rows)[:, None] + torch.tensor([0, 9, 15])
    return (first % 24).to(torch.int32)


@pytest.mark.parametrize(
    "rows, metadata",
    [
        (8, {}),
        (8, {"heads_of": "query"}),
        (8, {"heads": "[7, 6, 5, 4, 3, 2, 1, 0]"}),
        (8, {"heads": "[1, 0, 3, 2, 5, 4, 7, 6]", "heads_of": "query"}),
        (2, {}),
        (2, {"heads_of": "kv"}),
        (2, {"heads": "[0, 1]", "heads_of": "kv"}),
        (2, {"heads": "[1, 0]", "heads_of": "kv"}),
        (3, {"heads": "[2, 1, 0]", "heads_of": "kv"}),
    ],
)
def test_a_head_alone_reads_the_sets_that_it_reads_among_all(tmp_path, rows, metadata):
    q, kv = make(h=8, n=24), make(h=2, n=24, seed=1)
    qkv = QKV(q.q, kv.k, kv.v)
    sets = sets_of(rows, 24)
    name = written(tmp_path, sets, **metadata)
    numbers = json.loads(metadata.get("heads", str(list(range(rows)))))
    of_kv = metadata.get("heads_of") == "kv" or rows == 2
    whole = approximate(name, qkv)
    for head in range(8):
        place = numbers.index(head // 4 if of_kv else head)
        assert torch.equal(whole.keys()[head], sets[place].long())
        for part in (qkv.select([head]), qkv.select([head, 0] if head else [0, 5]).select([head])):
            alone = approximate(name, part.to(dtype=qkv.dtype))
            assert torch.equal(alone.keys()[0], sets[place].long())
            assert torch.allclose(alone.output[0], whole.output[head], atol=1e-14)
    pair = approximate(name, qkv.select([6, 1]))
    assert torch.allclose(pair.output, whole.output[[6, 1]], atol=1e-14)


def test_numbers_of_either_query_or_kv_heads_are_refused(tmp_path):
    q, kv = make(h=8, n=24), make(h=2, n=24)
    qkv = QKV(q.q, kv.k, kv.v)
    name = written(tmp_path, sets_of(2, 24), heads="[0, 1]")
    for part in (qkv, qkv.select([1])):
        with pytest.raises(Unsupported, match=r"heads \[0, 1\] can be query heads or KV heads; write heads_of"):
            approximate(name, part)
    assert approximate(name, QKV(q.q, q.k, q.v).select([1])).output.shape[0] == 1  # without groups both are the same


def test_some_query_heads_of_a_group_are_written_and_read_as_query_heads(tmp_path):
    q, kv = make(h=8, n=24), make(h=2, n=24)
    qkv = QKV(q.q, kv.k, kv.v)
    made = approximate("topk", qkv.select([1, 0]), 4)
    save_selection(tmp_path / "sets", [(qkv.select([1, 0]), made)])
    again = approximate(f"selection:{tmp_path / 'sets'}", qkv.select([1]))
    assert torch.allclose(again.output[0], made.output[0], atol=1e-14)
    with pytest.raises(Unsupported, match="no sets of head 4"):
        approximate(f"selection:{tmp_path / 'sets'}", qkv.select([4]))


def test_layers_of_other_heads_or_masks_are_not_written_to_one_file(tmp_path):
    first = causal()
    for other, says in (
        (first.replace(heads=(3, 5), label={"layer": 1}), r"heads=\[3, 5\], others \[0, 1\]"),
        (first.replace(causal=False, label={"layer": 1}), "causal=false, others true"),
    ):
        pairs = [(one, approximate("topk", one, 4)) for one in (first, other)]
        with pytest.raises(UsageError, match=says):
            save_selection(tmp_path / "sets", pairs)
        assert not (tmp_path / "sets").exists()


def test_queries_with_gaps_are_told_apart(tmp_path):
    """From those in a row, and from those with other gaps, though they begin at the same position."""
    text = causal()
    gaps, others, row = (text.queries(torch.tensor(at)) for at in ([3, 9, 20], [3, 12, 20], [3, 4, 5]))
    made = {name: approximate("topk", qkv, 3) for name, qkv in (("gaps", gaps), ("row", row))}
    save_selection(tmp_path / "gaps", [(gaps, made["gaps"])])
    save_selection(tmp_path / "row", [(row, made["row"])])
    for name, qkv in (("gaps", gaps), ("row", row)):
        again = approximate(f"selection:{tmp_path / name}", qkv)
        assert (again.operator.dense() - made[name].operator.dense()).abs().max() < 1e-14
    for name, qkv, says in (
        ("gaps", others, "row 1 is of a query at position 9, and that of these inputs is at 12"),
        ("gaps", row, "row 1 is of a query at position 9, and that of these inputs is at 4"),
        ("row", gaps, "row 1 is of a query at position 4, and that of these inputs is at 9"),
    ):
        with pytest.raises(Unsupported, match=says):
            approximate(f"selection:{tmp_path / name}", qkv)
    later = row.replace(label={"layer": 1})
    with pytest.raises(UsageError, match=r"others \[3, 9, 20\]: write two files"):
        save_selection(tmp_path / "both", [(gaps, made["gaps"]), (later, made["row"])])


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


def test_a_bias_far_below_0_counts_beside_an_empty_slot(tmp_path):
    qkv = causal(n=3, h=1)
    tensors = {
        "indices": torch.tensor([[[0, -1], [0, 1], [1, 2]]], dtype=torch.int32),
        "weights": torch.full((1, 3, 2), -1000.0),
    }
    biased = approximate(written(tmp_path, tensors, weights="log_bias"), qkv)
    plain = approximate(written(tmp_path, {"indices": tensors["indices"]}), qkv)
    assert torch.allclose(biased.output, plain.output, atol=1e-14)
    assert torch.allclose(biased.log_normalizer(), plain.log_normalizer() - 1000, atol=1e-9)
    tensors["weights"][0, 1, 1] = float("nan")
    with pytest.raises(Unsupported, match="a log_bias is NaN"):
        approximate(written(tmp_path, tensors, weights="log_bias"), qkv)


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
        ([[[]] * 4], {}, "none of length 0"),
        ([[[0]] * 4], {"causal": "false"}, "inputs with causal=false, and these have true"),
        ([[[0]] * 4], {"offset": 9}, "inputs with offset=9, and these have 0"),
        (
            [[[0]] * 4],
            {"positions": "[0, 1, 2, 5]"},
            "row 3 is of a query at position 5, and that of these inputs is at 3",
        ),
        ([[[0]] * 4], {"positions": "[0, 1.5]"}, "metadata positions: expected a valid integer"),
        ([[[0]] * 4], {"heads": json.dumps([7])}, "it has no sets of head 0"),
        ([[[0]] * 4], {"heads": "[true]"}, "metadata heads: expected a valid integer, got true"),
        ([[[0]] * 4], {"heads": "null"}, "metadata heads: expected a list of numbers"),
        ([[[0]] * 4], {"heads": "[0, 1]"}, "metadata heads: 2 numbers for the 1 heads of indices"),
        ([[[0]] * 4], {"heads": "[0"}, "metadata heads: not valid JSON"),
        ([[[0]] * 4], {"heads_of": "keys"}, "metadata heads_of: expected 'query' or 'kv'"),
        ([[[0]] * 4], {"causal": "no"}, "metadata causal: expected true or false"),
        ([[[0]] * 4], {"offset": "0.5"}, "metadata offset: expected a valid integer"),
        ([[[0]] * 4], {"weights": "log"}, "metadata weights: expected 'probability' or 'log_bias'"),
        ({"indices": torch.full((1, 4, 1), 0.5)}, {}, "indices is stored as F32, not as I8"),
        ({"indices": torch.zeros(1, 4, 1, dtype=torch.bool)}, {}, "indices is stored as BOOL"),
        ({"indices": torch.zeros(1, 4, 1, dtype=torch.uint64)}, {}, "indices is stored as U64"),
        ({"blocks": torch.full((1, 2, 2), float("nan"))}, {"block": 2}, "blocks is stored as F32, not as BOOL"),
        ({"blocks": torch.ones(1, 2, 2, dtype=torch.bool)}, {}, "blocks need the metadata block"),
        ({"blocks": torch.ones(1, 2, 2, dtype=torch.bool)}, {"block": "2,x"}, "metadata block: expected a valid"),
        ({"blocks": torch.ones(1, 2, 2, dtype=torch.bool)}, {"block": 0}, "metadata block: expected at least 1"),
        ({"other": torch.ones(1)}, {}, "it has neither indices nor blocks"),
    ],
)
def test_sets_that_do_not_fit_are_refused(tmp_path, keys, metadata, says):
    with pytest.raises(UsageError, match=says):
        approximate(written(tmp_path, keys, **metadata), causal(n=4, h=1))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(UsageError, match="text is not a safetensors file"):
        get(f"selection:{tmp_path / 'text'}")
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
