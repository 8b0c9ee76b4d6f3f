"""One HTML file of a run or of several: inline figures, sortable tables, and the origin of every number.

``page.html.j2`` is the template, ``page.css`` and ``page.js`` are its style and script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...frame.records.file import STATUSES, strict_json
from ...grammar.arguments import checked
from ...grammar.foreign import one_line, short_hashes
from ..grid import Grid
from ..notes import notes
from ..shown import Shown
from ..table import KEY
from ..writers.text import cell_text
from .run import Run

FOLDER = Path(__file__).parent
NUMBER = re.compile(r"[≈<>≤≥\[( ]*([-−+]?(?:∞|\d+(?:\.\d+)?(?:e[-+]?\d+)?))(?![\w.-])")
SCALE = 1.5  # of figures, whose type is that of a paper
MOST_OPEN = 4  # figures of one kind; if there are more, they are folded, so that the tables stay in reach
STATES = (*STATUSES, "finished", "interrupted", "running")
RUN_FACTS = ("git_commit", "device", "threads", "dtype", "start", "end", "status")


@dataclass(frozen=True)
class Report:
    """A run with its views for the page.

    Attributes:
        views: a view for each command. figures: SVG files that were just drawn from the run's rows.
        files: names of the run's data files, relative to the page, which links to them.
    """

    run: Run
    views: Sequence[Shown]
    figures: Sequence[Path] = ()
    files: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.run.path.resolve().name


@checked()
def html_page(reports: Sequence[Report]) -> str:
    """The page of some runs as text.

    The page fetches nothing. The template escapes every word of a run. A content security policy allows the page's own
    script alone, by its hash, so that a word that slipped through could not run, send a form or turn the page's links.
    """
    from markupsafe import Markup

    style, script = (FOLDER.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    several = len(reports) > 1
    return _template().render(
        policy=f"{policy}; form-action 'none'; base-uri 'none'",
        title=" and ".join(report.name for report in reports),
        style=Markup(style),
        script=Markup(script),
        runs=[_run(report, f"run-{index}-" if several else "") for index, report in enumerate(reports, 1)],
    )


@cache
def _template() -> Any:
    """The template. Its translation to Python takes longer than a page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def printed(value: Any) -> Any:
        """A value for the page: trusted markup unchanged, other text on one line without control characters."""
        return value if isinstance(value, Markup) else one_line(str(value))

    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, finalize=printed, undefined=StrictUndefined
    )
    return environment.get_template("page.html.j2")


def inline_svg(text: str, prefix: str, label: str) -> str:
    """A figure's SVG for a page: without prolog, comments, metadata and style, with unique ids.

    >>> inline_svg('<?xml version="1.0"?><svg width="72pt" height="9pt" viewBox="0 0 72 9"><g id="a"/></svg>', "f", "x")
    '<svg viewBox="0 0 72 9" style="max-width:calc(1.5 * 72pt)" role="img" aria-label="x"><g id="f-a"/></svg>'
    """
    for part in (r"<!--.*?-->", r"<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>"):
        text = re.sub(part, "", text, flags=re.S)
    start = text.index("<svg")
    tag, rest = text[start : text.index(">", start)], text[text.index(">", start) :]
    width, box = (re.search(rf'{name}="([^"]*)"', tag) for name in ("width", "viewBox"))
    # matplotlib's ids are unique in one file only, and a page has many
    rest = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}-\1"', rest)
    rest = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", rest)
    rest = re.sub(r'\b(?:xlink:)?href="#([^"]*)"', rf'href="#{prefix}-\1"', rest).replace("xlink:href=", "href=")
    looks = f' viewBox="{box[1]}"' if box else ""
    looks += f' style="max-width:calc({SCALE} * {width[1]})"' if width else ""
    label = escape(one_line(label), quote=True)
    return re.sub(r"\n\s*\n+", "\n", f'<svg{looks} role="img" aria-label="{label}"{rest}').strip()


