"""``attnprobe check``."""

from __future__ import annotations

from typing import Any

import click

from .options import debug_option, format_option

EPILOG = """\b
In Python:
  from attnprobe.testing import check_method
  check_method("./mine.py:fn")          # or the function; raises if a property fails
\b
If a property fails, smaller inputs are tried as long as it fails. The smallest failing
case is shown with the command that repeats it. A property with the name of a tag applies
only to methods with this tag.
\b
Exit codes: 0 all properties hold, 1 one fails, 2 wrong usage, or a file that cannot be
loaded."""

SIZES = (
    ("n", "n", "number of tokens"),
    ("h", "heads", "number of heads"),
    ("p", "p", "head dimension"),
    ("p_v", "p-v", "value dimension"),
    ("d", "d", "budget"),
)


def _sizes(function: Any) -> Any:
    """A decorator that gives a command the options of `SIZES`."""
    for name, option, size in reversed(SIZES):
        sized = click.option(
            f"--{option}", name, type=click.IntRange(1, 4096), metavar="NUMBER", help=f"Only inputs with this {size}."
        )
        function = sized(function)
    return function


@click.command("check", epilog=EPILOG)
@click.argument("method", metavar="NAME|FILE:FN[:k=v,…]")
@click.option(
    "--only", multiple=True, metavar="PROPERTY", help="Only these properties; repeatable and comma-separated."
)
@click.option("--target", metavar="softmax|gaussian", help="Only this target. [default: all targets of the method]")
@_sizes
@click.option(
    "--score", type=click.FloatRange(0, min_open=True), metavar="SIZE", help="Only scores with this standard deviation."
)
@click.option("--dtype", metavar="float64|float32|bfloat16|float16", help="Only this dtype.")
@click.option("--seed", type=int, metavar="NUMBER", help="Seed of the inputs and of the method's draws. [default: 0]")
@format_option
@debug_option
def check(
    method: str, only: tuple[str, ...], target: str | None, dtype: str | None, format_: str, debug: bool, **sizes: Any
) -> None:
    """Check the properties that every method must have: shapes, dtypes, draws, heads, padding and claims.

    NAME is a method's name. FILE:FN is a function in a Python file, such as ./mine.py:fn. Inputs are small and seeded,
    so a check takes seconds.
    """
    from dataclasses import asdict

    from ..show.formats import check_format
    from ..show.listing import listing

    check_format(format_)  # before torch is imported
    from ..errors import unknown
    from ..qkv import DTYPES
    from ..testing import examine
    from ..testing.examine import conformance_table
    from .progress import progress_bar
    from .streams import answer

    fixed = {name: value for name, value in sizes.items() if value is not None}
    if dtype is not None:
        dtypes = {str(known).removeprefix("torch."): known for known in DTYPES}
        if dtype not in dtypes:
            raise unknown("dtype", dtype, dtypes)
        fixed["dtype"] = dtypes[dtype]
    names = [name.strip() for text in only for name in text.split(",")]
    with progress_bar() as (progress, _):
        found = examine(method, only=names, target=target, fixed=fixed, progress=progress)
        properties = [asdict(examined) for examined in found]
    if format_ == "table":
        answer(conformance_table(properties))
    else:
        answer(listing("check", properties, format_))
    raise click.exceptions.Exit(1 if any(examined["status"] == "failed" for examined in properties) else 0)
