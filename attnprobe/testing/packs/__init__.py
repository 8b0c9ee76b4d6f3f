"""An acceptance test for kernels that runs anywhere: packs of cases out, outputs back.

`made` makes a pack, `save_pack` writes it, and `judged` compares outputs that were computed elsewhere with the exact
ones. ``attnprobe extract --pack`` and ``attnprobe accept`` are the commands.
"""

from .case import Case, Expected, expected
from .judging import Judged, judged, read_outputs
from .making import PACKS, made
from .pack import Pack, read_pack, save_pack

__all__ = [
    "PACKS",
    "Case",
    "Expected",
    "Judged",
    "Pack",
    "expected",
    "judged",
    "made",
    "read_outputs",
    "read_pack",
    "save_pack",
]
