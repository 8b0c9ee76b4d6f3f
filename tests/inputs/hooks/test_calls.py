"""What the calls of attention and the blocks of a model show, on modules made for it."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from transformers.utils import logging

from attnprobe import capture
from attnprobe.errors import SourceError
from attnprobe.inputs.hooks.blocks import _first, watched
from attnprobe.inputs.hooks.call import AttentionCall
from attnprobe.inputs.hooks.capture import capture_layers
from attnprobe.inputs.hooks.interface import _configurations, _end, bypassing, call_of, eager_of, quiet, switched
from attnprobe.inputs.hooks.masks import Pattern, pattern_of, split_mask
from attnprobe.inputs.hooks.numbering import Place
from attnprobe.operators.block import Block


def call(n_q=4, n_k=4, h=2, h_kv=2, p_v=3, **more):
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, h, n_q, 3, generator=g), torch.randn(1, h_kv, n_k, 3, generator=g)
    return AttentionCall("m", 0, 0, "M", q, k, torch.randn(1, h_kv, n_k, p_v, generator=g), 0.5, None, **more)


def test_a_call_is_shown_with_its_sizes():
    assert "batch=1, h=2, n=4, p=3, scale=0.5" in repr(call())
    assert "h=2 (kv 1), n_q=2, n_k=4, p=3, p_v=5, scale=0.5" in repr(call(n_q=2, h_kv=1, p_v=5, cross=True))


def test_a_band_over_other_tokens_is_beyond_q_k_v():
    band = Pattern(left=1, right=1)
    assert call(pattern=band).beyond() is None
    assert call(pattern=band, cross=True).beyond() == "sliding-window (3) attention to other tokens is not supported"


def test_some_queries_of_a_call_keep_the_others_beside_them():
    whole, index = call(pattern=Pattern(right=0)), torch.tensor([1, 3])
    assert torch.equal(whole.at(index).qkv().q, whole.qkv().queries(index).q)
    assert torch.equal(whole.at(index).qkv().all_queries, whole.q[0])


def test_a_mask_of_the_most_negative_number_has_no_bias():
    causal = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    added = torch.zeros(1, 1, 3, 3).masked_fill(~causal, torch.finfo(torch.float32).min)
    assert torch.equal(split_mask(added, (1, 3, 3))[0], causal) and split_mask(added, (1, 3, 3))[1] is None
    added[..., 2, 1] = 0.25
    assert float(split_mask(added, (1, 3, 3))[1].sum()) == 0.25


def test_only_a_mask_of_all_pairs_hides_later_keys(monkeypatch):
    monkeypatch.setattr("attnprobe.operators.blocks.KEYS", 1)
    hidden = torch.finfo(torch.float32).min
    causal = torch.zeros(1, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), hidden)
    assert _end(causal, 4, 4, slice(0, 2)) == 2
    deaf = causal.clone()
    deaf[..., 1, 1] = hidden
    assert _end(causal.mT, 4, 4, slice(0, 2)) == _end(deaf, 4, 4, slice(0, 2)) == 4
    assert _end(causal[0], 4, 4, slice(0, 2)) == _end(causal[..., :1], 4, 4, slice(0, 2)) == 4
    sees = torch.zeros(1, 1, 4, 4)
    assert _end(sees, 4, 4, slice(0, 2)) == 4


def test_a_position_bias_is_added_to_that_of_the_mask():
    q = torch.ones(1, 1, 2, 4)
    bias = torch.tensor([[[[0.0, 0.5], [0.0, 0.0]]]])
    got = call_of(torch.nn.Linear(1, 1), q, q, q, bias, None, {"position_bias": bias}, Place("m", 0, 0, 0))
    assert torch.equal(got.bias, 2 * bias) and got.scale == 0.5


def test_bars_that_a_user_turned_off_stay_off():
    before = logging.is_progress_bar_enabled()
    try:
        for turn, on in ((logging.disable_progress_bar, False), (logging.enable_progress_bar, True)):
            turn()
            with quiet():
                assert not logging.is_progress_bar_enabled()
            assert logging.is_progress_bar_enabled() is on
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()


def test_a_module_of_a_file_without_eager_attention_is_refused():
    with pytest.raises(SourceError, match="torch.nn.modules.linear has no eager attention to compare with"):
        eager_of(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("refuses", [False, True])
def test_a_model_in_a_model_is_switched_with_it_and_restored(refuses, monkeypatch):
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = CLIPModel(CLIPConfig(text_config={**sizes, "vocab_size": 9}, vision_config={**sizes, "image_size": 32}))
    configs = (model.config, model.config.text_config, model.config.vision_config)
    before = [config._attn_implementation for config in configs]
    if refuses:
        monkeypatch.setattr(model, "set_attn_implementation", lambda name: int("x"))
        with pytest.raises(SourceError), switched(model, "eager", "clip"):
            pass
    else:
        with switched(model, "eager", "clip"):
            assert [config._attn_implementation for config in configs] == ["eager"] * 3
    assert [config._attn_implementation for config in configs] == before


def test_a_forward_in_another_thread_is_not_captured():
    model = tiny_models.build("BERT")
    own = model.forward

    def forward(*args, **inputs):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(own, *args, **inputs).result()

    model.forward = forward
    with pytest.raises(SourceError, match="bypasses transformers' attention interface"):
        capture(model, tiny_models.inputs(model))


def test_a_block_is_between_its_stream_and_the_last_one():
    size = torch.tensor([4.0])
    assert float(Block(torch.ones(1, 1), size).between) == 4
    assert float(Block(torch.ones(1, 1), size, last=torch.tensor([9.0])).between) == 6


class Sublayer(torch.nn.Module):
    """x + W_O a, with modules of its caller's behind the attention output a and behind the projection."""

    def __init__(self, first, project, behind):
        super().__init__()
        self.first, self.project, self.behind, self.next = first, project, behind, torch.nn.Linear(4, 4)

    def forward(self, x):
        attended = torch.arange(12.0).reshape(1, 3, 4).sin()
        self.seen.attended("", 0, attended.unflatten(2, (2, 2)))
        self.first(attended)
        return self.next(x + self.behind(self.project(attended)))


