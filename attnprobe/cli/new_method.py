"""``attnprobe new-method``."""

from __future__ import annotations

import click

from .options import debug_option

EPILOG = """\b
In Python:
  from attnprobe.methods.user.scaffold import write_method
  write_method("mine", "methods")
\b
Exit codes: 0 written, 2 an impossible name, or a file that exists already."""


@click.command("new-method", epilog=EPILOG)
@click.argument("name", metavar="NAME")
@click.option("--out", default=".", show_default=True, metavar="DIR", help="The folder for the files.")
@debug_option
def command(name: str, out: str, debug: bool) -> None:
    """Write NAME.py, a method that works, and test_NAME.py, its test. Replace the method by your own.

    Prints the next commands: measure, check and test it. Existing files are never overwritten.
    """
    from shlex import quote

    from ..methods.user.scaffold import write_method
    from .streams import answer, echo

    method, test = write_method(name, out)
    shown = quote(f"{method if method.is_absolute() else f'./{method}'}:{name}")
    answer(f"{method}\n{test}")
    for line in (f"attnprobe error --method {shown} --d 16,32,64 --plot", f"attnprobe check {shown}", f"pytest {test}"):
        echo(f"  {line}", err=True)
