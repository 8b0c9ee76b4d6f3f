"""Rows of runs as tidy frames, and their statistics: what every table, figure, gate and comparison starts from."""
