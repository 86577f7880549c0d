"""The installed program, as users start it. A test of a process starts this: a module of ours starts half a second later."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

KARPENTER: Final = str(Path(sys.executable).with_name("karpenter"))
