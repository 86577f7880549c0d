"""Hypothesis strategies for small clusters in which every kind of constraint can meet every other."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool, NodeSelectorRequirementWithMinValues
from karpenter.api.scheduling_constraints import Affinity, Taint, Toleration
from karpenter.model import labels
from support.builders import (
    affinity,
    claim,
    daemon_set,
    expr,
    node,
    node_and_claim,
    node_pool,
    owner,
    pod,
    pool_taint,
    seconds,
    taint,
    term,
    tolerating,
    wanted,
)
from support.instance_types import INTEGER, SPECIAL, WELL_KNOWN, offering, shape
from support.plan_checker_cluster import ClusterObjects

CUSTOM = "team.example/name"
_SOFT, _HARD = "soft", "hard"


@st.composite
def types(draw: st.DrawFn) -> tuple:
    """Up to six types; some offerings are sold out."""
    instance_types = []
    for number in range(draw(st.integers(1, 6))):
        cpu = draw(st.sampled_from([1, 2, 4, 4, 8, 16]))
        sold = [
            offering(
                kind, zone, draw(st.integers(1, 9)) / 10 * cpu, available=draw(st.sampled_from([True, True, False]))
            )
            for kind, zone in draw(
                st.lists(
                    st.sampled_from([("spot", "z1"), ("spot", "z2"), ("on-demand", "z1"), ("on-demand", "z3")]),
                    min_size=1,
                    unique=True,
                )
            )
        ]
        capacity = {
            "cpu": cpu,
            "memory": f"{cpu * draw(st.sampled_from([2, 4]))}Gi",
            "pods": draw(st.sampled_from([3, 9])),
        }
        capacity |= {"a/gpu": 1} if draw(st.integers(0, 3)) == 0 else {}
        arch = draw(st.sampled_from(["amd64", "amd64", "arm64"]))
        instance_types.append(shape(f"t{number}", capacity, sold, arch=arch, systems=("linux",)))
    return tuple(instance_types)


_zones = st.lists(st.sampled_from(["z1", "z2", "z3"]), min_size=1, max_size=2, unique=True)
expressions = st.one_of(
    _zones.map(lambda zones: expr(labels.ZONE, "In", *zones)),
    _zones.map(lambda zones: expr(labels.ZONE, "NotIn", *zones)),
    st.sampled_from(
        [
            expr(labels.ARCH, "In", "amd64"),
            expr(labels.ARCH, "In", "arm64"),
            expr(labels.CAPACITY_TYPE, "In", "spot"),
            expr(labels.CAPACITY_TYPE, "NotIn", "spot"),
            expr(labels.NODE_POOL, "In", "p0"),
            expr(labels.NODE_POOL, "NotIn", "p0"),
            expr(INTEGER, "Gt", "2"),
            expr(INTEGER, "Lte", "4"),
            expr(SPECIAL, "Exists"),
            expr(SPECIAL, "DoesNotExist"),
            expr(SPECIAL, "NotIn", "other"),
            expr(CUSTOM, "In", "a"),
            expr(CUSTOM, "In", "a", "b"),
            expr(CUSTOM, "NotIn", "a"),
            expr(CUSTOM, "Exists"),
            expr(CUSTOM, "DoesNotExist"),
        ]
    ),
)
_terms = st.lists(expressions, min_size=1, max_size=2, unique_by=lambda requirement: requirement.key).map(
    lambda requirements: term(*requirements)
)
_amounts = st.sampled_from(["250m", "500m", "500m", "1", "1", "1500m", "3", "7"])


@st.composite
def affinities(draw: st.DrawFn) -> Affinity | None:
    required = draw(st.lists(_terms, max_size=2))
    preferred = [
        (weight, draw(_terms)) for weight in draw(st.lists(st.sampled_from([1, 50, 100]), max_size=2, unique=True))
    ]
    return affinity(*required, preferred=preferred) if required or preferred else None


@st.composite
def tolerations(draw: st.DrawFn) -> tuple[Toleration, ...]:
    return tuple(tolerating(key) for key in draw(st.lists(st.sampled_from([_SOFT, _HARD]), max_size=2, unique=True)))


@st.composite
def waiting_pods(draw: st.DrawFn) -> list[Pod]:
    pods: list[Pod] = []
    for kind in range(draw(st.integers(1, 4))):
        requests = {"cpu": draw(_amounts), "memory": draw(st.sampled_from(["100Mi", "100Mi", "1Gi", "6Gi"]))}
        requests |= {"a/gpu": 1} if draw(st.integers(0, 9)) == 0 else {}
        picky = draw(st.booleans())
        spec: Mapping[str, object] = {
            "affinity": draw(affinities()) if picky else None,
            "tolerations": draw(tolerations()),
        }
        if draw(st.integers(0, 4)) == 0:
            spec = {**spec, "node_selector": {labels.ZONE: draw(st.sampled_from(["z1", "z2"]))}}
        for number in range(draw(st.sampled_from([1, 1, 2, 2, 4, 4, 12]))):
            meta = {"creation_timestamp": seconds(draw(st.integers(0, 3)))}
            pods.append(pod(f"w{kind}-{number}", requests, meta=meta, **spec))
    return pods


@st.composite
def _pool_requirements(draw: st.DrawFn) -> list[NodeSelectorRequirementWithMinValues]:
    requirements = [wanted(labels.CAPACITY_TYPE, "Exists", least=draw(st.sampled_from([None, None, None, 2])))]
    if draw(st.booleans()):
        requirements.append(wanted(labels.ZONE, draw(st.sampled_from(["In", "NotIn"])), *draw(_zones)))
    if draw(st.integers(0, 4)) == 0:
        requirements.append(wanted(labels.ZONE, "Exists", least=draw(st.integers(2, 3))))
    if draw(st.integers(0, 2)) == 0:
        requirements.append(wanted(labels.INSTANCE_TYPE, "Exists", least=draw(st.integers(1, 3))))
    if draw(st.integers(0, 2)) == 0:
        requirements.append(
            draw(
                st.sampled_from(
                    [wanted(CUSTOM, "Exists"), wanted(CUSTOM, "In", "a", "b"), wanted(CUSTOM, "NotIn", "b")]
                )
            )
        )
    if draw(st.integers(0, 3)) == 0:
        requirements.append(
            draw(
                st.sampled_from(
                    [wanted(SPECIAL, "Exists"), wanted(SPECIAL, "NotIn", "other"), wanted(INTEGER, "Lt", "9")]
                )
            )
        )
    return requirements


@st.composite
def pools(draw: st.DrawFn) -> list[NodePool]:
    nodepools = []
    for number in range(draw(st.integers(1, 3))):
        limits = draw(
            st.sampled_from([{}, {}, {"cpu": "4"}, {"cpu": "20"}, {"nodes": "1"}, {"memory": "20Gi", "nodes": "3"}])
        )
        own = draw(st.sampled_from([(), (), (pool_taint(_HARD),), (pool_taint(_SOFT, "PreferNoSchedule"),)]))
        template = {"taints": own, "startup_taints": (pool_taint("starting"),)}
        weight = draw(st.sampled_from([None, 10, 50]))
        nodepools.append(
            node_pool(f"p{number}", draw(_pool_requirements()), limits=limits, template=template, weight=weight)
        )
    return nodepools


@st.composite
def _node(draw: st.DrawFn, number: int) -> tuple[tuple[Node, ...], tuple[NodeClaim, ...]]:
    amounts = {"cpu": draw(st.sampled_from(["1", "2", "6"])), "memory": "8Gi"}
    own = {labels.ZONE: draw(st.sampled_from(["z1", "z2"])), labels.ARCH: "amd64"}
    own |= {CUSTOM: "a"} if draw(st.booleans()) else {}
    taints: tuple[Taint, ...] = draw(
        st.sampled_from([(), (), (taint(_HARD),), (taint(_SOFT, "PreferNoSchedule"),), (taint("starting"),)])
    )
    leaving, kind = draw(st.integers(0, 4)) == 0, draw(st.integers(0, 2))
    if kind == 0:
        return (node(f"n{number}", amounts, labels=own, taints=taints, deleted=leaving),), ()
    startup = {"startup_taints": (pool_taint("starting"),)}
    pair = node_and_claim(
        f"n{number}", amounts, pool="p0", labels=own, taints=taints, deleted=leaving, initialized=kind == 1, **startup
    )
    return pair[:1], pair[1:]


@st.composite
def _in_flight(draw: st.DrawFn, number: int, pool: NodePool, names: list[str]) -> NodeClaim:
    kept = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    own = [
        requirement
        for requirement in pool.spec.template.spec.requirements
        if requirement.key in WELL_KNOWN and requirement.key != labels.INSTANCE_TYPE
    ]
    spec = pool.spec.template.spec
    return claim(
        f"c{number}",
        None,
        [*own, wanted(labels.INSTANCE_TYPE, "In", *kept)],
        pool=pool.metadata.name,
        labels={CUSTOM: "a"} if any(requirement.key == CUSTOM for requirement in spec.requirements) else {},
        deleted=draw(st.integers(0, 4)) == 0,
        taints=spec.taints,
        startup_taints=spec.startup_taints,
    )


@st.composite
def clusters(draw: st.DrawFn) -> ClusterObjects:
    """A cluster with pods that wait."""
    offered, nodepools = draw(types()), draw(pools())
    nodes: list[Node] = []
    claims: list[NodeClaim] = []
    running: list[Pod] = []
    daemons = draw(_daemons())
    for number in range(draw(st.integers(0, 2))):
        own, behind = draw(_node(number))
        nodes += own
        claims += behind
        if draw(st.booleans()):
            leaving = own[0].metadata.deletion_timestamp is not None or _leaves(behind)
            running.append(draw(_running(number, leaving, daemons)))
    for number in range(draw(st.integers(0, 2))):
        pool = draw(st.sampled_from(nodepools))
        claims.append(draw(_in_flight(number, pool, [element.name for element in offered])))
    return ClusterObjects(
        pods=(*draw(waiting_pods()), *running),
        pools=tuple(nodepools),
        nodes=tuple(nodes),
        claims=tuple(claims),
        daemons=tuple(daemons),
        types=offered,
        well_known=WELL_KNOWN,
    )


@st.composite
def _running(draw: st.DrawFn, number: int, leaving: bool, daemons: list[DaemonSet]) -> Pod:
    """A bound pod. On a leaving node one that stays: any other would be planned for, too."""
    name, bound = f"r{number}", f"n{number}"
    if leaving:
        return pod(
            name, {"cpu": "250m"}, node_name=bound, meta={"owner_references": (owner("Node", api_version="v1"),)}
        )
    if daemons and draw(st.booleans()):
        spec = daemons[0].spec.template.spec
        meta = {"owner_references": (owner("DaemonSet", "d0"),)}
        return pod(name, node_name=bound, meta=meta, containers=spec.containers, tolerations=spec.tolerations)
    return pod(name, {"cpu": "250m"}, node_name=bound)


def _leaves(claims: tuple[NodeClaim, ...]) -> bool:
    return any(nodeclaim.metadata.deletion_timestamp is not None for nodeclaim in claims)


@st.composite
def _daemons(draw: st.DrawFn) -> list[DaemonSet]:
    daemon_sets = []
    for number in range(draw(st.integers(0, 2))):
        chosen = draw(st.sampled_from([None, None, expr(labels.ARCH, "In", "arm64"), expr(SPECIAL, "Exists")]))
        daemon_sets.append(
            daemon_set(
                f"d{number}",
                {"cpu": draw(st.sampled_from(["100m", "500m"]))},
                tolerations=draw(tolerations()),
                affinity=None if chosen is None else affinity(term(chosen)),
            )
        )
    return daemon_sets
