"""Is a plan lawful? A brute-force judge that reads wire objects and shares no code with the decision it judges.

A node that is planned or not launched yet is judged as every node it may still become: each type left, in each offering
that is accepted, with each value of each open label. Filters that look at one node only are asked of each of those. Filters
that look at neighbours are asked in scenes: a scene is one choice for every node that is still open in a label neighbours are
told by. In each scene there must be *some* order in which every planned pod passes the filters at its turn, as the scheduler
would bind them.

Where there are more scenes than ``SCENES``, each node takes each of its forms at least once; the rest is drawn, always alike.

``problems`` returns sentences; none means lawful. ``room`` finds, for a pod left out, a place it could have had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import inf, prod
from random import Random

from karpenter.api.apps import DaemonSet, DaemonSetSpec
from karpenter.api.core import Namespace, Node, Pod, PodSpec, PodTemplateSpec
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.api.scheduling_constraints import NodeSelectorRequirement, NodeSelectorTerm, Taint
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, TopologySelectorTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.scheduling.solution import NewNodeClaim, Solution
from karpenter.state.snapshot import ClusterSnapshot
from support.kube_filters import (
    HOST,
    Amounts,
    Bound,
    Disk,
    Expression,
    Machine,
    Namespaces,
    Scene,
    accepts,
    amounts,
    crowding,
    expressions,
    far,
    minus,
    misfits,
    most,
    near,
    needs,
    plus,
    ports,
    repelled,
    required_terms,
    spreads,
    wants_node,
)

POOL = "karpenter.sh/nodepool"
TYPE = "node.kubernetes.io/instance-type"
SCENES = 48
#: So many half-bound clusters are looked at in search of an order; small plans never come near.
_STEPS = 4000
_PASSING = {
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
}
_READY = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}


@dataclass(frozen=True)
class World:
    """The cluster a plan was made for. ``types`` are those of every pool, or each pool's own by name."""

    pods: tuple[Pod, ...]
    pools: tuple[NodePool, ...]
    nodes: tuple[Node, ...]
    claims: tuple[NodeClaim, ...]
    daemons: tuple[DaemonSet, ...]
    types: Sequence[InstanceType] | Mapping[str, Sequence[InstanceType]]
    well_known: frozenset[str]
    namespaces: Namespaces = field(default_factory=dict)
    #: PersistentVolumeClaims, PersistentVolumes, StorageClasses, CSINodes.
    storage: tuple[Wire, ...] = ()

    def objects(self) -> list[object]:
        spaces = [
            Namespace(metadata=ObjectMeta(name=name, labels=own)) for name, own in sorted(self.namespaces.items())
        ]
        return [*self.pods, *self.pools, *self.nodes, *self.claims, *self.daemons, *self.storage, *spaces]

    @cached_property
    def disks(self) -> Mapping[tuple[str, str], Disk]:
        """What volume claims ask of nodes, by namespace and name."""
        return dict(_disks(self.storage))

    @cached_property
    def attach_limits(self) -> Mapping[str, Mapping[str, int]]:
        """How many volumes of a driver a node takes, by node."""
        return {
            wire.metadata.name: {
                driver.name: driver.allocatable.count
                for driver in wire.spec.drivers
                if driver.allocatable is not None and driver.allocatable.count is not None
            }
            for wire in self.storage
            if isinstance(wire, CSINode)
        }

    def types_of(self, pool: str) -> Sequence[InstanceType]:
        return self.types.get(pool, ()) if isinstance(self.types, Mapping) else self.types

    def daemon_specs(self) -> list[PodSpec]:
        return [daemon_set.spec.template.spec for daemon_set in self.daemons]


