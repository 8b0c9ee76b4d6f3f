"""The Triton kernels compiled for an NVIDIA chip that need not be here: `python compiled.py 90`.

Prints one JSON object: for each kernel its shared memory, what its tile expects, and whether it uses tensor cores.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from attnprobe.operators.fused import TILES, Shifts, Tile

POINTERS = ("a", "b", "x", "row", "column", "last", "out", "total")
COLUMNS, P = 128, 128


def compiled(tile: Tile, dtype: torch.dtype, chip: int, normalised: bool) -> dict[str, Any]:
    """A product of 128 columns: with normalised rows, or with the transpose of a causal matrix."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from attnprobe.operators import triton_kernels

    kernel, own = triton_kernels._product, "*fp64" if dtype == torch.float64 else "*fp32"
    shifts = Shifts(None, None if normalised else torch.empty(0))
    hidden = 0 if normalised else 2
    settings = triton_kernels.settings(tile, dtype, P, COLUMNS, shifts, normalised=normalised, hidden=hidden)
    options = {name: settings.pop(name) for name in ("num_warps", "num_stages")}
    types = dict.fromkeys(POINTERS, own) | {"last": "*i64", "out": "*fp64", "total": "*fp64"}
    types |= dict.fromkeys(("n_a", "n_b", "c"), "i32") | dict.fromkeys(settings, "constexpr")
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in settings.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in (*POINTERS, "n_a", "n_b", "c")},
    )
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    code = disassembled(made.asm["cubin"])
    return {
        "shared": made.metadata.shared,
        "expected": tile.shared_bytes(P),
        "tensor_cores": bool(re.search(r"\bDMMA\b" if dtype == torch.float64 else r"\bHG?MMA\b", code)),
    }


def disassembled(binary: bytes) -> str:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tools / "nvdisasm"), file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    chip = int(sys.argv[1])
    actual = {
        f"{dtype} {tile} {'normalised' if normalised else 'transposed'}": compiled(tile, dtype, chip, normalised)
        for dtype, tiles in TILES.items()
        for tile in tiles
        for normalised in (True, False)
    }
    print(json.dumps(actual))


if __name__ == "__main__":
    main()
