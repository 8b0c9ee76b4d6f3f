"""``attnprobe sweep``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError, unknown
from ..measure import EXPERIMENTS, experiment
from ..run.option import Option
from ..run.sweeps.yaml_file import Config, packaged_sweeps, read_config, sweep_file
from .factory import options_in
from .options import request_and_output
from .output import refuse_impossible
from .streams import answer

EPILOG = """\b
A file has the long option names of a command, and their values:
  command: error            # the default
  weights: [pretrained, initialized-qkv]
  method:
    - nystromformer
    - {name: skyformer, options: {sampler: rls}}
  n: [512, 1024]
  d: [16, 32, 64, 128, 256]
  layer: 0-5
  windows: 4
  scale-inputs: [1, 4]
  plot: [errors, maps]
  gates:
    - {metric: output_spectral_relative, stat: median, max: 0.3}
\b
Examples:
  attnprobe sweep smoke --n 512 --out runs/smoke
\b
In Python:
  from attnprobe.measure.error import ErrorRequest, measure_errors
  run = measure_errors(ErrorRequest(methods=("skyformer",), n=(512, 1024), out="runs/one"))
  run.outcome.records"""


@click.command("sweep", epilog=EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("file", metavar="FILE", required=False)
@click.option(
    "--list", "listing", is_flag=True, help="List the packaged sweeps and exit. FILE may be one of their names."
)
@click.option("--dry-run", is_flag=True, help="Print the cells, how many are done, and an estimate of time and memory.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE COMMAND]")
@click.pass_context
def sweep(ctx: click.Context, file: str | None, listing: bool, dry_run: bool, options: tuple[str, ...]) -> None:
    """Run a command from a YAML file.

    Options after FILE override the environment, which overrides the file.

    FILE is a path or the name of a packaged sweep: those of the papers' figures, and `smoke`, which takes seconds.

    A sweep that was stopped continues when it is started again. Its rows are those of an uninterrupted run, except
    for times. A cell fails if its method raises an exception, takes longer than --cell-timeout or returns values that
    are not finite. It becomes a row with the reason. The sweep continues and exits with 4.
    """
    if file is None and listing:
        width = max(map(len, packaged_sweeps()))
        return answer("\n".join(f"{name:{width}}  {line}" for name, line in packaged_sweeps().items()))
    if file is None:
        raise UsageError("sweep: name a FILE or a packaged sweep (`attnprobe sweep --list`)")
    config = read_config(sweep_file(file), settings_of)
    from . import cli

    chosen = cli.get_command(ctx, config.command)
    options = (*options, "--list") if listing else options  # with a FILE, --list is the command's own option
    sub = chosen.make_context(config.command, list(options), parent=ctx.parent, default_map=dict(config.values))
    # the folder follows from the settings, so that the same sweep finds its own run again
    if sub.params["out"] is None:
        sub.params["out"] = str(folder(config, sub.params))
    sub.obj = config
    with sub:
        request, _ = request_and_output(experiment(config.command))
        _check_gates(config, request)
        sub.params["dry_run"] |= dry_run
        chosen.invoke(sub)


def _check_gates(config: Config, request: Any) -> None:
    """Refuse malformed gates and gates that no run of these settings can pass."""
    if not config.gates:
        return
    gated = experiment(config.command).gated
    if gated is None:
        where = f"{config.path}:{config.lines['gates']}"
        others = [name for name in EXPERIMENTS if experiment(name).gated is not None]
        raise UsageError(f"{where}: {config.command} takes no gates; {', '.join(others)} take them")
    from ..judge.parse import parse_gates

    gates = parse_gates(config.gates, gated, config.places)
    refuse_impossible(dict(zip(config.places, gates, strict=True)), request)


def folder(config: Config, params: Mapping[str, Any]) -> Path:
    """The default folder of a sweep: equal settings have equal folders."""
    from ..frame.records.file import cell_key

    options = {option.name: option for option in options_in(experiment(config.command))}
    settings = {name: text for name, text in params.items() if options[name].names_folder(text)}
    return Path("outputs") / f"{config.path.stem}-{cell_key(command=config.command, settings=settings)[:6]}"


def settings_of(name: str) -> dict[str, Option]:
    """The options of a command that a file may set, by each of their names."""
    if name not in EXPERIMENTS:
        raise unknown("command", name, EXPERIMENTS)
    return {key: option for option in options_in(experiment(name)) if option.in_file for key in option.keys}
