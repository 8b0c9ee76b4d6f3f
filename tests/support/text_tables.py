"""Tables of text, without rows behind them."""

from collections.abc import Sequence

from attnprobe.tables.table import Column, Table


def text_table(
    caption: str,
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> Table:
    """A table of these cells; ``spare`` are headings that a narrow terminal goes without, in this order."""
    ranks = {heading: len(spare) - place for place, heading in enumerate(spare)}
    columns = [Column(heading, str, f"what {heading} is", ranks.get(heading, 0)) for heading in headings]
    return Table(caption, columns, lines, notes)
