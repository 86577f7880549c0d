"""Whether a pod that a plan left out could have had a place after all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

from karpenter.api.core import Pod, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.scheduling.solution import Solution
from support.judge import Choice, distinguishing_labels, keys_of, lacking_values, remaining, scenes
from support.judge_world import POOL, Site, World, forms, sites
from support.kube_filters import (
    HOST,
    Amounts,
    Expression,
    Machine,
    Scene,
    accepts,
    crowding,
    expressions,
    misfits,
    required_terms,
)


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
    return tuple(form.labels.get(key) for key in sorted(distinguishing_labels(pods) - {HOST}))


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
