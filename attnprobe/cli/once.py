"""Lines that a machine is told once, not with every command."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from ..errors import UsageError

ONCE = "is out of reach"  # the model hub: the first line of every table names what was read instead


def told_before(line: str) -> bool:
    """Whether an earlier command on this machine said the same of the hub. The folder of the cache remembers it."""
    if not line.endswith(ONCE):
        return False
    from ..sources.cache import default_cache

    with suppress(OSError, UsageError):
        cache = default_cache(lambda line: None, "told")
        if cache.largest == 0:
            return False
        cache.folder.mkdir(parents=True, exist_ok=True)
        mark = cache.folder / hashlib.sha256(line.encode()).hexdigest()[:16]
        if mark.exists():
            return True
        mark.touch()
    return False