def seen(snapshot: ClusterSnapshot, types: Mapping[str, Sequence[InstanceType]], **more: object) -> World:
    """The world a snapshot shows; ``more`` are fields of ``World`` it says nothing about."""
    well_known = {key for own in types.values() for instance_type in own for key in instance_type.requirements}
    daemons = (
        DaemonSet(
            metadata=ObjectMeta(name=daemon_set_pod.name),
            spec=DaemonSetSpec(template=PodTemplateSpec(spec=daemon_set_pod.spec)),
        )
        for daemon_set_pod in snapshot.daemonset_pods
    )
    return World(
        pods=(
            *(pod for group in snapshot.pod_groups for pod in group.pods),
            *(pod for view in snapshot.nodes for pod in view.pods),
        ),
        pools=snapshot.pools,
        nodes=tuple(view.node for view in snapshot.nodes if view.node is not None),
        claims=tuple(view.claim for view in snapshot.nodes if view.claim is not None),
        daemons=tuple(daemons),
        types=types,
        well_known=frozenset(well_known | {POOL}),
        **more,  # type: ignore[arg-type]
    )


def _disks(storage: Iterable[Wire]) -> Iterator[tuple[tuple[str, str], Disk]]:
    """Bound claims are where their volume is, others where their class allows."""
    wires = {(type(wire), wire.metadata.name): wire for wire in storage}  # type: ignore[attr-defined]
    for wire in storage:
        if isinstance(wire, PersistentVolumeClaim):
            key = (wire.metadata.namespace, wire.metadata.name)
            volume = wires.get((PersistentVolume, wire.spec.volume_name))
            made = wires.get((StorageClass, wire.spec.storage_class_name))
            if volume is not None:
                reach = volume.spec.node_affinity  # type: ignore[attr-defined]
                terms = reach.required.node_selector_terms if reach is not None and reach.required is not None else ()
                source = volume.spec.csi  # type: ignore[attr-defined]
                yield key, Disk(terms, source.driver if source is not None else "")
            elif made is not None:
                yield key, Disk(tuple(map(_allowed, made.allowed_topologies)), made.provisioner)  # type: ignore[attr-defined]


def _allowed(topology: TopologySelectorTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        match_expressions=tuple(
            NodeSelectorRequirement(key=entry.key, operator="In", values=entry.values)
            for entry in topology.match_label_expressions
        )
    )


@dataclass(frozen=True)
class Site:
    """A node that is there, on its way or planned: all it may be, what runs there and what is planned there."""

    key: str
    forms: tuple[Machine, ...]
    bound: tuple[Pod, ...] = ()
    planned: tuple[Pod, ...] = ()
    leaving: bool = False


# -- what nodes may become -------------------------------------------------------------------------------------------


def forms_of_claim(world: World, claim: NodeClaim, kept: Iterable[str] | None = None) -> list[Machine]:
    """Every node a claim may become.

    ``kept`` are the types a plan names, bought from what is sold now. A claim that is there may become a type sold out since.
    """
    wanted = expressions(claim.spec.requirements)
    own = {**claim.metadata.labels, HOST: claim.metadata.name}
    taints = tuple(nodepool_taint.as_taint() for nodepool_taint in claim.spec.taints)
    names = None if kept is None else set(kept)
    return [
        form
        for instance_type in world.types_of(claim.metadata.labels.get(POOL, ""))
        if names is None or instance_type.name in names
        for form in forms(world, instance_type, wanted, own, taints, sold=kept is not None)
    ]


def forms(
    world: World,
    instance_type: InstanceType,
    wanted: Sequence[Expression],
    own: Mapping[str, str],
    taints: tuple[Taint, ...],
    *,
    sold: bool,
) -> Iterator[Machine]:
    """Nodes of a type that meet all that is wanted; none where the type or (``sold``) its offerings rule it out."""
    free = {name: Fraction(amount, 1000) for name, amount in instance_type.capacity.items()}
    capacity = dict(free)
    free = minus(free, {name: Fraction(amount, 1000) for name, amount in instance_type.overhead.items()})
    huge = sum((amount for name, amount in capacity.items() if name.startswith("hugepages-")), Fraction(0))
    free["memory"] = max(Fraction(0), free.get("memory", Fraction(0)) - huge)
    for labels in _labels(instance_type, wanted, sold=sold):
        machine = Machine(
            name=own.get(HOST, "new"),
            labels={**labels, **own, **_READY},
            taints=taints,
            free=free,
            type=instance_type.name,
            capacity=capacity,
        )
        yield _beside_daemons(world, machine, {})


