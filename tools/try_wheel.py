"""Installs each wheel of a folder into an empty environment and runs it there: ``python tools/try_wheel.py dist``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(folder: Path) -> None:
    """Raises ``CalledProcessError`` if the wheel cannot be installed or a command of it fails."""
    for wheel in sorted(folder.glob("*.whl")):
        _try_wheel(wheel)


def _try_wheel(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        # Outside the checkout, so that nothing of it is imported by accident.
        _run(place, "python", "-m", "pip", "install", "--quiet", str(wheel.resolve()))
        _run(place, "karpenter", "version")
        _run(place, "karpenter", "plan", "-f", str(ROOT / "examples" / "shop.yaml"))
        _run(place, "karpenter", "demo", "--pods", "60")


def _run(place: str, command: str, *arguments: str) -> None:
    subprocess.run([str(Path(place) / "bin" / command), *arguments], cwd=place, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
