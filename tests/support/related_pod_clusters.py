"""Hypothesis strategies for small clusters whose pods depend on each other: spread, affinity and anti-affinity, ports, mixtures.

``mixed_clusters`` has more kinds of nodes and pools, this module more kinds of pods. ``odd_pods`` are pods that an API server
would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from hypothesis import strategies as st

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Container, ContainerPort, Namespace, Node, Pod, PodDisruptionBudget, ResourceRequirements
from karpenter.api.karpenter import NodeClaim, NodePool, NodePoolTaint
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta, Wire
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from support.builders import (
    ANY_CAPACITY,
    affinity,
    budget,
    claim,
    daemon_set,
    expr,
    node_and_claim,
    node_pool,
    pod,
    pool_taint,
    seconds,
    taint,
    term,
    tolerating,
    wanted,
)
from support.instance_types import offering, shape
from support.volume_builders import csi_node, pvc, storage_class, using, zonal

RACK, DEDICATED, SOFT = "rack", "dedicated", "soft"
ZONES = ("z1", "z2", "z3")
SPACES: Mapping[str, Mapping[str, str]] = {"default": {"team": "a"}, "other": {"team": "b"}}
#: Claims: in the first zone, in either of two, anywhere, and one whose class will make it in the third zone.
_CLAIMS = ("first", "either", "anywhere", "later")
_STORAGE: tuple[Wire, ...] = (
    *(pvc(name, name) for name in _CLAIMS[:3]),
    zonal("first", "z1"),
    zonal("either", "z1", "z2"),
    zonal("anywhere"),
    pvc("later", storage_class="standard"),
    storage_class("standard", {labels.ZONE: ("z3",)}),
)
_zones = st.sampled_from(ZONES)
_keys = st.sampled_from([labels.ZONE, labels.ZONE, labels.HOSTNAME, labels.HOSTNAME, labels.CAPACITY_TYPE, RACK])
_rarely = st.sampled_from([True, *[False] * 5])


@dataclass(frozen=True)
class Cluster:
    """Objects and what can be launched; with a short repr for failing examples."""

    pods: tuple[Pod, ...]
    pools: tuple[NodePool, ...]
    nodes: tuple[Node, ...]
    claims: tuple[NodeClaim, ...]
    daemons: tuple[DaemonSet, ...]
    types: tuple[InstanceType, ...]
    storage: tuple[Wire, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()

    def objects(self) -> list[object]:
        spaces = [Namespace(metadata=ObjectMeta(name=name, labels=own)) for name, own in SPACES.items()]
        groups = (self.pods, self.pools, self.nodes, self.claims, self.daemons, self.storage, self.budgets)
        return [*(wire for group in groups for wire in group), *spaces]

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """How hypothesis prints a failing example."""
        objects = (member for member in self.objects() if member not in _STORAGE)
        lines = [f"{type(element).__name__} {msgspec.json.encode(element).decode()}" for element in objects]
        for instance_type in self.types:
            sold = [f"{each.capacity_type}/{each.zone}" for each in instance_type.offerings if each.available]
            lines.append(f"{instance_type.name} {dict(instance_type.capacity)} sold as {sold}")
        printer.text("\n".join(lines))  # type: ignore[attr-defined]


# -- what pods ask of each other ----------------------------------------------------------------------------------------

_selectors = st.one_of(
    st.sampled_from(["a", "b"]).map(lambda app: LabelSelector(match_labels={"app": app})),
    st.sampled_from(["a", "b"]).map(
        lambda app: LabelSelector(
            match_expressions=(LabelSelectorRequirement(key="app", operator="NotIn", values=(app,)),)
        )
    ),
    st.sampled_from(
        [
            LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="Exists"),)),
            LabelSelector(match_labels={"app": "a", "version": "1"}),
            None,
        ]
    ),
)


@st.composite
def spreads(draw: st.DrawFn) -> TopologySpreadConstraint:
    chosen = draw(_selectors)
    return TopologySpreadConstraint(
        max_skew=draw(st.sampled_from([1, 1, 1, 2])),
        topology_key=draw(_keys),
        when_unsatisfiable=draw(st.sampled_from(["DoNotSchedule", "DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"])),
        label_selector=chosen,
        min_domains=draw(st.sampled_from([None, None, None, 2, 3])),
        node_affinity_policy=draw(st.sampled_from([None, None, "Honor", "Ignore"])),
        node_taints_policy=draw(st.sampled_from([None, None, "Honor", "Ignore"])),
        match_label_keys=draw(st.sampled_from([(), (), ("version",)])) if chosen is not None else (),
    )


@st.composite
def terms(draw: st.DrawFn) -> PodAffinityTerm:
    chosen = draw(_selectors)
    keys: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    if chosen is not None:
        keys = draw(st.sampled_from([((), ()), ((), ()), ((), ()), (("version",), ()), ((), ("version",))]))
    return PodAffinityTerm(
        topology_key=draw(_keys),
        label_selector=chosen,
        namespaces=draw(st.sampled_from([(), (), (), ("other",), ("default", "other")])),
        namespace_selector=draw(
            st.sampled_from([None, None, None, LabelSelector(), LabelSelector(match_labels={"team": "b"})])
        ),
        match_label_keys=keys[0],
        mismatch_label_keys=keys[1],
    )


_ports = st.builds(
    ContainerPort,
    host_port=st.sampled_from([80, 80, 443]),
    host_ip=st.sampled_from(["", "", "0.0.0.0", "10.0.0.1", "10.0.0.2"]),
    protocol=st.sampled_from(["TCP", "TCP", "UDP"]),
)
_expressions = st.one_of(
    st.lists(_zones, min_size=1, max_size=2, unique=True).map(lambda zones: expr(labels.ZONE, "In", *zones)),
    _zones.map(lambda zone: expr(labels.ZONE, "NotIn", zone)),
    st.sampled_from([expr(labels.CAPACITY_TYPE, "In", "spot"), expr(RACK, "Exists"), expr(RACK, "NotIn", "r1")]),
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, object]:
    """Fields of a pod's spec: one or two kinds of constraint, sometimes none."""
    spec: dict[str, object] = {}
    asked = Affinity()
    for kind in draw(
        st.lists(st.sampled_from(["spread", "spread", "near", "far", "node", "port", "volume", "wish"]), max_size=2)
    ):
        if kind == "spread":
            spec["topology_spread_constraints"] = tuple(draw(st.lists(spreads(), min_size=1, max_size=2)))
        elif kind in ("near", "far"):
            asked = draw(_keeping(asked, kind))
        elif kind == "wish":
            asked = draw(_wishing(asked))
        elif kind == "node":
            asked = _with(asked, node_affinity=affinity(term(draw(_expressions))).node_affinity)
        elif kind == "volume":
            spec["volumes"] = using(*draw(st.lists(st.sampled_from(_CLAIMS), min_size=1, max_size=2, unique=True)))
        else:
            spec["ports"] = (draw(_ports),)
    if asked != Affinity():
        spec["affinity"] = asked
    if draw(_rarely):
        spec["tolerations"] = (tolerating(DEDICATED),)
    if draw(_rarely):
        spec["node_selector"] = {labels.ZONE: draw(_zones)}
    return spec


