"""Simulated BMCs: hosts that take time to boot and to shut down, and hosts that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from karpenter.providers.machines import PowerFailed


class SimulatedBmc:
    """Implements ``MachinePower``. ``on_boot`` is called with the host when it has booted."""

    def __init__(self, boot_seconds: float = 0.0, shut_down_seconds: float = 0.0) -> None:
        self.broken: set[str] = set()
        #: The delay of a driver whose host does not answer.
        self.seconds_to_fail = 0.0
        self.powered: set[str] = set()
        self.calls: list[tuple[str, str, str, Mapping[str, str]]] = []
        self.on_boot: Callable[[str], Awaitable[None]] | None = None
        self._boot_seconds = boot_seconds
        self._shut_down_seconds = shut_down_seconds
        self._booting: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def on(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
        """Power a host on at once; it boots."""
        await self._called("on", driver, host, variables)
        if host not in self.powered:
            self.powered.add(host)
            self._booting[host] = asyncio.create_task(self._boot(host))

    async def off(self, driver: str, host: str, variables: Mapping[str, str]) -> None:
        """Start to shut a host down; no effect on one that already shuts down."""
        await self._called("off", driver, host, variables)
        if host not in self._ending:
            self._ending[host] = asyncio.create_task(self._shut_down(host))

    async def is_on(self, driver: str, host: str, variables: Mapping[str, str]) -> bool:
        """Whether the host has power."""
        await self._called("status", driver, host, variables)
        return host in self.powered

    async def _called(self, action: str, driver: str, host: str, variables: Mapping[str, str]) -> None:
        self.calls.append((driver, action, host, variables))
        if host in self.broken:
            await asyncio.sleep(self.seconds_to_fail)
            raise PowerFailed(f"{driver} {action} {host} ended with 1: no answer")

    async def _boot(self, host: str) -> None:
        await asyncio.sleep(self._boot_seconds)
        if self.on_boot is not None and host in self.powered:
            await self.on_boot(host)

    async def _shut_down(self, host: str) -> None:
        await asyncio.sleep(self._shut_down_seconds)
        self.powered.discard(host)
        del self._ending[host]
