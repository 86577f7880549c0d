"""How volumes restrict the nodes of pods: faults, topology and attachments (SCH §18)."""

from __future__ import annotations

import pytest

from karpenter.api.meta import Wire
from karpenter.model import labels
from karpenter.model.requirements import Requirements, compatible, requirement, requirements_from_labels
from karpenter.state import PodVolumes
from support.builders import expr, pod, snapshot, term
from support.pod_volume_views import BOUND, FAULTS, SOURCE, data, seen, zones
from support.volume_builders import DRIVER, pv, pvc, scratch, storage_class, user, zonal


def will_do(pod_volumes: PodVolumes, **offered: str) -> bool:
    """Whether a node that offers these labels satisfies an alternative."""
    node = requirements_from_labels({labels.ZONE: offered.pop("zone", "z1"), **offered})
    return any(compatible(node, one, frozenset()) for one in pod_volumes.node_alternatives or (Requirements(),))


@pytest.mark.parametrize(("objects", "text"), FAULTS)
def test_a_pod_whose_volume_claim_cannot_be_used_gets_the_reason(objects: tuple[Wire, ...], text: str) -> None:
    """S-130, SCH-450"""
    (fault,) = data(*objects).claim_errors
    assert fault.startswith(text)
    assert "PersistentVolumeClaim=default/data" in fault


@pytest.mark.parametrize("name", [None, "", "gone"])
def test_a_bound_claim_needs_no_class(name: str | None) -> None:
    """S-131"""
    assert data(pvc("data", "v", name), pv("v")).claim_errors == ()


def test_of_several_faults_of_a_claim_the_first_in_order_is_reported() -> None:
    """SCH-450: deletion comes before the phase, the phase before the volume."""
    (fault,) = data(pvc("data", "v", phase="Lost", deleted=True)).claim_errors
    assert fault.startswith("persistentvolumeclaim is being deleted")
    (fault,) = data(pvc("data", "v", phase="Lost")).claim_errors
    assert fault.startswith("persistentvolumeclaim bound to non-existent")


def test_every_claim_with_a_fault_is_reported_and_a_pod_next_to_it_is_fine() -> None:
    """S-142"""
    one, other = user("p", "data", "gone", "data", "also-gone"), user("q", "data")
    volumes = snapshot(one, other, list(BOUND)).volumes
    assert [fault.partition("(")[2] for fault in volumes.resolve(one).claim_errors] == [
        "PersistentVolumeClaim=default/gone)",
        "PersistentVolumeClaim=default/also-gone)",
    ]
    assert volumes.resolve(other).claim_errors == ()


def test_a_claim_of_another_namespace_is_another_claim() -> None:
    """SCH-430"""
    stranger = user("p", "data", meta={"namespace": "other"})
    (fault,) = seen(stranger, *BOUND).claim_errors
    assert "other/data" in fault


@pytest.mark.parametrize(
    ("objects", "is_unresolved"),
    [
        ((), True),
        ((pvc("data", "v"),), True),
        ((pvc("data", "v", deleted=True),), True),
        ((pvc("data", "v", phase="Lost"),), True),
        ((pvc("data", storage_class="gone"),), True),
        ((pvc("data", "v", deleted=True), pv("v")), False),
        ((pvc("data", "v", annotations={}), pv("v")), False),
        ((pvc("data", "v"), pv("v", deleted=True)), False),
        ((pvc("data"),), False),
        ((pvc("data", storage_class="standard"), storage_class(mode="Immediate")), False),
        (BOUND, False),
    ],
    ids=[
        "no-claim",
        "no-volume",
        "no-volume-and-deleting",
        "no-volume-and-lost",
        "no-class-of-that-name",
        "deleting",
        "not-annotated",
        "volume-deleting",
        "no-class",
        "immediate",
        "fine",
    ],
)
def test_a_pod_that_must_move_is_held_only_by_what_cannot_be_looked_up(
    objects: tuple[Wire, ...], is_unresolved: bool
) -> None:
    """SCH-063 skips the validation, its Beyond and SCH-441 reject where places are unknown."""
    pod_volumes = data(*objects)
    assert bool(pod_volumes.unresolved_claim_errors) == is_unresolved
    assert bool(pod_volumes.claim_errors) == (objects != BOUND)


