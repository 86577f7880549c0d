"""Where a controller process gets its machines from: the simulated cloud or AWS, each with the loops it brings along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from karpenter.api.core import Pod
from karpenter.kube.errors import KubeError
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Kube
from karpenter.manager import Manager
from karpenter.model.clock import Clock
from karpenter.providers.contract import CloudProvider
from karpenter.runtime.events import EventRecorder
from karpenter.state import ClusterState

if TYPE_CHECKING:
    from karpenter.instancetypes.instance_type import InstanceType
    from karpenter.providers.simulated import Faults


class ProviderStartError(Exception):
    """The cloud is not as it has to be; the message says what is wrong and how to mend it."""


class SimulatedCloudConfig(NamedTuple):
    """What the simulated cloud sells, and what goes wrong with it."""

    instance_types: tuple[InstanceType, ...]
    faults: Faults


@dataclass(frozen=True)
class ProviderSetup:
    """A provider and what runs for it beside the controllers (see ``ManagerOptions``).

    ``on_manager_built`` is called before the manager runs, to subscribe to its informers. ``state`` and ``events`` are those the
    provider was handed a view of (None: the manager builds its own).
    """

    provider: CloudProvider
    background_loops: Mapping[str, Callable[[Informer[Pod]], Awaitable[None]]] = field(default_factory=dict)
    garbage_collectors: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    api_server_faults: Callable[[], list[KubeError]] = list
    on_manager_built: Callable[[Manager], None] = lambda manager: None
    state: ClusterState | None = None
    events: EventRecorder | None = None


def simulated_setup(kube: Kube, nodes_kube: Kube, clock: Clock, config: SimulatedCloudConfig) -> ProviderSetup:
    """The simulated provider with its nodes, which have a connection of their own. A process on AWS does not import them."""
    from karpenter.providers.simulated import SimulatedNodes, SimulatedProvider

    provider = SimulatedProvider(kube, clock, config.instance_types, config.faults)
    stand_in = SimulatedNodes(nodes_kube, clock)
    return ProviderSetup(provider, {"machines": stand_in.run}, {"instances": provider.collect_garbage}, stand_in.faults)
