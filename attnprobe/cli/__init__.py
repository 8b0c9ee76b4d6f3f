"""The command line: commands translate, the library works.

Nothing heavy is imported before a command's body runs, so ``attnprobe --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module

import click

from .. import __version__
from ..errors import AttnprobeError, nearest

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "error": "Measure how far a method's output lies from exact attention.",
    "spectrum": "Compute singular values and effective ranks of attention matrices.",
    "condition": "Condition numbers of attention matrices and of the cores that methods invert.",
    "theory": "What the papers' theorems assume, promise and reach, with a verdict head by head.",
    "budget": "Find the smallest budget of each head at which a method's error is at most ε.",
    "bench": "Measure what each method costs beside exact attention, and how the cost grows.",
    "inject": "Put a method in place of a model's attention, and measure what the model loses.",
    "stability": "Train with each method as the attention, and measure how far each step moves the embedding.",
    "sweep": "Run one of these from a YAML file, and go on where it was stopped.",
    "compare": "Compare two runs cell by cell, and exit 1 where the second is worse.",
    "report": "Rebuild every table and figure of a run from its records, and a page of them all.",
    "methods": "List the methods, or explain one with its options.",
    "new-method": "Write a method's file and its test, to start from.",
    "check": "Check what every method must do, on a method of yours.",
    "extract": "Write Q, K and V with their provenance to a safetensors file.",
    "doctor": "Show devices, versions, sources and what the defaults resolve to.",
}

SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # descriptors, memory, processes


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(f"attnprobe.cli.{name.replace('-', '_')}").command
        for option in command.params:
            if isinstance(option, click.Option) and option.envvar is None:
                option.envvar = f"ATTNPROBE_{option.opts[0].lstrip('-').replace('-', '_').upper()}"
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"no such command '{args[0]}'{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="attnprobe")
def cli() -> None:
    """Measure what an attention approximation does to real queries, keys and values.

    \b
    attnprobe error --method skyformer,nystromformer --n 4096 --d 64,128
    attnprobe spectrum --of softmax,gaussian,skyformer --layer all --plot
    attnprobe report outputs/RUN
    attnprobe methods skyformer
    attnprobe doctor
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code; a traceback is shown only with ``--debug``."""
    args = sys.argv[1:] if args is None else args
    _open_streams()
    try:
        _dispatch(args, debug="--debug" in args)
    finally:
        _settle_stderr()


def _dispatch(args: list[str], debug: bool) -> None:
    """Run a command and turn whatever it raises into one line and an exit code."""
    try:
        code = cli.main(args=args, prog_name="attnprobe", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        _stop(f"{error.format_message()}{_help_hint(error)}", 2)
    except (KeyboardInterrupt, click.Abort) as stop:
        if "told" not in (*stop.args, *getattr(stop.__cause__, "args", ())):  # click raises an Abort from it
            _told("interrupted")
        _leave(130)
    except AttnprobeError as error:
        if debug:
            raise
        _stop(str(error), error.exit_code)
    except MemoryError:
        if debug:
            raise
        _stop("out of memory; choose a smaller n or fewer heads", 4)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        if getattr(error, "errno", None) in SCARCE:
            _stop(f"{error}: the machine or a limit of this shell (see `ulimit -a`) gives no more", 4)
        first = str(error).strip().split("\n")[0]
        _stop(f"internal error, {type(error).__name__}: {first}; run again with --debug to see where", 70)
    sys.exit(code if isinstance(code, int) else 0)


def _told(line: str) -> None:
    """One line on stderr."""
    with suppress(OSError):
        click.echo(f"attnprobe: {' '.join(line.split())}", err=True)


def _stop(line: str, code: int) -> None:
    """One line on stderr, and the exit code."""
    _told(line)
    sys.exit(code)


def _leave(code: int) -> None:
    """Exit; at once where Ray's threads are in the middle of something, which may crash an interpreter that ends."""
    if "ray" in sys.modules:
        _settle_stderr()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def _settle_stderr() -> None:
    """Drop a stderr that cannot be written to: flushing it at exit would turn the exit code into 120."""
    try:
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _open_streams() -> None:
    """Make stdout and stderr usable where they are closed, or encode less than what tables hold."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the process ends)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _help_hint(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return f" (see `{ctx.command_path} --help`)" if ctx is not None else ""
