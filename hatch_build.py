"""Builds the C library that fills nodes in the price search, where there is a C compiler; else the wheel is pure Python.

Decisions are the same with and without it. ``KARPENTER_FILL_KERNEL=off`` leaves it out; ``CC`` names another compiler.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = "src/karpenter/scheduling/search"
#: No fused operations: sums must be those that numpy computes.
_FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-pthread", "-fPIC", "-shared", "-s")


class FillKernelHook(BuildHookInterface[Any]):  # type: ignore[misc]  # hatchling is there while wheels are built only
    """Adds ``fill_kernel.so`` to wheels and to editable installations."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library, and say what platform the wheel is for."""
        folder = Path(self.root) / _FOLDER
        library = folder / "fill_kernel.so"
        if _is_compiled(folder / "fill_kernel.c", library):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")
            build_data["artifacts"].append(f"{_FOLDER}/fill_kernel.so")
        else:
            library.unlink(missing_ok=True)


def _is_compiled(source: Path, library: Path) -> bool:
    """Compile the source; False without a compiler. A process that has loaded the library keeps the old one."""
    if os.environ.get("KARPENTER_FILL_KERNEL") == "off":
        return False
    built = library.with_suffix(f".{os.getpid()}")
    mark = f"-DKARPENTER_SOURCE={zlib.crc32(source.read_bytes())}u"
    command = [os.environ.get("CC") or "cc", *_FLAGS, mark, "-o", str(built), source.name, "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, cwd=source.parent)
    except (OSError, subprocess.CalledProcessError):
        built.unlink(missing_ok=True)
        return False
    built.replace(library)
    return True
