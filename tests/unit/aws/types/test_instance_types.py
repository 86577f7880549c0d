"""Instance types and offerings of a class."""

from __future__ import annotations

import msgspec
import pytest

from karpenter.api.ec2_node_class import (
    ConnectionTracking,
    CpuOptions,
    EnclaveOptions,
    NetworkInterface,
    Subnet,
)
from karpenter.api.node_overlay import NodeOverlay
from karpenter.instancetypes.well_known_labels import INSTANCE_LABELS
from karpenter.model import labels
from karpenter.providers.aws.ec2_descriptions import PlacementGroupInfoEntry
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.aws.instancetype.ec2_pricing import overlay_prices
from support.ec2_instance_types import (
    IDS,
    ZONES,
    A,
    B,
    C,
    FakeRegion,
    instance_type_fixture,
    of_spec,
    of_status,
    raw,
    spot,
)
from support.instance_type_queries import PARTITION, ZONE_ID, available, overlay, reservation, values

# -- labels and compatibility -------------------------------------------------------------------------------------------------


async def test_zones_are_those_that_offer_the_type_and_have_a_subnet_of_the_class() -> None:
    """AWS-T300."""
    fixture = await instance_type_fixture(FakeRegion(offered_in={"m5.large": (B, C)}))
    instance_type = fixture.types()["m5.large"]
    assert values(instance_type, labels.ZONE) == {B}
    assert values(instance_type, ZONE_ID) == {IDS[B]}


async def test_a_type_that_no_zone_offers_has_no_zone_id_requirement() -> None:
    """AWS-320: without a zone the id is unknown, so the requirement is absent."""
    instance_type = (await instance_type_fixture(FakeRegion(offered_in={"m5.large": (C,)}))).types()["m5.large"]
    assert ZONE_ID not in instance_type.requirements
    assert instance_type.requirements[labels.ZONE].accepts_absent


@pytest.mark.parametrize(
    ("family", "build"),
    [("Windows2019", "10.0.17763"), ("Windows2022", "10.0.20348"), ("Windows2025", "10.0.26100")],
)
async def test_a_windows_class_has_the_build_of_its_family(family: str, build: str) -> None:
    """AWS-066: a container of another build does not start on the node."""
    instance_type = (await instance_type_fixture()).types(of_spec(ami_family=family))["m5.large"]
    assert values(instance_type, "node.kubernetes.io/windows-build") == {build}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("topology.ebs.csi.aws.com/zone", labels.ZONE),
        ("failure-domain.beta.kubernetes.io/zone", labels.ZONE),
        ("beta.kubernetes.io/instance-type", labels.INSTANCE_TYPE),
        ("topology.kubernetes.io/zone", labels.ZONE),
    ],
)
def test_a_volume_of_the_ebs_driver_pins_its_zone(written: str, read: str) -> None:
    """AWS-028: otherwise a node could be launched in another zone than the pod's volume."""
    assert labels.normalise(written) == read


async def test_every_label_of_a_type_can_be_required() -> None:
    """AWS-061: a NodePool may use each label without declaring it; other keys of the domain are restricted."""
    keys = set((await instance_type_fixture()).types()["m5.large"].requirements)
    well_known = labels.WELL_KNOWN | INSTANCE_LABELS
    assert {key for key in keys if labels.is_restricted(key, well_known)} == set()
    assert labels.is_restricted("karpenter.k8s.aws/instance-catgory", well_known)


async def test_no_type_has_the_enclave_label_or_resource_of_older_releases() -> None:
    """K15-A21: neither its label nor its resource, nor the resources that enclaves use (K15-A38)."""
    instance_type = (await instance_type_fixture()).types()["m5.large"]
    assert "karpenter.k8s.aws/nitro-sandbox" not in {*instance_type.requirements, *INSTANCE_LABELS, *labels.WELL_KNOWN}
    assert [name for name in instance_type.capacity if "nitro" in name or name.startswith("hugepages-")] == []


async def test_arm_instances_never_run_windows() -> None:
    """AWS-T301."""
    fixture = await instance_type_fixture(FakeRegion(names=["m6g.large", "m5.large"]))
    types = fixture.types(of_spec(ami_family="Windows2022"))
    assert values(types["m6g.large"], labels.OS) == frozenset()
    assert values(types["m5.large"], labels.OS) == {"windows"}


async def test_every_type_has_a_requirement_for_every_well_known_label() -> None:
    """SCH-116, AWS-320."""
    fixture = await instance_type_fixture(FakeRegion(names=list(raw())))
    assert all(instance_type.requirements.keys() >= INSTANCE_LABELS for instance_type in fixture.types().values())


