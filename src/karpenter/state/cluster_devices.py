"""The devices and claims of the cluster as frozen data, and what they mean for a pod (SCH-783, SCH-786, SCH-787).

`ClusterDevices.resolve` answers for one pod: errors that keep a plan from being made, the nodes to which allocated claims bind
it, and the devices it still needs. Claims by name that are not allocated are planned once for all pods that use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from karpenter.api.core import Pod, PodResourceClaim
from karpenter.api.resource_claims import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
    ResourceSliceSpec,
)
from karpenter.api.scheduling_constraints import NodeSelector, NodeSelectorTerm
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirements, requirement
from karpenter.state.claim_validation import (
    InvalidClaim,
    claimed_devices,
    extended_resource_devices,
    parsed_quantity,
)
from karpenter.state.device_demands import ClaimedDevices, DeviceDemand, SharedClaim

#: Namespace and name.
ObjectKey = tuple[str, str]
#: Driver, pool and name of a device.
DeviceKey = tuple[str, str, str]

_POD_RESOURCE = "pods"
_NODE_NAME_FIELD = "metadata.name"
#: A class may be asked for as an extended resource by this prefix and its name.
IMPLICIT_EXTENDED_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"


@dataclass(frozen=True)
class PodDevices:
    """What a pod's claims mean. ``node_alternatives``: where allocated claims allow it, empty for anywhere.

    ``held``: for each claim of the demand the devices that it holds now, and gives back when the pod leaves.
    """

    errors: tuple[str, ...] = ()
    errors_are_transient: bool = False
    node_alternatives: tuple[Requirements, ...] = ()
    demand: DeviceDemand | None = None
    held: tuple[tuple[DeviceKey, ...], ...] = ()


NO_POD_DEVICES = PodDevices()


@dataclass(frozen=True)
class LeavingPods:
    """Pods that give their devices back, by UID, and the hostnames of the Nodes that are there, by name."""

    uids: Collection[str] = frozenset()
    hostnames: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ClusterDevices:
    """Claims, templates, classes and slices.

    ``remembered``: what nodes that were there before published, by instance type.
    """

    claims: Mapping[ObjectKey, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[ObjectKey, ResourceClaimTemplate] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    slices: tuple[ResourceSlice, ...] = ()
    remembered: Mapping[str, tuple[ResourceSliceSpec, ...]] = field(default_factory=dict)

    # -- classes that stand for extended resources --------------------------------------------------------------------------

    @cached_property
    def classes_by_resource(self) -> Mapping[str, DeviceClass]:
        """Classes by the extended resource that pods may request instead; of several the newest, then by name."""
        classes: dict[str, DeviceClass] = {}
        for name in sorted(self.classes, reverse=True):
            device_class = self.classes[name]
            classes[IMPLICIT_EXTENDED_RESOURCE_PREFIX + name] = device_class
            resource = device_class.spec.extended_resource_name
            if resource and (resource not in classes or not _is_newer(classes[resource], device_class)):
                classes[resource] = device_class
        return classes

    def asks_for_devices(self, pod: Pod) -> bool:
        """Whether the pod has claims, or requests an extended resource that a class stands for (SCH-780)."""
        return bool(pod.spec.resource_claims) or (bool(self.classes) and any(self._extended_resources(pod)))

    def _extended_resources(self, pod: Pod) -> Iterator[tuple[str, int]]:
        by_resource = self.classes_by_resource
        for container in (*pod.spec.containers, *pod.spec.init_containers):
            if any(name in by_resource for name in container.resources.requests):
                amounts = pods.pod_requests(pod)
                yield from ((name, amounts[name] // res.ONE_UNIT) for name in sorted(amounts) if name in by_resource)
                return

    # -- one pod --------------------------------------------------------------------------------------------------------------

    def resolve(self, pod: Pod, leaving: LeavingPods) -> PodDevices:
        """What a pod's claims mean, while the leaving pods give up theirs."""
        errors: list[InvalidClaim] = []
        alternatives: tuple[Requirements, ...] = ()
        needed: list[ClaimedDevices | SharedClaim] = []
        held: list[tuple[DeviceKey, ...]] = []
        for reference in pod.spec.resource_claims:
            claim = self._resolve_claim(pod, reference, leaving)
            if isinstance(claim, InvalidClaim):
                errors.append(claim)
            elif isinstance(claim, tuple):
                alternatives = combined_alternatives(alternatives, claim)
            elif claim is not None:
                needed.append(claim)
                held.append(self._held_devices(pod, reference))
        for resource, count in self._extended_resources(pod) if self.classes else ():
            devices = extended_resource_devices(resource, self.classes_by_resource[resource], count)
            if isinstance(devices, InvalidClaim):
                errors.append(devices)
            elif count:
                needed.append(devices)
                held.append(())
        if errors:
            return PodDevices(tuple(each.error for each in errors), all(each.is_transient for each in errors))
        demand = self.demand_of(tuple(needed)) if needed else None
        return PodDevices((), False, alternatives, demand, tuple(held) if any(held) else ())

    def demand_of(self, claims: tuple[ClaimedDevices | SharedClaim, ...]) -> DeviceDemand:
        """The demand of these claims; one object for equal ones."""
        demand = self._demands.get(claims)
        if demand is None:
            demand = self._demands[claims] = DeviceDemand(claims)
        return demand

    @cached_property
    def _demands(self) -> dict[tuple[ClaimedDevices | SharedClaim, ...], DeviceDemand]:
        return {}

    def _resolve_claim(
        self, pod: Pod, reference: PodResourceClaim, leaving: LeavingPods
    ) -> ClaimedDevices | SharedClaim | InvalidClaim | tuple[Requirements, ...] | None:
        """The devices a claim still needs, the nodes to which it binds the pod, an error, or None where it needs nothing."""
        namespace = pod.metadata.namespace
        is_own = not reference.resource_claim_name
        name = _claim_name(pod, reference)
        if name is None:
            return self._resolve_template((namespace, reference.resource_claim_template_name or ""))
        if not name:
            return None
        claim = self.claims.get((namespace, name))
        if claim is None:
            return InvalidClaim(f'resourceclaim "{namespace}/{name}" not found', is_transient=True)
        if claim.metadata.deletion_timestamp is not None:
            return InvalidClaim(f'resourceclaim "{namespace}/{name}" is being deleted', is_transient=True)
        if claim.status.allocation is not None and not is_held_only_by(claim, leaving.uids):
            return _nodes_of_allocation(claim.status.allocation, leaving.hostnames)
        devices = self._claimed(name, claim.spec)
        if is_own or isinstance(devices, InvalidClaim):
            return devices
        return SharedClaim((namespace, name), devices)

    def _held_devices(self, pod: Pod, reference: PodResourceClaim) -> tuple[DeviceKey, ...]:
        """The devices that a claim of a pod is allocated."""
        claim = self.claims.get((pod.metadata.namespace, _claim_name(pod, reference) or ""))
        if claim is None or claim.status.allocation is None:
            return ()
        return tuple((each.driver, each.pool, each.device) for each in claim.status.allocation.devices.results)

    def _resolve_template(self, key: ObjectKey) -> ClaimedDevices | InvalidClaim:
        """A claim that is yet to be made looks as its template says."""
        template = self.templates.get(key)
        if template is None:
            return InvalidClaim(f'resourceclaimtemplate "{"/".join(key)}" not found', is_transient=True)
        return self._claimed(key[1], template.spec.spec)

    def _claimed(self, name: str, spec: ResourceClaimSpec) -> ClaimedDevices | InvalidClaim:
        devices = self._claimed_by_spec.get(id(spec))
        if devices is None:
            devices = claimed_devices(name, spec, self.classes)
            if isinstance(devices, ClaimedDevices):
                devices = self._interned.setdefault(devices, devices)
            self._claimed_by_spec[id(spec)] = devices
        return devices

    @cached_property
    def _claimed_by_spec(self) -> dict[int, ClaimedDevices | InvalidClaim]:
        return {}

    @cached_property
    def _interned(self) -> dict[ClaimedDevices, ClaimedDevices]:
        return {}

    # -- devices in use ---------------------------------------------------------------------------------------------------------

    def devices_in_use(self, leaving: LeavingPods) -> Mapping[DeviceKey, Mapping[str, int] | None]:
        """Devices that allocated claims hold (K15-168): by device what is consumed of a shared one, None for one held whole.

        A device held as administrator stays free, and so does what only leaving pods hold.
        """
        held: dict[DeviceKey, Mapping[str, int] | None] = {}
        for key in sorted(self.claims):
            claim = self.claims[key]
            if claim.status.allocation is None or is_held_only_by(claim, leaving.uids):
                continue
            for result in claim.status.allocation.devices.results:
                if not result.admin_access:
                    device = (result.driver, result.pool, result.device)
                    consumed = {name: parsed_quantity(value) or 0 for name, value in result.consumed_capacity.items()}
                    held[device] = _added(held.get(device, {}), consumed) if consumed else None
        return held