def _run(report: Report, prefix: str) -> dict[str, Any]:
    """One run as the template's data; ``prefix`` begins the ids of its sections."""
    run, views = report.run, report.views
    manifest: Mapping[str, Any] = {**run.manifest}
    warnings = [line for view in views for line in view.header.warnings]
    state = str(manifest.get("status") or "unknown")
    return {
        "id": prefix,
        "name": report.name,
        "commands": " · ".join(view.command for view in views),
        "title": " and ".join(view.title or view.command for view in views),
        "results": [view.result for view in views if view.result],
        "state": state,
        "state_class": state if state in STATES else "other",
        "when": _when(manifest.get("start"), manifest.get("end")),
        "warnings": [*run.notes, *dict.fromkeys(warnings)],
        "tiles": list(_tiles(run, views)),
        "facts": [_fact(line) for line in dict.fromkeys(line for view in views for line in view.header.facts)],
        "figures": _figures(report.figures, prefix),
        "parts": [_part(view, f"{prefix}tables-{index}") for index, view in enumerate(views)],
        "files": [{"name": name, "href": quote(name)} for name in report.files],
        "provenance": list(_provenance(run, views)),
    }


def _when(start: Any, end: Any) -> str:
    """The time of a run as text.

    >>> _when("2026-11-21T18:14:33+00:00", "2026-11-21T18:16:00+00:00")
    '2026-11-21 18:14:33 – 18:16:00 UTC'
    >>> _when("2026-11-21T18:14:33+00:00", "2026-11-22T01:16:00+00:00")
    '2026-11-21 18:14:33 – 2026-11-22 01:16:00 UTC'
    >>> _when("2026-11-21T18:14:33+00:00", None), _when("soon", "late"), _when("soon", None), _when(None, None)
    ('2026-11-21 18:14:33 UTC', 'soon – late', 'soon', '')
    """
    if not start:
        return ""
    try:
        first, last = (datetime.fromisoformat(text).astimezone(UTC) for text in (start, end or start))
    except (TypeError, ValueError):
        return f"{start} – {end}" if end else str(start)
    day, moment = "%Y-%m-%d ", "%H:%M:%S"
    until = f" – {last.strftime(moment if last.date() == first.date() else day + moment)}" if end else ""
    return f"{first.strftime(day + moment)}{until} UTC"


def _tiles(run: Run, views: Sequence[Shown]) -> Iterator[dict[str, Any]]:
    """The counts at the top of a page: cells, statuses other than that of all cells, and the views' own."""
    records: list[Mapping[str, Any]] = [*run.everything]
    yield _tile(len(records), "cell")
    statuses = Counter(record["status"] for record in records)
    for status in STATUSES:
        if 0 < statuses[status] < len(records):
            yield {"value": statuses[status], "name": status, "kind": status}
    for name, field in dict.fromkeys(tile for view in views for tile in view.tiles):
        fields = (record.get(field) for record in records)
        # a field such as the heads is a list
        different = {
            value for of_record in fields for value in (of_record if isinstance(of_record, list) else [of_record])
        }
        yield _tile(len(different), name)
    lengths = sorted({record["n"] for record in records})
    yield {"value": ", ".join(map(str, lengths)), "name": "tokens n", "kind": ""}


def _tile(count: int, noun: str) -> dict[str, Any]:
    return {"value": count, "name": noun if count == 1 else f"{noun}s", "kind": ""}


def _fact(line: str) -> tuple[str, str]:
    """The name and the words of a line ``name: words``, with long hashes cut."""
    name, _, words = short_hashes(line).partition(": ")
    return name, words


def _figures(paths: Iterable[Path], prefix: str) -> list[dict[str, Any]]:
    """The figures by kind, the first word of the file's name."""
    from markupsafe import Markup

    kinds: dict[str, list[dict[str, Any]]] = {}
    for index, path in enumerate(paths):
        name, text = path.stem, path.read_text(encoding="utf-8")
        title, caption = _captioned(path)
        figure = {
            "id": f"{prefix}figure-{index}",
            "title": title,
            "caption": caption,
            "svg": Markup(inline_svg(text, f"{prefix}f{index}", title)),
        }
        kinds.setdefault(name.partition("-")[0], []).append(figure)
    return [{"name": kind, "figures": figures, "folded": len(figures) > MOST_OPEN} for kind, figures in kinds.items()]


