"""Where a controller process gets its machines from: the simulated cloud or AWS, each with the loops it brings along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from karpenter.api.core import Pod
from karpenter.catalog.types import InstanceType
from karpenter.control.manager import Manager
from karpenter.kube.errors import KubeError
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.providers.contract import CloudProvider
from karpenter.providers.simulated import Faults, Machines, SimulatedProvider


class CannotStart(Exception):
    """The cloud is not as it has to be; the message says what is wrong and how to mend it."""


class Market(NamedTuple):
    """What the simulated cloud sells, and what goes wrong with it."""

    types: tuple[InstanceType, ...]
    script: Faults


@dataclass(frozen=True)
class Cloud:
    """A provider and what runs for it beside the controllers (see ``manager.Extra``).

    ``joined`` is told the manager before it runs, to listen to its watches.
    """

    provider: CloudProvider
    loops: Mapping[str, Callable[[Informer[Pod]], Awaitable[None]]] = field(default_factory=dict)
    collectors: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    faults: Callable[[], list[KubeError]] = list
    joined: Callable[[Manager], None] = lambda manager: None


def simulated(kube: Kube, machines: Kube, clock: Clock, market: Market) -> Cloud:
    """The cloud that costs nothing, with a stand-in for its machines on a connection of their own."""
    provider = SimulatedProvider(kube, clock, market.types, market.script)
    stand_in = Machines(machines, clock)
    return Cloud(provider, {"machines": stand_in.run}, {"instances": provider.collect_garbage}, stand_in.faults)
