"""A Deployment on a real control plane, and waiting for what becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from controlplane.harness import Json
from controlplane.timeouts import scaled_timeout


def web(replicas: int) -> Json:
    """The Deployment ``web`` with pods of half a CPU and a gibibyte."""
    labels = {"app": "web"}
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


async def settled(missing: Callable[[], Awaitable[str]], within_seconds: float) -> None:
    """Wait until nothing is ``missing``; fail with what is at the deadline."""
    end = time.monotonic() + scaled_timeout(within_seconds)
    while text := await missing():
        assert time.monotonic() < end, text
        await asyncio.sleep(0.5)
