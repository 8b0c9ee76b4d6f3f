"""Records: what is written is what is read."""

from .read import read_records

__all__ = ["read_records"]
