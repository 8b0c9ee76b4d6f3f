"""Models that read no tokens, or not tokens alone; and texts that begin with the special tokens of their tokenizer."""

import pytest
import tiny_models
import torch
import transformers
from sources_helpers import VOCABULARY, save, seeded, text_of
from thinned import others_slow
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnprobe import load_qkv
from attnprobe.errors import SourceError
from attnprobe.inputs import SourceSpec, resolve, survey
from attnprobe.measure.inject.language import _lines_of

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 4}


def whisper():
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8, "max_source_positions": 16}
    tokens = {"vocab_size": len(VOCABULARY), "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1}
    more = {"eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None}
    config = transformers.WhisperConfig(**sizes, **heads, **tokens, **more)
    return transformers.WhisperForConditionalGeneration(config)


def wav2vec2():
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (3, 3), "conv_stride": (2, 2), "num_feat_extract_layers": 2}
    groups = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SMALL, **convolutions, **groups))


def clip():
    text = {**SMALL, "vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=IMAGE, projection_dim=16)
    return transformers.CLIPModel(config)


def musicgen():
    text = transformers.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    sound = {"num_filters": 4, "hidden_size": 8, "codebook_size": 16, "codebook_dim": 8, "num_lstm_layers": 1}
    sound = transformers.EncodecConfig(**sound, upsampling_ratios=[2, 2])
    decoder = {"vocab_size": 16, "num_codebooks": 2, "ffn_dim": 48, "hidden_size": 32, "num_hidden_layers": 2}
    decoder = transformers.MusicgenDecoderConfig(**decoder, num_attention_heads=4)
    parts = {"text_encoder": text.to_dict(), "audio_encoder": sound.to_dict(), "decoder": decoder.to_dict()}
    return transformers.MusicgenForConditionalGeneration(transformers.MusicgenConfig(**parts))


def two_berts():
    config = transformers.BertConfig(**SMALL, vocab_size=len(VOCABULARY))
    pair = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(config, config)
    return transformers.EncoderDecoderModel(pair)


READS = {
    "Whisper": (whisper, "a whisper does not read text but input_features"),
    "Wav2Vec2": (wav2vec2, "a wav2vec2 does not read text but input_values"),
    "ViT": (
        lambda: transformers.ViTModel(transformers.ViTConfig(**IMAGE)),
        "a vit does not read text but pixel_values",
    ),
    "CLIP": (clip, "a clip reads image and text, and commands give it text alone"),
    "MusicGen": (musicgen, "a musicgen has several texts, and commands read one"),
    "two BERTs": (two_berts, "transformers cannot build this model: Unrecognized configuration class"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for name, (build, _) in READS.items():
        save(seeded(build), folder / name)
    (folder / "words.txt").write_text(text_of(100))
    return folder


@pytest.mark.parametrize("name", others_slow(READS, lambda name: name[0] != "two BERTs"))  # which takes seconds
def test_a_model_that_does_not_read_tokens_alone_is_refused_in_one_line(folder, name):
    says = READS[name][1]
    with pytest.raises(SourceError) as caught:
        load_qkv(folder / name, text=folder / "words.txt", n=24, device="cpu", cache=False)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["error", "inject", "spectrum", "extract"])
def test_commands_have_that_line(run, folder, tmp_path, command):
    place = ("--model", folder / "Whisper", "--text", folder / "words.txt", "--n", 24, "--out", tmp_path / "out")
    code, _, said = run(command, *place)
    assert code == 3 and "a whisper does not read text but input_features" in said and "Error" not in said


def test_doctor_shows_a_model_images_and_text_together(folder):
    lines = survey(folder / "CLIP")
    assert "4 attention calls" in lines[0] and "differ from its own by 0.0e+00" in lines[-1]
    with pytest.raises(SourceError, match="a whisper reads input_features; doctor has only text and images"):
        survey(folder / "Whisper")


def letters(before: str | None) -> Tokenizer:
    signs = ["[UNK]", "[PAD]", "<s>", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz .,\n"]
    tokenizer = Tokenizer(models.WordLevel({sign: number for number, sign in enumerate(signs)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["[UNK]", "[PAD]", "<s>", "[CLS]", "[SEP]"])
    if before is not None:
        ids = [(sign, signs.index(sign)) for sign in dict.fromkeys((before, "[SEP]"))]
        after = " [SEP]" if before == "[CLS]" else ""
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{before} $A{after}", special_tokens=ids)
    return tokenizer


@pytest.mark.parametrize(
    ("before", "text", "first"),
    [
        ("<s>", "<s>the cat sat", ["<s>", "t", "h"]),
        ("<s>", "the cat sat", ["<s>", "t", "h"]),
        ("<s>", "<s><s>the cat", ["<s>", "<s>", "t"]),
        ("<s>", "[CLS]the cat", ["<s>", "[CLS]", "t"]),
        ("[CLS]", "[CLS]the cat", ["[CLS]", "t", "h"]),
        (None, "<s>the cat sat", ["<s>", "t", "h"]),
    ],
)
def test_a_text_that_begins_with_the_special_tokens_of_its_tokenizer_has_them_once(tmp_path, before, text, first):
    model = tiny_models.build("Llama", vocab_size=40)
    model.save_pretrained(tmp_path / "model")
    tokenizer = letters(before)
    tokenizer.save(str(tmp_path / "model/tokenizer.json"))
    (tmp_path / "text.txt").write_text(f"{text} on the mat, and a dog ran by.\n" * 2 + text)
    source = resolve(
        SourceSpec(model=str(tmp_path / "model"), text=str(tmp_path / "text.txt"), device="cpu", cache=False)
    )
    [ids] = source.segments(24, 0)
    assert [tokenizer.id_to_token(number) for number in ids[:3]] == first and len(ids) == 24
    assert source.segments(12, 0)[0][:3] == ids[:3]
    [line] = _lines_of(source, 24, 1)
    assert [tokenizer.id_to_token(number) for number in line[:3]] == first
    assert torch.isfinite(source.qkv(24, [0], 0)[0].q).all()
