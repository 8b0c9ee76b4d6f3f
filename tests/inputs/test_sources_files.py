"""Files of Q, K, V: a round trip is exact to the bit, and every bad file is one clear line."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs import SourceSpec, load_qkv, resolve, save_qkv


@pytest.fixture
def tensors():
    g = torch.Generator().manual_seed(0)
    return {name: torch.randn(3, 10, 4, generator=g) for name in "qkv"}


@pytest.fixture
def write(tmp_path):
    """Write tensors to a file and return its path."""

    def written(tensors, metadata=None):
        path = tmp_path / "given.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
        return str(path)

    return written


def opened(path, **changes):
    return resolve(SourceSpec(qkv=str(path), device="cpu", **changes))


def refused(path, n=4, **changes):
    with pytest.raises(SourceError) as caught:
        opened(path, **changes).qkv(n, [0], 0)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_more_heads_than_tokens_are_said(write, tensors):
    """As of tensors (tokens, heads, dimension), the order of many kernels."""
    swapped = {name: x.transpose(0, 1) for name, x in tensors.items()}
    (line,) = opened(write(swapped)).facts["fallback"]
    assert "10 heads of 3 tokens; the order of axes is (heads, tokens, dimension)" in line
    assert opened(write(tensors)).facts["fallback"] == []


# round trip


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_round_trip_is_exact_to_the_bit(tiny_bert, text_file, tmp_path, dtype):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu", dtype=dtype))
    path = tmp_path / "kept.safetensors"
    assert save_qkv(path, source, 40, [2, 0], 2) == path
    reopened = opened(path, dtype=dtype)
    assert reopened.available == (0, 2) and reopened.layers == 3 and reopened.heads == 4 and reopened.windows == 2
    assert reopened.facts["origin"] == source.facts and reopened.facts["stored_dtype"] == dtype
    for window in (0, 1):
        original, copied = source.qkv(40, [0, 2], window), reopened.qkv(40, [0, 2], window)
        for layer in (0, 2):
            for axis in "qkv":
                assert torch.equal(getattr(original[layer], axis), getattr(copied[layer], axis))
            assert copied[layer].scale == original[layer].scale and copied[layer].heads == (0, 1, 2, 3)
            assert (copied[layer].layer, copied[layer].window) == (layer, window)
    assert json.loads(json.dumps(dict(copied[0].label)))["origin"]["model"] == tiny_bert
    assert any(line.startswith("origin model: ") for line in reopened.describe())


def test_the_same_request_writes_the_same_bytes(tiny_bert, text_file, tmp_path):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    one, two = (save_qkv(tmp_path / name, source, 24, [1]).read_bytes() for name in ("1", "2"))
    assert one == two


def test_fewer_tokens_are_the_first_ones(tiny_bert, text_file, tmp_path):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    path = save_qkv(tmp_path / "a", source, 40, [1])
    full, part = opened(path).qkv(40, [1], 0)[1], opened(path).qkv(7, [1], 0)[1]
    assert torch.equal(part.q, full.q[:, :7]) and part.v.is_contiguous() and part.label["n"] == 7


def test_a_scale_that_is_not_the_usual_one_survives(write, tensors, tmp_path):
    given = opened(write(tensors, {"scale": "0.3"}))
    assert given.qkv(10, [0], 0)[0].scale == 0.3
    assert opened(save_qkv(tmp_path / "b", given, 10, [0])).qkv(10, [0], 0)[0].scale == 0.3


def test_a_substitution_stays_in_the_facts(tmp_path, text_file, no_hub):
    source = resolve(SourceSpec(weights="initialized", text=text_file, device="cpu"))
    reopened = opened(save_qkv(tmp_path / "c", source, 8, [0]))
    assert reopened.facts["fallback"] == source.facts["fallback"] != []


# writing


def test_writing_is_atomic_and_leaves_nothing_behind(tiny_bert, text_file, tmp_path):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    path = save_qkv(tmp_path / "d", source, 8, [0])
    before = path.read_bytes()
    with pytest.raises(UsageError, match="layer 9"):
        save_qkv(path, source, 8, [9])
    broken = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    broken._model = torch.nn.Linear(1, 1)  # fails in the middle of the work
    with pytest.raises(AttributeError):
        save_qkv(path, broken, 8, [0])
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["d"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_paths_that_cannot_be_written(tiny_bert, text_file, tmp_path):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "no" / "such" / "place", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as caught:
            save_qkv(path, source, 8, [0])
        assert str(caught.value).startswith(f"{path}: ")
    assert source._model is None  # found out before any work
    assert sorted(os.listdir(tmp_path)) == ["file"]


# files from elsewhere


def test_plain_tensors(write, tensors):
    assert SourceSpec(qkv=Path("a/b")) == SourceSpec(qkv="a/b")
    got = opened(write(tensors)).qkv(10, [0], 0)[0]
    assert torch.equal(got.q, tensors["q"]) and got.scale == 0.5 and got.mask is None
    assert "origin" not in got.label and len(got.label["qkv_sha256"]) == 64


def test_one_head_without_its_axis(write, tensors):
    got = opened(write({name: tensor[0] for name, tensor in tensors.items()})).qkv(6, [0], 0)[0]
    assert got.q.shape == (1, 6, 4) and torch.equal(got.v[0], tensors["v"][0, :6])


def test_keys_and_values_of_grouped_queries_stay_grouped(write, tensors, tmp_path):
    shared = {name: tensors[name][2:] for name in "kv"}
    given = opened(write({**tensors, **shared}))
    reopened = opened(save_qkv(tmp_path / "kept", given, 10, [0])).qkv(10, [0], 0)[0]
    assert (reopened.h, reopened.group) == (3, 3) and torch.equal(reopened.shared_v, shared["v"])
    assert load_file(tmp_path / "kept")["layer0.window0.k"].shape == shared["k"].shape


def test_a_mask(write, tensors):
    mask = torch.arange(10) != 3
    got = opened(write({**tensors, "mask": mask})).qkv(6, [0], 0)[0]
    assert torch.equal(got.mask, mask[:6])
    assert got.compressed().n == 5


def test_a_wider_file_is_said_to_be_narrowed(write, tensors):
    lines = []
    path = write({name: tensor.double() for name, tensor in tensors.items()})
    source = resolve(SourceSpec(qkv=path, device="cpu"), notify=lines.append)
    assert source.qkv(5, [0], 0)[0].dtype == torch.float32
    assert lines == [f"{path} holds float64: measured in float32 (--dtype float64 keeps it)"]
    whole = resolve(SourceSpec(qkv=path, device="cpu", dtype="float64"), notify=lines.append)
    assert whole.qkv(5, [0], 0)[0].dtype == torch.float64 and len(lines) == 1


def test_load_qkv_reads_files_too(write, tensors):
    assert torch.equal(load_qkv(qkv=write(tensors), n=10, device="cpu").k, tensors["k"])


def test_windows_sinks_and_positions_of_another_program(write, tensors):
    more = {"sink_logits": torch.tensor([0.5, -1.0, 2.0]), "positions": torch.tensor([7, 2, 9])}
    some = {**tensors, "q": tensors["q"][:, :3], **more}
    source = opened(write(some, {"causal": "true", "sliding_window": "4", "sinks": "1"}))
    assert source.describe()[-1] == "attention: causal, sliding window 4, sinks" and source.default_n == 10
    got = source.qkv(10, [0], 0)[0]
    assert (got.causal, got.sliding_window, got.sinks) == (True, 4, 1)
    assert torch.equal(got.sink_logits, more["sink_logits"]) and torch.equal(got.positions, more["positions"])
    fewer = source.qkv(8, [0], 0)[0]
    assert fewer.positions.tolist() == [7, 2] and fewer.n_k == 8 and torch.equal(fewer.q, tensors["q"][:, :2])
    with pytest.raises(UsageError, match="n=2: all queries of .* come after its first 2 tokens"):
        source.qkv(2, [0], 0)


def test_some_queries_of_a_file_with_all_have_the_others_beside_them(write, tensors):
    got = opened(write(tensors, {"causal": "true"}), queries="last:2").qkv(10, [0], 0)[0]
    assert got.query_positions.tolist() == [8, 9] and torch.equal(got.all_queries, tensors["q"])
    some = {**tensors, "q": tensors["q"][:, :3]}  # the last three, of which methods know no others
    assert opened(write(some, {"causal": "true"}), queries="8,9").qkv(10, [0], 0)[0].all_queries is None


def test_queries_with_all_of_them_beside_are_their_rows(write, tensors):
    one = {name: x[0] for name, x in tensors.items()}
    some = {**one, "q": one["q"][[7, 2]], "positions": torch.tensor([7, 2]), "all_queries": one["q"]}
    got = opened(write(some)).qkv(10, [0], 0)[0]
    assert got.positions.tolist() == [7, 2] and torch.equal(got.all_queries, tensors["q"][:1])
    assert torch.equal(opened(write({**one, "all_queries": one["q"].clone()})).qkv(10, [0], 0)[0].q, tensors["q"][:1])
    assert "all_queries: the rows of q are not among them" in refused(write({**some, "all_queries": -one["q"]}), n=10)


def test_causal_queries_without_positions_are_the_last(write, tensors):
    source = opened(write({**tensors, "q": tensors["q"][:, :3]}, {"causal": "true"}))
    assert source.qkv(10, [0], 0)[0].query_positions.tolist() == [7, 8, 9]
    assert source.qkv(9, [0], 0)[0].query_positions.tolist() == [7, 8]


def test_queries_of_a_file(write, tensors):
    path = write(tensors, {"causal": "true"})
    got = opened(path, queries="last:3").qkv(8, [0], 0)[0]
    assert got.positions.tolist() == [5, 6, 7] and torch.equal(got.q, tensors["q"][:, 5:8]) and got.n_k == 8
    assert got.label["queries"] == "last:3"
    few = write({**tensors, "q": tensors["q"][:, :3], "positions": torch.tensor([7, 2, 9])})
    again = opened(few, queries="2,9").qkv(10, [0], 0)[0]
    assert again.positions.tolist() == [2, 9] and torch.equal(again.q, tensors["q"][:, [1, 2]])
    with pytest.raises(UsageError, match="queries 3: .* holds no query of token 3"):
        opened(few, queries="3").qkv(10, [0], 0)


@pytest.mark.parametrize("name", ["sliding_window", "sinks"])
def test_a_number_that_is_none_is_named(write, tensors, name):
    message = refused_at_once(write(tensors, {"causal": "true", name: "wide"}))
    assert f'metadata {name}: expected a valid integer, got "wide"' in message


def refused_at_once(path):
    with pytest.raises(SourceError) as caught:
        opened(path)
    return str(caught.value)


# refused


def test_files_that_are_none(tmp_path):
    assert "does not exist: name a safetensors file" in refused(tmp_path / "nowhere")
    assert "is a directory" in refused(tmp_path)
    bad = tmp_path / "bad"
    for data in (b"", b"hello", b"\x80\x02}q\x00.", b"\xff" * 100):
        bad.write_bytes(data)
        assert "is not a complete safetensors file" in refused(bad)


def test_a_truncated_file(write, tensors, tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(Path(write(tensors)).read_bytes()[:-8])
    assert "is not a complete safetensors file" in refused(path)


def test_wrong_names_list_what_is_there(write, tensors):
    line = refused(write({"query": tensors["q"], "key": tensors["k"]}))
    assert "has no tensor k: it needs q, k, v (and mask), or layer0.window0.q, .k, .v; it has key, query" in line
    assert refused(write({})).endswith("it has no tensors")
    assert "an unknown tensor extra" in refused(write({**tensors, "extra": torch.ones(1)}))
    ours = {f"layer1.window0.{axis}": tensors[axis] for axis in "qk"}
    assert "has no tensor layer1.window0.v" in refused(write(ours))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"k": torch.zeros(3, 9, 4)}, "q has 10 tokens, k 9; queries that are not all tokens need positions"),
        ({"k": torch.zeros(3, 10, 5)}, "k: head dimension 5 differs from q's 4"),
        ({"k": torch.zeros(2, 10, 4)}, "k: 2 heads, but q has 3"),
        ({"v": torch.zeros(3, 9, 4)}, "v: 9 tokens"),
        ({"q": torch.zeros(10)}, "q has shape (10,), not (heads, tokens, dimension)"),
        ({"q": torch.zeros(1, 3, 10, 4)}, "q has shape (1, 3, 10, 4)"),
        ({"v": torch.zeros(3, 10, 4, dtype=torch.int64)}, "v is stored as I64, not as one of float64"),
        ({"q": torch.full((3, 10, 4), float("nan"))}, "q: the value at head 0, token 0, column 0 is nan"),
        ({"v": torch.full((3, 10, 4), float("inf"))}, "v: the value at head 0, token 0, column 0 is inf"),
        ({"all_queries": torch.zeros(3, 9, 4)}, "all_queries has shape (3, 9, 4), not (3, 10, 4)"),
        ({"mask": torch.ones(10)}, "mask: needs shape (10,), dtype bool"),
        ({"mask": torch.ones(9, dtype=torch.bool)}, "mask: needs shape (10,), dtype bool"),
        ({"mask": torch.zeros(10, dtype=torch.bool)}, "mask: no valid token"),
    ],
)
def test_tensors_that_do_not_fit(write, tensors, change, says):
    assert says in refused(write({**tensors, **change}), n=10)


def test_a_bad_value_names_layer_and_window(write, tensors):
    tensors["k"][1, 2, 3] = float("nan")
    path = write({f"layer0.window0.{axis}": tensor for axis, tensor in tensors.items()})
    assert "layer0.window0.k: the value at head 1, token 2, column 3 is nan" in refused(path, n=10)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"scale": "large"}, 'metadata scale: expected a valid number, got "large"'),
        ({"scale": "1_0"}, 'metadata scale: expected a valid number, got "1_0"'),
        ({"causl": "true"}, "unknown metadata causl; did you mean 'causal'?"),
        ({"attnprobe": '{"schema": 1, "causl": true}'}, "unknown metadata causl; did you mean 'causal'?"),
        ({"scale": "-1"}, "metadata scale: expected greater than 0, got -1.0"),
        ({"scale": "1e400"}, "metadata scale: expected at most 1e+300"),
        ({"causal": "no"}, 'metadata causal: expected true or false, got "no"'),
        ({"sliding_window": "1.5"}, "metadata sliding_window: expected a valid integer"),
        ({"sliding_window": str(2**80)}, "metadata sliding_window: expected at most 9.0072e+15"),
        ({"attnprobe": '{"schema": 1, "sliding_window": 1.5}'}, "metadata sliding_window: expected a valid integer"),
        ({"attnprobe": '{"schema": 1, "causal": true, "sinks": {"0": 1.5}}'}, "metadata sinks.0: expected a valid"),
        ({"attnprobe": '{"schema": 1, "scale": {}}'}, "metadata scale: layer 0 has none"),
        ({"attnprobe": '{"schema": 1, "scale": {"0": 1, "7": 1}}'}, "metadata scale: there is no layer 7"),
        ({"attnprobe": '{"schema": 1, "sinks": {"-1": 1}}'}, "metadata sinks.-1: expected the number of a layer"),
        ({"attnprobe": '{"schema": 1, "heads": [-1, 0, 1]}'}, "metadata heads[0]: expected at least 0, got -1"),
        ({"attnprobe": json.dumps({"schema": 1, "heads": [0, 1, 2**70]})}, "metadata heads[2]: expected at most 9"),
        ({"attnprobe": '{"schema": 1, "heads": [0, 1, true]}'}, "metadata heads[2]: expected a valid integer"),
        ({"attnprobe": '{"schema": 1, "heads": [0, 1, 1]}'}, "metadata heads: expected numbers that do not repeat"),
        ({"attnprobe": '{"schema": 1, "facts": [1]}'}, "metadata facts: expected a valid dictionary"),
        ({"attnprobe": "{"}, "its metadata 'attnprobe' are damaged"),
        ({"attnprobe": "[]"}, "its metadata 'attnprobe' are damaged"),
        ({"attnprobe": '{"schema": 99}'}, "schema 99, but this version reads schema 1"),
        ({"attnprobe": '{"schema": 1, "heads": [0]}'}, "heads: 1 numbers for 3 heads"),
    ],
)
def test_metadata_that_do_not_fit(write, tensors, metadata, says):
    assert says in refused(write(tensors, metadata))


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        (
            torch.tensor([7, 2, 9], dtype=torch.int32),
            "positions: needs shape (3,) and dtype int64; got (3,), torch.int32",
        ),
        (
            torch.tensor([7, 2, 9], dtype=torch.uint64),
            "positions: needs shape (3,) and dtype int64; got (3,), torch.uint64",
        ),
        (torch.tensor([7.0, 2.0, 9.0]), "positions: needs shape (3,)"),
        (torch.tensor([[7], [2], [9]]), "positions: needs shape (3,) and dtype int64; got (3, 1)"),
        (torch.tensor([7, 2]), "positions: needs shape (3,)"),
        (torch.tensor([7, 2, 9, 1]), "positions: needs shape (3,)"),
        (torch.tensor([7, 2, 10]), "positions: 2 … 10 are not all among the 10 keys"),
        (torch.tensor([-1, 2, 9]), "positions: -1 … 9 are not all"),
        (torch.tensor([2, 2, 9]), "positions: two queries share a position"),
    ],
)
def test_positions_that_do_not_fit_are_refused_for_any_n_and_queries(write, tensors, positions, says):
    some = {**tensors, "q": tensors["q"][:, :3], "positions": positions}
    path = write(some, {"causal": "true"})
    for n, queries in ((10, None), (9, None), (10, "2,9")):
        assert says in refused(path, n=n, queries=queries)


def test_queries_that_share_a_position_cannot_be_chosen_by_it(write, tensors):
    path = write({**tensors, "q": tensors["q"][:, :3], "positions": torch.tensor([2, 2, 9])})
    assert opened(path).qkv(10, [0], 0)[0].positions.tolist() == [2, 2, 9]
    with pytest.raises(UsageError, match="queries 2: two queries of .* share a position"):
        opened(path, queries="2").qkv(10, [0], 0)


def test_longer_values_are_not_cut(write, tensors):
    longer = torch.cat([tensors["v"], tensors["v"]], 1)
    assert "v: 20 tokens, but k has 10" in refused(write({**tensors, "v": longer}), n=4)


def test_substitutes_that_another_program_states_are_words(write, tensors):
    entry = {"schema": 1, "scale": 1.0, "facts": {"fallback": ["random weights", 3]}}
    assert opened(write(tensors, {"attnprobe": json.dumps(entry)})).facts["fallback"] == ["random weights"]


@pytest.mark.parametrize("option", [{"weights_seed": 1}, {"split": "train"}, {"positions": "wrap"}])
def test_what_a_file_holds_already_cannot_be_chosen(option):
    with pytest.raises(UsageError, match=f"holds Q, K and V already: drop --{next(iter(option)).replace('_', '-')}$"):
        SourceSpec(qkv="f.safetensors", **option)


def test_what_the_file_does_not_hold_is_a_usage_error(tiny_bert, text_file, tmp_path):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    reopened = opened(save_qkv(tmp_path / "e", source, 24, [0, 2], 2))
    for n, windows, layers, says in (
        (25, 1, [0], "n=25: .* holds 24 tokens; choose a smaller n"),
        (1, 1, [0], "n=1: attention needs at least 2 tokens"),
        (24, 1, [1], "layer 1: .* has layers 0, 2"),
        (24, 3, [0], "window 2 of layer 0: .* has windows 0-1"),
        (24, 1, [], "layer: name at least one"),
    ):
        with pytest.raises(UsageError, match=says):
            reopened.check(n, windows, layers)


def test_our_files_are_ordinary_safetensors(tiny_bert, text_file, tmp_path):
    source = resolve(SourceSpec(model=tiny_bert, text=text_file, device="cpu"))
    path = save_qkv(tmp_path / "f", source, 24, [1], 2)
    assert sorted(load_file(path)) == [f"layer1.window{w}.{axis}" for w in (0, 1) for axis in "kqv"]
    with safe_open(path, "pt") as file:
        entry = json.loads(file.metadata()["attnprobe"])
    assert entry == {"schema": 1, "facts": source.facts, "scale": {"1": 8**-0.5}, "n": 24, "heads": [0, 1, 2, 3]}
