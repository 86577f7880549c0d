"""The simplest lawful plan: one pod after the other goes to the first node the judge has nothing against, else to a new one.

Wasteful, and made of nothing but the judge's own words. So it can be asked whether the judge speaks for the real scheduler
before, and apart from, any plan of the product's.
"""

from __future__ import annotations

from dataclasses import replace

from karpenter.api.core import Pod
from karpenter.model import labels
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NoNodePool, UnschedulableReason
from support.builders import claim, wanted
from support.judge import remaining, waiting
from support.judge_places import fresh, pod_expressions
from support.judge_world import POOL, World, sites
from support.kube_filters import HOST, Machine, Scene, crowding, misfits

_OPEN = (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)


def planned(world: World) -> Solution:
    """A place for every pod that has one when its turn comes."""
    plan = Solution()
    for pod in waiting(world).values():
        plan = _with(world, plan, pod)
    return plan


def places(world: World, plan: Solution, pod: Pod) -> list[str]:
    """Nodes there are, or are planned, that take the pod now, by the key plans use.

    The scheduler counts pods nominated to a node before they are bound. So pods planned on the node must not mind the new one.
    """
    usable = [site for site in sites(world, plan) if site.forms]
    scene = Scene(
        [site.forms[0] for site in usable],
        [(other, site.forms[0]) for site in usable for other in (*site.bound, *site.planned)],
        world.namespaces,
    )
    return [
        site.key
        for site in usable
        if not site.leaving
        and not any(misfits(pod, site.forms[0], world.disks))
        and not any(crowding((*site.planned, pod), site.forms[0], world.disks))
        and not any(scene.objections(pod, site.forms[0]))
        and not any(_objects(scene, other, pod, site.forms[0]) for other in site.planned)
    ]


def _objects(scene: Scene, planned: Pod, newcomer: Pod, machine: Machine) -> bool:
    """Whether a pod planned on a node could not be bound there after a newcomer."""
    others = [(other, where) for other, where in scene.bound if other is not planned]
    return any(replace(scene, bound=(*others, (newcomer, machine))).objections(planned, machine))


def _with(world: World, plan: Solution, pod: Pod) -> Solution:
    for key in places(world, plan, pod):
        return _joined(plan, key, pod)
    for pool in world.pools:
        left = remaining(world, plan)[pool.metadata.name]
        for form in fresh(world, pool, left, pod, pod_expressions(pod.spec)):
            bought = _bought(world, form, len(plan.new_claims))
            grown = replace(plan, new_claims=(*plan.new_claims, bought))
            if bought.name in places(world, grown, pod):
                return _joined(grown, bought.name, pod)
    return replace(
        plan, unschedulable=(*plan.unschedulable, UnschedulablePod(pod, (UnschedulableReason(NoNodePool()),)))
    )


def _joined(plan: Solution, key: str, pod: Pod) -> Solution:
    if any(new_nodeclaim.name == key for new_nodeclaim in plan.new_claims):
        grown = (
            replace(new_nodeclaim, pods=(*new_nodeclaim.pods, pod)) if new_nodeclaim.name == key else new_nodeclaim
            for new_nodeclaim in plan.new_claims
        )
        return replace(plan, new_claims=tuple(grown))
    placed = {placed_pods.node_key: placed_pods for placed_pods in plan.placed_on_existing}
    there = placed.get(key, PlacedPods(key, key, ()))
    placed[key] = replace(there, pods=(*there.pods, pod))
    return replace(plan, placed_on_existing=tuple(placed.values()))


def _bought(world: World, form: Machine, number: int) -> NewNodeClaim:
    name = form.labels[POOL]
    pool = next(nodepool for nodepool in world.pools if nodepool.metadata.name == name)
    asked = [wanted(key, "In", form.labels[key]) for key in _OPEN]
    custom = {key: value for key, value in form.labels.items() if key not in world.well_known | {HOST, POOL}}
    made = claim(f"{name}-{number}", None, asked, pool=name, labels=custom, taints=pool.spec.template.spec.taints)
    kind = next(instance_type for instance_type in world.types_of(name) if instance_type.name == form.type)
    return NewNodeClaim(made, name, (form.type,), kind.offerings[0], ())
