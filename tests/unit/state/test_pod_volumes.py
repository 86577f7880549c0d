"""What pods' volumes mean for their place: faults, places and attachments (SCH §18)."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.api.meta import Wire
from karpenter.api.storage import (
    CSINode,
    InTreeVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSource,
    StorageClass,
    Volume,
)
from karpenter.model import labels
from karpenter.model.requirements import Requirements, compatible, requirement, requirements_from_labels
from karpenter.state import ClusterState, ClusterVolumes, PodVolumes
from karpenter.state.pod_volumes import NO_POD_VOLUMES
from support.builders import expr, feed, pod, seconds, snapshot, term
from support.disks import DRIVER, csi_node, pv, pvc, scratch, storage_class, user, using, zonal
from support.examples import examples

GCE = "pd.csi.storage.gke.io"
SOURCE = PersistentVolumeSource()


def seen(one: Pod, *objects: Wire) -> PodVolumes:
    """What the pod's volumes mean in a cluster of the pod and these objects."""
    return snapshot(one, list(objects)).volumes.resolve(one)


def data(*objects: Wire) -> PodVolumes:
    """The same for a pod that uses the claim ``data``."""
    return seen(user("p", "data"), *objects)


def zones(pod_volumes: PodVolumes) -> list[list[str]]:
    """The zones of each alternative; none where it does not care."""
    return [sorted(one.requirement_for(labels.ZONE).values) for one in pod_volumes.node_alternatives]


def will_do(pod_volumes: PodVolumes, **offered: str) -> bool:
    """Whether a node that offers these labels satisfies an alternative."""
    node = requirements_from_labels({labels.ZONE: offered.pop("zone", "z1"), **offered})
    return any(compatible(node, one, frozenset()) for one in pod_volumes.node_alternatives or (Requirements(),))


# -- faults ---------------------------------------------------------------------------------------------------------------

BOUND = (pvc("data", "v"), pv("v"))
FAULTS = [
    pytest.param((), "getting persistent volume claim, ", id="missing"),
    pytest.param((pvc("data", "v", deleted=True), pv("v")), "persistentvolumeclaim is being deleted", id="deleting"),
    pytest.param(
        (pvc("data", "v", phase="Lost"), pv("v")),
        "persistentvolumeclaim bound to non-existent persistentvolume",
        id="lost",
    ),
    pytest.param((pvc("data", "v"),), "failed to validate pvc, ", id="volume-missing"),
    pytest.param((pvc("data", "v"), pv("v", deleted=True)), "failed to validate pvc, ", id="volume-deleting"),
    pytest.param(
        (pvc("data", "v", annotations={}), pv("v")),
        "pvc is considered unbound because it does not contain annotation",
        id="bind-annotation-missing",
    ),
    pytest.param((pvc("data"),), "unbound pvc must define a storage class", id="no-class"),
    pytest.param((pvc("data", storage_class=""),), "unbound pvc must define a storage class", id="empty-class"),
    pytest.param(
        (pvc("data", storage_class="standard"),),
        "failed to validate pvc, failed to get storage class, ",
        id="unknown-class",
    ),
    *(
        pytest.param(
            (pvc("data", storage_class="standard"), storage_class(mode=mode)),
            "failed to validate pvc, pvc with immediate volume binding mode must be bound",
            id=f"immediate-{mode or 'by-default'}",
        )
        for mode in ("Immediate", "")
    ),
]


@pytest.mark.parametrize(("objects", "text"), FAULTS)
def test_a_pod_whose_claim_cannot_be_used_is_told_why(objects: tuple[Wire, ...], text: str) -> None:
    """S-130, SCH-450"""
    (fault,) = data(*objects).claim_errors
    assert fault.startswith(text)
    assert "PersistentVolumeClaim=default/data" in fault


@pytest.mark.parametrize("name", [None, "", "gone"])
def test_a_bound_claim_needs_no_class(name: str | None) -> None:
    """S-131"""
    assert data(pvc("data", "v", name), pv("v")).claim_errors == ()


def test_of_several_faults_of_a_claim_the_first_in_order_is_told() -> None:
    """SCH-450: deletion comes before the phase, the phase before the volume."""
    (fault,) = data(pvc("data", "v", phase="Lost", deleted=True)).claim_errors
    assert fault.startswith("persistentvolumeclaim is being deleted")
    (fault,) = data(pvc("data", "v", phase="Lost")).claim_errors
    assert fault.startswith("persistentvolumeclaim bound to non-existent")


def test_every_claim_with_a_fault_is_told_and_a_pod_next_to_it_is_fine() -> None:
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
    """SCH-450 Beyond: what provisioners and binders are about to do is no news for an event."""
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


