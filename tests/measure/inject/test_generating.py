"""`decoding`: ``generate`` with a policy or a format, held to loops over a cut cache and to `inject --phase decode`."""

import pytest
import tiny_models
import torch
from sources_helpers import seeded
from thinned import others_slow

from attnprobe import capture, decoding
from attnprobe.errors import Unsupported, UsageError
from attnprobe.inject import attention_by
from attnprobe.measure.inject.policy import PromptPolicy, prompt_text
from attnprobe.methods import get
from attnprobe.methods.fitting import fitted

PROMPT, NEW = 21, 8
SETTINGS = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
METHODS = {  # at a whole budget exact
    "snapkv": {"observe": 4},
    "h2o": {},
    "tova": {},
    "knorm": {},
    "random": {},
    "window": {},
    "topk": {},
}
APART = {**METHODS, "quest": {"page": 4}, "q4_0": {}, "turboquant": {"bits": 2}, "snapkv+q4_0": {"observe": 4}}


@pytest.fixture(scope="module")
def model():
    """A Llama whose four heads share two KV heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {**tiny_models.grouped(max_position_embeddings=64), "hidden_size": 128, "initializer_range": 0.2}
    return seeded(lambda: LlamaForCausalLM(LlamaConfig(**settings)).eval())


@pytest.fixture(scope="module")
def ids():
    """Two prompts without a word twice: in the first layer its keys would have one norm."""
    draws = torch.Generator().manual_seed(5)
    return torch.stack([3 + torch.randperm(57, generator=draws)[:PROMPT] for _ in range(2)])


def answers(model, ids, method=None, d=None, lengths=None, **options):
    """The new tokens of each row; the last ``lengths`` tokens of a row are its prompt."""
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths or ()):
        mask[row, : ids.shape[1] - length] = 0
    given = {"input_ids": ids, "attention_mask": mask, **SETTINGS}
    if method is None:
        return model.generate(**given)[:, ids.shape[1] :]
    settings = {name: options.pop(name) for name in ("num_beams",) if name in options}
    with decoding(model, method, d, **options):
        return model.generate(**given, **settings)[:, ids.shape[1] :]


@pytest.mark.parametrize("name", others_slow(METHODS, lambda name: name[0] in ("snapkv", "random", "window", "topk")))
def test_all_keys_give_what_the_model_gives(model, ids, name):
    plain = answers(model, ids)
    for d in (1.0, 10**6):
        assert torch.equal(answers(model, ids, name, d, **METHODS[name]), plain)
    assert torch.equal(answers(model, ids, "softmax"), plain)
    assert len({*plain.flatten().tolist()}) > 4, "the model repeats a token, so a policy would change nothing"


def test_the_model_is_its_own_again_behind_the_block(model, ids):
    plain = answers(model, ids)
    assert not torch.equal(answers(model, ids, "knorm", 3), plain)
    assert torch.equal(answers(model, ids), plain)


@torch.no_grad()
def behind_cut_cache(model, ids, d):
    """Greedy tokens behind the d keys of least norm of each KV head, by transformers' own attention."""
    from transformers import DynamicCache

    cache = DynamicCache()
    last = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)
    for layer in cache.layers:
        kept = layer.keys.norm(dim=-1).topk(d, largest=False).indices.sort(-1).values[..., None]
        layer.keys = layer.keys.gather(2, kept.expand(-1, -1, -1, layer.keys.shape[-1]))
        layer.values = layer.values.gather(2, kept.expand(-1, -1, -1, layer.values.shape[-1]))
    tokens = [last]
    for step in range(NEW - 1):
        place = torch.full_like(last, PROMPT + step)
        got = model(input_ids=tokens[-1], past_key_values=cache, position_ids=place, cache_position=place[0])
        tokens.append(got.logits[:, -1:].argmax(-1))
    return torch.cat(tokens, 1)


@pytest.mark.parametrize("d", [2, 5, 12, PROMPT - 1])
def test_a_policy_decodes_as_transformers_does_behind_the_keys_that_stay(model, ids, d):
    assert torch.equal(answers(model, ids, "knorm", d), behind_cut_cache(model, ids, d))


