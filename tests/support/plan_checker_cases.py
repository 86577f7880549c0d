"""Valid plans, and the same with one fault each, for the tests of the plan checker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from karpenter.api.core import Container, ContainerPort, Pod, ResourceRequirements
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from karpenter.model import labels
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NoNodePool, UnschedulableReason
from support.builders import (
    claim,
    container,
    daemon_set,
    node,
    node_pool,
    pod,
    pool_taint,
    replaced,
    taint,
    tolerating,
    wanted,
    where,
)
from support.instance_types import WELL_KNOWN, offering, shape
from support.plan_checker_cluster import ClusterObjects, placed_pods

ZONE, HOST, KIND = labels.ZONE, labels.HOSTNAME, labels.CAPACITY_TYPE
_SOLD_OUT = [offering("on-demand", "z1", 1.0, available=False), offering("on-demand", "z2", 1.0)]
TYPES = (
    shape("small", {"cpu": 2, "memory": "4Gi", "pods": 5}),
    shape("large", {"cpu": 8, "memory": "32Gi", "pods": 20}),
    shape("arm", {"cpu": 8, "memory": "32Gi", "pods": 20}, arch="arm64"),
    shape("rare", {"cpu": 8, "memory": "32Gi", "pods": 20}, _SOLD_OUT),
)
POOL = node_pool("np")
APP = {"app": "web"}


def new_nodeclaim_of(
    name: str,
    *pods: Pod,
    types: Sequence[str] = ("large",),
    zones: Sequence[str] = ("z1",),
    kinds: Sequence[str] = ("on-demand",),
    pool: NodePool = POOL,
    own: Mapping[str, str] = {},
) -> NewNodeClaim:
    asked = [
        wanted(labels.INSTANCE_TYPE, "In", *types),
        wanted(ZONE, "In", *zones),
        wanted(KIND, "In", *kinds),
        wanted(labels.OS, "In", "linux"),
    ]
    spec = pool.spec.template
    made = claim(
        name,
        None,
        asked,
        pool=pool.metadata.name,
        labels={**spec.metadata.labels, **own},
        taints=spec.spec.taints,
    )
    return NewNodeClaim(made, pool.metadata.name, tuple(types), TYPES[0].offerings[0], pods)


def placed_on(name: str, *pods: Pod) -> PlacedPods:
    return PlacedPods(name, name, pods)


def plan_of(*parts: NewNodeClaim | PlacedPods | UnschedulablePod) -> Solution:
    return Solution(
        new_claims=tuple(part for part in parts if isinstance(part, NewNodeClaim)),
        placed_on_existing=tuple(part for part in parts if isinstance(part, PlacedPods)),
        unschedulable=tuple(part for part in parts if isinstance(part, UnschedulablePod)),
    )


@dataclass(frozen=True)
class Case:
    """A valid plan, the same with one fault, and a word of the violation it must give."""

    name: str
    valid: Solution
    invalid: Solution
    word: str
    there: Sequence[object] = ()
    pools: Sequence[NodePool] = (POOL,)
    more: Mapping[str, object] = field(default_factory=dict)

    def cluster(self, plan: Solution) -> ClusterObjects:
        pending_pods = {placed.metadata.uid: placed for placed in placed_pods(plan)} | {
            unschedulable_pod.pod.metadata.uid: unschedulable_pod.pod for unschedulable_pod in plan.unschedulable
        }
        things = [
            thing for element in self.there for thing in (element if isinstance(element, Iterable) else [element])
        ]
        kinds: dict[str, list[object]] = {"Pod": list(pending_pods.values())}
        for thing in things:
            kinds.setdefault(type(thing).__name__, []).append(thing)
        return ClusterObjects(
            pods=tuple(kinds["Pod"]),
            pools=tuple(self.pools),
            nodes=tuple(kinds.get("Node", ())),
            claims=tuple(kinds.get("NodeClaim", ())),
            daemons=tuple(kinds.get("DaemonSet", ())),
            types=TYPES,
            well_known=WELL_KNOWN,
            **self.more,
        )


def node_in_zone(name: str, zone: str = "z1", cpu: str = "4", **more: object) -> object:
    own = {ZONE: zone, labels.ARCH: "amd64", labels.OS: "linux"}
    return node(name, {"cpu": cpu, "memory": "8Gi"}, labels=own, **more)


def selector(match: Mapping[str, str] = APP, **more: object) -> LabelSelector:
    return LabelSelector(match_labels=match, **more)


def affinity_term(key: str = ZONE, match: Mapping[str, str] = APP, **more: object) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key=key, label_selector=selector(match), **more)


def pod_affinity(*terms: PodAffinityTerm) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(required=terms))


def pod_anti_affinity(*terms: PodAffinityTerm) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required=terms))


def spread(key: str = ZONE, skew: int = 1, match: Mapping[str, str] = APP, **more: object) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable="DoNotSchedule",
        label_selector=selector(match),
        **more,
    )


def web_pod(
    name: str, cpu: str = "100m", *, own: Mapping[str, str] = APP, space: str = "default", **spec: object
) -> Pod:
    return pod(name, {"cpu": cpu}, meta={"labels": own, "namespace": space}, **spec)


def spread_pod(name: str, *constraints: TopologySpreadConstraint, **more: object) -> Pod:
    return web_pod(name, topology_spread_constraints=constraints or (spread(),), **more)


def pod_with_host_port(name: str, port: int = 80, ip: str = "", **more: object) -> Pod:
    return pod(name, containers=(Container(ports=(ContainerPort(host_port=port, host_ip=ip),)),), **more)


def _resources_of_nodes() -> Iterable[Case]:
    one, big = web_pod("one", "1"), web_pod("big", "4")
    yield Case(
        "cpu of a new node",
        plan_of(new_nodeclaim_of("c", one, types=("small", "large"))),
        plan_of(new_nodeclaim_of("c", big, types=("small", "large"))),
        "cpu",
    )
    yield Case(
        "cpu of an existing node",
        plan_of(placed_on("n", one)),
        plan_of(placed_on("n", web_pod("p", "3"), web_pod("q", "2"))),
        "cpu",
        [node_in_zone("n")],
    )
    running = web_pod("running", "3", node_name="n")
    yield Case(
        "cpu beside running pods",
        plan_of(placed_on("n", one)),
        plan_of(placed_on("n", web_pod("p", "2"))),
        "cpu",
        [node_in_zone("n"), running],
    )
    only_arm = daemon_set("d", {"cpu": "7"}, affinity=where(labels.ARCH, "In", "arm64"))
    yield Case(
        "cpu beside a DaemonSet of one of the types",
        plan_of(new_nodeclaim_of("c", one, types=("large",))),
        plan_of(new_nodeclaim_of("c", one, types=("large", "arm"))),
        "cpu",
        [only_arm],
    )
    coming = daemon_set("d", {"cpu": "3500m"})
    yield Case(
        "cpu beside a DaemonSet still to come",
        plan_of(new_nodeclaim_of("c", one)),
        plan_of(placed_on("n", one)),
        "cpu",
        [node_in_zone("n"), coming],
    )
    many = [web_pod(f"p{number}") for number in range(6)]
    yield Case(
        "number of pods",
        plan_of(new_nodeclaim_of("c", *many)),
        plan_of(new_nodeclaim_of("c", *many, types=("small",))),
        "pods",
    )


def _resources_of_pods() -> Iterable[Case]:
    first = pod("p", init_containers=(container({"cpu": "5"}),))
    yield Case(
        "cpu of an init container",
        plan_of(new_nodeclaim_of("c", first)),
        plan_of(new_nodeclaim_of("c", first, types=("small",))),
        "cpu",
    )
    sidecar = container({"cpu": "1"}, restart_policy="Always")
    beside = pod("p", {"cpu": "1500m"}, init_containers=(sidecar,))
    yield Case(
        "cpu of a sidecar",
        plan_of(new_nodeclaim_of("c", beside)),
        plan_of(new_nodeclaim_of("c", beside, types=("small",))),
        "cpu",
    )
    level = pod("p", {"cpu": "1"}, resources=ResourceRequirements(requests={"cpu": "3"}))
    yield Case(
        "cpu of the pod as a whole",
        plan_of(new_nodeclaim_of("c", level)),
        plan_of(new_nodeclaim_of("c", level, types=("small",))),
        "cpu",
    )
    heavy = pod("p", {"cpu": "1"}, overhead={"cpu": "1"})
    yield Case(
        "overhead",
        plan_of(new_nodeclaim_of("c", heavy)),
        plan_of(new_nodeclaim_of("c", heavy, types=("small",))),
        "cpu",
    )


def _nodes() -> Iterable[Case]:
    one, firm = web_pod("p"), web_pod("p", tolerations=(tolerating("dedicated"),))
    tainted = node_pool("tainted", template={"taints": (pool_taint("dedicated"),)})
    yield Case(
        "taint of a pool",
        plan_of(new_nodeclaim_of("c", firm, pool=tainted)),
        plan_of(new_nodeclaim_of("c", one, pool=tainted)),
        "taint",
        pools=[tainted],
    )
    marked = node_in_zone("n", taints=[taint("dedicated")])
    yield Case("taint of a node", plan_of(placed_on("n", firm)), plan_of(placed_on("n", one)), "taint", [marked])
    wrong = web_pod("p", tolerations=(tolerating("dedicated", "Equal", "other"),))
    yield Case(
        "taint of another value", plan_of(placed_on("n", firm)), plan_of(placed_on("n", wrong)), "taint", [marked]
    )
    shut = node_in_zone("shut")
    shut = replaced(shut, spec=replaced(shut.spec, unschedulable=True))  # type: ignore[attr-defined]
    yield Case(
        "cordon", plan_of(placed_on("n", one)), plan_of(placed_on("shut", one)), "cordoned", [node_in_zone("n"), shut]
    )
    picky = web_pod("p", node_selector={ZONE: "z1"})
    yield Case(
        "node selector",
        plan_of(new_nodeclaim_of("c", picky)),
        plan_of(new_nodeclaim_of("c", picky, zones=("z1", "z2"))),
        "selector",
    )
    averse = web_pod("p", affinity=where(ZONE, "NotIn", "z2"))
    yield Case(
        "node affinity",
        plan_of(new_nodeclaim_of("c", averse)),
        plan_of(new_nodeclaim_of("c", averse, zones=("z1", "z2"))),
        "affinity",
    )
    strong = web_pod("p", affinity=where("integer", "Gt", "4"))
    yield Case(
        "node affinity by numbers",
        plan_of(new_nodeclaim_of("c", strong)),
        plan_of(new_nodeclaim_of("c", strong, types=("small", "large"))),
        "affinity",
    )
    unlabelled = web_pod("p", affinity=where("rack", "Exists"))
    yield Case(
        "a label the node will not have",
        plan_of(new_nodeclaim_of("c", unlabelled, own={"rack": "r"})),
        plan_of(new_nodeclaim_of("c", unlabelled)),
        "affinity",
    )


def _launches() -> Iterable[Case]:
    one = web_pod("p")
    valid = plan_of(new_nodeclaim_of("c", one))
    yield Case("sold out", valid, plan_of(new_nodeclaim_of("c", one, types=("large", "rare"))), "cannot be launched")
    yield Case(
        "not offered", valid, plan_of(new_nodeclaim_of("c", one, zones=("z3",), kinds=("spot",))), "cannot be launched"
    )
    narrow = node_pool("np", [wanted(ZONE, "In", "z1")])
    yield Case(
        "requirements of the pool",
        valid,
        plan_of(new_nodeclaim_of("c", one, zones=("z1", "z2"))),
        "requirements of its pool",
        pools=[narrow],
    )
    tainted = node_pool("np", template={"taints": (pool_taint("dedicated"),)})
    firm = web_pod("p", tolerations=(tolerating("dedicated"),))
    yield Case(
        "taints of the pool",
        plan_of(new_nodeclaim_of("c", firm, pool=tainted)),
        plan_of(new_nodeclaim_of("c", firm)),
        "other taints",
        pools=[tainted],
    )
    labelled = node_pool("np", labels={"team": "a"})
    yield Case(
        "labels of the pool",
        plan_of(new_nodeclaim_of("c", one, pool=labelled)),
        plan_of(new_nodeclaim_of("c", one)),
        "lacks labels",
        pools=[labelled],
    )
    broad = node_pool("np", [wanted(labels.INSTANCE_TYPE, "Exists", least=2)])
    yield Case(
        "minValues", plan_of(new_nodeclaim_of("c", one, types=("large", "arm"))), valid, "too few values", pools=[broad]
    )
    for what, limits in (("cpu", {"cpu": "10"}), ("nodes", {"nodes": "1"})):
        two = plan_of(new_nodeclaim_of("c", one), new_nodeclaim_of("d", web_pod("q")))
        yield Case(f"limits on {what}", valid, two, "limits", pools=[node_pool("np", limits=limits)])
    taken = claim("old", None, [wanted(labels.INSTANCE_TYPE, "In", "small", "large")])
    yield Case(
        "limits a claim in flight uses at worst",
        plan_of(new_nodeclaim_of("c", one, types=("small",))),
        valid,
        "limits",
        [taken],
        [node_pool("np", limits={"cpu": "12"})],
    )


def _bookkeeping() -> Iterable[Case]:
    one, other = web_pod("p"), web_pod("q")
    valid = plan_of(new_nodeclaim_of("c", one))
    yield Case("placed twice", valid, plan_of(new_nodeclaim_of("c", one), new_nodeclaim_of("d", one)), "exactly once")
    yield Case(
        "two claims of one name", valid, plan_of(new_nodeclaim_of("c", one), new_nodeclaim_of("c", other)), "used twice"
    )
    yield Case("no such node", valid, plan_of(placed_on("nowhere", one)), "not there")
    leaving = node_in_zone("n", deleted=True)
    yield Case("a node that terminates", valid, plan_of(placed_on("n", one)), "leaves", [leaving])
    why = (UnschedulableReason(NoNodePool()),)
    yield Case(
        "left out for no reason",
        plan_of(UnschedulablePod(one, why)),
        plan_of(UnschedulablePod(one, ())),
        "without a reason",
    )


def _ports() -> Iterable[Case]:
    def case(name: str, one: Pod, other: Pod) -> Case:
        return Case(
            name,
            plan_of(new_nodeclaim_of("c", one), new_nodeclaim_of("d", other)),
            plan_of(new_nodeclaim_of("c", one, other)),
            "host port",
        )

    yield case("one host port", pod_with_host_port("p"), pod_with_host_port("q"))
    yield case("every address and one", pod_with_host_port("p"), pod_with_host_port("q", ip="10.0.0.1"))
    yield case("every IPv6 address and one", pod_with_host_port("p", ip="::"), pod_with_host_port("q", ip="10.0.0.1"))
    ports = (ContainerPort(container_port=80),)
    yield case(
        "host network", pod_with_host_port("p"), pod("q", host_network=True, containers=(Container(ports=ports),))
    )
    sidecar = Container(restart_policy="Always", ports=(ContainerPort(host_port=80),))
    yield case("port of a sidecar", pod_with_host_port("p"), pod("q", init_containers=(sidecar,)))
    yield Case(
        "port of a running pod",
        plan_of(placed_on("n", pod_with_host_port("p", 81))),
        plan_of(placed_on("n", pod_with_host_port("p"))),
        "host port",
        [node_in_zone("n"), pod_with_host_port("old", node_name="n")],
    )
    daemon = daemon_set("d", containers=(Container(ports=(ContainerPort(host_port=80),)),))
    yield Case(
        "port of a DaemonSet",
        plan_of(new_nodeclaim_of("c", pod_with_host_port("p", 81))),
        plan_of(new_nodeclaim_of("c", pod_with_host_port("p"))),
        "host port",
        [daemon],
    )


def placement_cases() -> Iterable[Case]:
    """Resources, nodes, launches, bookkeeping and host ports."""
    for kind in (_resources_of_nodes, _resources_of_pods, _nodes, _launches, _bookkeeping, _ports):
        yield from kind()
