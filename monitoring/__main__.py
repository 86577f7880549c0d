"""Writes dashboards, rules and their page: ``python -m monitoring``."""

from __future__ import annotations

from pathlib import Path

from monitoring.files import FILES

_ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    for name, write in FILES.items():
        path = _ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write(), encoding="utf-8")
