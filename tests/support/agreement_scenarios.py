"""Seeded clusters and pods over every kind of constraint and their mixtures, for a real control plane.

Every scenario is named after its kind. Its objects are such that an API server admits them, live in namespaces of the scenario's
own, and its nodes have names of its own, so that many scenarios can follow each other on one control plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Container, ContainerPort, Namespace, Node, Pod, ResourceRequirements
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta, Wire
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.model import labels
from support.builders import (
    affinity,
    daemon_set,
    expr,
    node,
    node_pool,
    pod,
    pool_taint,
    replaced,
    seconds,
    taint,
    term,
    tolerating,
    wanted,
)
from support.instance_types import WELL_KNOWN, offering, shape
from support.plan_checker_cluster import ClusterObjects
from support.volume_builders import csi_node, pvc, using, zonal

ZONE, HOST, KIND, RACK, DEDICATED = labels.ZONE, labels.HOSTNAME, labels.CAPACITY_TYPE, "rack", "dedicated"
ZONES = ("z1", "z2", "z3")
_SOLD = [offering(kind, zone, price) for kind, price in (("spot", 0.3), ("on-demand", 1.0)) for zone in ZONES]
TYPES = tuple(
    shape(name, {"cpu": cpu, "memory": f"{4 * cpu}Gi", "pods": 8}, _SOLD, systems=("linux",))
    for name, cpu in (("small", 2), ("medium", 4), ("large", 8))
)
#: Fields of a pod's spec; ``ports`` are those of its container, ``requests`` what it asks for.
Spec = dict[str, object]
#: How many scenarios of each kind, and how many mixtures.
_EACH, _MIXTURES = 4, 40


@dataclass(frozen=True)
class Scenario:
    """A cluster with pods that wait. ``pods`` wait, ``running`` are bound."""

    name: str
    pods: tuple[Pod, ...] = ()
    running: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    pools: tuple[NodePool, ...] = ()
    daemons: tuple[DaemonSet, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    storage: tuple[Wire, ...] = ()

    def cluster(self) -> ClusterObjects:
        return ClusterObjects(
            pods=(*self.pods, *self.running),
            pools=self.pools,
            nodes=self.nodes,
            claims=(),
            daemons=self.daemons,
            types=TYPES,
            well_known=WELL_KNOWN,
            namespaces={namespace.metadata.name: namespace.metadata.labels for namespace in self.namespaces},
            storage=self.storage,
        )


@dataclass
class Draft:
    """A scenario while it is drawn."""

    draw: Random
    name: str
    storage: list[Wire] = field(default_factory=list)
    daemons: list[DaemonSet] = field(default_factory=list)
    pool: dict[str, object] = field(default_factory=dict)

    @property
    def other(self) -> str:
        """The second namespace."""
        return f"{self.name}-other"


# -- kinds of constraint ------------------------------------------------------------------------------------------------


def _selector(draft: Draft) -> LabelSelector:
    by_name = LabelSelector(match_labels={"app": draft.draw.choice("ab")})
    not_b = LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="NotIn", values=("b",)),))
    return draft.draw.choice([by_name, by_name, by_name, not_b])


def _spread(draft: Draft, key: str, **more: object) -> Spec:
    spread_constraint = TopologySpreadConstraint(
        max_skew=draft.draw.choice([1, 1, 1, 2]),
        topology_key=key,
        when_unsatisfiable="DoNotSchedule",
        label_selector=_selector(draft),
        **more,
    )
    return {"topology_spread_constraints": (spread_constraint,)}


def _term(draft: Draft, key: str, **more: object) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key=key, label_selector=_selector(draft), **more)


def _near(draft: Draft, key: str, **more: object) -> Spec:
    return {"affinity": Affinity(pod_affinity=PodAffinity(required=(_term(draft, key, **more),)))}


def _far(draft: Draft, key: str, **more: object) -> Spec:
    return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=(_term(draft, key, **more),)))}


def _requests(draft: Draft) -> Spec:
    return {"requests": {"cpu": draft.draw.choice(["900m", "1400m", "1900m", "3500m"]), "memory": "1Gi"}}


def _sidecar(draft: Draft) -> Spec:
    beside = Container(
        name="beside",
        restart_policy="Always",
        resources=ResourceRequirements(requests={"cpu": draft.draw.choice(["300m", "1"])}),
    )
    before = Container(name="before", resources=ResourceRequirements(requests={"cpu": draft.draw.choice(["1", "3"])}))
    return {"init_containers": tuple(draft.draw.sample([beside, before], 2))}


def _node_selector(draft: Draft) -> Spec:
    key, value = draft.draw.choice([(ZONE, "z1"), (ZONE, "z2"), (KIND, "spot"), (labels.INSTANCE_TYPE, "medium")])
    return {"node_selector": {key: value}}


def _node_affinity(draft: Draft) -> Spec:
    chosen = draft.draw.choice(
        [
            (term(expr(ZONE, "In", "z1", "z3")),),
            (term(expr(ZONE, "NotIn", "z2"), expr(KIND, "In", "on-demand")),),
            (term(expr(ZONE, "In", "nowhere")), term(expr(ZONE, "In", "z2"))),
            (term(expr(RACK, "Exists")),),
            (term(expr(RACK, "DoesNotExist")),),
        ]
    )
    return {"affinity": affinity(*chosen)}


def _tolerations(draft: Draft) -> Spec:
    draft.pool["template"] = {"taints": (pool_taint(DEDICATED),)}
    return {"tolerations": (tolerating(DEDICATED),)} if draft.draw.random() < 0.7 else {}


def _limits(draft: Draft) -> Spec:
    draft.pool["limits"] = draft.draw.choice([{"nodes": "1"}, {"cpu": "8"}, {"cpu": "4"}])
    return _requests(draft)


def _daemons(draft: Draft) -> Spec:
    own = draft.draw.choice([{}, {"node_selector": {KIND: "spot"}}])
    draft.daemons = [daemon_set(f"{draft.name}-daemon", {"cpu": "500m"}, **own)]
    return _requests(draft)


def _ports(draft: Draft) -> Spec:
    address = draft.draw.choice(["", "", "0.0.0.0", "10.0.0.1", "10.0.0.2"])
    port = ContainerPort(container_port=80, host_port=draft.draw.choice([80, 80, 81]), host_ip=address)
    return {"ports": (replaced(port, protocol=draft.draw.choice(["TCP", "TCP", "UDP"])),)}


def _host_network(draft: Draft) -> Spec:
    number = draft.draw.choice([80, 80, 81])
    return {"ports": (ContainerPort(container_port=number, host_port=number),), "host_network": True}


def _sidecar_ports(draft: Draft) -> Spec:
    port = ContainerPort(container_port=80, host_port=80)
    return {"init_containers": (Container(name="beside", restart_policy="Always", ports=(port,)),)}


def _namespaced(draft: Draft) -> Spec:
    where: Mapping[str, object] = draft.draw.choice(
        [
            {"namespaces": (draft.other,)},
            {"namespace_selector": LabelSelector(match_labels={"team": "b", "scenario": draft.name})},
            {"namespaces": (draft.name,), "namespace_selector": LabelSelector(match_labels={"scenario": draft.name})},
        ]
    )
    return draft.draw.choice([_near, _far])(draft, draft.draw.choice([ZONE, HOST]), **where)


def _match_keys(draft: Draft) -> Spec:
    own = draft.draw.choice([{"match_label_keys": ("version",)}, {"mismatch_label_keys": ("version",)}])
    return draft.draw.choice([_near, _far])(draft, draft.draw.choice([ZONE, HOST]), **own)


def _policies(draft: Draft) -> Spec:
    key = draft.draw.choice([ZONE, HOST])
    chosen = draft.draw.choice(
        [{"node_affinity_policy": "Ignore"}, {"node_taints_policy": "Honor"}, {"node_taints_policy": "Ignore"}]
    )
    return {**_node_selector(draft), **_spread(draft, key, **chosen)}


def _zonal_volume(draft: Draft) -> Spec:
    name = f"{draft.name}-{len(draft.storage)}"
    draft.storage += [
        replaced(made := pvc(name, name, ""), metadata=replaced(made.metadata, namespace=draft.name)),
        zonal(name, *draft.draw.sample(ZONES, draft.draw.choice([1, 1, 2]))),
    ]
    return {"volumes": using(name)}


def _several_volumes(draft: Draft) -> Spec:
    names = [f"{draft.name}-{len(draft.storage)}-{number}" for number in range(draft.draw.choice([1, 2]))]
    for name in names:
        draft.storage += [
            replaced(made := pvc(name, name, ""), metadata=replaced(made.metadata, namespace=draft.name)),
            zonal(name),
        ]
    return {"volumes": using(*names)}


KINDS: Mapping[str, Callable[[Draft], Spec]] = {
    "resources": _requests,
    "init-containers": _sidecar,
    "node-selector": _node_selector,
    "node-affinity": _node_affinity,
    "taints": _tolerations,
    "limits": _limits,
    "daemons": _daemons,
    "host-ports": _ports,
    "host-network": _host_network,
    "sidecar-ports": _sidecar_ports,
    "near-zone": lambda draft: _near(draft, ZONE),
    "near-host": lambda draft: _near(draft, HOST),
    "far-zone": lambda draft: _far(draft, ZONE),
    "far-host": lambda draft: _far(draft, HOST),
    "namespaces": _namespaced,
    "match-label-keys": _match_keys,
    "spread-zone": lambda draft: _spread(draft, ZONE),
    "spread-host": lambda draft: _spread(draft, HOST),
    "spread-capacity-type": lambda draft: _spread(draft, KIND),
    "spread-rack": lambda draft: _spread(draft, RACK),
    "spread-min-domains": lambda draft: _spread(draft, draft.draw.choice([ZONE, HOST]), min_domains=3),
    "spread-match-label-keys": lambda draft: _spread(draft, ZONE, match_label_keys=("version",)),
    "spread-policies": _policies,
    "zonal-volumes": _zonal_volume,
    "attach-limits": _several_volumes,
}


# -- scenarios ----------------------------------------------------------------------------------------------------------


def scenarios() -> Iterator[Scenario]:
    """All of them: each kind alone, several times, then mixtures of two or three kinds."""
    for kind in KINDS:
        for turn in range(_EACH):
            yield drawn(f"{kind}-{turn}", (kind,))
    draw = Random("mixtures")
    for turn in range(_MIXTURES):
        kinds = tuple(sorted(draw.sample(sorted(KINDS), draw.choice([2, 2, 3]))))
        yield drawn(f"mix-{turn}-{'-'.join(kinds)}", kinds)


def drawn(name: str, kinds: tuple[str, ...]) -> Scenario:
    """The scenario of a name: the same every time."""
    # Names of namespaces and nodes have to be short; the kinds are in the scenario's.
    draft = Draft(Random(name), f"s{Random(name).getrandbits(40):010x}")
    nodes = tuple(_nodes(draft))
    pods = tuple(_waiting(draft, kinds))
    running = tuple(_running(draft, nodes))
    if "attach-limits" in kinds:
        draft.storage += [csi_node(listed_node.metadata.name, ebs=draft.draw.choice([1, 2])) for listed_node in nodes]
    rack = {RACK: draft.draw.choice(["r1", "r2"])} if draft.draw.random() < 0.5 else {}
    pool = node_pool(draft.name, [wanted(KIND, "Exists")], labels=rack, **draft.pool)
    spaces = ((draft.name, "a"), (draft.other, "b"))
    return Scenario(
        name=name,
        pods=pods,
        running=running,
        nodes=nodes,
        pools=(pool,),
        daemons=tuple(draft.daemons),
        namespaces=tuple(
            Namespace(metadata=ObjectMeta(name=space, labels={"team": team, "scenario": draft.name}))
            for space, team in spaces
        ),
        storage=tuple(draft.storage),
    )


def _nodes(draft: Draft) -> Iterator[Node]:
    draw = draft.draw
    for number in range(draw.choice([0, 1, 2, 3, 4])):
        own = {ZONE: draw.choice(ZONES), KIND: draw.choice(["spot", "on-demand"]), labels.OS: "linux"}
        own |= {RACK: draw.choice(["r1", "r2"])} if draw.random() < 0.5 else {}
        if draw.random() < 0.1:
            del own[ZONE]
        marks = (taint(DEDICATED),) if draw.random() < 0.15 else ()
        amounts = {"cpu": draw.choice(["500m", "1", "2", "4"]), "memory": "8Gi", "pods": draw.choice([2, 8])}
        yield node(f"{draft.name}-n{number}", amounts, labels=own, taints=marks)


def _identity(draft: Draft) -> dict[str, object]:
    own = {"app": draft.draw.choice("aab"), "version": draft.draw.choice("12")}
    return {"namespace": draft.other if draft.draw.random() < 0.2 else draft.name, "labels": own}


def _running(draft: Draft, nodes: tuple[Node, ...]) -> Iterator[Pod]:
    draw = draft.draw
    for number in range(draw.choice([0, 1, 2, 3]) if nodes else 0):
        spec: Spec = _far(draft, draw.choice([ZONE, HOST])) if draw.random() < 0.25 else {}
        spec |= _ports(draft) if draw.random() < 0.15 else {}
        where = draw.choice(nodes).metadata.name
        yield _pod(f"r{number}", {"cpu": "100m"}, _identity(draft), {**spec, "node_name": where})


def _waiting(draft: Draft, kinds: tuple[str, ...]) -> Iterator[Pod]:
    for group in range(draft.draw.choice([1, 2, 2, 3])):
        own = _identity(draft)
        first = group == 0
        spec: Spec = {}
        for kind in kinds:
            if first or draft.draw.random() < 0.7:
                spec = _merged(spec, KINDS[kind](draft))
        if "volumes" in spec:
            own["namespace"] = draft.name
        for number in range(draft.draw.choice([1, 2, 3, 5])):
            created = {"creation_timestamp": seconds(number)}
            yield _pod(f"w{group}-{number}", {"cpu": "200m"}, {**own, **created}, spec)


def _merged(left: Spec, right: Spec) -> Spec:
    """Both, where affinities are joined and lists appended."""
    merged = {**left, **right}
    for key in left.keys() & right.keys():
        if key == "affinity":
            merged[key] = _both(left[key], right[key])
        elif isinstance(left[key], tuple):
            merged[key] = (*left[key], *right[key])
    names = [item.topology_key for item in merged.get("topology_spread_constraints", ())]  # type: ignore[attr-defined]
    if len(set(names)) < len(names):  # an API server wants pairs of key and consequence to be unique
        merged["topology_spread_constraints"] = left["topology_spread_constraints"]
    return merged


def _both(left: Affinity, right: Affinity) -> Affinity:
    return Affinity(
        node_affinity=right.node_affinity or left.node_affinity,
        pod_affinity=_all(left.pod_affinity, right.pod_affinity),
        pod_anti_affinity=_all(left.pod_anti_affinity, right.pod_anti_affinity),
    )


def _all(left: PodAffinity | None, right: PodAffinity | None) -> PodAffinity | None:
    if left is None or right is None:
        return left or right
    return PodAffinity(required=(*left.required, *right.required))


def _pod(name: str, requests: Mapping[str, object], meta: Mapping[str, object], spec: Spec) -> Pod:
    fields = dict(spec)
    asked = fields.pop("requests", requests)
    ports = fields.pop("ports", ())
    own = Container(name="main", resources=ResourceRequirements(requests=asked), ports=ports)
    return pod(name, meta={"uid": f"{meta['namespace']}/{name}", **meta}, containers=(own,), **fields)


def only(scenario: Scenario, *pods: Pod) -> Scenario:
    """The scenario with no other pods waiting."""
    return replace(scenario, pods=pods)
