"""The tables and figures of each command, as data: one module for a command."""
