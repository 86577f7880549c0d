"""Is a plan lawful? An independent judge that reads wire objects and shares no code with the decision it judges.

Every requirement is checked value by value against what a machine's label may turn out to be; nothing is intersected. A
planned or unlaunched claim is judged once for each instance type it may still become. ``problems`` returns sentences; none
means lawful.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from karpenter.api.core import DaemonSet, Node, Pod, PodSpec, Taint
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.catalog.types import InstanceType
from karpenter.decide.plan import Plan

POOL = "karpenter.sh/nodepool"
TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
KIND = "karpenter.sh/capacity-type"
HOST = "kubernetes.io/hostname"
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": Fraction(1, 1000)}
_PASSING = {
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
}

Amounts = dict[str, Fraction]
#: Key, operator, values.
Expression = tuple[str, str, tuple[str, ...]]
#: What a label may turn out to be; None stands for absent.
Possible = frozenset[str | None]


def number(text: object) -> Fraction:
    for unit, factor in _UNITS.items():
        if str(text).endswith(unit):
            return Fraction(str(text)[: -len(unit)]) * factor
    return Fraction(str(text))


def amounts(wire: Mapping[str, object]) -> Amounts:
    return {name: number(value) for name, value in wire.items()}


def plus(*parts: Mapping[str, Fraction]) -> Amounts:
    return {name: sum((part.get(name, Fraction(0)) for part in parts), Fraction(0)) for part in parts for name in part}


def covers(free: Mapping[str, Fraction], needed: Mapping[str, Fraction]) -> bool:
    return all(amount <= 0 or amount <= free.get(name, 0) for name, amount in needed.items())


def needs(spec: PodSpec) -> Amounts:
    own = plus(*(amounts(container.resources.requests) for container in spec.containers))
    return {**own, "pods": Fraction(1)}


def accepts(operator: str, values: Sequence[str], value: str | None) -> bool:
    """Whether a label with this value (None: absent) satisfies one expression, as Kubernetes reads it."""
    if operator in ("NotIn", "DoesNotExist"):
        return value is None or (operator == "NotIn" and value not in values)
    if value is None:
        return False
    if operator == "In":
        return value in values
    if operator == "Exists":
        return True
    bound, found = int(values[0]), int(value)
    return {"Gt": found > bound, "Lt": found < bound, "Gte": found >= bound, "Lte": found <= bound}[operator]


def tolerated(taint: Taint, spec: PodSpec, *, soft: bool) -> bool:
    if soft and taint.effect == "PreferNoSchedule":
        return True
    return any(
        t.effect in ("", taint.effect)
        and t.key in ("", taint.key)
        and (t.operator == "Exists" or t.value == taint.value)
        for t in spec.tolerations
    )


@dataclass(frozen=True)
class Want:
    """One step of a pod's ladder: expressions that must hold, and whether soft taints are tolerated."""

    expressions: tuple[Expression, ...]
    soft: bool = False


def _expressions(entries: Iterable[object]) -> tuple[Expression, ...]:
    return tuple((item.key, item.operator, tuple(item.values)) for item in entries)  # type: ignore[attr-defined]


def wants(spec: PodSpec) -> list[Want]:
    """All steps of a pod's ladder in order: every required term at each level of preferences, soft taints last."""
    selector = tuple((key, "In", (value,)) for key, value in spec.node_selector.items())
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required.node_selector_terms if affinity and affinity.required else ()
    terms = [(*selector, *_expressions(term.match_expressions)) for term in required] or [selector]
    preferred = sorted(affinity.preferred if affinity else (), key=lambda item: -item.weight)
    levels = [_expressions(item.preference.match_expressions) for item in preferred]
    found = [Want((*term, *level)) for level in (*levels, ()) for term in terms]
    return found + [Want(term, soft=True) for term in terms]


