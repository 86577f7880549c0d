"""Records what a report needs while a study runs: waiting times, restarts by cause, and the cluster at regular times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import WireResources
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.model import conditions, pods, quantity
from karpenter.model import resources as res
from karpenter.nodeclaim.expiration import expire_after
from karpenter.simulation.run_history import InstanceLaunched, InstanceNotice
from karpenter.simulation.simulated_cluster import SimulatedCluster
from karpenter.simulator.idle_cost import NodeOccupancy
from karpenter.simulator.starting_cluster import StartingCluster

#: Causes of restarts beside the reasons of disruption (``Underutilized``, ``Drifted``, ``Empty``).
INTERRUPTED, NODE_LOST, EXPIRED = "Interrupted", "NodeLost", "Expired"
#: So long before the start at least the first instances were launched: any time does.
_BEFORE = timedelta(seconds=1)
#: The resources whose shares a sample has, in its order.
_SHOWN = (res.CPU, res.MEMORY)


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at a moment, without unmanaged nodes. Shares are requests over allocatable of all nodes, 0 without nodes."""

    seconds: float
    usd_per_hour: float
    nodes: int
    pods: int
    waiting_pods: int
    cpu_share: float
    memory_share: float


@dataclass(frozen=True, slots=True)
class PodWait:
    """A pod that was bound: how long it waited for its node, and whether it was there before (a restart)."""

    seconds: float
    is_restart: bool


@dataclass(frozen=True, slots=True)
class Restart:
    """A pod lost its node before its time."""

    seconds: float
    pod: str
    cause: str


@dataclass(frozen=True, slots=True)
class WaitingTime:
    """Pod-seconds of waiting by what was waited for. The first three are of pods that were bound.

    ``launch``: before the node's instance was launched (a batch of pods, a decision, missing capacity); ``start``: from its
    launch on; ``room``: for a node that was there, such as one whose pods had to leave first. ``unbound``: pods that wait still,
    by name; ``left``: those that left before they were bound.
    """

    launch: float
    start: float
    room: float
    unbound: tuple[tuple[str, float], ...]
    left: tuple[tuple[str, float], ...]


