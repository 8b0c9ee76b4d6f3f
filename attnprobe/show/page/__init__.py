"""From a run's folder to its views, and to a page of all of them. Nothing here measures."""

from __future__ import annotations

from .page import Report, html_page
from .parts import views
from .run import Run, open_run

__all__ = ["Report", "Run", "html_page", "open_run", "views"]
