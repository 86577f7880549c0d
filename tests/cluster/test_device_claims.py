"""The real kube-scheduler allocates devices as planned (SCH §27): it finds devices where we do, and none where we find none.

One control plane without kubelets. The test stands in for drivers: it publishes slices. Scenarios ask twice: every pod alone, and
all pods together, each pinned to the node that is planned for it. New nodes are made of the instance types that a plan launches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import pytest

from controlplane import binaries
from controlplane.harness import ControlPlane
from controlplane.scheduler_harness import SchedulerHarness, manifest_of
from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.meta import Wire
from karpenter.api.resource_claims import ResourceSliceSpec
from karpenter.api.scheduling_constraints import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.whatif.questions import WhatIf
from karpenter.scheduling.whatif.rescheduling import prepare_rescheduling
from support.builders import NOW, node, node_pool, plan, snapshot
from support.device_builders import (
    DRIVER,
    counter_set,
    device,
    device_class,
    exactly,
    gpu_type,
    published,
    resource_claim,
    same,
    slice_spec,
    using,
    with_devices,
)
from support.device_scenarios import DeviceScenario, device_scenarios, partitioned, placed_by
from support.instance_types import shape

pytestmark = pytest.mark.cluster

_GATES = ",".join(
    f"{gate}=true"
    for gate in ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRADeviceTaints", "DRAPrioritizedList")
)
#: Until Kubernetes 1.34 the scheduler waits for the rules about taints, which are not served by default.
_OLDER_KINDS = ("--runtime-config=resource.k8s.io/v1alpha3=true",) if binaries.minor_release() < 35 else ()
ROOM: dict[str, str | int] = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_ALWAYS = 10
_SOAK = 120
#: Kinds whose objects stay until a scenario is over.
_KINDS = {kind.type: kind for kind in (kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_SLICE)}


@pytest.fixture(scope="module")
def harness() -> Iterator[SchedulerHarness]:
    gates = (f"--feature-gates={_GATES}",)
    more = {binaries.API_SERVER: (*gates, *_OLDER_KINDS), binaries.SCHEDULER: gates}
    with ControlPlane(scheduler=True, more_arguments=more) as plane:
        result = SchedulerHarness(plane)
        result.open()
        result.keep(kinds.DEVICE_CLASS.path(), manifest_of(kinds.DEVICE_CLASS, device_class()))
        yield result


@dataclass
class Tally:
    """What became of pods."""

    asked: int = 0
    planned: int = 0
    faults: tuple[str, ...] = ()


def ours(scenario: DeviceScenario, pods: Iterable[Pod]) -> Solution:
    """The plan for these pods on the nodes there are; nothing can be launched."""
    return plan(scenario.classes, scenario.nodes, scenario.slices, scenario.claims, list(pods), types=())


def compare(harness: SchedulerHarness, scenario: DeviceScenario, tally: Tally) -> None:
    """Ask the scheduler about each pod alone, then about all that are planned together."""
    with applied(harness, scenario):
        for each in scenario.pods:
            where = harness.alone(each)
            forget_allocations(harness, scenario)
            wanted = bool(ours(scenario, [each]).placed_on_existing)
            tally.asked += 1
            if bool(where) != wanted:
                tally.faults += (f"{each.metadata.name} alone: scheduler {where or 'nowhere'}, planned {wanted}",)
        # In the plan's order: which devices are left for a pod depends on who came before it.
        planned = ours(scenario, scenario.pods).placed_on_existing
        for host, each in [(group.node_name, each) for group in planned for each in group.pods]:
            tally.planned += 1
            if harness.bound(placed_by(each, host)) != host:
                key = (each.metadata.namespace, each.metadata.name)
                tally.faults += (f"{each.metadata.name} does not bind to {host}: {harness.why(key)}",)


class applied:  # noqa: N801
    """Everything of a scenario but its pods; nothing of it afterwards."""

    def __init__(self, harness: SchedulerHarness, scenario: DeviceScenario) -> None:
        self._arena, self._scenario = harness, scenario

    def __enter__(self) -> None:
        for each in self._scenario.nodes:
            self._arena.add_node(each)
        publish(self._arena, (*self._scenario.slices, *self._scenario.claims))
        self._arena.until_seen()

    def __exit__(self, *_: object) -> None:
        self._arena.clear_namespace("default")
        for wire in (*self._scenario.slices, *self._scenario.claims):
            self._arena.delete(path_of(wire))
        self._arena.remove_nodes()


def publish(harness: SchedulerHarness, wires: Iterable[Wire]) -> None:
    for wire in wires:
        kind = _KINDS[type(wire)]
        harness.keep(kind.path(wire.metadata.namespace), manifest_of(kind, wire))  # type: ignore[attr-defined]


def path_of(wire: Wire) -> str:
    meta = wire.metadata  # type: ignore[attr-defined]
    return _KINDS[type(wire)].path(meta.namespace, meta.name)


def forget_allocations(harness: SchedulerHarness, scenario: DeviceScenario) -> None:
    """The controller that frees claims of pods that are gone is not there: make them anew."""
    for claim in scenario.claims:
        harness.plane.request(
            "PATCH", path_of(claim), {"metadata": {"finalizers": None}}, "application/merge-patch+json"
        )
        harness.delete(path_of(claim))
    publish(harness, scenario.claims)
    harness.until_seen()


def agree(harness: SchedulerHarness, scenarios: Iterable[DeviceScenario]) -> None:
    tally = Tally()
    for scenario in scenarios:
        compare(harness, scenario, tally)
    print(f"device agreement: {tally.asked} asked alone, {tally.planned} planned, {len(tally.faults)} faults")
    assert tally.planned > 5
    assert tally.faults == ()


def test_the_scheduler_finds_devices_where_plans_do(harness: SchedulerHarness) -> None:
    """SCH-784 to SCH-789, K15-159 to K15-166: every planned pod gets its devices, and no other node would have had them."""
    agree(harness, islice(device_scenarios(_ALWAYS), _ALWAYS))


@pytest.mark.soak
def test_the_scheduler_finds_devices_where_plans_do_in_many_scenarios(harness: SchedulerHarness) -> None:
    """The same with scenarios of further seeds."""
    agree(harness, islice(device_scenarios(_ALWAYS + _SOAK), _ALWAYS, None))


def test_the_scheduler_gives_devices_that_several_nodes_reach_as_planned(harness: SchedulerHarness) -> None:
    """K15-161, K15-164, K15-170: one device that all nodes reach and one of a zone, for two of three pods."""
    in_zone = NodeSelectorRequirement(key=labels.ZONE, operator="In", values=("z2",))
    where = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(in_zone,)),))
    names = ("a", "b", "c")
    scenario = DeviceScenario(
        "fabric",
        tuple(node(f"n-{zone}", ROOM, labels={labels.ZONE: zone}) for zone in ("z1", "z2")),
        (
            published("fabric", slice_spec(device("d"), pool="fabric", all_nodes=True)),
            published("rack", slice_spec(device("d"), pool="rack", node_selector=where)),
        ),
        tuple(resource_claim(name, exactly()) for name in names),
        tuple(using(name, name) for name in names),
    )
    tally = Tally()
    compare(harness, scenario, tally)
    assert (tally.asked, tally.planned, tally.faults) == (3, 2, ())


def test_the_scheduler_gives_a_moved_pod_its_device_again_where_its_node_may_go(harness: SchedulerHarness) -> None:
    """K15-170, K15-173: one device of zone z1 and a pod that holds it; its successor is bound where a move is planned only."""
    in_zone = NodeSelectorRequirement(key=labels.ZONE, operator="In", values=("z1",))
    where = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=(in_zone,)),))
    zones = {"from": "z1", "near": "z1", "far": "z2"}
    scenario = DeviceScenario(
        "moved",
        tuple(node(name, ROOM, labels={labels.ZONE: zone}) for name, zone in zones.items()),
        (published("near-rack", slice_spec(device("d"), pool="near-rack", node_selector=where)),),
        (resource_claim("held", exactly()),),
        (using("p", "held"),),
    )
    (pod,) = scenario.pods
    with applied(harness, scenario):
        assert harness.bound(placed_by(pod, "from")) == "from", harness.why(("default", "p"))
        running = kinds.POD.decode(read(harness, kinds.POD.path("default", "p")))
        claim = kinds.RESOURCE_CLAIM.decode(read(harness, kinds.RESOURCE_CLAIM.path("default", "held")))
        planned, given = {}, {}
        for target in ("near", "far"):
            moving = msgspec.structs.replace(placed_by(pod, target), metadata=running.metadata)
            bound = msgspec.structs.replace(moving, spec=msgspec.structs.replace(moving.spec, node_name="from"))
            cluster = snapshot(scenario.classes, scenario.nodes, scenario.slices, claim, bound)
            base = prepare_rescheduling(build_problem(cluster, {}, NOW), {})
            key = next(each.key for each in cluster.nodes if each.name == "from")
            planned[target] = base.place_on_existing(WhatIf(((bound,),), frozenset({key}))) is not None
        for target in ("near", "far"):
            harness.clear_namespace("default")
            forget_allocations(harness, scenario)
            given[target] = harness.bound(placed_by(pod, target)) == target
    assert planned == given == {"near": True, "far": False}


def read(harness: SchedulerHarness, path: str) -> bytes:
    return json.dumps(harness.plane.request("GET", path)).encode()


# -- new nodes ----------------------------------------------------------------------------------------------------------------


def carried_out(
    harness: SchedulerHarness, types: Sequence[InstanceType], claims: Sequence[Wire], pods: Sequence[Pod]
) -> Solution:
    """Launch what a plan says: its nodes come with the devices of their type, and all pods bind where they are planned."""
    result = plan(node_pool(), device_class(), list(claims), list(pods), types=types)
    assert not result.unschedulable
    by_name = {each.name: each for each in types}
    publish(harness, claims)
    slices = []
    try:
        for launched in result.new_claims:
            harness.add_node(node(launched.name, ROOM))
            for number, spec in enumerate(by_name[launched.instance_types[0]].devices.slices):
                slices.append(published(f"{launched.name}-{number}", of_node(spec, launched.name)))
        publish(harness, slices)
        harness.until_seen()
        for launched in result.new_claims:
            for each in launched.pods:
                assert harness.bound(placed_by(each, launched.name)) == launched.name, harness.why(
                    ("default", each.metadata.name)
                )
    finally:
        harness.clear_namespace("default")
        for wire in (*slices, *claims):
            harness.delete(path_of(wire))
        harness.remove_nodes()
    return result


def of_node(spec: ResourceSliceSpec, name: str) -> ResourceSliceSpec:
    """What the driver publishes on a node of the type."""
    return slice_spec(
        *spec.devices,
        node=name,
        slices=spec.pool.resource_slice_count,
        counters=spec.shared_counters,
        driver=spec.driver,
    )


def test_pods_share_gpus_by_memory(harness: SchedulerHarness) -> None:
    """K15-165: GPU sharing, four pods of 10 Gi on each GPU of 40 Gi."""
    shared = device("gpu", capacity={"memory": "40Gi"}, allow_multiple_allocations=True)
    kind = with_devices(shape("mps", {"cpu": 8, "memory": "32Gi", "pods": 110}), slice_spec(shared))
    claims = [resource_claim(f"share-{at}", exactly(capacity={"memory": "10Gi"})) for at in range(6)]
    pods = [using(f"share-{at}", f"share-{at}") for at in range(6)]
    assert len(carried_out(harness, [kind], claims, pods).new_claims) == 2


def test_gpus_come_in_pairs_by_link(harness: SchedulerHarness) -> None:
    """K15-159: four pairs that share a link take two nodes of four GPUs."""
    claims = [resource_claim(f"pair-{at}", exactly("r", 2), constraints=[same("link")]) for at in range(4)]
    pods = [using(f"pair-{at}", f"pair-{at}") for at in range(4)]
    assert len(carried_out(harness, [gpu_type("g4", 4, links=2)], claims, pods).new_claims) == 2


def test_partitions_share_a_gpu(harness: SchedulerHarness) -> None:
    """K15-166: a half and four small partitions are one GPU; the next small one needs another."""
    small = [device(f"small-{at}", {"kind": "small"}, takes={"gpu": {"slices": "1"}}) for at in range(7)]
    halves = [device(f"half-{at}", {"kind": "half"}, takes={"gpu": {"slices": "3"}}) for at in range(2)]
    parts = partitioned(counter_set("gpu", slices="7"), *halves, *small)
    kind = with_devices(shape("mig", {"cpu": 8, "memory": "32Gi", "pods": 110}), *parts)
    selector = f'device.attributes["{DRIVER}"].kind'
    wanted = ["half", *["small"] * 5]
    claims = [
        resource_claim(f"part-{at}", exactly("r", 1, f'{selector} == "{each}"')) for at, each in enumerate(wanted)
    ]
    pods = [using(f"part-{at}", f"part-{at}") for at in range(len(wanted))]
    assert len(carried_out(harness, [kind], claims, pods).new_claims) == 2
