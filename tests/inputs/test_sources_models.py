"""Loading: every way in which a model's directory can be wrong is one clear line, and random weights are random
only in their seed."""

import json
import pickle
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from sources_helpers import VOCABULARY, bert_config, save, seeded

from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs import SourceSpec, load_qkv, resolve
from attnprobe.inputs.description import _attention
from attnprobe.inputs.folder import ModelFolder
from attnprobe.inputs.surveying import example
from attnprobe.inputs.weights import initialized, language_kind, redraw_projections, with_head
from attnprobe.reference import exact_output


def read(model, text, n=16, layers=(0,), **changes):
    return resolve(SourceSpec(model=str(model), text=text, device="cpu", **changes)).qkv(n, list(layers), 0)


def refused(model, text, **changes):
    with pytest.raises(SourceError) as caught:
        read(model, text, **changes)
    line = str(caught.value)
    assert caught.value.exit_code == 3 and "\n" not in line
    return line


@pytest.fixture
def copy(tiny_bert, tmp_path):
    """A copy of the tiny model that a test may break."""
    return shutil.copytree(tiny_bert, tmp_path / "model")


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_directory_that_does_not_exist(tiny_bert, text_file, tmp_path):
    assert refused(tmp_path / "nowhere", text_file) == f"no such directory: {tmp_path / 'nowhere'}"
    assert refused(tiny_bert + "x", text_file).endswith("; did you mean 'bert'?")
    assert "no such directory: ./models/bert" in refused("./models/bert", text_file)
    assert "is a file: name a directory" in refused(f"{tiny_bert}/config.json", text_file)


def test_a_directory_without_a_configuration(text_file, tmp_path):
    assert f"{tmp_path} has no config.json" in refused(tmp_path, text_file)


@pytest.mark.parametrize(
    ("config", "says"),
    [("{", "config.json is not valid"), ("[]", "config.json is not valid"), ("{}", "no model_type")]
    + [('{"model_type": "no-such-thing"}', "model type 'no-such-thing'")]
    + [('{"model_type": "bert", "num_attention_heads": 0}', "has no numbers of layers and heads (")],
)
def test_a_configuration_that_is_none(copy, text_file, config, says):
    (copy / "config.json").write_text(config)
    assert says in refused(copy, text_file)


def test_code_from_a_model_directory_is_never_run(copy, text_file, tmp_path):
    settings = json.loads((copy / "config.json").read_text())
    settings.update(model_type="custom", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    (copy / "config.json").write_text(json.dumps(settings))
    (copy / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "model type 'custom'" in refused(copy, text_file)
    assert not (tmp_path / "ran").exists()


def test_pickles_are_not_opened(copy, text_file, tmp_path):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (copy / "model.safetensors").unlink()
    assert "has no model.safetensors: --weights initialized needs only" in refused(copy, text_file)
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    assert "has no model.safetensors, only pytorch_model.bin: convert it first" in refused(copy, text_file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("keep", [0, 5, 1000, -1000])
def test_truncated_weights(copy, text_file, keep):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert f"{copy}/model.safetensors is damaged" in refused(copy, text_file)


def test_missing_weights_are_not_made_up(copy, text_file):
    rewrite(copy, lambda tensors: tensors.pop("encoder.layer.1.attention.self.query.weight"))
    line = refused(copy, text_file)
    assert "model.safetensors lacks encoder.layer.1.attention.self.query.weight; the model is incomplete" in line


def test_several_missing_weights_are_counted(copy, text_file):
    rewrite(copy, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".layer.2." in name])
    assert "lacks encoder.layer.2." in refused(copy, text_file) and "(and 15 more)" in refused(copy, text_file)


def test_a_missing_pooler_matters_to_nobody(copy, tiny_bert, text_file):
    full = read(tiny_bert, text_file)[0]
    rewrite(copy, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("pooler")])
    state = torch.get_rng_state()
    assert torch.equal(read(copy, text_file)[0].q, full.q)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_of_another_shape(copy, text_file):
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**settings, "intermediate_size": 50}))
    assert "its weights cannot be loaded" in refused(copy, text_file)