@st.composite
def _keeping(draw: st.DrawFn, asked: Affinity, kind: str) -> Affinity:
    """With pods that must be near, or must not."""
    if kind == "far":
        return _with(asked, pod_anti_affinity=PodAffinity(required=(draw(terms()),)))
    return _with(asked, pod_affinity=PodAffinity(required=tuple(draw(st.lists(terms(), min_size=1, max_size=2)))))


@st.composite
def _wishing(draw: st.DrawFn, asked: Affinity) -> Affinity:
    """With a preference that may be given up."""
    preferred = WeightedPodAffinityTerm(weight=draw(st.sampled_from([1, 50])), pod_affinity_term=draw(terms()))
    side = draw(st.sampled_from(["near", "far", "node"]))
    if side == "near":
        pod_affinity = asked.pod_affinity or PodAffinity()
        return _with(asked, pod_affinity=PodAffinity(required=pod_affinity.required, preferred=(preferred,)))
    if side == "far":
        pod_affinity = asked.pod_anti_affinity or PodAffinity()
        return _with(asked, pod_anti_affinity=PodAffinity(required=pod_affinity.required, preferred=(preferred,)))
    return _with(asked, node_affinity=affinity(preferred=[(preferred.weight, term(draw(_expressions)))]).node_affinity)