@dataclass
class Place:
    """One thing a machine may turn out to be: its labels, taints and what pods may use of it."""

    labels: Mapping[str, Possible]
    taints: tuple[Taint, ...]
    free: Amounts
    capacity: Amounts = field(default_factory=dict)
    type: str = ""

    def allows(self, want: Want, spec: PodSpec) -> bool:
        absent: Possible = frozenset((None,))
        return all(tolerated(taint, spec, soft=want.soft) for taint in self.taints) and all(
            accepts(operator, values, value)
            for key, operator, values in want.expressions
            for value in self.labels.get(key, absent)
        )

    def may_run(self, spec: PodSpec) -> bool:
        """Whether a DaemonSet pod may end up here: some possible value of every label suits some of its terms."""
        absent: Possible = frozenset((None,))
        hard = [want for want in wants(spec) if want.soft]
        return any(
            all(tolerated(taint, spec, soft=True) for taint in self.taints)
            and all(
                any(accepts(operator, values, value) for value in self.labels.get(key, absent))
                for key, operator, values in want.expressions
            )
            for want in hard
        )


@dataclass(frozen=True)
class World:
    """The cluster a plan was made for. ``types`` are those of every pool."""

    pods: tuple[Pod, ...]
    pools: tuple[NodePool, ...]
    nodes: tuple[Node, ...]
    claims: tuple[NodeClaim, ...]
    daemons: tuple[DaemonSet, ...]
    types: tuple[InstanceType, ...]
    well_known: frozenset[str]

    def objects(self) -> list[object]:
        return [*self.pods, *self.pools, *self.nodes, *self.claims, *self.daemons]


# -- what machines may become -------------------------------------------------------------------------------------------


def places_of_claim(world: World, claim: NodeClaim, kept: Iterable[str] | None = None) -> list[Place]:
    """Every type a claim may become with every label it may get.

    ``kept`` are the types named by a plan, bought from what is sold now. A claim that is there may become a type that is sold
    out since.
    """
    wanted = _expressions(claim.spec.requirements)
    names = set(kept) if kept is not None else {item.name for item in world.types}
    own = tuple(item.as_taint() for item in claim.spec.taints)
    turn = become if kept is not None else named
    found = [
        place
        for item in world.types
        if item.name in names and (place := turn(world, item, wanted, claim.metadata.labels, own)) is not None
    ]
    for place in found:
        place.free = _after_daemons(world, place, {})
    return found


def become(
    world: World, item: InstanceType, wanted: Iterable[Expression], own: Mapping[str, str], taints: tuple[Taint, ...]
) -> Place | None:
    """What a machine of this type would be under requirements; None when they or its offerings rule it out."""
    wanted = tuple(wanted)
    sold = [
        {key: next(iter(form.values)) for key, form in offering.requirements.items()}
        for offering in item.offerings
        if offering.available
    ]
    sold = [o for o in sold if all(accepts(op, v, o[key]) for key, op, v in wanted if key in o)]
    if not sold:
        return None
    return named(world, item, (*wanted, *((key, "In", tuple(o[key] for o in sold)) for key in sold[0])), own, taints)


def named(
    world: World, item: InstanceType, wanted: Iterable[Expression], own: Mapping[str, str], taints: tuple[Taint, ...]
) -> Place | None:
    """What a machine of this type would be under requirements, however it is bought; None when they rule it out."""
    wanted = tuple(wanted)
    labels: dict[str, Possible] = {}
    for key, form in item.requirements.items():
        labels[key] = frozenset(
            value
            for value in form.values or (None,)
            if all(accepts(op, v, value) for other, op, v in wanted if other == key)
        )
        if not labels[key]:
            return None
    for key, value in own.items():
        labels[key] = frozenset((value,))
    labels["karpenter.sh/registered"] = labels["karpenter.sh/initialized"] = frozenset(("true",))
    capacity = {name: Fraction(amount, 1000) for name, amount in item.capacity.items()}
    free = {name: amount - Fraction(item.overhead.get(name, 0), 1000) for name, amount in capacity.items()}
    return Place(labels, taints, free, capacity, item.name)


