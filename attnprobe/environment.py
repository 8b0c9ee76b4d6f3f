"""The environment variables that the program reads itself; every other ``ATTNPROBE_…`` gives the value of an option."""

from __future__ import annotations

import os

__all__ = [
    "CACHE_DIR",
    "CACHE_SIZE",
    "KERNELS",
    "LOAD_PLUGINS",
    "OWN",
    "PREFIX",
    "TEST_DEVICE",
    "use_huge_pages",
    "variable",
]

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


def use_huge_pages() -> None:
    """Ask torch, before it is imported, to put tensors of 2 MiB and more on huge pages; the user's own choice stays.

    A method allocates tensors of tens of MiB, and the system hands them out page by page: with pages of 4 KiB that is
    a fifth of the time of a linear method at n = 4096.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
