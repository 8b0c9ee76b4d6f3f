"""Tables as LaTeX that can be pasted into a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..grammar.foreign import one_line
from .console import Header
from .marks import SIGNS, marks_legend
from .table import Column, Table, legend_of

TEXT = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "[": "{[}",
}
LETTERS = (
    *("alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"),
    *("xi", "omicron", "pi", "rho", "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"),
)
SYMBOLS = {
    **{chr(ord("α") + place): rf"\{name}" for place, name in enumerate(LETTERS)},
    **{letter: f"_{digit}" for digit, letter in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **{letter: f"^{digit}" for digit, letter in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    "<": "<",
    ">": ">",
    "−": "-",
    "‖": r"\|",
    "≤": r"\leq",
    "≥": r"\geq",
    "⪯": r"\preceq",
    "≈": r"\approx",
    "±": r"\pm",
    "×": r"\times",
    "·": r"\cdot",
    "✗": r"\times",
    "√": r"\surd",
    "∞": r"\infty",
    "∂": r"\partial",
    "∇": r"\nabla",
    "●": r"\bullet",
    "½": r"\frac12",
    "Δ": r"\Delta",
    "Θ": r"\Theta",
    "Σ": r"\Sigma",
    "Φ": r"\Phi",
    "∈": r"\in",
    "∩": r"\cap",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
    "ᵀ": r"^\top",
    "⁺": "^+",
    "⁻¹": "^{-1}",
    "ln ": r"\ln",
    "→": r"\to",
}
BAR, HAT = "\u0304", "\u0302"  # above the letter before it
GREEK = "α-ωΔΘΣΦ"
MARK = rf"(?:[{BAR}{HAT}~ᵀ⁺⁰¹²³⁴-⁹₀-₉]|⁻¹|_[A-Zijkmqv])"
ATOM = rf"(?:ln )?(?:[{GREEK}]\d*|[∂∇√]|(?!a\b)[A-Za-z](?![A-Za-z0-9])){MARK}*"  # n, D~, σ₁, A_S; of words none
NUMBER = r"(?:∞|\d+(?:\.\d+)*(?:e[+-]?\d+)?)"
TERM = rf"[−+-]?(?:(?:{ATOM})+|{NUMBER})"
RUN = rf"(?:[<>≤≥] ?)?{TERM}(?:(?:·| ?[=+−/<>≤≥±] ?){TERM})*"
NORM = r"‖[A-Za-z~∂⁻¹/_ −·]+‖(?:₂|_?F)?²?"
ALONE = "".join(symbol for symbol in SYMBOLS if len(symbol) == 1)
MATH = re.compile(
    "|".join(
        [
            rf"{NORM}(?: ?/ ?(?:{NORM}|√d))?",
            r"\|[A-Za-z0-9~/ −]+\|",
            rf"(?<![\w.'’:-]){RUN}(?![\w'’-]|[:.]\w)",  # not in names of files, nor in V-Mean
            f"[{ALONE}]",
        ]
    )
)
AT_MOST_A_LINE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
AT_MOST_A_PAGE = r"\resizebox*{!}{\ifdim\totalheight>0.85\textheight 0.85\textheight\else\totalheight\fi}"
MOST_IN_A_LINE = 50  # letters of a cell
WORD = re.compile(r"[^\s,:;()\[\]]+")
NAMES = re.compile(r"[^.:]{1,60}(?=: )")  # what a sentence of a legend explains
UP_TO_N = re.compile(r".*?\bn = \d+|.*")  # of a caption: what comes behind is as in the other tables
PLAIN = re.compile(r"[\d./ ]*")  # numbers that are the same in text


def latex(
    tables: Sequence[Table],
    legend: Sequence[str],
    header: Header,
    run: str | None,
    label: str,
    title: str = "",
    columns: Sequence[str] = (),
) -> str:
    """Tables as LaTeX to be pasted: a caption, the columns of an answer and a note on them and on marks.

    A note of a table that begins with a mark is part of that note. Its other notes and further facts on columns are
    comments. Needs T1 or UTF-8 input, as LaTeX has since 2018.

    Args:
        legend: sentences before those on columns; one that begins with names, ``A, B: …``, stands where they do.
        label: what the tables' labels begin with (see `_labels`).
        title: what is measured, in words; captions begin with it and with the source, whose layers, n and heads the
            captions of the tables have. columns: that the user chose, all of which are shown.
    """
    source = re.split(r", (?:layers? |n = |\d+ heads)", header.first)[0]
    above = ", ".join(filter(None, [title, source]))
    lines = [r"% needs \usepackage{booktabs,graphicx}"]
    facts = [*([f"run: {run}"] if run is not None else []), header.first]
    lines += [f"% {one_line(fact)}" for fact in facts if fact]
    for name, table in zip(_labels(label, tables, columns), tables, strict=True):
        shown = table if columns else table.needed
        caption = ": ".join(filter(None, [above, shown.caption]))
        lines += [
            r"\begin{table}",
            r"\centering\small\setlength{\belowcaptionskip}{4pt}",
            rf"\caption{{{tex(caption)}.}}",
            rf"\label{{tab:{name}}}",
            r"\setlength{\tabcolsep}{4pt}",
            rf"{AT_MOST_A_PAGE}{{\begin{{minipage}}{{\linewidth}}\centering",
            rf"{AT_MOST_A_LINE}{{%",
            rf"\begin{{tabular}}{{{''.join(shown.sides)}}}",
            r"\toprule",
            f"{' & '.join(map(_heading, shown.columns, shown.sides))} \\\\",
            r"\midrule",
            *_lines(shown),
            r"\bottomrule",
            r"\end{tabular}}",
            *_note(shown, legend),
            r"\end{minipage}}",
            r"\end{table}",
            *(f"% {one_line(note)}" for note in table.notes if note[:1] not in SIGNS),
        ]
        if hidden := dict.fromkeys(column.name for column in table.columns if column not in shown.columns):
            lines.append(f"% columns left out: {', '.join(hidden)}")
    entries = legend_of((column for table in tables for column in table.columns), full=True)
    return "\n".join([*lines, *(f"% {one_line(entry.text)}" for entry in entries)])


def _labels(start: str, tables: Sequence[Table], columns: Sequence[str]) -> list[str]:
    """The label of each table: what it is, up to n, and the chosen columns, so that two exports do not share it.

    >>> _labels("my_run-error", [Table("layer 0 · n = 8 · target softmax", [], [])] * 2, ["p"])
    ['my-run-error-layer-0-n-8-p', 'my-run-error-layer-0-n-8-p-2']
    """
    names: list[str] = []
    for table in tables:
        text = " ".join([start, *UP_TO_N.findall(table.caption)[:1], *columns])
        names.append(re.sub("[^A-Za-z0-9]+", "-", text).strip("-"))
    return [name + f"-{names[:place].count(name) + 1}" * (name in names[:place]) for place, name in enumerate(names)]


def _note(table: Table, legend: Sequence[str]) -> list[str]:
    """The sentences on marks, on marked rows and those of the legend that a table needs, as a note below it."""
    texts = [*(column.title for column in table.columns), *(cell for line in table.lines for cell in line)]
    there = {word for text in texts for word in WORD.findall(text)}
    needed = [text for text in legend if not (names := NAMES.match(text)) or there & {*WORD.findall(names[0])}]
    marked = [f"{note}." for note in table.notes if note[:1] in SIGNS]
    note = " ".join([*marks_legend([table]), *marked, *needed, *(entry.text for entry in legend_of(table.columns))])
    return [rf"\par\smallskip{{\footnotesize\raggedright {tex(note)}\par}}"] if note else []


def _lines(table: Table) -> list[str]:
    """The rows of one table, the best in bold."""
    best = {*table.best}
    lines = []
    for place, line in enumerate(table.lines):
        cells = [_folded(cell, (place, i) in best) for i, cell in enumerate(line)]
        lines.append(f"{' & '.join(cells)} \\\\")
    return lines


def _heading(column: Column, side: str) -> str:
    """The heading of a column, in as many lines as a terminal has."""
    lines = [tex(line) for line in column.heading.split("\n") if line.strip()]
    together = r" \\ ".join(lines)
    return together if len(lines) < 2 else rf"\shortstack[{side}]{{{together}}}"


def _folded(cell: str, bold: bool) -> str:
    """A cell, a long one that is not bold in several lines."""
    text = tex(cell)
    if bold:
        return rf"\textbf{{\boldmath {text}}}" if "$" in text else rf"\textbf{{{text}}}"
    return text if len(cell) <= MOST_IN_A_LINE else rf"\parbox[t]{{4.5cm}}{{\raggedright\strut {text}\strut}}"


def tex(text: str) -> str:
    """``text`` with LaTeX's special characters escaped, and its formulas and signed numbers as mathematics.

    >>> print(tex("50% of a_b & ‖B − B~‖₂ / ‖B‖₂ median"))
    50\\% of a\\_b \\& $\\|B - \\tilde{B}\\|_2 / \\|B\\|_2$ median
    >>> print(tex("visited of n_q·n_k · n_k"))
    visited of $n_q\\cdot n_k$ $\\cdot$ $n_k$
    >>> print(tex("SᵀC̄S + γI ≥ −∞, n = 24 of V-Mean, q.npz"))
    $S^\\top \\bar{C}S + \\gamma I \\geq -\\infty$, $n = 24$ of V-Mean, q.npz
    >>> print(tex("layer 0, n = 161. The smallest, d = 0.5."))
    layer 0, $n = 161$. The smallest, $d = 0.5$.
    >>> print(tex("a 2 x 3 of 0-1 at -0.5 or 1.3e-07, s.d."))
    a 2 $\\times$ 3 of 0-1 at $-0.5$ or $1.3\\cdot10^{-7}$, s.d.
    """
    text = re.sub(r" x (?=\d)", " × ", one_line(text).replace("Ā", f"A{BAR}"))
    parts, end = [], 0
    for found in MATH.finditer(text):
        if not PLAIN.fullmatch(found[0]):
            parts += [_escaped(text[end : found.start()]), f"${_math(found[0])}$"]
            end = found.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    letters = "".join(TEXT.get(character, character) for character in text)
    return letters.replace("--", "-{}-").replace("–", "--")  # two hyphens of an option would be a dash


def _math(text: str) -> str:
    """A formula in LaTeX's mathematics.

    >>> print(_math("ln D~/D"), _math("|score|"), _math("‖E‖F/√d"), _math("-2e+05"), _math("σ16"))
    \\ln \\tilde{D}/D |\\mathrm{score}| \\|E\\|_F/\\surd d -2\\cdot10^{5} \\sigma_{16}
    """
    formula, text = "", re.sub(rf"([{GREEK}])(\d+)", r"\1_{\2}", text)
    pieces: list[str] = re.findall("⁻¹|ln |.", text)
    for piece in pieces:
        command = SYMBOLS.get(piece, piece)
        apart = command[0].isalpha() and re.search(r"\\[a-z]+$", formula)
        formula += f" {command}" if apart else command
    formula = re.sub(r"(?<=[A-Za-z~]\\\|)_?F", "_F", formula)
    formula = re.sub(r"(\d)e\+?(-?)0*(\d+)", r"\1\\cdot10^{\2\3}", formula)
    formula = re.sub(r"(?<![\\A-Za-z])[a-z]{3,}", r"\\mathrm{\g<0>}", formula)
    for mark, accent in ((BAR, "bar"), (HAT, "hat"), ("~", "tilde")):
        formula = re.sub(f"([A-Za-z]){mark}", rf"\\{accent}{{\1}}", formula)
    return formula