def _captioned(path: Path) -> tuple[str, str]:
    """The title and the caption of a figure, without the facts of the run, which the page has once."""
    text_file = path.with_suffix(".txt")
    parts = text_file.read_text(encoding="utf-8").split("\n\n") if text_file.is_file() else [path.stem]
    return parts[0].strip(), parts[1].strip() if len(parts) > 1 else ""


def _part(view: Shown, id: str) -> dict[str, Any]:
    """The tables of a view, of its companions and of its inputs, as the template's data."""
    parts = [view, *view.companions, *([view.inputs] if view.inputs else [])]
    return {"id": id, "command": view.command, "tables": [_table(grid) for part in parts for grid in part.tables]}


def _table(grid: Grid) -> dict[str, Any]:
    """A filled table as the template's data."""
    sides = ["l" if words else "r" for words in grid.words]
    heads = [
        {
            **{"side": side, "name": column.title, "meaning": column.meaning},
            "spare": column.priority if column.priority < KEY else None,
        }
        for side, column in zip(sides, grid.columns, strict=True)
    ]
    lines = []
    for line in grid.cells:
        cells = [(cell_text(cell, column), cell.bold) for cell, column in zip(line, grid.columns, strict=True)]
        lines.append(
            [
                {"side": side, "text": text, "key": _key(text), "best": best}
                for side, (text, best) in zip(sides, cells, strict=True)
            ]
        )
    notes_below = [*filter(None, [grid.sentence]), *notes(grid)]
    return {"caption": grid.caption, "heads": heads, "lines": lines, "notes": notes_below}


def _key(text: str) -> str:
    """The number at the beginning of a cell, its sort key; empty without one.

    >>> _key("≈[−3.1e-04 – ∞]"), _key("∞"), _key("16 (15.7)"), _key("2-stage"), _key("–")
    ('-3.1e-04', '1e999', '16', '', '')
    """
    number = NUMBER.match(text.strip())
    return number[1].replace("−", "-").replace("∞", "1e999") if number else ""


def _provenance(run: Run, views: Sequence[Shown]) -> Iterator[dict[str, Any]]:
    """Tables of the manifest: the run, its options, its sources and the versions."""
    manifest: Mapping[str, Any] = {**run.manifest}
    facts = {name: manifest[name] for name in RUN_FACTS if manifest.get(name) is not None}
    arguments = manifest.get("arguments")
    if isinstance(arguments, list):
        facts = {"command line": "attnprobe " + " ".join(map(str, arguments)), **facts}
    if facts:
        yield _pairs("Run", facts, open=True)
    config = manifest.get("config")
    if isinstance(config, dict):
        options = {name: entry for name, entry in config.items() if isinstance(entry, dict)}
        lines = [[name, _plain(entry.get("value")), str(entry.get("origin", ""))] for name, entry in options.items()]
        yield {"title": "Configuration", "headings": ["option", "value", "from"], "lines": lines, "open": False}
    for view in views:
        source = view.header.source
        # the header of several sources has their facts by label
        several = bool(source) and all(isinstance(facts, Mapping) for facts in source.values())
        for label, of_source in source.items() if several else [("", source)]:
            yield _pairs(f"Source {label}".strip(), of_source)
    versions = manifest.get("versions")
    if isinstance(versions, dict):
        yield _pairs("Versions", versions)


def _pairs(title: str, facts: Mapping[str, Any], open: bool = False) -> dict[str, Any]:
    """A table of names and values as the template's data."""
    lines = [[str(name), _plain(value)] for name, value in facts.items()]
    return {"title": title, "headings": [], "lines": lines, "open": open}


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else strict_json(value)