def test_shards(copy, tiny_bert, text_file):
    tensors = load_file(copy / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, copy / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    (copy / "model.safetensors").unlink()
    full, sharded = read(tiny_bert, text_file)[0], read(copy, text_file)[0]
    assert torch.equal(full.q, sharded.q)
    assert len(sharded.label["model_sha256"]) == 64 != full.label["model_sha256"]
    (copy / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing" in refused(copy, text_file)
    (copy / "model.safetensors.index.json").write_text('{"weight_map": {"x": ".."}}')
    assert "a shard's name is '..', not that of a file" in refused(copy, text_file)
    (copy / "model.safetensors.index.json").write_text("{}")
    assert "index.json is not valid" in refused(copy, text_file)


def test_trained_weights_without_a_tokenizer_are_refused(copy, text_file):
    (copy / "vocab.txt").unlink()
    assert "has no tokenizer" in refused(copy, text_file)
    assert read(copy, text_file, weights="initialized")[0].label["tokenizer"] == f"words of {text_file}"
    with pytest.raises(SourceError, match="--strict forbids a substitute: use --tokenizer"):
        read(copy, text_file, weights="initialized", strict=True)


def test_a_tokenizer_of_another_model_is_refused(copy, tiny_bert, text_file, tmp_path):
    longer = tmp_path / "long.txt"
    longer.write_text("\n".join(["[UNK]", *(f"x{i}" for i in range(500)), *VOCABULARY[2:]]))
    assert "beyond the 117 rows" in refused(tiny_bert, text_file, tokenizer=str(longer))


def test_a_cuda_device_that_is_not_there(tiny_bert, text_file):
    with pytest.raises(SourceError, match=r"device 'cuda:99': .*; use --device c"):
        resolve(SourceSpec(model=tiny_bert, text=text_file, device="cuda:99"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_where_there_is_none(tiny_bert, text_file):
    with pytest.raises(SourceError, match="device 'cuda': torch sees no CUDA device; use --device cpu"):
        resolve(SourceSpec(model=tiny_bert, text=text_file, device="cuda"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": "initialised"}, "unknown weights 'initialised'; did you mean 'initialized'?"),
        ({"positions": "wrapped"}, "did you mean 'wrap'"),
        ({"dtype": "float31"}, "did you mean 'float32'"),
        ({"split": "tset"}, "did you mean 'test'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"model": " "}, "model: the name is empty"),
        ({"qkv": "a.safetensors", "text": "embedded"}, "replaces the model and the text: drop --text"),
    ],
)
def test_words_that_mean_nothing(changes, says):
    with pytest.raises(UsageError) as caught:
        SourceSpec(**changes)
    assert says in str(caught.value)


# random weights


def test_random_weights_do_not_depend_on_how_many_layers_are_built(tiny_bert, text_file):
    config_only = SourceSpec(model=tiny_bert, weights="initialized", text=text_file, device="cpu")
    shallow, deep = resolve(config_only), resolve(config_only)
    first = shallow.qkv(40, [0], 0)[0]
    assert shallow._model.config.num_hidden_layers == 1
    all_three = deep.qkv(40, [0, 1, 2], 0)
    assert deep._model.config.num_hidden_layers == 3
    assert torch.equal(first.q, all_three[0].q) and torch.equal(first.v, all_three[0].v)
    assert torch.equal(shallow.qkv(40, [2], 0)[2].k, all_three[2].k)  # built again, deeper
    assert deep.config.num_hidden_layers == 3 and deep.layers == 3


def test_random_weights_leave_torch_alone_and_follow_their_seed(tiny_bert, text_file):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = read(tiny_bert, text_file, weights="initialized", weights_seed=1)[0]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again = read(tiny_bert, text_file, weights="initialized", weights_seed=1)[0]
    two = read(tiny_bert, text_file, weights="initialized", weights_seed=2)[0]
    assert torch.equal(one.q, again.q) and not torch.equal(one.q, two.q)
    assert one.label["weights_seed"] == 1 and one.label["model_sha256"] is None
    double = read(tiny_bert, text_file, weights="initialized", weights_seed=1, dtype="float64")[0]
    assert float((double.q - one.q).norm() / double.q.norm()) < 1e-5


def test_random_weights_have_the_stated_distribution(tiny_bert, text_file):
    source = resolve(SourceSpec(model=tiny_bert, weights="initialized", text=text_file, device="cpu"))
    source.qkv(8, [2], 0)
    for name, parameter in source._model.named_parameters():
        if "LayerNorm.weight" in name:
            assert (parameter == 1).all()
        elif parameter.dim() == 1:
            assert (parameter == 0).all(), name
        else:
            count = parameter.numel()
            assert abs(float(parameter.mean())) < 5 * 0.3 / count**0.5, name
            assert abs(float(parameter.std()) / 0.3 - 1) < 5 / (2 * count) ** 0.5 + 2e-2, name
    assert (source._model.embeddings.word_embeddings.weight[0] == 0).all()  # the padding row
    assert (source._model.embeddings.word_embeddings.weight[1] != 0).all()


def test_initialized_qkv_redraws_three_matrices_of_every_layer_and_nothing_else(tiny_bert, text_file):
    source = resolve(
        SourceSpec(model=tiny_bert, weights="initialized-qkv", weights_seed=3, text=text_file, device="cpu")
    )
    source.qkv(8, [2], 0)
    before = load_file(f"{tiny_bert}/model.safetensors")
    changed = {name for name, tensor in source._model.state_dict().items() if not torch.equal(tensor, before[name])}
    weights = {f"encoder.layer.{i}.attention.self.{x}.weight" for i in range(3) for x in ("query", "key", "value")}
    assert changed == weights  # the tiny model's biases are zero already
    drawn = torch.cat([source._model.state_dict()[name].flatten() for name in weights])
    assert abs(float(drawn.std()) - 0.02) < 5e-4
    assert source.facts["weights"] == "initialized-qkv" and source.facts["weights_seed"] == 3
    assert len(source.facts["model_sha256"]) == 64


def test_initialized_qkv_zeroes_the_biases(tmp_path, text_file):
    from transformers import BertModel

    model = seeded(lambda: BertModel(bert_config()))
    model.encoder.layer[0].attention.self.value.bias.data.fill_(7.0)
    assert float(read(save(model, tmp_path / "m"), text_file, weights="initialized-qkv")[0].v.abs().max()) < 2


def test_initialized_qkv_refuses_fused_projections(tmp_path, text_file):
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    folder = save(GPT2Model(GPT2Config(vocab_size=len(VOCABULARY), **sizes)), tmp_path / "gpt2")
    with pytest.raises(UsageError, match="initialized-qkv needs separate query, key and value matrices"):
        read(folder, text_file, weights="initialized-qkv")


def test_initialized_qkv_refuses_projections_of_which_one_is_missing():
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in ("q_proj", "k_proj")})
    model.config = SimpleNamespace(model_type="odd")
    with pytest.raises(UsageError, match="this odd has none under these names"):
        redraw_projections(model, 0, "m")
    model["v_proj"] = torch.nn.Linear(2, 2, bias=False)
    redraw_projections(model, 0, "m")
    assert float(model["v_proj"].weight.detach().abs().max()) < 0.1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "nosuch"}, "transformers cannot build this model: "),
        ({"initializer_range": -1.0}, "the initializer_range -1.0 of its configuration is not a positive number"),
        ({"initializer_range": 0.0}, None),
    ],
)
def test_random_weights_need_a_configuration_that_can_be_built(changes, says):
    if says is None:
        assert initialized(bert_config(**changes), 0, 1, torch.float32, "m").dtype == torch.float32
    else:
        with pytest.raises(SourceError, match=says):
            initialized(bert_config(**changes), 0, 1, torch.float32, "m")


