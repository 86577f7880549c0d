"""Which machines may go at all, and what keeps the others: the checks of DIS §4, the same for every method.

A `Judge` looks at a machine in two steps. `candidate` asks what holds for every method, in a fixed order whose first failing
check counts; the filters of the methods (`for_emptiness`, `for_consolidation`, `for_drift`) come after that. Only drift may
choose a machine whose pods object, and only where its claim says how long a drain may take (DIS-082).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodePool
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.faces import Face, face_of
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.command import Candidate, Command, DisruptionReason
from karpenter.decide.disrupt.costs import NODE_COST, PriceList, disruption_cost, labels_of
from karpenter.model import disruption_budgets, durations, labels, pods
from karpenter.model.conditions import find, is_true

_WHEN_EMPTY = "WhenEmpty"
_NEVER = datetime.max.replace(tzinfo=UTC)


def _nobody(_key: str) -> bool:
    return False


def _nothing(_reason: DisruptionReason, _key: str) -> bool:
    return False


@dataclass(frozen=True)
class Circumstances:
    """What matters beside the snapshot; machines are named by the keys of their views.

    ``is_nominated``: pods are expected there. ``executing``: machines of commands under way. ``is_barred``: going for this
    reason has failed before and is not tried again yet. ``chosen``: moves of an earlier
    pass; they are looked at first, so that what was chosen is not lost to another choice as good. ``home``: the node this very
    controller runs on, empty where that is not known.
    """

    now: datetime
    is_nominated: Callable[[str], bool] = _nobody
    executing: Container[str] = frozenset()
    is_barred: Callable[[DisruptionReason, str], bool] = _nothing
    chosen: tuple[Command, ...] = ()
    home: str = ""


@dataclass(frozen=True)
class Blocked:
    """A machine that stays, and what keeps it.

    ``lasting``: it concerns one method only and passes slowly, so it is said under another reason and less often (DIS-398).
    """

    view: NodeView
    why: str
    lasting: bool = False


class Protections:
    """The PodDisruptionBudgets of a snapshot, found by what pods look like: replicas ask once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._by_namespace: dict[str, list[PodDisruptionBudget]] = {}
        for budget in snapshot.budgets:
            self._by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
        self._over: dict[Face, tuple[PodDisruptionBudget, ...]] = {}

    def over(self, pod: Pod) -> tuple[PodDisruptionBudget, ...]:
        """The budgets that select a pod."""
        nearby = self._by_namespace.get(pod.metadata.namespace)
        if not nearby:
            return ()
        face = face_of(pod)
        known = self._over.get(face)
        if known is None:
            known = self._over[face] = tuple(disruption_budgets.over(pod, nearby))
        return known


