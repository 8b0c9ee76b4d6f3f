"""The directive `commands`: every command of attnprobe with its usage, its help and its options.

They are read from the click commands, so the page always shows the options that the program takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attnprobe.cli import COMMANDS, cli


class Commands(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        context = click.Context(cli, info_name="attnprobe")
        return [self.section(cli.get_command(context, name), context) for name in COMMANDS]

    def section(self, command: click.Command | None, parent: click.Context) -> nodes.section:
        assert command is not None and command.name is not None
        context = click.Context(command, info_name=command.name, parent=parent)
        node = nodes.section(ids=[nodes.make_id(command.name)], names=[command.name])
        node += nodes.title("", f"attnprobe {command.name}")
        node += nodes.literal_block("", command.get_usage(context).removeprefix("Usage: "))
        for paragraph in (command.help or "").split("\n\n"):
            node += self.paragraph(paragraph)
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        for group, members in grouped(options).items():
            if group:
                node += nodes.paragraph("", "", nodes.strong("", group))
            node += option_table(members, context)
        if command.epilog:
            node += self.paragraph(command.epilog)
        return node

    def paragraph(self, text: str) -> nodes.Node:
        """A paragraph of click's help; one that opens with ``\\b`` keeps its lines."""
        if text.startswith("\b"):
            return nodes.literal_block("", text.removeprefix("\b").strip("\n"))
        return nodes.paragraph("", " ".join(text.split()))


def grouped(options: list[click.Option]) -> dict[str, list[click.Option]]:
    """The options by the heading that ``--help`` shows them under."""
    groups: dict[str, list[click.Option]] = {}
    for option in options:
        groups.setdefault(getattr(option, "group", None) or "", []).append(option)
    return groups


def option_table(options: list[click.Option], context: click.Context) -> nodes.table:
    table = nodes.table(classes=["options"])
    group = nodes.tgroup(cols=2)
    table += group
    group += [nodes.colspec(colwidth=35), nodes.colspec(colwidth=65)]
    body = nodes.tbody()
    group += body
    for names, text in rows(options, context):
        row = nodes.row()
        row += nodes.entry("", nodes.paragraph("", "", nodes.literal("", names)))
        row += nodes.entry("", nodes.paragraph("", text))
        body += row
    return table


def rows(options: list[click.Option], context: click.Context) -> Iterator[tuple[str, str]]:
    """The two columns that ``--help`` shows of each option."""
    for option in options:
        record = option.get_help_record(context)
        if record is not None:
            yield record


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
