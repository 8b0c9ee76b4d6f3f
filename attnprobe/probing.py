"""`probe`: any measuring command in one call, from options to the run that was read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from .errors import unknown
from .grammar.arguments import checked
from .measure import EXPERIMENTS, experiment
from .show.page import Run, open_run


@checked()
def probe(command: str, **options: Any) -> Run:
    """Measure what a command measures, and read its run.

    The same options with the same ``out`` resume a run.

    Args:
        command: a measuring command, such as ``error``. options: fields of the command's request, such as
            ``methods=("skyformer",), d=(16, 32), out="runs/first"``; the others have their defaults.

    Returns:
        The run: `Run.frame` has its rows, `Run.plot` draws its figures.

    Raises:
        UsageError: an unknown command or option, or an impossible value. SourceError: a model, text or file that cannot
            be read.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> folder = tempfile.mkdtemp()
    >>> save_file({name: torch.randn(2, 32, 8) for name in "qkv"}, f"{folder}/own.safetensors")
    >>> run = probe("error", qkv=f"{folder}/own.safetensors", methods=("skyformer",), d=(4,), out=f"{folder}/run")
    >>> len(run.frame().query("method == 'skyformer'"))
    2
    """
    if command not in EXPERIMENTS:
        raise unknown("command", command, EXPERIMENTS)
    known = [option.name for option in fields(experiment(command).request)]
    for name in options:
        if name not in known:
            raise unknown(f"option of {command}", name, known)
    return open_run(experiment(command).measure(experiment(command).request(**options)).path)
