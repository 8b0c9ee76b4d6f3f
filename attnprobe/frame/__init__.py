"""Rows of runs as tidy frames, and their statistics: what every table, figure, gate and comparison starts from."""

from typing import Any

Rows = Any  # a pandas frame, of whose every selection its types make a union
