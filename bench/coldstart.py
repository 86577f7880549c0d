"""Cold start of `karpenter run` against an empty cluster, to its first reconcile."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.figures import Figure
from bench.mainjob import NODE_CLASS, node_pool
from controlplane.harness import ControlPlane
from controlplane.process import controller
from karpenter.api import crds

_REPEATS = 5


def figures() -> Iterator[Figure]:
    """Seconds from starting the process until its controllers run; the median."""
    taken = []
    with ControlPlane() as plane:
        plane.apply(*crds.custom_resource_definitions())
        plane.apply(NODE_CLASS, node_pool())
        for _ in range(_REPEATS):
            started = time.monotonic()
            with controller(plane.kubeconfig) as running:
                running.await_line("Starting Controller")
                taken.append(time.monotonic() - started)
    yield Figure("cold start to first reconcile", sorted(taken)[_REPEATS // 2], "s", 2.0)
