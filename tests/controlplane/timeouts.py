"""Timeouts of tests. The values are for an otherwise idle machine; ``TEST_TIMEOUT_FACTOR`` scales them."""

from __future__ import annotations

import os
from typing import Final

_FACTOR: Final = float(os.environ.get("TEST_TIMEOUT_FACTOR", "1"))


def scaled_timeout(seconds: float) -> float:
    """A timeout in seconds, multiplied by the environment variable ``TEST_TIMEOUT_FACTOR``, for a busy machine."""
    return seconds * _FACTOR
