"""The environment variables that the library reads. Every other ``ATTNPROBE_…`` is the value of an option."""

from __future__ import annotations

PREFIX = "ATTNPROBE_"
CACHE_DIR = "ATTNPROBE_CACHE_DIR"
CACHE_SIZE = "ATTNPROBE_CACHE_SIZE"
KERNELS = "ATTNPROBE_KERNELS"
LOAD_PLUGINS = "ATTNPROBE_LOAD_PLUGINS"
TEST_DEVICE = "ATTNPROBE_TEST_DEVICE"  # of the project's own tests
OWN = (CACHE_DIR, CACHE_SIZE, KERNELS, LOAD_PLUGINS, TEST_DEVICE)


def variable(flag: str) -> str:
    """The variable of an option.

    >>> variable("--scale-inputs")
    'ATTNPROBE_SCALE_INPUTS'
    """
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()