AWS = "karpenter.k8s.aws/"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("g4dn.8xlarge", "instance-network-bandwidth", "50000"),
        ("g4dn.8xlarge", "instance-gpu-memory", "16384"),
        ("g4dn.8xlarge", "instance-local-nvme", "900"),
        ("inf2.xlarge", "instance-accelerator-name", "inferentia2"),
        ("inf2.xlarge", "instance-accelerator-manufacturer", "aws"),
        ("inf2.xlarge", "instance-category", "inf"),
        ("u-6tb1.56xlarge", "instance-category", "u"),
        ("u-6tb1.56xlarge", "instance-generation", "1"),
        ("m7i-flex.large", "instance-capability-flex", "true"),
        ("g6f.large", "instance-gpu-count", "0"),
        ("m5.metal", "instance-hypervisor", ""),
        ("p4d.24xlarge", "instance-network-bandwidth", "400000"),
        ("t1.micro", "instance-network-bandwidth", "70"),
    ],
)
async def test_labels_of_unusual_types(name: str, key: str, value: str) -> None:
    """AWS-320 to AWS-323."""
    assert values((await instance_type_fixture(FakeRegion(names=[name]))).types()[name], AWS + key) == {value}


EFA_ON_CARDS = (
    NetworkInterface(network_card_index=0, device_index=0, interface_type="interface"),
    NetworkInterface(network_card_index=1, device_index=1, interface_type="efa-only"),
)
GROUP = PlacementGroupInfoEntry(group_id="pg-1", strategy="partition", partition_count=3)


@pytest.mark.parametrize(
    ("name", "spec", "usable"),
    [
        pytest.param("m5.large", {"connection_tracking": ConnectionTracking(udp_timeout=60)}, True, id="AWS-345"),
        pytest.param("m5.metal", {"connection_tracking": ConnectionTracking(udp_timeout=60)}, False, id="AWS-T305"),
        pytest.param("a1.large", {}, False, id="AWS-342"),
        pytest.param("a1.large", {"ami_family": "AL2"}, True, id="AWS-342-AL2"),
        pytest.param("m5.large", {"cpu_options": CpuOptions(nested_virtualization="enabled")}, False, id="AWS-343-no"),
        pytest.param(
            "c7i-flex.large", {"cpu_options": CpuOptions(nested_virtualization="enabled")}, True, id="AWS-343"
        ),
        pytest.param("m5.large", {"cpu_options": CpuOptions(nested_virtualization="disabled")}, True, id="AWS-343-off"),
        pytest.param("g4dn.8xlarge", {"enclave_options": EnclaveOptions(enabled=True)}, True, id="K15-A31"),
        pytest.param("u-6tb1.56xlarge", {"enclave_options": EnclaveOptions(enabled=True)}, False, id="K15-A133"),
        pytest.param("u-6tb1.56xlarge", {"enclave_options": EnclaveOptions(enabled=False)}, True, id="K15-A31-off"),
        pytest.param("p4d.24xlarge", {"network_interfaces": EFA_ON_CARDS}, True, id="AWS-341"),
        pytest.param("m5.large", {"network_interfaces": EFA_ON_CARDS}, False, id="AWS-341-no-card"),
        pytest.param("m3.large", {"network_interfaces": EFA_ON_CARDS[:1]}, False, id="AWS-341-no-ENA"),
        pytest.param("m5.large", {"network_interfaces": EFA_ON_CARDS[:1]}, True, id="AWS-341-plain"),
    ],
)
async def test_a_type_the_class_cannot_use_is_listed_but_not_available(
    name: str, spec: dict[str, object], usable: bool
) -> None:
    instance_type = (await instance_type_fixture(FakeRegion(names=[name]))).types(of_spec(**spec))[name]
    assert bool(available(instance_type)) == usable
    assert values(instance_type, labels.ZONE) == {A, B}


async def test_settings_of_one_class_do_not_change_types_of_another_class() -> None:
    """K15-A32, K15-A133: classes of one process, with enclaves, with nested virtualisation and with neither."""
    fixture = await instance_type_fixture(FakeRegion(names=["u-6tb1.56xlarge"]))
    enclaves = of_spec(enclave_options=EnclaveOptions(enabled=True))
    nested = of_spec(cpu_options=CpuOptions(nested_virtualization="enabled"))
    for node_class, usable in ((enclaves, False), (of_spec(), True), (nested, False), (of_spec(), True)):
        assert bool(available(fixture.types(node_class)["u-6tb1.56xlarge"])) is usable


