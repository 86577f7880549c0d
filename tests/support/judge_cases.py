"""Plans that are lawful, and the same with one fault planted, for the judge of plans."""

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
from support.judge_world import World

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


def buy(
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


def put(name: str, *pods: Pod) -> PlacedPods:
    return PlacedPods(name, name, pods)


def plan_of(*parts: NewNodeClaim | PlacedPods | UnschedulablePod) -> Solution:
    return Solution(
        new_claims=tuple(part for part in parts if isinstance(part, NewNodeClaim)),
        placed_on_existing=tuple(part for part in parts if isinstance(part, PlacedPods)),
        unschedulable=tuple(part for part in parts if isinstance(part, UnschedulablePod)),
    )


@dataclass(frozen=True)
class Case:
    """A lawful plan, the same with one fault planted, and a word of the complaint."""

    name: str
    lawful: Solution
    broken: Solution
    word: str
    there: Sequence[object] = ()
    pools: Sequence[NodePool] = (POOL,)
    more: Mapping[str, object] = field(default_factory=dict)

    def world(self, plan: Solution) -> World:
        groups = (*plan.new_claims, *plan.placed_on_existing)
        waiting = {p.metadata.uid: p for g in groups for p in g.pods} | {
            unschedulable_pod.pod.metadata.uid: unschedulable_pod.pod for unschedulable_pod in plan.unschedulable
        }
        things = [
            thing for element in self.there for thing in (element if isinstance(element, Iterable) else [element])
        ]
        kinds: dict[str, list[object]] = {"Pod": list(waiting.values())}
        for thing in things:
            kinds.setdefault(type(thing).__name__, []).append(thing)
        return World(
            pods=tuple(kinds["Pod"]),  # type: ignore[arg-type]
            pools=tuple(self.pools),
            nodes=tuple(kinds.get("Node", ())),  # type: ignore[arg-type]
            claims=tuple(kinds.get("NodeClaim", ())),  # type: ignore[arg-type]
            daemons=tuple(kinds.get("DaemonSet", ())),  # type: ignore[arg-type]
            types=TYPES,
            well_known=WELL_KNOWN,
            **self.more,  # type: ignore[arg-type]
        )


def standing(name: str, zone: str = "z1", cpu: str = "4", **more: object) -> object:
    own = {ZONE: zone, labels.ARCH: "amd64", labels.OS: "linux"}
    return node(name, {"cpu": cpu, "memory": "8Gi"}, labels=own, **more)  # type: ignore[arg-type]


def selector(match: Mapping[str, str] = APP, **more: object) -> LabelSelector:
    return LabelSelector(match_labels=match, **more)  # type: ignore[arg-type]


def about(key: str = ZONE, match: Mapping[str, str] = APP, **more: object) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key=key, label_selector=selector(match), **more)  # type: ignore[arg-type]


def liking(*terms: PodAffinityTerm) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(required=terms))


def shunning(*terms: PodAffinityTerm) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required=terms))


def even(key: str = ZONE, skew: int = 1, match: Mapping[str, str] = APP, **more: object) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable="DoNotSchedule",
        label_selector=selector(match),
        **more,  # type: ignore[arg-type]
    )


def web(name: str, cpu: str = "100m", *, own: Mapping[str, str] = APP, space: str = "default", **spec: object) -> Pod:
    return pod(name, {"cpu": cpu}, meta={"labels": own, "namespace": space}, **spec)  # type: ignore[arg-type]


def spreading(name: str, *constraints: TopologySpreadConstraint, **more: object) -> Pod:
    return web(name, topology_spread_constraints=constraints or (even(),), **more)  # type: ignore[arg-type]


def porter(name: str, port: int = 80, ip: str = "", **more: object) -> Pod:
    return pod(name, containers=(Container(ports=(ContainerPort(host_port=port, host_ip=ip),)),), **more)  # type: ignore[arg-type]


