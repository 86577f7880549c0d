"""How the controller's process looks for garbage, and how its allocator shares memory among threads; set before all imports.

Garbage. By default Python looks for it after 700 new objects, and every hundredth time among all. A controller makes more objects
than that with every answer it decodes, and keeps most of them, so a sixth of its start went into looking for garbage that was not
there. Nearly everything is freed without the collector, when its last user lets go.

Arenas. The C library gives each of the first threads an arena of its own, up to eight for each core, so that they do not wait
for each other. Python's threads take turns anyway, and each arena keeps what its thread freed: 6 MB after answers of AWS.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

#: New objects before the youngest are looked at; how often that happens before the older ones are, and before all are.
COLLECTION_THRESHOLDS = (20_000, 20, 50)
#: ``M_ARENA_MAX`` of glibc; other C libraries have no arenas.
_M_ARENA_MAX, _ARENAS = -8, 2


def set_up_memory() -> None:
    """Have this process use memory as a controller should, from now on."""
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
