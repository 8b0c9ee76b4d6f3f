"""The reference page of rows, and their JSON Schema, made of the types of rows."""

from __future__ import annotations

import json
from typing import Any

from attnprobe.frame.inputs import INPUT_ROWS
from attnprobe.frame.read import PLACE
from attnprobe.frame.records.shapes import MANIFEST
from attnprobe.frame.rows import CellLine, RowTypes
from attnprobe.measure import EXPERIMENTS, shape_of

SHARED = ("schema", "key", "command", "status", "reason", "run", "source", "window", "layer", "heads", "n", "d")
SHARED += ("target", "options", "repeat", "seed", "requested", "reference", "family", "method_file", "duplicates")
SHARED += ("draws_hash", "seconds")
LINE = ("kind", "key", "schema")  # of every line
SHAPES = {command: types for command in EXPERIMENTS if (types := shape_of(command))}
WORDS = {  # columns of frames that are no field of a line of kind ``cell``
    "weights": "pretrained, initialized or initialized-qkv",
    "scale_inputs": "the factor of the scores",
    "name": "the method with its options, as in tables; empty for a matrix",
}

INTRO = """# Rows

A run's folder holds three kinds of data. Shards have files of their own, such as `rows-I-of-N.jsonl`;
attnprobe reads all of them together.

| file | content |
| --- | --- |
| `rows.jsonl` | JSON objects: a line for each row of a cell, then the line of kind `cell` that ends it |
| `inputs.jsonl` | statistics of Q, K and V: a line for each head and layer that was read |
| `manifest.json` | the request, versions, and the origin of every value |

[rows.schema.json](rows.schema.json) is the JSON Schema of a line of any command. This page and the schema are
generated from the types in `attnprobe/frame/rows.py` and `attnprobe/measure/COMMAND/record.py`.

- attnprobe only adds lines. If several lines have the same `key`, the last one is valid. But a line with status `ok`
  is never replaced by a line with another status.
- Infinity is `"inf"` or `"-inf"`, and `null` is NaN. A field that was not measured is absent.
- Only `seconds` varies between two runs of the same cell on the same machine.

## Invalid lines

Each line is checked when it is read.

- An invalid line is left out. stderr and the report name its file, number and field, such as
  `runs/a/rows.jsonl:7: cell 1b1d5d7d: field n: expected a valid integer, got "many"`. The same holds for a
  field of the manifest.
- The other lines are shown. The exit code of `report` and `compare` is 4, and that of `compare` is 1 if there is a
  regression.
- A run that resumes in the folder measures such a cell again. The invalid line stays in the file. Where its key can be
  read, it no longer counts once the cell has a valid line.
- A last line that a kill cut off is an invalid line. A run that resumes removes it.
- Unknown fields, and cells of unknown commands, are ignored.

## In Python

```python
from attnprobe import open_run

run = open_run("outputs/RUN")
run.records["error"]  # the cells of a command with their rows, in the order of the plan
run.malformed  # the invalid lines
frame = run.frame()  # a pandas frame: a row for each cell and head
```

`frame()` has these columns for every command, and those of the command's rows, listed below. Columns have pandas'
nullable types: `pandas.NA` is not measured.
"""


def table(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    rows = [headings, tuple("---" for _ in headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def fields(schema: dict[str, Any], names: list[str]) -> str:
    """A table of the fields of an object: name, kind, what it says."""
    lines = []
    for name in names:
        one = schema["properties"][name]
        needed = "" if name in schema.get("required", ()) else ", may be absent"
        lines.append((f"`{name}`", kind(one) + needed, one.get("description", "")))
    if not any(what for *_, what in lines):
        return table(("field", "kind"), [line[:2] for line in lines])
    return table(("field", "kind", "what it says"), lines)


def kind(one: dict[str, Any]) -> str:
    """The kind of a field in words."""
    if "$ref" in one:
        return f"[{name_of(one['$ref'])}](#{name_of(one['$ref']).lower()})"
    if "anyOf" in one:
        return " or ".join(dict.fromkeys(kind(some) for some in one["anyOf"]))
    if "enum" in one:
        return " or ".join(f"`{word}`" for word in one["enum"])
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    if one.get("type") == "array":
        items = one.get("items")
        return f"list of ({kind(items)})" if items else "list"
    if one.get("type") == "object":
        values = one.get("additionalProperties")
        return f"object of ({kind(values)})" if isinstance(values, dict) and values else "object"
    return words.get(one.get("type", ""), one.get("type") or "any")


def name_of(reference: str) -> str:
    return reference.rpartition("/")[2]


def records_page() -> str:
    first = CellLine.model_json_schema()
    columns = {**WORDS, **{name: one.get("description", "") for name, one in first["properties"].items()}}
    text = [INTRO, table(("column", "content"), [(f"`{name}`", columns[name]) for name in PLACE])]
    text.append("\n## Every cell\n")
    text.append(fields(first, [name for name in SHARED if name in first["properties"]]))
    text.append(f"\n### Source\n\n{first['$defs']['Source']['description']}\n")
    text.append(fields(first["$defs"]["Source"], list(first["$defs"]["Source"]["properties"])))
    for command, shape in SHAPES.items():
        text.append(rows_section(command, shape))
    text.append(rows_section("inputs", INPUT_ROWS))
    text.append("\n## Manifest\n\n`manifest.json` is one object. Each field may be absent.\n")
    schema = MANIFEST.json_schema()
    lines = [(f"`{name}`", kind(one)) for name, one in schema["properties"].items()]
    text.append(table(("field", "kind"), lines))
    for name, part in schema["$defs"].items():
        if name not in first["$defs"]:
            text.append(f"\n### {name}\n\n{part.get('description', '')}\n\n{fields(part, list(part['properties']))}")
    return "\n".join(text) + "\n"


def rows_section(command: str, types: RowTypes) -> str:
    """The kinds of rows of a command, a table each; of the line that ends a cell what is the command's own."""
    text = [f"\n## Rows of {command}\n"]
    for kind, schema in types.json_schemas().items():
        own = [name for name in schema["properties"] if name not in CellLine.model_fields and name not in LINE]
        if own:
            text.append(f"\n### {command}: kind {kind}\n\n{schema['description']}\n")
            text.append(fields(schema, own))
    return "\n".join(text)


def records_schema() -> str:
    """The JSON Schema of a line of any command: one schema for each kind, such as ``error.head``."""
    lines, definitions = [], {}
    for command, shape in {**SHAPES, "inputs": INPUT_ROWS}.items():
        for kind, schema in shape.json_schemas().items():
            line = without_titles(schema)
            definitions |= line.pop("$defs", {})
            if "command" in line["properties"]:
                line["properties"]["command"] = {"const": command}
            lines.append({"title": f"{command}.{kind}", **line})
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of rows.jsonl or inputs.jsonl",
        "anyOf": lines,
        "$defs": definitions,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def without_titles(schema: Any) -> Any:
    """A schema without pydantic's titles, which only repeat the names of fields."""
    if isinstance(schema, list):
        return [without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_titles(part) for name, part in schema.items() if name != "title" or isinstance(part, dict)}
