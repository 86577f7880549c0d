"""Renews the kept screens of ``karpenter top`` that a test compares: ``python tools/top_screens.py``. Read what changed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.top_screens import KEPT, SIZES, kept_file, screens


def main() -> None:
    """Write all of them; those of screens that are gone go."""
    for file in KEPT.glob("*.txt"):
        file.unlink()
    for size in SIZES:
        for name, text in asyncio.run(screens(size)).items():
            kept_file(name, size).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
