"""Behavior of the simulated provider beyond the contract."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from karpenter.api.core import Node, NodeStatus
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus, NodePoolTaint
from karpenter.api.kinds import CONFIG_MAP, KWOK_NODE_CLASS, NODE, NODE_CLAIM
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.kube.errors import ServerUnavailable
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.repair_policies import RepairAction
from karpenter.model.requirements import Requirements, requirement, requirements_from_labels
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from karpenter.providers.simulated import Faults, SimulatedProvider, fault_rules, simulated_offerings
from support.builders import replaced
from support.simulated_provider_cluster import CLASS, SMALL, ProviderCluster, claim_spec, run_in_virtual_time, types

SPOT = {labels.CAPACITY_TYPE: ("spot",)}
ON_DEMAND = {labels.CAPACITY_TYPE: ("on-demand",)}


def claim(requirements: dict[str, tuple[str, ...]], requests: dict[str, str]) -> NodeClaim:
    return NodeClaim(metadata=ObjectMeta(name="one", uid="u"), spec=claim_spec(requirements, requests))


def launched_offering(requirements: dict[str, tuple[str, ...]], requests: dict[str, str]) -> tuple[str, str, str]:
    by_name = {instance_type.name: instance_type for instance_type in types()}
    choice = simulated_offerings.launchable_offerings(
        by_name, claim(requirements, requests), lambda instance_type, offering: True
    ).launchable[0]
    return choice.instance_type.name, choice.offering.zone, choice.offering.capacity_type


def test_the_cheapest_fitting_offering_is_launched_and_ties_are_resolved_by_name_and_zone() -> None:
    """OPS-256, OPS-267."""
    assert launched_offering({}, SMALL) == ("m-2x", "zone-a", "spot")
    assert launched_offering(ON_DEMAND, SMALL) == ("m-2x", "zone-a", "on-demand")
    assert launched_offering({labels.ZONE: ("zone-b",)}, SMALL) == ("m-2x", "zone-b", "spot")
    assert launched_offering({}, {"cpu": "2"}) == ("m-4x", "zone-a", "spot")  # overhead leaves 1.9 cores of two
    assert launched_offering({labels.INSTANCE_TYPE: ("m-16x", "m-4x")}, SMALL) == ("m-4x", "zone-a", "spot")


def test_the_error_counts_the_excluded_types_by_reason() -> None:
    """OPS-226, OPS-267."""
    offerings = simulated_offerings.launchable_offerings(
        {instance_type.name: instance_type for instance_type in types()},
        claim(SPOT, {"cpu": "8"}),
        lambda instance_type, offering: False,
    )
    assert offerings.launchable == []
    assert offerings.rejections == {
        simulated_offerings.SimulatedOfferingRejection.INCOMPATIBLE: 6,
        simulated_offerings.SimulatedOfferingRejection.TOO_SMALL: 4,
        simulated_offerings.SimulatedOfferingRejection.UNAVAILABLE: 2,
    }
    assert "2 not available now" in str(offerings)


def test_an_unknown_well_known_label_is_refused_and_a_custom_label_is_not() -> None:
    by_name = {instance_type.name: instance_type for instance_type in types()}

    def count(requirements: dict[str, tuple[str, ...]]) -> int:
        return len(
            simulated_offerings.launchable_offerings(
                by_name, claim(requirements, SMALL), lambda instance_type, offering: True
            ).launchable
        )

    assert count({"karpenter.k8s.aws/instance-gpu-name": ("t4",)}) == 0
    assert count({"example.com/team": ("blue",)}) == 12
    assert count({labels.NODE_POOL: ("default",)}) == 12


def test_the_instance_and_its_node_have_the_documented_labels() -> None:
    """OPS-258, OPS-259, OPS-265."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        one = await cluster.claim("web-abc12", ON_DEMAND, SMALL)
        instance = await provider.create(one)
        await asyncio.sleep(5)
        node = await cluster.node()
        assert instance.provider_id == f"kwok://{node.metadata.name}" == node.spec.provider_id
        assert (
            node.metadata.labels.items()
            >= {
                labels.NODE_POOL: "default",
                labels.INSTANCE_TYPE: "m-2x",
                labels.ZONE: "zone-a",
                labels.CAPACITY_TYPE: "on-demand",
                labels.ARCH: "amd64",
                labels.OS: "linux",
                labels.HOSTNAME: "web-abc12",
                "karpenter.kwok.sh/instance-family": "m",
                "kwok.x-k8s.io/node": "fake",
                "kwok-partition": "a",
                "eks-node-viewer/instance-price": "0.100000",
            }.items()
        )
        assert node.metadata.annotations["kwok.x-k8s.io/node"] == "fake"
        assert node.status.capacity == {"cpu": "2", "memory": "8Gi", "pods": "110"}
        assert node.status.allocatable == {"cpu": "1900m", "memory": "8182Mi", "pods": "110"}

    run_in_virtual_time(scenario)


