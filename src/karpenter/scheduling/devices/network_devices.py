"""Devices that several nodes reach: slices for all nodes, or for those that a selector selects (K15-161, K15-164, K15-170).

They belong to no host, so they are given out before nodes are planned, pod by pod: a claim that they can meet has them, and its
pod must be where they are reached, as if the claim were allocated already. A device is given to one claim of a plan only, a
shared one as far as its capacity goes. Claims that ask for all devices, or as administrator, are left to the devices of nodes,
and so is a claim that needs devices of both sorts.

A pod that runs and holds such devices may move to any node that reaches them: what its claim gives back, the claim of its
successor gets again (``held``). Pods of nodes that leave anyway ask like those that wait, since their devices are free by then.
The most important pods ask first. Devices given to a pod that fits nowhere in the end are given to no other pod in the same plan.

Growth: linear in devices; each place is compared with the pod's own alternatives for every claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from karpenter.api.resource_claims import Device, ResourceSlice, ResourceSliceSpec
from karpenter.api.scheduling_constraints import NodeSelector
from karpenter.model import labels
from karpenter.model.requirements import Requirements, intersects
from karpenter.scheduling.devices.device_allocation import Leftover, allocate
from karpenter.scheduling.devices.device_host import DeviceHost, DeviceSet
from karpenter.scheduling.devices.device_pools import DevicePool, PoolKey, host_device
from karpenter.scheduling.devices.device_state import DeviceStates
from karpenter.state.cluster_devices import DeviceKey, reachable_nodes
from karpenter.state.device_demands import ClaimedDevices, DeviceDemand, SharedClaim

#: Where devices are reached, alternatives of which one must hold; empty: from every node.
Reach = tuple[Requirements, ...]
_NODE_KIND = "Node"


class NetworkDevices:
    """What claims leave of the devices that several nodes reach, in the order in which pods ask.

    ``settled``: names of the Nodes that stay and are initialized: slices that another Node owns do not count. ``in_use``: what
    allocated claims hold. ``can_be``: whether some node, there or to come, can be in a place.
    """

    def __init__(
        self,
        slices: Iterable[ResourceSlice],
        pools: Mapping[PoolKey, DevicePool],
        in_use: Mapping[DeviceKey, Mapping[str, int] | None],
        settled: Collection[str],
        can_be: Callable[[Reach], bool],
    ) -> None:
        found = list(_network_devices(slices, pools, settled))
        counters = {
            (*key, *name): amount
            for key in {each for each, _, _ in found}
            for name, amount in pools[key].counters.items()
        }
        self._host = DeviceHost([host_device(key, device) for key, device, _ in found], counters)
        states = DeviceStates(self._host)
        self._all_free = states.all_free.leftover
        self._left = states.with_held(in_use).leftover
        reaches = [reachable_nodes(selector, {}) for _, _, selector in found]
        self._reaches = reaches
        self._positions = {(*key, device.name): at for at, (key, device, _) in enumerate(found)}
        devices_at: dict[Reach, DeviceSet] = {}
        for at, reach in enumerate(reaches):
            devices_at[reach] = devices_at.get(reach, 0) | 1 << at
        everywhere = devices_at.pop((), 0)
        #: Which devices are reached where, those that are reached from everywhere first.
        self._places: dict[Reach, DeviceSet] = {(): everywhere} if everywhere else {}
        for reach in sorted((each for each in devices_at if not _names_hosts(each)), key=str):
            if can_be(reach):
                self._places[reach] = devices_at[reach] | everywhere
        self._reach_of_shared: dict[tuple[str, str], Reach] = {}

    def __bool__(self) -> bool:
        return bool(self._positions)

    def take(self, demand: DeviceDemand, allowed: Sequence[Requirements]) -> tuple[tuple[Reach, ...], DeviceDemand]:
        """Give a pod what these devices can meet of its demand: the places its node must be in, and what is left of the demand.

        ``allowed``: alternatives for the pod's node; devices that none of them reaches are not given.
        """
        before = self._left
        for reach in self._places:
            together = [(claim, self._reach_of(claim, [allowed, reach], (reach,))) for claim in demand.claims]
            if all(found is not None for _, found in together):
                return self._given(together), DeviceDemand(())
            self._left = before
        left: list[ClaimedDevices | SharedClaim] = []
        met: list[tuple[ClaimedDevices | SharedClaim, Reach | None]] = []
        for claim in demand.claims:
            reaches = [found for _, found in met if found is not None]
            found = self._reach_of(claim, [allowed, *reaches], self._places)
            if found is None:
                left.append(claim)
            else:
                met.append((claim, found))
        return self._given(met), DeviceDemand(tuple(left)) if met else demand

    def keep(
        self, demand: DeviceDemand, held: Sequence[tuple[DeviceKey, ...]]
    ) -> tuple[tuple[Reach, ...], DeviceDemand]:
        """What a running pod would get again elsewhere: the places its node must be in, and what is left of its demand.

        ``held``: the devices that each of its claims holds. A claim that holds a device of a single node is left, and one that
        its devices would not be given again, because of a taint for example.
        """
        places: list[Reach] = []
        left: list[ClaimedDevices | SharedClaim] = []
        for claim, devices in zip(demand.claims, held, strict=True):
            reaches = self._places_of_held(claim, devices)
            if reaches is None:
                left.append(claim)
            else:
                places += reaches
        return tuple(dict.fromkeys(places)), DeviceDemand(tuple(left)) if len(left) < len(demand.claims) else demand

    def _places_of_held(
        self, claim: ClaimedDevices | SharedClaim, devices: tuple[DeviceKey, ...]
    ) -> tuple[Reach, ...] | None:
        """All of these are where the claim finds its devices; None where it would not get exactly these again."""
        positions = [self._positions.get(each) for each in devices]
        reaches = [self._reaches[at] for at in positions if at is not None]
        if not devices or len(reaches) < len(devices) or any(map(_names_hosts, reaches)):
            return None
        if not _may_be_met(claim):
            return None
        own = sum({1 << at for at in positions if at is not None})
        if allocate(self._host, replace(self._all_free, free=own), DeviceDemand((claim,))) is None:
            return None
        return tuple(dict.fromkeys(reach for reach in reaches if reach))

    def _given(self, met: Sequence[tuple[ClaimedDevices | SharedClaim, Reach | None]]) -> tuple[Reach, ...]:
        """The places of claims that have their devices; those that pods share are met for all of them."""
        for claim, reach in met:
            if isinstance(claim, SharedClaim) and reach is not None:
                self._reach_of_shared[claim.key] = reach
        return tuple(dict.fromkeys(reach for _, reach in met if reach))

    def _reach_of(
        self, claim: ClaimedDevices | SharedClaim, demanded: Sequence[Sequence[Requirements]], reaches: Iterable[Reach]
    ) -> Reach | None:
        """In which of these places a claim is met, and must be with all that is demanded; None for nowhere."""
        devices = claim.devices if isinstance(claim, SharedClaim) else claim
        known = self._reach_of_shared.get(claim.key) if isinstance(claim, SharedClaim) else None
        if known is not None:
            return known if all(_agree(known, alternatives) for alternatives in demanded) else None
        if not _may_be_met(devices):
            return None
        for reach in reaches:
            if all(_agree(reach, each) for each in demanded) and self._meet(claim, self._places[reach]):
                return reach
        return None

    def _meet(self, claim: ClaimedDevices | SharedClaim, reached: DeviceSet) -> bool:
        """Take the devices of a claim among those that are reached; whether it has them."""
        left = self._left
        open_here = left.free & reached
        found = allocate(self._host, Leftover(open_here, left.counters, left.consumed), DeviceDemand((claim,)))
        if found is None:
            return False
        taken = open_here & ~found.leftover.free
        self._left = Leftover(left.free & ~taken, found.leftover.counters, found.leftover.consumed)
        return True


def _may_be_met(claim: ClaimedDevices | SharedClaim) -> bool:
    """Whether such devices may meet a claim: not one for all devices, nor that of an administrator or an extended resource."""
    devices = claim.devices if isinstance(claim, SharedClaim) else claim
    return not devices.extended_resource and not any(
        each.takes_all or each.admin_access for request in devices.requests for each in request.alternatives
    )


def _network_devices(
    slices: Iterable[ResourceSlice], pools: Mapping[PoolKey, DevicePool], settled: Collection[str]
) -> Iterator[tuple[PoolKey, Device, NodeSelector | None]]:
    """Devices of usable pools that no single node owns, by pool, with the nodes that reach them; None for all."""
    unsettled = {id(each.spec) for each in slices if not _is_settled(each, settled)}
    for key in sorted(pools):
        if pools[key].error:
            continue
        for device, spec in pools[key].devices:
            if id(spec) in unsettled:
                continue
            is_everywhere, selector = _access(spec, device)
            if is_everywhere or selector is not None:
                yield key, device, None if is_everywhere else selector


def _access(spec: ResourceSliceSpec, device: Device) -> tuple[bool, NodeSelector | None]:
    """Whether all nodes reach a device, and else which."""
    if spec.per_device_node_selection:
        return bool(device.flat.all_nodes), device.flat.node_selector
    return bool(spec.all_nodes), spec.node_selector


def _is_settled(resource_slice: ResourceSlice, settled: Collection[str]) -> bool:
    """Whether no Node owns a slice, or one that stays and is initialized does."""
    owners = resource_slice.metadata.owner_references
    return all(owner.name in settled for owner in owners if owner.kind == _NODE_KIND)


def _names_hosts(reach: Reach) -> bool:
    """Devices of a single node by its hostname: such a place is that node, which may be full."""
    return any(labels.HOSTNAME in alternative for alternative in reach)


def _agree(reach: Reach, alternatives: Sequence[Requirements]) -> bool:
    return not reach or not alternatives or any(intersects(one, other) for one in reach for other in alternatives)