def _resources() -> Iterable[Case]:
    one, big = web("one", "1"), web("big", "4")
    yield Case(
        "cpu of a new machine",
        plan_of(buy("c", one, types=("small", "large"))),
        plan_of(buy("c", big, types=("small", "large"))),
        "cpu",
    )
    yield Case(
        "cpu of an existing machine",
        plan_of(put("n", one)),
        plan_of(put("n", web("p", "3"), web("q", "2"))),
        "cpu",
        [standing("n")],
    )
    running = web("running", "3", node_name="n")
    yield Case(
        "cpu beside running pods",
        plan_of(put("n", one)),
        plan_of(put("n", web("p", "2"))),
        "cpu",
        [standing("n"), running],
    )
    only_arm = daemon_set("d", {"cpu": "7"}, affinity=where(labels.ARCH, "In", "arm64"))
    yield Case(
        "cpu beside a DaemonSet of one of the types",
        plan_of(buy("c", one, types=("large",))),
        plan_of(buy("c", one, types=("large", "arm"))),
        "cpu",
        [only_arm],
    )
    coming = daemon_set("d", {"cpu": "3500m"})
    yield Case(
        "cpu beside a DaemonSet still to come",
        plan_of(buy("c", one)),
        plan_of(put("n", one)),
        "cpu",
        [standing("n"), coming],
    )
    many = [web(f"p{number}") for number in range(6)]
    yield Case("number of pods", plan_of(buy("c", *many)), plan_of(buy("c", *many, types=("small",))), "pods")
    first = pod("p", init_containers=(container({"cpu": "5"}),))
    yield Case("cpu of an init container", plan_of(buy("c", first)), plan_of(buy("c", first, types=("small",))), "cpu")
    sidecar = container({"cpu": "1"}, restart_policy="Always")
    beside = pod("p", {"cpu": "1500m"}, init_containers=(sidecar,))
    yield Case("cpu of a sidecar", plan_of(buy("c", beside)), plan_of(buy("c", beside, types=("small",))), "cpu")
    level = pod("p", {"cpu": "1"}, resources=ResourceRequirements(requests={"cpu": "3"}))
    yield Case("cpu of the pod as a whole", plan_of(buy("c", level)), plan_of(buy("c", level, types=("small",))), "cpu")
    heavy = pod("p", {"cpu": "1"}, overhead={"cpu": "1"})
    yield Case("overhead", plan_of(buy("c", heavy)), plan_of(buy("c", heavy, types=("small",))), "cpu")


def _nodes() -> Iterable[Case]:
    one, firm = web("p"), web("p", tolerations=(tolerating("dedicated"),))
    tainted = node_pool("tainted", template={"taints": (pool_taint("dedicated"),)})
    yield Case(
        "taint of a pool",
        plan_of(buy("c", firm, pool=tainted)),
        plan_of(buy("c", one, pool=tainted)),
        "taint",
        pools=[tainted],
    )
    marked = standing("n", taints=[taint("dedicated")])
    yield Case("taint of a node", plan_of(put("n", firm)), plan_of(put("n", one)), "taint", [marked])
    wrong = web("p", tolerations=(tolerating("dedicated", "Equal", "other"),))
    yield Case("taint of another value", plan_of(put("n", firm)), plan_of(put("n", wrong)), "taint", [marked])
    shut = standing("shut")
    shut = replaced(shut, spec=replaced(shut.spec, unschedulable=True))  # type: ignore[attr-defined, arg-type]
    yield Case("cordon", plan_of(put("n", one)), plan_of(put("shut", one)), "cordoned", [standing("n"), shut])
    picky = web("p", node_selector={ZONE: "z1"})
    yield Case("node selector", plan_of(buy("c", picky)), plan_of(buy("c", picky, zones=("z1", "z2"))), "selector")
    averse = web("p", affinity=where(ZONE, "NotIn", "z2"))
    yield Case("node affinity", plan_of(buy("c", averse)), plan_of(buy("c", averse, zones=("z1", "z2"))), "affinity")
    strong = web("p", affinity=where("integer", "Gt", "4"))
    yield Case(
        "node affinity by numbers",
        plan_of(buy("c", strong)),
        plan_of(buy("c", strong, types=("small", "large"))),
        "affinity",
    )
    unlabelled = web("p", affinity=where("rack", "Exists"))
    yield Case(
        "a label the machine will not have",
        plan_of(buy("c", unlabelled, own={"rack": "r"})),
        plan_of(buy("c", unlabelled)),
        "affinity",
    )


