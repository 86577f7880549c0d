"""What a plan reads about volumes, from files and from a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from karpenter.api.kinds import KINDS
from karpenter.api.storage import PersistentVolumeClaim
from karpenter.cli import manifest_reader
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.cluster_reader import list_plan_objects
from karpenter.cli.planning import cluster_state
from karpenter.cli.planning_options import InputOptions
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.state import PodVolumes
from support.manifest_builders import Json, listed, pod
from support.volume_builders import DRIVER

CLAIM: Json = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
SCRATCH: Json = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}


def obj(version: str, kind: str, name: str, /, annotations: dict[str, str] | None = None, **fields: object) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "annotations": annotations or {}}, **fields}


def pvc(annotations: dict[str, str] | None = None, **spec: object) -> Json:
    return obj("v1", "PersistentVolumeClaim", "data", annotations, spec=spec)


def storage_class(name: str, zone: str, annotations: dict[str, str] | None = None) -> Json:
    allowed = [{"matchLabelExpressions": [{"key": "topology.ebs.csi.aws.com/zone", "values": [zone]}]}]
    more = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": allowed}
    return obj("storage.k8s.io/v1", "StorageClass", name, annotations, **more)


BOUND = (
    pvc({"pv.kubernetes.io/bind-completed": "yes"}, volumeName="v"),
    obj("v1", "PersistentVolume", "v", spec={"csi": {"driver": DRIVER, "volumeHandle": "x"}}),
    obj(
        "storage.k8s.io/v1",
        "CSINode",
        "n",
        spec={"drivers": [{"name": DRIVER, "nodeID": "i", "allocatable": {"count": 9}}]},
    ),
)
DEFAULT = "storageclass.kubernetes.io/is-default-class"


def read(folder: Path, *objects: Json) -> ClusterObjects:
    file = folder / "objects.json"
    file.write_text(json.dumps(listed(*objects)))
    cluster_objects = manifest_reader.read_manifests(InputOptions([str(file)]), frozenset())
    assert (cluster_objects.problems, dict(cluster_objects.skipped)) == ([], {})
    return cluster_objects


def of_first_pod(objects: ClusterObjects) -> PodVolumes:
    return cluster_state(objects).snapshot().volumes.resolve(objects.pods[0])


def zones(pod_volumes: PodVolumes) -> list[str]:
    return [value for one in pod_volumes.node_alternatives for value in one.requirement_for(labels.ZONE).values]


def test_claims_volumes_and_limits_in_files_are_read(tmp_path: Path) -> None:
    objects = read(tmp_path, pod(volumes=[CLAIM]), *BOUND)
    pod_volumes = of_first_pod(objects)
    assert (pod_volumes.claim_errors, pod_volumes.volumes_by_driver) == ((), {DRIVER: {"default/data"}})
    assert cluster_state(objects).snapshot().volumes.attach_limits.get("n", {}).get(DRIVER) == 9


def test_a_claim_that_no_file_has_is_a_fault_of_its_pod(tmp_path: Path) -> None:
    (fault,) = of_first_pod(read(tmp_path, pod(volumes=[CLAIM]))).claim_errors
    assert fault.startswith("getting persistent volume claim, ")


def test_claims_of_ephemeral_volumes_count_as_made(tmp_path: Path) -> None:
    """S-141: offline there is no controller to make them."""
    pod_volumes = of_first_pod(read(tmp_path, pod(volumes=[SCRATCH]), storage_class("fast", "z2")))
    assert (pod_volumes.claim_errors, zones(pod_volumes), pod_volumes.volumes_by_driver) == (
        (),
        ["z2"],
        {DRIVER: {"default/web-tmp"}},
    )


def test_a_claim_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    made = obj("v1", "PersistentVolumeClaim", "web-tmp", spec={"storageClassName": "slow"})
    objects = read(tmp_path, pod(volumes=[SCRATCH]), made, storage_class("slow", "z1"), storage_class("fast", "z2"))
    assert (len(objects.volume_claims), zones(of_first_pod(objects))) == (1, ["z1"])


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, "usual"),
        ({"storageClassName": ""}, ""),
        ({"storageClassName": "fast"}, "fast"),
        ({"volumeName": "v"}, None),
    ],
    ids=["absent", "empty", "named", "bound"],
)
def test_a_claim_that_names_no_class_is_of_the_default_class(tmp_path: Path, spec: Json, named: str | None) -> None:
    """Absent is not empty: empty asks for no class at all."""
    classes = (storage_class("fast", "z2"), storage_class("usual", "z1", {DEFAULT: "true"}))
    (claim,) = read(tmp_path, pvc(**spec), *classes).volume_claims
    assert isinstance(claim, PersistentVolumeClaim)
    assert claim.spec.storage_class_name == named


def test_of_several_default_classes_the_newest_counts(tmp_path: Path) -> None:
    young = storage_class("young", "z1", {DEFAULT: "true"})
    young["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    old = storage_class("old", "z2", {"storageclass.beta.kubernetes.io/is-default-class": "true"})
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    (claim,) = read(tmp_path, pvc(), old, young, storage_class("no", "z3", {DEFAULT: "false"})).volume_claims
    assert claim.spec.storage_class_name == "young"


async def test_a_running_cluster_is_asked_for_the_same() -> None:
    server = MemoryServer(SystemClock())
    (claim, *rest) = BOUND
    metadata = {**claim["metadata"], "namespace": "default"}
    server.load_objects([{**claim, "metadata": metadata}, *rest, storage_class("fast", "z2")])
    cluster_objects = await list_plan_objects(MemoryKube(server))
    kinds = (
        cluster_objects.volume_claims,
        cluster_objects.volumes,
        cluster_objects.storage_classes,
        cluster_objects.csi_nodes,
    )
    assert [element.metadata.name for listed in kinds for element in listed] == ["data", "v", "fast", "n"]


async def test_a_cluster_without_storage_kinds_is_planned_for_all_the_same() -> None:
    bare = [kind for kind in KINDS.values() if kind.group != "storage.k8s.io"]
    cluster_objects = await list_plan_objects(MemoryKube(MemoryServer(SystemClock(), kinds=bare)))
    assert (cluster_objects.storage_classes, cluster_objects.csi_nodes, cluster_objects.problems) == ([], [], [])


@pytest.mark.parametrize(("spec", "names"), [({}, "(default)"), ({"storageClassName": "gp3"}, "gp3")])
def test_without_storage_classes_those_that_claims_need_are_assumed_and_said(
    tmp_path: Path, spec: Json, names: str
) -> None:
    """Manifests of a StatefulSet rarely bring the classes of their cluster along."""
    objects = read(tmp_path, pod(volumes=[CLAIM]), pvc(**spec))
    assert [(wire.metadata.name, wire.volume_binding_mode) for wire in objects.storage_classes] == [
        (names, "WaitForFirstConsumer")
    ]
    (line,) = objects.notices
    assert line.startswith(
        f"no StorageClass in the input: volumes of {names} are assumed to be made where their pods go"
    )
    assert of_first_pod(objects).claim_errors == ()


@pytest.mark.parametrize("spec", [{"storageClassName": ""}, {"volumeName": "v"}], ids=["empty", "bound"])
def test_nothing_is_assumed_about_claims_that_need_no_class(tmp_path: Path, spec: Json) -> None:
    objects = read(tmp_path, pod(volumes=[CLAIM]), pvc(**spec))
    assert (objects.storage_classes, objects.notices) == ([], [])
