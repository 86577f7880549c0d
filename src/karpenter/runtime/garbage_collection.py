"""How often Python's garbage collector runs in the controller.

By default it runs after 700 new objects and every hundredth time over everything. A controller makes more objects than that with
every answer it decodes and keeps most of them, so a sixth of its start went into looking for garbage that was not there. Nearly
everything is freed without the collector, when its last user lets go.
"""

from __future__ import annotations

import gc

#: New objects before the youngest are looked at; how often that happens before the older ones are, and before all are.
THRESHOLDS = (20_000, 20, 50)


def collect_seldom() -> None:
    """From now on, in this process."""
    gc.set_threshold(*THRESHOLDS)