# -- attachments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provisioner", "driver"),
    [
        ("kubernetes.io/aws-ebs", DRIVER),
        ("kubernetes.io/gce-pd", GCE),
        ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
        ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
        ("kubernetes.io/azure-file", "file.csi.azure.com"),
        ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
        ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
        ("example.com/other", "example.com/other"),
    ],
)
def test_a_claim_without_volume_counts_for_the_driver_of_its_class(provisioner: str, driver: str) -> None:
    """SCH-460, S-140"""
    pod_volumes = data(pvc("data", storage_class="standard"), storage_class(provisioner=provisioner))
    assert pod_volumes.volumes_by_driver == {driver: {"default/data"}}


@pytest.mark.parametrize(
    ("source", "driver"),
    [
        ("aws_elastic_block_store", DRIVER),
        ("gce_persistent_disk", GCE),
        ("cinder", "cinder.csi.openstack.org"),
        ("azure_disk", "disk.csi.azure.com"),
        ("azure_file", "file.csi.azure.com"),
        ("vsphere_volume", "csi.vsphere.vmware.com"),
        ("portworx_volume", "pxd.portworx.com"),
    ],
)
def test_a_volume_older_than_its_driver_counts_for_it(source: str, driver: str) -> None:
    """S-140; the others than EBS are Beyond of §18."""
    assert data(pvc("data", "v"), pv("v", **{source: SOURCE})).volumes_by_driver == {driver: {"default/data"}}


def test_a_volume_without_driver_is_not_counted() -> None:
    """S-139: NFS, for one."""
    assert data(pvc("data", "v"), pv("v", local=SOURCE)).volumes_by_driver == {}
    nfs = PersistentVolume(metadata=pv("v").metadata)
    assert data(pvc("data", "v"), nfs).volumes_by_driver == {}


def test_a_claim_named_twice_counts_once() -> None:
    """SCH-460"""
    one = pod(
        "p",
        volumes=(
            *using("data"),
            Volume(name="again", persistent_volume_claim=using("data")[0].persistent_volume_claim),
        ),
    )
    assert seen(one, *BOUND).volumes_by_driver == {DRIVER: {"default/data"}}


def test_a_disk_named_without_a_claim_counts_and_bars_no_place() -> None:
    """SCH-430: other kinds have no claim; the scheduler counts their attachments all the same."""
    disks = (
        Volume(name="a", aws_elastic_block_store=InTreeVolumeSource(volume_id="vol-1")),
        Volume(name="b", gce_persistent_disk=InTreeVolumeSource(pd_name="disk")),
        Volume(name="c", azure_disk=InTreeVolumeSource(disk_uri="/subscriptions/x")),
        Volume(name="d", cinder=InTreeVolumeSource(volume_id="c-1")),
        Volume(name="nameless", cinder=InTreeVolumeSource()),
    )
    pod_volumes = seen(pod("p", volumes=disks))
    assert (pod_volumes.claim_errors, pod_volumes.node_alternatives) == ((), ())
    assert pod_volumes.volumes_by_driver == {
        DRIVER: {"/vol-1"},
        GCE: {"/disk"},
        "disk.csi.azure.com": {"//subscriptions/x"},
        "cinder.csi.openstack.org": {"/c-1"},
    }


def test_what_a_node_holds_counts_shared_claims_once() -> None:
    """SCH-093"""
    volumes = snapshot(
        pvc("a", "va"), pvc("b", "vb"), pv("va"), pv("vb"), pvc("c", "vc"), pv("vc", driver="other")
    ).volumes
    running = [user("p", "a", "b"), user("q", "a"), user("r", "c", "gone"), pod("s")]
    assert volumes.attached_volumes(running) == {DRIVER: {"default/a", "default/b"}, "other": {"default/c"}}
    assert volumes.attached_volumes([]) == {}


def test_limits_are_those_drivers_state() -> None:
    """SCH-093"""
    volumes = snapshot(csi_node("n", ebs=10, other=None)).volumes
    assert volumes.attach_limit("n", DRIVER) == 10
    assert volumes.attach_limit("n", "other") is None
    assert volumes.attach_limit("m", DRIVER) is None


def test_a_limit_that_comes_late_counts_from_then_on() -> None:
    """SCH-093 Beyond"""
    state = feed(ClusterState(), [csi_node("n")])
    before = state.snapshot().volumes
    state.set_csi_node(csi_node("n", ebs=3))
    assert (before.attach_limit("n", DRIVER), state.snapshot().volumes.attach_limit("n", DRIVER)) == (None, 3)
    state.remove_csi_node("n")
    assert state.snapshot().volumes.attach_limit("n", DRIVER) is None


# -- claims for one pod -------------------------------------------------------------------------------------------------------

