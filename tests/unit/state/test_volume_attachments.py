"""What counts against the attach limits of nodes, and snapshots of volumes."""

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
    StorageClass,
    Volume,
)
from karpenter.model import labels
from karpenter.state import ClusterState, ClusterVolumes
from karpenter.state.pod_volumes import NO_POD_VOLUMES
from support.builders import feed, pod, seconds, snapshot
from support.examples import examples
from support.pod_volume_views import BOUND, SOURCE, data, seen, zones
from support.volume_builders import DRIVER, csi_node, pv, pvc, storage_class, user, using, zonal

GCE = "pd.csi.storage.gke.io"


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
    assert volumes.attach_limits == {"n": {DRIVER: 10}}


def test_a_limit_that_comes_late_counts_from_then_on() -> None:
    """SCH-093 Beyond"""
    state = feed(ClusterState(), [csi_node("n")])
    before = state.snapshot().volumes
    state.set_csi_node(csi_node("n", ebs=3))
    assert DRIVER not in before.attach_limits.get("n", {})
    assert state.snapshot().volumes.attach_limits == {"n": {DRIVER: 3}}
    state.remove_csi_node("n")
    assert "n" not in state.snapshot().volumes.attach_limits


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
        st.lists(strategy.map(lambda body, kind=kind: msgspec.convert(body, kind)), max_size=4)
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
    all_pods: Iterable[Pod] = heap[-1]
    for one in all_pods:
        pod_volumes = picture.resolve(one)
        assert hash(pod_volumes) == hash(picture.resolve(one))
        assert {pod_volumes.equivalence_key: pod_volumes}[picture.resolve(one).equivalence_key] == pod_volumes
        assert all(isinstance(text, str) and text for text in pod_volumes.claim_errors)
        assert pod_volumes.claim_errors or not pod_volumes.unresolved_claim_errors
        assert all(driver and identities for driver, identities in pod_volumes.volumes_by_driver.items())
        assert all(driver in picture.attached_volumes([one]) for driver in pod_volumes.volumes_by_driver)
