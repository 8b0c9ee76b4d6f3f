"""Which architectures are captured, and how exactly: the table of docs/reference/architectures.md.

    python benchmarks/architectures.py [--write docs/reference/architectures.md]

Each model is small, seeded and real: built from a configuration of the installed transformers
(tests/support/tiny_models.py) and run on two rows, the second padded where the model takes a padding mask. Δ is the
relative Frobenius distance in float32 of exact attention, rebuilt in float64 from what was captured, from what the
model computed, the largest over its calls; Δ of the model is that of its outputs under capture from its own eager run.
Exits 1 where one exceeds 1e-6, or where a model that goes round the interface is not refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers
from measuring import Goal, arguments, finish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

import tiny_models  # noqa: E402

from attnprobe.errors import SourceError  # noqa: E402
from attnprobe.hooks.call import AttentionCall  # noqa: E402
from attnprobe.hooks.capture import capture_all  # noqa: E402

GOAL = 1e-6
VERSIONS = f"transformers {transformers.__version__} and torch {torch.__version__.split('+')[0]}"
HEAD = f"""# Architectures

Made by `python benchmarks/architectures.py --write docs/reference/architectures.md` with {VERSIONS}
in float32, on small seeded models. The batch has two rows; the second is padded if the model takes a padding mask.
Exact attention, rebuilt in float64 from the capture, agrees with each model's own output to within WORST.

| mask and extras | architectures |
| --- | --- |
"""
REFUSED = """
Refused by name, because their attention does not go through transformers' interface: """


def words(call: AttentionCall) -> str:
    """The mask of a call, and what else its attention has."""
    grouped = ["grouped keys"] if call.heads != call.kv_heads else []
    return ", ".join([str(call.pattern), *grouped, *call.extras()])


def row(name: str) -> tuple[str, float]:
    """The masks of an architecture's calls, and the larger distance: of the calls, or of the outputs under capture."""
    model = tiny_models.build(name)
    found, whole = capture_all(model, tiny_models.inputs(model))
    calls = list(found.values())
    masks = "; ".join(dict.fromkeys(map(words, calls)))
    return masks, max(whole, *(call.delta for call in calls))


def refusal(name: str) -> str:
    """The name of a refused architecture; raises where the model is captured."""
    model = tiny_models.build(name)
    try:
        capture_all(model, tiny_models.inputs(model))
    except SourceError:
        return name
    raise AssertionError(f"{name} was captured")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--write", type=Path, help="a file for the table; stdout without it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = {name: row(name) for name in tiny_models.CAPTURED}
    worst = max(delta for _, delta in rows.values())
    names: dict[str, list[str]] = {}
    for name, (masks, _) in rows.items():
        names.setdefault(masks, []).append(name)
    table = "".join(f"| {masks} | {', '.join(alike)} |\n" for masks, alike in names.items())
    refused = ", ".join(map(refusal, tiny_models.REFUSED))
    text = f"{HEAD.replace('WORST', f'{worst:.1e}')}{table}{REFUSED}{refused}.\n"
    if args.write is None:
        print(text, end="")
    else:
        args.write.write_text(text)
    print(f"{len(rows)} architectures, the largest distance is {worst:.1e} (goal {GOAL:.0e})", file=sys.stderr)
    return finish([Goal(f"largest distance over {len(rows)} architectures", worst, GOAL, False)], args.json)


if __name__ == "__main__":
    sys.exit(main())
