"""Small, seeded models of real architectures, built from configurations of the installed transformers.

Each entry of `CAPTURED` builds a model and the inputs of a forward; a batch of two rows, the second padded where the
model takes a padding mask. Weights are drawn with a large deviation, so that attention is far from uniform. `REFUSED`
are architectures whose attention does not go through transformers' interface.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

N, VOCABULARY, VALID = 24, 60, 17  # tokens, words, and the tokens of the second row that are not padding
SPECIAL = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)


def sizes(**changes: Any) -> dict[str, Any]:
    """What most configurations call their sizes: 2 layers, 4 heads of 8."""
    plain = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {**plain, "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.3, **changes}


def grouped(**changes: Any) -> dict[str, Any]:
    return sizes(num_key_value_heads=2, **SPECIAL, **changes)


def _image(**changes: Any) -> dict[str, Any]:
    plain = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {**plain, "intermediate_size": 48, "initializer_range": 0.3, **changes}


def _pair(**changes: Any) -> dict[str, Any]:
    plain = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "init_std": 0.3}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
    feed_forward = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    return {**plain, **heads, **feed_forward, **SPECIAL, "decoder_start_token_id": 2, **changes}


def _alternating(layers: int) -> list[str]:
    return ["sliding_attention", "full_attention"] * (layers // 2)


def _latent(**changes: Any) -> dict[str, Any]:
    """Latent attention (MLA) in two layers, the second with experts."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    return {**sizes(num_key_value_heads=4, head_dim=4, **SPECIAL), **ranks, **experts, **changes}


def _mamba() -> dict[str, int]:
    return {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}


def _linear(**changes: Any) -> dict[str, Any]:
    """Layers with linear attention, and the third with softmax attention."""
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    heads = {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    experts = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16} if changes else {}
    return grouped(num_hidden_layers=3, layer_types=kinds, head_dim=8, **heads, **experts, **changes)


def _relative(**changes: Any) -> dict[str, Any]:
    """Disentangled attention, whose scores depend on the distance of tokens."""
    return sizes(relative_attention=True, pos_att_type=["c2p", "p2c"], **changes)


def _old(hidden: str, layers: str, heads: str, **changes: Any) -> dict[str, Any]:
    """The sizes of a configuration that has names of its own for them."""
    return {"vocab_size": VOCABULARY, hidden: 32, layers: 2, heads: 4, "initializer_range": 0.3, **changes}


RECURRENT = {"attention_window_size": 6, "block_types": ["recurrent", "attention"]}


def _specials() -> dict[str, int]:
    return {**SPECIAL, "cls_token_id": 0, "sep_token_id": 0}