def test_a_language_model_without_a_weight_inside_is_incomplete(tmp_path):
    from transformers import BertForMaskedLM

    folder = save(seeded(lambda: BertForMaskedLM(bert_config())), tmp_path / "lm")
    rewrite(folder, lambda tensors: tensors.pop("bert.encoder.layer.0.output.dense.weight"))
    with pytest.raises(SourceError, match="lacks bert.encoder.layer.0.output.dense.weight; the model is incomplete"):
        with_head(ModelFolder("lm", folder), torch.float32, "masked")


def test_the_kind_of_a_language_model():
    from transformers import T5Config, ViTConfig

    assert language_kind(bert_config()) == "masked" and language_kind(bert_config(is_decoder=True)) == "causal"
    assert language_kind(T5Config()) is None and language_kind(ViTConfig()) is None


@pytest.mark.parametrize("width", [0, -1])
def test_a_sliding_window_of_no_tokens_is_none(width):
    from transformers import MistralConfig

    assert _attention(MistralConfig(sliding_window=width)) == {"causal": True}
    assert _attention(MistralConfig(sliding_window=4)) == {"causal": True, "sliding_window": 4}


@pytest.mark.parametrize("size", [None, 32, (32, 48)])
def test_doctor_makes_an_image_for_a_model_of_images(size):
    config = SimpleNamespace(image_size=size, model_type="vit")
    image = example(SimpleNamespace(config=config, main_input_name="pixel_values"), "vit")["pixel_values"]
    assert image.shape == {None: (1, 3, 224, 224), 32: (1, 3, 32, 32), (32, 48): (1, 3, 32, 48)}[size]


