"""One method that cannot run is a skipped row with its reason; the other methods of the command are measured."""

import json

import pytest
import torch
from safetensors.torch import save_file
from sources_helpers import VOCABULARY, save, seeded, text_of

CAUSAL = "attention is causal, and mss has no causal form"
MODEL = "--model llama --text words.txt --n 32 --no-input-statistics --d 8"
COMMANDS = {  # by name: the command, and the reason of mss
    "error": ("error --qkv qkv.safetensors --no-matrix --method window,mss --d 8", CAUSAL),
    "audit": (
        "audit --qkv qkv.safetensors --no-matrix --method performer,linformer --d 8 --repeats 3",
        CAUSAL.replace("mss", "linformer"),
    ),
    "budget": ("budget --qkv qkv.safetensors --method window,mss --epsilon 0.5 --repeats 2", CAUSAL),
    "condition": ("condition --qkv qkv.safetensors --method vmean,mss --d 8", CAUSAL),
    "spectrum": ("spectrum --qkv qkv.safetensors --of window,mss --d 8", CAUSAL),
    "theory": (
        "theory --qkv qkv.safetensors --theorem topk-tv,ma-property --method mss --d 8 --repeats 2",
        "attention is causal, but the theorem is about attention to all tokens",
    ),
    "bench": (
        "bench --source model --model llama --text words.txt --n 32 --method linear,mss --d 8 --rounds 1 --no-memory",
        CAUSAL,
    ),
    "stability": (
        "stability --task listops:n=64,batch=2 --method linear,mss --d 128 --steps 1 --seeds 1 --condition-tokens 0",
        "listops: mss: d=128 exceeds n=",
    ),
    "inject": (f"inject {MODEL} --method window,mss", CAUSAL),
    "inject-decode": (f"inject {MODEL} --method window,mss --phase decode", "mss cannot decode: it has no causal form"),
    "inject-decode-lsh": (
        f"inject {MODEL} --method window,lsh-qk --phase decode",
        "lsh-qk cannot decode: a row depends on the queries of earlier tokens or on the number of keys",
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Causal Q, K, V, a small Llama, and a text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("causal")
    tensors = torch.randn(3, 2, 32, 8, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip("qkv", tensors, strict=True)), folder / "qkv.safetensors", metadata={"causal": "true"})
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = LlamaConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, initializer_range=0.3, **sizes)
    save(seeded(lambda: LlamaForCausalLM(config)), folder / "llama")
    (folder / "words.txt").write_text(text_of(200))
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_method_that_cannot_run_is_a_skipped_row(run, inputs, tmp_path, monkeypatch, name):
    command, reason = COMMANDS[name]
    monkeypatch.chdir(inputs)
    code, out, err = run(*command.split(), "--device", "cpu", "--out", tmp_path / "r")
    lines = (tmp_path / "r" / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    skipped = [record for record in records if record["status"] == "skipped"]
    assert code == 0 and "skipped" in out, err
    assert skipped and any(reason in record["reason"] for record in skipped)
    assert {record["status"] for record in records} == {"ok", "skipped"}


def test_theorems_that_were_skipped_share_a_line(run, inputs, tmp_path):
    names = "rank-collapse,bounded-scores,eckart-young"
    options = ("--d", 4, "--repeats", 1, "--theorem", names, "--out", tmp_path / "r")
    code, out, _ = run("theory", "--qkv", inputs / "qkv.safetensors", *options)
    why = "– skipped, attention is causal, but the theorem is about attention to all tokens"
    assert code == 0 and f"{why}: rank-collapse, eckart-young" in " ".join(out.split())
    assert "rank-collapse ·" not in out and "bounded-scores ·" in out