def test_an_instance_registers_with_the_claims_taints() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        taints = (NodePoolTaint(key="team", value="blue", effect="NoSchedule"),)
        spec = msgspec.structs.replace(claim_spec({}, SMALL, taints), startup_taints=(taints[0],))
        one = await cluster.kube.create(NODE_CLAIM, NodeClaim(metadata=ObjectMeta(name="one"), spec=spec))
        await provider.create(one)
        await asyncio.sleep(5)
        keys = [taint.key for taint in (await cluster.node()).spec.taints]
        assert keys == ["karpenter.sh/unregistered", "team", "team"]

    run_in_virtual_time(scenario)


def test_refused_offerings_are_unavailable_for_three_minutes() -> None:
    """OPS-014."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        before = await provider.instance_types(cluster.pool)
        await cluster.exhaust_capacity(SPOT)
        instance = await provider.create(await cluster.claim("one", {}, SMALL))
        assert instance.labels[labels.CAPACITY_TYPE] == "on-demand"
        during = await provider.instance_types(cluster.pool)
        assert during is await provider.instance_types(cluster.pool)
        lacking = [
            (instance_type.name, offering.zone, offering.capacity_type)
            for instance_type in during
            for offering in instance_type.offerings
            if not offering.available
        ]
        assert ("m-2x", "zone-a", "spot") in lacking
        assert {kind for _, _, kind in lacking} == {"spot"}
        await asyncio.sleep(timedelta(minutes=3).total_seconds())
        assert await provider.instance_types(cluster.pool) is before

    run_in_virtual_time(scenario)


def test_a_fault_rule_with_a_count_applies_that_often() -> None:
    """OPS-269."""

    async def scenario(cluster: ProviderCluster) -> None:
        rule = fault_rules.LaunchErrorRule(reason="UnauthorizedOperation", message="not allowed", count=1)
        cluster.set_faults(Faults(launch_errors=(rule,)))
        provider = await cluster.provider()
        one = await cluster.claim("one", {}, SMALL)
        with pytest.raises(LaunchFailed, match="creating nodeclaim, not allowed") as caught:
            await provider.create(one)
        assert caught.value.reason == "UnauthorizedOperation"
        assert (await provider.create(one)).claim_name == "one"

    run_in_virtual_time(scenario)


def test_instances_whose_claim_is_missing_are_terminated() -> None:
    """OPS-266."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        kept = await provider.create(await cluster.claim("kept", {}, SMALL))
        lost = await provider.create(await cluster.claim("lost", {}, SMALL))
        await cluster.kube.delete(NODE_CLAIM, "lost")
        assert await provider.collect_garbage() == ()  # too young: its claim may not be visible yet
        await asyncio.sleep(31)
        assert await provider.collect_garbage() == (lost.provider_id,)
        assert await provider.collect_garbage() == ()
        await cluster.finish_pending_work()
        assert [instance.provider_id for instance in await provider.list()] == [kept.provider_id]
        assert (await cluster.node()).spec.provider_id == kept.provider_id

    run_in_virtual_time(scenario)


def test_api_faults_are_provider_errors() -> None:
    """OPS-230."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        one = await cluster.claim("one", {}, SMALL)
        cluster.kube.server.inject_fault(ServerUnavailable("down"), verb="create", plural="configmaps")
        with pytest.raises(ProviderError, match=r"storing simulated instance .*down"):
            await provider.create(one)
        cluster.kube.server.inject_fault(ServerUnavailable("down"), verb="list", plural="configmaps")
        with pytest.raises(ProviderError, match="listing simulated instances, down"):
            await provider.list()

    run_in_virtual_time(scenario)


def test_the_node_of_a_claim_fits_the_requests_of_the_claim() -> None:
    """OPS-P7: 3 CPUs and 11 Gi fit the allocatable resources of the chosen type, overhead deducted."""
    requests = {"cpu": "3", "memory": "11Gi"}

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        instance = await provider.create(await cluster.claim("one", {}, requests))
        assert res.fits(res.parse_resources(requests), res.parse_resources(instance.allocatable))

    run_in_virtual_time(scenario)


def test_requests_that_are_not_quantities_are_reported() -> None:
    with pytest.raises(ProviderError, match="claim one asks for 'much' is not a quantity"):
        simulated_offerings.launchable_offerings({}, claim({}, {"cpu": "much"}), lambda instance_type, offering: True)


def test_a_class_with_an_invalid_delay_is_not_ready() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        one = await cluster.claim("one", {}, SMALL)
        with pytest.raises(NodeClassNotReady, match="nodeRegistrationDelay"):
            await provider.create(one)

    run_in_virtual_time(scenario, delay="9999999999999h")


def test_a_class_being_deleted_is_insufficient_capacity() -> None:
    """OPS-017."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        one = await cluster.claim("one", {}, SMALL)
        await cluster.kube.patch(KWOK_NODE_CLASS, CLASS.name, {"metadata": {"finalizers": ["example.com/hold"]}})
        await cluster.delete_class()
        with pytest.raises(InsufficientCapacity, match="being deleted"):
            await provider.create(one)

    run_in_virtual_time(scenario)


