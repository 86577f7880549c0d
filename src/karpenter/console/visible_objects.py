"""A cluster as somebody may see it: only objects that `kubectl get` would list for them.

The view is made of the objects that are left, so nothing about the others can show: no sum, no name in a reason, no neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from karpenter.api.core import Pod
from karpenter.console.console_input import ConsoleInput
from karpenter.state import ClusterState


@dataclass(frozen=True)
class Visibility:
    """What somebody may list. ``pod_namespaces``: where they may list pods; None means in all namespaces.

    ``others``: everything else that views are made of (DaemonSets, PodDisruptionBudgets, namespaces, volumes and their claims,
    storage classes), and the freeze of the cluster. The history, which tells of all of it, needs everything.
    """

    nodes: bool = False
    claims: bool = False
    pools: bool = False
    pod_namespaces: frozenset[str] | None = frozenset()
    others: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is hidden."""
        return self.nodes and self.claims and self.pools and self.others and self.pod_namespaces is None

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be seen."""
        return self == Visibility()

    def shows_pod(self, pod: Pod) -> bool:
        """Whether this pod may be seen."""
        return self.pod_namespaces is None or pod.metadata.namespace in self.pod_namespaces


COMPLETE = Visibility(True, True, True, None, True)


def namespaces_by_interest(names: Iterable[str], pods: Iterable[Pod]) -> tuple[str, ...]:
    """Namespaces in the order in which a console asks about them: most waiting pods first, then most pods, then by name."""
    waiting, all_pods = Counter[str](), Counter[str]()
    for pod in pods:
        all_pods[pod.metadata.namespace] += 1
        if not pod.spec.node_name:
            waiting[pod.metadata.namespace] += 1
    return tuple(sorted(names, key=lambda name: (-waiting[name], -all_pods[name], name)))


def visible_input(given: ConsoleInput, visibility: Visibility) -> ConsoleInput:
    """The cluster with what may be seen; ``given`` where nothing is hidden. Costs a cluster state, so it belongs in a thread."""
    if visibility.is_complete:
        return given
    state, wires = ClusterState(), given.wires
    pods = tuple(pod for pod in given.pods if visibility.shows_pod(pod))
    nodes = given.nodes if visibility.nodes else ()
    for pool in wires.pools if visibility.pools else ():
        state.set_pool(pool)
    for claim in wires.claims if visibility.claims else ():
        state.set_claim(claim)
    for node in nodes:
        state.set_node(node)
    for pod in pods:
        state.set_pod(pod)
    # Which pods wait depends on settings that this state does not know. What a pod waits with is of its own namespace.
    shown = ((group, tuple(filter(visibility.shows_pod, group.pods))) for group in given.snapshot.pod_groups)
    waiting = tuple(replace(group, pods=left) for group, left in shown if left)
    if visibility.others:
        for pdb in wires.pdbs:
            state.set_pdb(pdb)
        for namespace in wires.namespaces:
            state.set_namespace(namespace)
        state.freeze = given.snapshot.freeze
    indexes = given.indexes if visibility.pools else {}
    return ConsoleInput(replace(state.snapshot(), pod_groups=waiting), given.now, pods, nodes, indexes=indexes)
