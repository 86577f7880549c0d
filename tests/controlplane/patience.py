"""How long tests wait before they give up. Deadlines are for a machine that is not busy with something else as well."""

from __future__ import annotations

import os
from typing import Final

_FACTOR: Final = float(os.environ.get("TEST_PATIENCE", "1"))


def patience(seconds: float) -> float:
    """A deadline, stretched by the environment variable ``TEST_PATIENCE`` on a machine that is busy."""
    return seconds * _FACTOR