def test_an_offering_that_is_unavailable_in_the_file_is_not_launched() -> None:
    """``available`` of the instance type file applies."""

    async def scenario(cluster: ProviderCluster) -> None:
        nothing = tuple(
            replace(
                instance_type,
                offerings=tuple(replace(offering, available=False) for offering in instance_type.offerings),
            )
            for instance_type in types()
        )
        provider = SimulatedProvider(cluster.kube, cluster.clock, nothing)
        with pytest.raises(InsufficientCapacity, match="12 not available now"):
            await provider.create(await cluster.claim("one", {}, SMALL))
        assert (await cluster.kube.list(CONFIG_MAP, "kube-system")).items == ()

    run_in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"lost: [{after: soon}]", r"faults.yaml: lost\[0\].after: 'soon' is not a duration"),
        (b"lost: [{count: 1}]", r"faults.yaml: lost\[0\]: .*required field `after`"),
        (b"losses: []", "faults.yaml: .*unknown field `losses`"),
        (b"launchErrors: [{count: 0}]", r"faults.yaml: launchErrors\[0\].count: Expected `int` >= 1"),
        (b"{", "faults.yaml: "),
    ],
)
def test_an_error_in_a_fault_file_is_one_line_with_its_position(content: bytes, message: str) -> None:
    """OPS-269."""
    with pytest.raises(fault_rules.FaultsError, match=message) as caught:
        fault_rules.parse_faults(content, "faults.yaml")
    assert "\n" not in str(caught.value)


def test_the_documented_fault_file_is_parsed() -> None:
    """OPS-269: the example in the module's documentation."""
    example = (fault_rules.__doc__ or "").partition("process.\n")[2]
    script = fault_rules.parse_faults(example.encode())
    assert script.insufficient_capacity[0].count == 3
    assert script.interruptions[0].notice == "2m"
    assert [rule.never for rule in script.registration] == [False, True]


def reserving(units: int) -> tuple[InstanceType, ...]:
    """The types, each also with a reserved offering of one reservation, which is the cheapest."""
    place = {labels.ZONE: "zone-a", labels.CAPACITY_TYPE: labels.RESERVED, labels.RESERVATION_ID: "r1"}
    extra = Offering(requirements_from_labels(place), 0.0001, reservation_capacity=units)
    kinds = requirement(labels.CAPACITY_TYPE, "In", ("on-demand", "spot", "reserved"))
    own = Requirements((kinds, requirement(labels.RESERVATION_ID, "In", ("r1",))))
    keys = (labels.CAPACITY_TYPE, labels.RESERVATION_ID)
    return tuple(
        replace(
            instance_type,
            requirements=instance_type.requirements.without(keys).intersect(own),
            offerings=(*instance_type.offerings, extra),
        )
        for instance_type in types()
    )


def test_instances_use_and_return_the_units_of_a_reservation() -> None:
    """SCH-581, OPS-256"""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = SimulatedProvider(cluster.kube, cluster.clock, reserving(1))
        requirements = {labels.CAPACITY_TYPE: ("reserved",), labels.RESERVATION_ID: ("r1",)}

        async def units() -> set[int | None]:
            sold = [
                offering
                for instance_type in await provider.instance_types(cluster.pool)
                for offering in instance_type.offerings
            ]
            return {offering.reservation_capacity for offering in sold if offering.reservation_id}

        assert await units() == {1}
        instance = await provider.create(await cluster.claim("first", requirements, SMALL))
        assert (instance.labels[labels.RESERVATION_ID], await units()) == ("r1", {0})
        with pytest.raises(InsufficientCapacity):
            await provider.create(await cluster.claim("second", requirements, SMALL))
        await provider.delete(instance.provider_id)
        assert await units() == {1}

    run_in_virtual_time(scenario)


