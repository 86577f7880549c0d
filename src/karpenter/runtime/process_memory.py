"""The cyclic garbage collector, the C library's malloc arenas and the buffers of TLS connections; set before all other imports.

Cyclic garbage collector. By default it runs after 700 new container objects, and every hundredth run examines all objects. One
decoded answer makes more objects than that, and most of them stay, so these runs took a sixth of the CPU of a start and freed
nothing. Reference counting frees nearly everything: few objects are parts of cycles.

Arenas. glibc gives each of the first threads an arena of its own, up to eight for each core, so that they do not wait for each
other. Python's threads take turns anyway, and memory that a thread freed stays in its arena: 6 MB after answers of AWS.

TLS. asyncio allocates a buffer of 256 KiB for each TLS connection. A controller has one connection for each watch and for each
request in flight, 60 and more while it creates NodeClaims: 15 MB. A TLS record holds 16 KiB at most. Larger buffers only save
calls where answers are large: 0.5 ms for each MB.
"""

from __future__ import annotations

import ctypes
import gc
from asyncio.sslproto import SSLProtocol
from contextlib import suppress

#: New container objects before the youngest generation is collected; collections of it before the next generation is collected;
#: and of that one before the oldest is.
COLLECTION_THRESHOLDS = (20_000, 20, 50)
#: ``M_ARENA_MAX`` of glibc; other C libraries have no arenas.
_M_ARENA_MAX, _ARENAS = -8, 2
_TLS_BUFFER_BYTES = 64 * 1024


def set_up_memory() -> None:
    """Set the collector's thresholds, the number of arenas and the size of TLS buffers for this process."""
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    SSLProtocol.max_size = _TLS_BUFFER_BYTES
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