async def test_a_type_that_does_not_fit_the_placement_group_is_not_available() -> None:
    """AWS-344."""
    own = raw()["m5.large"]
    alone = msgspec.structs.replace(own, placement_group_info=None)
    fixture = await instance_type_fixture(
        FakeRegion(
            names=["m5.large", "c5.large"], infos={"c5.large": msgspec.structs.replace(alone, instance_type="c5.large")}
        )
    )
    fixture.group = GROUP
    assert available(fixture.types()["m5.large"])
    assert not available(fixture.types()["c5.large"])


# -- offerings ----------------------------------------------------------------------------------------------------------------


async def test_zones_without_a_subnet_are_listed_and_not_available() -> None:
    """AWS-T350, AWS-350, AWS-351: an offering exists in every zone of the region."""
    instance_type = (await instance_type_fixture()).types()["m5.large"]
    assert {(offer.capacity_type, offer.zone) for offer in instance_type.offerings} == {
        (kind, zone) for kind in ("on-demand", "spot") for zone in ZONES
    }
    assert {zone for _, zone in available(instance_type)} == {A, B}


async def test_a_zone_without_a_spot_price_has_no_spot() -> None:
    """AWS-T351, AWS-352: an unknown price makes an offering unavailable."""
    fixture = await instance_type_fixture(FakeRegion(spot=[spot("m5.large", A, 0.03)]))
    await fixture.provider.refresh_spot()
    assert fixture.offering("m5.large", "spot", A).price_per_hour == 0.03
    assert not fixture.offering("m5.large", "spot", B).available
    assert fixture.offering("m5.large", "on-demand", B).available


async def test_before_the_first_update_spot_has_the_on_demand_price() -> None:
    """AWS-T352, AWS-367: prices are the packaged ones of the region."""
    fixture = await instance_type_fixture(name="eu-west-1")
    assert {offer.price_per_hour for offer in fixture.types()["m5.large"].offerings} == {0.107}
    assert available(fixture.types()["m5.large"]) == {(kind, zone) for kind in ("on-demand", "spot") for zone in (A, B)}


async def test_insufficient_capacity_affects_one_offering_for_a_time() -> None:
    """AWS-T357."""
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "c5.large"]))
    before = fixture.types()
    fixture.memories.unavailable.mark_unavailable(OfferingKey("spot", "m5.large", A), "InsufficientInstanceCapacity")
    assert available(before["m5.large"]) - available(fixture.types()["m5.large"]) == {("spot", A)}
    assert fixture.types()["c5.large"] is before["c5.large"]
    fixture.clock.advance(minutes=3)
    assert fixture.types()["m5.large"].offerings == before["m5.large"].offerings


async def test_a_zone_is_unavailable_when_none_of_its_subnets_has_addresses() -> None:
    """AWS-T358."""
    node_class = of_status(
        subnets=(Subnet(id="subnet-1", zone=A), Subnet(id="subnet-2", zone=A), Subnet(id="subnet-3", zone=B))
    )
    fixture = await instance_type_fixture(FakeRegion(names=["m5.large", "c5.large"]))
    fixture.memories.unavailable.mark_subnet_unavailable("subnet-1")
    assert fixture.offering("m5.large", "spot", A, node_class).available
    fixture.memories.unavailable.mark_subnet_unavailable("subnet-2")
    types = fixture.types(node_class)
    assert {zone for instance_type in types.values() for _, zone in available(instance_type)} == {B}


async def test_spot_can_be_unavailable_as_a_whole() -> None:
    """AWS-377."""
    fixture = await instance_type_fixture()
    fixture.memories.unavailable.mark_capacity_type_unavailable("spot")
    assert {kind for kind, _ in available(fixture.types()["m5.large"])} == {"on-demand"}


@pytest.mark.parametrize(
    ("free", "now"), [pytest.param(3, True, id="AWS-T359"), pytest.param(0, False, id="K15-A34, K15-A136, AWS-T360")]
)
async def test_a_reservation_has_its_own_offering(free: int, now: bool) -> None:
    """K15-A34, K15-A136, K15-080, AWS-T360 as 1.15 has it: a full one is available with capacity 0: it cannot be launched."""
    fixture = await instance_type_fixture()
    fixture.memories.reservations.set_available_count("cr-1", free)
    node_class = of_status(capacity_reservations=(reservation(),))
    offer = fixture.offering("m5.large", "reserved", A, node_class)
    assert (offer.available, offer.reservation_capacity, offer.reservation_id) == (True, free, "cr-1")
    assert offer.launchable == now
    assert offer.price_per_hour == pytest.approx(0.096 / 10**7)
    instance_type = fixture.types(node_class)["m5.large"]
    assert values(instance_type, labels.CAPACITY_TYPE) == {"spot", "on-demand", "reserved"}
    assert values(instance_type, f"{AWS}capacity-reservation-type") == {"default"}
    assert values(instance_type, f"{AWS}capacity-reservation-interruptible") == {"false"}