@pytest.mark.parametrize(
    ("objects", "passes"),
    [
        ((pvc("data", storage_class="standard"), storage_class(mode="Immediate")), True),
        ((pvc("data", "v", annotations={}), pv("v")), True),
        ((pvc("data", "v", annotations={}, deleted=True), pv("v")), False),
        ((), False),
        ((pvc("data"),), False),
        (BOUND, False),
    ],
    ids=["immediate", "being-bound", "being-bound-and-deleted", "missing", "no-class", "fine"],
)
def test_faults_that_pass_by_themselves_are_marked(objects: tuple[Wire, ...], passes: bool) -> None:
    """SCH-450 Beyond: no event about what volume provisioners and binders are about to do."""
    assert data(*objects).errors_are_transient is passes


def test_a_fault_that_passes_does_not_hide_one_that_stays() -> None:
    one = user("p", "data", "gone")
    pod_volumes = seen(one, pvc("data", storage_class="standard"), storage_class(mode="Immediate"))
    assert (len(pod_volumes.claim_errors), pod_volumes.errors_are_transient) == (2, False)


def test_an_ephemeral_volume_has_the_claim_called_after_pod_and_volume() -> None:
    """S-141: and until that claim is made, waiting for it is no fault that stays."""
    one = pod("p", volumes=(scratch("tmp"),))
    missing = seen(one)
    assert (missing.errors_are_transient, "default/p-tmp" in missing.claim_errors[0]) == (True, True)
    made = seen(one, pvc("p-tmp", storage_class="standard"), storage_class("standard", {labels.ZONE: ["z3"]}))
    assert (made.claim_errors, zones(made), made.volumes_by_driver) == ((), [["z3"]], {DRIVER: {"default/p-tmp"}})


# -- places -----------------------------------------------------------------------------------------------------------------


def test_a_class_that_allows_some_zones_only_keeps_the_pod_there() -> None:
    """S-132"""
    pod_volumes = data(pvc("data", storage_class="standard"), storage_class("standard", {labels.ZONE: ["z1", "z3"]}))
    assert [will_do(pod_volumes, zone=zone) for zone in ("z1", "z2", "z3")] == [True, False, True]
    assert len(pod_volumes.node_alternatives) == 1


def test_each_term_of_a_class_is_an_alternative() -> None:
    """SCH-440"""
    allowed = ({labels.ZONE: ["z2"], "rack": ["a"]}, {labels.ZONE: ["z1"]}, {})
    pod_volumes = data(pvc("data", storage_class="standard"), storage_class("standard", *allowed))
    assert zones(pod_volumes) == [["z2"], ["z1"]]
    assert will_do(pod_volumes, zone="z2", rack="a")
    assert not will_do(pod_volumes, zone="z2", rack="b")


def test_a_class_that_allows_everything_constrains_nothing() -> None:
    assert data(pvc("data", storage_class="standard"), storage_class()).node_alternatives == ()


def test_the_older_way_to_name_a_class_counts_as_in_the_scheduler() -> None:
    old = pvc("data", annotations={"volume.beta.kubernetes.io/storage-class": "standard"})
    pod_volumes = data(old, storage_class("standard", {labels.ZONE: ["z1"]}))
    assert (pod_volumes.claim_errors, zones(pod_volumes)) == ((), [["z1"]])


def test_a_volume_keeps_its_pod_in_its_zone() -> None:
    """S-133"""
    pod_volumes = data(pvc("data", "v"), zonal("v", "z3"))
    assert (will_do(pod_volumes, zone="z1"), will_do(pod_volumes, zone="z3")) == (False, True)


def test_each_term_of_a_volume_is_an_alternative_in_its_order() -> None:
    """S-136, SCH-440"""
    assert zones(data(pvc("data", "v"), zonal("v", "z2", "z1"))) == [["z2"], ["z1"]]


@pytest.mark.parametrize(
    "key", ["topology.ebs.csi.aws.com/zone", "failure-domain.beta.kubernetes.io/zone", labels.ZONE]
)
def test_older_and_provider_names_of_the_zone_mean_the_zone(key: str) -> None:
    """SCH-143, SCH-440"""
    assert zones(data(pvc("data", "v"), pv("v", term(expr(key, "In", "z2"))))) == [["z2"]]