def _labels(instance_type: InstanceType, wanted: Sequence[Expression], *, sold: bool) -> Iterator[dict[str, str]]:
    possible: dict[str, list[str | None]] = {}
    for key, form in instance_type.requirements.items():
        own = [(operator, values) for other, operator, values in wanted if other == key]
        possible[key] = [v for v in sorted(form.values) or [None] if all(accepts(op, vs, v) for op, vs in own)]
    ways: list[dict[str, str]] = [{}]
    if sold:
        each = (
            {key: next(iter(form.values)) for key, form in offering.requirements.items()}
            for offering in instance_type.offerings
            if offering.available
        )
        ways = [way for way in each if all(value in possible.get(key, [value]) for key, value in way.items())]
    for way in ways:
        open_keys = [key for key in possible if key not in way]
        for values in product(*(possible[key] for key in open_keys)):
            result = {**dict(zip(open_keys, values, strict=True)), **way}
            yield {key: value for key, value in result.items() if value is not None}


def _beside_daemons(world: World, machine: Machine, running: Mapping[str, Fraction]) -> Machine:
    """What is left beside the DaemonSets that may come, less what of them runs already. Their ports count as taken."""
    coming = [spec for spec in world.daemon_specs() if runs_daemon(spec, machine)]
    missing = {
        name: max(Fraction(0), a - running.get(name, Fraction(0))) for name, a in plus(*map(needs, coming)).items()
    }
    taken = tuple(port for spec in coming for port in ports(spec))
    return replace(machine, free=minus(machine.free, missing), ports=(*machine.ports, *taken))


def runs_daemon(spec: PodSpec, machine: Machine) -> bool:
    return not repelled(spec, machine.taints) and wants_node(spec, machine)


def machine_of_node(world: World, node: Node, claim: NodeClaim | None, bound: Sequence[Pod]) -> Machine:
    """A node as it is; of a starting one only the taints that will stay count, and missing amounts are the claim's."""
    labels, taints, free = node.metadata.labels, node.spec.taints, amounts(node.status.allocatable)
    if claim is not None and labels.get("karpenter.sh/initialized") != "true":
        startup = {(nodepool_taint.key, nodepool_taint.effect) for nodepool_taint in claim.spec.startup_taints}
        if labels.get("karpenter.sh/registered") != "true":
            labels, taints = {**claim.metadata.labels, HOST: node.metadata.name}, _taints(claim)
        taints = tuple(t for t in taints if t.key not in _PASSING and (t.key, t.effect) not in startup)
        free = {**free, **{n: a for n, a in amounts(claim.status.allocatable).items() if not free.get(n)}}
    daemons = [pod for pod in bound if any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)]
    machine = Machine(
        name=node.metadata.name,
        labels=labels,
        taints=taints,
        free=free,
        ports=tuple(port for pod in bound for port in ports(pod.spec)),
        cordoned=node.spec.unschedulable,
        attached=frozenset(
            (pod.metadata.namespace, volume.persistent_volume_claim.claim_name)
            for pod in bound
            for volume in pod.spec.volumes
            if volume.persistent_volume_claim is not None
        ),
        attach_limits=world.attach_limits.get(node.metadata.name, {}),
    )
    machine = _beside_daemons(world, machine, plus(*(needs(pod.spec) for pod in daemons)))
    return replace(machine, free=_without(machine.free, plus(*(needs(pod.spec) for pod in bound))))


def _without(free: Amounts, used: Amounts) -> Amounts:
    return {name: free.get(name, Fraction(0)) - used.get(name, Fraction(0)) for name in {*free, *used}}


def _taints(claim: NodeClaim) -> tuple[Taint, ...]:
    return tuple(nodepool_taint.as_taint() for nodepool_taint in claim.spec.taints)