async def test_reserved_offerings_have_low_prices_in_the_order_of_their_size() -> None:
    """AWS-602: reserved capacity is preferred to spot, and consolidation prefers the smaller reserved type."""
    names = ("m5.large", "m5.xlarge")
    fixture = await instance_type_fixture(FakeRegion(names=names, spot=[spot(name, A, 0.0001) for name in names]))
    await fixture.provider.refresh_spot()
    reservations = tuple(reservation(id=f"cr-{name}", instance_type=name) for name in names)
    for name in names:
        fixture.memories.reservations.set_available_count(f"cr-{name}", 1)
    node_class = of_status(capacity_reservations=reservations)
    small, large = (fixture.offering(name, "reserved", A, node_class).price_per_hour for name in names)
    cheapest_spot = min(fixture.offering(name, "spot", A, node_class).price_per_hour for name in names)
    assert 0 < small < large < cheapest_spot


async def test_a_launch_into_the_last_unit_fills_the_reservation() -> None:
    """AWS-600: the list is updated at once."""
    fixture = await instance_type_fixture()
    node_class = of_status(capacity_reservations=(reservation(),))
    fixture.memories.reservations.set_available_count("cr-1", 1)
    assert fixture.offering("m5.large", "reserved", A, node_class).launchable
    fixture.memories.reservations.mark_launched("cr-1")
    assert not fixture.offering("m5.large", "reserved", A, node_class).launchable


async def test_an_unavailable_reservation_does_not_affect_another_one() -> None:
    """K15-A36, K15-A57, K15-A139: of the same type and zone; both counts stay."""
    fixture = await instance_type_fixture()
    node_class = of_status(capacity_reservations=(reservation(), reservation(id="cr-2")))
    for name in ("cr-1", "cr-2"):
        fixture.memories.reservations.set_available_count(name, 2)
    key = OfferingKey(labels.RESERVED, "m5.large", A, reservation="cr-1")
    fixture.memories.unavailable.mark_unavailable(key, "capacity_reservation_interrupted")

    def state() -> dict[str, tuple[bool, int | None]]:
        offerings = fixture.types(node_class)["m5.large"].offerings
        return {
            one.reservation_id: (one.available, one.reservation_capacity) for one in offerings if one.reservation_id
        }

    assert state() == {"cr-1": (False, 2), "cr-2": (True, 2)}
    fixture.clock.advance(minutes=3)
    assert state() == {"cr-1": (True, 2), "cr-2": (True, 2)}


@pytest.mark.parametrize(
    "changes", [{"state": "expiring"}, {"availability_zone": C}], ids=["AWS-354-expiring", "AWS-354-other-zone"]
)
async def test_a_reservation_that_expires_or_is_in_another_zone_is_not_available(changes: dict[str, object]) -> None:
    fixture = await instance_type_fixture()
    fixture.memories.reservations.set_available_count("cr-1", 3)
    instance_type = fixture.types(of_status(capacity_reservations=(reservation(**changes),)))["m5.large"]
    assert "reserved" not in {kind for kind, _ in available(instance_type)}


async def test_without_the_gate_there_are_no_reserved_offerings() -> None:
    """AWS-T361."""
    fixture = await instance_type_fixture(reserved_capacity=False)
    fixture.memories.reservations.set_available_count("cr-1", 3)
    instance_type = fixture.types(of_status(capacity_reservations=(reservation(),)))["m5.large"]
    assert {offer.capacity_type for offer in instance_type.offerings} == {"spot", "on-demand"}
    assert values(instance_type, labels.CAPACITY_TYPE) == {"spot", "on-demand"}
    assert values(instance_type, labels.RESERVATION_ID) == frozenset()


async def test_each_partition_has_its_own_offerings() -> None:
    """AWS-T362, AWS-355, AWS-610: one copy for each partition, so pods can spread over partitions."""
    fixture = await instance_type_fixture()
    fixture.group = GROUP
    instance_type = fixture.types()["m5.large"]
    assert sum(offer.available for offer in instance_type.offerings) == 12
    assert len(instance_type.offerings) == 18
    assert values(instance_type, PARTITION) == {"1", "2", "3"}
    assert values(instance_type, f"{AWS}placement-group-id") == {"pg-1"}


