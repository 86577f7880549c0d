"""The gangs of a problem with their pods, and problems that serve only some of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from karpenter.api.core import Pod
from karpenter.scheduling.gangs.gang_domains import known_domains, nodes_by_domain
from karpenter.scheduling.problem import Problem
from karpenter.state.gangs import Gang
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import PodGroup

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: What two gangs have in common of which one gets places where the other would.
Fingerprint = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class PendingGang:
    """A gang and its pending pods. ``needed`` of them must get a place; ``fingerprint`` is equal for gangs that ask the same."""

    gang: Gang
    groups: tuple[PodGroup, ...]
    fingerprint: Fingerprint

    @property
    def needed(self) -> int:
        """How many of its pending pods must get a place."""
        return self.gang.minimum - self.gang.running

    @property
    def pods(self) -> Iterator[Pod]:
        """Its pending pods."""
        return (pod for group in self.groups for pod in group.pods)

    @property
    def pod_count(self) -> int:
        """How many pods it has that wait."""
        return sum(len(group.pods) for group in self.groups)


def precedence(pending: PendingGang) -> tuple[int, datetime, str]:
    """Sort key: the most important gang first, then the oldest."""
    gang = pending.gang
    return (-gang.priority, gang.created or _EPOCH, gang.name)


class GangProblem:
    """A problem with gangs. Pods that are of no gang are in every problem made of it."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._signatures = PodSignatureCache()
        self._in_domain: dict[tuple[PodSignature, str, str], PodSignature] = {}
        self._gang_of = {uid: gang.name for gang in problem.snapshot.gangs for uid in gang.members}
        snapshot = problem.snapshot
        self._labels_matter = bool(snapshot.anti_affinity_counts) or any(
            group.signature.topology_terms.required or group.signature.topology_terms.preferred
            for group in snapshot.pod_groups
        )
        self.gangs = self._pending_gangs()

    def _pending_gangs(self) -> tuple[PendingGang, ...]:
        """Gangs of which pods wait here, in the order they are served."""
        groups: dict[str, list[PodGroup]] = {}
        for group in self._problem.snapshot.pod_groups:
            own: dict[str, list[Pod]] = {}
            for pod in group.pods:
                name = self._gang_of.get(pod.metadata.uid)
                if name is not None:
                    own.setdefault(name, []).append(pod)
            for name, pods in own.items():
                groups.setdefault(name, []).append(replace(group, pods=tuple(pods)))
        pending = (
            PendingGang(gang, tuple(groups[gang.name]), self._fingerprint(gang, groups[gang.name]))
            for gang in self._problem.snapshot.gangs
            if gang.name in groups
        )
        return tuple(sorted(pending, key=precedence))

    def _fingerprint(self, gang: Gang, groups: list[PodGroup]) -> Fingerprint:
        if any(pod.spec.volumes or pod.spec.resource_claims for group in groups for pod in group.pods):
            return (gang.name,)
        counts: Counter[object] = Counter()
        for group in groups:
            own = group.namespaced_labels if self._labels_matter else None
            counts[group.signature, own] += len(group.pods)
        return (
            frozenset(counts.items()),
            gang.minimum - gang.running,
            gang.topology_key,
            gang.running_on,
            gang.on_existing_nodes_only,
        )

    def domains(self, pending: PendingGang) -> tuple[str, ...]:
        """Where the pods of a gang may be together: where some of them are already, else every domain there is."""
        gang = pending.gang
        by_node = nodes_by_domain(self._problem.snapshot, gang.topology_key)
        taken = Counter(by_node[name] for name in gang.running_on if name in by_node)
        if taken:
            return (max(taken, key=lambda domain: (taken[domain], domain)),)
        return known_domains(self._problem, gang.topology_key)

    def planned_domains(self, pending: PendingGang) -> Counter[str]:
        """The domains of nodes on which the last pass planned its pods."""
        snapshot = self._problem.snapshot
        by_node = nodes_by_domain(snapshot, pending.gang.topology_key)
        planned = (snapshot.planned_nodes.get(pod.metadata.uid, "") for pod in pending.pods)
        return Counter(by_node[key] for key in planned if key in by_node)

    def serving(self, served: Mapping[PendingGang, str], *, alone: bool = False) -> Problem:
        """The problem with the pods of these gangs, each in its domain if it has one, and unless ``alone`` all single pods."""
        anywhere = {pending.gang.name for pending, domain in served.items() if not domain}
        groups = [
            replace(group, pods=kept)
            for group in self._problem.snapshot.pod_groups
            if (kept := tuple(pod for pod in group.pods if self._is_kept(pod, anywhere, alone=alone)))
        ]
        for pending, domain in served.items():
            if domain:
                key = pending.gang.topology_key
                groups += [replace(group, signature=self._within(group, key, domain)) for group in pending.groups]
        snapshot = replace(self._problem.snapshot, pod_groups=tuple(groups), gangs=())
        return replace(self._problem, snapshot=snapshot)

    def _is_kept(self, pod: Pod, anywhere: set[str], *, alone: bool) -> bool:
        name = self._gang_of.get(pod.metadata.uid)
        return not alone if name is None else name in anywhere

    def _within(self, group: PodGroup, key: str, domain: str) -> PodSignature:
        """The signature of pods that must be in a domain, as if their node selector said so."""
        signature = self._in_domain.get((group.signature, key, domain))
        if signature is None:
            pod = group.pods[0]
            spec = msgspec.structs.replace(pod.spec, node_selector={**pod.spec.node_selector, key: domain})
            signature = self._signatures.signature_of(msgspec.structs.replace(pod, spec=spec))
            self._in_domain[group.signature, key, domain] = signature
        return signature
