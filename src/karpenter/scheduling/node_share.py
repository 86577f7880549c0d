"""How many pods of one plan may be on one new node: a share of the plan, and an absolute number.

One large node is often the cheapest for hundreds of small pods, and takes them all with it when it fails. So no new node has more
than a quarter of a plan of `MIN_PLAN_PODS` pods or more, and none has more than 110. NodePools may ask for another share by the
annotation ``karpenter.sh/max-node-share``. The plan says what that costs.

The default gives way to the price where it costs over `MAX_SHARE_COST` more than no share; the 110 pods hold. Spot prices per
CPU differ so much between types that four nodes of a small plan cost up to 28 % more than two. Half of a workload stays elsewhere
in any case (`workload_exposure`). What an annotation asks for is kept at any price.

The limit is no constraint of pods. It is stated to packings as pods that DaemonSets already have on each type, so every packing
and the search keep to it without a rule of their own; claims get their own template back afterwards. It gives way where it would
leave pods out, and the plan says so. It applies to provisioning only: what disruption moves is no plan of its own.

Within 1 % of the price, a plan with at most 60 pods on a node is preferred to one with more, unless exposure is off or the
NodePool asks for a share of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from sys import maxsize

from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.shares import WHOLE, ShareError, parse_share, share_of
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.objective import ExposureLimits
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import DaemonGroup, NodePoolTemplate
from karpenter.scheduling.solution import ExposureViolation, NewNodeClaim, UnreadableAnnotation, ViolationCause
from karpenter.scheduling.workload_exposure import has_host_affinity

#: Smaller plans may be on one node.
MIN_PLAN_PODS = 40
#: How much more a plan may cost for the default share. docs/design/defaults.md gives what half of a plan saves instead.
MAX_SHARE_COST = 0.1
#: The most pods on one node among plans that cost about the same, and how much more such a plan may cost.
USUAL_PODS_PER_NODE, USUAL_EXTRA_COST = 60, 0.01
#: Larger plans are not packed once more for that.
MAX_USUAL_PLAN_PODS = 1_000


@dataclass(frozen=True)
class NodeShares:
    """The largest share of a plan on one new node, by NodePool, and the most pods on one."""

    default: Fraction
    by_pool: dict[str, Fraction]
    max_pods: int
    unreadable: tuple[UnreadableAnnotation, ...] = ()

    def usual_pods_in(self, pool: str, plan_pods: int) -> int:
        """How many of the pods of a plan are on one new node of a pool where that costs next to nothing."""
        most = self.max_pods_in(pool, plan_pods)
        asks_otherwise = pool in self.by_pool or self.default >= WHOLE or not self.max_pods
        return most if asks_otherwise or plan_pods > MAX_USUAL_PLAN_PODS else min(most, USUAL_PODS_PER_NODE)

    def max_pods_in(self, pool: str, plan_pods: int) -> int:
        """How many of the pods of a plan may be on one new node of a pool."""
        share = self.by_pool.get(pool, self.default)
        of_plan = share_of(share, plan_pods) if plan_pods >= MIN_PLAN_PODS and share < WHOLE else maxsize
        return min(of_plan, self.max_pods or maxsize)

    def without_default(self) -> NodeShares:
        """What is kept at any price: what NodePools ask for, and the most pods on a node."""
        return replace(self, default=WHOLE)

    def divide(self, plan_pods: int) -> bool:
        """Whether one new node for such a plan has more than the usual number of its pods; larger plans have no usual number."""
        return plan_pods <= MAX_USUAL_PLAN_PODS and self.usual_pods_in("", plan_pods) < plan_pods


def node_shares(pools: Iterable[NodePool], exposure: ExposureLimits) -> NodeShares:
    """The shares that settings and NodePools ask for."""
    by_pool: dict[str, Fraction] = {}
    unreadable = []
    for pool in pools:
        text = pool.metadata.annotations.get(labels.MAX_NODE_SHARE)
        try:
            if text is not None:
                by_pool[pool.metadata.name] = parse_share(text)
        except ShareError as error:
            subject = f"NodePool {pool.metadata.name}"
            unreadable.append(UnreadableAnnotation(subject, labels.MAX_NODE_SHARE, str(error)))
    return NodeShares(exposure.per_plan, by_pool, exposure.max_pods_per_node, tuple(unreadable))


def node_share_violations(
    claims: Iterable[NewNodeClaim], plan_pods: int, shares: NodeShares, cause: ViolationCause
) -> Iterator[ExposureViolation]:
    """New nodes with more of a plan of so many pods than should be there, and why: the cause, or that their pods are together."""
    most_by_pool: dict[str, int] = {}
    for claim in claims:
        pool = claim.node_pool
        if pool not in most_by_pool:
            most_by_pool[pool] = shares.max_pods_in(pool, plan_pods)
        most = most_by_pool[pool]
        if len(claim.pods) > most:
            together = any(map(has_host_affinity, claim.pods))
            why = ViolationCause.TOGETHER if together else cause
            yield ExposureViolation("the plan", f"NodeClaim {claim.name}", len(claim.pods), most, why)


class CappedDemands:
    """Demands whose options sell nodes for no more pods than ``max_pods_in`` says of their NodePool."""

    def __init__(self, demands: Sequence[Demand], max_pods_in: Callable[[str], int]) -> None:
        self._max_pods_in = max_pods_in
        self._capped: dict[int, NodePoolTemplate] = {}
        self._own: dict[int, NodePoolTemplate] = {}
        self._options: dict[int, LaunchOption] = {}
        self.demands = [replace(demand, options=tuple(map(self._option, demand.options))) for demand in demands]

    def with_own_templates(self, claims: Iterable[SchedulingNodeClaim]) -> tuple[SchedulingNodeClaim, ...]:
        """Claims of a packing of these demands as claims of the NodePools' own templates."""
        return tuple(replace(claim, template=self._own[id(claim.template)]) for claim in claims)

    def _option(self, option: LaunchOption) -> LaunchOption:
        capped = self._options.get(id(option))
        if capped is None:
            capped = self._options[id(option)] = replace(option, template=self._template(option.template))
        return capped

    def _template(self, template: NodePoolTemplate) -> NodePoolTemplate:
        capped = self._capped.get(id(template))
        if capped is None:
            most = self._max_pods_in(template.name)
            daemons = tuple(capped for group in template.daemons for capped in _capped_groups(template, group, most))
            capped = self._capped[id(template)] = replace(template, daemons=daemons)
            self._own[id(capped)] = template
        return capped


def _capped_groups(template: NodePoolTemplate, group: DaemonGroup, most: int) -> Iterator[DaemonGroup]:
    """The group, with those of its types apart that hold more pods: there more are taken."""
    by_taken: defaultdict[int, TypeSet] = defaultdict(int)
    own = group.overhead.get(res.PODS, 0)
    for position in members(group.types):
        room = template.index.types[position].allocatable.get(res.PODS, 0) - own
        by_taken[max(0, room - most * quantity.MILLI)] |= 1 << position
    for taken, types in sorted(by_taken.items()):
        overhead = {**group.overhead, res.PODS: own + taken} if taken else group.overhead
        yield DaemonGroup(types, overhead, group.ports)
