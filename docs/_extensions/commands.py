"""The directive `commands`: every command of attnprobe with its usage, its help, its options and its columns.

Each command writes its own help into a formatter that makes nodes of it, so the page shows what ``--help`` shows. The
columns are those that the tables of a command may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attnprobe.cli import COMMANDS, cli
from attnprobe.measure import EXPERIMENTS, experiment
from attnprobe.show.shown import Catalogue
from attnprobe.show.table import Column


class Commands(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        parent = click.Context(cli, info_name="attnprobe")
        return [section_of(name, parent) for name in COMMANDS]


def section_of(name: str, parent: click.Context) -> nodes.section:
    command = cli.get_command(parent, name)
    assert command is not None
    formatter = NodeFormatter()
    command.format_help(click.Context(command, info_name=name, parent=parent), formatter)
    section = nodes.section(ids=[nodes.make_id(name)], names=[name])
    section += [nodes.title("", f"attnprobe {name}"), *formatter.nodes]
    columns = columns_of(name)
    if columns:
        section += [nodes.rubric("", "Columns"), table_of(legend_rows(columns))]
    return section


def columns_of(name: str) -> Sequence[Column]:
    """All columns that the tables of a command may have."""
    if name in EXPERIMENTS:
        return experiment(name).catalogue.columns
    return Catalogue.of("compare").columns if name == "compare" else ()


def legend_rows(columns: Sequence[Column]) -> list[tuple[str, str]]:
    """A name of a column and all that it means, once for each meaning.

    A column without a meaning has a row only if no other column of its name has one.
    """
    texts = {(column.name, legend_text(column)): None for column in columns}
    explained = {name for name, text in texts if text}
    return [(name, text) for name, text in texts if text or name not in explained]


def legend_text(column: Column) -> str:
    """The heading of a column where it is not its name, and its meaning."""
    heading = column.title if column.title != column.name else ""
    return "; ".join(filter(None, [heading, column.meaning]))


class NodeFormatter(click.HelpFormatter):
    """Keeps what a command writes as help, as nodes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[nodes.Node] = []
        self.preformatted = False

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.nodes.append(nodes.literal_block("", f"{prog} {args}"))

    def write_text(self, text: str) -> None:
        for paragraph in text.split("\n\n"):
            if self.preformatted or paragraph.startswith("\b"):
                self.write_block(paragraph.removeprefix("\b").strip("\n"))
            else:
                self.nodes.append(nodes.paragraph("", " ".join(paragraph.split())))

    def write_block(self, text: str) -> None:
        """Lines as they stand; those of one section share a block."""
        if self.preformatted and isinstance(self.nodes[-1], nodes.literal_block):
            text = f"{self.nodes.pop().astext()}\n{text}"
        self.nodes.append(nodes.literal_block("", text))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        self.nodes.append(table_of(rows))

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.nodes.append(nodes.rubric("", name))
        self.preformatted = name in ("Examples", "In Python")
        yield
        self.preformatted = False


def table_of(rows: Sequence[tuple[str, str]]) -> nodes.table:
    table = nodes.table()
    group = nodes.tgroup(cols=2)
    group += [nodes.colspec(colwidth=35), nodes.colspec(colwidth=65)]
    body = nodes.tbody()
    for names, text in rows:
        row = nodes.row()
        row += nodes.entry("", nodes.paragraph("", "", nodes.literal("", names)))
        row += nodes.entry("", nodes.paragraph("", text))
        body += row
    group += body
    table += group
    return table


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