class Judge:
    """Answers about the machines of one snapshot. ``indexes``: prepared types of each NodePool; None where nobody looked."""

    def __init__(
        self, snapshot: Snapshot, indexes: Mapping[str, TypeIndex] | None, circumstances: Circumstances
    ) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._indexes = indexes
        self._held = snapshot.held
        self._circumstances = circumstances
        self.protections = Protections(snapshot)
        self.prices = PriceList(indexes or {})

    def is_ours(self, view: NodeView) -> bool:
        """Whether there is anything to say about the machine: foreign ones and those under way stay silent (DIS-070, DIS-071)."""
        return view.claim is not None and view.key not in self._circumstances.executing

    def candidate(self, view: NodeView, reason: DisruptionReason) -> Candidate | Blocked:
        """The machine as a candidate, or the first thing that forbids it (DIS-072 to DIS-082)."""
        why = next(self.obstacles(view), "")
        if not why and not self._is_waived(view, reason):
            why = next((text for _, text in self.objections(view)), "")
        return Blocked(view, why) if why else self._built(view)

    def _built(self, view: NodeView) -> Candidate:
        moving = tuple(pod for pod in view.pods if pods.needs_a_place(pod))
        return Candidate(view, view.pool, moving, self.prices.of(view), disruption_cost(moving))

    def obstacles(self, view: NodeView) -> Iterator[str]:
        """All that forbids it about the machine itself, in the order of DIS-072 to DIS-078."""
        if view.node is None:
            yield "Nodeclaim does not have an associated node"
            return
        if not view.initialized:
            yield "Node isn't initialized"
        if view.leaving:
            yield "Node is deleting or marked for deletion"
        if self._circumstances.is_nominated(view.key):
            yield "Node is nominated for a pending pod"
        if view.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
            yield f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'
        if not view.pool:
            yield f"Node doesn't have required label (label={labels.NODE_POOL})"
        elif why := self._lacking_pool(view.pool):
            yield why

    def _lacking_pool(self, name: str) -> str:
        """DIS-078, with its Beyond: a pool that is there but cannot be bought from is not called missing."""
        if name not in self._pools:
            return f"NodePool not found (NodePool={name})"
        if self._indexes is not None and (name not in self._indexes or not self._indexes[name].types):
            return f"NodePool has no instance types that could be resolved (NodePool={name})"
        return ""

    def _is_waived(self, view: NodeView, reason: DisruptionReason) -> bool:
        """Whether objections of pods do not count: the drain has an end that its claim names (DIS-082)."""
        eventual = reason is DisruptionReason.DRIFTED
        return eventual and view.claim is not None and view.claim.spec.termination_grace_period is not None

    def objections(self, view: NodeView) -> Iterator[tuple[Pod, str]]:
        """All pods that must not be evicted and why, also such as need no other place (DIS-079 to DIS-081, DIS-085)."""
        now = self._circumstances.now
        for pod in view.pods:
            if pods.is_active(pod) and pods.is_protected(pod, now):
                yield pod, f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={_name(pod)})'
        for pod in view.pods:
            is_asked = pods.is_active(pod) and not pods.is_static(pod)
            if is_asked and (text := self._budget_obstacle(pod)) and not pods.is_protected(pod, now):
                yield pod, text

    def _budget_obstacle(self, pod: Pod) -> str:
        matching = self.protections.over(pod)
        if not matching or pods.tolerates_disruption(pod):
            return ""
        names = " ".join(sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in matching))
        if len(matching) > 1:
            return f"Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{names}])"
        if not matching[0].status.disruptions_allowed and not disruption_budgets.yields_to(matching[0], pod):
            return f"PDB prevents pod evictions (PodDisruptionBudget=[{names}])"
        return ""

    # -- filters of the methods -----------------------------------------------------------------------------------------

    def for_emptiness(self, candidate: Candidate) -> Blocked | None:
        """What keeps an empty machine that is otherwise free to go (DIS-100); None lets it go once it is consolidatable."""
        pool = self._pools[candidate.pool]
        count = self._held.get(candidate.key, 0)
        why = _disabled(pool) or (f"Node is kept for {count} capacity buffer pod(s)" if count else "")
        return Blocked(candidate.view, why, lasting=True) if why else None

    def for_consolidation(self, candidate: Candidate) -> Blocked | None:
        """What keeps a machine with pods from being consolidated (DIS-101 to DIS-106)."""
        why = next(self.limits(candidate), "")
        return Blocked(candidate.view, why, lasting=True) if why else None

    def limits(self, candidate: Candidate) -> Iterator[str]:
        """All that keeps a machine with pods from being consolidated, in the order of DIS-102 to DIS-106.

        To move the controller for money would hold up everything else for as long as it is away (DIS-469).
        """
        pool = self._pools[candidate.pool]
        found = labels_of(candidate.view)
        kind = found.get(labels.INSTANCE_TYPE, "")
        if self._indexes is not None and kind not in self._indexes[candidate.pool].position:
            yield f'Instance Type "{kind}" not found'
        yield from (
            f'Node does not have label "{key}"' for key in (labels.CAPACITY_TYPE, labels.ZONE) if key not in found
        )
        if self.is_home(candidate):
            yield "The controller itself runs on this node"
        if why := _disabled(pool):
            yield why
        # As good as empty, once its pods have a place (DIS-121).
        is_worth_nothing = candidate.disruption_cost <= NODE_COST
        if pool.spec.disruption.consolidation_policy == _WHEN_EMPTY and not is_worth_nothing:
            yield f'NodePool "{candidate.pool}" has non-empty consolidation disabled'

    def is_home(self, candidate: Candidate) -> bool:
        """Whether this very controller runs on the machine."""
        return bool(self._circumstances.home) and candidate.view.name == self._circumstances.home

    def is_static(self, candidate: Candidate) -> bool:
        """Whether its pool holds a fixed number of nodes: nothing but drift and scale-down concerns those (DIS-563)."""
        return self._pools[candidate.pool].spec.replicas is not None


def is_consolidatable(view: NodeView) -> bool:
    """Whether the machine's quiet time is over (DIS-320)."""
    return view.claim is not None and is_true(view.claim.status.conditions, "Consolidatable")


def is_drifted(view: NodeView) -> bool:
    """Whether the machine is not what its pool asks for any more (DIS-321)."""
    return view.claim is not None and is_true(view.claim.status.conditions, "Drifted")


def is_quiet(view: NodeView, pool: NodePool | None, now: datetime) -> bool:
    """Whether a machine may be given pods of others that go: outside its own quiet time (DIS-166, DIS-241)."""
    until = quiet_from(view, pool)
    return until is None or now >= until


def quiet_from(view: NodeView, pool: NodePool | None) -> datetime | None:
    """The end of a machine's own quiet time, past or to come (DIS-241); None where it has none or nobody knows."""
    if pool is None or view.claim is None:
        return None
    period = _period(pool)
    initialized = find(view.claim.status.conditions, "Initialized")
    if not period or initialized is None or initialized.status != "True":
        return None
    since = view.claim.status.last_pod_event_time or initialized.last_transition_time
    try:
        return None if since is None else since + period
    except OverflowError:
        return _NEVER


def _period(pool: NodePool) -> timedelta | None:
    """``consolidateAfter``; None for Never, and where the text is no duration, which the pool's own conditions say."""
    try:
        return durations.parse_or_never(pool.spec.disruption.consolidate_after)
    except durations.DurationError:
        return None


def consolidates(pool: NodePool) -> bool:
    """Whether the pool gives machines back for money at all."""
    return not _disabled(pool)


def _disabled(pool: NodePool) -> str:
    """What about the pool rules every kind of consolidation out."""
    if pool.spec.replicas is not None:
        return f'NodePool "{pool.metadata.name}" is static'
    if _period(pool) is None:
        return f'NodePool "{pool.metadata.name}" has consolidation disabled'
    return ""


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