def _with(base: Affinity, **fields: object) -> Affinity:
    defaults = {name: getattr(base, name) for name in ("node_affinity", "pod_affinity", "pod_anti_affinity")}
    return Affinity(**{**defaults, **fields})


def _pod(name: str, requests: Mapping[str, str], meta: Mapping[str, object], spec: Mapping[str, object]) -> Pod:
    fields = dict(spec)
    ports = fields.pop("ports", ())
    own = (Container(resources=ResourceRequirements(requests=requests), ports=ports),)
    return pod(name, meta=meta, containers=own, **fields)


@st.composite
def _identity(draw: st.DrawFn) -> dict[str, object]:
    own = {"app": draw(st.sampled_from(["a", "a", "b"])), "version": draw(st.sampled_from(["1", "2"]))}
    return {
        "namespace": draw(st.sampled_from(["default", "default", "default", "other"])),
        "labels": own if draw(st.integers(0, 5)) else {},
    }


@st.composite
def waiting(draw: st.DrawFn) -> list[Pod]:
    """One to twelve pods of up to four kinds."""
    pods: list[Pod] = []
    for kind in range(draw(st.integers(1, 4))):
        spec, meta = draw(specs()), draw(_identity())
        requests = {"cpu": draw(st.sampled_from(["100m", "500m", "500m", "1", "1900m"])), "memory": "100Mi"}
        nominated = draw(st.sampled_from(["", "", "", "n0", "n1", "c0"]))
        for number in range(draw(st.integers(1, 3))):
            if "volumes" in spec:
                meta["namespace"] = "default"  # where the claims are
            age = {"creation_timestamp": seconds(draw(st.integers(0, 2)))}
            state = {"nominated_node_name": nominated} if draw(st.booleans()) else {}
            pods.append(_pod(f"w{kind}-{number}", requests, {**meta, **age}, {**spec, "status": state}))
    return pods


# -- what there is ------------------------------------------------------------------------------------------------------


@st.composite
def instance_types(draw: st.DrawFn) -> tuple[InstanceType, ...]:
    result = []
    for number, cpu in enumerate(draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3, unique=True))):
        sold = [
            offering(kind, zone, (0.4 if kind == "spot" else 1.0) * cpu, available=not draw(_rarely))
            for kind in draw(st.sampled_from([("on-demand",), ("spot", "on-demand")]))
            for zone in draw(st.sampled_from([ZONES, ZONES, ZONES[:2], ZONES[1:]]))
        ]
        room = {"cpu": cpu, "memory": f"{2 * cpu}Gi", "pods": draw(st.sampled_from([3, 10]))}
        result.append(shape(f"t{number}", room, sold, systems=("linux",)))
    return tuple(result)


_pool_taints: st.SearchStrategy[tuple[NodePoolTaint, ...]] = st.sampled_from(
    [*[()] * 6, (pool_taint(DEDICATED),), (pool_taint(SOFT, "PreferNoSchedule"),)]
)


@st.composite
def node_pools(draw: st.DrawFn) -> list[NodePool]:
    nodepools = []
    for number in range(draw(st.integers(1, 3))):
        asked = [ANY_CAPACITY]
        if draw(_rarely):
            asked.append(wanted(labels.ZONE, "In", *draw(st.sampled_from([ZONES[:1], ZONES[:2], ZONES[1:]]))))
        if draw(_rarely):
            asked.append(wanted(labels.INSTANCE_TYPE, "Exists", least=2))
        own = {RACK: draw(st.sampled_from(["r1", "r2"]))} if draw(st.booleans()) else {}
        template = {"taints": draw(_pool_taints)}
        limits = draw(st.sampled_from([{}, {}, {}, {"cpu": "8"}, {"nodes": "1"}, {"cpu": "12", "nodes": "2"}]))
        weight = draw(st.sampled_from([None, None, 10]))
        nodepools.append(node_pool(f"p{number}", asked, labels=own, template=template, limits=limits, weight=weight))
    return nodepools


