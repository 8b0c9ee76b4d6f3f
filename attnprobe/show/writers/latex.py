"""Grids for LaTeX with booktabs, methods × d where a table has several d."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...frame.metric import METRICS
from ...grammar.foreign import one_line
from ..grid import USUAL, Cell, Grid
from ..notes import notes
from ..table import KEY, Column
from .text import cell_text

SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"<": "$<$", ">": "$>$", "−": "$-$", "–": "--", "…": r"\dots{}"},
}
SYMBOLS = {  # signs whose command does not follow from their name in Unicode
    **{
        "±": "pm",
        "×": "times",
        "÷": "div",
        "·": "cdot",
        "≤": "le",
        "≥": "ge",
        "≈": "approx",
        "⪯": "preceq",
        "∞": "infty",
    },
    **{
        "‖": "|",
        "√": "surd",
        "∂": "partial",
        "∇": "nabla",
        "∈": "in",
        "∩": "cap",
        "∘": "circ",
        "→": "to",
        "✗": "times",
    },
    **{"⌊": "lfloor", "⌋": "rfloor", "⟨": "langle", "⟩": "rangle", "●": "bullet", "✓": "checkmark", "ε": "varepsilon"},
}
ACCENTS = {"\u0304": "bar", "\u0302": "hat", "\u0303": "tilde"}  # signs that combine with the letter before
SHIFTED = {"<sub>": "_", "<super>": "^"}


def letter(character: str) -> str:
    """A character in LaTeX. A character that stays as it is needs utf8 input.

    >>> letter("λ"), letter("Σ"), letter("⁻"), letter("₂"), letter("⪯"), letter("_"), letter("Ā"), letter("a")
    ('$\\\\lambda$', '$\\\\Sigma$', '$^{-}$', '$_{2}$', '$\\\\preceq$', '\\\\_', '$\\\\bar{A}$', 'a')
    """
    if character in SPECIAL:
        return SPECIAL[character]
    if character in SYMBOLS:
        return f"$\\{SYMBOLS[character]}$"
    kind, *codes = unicodedata.decomposition(character).split() or [""]
    # Unicode decomposes ₂ into <sub> 2, and Ā into A and its accent
    if kind in SHIFTED:
        return f"${SHIFTED[kind]}{{{chr(int(codes[0], 16)).replace('−', '-')}}}$"
    # letters of Latin-1, such as ñ, are words and no symbols with a tilde
    if len(codes) == 1 and (accent := ACCENTS.get(chr(int(codes[0], 16)))) and ord(character) > LATIN:
        return f"$\\{accent}{{{chr(int(kind, 16))}}}$"
    words = unicodedata.name(character, "").split()
    if words[:1] == ["GREEK"]:
        name = words[-1].replace("LAMDA", "LAMBDA").lower()
        return f"$\\{name if 'SMALL' in words else name.capitalize()}$"
    return character


LATIN = 0xFF  # the last letter of Latin-1, which LaTeX reads


def latex(grids: Iterable[Grid], pivot: bool = True) -> str:
    """The tables for LaTeX with booktabs. A grid with several d and a main column becomes methods × d.

    Args:
        pivot: if false, every grid has a line for each d, with all columns.
    """
    return "\n\n".join(_latex(grid, pivot) for grid in grids) + "\n"


def _latex(grid: Grid, pivot: bool) -> str:
    budgets = dict.fromkeys(keys["d"] for keys in grid.keys if keys.get("d") is not None)
    main = next((column for column in grid.columns if column.name == grid.table.main), None)
    if pivot and main is not None and len(budgets) > 1:
        names = [column for column in grid.columns if column.priority == KEY and column.value != "d"]
        grid = grid.only([*names, main])
        caption, body = _by_budget(grid, list(budgets))
    else:
        caption, body = escaped(grid.table.title), _line_by_line(grid)
        caption += f", {METRICS[grid.table.metric].tex}" if grid.table.metric else ""
    sentences = [f"{caption}: {escaped(grid.where)}." if grid.where else f"{caption}."]
    sentences += [f"{escaped(note)}." for note in notes(grid, "Bold")]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{' '.join(sentences)}}}",
            rf"\label{{tab:{label(grid)}}}",
            *body,
            r"\end{table}",
        ]
    )


def label(grid: Grid) -> str:
    """A label from the name of the table and the place of the grid."""
    values = [f"{name}-{value}" for name, value in grid.place.items() if value not in (None, "", USUAL.get(name))]
    return re.sub(r"[^A-Za-z0-9.:-]+", "-", "-".join([grid.table.name, *values])).strip("-")


def _by_budget(grid: Grid, budgets: Sequence[Any]) -> tuple[str, list[str]]:
    """Methods × d: the caption, and a table with the names and, for each budget, the numbers of the last column."""
    *keyed, main = grid.columns
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for (*names, number), keys in zip(grid.cells, grid.keys, strict=True):
        name = tuple(_latex_cell(replace(cell, flag=None), column) for cell, column in zip(names, keyed, strict=True))
        # the sign of a line stands at its number, because the method may have no sign at another d
        flag = names[0].flag if names and number.flag is None else number.flag
        lines.setdefault(name, {})[keys.get("d")] = _latex_cell(replace(number, flag=flag), main)
    rows = []
    for name, cells in lines.items():
        # a method without a budget has one number for all of them
        if None in cells:
            rows.append([*name, rf"\multicolumn{{{len(budgets)}}}{{c}}{{{cells[None]}}}"])
        else:
            rows.append([*name, *(cells.get(d, "") for d in budgets)])
    first = [*([""] * len(keyed)), rf"\multicolumn{{{len(budgets)}}}{{c}}{{$d$}}"]
    rule = rf"\cmidrule(lr){{{len(keyed) + 1}-{len(keyed) + len(budgets)}}}"
    heads = [*map(heading, keyed), *map(str, budgets)]
    of, statistic = (main.metric.tex, main.name.partition(".")[2]) if main.metric else (heading(main), "")
    caption = ", ".join(filter(None, [escaped(grid.table.title), of, statistic]))
    return caption, _tabular("l" * len(keyed) + "r" * len(budgets), [first, rule, heads], rows)


def _line_by_line(grid: Grid) -> list[str]:
    rows = [
        [_latex_cell(cell, column) for cell, column in zip(cells, grid.columns, strict=True)] for cells in grid.cells
    ]
    return _tabular("".join("l" if left else "r" for left in grid.words), [[*map(heading, grid.columns)]], rows)


def _tabular(alignment: str, heads: Iterable[str | Sequence[str]], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [line if isinstance(line, str) else f"{' & '.join(line)} \\\\" for line in heads]
    body = [f"{' & '.join(row)} \\\\" for row in rows]
    return [
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        *lines,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def heading(column: Column) -> str:
    """The heading of a column in LaTeX: its own, or its words with the metric's symbol in the metric's LaTeX."""
    if column.tex:
        return column.tex
    symbol = column.metric.symbol if column.metric else ""
    before, found, after = column.title.partition(symbol) if symbol else (column.title, "", "")
    return escaped(before) + (column.metric.tex if found and column.metric else "") + escaped(after)


def _latex_cell(cell: Cell, column: Column) -> str:
    text = escaped(cell_text(replace(cell, flag=None), column))
    text = re.sub(r"(?<![\w.])([+-]?\d[\d.]*)e(-?\d+)", r"$\1\\times10^{\2}$", text)
    text = rf"\textbf{{{text}}}" if cell.bold else text
    # a sign takes no room, so that numbers stay aligned
    return rf"{text}\rlap{{$^{{{escaped(cell.flag.sign).strip('$')}}}$}}" if cell.flag else text


def escaped(text: str) -> str:
    r"""Text on one line for LaTeX.

    >>> escaped("50% of d_k ≤ 3, ‖C\u0304‖"), escaped("σ₁ Bᵀ")
    ('50\\% of d\\_k $\\le$ 3, $\\|$$\\bar{C}$$\\|$', '$\\sigma$$_{1}$ B$^{T}$')
    """
    parts = re.split(f"(.[{''.join(ACCENTS)}])", one_line(text))
    return "".join(
        f"$\\{ACCENTS[part[1]]}{{{part[0]}}}$" if part[1:] in ACCENTS else "".join(map(letter, part)) for part in parts
    )