@torch.no_grad()
def greedy_steps(model, ids, name, d, options):
    """Greedy tokens of the policy of ``inject --phase decode`` on captured inputs of one prompt."""
    from transformers import DynamicCache

    calls = list(capture(model, {"input_ids": ids}).values())
    cache = DynamicCache()
    tokens = [model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)]
    policy = PromptPolicy(
        get(name), d, 0, options, PROMPT, lambda layer, row: prompt_text(calls[layer].qkv(row), PROMPT)
    )
    with attention_by(model, policy):
        for _ in range(NEW - 1):
            tokens.append(model(input_ids=tokens[-1], past_key_values=cache).logits[:, -1:].argmax(-1))
    return torch.cat(tokens, 1)


PADDED = ("snapkv", "random", "window", "topk", "quest", "turboquant", "snapkv+q4_0")


@pytest.mark.parametrize("name", others_slow(APART, lambda name: name[0] in PADDED or name[0] == "q4_0"))
def test_tokens_are_those_of_the_command(model, ids, name):
    entry = get(name)
    options, d = entry.check("softmax", APART[name]), None if entry.budget is None else 6
    steps = torch.cat([greedy_steps(model, one, name, d, options) for one in ids.split(1)])
    assert torch.equal(answers(model, ids, name, d, **APART[name]), steps)


@pytest.mark.parametrize("name", others_slow(APART, lambda name: name[0] in PADDED))
def test_rows_that_are_padded_on_the_left_are_decoded_as_if_alone(model, ids, name):
    entry, lengths = get(name), (PROMPT, PROMPT - 8)
    d = None if entry.budget is None else 0.5
    together = answers(model, ids, name, d, lengths, texts=(7, 8), **APART[name])
    for row, length in enumerate(lengths):
        alone = answers(model, ids[row : row + 1, -length:], name, d, texts=(7 + row,), **APART[name])
        assert torch.equal(together[row : row + 1], alone)


def test_beams_share_the_keys_of_their_prompt(model, ids):
    together = answers(model, ids, "random", 10, texts=(7, 8), num_beams=2)
    alone = [answers(model, ids[row : row + 1], "random", 10, texts=(7 + row,), num_beams=2) for row in (0, 1)]
    assert torch.equal(together, torch.cat(alone))


def test_random_keys_are_those_of_the_text(model, ids):
    twice = ids[:1].expand(2, -1)
    same, other = (answers(model, twice, "random", 10, texts=texts) for texts in ((1, 1), (1, 2)))
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], other[0]) and not torch.equal(*other)


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_bytes_give_the_budget_that_fits(model, ids, share):
    p = model.config.hidden_size // model.config.num_attention_heads
    fit = fitted(get("snapkv+q4_0"), {}, share, PROMPT, k=p, v=p)
    given = {"method": "snapkv+q4_0", "observe": 4}
    assert torch.equal(answers(model, ids, bytes=share, **given), answers(model, ids, d=fit.d, **given))
    bits = fitted(get("turboquant"), {}, share, PROMPT, k=p, v=p).options
    assert torch.equal(answers(model, ids, "turboquant", bytes=share), answers(model, ids, "turboquant", **bits))


def test_one_layer_alone(model, ids):
    alone = answers(model, ids, "knorm", 2, layer=1)
    assert not torch.equal(alone, answers(model, ids, "knorm", 2)) and not torch.equal(alone, answers(model, ids))


@pytest.mark.parametrize(
    "given, line",
    [
        (("skyformer", 4, {}), "skyformer cannot decode"),
        (("snapkv", None, {}), "snapkv needs a budget: pass d"),
        (("snapkv", 1.5, {}), "d=1.5: a share of the prompt lies between 0 and 1"),
        (("snapkv", 0, {}), "d=0"),
        (("knorm", 4, {"nothing": 1}), "nothing"),
        (("knorm", 4, {"bytes": 0.5}), "d=4 and bytes=0.5: both set the budget"),
        (("q4_0", None, {"bytes": 2.0}), "bytes=2"),
        (("snapkv", 4, {"observe": 22}), "observe=22 exceeds the prompt of 21 tokens"),
    ],
    ids=str,
)
def test_what_is_impossible_is_refused_in_a_line(model, ids, given, line):
    method, d, options = given
    with pytest.raises(UsageError, match=line):
        answers(model, ids, method, d, **options)


def test_a_prompt_that_is_read_in_parts_is_refused(model, ids):
    with pytest.raises(Unsupported, match="one forward of the whole prompt"), decoding(model, "knorm", 4):
        model.generate(ids, prefill_chunk_size=8, **SETTINGS)
    cache = model(input_ids=ids).past_key_values
    with pytest.raises(Unsupported, match="one forward of the whole prompt"), decoding(model, "knorm", 4):
        model(input_ids=ids[:, :1], past_key_values=cache)
