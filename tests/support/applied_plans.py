"""A cluster that applies each provisioning plan: its nodes run and its pods are bound before the next plan is made.

This module decides nothing: a planned claim becomes a node of its cheapest type in its cheapest offering.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Wire
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import NewNodeClaim, Solution
from karpenter.scheduling.solver import solve
from support.builders import NOW, Types, flatten, node_and_claim, plan, replaced, snapshot
from support.instance_types import STD


class PlannedCluster:
    """Objects of a cluster, and how plans change them. Pods that were left out stay waiting.

    ``index``: the types prepared, for all pools; else they are prepared for every plan as those of the tests are.
    """

    def __init__(
        self,
        *objects: object,
        types: Types = STD,
        options: SchedulingOptions | None = None,
        index: TypeIndex | None = None,
    ) -> None:
        self._others = [wire for wire in flatten(objects) if not isinstance(wire, Pod)]
        self._pods: dict[str, Pod] = {wire.metadata.uid: wire for wire in flatten(objects) if isinstance(wire, Pod)}
        self._types = types
        self._options = options
        self._index = index
        self._nodes: dict[str, Mapping[str, str]] = {}

    def batch(self, *arriving: object) -> Solution:
        """Plan for these pods and all that still wait, and carry the plan out."""
        for wire in flatten(arriving):
            assert isinstance(wire, Pod)
            self._pods[wire.metadata.uid] = wire
        everything = [*self._others, *self._pods.values()]
        if self._index is None:
            result = plan(everything, types=self._types, options=self._options)
        else:
            prepared = {item.metadata.name: self._index for item in self._others if isinstance(item, NodePool)}
            result = solve(
                build_problem(snapshot(everything), prepared, NOW, self._options or SchedulingOptions()), prepared
            )
        for placed in result.placed_on_existing:
            self._bind(placed.pods, placed.node_name)
        for planned in result.new_claims:
            self._others += self._built(planned)
            self._bind(planned.pods, planned.name)
        return result

    def objects(self) -> list[Wire]:
        """Everything there is now."""
        return [*self._others, *self._pods.values()]

    def change(self, pool: NodePool) -> None:
        """Put this pool in place of the one of its name, or beside the others."""
        kept = [i for i in self._others if not (isinstance(i, NodePool) and i.metadata.name == pool.metadata.name)]
        self._others = [*kept, pool]

    def finish(self) -> None:
        """The pods that still wait are deleted."""
        self._pods = {uid: pod for uid, pod in self._pods.items() if pod.spec.node_name}

    def counts(self, key: str = labels.ZONE, app: str | None = None) -> dict[str, int]:
        """Bound pods by a label of their node, of one app or all; labels of given nodes count as well."""
        result: dict[str, int] = {}
        for pod in self._bound(app):
            domain = self._labels_of(pod.spec.node_name).get(key, "")
            result[domain] = result.get(domain, 0) + 1
        return dict(sorted(result.items()))

    def per_node(self, app: str | None = None) -> list[int]:
        """How many pods each node with any has, sorted."""
        return sorted(self.counts(labels.HOSTNAME, app).values())

    def host_of(self, name: str) -> str:
        """The node a pod is bound to; empty while it waits."""
        return next(pod.spec.node_name for pod in self._pods.values() if pod.metadata.name == name)

    def domain_of(self, name: str, key: str = labels.ZONE) -> str:
        """The value a label has on the node a pod is bound to; empty while it waits."""
        return self._labels_of(self.host_of(name)).get(key, "")

    def _bound(self, app: str | None) -> Iterator[Pod]:
        for pod in self._pods.values():
            if pod.spec.node_name and app in (None, pod.metadata.labels.get("app")):
                yield pod

    def _labels_of(self, node: str) -> Mapping[str, str]:
        result = (i.metadata.labels for i in self._others if i.metadata.name == node)  # type: ignore[attr-defined]
        return next(result, {})

    def _bind(self, pods: tuple[Pod, ...], node: str) -> None:
        for pod in pods:
            self._pods[pod.metadata.uid] = replaced(
                pod,
                spec=replaced(pod.spec, node_name=node),
                status=replaced(pod.status, phase="Running", conditions=()),
            )

    def _built(self, planned: NewNodeClaim) -> list[Wire]:
        offered = self._types[planned.node_pool] if isinstance(self._types, Mapping) else self._types
        kind = next(instance_type for instance_type in offered if instance_type.name == planned.instance_types[0])
        spec = planned.claim.spec
        return flatten(
            node_and_claim(
                planned.name,
                res.resources_to_wire(kind.allocatable),
                pool=planned.node_pool,
                labels=_labels(planned, kind),
                taints=[nodepool_taint.as_taint() for nodepool_taint in spec.taints],
            )
        )


def _labels(planned: NewNodeClaim, kind: InstanceType) -> dict[str, str]:
    """What the node is labelled with: by its type, its offering, and what its claim leaves no choice about."""
    own = {key: min(form.values) for key, form in kind.requirements.items() if form.values}
    sold = {key: next(iter(form.values)) for key, form in planned.cheapest_offering.requirements.items()}
    asked = {
        requirement.key: requirement.values[0]
        for requirement in planned.claim.spec.requirements
        if len(requirement.values) == 1
    }
    return {**own, **asked, **sold, **planned.claim.metadata.labels}
