"""How often Python's cyclic garbage collector runs, and how many malloc arenas the C library uses; set before all imports.

Cyclic garbage collector. By default it runs after 700 new container objects, and every hundredth run examines all objects. One
decoded answer makes more objects than that, and most of them stay, so these runs took a sixth of the CPU of a start and freed
nothing. Reference counting frees nearly everything: few objects are parts of cycles.

Arenas. glibc gives each of the first threads an arena of its own, up to eight for each core, so that they do not wait for each
other. Python's threads take turns anyway, and memory that a thread freed stays in its arena: 6 MB after answers of AWS.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

#: New container objects before the youngest generation is collected; collections of it before the next generation is collected;
#: and of that one before the oldest is.
COLLECTION_THRESHOLDS = (20_000, 20, 50)
#: ``M_ARENA_MAX`` of glibc; other C libraries have no arenas.
_M_ARENA_MAX, _ARENAS = -8, 2


def set_up_memory() -> None:
    """Set the collector's thresholds and the number of arenas of this process."""
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