@st.composite
def _node_and_claim(draw: st.DrawFn, number: int) -> tuple[Node, NodeClaim]:
    own = {
        labels.ZONE: draw(_zones),
        labels.CAPACITY_TYPE: draw(st.sampled_from(["spot", "on-demand"])),
        labels.ARCH: "amd64",
        labels.OS: "linux",
    }
    if draw(_rarely):
        del own[labels.ZONE]
    if draw(st.booleans()):
        own[RACK] = draw(st.sampled_from(["r1", "r2"]))
    amounts = {"cpu": draw(st.sampled_from(["1", "2", "4"])), "memory": "8Gi", "pods": draw(st.sampled_from([2, 10]))}
    taints: tuple[Taint, ...] = draw(
        st.sampled_from([*[()] * 6, (taint(DEDICATED),), (taint(SOFT, "PreferNoSchedule"),)])
    )
    stages = {"deleted": draw(_rarely), "initialized": not draw(_rarely)}
    return node_and_claim(f"n{number}", amounts, pool="p0", labels=own, taints=taints, **stages)


@st.composite
def _coming(draw: st.DrawFn, number: int, pool: NodePool, types: tuple[InstanceType, ...]) -> NodeClaim:
    """A claim that is not launched yet: what it will be is settled, or open, per label."""
    kept = draw(st.lists(st.sampled_from([instance_type.name for instance_type in types]), min_size=1, unique=True))
    asked = [wanted(labels.INSTANCE_TYPE, "In", *kept)]
    spec = pool.spec.template.spec
    asked += [requirement for requirement in spec.requirements if requirement.key != labels.INSTANCE_TYPE]
    if draw(st.booleans()):
        own = [
            requirement.values
            for requirement in spec.requirements
            if requirement.key == labels.ZONE and requirement.values
        ]
        asked = [requirement for requirement in asked if requirement.key != labels.ZONE]
        asked.append(wanted(labels.ZONE, "In", draw(st.sampled_from(own[0] if own else ZONES))))
    if draw(st.booleans()):
        asked = [requirement for requirement in asked if requirement.key != labels.CAPACITY_TYPE]
        asked.append(wanted(labels.CAPACITY_TYPE, "In", "on-demand"))
    return claim(
        f"c{number}",
        None,
        asked,
        pool=pool.metadata.name,
        labels=pool.spec.template.metadata.labels,
        taints=spec.taints,
        deleted=draw(_rarely),
    )


_daemons = st.sampled_from(
    [
        *[()] * 4,
        (daemon_set("d", {"cpu": "100m"}),),
        (daemon_set("d", {"cpu": "100m"}, tolerations=(tolerating(DEDICATED),)),),
        (daemon_set("d", containers=(Container(ports=(ContainerPort(host_port=80),)),)),),
    ]
)
_budgets = st.sampled_from(
    [*[()] * 4, (budget("b", {"app": "a"}, max_unavailable=0),), (budget("b", {"app": "a"}, max_unavailable=1),)]
)


@st.composite
def _running(draw: st.DrawFn, nodes: list[Node]) -> list[Pod]:
    pods = []
    for number in range(draw(st.integers(0, 4)) if nodes else 0):
        spec = {"node_name": draw(st.sampled_from(nodes)).metadata.name}
        if draw(_rarely):
            spec |= {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=(draw(terms()),)))}
        if draw(_rarely):
            spec |= {"ports": (draw(_ports),)}
        pods.append(_pod(f"r{number}", {"cpu": "100m"}, draw(_identity()), spec))
    return pods


@st.composite
def clusters(draw: st.DrawFn, pods: st.SearchStrategy[list[Pod]] | None = None) -> Cluster:
    """A cluster with pods that wait."""
    types, pools = draw(instance_types()), draw(node_pools())
    nodes_and_claims = [draw(_node_and_claim(number)) for number in range(draw(st.integers(0, 4)))]
    coming = [draw(_coming(number, draw(st.sampled_from(pools)), types)) for number in range(draw(st.integers(0, 1)))]
    nodes = [node for node, _ in nodes_and_claims]
    return Cluster(
        pods=(*draw(waiting() if pods is None else pods), *draw(_running(nodes))),
        pools=tuple(pools),
        nodes=tuple(nodes),
        claims=(*(nodeclaim for _, nodeclaim in nodes_and_claims), *coming),
        daemons=draw(_daemons),
        types=types,
        storage=(*_STORAGE, *(csi_node(node.metadata.name, ebs=draw(st.integers(1, 2))) for node in nodes)),
        budgets=draw(_budgets),
    )