class Halved(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


class Holding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return x


class Cubed(torch.nn.Module):
    def forward(self, x):
        return x**3


NOTHING, LINEAR = torch.nn.Identity, lambda: torch.nn.Linear(4, 4)  # noqa: E731
BLOCKS = {
    "a projection": (NOTHING, LINEAR, NOTHING, True),
    "a weight of another shape": (Holding, LINEAR, NOTHING, True),
    "a weight that is no matrix": (lambda: torch.nn.LayerNorm(4), LINEAR, NOTHING, True),
    "an RMS norm behind it": (NOTHING, LINEAR, lambda: torch.nn.RMSNorm(4, eps=1e-6), True),
    "a projection that is not linear": (NOTHING, lambda: Halved(4, 4), NOTHING, False),
    "another function behind it": (NOTHING, LINEAR, Cubed, False),
}


@pytest.mark.parametrize(("first", "project", "behind", "found"), BLOCKS.values(), ids=BLOCKS)
def test_a_block_is_found_where_its_projection_is_one(first, project, behind, found):
    torch.manual_seed(0)
    model = Sublayer(first(), project(), behind())
    with watched(model) as model.seen, torch.no_grad():
        model(torch.randn(1, 3, 4))
    assert (0 in model.seen.found) is found
    if found:
        assert torch.equal(model.seen.found[0].weight, model.project.weight)


# --- what is captured, and where a forward ends


def test_a_call_with_a_window_of_its_mask_is_local_and_keeps_its_block_with_its_queries():
    assert call(pattern=Pattern(left=1, right=0)).local and call(window=9).local and not call().local
    block = Block(torch.ones(3, 6), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    some = call(pattern=Pattern(right=0), block=block).at(torch.tensor([1, 3]))
    assert some.block.size.tolist() == [[2.0, 4.0]] and call().at(torch.tensor([1])).block is None


def test_one_query_behind_a_cache_sees_no_later_key():
    assert call(n_q=1).causal and call(n_q=1, pattern=Pattern(right=0)).causal
    assert not call(n_q=1, pattern=Pattern(right=1)).causal and not call(n_q=2).causal


def test_heads_with_the_same_mask_have_its_pattern():
    causal = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    assert str(pattern_of(causal.expand(1, 3, 4, 4))) == "causal"
    assert str(pattern_of(torch.cat([causal, causal.mT], 1))) == "custom"


def test_a_configuration_without_one_of_its_parts_is_passed_over():
    inner = SimpleNamespace(sub_configs={})
    config = SimpleNamespace(sub_configs={"text": None, "vision": None}, text=inner, vision=None)
    model = SimpleNamespace(modules=lambda: [SimpleNamespace(config=config), SimpleNamespace()])
    assert list(_configurations(model)) == [config, inner]


def test_attention_around_and_inside_what_was_called_does_not_bypass_it():
    class Attention(torch.nn.Module):
        pass

    model = torch.nn.Module()
    model.outer, model.other, model.plain = Attention(), Attention(), torch.nn.Linear(2, 2)
    model.outer.inner = Attention()
    for called, found in (((), ["outer.inner", "other"]), (["outer"], ["other"]), (["outer.inner"], ["other"])):
        assert sorted(path for path, _ in bypassing(model, called)) == sorted(found)


def test_patterns_in_words():
    words = {
        "full": {},
        "causal": {"right": 0},
        "causal sliding-window (4)": {"left": 3, "right": 0},
        "sliding-window (4)": {"left": 3, "right": -1},
        "sliding-window (6)": {"left": 3, "right": 2},
        "custom": {"right": -1},
    }
    assert {text: str(Pattern(**parts)) for text, parts in words.items()} == {text: text for text in words}
    valid = torch.tensor([[True, False]])
    assert [str(Pattern(keys=valid, **parts)) for parts in ({}, {"right": 0})] == ["padding", "causal with padding"]


def test_whole_numbers_are_no_stream():
    whole, real = torch.zeros(1, 2, 3, dtype=torch.int64), torch.zeros(1, 2, 3)
    assert _first((whole,), {}) is None and _first((real,), {}) is real and _first((), {"x": real}) is real


def test_what_qkv_of_a_source_refuses():
    bert, bart = tiny_models.build("BERT"), tiny_models.build("BART")
    padded, pair = tiny_models.inputs(bert), tiny_models.inputs(bart, padded=False)
    pair["decoder_input_ids"] = pair["decoder_input_ids"][:, :9]
    for model, inputs, layer, says in (
        (bert, padded, 0, "m is refused at layer 0: masked attention is not supported, only full"),
        (bart, pair, 1, "m is refused at layer 1: 9 queries, 24 keys: self-attention is needed"),
        (
            bert,
            {"input_ids": padded["input_ids"]},
            9,
            "m: layer 9 was never reached; attention was called in layers 0-1",
        ),
    ):
        with pytest.raises(SourceError, match=says):
            capture_layers(model, "m", (layer,), lambda model=model, inputs=inputs: model(**inputs))


def test_a_forward_ends_where_the_last_block_is_known_to_be_none():
    """Blocks of GPT-NeoX add attention and the MLP at once: none is found before the next layer attends."""
    model = tiny_models.build("GPT-NeoX", num_hidden_layers=4, use_parallel_residual=True)
    ended = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: ended.append(1))
    [captured] = capture_layers(model, "m", (0,), lambda: model(**tiny_models.inputs(model, padded=False))).values()
    assert captured.block is None and len(ended) == 1
