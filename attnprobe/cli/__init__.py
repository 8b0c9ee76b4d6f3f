"""The command line: commands translate, the library works.

Nothing heavy is imported before a command's body runs, so ``attnprobe --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import AttnprobeError, cut, nearest
from ..grammar.foreign import diverted, message, reason
from ..machine.environment import variable
from ..measure import EXPERIMENTS, experiment
from .options import Context, unknown_variables
from .stopping import INTERRUPTED, TERMINATED, Terminated, heed_termination
from .streams import answer, answers_last, note, open_streams, unwritten

COMMANDS = {
    **{name: experiment(name).summary for name in EXPERIMENTS},
    "sweep": "Run one of these commands from a YAML file; resumable.",
    "compare": "Compare two runs cell by cell, and exit with 1 if the second is worse.",
    "report": "Rebuild every table and figure of a run from its rows, and one page with all of them.",
    "methods": "List the methods, or explain one with its options.",
    "new-method": "Write a file with a method and a test, to start your own from.",
    "check": "Check that a method has the properties that every method must have.",
    "extract": "Write Q, K and V to a safetensors file, or a pack of cases that test a kernel.",
    "accept": "Judge outputs that a kernel computed elsewhere on a pack of cases.",
    "select": "Write the keys that a sparse method selects to a safetensors file.",
    "cache": "List or clear the cache of captured Q, K and V.",
    "doctor": "Show devices, versions, and the default model and text.",
}

MODULES = {"new-method": "methods", "select": "extract"}  # commands in the module of another command

EXIT_CODES = (
    "Exit codes: 0 success; 1 a gate failed; 2 wrong usage or an impossible value; 3 a named source or device is "
    "missing or refused; 4 some cells failed or diverged, or an output could not be written; 130 interrupted; "
    "143 the same by SIGTERM."
)
OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory")  # torch's words for a CPU and for a GPU
HELP = {"help_option_names": ["-h", "--help"]}
LINE = 1000  # characters of a message about an option
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # too few descriptors, memory or processes


@cache
def _command(name: str) -> click.Command:
    """The command of a name. While it runs, stdout is diverted: only an `answer` is written there."""
    if name in EXPERIMENTS:
        from .factory import measuring_command

        command = measuring_command(experiment(name))
    else:
        module = import_module(f".{MODULES.get(name, name)}", __package__)
        command = getattr(module, name.replace("-", "_"))
    if command.callback is not None:
        command.callback = answers_last()(diverted()(command.callback))
    return command


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        command = _command(name)
        command.context_class = Context
        # a command that is called without the group needs them too
        command.context_settings = {**HELP, **command.context_settings}
        for option in command.params:
            if isinstance(option, click.Option) and option.envvar is None:
                option.envvar = variable(option.opts[0])
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args[0] not in COMMANDS:
            if ctx.resilient_parsing:  # a shell completes a line with an unknown command
                return None, None, []
            raise click.UsageError(f"no such command '{args[0]}'{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. click's own exit codes become errors of this project."""
        try:
            return super().invoke(ctx)
        except (SystemExit, BrokenPipeError) as error:
            # code of a user's method may raise SystemExit; that is no exit of ours
            raise RuntimeError(reason(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    epilog=EXIT_CODES,
    context_settings=HELP,
)
@click.version_option(__version__, prog_name="attnprobe")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Measure what an attention approximation does to real queries, keys and values.

    \b
    attnprobe error --method skyformer,nystromformer --n 4096 --d 64,128
    attnprobe spectrum --of softmax,gaussian,skyformer --layer all --plot
    attnprobe report outputs/RUN
    attnprobe methods skyformer
    attnprobe doctor
    """
    if ctx.invoked_subcommand is None:
        answer(ctx.get_help())
        ctx.exit(2)
    for line in unknown_variables(cli.get_command(ctx, name) for name in COMMANDS):
        note(line)


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. Only ``--debug`` shows a traceback.

    The answer is printed last. If the reader of stdout ends early, nothing changes. If the answer cannot be written for
    another reason, such as a full disk, the exit code is 4 in place of 0.
    """
    own_process = args is None
    args = sys.argv[1:] if args is None else args
    open_streams()
    if own_process:
        heed_termination()
    code = _run(args, debug="--debug" in args)
    if (lost := unwritten()) is not None:
        note(f"stdout: the output could not be written: {lost.strerror or lost}")
        # a failed gate (1) says more than an answer that was lost
        code = code or 4
    # after an interruption the process ends at once: clearing modules takes seconds, and Ray may crash meanwhile
    if own_process and code in (INTERRUPTED, TERMINATED):
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(args: list[str], debug: bool) -> int:
    """The exit code of a command. An exception becomes one line on stderr."""
    try:
        with answers_last():
            code = cli.main(args=args, prog_name="attnprobe", standalone_mode=False)
        return code if isinstance(code, int) else 0
    # the order matters: UsageError of click first, then interruptions, then our errors
    except click.ClickException as error:
        return _failed(f"{cut(error.format_message(), LINE)}{_help_hint(error)}", 2)
    except (KeyboardInterrupt, click.Abort) as stop:
        # the run may have said so already; click raises an Abort from the interrupt
        if "announced" not in (*stop.args, *getattr(stop.__cause__, "args", ())):
            note("interrupted")
        return TERMINATED if isinstance(stop.__cause__ or stop, Terminated) else INTERRUPTED
    except AttnprobeError as error:
        return _failed(message(error), error.exit_code, debug)
    except SystemExit:  # click exits so after it completed a line for a shell
        raise
    except BaseException as error:
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(message(error)):
            return _failed("out of memory; choose a smaller n or fewer heads", 4, debug)
        if getattr(error, "errno", None) in SCARCE:
            return _failed(f"{message(error)}: the machine or a limit of this shell is exhausted (see `ulimit -a`)", 4)
        return _failed(f"internal error, {reason(error)}; run again with --debug to see where", 70, debug)


def _failed(line: str, code: int, debug: bool = False) -> int:
    """Print one line on stderr, with ``--debug`` after the traceback."""
    if debug:
        traceback.print_exc()
    note(line)
    return code


def _help_hint(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return f" (see `{ctx.command_path} --help`)" if ctx is not None else ""
