"""``attnprobe accept``: an acceptance test for kernels that ran elsewhere."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from ..frame.metric import ACCEPT
from .options import as_shown, check_shown, limits_options, output_of, shown_options

METRICS = textwrap.fill(", ".join(metric.name for metric in ACCEPT), 76, initial_indent="  ", subsequent_indent="  ")
EPILOG = f"""\b
Examples:
  attnprobe extract --pack full --out full.safetensors
  attnprobe accept full.safetensors outputs.safetensors --junit kernel.xml
  attnprobe accept full.safetensors outputs.safetensors --fail-above ratio_to_framework.max=2
  attnprobe accept full.safetensors outputs.safetensors --fail-above 'excess.max=0.5 for case=causal.bf16'
\b
In Python:
  from attnprobe.testing.packs import judged, read_outputs, read_pack
  pack = read_pack("full.safetensors")
  judged(pack, read_outputs("outputs.safetensors", pack)).failed
\b
--fail-above and --fail-below take statistics over the heads of a case
(mean, se, median, p10, p90, min, max) of:
{METRICS}
\b
docs/guide/accept.md has the tolerance and three worked kernels.
\b
Exit codes: 0 all cases pass; 1 a case is wrong or missing, or beyond a limit; 2 wrong usage; 3 a file that
cannot be read, or outputs of another pack, shape or dtype."""


@click.command("accept", epilog=EPILOG)
@click.argument("pack", metavar="PACK")
@click.argument("outputs", metavar="OUTPUTS")
@limits_options
@click.option(
    "--junit", metavar="FILE", help="Write a test case for each case of the pack and each limit as JUnit XML, for CI."
)
@shown_options
def accept(
    pack: str, outputs: str, gates: tuple[str, ...], floors: tuple[str, ...], junit: str | None, **shown: Any
) -> None:
    """Judge outputs that a kernel computed elsewhere, and exit with 1 if one is wrong.

    PACK is a file of `attnprobe extract --pack`. OUTPUTS is a safetensors file with a tensor CASE.o for each case, the
    output (heads, n_q, p_v) in the dtype of the case or a wider one, and CASE.lse, the log-sum-exp (heads, n_q), if
    the kernel returns it. An entry is wrong if it differs from the exact one by more than rounding in the kernel's
    dtype allows. A missing case is wrong. --fail-above and --fail-below set further limits for every case.
    """
    from ..judge.gates import PLACES, Gated, check
    from ..judge.junit import Case, check_report
    from ..judge.outcomes import gate_cases
    from ..show.header import Header
    from ..show.shown import Catalogue, Shown
    from ..testing.packs import judged, read_outputs, read_pack
    from .output import judge_gates, keep_cases, limits_of
    from .streams import answer

    output, catalogue = output_of(**shown), Catalogue.of("accept")
    check_shown(output, lambda: [catalogue])
    gated = Gated(ACCEPT, subjects=("case",), without=("method", *PLACES))
    limits = [*limits_of(gated, gates, floors).values()]
    # before the pack is judged, which takes seconds
    if junit is not None:
        check_report(junit)
    cases = read_pack(pack)
    result = judged(cases, read_outputs(outputs, cases))
    facts = {"pack": cases.name, "id": cases.id, "outputs": outputs}
    header = Header(facts, [f"{name}: {fact}" for name, fact in facts.items()])
    view = Shown("accept", catalogue, lambda kind: result.frame, header)
    answer(view.text(**as_shown(output)), styled=output.format_ == "table")
    wrong, results = result.failed, check(view.gate_lines, limits)
    failed = judge_gates(results, limits, None) or bool(wrong)
    lines = [Case("accept", case.name, wrong.get(case.name, ""), "wrong") for case in cases.cases]
    keep_cases([*lines, *gate_cases(results)], "accept", junit, failed)
    raise click.exceptions.Exit(1 if failed else 0)