def _purchases() -> Iterable[Case]:
    one = web("p")
    lawful = plan_of(buy("c", one))
    yield Case("sold out", lawful, plan_of(buy("c", one, types=("large", "rare"))), "cannot be bought")
    yield Case("not offered", lawful, plan_of(buy("c", one, zones=("z3",), kinds=("spot",))), "cannot be bought")
    narrow = node_pool("np", [wanted(ZONE, "In", "z1")])
    yield Case(
        "requirements of the pool",
        lawful,
        plan_of(buy("c", one, zones=("z1", "z2"))),
        "requirements of its pool",
        pools=[narrow],
    )
    tainted = node_pool("np", template={"taints": (pool_taint("dedicated"),)})
    firm = web("p", tolerations=(tolerating("dedicated"),))
    yield Case(
        "taints of the pool",
        plan_of(buy("c", firm, pool=tainted)),
        plan_of(buy("c", firm)),
        "other taints",
        pools=[tainted],
    )
    labelled = node_pool("np", labels={"team": "a"})
    yield Case(
        "labels of the pool",
        plan_of(buy("c", one, pool=labelled)),
        plan_of(buy("c", one)),
        "lacks labels",
        pools=[labelled],
    )
    broad = node_pool("np", [wanted(labels.INSTANCE_TYPE, "Exists", least=2)])
    yield Case("minValues", plan_of(buy("c", one, types=("large", "arm"))), lawful, "too few values", pools=[broad])
    for what, limits in (("cpu", {"cpu": "10"}), ("nodes", {"nodes": "1"})):
        two = plan_of(buy("c", one), buy("d", web("q")))
        yield Case(f"limits on {what}", lawful, two, "limits", pools=[node_pool("np", limits=limits)])
    taken = claim("old", None, [wanted(labels.INSTANCE_TYPE, "In", "small", "large")])
    yield Case(
        "limits a claim in flight uses at worst",
        plan_of(buy("c", one, types=("small",))),
        lawful,
        "limits",
        [taken],
        [node_pool("np", limits={"cpu": "12"})],
    )


def _bookkeeping() -> Iterable[Case]:
    one, other = web("p"), web("q")
    lawful = plan_of(buy("c", one))
    yield Case("placed twice", lawful, plan_of(buy("c", one), buy("d", one)), "exactly once")
    yield Case("two claims of one name", lawful, plan_of(buy("c", one), buy("c", other)), "used twice")
    yield Case("no such machine", lawful, plan_of(put("nowhere", one)), "not there")
    leaving = standing("n", deleted=True)
    yield Case("a machine that leaves", lawful, plan_of(put("n", one)), "leaves", [leaving])
    why = (UnschedulableReason(NoNodePool()),)
    yield Case(
        "left out for no reason",
        plan_of(UnschedulablePod(one, why)),
        plan_of(UnschedulablePod(one, ())),
        "without a reason",
    )


def _ports() -> Iterable[Case]:
    def case(name: str, one: Pod, other: Pod) -> Case:
        return Case(name, plan_of(buy("c", one), buy("d", other)), plan_of(buy("c", one, other)), "host port")

    yield case("one host port", porter("p"), porter("q"))
    yield case("every address and one", porter("p"), porter("q", ip="10.0.0.1"))
    yield case("every IPv6 address and one", porter("p", ip="::"), porter("q", ip="10.0.0.1"))
    ports = (ContainerPort(container_port=80),)
    yield case("host network", porter("p"), pod("q", host_network=True, containers=(Container(ports=ports),)))
    sidecar = Container(restart_policy="Always", ports=(ContainerPort(host_port=80),))
    yield case("port of a sidecar", porter("p"), pod("q", init_containers=(sidecar,)))
    yield Case(
        "port of a running pod",
        plan_of(put("n", porter("p", 81))),
        plan_of(put("n", porter("p"))),
        "host port",
        [standing("n"), porter("old", node_name="n")],
    )
    daemon = daemon_set("d", containers=(Container(ports=(ContainerPort(host_port=80),)),))
    yield Case(
        "port of a DaemonSet", plan_of(buy("c", porter("p", 81))), plan_of(buy("c", porter("p"))), "host port", [daemon]
    )


def placement_cases() -> Iterable[Case]:
    """Resources, nodes, purchases, bookkeeping and host ports."""
    for kind in (_resources, _nodes, _purchases, _bookkeeping, _ports):
        yield from kind()
