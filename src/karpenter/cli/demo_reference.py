"""What the pods of the demo would cost on an empty cluster: the lower bound, and classic packing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Pod, PodStatus
from karpenter.cli import assumed_status, planning
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.instance_type_sources import FilePrices
from karpenter.cli.plan_instance_types import PlanInstanceTypes
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model import pods as pod_rules
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.scheduling_options import PackingMode
from karpenter.scheduling.solution import Solution
from karpenter.settings import Settings
from karpenter.simulation import SimulatedCluster
from karpenter.state.virtual_pods import VirtualPods


@dataclass(frozen=True, slots=True)
class ReferencePrices:
    """USD per hour for the same pods on an empty cluster.

    ``lower_bound``: no packing costs less; ``classic``: first-fit decreasing, one node at a time.
    """

    lower_bound: float
    classic: float


class ReferencePlanner:
    """Plans the pods of a stage anew, as if none of its nodes existed."""

    def __init__(self, stage: SimulatedCluster, settings: Settings) -> None:
        self._stage = stage
        self._options = settings.scheduling_options(settings.gates)
        types = stage.cloud.all_types
        self._index = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)
        self._prices: dict[frozenset[tuple[str, int]], ReferencePrices] = {}

    async def prices(self) -> ReferencePrices:
        """The prices for the pods that are there now; computed once for the same numbers of replicas."""
        objects = await self._objects()
        replicas = frozenset(Counter(pod.metadata.labels.get("app", pod.metadata.name) for pod in objects.pods).items())
        if replicas not in self._prices:
            cheapest, classic = (self._solve(objects, mode) for mode in (PackingMode.CHEAPEST, PackingMode.CLASSIC))
            self._prices[replicas] = ReferencePrices(cheapest.lower_bound_per_hour or 0.0, classic.price_per_hour)
        return self._prices[replicas]

    async def nearest_fits(self) -> list[str]:
        """What would have to change for each pod that fits nowhere."""
        solution = self._solve(await self._objects(), PackingMode.CHEAPEST)
        return [nearest_fit_sentence(pod.nearest_fit, pod.nearest_node) for pod in solution.unschedulable]

    async def _objects(self) -> ClusterObjects:
        kube = self._stage.kube
        active = [pod for pod in self._stage.pods() if pod_rules.is_active(pod)]
        return ClusterObjects(
            pods=[_pending(pod) for pod in active],
            pools=list((await kube.list(kinds.NODE_POOL)).items),
            daemon_sets=list((await kube.list(kinds.DAEMON_SET)).items),
        )

    def _solve(self, objects: ClusterObjects, mode: PackingMode) -> Solution:
        indexes = {pool.metadata.name: self._index for pool in objects.pools}
        plan_input = planning.PlanInput(PlanInstanceTypes(indexes, FilePrices(""), 0.0), objects, VirtualPods())
        return planning.compute_plan(plan_input, replace(self._options, packing_mode=mode)).solution


def _pending(pod: Pod) -> Pod:
    unbound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""), status=PodStatus())
    return assumed_status.with_scheduling_result(unbound)
