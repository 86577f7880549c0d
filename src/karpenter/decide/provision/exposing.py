"""Which workloads should not be on one new machine as a whole, and where that wish gave way (issue of price, point 3).

A workload is what one controller owns: the ReplicaSets of one Deployment count each for itself. Its pods, waiting or bound, are
counted; from so many on (`decide.worth.Exposure`) no more than a share of them, rounded up, should be on one machine that is
bought. What exists is the scheduler's business. The wish is a cap per machine like those of `hosting`, and kin are split by
workload for it; who has no owner, or is one of few, is as before.

It gives way, and the plan says so, where pods must be together on one host, and where limits would leave pods out for its sake.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.cluster.snapshot import PodGroup, Snapshot
from karpenter.decide.plan import Concession, PlannedClaim, Unreadable, Why
from karpenter.decide.provision.hosting import Exposed
from karpenter.decide.worth import Exposure
from karpenter.model import labels, pods
from karpenter.model.buffers import is_virtual
from karpenter.model.shares import ShareError, most_of, parse_share


class Exposures:
    """The workloads of one decision that are large enough to be exposed, and what NodePools say about that.

    ``moving``: bound pods that need a place, too.
    """

    def __init__(self, snapshot: Snapshot, moving: Iterable[PodGroup], exposure: Exposure) -> None:
        self._exposure = exposure
        #: What NodePools ask for.
        self._shares: dict[str, Fraction] = {}
        self._of: dict[str, Exposed] = {}
        self.unreadable: list[Unreadable] = []
        for pool in snapshot.pools:
            name = pool.metadata.name
            share = _asked(pool.metadata.annotations, f"NodePool {name}", self.unreadable.append)
            if share is not None:
                self._shares[name] = share
        waiting, leaving = (_by_workload(p for g in groups for p in g.pods) for groups in (snapshot.groups, moving))
        asking = {owner: (*waiting.get(owner, ()), *leaving.get(owner, ())) for owner in (*waiting, *leaving)}
        self._nodes = snapshot.nodes
        for owner, found in asking.items():
            self._enter(owner, found, len(waiting.get(owner, ())) + self._bound[owner])

    def consider(self, leaving: Iterable[Pod]) -> None:
        """From now on only these bound pods need a place."""
        self._of, self.unreadable = {}, []
        for owner, found in _by_workload(leaving).items():
            if len(found) > 1:
                self._enter(owner, found, self._bound[owner])

    @cached_property
    def _bound(self) -> Counter[str]:
        """How many pods of each workload are bound."""
        found: Counter[str] = Counter()
        for view in self._nodes:
            found.update(view.workloads)
        return found

    def of(self, pod: Pod) -> Exposed | None:
        """The workload of a pod, None where it may all be on one machine. Virtual pods are of none."""
        return self._of.get(pods.workload(pod)) if self._of and not is_virtual(pod) else None

    def most_spot(self, pool: str, number: int) -> int:
        """How many of so many spot machines of a NodePool should be in one type and zone."""
        if number < self._exposure.fewest_claims:
            return number
        return most_of(self._shares.get(pool, self._exposure.per_spot_pool), number)

    def _enter(self, owner: str, waiting: Sequence[Pod], replicas: int) -> None:
        name = _name(waiting[0])
        own = self._own(waiting, name)
        if replicas < self._exposure.fewest_pods:
            return
        share = own if own is not None else self._exposure.per_machine
        in_pools = {} if own is not None else {pool: most_of(s, replicas) for pool, s in self._shares.items()}
        exposed = Exposed(name, replicas, most_of(share, replicas), in_pools)
        if exposed.least < len(waiting):
            self._of[owner] = exposed

    def _own(self, waiting: Sequence[Pod], name: str) -> Fraction | None:
        """The share that pods ask for by annotation; the smallest where they differ."""
        texts = {text for pod in waiting if (text := pod.metadata.annotations.get(labels.EXPOSURE)) is not None}
        asked = [_asked({labels.EXPOSURE: text}, name, self.unreadable.append) for text in sorted(texts)]
        return min((share for share in asked if share is not None), default=None)


def _by_workload(found: Iterable[Pod]) -> Mapping[str, Sequence[Pod]]:
    """The pods that have a workload."""
    together: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in found:
        together[pods.workload(pod)].append(pod)
    together.pop("", None)
    return together


def _asked(annotations: Mapping[str, str], subject: str, complain: Callable[[Unreadable], object]) -> Fraction | None:
    """The share an annotation names; None without one, or where it cannot be read."""
    text = annotations.get(labels.EXPOSURE)
    if text is None:
        return None
    try:
        return parse_share(text)
    except ShareError as error:
        complain(Unreadable(subject, labels.EXPOSURE, str(error)))
        return None


def _name(pod: Pod) -> str:
    owner = next(item for item in pod.metadata.owner_references if item.controller)
    return f"{owner.kind} {pod.metadata.namespace}/{owner.name}"


def concessions(claims: Sequence[PlannedClaim], workloads: Exposures) -> Iterator[Concession]:
    """New machines with more of a workload than should be there, and why."""
    for claim in claims:
        counts: Counter[Exposed] = Counter()
        for pod in claim.pods:
            exposed = workloads.of(pod)
            if exposed is not None:
                counts[exposed] += 1
        together = {workloads.of(pod) for pod in claim.pods if _stays_near(pod)}
        for exposed, number in counts.items():
            most = exposed.most_on(claim.node_pool)
            if number > most:
                why = Why.TOGETHER if exposed in together else Why.LIMITS
                yield Concession(exposed.name, f"NodeClaim {claim.name}", number, most, why)


def _stays_near(pod: Pod) -> bool:
    """Whether the pod wants to be on the host of others."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    if affinity is None:
        return False
    terms = (*affinity.required, *(item.pod_affinity_term for item in affinity.preferred))
    return any(term.topology_key == labels.HOSTNAME for term in terms)
