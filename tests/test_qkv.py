"""What a QKV takes, keeps and refuses."""

import pytest
import torch
from inputs import make

from attnprobe.errors import UsageError
from attnprobe.qkv import QKV


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


def test_shapes_are_read_off_and_a_bare_matrix_is_one_head():
    qkv = QKV(ones(4, 3), ones(6, 3), ones(6, 2))
    assert (qkv.h, qkv.n_q, qkv.n_k, qkv.p, qkv.p_v) == (1, 4, 6, 3, 2)
    assert qkv.heads == (0,) and qkv.scale == 3**-0.5 and (qkv.layer, qkv.window) == (0, 0)
    with pytest.raises(UsageError, match="4 queries and 6 keys"):
        _ = qkv.n
    assert QKV(ones(2, 5, 3), ones(2, 5, 3), ones(2, 5, 1)).n == 5


@pytest.mark.parametrize(
    "q, k, v, words",
    [
        (ones(2, 4, 3), ones(2, 4, 5), ones(2, 4, 3), "k: head dimension 5 differs from q's 3"),
        (ones(2, 4, 3), ones(2, 6, 3), ones(2, 4, 3), "v: 4 tokens, but k has 6"),
        (ones(2, 4, 3), ones(1, 4, 3), ones(2, 4, 3), "v: 2 heads, but k has 1"),
        (ones(2, 4, 3), ones(3, 4, 3), ones(3, 4, 3), "k: 3 heads, but q has 2, which is no multiple"),
        (ones(4, 4, 3), ones(4, 4, 3), ones(2, 4, 3), "v: 2 heads, but k has 4"),
        (ones(2, 4, 3), ones(2, 4, 3, dtype=torch.float64), ones(2, 4, 3), "k: dtype torch.float64 differs"),
        (ones(2, 4, 3), ones(2, 4, 3), ones(2, 4, 3, dtype=torch.float16), "v: dtype torch.float16 differs"),
        (ones(2, 4, 3, dtype=torch.int64), ones(2, 4, 3), ones(2, 4, 3), "q: dtype torch.int64"),
        (
            ones(2, 4, 3, dtype=torch.complex64),
            ones(2, 4, 3),
            ones(2, 4, 3),
            "q has dtype complex64; real numbers are needed",
        ),
        (ones(1, 2, 4, 3), ones(2, 4, 3), ones(2, 4, 3), r"q: shape \(1, 2, 4, 3\)"),
        (ones(3), ones(2, 4, 3), ones(2, 4, 3), r"q: shape \(3,\)"),
        (ones(0, 4, 3), ones(0, 4, 3), ones(0, 4, 3), "q: the axis 'heads' has length 0"),
        (ones(2, 4, 3), ones(2, 0, 3), ones(2, 0, 3), "k: the axis 'tokens' has length 0"),
        (ones(2, 4, 3), ones(2, 4, 3), ones(2, 4, 0), "v: the axis 'dimension' has length 0"),
        ([[1.0]], ones(2, 4, 3), ones(2, 4, 3), "q: expected a torch.Tensor, got list"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_fit_is_refused_by_tensor_and_axis(q, k, v, words):
    with pytest.raises(UsageError, match=words):
        QKV(q, k, v)


@pytest.mark.parametrize("name", "qkv")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_named_by_its_place(name, value):
    tensors = {key: ones(2, 4, 3) for key in "qkv"}
    tensors[name][1, 2, 0] = value
    with pytest.raises(UsageError, match=f"{name}: the value at head 1, token 2, column 0 is {value}"):
        QKV(**tensors)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(UsageError, match="scale"):
        QKV(ones(4, 3), ones(4, 3), ones(4, 3), scale=scale)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(4),
        torch.ones(5, dtype=torch.bool),
        torch.ones(1, 4, dtype=torch.bool),
        torch.zeros(4, dtype=torch.bool),
    ],
    ids=["float", "long", "batched", "empty"],
)
def test_a_mask_that_does_not_fit_is_refused(mask):
    with pytest.raises(UsageError, match="mask"):
        QKV(ones(4, 3), ones(4, 3), ones(4, 3), mask=mask)


def test_a_mask_needs_as_many_queries_as_keys():
    with pytest.raises(UsageError, match="mask"):
        QKV(ones(5, 3), ones(4, 3), ones(4, 3), mask=torch.ones(4, dtype=torch.bool))
    with pytest.raises(UsageError, match="mask: the queries are not the tokens in their order"):
        QKV(*torch.ones(3, 1, 4, 3), positions=torch.tensor([1, 0, 2, 3]), mask=torch.ones(4, dtype=torch.bool))


def test_masked_inputs_have_no_selected_rows():
    with pytest.raises(UsageError, match="queries: masked inputs have no selected rows; call `compressed` first"):
        QKV(*torch.ones(3, 1, 4, 3), mask=torch.ones(4, dtype=torch.bool)).queries(torch.tensor([1]))


def test_it_is_shown_with_its_mask_and_sinks():
    valid = torch.tensor([True, True, False])
    assert ", valid=2, causal, sink_logits, dtype" in repr(
        QKV(*torch.ones(3, 1, 3, 2), mask=valid, causal=True, sink_logits=torch.zeros(1))
    )


@pytest.mark.parametrize("other", [torch.ones(1, 4, 2), torch.ones(1, 5, 3), torch.ones(1, 4, 3).double()])
def test_all_queries_are_of_all_tokens(other):
    some = {"q": torch.ones(1, 2, 3), "k": torch.ones(1, 4, 3), "v": torch.ones(1, 4, 3)}
    with pytest.raises(UsageError, match=r"all_queries: needs shape \(1, 4, 3\), dtype torch.float32 and device cpu"):
        QKV(**some, positions=torch.tensor([1, 3]), all_queries=other)


def test_a_selection_keeps_original_numbers_scale_mask_and_label():
    mask = torch.tensor([True, True, False, True])
    qkv = QKV(*torch.randn(3, 5, 4, 3), scale=0.3, mask=mask, heads=(2, 4, 6, 8, 10), label={"layer": 7, "window": 3})
    part = qkv.select([8, 2])
    assert part.heads == (8, 2) and part.scale == 0.3 and part.mask is mask and (part.layer, part.window) == (7, 3)
    for name in "qkv":
        assert torch.equal(getattr(part, name), getattr(qkv, name)[[3, 0]])
    assert part.select([2]).heads == (2,) and torch.equal(part.select([2]).q[0], qkv.q[0])


@pytest.mark.parametrize("heads", [[0], [2, 3], []])
def test_a_head_that_is_not_there_is_refused(heads):
    with pytest.raises(UsageError, match="is not among"):
        QKV(*torch.ones(3, 2, 4, 3), heads=(2, 5)).select(heads)


def test_the_numbers_of_the_heads_are_as_many_as_the_heads():
    with pytest.raises(UsageError, match="heads: 3 numbers for 2 heads"):
        QKV(*torch.ones(3, 2, 4, 3), heads=(0, 1, 2))
    with pytest.raises(UsageError, match=r"heads: the numbers \[5, 5\] repeat"):
        QKV(*torch.ones(3, 2, 4, 3), heads=(5, 5))


def test_compressing_keeps_the_valid_tokens_in_order():
    qkv = make(n=6)
    mask = torch.tensor([True, False, True, True, False, True])
    inner = QKV(qkv.q, qkv.k, qkv.v, scale=0.7, mask=mask, heads=(4, 9), label={"layer": 2}).compressed()
    assert inner.mask is None and inner.scale == 0.7 and inner.heads == (4, 9) and inner.layer == 2
    for name in "qkv":
        assert torch.equal(getattr(inner, name), getattr(qkv, name)[:, [0, 2, 3, 5]])
    assert qkv.compressed() is qkv


@pytest.mark.parametrize(
    "mask, positions",
    [([1, 1, 1, 0, 0], None), ([0, 1, 1, 1, 1], None), ([0, 1, 0, 0, 1], [0, 3]), ([0, 0, 1, 0, 0], None)],
)
def test_valid_tokens_keep_their_positions_counted_from_the_first_of_them(mask, positions):
    mask = torch.tensor(mask, dtype=torch.bool)
    inner = QKV(*torch.ones(3, 1, 5, 2), mask=mask, causal=True, sliding_window=3).compressed()
    assert (inner.key_positions if positions is None else inner.key_positions.tolist()) == positions
    assert inner.in_text(torch.arange(inner.n)).tolist() == (mask.nonzero() - mask.nonzero()[0])[:, 0].tolist()
    assert inner.to(dtype=torch.float64).select([0]).visible.counts().tolist() == inner.visible.counts().tolist()


def test_windows_and_sinks_go_by_the_positions_of_keys():
    keys = torch.tensor([1, 2, 3, 9, 10, 30])
    qkv = QKV(*torch.ones(3, 1, 6, 2), key_positions=keys, causal=True, sliding_window=2, sinks=3)
    literal = [[q >= k and (q - k < 2 or k < 3) for k in keys.tolist()] for q in keys.tolist()]
    assert (~qkv.visible.hidden(6)).tolist() == literal
    both = qkv.replace(causal=False, sinks=0, sliding_window=8)
    assert (~both.visible.hidden(6)).tolist() == [[abs(q - k) < 8 for k in keys.tolist()] for q in keys.tolist()]
    some = qkv.queries(torch.tensor([4, 1]))
    assert (~some.visible.hidden(6)).tolist() == [literal[4], literal[1]]
    assert "key_positions=1…30" in repr(qkv)


@pytest.mark.parametrize(
    "positions, message",
    [
        (torch.arange(5), r"key_positions: needs shape \(6,\) and dtype int64; got \(5,\), torch.int64"),
        (torch.arange(6.0), r"got \(6,\), torch.float32"),
        (torch.tensor([0, 2, 2, 3, 4, 5]), "they are not ascending numbers from 0 on"),
        (torch.arange(6) - 1, "they are not ascending numbers from 0 on"),
    ],
)
def test_other_positions_of_keys_are_refused(positions, message):
    with pytest.raises(UsageError, match=message):
        QKV(*torch.ones(3, 1, 6, 2), key_positions=positions)
    with pytest.raises(UsageError, match="key_positions: tokens with a mask have the positions 0"):
        QKV(*torch.ones(3, 1, 6, 2), key_positions=2 * torch.arange(6), mask=torch.arange(6) > 1)


def test_a_change_of_dtype_keeps_the_rest():
    qkv = QKV(*torch.randn(3, 2, 4, 3), scale=0.3, heads=(5, 6), label={"layer": 1}).to(dtype=torch.float64)
    assert qkv.dtype == torch.float64 and qkv.scale == 0.3 and qkv.heads == (5, 6) and qkv.layer == 1


def test_a_cast_that_overflows_is_refused():
    with pytest.raises(UsageError, match="q: the value"):
        QKV(*torch.full((3, 1, 4, 3), 1e6)).to(dtype=torch.float16)


def grouped(**parts) -> QKV:
    """Six query heads that share two KV heads."""
    g = torch.Generator().manual_seed(3)
    return QKV(torch.randn(6, 5, 4, generator=g), *torch.randn(2, 2, 5, 4, generator=g), **parts)


def repeated(qkv: QKV) -> QKV:
    """The same heads with keys and values of their own."""
    return qkv.replace(k=qkv.k, v=qkv.v)


def test_query_heads_read_the_kv_head_of_their_group_as_transformers_repeats_it():
    from transformers.models.llama.modeling_llama import repeat_kv

    qkv = grouped()
    assert (qkv.h, qkv.kv_heads, qkv.group) == (6, 2, 3) and "h=6, kv_heads=2" in repr(qkv)
    assert torch.equal(qkv.k, repeat_kv(qkv.shared_k[None], 3)[0]) and torch.equal(qkv.v[4], qkv.shared_v[1])
    assert (repeated(qkv).group, repeated(qkv).kv_heads) == (1, 6)
    plain = make()
    assert plain.group == 1 and plain.k is plain.shared_k and plain.v is plain.shared_v


@pytest.mark.parametrize(
    "heads, group, kv_heads",
    [
        (range(6), 3, 2),
        ([4], 1, 1),
        ([3, 4, 5], 3, 1),
        ([5, 3, 4, 0, 2, 1], 3, 2),
        ([0, 1, 4, 5], 2, 2),
        ([1, 2, 3], 1, 3),
        ([0, 3, 1, 4], 1, 4),
    ],
    ids=str,
)
def test_a_selection_keeps_the_groups_that_stay_together(heads, group, kv_heads):
    qkv = grouped()
    part, expected = qkv.select(heads), repeated(qkv).select(heads)
    assert (part.group, part.kv_heads) == (group, kv_heads)
    for name in "qkv":
        assert torch.equal(getattr(part, name), getattr(expected, name))


def test_grouped_keys_are_not_copied_by_what_leaves_them_alone():
    qkv = grouped(causal=True)
    parts = [
        qkv.head(4),
        qkv.select([3, 4, 5]),
        qkv.queries(torch.tensor([2, 4])),
        qkv.to("cpu", torch.float32),
        qkv.replace(scale=0.1),
    ]
    storage = qkv.shared_k.untyped_storage().data_ptr()
    assert all(part.shared_k.untyped_storage().data_ptr() == storage for part in parts)
    masked = qkv.replace(causal=False, mask=torch.tensor([True, True, False, True, True])).compressed()
    assert (masked.kv_heads, masked.first(3).kv_heads) == (2, 1) and masked.to(dtype=torch.float64).group == 3


@pytest.mark.parametrize("name, other", ["kv", "vk"])
def test_keys_or_values_of_all_heads_repeat_the_others(name, other):
    qkv = grouped()
    changed = qkv.replace(**{name: 2 * getattr(qkv, name)})
    assert changed.group == 1 and torch.equal(getattr(changed, other), getattr(qkv, other))


@pytest.mark.parametrize(
    "argument, words",
    [
        ({"causal": "no"}, "causal: 'no' is neither True nor False"),
        ({"causal": 1}, "causal: 1 is neither True nor False"),
        ({"sliding_window": float("nan")}, "sliding_window: nan is not a whole number"),
        ({"sliding_window": 1.5}, "sliding_window: 1.5 is not a whole number"),
        ({"sliding_window": 0}, "sliding_window: 0 is not between 1 and"),
        ({"sliding_window": 2**80}, "sliding_window: .* is not between 1 and 9007199254740992"),
        ({"sinks": 1.5, "causal": True}, "sinks: 1.5 is not a whole number"),
        ({"sinks": True, "causal": True}, "sinks: True is not a whole number"),
        ({"sinks": -1, "causal": True}, "sinks: -1 is not between 0 and"),
        ({"sinks": 1}, "sinks: 1 is for causal inputs only"),
        ({"positional": -1}, "positional: -1 is not between 0 and"),
        ({"positional": 3}, "positional: 3 coordinates of 3 leave none to the keys"),
        ({"heads": [0.5, 1]}, "heads: 0.5 is not a whole number"),
        ({"heads": [True, False]}, "heads: True is not a whole number"),
        ({"heads": torch.tensor([True, False])}, r"heads: tensor\(True\) is not a whole number"),
        ({"heads": [-1, 0]}, "heads: -1 is not between 0 and"),
        ({"heads": [0, 2**70]}, "heads: .* is not between 0 and"),
        ({"heads": "ab"}, "heads: 'a' is not a whole number"),
        ({"heads": 2}, "heads: expected a list of numbers, got int"),
        ({"scale": "0.5"}, "scale: '0.5' is not a positive number"),
        ({"scale": 1j}, "scale: 1j is not a positive number"),
        ({"label": ["layer"]}, "label: expected a mapping, got list"),
        ({"mask": [True] * 4}, "mask: expected a torch.Tensor, got list"),
        ({"positions": [0, 1, 2, 3]}, "positions: expected a torch.Tensor, got list"),
        ({"sink_logits": [0.0, 1.0]}, "sink_logits: expected a torch.Tensor, got list"),
        ({"sink_logits": torch.zeros(2, dtype=torch.complex64)}, "sink_logits has dtype complex64"),
        ({"sink_logits": torch.full((2,), 1e300, dtype=torch.float64)}, "sink_logits: a number is not finite in"),
        ({"kv_groups": [[0], [7]]}, "kv_groups: head 1 is in none of them"),
        ({"q": torch.ones(2, 4, 3, device="meta")}, "q is on the device 'meta', which holds no numbers"),
        ({"k": torch.ones(2, 4, 3).to_sparse()}, "k is a tensor of layout sparse_coo; pass its to_dense()"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_argument_of_another_type_or_size_is_refused(argument, words):
    with pytest.raises(UsageError, match=words):
        QKV(**{"q": ones(2, 4, 3), "k": ones(2, 4, 3), "v": ones(2, 4, 3), **argument})


def test_numbers_are_taken_from_any_integer_type():
    import numpy as np

    qkv = QKV(*torch.ones(3, 2, 4, 3), heads=np.array([3, 5]), sliding_window=torch.tensor(2), scale=np.float32(0.5))
    assert (qkv.heads, qkv.sliding_window, qkv.scale) == ((3, 5), 2, 0.5)
    assert all(type(number) is int for number in (*qkv.heads, qkv.sliding_window))


def test_a_part_keeps_the_numbers_of_its_kv_heads():
    qkv = grouped()
    assert qkv.kv_groups == ((0, 1, 2), (3, 4, 5)) and qkv.kv_numbers == (0, 0, 0, 1, 1, 1)
    for part in (qkv.select([4, 1]), qkv.select([5, 4, 1]).select([4, 1]), repeated(qkv).select([4, 1])):
        assert part.kv_numbers == (1, 0) and part.to(dtype=torch.float64).kv_numbers == (1, 0)
        assert part.queries(torch.tensor([0, 2])).head(0).kv_numbers == (1,)
    assert qkv.select([4]).replace(heads=[0]).kv_groups == ((0,),)
    named = grouped(heads=(8, 9, 10, 20, 21, 22))
    assert named.kv_groups == ((8, 9, 10), (20, 21, 22)) and named.select([21]).kv_numbers == (1,)


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        make().scale = 2.0


def _everything():
    """Inputs with every tensor that they may have beside Q, K and V."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 5, 2)
    return QKV(q, k[:2], v[:2], causal=True, positions=torch.arange(5), sink_logits=torch.ones(4), all_queries=q)


@pytest.mark.parametrize(
    ("move", "dtype"),
    [
        (lambda x: x.to(torch.float64), torch.float64),
        (lambda x: x.to(dtype=torch.float64), torch.float64),
        (lambda x: x.to("cpu"), torch.float32),
        (lambda x: x.to(device="cpu"), torch.float32),
        (lambda x: x.to(torch.device("cpu"), torch.bfloat16), torch.bfloat16),
        (lambda x: x.to("cpu", torch.float16, non_blocking=True), torch.float16),
        (lambda x: x.to("cpu", dtype=torch.float64, copy=True), torch.float64),
        (lambda x: x.to(torch.ones(1, dtype=torch.float64)), torch.float64),
        (lambda x: x.to(x.double()), torch.float64),
        (lambda x: x.double(), torch.float64),
        (lambda x: x.double().float(), torch.float32),
        (lambda x: x.half(), torch.float16),
        (lambda x: x.bfloat16(), torch.bfloat16),
        (lambda x: x.cpu(), torch.float32),
    ],
)
def test_inputs_move_as_tensors_do(move, dtype):
    qkv = _everything()
    moved = move(qkv)
    tensors = (moved.q, moved.shared_k, moved.shared_v, moved.sink_logits, moved.all_queries)
    assert all(x.dtype == dtype and x.device.type == "cpu" for x in tensors)
    assert torch.equal(moved.q, qkv.q.to(dtype)) and torch.equal(moved.positions, qkv.positions)
    assert (moved.heads, moved.scale, moved.causal, moved.kv_heads) == (qkv.heads, qkv.scale, True, 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((torch.int64,), "q: dtype torch.int64 is not one of"),
        (("nowhere",), "to: Expected one of cpu, cuda"),
        (([1],), r"to: to\(\) received an invalid combination of arguments"),
    ],
)
def test_where_inputs_cannot_move_is_one_line(arguments, says):
    with pytest.raises(UsageError, match=rf"^{says}") as caught:
        _everything().to(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_cuda_is_one_line():
    with pytest.raises(UsageError, match="^to: "):
        _everything().cuda()
