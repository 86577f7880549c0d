"""What would happen if: a node is drained, pods are added, an instance family is forbidden. Pure decisions on a copy.

Each answer compares two scheduling passes: the one that is due anyway, and the same with the change. So pods that wait already
do not count as a consequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from karpenter.api.core import Container, Pod, PodSpec, PodStatus
from karpenter.api.core import ResourceRequirements as ContainerResources
from karpenter.api.karpenter import NodePool, NodeSelectorRequirementWithMinValues
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.console.console_input import ConsoleInput
from karpenter.console.pending_pods import unschedulable_sentence
from karpenter.disruption.decide.blocker_messages import blocker_message
from karpenter.disruption.decide.costs import NodePrices
from karpenter.disruption.decide.disruption_blockers import MultiplePdbs, PdbExhausted
from karpenter.model import labels, pod_disruption, pods
from karpenter.model import resources as res
from karpenter.scheduling.pod_eligibility import blocked_by_budgets
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state.pod_counts import namespaced_labels
from karpenter.state.pod_signature import PodSignatureCache
from karpenter.state.snapshot import ClusterSnapshot, PodGroup
from karpenter.state.state_node import StateNode

#: More pods than that are no question but a load test.
MAX_ADDED_PODS = 5000
_MAX_LISTED = 500


@dataclass(frozen=True)
class DrainedNode:
    """What if this node (by name) were drained and removed?"""

    node: str


@dataclass(frozen=True)
class AddedPods:
    """What if so many pods with these requests, in millicores and bytes, were created?"""

    count: int
    cpu_millis: int
    memory_bytes: int


@dataclass(frozen=True)
class ForbiddenFamily:
    """What if no NodePool might use an instance family, such as ``m5``, and its nodes were replaced?"""

    family: str


ClusterQuestion = DrainedNode | AddedPods | ForbiddenFamily


class UnanswerableQuestion(Exception):
    """The question names something that is not there; the message says what."""


@dataclass(frozen=True)
class NewNode:
    """A node that would be launched; ``price_per_hour`` in USD."""

    name: str
    pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float
    pods: int


@dataclass(frozen=True)
class PodMove:
    """A pod with the node it is on now (empty for a new pod) and the one it would go to."""

    pod: str
    from_node: str
    to_node: str


@dataclass(frozen=True)
class StrandedPodRow:
    """A pod that would wait, and why."""

    pod: str
    reason: str


@dataclass(frozen=True)
class HoldingPodRow:
    """A pod that may not be evicted now, and why: its node stays as long as the pod is there."""

    pod: str
    node: str
    reason: str


@dataclass(frozen=True)
class ClusterAnswer:
    """The consequences. ``price_before`` and ``price_after``: USD per hour of all nodes with a known price, with the due
    pass.

    ``removed``: names of the nodes that go. ``holding``: pods on these that may not be evicted, for which no place is planned.
    ``moves``, ``stranded`` and ``holding`` are cut to 500 pods; ``moved``, ``waiting`` and ``held`` count all.
    """

    price_before: float
    price_after: float
    removed: tuple[str, ...]
    new_nodes: tuple[NewNode, ...]
    moves: tuple[PodMove, ...]
    stranded: tuple[StrandedPodRow, ...]
    holding: tuple[HoldingPodRow, ...]
    moved: int
    waiting: int
    held: int

    @property
    def difference_per_hour(self) -> float:
        """USD per hour more (negative: less) than without the change."""
        return self.price_after - self.price_before


def answer_question(given: ConsoleInput, question: ClusterQuestion, options: SchedulingOptions) -> ClusterAnswer:
    """The answer on this cluster. Raises ``UnanswerableQuestion``."""
    load_solver()
    snapshot, removed = _changed_snapshot(given, question)
    due = _pass(given, given.snapshot, options)
    after = _pass(given, snapshot, options)
    return _compare(given, due, after, removed)


def _changed_snapshot(given: ConsoleInput, question: ClusterQuestion) -> tuple[ClusterSnapshot, tuple[StateNode, ...]]:
    match question:
        case DrainedNode(name):
            return _without_node(given, name)
        case AddedPods():
            return _with_pods(given.snapshot, question), ()
        case ForbiddenFamily(family):
            return _without_family(given, family)


def _without_node(given: ConsoleInput, name: str) -> tuple[ClusterSnapshot, tuple[StateNode, ...]]:
    gone = tuple(view for view in given.snapshot.nodes if name in (view.name, view.key))
    if not gone:
        raise UnanswerableQuestion(f"there is no node {name}")
    return _marked(given.snapshot, gone), gone


def _marked(snapshot: ClusterSnapshot, gone: Iterable[StateNode]) -> ClusterSnapshot:
    keys = {view.key for view in gone}
    nodes = (replace(view, marked_for_deletion=True) if view.key in keys else view for view in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


def _with_pods(snapshot: ClusterSnapshot, wanted: AddedPods) -> ClusterSnapshot:
    if not 0 < wanted.count <= MAX_ADDED_PODS:
        raise UnanswerableQuestion(f"the number of pods must be between 1 and {MAX_ADDED_PODS}")
    if wanted.cpu_millis < 0 or wanted.memory_bytes < 0:
        raise UnanswerableQuestion("requests cannot be negative")
    added = tuple(_new_pod(number, wanted) for number in range(wanted.count))
    group = PodGroup(PodSignatureCache().signature_of(added[0]), namespaced_labels(added[0]), added)
    return replace(snapshot, pod_groups=(*snapshot.pod_groups, group))


def _new_pod(number: int, wanted: AddedPods) -> Pod:
    name = f"added-{number + 1:04}"
    requests = {res.CPU: f"{wanted.cpu_millis}m", res.MEMORY: str(wanted.memory_bytes)}
    waiting = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="what-if", uid=f"what-if-{name}", labels={"app": "what-if"}),
        spec=PodSpec(containers=(Container(name="c", resources=ContainerResources(requests=requests)),)),
        status=PodStatus(phase="Pending", conditions=(waiting,)),
    )


def _without_family(given: ConsoleInput, family: str) -> tuple[ClusterSnapshot, tuple[StateNode, ...]]:
    names = {kind.name for index in given.indexes.values() for kind in index.types if family_of(kind.name) == family}
    gone = tuple(view for view in given.snapshot.nodes if view.managed and family_of(_type_of(view)) == family)
    if not names and not gone:
        raise UnanswerableQuestion(f"there is no instance type of the family {family}")
    pools = tuple(_forbidding(pool, names) for pool in given.snapshot.pools)
    return replace(_marked(given.snapshot, gone), pools=pools), gone


def family_of(instance_type: str) -> str:
    """The part of the name before the first dot, as EC2 names families: ``m5`` of ``m5.large``."""
    return instance_type.partition(".")[0]


def _type_of(view: StateNode) -> str:
    return view.own_labels.get(labels.INSTANCE_TYPE, "")


def _forbidding(pool: NodePool, names: Iterable[str]) -> NodePool:
    listed = tuple(sorted(names))
    if not listed:
        return pool
    rule = NodeSelectorRequirementWithMinValues(key=labels.INSTANCE_TYPE, operator="NotIn", values=listed)
    template = pool.spec.template
    spec = changed(template.spec, requirements=(*template.spec.requirements, rule))
    return changed(pool, spec=changed(pool.spec, template=changed(template, spec=spec)))


def _pass(given: ConsoleInput, snapshot: ClusterSnapshot, options: SchedulingOptions) -> Solution:
    return solve(build_problem(snapshot, given.indexes, given.now, options), given.indexes)


# -- comparing ------------------------------------------------------------------------------------------------------------


def _compare(given: ConsoleInput, due: Solution, after: Solution, removed: tuple[StateNode, ...]) -> ClusterAnswer:
    prices = NodePrices(given.indexes)
    now = sum(prices.price_per_hour(view) or 0.0 for view in given.state_nodes if not view.marked_for_deletion)
    gone = sum(prices.price_per_hour(view) or 0.0 for view in removed if not view.marked_for_deletion)
    placed_before, waited = _places(due), {_name(left.pod) for left in due.unschedulable}
    hosts = {_name(pod): view.name for view in given.state_nodes for pod in view.pods}
    moves = [
        PodMove(pod, hosts.get(pod, ""), place)
        for pod, place in sorted(_places(after).items())
        if placed_before.get(pod) != place
    ]
    left_out = [left for left in after.unschedulable if _name(left.pod) not in waited]
    stranded = [StrandedPodRow(_name(left.pod), unschedulable_sentence(left)) for left in left_out]
    due_claims = {claim.name for claim in due.new_claims}
    holding = list(_holding(given, removed))
    return ClusterAnswer(
        price_before=now + due.price_per_hour,
        price_after=now - gone + after.price_per_hour,
        removed=tuple(view.name for view in removed),
        new_nodes=tuple(_new_nodes(after, due_claims)),
        moves=tuple(moves[:_MAX_LISTED]),
        stranded=tuple(stranded[:_MAX_LISTED]),
        holding=tuple(holding[:_MAX_LISTED]),
        moved=len(moves),
        waiting=len(stranded),
        held=len(holding),
    )


def _holding(given: ConsoleInput, removed: Iterable[StateNode]) -> Iterator[HoldingPodRow]:
    """The pods on these nodes that the scheduling pass leaves out, because a drain cannot evict them (SCH-060, SCH-062)."""
    for view in removed:
        for pod in view.pods:
            if reason := _what_forbids_eviction(pod, given):
                yield HoldingPodRow(_name(pod), view.name, reason)


def _what_forbids_eviction(pod: Pod, given: ConsoleInput) -> str:
    if not pods.is_reschedulable(pod) or not pods.is_active(pod):
        return ""
    if pod_disruption.is_protected(pod, given.now):
        return f'Pod has "{labels.DO_NOT_DISRUPT}" annotation'
    if not blocked_by_budgets(pod, given.snapshot.pdbs, given.now):
        return ""
    budgets = pod_disruption.pdbs_selecting(pod, given.snapshot.pdbs)
    names = sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in budgets)
    return blocker_message(MultiplePdbs(tuple(names)) if len(names) > 1 else PdbExhausted(names[0]))


def _places(plan: Solution) -> Mapping[str, str]:
    """By pod, the node it is planned on."""
    new = {_name(pod): claim.name for claim in plan.new_claims for pod in claim.pods}
    return {**new, **{_name(pod): placed.node_name for placed in plan.placed_on_existing for pod in placed.pods}}


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _new_nodes(plan: Solution, due_claims: set[str]) -> Iterator[NewNode]:
    for claim in plan.new_claims:
        if claim.name not in due_claims:
            offering = claim.cheapest_offering
            yield NewNode(
                claim.name,
                claim.node_pool,
                claim.instance_types[0],
                offering.zone,
                offering.capacity_type,
                claim.price_per_hour,
                len(claim.pods),
            )
