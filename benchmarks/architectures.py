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
in float32, on small seeded models of 2 to 4 layers. The batch has two rows; the second is padded if the model takes a
padding mask.

- **Δ call**: the relative difference of exact attention, rebuilt in float64 from the capture, and the model's own
  output; the largest over its calls.
- **Δ model**: the difference of the model's outputs with and without capture.

| architecture | class | calls | heads | p | scale | mask and extras | Δ call | Δ model |
| --- | --- | ---: | --- | ---: | ---: | --- | ---: | ---: |
"""
REFUSED = """
Refused by name, because their attention does not go through transformers' interface:

| architecture | class | error |
| --- | --- | --- |
"""


def words(calls: list[AttentionCall], of) -> str:
    """What a fact is over all calls, each value once."""
    return "; ".join(dict.fromkeys(of(call) for call in calls))


def row(name: str) -> tuple[str, float]:
    """A line of the table, and the larger of its two distances."""
    model = tiny_models.build(name)
    found, whole = capture_all(model, tiny_models.inputs(model))
    calls = list(found.values())
    delta = max(call.delta for call in calls)
    heads = words(calls, lambda c: f"{c.heads}" if c.heads == c.kv_heads else f"{c.heads} ({c.kv_heads} of keys)")
    masks = words(calls, lambda c: ", ".join([str(c.pattern), *c.extras()]))
    facts = [heads, words(calls, lambda c: str(c.q.shape[3])), words(calls, lambda c: f"{c.scale:.4g}"), masks]
    cells = [name, f"`{type(model).__name__}`", str(len(calls)), *facts, f"{delta:.1e}", f"{whole:.1e}"]
    return f"| {' | '.join(cells)} |\n", max(delta, whole)


def refusal(name: str) -> str:
    """A line of the table of the refused; raises where the model is captured."""
    model = tiny_models.build(name)
    try:
        capture_all(model, tiny_models.inputs(model))
    except SourceError as error:
        return f"| {name} | `{type(model).__name__}` | {error} |\n"
    raise AssertionError(f"{name} was captured")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--write", type=Path, help="a file for the table; stdout without it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = [row(name) for name in tiny_models.CAPTURED]
    text = HEAD + "".join(line for line, _ in rows) + REFUSED + "".join(map(refusal, tiny_models.REFUSED))
    if args.write is None:
        print(text, end="")
    else:
        args.write.write_text(text)
    worst = max(delta for _, delta in rows)
    print(f"{len(rows)} architectures, the largest distance is {worst:.1e} (goal {GOAL:.0e})", file=sys.stderr)
    return finish([Goal(f"largest distance over {len(rows)} architectures", worst, GOAL, False)], args.json)


if __name__ == "__main__":
    sys.exit(main())
