"""The provisioning decision: from a snapshot to a plan (SCH §2).

In order: who waits, who can be served, which pools take part; then kin by kin where pods go (`settling`), machines that exist
first, and what is left becomes demand for new ones; the demand is packed in several ways and the cheapest packing becomes the
plan.

Where that leaves pods out whom another round could serve, everything is settled anew (`rounds`).

Growth: linear in pods, and in classes times candidates for the rest: a class asks only machines that could hold it, found by bit
sets, and fills new ones by arithmetic. `make bench growth` shows it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from karpenter.api.core import Pod
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.arrival_forecast import (
    MAX_EXPECTED_PODS,
    RecentArrivals,
    SpareRoomValue,
    is_expected,
    recent_arrivals,
    value_of_spare_room,
    without_expected_pods,
)
from karpenter.scheduling.default_spread import DefaultSpreadConstraints
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.effective_zones import effective_zones
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, group_order, scheduling_order
from karpenter.scheduling.existing_nodes import ExistingNodeIndex, existing_nodes
from karpenter.scheduling.explain.unschedulable_diagnosis import (
    DiagnosisContext,
    RemainingCapacity,
    UnschedulableDiagnosis,
)
from karpenter.scheduling.in_flight_claims import InFlightClaims
from karpenter.scheduling.offerings import nodepool_templates
from karpenter.scheduling.offerings.purchase_options import PurchaseOptionIndex
from karpenter.scheduling.offerings.remaining_capacity import remaining_limits, remaining_reservation_units
from karpenter.scheduling.planned_nodeclaims import planned_claims
from karpenter.scheduling.preferences import Preferences
from karpenter.scheduling.problem import Problem, build_type_indexes
from karpenter.scheduling.scheduling_options import (
    ArrivalForecast,
    MinValuesPolicy,
    PackingMode,
    SchedulingOptions,
)
from karpenter.scheduling.scheduling_passes import PassContext, PassOutcome, SchedulingPasses
from karpenter.scheduling.search.lower_bound import lower_bound
from karpenter.scheduling.solution import PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.spot_spread import existing_spot_counts, spread_spot_claims
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts
from karpenter.scheduling.topology.host_limits import ExposedWorkload
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import TopologyGroup, TopologyGroups
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason
from karpenter.scheduling.volume_usage import VolumeAttachments, volume_limits_of_types
from karpenter.scheduling.workload_exposure import ExposedWorkloads, exposure_violations
from karpenter.state.pod_signature import PodSignature
from karpenter.state.pod_volumes import NO_POD_VOLUMES, PodVolumes, VolumesByDriver
from karpenter.state.snapshot import ClusterSnapshot, PodGroup, PodKey, pod_key
from karpenter.state.virtual_pods import is_virtual_pod


def solve(problem: Problem, indexes: Mapping[str, TypeIndex] | None = None) -> Solution:
    """Plan nodes for the waiting pods: the same problem gives the same solution.

    ``indexes``: type indexes of the problem's catalogs, by NodePool, where the caller keeps them; they only save time.
    """
    prepared = build_type_indexes(problem) if indexes is None else indexes
    return Solver(problem.snapshot, prepared, problem.now, problem.options).solve()


#: Whether pods are virtual, and the workload they are of if that is exposed.
_GroupOrigin = tuple[bool, ExposedWorkload | None]
#: What pods of one kin have in common: class, places of their volumes, constraints that mean them, and the above.
_EquivalenceKey = tuple[PodSignature, tuple[Requirements, ...], tuple[TopologyGroup, ...], bool, ExposedWorkload | None]


class _EligiblePods:
    """Pods of one group that have their volumes in the same places, and are of one workload where that matters."""

    def __init__(
        self, group: PodGroup, signature: PodSignature, places: tuple[Requirements, ...], first: _GroupOrigin
    ) -> None:
        self.signature = signature
        self.namespaced_labels = group.namespaced_labels
        self.volume_locations = places
        self.virtual, self.exposed_workload = first
        self.pods: list[Pod] = []
        self.mounts: dict[PodKey, VolumesByDriver] = {}

    def add(self, pod: Pod, volumes: PodVolumes) -> None:
        """One more of them."""
        self.pods.append(pod)
        if volumes.volumes_by_driver:
            self.mounts[pod_key(pod)] = volumes.volumes_by_driver


def _in_scheduling_order(items: Sequence[_EligiblePods]) -> tuple[Pod, ...]:
    """The pods of several groups in their turn; each group has its oldest first already."""
    found = [pod for item in items for pod in item.pods]
    if len(items) > 1 or len({pod.spec.priority for pod in found}) > 1:
        found.sort(key=scheduling_order)
    return tuple(found)


def _without_expected_demands(demands: Sequence[Demand]) -> list[Demand]:
    """Those of pods that exist, which come first."""
    return [demand for demand in demands if not is_expected(demand.pods[0])]


class Solver:
    """One decision while it is being made."""

    def __init__(
        self, snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: SchedulingOptions
    ) -> None:
        self._snapshot = snapshot
        self._objective = options.objective
        self._packing_mode = options.packing_mode
        self._now = now
        self._arrival_forecast = (
            options.arrival_forecast if options.packing_mode is PackingMode.CHEAPEST else ArrivalForecast.NONE
        )
        self._strict_min_values = options.min_values is MinValuesPolicy.STRICT
        self._leaving_groups, self._unreadable_pods = pod_eligibility.grouped_by_class(
            pod_eligibility.pods_leaving_nodes(snapshot, now)
        )
        self._exposed_workloads = ExposedWorkloads(snapshot, self._leaving_groups, options.objective.exposure)
        self._volumes_by_pod: dict[PodKey, PodVolumes] = {}
        self._signatures_with_attachments: dict[tuple[PodSignature, tuple[tuple[str, int], ...]], PodSignature] = {}
        self._volume_attachments = self._volume_attachments_for(indexes)
        indexes = {name: self._volume_attachments.with_attachments(index) for name, index in indexes.items()}
        daemons = tuple(daemon for daemon in snapshot.daemonset_pods if not daemon.spec.resource_claims)  # SCH-212
        self._templates, self._skipped_pools = nodepool_templates.usable_templates(
            snapshot.pools, indexes, daemons, min_values=self._strict_min_values
        )
        prospects = InFlightClaims(daemons)
        self._existing_spot_counts = existing_spot_counts(snapshot.nodes, indexes, prospects)
        self._existing_nodes = ExistingNodeIndex(
            existing_nodes(snapshot, indexes, daemons, self._volume_attachments, prospects)
        )
        self._remaining_limits: Mapping[str, Mapping[str, int]] = {
            t.name: left for t in self._templates if (left := remaining_limits(t, snapshot.nodes, prospects))
        }
        self._well_known = labels.WELL_KNOWN.union(*(index.well_known for index in indexes.values()))
        soft_taints = any(
            taint.effect == "PreferNoSchedule"
            for taint in (
                *(taint for template in self._templates for taint in template.taints),
                *(taint for machine in self._existing_nodes.nodes for taint in machine.view.taints),
            )
        )
        self._preferences = Preferences(options.preferences, soft_taints, self._well_known)
        self._reservation_units = (
            remaining_reservation_units(self._templates, snapshot.nodes) if options.reserved_capacity else {}
        )
        self._purchase_options = PurchaseOptionIndex(
            self._templates, self._remaining_limits, self._reservation_units, strict=self._strict_min_values
        )
        scenery = DiagnosisContext(
            snapshot,
            indexes,
            self._templates,
            self._skipped_pools,
            daemons,
            self._existing_nodes,
            self._strict_min_values,
        )
        self._unschedulable_diagnosis = UnschedulableDiagnosis(scenery)
        self._default_spread = DefaultSpreadConstraints(options.default_spread, snapshot.workload_selectors)
        self._unschedulable_pods: list[UnschedulablePod] = []
        self._lower_bounds: dict[tuple[tuple[Demand, ...], tuple[tuple[int, int], ...]], float | None] = {}

    def solve(self) -> Solution:
        """The plan for everybody who waits or has to move."""
        leaving = self._leaving_groups
        self._unschedulable_pods += [UnschedulablePod(pod, (reason,)) for pod, reason in self._unreadable_pods]
        moving = self._eligible_groups(
            self._default_spread.apply_to(leaving),
            pod_eligibility.ineligibility_reasons_of_bound,
            pod_eligibility.volume_reasons_of_bound,
        )
        waiting = self._eligible_groups(
            self._default_spread.apply_to(self._pending_groups()),
            lambda found: pod_eligibility.ineligibility_reasons(found, self._well_known),
            pod_eligibility.volume_reasons,
        )
        scene = BoundPodCounts(self._snapshot, ((group.signature, group.pods) for group in leaving))
        kins = self._equivalence_groups((*waiting, *moving), scene)
        domains = TopologyDomains(scene, self._templates, self._existing_nodes)
        rounds = SchedulingPasses(self._pass_context(domains))
        outcome = rounds.best_outcome(kins)
        recent = self._recent_arrivals(outcome)
        to_come = self._eligible_groups(
            recent.expected_pods(outcome.result.pods_needing_nodes),
            pod_eligibility.ineligibility_reasons_of_bound,
            pod_eligibility.volume_reasons,
        )
        if to_come:
            outcome = rounds.best_outcome(self._equivalence_groups((*waiting, *moving, *to_come), scene))
        settled, packing = outcome.result, rounds.cheapest_packing(outcome, self._spare_room_value(outcome, recent))
        drawn = Counter(claim.reservation for claim in packing.claims if claim.reservation is not None)
        units = {reservation: number - drawn[reservation] for reservation, number in self._reservation_units.items()}
        before, after = (
            RemainingCapacity(self._remaining_limits, self._reservation_units),
            RemainingCapacity(packing.remaining_limits, units),
        )
        for failed in settled.unschedulable:
            if is_expected(failed.pods[0]):
                continue
            self._unschedulable_pods += self._unschedulable_diagnosis.for_pods(
                failed, after if failed.limited else before
            )
        taken = {view.key for view in self._snapshot.nodes}
        demands = [item.demand for item in settled.demands]
        purchase = spread_spot_claims(
            without_expected_pods(packing.claims, demands),
            self._existing_spot_counts,
            self._exposed_workloads.max_spot_in_one_pool,
        )
        claims = planned_claims(purchase.claims, demands, taken)
        return Solution(
            new_claims=claims,
            placed_on_existing=self._placements_on_existing(),
            unschedulable=tuple(
                sorted(self._unschedulable_pods, key=lambda u: (u.pod.metadata.namespace, u.pod.metadata.name))
            ),
            skipped_pools=self._skipped_pools,
            packing_heuristic=packing.name if settled.demands else "",
            lower_bound_per_hour=self._lower_bound(_without_expected_demands(demands), packing.unpacked),
            zone_bound=effective_zones(kins, domains),
            exposure_violations=(*exposure_violations(claims, self._exposed_workloads), *purchase.violations),
            unreadable_annotations=tuple(self._exposed_workloads.unreadable),
        )

    def _recent_arrivals(self, outcome: PassOutcome) -> RecentArrivals:
        """The pods that came lately, where that matters: a few need machines, and nothing keeps anybody from having one."""
        few = 0 < outcome.result.pods_needing_nodes <= MAX_EXPECTED_PODS
        if (
            self._arrival_forecast is ArrivalForecast.NONE
            or not few
            or outcome.unschedulable_by_group
            or self._remaining_limits
        ):
            return RecentArrivals()
        return recent_arrivals(self._snapshot, self._now)

    def _spare_room_value(self, outcome: PassOutcome, recent: RecentArrivals) -> SpareRoomValue | None:
        """What room for pods to come is worth; None where none are reckoned with."""
        demands = [item.demand for item in outcome.result.demands]
        per_hour = self._lower_bound(demands, outcome.packing.unpacked) if demands and recent.expected_count else None
        return value_of_spare_room(demands, per_hour, recent.expected_count) if per_hour else None

    def _lower_bound(self, demands: Sequence[Demand], left: Mapping[int, int]) -> float | None:
        """The lower bound for these; asked for twice where room for pods to come is valued and none are planned."""
        key = (tuple(demands), tuple(left.items()))
        if key not in self._lower_bounds:
            self._lower_bounds[key] = lower_bound(demands, left, self._reservation_units)
        return self._lower_bounds[key]

    def _placements_on_existing(self) -> tuple[PlacedPods, ...]:
        placed = (
            (m.view, tuple(pod for pod in m.planned_pods if not is_expected(pod)))
            for m in self._existing_nodes.nodes
            if m.planned_pods
        )
        return tuple(PlacedPods(view.key, view.name, pods) for view, pods in placed if pods)

    def _pass_context(self, domains: TopologyDomains) -> PassContext:
        return PassContext(
            self._existing_nodes,
            self._purchase_options,
            domains,
            self._snapshot.planned_nodes,
            self._remaining_limits,
            self._reservation_units,
            self._strict_min_values,
            self._objective,
            self._packing_mode,
        )

    # -- who waits ------------------------------------------------------------------------------------------------------

    def _pending_groups(self) -> Iterable[PodGroup]:
        by_node = {view.node.metadata.name: view for view in self._snapshot.nodes if view.node is not None}
        for group in self._snapshot.pod_groups:
            if any(pod.status.nominated_node_name for pod in group.pods):
                staying = tuple(pod for pod in group.pods if not pod_eligibility.awaits_preemption(pod, by_node))
                group = PodGroup(group.signature, group.namespaced_labels, staying)
            if group.pods:
                yield group

    def _eligible_groups(
        self,
        groups: Iterable[PodGroup],
        objections: Callable[[PodSignature], tuple[UnschedulableReason, ...]],
        faults: Callable[[PodVolumes], tuple[UnschedulableReason, ...]],
    ) -> list[_EligiblePods]:
        """Pods a plan can be made for, split by where their volumes are; the others are recorded with the reasons."""
        found: list[_EligiblePods] = []
        objected: dict[PodSignature, tuple[UnschedulableReason, ...]] = {}
        for group in groups:
            reasons = objected.get(group.signature)
            if reasons is None:
                reasons = objected[group.signature] = objections(group.signature)
            by_volumes: dict[tuple[tuple[Requirements, ...], PodSignature, ExposedWorkload | None], _EligiblePods] = {}
            for pod in group.pods:
                volumes = self._pod_volumes(pod) if not reasons else NO_POD_VOLUMES
                why = reasons or faults(volumes)
                if why:
                    self._unschedulable_pods.append(UnschedulablePod(pod, why))
                    continue
                pod_class = self._signature_with_attachments(group.signature, volumes)
                key = (volumes.node_alternatives, pod_class, self._exposed_workloads.workload_of(pod))
                served = by_volumes.get(key)
                if served is None:
                    served = by_volumes[key] = _EligiblePods(
                        group, pod_class, volumes.node_alternatives, (is_virtual_pod(pod), key[2])
                    )
                served.add(pod, volumes)
            found += by_volumes.values()
        return found

    def _pod_volumes(self, pod: Pod) -> PodVolumes:
        """What a pod's volumes mean; asked for twice where attachments are limited."""
        if not pod.spec.volumes:
            return NO_POD_VOLUMES
        key = pod_key(pod)
        known = self._volumes_by_pod.get(key)
        if known is None:
            known = self._volumes_by_pod[key] = self._snapshot.volumes.resolve(pod)
        return known

    def _volume_attachments_for(self, indexes: Mapping[str, TypeIndex]) -> VolumeAttachments:
        limits = volume_limits_of_types(self._snapshot.volumes, self._snapshot.nodes, indexes.values())
        groups = (*self._snapshot.pod_groups, *self._leaving_groups) if limits else ()
        wanted = (self._pod_volumes(pod).volumes_by_driver for group in groups for pod in group.pods)
        return VolumeAttachments(self._snapshot.volumes, limits, wanted)

    def _signature_with_attachments(self, signature: PodSignature, volumes: PodVolumes) -> PodSignature:
        """The class with the attachments its pods ask of machines to come."""
        slots = (
            self._volume_attachments.attachment_requests(volumes.volumes_by_driver) if volumes.volumes_by_driver else {}
        )
        if not slots:
            return signature
        key = (signature, tuple(sorted(slots.items())))
        known = self._signatures_with_attachments.get(key)
        if known is None:
            known = self._signatures_with_attachments[key] = signature.with_resources(slots)
        return known

    def _equivalence_groups(
        self, served: Sequence[_EligiblePods], bound_pod_counts: BoundPodCounts
    ) -> list[EquivalenceGroup]:
        """Groups that differ only in labels nobody reads become one kin; largest first (SCH-231)."""
        companies = TopologyGroups(bound_pod_counts)
        classes = dict.fromkeys(item.signature for item in served)
        heard = {each: [wish.term for wish in self._preferences.preferred_terms(each)] for each in classes}
        for pod_class, wished in heard.items():
            companies.add_terms(pod_class.topology_terms.required, wished)
        together: defaultdict[_EquivalenceKey, list[_EligiblePods]] = defaultdict(list)
        for item in served:
            meaning = companies.selecting(item.namespaced_labels)
            together[item.signature, item.volume_locations, meaning, item.virtual, item.exposed_workload].append(item)
        asking = dict.fromkeys((item.signature, item.volume_locations) for item in served)
        steps = {each: self._preferences.relaxation_steps(*each) for each in asking}
        found = [
            EquivalenceGroup(
                pod_class,
                companies.membership_of(
                    pod_class.topology_terms.required, heard[pod_class], items[0].namespaced_labels
                ),
                _in_scheduling_order(items),
                steps[pod_class, places],
                {key: mounts for item in items for key, mounts in item.mounts.items()},
                virtual,
                exposed_workload=exposed,
            )
            for (pod_class, places, _, virtual, exposed), items in together.items()
        ]
        return sorted(found, key=group_order)
