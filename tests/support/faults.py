"""The planted faults of `faults.txt`, and the tests that judge each method.

Every family has the seven kinds below. Where a family has nothing of that name, the fault is its nearest relative, and
``meaning`` says what it is.
"""

import re
from dataclasses import dataclass
from pathlib import Path

KINDS = {
    "scale": "a wrong scale",
    "half-norm": "a missing norm, half-norm, or half of something",
    "axis": "a softmax or a sum over the wrong axis",
    "clamp": "a clamped normaliser, exponent or probability",
    "landmark": "a landmark, row or column of the wrong matrix",
    "generator": "a draw that does not use its generator, or not its own stream",
    "in-place": "an in-place edit of data that other code uses",
}


@dataclass(frozen=True)
class Fault:
    """One wrong edit: ``old`` stands once in ``file`` (within the package), and ``new`` takes its place."""

    family: str
    method: str
    kind: str
    file: str
    old: str
    new: str
    meaning: str

    @property
    def name(self) -> str:
        return f"{self.method}: {self.meaning}"


# The test files of a method beside the contract suite; without an entry it is test_<method>.py.
FILES = {
    "softmax": ("test_reference.py", "test_operators.py"),
    "kernelized": ("test_reference.py", "test_operators.py"),
    "skyformer": ("test_skyformer.py", "test_linalg.py"),
    "nystromformer": ("test_nystromformer.py", "test_linalg.py"),
    "skeinformer": ("test_skeinformer.py", "test_linalg.py"),
    "linformer-jlt": ("test_linformer.py",),
    "performer": ("test_features.py",),
    "performer-relu": ("test_features.py",),
    "linear": ("test_features.py",),
    "efficient": ("test_features.py",),
    "nystromformer-kmeans": ("test_spectral_shift.py", "test_nystromformer.py", "test_linalg.py"),
    "prototype": ("test_spectral_shift.py",),
    "mss": ("test_spectral_shift.py",),
    "mss-literal": ("test_spectral_shift.py",),
    "reformer": ("test_hashing.py",),
    "lsh-qk": ("test_hashing.py",),
    "bigbird": ("test_sparse.py",),
    "vattention": ("test_estimators.py",),
    "magicpig": ("test_estimators.py",),
    "kdeformer": ("test_sorted_blocks.py",),
    "hyper": ("test_sorted_blocks.py",),
    "thinformer": ("test_coresets.py",),
    "wildcat": ("test_coresets.py", "test_dyadic.py"),
    "longformer": ("test_sparse.py",),
    "window": ("test_sparse.py",),
    "topk": ("test_sparse.py",),
    "block-topk": ("test_selection.py",),
    "quest": ("test_selection.py",),
    "topp": ("test_selection.py",),
    "nsa": ("test_selection.py",),
    "flexprefill": ("test_selection.py",),
    "xattention": ("test_selection.py",),
    "dsa-oracle": ("test_selection.py",),
    "tri-shape": ("test_sparse.py",),
    "q4_0": ("test_quantised.py",),
    "turboquant": ("test_quantised.py",),
    "kivi": ("test_quantised.py",),
    "vmean": ("test_metrics.py",),
    "svd": ("test_metrics.py",),
    "lower bound": ("test_metrics.py",),
    "theorems": (
        "test_chen2022.py",
        "test_dong2021.py",
        "test_theory_command.py",
        "test_finding.py",
        "test_verma2021.py",
        "test_schroder2026.py",
    ),
}

HEADING = re.compile(r"# (.+?), (.+?): (.+)")
FAULT = re.compile(rf"({'|'.join(KINDS)}): (.+)\n((?:-.*\n)+)((?:\+.*\n)+)")


def read(text: str) -> tuple[Fault, ...]:
    """The faults in the form of `faults.txt`."""
    faults = []
    for part in text.split("\n\n")[1:]:
        heading, _, rest = part.rstrip("\n").partition("\n")
        family, method, file = HEADING.fullmatch(heading).groups()
        found = list(FAULT.finditer(rest + "\n"))
        assert "".join(one[0] for one in found) == rest + "\n", f"{heading} has lines that are no fault"
        for kind, meaning, old, new in (one.groups() for one in found):
            faults.append(Fault(family, method, kind, file, _lines(old), _lines(new), meaning))
    return tuple(faults)


def _lines(side: str) -> str:
    return "\n".join(line[2:] for line in side.splitlines())


FAULTS = read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