def _claim_name(pod: Pod, reference: PodResourceClaim) -> str | None:
    """The name of a claim of a pod; empty where it needs none, None while it is yet to be made from its template."""
    if reference.resource_claim_name or not reference.resource_claim_template_name:
        return reference.resource_claim_name or ""
    made = next((each for each in pod.status.resource_claim_statuses if each.name == reference.name), None)
    return None if made is None else made.resource_claim_name or ""


def is_held_only_by(claim: ResourceClaim, uids: Collection[str]) -> bool:
    """Whether every consumer of a claim is one of these pods; another consumer, or none, keeps the allocation (K15-152)."""
    consumers = claim.status.reserved_for
    return bool(consumers) and all(
        not each.api_group and each.resource == _POD_RESOURCE and each.uid in uids for each in consumers
    )


def _is_newer(first: DeviceClass, second: DeviceClass) -> bool:
    created, other = first.metadata.creation_timestamp, second.metadata.creation_timestamp
    return created is not None and (other is None or created > other)


def _added(held: Mapping[str, int] | None, consumed: Mapping[str, int]) -> Mapping[str, int] | None:
    return None if held is None else res.add(held, consumed)


def _nodes_of_allocation(allocation: AllocationResult, hostnames: Mapping[str, str]) -> tuple[Requirements, ...]:
    """Where the devices of an allocation can be reached (`reachable_nodes`)."""
    return reachable_nodes(allocation.node_selector, hostnames)


def reachable_nodes(selector: NodeSelector | None, hostnames: Mapping[str, str]) -> tuple[Requirements, ...]:
    """The nodes that a selector selects, a term each; beyond K15-154, field selectors by name count too.

    Empty for anywhere. A term that names a Node which is not there is met by no node.
    """
    terms = selector.node_selector_terms if selector is not None else ()
    return tuple(_reachable(term, hostnames) for term in terms if term.match_expressions or term.match_fields)


def _reachable(term: NodeSelectorTerm, hostnames: Mapping[str, str]) -> Requirements:
    by_label = [requirement(entry.key, entry.operator, entry.values) for entry in term.match_expressions]
    by_name = [
        requirement(labels.HOSTNAME, Op.IN, tuple(hostnames.get(value, value) for value in entry.values))
        for entry in term.match_fields
        if entry.key == _NODE_NAME_FIELD and entry.operator == Op.IN
    ]
    return Requirements((*by_label, *by_name))


def combined_alternatives(left: tuple[Requirements, ...], right: tuple[Requirements, ...]) -> tuple[Requirements, ...]:
    """Both must hold: one alternative of each."""
    if not left or not right:
        return left or right
    return tuple(first.intersect(second) for first in left for second in right)