@pytest.mark.parametrize(
    ("marked", "gone"),
    [
        (OfferingKey("spot", "m5.large", A, "pg-1", "2"), {"2"}),
        (OfferingKey("spot", "m5.large", A, "pg-1"), {"1", "2", "3"}),
        (OfferingKey("spot", "m5.large", A), {"1", "2", "3"}),
        (OfferingKey("spot", "m5.large", A, "pg-2", "2"), set()),
    ],
    ids=["partition", "group", "anywhere", "other group"],
)
async def test_insufficient_capacity_has_the_scope_of_the_refused_launch(marked: OfferingKey, gone: set[str]) -> None:
    """AWS-376, AWS-613 and the Beyond of 8.3: partitions are looked up, too."""
    fixture = await instance_type_fixture()
    fixture.group = GROUP
    fixture.memories.unavailable.mark_unavailable(marked, "InsufficientInstanceCapacity")
    missing = {
        next(iter(offer.requirements[PARTITION].values))
        for offer in fixture.types()["m5.large"].offerings
        if (offer.capacity_type, offer.zone) == ("spot", A) and not offer.available
    }
    assert missing == gone


async def test_insufficient_capacity_in_a_placement_group_does_not_affect_others() -> None:
    """AWS-376."""
    fixture = await instance_type_fixture()
    fixture.memories.unavailable.mark_unavailable(
        OfferingKey("spot", "m5.large", A, "pg-1", "2"), "InsufficientInstanceCapacity"
    )
    assert fixture.offering("m5.large", "spot", A).available


UNPRICED = "hpc7a.12xlarge"


def test_an_overlay_can_price_a_type_that_ec2_does_not_price() -> None:
    """API-168: a preview type; one requirement that names instance types is enough."""
    assert overlay_prices([overlay((labels.INSTANCE_TYPE, "m99.large"))]) == {"m99.large": 2.5}


async def test_an_overlay_prices_offerings_without_a_price() -> None:
    """AWS-T363."""
    fixture = await instance_type_fixture(FakeRegion(names=[UNPRICED, "m5.large"]), node_overlay=True)
    assert not available(fixture.types()[UNPRICED])
    names = (UNPRICED, "m5.large")
    fixture.provider.set_overlay_prices([overlay((labels.INSTANCE_TYPE, name)) for name in names])
    offer = fixture.offering(UNPRICED, "on-demand")
    assert (offer.available, offer.price_per_hour) == (True, 2.5)
    assert fixture.offering("m5.large", "on-demand").price_per_hour == 0.096
    fixture.provider.set_overlay_prices([])
    assert not available(fixture.types()[UNPRICED])


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(overlay((labels.INSTANCE_TYPE, UNPRICED), (labels.ARCH, "amd64")), id="AWS-T364"),
        pytest.param(overlay((labels.ARCH, "amd64")), id="AWS-356-other-label"),
        pytest.param(overlay((labels.INSTANCE_TYPE, UNPRICED), valid=False), id="AWS-356-invalid"),
        pytest.param(overlay((labels.INSTANCE_TYPE, UNPRICED), price=None), id="AWS-356-no-price"),
    ],
)
async def test_other_overlays_do_not_price_these_offerings(given: NodeOverlay) -> None:
    fixture = await instance_type_fixture(FakeRegion(names=[UNPRICED]), node_overlay=True)
    fixture.provider.set_overlay_prices([given])
    assert not available(fixture.types()[UNPRICED])


async def test_without_the_gate_overlays_price_nothing() -> None:
    """AWS-356."""
    fixture = await instance_type_fixture(FakeRegion(names=[UNPRICED]))
    fixture.provider.set_overlay_prices([overlay((labels.INSTANCE_TYPE, UNPRICED))])
    assert not available(fixture.types()[UNPRICED])


async def test_the_overlay_with_the_largest_weight_sets_the_price() -> None:
    """AWS-356."""
    fixture = await instance_type_fixture(FakeRegion(names=[UNPRICED]), node_overlay=True)
    asked = (labels.INSTANCE_TYPE, UNPRICED)
    fixture.provider.set_overlay_prices([overlay(asked, price="3", weight=9), overlay(asked, price="2", weight=1)])
    assert fixture.offering(UNPRICED, "on-demand").price_per_hour == 3.0


async def test_a_zone_with_an_active_zonal_shift_has_no_available_offerings() -> None:
    """AWS-616, AWS-T607."""
    fixture = await instance_type_fixture()
    before = fixture.types()
    fixture.shifted = frozenset({IDS[A]})
    assert {zone for _, zone in available(fixture.types()["m5.large"])} == {B}
    fixture.shifted = frozenset()
    assert fixture.types()["m5.large"].offerings == before["m5.large"].offerings