def sites(world: World, plan: Solution) -> list[Site]:
    """Everything that is there, then everything planned. Pods that have to move count where they go, else nowhere (SCH-064)."""
    placed = {placement.node_key: placement.pods for placement in plan.placed_on_existing}
    moving = {pod.metadata.uid for group in (*plan.placed_on_existing, *plan.new_claims) for pod in group.pods}
    moving |= {unschedulable_pod.pod.metadata.uid for unschedulable_pod in plan.unschedulable}
    claim_of = {claim.status.provider_id: claim for claim in world.claims if claim.status.provider_id}
    result: list[Site] = []
    for node in world.nodes:
        claim = claim_of.pop(node.spec.provider_id, None)
        bound = tuple(
            pod
            for pod in world.pods
            if pod.spec.node_name == node.metadata.name
            and pod.metadata.uid not in moving
            and pod.status.phase not in ("Succeeded", "Failed")
        )
        key = node.metadata.name if claim is None else claim.metadata.name
        leaving = (claim if claim is not None else node).metadata.deletion_timestamp is not None
        machine = machine_of_node(world, node, claim, bound)
        result.append(Site(key, (machine,), bound, placed.get(key, ()), leaving))
    for claim in world.claims:
        if not claim.status.provider_id or claim.status.provider_id in claim_of:
            leaving = claim.metadata.deletion_timestamp is not None
            own = () if leaving else _on_its_way(world, claim)
            result.append(Site(claim.metadata.name, own, (), placed.get(claim.metadata.name, ()), leaving))
    return [
        *result,
        *(
            Site(
                new_nodeclaim.name,
                tuple(forms_of_claim(world, new_nodeclaim.claim, new_nodeclaim.instance_types)),
                (),
                new_nodeclaim.pods,
            )
            for new_nodeclaim in plan.new_claims
        ),
    ]


def _on_its_way(world: World, claim: NodeClaim) -> tuple[Machine, ...]:
    return (_launched(world, claim),) if claim.status.provider_id else tuple(forms_of_claim(world, claim))


def _launched(world: World, claim: NodeClaim) -> Machine:
    labels = {**claim.metadata.labels, HOST: claim.metadata.name}
    machine = Machine(claim.metadata.name, labels, _taints(claim), amounts(claim.status.allocatable))
    return _beside_daemons(world, machine, {})


# -- the laws -----------------------------------------------------------------------------------------------------------


def problems(world: World, plan: Solution) -> list[str]:
    """Everything unlawful about a plan."""
    result = sites(world, plan)
    return [
        *_once(world, plan),
        *_on_sites(world, plan, result),
        *_claims(world, plan),
        *_within_limits(world, plan),
        *_neighbours(world, result),
    ]


def waiting(world: World) -> dict[str, Pod]:
    return {pod.metadata.uid: pod for pod in world.pods if not pod.spec.node_name}


def _once(world: World, plan: Solution) -> Iterator[str]:
    leaving = {site.forms[0].name for site in sites(world, Solution()) if site.leaving and site.forms}
    may_move = {pod.metadata.uid for pod in world.pods if pod.spec.node_name in leaving}
    named = [pod.metadata.uid for group in (*plan.new_claims, *plan.placed_on_existing) for pod in group.pods]
    named += [unschedulable.pod.metadata.uid for unschedulable in plan.unschedulable]
    owed = sorted(waiting(world))
    if sorted(uid for uid in named if uid not in may_move) != owed or len(named) != len(set(named)):
        yield f"pods are not planned exactly once: {sorted(named)} of {owed}"
    for unschedulable_pod in plan.unschedulable:
        if not unschedulable_pod.reasons:
            yield f"{unschedulable_pod.pod.metadata.name} stays waiting without a reason"
    names = [new_nodeclaim.name for new_nodeclaim in plan.new_claims] + [claim.metadata.name for claim in world.claims]
    if len(set(names)) != len(names):
        yield f"a claim name is used twice: {names}"


def _on_sites(world: World, plan: Solution, all_sites: Sequence[Site]) -> Iterator[str]:
    open_keys = {site.key for site in all_sites if not site.leaving}
    for placement in plan.placed_on_existing:
        if placement.node_key not in open_keys:
            yield f"{placement.node_name} is not there or leaves"
    for site in all_sites:
        reported: set[str] = set()
        for form in site.forms if site.planned else ():
            reported.update(
                f"{pod.metadata.name}: {why}" for pod in site.planned for why in misfits(pod, form, world.disks)
            )
            reported.update(f"{form.type}: {why}" for why in crowding(site.planned, form, world.disks))
        yield from (f"{site.key}: {why}" for why in sorted(reported))


