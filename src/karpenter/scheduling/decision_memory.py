"""What one decision leaves for the next: prepared NodePools, launch options and packings.

Disruption decides again and again about nearly the same cluster, and asks each time what new nodes the pods of each node would
need. That answer depends on the pods, the NodePools and what is for sale, not on the other nodes. So it outlives the decision.

Everything here is derived from what its key holds: a decision with a memory is the same as one without. What depends on
NodePools, instance types or the objective is forgotten when these change. What depends on pods is kept as long as decisions ask
about the very same pods. A memory belongs to one controller: no two threads may use it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec.structs import replace

from karpenter.api.core import Pod
from karpenter.api.karpenter import Disruption, NodePool, NodePoolStatus
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.demand import Demand, Packing, PackingBounds, SchedulingNodeClaim
from karpenter.scheduling.existing_nodes import ExistingNode
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.packing.exact_packing import ProvenPacking
from karpenter.scheduling.packing.limit_reservations import ReservationPolicy
from karpenter.scheduling.packing.packer import Packer
from karpenter.scheduling.preferences import Preferences
from karpenter.scheduling.scheduling_options import PreferencePolicy
from karpenter.scheduling.search.column_generation import SearchStart
from karpenter.scheduling.solution import SkippedNodePool
from karpenter.scheduling.topology.host_limits import ExposedWorkload, HostLimits
from karpenter.scheduling.whatif.counted_pass import CountedGroup
from karpenter.scheduling.whatif.movers import Movers, merged_counts
from karpenter.scheduling.whatif.pass_facts import FactsKey, PassFacts, node_content, pod_content
from karpenter.scheduling.whatif.price_bounds import PriceBounds
from karpenter.state.pod_counts import NamespacedLabels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.snapshot import DaemonSetPod

#: The latest packers and indexes of launch options that are kept.
_MAX_PACKERS = 512
_MAX_OPTION_INDEXES = 16
#: Movers of more pods are not kept: their keys are as long. Sets of nodes that are searched together have some hundreds.
_MAX_PODS_OF_MOVERS = 1024
#: What no decision asked for in so many preparations is forgotten. A pass prepares again for each step that follows its moves.
_PREPARATIONS = 4
_ANY_DISRUPTION = Disruption()

_Templates = tuple[tuple[NodePoolTemplate, ...], tuple[SkippedNodePool, ...]]
#: Claims of a plan.
NewNodes = tuple[SchedulingNodeClaim, ...]
#: By uid: a pod with its signature and labels.
SignedPods = dict[str, tuple[Pod, PodSignature, NamespacedLabels]]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class RememberingPacker(Packer):
    """A packer that works each packing out once: it is deterministic, and the next decision needs the same packing."""

    def __init__(
        self, demands: Sequence[Demand], bounds: PackingBounds, *, relax_min_values: bool, objective: Objective
    ) -> None:
        super().__init__(demands, bounds, relax_min_values=relax_min_values, objective=objective)
        self._classic: Packing | None = None
        #: The searched packing that the classic one was last compared with, and what came of it.
        self._below: tuple[Packing, Packing | None] | None = None
        self._searched: dict[float | None, Packing] = {}
        self._best_values: dict[ReservationPolicy, Packing] = {}
        self._exact: dict[float, ProvenPacking] = {}

    def classic(self) -> Packing:
        """Every claim grows while any type holds it."""
        if self._classic is None:
            self._classic = super().classic()
        return self._classic

    def classic_below(self, searched: Packing) -> Packing | None:
        """The classic packing; None once it costs more than a search found. One that was finished is not made again."""
        if self._below is None or self._below[0] is not searched:
            self._below = (searched, super().classic_below(searched))
            self._classic = self._classic or self._below[1]
        return self._below[1]

    def best_value(self, policy: ReservationPolicy = ReservationPolicy.CHEAPEST) -> Packing:
        """Every claim is the one whose pods are worth most per dollar."""
        if policy not in self._best_values:
            self._best_values[policy] = super().best_value(policy)
        return self._best_values[policy]

    def searched(self, start: SearchStart) -> Packing:
        """The nodes the search for cheap ones proposes. What depends on the values of another search is not kept."""
        if start.pod_values:
            return super().searched(start)
        if start.gap not in self._searched:
            self._searched[start.gap] = super().searched(start)
        return self._searched[start.gap]

    def exact(self, known_cost: float) -> ProvenPacking:
        """The cheapest packing of few pods or a cheap one, and what none costs less than."""
        if known_cost not in self._exact:
            self._exact[known_cost] = super().exact(known_cost)
        return self._exact[known_cost]


class RecentValues(Generic[_Key, _Value]):
    """Values that one of the latest `_PREPARATIONS` asked for."""

    def __init__(self) -> None:
        self._latest: dict[_Key, _Value] = {}
        self._earlier: tuple[dict[_Key, _Value], ...] = ()

    def __len__(self) -> int:
        return len(self._latest) + sum(map(len, self._earlier))

    def begin_preparation(self) -> None:
        """Forget what none of the latest preparations asked for."""
        self._earlier = (self._latest, *self._earlier[: _PREPARATIONS - 2])
        self._latest = {}

    def get(self, key: _Key) -> _Value | None:
        """The value, if it is known."""
        value = self._latest.get(key)
        if value is not None:
            return value
        for values in self._earlier:
            value = values.get(key)
            if value is not None:
                self._latest[key] = value
                return value
        return None

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value."""
        self._latest[key] = value

    def clear(self) -> None:
        """Forget everything."""
        self._latest, self._earlier = {}, ()


