"""Gauges about the cluster state and the last plan: what it left unscheduled (OPS-461 to OPS-464) and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import msgspec

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import NodeSelectorTerm
from karpenter.clustermetrics.cluster_collector import ClusterCollector, ClusterMetricsSnapshot
from karpenter.controller_context import ControllerContext
from karpenter.metrics.exposition import GaugeFamily, SeriesWriter, label_pairs
from karpenter.model import labels
from karpenter.scheduling.effective_zones import FLEXIBLE, NO_ZONE
from karpenter.scheduling.solution import GangOutcome, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import ReasonCategory
from karpenter.state.gangs import GangSource
from karpenter.state.pod_signature import (
    node_selector_requirements,
    node_selector_term_requirements,
    required_node_affinity_terms,
)
from karpenter.state.snapshot import pod_key

_UNSCHEDULABLE = GaugeFamily(
    "karpenter_scheduler_unschedulable_pods_count", "Waiting pods for which the last plan had no place."
)
_IGNORED = GaugeFamily(
    "karpenter_scheduler_ignored_pods_count", "Waiting pods the last plan was not made for, for a reason of their own."
)
_BY_ZONE = GaugeFamily(
    "karpenter_scheduler_pending_pods_by_effective_zone_count",
    "Waiting pods by the zone they ask for: its name, flexible for several, none where nothing is left.",
)
_GANGS = GaugeFamily(
    "karpenter_scheduler_gangs_count", "Gangs with waiting pods: complete with the last plan, or without places."
)
_PRICE = GaugeFamily("karpenter_scheduler_plan_price", "USD per hour of the new nodes of the last plan that had any.")
_BOUND = GaugeFamily(
    "karpenter_scheduler_plan_price_lower_bound", "USD per hour that no nodes for the pods of that plan could undercut."
)
_GAP = GaugeFamily("karpenter_scheduler_plan_price_gap", "Share of that bound by which that plan's nodes were dearer.")
_COUNT = GaugeFamily("karpenter_cluster_state_node_count", "Nodes and NodeClaims, each instance once.")
_SYNCED = GaugeFamily("karpenter_cluster_state_synced", "1 while all watches bring news.")
_UNSYNCED = GaugeFamily("karpenter_cluster_state_unsynced_time_seconds", "How long they have not; 0 while they do.")

_PROVISIONER = "provisioner"
#: Reasons that speak of the pod alone, whatever pools there are.
_POD_CATEGORIES = frozenset({ReasonCategory.POD, ReasonCategory.VOLUME, ReasonCategory.DEVICE})


class UnschedulablePodMetrics(ClusterCollector):
    """What the last plan had no place for, as long as it still waits (OPS-461 to OPS-463)."""

    def __init__(self, context: ControllerContext) -> None:
        self._state = context.state
        self._ignored: set[str] = set()
        self._unschedulable: set[str] = set()
        #: By uid the zone the last plan found settled for a pod; it knows of volumes and of other pods.
        self._zone_by_uid: dict[str, str] = {}

    def on_plan(self, plan: Solution) -> None:
        """Remember what this plan leaves instead of what the last one did."""
        waiting = [unplaced for unplaced in plan.unschedulable if self._is_pending(unplaced.pod)]
        self._ignored = {unplaced.pod.metadata.uid for unplaced in waiting if _is_ignored(unplaced)}
        self._unschedulable = {unplaced.pod.metadata.uid for unplaced in waiting} - self._ignored
        self._zone_by_uid = {
            pod.metadata.uid: zoned.zone for zoned in plan.zone_bound for pod in zoned.pods if self._is_pending(pod)
        }

    def _is_pending(self, pod: Pod) -> bool:
        """Whether it waits still: carrying a plan out takes its time."""
        now = self._state.pod(pod_key(pod))
        return now is not None and now.metadata.uid == pod.metadata.uid and not now.spec.node_name

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Forget a pod that waits no more."""
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self._ignored.discard(pod.metadata.uid)
            self._unschedulable.discard(pod.metadata.uid)
            self._zone_by_uid.pop(pod.metadata.uid, None)

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Which pods wait belongs to it."""
        left = (len(self._unschedulable), len(self._ignored))
        return partial(self._write, left, tuple(self._state.pending_pods()), dict(self._zone_by_uid))

    @staticmethod
    def _write(left: tuple[int, int], waiting: tuple[Pod, ...], zoned: dict[str, str]) -> Iterator[str]:
        unschedulable, ignored = left
        yield from _UNSCHEDULABLE.lines([(label_pairs(controller=_PROVISIONER), unschedulable)])
        yield from _IGNORED.lines([("", ignored)])
        zones = _EffectiveZones()
        counts = Counter(zoned.get(pod.metadata.uid) or zones.effective_zone(pod) for pod in waiting)
        yield from _BY_ZONE.lines(
            (label_pairs(controller=_PROVISIONER, zone=zone), count) for zone, count in sorted(counts.items())
        )


class GangMetrics(ClusterCollector):
    """How many gangs are complete with the last plan, and how many get no places, as long as their pods wait."""

    def __init__(self, context: ControllerContext) -> None:
        self._gangs = context.state.gangs
        self._outcomes: tuple[GangOutcome, ...] = ()

    def on_plan(self, plan: Solution) -> None:
        """Remember the gangs of this plan."""
        self._outcomes = plan.gangs

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Gangs of real pods count while these wait; a ProvisioningRequest that ends is followed by a plan."""
        waiting = {gang.name for gang in self._gangs.snapshot()}
        counts = Counter(
            "complete" if outcome.is_complete else "incomplete"
            for outcome in self._outcomes
            if outcome.gang in waiting or outcome.gang.startswith(GangSource.PROVISIONING_REQUEST)
        )
        return partial(self._write, counts["complete"], counts["incomplete"])

    @staticmethod
    def _write(complete: int, incomplete: int) -> Iterator[str]:
        figures = (("complete", complete), ("incomplete", incomplete))
        yield from _GANGS.lines((label_pairs(outcome=outcome), count) for outcome, count in figures)