def _claims(world: World, plan: Solution) -> Iterator[str]:
    pools = {pool.metadata.name: pool for pool in world.pools}
    for new_nodeclaim in plan.new_claims:
        pool = pools[new_nodeclaim.node_pool]
        template = pool.spec.template
        own = forms_of_claim(world, new_nodeclaim.claim, new_nodeclaim.instance_types)
        if {form.type for form in own} != set(new_nodeclaim.instance_types) or not own:
            yield f"{new_nodeclaim.name} names types that cannot be bought: {new_nodeclaim.instance_types}"
        for key, operator, values in expressions(template.spec.requirements):
            if not all(accepts(operator, values, form.labels.get(key)) for form in own):
                yield f"{new_nodeclaim.name} leaves the requirements of its pool on {key}"
        yield from (f"{new_nodeclaim.name} offers too few values of {key}" for key in lacking_values(pool, own))
        if new_nodeclaim.claim.spec.taints != template.spec.taints:
            yield f"{new_nodeclaim.name} has other taints than its pool"
        if any(
            new_nodeclaim.claim.metadata.labels.get(key) != value for key, value in template.metadata.labels.items()
        ):
            yield f"{new_nodeclaim.name} lacks labels of its pool"
        if new_nodeclaim.claim.metadata.labels.get(POOL) != new_nodeclaim.node_pool:
            yield f"{new_nodeclaim.name} is labelled with another pool than {new_nodeclaim.node_pool}"


def lacking_values(pool: NodePool, own: Sequence[Machine]) -> Iterator[str]:
    """Labels of which nodes of a claim have fewer values than the pool's minValues."""
    for requirement in pool.spec.template.spec.requirements:
        values = {form.labels[requirement.key] for form in own if requirement.key in form.labels}
        if requirement.min_values and len(values) < requirement.min_values:
            yield requirement.key


# -- limits ---------------------------------------------------------------------------------------------------------------


def largest(own: Iterable[Machine]) -> Amounts:
    """What nodes of a claim weigh against limits at worst."""
    return {**most(*(form.capacity for form in own)), "nodes": Fraction(1)}


def remaining(world: World, plan: Solution) -> dict[str, Amounts]:
    """What is left of every pool's limits once each claim has become the largest it may."""
    left = {pool.metadata.name: amounts(pool.spec.limits) for pool in world.pools}
    for pool, spent in (*_spent(world), *_planned(world, plan.new_claims)):
        if pool in left:
            left[pool] = minus(left[pool], spent)
    return left


def _spent(world: World) -> Iterator[tuple[str, Amounts]]:
    claim_of = {claim.status.provider_id: claim for claim in world.claims if claim.status.provider_id}
    for node in world.nodes:
        claim = claim_of.pop(node.spec.provider_id, None)
        if (claim if claim is not None else node).metadata.deletion_timestamp is None:
            yield node.metadata.labels.get(POOL, ""), {**amounts(node.status.capacity), "nodes": Fraction(1)}
    for claim in world.claims:
        if claim.metadata.deletion_timestamp is None:
            pool = claim.metadata.labels.get(POOL, "")
            if not claim.status.provider_id:
                yield pool, largest(forms_of_claim(world, claim))
            elif claim.status.provider_id in claim_of:
                yield pool, {**amounts(claim.status.capacity), "nodes": Fraction(1)}


def _planned(world: World, claims: Iterable[NewNodeClaim]) -> Iterator[tuple[str, Amounts]]:
    for new_nodeclaim in claims:
        yield new_nodeclaim.node_pool, largest(forms_of_claim(world, new_nodeclaim.claim, new_nodeclaim.instance_types))


