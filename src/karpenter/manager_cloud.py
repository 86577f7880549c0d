"""The cloud of a controller process: simulated, AWS or that of another package, each with the loops that run for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from karpenter.api.kinds import KWOK_NODE_CLASS, Kind
from karpenter.api.meta import Wire
from karpenter.kube.protocol import Kube
from karpenter.manager_informers import ClusterInformers, WatchedKinds
from karpenter.model.clock import Clock
from karpenter.providers.contract import CloudProvider, GarbageCollectingProvider, ProviderContext, ProviderFactory
from karpenter.runtime.events import EventRecorder
from karpenter.settings import Settings

if TYPE_CHECKING:
    from karpenter.instancetypes.instance_type import InstanceType
    from karpenter.providers.simulated import Faults


class ProviderStartError(Exception):
    """The cloud cannot be used; the message says what is wrong and how to fix it."""


class SimulatedCloudConfig(NamedTuple):
    """The instance types of the simulated cloud, and its faults."""

    instance_types: tuple[InstanceType, ...]
    faults: Faults


@dataclass(frozen=True)
class ProviderSetup:
    """A provider and what runs for it beside the controllers (see ``ManagerOptions``).

    ``events`` is the recorder that the provider uses (None: the manager builds one).
    """

    provider: CloudProvider
    informers: ClusterInformers
    background_loops: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    garbage_collectors: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    events: EventRecorder | None = None


def simulated_setup(
    settings: Settings, kube: Kube, nodes_kube: Kube, clock: Clock, config: SimulatedCloudConfig
) -> ProviderSetup:
    """The simulated provider with its nodes, which have a connection of their own. A process on AWS does not import them."""
    from karpenter.providers.simulated import SimulatedNodes, SimulatedProvider

    provider = SimulatedProvider(kube, clock, config.instance_types, config.faults)
    nodes = SimulatedNodes(nodes_kube, clock)
    informers = ClusterInformers(kube, WatchedKinds.of(settings, (cast(Kind[Wire], KWOK_NODE_CLASS),)))
    informers.fault_sources.append(nodes.faults)
    return ProviderSetup(
        provider, informers, {"machines": partial(nodes.run, informers.pods)}, {"instances": provider.collect_garbage}
    )


def machines_setup(settings: Settings, kube: Kube, clock: Clock) -> ProviderSetup:
    """The provider of hosts that commands power on and off."""
    from karpenter.providers.machines import MachineProvider, PowerCommands

    events = EventRecorder(kube, clock)
    provider = MachineProvider(kube, clock, PowerCommands(settings.machine_power_directory), events)
    informers = ClusterInformers(kube, WatchedKinds.of(settings, provider.node_class_kinds))
    return ProviderSetup(provider, informers, garbage_collectors={"instances": provider.collect_garbage}, events=events)


def load_provider_factory(name: str) -> ProviderFactory:
    """What ``MODULE:NAME`` names. Raises ``ProviderStartError``."""
    module, _, attribute = name.partition(":")
    try:
        return cast(ProviderFactory, getattr(import_module(module), attribute))
    except ImportError as error:
        hint = "install its package, or add its folder to PYTHONPATH"
        raise ProviderStartError(f"provider {name}: {error}; {hint}") from error
    except AttributeError as error:
        raise ProviderStartError(f"provider {name}: module {module} has no {attribute}") from error


def external_setup(settings: Settings, kube: Kube, clock: Clock) -> ProviderSetup:
    """The provider of another package, named by the setting ``provider``. Raises ``ProviderStartError``."""
    provider = load_provider_factory(settings.provider)(ProviderContext(kube, clock))
    informers = ClusterInformers(kube, WatchedKinds.of(settings, provider.node_class_kinds))
    collectors: dict[str, Callable[[], Awaitable[object]]] = {}
    if isinstance(provider, GarbageCollectingProvider):
        collectors["instances"] = provider.collect_garbage
    return ProviderSetup(provider, informers, garbage_collectors=collectors)
