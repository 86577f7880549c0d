"""The file system of the controller's image without a container engine, made by the script that `deploy/Dockerfile` runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_PLACE = "/opt/karpenter"


def build(target: Path) -> None:
    """Make the image's `/opt/karpenter` in a folder (half a minute). Raises ``CalledProcessError``."""
    environment = {**os.environ, "UV": str(Path(sys.executable).with_name("uv")), "PYTHON": interpreter()}
    environment.pop("VIRTUAL_ENV", None)
    subprocess.run(
        [ROOT / "deploy" / "image" / "build.sh", ROOT, target], env=environment, check=True, capture_output=True
    )


def interpreter() -> str:
    """Python outside the environment of the tests, as the base image has it."""
    return str(Path(sys.executable).resolve())


def program(target: Path) -> tuple[str, ...]:
    """The entry point of the image, started from the folder; it must not import packages of this machine."""
    (entry,) = re.findall(
        r'^ENTRYPOINT \["/usr/local/bin/python3\.11", "(\S+)"\]$', DOCKERFILE.read_text(), re.MULTILINE
    )
    return interpreter(), "-s", entry.replace(_PLACE, str(target))


def environment(target: Path) -> dict[str, str]:
    """The environment the Dockerfile sets, for the folder."""
    (line,) = re.findall(r"^ENV (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    pairs = (word.split("=", 1) for word in line.split())
    return {name: value.replace(_PLACE, str(target)) for name, value in pairs if name != "PATH"}