def _within_limits(world: World, plan: Solution) -> Iterator[str]:
    left = remaining(world, plan)
    for pool in sorted({new_nodeclaim.node_pool for new_nodeclaim in plan.new_claims}):
        if any(amount < 0 for amount in left[pool].values()):
            yield f"pool {pool} may exceed its limits: {left[pool]} left"


# -- neighbours -----------------------------------------------------------------------------------------------------------


def _neighbours(world: World, all_sites: Sequence[Site]) -> Iterator[str]:
    everybody = [pod for site in all_sites for pod in (*site.bound, *site.planned)]
    if not any(keys_of(pod) for pod in everybody):
        return
    reported: set[str] = set()
    for choice in scenes(all_sites, everybody):
        reported.update(_unbindable(world, choice))
    yield from sorted(reported)


def keys_of(pod: Pod) -> set[str]:
    """Labels by which the pod looks at its neighbours."""
    terms = (*near(pod.spec), *far(pod.spec), *spreads(pod.spec))
    return {term.topology_key for term in terms}


def _telling(pods: Iterable[Pod]) -> set[str]:
    """Labels that make a difference between neighbours: topology keys, and what pods that spread want of nodes."""
    telling: set[str] = set()
    for pod in pods:
        telling |= keys_of(pod)
        if spreads(pod.spec):
            telling |= set(pod.spec.node_selector)
            telling |= {entry.key for term in required_terms(pod.spec) or () for entry in term.match_expressions}
    return telling


#: One form for every site.
Choice = list[tuple[Site, Machine]]


def scenes(all_sites: Sequence[Site], pods: Iterable[Pod]) -> Iterator[Choice]:
    """Choices of forms that differ in something neighbours are told by: all, or some of all where they are too many."""
    telling = sorted(_telling(pods))
    there = [site for site in all_sites if site.forms]
    different = [
        list({tuple(form.labels.get(key) for key in telling): form for form in site.forms}.values()) for site in there
    ]
    if prod(map(len, different)) <= SCENES:
        yield from (list(zip(there, choice, strict=True)) for choice in product(*different))
        return
    draw = Random(len(there))
    for turn in range(SCENES):
        in_turn = turn < max(map(len, different))
        yield [
            (site, own[turn % len(own)] if in_turn else draw.choice(own))
            for site, own in zip(there, different, strict=True)
        ]


def _unbindable(world: World, choice: Choice) -> list[str]:
    """Who cannot be bound in any order; empty where an order is found."""
    machines = [form for _, form in choice]
    bound = [(pod, form) for site, form in choice for pod in site.bound]
    planned = [(pod, form) for site, form in choice for pod in site.planned]
    # Who looks at neighbours goes first: whoever does not passes at any time, and may only be in the others' way.
    planned.sort(key=lambda obj: not keys_of(obj[0]))
    search = _Search(world.namespaces, machines, [(_kind(pod), pod, form) for pod, form in planned])
    return search.stuck(bound)


def _kind(pod: Pod) -> tuple[object, ...]:
    """Pods of one kind on one node are the same to everybody."""
    affinity = pod.spec.affinity
    return (pod.metadata.namespace, tuple(sorted(pod.metadata.labels.items())), repr(affinity), repr(spreads(pod.spec)))


@dataclass
class _Search:
    """Depth-first search for an order; what was left to bind when it failed is not tried again."""

    namespaces: Namespaces
    machines: Sequence[Machine]
    planned: Sequence[tuple[object, Pod, Machine]]
    failed: set[tuple[object, ...]] = field(default_factory=set)
    steps: int = 0
    #: What was said where the fewest pods were left.
    said: list[str] = field(default_factory=lambda: ["no order was found"])
    fewest: float = inf

    def stuck(self, bound: list[Bound]) -> list[str]:
        return [] if self._binds(bound, list(range(len(self.planned)))) else self.said

    def _binds(self, bound: list[Bound], left: list[int]) -> bool:
        if not left:
            return True
        state = tuple(sorted((repr(self.planned[position][0]), self.planned[position][2].name) for position in left))
        self.steps += 1
        if state in self.failed or self.steps > _STEPS:
            return False
        self.failed.add(state)
        scene = Scene(self.machines, bound, self.namespaces)
        tried: set[object] = set()
        violations: list[str] = []
        for element in left:
            kind, pod, machine = self.planned[element]
            if (kind, machine.name) in tried:
                continue
            tried.add((kind, machine.name))
            why = next(scene.objections(pod, machine), None)
            if why is not None:
                violations.append(f"{pod.metadata.name} on {machine.name} {_place(machine, pod)}: {why}")
            elif self._binds([*bound, (pod, machine)], [other for other in left if other != element]):
                return True
        if violations and len(left) < self.fewest:
            self.said, self.fewest = violations, len(left)
        return False