def test_an_instance_has_the_capacity_of_its_offering() -> None:
    """SCH-117, OPS-238: an offering that does not fit the requests is not used, even if others of its type fit."""
    small = types()[0]
    dear = max(small.offerings, key=lambda offering: offering.price_per_hour)
    offerings = tuple(
        replace(offering, capacity_override={"cpu": 64_000}) if offering == dear else offering
        for offering in small.offerings
    )
    by_name = {small.name: replace(small, offerings=offerings)}

    def cheapest(requests: dict[str, str]) -> simulated_offerings.SimulatedOffering:
        found = simulated_offerings.launchable_offerings(by_name, claim({}, requests), lambda *_: True)
        return found.launchable[0]

    assert cheapest({"cpu": "100m"}).instance_type.capacity == small.capacity
    assert cheapest({"cpu": "32"}).instance_type.capacity == {**small.capacity, "cpu": 64_000}
    assert cheapest({"cpu": "32"}).offering.zone == dear.zone


def test_launches_alternate_between_zones_of_equal_price() -> None:
    """OPS-256 leaves ties within a type open; they are spread, so that no zone gets all nodes of a plan."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = await cluster.provider()
        launched = [await provider.create(await cluster.claim(f"claim-{number}", {}, SMALL)) for number in range(6)]
        assert Counter(instance.labels[labels.ZONE] for instance in launched) == {"zone-a": 3, "zone-b": 3}

    run_in_virtual_time(scenario)


def test_a_reboot_gives_the_node_another_boot_id_and_nothing_else() -> None:
    """K15-521: derived from the operation; a claim without a node name is refused."""

    async def scenario(cluster: ProviderCluster) -> None:
        provider = SimulatedProvider(cluster.kube, cluster.clock, types())
        node = Node(
            metadata=ObjectMeta(name="n"), status=NodeStatus(conditions=(Condition(type="Ready", status="True"),))
        )
        await cluster.kube.create(NODE, node)
        made = claim({}, SMALL)
        with pytest.raises(ProviderError, match="rebooting nodeclaim, node is not registered"):
            await provider.reboot(made, "op-1")
        await provider.reboot(replaced(made, status=NodeClaimStatus(node_name="n")), "op-1")
        after = await cluster.kube.get(NODE, "n")
        assert after.status.node_info.boot_id == "kwok-op-1"
        assert after.status.conditions == node.status.conditions

    run_in_virtual_time(scenario)


def test_the_repair_policies_of_the_simulated_provider() -> None:
    """K15-520: NotReady without a pattern is the only fallback; two conditions are for tests, of which one reboots."""
    found = {
        (policy.condition_type, policy.condition_status): (
            policy.reason_pattern,
            policy.toleration,
            policy.drain_bound,
            policy.action,
            policy.priority,
        )
        for policy in SimulatedProvider(None, None, types()).repair_policies()
    }
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    assert found == {
        ("Ready", "False"): ("", 10 * minute, timedelta(0), RepairAction.REPLACE, 0),
        ("Ready", "Unknown"): (".*", 10 * minute, timedelta(0), RepairAction.REPLACE, 0),
        ("KWOKUnhealthy", "True"): (".*", 30 * second, 45 * second, RepairAction.REPLACE, 0),
        ("KWOKRebootRequired", "True"): (".*", 30 * second, minute, RepairAction.REBOOT, 0),
    }


def _all_launchable(
    provider: SimulatedProvider, wanted: NodeClaim, sold_out: set[tuple[str, str, str]]
) -> list[simulated_offerings.SimulatedOffering]:
    found = simulated_offerings.launchable_offerings(
        {instance_type.name: instance_type for instance_type in types()},
        wanted,
        lambda own, offering: (own.name, offering.zone, offering.capacity_type) not in sold_out,
    )
    launches = provider._launches_by_zone
    return sorted(
        found.launchable,
        key=lambda own: (own.offering.price_per_hour, own.instance_type.name, launches[own.offering.zone]),
    )


@pytest.mark.parametrize("seed", range(10))
def test_cached_offerings_have_the_order_of_all_sorted_offerings(seed: int) -> None:
    """A search in cached, sorted offerings gives the same result as a search in all offerings."""
    dice = random.Random(seed)
    requirements: tuple[dict[str, tuple[str, ...]], ...] = ({}, SPOT, ON_DEMAND, {labels.ZONE: ("zone-b",)})
    keys = [(own.name, offering.zone, offering.capacity_type) for own in types() for offering in own.offerings]

    async def scenario(cluster: ProviderCluster) -> None:
        provider, sold_out = await cluster.provider(), set[tuple[str, str, str]]()
        for _ in range(30):
            wanted = claim(dice.choice(requirements), {"cpu": dice.choice(("100m", "2", "3", "8", "64"))})
            tried = list(provider._launchable(wanted, await provider._availability()))
            assert tried == _all_launchable(provider, wanted, sold_out)
            provider._launches_by_zone[dice.choice(("zone-a", "zone-b"))] += 1
            if dice.random() < 0.2:
                sold_out.add(dice.choice(keys))
                provider._unavailable = dict.fromkeys(sold_out, cluster.clock.now() + timedelta(hours=1))

    run_in_virtual_time(scenario)
