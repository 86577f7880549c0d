"""Devices in one decision: what each pod still needs, and what each node has left (SCH-784, SCH-786).

It exists only where a pod has claims: all others cost nothing more than the question. Devices of nodes come from the slices that
name them; until a driver has published the whole pool of a node that is not initialized, the templates of its type stand for it.
Devices that several nodes reach (``allNodes``, node selectors) are given to pods that wait before nodes are planned
(`network_devices`), and to those of nodes that leave; pods that run may move where theirs are reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from karpenter.api.core import Pod
from karpenter.api.resource_claims import Device, ResourceSliceSpec
from karpenter.instancetypes.instance_type import DeviceTemplates
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import compatible
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.device_pools import HostDevice, PoolKey, device_pools, host_device
from karpenter.scheduling.devices.device_state import DeviceState
from karpenter.scheduling.devices.network_devices import NetworkDevices, Reach
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.offerings.nodepool_templates import nodepool_requirements
from karpenter.state.cluster_devices import (
    NO_POD_DEVICES,
    ClusterDevices,
    LeavingPods,
    PodDevices,
    combined_alternatives,
)
from karpenter.state.device_demands import DeviceDemand
from karpenter.state.pod_signature import node_alternatives_of
from karpenter.state.snapshot import ClusterSnapshot, PodKey, pod_key, scheduling_order
from karpenter.state.state_node import StateNode

#: Driver, pool, counter set and counter, with the amount of all.
_Counters = dict[tuple[str, str, str, str], int]


class NodeDevices:
    """What is left of a node's devices; of one that may become several types, of each of them. Immutable."""

    __slots__ = ("states",)

    def __init__(self, states: tuple[DeviceState, ...]) -> None:
        self.states = states

    def after(self, demand: DeviceDemand, count: int) -> tuple[int, NodeDevices]:
        """How many of so many pods can have their devices whatever the node becomes, and what they leave."""
        for state in self.states:
            count = min(count, state.after_count(demand, count)[0])
        if not count:
            return 0, self
        return count, NodeDevices(tuple(state.after_count(demand, count)[1] for state in self.states))


class DevicePlanning:
    """The devices of one decision. ``indexes`` by NodePool; ``pods`` are all that the decision may place."""

    def __init__(self, snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex], pods: Iterable[Pod]) -> None:
        devices = snapshot.devices or ClusterDevices()
        nodes = [(view, view.node.metadata.name) for view in snapshot.nodes if view.node is not None]
        self._devices = devices
        self._uids_on_node = {name: frozenset(pod.metadata.uid for pod in view.pods) for view, name in nodes}
        leaving = (view for view in snapshot.nodes if view.marked_for_deletion)
        self._leaving_uids = frozenset(pod.metadata.uid for view in leaving for pod in view.pods)
        self._hostnames = {name: view.hostname for view, name in nodes}
        self._resolved: dict[PodKey, PodDevices] = {}
        self._requests: dict[DeviceDemand, Resources] = {}
        self._pools = device_pools(each.spec for each in devices.slices)
        self._slices_by_node = _slices_by_node(devices)
        self._in_use = devices.devices_in_use(LeavingPods(self._leaving_uids))
        self._network = NetworkDevices(
            devices.slices,
            self._pools,
            self._in_use,
            {name for view, name in nodes if view.initialized and not view.marked_for_deletion},
            lambda reach: _can_be(reach, snapshot, indexes),
        )
        in_turn = sorted(pods, key=scheduling_order) if self._network else pods
        demands = dict.fromkeys(needed.demand for pod in in_turn if (needed := self.resolve(pod)).demand is not None)
        self.types = TypeDevices([each for each in demands if each is not None], devices.remembered)
        self.indexes = {name: self.types.with_devices(index) for name, index in indexes.items()}
        self._nodes: dict[str, NodeDevices] = {
            view.key: self._devices_of_node(view, name, self.indexes.get(view.pool))
            for view, name in nodes
            if not view.marked_for_deletion
        }

    # -- pods -------------------------------------------------------------------------------------------------------------------

    def resolve(self, pod: Pod) -> PodDevices:
        """What a pod's claims mean. One that runs moves with all pods of its node, so these give up their devices together."""
        if not self._devices.asks_for_devices(pod):
            return NO_POD_DEVICES
        key = pod_key(pod)
        resolved = self._resolved.get(key)
        if resolved is None:
            uids = self._leaving_uids | self._uids_on_node.get(pod.spec.node_name, frozenset())
            resolved = self._devices.resolve(pod, LeavingPods(uids, self._hostnames))
            if self._network and resolved.demand is not None:
                resolved = self._with_network_devices(pod, resolved, resolved.demand)
            self._resolved[key] = resolved
        return resolved

    def _with_network_devices(self, pod: Pod, resolved: PodDevices, demand: DeviceDemand) -> PodDevices:
        """The same, once devices that several nodes reach have met what they can of the demand.

        A pod that runs on a node that stays keeps its own: it must not take others while it is only asked where it could move.
        """
        if not pod.spec.node_name or pod.metadata.uid in self._leaving_uids:
            own = node_alternatives_of(pod.spec)
            places, left = self._network.take(demand, combined_alternatives(own, resolved.node_alternatives))
        elif resolved.held:
            places, left = self._network.keep(demand, resolved.held)
        else:
            return resolved
        alternatives = resolved.node_alternatives
        for reach in places:
            alternatives = combined_alternatives(alternatives, reach)
        remaining = self._devices.demand_of(left.claims) if left.claims else None
        return replace(resolved, node_alternatives=alternatives, demand=remaining)

    def requests_of(self, demand: DeviceDemand) -> Resources:
        """What a pod takes of the resources that stand for devices."""
        requests = self._requests.get(demand)
        if requests is None:
            requests = self._requests[demand] = self.types.requests_of(demand)
        return requests

    # -- nodes ------------------------------------------------------------------------------------------------------------------

    def devices_of(self, view: StateNode, index: TypeIndex | None, possible_types: TypeSet) -> NodeDevices:
        """What is left of a node's devices before the decision; of a claim, what all types have that it may become."""
        devices = self._nodes.get(view.key)
        if devices is None and index is not None and possible_types:
            states = {
                id(each): each for each in (self.types.states_of(index.types[at]) for at in members(possible_types))
            }
            devices = NodeDevices(tuple(each.all_free for each in states.values()))
        if devices is None:
            devices = NodeDevices((self.types.states(DeviceTemplates()).all_free,))
        self._nodes[view.key] = devices
        return devices

    def resources_of(self, node_devices: NodeDevices) -> Resources:
        """The same as resources: the least that the node may have."""
        return res.minimum(self.types.amounts_of(state) for state in node_devices.states)

    def _devices_of_node(self, view: StateNode, name: str, index: TypeIndex | None) -> NodeDevices:
        published = self._slices_by_node.get(name, {})
        devices: list[HostDevice] = []
        counters: _Counters = {}
        whole = [key for key in sorted(published) if not self._pools[key].error]
        for key in whole:
            devices += [host_device(key, device) for device in published[key]]
            counters |= {(*key, *counter): amount for counter, amount in self._pools[key].counters.items()}
        errors = [self._pools[key].error for key in sorted(published) if self._pools[key].error]
        if view.managed and not view.initialized and index is not None:
            expected, totals = self._expected_devices(view, index, {driver for driver, _ in whole})
            devices, counters, errors = [*devices, *expected], {**counters, **totals}, []
        native = frozenset(each for each in self.types.extended_resources if view.allocatable.get(each, 0) > 0)
        return NodeDevices((self.types.states_with(devices, counters, errors, native).with_held(self._in_use),))

    def _expected_devices(
        self, view: StateNode, index: TypeIndex, published: set[str]
    ) -> tuple[Sequence[HostDevice], _Counters]:
        """Devices of the node's type whose drivers have not published theirs yet (K15-163)."""
        names = view.requirements.requirement_for(labels.INSTANCE_TYPE).values
        at = next(members(index.named(*names)), None)
        if at is None:
            return (), {}
        host = self.types.states_of(index.types[at]).host
        devices = [device for device in host.devices if device.driver not in published]
        return devices, {name: amount for name, amount in host.counter_totals.items() if name[0] not in published}


