"""Options of conversions on a cluster: what ``karpenter convert`` takes from flags comes from settings and the API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from karpenter.conversion.options import ConversionOptions

_REFRESH_SECONDS = 3600.0


class ClusterConversionOptions:
    """``options`` with the Kubernetes version of the cluster, once that is known (API-854)."""

    def __init__(self, options: ConversionOptions, version: Callable[[], Awaitable[str]]) -> None:
        self._options = options
        self._version = version

    def current(self) -> ConversionOptions:
        """The options now."""
        return self._options

    async def reconcile(self) -> float:
        """Read the version of the API server; returns the seconds until the next time. Raises ``KubeError``."""
        version = (await self._version()).rstrip("+")
        self._options = replace(self._options, kubernetes_version=version)
        return _REFRESH_SECONDS