def _after_daemons(world: World, place: Place, running: Mapping[str, Fraction]) -> Amounts:
    """What is left beside the DaemonSets that may come, less what of them runs already."""
    coming = plus(*(needs(d.spec.template.spec) for d in world.daemons if place.may_run(d.spec.template.spec)))
    missing = {name: max(Fraction(0), amount - running.get(name, Fraction(0))) for name, amount in coming.items()}
    return {name: amount - missing.get(name, Fraction(0)) for name, amount in place.free.items()}


def place_of_node(world: World, node: Node, claim: NodeClaim | None) -> Place:
    """A node as it is; of a starting one only the taints that will stay count, and missing amounts are the claim's."""
    initialized = claim is None or node.metadata.labels.get("karpenter.sh/initialized") == "true"
    taints = node.spec.taints
    free = amounts(node.status.allocatable)
    if not initialized and claim is not None:
        startup = {(item.key, item.effect) for item in claim.spec.startup_taints}
        taints = tuple(t for t in taints if t.key not in _PASSING and (t.key, t.effect) not in startup)
        free = {**free, **{n: a for n, a in amounts(claim.status.allocatable).items() if not free.get(n)}}
    labels = {key: frozenset((value,)) for key, value in node.metadata.labels.items()}
    bound = [pod for pod in world.pods if pod.spec.node_name == node.metadata.name]
    running = plus(*(needs(p.spec) for p in bound if any(o.kind == "DaemonSet" for o in p.metadata.owner_references)))
    used = plus(*(needs(pod.spec) for pod in bound))
    place = Place(labels, taints, free)
    place.free = _after_daemons(world, place, running)
    place.free = {name: amount - used.get(name, Fraction(0)) for name, amount in place.free.items()}
    return place


def machines(world: World) -> dict[str, list[Place]]:
    """Places of every machine that stays, by the name plans use."""
    claim_of = {claim.status.provider_id: claim for claim in world.claims if claim.status.provider_id}
    found: dict[str, list[Place]] = {}
    seen = set()
    for node in world.nodes:
        claim = claim_of.get(node.spec.provider_id)
        seen.add(node.spec.provider_id)
        leaving = (claim if claim is not None else node).metadata.deletion_timestamp is not None
        if not leaving:
            found[node.metadata.name] = [place_of_node(world, node, claim)]
    for claim in world.claims:
        if claim.metadata.deletion_timestamp is None and claim.status.provider_id not in seen:
            found[claim.metadata.name] = places_of_claim(world, claim)
    return found


# -- the laws -----------------------------------------------------------------------------------------------------------


def problems(world: World, plan: Plan) -> list[str]:
    """Everything unlawful about a plan."""
    return [
        *_once(world, plan),
        *_on_machines(world, plan),
        *_on_claims(world, plan),
        *_within_limits(world, plan),
        *_in_order(world, plan),
    ]


def _waiting(world: World) -> dict[str, Pod]:
    return {pod.metadata.uid: pod for pod in world.pods if not pod.spec.node_name}


def _once(world: World, plan: Plan) -> Iterator[str]:
    named = [pod.metadata.uid for group in (*plan.claims, *plan.existing) for pod in group.pods]
    named += [item.pod.metadata.uid for item in plan.unplaced]
    if sorted(named) != sorted(_waiting(world)):
        yield f"pods are not planned exactly once: {sorted(named)} of {sorted(_waiting(world))}"
    for item in plan.unplaced:
        if not item.reasons:
            yield f"{item.pod.metadata.name} stays waiting without a reason"
    names = [item.name for item in plan.claims] + [claim.metadata.name for claim in world.claims]
    if len(set(names)) != len(names):
        yield f"a claim name is used twice: {names}"


