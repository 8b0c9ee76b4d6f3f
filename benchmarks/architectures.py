"""What is measured of each architecture: the table of docs/reference/architectures.md.

    python benchmarks/architectures.py [--only LFM2,OPT] [--write docs/reference/architectures.md]

Each model is small, seeded and real: built from a configuration of the installed transformers with the head of its
language model (tests/support/tiny_models.py). It is stored in a folder and goes through `doctor`, `error --layer all`,
and `inject` at once and token by token. Methods run at their full budget, so that every number should be rounding:

- capture: the relative Frobenius distance in float32 of exact attention, rebuilt in float64 from a capture of two rows,
  from what the model computed, and the distance of the model's outputs under capture from its own;
- error: the largest ‖B~V − BV‖₂ / ‖BV‖₂ of `topk` that keeps all keys, over the heads of all layers;
- inject: the largest drift of `softmax` and of `topk` that keeps all keys in every layer; of `own` where modules
  compute an approximation;
- decode: the drift of `topk` and `h2o` that keep the whole prompt.

A drift is judged by the model's own rounding: the distance of its outputs in float32 from those in float64, and of
those of eager attention from those of torch's fused one, the larger of them where both can be computed.

Where a command has no number it has one line. Exits 1 where a number exceeds its goal, where a command raises anything
but such a line, or where a model that goes round the interface is not refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from measuring import Goal, arguments, finish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

import tiny_models  # noqa: E402

from attnprobe.errors import AttnprobeError  # noqa: E402
from attnprobe.grammar.lists import spans  # noqa: E402
from attnprobe.inputs import survey  # noqa: E402
from attnprobe.inputs.hooks.call import AttentionCall  # noqa: E402
from attnprobe.inputs.hooks.capture import capture_all  # noqa: E402
from attnprobe.inputs.hooks.standins import only_length  # noqa: E402
from attnprobe.measure.error import ErrorRequest, measure_errors  # noqa: E402
from attnprobe.measure.inject import InjectRequest, measure_drift  # noqa: E402

CALL = 1e-6  # the largest distance of a call, and error of a head
MODEL = 4  # the largest drift, in units of the model's own rounding
LEAST = 1e-6  # of that rounding, if it is not known
N, PREFIX = 32, 16
COMMANDS = ("doctor", "error", "inject", "decode")
VERSIONS = f"transformers {transformers.__version__} and torch {torch.__version__.split('+')[0]}"
HEAD = f"""# Architectures

Made by `python benchmarks/architectures.py --write docs/reference/architectures.md` with {VERSIONS}
in float32, on small seeded models. Each model goes through `doctor`, `error --layer all`, and `inject` at once and with
`--phase decode`. Methods have their full budget, so that every number is rounding. A number in brackets is a line
below, which the command prints instead.

- *capture*: the distance of exact attention, rebuilt in float64 from a padded batch, from the model's own, and that of
  the outputs that `doctor` prints.
- *error*: the largest error of `topk` with all keys. *inject*: the largest drift of `softmax` and of `topk` with all
  keys; of `own` where modules approximate attention, because exact attention changes these models. *decode*: the drift
  of `topk` and `h2o` with the whole prompt. A drift is at most {MODEL} times the model's own rounding in float32, which
  is large in HRM.

| architecture | layers with attention | mask and extras | capture | error | inject | decode |
| --- | --- | --- | --- | --- | --- | --- |
"""
REFUSED = """
*Exact form*: the module computes an approximation, and the table is of the exact attention for which it stands.

Refused by name, because they compute no softmax of Q Kᵀ that multiplies V: """


@dataclass(frozen=True)
class Row:
    """What an architecture gives: its layers and masks, and of each command the largest number, or its line."""

    name: str
    layers: str
    masks: str
    capture: float | None
    rounding: float
    results: dict[str, float | str]

    def faults(self) -> list[str]:
        """What exceeds its goal, or is no line."""
        goals = {"doctor": CALL, "error": CALL, "inject": MODEL * self.rounding, "decode": MODEL * self.rounding}
        found = [] if self.capture is None or self.capture <= CALL else [f"capture {self.capture:.1e}"]
        for command, result in self.results.items():
            if isinstance(result, str):
                found += [f"{command}: {result}"] if not result or "\n" in result else []
            elif not result <= goals[command]:
                found.append(f"{command} {result:.1e}, goal {goals[command]:.1e}")
        return [f"{self.name}: {fault}" for fault in found]


def words(call: AttentionCall) -> str:
    """The mask of a call, and what else its attention has."""
    grouped = ["grouped keys"] if call.heads != call.kv_heads else []
    return ", ".join([str(call.pattern), *grouped, *call.extras(), *(["exact form"] if call.own is not None else [])])


def row(name: str, folder: Path) -> Row:
    """The row of an architecture, whose model is stored in ``folder``."""
    layers, masks, delta, own, stands = "", "", None, LEAST, False
    if name in tiny_models.CAPTURED:
        model = tiny_models.build(name)
        found, whole = capture_all(model, tiny_models.inputs(model))
        calls = list(found.values())
        delta = max(whole, *(call.delta for call in calls))
        stands = any(call.own is not None for call in calls)
        own = rounding(name)
        layers, masks = spans(sorted({call.layer for call in calls})), "; ".join(dict.fromkeys(map(words, calls)))
    here = Path.cwd()
    os.chdir(folder)  # lines name the model by its folder
    try:
        tiny_models.save(name, Path("model"))
        Path("text.txt").write_text(tiny_models.PROSE * 8)
        return Row(name, layers, masks, delta, own, {command: result_of(command, stands) for command in COMMANDS})
    finally:
        os.chdir(here)


def rounding(name: str) -> float:
    """The relative change of a model's outputs by other roundings: those of float64, and of another attention."""

    def in_float64(model):
        return model.double()

    def fused(model):
        model.set_attn_implementation("sdpa")
        return model

    batch = tiny_models.inputs(tiny_models.build(name), padded=False)
    own = tiny_models.hidden(tiny_models.build(name), batch).double()
    found = [LEAST]
    for change in (in_float64, fused):
        with suppress(RuntimeError, ValueError):  # some models have no such form
            model = change(tiny_models.build(name))
            given = {key: x.to(model.dtype) if x.is_floating_point() else x for key, x in batch.items()}
            got = tiny_models.hidden(model, given).double()
            found.append(float((got - own).norm() / own.norm()))
    return max(found)


