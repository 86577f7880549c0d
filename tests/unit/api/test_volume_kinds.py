"""Volumes in pods, and the objects they are made of."""

from __future__ import annotations

import pytest

from karpenter.api.kinds import CSI_NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS
from karpenter.api.storage import InTreeVolumeSource, VolumeNodeResources


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("ephemeral", "ephemeral"),
        ("awsElasticBlockStore", "aws_elastic_block_store"),
        ("gcePersistentDisk", "gce_persistent_disk"),
        ("azureDisk", "azure_disk"),
        ("cinder", "cinder"),
    ],
)
def test_a_pod_with_a_volume_source_decodes_and_shows_that_it_has_one(source: str, field: str) -> None:
    pod = POD.decode(f'{{"spec":{{"volumes":[{{"name":"data","{source}":{{"x":{{"y":1}}}}}}]}}}}'.encode())
    assert getattr(pod.spec.volumes[0], field) is not None
    assert pod.spec.volumes[0].persistent_volume_claim is None


def test_an_inline_disk_keeps_the_name_by_which_it_is_attached() -> None:
    pod = POD.decode(
        b'{"spec":{"volumes":[{"name":"a","awsElasticBlockStore":{"volumeID":"vol-1","fsType":"ext4"}},'
        b'{"name":"b","gcePersistentDisk":{"pdName":"disk"}},{"name":"c","azureDisk":{"diskURI":"/x","diskName":"y"}}]}}'
    )
    ebs, gce, azure = pod.spec.volumes
    assert ebs.aws_elastic_block_store == InTreeVolumeSource(volume_id="vol-1")
    assert gce.gce_persistent_disk == InTreeVolumeSource(pd_name="disk")
    assert azure.azure_disk == InTreeVolumeSource(disk_uri="/x")


@pytest.mark.parametrize(
    ("spec", "found"), [("{}", None), ('{"storageClassName":""}', ""), ('{"storageClassName":"a"}', "a")]
)
def test_a_volume_claim_without_a_class_is_distinguished_from_one_that_wants_none(spec: str, found: str | None) -> None:
    claim = PERSISTENT_VOLUME_CLAIM.decode(f'{{"spec":{spec}}}'.encode())
    assert claim.spec.storage_class_name == found
    assert PERSISTENT_VOLUME_CLAIM.decode(PERSISTENT_VOLUME_CLAIM.encode(claim)) == claim


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("local", "local"),
        ("hostPath", "host_path"),
        ("csi", "csi"),
        ("awsElasticBlockStore", "aws_elastic_block_store"),
        ("gcePersistentDisk", "gce_persistent_disk"),
        ("azureDisk", "azure_disk"),
        ("azureFile", "azure_file"),
        ("cinder", "cinder"),
        ("portworxVolume", "portworx_volume"),
        ("vsphereVolume", "vsphere_volume"),
    ],
)
def test_a_volume_shows_where_it_comes_from(source: str, field: str) -> None:
    volume = PERSISTENT_VOLUME.decode(f'{{"spec":{{"{source}":{{"path":"/x"}}}}}}'.encode())
    assert getattr(volume.spec, field) is not None


def test_places_of_volumes_and_classes_are_read() -> None:
    volume = PERSISTENT_VOLUME.decode(
        b'{"spec":{"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":'
        b'[{"key":"zone","operator":"In","values":["a"]}]}]}}}}'
    )
    assert volume.spec.node_affinity is not None
    assert volume.spec.node_affinity.required is not None
    (term,) = volume.spec.node_affinity.required.node_selector_terms
    assert term.match_expressions[0].values == ("a",)
    storage_class = STORAGE_CLASS.decode(
        b'{"provisioner":"p","volumeBindingMode":"Immediate","parameters":{"type":"gp3"},'
        b'"allowedTopologies":[{"matchLabelExpressions":[{"key":"zone","values":["a","b"]}]}]}'
    )
    assert (storage_class.provisioner, storage_class.volume_binding_mode) == ("p", "Immediate")
    assert storage_class.allowed_topologies[0].match_label_expressions[0].values == ("a", "b")


def test_a_driver_says_how_many_volumes_a_node_holds_or_nothing() -> None:
    csi_node = CSI_NODE.decode(
        b'{"spec":{"drivers":[{"name":"a","nodeID":"i-1","topologyKeys":["zone"],"allocatable":{"count":25}},'
        b'{"name":"b","nodeID":"i-1","topologyKeys":null},{"name":"c","allocatable":{}}]}}'
    )
    limits = {driver.name: driver.allocatable for driver in csi_node.spec.drivers}
    assert limits == {"a": VolumeNodeResources(count=25), "b": None, "c": VolumeNodeResources()}
