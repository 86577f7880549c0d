"""A scheduling problem made ready: what every pass over it, and every what-if question about it, has in common.

`PreparedProblem` derives once what does not depend on which pods are to be placed: NodePool templates and what they sell, the
existing nodes with their bit sets, limits, volumes, preferences. It does not change afterwards; only answers are remembered.
Pods go through it in two steps. Eligible pods of a group are those a plan can be made for, split by the locations of their
volumes (`eligible_groups`); then groups that no topology term of the pass tells apart become one (`equivalence_groups`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.default_spread import DefaultSpreadConstraints
from karpenter.scheduling.devices.device_planning import DevicePlanning, devices_matter
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, group_order
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, staying_nodes
from karpenter.scheduling.in_flight_claims import InFlightClaims
from karpenter.scheduling.offerings import nodepool_templates
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.offerings.remaining_capacity import (
    RemainingLimits,
    counted_capacity,
    remaining_limits,
    remaining_reservation_units,
)
from karpenter.scheduling.pass_context import PassContext
from karpenter.scheduling.pass_result import PlannedPlacements
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.scheduling_options import MinValuesPolicy
from karpenter.scheduling.solution import SkippedNodePool, UnschedulablePod
from karpenter.scheduling.spot_spread import existing_spot_counts
from karpenter.scheduling.topology.bound_pod_counts import TopologyPodCounts
from karpenter.scheduling.topology.host_limits import ExposedWorkload
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import TopologyGroup, TopologyGroups
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason
from karpenter.scheduling.volume_usage import NO_VOLUME_LIMITS, VolumeAttachments, volume_limits_of_types
from karpenter.scheduling.workload_exposure import ExposedWorkloads
from karpenter.state.cluster_devices import NO_POD_DEVICES, PodDevices, combined_alternatives
from karpenter.state.device_demands import DeviceDemand
from karpenter.state.pod_counts import NamespacedLabels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.pod_volumes import NO_POD_VOLUMES, PodVolumes, VolumesByDriver
from karpenter.state.snapshot import PodGroup, PodKey, pod_key, scheduling_order
from karpenter.state.topology_terms import with_claim_labels
from karpenter.state.virtual_pods import is_virtual_pod

_NO_ROOM: Mapping[str, Resources] = {}
#: Whether pods are virtual, and the workload they are of if that is exposed.
_GroupOrigin = tuple[bool, ExposedWorkload | None]
#: What pods of one equivalence group share: signature, volume locations, topology groups that select them, and the above.
_EquivalenceKey = tuple[PodSignature, tuple[Requirements, ...], tuple[TopologyGroup, ...], bool, ExposedWorkload | None]


class EligiblePods:
    """Pods of one group that have their volumes in the same places, and are of one workload where that matters."""

    def __init__(
        self,
        namespaced_labels: NamespacedLabels,
        signature: PodSignature,
        places: tuple[Requirements, ...],
        first: _GroupOrigin,
    ) -> None:
        self.signature = signature
        self.namespaced_labels = namespaced_labels
        self.volume_locations = places
        self.virtual, self.exposed_workload = first
        self.pods: list[Pod] = []
        self.mounts: dict[PodKey, VolumesByDriver] = {}

    def add(self, pod: Pod, volumes: PodVolumes) -> None:
        """One more of them."""
        self.pods.append(pod)
        if volumes.volumes_by_driver:
            self.mounts[pod_key(pod)] = volumes.volumes_by_driver


def _in_scheduling_order(items: Sequence[EligiblePods]) -> tuple[Pod, ...]:
    """The pods of several groups in their turn; each group has its oldest first already."""
    pods = [pod for eligible_pods in items for pod in eligible_pods.pods]
    if len(items) > 1 or len({pod.spec.priority for pod in pods}) > 1:
        pods.sort(key=scheduling_order)
    return tuple(pods)


@dataclass(frozen=True, eq=False)
class Eligibility:
    """The pods of some groups that a plan can be made for, and the others with their reasons."""

    groups: tuple[EligiblePods, ...]
    ineligible: tuple[UnschedulablePod, ...]


class PreparedProblem:
    """What all passes over one problem share. ``memory``: what earlier decisions left, of the same controller.

    ``awaited_room``: what pods that are being deleted still have, by key of their node.
    """

    def __init__(
        self,
        problem: Problem,
        indexes: Mapping[str, TypeIndex],
        memory: DecisionMemory | None = None,
        awaited_room: Mapping[str, Resources] = _NO_ROOM,
    ) -> None:
        snapshot, options = problem.snapshot, problem.options
        self.memory = memory or DecisionMemory()
        self.problem = problem
        self.awaited_room = awaited_room
        self.strict_min_values = options.min_values is MinValuesPolicy.STRICT
        self.leaving_groups, self.unreadable_pods = pod_eligibility.grouped_by_class(
            pod_eligibility.pods_leaving_nodes(snapshot, problem.now)
        )
        self.exposed_workloads = ExposedWorkloads(snapshot, self.leaving_groups, options.objective.exposure)
        self._volumes_by_pod: dict[PodKey, PodVolumes] = {}
        self._signatures_with_attachments: dict[tuple[PodSignature, tuple[tuple[str, int], ...]], PodSignature] = {}
        self._volume_attachments = self._volume_attachments_for(indexes)
        self.indexes = {name: self._volume_attachments.with_attachments(index) for name, index in indexes.items()}
        self._signatures_with_devices: dict[tuple[PodSignature, DeviceDemand], PodSignature] = {}
        #: The devices of the decision; None where no pod asks for any.
        self.devices = self._device_planning()
        if self.devices is not None:
            self.indexes = self.devices.indexes
            self.memory = DecisionMemory()  # devices belong to one decision
        self.daemons = tuple(
            daemon
            for daemon in snapshot.daemonset_pods
            if snapshot.devices is not None or not daemon.spec.resource_claims  # SCH-212
        )
        self.templates, self.skipped_pools = self.memory.templates(
            snapshot.pools,
            self.indexes,
            self.daemons,
            (options.objective, options.min_values, snapshot.sleeping_pools),
            self._usable_templates,
        )
        in_flight = InFlightClaims(self.daemons)
        self.existing_spot_counts = existing_spot_counts(snapshot.nodes, self.indexes, in_flight)
        self.existing_nodes = ExistingNodeIndex(self._existing_nodes(in_flight))
        self.remaining_limits: RemainingLimits = {
            t.name: left for t in self.templates if (left := remaining_limits(t, snapshot.nodes, in_flight))
        }
        limited = {template.name: template for template in self.templates if template.name in self.remaining_limits}
        #: By key of each node that counts against limits: its NodePool and what it takes of them.
        self.counted_capacity: Mapping[str, tuple[str, Mapping[str, int]]] = {
            view.key: (view.pool, counted_capacity(view, limited[view.pool], in_flight))
            for view in (snapshot.nodes if limited else ())
            if view.pool in limited and not view.marked_for_deletion
        }
        self.well_known = labels.WELL_KNOWN.union(*(index.well_known for index in self.indexes.values()))
        self.preferences = self.memory.preferences(options.preferences, self._has_soft_taints(), self.well_known)
        self.reservation_units = remaining_reservation_units(
            self.templates, snapshot.nodes, count_reservations=options.reserved_capacity
        )
        self.launch_options = self.launch_options_within(self.remaining_limits)
        self.default_spread = DefaultSpreadConstraints(options.default_spread, snapshot.workload_selectors)

    def _existing_nodes(self, in_flight: InFlightClaims) -> list[ExistingNode]:
        """Nodes that pods may join. Those of earlier decisions are reused if no volume limits and no devices are involved."""
        devices, is_remembered = self.devices, self.devices is None and self._volume_attachments.are_unlimited
        # What is remembered would keep the volumes of its own decision.
        attachments = NO_VOLUME_LIMITS if is_remembered else self._volume_attachments
        remembered = self.memory.existing_nodes(self.daemons)
        nodes: list[ExistingNode] = []
        for view in staying_nodes(self.problem.snapshot, self.awaited_room):
            index = self.indexes.get(view.pool)
            node = remembered.get(id(view)) if is_remembered else None
            if node is None or node.view is not view or node.index is not index:
                node = ExistingNode(view, index, self.daemons, in_flight, attachments, devices)
                if is_remembered:
                    remembered.put(id(view), node)
            nodes.append(node)
        return nodes

    @property
    def groups_depend_on_pods_alone(self) -> bool:
        """Whether neither default spread nor devices tell pods apart that look alike."""
        return self.problem.snapshot.devices is None and not self.default_spread

    def _usable_templates(self) -> tuple[tuple[NodePoolTemplate, ...], tuple[SkippedNodePool, ...]]:
        return nodepool_templates.usable_templates(
            self.problem.snapshot.pools,
            self.indexes,
            self.daemons,
            min_values=self.strict_min_values,
            cpu_surplus=self.problem.options.objective.counts_cpu_surplus,
            sleeping=self.problem.snapshot.sleeping_pools,
        )

    def _has_soft_taints(self) -> bool:
        templates = (taint for template in self.templates for taint in template.taints)
        nodes = (taint for node in self.existing_nodes.nodes for taint in node.view.taints)
        return any(taint.effect == "PreferNoSchedule" for taint in (*templates, *nodes))

    def launch_options_within(self, limits: RemainingLimits) -> LaunchOptionIndex:
        """The launch options within other limits; the latest are remembered."""
        key = (
            frozenset((pool, frozenset(left.items())) for pool, left in limits.items()),
            frozenset(self.reservation_units.items()),
        )
        return self.memory.launch_options(
            key,
            lambda: LaunchOptionIndex(
                self.templates,
                limits,
                self.reservation_units,
                strict=self.strict_min_values,
                devices=None if self.devices is None else self.devices.types,
            ),
        )

    def pass_context(
        self,
        nodes: ExistingNodeIndex,
        domains: TopologyDomains,
        planned: PlannedPlacements,
        limits: RemainingLimits | None = None,
    ) -> PassContext:
        """What passes need that place pods on these nodes and on new ones; ``limits`` are the problem's unless given."""
        limits = self.remaining_limits if limits is None else limits
        return PassContext(
            nodes,
            self.launch_options_within(limits),
            domains,
            planned,
            limits,
            self.reservation_units,
            self.strict_min_values,
            self.problem.options.objective,
            self.problem.options.packing_mode,
            devices=None if self.devices is None else self.devices.types,
            memory=self.memory,
        )

    def _device_planning(self) -> DevicePlanning | None:
        """The devices of the decision, if any pod asks for some, be it one that waits or one that might have to move."""
        snapshot = self.problem.snapshot
        if snapshot.devices is None:
            return None
        waiting = [pod for group in snapshot.pod_groups for pod in group.pods]
        bound = [pod for view in snapshot.nodes for pod in view.pods]
        if not devices_matter(snapshot, (*waiting, *bound)):
            return None
        return DevicePlanning(snapshot, self.indexes, (*waiting, *bound))

    def eligible_groups(self, groups: Iterable[PodGroup], workloads: ExposedWorkloads, *, bound: bool) -> Eligibility:
        """Pods a plan can be made for. ``bound``: they run and must move, so they are not validated again (SCH-063)."""
        eligible: list[EligiblePods] = []
        ineligible: list[UnschedulablePod] = []
        reasons_by_signature: dict[PodSignature, tuple[UnschedulableReason, ...]] = {}
        for group in groups:
            reasons = reasons_by_signature.get(group.signature)
            if reasons is None:
                reasons = reasons_by_signature[group.signature] = self._signature_reasons(group.signature, bound)
            by_volumes: dict[tuple[tuple[Requirements, ...], PodSignature, ExposedWorkload | None], EligiblePods] = {}
            for pod in group.pods:
                volumes = self._pod_volumes(pod) if not reasons else NO_POD_VOLUMES
                devices = self.devices.resolve(pod) if self.devices is not None and not reasons else NO_POD_DEVICES
                pod_reasons = reasons or (*_volume_reasons(volumes, bound), *pod_eligibility.device_reasons(devices))
                if pod_reasons:
                    ineligible.append(UnschedulablePod(pod, pod_reasons))
                    continue
                signature = self._signature_with_attachments(group.signature, volumes)
                if devices.demand is not None:
                    signature = self._signature_with_devices(signature, devices.demand)
                places = combined_alternatives(volumes.node_alternatives, devices.node_alternatives)
                key = (places, signature, workloads.workload_of(pod))
                alike = by_volumes.get(key)
                if alike is None:
                    origin = (is_virtual_pod(pod), key[2])
                    own_labels = _labels_with_claims(group.namespaced_labels, devices)
                    alike = by_volumes[key] = EligiblePods(own_labels, signature, places, origin)
                alike.add(pod, volumes)
            eligible += by_volumes.values()
        return Eligibility(tuple(eligible), tuple(ineligible))

    def _signature_reasons(self, signature: PodSignature, bound: bool) -> tuple[UnschedulableReason, ...]:
        if self.problem.snapshot.devices is None:
            unsupported = pod_eligibility.unsupported_claims(signature.spec)
            if unsupported:
                return unsupported
        if bound:
            return pod_eligibility.ineligibility_reasons_of_bound(signature)
        return pod_eligibility.ineligibility_reasons(signature, self.well_known)

    def _pod_volumes(self, pod: Pod) -> PodVolumes:
        """What a pod's volumes mean; asked for twice where attachments are limited."""
        if not pod.spec.volumes:
            return NO_POD_VOLUMES
        key = pod_key(pod)
        pod_volumes = self._volumes_by_pod.get(key)
        if pod_volumes is None:
            pod_volumes = self._volumes_by_pod[key] = self.problem.snapshot.volumes.resolve(pod)
        return pod_volumes

    def _volume_attachments_for(self, indexes: Mapping[str, TypeIndex]) -> VolumeAttachments:
        limits = volume_limits_of_types(self.problem.snapshot.volumes, self.problem.snapshot.nodes, indexes.values())
        groups = (*self.problem.snapshot.pod_groups, *self.leaving_groups) if limits else ()
        wanted = (self._pod_volumes(pod).volumes_by_driver for group in groups for pod in group.pods)
        return VolumeAttachments(self.problem.snapshot.volumes, limits, wanted)

    def _signature_with_attachments(self, signature: PodSignature, volumes: PodVolumes) -> PodSignature:
        """The signature with the volume attachments that its pods need on a new node."""
        slots = (
            self._volume_attachments.attachment_requests(volumes.volumes_by_driver) if volumes.volumes_by_driver else {}
        )
        if not slots:
            return signature
        key = (signature, tuple(sorted(slots.items())))
        pod_signature = self._signatures_with_attachments.get(key)
        if pod_signature is None:
            pod_signature = self._signatures_with_attachments[key] = signature.with_resources(slots)
        return pod_signature

    def _signature_with_devices(self, signature: PodSignature, demand: DeviceDemand) -> PodSignature:
        """The signature with the devices that its pods need."""
        key = (signature, demand)
        with_devices = self._signatures_with_devices.get(key)
        if with_devices is None and self.devices is not None:
            with_devices = self._signatures_with_devices[key] = signature.with_devices(
                demand, self.devices.requests_of(demand)
            )
        return with_devices or signature

    def equivalence_groups(
        self, served: Sequence[EligiblePods], bound_pod_counts: TopologyPodCounts
    ) -> list[EquivalenceGroup]:
        """Groups that differ only in labels that no selector reads become one equivalence group; largest first (SCH-231)."""
        topology_groups = TopologyGroups(bound_pod_counts)
        classes = dict.fromkeys(eligible.signature for eligible in served)
        preferred_by_signature = {
            each: [preference.term for preference in self.preferences.preferred_terms(each)] for each in classes
        }
        for pod_class, preferred_terms in preferred_by_signature.items():
            topology_groups.add_terms(pod_class.topology_terms.required, preferred_terms)
        together: defaultdict[_EquivalenceKey, list[EligiblePods]] = defaultdict(list)
        for eligible_pods in served:
            meaning = topology_groups.selecting(eligible_pods.namespaced_labels)
            together[
                eligible_pods.signature,
                eligible_pods.volume_locations,
                meaning,
                eligible_pods.virtual,
                eligible_pods.exposed_workload,
            ].append(eligible_pods)
        asking = dict.fromkeys((eligible.signature, eligible.volume_locations) for eligible in served)
        steps = {each: self.preferences.relaxation_steps(*each) for each in asking}
        groups = [
            EquivalenceGroup(
                pod_class,
                topology_groups.membership_of(
                    pod_class.topology_terms.required,
                    preferred_by_signature[pod_class],
                    eligible_pods[0].namespaced_labels,
                ),
                _in_scheduling_order(eligible_pods),
                steps[pod_class, places],
                {key: mounts for eligible in eligible_pods for key, mounts in eligible.mounts.items()},
                virtual,
                exposed_workload=exposed,
            )
            for (pod_class, places, _, virtual, exposed), eligible_pods in together.items()
        ]
        return sorted(groups, key=group_order)


def _labels_with_claims(own: NamespacedLabels, devices: PodDevices) -> NamespacedLabels:
    """The labels of pods, with the claims that they share with others."""
    if devices.demand is None or not devices.demand.shared:
        return own
    return with_claim_labels(own, [claim.key for claim in devices.demand.shared])


def _volume_reasons(volumes: PodVolumes, bound: bool) -> tuple[UnschedulableReason, ...]:
    return pod_eligibility.volume_reasons_of_bound(volumes) if bound else pod_eligibility.volume_reasons(volumes)