class DecisionMemory:
    """What the decisions of one controller have in common.

    ``max_packers``: so many packers are kept, each for no more than ``max_pods`` pods, which it keeps in memory.
    """

    def __init__(self, max_packers: int = _MAX_PACKERS, max_pods: int | None = None) -> None:
        self._max_packers = max_packers
        self._max_pods = max_pods
        #: Signatures of bound pods: the same object for the same needs, in every decision.
        self.signatures = PodSignatureCache()
        #: Bound pods with their signatures and labels: those of the latest two preparations (`signed_pods`).
        self._signed_pods: tuple[SignedPods, SignedPods] = ({}, {})
        self._preferences: Preferences | None = None
        self._template_inputs: object = None
        self._indexes: tuple[TypeIndex, ...] = ()
        self._templates: _Templates = ((), ())
        self._options: dict[object, LaunchOptionIndex] = {}
        self._packers: dict[object, RememberingPacker] = {}
        #: New nodes for pods that need room alone, by how many there are of each kind and their launch options.
        self._new_nodes: dict[object, NewNodes] = {}
        #: By identity of the pods, which are kept with their movers, so that it stays theirs.
        self._movers: RecentValues[tuple[int, ...], tuple[Sequence[Pod], Preferences, Movers]] = RecentValues()
        #: Keys of movers by the identity of a sequence of pods: a node that does not change has the same one in every decision.
        self._keys_of_sequences: RecentValues[int, tuple[Sequence[Pod], tuple[int, ...]]] = RecentValues()
        #: The pods of several movers together, in counts and as a number.
        self._joined_movers: RecentValues[tuple[Movers, ...], tuple[tuple[CountedGroup, ...], int]] = RecentValues()
        self._daemons: tuple[DaemonSetPod, ...] = ()
        self._existing_nodes: RecentValues[int, ExistingNode] = RecentValues()
        #: Numbers of nodes and pods by what passes read of them. A number is never given twice.
        self._numbers: RecentValues[object, int] = RecentValues()
        self._last_number = 0
        self.pass_facts: RecentValues[FactsKey, PassFacts] = RecentValues()
        #: What nodes for movers alone cost at least, in USD per hour.
        self.prices_alone: RecentValues[Movers, float] = RecentValues()
        self._price_bounds: tuple[tuple[NodePoolTemplate, ...], PriceBounds] | None = None

    def templates(
        self,
        pools: Iterable[NodePool],
        indexes: Mapping[str, TypeIndex],
        daemons: tuple[DaemonSetPod, ...],
        settings: object,
        make: Callable[[], _Templates],
    ) -> _Templates:
        """What ``make`` gives, once for the same NodePools, types and DaemonSets. ``settings``: what else it depends on."""
        inputs = (tuple(map(_of_new_nodes, pools)), tuple(indexes), daemons, settings)
        same_types = len(self._indexes) == len(indexes) and all(
            last is index for last, index in zip(self._indexes, indexes.values(), strict=True)
        )
        if not same_types or inputs != self._template_inputs:
            self._template_inputs, self._indexes = inputs, tuple(indexes.values())
            self._templates = make()
            self._options.clear()
            self._packers.clear()
            self._new_nodes.clear()
            self._clear_numbers()
            self.pass_facts.clear()
            self.prices_alone.clear()
        return self._templates

    def preferences(self, policy: PreferencePolicy, soft_taints: bool, well_known: frozenset[str]) -> Preferences:
        """Preferences that know the relaxation steps of the decision before, if nothing of this changed."""
        wanted = Preferences(policy, soft_taints, well_known)
        if self._preferences is None or self._preferences != wanted:
            self._preferences = wanted
            self._clear_numbers()
            self.pass_facts.clear()
        return self._preferences

    def signed_pods(self) -> tuple[SignedPods, SignedPods]:
        """Signatures by uid for one preparation, still empty, and those of the preparation before it.

        An entry is valid for the same pod object only. Pods that are not looked up any more are forgotten after two preparations.
        Their movers, numbers and what is known of passes are forgotten after `_PREPARATIONS`.
        """
        self._signed_pods = ({}, self._signed_pods[0])
        self._movers.begin_preparation()
        self._keys_of_sequences.begin_preparation()
        self._joined_movers.begin_preparation()
        self._numbers.begin_preparation()
        self.pass_facts.begin_preparation()
        self.prices_alone.begin_preparation()
        return self._signed_pods

    def existing_nodes(self, daemons: tuple[DaemonSetPod, ...]) -> RecentValues[int, ExistingNode]:
        """Nodes beside these DaemonSets, by the identity of the state nodes, which they hold. Asked for once in a preparation.

        Nodes that are not looked up any more are forgotten after `_PREPARATIONS`.
        """
        self._existing_nodes.begin_preparation()
        if daemons != self._daemons:
            self._daemons = daemons
            self._existing_nodes.clear()
        return self._existing_nodes

    def node_number(self, node: ExistingNode) -> int:
        """The same number for nodes that are the same to passes over pods that need room alone."""
        number = self._numbers.get(node)
        if number is None:
            number = self._number(node_content(node))
            self._numbers.put(node, number)
        return number

    def room_number(self, node_numbers: tuple[int, ...]) -> int:
        """The same number for the same nodes in the same order."""
        return self._number(node_numbers)

    def pods_number(self, movers: Movers) -> int:
        """The same number for pods that need room alone if they are as many of the same kinds."""
        number = self._numbers.get(movers)
        if number is None:
            number = self._number(pod_content(movers.counts))
            self._numbers.put(movers, number)
        return number

    def joined_number(self, parts: Sequence[Movers]) -> int:
        """The same number for the pods of several nodes together."""
        return self.pods_number(parts[0]) if len(parts) == 1 else self._joined(parts)[1]

    def joined_counts(self, parts: Sequence[Movers]) -> tuple[CountedGroup, ...]:
        """The pods of several nodes together, in counts. The same sets of nodes are asked about again and again."""
        return parts[0].counts if len(parts) == 1 else self._joined(parts)[0]

    def _joined(self, parts: Sequence[Movers]) -> tuple[tuple[CountedGroup, ...], int]:
        key = tuple(parts)
        joined = self._joined_movers.get(key)
        if joined is None:
            counts = merged_counts(parts)
            joined = (counts, self._number(pod_content(counts)))
            self._joined_movers.put(key, joined)
        return joined

    def _clear_numbers(self) -> None:
        self._numbers.clear()
        self._joined_movers.clear()

    def _number(self, content: object) -> int:
        number = self._numbers.get(content)
        if number is None:
            self._last_number = number = self._last_number + 1
            self._numbers.put(content, number)
        return number

    def launch_options(self, key: object, make: Callable[[], LaunchOptionIndex]) -> LaunchOptionIndex:
        """What ``make`` gives, once for the same templates and the same key."""
        return _remembered(self._options, key, make, _MAX_OPTION_INDEXES)

    def known_movers(self, pods: Sequence[Pod], preferences: Preferences) -> Movers | None:
        """What `movers` made for the same pods and preferences; None if that is not known."""
        if len(pods) > _MAX_PODS_OF_MOVERS:
            return None
        known = self._keys_of_sequences.get(id(pods))
        if known is None or known[0] is not pods:
            known = (pods, tuple(map(id, pods)))
            self._keys_of_sequences.put(id(pods), known)
        movers = self._movers.get(known[1])
        return movers[2] if movers is not None and movers[1] is preferences else None

    def movers(self, pods: Sequence[Pod], preferences: Preferences, make: Callable[[], Movers]) -> Movers:
        """What ``make`` gives, once for the same pods and preferences where it depends on nothing else."""
        if len(pods) > _MAX_PODS_OF_MOVERS:
            return make()
        key = tuple(map(id, pods))
        known = self._movers.get(key)
        if known is None or known[1] is not preferences:
            known = (pods, preferences, make())
            if known[2].depend_on_pods_alone:
                self._movers.put(key, known)
        return known[2]

    def price_bounds(self, templates: tuple[NodePoolTemplate, ...]) -> PriceBounds:
        """Bounds for what these templates sell; the same object for the same templates."""
        if self._price_bounds is None or self._price_bounds[0] is not templates:
            self._price_bounds = (templates, PriceBounds(templates))
        return self._price_bounds[1]

    def known_new_nodes(self, needs: object) -> NewNodes | None:
        """The new nodes that were planned for the same needs."""
        known = self._new_nodes.pop(needs, None)
        if known is not None:
            self._new_nodes[needs] = known
        return known

    def remember_new_nodes(self, needs: object, nodes: NewNodes) -> None:
        """Keep what was planned. The plan must depend on nothing but what these templates sell and on the needs."""
        _remembered(self._new_nodes, needs, lambda: nodes, self._max_packers)

    def packer(
        self, demands: Sequence[Demand], bounds: PackingBounds, *, relax_min_values: bool, objective: Objective
    ) -> Packer:
        """A packer of such demands; for the same needs it is the same. Where topology of other pods counts, it is new."""

        def make() -> RememberingPacker:
            return RememberingPacker(demands, bounds, relax_min_values=relax_min_values, objective=objective)

        if self._max_pods is not None and sum(len(demand.pods) for demand in demands) > self._max_pods:
            return make()
        if bounds.satisfied_affinity or any(_has_topology(demand.host_limits) for demand in demands):
            return make()
        needs = tuple((demand.signature, len(demand.pods), demand.options) for demand in demands)
        key = (needs, _exposure_key(demands), _bounds_key(bounds), relax_min_values)
        return _remembered(self._packers, key, make, self._max_packers)