def test_doctor_reads_no_special_tokens():
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=60), is_encoder_decoder=True)
    words = example(SimpleNamespace(config=config, main_input_name="input_ids"), "t5")
    assert {name: (int(ids.min()) >= 30, int(ids.max()) < 60) for name, ids in words.items()} == {
        "input_ids": (True, True),
        "decoder_input_ids": (True, True),
    }


def test_doctor_has_no_sound():
    model = SimpleNamespace(config=SimpleNamespace(model_type="wav2vec2"), main_input_name="input_values")
    with pytest.raises(SourceError, match="a wav2vec2 reads input_values; doctor has only text and images"):
        example(model, "m")


def test_a_configuration_alone_is_enough_for_random_weights(tmp_path, text_file):
    bert_config(vocab_size=100).save_pretrained(tmp_path)
    lines = []
    qkv = load_qkv(str(tmp_path), "initialized", text_file, n=20, device="cpu", notify=lines.append)
    assert qkv.q.shape == (4, 20, 8)
    assert lines == [f"using a vocabulary of the text's own words: {tmp_path} has no tokenizer"]
    assert qkv.label["fallback"] == lines


@pytest.fixture(scope="module")
def with_bias(tmp_path_factory):
    """An MPNet of 16 positions, whose scores have a bias."""
    from transformers import MPNetConfig, MPNetModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = MPNetConfig(vocab_size=len(VOCABULARY), max_position_embeddings=18, initializer_range=0.5, **sizes)
    return save(seeded(lambda: MPNetModel(config)), tmp_path_factory.mktemp("mpnet") / "m")


def test_plain_scores_have_no_bias_and_are_those_of_segments(with_bias, text_file):
    own, plain = (read(with_bias, text_file, n=16, scores=word)[0] for word in ("model", "plain"))
    assert own.bias is not None and plain.terms is None and plain.block is None
    assert torch.equal(own.q, plain.q) and torch.equal(own.shared_k, plain.shared_k) and own.scale == plain.scale
    assert "scores" not in own.label and plain.label["scores"] == "plain"
    with pytest.raises(SourceError, match="choose a smaller n, or --scores plain to leave the bias out"):
        read(with_bias, text_file, n=32)
    both = read(with_bias, text_file, n=32, scores="plain")[0]
    assert both.terms is None and torch.allclose(both.q[:, :16], plain.q, atol=1e-6)
    weights = torch.softmax(both.scale * both.q.double() @ both.k.double().mT, -1)
    torch.testing.assert_close(exact_output(both).double(), weights @ both.v.double(), rtol=0, atol=1e-5)


def test_layers_behind_plain_scores_read_the_text_with_their_bias(with_bias, text_file):
    own, plain = (read(with_bias, text_file, layers=(1,), n=16, scores=word)[1] for word in ("model", "plain"))
    assert torch.equal(own.q, plain.q)


def test_random_projections_of_an_mpnet_are_redrawn(with_bias, text_file):
    drawn = read(with_bias, text_file, n=16, weights="initialized-qkv", scores="plain")[0]
    assert float(drawn.q.std()) < 0.2 < float(read(with_bias, text_file, n=16)[0].q.std())


def test_scores_of_a_file_and_another_word_are_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown scores 'bare'"):
        SourceSpec(scores="bare")
    with pytest.raises(UsageError, match="drop --scores"):
        SourceSpec(qkv=str(tmp_path / "x.safetensors"), scores="plain")
