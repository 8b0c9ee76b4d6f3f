"""The last hidden states of a language model, however its head calls the model below it."""

import pytest
import tiny_models
import torch
import transformers

from attnprobe.measure.inject.language import LanguageModel, batch_of

HEADED = {
    "BERT": "BertForMaskedLM",
    "BERT decoder": "BertLMHeadModel",
    "DistilBERT": "DistilBertForMaskedLM",
    "GPT-2": "GPT2LMHeadModel",
    "GPT-NeoX": "GPTNeoXForCausalLM",
    "OPT": "OPTForCausalLM",
    "Llama": "LlamaForCausalLM",
    "Gemma 3": "Gemma3ForCausalLM",
    "BART": "BartForCausalLM",
    "mBART": "MBartForCausalLM",
}


def states_of(model, kind):
    language = LanguageModel(model, kind, None, False, None, (0, 0), "float32")
    reading = batch_of([list(range(3, 20))], language)
    hidden, _ = language.both(reading, None)
    own = model(**reading.inputs, output_hidden_states=True).hidden_states[-1]
    return hidden, own


@pytest.mark.parametrize("name", HEADED)
def test_a_head_has_the_last_hidden_states_of_the_model_that_it_calls(name):
    """The heads of OPT and of BART's decoder call it without their base model."""
    _, config, settings = tiny_models.CAPTURED[name]
    config = getattr(transformers, config)(**settings())
    model = getattr(transformers, HEADED[name])(config).eval()
    with torch.no_grad():
        hidden, own = states_of(model, "causal")
    assert torch.equal(hidden, own)


def test_a_head_that_is_its_own_base_model_has_those_of_the_model_inside():
    """Also where only the last logits are computed."""
    parts = {"intermediate_size_mlp": 48, "head_dim": 8, "num_local_experts": 2, "moe_layers": []}
    model = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**tiny_models.grouped(**parts))).eval()
    assert model.base_model is model
    with torch.no_grad():
        hidden, own = states_of(model, "causal")
        cache = transformers.DynamicCache(config=model.config)
        language = LanguageModel(model, "causal", None, False, None, (0, 0), "float32")
        behind, logits = language.behind(cache, {"input_ids": torch.arange(3, 20)[None]}, last=2)
    assert torch.equal(hidden, own) and torch.equal(behind, own) and logits.shape[1] == 2


@pytest.mark.parametrize("name", ["BERT", "OPT", "Llama"])
def test_a_model_without_a_head_has_its_own(name):
    model = tiny_models.build(name)
    hidden, own = states_of(model, None)
    assert torch.equal(hidden, own)