def without_usage(pool: NodePool) -> NodePool:
    """The NodePool without what changes with its nodes and decides nothing about new ones."""
    metadata = replace(pool.metadata, resource_version="")
    return replace(pool, metadata=metadata, status=NodePoolStatus(conditions=pool.status.conditions))


def _of_new_nodes(pool: NodePool) -> NodePool:
    """The NodePool without what has no effect on new nodes: its usage, and when its nodes may be disrupted."""
    own = without_usage(pool)
    return replace(own, spec=replace(own.spec, disruption=_ANY_DISRUPTION))


def _has_topology(host_limits: HostLimits | None) -> bool:
    """Whether a topology group, which belongs to one decision, is among the rules of a node."""
    if host_limits is None:
        return False
    own = (host_limits.spread, host_limits.anti_affinity, host_limits.affinity, host_limits.owned_anti_affinity)
    others = (host_limits.repelled_by, host_limits.others_spread, host_limits.counted_by)
    return any(own) or any(others)


def _exposure_key(demands: Sequence[Demand]) -> object:
    """How many pods of their workloads may share a new node. A workload is one object for all of its demands."""
    numbers: dict[ExposedWorkload, int] = {}
    key: list[tuple[int, int, frozenset[tuple[str, int]]] | None] = []
    for demand in demands:
        exposed = demand.host_limits.exposed_workload if demand.host_limits is not None else None
        if exposed is None:
            key.append(None)
        else:
            number = numbers.setdefault(exposed, len(numbers))
            key.append((number, exposed.max_per_node, frozenset(exposed.max_per_node_by_pool.items())))
    return tuple(key)


def _bounds_key(bounds: PackingBounds) -> object:
    limits = frozenset((pool, frozenset(left.items())) for pool, left in bounds.limits.items())
    return limits, frozenset(bounds.reservation_units.items())


def _remembered(values: dict[object, _Value], key: object, make: Callable[[], _Value], most: int) -> _Value:
    """The value of the key; the one that was used longest ago makes room for a new one."""
    value = values.pop(key, None)
    if value is None:
        value = make()
        if len(values) >= most:
            del values[next(iter(values))]
    values[key] = value
    return value
