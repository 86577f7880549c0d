"""The controller's image: size of its layer, and seconds from its start to ready on an empty cluster."""

from __future__ import annotations

import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from controlplane.harness import ControlPlane
from controlplane.process import controller
from karpenter.api import crds
from support import image

_REPEATS = 5
#: Less than this is left for our layer: an image should stay below 150 MB, and python:3.11-slim is about 45 of them.
_LAYER_MB = 150.0 - 45.0


def figures() -> Iterator[Figure]:
    """Megabytes a node pulls, megabytes on its disk, and the median time to ready."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "karpenter"
        image.build(target)
        packed = Path(folder) / "layer.tar.gz"
        with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
            archive.add(target, "opt/karpenter")
        yield Figure("image: layer on python:3.11-slim, compressed", packed.stat().st_size / 1e6, "MB", _LAYER_MB)
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        yield Figure("image: layer on python:3.11-slim, on disk", size / 1e6, "MB")
        yield Figure("image: start to ready", _start_seconds(target), "s", 2.0)


def _start_seconds(target: Path) -> float:
    taken = []
    with ControlPlane() as plane:
        plane.apply(*crds.custom_resource_definitions())
        for _ in range(_REPEATS):
            started = time.monotonic()
            program, environment = image.program(target), image.environment(target)
            with controller(plane.kubeconfig, environment=environment, program=program) as running:
                running.until(running.is_ready, "become ready")
                taken.append(time.monotonic() - started)
    return sorted(taken)[_REPEATS // 2]
