"""The tests of numbers as other processors run them: with other orders of sums, other instructions, other threads.

    python tests/support/processors.py               # in all settings, about half an hour on two cores
    python tests/support/processors.py oldest        # in the setting of that name, about two minutes
    python tests/support/processors.py oldest --short  # operators, norms, theorems and landmarks alone: CI runs it
    python tests/support/processors.py --all         # the contract of all methods too, hours
    python tests/support/processors.py avx2 -k skyformer -x   # further arguments are those of pytest

A setting is three variables of the environment. ``MKL_CBWR`` chooses the instructions, and so the order of sums, of
MKL's products and decompositions; ``ATEN_CPU_CAPABILITY`` those of torch's own loops; ``OMP_NUM_THREADS`` the number of
threads. Settings with instructions that this processor lacks are left out.

On a processor with AMX torch refuses its fused attention in bfloat16 under ``ATEN_CPU_CAPABILITY=default``: it asks the
processor whether to pack the operands, and its plain code cannot. Older processors are not asked. Such a kernel is a
skipped row.

The exit code is that of the first run with a failure, else 0.
"""

from __future__ import annotations

import os
import subprocess
import sys

from paths import TESTS

NUMBERS = ("metrics", "operators", "theorems", "test_approximation.py", "test_reference.py", "test_rng.py")
COUNTS = "metrics/test_cost.py"  # of products, which are the same everywhere
FEW_BITS = ("inject", "rounding")
SCOPES = {
    "--short": ("methods/nystrom",),  # whose inverses amplify rounding
    "": ("methods/nystrom", *(f"methods/test_{name}.py" for name in ("causal", "kernels", "large_scores")), *FEW_BITS),
    "--all": ("methods", "testing", *FEW_BITS),
}
WIDTHS = ("default", "avx2", "avx512")
# each order of sums with each set of instructions
SETTINGS = {
    "oldest": ("COMPATIBLE", "default", 1),
    "compatible-avx2": ("COMPATIBLE", "avx2", 2),
    "compatible-avx512": ("COMPATIBLE", "avx512", 1),
    "avx2": ("AVX2", "avx2", 1),
    "avx2-default": ("AVX2", "default", 2),
    "avx2-avx512": ("AVX2", "avx512", 2),
    "avx512": ("AVX512", "avx512", 2),
    "avx512-avx2": ("AVX512", "avx2", 1),
    "avx512-default": ("AVX512", "default", 1),
}


def widest() -> int:
    """The place in `WIDTHS` of the widest instructions of torch's loops on this processor."""
    os.environ.pop("ATEN_CPU_CAPABILITY", None)
    import torch

    name = torch.backends.cpu.get_cpu_capability().lower()
    return WIDTHS.index(name) if name in WIDTHS else 0


def main(words: list[str]) -> int:
    chosen = [word for word in words if word in SETTINGS] or list(SETTINGS)
    arguments = [word for word in words if word not in SETTINGS and word not in SCOPES]
    scope = next((word for word in words if word in SCOPES), "")
    paths = [*(str(TESTS / name) for name in (*NUMBERS, *SCOPES[scope])), f"--ignore={TESTS / COUNTS}"]
    most, codes = widest(), [0]
    for name in chosen:
        sums, instructions, threads = SETTINGS[name]
        if WIDTHS.index(instructions) > most:
            print(f"{name}: left out, this processor has no {instructions}", flush=True)
            continue
        variables = {"MKL_CBWR": sums, "ATEN_CPU_CAPABILITY": instructions, "OMP_NUM_THREADS": str(threads)}
        print(f"{name}: {' '.join(f'{key}={value}' for key, value in variables.items())}", flush=True)
        workers = [] if threads == 1 else ["-n", "0"]  # a worker of xdist has one thread
        run = [sys.executable, "-m", "pytest", *workers, *paths, *arguments]
        codes.append(subprocess.run(run, cwd=TESTS.parent, env={**os.environ, **variables}).returncode)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