def result_of(command: str, stands: bool) -> float | str:
    """The largest number of a command, or its line. ``stands``: whether modules approximate softmax attention."""
    given = {"model": "model", "text": "text.txt", "device": "cpu", "input_statistics": False, "layer": "all"}
    n = only_length(transformers.AutoConfig.from_pretrained("model")) or N
    errors = {"methods": ("topk",), "n": (n,), "d": (n,), "matrix": False, **given}
    drifts = {"methods": ("own",) if stands else ("softmax", "topk"), "n": (n,), "d": (n,), **given}
    steps = {**drifts, "methods": ("softmax",), "n": (N + 1,), "d": (PREFIX,), "prefix": PREFIX, "layer": None}
    made: dict[str, Callable[[], float | str]] = {
        "doctor": lambda: float(survey("model")[-1].rsplit(" ", 1)[1]),
        "error": lambda: largest(measure_errors(ErrorRequest(**errors, out="error")), "output_spectral_relative"),
        "inject": lambda: largest(measure_drift(InjectRequest(**drifts, out="inject")), "drift"),
        "decode": lambda: largest(measure_drift(InjectRequest(**steps, phase="decode", out="decode")), "drift"),
    }
    try:
        return made[command]()
    except AttnprobeError as line:
        kind = transformers.AutoConfig.from_pretrained("model").model_type
        return str(line).replace(f" {kind} ", " … ")  # so that models share it


def largest(session, metric: str) -> float | str:
    """The largest number of the cells that were measured; if none was, the reason of the first."""
    records = [record for record in session.outcome.records if not record.get("reference")]
    failed = [record["reason"] for record in records if record["status"] not in ("ok", "skipped")]
    found = [
        value
        for record in records
        if record["status"] == "ok"
        for row in record["rows"]
        if (value := row.get(metric)) is not None
    ]
    if failed:
        raise RuntimeError(failed[0])
    return max(found) if found else str(records[0]["reason"])


def table(rows: list[Row]) -> str:
    """The rows in Markdown, and the lines that stand in place of numbers."""
    lines: dict[str, int] = {}

    def cell(result: float | str) -> str:
        return f"{result:.0e}" if isinstance(result, float) else f"[{lines.setdefault(result, len(lines) + 1)}]"

    text = ""
    for one in rows:
        doctor = one.results["doctor"]
        capture = cell(doctor if one.capture is None or isinstance(doctor, str) else max(one.capture, doctor))
        others = " | ".join(cell(one.results[command]) for command in COMMANDS[1:])
        text += f"| {one.name} | {one.layers} | {one.masks} | {capture} | {others} |\n"
    return text + "\n" + "".join(f"{number}. {line}\n" for line, number in lines.items())


def refusal(name: str) -> str:
    """The name of a refused architecture; raises where the model is captured."""
    model = tiny_models.build(name)
    try:
        capture_all(model, tiny_models.inputs(model))
    except AttnprobeError:
        return name
    raise AssertionError(f"{name} was captured")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--write", type=Path, help="a file for the table; stdout without it")
    parser.add_argument("--only", help="architectures, comma-separated; all without it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ["ATTNPROBE_CACHE_SIZE"] = "0"
    rows = []
    for name in [*tiny_models.CAPTURED, *tiny_models.OTHERS] if args.only is None else args.only.split(","):
        with TemporaryDirectory() as folder:
            rows.append(row(name, Path(folder)))
        print(name, *rows[-1].faults(), sep="; ", file=sys.stderr)
    refused = ", ".join(map(refusal, tiny_models.REFUSED))
    text = f"{HEAD}{table(rows)}{REFUSED}{refused}.\n"
    if args.write is None:
        print(text, end="")
    else:
        args.write.write_text(text)
    faults = [fault for one in rows for fault in one.faults()]
    for fault in faults:
        print(fault, file=sys.stderr)
    captured = max((one.capture for one in rows if one.capture is not None), default=0.0)
    return finish(
        [
            Goal(f"largest distance of a capture over {len(rows)} architectures", captured, CALL, False),
            Goal("architectures with a wrong number or no line", float(len(faults)), 0.0, False),
        ],
        args.json,
    )


if __name__ == "__main__":
    sys.exit(main())