@pytest.mark.parametrize("source", ["local", "host_path"])
def test_the_host_of_a_local_volume_does_not_count(source: str) -> None:
    """S-134, DIS-169"""
    host = expr(labels.HOSTNAME, "In", "gone")
    only = pv("v", term(host), **{source: SOURCE})
    assert data(pvc("data", "v"), only).node_alternatives == ()
    both = pv("v", term(host, expr(labels.ZONE, "In", "z2")), **{source: SOURCE})
    assert data(pvc("data", "v"), both).node_alternatives == (Requirements((requirement(labels.ZONE, "In", ("z2",)),)),)


def test_a_term_of_hosts_only_beside_others_leaves_the_place_open_in_its_turn() -> None:
    """SCH-440"""
    terms = (term(expr(labels.ZONE, "In", "z2")), term(expr(labels.HOSTNAME, "In", "gone")))
    assert zones(data(pvc("data", "v"), pv("v", *terms, local=SOURCE))) == [["z2"], []]


def test_the_host_of_a_network_volume_counts() -> None:
    """S-135"""
    pod_volumes = data(pvc("data", "v"), pv("v", term(expr(labels.HOSTNAME, "In", "gone"))))
    assert not will_do(pod_volumes, **{labels.HOSTNAME: "here"})
    assert will_do(pod_volumes, **{labels.HOSTNAME: "gone"})


def test_terms_without_expressions_are_passed_over() -> None:
    """SCH-440"""
    assert data(pvc("data", "v"), pv("v", term())).node_alternatives == ()
    assert zones(data(pvc("data", "v"), pv("v", term(), term(expr(labels.ZONE, "In", "z1"))))) == [["z1"]]


def test_volumes_together_leave_the_places_they_share_first_claim_outermost() -> None:
    """SCH-440"""
    one = user("p", "a", "b")
    bound = (pvc("a", "va"), pvc("b", "vb"))
    assert zones(seen(one, *bound, zonal("va", "z3", "z1"), zonal("vb", "z1", "z2", "z3"))) == [["z3"], ["z1"]]
    racks = pv("vb", *(term(expr("rack", "In", rack)) for rack in ("r2", "r1")))
    pod_volumes = seen(one, *bound, zonal("va", "z3", "z1"), racks)
    pairs = [
        (*requirements.requirement_for(labels.ZONE).values, *requirements.requirement_for("rack").values)
        for requirements in pod_volumes.node_alternatives
    ]
    assert pairs == [("z3", "r2"), ("z3", "r1"), ("z1", "r2"), ("z1", "r1")]


def test_volumes_that_share_no_place_leave_none() -> None:
    """SCH-440: the pod is not planned as if it had no volumes."""
    pod_volumes = seen(user("p", "a", "b"), pvc("a", "va"), pvc("b", "vb"), zonal("va", "z1"), zonal("vb", "z2", "z3"))
    assert zones(pod_volumes) == [[]]
    assert not any(will_do(pod_volumes, zone=zone) for zone in ("z1", "z2", "z3", ""))
    assert not any(compatible(Requirements(), one, frozenset()) for one in pod_volumes.node_alternatives)


def test_a_volume_that_is_everywhere_changes_nothing() -> None:
    """SCH-440"""
    pod_volumes = seen(user("p", "a", "b"), pvc("a", "va"), pvc("b", "vb"), pv("va"), zonal("vb", "z2"))
    assert zones(pod_volumes) == [["z2"]]


def test_endless_combinations_of_places_come_to_an_end() -> None:
    names = [f"c{number}" for number in range(20)]
    objects: list[Wire] = []
    for name in names:
        terms = [term(expr(f"{name}/key", "In", value)) for value in "abc"]
        objects += [pvc(name, f"v-{name}"), pv(f"v-{name}", *terms)]
    one = user("p", *names)
    pod_volumes = seen(one, *objects)
    assert 0 < len(pod_volumes.node_alternatives) <= 1000
    assert all(len(requirements) == len(names) for requirements in pod_volumes.node_alternatives)