def _place(machine: Machine, pod: Pod) -> str:
    return "/".join(machine.labels.get(key, "-") for key in sorted(keys_of(pod)))


# -- a place for a pod that was left out --------------------------------------------------------------------------------


def room(world: World, plan: Solution, pod: Pod) -> str | None:
    """A place the pod could have had beside everything the plan places, in every scene; None where there is none.

    Looked at are nodes that exist, and a fresh one of every pool, type and offering within what limits leave. Domains
    pools could offer, and those of claims on their way, count as there and empty when a pod spreads, sold out or not (SCH-490):
    that is stricter than the scheduler.
    """
    result = sites(world, plan)
    everybody = [pod, *(other for site in result for other in (*site.bound, *site.planned))]
    asking = [*everybody, *(unschedulable_pod.pod for unschedulable_pod in plan.unschedulable)]
    choices = list(scenes(result, everybody))
    universe = _universe(world, everybody)
    for site in result:
        theirs = (
            site.leaving
            or site.key in {new_nodeclaim.name for new_nodeclaim in plan.new_claims}
            or _is_open(site, asking)
        )
        if not theirs and _holds(world, site, pod):
            places = [(choice, form) for choice in choices for other, form in choice if other is site]
            if all(not _objections(world, choice, universe, pod, form) for choice, form in places):
                return f"machine {site.key}"
    for pool, own in _fresh(world, plan, pod):
        fit = [form for form in own if all(not _objections(world, choice, universe, pod, form) for choice in choices)]
        for form in fit:
            alike = [other for other in fit if _told(other, asking) == _told(form, asking)]
            if not any(lacking_values(pool, alike)):
                return f"{form.type} of pool {pool.metadata.name} as {dict(form.labels)}"
    return None


def _is_open(site: Site, pods: Sequence[Pod]) -> bool:
    """Whether the node may still get different values of labels somebody looks at: then nobody has to guess which."""
    return len({_told(form, pods) for form in site.forms}) > 1


def _told(form: Machine, pods: Iterable[Pod]) -> tuple[str | None, ...]:
    """The domains of a node; whoever looks at them is sent to one of each key, where minValues have to hold, too."""
    return tuple(form.labels.get(key) for key in sorted(_telling(pods) - {HOST}))


def _holds(world: World, site: Site, pod: Pod) -> bool:
    return bool(site.forms) and all(
        not any(misfits(pod, form, world.disks)) and not any(crowding((*site.planned, pod), form, world.disks))
        for form in site.forms
    )


def _objections(
    world: World, choice: Choice, universe: Mapping[str, frozenset[str]], pod: Pod, form: Machine
) -> list[str]:
    machines = [other for _, other in choice]
    bound = [(other, where) for site, where in choice for other in (*site.bound, *site.planned)]
    scene = Scene([*machines, form], bound, world.namespaces, universe)
    return list(scene.objections(pod, form))


def _universe(world: World, pods: Iterable[Pod]) -> dict[str, frozenset[str]]:
    """Values pools could give to the labels pods look at, and a host that is always new."""
    universe: dict[str, frozenset[str]] = {HOST: frozenset(("a-new-host",))}
    for key in {key for pod in pods for key in keys_of(pod)} - {HOST}:
        universe[key] = frozenset(
            form.labels[key]
            for pool in world.pools
            for own in _customs(world, pool, ())
            for instance_type in world.types_of(pool.metadata.name)
            for form in forms(world, instance_type, _asked(pool), own, (), sold=False)
            if key in form.labels
        ).union(_claimed(world, key))
    return universe


