"""One HTML page of a run that needs nothing else: figures inline, tables that sort, and where everything came from."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from ..grammar.foreign import one_line
from ..records.file import STATUSES, strict_json
from ..tables.numbers import short_hashes
from ..tables.table import Table
from ..tables.view import View
from .run import Run
from .style import SCRIPT, STYLE

__all__ = ["html_page", "inline_svg"]

NUMBER = re.compile(r"[≈<>≤≥\[( ]*([-−+]?(?:∞|\d+(?:\.\d+)?(?:e[-+]?\d+)?))(?![\w.-])")
MOST_OPEN = 4  # figures of one kind; more are folded, so that the tables stay in reach


def html_page(run: Run, parts: Sequence[View], figures: Iterable[Path]) -> str:
    """The whole report as text: every word from the run is escaped, and nothing is fetched from anywhere.

    A content security policy allows the page's own script alone, by its hash, so that even a word that slipped through
    could not run.

    Args:
        figures: SVG files that were drawn from the run's records.
    """
    figures = list(figures)
    name = run.path.resolve().name or "run"
    commands = " · ".join(part.command for part in parts)
    title = " and ".join(part.title or part.command for part in parts)
    body = [
        f'<header><p class="over">attnprobe {_text(commands)}</p><h1>{_text(title)}</h1>{_under(run, name)}</header>',
        _warnings(run, parts),
        _tiles(run, parts),
        _sources(parts),
        _navigation(figures, parts),
        _figures(figures),
        *(_tables(part, index) for index, part in enumerate(parts)),
        _provenance(run, parts),
        f"<footer>Made from the run's records by <code>attnprobe report {_text(name)}</code></footer>",
    ]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(name)} · attnprobe</title>",
        f"<style>{STYLE}</style>",
    ]
    inner = "\n".join(part for part in body if part)
    top = '<!doctype html>\n<html lang="en">\n<head>\n' + "\n".join(head) + "\n</head>\n"
    return f"{top}<body>\n<main>\n{inner}\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"


def inline_svg(text: str, prefix: str, label: str) -> str:
    """A figure's SVG as a part of a page: without prolog, comments, metadata and style, its ids its own.

    >>> inline_svg('<?xml version="1.0"?><svg width="72pt" height="9pt" viewBox="0 0 72 9"><g id="a"/></svg>', "f", "x")
    '<svg viewBox="0 0 72 9" style="max-width:72pt" role="img" aria-label="x"><g id="f-a"/></svg>'
    """
    for part in (r"<!--.*?-->", r"<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>"):
        text = re.sub(part, "", text, flags=re.S)
    start = text.index("<svg")
    tag, rest = text[start : text.index(">", start)], text[text.index(">", start) :]
    width, box = (re.search(rf'{name}="([^"]*)"', tag) for name in ("width", "viewBox"))
    rest = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}-\1"', rest)
    rest = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", rest)
    rest = re.sub(r'\b(?:xlink:)?href="#([^"]*)"', rf'href="#{prefix}-\1"', rest).replace("xlink:href=", "href=")
    looks = f' viewBox="{box[1]}"' if box else ""
    looks += f' style="max-width:{width[1]}"' if width else ""
    return re.sub(r"\n\s*\n+", "\n", f'<svg{looks} role="img" aria-label="{_text(label)}"{rest}').strip()


def _text(value: Any) -> str:
    return escape(one_line(str(value)), quote=True)


def _under(run: Run, name: str) -> str:
    manifest = run.manifest
    state = manifest.get("status") or "unknown"
    parts = [f"<code>{_text(name)}</code>", f'<span class="state {_class(state)}">{_text(state)}</span>']
    if manifest.get("start"):
        parts.append(f"<span>{_text(_when(manifest['start'], manifest.get('end')))}</span>")
    return f'<p class="under">{"".join(parts)}</p>'


def _when(start: Any, end: Any) -> str:
    """When a run was measured, for people.

    >>> _when("2026-11-21T18:14:33+00:00", "2026-11-21T18:16:00+00:00")
    '2026-11-21 18:14:33 – 18:16:00 UTC'
    """
    try:
        first, last = (datetime.fromisoformat(one).astimezone(UTC) for one in (start, end or start))
    except (TypeError, ValueError):
        return f"{start} – {end}" if end else str(start)
    day, moment = "%Y-%m-%d ", "%H:%M:%S"
    until = f" – {last.strftime(moment if last.date() == first.date() else day + moment)}" if end else ""
    return f"{first.strftime(day + moment)}{until} UTC"


def _class(word: Any) -> str:
    return str(word) if str(word) in (*STATUSES, "finished", "interrupted", "running") else "other"


def _warnings(run: Run, parts: Sequence[View]) -> str:
    lines = [*run.notes, *dict.fromkeys(line for part in parts for line in part.header.warnings)]
    return "".join(f'<p class="warning">{_text(line)}</p>' for line in lines)


def _tiles(run: Run, parts: Sequence[View]) -> str:
    """What was measured, in numbers."""
    records = run.everything
    found = Counter(record["status"] for record in records)
    tiles: list[tuple[Any, str, str]] = [(len(records), "cell" if len(records) == 1 else "cells", "")]
    tiles += [(found[status], status, status) for status in STATUSES if 0 < found[status] < len(records)]
    counts = [
        (len({head for record in records for head in record["heads"]}), "head"),
        (len({record["layer"] for record in records}), "layer"),
        (len({record["window"] for record in records}), "text window"),
    ]
    if all(part.command == "stability" for part in parts):
        counts = [(len({record[name] for record in records}), name) for name in ("task", "method", "seed")]
    tiles += [(count, name if count == 1 else f"{name}s", "") for count, name in counts]
    tiles.append((", ".join(map(str, sorted({record["n"] for record in records}))), "tokens n", ""))
    inner = "".join(
        f'<div class="tile {kind}"><dd>{_text(value)}</dd><dt>{_text(name)}</dt></div>' for value, name, kind in tiles
    )
    return f'<dl class="tiles">{inner}</dl>'


def _sources(parts: Sequence[View]) -> str:
    lines = dict.fromkeys(line for part in parts for line in part.header.facts)
    return '<ul class="facts">' + "".join(f"<li>{_fact(line)}</li>" for line in lines) + "</ul>"


def _fact(line: str) -> str:
    """``name: words`` with the name set apart and long hashes cut."""
    name, colon, rest = short_hashes(line).partition(": ")
    return f"<b>{_text(name)}</b> {_text(rest)}" if colon else _text(name)


def _navigation(figures: Sequence[Path], parts: Sequence[View]) -> str:
    links = [("figures", "Figures")] if figures else []
    links += [(f"tables-{index}", f"Tables of {part.command}") for index, part in enumerate(parts)]
    links += [("provenance", "Provenance")]
    return "<nav>" + "".join(f'<a href="#{place}">{_text(name)}</a>' for place, name in links) + "</nav>"


def _figures(figures: Sequence[Path]) -> str:
    kinds: dict[str, list[str]] = {}
    for index, path in enumerate(figures):
        drawing = inline_svg(path.read_text(encoding="utf-8"), f"f{index}", path.stem)
        kinds.setdefault(path.stem.partition("-")[0], []).append(
            f'<figure id="figure-{index}"><div class="sheet" tabindex="0" role="region" '
            f'aria-label="figure {_text(path.stem)}">{drawing}</div>'
            f"<figcaption>{_text(path.stem)}</figcaption></figure>"
        )
    shown = []
    for kind, some in kinds.items():
        inner = "".join(some)
        folded = f"<details><summary>{len(some)} figures of {_text(kind)}</summary>{inner}</details>"
        shown.append(inner if len(some) <= MOST_OPEN else folded)
    return f'<section id="figures"><h2>Figures</h2>{"".join(shown)}</section>' if shown else ""


def _tables(part: View, index: int) -> str:
    inner = "".join(
        "".join(map(_table, tables)) + (f'<p class="legend">{_text(told)}</p>' if told else "")
        for tables, told in ((one.tables, one.whole_legend) for one in (part, part.inputs) if one is not None)
    )
    return f'<section id="tables-{index}"><h2>Tables of {_text(part.command)}</h2>{inner}</section>'


def _table(table: Table) -> str:
    sides = table.sides
    heads = "".join(
        f'<th class="{side}" scope="col"><button type="button">{_text(name) or "&nbsp;"}</button></th>'
        for side, name in zip(sides, table.headings, strict=True)
    )
    lines = []
    for line in table.lines:
        pairs = zip(sides, line, strict=True)
        cells = [f'<td class="{side}"{_key(text)}>{_text(text)}</td>' for side, text in pairs]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    inner = f'<table class="sorts"><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    below = f'<ul class="notes">{notes}</ul>' if notes else ""
    frame = f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.caption)}">{inner}</div>'
    return f"<h3>{_text(table.caption)}</h3>{frame}{below}"


def _key(text: str) -> str:
    """What a cell sorts by where it starts with a number: that number.

    >>> _key("≈[−3.1e-04 – ∞]"), _key("∞"), _key("16 (15.7)"), _key("2-stage"), _key("–")
    (' data-k="-3.1e-04"', ' data-k="1e999"', ' data-k="16"', '', '')
    """
    found = NUMBER.match(text.strip())
    return f' data-k="{found[1].replace("−", "-").replace("∞", "1e999")}"' if found else ""


def _provenance(run: Run, parts: Sequence[View]) -> str:
    manifest = run.manifest
    blocks = []
    facts = {
        name: manifest[name]
        for name in ("git_commit", "device", "threads", "dtype", "start", "end", "status")
        if manifest.get(name) is not None
    }
    arguments = manifest.get("arguments")
    if isinstance(arguments, list):
        facts = {"command line": "attnprobe " + " ".join(map(str, arguments)), **facts}
    if facts:
        blocks.append(_pairs("Run", facts, True))
    config = manifest.get("config")
    if isinstance(config, dict):
        lines = [
            [name, _plain(one.get("value")), str(one.get("origin", ""))]
            for name, one in config.items()
            if isinstance(one, dict)
        ]
        blocks.append(_details("Configuration", _table_of(["option", "value", "from"], lines)))
    for part in parts:
        source = part.header.source
        several = {str(name): one for name, one in source.items()} if _nested(source) else {"": source}
        for label, one in several.items():
            blocks.append(_pairs(f"Source {label}".strip(), one))
    if isinstance(manifest.get("versions"), dict):
        blocks.append(_pairs("Versions", manifest["versions"]))
    return f'<section id="provenance"><h2>Provenance</h2>{"".join(blocks)}</section>'


def _nested(source: Mapping[str, Any]) -> bool:
    return bool(source) and all(isinstance(one, Mapping) for one in source.values())


def _pairs(title: str, facts: Mapping[str, Any], opened: bool = False) -> str:
    return _details(title, _table_of(["", ""], [[str(name), _plain(value)] for name, value in facts.items()]), opened)


def _details(title: str, inner: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{_text(title)}</summary>{inner}</details>"


def _table_of(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th class="l" scope="col">{_text(name)}</th>' for name in headings)
    head = f"<thead><tr>{head}</tr></thead>" if any(headings) else ""
    cells = ["".join(f'<td class="l">{_text(text)}</td>' for text in line) for line in lines]
    rows = "".join(f"<tr>{line}</tr>" for line in cells)
    return f'<div class="scroll" tabindex="0"><table class="pairs">{head}<tbody>{rows}</tbody></table></div>'


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else strict_json(value)