def _fill(places: Iterable[Place], pods: Sequence[Pod], where: str) -> Iterator[str]:
    """Pods on a machine that may be any of the places."""
    for place in places:
        for pod in pods:
            if not any(place.allows(want, pod.spec) for want in wants(pod.spec)):
                yield f"{pod.metadata.name} may not run on {where} {place.type}"
        needed = plus(*(needs(pod.spec) for pod in pods))
        if not covers(place.free, needed):
            yield f"{where} {place.type} has {place.free}, its pods need {needed}"


def _on_machines(world: World, plan: Plan) -> Iterator[str]:
    places = machines(world)
    for group in plan.existing:
        if group.node not in places:
            yield f"{group.node} is not there or leaves"
        yield from _fill(places.get(group.node, ()), group.pods, group.node)


def _on_claims(world: World, plan: Plan) -> Iterator[str]:
    pools = {pool.metadata.name: pool for pool in world.pools}
    for planned in plan.claims:
        places = places_of_claim(world, planned.claim, planned.instance_types)
        if sorted(place.type for place in places) != sorted(planned.instance_types) or not places:
            yield f"{planned.name} names types that cannot be bought: {planned.instance_types}"
        yield from _fill(places, planned.pods, planned.name)
        pool = pools[planned.node_pool]
        template = pool.spec.template
        for place in places:
            if any(
                not accepts(item.operator, item.values, value)
                for item in template.spec.requirements
                for value in place.labels.get(item.key, (None,))
            ):
                yield f"{planned.name} leaves the requirements of its pool"
        for item in template.spec.requirements:
            if item.min_values and len(_values(item.key, places)) < item.min_values:
                yield f"{planned.name} offers too few values of {item.key}"
        if planned.claim.spec.taints != template.spec.taints:
            yield f"{planned.name} has other taints than its pool"


def _values(key: str, places: Iterable[Place]) -> set[str]:
    """What a label may turn out to be on any of the places."""
    return {value for place in places for value in place.labels.get(key, ()) if value is not None}


def _most(places: Iterable[Place]) -> Amounts:
    result: Amounts = {"nodes": Fraction(1)}
    for place in places:
        for name, amount in place.capacity.items():
            result[name] = max(amount, result.get(name, amount))
    return result


def remaining(world: World, plan: Plan) -> dict[str, Amounts]:
    """What is left of every pool's limits once each claim has become the largest it may."""
    left = {pool.metadata.name: amounts(pool.spec.limits) for pool in world.pools}
    claim_of = {claim.status.provider_id: claim for claim in world.claims if claim.status.provider_id}
    used: list[tuple[str, Amounts]] = []
    for node in world.nodes:
        claim = claim_of.pop(node.spec.provider_id, None)
        if (claim if claim is not None else node).metadata.deletion_timestamp is None:
            own = {**amounts(node.status.capacity), "nodes": Fraction(1)}
            used.append((node.metadata.labels.get(POOL, ""), own))
    used += [
        (claim.metadata.labels.get(POOL, ""), _most(places_of_claim(world, claim)))
        for claim in world.claims
        if not claim.status.provider_id and claim.metadata.deletion_timestamp is None
    ]
    used += [(item.node_pool, _most(places_of_claim(world, item.claim, item.instance_types))) for item in plan.claims]
    for pool, spent in used:
        if pool in left:
            left[pool] = {name: amount - spent.get(name, Fraction(0)) for name, amount in left[pool].items()}
    return left


def _within_limits(world: World, plan: Plan) -> Iterator[str]:
    left = remaining(world, plan)
    for pool in {planned.node_pool for planned in plan.claims}:
        if any(amount < 0 for amount in left[pool].values()):
            yield f"pool {pool} may exceed its limits: {left[pool]} left"