def _claimed(world: World, key: str) -> Iterator[str]:
    """What claims on their way settle of a label; the cloud may know a type for them that pools offer no more."""
    for claim in world.claims:
        if not claim.status.provider_id and claim.metadata.deletion_timestamp is None:
            own = [
                requirement.values
                for requirement in claim.spec.requirements
                if requirement.key == key and requirement.operator == "In"
            ]
            yield from (values[0] for values in own if len(values) == 1)
            if key in claim.metadata.labels:
                yield claim.metadata.labels[key]


def _asked(pool: NodePool) -> tuple[Expression, ...]:
    return expressions(pool.spec.template.spec.requirements)


def _fresh(world: World, plan: Solution, pod: Pod) -> Iterator[tuple[NodePool, list[Machine]]]:
    """Fresh nodes that hold the pod alone, by pool."""
    left = remaining(world, plan)
    for pool in world.pools:
        if pool.metadata.deletion_timestamp is None and pool.spec.replicas is None:
            own = fresh(world, pool, left[pool.metadata.name], pod, pod_expressions(pod.spec))
            yield pool, [form for form in own if not any(misfits(pod, form, world.disks))]


def pod_expressions(spec: PodSpec) -> tuple[Expression, ...]:
    """What a pod says of labels at all: a fresh node of a pool that leaves a label open takes one of those values."""
    terms = required_terms(spec) or ()
    return (
        *((key, "In", (value,)) for key, value in spec.node_selector.items()),
        *(entry for term in terms for entry in expressions(term.match_expressions)),
    )


def fresh(
    world: World,
    pool: NodePool,
    left: Amounts,
    pod: Pod,
    mentioned: Sequence[Expression],
    wanted: Sequence[Expression] = (),
) -> Iterator[Machine]:
    """Nodes of a pool that can be bought for the pod alone within what limits leave, each meeting all that is wanted."""
    if any(amount < 0 for amount in left.values()):
        return
    taints = tuple(nodepool_taint.as_taint() for nodepool_taint in pool.spec.template.spec.taints)
    for own in _customs(world, pool, mentioned):
        if not all(
            accepts(op, values, own.get(key)) for key, op, values in wanted if key not in world.well_known | {POOL}
        ):
            continue
        if not all(accepts(op, values, own[POOL]) for key, op, values in wanted if key == POOL):
            continue
        asked = tuple(entry for entry in (*_asked(pool), *wanted) if entry[0] in world.well_known - {POOL})
        result: list[Machine] = []
        for instance_type in world.types_of(pool.metadata.name):
            each = list(forms(world, instance_type, asked, own, taints, sold=True))
            spent = {name: each[0].capacity.get(name, Fraction(name == "nodes")) for name in left} if each else {}
            if all(spent[name] <= left[name] for name in spent):
                result += [form for form in each if not any(crowding((pod,), form, world.disks))]
        if not any(lacking_values(pool, result)):
            yield from result


def _customs(world: World, pool: NodePool, mentioned: Sequence[Expression]) -> Iterator[dict[str, str]]:
    """Labels a node of the pool may get from the pool itself: those it sets, with a value for each it leaves open."""
    own = {**pool.spec.template.metadata.labels, POOL: pool.metadata.name, HOST: f"new-{pool.metadata.name}"}
    asked = [entry for entry in _asked(pool) if entry[0] not in world.well_known and entry[0] not in own]
    keys = sorted({entry[0] for entry in asked})
    possible: list[list[str | None]] = []
    for key in keys:
        said = [entry for entry in (*asked, *mentioned) if entry[0] == key]
        candidates = [*sorted({value for _, _, values in said for value in values}), "any-other", None]
        pool_says = [(op, values) for name, op, values in asked if name == key]
        possible.append([v for v in candidates if all(accepts(op, values, v) for op, values in pool_says)])
    for choice in product(*possible):
        yield {**own, **{key: value for key, value in zip(keys, choice, strict=True) if value is not None}}