class PlanPriceMetrics(ClusterCollector):
    """What the new nodes of the last plan that had any cost, and how cheap they could have been at best.

    Not of every plan: most have no new nodes, and their zeros would cover up what was decided between two scrapes.
    """

    def __init__(self) -> None:
        #: Price, lower bound and gap; those that are not known are None.
        self._last_prices: tuple[float | None, float | None, float | None] = (None, None, None)

    def on_plan(self, plan: Solution) -> None:
        """Remember a plan with new nodes."""
        if plan.new_claims:
            self._last_prices = (plan.price_per_hour, plan.lower_bound_per_hour, plan.optimality_gap)

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """It depends on that plan alone."""
        return partial(self._write, self._last_prices)

    @staticmethod
    def _write(last: tuple[float | None, ...]) -> Iterator[str]:
        for family, value in zip((_PRICE, _BOUND, _GAP), last, strict=True):
            yield from family.lines([("", value)] if value is not None else [])


def _is_ignored(unplaced: UnschedulablePod) -> bool:
    return any(reason.category in _POD_CATEGORIES and not reason.node_pool for reason in unplaced.reasons)


class _EffectiveZones:
    """The zone a pod asks for. Many pods ask alike, and most do not ask at all."""

    def __init__(self) -> None:
        self._zone_cache: dict[bytes, str] = {}

    def effective_zone(self, pod: Pod) -> str:
        """The only zone its node selector and required affinity leave, ``flexible``, or ``none``."""
        spec = pod.spec
        terms = required_node_affinity_terms(spec.affinity)
        if not terms and not spec.node_selector:
            return FLEXIBLE
        key = msgspec.json.encode((spec.node_selector, terms), order="deterministic")
        if key not in self._zone_cache:
            self._zone_cache[key] = _effective_zone(pod, terms)
        return self._zone_cache[key]


def _effective_zone(pod: Pod, terms: tuple[NodeSelectorTerm, ...]) -> str:
    own = node_selector_requirements(pod.spec)
    alternatives = [own.intersect(node_selector_term_requirements(term)) for term in terms] if terms else [own]
    asked = [requirements.requirement_for(labels.ZONE) for requirements in alternatives]
    possible = [zone for zone in asked if zone.complement or zone.values]
    if not possible:
        return NO_ZONE
    if any(zone.complement for zone in possible):
        return FLEXIBLE
    named = {value for zone in possible for value in zone.values}
    return named.pop() if len(named) == 1 else FLEXIBLE


class ClusterSyncMetrics(ClusterCollector):
    """How complete the cluster state is. ``unready`` says what it lacks; empty if it is complete."""

    def __init__(self, context: ControllerContext, unready: Callable[[], str]) -> None:
        self._unready = unready
        self._clock = context.clock
        #: Since when the state is known to be incomplete; checked on every use, and every ten seconds.
        self._unsynced_since: datetime | None = context.clock.now()

    async def refresh(self) -> None:
        """Detect in time that watch events stopped."""
        self._update()

    def _update(self) -> None:
        if not self._unready():
            self._unsynced_since = None
        elif self._unsynced_since is None:
            self._unsynced_since = self._clock.now()

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Whether it is complete belongs to it."""
        self._update()
        lacking = (snapshot.now - self._unsynced_since).total_seconds() if self._unsynced_since is not None else 0.0
        return partial(self._write, len(snapshot.views), self._unsynced_since is None, lacking)

    @staticmethod
    def _write(count: int, synced: bool, lacking_seconds: float) -> Iterator[str]:
        yield from _COUNT.lines([("", count)])
        yield from _SYNCED.lines([("", int(synced))])
        yield from _UNSYNCED.lines([("", lacking_seconds)])