def _slices_by_node(devices: ClusterDevices) -> dict[str, dict[PoolKey, list[Device]]]:
    """The devices that only one node reaches, by node and pool, of the newest generation of the pool."""
    newest: dict[PoolKey, int] = {}
    for each in devices.slices:
        key = (each.spec.driver, each.spec.pool.name)
        newest[key] = max(newest.get(key, 0), each.spec.pool.generation)
    devices_by_node: dict[str, dict[PoolKey, list[Device]]] = {}
    for each in devices.slices:
        key = (each.spec.driver, each.spec.pool.name)
        for node, local in _by_node(each.spec) if each.spec.pool.generation == newest[key] else ():
            devices_by_node.setdefault(node, {}).setdefault(key, []).extend(local)
    return devices_by_node


def _by_node(spec: ResourceSliceSpec) -> Iterator[tuple[str, Sequence[Device]]]:
    """Devices of a slice by the only node that reaches them."""
    if spec.node_name:
        yield spec.node_name, spec.devices
    elif spec.per_device_node_selection:
        for device in spec.devices:
            if device.flat.node_name:
                yield device.flat.node_name, (device,)


def _can_be(reach: Reach, snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex]) -> bool:
    """Whether some node that stays, or one that a NodePool can launch, is in a place."""
    if any(compatible(view.requirements, each, frozenset()) for each in reach for view in _staying(snapshot)):
        return True
    for pool in snapshot.pools:
        index = indexes.get(pool.metadata.name)
        own = nodepool_requirements(pool)
        if index is not None and any(
            compatible(own, each, labels.WELL_KNOWN | index.well_known) and index.matching(each) for each in reach
        ):
            return True
    return False


def _staying(snapshot: ClusterSnapshot) -> Iterator[StateNode]:
    return (view for view in snapshot.nodes if not view.marked_for_deletion)


def devices_matter(snapshot: ClusterSnapshot, pods: Iterable[Pod]) -> bool:
    """Whether any pod of a decision asks for devices, and the cluster's are known."""
    devices = snapshot.devices
    return devices is not None and any(devices.asks_for_devices(pod) for pod in pods)