#: name -> (the class of the model, the class of its configuration, its settings)
CAPTURED: dict[str, tuple[str, str, Callable[[], dict[str, Any]]]] = {
    "BERT": ("BertModel", "BertConfig", sizes),
    "BERT decoder": ("BertModel", "BertConfig", lambda: sizes(is_decoder=True, add_cross_attention=True)),
    "RoBERTa": ("RobertaModel", "RobertaConfig", lambda: sizes(pad_token_id=1)),
    "XLM-R": ("XLMRobertaModel", "XLMRobertaConfig", lambda: sizes(pad_token_id=1)),
    "ELECTRA": ("ElectraModel", "ElectraConfig", lambda: sizes(embedding_size=16)),
    "ALBERT": ("AlbertModel", "AlbertConfig", lambda: sizes(embedding_size=16)),
    "DistilBERT": (
        "DistilBertModel",
        "DistilBertConfig",
        lambda: {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "initializer_range": 0.3,
        },
    ),
    "ModernBERT": (
        "ModernBertModel",
        "ModernBertConfig",
        lambda: sizes(num_hidden_layers=4, local_attention=8, **_specials()),
    ),
    "EuroBERT": ("EuroBertModel", "EuroBertConfig", lambda: grouped(mask_token_id=0)),
    "GPT-2": (
        "GPT2Model",
        "GPT2Config",
        lambda: {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "initializer_range": 0.3,
        },
    ),
    "GPT-NeoX": ("GPTNeoXModel", "GPTNeoXConfig", sizes),
    "OPT": (
        "OPTModel",
        "OPTConfig",
        lambda: {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "init_std": 0.3,
        },
    ),
    "Llama": ("LlamaModel", "LlamaConfig", grouped),
    "Mistral": ("MistralModel", "MistralConfig", lambda: grouped(sliding_window=6)),
    "Phi-3": ("Phi3Model", "Phi3Config", grouped),
    "OLMo-2": ("Olmo2Model", "Olmo2Config", grouped),
    "Qwen2": ("Qwen2Model", "Qwen2Config", grouped),
    "Qwen3": ("Qwen3Model", "Qwen3Config", lambda: grouped(head_dim=16)),
    "Gemma": ("GemmaModel", "GemmaConfig", lambda: grouped(head_dim=16)),
    "Gemma 2": (
        "Gemma2Model",
        "Gemma2Config",
        lambda: grouped(head_dim=16, sliding_window=6, query_pre_attn_scalar=12, attn_logit_softcapping=2.0),
    ),
    "Gemma 3": (
        "Gemma3TextModel",
        "Gemma3TextConfig",
        lambda: grouped(head_dim=16, sliding_window=6, layer_types=["sliding_attention", "full_attention"]),
    ),
    "GPT-OSS": (
        "GptOssModel",
        "GptOssConfig",
        lambda: grouped(head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=1),
    ),
    "SmolLM3": ("SmolLM3Model", "SmolLM3Config", lambda: grouped(num_hidden_layers=4, no_rope_layer_interval=2)),
    "Phi": ("PhiModel", "PhiConfig", lambda: sizes(num_hidden_layers=2, partial_rotary_factor=0.5, **SPECIAL)),
    "GLM": ("GlmModel", "GlmConfig", lambda: grouped(head_dim=8)),
    "Cohere 2": ("Cohere2Model", "Cohere2Config", lambda: grouped(sliding_window=6, layer_types=_alternating(2))),
    "Gemma 3n": (
        "Gemma3nTextModel",
        "Gemma3nTextConfig",
        lambda: grouped(
            num_hidden_layers=4,
            head_dim=8,
            sliding_window=6,
            layer_types=_alternating(4),
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=8,
            laurel_rank=4,
            altup_num_inputs=2,
            activation_sparsity_pattern=None,
        ),
    ),
    "Gemma 4": (  # whose layers differ in their head dimension and in their KV heads
        "Gemma4TextModel",
        "Gemma4TextConfig",
        lambda: grouped(
            num_hidden_layers=4,
            layer_types=_alternating(4),
            sliding_window=6,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=8,
            per_layer_config={str(layer): {"head_dim": 16, "num_key_value_heads": 1} for layer in (1, 3)},
            head_dim=8,
        ),
    ),
    "DiffLlama": ("DiffLlamaModel", "DiffLlamaConfig", grouped),
    "DeepSeek-V2": (
        "DeepseekV2Model",
        "DeepseekV2Config",
        lambda: _latent(topk_method="greedy", n_group=1, topk_group=1),
    ),
    "DeepSeek-V3": ("DeepseekV3Model", "DeepseekV3Config", lambda: _latent(n_group=1, topk_group=1)),
    "HRM": ("HrmTextModel", "HrmTextConfig", lambda: grouped(H_cycles=2, L_cycles=2)),
    "LFM2": (
        "Lfm2Model",
        "Lfm2Config",
        lambda: grouped(num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2),
    ),
    "Jamba": (
        "JambaModel",
        "JambaConfig",
        lambda: grouped(
            num_hidden_layers=4,
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=2,
            num_experts_per_tok=1,
            use_mamba_kernels=False,
            mamba_d_state=8,
            mamba_dt_rank=4,
        ),
    ),
    "Bamba": ("BambaModel", "BambaConfig", lambda: grouped(num_hidden_layers=3, attn_layer_indices=[1], **_mamba())),
    "Granite 4": (
        "GraniteMoeHybridModel",
        "GraniteMoeHybridConfig",
        lambda: grouped(
            num_hidden_layers=3,
            layer_types=["mamba", "attention", "mamba"],
            shared_intermediate_size=48,
            num_local_experts=0,
            num_experts_per_tok=0,
            **_mamba(),
        ),
    ),
    "Falcon-H1": (
        "FalconH1Model",
        "FalconH1Config",
        lambda: grouped(head_dim=8, **{**_mamba(), "mamba_d_ssm": 32, "mamba_d_head": 8}),
    ),
    "Nemotron-H": (
        "NemotronHModel",
        "NemotronHConfig",
        lambda: {
            **{name: size for name, size in grouped(head_dim=8).items() if name != "num_hidden_layers"},
            "layers_block_type": ["mamba", "attention", "mlp", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 16,
        },
    ),
    "Qwen3-Next": ("Qwen3NextModel", "Qwen3NextConfig", lambda: _linear(num_experts=2, num_experts_per_tok=1)),
    "OLMo hybrid": ("OlmoHybridModel", "OlmoHybridConfig", _linear),
    "MiniMax": (
        "MiniMaxModel",
        "MiniMaxConfig",
        lambda: grouped(
            num_hidden_layers=3,
            head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_local_experts=2,
            num_experts_per_tok=1,
            block_size=16,
        ),
    ),
    "RecurrentGemma": (
        "RecurrentGemmaModel",
        "RecurrentGemmaConfig",
        lambda: {**sizes(num_hidden_layers=3, num_key_value_heads=1, head_dim=8, lru_width=32, **SPECIAL), **RECURRENT},
    ),
    "Zamba2": (
        "Zamba2Model",
        "Zamba2Config",
        lambda: sizes(
            num_hidden_layers=5,
            num_key_value_heads=4,
            layers_block_type=["mamba", "hybrid", "mamba", "mamba", "hybrid"],
            mamba_d_state=8,
            mamba_ngroups=1,
            n_mamba_heads=4,
            chunk_size=16,
            adapter_rank=4,
            **SPECIAL,
        ),
    ),
    "BART": ("BartModel", "BartConfig", _pair),
    "mBART": ("MBartModel", "MBartConfig", _pair),
    "T5": (
        "T5Model",
        "T5Config",
        lambda: {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "DeBERTa": ("DebertaModel", "DebertaConfig", _relative),
    "DeBERTa-v2": ("DebertaV2Model", "DebertaV2Config", _relative),
    "MPNet": ("MPNetModel", "MPNetConfig", lambda: sizes(pad_token_id=1)),
    "XLNet": (
        "XLNetModel",
        "XLNetConfig",
        lambda: {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "n_layer": 2,
            "n_head": 4,
            "d_inner": 48,
            "initializer_range": 0.3,
        },
    ),
    "RoFormer": ("RoFormerModel", "RoFormerConfig", sizes),
    "BLOOM": ("BloomModel", "BloomConfig", lambda: _old("hidden_size", "n_layer", "n_head")),
    "MPT": ("MptModel", "MptConfig", lambda: _old("d_model", "n_layers", "n_heads", max_seq_len=64)),
    "Falcon": ("FalconModel", "FalconConfig", lambda: sizes(num_hidden_layers=2, **SPECIAL)),
    "Falcon with ALiBi": ("FalconModel", "FalconConfig", lambda: sizes(alibi=True, **SPECIAL)),
    "GPT-J": ("GPTJModel", "GPTJConfig", lambda: _old("n_embd", "n_layer", "n_head", n_positions=64, rotary_dim=4)),
    "GPT-Neo": (
        "GPTNeoModel",
        "GPTNeoConfig",
        lambda: _old(
            "hidden_size",
            "num_layers",
            "num_heads",
            max_position_embeddings=64,
            window_size=6,
            attention_types=[[["global", "local"], 1]],
        ),
    ),
    "XGLM": (
        "XGLMModel",
        "XGLMConfig",
        lambda: _old(
            "d_model", "num_layers", "attention_heads", ffn_dim=48, max_position_embeddings=64, init_std=0.3, **SPECIAL
        ),
    ),
    "BigBird": ("BigBirdModel", "BigBirdConfig", lambda: sizes(attention_type="original_full", **_specials())),
    "BigBird (block-sparse)": (
        "BigBirdModel",
        "BigBirdConfig",
        lambda: sizes(attention_type="block_sparse", block_size=2, num_random_blocks=1, **_specials()),
    ),
    "Longformer": ("LongformerModel", "LongformerConfig", lambda: sizes(attention_window=8, pad_token_id=1)),
    "Nystromformer": (
        "NystromformerModel",
        "NystromformerConfig",
        lambda: sizes(num_landmarks=4, segment_means_seq_len=N, conv_kernel_size=5),
    ),
    "Reformer": (
        "ReformerModel",
        "ReformerConfig",
        lambda: {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "attention_head_size": 8,
            "feed_forward_size": 48,
            "axial_pos_embds": False,
            "max_position_embeddings": 64,
            "attn_layers": ["local", "lsh"],
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 4,
            "num_buckets": 4,
            "num_hashes": 2,
            "initializer_range": 0.3,
            "is_decoder": False,
        },
    ),
    "ViT": ("ViTModel", "ViTConfig", _image),
    "DeiT": ("DeiTModel", "DeiTConfig", _image),
    "DINOv2": ("Dinov2Model", "Dinov2Config", _image),
    "CLIP (vision)": ("CLIPVisionModel", "CLIPVisionConfig", _image),
    "SigLIP (vision)": ("SiglipVisionModel", "SiglipVisionConfig", _image),
}

#: models whose attention is that of another one here, in a module of its own: slow tests read them too
ALIKE = (
    *("RoBERTa", "XLM-R", "ELECTRA", "EuroBERT", "GPT-NeoX", "OPT", "Phi-3", "OLMo-2", "Qwen2", "Gemma", "DeiT"),
    *("DINOv2", "mBART", "SmolLM3", "Phi", "GLM", "XGLM", "Granite 4", "DeepSeek-V2"),
)

REFUSED: dict[str, tuple[str, str, Callable[[], dict[str, Any]]]] = {
    "DeBERTa with talking heads": ("DebertaModel", "DebertaConfig", lambda: _relative(talking_head=True)),
    "FNet": (
        "FNetModel",
        "FNetConfig",
        lambda: {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48},
    ),
}


def _whisper() -> dict[str, Any]:
    sound = {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64}
    plain = {name: size for name, size in _pair().items() if name != "max_position_embeddings"}
    return {**plain, **sound, "suppress_tokens": None, "begin_suppress_tokens": None}


def _sound() -> dict[str, Any]:
    layers = {"conv_dim": (8, 8), "conv_kernel": (3, 3), "conv_stride": (2, 2), "num_feat_extract_layers": 2}
    small = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, **layers}
    return {**_image(), **small}


def _text_and_image() -> dict[str, Any]:
    return {"text_config": sizes(eos_token_id=2), "vision_config": _image(), "projection_dim": 16}


#: models that read no tokens, or not tokens alone
OTHERS: dict[str, tuple[str, str, Callable[[], dict[str, Any]]]] = {
    "Whisper": ("WhisperForConditionalGeneration", "WhisperConfig", _whisper),
    "Wav2Vec2": ("Wav2Vec2Model", "Wav2Vec2Config", _sound),
    "CLIP": ("CLIPModel", "CLIPConfig", _text_and_image),
}
SIGNS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz .,\n"]  # of the tokenizer of `save`
PROSE = "the quick brown fox jumps over a lazy dog, and every zebra may exit with six boxes of jam. "


def build(name: str, seed: int = 0, **changes: Any):
    """The model, in evaluation mode, with ``changes`` of its settings; torch's own state stays as it was."""
    import transformers

    model_class, config_class, settings = {**CAPTURED, **REFUSED, **OTHERS}[name]
    config = getattr(transformers, config_class)(**{**settings(), **changes})
    return _seeded(name, getattr(transformers, model_class), config, seed)


def save(name: str, folder: Path, seed: int = 0) -> None:
    """Write the complete model, with the head that predicts words if it has one, and a tokenizer of letters."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from attnprobe.inputs.weights import language_kind

    model_class, config_class, settings = {**CAPTURED, **REFUSED, **OTHERS}[name]
    config = getattr(transformers, config_class)(**settings())
    heads = {
        "causal": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        "masked": transformers.MODEL_FOR_MASKED_LM_MAPPING,
    }
    kind = language_kind(config)
    chosen = getattr(transformers, model_class) if kind is None else heads[kind][type(config)]
    _seeded(name, chosen, config, seed).save_pretrained(folder)
    letters = Tokenizer(models.WordLevel({sign: number for number, sign in enumerate(SIGNS)}, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    letters.save(str(folder / "tokenizer.json"))


def _seeded(name: str, kind: Any, config: Any, seed: int):
    """A model of a class in evaluation mode, with eager attention."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind._from_config(config, attn_implementation="eager").eval()
        if name == "GPT-OSS":  # its sinks are not initialized by transformers
            for path, parameter in model.named_parameters():
                if path.endswith("sinks") or not bool(torch.isfinite(parameter).all()):
                    parameter.data.normal_(0.0, 0.5)
    return model.requires_grad_(False)


def inputs(model, padded: bool = True) -> dict[str, torch.Tensor]:
    """Two rows of tokens or pixels; with ``padded`` the second row ends with padding."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        config = model.config
        return {"pixel_values": torch.randn(2, 3, config.image_size, config.image_size, generator=generator)}
    ids = torch.randint(3, VOCABULARY, (2, N), generator=generator)
    mask = torch.ones(2, N, dtype=torch.long)
    if padded and model.config.model_type != "nystromformer":  # whose module of transformers 5.23 takes no such mask
        mask[1, VALID:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, N), generator=generator)
    if getattr(model.config, "add_cross_attention", False):
        batch["encoder_hidden_states"] = torch.randn(2, N, 32, generator=generator)
        batch["encoder_attention_mask"] = mask
        batch["attention_mask"] = torch.ones(2, N, dtype=torch.long)
    if "use_cache" in model.forward.__code__.co_varnames or hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return batch


def hidden(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The last hidden states of a forward, (b, n, hidden)."""
    return model(**batch).last_hidden_state