FOR_ONE = (pvc("data", "v", modes=["ReadWriteOncePod"]), pv("v"))


def contested(state: ClusterState, one: Pod) -> str:
    return "; ".join(state.snapshot().volumes.resolve(one).claim_errors)


def test_a_claim_for_one_pod_that_another_uses_keeps_a_pod_waiting() -> None:
    """SCH §18 Beyond"""
    runs, waits = user("runs", "data", node_name="n"), user("waits", "data")
    state = feed(ClusterState(), [*FOR_ONE, runs, waits])
    text = "persistentvolumeclaim default/data is for one pod only and is used by pod default/runs"
    assert contested(state, waits) == text
    assert contested(state, runs) == ""
    assert not state.snapshot().volumes.resolve(waits).errors_are_transient
    state.remove_pod(("default", "runs"))
    assert contested(state, waits) == ""


def test_a_pod_that_ended_leaves_its_claim_to_the_next() -> None:
    runs, waits = user("runs", "data", node_name="n"), user("waits", "data")
    state = feed(ClusterState(), [*FOR_ONE, runs, waits])
    state.set_pod(user("runs", "data", node_name="n", status={"phase": "Succeeded"}))
    assert contested(state, waits) == ""


def test_of_pods_that_want_a_claim_for_one_the_most_important_and_then_the_oldest_is_planned() -> None:
    young = user("a", "data", meta={"creation_timestamp": seconds(5)})
    old = user("b", "data", meta={"creation_timestamp": seconds(1)})
    held = user("c", "data", status={"conditions": ()}, meta={"creation_timestamp": seconds(0)})
    state = feed(ClusterState(), [*FOR_ONE, young, old, held])
    assert (contested(state, old), contested(state, young)) == (
        "",
        "persistentvolumeclaim default/data is for one pod only and goes to pod default/b",
    )
    urgent = user("d", "data", priority=10)
    state.set_pod(urgent)
    assert contested(state, urgent) == ""
    assert contested(state, old).endswith("goes to pod default/d")


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"])
def test_a_claim_for_more_than_one_pod_is_no_bar(mode: str) -> None:
    """Where a ReadWriteOnce claim is in use, attaching waits; the scheduler does not."""
    state = feed(ClusterState(), [pvc("data", "v", modes=[mode]), pv("v"), user("runs", "data", node_name="n")])
    assert contested(state, user("waits", "data")) == ""


# -- pictures -----------------------------------------------------------------------------------------------------------------


def test_a_picture_does_not_change_and_is_the_same_while_nothing_does() -> None:
    state = feed(ClusterState(), [pvc("data", "v"), zonal("v", "z1"), storage_class()])
    first = state.snapshot().volumes
    state.set_pod(user("p", "data"))
    state.set_csi_node(csi_node("n"))
    assert state.snapshot().volumes is first
    state.set_volume(zonal("v", "z2"))
    state.remove_storage_class("standard")
    state.remove_volume_claim(("default", "data"))
    assert zones(first.resolve(user("p", "data"))) == [["z1"]]
    assert "standard" in first.classes
    assert state.snapshot().volumes.resolve(user("p", "data")).claim_errors
    state.remove_volume("v")
    assert state.snapshot().volumes == ClusterVolumes()


def test_pods_alike_but_for_whose_volumes_they_have_are_one_profile() -> None:
    objects = [
        obj for name in "abc" for obj in (pvc(name, f"v{name}"), zonal(f"v{name}", "z2" if name == "c" else "z1"))
    ]
    volumes = snapshot(objects).volumes
    a, b, c = (volumes.resolve(user(name, name)) for name in "abc")
    assert a.equivalence_key == b.equivalence_key != c.equivalence_key
    assert len({a.equivalence_key, b.equivalence_key, c.equivalence_key}) == 2
    assert (a == b, hash(a) == hash(b), a == volumes.resolve(user("x", "a"))) == (False, True, True)


def test_a_pod_without_volumes_that_matter_is_answered_at_once() -> None:
    volumes = snapshot(list(BOUND)).volumes
    assert volumes.resolve(pod("p")) is volumes.resolve(pod("q", volumes=(Volume(name="token"),))) is NO_POD_VOLUMES


@pytest.mark.speed
def test_a_hundred_thousand_claims_are_pictured_and_looked_up_in_no_time() -> None:
    state = ClusterState()
    for number in range(100_000):
        state.set_volume_claim(pvc(f"c{number}", f"v{number}"))
        state.set_volume(zonal(f"v{number}", f"z{number % 3}"))
    waiting = [user(f"p{number}", f"c{number}") for number in range(20_000)]
    state.snapshot()
    begun = time.thread_time()
    for number in range(10):
        state.set_volume_claim(pvc(f"c{number}", f"v{number}"))
        state.snapshot()
    volumes = state.snapshot().volumes
    assert all(volumes.resolve(one).node_alternatives for one in waiting)
    assert time.thread_time() - begun < 3