def could_take(world: World, pool: NodePool, left: Amounts, pod: Pod, want: Want) -> bool:
    """Whether a fresh claim of the pool alone could take the pod within what its limits leave."""
    spec = pool.spec.template.spec
    own = {**pool.spec.template.metadata.labels, POOL: pool.metadata.name}
    taints = tuple(item.as_taint() for item in spec.taints)
    custom = [e for e in want.expressions if e[0] not in world.well_known]
    if not all(_custom(pool, own, [e for e in custom if e[0] == key]) for key in {e[0] for e in custom}):
        return False
    wanted = (*_expressions(spec.requirements), *(e for e in want.expressions if e not in custom))
    wanted = tuple(e for e in wanted if e[0] in world.well_known)
    found = []
    for item in world.types:
        place = become(world, item, (e for e in wanted if e[0] != POOL), own, taints)
        if place is None or not all(accepts(op, v, own[POOL]) for key, op, v in wanted if key == POOL):
            continue
        place.free = _after_daemons(world, place, {})
        fits = covers(place.free, needs(pod.spec)) and all(tolerated(t, pod.spec, soft=want.soft) for t in taints)
        if fits and covers(left, {**{n: place.capacity.get(n, Fraction(0)) for n in left}, **_one(left)}):
            found.append(place)
    enough = all(not item.min_values or len(_values(item.key, found)) >= item.min_values for item in spec.requirements)
    return bool(found) and enough and all(amount >= 0 for amount in left.values())


def _one(left: Amounts) -> Amounts:
    return {"nodes": Fraction(1)} if "nodes" in left else {}


def _custom(pool: NodePool, own: Mapping[str, str], asked: Sequence[Expression]) -> bool:
    """Whether a label of the user's can satisfy all that is asked of it: one the pool sets, or one it leaves open."""
    key = asked[0][0]
    forms = [*asked, *(e for e in _expressions(pool.spec.template.spec.requirements) if e[0] == key)]
    candidates: set[str | None] = {value for _, _, values in forms for value in values} | {"any-other"}
    if key in own:
        candidates = {own[key]}
    elif len(forms) == len(asked):
        candidates = {None}
    return any(all(accepts(operator, values, value) for _, operator, values in forms) for value in candidates)


def _in_order(world: World, plan: Plan) -> Iterator[str]:
    """Weights, preferences, existing machines first, and nobody left out who could be served."""
    left = remaining(world, plan)
    rooms = {name: places[0] for name, places in machines(world).items() if len(places) == 1 and not places[0].type}
    for group in plan.existing:
        if group.node in rooms:
            room = rooms[group.node]
            used = plus(*(needs(pod.spec) for pod in group.pods))
            room.free = {name: amount - used.get(name, Fraction(0)) for name, amount in room.free.items()}
    for planned in plan.claims:
        places = places_of_claim(world, planned.claim, planned.instance_types)
        weight = next(pool.spec.weight or 0 for pool in world.pools if pool.metadata.name == planned.node_pool)
        for pod in planned.pods:
            yield from _could_do_better(world, left, rooms, pod, places, weight)
    for item in plan.unplaced:
        yield from _could_do_better(world, left, rooms, item.pod, [], -1)


def _could_do_better(
    world: World, left: dict[str, Amounts], rooms: Mapping[str, Place], pod: Pod, places: Sequence[Place], weight: int
) -> Iterator[str]:
    """Each earlier step of the ladder, on any pool or machine; the step reached, on machines and on heavier pools."""
    for want in wants(pod.spec):
        reached = bool(places) and all(place.allows(want, pod.spec) for place in places)
        for name, room in rooms.items():
            if room.allows(want, pod.spec) and covers(room.free, needs(pod.spec)):
                yield f"{pod.metadata.name} could go to machine {name} ({want})"
        for pool in world.pools:
            heavier = not reached or (pool.spec.weight or 0) > weight
            if heavier and could_take(world, pool, left[pool.metadata.name], pod, want):
                yield f"{pod.metadata.name} could be bought for by pool {pool.metadata.name} ({want})"
        if reached:
            return