class PodTotals:
    """Active pods, those of them with a node, and what these request, kept up to date by the changes of pods.

    What pods on nodes that are ``unmanaged`` request is left out.
    """

    def __init__(self, unmanaged: frozenset[str] = frozenset()) -> None:
        self._unmanaged = unmanaged
        self.active = 0
        self.bound = 0
        self.requested = dict.fromkeys(_SHOWN, 0)

    def on_change(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a change of a pod that no DaemonSet owns."""
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def _count(self, pod: Pod, by: int) -> None:
        if not pods.is_active(pod):
            return
        self.active += by
        if pod.spec.node_name:
            self.bound += by
            if pod.spec.node_name in self._unmanaged:
                return
            for container in pod.spec.containers:
                for name in _SHOWN:
                    self.requested[name] += by * _amount(container.resources.requests, name)


def _amount(amounts: WireResources, name: str) -> int:
    return quantity.parse_milli(amounts[name]) if name in amounts else 0


class RunRecorder:
    """Watches one cluster. ``start`` is when the study began, ``starting`` what it began with, which is there by now."""

    def __init__(self, cluster: SimulatedCluster, start: datetime, starting: StartingCluster) -> None:
        self._cluster = cluster
        self._start = start
        self._waiting: dict[str, tuple[str, datetime, bool]] = {}
        self._seen_names: set[str] = set()
        self._seen_uids: set[str] = set()
        self.waits: list[PodWait] = []
        self.restarts: list[Restart] = []
        self.samples: list[Sample] = []
        self.occupancy = NodeOccupancy()
        self._unmanaged = starting.unmanaged_names
        self._pod_totals = PodTotals(self._unmanaged)
        self._waited: defaultdict[str, float] = defaultdict(float)
        self._left: list[tuple[str, float]] = []
        self._launched_at: dict[str, datetime] = {}
        self._decisions: dict[str, JournalEntry] = {}
        self._begin_with(starting)
        cluster.history.subscribe(self._on_instance)
        cluster.manager.informers.pods.subscribe(self._on_pod)

    def _begin_with(self, starting: StartingCluster) -> None:
        """What is there from the beginning neither arrives nor starts: its nodes are open, its pods have their nodes."""
        for name in sorted(starting.instance_names) + sorted(self._unmanaged):
            self._launched_at[name] = self._start - _BEFORE
            self.occupancy.first_pod[name] = self._start
        for pod in self._cluster.manager.informers.pods:
            self._seen_uids.add(pod.metadata.uid)
            self._seen_names.add(pod.metadata.name)
            self.occupancy.add(pod.metadata.uid, pod.spec.node_name, self._start)

    @property
    def decisions(self) -> tuple[JournalEntry, ...]:
        """The decisions about disruption up to the last sample, in their order."""
        return tuple(self._decisions.values())

    def waiting_time(self) -> WaitingTime:
        """What pods have waited for."""
        waited = self._waited
        return WaitingTime(waited["launch"], waited["start"], waited["room"], self.still_waiting(), tuple(self._left))

    def _on_instance(self, notice: InstanceNotice) -> None:
        if isinstance(notice, InstanceLaunched):
            self._launched_at[notice.record.node_name] = notice.at

    def _add_wait(self, created: datetime, node: str, bound: datetime) -> None:
        """Divide the wait of a pod that was bound now."""
        launched = self._launched_at.get(node, created)
        if launched < created and node in self.occupancy.first_pod:
            self._waited["room"] += (bound - created).total_seconds()
            return
        began = min(max(launched, created), bound)
        self._waited["launch"] += (began - created).total_seconds()
        self._waited["start"] += (bound - began).total_seconds()

    # -- pods -------------------------------------------------------------------------------------------------------------

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        pod = after or before
        if pod is None or pods.is_daemonset_pod(pod):
            return
        self._pod_totals.on_change(before, after)
        uid = pod.metadata.uid
        now = self._cluster.clock.now()
        if after is None:
            if uid in self._waiting:
                name, created, _ = self._waiting.pop(uid)
                self._left.append((name, (now - created).total_seconds()))
            self.occupancy.remove(uid, now)
            return
        if uid not in self._seen_uids:
            self._seen_uids.add(uid)
            created = pod.metadata.creation_timestamp or now
            self._waiting[uid] = (pod.metadata.name, created, pod.metadata.name in self._seen_names)
            self._seen_names.add(pod.metadata.name)
        if after.spec.node_name and uid in self._waiting:
            _, created, is_restart = self._waiting.pop(uid)
            self.waits.append(PodWait((now - created).total_seconds(), is_restart))
            self._add_wait(created, after.spec.node_name, now)
            self.occupancy.add(uid, after.spec.node_name, now)

    def record_lost(self, pod: Pod) -> None:
        """A pod disappeared before its time: a restart if it had a node."""
        if pod.spec.node_name:
            self.restarts.append(Restart(self.seconds, pod.metadata.name, self._cause(pod.spec.node_name)))

    def _cause(self, name: str) -> str:
        state = self._cluster.state
        node = state.node(name)
        claim = state.claim_by_provider_id(node.spec.provider_id) if node is not None else None
        if claim is None:
            return NODE_LOST
        cause = conditions.find_condition(claim.status.conditions, "DisruptionReason")
        if cause is not None:
            return cause.reason
        if claim.metadata.deletion_timestamp is None:
            return NODE_LOST
        return EXPIRED if _was_expired(claim) else INTERRUPTED

    def still_waiting(self) -> tuple[tuple[str, float], ...]:
        """Pods that wait now, with how long they have."""
        now = self._cluster.clock.now()
        return tuple(sorted((name, (now - created).total_seconds()) for name, created, _ in self._waiting.values()))

    # -- samples ----------------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since the start of the study."""
        return (self._cluster.clock.now() - self._start).total_seconds()

    def cost_usd(self) -> float:
        """What was paid so far."""
        return self._cluster.history.meter.cost_usd(self._start, self._cluster.clock.now())

    def sample(self) -> None:
        """Record the state of the cluster now, and the latest decisions."""
        self._decisions |= {entry.command_id: entry for entry in self._cluster.manager.decisions()}
        views = self._cluster.state.state_nodes()
        nodes = [view.node for view in views if view.node is not None and view.name not in self._unmanaged]
        allocatable = {name: sum(_amount(node.status.allocatable, name) for node in nodes) for name in _SHOWN}
        pods_now = self._pod_totals
        now = self._cluster.clock.now()
        self.samples.append(
            Sample(
                self.seconds,
                self._cluster.history.meter.rate_usd_per_hour(now),
                len(nodes),
                pods_now.active,
                pods_now.active - pods_now.bound,
                *(_share(pods_now.requested[name], allocatable[name]) for name in _SHOWN),
            )
        )


def _was_expired(claim: NodeClaim) -> bool:
    """Whether a NodeClaim that is being deleted was older than ``expireAfter`` by then."""
    created, deleted, lifetime = (
        claim.metadata.creation_timestamp,
        claim.metadata.deletion_timestamp,
        expire_after(claim),
    )
    if created is None or deleted is None or lifetime is None:
        return False
    return deleted - created >= lifetime


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
