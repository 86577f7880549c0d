"""Lower bounds for many mixtures of the same pods: what the nodes for so many of each cost at least, per hour.

The options of each pod are found once; a mixture costs one linear program (``search.lower_bound``). Existing nodes play no part.
"""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.pass_result import PlannedPlacements
from karpenter.scheduling.prepared_problem import PreparedProblem
from karpenter.scheduling.problem import Problem
from karpenter.scheduling.scheduling_passes import SchedulingPasses
from karpenter.scheduling.search.lower_bound import lower_bound_of_counts
from karpenter.scheduling.topology.bound_pod_counts import BoundPodCounts
from karpenter.scheduling.topology.topology_domains import TopologyDomains


class MixtureBounds:
    """Bounds for mixtures of the waiting pods of a problem."""

    def __init__(self, problem: Problem, indexes: Mapping[str, TypeIndex]) -> None:
        self._prepared = PreparedProblem(problem, indexes)
        self._demand_by_pod: dict[str, Demand] = {
            pod.metadata.name: demand for demand in self._demands() for pod in demand.pods
        }

    def _demands(self) -> list[Demand]:
        prepared, snapshot = self._prepared, self._prepared.problem.snapshot
        waiting = prepared.eligible_groups(snapshot.pod_groups, prepared.exposed_workloads, bound=False)
        bound = BoundPodCounts(snapshot)
        domains = TopologyDomains(bound, prepared.templates, prepared.existing_nodes)
        planned = PlannedPlacements({}, prepared.existing_nodes.all_nodes)
        passes = SchedulingPasses(prepared.pass_context(prepared.existing_nodes, domains, planned))
        outcome = passes.best_outcome(prepared.equivalence_groups(waiting.groups, bound))
        return [keyed.demand for keyed in outcome.result.demands]

    @property
    def pod_names(self) -> frozenset[str]:
        """The pods some new node can hold."""
        return frozenset(self._demand_by_pod)

    def pools_for(self, pod_name: str) -> frozenset[str]:
        """The NodePools whose nodes can hold a pod; none for one that no new node can hold."""
        demand = self._demand_by_pod.get(pod_name)
        return frozenset() if demand is None else frozenset(option.template.name for option in demand.options)

    def per_hour(self, counts: Mapping[str, float]) -> float:
        """USD per hour at least for so many pods like each named one. Pods that no new node can hold count nothing."""
        by_demand: dict[int, float] = {}
        demands = {id(demand): demand for demand in self._demand_by_pod.values()}
        for name, count in counts.items():
            demand = self._demand_by_pod.get(name)
            if demand is not None:
                by_demand[id(demand)] = by_demand.get(id(demand), 0.0) + count
        counted = [(demands[key], count) for key, count in by_demand.items()]
        return lower_bound_of_counts(counted, self._prepared.reservation_units) or 0.0
