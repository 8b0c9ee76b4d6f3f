"""From a run's folder to what is read: its views, and a page of them all. Nothing here measures anything."""

from __future__ import annotations

from .page import Report, html_page
from .parts import plot_kinds, views
from .run import Run, open_run

__all__ = ["Report", "Run", "html_page", "open_run", "plot_kinds", "views"]