# -- nonsense -----------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["", "a", "b", "p-a"])
KEYS = st.sampled_from([labels.ZONE, labels.HOSTNAME, "topology.ebs.csi.aws.com/zone", "", "x/y/z"])
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "", "nonsense"])
VALUES = st.lists(st.sampled_from(["z1", "z2", "", "7", "-1", "é"]), max_size=3)
STAMPS = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
TEXTS = st.sampled_from(
    ["", "Lost", "Bound", "ReadWriteOncePod", "Immediate", "WaitForFirstConsumer", "kubernetes.io/aws-ebs"]
)


def some(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


def metadata() -> st.SearchStrategy[dict[str, object]]:
    annotations = st.dictionaries(
        st.sampled_from(["pv.kubernetes.io/bind-completed", "volume.beta.kubernetes.io/storage-class"]), NAMES
    )
    return some(
        name=NAMES,
        namespace=st.sampled_from(["", "default"]),
        uid=NAMES,
        annotations=annotations,
        creationTimestamp=STAMPS,
        deletionTimestamp=STAMPS,
    )


EXPRESSION = st.fixed_dictionaries({"key": KEYS, "operator": OPERATORS}, optional={"values": VALUES})
TERM = some(matchExpressions=st.lists(EXPRESSION, max_size=3), matchFields=st.lists(EXPRESSION, max_size=1))
LABEL = st.fixed_dictionaries({"key": KEYS}, optional={"values": VALUES})
THING = st.just({})
CLAIMS = some(
    metadata=metadata(),
    spec=some(storageClassName=st.none() | NAMES, volumeName=NAMES, accessModes=st.lists(TEXTS, max_size=2)),
    status=some(phase=TEXTS),
)
VOLUMES = some(
    metadata=metadata(),
    spec=some(
        csi=some(driver=TEXTS),
        local=THING,
        hostPath=THING,
        azureDisk=THING,
        nodeAffinity=some(required=some(nodeSelectorTerms=st.lists(TERM, max_size=3))),
    ),
)
CLASSES = some(
    metadata=metadata(),
    provisioner=TEXTS,
    volumeBindingMode=TEXTS,
    allowedTopologies=st.lists(some(matchLabelExpressions=st.lists(LABEL, max_size=2)), max_size=3),
)
CSI_NODES = some(
    metadata=metadata(),
    spec=some(drivers=st.lists(some(name=TEXTS, allocatable=some(count=st.integers(-5, 5) | st.none())), max_size=3)),
)
SOURCES = some(
    name=NAMES,
    persistentVolumeClaim=st.fixed_dictionaries({"claimName": NAMES}),
    ephemeral=THING,
    awsElasticBlockStore=some(volumeID=NAMES),
    cinder=THING,
)
PODS = some(
    metadata=metadata(),
    spec=some(volumes=st.lists(SOURCES, max_size=4), nodeName=NAMES, priority=st.integers(-9, 9)),
    status=some(phase=st.sampled_from(["", "Pending", "Running", "Failed"])),
)
HEAPS = st.tuples(
    *(
        st.lists(strategy.map(lambda body, kind=kind: msgspec.convert(body, kind)), max_size=4)  # type: ignore[misc]
        for kind, strategy in (
            (PersistentVolumeClaim, CLAIMS),
            (PersistentVolume, VOLUMES),
            (StorageClass, CLASSES),
            (CSINode, CSI_NODES),
            (Pod, PODS),
        )
    )
)


@settings(max_examples=examples(300), deadline=None)
@given(HEAPS)
def test_no_objects_however_senseless_break_the_picture(heap: tuple[list[Wire], ...]) -> None:
    """S-142: one bad object is a fault of its pod, never of the pass."""
    picture = snapshot(*heap).volumes
    all_pods: Iterable[Pod] = heap[-1]  # type: ignore[assignment]
    for one in all_pods:
        pod_volumes = picture.resolve(one)
        assert hash(pod_volumes) == hash(picture.resolve(one))
        assert {pod_volumes.equivalence_key: pod_volumes}[picture.resolve(one).equivalence_key] == pod_volumes
        assert all(isinstance(text, str) and text for text in pod_volumes.claim_errors)
        assert pod_volumes.claim_errors or not pod_volumes.unresolved_claim_errors
        assert all(driver and identities for driver, identities in pod_volumes.volumes_by_driver.items())
        assert all(driver in picture.attached_volumes([one]) for driver in pod_volumes.volumes_by_driver)
