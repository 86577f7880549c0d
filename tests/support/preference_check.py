"""Beyond what is lawful: is a plan as good as the rules of precedence want it? For pods that do not look at neighbours.

Weights of pools, preferences of pods, existing nodes before new ones, and nobody left out who could be served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from karpenter.api.core import Pod, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.scheduling_constraints import Taint
from karpenter.scheduling.solution import Solution
from support.judge import remaining
from support.judge_places import fresh
from support.judge_world import World, forms_of_claim, sites
from support.kube_filters import Amounts, Expression, Machine, accepts, crowding, expressions, tolerated


@dataclass(frozen=True)
class Want:
    """One step of a pod's ladder: expressions that must hold, and whether soft taints are tolerated."""

    expressions: tuple[Expression, ...]
    soft: bool = False

    def met_on(self, machine: Machine, spec: PodSpec) -> bool:
        """Whether a node gives all that is wanted; here soft taints have to be tolerated, too."""
        return self.bears(machine.taints, spec) and all(
            accepts(operator, values, machine.labels.get(key)) for key, operator, values in self.expressions
        )

    def bears(self, taints: Sequence[Taint], spec: PodSpec) -> bool:
        return all((self.soft and taint.effect == "PreferNoSchedule") or tolerated(taint, spec) for taint in taints)


def wants(spec: PodSpec) -> list[Want]:
    """All steps of a pod's ladder in order: every required term at each level of preferences, soft taints last."""
    selector = tuple((key, "In", (value,)) for key, value in spec.node_selector.items())
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required.node_selector_terms if affinity and affinity.required else ()
    terms = [(*selector, *expressions(term.match_expressions)) for term in required] or [selector]
    preferred = sorted(affinity.preferred if affinity else (), key=lambda scheduling_term: -scheduling_term.weight)
    levels = [expressions(scheduling_term.preference.match_expressions) for scheduling_term in preferred]
    result = [Want((*term, *level)) for level in (*levels, ()) for term in terms]
    return result + [Want(term, soft=True) for term in terms]


def missed_chances(world: World, plan: Solution) -> list[str]:
    """Where a pod could have got more of what it wants, or a better pool, or a place at all."""
    return list(_missed(world, plan))


def _missed(world: World, plan: Solution) -> Iterator[str]:
    left = remaining(world, plan)
    rooms = {
        site.key: (site.forms[0], site.planned)
        for site in sites(world, replace(plan, new_claims=()))
        if not site.leaving and len(site.forms) == 1 and not site.forms[0].type
    }
    for planned in plan.new_claims:
        forms = forms_of_claim(world, planned.claim, planned.instance_types)
        weight = next(pool.spec.weight or 0 for pool in world.pools if pool.metadata.name == planned.node_pool)
        for pod in planned.pods:
            yield from _better(world, left, rooms, pod, forms, weight)
    for unschedulable_pod in plan.unschedulable:
        yield from _better(world, left, rooms, unschedulable_pod.pod, [], -1)


def _better(
    world: World,
    left: Mapping[str, Amounts],
    rooms: Mapping[str, tuple[Machine, Sequence[Pod]]],
    pod: Pod,
    forms: Sequence[Machine],
    weight: int,
) -> Iterator[str]:
    """Each earlier step of the ladder, on any pool or node; the step reached, on nodes and on heavier pools."""
    for want in wants(pod.spec):
        reached = bool(forms) and all(want.met_on(form, pod.spec) for form in forms)
        for name, (machine, planned) in rooms.items():
            if want.met_on(machine, pod.spec) and not any(crowding((*planned, pod), machine, {})):
                yield f"{pod.metadata.name} could go to machine {name} ({want})"
        for pool in world.pools:
            heavier = not reached or (pool.spec.weight or 0) > weight
            if heavier and _could_take(world, pool, left[pool.metadata.name], pod, want):
                yield f"{pod.metadata.name} could be bought for by pool {pool.metadata.name} ({want})"
        if reached:
            return


def _could_take(world: World, pool: NodePool, left: Amounts, pod: Pod, want: Want) -> bool:
    """Whether a fresh claim of the pool alone could take the pod within what its limits leave."""
    taints = tuple(nodepool_taint.as_taint() for nodepool_taint in pool.spec.template.spec.taints)
    return want.bears(taints, pod.spec) and any(fresh(world, pool, left, pod, want.expressions, want.expressions))