# -- nonsense -----------------------------------------------------------------------------------------------------------

_words = st.sampled_from(
    ["", "a", "app", "z1", "kubernetes.io/hostname", labels.ZONE, "no such key", "x/y/z", "-1", "é"]
)
_operators = st.sampled_from(["", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte", "Maybe"])
_numbers = st.sampled_from([-(2**31), -1, 0, 1, 2, 70_000, 2**31 - 1])
_values = st.lists(_words, max_size=2).map(tuple)
_odd_selectors = st.none() | st.builds(
    LabelSelector,
    match_labels=st.dictionaries(_words, _words, max_size=2),
    match_expressions=st.lists(
        st.builds(LabelSelectorRequirement, key=_words, operator=_operators, values=_values), max_size=2
    ).map(tuple),
)
_odd_spreads = st.builds(
    TopologySpreadConstraint,
    max_skew=_numbers,
    topology_key=_words,
    when_unsatisfiable=st.sampled_from(["", "DoNotSchedule", "ScheduleAnyway", "Perhaps"]),
    label_selector=_odd_selectors,
    min_domains=st.none() | _numbers,
    node_affinity_policy=st.none() | st.sampled_from(["", "Honor", "Perhaps"]),
    node_taints_policy=st.none() | st.sampled_from(["", "Honor", "Perhaps"]),
    match_label_keys=_values,
)
_odd_terms = st.builds(
    PodAffinityTerm,
    topology_key=_words,
    label_selector=_odd_selectors,
    namespaces=_values,
    namespace_selector=_odd_selectors,
    match_label_keys=_values,
    mismatch_label_keys=_values,
)
_odd_affinity = st.none() | st.builds(PodAffinity, required=st.lists(_odd_terms, max_size=2).map(tuple))
_odd_expressions = st.lists(
    st.builds(NodeSelectorRequirement, key=_words, operator=_operators, values=_values), max_size=2
).map(tuple)
_odd_nodes = st.none() | st.builds(
    NodeAffinity,
    required=st.none()
    | st.builds(
        NodeSelector,
        node_selector_terms=st.lists(
            st.builds(NodeSelectorTerm, match_expressions=_odd_expressions, match_fields=_odd_expressions), max_size=2
        ).map(tuple),
    ),
)
_odd_ports = st.builds(
    ContainerPort,
    container_port=_numbers,
    host_port=_numbers,
    host_ip=st.sampled_from(["", "::", "not an address", "10.0.0.1"]),
    protocol=st.sampled_from(["", "TCP", "tcp", "Pigeon"]),
)


@st.composite
def odd_pods(draw: st.DrawFn) -> list[Pod]:
    """Pods whose every field may be nonsense."""
    pods = []
    for number in range(draw(st.integers(1, 4))):
        spec: dict[str, object] = {
            "topology_spread_constraints": tuple(draw(st.lists(_odd_spreads, max_size=2))),
            "affinity": Affinity(
                node_affinity=draw(_odd_nodes),
                pod_affinity=draw(_odd_affinity),
                pod_anti_affinity=draw(_odd_affinity),
            ),
            "ports": tuple(draw(st.lists(_odd_ports, max_size=2))),
            "node_selector": draw(st.dictionaries(_words, _words, max_size=1)),
            "tolerations": tuple(
                draw(st.lists(st.builds(Toleration, key=_words, operator=_operators, value=_words), max_size=2))
            ),
            "host_network": draw(st.booleans()),
        }
        if draw(st.booleans()):
            spec["node_name"] = draw(st.sampled_from(["n0", "n1", "nowhere"]))
        requests = {"cpu": draw(st.sampled_from(["1", "0", "-1", "", "a lot"]))}
        pods.append(_pod(f"odd{number}", requests, draw(_identity()), spec))
    return pods
