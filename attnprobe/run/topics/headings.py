"""The headings of the help, in order."""

from __future__ import annotations

MEASURED = "What is measured"
PLACES = "Where in the model and the text"
SOURCE = "Where Q, K and V come from"
NUMBERS = "Device and numbers"
RUN = "The run's folder"
ELSEWHERE = "Processes and machines"
OUTPUT = "What is shown"
GATES = "Gates"
GROUPS = (MEASURED, PLACES, SOURCE, NUMBERS, RUN, ELSEWHERE, OUTPUT, GATES)  # the order of the help
