"""Gauges about the picture itself and about the last plan: what it left (OPS-461 to OPS-464) and what it pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import msgspec

from karpenter.act.world import World
from karpenter.api.core import NodeSelectorTerm, Pod
from karpenter.cluster.classes import of_term, required_terms, selector_of
from karpenter.cluster.snapshot import pod_key
from karpenter.control.observability.parts import Part, Picture
from karpenter.decide.plan import Plan, UnplacedPod
from karpenter.decide.provision.effective_zones import FLEXIBLE, NONE
from karpenter.decide.reasons import Category
from karpenter.model import labels
from karpenter.telemetry.exposition import Family, Writing, pairs

_UNSCHEDULABLE = Family(
    "karpenter_scheduler_unschedulable_pods_count", "Waiting pods for which the last plan had no place."
)
_IGNORED = Family(
    "karpenter_scheduler_ignored_pods_count", "Waiting pods the last plan was not made for, for a reason of their own."
)
_BY_ZONE = Family(
    "karpenter_scheduler_pending_pods_by_effective_zone_count",
    "Waiting pods by the zone they ask for: its name, flexible for several, none where nothing is left.",
)
_PRICE = Family("karpenter_scheduler_plan_price", "USD per hour of the machines the last plan that bought any bought.")
_BOUND = Family(
    "karpenter_scheduler_plan_price_lower_bound",
    "USD per hour that no machines for the pods of that plan could undercut.",
)
_GAP = Family("karpenter_scheduler_plan_price_gap", "Share of that bound by which that plan's machines were dearer.")
_COUNT = Family("karpenter_cluster_state_node_count", "Machines that exist or are on their way.")
_SYNCED = Family("karpenter_cluster_state_synced", "1 while all watches bring news.")
_UNSYNCED = Family("karpenter_cluster_state_unsynced_time_seconds", "How long they have not; 0 while they do.")

_PROVISIONER = "provisioner"
#: Reasons that speak of the pod alone, whatever pools there are.
_OF_THE_POD = frozenset(
    {Category.POD, Category.VOLUME, Category.DEVICE},
)


class LeftOver(Part):
    """What the last plan had no place for, as long as it still waits (OPS-461 to OPS-463)."""

    def __init__(self, world: World) -> None:
        self._state = world.state
        self._ignored: set[str] = set()
        self._unschedulable: set[str] = set()
        #: By uid the zone the last plan found settled for a pod; it knows of volumes and of other pods.
        self._zoned: dict[str, str] = {}

    def decided(self, plan: Plan) -> None:
        """Remember what this plan leaves instead of what the last one did."""
        waiting = [unplaced for unplaced in plan.unplaced if self._waits(unplaced.pod)]
        self._ignored = {unplaced.pod.metadata.uid for unplaced in waiting if _is_ignored(unplaced)}
        self._unschedulable = {unplaced.pod.metadata.uid for unplaced in waiting} - self._ignored
        self._zoned = {pod.metadata.uid: zoned.zone for zoned in plan.zoned for pod in zoned.pods if self._waits(pod)}

    def _waits(self, pod: Pod) -> bool:
        """Whether it waits still: carrying a plan out takes its time."""
        now = self._state.pod(pod_key(pod))
        return now is not None and now.metadata.uid == pod.metadata.uid and not now.spec.node_name

    def pod(self, old: Pod | None, new: Pod | None) -> None:
        """Forget a pod that waits no more."""
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self._ignored.discard(pod.metadata.uid)
            self._unschedulable.discard(pod.metadata.uid)
            self._zoned.pop(pod.metadata.uid, None)

    def picture(self, picture: Picture) -> Writing:
        """Which pods wait belongs to it."""
        left = (len(self._unschedulable), len(self._ignored))
        return partial(self._write, left, tuple(self._state.waiting_pods()), dict(self._zoned))

    @staticmethod
    def _write(left: tuple[int, int], waiting: tuple[Pod, ...], zoned: dict[str, str]) -> Iterator[str]:
        unschedulable, ignored = left
        yield from _UNSCHEDULABLE.text([(pairs(controller=_PROVISIONER), unschedulable)])
        yield from _IGNORED.text([("", ignored)])
        zones = _Zones()
        counts = Counter(zoned.get(pod.metadata.uid) or zones.of(pod) for pod in waiting)
        yield from _BY_ZONE.text(
            (pairs(controller=_PROVISIONER, zone=zone), count) for zone, count in sorted(counts.items())
        )


class Prices(Part):
    """What the last plan that bought machines paid for them, and how cheap they could have been at best.

    Not of every plan: most find nothing to buy, and their zeros would cover up what was decided between two scrapes.
    """

    def __init__(self) -> None:
        #: Price, lower bound and gap; those that are not known are None.
        self._last: tuple[float | None, float | None, float | None] = (None, None, None)

    def decided(self, plan: Plan) -> None:
        """Remember a plan that buys."""
        if plan.claims:
            self._last = (plan.price_per_hour, plan.lower_bound_per_hour, plan.gap)

    def picture(self, picture: Picture) -> Writing:
        """It depends on that plan alone."""
        return partial(self._write, self._last)

    @staticmethod
    def _write(last: tuple[float | None, ...]) -> Iterator[str]:
        for family, value in zip((_PRICE, _BOUND, _GAP), last, strict=True):
            yield from family.text([("", value)] if value is not None else [])


def _is_ignored(unplaced: UnplacedPod) -> bool:
    return any(reason.category in _OF_THE_POD and not reason.node_pool for reason in unplaced.reasons)


class _Zones:
    """The zone a pod asks for. Many pods ask alike, and most do not ask at all."""

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def of(self, pod: Pod) -> str:
        """The only zone its node selector and required affinity leave, ``flexible``, or ``none``."""
        spec = pod.spec
        terms = required_terms(spec.affinity)
        if not terms and not spec.node_selector:
            return FLEXIBLE
        key = msgspec.json.encode((spec.node_selector, terms), order="deterministic")
        if key not in self._known:
            self._known[key] = _zone(pod, terms)
        return self._known[key]


def _zone(pod: Pod, terms: tuple[NodeSelectorTerm, ...]) -> str:
    own = selector_of(pod.spec)
    alternatives = [own.intersect(of_term(term)) for term in terms] if terms else [own]
    asked = [found.of(labels.ZONE) for found in alternatives]
    possible = [zone for zone in asked if zone.complement or zone.values]
    if not possible:
        return NONE
    if any(zone.complement for zone in possible):
        return FLEXIBLE
    named = {value for zone in possible for value in zone.values}
    return named.pop() if len(named) == 1 else FLEXIBLE


class ClusterState(Part):
    """How complete the picture is. ``unready`` says what it lacks, an empty text when it lacks nothing."""

    def __init__(self, world: World, unready: Callable[[], str]) -> None:
        self._unready = unready
        self._clock = world.clock
        #: Since when it is known to lack something; that is noticed when somebody asks, and every ten seconds.
        self._since: datetime | None = world.clock.now()

    async def refresh(self) -> None:
        """Notice in time when news stop."""
        self._look()

    def _look(self) -> None:
        if not self._unready():
            self._since = None
        elif self._since is None:
            self._since = self._clock.now()

    def picture(self, picture: Picture) -> Writing:
        """Whether it is complete belongs to it."""
        self._look()
        lacking = (picture.now - self._since).total_seconds() if self._since is not None else 0.0
        return partial(self._write, len(picture.views), self._since is None, lacking)

    @staticmethod
    def _write(count: int, synced: bool, lacking_seconds: float) -> Iterator[str]:
        yield from _COUNT.text([("", count)])
        yield from _SYNCED.text([("", int(synced))])
        yield from _UNSYNCED.text([("", lacking_seconds)])
