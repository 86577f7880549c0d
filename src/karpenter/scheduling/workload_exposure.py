"""Which workloads should not be on one new node as a whole, and where that preference gave way.

A workload is what one controller owns: the ReplicaSets of one Deployment count each for itself. Its pods, waiting or bound, are
counted; from so many on (`ExposureLimits`) no more than a share of them, rounded up, should be on one new node. Existing nodes
do not count. The preference is a cap per node like those of `topology/host_limits.py`, and groups are split by workload for it;
pods without an owner, or of a small workload, are not concerned.

It gives way, and the plan says so, where pods must be together on one host, and where limits would leave pods out otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.model import labels, pods
from karpenter.model.shares import ShareError, parse_share, share_of
from karpenter.scheduling.objective import ExposureLimits
from karpenter.scheduling.solution import ExposureViolation, NewNodeClaim, UnreadableAnnotation, ViolationCause
from karpenter.scheduling.topology.host_limits import ExposedWorkload
from karpenter.state.snapshot import ClusterSnapshot, PodGroup
from karpenter.state.virtual_pods import is_virtual_pod


class ExposedWorkloads:
    """The workloads of one decision that are large enough to be exposed, and what NodePools say about that.

    ``moving``: bound pods that need a place, too.
    """

    def __init__(self, snapshot: ClusterSnapshot, moving: Iterable[PodGroup], exposure: ExposureLimits) -> None:
        self._exposure = exposure
        #: What NodePools ask for.
        self._share_by_pool: dict[str, Fraction] = {}
        self._by_owner: dict[str, ExposedWorkload] = {}
        self.unreadable: list[UnreadableAnnotation] = []
        for pool in snapshot.pools:
            name = pool.metadata.name
            share = _share_from_annotation(pool.metadata.annotations, f"NodePool {name}", self.unreadable.append)
            if share is not None:
                self._share_by_pool[name] = share
        waiting, leaving = (_by_workload(p for g in groups for p in g.pods) for groups in (snapshot.pod_groups, moving))
        asking = {owner: (*waiting.get(owner, ()), *leaving.get(owner, ())) for owner in (*waiting, *leaving)}
        self._nodes = snapshot.nodes
        for owner, own_pods in asking.items():
            self._add_workload(owner, own_pods, len(waiting.get(owner, ())) + self._bound_by_workload[owner])

    def __bool__(self) -> bool:
        """Whether any workload should be spread."""
        return bool(self._by_owner)

    def restricted_to(self, leaving: Iterable[Pod]) -> ExposedWorkloads:
        """The same where only these bound pods need a place."""
        bound = self._bound_by_workload
        other = copy(self)
        other._by_owner, other.unreadable = {}, []
        for owner, own_pods in _by_workload(leaving).items():
            if len(own_pods) > 1:
                other._add_workload(owner, own_pods, bound[owner])
        return other

    def may_expose(self, counts: Mapping[str, int]) -> bool:
        """Whether one of the workloads would be exposed if so many of its bound pods need a place.

        Only for pods that do not say themselves what share of them a node may have.
        """
        bound, most = self._bound_by_workload, self._most_by_replicas
        for owner, count in counts.items():
            replicas = bound[owner] if count > 1 else 0
            if replicas >= self._exposure.min_pods:
                if replicas not in most:
                    shares = (self._exposure.per_node, *self._share_by_pool.values())
                    most[replicas] = min(share_of(share, replicas) for share in shares)
                if most[replicas] < count:
                    return True
        return False

    @cached_property
    def _most_by_replicas(self) -> dict[int, int]:
        """How many pods of so many replicas may be on a new node, remembered: fractions take time."""
        return {}

    @cached_property
    def _bound_by_workload(self) -> Counter[str]:
        """How many pods of each workload are bound."""
        bound: Counter[str] = Counter()
        for view in self._nodes:
            for owner, count in view.pods_by_workload.items():
                bound[owner] += count
        return bound

    def workload_of(self, pod: Pod) -> ExposedWorkload | None:
        """The workload of a pod, None where it may all be on one node. Virtual pods are of none."""
        return self._by_owner.get(pods.workload_id(pod)) if self._by_owner and not is_virtual_pod(pod) else None

    def max_spot_in_one_pool(self, pool: str, number: int) -> int:
        """How many of so many spot nodes of a NodePool should be in one type and zone."""
        if number < self._exposure.min_claims:
            return number
        return share_of(self._share_by_pool.get(pool, self._exposure.per_spot_pool), number)

    def _add_workload(self, owner: str, waiting: Sequence[Pod], replicas: int) -> None:
        name = _workload_name(waiting[0])
        own = self._share_of_pods(waiting, name)
        if replicas < self._exposure.min_pods:
            return
        share = own if own is not None else self._exposure.per_node
        in_pools = {} if own is not None else {pool: share_of(s, replicas) for pool, s in self._share_by_pool.items()}
        exposed = ExposedWorkload(name, replicas, share_of(share, replicas), in_pools)
        if exposed.lowest_max < len(waiting):
            self._by_owner[owner] = exposed

    def _share_of_pods(self, waiting: Sequence[Pod], name: str) -> Fraction | None:
        """The share that pods ask for by annotation; the smallest where they differ."""
        texts = {text for pod in waiting if (text := pod.metadata.annotations.get(labels.EXPOSURE)) is not None}
        asked = [
            _share_from_annotation({labels.EXPOSURE: text}, name, self.unreadable.append) for text in sorted(texts)
        ]
        return min((share for share in asked if share is not None), default=None)


def _by_workload(bound_or_waiting: Iterable[Pod]) -> Mapping[str, Sequence[Pod]]:
    """The pods that have a workload."""
    together: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in bound_or_waiting:
        together[pods.workload_id(pod)].append(pod)
    together.pop("", None)
    return together


def _share_from_annotation(
    annotations: Mapping[str, str], subject: str, complain: Callable[[UnreadableAnnotation], object]
) -> Fraction | None:
    """The share an annotation names; None without one, or where it cannot be read."""
    text = annotations.get(labels.EXPOSURE)
    if text is None:
        return None
    try:
        return parse_share(text)
    except ShareError as error:
        complain(UnreadableAnnotation(subject, labels.EXPOSURE, str(error)))
        return None


def _workload_name(pod: Pod) -> str:
    owner = pods.controller_of(pod.metadata)
    return f"{owner.kind} {pod.metadata.namespace}/{owner.name}" if owner is not None else ""


def exposure_violations(claims: Sequence[NewNodeClaim], workloads: ExposedWorkloads) -> Iterator[ExposureViolation]:
    """New nodes with more of a workload than should be there, and why."""
    for claim in claims:
        counts: Counter[ExposedWorkload] = Counter()
        for pod in claim.pods:
            exposed = workloads.workload_of(pod)
            if exposed is not None:
                counts[exposed] += 1
        together = {workloads.workload_of(pod) for pod in claim.pods if has_host_affinity(pod)}
        for exposed, number in counts.items():
            most = exposed.max_in_pool(claim.node_pool)
            if number > most:
                why = ViolationCause.TOGETHER if exposed in together else ViolationCause.LIMITS
                yield ExposureViolation(exposed.name, f"NodeClaim {claim.name}", number, most, why)


def has_host_affinity(pod: Pod) -> bool:
    """Whether the pod wants to be on the host of others."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    if affinity is None:
        return False
    terms = (*affinity.required, *(pod_affinity_term.pod_affinity_term for pod_affinity_term in affinity.preferred))
    return any(term.topology_key == labels.HOSTNAME for term in terms)
