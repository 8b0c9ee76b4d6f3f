"""What is in a folder."""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from attnprobe.rng import generator


def snapshot(folder):
    """Every file, folder and link below a folder, with what it holds."""
    actual = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            held = os.readlink(path)
        else:
            held = path.read_bytes() if path.is_file() else None
        actual[path.relative_to(folder).as_posix()] = held
    return actual


def saved_layers(folder, n):
    """A file with Q, K and V of layers 0 and 2 in windows 0 and 1: 3 heads, n tokens, p = 8."""
    q, k, v = torch.randn(3, 3, n, 8, generator=torch.Generator().manual_seed(1))
    tensors = {
        f"layer{layer}.window{window}.{axis}": (x * (1 + layer) + window).contiguous()
        for layer in (0, 2)
        for window in (0, 1)
        for axis, x in zip("qkv", (q, k, v), strict=True)
    }
    save_file(tensors, folder / "qkv.safetensors")
    return folder / "qkv.safetensors"


def saved_heads(folder, heads, n=48):
    """A file with Q, K and V of one layer: n tokens, p = 8."""
    q, k, v = torch.randn(3, heads, n, 8, generator=generator(2, "qkv"))
    save_file({axis: x.contiguous() for axis, x in zip("qkv", (q, k, v), strict=True)}, folder / "qkv.safetensors")
    return folder / "qkv.safetensors"
