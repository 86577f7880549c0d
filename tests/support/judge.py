"""Is a plan lawful? A brute-force judge that reads wire objects and shares no code with the decision it judges.

A node that is planned or not launched yet is judged as every node it may still become: each type left, in each offering
that is accepted, with each value of each open label. Filters that look at one node only are asked of each of those. Filters
that look at neighbours are asked in scenes: a scene is one choice for every node that is still open in a label neighbours are
told by. In each scene there must be *some* order in which every planned pod passes the filters at its turn, as the scheduler
would bind them.

Where there are more scenes than ``SCENES``, each node takes each of its forms at least once; the rest is drawn, always alike.

``problems`` returns sentences; none means lawful. ``judge_places.room`` finds, for a pod left out, a place it could have had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import inf, prod
from random import Random

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.scheduling.solution import NewNodeClaim, Solution
from support.judge_world import POOL, Site, World, forms_of_claim, sites
from support.kube_filters import (
    Amounts,
    Bound,
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
    required_terms,
    spreads,
)

SCENES = 48
#: So many half-bound clusters are looked at in search of an order; small plans never come near.
_STEPS = 4000


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


def distinguishing_labels(pods: Iterable[Pod]) -> set[str]:
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
    telling = sorted(distinguishing_labels(pods))
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
