"""A GGUF file of a two-layer Llama, written by gguf's own writer, and the model that it holds."""

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from sources_helpers import seeded

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "Ġ w", "o r", "Ġw or", "i n", "Ġ Ġ", "1 9", "Ċ Ċ")
HEADS, KV_HEADS, BLOCKS = 4, 2, 2


def tokens() -> list[str]:
    """The vocabulary: special tokens, the 256 bytes, and what the merges make."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [*SPECIALS, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]


def llama(tied: bool = True):
    """A Llama with random weights, the same in every run."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokens()),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=512,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    return seeded(lambda: LlamaForCausalLM(config)).eval()


def stored(model) -> dict[str, torch.Tensor]:
    """The weights under their names in GGUF, with the rows of W_Q and W_K as llama.cpp rotates them."""
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    held = {"token_embd": weights["model.embed_tokens.weight"], "output_norm": weights["model.norm.weight"]}
    if not model.config.tie_word_embeddings:
        held["output"] = weights["lm_head.weight"]
    for layer in range(BLOCKS):
        for name, short in names.items():
            weight = weights[f"model.layers.{layer}.{name}.weight"]
            if short in ("attn_q", "attn_k"):
                heads = HEADS if short == "attn_q" else KV_HEADS
                pairs = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
                weight = pairs.transpose(1, 2).reshape(weight.shape)
            held[f"blk.{layer}.{short}"] = weight
    return {f"{name}.weight": weight for name, weight in held.items()}


def rounded(model, kind: Kind):
    """The model with the weights that a file of this type holds, by gguf's own dequantisation."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                blocks = gguf.quantize(weight.numpy(), kind)
                weight.copy_(torch.from_numpy(gguf.dequantize(blocks, kind).copy()))
    return model


def write(
    path: Path, model, kind: Kind = Kind.F16, *, cut: str | None = "smollm", bos: bool = False, **changes
) -> Path:
    """Write a file. ``changes`` are weights to replace or, if None, to leave out; other keys are metadata."""
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    writer.add_context_length(512)
    writer.add_block_count(changes.pop("blocks", BLOCKS))
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens()))
    writer.add_tokenizer_model("gpt2")
    if cut is not None:
        writer.add_tokenizer_pre(cut)
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens()) - len(SPECIALS)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(bos)
    weights = stored(model)
    for name, change in changes.items():
        if isinstance(change, str):
            writer.add_string(name, change)
        else:
            weights[name] = change
    for name, weight in weights.items():
        if weight is not None and weight.dim() == 2:
            writer.add_tensor(name, gguf.quantize(weight.numpy(), kind), raw_dtype=kind)
        elif weight is not None:
            writer.add_tensor(name, weight.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
