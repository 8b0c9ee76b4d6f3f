"""The file ``rows.jsonl`` of a run: finished cells with their rows, appended, repaired, read and checked."""

from .read import read_records

__all__ = ["read_records"]
